/* hparams.c - checks of hyper-parameters, and questions about the rows of the table.
 *
 * Every value from a file is checked here before anything is allocated by it: bounds keep products
 * of shapes within 32 bits and memory within reason. */
#include "model/hparams.h"

#include "model/model.h"

#include <math.h>
#include <stdio.h>

static const char *const scaling_names[ROPE_SCALINGS] = {
    "none", "linear", "llama3", "yarn", "longrope", "dynamic",
};

const char *rope_scaling_name(enum rope_scaling s) { return scaling_names[s]; }

bool rope_scaling_by_name(struct str name, enum rope_scaling *out)
{
    if (str_is(name, "default")) name = STR("none");
    for (int i = 0; i < ROPE_SCALINGS; i++)
        if (str_is(name, scaling_names[i])) {
            *out = (enum rope_scaling)i;
            return true;
        }
    return false;
}

/* Each flag of the row that the model or the layer contradicts excludes it. */
bool hparams_has(const struct hparams *hp, const struct tensor_row *r, int l)
{
    const struct layer_hp *w = row_in_layer(r) && l < hp->n_layers ? &hp->layers[l] : NULL;
    unsigned f = r->flags;

    if (w && (f & ROW_DENSE) && w->moe) return false;
    if (w && (f & ROW_MOE) && !w->moe) return false;
    if (w && (f & ROW_SHARED) && !w->n_ff) return false;
    if (w && (f & (ROW_MIXER | ROW_ATTN)) && ((f & ROW_ATTN) != 0) != (w->mix.kind == MIX_ATTN))
        return false;
    if (w && w->mix.kind == MIX_MLA && !w->mix.q_rank &&
        (r->rows == DIM_MIX_RANK || r->cols == DIM_MIX_RANK))
        return false;
    if (w && r->kind == ROW_Q_WHOLE && w->mix.q_rank) return false;
    if (f & ROW_QK && !hp->qk_norm) return false;
    if (f & ROW_AFFINE && hp->bare_norm) return false;
    if (f & ROW_LAST_NORM && !hp->last_norm) return false;
    if (f & ROW_ONE && hp->two_norms) return false;
    if (f & ROW_TWO && !hp->two_norms) return false;
    if (f & ROW_SEQ && hp->parallel) return false;
    if (f & ROW_PROJ && hp->n_word == hp->n_embd) return false;
    if (hp->from == SOURCE_HF && f & (hp->mxfp4 ? ROW_NO_MX : ROW_MX)) return false;
    if (f & ROW_HEAD && hp->tied && !row_is_vector(r)) return false;
    return hp->from == SOURCE_GGUF || !(f & ROW_BIASES) || hparams_needs(hp, r, l);
}

bool hparams_needs(const struct hparams *hp, const struct tensor_row *r, int l)
{
    unsigned f = r->flags;

    (void)l;
    if (f & ROW_OPTIONAL) return false;
    if (f & ROW_BIAS_QKV && !(hp->bias & BIAS_QKV)) return false;
    if (f & ROW_BIAS_O && !(hp->bias & BIAS_O)) return false;
    if (f & ROW_BIAS_MLP && !(hp->bias & BIAS_MLP)) return false;
    return !(f & ROW_BIAS_HEAD) || hp->bias & BIAS_HEAD;
}

int hparams_dim(const struct hparams *hp, enum dim d, int l)
{
    const struct layer_hp *w = &hp->layers[l < hp->n_layers ? l : 0];
    int q = w->n_heads * w->head_dim, k = w->n_kv_heads * w->head_dim,
        v = w->n_kv_heads * w->head_dim_v;
    switch (d) {
    case DIM_EMBD: return hp->n_embd;
    case DIM_Q: return q;
    case DIM_K: return w->mix.kind == MIX_MLA ? w->mix.kv_rank + w->mix.rope : k;
    case DIM_V: return v;
    case DIM_QKV: return q + k + v;
    case DIM_O: return mix_out(hp, l < hp->n_layers ? l : 0);
    case DIM_FF: return w->n_ff;
    case DIM_2FF: return 2 * w->n_ff;
    case DIM_HEAD: return w->head_dim;
    case DIM_VOCAB: return hp->n_vocab;
    case DIM_ONE: return 1;
    case DIM_WORD: return hp->n_word;
    case DIM_POS: return hp->n_ctx + hp->pos_skip;
    case DIM_HEADS: return w->n_heads;
    case DIM_KV_HEADS: return w->n_kv_heads;
    case DIM_EXPERTS: return hp->moe.n;
    case DIM_EXP_FF: return hp->moe.n_ff;
    case DIM_EXP_2FF: return 2 * hp->moe.n_ff;
    case DIM_TYPES: return hp->n_types;
    case DIM_2Q: return 2 * q;
    default: return hparams_mix_dim(hp, d, l < hp->n_layers ? l : 0);
    }
}

/* Only models with learned positions have a bound. */
int hparams_max_ctx(const struct hparams *hp)
{
    int it = 0;

    for (const struct tensor_row *r = arch_row(hp->info, &it); r; r = arch_row(hp->info, &it))
        if (r->rows == DIM_POS) return hp->n_ctx;
    return 0;
}

/* Names that do not fit are cut; cap is larger than any name of the table. */
bool hparams_name(const struct hparams *hp, const struct tensor_row *r, int l, int i,
                  enum source_kind world, char *out, size_t cap)
{
    const char *p = world == SOURCE_GGUF ? r->gguf : r->hf;
    const char *prefix = r->flags & ROW_HEAD ? hp->head_prefix : hp->prefix;
    size_t n = 0;

    if (!p) return false;
    if (world == SOURCE_HF && prefix) n = (size_t)snprintf(out, cap, "%s", prefix);
    for (; *p && n + 1 < cap; p++) {
        if (*p == '*') n += (size_t)snprintf(out + n, cap - n, "%d", l);
        else if (*p == '#') n += (size_t)snprintf(out + n, cap - n, "%d", i);
        else out[n++] = *p;
    }
    out[n < cap ? n : cap - 1] = '\0';
    return true;
}

/* ALiBi (Press et al.): 2^(-8 i / n). Heads beyond the largest power of two take the slopes
 * between. */
void hparams_slopes(const struct hparams *hp, int n_heads, float *slopes)
{
    int n = 1;

    while (2 * n <= n_heads) n *= 2;
    for (int h = 0; h < n_heads; h++) {
        double power = h < n ? (h + 1.0) / n : (2.0 * (h - n) + 1) / (2.0 * n);
        slopes[h] = (float)exp2(-(double)hp->alibi * power) * hp->alibi_scale;
    }
}

/* Layers with recurrent mixers have no heads; hparams_mix_check covers them. */
static int check_layer(const struct hparams *hp, int l, const char *path, struct err *e)
{
    const struct layer_hp *w = &hp->layers[l];
    int rc = hparams_mix_check(hp, l, path, e);
    if (rc != OK || (w->mix.kind != MIX_ATTN && w->mix.kind != MIX_MLA)) return rc;
    if (w->n_heads < 1 || w->n_heads > 65536 || w->n_kv_heads < 1 ||
        w->n_heads % w->n_kv_heads != 0)
        return err_set(e, E_FORMAT,
                       "%s: layer %d: %d heads cannot be divided evenly among %d KV heads", path, l,
                       w->n_heads, w->n_kv_heads);
    if (w->head_dim < 1 || w->head_dim > 65536 || w->head_dim_v < 1 || w->head_dim_v > 65536 ||
        (int64_t)w->n_heads * (w->head_dim + w->head_dim_v) > 1 << 24)
        return err_set(e, E_FORMAT, "%s: layer %d: %d heads of %d elements: out of range", path, l,
                       w->n_heads, w->head_dim);
    if (w->n_ff < !w->moe || w->n_ff > 1 << 24)
        return err_set(e, E_FORMAT, "%s: layer %d: a feed-forward width of %d: out of range", path,
                       l, w->n_ff);
    if (!isfinite(w->attn_scale))
        return err_set(e, E_FORMAT,
                       "%s: layer %d: the scale of attention scores is not a finite number", path,
                       l);
    if (w->rope >= 0) {
        int n_rot = hp->rope[w->rope].n_rot;
        if (n_rot < 2 || n_rot % 2 != 0 || n_rot > w->head_dim)
            return err_set(
                e, E_FORMAT,
                "%s: layer %d: a rotary embedding of %d of the %d elements of a head: must "
                "be even and at least 2",
                path, l, n_rot, w->head_dim);
    }
    return OK;
}

static bool is_positive(double v) { return v > 0 && isfinite(v); }

static int check_rope(const struct rope_hp *r, const char *path, struct err *e)
{
    if (!(r->theta > 1) || !isfinite(r->theta) || !is_positive(r->factor) ||
        !is_positive(r->attn_factor))
        return err_set(e, E_FORMAT,
                       "%s: rotary base %g with factor %g: must be above 1 and positive", path,
                       r->theta, r->factor);
    if (r->scaling == ROPE_NONE || r->scaling == ROPE_LINEAR) return OK;
    if (!is_positive(r->orig_ctx) || !is_positive(r->beta_fast) || !is_positive(r->beta_slow))
        return err_set(
            e, E_FORMAT,
            "%s: %s scaling from %g tokens: the original context and the betas must be positive",
            path, rope_scaling_name(r->scaling), r->orig_ctx);
    return OK;
}

/* The limits of the kernels (MOE_MAX_*) and consistency of the groups. */
static int check_moe(const struct moe_hp *m, const char *path, struct err *e)
{
    int size = m->n_groups ? m->n / m->n_groups : m->n;

    if (!m->n) return OK;
    if (m->n < 1 || m->n > MOE_MAX_EXPERTS || m->n_groups > MOE_MAX_GROUPS || m->n_used < 1 ||
        m->n_used > m->n || m->n_used > MOE_MAX_USED)
        return err_set(e, E_FORMAT,
                       "%s: %d of %d experts per token: out of range (at most %d of %d)", path,
                       m->n_used, m->n, MOE_MAX_USED, MOE_MAX_EXPERTS);
    if (m->n_ff < 1 || m->n_ff > 1 << 24 || !is_positive(m->scale) ||
        !(m->jitter >= 0 && isfinite(m->jitter)))
        return err_set(e, E_FORMAT,
                       "%s: experts of width %d with weights scaled by %g: out of range", path,
                       m->n_ff, (double)m->scale);
    if (m->n_groups &&
        (m->n % m->n_groups || m->n_groups_used < 1 || m->n_groups_used > m->n_groups ||
         m->group_top < 1 || m->group_top > size || m->n_used > m->n_groups_used * size))
        return err_set(e, E_FORMAT, "%s: %d of %d groups of %d experts: not consistent", path,
                       m->n_groups_used, m->n_groups, m->n);
    if (m->route == ROUTE_SPARSEMIXER && m->n_used != 2)
        return err_set(e, E_UNSUPPORTED,
                       "%s: sparsemixer routing needs 2 experts per token, not %d", path,
                       m->n_used);
    return OK;
}

/* Everything that later code relies on; ranges are generous. */
static int check_hparams(const struct hparams *hp, const char *path, struct err *e)
{
    int rc;
    if (hp->n_embd < 1 || hp->n_embd > 1 << 20)
        return err_set(e, E_FORMAT, "%s: a hidden size of %d: out of range", path, hp->n_embd);
    if (hp->n_ctx < 1)
        return err_set(e, E_FORMAT, "%s: a context of %d tokens: must be positive", path,
                       hp->n_ctx);
    if (!isfinite(hp->norm_eps) || hp->norm_eps < 0)
        return err_set(e, E_FORMAT, "%s: a norm epsilon of %g: must be finite and not negative",
                       path, (double)hp->norm_eps);
    if (!isfinite(hp->embd_scale * hp->residual_scale * hp->logit_scale) ||
        !isfinite(hp->attn_scale) || !isfinite(hp->attn_softcap) || !isfinite(hp->logit_softcap) ||
        !isfinite(hp->clip_qkv) || !isfinite(hp->alibi) || !isfinite(hp->alibi_scale))
        return err_set(e, E_FORMAT, "%s: a multiplier or soft cap is not a finite number", path);
    if (hp->n_word < 1 || hp->n_word > 1 << 20)
        return err_set(e, E_FORMAT, "%s: embeddings of width %d: out of range", path, hp->n_word);
    if ((rc = check_moe(&hp->moe, path, e)) != OK) return rc;
    for (int i = 0; i < hp->n_rope; i++)
        if ((rc = check_rope(&hp->rope[i], path, e)) != OK) return rc;
    for (int l = 0; l < hp->n_layers; l++)
        if ((rc = check_layer(hp, l, path, e)) != OK) return rc;
    return OK;
}

int hparams_read(struct hparams *hp, struct arena *a, const struct source *src, struct err *e)
{
    int rc;
    if (source_onnx(src))
        return err_set(e, E_UNSUPPORTED, "%s is an ONNX graph: it has no layers of its own",
                       source_path(src));
    *hp = (struct hparams){ .from = source_kind(src),
                            .embd_scale = 1,
                            .residual_scale = 1,
                            .logit_scale = 1,
                            .alibi_scale = 1,
                            .last_norm = true,
                            .moe = { .scale = 1 } };
    rc =
        hp->from == SOURCE_GGUF ? hparams_from_gguf(hp, a, src, e) : hparams_from_hf(hp, a, src, e);
    if (rc == OK) rc = hparams_pooling(hp, src, e);
    if (rc != OK) return rc;
    return check_hparams(hp, source_path(src), e);
}
