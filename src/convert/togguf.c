/* togguf.c - the order of work:
 *
 *   1. read the hyper-parameters and plan every GGUF tensor (model/naming: name, shape, which rows
 *      of which folder tensors it is made of);
 *   2. write all keys and the tensor directory, so that offsets are known;
 *   3. write the tensors in the order of the directory, piece by piece: worker threads encode the
 *      rows of a piece, the calling thread writes it;
 *   4. open the result as any reader would, and compare its directory with the plan.
 *
 * ggufw keeps the first write error and returns it at close, so the calls in between are not
 * checked one by one. */
#include "convert/togguf.h"

#include "convert/exact.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/par.h"
#include "convert/togguf_keys.h"
#include "format/ggufw.h"
#include "format/source.h"
#include "model/hparams.h"
#include "model/naming.h"

#include <stdio.h>

/* Rows are encoded and written in pieces of about this size. */
#define PIECE_BYTES (8u << 20)

struct item {
    const struct gguf_item *to; /* name, shape and source rows; in the job's arena */
    enum dtype type;            /* in the GGUF file */
    bool exact;                 /* blocks of a quantized layer: exact_row */
    uint64_t row_bytes;
    const float *scales; /* [n_scales] of NVFP4: the tensor NAME.scale; NULL: none */
    int n_scales;
};

struct job {
    const struct togguf_opt *opt;
    struct source *src;
    struct arena arena;
    struct hparams hp;
    struct ggufw *out;
    struct par *par;
    struct item *items;
    int n_items;
    struct gguf_rest rest;
    uint64_t bytes; /* of all items */
    /* The piece being encoded: rows [row0, row0 + n_rows) of item. */
    const struct item *item;
    int64_t row0;
    int n_rows;
    unsigned char *piece; /* [n_rows][item->row_bytes] */
    float **tmp;          /* [threads][exact_room] of F32 for decoding a row */
};

/* Norms and biases stay F32, MXFP4 experts stay MXFP4; rows that do not fill the blocks of the
 * wanted type become F16. */
static enum dtype choose_type(const struct gguf_item *it, enum dtype want)
{
    if (it->keep_f32) return DT_F32;
    if (it->lay.mx) return DT_MXFP4;
    return it->cols % dtype_info((int)want)->block == 0 ? want : DT_F16;
}

/* Fills j->items and the total size, which the progress needs. */
static int plan_items(struct job *j, struct err *e)
{
    struct gguf_item *list;
    int n_rounded = 0;
    int rc = naming_plan(&j->hp, j->src, &j->arena, &list, &j->n_items, e);

    if (rc != OK) return rc;
    j->items = arena_array(&j->arena, (size_t)j->n_items, sizeof *j->items);
    if (!j->items) return err_nomem(e, "the list of tensors to write");
    for (int i = 0; i < j->n_items; i++) {
        struct item *it = &j->items[i];
        enum dtype exact = DT_NONE;
        *it = (struct item){ .to = &list[i], .type = choose_type(&list[i], j->opt->type) };
        if (j->opt->keep && (rc = exact_type(&exact, it->to, e)) != OK) return rc;
        if (exact != DT_NONE) it->type = exact, it->exact = true;
        if (exact == DT_NVFP4 &&
            (rc = exact_scales(&it->scales, &it->n_scales, it->to, &j->arena, e)) != OK)
            return rc;
        if (exact == DT_NONE && j->opt->keep && it->to->groups && it->type != DT_F32) n_rounded++;
        if (!dtype_row_bytes(it->type, (uint64_t)it->to->cols, &it->row_bytes))
            return err_set(e, E_INTERNAL, "%s: %lld columns do not fit the type %s", it->to->name,
                           (long long)it->to->cols, dtype_name((int)it->type));
        j->bytes += it->row_bytes * (uint64_t)it->to->rows;
    }
    if (n_rounded)
        log_warn("%s: %d quantized tensors are rounded to %s: no GGUF type holds them exactly "
                 "(--type F32 does)",
                 j->opt->src, n_rounded, dtype_name((int)j->opt->type));
    return OK;
}

/* par_run's function: thread t of n encodes its share of the piece's rows. */
static void encode_piece(void *arg, int t, int n)
{
    struct job *j = arg;
    int a, b;

    par_share(j->n_rows, 1, t, n, &a, &b);
    for (int i = a; i < b; i++)
        (j->item->exact ? exact_row : naming_row)(j->item->to, j->row0 + i, j->item->type,
                                                  j->piece + (size_t)i * j->item->row_bytes,
                                                  j->tmp[t]);
}

static void free_piece(struct job *j)
{
    mem_free(j->piece);
    j->piece = NULL;
    for (int t = 0; t < par_n(j->par); t++) {
        mem_free(j->tmp[t]);
        j->tmp[t] = NULL;
    }
}

/* One piece, and for each thread a row of floats. false: no memory; free_piece releases the rest. */
static bool alloc_piece(struct job *j, const struct item *it, int n_rows)
{
    j->piece = mem_array((size_t)n_rows, it->row_bytes);
    bool ok = j->piece != NULL;

    for (int t = 0; t < par_n(j->par); t++) {
        j->tmp[t] = mem_array(exact_room(it->to), sizeof(float));
        ok = ok && j->tmp[t];
    }
    return ok;
}

static int write_item(struct job *j, const struct item *it, struct err *e)
{
    int64_t per_piece = (int64_t)(PIECE_BYTES / it->row_bytes);
    int rc = OK;

    if (per_piece > it->to->rows) per_piece = it->to->rows;
    if (per_piece < 1) per_piece = 1;
    j->item = it;
    if (!alloc_piece(j, it, (int)per_piece))
        rc = err_set(e, E_NOMEM, "%s: out of memory: no room for %lld rows of %llu bytes",
                     it->to->name, (long long)per_piece, (unsigned long long)it->row_bytes);
    for (j->row0 = 0; rc == OK && j->row0 < it->to->rows; j->row0 += per_piece) {
        j->n_rows = (int)(it->to->rows - j->row0 < per_piece ? it->to->rows - j->row0 : per_piece);
        par_run(j->par, encode_piece, j);
        ggufw_data(j->out, j->piece, (size_t)j->n_rows * it->row_bytes);
    }
    free_piece(j);
    return rc;
}

/* The progress is reported before a tensor, with its name: tensors of a large model take seconds. */
static int write_items(struct job *j, struct err *e)
{
    uint64_t done = 0;
    int rc = OK;

    for (int i = 0; i < j->n_items && rc == OK; i++) {
        const struct item *it = &j->items[i];
        if (j->opt->progress) j->opt->progress(j->opt->progress_arg, done, j->bytes, it->to->name);
        rc = write_item(j, it, e);
        if (it->scales) ggufw_data(j->out, it->scales, (size_t)it->n_scales * sizeof(float));
        done += it->row_bytes * (uint64_t)it->to->rows;
    }
    return rc;
}

/* GGUF's general.file_type, the number of llama.cpp's enum llama_ftype. */
static int file_type_of(enum dtype t)
{
    return t == DT_F32 ? 0 : t == DT_F16 ? 1 : t == DT_Q8_0 ? 7 : 32;
}

/* Hyper-parameters first, then the tokenizer; exact values are kept for tensors that GGUF changes. */
static int write_keys(struct job *j, struct err *e)
{
    int rc = naming_keys(&j->hp, j->out, e);

    if (rc == OK) naming_head_keys(&j->hp, j->rest.head, j->out);
    if (rc == OK)
        rc = togguf_write_keys(j->out, j->src, file_type_of(j->opt->type), j->opt->bare, e);
    for (int i = 0; i < j->n_items && !j->opt->bare && rc == OK; i++) {
        const struct gguf_item *it = j->items[i].to;
        if ((it->add != 0 || it->neg_exp) && it->from[0]->type == DT_F32)
            rc = togguf_write_exact(j->out, it->from[0], it->add, e);
    }
    return rc;
}

/* "blk.0.attn_q.scale" beside "blk.0.attn_q.weight". */
static void add_scales(struct job *j, const struct item *it)
{
    char name[sizeof it->to->name];
    const int64_t n = it->n_scales;

    snprintf(name, sizeof name, "%.*s.scale", (int)strlen(it->to->name) - (int)strlen(".weight"),
             it->to->name);
    ggufw_tensor(j->out, name, DT_F32, &n, 1);
}

/* GGUF carries rotary frequency factors as tensors, and the head of a classifier. */
static int write_all(struct job *j, struct togguf_result *r, struct err *e)
{
    const struct gguf_extra *extra = j->rest.list;
    int n_extra, rc;

    if ((rc = naming_rest(&j->rest, &j->hp, j->src, &j->arena, e)) != OK) return rc;
    n_extra = j->rest.n;
    if ((rc = write_keys(j, e)) != OK) return rc;
    for (int i = 0; i < n_extra; i++)
        ggufw_tensor(j->out, extra[i].name, DT_F32, extra[i].dims, extra[i].n_dims);
    for (int i = 0; i < j->n_items; i++) {
        const struct item *it = &j->items[i];
        ggufw_tensor(j->out, it->to->name, it->type, it->to->dims, it->to->n_dims);
        if (it->scales) add_scales(j, it), r->n_tensors++;
    }
    for (int i = 0; i < n_extra; i++)
        ggufw_data(j->out, extra[i].data, (size_t)extra[i].n * sizeof(float));
    r->n_tensors += j->n_items + n_extra;
    r->bytes = j->bytes;
    return write_items(j, e);
}

/* Opens the file again: every tensor must be there with its type and shape. */
static int verify_file(const struct job *j, struct err *e)
{
    struct source *s = NULL;
    struct arena a = { 0 };
    struct hparams hp = { 0 };
    int rc = source_open(&s, j->opt->dst, e);

    if (rc == OK) rc = hparams_read(&hp, &a, s, e);
    for (int i = 0; i < j->n_items && rc == OK; i++) {
        const struct item *it = &j->items[i];
        const struct source_tensor *t = source_find(s, it->to->name);
        enum dtype type = t && t->quant ? hfquant_part(t->quant, 0)->type : t ? t->type : DT_NONE;
        if (!t || type != it->type || t->n_dims != it->to->n_dims ||
            memcmp(t->dims, it->to->dims, (size_t)t->n_dims * sizeof t->dims[0]) != 0)
            rc = err_set(e, E_INTERNAL,
                         "%s: reading it back, tensor '%s' differs from what was "
                         "written",
                         j->opt->dst, it->to->name);
    }
    arena_release(&a);
    source_close(s);
    return rc;
}

/* Reads config.json and checks that the source is a folder with weights of a known architecture. */
static int open_folder(struct job *j, struct err *e)
{
    int rc = source_open(&j->src, j->opt->src, e);

    if (rc != OK) return rc;
    if (source_kind(j->src) != SOURCE_HF)
        return err_set(e, E_INVALID, "%s is already a GGUF file; expected a Hugging Face folder",
                       j->opt->src);
    if (source_onnx(j->src))
        return err_set(e, E_UNSUPPORTED,
                       "%s is an ONNX model and cannot be converted to GGUF; tern runs ONNX files "
                       "directly",
                       j->opt->src);
    return hparams_read(&j->hp, &j->arena, j->src, e);
}

int togguf_run(const struct togguf_opt *opt, struct togguf_result *out, struct err *e)
{
    struct job j = { .opt = opt };
    uint64_t start = clock_ns();
    int rc;

    *out = (struct togguf_result){ 0 };
    if ((rc = open_folder(&j, e)) != OK) goto out;
    if ((rc = plan_items(&j, e)) != OK) goto out;
    if ((rc = par_open(&j.par, (struct par_opt){ .n_threads = opt->n_threads }, e)) != OK) goto out;
    j.tmp = arena_array(&j.arena, (size_t)par_n(j.par), sizeof *j.tmp);
    if (!j.tmp) {
        rc = err_nomem(e, "the row buffers");
        goto out;
    }
    if ((rc = ggufw_open(&j.out, opt->dst, e)) != OK) goto out;
    if ((rc = write_all(&j, out, e)) != OK) goto out;
    rc = ggufw_close(j.out, e);
    j.out = NULL;
    if (rc == OK) rc = verify_file(&j, e);
    out->seconds = clock_ms_since(start) / 1e3;
out:
    ggufw_abort(j.out);
    par_close(j.par);
    arena_release(&j.arena);
    source_close(j.src);
    return rc;
}
