/* files.c - /v1/files: uploads stream to the disk, and contents stream from it. */
#include "server/work.h"

#include "base/jsonw.h"
#include "base/mem.h"
#include "jobs/jobs.h"
#include "jobs/upload.h"
#include "net/http.h"
#include "net/loop.h"
#include "server/server_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum {
    PIECE = 64 << 10,  /* bytes of a content that are read at once */
    PIECES = 16,       /* in one turn of the loop */
    FORM_BYTES = 65536 /* of a form beside its file */
};

/* ---- uploads ---- */

bool files_streams(void *arg, const struct http_req *q)
{
    (void)arg;
    return http_method(q) == HTTP_POST && str_is(http_path(q), "/v1/files");
}

bool files_admit(struct visit *t)
{
    struct server *v = t->v;
    int64_t length = http_body_length(t->q), max = v->s->max_file;
    struct upload *u;
    char msg[200];

    if (!v->jobs) {
        visit_fail_status(t, 503, "store_unavailable",
                          "this server has no folder for files: $HOME is not set; give --data-dir");
        return false;
    }
    if (length > max + FORM_BYTES) {
        snprintf(msg, sizeof msg, "the file has more than %lld bytes, the most of this server",
                 (long long)max);
        visit_fail_status(t, 413, "request_too_large", msg);
        return false;
    }
    u = upload_open(jobs_dir(v->jobs), http_header(t->q, "Content-Type"), (uint64_t)max);
    if (!u) {
        struct err e = { 0 };
        err_nomem(&e, "an upload");
        visit_fail(t, &e);
        return false;
    }
    http_set_sink(t->q, &u->sink);
    return true;
}

struct post_op {
    struct work_op w; /* first */
    struct upload *u;
};

/* On the journal's thread: the file gets its name, and its row. */
static int run_post(struct jobstore *s, struct journal_op *op, struct err *e)
{
    struct upload *u = ((struct post_op *)op)->u;
    char path[3200];
    int rc;

    jobstore_path(s, path, sizeof path, "tmp", u->file.id);
    if (rename(u->path, path) != 0)
        return err_set(e, E_IO, "%s: cannot be moved: %s", u->path, strerror(errno));
    if ((rc = jobstore_add_file(s, &u->file, e)) != OK) unlink(path);
    else u->path[0] = 0;
    if (rc == OK) rc = jobstore_find_file(s, u->file.tenant, u->file.id, &u->file, e);
    return rc;
}

static void on_post(struct journal_op *op)
{
    struct post_op *p = (struct post_op *)op;

    if (op->rc != OK) {
        work_fail(&p->w.t, &op->err);
    } else {
        jobstore_write_file(&p->u->file, &p->w.out);
        visit_reply_buf(&p->w.t, 200, "application/json", &p->w.out);
    }
    upload_close(p->u);
    work_free(&p->w);
}

void files_post(struct visit *t)
{
    struct upload *u = (struct upload *)http_take_sink(t->q);
    struct post_op *p;
    struct err e = { 0 };

    if (!u) {
        visit_fail_status(t, 400, "invalid_request", "the request has no body");
        return;
    }
    if (upload_end(u, &e) != OK) {
        if (e.code == E_BYTES) visit_fail_status(t, 413, "request_too_large", e.msg);
        else visit_fail(t, &e);
        upload_close(u);
        return;
    }
    if (!(p = mem_new(struct post_op))) {
        err_nomem(&e, "an upload");
        visit_fail(t, &e);
        upload_close(u);
        return;
    }
    snprintf(u->file.tenant, sizeof u->file.tenant, "%s", t->who.name);
    p->u = u;
    p->w.t = *t;
    work_add(&p->w, run_post, on_post);
}

/* ---- rows ---- */

static int run_list(struct jobstore *s, struct journal_op *op, struct err *e)
{
    struct work_op *w = (struct work_op *)op;
    struct jobstore_page p = { .tenant = w->t.who.name,
                               .after = w->after,
                               .purpose = w->purpose,
                               .limit = w->limit,
                               .oldest_first = w->oldest_first };

    return jobstore_list_files(s, &p, &w->out, e);
}

static int run_get(struct jobstore *s, struct journal_op *op, struct err *e)
{
    struct work_op *w = (struct work_op *)op;
    struct jobstore_file f;
    int rc = jobstore_find_file(s, w->t.who.name, w->id, &f, e);

    if (rc == OK) jobstore_write_file(&f, &w->out);
    return rc;
}

static int run_delete(struct jobstore *s, struct journal_op *op, struct err *e)
{
    struct work_op *w = (struct work_op *)op;
    struct jsonw j = { .out = &w->out };
    int rc = jobstore_delete_file(s, w->t.who.name, w->id, e);

    if (rc != OK) return rc;
    jsonw_obj(&j);
    jsonw_key(&j, "id"), jsonw_str(&j, str_c(w->id));
    jsonw_key(&j, "object"), jsonw_str(&j, STR("file"));
    jsonw_key(&j, "deleted"), jsonw_bool(&j, true);
    jsonw_end(&j);
    return OK;
}

void files_list(struct visit *t) { work_begin(t, run_list, NULL, NULL, ""); }
void files_get(struct visit *t) { work_begin(t, run_get, NULL, "/v1/files/", ""); }
void files_delete(struct visit *t) { work_begin(t, run_delete, NULL, "/v1/files/", ""); }

/* ---- contents ---- */

struct download {
    struct visit t;
    struct loop_timer *timer; /* the next turn */
    int fd;
    int64_t at, size;
};

static void end_download(struct download *d)
{
    http_on_gone(d->t.q, NULL, NULL);
    http_on_sent(d->t.q, NULL, NULL);
    if (d->at < d->size) http_drop(d->t.q, "the file cannot be read");
    http_end(d->t.q);
    visit_end_stream(&d->t, 200);
    loop_timer_close(d->timer);
    close(d->fd);
    mem_free(d);
}

static void on_gone(void *arg) { end_download(arg); }

/* Sends until bytes are queued, or for one turn: other connections are served in between. */
static void send_more(void *arg)
{
    struct download *d = arg;
    char piece[PIECE];

    for (int i = 0; i < PIECES && d->at < d->size; i++) {
        ssize_t n;
        if (http_unsent(d->t.q) > 0) return; /* on_sent goes on */
        n = pread(d->fd, piece, sizeof piece, (off_t)d->at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0 || !http_write(d->t.q, piece, (size_t)n)) {
            end_download(d);
            return;
        }
        d->at += n;
    }
    if (d->at < d->size) {
        if (http_unsent(d->t.q) == 0 && !loop_timer_set(d->timer, 1)) end_download(d);
        return;
    }
    end_download(d);
}

static void start_download(struct visit *t, int fd, int64_t size)
{
    struct download *d = mem_new(struct download);
    struct err e = { 0 };

    if (d) *d = (struct download){ .t = *t, .fd = fd, .size = size };
    if (d && (d->timer = loop_timer(t->v->loop, send_more, d)) &&
        visit_begin_stream(&d->t, 200, "application/octet-stream")) {
        http_on_gone(d->t.q, on_gone, d);
        http_on_sent(d->t.q, send_more, d);
        send_more(d);
        return;
    }
    if (d) loop_timer_close(d->timer);
    mem_free(d);
    close(fd);
    err_nomem(&e, "a download");
    visit_fail(t, &e);
}

struct content_op {
    struct work_op w; /* first */
    int fd;
    int64_t size;
};

static int run_content(struct jobstore *s, struct journal_op *op, struct err *e)
{
    struct content_op *c = (struct content_op *)op;
    struct jobstore_file f;
    char path[3200];
    int rc = jobstore_find_file(s, c->w.t.who.name, c->w.id, &f, e);

    if (rc != OK) return rc;
    jobstore_path(s, path, sizeof path, "files", f.id);
    if ((c->fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return err_set(e, E_IO, "%s: cannot be opened: %s", path, strerror(errno));
    c->size = f.bytes;
    return OK;
}

static void on_content(struct journal_op *op)
{
    struct content_op *c = (struct content_op *)op;

    if (op->rc != OK) work_fail(&c->w.t, &op->err);
    else start_download(&c->w.t, c->fd, c->size);
    work_free(&c->w);
}

void files_content(struct visit *t)
{
    struct content_op *c = mem_new(struct content_op);
    struct err e = { 0 };

    if (!c) {
        err_nomem(&e, "a download");
        visit_fail(t, &e);
    } else if (!work_read_id(t, "/v1/files/", "/content", c->w.id)) {
        visit_fail_status(t, 404, "not_found", "there is no file of this id");
        work_free(&c->w);
    } else {
        c->w.t = *t;
        work_add(&c->w, run_content, on_content);
    }
}
