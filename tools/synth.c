/* synth.c - writes a GGUF model of a known shape with random weights, for measurements.
 *
 *     synth PRESET TYPE OUT.gguf [--layers N] [--seed S] [--tiny]
 *
 * Weights are Gaussian with a standard deviation that keeps activations near 1: a forward pass
 * costs what that of the real model does, and its results are finite. TYPE is a dtype, or Q4_K_M,
 * the mixture in which most models are published; experts of gpt-oss are MXFP4 whatever it is. Names
 * and keys are llama.cpp's. --tiny keeps the structure and makes every width small, for tests.
 * Running out of memory ends the program with a message. */
#include "kernel/quant.h"
#include "synth_vocab.h"

struct preset {                    /* the hyper-parameters of a published model */
    const char *name, *arch, *pre; /* pre: tokenizer.ggml.pre */
    int n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_vocab, n_special;
    float theta, eps;
    int context;
    bool tied, qkv_bias, rope_factors, sub_norms, qk_norm;
    int n_experts, n_used, expert_ff; /* mixtures; n_ff is 0 */
    int every; /* hybrids: layers every - 1, 2 every - 1, ... have attention, the others a delta net */
    int inner, n_state, n_groups, n_mix_heads; /* Mamba 2 and delta nets; n_state: of a key */
    int window;                                /* gpt-oss: of every other layer */
};

static const struct preset presets[] = {
    { "llama-3.2-1b", "llama", "llama-bpe", 16, 2048, 8192, 32, 8, 64, 128256, 256, 500000, 1e-5f,
      131072, .tied = true, .rope_factors = true },
    { "qwen2.5-0.5b", "qwen2", "qwen2", 24, 896, 4864, 14, 2, 64, 151936, 293, 1000000, 1e-6f,
      32768, .tied = true, .qkv_bias = true },
    { "mistral-7b", "llama", "llama-bpe", 32, 4096, 14336, 32, 8, 128, 32768, 256, 1000000, 1e-5f,
      32768, .tied = false },
    { "llama-13b", "llama", "llama-bpe", 40, 5120, 13824, 40, 40, 128, 32000, 256, 10000, 1e-5f,
      4096, .tied = false },
    { "bitnet-2b", "bitnet", "llama-bpe", 30, 2560, 6912, 20, 5, 128, 128256, 256, 500000, 1e-5f,
      4096, .tied = true, .sub_norms = true },
    { "qwen3.5-0.8b",
      "qwen35",
      "qwen35",
      24,
      1024,
      3584,
      8,
      2,
      256,
      248320,
      293,
      10000000,
      1e-6f,
      262144,
      .tied = true,
      .qk_norm = true,
      .every = 4,
      .inner = 2048,
      .n_state = 128,
      .n_groups = 16,
      .n_mix_heads = 16 },
    { "mamba2-1.3b", "mamba2", "olmo", 48, 2048, 0, 0, 0, 0, 50288, 16, 0, 1e-5f, 1048576,
      .tied = true, .inner = 4096, .n_state = 128, .n_groups = 1, .n_mix_heads = 64 },
    { "qwen3-30b-a3b", "qwen3moe", "qwen2", 48, 2048, 6144, 32, 4, 128, 151936, 293, 1000000, 1e-6f,
      40960, .qk_norm = true, .n_experts = 128, .n_used = 8, .expert_ff = 768 },
    { "qwen3-moe-7b-a1b", "qwen3moe", "qwen2", 16, 2048, 6144, 16, 4, 128, 151936, 293, 1000000,
      1e-6f, 40960, .qk_norm = true, .n_experts = 64, .n_used = 8, .expert_ff = 1024 },
    { "gpt-oss-20b", "gpt-oss", "gpt-4o", 24, 2880, 2880, 64, 8, 64, 201088, 1090, 150000, 1e-5f,
      131072, .qkv_bias = true, .n_experts = 32, .n_used = 4, .expert_ff = 2880, .window = 128 },
    { "tiny", "llama", "llama-bpe", 2, 256, 512, 4, 2, 64, 1024, 16, 10000, 1e-5f, 2048,
      .tied = true },
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
    struct preset shape;
    const struct preset *p; /* = &shape */
    struct recipe recipe;
    int n_layers;
    struct rng rng;
    struct ggufw *w;
    struct tensor_plan { /* tensors in the order of the file */
        char name[64];
        enum dtype type;
        int64_t dims[3]; /* outermost first */
        int n_dims;
        bool matrix; /* rows of segments; others are written number by number, in F32 */
        enum fill { FILL_NORMAL, FILL_FACTORS, FILL_DECAY } fill;
        float mean, std;
    } * plans;
    int n_plans, cap_plans;
};

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

enum role { ROLE_PLAIN, ROLE_OUTPUT, ROLE_ATTN_V, ROLE_FFN_DOWN, ROLE_F32 };

static enum dtype choose_type(const struct synth *s, enum role role, int layer, int64_t cols)
{
    enum dtype t = s->recipe.type;
    bool k_mix = s->recipe.mixed && t == DT_Q4_K;
    if (role == ROLE_F32) return DT_F32;
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

/* n of them, stacked in one tensor; 0: one, with two dimensions. */
static void plan_matrices(struct synth *s, const char *name, int layer, enum role role, int n,
                          int64_t out, int64_t in)
{
    struct tensor_plan *t = add_plan(s, name, layer);
    int k = 0;
    t->type = n && s->p->window ? DT_MXFP4 : choose_type(s, role, layer, in);
    if (n) t->dims[k++] = n;
    t->dims[k++] = out;
    t->dims[k++] = in;
    t->n_dims = k;
    t->matrix = true;
    t->std = 1.0f / sqrtf((float)in);
}

static void plan_matrix(struct synth *s, const char *name, int layer, enum role role, int64_t out,
                        int64_t in)
{
    plan_matrices(s, name, layer, role, 0, out, in);
}

static struct tensor_plan *plan_vector(struct synth *s, const char *name, int layer, int64_t n,
                                       float mean, float std)
{
    struct tensor_plan *t = add_plan(s, name, layer);
    t->dims[0] = n;
    t->n_dims = 1;
    t->mean = mean;
    t->std = std;
    return t;
}

/* One vector per expert. */
static void plan_vectors(struct synth *s, const char *name, int layer, int n, int64_t len)
{
    struct tensor_plan *t = plan_vector(s, name, layer, n, 0, 0.1f);
    t->dims[t->n_dims++] = len;
}

static void plan_attention(struct synth *s, int l)
{
    const struct preset *p = s->p;
    int n_q = p->n_heads * p->head_dim, n_kv = p->n_kv_heads * p->head_dim;
    plan_matrix(s, "attn_q.weight", l, ROLE_PLAIN, p->every ? 2 * n_q : n_q, p->n_embd);
    plan_matrix(s, "attn_k.weight", l, ROLE_PLAIN, n_kv, p->n_embd);
    plan_matrix(s, "attn_v.weight", l, ROLE_ATTN_V, n_kv, p->n_embd);
    if (p->qkv_bias) {
        plan_vector(s, "attn_q.bias", l, n_q, 0, 0.1f);
        plan_vector(s, "attn_k.bias", l, n_kv, 0, 0.1f);
        plan_vector(s, "attn_v.bias", l, n_kv, 0, 0.1f);
    }
    if (p->qk_norm) {
        plan_vector(s, "attn_q_norm.weight", l, p->head_dim, 1.0f, 0.1f);
        plan_vector(s, "attn_k_norm.weight", l, p->head_dim, 1.0f, 0.1f);
    }
    if (p->sub_norms) plan_vector(s, "attn_sub_norm.weight", l, n_q, 1.0f, 0.1f);
    plan_matrix(s, "attn_output.weight", l, ROLE_PLAIN, p->n_embd, n_q);
    if (p->window) {
        plan_vector(s, "attn_output.bias", l, p->n_embd, 0, 0.1f);
        plan_vector(s, "attn_sinks.weight", l, p->n_heads, 0, 1);
    }
}

/* What Mamba 2 and delta nets share: the convolution, and decays of heads as trained ones have
 * them: half of the state is forgotten after 1 to 1000 tokens. */
static void plan_recurrence(struct synth *s, int l, int64_t conv, bool mamba)
{
    const struct preset *p = s->p;
    struct tensor_plan *a;
    plan_matrix(s, "ssm_conv1d.weight", l, ROLE_F32, conv, 4);
    plan_vector(s, "ssm_dt.bias", l, p->n_mix_heads, -4.6f, 1);
    a = plan_vector(s, "ssm_a", l, p->n_mix_heads, 0, 0);
    a->fill = FILL_DECAY;
    if (mamba) a->dims[a->n_dims++] = 1;
    plan_vector(s, "ssm_norm.weight", l, mamba ? p->inner : p->inner / p->n_mix_heads, 1.0f, 0.1f);
    plan_matrix(s, "ssm_out.weight", l, ROLE_PLAIN, p->n_embd, p->inner);
}

static void plan_mamba2(struct synth *s, int l)
{
    const struct preset *p = s->p;
    int64_t conv = p->inner + 2 * p->n_groups * p->n_state;
    struct tensor_plan *d;
    plan_matrix(s, "ssm_in.weight", l, ROLE_PLAIN, p->inner + conv + p->n_mix_heads, p->n_embd);
    plan_vector(s, "ssm_conv1d.bias", l, conv, 0, 0.1f);
    d = plan_vector(s, "ssm_d", l, p->n_mix_heads, 1, 0.1f);
    d->dims[d->n_dims++] = 1;
    plan_recurrence(s, l, conv, true);
}

static void plan_delta(struct synth *s, int l)
{
    const struct preset *p = s->p;
    int64_t conv = p->inner + 2 * p->n_groups * p->n_state;
    plan_matrix(s, "attn_qkv.weight", l, ROLE_PLAIN, conv, p->n_embd);
    plan_matrix(s, "attn_gate.weight", l, ROLE_PLAIN, p->inner, p->n_embd);
    plan_matrix(s, "ssm_beta.weight", l, ROLE_PLAIN, p->n_mix_heads, p->n_embd);
    plan_matrix(s, "ssm_alpha.weight", l, ROLE_PLAIN, p->n_mix_heads, p->n_embd);
    plan_recurrence(s, l, conv, false);
}

static void plan_experts(struct synth *s, int l)
{
    const struct preset *p = s->p;
    int n = p->n_experts;
    plan_matrix(s, "ffn_gate_inp.weight", l, ROLE_F32, n, p->n_embd);
    plan_matrices(s, "ffn_gate_exps.weight", l, ROLE_PLAIN, n, p->expert_ff, p->n_embd);
    plan_matrices(s, "ffn_up_exps.weight", l, ROLE_PLAIN, n, p->expert_ff, p->n_embd);
    plan_matrices(s, "ffn_down_exps.weight", l, ROLE_FFN_DOWN, n, p->n_embd, p->expert_ff);
    if (!p->window) return;
    plan_vector(s, "ffn_gate_inp.bias", l, n, 0, 0.1f);
    plan_vectors(s, "ffn_gate_exps.bias", l, n, p->expert_ff);
    plan_vectors(s, "ffn_up_exps.bias", l, n, p->expert_ff);
    plan_vectors(s, "ffn_down_exps.bias", l, n, p->n_embd);
}

static void plan_layer(struct synth *s, int l)
{
    const struct preset *p = s->p;
    plan_vector(s, "attn_norm.weight", l, p->n_embd, 1.0f, 0.1f);
    if (p->n_heads == 0) {
        plan_mamba2(s, l);
        return;
    }
    if (p->every && l % p->every != p->every - 1) plan_delta(s, l);
    else plan_attention(s, l);
    plan_vector(s, p->every || p->window ? "post_attention_norm.weight" : "ffn_norm.weight", l,
                p->n_embd, 1.0f, 0.1f);
    if (p->n_experts) {
        plan_experts(s, l);
        return;
    }
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
    if (p->rope_factors)
        plan_vector(s, "rope_freqs.weight", -1, p->head_dim / 2, 0, 0)->fill = FILL_FACTORS;
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
    int64_t cols = t->dims[t->n_dims - 1];
    int segment = cols % 256 == 0 ? 256 : cols % 128 == 0 ? 128 : cols % 32 == 0 ? 32 : (int)cols;
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
    for (int64_t r = 0; r < t->dims[0] * (t->n_dims == 3 ? t->dims[1] : 1); r++) {
        for (size_t i = 0; i < n; i++)
            memcpy(row + i * pool->bytes, pool->data + rng_u64(&s->rng) % POOL * pool->bytes,
                   pool->bytes);
        ggufw_data(s->w, row, n * pool->bytes);
    }
    mem_free(row);
}

static float make_number(struct synth *s, const struct tensor_plan *t, int i)
{
    if (t->fill == FILL_FACTORS) return rope_factor(s->p, i);
    if (t->fill == FILL_DECAY) return -0.1f - 15.9f * (float)(rng_u64(&s->rng) % 1024) / 1024;
    return t->mean + t->std * rng_normal(&s->rng);
}

static void write_vector(struct synth *s, const struct tensor_plan *t)
{
    int n = (int)(t->dims[0] * (t->n_dims > 1 ? t->dims[1] : 1));
    float *x = check_alloc(mem_array((size_t)n, sizeof *x));
    for (int i = 0; i < n; i++) x[i] = make_number(s, t, i);
    ggufw_data(s->w, x, (size_t)n * sizeof *x);
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
        if (!t->matrix) {
            write_vector(s, t);
            continue;
        }
        int k = 0;
        while (k < n_pools && (pools[k].type != t->type || pools[k].cols != t->dims[t->n_dims - 1]))
            k++;
        if (k == n_pools) pool_init(&pools[n_pools++], s, t);
        write_matrix(s, t, &pools[k]);
    }
    for (int k = 0; k < n_pools; k++) mem_free(pools[k].data);
}

static const char *arch_key(const struct synth *s, const char *key)
{
    static char name[96];
    snprintf(name, sizeof name, "%s.%s", s->p->arch, key);
    return name;
}

/* Keys of models that have attention. */
static void write_attention_keys(struct synth *s)
{
    const struct preset *p = s->p;
    int n_rot = p->every ? p->head_dim / 4 : p->head_dim;
    ggufw_u32(s->w, arch_key(s, "attention.head_count_kv"), (uint32_t)p->n_kv_heads);
    ggufw_f32(s->w, arch_key(s, "rope.freq_base"), p->theta);
    ggufw_u32(s->w, arch_key(s, "rope.dimension_count"), (uint32_t)n_rot);
    if (p->qk_norm || p->window) {
        ggufw_u32(s->w, arch_key(s, "attention.key_length"), (uint32_t)p->head_dim);
        ggufw_u32(s->w, arch_key(s, "attention.value_length"), (uint32_t)p->head_dim);
    }
    if (p->every) {
        int third = n_rot / 6, sections[4] = { n_rot / 2 - 2 * third, third, third, 0 };
        ggufw_u32(s->w, arch_key(s, "full_attention_interval"), (uint32_t)p->every);
        ggufw_i32s(s->w, arch_key(s, "rope.dimension_sections"), sections, 4);
    }
    if (p->window) {
        ggufw_u32(s->w, arch_key(s, "attention.sliding_window"), (uint32_t)p->window);
        ggufw_str(s->w, arch_key(s, "rope.scaling.type"), str_c("yarn"));
        ggufw_f32(s->w, arch_key(s, "rope.scaling.factor"), 32);
        ggufw_u32(s->w, arch_key(s, "rope.scaling.original_context_length"), 4096);
    }
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
    ggufw_f32(s->w, arch_key(s, "attention.layer_norm_rms_epsilon"), p->eps);
    ggufw_u32(s->w, arch_key(s, "vocab_size"), (uint32_t)p->n_vocab);
    if (p->n_heads) write_attention_keys(s);
    if (p->n_experts) {
        ggufw_u32(s->w, arch_key(s, "expert_count"), (uint32_t)p->n_experts);
        ggufw_u32(s->w, arch_key(s, "expert_used_count"), (uint32_t)p->n_used);
        ggufw_u32(s->w, arch_key(s, "expert_feed_forward_length"), (uint32_t)p->expert_ff);
    }
    if (p->inner) {
        ggufw_u32(s->w, arch_key(s, "ssm.conv_kernel"), 4);
        ggufw_u32(s->w, arch_key(s, "ssm.inner_size"), (uint32_t)p->inner);
        ggufw_u32(s->w, arch_key(s, "ssm.state_size"), (uint32_t)p->n_state);
        ggufw_u32(s->w, arch_key(s, "ssm.time_step_rank"), (uint32_t)p->n_mix_heads);
        ggufw_u32(s->w, arch_key(s, "ssm.group_count"), (uint32_t)p->n_groups);
    }
}

static int synth_write(struct synth *s, const char *path, struct err *e)
{
    int rc = ggufw_open(&s->w, path, e);
    if (rc != OK) return rc;
    plan_all(s);
    write_keys(s);
    write_vocab(s->w, &s->rng, s->p->pre, s->p->n_vocab, s->p->n_special,
                strcmp(s->p->arch, "llama") == 0);
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
    fprintf(stderr, "usage: synth PRESET TYPE OUT.gguf [--layers N] [--seed S] [--tiny]\npresets:");
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        fprintf(stderr, " %s", presets[i].name);
    fprintf(stderr, "\ntypes: Q4_K_M, or any that tern writes (F16, Q8_0, Q4_0, Q6_K, ...)\n");
    return 2;
}

static int at_most(int x, int most) { return x < most ? x : most; }

/* Small widths, in proportions that stay valid. */
static void shrink(struct preset *p)
{
    p->n_layers = at_most(p->n_layers, 4);
    p->n_embd = 256;
    p->n_ff = at_most(p->n_ff, 512);
    p->n_heads = at_most(p->n_heads, 4);
    p->n_kv_heads = at_most(p->n_kv_heads, 2);
    p->head_dim = at_most(p->head_dim, 64);
    p->n_vocab = 1024;
    p->n_special = 16;
    p->n_experts = at_most(p->n_experts, 8);
    p->n_used = at_most(p->n_used, 2);
    p->expert_ff = at_most(p->expert_ff, 256);
    p->n_groups = at_most(p->n_groups, 4);
    if (p->inner) p->inner = 4 * (p->inner / p->n_mix_heads), p->n_mix_heads = 4;
}

/* The flags after the three arguments. false: a flag is unknown or lacks its value. */
static bool parse_flags(struct synth *s, int argc, char **argv, uint64_t *seed)
{
    int n_layers = 0;
    for (int i = 4; i < argc; i++) {
        if (strcmp(argv[i], "--tiny") == 0) shrink(&s->shape);
        else if (i + 1 == argc) return false;
        else if (strcmp(argv[i], "--layers") == 0) n_layers = atoi(argv[++i]);
        else if (strcmp(argv[i], "--seed") == 0) *seed = strtoull(argv[++i], NULL, 0);
        else return false;
    }
    s->n_layers = n_layers ? n_layers : s->shape.n_layers;
    return s->n_layers >= 1 && s->n_layers <= 1000;
}

int main(int argc, char **argv)
{
    struct synth s = { .p = &s.shape };
    struct err e = { 0 };
    uint64_t seed = 1;

    if (argc < 4) return usage();
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (strcmp(presets[i].name, argv[1]) == 0) s.shape = presets[i];
    if (!s.shape.name || !find_recipe(&s.recipe, argv[2])) return usage();
    if (!parse_flags(&s, argc, argv, &seed)) return usage();
    rng_seed(&s.rng, seed);
    if (synth_write(&s, argv[3], &e) != OK) {
        fprintf(stderr, "synth: %s\n", e.msg);
        return 1;
    }
    return 0;
}
