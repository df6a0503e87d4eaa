/* Whole models: against logits of another program, and against themselves. */
#include "safetens.h"

#include "base/log.h"
#include "base/mem.h"
#include "kernel/quant.h"
#include "kv/chain.h"
#include "model/decoder.h"
#include "model/naming.h"
#include "model/place.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

struct world {
    struct source *src;
    struct backend *be;
    struct model *m;
    struct block_pool *pool;
    struct decoder *dec;
};

#define MAX_TOKENS 96

static struct world open_world(const char *path, bool reference)
{
    struct world w = { 0 };
    struct err e = { 0 };
    enum dtype kv = reference ? DT_F32 : DT_F16;
    struct decoder_opt opt = { MAX_TOKENS, 8, 8, MAX_TOKENS };
    if (source_open(&w.src, path, &e) != OK ||
        backend_open(&w.be, &(struct backend_opt){ .n_threads = 2, .reference = reference }, &e) !=
            OK ||
        model_open(&w.m, w.src, w.be, &e) != OK ||
        block_pool_open(&w.pool, w.be, model_kvshape(w.m), w.m->hp.n_layers, kv, 64, &e) != OK ||
        decoder_open(&w.dec, w.m, w.pool, opt, &e) != OK)
        fail_msg("%s", e.msg);
    return w;
}

static void close_world(struct world *w)
{
    decoder_close(w->dec);
    block_pool_close(w->pool);
    model_close(w->m);
    for (int i = 0; i < MEM_KINDS; i++) assert_int_equal(w->be->used_bytes[i], 0);
    backend_close(w->be);
    source_close(w->src);
}

/* A run of tokens of one sequence at once. */
static const float *run(struct world *w, const struct chain *c, const int32_t *ids, int from, int n)
{
    int32_t pos[MAX_TOKENS], seq[MAX_TOKENS] = { 0 }, rows[MAX_TOKENS];
    struct batch b = { .n_tokens = n,
                       .ids = ids,
                       .pos = pos,
                       .seq = seq,
                       .n_seqs = 1,
                       .table = c->blocks,
                       .table_stride = c->n,
                       .n_out = n,
                       .out_rows = rows };
    const float *logits = NULL;
    struct err e = { 0 };
    for (int i = 0; i < n; i++) pos[i] = from + i, rows[i] = i;
    if (decoder_run(w->dec, &b, &logits, &e) != OK) fail_msg("%s", e.msg);
    return logits;
}

static int best(const float *x, int n)
{
    int b = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[b]) b = i;
    return b;
}

static double row_err(const float *x, const float *ref, int n)
{
    double d = 0, r = 0;
    for (int i = 0; i < n; i++)
        d += ((double)x[i] - ref[i]) * ((double)x[i] - ref[i]), r += (double)ref[i] * ref[i];
    return sqrt(d / r);
}

/* ---- golden logits ---- */

static void ids_of(const struct source *s, const char *name, int32_t *out, int n)
{
    const struct source_tensor *t = source_find(s, name);
    assert_non_null(t);
    assert_int_equal(t->dims[0], n);
    for (int i = 0; i < n; i++) {
        int64_t v;
        memcpy(&v, (const char *)t->data + (size_t)i * 8, 8);
        out[i] = (int32_t)v;
    }
}

static double margin_of(const struct source *s)
{
    struct str v;
    double f = 0;
    if (source_str(s, "metadata:greedy_margin", &v)) str_to_f64(v, &f);
    return f;
}

static void check_golden(const char *model, const char *folder, bool reference, double bound)
{
    struct world w = open_world(model, reference);
    struct source *g = NULL;
    struct chain c;
    int32_t ids[48], greedy[16], next;
    int n_vocab = w.m->hp.n_vocab;
    char *path = path_join(folder, "golden.safetensors");
    const struct source_tensor *ref;
    const float *logits;
    float *row = mem_array((size_t)n_vocab, sizeof *row);
    double worst = 0;
    int match = 0;

    assert_int_equal(source_open(&g, path, NULL), OK);
    ids_of(g, "input_ids", ids, 48);
    ids_of(g, "greedy", greedy, 16);
    ref = source_find(g, "logits");
    chain_init(&c, 64);
    assert_true(chain_reserve(&c, w.pool, 64));
    logits = run(&w, &c, ids, 0, 48);
    for (int t = 0; t < 48; t++) {
        memcpy(row, (const char *)ref->data + (size_t)t * (size_t)n_vocab * 4, (size_t)n_vocab * 4);
        double e = row_err(logits + (size_t)t * (size_t)n_vocab, row, n_vocab);
        if (!(e <= worst)) worst = e;
    }
    if (!(worst <= bound))
        fail_msg("%s: relative error %g, expected at most %g", model, worst, bound);
    next = best(logits + 47 * (size_t)n_vocab, n_vocab);
    while (match < 16 && next == greedy[match]) {
        if (++match == 16) break;
        next = best(run(&w, &c, &next, 47 + match, 1), n_vocab);
    }
    if (margin_of(g) > 0.02) assert_int_equal(match, 16);
    chain_release(&c, w.pool);
    source_close(g);
    mem_free(path);
    mem_free(row);
    close_world(&w);
}

static const char *const committed[] = { "llama-yarn-bias", "qwen2",  "phi3",      "gemma3_text", "bitnet",
                                         "gpt2",            "bloom",  "falcon-mq", "glm4_moe", "mamba2", "qwen3_next",
                                         "deepseek_v3" };
static const char *const all[] = {
    "deepseek_v2", "deepseek_v3", "lfm2", "mamba", "mamba2", "qwen3_next",
    "arcee",
    "bitnet",
    "bloom",
    "cohere",
    "cohere2",
    "ernie4_5",
    "exaone4",
    "falcon-mq",
    "falcon-new",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gpt_oss",
    "gptj",
    "granite",
    "granitemoe",
    "helium",
    "hunyuan_v1_dense",
    "llama",
    "llama-tied-l3rope",
    "llama-yarn-bias",
    "ministral",
    "mistral",
    "mixtral",
    "mpt",
    "nemotron",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "opt",
    "phi",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
    "stablelm",
    "stablelm2",
    "starcoder2",
};
#define N(a) (sizeof a / sizeof a[0])

static const char *golden(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "tests/golden/hf/%s", name);
    assert_non_null(repo(path));
    return repo(path);
}

static const char *fixture(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "fixtures/hf/%s", name);
    return shared(path);
}

static void logits_are_those_of_the_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(committed); i++) {
        check_golden(golden(committed[i]), golden(committed[i]), true, 1e-4);
        check_golden(golden(committed[i]), golden(committed[i]), false, 2e-3);
    }
}

static void logits_of_all_architectures_are_those_of_the_reference(void **state)
{
    (void)state;
    need_shared("fixtures/hf");
    for (size_t i = 0; i < N(all); i++) {
        check_golden(fixture(all[i]), fixture(all[i]), true, 1e-4);
        check_golden(fixture(all[i]), fixture(all[i]), false, 2e-3);
    }
}

/* ---- over several devices ---- */

/* n_first layers on one backend, the others on a second. */
static struct world open_split(const char *path, struct backend **first, int n_first)
{
    struct world w = { 0 };
    struct err e = { 0 };
    struct backend_opt be = { .n_threads = 1, .reference = true };
    struct decoder_opt opt = { MAX_TOKENS, 8, 8, MAX_TOKENS };
    struct backend_share shares[2];
    struct arena arena = { 0 };
    struct hparams hp;

    if (source_open(&w.src, path, &e) != OK || hparams_read(&hp, &arena, w.src, &e) != OK ||
        backend_open(first, &be, &e) != OK || backend_open(&w.be, &be, &e) != OK)
        fail_msg("%s", e.msg);
    shares[0] = (struct backend_share){ *first, n_first };
    shares[1] = (struct backend_share){ w.be, hp.n_layers - n_first };
    arena_release(&arena);
    if (model_open_over(&w.m, w.src, shares, 2, &e) != OK ||
        block_pool_open_over(&w.pool, shares, 2, model_kvshape(w.m), DT_F32, 64, &e) != OK ||
        decoder_open(&w.dec, w.m, w.pool, opt, &e) != OK)
        fail_msg("%s", e.msg);
    return w;
}

static void layers_on_two_devices_give_what_one_gives(void **state)
{
    int32_t ids[24];
    (void)state;
    for (int i = 0; i < 24; i++) ids[i] = 1 + i * 5 % 60;
    for (size_t i = 0; i < N(committed); i++) {
        struct backend *first = NULL;
        struct world a = open_world(golden(committed[i]), true);
        struct world b = open_split(golden(committed[i]), &first, 1);
        size_t n = (size_t)a.m->hp.n_vocab * 24 * sizeof(float);
        struct chain ca, cb;
        chain_init(&ca, 64), chain_init(&cb, 64);
        assert_true(chain_reserve(&ca, a.pool, 64) && chain_reserve(&cb, b.pool, 64));
        assert_memory_equal(run(&a, &ca, ids, 0, 24), run(&b, &cb, ids, 0, 24), n);
        assert_memory_equal(run(&a, &ca, ids, 24, 1), run(&b, &cb, ids, 24, 1), n / 24);
        assert_true(first->used_bytes[MEM_KV] > 0 && b.be->used_bytes[MEM_KV] > 0);
        chain_release(&ca, a.pool), chain_release(&cb, b.pool);
        close_world(&a), close_world(&b);
        for (int k = 0; k < MEM_KINDS; k++) assert_int_equal(first->used_bytes[k], 0);
        backend_close(first);
    }
}

static void shares_that_are_not_the_models_layers_are_refused(void **state)
{
    struct source *src = NULL;
    struct backend *be = NULL;
    struct model *m = NULL;
    struct err e = { 0 };
    (void)state;
    assert_int_equal(source_open(&src, golden("qwen2"), NULL), OK);
    assert_int_equal(backend_open(&be, &(struct backend_opt){ .n_threads = 1, .reference = true }, NULL), OK);
    struct backend_share few[] = { { be, 1 } }, empty[] = { { be, 0 }, { be, 2 } };
    assert_int_equal(model_open_over(&m, src, few, 1, &e), E_INVALID);
    assert_int_equal(model_open_over(&m, src, empty, 2, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "layers"));
    backend_close(be);
    source_close(src);
}

static void as_many_of_the_last_layers_as_fit_go_to_the_device(void **state)
{
    const uint64_t bytes[] = { 50, 40, 10, 10 };
    (void)state;
    assert_int_equal(place_fit(bytes, 4, 5, 4), 0);
    assert_int_equal(place_fit(bytes, 4, 5, 14), 0);
    assert_int_equal(place_fit(bytes, 4, 5, 15), 1);
    assert_int_equal(place_fit(bytes, 4, 5, 64), 2);
    assert_int_equal(place_fit(bytes, 4, 5, 65), 3);
    assert_int_equal(place_fit(bytes, 4, 5, 115), 4);
}

static void vram_only_on_the_cpu_is_refused(void **state)
{
    struct place_opt o = { .backend = { .vram_only = true }, .kv_type = DT_F16 };
    struct place p = { 0 };
    struct source *src = NULL;
    struct model *m = NULL;
    struct err e = { 0 };
    (void)state;
    assert_int_equal(source_open(&src, golden("qwen2"), NULL), OK);
    assert_int_equal(place_model(&p, &m, &o, src, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "vram-only"));
    assert_int_equal(p.n_shares, 0);
    source_close(src);
}

/* ---- the GGUF way ---- */

static enum dtype type_of(const struct gguf_item *it) { return it->keep_f32 ? DT_F32 : it->from[0]->type; }

static void put_rows(struct ggufw *w, const struct gguf_item *it, float scale)
{
    uint64_t bytes;
    float *f = mem_array((size_t)it->cols, sizeof *f), *tmp = mem_array(layout_room(&it->lay), sizeof *f);
    void *out;
    dtype_row_bytes(type_of(it), (uint64_t)it->cols, &bytes);
    out = mem_alloc(bytes);
    for (int64_t r = 0; r < it->rows; r++) {
        naming_row(it, r, DT_F32, f, tmp);
        for (int64_t i = 0; i < it->cols; i++) f[i] *= scale;
        quant_encode(type_of(it), f, out, it->cols);
        ggufw_data(w, out, bytes);
    }
    mem_free(out);
    mem_free(tmp);
    mem_free(f);
}

/* "blk.1.attn_q.scale" beside "blk.1.attn_q.weight"; false: no matrix of a layer. */
static bool scale_name(const struct gguf_item *it, char *out, size_t cap)
{
    size_t n = strlen(it->name);
    if (strncmp(it->name, "blk.", 4) != 0 || it->keep_f32 || n < 7) return false;
    snprintf(out, cap, "%.*s.scale", (int)(n - 7), it->name);
    return true;
}

/* The folder as a GGUF file, matrices in their own type; scaled: halved, with a scale of 2 beside
 * each. */
static void to_gguf(const char *folder, const char *path, bool scaled)
{
    struct source *src = NULL;
    struct arena a = { 0 };
    struct hparams hp;
    struct gguf_extra extra[2];
    struct gguf_item *items;
    struct ggufw *w = NULL;
    struct err e = { 0 };
    char name[160];
    const int64_t one = 1;
    const float two = 2;
    int n;

    if (source_open(&src, folder, &e) != OK || hparams_read(&hp, &a, src, &e) != OK ||
        naming_plan(&hp, src, &a, &items, &n, &e) != OK || ggufw_open(&w, path, &e) != OK)
        fail_msg("%s", e.msg);
    naming_keys(&hp, w);
    int n_extra = naming_extras(&hp, &a, extra);
    for (int i = 0; i < n_extra; i++) ggufw_tensor(w, extra[i].name, DT_F32, &extra[i].n, 1);
    for (int i = 0; i < n; i++) {
        ggufw_tensor(w, items[i].name, type_of(&items[i]), items[i].dims, items[i].n_dims);
        if (scaled && scale_name(&items[i], name, sizeof name)) ggufw_tensor(w, name, DT_F32, &one, 1);
    }
    for (int i = 0; i < n_extra; i++)
        ggufw_data(w, extra[i].data, (size_t)extra[i].n * sizeof(float));
    for (int i = 0; i < n; i++) {
        bool halve = scaled && scale_name(&items[i], name, sizeof name);
        put_rows(w, &items[i], halve ? 0.5f : 1);
        if (halve) ggufw_data(w, &two, sizeof two);
    }
    if (ggufw_close(w, &e) != OK) fail_msg("%s", e.msg);
    arena_release(&a);
    source_close(src);
}

static void check_gguf(const char *folder, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s.gguf", temp_dir(), name);
    to_gguf(folder, path, false);
    check_golden(path, folder, true, 1e-4);
}

/* ---- packed tensors, as some GGUF files have them ---- */

/* So many tensors from items[i] on that go into one, and its name; 1: it stays alone. */
static int packed_with(const struct gguf_item *it, char *name, size_t cap)
{
    static const struct { const char *first, *one; int n; } packs[] = {
        { "attn_q.weight", "attn_qkv.weight", 3 }, { "attn_q.bias", "attn_qkv.bias", 3 },
        { "ffn_gate_exps.weight", "ffn_gate_up_exps.weight", 2 },
    };
    for (size_t i = 0; i < N(packs); i++) {
        const char *at = strstr(it->name, packs[i].first);
        if (!at) continue;
        snprintf(name, cap, "%.*s%s", (int)(at - it->name), it->name, packs[i].one);
        return packs[i].n;
    }
    snprintf(name, cap, "%s", it->name);
    return 1;
}

/* Rows [a, b) of an item; put_rows of a part. */
static void put_some(struct ggufw *w, struct gguf_item it, int64_t a, int64_t b)
{
    uint64_t bytes;
    float *tmp = mem_array((size_t)it.cols, sizeof *tmp);
    void *out;
    dtype_row_bytes(type_of(&it), (uint64_t)it.cols, &bytes);
    out = mem_alloc(bytes);
    for (int64_t r = a; r < b; r++) {
        naming_row(&it, r, type_of(&it), out, tmp);
        ggufw_data(w, out, bytes);
    }
    mem_free(out);
    mem_free(tmp);
}

static void to_packed_gguf(const char *folder, const char *path)
{
    struct source *src = NULL;
    struct arena a = { 0 };
    struct hparams hp;
    struct gguf_item *items;
    struct ggufw *w = NULL;
    struct err e = { 0 };
    char name[160];
    int n = 0, k;

    if (source_open(&src, folder, &e) != OK || hparams_read(&hp, &a, src, &e) != OK ||
        naming_plan(&hp, src, &a, &items, &n, &e) != OK || ggufw_open(&w, path, &e) != OK)
        fail_msg("%s", e.msg);
    naming_keys(&hp, w);
    for (int i = 0; i < n; i += k) {
        int64_t dims[3];
        int at = items[i].n_dims - 2 > 0 ? items[i].n_dims - 2 : 0;
        k = packed_with(&items[i], name, sizeof name);
        memcpy(dims, items[i].dims, sizeof dims);
        for (int j = 1; j < k; j++) dims[at] += items[i + j].dims[at];
        ggufw_tensor(w, name, type_of(&items[i]), dims, items[i].n_dims);
    }
    for (int i = 0; i < n; i += k) {
        int64_t count = items[i].n_dims == 3 ? items[i].dims[0] : 1;
        k = packed_with(&items[i], name, sizeof name);
        for (int64_t c = 0; c < count; c++)
            for (int j = 0; j < k; j++) {
                int64_t each = items[i + j].rows / count;
                put_some(w, items[i + j], c * each, (c + 1) * each);
            }
    }
    if (ggufw_close(w, &e) != OK) fail_msg("%s", e.msg);
    arena_release(&a);
    source_close(src);
}

static void packed_tensors_of_gguf_files_are_read(void **state)
{
    static const char *const names[] = { "qwen2", "glm4_moe" };
    char path[256];
    (void)state;
    for (size_t i = 0; i < N(names); i++) {
        snprintf(path, sizeof path, "%s/%s-packed.gguf", temp_dir(), names[i]);
        to_packed_gguf(golden(names[i]), path);
        check_golden(path, golden(names[i]), true, 1e-4);
    }
}

static void a_gguf_file_gives_the_logits_of_its_folder(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(committed); i++) check_gguf(golden(committed[i]), committed[i]);
}

static void gguf_files_of_all_architectures_give_the_logits_of_their_folders(void **state)
{
    (void)state;
    need_shared("fixtures/hf");
    for (size_t i = 0; i < N(all); i++) check_gguf(fixture(all[i]), all[i]);
}

static void scales_beside_matrices_are_multiplied_in(void **state)
{
    char path[256];
    (void)state;
    snprintf(path, sizeof path, "%s/scaled.gguf", temp_dir());
    to_gguf(golden("bitnet"), path, true);
    check_golden(path, golden("bitnet"), true, 1e-4);
    check_golden(path, golden("bitnet"), false, 2e-3);
}

/* ---- batches ---- */

#define N_SEQS 3

static void fill_ids(int32_t *ids, int n, int seed, int n_vocab)
{
    for (int i = 0; i < n; i++) ids[i] = (int32_t)((i * 37 + seed * 101 + i * i % 13) % n_vocab);
}

/* Sequences of 40, 23 and 7 tokens, each alone; then in batches that mix chunks and single tokens.
 */
static void check_mixture(const char *folder, const int *chunk, const char *what)
{
    static const int len[N_SEQS] = { 40, 23, 7 };
    struct world w = open_world(folder, true);
    int n_vocab = w.m->hp.n_vocab, done[N_SEQS] = { 0 };
    int32_t ids[N_SEQS][40], table[N_SEQS * 4] = { 0 };
    float *alone[N_SEQS];
    struct chain c[N_SEQS];

    for (int s = 0; s < N_SEQS; s++) {
        fill_ids(ids[s], len[s], s, n_vocab);
        chain_init(&c[s], 64);
        assert_true(chain_reserve(&c[s], w.pool, len[s]));
        alone[s] = mem_dup(run(&w, &c[s], ids[s], 0, len[s]),
                           (size_t)len[s] * (size_t)n_vocab * sizeof(float));
        chain_truncate(&c[s], w.pool, 0);
    }
    for (int s = 0; s < N_SEQS; s++) {
        assert_true(chain_reserve(&c[s], w.pool, len[s]));
        for (int i = 0; i < c[s].n; i++) table[s * 4 + i] = c[s].blocks[i];
    }
    for (bool more = true; more;) {
        int32_t tok[MAX_TOKENS], pos[MAX_TOKENS], seq[MAX_TOKENS], rows[MAX_TOKENS];
        struct batch b = { .ids = tok,
                           .pos = pos,
                           .seq = seq,
                           .n_seqs = N_SEQS,
                           .table = table,
                           .table_stride = 4,
                           .out_rows = rows,
                           .seq_len = len };
        const float *logits = NULL;
        struct err e = { 0 };
        more = false;
        for (int s = N_SEQS - 1; s >= 0; s--)            /* the table's order is not the batch's */
            for (int i = 0; i < chunk[s] && done[s] < len[s]; i++, b.n_tokens++) {
                tok[b.n_tokens] = ids[s][done[s]];
                pos[b.n_tokens] = done[s]++;
                seq[b.n_tokens] = s;
                if (i % 2 == 0) rows[b.n_out++] = b.n_tokens;
                more = true;
            }
        if (!more) break;
        if (decoder_run(w.dec, &b, &logits, &e) != OK) fail_msg("%s", e.msg);
        for (int i = 0; i < b.n_out; i++) {
            int s = seq[rows[i]], p = pos[rows[i]];
            double err = row_err(logits + (size_t)i * (size_t)n_vocab,
                                 alone[s] + (size_t)p * (size_t)n_vocab, n_vocab);
            if (!(err <= 1e-5))
                fail_msg("%s, %s: sequence %d at %d is off by %g", folder, what, s, p, err);
        }
    }
    for (int s = 0; s < N_SEQS; s++) {
        chain_release(&c[s], w.pool);
        mem_free(alone[s]);
    }
    close_world(&w);
}

static void sequences_in_one_batch_give_what_they_give_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(committed); i++)
        check_mixture(golden(committed[i]), (int[]){ 40, 23, 7 }, "together");
}

static void a_prompt_in_chunks_is_the_prompt_in_one_piece(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(committed); i++) {
        check_mixture(golden(committed[i]), (int[]){ 7, 7, 7 }, "in sevens");
        check_mixture(golden(committed[i]), (int[]){ 17, 1, 2 }, "mixed with decode");
    }
}

/* Fixture with another configuration; weights stay. */
static const char *with_config(struct folder *f, const char *fixture_dir, const char *name,
                               const char *find, const char *replace)
{
    struct buf config = { 0 }, weights = { 0 }, out = { 0 };
    char *path = path_join(fixture_dir, "config.json");
    const char *at;
    folder_begin(f, name);
    assert_int_equal(file_read(&config, path, 1 << 20, NULL), OK);
    mem_free(path);
    path = path_join(fixture_dir, "model.safetensors");
    assert_int_equal(file_read(&weights, path, 16 << 20, NULL), OK);
    mem_free(path);
    at = strstr(buf_cstr(&config), find);
    assert_non_null(at);
    buf_add(&out, config.p, (size_t)(at - config.p));
    buf_puts(&out, replace);
    buf_puts(&out, at + strlen(find));
    folder_write(f, "config.json", buf_str(&out));
    folder_write(f, "model.safetensors", buf_str(&weights));
    buf_release(&config);
    buf_release(&weights);
    buf_release(&out);
    return f->dir;
}

static void chunks_agree_where_rotary_depends_on_the_length(void **state)
{
    static const int sevens[] = { 7, 7, 7 }, mixed[] = { 17, 1, 2 };
    struct folder f;
    (void)state;
    /* 24 tokens are short: the sequence of 40 is long from its first chunk on, the others never are
     */
    with_config(
        &f, golden("phi3"), "longrope", "\"original_max_position_embeddings\": 4096,",
        "\"original_max_position_embeddings\": 24, \"rope_scaling\": {\"type\": \"longrope\","
        "\"short_factor\": [1,1,1,1,1,1,1,1], \"long_factor\": [1,2,3,4,5,6,7,8]},");
    check_mixture(f.dir, sevens, "longrope in sevens");
    check_mixture(f.dir, mixed, "longrope mixed");
    with_config(&f, golden("qwen2"), "dynamic", "\"max_position_embeddings\": 512,",
                "\"max_position_embeddings\": 24, \"rope_scaling\": {\"type\": \"dynamic\", "
                "\"factor\": 2.0},");
    check_mixture(f.dir, sevens, "dynamic in sevens");
    check_mixture(f.dir, mixed, "dynamic mixed");
}

static bool stop_at(void *arg)
{
    int *left = arg;
    return (*left)-- == 0;
}

static void a_pass_nobody_wants_ends_between_layers(void **state)
{
    struct world w = open_world(golden("qwen2"), true);
    int32_t ids[4] = { 5, 9, 12, 7 }, pos[4] = { 0, 1, 2, 3 }, zero[4] = { 0 }, row[1] = { 3 };
    struct batch b = { .n_tokens = 4, .ids = ids, .pos = pos, .seq = zero, .n_seqs = 1, .table = zero,
                       .table_stride = 1, .n_out = 1, .out_rows = row };
    const float *logits = NULL;
    struct err e = { 0 };
    float first;
    int left;
    (void)state;
    assert_int_equal(decoder_run(w.dec, &b, &logits, &e), OK);
    first = logits[0];
    b.stop = stop_at, b.stop_arg = &left;
    for (int at = 0; at < w.m->hp.n_layers; at++) {
        left = at;
        assert_int_equal(decoder_run(w.dec, &b, &logits, &e), E_CANCELLED);
        assert_int_equal(left, -1);
    }
    left = 1000;                                         /* and again to the end, as if nothing was */
    assert_int_equal(decoder_run(w.dec, &b, &logits, &e), OK);
    assert_true(logits[0] == first);
    close_world(&w);
}

/* ---- a backend that can work behind the host's back ---- */

static int n_parts, n_whole, n_paced;

static void count_flush(struct backend *be, bool whole)
{
    (void)be;
    if (whole) n_whole++;
    else n_parts++;
}

static void count_pace(struct backend *be, int ahead)
{
    (void)be;
    assert_int_equal(ahead, 1);
    n_paced++;
}

static void a_large_pass_is_begun_in_pieces_and_a_small_one_whole(void **state)
{
    enum { N = 520 };
    struct world w = open_world(golden("gemma3_text"), false);
    struct decoder_opt opt = { N, 1, 40, 1 };
    int32_t ids[N], pos[N], seq[N] = { 0 }, table[40], row[1] = { N - 1 };
    struct batch b = { .n_tokens = N, .ids = ids, .pos = pos, .seq = seq, .n_seqs = 1, .table = table,
                       .table_stride = 40, .n_out = 1, .out_rows = row };
    size_t bytes = (size_t)w.m->hp.n_vocab * sizeof(float);
    int n_layers = w.m->hp.n_layers, left;
    const float *logits = NULL;
    struct err e = { 0 };
    void *want;
    (void)state;

    decoder_close(w.dec);
    assert_int_equal(decoder_open(&w.dec, w.m, w.pool, opt, &e), OK);
    for (int i = 0; i < N; i++) ids[i] = 3 + i % 200, pos[i] = i;
    for (int i = 0; i < 40; i++) table[i] = i;
    assert_int_equal(decoder_run(w.dec, &b, &logits, &e), OK);
    want = mem_dup(logits, bytes);

    w.be->flush = count_flush, w.be->pace = count_pace, w.be->whole_tokens = 64;
    assert_int_equal(decoder_start(w.dec, &b, &e), OK);
    assert_int_equal(n_parts, 2);                        /* and no more before somebody waits */
    assert_int_equal(decoder_wait(w.dec, &logits, &e), OK);
    assert_memory_equal(logits, want, bytes);
    assert_int_equal(n_parts, n_layers - 1);             /* sync takes the last */
    assert_int_equal(n_paced, n_layers - 2);
    b.stop = stop_at, b.stop_arg = &left;
    for (int at = 0; at < n_layers - 1; at++) {          /* asked before the start, then for each that is left */
        left = at;
        n_parts = 0;
        assert_int_equal(decoder_run(w.dec, &b, &logits, &e), E_CANCELLED);
        assert_int_equal(n_parts, at ? at + 1 : 0);
    }
    left = 1000, n_parts = n_whole = 0;
    assert_int_equal(decoder_run(w.dec, &b, &logits, &e), OK);
    assert_memory_equal(logits, want, bytes);
    w.be->whole_tokens = N;
    n_parts = 0;
    assert_int_equal(decoder_run(w.dec, &b, &logits, &e), OK);
    assert_memory_equal(logits, want, bytes);
    assert_true(n_whole == 1 && n_parts == 0);
    mem_free(want);
    close_world(&w);
}

static void a_batch_over_the_limits_is_refused(void **state)
{
    struct world w = open_world(golden("qwen2"), true);
    int32_t ids[MAX_TOKENS + 1] = { 0 }, zero[MAX_TOKENS + 1] = { 0 }, pos[2] = { 0, 1000 },
                             bad_block[1] = { 64 };
    struct batch b = { .n_tokens = 1,
                       .ids = ids,
                       .pos = zero,
                       .seq = zero,
                       .n_seqs = 1,
                       .table = zero,
                       .table_stride = 1,
                       .n_out = 1,
                       .out_rows = zero };
    struct batch c;
    const float *logits;
    struct err e = { 0 };
    int32_t id = w.m->hp.n_vocab;
    (void)state;
    assert_int_equal(decoder_run(w.dec, &b, &logits, &e), OK);
    c = b, c.n_tokens = MAX_TOKENS + 1;
    assert_int_equal(decoder_run(w.dec, &c, &logits, &e), E_INVALID);
    c = b, c.ids = &id;
    assert_int_equal(decoder_run(w.dec, &c, &logits, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "320"));
    c = b, c.pos = pos, c.n_tokens = 2;
    assert_int_equal(decoder_run(w.dec, &c, &logits, &e), E_INVALID);
    c = b, c.table = bad_block;
    assert_int_equal(decoder_run(w.dec, &c, &logits, &e), E_INVALID);
    c = b, c.out_rows = pos + 1;
    assert_int_equal(decoder_run(w.dec, &c, &logits, &e), E_INVALID);
    c = b, c.n_out = 0;                                  /* a chunk nobody samples from */
    assert_int_equal(decoder_run(w.dec, &c, &logits, &e), OK);
    close_world(&w);
}

/* ---- files that are not right ---- */

struct edit {
    const char *drop;            /* a tensor that is left out */
    const char *reshape;         /* one with half the rows, twice as long */
    const char *poison;          /* one whose last number becomes NaN */
    const char *transpose;
    const char *widen;           /* one stored as F64 */
};

static void add_widened(struct folder *f, const char *name, const struct source_tensor *t)
{
    size_t n = t->bytes / 2;
    double *d = mem_array(n, sizeof *d);
    for (size_t i = 0; i < n; i++) d[i] = bf16_to_f32(((const uint16_t *)t->data)[i]);
    folder_add(f, name, "F64", t->dims, t->n_dims, d, n * sizeof *d);
    mem_free(d);
}

static void add_transposed(struct folder *f, const char *name, const struct source_tensor *t)
{
    int64_t dims[2] = { t->dims[1], t->dims[0] };
    uint16_t *d = mem_array(t->bytes / 2, 2);
    for (int64_t r = 0; r < t->dims[0]; r++)
        for (int64_t c = 0; c < t->dims[1]; c++)
            d[c * t->dims[0] + r] = ((const uint16_t *)t->data)[r * t->dims[1] + c];
    folder_add(f, name, "BF16", dims, 2, d, t->bytes);
    mem_free(d);
}

/* A bf16 fixture with one thing changed. */
static const char *edited(struct folder *f, const char *dir, const char *name, struct edit how)
{
    struct source *src = NULL;
    struct buf config = { 0 };
    char *path = path_join(dir, "config.json");
    assert_int_equal(source_open(&src, dir, NULL), OK);
    assert_int_equal(file_read(&config, path, 1 << 20, NULL), OK);
    mem_free(path);
    folder_begin(f, name);
    for (size_t i = 0; i < source_n_tensors(src); i++) {
        const struct source_tensor *t = source_tensor(src, i);
        char tensor[256];
        int64_t dims[2] = { t->dims[0], t->dims[1] };
        uint16_t *data = mem_dup(t->data, t->bytes);
        snprintf(tensor, sizeof tensor, "%.*s", STR_ARG(t->name));
        if (how.reshape && strcmp(tensor, how.reshape) == 0) dims[0] /= 2, dims[1] *= 2;
        if (how.poison && strcmp(tensor, how.poison) == 0) data[t->bytes / 2 - 1] = 0x7fc0;
        if (how.transpose && strcmp(tensor, how.transpose) == 0) add_transposed(f, tensor, t);
        else if (how.widen && strcmp(tensor, how.widen) == 0) add_widened(f, tensor, t);
        else if (!how.drop || strcmp(tensor, how.drop) != 0)
            folder_add(f, tensor, "BF16", dims, t->n_dims, data, t->bytes);
        mem_free(data);
    }
    folder_end(f, buf_str(&config));
    buf_release(&config);
    source_close(src);
    return f->dir;
}

static int open_edited(const char *name, struct edit how, struct err *e)
{
    struct folder f;
    struct source *src = NULL;
    struct backend *be = NULL;
    struct model *m = NULL;
    int rc;
    edited(&f, golden("bitnet"), name, how);
    assert_int_equal(source_open(&src, f.dir, e), OK);
    assert_int_equal(
        backend_open(&be, &(struct backend_opt){ .n_threads = 1, .reference = true }, e), OK);
    rc = model_open(&m, src, be, e);
    model_close(m);
    for (int i = 0; i < MEM_KINDS; i++)
        assert_int_equal(be->used_bytes[i], 0); /* nothing left of half a load */
    backend_close(be);
    source_close(src);
    return rc;
}

static void a_position_nobody_learned_is_refused(void **state)
{
    struct world w = open_world(golden("gpt2"), true);
    int32_t id = 1, pos = 100, seq = 0, row = 0, table[8] = { 0 };
    struct batch b = { .n_tokens = 1, .ids = &id, .pos = &pos, .seq = &seq, .n_seqs = 1, .table = table,
                       .table_stride = 8, .n_out = 1, .out_rows = &row };
    const float *logits;
    struct err e = { 0 };
    (void)state;
    assert_int_equal(hparams_max_ctx(&w.m->hp), 512);
    w.m->positions.rows = 100;                           /* within the table, beyond what is known */
    assert_int_equal(decoder_run(w.dec, &b, &logits, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "position 100"));
    close_world(&w);
}

static void a_missing_tensor_is_named_with_its_shape(void **state)
{
    struct err e = { 0 };
    (void)state;
    assert_int_equal(
        open_edited("missing", (struct edit){ .drop = "model.layers.1.mlp.up_proj.weight" }, &e),
        E_NOTFOUND);
    assert_non_null(
        strstr(e.msg, "model.layers.1.mlp.up_proj.weight is missing, expected [160, 64]"));
    assert_int_equal(open_edited("missing2", (struct edit){ .drop = "model.norm.weight" }, &e),
                     E_NOTFOUND);
    assert_non_null(strstr(e.msg, "model.norm.weight is missing, expected [64]"));
    assert_int_equal(open_edited("missing3", (struct edit){ .drop = "lm_head.weight" }, &e),
                     E_NOTFOUND);
}

static void a_tensor_of_another_shape_is_named_with_both(void **state)
{
    struct err e = { 0 };
    (void)state;
    assert_int_equal(
        open_edited("shape", (struct edit){ .reshape = "model.layers.2.mlp.gate_proj.weight" }, &e),
        E_FORMAT);
    assert_non_null(
        strstr(e.msg, "model.layers.2.mlp.gate_proj.weight is [80, 128], expected [160, 64]"));
}

/* What stderr got while fn ran. */
static char *warnings_of(const char *poison)
{
    char path[256], *text = mem_alloc(4096);
    struct err e = { 0 };
    FILE *f;
    int saved = dup(2);
    snprintf(path, sizeof path, "%s/stderr", temp_dir());
    f = fopen(path, "w+");
    assert_non_null(f);
    fflush(stderr);
    dup2(fileno(f), 2);
    int rc = open_edited("poisoned", (struct edit){ .poison = poison }, &e);
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    rewind(f);
    if (fread(text, 1, 4095, f) == 0) text[0] = 0;
    fclose(f);
    assert_int_equal(rc, OK);
    return text;
}

static void nan_weights_are_a_warning(void **state)
{
    static const char *const names[] = { "model.layers.1.input_layernorm.weight",
                                         "model.layers.2.mlp.down_proj.weight",
                                         "model.embed_tokens.weight" };
    (void)state;
    for (size_t i = 0; i < N(names); i++) {
        char *text = warnings_of(names[i]);
        assert_non_null(strstr(text, names[i]));
        assert_non_null(strstr(text, "NaN"));
        mem_free(text);
    }
    char *text = warnings_of("nothing");
    assert_string_equal(text, "");
    mem_free(text);
}

static void an_embedding_the_other_way_round_is_turned(void **state)
{
    struct folder f;
    (void)state;
    edited(&f, golden("bitnet"), "turned",
           (struct edit){ .transpose = "model.embed_tokens.weight" });
    check_golden(f.dir, golden("bitnet"), true, 1e-4);
    edited(&f, golden("bitnet"), "turned2", (struct edit){ .transpose = "lm_head.weight" });
    check_golden(f.dir, golden("bitnet"), false, 2e-3);
}

static void a_type_without_kernels_is_converted(void **state)
{
    struct folder f;
    (void)state;
    edited(&f, golden("bitnet"), "wide",
           (struct edit){ .widen = "model.layers.0.self_attn.q_proj.weight" });
    check_golden(f.dir, golden("bitnet"), true, 1e-4);
}

/* A backend that draws: the largest after what is adjusted. */
static void draw_largest(struct backend *be, int32_t *ids, const struct tensor *logits, const struct pick *picks, int n,
                         const struct pick_adjust *adjust)
{
    (void)be;
    for (int i = 0; i < n; i++) {
        float *x = tensor_row(logits, picks[i].row);
        const struct pick_adjust *a = adjust + picks[i].adjust;
        float aside[8];
        for (int k = 0; k < picks[i].n_adjust; k++) aside[k] = x[a[k].id], x[a[k].id] += a[k].add;
        ids[i] = best(x, logits->cols);
        for (int k = 0; k < picks[i].n_adjust; k++) x[a[k].id] = aside[k];
    }
}

static void a_backend_that_draws_gives_tokens_and_the_other_rows_their_logits(void **state)
{
    enum { N = 6 };
    int32_t ids[N] = { 1, 9, 17, 4, 33, 2 }, pos[N], seq[N] = { 0 }, rows[N], picked[N], want[N];
    struct pick picks[3] = { { .row = 0 }, { .row = 2, .n_adjust = 1 }, { .row = 5, .adjust = 1, .n_adjust = 1 } };
    struct pick_adjust adjust[2];
    struct world w = open_world(repo("tests/golden/hf/qwen2"), true);
    struct chain c;
    struct batch b = { .n_tokens = N, .ids = ids, .pos = pos, .seq = seq, .n_seqs = 1, .n_out = N, .out_rows = rows,
                       .n_picks = 3, .picks = picks, .adjust = adjust, .n_adjust = 2, .picked = picked };
    const float *logits = NULL;
    struct err e = { 0 };
    int vocab = w.m->hp.n_vocab;
    float *plain = mem_array((size_t)N * (size_t)vocab, sizeof *plain);
    (void)state;

    assert_false(decoder_can_pick(w.dec));
    chain_init(&c, N);
    assert_true(chain_reserve(&c, w.pool, N));
    b.table = c.blocks, b.table_stride = c.n, b.n_pick_from = vocab;
    memcpy(plain, run(&w, &c, ids, 0, N), (size_t)N * (size_t)vocab * sizeof *plain);
    for (int i = 0; i < N; i++) pos[i] = i, rows[i] = i, want[i] = best(plain + (size_t)i * (size_t)vocab, vocab);
    assert_int_equal(decoder_run(w.dec, &b, &logits, &e), E_INVALID);    /* this one cannot */

    decoder_close(w.dec);
    w.dec = NULL;
    w.be->sample = draw_largest;
    w.be->name = "draws";                                /* not the host's own memory then */
    struct decoder_opt opt = { .max_tokens = MAX_TOKENS, .max_seqs = 8, .max_table = 8, .max_out = MAX_TOKENS };
    assert_int_equal(decoder_open(&w.dec, w.m, w.pool, opt, &e), OK);
    assert_true(decoder_can_pick(w.dec) && decoder_max_adjust(w.dec) >= 2);
    adjust[0] = (struct pick_adjust){ want[2], -INFINITY, 1, 0 };
    adjust[1] = (struct pick_adjust){ 3, 1e6f, 1, 0 };
    if (decoder_run(w.dec, &b, &logits, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(picked[0], want[0]);
    assert_int_not_equal(picked[1], want[2]);
    assert_int_equal(picked[2], 3);
    for (int i = 0; i < N; i++)
        if (i == 1 || i == 3 || i == 4)
            assert_memory_equal(logits + (size_t)i * (size_t)vocab, plain + (size_t)i * (size_t)vocab,
                                (size_t)vocab * sizeof *plain);
    b.n_picks = 0;
    assert_int_equal(decoder_run(w.dec, &b, &logits, &e), OK);
    assert_memory_equal(logits, plain, (size_t)N * (size_t)vocab * sizeof *plain);
    b.n_picks = 3;
    picks[2].row = 2;
    assert_int_equal(decoder_run(w.dec, &b, &logits, &e), E_INVALID);
    picks[2].row = N;
    assert_int_equal(decoder_run(w.dec, &b, &logits, &e), E_INVALID);
    picks[2].row = 5, picks[2].n_adjust = 2;
    assert_int_equal(decoder_run(w.dec, &b, &logits, &e), E_INVALID);
    picks[2].n_adjust = 1, adjust[1].id = vocab;
    assert_int_equal(decoder_run(w.dec, &b, &logits, &e), E_INVALID);

    mem_free(plain);
    chain_release(&c, w.pool);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_backend_that_draws_gives_tokens_and_the_other_rows_their_logits),
        cmocka_unit_test(logits_are_those_of_the_reference),
        cmocka_unit_test(logits_of_all_architectures_are_those_of_the_reference),
        cmocka_unit_test(layers_on_two_devices_give_what_one_gives),
        cmocka_unit_test(shares_that_are_not_the_models_layers_are_refused),
        cmocka_unit_test(as_many_of_the_last_layers_as_fit_go_to_the_device),
        cmocka_unit_test(vram_only_on_the_cpu_is_refused),
        cmocka_unit_test(a_gguf_file_gives_the_logits_of_its_folder),
        cmocka_unit_test(packed_tensors_of_gguf_files_are_read),
        cmocka_unit_test(gguf_files_of_all_architectures_give_the_logits_of_their_folders),
        cmocka_unit_test(scales_beside_matrices_are_multiplied_in),
            cmocka_unit_test(sequences_in_one_batch_give_what_they_give_alone),
        cmocka_unit_test(a_prompt_in_chunks_is_the_prompt_in_one_piece),
        cmocka_unit_test(chunks_agree_where_rotary_depends_on_the_length),
        cmocka_unit_test(a_pass_nobody_wants_ends_between_layers),
        cmocka_unit_test(a_large_pass_is_begun_in_pieces_and_a_small_one_whole),
        cmocka_unit_test(a_batch_over_the_limits_is_refused),
        cmocka_unit_test(a_position_nobody_learned_is_refused),
        cmocka_unit_test(a_missing_tensor_is_named_with_its_shape),
        cmocka_unit_test(a_tensor_of_another_shape_is_named_with_both),
        cmocka_unit_test(nan_weights_are_a_warning),
        cmocka_unit_test(an_embedding_the_other_way_round_is_turned),
        cmocka_unit_test(a_type_without_kernels_is_converted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
