/* hparams_mix_gguf.c - hyper-parameters of mixers from the metadata of a GGUF file. */
#include "model/metakeys.h"

#include "model/hparams.h"

#include <math.h>
#include <stdio.h>

static int need_key(const struct metakeys *k, const char *name, int *out, struct err *e)
{
    return metakeys_need(k, name, 0, out, e);
}

/* ssm.time_step_rank is the rank in Mamba 1, the number of heads in Mamba 2. */
int hparams_ssm_gguf(struct mix_hp *h, const struct hparams *hp, const struct metakeys *k,
                     struct err *e)
{
    bool two = hp->info->mix == MIX_MAMBA2;
    double limit;
    int rc;

    *h = (struct mix_hp){ .kind = hp->info->mix, .dt_max = INFINITY };
    if ((rc = need_key(k, "ssm.conv_kernel", &h->taps, e)) != OK) return rc;
    if ((rc = need_key(k, "ssm.inner_size", &h->inner, e)) != OK) return rc;
    if ((rc = need_key(k, "ssm.state_size", &h->n_state, e)) != OK) return rc;
    if ((rc = need_key(k, "ssm.time_step_rank", two ? &h->n_heads : &h->dt_rank, e)) != OK)
        return rc;
    if (two && (rc = need_key(k, "ssm.group_count", &h->n_groups, e)) != OK) return rc;
    if (two) h->head_dim = h->inner / h->n_heads;
    h->normed = two;
    h->norm_groups = h->n_groups;
    metakeys_int(k, "ssm.norm_group_count", 0, &h->norm_groups);
    source_bool(k->src, metakeys_name(k, "ssm.dt_b_c_rms").s, &h->bc_norm);
    h->bc_eps = (float)metakeys_f64_or(k, "ssm.dt_b_c_rms_epsilon", 1e-6);
    if (metakeys_f64(k, "ssm.time_step_min", &limit)) h->dt_min = (float)limit;
    if (metakeys_f64(k, "ssm.time_step_max", &limit)) h->dt_max = (float)limit;
    return OK;
}

static int read_mamba_keys(const struct metakeys *k, struct hparams *hp, struct err *e)
{
    struct mix_hp h;
    int rc = hparams_ssm_gguf(&h, hp, k, e);

    if (rc != OK) return rc;
    for (int l = 0; l < hp->n_layers; l++)
        hp->layers[l] = (struct layer_hp){ .mix = h, .rope = -1, .no_ffn = true };
    return OK;
}

/* Layers with a convolution tensor are short convolutions, the others attention. */
static int read_lfm2_keys(const struct metakeys *k, struct hparams *hp, struct err *e)
{
    struct mix_hp h = { .kind = MIX_SHORTCONV };
    int rc = need_key(k, "shortconv.l_cache", &h.taps, e);

    hp->last_norm = true; /* token_embd_norm, not output_norm */
    for (int l = 0; l < hp->n_layers && rc == OK; l++) {
        struct layer_hp *w = &hp->layers[l];
        if (!w->head_dim && w->n_heads > 0) w->head_dim = hp->n_embd / w->n_heads;
        if (metakeys_tensor(k, l, "shortconv.conv.weight")) w->mix = h;
    }
    return rc;
}

/* OLMo hybrid, which llama.cpp does not have: keys of tern's own. */
static void read_olmo_hybrid_keys(const struct metakeys *k, struct mix_hp *h)
{
    h->convs = true;
    h->beta_scale = (float)metakeys_f64_or(k, "ssm.beta_scale", 1);
    h->norm_eps = (float)metakeys_f64_or(k, "ssm.norm_epsilon", 1e-5);
}

/* Layers with a convolution tensor are recurrent. */
static int read_qwen3_next_keys(const struct metakeys *k, struct hparams *hp, struct err *e)
{
    struct mix_hp h = { .kind = MIX_DELTA };
    bool grouped = false, olmo = str_is(str_c(hp->arch), "olmo_hybrid");
    int inner, rc;

    if ((rc = need_key(k, "ssm.conv_kernel", &h.taps, e)) != OK) return rc;
    if ((rc = need_key(k, "ssm.group_count", &h.n_k_heads, e)) != OK) return rc;
    if ((rc = need_key(k, "ssm.time_step_rank", &h.n_heads, e)) != OK) return rc;
    if ((rc = need_key(k, "ssm.state_size", &h.k_dim, e)) != OK) return rc;
    if ((rc = need_key(k, "ssm.inner_size", &inner, e)) != OK) return rc;
    h.head_dim = inner / h.n_heads;
    /* Files that tern wrote once have the value heads of Qwen 3.5 in the folder's order. */
    source_bool(k->src, metakeys_name(k, "ssm.heads_grouped").s, &grouped);
    h.tiled = hp->info->flags & ARCH_TILED && !grouped && h.n_heads != h.n_k_heads;
    if (olmo) read_olmo_hybrid_keys(k, &h);
    for (int l = 0; l < hp->n_layers; l++) {
        struct layer_hp *w = &hp->layers[l];
        w->mix.gate = !olmo;
        if (metakeys_tensor(k, l, olmo ? "ssm_conv1d_q.weight" : "ssm_conv1d.weight"))
            w->mix = h, w->rope = -1;
    }
    return OK;
}

static int read_deepseek_keys(const struct metakeys *k, struct hparams *hp, struct err *e)
{
    struct mix_hp h = { .kind = MIX_MLA };
    int key = 0, value = 0, rc;

    metakeys_int(k, "attention.q_lora_rank", 0, &h.q_rank);
    if (h.q_rank && !metakeys_tensor(k, 0, "attn_q_a.weight")) h.q_rank = 0;
    if ((rc = need_key(k, "attention.kv_lora_rank", &h.kv_rank, e)) != OK) return rc;
    if ((rc = need_key(k, "rope.dimension_count", &h.rope, e)) != OK) return rc;
    /* Newer files have the width of the latent in key_length, and that of the heads in *_mla. */
    if (!metakeys_int(k, "attention.key_length_mla", 0, &key) &&
        (rc = need_key(k, "attention.key_length", &key, e)) != OK)
        return rc;
    /* minicpm3: its files have no such key. */
    if (str_is(str_c(hp->arch), "minicpm3") && hp->layers[0].n_heads)
        value = hp->n_embd / hp->layers[0].n_heads;
    if (!metakeys_int(k, "attention.value_length_mla", 0, &value) &&
        !metakeys_int(k, "attention.value_length", 0, &value) && !value &&
        (rc = need_key(k, "attention.value_length", &value, e)) != OK)
        return rc;
    h.nope = key - h.rope;
    for (int l = 0; l < hp->n_layers; l++) {
        struct layer_hp *w = &hp->layers[l];
        w->mix = h;
        w->n_kv_heads = 1;
        w->head_dim = key;
        w->head_dim_v = value;
    }
    return OK;
}

int hparams_mix_gguf(struct hparams *hp, const struct source *src, struct err *e)
{
    struct metakeys keys = { src, hp->arch };

    if (hp->info->flags & ARCH_HYBRID) return hparams_hybrid_gguf(hp, src, e);
    switch (hp->info->mix) {
    case MIX_MAMBA:
    case MIX_MAMBA2: return read_mamba_keys(&keys, hp, e);
    case MIX_SHORTCONV: return read_lfm2_keys(&keys, hp, e);
    case MIX_DELTA: return read_qwen3_next_keys(&keys, hp, e);
    case MIX_MLA: return read_deepseek_keys(&keys, hp, e);
    case MIX_ATTN:
    case MIX_CSA:
    case MIX_NONE: break;
    }
    return OK;
}

/* With yarn, DeepSeek scales the scores by mscale^2 instead of cos and sin. The key
 * yarn_log_multiplier is mscale_all_dim / 10. */
static void read_deepseek_scale_keys(const struct metakeys *k, struct hparams *hp)
{
    const struct mix_hp *h = &hp->layers[0].mix;
    struct rope_hp *r = &hp->rope[0];
    double tenth = 0, mscale = 1, attn = 1;
    bool half = false;

    if (r->scaling == ROPE_YARN) {
        metakeys_f64(k, "rope.scaling.yarn_log_multiplier", &tenth);
        metakeys_f64(k, "rope.scaling.yarn_mscale_ratio", &attn);
        r->attn_factor = attn;
        if (r->factor > 1) mscale = tenth * log(r->factor) + 1;
    }
    hp->attn_scale = (float)(mscale * mscale / sqrt(h->nope + h->rope));
    source_bool(k->src, metakeys_name(k, "rope.half").s, &half);
    if (half) hp->rope_style = ROPE_HALF;
}

void hparams_mix_gguf_rest(struct hparams *hp, const struct source *src)
{
    struct metakeys keys = { src, hp->arch };

    for (int l = 0; l < hp->n_layers; l++)
        if (!layer_attends(&hp->layers[l]) && hp->layers[l].mix.kind != MIX_MLA)
            hp->layers[l].rope = -1;
    if (hp->info->flags & ARCH_HYBRID) hparams_hybrid_gguf_rest(hp, src);
    if (hp->info->mix == MIX_MLA) read_deepseek_scale_keys(&keys, hp);
}
