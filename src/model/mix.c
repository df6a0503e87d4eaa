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
    case MIX_SHORTCONV: return (struct mix_width){ 3 * hp->n_embd, hp->n_embd, 0 };
    case MIX_DELTA:
        return (struct mix_width){ 2 * keys + 2 * values, 2 * keys + values, 2 * h->n_heads };
    case MIX_MLA:
        return (struct mix_width){ lh->n_heads * (h->kv_rank + h->rope), lh->n_heads * h->kv_rank,
                                   max_int(h->q_rank, 1) };
    case MIX_ATTN: break;
    }
    return (struct mix_width){ h->gate ? lh->n_heads * lh->head_dim_v : 0, 0, 0 };
}

int mix_out(const struct hparams *hp, int l)
{
    const struct layer_hp *lh = &hp->layers[l];
    switch (lh->mix.kind) {
    case MIX_MAMBA:
    case MIX_MAMBA2: return lh->mix.inner;
    case MIX_SHORTCONV: return hp->n_embd;
    case MIX_DELTA: return lh->mix.n_heads * lh->mix.head_dim;
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
    case MIX_SHORTCONV: return (struct stateshape){ rows, hp->n_embd, 0 };
    case MIX_DELTA:
        return (struct stateshape){ rows, 2 * h->n_k_heads * h->k_dim + h->n_heads * h->head_dim,
                                    h->n_heads * h->head_dim * h->k_dim };
    default: return (struct stateshape){ 0 };
    }
}

struct kvshape mix_kvshape(const struct hparams *hp, int l)
{
    const struct layer_hp *lh = &hp->layers[l];
    switch (lh->mix.kind) {
    case MIX_ATTN: return (struct kvshape){ lh->n_kv_heads, lh->head_dim, lh->head_dim_v, false };
    case MIX_MLA:
        return (struct kvshape){ 1, lh->mix.kv_rank + lh->mix.rope, lh->mix.kv_rank, true };
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
    case MIX_ATTN: plan_gate(p, mem, m, l, n); break;
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
    case MIX_ATTN: break;
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
    case MIX_MLA: return !be->linear_heads ? "products per head for latent attention" : NULL;
    case MIX_ATTN: break;
    }
    return NULL;
}

int mix_check(const struct hparams *hp, const struct backend *be, int first, int end, struct err *e)
{
    for (int l = first; l < end; l++) {
        const char *what = find_missing_operation(hp->layers[l].mix.kind, be);
        if (what)
            return err_set(
                e, E_UNSUPPORTED,
                "layer %d of this %s model needs %s, which %s does not support; run it on the CPU",
                l, hp->arch, what, be->name);
    }
    return OK;
}
