#include "kernel/cpu/gemm.h"

#include "kernel/cpu/tiles_amx.h"
#include "kernel/cpu/unpack_impl.h"
#include "kernel/quant.h"

/* Weights are the left operand, 16 rows × 32 columns of bf16 a tile, in panels of 32 rows that are
 * unpacked into the first-level cache; tokens are the right one, packed once for all rows as tiles
 * of 16 tokens. Sums stay in F32 tiles. Columns go in blocks (a panel of one block fits the cache):
 *
 *     for 512 tokens                         what a thread's sums have room for
 *         for 256 rows                       so that sums and the block of tokens stay in level 2
 *             for each block of columns
 *                 for 32 rows                unpack them
 *                     for 32 tokens          2 × 2 tiles over the columns of the block
 *
 * With few tokens unpacking is most of the work, and it leaves the tile unit idle: there the
 * products of one panel are done in between the rows of the next one (feed).
 *
 * Plain numbers take more than one product: BF16 and F8 weights are exact and meet the tokens in
 * two parts, x = hi + lo; F16 and F32 have two parts themselves. */

enum { TOKENS = 512, ROWS = 256, TILE = 1024 };
enum { FEW = 2 * 16 }; /* tokens whose sums stay in tiles from the first column to the last */
enum { T_ROWS = 16, T_COLS = 32 }; /* of a tile of weights */

struct plan {
    int x_parts, w_parts, n_products;
    int block; /* columns at most in a block */
};

static struct plan plan_of(enum dtype t, int tokens)
{
    if (t == DT_BF16 || t == DT_F8_E4M3 || t == DT_F8_E5M2) return (struct plan){ 2, 1, 2, 512 };
    if (t == DT_F16 || t == DT_F32) return (struct plan){ 2, 2, 3, 256 };
    return (struct plan){ 1, 1, 1, tokens <= FEW ? 256 : 512 }; /* few: two panels at a time */
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
    size_t steps = (size_t)(cols + T_COLS - 1) / T_COLS,
           tiles = (size_t)(tokens + T_ROWS - 1) / T_ROWS;
    return steps * tiles * (size_t)plan_of(w, tokens).x_parts * TILE;
}

/* A line more than the columns, or the rows of a tile would fall into few sets of the cache. */
static size_t panel_stride(struct plan p) { return (size_t)p.block * 2 + 64; }
static size_t panel_bytes(struct plan p) { return panel_stride(p) * UNPACK_ROWS; }

static size_t amx_scratch_bytes(enum dtype w, int cols)
{
    struct plan p = plan_of(w, TOKENS);
    size_t many = (size_t)p.w_parts * panel_bytes(p), few = 2 * panel_bytes(plan_of(w, FEW));
    (void)cols;
    return (size_t)ROWS * TOKENS * sizeof(float) + (many > few ? many : few) + 64;
}

/* 32 columns of 16 tokens, as pairs of columns side by side for every token: [16 pairs][16
 * tokens][2]. */
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
    struct plan p = plan_of(w, x->rows);
    int n_tiles = (x->rows + T_ROWS - 1) / T_ROWS;
    for (int b = 0; b < n_blocks(x->cols, p.block); b++) {
        struct span s = span_of(x->cols, p.block, b);
        for (int t = token0 / T_ROWS; t * T_ROWS < token1; t++) {
            char *hi = (char *)xp + x_at(s, n_tiles, t, p.x_parts, 0);
            char *lo = p.x_parts == 2 ? (char *)xp + x_at(s, n_tiles, t, p.x_parts, 1) : NULL;
            for (int k = s.begin; k < s.end; k++, hi += TILE)
                pack_tile(x, t * T_ROWS, k * T_COLS, hi,
                          lo ? lo + (size_t)(k - s.begin) * TILE : NULL);
        }
    }
}

/* ---- tiles: 0..3 the sums, 4, 5 weights, 6, 7 tokens ---- */

static void sums_load(const float *c, bool first)
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

static void sums_store(float *c)
{
    _tile_stored(0, c, 64);
    _tile_stored(1, c + 256, 64);
    _tile_stored(2, c + 512, 64);
    _tile_stored(3, c + 768, 64);
}

/* 32 rows × 32 tokens. The tokens pass by (a hint), the weights stay in the first-level cache. */
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

static void product_2x2(const char *w, size_t stride, const char *x0, const char *x1, int steps)
{
    const char *w1 = w + T_ROWS * stride;
    for (int s = 0; s < steps; s++, w += 64, w1 += 64, x0 += TILE, x1 += TILE)
        step_2x2(w, w1, stride, x0, x1);
}

/* 32 rows × 16 tokens: even steps to tiles 0 and 2, odd ones to 1 and 3, so that four sums are
 * under way. */
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

static void product_2x1(const char *w, size_t stride, const char *x, int steps)
{
    const char *w1 = w + T_ROWS * stride;
    for (int s = 0; s < steps; s++, w += 64, w1 += 64, x += TILE) {
        if (s % 2) step_odd(w, w1, stride, x);
        else step_even(w, w1, stride, x);
    }
}

/* ---- from sums to out ---- */

/* The four tiles of complete sums; `two`: two of tokens, else even and odd steps of one. */
static void put_sums(const struct gemm_job *j, float *c, bool two, int row, int n_rows, int token)
{
    for (int h = 0; h < 2; h++, c += 512, row += T_ROWS, n_rows -= T_ROWS) {
        if (n_rows <= 0) return;
        if (!two)
            for (int i = 0; i < 256; i += 16)
                _mm512_store_ps(c + i,
                                _mm512_add_ps(_mm512_load_ps(c + i), _mm512_load_ps(c + 256 + i)));
        put_tile(j, c, row, n_rows, token, j->tokens - token);
        if (two) put_tile(j, c + 256, row, n_rows, token + T_ROWS, j->tokens - token - T_ROWS);
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
    int n_tiles;      /* of all the tokens */
    int tile0, tile1; /* of the tokens at hand */
    float *sums;      /* [panel of the chunk][pair of token tiles][2][2][16][16] */
    char *panel;
};

/* The unpacked panel, columns of block b, times the tokens at hand. */
static void panel_run(const struct work *w, int b, int row, int n_rows, float *sums)
{
    struct plan p = w->plan;
    struct span k = span_of(w->job->cols, p.block, b);
    int steps = k.end - k.begin;
    size_t stride = panel_stride(p);

    for (int t = w->tile0; t < w->tile1; t += 2, sums += 1024) {
        bool two = t + 1 < w->tile1;
        sums_load(sums, b == 0);
        for (int i = 0; i < p.n_products; i++) { /* (w, x): hi hi, hi lo, lo hi */
            const char *a = w->panel + (i == 2 ? panel_bytes(p) : 0);
            const char *x = w->xp + x_at(k, w->n_tiles, t, p.x_parts, i == 1);
            if (two) product_2x2(a, stride, x, x + (size_t)(steps * p.x_parts) * TILE, steps);
            else product_2x1(a, stride, x, steps);
        }
        sums_store(sums);
        if (b + 1 == w->n_blocks) put_sums(w->job, sums, two, row, n_rows, t * T_ROWS);
    }
}

static const char *weights_at(const struct work *w, int row, int b)
{
    const struct dtype_info *d = dtype_info((int)w->job->type);
    size_t block = (size_t)(b * w->plan.block / d->block) * (size_t)d->bytes;
    return (const char *)w->job->data + (size_t)row * w->row_bytes + block;
}

/* ---- few tokens: products of one panel while the next one is unpacked ---- */

struct feed {
    const struct work *w;
    const char *panel;      /* being multiplied */
    int block, row, n_rows; /* where it is from */
    int step, steps;        /* 32 columns each */
};

static void feed_begin(struct feed *f, const char *panel, int block, int row, int n_rows)
{
    struct span k = span_of(f->w->job->cols, f->w->plan.block, block);

    *f = (struct feed){ f->w, panel, block, row, n_rows, 0, k.end - k.begin };
}

static void feed_step(struct feed *f)
{
    const struct work *w = f->w;
    size_t stride = panel_stride(w->plan);
    struct span k = span_of(w->job->cols, w->plan.block, f->block);
    const char *a = f->panel + (size_t)f->step * 64, *a1 = a + T_ROWS * stride;
    const char *x = w->xp + x_at(k, w->n_tiles, 0, 1, 0) + (size_t)f->step * TILE;
    bool two = w->n_tiles == 2;

    if (f->block == 0 && f->step == 0) sums_load(NULL, true);
    if (two) step_2x2(a, a1, stride, x, x + (size_t)f->steps * TILE);
    else if (f->step % 2) step_odd(a, a1, stride, x);
    else step_even(a, a1, stride, x);
    if (++f->step < f->steps || f->block + 1 < w->n_blocks) return;
    sums_store(w->sums);
    put_sums(w->job, w->sums, two, f->row, f->n_rows, 0);
}

/* One panel into its place, and the one before it past the tokens. */
static void feed_panel(struct feed *f, struct unpack *u, char *panel)
{
    enum { AT_ONCE = 2 }; /* rows */
    int rows = u->rows;

    for (int r = 0; r < rows; r += AT_ONCE) {
        u->rows = rows - r < AT_ONCE ? rows - r : AT_ONCE;
        f->w->unpack(u, panel + (size_t)r * u->stride);
        u->src += AT_ONCE * u->row_bytes;
        if (u->next) u->next += AT_ONCE * u->row_bytes;
        while (f->step < f->steps && f->step * rows < f->steps * (r + AT_ONCE)) feed_step(f);
    }
}

static void few_run(const struct work *w, int row0, int row1)
{
    struct feed f = { .w = w };
    size_t stride = panel_stride(w->plan);
    int turn = 0;

    for (int r = row0; r < row1; r += UNPACK_ROWS) {
        int n = row1 - r < UNPACK_ROWS ? row1 - r : UNPACK_ROWS;
        for (int b = 0; b < w->n_blocks; b++, turn ^= 1) {
            struct span k = span_of(w->job->cols, w->plan.block, b);
            int end = k.end * T_COLS < w->job->cols ? k.end * T_COLS : w->job->cols;
            char *panel = w->panel + (turn ? panel_bytes(w->plan) : 0);
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

/* Rows [row0, row1), at most ROWS, of those up to row_end. */
static void chunk_run(const struct work *w, int row0, int row1, int row_end)
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
            panel_run(w, b, r, n, sums);
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
    /* With few tokens the weights come from memory: read them in order. */
    int rows = job->tokens <= 64 ? UNPACK_ROWS : ROWS;

    tiles_enter(TILES_BF16);
    w.n_blocks = n_blocks(job->cols, w.plan.block);
    w.n_tiles = (job->tokens + T_ROWS - 1) / T_ROWS;
    w.row_bytes = (size_t)(job->cols / d->block) * (size_t)d->bytes;
    w.sums = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    w.panel = (char *)(w.sums + (size_t)ROWS * TOKENS);

    if (job->tokens <= FEW && w.plan.n_products == 1) {
        few_run(&w, row0, row1);
        return;
    }
    for (w.tile0 = 0; w.tile0 < w.n_tiles; w.tile0 = w.tile1) {
        w.tile1 = w.tile0 + TOKENS / T_ROWS < w.n_tiles ? w.tile0 + TOKENS / T_ROWS : w.n_tiles;
        for (int r = row0; r < row1; r += rows)
            chunk_run(&w, r, r + rows < row1 ? r + rows : row1, row1);
    }
    _mm_sfence();
}

static bool amx_can(enum dtype w)
{
    const struct dtype_info *d = dtype_info((int)w);
    bool number = w == DT_F32 || w == DT_F16 || w == DT_BF16 || w == DT_F8_E4M3 || w == DT_F8_E5M2;
    return number || (d && d->quantized && quant_can_decode(w));
}

/* Measured with bench/kernels -x: vectors multiply plain numbers one by one, and have to spread two
 * bits to eight as the tiles have to sixteen. */
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
