#include "kernel/cuda/record.h"

#include "base/mem.h"

#define JOBS_PER_OP 2
#define LEAST_KEYS 256       /* of a view that many steps share */
#define EXACT_ROWS 4         /* up to these F32 weights are multiplied exactly anyway */
#define EXACT_WORK (1 << 24) /* multiplications of a product that is cheap enough in F32 */
#define FEW_WEIGHTS \
    (1 << 16) /* numbers of a matrix that is sooner multiplied than a kernel begins */

int record_init(struct record *r, int cap, int few, struct err *e)
{
    *r = (struct record){ .cap = cap, .cap_jobs = cap * JOBS_PER_OP, .cap_views = cap, .few = few };
    r->ops = mem_array((size_t)r->cap, sizeof *r->ops);
    r->jobs = mem_array((size_t)r->cap_jobs, sizeof *r->jobs);
    r->views = mem_array((size_t)r->cap_views, sizeof *r->views);
    if (r->ops && r->jobs && r->views) return OK;
    record_release(r);
    return err_set(e, E_NOMEM, "no memory for a record of %d operations", cap);
}

void record_release(struct record *r)
{
    mem_free(r->ops);
    mem_free(r->jobs);
    mem_free(r->views);
    *r = (struct record){ 0 };
}

void record_clear(struct record *r)
{
    r->n = r->n_jobs = r->n_views = r->n_tokens = 0;
    r->fused = false;
}

bool record_has_room(const struct record *r, int n_jobs)
{
    return r->n < r->cap && r->n_views < r->cap_views && r->n_jobs + n_jobs <= r->cap_jobs;
}

static struct op *next(struct record *r, enum op_kind kind)
{
    struct op *o = &r->ops[r->n++];

    o->kind = kind;
    o->gone = false;
    return o;
}

/* The row count of the batch is the largest of any operation on it. */
static void note_rows(struct record *r, const struct tensor *t)
{
    if (t->rows > r->n_tokens) r->n_tokens = t->rows;
}

void record_copy(struct record *r, enum op_kind kind, void *dst, const void *src, size_t bytes)
{
    struct op *o = next(r, kind);

    o->u.copy.dst = dst;
    o->u.copy.src = src;
    o->u.copy.bytes = bytes;
}

void record_embed(struct record *r, const struct tensor *out, const struct weight *w,
                  const int32_t *ids, float scale)
{
    struct op *o = next(r, OP_EMBED);

    o->u.embed.out = *out;
    o->u.embed.w = w;
    o->u.embed.ids = ids;
    o->u.embed.scale = scale;
    note_rows(r, out);
}

void record_gather(struct record *r, const struct tensor *out, const struct tensor *x,
                   const int32_t *rows)
{
    struct op *o = next(r, OP_GATHER);

    o->u.gather.out = *out;
    o->u.gather.x = *x;
    o->u.gather.rows = rows;
    note_rows(r, x);
}

void record_norm(struct record *r, enum op_norm kind, const struct tensor *out,
                 const struct tensor *x, const float *w, const float *b, float eps)
{
    struct op *o = next(r, OP_NORM);

    o->u.norm.out = *out;
    o->u.norm.x = *x;
    o->u.norm.w = w;
    o->u.norm.b = b;
    o->u.norm.eps = eps;
    o->u.norm.kind = kind;
    note_rows(r, x);
}

void record_headnorm(struct record *r, const struct tensor *x, int n_heads, int head_dim,
                     const float *w, int w_stride, float eps)
{
    struct op *o = next(r, OP_HEADNORM);

    o->u.headnorm.x = *x;
    o->u.headnorm.w = w;
    o->u.headnorm.n_heads = n_heads;
    o->u.headnorm.head_dim = head_dim;
    o->u.headnorm.w_stride = w_stride;
    o->u.headnorm.eps = eps;
    o->u.headnorm.b = NULL;
    note_rows(r, x);
}

void record_headnorm_layer(struct record *r, const struct tensor *x, int n_heads, int head_dim,
                           const float *w, const float *b, int w_stride, float eps)
{
    record_headnorm(r, x, n_heads, head_dim, w, w_stride, eps);
    r->ops[r->n - 1].kind = OP_HEADNORM_LAYER;
    r->ops[r->n - 1].u.headnorm.b = b;
}

/* Activations and F32 weights lose by F16; where there are few of them it costs nothing not to. */
static bool is_exact(const struct tensor *x, const struct linear *jobs, int n)
{
    for (int i = 0; i < n; i++) {
        const struct weight *w = jobs[i].w;
        int64_t n = (int64_t)w->rows * w->cols;
        bool few =
            n <= FEW_WEIGHTS && (w->type == DT_F32 || w->type == DT_F16 || w->type == DT_BF16);
        if (!few && (w->type != DT_F32 || x->rows * n > EXACT_WORK)) return false;
    }
    return x->rows > EXACT_ROWS;
}

void record_linear(struct record *r, const struct tensor *x, const struct linear *jobs, int n_jobs)
{
    struct op *o = next(r, OP_LINEAR);

    o->u.linear.x = *x;
    o->u.linear.norm = OP_NORM_NONE;
    o->u.linear.norm_w = o->u.linear.norm_b = NULL;
    o->u.linear.eps = 0;
    o->u.linear.job = r->n_jobs;
    o->u.linear.n_jobs = n_jobs;
    o->u.linear.fuse_act = false;
    o->u.linear.exact = is_exact(x, jobs, n_jobs);
    o->u.linear.act = ACT_SILU;
    memcpy(r->jobs + r->n_jobs, jobs, (size_t)n_jobs * sizeof *jobs);
    r->n_jobs += n_jobs;
    note_rows(r, x);
}

void record_rope_table(struct record *r, const struct tensor *table, const int32_t *pos,
                       const float *freq, int n_rot, float mscale)
{
    struct op *o = next(r, OP_ROPE_TABLE);

    o->u.rope_table.table = *table;
    o->u.rope_table.pos = pos;
    o->u.rope_table.freq = freq;
    o->u.rope_table.n_rot = n_rot;
    o->u.rope_table.mscale = mscale;
    note_rows(r, table);
}

void record_rope(struct record *r, const struct tensor *x, int n_heads, int head_dim, int n_rot,
                 const struct tensor *table, enum rope_style style)
{
    struct op *o = next(r, OP_ROPE);

    o->u.rope.x = *x;
    o->u.rope.table = *table;
    o->u.rope.n_heads = n_heads;
    o->u.rope.head_dim = head_dim;
    o->u.rope.n_rot = n_rot;
    o->u.rope.style = style;
    note_rows(r, x);
}

/* Few tokens: positions up to the next power of two, so that one graph serves until then. */
static int shared_max_pos(const struct record *r, const struct kvview *kv)
{
    int keys = LEAST_KEYS;

    if (kv->n_tokens > r->few) return kv->max_pos;
    while (keys <= kv->max_pos && keys < 1 << 30) keys *= 2;
    return keys - 1;
}

static bool same_view(const struct kvview *a, const struct kvview *b)
{
    return a->type == b->type && a->layers == b->layers && a->n_layers == b->n_layers &&
           a->table == b->table && a->table_stride == b->table_stride && a->seq == b->seq &&
           a->pos == b->pos && a->n_tokens == b->n_tokens && a->n_seqs == b->n_seqs &&
           a->max_pos == b->max_pos && a->seq_end == b->seq_end;
}

static int view_of(struct record *r, const struct kvview *kv)
{
    struct kvview v = *kv;

    v.max_pos = shared_max_pos(r, kv);
    if (r->n_views && same_view(&r->views[r->n_views - 1], &v)) return r->n_views - 1;
    r->views[r->n_views] = v;
    return r->n_views++;
}

void record_kv_put(struct record *r, const struct kvview *kv, int layer, const struct tensor *k,
                   const struct tensor *v)
{
    struct op *o = next(r, OP_KV_PUT);

    o->u.kv_put.k = *k;
    if (v) o->u.kv_put.v = *v;
    else o->u.kv_put.v = (struct tensor){ 0 };
    o->u.kv_put.view = view_of(r, kv);
    o->u.kv_put.layer = layer;
    note_rows(r, k);
}

void record_attend(struct record *r, const struct tensor *out, const struct tensor *q,
                   const struct kvview *kv, int layer, const struct attend_opt *opt)
{
    struct op *o = next(r, OP_ATTEND);

    o->u.attend.out = *out;
    o->u.attend.q = *q;
    o->u.attend.opt = *opt;
    o->u.attend.view = view_of(r, kv);
    o->u.attend.layer = layer;
    o->u.attend.rope = -1;
    note_rows(r, q);
}

void record_act(struct record *r, const struct tensor *out, const struct tensor *gate,
                const struct tensor *up, enum act act)
{
    struct op *o = next(r, OP_ACT);

    o->u.act.out = *out;
    o->u.act.gate = *gate;
    if (up) o->u.act.up = *up;
    else o->u.act.up = (struct tensor){ 0 };
    o->u.act.act = act;
    note_rows(r, gate);
}

void record_add(struct record *r, enum op_kind kind, const struct tensor *x, const struct tensor *y,
                float by)
{
    struct op *o = next(r, kind);

    o->u.add.x = *x;
    if (y) o->u.add.y = *y;
    else o->u.add.y = (struct tensor){ 0 };
    o->u.add.scale = by;
    note_rows(r, x);
}

void record_route(struct record *r, int32_t *ids, float *weights, const struct tensor *logits,
                  const struct route_opt *opt)
{
    struct op *l = r->n ? &r->ops[r->n - 1] : NULL, *o = next(r, OP_ROUTE);

    if (l && l->kind == OP_LINEAR && l->u.linear.n_jobs == 1)
        l->u.linear.exact |= r->jobs[l->u.linear.job].out.data == logits->data;
    o->u.route.logits = *logits;
    o->u.route.ids = ids;
    o->u.route.weights = weights;
    o->u.route.opt = *opt;
    note_rows(r, logits);
}

void record_experts(struct record *r, const struct tensor *out, const struct tensor *x,
                    const int32_t *ids, const float *weights, const struct experts_opt *opt)
{
    struct op *o = next(r, OP_EXPERTS);

    o->u.experts.out = *out;
    o->u.experts.x = *x;
    o->u.experts.ids = ids;
    o->u.experts.weights = weights;
    o->u.experts.opt = *opt;
    note_rows(r, x);
}

void record_sample(struct record *r, int32_t *ids, const struct tensor *logits,
                   const struct sample_row *picks, int n, const struct logit_adjust *adjust)
{
    struct op *o = next(r, OP_SAMPLE);

    o->u.sample.logits = *logits;
    o->u.sample.ids = ids;
    o->u.sample.picks = picks;
    o->u.sample.adjust = adjust;
    o->u.sample.n = n;
    note_rows(r, logits);
}

void record_heads(struct record *r, const struct tensor *out, const struct tensor *x,
                  const struct linear_heads_opt *opt)
{
    struct op *o = next(r, OP_HEADS);

    o->u.heads.out = *out;
    o->u.heads.x = *x;
    o->u.heads.opt = *opt;
    note_rows(r, x);
}

static struct op_state state_of(const struct stateview *st, float *base, size_t floats)
{
    return (struct op_state){ base, floats, st->runs, st->n_runs, st->n_tokens };
}

void record_conv(struct record *r, const struct tensor *out, const struct tensor *x,
                 const struct stateview *st, int layer, const struct conv_opt *opt)
{
    struct op *o = next(r, OP_CONV);

    o->u.conv.out = *out;
    o->u.conv.x = *x;
    o->u.conv.st = state_of(st, st->layers[layer].conv, st->layers[layer].conv_floats);
    o->u.conv.opt = *opt;
    note_rows(r, x);
}

void record_scan(struct record *r, const struct tensor *out, const struct scan_in *in,
                 const struct stateview *st, int layer, const struct scan_opt *opt)
{
    struct op *o = next(r, OP_SCAN);

    o->u.scan.out = *out;
    o->u.scan.in = *in;
    o->u.scan.st = state_of(st, st->layers[layer].rec, st->layers[layer].rec_floats);
    o->u.scan.opt = *opt;
    note_rows(r, &in->x);
}

void record_delta(struct record *r, const struct tensor *out, const struct delta_in *in,
                  const struct stateview *st, int layer, const struct delta_opt *opt)
{
    struct op *o = next(r, OP_DELTA);

    o->u.delta.out = *out;
    o->u.delta.in = *in;
    o->u.delta.st = state_of(st, st->layers[layer].rec, st->layers[layer].rec_floats);
    o->u.delta.opt = *opt;
    note_rows(r, &in->v);
}

/* ---- the key of a step ---- */

/* Member by member: what lies between members of a struct is nobody's. */
struct key {
    uint64_t a, b;
};

static inline void mix(struct key *h, uint64_t v)
{
    uint64_t b = h->b;

    h->b = (h->a ^ v) * 0x9e3779b97f4a7c15u;
    h->a = b ^ h->b >> 29;
}

static void mix_p(struct key *h, const void *p) { mix(h, (uint64_t)(uintptr_t)p); }
static void mix_ii(struct key *h, int a, int b)
{
    mix(h, (uint64_t)(uint32_t)a << 32 | (uint32_t)b);
}

static void mix_f(struct key *h, float f)
{
    uint32_t u;

    memcpy(&u, &f, 4);
    mix(h, u);
}

static uint64_t turn(uint64_t v, int by) { return v << by | v >> (64 - by); }

/* Three in one: their products do not wait for each other. */
static void mix3(struct key *h, uint64_t a, uint64_t b, uint64_t c)
{
    mix(h, a * 0xbf58476d1ce4e5b9u ^ turn(b * 0x94d049bb133111ebu, 21) ^
               turn(c * 0xff51afd7ed558ccdu, 43));
}

static void mix_t(struct key *h, const struct tensor *t)
{
    mix3(h, (uint64_t)(uintptr_t)t->data, t->stride,
         (uint64_t)(uint32_t)t->rows << 32 | (uint32_t)t->cols);
}

static void mix_w(struct key *h, const struct weight *w)
{
    mix3(h, (uint64_t)(uintptr_t)w->packed, (uint64_t)(uint32_t)w->rows << 32 | (uint32_t)w->cols,
         (uint64_t)(uint32_t)w->type << 32 | (uint32_t)w->layout);
    mix_p(h, w);
}

static void mix_jobs(struct key *h, const struct linear *j, int n)
{
    for (; n > 0; n--, j++) {
        mix_t(h, &j->out);
        mix_w(h, j->w);
        mix_p(h, j->bias);
        mix_f(h, j->scale);
        mix(h, j->add);
    }
}

static void mix_view(struct key *h, const struct kvview *v)
{
    mix_ii(h, (int)v->type, v->n_layers);
    mix_p(h, v->table);
    mix_p(h, v->seq);
    mix_p(h, v->pos);
    mix_ii(h, v->n_tokens, v->n_seqs);
    mix_ii(h, v->table_stride, v->max_pos);
    mix_p(h, v->seq_end);
}

static void mix_kv(struct key *h, const struct record *r, int view, int layer)
{
    const struct kvlayer *l = &r->views[view].layers[layer];

    mix_ii(h, view, layer);
    mix_p(h, l->k);
    mix_p(h, l->v);
    mix_ii(h, l->n_kv_heads, l->head_dim);
    mix_ii(h, l->head_dim_v, l->v_in_k);
}

static void mix_opt(struct key *h, const struct attend_opt *o)
{
    mix_ii(h, o->n_heads, o->n_kv_heads);
    mix_ii(h, o->head_dim, o->head_dim_v);
    mix_f(h, o->scale);
    mix_f(h, o->softcap);
    mix_ii(h, o->window, o->bidirectional);
    mix_p(h, o->sinks);
    mix_p(h, o->slopes);
}

static void mix_route(struct key *h, const struct route_opt *o)
{
    mix_ii(h, (int)o->route, o->n_used);
    mix_ii(h, o->n_groups, o->n_groups_used);
    mix_ii(h, o->group_top, o->norm);
    mix_f(h, o->scale);
    mix_f(h, o->jitter);
    mix_p(h, o->bias);
}

static void mix_experts(struct key *h, const struct experts_opt *o)
{
    const struct weight *w[] = { o->gate, o->up, o->down };
    const float *b[] = { o->b_gate, o->b_up, o->b_down };

    for (int i = 0; i < 3; i++) {
        if (w[i]) mix_w(h, &w[i][0]), mix_w(h, &w[i][o->n - 1]);
        mix_p(h, b[i]);
    }
    mix_ii(h, o->n, o->n_used);
    mix_ii(h, (int)o->act, o->add);
    mix_f(h, o->scale);
    mix_t(h, &o->xs), mix_t(h, &o->hs), mix_t(h, &o->us), mix_t(h, &o->ys);
    mix_p(h, o->order);
}

static void mix_heads(struct key *h, const struct linear_heads_opt *o)
{
    mix_w(h, o->w);
    mix_ii(h, o->w->n, o->x_step);
    mix_ii(h, o->out_step, o->tail);
}

static void mix_state(struct key *h, const struct op_state *s)
{
    mix3(h, (uint64_t)(uintptr_t)s->base, s->floats, (uint64_t)(uintptr_t)s->runs);
    mix_ii(h, s->n_runs, s->n_tokens);
}

static void mix_conv(struct key *h, const struct conv_opt *o)
{
    mix_p(h, o->w), mix_p(h, o->bias);
    mix_ii(h, o->k, o->silu);
}

static void mix_scan(struct key *h, const struct scan_in *in, const struct scan_opt *o)
{
    mix_t(h, &in->x), mix_t(h, &in->dt), mix_t(h, &in->b), mix_t(h, &in->c);
    mix_ii(h, o->n_heads, o->head_dim);
    mix_ii(h, o->n_groups, o->n_state);
    mix(h, o->wide);
    mix_p(h, o->a), mix_p(h, o->d), mix_p(h, o->dt_bias);
    mix_f(h, o->dt_min), mix_f(h, o->dt_max);
}

static void mix_delta(struct key *h, const struct delta_in *in, const struct delta_opt *o)
{
    mix_t(h, &in->q), mix_t(h, &in->k), mix_t(h, &in->v), mix_t(h, &in->alpha), mix_t(h, &in->beta);
    mix_ii(h, o->n_heads, o->n_k_heads);
    mix_ii(h, o->dim_k, o->dim_v);
    mix_p(h, o->a), mix_p(h, o->dt_bias);
    mix_f(h, o->q_scale), mix_f(h, o->k_scale);
}

static void mix_op(struct key *h, const struct record *r, const struct op *o)
{
    mix(h, o->kind);
    switch (o->kind) {
    case OP_PUT:
    case OP_GET:
    case OP_COPY: mix_p(h, o->u.copy.dst), mix_p(h, o->u.copy.src), mix(h, o->u.copy.bytes); break;
    case OP_EMBED:
        mix_t(h, &o->u.embed.out), mix_w(h, o->u.embed.w), mix_p(h, o->u.embed.ids),
            mix_f(h, o->u.embed.scale);
        break;
    case OP_GATHER:
        mix_t(h, &o->u.gather.out), mix_t(h, &o->u.gather.x), mix_p(h, o->u.gather.rows);
        break;
    case OP_NORM:
        mix_t(h, &o->u.norm.out), mix_t(h, &o->u.norm.x), mix_p(h, o->u.norm.w),
            mix_p(h, o->u.norm.b);
        mix_f(h, o->u.norm.eps), mix(h, o->u.norm.kind);
        break;
    case OP_HEADNORM:
    case OP_HEADNORM_LAYER:
        mix_t(h, &o->u.headnorm.x), mix_p(h, o->u.headnorm.w), mix_f(h, o->u.headnorm.eps),
            mix_p(h, o->u.headnorm.b);
        mix_ii(h, o->u.headnorm.n_heads, o->u.headnorm.head_dim),
            mix(h, (uint64_t)o->u.headnorm.w_stride);
        break;
    case OP_LINEAR:
        mix_t(h, &o->u.linear.x), mix_jobs(h, r->jobs + o->u.linear.job, o->u.linear.n_jobs);
        break;
    case OP_ROPE_TABLE:
        mix_t(h, &o->u.rope_table.table), mix_p(h, o->u.rope_table.pos),
            mix_p(h, o->u.rope_table.freq);
        mix(h, (uint64_t)o->u.rope_table.n_rot), mix_f(h, o->u.rope_table.mscale);
        break;
    case OP_ROPE:
        mix_t(h, &o->u.rope.x), mix_t(h, &o->u.rope.table),
            mix_ii(h, o->u.rope.n_heads, o->u.rope.head_dim);
        mix_ii(h, o->u.rope.n_rot, (int)o->u.rope.style);
        break;
    case OP_KV_PUT:
        mix_t(h, &o->u.kv_put.k), mix_t(h, &o->u.kv_put.v),
            mix_kv(h, r, o->u.kv_put.view, o->u.kv_put.layer);
        break;
    case OP_ATTEND:
        mix_t(h, &o->u.attend.out), mix_t(h, &o->u.attend.q), mix_opt(h, &o->u.attend.opt);
        mix_kv(h, r, o->u.attend.view, o->u.attend.layer);
        break;
    case OP_ACT:
        mix_t(h, &o->u.act.out), mix_t(h, &o->u.act.gate), mix_t(h, &o->u.act.up),
            mix(h, o->u.act.act);
        break;
    case OP_ROUTE:
        mix_t(h, &o->u.route.logits), mix_p(h, o->u.route.ids), mix_p(h, o->u.route.weights);
        mix_route(h, &o->u.route.opt);
        break;
    case OP_EXPERTS:
        mix_t(h, &o->u.experts.out), mix_t(h, &o->u.experts.x), mix_p(h, o->u.experts.ids);
        mix_p(h, o->u.experts.weights), mix_experts(h, &o->u.experts.opt);
        break;
    case OP_ADD:
    case OP_SCALE:
    case OP_SOFTCAP:
    case OP_CLAMP:
    case OP_GATE_ROWS:
        mix_t(h, &o->u.add.x), mix_t(h, &o->u.add.y), mix_f(h, o->u.add.scale);
        break;
    case OP_SAMPLE:
        mix_t(h, &o->u.sample.logits), mix_p(h, o->u.sample.ids), mix_p(h, o->u.sample.picks);
        mix_p(h, o->u.sample.adjust), mix(h, (uint64_t)o->u.sample.n);
        break;
    case OP_HEADS:
        mix_t(h, &o->u.heads.out), mix_t(h, &o->u.heads.x), mix_heads(h, &o->u.heads.opt);
        break;
    case OP_CONV:
        mix_t(h, &o->u.conv.out), mix_t(h, &o->u.conv.x), mix_state(h, &o->u.conv.st),
            mix_conv(h, &o->u.conv.opt);
        break;
    case OP_SCAN:
        mix_t(h, &o->u.scan.out), mix_state(h, &o->u.scan.st),
            mix_scan(h, &o->u.scan.in, &o->u.scan.opt);
        break;
    case OP_DELTA:
        mix_t(h, &o->u.delta.out), mix_state(h, &o->u.delta.st),
            mix_delta(h, &o->u.delta.in, &o->u.delta.opt);
        break;
    case OP_ROPE_KV: break;
    }
}

uint64_t record_hash(const struct record *r)
{
    struct key h = { 0x243f6a8885a308d3u, 0x13198a2e03707344u };

    for (int i = 0; i < r->n_views; i++) mix_view(&h, &r->views[i]);
    for (int i = 0; i < r->n; i++) mix_op(&h, r, &r->ops[i]);
    mix(&h, (uint64_t)r->n);
    mix(&h, h.a >> 32);
    return h.a ^ h.b;
}
