/* csa.c - compressed attention (DeepSeek V4): a token attends to the last positions of its window and to
 * entries, each of which stands for `rate` positions. Layers with a small rate have an indexer that
 * selects entries; its keys are entries, too.
 *
 * Keys are their own values, rotated, so the output is rotated back by the token's position. The KV
 * cache has entries, and the raw numbers and gates that the next ones are made from, in the place of
 * values (struct compress_opt). */
#include "model/mix.h"

#include "model/model.h"
#include "model/rotary.h"
#include "model/scratch.h"

static struct compress_opt plan_pool(const struct model *m, int l, bool index)
{
    const struct layer_hp *lh = &m->hp.layers[l];
    const struct mix_weights *w = &m->layers[l].mix;
    const struct rope_hp *r = &m->hp.rope[lh->rope];

    return (struct compress_opt){
        .rate = lh->mix.rate,
        .dim = index ? lh->index.head_dim : lh->head_dim,
        .overlap = lh->mix.overlap,
        .index = index,
        .bias = index ? w->index_bias : w->raw_bias,
        .norm = index ? w->index_norm : w->raw_norm,
        .eps = m->hp.norm_eps,
        .freq = model_part((struct model *)(uintptr_t)m, l)->rope_freq[lh->rope],
        .n_rot = r->n_rot,
        .mscale = (float)rotary_factor(r, 0)
    };
}

/* Rows of the cache: an entry, raw numbers, gates; a product for each of the last two. */
static void plan_rows(struct mix_step *s, struct tensor all, int at, int dim, int halves,
                      struct tensor *rows, struct tensor *entry, const struct weight *raw,
                      const struct weight *gate)
{
    *rows = tensor_cols(all, at, dim * (1 + 2 * halves));
    *entry = tensor_cols(all, at, dim);
    s->jobs[s->n_jobs++] =
        (struct linear){ .out = tensor_cols(all, at + dim, dim * halves), .w = raw };
    s->jobs[s->n_jobs++] =
        (struct linear){ .out = tensor_cols(all, at + dim * (1 + halves), dim * halves),
                         .w = gate };
}

/* The last n_rot elements of every head. */
static struct tensor view_tails(struct tensor x, int head_dim, int n_rot)
{
    return tensor_cols(x, head_dim - n_rot, x.cols - (head_dim - n_rot));
}

void csa_plan(struct layer_step *p, const struct mix_memory *mem, const struct model *m, int l,
              int n)
{
    const struct layer_hp *lh = &m->hp.layers[l];
    const struct layer *w = &m->layers[l];
    int n_rot = m->hp.rope[lh->rope].n_rot, halves = lh->mix.overlap ? 2 : 1,
        wide = mix_width(&m->hp, l).in;
    struct mix_step *s = &p->mix;
    struct tensor all = tensor_f32(mem->in, n, wide);

    s->low = tensor_f32(mem->low, n, lh->mix.q_rank);
    s->jobs[0] = (struct linear){ .out = p->k, .w = &w->wk };
    s->jobs[1] = (struct linear){ .out = s->low, .w = &w->mix.q_a };
    s->n_jobs = 2;
    if (lh->mix.rate)
        plan_rows(s, all, 0, lh->head_dim, halves, &s->rows, &s->entry, &w->mix.raw,
                  &w->mix.raw_gate);
    if (lh->index.n_heads)
        plan_rows(s, all, lh->head_dim * 5, lh->index.head_dim, 2, &s->index_rows, &s->index_entry,
                  &w->mix.index_raw, &w->mix.index_gate);
    s->pool = plan_pool(m, l, false);
    s->index_pool = plan_pool(m, l, true);
    s->up = (struct linear){ .out = p->q, .w = &w->wq };
    s->k_rot = view_tails(p->k, lh->head_dim, n_rot);
    s->q_rot = view_tails(p->q, lh->head_dim, n_rot);
    s->mid = tensor_f32(mem->mid, n, lh->n_heads * lh->head_dim);
    s->out_rot = view_tails(s->mid, lh->head_dim, n_rot);
    s->from_latent = (struct linear_heads_opt){ .w = &w->mix.v_b,
                                                .x_step = w->mix.v_b.cols,
                                                .out_step = lh->mix.o_rank };
}

/* A row's entry is made later; until then the place has any finite numbers. */
static void clear_entries(const struct mix *x, const struct tensor *entry)
{
    struct tensor raw = *entry;

    raw.data = (float *)raw.data + entry->cols;
    x->be->act(x->be, entry, &raw, NULL, ACT_NONE);
}

/* Index queries and the entries they select. */
static void choose_entries(const struct mix *x)
{
    struct backend *be = x->be;
    const struct index_hp *h = &x->lh->index;
    struct index_step *y = &x->p->index;
    int n_rot = x->hp->rope[x->lh->rope].n_rot;

    x->p->attend.keys = NULL;
    if (!h->n_heads || (x->kv->max_pos + 1) / h->rate <= h->top) return;
    x->p->mix.index_rot = view_tails(y->q, h->head_dim, n_rot);
    be->linear(be, &x->p->mix.low, &y->to_q, 1);
    be->rope(be, &x->p->mix.index_rot, h->n_heads, h->head_dim, n_rot, x->table, ROPE_PAIR);
    be->linear(be, &x->p->h, &y->to_w, 1);
    be->index_choose(be, &y->choice, &y->q, &y->w, x->kv, x->l, &y->opt);
    x->p->attend.keys = &y->choice;
}

/* If the output is not wanted, only the KV cache is written. */
void csa_run(const struct mix *x, bool wanted)
{
    struct backend *be = x->be;
    struct layer_step *p = x->p;
    struct mix_step *s = &p->mix;
    const struct layer_hp *lh = x->lh;
    int n_rot = x->hp->rope[lh->rope].n_rot;

    be->linear(be, &p->h, s->jobs, s->n_jobs);
    be->rmsnorm(be, &p->k, &p->k, x->w->mix.kv_a_norm, x->hp->norm_eps);
    be->rope(be, &s->k_rot, 1, lh->head_dim, n_rot, x->table, ROPE_PAIR);
    if (lh->mix.rate) clear_entries(x, &s->entry);
    be->kv_put(be, x->kv, x->l, &p->k, lh->mix.rate ? &s->rows : NULL);
    if (lh->mix.rate) be->compress(be, x->kv, x->l, &s->pool);
    if (lh->index.n_heads) {
        clear_entries(x, &s->index_entry);
        be->index_put(be, x->kv, x->l, &s->index_rows);
        be->compress(be, x->kv, x->l, &s->index_pool);
    }
    if (!wanted) return;
    be->rmsnorm(be, &s->low, &s->low, x->w->mix.q_a_norm, x->hp->norm_eps);
    choose_entries(x);
    be->linear(be, &s->low, &s->up, 1);
    be->headnorm(be, &p->q, lh->n_heads, lh->head_dim, NULL, 0, x->hp->norm_eps);
    be->rope(be, &s->q_rot, lh->n_heads, lh->head_dim, n_rot, x->table, ROPE_PAIR);
    if (lh->mix.rate) be->attend_compressed(be, &s->mid, &p->q, x->kv, x->l, &p->attend, &s->pool);
    else be->attend(be, &s->mid, &p->q, x->kv, x->l, &p->attend);
    be->rope(be, &s->out_rot, lh->n_heads, lh->head_dim, n_rot, x->back, ROPE_PAIR);
    be->linear_heads(be, &p->a, &s->mid, &s->from_latent);
}
