/* Mixture of experts on the CPU: routing against values computed by hand, experts' blocks
 * against plain loops in double, and the small operations beside them.
 *
 * Weights and inputs are random. Reads no files. */
#include "support.h"

#include "base/mem.h"
#include "base/rng.h"
#include "kernel/backend.h"
#include "kernel/quant.h"

#include <math.h>

static struct rng rng;

static void fill_random(float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) x[i] = rng_normal(&rng) * scale;
}

static struct backend *open_cpu(bool reference)
{
    struct backend *be = NULL;
    assert_int_equal(
        backend_open(&be, &(struct backend_opt){ .n_threads = 2, .reference = reference }, NULL),
        OK);
    return be;
}

static void assert_close(const char *what, const float *got, const float *want, size_t n,
                         double tol)
{
    double diff = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        size += (double)want[i] * want[i];
    }
    if (!(sqrt(diff) <= tol * sqrt(size)))
        fail_msg("%s: relative error %g", what, sqrt(diff / size));
}

/* ---- routing ---- */

enum { MAX_N = 64 };

struct routed {
    int32_t ids[MAX_N];
    float w[MAX_N];
};

static struct routed route_token(const float *logits, int n, struct route_opt o)
{
    struct backend *be = open_cpu(true);
    struct tensor t = tensor_f32((float *)logits, 1, n);
    struct routed r;
    if (o.scale == 0) o.scale = 1;
    be->route(be, r.ids, r.w, &t, &o);
    assert_int_equal(be->sync(be, NULL), OK);
    backend_close(be);
    return r;
}

static void softmax_is_applied_before_or_after_the_choice_of_experts(void **state)
{
    const float x[4] = { 1, 3, 2, -1 };
    double e1 = exp(1), e2 = exp(2), e3 = exp(3), em = exp(-1), all = e1 + e2 + e3 + em;
    struct routed r = route_token(x, 4, (struct route_opt){ .route = ROUTE_SOFTMAX, .n_used = 2 });
    (void)state;
    assert_true(r.ids[0] == 1 && r.ids[1] == 2);
    assert_float_equal(r.w[0], e3 / all, 1e-6);
    assert_float_equal(r.w[1], e2 / all, 1e-6);
    r = route_token(
        x, 4, (struct route_opt){ .route = ROUTE_SOFTMAX, .n_used = 2, .norm = true, .scale = 2 });
    assert_float_equal(r.w[0], 2 * e3 / (e3 + e2), 1e-6);
    r = route_token(x, 4, (struct route_opt){ .route = ROUTE_TOP_SOFTMAX, .n_used = 2 });
    assert_float_equal(r.w[0], e3 / (e3 + e2), 1e-6);
    assert_float_equal(r.w[1], e2 / (e3 + e2), 1e-6);
}

static void a_router_bias_affects_the_choice_but_not_the_weight(void **state)
{
    const float x[4] = { 0, 2, 1, -3 }, bias[4] = { 0.9f, 0, 0, 0 };
    struct route_opt o = { .route = ROUTE_SIGMOID, .n_used = 2, .bias = bias };
    struct routed r = route_token(x, 4, o);
    (void)state;
    assert_true(r.ids[0] == 0 && r.ids[1] == 1);
    assert_float_equal(r.w[0], 0.5, 1e-6);
    assert_float_equal(r.w[1], 1 / (1 + exp(-2)), 1e-6);
}

static void only_experts_of_the_best_groups_are_chosen(void **state)
{
    /* Group scores as the sum of the two best: 0.9 + 0.1, 0.6 + 0.6, 0.7 + 0.2; as the best one:
     * 0.9, 0.6, 0.7. */
    const float p[6] = { 0.9f, 0.1f, 0.6f, 0.6f, 0.7f, 0.2f };
    float x[6];
    struct route_opt o = {
        .route = ROUTE_SIGMOID, .n_used = 2, .n_groups = 3, .n_groups_used = 1, .group_top = 2
    };
    struct routed r;
    (void)state;
    for (int i = 0; i < 6; i++) x[i] = logf(p[i] / (1 - p[i]));
    r = route_token(x, 6, o);
    assert_true(r.ids[0] == 2 && r.ids[1] == 3);
    o.group_top = 1;
    r = route_token(x, 6, o);
    assert_true(r.ids[0] == 0 && r.ids[1] == 1);
    o.n_groups_used = 2;
    r = route_token(x, 6, o);
    assert_true(r.ids[0] == 0 && r.ids[1] == 4);
}

static void sparsemixer_normalizes_over_experts_within_the_jitter_margin(void **state)
{
    const float x[4] = { 2.0f, 1.99f, 1.0f, -4.0f };
    struct routed r = route_token(
        x, 4, (struct route_opt){ .route = ROUTE_SPARSEMIXER, .n_used = 2, .jitter = 0.01f });
    (void)state;
    assert_true(r.ids[0] == 0 && r.ids[1] == 1);
    assert_float_equal(r.w[0], 1 / (1 + exp(1.99 - 2.0)), 1e-5);
    assert_float_equal(r.w[1], 1,
                       1e-6); /* the first expert is masked, the third is outside the margin */
}

/* ---- the blocks ---- */

struct mix {
    int n, used, tokens, in, wide;
    enum dtype type;
    bool gated, biased, add;
    enum act act;
};

struct weights {
    struct weight *w;
    float *plain; /* [n][rows][cols], as the weights decode to */
};

static struct weights make_weights(int n, int rows, int cols, enum dtype type)
{
    struct weights m = { mem_array((size_t)n, sizeof *m.w),
                         mem_array((size_t)n, (size_t)rows * cols * sizeof(float)) };
    uint64_t bytes;
    assert_true(dtype_row_bytes(type, (uint64_t)cols, &bytes));
    for (int e = 0; e < n; e++) {
        char *data = mem_aligned((size_t)rows * bytes);
        for (int r = 0; r < rows; r++) {
            float *row = m.plain + ((size_t)e * rows + r) * cols;
            fill_random(row, (size_t)cols, 0.2f);
            quant_encode(type, row, data + (size_t)r * bytes, cols);
            quant_decode(type, data + (size_t)r * bytes, row, cols);
        }
        m.w[e] = (struct weight){ .type = type, .rows = rows, .cols = cols, .n = 1, .data = data };
    }
    return m;
}

static void free_weights(struct weights *m, int n)
{
    uint64_t bytes = 0;
    for (int e = 0; e < n; e++) {
        dtype_row_bytes(m->w[e].type, (uint64_t)m->w[e].cols, &bytes);
        mem_free_aligned((void *)m->w[e].data, (size_t)m->w[e].rows * bytes);
    }
    mem_free(m->w);
    mem_free(m->plain);
}

static void multiply(double *out, const float *w, const double *x, const float *b, int rows,
                     int cols)
{
    for (int r = 0; r < rows; r++) {
        double s = b ? b[r] : 0;
        for (int c = 0; c < cols; c++) s += (double)w[(size_t)r * cols + c] * x[c];
        out[r] = s;
    }
}

static double apply_act(enum act a, double g, double u, bool gated)
{
    double q = fmin(g, 7);
    if (a == ACT_SWIGLU_CLIP) return q / (1 + exp(-1.702 * q)) * (fmax(fmin(u, 7), -7) + 1);
    g = a == ACT_RELU ? fmax(g, 0) : g / (1 + exp(-g));
    return gated ? g * u : g;
}

/* The definition in plain loops: out = sum over chosen experts of 0.5 * share * down(act(gate x,
 * up x)). */
static void compute_plain(const struct mix *m, float *out, const float *x, const int32_t *ids,
                          const float *share, const struct weights w[3], float *const b[3])
{
    double *h = mem_array((size_t)m->wide, sizeof *h), *u = mem_array((size_t)m->wide, sizeof *u),
           *in = mem_array((size_t)m->in, sizeof *in), *y = mem_array((size_t)m->in, sizeof *y);
    for (int t = 0; t < m->tokens; t++) {
        for (int i = 0; i < m->in; i++) in[i] = x[t * m->in + i];
        for (int i = 0; i < m->in && !m->add; i++) out[t * m->in + i] = 0;
        for (int k = 0; k < m->used; k++) {
            int e = ids[t * m->used + k], in_out = m->in * m->wide;
            if (m->gated)
                multiply(h, w[0].plain + e * in_out, in, b[0] ? b[0] + e * m->wide : NULL, m->wide,
                         m->in);
            multiply(m->gated ? u : h, w[1].plain + e * in_out, in,
                     b[1] ? b[1] + e * m->wide : NULL, m->wide, m->in);
            for (int i = 0; i < m->wide; i++)
                h[i] = apply_act(m->act, h[i], m->gated ? u[i] : 0, m->gated);
            multiply(y, w[2].plain + e * in_out, h, b[2] ? b[2] + e * m->in : NULL, m->in, m->wide);
            for (int i = 0; i < m->in; i++)
                out[t * m->in + i] += (float)(0.5 * share[t * m->used + k] * y[i]);
        }
    }
    mem_free(h), mem_free(u), mem_free(in), mem_free(y);
}

/* Compares the experts operation with compute_plain. hide: the weights of experts that no token
 * chose are NULL, so that an access to them crashes. */
static void check_mix(const struct mix *m, bool reference, bool hide, double tol)
{
    struct backend *be = open_cpu(reference);
    int n_all = m->tokens * m->used;
    struct weights w[3] = { make_weights(m->n, m->wide, m->in, m->type),
                            make_weights(m->n, m->wide, m->in, m->type),
                            make_weights(m->n, m->in, m->wide, m->type) };
    float *b[3] = { 0 }, *x = mem_array((size_t)m->tokens * m->in, sizeof *x),
          *out = mem_array((size_t)m->tokens * m->in, sizeof *out),
          *want = mem_array((size_t)m->tokens * m->in, sizeof *want),
          *share = mem_array((size_t)n_all, sizeof *share),
          *scratch = mem_array((size_t)n_all, (size_t)(2 * m->in + 2 * m->wide) * sizeof *scratch),
          *at = scratch;
    int32_t *ids = mem_array((size_t)n_all, sizeof *ids),
            *order = mem_array((size_t)(2 * n_all + m->n + 1), sizeof *order);
    const void *kept[3][MAX_N];
    bool chosen[MAX_N] = { false };
    struct experts_opt o = { .n = m->n,
                             .n_used = m->used,
                             .gate = m->gated ? w[0].w : NULL,
                             .up = w[1].w,
                             .down = w[2].w,
                             .act = m->act,
                             .scale = 0.5f,
                             .add = m->add,
                             .order = order };
    struct tensor tx = tensor_f32(x, m->tokens, m->in), to = tensor_f32(out, m->tokens, m->in);

    for (int i = 0; i < 3 && m->biased; i++) {
        b[i] = mem_array((size_t)m->n * (i == 2 ? m->in : m->wide), sizeof *b[i]);
        fill_random(b[i], (size_t)m->n * (size_t)(i == 2 ? m->in : m->wide), 1);
    }
    o.b_gate = b[0], o.b_up = b[1], o.b_down = b[2];
    o.xs = tensor_f32(at, n_all, m->in), at += n_all * m->in;
    o.ys = tensor_f32(at, n_all, m->in), at += n_all * m->in;
    o.hs = tensor_f32(at, n_all, m->wide), at += n_all * m->wide;
    o.us = tensor_f32(at, n_all, m->wide);
    fill_random(x, (size_t)m->tokens * m->in, 1), fill_random(out, (size_t)m->tokens * m->in, 1),
        fill_random(share, (size_t)n_all, 1);
    memcpy(want, out, (size_t)m->tokens * m->in * sizeof *out);
    for (int t = 0; t < m->tokens; t++)
        for (int k = 0, e = (int)(rng_u64(&rng) % (unsigned)m->n); k < m->used;
             k++, e = (e + 1) % m->n)
            ids[t * m->used + k] = e, chosen[e] = true;
    compute_plain(m, want, x, ids, share, w, b);
    for (int i = 0; i < 3; i++)
        for (int e = 0; e < m->n; e++) {
            kept[i][e] = w[i].w[e].data;
            if (hide && !chosen[e]) w[i].w[e].data = NULL;
        }
    be->experts(be, &to, &tx, ids, share, &o);
    assert_int_equal(be->sync(be, NULL), OK);
    assert_close("experts", out, want, (size_t)m->tokens * m->in, tol);
    for (int i = 0; i < 3; i++)
        for (int e = 0; e < m->n; e++) w[i].w[e].data = kept[i][e];
    for (int i = 0; i < 3; i++) free_weights(&w[i], m->n), mem_free(b[i]);
    mem_free(x), mem_free(out), mem_free(want), mem_free(share), mem_free(scratch), mem_free(ids),
        mem_free(order);
    backend_close(be);
}

static void experts_agree_with_plain_loops(void **state)
{
    static const struct mix mixes[] = {
        { 4, 2, 1, 64, 96, DT_F32, true, false, true, ACT_SILU },
        { 4, 2, 37, 64, 96, DT_F32, true, false, true, ACT_SILU },
        { 7, 3, 5, 32, 64, DT_BF16, true, true, false, ACT_SWIGLU_CLIP },
        { 5, 1, 19, 96, 32, DT_F16, false, true, false, ACT_RELU },
        { 16, 8, 70, 64, 64, DT_Q8_0, true, false, true, ACT_SILU },
        { 3, 3, 2, 32, 32, DT_MXFP4, true, true, true, ACT_SWIGLU_CLIP },
    };
    (void)state;
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++) {
        check_mix(&mixes[i], true, false, 1e-5);
        check_mix(&mixes[i], false, false, 2e-2);
    }
}

static void weights_of_experts_that_no_token_chose_are_not_read(void **state)
{
    static const struct mix one = { 32, 4, 1, 64, 64, DT_BF16, true, false, true, ACT_SILU };
    static const struct mix two = { 32, 2, 2, 64, 64, DT_Q8_0, true, false, true, ACT_SILU };
    (void)state;
    check_mix(&one, true, true, 1e-5), check_mix(&one, false, true, 2e-2);
    check_mix(&two, true, true, 1e-5), check_mix(&two, false, true, 2e-2);
}

/* ---- head norm, clamp, gate ---- */

static void each_head_is_normed_with_its_own_weights(void **state)
{
    enum { ROWS = 3, HEADS = 5, DIM = 12, ALL = ROWS * HEADS * DIM };
    float x[ALL], want[ALL], w[HEADS * DIM], b[HEADS * DIM];
    (void)state;
    for (int kind = 0; kind < 6; kind++) {
        struct backend *be = open_cpu(kind % 2);
        int stride = kind < 4 ? DIM : 0;
        bool biased = kind / 2 % 2;
        struct tensor t = tensor_f32(x, ROWS, HEADS * DIM);
        fill_random(x, ALL, 2), fill_random(w, HEADS * DIM, 1), fill_random(b, HEADS * DIM, 1);
        for (int h = 0; h < ROWS * HEADS; h++) {
            const float *in = x + h * DIM;
            double mean = 0, var = 0;
            for (int i = 0; i < DIM; i++) mean += in[i] / (double)DIM;
            for (int i = 0; i < DIM; i++) var += (in[i] - mean) * (in[i] - mean) / DIM;
            for (int i = 0; i < DIM; i++) {
                int at = h % HEADS * stride + i;
                want[h * DIM + i] =
                    (float)((in[i] - mean) / sqrt(var + 1e-5) * w[at] + (biased ? b[at] : 0));
            }
        }
        be->headnorm_layer(be, &t, HEADS, DIM, w, biased ? b : NULL, stride, 1e-5f);
        assert_int_equal(be->sync(be, NULL), OK);
        assert_close("headnorm_layer", x, want, ALL, 1e-5);
        backend_close(be);
    }
}

static void clamp_limits_values_and_gate_rows_multiplies_by_sigmoid(void **state)
{
    struct backend *be = open_cpu(false);
    float x[] = { -3, -0.5f, 0, 2, 0.7f, 9 }, s[] = { 0, 2 };
    struct tensor t = tensor_f32(x, 2, 3), g = tensor_f32(s, 2, 1);
    const float clamped[] = { -0.7f, -0.5f, 0, 0.7f, 0.7f, 0.7f };
    (void)state;
    be->clamp(be, &t, 0.7f);
    assert_int_equal(be->sync(be, NULL), OK);
    assert_memory_equal(x, clamped, sizeof x);
    be->gate_rows(be, &t, &g);
    assert_int_equal(be->sync(be, NULL), OK);
    for (int i = 0; i < 6; i++)
        assert_float_equal(x[i], clamped[i] / (1 + exp(i < 3 ? 0 : -2)), 1e-6);
    backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softmax_is_applied_before_or_after_the_choice_of_experts),
        cmocka_unit_test(a_router_bias_affects_the_choice_but_not_the_weight),
        cmocka_unit_test(only_experts_of_the_best_groups_are_chosen),
        cmocka_unit_test(sparsemixer_normalizes_over_experts_within_the_jitter_margin),
        cmocka_unit_test(experts_agree_with_plain_loops),
        cmocka_unit_test(weights_of_experts_that_no_token_chose_are_not_read),
        cmocka_unit_test(each_head_is_normed_with_its_own_weights),
        cmocka_unit_test(clamp_limits_values_and_gate_rows_multiplies_by_sigmoid),
    };
    rng_seed(&rng, 5);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
