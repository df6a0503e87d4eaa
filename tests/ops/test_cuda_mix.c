/* Recurrent layers (convolution, selective scan, gated delta rule), latent attention and
 * bidirectional attention on the GPU against the reference backend.
 *
 * Inputs are random; sequences run in mixed batches of chunks. Skipped without a GPU. */
#include "cuda_cache.h"
#include "cuda_pair.h"

#include "kv/statestore.h"

/* ---- runs: the next chunk of some sequences, in changing order ---- */

enum { TEXTS = 6, MAX_TEXT = 130 };
static const int texts[TEXTS] = { MAX_TEXT, 1, 17, 70, 2, 40 };

struct world {
    struct state_store *pc, *pg;
    struct stateview c, g;
    int slot[TEXTS], done[TEXTS];
    struct state_run runs[TEXTS], *there;
};

static int below(int n) { return (int)(rng_u64(&rng) % (uint64_t)n); }

/* Fills all state slots with NaN: the old content of a slot must not matter. */
static void fill_with_nan(struct backend *be, float *base, size_t floats)
{
    float *bad = mem_array(floats, sizeof *bad);

    for (size_t i = 0; i < floats; i++) bad[i] = NAN;
    be->put(be, base, bad, floats * sizeof *bad);
    sync_backend(be);
    mem_free(bad);
}

static void world_open(struct world *w, struct stateshape shape)
{
    struct stateshape layers[] = { { 0 }, shape };
    struct err e = { 0 };

    *w = (struct world){ 0 };
    if (state_store_open(&w->pc, &(struct backend_share){ ref, 2 }, 1, layers, TEXTS + 1, &e) !=
            OK ||
        state_store_open(&w->pg, &(struct backend_share){ gpu, 2 }, 1, layers, TEXTS + 1, &e) != OK)
        fail_msg("%s", e.msg);
    state_store_view(w->pc, &w->c), state_store_view(w->pg, &w->g);
    for (int s = 0; s < TEXTS; s++) w->slot[s] = TEXTS - s;
    if (shape.rec) fill_with_nan(gpu, w->g.layers[1].rec, w->g.layers[1].rec_floats * (TEXTS + 1));
    if (w->g.layers[1].conv)
        fill_with_nan(gpu, w->g.layers[1].conv, w->g.layers[1].conv_floats * (TEXTS + 1));
    w->there = device_copy(gpu, w->runs, sizeof w->runs);
    w->c.runs = w->runs, w->g.runs = w->there;
}

/* Fills the runs of the next batch; false: all sequences are done. one: one token of every
 * unfinished sequence instead of chunks. */
static bool next_batch(struct world *w, bool one)
{
    int turn = below(TEXTS), n_runs = 0, n_tokens = 0;
    bool left = false;

    for (int i = 0; i < TEXTS; i++) {
        int s = (i + turn) % TEXTS, rest = texts[s] - w->done[s],
            n = one || below(2) ? 1 : 1 + below(60);
        left |= rest > 0;
        if (rest == 0 || (!one && below(4) == 0)) continue;
        if (n > rest) n = rest;
        w->runs[n_runs++] = (struct state_run){ w->slot[s], n_tokens, n, w->done[s] == 0 };
        w->done[s] += n;
        n_tokens += n;
    }
    w->c.n_runs = w->g.n_runs = n_runs;
    w->c.n_tokens = w->g.n_tokens = n_tokens;
    gpu->put(gpu, w->there, w->runs, sizeof w->runs);
    return left;
}

/* Fails if the states that the two backends have written differ by more than tol. */
static void check_state(const char *what, float *c, const float *g, size_t floats, double tol)
{
    float *got = mem_array(floats, sizeof *got);
    double e;

    gpu->get(gpu, got, g, floats * sizeof *got);
    sync_backend(gpu);
    if (!((e = error_of(got, c, floats, 0.1)) <= tol))
        fail_msg("%s: relative error %g of the state", what, e);
    mem_free(got);
}

static void world_close(struct world *w, const char *what, int conv, int rec, double tol)
{
    for (int s = 0; s < TEXTS; s++) {
        const struct statelayer *c = &w->c.layers[1], *g = &w->g.layers[1];
        size_t at = (size_t)w->slot[s];
        if (conv)
            check_state(what, c->conv + at * c->conv_floats, g->conv + at * g->conv_floats,
                        (size_t)conv, tol);
        if (rec)
            check_state(what, c->rec + at * c->rec_floats, g->rec + at * g->rec_floats, (size_t)rec,
                        tol);
    }
    gpu->free(gpu, w->there, sizeof w->runs, MEM_SCRATCH);
    state_store_close(w->pc), state_store_close(w->pg);
}

/* ---- convolution ---- */

static void a_convolution_continues_across_chunks_in_mixed_batches(void **state)
{
    static const int shapes[][2] = { { 1, 5 },   { 2, 16 },  { 3, 64 }, { 4, 67 },
                                     { 4, 160 }, { 7, 130 }, { 5, 129 } };
    (void)state;
    need_gpu();
    EACH(i, shapes) for (int one = 0; one < 2; one++)
    {
        if (!is_selected()) continue;
        int k = shapes[i][0], cols = shapes[i][1];
        struct both w = both_new(k, cols, 0, 0.5f), b = both_new(1, cols, 0, 1);
        struct conv_opt oc = { .w = w.c.data,
                               .bias = i % 2 ? b.c.data : NULL,
                               .k = k,
                               .silu = i % 3 != 0 },
                        og = oc;
        struct world world;
        og.w = w.g.data, og.bias = i % 2 ? b.g.data : NULL;
        world_open(&world, (struct stateshape){ k - 1, cols, 1 });
        while (next_batch(&world, one)) {
            if (world.c.n_tokens == 0) continue;
            struct both x = both_new(world.c.n_tokens, cols, 3, 1),
                        out = both_new(world.c.n_tokens, cols, 5, 1);
            ref->conv(ref, &out.c, &x.c, &world.c, 1, &oc),
                gpu->conv(gpu, &out.g, &x.g, &world.g, 1, &og);
            assert_both_close("conv", &out, 1e-6);
            both_free(&x), both_free(&out);
        }
        world_close(&world, "conv", (k - 1) * cols, 0, 0);
        both_free(&w), both_free(&b);
    }
}

/* Three convolutions whose inputs are parts of one state. */
static void convolutions_share_a_state(void **state)
{
    static const int wide[][3] = { { 16, 16, 33 }, { 5, 130, 64 } };
    (void)state;
    need_gpu();
    EACH(i, wide) for (int one = 0; one < 2; one++)
    {
        int k = i ? 4 : 3, all = wide[i][0] + wide[i][1] + wide[i][2];
        struct both w[3];
        struct world world;
        for (int p = 0; p < 3; p++) w[p] = both_new(k, wide[i][p], 0, 0.5f);
        world_open(&world, (struct stateshape){ k - 1, all, 1 });
        while (next_batch(&world, one)) {
            if (world.c.n_tokens == 0) continue;
            struct both x = both_new(world.c.n_tokens, all, 3, 1),
                        out = both_new(world.c.n_tokens, all, 5, 1);
            for (int p = 0, at = 0; p < 3; at += wide[i][p++]) {
                struct conv_opt oc = {
                    .w = w[p].c.data, .k = k, .silu = true, .at = at, .of = all
                };
                struct conv_opt og = oc;
                struct tensor xc = tensor_cols(x.c, at, wide[i][p]),
                              xg = tensor_cols(x.g, at, wide[i][p]);
                struct tensor yc = tensor_cols(out.c, at, wide[i][p]),
                              yg = tensor_cols(out.g, at, wide[i][p]);
                og.w = w[p].g.data;
                ref->conv(ref, &yc, &xc, &world.c, 1, &oc);
                sync_backend(ref);
                gpu->conv(gpu, &yg, &xg, &world.g, 1, &og);
                sync_backend(gpu);
            }
            assert_both_close("conv of parts", &out, 1e-6);
            both_free(&x), both_free(&out);
        }
        world_close(&world, "conv of parts", (k - 1) * all, 0, 0);
        for (int p = 0; p < 3; p++) both_free(&w[p]);
    }
}

/* ---- selective scan ---- */

static void make_negative(struct both *a)
{
    float *x = a->c.data;

    for (size_t i = 0; i < n_of(&a->c); i++) x[i] = -expf(x[i]);
    gpu->put(gpu, a->g.data, x, n_of(&a->c) * sizeof *x);
    sync_backend(gpu);
}

static void scan_batch(struct world *w, const struct scan_opt *oc, const struct scan_opt *og)
{
    int n = w->c.n_tokens, cols = oc->n_heads * oc->head_dim, nb = oc->n_groups * oc->n_state;
    struct both x = both_new(n, cols, 3, 1), dt = both_new(n, oc->n_heads, 2, 2),
                b = both_new(n, nb, 1, 1);
    struct both c = both_new(n, nb, 0, 1), out = both_new(n, cols, 4, 1);
    struct scan_in in = { x.c, dt.c, b.c, c.c }, ing = { x.g, dt.g, b.g, c.g };

    ref->scan(ref, &out.c, &in, &w->c, 1, oc), gpu->scan(gpu, &out.g, &ing, &w->g, 1, og);
    assert_both_close("scan", &out, 2e-5);
    both_free(&x), both_free(&dt), both_free(&b), both_free(&c), both_free(&out);
}

static void a_selective_scan_continues_across_chunks_in_mixed_batches(void **state)
{
    static const struct scan_opt shapes[] = {
        { .n_heads = 1, .head_dim = 3, .n_groups = 1, .n_state = 5, .dt_max = INFINITY },
        { .n_heads = 8, .head_dim = 16, .n_groups = 1, .n_state = 16, .dt_max = INFINITY },
        { .n_heads = 6,
          .head_dim = 20,
          .n_groups = 3,
          .n_state = 33,
          .dt_min = 0.1f,
          .dt_max = 0.7f },
        { .n_heads = 2, .head_dim = 64, .n_groups = 2, .n_state = 128, .dt_max = INFINITY },
        { .n_heads = 3, .head_dim = 40, .n_groups = 1, .n_state = 200, .dt_max = INFINITY },
        { .n_heads = 7,
          .head_dim = 1,
          .n_groups = 1,
          .n_state = 3,
          .wide = true,
          .dt_max = INFINITY },
        { .n_heads = 128,
          .head_dim = 1,
          .n_groups = 1,
          .n_state = 16,
          .wide = true,
          .dt_max = INFINITY },
        { .n_heads = 150, .head_dim = 1, .n_groups = 1, .n_state = 41, .wide = true, .dt_max = 1 },
        { .n_heads = 33,
          .head_dim = 1,
          .n_groups = 1,
          .n_state = 100,
          .wide = true,
          .dt_max = INFINITY },
    };
    (void)state;
    need_gpu();
    EACH(i, shapes) for (int one = 0; one < 2; one++)
    {
        if (!is_selected()) continue;
        struct scan_opt oc = shapes[i], og = oc;
        struct both a = both_new(oc.wide ? oc.n_state : 1, oc.n_heads, 0, 1),
                    d = both_new(1, oc.n_heads, 0, 1);
        struct both bias = both_new(1, oc.n_heads, 0, 1);
        int rec = oc.n_heads * oc.head_dim * oc.n_state;
        struct world w;
        make_negative(&a);
        oc.a = a.c.data, oc.d = d.c.data, oc.dt_bias = bias.c.data;
        og.a = a.g.data, og.d = d.g.data, og.dt_bias = bias.g.data;
        world_open(&w, (struct stateshape){ .rec = rec });
        while (next_batch(&w, one))
            if (w.c.n_tokens) scan_batch(&w, &oc, &og);
        world_close(&w, "scan", 0, rec, 2e-5);
        both_free(&a), both_free(&d), both_free(&bias);
    }
}

/* ---- gated delta rule ---- */

static void delta_batch(struct world *w, const struct delta_opt *oc, const struct delta_opt *og)
{
    int n = w->c.n_tokens, nk = oc->n_k_heads * oc->dim_k, nv = oc->n_heads * oc->dim_v;
    struct both q = both_new(n, nk, 3, 1), k = both_new(n, nk, 0, 1), v = both_new(n, nv, 1, 1);
    struct both alpha = both_new(n, oc->n_heads, 2, 2), beta = both_new(n, oc->n_heads, 0, 2);
    struct both out = both_new(n, nv, 4, 1);
    struct delta_in in = { q.c, k.c, v.c, alpha.c, beta.c },
                    ing = { q.g, k.g, v.g, alpha.g, beta.g };

    ref->delta(ref, &out.c, &in, &w->c, 1, oc), gpu->delta(gpu, &out.g, &ing, &w->g, 1, og);
    assert_both_close("delta", &out, 5e-5);
    both_free(&q), both_free(&k), both_free(&v), both_free(&alpha), both_free(&beta),
        both_free(&out);
}

static void the_delta_rule_continues_across_chunks_in_mixed_batches(void **state)
{
    static const struct delta_opt shapes[] = {
        { .n_heads = 1, .n_k_heads = 1, .dim_k = 3, .dim_v = 5 },
        { .n_heads = 4, .n_k_heads = 2, .dim_k = 16, .dim_v = 16 },
        { .n_heads = 6, .n_k_heads = 2, .dim_k = 33, .dim_v = 70 },
        { .n_heads = 6, .n_k_heads = 3, .dim_k = 24, .dim_v = 20, .beta_scale = 2 },
        { .n_heads = 6, .n_k_heads = 2, .dim_k = 16, .dim_v = 32, .tiled = true },
        { .n_heads = 2, .n_k_heads = 2, .dim_k = 128, .dim_v = 128 },
        { .n_heads = 3, .n_k_heads = 1, .dim_k = 192, .dim_v = 20 },
    };
    (void)state;
    need_gpu();
    EACH(i, shapes) for (int one = 0; one < 2; one++)
    {
        if (!is_selected()) continue;
        struct delta_opt oc = shapes[i], og;
        struct both a = both_new(1, oc.n_heads, 0, 1), bias = both_new(1, oc.n_heads, 0, 1);
        int rec = oc.n_heads * oc.dim_k * oc.dim_v;
        struct world w;
        make_negative(&a);
        oc.k_scale = 0.5f / sqrtf((float)oc.dim_k), oc.q_scale = 0.3f;
        og = oc;
        oc.a = a.c.data, oc.dt_bias = bias.c.data;
        og.a = a.g.data, og.dt_bias = bias.g.data;
        world_open(&w, (struct stateshape){ .rec = rec });
        while (next_batch(&w, one))
            if (w.c.n_tokens) delta_batch(&w, &oc, &og);
        world_close(&w, "delta", 0, rec, 5e-5);
        both_free(&a), both_free(&bias);
    }
}

/* ---- state ---- */

static void a_state_is_copied_on_the_device(void **state)
{
    enum { CONV = 3 * 20, REC = 100 };
    struct stateshape shape = { 3, 20, REC };
    struct state_store *p = NULL;
    struct stateview v;
    float conv[CONV], rec[REC], got[REC] = { 0 };
    struct err e = { 0 };
    (void)state;
    need_gpu();
    if (state_store_open(&p, &(struct backend_share){ gpu, 1 }, 1, &shape, 3, &e) != OK)
        fail_msg("%s", e.msg);
    state_store_view(p, &v);
    for (int i = 0; i < CONV; i++) conv[i] = rng_normal(&rng);
    for (int i = 0; i < REC; i++) rec[i] = rng_normal(&rng);
    int from = 2, to = 0;
    gpu->put(gpu, v.layers[0].conv + (size_t)from * v.layers[0].conv_floats, conv, sizeof conv);
    gpu->put(gpu, v.layers[0].rec + (size_t)from * v.layers[0].rec_floats, rec, sizeof rec);
    state_store_copy(p, to, from);
    gpu->get(gpu, got, v.layers[0].rec + (size_t)to * v.layers[0].rec_floats, sizeof rec);
    sync_backend(gpu);
    assert_memory_equal(got, rec, sizeof rec);
    gpu->get(gpu, got, v.layers[0].conv + (size_t)to * v.layers[0].conv_floats, sizeof conv);
    sync_backend(gpu);
    assert_memory_equal(got, conv, sizeof conv);
    state_store_close(p);
}

static void a_state_that_does_not_fit_is_refused(void **state)
{
    struct both x = { 0 };
    struct scan_opt o = {
        .n_heads = 2, .head_dim = 4, .n_groups = 1, .n_state = 300, .dt_max = INFINITY
    };
    struct scan_in in;
    struct err e = { 0 };
    struct world w;
    (void)state;
    need_gpu();
    x = both_new(1, 300, 0, 1);
    in = (struct scan_in){ x.g, x.g, x.g, x.g };
    world_open(&w, (struct stateshape){ .rec = 2 * 4 * 300 });
    next_batch(&w, true);
    gpu->scan(gpu, &x.g, &in, &w.g, 1, &o);
    assert_int_equal(gpu->sync(gpu, &e), E_UNSUPPORTED);
    o.n_heads = 3, o.n_state = 250;
    gpu->scan(gpu, &x.g, &in, &w.g, 1, &o);
    assert_int_equal(gpu->sync(gpu, &e), E_INVALID);
    world_close(&w, "none", 0, 0, 0);
    both_free(&x);
}

/* ---- one matrix for each head ---- */

static void check_head_matrices(int which, int n, int rows, int cols, int tail)
{
    static const int tokens[] = { 1, 3, 8, 9, 70 };
    struct err e = { 0 };
    char *bytes = pair_bytes(which, n * rows, cols);
    struct weight c = { .type = halves[which].type,
                        .rows = rows,
                        .cols = cols,
                        .n = n,
                        .data = bytes },
                  g = c;

    if (ref->weight_put(ref, &c, &e) != OK || ref->weights_finish(ref, &e) != OK ||
        gpu->weight_put(gpu, &g, &e) != OK)
        fail_msg("%s", e.msg);
    finish_weights();
    EACH(t, tokens)
    {
        if (!is_selected()) continue;
        int x_step = cols + tail + (t % 2 ? 3 : 0), out_step = rows + tail + (t % 2 ? 1 : 0);
        struct both x = both_new(tokens[t], n * x_step, t % 3, 1),
                    out = both_new(tokens[t], n * out_step, t % 2, 1);
        struct linear_heads_opt oc = { &c, x_step, out_step, tail },
                                og = { &g, x_step, out_step, tail };
        ref->linear_heads(ref, &out.c, &x.c, &oc), gpu->linear_heads(gpu, &out.g, &x.g, &og);
        double err = both_error(&out);
        if (!(err <= 2e-3))
            fail_msg("matrix per head, %s, %d heads, %d x %d, %d tokens: relative error %g",
                     type_name(which), n, rows, cols, tokens[t], err);
        both_free(&x), both_free(&out);
    }
    gpu->weight_drop(gpu, &g), ref->weight_drop(ref, &c);
    mem_free(bytes);
}

static void a_matrix_product_per_head_agrees(void **state)
{
    (void)state;
    need_gpu();
    for (int i = 0; i < N_TYPES; i++) {
        int block = dtype_info((int)halves[i].type)->block;
        if (is_unsupported(i)) continue;
        check_head_matrices(i, 3, 40, block == 256 ? 256 : 64, 16);
        check_head_matrices(i, 2, 130, block == 256 ? 512 : 160, 0);
        if (block == 1)
            check_head_matrices(i, 5, 17, 45, 3), check_head_matrices(i, 1, 32, 128, 64);
    }
}

/* ---- attention ---- */

static const enum dtype kv_types[] = { DT_F16, DT_F32, DT_BF16, DT_Q8_0, DT_F8_E4M3 };

static void attention_over_wide_heads_and_latents_agrees(void **state)
{
    static const struct {
        int heads, kv, dim, dim_v;
        bool latent;
    } shapes[] = {
        { 16, 1, 576, 512, true }, { 5, 1, 288, 256, true },   { 4, 1, 24, 16, true },
        { 3, 1, 96, 64, true },    { 128, 1, 192, 128, true }, { 4, 2, 512, 512, false },
        { 2, 1, 300, 40, false },
    };
    (void)state;
    need_gpu();
    EACH(t, kv_types)
    {
        double worst = 0;
        EACH(s, shapes)
        {
            int dim = shapes[s].dim, dim_v = shapes[s].dim_v;
            if (kv_types[t] == DT_Q8_0 && (dim % 32 || dim_v % 32)) continue;
            struct cache k;
            cache_open_as(&k, kv_types[t], shapes[s].kv, dim, dim_v, shapes[s].latent);
            cache_fill(&k);
            for (int how = 0; how < 2; how++) {
                struct attend_opt o = { .n_heads = shapes[s].heads,
                                        .n_kv_heads = shapes[s].kv,
                                        .head_dim = dim,
                                        .head_dim_v = dim_v,
                                        .scale = 1 / sqrtf((float)dim),
                                        .window = how ? 25 : 0 };
                worst = fmax(worst, compare_attend(&k, &o, &o));
            }
            cache_close(&k);
        }
        print_message("wide heads and latents over %-5s largest error %.2e\n",
                      dtype_name((int)kv_types[t]), worst);
        if (!(worst < 5e-3)) fail_msg("%s: the error is too large", dtype_name((int)kv_types[t]));
    }
}

static void bidirectional_attention_agrees(void **state)
{
    static const struct {
        int heads, kv, dim;
    } shapes[] = { { 3, 3, 8 },  { 12, 12, 64 }, { 8, 2, 128 },
                   { 5, 5, 40 }, { 2, 1, 256 },  { 2, 2, 320 } };
    static const int windows[] = { 0, 1, 6, 25, 128, 1000 };
    (void)state;
    need_gpu();
    EACH(t, kv_types)
    {
        double worst = 0;
        EACH(s, shapes)
        {
            int dim = shapes[s].dim;
            if (kv_types[t] == DT_Q8_0 && dim % 32) continue;
            struct cache k;
            cache_open(&k, kv_types[t], shapes[s].kv, dim, dim);
            cache_fill(&k);
            EACH(w, windows)
            {
                struct attend_opt o = { .n_heads = shapes[s].heads,
                                        .n_kv_heads = shapes[s].kv,
                                        .head_dim = dim,
                                        .head_dim_v = dim,
                                        .scale = 1 / sqrtf((float)dim),
                                        .window = windows[w],
                                        .bidirectional = true };
                worst = fmax(worst, compare_attend(&k, &o, &o));
            }
            cache_close(&k);
        }
        print_message("bidirectional attention over %-5s largest error %.2e\n",
                      dtype_name((int)kv_types[t]), worst);
        if (!(worst < 5e-3)) fail_msg("%s: the error is too large", dtype_name((int)kv_types[t]));
    }
}

/* An argument selects tests by name. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_convolution_continues_across_chunks_in_mixed_batches),
        cmocka_unit_test(convolutions_share_a_state),
        cmocka_unit_test(a_selective_scan_continues_across_chunks_in_mixed_batches),
        cmocka_unit_test(the_delta_rule_continues_across_chunks_in_mixed_batches),
        cmocka_unit_test(a_state_is_copied_on_the_device),
        cmocka_unit_test(a_state_that_does_not_fit_is_refused),
        cmocka_unit_test(a_matrix_product_per_head_agrees),
        cmocka_unit_test(attention_over_wide_heads_and_latents_agrees),
        cmocka_unit_test(bidirectional_attention_agrees),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, open_all, close_all);
}
