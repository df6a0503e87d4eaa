/* record_family.c - operations of the GPU's backend table that single model families need: their
 * activations, several residual streams, sparse and compressed attention. */
#include "kernel/cuda/record_impl.h"

/* ---- rows ---- */

static void record_xielu(struct backend *be, const struct tensor *x, const struct xielu_opt *opt)
{
    if (x->rows <= 0) return;
    *push_xielu(room_for(be, 0), x->rows) = (struct op_xielu){
        .x = tensor_ref(x), .a_p = opt->a_p, .a_n = opt->a_n, .b = opt->b, .eps = opt->eps
    };
}

static void record_clipped_glu(struct backend *be, const struct tensor *out,
                               const struct tensor *gate, const struct tensor *up,
                               const struct glu_clip *opt)
{
    if (out->rows <= 0) return;
    *push_clipped_glu(room_for(be, 0), out->rows) =
        (struct op_clipped_glu){ .out = tensor_ref(out),
                                 .gate = tensor_ref(gate),
                                 .up = tensor_ref(up),
                                 .alpha = opt->alpha,
                                 .limit = opt->limit,
                                 .plus = opt->plus };
}

static void record_scale_by_pos(struct backend *be, const struct tensor *x, const int32_t *pos,
                                const struct pos_scale_opt *opt)
{
    if (x->rows <= 0) return;
    *push_scale_by_pos(room_for(be, 0), x->rows) = (struct op_scale_by_pos){
        .x = tensor_ref(x), .pos = pos, .beta = opt->beta, .first = opt->first, .step = opt->step
    };
}

/* ---- several residual streams ---- */

static void record_mix_streams(struct backend *be, const struct tensor *out, const struct tensor *x,
                               const struct tensor *coefs, int n)
{
    if (x->rows <= 0) return;
    *push_mix_streams(room_for(be, 0), x->rows) = (struct op_mix_streams){
        .out = tensor_ref(out), .x = tensor_ref(x), .coefs = tensor_ref(coefs), .n = n
    };
}

static void record_add_weighted(struct backend *be, const struct tensor *x, const struct tensor *y,
                                const struct tensor *coefs, int col, float plus)
{
    if (x->rows <= 0) return;
    *push_add_weighted(room_for(be, 0), x->rows) = (struct op_add_weighted){
        .x = tensor_ref(x), .y = tensor_ref(y), .coefs = tensor_ref(coefs), .col = col, .plus = plus
    };
}

static void record_match_rms(struct backend *be, const struct tensor *x, const struct tensor *like,
                             float eps)
{
    if (x->rows <= 0) return;
    *push_match_rms(room_for(be, 0), x->rows) =
        (struct op_match_rms){ .x = tensor_ref(x), .like = tensor_ref(like), .eps = eps };
}

static void record_sparsify(struct backend *be, const struct tensor *x, float deviations)
{
    if (x->rows <= 0) return;
    *push_sparsify(room_for(be, 0), x->rows) =
        (struct op_sparsify){ .x = tensor_ref(x), .deviations = deviations };
}

/* The kernels hold the numbers of all streams in shared memory. */
static bool check_streams(struct backend *be, int n)
{
    if (n >= 1 && n <= HYPER_MAX_STREAMS) return true;
    record_refuse(be, E_UNSUPPORTED, "%d residual streams; at most %d are supported", n,
                  HYPER_MAX_STREAMS);
    return false;
}

static void record_hyper_weights(struct backend *be, const struct tensor *x, const float *base,
                                 const float *scale, const struct hyper_opt *opt)
{
    if (x->rows <= 0 || !check_streams(be, opt->n)) return;
    if (x->cols != opt->n && x->cols != (2 + opt->n) * opt->n) {
        record_refuse(be, E_INVALID, "hyper-connections of %d streams with %d weights", opt->n,
                      x->cols);
        return;
    }
    *push_hyper_weights(room_for(be, 0), x->rows) = (struct op_hyper_weights){ .x = tensor_ref(x),
                                                                               .base = base,
                                                                               .scale = scale,
                                                                               .n = opt->n,
                                                                               .iters = opt->iters,
                                                                               .eps = opt->eps };
}

static void record_hyper_in(struct backend *be, const struct tensor *out, const struct tensor *s,
                            const struct tensor *w, int n)
{
    if (s->rows <= 0 || !check_streams(be, n)) return;
    *push_hyper_in(room_for(be, 0), s->rows) = (struct op_hyper_in){
        .out = tensor_ref(out), .s = tensor_ref(s), .w = tensor_ref(w), .n = n
    };
}

static void record_hyper_out(struct backend *be, const struct tensor *s, const struct tensor *y,
                             const struct tensor *w, int n)
{
    if (s->rows <= 0 || !check_streams(be, n)) return;
    *push_hyper_out(room_for(be, 0), s->rows) =
        (struct op_hyper_out){ .s = tensor_ref(s), .y = tensor_ref(y), .w = tensor_ref(w), .n = n };
}

/* ---- sparse attention ---- */

static void record_index_put(struct backend *be, const struct kvview *kv, int layer,
                             const struct tensor *k)
{
    const struct kvlayer *l = &kv->layers[layer];
    struct record *r;

    if (k->rows <= 0) return;
    if (!l->x || l->index_dim != k->cols) {
        record_refuse(be, E_INVALID, "index keys of %d elements, but the KV cache has %d", k->cols,
                      l->index_dim);
        return;
    }
    r = room_for(be, 0);
    *push_index_put(r, k->rows) =
        (struct op_index_put){ .k = tensor_ref(k), .kv = record_kv_ref(r, kv, layer) };
}

/* Rows of bits must hold every position, blocks end within them, and scores fit the scratch memory. */
static bool check_choice(struct backend *be, const struct key_choice *out, const struct kvview *kv,
                         const struct kvlayer *l, const struct index_opt *o)
{
    const struct record *r = be->self;
    int size = o->block ? o->block : 1;
    size_t items = ((size_t)kv->max_pos + (size_t)size) / (size_t)size;

    if (!l->x || (o->rate ? l->index_dim < o->head_dim : l->index_dim != o->head_dim))
        record_refuse(be, E_INVALID,
                      "index queries of %d elements, but the KV cache has keys of %d", o->head_dim,
                      l->index_dim);
    else if (o->head_dim > INDEX_MAX_DIM)
        record_refuse(be, E_UNSUPPORTED, "index keys of %d elements; at most %d are supported",
                      o->head_dim, INDEX_MAX_DIM);
    else if (kv->max_pos >= r->index_keys)
        record_refuse(be, E_INVALID, "an indexer of %d positions, but memory was reserved for %d",
                      kv->max_pos + 1, r->index_keys);
    else if (out->stride * 32 < items * (size_t)size)
        record_refuse(be, E_INVALID, "an indexer of %d positions with %zu words for them",
                      kv->max_pos + 1, out->stride);
    else return true;
    return false;
}

static void record_index_choose(struct backend *be, const struct key_choice *out,
                                const struct tensor *q, const struct tensor *weights,
                                const struct kvview *kv, int layer, const struct index_opt *opt)
{
    struct record *r;

    if (q->rows <= 0 || !check_choice(be, out, kv, &kv->layers[layer], opt)) return;
    r = room_for(be, 0);
    *push_index_choose(r, q->rows) = (struct op_index_choose){ .q = tensor_ref(q),
                                                               .weights = optional_ref(weights),
                                                               .kv = record_kv_ref(r, kv, layer),
                                                               .bits = out->bits,
                                                               .stride = out->stride,
                                                               .rows = out->n_heads,
                                                               .n_heads = opt->n_heads,
                                                               .head_dim = opt->head_dim,
                                                               .top = opt->top,
                                                               .block = opt->block,
                                                               .local = opt->local,
                                                               .scale = opt->scale,
                                                               .rate = opt->rate };
}

/* ---- compressed attention ---- */

/* A row of the cache is an entry, raw numbers and gates (struct compress_opt). */
static bool check_rows(struct backend *be, const struct kvlayer *l, const struct compress_opt *o)
{
    int dim = o->dim * (o->overlap ? 5 : 3), have = o->index ? l->index_dim : l->head_dim_v;

    if (o->rate >= 1 && have == dim && !l->v_in_k && (o->index ? l->x : l->v) != NULL &&
        o->dim <= PICK_MAX_DIM)
        return true;
    record_refuse(be, E_INVALID,
                  "compressed attention with heads of %d elements needs rows of %d, but the KV "
                  "cache has %d",
                  o->dim, dim, have);
    return false;
}

static void record_compress(struct backend *be, const struct kvview *kv, int layer,
                            const struct compress_opt *opt)
{
    struct record *r;

    if (kv->n_tokens <= 0 || !check_rows(be, &kv->layers[layer], opt)) return;
    r = room_for(be, 0);
    *push_compress(r, kv->n_tokens) = (struct op_compress){ .kv = record_kv_ref(r, kv, layer),
                                                            .bias = opt->bias,
                                                            .norm = opt->norm,
                                                            .freq = opt->freq,
                                                            .rate = opt->rate,
                                                            .dim = opt->dim,
                                                            .overlap = opt->overlap,
                                                            .index = opt->index,
                                                            .eps = opt->eps,
                                                            .n_rot = opt->n_rot,
                                                            .mscale = opt->mscale };
}

static void record_attend_compressed(struct backend *be, const struct tensor *out,
                                     const struct tensor *q, const struct kvview *kv, int layer,
                                     const struct attend_opt *opt, const struct compress_opt *c)
{
    const struct kvlayer *l = &kv->layers[layer];
    struct record *r;

    if (q->rows <= 0 || !check_rows(be, l, c)) return;
    if (c->index || l->n_kv_heads != 1 || l->head_dim != opt->head_dim || c->dim != opt->head_dim) {
        record_refuse(be, E_INVALID,
                      "compressed attention over heads of %d elements, but the KV cache has %d of "
                      "%d",
                      opt->head_dim, l->n_kv_heads, l->head_dim);
        return;
    }
    r = room_for(be, 0);
    *push_attend_compressed(r, q->rows) =
        (struct op_attend_compressed){ .out = tensor_ref(out),
                                       .q = tensor_ref(q),
                                       .kv = record_kv_ref(r, kv, layer),
                                       .sinks = opt->sinks,
                                       .keys = opt->keys ? opt->keys->bits : NULL,
                                       .keys_stride = opt->keys ? opt->keys->stride : 0,
                                       .n_heads = opt->n_heads,
                                       .head_dim = opt->head_dim,
                                       .scale = opt->scale,
                                       .window = opt->window,
                                       .rate = c->rate,
                                       .overlap = c->overlap };
}

void record_fill_family(struct backend *be)
{
    be->xielu = record_xielu, be->clipped_glu = record_clipped_glu;
    be->scale_by_pos = record_scale_by_pos;
    be->mix_streams = record_mix_streams, be->add_weighted = record_add_weighted;
    be->match_rms = record_match_rms, be->sparsify = record_sparsify;
    be->hyper_weights = record_hyper_weights;
    be->hyper_in = record_hyper_in, be->hyper_out = record_hyper_out;
    be->index_put = record_index_put, be->index_choose = record_index_choose;
    be->compress = record_compress, be->attend_compressed = record_attend_compressed;
}
