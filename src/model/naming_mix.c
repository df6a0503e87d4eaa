/* naming_mix.c - heads and mixers as keys of a GGUF file. */
#include "model/naming.h"

#include <math.h>
#include <stdio.h>

struct keys {
    const struct hparams *hp;
    struct ggufw *w;
    char buf[160];
};

static const char *key(struct keys *k, const char *name)
{
    snprintf(k->buf, sizeof k->buf, "%s.%s", k->hp->arch, name);
    return k->buf;
}

static void put(struct keys *k, const char *name, int v)
{
    ggufw_u32(k->w, key(k, name), (uint32_t)v);
}

static const struct layer_hp *first_of(const struct hparams *hp, bool attends)
{
    for (int l = 0; l < hp->n_layers; l++)
        if ((hp->layers[l].mix.kind == MIX_ATTN) == attends) return &hp->layers[l];
    return &hp->layers[0];
}

static void put_heads(struct keys *k, const struct layer_hp *w)
{
    put(k, "attention.head_count", w->n_heads);
    put(k, "attention.head_count_kv", w->n_kv_heads);
    put(k, "attention.key_length", w->head_dim);
    put(k, "attention.value_length", w->head_dim_v);
}

static void put_ssm(struct keys *k, int taps, int inner, int state, int rank)
{
    put(k, "ssm.conv_kernel", taps);
    put(k, "ssm.inner_size", inner);
    put(k, "ssm.state_size", state);
    put(k, "ssm.time_step_rank", rank);
}

static void put_mamba(struct keys *k, const struct mix_hp *h)
{
    bool two = h->kind == MIX_MAMBA2;

    put(k, "attention.head_count", 0);
    put_ssm(k, h->taps, h->inner, h->n_state, two ? h->n_heads : h->dt_rank);
    if (!two) return;
    put(k, "ssm.group_count", h->n_groups);
    if (h->norm_groups != h->n_groups) put(k, "ssm.norm_group_count", h->norm_groups);
    if (h->dt_min > 0) ggufw_f32(k->w, key(k, "ssm.time_step_min"), h->dt_min);
    if (isfinite(h->dt_max)) ggufw_f32(k->w, key(k, "ssm.time_step_max"), h->dt_max);
}

/* Readers see from the KV heads which layers attend. */
static void put_lfm2(struct keys *k, const struct mix_hp *h)
{
    const struct hparams *hp = k->hp;
    struct arena a = { 0 };
    int32_t *kv = arena_array(&a, (size_t)hp->n_layers, sizeof *kv);

    for (int l = 0; l < hp->n_layers; l++)
        kv[l] = hp->layers[l].mix.kind == MIX_ATTN ? hp->layers[l].n_kv_heads : 0;
    put(k, "attention.head_count", first_of(hp, true)->n_heads);
    ggufw_i32s(k->w, key(k, "attention.head_count_kv"), kv, (size_t)hp->n_layers);
    put(k, "attention.key_length", first_of(hp, true)->head_dim);
    put(k, "attention.value_length", first_of(hp, true)->head_dim_v);
    put(k, "shortconv.l_cache", h->taps);
    arena_release(&a);
}

static void put_delta(struct keys *k, const struct mix_hp *h)
{
    const struct hparams *hp = k->hp;
    struct arena a = { 0 };
    bool *recurrent = arena_array(&a, (size_t)hp->n_layers, sizeof *recurrent);
    int every = 0;

    put_heads(k, first_of(hp, true));
    put_ssm(k, h->taps, h->n_heads * h->head_dim, h->k_dim, h->n_heads);
    put(k, "ssm.group_count", h->n_k_heads);
    for (int l = 0; l < hp->n_layers; l++) {
        recurrent[l] = hp->layers[l].mix.kind != MIX_ATTN;
        if (!recurrent[l] && !every) every = l + 1;
    }
    put(k, "full_attention_interval", every ? every : hp->n_layers + 1);
    ggufw_bools(k->w, key(k, "attention.recurrent_layers"), recurrent, (size_t)hp->n_layers);
    arena_release(&a);
}

/* Readers that absorb projections see one KV head as wide as the latent. */
static void put_mla(struct keys *k, const struct layer_hp *w)
{
    const struct mix_hp *h = &w->mix;
    const struct rope_hp *r = &k->hp->rope[0];
    double mscale = sqrt((double)k->hp->attn_scale * sqrt(h->nope + h->rope));

    put(k, "attention.head_count", w->n_heads);
    put(k, "attention.head_count_kv", 1);
    put(k, "attention.key_length", h->kv_rank + h->rope);
    put(k, "attention.value_length", h->kv_rank);
    put(k, "attention.key_length_mla", w->head_dim);
    put(k, "attention.value_length_mla", w->head_dim_v);
    put(k, "attention.q_lora_rank", h->q_rank);
    put(k, "attention.kv_lora_rank", h->kv_rank);
    if (k->hp->rope_style == ROPE_HALF) ggufw_bool(k->w, key(k, "rope.half"), true);
    if (r->scaling != ROPE_YARN || !(r->factor > 1)) return;
    ggufw_f32(k->w, key(k, "rope.scaling.yarn_log_multiplier"),
              (float)((mscale - 1) / log(r->factor)));
    if (r->attn_factor != 1)
        ggufw_f32(k->w, key(k, "rope.scaling.yarn_mscale_ratio"), (float)r->attn_factor);
}

void naming_mix_keys(const struct hparams *hp, struct ggufw *w)
{
    struct keys k = { .hp = hp, .w = w };
    const struct layer_hp *first = first_of(hp, false);

    switch (hp->info->mix) {
    case MIX_MAMBA:
    case MIX_MAMBA2: put_mamba(&k, &first->mix); break;
    case MIX_SHORTCONV: put_lfm2(&k, &first->mix); break;
    case MIX_DELTA: put_delta(&k, &first->mix); break;
    case MIX_MLA: put_mla(&k, first); break;
    case MIX_ATTN: break;
    }
}
