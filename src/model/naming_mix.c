/* naming_mix.c - heads and mixers as metadata keys of a GGUF file: the inverse of
 * hparams_mix_gguf.c. */
#include "model/naming_impl.h"

#include "base/mem.h"

#include <math.h>

/* The first layer with attention, or with a mixer. */
static const struct layer_hp *find_first(const struct hparams *hp, bool attends)
{
    for (int l = 0; l < hp->n_layers; l++)
        if ((hp->layers[l].mix.kind == MIX_ATTN) == attends) return &hp->layers[l];
    return &hp->layers[0];
}

static void put_mix_heads(struct key_writer *k, const struct layer_hp *w)
{
    put_int(k, "attention.head_count", w->n_heads);
    put_int(k, "attention.head_count_kv", w->n_kv_heads);
    put_int(k, "attention.key_length", w->head_dim);
    put_int(k, "attention.value_length", w->head_dim_v);
}

/* rank: of the time step (Mamba 1), or the number of heads. */
static void put_ssm(struct key_writer *k, int taps, int inner, int state, int rank)
{
    put_int(k, "ssm.conv_kernel", taps);
    put_int(k, "ssm.inner_size", inner);
    put_int(k, "ssm.state_size", state);
    put_int(k, "ssm.time_step_rank", rank);
}

static void put_mamba(struct key_writer *k, const struct mix_hp *h)
{
    bool two = h->kind == MIX_MAMBA2;

    put_ssm(k, h->taps, h->inner, h->n_state, two ? h->n_heads : h->dt_rank);
    if (h->norm_first) put_bool(k, "ssm.norm_before_gate", true);
    if (!two) {
        if (k->hp->info->flags & ARCH_ALONE) put_bool(k, "ssm.dt_b_c_rms", h->bc_norm);
        if (h->bc_norm && h->bc_eps != 1e-6f && k->hp->info->flags & ARCH_ALONE)
            put_f32(k, "ssm.dt_b_c_rms_epsilon", (double)h->bc_eps);
        return;
    }
    put_int(k, "ssm.group_count", h->n_groups);
    if (h->norm_groups != h->n_groups) put_int(k, "ssm.norm_group_count", h->norm_groups);
    if (h->dt_min > 0) put_f32(k, "ssm.time_step_min", h->dt_min);
    if (isfinite(h->dt_max)) put_f32(k, "ssm.time_step_max", h->dt_max);
}

/* The number of KV heads per layer shows readers which layers have attention. */
static int put_lfm2(struct key_writer *k, const struct mix_hp *h, struct err *e)
{
    const struct hparams *hp = k->hp;
    int32_t *kv = mem_array((size_t)hp->n_layers, sizeof *kv);

    if (!kv) return err_nomem(e, "the keys of a model");
    for (int l = 0; l < hp->n_layers; l++)
        kv[l] = hp->layers[l].mix.kind == MIX_ATTN ? hp->layers[l].n_kv_heads : 0;
    put_int(k, "attention.head_count", find_first(hp, true)->n_heads);
    ggufw_i32s(k->w, full_name(k, "attention.head_count_kv"), kv, (size_t)hp->n_layers);
    put_int(k, "attention.key_length", find_first(hp, true)->head_dim);
    put_int(k, "attention.value_length", find_first(hp, true)->head_dim_v);
    put_int(k, "shortconv.l_cache", h->taps);
    mem_free(kv);
    return OK;
}

/* full_attention_interval is llama.cpp's key; the list is exact. */
static int put_delta(struct key_writer *k, const struct mix_hp *h, struct err *e)
{
    const struct hparams *hp = k->hp;
    bool *recurrent = mem_array((size_t)hp->n_layers, sizeof *recurrent);
    int every = 0;

    if (!recurrent) return err_nomem(e, "the keys of a model");
    put_mix_heads(k, find_first(hp, true));
    put_ssm(k, h->taps, h->n_heads * h->head_dim, h->k_dim, h->n_heads);
    put_int(k, "ssm.group_count", h->n_k_heads);
    for (int l = 0; l < hp->n_layers; l++) {
        recurrent[l] = hp->layers[l].mix.kind != MIX_ATTN;
        if (!recurrent[l] && !every) every = l + 1;
    }
    put_int(k, "full_attention_interval", every ? every : hp->n_layers + 1);
    ggufw_bools(k->w, full_name(k, "attention.recurrent_layers"), recurrent, (size_t)hp->n_layers);
    if (h->convs) { /* OLMo hybrid */
        put_f32(k, "ssm.beta_scale", (double)(h->beta_scale != 0 ? h->beta_scale : 1));
        put_f32(k, "ssm.norm_epsilon", (double)h->norm_eps);
        for (int l = 0; l < hp->n_layers; l++) recurrent[l] = hp->layers[l].rope >= 0;
        ggufw_bools(k->w, full_name(k, "rope.layers"), recurrent, (size_t)hp->n_layers);
    }
    mem_free(recurrent);
    return OK;
}

/* key_length and value_length describe the absorbed form: one KV head as wide as the latent. */
static void put_mla(struct key_writer *k, const struct layer_hp *w)
{
    const struct mix_hp *h = &w->mix;
    const struct rope_hp *r = &k->hp->rope[0];
    double mscale = sqrt((double)k->hp->attn_scale * sqrt(h->nope + h->rope));

    put_int(k, "attention.q_lora_rank", h->q_rank);
    put_int(k, "attention.kv_lora_rank", h->kv_rank);
    put_int(k, "attention.head_count", w->n_heads);
    if (str_is(str_c(k->hp->arch), "minicpm3")) { /* the form that is not absorbed */
        put_int(k, "attention.head_count_kv", w->n_heads);
        put_int(k, "attention.key_length", w->head_dim);
        put_int(k, "attention.value_length", w->head_dim_v);
    } else {
        put_int(k, "attention.head_count_kv", 1);
        put_int(k, "attention.key_length", h->kv_rank + h->rope);
        put_int(k, "attention.value_length", h->kv_rank);
        put_int(k, "attention.key_length_mla", w->head_dim);
        put_int(k, "attention.value_length_mla", w->head_dim_v);
    }
    if (k->hp->rope_style != k->hp->info->gguf_rope) put_bool(k, "rope.half", true);
    if (r->scaling != ROPE_YARN || !(r->factor > 1)) return;
    put_f32(k, "rope.scaling.yarn_log_multiplier", (float)((mscale - 1) / log(r->factor)));
    if (r->attn_factor != 1) put_f32(k, "rope.scaling.yarn_mscale_ratio", (float)r->attn_factor);
}

int naming_mix_keys(struct key_writer *k, struct err *e)
{
    const struct layer_hp *first = find_first(k->hp, false);

    switch (k->hp->info->mix) {
    case MIX_MAMBA:
    case MIX_MAMBA2:
        if (first->mix.kind == k->hp->info->mix) put_mamba(k, &first->mix);
        if (k->hp->info->flags & ARCH_HYBRID) return naming_hybrid_keys(k, e);
        put_int(k, "attention.head_count", 0);
        break;
    case MIX_SHORTCONV: return put_lfm2(k, &first->mix, e);
    case MIX_DELTA: return put_delta(k, &first->mix, e);
    case MIX_MLA: put_mla(k, first); break;
    case MIX_ATTN:
    case MIX_CSA:
    case MIX_NONE: break;
    }
    return OK;
}
