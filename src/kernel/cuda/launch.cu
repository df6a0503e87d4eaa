/* launch.cu - one launcher for every operation of ops.inc: from the recorded fields to the call
 * that launches its kernels.
 *
 * A launcher is launch_<name>(c, o): it unpacks the fields of o and calls a cu_ function of
 * cu.cuh. ops.inc declares the launchers and fills their table, so an operation without one does
 * not compile. */
#include "kernel/cuda/record.cuh"
#include "kernel/cuda/cu_moe.cuh"

/* Up to so many tokens matvec is faster than the tensor cores' GEMM, though it could do more. */
#define MATVEC_TOKENS 4
static_assert(MATVEC_TOKENS <= CU_FEW, "matvec takes no more");
static_assert((int)ROUTER_TOKENS == CU_ROUTER_TOKENS, "one limit");
static_assert((int)OP_NORM_RMS == CU_NORM_RMS && (int)OP_NORM_LAYER == CU_NORM_LAYER,
              "one numbering");

/* ---- fields as the kernels' functions take them ---- */

/* All activations on the GPU are F32. */
static struct tensor tensor_of(const struct op_tensor &t)
{
    struct tensor x = {};

    x.type = DT_F32;
    x.rows = t.rows;
    x.cols = t.cols;
    x.stride = t.stride;
    x.data = t.data;
    return x;
}

/* max_pos is that of the record, which may be rounded up (record_ops.c). */
static struct kvview view_of(const struct record *r, int i)
{
    const struct op_view *v = &r->views[i];
    struct kvview kv = {};

    kv.type = (enum dtype)v->type;
    kv.layers = v->layers;
    kv.n_layers = v->n_layers;
    kv.table = v->table;
    kv.table_stride = v->table_stride;
    kv.seq = v->seq;
    kv.pos = v->pos;
    kv.n_tokens = v->n_tokens;
    kv.n_seqs = v->n_seqs;
    kv.max_pos = v->max_pos;
    kv.seq_end = v->seq_end;
    return kv;
}

/* Converted once for all operations of a record: a linear operation may look at the jobs of the
 * next one too (cu_linear.next). */
static void fill_jobs(struct linear *out, const struct op_job *j, int n)
{
    for (int i = 0; i < n; i++) {
        out[i] = {};
        out[i].out = tensor_of(j[i].out);
        out[i].w = j[i].w.at;
        out[i].bias = j[i].bias;
        out[i].add = j[i].add;
        out[i].scale = j[i].scale;
    }
}

/* kv: the view that the result points to. */
static struct cu_rope_kv rope_kv_of(const struct op_rope_kv *o, const struct kvview *kv)
{
    struct cu_rope_kv k = {};

    k.q = tensor_of(o->q);
    k.k = tensor_of(o->k);
    k.v = tensor_of(o->v);
    k.n_heads = o->n_heads;
    k.n_kv_heads = o->kv.n_kv_heads;
    k.head_dim = o->kv.head_dim;
    k.head_dim_v = o->kv.head_dim_v;
    k.n_rot = o->n_rot;
    k.q_norm = o->q_norm;
    k.k_norm = o->k_norm;
    k.eps = o->eps;
    k.table = o->table;
    k.style = o->style;
    k.kv = kv;
    k.layer = o->kv.layer;
    return k;
}

static struct cu_linear linear_of(const struct cuda *c, const struct op_linear *o)
{
    struct cu_linear p = {};

    p.x = tensor_of(o->x);
    p.norm.kind = (int)o->norm;
    p.norm.w = o->norm_w;
    p.norm.b = o->norm_b;
    p.norm.eps = o->eps;
    p.jobs = c->record->jobs + o->job;
    p.n_jobs = o->n_jobs;
    p.fuse_act = o->fuse_act;
    p.act = o->act;
    return p;
}

/* ---- the launchers' table ---- */

#define OP(NAME, name) static void launch_##name(struct cuda *c, const struct op_##name *o);
#include "kernel/cuda/ops.inc"

/* A switch and not an array of function pointers: each launcher has its own parameter type. */
static void launch_op(struct cuda *c, const struct op *o)
{
    switch (o->kind) {
#define OP(NAME, name)               \
    case OP_##NAME:                  \
        launch_##name(c, o->u.name); \
        break;
#include "kernel/cuda/ops.inc"
    case OP_KINDS: break;
    }
}

/* Stops at the first failure: later kernels would compute with undefined input. */
void cu_launch_all(struct cuda *c)
{
    struct cu_record *l = c->record;
    const struct record *r = &l->rec;

    fill_jobs(l->jobs, r->jobs, r->n_jobs);
    cu_matvec_reset();
    cu_experts_reset();
    for (l->at = 0; l->at < r->n && c->rc == OK; l->at++)
        if (!r->ops[l->at].absorbed) launch_op(c, &r->ops[l->at]);
}

/* ---- copies ---- */

static void copy_bytes(struct cuda *c, void *dst, const void *src, size_t bytes,
                       enum cudaMemcpyKind way, const char *name)
{
    cu_launch_begin(c, name);
    cu_check(c, cudaMemcpyAsync(dst, src, bytes, way, c->stream), name);
    cu_launch_end(c);
}

/* Staging memory is pinned, so copies are asynchronous and can be captured in a graph. */
static void launch_upload(struct cuda *c, const struct op_upload *o)
{
    copy_bytes(c, o->dst, o->src, o->bytes, cudaMemcpyHostToDevice, "upload");
}

static void launch_download(struct cuda *c, const struct op_download *o)
{
    copy_bytes(c, o->dst, o->src, o->bytes, cudaMemcpyDeviceToHost, "download");
}

static void launch_copy(struct cuda *c, const struct op_copy *o)
{
    copy_bytes(c, o->dst, o->src, o->bytes, cudaMemcpyDeviceToDevice, "copy");
}

/* ---- rows ---- */

static void launch_embed(struct cuda *c, const struct op_embed *o)
{
    struct tensor out = tensor_of(o->out);

    cu_embed(c, &out, o->w.at, o->ids, o->scale);
}

static void launch_gather(struct cuda *c, const struct op_gather *o)
{
    struct tensor out = tensor_of(o->out), x = tensor_of(o->x);

    cu_gather(c, &out, &x, o->rows);
}

static void launch_norm(struct cuda *c, const struct op_norm *o)
{
    struct tensor out = tensor_of(o->out), x = tensor_of(o->x);
    struct cu_norm n = { (int)o->kind, o->w, o->b, o->eps };

    cu_norm_rows(c, &out, &x, &n);
}

/* Both head norms share one function; only the RMS norm can be fused (fuse.c). */
static void launch_headnorm(struct cuda *c, const struct op_headnorm *o)
{
    struct tensor x = tensor_of(o->x);
    struct cu_norm n = { CU_NORM_RMS, o->w, NULL, o->eps };

    cu_headnorm(c, &x, o->n_heads, o->head_dim, &n, o->w_stride);
}

static void launch_headnorm_layer(struct cuda *c, const struct op_headnorm_layer *o)
{
    struct tensor x = tensor_of(o->x);
    struct cu_norm n = { CU_NORM_LAYER, o->w, o->b, o->eps };

    cu_headnorm(c, &x, o->n_heads, o->head_dim, &n, o->w_stride);
}

static void launch_act(struct cuda *c, const struct op_act *o)
{
    struct tensor out = tensor_of(o->out), gate = tensor_of(o->gate), up = tensor_of(o->up);

    cu_act(c, &out, &gate, up.data ? &up : NULL, o->act);
}

static void launch_add(struct cuda *c, const struct op_add *o)
{
    struct tensor x = tensor_of(o->x), y = tensor_of(o->y);

    cu_add(c, &x, &y, o->scale);
}

static void launch_scale(struct cuda *c, const struct op_scale *o)
{
    struct tensor x = tensor_of(o->x);

    cu_scale(c, &x, o->scale);
}

static void launch_softcap(struct cuda *c, const struct op_softcap *o)
{
    struct tensor x = tensor_of(o->x);

    cu_softcap(c, &x, o->cap);
}

static void launch_clamp(struct cuda *c, const struct op_clamp *o)
{
    struct tensor x = tensor_of(o->x);

    cu_clamp(c, &x, o->limit);
}

static void launch_gate_rows(struct cuda *c, const struct op_gate_rows *o)
{
    struct tensor x = tensor_of(o->x), s = tensor_of(o->s);

    cu_gate_rows(c, &x, &s);
}

static void launch_xielu(struct cuda *c, const struct op_xielu *o)
{
    struct tensor x = tensor_of(o->x);
    struct xielu_opt opt = { o->a_p, o->a_n, o->b, o->eps };

    cu_xielu(c, &x, &opt);
}

static void launch_clipped_glu(struct cuda *c, const struct op_clipped_glu *o)
{
    struct tensor out = tensor_of(o->out), gate = tensor_of(o->gate), up = tensor_of(o->up);
    struct glu_clip clip = { o->alpha, o->limit, o->plus };

    cu_clipped_glu(c, &out, &gate, &up, &clip);
}

static void launch_scale_by_pos(struct cuda *c, const struct op_scale_by_pos *o)
{
    struct tensor x = tensor_of(o->x);
    struct pos_scale_opt opt = { o->beta, o->first, o->step };

    cu_scale_by_pos(c, &x, o->pos, &opt);
}

/* ---- several residual streams ---- */

static void launch_mix_streams(struct cuda *c, const struct op_mix_streams *o)
{
    struct tensor out = tensor_of(o->out), x = tensor_of(o->x), coefs = tensor_of(o->coefs);

    cu_mix_streams(c, &out, &x, &coefs, o->n);
}

static void launch_add_weighted(struct cuda *c, const struct op_add_weighted *o)
{
    struct tensor x = tensor_of(o->x), y = tensor_of(o->y), coefs = tensor_of(o->coefs);

    cu_add_weighted(c, &x, &y, &coefs, o->col, o->plus);
}

static void launch_match_rms(struct cuda *c, const struct op_match_rms *o)
{
    struct tensor x = tensor_of(o->x), like = tensor_of(o->like);

    cu_match_rms(c, &x, &like, o->eps);
}

static void launch_sparsify(struct cuda *c, const struct op_sparsify *o)
{
    struct tensor x = tensor_of(o->x);

    cu_sparsify(c, &x, o->deviations);
}

static void launch_hyper_weights(struct cuda *c, const struct op_hyper_weights *o)
{
    struct tensor x = tensor_of(o->x);
    struct hyper_opt opt = { o->n, o->iters, o->eps };

    cu_hyper_weights(c, &x, o->base, o->scale, &opt);
}

static void launch_hyper_in(struct cuda *c, const struct op_hyper_in *o)
{
    struct tensor out = tensor_of(o->out), s = tensor_of(o->s), w = tensor_of(o->w);

    cu_hyper_in(c, &out, &s, &w, o->n);
}

static void launch_hyper_out(struct cuda *c, const struct op_hyper_out *o)
{
    struct tensor s = tensor_of(o->s), y = tensor_of(o->y), w = tensor_of(o->w);

    cu_hyper_out(c, &s, &y, &w, o->n);
}

/* ---- matrix products ---- */

/* The linear operation that is launched after the present one, for which that may leave its result
 * in the form of an input; NULL: another kind of operation follows. */
static const struct op_linear *next_linear(const struct cu_record *l)
{
    const struct op *n = l->rec.ops + l->at + 1, *end = l->rec.ops + l->rec.n;

    while (n < end && n->absorbed) n++;
    return n < end && n->kind == OP_LINEAR && !n->u.linear->exact ? n->u.linear : NULL;
}

/* Exact: in F32 if the weight types allow it. Otherwise matvec for few tokens and GEMM for more;
 * both dequantize on the way. */
static void launch_linear(struct cuda *c, const struct op_linear *o)
{
    const struct op_linear *next = next_linear(c->record);
    struct cu_linear p = linear_of(c, o), after;

    if (next) {
        after = linear_of(c, next);
        p.next = &after;
    }
    if (o->exact && cu_linear_f32(c, &p)) return;
    if (p.x.rows <= MATVEC_TOKENS) cu_matvec(c, &p);
    else cu_gemm(c, &p);
}

static void launch_linear_heads(struct cuda *c, const struct op_linear_heads *o)
{
    struct tensor out = tensor_of(o->out), x = tensor_of(o->x);
    struct linear_heads_opt opt = {};

    opt.w = o->w.at;
    opt.x_step = o->x_step;
    opt.out_step = o->out_step;
    opt.tail = o->tail;
    cu_linear_heads(c, &out, &x, &opt);
}

/* The snapshots of weights (op_weight) are for comparing steps only; kernels get the addresses of
 * the arrays. */
static struct experts_opt experts_of(const struct op_experts *o)
{
    struct experts_opt opt = {};

    opt.n = o->n;
    opt.n_used = o->n_used;
    opt.gate = o->gate.at;
    opt.up = o->up.at;
    opt.down = o->down.at;
    opt.b_gate = o->b_gate;
    opt.b_up = o->b_up;
    opt.b_down = o->b_down;
    opt.act = o->act;
    opt.clip.alpha = o->clip_alpha;
    opt.clip.limit = o->clip_limit;
    opt.clip.plus = o->clip_plus;
    opt.scale = o->scale;
    opt.add = o->add;
    opt.weigh_inputs = o->weigh_inputs;
    opt.n_zero = o->n_zero;
    opt.xs = tensor_of(o->xs);
    opt.hs = tensor_of(o->hs);
    opt.us = tensor_of(o->us);
    opt.ys = tensor_of(o->ys);
    opt.order = o->order;
    return opt;
}

static void launch_experts(struct cuda *c, const struct op_experts *o)
{
    struct tensor out = tensor_of(o->out), x = tensor_of(o->x);
    struct experts_opt opt = experts_of(o);

    cu_experts(c, &out, &x, o->ids, o->weights, &opt);
}

/* The experts that read x next; NULL: another operation follows the present one. */
static const struct op_experts *next_experts(const struct cu_record *l, const struct op_tensor &x)
{
    const struct op *n = l->rec.ops + l->at + 1;

    if (n >= l->rec.ops + l->rec.n || n->kind != OP_EXPERTS || n->u.experts->x.data != x.data ||
        n->u.experts->x.rows != x.rows || n->u.experts->x.cols != x.cols)
        return NULL;
    return n->u.experts;
}

/* The norm and the product before the choice, in one kernel with it. false: nothing was launched. */
static bool launch_router(struct cuda *c, const struct op_route *o, const struct route_opt *opt)
{
    const struct op_norm *n = c->record->rec.ops[o->first].u.norm;
    struct cu_linear l = linear_of(c, c->record->rec.ops[o->first + 1].u.linear);
    const struct op_experts *e = next_experts(c->record, n->out);
    struct experts_opt experts;
    struct cu_router r = {};

    r.x = tensor_of(n->x);
    r.xn = tensor_of(n->out);
    r.norm.kind = (int)n->kind;
    r.norm.w = n->w;
    r.norm.b = n->b;
    r.norm.eps = n->eps;
    r.job = l.jobs;
    r.ids = o->ids;
    r.weights = o->weights;
    r.opt = opt;
    r.tickets = c->record->tickets;
    if (e) {
        experts = experts_of(e);
        r.x16 = cu_experts_x16(c, &r.xn, &experts);
    }
    if (cu_router(c, &r)) return true;
    cu_experts_reset();
    return false;
}

static void launch_route(struct cuda *c, const struct op_route *o)
{
    struct tensor logits = tensor_of(o->logits);
    struct route_opt opt = {};

    opt.route = o->route;
    opt.n_used = o->n_used;
    opt.norm = o->norm;
    opt.scale = o->scale;
    opt.bias = o->bias;
    opt.n_groups = o->n_groups;
    opt.n_groups_used = o->n_groups_used;
    opt.group_top = o->group_top;
    opt.jitter = o->jitter;
    opt.expert_scale = o->expert_scale;
    opt.by_token = o->by_token;
    opt.ids = o->token_ids;
    if (o->first >= 0) {
        if (launch_router(c, o, &opt)) return;
        launch_norm(c, c->record->rec.ops[o->first].u.norm);
        launch_linear(c, c->record->rec.ops[o->first + 1].u.linear);
    }
    cu_route(c, o->ids, o->weights, &logits, &opt);
}

/* ---- attention ---- */

static void launch_rope_table(struct cuda *c, const struct op_rope_table *o)
{
    struct tensor table = tensor_of(o->table);

    cu_rope_table(c, &table, o->pos, o->freq, o->n_rot, o->mscale);
}

static void launch_rope(struct cuda *c, const struct op_rope *o)
{
    struct tensor x = tensor_of(o->x), table = tensor_of(o->table);

    cu_rope(c, &x, o->n_heads, o->head_dim, o->n_rot, &table, o->style);
}

static void launch_kv_put(struct cuda *c, const struct op_kv_put *o)
{
    struct tensor k = tensor_of(o->k), v = tensor_of(o->v);
    struct kvview kv = view_of(&c->record->rec, o->kv.view);

    cu_kv_put(c, &kv, o->kv.layer, &k, &v);
}

static void launch_rope_kv(struct cuda *c, const struct op_rope_kv *o)
{
    struct kvview kv = view_of(&c->record->rec, o->kv.view);
    struct cu_rope_kv k = rope_kv_of(o, &kv);

    cu_rope_kv(c, &k);
}

/* A fused rope_kv is in the same view and layer as the attention. */
static void launch_attend(struct cuda *c, const struct op_attend *o)
{
    const struct record *r = &c->record->rec;
    struct tensor out = tensor_of(o->out), q = tensor_of(o->q);
    struct kvview kv = view_of(r, o->kv.view);
    struct attend_opt opt = {};
    struct key_choice keys = { (uint32_t *)o->keys, o->keys_stride, o->keys_heads };
    struct cu_rope_kv k = {};

    opt.n_heads = o->n_heads;
    opt.n_kv_heads = o->n_kv_heads;
    opt.head_dim = o->head_dim;
    opt.head_dim_v = o->head_dim_v;
    opt.scale = o->scale;
    opt.softcap = o->softcap;
    opt.window = o->window;
    opt.bidirectional = o->bidirectional;
    opt.sinks = o->sinks;
    opt.slopes = o->slopes;
    opt.chunk = o->chunk;
    opt.keys = o->keys ? &keys : NULL;
    if (o->rope >= 0) k = rope_kv_of(r->ops[o->rope].u.rope_kv, &kv);
    cu_attend(c, &out, &q, &kv, o->kv.layer, &opt, o->rope >= 0 ? &k : NULL);
}

/* ---- sparse and compressed attention ---- */

static void launch_index_put(struct cuda *c, const struct op_index_put *o)
{
    struct tensor k = tensor_of(o->k);
    struct kvview kv = view_of(&c->record->rec, o->kv.view);

    cu_index_put(c, &kv, o->kv.layer, &k);
}

static void launch_index_choose(struct cuda *c, const struct op_index_choose *o)
{
    struct tensor q = tensor_of(o->q), weights = tensor_of(o->weights);
    struct kvview kv = view_of(&c->record->rec, o->kv.view);
    struct key_choice out = { o->bits, o->stride, o->rows };
    struct index_opt opt = {};

    opt.n_heads = o->n_heads;
    opt.head_dim = o->head_dim;
    opt.top = o->top;
    opt.block = o->block;
    opt.local = o->local;
    opt.scale = o->scale;
    opt.rate = o->rate;
    cu_index_choose(c, &out, &q, weights.data ? &weights : NULL, &kv, o->kv.layer, &opt);
}

static void launch_compress(struct cuda *c, const struct op_compress *o)
{
    struct kvview kv = view_of(&c->record->rec, o->kv.view);
    struct compress_opt opt = {};

    opt.rate = o->rate;
    opt.dim = o->dim;
    opt.overlap = o->overlap != 0;
    opt.index = o->index != 0;
    opt.bias = o->bias;
    opt.norm = o->norm;
    opt.eps = o->eps;
    opt.freq = o->freq;
    opt.n_rot = o->n_rot;
    opt.mscale = o->mscale;
    cu_compress(c, &kv, o->kv.layer, &opt);
}

static void launch_attend_compressed(struct cuda *c, const struct op_attend_compressed *o)
{
    struct tensor out = tensor_of(o->out), q = tensor_of(o->q);
    struct kvview kv = view_of(&c->record->rec, o->kv.view);
    struct key_choice keys = { (uint32_t *)o->keys, o->keys_stride, 1 };
    struct attend_opt opt = {};

    opt.n_heads = o->n_heads;
    opt.head_dim = o->head_dim;
    opt.scale = o->scale;
    opt.window = o->window;
    opt.sinks = o->sinks;
    opt.keys = o->keys ? &keys : NULL;
    cu_attend_compressed(c, &out, &q, &kv, o->kv.layer, &opt, o->rate);
}

/* ---- recurrent layers ---- */

static void launch_conv(struct cuda *c, const struct op_conv *o)
{
    struct tensor out = tensor_of(o->out), x = tensor_of(o->x);
    struct conv_opt opt = {};

    opt.w = o->w;
    opt.bias = o->bias;
    opt.k = o->k;
    opt.silu = o->silu;
    opt.at = o->at;
    opt.of = o->of;
    cu_conv(c, &out, &x, &o->st, &opt);
}

static void launch_scan(struct cuda *c, const struct op_scan *o)
{
    struct tensor out = tensor_of(o->out);
    struct scan_in in = {};
    struct scan_opt opt = {};

    in.x = tensor_of(o->x);
    in.dt = tensor_of(o->dt);
    in.b = tensor_of(o->b);
    in.c = tensor_of(o->c);
    opt.n_heads = o->n_heads;
    opt.head_dim = o->head_dim;
    opt.n_groups = o->n_groups;
    opt.n_state = o->n_state;
    opt.wide = o->wide;
    opt.a = o->a;
    opt.d = o->d;
    opt.dt_bias = o->dt_bias;
    opt.dt_min = o->dt_min;
    opt.dt_max = o->dt_max;
    cu_scan(c, &out, &in, &o->st, &opt);
}

static void launch_delta(struct cuda *c, const struct op_delta *o)
{
    struct tensor out = tensor_of(o->out);
    struct delta_in in = {};
    struct delta_opt opt = {};

    in.q = tensor_of(o->q);
    in.k = tensor_of(o->k);
    in.v = tensor_of(o->v);
    in.alpha = tensor_of(o->alpha);
    in.beta = tensor_of(o->beta);
    opt.n_heads = o->n_heads;
    opt.n_k_heads = o->n_k_heads;
    opt.dim_k = o->dim_k;
    opt.dim_v = o->dim_v;
    opt.a = o->a;
    opt.dt_bias = o->dt_bias;
    opt.q_scale = o->q_scale;
    opt.k_scale = o->k_scale;
    opt.beta_scale = o->beta_scale;
    opt.tiled = o->tiled != 0;
    cu_delta(c, &out, &in, &o->st, &opt);
}

/* ---- sums over a group ---- */

static void launch_all_reduce(struct cuda *c, const struct op_all_reduce *o)
{
    struct tensor x = tensor_of(o->x);

    cu_all_reduce(c, &x, o->wire);
}

static void launch_square_sums(struct cuda *c, const struct op_square_sums *o)
{
    struct tensor x = tensor_of(o->x);

    cu_square_sums(c, o->sums, &x, o->counts != 0);
}

static void launch_norm_by_sums(struct cuda *c, const struct op_norm_by_sums *o)
{
    struct tensor out = tensor_of(o->out), x = tensor_of(o->x);

    cu_norm_by_sums(c, &out, &x, o->sums, o->n, o->w, o->eps);
}

/* ---- sampling ---- */

static void launch_sample(struct cuda *c, const struct op_sample *o)
{
    struct tensor logits = tensor_of(o->logits);

    cu_sample(c, o->ids, &logits, o->rows, o->n, o->adjust);
}
