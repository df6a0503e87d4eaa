/* Mixture of experts on the GPU against the reference backend: the choice of experts and their
 * feed-forward blocks.
 *
 * Weights, inputs and router logits are random. Skipped without a GPU. */
#include "cuda_pair.h"

/* ---- routing ---- */

static const char *const kinds[] = { "softmax", "softmax of the largest", "sigmoid", "sparsemixer",
                                     "sqrt of softplus" };

/* The score by which the router orders experts. */
static double score_of(const struct route_opt *o, const float *x, int i)
{
    double bias = o->bias ? (double)o->bias[i] : 0;

    if (o->route == ROUTE_SIGMOID) return 1 / (1 + exp(-(double)x[i])) + bias;
    if (o->route == ROUTE_SQRT_SOFTPLUS) return sqrt(log1p(exp((double)x[i]))) + bias;
    return (double)x[i];
}

/* Routes random logits on both backends. The experts may differ only where their scores are
 * equal in F32. */
static void compare_routing(int tokens, int n, const struct route_opt *opt, int gap)
{
    struct both x = both_new(tokens, n, gap, 2), bias = both_new(1, n, 0, 0.1f);
    struct both w = both_new(tokens, opt->n_used, 0, 1), scale = both_new(1, n, 0, 1);
    struct route_opt c = *opt, g = *opt;
    struct ints table, tokens_of; /* hash routing: 20 ids */
    size_t n_ids = (size_t)tokens * (size_t)opt->n_used;
    int32_t *want = mem_array(n_ids, sizeof *want), *got = mem_array(n_ids, sizeof *got);
    int32_t *there = device_copy(gpu, got, n_ids * sizeof *got);

    for (int i = 0; i < 20 * opt->n_used; i++) table.c[i] = (i + i / opt->n_used) % n;
    for (int i = 0; i < tokens; i++) tokens_of.c[i] = i * 7 % 20;
    ints_upload(&table, 20 * opt->n_used), ints_upload(&tokens_of, tokens);
    if (opt->bias) c.bias = bias.c.data, g.bias = bias.g.data;
    if (opt->expert_scale) c.expert_scale = scale.c.data, g.expert_scale = scale.g.data;
    if (opt->by_token)
        c.by_token = table.c, c.ids = tokens_of.c, g.by_token = table.g, g.ids = tokens_of.g;
    ref->route(ref, want, w.c.data, &x.c, &c);
    gpu->route(gpu, there, w.g.data, &x.g, &g);
    gpu->get(gpu, got, there, n_ids * sizeof *got);
    sync_backend(gpu);
    for (size_t i = 0; i < n_ids; i++) {
        const float *row = tensor_row(&x.c, (int)i / opt->n_used);
        assert_in_range(got[i], 0, n - 1);
        if (fabs(score_of(&c, row, got[i]) - score_of(&c, row, want[i])) > 1e-6) /* equal in F32 */
            fail_msg("%s, %d experts, choice %zu: expert %d instead of %d", kinds[opt->route], n, i,
                     got[i], want[i]);
    }
    assert_both_close(kinds[opt->route], &w, 1e-5);
    gpu->free(gpu, there, n_ids * sizeof *got, MEM_SCRATCH);
    ints_free(&table, 20 * opt->n_used), ints_free(&tokens_of, tokens);
    mem_free(want), mem_free(got);
    both_free(&x), both_free(&bias), both_free(&w), both_free(&scale);
}

static void tokens_choose_the_same_experts_as_on_the_cpu(void **state)
{
    static const int sizes[] = { 2, 3, 8, 31, 32, 33, 60, 128, 1000 }, used[] = { 1, 2, 4, 8, 33 };
    static const int tokens[] = { 1, 3, 70 };
    static const float some;
    (void)state;
    need_gpu();
    EACH(i, sizes) EACH(k, used) EACH(t, tokens) for (int how = 0; how < 16; how++)
    {
        if (!is_selected()) continue;
        struct route_opt o = { .route = (enum route_kind)(how % 3),
                               .n_used = used[k],
                               .norm = how & 1,
                               .scale = how & 2 ? 2.5f : 1,
                               .bias = how % 3 == 2 && how & 4 ? &some : NULL };
        if (used[k] <= sizes[i]) compare_routing(tokens[t], sizes[i], &o, how & 8 ? 3 : 0);
    }
    EACH(i, sizes)
    EACH(t, tokens)
    compare_routing(
        tokens[t], sizes[i],
        &(struct route_opt){ .route = ROUTE_SPARSEMIXER, .n_used = 2, .scale = 1, .jitter = 0.1f },
        0);
}

static void only_experts_of_the_best_groups_are_chosen(void **state)
{
    static const int shapes[][4] = {
        { 16, 4, 2, 2 }, { 60, 6, 1, 1 }, { 256, 8, 4, 2 }, { 128, 64, 10, 2 }, { 9, 1, 1, 2 }
    };
    static const float some;
    (void)state;
    need_gpu();
    EACH(i, shapes) for (int kind = ROUTE_SOFTMAX; kind <= ROUTE_SIGMOID; kind += ROUTE_SIGMOID)
    {
        struct route_opt o = { .route = (enum route_kind)kind,
                               .n_used = 4,
                               .scale = 1,
                               .bias = kind ? &some : NULL,
                               .n_groups = shapes[i][1],
                               .n_groups_used = shapes[i][2],
                               .group_top = shapes[i][3] };
        compare_routing(33, shapes[i][0], &o, 0);
    }
}

/* Scores by the root of softplus, scales of experts, and experts that the token's id names. */
static void routes_of_single_families_agree(void **state)
{
    static const int sizes[] = { 4, 8, 33, 256 }, used[] = { 1, 3 }, tokens[] = { 1, 5, 70 };
    static const float some;
    static const int32_t any;
    (void)state;
    need_gpu();
    EACH(i, sizes) EACH(k, used) EACH(t, tokens) for (int how = 0; how < 16; how++)
    {
        if (!is_selected()) continue;
        struct route_opt o = { .route = how & 1 ? ROUTE_SQRT_SOFTPLUS : ROUTE_SOFTMAX,
                               .n_used = used[k],
                               .norm = how & 2,
                               .scale = 1.5f,
                               .bias = how & 1 ? &some : NULL,
                               .expert_scale = how & 4 ? &some : NULL,
                               .by_token = how & 8 ? &any : NULL };
        compare_routing(tokens[t], sizes[i], &o, how & 2 ? 3 : 0);
    }
}

/* ---- experts ---- */

enum { MAX_EXPERTS = 9 };

/* One weight (gate, up or down) of all experts of a layer, on both backends. */
struct role {
    struct weight c[MAX_EXPERTS], g[MAX_EXPERTS];
    char *bytes[MAX_EXPERTS];
    int n;
};

static void role_init(struct role *r, const int *which, int n, int rows, int cols)
{
    r->n = n;
    for (int e = 0; e < n; e++) r->bytes[e] = upload_pair(&r->c[e], &r->g[e], which[e], rows, cols);
}

static void role_free(struct role *r)
{
    for (int e = 0; e < r->n; e++) {
        gpu->weight_drop(gpu, &r->g[e]);
        ref->weight_drop(ref, &r->c[e]);
        mem_free(r->bytes[e]);
    }
}

struct shape {
    int tokens, n, n_used, embd, wide;
    int gate[MAX_EXPERTS], up[MAX_EXPERTS], down[MAX_EXPERTS]; /* indexes of halves[] */
    bool gated, biased, add, crowd; /* crowd: most tokens choose the same expert */
    enum act act;
    bool weigh;           /* the weights belong to the inputs */
    int n_zero;           /* experts that return their input */
    struct glu_clip clip; /* limit 0: none */
};

static void choose_experts(struct ints *ids, const struct shape *s)
{
    for (int t = 0; t < s->tokens; t++)
        for (int k = 0; k < s->n_used; k++) {
            int all = s->n + s->n_zero;
            int first = s->crowd && t % 8 ? 1 : (int)(rng_u64(&rng) % (uint64_t)all);
            int32_t *row = ids->c + t * s->n_used;
            row[k] = k ? (row[0] + k) % all : first;
        }
}

/* Runs the experts on both backends. Returns the relative error of the output, relative to the
 * size of the experts' results before they are added. */
static double compare_experts(const struct shape *s)
{
    static struct role gate, up, down;
    int rows = s->tokens * s->n_used, n_order = 2 * rows + s->n + s->n_zero + 1;
    struct both x = both_new(s->tokens, s->embd, 4, 0.3f), out = both_new(s->tokens, s->embd, 3, 1);
    struct both w = both_new(s->tokens, s->n_used, 0, 1), bg = both_new(s->n, s->wide, 0, 0.2f);
    struct both bu = both_new(s->n, s->wide, 0, 0.2f), bd = both_new(s->n, s->embd, 0, 0.2f);
    struct both xs = both_new(rows, s->embd, 0, 1), ys = both_new(rows, s->embd, 0, 1);
    struct both hs = both_new(rows, s->wide, 0, 1), us = both_new(rows, s->wide, 0, 1);
    struct ints ids;
    int32_t *order_c = mem_array((size_t)n_order, sizeof *order_c);
    int32_t *order_g = device_copy(gpu, order_c, (size_t)n_order * sizeof *order_c);
    double size = 0, e;

    if (s->gated) role_init(&gate, s->gate, s->n, s->wide, s->embd);
    role_init(&up, s->up, s->n, s->wide, s->embd);
    role_init(&down, s->down, s->n, s->embd, s->wide);
    finish_weights();
    choose_experts(&ids, s);
    ints_upload(&ids, rows);
    struct experts_opt c = { .n = s->n,
                             .n_used = s->n_used,
                             .gate = s->gated ? gate.c : NULL,
                             .up = up.c,
                             .down = down.c,
                             .act = s->act,
                             .clip = s->clip,
                             .scale = 0.7f,
                             .add = s->add,
                             .weigh_inputs = s->weigh,
                             .n_zero = s->n_zero,
                             .xs = xs.c,
                             .hs = hs.c,
                             .us = us.c,
                             .ys = ys.c,
                             .order = order_c };
    struct experts_opt g = c;
    g.gate = s->gated ? gate.g : NULL, g.up = up.g, g.down = down.g;
    g.xs = xs.g, g.hs = hs.g, g.us = us.g, g.ys = ys.g, g.order = order_g;
    if (s->biased) {
        c.b_gate = bg.c.data, c.b_up = bu.c.data, c.b_down = bd.c.data;
        g.b_gate = bg.g.data, g.b_up = bu.g.data, g.b_down = bd.g.data;
    }
    ref->experts(ref, &out.c, &x.c, ids.c, w.c.data, &c);
    sync_backend(ref);
    gpu->experts(gpu, &out.g, &x.g, ids.g, w.g.data, &g);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < s->embd; i++) size += pow((double)tensor_row(&ys.c, r)[i], 2);
    e = both_error_of(&out, sqrt(size / rows / s->embd));
    if (s->gated) role_free(&gate);
    role_free(&up), role_free(&down);
    ints_free(&ids, rows);
    gpu->free(gpu, order_g, (size_t)n_order * sizeof *order_g, MEM_SCRATCH);
    mem_free(order_c);
    both_free(&x), both_free(&out), both_free(&w), both_free(&bg), both_free(&bu), both_free(&bd);
    both_free(&xs), both_free(&hs), both_free(&us), both_free(&ys);
    return e;
}

/* Case number k: sizes, activation and options, all experts of type t. */
static struct shape make_shape(int t, int tokens, int k)
{
    static const int plain[] = { 33, 100, 64, 129 }, small[] = { 32, 96, 160, 64 },
                     large[] = { 256, 512, 256, 768 };
    int block = dtype_info((int)halves[t].type)->block;
    const int *dims = block == 1 ? plain : block == 32 ? small : large;
    struct shape s = { .tokens = tokens,
                       .n = 3 + k % 7,
                       .n_used = 1 + k % 3,
                       .embd = dims[k % 4],
                       .wide = dims[(k + 1) % 4],
                       .gated = k % 4 != 3,
                       .biased = k % 2,
                       .add = k % 3 == 1,
                       .crowd = k % 5 == 2,
                       .act = k % 3 ? ACT_SILU : ACT_GELU_TANH };

    if (s.gated && k % 6 == 1) s.act = ACT_SWIGLU_CLIP;
    for (int e = 0; e < s.n; e++) s.gate[e] = s.up[e] = s.down[e] = t;
    return s;
}

static bool is_too_far_off(const char *what, const struct shape *s, double e)
{
    if (e < 5e-3) return false;
    print_message("%s: %d tokens, %d of %d experts, %d x %d%s: relative error %g\n", what,
                  s->tokens, s->n_used, s->n, s->wide, s->embd, s->gated ? " gated" : "", e);
    return true;
}

static void experts_of_every_weight_type_agree(void **state)
{
    static const int tokens[] = { 1, 2, 4, 5, 9, 33, 64, 65, 200 };
    int bad = 0;
    (void)state;
    need_gpu();
    for (int t = 0; t < N_TYPES; t++) {
        double worst = 0;
        if (is_unsupported(t)) continue;
        EACH(i, tokens) for (int k = (int)i; k < (int)i + 3; k++)
        {
            if (!is_selected()) continue;
            struct shape s = make_shape(t, tokens[i], k);
            double e = compare_experts(&s);
            bad += is_too_far_off(type_name(t), &s, e);
            worst = fmax(worst, e);
        }
        print_message("experts %-8s largest error %.2e%s\n", type_name(t), worst,
                      worst < 5e-3 ? "" : "  TOO FAR OFF");
    }
    assert_int_equal(bad, 0);
}

static int index_of_type(enum dtype t)
{
    for (int i = 0; i < N_TYPES; i++)
        if (halves[i].type == t) return i;
    return 0;
}

/* The experts are so wide that few tokens fill the GPU: float types use another kernel then. */
static void few_tokens_of_large_experts_agree(void **state)
{
    static const enum dtype types[] = { DT_BF16, DT_F16, DT_Q4_0 };
    (void)state;
    need_gpu();
    EACH(i, types) for (int tokens = 1; tokens < 4; tokens++)
    {
        struct shape s = { .tokens = tokens,
                           .n = 3,
                           .n_used = 2,
                           .embd = 64,
                           .wide = 9024,
                           .gated = true,
                           .biased = true,
                           .act = ACT_SILU };
        for (int e = 0; e < s.n; e++) s.gate[e] = s.up[e] = s.down[e] = index_of_type(types[i]);
        assert_false(is_too_far_off("large", &s, compare_experts(&s)));
    }
}

/* Experts with so many choices that they are multiplied in tiles; crowd: some have few or none. */
static void many_choices_of_each_expert_agree(void **state)
{
    static const enum dtype types[] = { DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_Q4_0, DT_Q8_0, DT_MXFP4 };
    static const int tokens[] = { 50, 65, 128, 512 };
    int bad = 0;
    (void)state;
    need_gpu();
    EACH(i, types) EACH(k, tokens) for (int crowd = 0; crowd < 2; crowd++)
    {
        if (!is_selected()) continue;
        struct shape s = { .tokens = tokens[k],
                           .n = 4,
                           .n_used = 2,
                           .embd = k ? 512 : 256,
                           .wide = k == 1 ? 768 : 256,
                           .gated = true,
                           .add = crowd,
                           .crowd = crowd,
                           .act = ACT_SILU };
        for (int e = 0; e < s.n; e++) {
            s.gate[e] = s.up[e] = index_of_type(types[i]);
            s.down[e] = index_of_type(types[(i + (size_t)k) % 3 + i / 3 * 3]);
        }
        bad += is_too_far_off("many choices", &s, compare_experts(&s));
    }
    assert_int_equal(bad, 0);
}

/* A norm, the router's product and its choice, which are one kernel for few tokens. */
static void norm_and_choice_agree(void **state)
{
    static const enum dtype types[] = { DT_F32, DT_F16, DT_BF16 };
    static const int tokens[] = { 1, 2, 8, 9 }, rows[] = { 4, 60, 129, 512 },
                     cols[] = { 64, 516, 2048, 4092 };
    (void)state;
    need_gpu();
    EACH(i, types) EACH(k, tokens) EACH(r, rows) EACH(j, cols)
    {
        if (!is_selected()) continue;
        struct pair w;
        int gap = r % 2 ? 4 : 0, n_used = 1 + (int)r;
        struct both x = both_new(tokens[k], cols[j], gap, 3),
                    xn = both_new(tokens[k], cols[j], gap, 1);
        struct both out = both_new(tokens[k], rows[r], 1, 1), nw = both_new(1, cols[j], 0, 1);
        struct both bias = both_new(1, rows[r], 0, 1), shares = both_new(tokens[k], n_used, 0, 1);
        struct ints ids;
        struct route_opt o = { .route = ROUTE_SOFTMAX, .n_used = n_used, .scale = 1, .norm = true };
        pair_init(&w, index_of_type(types[i]), rows[r], cols[j]);
        finish_weights();
        ints_upload(&ids, tokens[k] * n_used);
        struct linear c = { .out = out.c, .w = &w.c, .bias = bias.c.data },
                      g = { .out = out.g, .w = &w.g, .bias = bias.g.data };
        ref->rmsnorm(ref, &xn.c, &x.c, nw.c.data, 1e-5f);
        ref->linear(ref, &xn.c, &c, 1);
        ref->route(ref, ids.c, shares.c.data, &out.c, &o);
        gpu->rmsnorm(gpu, &xn.g, &x.g, nw.g.data, 1e-5f);
        gpu->linear(gpu, &xn.g, &g, 1);
        gpu->route(gpu, ids.g, shares.g.data, &out.g, &o);
        assert_both_close("normalized x", &xn, 1e-5);
        assert_both_close("scores", &out, 2e-5);
        assert_both_close("shares", &shares, 1e-4);
        ints_free(&ids, tokens[k] * n_used);
        both_free(&x), both_free(&xn), both_free(&out), both_free(&nw), both_free(&bias);
        both_free(&shares), pair_free(&w);
    }
}

/* The gate has another type than up, and some experts have other types than the rest. */
static void experts_may_have_different_types(void **state)
{
    static const enum dtype kinds_of[][3] = { { DT_Q4_K, DT_Q6_K, DT_F16 },
                                              { DT_F32, DT_Q8_0, DT_BF16 },
                                              { DT_BF16, DT_BF16, DT_Q4_0 } };
    static const int tokens[] = { 1, 3, 17, 150 };
    int bad = 0;
    (void)state;
    need_gpu();
    EACH(i, kinds_of) EACH(k, tokens) for (int mixed = 0; mixed < 2; mixed++)
    {
        if (!is_selected()) continue;
        struct shape s = { .tokens = tokens[k],
                           .n = 6,
                           .n_used = 2,
                           .embd = 256,
                           .wide = 512,
                           .gated = true,
                           .biased = true,
                           .act = ACT_SILU };
        for (int e = 0; e < s.n; e++) {
            s.gate[e] = index_of_type(kinds_of[i][mixed && e > 3 ? 1 : 0]);
            s.up[e] = index_of_type(kinds_of[i][1]);
            s.down[e] = index_of_type(kinds_of[i][mixed && e % 2 ? 0 : 2]);
        }
        bad += is_too_far_off("of two types", &s, compare_experts(&s));
    }
    assert_int_equal(bad, 0);
}

/* Weighted inputs (llama 4), experts that return their input (longcat), clipped activations. */
static void experts_of_single_families_agree(void **state)
{
    static const enum dtype types[] = { DT_BF16, DT_F32, DT_Q4_0, DT_Q8_0 };
    static const int tokens[] = { 1, 3, 4, 5, 33, 150 };
    int bad = 0;
    (void)state;
    need_gpu();
    EACH(i, types) EACH(k, tokens) for (int how = 1; how < 8; how++)
    {
        if (!is_selected()) continue;
        struct shape s = make_shape(index_of_type(types[i]), tokens[k], how);
        s.gated = true;
        s.act = ACT_SILU;
        s.weigh = how & 1;
        s.n_zero = how & 2 ? 3 : 0;
        if (how & 4) s.clip = (struct glu_clip){ 1.702f, 0.5f, how & 1 };
        bad += is_too_far_off("of a family", &s, compare_experts(&s));
        s.gate[1] = index_of_type(types[i] == DT_F32 ? DT_F16 : DT_F32); /* gate apart from up */
        bad += is_too_far_off("of a family, gate of another type", &s, compare_experts(&s));
    }
    assert_int_equal(bad, 0);
}

static void router_logits_are_computed_in_f32(void **state)
{
    static const enum dtype types[] = { DT_F32, DT_F16, DT_BF16 };
    static const int tokens[] = { 1, 4, 9, 130 }, rows[] = { 4, 60, 129 };
    (void)state;
    need_gpu();
    EACH(i, types) EACH(k, tokens) EACH(r, rows)
    {
        if (!is_selected()) continue;
        struct pair w;
        struct both x = both_new(tokens[k], 515, 2, 1), out = both_new(tokens[k], rows[r], 1, 1);
        struct both bias = both_new(1, rows[r], 0, 1), shares = both_new(tokens[k], 1, 0, 1);
        struct ints ids = { .c = { 0 } };
        struct route_opt o = { .route = ROUTE_SOFTMAX, .n_used = 1, .scale = 1 };
        pair_init(&w, index_of_type(types[i]), rows[r], 515);
        finish_weights();
        ints_upload(&ids, tokens[k]);
        ref->linear(ref, &x.c, &(struct linear){ .out = out.c, .w = &w.c, .bias = bias.c.data }, 1);
        gpu->linear(gpu, &x.g, &(struct linear){ .out = out.g, .w = &w.g, .bias = bias.g.data }, 1);
        gpu->route(gpu, ids.g, shares.g.data, &out.g, &o);
        assert_both_close("scores", &out, 1e-5);
        ints_free(&ids, tokens[k]);
        both_free(&x), both_free(&out), both_free(&bias), both_free(&shares), pair_free(&w);
    }
}

static void too_many_experts_are_refused(void **state)
{
    struct both x = { .c = { 0 } };
    struct err e = { 0 };
    struct ints ids = { .c = { 0 } };
    (void)state;
    need_gpu();
    x = both_new(1, MOE_MAX_EXPERTS + 1, 0, 1);
    ints_upload(&ids, 1);
    gpu->route(gpu, ids.g, x.g.data, &x.g, &(struct route_opt){ .n_used = 1, .scale = 1 });
    assert_int_equal(gpu->sync(gpu, &e), E_UNSUPPORTED);
    assert_int_equal(gpu->sync(gpu, &e), OK);
    ints_free(&ids, 1);
    both_free(&x);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_choose_the_same_experts_as_on_the_cpu),
        cmocka_unit_test(only_experts_of_the_best_groups_are_chosen),
        cmocka_unit_test(routes_of_single_families_agree),
        cmocka_unit_test(experts_of_every_weight_type_agree),
        cmocka_unit_test(few_tokens_of_large_experts_agree),
        cmocka_unit_test(many_choices_of_each_expert_agree),
        cmocka_unit_test(norm_and_choice_agree),
        cmocka_unit_test(experts_may_have_different_types),
        cmocka_unit_test(experts_of_single_families_agree),
        cmocka_unit_test(router_logits_are_computed_in_f32),
        cmocka_unit_test(too_many_experts_are_refused),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, open_all, close_all);
}
