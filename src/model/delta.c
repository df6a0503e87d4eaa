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

/* One product or three for q, k, v; one or two for beta and alpha. */
static void plan_projections(struct mix_step *s, const struct layer *y, const struct mix_hp *h)
{
    const struct mix_weights *w = &y->mix;
    int keys = h->n_k_heads * h->k_dim, values = h->n_heads * h->head_dim, n = 0;

    if (h->convs) {
        s->jobs[n++] = (struct linear){ .out = tensor_cols(s->conv, 0, keys), .w = &y->wq };
        s->jobs[n++] = (struct linear){ .out = tensor_cols(s->conv, keys, keys), .w = &y->wk };
        s->jobs[n++] =
            (struct linear){ .out = tensor_cols(s->conv, 2 * keys, values), .w = &y->wv };
    } else {
        s->jobs[n++] = (struct linear){ .out = s->conv, .w = &w->in };
    }
    s->jobs[n++] = (struct linear){ .out = s->z, .w = &w->z };
    if (w->ba.rows) s->jobs[n++] = (struct linear){ .out = s->low, .w = &w->ba };
    else {
        s->jobs[n++] = (struct linear){ .out = tensor_cols(s->low, 0, h->n_heads), .w = &w->beta };
        s->jobs[n++] =
            (struct linear){ .out = tensor_cols(s->low, h->n_heads, h->n_heads), .w = &w->alpha };
    }
    s->n_jobs = n;
}

/* Convolutions of q, k and v by themselves share the layer's state. */
static void plan_convs(struct mix_step *s, const struct mix_hp *h, const struct mix_weights *w)
{
    int keys = h->n_k_heads * h->k_dim, values = h->n_heads * h->head_dim,
        at[3] = { 0, keys, 2 * keys }, wide[3] = { keys, keys, values };
    const float *const of[3] = { w->conv_w, w->conv_k, w->conv_v };

    for (int i = 0; h->convs && i < 3; i++) {
        s->convs[i] = s->conv_opt;
        s->convs[i].w = of[i];
        s->convs[i].at = at[i];
        s->convs[i].of = 2 * keys + values;
        s->parts[i] = tensor_cols(s->conv, at[i], wide[i]);
    }
}

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
    plan_projections(s, &m->layers[l], h);
    s->conv_opt = (struct conv_opt){
        .w = w->conv_w, .bias = w->conv_b, .k = h->taps, .silu = m->hp.act == ACT_SILU
    };
    plan_convs(s, h, w);
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
                                   .q_scale = 1 / (float)h->k_dim,
                                   .beta_scale = h->beta_scale,
                                   .tiled = h->tiled };
}

/* L2 normalization is done by headnorm, which normalizes the mean square: the result is larger by
 * sqrt(k_dim), for which q_scale and k_scale correct. */
void delta_run(const struct mix *x)
{
    struct backend *be = x->be;
    struct mix_step *s = &x->p->mix;
    const struct mix_hp *h = &x->lh->mix;

    be->linear(be, &x->p->h, s->jobs, s->n_jobs);
    if (!h->convs) be->conv(be, &s->mid, &s->conv, x->st, x->l, &s->conv_opt);
    else {
        be->conv(be, &s->delta_in.q, &s->parts[0], x->st, x->l, &s->convs[0]);
        be->conv(be, &s->delta_in.k, &s->parts[1], x->st, x->l, &s->convs[1]);
        be->conv(be, &s->delta_in.v, &s->parts[2], x->st, x->l, &s->convs[2]);
    }
    if (!s->conv_opt.silu) be->act(be, &s->mid, &s->mid, NULL, x->hp->act);
    be->headnorm(be, &s->delta_in.q, h->n_k_heads, h->k_dim, NULL, 0, L2_EPS / (float)h->k_dim);
    be->headnorm(be, &s->delta_in.k, h->n_k_heads, h->k_dim, NULL, 0, L2_EPS / (float)h->k_dim);
    be->delta(be, &x->p->a, &s->delta_in, x->st, x->l, &s->delta);
    be->headnorm(be, &x->p->a, h->n_heads, h->head_dim, x->w->mix.norm, 0,
                 h->norm_eps != 0 ? h->norm_eps : x->hp->norm_eps);
    be->act(be, &x->p->a, &s->z, &x->p->a, ACT_SILU);
}
