/* delta.c - gated delta nets (Yang et al., "Gated Delta Networks"): linear attention whose state is
 * corrected towards the value of each key.
 *
 * Tensors of struct mix_step, per token: in = q, k, v, z; conv = the part q, k, v; mid = q, k, v
 * after the convolution; low = beta and alpha; z = the output gate. */
#include "model/mix.h"

#include "model/model.h"
#include "model/scratch.h"

#include <math.h>

#define L2_EPS 1e-6f /* queries and keys are normalized to x / sqrt(sum of squares + L2_EPS) */

/* Products, convolution and recurrence on slices of the scratch memory. */
void delta_plan(struct layer_step *p, const struct mix_memory *mem, const struct model *m, int l,
                int n)
{
    const struct mix_hp *h = &m->hp.layers[l].mix;
    const struct mix_weights *w = &m->layers[l].mix;
    int keys = h->n_k_heads * h->k_dim, values = h->n_heads * h->head_dim;
    struct mix_step *s = &p->mix;

    s->in = tensor_f32(mem->in, n, 2 * keys + 2 * values);
    s->conv = tensor_cols(s->in, 0, 2 * keys + values);
    s->z = tensor_cols(s->in, 2 * keys + values, values);
    s->mid = tensor_f32(mem->mid, n, 2 * keys + values);
    s->low = tensor_f32(mem->low, n, 2 * h->n_heads);
    s->jobs[0] = (struct linear){ .out = s->conv, .w = &w->in };
    s->jobs[1] = (struct linear){ .out = s->z, .w = &w->z };
    s->jobs[2] = (struct linear){ .out = s->low, .w = &w->ba };
    s->conv_opt = (struct conv_opt){
        .w = w->conv_w, .bias = w->conv_b, .k = h->taps, .silu = m->hp.act == ACT_SILU
    };
    s->delta_in = (struct delta_in){ .q = tensor_cols(s->mid, 0, keys),
                                     .k = tensor_cols(s->mid, keys, keys),
                                     .v = tensor_cols(s->mid, 2 * keys, values),
                                     .beta = tensor_cols(s->low, 0, h->n_heads),
                                     .alpha = tensor_cols(s->low, h->n_heads, h->n_heads) };
    s->delta = (struct delta_opt){ .n_heads = h->n_heads,
                                   .n_k_heads = h->n_k_heads,
                                   .dim_k = h->k_dim,
                                   .dim_v = h->head_dim,
                                   .a = w->a,
                                   .dt_bias = w->dt_b,
                                   .k_scale = 1 / sqrtf((float)h->k_dim),
                                   .q_scale = 1 / (float)h->k_dim };
}

/* L2 normalization is done by headnorm, which normalizes the mean square: the result is larger by
 * sqrt(k_dim), for which q_scale and k_scale correct. */
void delta_run(const struct mix *x)
{
    struct backend *be = x->be;
    struct mix_step *s = &x->p->mix;
    const struct mix_hp *h = &x->lh->mix;

    be->linear(be, &x->p->h, s->jobs, 3);
    be->conv(be, &s->mid, &s->conv, x->st, x->l, &s->conv_opt);
    if (!s->conv_opt.silu) be->act(be, &s->mid, &s->mid, NULL, x->hp->act);
    be->headnorm(be, &s->delta_in.q, h->n_k_heads, h->k_dim, NULL, 0, L2_EPS / (float)h->k_dim);
    be->headnorm(be, &s->delta_in.k, h->n_k_heads, h->k_dim, NULL, 0, L2_EPS / (float)h->k_dim);
    be->delta(be, &x->p->a, &s->delta_in, x->st, x->l, &s->delta);
    be->headnorm(be, &x->p->a, h->n_heads, h->head_dim, x->w->mix.norm, 0, x->hp->norm_eps);
    be->act(be, &x->p->a, &s->z, &x->p->a, ACT_SILU);
}
