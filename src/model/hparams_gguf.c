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

static const struct source_tensor *find_in(const struct meta *m, int l, const char *name)
{
    char s[160];
    snprintf(s, sizeof s, "blk.%d.%s", l, name);
    return source_find(m->src, s);
}

/* ---- experts ---- */

static int read_route(const struct meta *m, struct moe_hp *x, int n_layers, struct err *e)
{
    static const enum route_kind routes[] = { ROUTE_SOFTMAX, ROUTE_SIGMOID, ROUTE_TOP_SOFTMAX };
    int func = 0;

    x->route = m->arch->moe.route;
    if (!get_int(m, "expert_gating_func", 0, &func) || func == 0) {
        /* Files that do not say: only sigmoid routers have a bias for the choice. */
        for (int l = 0; l < n_layers && x->route == ROUTE_SOFTMAX; l++)
            if (find_in(m, l, "exp_probs_b.bias")) x->route = ROUTE_SIGMOID;
        return OK;
    }
    if (func > 3)
        return err_set(e, E_UNSUPPORTED, "%s: the key %s is %d, which is not known",
                       source_path(m->src), key_of(m, "expert_gating_func").s, func);
    if (x->route != ROUTE_SPARSEMIXER) x->route = routes[func - 1];
    return OK;
}

static int read_moe(const struct meta *m, struct hparams *hp, struct err *e)
{
    struct moe_hp *x = &hp->moe;
    int rc;

    if (!get_int(m, "expert_count", 0, &x->n) || x->n == 0) return OK;
    if ((rc = need_int(m, "expert_used_count", 0, &x->n_used, e)) != OK) return rc;
    if ((rc = read_route(m, x, hp->n_layers, e)) != OK) return rc;
    if (!get_int(m, "expert_feed_forward_length", 0, &x->n_ff) && !m->arch->moe.dense_ff)
        get_int(m, "feed_forward_length", 0, &x->n_ff);
    x->norm = m->arch->moe.gguf_norm;
    source_bool(m->src, key_of(m, "expert_weights_norm").s, &x->norm);
    x->scale = (float)f64_or(m, "expert_weights_scale", 1);
    if (x->scale == 0) x->scale = 1;
    get_int(m, "expert_group_count", 0, &x->n_groups);
    get_int(m, "expert_group_used_count", 0, &x->n_groups_used);
    if (x->n_groups < 2) x->n_groups = 0;
    x->group_top = x->route == ROUTE_SIGMOID ? 2 : 1;
    x->jitter = (float)f64_or(m, "expert_jitter", 0.01);
    for (int l = 0; l < hp->n_layers; l++) {
        const struct source_tensor *down = find_in(m, l, "ffn_down_shexp.weight");
        struct layer_hp *w = &hp->layers[l];
        if (!find_in(m, l, "ffn_gate_inp.weight")) continue;
        w->moe = true;
        w->n_ff = down && down->n_dims == 2 && down->dims[1] < INT32_MAX ? (int)down->dims[1] : 0;
    }
    return OK;
}

/* ---- shapes ---- */

/* Kinds of blocks, where tensors tell. */
static void read_kind(const struct meta *m, struct hparams *hp)
{
    unsigned f = m->arch->flags;
    const struct source_tensor *pos = source_find(m->src, "position_embd.weight");
    const struct source_tensor *embd = source_find(m->src, "token_embd.weight");
    bool second = find_in(m, 0, "ffn_norm.weight"),
         any = second || find_in(m, 0, "attn_norm.weight") ||
               find_in(m, 0, "post_attention_norm.weight");

    hp->norm = m->arch->norm;
    hp->rope_style = m->arch->gguf_rope;
    hp->qk_norm_whole = f & ARCH_QK_WHOLE;
    hp->qk_norm = find_in(m, 0, "attn_q_norm.weight");
    hp->two_norms = find_in(m, 0, "attn_norm_2.weight");
    hp->parallel = f & ARCH_PARALLEL && (f & ARCH_PARALLEL_KEY || !second);
    if (f & ARCH_PARALLEL_KEY && !(f & ARCH_PARALLEL)) hp->parallel = !second;
    else if (f & ARCH_PARALLEL_KEY)
        source_bool(m->src, key_of(m, "use_parallel_residual").s, &hp->parallel);
    hp->bare_norm = f & ARCH_BARE_NORM || !any;
    hp->last_norm =
        f & ARCH_BARE_NORM || source_find(m->src, "output_norm.weight") || hp->bare_norm;
    source_bool(m->src, key_of(m, "norm_after").s, &hp->norm_after);
    if (hp->norm_after) hp->last_norm = false;
    source_bool(m->src, key_of(m, "last_norm").s, &hp->last_norm);
    source_bool(m->src, key_of(m, "norm_residual").s, &hp->norm_residual);
    if (pos && pos->dims[0] > hp->n_ctx && pos->dims[0] < INT32_MAX)
        hp->pos_skip = (int)pos->dims[0] - hp->n_ctx;
    hp->n_word = hp->n_embd;
    if (embd && source_find(m->src, "token_embd_in.weight") && embd->dims[1] < INT32_MAX)
        hp->n_word = (int)embd->dims[1];
}

static int read_shapes(const struct meta *m, struct hparams *hp, struct arena *a, struct err *e)
{
    int rc, extra = 0;
    if ((rc = need_int(m, "block_count", 0, &hp->n_layers, e)) != OK) return rc;
    /* Layers that only guess ahead come last and are not run. */
    if (get_int(m, "nextn_predict_layers", 0, &extra) && extra < hp->n_layers)
        hp->n_layers -= extra;
    if ((rc = need_int(m, "embedding_length", 0, &hp->n_embd, e)) != OK) return rc;
    if ((rc = need_int(m, "context_length", 0, &hp->n_ctx, e)) != OK) return rc;
    if (hp->n_layers > 65536)
        return err_set(e, E_FORMAT, "%s: %d layers make no sense", source_path(m->src),
                       hp->n_layers);
    hp->layers = arena_array(a, (size_t)hp->n_layers, sizeof *hp->layers);
    for (int l = 0; l < hp->n_layers; l++) {
        struct layer_hp *w = &hp->layers[l];
        if (!get_int(m, "attention.head_count", l, &w->n_heads) && !m->arch->mix &&
            (rc = need_int(m, "attention.head_count", l, &w->n_heads, e)) != OK)
            return rc;
        get_int(m, "attention.head_count_kv", l, &w->n_kv_heads);
        get_int(m, "attention.key_length", l, &w->head_dim);
        get_int(m, "attention.value_length", l, &w->head_dim_v);
        get_int(m, "feed_forward_length", l, &w->n_ff);
    }
    read_kind(m, hp);
    if ((rc = read_moe(m, hp, e)) != OK) return rc;
    if (m->arch->mix && (rc = hparams_mix_gguf(hp, m->src, e)) != OK) return rc;
    if (m->arch->encoder) hparams_encoder_gguf(hp, m->src);
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

/* Which layers turn, where not all do. */
static void read_turns(const struct meta *m, struct hparams *hp, int window)
{
    unsigned f = m->arch->flags;

    for (int l = 0; l < hp->n_layers; l++) {
        struct layer_hp *w = &hp->layers[l];
        int turns = 1;
        if (f & ARCH_NO_ROPE) turns = (l + 1) % 4 != 0;
        if (f & ARCH_ROPE_SLIDING) turns = w->window > 0 || (f & ARCH_ROPE_ALL && window == 0);
        get_int(m, "rope.layers", l, &turns);
        if (!turns || hp->n_rope == 0) w->rope = -1;
    }
}

static void read_windows(const struct meta *m, struct hparams *hp)
{
    bool keyed = m->arch->flags & ARCH_WINDOW_KEYED;
    int window = m->arch->window_every && !keyed ? m->arch->window : 0;
    get_int(m, "attention.sliding_window", 0, &window);
    for (int l = 0; l < hp->n_layers; l++) {
        bool s = (window > 0 || (m->arch->flags & ARCH_TWO_ROPES && !keyed)) && slides(m, l);
        hp->layers[l].window = s ? window : 0;
        if (s && hp->n_rope > 1) hp->layers[l].rope = 1;
    }
    read_turns(m, hp, window);
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

    if (m->arch->flags & ARCH_ROPELESS || hp->alibi != 0) return OK;
    hp->n_rope = 1;
    r->theta = f64_or(m, "rope.freq_base", 10000);
    r->n_rot = hp->layers[0].head_dim;
    get_int(m, "rope.dimension_count", 0, &r->n_rot);
    r->max_ctx = hp->n_ctx;
    r->orig_ctx = f64_or(m, "rope.scaling.original_context_length", hp->n_ctx);
    r->beta_fast = f64_or(m, "rope.scaling.yarn_beta_fast", 32);
    r->beta_slow = f64_or(m, "rope.scaling.yarn_beta_slow", 1);
    r->truncate = !str_is(str_c(m->arch->gguf), "gpt-oss");
    source_bool(m->src, key_of(m, "rope.scaling.yarn_truncate").s, &r->truncate);
    r->attn_factor = f64_or(m, "rope.scaling.attn_factor", 1);
    r->attn_factor_long = f64_or(m, "rope.scaling.attn_factor_long", 0);
    source_bool(m->src, key_of(m, "rope.scaling.always_short").s, &r->always_short);
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
        double theta = m->arch->flags & ARCH_WINDOW_KEYED ? r->theta : m->arch->theta_window;
        hp->n_rope = 2;
        hp->rope[1] = (struct rope_hp){ .theta = f64_or(m, "rope.freq_base_swa", theta),
                                        .n_rot = r->n_rot,
                                        .factor = 1,
                                        .attn_factor = 1,
                                        .max_ctx = hp->n_ctx };
    }
    return OK;
}

/* ALiBi and what is done to scores; before the rotary part, which ALiBi stands for. */
static void read_alibi(const struct meta *m, struct hparams *hp)
{
    hp->alibi = (float)f64_or(m, "attention.max_alibi_bias", m->arch->flags & ARCH_ALIBI ? 8 : 0);
    if (str_is(str_c(m->arch->gguf), "falcon"))
        hp->alibi_scale = 1 / sqrtf((float)hp->layers[0].head_dim);
    hp->clip_qkv = (float)f64_or(m, "attention.clamp_kqv", 0);
}

/* attention.scale: one number, or one a layer. */
static void read_attn_scale(const struct meta *m, struct hparams *hp)
{
    struct value list, v;
    double f;

    if (!source_key(m->src, key_of(m, "attention.scale").s, &list)) return;
    if (value_f64(&list, &f) && f != 0) hp->attn_scale = (float)f;
    for (int l = 0; l < hp->n_layers; l++)
        if (value_at(&list, (size_t)l, &v) && value_f64(&v, &f))
            hp->layers[l].attn_scale = (float)f;
}

static void read_scales(const struct meta *m, struct hparams *hp)
{
    double v;
    if (m->arch->flags & ARCH_EMBD_SQRT) hp->embd_scale = sqrtf((float)hp->n_embd);
    if (get_f64(m, "embedding_scale", &v) && v != 0) hp->embd_scale = (float)v;
    if (get_f64(m, "residual_scale", &v) && v != 0) hp->residual_scale = (float)v;
    if (hp->n_layers == m->arch->gguf_wide)
        hp->attn_scale = 1 / sqrtf((float)hp->n_embd / (float)hp->layers[0].n_heads);
    read_attn_scale(m, hp);
    if (m->arch->flags & ARCH_LOGIT_SCALE)
        hp->logit_scale = (float)f64_or(m, "logit_scale", m->arch->logit_scale);
    if (m->arch->flags & ARCH_MULTIPLIERS && get_f64(m, "logit_scale", &v) && v != 0)
        hp->logit_scale = (float)(1 / v); /* granite's divides */
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
    static const char *const eps_keys[] = { "attention.layer_norm_rms_epsilon",
                                            "attention.layer_norm_epsilon" };
    struct meta m = { .src = src };
    double eps;
    int rc;

    if ((rc = find_arch(&m, e)) != OK) return rc;
    hp->info = m.arch;
    hp->arch = m.arch->gguf;
    if ((rc = read_shapes(&m, hp, a, e)) != OK) return rc;
    if (!get_f64(&m, eps_keys[hp->norm], &eps) && !get_f64(&m, eps_keys[!hp->norm], &eps))
        return err_set(e, E_FORMAT, "%s: the key %s is missing", source_path(src),
                       key_of(&m, eps_keys[hp->norm]).s);
    hp->norm_eps = (float)eps;
    hp->tied = !source_find(src, "output.weight");
    if ((rc = read_act(&m, hp, e)) != OK) return rc;
    read_alibi(&m, hp);
    if ((rc = read_rope(&m, hp, a, e)) != OK) return rc;
    read_windows(&m, hp);
    read_scales(&m, hp);
    if (m.arch->mix) hparams_mix_gguf_rest(hp, src);
    if (m.arch->encoder) hparams_encoder_gguf_rest(hp, src);
    return OK;
}
