/* One model over several members: the logits are those of one process, for every kind of layer and
 * for shapes that do not divide evenly; orders and steps survive as bytes and nothing else does. */
#include "support.h"

#include "base/mem.h"
#include "base/rng.h"
#include "comm/shmlink.h"
#include "foreign.h"
#include "format/ggufw.h"
#include "kernel/quant.h"
#include "kv/chain.h"
#include "model/decoder.h"
#include "model/loadorder.h"
#include "model/parallel.h"
#include "model/stepplan.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 6, TOKENS = 150, DECODED = 4 };

/* ---- a gang of threads ---- */

struct gang_world {
    int size;
    void *region;
    struct comm_link *links[MOST];
    pthread_t threads[MOST];
    int rc[MOST];
    struct gang *gang;
};

struct member_arg {
    struct gang_world *w;
    int rank;
};

static void *run_member(void *p)
{
    struct member_arg *a = p;
    struct err e = { 0 };

    a->w->rc[a->rank] = member_serve(a->w->links[a->rank], &e);
    mem_free(a);
    return NULL;
}

static void start_gang(struct gang_world *w, const struct gang_shape *s)
{
    *w = (struct gang_world){ .size = s->tp * s->pp };
    w->region = mem_aligned(shmlink_bytes(w->size));
    memset(w->region, 0, shmlink_bytes(w->size));
    for (int r = 0; r < w->size; r++)
        assert_int_equal(shmlink_open(&w->links[r], w->region, r, w->size, NULL), OK);
    assert_int_equal(gang_over(&w->gang, w->links[0], s, NULL), OK);
    for (int r = 1; r < w->size; r++) {
        struct member_arg *a = mem_new(struct member_arg);
        *a = (struct member_arg){ w, r };
        assert_int_equal(pthread_create(&w->threads[r], NULL, run_member, a), 0);
    }
}

static void end_gang(struct gang_world *w)
{
    for (int r = 1; r < w->size; r++) {
        pthread_join(w->threads[r], NULL);
        comm_link_close(w->links[r]);
    }
    mem_free_aligned(w->region, shmlink_bytes(w->size));
}

/* ---- running a model ---- */

static struct load_opt options(enum dtype kv)
{
    return (struct load_opt){ .backend = { .n_threads = 1, .reference = true },
                              .n_ctx = 192,
                              .kv_tokens = 192,
                              .max_batch = TOKENS,
                              .max_seqs = 1,
                              .max_out = TOKENS,
                              .kv_type = kv,
                              .no_prefix = true };
}

struct result {
    int n_vocab, n_vec;
    float *logits; /* [TOKENS + DECODED][n_vocab] */
    float *hidden; /* of an encoder, [TOKENS][n_vec] */
};

/* A prompt in two chunks, then single tokens. */
static void run_model(struct loadplan *p, struct runner *r, struct result *out)
{
    int32_t ids[TOKENS + DECODED], pos[TOKENS + DECODED], rows[TOKENS + DECODED],
        seq[TOKENS + DECODED] = { 0 }, table[12];
    int n = TOKENS + DECODED, first = 70, at = 0;
    struct rng g;
    struct err e = { 0 };

    rng_seed(&g, 7);
    *out = (struct result){ p->facts.n_vocab, p->facts.n_vec, NULL, NULL };
    out->logits = mem_array((size_t)n, (size_t)out->n_vocab * sizeof(float));
    for (int i = 0; i < n; i++) {
        ids[i] = (int32_t)(rng_u64(&g) % (uint64_t)out->n_vocab);
        pos[i] = i;
        rows[i] = i;
    }
    for (int i = 0; i < 12; i++) table[i] = 11 - i;
    while (at < n) {
        int len = at == 0 ? first : at == first ? TOKENS - first : 1;
        const float *logits = NULL;
        struct batch b = { .n_tokens = len,
                           .ids = ids + at,
                           .pos = pos + at,
                           .seq = seq,
                           .n_seqs = 1,
                           .table = table,
                           .table_stride = 12,
                           .n_out = len,
                           .out_rows = rows };
        if (runner_run(r, &b, &logits, &e) != OK) fail_msg("%s", e.msg);
        memcpy(out->logits + (size_t)at * (size_t)out->n_vocab, logits,
               (size_t)len * (size_t)out->n_vocab * sizeof(float));
        at += len;
    }
}

static void run_whole(const char *path, struct result *out)
{
    struct load_opt o = options(DT_F32);
    struct loadplan *p = NULL;
    struct runner *r = NULL;
    struct err e = { 0 };

    if (loadplan_read(&p, path, &e) != OK || loadplan_make(p, &o, &e) != OK ||
        runner_open(&r, p, &e) != OK)
        fail_msg("%s", e.msg);
    run_model(p, r, out);
    runner_close(r);
    loadplan_close(p);
}

/* foreign: the leader's device; NULL: the CPU. */
static void run_divided(const char *path, const struct gang_shape *s, struct foreign *foreign,
                        struct result *out)
{
    struct gang_world w;
    struct load_opt o = options(DT_F32);
    struct loadplan *p = NULL;
    struct runner *r = NULL;
    struct err e = { 0 };
    struct parallel_stats st;

    start_gang(&w, s);
    o.gang = w.gang;
    o.shard = parallel_shard(s, 0);
    if (loadplan_read(&p, path, &e) != OK || loadplan_make(p, &o, &e) != OK)
        fail_msg("%s: %s", path, e.msg);
    if (foreign) foreign_make(foreign, p->place.shares[0].be);
    if (runner_open(&r, p, &e) != OK) fail_msg("%s: %s", path, e.msg);
    run_model(p, r, out);
    assert_true(parallel_stats(r, &st));
    assert_string_equal(st.sums, s->tp == 1 ? "none" : foreign ? "host" : "shared memory");
    assert_int_equal(st.members, s->tp * s->pp);
    assert_true(st.n_steps == 2 + DECODED && st.bytes > 0 && st.comm_ns <= st.step_ns);
    runner_close(r); /* ends the members */
    end_gang(&w);
    for (int i = 1; i < w.size; i++) assert_int_equal(w.rc[i], OK);
    loadplan_close(p);
}

static double worst_error(const struct result *a, const struct result *b)
{
    double worst = 0;

    for (int t = 0; t < TOKENS + DECODED; t++) {
        double diff = 0, norm = 1e-12;
        for (int i = 0; i < a->n_vocab; i++) {
            size_t k = (size_t)t * (size_t)a->n_vocab + (size_t)i;
            double d = (double)a->logits[k] - b->logits[k];
            diff += d * d;
            norm += (double)a->logits[k] * a->logits[k];
        }
        if (!(sqrt(diff / norm) <= worst)) worst = sqrt(diff / norm);
    }
    return worst;
}

static void check_divided_with(const char *path, const struct gang_shape *s, struct foreign *f,
                               double most)
{
    struct result whole, divided;
    double err;

    run_whole(path, &whole);
    run_divided(path, s, f, &divided);
    err = worst_error(&whole, &divided);
    if (!(err <= most))
        fail_msg("%s, tp %d pp %d: the logits differ by %g", path, s->tp, s->pp, err);
    mem_free(whole.logits);
    mem_free(divided.logits);
}

static void check_divided(const char *path, const struct gang_shape *s, double most)
{
    check_divided_with(path, s, NULL, most);
}

static struct gang_shape shape(int tp, int pp)
{
    return (struct gang_shape){ .tp = tp, .pp = pp, .step_ns = 120000000000ull };
}

/* ---- every kind of layer ---- */

static void folders_divide_with_the_same_logits(void **state)
{
    static const char *const names[] = { "bitnet",    "bloom",           "deepseek_v3",
                                         "falcon-mq", "gemma3_text",     "glm4_moe",
                                         "gpt2",      "llama-yarn-bias", "mamba2",
                                         "phi3",      "qwen2",           "qwen3_next" };
    char path[64];
    (void)state;

    for (size_t i = 0; i < sizeof names / sizeof *names; i += THIN) {
        snprintf(path, sizeof path, "tests/golden/hf/%s", names[i]);
        if (!repo(path)) fail_msg("%s is missing", path);
        check_divided(repo(path), &(struct gang_shape){ .tp = 2, .pp = 1, .step_ns = 0 }, 2e-4);
        check_divided(repo(path), &(struct gang_shape){ .tp = 1, .pp = 2, .step_ns = 0 }, 1e-6);
        check_divided(repo(path), &(struct gang_shape){ .tp = 2, .pp = 2, .step_ns = 0 }, 2e-4);
    }
}

/* A leader whose memory only its device reads takes part through staging memory: sums of blocks, of split
 * norms and of recurrent layers. */
static void devices_with_memory_of_their_own_take_part(void **state)
{
    static const char *const names[] = { "bitnet", "qwen2", "mamba2", "glm4_moe", "qwen3_next" };
    char path[64];
    (void)state;

    for (size_t i = 0; i < sizeof names / sizeof *names; i += THIN) {
        struct gang_shape s = shape(2, 1);
        struct foreign f = { .ways = 1u << GROUP_HOST | 1u << GROUP_IPC };
        snprintf(path, sizeof path, "tests/golden/hf/%s", names[i]);
        check_divided_with(repo(path), &s, &f, 2e-4);
        assert_true(f.n_sums > 0 && f.left && f.n_joins == 1);
        foreign_drop(&f);
    }
}

static void experts_divide_whole(void **state)
{
    struct gang_shape s = shape(2, 1);
    (void)state;

    s.ep = true;
    check_divided(repo("tests/golden/hf/glm4_moe"), &s, 2e-4);
    s.pp = 2;
    check_divided(repo("tests/golden/hf/qwen3_next"), &s, 2e-4);
}

static void the_8_bit_wire_is_close(void **state)
{
    struct gang_shape s = shape(2, 1);
    (void)state;

    s.wire = COMM_Q8;
    check_divided(repo("models/tern-tales.gguf"), &s, 0.1);
}

/* ---- odd shapes ---- */

struct odd {
    int heads, kv, dim, ff, embd, layers;
    enum dtype type;
};

static void put_matrix(struct ggufw *w, struct rng *g, enum dtype t, int64_t rows, int64_t cols,
                       bool declare, const char *name)
{
    int64_t dims[2] = { rows, cols };
    uint64_t bytes = 0;
    float *f;
    void *out;

    dtype_row_bytes(t, (uint64_t)cols, &bytes);
    if (declare && dtype_head(t)) { /* as many bytes of F32; name_heads() puts the type right */
        dims[1] = (int64_t)(bytes / sizeof *f);
        ggufw_tensor(w, name, DT_F32, dims, 2);
        return;
    }
    if (declare) {
        ggufw_tensor(w, name, t, dims, 2);
        return;
    }
    f = mem_array((size_t)cols, sizeof *f);
    out = mem_alloc(bytes);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++)
            f[c] = ((float)(rng_u64(g) % 2001) / 1000 - 1) / sqrtf((float)cols);
        if (dtype_head(t) == 4) { /* tern only reads such types: any codes, and a scale per row */
            float scale = 1e-3f / sqrtf((float)cols);
            for (uint64_t b = 0; b < bytes; b++)
                ((unsigned char *)out)[b] = (unsigned char)rng_u64(g);
            memcpy(out, &scale, sizeof scale);
        } else {
            quant_encode(t, f, out, cols);
        }
        ggufw_data(w, out, bytes);
    }
    mem_free(out);
    mem_free(f);
}

static void put_ones(struct ggufw *w, int64_t n, bool declare, const char *name)
{
    float one = 1;

    if (declare) ggufw_tensor(w, name, DT_F32, &n, 1);
    else
        for (int64_t i = 0; i < n; i++) ggufw_data(w, &one, sizeof one);
}

/* The directory first, then the data in the same order. */
static void put_tensors(struct ggufw *w, const struct odd *o, bool declare)
{
    struct rng g;
    int q = o->heads * o->dim, k = o->kv * o->dim;
    char name[64];

    rng_seed(&g, 3);
#define MATRIX(text, rows, cols)                              \
    snprintf(name, sizeof name, "blk.%d." text ".weight", l), \
        put_matrix(w, &g, o->type, rows, cols, declare, name)
#define ONES(text) \
    snprintf(name, sizeof name, "blk.%d." text ".weight", l), put_ones(w, o->embd, declare, name)
    put_matrix(w, &g, DT_F32, 96, o->embd, declare, "token_embd.weight");
    put_ones(w, o->embd, declare, "output_norm.weight");
    for (int l = 0; l < o->layers; l++) {
        ONES("attn_norm");
        MATRIX("attn_q", q, o->embd);
        MATRIX("attn_k", k, o->embd);
        MATRIX("attn_v", k, o->embd);
        MATRIX("attn_output", o->embd, q);
        ONES("ffn_norm");
        MATRIX("ffn_gate", o->ff, o->embd);
        MATRIX("ffn_up", o->ff, o->embd);
        MATRIX("ffn_down", o->embd, o->ff);
    }
}

/* tern writes no types of rows with a head. In the directory of a file whose matrices are declared as
 * F32 rows of as many bytes: their number of columns and their type. */
static void name_heads(const char *path, const struct odd *o, uint32_t number)
{
    FILE *f = fopen(path, "r+b");
    char bytes[16384], *at = bytes;
    size_t n = fread(bytes, 1, sizeof bytes, f);

    while ((at = memmem(at, (size_t)(bytes + n - at), ".weight", 7))) {
        uint64_t wide, cols = (uint64_t)o->embd;
        uint32_t dims;
        char *p = at += 7;
        memcpy(&dims, p, sizeof dims);
        if (dims != 2 || memcmp(p - 17, "token_embd", 10) == 0) continue;
        if (memcmp(p - 15, "ffn_down", 8) == 0) cols = (uint64_t)o->ff;
        if (memcmp(p - 18, "attn_output", 11) == 0) cols = (uint64_t)(o->heads * o->dim);
        memcpy(&wide, p + 4, sizeof wide);
        assert_true(wide % 69 == 0); /* 512 columns in 276 bytes */
        memcpy(p + 4, &cols, sizeof cols);
        memcpy(p + 20, &number, sizeof number);
    }
    rewind(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static const char *write_odd(const struct odd *o)
{
    static char path[256];
    static int n;
    struct ggufw *w = NULL;
    struct err e = { 0 };

    snprintf(path, sizeof path, "%s/odd%d.gguf", temp_dir(), n++);
    assert_int_equal(ggufw_open(&w, path, &e), OK);
    ggufw_str(w, "general.architecture", STR("llama"));
    ggufw_u32(w, "llama.block_count", (uint32_t)o->layers);
    ggufw_u32(w, "llama.context_length", 256);
    ggufw_u32(w, "llama.embedding_length", (uint32_t)o->embd);
    ggufw_u32(w, "llama.feed_forward_length", (uint32_t)o->ff);
    ggufw_u32(w, "llama.attention.head_count", (uint32_t)o->heads);
    ggufw_u32(w, "llama.attention.head_count_kv", (uint32_t)o->kv);
    ggufw_u32(w, "llama.attention.key_length", (uint32_t)o->dim);
    ggufw_u32(w, "llama.attention.value_length", (uint32_t)o->dim);
    ggufw_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    put_tensors(w, o, true);
    put_tensors(w, o, false);
    if (ggufw_close(w, &e) != OK) fail_msg("%s", e.msg);
    if (o->type == DT_IQ4_KS) name_heads(path, o, 144);
    return path;
}

static void shapes_that_do_not_divide_evenly_give_the_same_logits(void **state)
{
    static const struct {
        struct odd model;
        int tp, pp;
    } cases[] = {
        { { 6, 3, 32, 224, 96, 3, DT_F32 }, 2, 1 },  /* 3 KV heads over 2 members */
        { { 6, 3, 32, 224, 96, 3, DT_Q8_0 }, 2, 2 }, /* and 3 layers over 2 stages */
        { { 5, 1, 16, 100, 64, 2, DT_F16 }, 2, 1 },  /* one KV head, which both keep */
        { { 8, 2, 16, 96, 64, 2, DT_F32 }, 3, 1 },   /* 2 KV heads over 3 members */
        { { 4, 4, 64, 768, 256, 2, DT_Q4_K },
          2,
          1 }, /* blocks of 256: 64 columns are read as F16 */
        { { 6, 3, 64, 1280, 256, 2, DT_Q4_0 }, 2, 1 }, /* blocks of 32 */
        { { 4, 2, 24, 70, 64, 1, DT_F32 }, 2, 1 },     /* nothing is a multiple of 32 */
        { { 12, 6, 16, 128, 64, 4, DT_BF16 }, 5, 1 },
        { { 8, 2, 64, 512, 512, 2, DT_IQ4_KS }, 2, 1 }, /* one scale at the start of a row */
    };
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += THIN) {
        struct gang_shape s = shape(cases[i].tp, cases[i].pp);
        check_divided(write_odd(&cases[i].model), &s, cases[i].model.type == DT_F32 ? 1e-4 : 2e-3);
    }
}

static void shares_are_uneven_where_members_are(void **state)
{
    struct odd o = { 8, 8, 16, 256, 64, 4, DT_F32 };
    struct gang_shape tp = shape(2, 1), pp = shape(1, 2);
    const char *path = write_odd(&o);
    (void)state;

    tp.shares[0] = 3, tp.shares[1] = 1;
    pp.shares[0] = 3, pp.shares[1] = 1;
    check_divided(path, &tp, 1e-4);
    check_divided(path, &pp, 1e-6);
}

/* By speeds that are given in place of measured ones: uneven within a stage, between stages, and both. */
static void parts_by_speed_give_the_same_logits(void **state)
{
    struct odd o = { 8, 4, 16, 256, 64, 4, DT_F32 };
    const char *path = write_odd(&o);
    struct gang_shape s;
    (void)state;

    setenv("TERN_GANG_SPEEDS", "3,1,1,2", 1);
    for (int tp = 1; tp <= 2; tp++)
        for (int pp = 1; pp <= 2; pp++) {
            if (tp * pp == 1) continue;
            s = shape(tp, pp);
            s.split = SPLIT_AUTO;
            check_divided(path, &s, tp > 1 ? 1e-4 : 1e-6);
        }
    unsetenv("TERN_GANG_SPEEDS");
}

/* The part of each member, by the seats of the runner. */
static void find_seats(const char *path, struct gang_shape *s, struct gang_seat *out)
{
    struct gang_world w;
    struct load_opt o = options(DT_F32);
    struct loadplan *p = NULL;
    struct runner *r = NULL;
    struct err e = { 0 };
    const struct gang_seat *seats;
    int n;

    start_gang(&w, s);
    o.gang = w.gang;
    o.shard = parallel_shard(s, 0);
    if (loadplan_read(&p, path, &e) != OK || loadplan_make(p, &o, &e) != OK ||
        runner_open(&r, p, &e) != OK)
        fail_msg("%s", e.msg);
    seats = parallel_seats(r, &n);
    memcpy(out, seats, (size_t)n * sizeof *out);
    assert_int_equal(loadplan_bytes(p).weights, seats[0].weight_bytes); /* of the part as it is */
    runner_close(r);
    end_gang(&w);
    loadplan_close(p);
}

static void members_that_are_alike_have_equal_parts(void **state)
{
    struct odd o = { 8, 8, 16, 256, 64, 4, DT_F32 };
    const char *path = write_odd(&o);
    struct gang_shape tp = shape(2, 1), pp = shape(1, 2);
    struct gang_seat seats[2];
    char memory[64];
    (void)state;

    setenv("TERN_GANG_SPEEDS", "3,1", 1);
    find_seats(path, &tp, seats);
    assert_int_equal(seats[0].weight_bytes, seats[1].weight_bytes);
    find_seats(path, &pp, seats);
    assert_int_equal(seats[0].end_layer, 2);
    tp.split = pp.split = SPLIT_AUTO;
    find_seats(path, &tp, seats);
    assert_true(seats[0].weight_bytes > 2 * seats[1].weight_bytes);
    find_seats(path, &pp, seats);
    assert_int_equal(seats[0].end_layer, 3);
    assert_int_equal(seats[1].first_layer, 3);
    /* A member with memory for one layer has one, also by default. */
    snprintf(memory, sizeof memory, "%.3f,900", (double)seats[0].scratch_bytes / 1e6 + 0.8);
    setenv("TERN_GANG_MEMORY", memory, 1);
    pp.split = SPLIT_DEFAULT;
    find_seats(path, &pp, seats);
    assert_int_equal(seats[0].end_layer, 1);
    unsetenv("TERN_GANG_SPEEDS");
    unsetenv("TERN_GANG_MEMORY");
}

static void a_model_that_fits_nowhere_is_refused_before_loading(void **state)
{
    struct odd o = { 8, 8, 16, 256, 64, 4, DT_F32 };
    struct gang_shape s = shape(2, 1);
    struct gang_world w;
    struct load_opt opt = options(DT_F32);
    struct loadplan *p = NULL;
    struct runner *r = NULL;
    struct err e = { 0 };
    (void)state;

    setenv("TERN_GANG_SPEEDS", "1,1", 1);
    setenv("TERN_GANG_MEMORY", "0.1,0.1", 1);
    s.split = SPLIT_AUTO;
    start_gang(&w, &s);
    opt.gang = w.gang;
    opt.shard = parallel_shard(&s, 0);
    assert_int_equal(loadplan_read(&p, write_odd(&o), &e), OK);
    assert_int_equal(loadplan_make(p, &opt, &e), OK);
    assert_int_equal(runner_open(&r, p, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "do not fit into what is free (member 0: 0 MiB"));
    loadplan_close(p);
    end_gang(&w);
    unsetenv("TERN_GANG_SPEEDS");
    unsetenv("TERN_GANG_MEMORY");
}

/* Steps of one token of several sequences, whole and in pieces: the logits are those of one process, and
 * pieces change no bit. Each sequence has two blocks. */
enum { SEQS = 6, STEPS = 20 };

static void decode_several(const char *path, const struct gang_shape *s, int pieces, float *out)
{
    int32_t ids[SEQS], pos[SEQS], seq[SEQS], rows[SEQS], table[SEQS * 2];
    struct load_opt o = options(DT_F32);
    struct gang_world w;
    struct loadplan *p = NULL;
    struct runner *r = NULL;
    struct err e = { 0 };
    const float *logits = NULL;

    o.kv_tokens = SEQS * 2 * KV_BLOCK, o.n_ctx = 2 * KV_BLOCK, o.max_seqs = SEQS;
    if (s) {
        start_gang(&w, s);
        o.gang = w.gang;
        o.shard = parallel_shard(s, 0);
    }
    if (loadplan_read(&p, path, &e) != OK || loadplan_make(p, &o, &e) != OK ||
        runner_open(&r, p, &e) != OK)
        fail_msg("%s", e.msg);
    if (s) parallel_force_pieces(r, pieces);
    for (int i = 0; i < SEQS; i++)
        seq[i] = rows[i] = i, table[2 * i] = i, table[2 * i + 1] = SEQS + i;
    for (int t = 0; t < STEPS; t++) {
        struct batch b = { .n_tokens = SEQS,
                           .ids = ids,
                           .pos = pos,
                           .seq = seq,
                           .n_seqs = SEQS,
                           .table = table,
                           .table_stride = 2,
                           .n_out = SEQS,
                           .out_rows = rows };
        for (int i = 0; i < SEQS; i++) ids[i] = (t * 7 + i * 13) % 96, pos[i] = t;
        if (runner_run(r, &b, &logits, &e) != OK) fail_msg("%s", e.msg);
    }
    memcpy(out, logits, (size_t)SEQS * (size_t)p->facts.n_vocab * sizeof *out);
    runner_close(r);
    if (s) end_gang(&w);
    loadplan_close(p);
}

static void decode_in_pieces_gives_the_same_logits(void **state)
{
    static const char *const names[] = { NULL, "mamba2", "qwen3_next" };
    struct odd o = { 8, 4, 32, 256, 64, 4, DT_Q8_0 };
    struct gang_shape s = shape(1, 2);
    char folder[64];
    (void)state;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        enum { MOST_VOCAB = 4096 };
        size_t bytes = sizeof(float) * SEQS * MOST_VOCAB;
        float *one = mem_alloc(bytes), *got = mem_alloc(bytes);
        const char *path;
        if (names[i]) snprintf(folder, sizeof folder, "tests/golden/hf/%s", names[i]);
        path = names[i] ? repo(folder) : write_odd(&o);
        memset(one, 0, bytes);
        decode_several(path, NULL, 0, one);
        for (int pieces = 0; pieces <= SEQS; pieces++) { /* 0: by the times of steps */
            memset(got, 0, bytes);
            decode_several(path, &s, pieces, got);
            assert_memory_equal(got, one, bytes);
        }
        s = shape(2, 2); /* sums in another order */
        for (int pieces = 2; pieces <= 4; pieces += 2) {
            decode_several(path, &s, pieces, got);
            for (size_t k = 0; k < SEQS * 96; k++) assert_true(fabsf(got[k] - one[k]) < 2e-3f);
        }
        s = shape(1, 2);
        mem_free(one);
        mem_free(got);
    }
}

/* ---- what a member reads ---- */

static void a_member_reads_its_rows_where_the_file_has_them(void **state)
{
    struct odd o = { 8, 4, 32, 256, 256, 2, DT_Q8_0 };
    struct load_opt opt = options(DT_F32);
    struct loadplan *p = NULL;
    struct gang_shape s = shape(2, 1);
    uint64_t whole, mapped = 0, copied = 0;
    struct err e = { 0 };
    (void)state;

    assert_int_equal(loadplan_read(&p, write_odd(&o), &e), OK);
    assert_int_equal(loadplan_make(p, &opt, &e), OK);
    whole = p->memory[0].mapped;
    loadplan_close(p);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(loadplan_read(&p, write_odd(&o), &e), OK);
        opt.shard = parallel_shard(&s, r);
        assert_int_equal(loadplan_make(p, &opt, &e), OK);
        mapped += p->memory[0].mapped;
        copied += p->memory[0].weights;
        loadplan_close(p);
    }
    /* The embedding is on both; columns of two matrices of each layer are copies. */
    assert_true(mapped < whole + 96 * 256 * 4 + 1);
    assert_true(copied > 0 && copied < whole / 2);
}

/* ---- refusals ---- */

static void refuse(const char *path, int tp, int pp, bool ep, const char *with)
{
    struct gang_shape s = shape(tp, pp);
    struct load_opt o = options(DT_F32);
    struct loadplan *p = NULL;
    struct err e = { 0 };

    s.ep = ep;
    o.shard = parallel_shard(&s, 0);
    assert_int_equal(loadplan_read(&p, path, &e), OK);
    assert_int_equal(loadplan_make(p, &o, &e), E_UNSUPPORTED);
    if (!strstr(e.msg, with)) fail_msg("'%s' does not say '%s'", e.msg, with);
    loadplan_close(p);
}

static void what_cannot_be_divided_is_refused_before_loading(void **state)
{
    struct odd o = { 2, 1, 16, 64, 64, 2, DT_F32 };
    (void)state;

    refuse(write_odd(&o), 3, 1, false, "2 heads in 1 groups, too few for 3 members");
    refuse(write_odd(&o), 1, 3, false, "this llama model has 2 layers");
    refuse(write_odd(&o), 2, 1, true, "no experts");
}

/* Negates every weight in the last kilobyte of the file. */
static const char *change_weights(const char *path)
{
    FILE *f = fopen(path, "r+b");
    unsigned char bytes[1024];

    assert_non_null(f);
    assert_int_equal(fseek(f, -(long)sizeof bytes, SEEK_END), 0);
    assert_int_equal(fread(bytes, 1, sizeof bytes, f), sizeof bytes);
    for (size_t i = 3; i < sizeof bytes; i += 4) bytes[i] ^= 0x80;
    assert_int_equal(fseek(f, -(long)sizeof bytes, SEEK_END), 0);
    assert_int_equal(fwrite(bytes, 1, sizeof bytes, f), sizeof bytes);
    assert_int_equal(fclose(f), 0);
    return path;
}

/* A member with other files than the leader's. */
static void another_model_under_the_same_name_is_refused(void **state)
{
    struct odd a = { 4, 4, 16, 64, 64, 2, DT_F32 }, b = { 4, 4, 16, 96, 64, 2, DT_F32 };
    struct gang_shape s = shape(2, 1);
    struct load_opt o = options(DT_F32);
    struct loadplan *p = NULL, *other = NULL;
    struct loadorder *x = mem_new(struct loadorder), *y = mem_new(struct loadorder);
    struct err e = { 0 };
    (void)state;

    o.shard = parallel_shard(&s, 0);
    assert_int_equal(loadplan_read(&p, write_odd(&a), &e), OK);
    assert_int_equal(loadplan_make(p, &o, &e), OK);
    assert_int_equal(loadorder_fill(x, p, &s, &e), OK);
    assert_int_equal(loadorder_read(y, x, sizeof *x, &e), OK);
    assert_int_equal(loadorder_compare(y, p, &e), OK);
    assert_int_equal(loadplan_read(&other, write_odd(&b), &e), OK);
    assert_int_equal(loadplan_make(other, &o, &e), OK);
    assert_int_equal(loadorder_compare(y, other, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "another model"));
    loadplan_close(other);
    /* The same shapes and sizes, other weights: as after a fine-tuning. */
    assert_int_equal(loadplan_read(&other, change_weights(write_odd(&a)), &e), OK);
    assert_int_equal(loadplan_make(other, &o, &e), OK);
    assert_int_equal(loadorder_compare(y, other, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "other weights"));

    assert_int_equal(loadorder_read(y, x, sizeof *x - 1, &e), E_UNSUPPORTED);
    snprintf(x->version, sizeof x->version, "0.0.9");
    assert_int_equal(loadorder_read(y, x, sizeof *x, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "0.0.9"));
    memset(x->path, 'x', sizeof x->path);
    assert_int_equal(loadorder_read(y, x, sizeof *x, &e), E_FORMAT);
    mem_free(x);
    mem_free(y);
    loadplan_close(p);
    loadplan_close(other);
}

/* ---- orders and steps as bytes ---- */

static void steps_survive_as_bytes(void **state)
{
    int32_t ids[] = { 5, 6, 7 }, pos[] = { 16, 17, 3 }, seq[] = { 0, 0, 1 },
            table[] = { 4, 5, 6, 7, 8, 9 }, slots[] = { 1, 0 }, out[] = { 2 }, bytes[256];
    struct batch b = { .n_tokens = 3,
                       .ids = ids,
                       .pos = pos,
                       .seq = seq,
                       .n_seqs = 2,
                       .table = table,
                       .table_stride = 3,
                       .slots = slots,
                       .n_out = 1,
                       .out_rows = out };
    struct stepplan p;
    struct err e = { 0 };
    size_t n = stepplan_write(bytes, &b, 2);
    (void)state;

    assert_int_equal(stepplan_read(&p, bytes, n, &e), OK);
    assert_int_equal(p.micro, 2);
    assert_int_equal(p.b.n_tokens, 3);
    assert_int_equal(p.b.table_stride, 2); /* what the batch reads of it */
    assert_memory_equal(p.b.ids, ids, sizeof ids);
    assert_int_equal(p.b.table[2], 7);
    assert_memory_equal(p.b.slots, slots, sizeof slots);
    assert_null(p.b.seq_len);
    for (size_t k = 0; k < n; k++) assert_int_equal(stepplan_read(&p, bytes, k, &e), E_FORMAT);
    assert_int_equal(stepplan_read(&p, bytes, n + 4, &e), E_FORMAT);
    for (int i = 0; i < 7; i++) { /* every field of the head, far too large and negative */
        int32_t was = bytes[i];
        bytes[i] = INT32_MAX;
        if (i != 6) assert_int_equal(stepplan_read(&p, bytes, n, &e), E_FORMAT);
        bytes[i] = -1;
        assert_int_equal(stepplan_read(&p, bytes, n, &e), E_FORMAT);
        bytes[i] = was;
    }
}

static void orders_out_of_step_are_errors(void **state)
{
    char body[] = "what is to be done";
    struct order o = { ORDER_MAGIC, ORDER_STEP, 7, sizeof body, 0 }, b;
    struct err e = { 0 };
    (void)state;

    o.hash = order_hash(&o, body);
    assert_int_equal(order_check(&o, 7, &e), OK);
    assert_int_equal(order_check_body(&o, body, &e), OK);
    assert_int_equal(order_check(&o, 8, &e), E_FORMAT);
    assert_non_null(strstr(e.msg, "not in step"));
    b = o, b.magic = 1;
    assert_int_equal(order_check(&b, 7, &e), E_FORMAT);
    b = o, b.kind = ORDER_KINDS;
    assert_int_equal(order_check(&b, 7, &e), E_FORMAT);
    b = o, b.bytes = (uint64_t)1 << 40;
    assert_int_equal(order_check(&b, 7, &e), E_FORMAT);
    body[3] ^= 1;
    assert_int_equal(order_check_body(&o, body, &e), E_FORMAT);
    body[3] ^= 1;
    b = o, b.kind = ORDER_COPY;
    assert_int_equal(order_check_body(&b, body, &e), E_FORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_survive_as_bytes),
        cmocka_unit_test(orders_out_of_step_are_errors),
        cmocka_unit_test(shapes_that_do_not_divide_evenly_give_the_same_logits),
        cmocka_unit_test(shares_are_uneven_where_members_are),
        cmocka_unit_test(decode_in_pieces_gives_the_same_logits),
        cmocka_unit_test(parts_by_speed_give_the_same_logits),
        cmocka_unit_test(members_that_are_alike_have_equal_parts),
        cmocka_unit_test(a_model_that_fits_nowhere_is_refused_before_loading),
        cmocka_unit_test(folders_divide_with_the_same_logits),
        cmocka_unit_test(devices_with_memory_of_their_own_take_part),
        cmocka_unit_test(experts_divide_whole),
        cmocka_unit_test(the_8_bit_wire_is_close),
        cmocka_unit_test(a_member_reads_its_rows_where_the_file_has_them),
        cmocka_unit_test(what_cannot_be_divided_is_refused_before_loading),
        cmocka_unit_test(another_model_under_the_same_name_is_refused),
    };
    return cmocka_run_group_tests_name("shard", tests, NULL, NULL);
}
