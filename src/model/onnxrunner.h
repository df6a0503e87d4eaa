/* onnxrunner.h - an ONNX graph as a runner: whole texts in, hidden rows or class scores out.
 *
 * Texts of one length go through the graph together. Nothing is padded unless the graph was
 * exported for one length only, so the vector of a text does not depend on its neighbours. The
 * graph runs on the CPU, all of it in `wait`; KV block ids are accepted and ignored. It is opened
 * by the load plan (onnx_loader in loadplan.h): the memory of a graph is known only after its
 * constants were computed and its nodes walked with the largest shapes, so making the plan does
 * both. */
#ifndef TERN_MODEL_ONNXRUNNER_H
#define TERN_MODEL_ONNXRUNNER_H

#include "model/runner.h"
#include "onnx/card.h"
#include "onnx/run.h"

struct onnxrunner {
    struct runner r;           /* first: a runner is cast to its graph */
    struct backend *be;        /* borrowed from the plan; NULL until the graph is placed */
    size_t counted[MEM_KINDS]; /* bytes added to the backend's used_bytes */
    struct source *source; /* of the plan, which outlives the runner; watches the files of `file` */
    struct onnx *file;
    struct onnx_run *run;
    struct card card;        /* its strings are in the plan's arena */
    bool alone;              /* texts go through the graph one by one */
    int max_tokens;          /* of one pass through the graph */
    void *data[CARD_INPUTS]; /* [max_tokens] of each input the graph has, in its type */
    int32_t *seq_end, *n_of; /* [max_seqs] of batch_check */
    int32_t *first, *len;    /* [max_seqs] a sequence's first token in the batch, its tokens */
    int32_t *row;            /* [max_seqs] its row in the pass; -1: it is in another pass */
    struct batch b;          /* that was started */
};
#endif
