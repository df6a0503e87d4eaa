/* Fusion of recorded GPU operations: which operations of a step become one kernel, and which
 * must stay separate.
 *
 * Steps are recorded by hand from calls of the backend table and then passed to the fusion pass.
 * No device is needed; addresses count, memory is not read. */
#include "support.h"

#include "kernel/cuda/record.h"

enum { EMBD = 64, FF = 96, HEADS = 4, KV_HEADS = 2, DIM = 16, TOKENS = 3 };

/* Memory and weights of one layer. Only the addresses count; nothing is read. */
struct world {
    struct record r;
    struct backend be; /* records into r */
    float x[TOKENS][EMBD], h[TOKENS][EMBD], q[TOKENS][HEADS * DIM], k[TOKENS][KV_HEADS * DIM];
    float v[TOKENS][KV_HEADS * DIM], a[TOKENS][HEADS * DIM], gate[TOKENS][FF], up[TOKENS][FF];
    float table[TOKENS][DIM], norm[EMBD], head_norm[DIM];
    struct weight wq, wk, wv, wo, wg, wu, wd;
    struct kvlayer layer;
    struct kvview kv;
    int32_t pos[TOKENS];
};

static struct tensor tensor_of(void *p, int cols) { return tensor_f32(p, TOKENS, cols); }

static struct weight weight_of(int rows, int cols)
{
    return (struct weight){ .type = DT_F16, .rows = rows, .cols = cols, .n = 1 };
}

static void world_open(struct world *w)
{
    *w = (struct world){ 0 };
    assert_int_equal(record_init(&w->r, 256, NULL), OK);
    w->r.share_tokens = w->r.max_tokens = 64;
    w->be = (struct backend){ .name = "record", .self = &w->r };
    record_fill_table(&w->be);
    w->wq = weight_of(HEADS * DIM, EMBD), w->wk = w->wv = weight_of(KV_HEADS * DIM, EMBD);
    w->wo = weight_of(EMBD, HEADS * DIM), w->wg = w->wu = weight_of(FF, EMBD),
    w->wd = weight_of(EMBD, FF);
    w->layer = (struct kvlayer){ w->v, w->k, KV_HEADS, DIM, DIM, 1, 1, false, NULL, 0, 0 };
    w->kv = (struct kvview){ .type = DT_F16,
                             .layers = &w->layer,
                             .n_layers = 1,
                             .pos = w->pos,
                             .n_tokens = TOKENS,
                             .n_seqs = 1,
                             .max_pos = 7 };
}

static void world_close(struct world *w) { record_release(&w->r); }

static struct linear make_job(struct tensor out, const struct weight *w, bool add)
{
    return (struct linear){ .out = out, .w = w, .add = add };
}

static void record_norm(struct world *w, void *out, void *x)
{
    struct tensor o = tensor_of(out, EMBD), i = tensor_of(x, EMBD);
    w->be.rmsnorm(&w->be, &o, &i, w->norm, 1e-5f);
}

/* Variants of an attention block: headnorm: q and k are normed; whole: over all heads at once;
 * norope: without rotary embedding. */
struct how {
    bool headnorm, whole, norope;
};

static void record_attention(struct world *w, struct how how)
{
    struct tensor h = tensor_of(w->h, EMBD), q = tensor_of(w->q, HEADS * DIM),
                  k = tensor_of(w->k, KV_HEADS * DIM);
    struct tensor v = tensor_of(w->v, KV_HEADS * DIM), t = tensor_of(w->table, DIM),
                  a = tensor_of(w->a, HEADS * DIM);
    struct tensor x = tensor_of(w->x, EMBD);
    struct linear qkv[3] = { make_job(q, &w->wq, false), make_job(k, &w->wk, false),
                             make_job(v, &w->wv, false) };
    struct linear o = make_job(x, &w->wo, true);
    struct attend_opt opt = {
        .n_heads = HEADS, .n_kv_heads = KV_HEADS, .head_dim = DIM, .head_dim_v = DIM
    };

    record_norm(w, w->h, w->x);
    w->be.linear(&w->be, &h, qkv, 3);
    if (how.headnorm) {
        w->be.headnorm(&w->be, &q, how.whole ? 1 : HEADS, how.whole ? HEADS * DIM : DIM,
                       w->head_norm, 0, 1e-5f);
        w->be.headnorm(&w->be, &k, how.whole ? 1 : KV_HEADS, how.whole ? KV_HEADS * DIM : DIM,
                       w->head_norm, 0, 1e-5f);
    }
    if (!how.norope) {
        w->be.rope(&w->be, &q, HEADS, DIM, DIM, &t, ROPE_HALF);
        w->be.rope(&w->be, &k, KV_HEADS, DIM, DIM, &t, ROPE_HALF);
    }
    w->be.kv_put(&w->be, &w->kv, 0, &k, &v);
    w->be.attend(&w->be, &a, &q, &w->kv, 0, &opt);
    w->be.linear(&w->be, &a, &o, 1);
}

static void record_feed_forward(struct world *w)
{
    struct tensor h = tensor_of(w->h, EMBD), g = tensor_of(w->gate, FF), u = tensor_of(w->up, FF);
    struct tensor x = tensor_of(w->x, EMBD);
    struct linear gu[2] = { make_job(g, &w->wg, false), make_job(u, &w->wu, false) },
                  down = make_job(x, &w->wd, true);

    record_norm(w, w->h, w->x);
    w->be.linear(&w->be, &h, gu, 2);
    w->be.act(&w->be, &g, &g, &u, ACT_SILU);
    w->be.linear(&w->be, &g, &down, 1);
}

/* The operations that were not absorbed into another one must have these kinds, in this order. */
static void assert_kinds(const struct world *w, const enum op_kind *want, int n)
{
    int at = 0;

    for (int i = 0; i < w->r.n; i++) {
        if (w->r.ops[i].absorbed) continue;
        assert_true(at < n);
        assert_int_equal(w->r.ops[i].kind, want[at++]);
    }
    assert_int_equal(at, n);
}
#define ASSERT_KINDS(w, ...)                                         \
    do {                                                             \
        const enum op_kind want_[] = { __VA_ARGS__ };                \
        assert_kinds(w, want_, (int)(sizeof want_ / sizeof *want_)); \
    } while (0)

/* The nth operation that was not absorbed. */
static const struct op *remaining_op(const struct world *w, int nth)
{
    for (int i = 0; i < w->r.n; i++)
        if (!w->r.ops[i].absorbed && nth-- == 0) return &w->r.ops[i];
    return NULL;
}

static void a_layer_is_fused_into_six_operations(void **state)
{
    struct world w;
    (void)state;
    for (int headnorm = 0; headnorm < 2; headnorm++) {
        world_open(&w);
        record_attention(&w, (struct how){ .headnorm = headnorm });
        record_feed_forward(&w);
        record_fuse(&w.r, true);
        ASSERT_KINDS(&w, OP_LINEAR, OP_ROPE_KV, OP_ATTEND, OP_LINEAR, OP_LINEAR, OP_LINEAR);
        const struct op *qkv = remaining_op(&w, 0), *rope = remaining_op(&w, 1),
                        *o = remaining_op(&w, 3), *gate = remaining_op(&w, 4);
        assert_int_equal(qkv->u.linear->norm, OP_NORM_RMS);
        assert_ptr_equal(qkv->u.linear->x.data, w.x);
        assert_ptr_equal(qkv->u.linear->norm_w, w.norm);
        assert_int_equal(rope->u.rope_kv->n_heads, HEADS);
        assert_ptr_equal(rope->u.rope_kv->table, w.table);
        assert_ptr_equal(rope->u.rope_kv->k_norm, headnorm ? w.head_norm : NULL);
        assert_int_equal(o->u.linear->norm, OP_NORM_NONE);
        assert_true(gate->u.linear->fuse_act && gate->u.linear->norm == OP_NORM_RMS);
        world_close(&w);
    }
}

static void the_rotary_embedding_of_one_token_is_fused_into_its_attention(void **state)
{
    struct world w;
    float host[4];
    (void)state;
    world_open(&w);
    w.kv.n_tokens = 1;
    record_attention(&w, (struct how){ 0 });
    record_feed_forward(&w);
    record_fuse(&w.r, true);
    ASSERT_KINDS(&w, OP_LINEAR, OP_ATTEND, OP_LINEAR, OP_LINEAR, OP_LINEAR);
    int rope = remaining_op(&w, 1)->u.attend->rope;
    assert_true(rope >= 0 && w.r.ops[rope].kind == OP_ROPE_KV && w.r.ops[rope].absorbed);
    assert_ptr_equal(w.r.ops[rope].u.rope_kv->table, w.table);
    world_close(&w);

    world_open(&w); /* q is downloaded */
    w.kv.n_tokens = 1;
    record_attention(&w, (struct how){ 0 });
    record_download(&w.r, host, w.q, sizeof host);
    record_fuse(&w.r, true);
    ASSERT_KINDS(&w, OP_LINEAR, OP_ROPE_KV, OP_ATTEND, OP_LINEAR, OP_DOWNLOAD);
    assert_int_equal(remaining_op(&w, 2)->u.attend->rope, -1);
    world_close(&w);
}

static void all_layers_of_a_step_are_fused_alike(void **state)
{
    struct world w;
    int n = 0;
    (void)state;
    world_open(&w);
    for (int l = 0; l < 5; l++) record_attention(&w, (struct how){ 0 }), record_feed_forward(&w);
    record_fuse(&w.r, true);
    for (int i = 0; i < w.r.n; i++) n += !w.r.ops[i].absorbed;
    assert_int_equal(n, 30);
    world_close(&w);
}

static void a_fused_operation_writes_results_that_are_read_later(void **state)
{
    struct world w;
    float host[TOKENS][EMBD];
    (void)state;
    world_open(&w); /* h is downloaded */
    record_attention(&w, (struct how){ 0 });
    record_download(&w.r, host, w.h[1], sizeof host[0]);
    record_fuse(&w.r, true);
    ASSERT_KINDS(&w, OP_NORM, OP_LINEAR, OP_ROPE_KV, OP_ATTEND, OP_LINEAR, OP_DOWNLOAD);
    world_close(&w);

    world_open(&w); /* up and k are downloaded */
    record_attention(&w, (struct how){ 0 });
    record_feed_forward(&w);
    record_download(&w.r, host, w.up, 4);
    record_download(&w.r, host, w.k, 4);
    record_fuse(&w.r, true);
    ASSERT_KINDS(&w, OP_LINEAR, OP_ROPE, OP_ROPE, OP_KV_PUT, OP_ATTEND, OP_LINEAR, OP_LINEAR,
                 OP_ACT, OP_LINEAR, OP_DOWNLOAD, OP_DOWNLOAD);
    world_close(&w);
}

/* The record is only a part of its step: later operations may read its intermediate results. */
static void intermediate_results_are_written_in_the_middle_of_a_step(void **state)
{
    struct world w;
    (void)state;
    world_open(&w);
    record_feed_forward(&w);
    record_fuse(&w.r, false);
    ASSERT_KINDS(&w, OP_NORM, OP_LINEAR, OP_ACT, OP_LINEAR);
    world_close(&w);
    world_open(&w); /* the record itself overwrites the result: no later operation can read it */
    record_feed_forward(&w), record_feed_forward(&w);
    record_fuse(&w.r, false);
    ASSERT_KINDS(&w, OP_LINEAR, OP_LINEAR, OP_NORM, OP_LINEAR, OP_ACT, OP_LINEAR);
    world_close(&w);
}

static void a_matrix_product_that_overwrites_the_input_of_its_norm_is_not_fused(void **state)
{
    struct world w;
    (void)state;
    world_open(&w);
    struct tensor h = tensor_of(w.h, EMBD), x = tensor_of(w.x, EMBD);
    struct weight square = weight_of(EMBD, EMBD);
    struct linear j = make_job(x, &square, true);
    record_norm(&w, w.h, w.x);
    w.be.linear(&w.be, &h, &j, 1);
    record_fuse(&w.r, true);
    ASSERT_KINDS(&w, OP_NORM, OP_LINEAR);
    world_close(&w);
}

static void unsupported_combinations_are_not_fused(void **state)
{
    struct world w;
    (void)state;
    world_open(&w); /* a norm over all heads at once */
    record_attention(&w, (struct how){ .headnorm = true, .whole = true });
    record_fuse(&w.r, true);
    ASSERT_KINDS(&w, OP_LINEAR, OP_HEADNORM, OP_HEADNORM, OP_ROPE_KV, OP_ATTEND, OP_LINEAR);
    world_close(&w);

    world_open(&w); /* neither norm nor rope: only kv_put */
    record_attention(&w, (struct how){ .norope = true });
    record_fuse(&w.r, true);
    ASSERT_KINDS(&w, OP_LINEAR, OP_KV_PUT, OP_ATTEND, OP_LINEAR);
    world_close(&w);

    world_open(&w); /* norm without rope */
    record_attention(&w, (struct how){ .headnorm = true, .norope = true });
    record_fuse(&w.r, true);
    ASSERT_KINDS(&w, OP_LINEAR, OP_ROPE_KV, OP_ATTEND, OP_LINEAR);
    assert_null(remaining_op(&w, 1)->u.rope_kv->table);
    world_close(&w);

    world_open(&w); /* up is added to the old content */
    struct tensor h = tensor_of(w.h, EMBD), g = tensor_of(w.gate, FF), u = tensor_of(w.up, FF);
    struct linear gu[2] = { make_job(g, &w.wg, false), make_job(u, &w.wu, true) };
    w.be.linear(&w.be, &h, gu, 2);
    w.be.act(&w.be, &g, &g, &u, ACT_SILU);
    record_fuse(&w.r, true);
    ASSERT_KINDS(&w, OP_LINEAR, OP_ACT);
    world_close(&w);
}

static void record_experts(struct world *w, const struct experts_opt *opt, float scale)
{
    static int32_t ids[TOKENS];
    struct tensor h = tensor_of(w->h, EMBD), x = tensor_of(w->x, EMBD),
                  scores = tensor_of(w->gate, 2);
    struct linear router = make_job(scores, &w->wg, false);
    struct route_opt o = { .n_used = 1, .scale = scale };

    record_norm(w, w->h, w->x);
    w->be.linear(&w->be, &h, &router, 1);
    w->be.route(&w->be, ids, w->v[0], &scores, &o);
    w->be.experts(&w->be, &x, &h, ids, w->v[0], opt);
}

/* A small matrix with more than a few tokens is multiplied in F32, and that kernel is not fused. */
static void small_matrix_products_in_f32_are_not_fused(void **state)
{
    static const enum dtype types[] = { DT_F32, DT_BF16, DT_F16, DT_Q8_0 };
    struct world w;
    (void)state;
    for (int i = 0; i < 8; i++) {
        int rows = i < 4 ? 1 : 8;
        world_open(&w);
        float x[8][EMBD], h[8][EMBD], g[8][FF];
        struct tensor tx = tensor_f32(x[0], rows, EMBD), th = tensor_f32(h[0], rows, EMBD);
        struct tensor tg = tensor_f32(g[0], rows, FF);
        struct linear up = make_job(tg, &w.wg, false);
        w.wg.type = types[i % 4];
        w.be.rmsnorm(&w.be, &th, &tx, w.norm, 1e-5f);
        w.be.linear(&w.be, &th, &up, 1);
        w.be.act(&w.be, &tg, &tg, NULL, ACT_RELU2);
        record_fuse(&w.r, true);
        if (rows == 1 || w.wg.type == DT_Q8_0) ASSERT_KINDS(&w, OP_LINEAR);
        else ASSERT_KINDS(&w, OP_NORM, OP_LINEAR, OP_ACT);
        world_close(&w);
    }
}

/* Experts read the result of the norm, so it must be written: the choice of experts does the norm and
 * the router's matrix product too, which is computed in F32 and keeps its own operation. */
static void inputs_of_experts_are_written(void **state)
{
    struct world w;
    (void)state;
    world_open(&w);
    struct weight up[2] = { weight_of(FF, EMBD), weight_of(FF, EMBD) };
    struct experts_opt opt = { .n = 2, .n_used = 1, .up = up, .down = up, .add = true };
    record_experts(&w, &opt, 1);
    record_feed_forward(&w);
    record_fuse(&w.r, true);
    ASSERT_KINDS(&w, OP_ROUTE, OP_EXPERTS, OP_LINEAR, OP_LINEAR);
    assert_int_equal(remaining_op(&w, 0)->u.route->first, 0);
    assert_true(w.r.ops[1].u.linear->exact && w.r.ops[1].u.linear->norm == OP_NORM_NONE);
    assert_false(remaining_op(&w, 2)->u.linear->exact);
    assert_ptr_equal(remaining_op(&w, 1)->u.experts->up.at, up);
    world_close(&w);

    world_open(&w); /* experts read up before it is overwritten */
    struct tensor u = tensor_of(w.up, FF), x = tensor_of(w.x, EMBD);
    record_feed_forward(&w);
    w.be.experts(&w.be, &x, &u, w.pos, w.v[0], &opt);
    record_fuse(&w.r, true);
    ASSERT_KINDS(&w, OP_LINEAR, OP_ACT, OP_LINEAR, OP_EXPERTS);
    world_close(&w);
}

/* A choice of experts by itself: the norm overwrites its input, there are too many tokens, or the
 * logits are added to others. */
static void choices_of_experts_that_are_not_fused(void **state)
{
    struct world w;
    (void)state;
    for (int how = 0; how < 4; how++) {
        world_open(&w);
        static float x[ROUTER_TOKENS + 1][EMBD], h[ROUTER_TOKENS + 1][EMBD],
            g[ROUTER_TOKENS + 1][2];
        static int32_t ids[ROUTER_TOKENS + 1];
        int n = how == 1 ? ROUTER_TOKENS + 1 : ROUTER_TOKENS;
        struct tensor tx = tensor_f32(x[0], n, EMBD), tg = tensor_f32(g[0], n, 2),
                      th = how == 0 ? tx : tensor_f32(h[0], n, EMBD);
        struct linear router = make_job(tg, &w.wg, how == 2);
        struct route_opt o = { .n_used = 1, .scale = 1 };
        w.be.rmsnorm(&w.be, &th, &tx, w.norm, 1e-5f);
        w.be.linear(&w.be, &th, &router, 1);
        w.be.route(&w.be, ids, w.v[0], &tg, &o);
        record_fuse(&w.r, false);
        if (how == 3) ASSERT_KINDS(&w, OP_ROUTE);
        else ASSERT_KINDS(&w, OP_NORM, OP_LINEAR, OP_ROUTE);
        assert_int_equal(w.r.ops[2].u.route->first, how == 3 ? 0 : -1);
        world_close(&w);
    }
}

static void clipped_swiglu_and_layer_norm_of_heads_are_not_fused(void **state)
{
    struct world w;
    (void)state;
    world_open(&w);
    struct tensor h = tensor_of(w.h, EMBD), g = tensor_of(w.gate, FF), u = tensor_of(w.up, FF);
    struct tensor q = tensor_of(w.q, HEADS * DIM), k = tensor_of(w.k, KV_HEADS * DIM);
    struct tensor v = tensor_of(w.v, KV_HEADS * DIM);
    struct linear gu[2] = { make_job(g, &w.wg, false), make_job(u, &w.wu, false) };
    w.be.linear(&w.be, &h, gu, 2);
    w.be.act(&w.be, &g, &g, &u, ACT_SWIGLU_CLIP);
    w.be.headnorm_layer(&w.be, &q, HEADS, DIM, w.head_norm, NULL, 0, 1e-5f);
    w.be.headnorm_layer(&w.be, &k, KV_HEADS, DIM, w.head_norm, NULL, 0, 1e-5f);
    w.be.kv_put(&w.be, &w.kv, 0, &k, &v);
    record_fuse(&w.r, true);
    ASSERT_KINDS(&w, OP_LINEAR, OP_ACT, OP_HEADNORM_LAYER, OP_HEADNORM_LAYER, OP_KV_PUT);
    world_close(&w);
}

static void steps_with_different_experts_have_different_hashes(void **state)
{
    struct world w;
    uint64_t hash[4];
    (void)state;
    world_open(&w);
    struct weight up[2] = { weight_of(FF, EMBD), weight_of(FF, EMBD) };
    struct experts_opt opt = { .n = 2, .n_used = 1, .up = up, .down = up };
    for (int i = 0; i < 4; i++) {
        record_clear(&w.r);
        if (i == 2) up[1].packed = &w;
        record_experts(&w, &opt, i == 3 ? 2 : 1);
        hash[i] = record_hash(&w.r);
    }
    assert_true(hash[0] == hash[1] && hash[1] != hash[2] && hash[2] != hash[3]);
    world_close(&w);
}

/* Records one recurrent layer. */
static void record_recurrent_layer(struct world *w, const struct stateview *st, float limit)
{
    static float small[FF];
    struct tensor h = tensor_of(w->h, EMBD), g = tensor_of(w->gate, FF), u = tensor_of(w->up, FF);
    struct tensor x = tensor_of(w->x, EMBD);
    struct linear in = make_job(g, &w->wg, false), out = make_job(x, &w->wd, true);
    struct conv_opt conv = { .w = small, .k = 4, .silu = true };
    struct scan_in from = { .x = u, .dt = g, .b = g, .c = g };
    struct scan_opt scan = {
        .n_heads = FF, .head_dim = 1, .n_groups = 1, .n_state = 4, .dt_max = limit
    };

    record_norm(w, w->h, w->x);
    w->be.linear(&w->be, &h, &in, 1);
    w->be.conv(&w->be, &u, &g, st, 0, &conv);
    w->be.scan(&w->be, &g, &from, st, 0, &scan);
    w->be.linear(&w->be, &g, &out, 1);
}

static void inputs_of_recurrent_layers_are_written(void **state)
{
    static float memory[64];
    static struct state_run runs[2];
    struct statelayer layer = { memory, memory + 8, 1024, 1024 };
    struct stateview st = { &layer, 1, runs, 2, TOKENS };
    struct world w;
    uint64_t hash[6];
    (void)state;

    world_open(&w);
    record_recurrent_layer(&w, &st, 1);
    record_fuse(&w.r, true);
    ASSERT_KINDS(&w, OP_LINEAR, OP_CONV, OP_SCAN,
                 OP_LINEAR); /* the norm is fused into the first linear */
    world_close(&w);

    world_open(&w); /* a convolution or delta rule reads the result of the norm too */
    struct tensor h = tensor_of(w.h, EMBD), g = tensor_of(w.gate, FF), x = tensor_of(w.x, EMBD),
                  k = tensor_of(w.k, 32);
    struct linear in = make_job(g, &w.wg, false);
    struct conv_opt conv = { .w = memory, .k = 2 };
    struct delta_in din = { .q = k, .k = k, .v = g, .alpha = h, .beta = k };
    struct delta_opt delta = { .n_heads = 1, .dim_k = 16, .dim_v = 16 };
    struct linear_heads_opt heads = { .w = &w.wd, .x_step = FF, .out_step = EMBD };
    for (int i = 0; i < 3; i++) {
        record_norm(&w, w.h, w.x);
        w.be.linear(&w.be, &h, &in, 1);
        if (i == 0) w.be.conv(&w.be, &x, &h, &st, 0, &conv);
        if (i == 1) w.be.delta(&w.be, &g, &din, &st, 0, &delta);
        if (i == 2)
            w.be.linear_heads(&w.be, &x, &g, &heads); /* reads another tensor: the norm is fused */
    }
    record_fuse(&w.r, true);
    ASSERT_KINDS(&w, OP_NORM, OP_LINEAR, OP_CONV, OP_NORM, OP_LINEAR, OP_DELTA, OP_LINEAR,
                 OP_LINEAR_HEADS);
    world_close(&w);

    world_open(&w);
    for (int i = 0; i < 6; i++) {
        record_clear(&w.r);
        if (i == 2) st.n_runs = 1;
        if (i == 3) st.runs = runs + 1;
        if (i == 4) layer.rec++;
        record_recurrent_layer(&w, &st, i == 5 ? 2 : 1);
        hash[i] = record_hash(&w.r);
        if (i == 0) runs[0].slot = 7; /* slots are read on the device */
    }
    assert_true(hash[0] == hash[1]);
    for (int i = 2; i < 6; i++) assert_true(hash[i] != hash[i - 1]);
    world_close(&w);
}

/* A latent is written to the KV cache without a value, which the fused rotary embedding and KV
 * write cannot do. */
static void kv_writes_of_latents_are_not_fused(void **state)
{
    struct world w;
    uint64_t hash[3];
    (void)state;

    world_open(&w);
    w.layer.v_in_k = true, w.layer.v = NULL;
    struct tensor q = tensor_of(w.q, HEADS * DIM), k = tensor_of(w.k, KV_HEADS * DIM),
                  t = tensor_of(w.table, DIM);
    struct tensor a = tensor_of(w.a, HEADS * DIM);
    struct attend_opt opt = {
        .n_heads = HEADS, .n_kv_heads = KV_HEADS, .head_dim = DIM, .head_dim_v = DIM
    };
    for (int i = 0; i < 3; i++) {
        record_clear(&w.r);
        w.be.rope(&w.be, &q, HEADS, DIM, DIM, &t, ROPE_HALF);
        w.be.rope(&w.be, &k, KV_HEADS, DIM, DIM, &t, ROPE_HALF);
        w.be.kv_put(&w.be, &w.kv, 0, &k, NULL);
        opt.bidirectional = i > 0;
        if (i == 2) w.kv.seq_end = w.pos;
        w.be.attend(&w.be, &a, &q, &w.kv, 0, &opt);
        hash[i] = record_hash(&w.r);
    }
    assert_true(hash[0] != hash[1] && hash[1] != hash[2]);
    record_fuse(&w.r, true);
    ASSERT_KINDS(&w, OP_ROPE, OP_ROPE, OP_KV_PUT, OP_ATTEND);
    world_close(&w);
}

static uint64_t hash_of(struct world *w, int max_pos, float eps)
{
    record_clear(&w->r);
    w->kv.max_pos = max_pos;
    record_attention(w, (struct how){ 0 });
    w->r.ops[0].u.norm->eps = eps;
    return record_hash(&w->r);
}

static void equal_steps_have_equal_hashes(void **state)
{
    struct world w;
    (void)state;
    world_open(&w);
    uint64_t a = hash_of(&w, 7, 1e-5f);
    assert_true(hash_of(&w, 7, 1e-5f) == a);
    assert_true(hash_of(&w, 255, 1e-5f) ==
                a); /* one graph serves up to 256 positions, the next up to 512 */
    assert_true(hash_of(&w, 256, 1e-5f) != a);
    assert_true(hash_of(&w, 300, 1e-5f) == hash_of(&w, 511, 1e-5f));
    assert_true(hash_of(&w, 7, 2e-5f) != a);
    w.wq.packed = &w;
    assert_true(hash_of(&w, 7, 1e-5f) != a);
    w.wq.packed = NULL;
    w.layer.k = NULL;
    assert_true(hash_of(&w, 7, 1e-5f) != a);
    w.r.share_tokens = 1; /* a larger step keeps its own max_pos */
    assert_true(hash_of(&w, 7, 1e-5f) != hash_of(&w, 8, 1e-5f));
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_is_fused_into_six_operations),
        cmocka_unit_test(the_rotary_embedding_of_one_token_is_fused_into_its_attention),
        cmocka_unit_test(all_layers_of_a_step_are_fused_alike),
        cmocka_unit_test(a_fused_operation_writes_results_that_are_read_later),
        cmocka_unit_test(intermediate_results_are_written_in_the_middle_of_a_step),
        cmocka_unit_test(a_matrix_product_that_overwrites_the_input_of_its_norm_is_not_fused),
        cmocka_unit_test(unsupported_combinations_are_not_fused),
        cmocka_unit_test(equal_steps_have_equal_hashes),
        cmocka_unit_test(small_matrix_products_in_f32_are_not_fused),
        cmocka_unit_test(inputs_of_experts_are_written),
        cmocka_unit_test(choices_of_experts_that_are_not_fused),
        cmocka_unit_test(clipped_swiglu_and_layer_norm_of_heads_are_not_fused),
        cmocka_unit_test(steps_with_different_experts_have_different_hashes),
        cmocka_unit_test(inputs_of_recurrent_layers_are_written),
        cmocka_unit_test(kv_writes_of_latents_are_not_fused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
