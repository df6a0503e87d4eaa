/* onnxpass.h - an ONNX graph in the decoder's place: a batch of whole texts in, a row for each
 * wanted token out.
 *
 * Texts of one length go through the graph together; nothing is padded unless the graph was
 * exported for one length only, so what a text becomes does not depend on its neighbours. */
#ifndef TERN_MODEL_ONNXPASS_H
#define TERN_MODEL_ONNXPASS_H

#include "kernel/backend.h"
#include "model/batch.h"
#include "onnx/card.h"
#include "onnx/run.h"

struct onnxpass {
    struct arena arena;
    struct backend *be;        /* borrowed */
    size_t counted[MEM_KINDS]; /* of its used_bytes */
    struct onnx *file;
    struct onnx_run *run;
    struct card card;
    bool alone;               /* texts go through one by one */
    int max_tokens, max_seqs; /* of a pass through the graph */
    void *data[CARD_INPUTS];  /* of each input, for max_tokens */
    int32_t *first, *len,
        *slot; /* [max_seqs] of a batch's sequences; slot: row of the pass, -1: not in it */
};

/* be is the CPU's; it outlives the pass. */
int onnxpass_open(struct onnxpass **out, const struct source *src, struct backend *be,
                  struct err *e);
void onnxpass_close(struct onnxpass *p); /* NULL is fine */
/* Takes memory for batches of so many tokens of so many sequences, none longer than n_ctx. */
int onnxpass_plan(struct onnxpass *p, int max_tokens, int max_seqs, int n_ctx, struct err *e);
int onnxpass_run(struct onnxpass *p, const struct batch *b, struct err *e);
#endif
