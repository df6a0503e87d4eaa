#include "api/fail.h"

#include "api/api.h"
#include "base/jsonw.h"

#include <stdio.h>

struct fail fail_of(int err_code)
{
    static const struct {
        int err;
        struct fail fail;
    } table[] = {
        { E_INVALID, { 400, "invalid_request_error", "invalid_request" } },
        { E_CONTEXT, { 400, "invalid_request_error", "context_exceeded" } },
        { E_DENIED, { 401, "authentication_error", "unauthorized" } },
        { E_NOTFOUND, { 404, "invalid_request_error", "model_not_found" } },
        { E_QUEUE_FULL, { 429, "rate_limit_error", "queue_full" } },
        { E_MEMORY, { 429, "rate_limit_error", "memory_admission" } },
        { E_CONCURRENCY, { 429, "rate_limit_error", "concurrency_limit" } },
        { E_RATE, { 429, "rate_limit_error", "rate_limited" } },
        { E_SHUTDOWN, { 503, "server_error", "shutting_down" } },
        { E_LOADING, { 503, "server_error", "model_loading" } },
        { E_DEADLINE, { 504, "timeout_error", "deadline_exceeded" } },
        { E_CANCELLED, { 499, "cancelled_error", "cancelled" } },
        { E_NOMEM, { 500, "server_error", "device_oom" } },
        { E_DEVICE, { 500, "server_error", "device_oom" } },
        { E_IO, { 500, "server_error", "model_load_failed" } },
        { E_FORMAT, { 500, "server_error", "model_load_failed" } },
        { E_UNSUPPORTED, { 500, "server_error", "model_load_failed" } },
    };

    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].err == err_code) return table[i].fail;
    return (struct fail){ 500, "server_error", "internal" };
}

void fail_set_ids(struct http_req *q, const char *correlation)
{
    if (!correlation || !correlation[0]) return;
    http_set_header(q, "X-Correlation-Id", correlation);
    http_set_header(q, "x-request-id", correlation);
}

void api_fail_body(struct buf *out, const char *type, const char *code, const char *msg,
                   const char *param, const char *correlation)
{
    struct jsonw w = { .out = out };

    jsonw_obj(&w);
    jsonw_key(&w, "error"), jsonw_obj(&w);
    jsonw_key(&w, "message"), jsonw_str(&w, str_c(msg));
    jsonw_key(&w, "type"), jsonw_str(&w, str_c(type));
    jsonw_key(&w, "param");
    if (param && param[0]) jsonw_str(&w, str_c(param));
    else jsonw_null(&w);
    jsonw_key(&w, "code"), jsonw_str(&w, str_c(code));
    if (correlation && correlation[0])
        jsonw_key(&w, "correlation_id"), jsonw_str(&w, str_c(correlation));
    jsonw_end(&w);
    jsonw_end(&w);
}

static void send_body(struct http_req *q, int status, const char *type, const char *code,
                      const char *msg, const char *param, const char *correlation)
{
    struct buf body = { 0 };

    fail_set_ids(q, correlation);
    api_fail_body(&body, type, code, msg, param, correlation);
    http_reply(q, status, "application/json", body.p, body.n);
    buf_release(&body);
}

void api_fail(struct http_req *q, const struct err *e, const char *param, const char *correlation)
{
    struct fail f = fail_of(e->code);
    char after[24];

    if (f.status == 429 || f.status == 503) {
        snprintf(after, sizeof after, "%d",
                 e->retry_ms > 1000 ? (int)(((int64_t)e->retry_ms + 999) / 1000) : 1);
        http_set_header(q, "Retry-After", after);
    }
    if (f.status == 401) http_set_header(q, "WWW-Authenticate", "Bearer realm=\"tern\"");
    /* Clients try again on 504; with a deadline that is over, that is work for nobody. */
    if (f.status == 504) http_set_header(q, "x-should-retry", "false");
    send_body(q, f.status, f.type, f.code, e->msg, param, correlation);
}

void api_fail_status(struct http_req *q, int status, const char *code, const char *msg,
                     const char *correlation)
{
    const char *type = status == 401   ? "authentication_error"
                       : status == 429 ? "rate_limit_error"
                       : status >= 500 ? "server_error"
                                       : "invalid_request_error";
    send_body(q, status, type, code, msg, NULL, correlation);
}
