/* ledger_ops.c - what each operation asks JetStream for. On the writer's thread. */
#include "base/clock.h"
#include "base/jsonw.h"
#include "base/mem.h"
#include "ledger/ledger_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ADD_WAIT_MS = 1500, PAUSE_MS = 50, RETRY_AFTER_MS = 2000, IDS_MAX = 200000 };

struct ask {
    const struct ledger_api *api;
    struct ledger_link *link;
    struct ledger_op *op;
    char why[256];
};

int ledger_away(struct err *e, const char *what, const char *why)
{
    err_set(e, E_STORE, "%s are not accepted now: %s", what, why);
    e->retry_ms = RETRY_AFTER_MS;
    return E_STORE;
}

int ledger_too_large(size_t most, struct err *e)
{
    return err_set(e, E_INVALID,
                   "a durable request and its answer have at most %zu bytes here (max_payload of "
                   "the NATS server)",
                   most);
}

static int fail_with(struct ask *a, enum ledger_result r)
{
    struct err *e = &a->op->err;

    switch (r) {
    case LEDGER_DONE: return OK;
    case LEDGER_FULL:
        err_set(e, E_QUEUE_FULL,
                "the queue of durable requests is full: %d of them have no answer yet",
                LEDGER_MAX_JOBS);
        e->retry_ms = RETRY_AFTER_MS;
        return E_QUEUE_FULL;
    case LEDGER_TOO_LARGE:
        a->op->too_large = true;
        return ledger_too_large(a->api->max_bytes(a->link), e);
    case LEDGER_MISSING: return err_set(e, E_NOTFOUND, "there is no job '%s'", a->op->id);
    case LEDGER_EXISTS:
        return err_set(e, E_CONCURRENCY, "the job '%s' has its answer already", a->op->id);
    case LEDGER_UNSURE:
        err_set(e, E_STORE,
                "NATS did not answer in time (%s): whether the request was written is not known; "
                "repeat it with the same Idempotency-Key",
                a->why);
        e->retry_ms = RETRY_AFTER_MS;
        return E_STORE;
    default: return ledger_away(e, "durable requests", a->why);
    }
}

/* ---- reading ---- */

/* each of get: into op->data. */
static void copy_msg(void *arg, const struct ledger_msg *m)
{
    struct ledger_op *op = arg;

    buf_clear(&op->data);
    buf_add(&op->data, m->p, m->n);
}

static enum ledger_result get(struct ask *a, enum ledger_stream st)
{
    char subject[LEDGER_SUBJECT];

    jobrecord_subject(subject, st, a->op->tenant, a->op->id);
    return a->api->get(a->link, st, subject, copy_msg, a->op, a->why, sizeof a->why);
}

/* A job that is answered between the two first questions has left the queue by the second. */
static enum ledger_result find(struct ask *a)
{
    enum ledger_result r = get(a, LEDGER_ANSWERS);

    if (r == LEDGER_MISSING) r = get(a, LEDGER_JOBS);
    if (r == LEDGER_MISSING) r = get(a, LEDGER_ANSWERS);
    return r;
}

/* The record that was found; it must be the one of the job that was asked for. */
static int find_record(struct ask *a, struct jobrecord *rec)
{
    struct ledger_op *op = a->op;
    int rc = fail_with(a, find(a));

    if (rc == OK) rc = buf_check(&op->data, &op->err);
    if (rc == OK) rc = jobrecord_read(rec, buf_str(&op->data), &op->err);
    if (rc == OK &&
        (strcmp(rec->id, op->id) != 0 || (rec->tenant[0] && strcmp(rec->tenant, op->tenant) != 0)))
        rc = err_set(&op->err, E_FORMAT, "under the job '%s' stands another one", op->id);
    return rc;
}

/* op->data: the record as JSON. */
static int show(struct ledger_op *op, const struct jobrecord *rec)
{
    struct buf out = { 0 };
    struct jsonw w = { .out = &out };

    jobrecord_write_json(rec, &w, true);
    buf_release(&op->data);
    op->data = out;
    return buf_check(&out, &op->err);
}

static int run_find(struct ask *a)
{
    struct jobrecord rec;
    int rc = find_record(a, &rec);

    return rc == OK ? show(a->op, &rec) : rc;
}

/* ---- writing ---- */

static void pause_ms(int ms)
{
    struct timespec t = { ms / 1000, (long)(ms % 1000) * 1000000 };
    nanosleep(&t, NULL);
}

/* An addition without a reply is repeated: that the subject exists then says that it was written. */
static enum ledger_result add_job(struct ask *a)
{
    struct ledger_op *op = a->op;
    char subject[LEDGER_SUBJECT];
    enum ledger_result r;
    bool unsure = false;

    jobrecord_subject(subject, LEDGER_JOBS, op->tenant, op->id);
    for (;;) {
        r = a->api->add(a->link, LEDGER_JOBS, subject, op->data.p, op->data.n, ADD_WAIT_MS, a->why,
                        sizeof a->why);
        if (r == LEDGER_EXISTS && unsure && !op->may_exist) return LEDGER_DONE;
        unsure |= r == LEDGER_UNSURE;
        if (r != LEDGER_UNSURE && !(unsure && r == LEDGER_AWAY)) return r;
        if (clock_ms_since(op->added_ns) > LEDGER_OP_MS) return LEDGER_UNSURE;
        pause_ms(PAUSE_MS);
    }
}

static int run_add(struct ask *a)
{
    struct ledger_op *op = a->op;
    struct jobrecord rec;
    enum ledger_result r = LEDGER_MISSING;
    int rc;

    if (op->may_exist) {
        struct buf job = op->data;
        op->data = (struct buf){ 0 };
        r = get(a, LEDGER_ANSWERS);
        buf_release(&op->data);
        op->data = job;
    }
    if (r == LEDGER_MISSING) r = add_job(a);
    else if (r == LEDGER_DONE) r = LEDGER_EXISTS;
    op->is_new = r == LEDGER_DONE;
    if (r == LEDGER_EXISTS) return run_find(a);
    if ((rc = fail_with(a, r)) != OK) return rc;
    rc = jobrecord_read(&rec, buf_str(&op->data), &op->err);
    return rc == OK ? show(op, &rec) : rc;
}

/* The job is removed after its answer is stored, its own or another one. If the removal fails, the job
 * is delivered again, found answered, and removed then. */
static int run_finish(struct ask *a)
{
    struct ledger_op *op = a->op;
    enum ledger_result r = a->api->add(a->link, LEDGER_ANSWERS, op->answer, op->data.p, op->data.n,
                                       ADD_WAIT_MS, a->why, sizeof a->why);

    op->is_new = r == LEDGER_DONE;
    if (r != LEDGER_DONE && r != LEDGER_EXISTS) return fail_with(a, r);
    a->api->ack(a->link, op->reply);
    return OK;
}

static int run_cancel(struct ask *a)
{
    struct ledger_op *op = a->op;
    char subject[LEDGER_SUBJECT];
    struct jobrecord rec;
    enum ledger_result r;
    int rc = find_record(a, &rec);

    if (rc != OK) return rc;
    if (rec.is_answer) return fail_with(a, LEDGER_EXISTS);
    rec.is_answer = true;
    rec.ended = time(NULL);
    snprintf(rec.error, sizeof rec.error, "cancelled");
    rec.body = STR("cancelled by a request");
    buf_clear(&op->data);
    jobrecord_write(&rec, &op->data);
    if ((rc = buf_check(&op->data, &op->err)) != OK) return rc;
    jobrecord_subject(subject, LEDGER_ANSWERS, op->tenant, op->id);
    r = a->api->add(a->link, LEDGER_ANSWERS, subject, op->data.p, op->data.n, ADD_WAIT_MS, a->why,
                    sizeof a->why);
    if (r != LEDGER_DONE) return fail_with(a, r);
    jobrecord_subject(subject, LEDGER_JOBS, op->tenant, op->id);
    a->api->remove(a->link, subject, a->why, sizeof a->why); /* else it is found answered later */
    return show(op, &rec);
}

/* ---- lists ---- */

struct id_list {
    char (*p)[JOBRECORD_ID];
    int n, cap;
    bool failed;
};

static void add_id(void *arg, const char *subject)
{
    struct id_list *v = arg;

    if (v->failed || v->n >= IDS_MAX) return;
    if (!mem_ensure(v->p, v->cap, v->n + 1)) v->failed = true;
    else if (jobrecord_id_of(subject, v->p[v->n])) v->n++;
}

static int compare_ids(const void *a, const void *b) { return strcmp(b, a); }

static enum ledger_result list_ids(struct ask *a, struct id_list *v)
{
    enum ledger_result r = LEDGER_DONE;
    char pattern[LEDGER_SUBJECT];

    for (int st = LEDGER_JOBS; st <= LEDGER_ANSWERS && r == LEDGER_DONE; st++) {
        jobrecord_subject(pattern, (enum ledger_stream)st, a->op->tenant, "*");
        r = a->api->list(a->link, (enum ledger_stream)st, pattern, add_id, v, a->why,
                         sizeof a->why);
    }
    if (v->n) qsort(v->p, (size_t)v->n, sizeof *v->p, compare_ids);
    return r;
}

/* Jobs that are removed meanwhile, or cannot be read, are left out. */
static int write_page(struct ask *a, const struct id_list *v, struct buf *out)
{
    struct ledger_op *op = a->op;
    char after[JOBRECORD_ID], first[JOBRECORD_ID] = "", last[JOBRECORD_ID] = "";
    struct jsonw w = { .out = out };
    struct jobrecord rec;
    int i = 0, n = 0, rc = OK;

    memcpy(after, op->id, sizeof after);
    while (*after && i < v->n && strcmp(v->p[i], after) >= 0) i++;
    jsonw_obj(&w);
    jsonw_key(&w, "object"), jsonw_str(&w, STR("list"));
    jsonw_key(&w, "data"), jsonw_arr(&w);
    for (; i < v->n && n < op->limit && rc == OK; i++) {
        if (i && strcmp(v->p[i], v->p[i - 1]) == 0) continue; /* answered between the two lists */
        memcpy(op->id, v->p[i], sizeof op->id);
        buf_clear(&op->data);
        rc = find_record(a, &rec);
        if (rc == E_NOTFOUND || rc == E_FORMAT || rc == E_UNSUPPORTED) {
            rc = OK;
            continue;
        }
        if (rc != OK) break;
        jobrecord_write_json(&rec, &w, false);
        if (!n++) memcpy(first, op->id, sizeof first);
        memcpy(last, op->id, sizeof last);
    }
    jsonw_end(&w);
    jsonw_key(&w, "first_id"), *first ? jsonw_str(&w, str_c(first)) : jsonw_null(&w);
    jsonw_key(&w, "last_id"), *last ? jsonw_str(&w, str_c(last)) : jsonw_null(&w);
    jsonw_key(&w, "has_more"), jsonw_bool(&w, i < v->n);
    jsonw_end(&w);
    return rc;
}

static int run_list(struct ask *a)
{
    struct id_list v = { 0 };
    struct buf out = { 0 };
    int rc = fail_with(a, list_ids(a, &v));

    if (rc == OK && v.failed) rc = err_nomem(&a->op->err, "the list of jobs");
    if (rc == OK) rc = write_page(a, &v, &out);
    mem_free(v.p);
    buf_release(&a->op->data);
    a->op->data = out;
    return rc == OK ? buf_check(&out, &a->op->err) : rc;
}

int ledger_run(const struct ledger_api *api, struct ledger_link *link, struct ledger_op *op)
{
    struct ask a = { .api = api, .link = link, .op = op };

    switch (op->kind) {
    case LEDGER_OP_ADD: return run_add(&a);
    case LEDGER_OP_FIND: return run_find(&a);
    case LEDGER_OP_FINISH: return run_finish(&a);
    case LEDGER_OP_CANCEL: return run_cancel(&a);
    case LEDGER_OP_LIST: return run_list(&a);
    case LEDGER_OP_EXTEND: return fail_with(&a, api->extend(link, op->reply));
    case LEDGER_OP_CALL: return op->run(api, link, op);
    case LEDGER_OP_RELEASE: return fail_with(&a, api->release(link, op->reply, op->delay_ms));
    }
    return err_set(&op->err, E_INTERNAL, "an operation of kind %d", op->kind);
}
