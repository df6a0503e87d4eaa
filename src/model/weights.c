/* weights.c - fills a model from its weight list: matrices in place or converted, vectors staged
 * and put to each device in one block, then all matrices handed to the backends.
 *
 * A failure half way leaves a model that weights_drop can release: every pointer is either NULL or
 * valid. */
#include "model/weights.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "kernel/quant.h"
#include "model/layout.h"
#include "model/rotary.h"
#include "model/scan.h"

#include <math.h>
#include <stdio.h>

/* A converted copy of a matrix. */
struct owned {
    struct owned *next; /* of the model's list; the entries are in its arena */
    void *p;
    size_t n;
    struct backend *be; /* allocated by it, as MEM_WEIGHTS; NULL: by mem_aligned */
};

struct loader {
    struct model *m;
    const struct source *src;
    const struct weight_list *list;
    bool allow_nan;
    int n_bad;    /* tensors with numbers that are not finite */
    float *stage; /* the vectors of a device, before they are put there */
    size_t n_stage;
};

static struct part *part_of(struct model *m, const struct weight_item *w)
{
    if (row_in_layer(w->r)) return model_part(m, w->layer);
    return &m->parts[w->r->flags & ROW_FIRST ? 0 : m->n_parts - 1];
}

/* ---- numbers that are not finite ---- */

/* A find ends the load, or is a warning where the user allows it. Large models are scanned later,
 * except for their vectors, which are read here anyway. */
static int check_finite(struct loader *ld, const struct weight_item *w, struct err *e)
{
    bool later =
        !row_is_vector(w->r) && w->r->kind != ROW_SCALE && ld->list->file_bytes > SCAN_AT_ONCE;
    int rc = later ? OK : scan_item(ld->src, w, e);

    if (rc == OK || !ld->allow_nan) return rc;
    if (ld->n_bad++ < 8)
        log_warn("%s: tensor %.*s contains NaN or Inf", source_path(ld->src), STR_ARG(w->t->name));
    return OK;
}

/* ---- matrices ---- */

/* Memory for a copy: the backend's where it is the host's own, so that it is counted there; plain
 * host memory for a GPU, which uploads the copy. NULL: there is none. */
static void *alloc_copy(struct model *m, struct backend *be, size_t n)
{
    struct owned *o = arena_new(&m->arena, struct owned);

    if (!o) return NULL;
    *o = (struct owned){ .next = m->owned, .n = n, .be = backend_is_host(be) ? be : NULL };
    if (!o->be) o->p = mem_aligned(n);
    else if (be->alloc(be, &o->p, n, MEM_WEIGHTS, NULL) != OK) o->p = NULL;
    if (o->p) m->owned = o;
    return o->p;
}

/* Copies a part of matrix i: rows in order, in a type the backend can read. */
static int copy_part(struct loader *ld, const struct weight_item *w, int i, int part,
                     struct weight *out, struct err *e)
{
    struct backend *be = part_of(ld->m, w)->be;
    uint64_t bytes = 0;
    enum dtype to = weight_copy_type(w, be, part, &bytes);
    int64_t rows = w->lay.part[part];
    float *tmp = mem_array(layout_tmp(&w->lay), sizeof *tmp);
    char *dst = NULL;

    if (tmp) dst = alloc_copy(ld->m, be, (size_t)rows * bytes);
    for (int64_t r = 0; dst && r < rows; r += LAYOUT_ROWS) {
        int n = rows - r < LAYOUT_ROWS ? (int)(rows - r) : LAYOUT_ROWS;
        layout_read_rows(&w->lay, w->t, i, part, r, n, to, dst + (size_t)r * bytes, bytes, tmp);
    }
    mem_free(tmp);
    if (!dst)
        return err_set(e, E_NOMEM, "%s: no memory for %llu bytes of tensor %.*s as %s",
                       source_path(ld->src), (unsigned long long)((uint64_t)rows * bytes),
                       STR_ARG(w->t->name), dtype_name((int)to));
    out->type = to;
    out->data = dst;
    return OK;
}

/* The model's struct weight for a part of matrix i. NULL: no memory for a list of experts. */
static struct weight *weight_at(struct model *m, const struct weight_item *w, int i, int part)
{
    char *base = row_in_layer(w->r) ? (char *)&m->layers[w->layer] : (char *)m;
    struct weight **list;

    if (w->r->kind == ROW_Q_GATE && part == 1) return &m->layers[w->layer].wg;
    if (!w->r->count || w->r->kind == ROW_EACH_HEAD)
        return (struct weight *)(void *)(base + w->r->at + (size_t)part * sizeof(struct weight));
    list = (struct weight **)(void *)(base + w->r->at + (size_t)part * sizeof(void *));
    if (!*list)
        *list = arena_array(&m->arena, (size_t)(w->lay.count * w->lay.tensors), sizeof **list);
    return *list ? *list + w->index + i : NULL;
}

static int load_matrix(struct loader *ld, const struct weight_item *w, struct err *e)
{
    const struct layout *y = &w->lay;
    bool copy = weight_is_copied(w, part_of(ld->m, w)->be);
    uint64_t row_bytes = 0;
    int rc;

    filemap_need(w->t->data, w->t->bytes);
    if ((rc = check_finite(ld, w, e)) != OK) return rc;
    dtype_row_bytes(w->t->type, (uint64_t)y->cols, &row_bytes);
    for (int i = 0; i < y->count; i++)
        for (int p = 0; p < y->n_parts; p++) {
            struct weight *out = weight_at(ld->m, w, i, p);
            int64_t first = i * y->rows + layout_row(y, p, 0);
            int n = y->per_weight ? y->per_weight : 1;
            if (!out) return err_nomem(e, "the list of experts");
            *out = (struct weight){ .type = w->t->type,
                                    .rows = (int)(y->part[p] / n),
                                    .cols = (int)layout_cols(y, p),
                                    .n = n };
            out->data = (const char *)w->t->data + (size_t)first * row_bytes;
            if (copy && (rc = copy_part(ld, w, i, p, out, e)) != OK) return rc;
        }
    return OK;
}

/* Some models have rows before the first learned position (RoBERTa: 2): they are skipped. */
static void skip_positions(struct model *m)
{
    struct weight *w = &m->positions;
    uint64_t row_bytes = 0;

    if (w->rows <= m->hp.pos_skip) return;
    dtype_row_bytes(w->type, (uint64_t)w->cols, &row_bytes);
    w->data = (const char *)w->data + (size_t)m->hp.pos_skip * row_bytes;
    w->rows -= m->hp.pos_skip;
}

/* ---- vectors ---- */

/* The scale of a matrix product: one number, stored in struct layer. */
static void load_scale(struct loader *ld, const struct weight_item *w)
{
    float v;
    quant_decode(w->t->type, w->t->data, &v, 1);
    memcpy((char *)&ld->m->layers[w->layer] + w->r->at, &v, sizeof v);
}

/* Converts a vector to F32 in the staging memory, and points the model to where it will be on the
 * device. Corrections that the architecture asks for are applied once, here: 1 is added to the
 * norms of gemma, biases of scaled residuals are scaled, and logarithms of decay rates (mamba from
 * Hugging Face) become the rates. */
static void load_vector(struct loader *ld, const struct weight_item *w, const struct part *to)
{
    const struct hparams *hp = &ld->m->hp;
    const struct layout *y = &w->lay;
    char *base = row_in_layer(w->r) ? (char *)&ld->m->layers[w->layer] : (char *)ld->m;

    for (int p = 0; p < y->n_parts; p++) {
        int64_t n = y->part[p], all = n * y->count * y->tensors;
        float *v = ld->stage + ld->n_stage + w->index * n, *there = to->vectors + ld->n_stage, tmp;
        for (int64_t k = 0; k < n * y->count; k++)
            layout_read(y, w->t, (int)(k / n), p, k % n, DT_F32, &v[k], &tmp);
        for (int64_t k = 0; k < n * y->count; k++) {
            if (w->r->flags & ROW_NORM) v[k] += hp->norm_bias1;
            if (w->r->flags & ROW_RESIDUAL) v[k] *= hp->residual_scale;
            if (w->r->flags & ROW_LOG && hp->from == SOURCE_HF) v[k] = -expf(v[k]);
        }
        if (w->r->kind == ROW_Q_GATE && p == 1) ld->m->layers[w->layer].bg = there;
        else if (w->index == 0)
            memcpy(base + w->r->at + (size_t)p * sizeof there, &there, sizeof there);
        if (w->index == y->tensors - 1) ld->n_stage += weight_padded(all);
    }
}

/* Floats of all vectors on a device. */
static size_t count_floats(const struct loader *ld, const struct part *p)
{
    size_t n = weights_made_floats(&ld->m->hp);

    for (int i = 0; i < ld->list->n; i++)
        if (part_of(ld->m, &ld->list->items[i]) == p)
            n += weight_vector_floats(&ld->list->items[i]);
    return n;
}

/* Vectors that are computed, not stored: rotary frequencies and ALiBi slopes. */
static void make_vectors(struct loader *ld, struct part *p)
{
    const struct hparams *hp = &ld->m->hp;

    for (int i = 0; i < hp->n_rope; i++) {
        rotary_freq(&hp->rope[i], 0, ld->stage + ld->n_stage);
        p->rope_freq[i] = p->vectors + ld->n_stage;
        ld->n_stage += weight_padded(hp->rope[i].n_rot / 2);
    }
    if (hp->alibi == 0) return;
    hparams_slopes(hp, hp->layers[0].n_heads, ld->stage + ld->n_stage);
    p->slopes = p->vectors + ld->n_stage;
}

/* Puts all vectors of a part into one block of its device's memory, in one transfer. */
static int load_vectors(struct loader *ld, struct part *p, struct err *e)
{
    size_t n = count_floats(ld, p);
    int rc;

    mem_free(ld->stage);
    ld->n_stage = 0;
    ld->stage = mem_array(n ? n : 1, sizeof(float));
    if (!ld->stage)
        return err_set(e, E_NOMEM, "no memory for %zu bytes of norms and biases",
                       n * sizeof(float));
    if (!n) return OK;
    if ((rc = p->be->alloc(p->be, (void **)&p->vectors, n * sizeof(float), MEM_WEIGHTS, e)) != OK)
        return rc;
    p->vector_bytes = n * sizeof(float);

    for (int i = 0; i < ld->list->n; i++) {
        const struct weight_item *w = &ld->list->items[i];
        if (part_of(ld->m, w) != p) continue;
        if ((row_is_vector(w->r) || w->r->kind == ROW_SCALE) && (rc = check_finite(ld, w, e)) != OK)
            return rc;
        if (row_is_vector(w->r)) load_vector(ld, w, p);
        if (w->r->kind == ROW_SCALE) load_scale(ld, w);
    }
    make_vectors(ld, p);
    p->be->put(p->be, p->vectors, ld->stage, p->vector_bytes);
    return p->be->sync(p->be, e);
}

/* ---- handing matrices to the backends ---- */

typedef int weight_fn(struct backend *be, struct weight *w, struct err *e);

static int put_weight(struct backend *be, struct weight *w, struct err *e)
{
    return be->weight_put(be, w, e);
}

static int drop_weight(struct backend *be, struct weight *w, struct err *e)
{
    (void)e;
    be->weight_drop(be, w);
    return OK;
}

static int each_expert(struct model *m, int l, weight_fn *fn, struct err *e)
{
    struct layer *y = &m->layers[l];
    struct weight *all[] = { y->x_gate, y->x_up, y->x_down };
    int rc = OK;

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (int k = 0; all[i] && k < m->hp.moe.n && rc == OK; k++)
            if (all[i][k].rows) rc = fn(model_part(m, l)->be, &all[i][k], e);
    return rc;
}

/* Calls fn for every matrix the model has, with the backend of its device. */
static int each_weight(struct model *m, weight_fn *fn, struct err *e)
{
    struct weight *first[] = { &m->embd, &m->positions, &m->token_types, &m->proj_in },
                  *last[] = { &m->head, &m->proj_out };
    int rc = OK;

    if (m->n_parts == 0) return OK;
    for (size_t i = 0; i < sizeof first / sizeof first[0] && rc == OK; i++)
        if (first[i]->rows) rc = fn(m->parts[0].be, first[i], e);
    for (size_t i = 0; i < sizeof last / sizeof last[0] && rc == OK; i++)
        if (last[i]->rows) rc = fn(m->parts[m->n_parts - 1].be, last[i], e);
    for (int l = 0; m->layers && l < m->hp.n_layers && rc == OK; l++) {
        struct layer *y = &m->layers[l];
        struct mix_weights *x = &y->mix;
        struct weight *all[] = { &y->wq,   &y->wk,   &y->wv,   &y->wo,     &y->wg,
                                 &y->gate, &y->up,   &y->down, &y->router, &y->shared_gate,
                                 &x->in,   &x->z,    &x->ba,   &x->x,      &x->dt,
                                 &x->q_a,  &x->kv_a, &x->k_b,  &x->v_b };
        for (size_t i = 0; i < sizeof all / sizeof all[0] && rc == OK; i++)
            if (all[i]->rows) rc = fn(model_part(m, l)->be, all[i], e);
        if (rc == OK) rc = each_expert(m, l, fn, e);
    }
    return rc;
}

static int put_weights(struct model *m, struct err *e)
{
    uint64_t start = clock_ns();
    int rc;

    /* A tied embedding is also the head: it is put on both devices. */
    if (!m->head.rows && m->n_parts > 1) m->head = m->embd;
    if ((rc = each_weight(m, put_weight, e)) != OK) return rc;
    for (int i = 0; i < m->n_parts; i++)
        if ((rc = m->parts[i].be->weights_finish(m->parts[i].be, e)) != OK) return rc;
    m->put_ms = clock_ms_since(start);
    return OK;
}

/* Files store the up projections of latent attention (MLA) as one tensor or two. */
static int check_latent(const struct loader *ld, struct err *e)
{
    const struct model *m = ld->m;

    for (int l = 0; l < m->hp.n_layers; l++)
        if (m->hp.layers[l].mix.kind == MIX_MLA &&
            (!m->layers[l].mix.k_b.rows || !m->layers[l].mix.v_b.rows))
            return err_set(e, E_NOTFOUND,
                           "%s: layer %d has neither attn_k_b.weight and attn_v_b.weight nor "
                           "attn_kv_b.weight",
                           source_path(ld->src), l);
    return OK;
}

int weights_load(struct model *m, const struct source *src, const struct weight_list *list,
                 bool allow_nan, struct err *e)
{
    struct loader ld = { .m = m, .src = src, .list = list, .allow_nan = allow_nan };
    int rc;

    for (int i = 0; i < list->n; i++) {
        const struct weight_item *w = &list->items[i];
        if (row_is_vector(w->r) || w->r->kind == ROW_SCALE) continue;
        if ((rc = load_matrix(&ld, w, e)) != OK) goto out;
    }
    if ((rc = check_latent(&ld, e)) != OK) goto out;
    skip_positions(m);
    for (int i = 0; i < m->n_parts; i++)
        if ((rc = load_vectors(&ld, &m->parts[i], e)) != OK) goto out;
    if (ld.n_bad > 8) log_warn("%s: %d tensors contain NaN or Inf", source_path(src), ld.n_bad);
    rc = put_weights(m, e);
out:
    mem_free(ld.stage);
    return rc;
}

void weights_drop(struct model *m)
{
    each_weight(m, drop_weight, NULL);
    for (int i = 0; i < m->n_parts; i++) {
        struct part *p = &m->parts[i];
        if (p->vectors) p->be->free(p->be, p->vectors, p->vector_bytes, MEM_WEIGHTS);
        p->vectors = NULL;
    }
    for (struct owned *o = m->owned; o; o = o->next)
        if (o->be) o->be->free(o->be, o->p, o->n, MEM_WEIGHTS);
        else mem_free_aligned(o->p, o->n);
    m->owned = NULL;
}
