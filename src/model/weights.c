#include "model/weights.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "kernel/quant.h"
#include "model/rotary.h"

#include <math.h>
#include <stdio.h>

struct owned {
    struct owned *next;
    void *p;
    size_t n;
};

/* A tensor that belongs to a row of the table. */
struct found {
    const struct source_tensor *t;
    const struct tensor_row *r;
    int layer;
    int rows, cols;              /* cols 0: a vector */
    bool transposed;
};

struct loader {
    struct model *m;
    const struct source *src;
    struct arena arena;
    struct found *found;
    int n_found, n_bad;
    float *stage;                /* the vectors, before they go to the backend */
    size_t n_stage;
};

/* ---- finding ---- */

static bool required(const struct hparams *hp, const struct tensor_row *r)
{
    if (r->flags & ROW_OPTIONAL) return false;
    if (r->flags & ROW_QKV_BIAS && hp->info->flags & ARCH_QKV_BIAS) return true;
    if (r->flags & ROW_ATTN_BIAS) return hp->attn_bias;
    if (r->flags & ROW_MLP_BIAS) return hp->mlp_bias;
    return true;
}

static int wrong_shape(const struct loader *ld, const struct found *f, const char *name,
                       struct err *e)
{
    char want[48], have[128] = "[";
    for (int i = 0; i < f->t->n_dims; i++) {
        size_t n = strlen(have);
        snprintf(have + n, sizeof have - n, "%s%lld", i ? ", " : "", (long long)f->t->dims[i]);
    }
    if (f->cols) snprintf(want, sizeof want, "[%d, %d]", f->rows, f->cols);
    else snprintf(want, sizeof want, "[%d]", f->rows);
    return err_set(e, E_FORMAT, "%s: tensor %s is %s], expected %s", source_path(ld->src), name,
                   have, want);
}

static int check_shape(const struct loader *ld, struct found *f, const char *name, struct err *e)
{
    const struct source_tensor *t = f->t;
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++) n *= t->dims[i];
    if (!f->cols)
        return n == f->rows && (t->n_dims < 2 || n == 1) ? OK : wrong_shape(ld, f, name, e);
    if (t->n_dims != 2) return wrong_shape(ld, f, name, e);
    if (t->dims[0] == f->rows && t->dims[1] == f->cols) return OK;
    f->transposed = f->r->rows == DIM_VOCAB && t->dims[0] == f->cols && t->dims[1] == f->rows &&
                    !dtype_info((int)t->type)->quantized;
    return f->transposed ? OK : wrong_shape(ld, f, name, e);
}

static int find_row(struct loader *ld, const struct tensor_row *r, int l, struct err *e)
{
    const struct hparams *hp = &ld->m->hp;
    struct found f = {
        .r = r, .layer = l, .rows = hparams_dim(hp, r->rows, l), .cols = hparams_dim(hp, r->cols, l)
    };
    char name[256];
    int rc;

    if (hp->tied && r->flags & ROW_HEAD && r->kind == ROW_MAT) return OK;
    if (!hparams_name(hp, r, l, hp->from, name, sizeof name)) return OK;
    f.t = source_find(ld->src, name);
    if (!f.t) {
        char cols[16] = "";
        if (!required(hp, r)) return OK;
        if (f.cols) snprintf(cols, sizeof cols, ", %d", f.cols);
        return err_set(e, E_NOTFOUND, "%s: tensor %s is missing, expected [%d%s]",
                       source_path(ld->src), name, f.rows, cols);
    }
    if ((rc = check_shape(ld, &f, name, e)) != OK) return rc;
    if (!quant_can_decode(f.t->type))
        return err_set(e, E_UNSUPPORTED, "%s: tensor %s is %s, which is no weight type",
                       source_path(ld->src), name, dtype_name((int)f.t->type));
    ld->found[ld->n_found++] = f;
    ld->m->weight_bytes += f.t->bytes;
    ld->m->n_params += (uint64_t)f.rows * (uint64_t)(f.cols ? f.cols : 1);
    return OK;
}

static int find_all(struct loader *ld, struct err *e)
{
    const struct hparams *hp = &ld->m->hp;
    const struct tensor_row *r;
    size_t n_rows = 0;
    int it = 0, rc;

    while (arch_row(hp->info, &it)) n_rows++;
    ld->found = arena_array(&ld->arena, n_rows * (size_t)(hp->n_layers + 1), sizeof *ld->found);
    for (int l = -1; l < hp->n_layers; l++)
        for (it = 0, r = arch_row(hp->info, &it); r; r = arch_row(hp->info, &it))
            if (row_in_layer(r) == (l >= 0) && (rc = find_row(ld, r, l < 0 ? 0 : l, e)) != OK)
                return rc;
    return OK;
}

static struct part *part_of(struct model *m, const struct found *f)
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

static void warn_bad(struct loader *ld, const struct found *f)
{
    if (ld->n_bad++ < 8)
        log_warn("%s: tensor %.*s holds NaN or Inf", source_path(ld->src), STR_ARG(f->t->name));
}

/* Small matrices whole, of large ones the first, middle and last row. */
static void look_for_nan(struct loader *ld, const struct found *f)
{
    int64_t rows = f->t->dims[0], cols = f->t->dims[1];
    bool whole = f->t->bytes <= 65536;
    int64_t n = whole ? rows : rows < 3 ? rows : 3;
    uint64_t row_bytes;
    float *row;

    if (!dtype_row_bytes(f->t->type, (uint64_t)cols, &row_bytes)) return;
    row = mem_try_array((size_t)cols, sizeof *row);
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

static void *own(struct model *m, size_t n)
{
    struct owned *o;
    void *p = mem_try_aligned(n);
    if (!p) return NULL;
    o = arena_new(&m->arena, struct owned);
    *o = (struct owned){ m->owned, p, n };
    m->owned = o;
    return p;
}

static void transpose(float *dst, const float *src, int rows, int cols)
{
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++)
            dst[(size_t)r * (size_t)cols + (size_t)c] = src[(size_t)c * (size_t)rows + (size_t)r];
}

/* A copy the backend can read: F16 of blocks, F32 of plain numbers, rows in order. */
static int copy_weight(struct loader *ld, const struct found *f, struct weight *w, struct err *e)
{
    enum dtype to = dtype_info((int)f->t->type)->quantized ? DT_F16 : DT_F32;
    int64_t cols = f->t->dims[1], rows = f->t->dims[0];
    uint64_t from_bytes, to_bytes;
    float *row = NULL, *flat = NULL;
    char *dst;
    int rc = OK;

    dtype_row_bytes(f->t->type, (uint64_t)cols, &from_bytes);
    dtype_row_bytes(to, (uint64_t)cols, &to_bytes);
    dst = own(ld->m, (size_t)rows * to_bytes);
    row = mem_try_array((size_t)cols, sizeof *row);
    if (!dst || !row) goto nomem;
    for (int64_t r = 0; r < rows; r++) {
        quant_decode(f->t->type, (const char *)f->t->data + (size_t)r * from_bytes, row, cols);
        quant_encode(to, row, dst + (size_t)r * to_bytes, cols);
    }
    if (f->transposed) {
        size_t n = (size_t)rows * (size_t)cols * sizeof(float);
        if (!(flat = own(ld->m, n))) goto nomem;
        transpose(flat, (const float *)(void *)dst, f->rows, f->cols);
        dst = (char *)flat;
    }
    w->type = to;
    w->data = dst;
    goto out;
nomem:
    rc = err_set(e, E_NOMEM, "%s: no memory for %llu bytes of tensor %.*s as %s",
                 source_path(ld->src), (unsigned long long)((uint64_t)rows * to_bytes),
                 STR_ARG(f->t->name), dtype_name((int)to));
out:
    mem_free(row);
    return rc;
}

/* Safetensors may begin a tensor at any byte; plain numbers want their own alignment. */
static bool aligned(const struct source_tensor *t)
{
    const struct dtype_info *d = dtype_info((int)t->type);
    size_t n = d->quantized ? 2 : (size_t)d->bytes;
    return (uintptr_t)t->data % n == 0;
}

static struct weight rows_from(const struct weight *w, int first, int n)
{
    struct weight s = *w;
    uint64_t row_bytes = 0;
    dtype_row_bytes(w->type, (uint64_t)w->cols, &row_bytes);
    s.data = (const char *)w->data + (size_t)first * row_bytes;
    s.rows = n;
    return s;
}

static void place(struct model *m, const struct found *f, const struct weight *w)
{
    struct layer *y = &m->layers[f->layer];
    int q = hparams_dim(&m->hp, DIM_Q, f->layer), k = hparams_dim(&m->hp, DIM_K, f->layer);
    int v = hparams_dim(&m->hp, DIM_V, f->layer), ff = hparams_dim(&m->hp, DIM_FF, f->layer);
    char *base = row_in_layer(f->r) ? (char *)y : (char *)m;
    switch (f->r->kind) {
    case ROW_QKV:
        y->wq = rows_from(w, 0, q);
        y->wk = rows_from(w, q, k);
        y->wv = rows_from(w, q + k, v);
        break;
    case ROW_GATE_UP:
        y->gate = rows_from(w, 0, ff);
        y->up = rows_from(w, ff, ff);
        break;
    default: memcpy(base + f->r->at, w, sizeof *w);
    }
}

static int load_matrix(struct loader *ld, const struct found *f, struct err *e)
{
    struct weight w = {
        .type = f->t->type, .rows = f->rows, .cols = f->cols, .n = 1, .data = f->t->data
    };
    struct backend *be = part_of(ld->m, f)->be;
    int rc;
    filemap_need(f->t->data, f->t->bytes);
    look_for_nan(ld, f);
    if ((!be->weight_can(be, w.type) || !aligned(f->t) || f->transposed) &&
        (rc = copy_weight(ld, f, &w, e)) != OK)
        return rc;
    place(ld->m, f, &w);
    return OK;
}

/* ---- vectors ---- */

static size_t padded(int n) { return ((size_t)n + 15) / 16 * 16; }

static void load_scale(struct loader *ld, const struct found *f)
{
    float v;
    quant_decode(f->t->type, f->t->data, &v, 1);
    if (!isfinite(v)) warn_bad(ld, f);
    memcpy((char *)&ld->m->layers[f->layer] + f->r->at, &v, sizeof v);
}

static void load_vector(struct loader *ld, const struct found *f, const struct part *p)
{
    const struct hparams *hp = &ld->m->hp;
    float *v = ld->stage + ld->n_stage, *there = p->vectors + ld->n_stage;
    char *base = row_in_layer(f->r) ? (char *)&ld->m->layers[f->layer] : (char *)ld->m;
    uint64_t bytes;

    if (dtype_row_bytes(f->t->type, (uint64_t)f->rows, &bytes))
        quant_decode(f->t->type, f->t->data, v, f->rows);
    if (!all_finite(v, f->rows)) warn_bad(ld, f);
    for (int i = 0; i < f->rows; i++) {
        if (f->r->flags & ROW_NORM) v[i] += hp->norm_bias1;
        if (f->r->flags & ROW_RESIDUAL) v[i] *= hp->residual_scale;
    }
    memcpy(base + f->r->at, &there, sizeof there);
    ld->n_stage += padded(f->rows);
}

static size_t n_floats(const struct loader *ld, const struct part *p)
{
    size_t n = 0;
    for (int i = 0; i < ld->n_found; i++)
        if (ld->found[i].r->kind == ROW_VEC && part_of(ld->m, &ld->found[i]) == p)
            n += padded(ld->found[i].rows);
    for (int i = 0; i < ld->m->hp.n_rope; i++) n += padded(ld->m->hp.rope[i].n_rot / 2);
    return n;
}

/* All vectors of a part and the rotary frequencies in one block of its device's memory. */
static int load_vectors(struct loader *ld, struct part *p, struct err *e)
{
    struct model *m = ld->m;
    size_t n = n_floats(ld, p);
    int rc;

    mem_free(ld->stage);
    ld->n_stage = 0;
    ld->stage = mem_try_array(n ? n : 1, sizeof(float));
    if (!ld->stage)
        return err_set(e, E_NOMEM, "no memory for %zu bytes of norms and biases",
                       n * sizeof(float));
    if ((rc = p->be->alloc(p->be, (void **)&p->vectors, n * sizeof(float), MEM_WEIGHTS, e)) != OK)
        return rc;
    p->vector_bytes = n * sizeof(float);

    for (int i = 0; i < ld->n_found; i++) {
        if (part_of(m, &ld->found[i]) != p) continue;
        if (ld->found[i].r->kind == ROW_VEC) load_vector(ld, &ld->found[i], p);
        if (ld->found[i].r->kind == ROW_SCALE) load_scale(ld, &ld->found[i]);
    }
    for (int i = 0; i < m->hp.n_rope; i++) {
        rotary_freq(&m->hp.rope[i], 0, ld->stage + ld->n_stage);
        p->rope_freq[i] = p->vectors + ld->n_stage;
        ld->n_stage += padded(m->hp.rope[i].n_rot / 2);
    }
    p->be->put(p->be, p->vectors, ld->stage, p->vector_bytes);
    return p->be->sync(p->be, e);
}

/* ---- the backends' part ---- */

typedef int weight_fn(struct backend *be, struct weight *w, struct err *e);

static int put_weight(struct backend *be, struct weight *w, struct err *e) { return be->weight_put(be, w, e); }

static int drop_weight(struct backend *be, struct weight *w, struct err *e)
{
    (void)e;
    be->weight_drop(be, w);
    return OK;
}

static int each_weight(struct model *m, weight_fn *fn, struct err *e)
{
    int rc = OK;

    if (m->n_parts == 0) return OK;
    if (m->embd.rows) rc = fn(m->parts[0].be, &m->embd, e);
    if (m->head.rows && rc == OK) rc = fn(m->parts[m->n_parts - 1].be, &m->head, e);
    for (int l = 0; m->layers && l < m->hp.n_layers; l++) {
        struct layer *y = &m->layers[l];
        struct weight *all[] = { &y->wq, &y->wk, &y->wv, &y->wo, &y->gate, &y->up, &y->down };
        for (size_t i = 0; i < sizeof all / sizeof all[0] && rc == OK; i++)
            if (all[i]->rows) rc = fn(model_part(m, l)->be, all[i], e);
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
        if ((rc = m->parts[i].be->weights_ready(m->parts[i].be, e)) != OK) return rc;
    m->put_ms = clock_ms_since(start);
    return OK;
}

int weights_load(struct model *m, const struct source *src, struct err *e)
{
    struct loader ld = { .m = m, .src = src };
    int rc;

    if ((rc = find_all(&ld, e)) != OK) goto out;
    for (int i = 0; i < ld.n_found; i++) {
        const struct found *f = &ld.found[i];
        if (f->r->kind == ROW_VEC || f->r->kind == ROW_SCALE) continue;
        if ((rc = load_matrix(&ld, f, e)) != OK) goto out;
    }
    for (int i = 0; i < m->n_parts; i++)
        if ((rc = load_vectors(&ld, &m->parts[i], e)) != OK) goto out;
    if (ld.n_bad > 8) log_warn("%s: %d tensors in all hold NaN or Inf", source_path(src), ld.n_bad);
    rc = put_weights(m, e);
out:
    mem_free(ld.stage);
    arena_release(&ld.arena);
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
    for (struct owned *o = m->owned; o; o = o->next) mem_free_aligned(o->p, o->n);
    m->owned = NULL;
}
