/* step.h - carry a plan out: fill the flat batch, run it, pick tokens.
 *
 * Arrays for the largest step are taken once, when it opens. */
#ifndef TERN_ENGINE_STEP_H
#define TERN_ENGINE_STEP_H

#include "engine/seq.h"
#include "model/decoder.h"

struct step {
    int max_tokens, max_seqs, table_stride;
    int n_tokens, n_seqs, n_out;
    int32_t *ids, *pos, *row; /* [max_tokens] */
    int32_t *table;           /* [max_seqs][table_stride] */
    int32_t *slots;           /* [max_seqs] of recurrent state */
    /* of embeddings: hidden states that are wanted, neighbours of one sequence beside each other */
    int32_t *hidden_rows; /* [max_hidden] */
    float *hidden;        /* [max_hidden][n_embd] */
    int *n_hidden_of;     /* [max_seqs] rows of it among them */
    int n_hidden, max_hidden, n_embd;
    enum pooling pooling;
    int32_t *out_rows; /* [max_seqs] */
    struct seq **seqs; /* [max_seqs] in order of the table's rows; NULL: gone since it was added */
    int *n_new;        /* [max_seqs] tokens of it in this step */
    int *out;          /* [max_seqs] its row of logits, or -1 */
    int32_t *second;   /* [max_seqs] where its second text begins */
    int32_t *seq_len;  /* [max_seqs] tokens it has by now, in KV or not */
    /* where the decoder picks; the rest is picked from logits */
    int *pick;                   /* [max_seqs] which of the picks is its own, or -1 */
    struct sample_row *picks;    /* [max_seqs] */
    struct logit_adjust *adjust; /* [max_adjust] */
    int32_t *picked;             /* [max_seqs] by pick, after the run */
    int n_picks, n_adjust, max_adjust, n_pick_from;
    bool has_state;
};

struct step_opt {
    int max_tokens, max_seqs, table_stride;
    int max_adjust;  /* 0: the decoder does not pick */
    int n_pick_from; /* ids that may be picked */
    bool has_state;  /* sequences have slots */
    int n_embd;
    enum pooling pooling; /* which hidden states an embedding is made of */
};

int step_init(struct step *st, struct step_opt opt, struct err *e);
void step_release(struct step *st);

void step_begin(struct step *st);
/* The next n tokens of s, whose blocks are reserved. */
void step_add(struct step *st, struct seq *s, int n);
/* The decoder is to pick the token of seqs[i], without the bans. Not done where it cannot: then it
 * is picked from logits. In order of i. */
void step_pick(struct step *st, int i, const int32_t *bans, int n_bans);
/* Begins the batch. stop is asked between layers, here and in step_wait; true ends the step with
 * E_CANCELLED. It may set seqs to NULL. */
int step_start(struct step *st, struct decoder *d, bool (*stop)(void *arg), void *arg,
               struct err *e);
/* On failure no sequence has moved. *logits as decoder_wait gives them. */
int step_wait(struct step *st, struct decoder *d, const float **logits, struct err *e);
#endif
