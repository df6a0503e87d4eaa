/* watchers.c - GET /models/sse: a stream of events, one for each change of a model's state.
 *
 *     event: model_status
 *     data: {"model":"a","status":{"value":"loading","failed":false,"progress":10}}
 *
 * A new client first gets one event for each model. The loop compares the states with those it sent
 * last when the pool says that something has changed, and while a model is loading, when a timer
 * fires. A watching call ends when its client is gone, or the server drains. */
#include "api/call.h"

#include "base/jsonw.h"
#include "base/mem.h"
#include "net/http.h"
#include "net/loop.h"
#include "net/sse.h"
#include "pool/pool.h"

enum { LOOK_MS = 250 };

/* The state of a model that was sent last. */
struct seen {
    int state, progress;
};

static void send_event(struct call *c, struct str json)
{
    c->holds++;
    if (c->q && !c->gone && !sse_event(c->q, "model_status", json)) call_note_gone(c);
    c->holds--;
}

static void write_event(struct api *a, int i, struct buf *out)
{
    struct jsonw w = { .out = out };

    buf_clear(out);
    jsonw_obj(&w);
    jsonw_key(&w, "model"), jsonw_str(&w, str_c(pool_at(a->opt.pool, i)->id));
    jsonw_key(&w, "status"), models_write_status(&w, a->opt.pool, i);
    jsonw_end(&w);
}

static bool is_changed(struct api *a, int i)
{
    struct pool_view v;

    pool_view(a->opt.pool, i, &v);
    if (a->seen[i].state == (int)v.state && a->seen[i].progress == v.progress) return false;
    a->seen[i] = (struct seen){ (int)v.state, v.progress };
    return true;
}

/* The array grows with the list of models; without memory the new ones are not watched yet. */
static int n_watched(struct api *a)
{
    size_t n = (size_t)pool_n(a->opt.pool);

    while (a->n_seen < n && mem_ensure(a->seen, a->cap_seen, a->n_seen + 1))
        a->seen[a->n_seen++] = (struct seen){ -1, -1 };
    return (int)a->n_seen;
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
        if (!is_changed(a, i)) continue;
        write_event(a, i, &b);
        for (struct call *c = a->calls, *next; c; c = next) {
            next = c->next;
            if (!c->watches || b.failed) continue;
            send_event(c, buf_str(&b));
            call_end_if_done(c);
        }
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

void api_models_sse(struct api *a, struct http_req *q, const struct api_who *who)
{
    struct call *c = call_open(a, q, who, "/models/sse");
    struct buf b = { 0 };
    struct err e = { 0 };

    if (!c) return;
    if (!sse_begin(q)) {
        err_nomem(&e, "a stream");
        call_fail(c, &e, NULL);
        call_end_handler(c);
        return;
    }
    api_models_changed(a); /* what the others have not heard of yet */
    for (int i = a->n_watchers ? 0 : n_watched(a); i-- > 0;) is_changed(a, i);
    c->status = 200;
    c->head_sent = c->watches = true;
    a->n_watchers++;
    for (int i = 0; i < pool_n(a->opt.pool) && !c->gone; i++) {
        write_event(a, i, &b);
        if (!b.failed) send_event(c, buf_str(&b));
    }
    buf_release(&b);
    api_models_changed(a); /* the timer, if a model is loading */
    call_end_handler(c);
}
