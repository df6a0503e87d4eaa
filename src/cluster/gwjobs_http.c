/* gwjobs_http.c - requests about durable jobs: a POST with "durable": true, and /v1/jobs. Each is one
 * operation of the ledger, answered when it is done; 202 says that the job is written. */
#include "api/fail.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/gateway_impl.h"
#include "cluster/gwjobs.h"
#include "cluster/gwjobs_impl.h"
#include "net/query.h"

#include <stdio.h>
#include <time.h>

enum { KEY_MAX = 255, ASKED_MAX = 4096, PAGE_DEFAULT = 20 };

/* One request of a client. */
struct gwask {
    struct ledger_op op; /* first */
    struct gwjobs *jobs;
    struct http_req *q; /* NULL: the client has left, and the operation goes on */
    struct gw_who who;
    char name[64]; /* of the tenant */
    char correlation[72], peer[96], path[160], method[16];
    uint64_t start_ns;
};

/* ---- which requests ---- */

static struct str skip_version(struct str path)
{
    return str_starts(path, STR("/v1/")) ? str_skip(path, 3) : path;
}

/* The path of a durable request as workers know it; NULL: of no such. */
static const char *durable_endpoint(struct str path)
{
    path = skip_version(path);
    if (str_is(path, "/chat/completions")) return "/v1/chat/completions";
    return str_is(path, "/completions") ? "/v1/completions" : NULL;
}

bool gwjobs_is_path(struct str path)
{
    path = skip_version(path);
    return str_is(path, "/jobs") || str_starts(path, STR("/jobs/"));
}

bool gwjobs_takes(struct str path) { return durable_endpoint(path) != NULL; }

/* ---- replies ---- */

static void end_ask(struct gwask *k, int status, const char *code, const char *gone)
{
    struct gw_end end = { .who = &k->who,
                          .correlation = k->correlation,
                          .peer = k->peer,
                          .method = k->method,
                          .path = k->path,
                          .model = "",
                          .worker = "",
                          .code = code,
                          .gone = gone,
                          .status = status,
                          .start_ns = k->start_ns };

    gateway_note_end(k->jobs->g, &end);
}

static void free_ask(struct gwask *k)
{
    k->jobs->n_asked--;
    buf_release(&k->op.data);
    mem_free(k);
}

/* The words of the server's own store (server/work.c) where they differ from those of models. */
static int send_error(struct gwask *k, const struct err *e, const char *param, const char **code)
{
    *code = fail_lookup(e->code).code;
    switch (e->code) {
    case E_NOTFOUND: *code = "not_found"; break;
    case E_CONCURRENCY: *code = "conflict"; break;
    case E_FORMAT:
    case E_UNSUPPORTED: *code = "job_unreadable"; break;
    default:
        if (!k->op.too_large) return fail_send(k->q, e, param, k->correlation);
        *code = "request_too_large";
    }
    return fail_send_status(k->q,
                            k->op.too_large            ? 413
                            : e->code == E_NOTFOUND    ? 404
                            : e->code == E_CONCURRENCY ? 409
                                                       : 500,
                            *code, e->msg, k->correlation);
}

static void fail_ask(struct gwask *k, const struct err *e, const char *param)
{
    const char *code;
    int status;

    if (k->q) {
        http_on_gone(k->q, NULL, NULL);
        status = send_error(k, e, param, &code);
        k->q = NULL;
        end_ask(k, status, code, "");
    }
    free_ask(k);
}

/* ledger_op.done */
static void on_done(struct ledger_op *op)
{
    struct gwask *k = (struct gwask *)op;
    bool post = op->kind == LEDGER_OP_ADD;
    char place[JOBRECORD_ID + 20];
    int status;

    if (post) {
        counter_add(op->rc == OK ? &k->jobs->n.accepted : &k->jobs->n.refused, 1);
        if (op->rc == OK && !k->q) log_info("durable request %s: its client has left", op->id);
    }
    if (op->rc != OK) {
        fail_ask(k, &op->err, NULL);
        return;
    }
    if (k->q) {
        http_on_gone(k->q, NULL, NULL);
        snprintf(place, sizeof place, "/v1/jobs/%s", op->id);
        if (post) http_set_header(k->q, "Location", place);
        status = http_reply(k->q, post ? 202 : 200, "application/json", op->data.p, op->data.n);
        k->q = NULL;
        end_ask(k, status, "", "");
    }
    free_ask(k);
}

static void on_gone(void *arg)
{
    struct gwask *k = arg;
    const char *why = http_gone_reason(k->q);

    http_end(k->q);
    k->q = NULL;
    end_ask(k, 499, "", why);
}

/* ---- the operations ---- */

static int fill_post(struct gwask *k, bool streams, const char **param, struct err *e)
{
    struct str body = http_body(k->q), key = http_header(k->q, "Idempotency-Key");
    struct jobrecord r = { .created = time(NULL), .body = body };
    size_t most = ledger_max_bytes(k->jobs->ledger);

    if (streams) {
        *param = "stream";
        return err_set(e, E_INVALID, "stream must be false in a request with \"durable\": true");
    }
    if (key.p && (key.n == 0 || key.n > KEY_MAX))
        return err_set(e, E_INVALID, "the header Idempotency-Key must have 1 to %d bytes", KEY_MAX);
    if (most && body.n > most) { /* before it is copied */
        k->op.too_large = true;
        return ledger_too_large(most, e);
    }
    k->op.kind = LEDGER_OP_ADD;
    k->op.may_exist = key.p != NULL;
    jobrecord_make_id(k->op.id, k->name, key);
    memcpy(r.id, k->op.id, sizeof r.id);
    snprintf(r.tenant, sizeof r.tenant, "%s", k->name);
    snprintf(r.endpoint, sizeof r.endpoint, "%s", durable_endpoint(http_path(k->q)));
    jobrecord_write(&r, &k->op.data);
    return buf_check(&k->op.data, e);
}

static int fill_list(struct gwask *k, struct err *e)
{
    struct str query = http_query(k->q), v;
    char text[32];
    int64_t n;

    k->op.kind = LEDGER_OP_LIST;
    k->op.limit = PAGE_DEFAULT;
    if (query_find(query, "limit", &v)) {
        if (!query_decode(v, text, sizeof text) || !str_to_i64(str_c(text), &n) || n < 1 ||
            n > LEDGER_PAGE_MAX)
            return err_set(e, E_INVALID, "limit must be a number from 1 to %d", LEDGER_PAGE_MAX);
        k->op.limit = (int)n;
    }
    if (query_find(query, "after", &v) &&
        (!query_decode(v, k->op.id, sizeof k->op.id) || !jobrecord_is_id(str_c(k->op.id))))
        return err_set(e, E_INVALID, "after is not the id of a job");
    return OK;
}

/* /jobs/ID and /jobs/ID/cancel. */
static int fill_one(struct gwask *k, struct str path, struct err *e)
{
    struct str id = str_skip(path, strlen("/jobs/")), cancel = STR("/cancel");
    enum http_method m = http_method(k->q);

    k->op.kind = LEDGER_OP_FIND;
    if (m == HTTP_POST && str_ends(id, cancel)) {
        id.n -= cancel.n;
        k->op.kind = LEDGER_OP_CANCEL;
    } else if (m != HTTP_GET && m != HTTP_HEAD) {
        return err_set(e, E_NOTFOUND, "there is nothing at this path for this method");
    }
    if (!jobrecord_is_id(id))
        return err_set(e, E_NOTFOUND, "there is no job '%.*s'", STR_ARG(str_take(id, 60)));
    snprintf(k->op.id, sizeof k->op.id, "%.*s", STR_ARG(id));
    return OK;
}

static int fill_op(struct gwask *k, struct err *e)
{
    struct str path = skip_version(http_path(k->q));

    if (str_starts(path, STR("/jobs/"))) return fill_one(k, path, e);
    if (http_method(k->q) != HTTP_GET && http_method(k->q) != HTTP_HEAD)
        return err_set(e, E_NOTFOUND, "there is nothing at this path for this method");
    return fill_list(k, e);
}

/* ---- the beginning ---- */

static void copy_str(char *out, size_t cap, struct str s)
{
    snprintf(out, cap, "%.*s", (int)(s.n < cap - 1 ? s.n : cap - 1), s.p ? s.p : "");
}

static void note_request(struct gwask *k, const struct gw_who *who)
{
    k->who = *who;
    copy_str(k->name, sizeof k->name, str_c(who->name));
    k->who.name = k->name;
    copy_str(k->op.tenant, sizeof k->op.tenant, str_c(who->name));
    copy_str(k->correlation, sizeof k->correlation, str_c(http_id(k->q)));
    copy_str(k->peer, sizeof k->peer, str_c(http_peer(k->q)));
    copy_str(k->path, sizeof k->path, http_path(k->q));
    copy_str(k->method, sizeof k->method, http_method_name(k->q));
    k->start_ns = http_start_ns(k->q);
}

static void begin_ask(struct gwjobs *j, struct http_req *q, const struct gw_who *who, bool posts,
                      bool streams)
{
    struct gwask *k = mem_new(struct gwask), none = { .jobs = j, .q = q };
    const char *param = NULL;
    struct err e = { 0 };

    if (!k) {
        note_request(&none, who);
        end_ask(&none, http_reply_nomem(q), "memory_admission", "");
        return;
    }
    k->jobs = j;
    k->q = q;
    j->n_asked++;
    note_request(k, who);
    if (j->n_asked > ASKED_MAX) {
        err_set(&e, E_STORE, "%d requests wait for NATS", ASKED_MAX);
        e.retry_ms = 1000;
    } else if (posts) {
        fill_post(k, streams, &param, &e);
    } else {
        fill_op(k, &e);
    }
    if (e.code != OK) {
        fail_ask(k, &e, param);
        return;
    }
    k->op.done = on_done;
    http_on_gone(q, on_gone, k);
    ledger_add_op(j->ledger, &k->op);
}

void gwjobs_begin(struct gwjobs *j, struct http_req *q, const struct gw_who *who)
{
    begin_ask(j, q, who, false, false);
}

void gwjobs_post(struct gwjobs *j, struct http_req *q, const struct gw_who *who, bool streams)
{
    begin_ask(j, q, who, true, streams);
}
