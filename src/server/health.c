/* health.c - the state behind GET /health and GET /ready: samples, the watchdog, the reason.
 *
 * The watchdog reads two heartbeats of an engine: when its current step began, and when it last
 * finished a round. An engine is stalled if a step, or a round with requests waiting, lasts longer
 * than --watchdog. */
#include "server/health.h"

#include "base/clock.h"
#include "base/jsonw.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/stats.h"
#include "net/http.h"
#include "net/query.h"
#include "pool/pool.h"
#include "server/devices.h"
#include "server/server_impl.h"
#include "server/visit.h"

const char *health_name(enum ready r)
{
    static const char *const names[] = { "ready", "draining", "failed", "loading", "stalled" };
    return names[r];
}

/* Stable codes for programs; the sentence is for people. */
static const char *ready_code(enum ready r)
{
    static const char *const codes[] = { "", "shutting_down", "model_load_failed", "model_loading",
                                         "engine_stalled" };
    return codes[r];
}

/* ---- history ---- */

void history_sample(struct server *v, struct sums *out)
{
    *out = (struct sums){ .at_ns = clock_ns(), .busy_ns = devices_busy_ns(v) };
    for (int i = 0; i < pool_n(v->pool); i++) {
        const struct engine_stats *s = server_stats(v, i);
        if (!s) continue;
        out->generated += counter_get(&s->generated_tokens);
        out->prompt += counter_get(&s->prompt_tokens);
        for (int f = 0; f <= FINISH_ERROR; f++) out->finished += counter_get(&s->finished[f]);
        out->steps += counter_get(&s->steps);
        out->running += gauge_get(&s->running);
        out->waiting += gauge_get(&s->waiting);
        out->kv_used += gauge_get(&s->kv_used);
    }
}

const struct sums *history_last(const struct history *h)
{
    return h->n ? &h->at[(h->n - 1) % (HISTORY + 1)] : NULL;
}

/* Rates are differences between two samples. */
const struct sums *history_before(const struct history *h, int seconds)
{
    int have = h->n < HISTORY + 1 ? h->n : HISTORY + 1;

    if (have < 2) return NULL;
    if (seconds > have - 1) seconds = have - 1;
    return &h->at[(h->n - 1 - seconds) % (HISTORY + 1)];
}

/* ---- the watchdog ---- */

/* How long the engine has made no progress with work to do, in ms; 0: it works or is idle. */
static double silent_ms(const struct engine_stats *s, uint64_t now)
{
    uint64_t begun = (uint64_t)gauge_get(&s->step_begin_ns),
             beat = (uint64_t)gauge_get(&s->beat_ns);

    if (begun && begun < now) return (double)(now - begun) / 1e6;
    if (gauge_get(&s->waiting) > 0 && beat && beat < now) return (double)(now - beat) / 1e6;
    return 0;
}

/* A stall and its end are logged once each. */
static void watch_engine(struct server *v, const struct engine_stats *s, const char *id,
                         bool *stalled)
{
    double ms = silent_ms(s, clock_ns());
    unsigned long long step = counter_get(&s->steps);

    if (v->s->watchdog_ms > 0 && ms > (double)v->s->watchdog_ms) {
        if (!*stalled)
            log_error(
                "model '%s': the engine has made no progress for %.0f ms (watchdog: %lld ms); "
                "%lld running, %lld waiting, step %llu",
                id, ms, (long long)v->s->watchdog_ms, (long long)gauge_get(&s->running),
                (long long)gauge_get(&s->waiting), step);
        *stalled = true;
    } else if (*stalled) {
        log_warn("model '%s': the engine makes progress again, at step %llu", id, step);
        *stalled = false;
    }
}

static void watch_engines(struct server *v)
{
    for (int i = 0; i < pool_n(v->pool); i++) {
        const struct engine_stats *s = server_stats(v, i);
        struct model_note *n = server_note(v, i);
        if (s && n) watch_engine(v, s, pool_at(v->pool, i)->id, &n->stalled);
    }
}

/* ---- the answer of /ready ---- */

/* Models in that state. */
static int count_state(struct server *v, enum pool_state state)
{
    int n = 0;

    for (int i = 0; i < pool_n(v->pool); i++) n += pool_state(v->pool, i, NULL) == state;
    return n;
}

static bool is_stalled(struct server *v, int i)
{
    const struct model_note *n = server_note(v, i);
    return n && n->stalled;
}

/* Whether model i can serve, and the reason why not. One that is not loaded can: it will be. */
static enum ready check_model(struct server *v, int i, char reason[REASON_BYTES])
{
    const char *id = pool_at(v->pool, i)->id;
    struct err e = { 0 };

    switch (pool_state(v->pool, i, &e)) {
    case POOL_FAILED: snprintf(reason, REASON_BYTES, "%.500s", e.msg); return READY_FAILED;
    case POOL_LOADING:
        snprintf(reason, REASON_BYTES,
                 "model '%.100s' is loading: %d of %d models are ready after %.1f s", id,
                 count_state(v, POOL_READY), pool_n(v->pool), clock_ms_since(v->start_ns) / 1e3);
        return READY_LOADING;
    default: break;
    }
    reason[0] = 0;
    if (!is_stalled(v, i)) return READY_OK;
    snprintf(reason, REASON_BYTES,
             "the engine of model '%.100s' has made no progress for more than %lld ms", id,
             (long long)v->s->watchdog_ms);
    return READY_STALLED;
}

static enum ready check_draining(const struct server *v, char reason[REASON_BYTES])
{
    if (v->life == LIFE_RUN) return READY_OK;
    snprintf(reason, REASON_BYTES, "the server is shutting down");
    return READY_DRAINING;
}

/* The state of all models by the policy --ready: of those that are not ready, the first reason in the
 * order of enum ready. Models that are loaded on demand, or were unloaded on purpose, do not count. */
static void set_reason(struct server *v)
{
    bool any = strcmp(v->s->ready, "any") == 0, some = false;
    struct health *h = &v->health;
    char reason[REASON_BYTES];

    h->reason[0] = 0;
    h->ready = check_draining(v, h->reason);
    if (h->ready != READY_OK) return;
    for (int i = 0; i < pool_n(v->pool); i++) {
        enum ready r = check_model(v, i, reason);
        if (r != READY_OK && r != READY_STALLED && !pool_is_expected(v->pool, i)) continue;
        some |= r == READY_OK;
        if (r == READY_OK || (h->ready != READY_OK && h->ready <= r)) continue;
        h->ready = r;
        memcpy(h->reason, reason, sizeof reason);
    }
    if (!any || !some) return;
    h->ready = READY_OK;
    h->reason[0] = 0;
}

/* The members that every answer of /ready has; the object is left open. */
static void write_state(struct jsonw *w, enum ready ready, const char *reason)
{
    jsonw_obj(w);
    jsonw_key(w, "status"), jsonw_str(w, str_c(health_name(ready)));
    if (ready == READY_OK) return;
    jsonw_key(w, "reason"), jsonw_str(w, str_c(ready_code(ready)));
    jsonw_key(w, "message"), jsonw_str(w, str_c(reason));
}

/* Rendered here and not per request: monitors ask often. A body that finds no memory is rendered
 * again at the next tick. */
static void render_body(struct server *v)
{
    struct health *h = &v->health;
    struct jsonw w = { .out = &h->body };

    buf_clear(&h->body);
    write_state(&w, h->ready, h->reason);
    jsonw_key(&w, "models"), jsonw_obj(&w);
    jsonw_key(&w, "loaded"), jsonw_int(&w, count_state(v, POOL_READY));
    jsonw_key(&w, "failed"), jsonw_int(&w, count_state(v, POOL_FAILED));
    jsonw_key(&w, "total"), jsonw_int(&w, pool_n(v->pool));
    jsonw_end(&w);
    jsonw_end(&w);
}

void health_update(struct server *v)
{
    set_reason(v);
    render_body(v);
}

void health_tick(struct server *v)
{
    struct history *h = &v->history;

    history_sample(v, &h->at[h->n++ % (HISTORY + 1)]);
    watch_engines(v);
    health_update(v);
}

/* The process runs and its loop turns: nothing else is claimed. */
void health_get_live(struct visit *t)
{
    visit_reply(t, 200, "application/json", STR("{\"status\":\"ok\"}"));
}

static void send_ready(struct visit *t, enum ready ready, const struct buf *body)
{
    if (ready != READY_OK) http_set_header(t->q, "Retry-After", "1");
    visit_reply_buf(t, ready == READY_OK ? 200 : 503, "application/json", body);
}

/* /ready?model=NAME: that model alone, whatever the policy. */
static void send_ready_of(struct visit *t, struct str name)
{
    struct server *v = t->v;
    struct buf body = { 0 };
    struct jsonw w = { .out = &body };
    char reason[REASON_BYTES];
    enum ready ready;
    int i = 0;

    while (i < pool_n(v->pool) &&
           !(pool_is_listed(v->pool, i) && query_is(name, pool_at(v->pool, i)->id)))
        i++;
    if (i == pool_n(v->pool)) {
        visit_fail_status(t, 404, "model_not_found",
                          "this server has no such model; GET /v1/models lists those it has");
        return;
    }
    ready = check_draining(v, reason);
    if (ready == READY_OK) ready = check_model(v, i, reason);
    write_state(&w, ready, reason);
    jsonw_key(&w, "model"), jsonw_str(&w, str_c(pool_at(v->pool, i)->id));
    jsonw_end(&w);
    send_ready(t, ready, &body);
    buf_release(&body);
}

/* Load balancers send requests only while this is 200. */
void health_get_ready(struct visit *t)
{
    struct health *h = &t->v->health;
    struct str name;

    if (query_find(http_query(t->q), "model", &name)) send_ready_of(t, name);
    else send_ready(t, h->ready, &h->body);
}
