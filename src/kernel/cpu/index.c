/* index.c - the indexer of sparse attention (DeepSeek V3.2): which keys a token attends to.
 *
 * Every position has an index key, in the KV cache beside its keys. A token's index queries score
 * all positions up to its own, and it keeps the best. Scores are computed in F32 from the cached
 * keys; of equal scores the first positions are kept. */
#include "kernel/cpu/attend.h"
#include "kernel/cpu/cpu.h"

#include "base/mem.h"
#include "kernel/cpu/grown.h"

#include <math.h>
#include <string.h>

/* Arguments of choose_tokens. */
struct choice_job {
    struct cpu *c;
    const struct key_choice *out;
    const struct tensor *q, *weights;
    const struct kvview *kv;
    const struct kvlayer *layer;
    const struct index_opt *o;
    size_t row_bytes;
    float *scratch; /* of each thread: [2 * keys + head_dim] */
    size_t stride;
};

/* Entries of several positions are in the row of the last. */
static const void *key_at(const struct choice_job *j, int seq, int key)
{
    int pos = j->o->rate ? (key + 1) * j->o->rate - 1 : key;
    const int32_t *blocks = j->kv->table + (size_t)seq * (size_t)j->kv->table_stride;

    return (const char *)j->layer->x + (size_t)blocks[pos / KV_BLOCK] * j->layer->x_block_bytes +
           (size_t)(pos % KV_BLOCK) * j->row_bytes;
}

static float dot(const float *a, const float *b, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return (float)sum;
}

/* scores[k] of the keys [0, n): of one head, or the weighted sum of the positive scores of all. */
static void score_keys(const struct choice_job *j, int token, int head, int n, float *scores,
                       float *key)
{
    const struct index_opt *o = j->o;
    const float *q = tensor_row(j->q, token),
                *w = j->weights ? tensor_row(j->weights, token) : NULL;

    for (int k = 0; k < n; k++) {
        j->c->vec->load(j->kv->type, key, key_at(j, j->kv->seq[token], k), o->head_dim);
        if (!w) {
            scores[k] = dot(q + (size_t)head * (size_t)o->head_dim, key, o->head_dim) * o->scale;
            continue;
        }
        scores[k] = 0;
        for (int h = 0; h < o->n_heads; h++) {
            float s = dot(q + (size_t)h * (size_t)o->head_dim, key, o->head_dim) * o->scale;
            if (s > 0) scores[k] += s * w[h];
        }
    }
}

/* Blocks of keys: the best key counts. Those of the token and just before it are always kept. */
static int join_blocks(const struct index_opt *o, int pos, float *scores)
{
    int n = pos / o->block + 1;

    for (int b = 0; b < n; b++) {
        float best = -INFINITY;
        for (int k = b * o->block; k <= pos && k < (b + 1) * o->block; k++)
            if (scores[k] > best) best = scores[k];
        scores[b] = b > n - 1 - o->local ? INFINITY : best;
    }
    return n;
}

/* The value of the k-th largest of n numbers, k from 1; x is reordered (quickselect). */
static float find_kth(float *x, int n, int k)
{
    int lo = 0, hi = n - 1, at = k - 1;

    while (lo < hi) {
        float p = x[lo + (hi - lo) / 2];
        int i = lo, j = hi;
        while (i <= j) {
            while (x[i] > p) i++;
            while (x[j] < p) j--;
            if (i <= j) {
                float t = x[i];
                x[i++] = x[j];
                x[j--] = t;
            }
        }
        if (at <= j) hi = j;
        else if (at >= i) lo = i;
        else break;
    }
    return x[at];
}

static void set_bits(uint32_t *bits, int first, int end)
{
    for (int k = first; k < end; k++) bits[k / 32] |= (uint32_t)1 << (k % 32);
}

/* Sets the bits of the best o->top keys or blocks. */
static void keep_best(const struct index_opt *o, const float *scores, float *copy, int n,
                      uint32_t *bits)
{
    int size = o->block ? o->block : 1, left = o->top;
    float least;

    if (n <= o->top) {
        set_bits(bits, 0, n * size);
        return;
    }
    memcpy(copy, scores, (size_t)n * sizeof *copy);
    least = find_kth(copy, n, o->top);
    for (int i = 0; i < n; i++)
        if (scores[i] > least) set_bits(bits, i * size, (i + 1) * size), left--;
    for (int i = 0; i < n && left > 0; i++)
        if (scores[i] == least) set_bits(bits, i * size, (i + 1) * size), left--;
}

static void choose_token(const struct choice_job *j, int token, float *scratch)
{
    int pos = j->kv->pos[token], n = j->o->rate ? (pos + 1) / j->o->rate : pos + 1,
        most = j->kv->max_pos + 1;

    for (int h = 0; h < j->out->n_heads; h++) {
        uint32_t *bits =
            j->out->bits + ((size_t)token * (size_t)j->out->n_heads + (size_t)h) * j->out->stride;
        float *scores = scratch, *copy = scratch + most;
        int items = n;
        memset(bits, 0, j->out->stride * sizeof *bits);
        score_keys(j, token, h, n, scores, scratch + 2 * most);
        if (j->o->block) items = join_blocks(j->o, pos, scores);
        keep_best(j->o, scores, copy, items, bits);
    }
}

static void choose_tokens(void *arg, int thread, int n_threads)
{
    struct choice_job *j = arg;
    int begin, end;

    (void)n_threads;
    while (par_next(j->c->par, j->kv->n_tokens, 1, &begin, &end))
        for (int t = begin; t < end; t++)
            choose_token(j, t, j->scratch + (size_t)thread * j->stride);
}

/* Rows of a bit for every position must be long enough, and blocks end within them. */
static bool check_choice(struct cpu *c, const struct key_choice *out, const struct kvview *kv,
                         const struct kvlayer *l, const struct index_opt *o, size_t *row_bytes)
{
    uint64_t row;
    int keys = kv->max_pos + 1, size = o->block ? o->block : 1;

    if (!l->x || (o->rate ? l->index_dim < o->head_dim : l->index_dim != o->head_dim) ||
        !dtype_row_bytes(kv->type, (uint64_t)l->index_dim, &row)) {
        cpu_fail(c, E_INVALID, "choose: the cache has index keys of %d elements, not %d",
                 l->index_dim, o->head_dim);
        return false;
    }
    *row_bytes = (size_t)row;
    if (out->stride * 32 >= (size_t)((keys + size - 1) / size) * (size_t)size) return true;
    cpu_fail(c, E_INVALID, "choose: %zu words for %d positions", out->stride, keys);
    return false;
}

void cpu_index_choose(struct backend *be, const struct key_choice *out, const struct tensor *q,
                      const struct tensor *weights, const struct kvview *kv, int layer,
                      const struct index_opt *opt)
{
    struct cpu *c = cpu_of(be);
    struct choice_job j = { .c = c,
                            .out = out,
                            .q = q,
                            .weights = weights,
                            .kv = kv,
                            .layer = &kv->layers[layer],
                            .o = opt };

    if (kv->n_tokens == 0 || !check_choice(c, out, kv, j.layer, opt, &j.row_bytes)) return;
    j.stride = 2 * ((size_t)kv->max_pos + 1) + (size_t)opt->head_dim;
    if (!(j.scratch = attn_scratch(c->attn, j.stride))) {
        cpu_fail(c, E_NOMEM, "choose: out of memory for %d positions", kv->max_pos + 1);
        return;
    }
    j.stride = attn_scratch_stride(c->attn);
    par_run_any(c->par, choose_tokens, &j);
}

/* On the calling thread: one short row per token. */
void cpu_index_put(struct backend *be, const struct kvview *kv, int layer, const struct tensor *k)
{
    struct cpu *c = cpu_of(be);
    const struct kvlayer *l = &kv->layers[layer];
    uint64_t row = 0;

    if (!l->x || l->index_dim != k->cols || !dtype_row_bytes(kv->type, (uint64_t)k->cols, &row)) {
        cpu_fail(c, E_INVALID, "index keys of %d elements do not match the cache: %d", k->cols,
                 l->index_dim);
        return;
    }
    for (int t = 0; t < kv->n_tokens; t++) {
        const int32_t *blocks = kv->table + (size_t)kv->seq[t] * (size_t)kv->table_stride;
        char *to = (char *)l->x + (size_t)blocks[kv->pos[t] / KV_BLOCK] * l->x_block_bytes +
                   (size_t)(kv->pos[t] % KV_BLOCK) * (size_t)row;
        c->vec->store(kv->type, to, tensor_row(k, t), k->cols);
    }
}
