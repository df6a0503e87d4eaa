/* load_job.c - a request's life: load_job_start sends it; on_sent stamps the time; on_event counts
 * content events; on_stream_done or a timer ends it. A planned cancel runs beside it on a second
 * connection, as a separate client would send it; the request is judged when both have ended.
 *
 * Times are taken from the monotonic clock as late as possible before a write and as early as
 * possible after a read. */
#include "loadtest/load_job.h"

#include "base/clock.h"
#include "base/jsonr.h"
#include "base/mem.h"

#include <jansson.h>
#include <stdio.h>

/* After a failed request the next one waits, so that a server that refuses all is not flooded. */
#define PAUSE_AFTER_FAILURE_MS 50

struct load_job {
    struct load_target *target;
    const struct load_plan *plan;
    const struct load_job_calls *calls;
    void *arg;
    struct load_client *client, *canceller;
    struct event *abort_timer, *timeout;

    /* The current request. */
    struct load_request req;
    struct load_rec rec;
    uint64_t start_ns, sent_ns, last_ns, cancel_ns; /* 0: not yet */
    bool streaming, cancelling; /* the request, the cancel request: in progress */
    bool done_marker;           /* "[DONE]" has arrived */
    bool cancel_answered;       /* with success */
    enum load_end end;
    size_t n_missed;
    char id[80];   /* the server's name for it, or our correlation id */
    char fail[80]; /* an error inside the stream */
};

static const char no_memory[] = "out of memory in the load tester";

static double ms_between(uint64_t a, uint64_t b) { return (double)(b - a) / 1e6; }

bool load_job_counted(const struct load_job *j) { return j->req.index >= 0; }
size_t load_job_missed(const struct load_job *j) { return j->n_missed; }

/* ---- the end of a request ---- */

static void end_request(struct load_job *j, enum load_outcome outcome, const char *kind,
                        int pause_ms)
{
    evtimer_del(j->abort_timer);
    evtimer_del(j->timeout);
    j->rec.outcome = outcome;
    j->streaming = j->cancelling = false;
    j->calls->ended(j->arg, &j->rec, kind, pause_ms);
}

/* Leaves the request without waiting for its end. */
static void drop_connections(struct load_job *j, bool reset)
{
    if (j->streaming) load_client_abort(j->client, reset);
    if (j->cancelling) load_client_abort(j->canceller, false);
}

/* "429 queue_full" from the error object; status 0: the error came inside a stream. */
static void format_error_kind(char *out, size_t cap, int status, json_t *root)
{
    json_t *error = json_object_get(root, "error"), *code = json_object_get(error, "code");
    const char *word = json_string_value(code);

    if (!word) word = json_string_value(json_object_get(error, "type"));
    if (status) snprintf(out, cap, "%d%s%.40s", status, word ? " " : "", word ? word : "");
    else snprintf(out, cap, "in the stream: %.40s", word ? word : "error");
}

/* The server's own token counts, where it sends them; events are counted otherwise. */
static void read_usage(struct load_job *j, json_t *root)
{
    json_t *usage = json_object_get(root, "usage");

    if (!json_is_object(usage)) return;
    j->rec.n_in = (int)json_integer_value(json_object_get(usage, "prompt_tokens"));
    j->rec.n_out = (int)json_integer_value(json_object_get(usage, "completion_tokens"));
}

/* A reply that is not a stream. kind stays "" if it is a completion. */
static void read_reply(struct load_job *j, const struct load_http *h, char *kind, size_t cap)
{
    json_t *root = jsonr_load(buf_str(&h->body), JSON_ALLOW_NUL, NULL);

    if (h->status != 200) format_error_kind(kind, cap, h->status, root);
    else if (!json_is_array(json_object_get(root, "choices")))
        snprintf(kind, cap, "not a completion");
    else read_usage(j, root);
    json_decref(root);
}

/* Fills kind with the kind of failure, "" for none. */
static void find_failure(struct load_job *j, char *kind, size_t cap)
{
    const struct load_http *h = load_client_reply(j->client);

    kind[0] = 0;
    if (j->end == LOAD_END_CONNECT) snprintf(kind, cap, "connect");
    else if (j->end == LOAD_END_NOMEM) snprintf(kind, cap, "%s", no_memory);
    else if (j->end == LOAD_END_BAD) snprintf(kind, cap, "bad HTTP: %.60s", h->why);
    else if (j->end == LOAD_END_TRUNCATED)
        snprintf(kind, cap, h->any ? "truncated stream" : "closed without a reply");
    else if (!h->sse) read_reply(j, h, kind, cap);
    else if (*j->fail) snprintf(kind, cap, "%s", j->fail);
    else if (!j->done_marker) snprintf(kind, cap, "truncated stream");
}

/* Request and cancel have both ended. A cancelled request counts as cancelled if it did not run to
 * its full length. */
static void judge_request(struct load_job *j)
{
    char kind[80];
    bool cancelled;

    find_failure(j, kind, sizeof kind);
    if (!j->rec.n_out) j->rec.n_out = j->rec.n_events;
    cancelled = j->cancel_ns && (*kind || j->rec.n_out < j->req.n_output);
    if (!cancelled) j->rec.cancel_ms = 0;
    if (cancelled) end_request(j, LOAD_CANCELLED, "", 0);
    else if (*kind) end_request(j, LOAD_FAILED, kind, PAUSE_AFTER_FAILURE_MS);
    else end_request(j, LOAD_OK, "", 0);
}

/* The reply has ended, well or not; a cancel in progress decides when the request is judged. */
static void on_stream_done(void *arg, enum load_end how)
{
    struct load_job *j = arg;
    uint64_t now = clock_ns();

    j->streaming = false;
    j->end = how;
    if (j->sent_ns) j->rec.e2e_ms = ms_between(j->sent_ns, now);
    if (j->cancel_ns) j->rec.cancel_ms = ms_between(j->cancel_ns, now);
    if (!j->cancelling) judge_request(j);
}

/* ---- aborting a request ---- */

/* Any status but success means that the server did not know the request any more. */
static void on_cancel_done(void *arg, enum load_end how)
{
    struct load_job *j = arg;
    int status = how == LOAD_END_REPLY ? load_client_reply(j->canceller)->status : 0;

    j->cancelling = false;
    if (status == 200 || status == 202 || status == 204) j->cancel_answered = true;
    else j->n_missed++;
    if (!j->streaming) judge_request(j);
}

/* By the x-request-id header, or the id in the stream, or our correlation id if neither has come. */
static void send_cancel(struct load_job *j)
{
    const struct load_http *h = load_client_reply(j->client);
    char path[160];

    if (*h->request_id) snprintf(j->id, sizeof j->id, "%s", h->request_id);
    snprintf(path, sizeof path, "/v1/requests/%s/cancel", j->id);
    j->cancel_ns = clock_ns();
    j->cancelling = true;
    load_client_send(j->canceller, path, "", STR("{}"));
}

/* Carries the planned abort out. */
static void abort_request(struct load_job *j)
{
    enum load_abort how = j->req.abort;

    evtimer_del(j->abort_timer);
    j->req.abort = ABORT_NONE;
    if (how == ABORT_CANCEL) {
        send_cancel(j);
        return;
    }
    drop_connections(j, how == ABORT_RESET);
    if (!j->rec.n_out) j->rec.n_out = j->rec.n_events;
    end_request(j, LOAD_DISCONNECTED, "", 0);
}

static void on_abort_time(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    abort_request(arg);
}

/* --timeout: the request took too long in all. */
static void on_timeout(evutil_socket_t fd, short what, void *arg)
{
    struct load_job *j = arg;

    (void)fd, (void)what;
    drop_connections(j, false);
    end_request(j, LOAD_FAILED, "timeout", 0);
}

/* ---- the stream ---- */

/* A request whose timer finds no memory runs to its end: it is just not aborted. */
static void on_sent(void *arg)
{
    struct load_job *j = arg;
    uint64_t now = clock_ns();

    if (!j->sent_ns) {
        if (!load_client_reused(j->client)) j->rec.connect_ms = ms_between(j->start_ns, now);
        if (j->req.abort != ABORT_NONE && !j->req.abort_events)
            load_arm(j->abort_timer, j->req.abort_ms);
    }
    j->sent_ns = now;
}

/* A content event is what users see as "a token": the gaps between them are the inter-token
 * latency. */
static void count_content(struct load_job *j)
{
    uint64_t now = clock_ns();
    double gap = -1;

    if (j->rec.n_events++ == 0) {
        j->rec.ttft_ms = ms_between(j->sent_ns, now);
    } else {
        gap = ms_between(j->last_ns, now);
        j->rec.gap_sum_ms += gap;
        if (gap > j->rec.gap_max_ms) j->rec.gap_max_ms = gap;
    }
    j->last_ns = now;
    j->rec.n_late += j->cancel_answered;
    j->calls->token(j->arg, now, gap, load_job_counted(j));
    if (j->req.abort != ABORT_NONE && j->req.abort_events && j->rec.n_events >= j->req.abort_events)
        abort_request(j);
}

/* Does the chunk carry text? Role and finish chunks do not. */
static bool has_text(json_t *choice)
{
    json_t *delta = json_object_get(choice, "delta");
    const char *s = json_string_value(json_object_get(choice, "text"));

    if (!s || !*s) s = json_string_value(json_object_get(delta, "content"));
    if (!s || !*s) s = json_string_value(json_object_get(delta, "reasoning_content"));
    return s && *s;
}

static void on_event(void *arg, struct str data)
{
    struct load_job *j = arg;
    json_error_t why = { 0 };
    json_t *root, *id;

    if (str_is(data, "[DONE]")) {
        j->done_marker = true;
        return;
    }
    root = jsonr_load(data, JSON_ALLOW_NUL, &why);
    if (!root && json_error_code(&why) == json_error_out_of_memory) {
        snprintf(j->fail, sizeof j->fail, "%s", no_memory);
    } else if (!json_is_object(root)) {
        if (!*j->fail) snprintf(j->fail, sizeof j->fail, "in the stream: not JSON");
    } else if (json_object_get(root, "error")) {
        if (!*j->fail) format_error_kind(j->fail, sizeof j->fail, 0, root);
    } else {
        id = json_object_get(root, "id");
        if (json_is_string(id)) snprintf(j->id, sizeof j->id, "%.79s", json_string_value(id));
        read_usage(j, root);
        if (has_text(json_array_get(json_object_get(root, "choices"), 0))) count_content(j);
    }
    json_decref(root);
}

/* X-Correlation-Id and, if there is a deadline, X-Deadline in Unix milliseconds. */
static void format_headers(const struct load_job *j, char *out, size_t cap)
{
    const struct load_plan *p = j->plan;
    int n = snprintf(out, cap, "X-Correlation-Id: %s\r\n", j->id);
    struct timespec wall;

    if (!p->deadline_ms) return;
    clock_gettime(CLOCK_REALTIME, &wall);
    snprintf(out + n, cap - (size_t)n, "X-Deadline: %lld\r\n",
             (long long)wall.tv_sec * 1000 + wall.tv_nsec / 1000000 + p->deadline_ms);
}

void load_job_start(struct load_job *j, int64_t index)
{
    const struct load_plan *p = j->plan;
    char headers[200];
    bool ok = load_plan_make(p, index, &j->req, NULL) == OK;

    j->rec = (struct load_rec){ .n_in = j->req.n_prompt + (j->req.shared ? p->n_shared : 0) };
    j->sent_ns = j->last_ns = j->cancel_ns = 0;
    j->done_marker = j->cancel_answered = j->cancelling = false;
    j->fail[0] = 0;
    if (p->no_keep_alive) load_client_disconnect(j->client);
    snprintf(j->id, sizeof j->id, "load-%llx-%lld", (unsigned long long)p->tag, (long long)index);
    format_headers(j, headers, sizeof headers);
    j->start_ns = clock_ns();
    if (ok && p->timeout_ms) ok = load_arm(j->timeout, p->timeout_ms);
    if (!ok) {
        end_request(j, LOAD_FAILED, no_memory, PAUSE_AFTER_FAILURE_MS);
        return;
    }
    j->streaming = true;
    load_client_send(j->client, p->completions ? "/v1/completions" : "/v1/chat/completions",
                     headers, buf_str(&j->req.body));
}

struct load_job *load_job_open(struct load_target *t, const struct load_plan *p,
                               const struct load_job_calls *calls, void *arg)
{
    static const struct load_calls request_calls = { on_sent, on_event, on_stream_done };
    static const struct load_calls cancel_calls = { .done = on_cancel_done };
    struct load_job *j = mem_new(struct load_job);

    if (!j) return NULL;
    j->target = t;
    j->plan = p;
    j->calls = calls;
    j->arg = arg;
    j->client = load_client_open(t, &request_calls, j);
    j->canceller = load_client_open(t, &cancel_calls, j);
    j->abort_timer = evtimer_new(t->base, on_abort_time, j);
    j->timeout = evtimer_new(t->base, on_timeout, j);
    if (j->client && j->canceller && j->abort_timer && j->timeout) return j;
    load_job_close(j);
    return NULL;
}

void load_job_close(struct load_job *j)
{
    if (!j) return;
    if (j->abort_timer) event_free(j->abort_timer);
    if (j->timeout) event_free(j->timeout);
    load_client_close(j->client);
    load_client_close(j->canceller);
    buf_release(&j->req.body);
    mem_free(j);
}
