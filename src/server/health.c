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
        if (s) watch_engine(v, s, pool_at(v->pool, i)->id, &v->health.stalled[i]);
    }
}

/* ---- the answer of /ready ---- */

/* The first model in that state, with its error; NULL: none is. */
static const struct pool_model *find_in_state(struct server *v, enum pool_state state,
                                              struct err *e)
{
    for (int i = 0; i < pool_n(v->pool); i++)
        if (pool_state(v->pool, i, e) == state) return pool_at(v->pool, i);
    return NULL;
}

/* Models that are loaded and warmed up. */
static int count_ready(struct server *v)
{
    int n = 0;

    for (int i = 0; i < pool_n(v->pool); i++) n += pool_state(v->pool, i, NULL) == POOL_READY;
    return n;
}

/* The first reason that applies, in the order of enum ready. */
static void set_reason(struct server *v)
{
    struct health *h = &v->health;
    const struct pool_model *m;
    struct err e;

    h->ready = READY_OK;
    h->reason[0] = 0;
    if (v->life != LIFE_RUN) {
        h->ready = READY_DRAINING;
        snprintf(h->reason, sizeof h->reason, "the server is shutting down");
    } else if ((m = find_in_state(v, POOL_FAILED, &e))) {
        h->ready = READY_FAILED;
        snprintf(h->reason, sizeof h->reason, "%.500s", e.msg);
    } else if ((m = find_in_state(v, POOL_LOADING, &e))) {
        h->ready = READY_LOADING;
        snprintf(h->reason, sizeof h->reason,
                 "model '%.100s' is loading: %d of %d models are ready after %.1f s", m->id,
                 count_ready(v), pool_n(v->pool), clock_ms_since(v->start_ns) / 1e3);
    } else {
        for (int i = 0; i < pool_n(v->pool) && h->ready == READY_OK; i++)
            if (h->stalled[i]) {
                h->ready = READY_STALLED;
                snprintf(h->reason, sizeof h->reason,
                         "the engine of model '%.100s' has made no progress for more than %lld ms",
                         pool_at(v->pool, i)->id, (long long)v->s->watchdog_ms);
            }
    }
}

/* Rendered here and not per request: monitors ask often. A body that finds no memory is rendered
 * again at the next tick. */
static void render_body(struct server *v)
{
    struct health *h = &v->health;
    struct jsonw w = { .out = &h->body };

    buf_clear(&h->body);
    jsonw_obj(&w);
    jsonw_key(&w, "status"), jsonw_str(&w, str_c(health_name(h->ready)));
    if (h->ready != READY_OK) {
        jsonw_key(&w, "reason"), jsonw_str(&w, str_c(ready_code(h->ready)));
        jsonw_key(&w, "message"), jsonw_str(&w, str_c(h->reason));
    }
    jsonw_key(&w, "models"), jsonw_obj(&w);
    jsonw_key(&w, "loaded"), jsonw_int(&w, count_ready(v));
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

/* Load balancers send requests only while this is 200. */
void health_get_ready(struct visit *t)
{
    struct health *h = &t->v->health;

    if (h->ready != READY_OK) http_set_header(t->q, "Retry-After", "1");
    visit_reply_buf(t, h->ready == READY_OK ? 200 : 503, "application/json", &h->body);
}
