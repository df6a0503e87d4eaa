/* tohf_config_arch.c - config.json keys of mixtures of experts, and keys that only one architecture
 * has. */
#include "convert/tohf_config.h"

#include <math.h>

/* Which layers have no experts: as the number of them at the start, or as a list. */
static void put_dense_layers(struct config_out *c)
{
    const struct hparams *hp = c->hp;
    int first = 0;

    while (first < hp->n_layers && !hp->layers[first].moe) first++;
    if (config_is(c, "glm4_moe") || config_is(c, "deepseek_v2") || config_is(c, "deepseek_v3")) {
        config_put_int(c, "first_k_dense_replace", first);
        return;
    }
    config_put_int(c, "decoder_sparse_step", 1);
    jsonw_key(&c->w, "mlp_only_layers"), jsonw_arr(&c->w);
    for (int l = 0; l < hp->n_layers; l++)
        if (!hp->layers[l].moe) jsonw_int(&c->w, l);
    jsonw_end(&c->w);
}

/* Width or number of the shared experts. */
static void put_shared_experts(struct config_out *c)
{
    const struct hparams *hp = c->hp;
    int n_ff = 0;

    for (int l = 0; l < hp->n_layers; l++)
        if (hp->layers[l].moe && hp->layers[l].n_ff) n_ff = hp->layers[l].n_ff;
    if (!n_ff) return;
    if (config_is(c, "qwen2_moe") || config_is(c, "qwen3_next") || config_is(c, "qwen3_5_moe_text"))
        config_put_int(c, "shared_expert_intermediate_size", n_ff);
    else if (hp->moe.n_ff) config_put_int(c, "n_shared_experts", n_ff / hp->moe.n_ff);
}

/* The number of experts has three spellings. */
void config_put_moe(struct config_out *c)
{
    const struct moe_hp *m = &c->hp->moe;
    bool routed =
        config_is(c, "glm4_moe") || config_is(c, "deepseek_v2") || config_is(c, "deepseek_v3");
    bool local = config_is(c, "mixtral") || config_is(c, "phimoe") || config_is(c, "granitemoe") ||
                 config_is(c, "gpt_oss");

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
    put_shared_experts(c);
}

/* ---- one architecture each ---- */

/* The scale of attention scores in layer l; 0: the default 1 / sqrt(head_dim). */
static float read_attn_scale(const struct hparams *hp, int l)
{
    return hp->layers[l].attn_scale != 0 ? hp->layers[l].attn_scale : hp->attn_scale;
}

/* GPT-2 scales scores by 1 / sqrt(head_dim), by 1, or by layer; nothing else can be expressed. */
static int put_gpt2(struct config_out *c, struct err *e)
{
    const struct hparams *hp = c->hp;
    float first = read_attn_scale(hp, 0), usual = 1 / sqrtf((float)hp->layers[0].head_dim);
    bool scaled = first == 0 || fabsf(first / usual - 1) < 1e-5f;
    bool by_layer = hp->n_layers > 1;

    for (int l = 1; l < hp->n_layers; l++)
        by_layer = by_layer && first != 0 &&
                   fabsf(read_attn_scale(hp, l) * (float)(l + 1) / first - 1) < 1e-5f;
    if (!scaled && fabsf(first - 1) > 1e-6f)
        return err_set(e, E_UNSUPPORTED,
                       "%s: config.json of gpt2 cannot express its scale of attention scores",
                       source_path(c->src));
    config_put_bool(c, "scale_attn_weights", scaled);
    config_put_bool(c, "scale_attn_by_inverse_layer_idx", by_layer);
    if (config_is(c, "gpt_bigcode"))
        config_put_bool(c, "multi_query", hp->layers[0].n_kv_heads == 1);
    return OK;
}

/* attention_types is [[["global", "local", ...], repeats]]; here all layers are listed once. */
static void put_gpt_neo(struct config_out *c)
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

/* The "new" decoder architecture (40B, 180B) has grouped KV heads or two norms per layer. */
static void put_falcon(struct config_out *c)
{
    const struct hparams *hp = c->hp;
    const struct layer_hp *l = &hp->layers[0];
    bool new_arch = hp->two_norms || (l->n_kv_heads > 1 && l->n_kv_heads < l->n_heads);

    config_put_bool(c, "new_decoder_architecture", new_arch);
    config_put_bool(c, "multi_query", l->n_kv_heads == 1);
    config_put_int(c, "num_kv_heads", l->n_kv_heads);
    config_put_bool(c, "parallel_attn", hp->parallel);
    if (new_arch) config_put_int(c, "num_ln_in_parallel_attn", hp->two_norms ? 2 : 1);
    config_put_bool(c, "alibi", hp->alibi != 0);
}

/* MPT has its attention settings in a nested object; tern runs MPT with ALiBi only. */
static void put_mpt(struct config_out *c)
{
    const struct hparams *hp = c->hp;

    config_put_num(c, "expansion_ratio", (double)hp->layers[0].n_ff / hp->n_embd);
    config_put_bool(c, "no_bias", true);
    jsonw_key(&c->w, "attn_config"), jsonw_obj(&c->w);
    config_put_bool(c, "alibi", true);
    config_put_str(c, "attn_type", "multihead_attention");
    if (hp->clip_qkv != 0) config_put_num(c, "clip_qkv", hp->clip_qkv);
    if (read_attn_scale(hp, 0) != 0) config_put_num(c, "softmax_scale", read_attn_scale(hp, 0));
    jsonw_end(&c->w);
}

/* opt-350m has its norms behind the blocks and a projection around the embedding. */
static void put_opt(struct config_out *c)
{
    const struct hparams *hp = c->hp;

    config_put_bool(c, "do_layer_norm_before", !hp->norm_after);
    config_put_bool(c, "layer_norm_elementwise_affine", !hp->bare_norm);
    config_put_bool(c, "_remove_final_layer_norm", !hp->norm_after && !hp->last_norm);
    config_put_int(c, "word_embed_proj_dim", hp->n_word);
}

int config_put_special(struct config_out *c, struct err *e)
{
    if (config_is(c, "gpt2") || config_is(c, "gpt_bigcode")) return put_gpt2(c, e);
    if (config_is(c, "gpt_neo")) put_gpt_neo(c);
    if (config_is(c, "gptj")) config_put_int(c, "rotary_dim", c->hp->rope[0].n_rot);
    if (config_is(c, "falcon")) put_falcon(c);
    if (config_is(c, "mpt")) put_mpt(c);
    if (config_is(c, "opt")) put_opt(c);
    if (config_is(c, "bloom"))
        config_put_bool(c, "apply_residual_connection_post_layernorm", c->hp->norm_residual);
    if ((config_is(c, "olmo") || config_is(c, "olmoe")) && c->hp->clip_qkv != 0)
        config_put_num(c, "clip_qkv", c->hp->clip_qkv);
    return OK;
}
