#include "kernel/cpu/attend.h"

#include "base/mem.h"
#include "kernel/cpu/cpu.h"
#include "kernel/cpu/flash.h"

#include <math.h>

#define LEAST_KEYS 128       /* a split of the keys is worth it from here on */
#define PER_THREAD 4         /* pieces a thread should have, so that all end together */
#define WORTH_SHARING 100000 /* products that take as long as waking the team */

/* Tokens of one sequence that are looked up together, and all keys that one of them sees. */
struct tile {
    int token, n_tokens, key0, key1;
};

struct grown { /* a buffer that only grows */
    void *p;
    size_t n;
};

struct attn {
    struct par *par;
    const struct flash *flash; /* NULL: attend_ref */
    struct grown scratch, tiles, parts;
    size_t stride; /* floats of scratch a thread has */
};

/* One call: pieces are numbered by KV head, then tile (the last, longest first), then split. */
struct call {
    struct attn *a;
    const struct attend_job *j;
    struct tile *tiles;
    int n_tiles, n_splits, n_pieces, max_rows;
    size_t part_floats;
};

struct attn *attn_open(struct par *par, const struct flash *flash)
{
    struct attn *a = mem_new(struct attn);

    a->par = par;
    a->flash = flash;
    return a;
}

static bool grow(struct grown *g, size_t n)
{
    void *p;

    if (n <= g->n) return true;
    if (!(p = mem_aligned(n))) return false;
    if (g->p) mem_free_aligned(g->p, g->n);
    *g = (struct grown){ p, n };
    return true;
}

static void grown_release(struct grown *g)
{
    if (g->p) mem_free_aligned(g->p, g->n);
}

void attn_close(struct attn *a)
{
    if (!a) return;
    grown_release(&a->scratch);
    grown_release(&a->tiles);
    grown_release(&a->parts);
    mem_free(a);
}

const struct flash *attn_flash(const struct attn *a) { return a->flash; }

/* Room for `floats` numbers on every thread. */
static bool scratch_reserve(struct attn *a, size_t floats)
{
    a->stride = (floats + 63) & ~(size_t)63;
    return grow(&a->scratch, a->stride * (size_t)par_n(a->par) * sizeof(float));
}

static float *scratch_of(const struct attn *a, int thread)
{
    return (float *)a->scratch.p + (size_t)thread * a->stride;
}

static bool rows_of(struct cpu *c, struct kvrows *r, enum dtype type, void *base,
                    size_t block_bytes, int heads, int dim)
{
    uint64_t row;
    bool known = type == DT_F32 || type == DT_F16 || type == DT_BF16 || type == DT_Q8_0 ||
                 type == DT_F8_E4M3;

    if (!known || !dtype_row_bytes(type, (uint64_t)dim, &row)) {
        cpu_fail(c, E_UNSUPPORTED, "keys and values of type %s with heads of %d numbers",
                 dtype_name(type), dim);
        return false;
    }
    *r = (struct kvrows){ type, base, block_bytes, (size_t)row * KV_BLOCK, (size_t)row, dim };
    if (base && r->head_bytes * (size_t)heads <= block_bytes) return true;
    cpu_fail(c, E_INVALID, "a block of keys or values has %zu bytes, %zu are needed", block_bytes,
             r->head_bytes * (size_t)heads);
    return false;
}

static bool layer_of(struct cpu *c, struct kvrows *k, struct kvrows *v, const struct kvview *kv,
                     int layer)
{
    const struct kvlayer *l = &kv->layers[layer];

    if (!rows_of(c, k, kv->type, l->k, l->k_block_bytes, l->n_kv_heads, l->head_dim)) return false;
    if (!l->v_in_k)
        return rows_of(c, v, kv->type, l->v, l->v_block_bytes, l->n_kv_heads, l->head_dim_v);
    if (!rows_of(c, v, kv->type, l->k, l->k_block_bytes, l->n_kv_heads, l->head_dim_v))
        return false;
    v->head_bytes = k->head_bytes;
    v->row_bytes = k->row_bytes;
    return true;
}

struct put {
    const struct vec *vec;
    const struct kvview *kv;
    struct kvrows rows[2];
    const struct tensor *x[2];
    int heads, n; /* n: keys and values, or keys alone */
};

static void put_tokens(const void *arg, int begin, int end)
{
    const struct put *a = arg;

    for (int t = begin; t < end; t++) {
        const int32_t *blocks = a->kv->table + (size_t)a->kv->seq[t] * a->kv->table_stride;
        for (int i = 0; i < a->n; i++) {
            const struct kvrows *r = &a->rows[i];
            const float *x = tensor_row(a->x[i], t);
            for (int h = 0; h < a->heads; h++)
                a->vec->store(r->type, (void *)(uintptr_t)kvrows_at(r, blocks, h, a->kv->pos[t]),
                              x + (size_t)h * r->dim, r->dim);
        }
    }
}

void cpu_kv_put(struct backend *be, const struct kvview *kv, int layer, const struct tensor *k,
                const struct tensor *v)
{
    struct cpu *c = cpu_of(be);
    struct put a = { .vec = c->vec,
                     .kv = kv,
                     .x = { k, v },
                     .heads = kv->layers[layer].n_kv_heads,
                     .n = kv->layers[layer].v_in_k ? 1 : 2 };

    if (!layer_of(c, &a.rows[0], &a.rows[1], kv, layer)) return;
    cpu_rows(c, kv->n_tokens, 2ll * kv->n_tokens * k->cols, put_tokens, &a);
}

static bool job_init(struct cpu *c, struct attend_job *j, int layer)
{
    const struct attend_opt *o = j->opt;
    const struct kvlayer *l = &j->kv->layers[layer];

    if (o->head_dim > MAX_HEAD_DIM || o->head_dim_v > MAX_HEAD_DIM) {
        cpu_fail(c, E_UNSUPPORTED, "attention heads of %d and %d numbers: at most %d", o->head_dim,
                 o->head_dim_v, MAX_HEAD_DIM);
        return false;
    }
    if (o->n_kv_heads < 1 || o->n_heads % o->n_kv_heads || l->n_kv_heads != o->n_kv_heads ||
        l->head_dim != o->head_dim || l->head_dim_v != o->head_dim_v) {
        cpu_fail(c, E_INVALID,
                 "attention of %d heads over %d of %d and %d numbers; kept are %d of %d and %d",
                 o->n_heads, o->n_kv_heads, o->head_dim, o->head_dim_v, l->n_kv_heads, l->head_dim,
                 l->head_dim_v);
        return false;
    }
    j->group = o->n_heads / o->n_kv_heads;
    return layer_of(c, &j->k, &j->v, j->kv, layer);
}

static void ref_run(void *arg, int thread, int n_threads)
{
    struct call *c = arg;
    int heads = c->j->opt->n_heads, begin, end;

    (void)n_threads;
    while (par_next(c->a->par, c->j->kv->n_tokens * heads, 4, &begin, &end))
        for (int i = begin; i < end; i++)
            attend_ref(c->j, i / heads, i % heads, scratch_of(c->a, thread));
}

/* Tokens of a tile: as many rows as scratch holds, fewer when threads would go without. */
static int tile_tokens(const struct call *c)
{
    int n = FLASH_ROWS / c->j->group > 1 ? FLASH_ROWS / c->j->group : 1;
    long long want = (long long)PER_THREAD * par_n(c->a->par);

    while (n * c->j->group > 32 && n > 1 &&
           (long long)c->j->kv->n_tokens / n * c->j->opt->n_kv_heads < want)
        n /= 2;
    return n;
}

static void cut_tiles(struct call *c)
{
    const struct kvview *kv = c->j->kv;
    int most = tile_tokens(c);

    for (int t = 0, n; t < kv->n_tokens; t += n) {
        int key0 = attend_first(c->j, kv->pos[t]), key1 = attend_end(c->j, t);
        for (n = 1; n < most && t + n < kv->n_tokens && kv->seq[t + n] == kv->seq[t]; n++) {
            int first = attend_first(c->j, kv->pos[t + n]), end = attend_end(c->j, t + n);
            key0 = first < key0 ? first : key0;
            key1 = end > key1 ? end : key1;
        }
        c->tiles[c->n_tiles++] = (struct tile){ t, n, key0 / KV_BLOCK * KV_BLOCK, key1 };
        if (n * c->j->group > c->max_rows) c->max_rows = n * c->j->group;
    }
}

/* Few heads and sequences but long ones: their keys are split, so that all threads have work. */
static int splits(const struct call *c)
{
    int base = c->n_tiles * c->j->opt->n_kv_heads, want = PER_THREAD * par_n(c->a->par),
        longest = 0, n;

    if (par_n(c->a->par) == 1 || base >= want) return 1;
    for (int i = 0; i < c->n_tiles; i++) {
        int keys = c->tiles[i].key1 - c->tiles[i].key0;
        longest = keys > longest ? keys : longest;
    }
    n = (want + base - 1) / base;
    if (n > longest / LEAST_KEYS) n = longest / LEAST_KEYS;
    return n > 1 ? n : 1;
}

static void run_piece(const struct call *c, int i, float *scratch)
{
    int split = i % c->n_splits, tile = c->n_tiles - 1 - i / c->n_splits % c->n_tiles;
    const struct tile *t = &c->tiles[tile];
    struct flash_piece p = { t->token, t->n_tokens, i / c->n_splits / c->n_tiles,
                             t->key0,  t->key1,     split == 0,
                             NULL };

    if (c->n_splits > 1) {
        par_share(t->key1 - t->key0, FLASH_KEYS, split, c->n_splits, &p.key0, &p.key1);
        p.key0 += t->key0;
        p.key1 += t->key0;
        p.part = (float *)c->a->parts.p + (size_t)i * c->part_floats;
    }
    c->a->flash->run(c->j, &p, scratch);
}

/* One query row of a split tile: parts weighed by their maxima. */
static void merge_row(const struct call *c, const struct tile *t, const float *part, int row,
                      int head)
{
    int rows = t->n_tokens * c->j->group, dim = c->j->opt->head_dim_v;
    float *out = tensor_row(c->j->out, t->token + row / c->j->group) +
                 (size_t)(head * c->j->group + row % c->j->group) * dim;
    float max = -INFINITY, sum = 0;

    for (int s = 0; s < c->n_splits; s++) max = fmaxf(max, part[s * c->part_floats + row]);
    memset(out, 0, (size_t)dim * sizeof *out);
    for (int s = 0; s < c->n_splits; s++) {
        const float *p = part + s * c->part_floats;
        float w = exp2f(p[row] - max);
        sum += w * p[rows + row];
        c->j->vec->add(out, p + 2 * rows + (size_t)row * dim, w, dim);
    }
    c->j->vec->scale(out, out, 1 / sum, dim);
}

static void merge(const struct call *c, int i)
{
    const struct tile *t = &c->tiles[c->n_tiles - 1 - i % c->n_tiles];
    const float *part = (const float *)c->a->parts.p + (size_t)i * c->n_splits * c->part_floats;

    for (int r = 0; r < t->n_tokens * c->j->group; r++) merge_row(c, t, part, r, i / c->n_tiles);
}

static void flash_run(void *arg, int thread, int n_threads)
{
    const struct call *c = arg;
    int begin, end;

    (void)n_threads;
    while (par_next(c->a->par, c->n_pieces, 1, &begin, &end))
        run_piece(c, begin, scratch_of(c->a, thread));
}

static void merge_run(void *arg, int thread, int n_threads)
{
    const struct call *c = arg;
    int begin, end;

    (void)thread;
    (void)n_threads;
    while (par_next(c->a->par, c->n_pieces / c->n_splits, 1, &begin, &end)) merge(c, begin);
}

static bool plan(struct call *c)
{
    const struct attend_opt *o = c->j->opt;

    if (!grow(&c->a->tiles, (size_t)c->j->kv->n_tokens * sizeof *c->tiles)) return false;
    c->tiles = c->a->tiles.p;
    cut_tiles(c);
    c->n_splits = splits(c);
    c->n_pieces = c->n_tiles * o->n_kv_heads * c->n_splits;
    c->part_floats = (flash_part_floats(c->max_rows, o->head_dim_v) + 15) & ~(size_t)15;
    if (c->n_splits > 1 &&
        !grow(&c->a->parts, (size_t)c->n_pieces * c->part_floats * sizeof(float)))
        return false;
    return scratch_reserve(c->a,
                           flash_scratch_floats(c->j->group > FLASH_ROWS ? c->j->group : FLASH_ROWS,
                                                o->head_dim, o->head_dim_v));
}

static bool worth_sharing(const struct call *c)
{
    const struct attend_opt *o = c->j->opt;
    long long work = 0;

    for (int i = 0; i < c->n_tiles && work < WORTH_SHARING; i++)
        work += (long long)c->tiles[i].n_tokens * (c->tiles[i].key1 - c->tiles[i].key0) *
                o->n_heads * (o->head_dim + o->head_dim_v);
    return work >= WORTH_SHARING;
}

/* Positions that one of the tokens sees, at most. */
static int furthest(const struct attend_job *j)
{
    int end = 0;

    for (int t = 0; t < j->kv->n_tokens; t++) end = attend_end(j, t) > end ? attend_end(j, t) : end;
    return end;
}

void cpu_attend(struct backend *be, const struct tensor *out, const struct tensor *q,
                const struct kvview *kv, int layer, const struct attend_opt *opt)
{
    struct cpu *cpu = cpu_of(be);
    struct attend_job j = { .opt = opt, .out = out, .q = q, .kv = kv, .vec = cpu->vec };
    struct call c = { .a = cpu->attn, .j = &j };

    if (kv->n_tokens == 0 || !job_init(cpu, &j, layer)) return;
    if (opt->bidirectional && !kv->seq_end) {
        cpu_fail(cpu, E_INVALID, "attention both ways of sequences whose ends are not known");
        return;
    }
    if (c.a->flash ? !plan(&c) : !scratch_reserve(c.a, (size_t)furthest(&j))) {
        cpu_fail(cpu, E_NOMEM, "no memory to attend from %d tokens to %d positions", kv->n_tokens,
                 kv->max_pos + 1);
        return;
    }
    if (!c.a->flash) par_run_any(cpu->par, ref_run, &c);
    else if (c.n_splits > 1 || worth_sharing(&c)) par_run_any(cpu->par, flash_run, &c);
    else
        for (int i = 0; i < c.n_pieces; i++) run_piece(&c, i, scratch_of(c.a, 0));
    if (c.n_splits > 1) par_run_any(cpu->par, merge_run, &c);
}
