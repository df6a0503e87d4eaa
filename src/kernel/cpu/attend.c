/* attend.c - attention on the CPU: writes the KV cache, and cuts attention into pieces for threads.
 *
 * A tile is a run of consecutive tokens of one sequence, small enough that its query rows (tokens
 * times query heads of a KV head) fit the scratch memory. A piece is a tile, a KV head and a range
 * of keys; a flash_* kernel computes it (flash.h). Prefill has many tiles, so a piece covers all
 * its keys. Decode with few sequences has few tiles: there the keys of each tile are split into
 * several pieces, and their partial results are merged afterwards (as in flash-decoding). The split
 * depends on the shapes and the number of threads only. */
#include "kernel/cpu/attend.h"

#include "base/mem.h"
#include "kernel/cpu/cpu.h"
#include "kernel/cpu/flash.h"
#include "kernel/cpu/grown.h"

#include <math.h>

#define LEAST_KEYS 128       /* smallest range of keys worth a piece of its own */
#define PER_THREAD 4         /* pieces per thread to aim for, so that the threads finish together */
#define WORTH_SHARING 100000 /* multiplications that take as long as waking the team */

/* Tokens [token, token + n_tokens) of the batch, all of one sequence, and the range of keys that at
 * least one of them attends to. */
struct tile {
    int token, n_tokens, key0, key1;
};

struct attn {
    struct par *par;
    const struct flash *flash; /* NULL: attend_ref */
    struct grown scratch, tiles, parts;
    size_t stride; /* floats of scratch memory per thread */
};

/* One call. Pieces are numbered by KV head, then tile, then split. Tiles count backwards: the last
 * one has the most keys and should start first. */
struct call {
    struct attn *a;
    const struct attend_job *j;
    struct tile *tiles;
    int n_tiles, n_splits, n_pieces;
    int max_rows;       /* query rows of the largest tile */
    size_t part_floats; /* of a piece's partial result */
};

int attn_open(struct attn **out, struct par *par, const struct flash *flash, struct err *e)
{
    struct attn *a = mem_new(struct attn);

    if (!a) return err_nomem(e, "attention");
    a->par = par;
    a->flash = flash;
    *out = a;
    return OK;
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

/* Scratch memory of this many floats for every thread. */
static bool reserve_scratch(struct attn *a, size_t floats)
{
    a->stride = (floats + 63) & ~(size_t)63;
    return grown_reserve(&a->scratch, a->stride * (size_t)par_n(a->par) * sizeof(float));
}

float *attn_scratch(struct attn *a, size_t floats)
{
    return reserve_scratch(a, floats) ? a->scratch.p : NULL;
}

size_t attn_scratch_stride(const struct attn *a) { return a->stride; }

static float *thread_scratch(const struct attn *a, int thread)
{
    return (float *)a->scratch.p + (size_t)thread * a->stride;
}

/* Strides of the rows of keys or values; checks type and block size. */
static bool init_kvrows(struct cpu *c, struct kvrows *r, enum dtype type, void *base,
                        size_t block_bytes, int heads, int dim)
{
    uint64_t row;
    bool known = type == DT_F32 || type == DT_F16 || type == DT_BF16 || type == DT_Q8_0 ||
                 type == DT_F8_E4M3;

    if (!known || !dtype_row_bytes(type, (uint64_t)dim, &row)) {
        cpu_fail(c, E_UNSUPPORTED,
                 "attention: a KV cache of type %s with heads of %d elements is not supported",
                 dtype_name(type), dim);
        return false;
    }
    *r = (struct kvrows){ type, base, block_bytes, (size_t)row * KV_BLOCK, (size_t)row, dim };
    if (base && r->head_bytes * (size_t)heads <= block_bytes) return true;
    cpu_fail(c, E_INVALID, "attention: a KV block has %zu bytes, but %zu are needed", block_bytes,
             r->head_bytes * (size_t)heads);
    return false;
}

/* Keys and values of a layer. */
static bool init_layer(struct cpu *c, struct kvrows *k, struct kvrows *v, const struct kvview *kv,
                       int layer)
{
    const struct kvlayer *l = &kv->layers[layer];

    if (!init_kvrows(c, k, kv->type, l->k, l->k_block_bytes, l->n_kv_heads, l->head_dim))
        return false;
    if (!l->v_in_k)
        return init_kvrows(c, v, kv->type, l->v, l->v_block_bytes, l->n_kv_heads, l->head_dim_v);
    if (!init_kvrows(c, v, kv->type, l->k, l->k_block_bytes, l->n_kv_heads, l->head_dim_v))
        return false;
    v->head_bytes = k->head_bytes; /* values are the beginning of each key row */
    v->row_bytes = k->row_bytes;
    return true;
}

struct kv_put { /* arguments of put_tokens */
    const struct vec *vec;
    const struct kvview *kv;
    struct kvrows rows[2];
    const struct tensor *x[2];
    int heads, n; /* n: 2 (keys and values), or 1 (keys only) */
};

/* Converts the keys and values of tokens to the cache's type, each head into its block. */
static void put_tokens(const void *arg, int begin, int end)
{
    const struct kv_put *a = arg;

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
    struct kv_put a = { .vec = c->vec,
                        .kv = kv,
                        .x = { k, v },
                        .heads = kv->layers[layer].n_kv_heads,
                        .n = kv->layers[layer].v_in_k ? 1 : 2 };

    if (!init_layer(c, &a.rows[0], &a.rows[1], kv, layer)) return;
    cpu_rows(c, kv->n_tokens, 2ll * kv->n_tokens * k->cols, put_tokens, &a);
}

/* Checks the call against the layer's KV cache and fills in the rest of j. */
static bool init_job(struct cpu *c, struct attend_job *j, int layer)
{
    const struct attend_opt *o = j->opt;
    const struct kvlayer *l = &j->kv->layers[layer];

    if (o->head_dim > MAX_HEAD_DIM || o->head_dim_v > MAX_HEAD_DIM) {
        cpu_fail(c, E_UNSUPPORTED,
                 "attention: heads of %d and %d elements: at most %d are supported", o->head_dim,
                 o->head_dim_v, MAX_HEAD_DIM);
        return false;
    }
    if (o->n_kv_heads < 1 || o->n_heads % o->n_kv_heads || l->n_kv_heads != o->n_kv_heads ||
        l->head_dim != o->head_dim || l->head_dim_v != o->head_dim_v) {
        cpu_fail(c, E_INVALID,
                 "attention: %d query heads and %d KV heads of %d and %d elements do not match the "
                 "cache: %d KV heads of %d and %d",
                 o->n_heads, o->n_kv_heads, o->head_dim, o->head_dim_v, l->n_kv_heads, l->head_dim,
                 l->head_dim_v);
        return false;
    }
    j->group = o->n_heads / o->n_kv_heads;
    return init_layer(c, &j->k, &j->v, j->kv, layer);
}

/* Any number of threads takes (token, head) pairs. */
static void run_reference(void *arg, int thread, int n_threads)
{
    struct call *c = arg;
    int heads = c->j->opt->n_heads, begin, end;

    (void)n_threads;
    while (par_next(c->a->par, c->j->kv->n_tokens * heads, 4, &begin, &end))
        for (int i = begin; i < end; i++)
            attend_ref(c->j, i / heads, i % heads, thread_scratch(c->a, thread));
}

/* Tokens per tile: as many rows as the scratch memory holds, fewer if some threads would be idle. */
static int choose_tile_tokens(const struct call *c)
{
    int n = FLASH_ROWS / c->j->group > 1 ? FLASH_ROWS / c->j->group : 1;
    long long want = (long long)PER_THREAD * par_n(c->a->par);

    while (n * c->j->group > 32 && n > 1 &&
           (long long)c->j->kv->n_tokens / n * c->j->opt->n_kv_heads < want)
        n /= 2;
    return n;
}

/* Tokens of a tile are consecutive and of one sequence; its key range covers all of them and
 * starts at a block. */
static void cut_tiles(struct call *c)
{
    const struct kvview *kv = c->j->kv;
    int most = choose_tile_tokens(c);

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

/* Number of ranges the keys are split into: more than 1 if there are too few tiles and heads for
 * all threads, and the sequences are long. */
static int choose_splits(const struct call *c)
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

/* Piece i; its partial result goes to a->parts if the keys are split. */
static void run_flash_piece(const struct call *c, int i, float *scratch)
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

/* One query row of a split tile: the partial results, weighted by 2^(their maximum - the largest). */
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

/* Merges the splits of one tile and KV head. */
static void merge_tile(const struct call *c, int i)
{
    const struct tile *t = &c->tiles[c->n_tiles - 1 - i % c->n_tiles];
    const float *part = (const float *)c->a->parts.p + (size_t)i * c->n_splits * c->part_floats;

    for (int r = 0; r < t->n_tokens * c->j->group; r++) merge_row(c, t, part, r, i / c->n_tiles);
}

static void run_pieces(void *arg, int thread, int n_threads)
{
    const struct call *c = arg;
    int begin, end;

    (void)n_threads;
    while (par_next(c->a->par, c->n_pieces, 1, &begin, &end))
        run_flash_piece(c, begin, thread_scratch(c->a, thread));
}

static void run_merges(void *arg, int thread, int n_threads)
{
    const struct call *c = arg;
    int begin, end;

    (void)thread;
    (void)n_threads;
    while (par_next(c->a->par, c->n_pieces / c->n_splits, 1, &begin, &end)) merge_tile(c, begin);
}

/* Cuts the call into tiles and pieces and reserves memory for them. false: no memory. */
static bool plan_call(struct call *c)
{
    const struct attend_opt *o = c->j->opt;

    if (!grown_reserve(&c->a->tiles, (size_t)c->j->kv->n_tokens * sizeof *c->tiles)) return false;
    c->tiles = c->a->tiles.p;
    cut_tiles(c);
    c->n_splits = choose_splits(c);
    c->n_pieces = c->n_tiles * o->n_kv_heads * c->n_splits;
    c->part_floats = (flash_part_floats(c->max_rows, o->head_dim_v) + 15) & ~(size_t)15;
    if (c->n_splits > 1 &&
        !grown_reserve(&c->a->parts, (size_t)c->n_pieces * c->part_floats * sizeof(float)))
        return false;
    return reserve_scratch(c->a,
                           flash_scratch_floats(c->j->group > FLASH_ROWS ? c->j->group : FLASH_ROWS,
                                                o->head_dim, o->head_dim_v));
}

/* The work outweighs the cost of waking the team. */
static bool is_worth_sharing(const struct call *c)
{
    const struct attend_opt *o = c->j->opt;
    long long work = 0;

    for (int i = 0; i < c->n_tiles && work < WORTH_SHARING; i++)
        work += (long long)c->tiles[i].n_tokens * (c->tiles[i].key1 - c->tiles[i].key0) *
                o->n_heads * (o->head_dim + o->head_dim_v);
    return work >= WORTH_SHARING;
}

/* The largest attend_end of all tokens. */
static int find_furthest(const struct attend_job *j)
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

    if (kv->n_tokens == 0 || !init_job(cpu, &j, layer)) return;
    if (opt->bidirectional && !kv->seq_end) {
        cpu_fail(cpu, E_INVALID,
                 "attention: bidirectional attention needs the lengths of the sequences");
        return;
    }
    /* Keys that an indexer selects lie apart: they are read one by one. */
    bool flash = c.a->flash && !opt->keys;
    if (flash ? !plan_call(&c) : !reserve_scratch(c.a, (size_t)find_furthest(&j))) {
        cpu_fail(cpu, E_NOMEM, "attention: out of memory for %d tokens and %d positions",
                 kv->n_tokens, kv->max_pos + 1);
        return;
    }
    if (!flash) par_run_any(cpu->par, run_reference, &c);
    else if (c.n_splits > 1 || is_worth_sharing(&c)) par_run_any(cpu->par, run_pieces, &c);
    else
        for (int i = 0; i < c.n_pieces; i++) run_flash_piece(&c, i, thread_scratch(c.a, 0));
    if (c.n_splits > 1) par_run_any(cpu->par, run_merges, &c);
}
