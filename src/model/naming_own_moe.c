/* naming_own_moe.c - keys of GGUF files that single families of mixtures have: the inverse of
 * hparams_own_gguf_moe.c. */
#include "model/naming_impl.h"

static bool is_arch(const struct hparams *hp, const char *name)
{
    return str_is(str_c(hp->arch), name);
}

/* The indexer of the first layer that has one: all are alike. flags: scratch. */
static void put_index(struct key_writer *k, bool *flags)
{
    const struct hparams *hp = k->hp;
    const struct index_hp *x = &hp->layers[0].index;
    bool shared = false;

    for (int l = 0; l < hp->n_layers; l++) {
        if (!x->n_heads) x = &hp->layers[l].index;
        flags[l] = !hp->layers[l].index.shared;
        shared = shared || !flags[l];
    }
    put_int(k, "attention.indexer.head_count", x->n_heads);
    put_int(k, "attention.indexer.key_length", x->head_dim);
    put_int(k, "attention.indexer.top_k", x->top);
    if (x->block) {
        put_int(k, "attention.indexer.block_size", x->block);
        put_int(k, "attention.indexer.local_blocks", x->local);
    }
    if (is_arch(hp, "glm-dsa"))
        ggufw_bools(k->w, full_name(k, "attention.indexer.types"), flags, (size_t)hp->n_layers);
}

static void put_minimax3(struct key_writer *k)
{
    const struct glu_clip *clip = &k->hp->moe.clip;

    if (clip->alpha != 1.702f) put_f32(k, "swiglu_alpha", (double)clip->alpha);
    if (clip->limit != 7) put_f32(k, "swiglu_limit", (double)clip->limit);
}

/* Heads by layer; sizes of those with a window have keys of their own. list: scratch. */
static void put_mimo(struct key_writer *k, int32_t *list)
{
    const struct hparams *hp = k->hp;
    const struct layer_hp *local = &hp->layers[0], *full = NULL;

    for (int l = 0; l < hp->n_layers; l++) {
        if (hp->layers[l].rope == 1) local = &hp->layers[l];
        else if (!full) full = &hp->layers[l];
        list[l] = hp->layers[l].n_kv_heads;
    }
    if (!full) full = local;
    ggufw_i32s(k->w, full_name(k, "attention.head_count_kv"), list, (size_t)hp->n_layers);
    for (int l = 0; l < hp->n_layers; l++) list[l] = hp->layers[l].n_heads;
    if (local->n_heads == full->n_heads) put_int(k, "attention.head_count", full->n_heads);
    else ggufw_i32s(k->w, full_name(k, "attention.head_count"), list, (size_t)hp->n_layers);
    put_int(k, "attention.key_length", full->head_dim);
    put_int(k, "attention.value_length", full->head_dim_v);
    if (local->head_dim != full->head_dim) put_int(k, "attention.key_length_swa", local->head_dim);
    if (local->head_dim_v != full->head_dim_v)
        put_int(k, "attention.value_length_swa", local->head_dim_v);
    if (hp->v_scale != 0) put_f32(k, "attention.value_scale", (double)hp->v_scale);
}

void naming_own_moe_keys(struct key_writer *k, int32_t *list, bool *flags)
{
    const struct hparams *hp = k->hp;
    const struct layer_hp *last = &hp->layers[hp->n_layers - 1];

    if (is_arch(hp, "deepseek32") || is_arch(hp, "glm-dsa") || is_arch(hp, "minimax-m3"))
        put_index(k, flags);
    if (is_arch(hp, "minimax-m3")) put_minimax3(k);
    if (is_arch(hp, "mimo2")) put_mimo(k, list);
    if (is_arch(hp, "longcat_flash")) put_int(k, "expert_zero_count", hp->moe.n_zero);
    if (is_arch(hp, "cohere2moe") && last->moe && last->n_ff && hp->moe.mean == 0)
        put_bool(k, "expert_shared_averaged", false);
}
