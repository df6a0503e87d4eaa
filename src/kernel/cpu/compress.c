/* compress.c - compressed attention (DeepSeek V4): entries that stand for several positions each, and
 * attention over the last positions and the entries. Sums are in double, as in attend_ref.c. */
#include "kernel/cpu/attend.h"
#include "kernel/cpu/cpu.h"

#include <math.h>
#include <string.h>

struct pool { /* arguments of the functions below */
    struct cpu *c;
    const struct kvview *kv;
    const struct compress_opt *o;
    const struct attend_opt *a;
    const struct tensor *out, *q;
    struct kvrows keys, rows; /* of single positions; with entries */
    size_t part_bytes;        /* of dim elements of a row */
    float *scratch;           /* of each thread */
    size_t stride;
};

static const int32_t *blocks_of(const struct pool *p, int token)
{
    return p->kv->table + (size_t)p->kv->seq[token] * (size_t)p->kv->table_stride;
}

/* Part i of the row of a position: 0 is the entry. */
static char *part_at(const struct pool *p, const int32_t *blocks, int pos, int i)
{
    const char *row = kvrows_at(&p->rows, blocks, 0, pos);

    return (char *)(uintptr_t)row + (size_t)i * p->part_bytes;
}

/* Adds the rows of a window that starts at `first`: raw numbers and gates of half `half`. sums: greatest
 * gate, sum of weights, weighted sum. */
static void add_window(const struct pool *p, const int32_t *blocks, int first, int half,
                       float *const sums[3], float *const row[2])
{
    const struct compress_opt *o = p->o;
    int halves = o->overlap ? 2 : 1;

    for (int k = 0; k < o->rate; k++) {
        const float *bias = o->bias + ((size_t)k * (size_t)halves + (size_t)half) * (size_t)o->dim;
        p->c->vec->load(p->kv->type, row[0], part_at(p, blocks, first + k, 1 + half), o->dim);
        p->c->vec->load(p->kv->type, row[1], part_at(p, blocks, first + k, 1 + halves + half),
                        o->dim);
        for (int i = 0; i < o->dim; i++) {
            float g = row[1][i] + bias[i], weight = 1;
            if (g > sums[0][i]) { /* what was summed before counts less */
                float less = expf(sums[0][i] - g);
                sums[1][i] *= less;
                sums[2][i] *= less;
                sums[0][i] = g;
            } else {
                weight = expf(g - sums[0][i]);
            }
            sums[1][i] += weight;
            sums[2][i] += weight * row[0][i];
        }
    }
}

static void rotate_tail(const struct compress_opt *o, int pos, float *x)
{
    x += o->dim - o->n_rot;
    for (int i = 0; i < o->n_rot / 2; i++) {
        float angle = (float)pos * o->freq[i], a = x[2 * i], b = x[2 * i + 1];
        float c = (float)cos((double)angle) * o->mscale, s = (float)sin((double)angle) * o->mscale;
        x[2 * i] = a * c - b * s;
        x[2 * i + 1] = b * c + a * s;
    }
}

/* The entry of the window that ends at pos. */
static void make_entry(const struct pool *p, const int32_t *blocks, int pos, float *scratch)
{
    const struct compress_opt *o = p->o;
    int first = pos + 1 - o->rate, n = o->dim;
    float *sums[3] = { scratch, scratch + n, scratch + 2 * (size_t)n },
          *row[2] = { scratch + 3 * (size_t)n, scratch + 4 * (size_t)n };
    double square = 0;
    float scale;

    for (int i = 0; i < n; i++) sums[0][i] = -INFINITY, sums[1][i] = sums[2][i] = 0;
    if (o->overlap && first > 0) add_window(p, blocks, first - o->rate, 0, sums, row);
    add_window(p, blocks, first, o->overlap, sums, row);
    for (int i = 0; i < n; i++) {
        row[0][i] = sums[2][i] / sums[1][i];
        square += (double)row[0][i] * (double)row[0][i];
    }
    scale = (float)(1 / sqrt(square / n + (double)o->eps));
    for (int i = 0; i < n; i++) row[0][i] *= scale * o->norm[i];
    rotate_tail(o, first, row[0]);
    p->c->vec->store(p->kv->type, part_at(p, blocks, pos, 0), row[0], n);
}

static void make_entries(void *arg, int thread, int n_threads)
{
    struct pool *p = arg;
    int begin, end;

    (void)n_threads;
    while (par_next(p->c->par, p->kv->n_tokens, 1, &begin, &end))
        for (int t = begin; t < end; t++)
            if ((p->kv->pos[t] + 1) % p->o->rate == 0)
                make_entry(p, blocks_of(p, t), p->kv->pos[t],
                           p->scratch + (size_t)thread * p->stride);
}

/* The rows with entries, as the cache has them. */
static bool find_rows(struct pool *p, const struct kvlayer *l)
{
    const struct compress_opt *o = p->o;
    int dim = o->dim * (o->overlap ? 5 : 3), have = o->index ? l->index_dim : l->head_dim_v;
    uint64_t row, part;

    if (o->rate < 1 || have != dim || l->v_in_k ||
        !dtype_row_bytes(p->kv->type, (uint64_t)dim, &row) ||
        !dtype_row_bytes(p->kv->type, (uint64_t)o->dim, &part)) {
        cpu_fail(p->c, E_INVALID, "compress: the cache has rows of %d elements, not %d", have, dim);
        return false;
    }
    p->part_bytes = (size_t)part;
    p->rows = (struct kvrows){ .type = p->kv->type,
                               .base = o->index ? l->x : l->v,
                               .block_bytes = o->index ? l->x_block_bytes : l->v_block_bytes,
                               .row_bytes = (size_t)row,
                               .dim = dim };
    return true;
}

/* Memory of each thread. */
static bool take_scratch(struct pool *p, size_t floats)
{
    p->scratch = attn_scratch(p->c->attn, floats);
    p->stride = attn_scratch_stride(p->c->attn);
    if (!p->scratch) cpu_fail(p->c, E_NOMEM, "compress: no memory for %zu numbers", floats);
    return p->scratch != NULL;
}

void cpu_compress(struct backend *be, const struct kvview *kv, int layer,
                  const struct compress_opt *opt)
{
    struct pool p = { .c = cpu_of(be), .kv = kv, .o = opt };

    if (kv->n_tokens == 0 || !find_rows(&p, &kv->layers[layer]) ||
        !take_scratch(&p, 5 * (size_t)opt->dim))
        return;
    par_run_any(p.c->par, make_entries, &p);
}

/* ---- attention ---- */

static bool is_chosen(const struct pool *p, int token, int entry)
{
    const struct key_choice *k = p->a->keys;

    return !k || k->bits[(size_t)token * k->stride + (size_t)entry / 32] >> (entry % 32) & 1;
}

/* Adds a key, which is its own value, to the softmax of one head: greatest score, sum, and sums of
 * values. */
static void add_key(const struct pool *p, const float *q, const float *key, double *max,
                    double *sum, double *acc)
{
    int n = p->a->head_dim;
    double s = 0, weight = 1;

    for (int i = 0; i < n; i++) s += (double)q[i] * (double)key[i];
    s *= (double)p->a->scale;
    if (s > *max) {
        double less = exp(*max - s);
        *sum *= less;
        for (int i = 0; i < n; i++) acc[i] *= less;
        *max = s;
    } else {
        weight = exp(s - *max);
    }
    *sum += weight;
    for (int i = 0; i < n; i++) acc[i] += weight * (double)key[i];
}

static void attend_token(const struct pool *p, int token, int head, float *key)
{
    const struct attend_opt *a = p->a;
    const int32_t *blocks = blocks_of(p, token);
    const float *q = tensor_row(p->q, token) + (size_t)head * (size_t)a->head_dim;
    float *out = tensor_row(p->out, token) + (size_t)head * (size_t)a->head_dim;
    double max = a->sinks ? (double)a->sinks[head] : -INFINITY, sum = a->sinks ? 1 : 0,
           acc[MAX_HEAD_DIM] = { 0 };
    int pos = p->kv->pos[token], n = (pos + 1) / p->o->rate,
        first = a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0;

    for (int k = first; k <= pos; k++) {
        p->c->vec->load(p->kv->type, key, kvrows_at(&p->keys, blocks, 0, k), a->head_dim);
        add_key(p, q, key, &max, &sum, acc);
    }
    for (int k = 0; k < n; k++) {
        if (!is_chosen(p, token, k)) continue;
        p->c->vec->load(p->kv->type, key, part_at(p, blocks, (k + 1) * p->o->rate - 1, 0),
                        a->head_dim);
        add_key(p, q, key, &max, &sum, acc);
    }
    for (int i = 0; i < a->head_dim; i++) out[i] = (float)(acc[i] / sum);
}

static void attend_heads(void *arg, int thread, int n_threads)
{
    struct pool *p = arg;
    int begin, end;

    (void)n_threads;
    while (par_next(p->c->par, p->kv->n_tokens * p->a->n_heads, 1, &begin, &end))
        for (int i = begin; i < end; i++)
            attend_token(p, i / p->a->n_heads, i % p->a->n_heads,
                         p->scratch + (size_t)thread * p->stride);
}

void cpu_attend_compressed(struct backend *be, const struct tensor *out, const struct tensor *q,
                           const struct kvview *kv, int layer, const struct attend_opt *opt,
                           const struct compress_opt *c)
{
    const struct kvlayer *l = &kv->layers[layer];
    struct pool p = { .c = cpu_of(be), .kv = kv, .o = c, .a = opt, .out = out, .q = q };
    uint64_t row;

    if (kv->n_tokens == 0 || !find_rows(&p, l)) return;
    if (l->n_kv_heads != 1 || l->head_dim != opt->head_dim || c->dim != opt->head_dim ||
        opt->head_dim > MAX_HEAD_DIM || !dtype_row_bytes(kv->type, (uint64_t)opt->head_dim, &row)) {
        cpu_fail(p.c, E_INVALID, "attend: heads of %d elements do not match the cache: %d",
                 opt->head_dim, l->head_dim);
        return;
    }
    p.keys = (struct kvrows){ .type = kv->type,
                              .base = l->k,
                              .block_bytes = l->k_block_bytes,
                              .row_bytes = (size_t)row,
                              .dim = opt->head_dim };
    if (take_scratch(&p, (size_t)opt->head_dim)) par_run_any(p.c->par, attend_heads, &p);
}
