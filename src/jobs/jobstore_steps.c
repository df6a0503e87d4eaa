/* jobstore_steps.c - the long work of a batch, in steps: reading its input lines into rows, and writing
 * its results into files.
 *
 * A step of validation commits the rows of its lines together with how far it has read. A step of
 * the results appends to files in DIR/tmp; a process that is killed meanwhile begins these again. The
 * last step moves both files into place and removes the rows in one transaction. */
#include "jobs/jobstore_impl.h"

#include "base/mem.h"
#include "jobs/batchline.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    STEP_LINES = 256,     /* of one step */
    STEP_BYTES = 1 << 20, /* read at once; more where a line is longer */
    ERRORS_MAX = 100      /* of a batch that are kept */
};

/* ---- validation ---- */

struct check {
    struct jobstore *s;
    const char *id; /* of the batch */
    char tenant[STORE_TENANT], endpoint[64], input[STORE_ID];
    int64_t at, line, total, n_errors, created;
    int status;
};

static int load_check(struct check *c, struct err *e)
{
    struct query q;
    int rc;

    c->status = BATCH_FAILED;
    query_begin(&q, c->s->db,
                "SELECT tenant,endpoint,input,read_bytes,read_lines,total,n_errors,status FROM "
                "batches WHERE id=?");
    query_text(&q, str_c(c->id));
    if (query_row(&q)) {
        jobstore_copy(c->tenant, sizeof c->tenant, query_get_text(&q, 0));
        jobstore_copy(c->endpoint, sizeof c->endpoint, query_get_text(&q, 1));
        jobstore_copy(c->input, sizeof c->input, query_get_text(&q, 2));
        c->at = query_get_int(&q, 3);
        c->line = query_get_int(&q, 4);
        c->total = query_get_int(&q, 5);
        c->n_errors = query_get_int(&q, 6);
        c->status = (int)query_get_int(&q, 7);
    }
    rc = query_end(&q, e);
    return rc;
}

/* line 0: the error is about the whole file. */
static int add_error(struct check *c, int64_t line, const char *code, const char *param,
                     const char *message, struct err *e)
{
    struct query q;

    if (c->n_errors++ >= ERRORS_MAX) return OK;
    query_begin(&q, c->s->db,
                "INSERT INTO errors(batch,line,code,message,param) VALUES(?,?,?,?,?)");
    query_text(&q, str_c(c->id));
    query_int(&q, line);
    query_text(&q, str_c(code));
    query_text(&q, str_c(message));
    query_text(&q, str_c(param));
    return query_run(&q, NULL, e);
}

static int add_row(struct check *c, const struct batchline *l, int64_t at, size_t n, struct err *e)
{
    char id[STORE_ID], msg[600];
    struct query q;
    int changed, rc;

    jobstore_make_id(id, "batch_req_");
    query_begin(&q, c->s->db,
                "INSERT INTO jobs(id,batch,tenant,endpoint,custom_id,at,bytes,created) "
                "VALUES(?,?,?,?,?,?,?,?) ON CONFLICT(batch,custom_id) WHERE custom_id IS NOT NULL "
                "DO NOTHING");
    query_text(&q, str_c(id));
    query_text(&q, str_c(c->id));
    query_text(&q, str_c(c->tenant));
    query_text(&q, str_c(c->endpoint));
    query_text(&q, str_c(l->custom_id));
    query_int(&q, at);
    query_int(&q, (int64_t)n);
    query_int(&q, c->created);
    if ((rc = query_run(&q, &changed, e)) != OK) return rc;
    if (changed) {
        c->total++;
        return OK;
    }
    snprintf(msg, sizeof msg, "the custom_id '%.200s' is that of an earlier line", l->custom_id);
    return add_error(c, c->line, "duplicate_custom_id", "custom_id", msg, e);
}

static int check_line(struct check *c, struct str text, struct err *e)
{
    struct batchline l;
    struct err bad = { 0 };
    int64_t at = c->at;
    int rc;

    c->line++;
    if (str_trim(text).n == 0) return OK;
    rc = batchline_read(&l, text, c->endpoint, NULL, &bad);
    if (rc == OK) return add_row(c, &l, at, text.n, e);
    if (rc == E_INVALID) return add_error(c, c->line, l.code, l.param, bad.msg, e);
    if (e) *e = bad;
    return rc;
}

/* Complete lines of text; the last one may lack its line end where the file ends. */
static int check_lines(struct check *c, struct str text, bool at_end, struct err *e)
{
    int rc = OK;

    for (int i = 0; i < STEP_LINES && text.n && rc == OK; i++) {
        const char *end = memchr(text.p, '\n', text.n);
        size_t n = end ? (size_t)(end - text.p) : text.n;
        if (!end && !at_end) break;
        rc = check_line(c, str_of(text.p, n), e);
        n += end != NULL;
        c->at += (int64_t)n;
        text = str_skip(text, n);
    }
    return rc;
}

/* A piece of the file with at least one whole line, or all that is left. */
static int read_piece(const struct check *c, int fd, int64_t size, struct buf *out, struct err *e)
{
    size_t want = STEP_BYTES;

    for (;;) {
        size_t have = out->n;
        while (out->n < want && c->at + (int64_t)out->n < size) {
            ssize_t k;
            if (!buf_reserve(out, want - out->n)) return err_nomem(e, "lines of a batch");
            k = pread(fd, out->p + out->n, want - out->n, (off_t)(c->at + (int64_t)out->n));
            if (k < 0 && errno == EINTR) continue;
            if (k <= 0) return err_set(e, E_IO, "the input file of %s cannot be read", c->id);
            out->n += (size_t)k;
        }
        if (c->at + (int64_t)out->n >= size) return OK;
        if (memchr(out->p + have, '\n', out->n - have)) return OK;
        if (want >= STORE_LINE_MAX) return OK; /* check_size refuses it */
        want *= 4;
        if (want > STORE_LINE_MAX) want = STORE_LINE_MAX;
    }
}

static int save_check(struct check *c, bool at_end, struct err *e)
{
    int64_t now = jobstore_now();
    bool failed = c->n_errors > 0;
    int status = !at_end ? BATCH_VALIDATING : failed ? BATCH_FAILED : BATCH_IN_PROGRESS;
    struct query q;
    int rc;

    query_begin(&q, c->s->db,
                "UPDATE batches SET read_bytes=?,read_lines=?,total=?,n_errors=?,status=?,"
                "in_progress=?,ended=? WHERE id=?");
    query_int(&q, c->at);
    query_int(&q, c->line);
    query_int(&q, c->total);
    query_int(&q, c->n_errors);
    query_int(&q, status);
    if (status == BATCH_IN_PROGRESS) query_int(&q, now);
    else query_text(&q, (struct str){ 0 });
    if (status == BATCH_FAILED) query_int(&q, now);
    else query_text(&q, (struct str){ 0 });
    query_text(&q, str_c(c->id));
    if ((rc = query_run(&q, NULL, e)) != OK || status != BATCH_FAILED) return rc;
    query_begin(&q, c->s->db, "DELETE FROM jobs WHERE batch=?");
    query_text(&q, str_c(c->id));
    return query_run(&q, NULL, e);
}

/* Reasons to stop at once. *stop: the batch fails now. */
static int check_size(struct check *c, struct str piece, bool at_end, bool *stop, struct err *e)
{
    char msg[200];

    *stop = true;
    if (c->s->lim.max_lines > 0 && c->total > c->s->lim.max_lines) {
        snprintf(msg, sizeof msg, "the file has more than %lld lines, the most of a batch",
                 (long long)c->s->lim.max_lines);
        return add_error(c, c->line, "too_many_lines", NULL, msg, e);
    }
    if (!at_end && piece.n >= STORE_LINE_MAX && !memchr(piece.p, '\n', piece.n)) {
        snprintf(msg, sizeof msg, "the line has more than %d bytes", STORE_LINE_MAX);
        return add_error(c, c->line + 1, "line_too_long", NULL, msg, e);
    }
    *stop = false;
    return OK;
}

static int check_piece(struct check *c, int fd, int64_t size, bool *more, struct err *e)
{
    struct buf piece = { 0 };
    bool stop = false, at_end;
    int rc = read_piece(c, fd, size, &piece, e);

    if (rc == OK) {
        at_end = c->at + (int64_t)piece.n >= size;
        rc = check_size(c, buf_str(&piece), at_end, &stop, e);
        if (rc == OK && !stop) rc = check_lines(c, buf_str(&piece), at_end, e);
        if (rc == OK && !stop) rc = check_size(c, STR(""), true, &stop, e);
    }
    buf_release(&piece);
    *more = rc == OK && !stop && c->at < size;
    return rc;
}

int jobstore_validate_step(struct jobstore *s, const char *id, bool *more, struct err *e)
{
    struct check c = { .s = s, .id = id, .created = jobstore_now() };
    char path[3200];
    struct stat st;
    int fd, rc;

    *more = false;
    if ((rc = load_check(&c, e)) != OK || c.status != BATCH_VALIDATING) return rc;
    jobstore_path(s, path, sizeof path, "files", c.input);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        rc = add_error(&c, 0, "input_file_missing", "input_file_id", "the input file is gone", e);
    } else {
        rc = check_piece(&c, fd, st.st_size, more, e);
        if (rc == OK && !*more && c.total == 0 && c.n_errors == 0)
            rc = add_error(&c, 0, "empty_file", "input_file_id", "the input file has no lines", e);
    }
    if (fd >= 0) close(fd);
    return rc == OK ? save_check(&c, !*more, e) : rc;
}

/* ---- results ---- */

struct finish {
    struct jobstore *s;
    const char *id;
    char tenant[STORE_TENANT], output[STORE_ID], error[STORE_ID];
    int ends_as;
    struct buf text[2]; /* lines of this step: results, errors */
};

static int load_finish(struct finish *f, bool *due, struct err *e)
{
    struct query q;

    *due = false;
    query_begin(&q, f->s->db, "SELECT tenant,output,error,ends_as,status FROM batches WHERE id=?");
    query_text(&q, str_c(f->id));
    if (query_row(&q)) {
        int64_t status = query_get_int(&q, 4);
        jobstore_copy(f->tenant, sizeof f->tenant, query_get_text(&q, 0));
        jobstore_copy(f->output, sizeof f->output, query_get_text(&q, 1));
        jobstore_copy(f->error, sizeof f->error, query_get_text(&q, 2));
        f->ends_as = (int)query_get_int(&q, 3);
        *due = status == BATCH_FINALIZING || status == BATCH_CANCELLING;
    }
    return query_end(&q, e);
}

static void write_line(struct finish *f, struct query *q)
{
    bool answered = query_get_int(q, 3) == JOB_ANSWERED, expired = f->ends_as == BATCH_EXPIRED;
    struct batchline_result r = { .status = answered ? (int)query_get_int(q, 4) : 0,
                                  .request_id = query_get_text(q, 5),
                                  .body = query_get_text(q, 6) };
    char id[STORE_ID], custom[BATCHLINE_ID], error[64];

    jobstore_copy(id, sizeof id, query_get_text(q, 1));
    jobstore_copy(custom, sizeof custom, query_get_text(q, 2));
    jobstore_copy(error, sizeof error, query_get_text(q, 7));
    r.id = id;
    r.custom_id = custom;
    if (!answered) {
        r.error = expired ? "batch_expired" : "batch_cancelled";
        r.message = expired ? "the completion window ended before this request was run"
                            : "the batch was cancelled before this request was run";
    } else if (*error) {
        r.error = error;
        r.message = "the request could not be run";
    }
    batchline_write(&f->text[r.status != 200], &r);
}

static int collect_lines(struct finish *f, int64_t *after, bool *more, struct err *e)
{
    struct query q;
    int n = 0;

    query_begin(&q, f->s->db,
                "SELECT seq,id,custom_id,state,status,request_id,reply,error FROM jobs WHERE "
                "batch=? AND seq>? ORDER BY seq LIMIT ?");
    query_text(&q, str_c(f->id));
    query_int(&q, *after);
    query_int(&q, STEP_LINES);
    while (query_row(&q)) {
        *after = query_get_int(&q, 0);
        write_line(f, &q);
        n++;
    }
    *more = n == STEP_LINES;
    return query_end(&q, e);
}

static int append_text(const struct jobstore *s, const char *id, const struct buf *b, bool first,
                       struct err *e)
{
    char path[3200];
    int fd, rc = buf_check(b, e);

    if (rc != OK) return rc;
    jobstore_path(s, path, sizeof path, "tmp", id);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (first ? O_TRUNC : O_APPEND), 0600);
    if (fd < 0) return jobstore_errno(e, "open", path);
    for (size_t at = 0; at < b->n && rc == OK;) {
        ssize_t k = write(fd, b->p + at, b->n - at);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) rc = jobstore_errno(e, "write", path);
        else at += (size_t)k;
    }
    if (close(fd) != 0 && rc == OK) rc = jobstore_errno(e, "close", path);
    return rc;
}

/* A file of no lines is not kept. *kept: it is there now. */
static int keep_results(struct finish *f, const char *id, const char *kind, bool *kept,
                        struct err *e)
{
    struct jobstore_file file = { .created = jobstore_now() };
    char path[3200];
    struct stat st;

    jobstore_path(f->s, path, sizeof path, "tmp", id);
    if (stat(path, &st) != 0) return jobstore_errno(e, "read", path);
    *kept = st.st_size > 0;
    if (!*kept) {
        unlink(path);
        return OK;
    }
    file.bytes = st.st_size;
    snprintf(file.id, sizeof file.id, "%s", id);
    snprintf(file.tenant, sizeof file.tenant, "%s", f->tenant);
    snprintf(file.purpose, sizeof file.purpose, "batch_output");
    snprintf(file.name, sizeof file.name, "%s_%s.jsonl", f->id, kind);
    return jobstore_move_file(f->s, &file, e);
}

static int end_batch(struct finish *f, struct err *e)
{
    bool has_output, has_error;
    int64_t now = jobstore_now();
    struct query q;
    int rc;

    if ((rc = keep_results(f, f->output, "output", &has_output, e)) != OK) return rc;
    if ((rc = keep_results(f, f->error, "error", &has_error, e)) != OK) return rc;
    query_begin(&q, f->s->db,
                "UPDATE batches SET status=ends_as,ended=?,has_output=?,has_error=? WHERE id=?");
    query_int(&q, now);
    query_int(&q, has_output);
    query_int(&q, has_error);
    query_text(&q, str_c(f->id));
    if ((rc = query_run(&q, NULL, e)) != OK) return rc;
    query_begin(&q, f->s->db, "DELETE FROM jobs WHERE batch=?");
    query_text(&q, str_c(f->id));
    return query_run(&q, NULL, e);
}

int jobstore_finish_step(struct jobstore *s, const char *id, int64_t *after, bool *more,
                         struct err *e)
{
    struct finish f = { .s = s, .id = id };
    bool first = *after == 0, due;
    int rc = load_finish(&f, &due, e);

    *more = false;
    if (rc != OK || !due) return rc;
    if ((rc = collect_lines(&f, after, more, e)) == OK &&
        (rc = append_text(s, f.output, &f.text[0], first, e)) == OK)
        rc = append_text(s, f.error, &f.text[1], first, e);
    buf_release(&f.text[0]);
    buf_release(&f.text[1]);
    if (rc == OK && !*more) rc = end_batch(&f, e);
    return rc;
}
