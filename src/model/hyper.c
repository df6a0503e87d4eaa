/* hyper.c - hyper-connections (Xie et al., DeepSeek V4): a token has several residual streams. A block
 * reads a weighted sum of them; its output is added to each with a weight, and the streams are mixed by
 * a doubly stochastic matrix. The weights depend on the token: a product of all streams, normalized. */
#include "model/hyper.h"

void hyper_plan(struct scratch *s, const struct model *m, int n)
{
    const struct hyper_hp *h = &m->hp.hyper;
    int wide = h->n * m->hp.n_embd;

    if (!h->n) return;
    s->hyper_opt = (struct hyper_opt){ h->n, h->iters, h->eps };
    s->hyper_st = tensor_f32(s->hyper_s, n, wide);
    s->hyper_ft = tensor_f32(s->hyper_flat, n, wide);
    s->hyper_wt = tensor_f32(s->hyper_w, n, (2 + h->n) * h->n);
    s->hyper_x = tensor_f32(s->x, n, m->hp.n_embd);
    s->hyper_head = (struct linear){ .out = tensor_f32(s->hyper_w, n, h->n), .w = &m->hyper_head };
    for (int l = s->part->first; l < s->part->end; l++) {
        s->steps[l].hyper_attn =
            (struct linear){ .out = s->hyper_wt, .w = &m->layers[l].hyper_attn };
        s->steps[l].hyper_ffn = (struct linear){ .out = s->hyper_wt, .w = &m->layers[l].hyper_ffn };
    }
}

void hyper_begin(struct pass *d)
{
    struct scratch *s = &d->s;
    int wide = d->m->hp.n_embd;

    for (int i = 0; i < d->m->hp.hyper.n; i++) {
        struct tensor to = tensor_cols(s->hyper_st, i * wide, wide);
        d->be->act(d->be, &to, &s->hyper_x, NULL, ACT_NONE);
    }
}

/* The weights of a block, and its input. */
static void read_streams(struct pass *d, const struct linear *logits, const float *base,
                         const float *scale)
{
    struct backend *be = d->be;
    struct scratch *s = &d->s;

    be->rmsnorm(be, &s->hyper_ft, &s->hyper_st, NULL, d->m->hp.norm_eps);
    be->linear(be, &s->hyper_ft, logits, 1);
    be->hyper_weights(be, &logits->out, base, scale, &s->hyper_opt);
    be->hyper_in(be, &s->hyper_x, &s->hyper_st, &logits->out, s->hyper_opt.n);
}

void hyper_attn(struct pass *d, int l)
{
    const struct layer *w = &d->m->layers[l];

    read_streams(d, &d->s.steps[l].hyper_attn, w->hyper_attn_base, w->hyper_attn_scale);
}

void hyper_write(struct pass *d, int l)
{
    d->be->hyper_out(d->be, &d->s.hyper_st, &d->s.steps[l].tt, &d->s.hyper_wt, d->s.hyper_opt.n);
}

void hyper_ffn(struct pass *d, int l)
{
    const struct layer *w = &d->m->layers[l];

    hyper_write(d, l);
    read_streams(d, &d->s.steps[l].hyper_ffn, w->hyper_ffn_base, w->hyper_ffn_scale);
}

const struct tensor *hyper_end(struct pass *d)
{
    read_streams(d, &d->s.hyper_head, d->m->hyper_head_base, d->m->hyper_head_scale);
    return &d->s.hyper_x;
}
