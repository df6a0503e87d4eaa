/* hparams_own_moe.c - keys of config.json that single families of mixtures have (ARCH_OWN_KEYS):
 * llama 4, mimo, longcat, cohere2_moe, minimax m3. */
#include "model/config.h"

#include <math.h>

static bool is_type(const struct config *c, const char *name)
{
    return str_is(str_c(c->arch->hf[0]), name);
}

/* ---- llama 4 ---- */

/* Layers without rotary embedding attend to everything and have queries that grow with the
 * position; the others attend to chunks. */
static int read_llama4(const struct config *c, struct hparams *hp)
{
    int chunk = 8192;

    hp->moe.weigh_inputs = true;
    hp->qk_bare = config_bool(c, "use_qk_norm", true);
    if (config_null(c, "attention_chunk_size")) chunk = 0;
    config_int(c, "attention_chunk_size", &chunk);
    for (int l = 0; l < hp->n_layers; l++) {
        bool chunked = config_has(c, "", "layer_types.0")
                           ? config_list_is(c, "layer_types", l, "chunked_attention")
                           : hp->layers[l].rope >= 0;
        hp->layers[l].chunk = chunked ? chunk : 0;
    }
    if (!config_bool(c, "attn_temperature_tuning", true)) return OK;
    hp->pos_scale = (struct pos_scale_opt){ (float)config_or(c, "attn_scale", 0.1), 1,
                                            (float)config_or(c, "floor_scale", 8192) };
    hp->pos_scale_nope = true;
    return OK;
}

/* ---- mimo ---- */

/* Layers with a window, before windows are read. */
static bool mimo_slides(const struct config *c, int l)
{
    int local;

    if (config_has(c, "", "layer_types.0"))
        return config_list_is(c, "layer_types", l, "sliding_attention");
    if (config_list_int(c, "hybrid_layer_pattern", l, &local)) return local == 1;
    return l != 0 && (l + 1) % 6 != 0;
}

/* Layers with a window have twice as many KV heads, unless keys say otherwise. */
static int read_mimo_shapes(const struct config *c, struct hparams *hp)
{
    for (int l = 0; l < hp->n_layers; l++) {
        struct layer_hp *w = &hp->layers[l];
        config_int(c, "v_head_dim", &w->head_dim_v);
        if (!mimo_slides(c, l)) continue;
        w->n_kv_heads *= 2;
        config_int(c, "swa_num_key_value_heads", &w->n_kv_heads);
        config_int(c, "swa_num_attention_heads", &w->n_heads);
        config_int(c, "swa_head_dim", &w->head_dim);
        config_int(c, "swa_v_head_dim", &w->head_dim_v);
    }
    return OK;
}

static int read_mimo(const struct config *c, struct hparams *hp)
{
    if (!config_null(c, "attention_value_scale"))
        hp->v_scale = (float)config_or(c, "attention_value_scale", 0.707);
    return OK;
}

/* ---- longcat ---- */

/* Two layers of tern are one of the folder: the experts belong to the first, and their output is
 * added after the second. */
static int read_longcat_shapes(const struct config *c, struct hparams *hp)
{
    config_int(c, "zero_expert_num", &hp->moe.n_zero);
    hp->moe.late = true;
    for (int l = 0; l < hp->n_layers; l++) {
        config_int(c, "ffn_hidden_size", &hp->layers[l].n_ff);
        hp->layers[l].moe = l % 2 == 0;
    }
    return OK;
}

/* The latents are scaled to the variance of hidden rows. */
static int read_longcat(struct hparams *hp)
{
    for (int l = 0; l < hp->n_layers; l++) {
        struct mix_hp *h = &hp->layers[l].mix;
        if (h->q_rank) h->q_scale = sqrtf((float)hp->n_embd / (float)h->q_rank);
        h->kv_scale = sqrtf((float)hp->n_embd / (float)h->kv_rank);
    }
    return OK;
}

/* ---- cohere2_moe ---- */

/* Norms and routing by keys; dense layers at the start may have rotary embedding without a
 * window. */
static int read_cohere2_moe(const struct config *c, struct hparams *hp, struct err *e)
{
    struct str s;
    double eps;
    int every = 1;

    if (config_f64(c, "", "rms_norm_eps", &eps)) {
        hp->norm = NORM_RMS;
        hp->norm_eps = (float)eps;
    }
    if (!config_str(c, "", "expert_selection_fn", &s)) s = STR("softmax");
    if (str_is(s, "sigmoid")) hp->moe.route = ROUTE_SIGMOID;
    else if (!str_is(s, "softmax"))
        return config_refuse(c, "expert_selection_fn", "must be softmax or sigmoid", e);
    if (!config_str(c, "", "shared_expert_combination_strategy", &s)) s = STR("average");
    if (str_is(s, "average") && hp->layers[hp->n_layers - 1].n_ff) hp->moe.mean = 0.5f;
    else if (!str_is(s, "sum") && !str_is(s, "average"))
        return config_refuse(c, "shared_expert_combination_strategy", "must be average or sum", e);
    config_int(c, "prefix_dense_sliding_window_pattern", &every);
    for (int l = 0; l < hp->n_layers && every == 1; l++)
        if (!hp->layers[l].moe) hp->layers[l].rope = 0;
    return OK;
}

/* ---- sparse attention ---- */

/* GLM 5: indexer_types, or a pattern of letters, or every index_topk_freq-th layer from
 * index_skip_topk_offset on. */
static bool shares_selection(const struct config *c, int l)
{
    int freq = 1, offset = 2, from;
    struct str letters;

    if (config_has(c, "", "indexer_types.0"))
        return config_list_is(c, "indexer_types", l, "shared");
    if (config_str(c, "", "index_topk_pattern", &letters))
        return (size_t)l < letters.n && letters.p[l] == 'S';
    config_int(c, "index_topk_freq", &freq);
    config_int(c, "index_skip_topk_offset", &offset);
    from = l - offset + 1 > 0 ? l - offset + 1 : 0;
    return freq > 1 && from % freq != 0;
}

static int read_dsa(const struct config *c, struct hparams *hp, struct err *e)
{
    bool glm = is_type(c, "glm_moe_dsa");
    struct index_hp x = { .n_heads = glm ? 32 : 64,
                          .head_dim = 128,
                          .top = 2048,
                          .weighed = true,
                          .rope_style = glm ? ROPE_PAIR : ROPE_HALF };

    config_int(c, "index_n_heads", &x.n_heads);
    config_int(c, "index_head_dim", &x.head_dim);
    config_int(c, "index_topk", &x.top);
    for (int l = 0; l < hp->n_layers; l++) {
        hp->layers[l].index = x;
        hp->layers[l].index.shared = glm && shares_selection(c, l);
    }
    if (hp->layers[0].index.shared)
        return config_refuse(c, "indexer_types", "must begin with \"full\"", e);
    return OK;
}

/* A number that older folders have in sparse_attention_config, under another name. */
static void read_either(const struct config *c, const char *name, const char *old, int *out)
{
    double v;

    if (config_f64(c, "sparse_attention_config.", old, &v) && v >= 0 && v < INT32_MAX)
        *out = (int)v;
    else config_int(c, name, out);
}

static int read_minimax3_shapes(const struct config *c, struct hparams *hp)
{
    struct index_hp x = { .n_heads = 4, .head_dim = 128, .top = 16, .block = 128, .local = 1 };
    int sparse;

    read_either(c, "index_n_heads", "sparse_num_index_heads", &x.n_heads);
    read_either(c, "index_head_dim", "sparse_index_dim", &x.head_dim);
    read_either(c, "index_block_size", "sparse_block_size", &x.block);
    read_either(c, "index_topk_blocks", "sparse_topk_blocks", &x.top);
    read_either(c, "index_local_blocks", "sparse_local_block", &x.local);
    for (int l = 0; l < hp->n_layers; l++) {
        bool yes = config_list_is(c, "layer_types", l, "minimax_m3_sparse");
        if (!config_has(c, "", "layer_types.0") &&
            config_list_int(c, "sparse_attention_config.sparse_attention_freq", l, &sparse))
            yes = sparse;
        if (yes) hp->layers[l].index = x;
    }
    hp->moe.clip = (struct glu_clip){ (float)config_or(c, "swiglu_alpha", 1.702),
                                      (float)config_or(c, "swiglu_limit", 7), 1 };
    return OK;
}

/* ---- the functions by model_type ---- */

int hparams_own_moe_shapes(const struct config *c, struct hparams *hp, struct err *e)
{
    if (is_type(c, "mimo_v2_flash")) return read_mimo_shapes(c, hp);
    if (is_type(c, "longcat_flash")) return read_longcat_shapes(c, hp);
    if (is_type(c, "minimax_m3_vl_text")) return read_minimax3_shapes(c, hp);
    if (is_type(c, "deepseek_v32") || is_type(c, "glm_moe_dsa")) return read_dsa(c, hp, e);
    return OK;
}

int hparams_own_moe(const struct config *c, struct hparams *hp, struct err *e)
{
    if (is_type(c, "llama4_text")) return read_llama4(c, hp);
    if (is_type(c, "mimo_v2_flash")) return read_mimo(c, hp);
    if (is_type(c, "longcat_flash")) return read_longcat(hp);
    if (is_type(c, "cohere2_moe")) return read_cohere2_moe(c, hp, e);
    if (is_type(c, "afmoe") && config_bool(c, "mup_enabled", false))
        hp->embd_scale = sqrtf((float)hp->n_embd);
    return OK;
}
