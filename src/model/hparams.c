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

int hparams_dim(const struct hparams *hp, enum dim d, int l)
{
    const struct layer_hp *w = &hp->layers[l < hp->n_layers ? l : 0];
    int q = w->n_heads * w->head_dim, k = w->n_kv_heads * w->head_dim,
        v = w->n_kv_heads * w->head_dim_v;
    switch (d) {
    case DIM_EMBD: return hp->n_embd;
    case DIM_Q: return q;
    case DIM_K: return k;
    case DIM_V: return v;
    case DIM_QKV: return q + k + v;
    case DIM_O: return w->n_heads * w->head_dim_v;
    case DIM_FF: return w->n_ff;
    case DIM_2FF: return 2 * w->n_ff;
    case DIM_HEAD: return w->head_dim;
    case DIM_VOCAB: return hp->n_vocab;
    case DIM_ONE: return 1;
    case DIM_NONE: break;
    }
    return 0;
}

bool hparams_name(const struct hparams *hp, const struct tensor_row *r, int l,
                  enum source_kind world, char *out, size_t cap)
{
    const char *pattern = world == SOURCE_GGUF ? r->gguf : r->hf, *prefix = "", *star;
    int n_prefix = 0;
    if (!pattern) return false;
    if (world == SOURCE_HF && hp->prefix) {
        struct str p = str_c(hp->prefix);
        if (r->flags & ROW_HEAD && str_ends(p, STR("model."))) p.n -= strlen("model.");
        prefix = p.p;
        n_prefix = (int)p.n;
    }
    star = strchr(pattern, '*');
    if (star)
        snprintf(out, cap, "%.*s%.*s%d%s", n_prefix, prefix, (int)(star - pattern), pattern, l,
                 star + 1);
    else
        snprintf(out, cap, "%.*s%s", n_prefix, prefix, pattern);
    return true;
}

/* The tensor of the row that fills the member at `at` of layer l. */
static const struct source_tensor *probe(const struct hparams *hp, const struct source *src,
                                         size_t at, int l, const struct tensor_row **row)
{
    char name[256];
    int it = 0;
    for (const struct tensor_row *r = arch_row(hp->info, &it); r; r = arch_row(hp->info, &it))
        if (row_in_layer(r) && r->at == at && r->kind != ROW_VEC && r->kind != ROW_SCALE &&
            hparams_name(hp, r, l, hp->from, name, sizeof name)) {
            *row = r;
            return source_find(src, name);
        }
    return NULL;
}

static int64_t rows_of(const struct source_tensor *t)
{
    return t && t->n_dims == 2 ? t->dims[0] : 0;
}
static int64_t cols_of(const struct source_tensor *t)
{
    return t && t->n_dims == 2 ? t->dims[1] : 0;
}
static int small(int64_t v) { return v > 0 && v < (1 << 24) ? (int)v : 0; }

static void infer_layer(struct hparams *hp, const struct source *src, int l)
{
    const struct tensor_row *row = NULL;
    struct layer_hp *w = &hp->layers[l];
    const struct source_tensor *q = probe(hp, src, offsetof(struct layer, wq), l, &row);
    bool packed = row && row->kind == ROW_QKV;
    int64_t n_q =
        packed ? cols_of(probe(hp, src, offsetof(struct layer, wo), l, &row)) : rows_of(q);

    if (!w->head_dim && w->n_heads && n_q % w->n_heads == 0) w->head_dim = small(n_q / w->n_heads);
    if (!w->head_dim_v) w->head_dim_v = w->head_dim;
    if (!w->n_kv_heads && w->head_dim) {
        int64_t n_kv = packed ? (rows_of(q) - n_q) / 2
                              : rows_of(probe(hp, src, offsetof(struct layer, wk), l, &row));
        if (n_kv % w->head_dim == 0) w->n_kv_heads = small(n_kv / w->head_dim);
    }
    if (!w->n_ff) w->n_ff = small(cols_of(probe(hp, src, offsetof(struct layer, down), l, &row)));
}

/* The embedding is [vocab, hidden], or [hidden, vocab] in a file of the other habit. */
static void infer_vocab(struct hparams *hp, const struct source *src)
{
    char name[256];
    int it = 0;
    const struct tensor_row *r = arch_row(hp->info, &it);
    const struct source_tensor *t;
    if (!hparams_name(hp, r, 0, hp->from, name, sizeof name) || !(t = source_find(src, name)))
        return;
    if (hp->n_vocab || t->n_dims != 2) return;
    if (t->dims[1] == hp->n_embd) hp->n_vocab = small(t->dims[0]);
    else if (t->dims[0] == hp->n_embd) hp->n_vocab = small(t->dims[1]);
}

/* A shape stayed open: its tensor is not there, or it does not tell. */
static int not_inferred(const struct hparams *hp, const struct source *src, int l, struct err *e)
{
    const struct layer_hp *w = &hp->layers[l];
    size_t at = !w->head_dim     ? offsetof(struct layer, wq)
                : !w->n_kv_heads ? offsetof(struct layer, wk)
                                 : offsetof(struct layer, down);
    const struct tensor_row *row = NULL;
    char name[256];

    if (!probe(hp, src, at, l, &row) && row && hparams_name(hp, row, l, hp->from, name, sizeof name))
        return err_set(e, E_NOTFOUND, "%s: the tensor '%s' is missing (the model has %d layers)",
                       source_path(src), name, hp->n_layers);
    return err_set(e, E_FORMAT, "%s: layer %d: %s is neither a key nor seen from the tensors",
                   source_path(src), l,
                   !w->head_dim     ? "the size of a head"
                   : !w->n_kv_heads ? "the number of KV heads"
                                    : "the width of the feed-forward block");
}

int hparams_infer(struct hparams *hp, const struct source *src, struct err *e)
{
    infer_vocab(hp, src);
    if (!hp->n_vocab)
        return err_set(
            e, E_FORMAT,
            "%s: the vocabulary's size is neither a key nor seen from an embedding of width %d",
            source_path(src), hp->n_embd);
    for (int l = 0; l < hp->n_layers; l++) {
        struct layer_hp *w = &hp->layers[l];
        infer_layer(hp, src, l);
        if (!w->head_dim || !w->n_kv_heads || !w->n_ff) return not_inferred(hp, src, l, e);
    }
    return OK;
}

static int check_layer(const struct hparams *hp, int l, const char *path, struct err *e)
{
    const struct layer_hp *w = &hp->layers[l];
    if (w->n_heads < 1 || w->n_heads > 65536 || w->n_kv_heads < 1 ||
        w->n_heads % w->n_kv_heads != 0)
        return err_set(e, E_FORMAT, "%s: layer %d: %d heads do not share %d KV heads evenly", path,
                       l, w->n_heads, w->n_kv_heads);
    if (w->head_dim < 1 || w->head_dim > 65536 || w->head_dim_v < 1 || w->head_dim_v > 65536 ||
        (int64_t)w->n_heads * (w->head_dim + w->head_dim_v) > 1 << 24)
        return err_set(e, E_FORMAT, "%s: layer %d: %d heads of %d numbers make no sense", path, l,
                       w->n_heads, w->head_dim);
    if (w->n_ff < 1 || w->n_ff > 1 << 24)
        return err_set(e, E_FORMAT, "%s: layer %d: a feed-forward width of %d makes no sense", path,
                       l, w->n_ff);
    if (w->rope >= 0) {
        int n_rot = hp->rope[w->rope].n_rot;
        if (n_rot < 2 || n_rot % 2 != 0 || n_rot > w->head_dim)
            return err_set(e, E_FORMAT, "%s: layer %d: %d of %d numbers of a head cannot turn",
                           path, l, n_rot, w->head_dim);
    }
    return OK;
}

static bool positive(double v) { return v > 0 && isfinite(v); }

static int check_rope(const struct rope_hp *r, const char *path, struct err *e)
{
    if (!(r->theta > 1) || !isfinite(r->theta) || !positive(r->factor) || !positive(r->attn_factor))
        return err_set(e, E_FORMAT, "%s: rotary base %g with factor %g makes no sense", path,
                       r->theta, r->factor);
    if (r->scaling == ROPE_NONE || r->scaling == ROPE_LINEAR) return OK;
    if (!positive(r->orig_ctx) || !positive(r->beta_fast) || !positive(r->beta_slow))
        return err_set(e, E_FORMAT, "%s: %s scaling from %g tokens on makes no sense", path,
                       rope_scaling_name(r->scaling), r->orig_ctx);
    return OK;
}

static int check(const struct hparams *hp, const char *path, struct err *e)
{
    int rc;
    if (hp->n_embd < 1 || hp->n_embd > 1 << 20)
        return err_set(e, E_FORMAT, "%s: a width of %d makes no sense", path, hp->n_embd);
    if (hp->n_ctx < 1)
        return err_set(e, E_FORMAT, "%s: a context of %d tokens makes no sense", path, hp->n_ctx);
    if (!isfinite(hp->norm_eps) || hp->norm_eps < 0)
        return err_set(e, E_FORMAT, "%s: a norm's epsilon of %g makes no sense", path,
                       (double)hp->norm_eps);
    if (!isfinite(hp->embd_scale * hp->residual_scale * hp->logit_scale) ||
        !isfinite(hp->attn_scale) || !isfinite(hp->attn_softcap) || !isfinite(hp->logit_softcap))
        return err_set(e, E_FORMAT, "%s: a multiplier or soft cap is not a finite number", path);
    for (int i = 0; i < hp->n_rope; i++)
        if ((rc = check_rope(&hp->rope[i], path, e)) != OK) return rc;
    for (int l = 0; l < hp->n_layers; l++)
        if ((rc = check_layer(hp, l, path, e)) != OK) return rc;
    return OK;
}

int hparams_read(struct hparams *hp, struct arena *a, const struct source *src, struct err *e)
{
    int rc;
    *hp = (struct hparams){
        .from = source_kind(src), .embd_scale = 1, .residual_scale = 1, .logit_scale = 1
    };
    rc =
        hp->from == SOURCE_GGUF ? hparams_from_gguf(hp, a, src, e) : hparams_from_hf(hp, a, src, e);
    if (rc != OK) return rc;
    return check(hp, source_path(src), e);
}
