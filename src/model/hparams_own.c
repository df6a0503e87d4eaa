/* hparams_own.c - keys of config.json that a single architecture has (ARCH_OWN_KEYS).
 *
 * Each function is named after its model_type. A key whose value would change the results is
 * honoured or refused. */
#include "model/config.h"

#include "kernel/quant.h"
#include "model/model.h"

#include <math.h>
#include <stdio.h>

static void set_kv_heads(struct hparams *hp, int n)
{
    for (int l = 0; l < hp->n_layers; l++) hp->layers[l].n_kv_heads = n;
}

static void set_attn_scales(struct hparams *hp, float scale)
{
    for (int l = 0; l < hp->n_layers; l++) hp->layers[l].attn_scale = scale;
}

/* ---- gpt2, gpt_bigcode, gpt_neo, gptj ---- */

/* scale_attn_by_inverse_layer_idx divides scores by the layer number. */
static int read_gpt2(const struct config *c, struct hparams *hp, struct err *e)
{
    if (config_bool(c, "add_cross_attention", false))
        return config_refuse(c, "add_cross_attention", "is not supported", e);
    for (int l = 0; l < hp->n_layers; l++) {
        struct layer_hp *w = &hp->layers[l];
        w->attn_scale =
            config_bool(c, "scale_attn_weights", true) ? 1 / sqrtf((float)w->head_dim) : 1;
        if (config_bool(c, "scale_attn_by_inverse_layer_idx", false))
            w->attn_scale /= (float)(l + 1);
    }
    return OK;
}

/* attention_types: [[["global", "local"], 12], ...]: patterns of layers, each repeated n times. */
static int read_neo(const struct config *c, struct hparams *hp, struct err *e)
{
    int window = c->arch->window, l = 0;
    bool typed = config_has(c, "", "attention_types.0");

    config_int(c, "window_size", &window);
    set_attn_scales(hp, 1);
    for (int i = 0; typed && l < hp->n_layers; i++) {
        char key[64];
        int times, first = l;
        snprintf(key, sizeof key, "attention_types.%d.1", i);
        if (!config_int(c, key, &times)) break;
        for (int t = 0; t < times && l < hp->n_layers; t++) {
            struct str type;
            for (int k = 0; l < hp->n_layers; k++, l++) {
                snprintf(key, sizeof key, "attention_types.%d.0.%d", i, k);
                if (!config_str(c, "", key, &type)) break;
                if (!str_is(type, "global") && !str_is(type, "local"))
                    return config_refuse(c, key, "must be \"global\" or \"local\"", e);
                hp->layers[l].window = str_is(type, "local") ? window : 0;
            }
            if (l == first) break;
        }
        if (l == first) break;
    }
    for (int i = 0; !typed && i < hp->n_layers; i++) hp->layers[i].window = i % 2 ? window : 0;
    if (typed && l < hp->n_layers)
        return err_set(e, E_FORMAT,
                       "%s: config.json: attention_types describes %d layers, expected %d",
                       source_path(c->src), l, hp->n_layers);
    return OK;
}

/* rotary_dim: elements of a head that are rotated. */
static int read_gptj(const struct config *c, struct hparams *hp, struct err *e)
{
    int n = 64;

    if (config_null(c, "rotary_dim"))
        return config_refuse(c, "rotary_dim", "is null; a number is required", e);
    config_int(c, "rotary_dim", &n);
    hp->rope[0].n_rot = n;
    return OK;
}

/* ---- falcon ---- */

/* Three generations: multi-query, multi-head, and the "new decoder architecture" with groups. */
static int read_falcon_shapes(const struct config *c, struct hparams *hp, struct err *e)
{
    bool fresh = config_bool(c, "new_decoder_architecture", false),
         mq = config_bool(c, "multi_query", true);
    int n = hp->layers[0].n_heads, kv = n, norms = fresh ? 2 : 1;

    if (fresh && !config_int(c, "num_kv_heads", &kv)) config_int(c, "n_head_kv", &kv);
    set_kv_heads(hp, fresh ? kv : mq ? 1 : n);
    hp->parallel = fresh || config_bool(c, "parallel_attn", true);
    config_int(c, "num_ln_in_parallel_attn", &norms);
    if (norms != 1 && norms != 2)
        return config_refuse(c, "num_ln_in_parallel_attn", "must be 1 or 2", e);
    if (fresh && !config_bool(c, "parallel_attn", true))
        return config_refuse(c, "parallel_attn", "must be true with new_decoder_architecture", e);
    hp->two_norms = fresh && norms == 2;
    return OK;
}

/* Falcon scales ALiBi like the scores, and it replaces the rotary embedding. */
static int read_falcon(const struct config *c, struct hparams *hp)
{
    if (!config_bool(c, "alibi", false)) return OK;
    hp->alibi = 8;
    hp->alibi_scale = 1 / sqrtf((float)hp->layers[0].head_dim);
    hp->n_rope = 0;
    for (int l = 0; l < hp->n_layers; l++) hp->layers[l].rope = -1;
    return OK;
}

/* ---- mpt, bloom, opt ---- */

static int read_mpt(const struct config *c, struct hparams *hp, struct err *e)
{
    double v;
    struct str s;

    if (config_str(c, "attn_config.", "attn_type", &s) && !str_is(s, "multihead_attention"))
        return config_refuse(c, "attn_config.attn_type", "must be multihead_attention", e);
    if (config_flag(c, "attn_config.", "prefix_lm", false))
        return config_refuse(c, "attn_config.prefix_lm", "is not supported", e);
    if (config_f64(c, "attn_config.", "softmax_scale", &v)) set_attn_scales(hp, (float)v);
    if (config_f64(c, "attn_config.", "clip_qkv", &v)) hp->clip_qkv = (float)v;
    return OK;
}

/* OPT's positions start at row 2. */
static int read_opt_shapes(const struct config *c, struct hparams *hp)
{
    hp->pos_skip = 2;
    hp->bare_norm = !config_bool(c, "layer_norm_elementwise_affine", true);
    hp->norm_after = !config_bool(c, "do_layer_norm_before", true);
    hp->last_norm = !hp->norm_after && !config_bool(c, "_remove_final_layer_norm", false);
    config_int(c, "word_embed_proj_dim", &hp->n_word);
    return OK;
}

/* ---- relatives of llama ---- */

/* Dynamic scaling with "alpha" is a fixed change of the rotary base, at every length. */
static int read_hunyuan(const struct config *c, struct hparams *hp)
{
    struct rope_hp *r = &hp->rope[0];
    double alpha, dim = hp->layers[0].head_dim;

    if (r->scaling != ROPE_DYNAMIC) return OK;
    if (!config_f64(c, "rope_scaling.", "alpha", &alpha) &&
        !config_f64(c, "rope_parameters.", "alpha", &alpha))
        return OK;
    if (alpha == 0) return OK;
    r->theta *= pow(alpha, dim / (dim - 2));
    r->scaling = ROPE_NONE;
    r->factor = 1;
    return OK;
}

/* Longrope with keys for the factor of cos and sin below and above the original context. The
 * reference library uses the short frequency factors in both cases. */
static int read_phimoe(const struct config *c, struct hparams *hp)
{
    struct rope_hp *r = &hp->rope[0];
    const char *dict =
        config_has(c, "rope_scaling.", "short_mscale") ? "rope_scaling." : "rope_parameters.";

    hp->moe.jitter = (float)config_or(c, "router_jitter_noise", 0.01);
    if (r->scaling == ROPE_NONE) return OK;
    config_f64(c, dict, "short_mscale", &r->attn_factor);
    config_f64(c, dict, "long_mscale", &r->attn_factor_long);
    r->always_short = r->scaling == ROPE_LONGROPE;
    return OK;
}

/* The parameters of xIELU are tensors of one element in folders, and keys in GGUF files. Those that are
 * missing or odd are reported when the weights are loaded. */
static int read_apertus(const struct config *c, struct hparams *hp)
{
    const size_t at = offsetof(struct layer, xielu);
    const struct tensor_row *r;
    char name[256];

    for (int l = 0; l < hp->n_layers; l++)
        for (int it = 0; (r = arch_row(c->arch, &it));) {
            const struct source_tensor *t;
            if (r->kind != ROW_SCALE || r->at < at || r->at >= at + sizeof(struct xielu_opt))
                continue;
            hparams_name(hp, r, l, 0, SOURCE_HF, name, sizeof name);
            t = source_find(c->src, name);
            if (t && (t->type == DT_F32 || t->type == DT_F16 || t->type == DT_BF16) &&
                t->bytes == (size_t)dtype_info((int)t->type)->bytes)
                quant_decode(t->type, t->data,
                             (float *)((char *)&hp->layers[l].xielu + (r->at - at)), 1);
        }
    return OK;
}

/* Scales of embeddings, residuals and logits; null means none. */
static int read_minicpm(const struct config *c, struct hparams *hp)
{
    double base = config_or(c, "dim_model_base", 256), depth = config_or(c, "scale_depth", 1.4);

    hp->embd_scale = (float)config_or(c, "scale_emb", 12);
    if (depth != 0) hp->residual_scale = (float)(depth / sqrt(hp->n_layers));
    if (base != 0) hp->logit_scale = (float)(base / hp->n_embd);
    return OK;
}

/* The defaults of the reference library without a rotary scaling key. */
static int read_gpt_oss(const struct config *c, struct hparams *hp)
{
    struct rope_hp *r = &hp->rope[0];

    if (config_has(c, "", "rope_scaling") || config_has(c, "", "rope_parameters")) return OK;
    r->scaling = ROPE_YARN;
    r->factor = 32;
    r->orig_ctx = 4096;
    r->truncate = false;
    r->attn_factor = 0.1 * log(r->factor) + 1;
    return OK;
}

int hparams_own_shapes(const struct config *c, struct hparams *hp, struct err *e)
{
    struct str type = str_c(c->arch->hf[0]);

    if (str_is(type, "falcon")) return read_falcon_shapes(c, hp, e);
    if (str_is(type, "opt")) return read_opt_shapes(c, hp);
    if (str_is(type, "gpt_bigcode"))
        set_kv_heads(hp, config_bool(c, "multi_query", true) ? 1 : hp->layers[0].n_heads);
    if (str_is(type, "gemma4_text") || str_is(type, "gemma3n_text"))
        return hparams_gemma_shapes(c, hp, e);
    return hparams_own_moe_shapes(c, hp, e);
}

int hparams_own(const struct config *c, struct hparams *hp, struct err *e)
{
    struct str type = str_c(c->arch->hf[0]);

    if (str_is(type, "gpt2") || str_is(type, "gpt_bigcode")) return read_gpt2(c, hp, e);
    if (str_is(type, "gpt_neo")) return read_neo(c, hp, e);
    if (str_is(type, "gptj")) return read_gptj(c, hp, e);
    if (str_is(type, "falcon")) return read_falcon(c, hp);
    if (str_is(type, "mpt")) return read_mpt(c, hp, e);
    if (str_is(type, "bloom"))
        hp->norm_residual = config_bool(c, "apply_residual_connection_post_layernorm", false);
    if (str_is(type, "hunyuan_v1_dense") || str_is(type, "hunyuan_v1_moe"))
        return read_hunyuan(c, hp);
    if (str_is(type, "gemma4_text") || str_is(type, "gemma3n_text")) return hparams_gemma(c, hp, e);
    if (str_is(type, "minicpm3")) return read_minicpm(c, hp);
    if (str_is(type, "apertus")) return read_apertus(c, hp);
    if (str_is(type, "olmo_hybrid") && !config_has(c, "rope_parameters.", "rope_theta") &&
        !config_has(c, "", "rope_theta"))
        for (int l = 0; l < hp->n_layers; l++) hp->layers[l].rope = -1;
    if (str_is(type, "nanochat") && config_has(c, "", "logits_soft_cap"))
        hp->logit_softcap = (float)config_or(c, "logits_soft_cap", 15);
    if (str_is(type, "phimoe")) return read_phimoe(c, hp);
    if (str_is(type, "gpt_oss")) return read_gpt_oss(c, hp);
    if (str_is(type, "olmo") || str_is(type, "olmoe"))
        hp->clip_qkv = (float)config_or(c, "clip_qkv", 0);
    return hparams_own_moe(c, hp, e);
}
