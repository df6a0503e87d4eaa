/* Recurrent operations on the CPU (convolution, selective scan, gated delta rule): every
 * instruction set against plain loops.
 *
 * The plain loops process each sequence at once; the kernels process the same sequences in
 * chunks of random length in mixed batches. Inputs are random. Reads no files. */
#include "support.h"

#include "base/mem.h"
#include "base/rng.h"
#include "kernel/backend.h"
#include "kernel/cpu/cpu.h"
#include "kernel/cpu/recur.h"
#include "kv/statestore.h"

#include <math.h>
#include <string.h>

#define SEQS 4
#define LEN 90 /* length of the longest sequence in tokens */

static const char *const sets[] = { "reference", "avx2", "avx512", "neon" };
static const int lens[SEQS] = { LEN, 1, 17, 70 };
static struct rng rng;

static int below(int n) { return (int)(rng_u64(&rng) % (uint64_t)n); }

static float *random_values(int n, float scale)
{
    float *x = mem_array((size_t)n, sizeof *x);
    for (int i = 0; i < n; i++) x[i] = rng_normal(&rng) * scale;
    return x;
}

static void assert_close(const char *what, const float *got, const float *want, int n, double tol)
{
    double most = 0, diff = 0;
    for (int i = 0; i < n; i++) {
        most = fmax(most, fabs((double)want[i]));
        diff = fmax(diff, fabs((double)got[i] - want[i]));
    }
    if (!(diff <= tol * fmax(most, 1e-3)))
        fail_msg("%s: the error is %g, the largest value %g", what, diff, most);
}

/* ---- batches: the next chunk of some sequences, in changing order ---- */

struct world {
    struct backend *be;
    struct state_store *pool;
    struct stateview view;
    int slot[SEQS], done[SEQS];
    struct state_run runs[SEQS];
    int seq[SEQS]; /* sequence of each run */
};

static void world_open(struct world *w, const char *set, int n_threads, struct stateshape shape)
{
    struct err e = { 0 };

    *w = (struct world){ 0 };
    if (backend_open(&w->be, &(struct backend_opt){ .n_threads = n_threads }, &e) != OK)
        fail_msg("%s", e.msg);
    cpu_of(w->be)->recur = recur_by_name(set);
    if (state_store_open(&w->pool, &(struct backend_share){ w->be, 2 }, 1,
                         (struct stateshape[]){ { 0 }, shape }, SEQS + 1, &e) != OK)
        fail_msg("%s", e.msg);
    state_store_view(w->pool, &w->view);
    for (int s = 0; s < SEQS; s++) {
        w->slot[s] = SEQS - s;
        if (shape.rec)
            memset(w->view.layers[1].rec + (size_t)w->slot[s] * w->view.layers[1].rec_floats, 0x55,
                   64);
    }
    w->view.runs = w->runs;
}

static void world_close(struct world *w)
{
    struct err e = { 0 };
    if (w->be->sync(w->be, &e) != OK) fail_msg("%s", e.msg);
    state_store_close(w->pool);
    backend_close(w->be);
}

/* Fills the runs of the next batch; false: all sequences are done. */
static bool next_batch(struct world *w)
{
    int turn = below(SEQS);

    w->view.n_runs = w->view.n_tokens = 0;
    for (int i = 0; i < SEQS; i++) {
        int s = (i + turn) % SEQS, left = lens[s] - w->done[s], n;
        if (left == 0 || below(4) == 0) continue;
        n = below(2) ? 1 : 1 + below(40);
        if (n > left) n = left;
        w->seq[w->view.n_runs] = s;
        w->runs[w->view.n_runs++] =
            (struct state_run){ w->slot[s], w->view.n_tokens, n, w->done[s] == 0 };
        w->view.n_tokens += n;
    }
    for (int s = 0; s < SEQS; s++)
        if (w->done[s] < lens[s]) return true;
    return false;
}

/* Makes the batch's rows from the tokens of each sequence ([SEQS][LEN][cols]), with a gap after
 * each row. */
static struct tensor gather_rows(const struct world *w, const float *all, int cols)
{
    struct tensor t = { DT_F32, w->view.n_tokens, cols, (size_t)cols + 3, NULL };
    float *data = mem_array((size_t)(t.rows + 1) * t.stride, sizeof *data);

    t.data = data;
    for (int r = 0; r < w->view.n_runs; r++)
        for (int i = 0; i < w->runs[r].n; i++)
            memcpy(tensor_row(&t, w->runs[r].first + i),
                   all +
                       ((size_t)w->seq[r] * LEN + (size_t)(w->done[w->seq[r]] + i)) * (size_t)cols,
                   (size_t)cols * sizeof *data);
    return t;
}

static void scatter_rows(const struct world *w, const struct tensor *t, float *all)
{
    for (int r = 0; r < w->view.n_runs; r++)
        for (int i = 0; i < w->runs[r].n; i++)
            memcpy(all + ((size_t)w->seq[r] * LEN + (size_t)(w->done[w->seq[r]] + i)) *
                             (size_t)t->cols,
                   tensor_row(t, w->runs[r].first + i), (size_t)t->cols * sizeof(float));
}

/* Marks the tokens of the batch as processed. */
static void finish_batch(struct world *w)
{
    for (int r = 0; r < w->view.n_runs; r++) w->done[w->seq[r]] += w->runs[r].n;
}

static void assert_all_close(const char *what, const float *got, const float *want, int cols,
                             double tol)
{
    for (int s = 0; s < SEQS; s++)
        assert_close(what, got + (size_t)s * LEN * (size_t)cols,
                     want + (size_t)s * LEN * (size_t)cols, lens[s] * cols, tol);
}

/* ---- convolution ---- */

static double silu(double x) { return x / (1 + exp(-x)); }

static void conv_plain(float *out, const float *x, const struct conv_opt *o, int cols)
{
    for (int s = 0; s < SEQS; s++)
        for (int t = 0; t < lens[s]; t++)
            for (int c = 0; c < cols; c++) {
                double sum = o->bias ? (double)o->bias[c] : 0;
                for (int j = 0; j < o->k; j++) {
                    int from = t - o->k + 1 + j;
                    if (from >= 0)
                        sum += (double)o->w[j * cols + c] *
                               x[((size_t)s * LEN + (size_t)from) * (size_t)cols + (size_t)c];
                }
                out[((size_t)s * LEN + (size_t)t) * (size_t)cols + (size_t)c] =
                    (float)(o->silu ? silu(sum) : sum);
            }
}

static void a_convolution_continues_across_chunks_in_mixed_batches(void **state)
{
    static const int shapes[][2] = { { 1, 5 },  { 2, 16 },  { 3, 64 },
                                     { 4, 67 }, { 4, 160 }, { 7, 130 } };
    (void)state;

    for (size_t set = 0; set < sizeof sets / sizeof *sets; set++)
        for (size_t i = 0; i < 6 && recur_by_name(sets[set]); i++) {
            int k = shapes[i][0], cols = shapes[i][1], n = SEQS * LEN * cols;
            float *x = random_values(n, 1), *w = random_values(k * cols, 0.5f),
                  *b = random_values(cols, 1), *want = random_values(n, 0),
                  *got = random_values(n, 0);
            struct conv_opt o = { .w = w, .bias = i % 2 ? b : NULL, .k = k, .silu = i % 3 != 0 };
            struct world world;

            world_open(&world, sets[set], 1 + (int)(i % 2), (struct stateshape){ k - 1, cols, 1 });
            conv_plain(want, x, &o, cols);
            while (next_batch(&world)) {
                struct tensor in = gather_rows(&world, x, cols), out = gather_rows(&world, x, cols);
                world.be->conv(world.be, &out, &in, &world.view, 1, &o);
                scatter_rows(&world, &out, got);
                finish_batch(&world);
                mem_free(in.data), mem_free(out.data);
            }
            assert_all_close("conv", got, want, cols, 1e-6);
            world_close(&world);
            mem_free(x), mem_free(w), mem_free(b), mem_free(want), mem_free(got);
        }
}

/* ---- selective scan ---- */

static double softplus(double x) { return x > 20 ? x : log1p(exp(x)); }

struct scan_world {
    float *x, *dt, *b, *c, *a, *d, *bias, *want, *got;
};

static void scan_plain(const struct scan_world *w, const struct scan_opt *o)
{
    int cols = o->n_heads * o->head_dim, nb = o->n_groups * o->n_state;
    double *h = mem_array((size_t)(cols * o->n_state), sizeof *h);

    for (int s = 0; s < SEQS; s++) {
        memset(h, 0, (size_t)(cols * o->n_state) * sizeof *h);
        for (int t = 0; t < lens[s]; t++)
            for (int i = 0; i < cols; i++) {
                size_t row = (size_t)(s * LEN + t);
                int head = i / o->head_dim, g = head / (o->n_heads / o->n_groups);
                double x = w->x[row * (size_t)cols + (size_t)i], y = (double)o->d[head] * x;
                double dt = softplus((double)w->dt[row * (size_t)o->n_heads + (size_t)head] +
                                     o->dt_bias[head]);
                dt = fmin(fmax(dt, (double)o->dt_min), (double)o->dt_max);
                for (int n = 0; n < o->n_state; n++) {
                    double a = o->wide ? o->a[n * o->n_heads + head] : o->a[head],
                           *hn = h + i * o->n_state + n;
                    *hn = exp(dt * a) * *hn +
                          dt * x * w->b[row * (size_t)nb + (size_t)(g * o->n_state + n)];
                    y += *hn * w->c[row * (size_t)nb + (size_t)(g * o->n_state + n)];
                }
                w->want[row * (size_t)cols + (size_t)i] = (float)y;
            }
    }
    mem_free(h);
}

static void scan_world_open(struct scan_world *w, struct scan_opt *o)
{
    int cols = o->n_heads * o->head_dim, rows = SEQS * LEN,
        n_a = o->wide ? o->n_heads * o->n_state : o->n_heads;

    *w = (struct scan_world){ random_values(rows * cols, 1),
                              random_values(rows * o->n_heads, 2),
                              random_values(rows * o->n_groups * o->n_state, 1),
                              random_values(rows * o->n_groups * o->n_state, 1),
                              random_values(n_a, 1),
                              random_values(o->n_heads, 1),
                              random_values(o->n_heads, 1),
                              random_values(rows * cols, 0),
                              random_values(rows * cols, 0) };
    for (int i = 0; i < n_a; i++) w->a[i] = -expf(w->a[i]);
    o->a = w->a, o->d = w->d, o->dt_bias = w->bias;
    scan_plain(w, o);
}

static void scan_world_close(struct scan_world *w)
{
    float *all[] = { w->x, w->dt, w->b, w->c, w->a, w->d, w->bias, w->want, w->got };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mem_free(all[i]);
}

static void scan_batches(struct world *w, struct scan_world *s, const struct scan_opt *o)
{
    int nb = o->n_groups * o->n_state, cols = o->n_heads * o->head_dim;

    while (next_batch(w)) {
        struct scan_in in = { gather_rows(w, s->x, cols), gather_rows(w, s->dt, o->n_heads),
                              gather_rows(w, s->b, nb), gather_rows(w, s->c, nb) };
        struct tensor out = gather_rows(w, s->x, cols);
        w->be->scan(w->be, &out, &in, &w->view, 1, o);
        scatter_rows(w, &out, s->got);
        finish_batch(w);
        mem_free(in.x.data), mem_free(in.dt.data), mem_free(in.b.data), mem_free(in.c.data),
            mem_free(out.data);
    }
}

static void a_selective_scan_continues_across_chunks_in_mixed_batches(void **state)
{
    static const struct scan_opt shapes[] = {
        { .n_heads = 1, .head_dim = 3, .n_groups = 1, .n_state = 5, .dt_max = INFINITY },
        { .n_heads = 8, .head_dim = 16, .n_groups = 1, .n_state = 16, .dt_max = INFINITY },
        { .n_heads = 6,
          .head_dim = 20,
          .n_groups = 3,
          .n_state = 33,
          .dt_min = 0.1f,
          .dt_max = 0.7f },
        { .n_heads = 2, .head_dim = 64, .n_groups = 2, .n_state = 128, .dt_max = INFINITY },
        { .n_heads = 7,
          .head_dim = 1,
          .n_groups = 1,
          .n_state = 3,
          .wide = true,
          .dt_max = INFINITY },
        { .n_heads = 128,
          .head_dim = 1,
          .n_groups = 1,
          .n_state = 16,
          .wide = true,
          .dt_max = INFINITY },
        { .n_heads = 150, .head_dim = 1, .n_groups = 1, .n_state = 41, .wide = true, .dt_max = 1 },
    };
    (void)state;

    for (size_t set = 0; set < sizeof sets / sizeof *sets; set++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes && recur_by_name(sets[set]); i++) {
            struct scan_opt o = shapes[i];
            struct scan_world s;
            struct world w;

            scan_world_open(&s, &o);
            world_open(&w, sets[set], 1 + (int)(i % 2),
                       (struct stateshape){ .rec = o.n_heads * o.head_dim * o.n_state });
            scan_batches(&w, &s, &o);
            assert_all_close("scan", s.got, s.want, o.n_heads * o.head_dim, 3e-6);
            world_close(&w);
            scan_world_close(&s);
        }
}

/* ---- gated delta rule ---- */

struct delta_world {
    float *q, *k, *v, *alpha, *beta, *a, *bias, *want, *got;
};

static void delta_plain(const struct delta_world *w, const struct delta_opt *o)
{
    int nk = o->n_k_heads * o->dim_k, nv = o->n_heads * o->dim_v;
    double *h = mem_array((size_t)(o->dim_k * o->dim_v), sizeof *h);

    for (int s = 0; s < SEQS; s++)
        for (int head = 0; head < o->n_heads; head++) {
            memset(h, 0, (size_t)(o->dim_k * o->dim_v) * sizeof *h);
            for (int t = 0; t < lens[s]; t++) {
                size_t row = (size_t)(s * LEN + t);
                int key = o->tiled ? head % o->n_k_heads : head / (o->n_heads / o->n_k_heads);
                const float *q = w->q + row * (size_t)nk + key * o->dim_k;
                const float *k = w->k + row * (size_t)nk + key * o->dim_k;
                double g = exp(o->a[head] *
                               softplus((double)w->alpha[row * (size_t)o->n_heads + (size_t)head] +
                                        o->dt_bias[head]));
                double beta =
                    1 / (1 + exp(-(double)w->beta[row * (size_t)o->n_heads + (size_t)head]));
                for (int i = 0; i < o->dim_v; i++) {
                    double known = 0, y = 0, add;
                    for (int j = 0; j < o->dim_k; j++)
                        known += (h[j * o->dim_v + i] *= g) * k[j] * o->k_scale;
                    add = beta *
                          ((double)w->v[row * (size_t)nv + (size_t)(head * o->dim_v + i)] - known);
                    for (int j = 0; j < o->dim_k; j++)
                        y += (h[j * o->dim_v + i] += k[j] * o->k_scale * add) * q[j] * o->q_scale;
                    w->want[row * (size_t)nv + (size_t)(head * o->dim_v + i)] = (float)y;
                }
            }
        }
    mem_free(h);
}

static void delta_world_open(struct delta_world *w, struct delta_opt *o)
{
    int rows = SEQS * LEN, nk = o->n_k_heads * o->dim_k, nv = o->n_heads * o->dim_v;

    *w = (struct delta_world){
        random_values(rows * nk, 1),         random_values(rows * nk, 1),
        random_values(rows * nv, 1),         random_values(rows * o->n_heads, 2),
        random_values(rows * o->n_heads, 2), random_values(o->n_heads, 1),
        random_values(o->n_heads, 1),        random_values(rows * nv, 0),
        random_values(rows * nv, 0)
    };
    for (int i = 0; i < o->n_heads; i++) w->a[i] = -expf(w->a[i]);
    o->a = w->a, o->dt_bias = w->bias;
    o->k_scale = 0.5f / sqrtf((float)o->dim_k);
    o->q_scale = 0.3f;
    delta_plain(w, o);
}

static void delta_batches(struct world *w, struct delta_world *s, const struct delta_opt *o)
{
    int nk = o->n_k_heads * o->dim_k, nv = o->n_heads * o->dim_v;

    while (next_batch(w)) {
        struct delta_in in = { gather_rows(w, s->q, nk), gather_rows(w, s->k, nk),
                               gather_rows(w, s->v, nv), gather_rows(w, s->alpha, o->n_heads),
                               gather_rows(w, s->beta, o->n_heads) };
        struct tensor out = gather_rows(w, s->v, nv);
        w->be->delta(w->be, &out, &in, &w->view, 1, o);
        scatter_rows(w, &out, s->got);
        finish_batch(w);
        mem_free(in.q.data), mem_free(in.k.data), mem_free(in.v.data);
        mem_free(in.alpha.data), mem_free(in.beta.data), mem_free(out.data);
    }
}

static void the_delta_rule_continues_across_chunks_in_mixed_batches(void **state)
{
    static const struct delta_opt shapes[] = {
        { .n_heads = 1, .n_k_heads = 1, .dim_k = 3, .dim_v = 5 },
        { .n_heads = 4, .n_k_heads = 2, .dim_k = 16, .dim_v = 16 },
        { .n_heads = 6, .n_k_heads = 2, .dim_k = 33, .dim_v = 70 },
        { .n_heads = 6, .n_k_heads = 2, .dim_k = 16, .dim_v = 32, .tiled = true },
        { .n_heads = 2, .n_k_heads = 2, .dim_k = 128, .dim_v = 128 },
    };
    (void)state;

    for (size_t set = 0; set < sizeof sets / sizeof *sets; set++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes && recur_by_name(sets[set]); i++) {
            struct delta_opt o = shapes[i];
            struct delta_world s;
            struct world w;
            float *all[9];

            delta_world_open(&s, &o);
            world_open(&w, sets[set], 1 + (int)(i % 2),
                       (struct stateshape){ .rec = o.n_heads * o.dim_k * o.dim_v });
            delta_batches(&w, &s, &o);
            assert_all_close("delta", s.got, s.want, o.n_heads * o.dim_v, 5e-6);
            world_close(&w);
            memcpy(all, &s, sizeof s);
            for (int j = 0; j < 9; j++) mem_free(all[j]);
        }
}

/* ---- many tokens by matrix products ---- */

static const int borders[] = { 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 200 };
static const float decays[] = { 1e-5f, 0.05f, 3, 500, INFINITY }; /* of a token, as -log */

/* Both from the same state that is not zero. */
static void compare_scans(const struct recur *r, int n, int heads, int channels, int n_state,
                          float decay, double tol)
{
    int cols = heads * channels, floats = cols * n_state;
    float *x = random_values(n * cols, 1), *dt = random_values(n * heads, 1),
          *b = random_values(n * n_state, 1), *c = random_values(n * n_state, 1),
          *h = random_values(floats, 1), *want_h = random_values(floats, 0),
          *out = random_values(n * cols, 0), *want = random_values(n * cols, 0),
          *a = random_values(heads, 0), *d = random_values(heads, 1);
    struct scan_piece p = { n,
                            channels,
                            n_state,
                            x,
                            dt,
                            b,
                            c,
                            (size_t)cols,
                            (size_t)heads,
                            (size_t)n_state,
                            (size_t)n_state,
                            out,
                            (size_t)cols,
                            h,
                            (size_t)channels,
                            a,
                            0,
                            d };

    memcpy(want_h, h, (size_t)floats * sizeof *h);
    for (int i = 0; i < heads; i++) a[i] = decay == INFINITY ? -1e30f : -decay * (float)(i + 1);
    for (int i = 0; i < n * heads; i++) dt[i] = 0.1f + fabsf(dt[i]);
    for (int i = 0; i < heads; i++) {
        struct scan_piece one = p;
        one.x += i * channels, one.dt += i, one.a += i, one.d += i;
        one.out = want + i * channels;
        one.h = want_h + i * channels * n_state;
        recur_ref.scan(&one);
    }
    r->scan_chunks(&p, heads);
    assert_close("outputs of scan_chunks", out, want, n * cols, tol);
    assert_close("state of scan_chunks", h, want_h, floats, tol);
    mem_free(x), mem_free(dt), mem_free(b), mem_free(c), mem_free(h), mem_free(want_h);
    mem_free(out), mem_free(want), mem_free(a), mem_free(d);
}

static void compare_deltas(const struct recur *r, int n, int dim_k, int dim_v, float decay,
                           double tol)
{
    int floats = dim_k * dim_v;
    float *q = random_values(n * dim_k, 1), *k = random_values(n * dim_k, 1),
          *v = random_values(n * dim_v, 1), *h = random_values(floats, 1),
          *want_h = random_values(floats, 0), *out = random_values(n * dim_v, 0),
          *want = random_values(n * dim_v, 0), *factor = random_values(n, 0),
          *log_factor = random_values(n, 1), *beta = random_values(n, 1);
    struct delta_piece p = { .n = n,
                             .dim_k = dim_k,
                             .dim_v = dim_v,
                             .q = q,
                             .k = k,
                             .v = v,
                             .q_stride = (size_t)dim_k,
                             .k_stride = (size_t)dim_k,
                             .v_stride = (size_t)dim_v,
                             .decay = factor,
                             .log_decay = log_factor,
                             .beta = beta,
                             .q_scale = 0.2f,
                             .k_scale = 0.7f / sqrtf((float)dim_k),
                             .out = want,
                             .out_stride = (size_t)dim_v,
                             .h = want_h };

    memcpy(want_h, h, (size_t)floats * sizeof *h);
    for (int i = 0; i < n; i++) {
        log_factor[i] = -decay * (0.1f + fabsf(log_factor[i]));
        factor[i] = expf(log_factor[i]);
        beta[i] = 2 / (1 + expf(beta[i])); /* up to 2, as with beta_scale */
    }
    recur_ref.delta(&p);
    p.out = out;
    p.h = h;
    r->delta_chunks(&p);
    assert_close("outputs of delta_chunks", out, want, n * dim_v, tol);
    assert_close("state of delta_chunks", h, want_h, floats, tol);
    mem_free(q), mem_free(k), mem_free(v), mem_free(h), mem_free(want_h), mem_free(out);
    mem_free(want), mem_free(factor), mem_free(log_factor), mem_free(beta);
}

static void matrix_products_give_what_a_loop_over_tokens_gives(void **state)
{
    static const int scans[][3] = { { 1, 3, 5 }, { 3, 20, 33 }, { 2, 64, 128 }, { 1, 80, 256 } };
    static const int deltas[][2] = { { 3, 5 }, { 33, 70 }, { 128, 128 }, { 256, 16 } };
    (void)state;

    for (size_t set = 1; set < sizeof sets / sizeof *sets; set++) {
        const struct recur *r = recur_by_name(sets[set]);
        for (size_t i = 0; r && i < sizeof borders / sizeof *borders; i++)
            for (size_t d = 0; d < sizeof decays / sizeof *decays; d++)
                for (size_t k = 0; k < 4; k++) {
                    compare_scans(r, borders[i], scans[k][0], scans[k][1], scans[k][2], decays[d],
                                  5e-6);
                    compare_deltas(r, borders[i], deltas[k][0], deltas[k][1], decays[d], 1e-5);
                }
    }
}

/* ---- slots ---- */

static void a_state_that_is_too_small_is_refused(void **state)
{
    struct conv_opt o = { .w = (float[8]){ 0 }, .k = 4 };
    struct tensor x = tensor_f32((float[2]){ 0 }, 1, 2), out = tensor_f32((float[2]){ 0 }, 1, 2);
    struct err e = { 0 };
    struct world w;
    (void)state;

    world_open(&w, "reference", 1, (struct stateshape){ 1, 2, 0 });
    w.runs[0] = (struct state_run){ 0, 0, 1, 1 };
    w.view.n_runs = w.view.n_tokens = 1;
    ((struct statelayer *)w.view.layers)[1].conv_floats = 2;
    w.be->conv(w.be, &out, &x, &w.view, 1, &o);
    assert_int_equal(w.be->sync(w.be, &e), E_INVALID);
    o.k = CONV_MAX + 1;
    w.be->conv(w.be, &out, &x, &w.view, 1, &o);
    assert_int_equal(w.be->sync(w.be, &e), E_UNSUPPORTED);
    world_close(&w);
}

static void softplus_is_exact_to_a_few_ulp(void **state)
{
    float x[301], got[301], want[301], bias[301];
    (void)state;

    for (size_t set = 0; set < sizeof sets / sizeof *sets; set++) {
        const struct recur *r = recur_by_name(sets[set]);
        for (int n = 1; r && n <= 301; n += 50) {
            for (int i = 0; i < n; i++) x[i] = (float)i / 2 - 60, bias[i] = rng_normal(&rng);
            memcpy(got, x, sizeof x), memcpy(want, x, sizeof x);
            r->softplus(got, bias, n, 0, INFINITY);
            for (int i = 0; i < n; i++) {
                double w = softplus((double)(x[i] + bias[i]));
                if (fabs((double)got[i] - w) > 4e-6 * w)
                    fail_msg("softplus(%g) is %.9g, expected %.9g", (double)x[i] + bias[i],
                             (double)got[i], w);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softplus_is_exact_to_a_few_ulp),
        cmocka_unit_test(a_convolution_continues_across_chunks_in_mixed_batches),
        cmocka_unit_test(a_selective_scan_continues_across_chunks_in_mixed_batches),
        cmocka_unit_test(the_delta_rule_continues_across_chunks_in_mixed_batches),
        cmocka_unit_test(matrix_products_give_what_a_loop_over_tokens_gives),
        cmocka_unit_test(a_state_that_is_too_small_is_refused),
    };
    rng_seed(&rng, 7);
    return cmocka_run_group_tests_name("recur", tests, NULL, NULL);
}
