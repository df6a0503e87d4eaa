/* fail.c - the table of error codes, and error replies.
 *
 * One table maps every struct err to a status, a type and a code, so that the same failure looks
 * the same on every route. */
#include "api/fail.h"

#include "base/buf.h"
#include "base/jsonw.h"
#include "net/http.h"

#include <stdio.h>

struct fail fail_lookup(int err_code)
{
    /* clang-format off */
    static const struct {
        int err;
        struct fail fail;
    } table[] = {
        { E_INVALID,     { 400, "invalid_request_error", "invalid_request" } },
        { E_CONTEXT,     { 400, "invalid_request_error", "context_exceeded" } },
        { E_DENIED,      { 401, "authentication_error",  "unauthorized" } },
        { E_NOTFOUND,    { 404, "invalid_request_error", "model_not_found" } },
        { E_QUEUE_FULL,  { 429, "rate_limit_error",      "queue_full" } },
        { E_MEMORY,      { 429, "rate_limit_error",      "memory_admission" } },
        { E_CONCURRENCY, { 429, "rate_limit_error",      "concurrency_limit" } },
        { E_RATE,        { 429, "rate_limit_error",      "rate_limited" } },
        { E_BYTES,       { 429, "rate_limit_error",      "body_bytes_limit" } },
        { E_NOMEM,       { 503, "server_error",          "memory_admission" } },
        { E_SHUTDOWN,    { 503, "server_error",          "shutting_down" } },
        { E_LOADING,     { 503, "server_error",          "model_loading" } },
        { E_DEADLINE,    { 504, "timeout_error",         "deadline_exceeded" } },
        { E_CANCELLED,   { 499, "cancelled_error",       "cancelled" } },
        { E_DEVICE_MEMORY, { 500, "server_error",        "device_oom" } },
        { E_DEVICE,      { 503, "server_error",          "device_failed" } },
        { E_WORKER,      { 503, "server_error",          "worker_lost" } },
        { E_FULL,        { 507, "server_error",          "disk_full" } },
        { E_READONLY,    { 503, "server_error",          "read_only" } },
        { E_STORE,       { 503, "server_error",          "store_unavailable" } },
        { E_DAMAGED,     { 500, "server_error",          "model_damaged" } },
        { E_IO,          { 500, "server_error",          "model_load_failed" } },
        { E_FORMAT,      { 500, "server_error",          "model_load_failed" } },
        { E_UNSUPPORTED, { 500, "server_error",          "model_load_failed" } },
    };
    /* clang-format on */

    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].err == err_code) return table[i].fail;
    return (struct fail){ 500, "server_error", "internal" };
}

/* ---- envelopes ---- */

/* LM Studio's routes below /api/v1 have OpenAI's. */
enum fail_form fail_form_of(struct str path)
{
    if (str_starts(path, STR("/v1/messages")) || str_starts(path, STR("/messages")))
        return FAIL_ANTHROPIC;
    if (str_starts(path, STR("/api/")) && !str_starts(path, STR("/api/v1/"))) return FAIL_OLLAMA;
    return FAIL_OPENAI;
}

/* OpenAI's word for a code of tern's; the code itself where there is none. */
static const char *openai_code(const char *code)
{
    return strcmp(code, "context_exceeded") ? code : "context_length_exceeded";
}

static void write_openai(struct jsonw *w, const struct fail *f, const char *msg, const char *param,
                         const char *correlation)
{
    jsonw_obj(w);
    jsonw_key(w, "error"), jsonw_obj(w);
    jsonw_key(w, "message"), jsonw_str(w, str_c(msg));
    jsonw_key(w, "type"), jsonw_str(w, str_c(f->type));
    jsonw_key(w, "param");
    if (param && param[0]) jsonw_str(w, str_c(param));
    else jsonw_null(w);
    jsonw_key(w, "code"), jsonw_str(w, str_c(openai_code(f->code)));
    if (strcmp(openai_code(f->code), f->code) != 0)
        jsonw_key(w, "tern_code"), jsonw_str(w, str_c(f->code));
    if (correlation && correlation[0])
        jsonw_key(w, "correlation_id"), jsonw_str(w, str_c(correlation));
    jsonw_end(w);
    jsonw_end(w);
}

/* Anthropic's types follow from the status. */
static const char *anthropic_type(int status)
{
    static const struct {
        int status;
        const char *type;
    } types[] = { { 400, "invalid_request_error" }, { 401, "authentication_error" },
                  { 403, "permission_error" },      { 404, "not_found_error" },
                  { 405, "invalid_request_error" }, { 413, "request_too_large" },
                  { 429, "rate_limit_error" },      { 503, "overloaded_error" },
                  { 504, "timeout_error" },         { 529, "overloaded_error" } };

    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == status) return types[i].type;
    return status >= 500 ? "api_error" : "invalid_request_error";
}

/* `param` and `tern_code` are additions. */
static void write_anthropic(struct jsonw *w, const struct fail *f, const char *msg,
                            const char *param, const char *correlation)
{
    jsonw_obj(w);
    jsonw_key(w, "type"), jsonw_str(w, STR("error"));
    jsonw_key(w, "error"), jsonw_obj(w);
    jsonw_key(w, "type"), jsonw_str(w, str_c(anthropic_type(f->status)));
    jsonw_key(w, "message"), jsonw_str(w, str_c(msg));
    if (param && param[0]) jsonw_key(w, "param"), jsonw_str(w, str_c(param));
    jsonw_key(w, "tern_code"), jsonw_str(w, str_c(f->code));
    jsonw_end(w);
    jsonw_key(w, "request_id");
    if (correlation && correlation[0]) jsonw_str(w, str_c(correlation));
    else jsonw_null(w);
    jsonw_end(w);
}

/* out may fail; the caller checks it. */
void fail_write_body(struct buf *out, enum fail_form form, const struct fail *f, const char *msg,
                     const char *param, const char *correlation)
{
    struct jsonw w = { .out = out };

    if (form == FAIL_OPENAI) {
        write_openai(&w, f, msg, param, correlation);
    } else if (form == FAIL_ANTHROPIC) {
        write_anthropic(&w, f, msg, param, correlation);
    } else {
        jsonw_obj(&w);
        jsonw_key(&w, "error"), jsonw_str(&w, str_c(msg));
        jsonw_end(&w);
    }
}

/* Falls back to the reply that needs no memory. */
static int send_envelope(struct http_req *q, struct fail f, const char *msg, const char *param,
                         const char *correlation)
{
    struct buf body = { 0 };
    int sent;

    fail_write_body(&body, fail_form_of(http_path(q)), &f, msg, param, correlation);
    sent = body.failed ? http_reply_nomem(q)
                       : http_reply(q, f.status, "application/json", body.p, body.n);
    buf_release(&body);
    return sent;
}

int fail_send(struct http_req *q, const struct err *e, const char *param, const char *correlation)
{
    struct fail f = fail_lookup(e->code);
    char after[24];

    if (f.status == 429 || f.status == 503) {
        snprintf(after, sizeof after, "%d",
                 e->retry_ms > 1000 ? (int)(((int64_t)e->retry_ms + 999) / 1000) : 1);
        http_set_header(q, "Retry-After", after);
    }
    if (f.status == 401) http_set_header(q, "WWW-Authenticate", "Bearer realm=\"tern\"");
    /* OpenAI's clients retry a 504 by themselves; here the client's own deadline has passed. */
    if (f.status == 504) http_set_header(q, "x-should-retry", "false");
    return send_envelope(q, f, e->msg, param, correlation);
}

int fail_send_status(struct http_req *q, int status, const char *code, const char *msg,
                     const char *correlation)
{
    const char *type = status == 401   ? "authentication_error"
                       : status == 429 ? "rate_limit_error"
                       : status >= 500 ? "server_error"
                                       : "invalid_request_error";

    return send_envelope(q, (struct fail){ status, type, code }, msg, NULL, correlation);
}
