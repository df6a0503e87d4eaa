#include "convert/convert.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"
#include "convert/convert_keys.h"
#include "format/ggufw.h"
#include "format/source.h"
#include "kernel/quant.h"
#include "model/hparams.h"
#include "model/naming.h"

#include <stdio.h>
#include <stdlib.h>

/* One tensor on its way: where it comes from, what becomes of it. */
struct item {
    const struct gguf_item *to;
    enum dtype type;
};

struct job {
    const struct convert_opt *opt;
    struct source *src;
    struct arena arena;
    struct hparams hp;
    struct ggufw *out;
    struct par *par;
    struct item *items;
    int n_items;
    /* of the piece being encoded: */
    const struct item *item;
    int64_t row0;
    int n_rows;
    float **rows_f32; /* [threads][cols] */
    unsigned char *piece;
    size_t row_bytes;
};

static enum dtype type_of(const struct gguf_item *it, enum dtype want)
{
    if (it->keep_f32) return DT_F32;
    if (it->lay.mx) return DT_MXFP4; /* as it is */
    return it->cols % dtype_info((int)want)->block == 0 ? want : DT_F16;
}

static int plan(struct job *j, struct err *e)
{
    struct gguf_item *list;
    int rc = naming_plan(&j->hp, j->src, &j->arena, &list, &j->n_items, e);

    if (rc != OK) return rc;
    j->items = arena_array(&j->arena, (size_t)j->n_items, sizeof *j->items);
    for (int i = 0; i < j->n_items; i++)
        j->items[i] = (struct item){ &list[i], type_of(&list[i], j->opt->type) };
    return OK;
}

static void encode_rows(void *arg, int t, int n)
{
    struct job *j = arg;
    int a, b;

    par_share(j->n_rows, 1, t, n, &a, &b);
    for (int i = a; i < b; i++)
        naming_row(j->item->to, j->row0 + i, j->item->type, j->piece + (size_t)i * j->row_bytes,
                   j->rows_f32[t]);
}

static int write_item(struct job *j, const struct item *it, struct err *e)
{
    uint64_t row_bytes;
    int per_piece;

    if (!dtype_row_bytes(it->type, (uint64_t)it->to->cols, &row_bytes))
        return err_set(e, E_INTERNAL, "%s: %s rows of %lld", it->to->name,
                       dtype_name((int)it->type), (long long)it->to->cols);
    per_piece = (int)((8u << 20) / row_bytes);
    if (per_piece < 1) per_piece = 1;
    if (per_piece > it->to->rows) per_piece = (int)it->to->rows;
    j->item = it;
    j->row_bytes = row_bytes;
    j->piece = mem_array((size_t)per_piece, row_bytes);
    for (int t = 0; t < par_n(j->par); t++)
        j->rows_f32[t] = mem_array(layout_room(&it->to->lay), sizeof(float));
    if (!j->piece)
        return err_set(e, E_NOMEM, "%s: no memory for rows of %llu bytes", it->to->name,
                       (unsigned long long)row_bytes);
    for (j->row0 = 0; j->row0 < it->to->rows; j->row0 += per_piece) {
        j->n_rows = (int)(it->to->rows - j->row0 < per_piece ? it->to->rows - j->row0 : per_piece);
        par_run(j->par, encode_rows, j);
        ggufw_data(j->out, j->piece, (size_t)j->n_rows * row_bytes);
    }
    return OK;
}

static void drop_piece(struct job *j)
{
    mem_free(j->piece);
    j->piece = NULL;
    for (int t = 0; t < par_n(j->par); t++) {
        mem_free(j->rows_f32[t]);
        j->rows_f32[t] = NULL;
    }
}

static int write_all(struct job *j, struct convert_result *r, struct err *e)
{
    struct gguf_extra extra[2];
    int n_extra = naming_extras(&j->hp, &j->arena, extra), rc;

    naming_keys(&j->hp, j->out);
    int file_type = j->opt->type == DT_F32    ? 0
                    : j->opt->type == DT_F16  ? 1
                    : j->opt->type == DT_Q8_0 ? 7
                                              : 32;
    if ((rc = convert_keys(j->out, j->src, file_type, j->opt->bare, e)) != OK) return rc;
    for (int i = 0; i < j->n_items && !j->opt->bare; i++)
        if ((j->items[i].to->add != 0 || j->items[i].to->neg_exp) &&
            j->items[i].to->from[0]->type == DT_F32)
            convert_keep_exact(j->out, j->items[i].to->from[0], j->items[i].to->add);
    for (int i = 0; i < n_extra; i++) ggufw_tensor(j->out, extra[i].name, DT_F32, &extra[i].n, 1);
    for (int i = 0; i < j->n_items; i++) {
        const struct item *it = &j->items[i];
        ggufw_tensor(j->out, it->to->name, it->type, it->to->dims, it->to->n_dims);
    }
    for (int i = 0; i < n_extra; i++)
        ggufw_data(j->out, extra[i].data, (size_t)extra[i].n * sizeof(float));
    for (int i = 0; i < j->n_items && rc == OK; i++) {
        uint64_t row_bytes = 0;
        if (j->opt->progress)
            fprintf(stderr, "\r%3d%% %-60.60s", (int)(100L * i / j->n_items), j->items[i].to->name);
        rc = write_item(j, &j->items[i], e);
        drop_piece(j);
        dtype_row_bytes(j->items[i].type, (uint64_t)j->items[i].to->cols, &row_bytes);
        r->bytes += row_bytes * (uint64_t)j->items[i].to->rows;
    }
    if (j->opt->progress) fprintf(stderr, "\r%70s\r", "");
    r->n_tensors = j->n_items + n_extra;
    return rc;
}

/* Opens what was written and looks for every tensor with its type and shape. */
static int read_back(const struct job *j, struct err *e)
{
    struct source *s = NULL;
    struct arena a = { 0 };
    struct hparams hp = { 0 };
    int rc = source_open(&s, j->opt->dst, e);

    if (rc == OK) rc = hparams_read(&hp, &a, s, e);
    for (int i = 0; i < j->n_items && rc == OK; i++) {
        const struct item *it = &j->items[i];
        const struct source_tensor *t = source_find(s, it->to->name);
        if (!t || t->type != it->type || t->n_dims != it->to->n_dims ||
            memcmp(t->dims, it->to->dims, (size_t)t->n_dims * sizeof t->dims[0]) != 0)
            rc = err_set(e, E_INTERNAL, "%s: '%s' did not come back as written", j->opt->dst,
                         it->to->name);
    }
    arena_release(&a);
    source_close(s);
    return rc;
}

int convert_to_gguf(const struct convert_opt *opt, struct convert_result *out, struct err *e)
{
    struct job j = { .opt = opt };
    uint64_t start = clock_ns();
    int rc;

    if ((rc = source_open(&j.src, opt->src, e)) != OK) goto out;
    if (source_kind(j.src) != SOURCE_HF) {
        rc = err_set(e, E_INVALID, "%s: is a GGUF file already, expected a Hugging Face folder",
                     opt->src);
        goto out;
    }
    if (source_onnx(j.src)) {
        rc = err_set(e, E_UNSUPPORTED,
                     "%s: is an ONNX graph, which is run as it is: only weights of known "
                     "architectures are converted",
                     opt->src);
        goto out;
    }
    if ((rc = hparams_read(&j.hp, &j.arena, j.src, e)) != OK) goto out;
    if ((rc = plan(&j, e)) != OK) goto out;
    if ((rc = par_open(&j.par, (struct par_opt){ .n_threads = opt->n_threads }, e)) != OK) goto out;
    j.rows_f32 = arena_array(&j.arena, (size_t)par_n(j.par), sizeof *j.rows_f32);
    if ((rc = ggufw_open(&j.out, opt->dst, e)) != OK) goto out;
    if ((rc = write_all(&j, out, e)) != OK) goto out;
    rc = ggufw_close(j.out, e);
    j.out = NULL;
    if (rc == OK) rc = read_back(&j, e);
    out->seconds = clock_ms_since(start) / 1e3;
out:
    ggufw_abort(j.out);
    par_close(j.par);
    arena_release(&j.arena);
    source_close(j.src);
    return rc;
}
