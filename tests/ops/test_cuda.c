/* Every row operation and matrix product of the GPU against the reference backend, over odd
 * shapes; device memory management.
 *
 * Weights and inputs are random. Reads no files. Skipped without a GPU. */
#include "cuda_pair.h"

/* ---- rows ---- */

static const int widths[] = { 1, 2, 31, 32, 33, 100, 128, 255, 256, 1000, 1024, 2304, 4096 };
static const int counts[] = { 1, 2, 3, 8, 9, 33, 200 };

static void norms_agree_with_the_reference(void **state)
{
    (void)state;
    need_gpu();
    EACH(i, widths) EACH(k, counts) for (int gap = 0; gap < 4; gap += 3)
    {
        if (!is_selected()) continue;
        struct both x = both_new(counts[k], widths[i], gap, 2),
                    out = both_new(counts[k], widths[i], gap, 1);
        struct both w = both_new(1, widths[i], 0, 1), b = both_new(1, widths[i], 0, 1);
        ref->rmsnorm(ref, &out.c, &x.c, w.c.data, 1e-5f),
            gpu->rmsnorm(gpu, &out.g, &x.g, w.g.data, 1e-5f);
        assert_both_close("rmsnorm", &out, 1e-5);
        ref->rmsnorm(ref, &out.c, &x.c, NULL, 1e-6f), gpu->rmsnorm(gpu, &out.g, &x.g, NULL, 1e-6f);
        assert_both_close("rmsnorm without weight", &out, 1e-5);
        if (widths[i] > 1) {
            ref->layernorm(ref, &out.c, &x.c, w.c.data, b.c.data, 1e-5f);
            gpu->layernorm(gpu, &out.g, &x.g, w.g.data, b.g.data, 1e-5f);
            assert_both_close("layernorm", &out, 1e-4);
            ref->layernorm(ref, &x.c, &x.c, NULL, NULL, 1e-5f),
                gpu->layernorm(gpu, &x.g, &x.g, NULL, NULL, 1e-5f);
            assert_both_close("layernorm in place", &x, 1e-4);
        }
        both_free(&x), both_free(&out), both_free(&w), both_free(&b);
    }
}

static void head_norms_and_rotary_embeddings_agree(void **state)
{
    static const int dims[] = { 16, 64, 80, 96, 128, 256 };
    (void)state;
    need_gpu();
    EACH(i, dims) EACH(k, counts) for (int style = 0; style < 2; style++)
    {
        int dim = dims[i], n = counts[k], heads = 1 + (int)i, n_rot = style ? dim : dim / 2;
        struct both x = both_new(n, heads * dim, style ? 0 : 5, 2),
                    w = both_new(1, heads * dim, 0, 1);
        struct both table = both_new(n, n_rot, 0, 1), freq = both_new(1, n_rot / 2, 0, 0);
        struct ints pos;
        for (int j = 0; j < n; j++) pos.c[j] = (int32_t)(rng_u64(&rng) % 30000);
        for (int j = 0; j < n_rot / 2; j++)
            ((float *)freq.c.data)[j] = powf(10000, -2.0f * (float)j / (float)n_rot);
        gpu->put(gpu, freq.g.data, freq.c.data, (size_t)(n_rot / 2) * sizeof(float));
        ints_upload(&pos, n);
        ref->headnorm(ref, &x.c, heads, dim, w.c.data, style ? dim : 0, 1e-6f);
        gpu->headnorm(gpu, &x.g, heads, dim, w.g.data, style ? dim : 0, 1e-6f);
        assert_both_close("headnorm", &x, 1e-5);
        struct both b = both_new(1, heads * dim, 0, 1);
        const float *bias = i % 2 ? b.c.data : NULL, *bias_g = i % 2 ? b.g.data : NULL;
        ref->headnorm_layer(ref, &x.c, heads, dim, w.c.data, bias, style ? dim : 0, 1e-6f);
        gpu->headnorm_layer(gpu, &x.g, heads, dim, w.g.data, bias_g, style ? dim : 0, 1e-6f);
        assert_both_close("headnorm_layer", &x, 1e-4);
        both_free(&b);
        ref->rope_table(ref, &table.c, pos.c, freq.c.data, n_rot, 1.1f);
        gpu->rope_table(gpu, &table.g, pos.g, freq.g.data, n_rot, 1.1f);
        assert_both_close("rope_table", &table, 1e-5);
        ref->rope(ref, &x.c, heads, dim, n_rot, &table.c, (enum rope_style)style);
        gpu->rope(gpu, &x.g, heads, dim, n_rot, &table.g, (enum rope_style)style);
        assert_both_close("rope", &x, 1e-5);
        ints_free(&pos, n);
        both_free(&x), both_free(&w), both_free(&table), both_free(&freq);
    }
}

static void elementwise_operations_agree(void **state)
{
    (void)state;
    need_gpu();
    EACH(i, widths) EACH(k, counts) for (int gap = 0; gap < 4; gap += 3)
    {
        if (!is_selected()) continue;
        struct both x = both_new(counts[k], widths[i], gap, 2),
                    y = both_new(counts[k], widths[i], gap, 2);
        struct both out = both_new(counts[k], widths[i], gap, 1);
        ref->add(ref, &x.c, &y.c, 0.7f), gpu->add(gpu, &x.g, &y.g, 0.7f);
        assert_both_close("add", &x, 1e-6);
        ref->scale(ref, &x.c, 1.3f), gpu->scale(gpu, &x.g, 1.3f);
        assert_both_close("scale", &x, 1e-6);
        ref->softcap(ref, &x.c, 3), gpu->softcap(gpu, &x.g, 3);
        assert_both_close("softcap", &x, 1e-5);
        for (int a = ACT_SILU; a <= ACT_SWIGLU_CLIP; a++) {
            ref->act(ref, &out.c, &x.c, &y.c, (enum act)a),
                gpu->act(gpu, &out.g, &x.g, &y.g, (enum act)a);
            assert_both_close("act", &out, 1e-5);
        }
        ref->act(ref, &x.c, &x.c, NULL, ACT_GELU), gpu->act(gpu, &x.g, &x.g, NULL, ACT_GELU);
        assert_both_close("act alone, in place", &x, 1e-5);
        ref->scale(ref, &x.c, 5), gpu->scale(gpu, &x.g, 5);
        ref->act(ref, &out.c, &x.c, NULL, ACT_SWIGLU_CLIP),
            gpu->act(gpu, &out.g, &x.g, NULL, ACT_SWIGLU_CLIP);
        assert_both_close("clipped act alone", &out, 1e-5);
        ref->clamp(ref, &x.c, 1.5f), gpu->clamp(gpu, &x.g, 1.5f);
        assert_both_close("clamp", &x, 1e-5);
        struct both s = both_new(counts[k], 1, gap, 2);
        ref->gate_rows(ref, &y.c, &s.c), gpu->gate_rows(gpu, &y.g, &s.g);
        assert_both_close("gate_rows", &y, 1e-5);
        both_free(&s);
        both_free(&x), both_free(&y), both_free(&out);
    }
}

/* ---- weights ---- */

/* A number of columns: a multiple of the block for quantized types, an odd number for float
 * types. */
static int odd_column_count(int which, int i)
{
    static const int odd[] = { 33, 100, 256, 1023, 2048 }, blocks[] = { 1, 3, 8, 5, 16 };
    int block = dtype_info((int)halves[which].type)->block;
    return block == 1    ? odd[i]
           : block == 32 ? 32 * blocks[i] * (i == 4 ? 4 : 1)
                         : 256 * (i == 4 ? 8 : i + 1);
}

static void embeddings_of_every_weight_type_agree(void **state)
{
    (void)state;
    need_gpu();
    for (int t = 0; t < N_TYPES; t++) {
        if (is_unsupported(t)) continue;
        for (int i = 0; i < 5; i++) {
            if (!is_selected()) continue;
            int rows = 97, n = counts[i], cols = odd_column_count(t, i);
            struct pair w;
            pair_init(&w, t, rows, cols);
            struct both out = both_new(n, cols, 3, 1), some = both_new(2, cols, 0, 1);
            struct ints ids, picked = { .c = { n - 1, 0 } };
            finish_weights();
            for (int j = 0; j < n; j++) ids.c[j] = (int32_t)(rng_u64(&rng) % (uint64_t)rows);
            ints_upload(&ids, n), ints_upload(&picked, 2);
            ref->embed(ref, &out.c, &w.c, ids.c, 1.5f), gpu->embed(gpu, &out.g, &w.g, ids.g, 1.5f);
            assert_both_close(type_name(t), &out, 1e-3);
            gpu->put(gpu, out.g.data, out.c.data, n_of(&out.c) * sizeof(float));
            ref->gather(ref, &some.c, &out.c, picked.c),
                gpu->gather(gpu, &some.g, &out.g, picked.g);
            assert_both_close("gather", &some, 0);
            ints_free(&ids, n), ints_free(&picked, 2);
            both_free(&out), both_free(&some), pair_free(&w);
        }
    }
}

/* The expected magnitude of a matrix product of numbers near 1. A much smaller result is a
 * difference of large terms and has an error of the size of those terms. */
static double expected_size(const struct pair *p)
{
    size_t n = (size_t)p->c.rows * (size_t)p->c.cols;
    float *w = mem_array(n, sizeof *w);
    double sum = 0;

    quant_decode(p->c.type, p->bytes, w, (int64_t)n);
    for (size_t i = 0; i < n; i++) sum += (double)w[i] * w[i];
    mem_free(w);
    return sqrt(sum / p->c.rows);
}

/* The allowed relative error of a matrix product: x is rounded to 11 bits. */
static double linear_tol(int which) { return halves[which].type == DT_F32 ? 2e-3 : 3e-3; }

static void matrix_products_of_every_weight_type_agree(void **state)
{
    static const int tokens[] = { 1, 2, 3, 5, 8, 9, 16, 31, 64, 130, 300 };
    static const int rows[] = { 1, 7, 64, 129, 520 };
    int bad = 0;
    (void)state;
    need_gpu();
    for (int t = 0; t < N_TYPES; t++) {
        double few = 0, many = 0;
        if (is_unsupported(t)) continue;
        for (int i = 0; i < 5; i++) EACH(k, tokens)
            {
                if (!is_selected()) continue;
                int n = tokens[k], cols = odd_column_count(t, i), r = rows[(i + (int)k) % 5],
                    gap = (i + (int)k) % 2 * 4;
                struct pair w, w2;
                pair_init(&w, t, r, cols), pair_init(&w2, t, rows[i], cols);
                struct both x = both_new(n, cols, gap, 1), out = both_new(n, r, gap, 1),
                            out2 = both_new(n, rows[i], 0, 1);
                struct both bias = both_new(1, r, 0, 1);
                finish_weights();
                struct linear c[2] = { { out.c, &w.c, i % 2 ? bias.c.data : NULL, k % 2,
                                         k % 3 ? 0 : 0.5f },
                                       { out2.c, &w2.c, NULL, false, 0 } };
                struct linear g[2] = { { out.g, &w.g, i % 2 ? bias.g.data : NULL, k % 2,
                                         k % 3 ? 0 : 0.5f },
                                       { out2.g, &w2.g, NULL, false, 0 } };
                ref->linear(ref, &x.c, c, 2), gpu->linear(gpu, &x.g, g, 2);
                double *worst = n <= 8 ? &few : &many;
                double e1 = both_error_of(&out, expected_size(&w)),
                       e2 = both_error_of(&out2, expected_size(&w2));
                *worst = fmax(*worst, fmax(e1, e2));
                if (!(e1 < linear_tol(t)) || !(e2 < linear_tol(t)))
                    print_message(
                        "%s: %d tokens, %d and %d rows x %d columns, gap %d: errors %g %g\n",
                        type_name(t), n, r, rows[i], cols, gap, e1, e2);
                both_free(&x), both_free(&out), both_free(&out2), both_free(&bias), pair_free(&w),
                    pair_free(&w2);
            }
        bool right = few < linear_tol(t) && many < linear_tol(t);
        print_message("matrix product %-8s largest error: few tokens %.2e, many %.2e%s\n",
                      type_name(t), few, many, right ? "" : "  TOO FAR OFF");
        bad += !right;
    }
    assert_int_equal(bad, 0);
}

/* norm, gate and up, activation: the fused operation must give the result of the single
 * operations. */
static void a_fused_feed_forward_block_equals_its_single_operations(void **state)
{
    static const int tokens[] = { 1, 4, 8, 9, 50, 200 };
    int bad = 0;
    (void)state;
    need_gpu();
    for (int t = 0; t < N_TYPES; t++) {
        double worst = 0;
        if (!gpu->weight_supported(gpu, halves[t].type)) continue;
        EACH(k, tokens) for (int layer = 0; layer < 2; layer++)
        {
            if (!is_selected()) continue;
            int n = tokens[k], cols = 512, r = k % 2 ? 384 : 640;
            struct pair gate, up;
            pair_init(&gate, t, r, cols), pair_init(&up, t, r, cols);
            struct both x = both_new(n, cols, 0, 3), h = both_new(n, cols, 0, 1),
                        nw = both_new(1, cols, 0, 1);
            struct both a = both_new(n, r, 0, 1), b = both_new(n, r, 0, 1),
                        bias = both_new(1, r, 0, 1);
            finish_weights();
            struct linear c[2] = { { a.c, &gate.c, layer ? bias.c.data : NULL, false, 0 },
                                   { b.c, &up.c, NULL, false, 0 } };
            struct linear g[2] = { { a.g, &gate.g, layer ? bias.g.data : NULL, false, 0 },
                                   { b.g, &up.g, NULL, false, 0 } };
            if (layer) {
                ref->layernorm(ref, &h.c, &x.c, nw.c.data, NULL, 1e-5f);
                gpu->layernorm(gpu, &h.g, &x.g, nw.g.data, NULL, 1e-5f);
            } else {
                ref->rmsnorm(ref, &h.c, &x.c, nw.c.data, 1e-5f);
                gpu->rmsnorm(gpu, &h.g, &x.g, nw.g.data, 1e-5f);
            }
            ref->linear(ref, &h.c, c, 2), gpu->linear(gpu, &h.g, g, 2);
            ref->act(ref, &a.c, &a.c, &b.c, ACT_SILU), gpu->act(gpu, &a.g, &a.g, &b.g, ACT_SILU);
            double e = both_error(&a);
            if (!(e < 2e-2))
                print_message("%s: %d tokens, layer %d: error %g\n", type_name(t), n, layer, e);
            worst = fmax(worst, e);
            both_free(&x), both_free(&h), both_free(&nw), both_free(&a), both_free(&b),
                both_free(&bias);
            pair_free(&gate), pair_free(&up);
        }
        print_message("norm, matrix product, activation %-8s largest error %.2e%s\n", type_name(t),
                      worst, worst < 2e-2 ? "" : "  TOO FAR OFF");
        bad += !(worst < 2e-2);
    }
    assert_int_equal(bad, 0);
}

/* The feed-forward block of one token and the next operation that reads its result. A matrix
 * product prepares x for the one that follows; x and all results must equal those of single
 * operations. */
static void consecutive_matrix_products_equal_single_ones(void **state)
{
    int bad = 0;
    (void)state;
    need_gpu();
    for (int t = 0; t < N_TYPES; t++) {
        double worst = 0;
        if (!gpu->weight_supported(gpu, halves[t].type)) continue;
        for (int k = 0; k < 4; k++) {
            int cols = 512, ff = k % 2 ? 768 : 2304,
                rows = 100; /* k 2: no norm before the last one */
            struct pair gate, up, down, last;
            pair_init(&gate, t, ff, cols), pair_init(&up, t, ff, cols),
                pair_init(&down, t, cols, ff);
            pair_init(&last, k == 3 ? (t + 1) % N_TYPES : t, rows, cols);
            struct both x = both_new(1, cols, 0, 3), h = both_new(1, cols, 0, 1),
                        nw = both_new(1, cols, 0, 1);
            struct both a = both_new(1, ff, 0, 1), b = both_new(1, ff, 0, 1),
                        out = both_new(1, rows, 0, 1);
            float small =
                (float)(0.1 / expected_size(&down) / expected_size(&gate) / expected_size(&up));
            finish_weights();
            for (int i = 0; i < 2; i++) {
                struct backend *be = i ? gpu : ref;
                struct tensor *tx = i ? &x.g : &x.c, *th = i ? &h.g : &h.c;
                struct tensor *ta = i ? &a.g : &a.c, *tb = i ? &b.g : &b.c;
                struct linear gu[2] = { { *ta, i ? &gate.g : &gate.c, NULL, false, 0 },
                                        { *tb, i ? &up.g : &up.c, NULL, false, 0 } };
                struct linear d = { *tx, i ? &down.g : &down.c, NULL, true, small };
                struct linear l = { i ? out.g : out.c, i ? &last.g : &last.c, NULL, false, 0 };
                const float *w = i ? nw.g.data : nw.c.data;
                be->rmsnorm(be, th, tx, w, 1e-5f);
                be->linear(be, th, gu, 2);
                be->act(be, ta, ta, tb, ACT_SILU);
                be->linear(be, ta, &d, 1);
                if (k != 2) be->rmsnorm(be, th, tx, w, 1e-5f);
                be->linear(be, k == 2 ? tx : th, &l, 1);
            }
            double e = fmax(both_error(&x), both_error_of(&out, expected_size(&last)));
            if (!(e < 2e-2)) print_message("%s, %d: error %g\n", type_name(t), k, e);
            worst = fmax(worst, e);
            both_free(&x), both_free(&h), both_free(&nw), both_free(&a), both_free(&b),
                both_free(&out);
            pair_free(&gate), pair_free(&up), pair_free(&down), pair_free(&last);
        }
        print_message("consecutive matrix products %-8s largest error %.2e%s\n", type_name(t),
                      worst, worst < 2e-2 ? "" : "  TOO FAR OFF");
        bad += !(worst < 2e-2);
    }
    assert_int_equal(bad, 0);
}

/* ---- memory ---- */

static void an_allocation_larger_than_device_memory_is_refused(void **state)
{
    struct err e = { 0 };
    void *p = NULL, *small = NULL;
    size_t before;
    (void)state;
    need_gpu();
    before = gpu->used_bytes[MEM_KV];
    assert_int_equal(gpu->alloc(gpu, &p, (size_t)1 << 44, MEM_KV, &e), E_DEVICE_MEMORY);
    print_message("%s\n", e.msg);
    assert_non_null(strstr(e.msg, "free"));
    assert_null(p);
    assert_int_equal(gpu->used_bytes[MEM_KV], before);
    assert_int_equal(gpu->alloc(gpu, &small, 1000, MEM_KV, &e), OK);
    gpu->free(gpu, small, 1000, MEM_KV);
    sync_backend(gpu);
}

static void a_thousand_allocations_leave_no_memory_in_use(void **state)
{
    enum { LIVE = 32 };
    void *p[LIVE] = { 0 };
    size_t n[LIVE] = { 0 }, before;
    struct err e = { 0 };
    uint64_t allocs;
    (void)state;
    need_gpu();
    before = gpu->used_bytes[MEM_SCRATCH], allocs = gpu->n_allocs;
    for (int i = 0; i < 1000; i++) {
        int at = (int)(rng_u64(&rng) % LIVE);
        if (p[at]) gpu->free(gpu, p[at], n[at], MEM_SCRATCH);
        n[at] = 1 + rng_u64(&rng) % ((size_t)1 << (10 + rng_u64(&rng) % 14));
        assert_int_equal(gpu->alloc(gpu, &p[at], n[at], MEM_SCRATCH, &e), OK);
        assert_int_equal((uintptr_t)p[at] % 64, 0);
    }
    for (int i = 0; i < LIVE; i++)
        if (p[i]) gpu->free(gpu, p[i], n[i], MEM_SCRATCH);
    assert_int_equal(gpu->used_bytes[MEM_SCRATCH], before);
    assert_int_equal(gpu->n_allocs, allocs + 1000);
    sync_backend(gpu);
}

static void a_model_that_is_too_large_leaves_no_memory_in_use(void **state)
{
    struct weight w = { .type = DT_F16, .rows = 1 << 24, .cols = 1 << 20, .n = 1, .data = &w };
    struct err e = { 0 };
    (void)state;
    need_gpu();
    assert_int_equal(gpu->weight_put(gpu, &w, &e), OK);
    assert_int_equal(gpu->weights_finish(gpu, &e), E_DEVICE_MEMORY);
    assert_non_null(strstr(e.msg, "weights"));
    assert_int_equal(gpu->used_bytes[MEM_WEIGHTS], 0);
    gpu->weight_drop(gpu, &w);
    assert_null(w.packed);
}

static void freeing_memory_twice_is_logged_and_ignored(void **state)
{
    struct backend *be;
    struct err e = { 0 };
    void *p = NULL, *q = NULL;
    (void)state;
    need_gpu();
    setenv("TERN_CUDA_DEBUG", "1", 1);
    be = cuda_open();
    unsetenv("TERN_CUDA_DEBUG");
    assert_int_equal(be->alloc(be, &p, 100, MEM_KV, &e), OK);
    assert_int_equal(be->alloc(be, &q, 100, MEM_KV, &e), OK);
    be->free(be, p, 100, MEM_KV);
    be->free(be, p, 100, MEM_KV);
    assert_int_equal(be->used_bytes[MEM_KV], 100);
    be->free(be, q, 100, MEM_KV);
    assert_int_equal(be->used_bytes[MEM_KV], 0);
    backend_close(be);
}

/* Larger than the staging buffer, so that a copy takes several pieces. */
static void large_copies_to_the_device_and_back_are_exact(void **state)
{
    static const size_t sizes[] = {
        1, 255, 4097, (size_t)8 << 20, ((size_t)8 << 20) + 3, (size_t)20 << 20
    };
    (void)state;
    need_gpu();
    EACH(i, sizes)
    {
        unsigned char *a = mem_alloc(sizes[i]), *b = mem_alloc(sizes[i]);
        struct err e = { 0 };
        void *p = NULL, *pinned = NULL;
        for (size_t j = 0; j < sizes[i]; j++) a[j] = (unsigned char)(j * 7 + j / 251 + 3);
        assert_int_equal(gpu->alloc(gpu, &p, sizes[i], MEM_SCRATCH, &e), OK);
        assert_int_equal(gpu->host_alloc(gpu, &pinned, sizes[i], &e), OK);
        gpu->put(gpu, p, a, sizes[i]);
        gpu->get(gpu, b, p, sizes[i]);
        gpu->get(gpu, pinned, p, sizes[i]);
        memset(a, 0, 1); /* the upload has already copied the byte */
        sync_backend(gpu);
        assert_int_equal(b[0], 3);
        a[0] = 3;
        assert_memory_equal(a, b, sizes[i]);
        assert_memory_equal(pinned, b, sizes[i]);
        gpu->host_free(gpu, pinned, sizes[i]);
        gpu->free(gpu, p, sizes[i], MEM_SCRATCH);
        mem_free(a), mem_free(b);
    }
}

static void a_device_can_be_opened_and_closed_repeatedly(void **state)
{
    (void)state;
    need_gpu();
    for (int i = 0; i < 5; i++) {
        struct backend *be = cuda_open();
        struct err e = { 0 };
        assert_int_equal(be->reserve(be, &limits, &e), OK);
        assert_true(be->used_bytes[MEM_SCRATCH] > 0 && be->detail[0]);
        backend_close(be);
    }
}

static void the_error_for_a_missing_device_names_it(void **state)
{
    struct backend *be = NULL;
    struct err e = { 0 };
    (void)state;
    need_gpu();
    assert_int_equal(backend_open(&be, &(struct backend_opt){ .device = "cuda:99" }, &e),
                     E_NOTFOUND);
    assert_non_null(strstr(e.msg, "cuda:99"));
    assert_int_equal(backend_open(&be, &(struct backend_opt){ .device = "cuda:x" }, &e), E_INVALID);
    assert_int_equal(
        backend_open(&be, &(struct backend_opt){ .device = "cuda", .reference = true }, &e),
        E_INVALID);
}

/* An argument selects tests by name: '*memory*'. */
/* The last test: all backends on the device are lost with it. A gather from an address that nobody
 * allocated is an error that CUDA keeps for the rest of the process's life. */
static void a_lost_device_is_a_typed_error_until_the_end(void **state)
{
    struct backend *late = NULL;
    struct err e = { 0 };
    int32_t zero = 0;
    void *p = NULL, *rows = NULL;
    (void)state;
    need_gpu();
    assert_int_equal(gpu->alloc(gpu, &p, 4096, MEM_SCRATCH, &e), OK);
    assert_int_equal(gpu->alloc(gpu, &rows, 64, MEM_SCRATCH, &e), OK);
    gpu->put(gpu, rows, &zero, sizeof zero);
    struct tensor out = tensor_f32(p, 1, 64), x = tensor_f32((float *)(uintptr_t)0x10000, 1, 64);
    gpu->gather(gpu, &out, &x, rows);
    assert_int_equal(gpu->sync(gpu, &e), E_DEVICE);
    assert_true(gpu->lost);
    print_message("%s\n", e.msg);
    assert_int_equal(gpu->sync(gpu, &e), E_DEVICE);
    gpu->free(gpu, p, 4096, MEM_SCRATCH);
    gpu->free(gpu, rows, 64, MEM_SCRATCH);
    backend_close(gpu);
    gpu = NULL;
    assert_int_equal(cuda_try(&late, &e), E_DEVICE);
    print_message("%s\n", e.msg);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_agree_with_the_reference),
        cmocka_unit_test(head_norms_and_rotary_embeddings_agree),
        cmocka_unit_test(elementwise_operations_agree),
        cmocka_unit_test(embeddings_of_every_weight_type_agree),
        cmocka_unit_test(matrix_products_of_every_weight_type_agree),
        cmocka_unit_test(a_fused_feed_forward_block_equals_its_single_operations),
        cmocka_unit_test(consecutive_matrix_products_equal_single_ones),
        cmocka_unit_test(an_allocation_larger_than_device_memory_is_refused),
        cmocka_unit_test(a_model_that_is_too_large_leaves_no_memory_in_use),
        cmocka_unit_test(freeing_memory_twice_is_logged_and_ignored),
        cmocka_unit_test(a_thousand_allocations_leave_no_memory_in_use),
        cmocka_unit_test(large_copies_to_the_device_and_back_are_exact),
        cmocka_unit_test(a_device_can_be_opened_and_closed_repeatedly),
        cmocka_unit_test(the_error_for_a_missing_device_names_it),
        cmocka_unit_test(a_lost_device_is_a_typed_error_until_the_end),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, open_all, close_all);
}
