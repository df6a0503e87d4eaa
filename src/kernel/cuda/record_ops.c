/* record_ops.c - the operations of the GPU's backend table: each checks its arguments and appends
 * itself to the record.
 *
 * An operation of no rows is not recorded. One that the kernels cannot do is refused: the first
 * refusal is kept in the record, and the next sync reports it. */
#include "kernel/cuda/record_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define LEAST_KEYS 256          /* positions of the smallest view that many steps share */
#define EXACT_ROWS 4            /* up to so many tokens F32 weights are multiplied in F32 anyway */
#define EXACT_WORK (1 << 24)    /* multiplications that are cheap enough in F32 */
#define EXACT_WEIGHTS (1 << 16) /* weights of a matrix whose product takes less than a launch */

void record_refuse(struct backend *be, int rc, const char *fmt, ...)
{
    struct record *r = be->self;
    va_list ap;
    int n;

    if (r->rc != OK) return;
    r->rc = rc;
    n = snprintf(r->msg, sizeof r->msg, "%s: ", be->name);
    va_start(ap, fmt);
    vsnprintf(r->msg + n, sizeof r->msg - (size_t)n, fmt, ap);
    va_end(ap);
}

/* ---- parts ---- */

/* The content is compared too, so that a step never matches a graph of an earlier weight at the
 * same address. */
static struct op_weight weight_ref(const struct weight *w)
{
    return (struct op_weight){ .at = w,
                               .packed = w->packed,
                               .rows = w->rows,
                               .cols = w->cols,
                               .n = w->n,
                               .type = (int)w->type,
                               .layout = w->layout };
}

/* Few tokens: max_pos up to the next power of two, so that one graph serves all steps until then. */
static int shared_max_pos(const struct record *r, const struct kvview *kv)
{
    int keys = LEAST_KEYS;

    if (kv->n_tokens > r->share_tokens) return kv->max_pos;
    while (keys <= kv->max_pos && keys < 1 << 30) keys *= 2;
    return keys - 1;
}

/* The index of kv in the record's views. Neighbours mostly share one. */
static int find_or_add_view(struct record *r, const struct kvview *kv)
{
    struct op_view v = {
        kv->layers,           kv->table,    kv->seq,          kv->pos,      kv->seq_end,
        (int)kv->type,        kv->n_layers, kv->table_stride, kv->n_tokens, kv->n_seqs,
        shared_max_pos(r, kv)
    };

    if (r->n_views && memcmp(&r->views[r->n_views - 1], &v, sizeof v) == 0) return r->n_views - 1;
    r->views[r->n_views] = v;
    return r->n_views++;
}

/* The layer's content is copied for the same reason. It also tells fusion the head sizes. */
struct op_kv record_kv_ref(struct record *r, const struct kvview *kv, int layer)
{
    const struct kvlayer *l = &kv->layers[layer];

    return (struct op_kv){ .k = l->k,
                           .v = l->v,
                           .x = l->x,
                           .k_block_bytes = l->k_block_bytes,
                           .v_block_bytes = l->v_block_bytes,
                           .x_block_bytes = l->x_block_bytes,
                           .view = find_or_add_view(r, kv),
                           .layer = layer,
                           .n_kv_heads = l->n_kv_heads,
                           .head_dim = l->head_dim,
                           .head_dim_v = l->head_dim_v,
                           .v_in_k = l->v_in_k,
                           .index_dim = l->index_dim };
}

/* Which slots the runs have is read on the device: the same graph serves other sequences. */
static struct op_state state_ref(const struct stateview *st, float *base, size_t floats)
{
    return (struct op_state){ base, floats, st->runs, st->n_runs, st->n_tokens };
}

/* ---- copies ---- */

/* Copies have no rows of activations: they do not count for record.n_tokens. */
void record_upload(struct record *r, void *dst, const void *src, size_t bytes)
{
    *push_upload(r, 0) = (struct op_upload){ dst, src, bytes };
}

void record_download(struct record *r, void *dst, const void *src, size_t bytes)
{
    *push_download(r, 0) = (struct op_download){ dst, src, bytes };
}

static void record_copy(struct backend *be, void *dst, const void *src, size_t bytes)
{
    if (bytes == 0) return;
    *push_copy(room_for(be, 0), 0) = (struct op_copy){ dst, src, bytes };
}

/* ---- rows ---- */

static void record_embed(struct backend *be, const struct tensor *out, const struct weight *w,
                         const int32_t *ids, float scale)
{
    if (out->rows <= 0) return;
    *push_embed(room_for(be, 0), out->rows) =
        (struct op_embed){ .out = tensor_ref(out), .w = weight_ref(w), .ids = ids, .scale = scale };
}

static void record_gather(struct backend *be, const struct tensor *out, const struct tensor *x,
                          const int32_t *rows)
{
    if (out->rows <= 0) return;
    *push_gather(room_for(be, 0), x->rows) =
        (struct op_gather){ .out = tensor_ref(out), .x = tensor_ref(x), .rows = rows };
}

static void record_rmsnorm(struct backend *be, const struct tensor *out, const struct tensor *x,
                           const float *w, float eps)
{
    if (x->rows <= 0) return;
    *push_norm(room_for(be, 0), x->rows) = (struct op_norm){
        .out = tensor_ref(out), .x = tensor_ref(x), .w = w, .kind = OP_NORM_RMS, .eps = eps
    };
}

static void record_layernorm(struct backend *be, const struct tensor *out, const struct tensor *x,
                             const float *w, const float *b, float eps)
{
    if (x->rows <= 0) return;
    *push_norm(room_for(be, 0), x->rows) = (struct op_norm){ .out = tensor_ref(out),
                                                             .x = tensor_ref(x),
                                                             .w = w,
                                                             .b = b,
                                                             .kind = OP_NORM_LAYER,
                                                             .eps = eps };
}

/* Two operations and not one with a kind: only the RMS norm is part of the fused rope_kv. */
static void record_headnorm(struct backend *be, const struct tensor *x, int n_heads, int head_dim,
                            const float *w, int w_stride, float eps)
{
    if (x->rows <= 0) return;
    *push_headnorm(room_for(be, 0), x->rows) = (struct op_headnorm){ .x = tensor_ref(x),
                                                                     .w = w,
                                                                     .n_heads = n_heads,
                                                                     .head_dim = head_dim,
                                                                     .w_stride = w_stride,
                                                                     .eps = eps };
}

static void record_headnorm_layer(struct backend *be, const struct tensor *x, int n_heads,
                                  int head_dim, const float *w, const float *b, int w_stride,
                                  float eps)
{
    if (x->rows <= 0) return;
    *push_headnorm_layer(room_for(be, 0), x->rows) =
        (struct op_headnorm_layer){ .x = tensor_ref(x),
                                    .w = w,
                                    .b = b,
                                    .n_heads = n_heads,
                                    .head_dim = head_dim,
                                    .w_stride = w_stride,
                                    .eps = eps };
}

static void record_act(struct backend *be, const struct tensor *out, const struct tensor *gate,
                       const struct tensor *up, enum act act)
{
    if (gate->rows <= 0) return;
    *push_act(room_for(be, 0), gate->rows) = (struct op_act){
        .out = tensor_ref(out), .gate = tensor_ref(gate), .up = optional_ref(up), .act = act
    };
}

static void record_add(struct backend *be, const struct tensor *x, const struct tensor *y,
                       float scale)
{
    if (x->rows <= 0) return;
    *push_add(room_for(be, 0), x->rows) =
        (struct op_add){ .x = tensor_ref(x), .y = tensor_ref(y), .scale = scale };
}

static void record_scale(struct backend *be, const struct tensor *x, float scale)
{
    if (x->rows <= 0) return;
    *push_scale(room_for(be, 0), x->rows) = (struct op_scale){ .x = tensor_ref(x), .scale = scale };
}

static void record_softcap(struct backend *be, const struct tensor *x, float cap)
{
    if (x->rows <= 0) return;
    *push_softcap(room_for(be, 0), x->rows) = (struct op_softcap){ .x = tensor_ref(x), .cap = cap };
}

static void record_clamp(struct backend *be, const struct tensor *x, float limit)
{
    if (x->rows <= 0) return;
    *push_clamp(room_for(be, 0), x->rows) = (struct op_clamp){ .x = tensor_ref(x), .limit = limit };
}

static void record_gate_rows(struct backend *be, const struct tensor *x, const struct tensor *s)
{
    if (x->rows <= 0) return;
    *push_gate_rows(room_for(be, 0), x->rows) =
        (struct op_gate_rows){ .x = tensor_ref(x), .s = tensor_ref(s) };
}

/* ---- matrix products ---- */

/* Activations and F32 weights lose digits in F16. Where the product is so small that F32 costs
 * nothing, it is computed in F32. */
static bool is_exact(const struct tensor *x, const struct linear *jobs, int n_jobs)
{
    for (int i = 0; i < n_jobs; i++) {
        const struct weight *w = jobs[i].w;
        int64_t n = (int64_t)w->rows * w->cols;
        bool few =
            n <= EXACT_WEIGHTS && (w->type == DT_F32 || w->type == DT_F16 || w->type == DT_BF16);
        if (!few && (w->type != DT_F32 || x->rows * n > EXACT_WORK)) return false;
    }
    return x->rows > EXACT_ROWS;
}

/* The jobs go into record.jobs; the operation has the index of its first one. */
static void record_linear(struct backend *be, const struct tensor *x, const struct linear *jobs,
                          int n_jobs)
{
    struct record *r = be->self;

    if (r->max_tokens < x->rows) {
        record_refuse(be, E_INVALID,
                      "a matrix product of %d tokens, but memory was reserved for %d", x->rows,
                      r->max_tokens);
        return;
    }
    if (x->rows <= 0 || n_jobs <= 0) return;
    r = room_for(be, n_jobs);
    *push_linear(r, x->rows) = (struct op_linear){ .x = tensor_ref(x),
                                                   .act = ACT_SILU,
                                                   .job = r->n_jobs,
                                                   .n_jobs = n_jobs,
                                                   .exact = is_exact(x, jobs, n_jobs) };
    for (int i = 0; i < n_jobs; i++)
        r->jobs[r->n_jobs++] = (struct op_job){ .out = tensor_ref(&jobs[i].out),
                                                .w = weight_ref(jobs[i].w),
                                                .bias = jobs[i].bias,
                                                .scale = jobs[i].scale,
                                                .add = jobs[i].add };
}

/* dense: without gaps between heads the operation overwrites all of out, which fusion needs to
 * know. */
static void record_linear_heads(struct backend *be, const struct tensor *out,
                                const struct tensor *x, const struct linear_heads_opt *opt)
{
    if (x->rows <= 0) return;
    *push_linear_heads(room_for(be, 0), x->rows) =
        (struct op_linear_heads){ .out = tensor_ref(out),
                                  .x = tensor_ref(x),
                                  .w = weight_ref(opt->w),
                                  .x_step = opt->x_step,
                                  .out_step = opt->out_step,
                                  .tail = opt->tail,
                                  .dense = opt->out_step == opt->w->rows + opt->tail };
}

/* Which experts are chosen hangs on the last digits of the logits: the product that makes them, if
 * it is the operation before, is computed in F32. */
static void make_logits_exact(struct record *r, const struct tensor *logits)
{
    struct op *o = r->n ? &r->ops[r->n - 1] : NULL;

    if (o && o->kind == OP_LINEAR && o->u.linear->n_jobs == 1 &&
        r->jobs[o->u.linear->job].out.data == logits->data)
        o->u.linear->exact = true;
}

static void record_route(struct backend *be, int32_t *ids, float *weights,
                         const struct tensor *logits, const struct route_opt *opt)
{
    struct record *r;

    if (logits->cols > MOE_MAX_EXPERTS || opt->n_groups > MOE_MAX_GROUPS ||
        opt->n_used > MOE_MAX_USED) {
        record_refuse(
            be, E_UNSUPPORTED,
            "%d of %d experts in %d groups; at most %d of %d experts in %d groups are supported",
            opt->n_used, logits->cols, opt->n_groups, MOE_MAX_USED, MOE_MAX_EXPERTS,
            MOE_MAX_GROUPS);
        return;
    }
    if (logits->rows <= 0) return;
    r = room_for(be, 0);
    make_logits_exact(r, logits);
    *push_route(r, logits->rows) = (struct op_route){ .logits = tensor_ref(logits),
                                                      .ids = ids,
                                                      .weights = weights,
                                                      .bias = opt->bias,
                                                      .expert_scale = opt->expert_scale,
                                                      .by_token = opt->by_token,
                                                      .token_ids = opt->by_token ? opt->ids : NULL,
                                                      .route = opt->route,
                                                      .n_used = opt->n_used,
                                                      .n_groups = opt->n_groups,
                                                      .n_groups_used = opt->n_groups_used,
                                                      .group_top = opt->group_top,
                                                      .norm = opt->norm,
                                                      .scale = opt->scale,
                                                      .jitter = opt->jitter,
                                                      .first = -1 };
}

/* The first (last = false) or last weight of an array of n; w NULL: none. */
static struct op_weight expert_ref(const struct weight *w, int n, bool last)
{
    return w ? weight_ref(last ? &w[n - 1] : w) : (struct op_weight){ 0 };
}

static void record_experts(struct backend *be, const struct tensor *out, const struct tensor *x,
                           const int32_t *ids, const float *weights, const struct experts_opt *opt)
{
    size_t n_choices = (size_t)x->rows * (size_t)opt->n_used;

    if (opt->clip.limit != 0 && !opt->gate) {
        record_refuse(be, E_INVALID, "experts with a clipped activation need a gate");
        return;
    }
    if (x->rows <= 0) return;
    *push_experts(room_for(be, 0), x->rows) =
        (struct op_experts){ .out = tensor_ref(out),
                             .x = tensor_ref(x),
                             .ids = ids,
                             .weights = weights,
                             .bytes = n_choices * sizeof(float),
                             .gate = expert_ref(opt->gate, opt->n, false),
                             .gate_last = expert_ref(opt->gate, opt->n, true),
                             .up = expert_ref(opt->up, opt->n, false),
                             .up_last = expert_ref(opt->up, opt->n, true),
                             .down = expert_ref(opt->down, opt->n, false),
                             .down_last = expert_ref(opt->down, opt->n, true),
                             .b_gate = opt->b_gate,
                             .b_up = opt->b_up,
                             .b_down = opt->b_down,
                             .xs = tensor_ref(&opt->xs),
                             .hs = tensor_ref(&opt->hs),
                             .us = tensor_ref(&opt->us),
                             .ys = tensor_ref(&opt->ys),
                             .order = opt->order,
                             .n = opt->n,
                             .n_used = opt->n_used,
                             .act = opt->act,
                             .add = opt->add,
                             .scale = opt->scale,
                             .clip_alpha = opt->clip.alpha,
                             .clip_limit = opt->clip.limit,
                             .clip_plus = opt->clip.plus,
                             .weigh_inputs = opt->weigh_inputs,
                             .n_zero = opt->n_zero };
}

/* ---- attention ---- */

static void record_rope_table(struct backend *be, const struct tensor *table, const int32_t *pos,
                              const float *freq, int n_rot, float mscale)
{
    if (table->rows <= 0) return;
    *push_rope_table(room_for(be, 0), table->rows) = (struct op_rope_table){
        .table = tensor_ref(table), .pos = pos, .freq = freq, .n_rot = n_rot, .mscale = mscale
    };
}

static void record_rope(struct backend *be, const struct tensor *x, int n_heads, int head_dim,
                        int n_rot, const struct tensor *table, enum rope_style style)
{
    if (x->rows <= 0) return;
    *push_rope(room_for(be, 0), x->rows) = (struct op_rope){ .x = tensor_ref(x),
                                                             .table = tensor_ref(table),
                                                             .n_heads = n_heads,
                                                             .head_dim = head_dim,
                                                             .n_rot = n_rot,
                                                             .style = style };
}

static void record_kv_put(struct backend *be, const struct kvview *kv, int layer,
                          const struct tensor *k, const struct tensor *v)
{
    struct record *r;

    if (k->rows <= 0) return;
    r = room_for(be, 0);
    *push_kv_put(r, k->rows) = (struct op_kv_put){ .k = tensor_ref(k),
                                                   .v = optional_ref(v),
                                                   .kv = record_kv_ref(r, kv, layer) };
}

static bool check_attend(struct backend *be, const struct tensor *q, const struct kvview *kv,
                         const struct attend_opt *opt)
{
    const struct record *r = be->self;

    if (r->max_tokens < q->rows)
        record_refuse(be, E_INVALID, "attention of %d tokens, but memory was reserved for %d",
                      q->rows, r->max_tokens);
    else if (opt->bidirectional && !kv->seq_end)
        record_refuse(be, E_INVALID, "bidirectional attention needs the lengths of the sequences");
    else if (opt->bidirectional && opt->chunk > 0)
        record_refuse(be, E_INVALID, "attention in chunks is causal, not bidirectional");
    else return q->rows > 0;
    return false;
}

static void record_attend(struct backend *be, const struct tensor *out, const struct tensor *q,
                          const struct kvview *kv, int layer, const struct attend_opt *opt)
{
    struct record *r;

    if (!check_attend(be, q, kv, opt)) return;
    r = room_for(be, 0);
    *push_attend(r, q->rows) = (struct op_attend){ .out = tensor_ref(out),
                                                   .q = tensor_ref(q),
                                                   .kv = record_kv_ref(r, kv, layer),
                                                   .sinks = opt->sinks,
                                                   .slopes = opt->slopes,
                                                   .keys = opt->keys ? opt->keys->bits : NULL,
                                                   .keys_stride = opt->keys ? opt->keys->stride : 0,
                                                   .keys_heads = opt->keys ? opt->keys->n_heads : 0,
                                                   .chunk = opt->chunk,
                                                   .n_heads = opt->n_heads,
                                                   .n_kv_heads = opt->n_kv_heads,
                                                   .head_dim = opt->head_dim,
                                                   .head_dim_v = opt->head_dim_v,
                                                   .scale = opt->scale,
                                                   .softcap = opt->softcap,
                                                   .window = opt->window,
                                                   .bidirectional = opt->bidirectional,
                                                   .rope = -1 };
}

/* ---- recurrent layers ---- */

/* A wrong size would let the kernel write into another sequence's slot. */
static bool has_state(struct backend *be, const float *base, size_t have, size_t need,
                      const char *op)
{
    if (need == 0 || (base && have >= need)) return true;
    record_refuse(be, E_INVALID, "%s: the state of a sequence has %zu numbers, %zu are needed", op,
                  have, need);
    return false;
}

/* The kernels keep a column of the state in registers. */
static bool fits_kernels(struct backend *be, int rows, bool wide, const char *op)
{
    int most = wide ? RECUR_MAX_ROWS_WIDE : RECUR_MAX_ROWS;

    if (rows >= 1 && rows <= most) return true;
    record_refuse(be, E_UNSUPPORTED, "%s: a state of %d rows; its kernels hold at most %d", op,
                  rows, most);
    return false;
}

/* A convolution of k taps keeps the last k - 1 inputs of every channel. */
static void record_conv(struct backend *be, const struct tensor *out, const struct tensor *x,
                        const struct stateview *st, int layer, const struct conv_opt *opt)
{
    const struct statelayer *y = &st->layers[layer];
    int of = opt->of ? opt->of : x->cols;

    if (opt->at < 0 || opt->at + x->cols > of) {
        record_refuse(be, E_INVALID, "conv: columns %d to %d of a state of %d columns", opt->at,
                      opt->at + x->cols, of);
        return;
    }
    if (opt->k < 1) {
        record_refuse(be, E_UNSUPPORTED, "conv: %d taps, at least 1 is needed", opt->k);
        return;
    }
    if (x->rows <= 0 || st->n_runs <= 0 ||
        !has_state(be, y->conv, y->conv_floats, (size_t)(opt->k - 1) * (size_t)of, "conv"))
        return;
    *push_conv(room_for(be, 0), x->rows) =
        (struct op_conv){ .out = tensor_ref(out),
                          .x = tensor_ref(x),
                          .st = state_ref(st, y->conv, y->conv_floats),
                          .w = opt->w,
                          .bias = opt->bias,
                          .k = opt->k,
                          .silu = opt->silu,
                          .at = opt->at,
                          .of = opt->of };
}

/* The state of a head is [n_state][head_dim]. */
static void record_scan(struct backend *be, const struct tensor *out, const struct scan_in *in,
                        const struct stateview *st, int layer, const struct scan_opt *opt)
{
    const struct statelayer *y = &st->layers[layer];
    size_t need = (size_t)opt->n_heads * (size_t)opt->head_dim * (size_t)opt->n_state;

    if (in->x.rows <= 0 || st->n_runs <= 0 || !has_state(be, y->rec, y->rec_floats, need, "scan") ||
        !fits_kernels(be, opt->n_state, opt->wide, "scan"))
        return;
    *push_scan(room_for(be, 0), in->x.rows) =
        (struct op_scan){ .out = tensor_ref(out),
                          .x = tensor_ref(&in->x),
                          .dt = tensor_ref(&in->dt),
                          .b = tensor_ref(&in->b),
                          .c = tensor_ref(&in->c),
                          .st = state_ref(st, y->rec, y->rec_floats),
                          .a = opt->a,
                          .d = opt->d,
                          .dt_bias = opt->dt_bias,
                          .n_heads = opt->n_heads,
                          .head_dim = opt->head_dim,
                          .n_groups = opt->n_groups,
                          .n_state = opt->n_state,
                          .wide = opt->wide,
                          .dt_min = opt->dt_min,
                          .dt_max = opt->dt_max };
}

/* The state of a head is [dim_k][dim_v]. */
static void record_delta(struct backend *be, const struct tensor *out, const struct delta_in *in,
                         const struct stateview *st, int layer, const struct delta_opt *opt)
{
    const struct statelayer *y = &st->layers[layer];
    size_t need = (size_t)opt->n_heads * (size_t)opt->dim_k * (size_t)opt->dim_v;

    if (in->v.rows <= 0 || st->n_runs <= 0 ||
        !has_state(be, y->rec, y->rec_floats, need, "delta") ||
        !fits_kernels(be, opt->dim_k, false, "delta"))
        return;
    *push_delta(room_for(be, 0), in->v.rows) =
        (struct op_delta){ .out = tensor_ref(out),
                           .q = tensor_ref(&in->q),
                           .k = tensor_ref(&in->k),
                           .v = tensor_ref(&in->v),
                           .alpha = tensor_ref(&in->alpha),
                           .beta = tensor_ref(&in->beta),
                           .st = state_ref(st, y->rec, y->rec_floats),
                           .a = opt->a,
                           .dt_bias = opt->dt_bias,
                           .n_heads = opt->n_heads,
                           .n_k_heads = opt->n_k_heads,
                           .dim_k = opt->dim_k,
                           .dim_v = opt->dim_v,
                           .q_scale = opt->q_scale,
                           .k_scale = opt->k_scale,
                           .beta_scale = opt->beta_scale,
                           .tiled = opt->tiled };
}

/* ---- sums over a group ---- */

static void record_all_reduce(struct backend *be, const struct tensor *x, int wire)
{
    if (x->rows <= 0) return;
    if (x->rows > 1 && x->stride != (size_t)x->cols) {
        record_refuse(be, E_INTERNAL, "a sum of rows of %d numbers that lie %zu apart", x->cols,
                      x->stride);
        return;
    }
    *push_all_reduce(room_for(be, 0), x->rows) =
        (struct op_all_reduce){ .x = tensor_ref(x), .wire = wire };
}

static void record_square_sums(struct backend *be, float *sums, const struct tensor *x, bool counts)
{
    if (x->rows <= 0) return;
    *push_square_sums(room_for(be, 0), x->rows) = (struct op_square_sums){
        .x = tensor_ref(x), .sums = sums, .bytes = (size_t)x->rows * sizeof *sums, .counts = counts
    };
}

static void record_norm_by_sums(struct backend *be, const struct tensor *out,
                                const struct tensor *x, const float *sums, int n, const float *w,
                                float eps)
{
    if (x->rows <= 0) return;
    *push_norm_by_sums(room_for(be, 0), x->rows) =
        (struct op_norm_by_sums){ .out = tensor_ref(out),
                                  .x = tensor_ref(x),
                                  .sums = sums,
                                  .bytes = (size_t)x->rows * sizeof *sums,
                                  .w = w,
                                  .n = n,
                                  .eps = eps };
}

/* ---- sampling ---- */

static void record_sample(struct backend *be, int32_t *ids, const struct tensor *logits,
                          const struct sample_row *rows, int n_rows,
                          const struct logit_adjust *adjust)
{
    if (n_rows <= 0) return;
    *push_sample(room_for(be, 0), logits->rows) = (struct op_sample){
        .logits = tensor_ref(logits), .ids = ids, .rows = rows, .adjust = adjust, .n = n_rows
    };
}

void record_fill_table(struct backend *be)
{
    be->copy = record_copy;
    be->embed = record_embed, be->gather = record_gather;
    be->rmsnorm = record_rmsnorm, be->layernorm = record_layernorm;
    be->headnorm = record_headnorm, be->headnorm_layer = record_headnorm_layer;
    be->linear = record_linear;
    be->rope_table = record_rope_table, be->rope = record_rope;
    be->kv_put = record_kv_put, be->attend = record_attend;
    be->act = record_act, be->add = record_add, be->scale = record_scale;
    be->softcap = record_softcap, be->clamp = record_clamp, be->gate_rows = record_gate_rows;
    be->route = record_route, be->experts = record_experts;
    be->linear_heads = record_linear_heads;
    be->conv = record_conv, be->scan = record_scan, be->delta = record_delta;
    be->all_reduce = record_all_reduce;
    be->square_sums = record_square_sums, be->norm_by_sums = record_norm_by_sums;
    be->sample = record_sample;
    be->features = BACKEND_CHUNKS | BACKEND_INPUT_WEIGHTS | BACKEND_ZERO_EXPERTS |
                   BACKEND_EXPERT_SCALES | BACKEND_BETA_SCALE | BACKEND_CLIPPED_GLU |
                   BACKEND_SQRT_SOFTPLUS | BACKEND_HASH_ROUTES | BACKEND_KEY_CHOICE |
                   BACKEND_CONV_PARTS;
    record_fill_family(be);
}
