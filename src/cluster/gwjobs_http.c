/* gwjobs_http.c - requests about durable jobs: a POST with "durable": true, and /v1/jobs. Each is one
 * operation of the ledger, answered when it is done; 202 says that the job is written. */
#include "base/log.h"
#include "base/mem.h"
#include "cluster/gwask.h"
#include "cluster/gwjobs.h"
#include "cluster/gwjobs_impl.h"
#include "net/query.h"

#include <stdio.h>
#include <time.h>

enum { KEY_MAX = 255, PAGE_DEFAULT = 20 };

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

/* ledger_op.done */
static void on_done(struct ledger_op *op)
{
    struct gwask *k = (struct gwask *)op;
    struct gwjobs *j = k->g->jobs;
    bool post = op->kind == LEDGER_OP_ADD;
    char place[JOBRECORD_ID + 20];

    if (post) {
        counter_add(op->rc == OK ? &j->n.accepted : &j->n.refused, 1);
        if (op->rc == OK && !k->q) log_info("durable request %s: its client has left", op->id);
    }
    if (op->rc != OK) {
        gwask_fail(k, &op->err);
        return;
    }
    snprintf(place, sizeof place, "/v1/jobs/%s", op->id);
    if (post && k->q) http_set_header(k->q, "Location", place);
    gwask_reply(k, post ? 202 : 200);
}

/* ---- the operations ---- */

static int fill_post(struct gwask *k, bool streams, struct err *e)
{
    struct str body = http_body(k->q), key = http_header(k->q, "Idempotency-Key");
    struct jobrecord r = { .created = time(NULL), .body = body };
    size_t most = ledger_max_bytes(k->g->jobs->ledger);

    if (streams) {
        k->param = "stream";
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

static void begin_ask(struct gwjobs *j, struct http_req *q, const struct gw_who *who, bool posts,
                      bool streams)
{
    struct gwask *k = mem_new(struct gwask);
    struct err e = { 0 };

    if (!gwask_init(k, j->g, q, who, &j->n_asked)) return;
    if (posts) fill_post(k, streams, &e);
    else fill_op(k, &e);
    if (e.code != OK) gwask_fail(k, &e);
    else gwask_start(k, j->ledger, on_done);
}

void gwjobs_begin(struct gwjobs *j, struct http_req *q, const struct gw_who *who)
{
    begin_ask(j, q, who, false, false);
}

void gwjobs_post(struct gwjobs *j, struct http_req *q, const struct gw_who *who, bool streams)
{
    begin_ask(j, q, who, true, streams);
}
