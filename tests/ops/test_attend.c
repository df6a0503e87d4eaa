/* Attention on the CPU: the kernels of every instruction set against attend_ref, and attend_ref
 * against plain loops in double.
 *
 * Keys, values and queries are random. Rows of the KV cache that no token was written to are
 * NaN, so a kernel that reads too far yields NaN. Reads no files. */
#include "support.h"

#include "base/mem.h"
#include "base/rng.h"
#include "kernel/backend.h"
#include "kernel/cpu/attend.h"
#include "kernel/cpu/cpu.h"
#include "kernel/cpu/flash.h"

#include <malloc.h>
#include <math.h>
#include <stdio.h>

enum { MAX_SEQS = 8, MAX_TOKENS = 700 };

static struct rng rng;
static struct backend *ref;
static bool values_in_keys; /* latent attention: a value is the first numbers of its key */
static const enum dtype types[] = { DT_F16, DT_F32, DT_BF16, DT_Q8_0, DT_F8_E4M3 };
enum { N_TYPES = sizeof types / sizeof *types };
static const char *const sets[] = { "avx2", "avx512", "amx", "neon" };

/* The KV cache of one layer with a few sequences, a batch of tokens over it, and their queries. */
struct world {
    struct attend_opt opt;
    struct kvlayer layer;
    struct kvview kv;
    int n_seqs, len[MAX_SEQS], n_blocks;
    int32_t *table, seq[MAX_TOKENS], pos[MAX_TOKENS];
    float *k, *v; /* keys and values of all tokens of all sequences, unrounded */
    struct tensor q, want, got;
    float sinks[128], slopes[128];
};

static struct tensor tensor_new(int rows, int cols, size_t gap, float scale)
{
    struct tensor t = { DT_F32, rows, cols, (size_t)cols + gap, NULL };
    size_t n = (size_t)rows * t.stride;

    t.data = mem_array(n, sizeof(float));
    for (size_t i = 0; i < n; i++) ((float *)t.data)[i] = rng_normal(&rng) * scale;
    return t;
}

static void sync_backend(struct backend *be)
{
    struct err e = { 0 };
    if (be->sync(be, &e) != OK) fail_msg("%s", e.msg);
}

/* Writes the keys and values of all tokens of all sequences into the KV cache, `chunk` tokens
 * per kv_put. */
static void write_kv(struct world *w, struct backend *be, struct tensor *k, struct tensor *v,
                     int chunk)
{
    for (int s = 0, row = 0; s < w->n_seqs; row += w->len[s++]) {
        for (int p = 0; p < w->len[s]; p += chunk) {
            int n = w->len[s] - p < chunk ? w->len[s] - p : chunk;
            struct tensor kk = *k, vv = *v;
            kk.data = tensor_row(k, row + p), kk.rows = n;
            vv.data = tensor_row(v, row + p), vv.rows = n;
            for (int i = 0; i < n; i++) w->seq[i] = s, w->pos[i] = p + i;
            w->kv.n_tokens = n, w->kv.max_pos = p + n - 1;
            be->kv_put(be, &w->kv, 0, &kk, &vv);
        }
    }
    sync_backend(be);
}

/* Assigns blocks to the sequences in random order; unused entries of the table are -1. */
static void make_block_table(struct world *w, int stride)
{
    int32_t *ids = mem_array((size_t)w->n_blocks, sizeof *ids);

    for (int i = 0; i < w->n_blocks; i++) ids[i] = i;
    for (int i = w->n_blocks - 1; i > 0; i--) {
        int j = (int)(rng_u64(&rng) % (uint64_t)(i + 1));
        int32_t t = ids[i];
        ids[i] = ids[j], ids[j] = t;
    }
    w->table = mem_array((size_t)(w->n_seqs * stride), sizeof *w->table);
    for (int i = 0, next = 0; i < w->n_seqs; i++)
        for (int b = 0; b < stride; b++)
            w->table[i * stride + b] = b < (w->len[i] + KV_BLOCK - 1) / KV_BLOCK ? ids[next++] : -1;
    mem_free(ids);
}

static void world_open(struct world *w, struct attend_opt opt, enum dtype type, const int *lens)
{
    uint64_t kb = 0, vb = 0;
    int total = 0, stride = 1;

    *w = (struct world){ .opt = opt };
    if (w->opt.scale == 0) w->opt.scale = 1 / sqrtf((float)opt.head_dim);
    for (; lens[w->n_seqs]; w->n_seqs++) {
        int n = w->len[w->n_seqs] = lens[w->n_seqs], blocks = (n + KV_BLOCK - 1) / KV_BLOCK;
        total += n, w->n_blocks += blocks;
        stride = blocks > stride ? blocks : stride;
    }
    make_block_table(w, stride);
    assert_true(dtype_row_bytes(type, (uint64_t)opt.head_dim, &kb) &&
                dtype_row_bytes(type, (uint64_t)opt.head_dim_v, &vb));
    kb *= KV_BLOCK * (uint64_t)opt.n_kv_heads, vb *= KV_BLOCK * (uint64_t)opt.n_kv_heads;
    w->layer = (struct kvlayer){ mem_alloc(kb * (uint64_t)w->n_blocks),
                                 mem_alloc(vb * (uint64_t)w->n_blocks),
                                 opt.n_kv_heads,
                                 opt.head_dim,
                                 opt.head_dim_v,
                                 kb,
                                 vb,
                                 values_in_keys,
                                 NULL,
                                 0,
                                 0 };
    /* NaN in every type except Q8_0, where the scale is NaN and the quants are -1. */
    memset(w->layer.k, 0xff, kb * (uint64_t)w->n_blocks);
    memset(w->layer.v, 0xff, vb * (uint64_t)w->n_blocks);
    w->kv = (struct kvview){ .type = type,
                             .layers = &w->layer,
                             .n_layers = 1,
                             .table = w->table,
                             .table_stride = stride,
                             .seq = w->seq,
                             .pos = w->pos,
                             .n_seqs = w->n_seqs,
                             .seq_end = w->len };
    for (int i = 0; i < opt.n_heads; i++)
        w->sinks[i] = rng_normal(&rng), w->slopes[i] = 0.02f * (float)(i + 1);
    struct tensor k = tensor_new(total, opt.n_kv_heads * opt.head_dim, 3, 1.5f);
    struct tensor v = tensor_new(total, opt.n_kv_heads * opt.head_dim_v, 3, 1);
    write_kv(w, ref, &k, &v, 64);
    w->k = k.data, w->v = v.data;
    w->kv.n_tokens = 0;
}

/* Adds tokens [from, to) of a sequence to the batch. */
static void batch_add(struct world *w, int seq, int from, int to)
{
    for (int p = from; p < to; p++, w->kv.n_tokens++) {
        w->seq[w->kv.n_tokens] = seq, w->pos[w->kv.n_tokens] = p;
        w->kv.max_pos = p > w->kv.max_pos || !w->kv.n_tokens ? p : w->kv.max_pos;
    }
}

/* Makes random queries for the batch and computes the expected output with the reference
 * backend. */
static void finish_batch(struct world *w)
{
    w->opt.sinks = w->opt.sinks ? w->sinks : NULL;
    w->opt.slopes = w->opt.slopes ? w->slopes : NULL;
    w->q = tensor_new(w->kv.n_tokens, w->opt.n_heads * w->opt.head_dim, 7, 1.5f);
    w->want = tensor_new(w->kv.n_tokens, w->opt.n_heads * w->opt.head_dim_v, 5, 1);
    w->got = w->want;
    w->got.data = mem_dup(w->want.data, (size_t)w->want.rows * w->want.stride * sizeof(float));
    ref->attend(ref, &w->want, &w->q, &w->kv, 0, &w->opt);
    sync_backend(ref);
}

static void world_close(struct world *w)
{
    mem_free(w->table), mem_free(w->layer.k), mem_free(w->layer.v), mem_free(w->k), mem_free(w->v);
    mem_free(w->q.data), mem_free(w->want.data), mem_free(w->got.data);
}

/* The largest difference divided by the largest value. The gaps between rows are compared too:
 * no kernel may write there. */
static double relative_error(const struct tensor *a, const struct tensor *b)
{
    const float *x = a->data, *y = b->data;
    double diff = 0, size = 0;

    for (size_t i = 0; i < (size_t)a->rows * a->stride; i++) {
        if (!isfinite(x[i])) return INFINITY;
        diff = fmax(diff, fabs((double)x[i] - y[i]));
        size = fmax(size, fabs((double)y[i]));
    }
    return diff / size;
}

/* A CPU backend with the attention kernels of one instruction set; NULL: the reference kernels. */
static struct backend *open_backend(const char *set, int threads)
{
    struct backend *be = NULL;
    struct err e = { 0 };

    if (backend_open(&be, &(struct backend_opt){ .n_threads = threads, .reference = !set }, &e) !=
        OK)
        fail_msg("%s", e.msg);
    if (set) {
        struct cpu *c = cpu_of(be);
        attn_close(c->attn);
        c->vec = vec_by_name(set) ? vec_by_name(set) : vec_best();
        assert_int_equal(attn_open(&c->attn, c->par, flash_by_name(set), NULL), OK);
    }
    return be;
}

/* The allowed relative error. AVX2 and AVX-512 round the rows of many tokens to 16-bit integers,
 * unless the KV cache is F32. AMX tiles multiply in bf16, and leave few rows to AVX-512. */
static double allowed_error(struct backend *be, enum dtype type)
{
    const struct flash *amx = flash_by_name("amx"), *neon = flash_by_name("neon");
    const struct flash *f = attn_flash(cpu_of(be)->attn);

    if (type != DT_F32 && f != neon) return 5e-4;
    return amx && f == amx ? 1e-4 : 6e-6;
}

static void compare_with_reference(struct world *w, struct backend *be, const char *what)
{
    be->attend(be, &w->got, &w->q, &w->kv, 0, &w->opt);
    sync_backend(be);
    double d = relative_error(&w->got, &w->want);
    if (!(d < allowed_error(be, w->kv.type)))
        fail_msg("%s, %s: relative error %g", what, dtype_name(w->kv.type), d);
    memcpy(w->got.data, w->want.data, (size_t)w->want.rows * w->want.stride * sizeof(float));
}

#define EACH_SET(set)                                                \
    for (size_t set_ = 0; set_ < sizeof sets / sizeof *sets; set_++) \
        for (const char *set = flash_by_name(sets[set_]) ? sets[set_] : NULL; set; set = NULL)

/* Compares five batches: decode of one sequence, decode of all sequences, a chunk of a prompt, a
 * whole prompt, and all of these mixed. */
static void compare_batches(struct attend_opt opt, enum dtype type)
{
    static const int lens[] = { 107, 1, 45, 70, 16, 0 };
    char what[160];

    for (int shape = 0; shape < 5; shape++) {
        struct world w;
        world_open(&w, opt, type, lens);
        if (shape == 0) batch_add(&w, 0, 106, 107);
        if (shape == 1)
            for (int s = 4; s >= 0; s--) batch_add(&w, s, lens[s] - 1, lens[s]);
        if (shape == 2) batch_add(&w, 0, 50, 90);
        if (shape == 3) batch_add(&w, 0, 0, 107);
        if (shape == 4) {
            batch_add(&w, 2, 30, 45), batch_add(&w, 1, 0, 1), batch_add(&w, 0, 80, 107);
            batch_add(&w, 3, 7, 9), batch_add(&w, 4, 15, 16), batch_add(&w, 3, 9, 12);
        }
        finish_batch(&w);
        EACH_SET(set) for (int threads = 1; threads <= 3; threads++)
        {
            struct backend *be = open_backend(set, threads);
            snprintf(what, sizeof what, "%s, %d threads, shape %d, heads %d/%d of %d/%d, window %d",
                     set, threads, shape, opt.n_heads, opt.n_kv_heads, opt.head_dim, opt.head_dim_v,
                     opt.window);
            compare_with_reference(&w, be, what);
            backend_close(be);
        }
        world_close(&w);
    }
}

static void attention_agrees_for_all_kv_types_and_head_sizes(void **state)
{
    static const int dims[][2] = { { 64, 64 }, { 16, 16 },   { 24, 24 },   { 32, 32 },
                                   { 80, 80 }, { 96, 96 },   { 128, 128 }, { 256, 256 },
                                   { 5, 7 },   { 192, 128 }, { 33, 65 } };
    (void)state;

    for (int t = 0; t < N_TYPES; t++)
        for (int i = t % THIN; i < 11; i += THIN) {
            struct attend_opt opt = {
                .n_heads = 4, .n_kv_heads = 2, .head_dim = dims[i][0], .head_dim_v = dims[i][1]
            };
            if (types[t] == DT_Q8_0 && (dims[i][0] % 32 || dims[i][1] % 32)) continue;
            compare_batches(opt, types[t]);
        }
}

static void attention_agrees_for_all_ratios_of_heads_to_kv_heads(void **state)
{
    static const int heads[][2] = { { 1, 1 },  { 3, 3 }, { 2, 1 }, { 6, 2 },  { 5, 1 },
                                    { 12, 2 }, { 7, 1 }, { 8, 1 }, { 16, 1 }, { 71, 1 } };
    (void)state;

    for (int i = 0; i < 10; i++)
        compare_batches((struct attend_opt){ .n_heads = heads[i][0],
                                             .n_kv_heads = heads[i][1],
                                             .head_dim = 32,
                                             .head_dim_v = 32 },
                        DT_F16);
}

/* Groups of 3 query heads and more multiply 4 elements of several keys at a time. */
static void grouped_attention_agrees_for_all_kv_types_and_head_sizes(void **state)
{
    static const int dims[][2] = { { 64, 64 }, { 80, 96 }, { 128, 128 }, { 5, 7 }, { 33, 65 } };
    static const int groups[] = { 3, 4, 5, 7, 8 };
    (void)state;

    for (int t = 0; t < N_TYPES; t++)
        for (int i = t % THIN; i < 5; i += THIN) {
            struct attend_opt opt = { .n_heads = groups[(i + t) % 5],
                                      .n_kv_heads = 1,
                                      .head_dim = dims[i][0],
                                      .head_dim_v = dims[i][1] };
            if (types[t] == DT_Q8_0 && (dims[i][0] % 32 || dims[i][1] % 32)) continue;
            compare_batches(opt, types[t]);
        }
}

static void attention_agrees_with_windows_soft_caps_sinks_and_slopes(void **state)
{
    static const float yes[1];
    (void)state;

    for (int i = 1; i < 32; i++) {
        struct attend_opt opt = {
            .n_heads = 4, .n_kv_heads = 2, .head_dim = 32, .head_dim_v = 32, .scale = 0.3f
        };
        opt.window = i & 1 ? 1 + i * 3 : i & 16 ? 1 : 0;
        opt.softcap = i & 2 ? 5 : 0;
        opt.sinks = i & 4 ? yes : NULL;
        opt.slopes = i & 8 ? yes : NULL;
        compare_batches(opt, types[i % N_TYPES]);
    }
}

/* The largest error of the reference output against softmax attention written as plain loops in
 * double over the unrounded keys and values. */
static double error_against_plain_loops(const struct world *w)
{
    const struct attend_opt *o = &w->opt;
    int kd = o->n_kv_heads * o->head_dim + 3, vd = o->n_kv_heads * o->head_dim_v + 3;
    double worst = 0;

    for (int t = 0; t < w->kv.n_tokens; t++)
        for (int h = 0; h < o->n_heads; h++) {
            int row0 = 0, head = h / (o->n_heads / o->n_kv_heads), len = w->len[w->seq[t]];
            double sum = 0, out[64] = { 0 };
            for (int s = 0; s < w->seq[t]; s++) row0 += w->len[s];
            for (int p = 0; p < len; p++) {
                const float *k = w->k + (size_t)(row0 + p) * (size_t)kd + head * o->head_dim, *v;
                const float *q = tensor_row(&w->q, t) + h * o->head_dim;
                double s = 0;
                int away = p > w->pos[t] ? p - w->pos[t] : w->pos[t] - p;
                if (o->bidirectional ? o->window && away > o->window / 2
                                     : p > w->pos[t] || (o->window && away >= o->window))
                    continue;
                v = values_in_keys ? k
                                   : w->v + (size_t)(row0 + p) * (size_t)vd + head * o->head_dim_v;
                for (int i = 0; i < o->head_dim; i++) s += (double)q[i] * k[i];
                s = exp(s * o->scale);
                sum += s;
                for (int i = 0; i < o->head_dim_v; i++) out[i] += s * v[i];
            }
            for (int i = 0; i < o->head_dim_v; i++)
                worst = fmax(worst, fabs(out[i] / sum -
                                         (double)tensor_row(&w->want, t)[h * o->head_dim_v + i]));
        }
    return worst;
}

static void check_reference_against_plain_loops(struct attend_opt opt)
{
    static const int lens[] = { 40, 1, 17, 0 };
    struct world w;

    world_open(&w, opt, DT_F32, lens);
    batch_add(&w, 2, 0, 17), batch_add(&w, 0, 11, 40), batch_add(&w, 1, 0, 1);
    finish_batch(&w);
    assert_true(error_against_plain_loops(&w) < 1e-5);
    world_close(&w);
}

static void bidirectional_attention_sees_later_tokens(void **state)
{
    (void)state;

    for (int i = 0; i < 5; i++) {
        struct attend_opt opt = { .n_heads = 4,
                                  .n_kv_heads = 2,
                                  .head_dim = 32,
                                  .head_dim_v = 32,
                                  .bidirectional = true,
                                  .window = i * i * 7 };
        check_reference_against_plain_loops(opt);
        compare_batches(opt, types[i % 4]);
    }
}

static void latent_attention_takes_values_from_keys(void **state)
{
    static const int dims[][3] = { { 48, 32, 4 }, { 40, 24, 3 }, { 576, 512, 16 }, { 35, 3, 1 } };
    (void)state;

    values_in_keys = true;
    for (int i = 0; i < 4; i++)
        for (int t = 0; t < 4; t++) {
            struct attend_opt opt = { .n_heads = dims[i][2],
                                      .n_kv_heads = 1,
                                      .head_dim = dims[i][0],
                                      .head_dim_v = dims[i][1] };
            if (types[t] == DT_Q8_0 && (dims[i][0] % 32 || dims[i][1] % 32)) continue;
            if (opt.head_dim_v <= 64) check_reference_against_plain_loops(opt);
            compare_batches(opt, types[t]);
        }
    values_in_keys = false;
}

static void attention_over_long_contexts_is_split_among_threads(void **state)
{
    static const int lens[] = { 3001, 500, 0 };
    static const float yes[1];
    (void)state;

    for (int sinks = 0; sinks < 2; sinks++)
        for (int window = 0; window < 2; window++) {
            struct world w;
            world_open(&w,
                       (struct attend_opt){ .n_heads = 2,
                                            .n_kv_heads = 1,
                                            .head_dim = 64,
                                            .head_dim_v = 48,
                                            .sinks = sinks ? yes : NULL,
                                            .window = window * 1500 },
                       DT_F16, lens);
            batch_add(&w, 0, 2997, 3001);
            batch_add(&w, 1, 499, 500);
            finish_batch(&w);
            EACH_SET(set) for (int threads = 1; threads <= 3; threads++)
            {
                struct backend *be = open_backend(set, threads);
                compare_with_reference(&w, be, "split");
                backend_close(be);
            }
            world_close(&w);
        }
}

/* Keys and values are written by the backend under test, in chunks of 300, 64, 17 and 1 tokens. */
static void attention_is_independent_of_the_chunk_size_of_prefill(void **state)
{
    static const int lens[] = { 300, 0 }, chunks[] = { 300, 64, 17, 1 };
    (void)state;

    EACH_SET(set) for (int t = 0; t < N_TYPES; t++)
    {
        struct world w;
        struct backend *be = open_backend(set, 2);
        world_open(
            &w,
            (struct attend_opt){ .n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .head_dim_v = 64 },
            types[t], lens);
        struct tensor k = { DT_F32, 300, 128, 131, w.k }, v = { DT_F32, 300, 128, 131, w.v };
        write_kv(&w, be, &k, &v, 300);
        w.kv.n_tokens = 0;
        batch_add(&w, 0, 0, 300);
        finish_batch(&w);
        for (int c = 0; c < 4; c++) {
            memset(w.layer.k, 0xff, w.layer.k_block_bytes * (size_t)w.n_blocks);
            memset(w.layer.v, 0xff, w.layer.v_block_bytes * (size_t)w.n_blocks);
            for (int p = 0; p < 300; p += chunks[c]) {
                int n = 300 - p < chunks[c] ? 300 - p : chunks[c];
                struct tensor kk = k, vv = v, qq = w.q, out = w.got;
                kk.data = tensor_row(&k, p), vv.data = tensor_row(&v, p);
                qq.data = tensor_row(&w.q, p), out.data = tensor_row(&w.got, p);
                kk.rows = vv.rows = qq.rows = out.rows = n;
                w.kv.n_tokens = 0;
                batch_add(&w, 0, p, p + n);
                be->kv_put(be, &w.kv, 0, &kk, &vv);
                be->attend(be, &out, &qq, &w.kv, 0, &w.opt);
            }
            sync_backend(be);
            assert_true(relative_error(&w.got, &w.want) < allowed_error(be, w.kv.type));
        }
        world_close(&w);
        backend_close(be);
    }
}

/* Rows at the limits of 16-bit products: parallel queries and keys, a single large element, rows of
 * very different size. */
static float limit_row(int kind, int row, int col)
{
    if (kind == 0) return 3;
    if (kind == 1) return col == 0 ? 8 : 0;
    if (kind == 2) return row % 2 ? -2 : 2;
    return (row % 3 ? 1e-3f : 30) * (float)(col % 5 - 2);
}

static void fill_rows(struct tensor *t, int kind, int dim)
{
    for (int r = 0; r < t->rows; r++)
        for (int i = 0; i < t->cols; i++) tensor_row(t, r)[i] = limit_row(kind, r, i % dim);
}

static void attention_of_extreme_rows_does_not_overflow(void **state)
{
    static const int lens[] = { 150, 0 }, dims[] = { 64, 7, 256 };
    (void)state;

    for (int i = 0; i < 3 * 4 * 4; i++) {
        int dim = dims[i % 3], cols = 2 * dim, kind = i / 3 % 4;
        struct world w;
        world_open(&w,
                   (struct attend_opt){
                       .n_heads = 6, .n_kv_heads = 2, .head_dim = dim, .head_dim_v = dim },
                   DT_F16, lens);
        struct tensor k = { DT_F32, 150, cols, (size_t)cols + 3, w.k }, v = k;
        v.data = w.v;
        fill_rows(&k, kind, dim), fill_rows(&v, i / 12, dim);
        write_kv(&w, ref, &k, &v, 64);
        w.kv.n_tokens = 0;
        batch_add(&w, 0, 0, 150);
        finish_batch(&w);
        fill_rows(&w.q, kind, dim);
        ref->attend(ref, &w.want, &w.q, &w.kv, 0, &w.opt);
        sync_backend(ref);
        EACH_SET(set)
        {
            struct backend *be = open_backend(set, 2);
            compare_with_reference(&w, be, "extreme rows");
            backend_close(be);
        }
        world_close(&w);
    }
}

/* F8 E4M3 has three mantissa bits: each number is off by at most 1/16, and an average of many
 * numbers by less. */
static void an_f8_kv_cache_stays_close_to_f16(void **state)
{
    static const int lens[] = { 200, 0 };
    struct attend_opt opt = { .n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .head_dim_v = 64 };
    struct world w[2];
    double diff = 0, size = 0;
    (void)state;

    for (int i = 0; i < 2; i++) {
        rng_seed(&rng, 11);
        world_open(&w[i], opt, i ? DT_F8_E4M3 : DT_F16, lens);
        batch_add(&w[i], 0, 150, 200);
        finish_batch(&w[i]);
    }
    assert_int_equal(2 * w[1].layer.k_block_bytes, w[0].layer.k_block_bytes);
    const float *a = w[0].want.data, *b = w[1].want.data;
    for (size_t i = 0; i < (size_t)w[0].want.rows * w[0].want.stride; i++) {
        diff += (double)(a[i] - b[i]) * (double)(a[i] - b[i]);
        size += (double)a[i] * (double)a[i];
    }
    assert_true(sqrt(diff / size) < 0.06 && diff > 0);
    for (int i = 0; i < 2; i++) world_close(&w[i]);
}

static size_t heap_in_use(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static void attention_allocates_nothing_after_the_first_step(void **state)
{
    static const int lens[] = { 300, 200, 0 };
    struct world w;
    (void)state;

    EACH_SET(set)
    {
        struct backend *be = open_backend(set, 2);
        world_open(
            &w,
            (struct attend_opt){ .n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .head_dim_v = 64 },
            DT_F16, lens);
        batch_add(&w, 0, 0, 300), batch_add(&w, 1, 199, 200);
        finish_batch(&w);
        compare_with_reference(&w, be, "first");
        size_t before = heap_in_use();
        for (int i = 0; i < 10; i++) be->attend(be, &w.got, &w.q, &w.kv, 0, &w.opt);
        assert_int_equal(heap_in_use(), before);
        sync_backend(be);
        world_close(&w);
        backend_close(be);
    }
}

static void inconsistent_head_counts_and_kv_types_are_refused(void **state)
{
    static const int lens[] = { 20, 0 };
    struct world w;
    struct backend *be = open_backend(flash_best() ? flash_best()->name : NULL, 1);
    struct err e = { 0 };
    (void)state;

    world_open(
        &w, (struct attend_opt){ .n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .head_dim_v = 64 },
        DT_F16, lens);
    batch_add(&w, 0, 0, 20);
    finish_batch(&w);
    w.opt.n_heads = 5;
    be->attend(be, &w.got, &w.q, &w.kv, 0, &w.opt);
    assert_int_equal(be->sync(be, &e), E_INVALID);
    w.opt.n_heads = 4;
    w.kv.type = DT_Q4_0;
    be->attend(be, &w.got, &w.q, &w.kv, 0, &w.opt);
    assert_int_equal(be->sync(be, &e), E_UNSUPPORTED);
    world_close(&w);
    backend_close(be);
}

static int setup(void **state)
{
    (void)state;
    rng_seed(&rng, 7);
    ref = open_backend(NULL, 2);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    backend_close(ref);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_agrees_for_all_kv_types_and_head_sizes),
        cmocka_unit_test(attention_agrees_for_all_ratios_of_heads_to_kv_heads),
        cmocka_unit_test(grouped_attention_agrees_for_all_kv_types_and_head_sizes),
        cmocka_unit_test(attention_agrees_with_windows_soft_caps_sinks_and_slopes),
        cmocka_unit_test(bidirectional_attention_sees_later_tokens),
        cmocka_unit_test(latent_attention_takes_values_from_keys),
        cmocka_unit_test(attention_over_long_contexts_is_split_among_threads),
        cmocka_unit_test(attention_is_independent_of_the_chunk_size_of_prefill),
        cmocka_unit_test(attention_of_extreme_rows_does_not_overflow),
        cmocka_unit_test(an_f8_kv_cache_stays_close_to_f16),
        cmocka_unit_test(attention_allocates_nothing_after_the_first_step),
        cmocka_unit_test(inconsistent_head_counts_and_kv_types_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
