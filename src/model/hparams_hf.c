/* hparams_hf.c - hyper-parameters from config.json of a Hugging Face folder.
 *
 * Keys have the meaning that the transformers library gives them for this model_type; defaults for
 * missing keys are in the table of architectures. Shapes have no defaults. */
#include "model/config.h"

#include "format/hfquant.h"
#include "model/vechead.h"

#include <math.h>
#include <stdio.h>

/* Names of the same quantity in different families. */
static const char *const k_layers[] = { "num_hidden_layers", "n_layer", "num_layers", "n_layers",
                                        NULL };
static const char *const k_embd[] = { "hidden_size", "n_embd", "d_model", "n_embed", NULL };
static const char *const k_heads[] = { "num_attention_heads", "n_head", "num_heads", "n_heads",
                                       NULL };
static const char *const k_ff[] = { "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size",
                                    NULL };
static const char *const k_ctx[] = {
    "max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length", NULL
};

/* ---- architecture and name prefix ---- */

static int find_hf_arch(struct config *c, struct err *e)
{
    struct str type, in_text;
    char near[256];
    if (!source_str(c->src, "model_type", &type))
        return err_set(e, E_FORMAT, "%s: config.json has no model_type", source_path(c->src));
    c->in = source_str(c->src, "text_config.model_type", &in_text) ? "text_config." : "";
    c->arch = arch_by_hf(type);
    if (!c->arch && c->in[0]) c->arch = arch_by_hf(in_text);
    if (!c->arch)
        return err_set(
            e, E_UNSUPPORTED,
            "%s: the architecture \"%.*s\" is not supported; of the %d that are, the nearest "
            "names are %s",
            source_path(c->src), STR_ARG(str_take(type, 64)), arch_count(),
            arch_near(type, true, near, sizeof near));
    return OK;
}

/* The prefix of tensor names, and that of the output head: the first pair under which the embedding
 * exists. */
static void find_prefix(const struct config *c, struct hparams *hp)
{
    static const char *const prefixes[][2] = {
        { "model.", "" },
        { "", "" },
        { "transformer.", "" },
        { "gpt_neox.", "" },
        { "model.decoder.", "" },
        { "decoder.", "" },
        { "backbone.", "" },
        { "bert.", "" },
        { "roberta.", "" },
        { "model.language_model.", "" },
        { "language_model.model.", "language_model." },
        { "model.text_model.", "" },
    };
    char name[256];
    int it = 0;
    const struct tensor_row *embd = arch_row(c->arch, &it);

    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        hp->prefix = prefixes[i][0];
        hp->head_prefix = prefixes[i][1];
        if (hparams_name(hp, embd, 0, 0, SOURCE_HF, name, sizeof name) && source_find(c->src, name))
            return;
    }
    hp->prefix = prefixes[0][0];
    hp->head_prefix = prefixes[0][1];
}

/* ---- shapes ---- */

static bool config_has_any(const struct config *c, const char *const *names)
{
    for (; *names; names++)
        if (config_has(c, "", *names)) return true;
    return false;
}

/* All layers start equal; experts, mixers and own keys then change some of them. */
static int read_hf_shapes(const struct config *c, struct hparams *hp, struct arena *a,
                          struct err *e)
{
    struct layer_hp w = { 0 };
    int rc;
    if ((rc = config_need(c, k_layers, &hp->n_layers, e)) != OK) return rc;
    if ((rc = config_need(c, k_embd, &hp->n_embd, e)) != OK) return rc;
    w.n_heads = c->arch->n_heads;
    if (c->arch->flags & ARCH_PAIRS && config_int(c, "num_layers", &hp->n_layers))
        hp->n_layers *= 2;
    if (!(c->arch->flags & ARCH_ALONE) && !(w.n_heads && !config_has_any(c, k_heads)) &&
        (rc = config_need(c, k_heads, &w.n_heads, e)) != OK)
        return rc;
    if (hp->n_layers > 65536)
        return err_set(e, E_FORMAT, "%s: %d layers: at most 65536 are supported",
                       source_path(c->src), hp->n_layers);
    if (c->arch->flags & ARCH_MHA) w.n_kv_heads = w.n_heads;
    else config_int(c, "num_key_value_heads", &w.n_kv_heads);
    config_int(c, "head_dim", &w.head_dim);
    config_any(c, k_ff, &w.n_ff);
    config_int(c, "vocab_size", &hp->n_vocab);
    if (!config_any(c, k_ctx, &hp->n_ctx)) hp->n_ctx = c->arch->n_ctx;
    hp->n_word = hp->n_embd;
    hp->layers = arena_array(a, (size_t)hp->n_layers, sizeof *hp->layers);
    if (!hp->layers) return err_nomem(e, "the layers of a model");
    w.mix.gate = c->arch->flags & ARCH_GATE;
    for (int l = 0; l < hp->n_layers; l++) hp->layers[l] = w;
    if ((rc = hparams_hf_moe(c, hp, e)) != OK) return rc;
    if (c->arch->flags & ARCH_OWN_KEYS && (rc = hparams_own_shapes(c, hp, e)) != OK) return rc;
    if (c->arch->mix && (rc = hparams_mix_shapes(c, hp, e)) != OK) return rc;
    if (c->arch->encoder && (rc = hparams_encoder_shapes(c, hp, e)) != OK) return rc;
    return hparams_infer(hp, c->src, e);
}

/* ---- everything but shapes ---- */

static int read_hf_act(const struct config *c, struct hparams *hp, struct err *e)
{
    const char *key = c->arch->act_key ? c->arch->act_key : "hidden_act";
    struct str name;
    hp->act = c->arch->act;
    if (!key[0] || !config_str(c, "", key, &name)) return OK;
    if (act_by_name(name, &hp->act)) return OK;
    return err_set(e, E_UNSUPPORTED, "%s: config.json: %s \"%.*s\" is not supported",
                   source_path(c->src), key, STR_ARG(str_take(name, 64)));
}

/* The default epsilon is the family's. */
static void read_norm(const struct config *c, struct hparams *hp)
{
    const char *key = c->arch->eps_key;
    double eps = c->arch->eps;

    if (!key) key = c->arch->norm == NORM_LAYER ? "layer_norm_eps" : "rms_norm_eps";
    if (key[0]) config_f64(c, "", key, &eps);
    hp->norm = c->arch->norm;
    hp->norm_eps = (float)eps;
    hp->norm_bias1 = c->arch->flags & ARCH_NORM1 ? 1 : 0;
    hp->bare_norm = c->arch->flags & ARCH_BARE_NORM;
}

/* Some keys are shared by many families, so they are read for all. */
static void read_biases(const struct config *c, struct hparams *hp)
{
    const struct arch *a = c->arch;

    hp->bias = a->bias_always;
    if (config_bool(c, a->bias_key ? a->bias_key : "attention_bias", a->bias_default))
        hp->bias |= a->bias_keyed;
    if (config_bool(c, "attention_out_bias", false)) hp->bias |= BIAS_O;
    if (config_bool(c, "mlp_bias", false)) hp->bias |= BIAS_MLP;
    if (config_bool(c, "lm_head_bias", false)) hp->bias |= BIAS_HEAD;
}

/* query_pre_attn_scalar is 256 by default in transformers. */
static void read_hf_scales(const struct config *c, struct hparams *hp)
{
    uint64_t f = c->arch->flags;
    double v;
    if (f & ARCH_EMBD_SQRT) hp->embd_scale = sqrtf((float)hp->n_embd);
    if (f & ARCH_QUERY_SCALAR)
        hp->attn_scale = (float)(1 / sqrt(config_or(c, "query_pre_attn_scalar", 256)));
    if (f & ARCH_ATTN_CAP)
        hp->attn_softcap = (float)config_or(c, "attn_logit_softcapping", c->arch->attn_cap);
    if (f & ARCH_LOGIT_CAP)
        hp->logit_softcap = (float)config_or(c, "final_logit_softcapping", c->arch->logit_cap);
    if (f & ARCH_LOGIT_SCALE)
        hp->logit_scale = (float)config_or(c, "logit_scale", c->arch->logit_scale);
    if (f & ARCH_ALIBI) hp->alibi = 8;
    if (f & ARCH_MULTIPLIERS) {
        hp->embd_scale = (float)config_or(c, "embedding_multiplier", 1);
        hp->residual_scale = (float)config_or(c, "residual_multiplier", 1);
        hp->attn_scale = (float)config_or(c, "attention_multiplier", 1);
        v = config_or(c, "logits_scaling", 1);
        hp->logit_scale = (float)(v != 0 ? 1 / v : 1);
    }
}

/* The output head is the embedding: by its key, or because there is no tensor for it. */
static bool read_tied(const struct config *c, const struct hparams *hp)
{
    char name[256];
    bool tied;
    int it = 0;
    const struct tensor_row *r;

    if (config_has(c, "", "tie_word_embeddings"))
        return config_bool(c, "tie_word_embeddings", c->arch->tied);
    if (source_bool(c->src, "tie_word_embeddings", &tied)) return tied;
    for (r = arch_row(c->arch, &it); r; r = arch_row(c->arch, &it))
        if (r->flags & ROW_HEAD && !row_is_vector(r)) break;
    return c->arch->tied || !r || !hparams_name(hp, r, 0, 0, SOURCE_HF, name, sizeof name) ||
           !source_find(c->src, name);
}

/* Layers of quantized folders are presented as tensors by format/hfquant.h; experts in MXFP4 have
 * rows of their own. */
static int read_quantized(const struct config *c, struct hparams *hp, struct err *e)
{
    struct str method;
    int it = 0;

    if (!source_quant_method(c->src, &method)) return OK;
    if (hfquant_knows(method) && !str_is(method, "mxfp4")) return OK;
    if (str_is(method, "mxfp4"))
        for (const struct tensor_row *r = arch_row(c->arch, &it); r; r = arch_row(c->arch, &it))
            hp->mxfp4 |= r->flags & ROW_MX;
    if (hp->mxfp4) return OK;
    return err_set(
        e, E_UNSUPPORTED,
        "%s: config.json: weights quantized by \"%.*s\" are not supported; supported are "
        "%s",
        source_path(c->src), STR_ARG(str_take(method, 64)), hfquant_methods());
}

/* Properties that the table determines, some of them overridden by keys. */
static void read_properties(const struct config *c, struct hparams *hp)
{
    uint64_t f = c->arch->flags;

    hp->rope_style = f & ARCH_ROPE_PAIRS ? ROPE_PAIR : ROPE_HALF;
    hp->qk_norm_whole = f & ARCH_QK_WHOLE;
    hp->qk_norm = c->arch->qk_key && config_bool(c, c->arch->qk_key, false);
    hp->qk_bare = f & ARCH_QK_BARE;
    hp->v_norm = f & ARCH_VALUE_NORM;
    hp->embd_norm = f & ARCH_EMBD_NORM;
    hp->parallel = f & ARCH_PARALLEL;
    if (f & ARCH_PARALLEL_KEY) hp->parallel = config_bool(c, "use_parallel_residual", hp->parallel);
}

/* Keys that change the model in ways no architecture here supports. */
static int refuse_unsupported(const struct config *c, struct err *e)
{
    struct str both;

    if (config_str(c, "", "use_bidirectional_attention", &both) && !str_is(both, "vision"))
        return config_refuse(c, "use_bidirectional_attention", "must be true, false or \"vision\"",
                             e);
    if (config_has(c, "", "per_layer_config"))
        return config_refuse(c, "per_layer_config", "is not supported", e);
    return OK;
}

/* Order matters: name prefix and quantization before shapes, because shapes are inferred from
 * tensors. */
int hparams_from_hf(struct hparams *hp, struct arena *a, const struct source *src, struct err *e)
{
    struct config c = { .src = src, .in = "" };
    int rc;

    if ((rc = find_hf_arch(&c, e)) != OK) return rc;
    hp->info = c.arch;
    hp->arch = c.arch->gguf;
    find_prefix(&c, hp);
    read_properties(&c, hp);
    read_norm(&c, hp);
    read_biases(&c, hp);
    if ((rc = read_quantized(&c, hp, e)) != OK) return rc;
    if ((rc = read_hf_shapes(&c, hp, a, e)) != OK) return rc;
    hp->tied = read_tied(&c, hp);
    if ((rc = refuse_unsupported(&c, e)) != OK) return rc;
    if ((rc = read_hf_act(&c, hp, e)) != OK) return rc;
    if ((rc = hparams_hf_ropes(&c, hp, a, e)) != OK) return rc;
    hparams_hf_windows(&c, hp);
    read_hf_scales(&c, hp);
    /* A decoder that was trained further as an encoder (EmbeddingGemma). */
    if (config_bool(&c, "use_bidirectional_attention", false)) {
        hp->encoder = true;
        if (str_is(str_c(hp->arch), "gemma3")) {
            hp->arch = c.arch->gguf_also[0];
            if ((rc = vechead_read(&hp->dense, a, src, hp->n_embd, e)) != OK) return rc;
        }
    }
    if (c.arch->mix && (rc = hparams_mix(&c, hp, e)) != OK) return rc;
    if (c.arch->encoder && (rc = hparams_encoder(&c, hp, e)) != OK) return rc;
    return c.arch->flags & ARCH_OWN_KEYS ? hparams_own(&c, hp, e) : OK;
}
