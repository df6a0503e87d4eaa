/* access.c - correlation ids, the server's own replies, and the access log.
 *
 * Two kinds of requests end here. Those that the server answers itself (struct visit) are counted
 * and logged when the reply is sent. Those that the API answers are counted and logged in
 * access_ended, which also gives back the limits of the tenant.
 *
 * Nothing in this file may fail a request: a log line or a trace that finds no memory is left out. */
#include "api/fail.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "net/http.h"
#include "net/traceparent.h"
#include "server/auth.h"
#include "server/cors.h"
#include "server/limit.h"
#include "server/routes.h"
#include "server/server_impl.h"
#include "server/visit.h"

enum { TRACES_MAX = 4096 };

/* The traceparent header of a request that the API answers, kept for its line in the log. */
struct trace {
    struct trace *next;
    char correlation[72], parent[TRACEPARENT_BYTES];
};

/* Copies what the log needs: q is invalid after the reply. */
void visit_begin(struct visit *t, struct server *v, struct http_req *q)
{
    struct str path = http_path(q), method = http_method_name(q);

    *t = (struct visit){ .v = v, .q = q, .route = -1, .start_ns = http_start_ns(q) };
    snprintf(t->who.correlation, sizeof t->who.correlation, "%s", http_id(q));
    t->who.name = "";
    snprintf(t->peer, sizeof t->peer, "%s", http_peer(q));
    snprintf(t->path, sizeof t->path, "%.*s", (int)(path.n < 150 ? path.n : 150),
             path.p ? path.p : "");
    snprintf(t->method, sizeof t->method, "%.*s", (int)(method.n < 15 ? method.n : 15),
             method.p ? method.p : "");
}

/* By route and class of status, for tern_http_requests_total. */
static void count_reply(struct server *v, int route, int status)
{
    int class = status / 100;

    v->replied_ns = clock_ns();
    if (route < 0 || route > ROUTES_MAX) route = ROUTES_MAX;
    if (class > 0 && class < STATUS_CLASSES) counter_add(&v->replies[route][class], 1);
}

/* Polls by monitors are logged at level debug, unless they fail. */
static void log_visit(const struct visit *t, int status, const char *code)
{
    struct log_event ev;

    if (!t->v->s->access_log) return;
    log_begin(&ev, t->quiet && status < 400 ? LOG_DEBUG : LOG_INFO, "access");
    log_str(&ev, "id", str_c(t->who.correlation));
    if (*t->who.name) log_str(&ev, "tenant", str_c(t->who.name));
    log_str(&ev, "peer", str_c(t->peer));
    log_str(&ev, "method", str_c(t->method));
    log_str(&ev, "path", str_c(t->path));
    log_int(&ev, "status", status);
    if (*code) log_str(&ev, "code", str_c(code));
    log_ms(&ev, "total_ms", clock_ms_since(t->start_ns));
    log_end(&ev);
}

/* CORS, and the trace of the client. Before the reply is sent. */
static void set_common_headers(struct visit *t)
{
    struct str trace = http_header(t->q, "traceparent");

    if (t->headed) return;
    t->headed = true;
    cors_set_headers(t->v->s, t->q);
    if (traceparent_is_valid(trace)) {
        char copy[64];
        snprintf(copy, sizeof copy, "%.*s", STR_ARG(trace));
        http_set_header(t->q, "traceparent", copy);
    }
}

static void end_visit(struct visit *t, int status, const char *code)
{
    count_reply(t->v, t->route, status);
    refused_count(&t->v->refused, status, code);
    log_visit(t, status, code);
}

/* The status that was sent differs from the requested one if memory ran out. */
void visit_reply(struct visit *t, int status, const char *type, struct str body)
{
    int sent;

    set_common_headers(t);
    sent = http_reply(t->q, status, type, body.p, body.n);
    end_visit(t, sent, sent == status ? "" : fail_lookup(E_NOMEM).code);
}

bool visit_begin_stream(struct visit *t, int status, const char *type)
{
    set_common_headers(t);
    return http_begin(t->q, status, type);
}

void visit_end_stream(struct visit *t, int status) { end_visit(t, status, ""); }

void visit_reply_buf(struct visit *t, int status, const char *type, const struct buf *body)
{
    struct err e = { 0 };

    if (buf_check(body, &e) != OK) visit_fail(t, &e);
    else visit_reply(t, status, type, buf_str(body));
}

/* The envelope, its code and status are those of the API. */
void visit_fail(struct visit *t, const struct err *e)
{
    struct fail fail;
    int sent;

    set_common_headers(t);
    fail = fail_lookup(e->code);
    sent = fail_send(t->q, e, NULL, t->who.correlation);
    end_visit(t, sent, sent == fail.status ? fail.code : fail_lookup(E_NOMEM).code);
}

void visit_fail_status(struct visit *t, int status, const char *code, const char *msg)
{
    int sent;

    set_common_headers(t);
    sent = fail_send_status(t->q, status, code, msg, t->who.correlation);
    end_visit(t, sent, sent == status ? code : fail_lookup(E_NOMEM).code);
}

/* net/ sends the reply. It has no other headers than those of net/: it may be about a request whose
 * headers were not read. */
void visit_refuse(struct visit *t, int status, const char *code, const char *msg, struct buf *out)
{
    const char *type = status >= 500   ? "server_error"
                       : status == 429 ? "rate_limit_error"
                                       : "invalid_request_error";

    fail_write_body(out, fail_form_of(str_c(t->path)), &(struct fail){ status, type, code }, msg,
                    NULL, t->who.correlation);
    end_visit(t, status, code);
}

/* Without memory for the trace, only the log line lacks it. */
void visit_hand_over(struct visit *t)
{
    struct str parent = http_header(t->q, "traceparent");
    struct server *v = t->v;
    struct trace *trace;

    set_common_headers(t);
    if (!traceparent_is_valid(parent) || v->n_traces >= TRACES_MAX) return;
    if (!(trace = mem_new(struct trace))) return;
    memcpy(trace->correlation, t->who.correlation, sizeof trace->correlation);
    memcpy(trace->parent, parent.p, parent.n);
    trace->next = v->traces;
    v->traces = trace;
    v->n_traces++;
}

/* Removes the trace of that request from the list; NULL: it has none. */
static struct trace *remove_trace(struct server *v, const char *correlation)
{
    for (struct trace **p = &v->traces; *p; p = &(*p)->next)
        if (strcmp((*p)->correlation, correlation) == 0) {
            struct trace *found = *p;
            *p = found->next;
            v->n_traces--;
            return found;
        }
    return NULL;
}

void visit_take_back(struct visit *t, struct server *v, struct http_req *q,
                     const struct api_who *who)
{
    visit_begin(t, v, q);
    t->who = *who;
    t->who.name = auth_name(v->auth, who->tenant);
    t->route = who->route;
    t->headed = true;
    mem_free(remove_trace(v, who->correlation));
}

/* Members that a request does not have are left out. */
static void log_end_of_call(const struct api_end *end, const struct trace *trace)
{
    struct log_event ev;

    log_begin(&ev, LOG_INFO, "access");
    log_str(&ev, "id", str_c(end->who->correlation));
    if (trace) log_str(&ev, "traceparent", str_c(trace->parent));
    log_str(&ev, "tenant", str_c(end->who->name));
    log_str(&ev, "peer", str_c(end->peer));
    log_str(&ev, "method", str_c(end->who->route < 0 ? "POST" : routes_method(end->who->route)));
    log_str(&ev, "path", str_c(end->who->route < 0 ? end->route : routes_name(end->who->route)));
    log_str(&ev, "model", str_c(end->model));
    log_int(&ev, "status", end->status);
    if (*end->code) log_str(&ev, "code", str_c(end->code));
    if (*end->finish) log_str(&ev, "finish", str_c(end->finish));
    if (*end->gone) log_str(&ev, "gone", str_c(end->gone));
    if (end->n_choices > 0) {
        log_str(&ev, "stream", end->stream ? STR("true") : STR("false"));
        if (end->n_choices > 1) log_int(&ev, "choices", end->n_choices);
        log_int(&ev, "prompt_tokens", end->prompt_tokens);
        log_int(&ev, "cached_tokens", end->cached_tokens);
        log_int(&ev, "output_tokens", end->output_tokens);
        log_ms(&ev, "admission_ms", end->admission_ms);
        log_ms(&ev, "queue_ms", end->queue_ms);
        log_ms(&ev, "dispatch_ms", end->dispatch_ms);
        log_ms(&ev, "prefill_ms", end->prefill_ms);
        log_ms(&ev, "decode_ms", end->decode_ms);
        log_ms(&ev, "first_ms", end->first_ms);
    }
    log_ms(&ev, "total_ms", end->total_ms);
    if (end->prompt.n) log_str(&ev, "prompt", end->prompt);
    log_end(&ev);
}

/* api_opt.failed. A request of which a part ran and then failed, for its deadline or for memory, was
 * not refused. */
void access_failed(void *arg, int status, const char *code, bool ran)
{
    struct server *v = arg;

    if (!ran || status < 500) refused_count(&v->refused, status, code);
}

static void add_phases(struct server *v, const struct api_end *end)
{
    const double ms[] = { end->admission_ms, end->scheduling_ms, end->dispatch_ms,
                          end->compute_ms };
    double total = 0;

    for (int i = 0; i < PHASE_TOTAL; i++) {
        hist_add(&v->phases[i], ms[i] / 1e3);
        total += ms[i];
    }
    hist_add(&v->phases[PHASE_TOTAL], total / 1e3);
}

/* Once for every request that visit_hand_over passed on, and for every job. A job has no route, and
 * counts against the limits of its tenant as requests do (submit_job); the
 * figures of requests are those of live ones. */
void access_ended(void *arg, const struct api_end *end)
{
    struct server *v = arg;
    struct trace *trace = remove_trace(v, end->who->correlation);

    if (end->who->route < 0) {
        limit_give(v->limit, end->who->tenant);
        if (v->s->access_log) log_end_of_call(end, trace);
        mem_free(trace);
        return;
    }
    if (routes_is_limited(end->who->route)) limit_give(v->limit, end->who->tenant);
    count_reply(v, end->who->route, end->status);
    recent_add(&v->recent, end);
    if (end->has_phases) add_phases(v, end);
    if (v->s->access_log) log_end_of_call(end, trace);
    mem_free(trace);
}

void access_release(struct server *v)
{
    while (v->traces) {
        struct trace *next = v->traces->next;
        mem_free(v->traces);
        v->traces = next;
    }
}
