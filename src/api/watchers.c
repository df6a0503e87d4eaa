/* watchers.c - GET /models/sse: a stream of events about models, in the form of llama-server.
 *
 *     data: {"model":"a","event":"model_status","data":{"status":"loading","progress":{...}}}
 *     data: {"model":"a","event":"model_remove"}            its file is gone, and it is not loaded
 *
 * A new client first gets the state of each model. The loop compares the states with those it sent
 * last when the pool says that something has changed, and while a model is loading, when a timer
 * fires. A watching call ends when its client is gone, or the server drains.
 *
 * Watchers are foreign and many, so each is bounded: their number is opt.max_watchers, and half of that
 * where one tenant of several has them; the states at
 * the beginning are written in portions, the next one when the last was sent; and a client that has
 * not read MAX_UNSENT bytes of events is disconnected as a slow reader. */
#include "api/call.h"

#include "base/jsonw.h"
#include "base/mem.h"
#include "net/http.h"
#include "net/loop.h"
#include "net/sse.h"
#include "pool/pool.h"

#include <limits.h>
#include <stdio.h>

enum {
    LOOK_MS = 250,
    PORTION = 16 << 10,    /* bytes of the first states that are queued for a client */
    MAX_UNSENT = 128 << 10 /* of events; the client is disconnected after that */
};

/* The state of a model that was sent last. */
struct seen {
    int state, progress;
    bool listed;
};

static void write_progress(struct jsonw *w, int percent)
{
    jsonw_key(w, "progress"), jsonw_obj(w);
    jsonw_key(w, "stages"), jsonw_arr(w), jsonw_str(w, STR("load")), jsonw_end(w);
    jsonw_key(w, "current"), jsonw_str(w, STR("load"));
    jsonw_key(w, "value"), jsonw_num(w, percent / 100.0);
    jsonw_end(w);
}

static void write_data(struct jsonw *w, struct pool *p, int i)
{
    struct pool_view v;

    pool_view(p, i, &v);
    jsonw_key(w, "data"), jsonw_obj(w);
    jsonw_key(w, "status"), jsonw_str(w, str_c(models_status_name(v.state)));
    if (v.state == POOL_LOADING) write_progress(w, v.progress);
    if (v.state == POOL_UNLOADED) jsonw_key(w, "exit_code"), jsonw_int(w, 0);
    if (v.state == POOL_FAILED) {
        jsonw_key(w, "failed"), jsonw_bool(w, true);
        jsonw_key(w, "exit_code"), jsonw_int(w, 1);
        jsonw_key(w, "error"), jsonw_str(w, str_c(v.err.msg));
    }
    jsonw_end(w);
}

static void write_event(struct api *a, int i, struct buf *out)
{
    struct jsonw w = { .out = out };
    bool listed = pool_is_listed(a->opt.pool, i);

    buf_clear(out);
    jsonw_obj(&w);
    jsonw_key(&w, "model"), jsonw_str(&w, str_c(pool_at(a->opt.pool, i)->id));
    jsonw_key(&w, "event"), jsonw_str(&w, listed ? STR("model_status") : STR("model_remove"));
    if (listed) write_data(&w, a->opt.pool, i);
    jsonw_end(&w);
}

static void send_event(struct call *c, struct str json)
{
    if (!c->q || c->gone) return;
    c->holds++;
    if (http_unsent(c->q) > MAX_UNSENT) http_drop(c->q, "slow reader");
    if (!sse_data(c->q, json)) call_note_gone(c);
    c->holds--;
}

/* ---- the states at the beginning ---- */

/* c->next_model: the first whose state was not sent; INT_MAX: there is none. */
static void send_portion(struct call *c)
{
    struct api *a = c->api;
    struct buf b = { 0 };

    while (c->q && !c->gone && c->next_model < pool_n(a->opt.pool)) {
        if (http_unsent(c->q) > PORTION) goto out; /* on_sent goes on */
        if (pool_is_listed(a->opt.pool, c->next_model)) {
            write_event(a, c->next_model, &b);
            if (!b.failed) send_event(c, buf_str(&b));
        }
        c->next_model++;
    }
    c->next_model = INT_MAX;
out:
    buf_release(&b);
}

static void on_sent(void *arg)
{
    struct call *c = arg;

    if (c->next_model == INT_MAX) return;
    c->holds++;
    send_portion(c);
    c->holds--;
    call_end_if_done(c);
}

/* ---- changes ---- */

static bool is_changed(struct api *a, int i)
{
    struct seen *s = &a->seen[i];
    struct pool_view v;
    bool listed = pool_is_listed(a->opt.pool, i);

    pool_view(a->opt.pool, i, &v);
    if (s->state == (int)v.state && s->progress == v.progress && s->listed == listed) return false;
    if (!listed && !s->listed) return false;
    *s = (struct seen){ (int)v.state, v.progress, listed };
    return true;
}

/* The array grows with the list of models; without memory the new ones are not watched yet. */
static int n_watched(struct api *a)
{
    size_t n = (size_t)pool_n(a->opt.pool);

    while (a->n_seen < n && mem_ensure(a->seen, a->cap_seen, a->n_seen + 1))
        a->seen[a->n_seen++] = (struct seen){ -1, -1, false };
    return (int)a->n_seen;
}

static void send_change(struct api *a, int i, struct buf *b)
{
    write_event(a, i, b);
    for (struct call *c = a->calls, *next; c; c = next) {
        next = c->next;
        if (!c->watches || b->failed || i >= c->next_model) continue;
        send_event(c, buf_str(b));
        call_end_if_done(c);
    }
}

void api_models_changed(struct api *a)
{
    struct buf b = { 0 };
    bool loading = false;
    int n;

    if (a->n_watchers == 0) return;
    n = n_watched(a);
    for (int i = 0; i < n; i++) {
        loading |= pool_state(a->opt.pool, i, NULL) == POOL_LOADING;
        if (is_changed(a, i)) send_change(a, i, &b);
    }
    if (loading && a->look) loop_timer_set(a->look, LOOK_MS);
    buf_release(&b);
}

static void on_look(void *arg) { api_models_changed(arg); }

int api_open_watchers(struct api *a, struct err *e)
{
    a->look = loop_timer(a->opt.loop, on_look, a);
    return a->look ? OK : err_nomem(e, "a timer of the API");
}

void api_close_watchers(struct api *a)
{
    loop_timer_close(a->look);
    mem_free(a->seen);
}

void api_end_watchers(struct api *a)
{
    for (struct call *c = a->calls, *next; c; c = next) {
        next = c->next;
        if (!c->watches) continue;
        if (c->q && !c->gone) http_end(c->q), c->q = NULL;
        call_end_if_done(c);
    }
}

int api_n_watchers(const struct api *a) { return a->n_watchers; }

/* ---- the route ---- */

static int count_of_tenant(const struct api *a, uint32_t tenant)
{
    int n = 0;

    for (const struct call *c = a->calls; c; c = c->next)
        n += c->watches && c->who.tenant == tenant;
    return n;
}

/* Half of the places are for one tenant, so that others always find one. */
static bool has_place(struct api *a, struct call *c)
{
    int most = a->opt.max_watchers, share = (most + 1) / 2;
    char msg[120];

    if (c->who.keyed && count_of_tenant(a, c->who.tenant) >= share) {
        snprintf(msg, sizeof msg, "%d clients of this key watch the models: half of max-watchers",
                 share);
        call_fail_status(c, 429, "watchers_limit", msg);
    } else if (a->n_watchers >= most) {
        snprintf(msg, sizeof msg, "%d clients watch the models already: max-watchers", most);
        call_fail_status(c, 503, "too_many_watchers", msg);
    }
    return c->q != NULL;
}

/* false: it is answered. HEAD gets the head of the stream alone. */
static bool begin_stream(struct api *a, struct call *c)
{
    struct err e = { 0 };

    if (!has_place(a, c)) return false;
    if (http_method(c->q) == HTTP_HEAD) {
        c->status = http_reply(c->q, 200, "text/event-stream; charset=utf-8", "", 0);
        c->q = NULL;
        return false;
    }
    if (sse_begin(c->q)) return true;
    err_nomem(&e, "a stream");
    call_fail(c, &e, NULL);
    return false;
}

void api_models_sse(struct api *a, struct http_req *q, const struct api_who *who)
{
    struct call *c = call_open(a, q, who, "/models/sse");

    if (!c) return;
    if (begin_stream(a, c)) {
        api_models_changed(a); /* what the others have not heard of yet */
        for (int i = a->n_watchers ? 0 : n_watched(a); i-- > 0;) is_changed(a, i);
        c->status = 200;
        c->head_sent = c->watches = true;
        a->n_watchers++;
        http_on_sent(q, on_sent, c);
        send_portion(c);
        api_models_changed(a); /* the timer, if a model is loading */
    }
    call_end_handler(c);
}
