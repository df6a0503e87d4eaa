/* Round-to-nearest quantization with a search for the best scale (quant/rtn), of every
 * instruction set: against the plain encoder of kernel/quant and against an exhaustive search
 * over scales.
 *
 * Rows are random, with the shapes of real weights and worse. Reads no files. */
#include "quant/rtn.h"

#include "base/mem.h"
#include "base/rng.h"
#include "kernel/quant.h"
#include "support.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

static const char *const sets[] = { "any", "avx2", "avx512", "neon" };

static const enum dtype types[] = { DT_Q8_0,   DT_Q4_0,  DT_Q4_1,   DT_Q5_0,  DT_Q5_1,
                                    DT_IQ4_NL, DT_MXFP4, DT_Q2_K,   DT_Q3_K,  DT_Q4_K,
                                    DT_Q5_K,   DT_Q6_K,  DT_IQ4_XS, DT_TQ1_0, DT_TQ2_0 };

enum { N = 256 * 5 }; /* an odd number of super-blocks: the last chunk is not full */

/* Distributions of a row of weights: as models have them, and harder ones. */
enum kind { GAUSS, HEAVY, SHIFTED, OUTLIER, LATTICE, UNIFORM, KINDS };

static void fill_row(float *x, int n, enum kind kind, uint64_t seed)
{
    struct rng r;

    rng_seed(&r, seed);
    for (int i = 0; i < n; i++) {
        float g = rng_normal(&r);
        switch (kind) {
        case GAUSS: x[i] = 0.02f * g; break;
        case HEAVY: x[i] = 0.02f * g * g * g; break;
        case SHIFTED: x[i] = 0.3f + 0.05f * g; break;
        case OUTLIER: x[i] = i % 256 == 77 ? 3.0f : 0.02f * g; break;
        case LATTICE: x[i] = 0.01f * rintf(1.5f * g); break;
        default: x[i] = (float)(rng_u64(&r) % 1000) * 0.001f - 0.5f;
        }
    }
}

static size_t bytes_of(enum dtype t, int64_t n)
{
    uint64_t b = 0;
    assert_true(dtype_row_bytes(t, (uint64_t)n, &b));
    return b;
}

/* The weighted squared error: sum of w (decoded - x)^2. */
static double weighted_loss(enum dtype t, const void *block, const float *x, const float *w, int n)
{
    float *y = mem_array((size_t)n, sizeof *y);
    double sum = 0;

    quant_decode(t, block, y, n);
    for (int i = 0; i < n; i++) {
        double d = (double)y[i] - (double)x[i];
        sum += (w ? (double)w[i] : 1) * d * d;
    }
    mem_free(y);
    return sum;
}

static double rtn_loss(const struct rtn *r, enum dtype t, const float *x, const float *w,
                       const float *judge, int n)
{
    unsigned char *b = mem_alloc(bytes_of(t, n));
    r->encode(t, x, w, b, n);
    double e = weighted_loss(t, b, x, judge, n);
    mem_free(b);
    return e;
}

static double quant_encode_loss(enum dtype t, const float *x, const float *judge, int n)
{
    unsigned char *b = mem_alloc(bytes_of(t, n));
    quant_encode(t, x, b, n);
    double e = weighted_loss(t, b, x, judge, n);
    mem_free(b);
    return e;
}

/* The default weights of errors, as the encoders compute them: rms of the sub-block + |x|. */
static void default_weights(const float *x, float *w, int n, int sub)
{
    for (int at = 0; at < n; at += sub) {
        double sum = 0;
        for (int i = at; i < at + sub; i++) sum += (double)x[i] * (double)x[i];
        for (int i = at; i < at + sub; i++) w[i] = sqrtf((float)(sum / sub)) + fabsf(x[i]);
    }
}

static bool is_ternary(enum dtype t) { return t == DT_TQ1_0 || t == DT_TQ2_0; }

static int sub_block_of(enum dtype t)
{
    return t == DT_Q2_K || t == DT_Q3_K || t == DT_Q6_K ? 16 : 32;
}

static void the_search_never_loses_more_than_the_plain_encoder(void **state)
{
    (void)state;
    static float x[N], w[N];
    for (size_t s = 0; s < COUNT(sets); s++) {
        const struct rtn *r = rtn_by_name(sets[s]);
        for (size_t k = 0; r && k < COUNT(types); k++)
            for (enum kind kind = 0; kind < KINDS; kind++) {
                fill_row(x, N, kind, 7 * k + kind + 1);
                default_weights(x, w, N, sub_block_of(types[k]));
                const float *judge =
                    types[k] == DT_Q8_0 || types[k] == DT_MXFP4 || is_ternary(types[k]) ? NULL : w;
                double mine = rtn_loss(r, types[k], x, NULL, judge, N),
                       plain = quant_encode_loss(types[k], x, judge, N);
                if (mine > plain * (types[k] == DT_Q8_0 ? 1.01 : 1.0005) + 1e-12)
                    fail_msg("%s, %s, row kind %d: loss %g with the search, %g without", sets[s],
                             dtype_name((int)types[k]), (int)kind, mine, plain);
            }
    }
}

static void all_instruction_sets_reach_the_same_loss(void **state)
{
    (void)state;
    static float x[N];
    for (size_t k = 0; k < COUNT(types); k++) {
        fill_row(x, N, GAUSS, 99 + k);
        double any = rtn_loss(&rtn_any, types[k], x, NULL, NULL, N),
               best = rtn_loss(rtn_best(), types[k], x, NULL, NULL, N);
        if (fabs(best / any - 1) > 0.01)
            fail_msg("%s: %g and %g", dtype_name((int)types[k]), any, best);
    }
}

/* ---- against exhaustive search ---- */

/* The least weighted loss of n numbers on an integer grid [-top, top), over 8000 scales. */
static double least_signed(const float *x, const float *w, int n, int top)
{
    double best = DBL_MAX;
    float max = 0;
    for (int i = 0; i < n; i++) max = fmaxf(max, fabsf(x[i]));
    for (int sign = -1; sign <= 1; sign += 2)
        for (int k = 1; k <= 4000; k++) {
            float d = (float)sign * max / (float)top * (float)k / 2000;
            double sum = 0;
            for (int i = 0; i < n; i++) {
                float q = fminf(fmaxf(rintf(x[i] / d), (float)-top), (float)(top - 1));
                double e = (double)(q * d - x[i]);
                sum += (double)w[i] * e * e;
            }
            if (sum < best) best = sum;
        }
    return best;
}

static void the_chosen_scale_is_close_to_the_best_of_all(void **state)
{
    (void)state;
    static const struct {
        enum dtype t;
        int top;
    } cases[] = { { DT_Q4_0, 8 }, { DT_Q5_0, 16 } };
    enum { BLOCKS = 12 };
    float x[32 * BLOCKS], w[32 * BLOCKS];
    for (size_t k = 0; k < COUNT(cases); k++) {
        double mine, least = 0;
        fill_row(x, 32 * BLOCKS, GAUSS, 5);
        default_weights(x, w, 32 * BLOCKS, 32);
        for (int b = 0; b < BLOCKS; b++)
            least += least_signed(x + 32 * b, w + 32 * b, 32, cases[k].top);
        mine = rtn_loss(rtn_best(), cases[k].t, x, NULL, w, 32 * BLOCKS);
        if (mine > 1.04 * least)
            fail_msg("%s: loss %g, the least is %g", dtype_name((int)cases[k].t), mine, least);
    }
}

/* The least weighted loss over many pairs of scale and minimum. */
static double least_affine(const float *x, const float *w, int n, int top)
{
    double best = DBL_MAX;
    float lo = x[0], hi = x[0];
    for (int i = 0; i < n; i++) lo = fminf(lo, x[i]), hi = fmaxf(hi, x[i]);
    for (int a = -20; a <= 20; a++)
        for (int k = 1; k <= 240; k++) {
            float m = lo + (hi - lo) * (float)a / 200, d = (hi - lo) / (float)top * (float)k / 200;
            double sum = 0;
            for (int i = 0; i < n; i++) {
                float q = fminf(fmaxf(rintf((x[i] - m) / d), 0), (float)top);
                double e = (double)(q * d + m - x[i]);
                sum += (double)w[i] * e * e;
            }
            if (sum < best) best = sum;
        }
    return best;
}

static void the_chosen_scale_and_minimum_are_close_to_the_best_of_all(void **state)
{
    (void)state;
    enum { BLOCKS = 8 };
    float x[32 * BLOCKS], w[32 * BLOCKS];
    double least = 0, mine;
    fill_row(x, 32 * BLOCKS, SHIFTED, 6);
    default_weights(x, w, 32 * BLOCKS, 32);
    for (int b = 0; b < BLOCKS; b++) least += least_affine(x + 32 * b, w + 32 * b, 32, 15);
    mine = rtn_loss(rtn_best(), DT_Q4_1, x, NULL, w, 32 * BLOCKS);
    if (mine > 1.06 * least) fail_msg("loss %g, the least is %g", mine, least);
    fill_row(x, 32 * BLOCKS, GAUSS, 6);
    default_weights(x, w, 32 * BLOCKS, 32);
    least = 0;
    for (int b = 0; b < BLOCKS; b++) least += least_affine(x + 32 * b, w + 32 * b, 32, 15);
    mine = rtn_loss(rtn_best(), DT_Q4_K, x, NULL, w, 32 * BLOCKS);
    if (mine > 1.15 * least)
        fail_msg("Q4_K: loss %g, with separate scales for each 32 numbers %g", mine, least);
}

static void values_on_the_grid_of_a_format_are_kept(void **state)
{
    (void)state;
    static float x[N];
    for (int i = 0; i < N; i++) x[i] = 0.25f * (float)(i * 7 % 3 - 1);
    for (size_t k = 0; k < COUNT(types); k++) {
        if (types[k] == DT_IQ4_NL || types[k] == DT_IQ4_XS) continue; /* the grid has no zero */
        double e = rtn_loss(rtn_best(), types[k], x, NULL, NULL, N) / N;
        double most = types[k] == DT_Q8_0 || is_ternary(types[k]) || types[k] == DT_Q4_1 ||
                              types[k] == DT_Q5_1 || types[k] == DT_MXFP4
                          ? 1e-6
                      : types[k] == DT_Q3_K ? 4e-4
                                            : 1e-4;
        if (sqrt(e) > 0.25 * sqrt(most))
            fail_msg("%s: rmse %g", dtype_name((int)types[k]), sqrt(e));
    }
}

/* ---- weights ---- */

static void columns_with_larger_weights_lose_less(void **state)
{
    (void)state;
    static float x[N], w[N];
    fill_row(x, N, GAUSS, 3);
    for (int i = 0; i < N; i++) w[i] = i % 8 == 0 ? 100 : 0.01f;
    for (size_t k = 0; k < COUNT(types); k++) {
        if (types[k] == DT_Q8_0) continue;
        double with = rtn_loss(rtn_best(), types[k], x, w, w, N),
               without = rtn_loss(rtn_best(), types[k], x, NULL, w, N);
        if (with > without)
            fail_msg("%s: %g with weights, %g without", dtype_name((int)types[k]), with, without);
        if (types[k] != DT_MXFP4 && !is_ternary(types[k]) && with > 0.9 * without)
            fail_msg("%s: %g with weights, %g without: no better", dtype_name((int)types[k]), with,
                     without);
    }
}

/* ---- edges ---- */

static void assert_close(enum dtype t, const float *x, int n, double rel, const char *what)
{
    for (size_t s = 0; s < COUNT(sets); s++) {
        const struct rtn *r = rtn_by_name(sets[s]);
        if (!r) continue;
        unsigned char *b = mem_alloc(bytes_of(t, n));
        float *y = mem_array((size_t)n, sizeof *y), max = 0;
        r->encode(t, x, NULL, b, n);
        quant_decode(t, b, y, n);
        for (int i = 0; i < n; i++) max = fmaxf(max, fabsf(x[i]));
        for (int i = 0; i < n; i++) {
            if (!isfinite(y[i]))
                fail_msg("%s in %s by %s: value %d is %g", what, dtype_name((int)t), sets[s], i,
                         (double)y[i]);
            if (fabs((double)(y[i] - x[i])) > rel * (double)max + 1e-30)
                fail_msg("%s in %s by %s: value %d is %g, was %g", what, dtype_name((int)t),
                         sets[s], i, (double)y[i], (double)x[i]);
        }
        mem_free(b);
        mem_free(y);
    }
}

static void unusual_rows_give_finite_values(void **state)
{
    (void)state;
    static float x[N];
    for (size_t k = 0; k < COUNT(types); k++) {
        enum dtype t = types[k];
        memset(x, 0, sizeof x);
        assert_close(t, x, N, 0, "zeros");
        x[300] = 5;
        assert_close(t, x, N,
                     t == DT_Q2_K    ? 0.4
                     : t == DT_MXFP4 ? 0.21
                                     : 0.05,
                     "one number among zeros");
        for (int i = 0; i < N; i++) x[i] = 1e-40f * (float)(i % 7);
        assert_close(t, x, N, 1.01, "denormals");
        for (int i = 0; i < N; i++) x[i] = i % 2 ? 3e38f : -3e38f;
        assert_close(t, x, N, 1.01, "the largest numbers");
        for (int i = 0; i < N; i++) x[i] = -0.7f;
        assert_close(t, x, N, 0.1, "all the same");
        for (int i = 0; i < N; i++) x[i] = 0.7f;
        assert_close(t, x, N, 0.1, "all the same");
        memset(x, 0, sizeof x);
        static float w[N];
        unsigned char *b = mem_alloc(bytes_of(t, N));
        fill_row(x, N, GAUSS, 1);
        rtn_best()->encode(t, x, w, b, N); /* all weights are zero */
        double e = weighted_loss(t, b, x, NULL, N);
        assert_true(isfinite(e) && e < 0.0004 * N);
        mem_free(b);
    }
}

static void nan_and_infinity_are_reported(void **state)
{
    (void)state;
    static float x[1003];
    for (size_t s = 0; s < COUNT(sets); s++) {
        const struct rtn *r = rtn_by_name(sets[s]);
        if (!r) continue;
        fill_row(x, 1003, GAUSS, 2);
        x[17] = FLT_MAX, x[18] = -FLT_MAX, x[19] = 1e-45f;
        assert_true(r->is_finite(x, 1003));
        const int places[] = { 0, 511, 1002 };
        const float bad[] = { NAN, INFINITY, -INFINITY };
        for (size_t p = 0; p < COUNT(places); p++)
            for (size_t b = 0; b < COUNT(bad); b++) {
                float was = x[places[p]];
                x[places[p]] = bad[b];
                assert_false(r->is_finite(x, 1003));
                x[places[p]] = was;
            }
    }
}

static void float_types_are_copied_exactly(void **state)
{
    (void)state;
    enum { M = 1003 };
    static float x[M], y[M], z[M];
    static uint16_t a[M], b[M];
    static const enum dtype plain[] = { DT_F16, DT_BF16 };
    fill_row(x, M, HEAVY, 4);
    for (size_t s = 0; s < COUNT(sets); s++) {
        const struct rtn *r = rtn_by_name(sets[s]);
        for (size_t k = 0; r && k < 2; k++) {
            r->encode(plain[k], x, NULL, a, M);
            quant_encode(plain[k], x, b, M);
            assert_memory_equal(a, b, sizeof a);
            r->decode(plain[k], a, y, M);
            quant_decode(plain[k], a, z, M);
            assert_memory_equal(y, z, sizeof y);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_search_never_loses_more_than_the_plain_encoder),
        cmocka_unit_test(all_instruction_sets_reach_the_same_loss),
        cmocka_unit_test(the_chosen_scale_is_close_to_the_best_of_all),
        cmocka_unit_test(the_chosen_scale_and_minimum_are_close_to_the_best_of_all),
        cmocka_unit_test(values_on_the_grid_of_a_format_are_kept),
        cmocka_unit_test(columns_with_larger_weights_lose_less),
        cmocka_unit_test(unusual_rows_give_finite_values),
        cmocka_unit_test(nan_and_infinity_are_reported),
        cmocka_unit_test(float_types_are_copied_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
