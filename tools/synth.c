/* synth.c - writes a GGUF model of a known shape with random weights, for measurements.
 *
 *     synth PRESET TYPE OUT.gguf [--layers N] [--seed S]
 *
 * Weights are Gaussian with a standard deviation that keeps activations near 1: a forward pass
 * costs what that of the real model does, and its results are finite. TYPE is a dtype, or Q4_K_M,
 * the mixture in which most models are published. The vocabulary is synthetic: 256 bytes, then
 * pieces that each merge two earlier ones. Running out of memory ends the program with a message. */
#include "base/buf.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "format/ggufw.h"
#include "kernel/quant.h"

#include <stdio.h>
#include <stdlib.h>

struct preset {                    /* the hyper-parameters of a published model */
    const char *name, *arch, *pre; /* pre: tokenizer.ggml.pre */
    int n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_vocab, n_special;
    float theta, eps;
    int context;
    bool tied, qkv_bias, rope_factors, sub_norms;
};

static const struct preset presets[] = {
    { "llama-3.2-1b", "llama", "llama-bpe", 16, 2048, 8192, 32, 8, 64, 128256, 256, 500000, 1e-5f,
      131072, true, false, true, false },
    { "qwen2.5-0.5b", "qwen2", "qwen2", 24, 896, 4864, 14, 2, 64, 151936, 293, 1000000, 1e-6f,
      32768, true, true, false, false },
    { "mistral-7b", "llama", "llama-bpe", 32, 4096, 14336, 32, 8, 128, 32768, 256, 1000000, 1e-5f,
      32768, false, false, false, false },
    { "llama-13b", "llama", "llama-bpe", 40, 5120, 13824, 40, 40, 128, 32000, 256, 10000, 1e-5f,
      4096, false, false, false, false },
    { "bitnet-2b", "bitnet", "llama-bpe", 30, 2560, 6912, 20, 5, 128, 128256, 256, 500000, 1e-5f,
      4096, true, false, false, true },
    { "tiny", "llama", "llama-bpe", 2, 256, 512, 4, 2, 64, 1024, 16, 10000, 1e-5f, 2048, true,
      false, false, false },
};

struct recipe {
    const char *name;
    enum dtype type;
    int file_type; /* general.file_type; -1: GGUF has none for it */
    bool mixed;    /* some tensors have more bits */
};

static const struct recipe recipes[] = {
    { "F32", DT_F32, 0, false },     { "F16", DT_F16, 1, false },
    { "Q4_0", DT_Q4_0, 2, true },    { "Q4_1", DT_Q4_1, 3, true },
    { "Q8_0", DT_Q8_0, 7, false },   { "Q5_0", DT_Q5_0, 8, true },
    { "Q5_1", DT_Q5_1, 9, true },    { "Q4_K_M", DT_Q4_K, 15, true },
    { "BF16", DT_BF16, 32, false },  { "TQ1_0", DT_TQ1_0, 36, true },
    { "TQ2_0", DT_TQ2_0, 37, true },
};

struct synth {
    const struct preset *p;
    struct recipe recipe;
    int n_layers;
    struct rng rng;
    struct ggufw *w;
    struct tensor_plan { /* tensors in the order of the file */
        char name[64];
        enum dtype type;
        int64_t dims[2];
        int n_dims;
        float mean, std;
    } * plans;
    int n_plans, cap_plans;
};

/* Passes p on, or ends the program if an allocation failed. */
static void *check_alloc(void *p)
{
    if (p) return p;
    fprintf(stderr, "synth: out of memory\n");
    exit(1);
}

/* Layers of Q4_K_M that get more bits: the first and last eighth, and every third between. */
static bool has_more_bits(int layer, int n)
{
    return layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
}

/* The type to use in place of t if rows are not a multiple of its block. */
static enum dtype fallback_type(enum dtype t, int64_t cols)
{
    if (cols % dtype_info(t)->block == 0) return t;
    switch (t) {
    case DT_Q2_K:
    case DT_Q3_K:
    case DT_IQ4_XS:
    case DT_TQ1_0:
    case DT_TQ2_0: t = DT_IQ4_NL; break;
    case DT_Q4_K: t = DT_Q5_0; break;
    case DT_Q5_K: t = DT_Q5_1; break;
    case DT_Q6_K: t = DT_Q8_0; break;
    default: t = DT_F16;
    }
    return cols % dtype_info(t)->block == 0 ? t : DT_F16;
}

enum role { ROLE_PLAIN, ROLE_OUTPUT, ROLE_ATTN_V, ROLE_FFN_DOWN };

static enum dtype choose_type(const struct synth *s, enum role role, int layer, int64_t cols)
{
    enum dtype t = s->recipe.type;
    bool k_mix = s->recipe.mixed && t == DT_Q4_K;
    if (s->recipe.mixed && role == ROLE_OUTPUT) t = DT_Q6_K;
    if (k_mix && (role == ROLE_ATTN_V || role == ROLE_FFN_DOWN) &&
        has_more_bits(layer, s->n_layers))
        t = DT_Q6_K;
    return fallback_type(t, cols);
}

/* Adds a tensor; layer -1: it belongs to none. */
static struct tensor_plan *add_plan(struct synth *s, const char *name, int layer)
{
    if (!mem_ensure(s->plans, s->cap_plans, s->n_plans + 1)) check_alloc(NULL);
    struct tensor_plan *t = &s->plans[s->n_plans++];
    *t = (struct tensor_plan){ .type = DT_F32 };
    if (layer < 0) snprintf(t->name, sizeof t->name, "%s", name);
    else snprintf(t->name, sizeof t->name, "blk.%d.%s", layer, name);
    return t;
}

static void plan_matrix(struct synth *s, const char *name, int layer, enum role role, int64_t out,
                        int64_t in)
{
    struct tensor_plan *t = add_plan(s, name, layer);
    t->type = choose_type(s, role, layer, in);
    t->dims[0] = out;
    t->dims[1] = in;
    t->n_dims = 2;
    t->std = 1.0f / sqrtf((float)in);
}

static void plan_vector(struct synth *s, const char *name, int layer, int64_t n, float mean,
                        float std)
{
    struct tensor_plan *t = add_plan(s, name, layer);
    t->dims[0] = n;
    t->n_dims = 1;
    t->mean = mean;
    t->std = std;
}

static void plan_layer(struct synth *s, int l)
{
    const struct preset *p = s->p;
    int n_q = p->n_heads * p->head_dim, n_kv = p->n_kv_heads * p->head_dim;
    plan_vector(s, "attn_norm.weight", l, p->n_embd, 1.0f, 0.1f);
    plan_matrix(s, "attn_q.weight", l, ROLE_PLAIN, n_q, p->n_embd);
    plan_matrix(s, "attn_k.weight", l, ROLE_PLAIN, n_kv, p->n_embd);
    plan_matrix(s, "attn_v.weight", l, ROLE_ATTN_V, n_kv, p->n_embd);
    if (p->qkv_bias) {
        plan_vector(s, "attn_q.bias", l, n_q, 0, 0.1f);
        plan_vector(s, "attn_k.bias", l, n_kv, 0, 0.1f);
        plan_vector(s, "attn_v.bias", l, n_kv, 0, 0.1f);
    }
    if (p->sub_norms) plan_vector(s, "attn_sub_norm.weight", l, n_q, 1.0f, 0.1f);
    plan_matrix(s, "attn_output.weight", l, ROLE_PLAIN, p->n_embd, n_q);
    plan_vector(s, "ffn_norm.weight", l, p->n_embd, 1.0f, 0.1f);
    plan_matrix(s, "ffn_gate.weight", l, ROLE_PLAIN, p->n_ff, p->n_embd);
    plan_matrix(s, "ffn_up.weight", l, ROLE_PLAIN, p->n_ff, p->n_embd);
    if (p->sub_norms) plan_vector(s, "ffn_sub_norm.weight", l, p->n_ff, 1.0f, 0.1f);
    plan_matrix(s, "ffn_down.weight", l, ROLE_FFN_DOWN, p->n_embd, p->n_ff);
}

static void plan_all(struct synth *s)
{
    const struct preset *p = s->p;
    plan_matrix(s, "token_embd.weight", -1, p->tied ? ROLE_OUTPUT : ROLE_PLAIN, p->n_vocab,
                p->n_embd);
    if (p->rope_factors) plan_vector(s, "rope_freqs.weight", -1, p->head_dim / 2, 0, 0);
    for (int l = 0; l < s->n_layers; l++) plan_layer(s, l);
    plan_vector(s, "output_norm.weight", -1, p->n_embd, 1.0f, 0.1f);
    if (!p->tied) plan_matrix(s, "output.weight", -1, ROLE_OUTPUT, p->n_vocab, p->n_embd);
}

/* The frequency scaling of Llama 3.2: low frequencies are divided by 32, from a context of 8192. */
static float rope_factor(const struct preset *p, int i)
{
    float wave = 6.2831853f * powf(p->theta, 2.0f * (float)i / (float)p->head_dim);
    float factor = 32, low = 1, high = 4, old = 8192;
    if (wave < old / high) return 1;
    if (wave > old / low) return factor;
    float smooth = (old / wave - low) / (high - low);
    return 1.0f / ((1 - smooth) / factor + smooth);
}

#define POOL 4096 /* segments */

/* Encoded segments of rows. A row is made of randomly chosen ones: rows differ, and a matrix is
 * written at the cost of a copy. */
struct pool {
    enum dtype type;
    int64_t cols;
    int segment;  /* elements */
    size_t bytes; /* of a segment */
    char *data;
};

static void pool_init(struct pool *pool, struct synth *s, const struct tensor_plan *t)
{
    int64_t cols = t->dims[1];
    int segment = cols % 256 == 0 ? 256 : cols % 128 == 0 ? 128 : 32;
    uint64_t bytes = 0;
    dtype_row_bytes(t->type, (uint64_t)segment, &bytes);
    *pool = (struct pool){ t->type, cols, segment, bytes, check_alloc(mem_alloc(POOL * bytes)) };
    float *x = check_alloc(mem_array((size_t)segment, sizeof *x));
    for (int i = 0; i < POOL; i++) {
        for (int j = 0; j < segment; j++) x[j] = rng_normal(&s->rng) * t->std;
        quant_encode(t->type, x, pool->data + (size_t)i * bytes, segment);
    }
    mem_free(x);
}

static void write_matrix(struct synth *s, const struct tensor_plan *t, const struct pool *pool)
{
    size_t n = (size_t)(pool->cols / pool->segment);
    char *row = check_alloc(mem_alloc(n * pool->bytes));
    for (int64_t r = 0; r < t->dims[0]; r++) {
        for (size_t i = 0; i < n; i++)
            memcpy(row + i * pool->bytes, pool->data + rng_u64(&s->rng) % POOL * pool->bytes,
                   pool->bytes);
        ggufw_data(s->w, row, n * pool->bytes);
    }
    mem_free(row);
}

static void write_vector(struct synth *s, const struct tensor_plan *t)
{
    float *x = check_alloc(mem_array((size_t)t->dims[0], sizeof *x));
    bool factors = strcmp(t->name, "rope_freqs.weight") == 0;
    for (int i = 0; i < t->dims[0]; i++)
        x[i] = factors ? rope_factor(s->p, i) : t->mean + t->std * rng_normal(&s->rng);
    ggufw_data(s->w, x, (size_t)t->dims[0] * sizeof *x);
    mem_free(x);
}

static void write_tensors(struct synth *s)
{
    struct pool pools[16] = { 0 };
    int n_pools = 0;
    for (int i = 0; i < s->n_plans; i++)
        ggufw_tensor(s->w, s->plans[i].name, s->plans[i].type, s->plans[i].dims,
                     s->plans[i].n_dims);
    for (int i = 0; i < s->n_plans; i++) {
        const struct tensor_plan *t = &s->plans[i];
        if (t->n_dims == 1) {
            write_vector(s, t);
            continue;
        }
        int k = 0;
        while (k < n_pools && (pools[k].type != t->type || pools[k].cols != t->dims[1])) k++;
        if (k == n_pools) pool_init(&pools[n_pools++], s, t);
        write_matrix(s, t, &pools[k]);
    }
    for (int k = 0; k < n_pools; k++) mem_free(pools[k].data);
}

struct vocab {
    struct str *tokens, *merges;
    int32_t *types;
    int n, n_merges;
    struct map seen;
};

static struct str copy_str(const char *p, size_t n)
{
    return str_of(check_alloc(mem_dup(p, n)), n);
}

/* false: the token is in the vocabulary already. */
static bool vocab_add(struct vocab *v, const char *p, size_t n, int32_t type)
{
    uint64_t id;
    if (map_get(&v->seen, str_of(p, n), &id)) return false;
    v->tokens[v->n] = copy_str(p, n);
    v->types[v->n] = type;
    if (map_put(&v->seen, v->tokens[v->n], (uint64_t)v->n) < 0) check_alloc(NULL);
    v->n++;
    return true;
}

/* The characters that GPT-2 vocabularies use for the 256 bytes, in their order. */
static void vocab_add_bytes(struct vocab *v)
{
    int next = 256;
    for (int pass = 0; pass < 2; pass++)
        for (int b = 0; b < 256; b++) {
            bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
            if (printable != (pass == 0)) continue;
            int c = printable ? b : next++;
            char utf8[2] = { (char)(0xc0 | c >> 6), (char)(0x80 | (c & 63)) };
            if (c < 128) vocab_add(v, (char[]){ (char)c }, 1, 1);
            else vocab_add(v, utf8, 2, 1);
        }
}

/* One side of a merge: a letter, with about the frequency of English, or an earlier piece. The left
 * side may begin with the space marker; `inner` lists the pieces that do not. */
static struct str choose_side(struct rng *r, const struct vocab *v, const int *inner, int n_inner,
                              bool left)
{
    static const char letters[] = "eeeeeetttttaaaaooooiiiinnnnsssshhhrrrddllluucmwfgypbvkjxqz";
    uint64_t u = rng_u64(r);
    if (left && u % 4 == 0) return str_of("\xc4\xa0", 2);
    if (n_inner == 0 || u % 8 < 5) return str_of(&letters[(u >> 8) % (sizeof letters - 1)], 1);
    if (left) return v->tokens[256 + (u >> 8) % (uint64_t)(v->n - 256)];
    return v->tokens[inner[(u >> 8) % (uint64_t)n_inner]];
}

static void vocab_add_pieces(struct vocab *v, struct rng *r, int n_until)
{
    int *inner = check_alloc(mem_array((size_t)n_until, sizeof *inner)), n_inner = 0;
    while (v->n < n_until) {
        struct str a = choose_side(r, v, inner, n_inner, true),
                   b = choose_side(r, v, inner, n_inner, false);
        char piece[32], merge[32];
        if (a.n + b.n > 10) continue;
        int n = snprintf(piece, sizeof piece, "%.*s%.*s", (int)a.n, a.p, (int)b.n, b.p);
        if (!vocab_add(v, piece, (size_t)n, 1)) continue;
        if (piece[0] != '\xc4') inner[n_inner++] = v->n - 1;
        n = snprintf(merge, sizeof merge, "%.*s %.*s", (int)a.n, a.p, (int)b.n, b.p);
        v->merges[v->n_merges++] = copy_str(merge, (size_t)n);
    }
    mem_free(inner);
}

static void write_vocab(struct synth *s)
{
    const struct preset *p = s->p;
    size_t n = (size_t)p->n_vocab;
    struct vocab v = { check_alloc(mem_array(n, sizeof *v.tokens)),
                       check_alloc(mem_array(n, sizeof *v.merges)),
                       check_alloc(mem_array(n, sizeof *v.types)),
                       0,
                       0,
                       { 0 } };
    int first_special = p->n_vocab - p->n_special;

    vocab_add_bytes(&v);
    vocab_add_pieces(&v, &s->rng, first_special);
    vocab_add(&v, "<|begin_of_text|>", 17, 3);
    vocab_add(&v, "<|end_of_text|>", 15, 3);
    while (v.n < p->n_vocab) {
        char name[48];
        int len = snprintf(name, sizeof name, "<|reserved_special_token_%d|>", v.n - first_special);
        vocab_add(&v, name, (size_t)len, 3);
    }
    ggufw_str(s->w, "tokenizer.ggml.model", str_c("gpt2"));
    ggufw_str(s->w, "tokenizer.ggml.pre", str_c(p->pre));
    ggufw_strs(s->w, "tokenizer.ggml.tokens", v.tokens, (size_t)v.n);
    ggufw_i32s(s->w, "tokenizer.ggml.token_type", v.types, (size_t)v.n);
    ggufw_strs(s->w, "tokenizer.ggml.merges", v.merges, (size_t)v.n_merges);
    ggufw_u32(s->w, "tokenizer.ggml.bos_token_id", (uint32_t)first_special);
    ggufw_u32(s->w, "tokenizer.ggml.eos_token_id", (uint32_t)first_special + 1);
    ggufw_bool(s->w, "tokenizer.ggml.add_bos_token", strcmp(p->arch, "llama") == 0);

    for (int i = 0; i < v.n; i++) mem_free((char *)v.tokens[i].p);
    for (int i = 0; i < v.n_merges; i++) mem_free((char *)v.merges[i].p);
    mem_free(v.tokens);
    mem_free(v.merges);
    mem_free(v.types);
    map_release(&v.seen);
}

static const char *arch_key(const struct synth *s, const char *key)
{
    static char name[96];
    snprintf(name, sizeof name, "%s.%s", s->p->arch, key);
    return name;
}

static void write_keys(struct synth *s)
{
    const struct preset *p = s->p;
    char name[96];
    snprintf(name, sizeof name, "%s synthetic", p->name);
    ggufw_str(s->w, "general.architecture", str_c(p->arch));
    ggufw_str(s->w, "general.name", str_c(name));
    if (s->recipe.file_type >= 0)
        ggufw_u32(s->w, "general.file_type", (uint32_t)s->recipe.file_type);
    ggufw_u32(s->w, "general.quantization_version", 2);
    ggufw_u32(s->w, arch_key(s, "context_length"), (uint32_t)p->context);
    ggufw_u32(s->w, arch_key(s, "embedding_length"), (uint32_t)p->n_embd);
    ggufw_u32(s->w, arch_key(s, "block_count"), (uint32_t)s->n_layers);
    ggufw_u32(s->w, arch_key(s, "feed_forward_length"), (uint32_t)p->n_ff);
    ggufw_u32(s->w, arch_key(s, "attention.head_count"), (uint32_t)p->n_heads);
    ggufw_u32(s->w, arch_key(s, "attention.head_count_kv"), (uint32_t)p->n_kv_heads);
    ggufw_f32(s->w, arch_key(s, "attention.layer_norm_rms_epsilon"), p->eps);
    ggufw_f32(s->w, arch_key(s, "rope.freq_base"), p->theta);
    ggufw_u32(s->w, arch_key(s, "rope.dimension_count"), (uint32_t)p->head_dim);
    ggufw_u32(s->w, arch_key(s, "vocab_size"), (uint32_t)p->n_vocab);
}

static int synth_write(struct synth *s, const char *path, struct err *e)
{
    int rc = ggufw_open(&s->w, path, e);
    if (rc != OK) return rc;
    plan_all(s);
    write_keys(s);
    write_vocab(s);
    write_tensors(s);
    mem_free(s->plans);
    return ggufw_close(s->w, e);
}

static bool find_recipe(struct recipe *out, const char *name)
{
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
        if (strcmp(recipes[i].name, name) == 0) {
            *out = recipes[i];
            return true;
        }
    enum dtype t = dtype_by_name(str_c(name));
    *out = (struct recipe){ name, t, -1, false };
    return t != DT_NONE && t < DT_F8_E4M3 && quant_can_encode(t);
}

static int usage(void)
{
    fprintf(stderr, "usage: synth PRESET TYPE OUT.gguf [--layers N] [--seed S]\npresets:");
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        fprintf(stderr, " %s", presets[i].name);
    fprintf(stderr, "\ntypes: Q4_K_M, or any that tern writes (F16, Q8_0, Q4_0, Q6_K, ...)\n");
    return 2;
}

int main(int argc, char **argv)
{
    struct synth s = { 0 };
    struct err e = { 0 };
    uint64_t seed = 1;

    if (argc < 4) return usage();
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (strcmp(presets[i].name, argv[1]) == 0) s.p = &presets[i];
    if (!s.p || !find_recipe(&s.recipe, argv[2])) return usage();
    s.n_layers = s.p->n_layers;
    for (int i = 4; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--layers") == 0) s.n_layers = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--seed") == 0) seed = strtoull(argv[i + 1], NULL, 0);
        else return usage();
    }
    if (argc % 2 != 0 || s.n_layers < 1 || s.n_layers > 1000) return usage();
    rng_seed(&s.rng, seed);
    if (synth_write(&s, argv[3], &e) != OK) {
        fprintf(stderr, "synth: %s\n", e.msg);
        return 1;
    }
    return 0;
}
