/* batch.h - what a forward pass takes: a flat run of tokens from many sequences.
 *
 * Prefill of any chunk and decode of many sequences are the same call: tokens of one sequence
 * stand in order of position; sequences may come in any order. Host memory, the caller's. */
#ifndef TERN_MODEL_BATCH_H
#define TERN_MODEL_BATCH_H

#include "kernel/samplerow.h"

#include <stdbool.h>

struct batch {
    int n_tokens;
    const int32_t *ids; /* [n_tokens] */
    const int32_t *pos; /* [n_tokens] */
    const int32_t *seq; /* [n_tokens] row of the block table */
    int n_seqs;
    const int32_t *table; /* [n_seqs][table_stride] KV blocks */
    int table_stride;
    /* Of models with recurrent state (model_has_state): tokens of a sequence stand beside each
     * other there, and a sequence whose first token is at position 0 begins anew. NULL: slot i is
     * row i's. */
    const int32_t *slots; /* [n_seqs] of the decoder's state pool */
    int n_out;
    const int32_t *out_rows; /* [n_out] which tokens want logits */
    /* Tokens whose last hidden state is wanted, behind the last norm: for embeddings. Rising. */
    int n_hidden;
    const int32_t *hidden_rows; /* [n_hidden] */
    float *hidden;              /* [n_hidden][n_embd] */
    /* Outputs of which only a token is wanted, where the decoder can pick (decoder_can_pick): `row`
     * is one of the n_out, rising. The logits of these do not come back. */
    int n_picks;
    const struct sample_row *picks; /* [n_picks] */
    const struct logit_adjust *adjust;
    int n_adjust;
    int n_pick_from; /* the first so many ids may be drawn */
    int32_t *picked; /* [n_picks] what came; -1: no logit was a number */
    /* [n_seqs] how long each sequence will be, for models whose rotary scaling depends on it
     * (longrope, dynamic): then a prompt in chunks is the prompt in one piece. NULL: as long as
     * this batch shows. */
    const int32_t *seq_len;
    /* [n_seqs] where a second text begins, for graphs that tell two apart; 0: there is one. NULL:
     * in all. */
    const int32_t *second;
    /* Asked between layers; true: nobody wants the result any more, the pass ends with E_CANCELLED
     * and what it wrote to KV counts for nothing. NULL: nobody asks. */
    bool (*stop)(void *arg);
    void *stop_arg;
};
#endif
