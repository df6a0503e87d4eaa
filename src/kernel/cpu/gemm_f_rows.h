/* gemm_f_rows.h - matrix-matrix product in F32 for weights that are floats: F32, F16 and BF16, and
 * for grouped codes (DT_GROUPED), which become floats on the way.
 *
 * As in gemm_rows.h, weight rows lie in the lanes of a vector and tokens are broadcast, so that
 * nothing is added across lanes:
 *
 *     for PIECE rows, BATCH tokens          sums wait in the L2 cache
 *         for CHUNK columns                 the tokens' numbers stay in the L2 cache
 *             for ROWS rows (VECS vectors)  converted to F32 and transposed once: a panel in L1
 *                 for TOKENS tokens         sums of these stay in registers
 *
 * Packed tokens are groups of TOKENS: the numbers of one column lie side by side. The last group is
 * padded with zeros.
 *
 * A file that includes this header defines LANES, VECS and TOKENS (an even number), and GROUP_ROW,
 * which decodes columns of a row of DT_GROUPED. */
#include "kernel/cpu/gemm_lanes.h"
#ifdef __x86_64__
#include "kernel/cpu/load_f_avx2.h"
#else
#include "kernel/cpu/load_f_neon.h"
#endif

#include "kernel/cpu/group_rows.h"

#include <string.h>

enum {
    PIECE = 256, /* a multiple of ROWS */
    BATCH = 384, /* a multiple of TOKENS */
    CHUNK = 128  /* a multiple of 8 */
};

struct gemm_scratch {
    _Alignas(64) float panel[CHUNK][ROWS];
    float sums[PIECE / ROWS][BATCH][ROWS];
    float decoded[8][CHUNK]; /* of DT_GROUPED */
};

static int count_groups(int tokens) { return (tokens + TOKENS - 1) / TOKENS; }

/* ---- tokens ---- */

static size_t f_x_bytes(enum dtype t, int tokens, int cols)
{
    (void)t;
    return (size_t)count_groups(tokens) * (size_t)cols * TOKENS * sizeof(float);
}

/* One token, or zeros, into its place in its group. */
static void pack_token(float *group, int at, const float *x, int cols)
{
    for (int c = 0; c < cols; c++) group[(size_t)c * TOKENS + (size_t)at] = x ? x[c] : 0;
}

static void f_pack(enum dtype w, void *xp, const struct tensor *x, int token0, int token1)
{
    size_t size = (size_t)x->cols * TOKENS;
    int end = token1 == x->rows ? count_groups(token1) * TOKENS : token1;

    (void)w;
    for (int t = token0; t < end; t++)
        pack_token((float *)xp + (size_t)(t / TOKENS) * size, t % TOKENS,
                   t < token1 ? tensor_row(x, t) : NULL, x->cols);
}

/* ---- weights ---- */

/* n columns (at most 8) of 8 rows, of which n_rows exist, to lanes [lane, lane + 8). */
INLINE void unpack_8(float (*panel)[ROWS], int lane, const char *src, size_t stride, int n_rows,
                     int n, const enum dtype t)
{
    const size_t size = t == DT_F32 ? 4 : 2;
    f8 v[8];

    UNROLL
    for (int r = 0; r < 8; r++) {
        const char *row = src + (size_t)r * stride;
        char end[32] = { 0 };
        if (r < n_rows && n < 8) memcpy(end, row, (size_t)n * size);
        v[r] = r >= n_rows ? f8_zero() : f8_load(n < 8 ? end : row, t);
    }
    f8_transpose(v);
    UNROLL
    for (int c = 0; c < 8; c++) f8_store(panel[c] + lane, v[c]);
}

/* Columns [c0, c0 + n) of rows [row, row + n_rows). The rows of the next panel are prefetched. */
INLINE void unpack_panel(struct gemm_scratch *w, const struct gemm_job *j, int row, int n_rows,
                         int c0, int n, const enum dtype t)
{
    const size_t size = t == DT_F32 ? 4 : 2, stride = (size_t)j->cols * size;
    const char *src = (const char *)j->data + (size_t)row * stride + (size_t)c0 * size;

    for (int r = 0; r < ROWS; r += 8) {
        const char *at = src + (size_t)r * stride;
        int have = n_rows - r < 0 ? 0 : n_rows - r > 8 ? 8 : n_rows - r, c = 0;
        for (int k = 0; k < have; k++)
            for (int b = 0; b < (int)(CHUNK * size); b += 64)
                __builtin_prefetch(at + (size_t)(k + ROWS) * stride + b, 0, 2);
        if (have == 8)
            for (; c + 8 <= n; c += 8)
                unpack_8(w->panel + c, r, at + (size_t)c * size, stride, 8, 8, t);
        for (; c < n; c += 8)
            unpack_8(w->panel + c, r, at + (size_t)c * size, stride, have, n - c < 8 ? n - c : 8,
                     t);
    }
}

/* Products with DT_GROUPED weights, 8 rows of floats at a time. */
INLINE void unpack_grouped(struct gemm_scratch *w, const struct gemm_job *j, int row, int n_rows,
                           int c0, int n)
{
    const char *src = (const char *)j->data + (size_t)row * j->group->row_bytes;
    const size_t stride = sizeof w->decoded[0];

    for (int r = 0; r < ROWS; r += 8) {
        int have = n_rows - r < 0 ? 0 : n_rows - r > 8 ? 8 : n_rows - r;
        for (int k = 0; k < have; k++)
            GROUP_ROW(j->group, src + (size_t)(r + k) * j->group->row_bytes, c0, n, w->decoded[k]);
        for (int c = 0; c < n; c += 8)
            unpack_8(w->panel + c, r, (const char *)&w->decoded[0][c], stride, have,
                     n - c < 8 ? n - c : 8, DT_F32);
    }
}

/* ---- products ---- */

/* sums (+)= n columns of the panel times T tokens. */
INLINE void run_tile(float (*sums)[ROWS], const float (*panel)[ROWS], const float *x, int n,
                     size_t ahead, bool first, const int T)
{
    vf acc[VECS][TOKENS];

    if (ahead) UNROLL
    for (int t = 0; t < T; t++) UNROLL
    for (int v = 0; v < ROWS / 16; v++) __builtin_prefetch(sums[t + T] + v * 16);

    UNROLL
    for (int v = 0; v < VECS; v++) UNROLL
    for (int t = 0; t < T; t++) acc[v][t] = first ? v_zerof() : v_loadf(sums[t] + v * LANES);
    for (int k = 0; k < n; k++, x += TOKENS) {
        vf a[VECS];
        if (ahead) __builtin_prefetch(x + ahead);
        UNROLL
        for (int v = 0; v < VECS; v++) a[v] = v_loadf(panel[k] + v * LANES);
        UNROLL
        for (int t = 0; t < T; t++) {
            vf b = v_setf(x[t]);
            UNROLL
            for (int v = 0; v < VECS; v++) acc[v][t] = v_fma(a[v], b, acc[v][t]);
        }
    }
    UNROLL
    for (int v = 0; v < VECS; v++) UNROLL
    for (int t = 0; t < T; t++) v_storef(sums[t] + v * LANES, acc[v][t]);
}

/* n_tokens from group `group` on times the panel of columns [c0, c0 + n). */
static void run_panel(struct gemm_scratch *w, float (*sums)[ROWS], const float *xp, int cols,
                      int n_tokens, int c0, int n)
{
    const float(*panel)[ROWS] = (const float(*)[ROWS])w->panel;
    size_t size = (size_t)cols * TOKENS;
    int t = 0;

    xp += (size_t)c0 * TOKENS;
    for (; t + TOKENS <= n_tokens; t += TOKENS, xp += size)
        run_tile(sums + t, panel, xp, n, size, c0 == 0, TOKENS);
    for (int at = 0; t < n_tokens;) {
        int left = n_tokens - t;
        if (left >= 4) run_tile(sums + t, panel, xp + at, n, 0, c0 == 0, 4);
        else if (left >= 2) run_tile(sums + t, panel, xp + at, n, 0, c0 == 0, 2);
        else run_tile(sums + t, panel, xp + at, n, 0, c0 == 0, 1);
        at += left >= 4 ? 4 : left >= 2 ? 2 : 1;
        t += left >= 4 ? 4 : left >= 2 ? 2 : 1;
    }
}

/* Rows [row0, row1), at most PIECE, times tokens [t0, t0 + n), at most BATCH. */
INLINE void run_piece(const struct gemm_job *j, const float *xp, int row0, int row1, int t0, int n,
                      struct gemm_scratch *w, const enum dtype type)
{
    xp += (size_t)t0 * (size_t)j->cols; /* t0 is a multiple of TOKENS */
    for (int c = 0; c < j->cols; c += CHUNK) {
        int n_cols = j->cols - c < CHUNK ? j->cols - c : CHUNK;
        for (int row = row0, i = 0; row < row1; row += ROWS, i++) {
            int n_rows = row1 - row < ROWS ? row1 - row : ROWS;
            if (type == DT_GROUPED) unpack_grouped(w, j, row, n_rows, c, n_cols);
            else unpack_panel(w, j, row, n_rows, c, n_cols, type);
            run_panel(w, w->sums[i], xp, j->cols, n, c, n_cols);
        }
    }
    for (int row = row0, i = 0; row < row1; row += ROWS, i++)
        for (int t = 0; t < n; t++)
            write_token(j, w->sums[i][t], tensor_row(j->out, t0 + t) + row, row,
                        row1 - row < ROWS ? row1 - row : ROWS);
}

INLINE void run_rows(const struct gemm_job *j, const void *xp, int row0, int row1,
                     struct gemm_scratch *w, const enum dtype type)
{
    for (int row = row0; row < row1; row += PIECE)
        for (int t = 0; t < j->tokens; t += BATCH)
            run_piece(j, xp, row, row + PIECE < row1 ? row + PIECE : row1, t,
                      j->tokens - t < BATCH ? j->tokens - t : BATCH, w, type);
}

static bool f_can(enum dtype t)
{
    return t == DT_F32 || t == DT_F16 || t == DT_BF16 || t == DT_GROUPED;
}

static size_t f_scratch_bytes(enum dtype t, int cols)
{
    (void)t, (void)cols;
    return sizeof(struct gemm_scratch);
}

static void f_run(const struct gemm_job *j, const void *xp, int row0, int row1, void *scratch)
{
    if (j->type == DT_F32) run_rows(j, xp, row0, row1, scratch, DT_F32);
    else if (j->type == DT_F16) run_rows(j, xp, row0, row1, scratch, DT_F16);
    else if (j->type == DT_GROUPED) run_rows(j, xp, row0, row1, scratch, DT_GROUPED);
    else run_rows(j, xp, row0, row1, scratch, DT_BF16);
}
