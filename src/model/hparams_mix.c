/* hparams_mix.c - hyper-parameters of mixers: tensor shapes, checks, and keys of config.json. */
#include "model/config.h"

#include <math.h>
#include <stdio.h>

#define MOST (1 << 20) /* limit of each value */
#define MOST_TAPS 64   /* limit of the convolution kernels */

/* Some names have another meaning for each mixer; see the tables in arch_state.c. */
int hparams_mix_dim(const struct hparams *hp, enum dim d, int l)
{
    const struct layer_hp *w = &hp->layers[l];
    const struct mix_hp *h = &w->mix;
    struct mix_width wide = mix_width(hp, l);

    switch (d) {
    case DIM_MIX_IN: return wide.in;
    case DIM_MIX_CONV: return mix_stateshape(hp, l).conv_cols;
    case DIM_MIX_TAPS: return h->taps;
    case DIM_MIX_LOW: return wide.low;
    case DIM_MIX_RANK: return h->kind == MIX_MLA || h->kind == MIX_CSA ? h->q_rank : h->dt_rank;
    case DIM_MIX_STATE: return h->n_state;
    case DIM_MIX_HEADS: return h->n_heads;
    case DIM_MIX_HEAD: return h->kind == MIX_MLA ? w->head_dim_v : h->head_dim;
    case DIM_MIX_LATENT: return h->kv_rank;
    case DIM_MIX_UP: return w->n_heads * (h->nope + w->head_dim_v);
    case DIM_MIX_NOPE: return h->nope;
    case DIM_MIX_KEYS: return h->n_k_heads * h->k_dim;
    case DIM_MIX_VALUES: return h->n_heads * h->head_dim;
    case DIM_MIX_INNER: return h->inner;
    default: return 0;
    }
}

static bool in_range(int64_t v) { return v > 0 && v <= MOST; }

/* The values are in range and consistent. Bounds keep products of them within 32 bits. */
static bool is_valid_mix(const struct hparams *hp, int l)
{
    const struct layer_hp *w = &hp->layers[l];
    const struct mix_hp *h = &w->mix;
    bool taps = h->taps > 0 && h->taps <= MOST_TAPS;

    switch (h->kind) {
    case MIX_MAMBA:
        return taps && in_range(h->inner) && in_range(h->n_state) && in_range(h->dt_rank) &&
               (int64_t)h->inner * h->n_state < 1 << 28;
    case MIX_MAMBA2:
        return taps && in_range(h->inner) && in_range(h->n_state) && in_range(h->n_heads) &&
               in_range(h->head_dim) && in_range(h->n_groups) && in_range(h->norm_groups) &&
               (int64_t)h->n_heads * h->head_dim == h->inner && h->n_heads % h->n_groups == 0 &&
               h->inner % h->norm_groups == 0 && (int64_t)h->inner * h->n_state < 1 << 28 &&
               (int64_t)h->n_groups * h->n_state < MOST && h->dt_min >= 0 && h->dt_max >= h->dt_min;
    case MIX_SHORTCONV: return taps;
    case MIX_DELTA:
        return taps && in_range(h->n_heads) && in_range(h->n_k_heads) && in_range(h->head_dim) &&
               in_range(h->k_dim) && h->n_heads % h->n_k_heads == 0 &&
               (int64_t)h->n_heads * h->head_dim < MOST &&
               (int64_t)h->n_k_heads * h->k_dim < MOST &&
               (int64_t)h->n_heads * h->head_dim * h->k_dim < 1 << 28;
    case MIX_MLA:
        return in_range(h->kv_rank) && in_range(h->nope) && in_range(h->rope) &&
               in_range(w->head_dim_v) && h->q_rank >= 0 && h->q_rank <= MOST &&
               in_range(w->n_heads) && (int64_t)w->n_heads * (h->nope + w->head_dim_v) <= 1 << 24 &&
               (int64_t)w->n_heads * (h->kv_rank + h->rope) <= 1 << 24;
    case MIX_CSA:
        return in_range(h->q_rank) && in_range(h->o_groups) && in_range(h->o_rank) &&
               in_range(w->n_heads) && in_range(w->head_dim) && w->n_kv_heads == 1 &&
               (int64_t)w->n_heads * w->head_dim <= 1 << 24 &&
               w->n_heads * w->head_dim % h->o_groups == 0 &&
               (int64_t)h->o_groups * h->o_rank <= 1 << 24 && h->rate >= 0 && h->rate <= 1 << 16;
    case MIX_ATTN:
    case MIX_NONE: break;
    }
    return true;
}

int hparams_mix_check(const struct hparams *hp, int l, const char *path, struct err *e)
{
    static const char *const names[] = {
        [MIX_MAMBA] = "state space",           [MIX_MAMBA2] = "state space",
        [MIX_SHORTCONV] = "short convolution", [MIX_DELTA] = "gated delta net",
        [MIX_MLA] = "latent attention",        [MIX_CSA] = "compressed attention"
    };
    const struct mix_hp *h = &hp->layers[l].mix;

    if (is_valid_mix(hp, l)) return OK;
    return err_set(e, E_FORMAT,
                   "%s: layer %d: invalid shape of a %s: %d taps, %d channels, state %d, "
                   "%d heads of %d in %d groups, latent %d",
                   path, l, names[h->kind], h->taps, h->inner, h->n_state, h->n_heads, h->head_dim,
                   h->n_groups, h->kv_rank);
}

/* ---- config.json ---- */

static int need_config_int(const struct config *c, const char *name, int *out, struct err *e)
{
    return config_need(c, (const char *const[]){ name, NULL }, out, e);
}

static void set_mix_of_layers(struct hparams *hp, const struct mix_hp *h)
{
    for (int l = 0; l < hp->n_layers; l++) hp->layers[l].mix = *h;
}

/* time_step_rank: "auto" (also if missing) is n_embd / 16, rounded up. */
static int read_dt_rank(const struct config *c, struct hparams *hp, int *rank, struct err *e)
{
    struct str text;

    *rank = (hp->n_embd + 15) / 16;
    if (!config_has(c, "", "time_step_rank") || config_str(c, "", "time_step_rank", &text))
        return OK;
    return need_config_int(c, "time_step_rank", rank, e);
}

/* expand is a real number in some configurations. */
static int read_mamba(const struct config *c, struct hparams *hp, struct err *e)
{
    bool two = c->arch->mix == MIX_MAMBA2;
    struct mix_hp h = { .kind = c->arch->mix, .dt_max = INFINITY, .norm_groups = 1, .normed = two };
    double expand = config_or(c, "expand", 2), limit;
    int rc;

    h.inner = expand > 0 && expand < 1024 ? (int)(expand * hp->n_embd) : 0;
    if ((rc = need_config_int(c, "state_size", &h.n_state, e)) != OK) return rc;
    h.taps = 4;
    config_int(c, "conv_kernel", &h.taps);
    if (!two && (rc = read_dt_rank(c, hp, &h.dt_rank, e)) != OK) return rc;
    if (two && (rc = need_config_int(c, "num_heads", &h.n_heads, e)) != OK) return rc;
    if (two && (rc = need_config_int(c, "head_dim", &h.head_dim, e)) != OK) return rc;
    if (two && (rc = need_config_int(c, "n_groups", &h.n_groups, e)) != OK) return rc;
    if (two && config_f64(c, "time_step_limit.", "0", &limit)) h.dt_min = (float)limit;
    if (two && config_f64(c, "time_step_limit.", "1", &limit)) h.dt_max = (float)limit;
    h.bc_norm = str_is(str_c(c->arch->hf[0]), "falcon_mamba");
    h.bc_eps = (float)config_or(c, "mixer_rms_eps", 1e-6);
    set_mix_of_layers(hp, &h);
    for (int l = 0; l < hp->n_layers; l++) {
        struct layer_hp *w = &hp->layers[l];
        w->n_heads = w->n_kv_heads = w->head_dim = w->n_ff = 0;
        w->no_ffn = true;
        w->rope = -1;
    }
    return OK;
}

/* Layer l has attention, by layer_types: 1 yes, 0 no (type `other`), -1 not given, -2 error. */
static int attends_by_type(const struct config *c, int l, const char *other, struct err *e)
{
    char key[64];
    struct str s;

    snprintf(key, sizeof key, "layer_types.%d", l);
    if (!config_str(c, "", key, &s)) return -1;
    if (str_is(s, "full_attention")) return 1;
    if (str_is(s, other)) return 0;
    err_set(e, E_UNSUPPORTED, "%s: config.json: layer_types has \"%.*s\", which is not supported",
            source_path(c->src), STR_ARG(str_take(s, 64)));
    return -2;
}

/* Layer l has attention, by full_attn_idxs; without the key all layers do. */
static bool attends_by_list(const struct config *c, int l)
{
    struct value list, v;
    int64_t i;

    if (!config_value(c, "", "full_attn_idxs", &list) || list.kind != VALUE_LIST) return true;
    for (size_t k = 0; value_at(&list, k, &v); k++)
        if (value_i64(&v, &i) && i == l) return true;
    return false;
}

/* Layers with attention by "layer_types" or, in older folders, "full_attn_idxs". */
static int read_lfm2(const struct config *c, struct hparams *hp, struct err *e)
{
    struct mix_hp h = { .kind = MIX_SHORTCONV, .taps = 3 };

    config_int(c, "conv_L_cache", &h.taps);
    for (int l = 0; l < hp->n_layers; l++) {
        int attends = attends_by_type(c, l, "conv", e);
        if (attends == -2) return E_UNSUPPORTED;
        if (attends == -1) attends = attends_by_list(c, l);
        hp->layers[l].n_ff = 0; /* inferred from the tensors: the key is before rounding */
        if (!hp->layers[l].head_dim) hp->layers[l].head_dim = hp->n_embd / hp->layers[l].n_heads;
        if (!attends) hp->layers[l].mix = h, hp->layers[l].rope = -1;
    }
    return OK;
}

/* OLMo hybrid's defaults depend on its other shapes; beta may be up to 2. */
static void set_olmo_hybrid(const struct config *c, const struct hparams *hp, struct mix_hp *h)
{
    h->n_k_heads = h->n_heads = hp->layers[0].n_heads;
    config_int(c, "linear_num_key_heads", &h->n_k_heads);
    config_int(c, "linear_num_value_heads", &h->n_heads);
    if (!config_int(c, "linear_key_head_dim", &h->k_dim) && h->n_k_heads)
        h->k_dim = (int)(0.75 * hp->n_embd / h->n_k_heads);
    h->head_dim = 2 * h->k_dim;
    config_int(c, "linear_value_head_dim", &h->head_dim);
    h->convs = true;
    h->beta_scale = config_bool(c, "linear_allow_neg_eigval", true) ? 2 : 1;
    h->norm_eps = 1e-5f; /* fixed in the reference library */
}

/* Every full_attention_interval-th layer has attention. */
static int read_qwen3_next(const struct config *c, struct hparams *hp, struct err *e)
{
    bool olmo = str_is(str_c(c->arch->hf[0]), "olmo_hybrid");
    struct mix_hp h = { .kind = MIX_DELTA, .taps = 4 };
    int every = 4, rc;

    config_int(c, "linear_conv_kernel_dim", &h.taps);
    if (olmo) set_olmo_hybrid(c, hp, &h);
    else if ((rc = need_config_int(c, "linear_num_key_heads", &h.n_k_heads, e)) != OK ||
             (rc = need_config_int(c, "linear_num_value_heads", &h.n_heads, e)) != OK ||
             (rc = need_config_int(c, "linear_key_head_dim", &h.k_dim, e)) != OK ||
             (rc = need_config_int(c, "linear_value_head_dim", &h.head_dim, e)) != OK)
        return rc;
    config_int(c, "full_attention_interval", &every);
    for (int l = 0; l < hp->n_layers; l++) {
        int attends = attends_by_type(c, l, "linear_attention", e);
        if (attends == -2) return E_UNSUPPORTED;
        if (attends == -1) attends = every > 0 && (l + 1) % every == 0;
        if (attends) hp->layers[l].mix.gate = !olmo;
        else hp->layers[l].mix = h, hp->layers[l].rope = -1;
    }
    return OK;
}

/* The KV cache has one head: the latent. head_dim and head_dim_v are those before absorption. */
static int read_deepseek(const struct config *c, struct hparams *hp, struct err *e)
{
    struct mix_hp h = { .kind = MIX_MLA };
    struct str method;
    int v, rc;

    config_int(c, "q_lora_rank", &h.q_rank);
    if ((rc = need_config_int(c, "kv_lora_rank", &h.kv_rank, e)) != OK) return rc;
    if ((rc = need_config_int(c, "qk_nope_head_dim", &h.nope, e)) != OK) return rc;
    if ((rc = need_config_int(c, "qk_rope_head_dim", &h.rope, e)) != OK) return rc;
    if ((rc = need_config_int(c, "v_head_dim", &v, e)) != OK) return rc;
    set_mix_of_layers(hp, &h);
    for (int l = 0; l < hp->n_layers; l++) {
        struct layer_hp *w = &hp->layers[l];
        w->n_kv_heads = 1;
        w->head_dim = h.nope + h.rope;
        w->head_dim_v = v;
    }
    if (!c->arch->moe.greedy) return OK;
    if (!config_str(c, "", "topk_method", &method)) method = STR("greedy");
    if (str_is(method, "greedy")) hp->moe.n_groups = 0;
    else if (!str_is(method, "group_limited_greedy"))
        return err_set(e, E_UNSUPPORTED, "%s: config.json: topk_method \"%.*s\" is not supported",
                       source_path(c->src), STR_ARG(str_take(method, 64)));
    return OK;
}

int hparams_mix_shapes(const struct config *c, struct hparams *hp, struct err *e)
{
    if (c->arch->flags & ARCH_HYBRID) return hparams_hybrid_shapes(c, hp, e);
    switch (c->arch->mix) {
    case MIX_MAMBA:
    case MIX_MAMBA2: return read_mamba(c, hp, e);
    case MIX_SHORTCONV: return read_lfm2(c, hp, e);
    case MIX_DELTA: return read_qwen3_next(c, hp, e);
    case MIX_MLA: return read_deepseek(c, hp, e);
    case MIX_CSA: return hparams_csa_shapes(c, hp, e);
    case MIX_ATTN:
    case MIX_NONE: break;
    }
    return OK;
}

/* Scores are scaled by 1 / sqrt(nope + rope), and with yarn by mscale^2. */
static void read_deepseek_scale(const struct config *c, struct hparams *hp)
{
    const struct mix_hp *h = &hp->layers[0].mix;
    const char *dict =
        config_has(c, "rope_scaling.", "factor") ? "rope_scaling." : "rope_parameters.";
    double all = 0, mscale = 1;

    if (hp->rope[0].scaling != ROPE_NONE && config_f64(c, dict, "mscale_all_dim", &all) &&
        all != 0 && hp->rope[0].factor > 1)
        mscale = 0.1 * all * log(hp->rope[0].factor) + 1;
    hp->attn_scale = (float)(mscale * mscale / sqrt(h->nope + h->rope));
    hp->rope[0].n_rot = h->rope;
    if (!config_bool(c, "rope_interleave", hp->rope_style == ROPE_PAIR)) hp->rope_style = ROPE_HALF;
}

/* What needs shapes or the rotary embedding to be known. */
int hparams_mix(const struct config *c, struct hparams *hp, struct err *e)
{
    bool tied;

    (void)e;
    if (c->arch->mix == MIX_SHORTCONV && config_has(c, "", "tie_embedding")) {
        tied = config_bool(c, "tie_embedding", hp->tied);
        hp->tied = tied;
    }
    if (c->arch->mix == MIX_MLA) read_deepseek_scale(c, hp);
    if (c->arch->flags & ARCH_HYBRID) hparams_hybrid(c, hp);
    return OK;
}
