/* api.c - the API's life, its list of choices, and events from engines.
 *
 * Engine threads call api_notify, which pushes the request into a channel and wakes the loop; the
 * loop pops it in api_process_events. The channel is bounded. If it is full, a flag makes the loop
 * look at every choice, so no event is lost. */
#include "api/api_impl.h"

#include "api/call.h"
#include "api/choice.h"
#include "api/respstore.h"
#include "base/chan.h"
#include "base/clock.h"
#include "base/jsonw.h"
#include "base/log.h"
#include "base/mem.h"
#include "net/loop.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum {
    CHOICES_DEFAULT = 16,
    CALLS_DEFAULT = 4096,
    PING_DEFAULT_MS = 15000,
    THREADS_DEFAULT = 2,
    QUEUE_DEFAULT = 4096,
    WATCHERS_DEFAULT = 64,
    BODY_DEFAULT = 16 << 20,
    KEEP_BYTES = 1 << 16, /* larger buffers of a choice are freed between requests */
    CLOSE_MS = 2000       /* how long api_close waits for engines */
};

/* ---- events from engines ---- */

/* On an engine's thread. r comes with a reference, which api_process_events gives back. */
void api_notify(struct request *r)
{
    struct choice *ch = r->owner;
    struct api *a = ch->api;

    if (!chan_push(a->events, r)) {
        atomic_store_explicit(&a->missed, 1, memory_order_release);
        request_unref(r);
    }
    loop_wake(a->opt.loop);
}

/* A request in the channel may have ended, and its choice may carry another one by now. */
void api_process_events(struct api *a)
{
    struct request *r;

    api_take_back(a);
    api_resume_compiled(a);
    while ((r = chan_pop(a->events))) {
        struct choice *ch = r->owner;
        if (ch->r == r) choice_read_events(ch);
        request_unref(r);
    }
    if (!atomic_exchange_explicit(&a->missed, 0, memory_order_acquire)) return;
    for (struct choice *ch = a->choices; ch; ch = ch->next)
        if (ch->r) choice_read_events(ch);
}

/* ---- choices ---- */

struct choice *choice_acquire(struct api *a)
{
    struct choice *ch = a->free_choices;

    if (ch) {
        a->free_choices = ch->next_free;
        return ch;
    }
    if (!(ch = mem_new(struct choice))) return NULL;
    ch->api = a;
    ch->next = a->choices;
    a->choices = ch;
    return ch;
}

static void shrink_buf(struct buf *b)
{
    if (b->cap > KEEP_BYTES) buf_release(b);
    else buf_clear(b);
}

/* Buffers of usual size are kept for the next request. An engine may still read `api` (api_notify), so
 * that member is not written again, not even with the same value. */
void choice_recycle(struct choice *ch)
{
    const size_t kept = offsetof(struct choice, next_free);
    struct api *a = ch->api;
    struct answer answer = ch->answer;
    struct logprobs lp = ch->lp;

    mem_free(ch->vec);
    toolparse_release(&ch->parse);
    answer_clear(&answer);
    for (int i = 0; i < LOGPROB_LISTS; i++) shrink_buf(&lp.list[i]);
    lp.n = 0;
    memset((char *)ch + kept, 0, sizeof *ch - kept);
    ch->next_free = a->free_choices;
    ch->answer = answer;
    ch->lp = lp;
    a->free_choices = ch;
}

/* After all engines are closed: nothing refers to a choice any more. */
static void free_choices(struct api *a)
{
    for (struct choice *ch = a->choices, *next; ch; ch = next) {
        next = ch->next;
        request_unref(ch->r);
        answer_release(&ch->answer);
        logprobs_release(&ch->lp);
        mem_free(ch);
    }
}

/* ---- ended calls ---- */

void api_remember_call(struct api *a, const struct call *c)
{
    struct past_call *p = &a->past[a->past_at++ % PAST_CALLS];

    snprintf(p->id, sizeof p->id, "%s", c->id);
    snprintf(p->correlation, sizeof p->correlation, "%s", c->who.correlation);
    p->tenant = c->who.tenant;
}

/* ---- pings ---- */

/* Four looks per interval: a ping is at most a quarter late. */
static void on_ping(void *arg)
{
    struct api *a = arg;
    uint64_t now = clock_ns();

    loop_timer_set(a->ping, (uint64_t)a->opt.ping_ms / 4 + 1); /* first: it cannot fail then */
    for (struct call *c = a->calls, *next; c; c = next) {
        next = c->next;
        call_send_ping(c, now);
    }
}

/* ---- life ---- */

static void fill_defaults(struct api_opt *o)
{
    if (!o->max_choices) o->max_choices = CHOICES_DEFAULT;
    if (!o->max_calls) o->max_calls = CALLS_DEFAULT;
    if (!o->ping_ms) o->ping_ms = PING_DEFAULT_MS;
    if (!o->request_threads) o->request_threads = THREADS_DEFAULT;
    if (!o->request_queue) o->request_queue = QUEUE_DEFAULT;
    if (!o->max_body_bytes) o->max_body_bytes = BODY_DEFAULT;
    if (!o->max_watchers) o->max_watchers = WATCHERS_DEFAULT;
}

int api_open(struct api **out, const struct api_opt *opt, struct err *e)
{
    struct api *a = mem_new(struct api);
    int rc;

    if (!a) return err_nomem(e, "the API");
    a->opt = *opt;
    fill_defaults(&a->opt);
    if (pthread_mutex_init(&a->compiled_lock, NULL) != 0) {
        mem_free(a);
        return err_nomem(e, "a mutex of the API");
    }
    if (pthread_mutex_init(&a->ready_lock, NULL) != 0) {
        pthread_mutex_destroy(&a->compiled_lock);
        mem_free(a);
        return err_nomem(e, "a mutex of the API");
    }
    /* Requests that ended may still be in the channel, beside those that run. */
    rc = chan_open(&a->events, a->opt.max_calls + a->opt.max_calls / 4 + 16, e);
    if (rc != OK) goto out;
    if (!(a->ping = loop_timer(opt->loop, on_ping, a)) ||
        !loop_timer_set(a->ping, (uint64_t)a->opt.ping_ms / 4 + 1)) {
        rc = err_nomem(e, "a timer of the API");
        goto out;
    }
    if (!(a->responses = respstore_open(a->opt.response_bytes))) {
        rc = err_nomem(e, "the store of responses");
        goto out;
    }
    if (!(a->retry = loop_timer(opt->loop, forward_on_retry, a))) {
        rc = err_nomem(e, "a timer of the API");
        goto out;
    }
    if ((rc = api_open_watchers(a, e)) != OK) goto out;
    if ((rc = api_start_threads(a, e)) != OK) goto out;
    *out = a;
    a = NULL;
out:
    api_close(a);
    return rc;
}

/* The pool is stopped by now: calls without an answer get an error. */
static void fail_all(struct api *a)
{
    struct err e = { 0 };

    err_set(&e, E_SHUTDOWN, "the server is shutting down");
    for (struct call *c = a->calls, *next; c; c = next) {
        next = c->next;
        forward_drop(c);
        call_fail(c, &e, NULL);
        call_end_if_done(c);
    }
}

/* Reads the last events of all choices; false: an engine did not send some of them. */
static bool wait_for_ends(struct api *a)
{
    uint64_t start = clock_ns();

    api_process_events(a);
    while (a->n_running > 0 && clock_ms_since(start) < CLOSE_MS) {
        chan_wait(a->events, 10 * 1000000);
        api_process_events(a);
    }
    return a->n_running == 0;
}

/* Events are still read here, since engines report the end of every request they accepted. */
void api_close(struct api *a)
{
    if (!a) return;
    api_stop(a);
    loop_timer_close(a->ping);
    api_end_watchers(a);
    loop_timer_close(a->retry);
    fail_all(a);
    if (a->events && !wait_for_ends(a)) {
        log_error("%d requests did not end: their memory is not freed, since engines still use it",
                  a->n_calls);
        return;
    }
    chan_close(a->events);
    respstore_close(a->responses);
    responses_forget_owners(a);
    promptdiff_release(&a->prompts);
    api_close_watchers(a);
    pthread_mutex_destroy(&a->compiled_lock);
    pthread_mutex_destroy(&a->ready_lock);
    map_release(&a->unknown);
    arena_release(&a->unknown_names);
    free_choices(a);
    mem_free(a);
}

int api_n_calls(const struct api *a) { return a->n_calls; }

/* ---- calls in flight ---- */

/* The state of the first choice that runs. */
static const char *state_name(const struct call *c)
{
    static const char *const names[] = {
        "new", "queued", "prefill", "decode", "preempted", "done"
    };

    if (c->waits) return "loading";
    if (c->away) return "preparing";
    if (c->compiling) return "compiling";
    if (c->fw.lost) return "restarting";
    if (c->fw.relay) return "forwarded";
    for (int i = 0; i < c->n_choices; i++) {
        struct request *r = c->choices[i]->r;
        if (r) return names[atomic_load_explicit(&r->state, memory_order_relaxed)];
    }
    return "done";
}

/* Does the first choice wait for its place? */
static bool is_queued(const struct call *c)
{
    for (int i = 0; !c->away && i < c->n_choices; i++) {
        struct request *r = c->choices[i]->r;
        if (r) return atomic_load_explicit(&r->state, memory_order_relaxed) == REQ_QUEUED;
    }
    return c->waits;
}

void api_count_live(const struct api *a, int wait_ms, int *running, int *waiting)
{
    *running = *waiting = 0;
    for (const struct call *c = a->calls; c; c = c->next) {
        if (c->who.user || c->watches) continue;
        *running += 1;
        *waiting += is_queued(c) && clock_ms_since(c->open_ns) > wait_ms;
    }
}

/* One element of GET /status, "calls". What a request thread has is not looked at. */
static void write_call(struct jsonw *w, const struct call *c, uint64_t now_ns)
{
    int n_prompt = 0, n_out = 0;

    for (int i = 0; !c->away && i < c->n_prompts; i++) n_prompt += c->prompt_tokens[i];
    for (int i = 0; !c->away && i < c->n_choices; i++) n_out += c->choices[i]->n_read;
    jsonw_obj(w);
    jsonw_key(w, "id"), jsonw_str(w, str_c(c->id));
    jsonw_key(w, "correlation_id"), jsonw_str(w, str_c(c->who.correlation));
    jsonw_key(w, "tenant"), jsonw_str(w, str_c(c->who.name));
    jsonw_key(w, "route"), jsonw_str(w, str_c(c->route));
    jsonw_key(w, "model"), jsonw_str(w, str_c(c->away ? "" : c->model_id));
    jsonw_key(w, "state"), jsonw_str(w, str_c(state_name(c)));
    jsonw_key(w, "stream"), jsonw_bool(w, !c->away && c->p.stream);
    jsonw_key(w, "choices"), jsonw_int(w, c->away ? 0 : c->n_choices);
    jsonw_key(w, "prompt_tokens"), jsonw_int(w, n_prompt);
    jsonw_key(w, "output_tokens"), jsonw_int(w, n_out);
    jsonw_key(w, "age_ms"), jsonw_int(w, (int64_t)((now_ns - c->start_ns) / 1000000));
    jsonw_end(w);
}

void api_status(struct api *a, struct buf *out)
{
    struct jsonw w = { .out = out };
    uint64_t now = clock_ns();

    jsonw_arr(&w);
    for (const struct call *c = a->calls; c; c = c->next) write_call(&w, c, now);
    jsonw_end(&w);
}
