/* ssm.c - recurrent mixers with a convolution: Mamba (Gu, Dao), Mamba 2 (Dao, Gu), and the short
 * convolutions of LFM2.
 *
 * Tensors of struct mix_step, per token:
 *     in    output of the input projection    conv   the part of it that is convolved
 *     mid   output of the convolution         z      the part of it that gates the result
 *     low   Mamba: dt, b, c of low rank       q      Mamba: dt in low; LFM2: the input gate b */
#include "model/mix.h"

#include "model/model.h"
#include "model/scratch.h"

/* The convolution and its activation. The backend fuses SiLU; others are a second call. */
static void run_conv(const struct mix *x, const struct tensor *out, const struct tensor *in,
                     const struct conv_opt *o)
{
    x->be->conv(x->be, out, in, x->st, x->l, o);
    if (!o->silu) x->be->act(x->be, out, out, NULL, x->hp->act);
}

static struct conv_opt make_conv_opt(const struct model *m, int l)
{
    const struct mix_weights *w = &m->layers[l].mix;
    return (struct conv_opt){ .w = w->conv_w,
                              .bias = w->conv_b,
                              .k = m->hp.layers[l].mix.taps,
                              .silu = m->hp.act == ACT_SILU };
}

/* ---- Mamba ---- */

/* conv_opt, scan and the products of one layer, on slices of the scratch memory. */
void mamba_plan(struct layer_step *p, const struct mix_memory *mem, const struct model *m, int l,
                int n)
{
    const struct mix_hp *h = &m->hp.layers[l].mix;
    const struct mix_weights *w = &m->layers[l].mix;
    struct mix_step *s = &p->mix;
    struct tensor dt;

    s->in = tensor_f32(mem->in, n, 2 * h->inner);
    s->z = tensor_cols(s->in, h->inner, h->inner);
    s->conv = tensor_cols(s->in, 0, h->inner);
    s->mid = tensor_f32(mem->mid, n, h->inner);
    s->low = tensor_f32(mem->low, n, h->dt_rank + 2 * h->n_state);
    dt = s->conv; /* reuses the memory: the convolution has read it */
    s->jobs[0] = (struct linear){ .out = s->in, .w = &w->in, .bias = w->in_b };
    s->up = (struct linear){ .out = s->low, .w = &w->x };
    s->dt = (struct linear){ .out = dt, .w = &w->dt };
    s->q = tensor_cols(s->low, 0, h->dt_rank);
    s->conv_opt = make_conv_opt(m, l);
    s->scan_in = (struct scan_in){ .x = s->mid,
                                   .dt = dt,
                                   .b = tensor_cols(s->low, h->dt_rank, h->n_state),
                                   .c = tensor_cols(s->low, h->dt_rank + h->n_state, h->n_state) };
    s->scan = (struct scan_opt){ .n_heads = h->inner,
                                 .head_dim = 1,
                                 .n_groups = 1,
                                 .n_state = h->n_state,
                                 .wide = true,
                                 .a = w->a,
                                 .d = w->d,
                                 .dt_bias = w->dt_b,
                                 .dt_min = h->dt_min,
                                 .dt_max = h->dt_max };
}

/* x, z = in h; x = silu(conv x); dt, b, c = x_proj x; a = scan(x) * silu(z). */
void mamba_run(const struct mix *x)
{
    struct backend *be = x->be;
    struct mix_step *s = &x->p->mix;

    be->linear(be, &x->p->h, s->jobs, 1);
    run_conv(x, &s->mid, &s->conv, &s->conv_opt);
    be->linear(be, &s->mid, &s->up, 1);
    be->linear(be, &s->q, &s->dt, 1);
    be->scan(be, &x->p->a, &s->scan_in, x->st, x->l, &s->scan);
    be->act(be, &x->p->a, &s->z, &x->p->a, ACT_SILU);
}

/* ---- Mamba 2 ---- */

void mamba2_plan(struct layer_step *p, const struct mix_memory *mem, const struct model *m, int l,
                 int n)
{
    const struct mix_hp *h = &m->hp.layers[l].mix;
    const struct mix_weights *w = &m->layers[l].mix;
    int bc = h->n_groups * h->n_state, wide = h->inner + 2 * bc;
    struct mix_step *s = &p->mix;

    s->in = tensor_f32(mem->in, n, h->inner + wide + h->n_heads);
    s->z = tensor_cols(s->in, 0, h->inner);
    s->conv = tensor_cols(s->in, h->inner, wide);
    s->mid = tensor_f32(mem->mid, n, wide);
    s->jobs[0] = (struct linear){ .out = s->in, .w = &w->in, .bias = w->in_b };
    s->conv_opt = make_conv_opt(m, l);
    s->scan_in = (struct scan_in){ .x = tensor_cols(s->mid, 0, h->inner),
                                   .dt = tensor_cols(s->in, h->inner + wide, h->n_heads),
                                   .b = tensor_cols(s->mid, h->inner, bc),
                                   .c = tensor_cols(s->mid, h->inner + bc, bc) };
    s->scan = (struct scan_opt){ .n_heads = h->n_heads,
                                 .head_dim = h->head_dim,
                                 .n_groups = h->n_groups,
                                 .n_state = h->n_state,
                                 .a = w->a,
                                 .d = w->d,
                                 .dt_bias = w->dt_b,
                                 .dt_min = h->dt_min,
                                 .dt_max = h->dt_max };
}

/* z, x, b, c, dt = in h; x, b, c = silu(conv); a = norm(scan(x) * silu(z)). */
void mamba2_run(const struct mix *x)
{
    struct backend *be = x->be;
    struct mix_step *s = &x->p->mix;
    int groups = x->lh->mix.norm_groups, dim = x->lh->mix.inner / groups;

    be->linear(be, &x->p->h, s->jobs, 1);
    run_conv(x, &s->mid, &s->conv, &s->conv_opt);
    be->scan(be, &x->p->a, &s->scan_in, x->st, x->l, &s->scan);
    be->act(be, &x->p->a, &s->z, &x->p->a, ACT_SILU);
    be->headnorm(be, &x->p->a, groups, dim, x->w->mix.norm, dim, x->hp->norm_eps);
}

/* ---- short convolution ---- */

void shortconv_plan(struct layer_step *p, const struct mix_memory *mem, const struct model *m,
                    int l, int n)
{
    const struct mix_weights *w = &m->layers[l].mix;
    int wide = m->hp.n_embd;
    struct mix_step *s = &p->mix;

    s->in = tensor_f32(mem->in, n, 3 * wide);
    s->q = tensor_cols(s->in, 0, wide);    /* b: input gate */
    s->z = tensor_cols(s->in, wide, wide); /* c: output gate */
    s->conv = tensor_cols(s->in, 2 * wide, wide);
    s->mid = tensor_f32(mem->mid, n, wide);
    s->jobs[0] = (struct linear){ .out = s->in, .w = &w->in, .bias = w->in_b };
    s->conv_opt = make_conv_opt(m, l);
    s->conv_opt.silu = false;
}

/* b, c, x = in h; a = c * conv(b * x). */
void shortconv_run(const struct mix *x)
{
    struct backend *be = x->be;
    struct mix_step *s = &x->p->mix;

    be->linear(be, &x->p->h, s->jobs, 1);
    be->act(be, &s->mid, &s->q, &s->conv, ACT_NONE);
    be->conv(be, &x->p->a, &s->mid, x->st, x->l, &s->conv_opt);
    be->act(be, &x->p->a, &s->z, &x->p->a, ACT_NONE);
}
