#include "api/call.h"

#include "base/clock.h"
#include "base/jsonw.h"
#include "base/log.h"
#include "base/mem.h"
#include "net/loop.h"

#include <stdio.h>

enum {
    CHOICES_DEFAULT = 16,
    CALLS_DEFAULT = 4096,
    PING_DEFAULT_MS = 15000,
    KEEP_BYTES = 1 << 16,
    CLOSE_MS = 2000
};

/* ---- news from engines ---- */

/* On an engine's thread. r comes with a reference, which goes along until api_wake has seen it. */
void api_news(struct request *r)
{
    struct choice *ch = r->owner;
    struct api *a = ch->api;

    if (!chan_push(a->news, r)) {
        atomic_store_explicit(&a->missed, 1, memory_order_release);
        request_unref(r);
    }
    loop_wake(a->opt.loop);
}

void api_wake(struct api *a)
{
    struct request *r;

    api_compiled(a);
    while ((r = chan_pop(a->news))) {
        struct choice *ch = r->owner;
        if (ch->r == r) choice_drain(ch);
        request_unref(r);
    }
    if (!atomic_exchange_explicit(&a->missed, 0, memory_order_acquire)) return;
    for (struct choice *ch = a->all; ch; ch = ch->all)
        if (ch->r) choice_drain(ch);
}

/* ---- choices ---- */

struct choice *choice_get(struct api *a)
{
    struct choice *ch = a->free;

    if (ch) {
        a->free = ch->free;
        return ch;
    }
    ch = mem_new(struct choice);
    ch->api = a;
    ch->all = a->all;
    a->all = ch;
    return ch;
}

static void keep(struct buf *b)
{
    if (b->cap > KEEP_BYTES) buf_release(b);
    else buf_clear(b);
}

void choice_put(struct choice *ch)
{
    struct choice *all = ch->all;
    struct api *a = ch->api;
    struct buf text = ch->text;
    struct logprobs lp = ch->lp;

    mem_free(ch->vec);
    toolparse_release(&ch->parse);
    buf_release(&ch->think);
    buf_release(&ch->calls);
    buf_release(&ch->args);
    keep(&text);
    for (int i = 0; i < 4; i++) keep(&lp.list[i]);
    lp.n = 0;
    *ch = (struct choice){ .api = a, .all = all, .free = a->free, .text = text, .lp = lp };
    a->free = ch;
}

/* ---- calls that are over ---- */

void api_remember(struct api *a, const struct call *c)
{
    struct past_call *p = &a->past[a->past_at++ % PAST_CALLS];

    snprintf(p->id, sizeof p->id, "%s", c->id);
    snprintf(p->correlation, sizeof p->correlation, "%s", c->who.correlation);
    p->tenant = c->who.tenant;
}

/* ---- pings ---- */

static void on_ping(void *arg)
{
    struct api *a = arg;
    uint64_t now = clock_ns();

    for (struct call *c = a->calls, *next; c; c = next) {
        next = c->next;
        call_ping(c, now);
    }
    loop_timer_set(a->ping, (uint64_t)a->opt.ping_ms / 4 + 1);
}

/* ---- life ---- */

int api_open(struct api **out, const struct api_opt *opt, struct err *e)
{
    struct api *a = mem_new(struct api);
    int rc;

    a->opt = *opt;
    pthread_mutex_init(&a->compiled_lock, NULL);
    if (!a->opt.max_choices) a->opt.max_choices = CHOICES_DEFAULT;
    if (!a->opt.max_calls) a->opt.max_calls = CALLS_DEFAULT;
    if (!a->opt.ping_ms) a->opt.ping_ms = PING_DEFAULT_MS;
    /* Beside those that run, some that ended may still be in it. */
    if ((rc = chan_open(&a->news, a->opt.max_calls + a->opt.max_calls / 4 + 16, e)) != OK) goto out;
    a->ping = loop_timer(a->opt.loop, on_ping, a);
    loop_timer_set(a->ping, (uint64_t)a->opt.ping_ms / 4 + 1);
    *out = a;
    a = NULL;
out:
    api_close(a);
    return rc;
}

/* Engines may be closed by now: what still waits for an answer is told so, and only ends are read.
 */
static void fail_all(struct api *a)
{
    struct err e = { 0 };

    err_set(&e, E_SHUTDOWN, "the server is going down");
    for (struct call *c = a->calls, *next; c; c = next) {
        next = c->next;
        c->model = NULL;
        call_fail(c, &e, NULL);
        call_settle(c);
    }
}

/* false: an engine keeps some to itself. */
static bool wait_ends(struct api *a)
{
    uint64_t start = clock_ns();

    api_wake(a);
    while (a->n_live > 0 && clock_ms_since(start) < CLOSE_MS) {
        chan_wait(a->news, 10 * 1000000);
        api_wake(a);
    }
    return a->n_live == 0;
}

void api_close(struct api *a)
{
    if (!a) return;
    loop_timer_close(a->ping);
    fail_all(a);
    if (a->news && !wait_ends(a)) {
        log_error("%d calls did not end: their memory is left to the engines that hold it",
                  a->n_calls);
        return;
    }
    chan_close(a->news);
    pthread_mutex_destroy(&a->compiled_lock);
    for (struct choice *ch = a->all, *next; ch; ch = next) {
        next = ch->all;
        request_unref(ch->r);
        buf_release(&ch->text);
        logprobs_release(&ch->lp);
        mem_free(ch);
    }
    mem_free(a);
}

int api_n_calls(const struct api *a) { return a->n_calls; }

/* ---- what is in flight ---- */

static const char *state_of(const struct call *c)
{
    static const char *const names[] = {
        "new", "queued", "prefill", "decode", "preempted", "done"
    };

    if (c->job) return "compiling";
    for (int i = 0; i < c->n_choices; i++) {
        struct request *r = c->choices[i]->r;
        if (r) return names[atomic_load_explicit(&r->state, memory_order_relaxed)];
    }
    return "done";
}

void api_status(struct api *a, struct buf *out)
{
    struct jsonw w = { .out = out };
    uint64_t now = clock_ns();

    jsonw_arr(&w);
    for (const struct call *c = a->calls; c; c = c->next) {
        int n_prompt = 0, n_out = 0;
        for (int i = 0; i < c->n_prompts; i++) n_prompt += c->prompt_tokens[i];
        for (int i = 0; i < c->n_choices; i++) n_out += c->choices[i]->n_seen;
        jsonw_obj(&w);
        jsonw_key(&w, "id"), jsonw_str(&w, str_c(c->id));
        jsonw_key(&w, "correlation_id"), jsonw_str(&w, str_c(c->who.correlation));
        jsonw_key(&w, "tenant"), jsonw_str(&w, str_c(c->who.name));
        jsonw_key(&w, "route"), jsonw_str(&w, str_c(c->route));
        jsonw_key(&w, "model"), jsonw_str(&w, str_c(c->model_id));
        jsonw_key(&w, "state"), jsonw_str(&w, str_c(state_of(c)));
        jsonw_key(&w, "stream"), jsonw_bool(&w, c->p.stream);
        jsonw_key(&w, "choices"), jsonw_int(&w, c->n_choices);
        jsonw_key(&w, "prompt_tokens"), jsonw_int(&w, n_prompt);
        jsonw_key(&w, "output_tokens"), jsonw_int(&w, n_out);
        jsonw_key(&w, "age_ms"), jsonw_int(&w, (int64_t)((now - c->start_ns) / 1000000));
        jsonw_end(&w);
    }
    jsonw_end(&w);
}
