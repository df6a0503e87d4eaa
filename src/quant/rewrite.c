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

#define PIECE_BYTES (8u << 20)
#define STEP_NUMBERS 16384 /* a thread takes so many at a time, in whole rows */

struct job {
    const struct rewrite_opt *opt;
    struct rewrite_result *out;
    const struct rtn *rtn;
    struct par *par;
    struct arena arena; /* weights of the tensor under way */
    struct ggufw *w;
    uint64_t *sums; /* [plan->n] of the bytes that were meant */
    uint64_t start_ns, done_bytes;
    /* the tensor under way */
    int at;
    const struct plan_item *it;
    const float *weights; /* [n_mats][cols] or NULL */
    int64_t rows_per_mat;
    uint64_t from_bytes, to_bytes; /* of a row */
    /* the piece under way; copied rows stay where they are */
    int64_t row0;
    int n_rows, step;
    unsigned char *piece[2];
    size_t piece_bytes[2];
    unsigned char *to;
    int turn;
    /* the piece before it, which the first thread writes before it joins the others */
    const void *pending;
    size_t pending_bytes;
    /* by thread */
    float **x, **y; /* [cols] */
    struct rewrite_loss *loss;
    uint64_t *sum;
    _Atomic int64_t bad_row; /* the first row that holds no numbers; -1: none */
};

/* Of eight bytes at a time: enough to tell that what was meant is what was written. */
static uint64_t sum_of(const void *p, size_t n, uint64_t row)
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

static void note_bad(struct job *j, int64_t row)
{
    int64_t now = atomic_load(&j->bad_row);
    while ((now < 0 || row < now) && !atomic_compare_exchange_weak(&j->bad_row, &now, row))
        continue;
}

static void measure(struct job *j, int t, const void *row)
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
        note_bad(j, row);
        return;
    }
    j->rtn->encode(it->type, j->x[t], w, to, it->cols);
    if (j->opt->measure) measure(j, t, to);
    j->sum[t] += sum_of(to, j->to_bytes, (uint64_t)row);
}

/* Rows that go into the file from where they are. */
static bool is_copy(const struct plan_item *it)
{
    return it->type == it->from->type && it->from->data;
}

static void read_row(struct job *j, int t, int i)
{
    unsigned char *to = j->to + (uint64_t)i * j->to_bytes;

    j->opt->read(j->opt->source_arg, j->at, j->row0 + i, j->it->type, to, j->y[t]);
    j->sum[t] += sum_of(to, j->to_bytes, (uint64_t)(j->row0 + i));
}

static void work(void *arg, int t, int n_threads)
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
                j->sum[t] +=
                    sum_of(j->to + (uint64_t)i * j->to_bytes, j->to_bytes, (uint64_t)(j->row0 + i));
        }
}

static void flush(struct job *j)
{
    if (j->pending_bytes) ggufw_data(j->w, j->pending, j->pending_bytes);
    j->pending_bytes = 0;
}

static int tell(struct job *j, struct err *e)
{
    struct rewrite_progress p = { .done_bytes = j->done_bytes,
                                  .bytes = j->opt->plan->from_bytes,
                                  .seconds = clock_ms_since(j->start_ns) / 1e3 };

    if (j->opt->stop && *j->opt->stop)
        return err_set(e, E_CANCELLED, "%s: stopped; nothing was written", j->opt->dst);
    p.name = arena_cstr(&j->arena, j->it->from->name);
    if (j->opt->progress) j->opt->progress(j->opt->progress_arg, &p);
    return OK;
}

static int run_piece(struct job *j, struct err *e)
{
    size_t n = (size_t)j->n_rows * j->to_bytes;

    if (is_copy(j->it)) {
        j->to = (unsigned char *)j->it->from->data + (uint64_t)j->row0 * j->to_bytes;
    } else if (j->piece_bytes[j->turn] < n) {
        mem_free_aligned(j->piece[j->turn], j->piece_bytes[j->turn]);
        j->piece[j->turn] = mem_aligned(n);
        j->piece_bytes[j->turn] = j->piece[j->turn] ? n : 0;
        if (!j->piece[j->turn])
            return err_set(e, E_NOMEM, "no memory for %zu bytes of '%.*s'", n,
                           STR_ARG(j->it->from->name));
    }
    if (!is_copy(j->it)) j->to = j->piece[j->turn];
    par_run(j->par, work, j);
    j->pending = j->to;
    j->pending_bytes = n;
    j->turn ^= !is_copy(j->it);
    j->done_bytes += (uint64_t)j->n_rows * j->from_bytes;
    if (atomic_load(&j->bad_row) >= 0)
        return err_set(
            e, E_FORMAT,
            "%s: tensor '%.*s', row %lld: holds a NaN or an infinity, which no %s can say",
            source_path(j->opt->src), STR_ARG(j->it->from->name),
            (long long)atomic_load(&j->bad_row), dtype_name((int)j->it->type));
    return tell(j, e);
}

/* Scratch for rows of this tensor, and what the imatrix says of it. */
static int begin_item(struct job *j, int at, struct err *e)
{
    const struct plan_item *it = &j->opt->plan->items[at];
    int n_mats = it->from->n_dims == 3 ? (int)it->from->dims[0] : 1, rc = OK;

    j->at = at;
    j->it = it;
    j->weights = NULL;
    j->rows_per_mat = it->rows / n_mats;
    dtype_row_bytes(it->from->type, (uint64_t)it->cols, &j->from_bytes);
    dtype_row_bytes(it->type, (uint64_t)it->cols, &j->to_bytes);
    j->step = it->cols < STEP_NUMBERS ? (int)(STEP_NUMBERS / it->cols) : 1;
    arena_reset(&j->arena);
    if (is_copy(it)) return OK;
    if (j->opt->imatrix && dtype_info((int)it->type)->quantized)
        rc = imatrix_weights(j->opt->imatrix, &j->arena, it->from->name, it->cols, n_mats,
                             &j->weights, e);
    j->out->n_weighted += j->weights != NULL;
    for (int t = 0; t < par_n(j->par) && rc == OK; t++) {
        mem_free(j->x[t]);
        mem_free(j->y[t]);
        j->x[t] = mem_array((size_t)it->cols, sizeof(float));
        j->y[t] = mem_array((size_t)it->cols + j->opt->read_room, sizeof(float));
        if (!j->x[t] || !j->y[t])
            rc = err_set(e, E_NOMEM, "no memory for rows of %lld", (long long)it->cols);
    }
    return rc;
}

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
        rc = run_piece(j, e);
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

static bool is_rewritten(struct str key)
{
    return str_is(key, "general.file_type") || str_is(key, "general.quantization_version") ||
           str_is(key, "general.alignment") || str_starts(key, STR("split.")) ||
           str_starts(key, STR("quantize.imatrix."));
}

static int put_keys(struct job *j, struct err *e)
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

static void put_split(struct job *j, int part, int n_parts)
{
    if (n_parts < 2) return;
    ggufw_u16(j->w, "split.no", (uint16_t)part);
    ggufw_u16(j->w, "split.count", (uint16_t)n_parts);
    ggufw_i32(j->w, "split.tensors.count", j->opt->plan->n);
}

/* ---- parts ---- */

/* Where the part that begins at item `from` ends. */
static int part_end(const struct rewrite_opt *opt, int from)
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
    struct buf b = { 0 };
    size_t len = strlen(dst);

    if (n < 2) return mem_strdup(dst);
    if (len > 5 && strcmp(dst + len - 5, ".gguf") == 0) len -= 5;
    buf_printf(&b, "%.*s-%05d-of-%05d.gguf", (int)len, dst, i + 1, n);
    buf_cstr(&b);
    return b.p;
}

static int write_part(struct job *j, int part, int n_parts, int from, int to, struct err *e)
{
    char *name = rewrite_part_name(j->opt->dst, part, n_parts);
    char text[256];
    int rc = ggufw_open(&j->w, name, e);

    mem_free(name);
    if (rc != OK) return rc;
    if (part == 0) rc = put_keys(j, e);
    put_split(j, part, n_parts);
    for (int i = from; i < to; i++) {
        const struct plan_item *it = &j->opt->plan->items[i];
        snprintf(text, sizeof text, "%.*s", STR_ARG(it->from->name));
        ggufw_tensor(j->w, text, it->type, it->from->dims, it->from->n_dims);
    }
    for (int i = from; i < to && rc == OK; i++) rc = write_item(j, i, e);
    if (rc == OK) {
        flush(j);
        rc = ggufw_close(j->w, e);
    } else {
        ggufw_abort(j->w);
    }
    j->w = NULL;
    j->pending_bytes = 0;
    return rc;
}

static int write_parts(struct job *j, struct err *e)
{
    int n = 0, part = 0, rc = OK;

    for (int at = 0; at < j->opt->plan->n; n++) at = part_end(j->opt, at);
    if (n > 9999)
        return err_set(e, E_INVALID, "%d parts are too many: take a larger --split-size", n);
    for (int at = 0; at < j->opt->plan->n && rc == OK; part++) {
        int end = part_end(j->opt, at);
        rc = write_part(j, part, n, at, end, e);
        at = end;
    }
    j->out->n_files = n;
    for (int i = 0; rc != OK && n > 1 && i < part; i++) { /* a set that is not whole is of no use */
        char *name = rewrite_part_name(j->opt->dst, i, n);
        remove(name);
        mem_free(name);
    }
    return rc;
}

/* ---- reading back ---- */

static void sum_rows(void *arg, int t, int n_threads)
{
    struct job *j = arg;
    int a, b;

    (void)n_threads;
    while (par_next(j->par, j->n_rows, j->step, &a, &b))
        for (int i = a; i < b; i++)
            j->sum[t] += sum_of((const char *)j->pending + (uint64_t)i * j->to_bytes, j->to_bytes,
                                (uint64_t)i);
}

static bool came_back(struct job *j, const struct source_tensor *t, int i)
{
    const struct plan_item *it = &j->opt->plan->items[i];
    uint64_t sum = 0;

    if (!t || t->type != it->type || t->n_dims != it->from->n_dims || t->bytes != it->bytes ||
        memcmp(t->dims, it->from->dims, (size_t)t->n_dims * sizeof t->dims[0]) != 0 ||
        it->rows > INT32_MAX)
        return false;
    j->pending = t->data;
    j->n_rows = (int)it->rows;
    j->step = it->cols < STEP_NUMBERS ? (int)(STEP_NUMBERS / it->cols) : 1;
    dtype_row_bytes(it->type, (uint64_t)it->cols, &j->to_bytes);
    par_run(j->par, sum_rows, j);
    for (int k = 0; k < par_n(j->par); k++) sum += j->sum[k], j->sum[k] = 0;
    filemap_drop(t->data, t->bytes);
    return sum == j->sums[i];
}

static int read_back(struct job *j, struct err *e)
{
    struct source *s = NULL;
    char *first = rewrite_part_name(j->opt->dst, 0, j->out->n_files);
    int rc = source_open(&s, first, e);

    for (int i = 0; i < j->opt->plan->n && rc == OK; i++) {
        const struct source_tensor *from = j->opt->plan->items[i].from;
        const struct gguf *g = source_gguf(s);
        if (!came_back(j, g ? gguf_find(g, from->name) : NULL, i))
            rc = err_set(e, E_IO, "%s: '%.*s' did not come back as written", first,
                         STR_ARG(from->name));
    }
    for (int i = 0; i < j->out->n_files; i++) {
        char *name = rewrite_part_name(j->opt->dst, i, j->out->n_files);
        struct stat st;
        if (stat(name, &st) == 0) j->out->file_bytes += (uint64_t)st.st_size;
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
    char *dir = mem_strdup(path);
    char *slash = strrchr(dir, '/');
    int rc = OK;

    if (slash) slash[slash == dir] = 0;
    if (statvfs(slash ? dir : ".", &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize < bytes)
        rc = err_set(e, E_IO, "%s: needs %.1f GiB, and the disk has %.1f GiB left", path,
                     (double)bytes / 0x1p30, (double)fs.f_bavail * (double)fs.f_frsize / 0x1p30);
    mem_free(dir);
    return rc;
}

static void release(struct job *j)
{
    ggufw_abort(j->w);
    for (int t = 0; j->par && t < par_n(j->par); t++) {
        mem_free(j->x[t]);
        mem_free(j->y[t]);
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

int rewrite_run(const struct rewrite_opt *opt, struct rewrite_result *out, struct err *e)
{
    struct job j = {
        .opt = opt, .out = out, .rtn = rtn_best(), .start_ns = clock_ns(), .bad_row = -1
    };
    size_t n;
    int rc;

    *out = (struct rewrite_result){ 0 };
    if ((rc = rewrite_room(opt->dst, opt->plan->bytes, e)) != OK) return rc;
    if ((rc = par_open(&j.par, (struct par_opt){ .n_threads = opt->n_threads }, e)) != OK)
        return rc;
    n = (size_t)par_n(j.par);
    j.x = mem_array(n, sizeof *j.x);
    j.y = mem_array(n, sizeof *j.y);
    j.loss = mem_array(n, sizeof *j.loss);
    j.sum = mem_array(n, sizeof *j.sum);
    j.sums = mem_array((size_t)opt->plan->n + 1, sizeof *j.sums);
    if (opt->measure) out->loss = mem_array((size_t)opt->plan->n + 1, sizeof *out->loss);
    rc = write_parts(&j, e);
    if (rc == OK) rc = read_back(&j, e);
    out->seconds = clock_ms_since(j.start_ns) / 1e3;
    release(&j);
    return rc;
}
