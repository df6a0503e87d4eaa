/* hparams_gguf.c - hyper-parameters from the metadata of a GGUF file.
 *
 * Keys begin with the name of the architecture ("llama.block_count"). What keys do not say is read
 * from the tensors: which blocks exist, and the rotary factors. Defaults for missing keys are those
 * of llama.cpp. */
#include "model/metakeys.h"

#include "kernel/quant.h"
#include "model/hparams.h"
#include "model/rotary.h"

#include <math.h>
#include <stdio.h>

struct meta {
    struct metakeys keys;
    const struct source *src;
    const struct arch *arch;
};

static int find_gguf_arch(struct meta *m, struct err *e)
{
    struct str name;
    char near[256];
    if (!source_str(m->src, "general.architecture", &name))
        return err_set(e, E_FORMAT, "%s: the key general.architecture is missing",
                       source_path(m->src));
    m->arch = arch_by_gguf(name);
    if (!m->arch)
        return err_set(
            e, E_UNSUPPORTED,
            "%s: the architecture \"%.*s\" is not supported; of the %d that are, the nearest "
            "names are %s",
            source_path(m->src), STR_ARG(str_take(name, 64)), arch_count(),
            arch_near(name, false, near, sizeof near));
    if (m->arch->flags & ARCH_FOLDER)
        return err_set(e, E_UNSUPPORTED,
                       "%s: GGUF files of %s are not supported yet: use the Hugging Face folder",
                       source_path(m->src), m->arch->gguf);
    m->keys = (struct metakeys){ m->src, arch_named(m->arch, name) };
    return OK;
}

/* ---- experts ---- */

/* expert_gating_func: 1 softmax, 2 sigmoid, 3 softmax over the selected; 0: not given. */
static int read_route(const struct meta *m, struct moe_hp *x, int n_layers, struct err *e)
{
    static const enum route_kind routes[] = { ROUTE_SOFTMAX, ROUTE_SIGMOID, ROUTE_TOP_SOFTMAX };
    int func = 0;

    x->route = m->arch->moe.route;
    if (!metakeys_int(&m->keys, "expert_gating_func", 0, &func) || func == 0) {
        /* Without the key: only sigmoid routers have a selection bias. */
        for (int l = 0; l < n_layers && x->route == ROUTE_SOFTMAX; l++)
            if (metakeys_tensor(&m->keys, l, "exp_probs_b.bias")) x->route = ROUTE_SIGMOID;
        return OK;
    }
    if (func > 3)
        return err_set(e, E_UNSUPPORTED, "%s: the key %s is %d: must be between 1 and 3",
                       source_path(m->src), metakeys_name(&m->keys, "expert_gating_func").s, func);
    if (x->route != ROUTE_SPARSEMIXER) x->route = routes[func - 1];
    return OK;
}

/* A layer has experts if it has a router tensor; the width of its shared expert is that of the
 * tensor. */
static int read_gguf_moe(const struct meta *m, struct hparams *hp, struct err *e)
{
    struct moe_hp *x = &hp->moe;
    int rc;

    if (!metakeys_int(&m->keys, "expert_count", 0, &x->n) || x->n == 0) return OK;
    if ((rc = metakeys_need(&m->keys, "expert_used_count", 0, &x->n_used, e)) != OK) return rc;
    if ((rc = read_route(m, x, hp->n_layers, e)) != OK) return rc;
    if (!metakeys_int(&m->keys, "expert_feed_forward_length", 0, &x->n_ff) &&
        !m->arch->moe.dense_ff)
        metakeys_int(&m->keys, "feed_forward_length", 0, &x->n_ff);
    x->norm = m->arch->moe.gguf_norm;
    source_bool(m->src, metakeys_name(&m->keys, "expert_weights_norm").s, &x->norm);
    x->scale = (float)metakeys_f64_or(&m->keys, "expert_weights_scale", 1);
    if (x->scale == 0) x->scale = 1;
    metakeys_int(&m->keys, "expert_group_count", 0, &x->n_groups);
    metakeys_int(&m->keys, "expert_group_used_count", 0, &x->n_groups_used);
    if (x->n_groups < 2) x->n_groups = 0;
    x->group_top = x->route == ROUTE_SIGMOID ? 2 : 1;
    x->jitter = (float)metakeys_f64_or(&m->keys, "expert_jitter", 0.01);
    for (int l = 0; l < hp->n_layers; l++) {
        const struct source_tensor *down = metakeys_tensor(&m->keys, l, "ffn_down_shexp.weight");
        struct layer_hp *w = &hp->layers[l];
        if (!metakeys_tensor(&m->keys, l, "ffn_gate_inp.weight")) continue;
        w->moe = true;
        w->n_ff = down && down->n_dims == 2 && down->dims[1] < INT32_MAX ? (int)down->dims[1] : 0;
    }
    return OK;
}

/* ---- shapes ---- */

/* Properties that the presence and shape of tensors show. */
static void read_blocks(const struct meta *m, struct hparams *hp)
{
    uint64_t f = m->arch->flags;
    const struct source_tensor *pos = source_find(m->src, "position_embd.weight");
    const struct source_tensor *embd = source_find(m->src, "token_embd.weight");
    bool second = metakeys_tensor(&m->keys, 0, "ffn_norm.weight"),
         any = second || metakeys_tensor(&m->keys, 0, "attn_norm.weight") ||
               metakeys_tensor(&m->keys, 0, "post_attention_norm.weight");

    hp->norm = m->arch->norm;
    hp->rope_style = m->arch->gguf_rope;
    hp->qk_norm_whole = f & ARCH_QK_WHOLE;
    hp->qk_norm = metakeys_tensor(&m->keys, 0, "attn_q_norm.weight");
    hp->two_norms = metakeys_tensor(&m->keys, 0, "attn_norm_2.weight");
    hp->parallel = f & ARCH_PARALLEL && (f & ARCH_PARALLEL_KEY || !second);
    if (f & ARCH_PARALLEL_KEY && !(f & ARCH_PARALLEL)) hp->parallel = !second;
    else if (f & ARCH_PARALLEL_KEY)
        source_bool(m->src, metakeys_name(&m->keys, "use_parallel_residual").s, &hp->parallel);
    hp->bare_norm = f & ARCH_BARE_NORM || !any;
    hp->last_norm =
        f & ARCH_BARE_NORM || source_find(m->src, "output_norm.weight") || hp->bare_norm;
    source_bool(m->src, metakeys_name(&m->keys, "norm_after").s, &hp->norm_after);
    if (hp->norm_after) hp->last_norm = false;
    source_bool(m->src, metakeys_name(&m->keys, "last_norm").s, &hp->last_norm);
    source_bool(m->src, metakeys_name(&m->keys, "norm_residual").s, &hp->norm_residual);
    if (pos && pos->dims[0] > hp->n_ctx && pos->dims[0] < INT32_MAX)
        hp->pos_skip = (int)pos->dims[0] - hp->n_ctx;
    hp->n_word = hp->n_embd;
    if (embd && source_find(m->src, "token_embd_in.weight") && embd->dims[1] < INT32_MAX)
        hp->n_word = (int)embd->dims[1];
}

/* Per-layer values may be lists. */
static int read_gguf_shapes(const struct meta *m, struct hparams *hp, struct arena *a,
                            struct err *e)
{
    int rc, extra = 0;
    if ((rc = metakeys_need(&m->keys, "block_count", 0, &hp->n_layers, e)) != OK) return rc;
    /* Layers for multi-token prediction come last and are not used. */
    if (metakeys_int(&m->keys, "nextn_predict_layers", 0, &extra) && extra < hp->n_layers)
        hp->n_layers -= extra;
    if ((rc = metakeys_need(&m->keys, "embedding_length", 0, &hp->n_embd, e)) != OK) return rc;
    if ((rc = metakeys_need(&m->keys, "context_length", 0, &hp->n_ctx, e)) != OK) return rc;
    if (hp->n_layers > 65536)
        return err_set(e, E_FORMAT, "%s: %d layers: at most 65536 are supported",
                       source_path(m->src), hp->n_layers);
    hp->layers = arena_array(a, (size_t)hp->n_layers, sizeof *hp->layers);
    if (!hp->layers) return err_nomem(e, "the layers of a model");
    for (int l = 0; l < hp->n_layers; l++) {
        struct layer_hp *w = &hp->layers[l];
        if (!metakeys_int(&m->keys, "attention.head_count", l, &w->n_heads) && !m->arch->mix &&
            (rc = metakeys_need(&m->keys, "attention.head_count", l, &w->n_heads, e)) != OK)
            return rc;
        metakeys_int(&m->keys, "attention.head_count_kv", l, &w->n_kv_heads);
        metakeys_int(&m->keys, "attention.key_length", l, &w->head_dim);
        metakeys_int(&m->keys, "attention.value_length", l, &w->head_dim_v);
        metakeys_int(&m->keys, "feed_forward_length", l, &w->n_ff);
        w->mix.gate = m->arch->flags & ARCH_GATE;
    }
    read_blocks(m, hp);
    if ((rc = read_gguf_moe(m, hp, e)) != OK) return rc;
    if (m->arch->mix && (rc = hparams_mix_gguf(hp, m->src, e)) != OK) return rc;
    if (m->arch->encoder) hparams_encoder_gguf(hp, m->src);
    if (hparams_own_gguf_known(m->arch) && (rc = hparams_own_gguf_shapes(hp, m->src, e)) != OK)
        return rc;
    return hparams_infer(hp, m->src, e);
}

/* Layer l has a sliding window. sliding_window_pattern is a list of booleans, or n: all layers but
 * every n-th have it. */
bool hparams_gguf_window(const struct metakeys *k, const struct arch *a, int l)
{
    struct value v;
    int n = a->window_every, yes;
    bool there = source_key(k->src, metakeys_name(k, "attention.sliding_window_pattern").s, &v);
    if (there && v.kind == VALUE_LIST)
        return metakeys_int(k, "attention.sliding_window_pattern", l, &yes) && yes;
    if (there) metakeys_int(k, "attention.sliding_window_pattern", l, &n);
    return n < 1 || (l + 1) % n != 0;
}

/* Which layers have rotary embedding. */
static void read_rope_layers(const struct meta *m, struct hparams *hp, int window)
{
    uint64_t f = m->arch->flags;

    for (int l = 0; l < hp->n_layers; l++) {
        struct layer_hp *w = &hp->layers[l];
        int rotates = 1;
        if (f & ARCH_NO_ROPE) rotates = (l + 1) % 4 != 0;
        if (f & ARCH_ROPE_SLIDING) rotates = w->window > 0 || (f & ARCH_ROPE_ALL && window == 0);
        /* granite's switch of the rotary embedding */
        if (f & ARCH_MULTIPLIERS) metakeys_int(&m->keys, "rope.scaling.finetuned", 0, &rotates);
        metakeys_int(&m->keys, "attention.rope_pattern", l, &rotates);
        metakeys_int(&m->keys, "rope.layers", l, &rotates);
        if (!rotates || hp->n_rope == 0) w->rope = -1;
    }
}

/* Without the window key, families with a fixed pattern use their default window. */
static void read_gguf_windows(const struct meta *m, struct hparams *hp)
{
    bool keyed = m->arch->flags & ARCH_WINDOW_KEYED;
    int window = m->arch->window_every && !keyed ? m->arch->window : 0;
    metakeys_int(&m->keys, "attention.sliding_window", 0, &window);
    for (int l = 0; l < hp->n_layers; l++) {
        bool s = (window > 0 || (m->arch->flags & ARCH_TWO_ROPES && !keyed)) &&
                 hparams_gguf_window(&m->keys, m->arch, l);
        hp->layers[l].window = s ? window : 0;
        if (s && hp->n_rope > 1) hp->layers[l].rope = 1;
    }
    read_rope_layers(m, hp, window);
}

/* Rotary factors that GGUF stores as a tensor of n elements; *out stays NULL if it is missing. */
static int read_factor_tensor(const struct meta *m, struct arena *a, const char *name, int n,
                              const float **out, struct err *e)
{
    const struct source_tensor *t = source_find(m->src, name);
    float *f;
    if (!t) return OK;
    if (t->n_dims != 1 || t->dims[0] != n || (t->type != DT_F32 && t->type != DT_F16))
        return err_set(e, E_FORMAT, "%s: tensor %s is %s with %lld elements, expected F32 with %d",
                       source_path(m->src), name, dtype_name((int)t->type), (long long)t->dims[0],
                       n);
    if (!(f = arena_array(a, (size_t)n, sizeof *f))) return err_nomem(e, "rotary factors");
    quant_decode(t->type, t->data, f, n);
    for (int i = 0; i < n; i++)
        if (!(f[i] > 0) || !isfinite(f[i]))
            return err_set(e, E_FORMAT, "%s: tensor %s has the element %g: must be positive",
                           source_path(m->src), name, (double)f[i]);
    *out = f;
    return OK;
}

/* Older files have rope.scale_linear instead of a type. */
static int read_scaling(const struct meta *m, struct rope_hp *r, struct err *e)
{
    struct str type;
    double factor = metakeys_f64_or(&m->keys, "rope.scaling.factor",
                                    metakeys_f64_or(&m->keys, "rope.scale_linear", 0));
    if (source_str(m->src, metakeys_name(&m->keys, "rope.scaling.type").s, &type)) {
        if (!rope_scaling_by_name(type, &r->scaling) || r->scaling == ROPE_LLAMA3)
            return err_set(e, E_UNSUPPORTED, "%s: %s \"%.*s\" is not supported",
                           source_path(m->src), metakeys_name(&m->keys, "rope.scaling.type").s,
                           STR_ARG(str_take(type, 64)));
    } else if (factor > 0 && factor != 1) {
        r->scaling = ROPE_LINEAR;
    }
    r->factor = factor > 0 ? factor : 1;
    return OK;
}

/* The second rotary embedding, of layers with a window, has no scaling in GGUF. */
static int read_gguf_rope(const struct meta *m, struct hparams *hp, struct arena *a, struct err *e)
{
    struct rope_hp *r = &hp->rope[0];
    int rc;

    if (m->arch->flags & ARCH_ROPELESS || hp->alibi != 0) return OK;
    hp->n_rope = 1;
    r->theta = metakeys_f64_or(&m->keys, "rope.freq_base", 10000);
    r->n_rot = hp->layers[0].head_dim;
    metakeys_int(&m->keys, "rope.dimension_count", 0, &r->n_rot);
    r->max_ctx = hp->n_ctx;
    r->orig_ctx = metakeys_f64_or(&m->keys, "rope.scaling.original_context_length", hp->n_ctx);
    r->beta_fast = metakeys_f64_or(&m->keys, "rope.scaling.yarn_beta_fast", 32);
    r->beta_slow = metakeys_f64_or(&m->keys, "rope.scaling.yarn_beta_slow", 1);
    r->truncate = !str_is(str_c(m->arch->gguf), "gpt-oss");
    source_bool(m->src, metakeys_name(&m->keys, "rope.scaling.yarn_truncate").s, &r->truncate);
    r->attn_factor = metakeys_f64_or(&m->keys, "rope.scaling.attn_factor", 1);
    r->attn_factor_long = metakeys_f64_or(&m->keys, "rope.scaling.attn_factor_long", 0);
    source_bool(m->src, metakeys_name(&m->keys, "rope.scaling.always_short").s, &r->always_short);
    if ((rc = read_scaling(m, r, e)) != OK) return rc;
    if (r->scaling == ROPE_YARN) r->attn_factor *= rotary_yarn_factor(r->factor, 0, 0);

    if ((rc = read_factor_tensor(m, a, "rope_freqs.weight", r->n_rot / 2, &r->freq_factors, e)) !=
        OK)
        return rc;
    if ((rc = read_factor_tensor(m, a, "rope_factors_long.weight", r->n_rot / 2, &r->long_factor,
                                 e)) != OK)
        return rc;
    if ((rc = read_factor_tensor(m, a, "rope_factors_short.weight", r->n_rot / 2, &r->short_factor,
                                 e)) != OK)
        return rc;
    if (r->long_factor && r->short_factor)
        r->scaling = ROPE_LONGROPE; /* older files have no type key */
    else if (r->scaling == ROPE_LONGROPE)
        return err_set(
            e, E_FORMAT,
            "%s: longrope needs the tensors rope_factors_long.weight and rope_factors_short.weight",
            source_path(m->src));

    if (m->arch->flags & ARCH_TWO_ROPES) {
        double theta = m->arch->flags & ARCH_WINDOW_KEYED ? r->theta : m->arch->theta_window;
        hp->n_rope = 2;
        hp->rope[1] =
            (struct rope_hp){ .theta = metakeys_f64_or(&m->keys, "rope.freq_base_swa", theta),
                              .n_rot = r->n_rot,
                              .factor = 1,
                              .attn_factor = 1,
                              .max_ctx = hp->n_ctx };
    }
    return OK;
}

/* ALiBi and clipping. Read before the rotary embedding, which ALiBi replaces. */
static void read_alibi(const struct meta *m, struct hparams *hp)
{
    hp->alibi = (float)metakeys_f64_or(&m->keys, "attention.max_alibi_bias",
                                       m->arch->flags & ARCH_ALIBI ? 8 : 0);
    if (str_is(str_c(m->arch->gguf), "falcon"))
        hp->alibi_scale = 1 / sqrtf((float)hp->layers[0].head_dim);
    hp->clip_qkv = (float)metakeys_f64_or(&m->keys, "attention.clamp_kqv", 0);
}

/* attention.scale: one value, or one per layer. */
static void read_attn_scale(const struct meta *m, struct hparams *hp)
{
    struct value list, v;
    double f;

    if (!source_key(m->src, metakeys_name(&m->keys, "attention.scale").s, &list)) return;
    if (value_f64(&list, &f) && f != 0) hp->attn_scale = (float)f;
    for (int l = 0; l < hp->n_layers; l++)
        if (value_at(&list, (size_t)l, &v) && value_f64(&v, &f))
            hp->layers[l].attn_scale = (float)f;
}

static void read_gguf_scales(const struct meta *m, struct hparams *hp)
{
    double v;
    if (m->arch->flags & ARCH_EMBD_SQRT) hp->embd_scale = sqrtf((float)hp->n_embd);
    if (metakeys_f64(&m->keys, "embedding_scale", &v) && v != 0) hp->embd_scale = (float)v;
    if (metakeys_f64(&m->keys, "residual_scale", &v) && v != 0) hp->residual_scale = (float)v;
    if (hp->n_layers == m->arch->gguf_wide)
        hp->attn_scale = 1 / sqrtf((float)hp->n_embd / (float)hp->layers[0].n_heads);
    read_attn_scale(m, hp);
    if (m->arch->flags & ARCH_LOGIT_SCALE)
        hp->logit_scale = (float)metakeys_f64_or(&m->keys, "logit_scale", m->arch->logit_scale);
    if (m->arch->flags & ARCH_MULTIPLIERS && metakeys_f64(&m->keys, "logit_scale", &v) && v != 0)
        hp->logit_scale = (float)(1 / v); /* granite divides by it */
    if (m->arch->flags & ARCH_ATTN_CAP)
        hp->attn_softcap =
            (float)metakeys_f64_or(&m->keys, "attn_logit_softcapping", m->arch->attn_cap);
    if (m->arch->flags & ARCH_LOGIT_CAP)
        hp->logit_softcap =
            (float)metakeys_f64_or(&m->keys, "final_logit_softcapping", m->arch->logit_cap);
}

static int read_gguf_act(const struct meta *m, struct hparams *hp, struct err *e)
{
    struct str name;
    hp->act = m->arch->gguf_silu ? ACT_SILU : m->arch->act;
    if (!source_str(m->src, metakeys_name(&m->keys, "hidden_activation").s, &name) ||
        act_by_name(name, &hp->act))
        return OK;
    return err_set(e, E_UNSUPPORTED, "%s: %s \"%.*s\" is not supported", source_path(m->src),
                   metakeys_name(&m->keys, "hidden_activation").s, STR_ARG(str_take(name, 64)));
}

/* Order matters: shapes first, ALiBi before the rotary embedding, windows after it. */
int hparams_from_gguf(struct hparams *hp, struct arena *a, const struct source *src, struct err *e)
{
    static const char *const eps_keys[] = { "attention.layer_norm_rms_epsilon",
                                            "attention.layer_norm_epsilon" };
    struct meta m = { .src = src };
    double eps;
    int rc;

    if ((rc = find_gguf_arch(&m, e)) != OK) return rc;
    hp->info = m.arch;
    hp->arch = m.keys.arch;
    if ((rc = read_gguf_shapes(&m, hp, a, e)) != OK) return rc;
    if (!metakeys_f64(&m.keys, eps_keys[hp->norm], &eps) &&
        !metakeys_f64(&m.keys, eps_keys[!hp->norm], &eps))
        return err_set(e, E_FORMAT, "%s: the key %s is missing", source_path(src),
                       metakeys_name(&m.keys, eps_keys[hp->norm]).s);
    hp->norm_eps = (float)eps;
    hp->tied = !source_find(src, "output.weight");
    if (str_is(str_c(hp->arch), "gemma-embedding")) hp->encoder = true;
    if ((rc = read_gguf_act(&m, hp, e)) != OK) return rc;
    read_alibi(&m, hp);
    if ((rc = read_gguf_rope(&m, hp, a, e)) != OK) return rc;
    read_gguf_windows(&m, hp);
    read_gguf_scales(&m, hp);
    if (m.arch->mix) hparams_mix_gguf_rest(hp, src);
    if (m.arch->encoder) hparams_encoder_gguf_rest(hp, src);
    if (hparams_own_gguf_known(m.arch)) hparams_own_gguf(hp, src);
    return OK;
}
