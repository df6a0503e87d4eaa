/* recur.c - operations of recurrent layers, cut into pieces for threads.
 *
 * A piece is one run (the tokens of a sequence, see kernel/stateview.h) and some of its channels or
 * one head. Tokens of a run depend on each other, channels and heads do not. The run index changes
 * fastest from piece to piece, so that the pieces of a long run go to different threads.
 *
 * State of a sequence in a layer, as floats:
 *     convolution    [k - 1][cols]                      the last inputs, oldest first
 *     Mamba 1        [n_state][n_heads]                 a head is a channel
 *     Mamba 2        [n_heads][n_state][head_dim]
 *     delta rule     [n_heads][dim_k][dim_v] */
#include "kernel/cpu/recur.h"

#include "kernel/cpu/cpu.h"

#include <math.h>
#include <string.h>

#define CHANNELS 64 /* channels per piece, where channels are independent */
#define CHUNK 64    /* tokens whose gates are computed together */
#define TOGETHER 8  /* heads at most that are scanned together: their states stay in the L2 cache */
#define MANY 16     /* tokens of a run from which on matrix products are faster */

const struct recur *recur_by_name(const char *name)
{
    static const struct recur *const all[] = {
        &recur_ref,
#if defined(__x86_64__)
        &recur_avx2,
        &recur_avx512,
#elif defined(__aarch64__)
        &recur_neon,
#endif
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i]->name, name) == 0 && (i == 0 || vec_runs(name))) return all[i];
    return NULL;
}

/* The layer's state in the view is large enough. */
static bool check_state(struct cpu *c, const float *base, size_t have, size_t need,
                        const char *what)
{
    if (need == 0 || (base && have >= need)) return true;
    cpu_fail(c, E_INVALID,
             "%s: the recurrent state of a sequence has %zu elements, but %zu are needed", what,
             have, need);
    return false;
}

/* ---- convolution ---- */

/* Arguments of run_conv_pieces. */
struct conv {
    const struct cpu *c;
    const struct tensor *out, *x;
    const struct stateview *st;
    const struct statelayer *layer;
    const struct conv_opt *o;
    size_t stride; /* floats of a row of the state */
    int n_blocks;  /* of CHANNELS channels */
};

/* Stores the last k - 1 inputs of a run as its state. In ascending order: row i is made of state
 * rows after i, which are not overwritten yet. */
static void store_conv_state(const struct conv *a, const struct state_run *run, float *state,
                             int col, int n)
{
    int back = a->o->k - 1;

    for (int i = 0; i < back; i++) {
        int from = run->n - back + i;
        const float *src = from >= 0 ? tensor_row(a->x, run->first + from) + col
                                     : state + (size_t)(run->n + i) * a->stride + col;
        memmove(state + (size_t)i * a->stride + col, src, (size_t)n * sizeof *state);
    }
}

/* Channels [col, col + n) of one run, token by token. rows[j] points to the input j tokens after
 * the oldest: in x, or in the state for tokens before the run. */
static void run_conv_piece(const struct conv *a, const struct state_run *run, int col, int n)
{
    const struct conv_opt *o = a->o;
    float *state = a->layer->conv + (size_t)run->slot * a->layer->conv_floats + o->at;
    const float *rows[CONV_MAX];

    if (run->fresh)
        for (int i = 0; i < o->k - 1; i++)
            memset(state + (size_t)i * a->stride + col, 0, (size_t)n * sizeof *state);
    for (int t = 0; t < run->n; t++) {
        float *out = tensor_row(a->out, run->first + t) + col;
        for (int j = 0; j < o->k; j++) {
            int from = t - (o->k - 1) + j;
            rows[j] = from >= 0 ? tensor_row(a->x, run->first + from) + col
                                : state + (size_t)(t + j) * a->stride + col;
        }
        a->c->recur->conv(out, rows, o->w + col, (size_t)a->x->cols, o->bias ? o->bias + col : NULL,
                          o->k, n);
        if (o->silu) a->c->vec->act[ACT_SILU](out, out, NULL, n);
    }
    store_conv_state(a, run, state, col, n);
}

static void run_conv_pieces(const void *arg, int begin, int end)
{
    const struct conv *a = arg;

    for (int i = begin; i < end; i++) {
        int col = i / a->st->n_runs * CHANNELS, left = a->x->cols - col;
        run_conv_piece(a, &a->st->runs[i % a->st->n_runs], col, left < CHANNELS ? left : CHANNELS);
    }
}

void cpu_conv(struct backend *be, const struct tensor *out, const struct tensor *x,
              const struct stateview *st, int layer, const struct conv_opt *opt)
{
    struct cpu *c = cpu_of(be);
    struct conv a = { .c = c,
                      .out = out,
                      .x = x,
                      .st = st,
                      .layer = &st->layers[layer],
                      .o = opt,
                      .stride = (size_t)(opt->of ? opt->of : x->cols),
                      .n_blocks = (x->cols + CHANNELS - 1) / CHANNELS };

    if (opt->k < 1 || opt->k > CONV_MAX) {
        cpu_fail(c, E_UNSUPPORTED, "conv: a kernel size of %d: must be between 1 and %d", opt->k,
                 CONV_MAX);
        return;
    }
    if (!check_state(c, a.layer->conv, a.layer->conv_floats, (size_t)(opt->k - 1) * a.stride,
                     "conv"))
        return;
    cpu_rows(c, a.n_blocks * st->n_runs, (long long)st->n_tokens * x->cols * opt->k,
             run_conv_pieces, &a);
}

/* ---- selective scan ---- */

/* Arguments of scan_heads and scan_channels. */
struct scan {
    const struct cpu *c;
    const struct tensor *out;
    const struct scan_in *in;
    const struct stateview *st;
    const struct statelayer *layer;
    const struct scan_opt *o;
};

/* dt = clamp(softplus(dt + dt_bias)), in place. */
static void softplus_dt_rows(const void *arg, int begin, int end)
{
    const struct scan *a = arg;

    for (int r = begin; r < end; r++)
        a->c->recur->softplus(tensor_row(&a->in->dt, r), a->o->dt_bias, a->o->n_heads, a->o->dt_min,
                              a->o->dt_max);
}

/* The part that all heads of a run share. */
static struct scan_piece make_scan_piece(const struct scan *a, const struct state_run *run)
{
    const struct scan_in *in = a->in;
    return (struct scan_piece){ .n = run->n,
                                .n_state = a->o->n_state,
                                .x = tensor_row(&in->x, run->first),
                                .x_stride = in->x.stride,
                                .dt = tensor_row(&in->dt, run->first),
                                .dt_stride = in->dt.stride,
                                .b = tensor_row(&in->b, run->first),
                                .b_stride = in->b.stride,
                                .c = tensor_row(&in->c, run->first),
                                .c_stride = in->c.stride,
                                .out = tensor_row(a->out, run->first),
                                .out_stride = a->out->stride,
                                .h = a->layer->rec + (size_t)run->slot * a->layer->rec_floats };
}

static void clear_state(const struct scan_piece *p)
{
    for (int r = 0; r < p->n_state; r++)
        memset(p->h + (size_t)r * p->h_stride, 0, (size_t)p->channels * sizeof *p->h);
}

/* Mamba 2. The state of a head is [n_state][head_dim]. Heads of one group that follow each other are
 * scanned together where the kernels can. */
static void scan_heads(const void *arg, int begin, int end)
{
    const struct scan *a = arg;
    const struct scan_opt *o = a->o;
    const struct recur *r = a->c->recur;
    int together = 1;

    for (int i = begin; i < end; i += together) {
        const struct state_run *run = &a->st->runs[i % a->st->n_runs];
        int head = i / a->st->n_runs, per = o->n_heads / o->n_groups, group = head / per;
        struct scan_piece p = make_scan_piece(a, run);
        bool many = r->scan_chunks && run->n >= MANY && o->n_state <= r->most_keys;

        together = many && a->st->n_runs == 1 ? per - head % per : 1;
        if (together > end - i) together = end - i;
        if (together > TOGETHER) together = TOGETHER;

        p.channels = o->head_dim;
        p.x += (size_t)head * (size_t)o->head_dim;
        p.out += (size_t)head * (size_t)o->head_dim;
        p.dt += head;
        p.b += (size_t)group * (size_t)o->n_state;
        p.c += (size_t)group * (size_t)o->n_state;
        p.h += (size_t)head * (size_t)o->n_state * (size_t)o->head_dim;
        p.h_stride = (size_t)o->head_dim;
        p.a = o->a + head;
        p.d = o->d + head;
        if (run->fresh) memset(p.h, 0, (size_t)(together * o->n_state * o->head_dim) * sizeof *p.h);
        if (many) r->scan_chunks(&p, together);
        else r->scan(&p);
    }
}

/* Mamba 1. The state is [n_state][n_heads]: the channels of all heads side by side. */
static void scan_channels(const void *arg, int begin, int end)
{
    const struct scan *a = arg;
    const struct scan_opt *o = a->o;

    for (int i = begin; i < end; i++) {
        const struct state_run *run = &a->st->runs[i % a->st->n_runs];
        int col = i / a->st->n_runs * CHANNELS;
        struct scan_piece p = make_scan_piece(a, run);

        p.channels = o->n_heads - col < CHANNELS ? o->n_heads - col : CHANNELS;
        p.x += col;
        p.out += col;
        p.dt += col;
        p.h += col;
        p.h_stride = p.a_stride = (size_t)o->n_heads;
        p.a = o->a + col;
        p.d = o->d + col;
        if (run->fresh) clear_state(&p);
        a->c->recur->scan_wide(&p);
    }
}

void cpu_scan(struct backend *be, const struct tensor *out, const struct scan_in *in,
              const struct stateview *st, int layer, const struct scan_opt *opt)
{
    struct cpu *c = cpu_of(be);
    struct scan a = {
        .c = c, .out = out, .in = in, .st = st, .layer = &st->layers[layer], .o = opt
    };
    size_t need = (size_t)opt->n_heads * (size_t)opt->head_dim * (size_t)opt->n_state;
    int pieces = opt->wide ? (opt->n_heads + CHANNELS - 1) / CHANNELS : opt->n_heads;

    if (!check_state(c, a.layer->rec, a.layer->rec_floats, need, "scan")) return;
    cpu_rows(c, in->dt.rows, 8ll * in->dt.rows * opt->n_heads, softplus_dt_rows, &a);
    cpu_rows(c, pieces * st->n_runs, (long long)st->n_tokens * (long long)need,
             opt->wide ? scan_channels : scan_heads, &a);
}

/* ---- gated delta rule ---- */

/* Arguments of delta_heads. */
struct delta {
    const struct cpu *c;
    const struct tensor *out;
    const struct delta_in *in;
    const struct stateview *st;
    const struct statelayer *layer;
    const struct delta_opt *o;
};

static void softplus_alpha_rows(const void *arg, int begin, int end)
{
    const struct delta *a = arg;

    for (int r = begin; r < end; r++)
        a->c->recur->softplus(tensor_row(&a->in->alpha, r), a->o->dt_bias, a->o->n_heads, 0,
                              INFINITY);
}

/* One head of one run, CHUNK tokens at a time: decay = e^(a softplus(alpha)), beta =
 * sigmoid(beta). */
static void delta_head(const struct delta *a, const struct state_run *run, int head)
{
    const struct delta_in *in = a->in;
    const struct delta_opt *o = a->o;
    size_t group = (size_t)delta_key_head(o, head), floats = (size_t)o->dim_k * (size_t)o->dim_v;
    float decay[CHUNK], log_decay[CHUNK], beta[CHUNK];
    const struct recur *r = a->c->recur;
    struct delta_piece p = { .dim_k = o->dim_k,
                             .dim_v = o->dim_v,
                             .q_stride = in->q.stride,
                             .k_stride = in->k.stride,
                             .v_stride = in->v.stride,
                             .decay = decay,
                             .log_decay = log_decay,
                             .beta = beta,
                             .q_scale = o->q_scale,
                             .k_scale = o->k_scale,
                             .out_stride = a->out->stride,
                             .h = a->layer->rec + (size_t)run->slot * a->layer->rec_floats +
                                  (size_t)head * floats };

    if (run->fresh) memset(p.h, 0, floats * sizeof *p.h);
    for (int t0 = 0; t0 < run->n; t0 += CHUNK) {
        int row = run->first + t0;
        p.n = run->n - t0 < CHUNK ? run->n - t0 : CHUNK;
        for (int t = 0; t < p.n; t++) {
            log_decay[t] = o->a[head] * tensor_row(&in->alpha, row + t)[head];
            decay[t] = expf(log_decay[t]);
            beta[t] = (o->beta_scale != 0 ? o->beta_scale : 1) /
                      (1 + expf(-tensor_row(&in->beta, row + t)[head]));
        }
        p.q = tensor_row(&in->q, row) + group * (size_t)o->dim_k;
        p.k = tensor_row(&in->k, row) + group * (size_t)o->dim_k;
        p.v = tensor_row(&in->v, row) + (size_t)head * (size_t)o->dim_v;
        p.out = tensor_row(a->out, row) + (size_t)head * (size_t)o->dim_v;
        if (r->delta_chunks && p.n >= MANY && o->dim_k <= r->most_keys) r->delta_chunks(&p);
        else r->delta(&p);
    }
}

static void delta_heads(const void *arg, int begin, int end)
{
    const struct delta *a = arg;

    for (int i = begin; i < end; i++)
        delta_head(a, &a->st->runs[i % a->st->n_runs], i / a->st->n_runs);
}

void cpu_delta(struct backend *be, const struct tensor *out, const struct delta_in *in,
               const struct stateview *st, int layer, const struct delta_opt *opt)
{
    struct cpu *c = cpu_of(be);
    struct delta a = {
        .c = c, .out = out, .in = in, .st = st, .layer = &st->layers[layer], .o = opt
    };
    size_t need = (size_t)opt->n_heads * (size_t)opt->dim_k * (size_t)opt->dim_v;

    if (!check_state(c, a.layer->rec, a.layer->rec_floats, need, "delta")) return;
    cpu_rows(c, in->alpha.rows, 8ll * in->alpha.rows * opt->n_heads, softplus_alpha_rows, &a);
    cpu_rows(c, opt->n_heads * st->n_runs, 2ll * st->n_tokens * (long long)need, delta_heads, &a);
}
