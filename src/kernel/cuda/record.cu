/* record.cu - a record carried out: launched operation by operation, or replayed as the graph of an
 * equal one. */
#include "kernel/cuda/record.cuh"

extern "C" {
#include "base/log.h"
#include "base/mem.h"
}

#include <stdlib.h>

/* Beyond these the tensor cores are faster, though matvec could. */
#define MATVEC_TOKENS 4
static_assert(MATVEC_TOKENS <= CU_FEW, "matvec takes no more");
static_assert((int)OP_NORM_RMS == CU_NORM_RMS && (int)OP_NORM_LAYER == CU_NORM_LAYER,
              "one numbering");

static bool is_on(const char *name)
{
    const char *v = getenv(name);
    return !v || strcmp(v, "0") != 0;
}

int cu_record_open(struct cuda *c, struct err *e)
{
    struct cu_record *r = mem_new(struct cu_record);
    int rc;

    c->record = r;
    r->fuse = is_on("TERN_CUDA_FUSE");
    r->graphs = is_on("TERN_CUDA_GRAPHS");
    if ((rc = record_init(&r->rec, RECORD_OPS, r->graphs ? GRAPH_TOKENS : 0, e)) != OK) return rc;
    if (cudaMallocHost((void **)&r->stage, STAGE_BYTES) != cudaSuccess ||
        cudaMallocHost((void **)&r->back, STAGE_BYTES) != cudaSuccess) {
        cudaGetLastError();
        return err_set(e, E_NOMEM, "%s: no %zu MiB of pinned memory", c->be.name,
                       2 * STAGE_BYTES >> 20);
    }
    for (int i = -1; i < MAX_AHEAD; i++)
        if (cudaEventCreate(i < 0 ? &r->begun : &r->done[i]) != cudaSuccess) {
            cudaGetLastError();
            return err_set(e, E_DEVICE, "%s: no event could be made", c->be.name);
        }
    return OK;
}

void cu_record_close(struct cuda *c)
{
    struct cu_record *r = c->record;

    if (!r) return;
    cu_record_forget(c);
    if (r->stage) cudaFreeHost(r->stage);
    if (r->back) cudaFreeHost(r->back);
    if (r->begun) cudaEventDestroy(r->begun);
    for (int i = 0; i < MAX_AHEAD; i++)
        if (r->done[i]) cudaEventDestroy(r->done[i]);
    for (int i = 0; i < r->n_pinned; i++) {
        log_warn("%s: %zu bytes of pinned memory were never freed", c->be.name, r->pinned[i].bytes);
        cudaFreeHost(r->pinned[i].p);
    }
    record_release(&r->rec);
    mem_free(r);
    c->record = NULL;
}

void cu_record_forget(struct cuda *c)
{
    struct cu_record *r = c->record;

    for (int i = 0; i < MAX_GRAPHS; i++) {
        if (r->graph[i].exec) cudaGraphExecDestroy(r->graph[i].exec);
        r->graph[i] = (struct cu_graph){};
    }
    cu_note(&c->stats.graph_bytes, 0);
    memset(r->seen, 0, sizeof r->seen);
}

/* ---- one operation ---- */

static struct cu_product product_of(const struct record *r, const struct op *o)
{
    struct cu_product p = {};

    p.x = o->u.linear.x;
    p.norm.kind = (int)o->u.linear.norm;
    p.norm.w = o->u.linear.norm_w;
    p.norm.b = o->u.linear.norm_b;
    p.norm.eps = o->u.linear.eps;
    p.jobs = r->jobs + o->u.linear.job;
    p.n_jobs = o->u.linear.n_jobs;
    p.fuse_act = o->u.linear.fuse_act;
    p.act = o->u.linear.act;
    return p;
}

static void run_linear(struct cuda *c, const struct record *r, const struct op *o)
{
    struct cu_product p = product_of(r, o), then;
    const struct op *n = o + 1, *end = r->ops + r->n;

    while (n < end && n->gone) n++;
    if (n < end && n->kind == OP_LINEAR && !n->u.linear.exact) {
        then = product_of(r, n);
        p.then = &then;
    }
    if (o->u.linear.exact && cu_exact(c, &p)) return;
    if (p.x.rows <= MATVEC_TOKENS) cu_matvec(c, &p);
    else cu_gemm(c, &p);
}

static struct cu_rope_kv rope_kv_of(const struct record *r, const struct op *o)
{
    struct cu_rope_kv k = {};

    k.q = o->u.rope_kv.q;
    k.k = o->u.rope_kv.k;
    k.v = o->u.rope_kv.v;
    k.n_heads = o->u.rope_kv.n_heads;
    k.n_kv_heads = o->u.rope_kv.n_kv_heads;
    k.head_dim = o->u.rope_kv.head_dim;
    k.n_rot = o->u.rope_kv.n_rot;
    k.q_norm = o->u.rope_kv.q_norm;
    k.k_norm = o->u.rope_kv.k_norm;
    k.eps = o->u.rope_kv.eps;
    k.table = o->u.rope_kv.table;
    k.style = o->u.rope_kv.style;
    k.kv = &r->views[o->u.rope_kv.view];
    k.layer = o->u.rope_kv.layer;
    k.head_dim_v = k.kv->layers[k.layer].head_dim_v;
    return k;
}

static void run_rope_kv(struct cuda *c, const struct record *r, const struct op *o)
{
    struct cu_rope_kv k = rope_kv_of(r, o);

    cu_rope_kv(c, &k);
}

static void run_attend(struct cuda *c, const struct record *r, const struct op *o)
{
    bool rope = o->u.attend.rope >= 0;
    struct cu_rope_kv k = {};

    if (rope) k = rope_kv_of(r, &r->ops[o->u.attend.rope]);
    cu_attend(c, &o->u.attend.out, &o->u.attend.q, &r->views[o->u.attend.view], o->u.attend.layer,
              &o->u.attend.opt, rope ? &k : NULL);
}

static void run_norm(struct cuda *c, const struct op *o)
{
    struct cu_norm n = { (int)o->u.norm.kind, o->u.norm.w, o->u.norm.b, o->u.norm.eps };

    cu_norm_rows(c, &o->u.norm.out, &o->u.norm.x, &n);
}

static void run_headnorm(struct cuda *c, const struct op *o)
{
    struct cu_norm n = { o->kind == OP_HEADNORM ? CU_NORM_RMS : CU_NORM_LAYER, o->u.headnorm.w,
                         o->u.headnorm.b, o->u.headnorm.eps };

    cu_headnorm(c, &o->u.headnorm.x, o->u.headnorm.n_heads, o->u.headnorm.head_dim, &n,
                o->u.headnorm.w_stride);
}

static void run_copy(struct cuda *c, const struct op *o, enum cudaMemcpyKind way, const char *name)
{
    cu_begin(c, name);
    cu_check(c, cudaMemcpyAsync(o->u.copy.dst, o->u.copy.src, o->u.copy.bytes, way, c->stream),
             name);
    cu_end(c);
}

static void run_op(struct cuda *c, const struct record *r, const struct op *o)
{
    switch (o->kind) {
    case OP_PUT: run_copy(c, o, cudaMemcpyHostToDevice, "put"); break;
    case OP_GET: run_copy(c, o, cudaMemcpyDeviceToHost, "get"); break;
    case OP_EMBED:
        cu_embed(c, &o->u.embed.out, o->u.embed.w, o->u.embed.ids, o->u.embed.scale);
        break;
    case OP_GATHER: cu_gather(c, &o->u.gather.out, &o->u.gather.x, o->u.gather.rows); break;
    case OP_NORM: run_norm(c, o); break;
    case OP_HEADNORM:
    case OP_HEADNORM_LAYER: run_headnorm(c, o); break;
    case OP_LINEAR: run_linear(c, r, o); break;
    case OP_ROPE_TABLE:
        cu_rope_table(c, &o->u.rope_table.table, o->u.rope_table.pos, o->u.rope_table.freq,
                      o->u.rope_table.n_rot, o->u.rope_table.mscale);
        break;
    case OP_ROPE:
        cu_rope(c, &o->u.rope.x, o->u.rope.n_heads, o->u.rope.head_dim, o->u.rope.n_rot,
                &o->u.rope.table, o->u.rope.style);
        break;
    case OP_KV_PUT:
        cu_kv_put(c, &r->views[o->u.kv_put.view], o->u.kv_put.layer, &o->u.kv_put.k,
                  &o->u.kv_put.v);
        break;
    case OP_ATTEND: run_attend(c, r, o); break;
    case OP_ACT:
        cu_act(c, &o->u.act.out, &o->u.act.gate, o->u.act.up.data ? &o->u.act.up : NULL,
               o->u.act.act);
        break;
    case OP_ADD: cu_add(c, &o->u.add.x, &o->u.add.y, o->u.add.scale); break;
    case OP_SCALE: cu_scale(c, &o->u.add.x, o->u.add.scale); break;
    case OP_SOFTCAP: cu_softcap(c, &o->u.add.x, o->u.add.scale); break;
    case OP_CLAMP: cu_clamp(c, &o->u.add.x, o->u.add.scale); break;
    case OP_GATE_ROWS: cu_gate_rows(c, &o->u.add.x, &o->u.add.y); break;
    case OP_ROUTE:
        cu_route(c, o->u.route.ids, o->u.route.weights, &o->u.route.logits, &o->u.route.opt);
        break;
    case OP_EXPERTS:
        cu_experts(c, &o->u.experts.out, &o->u.experts.x, o->u.experts.ids, o->u.experts.weights,
                   &o->u.experts.opt);
        break;
    case OP_SAMPLE:
        cu_sample(c, o->u.sample.ids, &o->u.sample.logits, o->u.sample.picks, o->u.sample.n,
                  o->u.sample.adjust);
        break;
    case OP_COPY: run_copy(c, o, cudaMemcpyDeviceToDevice, "copy"); break;
    case OP_HEADS: cu_heads(c, &o->u.heads.out, &o->u.heads.x, &o->u.heads.opt); break;
    case OP_CONV: cu_conv(c, &o->u.conv.out, &o->u.conv.x, &o->u.conv.st, &o->u.conv.opt); break;
    case OP_SCAN: cu_scan(c, &o->u.scan.out, &o->u.scan.in, &o->u.scan.st, &o->u.scan.opt); break;
    case OP_DELTA:
        cu_delta(c, &o->u.delta.out, &o->u.delta.in, &o->u.delta.st, &o->u.delta.opt);
        break;
    case OP_ROPE_KV: run_rope_kv(c, r, o); break;
    }
}

static void run_all(struct cuda *c)
{
    const struct record *r = &c->record->rec;

    cu_matvec_begin();
    for (int i = 0; i < r->n && c->rc == OK; i++)
        if (!r->ops[i].gone) run_op(c, r, &r->ops[i]);
}

/* ---- graphs ---- */

static struct cu_graph *find_graph(struct cu_record *r, uint64_t key)
{
    for (int i = 0; i < MAX_GRAPHS; i++)
        if (r->graph[i].exec && r->graph[i].key == key) return &r->graph[i];
    return NULL;
}

/* True from the second time on. */
static bool was_seen(struct cu_record *r, uint64_t key)
{
    for (int i = 0; i < MAX_SEEN; i++)
        if (r->seen[i] == key) return true;
    r->seen[r->n_seen++ % MAX_SEEN] = key;
    return false;
}

/* The emptiest place: none in it, or used longest ago. NULL: all are in use, and one that goes
 * would soon be wanted again; taking a graph costs more than launching. */
static struct cu_graph *place(struct cu_record *r)
{
    struct cu_graph *best = &r->graph[0];

    for (int i = 0; i < MAX_GRAPHS && best->exec; i++)
        if (!r->graph[i].exec || r->graph[i].used < best->used) best = &r->graph[i];
    if (best->exec && r->n_steps - best->used < GRAPH_REST) return NULL;
    if (best->exec) cudaGraphExecDestroy(best->exec);
    *best = (struct cu_graph){};
    return best;
}

/* Launches into a graph instead of the device. NULL: this step cannot be one, and nothing was
 * launched. */
static struct cu_graph *capture(struct cuda *c, uint64_t key, struct cu_graph *at)
{
    struct cu_record *r = c->record;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    size_t free_bytes = cu_mem_look(c), left;
    cudaError_t rc = cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal);

    if (rc == cudaSuccess) {
        run_all(c);
        rc = cudaStreamEndCapture(c->stream, &graph);
    }
    if (rc == cudaSuccess && c->rc == OK) rc = cudaGraphInstantiate(&exec, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    if (rc == cudaSuccess && c->rc == OK && exec) {
        left = cu_mem_look(c);
        if (left < free_bytes) cu_count(&c->stats.graph_bytes, free_bytes - left);
        cu_count(&c->stats.n_graphs, 1);
        r->n_captures++;
        at->key = key;
        at->exec = exec;
        return at;
    }
    cudaGetLastError();
    if (r->n_refused++ == 0)
        log_warn("%s: a step was not taken as a graph: %s", c->be.name,
                 c->rc != OK ? c->msg : cudaGetErrorString(rc));
    if (r->n_refused == 3) r->graphs = false; /* this device or driver does not take them */
    c->rc = OK;
    return NULL;
}

/* False: to be launched one by one; the record may be fused already. */
static bool run_as_graph(struct cuda *c)
{
    struct cu_record *r = c->record;
    uint64_t key = record_hash(&r->rec);
    struct cu_graph *g = find_graph(r, key);

    if (!g) {
        if (!was_seen(r, key) || !(g = place(r))) return false;
        if (r->fuse) record_fuse(&r->rec, true);
        if (!(g = capture(c, key, g))) return false;
    } else {
        r->n_replays++;
        cu_count(&c->stats.n_replays, 1);
    }
    g->used = r->n_steps;
    cu_check(c, cudaGraphLaunch(g->exec, c->stream), "graph");
    return true;
}

void cu_record_run(struct cuda *c, enum cu_run how)
{
    struct cu_record *r = c->record;

    if (r->rec.n > 0 && c->rc == OK && !r->dead) {
        bool whole = how == RUN_STEP && !r->partial && r->rec.n >= GRAPH_OPS &&
                     r->rec.n_tokens <= GRAPH_TOKENS;
        if (how == RUN_STEP) {
            r->n_steps++;
            cu_note(&c->stats.n_steps, r->n_steps);
        }
        if (r->n_parts == 0) cudaEventRecord(r->begun, c->stream);
        cu_gemm_begin(c);
        if (!(whole && r->graphs && !c->profile && run_as_graph(c))) {
            if (r->fuse) record_fuse(&r->rec, how != RUN_ROOM);
            run_all(c);
        }
        cudaEventRecord(r->done[r->n_parts++ % MAX_AHEAD], c->stream);
    }
    r->partial = how != RUN_STEP;
    record_clear(&r->rec);
}

void cu_record_pace(struct cuda *c, int ahead)
{
    struct cu_record *r = c->record;

    if (r->n_parts <= ahead || ahead >= MAX_AHEAD || r->dead) return;
    cu_check(c, cudaEventSynchronize(r->done[(r->n_parts - 1 - ahead) % MAX_AHEAD]), "step");
}

/* After a wait: how long the stream was busy since the one before. */
static void count_busy(struct cuda *c)
{
    struct cu_record *r = c->record;
    float ms = 0;

    if (r->n_parts == 0) return;
    if (cudaEventElapsedTime(&ms, r->begun, r->done[(r->n_parts - 1) % MAX_AHEAD]) == cudaSuccess &&
        ms > 0)
        cu_count(&c->stats.busy_ns, (uint64_t)((double)ms * 1e6));
    else cudaGetLastError();
    r->n_parts = 0;
}

/* ---- copies ---- */

static bool is_pinned(const struct cu_record *r, const void *p, size_t bytes)
{
    const char *at = (const char *)p;

    for (int i = 0; i < r->n_pinned; i++)
        if (at >= r->pinned[i].p && at + bytes <= r->pinned[i].p + r->pinned[i].bytes) return true;
    return false;
}

void cu_record_wait(struct cuda *c, enum cu_run how)
{
    struct cu_record *r = c->record;

    cu_record_run(c, how);
    if (!r->dead) cu_check(c, cudaStreamSynchronize(c->stream), "step");
    if (!r->dead) count_busy(c);
    if (c->rc == OK)
        for (int i = 0; i < r->n_late; i++)
            memcpy(r->late[i].dst, r->late[i].from, r->late[i].bytes);
    r->n_late = 0;
    r->stage_used = r->back_used = 0;
    if (c->profile && !r->dead) profile_collect(c);
}

static size_t padded(size_t bytes) { return (bytes + 255) / 256 * 256; }

static void make_room(struct cuda *c)
{
    if (!record_has_room(&c->record->rec, 0)) cu_record_run(c, RUN_ROOM);
}

/* The source may change as soon as this returns: it is copied to pinned memory, which a step of the
 * same calls finds at the same place. */
void cu_record_put(struct cuda *c, void *dst, const void *src, size_t bytes)
{
    struct cu_record *r = c->record;

    while (bytes > 0) {
        if (r->stage_used == STAGE_BYTES) cu_record_wait(c, RUN_ROOM);
        make_room(c);
        size_t left = STAGE_BYTES - r->stage_used, n = bytes < left ? bytes : left;
        memcpy(r->stage + r->stage_used, src, n);
        record_copy(&r->rec, OP_PUT, dst, r->stage + r->stage_used, n);
        r->stage_used += padded(n);
        dst = (char *)dst + n;
        src = (const char *)src + n;
        bytes -= n;
    }
}

void cu_record_get(struct cuda *c, void *dst, const void *src, size_t bytes)
{
    struct cu_record *r = c->record;

    make_room(c);
    if (bytes == 0) return;
    if (is_pinned(r, dst, bytes)) {
        record_copy(&r->rec, OP_GET, dst, src, bytes);
        return;
    }
    for (size_t n; bytes > 0; dst = (char *)dst + n, src = (const char *)src + n, bytes -= n) {
        if (r->back_used == STAGE_BYTES || r->n_late == MAX_LATE) cu_record_wait(c, RUN_ROOM);
        make_room(c);
        n = bytes < STAGE_BYTES - r->back_used ? bytes : STAGE_BYTES - r->back_used;
        record_copy(&r->rec, OP_GET, r->back + r->back_used, src, n);
        r->late[r->n_late++] = (struct cu_late){ dst, r->back + r->back_used, n };
        r->back_used += padded(n);
    }
}
