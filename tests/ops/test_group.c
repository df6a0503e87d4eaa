/* DT_GROUPED on every instruction set of this machine against products in double over decoded rows:
 * every code and type of scales, odd shapes and group sizes; and activations in another order.
 *
 * Weights and tokens are random. Reads no files. */
#include "support.h"

#include "base/mem.h"
#include "base/rng.h"
#include "kernel/cpu/gemm.h"
#include "kernel/cpu/isa.h"
#include "kernel/cpu/kernels.h"
#include "kernel/cpu/matmul.h"
#include "kernel/quant.h"

#include <math.h>
#include <stdio.h>

#define BOUND 2e-5 /* of |error| / norm: only the sums are rounded */

struct shape {
    int rows, cols, group;
};

static const struct shape shapes[] = {
    { 5, 128, 128 }, { 9, 96, 32 },    { 3, 256, 64 },   { 7, 160, 16 }, { 6, 200, 200 },
    { 4, 72, 24 },   { 11, 320, 128 }, { 2, 33, 33 },    { 5, 100, 50 }, { 8, 1024, 16 },
    { 3, 8192, 16 }, { 37, 192, 128 }, { 70, 272, 272 }, { 1, 17, 5 },
};

struct world {
    struct grouped g;
    int rows;
    char *w;
    float *wf; /* [rows][cols] */
};

/* A finite scale of the type, not too large. */
static void put_scale(struct grouped *g, char *row, int i, struct rng *r)
{
    float v = 0.01f + 0.05f * (float)rng_unit(r);
    uint16_t h = g->scale == SCALE_F16 ? f32_to_f16(v) : f32_to_bf16(v);
    uint8_t b = (uint8_t)(g->scale == SCALE_E8M0 ? 118 + rng_u64(r) % 8 : 1 + rng_u64(r) % 0x40);

    if (g->scale == SCALE_F32) memcpy(row + g->scales_at + (size_t)i * 4, &v, 4);
    else if (g->scale == SCALE_F16 || g->scale == SCALE_BF16)
        memcpy(row + g->scales_at + (size_t)i * 2, &h, 2);
    else if (g->scale != SCALE_NONE) row[g->scales_at + (size_t)i] = (char)b;
}

static void world_init(struct world *m, const struct shape *s, enum group_code code,
                       enum group_scale scale, bool zeros)
{
    struct rng r;

    *m = (struct world){ .rows = s->rows };
    m->g = (struct grouped){ .code = code,
                             .scale = scale,
                             .zeros = zeros,
                             .zero = zeros ? 1 : 8,
                             .cols = s->cols,
                             .group = s->group,
                             .factor = scale == SCALE_NONE ? 0.03f : 0.5f };
    grouped_measure(&m->g);
    rng_seed(&r, (uint64_t)(s->rows + s->cols * 3 + (int)code * 1000 + (int)scale));
    /* Exactly as long as it must be, so that a sanitizer finds reads past it. */
    m->w = mem_alloc((size_t)s->rows * m->g.row_bytes);
    m->wf = mem_array((size_t)s->rows * (size_t)s->cols, sizeof(float));
    for (size_t i = 0; i < (size_t)s->rows * m->g.row_bytes; i++) {
        m->w[i] = (char)rng_u64(&r);
        if (code == CODE_E4M3 || code == CODE_E5M2) m->w[i] &= (char)0xbf; /* no NaN, no Inf */
    }
    for (int n = 0; n < s->rows; n++) {
        char *row = m->w + (size_t)n * m->g.row_bytes;
        for (int i = 0; i < m->g.n_groups; i++) put_scale(&m->g, row, i, &r);
        grouped_decode(&m->g, row, 0, s->cols, m->wf + (size_t)n * (size_t)s->cols);
    }
}

static void world_release(struct world *m)
{
    mem_free(m->w);
    mem_free(m->wf);
}

static float *make_tokens(int n, int cols)
{
    struct rng r;
    float *x = mem_array((size_t)n * (size_t)cols, sizeof *x);

    rng_seed(&r, (uint64_t)(n + cols));
    for (int i = 0; i < n * cols; i++) x[i] = rng_normal(&r);
    return x;
}

/* out[t][n] against the sum in double; order: of the columns, or NULL. */
static void check(const struct world *m, const float *x, int tokens, const float *out,
                  size_t stride, const int32_t *order, const char *what)
{
    for (int t = 0; t < tokens; t++)
        for (int n = 0; n < m->rows; n++) {
            double sum = 0, norm = 0;
            for (int k = 0; k < m->g.cols; k++) {
                double p = (double)m->wf[n * m->g.cols + k] *
                           (double)x[t * m->g.cols + (order ? order[k] : k)];
                sum += p, norm += p * p;
            }
            double err =
                fabs((double)out[(size_t)t * stride + (size_t)n] - sum) / (sqrt(norm) + 1e-30);
            if (!(err <= BOUND))
                print_message(
                    "%s: code %d, scale %d, %d x %d, groups of %d, %d tokens: [%d][%d] is "
                    "%g, expected %g\n",
                    what, (int)m->g.code, (int)m->g.scale, m->rows, m->g.cols, m->g.group, tokens,
                    t, n, (double)out[(size_t)t * stride + (size_t)n], sum);
            assert_true(err <= BOUND);
        }
}

typedef void check_fn(const struct world *m, void *arg);

static void each_world(check_fn *fn, void *arg)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int code = CODE_U2; code <= CODE_E5M2; code++)
            for (int scale = SCALE_NONE; scale <= SCALE_E4M3; scale++) {
                struct world m;
                world_init(&m, &shapes[i], (enum group_code)code, (enum group_scale)scale,
                           code <= CODE_U8 && scale % 2);
                fn(&m, arg);
                world_release(&m);
            }
}

static void check_gemv(const struct world *m, void *arg)
{
    const struct isa *isa = arg;
    float *x = make_tokens(ISA_TOKENS, m->g.cols),
          *out = mem_array((size_t)(ISA_TOKENS * m->rows), sizeof *out);

    for (int tokens = 1; tokens <= ISA_TOKENS; tokens++) {
        struct gemv g = { .type = DT_GROUPED,
                          .group = &m->g,
                          .cols = m->g.cols,
                          .n_rows = m->rows,
                          .n_tokens = tokens,
                          .w = m->w,
                          .w_stride = m->g.row_bytes,
                          .x = x,
                          .x_stride = (size_t)m->g.cols * sizeof(float),
                          .out = out,
                          .out_stride = (size_t)m->rows };
        assert_int_equal(isa->gemv[DT_GROUPED].form, 0);
        isa->gemv[DT_GROUPED].fn(&g);
        check(m, x, tokens, out, (size_t)m->rows, NULL, isa->name);
    }
    mem_free(x);
    mem_free(out);
}

static void gemv_of_every_instruction_set_agrees(void **state)
{
    (void)state;
    for (int i = 0; isa_at(i); i++) {
        print_message("%s\n", isa_at(i)->name);
        each_world(check_gemv, (void *)(uintptr_t)isa_at(i));
    }
}

/* ---- through cpu_linear: many tokens, threads, and columns in another order ---- */

struct team {
    struct par *par;
    struct matmul *matmul;
    int tokens;
    bool ordered;
    const char *name;
};

static void check_linear(const struct world *m, void *arg)
{
    const struct team *team = arg;
    struct grouped g = m->g;
    struct weight w = { .type = DT_GROUPED, .rows = m->rows, .cols = g.cols, .n = 1, .data = m->w };
    float *xs = make_tokens(team->tokens, g.cols),
          *out = mem_array((size_t)(team->tokens * m->rows), sizeof *out);
    int32_t *order = mem_array((size_t)g.cols, sizeof *order);
    struct tensor x = tensor_f32(xs, team->tokens, g.cols);
    struct linear job = { .out = tensor_f32(out, team->tokens, m->rows), .w = &w };

    for (int c = 0; c < g.cols; c++) order[c] = (int)((7 * (int64_t)c + 3) % g.cols);
    if (team->ordered && g.cols % 7) g.order = order;
    w.group = &g;
    assert_int_equal(cpu_linear(team->matmul, team->par, &x, &job, 1), OK);
    check(m, xs, team->tokens, out, (size_t)m->rows, g.order, team->name);
    mem_free(xs);
    mem_free(out);
    mem_free(order);
}

static void linear_of_every_kernel_set_agrees(void **state)
{
    static const int tokens[] = { 1, 3, 8, 13, 45 };
    struct err e;

    (void)state;
    for (int i = 0; kernels_at(i); i++) {
        struct kernels k;
        struct team team = { .name = kernels_at(i) };
        assert_int_equal(kernels_find(&k, kernels_at(i), &e), OK);
        assert_int_equal(par_open(&team.par, (struct par_opt){ .n_threads = 2 }, &e), OK);
        assert_int_equal(matmul_open(&team.matmul, team.par, k.matmul, &e), OK);
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
            team.tokens = tokens[t];
            team.ordered = t % 2 == 0;
            each_world(check_linear, &team);
        }
        matmul_close(team.matmul);
        par_close(team.par);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemv_of_every_instruction_set_agrees),
        cmocka_unit_test(linear_of_every_kernel_set_agrees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
