/* card.h - what an ONNX model is for: task, pooling, inputs, outputs, labels.
 *
 * A graph alone does not say whether it embeds or classifies, which of its outputs counts, or how
 * the rows of the tokens become one vector. The card collects the answers, in this order:
 *   1. tern.json beside the model (keys task, output, pooling, normalize, labels, activation,
 *      max_tokens; docs/onnx.md describes them);
 *   2. config.json (architectures, id2label, problem_type, sizes), the files of
 *      sentence-transformers (modules.json, 1_Pooling/config.json) and the names of the graph's
 *      inputs and outputs.
 * Where these contradict each other or say nothing, the model is refused with a message that shows
 * what to write into tern.json: a wrong pooling would give plausible, wrong vectors. */
#ifndef TERN_ONNX_CARD_H
#define TERN_ONNX_CARD_H

#include "format/source.h"
#include "onnx/graph.h"

enum card_task { CARD_EMBED, CARD_CLASSIFY };

enum card_pool {            /* from one row per token to one vector per text */
                 CARD_NONE, /* the output has one row per text already */
                 CARD_MEAN, /* mean of all tokens */
                 CARD_CLS,  /* the first token */
                 CARD_LAST  /* the last token */
};

enum card_score { CARD_SOFTMAX, CARD_SIGMOID, CARD_RAW }; /* logits to scores */

/* Inputs that a graph may have, all [texts][tokens]: input_ids, attention_mask, token_type_ids,
 * position_ids. */
enum card_input { CARD_IDS, CARD_MASK, CARD_TYPES, CARD_POSITIONS, CARD_INPUTS };

struct card {
    enum card_task task;
    enum card_pool pool;
    enum card_score score;   /* of a classifier */
    bool normalize;          /* embeddings are scaled to length 1 */
    int output;              /* index among the graph's outputs */
    int width;               /* elements of an embedding, or number of labels */
    struct str *labels;      /* [width] of a classifier, in the arena of card_read */
    int n_ctx;               /* longest text, in tokens */
    int n_vocab;             /* ids are below it */
    int pad;                 /* id of padding */
    int first_pos;           /* position id of the first token: RoBERTa counts from pad + 1 */
    int inputs[CARD_INPUTS]; /* index among the graph's inputs; -1: it does not take this one */
    int64_t fixed_batch, fixed_len; /* sizes that the graph was exported with; -1: any */
};

/* src is the folder of the model m. Labels are copied into a. */
int card_read(struct card *c, struct arena *a, const struct source *src, const struct onnx *m,
              struct err *e);
const char *card_task_name(enum card_task t); /* "embed", "classify" */
const char *card_pool_name(enum card_pool p);
const char *card_score_name(enum card_score s);
#endif
