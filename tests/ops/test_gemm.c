/* GEMM kernels for many tokens (AMX tiles, AVX-512, AVX2, NEON) against matrix products in double over
 * the decoded weights: every dtype, odd sizes, bias, scale and add.
 *
 * Weights and tokens are random. Reads no files. Skipped where the machine lacks the instructions.
 * VERBOSE=1 prints the errors. */
#include "support.h"

#include "base/mem.h"
#include "base/rng.h"
#include "kernel/cpu/gemm.h"
#include "kernel/cpu/isa_tables.h"
#include "kernel/cpu/vec.h"
#include "kernel/quant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Bounds on |error| / norm, where norm is the square root of the sum of squares of the terms:
 * rounding errors of independent terms add up this way. Quantized weights and their tokens are
 * rounded to bf16, float types are not. */
#define BOUND_QUANTIZED 2e-2
#define RMS_QUANTIZED 3e-3
#define BOUND_PLAIN 1e-4
#define RMS_PLAIN 2e-5

#define BOUND_EIGHT 6e-2 /* tokens in 8 bits with one scale per 256 numbers */
#define RMS_EIGHT 9e-3

static const enum dtype types[] = {
    DT_Q4_0,  DT_Q4_1,    DT_Q5_0,   DT_Q5_1,   DT_Q8_0,    DT_Q2_K,    DT_Q3_K,
    DT_Q4_K,  DT_Q5_K,    DT_Q6_K,   DT_IQ4_NL, DT_IQ4_XS,  DT_MXFP4,   DT_TQ1_0,
    DT_TQ2_0, DT_IQ2_XXS, DT_IQ2_XS, DT_IQ2_S,  DT_IQ3_XXS, DT_IQ3_S,   DT_IQ1_S,
    DT_IQ1_M, DT_F16,     DT_BF16,   DT_F32,    DT_F8_E4M3, DT_F8_E5M2,
};
enum { N_TYPES = sizeof types / sizeof *types };

enum { EIGHTS = 5 };

#ifdef __x86_64__
extern const struct gemm gemm_evex; /* gemm_avxvnni for AVX-512 VNNI */

static const struct gemm *gemm_here(void) { return gemm_amx(); }
/* Those that round tokens to eight bits; NULL: not on this machine. */
static const struct gemm *eight_here(int i)
{
    if (i == 0) return gemm8_amx();
    if (i == 1) return vec_runs("avx512") ? &gemm_avx512 : NULL;
    if (i == 2) return vec_runs("avx512") ? &gemm_evex : NULL;
    if (i == 3) return isa_by_name("avxvnni") ? &gemm_avxvnni : NULL;
    return vec_runs("avx2") ? &gemm_avx2 : NULL;
}
#else
static const struct gemm *eight_here(int i)
{
#ifdef __aarch64__
    if (i == 1) return isa_by_name("neon") ? &gemm_neon : NULL;
    if (i == 2) return isa_has_i8mm() ? &gemm_i8mm : NULL;
#endif
    (void)i;
    return NULL;
}
static const struct gemm *gemm_here(void) { return NULL; }
#endif

static const struct gemm *need_gemm(void)
{
    const struct gemm *g = gemm_here();
    if (!g) {
        print_message("skipped: this machine has no matrix tiles (AMX)\n");
        skip();
    }
    return g;
}

/* Fills p with n random numbers of the type. Types that cannot be encoded get random bits with
 * small scales. */
static void fill_random_rows(enum dtype t, unsigned char *p, int64_t n, struct rng *r)
{
    const struct dtype_info *d = dtype_info((int)t);
    if (quant_can_encode(t)) {
        float *f = mem_array((size_t)n, sizeof *f);
        for (int64_t i = 0; i < n; i++) f[i] = rng_normal(r) * 0.1f;
        quant_encode(t, f, p, n);
        mem_free(f);
        return;
    }
    for (int64_t b = 0; b < n / d->block; b++, p += d->bytes) {
        for (int i = 0; i < d->bytes; i++) p[i] = (unsigned char)rng_u64(r);
        if (!d->quantized) p[0] &= 0xbf; /* F8: no NaN */
        if (!d->quantized) continue;
        uint16_t half = f32_to_f16((float)(0.01 + 0.1 * rng_unit(r)));
        if (t == DT_IQ1_M) /* the scale is spread over the high nibbles of four words */
            for (int i = 0; i < 4; i++)
                p[48 + 2 * i + 1] =
                    (unsigned char)((p[48 + 2 * i + 1] & 15) | (half >> 4 * i & 15) << 4);
        else memcpy(p + (t == DT_TQ1_0 ? 52 : t == DT_TQ2_0 ? 64 : 0), &half, 2);
    }
}

struct shape {
    enum dtype type;
    int rows, cols, tokens;
    bool bias, add;
    float scale;
    int n_threads; /* number of parts that the work is split into */
};

struct world {
    unsigned char *w;
    float *wf, *x, *out, *bias;
    size_t row_bytes;
};

static void world_init(struct world *m, const struct shape *s)
{
    struct rng r;
    uint64_t bytes;
    rng_seed(&r, (uint64_t)(s->rows * 7 + s->cols * 3 + s->tokens));
    assert_true(dtype_row_bytes(s->type, (uint64_t)s->cols, &bytes));
    m->row_bytes = (size_t)bytes;
    m->w = mem_alloc((size_t)s->rows * m->row_bytes);
    m->wf = mem_array((size_t)s->rows * (size_t)s->cols, sizeof(float));
    m->x = mem_array((size_t)s->tokens * (size_t)(s->cols + 8), sizeof(float));
    m->out = mem_array((size_t)s->tokens * (size_t)(s->rows + 5), sizeof(float));
    m->bias = mem_array((size_t)s->rows, sizeof(float));
    fill_random_rows(s->type, m->w, (int64_t)s->rows * s->cols, &r);
    quant_decode(s->type, m->w, m->wf, (int64_t)s->rows * s->cols);
    for (int i = 0; i < s->tokens * (s->cols + 8); i++) m->x[i] = rng_normal(&r);
    for (int i = 0; i < s->tokens * (s->rows + 5); i++) m->out[i] = rng_normal(&r);
    for (int i = 0; i < s->rows; i++) m->bias[i] = rng_normal(&r);
}

static void world_release(struct world *m)
{
    mem_free(m->w);
    mem_free(m->wf);
    mem_free(m->x);
    mem_free(m->out);
    mem_free(m->bias);
}

/* Calls pack and rows in s->n_threads parts, as worker threads would. */
static void gemm_run(const struct gemm *g, const struct world *m, const struct shape *s,
                     const struct tensor *out)
{
    struct tensor x = { DT_F32, s->tokens, s->cols, (size_t)s->cols + 8, m->x };
    struct gemm_job job = {
        s->type,  m->w,   s->rows, s->cols, s->tokens, out, s->bias ? m->bias : NULL,
        s->scale, s->add, NULL
    };
    size_t xn = g->x_bytes(s->type, s->tokens, s->cols), sn = g->scratch_bytes(s->type, s->cols);
    void *xp = mem_aligned(xn), *scratch = mem_aligned(sn);

    assert_non_null(xp);
    assert_non_null(scratch);
    memset(xp, 0xff, xn);
    memset(scratch, 0xff, sn);
    if (g->enter) g->enter();
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < s->n_threads; i++) {
            int n = pass ? s->rows : s->tokens, unit = pass ? g->row_unit : g->token_unit;
            int per = ((n + unit - 1) / unit + s->n_threads - 1) / s->n_threads * unit;
            int a = i * per < n ? i * per : n, b = a + per < n ? a + per : n;
            if (a >= b) continue;
            if (pass == 0) g->pack(s->type, xp, &x, a, b);
            else g->rows(&job, xp, a, b, scratch);
        }
    mem_free_aligned(xp, xn);
    mem_free_aligned(scratch, sn);
}

static void check_gemm(const struct gemm *g, struct shape s)
{
    struct world m;
    world_init(&m, &s);
    size_t stride = (size_t)s.rows + 5, n = (size_t)s.tokens * stride;
    float *before = mem_dup(m.out, n * sizeof(float));
    struct tensor out = { DT_F32, s.tokens, s.rows, stride, m.out };
    gemm_run(g, &m, &s, &out);

    bool quantized = dtype_info((int)s.type)->quantized;
    double worst = 0, sum_err = 0, sum_norm = 0;
    for (int t = 0; t < s.tokens; t++)
        for (int r = 0; r < (int)stride; r++) {
            float got = m.out[(size_t)t * stride + (size_t)r],
                  was = before[(size_t)t * stride + (size_t)r];
            if (r >= s.rows) { /* the gap behind a row is not written */
                assert_memory_equal(&got, &was, sizeof got);
                continue;
            }
            double want = 0, norm = 0;
            const float *w = m.wf + (size_t)r * (size_t)s.cols,
                        *x = m.x + (size_t)t * (size_t)(s.cols + 8);
            for (int k = 0; k < s.cols; k++) {
                double p = (double)w[k] * x[k];
                want += p;
                norm += p * p;
            }
            want = want * s.scale + (s.bias ? m.bias[r] : 0) + (s.add ? was : 0);
            norm = sqrt(norm) * fabs(s.scale) + (s.bias || s.add ? 1e-2 : 1e-9);
            double err = fabs(got - want);
            worst = fmax(worst, err / norm);
            sum_err += err * err;
            sum_norm += norm * norm;
        }
    double rms = sqrt(sum_err / sum_norm), bound = quantized ? BOUND_QUANTIZED : BOUND_PLAIN;
    double rms_bound = quantized ? RMS_QUANTIZED : RMS_PLAIN,
           few = 1 + 3 / sqrt((double)s.rows * s.tokens);
    if (getenv("VERBOSE"))
        printf("%-8s %4d x %4d, %3d tokens: largest error %.2e, rms %.2e\n", dtype_name(s.type),
               s.rows, s.cols, s.tokens, worst, rms);
    if (g != gemm_here() && quantized) bound = BOUND_EIGHT, rms_bound = RMS_EIGHT;
    if (!(worst <= bound) || !(rms <= few * rms_bound))
        fail_msg("%s %d x %d, %d tokens: largest error %.2e, rms %.2e", dtype_name(s.type), s.rows,
                 s.cols, s.tokens, worst, rms);
    mem_free(before);
    world_release(&m);
}

static void every_weight_type_agrees_with_the_product_of_decoded_weights(void **state)
{
    static const int rows[] = { 1, 15, 16, 17, 33, 100 },
                     tokens[] = { 1, 7, 16, 17, 31, 32, 33, 100 };
    const struct gemm *g = need_gemm();
    (void)state;
    for (int i = 0; i < N_TYPES; i++) {
        assert_true(g->can(types[i]));
        bool small = dtype_info((int)types[i])->block <= 32;
        int cols[] = { small ? 32 : 256, small ? 96 : 512, small ? 896 : 768, 4864, 2048 };
        for (int j = i % THIN; j < 24; j += THIN)
            check_gemm(g, (struct shape){ types[i], rows[j % 6], cols[j / 8 + j % 2],
                                          tokens[(j + j / 8) % 8], false, false, 1, 1 });
        for (int c = 0; c < 5; c++)
            check_gemm(g, (struct shape){ types[i], 33, cols[c], 33, false, false, 1, 1 });
    }
}

static void check_eight(const struct gemm *g)
{
    static const int rows[] = { 1, 15, 16, 17, 33, 100 };
    static const int few[] = { 1, 7, 15, 16, 17, 31, 32 }, many[] = { 1, 2, 7, 12, 33, 200, 395 };
    const int *tokens = g->max_tokens ? few : many;
    int n = 0;

    for (int i = 0; i < N_TYPES; i++) {
        if (!g->can(types[i])) continue;
        bool small = dtype_info((int)types[i])->block <= 32;
        int cols[] = { small ? 32 : 256, small ? 96 : 512, small ? 896 : 768, small ? 288 : 256,
                       2048 };
        for (int j = i % THIN; j < 35; j += THIN, n++)
            check_gemm(g, (struct shape){ types[i], rows[j % 6], cols[j % 5], tokens[j % 7],
                                          j % 4 == 1, j % 4 == 2, j % 3 ? 1 : 0.25f, 1 + j % 2 });
    }
    assert_true(n >= 10 * 35 / THIN - 10);
}

static void vectors_multiply_every_block_format(void **state)
{
    (void)state;
    for (int n = 1; n < 3; n++)
        for (int i = 0; i < N_TYPES && eight_here(n); i++)
            if (dtype_info((int)types[i])->quantized) assert_true(eight_here(n)->can(types[i]));
}

static void tokens_rounded_to_eight_bits_agree(void **state)
{
    int n = 0;

    (void)state;
    for (int i = 0; i < EIGHTS; i++)
        if (eight_here(i)) check_eight(eight_here(i)), n++;
    if (n) return;
    print_message("skipped: this machine has none of AMX, AVX2 and NEON with dot products\n");
    skip();
}

/* Every weight of a block at its largest integer, all tokens at 127: the largest integer sums. */
static void the_largest_sums_do_not_overflow(void **state)
{
    static const struct {
        enum dtype type;
        int at; /* of the scale, and of the next F16 */
    } forms[] = { { DT_Q4_0, 0 },   { DT_Q4_1, 0 },   { DT_Q5_0, 0 },    { DT_Q5_1, 0 },
                  { DT_Q8_0, 0 },   { DT_IQ4_NL, 0 }, { DT_Q4_K, 0 },    { DT_Q5_K, 0 },
                  { DT_Q6_K, 208 }, { DT_Q2_K, 80 },  { DT_Q3_K, 108 },  { DT_TQ1_0, 52 },
                  { DT_TQ2_0, 64 }, { DT_IQ2_S, 0 },  { DT_IQ3_XXS, 0 }, { DT_IQ1_S, 0 } };
    enum { COLS = 512, TOKENS = 5, ROWS = 3 };

    (void)state;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
        for (int sign = -1; sign <= 1; sign += 2)
            for (int i = 0; i < EIGHTS; i++) {
                const struct gemm *g = eight_here(i);
                if (!g || !g->can(forms[f].type)) continue;
                struct shape s = { forms[f].type, ROWS, COLS, TOKENS, false, false, 1, 1 };
                const struct dtype_info *d = dtype_info((int)s.type);
                struct world m;
                world_init(&m, &s);
                memset(m.w, 0xff, ROWS * m.row_bytes);
                if (s.type == DT_Q8_0) memset(m.w, 0x7f, ROWS * m.row_bytes);
                for (size_t b = 0; b < ROWS * m.row_bytes; b += (size_t)d->bytes) {
                    uint16_t half = f32_to_f16(0.01f);
                    memcpy(m.w + b + forms[f].at, &half, 2);
                    if (s.type == DT_Q4_1 || s.type == DT_Q5_1 || s.type == DT_Q4_K ||
                        s.type == DT_Q5_K || s.type == DT_Q2_K)
                        memcpy(m.w + b + forms[f].at + 2, &half, 2);
                }
                quant_decode(s.type, m.w, m.wf, ROWS * COLS);
                for (int k = 0; k < TOKENS * (COLS + 8); k++) m.x[k] = (float)sign;
                struct tensor out = { DT_F32, TOKENS, ROWS, ROWS + 5, m.out };
                gemm_run(g, &m, &s, &out);
                double want = 0;
                for (int k = 0; k < COLS; k++) want += sign * (double)m.wf[k];
                for (int t = 0; t < TOKENS; t++)
                    if (fabs(m.out[t * (ROWS + 5)] - want) > 1e-4 * fabs(want))
                        fail_msg("%s %s: %g, expected %g", g->name, dtype_name(s.type),
                                 m.out[t * (ROWS + 5)], want);
                world_release(&m);
            }
}

static void long_batches_and_many_rows_agree(void **state)
{
    const struct gemm *g = need_gemm();
    (void)state;
    check_gemm(g, (struct shape){ DT_Q4_K, 300, 1280, 512, false, false, 1, 3 });
    check_gemm(g, (struct shape){ DT_Q8_0, 161, 896, 700, false, false, 1, 2 });
    check_gemm(g, (struct shape){ DT_Q4_0, 257, 544, 1040, false, false, 1, 2 });
    check_gemm(g, (struct shape){ DT_BF16, 130, 896, 530, false, false, 1, 2 });
    check_gemm(g, (struct shape){ DT_F16, 130, 896, 530, false, false, 1, 2 });
    check_gemm(g, (struct shape){ DT_Q6_K, 64, 2048, 4, false, false, 1, 2 });
}

static void columns_need_not_be_a_multiple_of_the_tile(void **state)
{
    static const enum dtype plain[] = { DT_F32, DT_F16, DT_BF16, DT_F8_E4M3, DT_F8_E5M2 };
    static const int cols[] = { 1, 7, 31, 33, 48, 255, 300, 513 };
    const struct gemm *all[] = { gemm_here(), eight_here(1), eight_here(2), eight_here(3),
                                 eight_here(4) };
    (void)state;
    for (int n = 0; n < EIGHTS; n++)
        for (int i = 0; i < 5; i++)
            for (int c = 0; c < 8 && all[n] && all[n]->can(plain[i]); c++)
                check_gemm(all[n], (struct shape){ plain[i], 35, cols[c], 18, false, false, 1, 1 });
}

/* More rows and tokens than the kernels keep sums of at a time. */
static void floats_of_many_rows_and_tokens_agree(void **state)
{
    static const enum dtype plain[] = { DT_F32, DT_F16, DT_BF16 };
    (void)state;
    for (int n = 1; n < EIGHTS; n++)
        for (int i = 0; i < 3 && eight_here(n); i++) {
            assert_true(eight_here(n)->can(plain[i]));
            check_gemm(eight_here(n),
                       (struct shape){ plain[i], 301, 264, 400, true, true, 0.5f, 1 });
            for (int t = 1; t < 14; t++)
                check_gemm(eight_here(n),
                           (struct shape){ plain[i], 40, 136, t, false, false, 1, 1 });
        }
}

static void bias_scale_and_add_are_applied(void **state)
{
    const struct gemm *g = need_gemm();
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct shape s = {
            i & 4 ? DT_F32 : DT_Q4_K, 49, 1024, 37, (i & 1) != 0, (i & 2) != 0, 0.25f, 2
        };
        check_gemm(g, s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_type_agrees_with_the_product_of_decoded_weights),
        cmocka_unit_test(vectors_multiply_every_block_format),
        cmocka_unit_test(tokens_rounded_to_eight_bits_agree),
        cmocka_unit_test(the_largest_sums_do_not_overflow),
        cmocka_unit_test(long_batches_and_many_rows_agree),
        cmocka_unit_test(floats_of_many_rows_and_tokens_agree),
        cmocka_unit_test(columns_need_not_be_a_multiple_of_the_tile),
        cmocka_unit_test(bias_scale_and_add_are_applied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
