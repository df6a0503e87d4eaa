/* hparams_gguf.c - hyper-parameters from the metadata of a GGUF file: keys that begin with the
 * architecture's name, and the few tensors that hold rotary factors. */
#include "model/hparams.h"

#include "kernel/quant.h"
#include "model/rotary.h"

#include <math.h>
#include <stdio.h>

struct meta {
    const struct source *src;
    const struct arch *arch;
};

struct key {
    char s[160];
};

static struct key key_of(const struct meta *m, const char *name)
{
    struct key k;
    snprintf(k.s, sizeof k.s, "%s.%s", m->arch->gguf, name);
    return k;
}

static bool get_f64(const struct meta *m, const char *name, double *out)
{
    return source_f64(m->src, key_of(m, name).s, out);
}

static double f64_or(const struct meta *m, const char *name, double otherwise)
{
    double v = otherwise;
    get_f64(m, name, &v);
    return v;
}

/* A number for all layers or a list with one for each; false: not there, or not for this layer. */
static bool get_int(const struct meta *m, const char *name, int l, int *out)
{
    struct value v, list;
    int64_t i;
    if (!source_key(m->src, key_of(m, name).s, &v)) return false;
    if (v.kind == VALUE_LIST) {
        list = v;
        if (!value_at(&list, (size_t)l, &v)) return false;
    }
    if (v.kind == VALUE_BOOL) i = v.b;
    else if (!value_i64(&v, &i)) return false;
    if (i < 0 || i > INT32_MAX) return false;
    *out = (int)i;
    return true;
}

static int need_int(const struct meta *m, const char *name, int l, int *out, struct err *e)
{
    if (get_int(m, name, l, out) && *out > 0) return OK;
    return err_set(e, E_FORMAT, "%s: the key %s is missing or no positive number",
                   source_path(m->src), key_of(m, name).s);
}

static int find_arch(struct meta *m, struct err *e)
{
    struct str name;
    if (!source_str(m->src, "general.architecture", &name))
        return err_set(e, E_FORMAT, "%s: the key general.architecture is missing",
                       source_path(m->src));
    m->arch = arch_by_gguf(name);
    if (!m->arch)
        return err_set(e, E_UNSUPPORTED, "%s: the architecture \"%.*s\" is not known; known are %s",
                       source_path(m->src), STR_ARG(str_take(name, 64)), arch_list(false));
    return OK;
}

static int read_shapes(const struct meta *m, struct hparams *hp, struct arena *a, struct err *e)
{
    int rc;
    if ((rc = need_int(m, "block_count", 0, &hp->n_layers, e)) != OK) return rc;
    if ((rc = need_int(m, "embedding_length", 0, &hp->n_embd, e)) != OK) return rc;
    if ((rc = need_int(m, "context_length", 0, &hp->n_ctx, e)) != OK) return rc;
    if (hp->n_layers > 65536)
        return err_set(e, E_FORMAT, "%s: %d layers make no sense", source_path(m->src),
                       hp->n_layers);
    hp->layers = arena_array(a, (size_t)hp->n_layers, sizeof *hp->layers);
    for (int l = 0; l < hp->n_layers; l++) {
        struct layer_hp *w = &hp->layers[l];
        if ((rc = need_int(m, "attention.head_count", l, &w->n_heads, e)) != OK) return rc;
        get_int(m, "attention.head_count_kv", l, &w->n_kv_heads);
        get_int(m, "attention.key_length", l, &w->head_dim);
        get_int(m, "attention.value_length", l, &w->head_dim_v);
        get_int(m, "feed_forward_length", l, &w->n_ff);
    }
    return hparams_infer(hp, m->src, e);
}

/* sliding_window_pattern: a list of who slides, or n: all but every n-th do. */
static bool slides(const struct meta *m, int l)
{
    struct value v;
    int n = m->arch->window_every, yes;
    bool there = source_key(m->src, key_of(m, "attention.sliding_window_pattern").s, &v);
    if (there && v.kind == VALUE_LIST)
        return get_int(m, "attention.sliding_window_pattern", l, &yes) && yes;
    if (there) get_int(m, "attention.sliding_window_pattern", l, &n);
    return n < 1 || (l + 1) % n != 0;
}

static void read_windows(const struct meta *m, struct hparams *hp)
{
    int window = m->arch->window_every ? m->arch->window : 0;
    get_int(m, "attention.sliding_window", 0, &window);
    for (int l = 0; l < hp->n_layers; l++) {
        int turns;
        bool s = (window > 0 || m->arch->flags & ARCH_TWO_ROPES) && slides(m, l);
        hp->layers[l].window = s ? window : 0;
        if (s && m->arch->flags & ARCH_TWO_ROPES) hp->layers[l].rope = 1;
        if (m->arch->flags & ARCH_NO_ROPE) {
            if (!get_int(m, "rope.layers", l, &turns)) turns = (l + 1) % 4 != 0;
            if (!turns) hp->layers[l].rope = -1;
        }
    }
}

static int read_factors(const struct meta *m, struct arena *a, const char *name, int n,
                        const float **out, struct err *e)
{
    const struct source_tensor *t = source_find(m->src, name);
    float *f;
    if (!t) return OK;
    if (t->n_dims != 1 || t->dims[0] != n || !quant_can_decode(t->type))
        return err_set(e, E_FORMAT, "%s: tensor %s is %s with %lld numbers, expected %d",
                       source_path(m->src), name, dtype_name((int)t->type), (long long)t->dims[0],
                       n);
    f = arena_array(a, (size_t)n, sizeof *f);
    quant_decode(t->type, t->data, f, n);
    for (int i = 0; i < n; i++)
        if (!(f[i] > 0) || !isfinite(f[i]))
            return err_set(e, E_FORMAT, "%s: tensor %s holds %g", source_path(m->src), name,
                           (double)f[i]);
    *out = f;
    return OK;
}

static int read_scaling(const struct meta *m, struct rope_hp *r, struct err *e)
{
    struct str type;
    double factor = f64_or(m, "rope.scaling.factor", f64_or(m, "rope.scale_linear", 0));
    if (source_str(m->src, key_of(m, "rope.scaling.type").s, &type)) {
        if (!rope_scaling_by_name(type, &r->scaling) || r->scaling == ROPE_LLAMA3)
            return err_set(e, E_UNSUPPORTED, "%s: %s \"%.*s\" is not known", source_path(m->src),
                           key_of(m, "rope.scaling.type").s, STR_ARG(str_take(type, 64)));
    } else if (factor > 0 && factor != 1) {
        r->scaling = ROPE_LINEAR;
    }
    r->factor = factor > 0 ? factor : 1;
    return OK;
}

static int read_rope(const struct meta *m, struct hparams *hp, struct arena *a, struct err *e)
{
    struct rope_hp *r = &hp->rope[0];
    int rc;

    hp->n_rope = 1;
    r->theta = f64_or(m, "rope.freq_base", 10000);
    r->n_rot = hp->layers[0].head_dim;
    get_int(m, "rope.dimension_count", 0, &r->n_rot);
    r->max_ctx = hp->n_ctx;
    r->orig_ctx = f64_or(m, "rope.scaling.original_context_length", hp->n_ctx);
    r->beta_fast = f64_or(m, "rope.scaling.yarn_beta_fast", 32);
    r->beta_slow = f64_or(m, "rope.scaling.yarn_beta_slow", 1);
    r->truncate = true;
    source_bool(m->src, key_of(m, "rope.scaling.yarn_truncate").s, &r->truncate);
    r->attn_factor = f64_or(m, "rope.scaling.attn_factor", 1);
    if ((rc = read_scaling(m, r, e)) != OK) return rc;
    if (r->scaling == ROPE_YARN) r->attn_factor *= rotary_yarn_factor(r->factor, 0, 0);

    if ((rc = read_factors(m, a, "rope_freqs.weight", r->n_rot / 2, &r->freq_factors, e)) != OK)
        return rc;
    if ((rc = read_factors(m, a, "rope_factors_long.weight", r->n_rot / 2, &r->long_factor, e)) !=
        OK)
        return rc;
    if ((rc = read_factors(m, a, "rope_factors_short.weight", r->n_rot / 2, &r->short_factor, e)) !=
        OK)
        return rc;
    if (r->long_factor && r->short_factor)
        r->scaling = ROPE_LONGROPE; /* older files name no type */
    else if (r->scaling == ROPE_LONGROPE)
        return err_set(
            e, E_FORMAT,
            "%s: longrope without rope_factors_long.weight and rope_factors_short.weight",
            source_path(m->src));

    if (m->arch->flags & ARCH_TWO_ROPES) {
        hp->n_rope = 2;
        hp->rope[1] =
            (struct rope_hp){ .theta = f64_or(m, "rope.freq_base_swa", m->arch->theta_window),
                              .n_rot = r->n_rot,
                              .factor = 1,
                              .attn_factor = 1,
                              .max_ctx = hp->n_ctx };
    }
    return OK;
}

static void read_scales(const struct meta *m, struct hparams *hp)
{
    double v;
    if (m->arch->flags & ARCH_EMBD_SQRT) hp->embd_scale = sqrtf((float)hp->n_embd);
    if (get_f64(m, "embedding_scale", &v) && v != 0) hp->embd_scale = (float)v;
    if (get_f64(m, "residual_scale", &v) && v != 0) hp->residual_scale = (float)v;
    if (hp->n_layers == m->arch->gguf_wide)
        hp->attn_scale = 1 / sqrtf((float)hp->n_embd / (float)hp->layers[0].n_heads);
    if (get_f64(m, "attention.scale", &v) && v != 0) hp->attn_scale = (float)v;
    if (m->arch->flags & ARCH_MULTIPLIERS && get_f64(m, "logit_scale", &v) && v != 0)
        hp->logit_scale = (float)(1 / v);                    /* granite's divides */
    if (m->arch->flags & ARCH_ATTN_CAP)
        hp->attn_softcap = (float)f64_or(m, "attn_logit_softcapping", m->arch->attn_cap);
    if (m->arch->flags & ARCH_LOGIT_CAP)
        hp->logit_softcap = (float)f64_or(m, "final_logit_softcapping", m->arch->logit_cap);
}

static int read_act(const struct meta *m, struct hparams *hp, struct err *e)
{
    struct str name;
    hp->act = m->arch->gguf_silu ? ACT_SILU : m->arch->act;
    if (!source_str(m->src, key_of(m, "hidden_activation").s, &name) || act_by_name(name, &hp->act))
        return OK;
    return err_set(e, E_UNSUPPORTED, "%s: %s \"%.*s\" is not known", source_path(m->src),
                   key_of(m, "hidden_activation").s, STR_ARG(str_take(name, 64)));
}

int hparams_from_gguf(struct hparams *hp, struct arena *a, const struct source *src, struct err *e)
{
    struct meta m = { .src = src };
    double eps;
    int rc;

    if ((rc = find_arch(&m, e)) != OK) return rc;
    hp->info = m.arch;
    hp->arch = m.arch->gguf;
    hp->rope_style = m.arch->gguf_rope;
    hp->qk_norm_whole = m.arch->flags & ARCH_QK_WHOLE;
    if ((rc = read_shapes(&m, hp, a, e)) != OK) return rc;
    if (!get_f64(&m, "attention.layer_norm_rms_epsilon", &eps))
        return err_set(e, E_FORMAT, "%s: the key %s is missing", source_path(src),
                       key_of(&m, "attention.layer_norm_rms_epsilon").s);
    hp->norm_eps = (float)eps;
    hp->tied = !source_find(src, "output.weight");
    if ((rc = read_act(&m, hp, e)) != OK) return rc;
    if ((rc = read_rope(&m, hp, a, e)) != OK) return rc;
    read_windows(&m, hp);
    read_scales(&m, hp);
    return OK;
}
