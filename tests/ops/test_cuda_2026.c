/* Operations that single families of 2025 and 2026 need, on the GPU against the reference backend:
 * their activations, several residual streams, attention in chunks, over selected keys and over
 * compressed entries.
 *
 * Inputs are random. Skipped without a GPU. */
#include "cuda_cache.h"

static const int row_counts[] = { 1, 3, 70 }, col_counts[] = { 1, 5, 64, 257, 1000 };
static const enum dtype kv_types[] = { DT_F16, DT_F32, DT_BF16, DT_Q8_0, DT_F8_E4M3 };

static int below(int n) { return (int)(rng_u64(&rng) % (uint64_t)n); }

/* The same call on both backends, with the tensors of each. */
#define ON_BOTH(call)                          \
    for (int side = 0; side < 2; side++) {     \
        struct backend *be = side ? gpu : ref; \
        (call);                                \
        if (!side) sync_backend(be);           \
    }
#define SIDE(b) (side ? &(b).g : &(b).c)

/* ---- activations and factors ---- */

static void activations_of_single_families_agree(void **state)
{
    static const struct glu_clip clips[] = { { 1, 1.5f, 0 }, { 1.702f, 0.7f, 1 }, { 1, 10, 0 } };
    struct xielu_opt o = { 0.8f, 1.1f, 0.5f, -1e-6f };
    (void)state;
    need_gpu();
    EACH(r, row_counts) EACH(c, col_counts)
    {
        int rows = row_counts[r], cols = col_counts[c], gap = (int)c % 3;
        struct both x = both_new(rows, cols, gap, 2);
        ON_BOTH(be->xielu(be, SIDE(x), &o));
        assert_both_close("xielu", &x, 2e-6);
        both_free(&x);
        EACH(k, clips) for (int to = 0; to < 3; to++)
        {
            struct both gate = both_new(rows, cols, gap, 2), up = both_new(rows, cols, 2 - gap, 2),
                        out = both_new(rows, cols, 1, 1);
            struct both *into = to == 0 ? &out : to == 1 ? &gate : &up; /* in place, too */
            ON_BOTH(be->clipped_glu(be, SIDE(*into), SIDE(gate), SIDE(up), &clips[k]));
            assert_both_close("clipped glu", into, 2e-6);
            both_free(&gate), both_free(&up), both_free(&out);
        }
    }
}

static void queries_are_scaled_by_their_position(void **state)
{
    static const struct pos_scale_opt opts[] = { { 0.1f, 1, 8 },
                                                 { 0.1f, 0, 8192 },
                                                 { 0.3f, 1, 3.5f } };
    (void)state;
    need_gpu();
    EACH(r, row_counts) EACH(c, col_counts) EACH(k, opts)
    {
        struct both x = both_new(row_counts[r], col_counts[c], (int)k, 1);
        struct ints pos;
        for (int i = 0; i < row_counts[r];
             i++) /* also the last position before a step, and the step */
            pos.c[i] = i % 3 == 2 ? 8192 * (1 + i) - 2 + i % 2 : below(20000);
        ints_upload(&pos, row_counts[r]);
        ON_BOTH(be->scale_by_pos(be, SIDE(x), side ? pos.g : pos.c, &opts[k]));
        assert_both_close("scale by pos", &x, 1e-6);
        ints_free(&pos, row_counts[r]), both_free(&x);
    }
}

/* ---- several residual streams ---- */

static void several_streams_are_mixed_and_matched(void **state)
{
    static const int counts[] = { 1, 2, 4, 5 };
    (void)state;
    need_gpu();
    EACH(r, row_counts) EACH(c, col_counts) EACH(k, counts)
    {
        int rows = row_counts[r], wide = col_counts[c], n = counts[k], gap = (int)k % 3;
        struct both x = both_new(rows, n * wide, gap, 1), out = both_new(rows, n * wide, 3, 1),
                    coefs = both_new(rows, n * n, 1, 0.5f);
        struct both y = both_new(rows, wide, 2, 1), like = both_new(rows, wide + 3, 1, 3);
        int col = below(n * n);
        ON_BOTH(be->mix_streams(be, SIDE(out), SIDE(x), SIDE(coefs), n));
        assert_both_close("mix streams", &out, 1e-6);
        ON_BOTH(be->add_weighted(be, SIDE(y), SIDE(like), SIDE(coefs), col, 1));
        assert_both_close("add weighted", &y, 1e-6);
        ON_BOTH(be->match_rms(be, SIDE(y), SIDE(like), k % 2 ? 1e-5f : 100));
        assert_both_close("match rms", &y, 2e-6);
        ON_BOTH(be->sparsify(be, SIDE(like), k % 2 ? 1.6f : -0.3f));
        assert_both_close("sparsify", &like, 5e-6);
        both_free(&x), both_free(&out), both_free(&coefs), both_free(&y), both_free(&like);
    }
}

static void check_hyper(int rows, int wide, int n, int iters)
{
    struct hyper_opt o = { n, iters, 1e-6f };
    struct both base = both_new(1, (2 + n) * n, 0, 1), scale = both_new(1, 3, 0, 1);
    struct both w = both_new(rows, (2 + n) * n, 2, 2), head = both_new(rows, n, 1, 2);
    struct both s = both_new(rows, n * wide, 1, 1), y = both_new(rows, wide, 3, 1),
                x = both_new(rows, wide, 2, 1);

    ON_BOTH(be->hyper_weights(be, SIDE(head), SIDE(base)->data, SIDE(scale)->data, &o));
    assert_both_close("hyper weights of the head", &head, 2e-6);
    ON_BOTH(be->hyper_weights(be, SIDE(w), SIDE(base)->data, SIDE(scale)->data, &o));
    assert_both_close("hyper weights", &w, 5e-6);
    ON_BOTH(be->hyper_in(be, SIDE(x), SIDE(s), SIDE(w), n));
    assert_both_close("hyper in", &x, 5e-6);
    ON_BOTH(be->hyper_out(be, SIDE(s), SIDE(y), SIDE(w), n));
    assert_both_close("hyper out", &s, 5e-6);
    both_free(&base), both_free(&scale), both_free(&w), both_free(&head);
    both_free(&s), both_free(&y), both_free(&x);
}

static void hyper_connections_agree(void **state)
{
    static const int counts[] = { 1, 2, 4, 7, 64 };
    (void)state;
    need_gpu();
    EACH(r, row_counts) EACH(c, col_counts) EACH(k, counts)
    {
        if (!is_selected()) continue;
        check_hyper(row_counts[r], col_counts[c], counts[k], (int)(r + c) % 3 ? 20 : 1);
    }
}

/* ---- attention in chunks ---- */

static void attention_in_chunks_agrees(void **state)
{
    static const struct {
        int heads, kv, dim;
    } shapes[] = { { 4, 2, 16 }, { 8, 8, 64 }, { 16, 2, 128 }, { 5, 1, 40 }, { 2, 1, 256 } };
    static const int chunks[] = { 1, 7, 16, 64, 150, 1000 };
    (void)state;
    need_gpu();
    EACH(t, kv_types) EACH(s, shapes)
    {
        int dim = shapes[s].dim;
        struct cache k;
        if (kv_types[t] == DT_Q8_0 && dim % 32) continue;
        cache_open(&k, kv_types[t], shapes[s].kv, dim, dim);
        cache_fill(&k);
        EACH(c, chunks)
        {
            struct attend_opt o = { .n_heads = shapes[s].heads,
                                    .n_kv_heads = shapes[s].kv,
                                    .head_dim = dim,
                                    .head_dim_v = dim,
                                    .scale = 1 / sqrtf((float)dim),
                                    .window = c % 2 ? 5 : 0, /* the chunk counts */
                                    .chunk = chunks[c] };
            double e = compare_attend(&k, &o, &o);
            if (!(e < 5e-3))
                fail_msg("%s, chunks of %d: error %g", dtype_name((int)kv_types[t]), chunks[c], e);
        }
        cache_close(&k);
    }
}

/* ---- selected keys ---- */

enum { MOST_TOKENS = 301, WORDS = 14 };

/* Bits on the reference backend (c) and on the GPU (g). */
struct choice {
    struct key_choice c, g;
    size_t bytes;
};

static struct choice choice_new(int rows)
{
    struct choice x = { .bytes = (size_t)MOST_TOKENS * (size_t)rows * WORDS * sizeof(uint32_t) };

    x.c = (struct key_choice){ mem_alloc(x.bytes), WORDS, rows };
    memset(x.c.bits, 0x55, x.bytes);
    x.g = x.c;
    x.g.bits = device_copy(gpu, x.c.bits, x.bytes);
    return x;
}

static void choice_free(struct choice *x)
{
    gpu->free(gpu, x->g.bits, x->bytes, MEM_SCRATCH);
    mem_free(x->c.bits);
}

/* Random bits, few or many. The token's own position is always set: a softmax needs a key. */
static void fill_choice(struct choice *x, const struct kvview *kv, int rate, int few)
{
    for (int t = 0; t < kv->n_tokens; t++)
        for (int r = 0; r < x->c.n_heads; r++) {
            uint32_t *row = x->c.bits + ((size_t)t * (size_t)x->c.n_heads + (size_t)r) * WORDS;
            int own = rate ? (kv->pos[t] + 1) / rate : kv->pos[t];
            for (int i = 0; i < WORDS; i++)
                row[i] = (uint32_t)(rng_u64(&rng) & (few ? rng_u64(&rng) & rng_u64(&rng) : ~0u));
            row[own / 32] |= (uint32_t)1 << own % 32;
        }
    gpu->put(gpu, x->g.bits, x->c.bits, x->bytes);
}

/* A key or an entry may round to the next number of a type with few digits. */
static double tolerance_of(enum dtype t)
{
    return t == DT_F32 ? 5e-5 : t == DT_F8_E4M3 ? 2e-2 : 3e-3;
}

/* Of keys that are stored as they are: only types with a scale or few digits may round them another way. */
static double tolerance_of_stored(enum dtype t)
{
    return t == DT_Q8_0 || t == DT_F8_E4M3 ? tolerance_of(t) : 5e-5;
}

static void compare_selected(struct cache *k, struct attend_opt o, int rows)
{
    struct choice keys = choice_new(rows);
    struct attend_opt og = o;
    struct both sinks = both_new(1, o.n_heads, 0, 1), slopes = both_new(1, o.n_heads, 0, 0.05f);

    for (int shape = 0; shape < 6; shape++) {
        if (!is_selected()) continue;
        cache_make_batch(k, shape);
        fill_choice(&keys, &k->c, 0, shape % 2);
        o.keys = &keys.c, og.keys = &keys.g;
        o.sinks = shape % 3 ? sinks.c.data : NULL, og.sinks = shape % 3 ? sinks.g.data : NULL;
        o.slopes = shape % 4 ? NULL : slopes.c.data, og.slopes = shape % 4 ? NULL : slopes.g.data;
        o.softcap = og.softcap = shape % 2 ? 20 : 0;
        struct both q = both_new(k->c.n_tokens, o.n_heads * o.head_dim, 4, 1.5f);
        struct both out = both_new(k->c.n_tokens, o.n_heads * o.head_dim_v, 4, 1);
        ref->attend(ref, &out.c, &q.c, &k->c, 0, &o), gpu->attend(gpu, &out.g, &q.g, &k->g, 0, &og);
        assert_both_close("attention over selected keys", &out, tolerance_of_stored(k->c.type));
        both_free(&q), both_free(&out);
    }
    both_free(&sinks), both_free(&slopes);
    choice_free(&keys);
}

static void attention_over_selected_keys_agrees(void **state)
{
    static const struct {
        int heads, kv, dim, dim_v;
        bool latent;
    } shapes[] = { { 4, 1, 48, 32, true },  { 3, 1, 576, 512, true },  { 4, 2, 32, 32, false },
                   { 6, 3, 40, 17, false }, { 2, 1, 256, 256, false }, { 2, 2, 700, 1000, false } };
    (void)state;
    need_gpu();
    EACH(t, kv_types) EACH(s, shapes)
    {
        struct cache k;
        int dim = shapes[s].dim, dim_v = shapes[s].dim_v;
        if (kv_types[t] == DT_Q8_0 && (dim % 32 || dim_v % 32)) continue;
        cache_open_as(&k, kv_types[t], shapes[s].kv, dim, dim_v, shapes[s].latent);
        cache_fill(&k);
        for (int how = 0; how < 4; how++) {
            struct attend_opt o = { .n_heads = shapes[s].heads,
                                    .n_kv_heads = shapes[s].kv,
                                    .head_dim = dim,
                                    .head_dim_v = dim_v,
                                    .scale = 1 / sqrtf((float)dim),
                                    .window = how == 2 ? 25 : 0,
                                    .chunk = how == 3 ? 33 : 0 };
            compare_selected(&k, o, how == 1 ? shapes[s].kv : 1);
        }
        cache_close(&k);
    }
}

/* ---- the indexer ---- */

/* Index keys beside the cache. Every number is a multiple of 1/64, and so small that all sums are
 * exact in F32 in any order: equal scores are equal on both backends. Of each 32 numbers the first
 * is 127/64, which makes the scale of a Q8_0 block a power of two. */
static void index_open(struct cache *k, int dim)
{
    uint64_t row = 0;

    assert_true(dtype_row_bytes(k->c.type, (uint64_t)dim, &row));
    k->lc.index_dim = k->lg.index_dim = dim;
    k->lc.x_block_bytes = k->lg.x_block_bytes = (size_t)row * KV_BLOCK;
    k->lc.x = mem_alloc(k->lc.x_block_bytes * N_BLOCKS);
    memset(k->lc.x, 0xff, k->lc.x_block_bytes * N_BLOCKS);
    k->lg.x = device_copy(gpu, k->lc.x, k->lc.x_block_bytes * N_BLOCKS);
}

static void index_close(struct cache *k)
{
    gpu->free(gpu, k->lg.x, k->lg.x_block_bytes * N_BLOCKS, MEM_SCRATCH);
    mem_free(k->lc.x);
}

/* Halves from -2 to 2. */
static struct both both_of_halves(int rows, int cols, int gap, bool keys)
{
    struct both b = both_new(rows, cols, gap, 1);
    float *x = b.c.data;

    for (int r = 0; r < rows; r++)
        for (int i = 0; i < cols; i++)
            x[(size_t)r * b.c.stride + (size_t)i] =
                keys && i % 32 == 0 ? 127 / 64.f : (float)(below(7) - 3) / 2;
    gpu->put(gpu, b.g.data, x, n_of(&b.c) * sizeof *x);
    sync_backend(gpu);
    return b;
}

static void index_fill(struct cache *k)
{
    for (int s = 0; s < N_SEQS; s++)
        for (int p = 0; p < lens[s]; p += 100) {
            int to = p + 100 < lens[s] ? p + 100 : lens[s];
            struct both x = both_of_halves(to - p, k->lc.index_dim, 3, true);
            cache_add_tokens(k, s, p, to, true), cache_upload_batch(k);
            ref->index_put(ref, &k->c, 0, &x.c), gpu->index_put(gpu, &k->g, 0, &x.g);
            sync_backend(gpu);
            both_free(&x);
        }
}

static void compare_choice(struct cache *k, const struct index_opt *o, bool weighed)
{
    struct choice keys = choice_new(weighed ? 1 : o->n_heads);
    uint32_t *got = mem_alloc(keys.bytes);

    for (int shape = 0; shape < 6; shape++) {
        if (!is_selected()) continue;
        cache_make_batch(k, shape);
        struct both q = both_of_halves(k->c.n_tokens, o->n_heads * o->head_dim, 2, false),
                    w = both_of_halves(k->c.n_tokens, o->n_heads, 1, false);
        ref->index_choose(ref, &keys.c, &q.c, weighed ? &w.c : NULL, &k->c, 0, o);
        sync_backend(ref);
        gpu->index_choose(gpu, &keys.g, &q.g, weighed ? &w.g : NULL, &k->g, 0, o);
        gpu->get(gpu, got, keys.g.bits, keys.bytes);
        sync_backend(gpu);
        for (int i = 0; i < k->c.n_tokens * keys.c.n_heads * WORDS; i++)
            if (got[i] != keys.c.bits[i])
                fail_msg("%s, top %d, blocks of %d, rate %d, shape %d: word %d of row %d is %08x "
                         "instead of %08x",
                         dtype_name((int)k->c.type), o->top, o->block, o->rate, shape, i % WORDS,
                         i / WORDS, got[i], keys.c.bits[i]);
        both_free(&q), both_free(&w);
    }
    mem_free(got);
    choice_free(&keys);
}

static void the_same_keys_are_selected_as_on_the_cpu(void **state)
{
    static const struct index_opt opts[] = {
        { .n_heads = 3, .top = 1 },
        { .n_heads = 16, .top = 16 },
        { .n_heads = 2, .top = 37 },
        { .n_heads = 2, .top = 2, .block = 16, .local = 1 },
        { .n_heads = 3, .top = 3, .block = 7, .local = 2 },
        { .n_heads = 1, .top = 290 },
        { .n_heads = 5, .top = 4, .rate = 4 },
        { .n_heads = 5, .top = 1, .rate = 128 },
    };
    static const int dims[] = { 32, 64, 96, 128, 416 };
    (void)state;
    need_gpu();
    EACH(t, kv_types) EACH(d, dims)
    {
        struct cache k;
        cache_open(&k, kv_types[t], 1, 32, 32);
        index_open(&k, dims[d]);
        index_fill(&k);
        EACH(i, opts) for (int weighed = 0; weighed < 2; weighed++)
        {
            struct index_opt o = opts[i];
            o.head_dim = o.rate ? 32 : dims[d]; /* an entry is the beginning of its row */
            o.scale = 0.125f;
            compare_choice(&k, &o, weighed);
        }
        index_close(&k), cache_close(&k);
    }
}

/* ---- compressed attention ---- */

/* Fills a cache of rows with entries, and makes the entries as the windows end. */
static void fill_compressed(struct cache *k, const struct compress_opt *oc,
                            const struct compress_opt *og)
{
    for (int s = 0; s < N_SEQS; s++)
        for (int p = 0; p < lens[s]; p += 50) {
            int to = p + 50 < lens[s] ? p + 50 : lens[s];
            struct both kk = both_new(to - p, k->lc.head_dim, 3, 1.5f),
                        vv = both_new(to - p, k->lc.head_dim_v, 5, 1);
            cache_add_tokens(k, s, p, to, true), cache_upload_batch(k);
            ref->kv_put(ref, &k->c, 0, &kk.c, &vv.c), gpu->kv_put(gpu, &k->g, 0, &kk.g, &vv.g);
            ref->compress(ref, &k->c, 0, oc), gpu->compress(gpu, &k->g, 0, og);
            sync_backend(ref), sync_backend(gpu);
            both_free(&kk), both_free(&vv);
        }
}

/* The rows of values, entries included, of an F32 cache. */
static void compare_rows(const struct cache *k)
{
    float *got = mem_alloc(k->v_bytes);
    size_t dim = (size_t)k->lc.head_dim_v;

    gpu->get(gpu, got, k->lg.v, k->v_bytes);
    sync_backend(gpu);
    for (int s = 0; s < N_SEQS; s++)
        for (int p = 0; p < lens[s]; p++) {
            size_t at = ((size_t)k->table.c[s * STRIDE + p / KV_BLOCK] * KV_BLOCK +
                         (size_t)(p % KV_BLOCK)) *
                        dim;
            double e = error_of(got + at, (const float *)k->lc.v + at, dim, 0.3);
            if (!(e < 1e-5)) fail_msg("sequence %d, position %d: error %g", s, p, e);
        }
    mem_free(got);
}

static void compare_compressed(struct cache *k, const struct compress_opt *oc,
                               const struct compress_opt *og, int heads, double tol)
{
    struct choice keys = choice_new(1);
    struct both sinks = both_new(1, heads, 0, 1);

    for (int shape = 0; shape < 6; shape++) {
        if (!is_selected()) continue;
        struct attend_opt o = { .n_heads = heads,
                                .n_kv_heads = 1,
                                .head_dim = oc->dim,
                                .scale = 1 / sqrtf((float)oc->dim),
                                .window = shape % 2 ? 0 : 12 },
                          g = o;
        cache_make_batch(k, shape);
        fill_choice(&keys, &k->c, oc->rate, shape % 2);
        o.sinks = shape % 3 ? sinks.c.data : NULL, g.sinks = shape % 3 ? sinks.g.data : NULL;
        if (shape % 4 != 3) o.keys = &keys.c, g.keys = &keys.g;
        struct both q = both_new(k->c.n_tokens, heads * oc->dim, 1, 1.5f),
                    out = both_new(k->c.n_tokens, heads * oc->dim, 2, 1);
        ref->attend_compressed(ref, &out.c, &q.c, &k->c, 0, &o, oc);
        sync_backend(ref);
        gpu->attend_compressed(gpu, &out.g, &q.g, &k->g, 0, &g, og);
        assert_both_close("compressed attention", &out, tol);
        both_free(&q), both_free(&out);
    }
    both_free(&sinks);
    choice_free(&keys);
}

static void compressed_attention_agrees(void **state)
{
    static const struct {
        int heads, dim, rate, n_rot;
        bool overlap;
    } shapes[] = { { 4, 32, 4, 16, true }, { 3, 64, 5, 64, false }, { 2, 160, 128, 2, false },
                   { 5, 32, 16, 8, true }, { 2, 512, 8, 64, true }, { 1, 96, 1, 32, true } };
    (void)state;
    need_gpu();
    EACH(t, kv_types) EACH(s, shapes)
    {
        int dim = shapes[s].dim, halves = shapes[s].overlap ? 2 : 1, rate = shapes[s].rate;
        struct both bias = both_new(rate, halves * dim, 0, 1), norm = both_new(1, dim, 0, 1),
                    freq = both_new(1, dim / 2, 0, 0.3f);
        struct compress_opt c = { .rate = rate,
                                  .dim = dim,
                                  .overlap = shapes[s].overlap,
                                  .bias = bias.c.data,
                                  .norm = norm.c.data,
                                  .eps = 1e-6f,
                                  .freq = freq.c.data,
                                  .n_rot = shapes[s].n_rot,
                                  .mscale = 1.1f },
                            g = c;
        struct cache k;
        g.bias = bias.g.data, g.norm = norm.g.data, g.freq = freq.g.data;
        cache_open(&k, kv_types[t], 1, dim, dim * (1 + 2 * halves));
        fill_compressed(&k, &c, &g);
        if (kv_types[t] == DT_F32) compare_rows(&k);
        compare_compressed(&k, &c, &g, shapes[s].heads, tolerance_of(kv_types[t]));
        cache_close(&k);
        both_free(&bias), both_free(&norm), both_free(&freq);
    }
}

/* Entries of index keys are made as those of values are. */
static void entries_of_index_keys_are_compressed(void **state)
{
    enum { DIM = 32 };
    struct cache k;
    (void)state;
    need_gpu();
    struct both bias = both_new(4, 2 * DIM, 0, 1), norm = both_new(1, DIM, 0, 1),
                freq = both_new(1, DIM / 2, 0, 0.3f);
    struct compress_opt c = { .rate = 4,
                              .dim = DIM,
                              .overlap = true,
                              .index = true,
                              .bias = bias.c.data,
                              .norm = norm.c.data,
                              .eps = 1e-6f,
                              .freq = freq.c.data,
                              .n_rot = 16,
                              .mscale = 1 },
                        g = c;
    g.bias = bias.g.data, g.norm = norm.g.data, g.freq = freq.g.data;
    cache_open(&k, DT_F32, 1, DIM, DIM);
    index_open(&k, 5 * DIM);
    index_fill(&k);
    for (int s = 0; s < N_SEQS; s++) {
        cache_add_tokens(&k, s, 0, lens[s], true), cache_upload_batch(&k);
        ref->compress(ref, &k.c, 0, &c), gpu->compress(gpu, &k.g, 0, &g);
        sync_backend(ref), sync_backend(gpu);
    }
    float *got = mem_alloc(k.lg.x_block_bytes * N_BLOCKS);
    gpu->get(gpu, got, k.lg.x, k.lg.x_block_bytes * N_BLOCKS);
    sync_backend(gpu);
    for (int p = 0; p < lens[0]; p++) {
        size_t at = ((size_t)k.table.c[p / KV_BLOCK] * KV_BLOCK + (size_t)(p % KV_BLOCK)) * 5 * DIM;
        assert_true(error_of(got + at, (const float *)k.lc.x + at, 5 * DIM, 0.3) < 1e-5);
    }
    mem_free(got);
    index_close(&k), cache_close(&k);
    both_free(&bias), both_free(&norm), both_free(&freq);
}

/* An argument selects tests by name. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_of_single_families_agree),
        cmocka_unit_test(queries_are_scaled_by_their_position),
        cmocka_unit_test(several_streams_are_mixed_and_matched),
        cmocka_unit_test(hyper_connections_agree),
        cmocka_unit_test(attention_in_chunks_agrees),
        cmocka_unit_test(attention_over_selected_keys_agrees),
        cmocka_unit_test(the_same_keys_are_selected_as_on_the_cpu),
        cmocka_unit_test(compressed_attention_agrees),
        cmocka_unit_test(entries_of_index_keys_are_compressed),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, open_all, close_all);
}
