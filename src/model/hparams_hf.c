/* hparams_hf.c - hyper-parameters from config.json, with the meaning each model's library gives it:
 * old spellings (rope_scaling, rope_theta) beside new ones (rope_parameters), and the library's own
 * values where a key that is no shape is missing. */
#include "model/hparams.h"

#include "model/rotary.h"

#include <math.h>
#include <stdio.h>

struct config {
    const struct source *src;
    const char *in;              /* "" or "text_config." */
    const struct arch *arch;
};

struct key {
    char s[160];
};

static struct key key_of(const struct config *c, const char *dict, const char *name)
{
    struct key k;
    snprintf(k.s, sizeof k.s, "%s%s%s", c->in, dict, name);
    return k;
}

static bool has(const struct config *c, const char *dict, const char *name)
{
    struct value v;
    return source_key(c->src, key_of(c, dict, name).s, &v);
}

static bool get_f64(const struct config *c, const char *dict, const char *name, double *out)
{
    return source_f64(c->src, key_of(c, dict, name).s, out);
}

static bool get_int(const struct config *c, const char *name, int *out)
{
    int64_t v;
    if (!source_i64(c->src, key_of(c, "", name).s, &v) || v < 0 || v > INT32_MAX) return false;
    *out = (int)v;
    return true;
}

static bool get_bool(const struct config *c, const char *name, bool otherwise)
{
    bool b = otherwise;
    source_bool(c->src, key_of(c, "", name).s, &b);
    return b;
}

/* Written as null: not the same as left out, where a library has a value of its own. */
static bool is_null(const struct config *c, const char *name)
{
    struct key k = key_of(c, "", name);
    if (has(c, "", name)) return false;
    for (size_t i = 0; i < source_n_keys(c->src); i++)
        if (strcmp(source_key_name(c->src, i), k.s) == 0) return true;
    return false;
}

static double f64_or(const struct config *c, const char *name, double otherwise)
{
    double v = otherwise;
    if (get_f64(c, "", name, &v)) return v;
    return is_null(c, name) ? 0 : otherwise;
}

static int need_int(const struct config *c, const char *name, int *out, struct err *e)
{
    if (get_int(c, name, out) && *out > 0) return OK;
    if (has(c, "", name))
        return err_set(e, E_FORMAT, "%s: config.json: %s%s is not a positive number",
                       source_path(c->src), c->in, name);
    return err_set(e, E_FORMAT, "%s: config.json has no %s%s", source_path(c->src), c->in, name);
}

/* ---- which architecture, where its tensors are ---- */

static int find_arch(struct config *c, struct err *e)
{
    struct str type, in_text;
    if (!source_str(c->src, "model_type", &type))
        return err_set(e, E_FORMAT, "%s: config.json has no model_type", source_path(c->src));
    c->in = source_str(c->src, "text_config.model_type", &in_text) ? "text_config." : "";
    c->arch = arch_by_hf(type);
    if (!c->arch && c->in[0]) c->arch = arch_by_hf(in_text);
    if (!c->arch)
        return err_set(e, E_UNSUPPORTED, "%s: the architecture \"%.*s\" is not known; known are %s",
                       source_path(c->src), STR_ARG(str_take(type, 64)), arch_list(true));
    return OK;
}

static const char *find_prefix(const struct source *src)
{
    static const char *const prefixes[] = { "model.", "", "language_model.model.",
                                            "model.language_model." };
    char name[128];
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        snprintf(name, sizeof name, "%sembed_tokens.weight", prefixes[i]);
        if (source_find(src, name)) return prefixes[i];
    }
    return prefixes[0];
}

/* ---- windows ---- */

static bool layer_type_is(const struct config *c, int l, const char *name)
{
    char key[64];
    struct str s;
    snprintf(key, sizeof key, "layer_types.%d", l);
    return source_str(c->src, key_of(c, "", key).s, &s) && str_is(s, name);
}

/* Does layer l have the window, by the rule of the architecture where layer_types is missing? */
static bool sliding_by_rule(const struct config *c, const struct hparams *hp, int l)
{
    int every = c->arch->window_every, n = 0;
    if (c->arch->flags & ARCH_NO_ROPE) return hp->layers[l].rope < 0;
    if (c->arch->flags & ARCH_USE_WINDOW) {
        if (!get_int(c, "max_window_layers", &n)) n = 28;
        return l >= n;
    }
    if (every && get_int(c, "sliding_window_pattern", &n) && n > 0)
        every = n;
    return every == 0 || (l + 1) % every != 0;
}

static void read_windows(const struct config *c, struct hparams *hp)
{
    unsigned f = c->arch->flags;
    double wide = f64_or(c, "sliding_window", c->arch->window);
    int window = wide > 0 && wide < INT32_MAX ? (int)wide : 0;
    bool typed = f & ARCH_LAYER_TYPES && has(c, "", "layer_types.0");

    if (!(f & (ARCH_WINDOW | ARCH_LAYER_TYPES))) return;
    if (f & ARCH_USE_WINDOW && !(f & ARCH_USE_RULE && typed) &&
        !get_bool(c, "use_sliding_window", false))
        return;
    for (int l = 0; l < hp->n_layers; l++)
        if (typed ? layer_type_is(c, l, "sliding_attention") : sliding_by_rule(c, hp, l))
            hp->layers[l].window = window;
}

/* Where there are two rotary bases, a layer of the sliding kind takes the second. */
static bool layer_slides(const struct config *c, const struct hparams *hp, int l)
{
    return has(c, "", "layer_types.0") ? layer_type_is(c, l, "sliding_attention")
                                       : sliding_by_rule(c, hp, l);
}

/* ---- rotary ---- */

static const float *read_factors(const struct config *c, struct arena *a, const char *dict,
                                 const char *name, int n)
{
    struct value list, v;
    float *out;
    double f;
    if (!source_key(c->src, key_of(c, dict, name).s, &list) || list.kind != VALUE_LIST ||
        list.n != (size_t)n)
        return NULL;
    out = arena_array(a, (size_t)n, sizeof *out);
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
    if (!source_str(c->src, key_of(c, dict, "rope_type").s, &type))
        source_str(c->src, key_of(c, dict, "type").s, &type);
    if (c->arch->flags & ARCH_LONGROPE && (str_is(type, "su") || str_is(type, "yarn")))
        type = STR("longrope");
    if (!rope_scaling_by_name(type, &r->scaling))
        return err_set(e, E_UNSUPPORTED, "%s: config.json: rope type \"%.*s\" is not known",
                       source_path(c->src), STR_ARG(str_take(type, 64)));
    return OK;
}

/* original_max_position_embeddings: the one outside the dictionary wins, as its library has it. */
static double read_orig_ctx(const struct config *c, const char *dict, int n_ctx)
{
    const char *name = "original_max_position_embeddings";
    double v;
    if (get_f64(c, "", name, &v)) return v;
    if (c->arch->orig_ctx) return c->arch->orig_ctx;
    if (get_f64(c, dict, name, &v)) return v;
    return n_ctx;
}

/* The factor positions are stretched by, and the one yarn and longrope give cos and sin. */
static int read_rope_factor(const struct config *c, const struct hparams *hp, struct rope_hp *r,
                            const char *dict, struct err *e)
{
    double mscale = 0, mscale_all = 0;
    r->attn_factor = 1;
    r->factor = 1;
    if (r->scaling == ROPE_NONE) return OK;
    if (!get_f64(c, dict, "factor", &r->factor)) {
        if (r->scaling != ROPE_YARN && r->scaling != ROPE_LONGROPE)
            return err_set(e, E_FORMAT, "%s: config.json: %s scaling has no factor",
                           source_path(c->src), rope_scaling_name(r->scaling));
        r->factor = hp->n_ctx / r->orig_ctx;
    }
    if (r->scaling != ROPE_YARN && r->scaling != ROPE_LONGROPE) return OK;
    if (get_f64(c, dict, "attention_factor", &r->attn_factor)) return OK;
    get_f64(c, dict, "mscale", &mscale);
    get_f64(c, dict, "mscale_all_dim", &mscale_all);
    r->attn_factor = r->scaling == ROPE_YARN ? rotary_yarn_factor(r->factor, mscale, mscale_all)
                                             : rotary_long_factor(r->factor, r->orig_ctx);
    return OK;
}

static int read_rope(const struct config *c, struct hparams *hp, struct arena *a, struct rope_hp *r,
                     const char *dict, double theta, struct err *e)
{
    double partial = 1;
    int rc = read_scaling_type(c, r, dict, e);
    if (rc != OK) return rc;

    r->theta = theta;
    get_f64(c, dict, "rope_theta", &r->theta);
    if (c->arch->flags & ARCH_PARTIAL_ROPE && !get_f64(c, dict, "partial_rotary_factor", &partial))
        get_f64(c, "", "partial_rotary_factor", &partial);
    if (!(partial > 0 && partial <= 1))
        return err_set(e, E_FORMAT, "%s: config.json: partial_rotary_factor %g makes no sense",
                       source_path(c->src), partial);
    r->n_rot = (int)(hp->layers[0].head_dim * partial);
    r->max_ctx = hp->n_ctx;
    r->orig_ctx = read_orig_ctx(c, dict, hp->n_ctx);
    r->low_freq = 1;
    r->high_freq = 4;
    get_f64(c, dict, "low_freq_factor", &r->low_freq);
    get_f64(c, dict, "high_freq_factor", &r->high_freq);
    if (!get_f64(c, dict, "beta_fast", &r->beta_fast) || r->beta_fast == 0) r->beta_fast = 32;
    if (!get_f64(c, dict, "beta_slow", &r->beta_slow) || r->beta_slow == 0) r->beta_slow = 1;
    r->truncate = true;
    source_bool(c->src, key_of(c, dict, "truncate").s, &r->truncate);
    if ((rc = read_rope_factor(c, hp, r, dict, e)) != OK) return rc;

    if (r->scaling == ROPE_LLAMA3 && !(r->high_freq > r->low_freq && r->low_freq > 0))
        return err_set(e, E_FORMAT,
                       "%s: config.json: llama3 scaling between %g and %g makes no sense",
                       source_path(c->src), r->low_freq, r->high_freq);
    if (r->scaling != ROPE_LONGROPE) return OK;
    r->long_factor = read_factors(c, a, dict, "long_factor", r->n_rot / 2);
    r->short_factor = read_factors(c, a, dict, "short_factor", r->n_rot / 2);
    if (r->long_factor && r->short_factor) return OK;
    return err_set(e, E_FORMAT, "%s: config.json: longrope needs %d short and long factors",
                   source_path(c->src), r->n_rot / 2);
}

static bool is_dict(const struct config *c, const char *dict)
{
    return has(c, dict, "rope_type") || has(c, dict, "type") || has(c, dict, "factor") ||
           has(c, dict, "rope_theta");
}

static int read_ropes(const struct config *c, struct hparams *hp, struct arena *a, struct err *e)
{
    double theta = c->arch->theta, local = c->arch->theta_window;
    const char *old = "rope_scaling.", *dict = is_dict(c, old) ? old : "rope_parameters.";
    int rc;
    get_f64(c, "", "rope_theta", &theta);

    if (!(c->arch->flags & ARCH_TWO_ROPES)) {
        hp->n_rope = 1;
        return read_rope(c, hp, a, &hp->rope[0], dict, theta, e);
    }
    /* The old dictionary is about the layers without a window only. */
    get_f64(c, "", "rope_local_base_freq", &local);
    get_f64(c, "rope_parameters.full_attention.", "rope_theta", &theta);
    hp->n_rope = 2;
    rc = read_rope(c, hp, a, &hp->rope[0], dict == old ? old : "rope_parameters.full_attention.",
                   theta, e);
    if (rc == OK)
        rc = read_rope(c, hp, a, &hp->rope[1], "rope_parameters.sliding_attention.", local, e);
    for (int l = 0; l < hp->n_layers; l++)
        if (layer_slides(c, hp, l)) hp->layers[l].rope = 1;
    return rc;
}

static void read_no_rope(const struct config *c, struct hparams *hp)
{
    int every = 4;
    bool listed = has(c, "", "no_rope_layers.0");
    get_int(c, "no_rope_layer_interval", &every);
    for (int l = 0; l < hp->n_layers; l++) {
        char key[64];
        int turns = every < 1 || (l + 1) % every != 0;
        snprintf(key, sizeof key, "no_rope_layers.%d", l);
        if (listed && !get_int(c, key, &turns)) turns = get_bool(c, key, true);
        if (!turns) hp->layers[l].rope = -1;
    }
}

/* ---- the rest ---- */

static int read_act(const struct config *c, struct hparams *hp, struct err *e)
{
    struct str name;
    hp->act = c->arch->act;
    if (!source_str(c->src, key_of(c, "", c->arch->act_key).s, &name)) return OK;
    if (act_by_name(name, &hp->act)) return OK;
    return err_set(e, E_UNSUPPORTED, "%s: config.json: %s \"%.*s\" is not known",
                   source_path(c->src), c->arch->act_key, STR_ARG(str_take(name, 64)));
}

static void read_scales(const struct config *c, struct hparams *hp)
{
    unsigned f = c->arch->flags;
    double v;
    if (f & ARCH_EMBD_SQRT) hp->embd_scale = sqrtf((float)hp->n_embd);
    if (f & ARCH_QUERY_SCALAR)
        hp->attn_scale = (float)(1 / sqrt(f64_or(c, "query_pre_attn_scalar", 256)));
    if (f & ARCH_ATTN_CAP)
        hp->attn_softcap = (float)f64_or(c, "attn_logit_softcapping", c->arch->attn_cap);
    if (f & ARCH_LOGIT_CAP)
        hp->logit_softcap = (float)f64_or(c, "final_logit_softcapping", c->arch->logit_cap);
    if (f & ARCH_MULTIPLIERS) {
        hp->embd_scale = (float)f64_or(c, "embedding_multiplier", 1);
        hp->residual_scale = (float)f64_or(c, "residual_multiplier", 1);
        hp->attn_scale = (float)f64_or(c, "attention_multiplier", 1);
        v = f64_or(c, "logits_scaling", 1);
        hp->logit_scale = (float)(v != 0 ? 1 / v : 1);
    }
}

static int read_shapes(const struct config *c, struct hparams *hp, struct arena *a, struct err *e)
{
    struct layer_hp w = { 0 };
    int rc;
    if ((rc = need_int(c, "num_hidden_layers", &hp->n_layers, e)) != OK) return rc;
    if ((rc = need_int(c, "hidden_size", &hp->n_embd, e)) != OK) return rc;
    if ((rc = need_int(c, "num_attention_heads", &w.n_heads, e)) != OK) return rc;
    if (hp->n_layers > 65536)
        return err_set(e, E_FORMAT, "%s: %d layers make no sense", source_path(c->src),
                       hp->n_layers);
    get_int(c, "num_key_value_heads", &w.n_kv_heads);
    get_int(c, "head_dim", &w.head_dim);
    get_int(c, "intermediate_size", &w.n_ff);
    get_int(c, "vocab_size", &hp->n_vocab);
    if (!get_int(c, "max_position_embeddings", &hp->n_ctx)) hp->n_ctx = c->arch->n_ctx;
    hp->layers = arena_array(a, (size_t)hp->n_layers, sizeof *hp->layers);
    for (int l = 0; l < hp->n_layers; l++) hp->layers[l] = w;
    return hparams_infer(hp, c->src, e);
}

static bool read_tied(const struct config *c, const struct hparams *hp)
{
    char name[128];
    bool tied;
    struct str p = str_c(hp->prefix);
    if (source_bool(c->src, key_of(c, "", "tie_word_embeddings").s, &tied)) return tied;
    if (source_bool(c->src, "tie_word_embeddings", &tied)) return tied;
    if (str_ends(p, STR("model."))) p.n -= strlen("model.");
    snprintf(name, sizeof name, "%.*slm_head.weight", STR_ARG(p));
    return c->arch->tied || !source_find(c->src, name);
}

int hparams_from_hf(struct hparams *hp, struct arena *a, const struct source *src, struct err *e)
{
    struct config c = { .src = src, .in = "" };
    double eps;
    int rc;

    if ((rc = find_arch(&c, e)) != OK) return rc;
    hp->info = c.arch;
    hp->arch = c.arch->gguf;
    hp->prefix = find_prefix(src);
    hp->rope_style = ROPE_HALF;
    hp->norm_bias1 = c.arch->flags & ARCH_NORM1 ? 1 : 0;
    hp->qk_norm_whole = c.arch->flags & ARCH_QK_WHOLE;
    if ((rc = read_shapes(&c, hp, a, e)) != OK) return rc;

    eps = c.arch->eps;
    get_f64(&c, "", "rms_norm_eps", &eps);
    hp->norm_eps = (float)eps;
    hp->tied = read_tied(&c, hp);
    hp->attn_bias = get_bool(&c, "attention_bias", false);
    hp->mlp_bias = get_bool(&c, "mlp_bias", false);
    if (get_bool(&c, "use_bidirectional_attention", false))
        return err_set(e, E_UNSUPPORTED,
                       "%s: config.json: use_bidirectional_attention is not supported",
                       source_path(src));
    if ((rc = read_act(&c, hp, e)) != OK) return rc;
    if ((rc = read_ropes(&c, hp, a, e)) != OK) return rc;
    if (c.arch->flags & ARCH_NO_ROPE) read_no_rope(&c, hp);
    read_windows(&c, hp);
    read_scales(&c, hp);
    return OK;
}
