/* hparams_hybrid.c - keys of config.json of hybrids (ARCH_HYBRID): layers with a state space model
 * and layers with attention, or both in every layer; nemotron's layers have one block each. */
#include "model/config.h"

#include <math.h>
#include <stdio.h>

/* The names of a quantity in two families; the first one is missing in the other. */
static int need_any(const struct config *c, const char *a, const char *b, int *out, struct err *e)
{
    return config_need(c, (const char *const[]){ a, b, NULL }, out, e);
}

static bool is_type(const struct config *c, const char *name)
{
    return str_is(str_c(c->arch->hf[0]), name);
}

/* The parts of a layer. */
enum block { BLOCK_MIXER, BLOCK_ATTN, BLOCK_FFN, BLOCK_EXPERTS };

/* nemotron: a letter or a word for each layer. */
static bool find_nemotron_block(const struct config *c, int l, enum block *out)
{
    struct str letters;

    if (config_has(c, "", "layers_block_type.0")) {
        if (config_list_is(c, "layers_block_type", l, "moe")) *out = BLOCK_EXPERTS;
        else if (config_list_is(c, "layers_block_type", l, "mlp")) *out = BLOCK_FFN;
        else if (config_list_is(c, "layers_block_type", l, "attention") ||
                 config_list_is(c, "layers_block_type", l, "full_attention"))
            *out = BLOCK_ATTN;
        else if (config_list_is(c, "layers_block_type", l, "mamba") ||
                 config_list_is(c, "layers_block_type", l, "linear_attention"))
            *out = BLOCK_MIXER;
        else return false;
        return true;
    }
    if (!config_str(c, "", "hybrid_override_pattern", &letters) || (size_t)l >= letters.n)
        return false;
    switch (letters.p[l]) {
    case 'M': *out = BLOCK_MIXER; return true;
    case '*': *out = BLOCK_ATTN; return true;
    case '-': *out = BLOCK_FFN; return true;
    case 'E': *out = BLOCK_EXPERTS; return true;
    default: return false;
    }
}

static bool list_has(const struct config *c, const char *name, int l)
{
    int v;

    for (int i = 0; config_list_int(c, name, i, &v); i++)
        if (v == l) return true;
    return false;
}

/* Layer l has attention, by the key that the family has for it. */
static int find_block(const struct config *c, int l, enum block *out, struct err *e)
{
    int period = 8, offset = 4;

    *out = BLOCK_MIXER;
    if (is_type(c, "nemotron_h")) {
        if (find_nemotron_block(c, l, out)) return OK;
        return err_set(e, E_UNSUPPORTED,
                       "%s: config.json: layers_block_type and hybrid_override_pattern do not say "
                       "what layer %d is",
                       source_path(c->src), l);
    }
    if (config_has(c, "", "layer_types.0") || config_has(c, "", "layers_block_type.0")) {
        const char *list = config_has(c, "", "layer_types.0") ? "layer_types" : "layers_block_type";
        if (config_list_is(c, list, l, "attention") || config_list_is(c, list, l, "full_attention"))
            *out = BLOCK_ATTN;
        else if (!config_list_is(c, list, l, "mamba") &&
                 !config_list_is(c, list, l, "linear_attention"))
            return config_refuse(c, list, "must be mamba or attention for every layer", e);
        return OK;
    }
    if (config_has(c, "", "attn_layer_indices")) {
        if (list_has(c, "attn_layer_indices", l)) *out = BLOCK_ATTN;
        return OK;
    }
    if (is_type(c, "jamba")) {
        config_int(c, "attn_layer_period", &period);
        config_int(c, "attn_layer_offset", &offset);
        if (period > 0 && l % period == offset) *out = BLOCK_ATTN;
    }
    return OK;
}

/* time_step_limit: two numbers, the second of which may be infinite. */
static void read_dt_limits(const struct config *c, struct mix_hp *h)
{
    double v;

    h->dt_max = INFINITY;
    if (config_list_f64(c, "time_step_limit", 0, &v)) h->dt_min = (float)v;
    if (config_list_f64(c, "time_step_limit", 1, &v)) h->dt_max = (float)v;
}

static int read_mamba1(const struct config *c, const struct hparams *hp, struct mix_hp *h,
                       struct err *e)
{
    double expand = config_or(c, "mamba_expand", 2);
    int rc;

    h->kind = MIX_MAMBA;
    h->taps = 4;
    h->inner = expand > 0 && expand < 1024 ? (int)(expand * hp->n_embd) : 0;
    h->dt_rank = (hp->n_embd + 15) / 16;
    config_int(c, "mamba_d_conv", &h->taps);
    config_int(c, "mamba_dt_rank", &h->dt_rank);
    if ((rc = need_any(c, "mamba_d_state", "state_size", &h->n_state, e)) != OK) return rc;
    h->bc_norm = true;
    h->dt_max = INFINITY;
    h->bc_eps = (float)config_or(c, "rms_norm_eps", 1e-6);
    return OK;
}

static int read_mamba2(const struct config *c, const struct hparams *hp, struct mix_hp *h,
                       struct err *e)
{
    double expand = config_or(c, "mamba_expand", 2);
    int rc;

    h->kind = MIX_MAMBA2;
    h->taps = 4;
    if (!config_int(c, "mamba_d_conv", &h->taps)) config_int(c, "conv_kernel", &h->taps);
    if ((rc = need_any(c, "mamba_n_heads", "mamba_num_heads", &h->n_heads, e)) != OK) return rc;
    if ((rc = need_any(c, "mamba_d_state", "ssm_state_size", &h->n_state, e)) != OK) return rc;
    h->n_groups = 1;
    if (!config_int(c, "mamba_n_groups", &h->n_groups)) config_int(c, "n_groups", &h->n_groups);
    if (!config_int(c, "mamba_d_head", &h->head_dim)) config_int(c, "mamba_head_dim", &h->head_dim);
    h->inner = h->head_dim                   ? h->n_heads * h->head_dim
               : expand > 0 && expand < 1024 ? (int)(expand * hp->n_embd)
                                             : 0;
    config_int(c, "mamba_d_ssm", &h->inner);
    if (!h->head_dim && h->n_heads) h->head_dim = h->inner / h->n_heads;
    h->normed = config_bool(c, "mamba_rms_norm", !is_type(c, "falcon_h1"));
    h->norm_first = is_type(c, "falcon_h1") && config_bool(c, "mamba_norm_before_gate", true);
    h->norm_groups = is_type(c, "nemotron_h") || is_type(c, "falcon_h1") ? h->n_groups : 1;
    read_dt_limits(c, h);
    return OK;
}

/* falcon-h1: factors of the mixer's inputs, and of z, x, b, c and dt. */
static void read_falcon_scales(const struct config *c, struct mix_hp *h)
{
    double v;

    h->with_attn = true;
    h->in_scale = (float)config_or(c, "ssm_in_multiplier", 1);
    h->out_scale = (float)config_or(c, "ssm_out_multiplier", 1);
    for (int i = 0; i < 5; i++)
        if (config_list_f64(c, "ssm_multipliers", i, &v)) h->scales[i] = (float)v;
}

/* llama.cpp's name of nemotrons with experts, and of granites without a mixer. */
static void set_gguf_name(struct hparams *hp)
{
    bool mixes = false;

    for (int l = 0; l < hp->n_layers; l++) mixes = mixes || hp->layers[l].mix.kind == MIX_MAMBA2;
    if (str_is(str_c(hp->arch), "nemotron_h") && hp->moe.n) hp->arch = hp->info->gguf_also[0];
    if (str_is(str_c(hp->info->hf[0]), "granitemoehybrid") && !mixes)
        hp->arch = hp->info->gguf_also[hp->moe.n > 0];
}

int hparams_hybrid_shapes(const struct config *c, struct hparams *hp, struct err *e)
{
    struct mix_hp h = { 0 };
    int rc = c->arch->mix == MIX_MAMBA ? read_mamba1(c, hp, &h, e) : read_mamba2(c, hp, &h, e);
    bool one = is_type(c, "nemotron_h");

    if (rc == OK && is_type(c, "falcon_h1")) read_falcon_scales(c, &h);
    if (one) config_int(c, "moe_latent_size", &hp->moe.n_in);
    for (int l = 0; l < hp->n_layers && rc == OK; l++) {
        struct layer_hp *w = &hp->layers[l];
        enum block b;
        if ((rc = find_block(c, l, &b, e)) != OK) break;
        if (b == BLOCK_MIXER) w->mix = h;
        if (b == BLOCK_FFN || b == BLOCK_EXPERTS) w->mix.kind = MIX_NONE;
        if (one) {
            w->no_ffn = b == BLOCK_MIXER || b == BLOCK_ATTN;
            w->moe = b == BLOCK_EXPERTS;
            if (b == BLOCK_FFN) config_int(c, "intermediate_size", &w->n_ff);
            if (w->no_ffn) w->n_ff = 0;
        }
        /* granite: the shared block is the only one in models without experts. */
        if (!hp->moe.n && config_int(c, "shared_intermediate_size", &w->n_ff)) w->moe = false;
    }
    set_gguf_name(hp);
    return rc;
}

/* Scales of attention and of the feed-forward blocks (falcon-h1); layers without rotary embedding. */
void hparams_hybrid(const struct config *c, struct hparams *hp)
{
    struct str kind;
    bool rotates = c->arch->flags & ARCH_MULTIPLIERS
                       ? config_str(c, "", "position_embedding_type", &kind) && str_is(kind, "rope")
                       : true;
    double v;

    for (int l = 0; l < hp->n_layers; l++)
        if (!rotates || !layer_attends(&hp->layers[l])) hp->layers[l].rope = -1;
    if (!is_type(c, "falcon_h1")) return;
    hp->s_attn_in = (float)config_or(c, "attention_in_multiplier", 1);
    hp->s_attn_out = (float)config_or(c, "attention_out_multiplier", 1);
    hp->k_scale = (float)config_or(c, "key_multiplier", 1);
    hp->embd_scale = (float)config_or(c, "embedding_multiplier", 1);
    hp->logit_scale = (float)config_or(c, "lm_head_multiplier", 1);
    if (config_list_f64(c, "mlp_multipliers", 0, &v)) hp->s_gate = (float)v;
    if (config_list_f64(c, "mlp_multipliers", 1, &v)) hp->s_down = (float)v;
}
