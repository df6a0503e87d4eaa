/* batchwork.c - the long work of a batch, in steps on the ledger's thread: its lines are checked, read a
 * few at a time, their answers written, and its results written into files.
 *
 *     validating ─► in_progress ─► finalizing ─► completed, expired
 *         │    └────────┴─► cancelling ─► cancelled
 *         └─► failed
 *
 * The record says how far a batch is, and JetStream has the answers of lines: whoever takes the batch over
 * begins the state again that the record names. Results are written under new names with every attempt,
 * so that two gateways that both believe to hold the batch do not write one file. */
#include "base/clock.h"
#include "base/jsonw.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/gwstore_impl.h"
#include "jobs/batchline.h"
#include "ledger/jobrecord.h"

#include <stdio.h>

enum { FRESH_BYTES = 32 << 20 };

#define MS UINT64_C(1000000)

/* The results: of status 200, and all others. */
struct outfile {
    struct filerec rec;
    uint64_t seq;
    struct buf text; /* not written yet */
    int n_pieces;
};

struct batchwork {
    int status; /* what the rest is for: of validation, of lines, of results */
    struct linereader in;
    bool is_open;
    int n; /* lines that are not empty, up to here */

    /* validation */
    struct arena ids;
    struct map custom; /* custom_ids */
    int n_errors;
    struct buf errors; /* elements of an array */
    struct jsonw list;

    /* lines */
    unsigned char *done; /* [total] 1: has an answer, which is counted; 2: it is not counted yet */
    int counted;         /* of done */
    bool has_done;
    int64_t n_done;

    /* results */
    struct outfile out[2];
    bool begun;
    int64_t completed, failed;
};

struct step {
    struct storelink k;
    struct gwbatch *b;
    struct batchwork *w;
    struct err *e;
};

void batchwork_free(struct batchwork *w)
{
    if (!w) return;
    linereader_close(&w->in);
    arena_release(&w->ids);
    map_release(&w->custom);
    buf_release(&w->errors);
    buf_release(&w->out[0].text);
    buf_release(&w->out[1].text);
    mem_free(w->done);
    mem_free(w);
}

/* ---- the record ---- */

/* Somebody has changed the record: a client has cancelled the batch, a write of our own was not
 * answered, or another gateway has taken the batch. */
static int reload(struct step *s)
{
    struct gwbatch *b = s->b;
    struct batchrec now;
    uint64_t seq;
    int rc = storelink_get_batch(&s->k, b->rec.tenant, b->rec.id, &now, &seq, s->e);

    if (rc == E_NOTFOUND || rc == E_FORMAT || rc == E_UNSUPPORTED) b->lost = true;
    if (rc != OK) return rc;
    if (strcmp(now.holder, b->s->me) != 0 || batchrec_has_ended(&now)) {
        b->lost = true;
        batchrec_release(&now);
        return err_set(s->e, E_CONCURRENCY, "another gateway runs the batch '%s'", b->rec.id);
    }
    now.total = b->rec.total;
    now.completed = b->rec.completed;
    now.failed = b->rec.failed;
    batchrec_release(&b->rec);
    b->rec = now;
    b->seq = seq;
    b->put_ns = 0;
    return OK;
}

/* Writes the record. If it was changed meanwhile, b->rec is the changed one, and the next step goes on with
 * what it says. */
static int keep(struct step *s)
{
    struct gwbatch *b = s->b;
    int rc = storelink_put_batch(&s->k, &b->rec, &b->seq, s->e);

    if (rc == E_CONCURRENCY) return reload(s);
    if (rc == OK) b->put_ns = clock_ns();
    return rc;
}

/* If it cannot be written, the batch is as it was. */
static int set_status(struct step *s, int status)
{
    struct batchrec *r = &s->b->rec;
    int before = r->status, rc;
    char holder[sizeof r->holder];

    memcpy(holder, r->holder, sizeof holder);
    r->status = status;
    if (status == BATCH_IN_PROGRESS) r->in_progress = s->b->now;
    if (status == BATCH_FINALIZING) r->finalizing = s->b->now;
    if (batchrec_has_ended(r)) {
        r->ended = s->b->now;
        r->holder[0] = 0;
    }
    if ((rc = keep(s)) == OK) return OK;
    r->status = before;
    r->ended = 0;
    memcpy(r->holder, holder, sizeof holder);
    return rc;
}

/* ---- validation ---- */

static void add_error(struct batchwork *w, int64_t line, const char *code, const char *param,
                      const char *message)
{
    struct jsonw *j = &w->list;

    if (w->n_errors++ >= BATCHREC_ERRORS) return;
    if (!j->out) {
        j->out = &w->errors;
        jsonw_arr(j);
    }
    jsonw_obj(j);
    jsonw_key(j, "code"), jsonw_str(j, str_c(code));
    jsonw_key(j, "message"), jsonw_str(j, str_c(message));
    jsonw_key(j, "param");
    if (param) jsonw_str(j, str_c(param));
    else jsonw_null(j);
    jsonw_key(j, "line");
    if (line) jsonw_int(j, line);
    else jsonw_null(j);
    jsonw_end(j);
}

static int note_custom_id(struct step *s, const char *id)
{
    struct batchwork *w = s->w;
    char msg[600];
    int rc = E_NOMEM;

    if (map_get(&w->custom, str_c(id), NULL)) {
        snprintf(msg, sizeof msg, "the custom_id '%.200s' is that of an earlier line", id);
        add_error(w, w->in.line, "duplicate_custom_id", "custom_id", msg);
        return OK;
    }
    id = arena_cstr(&w->ids, str_c(id));
    if (id) rc = map_put(&w->custom, str_c(id), 1);
    if (rc == E_NOMEM) return err_nomem(s->e, "the lines of a batch");
    w->n++;
    return OK;
}

/* *more: there are lines left. */
static int check_lines(struct step *s, bool *more)
{
    struct batchwork *w = s->w;
    int64_t max = s->b->s->lim.max_lines;
    struct batchline l;
    char msg[200];

    for (int i = 0; i < 4 * STORE_STEP; i++) {
        struct err bad = { 0 };
        struct str text;
        int rc = linereader_next(&s->k, &w->in, &text, more, &bad);
        if (rc == E_INVALID) {
            add_error(w, w->in.line, "line_too_long", NULL, bad.msg);
            *more = false;
            return OK;
        }
        if (rc != OK) return *s->e = bad, rc;
        if (!*more) return OK;
        if (str_trim(text).n == 0) continue;
        rc = batchline_read(&l, text, s->b->rec.endpoint, NULL, &bad);
        if (rc == E_INVALID) add_error(w, w->in.line, l.code, l.param, bad.msg);
        else if (rc != OK) return *s->e = bad, rc;
        else if ((rc = note_custom_id(s, l.custom_id)) != OK) return rc;
        if (max > 0 && w->n > max) {
            snprintf(msg, sizeof msg, "the file has more than %lld lines, the most of a batch",
                     (long long)max);
            add_error(w, w->in.line, "too_many_lines", NULL, msg);
            *more = false;
            return OK;
        }
    }
    return OK;
}

static int fail_batch(struct step *s)
{
    struct gwbatch *b = s->b;
    int rc;

    if (s->w->list.out) jsonw_end(&s->w->list);
    buf_release(&b->rec.errors);
    b->rec.errors = s->w->errors;
    s->w->errors = (struct buf){ 0 };
    if ((rc = buf_check(&b->rec.errors, s->e)) != OK) return rc;
    b->rec.total = b->rec.completed = b->rec.failed = 0;
    return set_status(s, BATCH_FAILED);
}

/* Is it the file, and not NATS, that is the reason? */
static bool is_files_fault(int rc)
{
    return rc == E_NOTFOUND || rc == E_DAMAGED || rc == E_FORMAT || rc == E_UNSUPPORTED;
}

static int validate(struct step *s, bool *again)
{
    struct batchwork *w = s->w;
    bool more = true;
    int rc = OK;

    if (!w->is_open) rc = linereader_open(&s->k, &w->in, s->b->rec.tenant, s->b->rec.input, s->e);
    w->is_open = rc == OK;
    if (rc == OK) rc = check_lines(s, &more);
    if (is_files_fault(rc)) {
        add_error(w, 0, "input_file_missing", "input_file_id", "the input file is gone");
        more = false;
    } else if (rc != OK) {
        return rc;
    }
    s->b->rec.total = w->n;
    *again = true;
    if (more) return OK;
    if (w->n == 0 && w->n_errors == 0)
        add_error(w, 0, "empty_file", "input_file_id", "the input file has no lines");
    if (w->n_errors) return fail_batch(s);
    return set_status(s, BATCH_IN_PROGRESS);
}

/* ---- lines ---- */

static void mark_done(void *arg, const char *subject)
{
    struct step *s = arg;
    int n = storerec_number_of(subject, (int)s->b->rec.total);

    if (n >= 0) s->w->done[n] = 2;
}

static void count_answer(struct gwbatch *b, int status)
{
    if (status == 200) b->rec.completed++;
    else b->rec.failed++;
}

/* The answer of line n, as it is stored. E_NOTFOUND: there is none. One that cannot be read is an error. */
static int get_answer(struct step *s, int n, struct buf *text, struct linerec *out)
{
    char subject[LEDGER_SUBJECT];
    int rc;

    buf_clear(text);
    storerec_line_subject(subject, s->b->rec.id, n);
    rc = storelink_get(&s->k, LEDGER_LINES, subject, text, NULL, s->e);
    if (rc == OK && linerec_read(out, buf_str(text), NULL) != OK) {
        *out = (struct linerec){ .error = "answer_unreadable" };
        out->body = STR("the stored answer cannot be read");
    }
    return rc;
}

/* Which lines have answers, and how many of each kind: of a batch that another gateway has begun. */
static int load_done(struct step *s, bool *again)
{
    struct gwbatch *b = s->b;
    struct batchwork *w = s->w;
    char pattern[LEDGER_SUBJECT];
    struct buf text = { 0 };
    struct linerec r;
    int rc = OK;

    if (!w->done) {
        b->rec.completed = b->rec.failed = 0;
        w->done = mem_array((size_t)b->rec.total + 1, 1);
        if (!w->done) return err_nomem(s->e, "the lines of a batch");
        storerec_line_subject(pattern, b->rec.id, -1);
        rc = storelink_fail(&s->k,
                            s->k.api->list(s->k.link, LEDGER_LINES, pattern, mark_done, s, s->k.why,
                                           sizeof s->k.why),
                            s->e);
        if (rc != OK) {
            mem_free(w->done);
            w->done = NULL;
            return rc;
        }
    }
    for (int i = 0; w->counted < b->rec.total && i < STORE_STEP; w->counted++) {
        if (w->done[w->counted] != 2) continue;
        rc = get_answer(s, w->counted, &text, &r);
        if (rc != OK && rc != E_NOTFOUND) break;
        w->done[w->counted] = rc == OK;
        w->n_done += rc == OK;
        if (rc == OK) count_answer(b, r.status);
        rc = OK;
        i++;
    }
    buf_release(&text);
    w->has_done = rc == OK && w->counted == b->rec.total;
    *again = true;
    return rc;
}

/* Writes one answer: the first one of its line stays. */
static int write_answer(struct step *s, struct gwline *l)
{
    struct gwbatch *b = s->b;
    char subject[LEDGER_SUBJECT];
    struct linerec r = { .error = "answer_too_large" };
    struct buf text = { 0 };
    bool first = true;
    int rc;

    storerec_line_subject(subject, b->rec.id, l->n);
    rc = storelink_add(&s->k, LEDGER_LINES, subject, buf_str(&l->answer), s->e);
    if (rc == E_INVALID) { /* larger than a message */
        r.body = str_c(s->e->msg);
        buf_clear(&l->answer);
        linerec_write(&r, &l->answer);
        l->status = 0;
        rc = buf_check(&l->answer, s->e);
        if (rc == OK) rc = storelink_add(&s->k, LEDGER_LINES, subject, buf_str(&l->answer), s->e);
    }
    if (rc == E_CONCURRENCY) {
        first = false;
        rc = get_answer(s, l->n, &text, &r);
        l->status = r.status;
        buf_release(&text);
    }
    if (rc != OK) return rc;
    if (!s->w->done[l->n]) {
        s->w->done[l->n] = 1;
        s->w->n_done++;
        count_answer(b, l->status);
    }
    if (first) counter_add(l->status == 200 ? &b->s->n.lines : &b->s->n.failed, 1);
    return OK;
}

static int write_answers(struct step *s)
{
    struct gwline *l;
    int rc = OK;

    while (rc == OK && (l = s->b->answered)) {
        if ((rc = write_answer(s, l)) != OK) break;
        s->b->answered = l->next;
        gwline_free(l);
    }
    return rc;
}

static int read_line(struct step *s, struct str text, struct gwline ***end, size_t *bytes)
{
    struct batchwork *w = s->w;
    struct gwline *l = mem_new(struct gwline);
    struct err bad = { 0 };
    struct batchline line;
    struct linerec r = { .error = "line_unreadable" };

    if (!l) return err_nomem(s->e, "a line of a batch");
    l->b = s->b;
    l->n = w->n;
    if (batchline_read(&line, text, s->b->rec.endpoint, &l->body, &bad) == E_NOMEM ||
        l->body.failed) {
        gwline_free(l);
        return err_nomem(s->e, "a line of a batch");
    }
    if (bad.code != OK) { /* not the file that was checked */
        r.body = str_c(bad.msg);
        linerec_write(&r, &l->answer);
        l->state = LINE_ANSWERED;
    }
    *bytes += l->body.n;
    **end = l;
    *end = &l->next;
    return OK;
}

/* Some lines more that have no answer. */
static int read_lines(struct step *s)
{
    struct gwbatch *b = s->b;
    struct batchwork *w = s->w;
    struct gwline **end = &b->fresh;
    size_t bytes = 0;
    int rc = OK;

    if (!w->is_open) rc = linereader_open(&s->k, &w->in, b->rec.tenant, b->rec.input, s->e);
    w->is_open = rc == OK;
    while (*end) end = &(*end)->next;
    for (int got = 0; rc == OK && got < b->want && bytes < FRESH_BYTES && w->n < b->rec.total;) {
        struct str text;
        bool more;
        rc = linereader_next(&s->k, &w->in, &text, &more, s->e);
        if (rc == OK && !more)
            rc = err_set(s->e, E_DAMAGED, "the input has fewer lines than before");
        if (rc != OK || str_trim(text).n == 0) continue;
        if (!w->done[w->n]) {
            rc = read_line(s, text, &end, &bytes);
            got++;
        }
        if (rc == OK) w->n++;
    }
    b->exhausted = w->n >= b->rec.total;
    return rc;
}

static int feed(struct step *s, bool *again)
{
    struct gwbatch *b = s->b;
    int rc;

    if (!s->w->has_done) return load_done(s, again);
    if ((rc = write_answers(s)) != OK) return rc;
    if (s->w->n_done == b->rec.total) {
        b->rec.ends_as = BATCH_COMPLETED;
        *again = true;
        return set_status(s, BATCH_FINALIZING);
    }
    rc = b->want > 0 && !b->exhausted ? read_lines(s) : OK;
    if (!is_files_fault(rc)) return rc;
    log_warn("batch %s: its input cannot be read any more: %s", b->rec.id, s->e->msg);
    b->rec.ends_as = BATCH_FAILED;
    *again = true;
    return set_status(s, BATCH_FINALIZING);
}

/* ---- results ---- */

/* The files of an attempt that did not end are removed. */
static int drop_results(struct step *s, char id[STORE_ID])
{
    int rc = *id ? storelink_drop_file(&s->k, s->b->rec.tenant, id, s->e) : OK;

    if (rc == OK) id[0] = 0;
    return rc;
}

static int begin_file(struct step *s, struct outfile *o, const char *id, const char *kind)
{
    struct gwbatch *b = s->b;
    int64_t keeps = b->s->lim.retention_s;

    o->rec = (struct filerec){ .state = FILEREC_WRITING, .piece = storelink_piece_bytes(&s->k) };
    o->rec.file.created = b->now;
    o->rec.file.expires = keeps > 0 ? b->now + keeps : 0;
    snprintf(o->rec.file.id, sizeof o->rec.file.id, "%s", id);
    snprintf(o->rec.file.tenant, sizeof o->rec.file.tenant, "%s", b->rec.tenant);
    snprintf(o->rec.file.purpose, sizeof o->rec.file.purpose, "batch_output");
    snprintf(o->rec.file.name, sizeof o->rec.file.name, "%s_%s.jsonl", b->rec.id, kind);
    return storelink_put_file(&s->k, &o->rec, &o->seq, s->e);
}

static int begin_results(struct step *s)
{
    struct gwbatch *b = s->b;
    int rc;

    if ((rc = drop_results(s, b->rec.output)) != OK) return rc;
    if ((rc = drop_results(s, b->rec.error)) != OK) return rc;
    b->rec.has_output = b->rec.has_error = false;
    jobrecord_new_id(b->rec.output, STOREREC_FILE);
    jobrecord_new_id(b->rec.error, STOREREC_FILE);
    if ((rc = keep(s)) != OK || !b->put_ns) return rc; /* it was changed: again */
    if ((rc = begin_file(s, &s->w->out[0], b->rec.output, "output")) != OK) return rc;
    if ((rc = begin_file(s, &s->w->out[1], b->rec.error, "error")) != OK) return rc;
    rc = linereader_open(&s->k, &s->w->in, b->rec.tenant, b->rec.input, s->e);
    s->w->begun = rc == OK;
    return rc;
}

/* all: also the last piece. */
static int write_pieces(struct step *s, struct outfile *o, bool all)
{
    size_t at = 0, piece = (size_t)o->rec.piece;
    int rc = buf_check(&o->text, s->e);

    while (rc == OK && (o->text.n - at >= piece || (all && at < o->text.n))) {
        struct str p = str_take(str_skip(buf_str(&o->text), at), piece);
        char subject[LEDGER_SUBJECT];
        storerec_piece_subject(subject, o->rec.file.id, o->n_pieces);
        if ((rc = storelink_add(&s->k, LEDGER_FILES, subject, p, s->e)) != OK) break;
        o->n_pieces++;
        o->rec.file.bytes += (int64_t)p.n;
        at += p.n;
    }
    if (at) {
        memmove(o->text.p, o->text.p + at, o->text.n - at);
        o->text.n -= at;
    }
    return rc;
}

static int write_result(struct step *s, struct str text)
{
    struct gwbatch *b = s->b;
    bool expired = b->rec.ends_as == BATCH_EXPIRED;
    struct batchline line;
    struct batchline_result r = { 0 };
    struct linerec answer = { 0 };
    struct buf stored = { 0 };
    char id[STORE_ID], message[300];
    int rc = batchline_read(&line, text, b->rec.endpoint, NULL, s->e);

    if (rc == E_INVALID) return OK; /* of a batch that was cancelled while it was checked */
    if (rc != OK) return rc;
    rc = get_answer(s, s->w->n, &stored, &answer);
    snprintf(id, sizeof id, "batch_req_%.18s_%d", b->rec.id + strlen(b->rec.id) - 18, s->w->n);
    r.id = id;
    r.custom_id = line.custom_id;
    if (rc == E_NOTFOUND) {
        r.error = expired ? "batch_expired" : "batch_cancelled";
        r.message = expired ? "the completion window ended before this request was run"
                            : "the batch was cancelled before this request was run";
        rc = OK;
    } else if (answer.status) {
        r.status = answer.status;
        r.request_id = str_c(id);
        r.body = answer.body;
    } else {
        snprintf(message, sizeof message, "%.*s", STR_ARG(str_take(answer.body, 250)));
        r.error = answer.error;
        r.message = message;
    }
    if (rc == OK && answer.status == 200) s->w->completed++;
    else if (rc == OK && (answer.status || answer.error[0])) s->w->failed++;
    if (rc == OK) batchline_write(&s->w->out[r.status != 200].text, &r);
    buf_release(&stored);
    s->w->n++;
    return rc;
}

/* A file of no lines is not kept. */
static int end_file(struct step *s, struct outfile *o, bool *has)
{
    int rc = write_pieces(s, o, true);

    *has = o->rec.file.bytes > 0;
    if (rc != OK) return rc;
    if (!*has) return storelink_drop_file(&s->k, o->rec.file.tenant, o->rec.file.id, s->e);
    o->rec.state = FILEREC_READY;
    return storelink_put_file(&s->k, &o->rec, &o->seq, s->e);
}

static int end_results(struct step *s)
{
    struct gwbatch *b = s->b;
    char pattern[LEDGER_SUBJECT];
    int rc;

    if ((rc = end_file(s, &s->w->out[0], &b->rec.has_output)) != OK) return rc;
    if ((rc = end_file(s, &s->w->out[1], &b->rec.has_error)) != OK) return rc;
    b->rec.completed = s->w->completed;
    b->rec.failed = s->w->failed;
    rc = set_status(s, b->rec.ends_as);
    if (b->lost) { /* another gateway writes its own */
        storelink_drop_file(&s->k, b->rec.tenant, s->w->out[0].rec.file.id, NULL);
        storelink_drop_file(&s->k, b->rec.tenant, s->w->out[1].rec.file.id, NULL);
    }
    if (rc != OK || !batchrec_has_ended(&b->rec)) return rc;
    storerec_line_subject(pattern, b->rec.id, -1); /* else they go by their age */
    if (storelink_erase(&s->k, LEDGER_LINES, pattern, NULL) != OK)
        log_warn("batch %s: the answers of its lines stay until they expire", b->rec.id);
    return OK;
}

/* An error begins all of it again: the attempt's files are dropped then. */
static int finish(struct step *s, bool *again)
{
    struct batchwork *w = s->w;
    bool more = true;
    int rc = OK;

    *again = true;
    if (!w->begun) return begin_results(s);
    for (int i = 0; rc == OK && i < STORE_STEP && w->n < s->b->rec.total; i++) {
        struct str text;
        if ((rc = linereader_next(&s->k, &w->in, &text, &more, s->e)) != OK || !more) break;
        if (str_trim(text).n) rc = write_result(s, text);
        for (int j = 0; j < 2 && rc == OK; j++) rc = write_pieces(s, &w->out[j], false);
    }
    if (rc == OK && (!more || w->n >= s->b->rec.total)) rc = end_results(s);
    return rc;
}

/* Without its input nobody knows which answer is whose. */
static int finish_or_fail(struct step *s, bool *again)
{
    int rc = finish(s, again);

    if (!is_files_fault(rc)) return rc;
    add_error(s->w, 0, "input_file_missing", "input_file_id", "the input file is gone");
    return fail_batch(s);
}

/* ---- a step ---- */

/* Makes the work of the batch's status. Work that was begun for another status is dropped. */
static int begin_work(struct step *s)
{
    struct gwbatch *b = s->b;
    int status = b->rec.status == BATCH_CANCELLING ? BATCH_FINALIZING : b->rec.status;

    if (b->work && b->work->status == status) return OK;
    batchwork_free(b->work);
    b->work = mem_new(struct batchwork);
    if (!b->work) return err_nomem(s->e, "a batch");
    b->work->status = status;
    b->exhausted = false;
    return OK;
}

int batchwork_run(const struct ledger_api *api, struct ledger_link *link, struct ledger_op *op)
{
    struct gwbatch *b = (struct gwbatch *)op;
    struct step s = { .k = { .api = api, .link = link }, .b = b, .e = &op->err };
    bool due = !b->put_ns || clock_ns() - b->put_ns > STORE_RENEW_MS * MS, open;
    bool again = false;
    int before = b->rec.status, rc = OK;

    b->now = jobstore_now();
    open = b->rec.status == BATCH_VALIDATING || b->rec.status == BATCH_IN_PROGRESS;
    if (open && b->now >= b->rec.expires) {
        b->rec.ends_as = BATCH_EXPIRED;
        rc = set_status(&s, BATCH_FINALIZING);
    } else if (due) {
        rc = keep(&s);
    }
    if (rc == OK && before != b->rec.status) { /* the loop stops its lines first */
        op->more = before != BATCH_IN_PROGRESS;
        return OK;
    }
    if (rc == OK) rc = begin_work(&s);
    s.w = b->work;
    if (rc == OK) {
        switch (b->rec.status) {
        case BATCH_VALIDATING: rc = validate(&s, &again); break;
        case BATCH_IN_PROGRESS: rc = feed(&s, &again); break;
        case BATCH_FINALIZING:
        case BATCH_CANCELLING: rc = finish_or_fail(&s, &again); break;
        default: break;
        }
    }
    if (rc != OK && b->rec.status != BATCH_IN_PROGRESS) { /* begins again */
        batchwork_free(b->work);
        b->work = NULL;
    }
    if (batchrec_has_ended(&b->rec)) gwstore_note_ended(b->s, b->rec.id);
    op->more = rc == OK && again && !batchrec_has_ended(&b->rec) &&
               (before != BATCH_IN_PROGRESS || before == b->rec.status);
    return rc;
}

int batchwork_release(const struct ledger_api *api, struct ledger_link *link, struct ledger_op *op)
{
    struct gwbatch *b = (struct gwbatch *)op;
    struct step s = { .k = { .api = api, .link = link }, .b = b, .w = b->work, .e = &op->err };

    if (b->rec.status == BATCH_IN_PROGRESS && s.w && s.w->has_done) write_answers(&s);
    b->rec.holder[0] = 0;
    return storelink_put_batch(&s.k, &b->rec, &b->seq, s.e);
}
