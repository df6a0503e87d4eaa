/* scratch.h - a decoder's memory for one step on one device, and the step's arguments of its
 * layers.
 *
 * Backends may work behind the host's back until sync, so what a call is handed lives here and
 * not on the stack. Widths are the largest of any layer; each layer views them at its own. */
#ifndef TERN_MODEL_SCRATCH_H
#define TERN_MODEL_SCRATCH_H

#include "model/decoder.h"

#define STAGE_ALIGN 4 /* ints: where structs of a batch may begin */

/* One layer's calls. `n` tokens go in; behind attention only those that matter go on (all of them,
 * or in the last layer the rows that want logits). */
struct layer_step {
    struct tensor x, h, q, k, v, a, g; /* of all tokens */
    struct linear qkv[4];              /* the last where attention has a gate */
    struct attend_opt attend;
    struct tensor tx, th, ta, tsub, tt; /* of those that go on */
    struct tensor gate, up;
    struct linear o, gate_up[2], down;
    struct linear router, weigh; /* scores of experts; how much the shared one counts */
    struct route_opt route;
    struct experts_opt experts;
    struct mix_step mix;
};

/* What a step's scratch takes of a device's memory. */
struct scratch_size {
    size_t float_bytes, int_bytes, chosen_bytes;
    size_t sampled_at; /* index of the sampled tokens among the ints; 0: the device samples none */
    int max_adjust;    /* logit adjustments of a batch; 0: the device does not sample */
};

struct scratch {
    struct decoder_opt opt;
    struct scratch_size size;
    const struct part *part;
    struct backend *be;
    bool last;     /* logits are made here */
    float *floats; /* one block of the backend's memory; the pointers below lie in it */
    float *x, *h, *q, *k, *v, *a, *t, *gate, *up, *out_x, *out_a, *logits;
    /* of mixtures: scores, shares of the chosen, the shared one's; rows for every choice */
    float *scores, *shares, *weigh, *xs, *hs, *us, *ys;
    int32_t *chosen, *order; /* [max_tokens][n_used]; what the backend sorts by */
    struct mix_memory mix;
    float *table[2];           /* cos and sin of every token, per kind of rotary */
    float *freq;               /* [n_rope][max_seqs][n_rot/2], where they depend on the sequence */
    int32_t *ints, *ints_host; /* the batch's arrays: the backend's, and what is put there */
    int32_t *sampled; /* [max_out] tokens that the backend drew, its memory; NULL: it draws none */
    int max_adjust;   /* of a batch's samples together */
    float *logits_host; /* NULL: the backend's memory is the host's */
    size_t logits_bytes;
    /* on the host */
    struct layer_step *steps; /* [n_layers], filled for those of the part */
    float *freq_host;
    struct tensor *runs; /* rows of tables with one frequency vector each */
    struct tensor table_t[2], out_norm, chosen_t, logits_t, sample_t;
    struct tensor words; /* embeddings before they are projected */
    struct linear head, proj_in, proj_out;
};

/* The sizes of a step's scratch: exactly what scratch_init allocates on a device that has the last
 * layer (last) and samples tokens itself (samples). E_INVALID: limits that are out of range. */
int scratch_measure(struct scratch_size *out, const struct hparams *hp, bool last, bool samples,
                    const struct decoder_opt *opt, struct err *e);
static inline uint64_t scratch_bytes(const struct scratch_size *z)
{
    return (uint64_t)z->float_bytes + z->int_bytes + z->chosen_bytes;
}

int scratch_init(struct scratch *s, const struct model *m, const struct part *part,
                 struct decoder_opt opt, struct err *e);
void scratch_release(struct scratch *s); /* a zeroed one is fine */

/* Fills the steps for a batch of n tokens of which n_tail go on behind the last layer's attention
 * and n_out want logits; gathered: they are copied to out_x and out_a first. */
void scratch_plan(struct scratch *s, const struct model *m, int n, int n_tail, int n_out,
                  bool gathered);
#endif
