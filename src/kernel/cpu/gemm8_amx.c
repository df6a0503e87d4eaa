/* gemm8_amx.c - matrix-matrix product on AMX tiles of int8, for 9 to 32 tokens.
 *
 * Weights stay the integers of their block format; tokens are rounded to 8 bits with a scale per
 * 256 columns. A tile product covers the columns that share a weight scale (a sub-block): 16 rows x
 * 32 (or 16) columns x 16 tokens. Its integer sums go through memory and are scaled and accumulated
 * as F32 by AVX-512, with tokens in the lanes. A step thus costs the same for 1 token as for 16,
 * and the cost is hidden behind reading weights.
 *
 *     for 16 rows
 *         for 256 columns                 unpacked two blocks ahead: tile loads wait for stores
 *             for 16 tokens
 *                 for 4 sub-blocks        products of these while the previous 4 are scaled
 *
 * F32 accumulation: sub-blocks in groups of 4, groups of 256 columns in ascending order. */
#include "kernel/cpu/tiles_amx.h"
#include "kernel/cpu/unpack8_amx.h"

enum { TOKENS = 16, MOST = 32, MOST_TILES = MOST / TOKENS, QUAD = 4, PANELS = 3 };
/* TOKENS of a tile, MOST tokens of a call, QUAD sub-blocks in flight, PANELS of unpacked weights. */

/* 256 columns of 16 tokens, quantized. */
struct x8 {
    _Alignas(64) int8_t q[256 * TOKENS]; /* a tile's right operand: [64][token][4 columns] */
    float s[8][TOKENS];                  /* sums of q over 32 columns each, for minima */
    float d[TOKENS];                     /* scale */
};

static int n_blocks(int cols) { return (cols + 255) / 256; }

static size_t amx8_x_bytes(enum dtype w, int tokens, int cols)
{
    (void)w;
    return (size_t)((tokens + TOKENS - 1) / TOKENS) * (size_t)n_blocks(cols) * sizeof(struct x8);
}

/* ---- tokens ---- */

/* The factor 127 / max|p| of up to 256 columns; *d: its inverse. */
static float find_range(const float *p, int n, float *d)
{
    __m512 top = _mm512_setzero_ps();
    int i = 0;

    for (; i + 16 <= n; i += 16) top = _mm512_max_ps(top, _mm512_abs_ps(_mm512_loadu_ps(p + i)));
    if (i < n)
        top = _mm512_max_ps(
            top, _mm512_abs_ps(_mm512_maskz_loadu_ps((__mmask16)((1u << (n - i)) - 1), p + i)));
    float t = _mm512_reduce_max_ps(top);
    *d = t / 127;
    return t > 0 ? 127 / t : 0;
}

/* 64 columns of a token, rounded to bytes; columns from n on are 0. */
INLINE __m512i round_64(const float *p, int n, float scale)
{
    __m512 up = _mm512_set1_ps(scale);
    __m128i b[4];

    UNROLL
    for (int i = 0; i < 4; i++) {
        int left = n - 16 * i;
        __mmask16 live = (__mmask16)(left >= 16 ? 0xffff : left > 0 ? (1u << left) - 1 : 0);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(live, p + 16 * i), up);
        b[i] = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v));
    }
    __m256i lo = _mm256_setr_m128i(b[0], b[1]), hi = _mm256_setr_m128i(b[2], b[3]);
    return _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1);
}

/* 64 columns of 16 tokens to to->q, and the sums of 32 columns to to->s. */
static void pack_64(const struct tensor *x, int token, int col, const float up[TOKENS],
                    struct x8 *to, int at)
{
    __m512i v[16];

    for (int i = 0; i < TOKENS; i++) {
        v[i] = _mm512_setzero_si512();
        if (token + i < x->rows)
            v[i] = round_64(tensor_row(x, token + i) + col, x->cols - col, up[i]);
    }
    transpose16(v);
    for (int i = 0; i < 2; i++) {
        __m512i sum = _mm512_setzero_si512();
        for (int k = 8 * i; k < 8 * i + 8; k++) {
            _mm512_store_si512(to->q + 64 * (16 * at + k), v[k]);
            sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), v[k]);
        }
        _mm512_store_ps(to->s[2 * at + i], _mm512_cvtepi32_ps(sum));
    }
}

/* 256 columns of 16 tokens; missing tokens are zeros. */
static void pack_256(const struct tensor *x, int token, int col, struct x8 *to)
{
    float up[TOKENS] = { 0 };
    int n = x->cols - col < 256 ? x->cols - col : 256;

    memset(to->d, 0, sizeof to->d);
    for (int i = 0; i < TOKENS && token + i < x->rows; i++)
        up[i] = find_range(tensor_row(x, token + i) + col, n, &to->d[i]);
    for (int c = 0; c < 256; c += 64) pack_64(x, token, col + c, up, to, c / 64);
}

static void amx8_pack(enum dtype w, void *xp, const struct tensor *x, int token0, int token1)
{
    int blocks = n_blocks(x->cols);

    (void)w;
    for (int t = token0 / TOKENS; t * TOKENS < token1; t++)
        for (int b = 0; b < blocks; b++)
            pack_256(x, t * TOKENS, b * 256, (struct x8 *)xp + (size_t)t * (size_t)blocks + b);
}

/* ---- one thread's work ---- */

struct quad {                   /* integer sums of four sub-blocks that are not scaled yet */
    const struct panel8 *panel; /* NULL: there are none */
    const struct x8 *x;
    float *acc;             /* [16 rows][16 tokens] */
    int sub;                /* the first of the four sub-blocks */
    int row, n_rows, token; /* token >= 0: the last sub-blocks; then acc goes to the output */
};

struct work {
    struct panel8 panel[PANELS];
    /* Two sets of sums; QUAD + 2, because addresses 4 KiB apart would make loads wait for stores. */
    _Alignas(64) int32_t sums[2][QUAD + 2][256];
    _Alignas(64) float acc[2][MOST_TILES][256];
    struct quad wait;
    int set;           /* which set of sums is being written */
    const char *ahead; /* weights of the next 16 rows, to prefetch */
    int lines;         /* cache lines to prefetch with each product */
};

static size_t amx8_scratch_bytes(enum dtype w, int cols)
{
    (void)w;
    (void)cols;
    return sizeof(struct work) + 64;
}

/* Compilers do not know that tile loads and stores access memory. */
INLINE void compiler_barrier(void) { __asm__ volatile("" ::: "memory"); }

/* Integer sums of sub-block i of the quad. Each uses another tile, so that they are independent. */
INLINE void multiply_sub(const struct kind8 k, const int i, const struct panel8 *p,
                         const struct x8 *x, int sub, int32_t *sums)
{
    const int8_t *a = &p->q[0][sub_offset(k.type, sub)], *b = x->q + sub * (256 / k.subs) * TOKENS;

#define PRODUCT(c, l, r)              \
    do {                              \
        _tile_zero(c);                \
        _tile_loadd(r, b, 64);        \
        _tile_loadd(l, a, P8_STRIDE); \
        _tile_dpbssd(c, l, r);        \
        _tile_stored(c, sums, 64);    \
    } while (0)
    if (i == 0) PRODUCT(0, 4, 6);
    if (i == 1) PRODUCT(1, 5, 7);
    if (i == 2) PRODUCT(2, 4, 6);
    if (i == 3) PRODUCT(3, 5, 7);
#undef PRODUCT
}

/* acc += sums * scale (+ token sums * minimum) of one sub-block. */
INLINE void scale_sub(const struct kind8 k, __m512 acc[16], const struct quad *q,
                      const int32_t *sums, int sub)
{
    const float *s = &q->panel->s[0][sub];
    __m512 xs = _mm512_load_ps(q->x->s[sub * 8 / k.subs]);

    UNROLL
    for (int r = 0; r < 16; r++) {
        __m512 v = _mm512_cvtepi32_ps(_mm512_load_si512(sums + 16 * r));
        acc[r] = _mm512_fmadd_ps(v, _mm512_set1_ps(s[16 * r]), acc[r]);
        if (k.minima) acc[r] = _mm512_fmadd_ps(xs, _mm512_set1_ps(s[16 * r + 8]), acc[r]);
    }
}

/* Multiplies four sub-blocks, and meanwhile scales the previous four. */
INLINE void run_quad(const struct kind8 k, struct work *w, const struct gemm_job *j,
                     struct quad next)
{
    struct quad q = w->wait;
    __m512 acc[16];

    w->wait = next;
    compiler_barrier();
    UNROLL
    for (int r = 0; r < 16; r++) acc[r] = _mm512_setzero_ps();
    UNROLL
    for (int i = 0; i < QUAD; i++) {
        if (next.panel) multiply_sub(k, i, next.panel, next.x, next.sub + i, w->sums[w->set][i]);
        for (int l = 0; l < w->lines; l++, w->ahead += 64) _mm_prefetch(w->ahead, _MM_HINT_T1);
        if (q.panel) scale_sub(k, acc, &q, w->sums[w->set ^ 1][i], q.sub + i);
    }
    compiler_barrier();
    w->set ^= 1;
    if (!q.panel) return;
    UNROLL
    for (int r = 0; r < 16; r++) {
        __m512 v = _mm512_fmadd_ps(acc[r], _mm512_load_ps(q.x->d), _mm512_load_ps(q.acc + 16 * r));
        _mm512_store_ps(q.acc + 16 * r, v);
    }
    if (q.token >= 0) store_sums_tile(j, q.acc, q.row, q.n_rows, q.token, j->tokens - q.token);
}

/* A block of 16 rows x 256 columns. Blocks are numbered by rows, then columns. */
struct at {
    int row, n_rows, block;
};

static struct at locate_block(int u, int blocks, int row0, int row1)
{
    int row = row0 + u / blocks * P8_ROWS;
    return (struct at){ row, row1 - row < P8_ROWS ? row1 - row : P8_ROWS, u % blocks };
}

/* Unpacks 16 rows x 256 columns, and prefetches the columns after them. */
INLINE void unpack_block(const struct kind8 k, const struct gemm_job *j, struct at at,
                         struct panel8 *p)
{
    const int bytes = k.block == 256 ? k.block_bytes : 8 * k.block_bytes;
    size_t row_bytes = (size_t)(j->cols / k.block) * (size_t)k.block_bytes;
    const char *src =
        (const char *)j->data + (size_t)at.row * row_bytes + (size_t)at.block * (size_t)bytes;
    int left = (j->cols - at.block * 256) / 32, n = left < 8 ? left : 8;

    for (int r = 0; r < at.n_rows; r++, src += row_bytes) {
        UNROLL
        for (int i = 0; i < bytes; i += 64) _mm_prefetch(src + bytes + i, _MM_HINT_T0);
        p8_row(k.type, k.block_bytes, src, n, p->q[r], p->s[r]);
    }
    for (int r = at.n_rows; r < P8_ROWS; r++) memset(p->s[r], 0, sizeof p->s[r]);
}

/* Rows [row0, row1) of a job; k is a compile-time constant. */
INLINE void run_rows(const struct kind8 k, const struct gemm_job *j, const struct x8 *x, int row0,
                     int row1, struct work *w)
{
    int blocks = n_blocks(j->cols), tiles = (j->tokens + TOKENS - 1) / TOKENS;
    int n = (row1 - row0 + P8_ROWS - 1) / P8_ROWS * blocks;

    size_t group = (size_t)(j->cols / k.block) * (size_t)k.block_bytes * P8_ROWS;
    w->wait.panel = NULL;
    w->set = 0;
    w->lines = (int)(group / 64) / (blocks * k.subs * tiles) + 1;
    for (int u = 0; u < 2 && u < n; u++)
        unpack_block(k, j, locate_block(u, blocks, row0, row1), &w->panel[u]);
    for (int u = 0; u < n; u++) {
        struct at at = locate_block(u, blocks, row0, row1);
        float(*acc)[256] = w->acc[u / blocks % 2];
        int left = (j->cols - at.block * 256) / 32, subs = (left < 8 ? left : 8) * k.subs / 8;
        if (at.block == 0) {
            memset(acc, 0, (size_t)tiles * sizeof *acc);
            w->ahead = (const char *)j->data + (size_t)(at.row + P8_ROWS) / P8_ROWS * group;
        }
        for (int t = 0; t < tiles; t++)
            for (int s = 0; s < subs; s += QUAD)
                run_quad(k, w, j,
                         (struct quad){ .panel = &w->panel[u % PANELS],
                                        .x = x + t * blocks + at.block,
                                        .acc = acc[t],
                                        .sub = s,
                                        .row = at.row,
                                        .n_rows = at.n_rows,
                                        .token = at.block + 1 == blocks && s + QUAD >= subs
                                                     ? t * TOKENS
                                                     : -1 });
        if (u + 2 < n)
            unpack_block(k, j, locate_block(u + 2, blocks, row0, row1),
                         &w->panel[(u + 2) % PANELS]);
    }
    run_quad(k, w, j, (struct quad){ .panel = NULL });
}

/* ---- the formats ---- */

typedef void run_fn(const struct gemm_job *j, const struct x8 *x, int row0, int row1,
                    struct work *w);

#define KIND(name, t, bytes, cols, n, min)                                                   \
    static void run_##name(const struct gemm_job *j, const struct x8 *x, int row0, int row1, \
                           struct work *w)                                                   \
    {                                                                                        \
        const struct kind8 k = {                                                             \
            .type = t, .block_bytes = bytes, .block = cols, .subs = n, .minima = min         \
        };                                                                                   \
        run_rows(k, j, x, row0, row1, w);                                                    \
    }
KIND(q4_0, DT_Q4_0, 18, 32, 8, false)
KIND(q4_1, DT_Q4_1, 20, 32, 8, true)
KIND(q5_0, DT_Q5_0, 22, 32, 8, false)
KIND(q5_1, DT_Q5_1, 24, 32, 8, true)
KIND(iq4_nl, DT_IQ4_NL, 18, 32, 8, false)
KIND(mxfp4, DT_MXFP4, 17, 32, 8, false)
KIND(q4_k, DT_Q4_K, 144, 256, 8, true)
KIND(q5_k, DT_Q5_K, 176, 256, 8, true)
KIND(iq4_xs, DT_IQ4_XS, 136, 256, 8, false)
KIND(q6_k, DT_Q6_K, 210, 256, 16, false)
KIND(q3_k, DT_Q3_K, 110, 256, 16, false)

/* Not Q8_0: its weights are more precise than tokens with one scale per 256 columns, so bf16 gives
 * better results. */
static run_fn *find_kernel(enum dtype t)
{
    switch (t) {
    case DT_Q4_0: return run_q4_0;
    case DT_Q4_1: return run_q4_1;
    case DT_Q5_0: return run_q5_0;
    case DT_Q5_1: return run_q5_1;
    case DT_IQ4_NL: return run_iq4_nl;
    case DT_MXFP4: return run_mxfp4;
    case DT_Q4_K: return run_q4_k;
    case DT_Q5_K: return run_q5_k;
    case DT_IQ4_XS: return run_iq4_xs;
    case DT_Q6_K: return run_q6_k;
    case DT_Q3_K: return run_q3_k;
    default: return NULL;
    }
}

static bool amx8_can(enum dtype t) { return find_kernel(t) != NULL; }

static void amx8_rows(const struct gemm_job *job, const void *xp, int row0, int row1, void *scratch)
{
    bool sixteen = job->type == DT_Q6_K || job->type == DT_Q3_K;

    tiles_enter(sixteen ? TILES_16 : TILES_32);
    find_kernel(job->type)(job, xp, row0, row1,
                           (void *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63));
}

/* Measured with bench/kernels -x. */
static int amx8_min_tokens(enum dtype t)
{
    (void)t;
    return 9;
}

static int amx8_max_tokens(enum dtype t)
{
    return t == DT_Q4_K || t == DT_Q6_K || t == DT_Q3_K ? TOKENS : MOST;
}

const struct gemm *gemm8_amx(void)
{
    static const struct gemm amx8 = {
        .name = "amx8",
        .token_unit = TOKENS,
        .row_unit = P8_ROWS,
        .can = amx8_can,
        .min_tokens = amx8_min_tokens,
        .max_tokens = amx8_max_tokens,
        .x_bytes = amx8_x_bytes,
        .scratch_bytes = amx8_scratch_bytes,
        .pack = amx8_pack,
        .rows = amx8_rows,
    };
    return tiles_here() ? &amx8 : NULL;
}
