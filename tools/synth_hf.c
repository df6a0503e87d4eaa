/* synth_hf.c - writes a quantized Hugging Face folder of a known shape with random weights, for
 * measurements.
 *
 *     synth_hf PRESET SCHEME OUT_DIR [--layers N] [--seed S]
 *
 * The folder has config.json and model.safetensors and no tokenizer: `tern bench` and `tern eval
 * logits` need none. Codes are uniform, or Gaussian for floats, and scales keep activations near 1.
 * As in published folders the embedding, the output matrix and the norms are not quantized. */
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "format/safetensorsw.h"
#include "kernel/quant.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

struct preset {
    const char *name;
    int n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_vocab;
    float theta;
};

static const struct preset presets[] = {
    { "mistral-7b", 32, 4096, 14336, 32, 8, 128, 32768, 1000000 },
    { "llama-2-7b", 32, 4096, 11008, 32, 32, 128, 32000, 10000 },
    { "tiny", 2, 256, 512, 4, 2, 64, 1024, 10000 },
};

enum kind { KIND_GPTQ, KIND_AWQ, KIND_FP8 };

static const struct scheme {
    const char *name;
    enum kind kind;
    int group;
    const char *config; /* quantization_config */
} schemes[] = {
    { "gptq4", KIND_GPTQ, 128,
      "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 128, \"desc_act\": false, "
      "\"sym\": true, \"checkpoint_format\": \"gptq\"}" },
    { "gptq4-actorder", KIND_GPTQ, 128,
      "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 128, \"desc_act\": true, "
      "\"sym\": true, \"checkpoint_format\": \"gptq\"}" },
    { "gptq4-g32", KIND_GPTQ, 32,
      "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32, \"desc_act\": false, "
      "\"sym\": false, \"checkpoint_format\": \"gptq\"}" },
    { "awq4", KIND_AWQ, 128,
      "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 128, \"version\": \"gemm\", "
      "\"zero_point\": true}" },
    { "fp8", KIND_FP8, 128,
      "{\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"activation_scheme\": \"dynamic\", "
      "\"weight_block_size\": [128, 128], \"modules_to_not_convert\": [\"lm_head\"]}" },
};

enum fill { FILL_RANDOM, FILL_CODES, FILL_SCALES, FILL_ZEROS, FILL_GROUPS, FILL_NORMAL, FILL_ONES };

struct plan {
    char name[96];
    enum dtype type;
    int64_t dims[2];
    int n_dims;
    enum fill fill;
    float size; /* of a scale, or the standard deviation */
    int group;
};

struct synth {
    struct preset p;
    const struct scheme *s;
    int n_layers;
    struct rng rng;
    struct plan *plans;
    int n, cap;
    struct safetensorsw *w;
};

static void *check_alloc(void *p)
{
    if (p) return p;
    fprintf(stderr, "synth_hf: out of memory\n");
    exit(1);
}

/* ---- which tensors ---- */

static struct plan *add_plan(struct synth *s, enum dtype type, enum fill fill, int64_t rows,
                             int64_t cols)
{
    if (!mem_ensure(s->plans, s->cap, s->n + 1)) check_alloc(NULL);
    struct plan *t = &s->plans[s->n++];
    *t =
        (struct plan){ .type = type, .dims = { rows, cols }, .n_dims = cols ? 2 : 1, .fill = fill };
    return t;
}

/* "model.layers.3.mlp.up_proj" and a suffix. */
static void name_plan(struct plan *t, int layer, const char *module, const char *suffix)
{
    if (layer < 0) snprintf(t->name, sizeof t->name, "%s.%s", module, suffix);
    else snprintf(t->name, sizeof t->name, "model.layers.%d.%s.%s", layer, module, suffix);
}

/* GPTQ packs columns into words, AWQ rows. Uniform codes around 8 have a deviation of 4.6. */
static void plan_int4(struct synth *s, int l, const char *module, int out, int in)
{
    bool awq = s->s->kind == KIND_AWQ;
    int groups = in / s->s->group;
    struct plan *t = add_plan(s, DT_I32, FILL_RANDOM, awq ? in : in / 8, awq ? out / 8 : out);
    name_plan(t, l, module, "qweight");
    t = add_plan(s, DT_I32, FILL_ZEROS, groups, out / 8);
    name_plan(t, l, module, "qzeros");
    t = add_plan(s, DT_F16, FILL_SCALES, groups, out);
    t->size = 1 / (4.6f * sqrtf((float)in));
    name_plan(t, l, module, "scales");
    if (awq) return;
    t = add_plan(s, DT_I32, FILL_GROUPS, in, 0);
    t->group = s->s->group;
    name_plan(t, l, module, "g_idx");
}

static void plan_fp8(struct synth *s, int l, const char *module, int out, int in)
{
    struct plan *t = add_plan(s, DT_F8_E4M3, FILL_CODES, out, in);
    name_plan(t, l, module, "weight");
    t = add_plan(s, DT_F32, FILL_SCALES, (out + 127) / 128, (in + 127) / 128);
    t->size = 1 / (64 * sqrtf((float)in)); /* codes have a deviation of 64 */
    name_plan(t, l, module, "weight_scale_inv");
}

static void plan_linear(struct synth *s, int l, const char *module, int out, int in)
{
    if (s->s->kind == KIND_FP8) plan_fp8(s, l, module, out, in);
    else plan_int4(s, l, module, out, in);
}

static void plan_plain(struct synth *s, int l, const char *module, int64_t rows, int64_t cols)
{
    struct plan *t = add_plan(s, DT_BF16, cols ? FILL_NORMAL : FILL_ONES, rows, cols);
    t->size = cols ? 1 / sqrtf((float)cols) : 0;
    name_plan(t, l, module, "weight");
}

static void plan_all(struct synth *s)
{
    const struct preset *p = &s->p;
    int n_q = p->n_heads * p->head_dim, n_kv = p->n_kv_heads * p->head_dim;

    plan_plain(s, -1, "model.embed_tokens", p->n_vocab, p->n_embd);
    for (int l = 0; l < s->n_layers; l++) {
        plan_plain(s, l, "input_layernorm", p->n_embd, 0);
        plan_linear(s, l, "self_attn.q_proj", n_q, p->n_embd);
        plan_linear(s, l, "self_attn.k_proj", n_kv, p->n_embd);
        plan_linear(s, l, "self_attn.v_proj", n_kv, p->n_embd);
        plan_linear(s, l, "self_attn.o_proj", p->n_embd, n_q);
        plan_plain(s, l, "post_attention_layernorm", p->n_embd, 0);
        plan_linear(s, l, "mlp.gate_proj", p->n_ff, p->n_embd);
        plan_linear(s, l, "mlp.up_proj", p->n_ff, p->n_embd);
        plan_linear(s, l, "mlp.down_proj", p->n_embd, p->n_ff);
    }
    plan_plain(s, -1, "model.norm", p->n_embd, 0);
    plan_plain(s, -1, "lm_head", p->n_vocab, p->n_embd);
}

/* ---- their data ---- */

#define POOL ((size_t)1 << 20) /* bytes of random numbers that matrices are made of */

/* Numbers of the type, in whole segments of 256. */
static char *make_pool(struct synth *s, enum fill fill, enum dtype type, float size)
{
    char *pool = check_alloc(mem_alloc(POOL));
    uint64_t bytes = 0;
    float x[256];

    dtype_row_bytes(type, 256, &bytes);
    for (size_t at = 0; at < POOL; at += fill == FILL_RANDOM ? 8 : bytes) {
        uint64_t r = rng_u64(&s->rng);
        if (fill == FILL_RANDOM) {
            memcpy(pool + at, &r, 8);
            continue;
        }
        for (int i = 0; i < 256; i++) x[i] = size * rng_normal(&s->rng);
        quant_encode(type, x, pool + at, 256);
    }
    return pool;
}

/* Slices of the pool from random places on. */
static void write_slices(struct synth *s, const char *pool, size_t n)
{
    while (n > 0) {
        size_t step = POOL / 2 < n ? POOL / 2 : n, at = rng_u64(&s->rng) % (POOL / 2) / 64 * 64;
        safetensorsw_data(s->w, pool + at, step);
        n -= step;
    }
}

/* act-order: columns of a group are spread over the row. Every group has as many. */
static void write_groups(struct synth *s, const struct plan *t)
{
    bool spread = strstr(s->s->name, "actorder") != NULL;
    int n = (int)t->dims[0], groups = n / t->group;
    int32_t *g = check_alloc(mem_array((size_t)n, sizeof *g));

    for (int i = 0; i < n; i++) g[i] = spread ? i % groups : i / t->group;
    safetensorsw_data(s->w, g, (size_t)n * 4);
    mem_free(g);
}

static void write_small(struct synth *s, const struct plan *t)
{
    size_t n = (size_t)(t->dims[0] * (t->n_dims > 1 ? t->dims[1] : 1));
    char *out = check_alloc(mem_array(n, 4));
    uint64_t bytes = 0;

    /* GPTQ stores zero points less 1. */
    if (t->fill == FILL_ZEROS) {
        memset(out, s->s->kind == KIND_GPTQ ? 0x77 : 0x88, n * 4);
        bytes = n * 4;
    } else {
        float *x = check_alloc(mem_array(n, sizeof *x));
        for (size_t i = 0; i < n; i++)
            x[i] = t->fill == FILL_ONES ? 1 : t->size * (0.8f + 0.4f * (float)rng_unit(&s->rng));
        dtype_row_bytes(t->type, n, &bytes);
        quant_encode(t->type, x, out, (int64_t)n);
        mem_free(x);
    }
    safetensorsw_data(s->w, out, bytes);
    mem_free(out);
}

static void write_tensors(struct synth *s)
{
    char *bits = make_pool(s, FILL_RANDOM, DT_U8, 0),
         *codes = make_pool(s, FILL_CODES, DT_F8_E4M3, 64),
         *plain = make_pool(s, FILL_NORMAL, DT_BF16, 1 / sqrtf((float)s->p.n_embd));

    for (int i = 0; i < s->n; i++)
        safetensorsw_tensor(s->w, s->plans[i].name, s->plans[i].type, s->plans[i].dims,
                            s->plans[i].n_dims);
    for (int i = 0; i < s->n; i++) {
        const struct plan *t = &s->plans[i];
        uint64_t bytes = 0;
        dtype_row_bytes(t->type, (uint64_t)(t->dims[0] * (t->n_dims > 1 ? t->dims[1] : 1)), &bytes);
        switch (t->fill) {
        case FILL_RANDOM: write_slices(s, bits, bytes); break;
        case FILL_CODES: write_slices(s, codes, bytes); break;
        case FILL_NORMAL: write_slices(s, plain, bytes); break;
        case FILL_GROUPS: write_groups(s, t); break;
        default: write_small(s, t);
        }
    }
    mem_free(bits);
    mem_free(codes);
    mem_free(plain);
}

static int write_config(struct synth *s, const char *dir, struct err *e)
{
    const struct preset *p = &s->p;
    struct buf b = { 0 };
    char *path = check_alloc(path_join(dir, "config.json"));
    int rc;

    buf_printf(&b,
               "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\",\n"
               " \"hidden_size\": %d, \"intermediate_size\": %d, \"num_hidden_layers\": %d,\n"
               " \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d,\n"
               " \"vocab_size\": %d, \"rope_theta\": %.1f, \"rms_norm_eps\": 1e-05,\n"
               " \"max_position_embeddings\": 32768, \"hidden_act\": \"silu\",\n"
               " \"tie_word_embeddings\": false, \"bos_token_id\": 1, \"eos_token_id\": 2,\n"
               " \"quantization_config\": %s}\n",
               p->n_embd, p->n_ff, s->n_layers, p->n_heads, p->n_kv_heads, p->head_dim, p->n_vocab,
               (double)p->theta, s->s->config);
    if (b.failed) check_alloc(NULL);
    rc = file_replace(path, str_of(b.p, b.n), e);
    buf_release(&b);
    mem_free(path);
    return rc;
}

static int synth_write(struct synth *s, const char *dir, struct err *e)
{
    int rc;

    if (mkdir(dir, 0755) != 0 && errno != EEXIST)
        return err_set(e, E_IO, "%s: the folder cannot be made", dir);
    if ((rc = write_config(s, dir, e)) != OK) return rc;
    if ((rc = safetensorsw_open(&s->w, dir, 0, e)) != OK) return rc;
    plan_all(s);
    write_tensors(s);
    mem_free(s->plans);
    return safetensorsw_close(s->w, e);
}

static int usage(void)
{
    fprintf(stderr, "usage: synth_hf PRESET SCHEME OUT_DIR [--layers N] [--seed S]\npresets:");
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        fprintf(stderr, " %s", presets[i].name);
    fprintf(stderr, "\nschemes:");
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        fprintf(stderr, " %s", schemes[i].name);
    fprintf(stderr, "\n");
    return 2;
}

int main(int argc, char **argv)
{
    struct synth s = { 0 };
    struct err e = { 0 };
    uint64_t seed = 1;

    if (argc < 4) return usage();
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (strcmp(presets[i].name, argv[1]) == 0) s.p = presets[i];
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (strcmp(schemes[i].name, argv[2]) == 0) s.s = &schemes[i];
    if (!s.p.name || !s.s) return usage();
    s.n_layers = s.p.n_layers;
    for (int i = 4; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--layers") == 0) s.n_layers = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--seed") == 0) seed = strtoull(argv[i + 1], NULL, 0);
        else return usage();
    }
    if (argc % 2 || s.n_layers < 1 || s.n_layers > 1000) return usage();
    rng_seed(&s.rng, seed);
    if (synth_write(&s, argv[3], &e) != OK) {
        fprintf(stderr, "synth_hf: %s\n", e.msg);
        return 1;
    }
    return 0;
}
