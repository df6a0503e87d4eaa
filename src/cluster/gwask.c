#include "cluster/gwask.h"

#include "api/fail.h"
#include "base/mem.h"

#include <stdio.h>

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

    gateway_note_end(k->g, &end);
}

static void free_ask(struct gwask *k)
{
    --*k->n_asked;
    if (k->release) k->release(k);
    buf_release(&k->op.data);
    mem_free(k);
}

static void leave_client(struct gwask *k)
{
    http_on_gone(k->q, NULL, NULL);
    http_on_sent(k->q, NULL, NULL);
}

/* The words of the server's own store (server/work.c) where they differ from those of models. */
static int send_error(struct gwask *k, const struct err *e, const char **code)
{
    int status = 500;

    *code = fail_lookup(e->code).code;
    if (k->op.too_large && e->code == E_INVALID) *code = "request_too_large", status = 413;
    else if (e->code == E_BYTES) *code = "request_too_large", status = 413;
    else if (e->code == E_NOTFOUND) *code = "not_found", status = 404;
    else if (e->code == E_CONCURRENCY) *code = "conflict", status = 409;
    else if (e->code == E_FORMAT || e->code == E_UNSUPPORTED) *code = "job_unreadable";
    else return fail_send(k->q, e, k->param, k->correlation);
    return fail_send_status(k->q, status, *code, e->msg, k->correlation);
}

void gwask_fail(struct gwask *k, const struct err *e)
{
    const char *code;
    int status;

    if (k->q) {
        leave_client(k);
        status = send_error(k, e, &code);
        k->q = NULL;
        end_ask(k, status, code, "");
    }
    free_ask(k);
}

void gwask_fail_status(struct gwask *k, int status, const char *code, const char *msg)
{
    if (k->q) {
        leave_client(k);
        status = fail_send_status(k->q, status, code, msg, k->correlation);
        k->q = NULL;
        end_ask(k, status, code, "");
    }
    free_ask(k);
}

void gwask_reply(struct gwask *k, int status)
{
    if (k->q) {
        leave_client(k);
        status = http_reply(k->q, status, "application/json", k->op.data.p, k->op.data.n);
        k->q = NULL;
        end_ask(k, status, "", "");
    }
    free_ask(k);
}

bool gwask_begin_stream(struct gwask *k, const char *type)
{
    return k->q && http_begin(k->q, 200, type);
}

void gwask_end_stream(struct gwask *k, const char *broken)
{
    if (k->q) {
        leave_client(k);
        if (broken) http_drop(k->q, broken);
        http_end(k->q);
        k->q = NULL;
        end_ask(k, 200, "", broken ? broken : "");
    }
    free_ask(k);
}

static void on_gone(void *arg)
{
    struct gwask *k = arg;
    const char *why = http_gone_reason(k->q);

    http_on_sent(k->q, NULL, NULL);
    http_end(k->q);
    k->q = NULL;
    end_ask(k, 499, "", why);
    if (k->idle) free_ask(k);
}

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

bool gwask_init(struct gwask *k, struct gateway *g, struct http_req *q, const struct gw_who *who,
                int *n_asked)
{
    struct gwask none = { .g = g, .q = q };

    if (!k) {
        note_request(&none, who);
        end_ask(&none, http_reply_nomem(q), "memory_admission", "");
        return false;
    }
    k->g = g;
    k->q = q;
    k->n_asked = n_asked;
    ++*n_asked;
    note_request(k, who);
    return true;
}

void gwask_start(struct gwask *k, struct ledger *l, void (*done)(struct ledger_op *op))
{
    struct err e = { 0 };

    if (*k->n_asked > GWASK_MAX) {
        err_set(&e, E_STORE, "%d requests wait for NATS", GWASK_MAX);
        e.retry_ms = 1000;
        gwask_fail(k, &e);
        return;
    }
    k->op.done = done;
    http_on_gone(k->q, on_gone, k);
    ledger_add_op(l, &k->op);
}
