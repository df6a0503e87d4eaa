/* gwstore_http.c - /v1/files and /v1/batches over JetStream. Each request is an operation of the ledger, in
 * steps; 200 says that the record is written. */
#include "base/clock.h"
#include "base/jsonw.h"
#include "base/mem.h"
#include "cluster/gwask.h"
#include "cluster/gwstore_impl.h"
#include "jobs/batchbody.h"
#include "jobs/pagequery.h"
#include "jobs/upload.h"
#include "ledger/jobrecord.h"
#include "server/settings.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

enum { FORM_BYTES = 65536, CANCEL_TRIES = 8 };

/* One request. */
struct storeask {
    struct gwask ask; /* first */
    struct gwstore *s;
    int (*next)(struct storelink *k, struct storeask *a, struct err *e); /* the next step */
    char id[STORE_ID];
    struct pagequery page;
    bool batches; /* of a list */
    struct storeids ids;
    int at, n; /* of ids; records written, or pieces */
    int64_t sum;
    struct jsonw w;
    char first[STORE_ID], last[STORE_ID];
    struct upload *u;
    struct filerec file;
    struct batchrec batch;
    struct buf metadata;
    uint64_t seq;
    bool begun; /* of a content: its head is sent */
};

static void release_ask(struct gwask *k)
{
    struct storeask *a = (struct storeask *)k;

    storeids_release(&a->ids);
    upload_close(a->u);
    batchrec_release(&a->batch);
    buf_release(&a->metadata);
}

/* ledger_op.run */
static int run_step(const struct ledger_api *api, struct ledger_link *link, struct ledger_op *op)
{
    struct storeask *a = (struct storeask *)op;
    struct storelink k = { .api = api, .link = link };
    int rc;

    do rc = a->next(&k, a, &op->err);
    while (rc == OK && a->next && !op->more);
    return rc == OK && !op->more ? buf_check(&op->data, &op->err) : rc;
}

/* The step goes on after other operations. */
static int pause_ask(struct storeask *a)
{
    a->ask.op.more = true;
    return OK;
}

/* The last step: the reply is in op.data. */
static int end_ask(struct storeask *a)
{
    a->next = NULL;
    return OK;
}

/* ledger_op.done */
static void on_done(struct ledger_op *op)
{
    if (op->rc == OK) gwask_reply((struct gwask *)op, 200);
    else gwask_fail((struct gwask *)op, &op->err);
}

static void start(struct storeask *a,
                  int (*next)(struct storelink *, struct storeask *, struct err *),
                  void (*done)(struct ledger_op *op))
{
    a->next = next;
    a->ask.op.kind = LEDGER_OP_CALL;
    a->ask.op.run = run_step;
    a->ask.op.is_waited = true;
    gwask_start(&a->ask, a->s->ledger, done);
}

/* ---- files ---- */

static int find_file(struct storelink *k, struct storeask *a, struct err *e)
{
    int rc = storelink_get_file(k, a->ask.name, a->id, &a->file, &a->seq, e);

    if (rc == OK && a->file.state != FILEREC_READY)
        rc = err_set(e, E_NOTFOUND, "there is no file '%s'", a->id);
    return rc;
}

static int get_file(struct storelink *k, struct storeask *a, struct err *e)
{
    int rc = find_file(k, a, e);

    if (rc != OK) return rc;
    jobstore_write_file(&a->file.file, &a->ask.op.data);
    return end_ask(a);
}

static int write_piece(struct storelink *k, struct storeask *a, struct err *e)
{
    struct filerec *f = &a->file;
    int64_t at = (int64_t)a->n * f->piece, left = a->u->file.bytes - at;
    size_t want = (size_t)(left < f->piece ? left : f->piece), have = 0;
    char subject[LEDGER_SUBJECT];
    struct buf b = { 0 };
    int rc = OK;

    if (left <= 0) {
        f->state = FILEREC_READY;
        if ((rc = storelink_put_file(k, f, &a->seq, e)) != OK) return rc;
        counter_add(&a->s->n.files, 1);
        jobstore_write_file(&f->file, &a->ask.op.data);
        return end_ask(a);
    }
    if (!buf_reserve(&b, want)) return err_nomem(e, "a piece of an upload");
    while (rc == OK && have < want) {
        ssize_t n = pread(a->u->fd, b.p + have, want - have, (off_t)(at + (int64_t)have));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) rc = err_set(e, E_IO, "the upload cannot be read: %s", strerror(errno));
        else have += (size_t)n;
    }
    storerec_piece_subject(subject, f->file.id, a->n);
    if (rc == OK) rc = storelink_add(k, LEDGER_FILES, subject, str_of(b.p, want), e);
    buf_release(&b);
    a->n++;
    return rc == OK ? pause_ask(a) : rc;
}

/* One piece more. The pieces of an upload that failed are removed; pieces that cannot be removed now go
 * with the sweep, after a day. */
static int write_pieces(struct storelink *k, struct storeask *a, struct err *e)
{
    int rc = write_piece(k, a, e);

    if (rc != OK) storelink_drop_file(k, a->file.file.tenant, a->file.file.id, NULL);
    return rc;
}

static int begin_file(struct storelink *k, struct storeask *a, struct err *e)
{
    struct filerec *f = &a->file;
    int64_t keeps = a->s->lim.retention_s;
    int rc;

    f->file = a->u->file;
    jobrecord_new_id(f->file.id, STOREREC_FILE);
    snprintf(f->file.tenant, sizeof f->file.tenant, "%s", a->ask.name);
    if (!f->file.expires && keeps > 0) f->file.expires = f->file.created + keeps;
    f->state = FILEREC_WRITING;
    f->piece = storelink_piece_bytes(k);
    a->seq = 0;
    if ((rc = storelink_put_file(k, f, &a->seq, e)) != OK) return rc;
    a->next = write_pieces;
    return OK;
}

static int file_bytes(struct storelink *k, struct storeask *a, const char *id, int64_t *out,
                      struct err *e)
{
    struct gwstore *s = a->s;
    struct filerec f;
    uint64_t seq, bytes;
    const char *name;
    int rc;

    if (map_get(&s->sizes, str_c(id), &bytes)) return *out = (int64_t)bytes, OK;
    *out = 0;
    rc = storelink_get_file(k, a->ask.name, id, &f, &seq, e);
    if (rc == E_NOTFOUND || rc == E_FORMAT || rc == E_UNSUPPORTED) return OK;
    if (rc != OK) return rc;
    *out = f.file.bytes;
    if (f.state == FILEREC_READY && (name = arena_cstr(&s->names, str_c(id))))
        map_put(&s->sizes, str_c(name), (uint64_t)f.file.bytes); /* no memory: asked again */
    return OK;
}

static int sum_files(struct storelink *k, struct storeask *a, struct err *e)
{
    int64_t max = a->s->lim.tenant_bytes, more = a->u->file.bytes, n;
    int rc = OK;

    if (max > 0 && !a->ids.prefix) rc = storelink_list(k, "file", a->ask.name, &a->ids, e);
    for (int i = 0; rc == OK && i < STORE_STEP && a->at < a->ids.n; i++, a->at++) {
        rc = file_bytes(k, a, a->ids.p[a->at], &n, e);
        if (rc == OK) a->sum += n;
    }
    if (rc != OK) return rc;
    if (a->at < a->ids.n) return pause_ask(a);
    if (max > 0 && a->sum + more > max)
        return err_set(e, E_QUEUE_FULL,
                       "%lld bytes of files of this tenant are stored, and %lld more would exceed "
                       "the limit of %lld",
                       (long long)a->sum, (long long)more, (long long)max);
    a->next = begin_file;
    return OK;
}

static void post_file(struct storeask *a)
{
    struct err e = { 0 };

    a->u = (struct upload *)http_take_sink(a->ask.q);
    if (!a->u) {
        gwask_fail_status(&a->ask, 400, "invalid_request", "the request has no body");
        return;
    }
    if (upload_end(a->u, &e) != OK) {
        a->ask.param = *a->u->param ? a->u->param : NULL;
        gwask_fail(&a->ask, &e);
        return;
    }
    start(a, sum_files, on_done);
}

/* ---- contents ---- */

static int read_content(struct storelink *k, struct storeask *a, struct err *e)
{
    int64_t left;
    char subject[LEDGER_SUBJECT];
    int rc = a->begun || a->file.piece ? OK : find_file(k, a, e);

    if (rc != OK) return rc;
    buf_clear(&a->ask.op.data);
    left = a->file.file.bytes - (int64_t)a->n * a->file.piece;
    if (left > 0) {
        storerec_piece_subject(subject, a->file.file.id, a->n++);
        rc = storelink_get(k, LEDGER_FILES, subject, &a->ask.op.data, NULL, e);
        if (left > a->file.piece) left = a->file.piece;
        if (rc == E_NOTFOUND || (rc == OK && (int64_t)a->ask.op.data.n != left))
            rc = err_set(e, E_DAMAGED, "a piece of the file '%s' is missing or cut", a->id);
    }
    if (rc == OK) a->next = NULL;
    return rc;
}

static void on_piece(struct ledger_op *op);

static void read_next(void *arg)
{
    struct storeask *a = arg;

    http_on_sent(a->ask.q, NULL, NULL);
    a->ask.idle = false;
    a->next = read_content;
    ledger_add_op(a->s->ledger, &a->ask.op);
}

static void on_piece(struct ledger_op *op)
{
    struct storeask *a = (struct storeask *)op;
    bool more = (int64_t)a->n * a->file.piece < a->file.file.bytes;
    struct err e = { 0 };

    if (op->rc != OK && !a->begun) {
        gwask_fail(&a->ask, &op->err);
        return;
    }
    if (op->rc != OK || !a->ask.q) {
        gwask_end_stream(&a->ask, "the file cannot be read");
        return;
    }
    if (!a->begun && !gwask_begin_stream(&a->ask, "application/octet-stream")) {
        err_nomem(&e, "a download");
        gwask_fail(&a->ask, &e);
        return;
    }
    a->begun = true;
    op->is_waited = false;
    if (op->data.n && !http_write(a->ask.q, op->data.p, op->data.n)) {
        gwask_end_stream(&a->ask, "closed");
        return;
    }
    if (!a->ask.q || !more) gwask_end_stream(&a->ask, NULL);
    else if (http_unsent(a->ask.q) > 0) a->ask.idle = true, http_on_sent(a->ask.q, read_next, a);
    else read_next(a);
}

/* ---- lists ---- */

static int list_find(struct storelink *k, struct storeask *a, struct err *e)
{
    const char *kind = a->batches ? "batch" : "file";
    struct storeids *v = &a->ids;
    int rc = storelink_list(k, kind, a->ask.name, v, e);

    if (rc != OK) return rc;
    for (int i = 0; a->page.oldest_first && i < v->n / 2; i++) {
        char t[STORE_ID];
        memcpy(t, v->p[i], STORE_ID);
        memcpy(v->p[i], v->p[v->n - 1 - i], STORE_ID);
        memcpy(v->p[v->n - 1 - i], t, STORE_ID);
    }
    while (*a->page.after && a->at < v->n && strcmp(v->p[a->at], a->page.after) != 0) a->at++;
    if (*a->page.after && a->at++ >= v->n)
        return err_set(e, E_INVALID, "after: there is no %s '%s'", kind, a->page.after);
    a->w = (struct jsonw){ .out = &a->ask.op.data };
    jobstore_begin_list(&a->w);
    return OK;
}

/* Appends one record; *shown false: it is none that clients see. */
static int show_record(struct storelink *k, struct storeask *a, const char *id, bool *shown,
                       struct err *e)
{
    struct batchrec b;
    struct filerec f;
    struct buf one = { 0 };
    uint64_t seq;
    bool full = a->n >= a->page.limit;
    int rc;

    if (a->batches) {
        rc = storelink_get_batch(k, a->ask.name, id, &b, &seq, e);
        *shown = rc == OK;
        if (rc == OK && !full) batchrec_show(&b, &a->w);
        if (rc == OK) batchrec_release(&b);
    } else {
        rc = storelink_get_file(k, a->ask.name, id, &f, &seq, e);
        *shown = rc == OK && f.state == FILEREC_READY &&
                 (!*a->page.purpose || strcmp(f.file.purpose, a->page.purpose) == 0);
        if (*shown && !full) {
            jobstore_write_file(&f.file, &one);
            if (one.failed) a->ask.op.data.failed = true;
            else jsonw_raw(&a->w, buf_str(&one));
            buf_release(&one);
        }
    }
    return rc == E_NOTFOUND || rc == E_FORMAT || rc == E_UNSUPPORTED ? OK : rc;
}

static int list_records(struct storelink *k, struct storeask *a, struct err *e)
{
    int rc = a->ids.prefix ? OK : list_find(k, a, e);
    bool more = false;

    for (int i = 0; rc == OK && i < STORE_STEP && a->at < a->ids.n && !more; i++) {
        const char *id = a->ids.p[a->at++];
        bool shown;
        if ((rc = show_record(k, a, id, &shown, e)) != OK || !shown) continue;
        more = a->n >= a->page.limit; /* this one is of the next page */
        if (more) break;
        if (!a->n++) snprintf(a->first, sizeof a->first, "%s", id);
        snprintf(a->last, sizeof a->last, "%s", id);
    }
    if (rc != OK) return rc;
    if (!more && a->at < a->ids.n) return pause_ask(a);
    jobstore_end_list(&a->w, a->first, a->last, more);
    return end_ask(a);
}

/* ---- removing ---- */

static int remove_file(struct storelink *k, struct storeask *a, struct err *e)
{
    struct jsonw w = { .out = &a->ask.op.data };
    int rc = find_file(k, a, e);

    if (rc != OK) return rc;
    a->file.state = FILEREC_GONE;
    if ((rc = storelink_put_file(k, &a->file, &a->seq, e)) != OK) return rc;
    storelink_drop_file(k, a->file.file.tenant, a->file.file.id,
                        NULL); /* else the next sweep does */
    jsonw_obj(&w);
    jsonw_key(&w, "id"), jsonw_str(&w, str_c(a->id));
    jsonw_key(&w, "object"), jsonw_str(&w, STR("file"));
    jsonw_key(&w, "deleted"), jsonw_bool(&w, true);
    jsonw_end(&w);
    return end_ask(a);
}

/* Calls each for the batches of the tenant that have not ended. *done: all were seen. */
static int each_active(struct storelink *k, struct storeask *a, bool *done,
                       int (*each)(struct storeask *a, const struct batchrec *b, struct err *e),
                       struct err *e)
{
    struct batchrec b;
    uint64_t seq;
    int rc = OK;

    if (!a->ids.prefix) rc = storelink_list(k, "batch", a->ask.name, &a->ids, e);
    for (int i = 0; rc == OK && i < STORE_STEP && a->at < a->ids.n; a->at++) {
        const char *id = a->ids.p[a->at];
        if (map_get(&a->s->ended, str_c(id), NULL)) continue;
        i++;
        rc = storelink_get_batch(k, a->ask.name, id, &b, &seq, e);
        if (rc == E_NOTFOUND || rc == E_FORMAT || rc == E_UNSUPPORTED) rc = OK;
        else if (rc == OK) {
            if (batchrec_has_ended(&b)) gwstore_note_ended(a->s, id);
            else rc = each(a, &b, e);
            batchrec_release(&b);
        }
    }
    *done = a->at >= a->ids.n;
    return rc;
}

static int check_reader(struct storeask *a, const struct batchrec *b, struct err *e)
{
    if (strcmp(b->input, a->id) != 0) return OK;
    return err_set(e, E_CONCURRENCY, "the file '%s' is the input of %s, which has not ended", a->id,
                   b->id);
}

static int delete_file(struct storelink *k, struct storeask *a, struct err *e)
{
    bool done;
    int rc = a->ids.prefix ? OK : find_file(k, a, e);

    if (rc == OK) rc = each_active(k, a, &done, check_reader, e);
    if (rc != OK) return rc;
    if (!done) return pause_ask(a);
    a->next = remove_file;
    return OK;
}

/* ---- batches ---- */

static int show_batch(struct storeask *a)
{
    struct jsonw w = { .out = &a->ask.op.data };

    batchrec_show(&a->batch, &w);
    return end_ask(a);
}

static int get_batch(struct storelink *k, struct storeask *a, struct err *e)
{
    int rc = storelink_get_batch(k, a->ask.name, a->id, &a->batch, &a->seq, e);

    return rc == OK ? show_batch(a) : rc;
}

static int cancel_batch(struct storelink *k, struct storeask *a, struct err *e)
{
    struct batchrec *b = &a->batch;
    int rc = E_CONCURRENCY;

    for (int i = 0; i < CANCEL_TRIES && rc == E_CONCURRENCY; i++) {
        batchrec_release(b);
        rc = storelink_get_batch(k, a->ask.name, a->id, b, &a->seq, e);
        if (rc != OK) return rc;
        if (b->status == BATCH_CANCELLING || b->status == BATCH_CANCELLED) return show_batch(a);
        if (b->status != BATCH_VALIDATING && b->status != BATCH_IN_PROGRESS)
            return err_set(e, E_CONCURRENCY, "the batch '%s' is %s and cannot be cancelled", a->id,
                           batch_status_name(b->status));
        b->status = BATCH_CANCELLING;
        b->ends_as = BATCH_CANCELLED;
        b->cancelling = jobstore_now();
        rc = storelink_put_batch(k, b, &a->seq, e);
    }
    if (rc == E_CONCURRENCY) {
        err_set(e, E_STORE, "the batch '%s' changes too fast to be cancelled now", a->id);
        e->retry_ms = 1000;
        return E_STORE;
    }
    return rc == OK ? show_batch(a) : rc;
}

/* The gateway that runs it sees the change with its next sign of life; this one at once. */
static void on_cancel(struct ledger_op *op)
{
    struct storeask *a = (struct storeask *)op;
    struct gwbatch *b = op->rc == OK ? gwstore_find_batch(a->s, a->id) : NULL;

    if (b && !b->busy) b->put_ns = 0;
    on_done(op);
}

static int count_active(struct storeask *a, const struct batchrec *b, struct err *e)
{
    (void)b, (void)e;
    a->sum++;
    return OK;
}

static int add_batch(struct storelink *k, struct storeask *a, struct err *e)
{
    int64_t max = a->s->lim.tenant_batches;
    bool done = true;
    int rc = max > 0 ? each_active(k, a, &done, count_active, e) : OK;

    if (rc != OK) return rc;
    if (!done) return pause_ask(a);
    if (max > 0 && a->sum + 1 > max)
        return err_set(e, E_QUEUE_FULL,
                       "%lld batches of this tenant have not ended, and 1 more would exceed the "
                       "limit of %lld",
                       (long long)a->sum, (long long)max);
    a->seq = 0;
    rc = storelink_put_batch(k, &a->batch, &a->seq, e);
    return rc == OK ? show_batch(a) : rc;
}

static int check_input(struct storelink *k, struct storeask *a, struct err *e)
{
    int rc;

    snprintf(a->id, sizeof a->id, "%s", a->batch.input);
    if ((rc = find_file(k, a, e)) != OK) return rc;
    if (strcmp(a->file.file.purpose, "batch") != 0)
        return err_set(e, E_INVALID,
                       "the file '%s' has the purpose '%s': a batch needs one with the purpose "
                       "'batch'",
                       a->id, a->file.file.purpose);
    a->next = add_batch;
    return OK;
}

static void on_batch(struct ledger_op *op)
{
    struct storeask *a = (struct storeask *)op;

    if (op->rc == OK) {
        counter_add(&a->s->n.batches, 1);
        gwstore_add_batch(a->s, &a->batch, a->seq); /* no memory: taken over after its silence */
    }
    on_done(op);
}

static void post_batch(struct storeask *a)
{
    struct jobstore_batch in = { 0 };
    struct batchrec *b = &a->batch;
    struct err e = { 0 };

    if (batchbody_read(&in, &a->metadata, http_body(a->ask.q), &e) != OK) {
        gwask_fail(&a->ask, &e);
        return;
    }
    jobrecord_new_id(b->id, STOREREC_BATCH);
    snprintf(b->tenant, sizeof b->tenant, "%s", a->ask.name);
    memcpy(b->endpoint, in.endpoint, sizeof b->endpoint);
    memcpy(b->input, in.input, sizeof b->input);
    memcpy(b->window, in.window, sizeof b->window);
    memcpy(b->holder, a->s->me, sizeof b->holder);
    b->status = BATCH_VALIDATING;
    b->ends_as = BATCH_COMPLETED;
    b->created = jobstore_now();
    b->expires = b->created + in.window_s;
    b->metadata = a->metadata;
    a->metadata = (struct buf){ 0 };
    start(a, check_input, on_batch);
}

/* ---- routes ---- */

static struct str skip_version(struct str path)
{
    return str_starts(path, STR("/v1/")) ? str_skip(path, 3) : path;
}

static bool is_below(struct str path, const char *name)
{
    struct str p = str_c(name);

    return str_eq(path, p) || (str_starts(path, p) && path.p[p.n] == '/');
}

bool gwstore_is_path(struct str path)
{
    path = skip_version(path);
    return is_below(path, "/files") || is_below(path, "/batches");
}

bool gwstore_is_upload(const struct http_req *q)
{
    return http_method(q) == HTTP_POST && str_is(skip_version(http_path(q)), "/files");
}

static struct storeask *open_ask(struct gwstore *s, struct http_req *q, const struct gw_who *who)
{
    struct storeask *a = mem_new(struct storeask);

    if (!gwask_init(a ? &a->ask : NULL, s->g, q, who, &s->n_asked)) return NULL;
    a->s = s;
    a->ask.release = release_ask;
    return a;
}

bool gwstore_admit(struct gwstore *s, struct http_req *q, const struct gw_who *who)
{
    int64_t length = http_body_length(q), max = s->g->s->max_file;
    struct storeask *a;
    struct upload *u;
    struct err e = { 0 };

    if (length > max + FORM_BYTES) {
        err_set(&e, E_BYTES, "the file has more than %lld bytes, the most of this server",
                (long long)max);
    } else if (!ledger_is_connected(s->ledger)) { /* before its bytes are read */
        err_set(&e, E_STORE, "files and batches are not available now: NATS is not connected");
        e.retry_ms = 2000;
    } else if ((u = upload_open_spool(s->spool, http_header(q, "Content-Type"), (uint64_t)max))) {
        http_set_sink(q, &u->sink);
        return true;
    } else {
        err_nomem(&e, "an upload");
    }
    if ((a = open_ask(s, q, who))) gwask_fail(&a->ask, &e);
    return false;
}

static void begin_one(struct storeask *a, struct str path, enum http_method m)
{
    bool get = m == HTTP_GET || m == HTTP_HEAD, batch = is_below(path, "/batches");
    const char *before = batch ? "/batches/" : "/files/";
    const char *behind = str_ends(path, STR("/content")) && !batch ? "/content"
                         : str_ends(path, STR("/cancel")) && batch ? "/cancel"
                                                                   : "";

    if (!pagequery_id(path, before, behind, a->id))
        gwask_fail_status(&a->ask, 404, "not_found", "there is nothing of this id");
    else if (*behind && !batch && get) start(a, read_content, on_piece);
    else if (*behind && batch && m == HTTP_POST) start(a, cancel_batch, on_cancel);
    else if (!*behind && get) start(a, batch ? get_batch : get_file, on_done);
    else if (!*behind && !batch && m == HTTP_DELETE) start(a, delete_file, on_done);
    else gwask_fail_status(&a->ask, 405, "method_not_allowed", "method not allowed");
}

static void begin_all(struct storeask *a, struct str path, enum http_method m)
{
    struct err e = { 0 };

    a->batches = str_is(path, "/batches");
    if (m == HTTP_POST && a->batches) post_batch(a);
    else if (m == HTTP_POST) post_file(a);
    else if (m != HTTP_GET && m != HTTP_HEAD)
        gwask_fail_status(&a->ask, 405, "method_not_allowed", "method not allowed");
    else if (pagequery_read(&a->page, http_query(a->ask.q), &e) != OK) gwask_fail(&a->ask, &e);
    else start(a, list_records, on_done);
}

void gwstore_begin(struct gwstore *s, struct http_req *q, const struct gw_who *who)
{
    struct storeask *a = open_ask(s, q, who);
    struct str path;

    if (!a) return;
    path = skip_version(http_path(q));
    if (str_is(path, "/files") || str_is(path, "/batches")) begin_all(a, path, http_method(q));
    else begin_one(a, path, http_method(q));
}
