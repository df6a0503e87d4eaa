/* gemm_rows.h - matrix-matrix product in integers for vectors without tiles (AVX2, AVX-512 VNNI).
 *
 * Weight rows lie in the lanes of a vector: lane i of every vector belongs to row i, and a lane holds
 * 4 columns of 8 bits (or 2 of 16). One token's 4 columns are broadcast to all lanes, so that sums
 * over columns stay inside a lane and nothing is added across lanes.
 *
 *     for ROWS rows (VECS vectors)
 *         for BATCH tokens
 *             for CHUNK columns             unpacked once from the file's format into a panel
 *                 for TOKENS tokens         sums of these stay in registers
 *                     for 32 columns        integer sums, scaled to F32
 *
 * Tokens are rounded to 8 bits with a scale per 32 columns, and keep the sums of 16 and 32 columns
 * for formats with minima: W = d q + m gives W x = d (q x) + m sum(x).
 *
 * A file that includes this header defines, for its instruction set:
 *   LANES, VECS, TOKENS      sizes; TOKENS tokens share a weight vector in registers
 *   FLOATS                   the gemm for F32, F16, BF16 and grouped codes (gemm_f_rows.h)
 *   HAS_DOT4                 1: vpdpbusd exists; 0: vpmaddubsw and vpmaddwd
 *   vi                       the type of an integer vector
 *   the operations below named v_*
 * With HAS_DOT4 signed weights are offset by 128. Where an offset is the same for all weights, the
 * integer sums begin with it times the sum of the token's columns: no minimum is multiplied. With
 * vpmaddubsw 16-bit sums must not overflow: unsigned weights of b bits times 7 bits, two products per
 * step, allow 2^(16 - 8 - b) * 1.03 steps (`adds`: 8 for 4 bits, 4 for 5, 2 for 6); signed weights
 * are widened to 16 bits (`wide`). */
#include "kernel/cpu/gemm_lanes.h"
#include "kernel/cpu/load_32_avx2.h"
#include "kernel/cpu/load_iq_avx2.h"
#include "kernel/cpu/transpose_avx2.h"

enum {
    BATCH = 192,            /* tokens whose sums wait in memory; a multiple of TOKENS */
    CHUNK_BLOCKS = 2,       /* blocks of 256 columns in a panel: it stays in the L1 cache */
    SUBS = 8,               /* sub-blocks of 32 columns in a block */
    STEP_BYTES = LANES * 4, /* one vector of weights */
    LOAD_AHEAD = 512        /* bytes between unpacking a row and prefetching it */
};

/* The properties of a weight format that the loops are compiled for; always a compile-time constant. */
struct form {
    enum dtype type;
    int block, bytes; /* columns and bytes of a block of the file */
    bool half;        /* scales belong to 16 columns, not 32 */
    bool has_min;     /* minima, or an offset */
    bool is_signed;   /* unpacked weights are signed bytes */
    int adds;         /* products of vpmaddubsw that may be summed in 16 bits */
};

/* 256 columns of a token. */
struct xblock {
    _Alignas(64) int8_t q[256];
    float d[8]; /* scales of 32 columns */
    union {
        float s[8];   /* d * sum of q over 32 columns */
        int32_t n[8]; /* formats with an offset: the sum of q times -offset */
    };
    union { /* and over 16 */
        float s16[16];
        int32_t n16[16];
    };
};

struct xwide {
    _Alignas(64) int16_t q[256];
    float d[8];
};

/* LANES rows x 256 columns, unpacked. */
struct panel {
    _Alignas(64) uint8_t q[SUBS * 8 * STEP_BYTES * (HAS_DOT4 ? 1 : 2)];
    float d[2 * SUBS][LANES]; /* scales per 32 (or 16) columns */
    float m[2 * SUBS][LANES]; /* minima */
};

struct gemm_scratch {
    struct panel panel[CHUNK_BLOCKS][VECS];
    _Alignas(64) float sums[BATCH][ROWS];
};

static int count_blocks(int cols) { return (cols + 255) / 256; }

/* Signed formats without vpdpbusd are multiplied in 16 bits. */
INLINE bool is_wide(const struct form f) { return f.is_signed && !HAS_DOT4; }

/* The constant offset of a format's unpacked weights; 0: it has none. */
INLINE int offset_of(const enum dtype t)
{
    switch (t) {
    case DT_Q4_0: return 8;
    case DT_Q5_0: return 16;
    case DT_Q6_K: return 32;
    case DT_Q8_0:
    case DT_IQ4_NL:
    case DT_IQ4_XS:
    case DT_MXFP4: return HAS_DOT4 ? 128 : 0;
    default: return 0;
    }
}

/* ---- tokens ---- */

/* The sum of 16 signed bytes. */
INLINE int32_t sum_bytes(const int8_t *q)
{
    __m128i v = _mm_maddubs_epi16(_mm_set1_epi8(1), _mm_loadu_si128((const __m128i *)q));
    v = _mm_madd_epi16(v, _mm_set1_epi16(1));
    v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32(v, 0xb1)));
}

/* n columns, at most 256; the others are zeros. offset: offset_of the weights. */
static void pack_block(struct xblock *to, const float *x, int n, int offset)
{
    struct x8 part[8];

    if (n < 256) memset(to, 0, sizeof *to);
    x8_make_avx2(part, x, n);
    for (int i = 0; i < (n + 31) / 32; i++) {
        memcpy(to->q + 32 * i, part[i].q, 32);
        to->d[i] = part[i].d;
        if (offset) {
            to->n16[2 * i] = -offset * sum_bytes(part[i].q);
            to->n16[2 * i + 1] = -offset * sum_bytes(part[i].q + 16);
            to->n[i] = to->n16[2 * i] + to->n16[2 * i + 1];
            continue;
        }
        to->s16[2 * i] = part[i].s[0];
        to->s16[2 * i + 1] = part[i].s[1];
        to->s[i] = part[i].s[0] + part[i].s[1];
    }
}

static void pack_wide(struct xwide *to, const float *x, int n)
{
    struct x8 part[8];

    if (n < 256) memset(to, 0, sizeof *to);
    x8_make_avx2(part, x, n);
    for (int i = 0; i < (n + 31) / 32; i++) {
        to->d[i] = part[i].d;
        for (int k = 0; k < 32; k += 16) {
            __m128i v = _mm_loadu_si128((const __m128i *)(part[i].q + k));
            _mm256_storeu_si256((__m256i *)(to->q + 32 * i + k), _mm256_cvtepi8_epi16(v));
        }
    }
}

#include "kernel/cpu/gemm_unpack.h"

/* ---- products ---- */

/* 4 columns of a token (2 of 16 bits), for v_broadcast4. */
INLINE int32_t four_bytes(const void *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The integer sums of `steps` vectors of weights from w on, for T tokens. They begin with n, or with 0
 * where has_n is false. */
INLINE void multiply(vi out[VECS][TOKENS], const uint8_t *const w[VECS],
                     const int8_t *const x[TOKENS], const int32_t *const n[TOKENS],
                     const bool has_n, const int steps, const int T, const int adds)
{
#if HAS_DOT4
    (void)adds;
    UNROLL
    for (int v = 0; v < VECS; v++) UNROLL
    for (int t = 0; t < T; t++) out[v][t] = has_n ? v_broadcast4(n[t]) : v_zero();
    UNROLL
    for (int k = 0; k < steps; k++) {
        vi a[VECS];
        UNROLL
        for (int v = 0; v < VECS; v++) a[v] = v_load(w[v] + k * STEP_BYTES);
        UNROLL
        for (int t = 0; t < T; t++) {
            vi b = v_broadcast4(x[t] + 4 * k);
            UNROLL
            for (int v = 0; v < VECS; v++) out[v][t] = v_dot4(out[v][t], a[v], b);
        }
    }
#else
    vi acc[VECS][TOKENS];
    UNROLL
    for (int k = 0; k < steps; k++) {
        vi a[VECS];
        UNROLL
        for (int v = 0; v < VECS; v++) a[v] = v_load(w[v] + k * STEP_BYTES);
        UNROLL
        for (int t = 0; t < T; t++) {
            vi b = v_broadcast4(x[t] + 4 * k);
            UNROLL
            for (int v = 0; v < VECS; v++) {
                vi p = v_maddubs(a[v], b);
                acc[v][t] = k % adds ? v_add16(acc[v][t], p) : p;
            }
        }
        if (k % adds != adds - 1 && k != steps - 1) continue;
        UNROLL
        for (int v = 0; v < VECS; v++) UNROLL
        for (int t = 0; t < T; t++) {
            vi s = v_madd(acc[v][t], v_ones16());
            if (k >= adds) out[v][t] = v_add32(out[v][t], s);
            else out[v][t] = has_n ? v_add32(s, v_broadcast4(n[t])) : s;
        }
    }
#endif
}

/* sums += weights x tokens of 256 columns (n sub-blocks) and T tokens. */
INLINE void run_block(float (*sums)[ROWS], const struct panel p[VECS], const struct xblock *x,
                      size_t stride, int n, const int T, const struct form f)
{
    const int parts = f.half ? 2 : 1, steps = f.half ? 4 : 8;
    const bool has_n = offset_of(f.type) != 0, has_min = f.has_min && !has_n;
    vf acc[VECS][TOKENS];

    UNROLL
    for (int v = 0; v < VECS; v++) UNROLL
    for (int t = 0; t < T; t++) acc[v][t] = v_zerof();
    for (int s = 0; s < n * parts; s++) {
        const uint8_t *w[VECS];
        const int8_t *q[TOKENS];
        const int32_t *sums_n[TOKENS];
        vi part[VECS][TOKENS];
        UNROLL
        for (int v = 0; v < VECS; v++) w[v] = p[v].q + s * steps * STEP_BYTES;
        UNROLL
        for (int t = 0; t < T; t++) {
            const struct xblock *at = &x[(size_t)t * stride];
            q[t] = at->q + s * steps * 4;
            sums_n[t] = f.half ? &at->n16[s] : &at->n[s];
        }
        multiply(part, w, q, sums_n, has_n, steps, T, f.adds);
        UNROLL
        for (int v = 0; v < VECS; v++) {
            vf d = v_loadf(p[v].d[s]), m = v_zerof();
            if (has_min) m = v_loadf(p[v].m[s]);
            UNROLL
            for (int t = 0; t < T; t++) {
                const struct xblock *at = &x[(size_t)t * stride];
                vf dx = v_mul(d, v_setf(at->d[f.half ? s / 2 : s]));
                acc[v][t] = v_fma(v_float(part[v][t]), dx, acc[v][t]);
                if (has_min)
                    acc[v][t] = v_fma(m, v_setf(f.half ? at->s16[s] : at->s[s]), acc[v][t]);
            }
        }
    }
    UNROLL
    for (int t = 0; t < T; t++) UNROLL
    for (int v = 0; v < VECS; v++) {
        float *to = sums[t] + v * LANES;
        v_storef(to, v_add(acc[v][t], v_loadf(to)));
    }
}

#if !HAS_DOT4
/* sums += weights x tokens of 256 columns and T tokens, for signed weights widened to 16 bits. */
INLINE void run_block_wide(float (*sums)[ROWS], const struct panel p[VECS], const struct xwide *x,
                           size_t stride, int n, const int T)
{
    vf acc[VECS][TOKENS];

    UNROLL
    for (int v = 0; v < VECS; v++) UNROLL
    for (int t = 0; t < T; t++) acc[v][t] = v_zerof();
    for (int s = 0; s < n; s++) {
        vi part[VECS][TOKENS];
        UNROLL
        for (int k = 0; k < 16; k++) {
            vi a[VECS];
            UNROLL
            for (int v = 0; v < VECS; v++) a[v] = v_load(p[v].q + (16 * s + k) * STEP_BYTES);
            UNROLL
            for (int t = 0; t < T; t++) {
                vi b = v_broadcast4(x[(size_t)t * stride].q + 32 * s + 2 * k);
                UNROLL
                for (int v = 0; v < VECS; v++) {
                    vi y = v_madd(a[v], b);
                    part[v][t] = k ? v_add32(part[v][t], y) : y;
                }
            }
        }
        UNROLL
        for (int v = 0; v < VECS; v++) {
            vf d = v_loadf(p[v].d[s]);
            UNROLL
            for (int t = 0; t < T; t++)
                acc[v][t] = v_fma(v_float(part[v][t]), v_mul(d, v_setf(x[(size_t)t * stride].d[s])),
                                  acc[v][t]);
        }
    }
    UNROLL
    for (int t = 0; t < T; t++) UNROLL
    for (int v = 0; v < VECS; v++) {
        float *to = sums[t] + v * LANES;
        v_storef(to, v_add(acc[v][t], v_loadf(to)));
    }
}
#endif

/* T tokens from `token` on, times the panels of columns [256 b0, 256 b1). */
INLINE void run_tokens(struct gemm_scratch *w, const void *xp, int blocks, int token, int at,
                       int b0, int b1, int cols, const int T, const struct form f)
{
    for (int b = b0; b < b1; b++) {
        int left = (cols - b * 256 + 31) / 32, n = left < SUBS ? left : SUBS;
        size_t first = (size_t)token * (size_t)blocks + (size_t)b;
#if !HAS_DOT4
        if (is_wide(f)) {
            run_block_wide(w->sums + at, w->panel[b - b0], (const struct xwide *)xp + first,
                           (size_t)blocks, n, T);
            continue;
        }
#endif
        run_block(w->sums + at, w->panel[b - b0], (const struct xblock *)xp + first, (size_t)blocks,
                  n, T, f);
    }
}

static void write_sums(const struct gemm_job *j, const struct gemm_scratch *w, int row, int n_rows,
                       int token, int n)
{
    for (int t = 0; t < n; t++)
        write_token(j, w->sums[t], tensor_row(j->out, token + t) + row, row, n_rows);
}

/* Unpacks blocks [b0, b1) of rows [row, row + n_rows). */
INLINE void unpack_chunk(struct gemm_scratch *w, const struct gemm_job *j, int row, int n_rows,
                         int b0, int b1, const struct form f)
{
    size_t stride = (size_t)(j->cols / f.block) * (size_t)f.bytes;

    for (int b = b0; b < b1; b++) {
        int left = (j->cols - b * 256) / 32, n = left < SUBS ? left : SUBS;
        const char *src = (const char *)j->data + (size_t)row * stride +
                          (size_t)b * (size_t)f.bytes * (size_t)(256 / f.block);
        for (int r = 0; r < ROWS; r += 8) {
            int have = n_rows - r < 0 ? 0 : n_rows - r > 8 ? 8 : n_rows - r;
            unpack_rows(&w->panel[b - b0][r / LANES], r % LANES, src + (size_t)r * stride, stride,
                        have, n, f);
        }
    }
}

/* Rows [row0, row1) of a job; f is a compile-time constant. */
INLINE void run_rows(const struct gemm_job *j, const void *xp, int row0, int row1,
                     struct gemm_scratch *w, const struct form f)
{
    int blocks = count_blocks(j->cols);

    for (int row = row0; row < row1; row += ROWS) {
        int n_rows = row1 - row < ROWS ? row1 - row : ROWS;
        for (int t0 = 0; t0 < j->tokens; t0 += BATCH) {
            int n = j->tokens - t0 < BATCH ? j->tokens - t0 : BATCH;
            memset(w->sums, 0, (size_t)n * sizeof *w->sums);
            for (int b0 = 0; b0 < blocks; b0 += CHUNK_BLOCKS) {
                int b1 = b0 + CHUNK_BLOCKS < blocks ? b0 + CHUNK_BLOCKS : blocks, t = 0;
                unpack_chunk(w, j, row, n_rows, b0, b1, f);
                for (; t + TOKENS <= n; t += TOKENS)
                    run_tokens(w, xp, blocks, t0 + t, t, b0, b1, j->cols, TOKENS, f);
                for (; TOKENS > 4 && t + 4 <= n; t += 4)
                    run_tokens(w, xp, blocks, t0 + t, t, b0, b1, j->cols, TOKENS > 4 ? 4 : 1, f);
                for (; t + 2 <= n; t += 2)
                    run_tokens(w, xp, blocks, t0 + t, t, b0, b1, j->cols, 2, f);
                if (t < n) run_tokens(w, xp, blocks, t0 + t, t, b0, b1, j->cols, 1, f);
            }
            write_sums(j, w, row, n_rows, t0, n);
        }
    }
}

/* ---- the formats ---- */

#define FORMS(X)                                           \
    X(q4_0, DT_Q4_0, 32, 18, false, true, false, 8)        \
    X(q4_1, DT_Q4_1, 32, 20, false, true, false, 8)        \
    X(q5_0, DT_Q5_0, 32, 22, false, true, false, 4)        \
    X(q5_1, DT_Q5_1, 32, 24, false, true, false, 4)        \
    X(q8_0, DT_Q8_0, 32, 34, false, false, true, 1)        \
    X(iq4_nl, DT_IQ4_NL, 32, 18, false, false, true, 1)    \
    X(mxfp4, DT_MXFP4, 32, 17, false, false, true, 1)      \
    X(q2_k, DT_Q2_K, 256, 84, true, true, false, 4)        \
    X(q3_k, DT_Q3_K, 256, 110, true, true, false, 4)       \
    X(q4_k, DT_Q4_K, 256, 144, false, true, false, 8)      \
    X(q5_k, DT_Q5_K, 256, 176, false, true, false, 4)      \
    X(q6_k, DT_Q6_K, 256, 210, true, true, false, 2)       \
    X(iq4_xs, DT_IQ4_XS, 256, 136, false, false, true, 1)  \
    X(iq2_xxs, DT_IQ2_XXS, 256, 66, false, true, false, 1) \
    X(iq2_xs, DT_IQ2_XS, 256, 74, true, true, false, 1)    \
    X(iq2_s, DT_IQ2_S, 256, 82, true, true, false, 1)      \
    X(iq3_xxs, DT_IQ3_XXS, 256, 98, false, true, false, 1) \
    X(iq3_s, DT_IQ3_S, 256, 110, false, true, false, 1)    \
    X(iq1_s, DT_IQ1_S, 256, 50, false, true, false, 4)     \
    X(iq1_m, DT_IQ1_M, 256, 56, true, true, false, 4)      \
    X(tq1_0, DT_TQ1_0, 256, 54, false, true, false, 8)     \
    X(tq2_0, DT_TQ2_0, 256, 66, false, true, false, 8)

#define DEFINE_RUN(name, t, cols, n, h, min, sign, a)                                    \
    static void run_##name(const struct gemm_job *j, const void *xp, int row0, int row1, \
                           struct gemm_scratch *w)                                       \
    {                                                                                    \
        const struct form f = { t, cols, n, h, min, sign, a };                           \
        run_rows(j, xp, row0, row1, w, f);                                               \
    }
FORMS(DEFINE_RUN)

typedef void run_fn(const struct gemm_job *j, const void *xp, int row0, int row1,
                    struct gemm_scratch *w);
#define LIST_RUN(name, t, cols, n, h, min, sign, a) [t] = run_##name,
static run_fn *const run_of[DT_COUNT] = { FORMS(LIST_RUN) };
#define LIST_SIGN(name, t, cols, n, h, min, sign, a) [t] = sign,
static const bool signed_of[DT_COUNT] = { FORMS(LIST_SIGN) };

/* Floats have a gemm of their own. */
static bool is_float(enum dtype t) { return FLOATS.can(t); }

static bool rows_can(enum dtype t) { return run_of[t] || is_float(t); }
static bool packs_wide(enum dtype t) { return signed_of[t] && !HAS_DOT4; }

static size_t rows_x_bytes(enum dtype t, int tokens, int cols)
{
    size_t n = (size_t)tokens * (size_t)count_blocks(cols);
    if (is_float(t)) return FLOATS.x_bytes(t, tokens, cols);
    return n * (packs_wide(t) ? sizeof(struct xwide) : sizeof(struct xblock));
}

static size_t rows_scratch_bytes(enum dtype t, int cols)
{
    return is_float(t) ? FLOATS.scratch_bytes(t, cols) : sizeof(struct gemm_scratch);
}

static void rows_pack(enum dtype w, void *xp, const struct tensor *x, int token0, int token1)
{
    int blocks = count_blocks(x->cols);

    if (is_float(w)) {
        FLOATS.pack(w, xp, x, token0, token1);
        return;
    }
    for (int t = token0; t < token1; t++)
        for (int b = 0; b < blocks; b++) {
            const float *from = tensor_row(x, t) + b * 256;
            int n = x->cols - b * 256 < 256 ? x->cols - b * 256 : 256;
            size_t at = (size_t)t * (size_t)blocks + (size_t)b;
            if (packs_wide(w)) pack_wide((struct xwide *)xp + at, from, n);
            else pack_block((struct xblock *)xp + at, from, n, offset_of(w));
        }
}

static void rows_run(const struct gemm_job *j, const void *xp, int row0, int row1, void *scratch)
{
    if (is_float(j->type)) FLOATS.rows(j, xp, row0, row1, scratch);
    else run_of[j->type](j, xp, row0, row1, scratch);
}
