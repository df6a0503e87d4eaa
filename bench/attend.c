/* attend.c - speed of attention on the CPU: GB/s of keys and values read by one token (decode), and
 * GMAC/s of a chunk of a prompt (prefill), at a depth of a sequence.
 *
 *     attend [-t threads] [-i isa] [-n depth] [-q heads] [-k KV heads] [-d head size] [-c tokens]
 *            [-l layers] [type ...]
 *
 * The types are those of the KV cache; without one F16, Q8_0 and F8_E4M3. Decode cycles over layers of
 * at least 128 MiB together, so that no cache holds them (-l 1: one layer, which the cache may hold).
 * Blocks lie in random order. The times are the best of several runs; with one thread they are its CPU
 * time, which other processes disturb less. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kernel/backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SET_BYTES = 128 << 20, MOST_LAYERS = 256, RUNS = 5, LEAST_MS = 200 };

struct bench {
    struct backend *be;
    int threads, depth, chunk, layers_wanted;
    struct attend_opt opt;
    struct kvlayer layers[MOST_LAYERS];
    struct kvview kv;
    int32_t *table, *seq, *pos;
    struct tensor q, out;
};

static uint64_t read_clock_ns(const struct bench *b)
{
    struct timespec t;

    if (b->threads != 1) return clock_ns();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A tensor of random numbers; data NULL: no memory. */
static struct tensor random_tensor(int rows, int cols)
{
    struct tensor t = tensor_f32(mem_array((size_t)rows * (size_t)cols, sizeof(float)), rows, cols);
    struct rng rng;

    rng_seed(&rng, 1);
    for (size_t i = 0; t.data && i < (size_t)rows * (size_t)cols; i++)
        ((float *)t.data)[i] = rng_normal(&rng);
    return t;
}

/* The blocks of one sequence, in random order. */
static void shuffle_blocks(struct bench *b, int n)
{
    struct rng rng;

    rng_seed(&rng, 2);
    for (int i = 0; i < n; i++) b->table[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int k = (int)(rng_u64(&rng) % (uint64_t)(i + 1));
        int32_t t = b->table[i];
        b->table[i] = b->table[k], b->table[k] = t;
    }
}

/* Tokens [from, to) of the sequence are the batch. */
static void set_batch(struct bench *b, int from, int to)
{
    b->kv.n_tokens = to - from, b->kv.max_pos = to - 1;
    for (int i = from; i < to; i++) b->seq[i - from] = 0, b->pos[i - from] = i;
    b->q.rows = b->out.rows = to - from;
}

/* Fills layers with random keys and values of a type. false: no memory. */
static bool fill_layers(struct bench *b, enum dtype type)
{
    uint64_t row = 0;
    int heads = b->opt.n_kv_heads, dim = b->opt.head_dim, blocks = (b->depth + KV_BLOCK) / KV_BLOCK;
    struct tensor x = random_tensor(KV_BLOCK, heads * dim);

    if (!x.data || !dtype_row_bytes(type, (uint64_t)dim, &row)) return false;
    size_t block = (size_t)row * KV_BLOCK * (size_t)heads, layer = block * (size_t)blocks;
    int n = (int)(SET_BYTES / (2 * layer)) + 1;
    n = b->layers_wanted ? b->layers_wanted : n;
    n = n > MOST_LAYERS ? MOST_LAYERS : n;
    b->kv.type = type, b->kv.n_layers = n;
    for (int i = 0; i < n; i++) {
        struct kvlayer *l = &b->layers[i];
        *l = (struct kvlayer){ .k = mem_aligned(layer),
                               .v = mem_aligned(layer),
                               .n_kv_heads = heads,
                               .head_dim = dim,
                               .head_dim_v = dim,
                               .k_block_bytes = block,
                               .v_block_bytes = block };
        if (!l->k || !l->v) return false;
        set_batch(b, 0, KV_BLOCK);
        b->be->kv_put(b->be, &b->kv, i, &x, &x);
        const char *first = (char *)l->k + (size_t)b->table[0] * block,
                   *first_v = (char *)l->v + (size_t)b->table[0] * block;
        for (int k = 1; k < blocks; k++) {
            memcpy((char *)l->k + (size_t)b->table[k] * block, first, block);
            memcpy((char *)l->v + (size_t)b->table[k] * block, first_v, block);
        }
    }
    mem_free(x.data);
    return true;
}

static void free_layers(struct bench *b, enum dtype type)
{
    uint64_t row = 0;
    size_t layer;

    dtype_row_bytes(type, (uint64_t)b->opt.head_dim, &row);
    layer = (size_t)row * KV_BLOCK * (size_t)b->opt.n_kv_heads *
            (size_t)((b->depth + KV_BLOCK) / KV_BLOCK);
    for (int i = 0; i < b->kv.n_layers; i++) {
        if (b->layers[i].k) mem_free_aligned(b->layers[i].k, layer);
        if (b->layers[i].v) mem_free_aligned(b->layers[i].v, layer);
        b->layers[i].k = b->layers[i].v = NULL;
    }
}

/* Milliseconds of one call, for each of n layers in turn: the best run. */
static double measure(struct bench *b, int n)
{
    double best = 1e30;
    uint64_t start = clock_ns();

    for (int run = 0; run < RUNS || clock_ms_since(start) < LEAST_MS; run++) {
        uint64_t t = read_clock_ns(b);
        for (int i = 0; i < n; i++) b->be->attend(b->be, &b->out, &b->q, &b->kv, i, &b->opt);
        double ms = (double)(read_clock_ns(b) - t) / 1e6 / n;
        best = ms < best ? ms : best;
    }
    return best;
}

static bool bench_type(struct bench *b, enum dtype type)
{
    uint64_t row = 0;
    bool ok = fill_layers(b, type);

    if (ok) {
        dtype_row_bytes(type, (uint64_t)b->opt.head_dim, &row);
        double bytes = 2.0 * (double)row * b->opt.n_kv_heads * (b->depth + 1);
        double macs =
            2.0 * b->opt.head_dim * b->opt.n_heads * b->chunk * (b->depth + 1 - b->chunk / 2.0);
        set_batch(b, b->depth, b->depth + 1);
        double one = measure(b, b->kv.n_layers);
        set_batch(b, b->depth + 1 - b->chunk, b->depth + 1);
        double many = measure(b, 1);
        printf("%-8s %8.3f ms %7.1f GB/s %10.2f ms %7.0f GMAC/s\n", dtype_name((int)type), one,
               bytes / one / 1e6, many, macs / many / 1e6);
        fflush(stdout);
    }
    free_layers(b, type);
    return ok;
}

static int usage(void)
{
    fprintf(stderr, "usage: attend [-t threads] [-i isa] [-n depth] [-q heads] [-k KV heads]\n"
                    "              [-d head size] [-c tokens] [-l layers] [type ...]\n");
    return 2;
}

/* Arrays of the batch and of the block table. */
static int open_batch(struct bench *b, struct err *e)
{
    int blocks = (b->depth + KV_BLOCK) / KV_BLOCK, most = b->chunk > KV_BLOCK ? b->chunk : KV_BLOCK;

    b->table = mem_array((size_t)blocks, sizeof *b->table);
    b->seq = mem_array((size_t)most, sizeof *b->seq);
    b->pos = mem_array((size_t)most, sizeof *b->pos);
    b->q = random_tensor(most, b->opt.n_heads * b->opt.head_dim);
    b->out = random_tensor(most, b->opt.n_heads * b->opt.head_dim);
    if (!b->table || !b->seq || !b->pos || !b->q.data || !b->out.data)
        return err_nomem(e, "the batch");
    shuffle_blocks(b, blocks);
    b->kv = (struct kvview){ .layers = b->layers,
                             .table = b->table,
                             .table_stride = blocks,
                             .seq = b->seq,
                             .pos = b->pos,
                             .n_seqs = 1 };
    return OK;
}

int main(int argc, char **argv)
{
    static const enum dtype usual[] = { DT_F16, DT_Q8_0, DT_F8_E4M3 };
    struct bench *b = mem_new(struct bench);
    struct backend_opt opt = { 0 };
    struct err e = { 0 };
    int c, rc = OK;

    if (!b) return 1;
    b->depth = 16383, b->chunk = 256;
    b->opt = (struct attend_opt){ .n_heads = 14, .n_kv_heads = 2, .head_dim = 64 };
    while ((c = getopt(argc, argv, "t:i:n:q:k:d:c:l:")) != -1) {
        if (c == 't') opt.n_threads = atoi(optarg);
        else if (c == 'i') opt.isa = optarg;
        else if (c == 'n') b->depth = atoi(optarg);
        else if (c == 'q') b->opt.n_heads = atoi(optarg);
        else if (c == 'k') b->opt.n_kv_heads = atoi(optarg);
        else if (c == 'd') b->opt.head_dim = atoi(optarg);
        else if (c == 'l') b->layers_wanted = atoi(optarg);
        else if (c == 'c') b->chunk = atoi(optarg);
        else return usage();
    }
    if (b->depth < 1 || b->chunk < 1 || b->opt.n_kv_heads < 1 || b->opt.head_dim < 1 ||
        b->opt.n_heads < b->opt.n_kv_heads || b->chunk > b->depth + 1)
        return usage();
    b->threads = opt.n_threads;
    b->opt.head_dim_v = b->opt.head_dim, b->opt.scale = 1 / sqrtf((float)b->opt.head_dim);
    if ((rc = backend_open(&b->be, &opt, &e)) != OK || (rc = open_batch(b, &e)) != OK) goto out;
    printf("depth %d, %d query heads and %d KV heads of %d: decode, and prefill of %d tokens\n",
           b->depth, b->opt.n_heads, b->opt.n_kv_heads, b->opt.head_dim, b->chunk);
    for (size_t i = 0; optind == argc && i < sizeof usual / sizeof *usual && rc == OK; i++)
        if (!bench_type(b, usual[i])) rc = err_nomem(&e, "keys and values");
    for (int i = optind; i < argc && rc == OK; i++)
        if (!bench_type(b, dtype_by_name(str_c(argv[i])))) rc = err_nomem(&e, "keys and values");
    if (rc == OK) rc = b->be->sync(b->be, &e);
out:
    if (rc != OK) fprintf(stderr, "attend: %s\n", e.msg);
    backend_close(b->be);
    mem_free(b->table), mem_free(b->seq), mem_free(b->pos);
    mem_free(b->q.data), mem_free(b->out.data);
    mem_free(b);
    return rc == OK ? 0 : 1;
}
