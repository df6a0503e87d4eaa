/* The record of GPU operations: what the field descriptors say about memory, when two steps are
 * equal, and which captured step is replayed as a CUDA graph.
 *
 * Operations are recorded through the backend table. No device is needed; addresses count,
 * device memory is not read. */
#include "support.h"

#include "kernel/cuda/graphs.h"

#include <stddef.h>
#include <string.h>

/* ---- one operation of each kind, by hand ---- */

enum { ROWS = 3, COLS = 8, TENSOR_BYTES = ROWS * COLS * 4 };

/* A record to which operations are appended directly, without the backend table. */
static void open_record(struct record *r)
{
    assert_int_equal(record_init(r, 64, NULL), OK);
    r->share_tokens = r->max_tokens = 64;
    r->index_keys = 512;
}

static struct op *append_op(struct record *r, enum op_kind kind)
{
    memset(record_append(r, kind, 1), 0, op_descs[kind].size);
    return &r->ops[r->n - 1];
}

static void *field_of(const struct op *o, const char *name)
{
    const struct op_desc *d = &op_descs[o->kind];

    for (int i = 0; i < d->n_fields; i++)
        if (strcmp(d->fields[i].name, name) == 0) return (char *)o->u.any + d->fields[i].at;
    fail_msg("%s has no field %s", d->name, name);
    return NULL;
}

static struct op_tensor dense(void *p) { return (struct op_tensor){ p, COLS, ROWS, COLS }; }

/* Fields lie inside their struct, in order, and together cover all its bytes. */
static void check_fields(const struct op_desc *d)
{
    size_t at = 0;

    for (int i = 0; i < d->n_fields; i++) {
        if (d->fields[i].at != at) fail_msg("%s.%s is at %d", d->name, d->fields[i].name, (int)at);
        at += d->fields[i].size;
    }
    assert_int_equal(at, d->size);
    assert_int_equal(d->size % 8, 0);
}

static void field_descriptors_cover_every_byte_of_an_operation(void **state)
{
    (void)state;
    for (int k = 0; k < OP_KINDS; k++) check_fields(&op_descs[k]);
#define PART(name) check_fields(&op_desc_##name);
#include "kernel/cuda/ops.inc"
}

/* ---- equality ---- */

struct saved {
    char bytes[4096];
    size_t n;
    uint64_t hash;
};

static void save_step(struct saved *s, const struct record *r)
{
    s->n = record_saved_bytes(r);
    assert_true(s->n <= sizeof s->bytes);
    record_save(r, s->bytes);
    s->hash = record_hash(r);
}

/* The saved step equals the record, and differs from it after a change of any byte in [at, at +
 * n). */
static void check_each_byte_is_compared(const struct record *r, const struct saved *s, char *at,
                                        size_t n, const char *name)
{
    assert_true(record_equals(r, s->bytes, s->n) && record_hash(r) == s->hash);
    for (size_t i = 0; i < n; i++) {
        at[i] ^= 0x10;
        if (record_equals(r, s->bytes, s->n))
            fail_msg("byte %d of %s is not compared", (int)i, name);
        if (record_hash(r) == s->hash) fail_msg("byte %d of %s is not hashed", (int)i, name);
        at[i] ^= 0x10;
    }
}

static void operations_that_differ_in_one_field_are_not_equal(void **state)
{
    struct record r;
    struct saved s;
    (void)state;

    open_record(&r);
    for (int k = 0; k < OP_KINDS; k++) {
        const struct op_desc *d = &op_descs[k];
        record_clear(&r);
        append_op(&r, OP_GATHER);
        struct op *o = append_op(&r, (enum op_kind)k);
        append_op(&r, OP_ADD);
        save_step(&s, &r);
        for (int i = 0; i < d->n_fields; i++) {
            const struct op_field *f = &d->fields[i];
            check_each_byte_is_compared(&r, &s, (char *)o->u.any + f->at, f->size, f->name);
        }
    }
    record_release(&r);
}

static void jobs_and_views_are_compared(void **state)
{
    struct record r;
    struct saved s;
    (void)state;

    open_record(&r);
    append_op(&r, OP_LINEAR);
    memset(r.jobs, 0, 2 * sizeof *r.jobs), r.n_jobs = 2;
    memset(r.views, 0, 2 * sizeof *r.views), r.n_views = 2;
    save_step(&s, &r);
    check_each_byte_is_compared(&r, &s, (char *)r.jobs, 2 * sizeof *r.jobs, "jobs");
    check_each_byte_is_compared(&r, &s, (char *)r.views, 2 * sizeof *r.views, "views");
    r.n_views = 1;
    assert_false(record_equals(&r, s.bytes, s.n));
    r.n_views = 2;
    append_op(&r, OP_LINEAR);
    assert_false(record_equals(&r, s.bytes, s.n));
    record_release(&r);
}

/* The same operations in another order, and an operation of another kind with the same field
 * values. */
static void order_and_kind_are_compared(void **state)
{
    static const enum op_kind steps[][2] = { { OP_SCALE, OP_SOFTCAP },
                                             { OP_SOFTCAP, OP_SCALE },
                                             { OP_SCALE, OP_CLAMP },
                                             { OP_SCALE, OP_SCALE } };
    struct record r;
    struct saved s;
    (void)state;

    open_record(&r);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            record_clear(&r);
            append_op(&r, steps[i][0]), append_op(&r, steps[i][1]);
            save_step(&s, &r);
            record_clear(&r);
            append_op(&r, steps[j][0]), append_op(&r, steps[j][1]);
            assert_int_equal(record_equals(&r, s.bytes, s.n), i == j);
        }
    record_release(&r);
}

/* ---- recording ---- */

/* Arguments for the calls. Only weights, layers and views are read; all other pointers are mere
 * addresses. No two arguments of one call are equal, and none is 0. */
struct world {
    struct record r;
    struct backend be;
    float mem[96][ROWS * COLS];
    struct weight w[8];
    struct kvlayer layers[2];
    struct kvview kv;
    struct statelayer states[2];
    struct state_run runs[2];
    struct stateview st;
    int next;
};

static float *address(struct world *w) { return w->mem[w->next++]; }

static struct tensor tensor_at(struct world *w)
{
    struct tensor t = tensor_f32(address(w), ROWS, COLS);

    t.stride = COLS + (size_t)w->next;
    return t;
}

static void open_world(struct world *w)
{
    memset(w, 0, sizeof *w);
    open_record(&w->r);
    w->be = (struct backend){ .name = "record", .self = &w->r };
    record_fill_table(&w->be);
    for (int i = 0; i < 8; i++)
        w->w[i] =
            (struct weight){ DT_Q8_0, 16 + i, 32 + i, 1 + i, NULL, w->mem[i], 100, 7 + i, NULL };
    for (int i = 0; i < 2; i++) {
        w->layers[i] = (struct kvlayer){ w->mem[i], w->mem[2 + i], 2 + i,      4 + i, 6 + i, 64,
                                         96,        true,          w->mem[63], 32,    COLS };
        w->states[i] = (struct statelayer){ w->mem[i], w->mem[2 + i], 1 << 12, 1 << 13 };
    }
    w->kv = (struct kvview){ .type = DT_F16,
                             .layers = w->layers,
                             .n_layers = 2,
                             .table = (int32_t *)w->mem[4],
                             .table_stride = 9,
                             .seq = (int32_t *)w->mem[5],
                             .pos = (int32_t *)w->mem[6],
                             .n_tokens = ROWS,
                             .n_seqs = 2,
                             .max_pos = 300,
                             .seq_end = (int32_t *)w->mem[7] };
    w->st = (struct stateview){ w->states, 2, w->runs, 2, ROWS };
    w->next = 8;
}

static void close_world(struct world *w) { record_release(&w->r); }

static void record_rows(struct world *w)
{
    struct backend *be = &w->be;
    struct tensor t[6];

    for (int i = 0; i < 6; i++) t[i] = tensor_at(w);
    be->copy(be, address(w), address(w), 40);
    be->embed(be, &t[0], &w->w[0], (int32_t *)address(w), 0.5f);
    be->gather(be, &t[0], &t[1], (int32_t *)address(w));
    be->rmsnorm(be, &t[0], &t[1], address(w), 1e-5f);
    be->layernorm(be, &t[0], &t[1], address(w), address(w), 1e-5f);
    be->headnorm(be, &t[0], 2, 4, address(w), 4, 1e-5f);
    be->headnorm_layer(be, &t[0], 2, 4, address(w), address(w), 4, 1e-5f);
    be->act(be, &t[0], &t[1], &t[2], ACT_GELU);
    be->add(be, &t[0], &t[1], 0.5f);
    be->scale(be, &t[0], 0.5f);
    be->softcap(be, &t[0], 30);
    be->clamp(be, &t[0], 8);
    be->gate_rows(be, &t[0], &t[1]);
}

static void record_families(struct world *w)
{
    struct backend *be = &w->be;
    struct tensor t[3], one = tensor_at(w);

    for (int i = 0; i < 3; i++) t[i] = tensor_at(w);
    be->xielu(be, &t[0], &(struct xielu_opt){ 0.5f, 0.25f, 2, 1e-6f });
    be->clipped_glu(be, &t[0], &t[1], &t[2], &(struct glu_clip){ 1.7f, 7, 1 });
    be->scale_by_pos(be, &t[0], (int32_t *)address(w), &(struct pos_scale_opt){ 0.1f, 1, 8192 });
    be->mix_streams(be, &t[0], &t[1], &t[2], 2);
    be->add_weighted(be, &t[0], &t[1], &t[2], 3, 1);
    be->match_rms(be, &t[0], &t[1], 1e-5f);
    be->sparsify(be, &t[0], 1.5f);
    be->hyper_weights(be, &t[0], address(w), address(w), &(struct hyper_opt){ 2, 20, 1e-6f });
    be->hyper_in(be, &t[0], &t[1], &t[2], 4);
    be->hyper_out(be, &t[0], &t[1], &one, 4);
}

static void record_products(struct world *w)
{
    struct backend *be = &w->be;
    struct tensor x = tensor_at(w), out = tensor_at(w), logits = tensor_at(w);
    struct linear jobs[2] = { { tensor_at(w), &w->w[0], address(w), true, 0.5f },
                              { tensor_at(w), &w->w[1], address(w), true, 2 } };
    struct linear router = { .out = logits, .w = &w->w[2] };
    struct linear_heads_opt heads = { &w->w[3], 8, 24, 5 };
    struct route_opt route = { .route = ROUTE_SIGMOID,
                               .n_used = 2,
                               .norm = true,
                               .scale = 0.5f,
                               .bias = address(w),
                               .n_groups = 4,
                               .n_groups_used = 2,
                               .group_top = 3,
                               .jitter = 0.25f,
                               .expert_scale = address(w),
                               .by_token = (int32_t *)address(w),
                               .ids = (int32_t *)address(w) };
    struct experts_opt experts = { .n = 2,
                                   .n_used = 2,
                                   .gate = &w->w[0],
                                   .up = &w->w[2],
                                   .down = &w->w[4],
                                   .b_gate = address(w),
                                   .b_up = address(w),
                                   .b_down = address(w),
                                   .act = ACT_GELU,
                                   .clip = { 1.7f, 7, 1 },
                                   .scale = 0.5f,
                                   .add = true,
                                   .weigh_inputs = true,
                                   .n_zero = 3,
                                   .xs = tensor_at(w),
                                   .hs = tensor_at(w),
                                   .us = tensor_at(w),
                                   .ys = tensor_at(w),
                                   .order = (int32_t *)address(w) };

    be->linear(be, &x, jobs, 2);
    be->linear(be, &x, &router, 1);
    be->route(be, (int32_t *)address(w), address(w), &logits, &route);
    be->experts(be, &out, &x, (int32_t *)address(w), address(w), &experts);
    be->linear_heads(be, &out, &x, &heads);
}

static void record_attention(struct world *w)
{
    struct backend *be = &w->be;
    struct tensor q = tensor_at(w), k = tensor_at(w), v = tensor_at(w), out = tensor_at(w),
                  table = tensor_at(w);
    struct key_choice keys = { (uint32_t *)address(w), 32, 2 };
    struct attend_opt opt = { .n_heads = 2,
                              .n_kv_heads = 1,
                              .head_dim = 4,
                              .head_dim_v = 6,
                              .scale = 0.5f,
                              .softcap = 50,
                              .window = 128,
                              .bidirectional = true,
                              .sinks = address(w),
                              .slopes = address(w),
                              .keys = &keys };

    be->rope_table(be, &table, (int32_t *)address(w), address(w), 4, 0.5f);
    be->rope(be, &q, 2, 4, 4, &table, ROPE_PAIR);
    be->kv_put(be, &w->kv, 1, &k, &v);
    be->attend(be, &out, &q, &w->kv, 1, &opt);
    opt.bidirectional = false, opt.chunk = 64;
    be->attend(be, &out, &q, &w->kv, 1, &opt);
}

/* A cache whose rows of values have entries, raw numbers and gates. */
static void record_sparse(struct world *w)
{
    struct backend *be = &w->be;
    struct tensor q = tensor_at(w), k = tensor_at(w), out = tensor_at(w), weights = tensor_at(w);
    struct key_choice keys = { (uint32_t *)address(w), 32, 1 };
    struct index_opt index = { .n_heads = 2,
                               .head_dim = COLS - 1,
                               .top = 16,
                               .block = 4,
                               .local = 1,
                               .scale = 0.5f,
                               .rate = 4 };
    struct attend_opt attend = {
        .n_heads = 3, .head_dim = 4, .scale = 0.5f, .window = 12, .sinks = address(w), .keys = &keys
    };
    struct compress_opt pool = { .rate = 4,
                                 .dim = 4,
                                 .overlap = true,
                                 .bias = address(w),
                                 .norm = address(w),
                                 .eps = 1e-5f,
                                 .freq = address(w),
                                 .n_rot = 2,
                                 .mscale = 0.5f };

    w->layers[1] = (struct kvlayer){ .k = w->mem[1],
                                     .v = w->mem[3],
                                     .n_kv_heads = 1,
                                     .head_dim = 4,
                                     .head_dim_v = 20,
                                     .k_block_bytes = 64,
                                     .v_block_bytes = 96,
                                     .x = w->mem[63],
                                     .x_block_bytes = 32,
                                     .index_dim = COLS };
    be->index_put(be, &w->kv, 1, &k);
    be->index_choose(be, &keys, &q, &weights, &w->kv, 1, &index);
    be->compress(be, &w->kv, 1, &pool);
    be->attend_compressed(be, &out, &q, &w->kv, 1, &attend, &pool);
    w->layers[1].index_dim = 20, pool.index = true;
    be->compress(be, &w->kv, 1, &pool);
}

static void record_recurrent(struct world *w)
{
    struct backend *be = &w->be;
    struct tensor out = tensor_at(w), x = tensor_at(w);
    struct conv_opt conv = {
        .w = address(w), .bias = address(w), .k = 4, .silu = true, .at = 5, .of = 40
    };
    struct scan_in in = { tensor_at(w), tensor_at(w), tensor_at(w), tensor_at(w) };
    struct scan_opt scan = { 4, 2, 3, 5, true, address(w), address(w), address(w), 0.5f, 2 };
    struct delta_in din = { tensor_at(w), tensor_at(w), tensor_at(w), tensor_at(w), tensor_at(w) };
    struct delta_opt delta = { .n_heads = 4,
                               .n_k_heads = 2,
                               .dim_k = 3,
                               .dim_v = 5,
                               .a = address(w),
                               .dt_bias = address(w),
                               .q_scale = 0.5f,
                               .k_scale = 2,
                               .beta_scale = 2,
                               .tiled = true };

    be->conv(be, &out, &x, &w->st, 1, &conv);
    be->scan(be, &out, &in, &w->st, 1, &scan);
    be->delta(be, &out, &din, &w->st, 1, &delta);
}

static void record_group(struct world *w)
{
    struct backend *be = &w->be;
    struct tensor out = tensor_at(w), x = tensor_at(w),
                  sum = tensor_f32(address(w), ROWS, COLS); /* without gaps */

    be->all_reduce(be, &sum, 1);
    be->square_sums(be, address(w), &x, true);
    be->norm_by_sums(be, &out, &x, address(w), 64, address(w), 0.5f);
}

static void record_sampling(struct world *w)
{
    struct tensor logits = tensor_at(w);

    w->be.sample(&w->be, (int32_t *)address(w), &logits, (const struct sample_row *)address(w), 2,
                 (const struct logit_adjust *)address(w));
}

typedef void record_fn(struct world *w);
static record_fn *const groups[] = { record_rows,      record_families, record_products,
                                     record_attention, record_sparse,   record_recurrent,
                                     record_group,     record_sampling };

static bool is_zero(const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (((const char *)p)[i]) return false;
    return true;
}

/* Every argument must arrive in the record: no field of any operation stays 0. The fields that
 * are 0 in the calls above for a reason are listed here. */
static bool may_be_zero(const struct op *o, const struct op_field *f)
{
    if (f->role == ROLE_PAD || f->role == ROLE_FUSED || f->role == ROLE_JOBS) return true;
    if (o->kind == OP_NORM) return o->u.norm->kind == OP_NORM_RMS && strcmp(f->name, "b") == 0;
    if (o->kind == OP_LINEAR) return strcmp(f->name, "exact") == 0;
    if (o->kind == OP_ATTEND) /* one of the two calls has it */
        return strcmp(f->name, o->u.attend->chunk ? "bidirectional" : "chunk") == 0;
    if (o->kind == OP_COMPRESS && !o->u.compress->index) return strcmp(f->name, "index") == 0;
    return o->kind == OP_LINEAR_HEADS && strcmp(f->name, "dense") == 0;
}

static void every_field_is_recorded(void **state)
{
    bool seen[OP_KINDS] = { [OP_UPLOAD] = true, [OP_DOWNLOAD] = true, [OP_ROPE_KV] = true };
    (void)state;

    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        struct world w;
        open_world(&w);
        groups[g](&w);
        assert_int_equal(w.r.rc, OK);
        for (int i = 0; i < w.r.n; i++) {
            const struct op *o = &w.r.ops[i];
            const struct op_desc *d = &op_descs[o->kind];
            seen[o->kind] = true;
            for (int k = 0; k < d->n_fields; k++)
                if (!may_be_zero(o, &d->fields[k]) &&
                    is_zero((char *)o->u.any + d->fields[k].at, d->fields[k].size))
                    fail_msg("%s.%s was not recorded", d->name, d->fields[k].name);
        }
        close_world(&w);
    }
    for (int k = 0; k < OP_KINDS; k++)
        if (!seen[k]) fail_msg("no call of this test records %s", op_descs[k].name);
}

/* Padding bytes of the callers' structs do not reach the record. */
static void padding_of_structs_does_not_make_calls_differ(void **state)
{
    struct saved s;
    (void)state;

    for (int i = 0; i < 2; i++) {
        struct world w;
        open_world(&w);
        struct tensor x, out;
        struct linear job;
        memset(&x, i ? 0xa5 : 0, sizeof x), memset(&out, i ? 0x5a : 0, sizeof out);
        memset(&job, i ? 0xff : 0, sizeof job);
        static float a[ROWS * COLS], b[ROWS * COLS];
        static const struct weight weight = { .type = DT_F16, .rows = COLS, .cols = COLS };
        x.type = out.type = DT_F32, x.rows = out.rows = ROWS, x.cols = out.cols = COLS;
        x.stride = out.stride = COLS, x.data = a, out.data = b;
        job.out = out, job.w = &weight, job.bias = NULL, job.add = true, job.scale = 1;
        w.be.rmsnorm(&w.be, &out, &x, a, 1e-5f);
        w.be.linear(&w.be, &out, &job, 1);
        if (i == 0) save_step(&s, &w.r);
        else assert_true(record_equals(&w.r, s.bytes, s.n) && record_hash(&w.r) == s.hash);
        close_world(&w);
    }
}

/* The content of a weight and of a KV layer is compared, not only the address of its struct. */
static void contents_of_weights_and_kv_layers_are_compared(void **state)
{
    struct saved s;
    struct world w;
    (void)state;

    open_world(&w);
    for (int i = 0; i < 6; i++) {
        w.next = 8, record_clear(&w.r);
        record_attention(&w);
        record_products(&w);
        if (i == 0) save_step(&s, &w.r);
        else assert_int_equal(record_equals(&w.r, s.bytes, s.n), i == 1);
        if (i == 1) w.w[1].packed = &w;
        if (i == 2) w.w[1].packed = w.mem[1], w.w[5].layout++; /* down weight of the last expert */
        if (i == 3) w.w[5].layout--, w.layers[1].k = &w;
        if (i == 4) w.layers[1].k = w.mem[1], w.kv.max_pos = 600;
    }
    close_world(&w);
}

static void refused_operations_are_reported_once(void **state)
{
    struct world w;
    (void)state;

    open_world(&w);
    struct tensor x = tensor_at(&w), out = tensor_at(&w);
    struct linear job = { .out = out, .w = &w.w[0] };
    struct attend_opt opt = { .bidirectional = true };
    w.r.max_tokens = ROWS - 1;
    w.be.linear(&w.be, &x, &job, 1);
    assert_int_equal(w.r.rc, E_INVALID);
    assert_string_equal(w.r.msg,
                        "record: a matrix product of 3 tokens, but memory was reserved for 2");
    w.r.max_tokens = ROWS, w.kv.seq_end = NULL;
    w.be.attend(&w.be, &out, &x, &w.kv, 0, &opt);
    assert_non_null(strstr(w.r.msg, "matrix product")); /* the first error is reported */
    assert_int_equal(w.r.n, 0);
    close_world(&w);
}

static void count_launch(void *device)
{
    struct world *w = device;

    w->next++;
    record_clear(&w->r);
}

static void a_full_record_is_launched_to_make_room(void **state)
{
    struct world w;
    (void)state;

    open_world(&w);
    struct tensor x = tensor_at(&w);
    w.next = 0;
    w.r.make_room = count_launch, w.r.device = &w;
    for (int i = 0; i < 2 * w.r.cap + 1; i++) w.be.scale(&w.be, &x, 2);
    assert_int_equal(w.next, 2);
    assert_int_equal(w.r.n, 1);
    close_world(&w);
}

/* ---- memory that an operation reads and writes ---- */

/* Gives each tensor field of an operation memory of its own. */
static void fill_memory(struct op *o, char (*mem)[TENSOR_BYTES])
{
    const struct op_desc *d = &op_descs[o->kind];

    for (int i = 0; i < d->n_fields; i++) {
        const struct op_field *f = &d->fields[i];
        char *at = (char *)o->u.any + f->at, *aux = (char *)o->u.any + f->aux;
        if (f->size == sizeof(struct op_tensor)) *(struct op_tensor *)at = dense(mem[i]);
        if (f->role == ROLE_READ_BYTES || f->role == ROLE_WRITTEN_BYTES)
            *(void **)at = mem[i], *(size_t *)aux = TENSOR_BYTES;
        if (f->role == ROLE_WRITTEN_DENSE) *(int *)aux = 1;
    }
}

static enum op_use use_of_role(enum op_role role)
{
    if (role == ROLE_READ || role == ROLE_UPDATED || role == ROLE_READ_BYTES) return USE_READ;
    if (role == ROLE_WRITTEN || role == ROLE_WRITTEN_DENSE || role == ROLE_ADDED ||
        role == ROLE_WRITTEN_BYTES)
        return USE_OVERWRITE;
    return USE_NONE;
}

static void record_use_reports_the_memory_of_every_field(void **state)
{
    static char mem[40][TENSOR_BYTES], other[TENSOR_BYTES];
    struct record r;
    (void)state;

    open_record(&r);
    for (int k = 0; k < OP_KINDS; k++) {
        const struct op_desc *d = &op_descs[k];
        record_clear(&r);
        struct op *o = append_op(&r, (enum op_kind)k);
        fill_memory(o, mem);
        assert_int_equal(record_use(&r, o, other, sizeof other), USE_NONE);
        for (int i = 0; i < d->n_fields; i++) {
            enum op_use want = use_of_role(d->fields[i].role),
                        part = want == USE_READ ? USE_READ : USE_OVERWRITE;
            if (record_use(&r, o, mem[i], TENSOR_BYTES) != want)
                fail_msg("%s.%s", d->name, d->fields[i].name);
            if (want == USE_NONE) continue;
            assert_int_equal(record_use(&r, o, mem[i] + 8, 8), part); /* a part of the tensor */
            /* more than the tensor: still read, but not overwritten completely */
            enum op_use more = record_use(&r, o, mem[i] + TENSOR_BYTES - 8, 8 + TENSOR_BYTES);
            assert_true(want == USE_READ ? more == USE_READ : more != USE_OVERWRITE);
        }
    }
    record_release(&r);
}

/* The expected reads and writes of some operations, written by hand. */
static void descriptors_state_the_reads_and_writes_of_each_operation(void **state)
{
    static const struct {
        enum op_kind kind;
        const char *reads, *writes;
    } want[] = {
        { OP_UPLOAD, "", "dst" },
        { OP_DOWNLOAD, "src", "" },
        { OP_COPY, "src", "dst" },
        { OP_EMBED, "", "out" },
        { OP_GATHER, "x", "out" },
        { OP_NORM, "x", "out" },
        { OP_HEADNORM, "x", "" },
        { OP_HEADNORM_LAYER, "x", "" },
        { OP_ACT, "gate up", "out" },
        { OP_ADD, "x y", "" },
        { OP_SCALE, "x", "" },
        { OP_SOFTCAP, "x", "" },
        { OP_CLAMP, "x", "" },
        { OP_GATE_ROWS, "x s", "" },
        { OP_XIELU, "x", "" },
        { OP_CLIPPED_GLU, "gate up", "out" },
        { OP_SCALE_BY_POS, "x", "" },
        { OP_MIX_STREAMS, "x coefs", "out" },
        { OP_ADD_WEIGHTED, "x y coefs", "" },
        { OP_MATCH_RMS, "x like", "" },
        { OP_SPARSIFY, "x", "" },
        { OP_HYPER_WEIGHTS, "x", "" },
        { OP_HYPER_IN, "s w", "out" },
        { OP_HYPER_OUT, "s y w", "" },
        { OP_INDEX_PUT, "k", "" },
        { OP_INDEX_CHOOSE, "q weights", "" },
        { OP_COMPRESS, "", "" },
        { OP_ATTEND_COMPRESSED, "q", "out" },
        { OP_LINEAR, "x", "" },
        { OP_LINEAR_HEADS, "x", "out" },
        { OP_ROUTE, "logits", "" },
        { OP_EXPERTS, "x ids weights", "out" },
        { OP_ROPE_TABLE, "", "table" },
        { OP_ROPE, "x table", "" },
        { OP_KV_PUT, "k v", "" },
        { OP_ATTEND, "q", "out" },
        { OP_ROPE_KV, "q k v", "" },
        { OP_CONV, "x", "out" },
        { OP_SCAN, "x dt b c", "out" },
        { OP_DELTA, "q k v alpha beta", "out" },
        { OP_ALL_REDUCE, "x", "" },
        { OP_SQUARE_SUMS, "x", "sums" },
        { OP_NORM_BY_SUMS, "x sums", "out" },
        { OP_SAMPLE, "logits", "" },
    };
    (void)state;

    assert_int_equal(sizeof want / sizeof *want, OP_KINDS);
    for (size_t k = 0; k < OP_KINDS; k++) {
        const struct op_desc *d = &op_descs[want[k].kind];
        char reads[128] = "", writes[128] = "";
        for (int i = 0; i < d->n_fields; i++) {
            enum op_use use = use_of_role(d->fields[i].role);
            char *to = use == USE_READ ? reads : writes;
            if (use == USE_NONE) continue;
            if (*to) strcat(to, " ");
            strcat(to, d->fields[i].name);
        }
        assert_string_equal(reads, want[k].reads);
        assert_string_equal(writes, want[k].writes);
    }
}

/* A sum is one range of numbers. */
static void sums_of_rows_with_gaps_are_refused(void **state)
{
    struct world w;
    struct tensor x;
    (void)state;

    open_world(&w);
    x = tensor_at(&w);
    w.be.all_reduce(&w.be, &x, 0);
    assert_int_equal(w.r.n, 0);
    assert_int_equal(w.r.rc, E_INTERNAL);
    close_world(&w);
}

static void outputs_that_are_added_to_count_as_read(void **state)
{
    static float x[ROWS * COLS], out[2][ROWS * COLS];
    struct record r;
    (void)state;

    open_record(&r);
    struct op *o = append_op(&r, OP_LINEAR);
    memset(r.jobs, 0, 2 * sizeof *r.jobs);
    r.n_jobs = o->u.linear->n_jobs = 2;
    o->u.linear->x = dense(x);
    for (int i = 0; i < 2; i++) r.jobs[i].out = dense(out[i]);
    assert_int_equal(record_use(&r, o, out[1], sizeof out[1]), USE_OVERWRITE);
    r.jobs[1].add = true;
    assert_int_equal(record_use(&r, o, out[1], sizeof out[1]), USE_READ);
    assert_int_equal(record_use(&r, o, out[0], sizeof out[0]), USE_OVERWRITE);
    r.jobs[0].out.stride++; /* gaps between rows */
    assert_int_equal(record_use(&r, o, out[0], sizeof out[0]), USE_NONE);

    o = append_op(&r, OP_EXPERTS);
    o->u.experts->out = dense(out[0]);
    assert_int_equal(record_use(&r, o, out[0], sizeof out[0]), USE_OVERWRITE);
    *(int *)field_of(o, "add") = 1;
    assert_int_equal(record_use(&r, o, out[0], sizeof out[0]), USE_READ);

    o = append_op(&r, OP_LINEAR_HEADS); /* gaps between heads */
    o->u.linear_heads->out = dense(out[0]);
    assert_int_equal(record_use(&r, o, out[0], sizeof out[0]), USE_NONE);
    o->u.linear_heads->dense = 1;
    assert_int_equal(record_use(&r, o, out[0], sizeof out[0]), USE_OVERWRITE);
    record_release(&r);
}

/* ---- captured steps ---- */

static struct graph *capture_step(struct graphs *g, const struct record *r, uint64_t hash,
                                  void *exec)
{
    struct graph *slot = graphs_choose(g, 1);

    assert_non_null(slot);
    assert_true(graphs_keep(slot, r, hash));
    slot->exec = exec;
    return slot;
}

static void a_step_with_the_hash_of_another_is_not_replayed(void **state)
{
    struct graphs g;
    struct record r;
    struct graph *one, *two;
    int exec[2];
    (void)state;

    open_record(&r);
    assert_int_equal(graphs_init(&g, NULL), OK);
    struct op *o = append_op(&r, OP_SCALE);
    one = capture_step(&g, &r, 42, &exec[0]);
    assert_ptr_equal(graphs_find(&g, &r, 42), one);
    assert_null(graphs_find(&g, &r, 43));
    o->u.scale->scale = 2; /* another step with a forged equal hash */
    assert_null(graphs_find(&g, &r, 42));
    two = capture_step(&g, &r, 42, &exec[1]);
    assert_true(one != two);
    assert_ptr_equal(graphs_find(&g, &r, 42), two);
    o->u.scale->scale = 0;
    assert_ptr_equal(graphs_find(&g, &r, 42), one);
    graphs_clear(&g);
    assert_null(graphs_find(&g, &r, 42));
    graphs_release(&g);
    record_release(&r);
}

/* The step is saved as it was before fusion, because the next step is compared before it is
 * fused. */
static void a_captured_step_is_found_again_after_fusion(void **state)
{
    struct graphs g;
    struct world w;
    struct graph *slot = NULL;
    int exec;
    (void)state;

    open_world(&w);
    assert_int_equal(graphs_init(&g, NULL), OK);
    for (int i = 0; i < 2; i++) {
        struct tensor x = tensor_f32(w.mem[20], ROWS, COLS), h = tensor_f32(w.mem[21], ROWS, COLS);
        struct linear job = { .out = tensor_f32(w.mem[22], ROWS, COLS), .w = &w.w[0] };
        record_clear(&w.r);
        w.be.rmsnorm(&w.be, &h, &x, w.mem[23], 1e-5f);
        w.be.linear(&w.be, &h, &job, 1);
        if (i == 0) slot = capture_step(&g, &w.r, record_hash(&w.r), &exec);
        else assert_ptr_equal(graphs_find(&g, &w.r, record_hash(&w.r)), slot);
        record_fuse(&w.r, true);
        assert_true(w.r.ops[0].absorbed);
        assert_null(graphs_find(&g, &w.r, slot->hash));
    }
    graphs_release(&g);
    close_world(&w);
}

static void graphs_in_use_are_not_evicted(void **state)
{
    struct graphs g;
    struct record r;
    int exec;
    (void)state;

    open_record(&r);
    append_op(&r, OP_SCALE);
    assert_int_equal(graphs_init(&g, NULL), OK);
    assert_false(graphs_note_seen(&g, 7));
    assert_true(graphs_note_seen(&g, 7));
    for (int i = 0; i < MAX_GRAPHS; i++)
        capture_step(&g, &r, (uint64_t)i, &exec)->used = 100 + (uint64_t)i;
    assert_null(graphs_choose(&g, 100 + GRAPH_REST - 1));
    assert_ptr_equal(graphs_choose(&g, 100 + GRAPH_REST), &g.slot[0]);
    g.slot[0].used = 200;
    assert_ptr_equal(graphs_choose(&g, 101 + GRAPH_REST), &g.slot[1]);
    g.slot[9].exec = NULL;
    assert_ptr_equal(graphs_choose(&g, 0), &g.slot[9]);
    graphs_release(&g);
    record_release(&r);
}

static void a_step_that_is_too_large_is_not_cached(void **state)
{
    struct graphs g;
    struct record r;
    int exec;
    (void)state;

    assert_int_equal(record_init(&r, 4096, NULL), OK);
    assert_int_equal(graphs_init(&g, NULL), OK);
    append_op(&r, OP_SCALE);
    struct graph *slot = capture_step(&g, &r, 1, &exec);
    while (record_saved_bytes(&r) <= GRAPH_RECORD_BYTES) append_op(&r, OP_EXPERTS);
    assert_false(graphs_keep(slot, &r, 2));
    assert_true(slot->exec == &exec && slot->hash == 1);
    graphs_release(&g);
    record_release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(field_descriptors_cover_every_byte_of_an_operation),
        cmocka_unit_test(operations_that_differ_in_one_field_are_not_equal),
        cmocka_unit_test(jobs_and_views_are_compared),
        cmocka_unit_test(order_and_kind_are_compared),
        cmocka_unit_test(every_field_is_recorded),
        cmocka_unit_test(padding_of_structs_does_not_make_calls_differ),
        cmocka_unit_test(contents_of_weights_and_kv_layers_are_compared),
        cmocka_unit_test(refused_operations_are_reported_once),
        cmocka_unit_test(a_full_record_is_launched_to_make_room),
        cmocka_unit_test(record_use_reports_the_memory_of_every_field),
        cmocka_unit_test(descriptors_state_the_reads_and_writes_of_each_operation),
        cmocka_unit_test(sums_of_rows_with_gaps_are_refused),
        cmocka_unit_test(outputs_that_are_added_to_count_as_read),
        cmocka_unit_test(a_step_with_the_hash_of_another_is_not_replayed),
        cmocka_unit_test(a_captured_step_is_found_again_after_fusion),
        cmocka_unit_test(graphs_in_use_are_not_evicted),
        cmocka_unit_test(a_step_that_is_too_large_is_not_cached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
