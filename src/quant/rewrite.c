/* rewrite.c - the pipeline behind rewrite.h.
 *
 * The main thread is thread 0 of the team. In each round it first writes the previous piece to the
 * file, then joins the other threads in encoding the current one; two buffers alternate. Rows that
 * keep their type are written from the mapped source without a copy. Checksums are sums over rows,
 * so threads may add theirs in any order. */
#include "quant/rewrite.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/par.h"
#include "format/gguf.h"
#include "format/ggufw.h"
#include "quant/rtn.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#define PIECE_BYTES (8u << 20) /* encoded per round */
#define STEP_ELEMENTS 16384    /* elements a thread takes at a time, in whole rows */

struct job {
    const struct rewrite_opt *opt;
    struct rewrite_result *out;
    const struct rtn *rtn;
    struct par *par;
    struct arena arena; /* error weights of the current tensor */
    struct ggufw *w;
    uint64_t *sums; /* [plan->n] checksum of each tensor as encoded */
    uint64_t start_ns, done_bytes;
    /* The current tensor: */
    int at; /* its index in the plan */
    const struct plan_item *it;
    char name[128];       /* for progress; may be cut */
    const float *weights; /* [n_mats][cols] error weights, or NULL */
    int64_t rows_per_mat;
    uint64_t from_bytes, to_bytes; /* per row */
    /* The current piece: */
    int64_t row0;
    int n_rows, step;        /* rows of the piece; rows a thread takes at a time */
    unsigned char *piece[2]; /* two buffers that alternate */
    size_t piece_bytes[2];
    unsigned char *to; /* where the rows are: a buffer, or the source for copied rows */
    int side;          /* which of the two buffers */
    /* The previous piece, which thread 0 writes before it encodes: */
    const void *pending;
    size_t pending_bytes;
    /* Per thread: */
    float **x, **y;            /* [cols] a row, and scratch */
    struct rewrite_loss *loss; /* of the current tensor */
    uint64_t *sum;             /* checksum of the current tensor */
    _Atomic int64_t bad_row;   /* the first row with a NaN or infinity; -1: none */
};

/* Checksum of a row, 32 bytes at a time. Detects I/O errors, not attacks. */
static uint64_t checksum_row(const void *p, size_t n, uint64_t row)
{
    const unsigned char *b = p;
    uint64_t h[4] = { 1, 2, 3, 4 }, v[4];

    for (; n >= sizeof v; n -= sizeof v, b += sizeof v) {
        memcpy(v, b, sizeof v);
        for (int i = 0; i < 4; i++) h[i] = (h[i] ^ v[i]) * 0x9e3779b97f4a7c15u;
    }
    for (; n; n--) h[n % 4] = (h[n % 4] ^ *b++) * 0x100000001b3u;
    return ((h[0] * 3 + h[1]) * 5 + (h[2] * 7 + h[3])) * (2 * row + 1);
}

/* Keeps the smallest row number. */
static void note_bad_row(struct job *j, int64_t row)
{
    int64_t now = atomic_load(&j->bad_row);
    while ((now < 0 || row < now) && !atomic_compare_exchange_weak(&j->bad_row, &now, row))
        continue;
}

/* Decodes the encoded row and adds its error to the thread's sums. */
static void measure_row(struct job *j, int t, const void *row)
{
    struct rewrite_loss *l = &j->loss[t];
    const float *x = j->x[t];
    double square = 0, error = 0, worst = 0;

    j->rtn->decode(j->it->type, row, j->y[t], j->it->cols);
    for (int64_t i = 0; i < j->it->cols; i++) {
        double d = (double)j->y[t][i] - (double)x[i];
        square += (double)x[i] * (double)x[i];
        error += d * d;
        worst = fabs(d) > worst ? fabs(d) : worst;
    }
    l->square += square;
    l->error += error;
    l->worst = worst > l->worst ? worst : l->worst;
}

/* Row i of the piece: read, check, encode, measure, checksum. */
static void encode_row(struct job *j, int t, int i)
{
    const struct plan_item *it = j->it;
    int64_t row = j->row0 + i;
    const char *from = (const char *)it->from->data + (uint64_t)row * j->from_bytes;
    unsigned char *to = j->to + (uint64_t)i * j->to_bytes;
    const float *w = j->weights ? j->weights + row / j->rows_per_mat * it->cols : NULL;

    if (it->from->data) j->rtn->decode(it->from->type, from, j->x[t], it->cols);
    else j->opt->read(j->opt->source_arg, j->at, row, DT_F32, j->x[t], j->y[t]);
    if (!j->rtn->is_finite(j->x[t], it->cols)) {
        note_bad_row(j, row);
        return;
    }
    j->rtn->encode(it->type, j->x[t], w, to, it->cols);
    if (j->opt->measure) measure_row(j, t, to);
    j->sum[t] += checksum_row(to, j->to_bytes, (uint64_t)row);
}

/* The rows keep their type and are written from the source. */
static bool is_copy(const struct plan_item *it)
{
    return it->type == it->from->type && it->from->data;
}

/* A row that keeps its type but is not in memory. */
static void read_row(struct job *j, int t, int i)
{
    unsigned char *to = j->to + (uint64_t)i * j->to_bytes;

    j->opt->read(j->opt->source_arg, j->at, j->row0 + i, j->it->type, to, j->y[t]);
    j->sum[t] += checksum_row(to, j->to_bytes, (uint64_t)(j->row0 + i));
}

/* Run by all threads; thread 0 writes the previous piece first. */
static void encode_rows(void *arg, int t, int n_threads)
{
    struct job *j = arg;
    int a, b;

    (void)n_threads;
    if (t == 0 && j->pending_bytes) ggufw_data(j->w, j->pending, j->pending_bytes);
    while (par_next(j->par, j->n_rows, j->step, &a, &b))
        for (int i = a; i < b; i++) {
            if (j->it->type == j->it->from->type && !j->it->from->data) read_row(j, t, i);
            else if (!is_copy(j->it)) encode_row(j, t, i);
            else
                j->sum[t] += checksum_row(j->to + (uint64_t)i * j->to_bytes, j->to_bytes,
                                          (uint64_t)(j->row0 + i));
        }
}

static void write_pending(struct job *j)
{
    if (j->pending_bytes) ggufw_data(j->w, j->pending, j->pending_bytes);
    j->pending_bytes = 0;
}

/* E_CANCELLED: the user stopped the run. */
static int report_progress(struct job *j, struct err *e)
{
    struct rewrite_progress p = { .name = j->name,
                                  .done_bytes = j->done_bytes,
                                  .bytes = j->opt->plan->from_bytes,
                                  .seconds = clock_ms_since(j->start_ns) / 1e3 };

    if (j->opt->stop && *j->opt->stop)
        return err_set(e, E_CANCELLED, "%s: stopped; no file was written", j->opt->dst);
    if (j->opt->progress) j->opt->progress(j->opt->progress_arg, &p);
    return OK;
}

/* Makes the current buffer at least n bytes large. */
static int reserve_piece(struct job *j, size_t n, struct err *e)
{
    int s = j->side;

    if (j->piece_bytes[s] >= n) return OK;
    mem_free_aligned(j->piece[s], j->piece_bytes[s]);
    j->piece[s] = mem_aligned(n);
    j->piece_bytes[s] = j->piece[s] ? n : 0;
    if (j->piece[s]) return OK;
    return err_set(e, E_NOMEM, "out of memory: no room for %zu bytes of '%s'", n, j->name);
}

static int convert_piece(struct job *j, struct err *e)
{
    size_t n = (size_t)j->n_rows * j->to_bytes;
    int rc;

    if (is_copy(j->it)) {
        j->to = (unsigned char *)j->it->from->data + (uint64_t)j->row0 * j->to_bytes;
    } else {
        if ((rc = reserve_piece(j, n, e)) != OK) return rc;
        j->to = j->piece[j->side];
    }
    par_run(j->par, encode_rows, j);
    j->pending = j->to;
    j->pending_bytes = n;
    j->side ^= !is_copy(j->it);
    j->done_bytes += (uint64_t)j->n_rows * j->from_bytes;
    if (atomic_load(&j->bad_row) >= 0)
        return err_set(
            e, E_FORMAT,
            "%s: tensor '%.*s', row %lld: has a NaN or an infinity, which %s cannot represent",
            source_path(j->opt->src), STR_ARG(j->it->from->name),
            (long long)atomic_load(&j->bad_row), dtype_name((int)j->it->type));
    return report_progress(j, e);
}

/* Row buffers of every thread for the current tensor. */
static int reserve_rows(struct job *j, struct err *e)
{
    size_t cols = (size_t)j->it->cols;

    for (int t = 0; t < par_n(j->par); t++) {
        mem_free(j->x[t]);
        mem_free(j->y[t]);
        j->x[t] = mem_array(cols, sizeof(float));
        j->y[t] = mem_array(cols + j->opt->read_room, sizeof(float));
        if (!j->x[t] || !j->y[t]) return err_nomem(e, "the rows of a tensor");
    }
    return OK;
}

/* Makes item `at` the current tensor: sizes, error weights, row buffers. */
static int begin_item(struct job *j, int at, struct err *e)
{
    const struct plan_item *it = &j->opt->plan->items[at];
    int n_mats = it->from->n_dims == 3 ? (int)it->from->dims[0] : 1, rc = OK;

    j->at = at;
    j->it = it;
    j->weights = NULL;
    j->rows_per_mat = it->rows / n_mats;
    snprintf(j->name, sizeof j->name, "%.*s", STR_ARG(it->from->name));
    dtype_row_bytes(it->from->type, (uint64_t)it->cols, &j->from_bytes);
    dtype_row_bytes(it->type, (uint64_t)it->cols, &j->to_bytes);
    j->step = it->cols < STEP_ELEMENTS ? (int)(STEP_ELEMENTS / it->cols) : 1;
    arena_reset(&j->arena);
    if (is_copy(it)) return OK;
    if (j->opt->imatrix && dtype_info((int)it->type)->quantized)
        rc = imatrix_weights(j->opt->imatrix, &j->arena, it->from->name, it->cols, n_mats,
                             &j->weights, e);
    j->out->n_weighted += j->weights != NULL;
    return rc != OK ? rc : reserve_rows(j, e);
}

/* One tensor: prefetches the next one, converts piece by piece, collects the sums of the
 * threads, and drops the source pages. */
static int write_item(struct job *j, int at, struct err *e)
{
    const struct plan *p = j->opt->plan;
    const struct plan_item *it = &p->items[at];
    int rc = begin_item(j, at, e);

    if (rc != OK) return rc;
    if (at + 1 < p->n && p->items[at + 1].from->data)
        filemap_need(p->items[at + 1].from->data, p->items[at + 1].from->bytes);
    int64_t per_piece = (int64_t)(PIECE_BYTES / (j->to_bytes ? j->to_bytes : 1));
    if (per_piece < 1) per_piece = 1;
    for (j->row0 = 0; j->row0 < it->rows && rc == OK; j->row0 += j->n_rows) {
        j->n_rows = (int)(it->rows - j->row0 < per_piece ? it->rows - j->row0 : per_piece);
        rc = convert_piece(j, e);
    }
    for (int t = 0; t < par_n(j->par); t++) {
        j->sums[at] += j->sum[t];
        j->sum[t] = 0;
        if (!j->out->loss) continue;
        struct rewrite_loss *l = &j->out->loss[at];
        l->square += j->loss[t].square;
        l->error += j->loss[t].error;
        l->worst = j->loss[t].worst > l->worst ? j->loss[t].worst : l->worst;
        j->loss[t] = (struct rewrite_loss){ 0 };
    }
    if (!is_copy(it) && it->from->data) filemap_drop(it->from->data, it->from->bytes);
    return rc;
}

/* ---- keys ---- */

/* Keys that the new file gets anew, or that describe the old file only. */
static bool is_rewritten(struct str key)
{
    return str_is(key, "general.file_type") || str_is(key, "general.quantization_version") ||
           str_is(key, "general.alignment") || str_starts(key, STR("split.")) ||
           str_starts(key, STR("quantize.imatrix."));
}

/* Metadata of the first part: that of the source, or what opt->keys writes. */
static int write_keys(struct job *j, struct err *e)
{
    const struct source *src = j->opt->src;
    const struct imatrix *im = j->opt->imatrix;
    int rc = j->opt->keys ? j->opt->keys(j->opt->source_arg, j->w, e) : OK;

    for (size_t i = 0; !j->opt->keys && i < source_n_keys(src); i++)
        if (!is_rewritten(str_c(source_key_name(src, i))))
            ggufw_copy(j->w, src, source_key_name(src, i));
    ggufw_u32(j->w, "general.quantization_version", 2);
    if (j->opt->mix->file_type >= 0)
        ggufw_u32(j->w, "general.file_type", (uint32_t)j->opt->mix->file_type);
    if (!im) return rc;
    ggufw_str(j->w, "quantize.imatrix.file", str_c(path_base(im->path)));
    if (im->dataset && *im->dataset)
        ggufw_str(j->w, "quantize.imatrix.dataset", str_c(im->dataset));
    ggufw_u32(j->w, "quantize.imatrix.entries_count", (uint32_t)im->n);
    ggufw_u32(j->w, "quantize.imatrix.chunks_count", (uint32_t)im->n_chunks);
    return rc;
}

static void write_split_keys(struct job *j, int part, int n_parts)
{
    if (n_parts < 2) return;
    ggufw_u16(j->w, "split.no", (uint16_t)part);
    ggufw_u16(j->w, "split.count", (uint16_t)n_parts);
    ggufw_i32(j->w, "split.tensors.count", j->opt->plan->n);
}

/* ---- parts ---- */

/* The end of the part that begins at item `from`. */
static int find_part_end(const struct rewrite_opt *opt, int from)
{
    uint64_t sum = 0;
    int i = from;

    if (!opt->split_bytes) return opt->plan->n;
    for (; i < opt->plan->n; i++) {
        sum += opt->plan->items[i].bytes;
        if (i > from && sum > opt->split_bytes) break;
    }
    return i;
}

char *rewrite_part_name(const char *dst, int i, int n)
{
    size_t len = strlen(dst), size = len + 64;
    char *name;

    if (n < 2) return mem_strdup(dst);
    if (!(name = mem_alloc(size))) return NULL;
    if (len > 5 && strcmp(dst + len - 5, ".gguf") == 0) len -= 5;
    snprintf(name, size, "%.*s-%05d-of-%05d.gguf", (int)len, dst, i + 1, n);
    return name;
}

/* One file: metadata, directory of tensors, data. */
static int write_part(struct job *j, int part, int n_parts, int from, int to, struct err *e)
{
    char *name = rewrite_part_name(j->opt->dst, part, n_parts);
    char text[256];
    int rc = name ? ggufw_open(&j->w, name, e) : err_nomem(e, "the name of a part");

    mem_free(name);
    if (rc != OK) return rc;
    if (part == 0) rc = write_keys(j, e);
    write_split_keys(j, part, n_parts);
    for (int i = from; i < to; i++) {
        const struct plan_item *it = &j->opt->plan->items[i];
        snprintf(text, sizeof text, "%.*s", STR_ARG(it->from->name));
        ggufw_tensor(j->w, text, it->type, it->from->dims, it->from->n_dims);
    }
    for (int i = from; i < to && rc == OK; i++) rc = write_item(j, i, e);
    if (rc == OK) {
        write_pending(j);
        rc = ggufw_close(j->w, e);
    } else {
        ggufw_abort(j->w);
    }
    j->w = NULL;
    j->pending_bytes = 0;
    return rc;
}

/* Counts the parts first, because their names contain the number. */
static int write_parts(struct job *j, struct err *e)
{
    int n = 0, part = 0, rc = OK;

    for (int at = 0; at < j->opt->plan->n; n++) at = find_part_end(j->opt, at);
    if (n > 9999)
        return err_set(e, E_INVALID,
                       "%d parts: at most 9999 are possible; use a larger --split-size", n);
    for (int at = 0; at < j->opt->plan->n && rc == OK; part++) {
        int end = find_part_end(j->opt, at);
        rc = write_part(j, part, n, at, end, e);
        at = end;
    }
    j->out->n_files = n;
    for (int i = 0; rc != OK && n > 1 && i < part; i++) { /* an incomplete set is useless */
        char *name = rewrite_part_name(j->opt->dst, i, n);
        if (name) remove(name);
        mem_free(name);
    }
    return rc;
}

/* ---- reading back ---- */

static void checksum_rows(void *arg, int t, int n_threads)
{
    struct job *j = arg;
    int a, b;

    (void)n_threads;
    while (par_next(j->par, j->n_rows, j->step, &a, &b))
        for (int i = a; i < b; i++)
            j->sum[t] += checksum_row((const char *)j->pending + (uint64_t)i * j->to_bytes,
                                      j->to_bytes, (uint64_t)i);
}

/* Tensor t of the new file has the type, shape and bytes of item i. */
static bool is_as_encoded(struct job *j, const struct source_tensor *t, int i)
{
    const struct plan_item *it = &j->opt->plan->items[i];
    uint64_t sum = 0;

    if (!t || t->type != it->type || t->n_dims != it->from->n_dims || t->bytes != it->bytes ||
        memcmp(t->dims, it->from->dims, (size_t)t->n_dims * sizeof t->dims[0]) != 0 ||
        it->rows > INT32_MAX)
        return false;
    j->pending = t->data;
    j->n_rows = (int)it->rows;
    j->step = it->cols < STEP_ELEMENTS ? (int)(STEP_ELEMENTS / it->cols) : 1;
    dtype_row_bytes(it->type, (uint64_t)it->cols, &j->to_bytes);
    par_run(j->par, checksum_rows, j);
    for (int k = 0; k < par_n(j->par); k++) sum += j->sum[k], j->sum[k] = 0;
    filemap_drop(t->data, t->bytes);
    return sum == j->sums[i];
}

/* Compares every tensor with its checksum, and adds up the file sizes. */
static int read_back(struct job *j, struct err *e)
{
    struct source *s = NULL;
    char *first = rewrite_part_name(j->opt->dst, 0, j->out->n_files);
    int rc = first ? source_open(&s, first, e) : err_nomem(e, "the name of a part");

    for (int i = 0; i < j->opt->plan->n && rc == OK; i++) {
        const struct source_tensor *from = j->opt->plan->items[i].from;
        const struct gguf *g = source_gguf(s);
        if (!is_as_encoded(j, g ? gguf_find(g, from->name) : NULL, i))
            rc = err_set(e, E_IO, "%s: tensor '%.*s' reads back different from what was written",
                         first, STR_ARG(from->name));
    }
    for (int i = 0; i < j->out->n_files; i++) {
        char *name = rewrite_part_name(j->opt->dst, i, j->out->n_files);
        struct stat st;
        if (name && stat(name, &st) == 0) j->out->file_bytes += (uint64_t)st.st_size;
        mem_free(name);
    }
    mem_free(first);
    source_close(s);
    return rc;
}

/* ---- all of it ---- */

int rewrite_room(const char *path, uint64_t bytes, struct err *e)
{
    struct statvfs fs;
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) + (slash == path) : 1; /* "/" stays, "a/b" -> "a" */
    char *dir = mem_dup(slash ? path : ".", n + 1);
    int rc = OK;

    if (!dir) return err_nomem(e, "a path");
    dir[n] = 0;
    if (statvfs(dir, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize < bytes)
        rc = err_set(e, E_IO, "%s: needs %.1f GiB, but only %.1f GiB of the disk are free", path,
                     (double)bytes / 0x1p30, (double)fs.f_bavail * (double)fs.f_frsize / 0x1p30);
    mem_free(dir);
    return rc;
}

static void release_job(struct job *j)
{
    ggufw_abort(j->w);
    for (int t = 0; j->par && t < par_n(j->par); t++) {
        if (j->x) mem_free(j->x[t]);
        if (j->y) mem_free(j->y[t]);
    }
    par_close(j->par);
    for (int i = 0; i < 2; i++) mem_free_aligned(j->piece[i], j->piece_bytes[i]);
    mem_free(j->x);
    mem_free(j->y);
    mem_free(j->loss);
    mem_free(j->sum);
    mem_free(j->sums);
    arena_release(&j->arena);
}

static int open_job(struct job *j, struct err *e)
{
    const struct rewrite_opt *opt = j->opt;
    size_t n;
    int rc = par_open(&j->par, (struct par_opt){ .n_threads = opt->n_threads }, e);

    if (rc != OK) return rc;
    n = (size_t)par_n(j->par);
    j->x = mem_array(n, sizeof *j->x);
    j->y = mem_array(n, sizeof *j->y);
    j->loss = mem_array(n, sizeof *j->loss);
    j->sum = mem_array(n, sizeof *j->sum);
    j->sums = mem_array((size_t)opt->plan->n + 1, sizeof *j->sums);
    if (opt->measure) j->out->loss = mem_array((size_t)opt->plan->n + 1, sizeof *j->out->loss);
    return j->x && j->y && j->loss && j->sum && j->sums && (!opt->measure || j->out->loss)
               ? OK
               : err_nomem(e, "the buffers of a quantization");
}

int rewrite_run(const struct rewrite_opt *opt, struct rewrite_result *out, struct err *e)
{
    struct job j = {
        .opt = opt, .out = out, .rtn = rtn_best(), .start_ns = clock_ns(), .bad_row = -1
    };
    int rc;

    *out = (struct rewrite_result){ 0 };
    if ((rc = rewrite_room(opt->dst, opt->plan->bytes, e)) != OK) return rc;
    rc = open_job(&j, e);
    if (rc == OK) rc = write_parts(&j, e);
    if (rc == OK) rc = read_back(&j, e);
    out->seconds = clock_ms_since(j.start_ns) / 1e3;
    release_job(&j);
    if (rc != OK) {
        mem_free(out->loss);
        *out = (struct rewrite_result){ 0 };
    }
    return rc;
}
