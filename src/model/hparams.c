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

/* A layer that reads another one's keys and values has no rows for them; one whose values are its
 * keys has none for values. */
static bool row_fits_kv(const struct layer_hp *w, const struct tensor_row *r)
{
    bool keys = r->at == offsetof(struct layer, wk) || r->at == offsetof(struct layer, bk) ||
                r->at == offsetof(struct layer, k_norm),
         values = r->at == offsetof(struct layer, wv) || r->at == offsetof(struct layer, bv);

    return !(w->kv_of && (keys || values)) && !(w->k_is_v && values);
}

/* Each flag of the row that the model or the layer contradicts excludes it. */
bool hparams_has(const struct hparams *hp, const struct tensor_row *r, int l)
{
    const struct layer_hp *w = row_in_layer(r) && l < hp->n_layers ? &hp->layers[l] : NULL;
    uint64_t f = r->flags;

    if (w && (f & ROW_DENSE) && w->moe) return false;
    if (w && (f & ROW_MOE) && !w->moe) return false;
    if (w && (f & ROW_SHARED) && !w->n_ff) return false;
    if (w && (f & ROW_ATTN) && !layer_attends(w)) return false;
    if (w && (f & ROW_MIXER) && (w->mix.kind == MIX_ATTN || w->mix.kind == MIX_NONE)) return false;
    if (w && (f & ROW_MIXED) && w->mix.kind == MIX_NONE) return false;
    if (w && (f & ROW_FFN) && w->no_ffn) return false;
    if (w && (f & ROW_SSM_NORM) && !w->mix.normed) return false;
    if (w && (f & ROW_EVEN) && l % 2) return false;
    if (w && (f & ROW_INDEX) && (!w->index.n_heads || w->index.shared)) return false;
    if (w && (f & ROW_HASH) && !w->hash) return false;
    if (w && (f & ROW_NO_HASH) && w->hash) return false;
    if (w && (f & ROW_COMPRESS) && !w->mix.rate) return false;
    if (w && !row_fits_kv(w, r)) return false;
    if (f & ROW_LATENT && !hp->moe.n_in) return false;
    if (f & ROW_PLE && !hp->n_ple) return false;
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
    uint64_t f = r->flags;

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
    case DIM_INDEX_Q: return w->index.n_heads * w->index.head_dim;
    case DIM_INDEX_K: return w->index.head_dim;
    case DIM_INDEX_HEADS: return w->index.n_heads;
    case DIM_HYPER: return hp->hyper.n * hp->n_embd;
    case DIM_HYPER_N: return hp->hyper.n;
    case DIM_HYPER_MIX: return (2 + hp->hyper.n) * hp->hyper.n;
    case DIM_THREE: return 3;
    case DIM_USED: return hp->moe.n_used;
    case DIM_RATE: return w->mix.rate;
    case DIM_RAW: return w->head_dim * (w->mix.overlap ? 2 : 1);
    case DIM_INDEX_RAW: return 2 * w->index.head_dim;
    case DIM_O_GROUP: return w->mix.o_groups ? q / w->mix.o_groups : 0;
    case DIM_QUERY_IN: return w->mix.q_rank ? w->mix.q_rank : hp->n_embd;
    case DIM_PLE_VOCAB: return hp->n_ple_vocab;
    case DIM_STREAMS: return hp->altup.n;
    case DIM_STREAMS1: return hp->altup.n - 1;
    case DIM_STREAMS2: return hp->altup.n * hp->altup.n;
    case DIM_LAUREL: return hp->altup.rank;
    case DIM_PLE: return hp->n_ple;
    case DIM_PLES: return hp->n_ple * hp->n_layers;
    case DIM_EXP_IN: return hp->moe.n_in ? hp->moe.n_in : hp->n_embd;
    case DIM_ROUTES: return hp->moe.n + hp->moe.n_zero;
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
bool hparams_is_joined(const struct hparams *hp)
{
    for (int l = 0; l < hp->n_layers; l++)
        if (hp->layers[l].kv_of || hp->layers[l].index.shared) return true;
    return hp->n_ple || hp->altup.n || hp->hyper.n || hp->moe.late;
}

bool hparams_name(const struct hparams *hp, const struct tensor_row *r, int l, int i,
                  enum source_kind world, char *out, size_t cap)
{
    const char *p = world == SOURCE_GGUF ? r->gguf : r->hf;
    const char *prefix = r->flags & ROW_HEAD ? hp->head_prefix : hp->prefix;
    bool pairs = hp->info && hp->info->flags & ARCH_PAIRS;
    size_t n = 0;

    if (!p) return false;
    if (world == SOURCE_HF && prefix) n = (size_t)snprintf(out, cap, "%s", prefix);
    for (; *p && n + 1 < cap; p++) {
        if (*p == '*')
            n += (size_t)snprintf(out + n, cap - n, "%d", world == SOURCE_HF && pairs ? l / 2 : l);
        else if (*p == '@') n += (size_t)snprintf(out + n, cap - n, "%d", l % 2);
        else if (*p == '#') n += (size_t)snprintf(out + n, cap - n, "%d", i);
        else out[n++] = *p;
    }
    out[n < cap ? n : cap - 1] = '\0';
    return true;
}

/* ALiBi (Press et al.): 2^(-8 i / n). Heads beyond the largest power of two take the slopes
 * between. */
void hparams_slopes(const struct hparams *hp, int n_heads, int first, int n, float *slopes)
{
    int two = 1;

    while (2 * two <= n_heads) two *= 2;
    for (int h = first; h < first + n; h++) {
        double power = h < two ? (h + 1.0) / two : (2.0 * (h - two) + 1) / (2.0 * two);
        slopes[h - first] = (float)exp2(-(double)hp->alibi * power) * hp->alibi_scale;
    }
}

/* Layers with recurrent mixers have no heads; hparams_mix_check covers them. */
static int check_layer(const struct hparams *hp, int l, const char *path, struct err *e)
{
    const struct layer_hp *w = &hp->layers[l];
    int rc = hparams_mix_check(hp, l, path, e);
    if (rc != OK || !layer_caches(w)) return rc;
    if (w->n_heads < 1 || w->n_heads > 65536 || w->n_kv_heads < 1 ||
        w->n_heads % w->n_kv_heads != 0)
        return err_set(e, E_FORMAT,
                       "%s: layer %d: %d heads cannot be divided evenly among %d KV heads", path, l,
                       w->n_heads, w->n_kv_heads);
    if (w->head_dim < 1 || w->head_dim > 65536 || w->head_dim_v < 1 || w->head_dim_v > 65536 ||
        (int64_t)w->n_heads * (w->head_dim + w->head_dim_v) > 1 << 24)
        return err_set(e, E_FORMAT, "%s: layer %d: %d heads of %d elements: out of range", path, l,
                       w->n_heads, w->head_dim);
    if (w->n_ff < (!w->moe && !w->no_ffn) || w->n_ff > 1 << 24)
        return err_set(e, E_FORMAT, "%s: layer %d: a feed-forward width of %d: out of range", path,
                       l, w->n_ff);
    if (w->index.n_heads < 0 || w->index.n_heads > 4096 || w->index.head_dim < 0 ||
        w->index.head_dim > 4096 || (w->index.n_heads && w->index.top < 1) || w->index.block < 0 ||
        w->index.block > 4096 || w->index.local < 0)
        return err_set(e, E_FORMAT,
                       "%s: layer %d: an indexer of %d heads of %d elements that keeps %d: out of "
                       "range",
                       path, l, w->index.n_heads, w->index.head_dim, w->index.top);
    if (w->index.n_heads && (w->rope < 0 || hp->rope[w->rope].n_rot > w->index.head_dim))
        return err_set(
            e, E_FORMAT,
            "%s: layer %d: index keys of %d elements are shorter than the rotary embedding", path,
            l, w->index.head_dim);
    if (w->chunk < 0 || w->kv_of < 0 || w->kv_of > l)
        return err_set(e, E_FORMAT,
                       "%s: layer %d: chunks of %d positions, keys of layer %d: out of range", path,
                       l, w->chunk, w->kv_of - 1);
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
    if (m->n < 1 || m->n > MOE_MAX_EXPERTS || m->n_zero < 0 || m->n_zero > MOE_MAX_EXPERTS - m->n ||
        m->n_groups > MOE_MAX_GROUPS || m->n_used < 1 || m->n_used > m->n + m->n_zero ||
        m->n_used > MOE_MAX_USED)
        return err_set(e, E_FORMAT,
                       "%s: %d of %d experts per token: out of range (at most %d of %d)", path,
                       m->n_used, m->n, MOE_MAX_USED, MOE_MAX_EXPERTS);
    if (m->n_ff < 1 || m->n_ff > 1 << 24 || m->n_in < 0 || m->n_in > 1 << 20 ||
        !is_positive(m->scale) || !(m->jitter >= 0 && isfinite(m->jitter)))
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
        !isfinite(hp->clip_qkv) || !isfinite(hp->alibi) || !isfinite(hp->alibi_scale) ||
        !isfinite(hp->k_scale) || !isfinite(hp->v_scale) || !isfinite(hp->pos_scale.beta) ||
        !(hp->pos_scale.beta == 0 || hp->pos_scale.step > 0))
        return err_set(e, E_FORMAT, "%s: a multiplier or soft cap is not a finite number", path);
    if (hp->n_word < 1 || hp->n_word > 1 << 20)
        return err_set(e, E_FORMAT, "%s: embeddings of width %d: out of range", path, hp->n_word);
    if (hp->altup.n < 0 || hp->altup.n == 1 || hp->altup.n > STREAMS || hp->altup.active < 0 ||
        (hp->altup.n && (hp->altup.active >= hp->altup.n || hp->altup.rank < 1 ||
                         hp->altup.rank > 1 << 16 || !hp->n_ple)))
        return err_set(e, E_FORMAT, "%s: %d residual streams, of which %d is active: out of range",
                       path, hp->altup.n, hp->altup.active);
    if (hp->hyper.n < 0 || hp->hyper.n > STREAMS || hp->hyper.iters < 0 || hp->hyper.iters > 1000 ||
        !isfinite(hp->hyper.eps))
        return err_set(e, E_FORMAT, "%s: %d residual streams, mixed %d times: out of range", path,
                       hp->hyper.n, hp->hyper.iters);
    if (hp->n_ple && (hp->n_ple_vocab < 1 || hp->n_ple_vocab > hp->n_vocab))
        return err_set(e, E_FORMAT, "%s: per-layer inputs of %d ids, the model has %d", path,
                       hp->n_ple_vocab, hp->n_vocab);
    if (hp->n_ple < 0 || (int64_t)hp->n_ple * hp->n_layers > 1 << 24)
        return err_set(e, E_FORMAT, "%s: per-layer inputs of width %d: out of range", path,
                       hp->n_ple);
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
