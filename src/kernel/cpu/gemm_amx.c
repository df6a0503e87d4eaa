#include "kernel/cpu/gemm.h"

#include "kernel/cpu/unpack.h"
#include "kernel/quant.h"

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Weights are the left operand, 16 rows × 32 columns of bf16 a tile, in panels of 32 rows that are
 * unpacked into the first-level cache; tokens are the right one, packed once for all rows as tiles
 * of 16 tokens. Sums stay in F32 tiles. Columns go in blocks (a panel of one block fits the cache):
 *
 *     for 512 tokens                         what a thread's sums have room for
 *         for 128 rows                       so that sums and the block of tokens stay in level 2
 *             for each block of columns
 *                 for 32 rows                unpack them
 *                     for 32 tokens          2 × 2 tiles over the columns of the block
 *
 * Types that bf16 does not hold take more than one product: BF16 weights are exact and meet the
 * tokens in two parts, x = hi + lo; F16 and F32 have two parts themselves. */

#ifndef PR
#define PR 128
#define PK 512
#endif
#ifndef SEG
#define SEG 4
#endif
#ifndef NTC
#define NTC 1
#endif
enum { TOKENS = 512, ROWS = PR, TILE = 1024 };
enum { T_ROWS = 16, T_COLS = 32 };               /* of a tile of weights */

struct plan {
    int x_parts, w_parts, n_products;
    int block;                                   /* columns at most in a block */
};

static struct plan plan_of(enum dtype t)
{
    if (t == DT_BF16) return (struct plan){ 2, 1, 2, 512 };
    if (t == DT_F16 || t == DT_F32) return (struct plan){ 2, 2, 3, 256 };
    return (struct plan){ 1, 1, 1, PK };
}

/* Columns [begin, end) of block b, counted in steps of 32. */
struct span {
    int begin, end;
};

static int n_blocks(int cols, int block) { return (cols + block - 1) / block; }

static struct span span_of(int cols, int block, int b)
{
    int steps = (cols + T_COLS - 1) / T_COLS, per = block / T_COLS;
    return (struct span){ b * per, b * per + per < steps ? b * per + per : steps };
}

/* ---- the tokens' layout: [block][tile of 16 tokens][part][step][1 KiB] ---- */

static size_t x_at(struct span s, int n_tiles, int tile, int x_parts, int part)
{
    size_t steps = (size_t)(s.end - s.begin);
    size_t before = (size_t)s.begin * (size_t)n_tiles * (size_t)x_parts;
    return (before + ((size_t)tile * (size_t)x_parts + (size_t)part) * steps) * TILE;
}

static size_t amx_x_bytes(enum dtype w, int tokens, int cols)
{
    size_t steps = (size_t)(cols + T_COLS - 1) / T_COLS, tiles = (size_t)(tokens + T_ROWS - 1) / T_ROWS;
    return steps * tiles * (size_t)plan_of(w).x_parts * TILE;
}

/* A line more than the columns, or the rows of a tile would fall into few sets of the cache. */
static size_t panel_stride(struct plan p) { return (size_t)p.block * 2 + 64; }
static size_t panel_bytes(struct plan p) { return panel_stride(p) * UNPACK_ROWS; }

static size_t amx_scratch_bytes(enum dtype w, int cols)
{
    struct plan p = plan_of(w);
    (void)cols;
    return (size_t)ROWS * TOKENS * sizeof(float) + 2 * (size_t)p.w_parts * panel_bytes(p) + 64;
}

static inline void transpose16(__m512i r[16])
{
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    }
}

static inline __m512 widen_bf16(__m256i v)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

/* 32 columns of 16 tokens, as pairs of columns side by side for every token: [16 pairs][16 tokens][2]. */
static void pack_tile(const struct tensor *x, int token, int col, char *hi, char *lo)
{
    __m512i h[16], l[16];
    int left = x->cols - col;
    __mmask32 live = left >= T_COLS ? ~0u : (1u << left) - 1;
    for (int i = 0; i < 16; i++) {
        __m512 a = _mm512_setzero_ps(), b = a;
        if (token + i < x->rows) {
            const float *p = tensor_row(x, token + i) + col;
            a = _mm512_maskz_loadu_ps((__mmask16)live, p);
            b = _mm512_maskz_loadu_ps((__mmask16)(live >> 16), p + 16);
        }
        h[i] = (__m512i)_mm512_cvtne2ps_pbh(b, a);
        if (!lo) continue;
        a = _mm512_sub_ps(a, widen_bf16(_mm512_castsi512_si256(h[i])));
        b = _mm512_sub_ps(b, widen_bf16(_mm512_extracti64x4_epi64(h[i], 1)));
        l[i] = (__m512i)_mm512_cvtne2ps_pbh(b, a);
    }
    transpose16(h);
    for (int i = 0; i < 16; i++) _mm512_store_si512(hi + 64 * i, h[i]);
    if (!lo) return;
    transpose16(l);
    for (int i = 0; i < 16; i++) _mm512_store_si512(lo + 64 * i, l[i]);
}

static void amx_pack(enum dtype w, void *xp, const struct tensor *x, int token0, int token1)
{
    struct plan p = plan_of(w);
    int n_tiles = (x->rows + T_ROWS - 1) / T_ROWS;
    for (int b = 0; b < n_blocks(x->cols, p.block); b++) {
        struct span s = span_of(x->cols, p.block, b);
        for (int t = token0 / T_ROWS; t * T_ROWS < token1; t++) {
            char *hi = (char *)xp + x_at(s, n_tiles, t, p.x_parts, 0);
            char *lo = p.x_parts == 2 ? (char *)xp + x_at(s, n_tiles, t, p.x_parts, 1) : NULL;
            for (int k = s.begin; k < s.end; k++, hi += TILE)
                pack_tile(x, t * T_ROWS, k * T_COLS, hi, lo ? lo + (size_t)(k - s.begin) * TILE : NULL);
        }
    }
}

/* ---- tiles: 0..3 the sums, 4, 5 weights, 6, 7 tokens ---- */

static void sums_load(const float *c, bool first, bool two)
{
    if (first) {
        _tile_zero(0);
        _tile_zero(2);
        _tile_zero(1);
        _tile_zero(3);
        return;
    }
    _tile_loadd(0, c, 64);
    _tile_loadd(2, c + 512, 64);
    if (!two) return;
    _tile_loadd(1, c + 256, 64);
    _tile_loadd(3, c + 768, 64);
}

static void sums_store(float *c, bool two)
{
    _tile_stored(0, c, 64);
    _tile_stored(2, c + 512, 64);
    if (!two) return;
    _tile_stored(1, c + 256, 64);
    _tile_stored(3, c + 768, 64);
}

#ifndef BPF
#define BPF 0
#endif
#ifndef BST
#define BST 1
#endif
#if BST
#define BLOAD _tile_stream_loadd
#else
#define BLOAD _tile_loadd
#endif
static void product_2x2(const char *w, size_t stride, const char *x0, const char *x1, int steps)
{
    const char *w1 = w + T_ROWS * stride;
    for (int s = 0; s < steps; s++, w += 64, w1 += 64, x0 += TILE, x1 += TILE) {
        BLOAD(6, x0, 64);
        _tile_loadd(4, w, stride);
        _tile_dpbf16ps(0, 4, 6);
        if (BPF) for (int i = 0; i < 16; i++) _mm_prefetch(x0 + BPF * TILE + 64 * i, _MM_HINT_T0);
        BLOAD(7, x1, 64);
        _tile_dpbf16ps(1, 4, 7);
        if (BPF) for (int i = 0; i < 16; i++) _mm_prefetch(x1 + BPF * TILE + 64 * i, _MM_HINT_T0);
        _tile_loadd(5, w1, stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

static void product_2x1(const char *w, size_t stride, const char *x, int steps)
{
    const char *w1 = w + T_ROWS * stride;
    for (int s = 0; s < steps; s++, w += 64, w1 += 64, x += TILE) {
        _tile_loadd(6, x, 64);
        _tile_loadd(4, w, stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, w1, stride);
        _tile_dpbf16ps(2, 5, 6);
    }
}

/* ---- one thread's work ---- */

/* A panel's place: rows from `row` of the rows from `chunk` on, columns of block b. */
struct spot {
    int chunk, row, b;
};

struct work {
    const struct gemm_job *job;
    struct plan plan;
    int n_blocks, chunk_rows, row_end;
    size_t row_bytes;

    const char *xp;
    int n_tiles;                     /* of all the tokens */
    int tile0, tile1;                /* of the tokens at hand */
    float *sums;                     /* [panel of the chunk][pair of token tiles][2][2][16][16] */

    /* What goes on between the tile products, which leave the vector units idle: */
    unpack_fn *unpack;               /* the next panel, rows [fed, feed_rows) of it still to do */
    struct unpack feed;
    char *feed_panel;
    int fed, feed_rows;
    int credit, credit_row;          /* products done since the last row; products for a row */
    const float *done;               /* sums that are complete, tiles [done_tile, 4) still to be put out */
    int done_tile, done_row, done_token;
};

static bool spot_next(const struct work *w, struct spot *s)
{
    int end = s->chunk + w->chunk_rows < w->row_end ? s->chunk + w->chunk_rows : w->row_end;
    if ((s->row += UNPACK_ROWS) < end) return true;
    s->row = s->chunk;
    if (++s->b < w->n_blocks) return true;
    s->b = 0;
    s->chunk = s->row = end;
    return end < w->row_end;
}

static const char *spot_data(const struct work *w, struct spot s)
{
    const struct dtype_info *d = dtype_info((int)w->job->type);
    size_t block = (size_t)(s.b * w->plan.block / d->block) * (size_t)d->bytes;
    return (const char *)w->job->data + (size_t)s.row * w->row_bytes + block;
}

/* Begins to unpack the panel at s. */
static void feed_start(struct work *w, struct spot s, char *panel)
{
    struct span k = span_of(w->job->cols, w->plan.block, s.b);
    int end = k.end * T_COLS < w->job->cols ? k.end * T_COLS : w->job->cols;
    struct spot after = s;
    w->feed = (struct unpack){
        .type = w->job->type, .src = spot_data(w, s), .row_bytes = w->row_bytes, .cols = end - k.begin * T_COLS,
        .next = spot_next(w, &after) ? spot_data(w, after) : NULL,
        .stride = panel_stride(w->plan), .rest = panel_bytes(w->plan),
    };
    w->feed_panel = panel;
    w->fed = 0;
    w->feed_rows = w->row_end - s.row < UNPACK_ROWS ? w->row_end - s.row : UNPACK_ROWS;
    w->credit = 0;
}

static void feed_finish(struct work *w)
{
    if (w->fed < w->feed_rows) w->unpack(&w->feed, w->feed_panel, w->fed, w->feed_rows);
    w->fed = w->feed_rows;
}

/* 16 rows × 16 tokens of sums to out[token][row]. */
static void put_tile(const struct gemm_job *j, const float *c, int row, int n_rows, int token, int n_tokens)
{
    __m512i v[16];
    __mmask16 live = (__mmask16)(n_rows < 16 ? (1u << n_rows) - 1 : 0xffff);
    __m512 scale = _mm512_set1_ps(j->scale);
    __m512 bias = j->bias ? _mm512_maskz_loadu_ps(live, j->bias + row) : _mm512_setzero_ps();
    float *out = tensor_row(j->out, token) + row;
    size_t stride = j->out->stride;
    /* Whole lines that nobody read go past the caches: out is larger than they are. */
    bool past = !j->add && n_rows >= 16 && ((uintptr_t)out & 63) == 0 && (stride & 15) == 0 && NTC;

    for (int i = 0; i < 16; i++) v[i] = _mm512_load_si512(c + 16 * i);
    transpose16(v);
    for (int i = 0; i < 16 && i < n_tokens; i++, out += stride) {
        __m512 y = _mm512_fmadd_ps(_mm512_castsi512_ps(v[i]), scale, bias);
        if (j->add) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(live, out));
        if (past) _mm512_stream_ps(out, y);
        else _mm512_mask_storeu_ps(out, live, y);
    }
}

/* One tile of the complete sums; false: there is none. */
static bool put_next(struct work *w)
{
    if (!w->done) return false;
    const struct gemm_job *j = w->job;
    int i = w->done_tile++, row = w->done_row + i / 2 * T_ROWS, token = w->done_token + i % 2 * T_ROWS;
    if (row < w->row_end && token < j->tokens)
        put_tile(j, w->done + 256 * i, row, w->row_end - row, token, j->tokens - token);
    if (w->done_tile == 4) w->done = NULL;
    return true;
}

static void between(struct work *w, int steps)
{
    put_next(w);
    w->credit += steps;
    int rows = w->credit / w->credit_row, left = w->feed_rows - w->fed;
    if (rows > left) rows = left;
    if (rows <= 0) return;
    w->credit -= rows * w->credit_row;
    w->unpack(&w->feed, w->feed_panel, w->fed, w->fed + rows);
    w->fed += rows;
}

/* The panel at s times the tokens at hand. */
static void panel_run(struct work *w, struct spot s, const char *panel)
{
    struct plan p = w->plan;
    struct span k = span_of(w->job->cols, p.block, s.b);
    int steps = k.end - k.begin;
    size_t stride = panel_stride(p), pairs = (size_t)(w->tile1 - w->tile0 + 1) / 2;
    float *sums = w->sums + (size_t)((s.row - s.chunk) / UNPACK_ROWS) * pairs * 1024;

    for (int t = w->tile0; t < w->tile1; t += 2, sums += 1024) {
        bool two = t + 1 < w->tile1;
        sums_load(sums, s.b == 0, two);
        for (int i = 0; i < p.n_products; i++) {             /* (w, x): hi hi, hi lo, lo hi */
            const char *a = panel + (i == 2 ? panel_bytes(p) : 0);
            const char *x = w->xp + x_at(k, w->n_tiles, t, p.x_parts, i == 1);
            for (int at = 0; at < steps; at += SEG) {
                int n = steps - at < SEG ? steps - at : SEG;
                const char *x0 = x + (size_t)at * TILE;
                if (two) product_2x2(a + 64 * at, stride, x0, x0 + (size_t)(steps * p.x_parts) * TILE, n);
                else product_2x1(a + 64 * at, stride, x0, n);
                between(w, n);
            }
        }
        while (put_next(w)) {}
        sums_store(sums, two);
        if (s.b + 1 < w->n_blocks) continue;
        w->done = sums;
        w->done_tile = 0;
        w->done_row = s.row;
        w->done_token = t * T_ROWS;
    }
}

/* All rows for the tokens at hand. */
static void tokens_run(struct work *w, int row0, char *panel, char *other)
{
    struct spot s = { row0, row0, 0 };
    feed_start(w, s, panel);
    feed_finish(w);
    for (bool more = true; more;) {
        struct spot next = s;
        struct span k = span_of(w->job->cols, w->plan.block, s.b);
        if ((more = spot_next(w, &next))) feed_start(w, next, other);
        w->credit_row = ((w->tile1 - w->tile0 + 1) / 2 * (k.end - k.begin) * w->plan.n_products) / UNPACK_ROWS;
        if (w->credit_row < 1) w->credit_row = 1;
        panel_run(w, s, panel);
        feed_finish(w);
        char *swap = panel;
        panel = other;
        other = swap;
        s = next;
    }
    while (put_next(w)) {}
}

/* Static, because some compilers think that only the first word of a configuration is read. */
static const struct {
    uint8_t palette, start_row, zero[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tiles = { 1, 0, { 0 }, { 64, 64, 64, 64, 64, 64, 64, 64 }, { 16, 16, 16, 16, 16, 16, 16, 16 } };

static void amx_enter(void)
{
    static _Thread_local bool ready;
    if (ready) return;
    _tile_loadconfig(&tiles);
    ready = true;
}

static void amx_rows(const struct gemm_job *job, const void *xp, int row0, int row1, void *scratch)
{
    const struct dtype_info *d = dtype_info((int)job->type);
    struct work w = { .job = job, .plan = plan_of(job->type), .xp = xp, .unpack = unpack_find(job->type), .row_end = row1 };

    amx_enter();
    w.n_blocks = n_blocks(job->cols, w.plan.block);
    w.n_tiles = (job->tokens + T_ROWS - 1) / T_ROWS;
    w.row_bytes = (size_t)(job->cols / d->block) * (size_t)d->bytes;
    /* With few tokens the weights come from memory: read them in order. */
    w.chunk_rows = job->tokens <= 64 ? UNPACK_ROWS : ROWS;
    w.sums = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    char *panel = (char *)(w.sums + (size_t)ROWS * TOKENS);
    char *other = panel + (size_t)w.plan.w_parts * panel_bytes(w.plan);

    for (w.tile0 = 0; w.tile0 < w.n_tiles; w.tile0 = w.tile1) {
        w.tile1 = w.tile0 + TOKENS / T_ROWS < w.n_tiles ? w.tile0 + TOKENS / T_ROWS : w.n_tiles;
        tokens_run(&w, row0, panel, other);
    }
    _mm_sfence();
}

static bool amx_can(enum dtype w) { return quant_can_decode(w); }

/* The CPU has tiles of bf16, the OS keeps them, and lets this process use them. */
static bool amx_here(void)
{
    enum { BF16 = 1 << 22, TILES = 1 << 24, AVX512_BF16 = 1 << 5, OSXSAVE = 1 << 27 };
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    unsigned a, b, c, d, state = 0x600e6, lo, hi;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (BF16 | TILES)) != (BF16 | TILES)) return false;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & AVX512_BF16)) return false;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (lo & state) == state && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
}

const struct gemm *gemm_amx(void)
{
    static const struct gemm amx = {
        .name = "amx", .min_tokens = 6, .token_unit = T_ROWS, .row_unit = UNPACK_ROWS, .can = amx_can,
        .x_bytes = amx_x_bytes, .scratch_bytes = amx_scratch_bytes, .pack = amx_pack, .rows = amx_rows,
        .enter = amx_enter,
    };
    static int here;                             /* 0: not asked yet */
    if (!here) here = amx_here() ? 1 : -1;
    return here > 0 ? &amx : NULL;
}
