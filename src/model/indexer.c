/* indexer.c - sparse attention: index queries and keys of a layer, and the keys they select
 * (DeepSeek V3.2, GLM 5, MiniMax M3). */
#include "model/indexer.h"

#include "model/model.h"
#include "model/scratch.h"

#include <math.h>

#define KEY_EPS 1e-6f /* epsilon of the norm of index keys, fixed in the reference library */

void indexer_plan(struct layer_step *p, const struct scratch *s, const struct model *m, int l,
                  int n)
{
    const struct index_hp *x = &m->hp.layers[l].index;
    const struct index_weights *w = &m->layers[l].index;
    struct index_step *y = &p->index;

    if (!x->n_heads) return;
    y->q = tensor_f32(s->index_q, n, x->n_heads * x->head_dim);
    y->k = tensor_f32(s->index_k, n, x->head_dim);
    y->w = tensor_f32(s->index_w, n, x->n_heads);
    y->to_q = (struct linear){ .out = y->q, .w = &w->q };
    y->to_k = (struct linear){ .out = y->k, .w = &w->k };
    y->to_w = (struct linear){ .out = y->w, .w = &w->w, .scale = 1 / sqrtf((float)x->n_heads) };
    y->choice = (struct key_choice){ .bits = s->choice_bits,
                                     .stride = s->choice_stride,
                                     .n_heads = x->weighed ? 1 : x->n_heads };
    y->opt = (struct index_opt){ .n_heads = x->n_heads,
                                 .head_dim = x->head_dim,
                                 .top = x->top,
                                 .block = x->block,
                                 .local = x->local,
                                 .rate = x->rate,
                                 .scale = x->weighed ? 1 / sqrtf((float)x->head_dim) : 1 };
}

/* All keys are selected: nothing has to be scored. */
static bool sees_all(const struct index_hp *x, const struct kvview *kv)
{
    return (x->block ? kv->max_pos / x->block : kv->max_pos) < x->top;
}

/* A norm with a bias is a LayerNorm. */
static void norm_index_rows(const struct mix *x, const struct tensor *t, int n_heads,
                            const float *w, const float *b)
{
    const struct index_hp *h = &x->lh->index;

    if (b) x->be->layernorm(x->be, t, t, w, b, KEY_EPS);
    else if (w) x->be->headnorm(x->be, t, n_heads, h->head_dim, w, 0, x->hp->norm_eps);
}

void indexer_run(const struct mix *x, const struct tensor *in, const struct tensor *q_in,
                 bool wanted)
{
    struct backend *be = x->be;
    const struct index_hp *h = &x->lh->index;
    const struct index_weights *w = &x->w->index;
    struct index_step *y = &x->p->index;
    int n_rot = x->hp->rope[x->lh->rope].n_rot;

    if (!h->n_heads) return;
    if (!h->shared) {
        be->linear(be, in, &y->to_k, 1);
        norm_index_rows(x, &y->k, 1, w->k_norm, w->k_norm_b);
        be->rope(be, &y->k, 1, h->head_dim, n_rot, x->table, h->rope_style);
        be->index_put(be, x->kv, x->l, &y->k);
    }
    x->p->attend.keys = sees_all(h, x->kv) ? NULL : &y->choice;
    if (!wanted || h->shared || !x->p->attend.keys) return;
    be->linear(be, q_in, &y->to_q, 1);
    norm_index_rows(x, &y->q, h->n_heads, w->q_norm, NULL);
    be->rope(be, &y->q, h->n_heads, h->head_dim, n_rot, x->table, h->rope_style);
    if (h->weighed) be->linear(be, in, &y->to_w, 1);
    be->index_choose(be, &y->choice, &y->q, h->weighed ? &y->w : NULL, x->kv, x->l, &y->opt);
}
