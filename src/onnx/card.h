/* card.h - what an ONNX model is for: whether it embeds or classifies, which output counts, how
 * rows become one.
 *
 * tern.json beside the model says it; what it leaves out is read off config.json,
 * sentence-transformers' files and the graph's own names. Where these say two things, or nothing,
 * the model is refused with what to write into tern.json: nothing is guessed. */
#ifndef TERN_ONNX_CARD_H
#define TERN_ONNX_CARD_H

#include "format/source.h"
#include "onnx/graph.h"

enum card_task { CARD_EMBED, CARD_CLASSIFY };
enum card_pool {
    CARD_NONE,
    CARD_MEAN,
    CARD_CLS,
    CARD_LAST
}; /* NONE: the output has a row for each text */
enum card_score { CARD_SOFTMAX, CARD_SIGMOID, CARD_RAW };
enum card_input { CARD_IDS, CARD_MASK, CARD_TYPES, CARD_POSITIONS, CARD_INPUTS };

struct card {
    enum card_task task;
    enum card_pool pool;
    enum card_score score;
    bool normalize;     /* embeddings are of length 1 */
    int output;         /* of the graph */
    int width;          /* numbers of an embedding; labels */
    struct str *labels; /* [width] of a classifier */
    int n_ctx, n_vocab, pad;
    int first_pos;           /* of a text's first token, for graphs that are told positions */
    int inputs[CARD_INPUTS]; /* which of the graph's; -1: it has none */
    int64_t fixed_batch, fixed_len; /* that the graph was exported with; -1: any */
};

int card_read(struct card *c, struct arena *a, const struct source *src, const struct onnx *m,
              struct err *e);
const char *card_task_name(enum card_task t); /* "embed", "classify" */
const char *card_pool_name(enum card_pool p);
const char *card_score_name(enum card_score s);
#endif
