/* hparams_mix_gguf.c - numbers of mixers from the keys of a GGUF file. */
#include "model/hparams.h"

#include <math.h>
#include <stdio.h>

struct meta {
    const struct source *src;
    const char *arch;
};

static bool get(const struct meta *m, const char *name, int l, int *out)
{
    char key[160];
    struct value v, list;
    int64_t i;

    snprintf(key, sizeof key, "%s.%s", m->arch, name);
    if (!source_key(m->src, key, &v)) return false;
    list = v;
    if (v.kind == VALUE_LIST && !value_at(&list, (size_t)l, &v)) return false;
    if (!value_i64(&v, &i) || i < 0 || i > INT32_MAX) return false;
    *out = (int)i;
    return true;
}

static bool get_f64(const struct meta *m, const char *name, double *out)
{
    char key[160];
    snprintf(key, sizeof key, "%s.%s", m->arch, name);
    return source_f64(m->src, key, out);
}

static int need(const struct meta *m, const char *name, int *out, struct err *e)
{
    if (get(m, name, 0, out) && *out > 0) return OK;
    return err_set(e, E_FORMAT, "%s: the key %s.%s is missing or no positive number",
                   source_path(m->src), m->arch, name);
}

static const struct source_tensor *find(const struct meta *m, int l, const char *name)
{
    char s[160];
    snprintf(s, sizeof s, "blk.%d.%s", l, name);
    return source_find(m->src, s);
}

static int mamba(const struct meta *m, struct hparams *hp, struct err *e)
{
    bool two = hp->info->mix == MIX_MAMBA2;
    struct mix_hp h = { .kind = hp->info->mix, .dt_max = INFINITY };
    double limit;
    int rc;

    if ((rc = need(m, "ssm.conv_kernel", &h.taps, e)) != OK) return rc;
    if ((rc = need(m, "ssm.inner_size", &h.inner, e)) != OK) return rc;
    if ((rc = need(m, "ssm.state_size", &h.n_state, e)) != OK) return rc;
    if ((rc = need(m, "ssm.time_step_rank", two ? &h.n_heads : &h.dt_rank, e)) != OK) return rc;
    if (two && (rc = need(m, "ssm.group_count", &h.n_groups, e)) != OK) return rc;
    if (two) h.head_dim = h.inner / h.n_heads;
    h.norm_groups = h.n_groups;
    get(m, "ssm.norm_group_count", 0, &h.norm_groups);
    if (get_f64(m, "ssm.time_step_min", &limit)) h.dt_min = (float)limit;
    if (get_f64(m, "ssm.time_step_max", &limit)) h.dt_max = (float)limit;
    for (int l = 0; l < hp->n_layers; l++)
        hp->layers[l] = (struct layer_hp){ .mix = h, .rope = -1 };
    return OK;
}

/* Layers without KV heads are short convolutions. */
static int lfm2(const struct meta *m, struct hparams *hp, struct err *e)
{
    struct mix_hp h = { .kind = MIX_SHORTCONV };
    int rc = need(m, "shortconv.l_cache", &h.taps, e);

    hp->last_norm = true; /* by another name */
    for (int l = 0; l < hp->n_layers && rc == OK; l++) {
        struct layer_hp *w = &hp->layers[l];
        if (!w->head_dim && w->n_heads > 0) w->head_dim = hp->n_embd / w->n_heads;
        if (find(m, l, "shortconv.conv.weight")) w->mix = h;
    }
    return rc;
}

static int qwen3_next(const struct meta *m, struct hparams *hp, struct err *e)
{
    struct mix_hp h = { .kind = MIX_DELTA };
    int inner, rc;

    if ((rc = need(m, "ssm.conv_kernel", &h.taps, e)) != OK) return rc;
    if ((rc = need(m, "ssm.group_count", &h.n_k_heads, e)) != OK) return rc;
    if ((rc = need(m, "ssm.time_step_rank", &h.n_heads, e)) != OK) return rc;
    if ((rc = need(m, "ssm.state_size", &h.k_dim, e)) != OK) return rc;
    if ((rc = need(m, "ssm.inner_size", &inner, e)) != OK) return rc;
    h.head_dim = inner / h.n_heads;
    for (int l = 0; l < hp->n_layers; l++) {
        struct layer_hp *w = &hp->layers[l];
        w->mix.gate = true;
        if (find(m, l, "ssm_conv1d.weight")) w->mix = h, w->rope = -1;
    }
    return OK;
}

static int deepseek(const struct meta *m, struct hparams *hp, struct err *e)
{
    struct mix_hp h = { .kind = MIX_MLA };
    int key = 0, value = 0, rc;

    get(m, "attention.q_lora_rank", 0, &h.q_rank);
    if (h.q_rank && !find(m, 0, "attn_q_a.weight")) h.q_rank = 0;
    if ((rc = need(m, "attention.kv_lora_rank", &h.kv_rank, e)) != OK) return rc;
    if ((rc = need(m, "rope.dimension_count", &h.rope, e)) != OK) return rc;
    /* Older files say what heads are; newer ones have the latent's widths there. */
    if (!get(m, "attention.key_length_mla", 0, &key) &&
        (rc = need(m, "attention.key_length", &key, e)) != OK)
        return rc;
    if (!get(m, "attention.value_length_mla", 0, &value) &&
        (rc = need(m, "attention.value_length", &value, e)) != OK)
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
    struct meta m = { src, hp->arch };

    switch (hp->info->mix) {
    case MIX_MAMBA:
    case MIX_MAMBA2: return mamba(&m, hp, e);
    case MIX_SHORTCONV: return lfm2(&m, hp, e);
    case MIX_DELTA: return qwen3_next(&m, hp, e);
    case MIX_MLA: return deepseek(&m, hp, e);
    case MIX_ATTN: break;
    }
    return OK;
}

/* cos and sin are not scaled; scores are, by yarn's factor twice. The key holds a tenth of
 * mscale_all_dim. */
static void deepseek_scale(const struct meta *m, struct hparams *hp)
{
    const struct mix_hp *h = &hp->layers[0].mix;
    struct rope_hp *r = &hp->rope[0];
    double tenth = 0, mscale = 1, attn = 1;
    bool half = false;

    if (r->scaling == ROPE_YARN) {
        get_f64(m, "rope.scaling.yarn_log_multiplier", &tenth);
        get_f64(m, "rope.scaling.yarn_mscale_ratio", &attn);
        r->attn_factor = attn;
        if (r->factor > 1) mscale = tenth * log(r->factor) + 1;
    }
    hp->attn_scale = (float)(mscale * mscale / sqrt(h->nope + h->rope));
    source_bool(m->src, "deepseek2.rope.half", &half);
    if (half) hp->rope_style = ROPE_HALF;
}

void hparams_mix_gguf_rest(struct hparams *hp, const struct source *src)
{
    struct meta m = { src, hp->arch };

    for (int l = 0; l < hp->n_layers; l++)
        if (hp->layers[l].mix.kind != MIX_ATTN && hp->layers[l].mix.kind != MIX_MLA)
            hp->layers[l].rope = -1;
    if (hp->info->mix == MIX_MLA) deepseek_scale(&m, hp);
}
