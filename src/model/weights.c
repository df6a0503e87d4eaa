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
#include "base/par.h"
#include "kernel/quant.h"
#include "model/layout.h"
#include "model/rotary.h"
#include "model/scan.h"
#include "model/shard.h"

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
    int n_bad;       /* tensors with numbers that are not finite */
    struct par *par; /* packs quantized layers and copies columns; NULL: there are none */
    float *stage;    /* the vectors of a device, before they are put there */
    size_t n_stage;
    struct loadprogress progress;
    int n_put, n_weights; /* matrices that a backend has taken over, of how many */
    int shown;            /* percent that was told last */
};

/* ---- progress ---- */

enum { LOADED_PERCENT = 30 }; /* of the work, before matrices are handed to the backends */

static void tell_progress(struct loader *ld, int percent)
{
    if (!ld->progress.fn || percent <= ld->shown) return;
    ld->shown = percent;
    ld->progress.fn(ld->progress.arg, percent);
}

static struct part *part_of(struct model *m, const struct weight_item *w)
{
    if (row_in_layer(w->r) && weight_expert_matrix(w) >= 0) return model_experts(m, w->layer);
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

/* Rows [r, r + n) of the part as they are used, n <= LAYOUT_ROWS. wide: memory for so many whole
 * rows, of which only some columns are used. */
static void read_rows(const struct weight_item *w, const struct layout *y, int i, int part,
                      int64_t r, int n, enum dtype to, char *dst, size_t row_bytes, char *wide,
                      float *tmp)
{
    bool narrow = weight_is_narrow(w), same = to == layout_type(y, w->t);
    bool grouped = to == DT_GROUPED && narrow;
    enum dtype read_as = same ? to : DT_F32;
    struct grouped part_group = { 0 };
    uint64_t whole = 0, at = 0;
    int64_t run = n, row = r;

    if (grouped && grouped_cut(y->group, w->cols.at, w->cols.n, &part_group))
        whole = y->group->row_bytes;
    else dtype_row_bytes(read_as, (uint64_t)layout_cols(y, part), &whole);
    if (narrow && !grouped) dtype_row_bytes(read_as, (uint64_t)w->cols.at, &at);
    for (int done = 0, k; done < n; done += k) {
        if (w->is_cut) row = cut_row(&w->rows[part], r + done, &run);
        k = run < n - done ? (int)run : n - done;
        if (!narrow) {
            layout_read_rows(y, w->t, i + w->mat_at, part, row, k, to,
                             dst + (size_t)done * row_bytes, row_bytes, tmp);
            continue;
        }
        layout_read_rows(y, w->t, i + w->mat_at, part, row, k, read_as, wide, whole, tmp);
        for (int j = 0; j < k; j++) {
            char *out = dst + (size_t)(done + j) * row_bytes;
            const char *in = wide + (size_t)j * whole + at;
            if (grouped) grouped_copy(y->group, in, w->cols.at, &part_group, out);
            else if (same) memcpy(out, in, row_bytes);
            else quant_encode(to, (const float *)(const void *)in, out, w->cols.n);
        }
    }
}

/* A part of matrix i that is being copied. */
struct copying {
    struct par *par; /* NULL: one thread */
    const struct weight_item *w;
    const struct layout *y;
    int i, part;
    enum dtype to;
    bool plain; /* some columns of rows that need no conversion, straight from the file */
    char *dst;
    size_t bytes; /* of a row */
    float *tmp;   /* scratch of each thread */
    size_t tmp_len;
    char *wide; /* whole rows of each thread, where only some columns are used */
    size_t wide_len;
};

static void copy_columns(const struct copying *c, int64_t first, int n)
{
    const struct weight_item *w = c->w;
    uint64_t whole = 0, at = 0;
    int64_t run;

    dtype_row_bytes(w->t->type, (uint64_t)w->lay.cols, &whole);
    dtype_row_bytes(w->t->type, (uint64_t)w->cols.at, &at);
    for (int64_t r = first; r < first + n; r++) {
        int64_t row = layout_row(&w->lay, c->part, cut_row(&w->rows[c->part], r, &run));
        const char *in = (const char *)w->t->data +
                         (size_t)((c->i + w->mat_at) * w->lay.rows + row) * whole + at;
        memcpy(c->dst + (size_t)r * c->bytes, in, c->bytes);
    }
}

static void copy_rows(const struct copying *c, int64_t r, int n, int thread)
{
    if (c->plain) {
        copy_columns(c, r, n);
        return;
    }
    read_rows(c->w, c->y, c->i, c->part, r, n, c->to, c->dst + (size_t)r * c->bytes, c->bytes,
              c->wide + (size_t)thread * c->wide_len, c->tmp + (size_t)thread * c->tmp_len);
}

static void run_copy(void *arg, int thread, int n_threads)
{
    const struct copying *c = arg;
    int a, b;

    (void)n_threads;
    while (par_next(c->par, (int)weight_rows(c->w, c->part), LAYOUT_ROWS, &a, &b))
        copy_rows(c, a, b - a, thread);
}

/* Quantized layers are packed, and columns of a member's matrices copied, by all cores: first touches of
 * memory are most of it. */
static int open_team(struct loader *ld, struct err *e)
{
    return ld->par ? OK : par_open(&ld->par, (struct par_opt){ 0 }, e);
}

/* The layout of the member's columns. NULL: no memory. */
static const struct grouped *cut_group(struct loader *ld, const struct weight_item *w,
                                       const struct layout *y)
{
    struct grouped *g = arena_new(&ld->m->arena, struct grouped);

    if (g) grouped_cut(y->group, w->cols.at, w->cols.n, g);
    return g;
}

/* Copies a part of matrix i: rows in order, in a type the backend can read. */
static int copy_part(struct loader *ld, const struct weight_item *w, const struct layout *y, int i,
                     int part, struct weight *out, struct err *e)
{
    struct backend *be = part_of(ld->m, w)->be;
    uint64_t bytes = 0;
    enum dtype to = weight_copy_type(w, be, part, &bytes);
    int64_t rows = weight_rows(w, part);
    bool narrow = weight_is_narrow(w), many = y->quant || narrow;
    struct copying c = { .w = w, .y = y, .i = i, .part = part, .to = to };
    char *dst = NULL, none = 0;
    size_t n = 1;
    int rc;

    /* Devices multiply experts and heads by activations in one order of columns only. */
    if (to == DT_GROUPED && y->group->order && w->r->count && !backend_is_host(be)) {
        to = c.to = DT_F16;
        dtype_row_bytes(to, (uint64_t)weight_cols(w, part), &bytes);
    }
    c.plain = narrow && layout_in_place(y) && to == w->t->type;
    if (many && (rc = open_team(ld, e)) != OK) return rc;
    if (many) c.par = ld->par, n = (size_t)par_n(c.par);
    c.bytes = (size_t)bytes;
    c.tmp_len = layout_tmp(y);
    c.tmp = mem_array(c.tmp_len * n, sizeof *c.tmp);
    /* F32 is the widest type that rows are read as */
    if (narrow) c.wide_len = (size_t)y->cols * LAYOUT_ROWS * sizeof(double);
    c.wide = narrow ? mem_array(n, c.wide_len) : &none;
    if (c.tmp && c.wide) c.dst = dst = alloc_copy(ld->m, be, (size_t)rows * bytes);
    if (dst && c.par) par_run(c.par, run_copy, &c);
    else
        for (int64_t r = 0; dst && r < rows; r += LAYOUT_ROWS)
            copy_rows(&c, r, rows - r < LAYOUT_ROWS ? (int)(rows - r) : LAYOUT_ROWS, 0);
    if (narrow) mem_free(c.wide);
    mem_free(c.tmp);
    if (!dst)
        return err_set(e, E_NOMEM, "%s: no memory for %llu bytes of tensor %.*s as %s",
                       source_path(ld->src), (unsigned long long)((uint64_t)rows * bytes),
                       STR_ARG(w->t->name), dtype_name((int)to));
    out->type = to;
    out->data = dst;
    if (to == DT_GROUPED) out->group = narrow ? cut_group(ld, w, y) : y->group;
    return to == DT_GROUPED && !out->group ? err_nomem(e, "the layout of a quantized layer") : OK;
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
        *list = arena_array(&m->arena, (size_t)hparams_dim(&m->hp, w->r->count, w->layer),
                            sizeof **list);
    return *list ? *list + w->index + i : NULL;
}

/* The order of a quantized layer's columns is kept beside its rows. */
static int prepare_quant(struct loader *ld, const struct weight_item *w, struct layout *y,
                         struct err *e)
{
    size_t n = y->quant ? hfquant_order_len(y->quant) : 0;
    int32_t *order = n ? alloc_copy(ld->m, part_of(ld->m, w)->be, n * sizeof *order) : NULL;

    if (!y->quant) return OK;
    if (n && !order) return err_nomem(e, "the order of a layer's columns");
    for (int i = 0; i < HFQUANT_PARTS; i++)
        if (hfquant_part(y->quant, i))
            filemap_need(hfquant_part(y->quant, i)->data, hfquant_part(y->quant, i)->bytes);
    return layout_prepare(y, w->mat_at, ld->src, &ld->m->arena, order, e);
}

static int load_matrix(struct loader *ld, const struct weight_item *w, struct err *e)
{
    struct layout lay = w->lay;
    const struct layout *y = &lay;
    bool copy = weight_is_copied(w, part_of(ld->m, w)->be);
    uint64_t row_bytes = 0;
    int rc;

    if (!w->t->quant && (!w->is_cut || copy)) filemap_need(w->t->data, w->t->bytes);
    if ((rc = check_finite(ld, w, e)) != OK) return rc;
    if ((rc = prepare_quant(ld, w, &lay, e)) != OK) return rc;
    dtype_row_bytes(w->t->type, (uint64_t)y->cols, &row_bytes);
    for (int i = 0; i < y->count; i++) {
        /* Matrices of one tensor may have scales of their own. */
        if (i > 0 && y->quant &&
            (rc = layout_prepare(&lay, i + w->mat_at, ld->src, &ld->m->arena, NULL, e)) != OK)
            return rc;
        for (int p = 0; p < y->n_parts; p++) {
            struct weight *out = weight_at(ld->m, w, i, p);
            int64_t rows = weight_rows(w, p), run = 0,
                    at = w->is_cut ? cut_row(&w->rows[p], 0, &run) : 0,
                    first = (i + w->mat_at) * y->rows + layout_row(y, p, at);
            int n = y->per_weight ? (int)(y->per_weight * rows / y->part[p]) : 1;
            if (!out) return err_nomem(e, "the list of experts");
            *out = (struct weight){
                .type = w->t->type, .rows = (int)(rows / n), .cols = (int)weight_cols(w, p), .n = n
            };
            out->data = (const char *)w->t->data + (size_t)first * row_bytes;
            if (w->is_cut && !copy) filemap_need(out->data, (size_t)rows * row_bytes);
            if (copy && (rc = copy_part(ld, w, y, i, p, out, e)) != OK) return rc;
        }
    }
    /* The packed rows replace the file's, which would take memory, too. */
    for (int i = 0; y->quant && i < HFQUANT_PARTS; i++)
        if (hfquant_part(y->quant, i))
            filemap_drop(hfquant_part(y->quant, i)->data, hfquant_part(y->quant, i)->bytes);
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

/* The grouped output projection of compressed attention is one matrix for each group of heads. */
static void split_outputs(struct model *m)
{
    for (int l = 0; l < m->hp.n_layers; l++) {
        struct weight *w = &m->layers[l].mix.v_b;
        if (m->hp.layers[l].mix.kind != MIX_CSA || !w->rows) continue;
        w->n = m->hp.layers[l].mix.o_groups;
        w->rows /= w->n;
    }
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
        int64_t n = weight_rows(w, p), all = n * y->count * y->tensors, run;
        float *v = ld->stage + ld->n_stage + w->index * n, *there = to->vectors + ld->n_stage, tmp;
        for (int64_t k = 0; k < n * y->count; k++)
            layout_read(y, w->t, (int)(k / n) + w->mat_at, p,
                        w->is_cut ? cut_row(&w->rows[p], k % n, &run) : k % n, DT_F32, &v[k], &tmp);
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

/* Numbers of experts take the place of floats. */
static int load_ids(struct loader *ld, const struct weight_item *w, const struct part *to,
                    struct err *e)
{
    size_t n = (size_t)w->lay.rows * (size_t)w->lay.count;
    const int32_t *there = (const int32_t *)(const void *)(to->vectors + ld->n_stage);

    for (size_t k = 0; k < n; k++) {
        int64_t id = 0;
        int32_t small = 0;
        if (w->t->type == DT_I64) {
            memcpy(&id, (const char *)w->t->data + k * sizeof id, sizeof id);
        } else {
            memcpy(&small, (const char *)w->t->data + k * sizeof small, sizeof small);
            id = small;
        }
        if (id < 0 || id >= ld->m->hp.moe.n)
            return err_set(e, E_FORMAT, "%s: tensor %.*s names expert %lld, the model has %d",
                           source_path(ld->src), STR_ARG(w->t->name), (long long)id,
                           ld->m->hp.moe.n);
        small = (int32_t)id;
        memcpy(ld->stage + ld->n_stage + k, &small, sizeof small);
    }
    memcpy((char *)&ld->m->layers[w->layer] + w->r->at, &there, sizeof there);
    ld->n_stage += weight_padded((int64_t)n);
    return OK;
}

/* Floats of all vectors on a device. */
static size_t count_floats(const struct loader *ld, const struct part *p)
{
    size_t n = p == &ld->m->experts ? 0 : weights_made_floats(&ld->m->hp);

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
    hparams_slopes(hp, shard_all_heads(hp), shard_first_head(hp), hp->layers[0].n_heads,
                   ld->stage + ld->n_stage);
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
        if (w->r->kind == ROW_IDS) rc = load_ids(ld, w, p, e);
        else if (row_is_vector(w->r)) load_vector(ld, w, p);
        if (rc != OK) return rc;
        if (w->r->kind == ROW_SCALE) load_scale(ld, w);
    }
    if (p != &ld->m->experts) make_vectors(ld, p);
    p->be->put(p->be, p->vectors, ld->stage, p->vector_bytes);
    return p->be->sync(p->be, e);
}

/* ---- handing matrices to the backends ---- */

typedef int weight_fn(struct loader *ld, struct backend *be, struct weight *w, struct err *e);

static int count_weight(struct loader *ld, struct backend *be, struct weight *w, struct err *e)
{
    (void)be, (void)w, (void)e;
    ld->n_weights++;
    return OK;
}

static int put_weight(struct loader *ld, struct backend *be, struct weight *w, struct err *e)
{
    int rc = be->weight_put(be, w, e);

    ld->n_put++;
    tell_progress(ld, LOADED_PERCENT +
                          (int)((int64_t)(99 - LOADED_PERCENT) * ld->n_put / ld->n_weights));
    return rc;
}

static int drop_weight(struct loader *ld, struct backend *be, struct weight *w, struct err *e)
{
    (void)ld, (void)e;
    be->weight_drop(be, w);
    return OK;
}

static int each_expert(struct loader *ld, int l, weight_fn *fn, struct err *e)
{
    struct model *m = ld->m;
    struct layer *y = &m->layers[l];
    struct weight *all[] = { y->x_gate, y->x_up, y->x_down };
    int rc = OK;

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (int k = 0; all[i] && k < m->hp.moe.n && rc == OK; k++)
            if (all[i][k].rows) rc = fn(ld, model_experts(m, l)->be, &all[i][k], e);
    return rc;
}

/* Calls fn for every matrix the model has, with the backend of its device. */
static int each_weight(struct loader *ld, weight_fn *fn, struct err *e)
{
    struct model *m = ld->m;
    struct weight *first[] = { &m->embd,    &m->positions, &m->token_types,
                               &m->proj_in, &m->ple_embd,  &m->ple_in },
                  *last[] = { &m->head, &m->proj_out, &m->hyper_head };
    int rc = OK;

    if (m->n_parts == 0) return OK;
    for (size_t i = 0; i < sizeof first / sizeof first[0] && rc == OK; i++)
        if (first[i]->rows) rc = fn(ld, m->parts[0].be, first[i], e);
    for (size_t i = 0; i < sizeof last / sizeof last[0] && rc == OK; i++)
        if (last[i]->rows) rc = fn(ld, m->parts[m->n_parts - 1].be, last[i], e);
    for (int i = 0; i < m->hp.altup.n - 1 && rc == OK; i++) {
        if (m->altup_in && m->altup_in[i].rows) rc = fn(ld, m->parts[0].be, &m->altup_in[i], e);
        if (rc == OK && m->altup_out && m->altup_out[i].rows)
            rc = fn(ld, m->parts[0].be, &m->altup_out[i], e);
    }
    for (int l = 0; m->layers && l < m->hp.n_layers && rc == OK; l++) {
        struct layer *y = &m->layers[l];
        struct mix_weights *x = &y->mix;
        struct weight *all[] = { &y->wq,
                                 &y->wk,
                                 &y->wv,
                                 &y->wo,
                                 &y->wg,
                                 &y->gate,
                                 &y->up,
                                 &y->down,
                                 &y->router,
                                 &y->shared_gate,
                                 &x->in,
                                 &x->z,
                                 &x->ba,
                                 &x->x,
                                 &x->dt,
                                 &x->q_a,
                                 &x->kv_a,
                                 &x->k_b,
                                 &x->v_b,
                                 &x->beta,
                                 &y->index.q,
                                 &y->index.k,
                                 &y->index.w,
                                 &y->altup_router,
                                 &y->altup_predict,
                                 &y->altup_correct,
                                 &y->laurel_left,
                                 &y->laurel_right,
                                 &x->alpha,
                                 &x->out,
                                 &y->latent_in,
                                 &y->latent_out,
                                 &y->ple_gate,
                                 &y->ple_proj,
                                 &y->hyper_attn,
                                 &y->hyper_ffn,
                                 &x->raw,
                                 &x->raw_gate,
                                 &x->index_raw,
                                 &x->index_gate };
        for (size_t i = 0; i < sizeof all / sizeof all[0] && rc == OK; i++)
            if (all[i]->rows) rc = fn(ld, model_part(m, l)->be, all[i], e);
        if (rc == OK) rc = each_expert(ld, l, fn, e);
    }
    return rc;
}

/* Every device once: the one of experts may have layers, too. */
static int finish_weights(struct model *m, struct err *e)
{
    struct backend *rest = m->experts.be;
    int rc = OK;

    for (int i = 0; i < m->n_parts && rc == OK; i++) {
        struct backend *be = m->parts[i].be;
        if (be == rest) rest = NULL;
        rc = be->weights_finish(be, e);
    }
    return rc == OK && rest ? rest->weights_finish(rest, e) : rc;
}

static int put_weights(struct loader *ld, struct err *e)
{
    struct model *m = ld->m;
    uint64_t start = clock_ns();
    int rc;

    /* A tied embedding is also the head: it is put on both devices. */
    if (!m->head.rows && m->n_parts > 1 && !m->hp.shard) m->head = m->embd;
    each_weight(ld, count_weight, e);
    if ((rc = each_weight(ld, put_weight, e)) != OK) return rc;
    if ((rc = finish_weights(m, e)) != OK) return rc;
    m->put_ms = clock_ms_since(start);
    tell_progress(ld, 100);
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

/* Scales that keys give for all layers alike. */
static void set_scales(struct model *m)
{
    const struct hparams *hp = &m->hp;

    for (int l = 0; l < hp->n_layers; l++) {
        struct layer *w = &m->layers[l];
        if (hp->s_attn_in != 0) w->s_q = w->s_k = w->s_v = hp->s_attn_in;
        if (hp->s_attn_out != 0) w->s_o = hp->s_attn_out;
        if (hp->s_gate != 0) w->s_gate = hp->s_gate;
        if (hp->s_down != 0) w->s_down = hp->s_down;
        w->mix.s_out = hp->layers[l].mix.out_scale;
        if (hp->act == ACT_XIELU && hp->from == SOURCE_GGUF) w->xielu = hp->layers[l].xielu;
    }
}

/* Tensors that no row of the table names belong to parts that tern does not run. */
static void tell_unused(const struct loader *ld)
{
    const struct hparams *hp = &ld->m->hp;
    size_t n = source_n_tensors(ld->src), other = 0, mtp = 0;

    for (size_t i = 0; hp->from == SOURCE_HF && i < n; i++) {
        struct str name = source_tensor(ld->src, i)->name;
        if (str_starts(name, STR("mtp.")) || str_find(name, STR(".mtp.")) >= 0) mtp++;
        else if (str_find(str_c(hp->prefix), STR("language_model.")) >= 0 &&
                 str_find(name, STR("language_model.")) < 0 && !str_starts(name, STR("lm_head.")))
            other++;
    }
    if (other)
        log_info("%s: %zu tensors of the vision and audio parts are not used: the text part runs",
                 source_path(ld->src), other);
    if (mtp)
        log_info("%s: %zu tensors for multi-token prediction are not used", source_path(ld->src),
                 mtp);
}

int weights_load(struct model *m, const struct model_input *in, struct err *e)
{
    const struct weight_list *list = in->weights;
    struct loader ld = { .m = m,
                         .src = in->source,
                         .list = list,
                         .allow_nan = in->allow_nan,
                         .progress = in->progress };
    int rc;

    for (int i = 0; i < list->n; i++) {
        const struct weight_item *w = &list->items[i];
        tell_progress(&ld, (int)((int64_t)LOADED_PERCENT * i / list->n));
        if (row_is_vector(w->r) || w->r->kind == ROW_SCALE) continue;
        if ((rc = load_matrix(&ld, w, e)) != OK) goto out;
    }
    if ((rc = check_latent(&ld, e)) != OK) goto out;
    skip_positions(m);
    split_outputs(m);
    tell_unused(&ld);
    for (int i = 0; i < m->n_parts; i++)
        if ((rc = load_vectors(&ld, &m->parts[i], e)) != OK) goto out;
    if (m->experts.be && (rc = load_vectors(&ld, &m->experts, e)) != OK) goto out;
    if (ld.n_bad > 8)
        log_warn("%s: %d tensors contain NaN or Inf", source_path(in->source), ld.n_bad);
    if (m->hp.shard) shard_drop_biases(m->hp.shard, m);
    set_scales(m);
    rc = put_weights(&ld, e);
out:
    par_close(ld.par);
    mem_free(ld.stage);
    return rc;
}

static void free_vectors(struct part *p)
{
    if (p->vectors) p->be->free(p->be, p->vectors, p->vector_bytes, MEM_WEIGHTS);
    p->vectors = NULL;
}

void weights_drop(struct model *m)
{
    struct loader ld = { .m = m };

    each_weight(&ld, drop_weight, NULL);
    for (int i = 0; i < m->n_parts; i++) free_vectors(&m->parts[i]);
    free_vectors(&m->experts);
    for (struct owned *o = m->owned; o; o = o->next)
        if (o->be) o->be->free(o->be, o->p, o->n, MEM_WEIGHTS);
        else mem_free_aligned(o->p, o->n);
    m->owned = NULL;
}
