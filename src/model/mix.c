/* mix.c - shapes and dispatch of mixers; the mixers are in ssm.c, delta.c and mla.c. */
#include "base/minmax.h"
#include "model/mix.h"

#include "model/model.h"
#include "model/scratch.h"

/* See the layouts in ssm.c, delta.c and mla.c. */
struct mix_width mix_width(const struct hparams *hp, int l)
{
    const struct layer_hp *lh = &hp->layers[l];
    const struct mix_hp *h = &lh->mix;
    int keys = h->n_k_heads * h->k_dim, values = h->n_heads * h->head_dim,
        bc = h->n_groups * h->n_state;

    switch (h->kind) {
    case MIX_MAMBA:
        return (struct mix_width){ 2 * h->inner, h->inner, h->dt_rank + 2 * h->n_state };
    case MIX_MAMBA2:
        return (struct mix_width){ 2 * h->inner + 2 * bc + h->n_heads, h->inner + 2 * bc, 0 };
    case MIX_SHORTCONV: {
        int wide = mix_out(hp, l);
        return (struct mix_width){ 3 * wide, wide, 0 };
    }
    case MIX_DELTA:
        return (struct mix_width){ 2 * keys + 2 * values, 2 * keys + values, 2 * h->n_heads };
    case MIX_MLA:
        return (struct mix_width){ lh->n_heads * (h->kv_rank + h->rope), lh->n_heads * h->kv_rank,
                                   max_int(h->q_rank, 1) };
    case MIX_CSA:
        return (struct mix_width){ (h->rate ? lh->head_dim * (h->overlap ? 5 : 3) : 0) +
                                       5 * lh->index.head_dim,
                                   lh->n_heads * lh->head_dim, max_int(h->q_rank, 1) };
    case MIX_ATTN:
    case MIX_NONE: break;
    }
    return (struct mix_width){ h->gate ? lh->n_heads * lh->head_dim_v : 0, 0, 0 };
}

int mix_out(const struct hparams *hp, int l)
{
    const struct layer_hp *lh = &hp->layers[l];
    switch (lh->mix.kind) {
    case MIX_MAMBA: return lh->mix.inner;
    case MIX_MAMBA2: return lh->mix.inner + (lh->mix.with_attn ? lh->n_heads * lh->head_dim_v : 0);
    case MIX_SHORTCONV: return lh->mix.inner ? lh->mix.inner : hp->n_embd; /* of a shard: fewer */
    case MIX_DELTA: return lh->mix.n_heads * lh->mix.head_dim;
    case MIX_CSA: return lh->mix.o_groups * lh->mix.o_rank;
    default: return lh->n_heads * lh->head_dim_v;
    }
}

/* Rows and columns of the convolution's inputs, and floats of the recurrence. */
struct stateshape mix_stateshape(const struct hparams *hp, int l)
{
    const struct mix_hp *h = &hp->layers[l].mix;
    int rows = h->taps - 1;

    switch (h->kind) {
    case MIX_MAMBA: return (struct stateshape){ rows, h->inner, h->inner * h->n_state };
    case MIX_MAMBA2:
        return (struct stateshape){ rows, h->inner + 2 * h->n_groups * h->n_state,
                                    h->inner * h->n_state };
    case MIX_SHORTCONV: return (struct stateshape){ rows, mix_out(hp, l), 0 };
    case MIX_DELTA:
        return (struct stateshape){ rows, 2 * h->n_k_heads * h->k_dim + h->n_heads * h->head_dim,
                                    h->n_heads * h->head_dim * h->k_dim };
    default: return (struct stateshape){ 0 };
    }
}

struct kvshape mix_kvshape(const struct hparams *hp, int l)
{
    const struct layer_hp *lh = &hp->layers[l];
    int index = lh->index.shared ? 0 : lh->index.head_dim;

    if (lh->kv_of) return (struct kvshape){ 0 }; /* another layer's */
    if (layer_attends(lh))
        return (struct kvshape){ lh->n_kv_heads, lh->head_dim, lh->head_dim_v, false, index };
    switch (lh->mix.kind) {
    case MIX_MLA:
        return (struct kvshape){ 1, lh->mix.kv_rank + lh->mix.rope, lh->mix.kv_rank, true, index };
    case MIX_CSA: /* entries, and what they are made from, are in the place of values */
        if (!lh->mix.rate) return (struct kvshape){ 1, lh->head_dim, lh->head_dim, true, 0 };
        return (struct kvshape){ 1, lh->head_dim, lh->head_dim * (lh->mix.overlap ? 5 : 3), false,
                                 5 * index };
    default: return (struct kvshape){ 0 };
    }
}

/* Attention with an output gate (Qwen3-Next): a fourth product beside q, k and v. */
static void plan_gate(struct layer_step *p, const struct mix_memory *mem, const struct model *m,
                      int l, int n)
{
    if (!m->hp.layers[l].mix.gate) return;
    p->g = tensor_f32(mem->in, n, mix_out(&m->hp, l));
    p->qkv[3] = (struct linear){ .out = p->g, .w = &m->layers[l].wg, .bias = m->layers[l].bg };
}

void mix_plan(struct layer_step *p, const struct mix_memory *mem, const struct model *m, int l,
              int n)
{
    switch (m->hp.layers[l].mix.kind) {
    case MIX_MAMBA: mamba_plan(p, mem, m, l, n); break;
    case MIX_MAMBA2: mamba2_plan(p, mem, m, l, n); break;
    case MIX_SHORTCONV: shortconv_plan(p, mem, m, l, n); break;
    case MIX_DELTA: delta_plan(p, mem, m, l, n); break;
    case MIX_MLA: mla_plan(p, mem, m, l, n); break;
    case MIX_CSA: csa_plan(p, mem, m, l, n); break;
    case MIX_ATTN: plan_gate(p, mem, m, l, n); break;
    case MIX_NONE: break;
    }
}

void mix_run(const struct mix *x, bool wanted)
{
    switch (x->lh->mix.kind) {
    case MIX_MAMBA: mamba_run(x); break;
    case MIX_MAMBA2: mamba2_run(x); break;
    case MIX_SHORTCONV: shortconv_run(x); break;
    case MIX_DELTA: delta_run(x); break;
    case MIX_MLA: mla_run(x, wanted); break;
    case MIX_CSA: csa_run(x, wanted); break;
    case MIX_ATTN:
    case MIX_NONE: break;
    }
}

/* The operation that a mixer needs and the backend lacks, or NULL. */
static const char *find_missing_operation(enum mixer kind, const struct backend *be)
{
    switch (kind) {
    case MIX_MAMBA:
    case MIX_MAMBA2:
        return !be->conv ? "a causal convolution" : !be->scan ? "a selective scan" : NULL;
    case MIX_SHORTCONV: return !be->conv ? "a causal convolution" : NULL;
    case MIX_DELTA:
        return !be->conv ? "a causal convolution" : !be->delta ? "the gated delta rule" : NULL;
    case MIX_CSA:
        return !be->compress || !be->attend_compressed || !be->linear_heads ? "compressed attention"
                                                                            : NULL;
    case MIX_MLA: return !be->linear_heads ? "products per head for latent attention" : NULL;
    case MIX_ATTN:
    case MIX_NONE: break;
    }
    return NULL;
}

int mix_check(const struct hparams *hp, const struct backend *be, int first, int end, struct err *e)
{
    for (int l = first; l < end; l++) {
        const struct mix_hp *h = &hp->layers[l].mix;
        const char *what = find_missing_operation(h->kind, be);
        if (!what && hp->layers[l].index.n_heads &&
            (!be->index_choose || !(be->features & BACKEND_KEY_CHOICE)))
            what = "the indexer of sparse attention";
        if (!what && h->beta_scale != 0 && !(be->features & BACKEND_BETA_SCALE))
            what = "a scaled delta rule";
        if (!what && h->convs && !(be->features & BACKEND_CONV_PARTS))
            what = "convolutions of parts of its inputs";
        if (what)
            return err_set(
                e, E_UNSUPPORTED,
                "layer %d of this %s model needs %s, which %s does not support; run it on the CPU",
                l, hp->arch, what, be->name);
    }
    return OK;
}
