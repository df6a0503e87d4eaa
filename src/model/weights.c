#include "model/weights.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "kernel/quant.h"
#include "model/layout.h"
#include "model/rotary.h"

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
    int n_bad;    /* tensors with numbers that are not finite */
    float *stage; /* the vectors of a device, before they are put there */
    size_t n_stage;
};

static struct part *part_of(struct model *m, const struct weight_item *f)
{
    if (row_in_layer(f->r)) return model_part(m, f->layer);
    return &m->parts[f->r->flags & ROW_FIRST ? 0 : m->n_parts - 1];
}

/* ---- numbers that are none ---- */

static bool all_finite(const float *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(p[i])) return false;
    return true;
}

static void warn_bad(struct loader *ld, const struct weight_item *f)
{
    if (ld->n_bad++ < 8)
        log_warn("%s: tensor %.*s holds NaN or Inf", source_path(ld->src), STR_ARG(f->t->name));
}

/* Small matrices whole, of large ones the first, middle and last row. */
static void look_for_nan(struct loader *ld, const struct weight_item *f)
{
    int64_t cols = f->t->dims[f->t->n_dims - 1], rows = 1;
    bool whole = f->t->bytes <= 65536;
    int64_t n;
    uint64_t row_bytes;
    float *row;

    if (!dtype_row_bytes(f->t->type, (uint64_t)cols, &row_bytes)) return;
    for (int i = 0; i + 1 < f->t->n_dims; i++) rows *= f->t->dims[i];
    n = whole ? rows : rows < 3 ? rows : 3;
    row = mem_array((size_t)cols, sizeof *row);
    for (int64_t i = 0; row && i < n; i++) {
        int64_t r = whole || n < 3 ? i : i * (rows - 1) / 2;
        quant_decode(f->t->type, (const char *)f->t->data + (size_t)r * row_bytes, row, cols);
        if (!all_finite(row, cols)) {
            warn_bad(ld, f);
            break;
        }
    }
    mem_free(row);
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
static int copy_part(struct loader *ld, const struct weight_item *f, int i, int part,
                     struct weight *w, struct err *e)
{
    struct backend *be = part_of(ld->m, f)->be;
    uint64_t bytes = 0;
    enum dtype to = weight_copy_type(f, be, part, &bytes);
    int64_t rows = f->lay.part[part];
    float *tmp = mem_array(layout_tmp(&f->lay), sizeof *tmp);
    char *dst = NULL;

    if (tmp) dst = alloc_copy(ld->m, be, (size_t)rows * bytes);
    for (int64_t r = 0; dst && r < rows; r += LAYOUT_ROWS) {
        int n = rows - r < LAYOUT_ROWS ? (int)(rows - r) : LAYOUT_ROWS;
        layout_read_rows(&f->lay, f->t, i, part, r, n, to, dst + (size_t)r * bytes, bytes, tmp);
    }
    mem_free(tmp);
    if (!dst)
        return err_set(e, E_NOMEM, "%s: no memory for %llu bytes of tensor %.*s as %s",
                       source_path(ld->src), (unsigned long long)((uint64_t)rows * bytes),
                       STR_ARG(f->t->name), dtype_name((int)to));
    w->type = to;
    w->data = dst;
    return OK;
}

/* The model's struct weight for a part of matrix i. NULL: no memory for a list of experts. */
static struct weight *weight_at(struct model *m, const struct weight_item *f, int i, int part)
{
    char *base = row_in_layer(f->r) ? (char *)&m->layers[f->layer] : (char *)m;
    struct weight **list;

    if (f->r->kind == ROW_Q_GATE && part == 1) return &m->layers[f->layer].wg;
    if (!f->r->count || f->r->kind == ROW_EACH_HEAD)
        return (struct weight *)(void *)(base + f->r->at + (size_t)part * sizeof(struct weight));
    list = (struct weight **)(void *)(base + f->r->at + (size_t)part * sizeof(void *));
    if (!*list)
        *list = arena_array(&m->arena, (size_t)(f->lay.count * f->lay.tensors), sizeof **list);
    return *list ? *list + f->index + i : NULL;
}

static int load_matrix(struct loader *ld, const struct weight_item *f, struct err *e)
{
    const struct layout *y = &f->lay;
    bool copy = weight_is_copied(f, part_of(ld->m, f)->be);
    uint64_t row_bytes = 0;
    int rc;

    filemap_need(f->t->data, f->t->bytes);
    if (!y->mx) look_for_nan(ld, f);
    dtype_row_bytes(f->t->type, (uint64_t)y->cols, &row_bytes);
    for (int i = 0; i < y->count; i++)
        for (int p = 0; p < y->n_parts; p++) {
            struct weight *w = weight_at(ld->m, f, i, p);
            int64_t first = i * y->rows + layout_row(y, p, 0);
            int n = y->per_weight ? y->per_weight : 1;
            if (!w) return err_nomem(e, "the list of experts");
            *w = (struct weight){ .type = f->t->type,
                                  .rows = (int)(y->part[p] / n),
                                  .cols = (int)layout_cols(y, p),
                                  .n = n };
            w->data = (const char *)f->t->data + (size_t)first * row_bytes;
            if (copy && (rc = copy_part(ld, f, i, p, w, e)) != OK) return rc;
        }
    return OK;
}

/* The first rows of learned positions may belong to no position. */
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

static void load_scale(struct loader *ld, const struct weight_item *f)
{
    float v;
    quant_decode(f->t->type, f->t->data, &v, 1);
    if (!isfinite(v)) warn_bad(ld, f);
    memcpy((char *)&ld->m->layers[f->layer] + f->r->at, &v, sizeof v);
}

static void load_vector(struct loader *ld, const struct weight_item *f, const struct part *to)
{
    const struct hparams *hp = &ld->m->hp;
    const struct layout *y = &f->lay;
    char *base = row_in_layer(f->r) ? (char *)&ld->m->layers[f->layer] : (char *)ld->m;

    for (int p = 0; p < y->n_parts; p++) {
        int64_t n = y->part[p], all = n * y->count * y->tensors;
        float *v = ld->stage + ld->n_stage + f->index * n, *there = to->vectors + ld->n_stage, tmp;
        for (int64_t k = 0; k < n * y->count; k++)
            layout_read(y, f->t, (int)(k / n), p, k % n, DT_F32, &v[k], &tmp);
        if (!all_finite(v, n * y->count)) warn_bad(ld, f);
        for (int64_t k = 0; k < n * y->count; k++) {
            if (f->r->flags & ROW_NORM) v[k] += hp->norm_bias1;
            if (f->r->flags & ROW_RESIDUAL) v[k] *= hp->residual_scale;
            if (f->r->flags & ROW_LOG && hp->from == SOURCE_HF) v[k] = -expf(v[k]);
        }
        if (f->r->kind == ROW_Q_GATE && p == 1) ld->m->layers[f->layer].bg = there;
        else if (f->index == 0)
            memcpy(base + f->r->at + (size_t)p * sizeof there, &there, sizeof there);
        if (f->index == y->tensors - 1) ld->n_stage += weight_padded(all);
    }
}

static size_t count_floats(const struct loader *ld, const struct part *p)
{
    size_t n = weights_made_floats(&ld->m->hp);

    for (int i = 0; i < ld->list->n; i++)
        if (part_of(ld->m, &ld->list->items[i]) == p)
            n += weight_vector_floats(&ld->list->items[i]);
    return n;
}

/* What no tensor holds: rotary frequencies, slopes. */
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

/* All vectors of a part in one block of its device's memory. */
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
        const struct weight_item *f = &ld->list->items[i];
        if (part_of(ld->m, f) != p) continue;
        if (row_is_vector(f->r)) load_vector(ld, f, p);
        if (f->r->kind == ROW_SCALE) load_scale(ld, f);
    }
    make_vectors(ld, p);
    p->be->put(p->be, p->vectors, ld->stage, p->vector_bytes);
    return p->be->sync(p->be, e);
}

/* ---- the backends' part ---- */

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

    /* An embedding that is the head too lies on both of their devices. */
    if (!m->head.rows && m->n_parts > 1) m->head = m->embd;
    if ((rc = each_weight(m, put_weight, e)) != OK) return rc;
    for (int i = 0; i < m->n_parts; i++)
        if ((rc = m->parts[i].be->weights_finish(m->parts[i].be, e)) != OK) return rc;
    m->put_ms = clock_ms_since(start);
    return OK;
}

/* Of latent attention, files have one tensor or two. */
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
                 struct err *e)
{
    struct loader ld = { .m = m, .src = src, .list = list };
    int rc;

    for (int i = 0; i < list->n; i++) {
        const struct weight_item *f = &list->items[i];
        if (row_is_vector(f->r) || f->r->kind == ROW_SCALE) continue;
        if ((rc = load_matrix(&ld, f, e)) != OK) goto out;
    }
    if ((rc = check_latent(&ld, e)) != OK) goto out;
    skip_positions(m);
    for (int i = 0; i < m->n_parts; i++)
        if ((rc = load_vectors(&ld, &m->parts[i], e)) != OK) goto out;
    if (ld.n_bad > 8) log_warn("%s: %d tensors in all hold NaN or Inf", source_path(src), ld.n_bad);
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
