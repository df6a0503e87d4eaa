/* shard.c - divides a model: ranges of heads, widths and layers, and the weight list of a member. */
#include "model/shard.h"

#include "kernel/quant.h"
#include "model/model.h"

#include <stddef.h>
#include <string.h>

#define M(member) offsetof(struct model, member)
#define L(member) offsetof(struct layer, member)

/* ---- ranges ---- */

/* Where member r of n begins among so many units, by their shares. Everybody gets one at least. */
static int64_t bound(const struct shard_opt *o, int64_t units, int r, int n)
{
    int64_t before = 0, all = 0, at;

    for (int i = 0; i < n; i++) {
        int share = o->shares[i] > 0 ? o->shares[i] : 1;
        if (i < r) before += share;
        all += share;
    }
    at = (units * before + all / 2) / all;
    if (at > units - (n - r)) at = units - (n - r);
    return at < r ? r : at;
}

/* Range r of n of [0, size), between multiples of unit. The caller has checked that there are
 * enough units. */
static struct span divide(const struct shard_opt *o, int64_t size, int64_t unit, int r, int n)
{
    int64_t units = (size + unit - 1) / unit, a = bound(o, units, r, n) * unit,
            b = r + 1 < n ? bound(o, units, r + 1, n) * unit : size;

    return (struct span){ a, b - a };
}

/* Heads by groups that share a KV head, or within such groups where there are more members. */
static int divide_heads(const struct shard_opt *o, int heads, int groups, struct span *h,
                        struct span *g, bool *first)
{
    int per = groups > 0 ? heads / groups : 0, tp = o->tp, r = o->tp_rank, k = 0, a, b;

    if (groups < 1 || per < 1) return E_UNSUPPORTED;
    if (groups >= tp) {
        *g = divide(o, groups, 1, r, tp);
        *h = (struct span){ g->at * per, g->n * per };
        *first = true;
        return OK;
    }
    while (tp * (k + 1) / groups <= r) k++;
    a = tp * k / groups, b = tp * (k + 1) / groups;
    if (b - a > per) return E_UNSUPPORTED;
    *g = (struct span){ k, 1 };
    h->at = k * per + per * (r - a) / (b - a);
    h->n = k * per + per * (r - a + 1) / (b - a) - h->at;
    *first = r == a;
    return OK;
}

struct span shard_stage(const struct hparams *hp, int i, int n)
{
    struct shard_opt even = { 0 };

    return divide(&even, hp->n_layers, 1, i, n);
}

struct span shard_vocab(const struct hparams *hp, const struct shard_opt *o)
{
    return divide(o, hp->n_vocab, 1, o->tp_rank, o->tp);
}

/* The stage's layers, by the shares where they are the stages'. */
static struct span stage_of(const struct hparams *hp, const struct shard_opt *o)
{
    struct span given = { 0, o->layers[o->stage] };

    for (int i = 0; i < o->stage; i++) given.at += o->layers[i];
    if (o->layers[0]) return given;
    return o->tp > 1 ? shard_stage(hp, o->stage, o->pp)
                     : divide(o, hp->n_layers, 1, o->stage, o->pp);
}

/* ---- what can be divided ---- */

/* Layers of the stages, where they are given: all of the model's, and one for each at least. */
static int check_stages(const struct hparams *hp, const struct shard_opt *o, struct err *e)
{
    int64_t sum = 0;
    int least = 1;

    for (int i = 0; i < o->pp; i++) {
        sum += o->layers[i];
        if (o->layers[i] < least) least = o->layers[i];
    }
    if (!o->layers[0] && sum == 0) return OK;
    if (least == 1 && sum == hp->n_layers) return OK;
    return err_set(e, E_INVALID, "pp %d: stages of %lld layers of this %s model's %d", o->pp,
                   (long long)sum, hp->arch, hp->n_layers);
}

static int refuse_heads(const struct hparams *hp, int l, const char *what, int n, int groups,
                        int tp, struct err *e)
{
    return err_set(
        e, E_UNSUPPORTED,
        "tp %d: layer %d of this %s model has %d %s in %d groups, too few for %d members; "
        "use pp",
        tp, l, hp->arch, n, what, groups, tp);
}

static int check_width(const struct hparams *hp, int l, const char *what, int n, int tp,
                       struct err *e)
{
    if (n == 0 || n >= tp) return OK;
    return err_set(e, E_UNSUPPORTED, "tp %d: layer %d of this %s model has %s of %d", tp, l,
                   hp->arch, what, n);
}

/* A norm after the gate over groups of columns: all of them together, or whole groups on each. */
static int check_mamba2(const struct hparams *hp, int l, const struct shard_opt *o, struct err *e)
{
    const struct mix_hp *h = &hp->layers[l].mix;
    struct shard_opt each = *o;
    struct span heads, groups;
    bool first;

    for (each.tp_rank = 0; h->norm_groups > 1 && each.tp_rank < o->tp; each.tp_rank++) {
        int64_t wide = h->inner / h->norm_groups;
        if (divide_heads(&each, h->n_heads, h->n_groups, &heads, &groups, &first) != OK ||
            heads.at * h->head_dim % wide || heads.n * h->head_dim % wide)
            return err_set(e, E_UNSUPPORTED,
                           "tp %d: the %d norm groups of layer %d cannot be divided; use pp", o->tp,
                           h->norm_groups, l);
    }
    return OK;
}

static int check_layer(const struct hparams *hp, int l, const struct shard_opt *o, struct err *e)
{
    const struct layer_hp *w = &hp->layers[l];
    const struct mix_hp *h = &w->mix;
    struct shard_opt each = *o;
    int heads = w->n_heads, groups = w->n_kv_heads, rc;
    const char *what = "heads";
    struct span a, b;
    bool first;

    if (h->kind == MIX_MLA) groups = heads;
    if (h->kind == MIX_MAMBA2) heads = h->n_heads, groups = h->n_groups;
    if (h->kind == MIX_DELTA) heads = h->n_heads, groups = h->n_k_heads;
    if (h->kind == MIX_MAMBA &&
        (rc = check_width(hp, l, "an inner width", h->inner, o->tp, e)) != OK)
        return rc;
    if (h->kind == MIX_SHORTCONV || h->kind == MIX_MAMBA) heads = groups = 0;
    for (each.tp_rank = 0; heads > 0 && each.tp_rank < o->tp; each.tp_rank++)
        if (divide_heads(&each, heads, groups, &a, &b, &first) != OK)
            return refuse_heads(hp, l, what, heads, groups, o->tp, e);
    if (h->kind == MIX_MAMBA2 && (rc = check_mamba2(hp, l, o, e)) != OK) return rc;
    return check_width(hp, l, "a feed-forward width", w->n_ff, o->tp, e);
}

/* Norms over all heads are summed over the members, which only RMSNorm can be. */
static int check_norms(const struct hparams *hp, const struct shard_opt *o, struct err *e)
{
    int it = 0;

    for (const struct tensor_row *r = arch_row(hp->info, &it); r; r = arch_row(hp->info, &it)) {
        bool sub = row_in_layer(r) && (r->at == L(attn_sub_norm) || r->at == L(ffn_sub_norm));
        if (sub && hp->norm != NORM_RMS)
            return err_set(e, E_UNSUPPORTED,
                           "tp %d: this %s model has a LayerNorm over all heads; use pp", o->tp,
                           hp->arch);
    }
    if (hp->qk_norm_whole && hp->info->flags & ARCH_QK_LAYER)
        return err_set(e, E_UNSUPPORTED,
                       "tp %d: this %s model has a LayerNorm over all queries; use pp", o->tp,
                       hp->arch);
    return OK;
}

/* Blocks that nobody has taught to be divided among members. */
static const char *find_undivided(const struct hparams *hp)
{
    const struct moe_hp *m = &hp->moe;

    if (hp->info->flags & ARCH_HYBRID) return "layers of several kinds";
    if (hp->info->flags & ARCH_GATE) return "a gate of attention in a matrix of its own";
    if (hp->expert_scales) return "experts with scales";
    if (m->n_in || m->n_zero || m->late || m->beside || m->mean != 0) return "its kind of experts";
    for (int l = 0; l < hp->n_layers; l++) {
        const struct layer_hp *w = &hp->layers[l];
        if (w->mix.with_attn || w->mix.kind == MIX_NONE || w->mix.convs || w->mix.bc_norm)
            return "its kind of mixer";
        if (w->k_is_v) return "values that are keys";
        if (w->index.n_heads) return "an indexer of sparse attention";
        if (w->sparsity != 0) return "sparse gates";
    }
    /* The rows of other delta nets are not known here. */
    if (hp->info->mix == MIX_DELTA && !str_is(str_c(hp->info->gguf), "qwen3next"))
        return "its kind of delta net";
    return NULL;
}

static int check_forms(const struct hparams *hp, const struct shard_opt *o, struct err *e)
{
    const char *what = o->tp > 1 ? find_undivided(hp) : NULL;
    bool joined = hparams_is_joined(hp);

    if (o->pp * o->tp > 1 && joined) what = "layers that depend on each other";
    if (!what) return OK;
    return err_set(
        e, E_UNSUPPORTED, "tp %d, pp %d: this %s model has %s: it runs %s", o->tp, o->pp, hp->arch,
        what, joined ? "in one process only" : "in one process, or with --pp and without --tp");
}

int shard_check(const struct hparams *hp, const struct shard_opt *o, struct err *e)
{
    int rc;

    if (o->tp < 1 || o->pp < 1 || o->tp * o->pp > COMM_MAX)
        return err_set(e, E_INVALID, "tp %d and pp %d: their product must be 1 to %d", o->tp, o->pp,
                       COMM_MAX);
    if (o->pp > hp->n_layers)
        return err_set(e, E_UNSUPPORTED, "pp %d: this %s model has %d layers", o->pp, hp->arch,
                       hp->n_layers);
    if ((rc = check_stages(hp, o, e)) != OK) return rc;
    if ((rc = check_forms(hp, o, e)) != OK) return rc;
    if (o->ep && hp->moe.n == 0)
        return err_set(e, E_UNSUPPORTED, "ep: this %s model has no experts", hp->arch);
    if (o->tp == 1) return OK;
    if (o->ep && hp->moe.n < o->tp)
        return err_set(e, E_UNSUPPORTED, "ep: %d experts for %d members", hp->moe.n, o->tp);
    if ((rc = check_norms(hp, o, e)) != OK) return rc;
    if ((rc = check_width(hp, 0, "an expert width", hp->moe.n_ff, o->tp, e)) != OK) return rc;
    for (int l = 0; l < hp->n_layers; l++)
        if ((rc = check_layer(hp, l, o, e)) != OK) return rc;
    return OK;
}

/* ---- the member's hyper-parameters ---- */

/* Numbers of a block of the matrix whose columns are cut there: its cut lies between blocks where
 * that leaves everybody some. */
static int64_t unit_of(const struct weight_list *list, size_t at, int l, int64_t size, int tp)
{
    int64_t unit = 32, block = 1;

    for (int i = 0; i < list->n; i++) {
        const struct weight_item *w = &list->items[i];
        const struct dtype_info *d = dtype_info((int)layout_type(&w->lay, w->t));
        if (!row_in_layer(w->r) || w->layer != l || w->r->at != at || !d->quantized) continue;
        block = w->lay.quant ? grouped_unit(hfquant_layout(w->lay.quant)) : d->block;
    }
    if (block > unit) unit = block;
    while (unit > block && size / unit < 4 * tp) unit /= 2;
    return size / unit >= tp ? unit : 1;
}

static void divide_mixer(struct shard *s, const struct mix_hp *h, struct shard_layer *y,
                         struct mix_hp *to)
{
    const struct shard_opt *o = &s->opt;
    int64_t wide = h->kind == MIX_SHORTCONV ? s->whole->n_embd : h->inner;
    bool first;

    switch (h->kind) {
    case MIX_MAMBA:
    case MIX_SHORTCONV:
        y->channels = divide(o, wide, wide / 32 >= o->tp ? 32 : 1, o->tp_rank, o->tp);
        to->inner = (int)y->channels.n;
        break;
    case MIX_MAMBA2:
        divide_heads(o, h->n_heads, h->n_groups, &y->mix_heads, &y->mix_groups, &first);
        to->n_heads = (int)y->mix_heads.n;
        to->n_groups = (int)y->mix_groups.n;
        to->inner = to->n_heads * h->head_dim;
        y->split_norm = h->norm_groups == 1;
        if (!y->split_norm) to->norm_groups = to->inner / (h->inner / h->norm_groups);
        break;
    case MIX_DELTA:
        divide_heads(o, h->n_heads, h->n_k_heads, &y->mix_heads, &y->mix_groups, &first);
        to->n_heads = (int)y->mix_heads.n;
        to->n_k_heads = (int)y->mix_groups.n;
        break;
    default: break;
    }
}

static void divide_layer(struct shard *s, const struct weight_list *list, int l,
                         struct shard_layer *y, struct layer_hp *to)
{
    const struct layer_hp *w = &s->whole->layers[l];
    const struct shard_opt *o = &s->opt;
    bool latent = w->mix.kind == MIX_MLA;

    *to = *w;
    if (w->n_heads > 0 && (w->mix.kind == MIX_ATTN || latent)) {
        divide_heads(o, w->n_heads, latent ? w->n_heads : w->n_kv_heads, &y->heads, &y->kv_heads,
                     &y->first_of_kv);
        to->n_heads = (int)y->heads.n;
        if (!latent) to->n_kv_heads = (int)y->kv_heads.n;
    }
    if (w->n_ff > 0)
        y->ff = divide(o, w->n_ff, unit_of(list, L(down), l, w->n_ff, o->tp), o->tp_rank, o->tp);
    to->n_ff = (int)y->ff.n;
    divide_mixer(s, &w->mix, y, &to->mix);
}

static void divide_experts(struct shard *s, const struct weight_list *list)
{
    const struct moe_hp *x = &s->whole->moe;
    const struct shard_opt *o = &s->opt;
    int l = 0;

    s->exp_ff = (struct span){ 0, x->n_ff };
    s->experts = (struct span){ 0, x->n };
    if (x->n == 0) return;
    while (l < s->whole->n_layers - 1 && !s->whole->layers[l].moe) l++;
    if (o->ep) s->experts = divide(o, x->n, 1, o->tp_rank, o->tp);
    else
        s->exp_ff =
            divide(o, x->n_ff, unit_of(list, L(x_down), l, x->n_ff, o->tp), o->tp_rank, o->tp);
    s->hp.moe.n_ff = (int)s->exp_ff.n;
}

static int make_hparams(struct shard *s, struct arena *a, const struct weight_list *list,
                        struct err *e)
{
    size_t n = (size_t)(s->end - s->first);

    s->hp = *s->whole;
    s->hp.shard = s;
    s->hp.n_layers = (int)n;
    s->hp.layers = arena_array(a, n, sizeof *s->hp.layers);
    s->layers = arena_array(a, n, sizeof *s->layers);
    if (!s->hp.layers || !s->layers) return err_nomem(e, "the layers of a shard");
    for (int l = s->first; l < s->end; l++)
        divide_layer(s, list, l, &s->layers[l - s->first], &s->hp.layers[l - s->first]);
    divide_experts(s, list);
    s->vocab = shard_vocab(s->whole, &s->opt);
    return OK;
}

/* ---- the member's tensors ---- */

static struct span times(struct span s, int64_t n) { return (struct span){ s.at * n, s.n * n }; }

/* Columns of the output projection. */
static struct span out_span(const struct shard *s, int l)
{
    const struct layer_hp *w = &s->whole->layers[l];
    const struct shard_layer *y = &s->layers[l - s->first];

    switch (w->mix.kind) {
    case MIX_MAMBA:
    case MIX_SHORTCONV: return y->channels;
    case MIX_MAMBA2:
    case MIX_DELTA: return times(y->mix_heads, w->mix.head_dim);
    default: return times(y->heads, w->head_dim_v);
    }
}

/* Rows of the input projection: the parts of it lie one after the other. */
static struct cut input_cut(const struct shard *s, int l)
{
    const struct mix_hp *h = &s->whole->layers[l].mix;
    const struct shard_layer *y = &s->layers[l - s->first];
    int64_t wide = h->kind == MIX_SHORTCONV ? s->whole->n_embd : h->inner,
            bc = (int64_t)h->n_groups * h->n_state;
    struct span v = times(y->mix_heads, h->head_dim), g = times(y->mix_groups, h->n_state);
    struct cut c = { 0 };

    for (int i = 0; i < (h->kind == MIX_MAMBA ? 2 : h->kind == MIX_SHORTCONV ? 3 : 0); i++)
        cut_add(&c, i * wide + y->channels.at, y->channels.n);
    if (h->kind != MIX_MAMBA2) return c;
    cut_add(&c, v.at, v.n);
    cut_add(&c, wide + v.at, v.n);
    cut_add(&c, 2 * wide + g.at, g.n);
    cut_add(&c, 2 * wide + bc + g.at, g.n);
    cut_add(&c, 2 * wide + 2 * bc + y->mix_heads.at, y->mix_heads.n);
    return c;
}

/* Channels of the convolution. */
static struct cut conv_cut(const struct shard *s, int l)
{
    const struct mix_hp *h = &s->whole->layers[l].mix;
    const struct shard_layer *y = &s->layers[l - s->first];
    struct span v = times(y->mix_heads, h->head_dim), g = times(y->mix_groups, h->n_state),
                k = times(y->mix_groups, h->k_dim);
    int64_t keys = (int64_t)h->n_k_heads * h->k_dim, bc = (int64_t)h->n_groups * h->n_state;
    struct cut c = { 0 };

    switch (h->kind) {
    case MIX_MAMBA2:
        cut_add(&c, v.at, v.n);
        cut_add(&c, h->inner + g.at, g.n);
        cut_add(&c, h->inner + bc + g.at, g.n);
        break;
    case MIX_DELTA:
        cut_add(&c, k.at, k.n);
        cut_add(&c, keys + k.at, k.n);
        cut_add(&c, 2 * keys + v.at, v.n);
        break;
    default: cut_add(&c, y->channels.at, y->channels.n);
    }
    return c;
}

/* Beta and alpha of the delta rule; the low-rank product of Mamba is summed, so all of its rows. */
static struct cut low_cut(const struct shard *s, int l, int64_t rows)
{
    const struct mix_hp *h = &s->whole->layers[l].mix;
    const struct shard_layer *y = &s->layers[l - s->first];
    struct cut c = { 0 };

    if (h->kind != MIX_DELTA) return cut_one((struct span){ 0, rows });
    cut_add(&c, y->mix_heads.at, y->mix_heads.n);
    cut_add(&c, h->n_heads + y->mix_heads.at, y->mix_heads.n);
    return c;
}

/* The member's part of a dimension of so many rows, by its meaning. */
static struct cut dim_cut(const struct shard *s, enum dim d, int l, int64_t rows)
{
    const struct layer_hp *w = &s->whole->layers[l];
    const struct shard_layer *y = &s->layers[l - s->first];

    switch (d) {
    case DIM_Q: return cut_one(times(y->heads, w->head_dim));
    case DIM_K:
        if (w->mix.kind == MIX_MLA) break;
        return cut_one(times(y->kv_heads, w->head_dim));
    case DIM_V: return cut_one(times(y->kv_heads, w->head_dim_v));
    case DIM_O: return cut_one(out_span(s, l));
    case DIM_FF: return cut_one(y->ff);
    case DIM_EXP_FF: return cut_one(s->exp_ff);
    case DIM_HEADS: return cut_one(y->heads);
    case DIM_KV_HEADS: return cut_one(y->kv_heads);
    case DIM_MIX_IN: return input_cut(s, l);
    case DIM_MIX_CONV: return conv_cut(s, l);
    case DIM_MIX_HEADS: return cut_one(y->mix_heads);
    case DIM_MIX_LOW: return low_cut(s, l, rows);
    default: break;
    }
    return cut_one((struct span){ 0, rows });
}

/* The dimension of part p of a packed tensor. */
static enum dim part_dim(const struct tensor_row *r, int p)
{
    static const enum dim qkv[] = { DIM_Q, DIM_K, DIM_V };

    switch (r->kind) {
    case ROW_QKV: return qkv[p];
    case ROW_GATE_UP: return r->rows == DIM_EXP_2FF ? DIM_EXP_FF : DIM_FF;
    case ROW_Q_GATE: return DIM_Q;
    case ROW_QKVZ: return p == 0 ? DIM_MIX_CONV : DIM_O;
    default: return r->rows;
    }
}

/* Rows of part p that the member has. */
static struct cut part_cut(const struct shard *s, const struct weight_item *w, int p)
{
    const struct layer_hp *lh = &s->whole->layers[w->layer];
    const struct shard_layer *y = &s->layers[w->layer - s->first];
    const struct tensor_row *r = w->r;
    bool conv = lh->mix.kind == MIX_SHORTCONV && (r->at == L(mix.conv_w) || r->at == L(mix.conv_b));
    struct cut c;

    if (r->kind == ROW_KV_B)
        return cut_one(times(y->heads, p == 0 ? lh->mix.kv_rank : lh->head_dim_v));
    if (r->kind == ROW_EACH_HEAD) return cut_one(times(y->heads, w->lay.rows / lh->n_heads));
    if (r->kind != ROW_PLANE)
        return conv ? conv_cut(s, w->layer) : dim_cut(s, part_dim(r, p), w->layer, w->lay.part[p]);
    c = conv ? conv_cut(s, w->layer) : dim_cut(s, r->rows, w->layer, w->lay.each);
    c.times = (int)(w->lay.rows / w->lay.each); /* once per tap or state element */
    c.step = w->lay.each;
    return c;
}

/* Which of the stacked matrices, or of the tensors of one row, the member has. false: not this. */
static bool cut_count(const struct shard *s, struct weight_item *w)
{
    const struct shard_layer *y = &s->layers[w->layer - s->first];
    const struct tensor_row *r = w->r;
    struct span mine;

    if (r->kind == ROW_EACH_HEAD || r->count == DIM_NONE) return true;
    if (r->count == DIM_EXPERTS && s->opt.ep && !row_is_vector(r)) {
        if (w->lay.tensors > 1)
            return w->index >= s->experts.at && w->index < s->experts.at + s->experts.n;
        w->mat_at = (int)s->experts.at;
        w->index = w->mat_at;
        w->lay.count = (int)s->experts.n;
        return true;
    }
    if (r->count != DIM_HEADS && r->count != DIM_KV_HEADS) return true;
    mine = r->count == DIM_HEADS ? y->heads : y->kv_heads;
    if (w->lay.tensors > 1) {
        w->index -= (int)mine.at;
        w->lay.tensors = (int)mine.n;
        return w->index >= 0 && w->index < mine.n;
    }
    w->mat_at = (int)mine.at;
    w->lay.count = (int)mine.n;
    return true;
}

static void cut_columns(const struct shard *s, struct weight_item *w)
{
    int64_t cols = w->lay.cols;
    struct cut c;

    w->cols = (struct span){ 0, cols };
    if (w->lay.vector || w->r->kind == ROW_KV_B || w->r->kind == ROW_EACH_HEAD) return;
    c = dim_cut(s, w->r->cols, w->layer, cols);
    w->cols = c.s[0]; /* dimensions of columns are cut once */
}

/* A tensor of a layer. */
static bool cut_item(const struct shard *s, struct weight_item *w)
{
    if (w->layer < s->first || w->layer >= s->end) return false;
    if (s->opt.tp > 1) {
        w->is_cut = true;
        if (!cut_count(s, w)) return false;
        for (int p = 0; p < w->lay.n_parts; p++) w->rows[p] = part_cut(s, w, p);
        cut_columns(s, w);
    }
    w->layer -= s->first;
    return true;
}

/* A tensor outside the layers: on the first stage or the last; of the head the member's rows. */
static bool cut_end(const struct shard *s, struct weight_item *w)
{
    bool head = w->r->at == M(head) || w->r->at == M(head_b);

    if (weight_is_first(w) ? !s->has_embd : !s->has_head) return false;
    if (!head || s->opt.tp == 1) return true;
    w->is_cut = true;
    w->rows[0] = cut_one(s->vocab);
    w->cols = (struct span){ 0, w->lay.cols };
    return true;
}

/* The head of a model that has none of its own: the embedding, read as a head. */
static int add_tied_head(struct shard *s, struct arena *a, const struct weight_list *whole,
                         struct err *e)
{
    for (int i = 0; i < whole->n; i++)
        if (!row_in_layer(whole->items[i].r) && whole->items[i].r->at == M(head)) return OK;
    for (int i = 0; i < whole->n; i++) {
        struct weight_item w = whole->items[i];
        struct tensor_row *r;

        if (row_in_layer(w.r) || w.r->at != M(embd)) continue;
        if (!(r = arena_new(a, struct tensor_row))) return err_nomem(e, "the output head");
        *r = *w.r;
        r->at = M(head);
        r->flags &= ~(uint64_t)ROW_FIRST;
        w.r = r;
        if (cut_end(s, &w)) s->weights.items[s->weights.n++] = w;
    }
    return OK;
}

static int make_list(struct shard *s, struct arena *a, const struct weight_list *whole,
                     struct err *e)
{
    s->weights = *whole;
    s->weights.n = 0;
    s->weights.items = arena_array(a, (size_t)whole->n + 1, sizeof *s->weights.items);
    if (!s->weights.items) return err_nomem(e, "the tensors of a shard");
    for (int i = 0; i < whole->n; i++) {
        struct weight_item w = whole->items[i];
        if (row_in_layer(w.r) ? cut_item(s, &w) : cut_end(s, &w))
            s->weights.items[s->weights.n++] = w;
    }
    return s->whole->encoder ? OK : add_tied_head(s, a, whole, e);
}

int shard_make(struct shard **out, struct arena *a, const struct hparams *hp,
               const struct weight_list *whole, const struct shard_opt *opt, struct err *e)
{
    struct shard *s = arena_new(a, struct shard);
    struct span layers;
    int rc = s ? shard_check(hp, opt, e) : err_nomem(e, "a shard");

    if (rc != OK) return rc;
    layers = stage_of(hp, opt);
    *s = (struct shard){ .opt = *opt,
                         .whole = hp,
                         .list = whole,
                         .first = (int)layers.at,
                         .end = (int)(layers.at + layers.n),
                         .has_embd = opt->stage == 0,
                         .has_head = opt->stage == opt->pp - 1 };
    if ((rc = make_hparams(s, a, whole, e)) != OK) return rc;
    if ((rc = make_list(s, a, whole, e)) != OK) return rc;
    *out = s;
    return OK;
}

void shard_drop_biases(const struct shard *s, struct model *m)
{
    for (int l = 0; s->opt.tp > 1 && s->opt.tp_rank > 0 && l < m->hp.n_layers; l++) {
        struct layer *y = &m->layers[l];
        y->bo = y->b_down = NULL;
        if (!s->opt.ep) y->xb_down = NULL;
    }
}
