/* tohf_config_mix.c - config.json keys of sequence mixers other than plain attention (Mamba, LFM2's
 * short convolution, gated delta net, multi-head latent attention) and of encoders. */
#include "convert/tohf_config.h"

#include <math.h>

/* layer_types: "full_attention", or the name of the other mixer. */
static void put_layer_types(struct config_out *c, const char *other)
{
    jsonw_key(&c->w, "layer_types"), jsonw_arr(&c->w);
    for (int l = 0; l < c->hp->n_layers; l++)
        jsonw_str(&c->w, str_c(c->hp->layers[l].mix.kind == MIX_ATTN ? "full_attention" : other));
    jsonw_end(&c->w);
}

/* Mamba 1 and 2. Mamba 2 with several groups normalizes either each group or all of them at once;
 * transformers knows the latter only. time_step_limit: JSON has no infinity, 3e38 stands for it. */
static int put_mamba(struct config_out *c, struct err *e)
{
    const struct mix_hp *h = &c->hp->layers[0].mix;
    bool two = h->kind == MIX_MAMBA2;

    if (two && h->n_groups > 1 && h->norm_groups != 1)
        return err_set(e, E_UNSUPPORTED,
                       "%s: config.json of mamba2 cannot express a norm in %d groups",
                       source_path(c->src), h->norm_groups);
    config_put_int(c, "state_size", h->n_state);
    config_put_int(c, "conv_kernel", h->taps);
    config_put_num(c, "expand", (double)h->inner / c->hp->n_embd);
    config_put_bool(c, "use_conv_bias", config_has_tensor(c, ".ssm_conv1d.bias"));
    if (!two) {
        config_put_int(c, "time_step_rank", h->dt_rank);
        if (h->bc_norm) config_put_num(c, "mixer_rms_eps", (double)h->bc_eps);
        return OK;
    }
    config_put_int(c, "num_heads", h->n_heads), config_put_int(c, "head_dim", h->head_dim);
    config_put_int(c, "n_groups", h->n_groups);
    if (h->dt_min > 0 || isfinite(h->dt_max)) {
        jsonw_key(&c->w, "time_step_limit"), jsonw_arr(&c->w);
        jsonw_num(&c->w, config_shortest((double)h->dt_min));
        jsonw_num(&c->w, isfinite(h->dt_max) ? config_shortest((double)h->dt_max) : 3e38);
        jsonw_end(&c->w);
    }
    return OK;
}

/* LFM2: layers of short convolutions between layers of attention. */
static void put_lfm2(struct config_out *c, const struct mix_hp *h)
{
    config_put_int(c, "conv_L_cache", h->taps);
    config_put_bool(c, "block_auto_adjust_ff_dim", false); /* intermediate_size is final */
    put_layer_types(c, "conv");
}

/* Qwen3-Next: gated delta net (linear attention) between layers of attention. */
static void put_qwen3_next(struct config_out *c, const struct mix_hp *h)
{
    config_put_int(c, "linear_conv_kernel_dim", h->taps);
    config_put_int(c, "linear_num_key_heads", h->n_k_heads);
    config_put_int(c, "linear_num_value_heads", h->n_heads);
    config_put_int(c, "linear_key_head_dim", h->k_dim);
    config_put_int(c, "linear_value_head_dim", h->head_dim);
    put_layer_types(c, "linear_attention");
}

/* Multi-head latent attention, and the routing method that belongs to the version. */
static void put_deepseek(struct config_out *c, const struct layer_hp *w)
{
    const struct mix_hp *h = &w->mix;

    config_put_int(c, "kv_lora_rank", h->kv_rank);
    if (h->q_rank) config_put_int(c, "q_lora_rank", h->q_rank);
    else config_put_null(c, "q_lora_rank");
    config_put_int(c, "qk_nope_head_dim", h->nope), config_put_int(c, "qk_rope_head_dim", h->rope);
    config_put_int(c, "v_head_dim", w->head_dim_v);
    if (config_is(c, "deepseek_v3")) {
        config_put_bool(c, "rope_interleave", c->hp->rope_style == ROPE_PAIR);
        config_put_str(c, "scoring_func", "sigmoid"), config_put_str(c, "topk_method", "noaux_tc");
    } else {
        config_put_str(c, "topk_method", c->hp->moe.n_groups ? "group_limited_greedy" : "greedy");
    }
}

/* The inverse of attn_scale = (0.1 mscale log(factor) + 1)^2 / sqrt(head_dim). */
double config_mscale_all_dim(const struct hparams *hp)
{
    const struct mix_hp *h = &hp->layers[0].mix;
    const struct rope_hp *r = &hp->rope[0];

    if (h->kind != MIX_MLA || r->scaling != ROPE_YARN || !(r->factor > 1)) return 0;
    double all =
        (sqrt((double)hp->attn_scale * sqrt(h->nope + h->rope)) - 1) / (0.1 * log(r->factor));
    return fabs(all) > 1e-5 ? round(all * 1e5) / 1e5 : 0;
}

/* Every layer with a mixer has the same shape: the first of them gives it. */
int config_put_mixer(struct config_out *c, struct err *e)
{
    const struct layer_hp *w = &c->hp->layers[0];

    for (int l = 0; l < c->hp->n_layers && w->mix.kind == MIX_ATTN; l++) w = &c->hp->layers[l];
    switch (c->arch->mix) {
    case MIX_MAMBA:
    case MIX_MAMBA2: return put_mamba(c, e);
    case MIX_SHORTCONV: put_lfm2(c, &w->mix); break;
    case MIX_DELTA: put_qwen3_next(c, &w->mix); break;
    case MIX_MLA: put_deepseek(c, w); break;
    case MIX_ATTN:
    case MIX_CSA:
    case MIX_NONE: break;
    }
    return OK;
}

/* ---- encoders ---- */

/* Values that hold for every nomic-bert: the architecture has no GGUF key for them. */
static void put_nomic(struct config_out *c)
{
    config_put_num(c, "layer_norm_epsilon", c->hp->norm_eps);
    config_put_num(c, "rotary_emb_base", c->hp->rope[0].theta);
    config_put_num(c, "rotary_emb_fraction", 1),
        config_put_bool(c, "rotary_emb_interleaved", false);
    config_put_str(c, "activation_function", "swiglu");
    config_put_bool(c, "prenorm", false), config_put_bool(c, "use_rms_norm", false);
    config_put_bool(c, "causal", false);
    config_put_bool(c, "mlp_fc1_bias", config_has_tensor(c, ".ffn_up.bias"));
    config_put_bool(c, "mlp_fc2_bias", config_has_tensor(c, ".ffn_down.bias"));
}

/* Local and global attention alternate, each with its own rotary base. */
static void put_modernbert(struct config_out *c)
{
    const struct hparams *hp = c->hp;
    int window = c->arch->window;

    jsonw_key(&c->w, "layer_types"), jsonw_arr(&c->w);
    for (int l = 0; l < hp->n_layers; l++) {
        if (hp->layers[l].window) window = hp->layers[l].window;
        jsonw_str(&c->w,
                  hp->layers[l].rope == 1 ? STR("sliding_attention") : STR("full_attention"));
    }
    jsonw_end(&c->w);
    config_put_int(c, "local_attention", window);
    config_put_num(c, "global_rope_theta", hp->rope[0].theta);
    config_put_num(c, "local_rope_theta", hp->rope[1].theta);
}

void config_put_encoder(struct config_out *c)
{
    if (config_is(c, "modernbert")) {
        put_modernbert(c);
        return;
    }
    config_put_int(c, "type_vocab_size", c->hp->n_types);
    if (config_is(c, "nomic_bert")) put_nomic(c);
    else config_put_str(c, "position_embedding_type", "absolute");
}
