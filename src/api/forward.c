/* forward.c - the API's part of calls that another process answers. See forward.h. */
#include "api/call.h"

#include "api/fail.h"
#include "base/clock.h"
#include "base/jsonpeek.h"
#include "base/log.h"
#include "net/http.h"
#include "net/loop.h"
#include "net/sse.h"
#include "pool/pool.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>

enum {
    SOON_MS = 10000,     /* a restart that is further away is not waited for */
    RETRY_LOOK_MS = 20,  /* interval of looking for a model that is being restarted */
    RETRY_MAX_MS = 60000 /* a call without a deadline waits for so long */
};

static struct call *call_of(struct forward *f)
{
    return (struct call *)((char *)f - offsetof(struct call, fw));
}

static const struct forward_ops *ops_of(const struct call *c) { return c->api->opt.forward; }

/* ---- on a request thread ---- */

enum { PEEK_MODEL, PEEK_KEEP_ALIVE, PEEK_TTL, N_PEEK };

/* How long the model stays after the call. Of two fields the later in the table of params.c wins, and a
 * wrong one is refused by the other process. */
static int64_t keep_of(const struct jsonpeek_member *m)
{
    int64_t ms = POOL_KEEP_DEFAULT;

    for (int i = PEEK_KEEP_ALIVE; i <= PEEK_TTL; i++)
        if (m[i].found == JSONPEEK_FOUND) params_parse_keep(m[i].value, m[i].is_text, &ms);
    return ms;
}

/* The model that the body names is READY and runs elsewhere. Only its name, and how long it stays, are
 * read: everything else is the business of the other process. */
bool forward_claims(struct call *c)
{
    struct jsonpeek_member m[N_PEEK] = { { .key = "model" },
                                         { .key = "keep_alive" },
                                         { .key = "ttl" } };
    bool claims = false;

    if (!ops_of(c) || c->local) return false;
    if (c->model) return c->fw.on = !c->model->engine; /* it has waited for its model */
    jsonpeek_members(c->body, m, N_PEEK);
    if (m[PEEK_MODEL].found == JSONPEEK_UNKNOWN) return c->fw.on = false;
    if (m[PEEK_MODEL].found == JSONPEEK_ABSENT || !m[PEEK_MODEL].is_text)
        m[PEEK_MODEL].value = STR("");
    if (pool_find(c->api->opt.pool, m[PEEK_MODEL].value, &c->model, NULL) == OK) {
        claims = !c->model->engine;
        if (claims) pool_touch(c->model, keep_of(m));
        else pool_release(c->model), c->model = NULL;
    }
    return c->fw.on = claims;
}

static bool comes_soon(const struct err *e) { return e->retry_ms > 0 && e->retry_ms <= SOON_MS; }

bool forward_can_wait(struct call *c, const struct err *e)
{
    int i = pool_index(c->api->opt.pool, c->p.model);

    if (!ops_of(c) || i < 0 || !comes_soon(e)) return false;
    c->model_id = pool_at(c->api->opt.pool, i)->id;
    return c->fw.on = true;
}

/* ---- beginning ---- */

/* Until forward_on_retry finds the model. */
static int wait_for_process(struct call *c, struct err *e)
{
    if (!loop_timer_set(c->api->retry, RETRY_LOOK_MS)) return err_nomem(e, "a timer");
    c->fw.lost = true;
    c->fw.lost_ns = clock_ns();
    return OK;
}

/* The body and the headers are still those of the HTTP request. */
int forward_start(struct call *c, struct err *e)
{
    struct forward *f = &c->fw;
    int rc;

    if (!c->model) return wait_for_process(c, e);
    f->q = c->q;
    f->who = &c->who;
    f->path = c->route;
    f->id = c->id;
    f->model = c->model;
    f->start_ns = c->start_ns;
    f->on = true;
    f->begun = false;
    c->model_id = c->model->id;
    rc = ops_of(c)->begin(f, e);
    if (rc != E_WORKER || f->lost) return rc;
    pool_release(c->model); /* it died just now: the pool has not noticed it yet */
    c->model = NULL;
    return wait_for_process(c, e);
}

/* ---- the answer ---- */

/* From here on the request cannot be repeated: its body is not needed any more. */
static void note_told(struct call *c)
{
    if (c->fw.told) return;
    c->fw.told = true;
    http_release_body(c->q);
}

bool forward_has_head(const struct forward *f)
{
    return ((const struct call *)((const char *)f - offsetof(struct call, fw)))->head_sent;
}

/* A process that repeats a call goes on in the stream that another one has begun. */
static bool may_go_on(const struct call *c, int status, const char *type)
{
    return status == c->status && strcmp(type, c->stream_type) == 0;
}

bool forward_begin(struct forward *f, int status, const char *type)
{
    struct call *c = call_of(f);

    if (!c->q || c->gone) return false;
    if (c->head_sent) return f->begun = may_go_on(c, status, type);
    if (!http_begin(c->q, status, type)) return false;
    snprintf(c->stream_type, sizeof c->stream_type, "%s", type);
    c->status = status;
    c->first_ns = c->first_ns ? c->first_ns : clock_ns();
    c->head_sent = f->begun = true;
    return true;
}

bool forward_write(struct forward *f, const void *p, size_t n)
{
    struct call *c = call_of(f);

    if (!c->q || c->gone || !f->begun) return false;
    if (!f->told && !sse_is_idle(str_of(p, n))) note_told(c);
    c->last_ns = clock_ns();
    if (http_write(c->q, p, n)) return true;
    call_note_gone(c);
    return false;
}

void forward_answer(struct forward *f, int status, const char *type, const void *p, size_t n)
{
    struct call *c = call_of(f);

    if (!c->q || c->gone) return;
    if (c->head_sent) { /* in a stream that another process has begun: forward_ended says so */
        log_warn("call %s: its stream had begun, and the next process answered %d", c->id, status);
        return;
    }
    c->first_ns = c->first_ns ? c->first_ns : clock_ns();
    c->status = http_reply(c->q, status, type, p, n);
    c->q = f->q = NULL;
}

/* ---- the end ---- */

/* The process ended the call without an answer: it had no memory for one, gave it up, or refused to
 * repeat a stream that has begun. */
static void end_without_answer(struct call *c, const struct api_end *end)
{
    struct err e = { 0 };

    if (c->head_sent && end->status >= 400 && end->status != 499)
        err_set(&e, E_WORKER, "the process of model '%s' ended, and the next one refused: %s",
                c->model_id, end->code[0] ? end->code : "no reason");
    else if (end->status == 499) err_set(&e, E_CANCELLED, "the request was cancelled");
    else err_nomem(&e, "the request in the model's process");
    call_fail(c, &e, NULL);
}

/* An incomplete stream must not look like a complete one. */
static void end_stream(struct call *c, const struct api_end *end)
{
    if (end->gone && end->gone[0]) {
        http_drop(c->q, strcmp(end->gone, "slow reader") == 0 ? "slow reader" : "out of memory");
        call_note_gone(c);
    }
    http_end(c->q);
    c->q = NULL;
}

/* Errors count as those of local calls do. */
static void count_failure(struct call *c, const struct api_end *end)
{
    if (!end->code[0] || c->code[0]) return;
    snprintf(c->code, sizeof c->code, "%s", end->code);
    if (c->status >= 400 && c->api->opt.failed)
        c->api->opt.failed(c->api->opt.arg, c->status, c->code, end->n_choices > 0);
}

void forward_ended(struct forward *f, const struct api_end *end)
{
    struct call *c = call_of(f);

    f->relay = NULL;
    c->holds++;
    if (c->q && !c->gone) {
        if (f->begun) end_stream(c, end);
        else end_without_answer(c, end);
    }
    count_failure(c, end);
    responses_note_owner(c);
    c->holds--;
    assert(!c->holds);
    f->end = end;
    call_end_if_done(c);
}

/* The worker counted tokens and phases of the call; status, times and peer are this process's own. */
void forward_fill_end(const struct call *c, struct api_end *out)
{
    const struct api_end *e = c->fw.end;
    struct api_end mine = *out;

    if (!e) return;
    *out = *e;
    out->who = mine.who;
    out->route = mine.route;
    out->model = mine.model;
    out->peer = mine.peer;
    out->status = mine.status;
    out->code = mine.code;
    out->total_ms = mine.total_ms;
    out->first_ms = mine.first_ms;
    out->gone = mine.gone;
}

/* ---- a process that died ---- */

void forward_lost(struct forward *f, const struct err *e)
{
    struct call *c = call_of(f);
    bool again =
        c->q && !c->gone && !f->told && !pool_is_ending(c->api->opt.pool) && f->n_before++ == 0;

    f->relay = NULL;
    if (again) {
        pool_release(c->model);
        c->model = NULL;
        if (wait_for_process(c, NULL) == OK) return;
    }
    c->holds++;
    call_fail(c, e, NULL);
    c->holds--;
    call_end_if_done(c);
}

/* Nobody starts the process again: the server ends, or the model was unloaded meanwhile. */
static bool is_given_up(struct call *c, struct err *e)
{
    struct pool *p = c->api->opt.pool;
    enum pool_state state;
    int i;

    if (pool_is_ending(p)) {
        err_set(e, E_SHUTDOWN, "the server is shutting down");
        return true;
    }
    i = pool_index(p, str_c(c->model_id));
    state = i < 0 ? POOL_UNLOADED : pool_state(p, i, NULL);
    if (state == POOL_READY || state == POOL_LOADING || state == POOL_FAILED) return false;
    err_set(e, E_WORKER, "the process of model '%s' ended while the model was unloaded",
            c->model_id);
    return true;
}

/* false: it goes on waiting. */
static bool try_again(struct call *c, struct err *e)
{
    uint64_t now = clock_ns();
    int rc;

    if (is_given_up(c, e)) return true;
    rc = pool_find_by(c->api->opt.pool, str_c(c->model_id), c->deadline_ns, &c->model, e);
    if (rc == OK) rc = forward_start(c, e);
    if (rc != OK && c->model) pool_release(c->model), c->model = NULL;
    if (rc == OK) return true;
    if (c->deadline_ns && now >= c->deadline_ns)
        err_set(e, E_DEADLINE, "the deadline passed while the model's process was restarted");
    else if (now - c->fw.lost_ns < (uint64_t)RETRY_MAX_MS * 1000000 &&
             (rc == E_LOADING || comes_soon(e) || (rc == E_WORKER && !e->retry_ms)))
        return false;
    return true;
}

static void retry_call(struct call *c)
{
    struct err e = { 0 };

    c->holds++;
    if (c->gone || !c->q) {
        c->fw.lost = false;
    } else if (try_again(c, &e)) {
        c->fw.lost = false;
        if (!c->fw.relay) call_fail(c, &e, NULL);
    }
    c->holds--;
    call_end_if_done(c);
}

/* Timer of the API: calls that wait for a restarted process. */
void forward_on_retry(void *arg)
{
    struct api *a = arg;
    bool any = false;

    loop_timer_set(a->retry, RETRY_LOOK_MS); /* first: it cannot fail then */
    for (struct call *c = a->calls, *next; c; c = next) {
        next = c->next;
        any |= c->fw.lost;
        if (c->fw.lost) retry_call(c);
    }
    if (!any) loop_timer_stop(a->retry);
}

/* ---- calls that must end ---- */

bool forward_is_under_way(const struct call *c) { return c->fw.relay || (c->fw.lost && !c->gone); }

bool forward_cancel(struct call *c, enum forward_why why)
{
    struct err e = { 0 };

    if (c->fw.relay) {
        ops_of(c)->cancel(&c->fw, why);
        return true;
    }
    if (!c->fw.lost) return false;
    c->fw.lost = false;
    if (why == FORWARD_GONE) return true;
    if (why == FORWARD_ASKED) err_set(&e, E_CANCELLED, "the request was cancelled");
    else err_set(&e, E_SHUTDOWN, "the server is shutting down");
    call_fail(c, &e, NULL);
    return true;
}

void forward_drop(struct call *c)
{
    if (c->fw.relay) ops_of(c)->drop(&c->fw);
    c->fw.relay = NULL;
    c->fw.lost = false;
}
