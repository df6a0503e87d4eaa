#include "model/naming.h"

#include "model/rotary.h"

#include <stdio.h>

/* Does name fit the pattern, where '*' is a layer's number? */
static bool fits(const char *pattern, struct str name, int *layer)
{
    const char *star = strchr(pattern, '*');
    size_t n = star ? (size_t)(star - pattern) : 0, digits = 0;
    int64_t l;
    if (!star) return str_is(name, pattern);
    if (!str_starts(name, str_of(pattern, n))) return false;
    name = str_skip(name, n);
    while (digits < name.n && name.p[digits] >= '0' && name.p[digits] <= '9') digits++;
    if (!str_is(str_skip(name, digits), star + 1)) return false;
    if (!str_to_i64(str_take(name, digits), &l) || l < 0 || l > 65535) return false;
    *layer = (int)l;
    return true;
}

static struct str without_prefix(const struct hparams *hp, struct str name, bool head)
{
    struct str p = str_c(hp->prefix ? hp->prefix : "");
    if (head && str_ends(p, STR("model."))) p.n -= strlen("model.");
    return str_starts(name, p) ? str_skip(name, p.n) : str_of(NULL, 0);
}

bool naming_to_gguf(const struct hparams *hp, struct str hf_name, struct gguf_name *out)
{
    const struct tensor_row *r;
    int it = 0, l = 0;

    memset(out, 0, sizeof *out);
    if (str_ends(hf_name, STR("rotary_emb.inv_freq"))) return out->skip = true;
    for (r = arch_row(hp->info, &it); r; r = arch_row(hp->info, &it))
        if (r->hf && fits(r->hf, without_prefix(hp, hf_name, r->flags & ROW_HEAD), &l) &&
            l < hp->n_layers)
            break;
    if (!r) return false;

    out->skip = hp->tied && r->flags & ROW_HEAD && r->kind == ROW_MAT;
    if (!hparams_name(hp, r, l, SOURCE_GGUF, out->name, sizeof out->name)) return false;
    out->keep_f32 = r->kind == ROW_VEC || r->kind == ROW_SCALE;
    if (r->flags & ROW_NORM) out->add = hp->norm_bias1;
    if (hp->info->gguf_rope == ROPE_PAIR && hp->rope_style == ROPE_HALF) {
        if (r->flags & ROW_PERM_Q) out->permute = hp->layers[l].n_heads;
        if (r->flags & ROW_PERM_K) out->permute = hp->layers[l].n_kv_heads;
    }
    return true;
}

/* ---- keys ---- */

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

static void put_int(struct keys *k, const char *name, int v)
{
    ggufw_u32(k->w, key(k, name), (uint32_t)v);
}
static void put_f32(struct keys *k, const char *name, double v)
{
    ggufw_f32(k->w, key(k, name), (float)v);
}
static void put_str(struct keys *k, const char *name, const char *v)
{
    ggufw_str(k->w, key(k, name), str_c(v));
}

static void put_windows(struct keys *k)
{
    const struct hparams *hp = k->hp;
    struct arena a = { 0 };
    bool *list = arena_array(&a, (size_t)hp->n_layers, sizeof *list);
    int window = 0, n = 0;
    for (int l = 0; l < hp->n_layers; l++) {
        list[l] = hp->layers[l].window > 0 || hp->layers[l].rope == 1;
        n += list[l];
        if (hp->layers[l].window) window = hp->layers[l].window;
    }
    if (n || hp->info->window_every) {
        put_int(k, "attention.sliding_window", window);
        ggufw_bools(k->w, key(k, "attention.sliding_window_pattern"), list, (size_t)hp->n_layers);
    }
    if (hp->info->flags & ARCH_NO_ROPE) {
        for (int l = 0; l < hp->n_layers; l++) list[l] = hp->layers[l].rope >= 0;
        ggufw_bools(k->w, key(k, "rope.layers"), list, (size_t)hp->n_layers);
    }
    arena_release(&a);
}

static void put_rope(struct keys *k)
{
    const struct rope_hp *r = &k->hp->rope[0];
    put_int(k, "rope.dimension_count", r->n_rot);
    put_f32(k, "rope.freq_base", r->theta);
    if (k->hp->n_rope > 1) put_f32(k, "rope.freq_base_swa", k->hp->rope[1].theta);
    if (r->scaling == ROPE_NONE || r->scaling == ROPE_LLAMA3)
        return; /* llama3 is a tensor of divisors */
    put_str(k, "rope.scaling.type", rope_scaling_name(r->scaling));
    put_f32(k, "rope.scaling.factor", r->factor);
    if (r->scaling == ROPE_LINEAR || r->scaling == ROPE_DYNAMIC) return;
    put_int(k, "rope.scaling.original_context_length", (int)r->orig_ctx);
    if (r->scaling == ROPE_LONGROPE) {
        put_f32(k, "rope.scaling.attn_factor", r->attn_factor);
        return;
    }
    put_f32(k, "rope.scaling.attn_factor", r->attn_factor / rotary_yarn_factor(r->factor, 0, 0));
    put_f32(k, "rope.scaling.yarn_beta_fast", r->beta_fast);
    put_f32(k, "rope.scaling.yarn_beta_slow", r->beta_slow);
    if (!r->truncate) ggufw_bool(k->w, key(k, "rope.scaling.yarn_truncate"), false);
}

static void put_scales(struct keys *k)
{
    const struct hparams *hp = k->hp;
    if (hp->attn_scale != 0) put_f32(k, "attention.scale", hp->attn_scale);
    if (hp->info->flags & ARCH_MULTIPLIERS) {
        put_f32(k, "embedding_scale", hp->embd_scale);
        put_f32(k, "residual_scale", hp->residual_scale);
        put_f32(k, "logit_scale", 1 / hp->logit_scale);
    }
    if (hp->info->flags & ARCH_ATTN_CAP) put_f32(k, "attn_logit_softcapping", hp->attn_softcap);
    if (hp->info->flags & ARCH_LOGIT_CAP) put_f32(k, "final_logit_softcapping", hp->logit_softcap);
    if (hp->act != hp->info->act || hp->info->gguf_silu)
        put_str(k, "hidden_activation", act_name(hp->act));
}

void naming_keys(const struct hparams *hp, struct ggufw *w)
{
    struct keys k = { .hp = hp, .w = w };
    const struct layer_hp *first = &hp->layers[0];
    ggufw_str(w, "general.architecture", str_c(hp->arch));
    put_int(&k, "block_count", hp->n_layers);
    put_int(&k, "context_length", hp->n_ctx);
    put_int(&k, "embedding_length", hp->n_embd);
    put_int(&k, "feed_forward_length", first->n_ff);
    put_int(&k, "attention.head_count", first->n_heads);
    put_int(&k, "attention.head_count_kv", first->n_kv_heads);
    put_int(&k, "attention.key_length", first->head_dim);
    put_int(&k, "attention.value_length", first->head_dim_v);
    put_f32(&k, "attention.layer_norm_rms_epsilon", hp->norm_eps);
    put_int(&k, "vocab_size", hp->n_vocab);
    put_rope(&k);
    put_windows(&k);
    put_scales(&k);
}

int naming_extras(const struct hparams *hp, struct arena *a, struct gguf_extra out[2])
{
    const struct rope_hp *r = &hp->rope[0];
    int n = r->n_rot / 2;
    if (r->scaling == ROPE_LONGROPE) {
        out[0] = (struct gguf_extra){ "rope_factors_long.weight", r->long_factor, n };
        out[1] = (struct gguf_extra){ "rope_factors_short.weight", r->short_factor, n };
        return 2;
    }
    if (r->scaling == ROPE_LLAMA3) {
        struct rope_hp plain = *r;
        float *f = arena_array(a, (size_t)n, sizeof *f),
              *scaled = arena_array(a, (size_t)n, sizeof *f);
        plain.scaling = ROPE_NONE;
        rotary_freq(&plain, 0, f);
        rotary_freq(r, 0, scaled);
        for (int i = 0; i < n; i++) f[i] /= scaled[i];
        out[0] = (struct gguf_extra){ "rope_freqs.weight", f, n };
        return 1;
    }
    return 0;
}
