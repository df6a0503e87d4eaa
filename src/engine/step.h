/* step.h - carries a plan out: fills the flat batch, starts it and waits for it.
 *
 * Arrays for the largest step are allocated once. Rows of the block table, of n_new and so on are
 * one per sequence, in the order of step_add. The engine thread owns it. */
#ifndef TERN_ENGINE_STEP_H
#define TERN_ENGINE_STEP_H

#include "engine/seq.h"
#include "model/pooler.h"
#include "model/runner.h"

struct step_opt {
    int n_sample;         /* ids that may be sampled */
    struct pooler pooler; /* which hidden rows a vector is made of */
};

struct step {
    struct runner *runner; /* borrowed */
    struct step_opt opt;
    int n_tokens, n_seqs, n_out;
    int32_t *ids, *pos, *row; /* [max_tokens] token id, position, row of the table */
    int32_t *table;           /* [max_seqs][max_table] KV blocks; packed when the step starts */
    int longest;              /* blocks of the longest sequence */
    int32_t *slots;           /* [max_seqs] of recurrent state */
    /* Hidden rows that vectors are made of; those of one sequence are neighbours. */
    int32_t *hidden_rows; /* [max_hidden] */
    float *hidden;        /* [max_hidden][n_vec] results */
    int *n_hidden_of;     /* [max_seqs] rows of each sequence */
    int n_hidden, max_hidden;
    int32_t *out_rows; /* [max_seqs] tokens whose logits are wanted */
    struct seq **seqs; /* [max_seqs]; NULL: ended since it was added */
    int *n_new;        /* [max_seqs] its tokens in this step */
    int *out;          /* [max_seqs] its row of logits, or -1 */
    int32_t *second;   /* [max_seqs] where its second text begins */
    int32_t *seq_len;  /* [max_seqs] tokens it has by now, computed or not */
    /* Sequences whose token the runner samples; the others' are sampled from logits. */
    int *sample_of;              /* [max_seqs] index into samples, or -1 */
    struct sample_row *samples;  /* [max_seqs] */
    struct logit_adjust *adjust; /* [max_adjust] */
    int32_t *sampled;            /* [max_seqs] results, by sample */
    int n_samples, n_adjust;
};

int step_init(struct step *st, struct runner *r, const struct step_opt *opt, struct err *e);
void step_release(struct step *st); /* a zeroed one is allowed */

void step_clear(struct step *st);
/* Adds the next n tokens of s, whose blocks are reserved. */
void step_add(struct step *st, struct seq *s, int n);
/* Lets the runner sample the token of seqs[i], with the banned ids excluded, if it can; otherwise
 * logits come back. In order of i. */
void step_add_sample(struct step *st, int i, const int32_t *bans, int n_bans);
/* Starts the batch. stop is called between layers, here and in step_wait, and may set entries of
 * seqs to NULL; true ends the step with E_CANCELLED. */
int step_start(struct step *st, bool (*stop)(void *arg), void *arg, struct err *e);
/* Waits for the results; after a failure no sequence has advanced. *logits: as runner_wait. */
int step_wait(struct step *st, const float **logits, struct err *e);
#endif
