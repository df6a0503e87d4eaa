/* tohf_config_arch.c - config.json keys of mixtures of experts, and keys that only one architecture
 * has. */
#include "convert/tohf_config.h"

#include <math.h>

/* How families spell the keys of their experts; NULL: there is no such key. The first entry is for
 * families that have none of their own. */
struct moe_words {
    const char *type;
    const char *n, *used, *shared; /* numbers: of experts, of those of a token, of shared ones */
    const char *shared_ff;         /* or the width of the shared ones */
    const char *scale;
    /* Dense layers: their number at the start, the first layer with experts, or a list of kinds. */
    const char *first, *start, *kinds;
    bool groups;
};

static const struct moe_words *find_words(const struct config_out *c)
{
#define USED "num_experts_per_tok"
#define ROUTED                                                           \
    .n = "n_routed_experts", .used = USED, .shared = "n_shared_experts", \
    .scale = "routed_scaling_factor", .first = "first_k_dense_replace", .groups = true
    static const struct moe_words words[] = {
        { "", .n = "num_experts", .used = USED, .shared = "n_shared_experts" },
        { "glm4_moe", ROUTED },
        { "deepseek_v2", ROUTED },
        { "deepseek_v3", ROUTED },
        { "dots1", ROUTED },
        { "mixtral", .n = "num_local_experts", .used = USED },
        { "phimoe", .n = "num_local_experts", .used = USED },
        { "granitemoe", .n = "num_local_experts", .used = USED },
        { "granitemoeshared", .n = "num_local_experts", .used = USED,
          .shared_ff = "shared_intermediate_size" },
        { "gpt_oss", .n = "num_local_experts", .used = USED },
        { "minimax_m2", .n = "num_local_experts", .used = USED },
        { "qwen2_moe", .n = "num_experts", .used = USED,
          .shared_ff = "shared_expert_intermediate_size" },
        { "qwen3_next", .n = "num_experts", .used = USED,
          .shared_ff = "shared_expert_intermediate_size" },
        { "qwen3_5_moe_text", .n = "num_experts", .used = USED,
          .shared_ff = "shared_expert_intermediate_size" },
        { "exaone_moe", .n = "num_experts", .used = USED, .shared = "num_shared_experts",
          .scale = "routed_scaling_factor", .kinds = "mlp_layer_types", .groups = true },
        { "hy_v3", .n = "num_experts", .used = USED, .shared = "num_shared_experts",
          .scale = "router_scaling_factor", .kinds = "mlp_layer_types" },
        { "hunyuan_v1_moe", .n = "num_experts", .used = "moe_topk", .shared = "num_shared_expert" },
        { "ernie4_5_moe", .n = "moe_num_experts", .used = "moe_k",
          .shared = "moe_num_shared_experts", .start = "moe_layer_start_index" },
        { "lfm2_moe", .n = "num_experts", .used = USED, .scale = "routed_scaling_factor",
          .first = "num_dense_layers" },
    };
#undef ROUTED
#undef USED

    for (size_t i = 1; i < sizeof words / sizeof *words; i++)
        if (config_is(c, words[i].type)) return &words[i];
    return &words[0];
}

static void put_dense_layers(struct config_out *c, const struct moe_words *w)
{
    const struct hparams *hp = c->hp;
    int first = 0;

    while (first < hp->n_layers && !hp->layers[first].moe) first++;
    if (w->first) {
        config_put_int(c, w->first, first);
        return;
    }
    if (w->start) {
        config_put_int(c, w->start, first);
        config_put_int(c, "moe_layer_end_index", hp->n_layers - 1);
        config_put_int(c, "moe_layer_interval", 1);
        return;
    }
    if (!w->kinds) config_put_int(c, "decoder_sparse_step", 1);
    jsonw_key(&c->w, w->kinds ? w->kinds : "mlp_only_layers"), jsonw_arr(&c->w);
    for (int l = 0; l < hp->n_layers; l++)
        if (w->kinds) jsonw_str(&c->w, hp->layers[l].moe ? STR("sparse") : STR("dense"));
        else if (!hp->layers[l].moe) jsonw_int(&c->w, l);
    jsonw_end(&c->w);
}

/* Width or number of the shared experts. */
static void put_shared_experts(struct config_out *c, const struct moe_words *w)
{
    const struct hparams *hp = c->hp;
    int n_ff = 0;

    for (int l = 0; l < hp->n_layers; l++)
        if (hp->layers[l].moe && hp->layers[l].n_ff) n_ff = hp->layers[l].n_ff;
    if (!n_ff) return;
    if (w->shared_ff) config_put_int(c, w->shared_ff, n_ff);
    else if (w->shared && hp->moe.n_ff) config_put_int(c, w->shared, n_ff / hp->moe.n_ff);
}

void config_put_moe(struct config_out *c)
{
    const struct moe_hp *m = &c->hp->moe;
    const struct moe_words *w = find_words(c);

    if (!m->n) return;
    config_put_int(c, w->n, m->n);
    config_put_int(c, w->used, m->n_used);
    if (c->arch->moe.dense_ff) {
        config_put_int(c, "moe_intermediate_size", m->n_ff);
        put_dense_layers(c, w);
    }
    if (!c->arch->moe.norm_fixed) config_put_bool(c, "norm_topk_prob", m->norm);
    if (w->scale) config_put_num(c, w->scale, m->scale);
    if (m->n_groups)
        config_put_int(c, "n_group", m->n_groups),
            config_put_int(c, "topk_group", m->n_groups_used);
    else if (w->groups) config_put_int(c, "n_group", 1), config_put_int(c, "topk_group", 1);
    if (m->route == ROUTE_SPARSEMIXER) config_put_num(c, "router_jitter_noise", m->jitter);
    if (config_is(c, "lfm2_moe"))
        config_put_bool(c, "use_expert_bias", config_has_tensor(c, ".exp_probs_b.bias"));
    put_shared_experts(c, w);
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
