/* Matrix products of every dtype on every instruction set of this machine, against products in
 * double over the decoded weights.
 *
 * Weights and activations are random. Reads no files. */
#include "support.h"
#include "random_blocks.h"

#include "base/mem.h"
#include "kernel/cpu/matmul.h"

#include <stdio.h>
#include <string.h>

#ifdef __x86_64__
extern const struct isa isa_evex; /* isa_avxvnni for AVX-512 VNNI */
#endif

/* The sets of this machine, and the kernels of AVX-VNNI also where only their EVEX form runs; NULL
 * after the last. */
static const struct isa *set_at(int i)
{
#ifdef __x86_64__
    if (isa_by_name("avx512") && !isa_at(i)) return i > 0 && isa_at(i - 1) ? &isa_evex : NULL;
#endif
    return isa_at(i);
}

/* A matrix in exactly as many bytes as it needs, so that a sanitizer finds reads past its end. */
struct matrix {
    struct weight w;
    char *bytes;
    float *plain; /* decoded, [rows][cols] */
};

static struct matrix matrix_make(int which, int rows, int cols, struct rng *rng)
{
    enum dtype t = halves[which].type;
    const struct dtype_info *info = dtype_info((int)t);
    uint64_t row = 0;
    struct matrix m = { .w = { .type = t, .rows = rows, .cols = cols, .n = 1 } };

    assert_true(dtype_row_bytes(t, (uint64_t)cols, &row));
    size_t n = (size_t)rows * row;
    m.plain = mem_array((size_t)rows * (size_t)cols, sizeof(float));
    m.bytes = mem_alloc(n);
    if (!info->quantized) {
        for (int i = 0; i < rows * cols; i++) m.plain[i] = rng_normal(rng) * 0.1f;
        quant_encode(t, m.plain, m.bytes, (int64_t)rows * cols);
    } else {
        fill_random_blocks(which, m.bytes, n, rng);
    }
    quant_decode(t, m.bytes, m.plain, (int64_t)rows * cols);
    m.w.data = m.bytes;
    return m;
}

static void matrix_free(struct matrix *m)
{
    mem_free(m->bytes);
    mem_free(m->plain);
}

/* Ternary weights are multiplied with activations of one scale per 256 numbers. */
static int scale_cols(enum dtype t) { return t == DT_TQ1_0 || t == DT_TQ2_0 ? 256 : 32; }

/* The allowed error of w x. Activations are rounded to 8 bits with one scale per `per` numbers,
 * which has a standard deviation of scale / sqrt(12). The bound is eight standard deviations,
 * which random rounding never exceeds. exact: activations are not rounded, only float sums
 * differ. */
static double allowed_error(const float *w, const float *x, int cols, int per, bool exact)
{
    double var = 0, size = 0;
    for (int c = 0; c < cols; c += per) {
        int n = cols - c < per ? cols - c : per;
        double top = 0, ww = 0;
        for (int i = c; i < c + n; i++) {
            top = fmax(top, fabs((double)x[i]));
            ww += (double)w[i] * w[i];
            size += fabs((double)w[i] * x[i]);
        }
        var += ww * (top / 127) * (top / 127) / 12;
    }
    return exact ? 1e-6 * size : 8 * sqrt(var) + 1e-5 * size;
}

static bool is_float_type(enum dtype t) { return t == DT_F32 || t == DT_F16 || t == DT_BF16; }

static void fill_activations(float *x, int n, struct rng *rng)
{
    for (int i = 0; i < n; i++) x[i] = rng_normal(rng) * (rng_u64(rng) % 50 == 0 ? 8.0f : 1.0f);
}

struct world {
    struct par *par;
    struct matmul *mm;
};

static struct world world_open(const struct isa *isa, const struct gemm *gemm, int n_threads)
{
    struct world w = { 0 };
    struct err e;
    assert_int_equal(par_open(&w.par, (struct par_opt){ .n_threads = n_threads }, &e), OK);
    assert_int_equal(matmul_open(&w.mm, w.par, (struct matmul_opt){ .isa = isa, .gemm = gemm }, &e),
                     OK);
    return w;
}

static void world_close(struct world *w)
{
    matmul_close(w->mm);
    par_close(w->par);
}

static double dot(const float *w, const float *x, int n)
{
    double s = 0;
    for (int i = 0; i < n; i++) s += (double)w[i] * x[i];
    return s;
}

static void check_product(const struct matrix *m, const struct tensor *x, const struct tensor *out,
                          const char *isa, double slack)
{
    for (int t = 0; t < x->rows; t++)
        for (int r = 0; r < m->w.rows; r++) {
            const float *w = m->plain + (size_t)r * (size_t)m->w.cols, *a = tensor_row(x, t);
            double want = dot(w, a, m->w.cols), got = tensor_row(out, t)[r];
            double may = slack + allowed_error(w, a, m->w.cols, scale_cols(m->w.type),
                                               is_float_type(m->w.type) || strcmp(isa, "ref") == 0);
            if (!(fabs(got - want) <= may))
                fail_msg("%s %s %dx%d: row %d, token %d of %d: %g, expected %g (allowed error %g)",
                         isa, dtype_name(m->w.type), m->w.rows, m->w.cols, r, t, x->rows, got, want,
                         may);
        }
}

static void test_product(struct world *w, const struct isa *isa, int which, int rows, int cols,
                         int tokens)
{
    struct rng rng;
    rng_seed(&rng, (uint64_t)(which * 1000003 + rows * 10007 + cols * 101 + tokens));
    struct matrix m = matrix_make(which, rows, cols, &rng);
    float *x = mem_array((size_t)(tokens * cols), sizeof *x),
          *y = mem_array((size_t)(tokens * rows), sizeof *y);
    struct tensor xt = tensor_f32(x, tokens, cols);
    struct linear job = { .out = tensor_f32(y, tokens, rows), .w = &m.w };

    fill_activations(x, tokens * cols, &rng);
    assert_int_equal(cpu_linear(w->mm, w->par, &xt, &job, 1), OK);
    check_product(&m, &xt, &job.out, isa->name, 0);
    mem_free(x);
    mem_free(y);
    matrix_free(&m);
}

static void every_weight_type_on_every_isa_agrees_with_the_reference(void **state)
{
    static const int rows[] = { 1, 3, 7, 33 }, tokens[] = { 1, 2, 3, 5, 8, 17, 64 };
    static const int small[] = { 32, 96, 128, 288, 896, 4864 }, large[] = { 256, 768, 2048 };
    (void)state;

    for (int i = 0; set_at(i); i++) {
        const struct isa *isa = set_at(i);
        struct world w = world_open(isa, NULL, 2);
        for (int k = 0; k < N_TYPES; k++) {
            int block = dtype_info((int)halves[k].type)->block;
            const int *cols = block == 256 ? large : small;
            int n_cols = block == 256 ? 3 : 6;
            assert_true(matmul_can(w.mm, halves[k].type));
            for (int c = 0; c < n_cols; c++)
                for (int n = 0; n < 7; n++)
                    test_product(&w, isa, k, rows[(c + n) % 4], cols[c], tokens[n]);
        }
        world_close(&w);
    }
}

static void float_types_take_any_number_of_columns(void **state)
{
    static const int cols[] = { 1, 5, 17, 31, 100, 1001 };
    (void)state;
    for (int i = 0; set_at(i); i++) {
        struct world w = world_open(set_at(i), NULL, 1);
        for (int k = N_TYPES - 3; k < N_TYPES; k++)
            for (int c = 0; c < 6; c++)
                for (int t = 1; t <= 9; t += 2) test_product(&w, set_at(i), k, 6, cols[c], t);
        world_close(&w);
    }
}

/* Three matrix products in one call, with bias, add and scale. Their outputs are column ranges
 * of a wider tensor. */
static void jobs_of_one_call_write_only_their_own_columns(void **state)
{
    enum { COLS = 512, R0 = 300, R1 = 41, R2 = 7, WIDE = R0 + R1 + R2 + 10 };
    static const int types[3] = { 9 /* Q6_K */, 0 /* Q4_0 */, 23 /* F16 */ },
                     rows[3] = { R0, R1, R2 };
    (void)state;
    for (int i = 0; set_at(i); i++)
        for (int threads = 1; threads <= 3; threads++)
            for (int tokens = 1; tokens <= 11; tokens += 5) {
                struct world w = world_open(set_at(i), NULL, threads);
                struct rng rng;
                struct matrix m[3];
                float *x = mem_array((size_t)tokens * (COLS + 5), sizeof *x), bias[R0];
                float *y = mem_array((size_t)tokens * WIDE, sizeof *y),
                      *z = mem_array((size_t)tokens * R0, sizeof *z);
                struct tensor xt = { DT_F32, tokens, COLS, COLS + 5, x },
                              wide = tensor_f32(y, tokens, WIDE);
                struct linear jobs[3];

                rng_seed(&rng, (uint64_t)(threads * 100 + tokens));
                fill_activations(x, tokens * (COLS + 5), &rng);
                fill_activations(bias, R0, &rng);
                for (int t = 0; t < tokens * WIDE; t++) y[t] = 1000;
                for (int j = 0, at = 0; j < 3; at += rows[j++]) {
                    m[j] = matrix_make(types[j], rows[j], COLS, &rng);
                    jobs[j] = (struct linear){ .out = tensor_cols(wide, at, rows[j]),
                                               .w = &m[j].w,
                                               .scale = j == 0 ? 0.5f : 0,
                                               .bias = j == 0 ? bias : NULL,
                                               .add = j < 2 };
                }
                assert_int_equal(cpu_linear(w.mm, w.par, &xt, jobs, 3), OK);
                for (int j = 0; j < 2; j++) { /* undo add, bias and scale, then compare */
                    struct tensor back = tensor_f32(z, tokens, rows[j]);
                    for (int t = 0; t < tokens; t++)
                        for (int r = 0; r < rows[j]; r++)
                            tensor_row(&back, t)[r] =
                                (tensor_row(&jobs[j].out, t)[r] - 1000 - (j == 0 ? bias[r] : 0)) *
                                (j == 0 ? 2 : 1);
                    check_product(&m[j], &xt, &back, set_at(i)->name, 1e-3);
                }
                check_product(&m[2], &xt, &jobs[2].out, set_at(i)->name, 0);
                for (int t = 0; t < tokens; t++)
                    for (int c = R0 + R1 + R2; c < WIDE; c++)
                        assert_true(tensor_row(&wide, t)[c] == 1000);
                for (int j = 0; j < 3; j++) matrix_free(&m[j]);
                mem_free(x);
                mem_free(y);
                mem_free(z);
                world_close(&w);
            }
}

static void many_tokens_are_multiplied_by_the_gemm(void **state)
{
    const struct gemm *gemm = gemm_amx();
    (void)state;
    if (!gemm) {
        print_message("skipped: this machine has no AMX\n");
        skip();
    }
    struct world w = world_open(NULL, gemm, 2);
    struct err e;
    assert_int_equal(matmul_reserve(w.mm, 256, 1024, &e), OK);
    size_t held = matmul_bytes(w.mm);
    for (int k = 0; k < N_TYPES; k++) {
        struct rng rng;
        rng_seed(&rng, (uint64_t)k);
        struct matrix m = matrix_make(k, 77, 512, &rng);
        int tokens = gemm->min_tokens(DT_Q4_K) + 21;
        float *x = mem_array((size_t)tokens * 512, sizeof *x),
              *y = mem_array((size_t)tokens * 77, sizeof *y);
        struct tensor xt = tensor_f32(x, tokens, 512);
        struct linear job = { .out = tensor_f32(y, tokens, 77), .w = &m.w };
        fill_activations(x, tokens * 512, &rng);
        assert_int_equal(cpu_linear(w.mm, w.par, &xt, &job, 1), OK);
        for (int t = 0; t < tokens; t++)
            for (int r = 0; r < 77; r++) {
                double size = 0, want = dot(m.plain + r * 512, x + t * 512, 512);
                for (int c = 0; c < 512; c++)
                    size += fabs((double)m.plain[r * 512 + c] * x[t * 512 + c]);
                assert_true(fabs(y[t * 77 + r] - want) <= 4e-3 * size); /* bf16: 8 bits */
            }
        mem_free(x);
        mem_free(y);
        matrix_free(&m);
    }
    assert_true(matmul_bytes(w.mm) == held); /* nothing was allocated beyond the reserved memory */
    world_close(&w);
}

static void zero_activations_give_zero_results(void **state)
{
    (void)state;
    for (int i = 0; set_at(i); i++) {
        struct world w = world_open(set_at(i), NULL, 1);
        for (int k = 0; k < N_TYPES; k++) {
            struct rng rng;
            float x[512] = { 0 }, y[3] = { 1, 1, 1 };
            rng_seed(&rng, 5);
            struct matrix m = matrix_make(k, 3, 512, &rng);
            struct tensor xt = tensor_f32(x, 1, 512);
            struct linear job = { .out = tensor_f32(y, 1, 3), .w = &m.w };
            assert_int_equal(cpu_linear(w.mm, w.par, &xt, &job, 1), OK);
            for (int r = 0; r < 3; r++) assert_true(y[r] == 0);
            matrix_free(&m);
        }
        world_close(&w);
    }
}

/* A row of 512 columns with every byte `fill`; Q6_K: ones with the largest scale. d is 1, the minimum's
 * factor 0. */
static struct matrix largest_make(int which, int fill)
{
    enum dtype t = halves[which].type;
    size_t step = (size_t)dtype_info((int)t)->bytes,
           n = 512 / (size_t)dtype_info((int)t)->block * step;
    struct matrix m = { .w = { .type = t, .rows = 2, .cols = 512, .n = 1 } };

    m.plain = mem_array(2 * 512, sizeof(float));
    m.bytes = mem_alloc(2 * n);
    memset(m.bytes, fill, 2 * n);
    for (char *b = m.bytes; b < m.bytes + 2 * n; b += step) {
        if (t == DT_Q6_K && fill == 0xff) memset(b + 192, 0x80, 16);
        write_f16(b + halves[which].d, 1);
        if (halves[which].more >= 0) write_f16(b + halves[which].more, 0);
    }
    quant_decode(t, m.bytes, m.plain, 2 * 512);
    m.w.data = m.bytes;
    return m;
}

/* Integer kernels sum up products of up to 256 columns before they convert them. */
static void the_largest_weights_and_activations_do_not_overflow(void **state)
{
    static const int fills[] = { 0xff, 0x7f, 0x80, 0 };
    (void)state;
    for (int i = 0; set_at(i); i++) {
        struct world w = world_open(set_at(i), NULL, 1);
        for (int k = 0; halves[k].type != DT_IQ2_XXS; k++)
            for (int f = 0; f < 4; f++) {
                struct matrix m = largest_make(k, fills[f]);
                float x[4 * 512], y[8];
                for (int c = 0; c < 4 * 512; c++) x[c] = c / 512 % 2 ? -3.0f : 3.0f;
                for (int n = 1; n <= 4; n++) {
                    struct tensor xt = tensor_f32(x, n, 512);
                    struct linear job = { .out = tensor_f32(y, n, 2), .w = &m.w };
                    assert_int_equal(cpu_linear(w.mm, w.par, &xt, &job, 1), OK);
                    check_product(&m, &xt, &job.out, "ref", 1); /* no rounding: 127 is 3 */
                }
                matrix_free(&m);
            }
        world_close(&w);
    }
}

static void an_isa_is_found_by_its_name(void **state)
{
    (void)state;
    for (int i = 0; isa_at(i); i++) assert_ptr_equal(isa_by_name(isa_at(i)->name), isa_at(i));
    assert_null(isa_by_name("abacus"));
    assert_ptr_equal(isa_at(0), &isa_ref);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_type_on_every_isa_agrees_with_the_reference),
        cmocka_unit_test(float_types_take_any_number_of_columns),
        cmocka_unit_test(jobs_of_one_call_write_only_their_own_columns),
        cmocka_unit_test(many_tokens_are_multiplied_by_the_gemm),
        cmocka_unit_test(zero_activations_give_zero_results),
        cmocka_unit_test(the_largest_weights_and_activations_do_not_overflow),
        cmocka_unit_test(an_isa_is_found_by_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
