/* onnx_gemm.c - matrix products as tiles: M_ROWS rows of a times a panel of OP_PANEL columns of b.
 *
 * The worker threads share the tiles. The kernel (vec->panel) wants a panel contiguous: it is
 * packed K_ROWS rows of k at a time, 32 KiB that stay in the L1 cache, unless b is constant and was
 * packed when the run opened.
 *
 * 8-bit integers are multiplied as floats. A sum over K_ROWS products of two bytes is below 2^24,
 * so it is exact in a float; sums of different k ranges are added as integers. */
#include "onnx/op.h"

enum { K_ROWS = 256, M_ROWS = 96 };

/* Packs k rows of `cols` columns of b into a panel; the other columns of the panel are 0. */
static void pack_floats(float *to, const void *b, int64_t k, int64_t cols, int64_t bk, int64_t bn)
{
    const char *p = b; /* floats of a file may be unaligned */

    for (int64_t i = 0; i < k; i++, to += OP_PANEL, p += bk * (int64_t)sizeof(float)) {
        if (bn == 1) memcpy(to, p, (size_t)cols * sizeof(float));
        else
            for (int64_t c = 0; c < cols; c++)
                memcpy(to + c, p + c * bn * (int64_t)sizeof(float), sizeof(float));
        for (int64_t c = cols; c < OP_PANEL; c++) to[c] = 0;
    }
}

/* The same of 8-bit integers, less their zero points. */
static void pack_ints(const struct op_gemm *g, float *to, int64_t at, int64_t k, int64_t col,
                      int64_t cols)
{
    float zero[OP_PANEL] = { 0 };

    for (int64_t c = 0; c < cols; c++)
        zero[c] = g->b_zero ? g->b_zero[g->zero_each ? col + c : 0] : 0;
    for (int64_t i = 0; i < k; i++, to += OP_PANEL, at += g->bk) {
        const uint8_t *u = (const uint8_t *)g->b8 + at + col;
        const int8_t *s = (const int8_t *)g->b8 + at + col;
        for (int64_t c = 0; c < cols; c++)
            to[c] = (g->b8_signed ? (float)s[c] : (float)u[c]) - zero[c];
        for (int64_t c = cols; c < OP_PANEL; c++) to[c] = 0;
    }
}

float *op_pack(struct onnx_run *r, const void *b, int64_t k, int64_t n, int64_t bk, int64_t bn)
{
    int64_t panels = (n + OP_PANEL - 1) / OP_PANEL;
    float *out = op_alloc(r, (size_t)(panels * k * OP_PANEL) * sizeof *out);

    for (int64_t p = 0; out && p < panels; p++)
        pack_floats(out + p * k * OP_PANEL,
                    (const char *)b + p * OP_PANEL * bn * (int64_t)sizeof *out, k,
                    n - p * OP_PANEL < OP_PANEL ? n - p * OP_PANEL : OP_PANEL, bk, bn);
    return out;
}

struct gemm_job {
    const struct op_gemm *g;
    const struct vec *vec;
    int64_t blocks, panels; /* of rows and of columns, in one product */
};

/* Adds the sums of one k range to c, or stores them if it is the first. */
static void add_exact(int64_t *c, const float *part, int m, int n, int64_t ldc, bool add)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            int64_t v = (int64_t)part[i * OP_PANEL + j];
            c[i * ldc + j] = add ? c[i * ldc + j] + v : v;
        }
}

static void compute_tile(const struct gemm_job *j, int64_t batch, int64_t panel, int64_t row)
{
    const struct op_gemm *g = j->g;
    _Alignas(64) float packed[K_ROWS * OP_PANEL];
    float part[M_ROWS * OP_PANEL];
    int64_t col = panel * OP_PANEL, cols = g->n - col < OP_PANEL ? g->n - col : OP_PANEL;
    int64_t b_at = g->b_at ? g->b_at[batch] : 0, c_at = (batch * g->m + row) * g->n + col;
    struct vec_panel p = { .m = (int)(g->m - row < M_ROWS ? g->m - row : M_ROWS),
                           .n = (int)cols,
                           .lda = (size_t)g->lda,
                           .c = g->c64 ? part : g->c + c_at,
                           .ldc = g->c64 ? OP_PANEL : (size_t)g->n };

    for (int64_t k = 0; k < g->k; k += K_ROWS) {
        int64_t rows = g->k - k < K_ROWS ? g->k - k : K_ROWS;
        p.a = g->a + (g->a_at ? g->a_at[batch] : 0) + row * g->lda + k;
        p.k = (int)rows;
        p.add = k > 0 && !g->c64;
        p.b = packed;
        if (g->packed) p.b = g->packed + (panel * g->k + k) * OP_PANEL;
        else if (g->b8) pack_ints(g, packed, b_at + k * g->bk, rows, col, cols);
        else pack_floats(packed, g->b + b_at + k * g->bk + col * g->bn, rows, cols, g->bk, g->bn);
        j->vec->panel(&p);
        if (g->c64) add_exact(g->c64 + c_at, part, p.m, p.n, g->n, k > 0);
    }
}

static void compute_tiles(const void *arg, int begin, int end)
{
    const struct gemm_job *j = arg;

    for (int64_t t = begin; t < end; t++)
        compute_tile(j, t / (j->blocks * j->panels), t / j->blocks % j->panels,
                     t % j->blocks * M_ROWS);
}

void op_gemm(struct onnx_run *r, const struct op_gemm *g)
{
    struct gemm_job j = { g, r->host.vec, (g->m + M_ROWS - 1) / M_ROWS,
                          (g->n + OP_PANEL - 1) / OP_PANEL };
    size_t n = (size_t)(g->batch * g->m * g->n);

    if (g->k == 0 && n)
        memset(g->c64 ? (void *)g->c64 : g->c, 0, n * (g->c64 ? sizeof *g->c64 : sizeof *g->c));
    if (g->k == 0 || n == 0) return;
    op_share_rows(r, g->batch * j.blocks * j.panels, g->batch * g->m * g->n * (g->k / 8 + 1),
                  compute_tiles, &j);
}
