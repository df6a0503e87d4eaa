#include "kernel/cpu/gemm.h"

#include "kernel/cpu/tiles_amx.h"
#include "kernel/cpu/unpack_impl.h"
#include "kernel/quant.h"

/* gemm_amx.c - matrix-matrix product on AMX tiles of bf16, for weights of any type.
 *
 * Weights are the left operand, tiles of 16 rows x 32 columns, in panels of 32 rows that are
 * dequantized to bf16 into the L1 cache. Tokens are the right operand, packed once for all rows as
 * tiles of 16 tokens. Sums are F32 tiles. Columns are processed in blocks, so that a panel of one
 * block fits the cache:
 *
 *     for 512 tokens                         the capacity of a thread's sums
 *         for 256 rows                       so that sums and the block of tokens stay in L2
 *             for each block of columns
 *                 for 32 rows                unpack them
 *                     for 32 tokens          2 x 2 tiles over the columns of the block
 *
 * With few tokens unpacking is most of the work and leaves the tile unit idle: there the products
 * of one panel are interleaved with unpacking the next one (struct feed).
 *
 * bf16 has 8 bits of precision. Quantized weights and their tokens are rounded to it; unquantized
 * types take more than one product to keep theirs: BF16 and F8 weights are exact and are multiplied
 * with tokens in two parts, x = hi + lo; F16 and F32 weights have two parts themselves. */

enum { TOKENS = 512, ROWS = 256, TILE = 1024 };
enum { FEW = 2 * 16 };             /* up to this many tokens, sums stay in tiles over all columns */
enum { T_ROWS = 16, T_COLS = 32 }; /* of a tile of weights */

/* How a type is multiplied. */
struct plan {
    int x_parts, w_parts; /* bf16 parts of tokens and weights */
    int n_products;       /* products of parts that are summed */
    int block;            /* columns per block */
};

static struct plan plan_of(enum dtype t, int tokens)
{
    if (t == DT_BF16 || t == DT_F8_E4M3 || t == DT_F8_E5M2) return (struct plan){ 2, 1, 2, 512 };
    if (t == DT_F16 || t == DT_F32) return (struct plan){ 2, 2, 3, 256 };
    return (struct plan){ 1, 1, 1,
                          tokens <= FEW ? 256 : 512 }; /* few: two panels share the cache */
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

/* ---- layout of the packed tokens: [block][tile of 16 tokens][part][step][1 KiB] ---- */

static size_t x_offset(struct span s, int n_tiles, int tile, int x_parts, int part)
{
    size_t steps = (size_t)(s.end - s.begin);
    size_t before = (size_t)s.begin * (size_t)n_tiles * (size_t)x_parts;
    return (before + ((size_t)tile * (size_t)x_parts + (size_t)part) * steps) * TILE;
}

static size_t amx_x_bytes(enum dtype w, int tokens, int cols)
{
    size_t steps = (size_t)(cols + T_COLS - 1) / T_COLS,
           tiles = (size_t)(tokens + T_ROWS - 1) / T_ROWS;
    return steps * tiles * (size_t)plan_of(w, tokens).x_parts * TILE;
}

/* One cache line more than the columns need; without it the rows of a tile would map to few sets of
 * the cache. */
static size_t panel_stride(struct plan p) { return (size_t)p.block * 2 + 64; }
static size_t panel_bytes(struct plan p) { return panel_stride(p) * UNPACK_ROWS; }

static size_t amx_scratch_bytes(enum dtype w, int cols)
{
    struct plan p = plan_of(w, TOKENS);
    size_t many = (size_t)p.w_parts * panel_bytes(p), few = 2 * panel_bytes(plan_of(w, FEW));
    (void)cols;
    return (size_t)ROWS * TOKENS * sizeof(float) + (many > few ? many : few) + 64;
}

/* 32 columns of 16 tokens as a right operand: [16 pairs of columns][16 tokens][2]. lo may be NULL. */
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

/* Packs whole tiles of 16 tokens, all blocks of columns. */
static void amx_pack(enum dtype w, void *xp, const struct tensor *x, int token0, int token1)
{
    struct plan p = plan_of(w, x->rows);
    int n_tiles = (x->rows + T_ROWS - 1) / T_ROWS;
    for (int b = 0; b < n_blocks(x->cols, p.block); b++) {
        struct span s = span_of(x->cols, p.block, b);
        for (int t = token0 / T_ROWS; t * T_ROWS < token1; t++) {
            char *hi = (char *)xp + x_offset(s, n_tiles, t, p.x_parts, 0);
            char *lo = p.x_parts == 2 ? (char *)xp + x_offset(s, n_tiles, t, p.x_parts, 1) : NULL;
            for (int k = s.begin; k < s.end; k++, hi += TILE)
                pack_tile(x, t * T_ROWS, k * T_COLS, hi,
                          lo ? lo + (size_t)(k - s.begin) * TILE : NULL);
        }
    }
}

/* ---- tiles: 0..3 the sums, 4, 5 weights, 6, 7 tokens ---- */

static void load_sums(const float *c, bool first)
{
    if (first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        return;
    }
    _tile_loadd(0, c, 64);
    _tile_loadd(1, c + 256, 64);
    _tile_loadd(2, c + 512, 64);
    _tile_loadd(3, c + 768, 64);
}

static void save_sums(float *c)
{
    _tile_stored(0, c, 64);
    _tile_stored(1, c + 256, 64);
    _tile_stored(2, c + 512, 64);
    _tile_stored(3, c + 768, 64);
}

/* 32 rows x 32 tokens. Tokens are loaded with a streaming hint, weights stay in L1. */
INLINE void step_2x2(const char *w, const char *w1, size_t stride, const char *x0, const char *x1)
{
    _tile_stream_loadd(6, x0, 64);
    _tile_loadd(4, w, stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_stream_loadd(7, x1, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, w1, stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}

static void multiply_2x2(const char *w, size_t stride, const char *x0, const char *x1, int steps)
{
    const char *w1 = w + T_ROWS * stride;
    for (int s = 0; s < steps; s++, w += 64, w1 += 64, x0 += TILE, x1 += TILE)
        step_2x2(w, w1, stride, x0, x1);
}

/* 32 rows x 16 tokens: even steps add to tiles 0 and 2, odd steps to 1 and 3, so that four
 * independent sums hide the latency of the tile unit. */
INLINE void step_even(const char *w, const char *w1, size_t stride, const char *x)
{
    _tile_loadd(6, x, 64);
    _tile_loadd(4, w, stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, w1, stride);
    _tile_dpbf16ps(2, 5, 6);
}

INLINE void step_odd(const char *w, const char *w1, size_t stride, const char *x)
{
    _tile_loadd(7, x, 64);
    _tile_loadd(4, w, stride);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, w1, stride);
    _tile_dpbf16ps(3, 5, 7);
}

static void multiply_2x1(const char *w, size_t stride, const char *x, int steps)
{
    const char *w1 = w + T_ROWS * stride;
    for (int s = 0; s < steps; s++, w += 64, w1 += 64, x += TILE) {
        if (s % 2) step_odd(w, w1, stride, x);
        else step_even(w, w1, stride, x);
    }
}

/* ---- from sums to out ---- */

/* Four tiles of complete sums to the output. two: they are two tiles of tokens; else the even and
 * odd steps of one, which are added. */
static void store_sums(const struct gemm_job *j, float *c, bool two, int row, int n_rows, int token)
{
    for (int h = 0; h < 2; h++, c += 512, row += T_ROWS, n_rows -= T_ROWS) {
        if (n_rows <= 0) return;
        if (!two)
            for (int i = 0; i < 256; i += 16)
                _mm512_store_ps(c + i,
                                _mm512_add_ps(_mm512_load_ps(c + i), _mm512_load_ps(c + 256 + i)));
        store_sums_tile(j, c, row, n_rows, token, j->tokens - token);
        if (two)
            store_sums_tile(j, c + 256, row, n_rows, token + T_ROWS, j->tokens - token - T_ROWS);
    }
}

/* ---- one thread's work ---- */

struct work {
    const struct gemm_job *job;
    struct plan plan;
    int n_blocks;
    size_t row_bytes;
    unpack_fn *unpack;
    const char *xp;
    int n_tiles;      /* token tiles in all */
    int tile0, tile1; /* token tiles of the current pass */
    float *sums;      /* [panel of the chunk][pair of token tiles][2][2][16][16] */
    char *panel;      /* unpacked weights */
};

/* The unpacked panel (columns of block b) times the tokens of the current pass. */
static void multiply_panel(const struct work *w, int b, int row, int n_rows, float *sums)
{
    struct plan p = w->plan;
    struct span k = span_of(w->job->cols, p.block, b);
    int steps = k.end - k.begin;
    size_t stride = panel_stride(p);

    for (int t = w->tile0; t < w->tile1; t += 2, sums += 1024) {
        bool two = t + 1 < w->tile1;
        load_sums(sums, b == 0);
        for (int i = 0; i < p.n_products; i++) { /* (w, x): hi hi, hi lo, lo hi */
            const char *a = w->panel + (i == 2 ? panel_bytes(p) : 0);
            const char *x = w->xp + x_offset(k, w->n_tiles, t, p.x_parts, i == 1);
            if (two) multiply_2x2(a, stride, x, x + (size_t)(steps * p.x_parts) * TILE, steps);
            else multiply_2x1(a, stride, x, steps);
        }
        save_sums(sums);
        if (b + 1 == w->n_blocks) store_sums(w->job, sums, two, row, n_rows, t * T_ROWS);
    }
}

/* The first byte of block b of a row. */
static const char *weights_at(const struct work *w, int row, int b)
{
    const struct dtype_info *d = dtype_info((int)w->job->type);
    size_t block = (size_t)(b * w->plan.block / d->block) * (size_t)d->bytes;
    return (const char *)w->job->data + (size_t)row * w->row_bytes + block;
}

/* ---- few tokens: products of one panel, interleaved with unpacking the next ---- */

/* The panel that is being multiplied, and how far. */
struct feed {
    const struct work *w;
    const char *panel;
    int block, row, n_rows; /* of the weights */
    int step, steps;        /* done and in all; 32 columns each */
};

/* Makes the panel that was just unpacked the one to multiply. */
static void feed_begin(struct feed *f, const char *panel, int block, int row, int n_rows)
{
    struct span k = span_of(f->w->job->cols, f->w->plan.block, block);

    *f = (struct feed){ f->w, panel, block, row, n_rows, 0, k.end - k.begin };
}

/* The next 32 columns of the current panel; the last step of all writes the sums. */
static void feed_step(struct feed *f)
{
    const struct work *w = f->w;
    size_t stride = panel_stride(w->plan);
    struct span k = span_of(w->job->cols, w->plan.block, f->block);
    const char *a = f->panel + (size_t)f->step * 64, *a1 = a + T_ROWS * stride;
    const char *x = w->xp + x_offset(k, w->n_tiles, 0, 1, 0) + (size_t)f->step * TILE;
    bool two = w->n_tiles == 2;

    if (f->block == 0 && f->step == 0) load_sums(NULL, true);
    if (two) step_2x2(a, a1, stride, x, x + (size_t)f->steps * TILE);
    else if (f->step % 2) step_odd(a, a1, stride, x);
    else step_even(a, a1, stride, x);
    if (++f->step < f->steps || f->block + 1 < w->n_blocks) return;
    save_sums(w->sums);
    store_sums(w->job, w->sums, two, f->row, f->n_rows, 0);
}

/* Unpacks one panel, and between its rows multiplies the previous one. */
static void feed_panel(struct feed *f, struct unpack *u, char *panel)
{
    enum { AT_ONCE = 2 }; /* rows unpacked between products */
    int rows = u->rows;

    for (int r = 0; r < rows; r += AT_ONCE) {
        u->rows = rows - r < AT_ONCE ? rows - r : AT_ONCE;
        f->w->unpack(u, panel + (size_t)r * u->stride);
        u->src += AT_ONCE * u->row_bytes;
        if (u->next) u->next += AT_ONCE * u->row_bytes;
        while (f->step < f->steps && f->step * rows < f->steps * (r + AT_ONCE)) feed_step(f);
    }
}

/* Rows [row0, row1) with at most FEW tokens. */
static void run_few(const struct work *w, int row0, int row1)
{
    struct feed f = { .w = w };
    size_t stride = panel_stride(w->plan);
    int odd = 0; /* which of the two panels */

    for (int r = row0; r < row1; r += UNPACK_ROWS) {
        int n = row1 - r < UNPACK_ROWS ? row1 - r : UNPACK_ROWS;
        for (int b = 0; b < w->n_blocks; b++, odd ^= 1) {
            struct span k = span_of(w->job->cols, w->plan.block, b);
            int end = k.end * T_COLS < w->job->cols ? k.end * T_COLS : w->job->cols;
            char *panel = w->panel + (odd ? panel_bytes(w->plan) : 0);
            struct unpack u = { .type = w->job->type,
                                .src = weights_at(w, r, b),
                                .row_bytes = w->row_bytes,
                                .rows = n,
                                .cols = end - k.begin * T_COLS,
                                .stride = stride };
            if (b + 1 < w->n_blocks) u.next = weights_at(w, r, b + 1);
            else if (r + UNPACK_ROWS < row1) u.next = weights_at(w, r + UNPACK_ROWS, 0);
            feed_panel(&f, &u, panel);
            feed_begin(&f, panel, b, r, n);
        }
    }
    while (f.step < f.steps) feed_step(&f);
}

/* ---- many tokens ---- */

/* Rows [row0, row1), at most ROWS. row_end: end of the thread's rows, for prefetching. */
static void run_chunk(const struct work *w, int row0, int row1, int row_end)
{
    size_t pairs = (size_t)(w->tile1 - w->tile0 + 1) / 2;

    for (int b = 0; b < w->n_blocks; b++) {
        struct span k = span_of(w->job->cols, w->plan.block, b);
        int end = k.end * T_COLS < w->job->cols ? k.end * T_COLS : w->job->cols;
        float *sums = w->sums;
        for (int r = row0; r < row1; r += UNPACK_ROWS, sums += pairs * 1024) {
            int n = row1 - r < UNPACK_ROWS ? row1 - r : UNPACK_ROWS;
            struct unpack u = { .type = w->job->type,
                                .src = weights_at(w, r, b),
                                .row_bytes = w->row_bytes,
                                .rows = n,
                                .cols = end - k.begin * T_COLS,
                                .stride = panel_stride(w->plan),
                                .rest = panel_bytes(w->plan) };
            if (r + UNPACK_ROWS < row1) u.next = weights_at(w, r + UNPACK_ROWS, b);
            else if (b + 1 < w->n_blocks) u.next = weights_at(w, row0, b + 1);
            else if (r + UNPACK_ROWS < row_end) u.next = weights_at(w, r + UNPACK_ROWS, 0);
            w->unpack(&u, w->panel);
            multiply_panel(w, b, r, n, sums);
        }
    }
}

static void amx_enter(void) { tiles_enter(TILES_BF16); }

static void amx_rows(const struct gemm_job *job, const void *xp, int row0, int row1, void *scratch)
{
    const struct dtype_info *d = dtype_info((int)job->type);
    struct work w = { .job = job,
                      .plan = plan_of(job->type, job->tokens),
                      .xp = xp,
                      .unpack = unpack_find(job->type) };
    /* With few tokens the time goes into reading weights: read them in memory order. */
    int rows = job->tokens <= 64 ? UNPACK_ROWS : ROWS;

    tiles_enter(TILES_BF16);
    w.n_blocks = n_blocks(job->cols, w.plan.block);
    w.n_tiles = (job->tokens + T_ROWS - 1) / T_ROWS;
    w.row_bytes = (size_t)(job->cols / d->block) * (size_t)d->bytes;
    w.sums = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    w.panel = (char *)(w.sums + (size_t)ROWS * TOKENS);

    if (job->tokens <= FEW && w.plan.n_products == 1) {
        run_few(&w, row0, row1);
        return;
    }
    for (w.tile0 = 0; w.tile0 < w.n_tiles; w.tile0 = w.tile1) {
        w.tile1 = w.tile0 + TOKENS / T_ROWS < w.n_tiles ? w.tile0 + TOKENS / T_ROWS : w.n_tiles;
        for (int r = row0; r < row1; r += rows)
            run_chunk(&w, r, r + rows < row1 ? r + rows : row1, row1);
    }
    _mm_sfence();
}

static bool amx_can(enum dtype w)
{
    const struct dtype_info *d = dtype_info((int)w);
    bool plain = w == DT_F32 || w == DT_F16 || w == DT_BF16 || w == DT_F8_E4M3 || w == DT_F8_E5M2;
    return plain || (d && d->quantized && quant_can_decode(w) && !dtype_head(w));
}

/* Measured with bench/kernels -x. Vector kernels are slower on unquantized types and on two-bit
 * formats, so tiles win earlier there. */
static int amx_min_tokens(enum dtype w)
{
    switch (w) {
    case DT_F32:
    case DT_F16:
    case DT_BF16:
    case DT_TQ2_0: return 6;
    case DT_Q2_K: return 8;
    default: return 9;
    }
}

const struct gemm *gemm_amx(void)
{
    static const struct gemm amx = {
        .name = "amx",
        .min_tokens = amx_min_tokens,
        .token_unit = T_ROWS,
        .row_unit = UNPACK_ROWS,
        .can = amx_can,
        .x_bytes = amx_x_bytes,
        .scratch_bytes = amx_scratch_bytes,
        .pack = amx_pack,
        .rows = amx_rows,
        .enter = amx_enter,
    };
    return tiles_here() ? &amx : NULL;
}
