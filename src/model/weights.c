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
    int index; /* of those with a '#' in their name */
    struct layout lay;
};

struct loader {
    struct model *m;
    const struct source *src;
    struct arena arena;
    struct found *found;
    int n_found, n_bad;
    float *stage; /* the vectors, before they go to the backend */
    size_t n_stage;
};

/* ---- finding ---- */

static int wrong_shape(const struct loader *ld, const struct found *f, const char *name,
                       struct err *e)
{
    char want[64], have[128] = "[";
    for (int i = 0; i < f->t->n_dims; i++) {
        size_t n = strlen(have);
        snprintf(have + n, sizeof have - n, "%s%lld", i ? ", " : "", (long long)f->t->dims[i]);
    }
    layout_text(&f->lay, want, sizeof want);
    return err_set(e, E_FORMAT, "%s: tensor %s is %s], expected %s", source_path(ld->src), name,
                   have, want);
}

static int check_found(const struct loader *ld, struct found *f, const char *name, struct err *e)
{
    bool flipped;

    if (!layout_fits(&f->lay, f->t, &flipped) || (flipped && f->r->rows != DIM_VOCAB))
        return wrong_shape(ld, f, name, e);
    if (flipped) f->lay.turned = !f->lay.turned;
    if (!layout_scales(&f->lay, ld->src, f->t))
        return err_set(e, E_FORMAT, "%s: tensor %s has no scales of its shape beside it",
                       source_path(ld->src), name);
    if (!quant_can_decode(f->t->type) || (f->lay.turned && dtype_info((int)f->t->type)->quantized))
        return err_set(e, E_UNSUPPORTED, "%s: tensor %s is %s, which is no weight type",
                       source_path(ld->src), name, dtype_name((int)f->t->type));
    return OK;
}

static int find_row(struct loader *ld, const struct tensor_row *r, int l, struct err *e)
{
    const struct hparams *hp = &ld->m->hp;
    struct found f = { .r = r, .layer = l };
    char name[256], want[64];
    int rc;

    if (!hparams_has(hp, r, l) || !hparams_name(hp, r, l, 0, hp->from, name, sizeof name))
        return OK;
    layout_of(&f.lay, hp, r, l, hp->from);
    for (struct layout y = f.lay; f.index < y.tensors; f.index++, f.lay = y) {
        hparams_name(hp, r, l, f.index, hp->from, name, sizeof name);
        f.t = source_find(ld->src, name);
        if (!f.t && f.index == 0 &&
            (!hparams_needs(hp, r, l) || hparams_covered(hp, ld->src, r, l)))
            return OK;
        if (!f.t) {
            layout_text(&f.lay, want, sizeof want);
            return err_set(e, E_NOTFOUND, "%s: tensor %s is missing, expected %s",
                           source_path(ld->src), name, want);
        }
        if ((rc = check_found(ld, &f, name, e)) != OK) return rc;
        ld->found[ld->n_found++] = f;
        ld->m->weight_bytes += f.t->bytes;
        ld->m->n_params += (uint64_t)f.lay.count * (uint64_t)f.lay.rows * (uint64_t)f.lay.cols;
    }
    return OK;
}

static int find_all(struct loader *ld, struct err *e)
{
    const struct hparams *hp = &ld->m->hp;
    const struct tensor_row *r;
    size_t n_rows = 0;
    int it = 0, rc;

    while (arch_row(hp->info, &it)) n_rows++;
    ld->found =
        arena_array(&ld->arena, n_rows * (size_t)(hp->n_layers + 1) + source_n_tensors(ld->src),
                    sizeof *ld->found);
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

static void *own(struct model *m, size_t n)
{
    struct owned *o;
    void *p = mem_aligned(n);
    if (!p) return NULL;
    o = arena_new(&m->arena, struct owned);
    *o = (struct owned){ m->owned, p, n };
    m->owned = o;
    return p;
}

/* A part's own copy: rows in order, in a type the backend can read (its own, else F16 of blocks,
 * F32 of plain numbers). */
static int copy_part(struct loader *ld, const struct found *f, int i, int part, struct weight *w,
                     struct err *e)
{
    struct backend *be = part_of(ld->m, f)->be;
    enum dtype from = layout_type(&f->lay, f->t),
               to = be->weight_supported(be, from) && quant_can_encode(from) ? from
                    : dtype_info((int)from)->quantized                       ? DT_F16
                                                                             : DT_F32;
    int64_t rows = f->lay.part[part], cols = layout_cols(&f->lay, part);
    uint64_t bytes = 0;
    float *tmp = mem_array(layout_tmp(&f->lay), sizeof *tmp);
    char *dst = NULL;

    if (f->lay.order == ORDER_KV_B && dtype_info((int)from)->quantized)
        to = DT_F16; /* turned: by the number */
    if (!dtype_row_bytes(to, (uint64_t)cols, &bytes))
        to = DT_F32, bytes = (uint64_t)cols * sizeof *tmp;
    if (tmp) dst = own(ld->m, (size_t)rows * bytes);
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

/* Safetensors may begin a tensor at any byte; plain numbers want their own alignment. */
static bool aligned(const struct source_tensor *t)
{
    const struct dtype_info *d = dtype_info((int)t->type);
    size_t n = d->quantized ? 2 : (size_t)d->bytes;
    return (uintptr_t)t->data % n == 0;
}

/* Where a part of matrix i goes. */
static struct weight *place(struct model *m, const struct found *f, int i, int part)
{
    char *base = row_in_layer(f->r) ? (char *)&m->layers[f->layer] : (char *)m;
    struct weight **list;

    if (f->r->kind == ROW_Q_GATE && part == 1) return &m->layers[f->layer].wg;
    if (!f->r->count || f->r->kind == ROW_EACH_HEAD)
        return (struct weight *)(void *)(base + f->r->at + (size_t)part * sizeof(struct weight));
    list = (struct weight **)(void *)(base + f->r->at + (size_t)part * sizeof(void *));
    if (!*list)
        *list = arena_array(&m->arena, (size_t)(f->lay.count * f->lay.tensors), sizeof **list);
    return *list + f->index + i;
}

static int load_matrix(struct loader *ld, const struct found *f, struct err *e)
{
    struct backend *be = part_of(ld->m, f)->be;
    const struct layout *y = &f->lay;
    bool copy =
        !be->weight_supported(be, layout_type(y, f->t)) || !aligned(f->t) || !layout_in_place(y);
    uint64_t row_bytes = 0;
    int rc;

    filemap_need(f->t->data, f->t->bytes);
    if (!y->mx) look_for_nan(ld, f);
    dtype_row_bytes(f->t->type, (uint64_t)y->cols, &row_bytes);
    for (int i = 0; i < y->count; i++)
        for (int p = 0; p < y->n_parts; p++) {
            struct weight *w = place(ld->m, f, i, p);
            int64_t first = i * y->rows + layout_row(y, p, 0);
            int n = y->per_weight ? y->per_weight : 1;
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

static size_t padded(int64_t n) { return ((size_t)n + 15) / 16 * 16; }

static void load_scale(struct loader *ld, const struct found *f)
{
    float v;
    quant_decode(f->t->type, f->t->data, &v, 1);
    if (!isfinite(v)) warn_bad(ld, f);
    memcpy((char *)&ld->m->layers[f->layer] + f->r->at, &v, sizeof v);
}

static void load_vector(struct loader *ld, const struct found *f, const struct part *to)
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
        if (f->index == y->tensors - 1) ld->n_stage += padded(all);
    }
}

static size_t vector_room(const struct found *f)
{
    size_t n = 0;

    if (!row_is_vector(f->r) || f->index > 0) return 0;
    for (int p = 0; p < f->lay.n_parts; p++)
        n += padded(f->lay.part[p] * f->lay.count * f->lay.tensors);
    return n;
}

static size_t n_floats(const struct loader *ld, const struct part *p)
{
    const struct hparams *hp = &ld->m->hp;
    size_t n = hp->alibi != 0 ? padded(hp->layers[0].n_heads) : 0;

    for (int i = 0; i < ld->n_found; i++)
        if (part_of(ld->m, &ld->found[i]) == p) n += vector_room(&ld->found[i]);
    for (int i = 0; i < hp->n_rope; i++) n += padded(hp->rope[i].n_rot / 2);
    return n;
}

/* What no tensor holds: rotary frequencies, slopes. */
static void make_vectors(struct loader *ld, struct part *p)
{
    const struct hparams *hp = &ld->m->hp;

    for (int i = 0; i < hp->n_rope; i++) {
        rotary_freq(&hp->rope[i], 0, ld->stage + ld->n_stage);
        p->rope_freq[i] = p->vectors + ld->n_stage;
        ld->n_stage += padded(hp->rope[i].n_rot / 2);
    }
    if (hp->alibi == 0) return;
    hparams_slopes(hp, hp->layers[0].n_heads, ld->stage + ld->n_stage);
    p->slopes = p->vectors + ld->n_stage;
}

/* All vectors of a part in one block of its device's memory. */
static int load_vectors(struct loader *ld, struct part *p, struct err *e)
{
    size_t n = n_floats(ld, p);
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

    for (int i = 0; i < ld->n_found; i++) {
        const struct found *f = &ld->found[i];
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

int weights_load(struct model *m, const struct source *src, struct err *e)
{
    struct loader ld = { .m = m, .src = src };
    int rc;

    if ((rc = find_all(&ld, e)) != OK) goto out;
    for (int i = 0; i < ld.n_found; i++) {
        const struct found *f = &ld.found[i];
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
