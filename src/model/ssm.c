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
#include "model/shard.h"

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
                              /* hp.act of hybrids is that of their feed-forward blocks */
                              .silu = m->hp.act == ACT_SILU || m->hp.info->flags & ARCH_HYBRID };
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
    s->latent = tensor_cols(s->low, h->dt_rank, h->n_state);
    s->k_rot = tensor_cols(s->low, h->dt_rank + h->n_state, h->n_state);
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
    const struct mix_hp *h = &x->lh->mix;

    be->linear(be, &x->p->h, s->jobs, 1);
    run_conv(x, &s->mid, &s->conv, &s->conv_opt);
    be->linear(be, &s->mid, &s->up, 1);
    shard_sum(be, x->hp, &s->low);
    if (h->bc_norm) { /* dt, b, c */
        be->rmsnorm(be, &s->q, &s->q, x->w->mix.dt_norm, h->bc_eps);
        be->rmsnorm(be, &s->latent, &s->latent, x->w->mix.b_norm, h->bc_eps);
        be->rmsnorm(be, &s->k_rot, &s->k_rot, x->w->mix.c_norm, h->bc_eps);
    }
    be->linear(be, &s->q, &s->dt, 1);
    be->scan(be, &x->p->a, &s->scan_in, x->st, x->l, &s->scan);
    be->act(be, &x->p->a, &s->z, &x->p->a, ACT_SILU);
}

/* ---- Mamba 2 ---- */

/* The parts of the input projection that have a scale each: z, x, b, c, dt. */
static void split_in(struct mix_step *s, const struct mix_hp *h, int bc)
{
    int wide[5] = { h->inner, h->inner, bc, bc, h->n_heads }, at = 0;

    for (int i = 0; i < 5; at += wide[i++]) s->parts[i] = tensor_cols(s->in, at, wide[i]);
}

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
    s->jobs[0] =
        (struct linear){ .out = s->in, .w = &w->in, .bias = w->in_b, .scale = h->in_scale };
    split_in(s, h, bc);
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

/* z, x, b, c, dt = in h; x, b, c = silu(conv); a = norm(scan(x) * silu(z)), or norm(scan(x)) *
 * silu(z). */
void mamba2_run(const struct mix *x)
{
    struct backend *be = x->be;
    struct mix_step *s = &x->p->mix;
    const struct mix_hp *h = &x->lh->mix;
    const struct tensor *a = &x->p->a_mix;
    int groups = h->norm_groups, dim = h->inner / groups;

    be->linear(be, &x->p->h, s->jobs, 1);
    for (int i = 0; i < 5; i++)
        if (h->scales[i] != 0) be->scale(be, &s->parts[i], h->scales[i]);
    run_conv(x, &s->mid, &s->conv, &s->conv_opt);
    be->scan(be, a, &s->scan_in, x->st, x->l, &s->scan);
    if (h->normed && h->norm_first)
        be->headnorm(be, a, groups, dim, x->w->mix.norm, dim, x->hp->norm_eps);
    be->act(be, a, &s->z, a, ACT_SILU);
    if (shard_divides(x->hp) && x->hp->shard->layers[x->l].split_norm) {
        const struct shard *sh = x->hp->shard;
        struct shard_norm one = { a, a, x->w->mix.norm,
                                  sh->whole->layers[sh->first + x->l].mix.inner, true };
        shard_norms(be, x->hp, &one, 1, x->hp->norm_eps);
        return;
    }
    if (h->normed && !h->norm_first)
        be->headnorm(be, a, groups, dim, x->w->mix.norm, dim, x->hp->norm_eps);
}

/* ---- short convolution ---- */

void shortconv_plan(struct layer_step *p, const struct mix_memory *mem, const struct model *m,
                    int l, int n)
{
    const struct mix_weights *w = &m->layers[l].mix;
    int wide = mix_out(&m->hp, l);
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
