/* recur_chunk.h - the recurrences of recur.h over many tokens as matrix products. Included by
 * recur_impl.h only.
 *
 * BLOCK tokens at a time. With g_t the sum of log decays from the start of the chunk to token t, the
 * state after token t is
 *     h_t = e^(g_t) h_0 + sum over s <= t of e^(g_t - g_s) k_s (x) u_s,
 * where u_s is what token s adds: dt x in a scan, and in the delta rule the solution of
 *     u_t = beta_t (v_t - e^(g_t) k_t h_0 - sum over s < t of e^(g_t - g_s) (k_t k_s) u_s),
 * a lower triangular system for all columns of the state. Outputs are q_t h_t. So a chunk costs three
 * products with the state (two in a scan) and some of BLOCK x BLOCK, and the state is read and
 * written once. Exponents are never positive: nothing overflows however strong the decay is.
 *
 * Matrices are padded with zeros: tokens and elements of keys to a multiple of PAD; columns of the
 * state are processed PANEL at a time. Products are those of recur_products.h. */
#define MR (W == 16 ? 8 : 4)        /* rows of a tile of products in registers */
#define PANEL_VECS (W == 4 ? 4 : 2) /* vectors of its columns */
#define PANEL (PANEL_VECS * W)
#define BLOCK 32      /* tokens of a chunk; a multiple of PAD and of PANEL */
#define MOST_KEYS 256 /* rows of a state; larger ones are processed token by token */

/* c = keep c + scale[row] a b */
struct product {
    float *c;
    size_t ldc;
    const float *scale; /* NULL: 1 */
    float keep;
};

/* MR rows from `row` on and nv vectors of columns, k products each. */
INLINE void multiply_tile(const struct product *p, const float *a, size_t lda, const float *b,
                          size_t ldb, int row, int k, const int nv)
{
    vf sum[MR][PANEL_VECS];

    a += (size_t)row * lda;
    UNROLL
    for (int r = 0; r < MR; r++) {
        UNROLL
        for (int v = 0; v < nv; v++) sum[r][v] = v_set(0);
    }
    for (int i = 0; i < k; i++) {
        vf right[PANEL_VECS];
        UNROLL
        for (int v = 0; v < nv; v++) right[v] = v_load(b + (size_t)i * ldb + v * W);
        UNROLL
        for (int r = 0; r < MR; r++) {
            vf left = v_set(a[(size_t)r * lda + (size_t)i]);
            UNROLL
            for (int v = 0; v < nv; v++) sum[r][v] = v_fma(left, right[v], sum[r][v]);
        }
    }
    UNROLL
    for (int r = 0; r < MR; r++) {
        float *c = p->c + (size_t)(row + r) * p->ldc;
        vf scale = v_set(p->scale ? p->scale[row + r] : 1);
        UNROLL
        for (int v = 0; v < nv; v++) {
            vf s = sum[r][v] * scale;
            v_store(c + v * W, p->keep == 0 ? s : v_fma(v_set(p->keep), v_load(c + v * W), s));
        }
    }
}

#include "kernel/cpu/recur_products.h"

/* n rows of dim numbers, scaled, to n_pad rows of dim_pad. */
static void pack_rows(float *to, const float *from, size_t stride, int n, int n_pad, int dim,
                      int dim_pad, float scale)
{
    size_t ld = (size_t)dim_pad;

    for (int t = 0; t < n; t++) {
        int i = 0;
        for (; i + W <= dim; i += W)
            v_store(to + (size_t)t * ld + i, v_load(from + (size_t)t * stride + i) * v_set(scale));
        for (; i < dim_pad; i += W) {
            vf v = i < dim ? v_load_n(from + (size_t)t * stride + i, dim - i) : v_set(0);
            v_store(to + (size_t)t * ld + i, v * v_set(scale));
        }
    }
    memset(to + (size_t)n * ld, 0, (size_t)(n_pad - n) * ld * sizeof *to);
}

/* n rows of dim_pad numbers to dim_pad rows of BLOCK. */
static void transpose_rows(float *to, const float *from, int n_pad, int dim_pad)
{
    vf r[W];

    for (int t = 0; t < n_pad; t += W)
        for (int i = 0; i < dim_pad; i += W) {
            UNROLL
            for (int j = 0; j < W; j++) r[j] = v_load(from + (size_t)(t + j) * (size_t)dim_pad + i);
            v_transpose(r);
            UNROLL
            for (int j = 0; j < W; j++) v_store(to + (size_t)(i + j) * BLOCK + t, r[j]);
        }
}

/* Decays inside of a chunk. Sums are doubles: their differences are small numbers after a strong
 * decay, too. */
struct decays {
    double sum[BLOCK];                                   /* g_t */
    _Alignas(64) float from_start[BLOCK], to_end[BLOCK]; /* e^(g_t), e^(g_last - g_t) */
    float all;                                           /* e^(g_last) */
};

static void sum_decays(struct decays *d, const float *log_decay, size_t stride, float scale, int n,
                       int n_pad)
{
    double sum = 0;

    for (int t = 0; t < n_pad; t++) {
        float x = t < n ? log_decay[(size_t)t * stride] * scale : 0;
        d->sum[t] = sum += x < -1e4f ? -1e4f : x;
    }
    for (int t = 0; t < n_pad; t++) {
        d->from_start[t] = (float)d->sum[t];
        d->to_end[t] = (float)(sum - d->sum[t]);
    }
    for (int t = 0; t < n_pad; t += W) {
        v_store(d->from_start + t, v_exp(v_load(d->from_start + t)));
        v_store(d->to_end + t, v_exp(v_load(d->to_end + t)));
    }
    d->all = d->from_start[n_pad - 1];
}

/* to[t][s] = scale[t] e^(g_t - g_s) from[t][s] for s <= t, or s < t; 0 elsewhere. */
static void apply_decays(float *to, const float *from, const struct decays *d, const float *scale,
                         int n_pad, int strict)
{
    float diff[BLOCK];

    for (int t = 0; t < n_pad; t++) {
        vf last = v_set((float)(t - strict) + 0.5f), factor = v_set(scale ? scale[t] : 1);
        for (int s = 0; s < n_pad; s++) diff[s] = s > t ? 0 : (float)(d->sum[t] - d->sum[s]);
        for (int s = 0; s < n_pad; s += W) {
            vf x = v_load(from + t * BLOCK + s) * v_exp(v_load(diff + s)) * factor;
            v_store(to + t * BLOCK + s, v_sel_gt(last, v_iota() + v_set((float)s), x, v_set(0)));
        }
    }
}

/* Rows of `cols` columns (at most PANEL) from or to a panel. */
static void load_panel(float *panel, const float *from, size_t stride, int n, int n_pad, int cols)
{
    if (cols < PANEL) {
        pack_rows(panel, from, stride, n, n_pad, cols, PANEL, 1);
        return;
    }
    for (int r = 0; r < n; r++) {
        UNROLL
        for (int i = 0; i < PANEL; i += W)
            v_store(panel + r * PANEL + i, v_load(from + (size_t)r * stride + i));
    }
    memset(panel + n * PANEL, 0, (size_t)((n_pad - n) * PANEL) * sizeof *panel);
}
static void store_panel(float *to, size_t stride, const float *panel, int n, int cols)
{
    for (int r = 0; r < n; r++) {
        int i = 0;
        for (; i + W <= cols; i += W)
            v_store(to + (size_t)r * stride + i, v_load(panel + r * PANEL + i));
        if (i < cols)
            v_store_n(to + (size_t)r * stride + i, v_load(panel + r * PANEL + i), cols - i);
    }
}

/* A panel of the state: in place where the products can read it there, else a copy. */
struct state_panel {
    float *p;
    size_t ld;
};

static struct state_panel open_state(float *copy, float *h, size_t stride, int n, int n_pad,
                                     int cols)
{
    if (cols == PANEL && n == n_pad && stride <= IN_PLACE) return (struct state_panel){ h, stride };
    load_panel(copy, h, stride, n, n_pad, cols);
    return (struct state_panel){ copy, PANEL };
}
static void close_state(struct state_panel s, float *h, size_t stride, int n, int cols)
{
    if (s.p != h) store_panel(h, stride, s.p, n, cols);
}

static void scale_rows(float *panel, const float *scale, int n)
{
    for (int r = 0; r < n; r++)
        for (int i = 0; i < PANEL; i += W)
            v_store(panel + r * PANEL + i, v_load(panel + r * PANEL + i) * v_set(scale[r]));
}

static int round_up(int n, int to) { return (n + to - 1) / to * to; }

/* ---- Mamba 2 ---- */

struct scan_chunk {
    _Alignas(64) float q[BLOCK * MOST_KEYS], kt[MOST_KEYS * BLOCK]; /* c by token; b transposed */
    float qk[BLOCK * BLOCK], mixed[BLOCK * BLOCK];
    float state[MOST_KEYS * PANEL], u[BLOCK * PANEL], y[BLOCK * PANEL];
    struct operand left_q, left_kt, left_mixed, right;
    struct decays decays;
};

/* Channels [col, col + cols) of one head, n tokens from t0 on. */
static void scan_panel(const struct scan_piece *p, struct scan_chunk *w, int t0, int n, int col,
                       int cols)
{
    int n_pad = round_up(n, PAD), rows = round_up(p->n_state, PAD);
    float *h = p->h + col;
    const struct decays *d = &w->decays;
    float dt[BLOCK] = { 0 };

    for (int t = 0; t < n; t++) dt[t] = p->dt[(size_t)(t0 + t) * p->dt_stride];
    struct state_panel state = open_state(w->state, h, p->h_stride, p->n_state, rows, cols);
    load_panel(w->u, p->x + (size_t)t0 * p->x_stride + col, p->x_stride, n, n_pad, cols);
    for (int t = 0; t < n_pad; t++)
        for (int i = 0; i < PANEL; i += W) {
            vf x = v_load(w->u + t * PANEL + i);
            v_store(w->y + t * PANEL + i, x * v_set(*p->d));
            v_store(w->u + t * PANEL + i, x * v_set(dt[t]));
        }
    make_right(&w->right, state.p, state.ld, rows);
    multiply(&(struct product){ w->y, PANEL, d->from_start, 1 }, &w->left_q, &w->right, n_pad,
             rows);
    make_right(&w->right, w->u, PANEL, n_pad);
    multiply_lower(&(struct product){ w->y, PANEL, NULL, 1 }, &w->left_mixed, &w->right, n_pad);
    store_panel(p->out + (size_t)t0 * p->out_stride + col, p->out_stride, w->y, n, cols);
    scale_rows(w->u, d->to_end, n_pad);
    make_right(&w->right, w->u, PANEL, n_pad);
    multiply(&(struct product){ state.p, state.ld, NULL, d->all }, &w->left_kt, &w->right, rows,
             n_pad);
    close_state(state, h, p->h_stride, p->n_state, cols);
}

/* Heads share b and c, so the product of these is computed once for all. */
static void simd_scan_chunks(const struct scan_piece *first, int heads)
{
    struct scan_chunk w;
    float rows[BLOCK * MOST_KEYS];
    int dim = round_up(first->n_state, PAD);

    for (int t0 = 0; t0 < first->n; t0 += BLOCK) {
        int n = first->n - t0 < BLOCK ? first->n - t0 : BLOCK, n_pad = round_up(n, PAD);
        pack_rows(w.q, first->c + (size_t)t0 * first->c_stride, first->c_stride, n, n_pad,
                  first->n_state, dim, 1);
        pack_rows(rows, first->b + (size_t)t0 * first->b_stride, first->b_stride, n, n_pad,
                  first->n_state, dim, 1);
        transpose_rows(w.kt, rows, n_pad, dim);
        make_left(&w.left_q, w.q, (size_t)dim, n_pad, dim);
        make_left(&w.left_kt, w.kt, BLOCK, dim, n_pad);
        make_right(&w.right, w.kt, BLOCK, dim);
        multiply_to_lower(w.qk, &w.left_q, &w.right, n_pad, dim);
        for (int j = 0; j < heads; j++) {
            struct scan_piece p = *first;
            p.x += j * p.channels;
            p.out += j * p.channels;
            p.dt += j;
            p.h += (size_t)j * (size_t)p.n_state * p.h_stride;
            p.a += j;
            p.d += j;
            sum_decays(&w.decays, p.dt + (size_t)t0 * p.dt_stride, p.dt_stride, *p.a, n, n_pad);
            apply_decays(w.mixed, w.qk, &w.decays, NULL, n_pad, 0);
            make_left(&w.left_mixed, w.mixed, BLOCK, n_pad, n_pad);
            for (int col = 0; col < p.channels; col += PANEL)
                scan_panel(&p, &w, t0, n, col, p.channels - col < PANEL ? p.channels - col : PANEL);
        }
    }
}

/* ---- the gated delta rule ---- */

struct delta_chunk {
    _Alignas(64) float q[BLOCK * MOST_KEYS], k[BLOCK * MOST_KEYS], kt[MOST_KEYS * BLOCK];
    float qk[BLOCK * BLOCK], kk[BLOCK * BLOCK]; /* with decays; kk: times -beta, strictly lower */
    float state[MOST_KEYS * PANEL], u[BLOCK * PANEL], y[BLOCK * PANEL];
    struct operand left_q, left_k, left_kt, left_qk, right;
    struct decays decays;
};

/* Solves u = u + kk u in place, MR rows at a time: first the rows before by a product, then the
 * rows among each other in registers. */
static void solve_lower(const struct delta_chunk *w, float *u, int n_pad)
{
    for (int row = 0; row < n_pad; row += MR) {
        const float *kk = w->kk + row * BLOCK;
        if (row)
            multiply_tile(&(struct product){ u, PANEL, NULL, 1 }, w->kk, BLOCK, u, PANEL, row, row,
                          PANEL_VECS);
        for (int i = 0; i < PANEL; i += W) {
            vf x[MR];
            UNROLL
            for (int r = 0; r < MR; r++) {
                x[r] = v_load(u + (row + r) * PANEL + i);
                UNROLL
                for (int s = 0; s < r; s++)
                    x[r] = v_fma(v_set(kk[r * BLOCK + row + s]), x[s], x[r]);
                v_store(u + (row + r) * PANEL + i, x[r]);
            }
        }
    }
}

/* Columns [col, col + cols) of the state, n tokens from t0 on. */
static void delta_panel(const struct delta_piece *p, struct delta_chunk *w, int t0, int n, int col,
                        int cols)
{
    int n_pad = round_up(n, PAD), rows = round_up(p->dim_k, PAD);
    size_t stride = (size_t)p->dim_v;
    const struct decays *d = &w->decays;

    struct state_panel state = open_state(w->state, p->h + col, stride, p->dim_k, rows, cols);
    make_right(&w->right, state.p, state.ld, rows);
    multiply(&(struct product){ w->u, PANEL, d->from_start, 0 }, &w->left_k, &w->right, n_pad,
             rows);
    load_panel(w->y, p->v + (size_t)t0 * p->v_stride + col, p->v_stride, n, n_pad, cols);
    for (int t = 0; t < n_pad; t++)
        for (int i = t * PANEL; i < (t + 1) * PANEL; i += W)
            v_store(w->u + i,
                    (v_load(w->y + i) - v_load(w->u + i)) * v_set(t < n ? p->beta[t0 + t] : 0));
    solve_lower(w, w->u, n_pad);
    multiply(&(struct product){ w->y, PANEL, d->from_start, 0 }, &w->left_q, &w->right, n_pad,
             rows);
    make_right(&w->right, w->u, PANEL, n_pad);
    multiply_lower(&(struct product){ w->y, PANEL, NULL, 1 }, &w->left_qk, &w->right, n_pad);
    store_panel(p->out + (size_t)t0 * p->out_stride + col, p->out_stride, w->y, n, cols);
    scale_rows(w->u, d->to_end, n_pad);
    make_right(&w->right, w->u, PANEL, n_pad);
    multiply(&(struct product){ state.p, state.ld, NULL, d->all }, &w->left_kt, &w->right, rows,
             n_pad);
    close_state(state, p->h + col, stride, p->dim_k, cols);
}

static void simd_delta_chunks(const struct delta_piece *p)
{
    struct delta_chunk w;
    float dots[BLOCK * BLOCK], minus_beta[BLOCK];
    int dim = round_up(p->dim_k, PAD);

    for (int t0 = 0; t0 < p->n; t0 += BLOCK) {
        int n = p->n - t0 < BLOCK ? p->n - t0 : BLOCK, n_pad = round_up(n, PAD);
        pack_rows(w.q, p->q + (size_t)t0 * p->q_stride, p->q_stride, n, n_pad, p->dim_k, dim,
                  p->q_scale);
        pack_rows(w.k, p->k + (size_t)t0 * p->k_stride, p->k_stride, n, n_pad, p->dim_k, dim,
                  p->k_scale);
        transpose_rows(w.kt, w.k, n_pad, dim);
        sum_decays(&w.decays, p->log_decay + t0, 1, 1, n, n_pad);
        for (int t = 0; t < n_pad; t++) minus_beta[t] = t < n ? -p->beta[t0 + t] : 0;
        make_left(&w.left_q, w.q, (size_t)dim, n_pad, dim);
        make_left(&w.left_k, w.k, (size_t)dim, n_pad, dim);
        make_left(&w.left_kt, w.kt, BLOCK, dim, n_pad);
        make_right(&w.right, w.kt, BLOCK, dim);
        multiply_to_lower(dots, &w.left_k, &w.right, n_pad, dim);
        apply_decays(w.kk, dots, &w.decays, minus_beta, n_pad, 1);
        multiply_to_lower(dots, &w.left_q, &w.right, n_pad, dim);
        apply_decays(w.qk, dots, &w.decays, NULL, n_pad, 0);
        make_left(&w.left_qk, w.qk, BLOCK, n_pad, n_pad);
        for (int col = 0; col < p->dim_v; col += PANEL)
            delta_panel(p, &w, t0, n, col, p->dim_v - col < PANEL ? p->dim_v - col : PANEL);
    }
}
