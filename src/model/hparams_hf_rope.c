/* hparams_hf_rope.c - sliding windows and rotary embeddings from config.json. Both the old keys
 * (rope_scaling, rope_theta) and the new ones (rope_parameters) are read. */
#include "model/config.h"

#include "model/rotary.h"

#include <math.h>
#include <stdio.h>

/* ---- windows ---- */

static bool layer_type_is(const struct config *c, int l, const char *name)
{
    char key[64];
    struct str s;
    snprintf(key, sizeof key, "layer_types.%d", l);
    return config_str(c, "", key, &s) && str_is(s, name);
}

/* sliding_window_pattern as letters, repeated over the layers: "LLLG", L for a window. */
static bool window_by_letters(const struct config *c, int l, bool *local)
{
    struct str s;
    if (!config_str(c, "", "sliding_window_pattern", &s) || !s.n) return false;
    *local = s.p[(size_t)l % s.n] == 'L';
    return true;
}

/* Layer l has a window, by the rule of the architecture for configurations without layer_types. */
static bool window_by_rule(const struct config *c, const struct hparams *hp, int l)
{
    int every = c->arch->window_every, n = 28;
    bool local;

    if (c->arch->flags & ARCH_NO_ROPE) return hp->layers[l].rope < 0;
    switch (c->arch->window_rule) {
    case WINDOW_FROM: config_int(c, "max_window_layers", &n); return l >= n;
    case WINDOW_ODD: config_int(c, "max_window_layers", &n); return l % 2 == 0 && l < n;
    case WINDOW_EVERY: break;
    }
    if (window_by_letters(c, l, &local)) return local;
    if (config_list_int(c, "hybrid_layer_pattern", l, &n)) return n == 1;
    if (every && config_int(c, "global_attn_every_n_layers", &n) && n > 0) every = n;
    if (every < 0) return l % -every != 0; /* counted from the first layer */
    if (every && config_int(c, "sliding_window_pattern", &n) && n > 0) every = n;
    return every == 0 || (l + 1) % every != 0;
}

/* Unknown layer types are an error, not attention. */
static int check_layer_types(const struct config *c, const struct hparams *hp, struct err *e)
{
    char key[64];
    struct str s;

    for (int l = 0; c->arch->flags & ARCH_LAYER_TYPES && l < hp->n_layers; l++) {
        snprintf(key, sizeof key, "layer_types.%d", l);
        if (config_str(c, "", key, &s) && !str_is(s, "full_attention") &&
            !str_is(s, "sliding_attention") &&
            !(c->arch->flags & ARCH_CHUNKS && str_is(s, "chunked_attention")))
            return err_set(e, E_UNSUPPORTED,
                           "%s: config.json: layer_types has \"%.*s\", which is not supported",
                           source_path(c->src), STR_ARG(str_take(s, 64)));
    }
    return OK;
}

/* ARCH_ROPE_SLIDING: layers without a window have no rotary embedding. */
static void drop_rope_of_full_layers(const struct config *c, struct hparams *hp)
{
    bool any = false;

    for (int l = 0; l < hp->n_layers; l++) any |= hp->layers[l].window > 0;
    if (!any && c->arch->flags & ARCH_ROPE_ALL && config_null(c, "sliding_window")) return;
    for (int l = 0; l < hp->n_layers; l++)
        if (!hp->layers[l].window) hp->layers[l].rope = -1;
}

/* After the rotary embeddings, because ARCH_NO_ROPE families derive windows from them. */
void hparams_hf_windows(const struct config *c, struct hparams *hp)
{
    uint64_t f = c->arch->flags;
    double wide = config_or(c, "sliding_window", c->arch->window);
    int window = wide > 0 && wide < INT32_MAX ? (int)wide : 0;
    bool typed = f & ARCH_LAYER_TYPES && config_has(c, "", "layer_types.0");

    if (!(f & (ARCH_WINDOW | ARCH_LAYER_TYPES))) return;
    if (f & ARCH_USE_WINDOW && !(f & ARCH_USE_RULE && typed) &&
        !config_bool(c, "use_sliding_window", false))
        return;
    for (int l = 0; l < hp->n_layers; l++)
        if (typed ? layer_type_is(c, l, "sliding_attention") : window_by_rule(c, hp, l))
            hp->layers[l].window = window;
    if (f & ARCH_ROPE_SLIDING) drop_rope_of_full_layers(c, hp);
}

/* With two rotary bases, layers with a window use the second. */
static bool uses_second_rope(const struct config *c, const struct hparams *hp, int l)
{
    return config_has(c, "", "layer_types.0") ? layer_type_is(c, l, "sliding_attention")
                                              : window_by_rule(c, hp, l);
}

/* ---- rotary ---- */

/* A list of n positive values; NULL: missing or malformed, or no memory (the arena has failed). */
static const float *read_factor_list(const struct config *c, struct arena *a, const char *dict,
                                     const char *name, int n)
{
    struct value list, v;
    float *out;
    double f;
    if (!config_value(c, dict, name, &list) || list.kind != VALUE_LIST || list.n != (size_t)n)
        return NULL;
    if (!(out = arena_array(a, (size_t)n, sizeof *out))) return NULL;
    for (int i = 0; i < n; i++) {
        if (!value_at(&list, (size_t)i, &v) || !value_f64(&v, &f) || !(f > 0)) return NULL;
        out[i] = (float)f;
    }
    return out;
}

static int read_scaling_type(const struct config *c, struct rope_hp *r, const char *dict,
                             struct err *e)
{
    struct str type = STR("default");
    if (!config_str(c, dict, "rope_type", &type)) config_str(c, dict, "type", &type);
    if (str_is(type, "proportional")) { /* read_hf_rope sets n_turn */
        r->n_turn = 1;
        type = config_has(c, dict, "factor") ? STR("linear") : STR("default");
    }
    if (c->arch->flags & ARCH_LONGROPE && (str_is(type, "su") || str_is(type, "yarn")))
        type = STR("longrope");
    if (!rope_scaling_by_name(type, &r->scaling))
        return err_set(e, E_UNSUPPORTED, "%s: config.json: rope type \"%.*s\" is not supported",
                       source_path(c->src), STR_ARG(str_take(type, 64)));
    return OK;
}

/* original_max_position_embeddings: the key at the top level wins, as in the reference library. */
static double read_orig_ctx(const struct config *c, const char *dict, int n_ctx)
{
    const char *name = "original_max_position_embeddings";
    double v;
    if (config_f64(c, "", name, &v)) return v;
    if (c->arch->orig_ctx) return c->arch->orig_ctx;
    if (config_f64(c, dict, name, &v)) return v;
    return n_ctx;
}

/* The scaling factor of positions, and the factor of cos and sin of yarn and longrope. */
static int read_rope_factor(const struct config *c, const struct hparams *hp, struct rope_hp *r,
                            const char *dict, struct err *e)
{
    double mscale = 0, mscale_all = 0;
    r->attn_factor = 1;
    r->factor = 1;
    if (r->scaling == ROPE_NONE) return OK;
    if (!config_f64(c, dict, "factor", &r->factor)) {
        if (r->scaling != ROPE_YARN && r->scaling != ROPE_LONGROPE)
            return err_set(e, E_FORMAT, "%s: config.json: %s scaling has no factor",
                           source_path(c->src), rope_scaling_name(r->scaling));
        r->factor = hp->n_ctx / r->orig_ctx;
    }
    if (r->scaling != ROPE_YARN && r->scaling != ROPE_LONGROPE) return OK;
    if (config_f64(c, dict, "attention_factor", &r->attn_factor)) return OK;
    config_f64(c, dict, "mscale", &mscale);
    config_f64(c, dict, "mscale_all_dim", &mscale_all);
    r->attn_factor = r->scaling == ROPE_YARN ? rotary_yarn_factor(r->factor, mscale, mscale_all)
                                             : rotary_long_factor(r->factor, r->orig_ctx);
    return OK;
}

/* The size of a head in the layers that use rotary embedding i. */
static int find_head_dim(const struct hparams *hp, int i)
{
    for (int l = 0; l < hp->n_layers; l++)
        if (hp->layers[l].rope == i && hp->layers[l].head_dim) return hp->layers[l].head_dim;
    return hp->layers[0].head_dim;
}

/* One rotary embedding. dict: the object with its parameters; theta: the default base. */
static int read_hf_rope(const struct config *c, struct hparams *hp, struct arena *a,
                        struct rope_hp *r, const char *dict, double theta, struct err *e)
{
    int dim = find_head_dim(hp, (int)(r - hp->rope));
    double partial = c->arch->flags & ARCH_PARTIAL_ROPE ? c->arch->partial : 1;
    int rc = read_scaling_type(c, r, dict, e);
    if (rc != OK) return rc;

    r->theta = theta;
    config_f64(c, dict, "rope_theta", &r->theta);
    if (c->arch->flags & ARCH_PARTIAL_ROPE &&
        !config_f64(c, dict, "partial_rotary_factor", &partial) &&
        !config_f64(c, "", "partial_rotary_factor", &partial))
        config_f64(c, "", "rotary_pct", &partial);
    if (!(partial > 0 && partial <= 1))
        return err_set(e, E_FORMAT,
                       "%s: config.json: partial_rotary_factor %g: must be above 0 and at most 1",
                       source_path(c->src), partial);
    r->n_rot = (int)(dim * partial);
    if (c->arch->flags & ARCH_PARTIAL_ROPE && !config_has(c, dict, "partial_rotary_factor") &&
        !config_has(c, "", "partial_rotary_factor"))
        config_int(c, "rotary_dim", &r->n_rot);
    if (r->n_turn) r->n_turn = r->n_rot / 2 * 2, r->n_rot = dim;
    r->reverse = c->arch->flags & ARCH_ROPE_BACK;
    r->max_ctx = hp->n_ctx;
    r->orig_ctx = read_orig_ctx(c, dict, hp->n_ctx);
    r->low_freq = 1;
    r->high_freq = 4;
    config_f64(c, dict, "low_freq_factor", &r->low_freq);
    config_f64(c, dict, "high_freq_factor", &r->high_freq);
    if (!config_f64(c, dict, "beta_fast", &r->beta_fast) || r->beta_fast == 0) r->beta_fast = 32;
    if (!config_f64(c, dict, "beta_slow", &r->beta_slow) || r->beta_slow == 0) r->beta_slow = 1;
    r->truncate = config_flag(c, dict, "truncate", true);
    if ((rc = read_rope_factor(c, hp, r, dict, e)) != OK) return rc;

    if (r->scaling == ROPE_LLAMA3 && !(r->high_freq > r->low_freq && r->low_freq > 0))
        return err_set(
            e, E_FORMAT,
            "%s: config.json: llama3 scaling: low_freq_factor %g must be positive and below "
            "high_freq_factor %g",
            source_path(c->src), r->low_freq, r->high_freq);
    if (r->scaling != ROPE_LONGROPE) return OK;
    r->long_factor = read_factor_list(c, a, dict, "long_factor", r->n_rot / 2);
    r->short_factor = read_factor_list(c, a, dict, "short_factor", r->n_rot / 2);
    if (r->long_factor && r->short_factor) return OK;
    if ((rc = arena_check(a, e)) != OK) return rc;
    return err_set(e, E_FORMAT, "%s: config.json: longrope needs %d short and long factors",
                   source_path(c->src), r->n_rot / 2);
}

/* The object holds rotary parameters. */
static bool has_rope_keys(const struct config *c, const char *dict)
{
    return config_has(c, dict, "rope_type") || config_has(c, dict, "type") ||
           config_has(c, dict, "factor") || config_has(c, dict, "rope_theta");
}

/* no_rope_layers is a list of 0 and 1; without it, every no_rope_layer_interval-th layer has
 * none. */
static void read_no_rope(const struct config *c, struct hparams *hp)
{
    int every = 4;
    bool listed = config_has(c, "", "no_rope_layers.0");
    config_int(c, "no_rope_layer_interval", &every);
    for (int l = 0; l < hp->n_layers; l++) {
        char key[64];
        int rotates = every < 1 || (l + 1) % every != 0;
        snprintf(key, sizeof key, "no_rope_layers.%d", l);
        if (listed && !config_int(c, key, &rotates)) rotates = config_bool(c, key, true);
        if (!rotates) hp->layers[l].rope = -1;
    }
}

/* layer_rope_theta: a base for each layer; 0: the layer has no rotary embedding. */
static int read_layer_thetas(const struct config *c, struct hparams *hp, struct err *e)
{
    double theta;

    for (int l = 0; l < hp->n_layers; l++) {
        int i = 0;
        if (!config_list_f64(c, "layer_rope_theta", l, &theta)) continue;
        if (l == 0 || theta == 0) {
            if (theta != 0) hp->rope[0].theta = theta;
            hp->layers[l].rope = theta != 0 ? 0 : -1;
            continue;
        }
        while (i < hp->n_rope && hp->rope[i].theta != theta) i++;
        if (i == ROPES)
            return config_refuse(c, "layer_rope_theta", "has more than 4 different values", e);
        if (i == hp->n_rope) {
            hp->rope[i] = hp->rope[0];
            hp->rope[i].theta = theta;
            hp->n_rope++;
        }
        hp->layers[l].rope = i;
    }
    return OK;
}

/* llama_4_scaling_beta: queries are multiplied by 1 + beta ln(1 + floor(pos / original context)). */
static void read_pos_scale(const struct config *c, struct hparams *hp, const char *dict)
{
    double beta = 0;

    config_f64(c, dict, "llama_4_scaling_beta", &beta);
    hp->pos_scale = (struct pos_scale_opt){ (float)beta, 0, (float)hp->rope[0].orig_ctx };
}

/* Compressed attention: layers with a window only have a rotary embedding of their own. Two more turn
 * back: they are applied to the output of attention, whose values are rotated keys. */
static int read_csa_ropes(const struct config *c, struct hparams *hp, struct arena *a, double theta,
                          struct err *e)
{
    bool fresh = config_has(c, "rope_parameters.main.", "rope_type") ||
                 config_has(c, "rope_parameters.compress.", "rope_type");
    int rc = read_hf_rope(c, hp, a, &hp->rope[0], "rope_parameters.main.", theta, e);

    if (rc == OK)
        rc = read_hf_rope(c, hp, a, &hp->rope[1],
                          fresh ? "rope_parameters.compress." : "rope_scaling.",
                          config_or(c, "compress_rope_theta", 160000), e);
    if (rc != OK) return rc;
    if (!fresh) hp->rope[1].attn_factor = 1; /* yarn changes the frequencies only */
    if (rotary_varies(&hp->rope[0]) || rotary_varies(&hp->rope[1]))
        return config_refuse(c, "rope_parameters", "has a type that depends on the length", e);
    hp->n_rope = 4;
    for (int i = 0; i < 2; i++) {
        config_int(c, "qk_rope_head_dim", &hp->rope[i].n_rot);
        hp->rope[2 + i] = hp->rope[i];
        hp->rope[2 + i].reverse = true;
    }
    for (int l = 0; l < hp->n_layers; l++) hp->layers[l].rope = hp->layers[l].mix.rate ? 1 : 0;
    return OK;
}

/* gpt_neox has its base in "rotary_emb_base" only. */
/* Without the key: thirds, as transformers has them by default. Text turns all sections alike. */
static void read_sections(const struct config *c, struct hparams *hp, const char *dict)
{
    int n = hp->rope[0].n_rot / 2;
    char list[64];

    snprintf(list, sizeof list, "%smrope_section", dict);
    for (int i = 0; i < 3; i++)
        if (!config_list_int(c, list, i, &hp->sections[i])) hp->sections[i] = (n + 2 - i) / 3;
}

int hparams_hf_ropes(const struct config *c, struct hparams *hp, struct arena *a, struct err *e)
{
    double theta = c->arch->theta != 0 ? c->arch->theta : 10000, local = c->arch->theta_window;
    const char *old = "rope_scaling.", *dict = has_rope_keys(c, old) ? old : "rope_parameters.";
    int rc = check_layer_types(c, hp, e);

    if (rc != OK) return rc;
    if (!config_f64(c, "", "rotary_emb_base", &theta) && !str_is(str_c(c->arch->hf[0]), "gpt_neox"))
        config_f64(c, "", "rope_theta", &theta);
    if (c->arch->mix == MIX_CSA) return read_csa_ropes(c, hp, a, theta, e);
    for (int l = 0; c->arch->flags & ARCH_ROPELESS && l < hp->n_layers; l++)
        hp->layers[l].rope = -1;
    if (c->arch->flags & ARCH_ROPELESS) return OK;
    if (c->arch->flags & ARCH_NO_ROPE) read_no_rope(c, hp);
    if (!(c->arch->flags & ARCH_TWO_ROPES)) {
        hp->n_rope = 1;
        rc = read_hf_rope(c, hp, a, &hp->rope[0], dict, theta, e);
        if (rc == OK && c->arch->flags & ARCH_LAYER_ROPE) rc = read_layer_thetas(c, hp, e);
        if (rc == OK && c->arch->flags & ARCH_POS_SCALE) read_pos_scale(c, hp, dict);
        if (rc == OK && c->arch->flags & ARCH_SECTIONS) read_sections(c, hp, dict);
        return rc;
    }
    for (int l = 0; l < hp->n_layers; l++)
        if (uses_second_rope(c, hp, l)) hp->layers[l].rope = 1;
    /* The old object describes the layers without a window only. */
    if (!config_f64(c, "", "rope_local_base_freq", &local))
        config_f64(c, "", "swa_rope_theta", &local);
    config_f64(c, "rope_parameters.full_attention.", "rope_theta", &theta);
    hp->n_rope = 2;
    rc = read_hf_rope(c, hp, a, &hp->rope[0], dict == old ? old : "rope_parameters.full_attention.",
                      theta, e);
    if (rc == OK)
        rc = read_hf_rope(c, hp, a, &hp->rope[1], "rope_parameters.sliding_attention.", local, e);
    return rc;
}
