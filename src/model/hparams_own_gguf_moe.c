/* hparams_own_gguf_moe.c - keys of GGUF files that single families of mixtures have: mimo, cohere2_moe,
 * DeepSeek V3.2, GLM 5, minimax m3, longcat. The counterpart of hparams_own_moe.c, which reads config.json;
 * naming_own_moe.c writes them. Names and defaults are those of llama.cpp. */
#include "model/hparams.h"
#include "model/metakeys.h"

#include <math.h>

static bool is_arch(const struct hparams *hp, const char *name)
{
    return str_is(str_c(hp->arch), name);
}

/* ---- sparse attention ---- */

/* The shapes of the indexer, for which there are no defaults. blocks: it selects blocks of keys. */
static int read_index(struct index_hp *x, const struct metakeys *k, bool blocks, struct err *e)
{
    int rc;

    *x = (struct index_hp){ 0 };
    if ((rc = metakeys_need(k, "attention.indexer.head_count", 0, &x->n_heads, e)) != OK) return rc;
    if ((rc = metakeys_need(k, "attention.indexer.key_length", 0, &x->head_dim, e)) != OK)
        return rc;
    if ((rc = metakeys_need(k, "attention.indexer.top_k", 0, &x->top, e)) != OK) return rc;
    if (!blocks) return OK;
    metakeys_int(k, "attention.indexer.local_blocks", 0, &x->local);
    return metakeys_need(k, "attention.indexer.block_size", 0, &x->block, e);
}

/* GLM 5: attention.indexer.types is true for layers with an indexer, the others use the selection of
 * the one before. Files of GLM 5.2, which a context of a million tells, may lack the key: there, two
 * layers and then every fourth have one. */
static bool shares_selection(const struct metakeys *k, const struct hparams *hp, int l)
{
    int full = hp->n_ctx < 1 << 20 || l < 2 || (l - 2) % 4 == 0;

    metakeys_int(k, "attention.indexer.types", l, &full);
    return !full;
}

static int read_dsa_shapes(const struct metakeys *k, struct hparams *hp, struct err *e)
{
    bool glm = is_arch(hp, "glm-dsa");
    struct index_hp x;
    int rc = read_index(&x, k, false, e);

    if (rc != OK) return rc;
    x.weighed = true;
    x.rope_style = glm ? ROPE_PAIR : ROPE_HALF;
    for (int l = 0; l < hp->n_layers; l++) {
        hp->layers[l].index = x;
        hp->layers[l].index.shared = glm && l > 0 && shares_selection(k, hp, l);
    }
    return OK;
}

/* Layers with the tensors of an indexer are sparse. llama.cpp has fixed numbers for the activation. */
static int read_minimax3_shapes(const struct metakeys *k, struct hparams *hp, struct err *e)
{
    struct index_hp x;
    int rc = read_index(&x, k, true, e);

    if (rc != OK) return rc;
    for (int l = 0; l < hp->n_layers; l++)
        if (metakeys_tensor(k, l, "indexer.q_proj.weight")) hp->layers[l].index = x;
    hp->moe.clip = (struct glu_clip){ (float)metakeys_f64_or(k, "swiglu_alpha", 1.702),
                                      (float)metakeys_f64_or(k, "swiglu_limit", 7), 1 };
    return OK;
}

/* ---- mimo ---- */

/* Layers with a window may have heads of another size. */
static void read_mimo_shapes(const struct metakeys *k, struct hparams *hp)
{
    for (int l = 0; l < hp->n_layers; l++) {
        if (!hparams_gguf_window(k, hp->info, l)) continue;
        metakeys_int(k, "attention.key_length_swa", l, &hp->layers[l].head_dim);
        metakeys_int(k, "attention.value_length_swa", l, &hp->layers[l].head_dim_v);
    }
}

/* ---- cohere2_moe ---- */

/* The epsilon's key says which norm it is of. Without a key for the routing it is sigmoid. */
static void read_cohere2_moe_shapes(const struct metakeys *k, struct hparams *hp)
{
    double eps;
    int func;

    if (metakeys_f64(k, "attention.layer_norm_rms_epsilon", &eps) && eps != 0) hp->norm = NORM_RMS;
    if (!metakeys_int(k, "expert_gating_func", 0, &func) || func == 0)
        hp->moe.route = ROUTE_SIGMOID;
}

/* Shared and chosen experts are averaged, unless a key of tern's own says otherwise. Dense layers at
 * the start have rotary embedding. */
static void read_cohere2_moe(const struct metakeys *k, struct hparams *hp)
{
    bool averaged = hp->layers[hp->n_layers - 1].moe && hp->layers[hp->n_layers - 1].n_ff;
    int lead = 0, yes;

    source_bool(k->src, metakeys_name(k, "expert_shared_averaged").s, &averaged);
    if (averaged) hp->moe.mean = 0.5f;
    metakeys_int(k, "leading_dense_block_count", 0, &lead);
    for (int l = 0; l < lead && l < hp->n_layers; l++)
        if (!metakeys_int(k, "rope.layers", l, &yes)) hp->layers[l].rope = 0;
}

/* ---- longcat ---- */

/* llama.cpp has no longcat. Every layer has a dense block; those with a router have experts beside
 * it, whose output is added a layer later. */
static void read_longcat_shapes(const struct metakeys *k, struct hparams *hp)
{
    metakeys_int(k, "expert_zero_count", 0, &hp->moe.n_zero);
    hp->moe.late = true;
    for (int l = 0; l < hp->n_layers; l++) {
        struct layer_hp *w = &hp->layers[l];
        metakeys_int(k, "feed_forward_length", l, &w->n_ff);
        if (w->mix.q_rank) w->mix.q_scale = sqrtf((float)hp->n_embd / (float)w->mix.q_rank);
        w->mix.kv_scale = sqrtf((float)hp->n_embd / (float)w->mix.kv_rank);
    }
}

/* ---- the functions by architecture ---- */

int hparams_own_moe_gguf_shapes(struct hparams *hp, const struct source *src, struct err *e)
{
    struct metakeys k = { src, hp->arch };

    if (is_arch(hp, "deepseek32") || is_arch(hp, "glm-dsa")) return read_dsa_shapes(&k, hp, e);
    if (is_arch(hp, "minimax-m3")) return read_minimax3_shapes(&k, hp, e);
    if (is_arch(hp, "mimo2")) read_mimo_shapes(&k, hp);
    if (is_arch(hp, "longcat_flash")) read_longcat_shapes(&k, hp);
    if (is_arch(hp, "cohere2moe")) read_cohere2_moe_shapes(&k, hp);
    return OK;
}

void hparams_own_moe_gguf(struct hparams *hp, const struct source *src)
{
    struct metakeys k = { src, hp->arch };
    double scale;

    if (is_arch(hp, "cohere2moe")) read_cohere2_moe(&k, hp);
    if (is_arch(hp, "mimo2") && metakeys_f64(&k, "attention.value_scale", &scale) && scale != 1)
        hp->v_scale = (float)scale;
}
