/* tohf_config.c - config.json from GGUF hyper-parameters: shapes, norms, biases, rotary embedding.
 *
 * A GGUF file that `tern convert` made holds the original text, which is used unchanged, but for
 * quantization_config: quantized layers become plain ones. For other files the result means the same
 * model, but may spell it in other ways. */
#include "convert/tohf_config.h"

#include "base/jsonr.h"
#include "convert/hfkeys.h"
#include "format/hfquant.h"
#include "model/rotary.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

double config_shortest(double v)
{
    char text[40];

    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtof(text, NULL) == (float)v) break;
    }
    return strtod(text, NULL);
}

bool config_has_tensor(const struct config_out *c, const char *end)
{
    for (size_t i = 0; i < source_n_tensors(c->src); i++)
        if (str_ends(source_tensor(c->src, i)->name, str_c(end))) return true;
    return false;
}

/* The class name in transformers: "qwen2" → "Qwen2ForCausalLM". NULL: the config.json of this family
 * is not derived from GGUF keys. */
static const char *format_class(const char *model_type, char *out, size_t cap)
{
    static const char *const names[][2] = {
        { "llama", "Llama" },
        { "mistral", "Mistral" },
        { "ministral", "Ministral" },
        { "mixtral", "Mixtral" },
        { "qwen2", "Qwen2" },
        { "qwen2_moe", "Qwen2Moe" },
        { "qwen3", "Qwen3" },
        { "qwen3_moe", "Qwen3Moe" },
        { "qwen3_next", "Qwen3Next" },
        { "qwen3_5_text", "Qwen3_5" },
        { "qwen3_5_moe_text", "Qwen3_5Moe" },
        { "gemma", "Gemma" },
        { "gemma2", "Gemma2" },
        { "gemma3_text", "Gemma3" },
        { "phi", "Phi" },
        { "phi3", "Phi3" },
        { "phimoe", "Phimoe" },
        { "gpt_neox", "GPTNeoX" },
        { "gptj", "GPTJ" },
        { "gpt_neo", "GPTNeo" },
        { "gpt_bigcode", "GPTBigCode" },
        { "gpt_oss", "GptOss" },
        { "opt", "OPT" },
        { "bloom", "Bloom" },
        { "mpt", "Mpt" },
        { "falcon", "Falcon" },
        { "starcoder2", "Starcoder2" },
        { "stablelm", "StableLm" },
        { "olmo", "Olmo" },
        { "olmo2", "Olmo2" },
        { "olmo3", "Olmo3" },
        { "olmoe", "Olmoe" },
        { "cohere", "Cohere" },
        { "cohere2", "Cohere2" },
        { "granite", "Granite" },
        { "granitemoe", "GraniteMoe" },
        { "nemotron", "Nemotron" },
        { "glm", "Glm" },
        { "glm4", "Glm4" },
        { "glm4_moe", "Glm4Moe" },
        { "smollm3", "SmolLM3" },
        { "exaone4", "Exaone4" },
        { "ernie4_5", "Ernie4_5" },
        { "seed_oss", "SeedOss" },
        { "arcee", "Arcee" },
        { "helium", "Helium" },
        { "bitnet", "BitNet" },
        { "hunyuan_v1_dense", "HunYuanDenseV1" },
        { "deepseek_v2", "DeepseekV2" },
        { "deepseek_v3", "DeepseekV3" },
        { "mamba", "Mamba" },
        { "mamba2", "Mamba2" },
        { "lfm2", "Lfm2" },
        { "lfm2_moe", "Lfm2Moe" },
        { "falcon_mamba", "FalconMamba" },
        { "dots1", "Dots1" },
        { "ernie4_5_moe", "Ernie4_5_Moe" },
        { "exaone_moe", "ExaoneMoe" },
        { "flex_olmo", "FlexOlmo" },
        { "granite_swa", "GraniteSWA" },
        { "granitemoeshared", "GraniteMoeShared" },
        { "hunyuan_v1_moe", "HunYuanMoEV1" },
        { "hy_v3", "HYV3" },
        { "jais2", "Jais2" },
        { "minimax_m2", "MiniMaxM2" },
        { "vaultgemma", "VaultGemma" },
    };
    static const char *const whole[][2] = {
        { "gpt2", "GPT2LMHeadModel" },        { "bert", "BertModel" },
        { "xlm-roberta", "XLMRobertaModel" }, { "nomic_bert", "NomicBertModel" },
        { "modernbert", "ModernBertModel" },
    };

    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (strcmp(whole[i][0], model_type) == 0) return whole[i][1];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i][0], model_type) == 0) {
            snprintf(out, cap, "%sForCausalLM", names[i][1]);
            return out;
        }
    return NULL;
}

/* The architecture's own spelling of a key: "hidden_size" is "n_embd" for gpt2. */
static const char *spell_key(const struct config_out *c, const char *key)
{
    static const char *const other[][3] = {
        { "gpt2 gpt_bigcode gptj nomic_bert", "hidden_size", "n_embd" },
        { "gpt2 gpt_bigcode gptj nomic_bert", "num_hidden_layers", "n_layer" },
        { "gpt2 gpt_bigcode gptj nomic_bert", "num_attention_heads", "n_head" },
        { "gpt2 gpt_bigcode gptj nomic_bert", "intermediate_size", "n_inner" },
        { "gpt2 gpt_bigcode gptj nomic_bert", "max_position_embeddings", "n_positions" },
        { "bloom", "num_hidden_layers", "n_layer" },
        { "bloom", "num_attention_heads", "n_head" },
        { "mpt", "hidden_size", "d_model" },
        { "mpt", "num_hidden_layers", "n_layers" },
        { "mpt", "num_attention_heads", "n_heads" },
        { "mpt", "max_position_embeddings", "max_seq_len" },
        { "gpt_neo", "num_hidden_layers", "num_layers" },
        { "gpt_neo", "num_attention_heads", "num_heads" },
        { "opt", "intermediate_size", "ffn_dim" },
        { "falcon", "intermediate_size", "ffn_hidden_size" },
        { "gpt_neox", "rope_theta", "rotary_emb_base" },
        { "gpt_neox", "partial_rotary_factor", "rotary_pct" },
    };
    size_t n = strlen(c->arch->hf[0]);

    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        for (const char *p = other[i][0]; (p = strstr(p, c->arch->hf[0])); p += n)
            if ((p == other[i][0] || p[-1] == ' ') && (p[n] == ' ' || !p[n]) &&
                strcmp(other[i][1], key) == 0)
                return other[i][2];
    return key;
}

/* Sliding windows, and which layers have them and a rotary embedding. */
static void put_layers(struct config_out *c)
{
    const struct hparams *hp = c->hp;
    bool some = false, no_rope = hp->n_rope > 0;
    int window = c->arch->window;

    for (int l = 0; l < hp->n_layers; l++) {
        if (hp->layers[l].window) some = true, window = hp->layers[l].window;
        no_rope = no_rope && hp->layers[l].rope < 0;
    }
    /* With ARCH_ROPE_ALL a model without sliding_window rotates in every layer, so one that rotates
     * in none must have the key. */
    if (some || (no_rope && c->arch->flags & ARCH_ROPE_ALL))
        config_put_int(c, "sliding_window", window);
    else if (c->arch->flags & (ARCH_WINDOW | ARCH_LAYER_TYPES))
        config_put_null(c, "sliding_window");
    if (c->arch->flags & ARCH_USE_WINDOW) config_put_bool(c, "use_sliding_window", some);
    if (c->arch->flags & ARCH_LAYER_TYPES) {
        jsonw_key(&c->w, "layer_types"), jsonw_arr(&c->w);
        for (int l = 0; l < hp->n_layers; l++) {
            bool slides = hp->layers[l].window > 0 || hp->layers[l].rope == 1;
            jsonw_str(&c->w, slides ? STR("sliding_attention") : STR("full_attention"));
        }
        jsonw_end(&c->w);
    }
    if (c->arch->flags & ARCH_LAYER_ROPE) {
        jsonw_key(&c->w, "layer_rope_theta"), jsonw_arr(&c->w);
        for (int l = 0; l < hp->n_layers; l++)
            jsonw_num(&c->w, hp->layers[l].rope < 0 ? 0 : config_shortest(hp->rope[0].theta));
        jsonw_end(&c->w);
    }
    if (c->arch->flags & ARCH_NO_ROPE) {
        jsonw_key(&c->w, "no_rope_layers"), jsonw_arr(&c->w);
        for (int l = 0; l < hp->n_layers; l++) jsonw_int(&c->w, hp->layers[l].rope >= 0);
        jsonw_end(&c->w);
    }
}

/* ---- rotary embedding ---- */

/* GGUF stores Llama 3's rope scaling as one divisor per frequency. config.json wants its four
 * parameters; those that released models use are tried until the divisors agree. */
static bool find_llama3(const struct hparams *hp, struct rope_hp *out)
{
    static const double old[] = { 8192, 4096, 2048, 16384, 32768, 65536, 131072, 64, 128, 32, 16 };
    const struct rope_hp *r = &hp->rope[0];
    int n = r->n_rot / 2;
    float plain[1024], scaled[1024], most = 1;

    if (n > 1024) return false;
    for (int i = 0; i < n; i++) most = fmaxf(most, r->freq_factors[i]);
    struct rope_hp none = {
        .theta = r->theta, .n_rot = r->n_rot, .factor = 1, .attn_factor = 1, .max_ctx = r->max_ctx
    };
    rotary_freq(&none, 0, plain);
    for (size_t k = 0; k < sizeof old / sizeof *old; k++) {
        *out = none;
        out->scaling = ROPE_LLAMA3;
        out->factor = round((double)most * 1000) / 1000;
        out->low_freq = 1;
        out->high_freq = 4;
        out->orig_ctx = old[k];
        rotary_freq(out, 0, scaled);
        bool same = true;
        for (int i = 0; i < n && same; i++)
            same = fabsf(plain[i] / scaled[i] / r->freq_factors[i] - 1) < 1e-4f;
        if (same) return true;
    }
    return false;
}

/* One factor per pair of rotary dimensions. */
static void put_factors(struct config_out *c, const char *key, const float *f, int n)
{
    jsonw_key(&c->w, key), jsonw_arr(&c->w);
    for (int i = 0; i < n; i++) jsonw_num(&c->w, config_shortest((double)f[i]));
    jsonw_end(&c->w);
}

/* rope_scaling in the form of the scaling's kind. LongRoPE has its original context outside the
 * object. */
static int put_scaling(struct config_out *c, struct err *e)
{
    struct rope_hp r = c->hp->rope[0];

    if (r.freq_factors && r.scaling == ROPE_NONE && !find_llama3(c->hp, &r))
        return err_set(e, E_UNSUPPORTED,
                       "%s: rope_freqs.weight matches no rope_scaling that config.json can express",
                       source_path(c->src));
    if (r.scaling == ROPE_NONE) return OK;
    jsonw_key(&c->w, "rope_scaling"), jsonw_obj(&c->w);
    config_put_str(c, "rope_type", rope_scaling_name(r.scaling));
    if (r.scaling != ROPE_LONGROPE) config_put_num(c, "factor", r.factor);
    if (r.scaling == ROPE_LLAMA3) {
        config_put_num(c, "low_freq_factor", r.low_freq),
            config_put_num(c, "high_freq_factor", r.high_freq);
        config_put_int(c, "original_max_position_embeddings", (int64_t)r.orig_ctx);
    }
    if (r.scaling == ROPE_YARN) {
        config_put_num(c, "beta_fast", r.beta_fast), config_put_num(c, "beta_slow", r.beta_slow);
        config_put_num(c, "attention_factor", r.attn_factor);
        double mscale = config_mscale_all_dim(c->hp);
        if (mscale != 0) config_put_num(c, "mscale_all_dim", mscale);
        config_put_int(c, "original_max_position_embeddings", (int64_t)r.orig_ctx);
        if (!r.truncate) config_put_bool(c, "truncate", false);
    }
    if (r.scaling == ROPE_LONGROPE) {
        put_factors(c, "long_factor", r.long_factor, r.n_rot / 2);
        put_factors(c, "short_factor", r.short_factor, r.n_rot / 2);
        config_put_num(c, r.attn_factor_long != 0 ? "short_mscale" : "attention_factor",
                       r.attn_factor);
        if (r.attn_factor_long != 0) config_put_num(c, "long_mscale", r.attn_factor_long);
    }
    jsonw_end(&c->w);
    if (r.scaling == ROPE_LONGROPE)
        config_put_int(c, "original_max_position_embeddings", (int64_t)r.orig_ctx);
    return OK;
}

/* Encoders spell their rotary keys differently: see config_put_encoder. */
static int put_rope(struct config_out *c, struct err *e)
{
    const struct hparams *hp = c->hp;

    if (hp->n_rope == 0 || hp->encoder) return OK;
    config_put_num(c, spell_key(c, "rope_theta"), hp->rope[0].theta);
    if (hp->n_rope > 1) config_put_num(c, "rope_local_base_freq", hp->rope[1].theta);
    if (config_is(c, "minimax_m2")) config_put_int(c, "rotary_dim", hp->rope[0].n_rot);
    else if (c->arch->flags & ARCH_PARTIAL_ROPE)
        config_put_num(c, spell_key(c, "partial_rotary_factor"),
                       (double)hp->rope[0].n_rot / hp->layers[0].head_dim);
    return put_scaling(c, e);
}

/* ---- the rest ---- */

/* A soft cap; null: off. */
static void put_cap(struct config_out *c, const char *key, float cap)
{
    if (cap != 0) config_put_num(c, key, (double)cap);
    else config_put_null(c, key);
}

/* Scales and caps of attention scores, logits and residuals. query_pre_attn_scalar is the inverse
 * square of the scale; rounded, since it was an integer before GGUF made it an F32. */
static void put_scales(struct config_out *c)
{
    const struct hparams *hp = c->hp;
    uint64_t f = c->arch->flags;

    if (f & ARCH_QUERY_SCALAR) {
        double s = hp->attn_scale != 0 ? 1 / ((double)hp->attn_scale * (double)hp->attn_scale)
                                       : hp->layers[0].head_dim;
        config_put_num(c, "query_pre_attn_scalar", round(s * 1000) / 1000);
    }
    if (f & ARCH_ATTN_CAP) put_cap(c, "attn_logit_softcapping", hp->attn_softcap);
    if (f & ARCH_LOGIT_CAP) put_cap(c, "final_logit_softcapping", hp->logit_softcap);
    if (f & ARCH_LOGIT_SCALE) config_put_num(c, "logit_scale", hp->logit_scale);
    if (f & ARCH_MULTIPLIERS) {
        config_put_num(c, "embedding_multiplier", hp->embd_scale),
            config_put_num(c, "residual_multiplier", hp->residual_scale);
        config_put_num(c, "attention_multiplier",
                       hp->attn_scale != 0 ? (double)hp->attn_scale
                                           : 1 / sqrt((double)hp->layers[0].head_dim));
        config_put_num(c, "logits_scaling", 1 / (double)hp->logit_scale);
    }
}

/* Only ids that the GGUF file has. */
static void put_token_ids(struct config_out *c)
{
    static const char *const keys[][2] = { { "bos_token_id", "tokenizer.ggml.bos_token_id" },
                                           { "eos_token_id", "tokenizer.ggml.eos_token_id" },
                                           { "pad_token_id", "tokenizer.ggml.padding_token_id" } };
    uint64_t id;

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (c->hp->encoder && c->hp->pos_skip && i == 2) /* positions begin behind the padding id */
            config_put_int(c, keys[i][0], c->hp->pos_skip - 1);
        else if (source_u64(c->src, keys[i][1], &id)) config_put_int(c, keys[i][0], (int64_t)id);
}

/* Which biases the model has, by the keys that the architecture has for them. */
static void put_biases(struct config_out *c)
{
    const struct arch *a = c->arch;
    unsigned has = 0;

    if (config_has_tensor(c, ".attn_q.bias") || config_has_tensor(c, ".attn_qkv.bias") ||
        config_has_tensor(c, ".ssm_in.bias") || config_has_tensor(c, ".shortconv.in_proj.bias") ||
        config_has_tensor(c, ".attn_kv_a_mqa.bias"))
        has |= BIAS_QKV;
    if (config_has_tensor(c, ".attn_output.bias")) has |= BIAS_O;
    if (config_has_tensor(c, ".ffn_down.bias") || config_has_tensor(c, ".ffn_up.bias"))
        has |= BIAS_MLP;
    has &= ~a->bias_always;
    if (a->bias_keyed)
        config_put_bool(c, a->bias_key ? a->bias_key : "attention_bias", has & a->bias_keyed);
    has &= ~a->bias_keyed;
    if (a->bias_keyed && !(a->bias_keyed & BIAS_O))
        config_put_bool(c, "attention_out_bias", has & BIAS_O);
    if (has & BIAS_MLP) config_put_bool(c, "mlp_bias", true);
    if (source_find(c->src, "output.bias") && !(a->bias_always & BIAS_HEAD))
        config_put_bool(c, "lm_head_bias", true);
}

/* The key of the norm's epsilon differs by architecture; "" means it has none. */
static void put_norms(struct config_out *c)
{
    const struct arch *a = c->arch;
    const char *eps = a->eps_key              ? a->eps_key
                      : a->norm == NORM_LAYER ? "layer_norm_eps"
                                              : "rms_norm_eps";

    if (*eps) config_put_num(c, eps, c->hp->norm_eps);
    if (a->qk_key) config_put_bool(c, a->qk_key, c->hp->qk_norm);
    if (a->flags & ARCH_PARALLEL_KEY) config_put_bool(c, "use_parallel_residual", c->hp->parallel);
}

/* The first layer with attention, or the first layer. */
static const struct layer_hp *find_attention_layer(const struct hparams *hp)
{
    for (int l = 0; l < hp->n_layers; l++)
        if (hp->layers[l].mix.kind == MIX_ATTN) return &hp->layers[l];
    return &hp->layers[0];
}

/* intermediate_size means the dense layers' width where an architecture has dense and expert
 * layers, else the experts'. */
static void put_shapes(struct config_out *c)
{
    const struct hparams *hp = c->hp;
    const struct layer_hp *l = find_attention_layer(hp);
    int n_ff = c->arch->moe.dense_ff || !hp->moe.n ? l->n_ff : hp->moe.n_ff;

    for (int i = 0; i < hp->n_layers && c->arch->moe.dense_ff; i++)
        if (!hp->layers[i].moe) {
            n_ff = hp->layers[i].n_ff;
            break;
        }
    config_put_int(c, spell_key(c, "hidden_size"), hp->n_embd),
        config_put_int(c, spell_key(c, "num_hidden_layers"), hp->n_layers);
    config_put_int(c, "vocab_size", hp->n_vocab);
    if (c->arch->flags & ARCH_ALONE) return;
    config_put_int(c, spell_key(c, "max_position_embeddings"),
                   hp->n_ctx + (hp->encoder ? hp->pos_skip : 0));
    config_put_int(c, spell_key(c, "num_attention_heads"), l->n_heads);
    if (c->arch->mix == MIX_MLA) config_put_int(c, "num_key_value_heads", l->n_heads);
    else if (!(c->arch->flags & ARCH_MHA)) config_put_int(c, "num_key_value_heads", l->n_kv_heads);
    if (c->arch->mix != MIX_MLA && !hp->encoder && strcmp(c->arch->hf[0], "falcon") != 0 &&
        (l->head_dim * l->n_heads != hp->n_embd || hp->n_rope))
        config_put_int(c, "head_dim", l->head_dim);
    config_put_int(c, spell_key(c, "intermediate_size"), n_ff);
}

static const char *name_torch_dtype(enum dtype t)
{
    return t == DT_F32 ? "float32" : t == DT_BF16 ? "bfloat16" : "float16";
}

/* Does the object say that its tensors are quantized in a way that this program unpacks? The folder
 * is written without. Experts in MXFP4 are written as they were. */
static bool is_unpacked(const json_t *o)
{
    const char *method = json_string_value(
        json_object_get(json_object_get(o, "quantization_config"), "quant_method"));

    return method && hfquant_knows(str_c(method)) && strcmp(method, "mxfp4") != 0;
}

/* falcon-h1: the weights of GGUF files have the factors of config.json in them (naming_hybrid.c), which
 * are 1 from now on; a tied head keeps what it differs by. */
static void set_factors(json_t *root, const struct hparams *hp)
{
    static const char *const lists[] = { "mlp_multipliers", "ssm_multipliers" };
    const char *key;
    json_t *v;
    void *next;

    json_object_foreach_safe(root, next, key,
                             v) if (str_ends(str_c(key), STR("_multiplier")) && json_is_number(v))
        json_object_set_new(root, key, json_real(1));
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (size_t k = 0; k < json_array_size(json_object_get(root, lists[i])); k++)
            json_array_set_new(json_object_get(root, lists[i]), k, json_real(1));
    if (hp->logit_scale != 1)
        json_object_set_new(root, "lm_head_multiplier", json_real((double)hp->logit_scale));
}

/* The config.json that the folder had. */
static int copy_config(struct str original, const struct hparams *hp, struct buf *out,
                       struct err *e)
{
    json_error_t why;
    json_t *root = jsonr_load(original, 0, &why), *text = json_object_get(root, "text_config");
    bool whole = is_unpacked(root), inner = is_unpacked(text),
         scaled = str_is(str_c(hp->arch), "falcon-h1");

    if (!root && json_error_code(&why) == json_error_out_of_memory)
        return err_nomem(e, "config.json");
    if (whole) json_object_del(root, "quantization_config");
    if (inner) json_object_del(text, "quantization_config");
    if (scaled) set_factors(root, hp);
    if (whole || inner || scaled) {
        jsonr_dump(out, root, JSON_INDENT(2));
        buf_putc(out, '\n');
    } else {
        buf_put_str(out, original);
    }
    json_decref(root);
    return OK;
}

int tohf_config(const struct source *src, const struct hparams *hp, enum dtype type,
                struct buf *out, struct err *e)
{
    struct config_out c = { .src = src, .hp = hp, .arch = hp->info, .w = { .out = out } };
    const char *act = c.arch->act_key ? c.arch->act_key : "hidden_act";
    char class[64];
    struct str original;
    int rc;

    if (source_str(src, HFKEY_CONFIG, &original)) return copy_config(original, hp, out, e);
    const char *name = format_class(c.arch->hf[0], class, sizeof class);
    if (hparams_own_gguf_known(c.arch) || !name)
        return err_set(
            e, E_UNSUPPORTED,
            "%s: config.json of %s cannot be derived from GGUF keys: only files that tern "
            "converted without --bare have it",
            source_path(src), c.arch->hf[0]);
    jsonw_obj(&c.w);
    jsonw_key(&c.w, "architectures"), jsonw_arr(&c.w), jsonw_str(&c.w, str_c(name)),
        jsonw_end(&c.w);
    config_put_str(&c, "model_type", c.arch->hf[0]);
    put_shapes(&c);
    put_norms(&c);
    if (*act) config_put_str(&c, act, act_name(hp->act));
    config_put_bool(&c, "tie_word_embeddings", hp->tied);
    put_biases(&c);
    if ((rc = put_rope(&c, e)) != OK) return rc;
    if (hp->encoder) config_put_encoder(&c);
    else put_layers(&c);
    put_scales(&c);
    config_put_moe(&c);
    if ((rc = config_put_mixer(&c, e)) != OK) return rc;
    if ((rc = config_put_special(&c, e)) != OK) return rc;
    put_token_ids(&c);
    config_put_str(&c, "torch_dtype", name_torch_dtype(type));
    jsonw_end(&c.w);
    buf_putc(out, '\n');
    return OK;
}
