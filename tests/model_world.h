/* model_world.h - a model opened with KV blocks and a decoder, and checks against golden logits. */
#ifndef TERN_TESTS_MODEL_WORLD_H
#define TERN_TESTS_MODEL_WORLD_H

#include "open_model.h"
#include "safetens.h"

#include "base/mem.h"
#include "kv/chain.h"
#include "model/decoder.h"

#include <math.h>
#include <string.h>

struct world {
    struct source *src;
    struct backend *be;
    struct arena arena; /* hyper-parameters */
    struct model *m;
    struct block_pool *pool;
    struct runner *dec;
};

#define MAX_TOKENS 96

static inline struct decoder_opt world_opt(enum dtype kv)
{
    return (struct decoder_opt){ .max_tokens = MAX_TOKENS,
                                 .max_seqs = 8,
                                 .max_table = 8,
                                 .max_out = MAX_TOKENS,
                                 .n_blocks = 64,
                                 .kv_type = kv };
}

static inline struct world open_world(const char *path, bool reference)
{
    struct world w = { 0 };
    struct err e = { 0 };
    struct decoder_opt opt = world_opt(reference ? DT_F32 : DT_F16);
    if (source_open(&w.src, path, &e) != OK ||
        backend_open(&w.be, &(struct backend_opt){ .n_threads = 2, .reference = reference }, &e) !=
            OK ||
        open_model(&w.m, &w.arena, w.src, w.be, &e) != OK ||
        block_pool_open(&w.pool, opt.n_blocks, &e) != OK ||
        decoder_open(&w.dec, w.m, &opt, &e) != OK)
        fail_msg("%s", e.msg);
    return w;
}

static inline void close_world(struct world *w)
{
    runner_close(w->dec);
    block_pool_close(w->pool);
    model_close(w->m);
    arena_release(&w->arena);
    for (int i = 0; i < MEM_KINDS; i++) assert_int_equal(w->be->used_bytes[i], 0);
    backend_close(w->be);
    source_close(w->src);
}

/* Runs n tokens of one sequence, from position `from` on. Returns their logits, [n][n_vocab]. */
static inline const float *run_tokens(struct world *w, const struct chain *c, const int32_t *ids,
                                      int from, int n)
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
    if (runner_run(w->dec, &b, &logits, &e) != OK) fail_msg("%s", e.msg);
    return logits;
}

static inline int find_largest(const float *x, int n)
{
    int b = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[b]) b = i;
    return b;
}

/* Relative error in the Euclidean norm. */
static inline double relative_error(const float *x, const float *ref, int n)
{
    double d = 0, r = 0;
    for (int i = 0; i < n; i++)
        d += ((double)x[i] - ref[i]) * ((double)x[i] - ref[i]), r += (double)ref[i] * ref[i];
    return sqrt(d / r);
}

#define N(a) (sizeof a / sizeof a[0])

/* Models of the repository: folders of tests/golden/hf. */
static const char *const committed[] = { "llama-yarn-bias", "qwen2",  "phi3",       "gemma3_text",
                                         "bitnet",          "gpt2",   "bloom",      "falcon-mq",
                                         "glm4_moe",        "mamba2", "qwen3_next", "deepseek_v3" };

/* The architectures of 2025 and 2026, in ../shared/fixtures/hf-2026. */
static const char *const newer[] = {
    "afmoe",
    "apertus",
    "bamba",
    "cohere2_moe",
    "deepseek_v32",
    "deepseek_v4",
    "dots1",
    "ernie4_5_moe",
    "exaone_moe",
    "falcon_h1",
    "falcon_mamba",
    "flex_olmo",
    "gemma3",
    "gemma3n",
    "gemma3n_text",
    "gemma4",
    "gemma4-moe",
    "gemma4_text",
    "gemma4_text-moe",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "granite_swa",
    "granitemoehybrid",
    "granitemoehybrid-dense",
    "granitemoeshared",
    "hunyuan_v1_moe",
    "hy_v3",
    "jais2",
    "jamba",
    "lfm2_moe",
    "llama4",
    "llama4_text",
    "longcat_flash",
    "mimo_v2_flash",
    "minicpm3",
    "minimax_m2",
    "minimax_m3_vl",
    "ministral3",
    "mistral3",
    "mistral3-mistral4",
    "mistral4",
    "nanochat",
    "nemotron_h",
    "nemotron_h-latent",
    "olmo_hybrid",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_vl",
    "qwen3_vl_moe",
    "solar_open",
    "vaultgemma",
};

static inline const char *newer_folder(size_t i)
{
    char path[256];
    snprintf(path, sizeof path, "fixtures/hf-2026/%s", newer[i]);
    return shared(path);
}

static inline const char *golden(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "tests/golden/hf/%s", name);
    assert_non_null(repo(path));
    return repo(path);
}

static inline void read_ids(const struct source *s, const char *name, int32_t *out, int n)
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

static inline double read_margin(const struct source *s)
{
    struct str v;
    double f = 0;
    if (source_str(s, "metadata:greedy_margin", &v)) str_to_f64(v, &f);
    return f;
}

/* The logits and greedy tokens of a model must be those of golden.safetensors in the folder. Greedy
 * tokens only count if no two logits of the golden run are too close. */
static inline void check_golden(const char *model, const char *folder, bool reference, double bound)
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
    read_ids(g, "input_ids", ids, 48);
    read_ids(g, "greedy", greedy, 16);
    ref = source_find(g, "logits");
    assert_true(chain_init(&c, 64));
    assert_true(chain_reserve(&c, w.pool, 64));
    logits = run_tokens(&w, &c, ids, 0, 48);
    for (int t = 0; t < 48; t++) {
        memcpy(row, (const char *)ref->data + (size_t)t * (size_t)n_vocab * 4, (size_t)n_vocab * 4);
        double e = relative_error(logits + (size_t)t * (size_t)n_vocab, row, n_vocab);
        if (!(e <= worst)) worst = e;
    }
    if (!(worst <= bound))
        fail_msg("%s: relative error %g, expected at most %g", model, worst, bound);
    next = find_largest(logits + 47 * (size_t)n_vocab, n_vocab);
    while (match < 16 && next == greedy[match]) {
        if (++match == 16) break;
        next = find_largest(run_tokens(&w, &c, &next, 47 + match, 1), n_vocab);
    }
    if (read_margin(g) > 0.02) assert_int_equal(match, 16);
    chain_release(&c, w.pool);
    source_close(g);
    mem_free(path);
    mem_free(row);
    close_world(&w);
}
#endif
