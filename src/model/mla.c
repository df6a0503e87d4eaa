/* mla.c - multi-head latent attention (DeepSeek-V2): the KV cache holds a latent of kv_rank
 * elements and one rotated key per token, shared by all heads.
 *
 * Keys and values of a head are products of the latent with that head's matrices. These products
 * are absorbed into the query and the output: queries are projected into the latent space
 * (to_latent), attention works on latents as keys and values of a single KV head, and its result is
 * projected to values (from_latent). Decoding thus reads nothing but the latents. */
#include "model/mix.h"

#include "model/indexer.h"

#include "model/model.h"
#include "model/scratch.h"

#define LATENT_EPS 1e-6f /* epsilon of the latents' norms, fixed in the reference library */

/* The down-projections of keys and queries, and the up-projection of queries. */
static void plan_projections(struct mix_step *s, struct layer_step *p, const struct mix_memory *mem,
                             const struct model *m, int l, int n)
{
    const struct layer *w = &m->layers[l];
    const struct mix_hp *h = &m->hp.layers[l].mix;

    s->low = tensor_f32(mem->low, n, h->q_rank);
    s->latent = p->k;
    s->jobs[0] = (struct linear){ .out = p->k, .w = &w->mix.kv_a, .bias = w->mix.kv_a_b };
    s->jobs[1] = h->q_rank
                     ? (struct linear){ .out = s->low, .w = &w->mix.q_a, .bias = w->mix.q_a_b }
                     : (struct linear){ .out = p->q, .w = &w->wq, .bias = w->bq };
    s->up = (struct linear){ .out = p->q, .w = &w->wq, .bias = w->bq, .scale = h->q_scale };
}

/* The key of a token is the latent followed by the rotated part; the value is the latent. */
void mla_plan(struct layer_step *p, const struct mix_memory *mem, const struct model *m, int l,
              int n)
{
    const struct layer_hp *lh = &m->hp.layers[l];
    const struct mix_hp *h = &lh->mix;
    const struct mix_weights *w = &m->layers[l].mix;
    int key = h->kv_rank + h->rope, head = h->nope + h->rope;
    struct mix_step *s = &p->mix;

    p->k = tensor_f32(p->k.data, n, key);
    plan_projections(s, p, mem, m, l, n);
    s->latent = tensor_cols(p->k, 0, h->kv_rank);
    s->k_rot = tensor_cols(p->k, h->kv_rank, h->rope);
    s->q_rot = tensor_cols(p->q, h->nope, lh->n_heads * head - h->nope);
    s->q = tensor_f32(mem->in, n, lh->n_heads * key);
    s->mid = tensor_f32(mem->mid, n, lh->n_heads * h->kv_rank);
    s->to_latent =
        (struct linear_heads_opt){ .w = &w->k_b, .x_step = head, .out_step = key, .tail = h->rope };
    s->from_latent =
        (struct linear_heads_opt){ .w = &w->v_b, .x_step = h->kv_rank, .out_step = lh->head_dim_v };
    p->attend.n_kv_heads = 1;
    p->attend.head_dim = key;
    p->attend.head_dim_v = h->kv_rank;
}

/* If the output is not wanted, only the KV cache is written. */
void mla_run(const struct mix *x, bool wanted)
{
    struct backend *be = x->be;
    struct layer_step *p = x->p;
    struct mix_step *s = &p->mix;
    const struct mix_hp *h = &x->lh->mix;

    be->linear(be, &p->h, s->jobs, 2);
    be->rmsnorm(be, &s->latent, &s->latent, x->w->mix.kv_a_norm, LATENT_EPS);
    if (h->kv_scale != 0) be->scale(be, &s->latent, h->kv_scale);
    be->rope(be, &s->k_rot, 1, h->rope, h->rope, x->table, x->hp->rope_style);
    be->kv_put(be, x->kv, x->l, &p->k, NULL);
    if (h->q_rank) be->rmsnorm(be, &s->low, &s->low, x->w->mix.q_a_norm, LATENT_EPS);
    indexer_run(x, &p->h, h->q_rank ? &s->low : &p->h, wanted);
    if (!wanted) return;
    if (h->q_rank) be->linear(be, &s->low, &s->up, 1);
    be->rope(be, &s->q_rot, x->lh->n_heads, h->nope + h->rope, h->rope, x->table,
             x->hp->rope_style);
    if (x->hp->pos_scale.beta != 0) be->scale_by_pos(be, &p->q, x->kv->pos, &x->hp->pos_scale);
    be->linear_heads(be, &s->q, &p->q, &s->to_latent);
    be->attend(be, &s->mid, &s->q, x->kv, x->l, &p->attend);
    be->linear_heads(be, &p->a, &s->mid, &s->from_latent);
}
