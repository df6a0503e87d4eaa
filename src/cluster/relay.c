/* relay.c - one request on its way through the gateway.
 *
 *     place ─► send ─► head ─┬─► event stream: units are passed on as they come ─► end
 *       ▲        │           └─► anything else: collected, then sent whole ─► end
 *       │        └─ the worker failed, or refused
 *       └─ back-off ◄─┘        before the first byte: the request is sent again
 *                              in a stream: sent again with the tokens that the client has (replay)
 *
 * A worker that knows the hop protocol sends the token ids along with the text (units.h). For a replay
 * the ids of what the client has are sent to the new worker, which computes them as part of the prompt
 * and continues behind them. Event streams and streams of JSON lines are the same to the gateway.
 *
 * The body is borrowed from the request, which lives until it is answered. */
#include "api/deadline.h"
#include "api/fail.h"
#include "base/clock.h"
#include "base/jsonpeek.h"
#include "base/jsonw.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/gwjobs.h"
#include "cluster/relay_impl.h"
#include "cluster/stored.h"
#include "net/loop.h"
#include "net/sse.h"
#include "net/traceparent.h"
#include "server/settings.h"

#include <math.h>
#include <stdio.h>
#include <strings.h>
#include <time.h>

enum {
    ATTEMPTS = 8,   /* of a request before its first byte, or of a stream between two bytes */
    BACKOFF_MS = 4, /* doubled with each attempt */
    BACKOFF_MOST_MS = 500,
    WAIT_MS = 10000, /* for any usable worker */
    WAIT_STEP_MS = 20,
    SUSPECT_MS = 5000,       /* a silent worker may be slow only */
    CANCEL_BYTES = 64 << 10, /* of a body that are looked at for the id of a cancel */
    COLLECT_MAX = 4 << 20,   /* a larger reply is passed on as it comes */
    PAUSE_BYTES = 256 << 10  /* unsent bytes of a client at which reading of its worker pauses */
};

#define NDJSON "application/x-ndjson"

static void place_request(struct relay *r);
static void look_at_body(struct relay *r);

/* ---- the end ---- */

static void relay_free(struct relay *r)
{
    struct gateway *g = r->g;

    if (r->prev) r->prev->next = r->next;
    else g->relays = r->next;
    if (r->next) r->next->prev = r->prev;
    g->n_relays--;
    loop_timer_close(r->timer);
    buf_release(&r->target);
    buf_release(&r->headers);
    buf_release(&r->collected);
    units_release(&r->units);
    mem_free(r);
}

/* The worker is done with the request, or the gateway with the worker. */
static void leave_worker(struct relay *r, enum worker_result result)
{
    if (r->hop) hop_cancel(r->hop);
    r->hop = NULL;
    if (r->w) worker_done(r->w, r->key.cost, result);
    r->w = NULL;
}

/* r->q was answered. */
static void end_relay(struct relay *r, int status, const char *gone, const char *worker)
{
    struct gw_end end = { .who = &r->who,
                          .correlation = r->correlation,
                          .peer = r->peer,
                          .method = r->method,
                          .path = r->path,
                          .model = r->key.model,
                          .worker = worker,
                          .code = r->code ? r->code : "",
                          .gone = gone,
                          .trace = str_c(r->trace),
                          .status = status,
                          .attempts = r->attempts,
                          .replays = r->n_replays,
                          .n_ids = (int)r->units.ids.n,
                          .start_ns = r->start_ns };

    if (r->first_ns) end.first_ms = (double)(r->first_ns - r->start_ns) / 1e6;
    gateway_note_end(r->g, &end);
    relay_free(r);
}

/* The error event of /v1/responses has no envelope, and a number. */
static void write_response_error(struct buf *out, const struct relay *r, const char *code,
                                 const char *msg)
{
    struct jsonw w = { .out = out };

    jsonw_obj(&w);
    jsonw_key(&w, "type"), jsonw_str(&w, STR("error"));
    jsonw_key(&w, "sequence_number"), jsonw_int(&w, r->units.n_events);
    jsonw_key(&w, "code"), jsonw_str(&w, str_c(code));
    jsonw_key(&w, "message"), jsonw_str(&w, str_c(msg));
    jsonw_key(&w, "param"), jsonw_null(&w);
    jsonw_end(&w);
}

/* In the form of the client's protocol. */
static void fail_stream(struct relay *r, const struct err *e)
{
    struct fail f = fail_lookup(e->code);
    enum fail_form form = fail_form_of(str_c(r->path));
    bool response = str_ends(str_c(r->path), STR("/responses"));
    struct buf b = { 0 };

    if (response) write_response_error(&b, r, f.code, e->msg);
    else fail_write_body(&b, form, &f, e->msg, NULL, r->correlation);
    if (form == FAIL_OLLAMA) {
        buf_putc(&b, '\n');
        if (!b.failed) http_write(r->q, b.p, b.n);
    } else if (response || form == FAIL_ANTHROPIC) {
        sse_event(r->q, "error", buf_str(&b));
    } else {
        sse_data(r->q, buf_str(&b));
    }
    buf_release(&b);
    http_end(r->q);
}

/* The request ends with an error of the gateway. */
static void fail_relay(struct relay *r, const struct err *e)
{
    struct fail f = fail_lookup(e->code);
    char worker[200];
    int status = f.status;

    snprintf(worker, sizeof worker, "%s", r->w ? r->w->url : "");
    leave_worker(r, WORKER_CANCELLED);
    r->code = f.code;
    http_on_gone(r->q, NULL, NULL);
    if (!r->begun) {
        status = fail_send(r->q, e, NULL, r->correlation);
    } else if (r->streaming) {
        fail_stream(r, e);
    } else {
        http_drop(r->q, "worker lost");
        http_end(r->q);
    }
    r->q = NULL;
    end_relay(r, status, "", worker);
}

/* The client closed its connection: the worker stops when its own closes. */
static void on_gone(void *arg)
{
    struct relay *r = arg;
    char worker[200];
    const char *why = http_gone_reason(r->q);

    snprintf(worker, sizeof worker, "%s", r->w ? r->w->url : "");
    leave_worker(r, WORKER_CANCELLED);
    http_end(r->q);
    r->q = NULL;
    counter_add(&r->g->n.gone, 1);
    end_relay(r, 499, why, worker);
}

static void end_ok(struct relay *r)
{
    char worker[200];
    int status = r->status;

    snprintf(worker, sizeof worker, "%s", r->w ? r->w->url : "");
    if (r->w) worker_done(r->w, r->key.cost, WORKER_OK);
    r->w = NULL;
    r->q = NULL;
    end_relay(r, status, "", worker);
}

/* ---- attempts ---- */

static bool can_retry(const struct relay *r)
{
    return r->attempts < ATTEMPTS && !(r->deadline_ns && clock_ns() >= r->deadline_ns);
}

static void on_timer(void *arg)
{
    struct relay *r = arg;

    if (r->looks) look_at_body(r);
    else if (!r->w) place_request(r);
}

/* Exponential back-off with jitter: half to one and a half times the step. */
static void retry_later(struct relay *r)
{
    double ms = fmin(BACKOFF_MS * pow(2, r->attempts - 1), BACKOFF_MOST_MS);
    struct err e = { 0 };

    ms *= 0.5 + rng_unit(&r->g->rng);
    counter_add(&r->g->n.retries, 1);
    if (loop_timer_set(r->timer, (uint64_t)ms)) return;
    err_nomem(&e, "the timer of a request");
    fail_relay(r, &e);
}

static bool can_replay(const struct relay *r)
{
    return r->kind == RELAY_GENERATE && r->has_ids && r->key.n <= 1;
}

/* The worker failed in the middle. sent: it may have got the request. */
static void recover(struct relay *r, const char *what, bool sent)
{
    struct err e = { 0 };

    r->by_worker[r->w->index] = true;
    if (!r->cut_ns) r->cut_ns = clock_ns();
    if (r->n_lost && sent) { /* whoever counts them decides about another attempt */
        ++*r->n_lost;
        r->attempts = ATTEMPTS;
    }
    err_set(&e, E_WORKER, "the worker of this request was lost (%s)%s", what,
            r->begun && !can_replay(r) ? ", and its answer cannot be continued on another one"
                                       : "");
    e.retry_ms = 1000;
    leave_worker(r, WORKER_BROKEN);
    buf_clear(&r->headers);
    buf_clear(&r->collected);
    buf_clear(&r->units.rest);
    if (!can_retry(r) || (r->begun && !can_replay(r))) {
        if (r->begun) counter_add(&r->g->n.replay_failed, 1);
        fail_relay(r, &e);
        return;
    }
    retry_later(r);
}

/* ---- the reply of the worker ---- */

/* Headers of one hop, and those that the gateway sets itself. */
static bool is_own_header(struct str name)
{
    static const char *const own[] = { "date",           "connection",       "transfer-encoding",
                                       "content-length", "x-correlation-id", "x-request-id",
                                       "keep-alive",     "content-type",     "traceparent",
                                       "x-tern-ids" };

    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (name.n == strlen(own[i]) && strncasecmp(name.p, own[i], name.n) == 0) return true;
    return false;
}

static bool is_name(struct str name, const char *want)
{
    return name.n == strlen(want) && strncasecmp(name.p, want, name.n) == 0;
}

static void on_header(void *arg, struct str name, struct str value)
{
    struct relay *r = arg;

    if (is_name(name, "content-type")) snprintf(r->type, sizeof r->type, "%.*s", STR_ARG(value));
    if (is_name(name, "x-tern-ids")) r->has_ids = true;
    if (!is_own_header(name))
        buf_printf(&r->headers, "%.*s: %.*s\n", STR_ARG(name), STR_ARG(value));
}

/* Before the head of the reply is sent. */
static void pass_headers(struct relay *r)
{
    struct str rest = buf_str(&r->headers);
    char name[128], value[2048];

    while (rest.n) {
        ptrdiff_t lf = str_find(rest, STR("\n")), colon = str_find(rest, STR(": "));
        if (lf < 0 || colon < 0 || colon > lf) break;
        snprintf(name, sizeof name, "%.*s", (int)colon, rest.p);
        snprintf(value, sizeof value, "%.*s", (int)(lf - colon - 2), rest.p + colon + 2);
        http_set_header(r->q, name, value);
        rest = str_skip(rest, (size_t)lf + 1);
    }
    http_set_header(r->q, "traceparent", r->trace);
}

static bool begin_reply(struct relay *r)
{
    struct err e = { 0 };

    pass_headers(r);
    if (!http_begin(r->q, r->status, r->type[0] ? r->type : "application/json")) {
        err_nomem(&e, "the head of a reply");
        fail_relay(r, &e);
        return false;
    }
    r->begun = true;
    return true;
}

/* Does the worker need the model that the request names, or, if it names none, any? */
static bool needs_model(const struct relay *r)
{
    return r->kind == RELAY_GENERATE || r->kind == RELAY_JOB;
}

/* Another worker may do better: this one is full, leaves, or has lost its engine. */
static bool is_retryable(const struct relay *r)
{
    if (r->kind == RELAY_CANCEL) return r->status == 404;
    if (relay_is_once(r)) return false;
    return r->status == 503 || r->status == 502 || r->status == 429;
}

static void on_head(void *arg, int status, bool sse)
{
    struct relay *r = arg;
    uint64_t now = clock_ns();

    worker_note_seen(r->w);
    r->status = status;
    r->streams = (sse || str_starts(str_c(r->type), STR(NDJSON))) && status == 200;
    if (!r->first_ns) {
        r->first_ns = now;
        hist_add(&r->g->n.first_ms, (double)(now - r->start_ns) / 1e6);
    }
    if (r->streams && !r->begun) {
        r->streaming = true;
        begin_reply(r);
    }
}

/* Bytes for the client. After them the attempts count anew. */
static void pass_bytes(struct relay *r, struct str bytes)
{
    if (!bytes.n) return;
    if (r->cut_ns) {
        hist_add(&r->g->n.pause_ms, (double)(clock_ns() - r->cut_ns) / 1e6);
        r->cut_ns = 0;
        r->attempts = 1;
        memset(r->by_worker, 0, sizeof r->by_worker);
    }
    http_write(r->q, bytes.p, bytes.n);
    if (http_unsent(r->q) > PAUSE_BYTES && r->hop) hop_pause(r->hop, true);
}

/* units_fn: a unit for the client, or a ping of a worker that still computes. */
static void pass_unit(void *arg, struct str bytes, bool ping)
{
    struct relay *r = arg;

    if (ping) http_write(r->q, bytes.p, bytes.n);
    else pass_bytes(r, bytes);
}

static void pass_stream(struct relay *r, struct str bytes)
{
    if (r->has_ids) units_push(&r->units, bytes, pass_unit, r);
    else pass_bytes(r, bytes);
}

static void on_data(void *arg, struct str bytes)
{
    struct relay *r = arg;
    struct err e = { 0 };

    worker_note_seen(r->w);
    if (r->streams && r->streaming) {
        pass_stream(r, bytes);
    } else if (r->begun && !r->streaming) {
        pass_bytes(r, bytes);
    } else {
        buf_put_str(&r->collected, bytes);
        if (r->collected.n > COLLECT_MAX && !r->begun && !is_retryable(r)) {
            if (!begin_reply(r)) return;
            pass_bytes(r, buf_str(&r->collected));
            buf_release(&r->collected);
        }
    }
    if (units_failed(&r->units) || r->collected.failed) {
        err_nomem(&e, "a reply");
        fail_relay(r, &e);
    }
}

/* http_on_sent: the slow client has read. */
static void on_sent(void *arg)
{
    struct relay *r = arg;

    if (r->hop) hop_pause(r->hop, false);
}

/* Could another worker take it? One that is silent since a moment may be slow only: it counts where
 * this one leaves, or has lost its engine. */
static bool has_untried(const struct relay *r)
{
    uint64_t now = clock_ns();

    for (int i = 0; i < fleet_n(r->g->fleet); i++) {
        const struct worker *o = fleet_at(r->g->fleet, i);
        if (!o || r->by_worker[i]) continue;
        if (o->state == WORKER_READY) return true;
        if (r->status == 503 && o->state == WORKER_FAILED && o->suspect &&
            now - o->failed_ns < SUSPECT_MS * MS)
            return true;
    }
    return false;
}

/* The worker lives, but the process of its model died with the request. */
static bool says_lost(const struct relay *r)
{
    return r->status == 503 && str_find(buf_str(&r->collected), STR("\"worker_lost\"")) >= 0;
}

/* A whole reply that could come from another worker, too. true: the request goes there. */
static bool try_another(struct relay *r)
{
    bool busy = r->status == 429;

    if (!is_retryable(r) || !can_retry(r)) return false;
    if (r->n_lost && says_lost(r)) {
        ++*r->n_lost;
        return false;
    }
    r->by_worker[r->w->index] = true;
    if (!has_untried(r)) return false;
    worker_done(r->w, r->key.cost, busy ? WORKER_BUSY : WORKER_OK);
    r->w = NULL;
    buf_clear(&r->headers);
    buf_clear(&r->collected);
    retry_later(r);
    return true;
}

static void end_stream(struct relay *r)
{
    pass_bytes(r, buf_str(&r->units.rest));
    http_on_gone(r->q, NULL, NULL);
    http_on_sent(r->q, NULL, NULL);
    http_end(r->q);
    end_ok(r);
}

static void end_whole(struct relay *r)
{
    http_on_gone(r->q, NULL, NULL);
    if (r->begun) {
        http_end(r->q);
    } else {
        pass_headers(r);
        r->status = http_reply(r->q, r->status, r->type[0] ? r->type : "application/json",
                               r->collected.p, r->collected.n);
    }
    end_ok(r);
}

static void on_end(void *arg, enum hop_end end)
{
    struct relay *r = arg;

    r->hop = NULL;
    if (end != HOP_DONE) {
        worker_note_lost(r->w, end);
        if (relay_is_once(r) && end != HOP_CONNECT) r->attempts = ATTEMPTS;
        recover(r,
                end == HOP_CONNECT ? "no connection"
                : end == HOP_CUT   ? "its connection closed"
                                   : hop_end_name(end),
                end != HOP_CONNECT);
        return;
    }
    if (r->streaming && r->streams) end_stream(r);
    else if (r->begun && r->streaming) recover(r, "it refused to continue the stream", true);
    else if (!try_another(r)) end_whole(r);
}

static const struct hop_ops relay_ops = { on_header, on_head, on_data, on_end };

/* ---- placing ---- */

static void send_request(struct relay *r)
{
    struct err e = { 0 };

    if (relay_send(r, &relay_ops)) return;
    err_nomem(&e, "a request to a worker");
    fail_relay(r, &e);
}

/* No worker is usable now. */
static void wait_for_worker(struct relay *r, bool known)
{
    struct err e = { 0 };
    uint64_t now = clock_ns();
    bool any_ready = false;

    for (int i = 0; i < fleet_n(r->g->fleet); i++) {
        struct worker *w = fleet_at(r->g->fleet, i);
        any_ready |= w && (w->state == WORKER_READY || w->state == WORKER_DRAINING);
    }
    if (!r->wait_ns) r->wait_ns = now;
    memset(r->by_worker, 0, sizeof r->by_worker);
    if (!known && any_ready) {
        err_set(&e, E_NOTFOUND,
                "model '%s' not found; GET /v1/models lists the models of all workers",
                r->key.model);
    } else if (r->deadline_ns && now >= r->deadline_ns) {
        err_set(&e, E_DEADLINE, "the deadline passed while no worker could take the request");
    } else if (now - r->wait_ns >= WAIT_MS * MS) {
        counter_add(&r->g->n.no_worker, 1);
        err_set(&e, E_WORKER,
                "no worker can take the request: %d are known, GET /status lists them",
                fleet_n(r->g->fleet));
        e.retry_ms = 1000;
    } else if (loop_timer_set(r->timer, WAIT_STEP_MS)) {
        return;
    } else {
        err_nomem(&e, "the timer of a request");
    }
    fail_relay(r, &e);
}

/* Nobody stands in for the worker whose store it is: a request waits for it, then fails. */
static void wait_for_keeper(struct relay *r, const struct worker *keeper)
{
    struct err e = { 0 };
    uint64_t now = clock_ns();

    if (!r->wait_ns) r->wait_ns = now;
    memset(r->by_worker, 0, sizeof r->by_worker);
    if (!keeper) {
        err_set(&e, E_STORE,
                "no worker stores files, batches or durable requests: start one with --data-dir");
    } else if (now - r->wait_ns >= WAIT_MS * MS) {
        counter_add(&r->g->n.no_worker, 1);
        err_set(&e, E_WORKER,
                "the worker that stores files, batches and durable requests (%s) is %s",
                keeper->url, worker_state_name(keeper->state));
        e.retry_ms = 1000;
    } else if (loop_timer_set(r->timer, WAIT_STEP_MS)) {
        return;
    } else {
        err_nomem(&e, "the timer of a request");
    }
    fail_relay(r, &e);
}

/* The worker of RELAY_STORE; NULL: the request waits or has failed. */
static struct worker *take_keeper(struct relay *r, const struct fleet_job *job)
{
    struct worker *w = stored_work_keeper(r->g->fleet);
    bool is_up = w && (w->state == WORKER_READY || w->state == WORKER_DRAINING);

    if (!is_up || r->by_worker[w->index]) {
        wait_for_keeper(r, w);
        return NULL;
    }
    fleet_take(r->g->fleet, w, job);
    return w;
}

static void place_request(struct relay *r)
{
    struct fleet_job job = { .model = str_c(r->key.model),
                             .cost = r->key.cost,
                             .hashes = r->key.hashes,
                             .n_hashes = r->key.n_hashes,
                             .block_tokens = r->key.block_tokens,
                             .tenant = r->name,
                             .tried = (const unsigned char *)r->by_worker,
                             .any_model =
                                 r->kind == RELAY_CANCEL || (!needs_model(r) && !r->key.model[0]) };
    bool by_prefix = false, known = false;

    r->w = NULL;
    if (r->kind == RELAY_STORE) {
        struct worker *w = take_keeper(r, &job);
        if (!w) return; /* r may be gone */
        r->w = w;
        send_request(r);
        return;
    }
    if ((r->w = stored_keeper(r->g->fleet, r->g->affinity, r->stored, r->by_worker)))
        fleet_take(r->g->fleet, r->w, &job);
    else r->w = fleet_place(r->g->fleet, &job, &by_prefix, &known);
    if (!r->w) {
        wait_for_worker(r, known);
        return;
    }
    r->wait_ns = 0;
    stored_note(r->g->affinity, r->path, r->call, r->w->index);
    counter_add(&r->g->n.placed, 1);
    if (by_prefix) counter_add(&r->g->n.by_prefix, 1);
    if (!r->attempts) hist_add(&r->g->n.place_us, (double)(clock_ns() - r->start_ns) / 1e3);
    send_request(r);
}

/* ---- workers that fail ---- */

/* Is there another worker that could take it? */
static bool has_other(struct gateway *g, const struct relay *r)
{
    for (int i = 0; i < fleet_n(g->fleet); i++) {
        struct worker *w = fleet_at(g->fleet, i);
        if (w && w != r->w && w->state == WORKER_READY &&
            (!needs_model(r) || worker_model(w, str_c(r->key.model))))
            return true;
    }
    return false;
}

/* The worker has been silent for stall_ms, since it failed or since its last byte. */
static void move_if_stalled(struct relay *r)
{
    struct worker *w = r->w;
    uint64_t now = clock_ns(), since = w->seen_ns;

    if (w->state != WORKER_FAILED && !(w->state == WORKER_GONE && w->suspect)) return;
    if (!has_other(r->g, r)) return;
    if (relay_is_once(r) || (r->begun && !can_replay(r))) return;
    if (w->suspect && now - since < (uint64_t)r->g->s->stall_ms * MS) return;
    recover(r, w->why, true);
}

void relay_worker_lost(struct gateway *g, struct worker *w)
{
    for (struct relay *r = g->relays, *next; r; r = next) {
        next = r->next;
        if (r->w == w && r->hop) move_if_stalled(r);
    }
}

/* A worker may be ready for those that wait; those on a silent worker may have waited enough. */
void relay_workers_changed(struct gateway *g)
{
    for (struct relay *r = g->relays, *next; r; r = next) {
        next = r->next;
        if (!r->w && r->wait_ns) place_request(r);
        else if (r->w && r->hop) move_if_stalled(r);
    }
}

int relay_count_waiting(struct gateway *g, const char *model)
{
    int n = 0;

    for (struct relay *r = g->relays; r; r = r->next)
        n += !r->w && r->wait_ns && strcmp(r->key.model, model) == 0;
    return n;
}

struct worker *relay_find(struct gateway *g, struct str id)
{
    for (struct relay *r = g->relays; r; r = r->next)
        if (r->w && (str_is(id, r->correlation) || str_ends(id, str_c(r->call)))) return r->w;
    return NULL;
}

void relay_abort_all(struct gateway *g)
{
    struct err e = { 0 };

    err_set(&e, E_SHUTDOWN, "the gateway is shutting down");
    while (g->relays) fail_relay(g->relays, &e);
}

/* ---- the beginning ---- */

static void copy_str(char *out, size_t cap, struct str s)
{
    snprintf(out, cap, "%.*s", (int)(s.n < cap - 1 ? s.n : cap - 1), s.p ? s.p : "");
}

/* The deadline of the headers; that of the body is the worker's. */
static void read_deadline(struct relay *r)
{
    struct str at = http_header(r->q, "X-Deadline"),
               seconds = http_header(r->q, "x-stainless-timeout");
    int64_t ms;
    double s;

    if (at.p && deadline_parse(at, &ms)) {
        ms -= relay_epoch_ms();
        r->deadline_ns = clock_ns() + (ms > 0 ? (uint64_t)ms * MS : 0);
    } else if (seconds.p && str_to_f64(seconds, &s) && s >= 0 && s < 1e8) {
        r->deadline_ns = r->start_ns + (uint64_t)(fmax(s, 1) * 1e9);
    }
}

static void make_call_id(struct relay *r)
{
    static const char letters[] =
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ01";

    for (int i = 0; i < CALL_BYTES; i++) r->call[i] = letters[rng_u64(&r->g->rng) >> 58];
    r->created = time(NULL);
    r->seed = rng_u64(&r->g->rng) >> 1;
}

/* The id that a cancel is about. */
static struct worker *find_cancelled(struct relay *r)
{
    struct str path = http_path(r->q), prefix = STR("/v1/requests/"), end = STR("/cancel");
    struct buf id = { 0 };
    struct worker *w = NULL;

    if (str_starts(path, prefix) && path.n > prefix.n + end.n)
        buf_add(&id, path.p + prefix.n, path.n - prefix.n - end.n);
    else jsonpeek_text(str_take(r->body, CANCEL_BYTES), "id", &id);
    if (id.n && !id.failed) w = relay_find(r->g, buf_str(&id));
    buf_release(&id);
    return w;
}

static struct relay *open_relay(struct gateway *g, struct http_req *q, const struct gw_who *who,
                                enum relay_kind kind)
{
    struct relay *r = mem_new(struct relay);
    struct str trace = http_header(q, "traceparent");

    if (!r) return NULL;
    r->g = g;
    r->q = q;
    r->kind = kind;
    r->who = *who;
    copy_str(r->name, sizeof r->name, str_c(who->name));
    r->who.name = r->name;
    copy_str(r->correlation, sizeof r->correlation, str_c(http_id(q)));
    copy_str(r->peer, sizeof r->peer, str_c(http_peer(q)));
    copy_str(r->path, sizeof r->path, http_path(q));
    copy_str(r->method, sizeof r->method, http_method_name(q));
    traceparent_take(r->trace, trace, &g->rng);
    r->start_ns = http_start_ns(q);
    r->body = http_body(q);
    r->timer = loop_timer(g->loop, on_timer, r);
    r->next = g->relays;
    if (g->relays) g->relays->prev = r;
    g->relays = r;
    g->n_relays++;
    hop_write_target(&r->target, http_path(q), http_query(q));
    if (r->timer && !r->target.failed) return r;
    relay_free(r);
    return NULL;
}

/* The body has "durable": true. true: the request is not this relay's any more. */
static bool store_request(struct relay *r, struct str value)
{
    struct gateway *g = r->g;
    struct str path = str_c(r->path);
    struct http_req *q = r->q;

    if (r->own_body) {
        memcpy(r->own_body + (value.p - r->body.p), "null", 4);
    } else if (g->jobs && gwjobs_takes(path)) {
        bool streams = promptlook_streams(&r->look);
        http_on_gone(q, NULL, NULL);
        http_on_sent(q, NULL, NULL);
        gwjobs_post(g->jobs, q, &r->who, streams);
        relay_free(r);
        return true;
    } else if (stored_can_be_durable(path)) {
        r->kind = RELAY_STORE;
    }
    return false;
}

/* A piece of the body. true: it was the last one. */
static bool look_at_piece(struct relay *r)
{
    size_t before = r->look.scan.at, n;
    bool last = promptlook_step(&r->look);

    n = r->look.scan.at - before;
    counter_add(&r->g->n.looks, 1);
    counter_add(&r->g->n.looked_bytes, n);
    if (n > r->g->n.look_most) r->g->n.look_most = n;
    return last;
}

/* A long body is looked at in pieces, between which other requests have their turns. */
static void look_at_body(struct relay *r)
{
    struct str durable;

    while ((r->looks = !look_at_piece(r)))
        if (loop_timer_set(r->timer, 0)) return;
    durable = promptlook_durable(&r->look);
    if (durable.p && strcmp(r->method, "POST") == 0 && store_request(r, durable)) return;
    r->stored = stored_key(http_path(r->q), promptlook_previous(&r->look));
    if (r->kind != RELAY_CANCEL) promptkey_make(r->g->keys, &r->look, 0, &r->key);
    place_request(r);
}

static void begin_relay(struct gateway *g, struct http_req *q, const struct gw_who *who,
                        enum relay_kind kind, char *own_body, int *n_lost)
{
    struct relay *r = open_relay(g, q, who, kind);
    struct worker *w;

    if (!r) {
        struct gw_end end = { .who = who,
                              .correlation = "",
                              .peer = "",
                              .method = "",
                              .path = "",
                              .model = "",
                              .worker = "",
                              .code = "memory_admission",
                              .gone = "",
                              .status = http_reply_nomem(q) };
        gateway_note_end(g, &end);
        return;
    }
    r->own_body = own_body;
    r->n_lost = n_lost;
    r->key.n = 1;
    r->key.cost = 1;
    read_deadline(r);
    make_call_id(r);
    http_on_gone(q, on_gone, r);
    http_on_sent(q, on_sent, r);
    promptlook_begin(&r->look, r->body);
    if (kind == RELAY_CANCEL && (w = find_cancelled(r))) {
        struct fleet_job job = { .cost = 1 };
        r->w = w;
        fleet_take(g->fleet, w, &job);
        send_request(r);
        return;
    }
    look_at_body(r);
}

void relay_begin(struct gateway *g, struct http_req *q, const struct gw_who *who,
                 enum relay_kind kind)
{
    begin_relay(g, q, who, kind, NULL, NULL);
}

void relay_begin_job(struct gateway *g, struct http_req *q, const struct gw_who *who, char *body,
                     int *n_lost)
{
    begin_relay(g, q, who, RELAY_JOB, body, n_lost);
}
