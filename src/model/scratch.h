/* scratch.h - a decoder's memory for one step on one device, and the arguments of the step's
 * backend calls.
 *
 * Backends may run operations asynchronously until sync, so the tensors and options that a call
 * points to live here and not on the stack. Arrays are as wide as the widest layer needs; each
 * layer's tensors view them at its own width. All memory is allocated when the decoder opens. */
#ifndef TERN_MODEL_SCRATCH_H
#define TERN_MODEL_SCRATCH_H

#include "model/decoder.h"

#define STAGE_ALIGN 4 /* ints: alignment of structs among a batch's arrays */

/* The arguments of one layer's calls. All n tokens of the batch go through attention; after it only
 * the needed rows go on: all of them, or in the last layer those that want logits. Names beginning
 * with t are views of these rows. */
struct layer_step {
    /* [n][...] residual, its norm, queries, keys, values, attention output, its gate */
    struct tensor x, h, q, k, v, a, g;
    struct tensor a_attn, a_mix; /* parts of a: of attention, and of a mixer beside it */
    struct linear qkv[4];        /* the last one only if attention has a gate */
    struct attend_opt attend;
    /* [needed rows][...] residual, its norm, attention output, its sub-norm, a block's output
     * before a post-norm */
    struct tensor tx, th, ta, tsub, tt;
    struct tensor ta_attn, ta_mix;
    struct tensor gate, up;
    struct tensor late;             /* output of experts that is added a layer later */
    struct tensor latent, latent_y; /* input and output of experts that work on a latent */
    struct linear latent_in, latent_out;
    struct tensor ples, ple, ple_g; /* the layer's inputs, those of the rows, the gate */
    struct linear ple_gate, ple_proj;
    struct linear o, gate_up[2], down;
    struct xielu_opt xielu;
    struct linear router, weigh; /* logits of the experts; weight of the shared expert */
    struct route_opt route;
    struct experts_opt experts;
    struct tensor back; /* the sum of experts that lie apart, which is added to their output */
    struct mix_step mix;
    struct index_step index;
    struct altup_layer {
        struct linear route, predict, correct, left, right;
        struct tensor scale;
    } altup;
    struct linear hyper_attn, hyper_ffn; /* logits of weights of the residual streams */
};

/* Residual streams of a step (altup.c): all of them, the predicted ones, and each by itself. */
struct altup_step {
    struct tensor s, p, si[STREAMS], pi[STREAMS], modal, coefs, correct, low, laurel, x, t;
    struct linear in[STREAMS], out[STREAMS];
};

/* Bytes of a step's scratch memory on a device. */
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
    bool last;        /* the part has the last layer: logits are made here */
    unsigned experts; /* EXPERTS_*: where those of its layers lie */
    /* in the backend's memory */
    float *floats; /* one block; the pointers below point into it */
    float *x, *h, *q, *k, *v, *a, *t, *gate, *up, *out_x, *out_a, *logits;
    /* of a mixture of experts: router logits, weights of the chosen experts, of the shared one;
     * inputs, gates, ups and outputs for every chosen expert of every token */
    float *scores, *shares, *weigh, *xs, *hs, *us, *ys, *back;
    float *late, *latent, *latent_y; /* see struct layer_step */
    float *ples, *ple, *ple_g; /* per-layer inputs [n_layers], of the needed rows, their gate */
    int32_t *chosen;           /* [max_tokens][n_used] experts of each token */
    int32_t *order;            /* behind chosen: the backend's scratch to sort tokens by expert */
    struct mix_memory mix;
    float *index_q, *index_k, *index_w; /* of sparse attention */
    float *altup_s, *altup_p, *altup_modal, *altup_coefs, *altup_low, *altup_laurel;
    float *hyper_s, *hyper_flat, *hyper_w; /* residual streams, their norm, weights of a block */
    struct tensor hyper_st, hyper_ft, hyper_wt, hyper_x;
    struct hyper_opt hyper_opt;
    struct linear hyper_head;
    struct altup_step altup;
    uint32_t *choice_bits; /* the keys that the last indexer selected */
    size_t choice_stride;
    float *table[ROPES]; /* [max_tokens][n_rot] cos and sin, per kind of rotary embedding */
    float *freq;         /* [n_rope][max_seqs][n_rot/2], if frequencies depend on the sequence */
    int32_t *ints;       /* the batch's arrays */
    int32_t *sampled; /* [max_out] sampled tokens, among the ints; NULL: the backend samples none */
    int max_adjust;   /* logit adjustments of a batch */
    /* in host memory */
    int32_t *ints_host; /* staging copy of ints */
    float *logits_host; /* copy of the logits; NULL: the backend's memory is the host's */
    size_t logits_bytes;
    struct layer_step *steps; /* [n_layers]; those of the part are filled */
    float *freq_host;         /* staging copy of freq */
    struct tensor *runs;      /* views of the rotary table, one per run of equal frequencies */
    struct tensor table_t[ROPES], out_norm, chosen_t, logits_t, sample_t;
    struct tensor words; /* embeddings before their projection */
    struct linear head, proj_in, proj_out;
    struct tensor ple_t, ple_add; /* per-layer inputs of all layers; what a token's id adds */
    struct linear ple_in;
};

/* What a device does, as far as its scratch depends on it. */
struct scratch_use {
    bool last;        /* it has the last layer */
    bool samples;     /* it samples tokens itself */
    unsigned experts; /* EXPERTS_*: where those of its layers lie */
};

/* The sizes of a step's scratch: exactly what scratch_init allocates on such a device. E_INVALID:
 * limits that are out of range. */
int scratch_measure(struct scratch_size *out, const struct hparams *hp, struct scratch_use use,
                    const struct decoder_opt *opt, struct err *e);
static inline uint64_t scratch_bytes(const struct scratch_size *z)
{
    return (uint64_t)z->float_bytes + z->int_bytes + z->chosen_bytes;
}

int scratch_init(struct scratch *s, const struct model *m, const struct part *part,
                 struct decoder_opt opt, struct err *e);
void scratch_release(struct scratch *s); /* a zeroed one is allowed */

/* Fills the steps for a batch of n tokens, of which n_tail go on after the last layer's attention
 * and n_out want logits. gathered: the needed rows are copied to out_x and out_a first. Allocates
 * nothing. */
void scratch_plan(struct scratch *s, const struct model *m, int n, int n_tail, int n_out,
                  bool gathered);
#endif
