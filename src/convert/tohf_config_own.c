/* tohf_config_own.c - config.json: experts, and keys that only one architecture has. */
#include "convert/tohf_config.h"

#include <math.h>

static bool is(const struct config_out *c, const char *type)
{
    return strcmp(c->arch->hf[0], type) == 0;
}

/* Layers before the first with experts; and those without behind it, as a list. */
static void put_dense_layers(struct config_out *c)
{
    const struct hparams *hp = c->hp;
    int first = 0;

    while (first < hp->n_layers && !hp->layers[first].moe) first++;
    if (is(c, "glm4_moe") || is(c, "deepseek_v2") || is(c, "deepseek_v3")) {
        config_put_int(c, "first_k_dense_replace", first);
        return;
    }
    config_put_int(c, "decoder_sparse_step", 1);
    jsonw_key(&c->w, "mlp_only_layers"), jsonw_arr(&c->w);
    for (int l = 0; l < hp->n_layers; l++)
        if (!hp->layers[l].moe) jsonw_int(&c->w, l);
    jsonw_end(&c->w);
}

static void put_shared(struct config_out *c)
{
    const struct hparams *hp = c->hp;
    int n_ff = 0;

    for (int l = 0; l < hp->n_layers; l++)
        if (hp->layers[l].moe && hp->layers[l].n_ff) n_ff = hp->layers[l].n_ff;
    if (!n_ff) return;
    if (is(c, "qwen2_moe") || is(c, "qwen3_next"))
        config_put_int(c, "shared_expert_intermediate_size", n_ff);
    else if (hp->moe.n_ff) config_put_int(c, "n_shared_experts", n_ff / hp->moe.n_ff);
}

void config_moe(struct config_out *c)
{
    const struct moe_hp *m = &c->hp->moe;
    bool routed = is(c, "glm4_moe") || is(c, "deepseek_v2") || is(c, "deepseek_v3");
    bool local = is(c, "mixtral") || is(c, "phimoe") || is(c, "granitemoe") || is(c, "gpt_oss");

    if (!m->n) return;
    config_put_int(c,
                   routed  ? "n_routed_experts"
                   : local ? "num_local_experts"
                           : "num_experts",
                   m->n);
    config_put_int(c, "num_experts_per_tok", m->n_used);
    if (c->arch->moe.dense_ff) {
        config_put_int(c, "moe_intermediate_size", m->n_ff);
        put_dense_layers(c);
    }
    if (!c->arch->moe.norm_fixed) config_put_bool(c, "norm_topk_prob", m->norm);
    if (routed) config_put_num(c, "routed_scaling_factor", m->scale);
    if (m->n_groups)
        config_put_int(c, "n_group", m->n_groups),
            config_put_int(c, "topk_group", m->n_groups_used);
    else if (routed) config_put_int(c, "n_group", 1), config_put_int(c, "topk_group", 1);
    if (m->route == ROUTE_SPARSEMIXER) config_put_num(c, "router_jitter_noise", m->jitter);
    put_shared(c);
}

/* ---- one by one ---- */

/* The scale of scores in layer l; 0: the usual one. */
static float config_scale(const struct hparams *hp, int l)
{
    return hp->layers[l].attn_scale != 0 ? hp->layers[l].attn_scale : hp->attn_scale;
}

static int gpt2(struct config_out *c, struct err *e)
{
    const struct hparams *hp = c->hp;
    float first = config_scale(hp, 0), usual = 1 / sqrtf((float)hp->layers[0].head_dim);
    bool scaled = first == 0 || fabsf(first / usual - 1)<1e-5f, by_layer = hp->n_layers> 1;

    for (int l = 1; l < hp->n_layers; l++)
        by_layer = by_layer && first != 0 &&
                   fabsf(config_scale(hp, l) * (float)(l + 1) / first - 1) < 1e-5f;
    if (!scaled && fabsf(first - 1) > 1e-6f)
        return err_set(e, E_UNSUPPORTED,
                       "%s: its scale of scores is none that config.json can tell",
                       source_path(c->src));
    config_put_bool(c, "scale_attn_weights", scaled);
    config_put_bool(c, "scale_attn_by_inverse_layer_idx", by_layer);
    if (is(c, "gpt_bigcode")) config_put_bool(c, "multi_query", hp->layers[0].n_kv_heads == 1);
    return OK;
}

static void neo(struct config_out *c)
{
    int window = c->arch->window;

    jsonw_key(&c->w, "attention_types"), jsonw_arr(&c->w), jsonw_arr(&c->w), jsonw_arr(&c->w);
    for (int l = 0; l < c->hp->n_layers; l++) {
        if (c->hp->layers[l].window) window = c->hp->layers[l].window;
        jsonw_str(&c->w, c->hp->layers[l].window ? STR("local") : STR("global"));
    }
    jsonw_end(&c->w), jsonw_int(&c->w, 1), jsonw_end(&c->w), jsonw_end(&c->w);
    config_put_int(c, "window_size", window);
}

static void falcon(struct config_out *c)
{
    const struct hparams *hp = c->hp;
    const struct layer_hp *l = &hp->layers[0];
    bool fresh = hp->two_norms || (l->n_kv_heads > 1 && l->n_kv_heads < l->n_heads);

    config_put_bool(c, "new_decoder_architecture", fresh);
    config_put_bool(c, "multi_query", l->n_kv_heads == 1);
    config_put_int(c, "num_kv_heads", l->n_kv_heads);
    config_put_bool(c, "parallel_attn", hp->parallel);
    if (fresh) config_put_int(c, "num_ln_in_parallel_attn", hp->two_norms ? 2 : 1);
    config_put_bool(c, "alibi", hp->alibi != 0);
}

static void mpt(struct config_out *c)
{
    const struct hparams *hp = c->hp;

    config_put_num(c, "expansion_ratio", (double)hp->layers[0].n_ff / hp->n_embd);
    config_put_bool(c, "no_bias", true);
    jsonw_key(&c->w, "attn_config"), jsonw_obj(&c->w);
    config_put_bool(c, "alibi", true);
    config_put_str(c, "attn_type", "multihead_attention");
    if (hp->clip_qkv != 0) config_put_num(c, "clip_qkv", hp->clip_qkv);
    if (config_scale(hp, 0) != 0) config_put_num(c, "softmax_scale", config_scale(hp, 0));
    jsonw_end(&c->w);
}

static void opt(struct config_out *c)
{
    const struct hparams *hp = c->hp;

    config_put_bool(c, "do_layer_norm_before", !hp->norm_after);
    config_put_bool(c, "layer_norm_elementwise_affine", !hp->bare_norm);
    config_put_bool(c, "_remove_final_layer_norm", !hp->norm_after && !hp->last_norm);
    config_put_int(c, "word_embed_proj_dim", hp->n_word);
}

int config_own(struct config_out *c, struct err *e)
{
    if (is(c, "gpt2") || is(c, "gpt_bigcode")) return gpt2(c, e);
    if (is(c, "gpt_neo")) neo(c);
    if (is(c, "gptj")) config_put_int(c, "rotary_dim", c->hp->rope[0].n_rot);
    if (is(c, "falcon")) falcon(c);
    if (is(c, "mpt")) mpt(c);
    if (is(c, "opt")) opt(c);
    if (is(c, "bloom"))
        config_put_bool(c, "apply_residual_connection_post_layernorm", c->hp->norm_residual);
    if ((is(c, "olmo") || is(c, "olmoe")) && c->hp->clip_qkv != 0)
        config_put_num(c, "clip_qkv", c->hp->clip_qkv);
    return OK;
}
