/* batch.h - what a forward pass takes: a flat list of tokens from many sequences.
 *
 * Prefill of any chunk and decode of many sequences are the same call. Tokens of one sequence stand
 * in order of position; sequences may come in any order. All arrays are host memory and the
 * caller's. */
#ifndef TERN_MODEL_BATCH_H
#define TERN_MODEL_BATCH_H

#include "base/err.h"
#include "kernel/samplerow.h"

#include <stdbool.h>

struct runner_limits;

struct batch {
    int n_tokens;
    const int32_t *ids; /* [n_tokens] */
    const int32_t *pos; /* [n_tokens] position in its sequence */
    const int32_t *seq; /* [n_tokens] row of the block table */
    int n_seqs;
    const int32_t *table; /* [n_seqs][table_stride] KV block ids */
    int table_stride;
    /* [n_seqs] slots of recurrent state; NULL: row i uses slot i. For models with state, the tokens
     * of a sequence must be neighbours in the batch, and a sequence whose first token is at
     * position 0 starts from a zero state. */
    const int32_t *slots;
    int n_out;
    const int32_t *out_rows; /* [n_out] tokens whose logits are wanted */
    /* Tokens whose last hidden row is wanted, after the final norm, for embeddings. Ascending. */
    int n_hidden;
    const int32_t *hidden_rows; /* [n_hidden] */
    float *hidden;              /* [n_hidden][n_vec] results */
    /* Outputs of which only the sampled token is wanted, if the runner samples
     * (runner_limits.samples). `row` is an index into out_rows, ascending. Their logits do not
     * come back. */
    int n_samples;
    const struct sample_row *samples; /* [n_samples] */
    const struct logit_adjust *adjust;
    int n_adjust;
    int n_sample_ids; /* ids below this may be sampled */
    int32_t *sampled; /* [n_samples] sampled tokens; -1: no logit was a number */
    /* [n_seqs] final length of each prompt, for models whose rotary scaling depends on it
     * (longrope, dynamic), so that a prompt in chunks gives the same as in one piece. NULL: the
     * length seen in this batch. */
    const int32_t *seq_len;
    /* [n_seqs] position where a second text begins (token type 1, for graphs that take pairs of
     * texts); 0: there is one text. NULL: 0 for all. */
    const int32_t *second;
    /* Called between layers; true: the results are not needed any more. The pass ends with
     * E_CANCELLED, and the KV it wrote must not be used. NULL: the pass always runs to its end. */
    bool (*stop)(void *arg);
    void *stop_arg;
};

/* Checks a batch against a runner's limits: ids, positions, blocks, wanted rows, samples; whole
 * texts if attention is bidirectional. Fills seq_end: [max_seqs] the length of each sequence after
 * the batch (seq_len where it is longer). n_of: [max_seqs] scratch. E_INVALID names what is wrong. */
int batch_check(const struct batch *b, const struct runner_limits *lim, int32_t *seq_end,
                int32_t *n_of, struct err *e);
/* E_CANCELLED, for a pass that batch.stop ended. */
int batch_stopped(struct err *e);
#endif
