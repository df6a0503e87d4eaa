/* gemm_neon.h - matrix-matrix product in integers by NEON: with dot products (sdot), or with matrix
 * products of 2 x 2 results (smmla, I8MM).
 *
 *     for ROWS rows                         GROUPS groups of 8
 *         for BATCH tokens
 *             for CHUNK x 256 columns       unpacked once from the file's format into panels
 *                 for 4 tokens              packed side by side
 *                     for 8 rows            sums of 8 x 4 stay in registers
 *                         for 32 columns    integer sums, scaled to F32
 *
 * Tokens are rounded to 8 bits with a scale per 32 columns, and keep the sums of 16 and 32 columns for
 * formats with minima: W = d q + m gives W x = d (q x) + m sum(x). Groups of 4 tokens are padded with
 * zeros.
 *
 *     sdot    a vector of weights is 4 rows x 4 columns; a lane of a token's 16 columns is multiplied
 *             with all rows. A sum has 4 rows of one token.
 *     smmla   a vector of weights is 2 rows x 8 columns, one of tokens 2 tokens x 8 columns. A sum
 *             has 2 tokens x 2 rows, and the scales are stored to match it.
 *
 * A file that includes this header defines HAS_MMLA. */
#include "kernel/cpu/gemm.h"
#include "kernel/cpu/load_iq_neon.h"
#include "kernel/cpu/transpose_neon.h"

enum {
    GROUPS = 2,
    ROWS = 8 * GROUPS,
    BATCH = 128, /* tokens whose sums wait in memory; a multiple of 4 */
    CHUNK = 4,   /* blocks of 256 columns in the panels, which stay in the L1 cache */
    SUBS = 8,    /* sub-blocks of 32 columns in a block */
    SUMS = 8,    /* vectors of sums of 8 rows x 4 tokens */
    SCALES = HAS_MMLA ? 16 : 8, /* floats that hold the scales of 8 rows */
    PART_BYTES = 128            /* 16 columns of 8 rows */
};

/* The properties of a weight format that the loops are compiled for; always a compile-time constant. */
struct form {
    enum dtype type;
    int block, bytes; /* columns and bytes of a block of the file */
};

/* 256 columns of 4 tokens. */
struct xgroup {
    int8_t q[16][4][16]; /* 16 columns each */
    float d[8][4];       /* scales of 32 columns */
    float s[8][4];       /* d * sum of q over 32 columns */
    float s16[16][4];    /* and over 16 */
};

/* 8 rows x 256 columns, unpacked. */
struct panel {
    int8_t q[16][PART_BYTES];
    float d[16][SCALES]; /* scales per 32 (or 16) columns */
    float m[16][SCALES]; /* minima */
};

struct gemm_scratch {
    struct panel panel[GROUPS][CHUNK];
    float sums[BATCH][ROWS];
};

static int count_blocks(int cols) { return (cols + 255) / 256; }
static int count_groups(int tokens) { return (tokens + 3) / 4; }

/* ---- tokens ---- */

/* 16 columns of token t, in the order that the products read them. */
INLINE void store_columns(int8_t (*to)[16], int t, const int8_t *q)
{
#if HAS_MMLA /* to[2 k + pair]: 8 columns of both tokens of a pair */
    memcpy(to[t / 2] + t % 2 * 8, q, 8);
    memcpy(to[2 + t / 2] + t % 2 * 8, q + 8, 8);
#else
    memcpy(to[t], q, 16);
#endif
}

/* n columns of token t of a group, at most 256; the others are zeros. x NULL: all are. */
static void pack_token(struct xgroup *to, int t, const float *x, int n)
{
    struct x8 part[8];

    memset(part, 0, sizeof part);
    if (x) x8_make_neon(part, x, n);
    for (int i = 0; i < 8; i++) {
        store_columns(to->q[2 * i], t, part[i].q);
        store_columns(to->q[2 * i + 1], t, part[i].q + 16);
        to->d[i][t] = part[i].d;
        to->s16[2 * i][t] = part[i].s[0];
        to->s16[2 * i + 1][t] = part[i].s[1];
        to->s[i][t] = part[i].s[0] + part[i].s[1];
    }
}

/* ---- weights ---- */

/* 16 columns of 8 rows, in the order that the products read them. */
INLINE void store_part(int8_t *to, const int8x16_t v[8])
{
#if HAS_MMLA
    UNROLL
    for (int p = 0; p < 4; p++) {
        int64x2_t a = vreinterpretq_s64_s8(v[2 * p]), b = vreinterpretq_s64_s8(v[2 * p + 1]);
        vst1q_s8(to + 16 * p, vreinterpretq_s8_s64(vzip1q_s64(a, b)));
        vst1q_s8(to + 64 + 16 * p, vreinterpretq_s8_s64(vzip2q_s64(a, b)));
    }
#else
    UNROLL
    for (int h = 0; h < 2; h++) {
        int32x4_t r[4];
        UNROLL
        for (int i = 0; i < 4; i++) r[i] = vreinterpretq_s32_s8(v[4 * h + i]);
        transpose4(r);
        UNROLL
        for (int k = 0; k < 4; k++) vst1q_s8(to + 32 * k + 16 * h, vreinterpretq_s8_s32(r[k]));
    }
#endif
}

/* The scale of row r of 8. */
INLINE void store_scale(float *to, int r, float d)
{
#if HAS_MMLA /* two rows of two tokens */
    to[r / 2 * 4 + r % 2] = to[r / 2 * 4 + 2 + r % 2] = d;
#else
    to[r] = d;
#endif
}

/* n sub-blocks of a row, of any format. */
INLINE void load_row(struct w256 *w, const char *p, int n, const struct form f)
{
    if (f.block == 256) {
        load_w256(w, p, f.type);
        return;
    }
    int8x16_t levels = levels_of(f.type);
    for (int s = 0; s < n; s++) {
        struct w32 b = load_w32(p + s * f.bytes, levels, f.type);
        for (int h = 0; h < 2; h++) {
            w->q[2 * s + h] = b.q[h];
            w->d[2 * s + h] = b.d[h];
            w->m[2 * s + h] = b.m[h];
        }
    }
}

/* 256 columns of 8 rows, of which n_rows exist; the others are zeros. n: sub-blocks of 32 columns. */
INLINE void unpack_rows(struct panel *p, const char *src, size_t stride, int n_rows, int n,
                        const struct form f)
{
    const int step = has_half_scales(f.type) ? 1 : 2;
    struct w256 w[8];

    for (int r = 0; r < 8; r++) {
        if (r < n_rows) load_row(&w[r], src + (size_t)r * stride, n, f);
        else memset(&w[r], 0, sizeof w[r]);
        for (int i = 0; i < 2 * n; i += step) {
            store_scale(p->d[i / step], r, w[r].d[i]);
            if (has_minima(f.type)) store_scale(p->m[i / step], r, w[r].m[i]);
        }
    }
    for (int i = 0; i < 2 * n; i++) {
        int8x16_t v[8];
        UNROLL
        for (int r = 0; r < 8; r++) v[r] = w[r].q[i];
        store_part(p->q[i], v);
    }
}

/* ---- products ---- */

#if HAS_MMLA
/* sum += 16 columns of 8 rows times 4 tokens. Sum 2 p + i: rows 2 p and 2 p + 1 of tokens 2 i and
 * 2 i + 1. */
INLINE void multiply(int32x4_t sum[SUMS], const int8_t *w, const int8_t (*x)[16])
{
    UNROLL
    for (int k = 0; k < 2; k++) {
        int8x16_t a = vld1q_s8(x[2 * k]), b = vld1q_s8(x[2 * k + 1]);
        UNROLL
        for (int p = 0; p < 4; p++) {
            int8x16_t v = vld1q_s8(w + 64 * k + 16 * p);
            sum[2 * p] = vmmlaq_s32(sum[2 * p], a, v);
            sum[2 * p + 1] = vmmlaq_s32(sum[2 * p + 1], b, v);
        }
    }
}

/* acc += d * dx * sum (+ m * sx): scales of rows and tokens. */
INLINE void add_scaled(float32x4_t acc[SUMS], const int32x4_t sum[SUMS], const float *d,
                       const float *m, const float *dx, const float *sx)
{
    float32x4_t xd = vld1q_f32(dx), xs = vld1q_f32(sx);
    float32x4_t tokens[2] = { vzip1q_f32(xd, xd), vzip2q_f32(xd, xd) };
    float32x4_t sums[2] = { vzip1q_f32(xs, xs), vzip2q_f32(xs, xs) };

    UNROLL
    for (int p = 0; p < 4; p++) {
        float32x4_t rows = vld1q_f32(d + 4 * p);
        UNROLL
        for (int i = 0; i < 2; i++) {
            const int at = 2 * p + i;
            acc[at] = vfmaq_f32(acc[at], vcvtq_f32_s32(sum[at]), vmulq_f32(rows, tokens[i]));
            if (m) acc[at] = vfmaq_f32(acc[at], vld1q_f32(m + 4 * p), sums[i]);
        }
    }
}

/* Rows 4 h to 4 h + 3 of token t. */
INLINE float32x4_t rows_of(const float32x4_t acc[SUMS], const int t, const int h)
{
    float32x4_t a = acc[4 * h + t / 2], b = acc[4 * h + 2 + t / 2];
    return t % 2 ? vcombine_f32(vget_high_f32(a), vget_high_f32(b))
                 : vcombine_f32(vget_low_f32(a), vget_low_f32(b));
}
#else
/* sum += a vector of weights times lane k of a token; k is a compile-time constant. */
INLINE int32x4_t dot_lane(int32x4_t sum, int8x16_t w, int8x16_t x, const int k)
{
    switch (k) {
    case 0: return vdotq_laneq_s32(sum, w, x, 0);
    case 1: return vdotq_laneq_s32(sum, w, x, 1);
    case 2: return vdotq_laneq_s32(sum, w, x, 2);
    default: return vdotq_laneq_s32(sum, w, x, 3);
    }
}

INLINE float32x4_t mul_lane(float32x4_t v, float32x4_t x, const int t)
{
    switch (t) {
    case 0: return vmulq_laneq_f32(v, x, 0);
    case 1: return vmulq_laneq_f32(v, x, 1);
    case 2: return vmulq_laneq_f32(v, x, 2);
    default: return vmulq_laneq_f32(v, x, 3);
    }
}

INLINE float32x4_t fma_lane(float32x4_t acc, float32x4_t v, float32x4_t x, const int t)
{
    switch (t) {
    case 0: return vfmaq_laneq_f32(acc, v, x, 0);
    case 1: return vfmaq_laneq_f32(acc, v, x, 1);
    case 2: return vfmaq_laneq_f32(acc, v, x, 2);
    default: return vfmaq_laneq_f32(acc, v, x, 3);
    }
}

/* sum += 16 columns of 8 rows times 4 tokens. Sum 4 h + t: rows 4 h to 4 h + 3 of token t. */
INLINE void multiply(int32x4_t sum[SUMS], const int8_t *w, const int8_t (*x)[16])
{
    int8x16_t b[4];

    UNROLL
    for (int t = 0; t < 4; t++) b[t] = vld1q_s8(x[t]);
    UNROLL
    for (int k = 0; k < 4; k++) UNROLL
    for (int h = 0; h < 2; h++) {
        int8x16_t v = vld1q_s8(w + 32 * k + 16 * h);
        UNROLL
        for (int t = 0; t < 4; t++) sum[4 * h + t] = dot_lane(sum[4 * h + t], v, b[t], k);
    }
}

/* acc += d * dx * sum (+ m * sx): scales of rows and tokens. */
INLINE void add_scaled(float32x4_t acc[SUMS], const int32x4_t sum[SUMS], const float *d,
                       const float *m, const float *dx, const float *sx)
{
    float32x4_t tokens = vld1q_f32(dx), sums = vld1q_f32(sx);

    UNROLL
    for (int h = 0; h < 2; h++) {
        float32x4_t rows = vld1q_f32(d + 4 * h);
        UNROLL
        for (int t = 0; t < 4; t++) {
            const int at = 4 * h + t;
            acc[at] = vfmaq_f32(acc[at], vcvtq_f32_s32(sum[at]), mul_lane(rows, tokens, t));
            if (m) acc[at] = fma_lane(acc[at], vld1q_f32(m + 4 * h), sums, t);
        }
    }
}

/* Rows 4 h to 4 h + 3 of token t. */
INLINE float32x4_t rows_of(const float32x4_t acc[SUMS], const int t, const int h)
{
    return acc[4 * h + t];
}
#endif

/* sums += 8 rows x 4 tokens of 256 columns (n sub-blocks). */
INLINE void run_block(float (*sums)[ROWS], int row, const struct panel *p, const struct xgroup *x,
                      int n, const struct form f)
{
    const bool half = has_half_scales(f.type), min = has_minima(f.type);
    float32x4_t acc[SUMS];

    UNROLL
    for (int i = 0; i < SUMS; i++) acc[i] = vdupq_n_f32(0);
    for (int s = 0; s < n; s++) {
        int32x4_t sum[SUMS];
        UNROLL
        for (int h = 0; h < 2; h++) {
            if (h == 0 || half) UNROLL
            for (int i = 0; i < SUMS; i++) sum[i] = vdupq_n_s32(0);
            multiply(sum, p->q[2 * s + h], x->q[2 * s + h]);
            if (h == 0 && !half) continue;
            const int at = half ? 2 * s + h : s;
            add_scaled(acc, sum, p->d[at], min ? p->m[at] : NULL, x->d[s],
                       half ? x->s16[at] : x->s[at]);
        }
    }
    UNROLL
    for (int t = 0; t < 4; t++) UNROLL
    for (int h = 0; h < 2; h++) {
        float *to = sums[t] + row + 4 * h;
        vst1q_f32(to, vaddq_f32(vld1q_f32(to), rows_of(acc, t, h)));
    }
}

/* Unpacks blocks [b0, b1) of rows [row, row + n_rows). */
INLINE void unpack_chunk(struct gemm_scratch *w, const struct gemm_job *j, int row, int n_rows,
                         int b0, int b1, const struct form f)
{
    size_t stride = (size_t)(j->cols / f.block) * (size_t)f.bytes;

    for (int g = 0; g < GROUPS; g++) {
        int have = n_rows - 8 * g < 0 ? 0 : n_rows - 8 * g > 8 ? 8 : n_rows - 8 * g;
        for (int b = b0; b < b1; b++) {
            int left = (j->cols - b * 256) / 32, n = left < SUBS ? left : SUBS;
            const char *src = (const char *)j->data + (size_t)(row + 8 * g) * stride +
                              (size_t)b * (size_t)f.bytes * (size_t)(256 / f.block);
            unpack_rows(&w->panel[g][b - b0], src, stride, have, n, f);
        }
    }
}

/* Scale, bias and residual addition of rows [row, row + n_rows) of one token. */
static void write_token(const struct gemm_job *j, const float *sums, float *out, int row,
                        int n_rows)
{
    for (int r = 0; r < n_rows; r++) {
        float y = j->scale * sums[r] + (j->bias ? j->bias[row + r] : 0);
        out[r] = j->add ? out[r] + y : y;
    }
}

/* Rows [row, row + n_rows), at most ROWS, times tokens [t0, t0 + n), at most BATCH. */
INLINE void run_batch(const struct gemm_job *j, const struct xgroup *x, int row, int n_rows, int t0,
                      int n, struct gemm_scratch *w, const struct form f)
{
    int blocks = count_blocks(j->cols);

    memset(w->sums, 0, (size_t)count_groups(n) * 4 * sizeof *w->sums);
    for (int b0 = 0; b0 < blocks; b0 += CHUNK) {
        int b1 = b0 + CHUNK < blocks ? b0 + CHUNK : blocks;
        unpack_chunk(w, j, row, n_rows, b0, b1, f);
        for (int t = 0; t < n; t += 4) {
            const struct xgroup *at = x + (size_t)((t0 + t) / 4) * (size_t)blocks;
            for (int g = 0; g < GROUPS; g++)
                for (int b = b0; b < b1; b++) {
                    int left = (j->cols - b * 256) / 32;
                    run_block(w->sums + t, 8 * g, &w->panel[g][b - b0], at + b,
                              left < SUBS ? left : SUBS, f);
                }
        }
    }
    for (int t = 0; t < n; t++)
        write_token(j, w->sums[t], tensor_row(j->out, t0 + t) + row, row, n_rows);
}

/* Rows [row0, row1) of a job; f is a compile-time constant. */
INLINE void run_rows(const struct gemm_job *j, const void *xp, int row0, int row1,
                     struct gemm_scratch *w, const struct form f)
{
    for (int row = row0; row < row1; row += ROWS)
        for (int t = 0; t < j->tokens; t += BATCH)
            run_batch(j, xp, row, row1 - row < ROWS ? row1 - row : ROWS, t,
                      j->tokens - t < BATCH ? j->tokens - t : BATCH, w, f);
}

/* ---- the formats ---- */

#define FORMS(X)                \
    X(q4_0, DT_Q4_0, 32)        \
    X(q4_1, DT_Q4_1, 32)        \
    X(q5_0, DT_Q5_0, 32)        \
    X(q5_1, DT_Q5_1, 32)        \
    X(q8_0, DT_Q8_0, 32)        \
    X(iq4_nl, DT_IQ4_NL, 32)    \
    X(mxfp4, DT_MXFP4, 32)      \
    X(q2_k, DT_Q2_K, 256)       \
    X(q3_k, DT_Q3_K, 256)       \
    X(q4_k, DT_Q4_K, 256)       \
    X(q5_k, DT_Q5_K, 256)       \
    X(q6_k, DT_Q6_K, 256)       \
    X(iq4_xs, DT_IQ4_XS, 256)   \
    X(tq1_0, DT_TQ1_0, 256)     \
    X(tq2_0, DT_TQ2_0, 256)     \
    X(iq2_xxs, DT_IQ2_XXS, 256) \
    X(iq2_xs, DT_IQ2_XS, 256)   \
    X(iq2_s, DT_IQ2_S, 256)     \
    X(iq3_xxs, DT_IQ3_XXS, 256) \
    X(iq3_s, DT_IQ3_S, 256)     \
    X(iq1_s, DT_IQ1_S, 256)     \
    X(iq1_m, DT_IQ1_M, 256)

#define DEFINE_RUN(name, t, cols)                                                        \
    static void run_##name(const struct gemm_job *j, const void *xp, int row0, int row1, \
                           struct gemm_scratch *w)                                       \
    {                                                                                    \
        const struct form f = { t, cols, (int)sizeof(struct block_##name) };             \
        run_rows(j, xp, row0, row1, w, f);                                               \
    }
FORMS(DEFINE_RUN)

typedef void run_fn(const struct gemm_job *j, const void *xp, int row0, int row1,
                    struct gemm_scratch *w);
#define LIST_RUN(name, t, cols) [t] = run_##name,
static run_fn *const run_of[DT_COUNT] = { FORMS(LIST_RUN) };

/* Floats have a gemm of their own. */
static bool is_float(enum dtype t) { return gemm_f_neon.can(t); }
static bool rows_can(enum dtype t) { return run_of[t] || is_float(t); }

static int rows_min_tokens(enum dtype t)
{
    (void)t;
    return 5; /* the gemv kernels take 4 tokens at a time */
}

static size_t rows_x_bytes(enum dtype t, int tokens, int cols)
{
    if (is_float(t)) return gemm_f_neon.x_bytes(t, tokens, cols);
    return (size_t)count_groups(tokens) * (size_t)count_blocks(cols) * sizeof(struct xgroup);
}

static size_t rows_scratch_bytes(enum dtype t, int cols)
{
    return is_float(t) ? gemm_f_neon.scratch_bytes(t, cols) : sizeof(struct gemm_scratch);
}

/* token0 is a multiple of 4; the last group of the last tokens is filled up with zeros. */
static void rows_pack(enum dtype w, void *xp, const struct tensor *x, int token0, int token1)
{
    int blocks = count_blocks(x->cols), end = token1 == x->rows ? (token1 + 3) / 4 * 4 : token1;

    if (is_float(w)) {
        gemm_f_neon.pack(w, xp, x, token0, token1);
        return;
    }
    for (int t = token0; t < end; t++)
        for (int b = 0; b < blocks; b++) {
            struct xgroup *to = (struct xgroup *)xp + (size_t)(t / 4) * (size_t)blocks + (size_t)b;
            int n = x->cols - b * 256 < 256 ? x->cols - b * 256 : 256;
            pack_token(to, t % 4, t < token1 ? tensor_row(x, t) + b * 256 : NULL, n);
        }
}

static void rows_run(const struct gemm_job *j, const void *xp, int row0, int row1, void *scratch)
{
    if (is_float(j->type)) gemm_f_neon.rows(j, xp, row0, row1, scratch);
    else run_of[j->type](j, xp, row0, row1, scratch);
}

#define GEMM_ROWS(NAME)                                                                           \
    {                                                                                             \
        .name = NAME, .token_unit = 12, /* groups of 4 here, of 6 for floats */ .row_unit = ROWS, \
        .can = rows_can, .min_tokens = rows_min_tokens, .x_bytes = rows_x_bytes,                  \
        .scratch_bytes = rows_scratch_bytes, .pack = rows_pack, .rows = rows_run                  \
    }
