/* status.c - GET /status: the whole state as one JSON object, which docs/serving.md describes. One
 * function for each part of the object.
 *
 * Every member is always present, so that readers need no cases: a model that is not ready has
 * zeros and empty texts. Numbers are read without locks and may be a moment apart. */
#include "api/api.h"
#include "base/clock.h"
#include "base/jsonw.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "engine/stats.h"
#include "net/http.h"
#include "base/memavail.h"
#include "pool/pool.h"
#include "pool/prompter.h"
#include "server/auth.h"
#include "server/devices.h"
#include "server/facts.h"
#include "server/gpus.h"
#include "server/metrics.h"
#include "server/server_impl.h"
#include "server/visit.h"
#include "server/work.h"
#include "worker/seats.h"
#include "worker/supervisor.h"

#include <unistd.h>

static void write_int(struct jsonw *w, const char *key, int64_t v)
{
    jsonw_key(w, key), jsonw_int(w, v);
}
static void write_num(struct jsonw *w, const char *key, double v)
{
    jsonw_key(w, key), jsonw_num(w, v);
}
static void write_text(struct jsonw *w, const char *key, const char *v)
{
    jsonw_key(w, key), jsonw_str(w, str_c(v));
}
static void open_object(struct jsonw *w, const char *key) { jsonw_key(w, key), jsonw_obj(w); }

static double ratio(double a, double b) { return b > 0 ? a / b : 0; }
/* Three decimals are enough to read. */
static double round3(double v) { return (double)(int64_t)(v * 1000 + 0.5) / 1000; }

/* ---- sums of all models ---- */

/* The sum of one counter over all models; at: its offset in struct engine_stats. */
static uint64_t sum_counter(struct server *v, size_t at)
{
    uint64_t n = 0;

    for (int i = 0; i < pool_n(v->pool); i++) {
        const struct engine_stats *s = server_stats(v, i);
        if (s) n += counter_get((const struct counter *)((const char *)s + at));
    }
    return n;
}
#define TOTAL(v, field) ((int64_t)sum_counter(v, offsetof(struct engine_stats, field)))

/* Adds the histograms of all models into *out; returns the number of values. */
static uint64_t sum_hist(struct server *v, size_t at, struct hist *out)
{
    for (int i = 0; i < pool_n(v->pool); i++) {
        const struct engine_stats *s = server_stats(v, i);
        const struct hist *h = (const struct hist *)((const char *)s + at);
        if (!s) continue;
        if (!out->bounds) hist_init(out, h->bounds, h->n_bounds);
        for (int b = 0; b <= h->n_bounds; b++)
            out->bucket[b] += atomic_load_explicit(&h->bucket[b], memory_order_relaxed);
        out->count += atomic_load_explicit(&h->count, memory_order_relaxed);
    }
    return out->count;
}

/* The recent values of ITL are means of requests. The histogram has every gap, so it raises the
 * upper quantiles where single gaps were long. */
static void raise_to_hist(struct quantiles *q, const struct hist *h)
{
    double p95 = hist_quantile(h, 0.95) * 1e3, p99 = hist_quantile(h, 0.99) * 1e3;

    if (p95 > h->bounds[0] * 1e3 && p95 > q->p95) q->p95 = p95;
    if (p99 > h->bounds[0] * 1e3 && p99 > q->p99) q->p99 = p99;
}

/* count: over the whole life; quantiles: over the recent requests. */
static void write_quantiles(struct jsonw *w, const char *key, struct server *v,
                            enum recent_time what, size_t at)
{
    struct hist h = { 0 };
    struct quantiles q;

    recent_quantiles(&v->recent, what, &q);
    open_object(w, key);
    write_int(w, "count", (int64_t)sum_hist(v, at, &h));
    if (what == RECENT_ITL && h.count) raise_to_hist(&q, &h);
    write_num(w, "mean", round3(q.mean));
    write_num(w, "p50", round3(q.p50));
    write_num(w, "p95", round3(q.p95));
    write_num(w, "p99", round3(q.p99));
    jsonw_end(w);
}
#define QUANTILES(w, key, v, what, field) \
    write_quantiles(w, key, v, what, offsetof(struct engine_stats, field))

/* ---- parts ---- */

/* Bytes as the engine allocated them. */
static void write_model_memory(struct jsonw *w, const struct engine_info *i)
{
    open_object(w, "memory");
    write_int(w, "weights", (int64_t)i->weight_bytes);
    write_int(w, "kv", (int64_t)i->kv_bytes);
    write_int(w, "scratch", (int64_t)i->scratch_bytes);
    write_int(w, "total", (int64_t)(i->weight_bytes + i->kv_bytes + i->scratch_bytes));
    jsonw_end(w);
}

/* s NULL: the model is not ready. */
static void write_kv_blocks(struct jsonw *w, int block_tokens, const struct engine_stats *s)
{
    int64_t used = s ? gauge_get(&s->kv_used) : 0, idle = s ? gauge_get(&s->kv_idle) : 0;
    int64_t all = s ? gauge_get(&s->kv_total) : 0;

    open_object(w, "kv");
    write_int(w, "block_tokens", block_tokens);
    write_int(w, "used", used);
    write_int(w, "idle", idle);
    write_int(w, "free", all > used + idle ? all - used - idle : 0);
    write_int(w, "total", all);
    jsonw_end(w);
}

static void write_grammars(struct jsonw *w, const struct engine_stats *s)
{
    open_object(w, "grammars");
    write_int(w, "jobs", s ? gauge_get(&s->grammar_jobs) : 0);
    write_int(w, "cached_bytes", s ? gauge_get(&s->grammar_bytes) : 0);
    write_int(w, "matcher_bytes", s ? gauge_get(&s->matcher_bytes) : 0);
    jsonw_end(w);
}

/* The settings as the engine uses them: defaults are filled in. */
static void write_effective(struct jsonw *w, const struct engine_opt *o)
{
    open_object(w, "effective");
    write_int(w, "ctx", o->n_ctx);
    write_int(w, "kv-tokens", o->kv_tokens);
    write_int(w, "max-batch", o->max_batch);
    write_int(w, "max-seqs", o->max_seqs);
    write_int(w, "max-requests", o->max_requests);
    write_int(w, "max-queue-tokens", o->max_queue_tokens);
    write_num(w, "kv-overcommit", o->kv_overcommit);
    write_int(w, "step-ms", o->step_ms);
    write_num(w, "stretch", o->stretch);
    write_int(w, "age-ms", o->age_ms);
    jsonw_key(w, "prefix-cache"), jsonw_bool(w, !o->no_prefix);
    jsonw_end(w);
}

/* Times of loading. last: the device of the last layers, or a zeroed one. */
static void write_load(struct jsonw *w, const struct pool_instance *m,
                       const struct engine_device *last)
{
    write_num(w, "load_ms", m ? round3(m->load_ms) : 0);
    open_object(w, "load_phases");
    write_num(w, "read_ms", round3((double)last->read_ns / 1e6));
    write_num(w, "repack_ms", round3((double)last->pack_ns / 1e6));
    write_num(w, "upload_ms", round3((double)last->upload_ns / 1e6));
    jsonw_end(w);
    write_num(w, "warm_ms", m ? round3(m->warm_ms) : 0);
}

/* The devices of a model, in the order of its layers. */
static void write_model_devices(struct jsonw *w, const struct engine_info *i)
{
    jsonw_key(w, "devices"), jsonw_arr(w);
    for (int k = 0; k < i->n_devices; k++) {
        const struct engine_device *d = &i->device[k];
        jsonw_obj(w);
        write_text(w, "name", d->name);
        write_text(w, "detail", d->detail);
        write_int(w, "layers", d->n_layers);
        write_int(w, "experts", d->n_experts);
        write_int(w, "weight_bytes", (int64_t)d->plan_weights);
        jsonw_end(w);
    }
    jsonw_end(w);
}

/* Generation, use and expiry of a model, as the pool has them. */
static void write_pool_view(struct jsonw *w, struct server *v, int i)
{
    const struct pool_model *m = pool_at(v->pool, i);
    const struct pool_counts *c = pool_counts(v->pool, i);
    struct pool_view now;

    pool_view(v->pool, i, &now);
    write_int(w, "progress", now.progress);
    write_int(w, "generation", now.generation);
    jsonw_key(w, "preload"), jsonw_bool(w, m->preload);
    jsonw_key(w, "pinned"), jsonw_bool(w, m->pinned);
    write_int(w, "keep_alive_ms", m->keep_ms);
    write_int(w, "priority", m->priority);
    write_int(w, "uses", now.n_uses);
    write_int(w, "waits_for_load", now.n_waits);
    jsonw_key(w, "yields"), jsonw_bool(w, now.yields);
    write_int(w, "idle_ms", now.idle_ms);
    write_int(w, "expires_ms", now.expires_ms);
    write_int(w, "planned_bytes", (int64_t)now.bytes);
    write_text(w, "tier", tier_name(now.tier));
    write_text(w, "serves_tier", m->entry && m->entry->opt.tier ? m->entry->opt.tier : "");
    write_num(w, "cached", round3(now.cached));
    write_int(w, "read_ahead_bytes", (int64_t)now.ahead_bytes);
    write_int(w, "kv_parked", now.parked_blocks);
    write_int(w, "loads", (int64_t)counter_get(&c->loads));
    write_int(w, "load_failures", (int64_t)counter_get(&c->load_failures));
    write_int(w, "evictions", (int64_t)counter_get(&c->unloads[POOL_UNLOAD_ROOM]));
}

/* The process of an isolated model. */
static void write_worker(struct jsonw *w, struct server *v, const char *id)
{
    struct supervisor_view x;
    uint64_t restarts = 0;

    if (!v->workers || !supervisor_view(v->workers, id, &x)) return;
    jsonw_key(w, "pid");
    if (x.pid > 0) jsonw_int(w, x.pid); /* 0 would be a process group of whoever kills it */
    else jsonw_null(w);
    jsonw_key(w, "worker"), jsonw_obj(w);
    jsonw_key(w, "starts"), jsonw_int(w, (int64_t)x.starts);
    for (int i = 0; i < N_SUPERVISOR_DEATHS; i++) restarts += x.restarts[i];
    jsonw_key(w, "restarts"), jsonw_int(w, (int64_t)restarts);
    jsonw_key(w, "breaker"), jsonw_str(w, str_c(supervisor_breaker_name(x.breaker)));
    jsonw_key(w, "calls"), jsonw_int(w, x.calls);
    jsonw_key(w, "retried"), jsonw_int(w, (int64_t)x.retried);
    jsonw_key(w, "requests"), jsonw_int(w, (int64_t)x.requests);
    jsonw_key(w, "connections"), jsonw_int(w, (int64_t)x.connections);
    jsonw_key(w, "preflights"), jsonw_int(w, (int64_t)x.preflights);
    jsonw_key(w, "preflight_hits"), jsonw_int(w, (int64_t)x.preflight_hits);
    jsonw_key(w, "steps"), jsonw_int(w, x.steps);
    jsonw_key(w, "rtt_us"), jsonw_int(w, (int64_t)x.rtt_us);
    jsonw_key(w, "deaths"), jsonw_obj(w);
    for (int i = PROCESS_EXITED; i < N_SUPERVISOR_DEATHS; i++)
        jsonw_key(w, supervisor_death_name(i)), jsonw_int(w, (int64_t)x.deaths[i]);
    jsonw_end(w);
    jsonw_end(w);
}

/* One element of "models". */
static void write_model(struct jsonw *w, struct server *v, int index)
{
    const struct pool_model *m = pool_at(v->pool, index);
    struct pool_instance *now = pool_acquire(v->pool, index);
    struct err e = { 0 };
    enum pool_state state = now ? POOL_READY : pool_state(v->pool, index, &e);
    const struct engine_stats *s = server_stats(v, index);
    struct engine_info i = { 0 };
    const struct engine_device *last = &i.device[0];

    if (now) {
        pool_info(now, &i);
        last = engine_info_last(&i);
    }
    jsonw_obj(w);
    write_text(w, "id", m->id);
    write_text(w, "path", m->path);
    write_text(w, "state", pool_state_name(state));
    jsonw_key(w, "gone"), jsonw_bool(w, m->entry && atomic_load(&m->entry->gone));
    write_worker(w, v, m->id);
    write_text(w, "error", e.msg);
    write_pool_view(w, v, index);
    write_load(w, now, last);
    write_text(w, "arch", now ? i.arch : "");
    write_text(w, "task", now ? i.task : "");
    write_int(w, "parameters", (int64_t)i.n_params);
    write_int(w, "vocab", i.n_vocab);
    write_text(w, "chat_form", !now ? "" : now->prompter ? prompter_name(now->prompter) : "none");
    write_text(w, "device", now ? last->name : "");
    write_text(w, "device_detail", now ? last->detail : "");
    write_model_devices(w, &i);
    if (i.n_members)
        jsonw_key(w, "gang"),
            seats_write(w, &i, s ? round3((double)gauge_get(&s->comm_ppm) / 1e6) : 0);
    write_int(w, "context", i.opt.n_ctx);
    write_text(w, "kv_type", now ? i.kv_type : "");
    write_text(w, "sizes", now ? i.sizes : "");
    write_model_memory(w, &i);
    write_kv_blocks(w, i.block_tokens, s);
    write_int(w, "kv_restored", i.n_restored);
    write_grammars(w, s);
    write_effective(w, &i.opt);
    write_int(w, "running", s ? gauge_get(&s->running) : 0);
    write_int(w, "waiting", s ? gauge_get(&s->waiting) : 0);
    jsonw_end(w);
    pool_release(now);
}

/* peak: the sum of the peaks of all models, which need not have been at the same time. */
static void write_queue(struct jsonw *w, struct server *v, const struct sums *now)
{
    int64_t peak = 0;

    for (int i = 0; i < pool_n(v->pool); i++) {
        const struct engine_stats *s = server_stats(v, i);
        if (s) peak += gauge_get(&s->queue_peak);
    }
    open_object(w, "queue");
    write_int(w, "waiting", now->waiting);
    write_int(w, "running", now->running);
    write_int(w, "peak", peak);
    QUANTILES(w, "wait_ms", v, RECENT_QUEUE, queue);
    jsonw_end(w);
}

/* Differences between the newest sample and the one RATE_S seconds before. */
static void write_rates(struct jsonw *w, struct server *v)
{
    const struct sums *b = history_last(&v->history), *a = history_before(&v->history, RATE_S);
    double s = a && b ? (double)(b->at_ns - a->at_ns) / 1e9 : 0;

    open_object(w, "rates");
    write_num(w, "window_s", round3(s));
    write_num(w, "generated_per_s", s > 0 ? round3((double)(b->generated - a->generated) / s) : 0);
    write_num(w, "prompt_per_s", s > 0 ? round3((double)(b->prompt - a->prompt) / s) : 0);
    write_num(w, "requests_per_s", s > 0 ? round3((double)(b->finished - a->finished) / s) : 0);
    write_num(w, "steps_per_s", s > 0 ? round3((double)(b->steps - a->steps) / s) : 0);
    jsonw_end(w);
}

static void write_scheduler(struct jsonw *w, struct server *v)
{
    int64_t steps = TOTAL(v, steps), tokens = TOTAL(v, step_tokens);
    int64_t asked = TOTAL(v, prefix_queried), hit = TOTAL(v, prefix_hit);

    open_object(w, "scheduler");
    write_int(w, "steps", steps);
    write_int(w, "step_tokens", tokens);
    write_num(w, "tokens_per_step", round3(ratio((double)tokens, (double)steps)));
    write_int(w, "preemptions", TOTAL(v, preemptions));
    write_int(w, "prefix_queried", asked);
    write_int(w, "prefix_hit", hit);
    write_num(w, "prefix_hit_rate", round3(ratio((double)hit, (double)asked)));
    write_int(w, "after_cancel", TOTAL(v, after_cancel));
    write_rates(w, v);
    jsonw_end(w);
}

/* Requests by end and by refusal; tokens. */
static void write_requests(struct jsonw *w, struct server *v)
{
    open_object(w, "requests");
    write_int(w, "submitted", TOTAL(v, submitted));
    open_object(w, "finished");
    for (int f = FINISH_STOP; f <= FINISH_ERROR; f++)
        write_int(w, finish_name((enum finish)f),
                  (int64_t)sum_counter(v, offsetof(struct engine_stats, finished) +
                                              (size_t)f * sizeof(struct counter)));
    jsonw_end(w);
    open_object(w, "rejected");
    for (int r = 0; refused_name(r); r++)
        write_int(w, refused_name(r), (int64_t)counter_get(&v->refused.n[r]));
    jsonw_end(w);
    jsonw_end(w);
    open_object(w, "tokens");
    write_int(w, "prompt", TOTAL(v, prompt_tokens));
    write_int(w, "cached", TOTAL(v, cached_tokens));
    write_int(w, "generated", TOTAL(v, generated_tokens));
    jsonw_end(w);
}

static void write_latencies(struct jsonw *w, struct server *v)
{
    open_object(w, "latencies");
    QUANTILES(w, "ttft_ms", v, RECENT_TTFT, ttft);
    QUANTILES(w, "itl_ms", v, RECENT_ITL, itl);
    QUANTILES(w, "e2e_ms", v, RECENT_E2E, e2e);
    QUANTILES(w, "queue_ms", v, RECENT_QUEUE, queue);
    QUANTILES(w, "prefill_ms", v, RECENT_PREFILL, prefill);
    QUANTILES(w, "decode_ms", v, RECENT_DECODE, decode);
    jsonw_end(w);
}

/* The given limit, or what the machine or the cgroup has in all; 0: none. */
static int64_t memory_limit(const struct server *v)
{
    struct memavail m;

    if (v->s->memory_limit >= 0) return v->s->memory_limit;
    memavail_read(&m, "");
    return m.total <= INT64_MAX ? (int64_t)m.total : 0;
}

/* Memory and connections. */
static void write_process(struct jsonw *w, struct server *v)
{
    struct http_stats h;
    uint64_t weights = 0, kv = 0, scratch = 0;

    for (int i = 0; i < pool_n(v->pool); i++) {
        struct engine_info info;
        if (!server_engine_info(v, i, &info)) continue;
        weights += info.weight_bytes, kv += info.kv_bytes, scratch += info.scratch_bytes;
    }
    open_object(w, "memory");
    write_int(w, "rss", (int64_t)metrics_rss());
    write_int(w, "rss_peak", (int64_t)metrics_rss_peak());
    write_int(w, "weights", (int64_t)weights);
    write_int(w, "kv", (int64_t)kv);
    write_int(w, "scratch", (int64_t)scratch);
    write_int(w, "limit", memory_limit(v));
    open_object(w, "device_limits");
    for (int i = 0; i < v->n_device_limits; i++)
        write_int(w, v->device_limits[i].device, (int64_t)v->device_limits[i].bytes);
    jsonw_end(w);
    write_int(w, "parked", (int64_t)pool_parked_bytes(v->pool));
    jsonw_end(w);

    http_stats(v->http, &h);
    open_object(w, "connections");
    write_int(w, "open", h.conns);
    write_int(w, "watchers", api_n_watchers(v->api));
    write_int(w, "max", v->max_conns);
    write_int(w, "accepted", (int64_t)h.accepted);
    write_int(w, "refused", (int64_t)h.refused);
    write_int(w, "closed_idle", (int64_t)h.closed_idle);
    write_int(w, "bodies_held", (int64_t)h.held);
    write_int(w, "requests", (int64_t)h.requests);
    write_int(w, "reused", (int64_t)h.reused);
    write_int(w, "bad", (int64_t)h.bad);
    write_int(w, "cut_off", (int64_t)h.cut_off);
    write_int(w, "no_memory", (int64_t)h.no_memory);
    jsonw_end(w);
}

/* Limits that each model has are shown for the first. */
static void write_limits(struct jsonw *w, struct server *v)
{
    const struct settings *s = v->s;
    struct engine_info i = { 0 };

    server_engine_info(v, 0, &i);
    open_object(w, "limits");
    write_int(w, "max_seqs", i.opt.max_seqs);
    write_int(w, "max_requests", i.opt.max_requests);
    write_int(w, "max_batch", i.opt.max_batch);
    write_int(w, "max_queue_tokens", i.opt.max_queue_tokens);
    write_int(w, "context", i.opt.n_ctx);
    write_int(w, "kv_tokens", i.opt.kv_tokens);
    write_int(w, "max_tokens_default", s->max_tokens_default);
    write_int(w, "deadline_ms", s->deadline_ms);
    write_int(w, "rate_per_min", s->rate_per_min);
    write_int(w, "concurrency", s->concurrency);
    write_int(w, "max_body", s->max_body);
    write_int(w, "max_connections", v->max_conns);
    jsonw_end(w);
}

enum series { S_GENERATED, S_PROMPT, S_RUNNING, S_WAITING, S_KV };

/* One number per second, the oldest first. */
static void write_series(struct jsonw *w, const struct history *h, const char *key,
                         enum series what)
{
    int have = h->n < HISTORY + 1 ? h->n : HISTORY + 1;

    jsonw_key(w, key), jsonw_arr(w);
    for (int i = have - 1; i > 0; i--) {
        const struct sums *a = &h->at[(h->n - i - 1) % (HISTORY + 1)],
                          *b = &h->at[(h->n - i) % (HISTORY + 1)];
        double s = (double)(b->at_ns - a->at_ns) / 1e9;
        switch (what) {
        case S_GENERATED:
            jsonw_num(w, round3(ratio((double)(b->generated - a->generated), s)));
            break;
        case S_PROMPT: jsonw_num(w, round3(ratio((double)(b->prompt - a->prompt), s))); break;
        case S_RUNNING: jsonw_int(w, b->running); break;
        case S_WAITING: jsonw_int(w, b->waiting); break;
        case S_KV: jsonw_int(w, b->kv_used); break;
        }
    }
    jsonw_end(w);
}

static void write_history(struct jsonw *w, const struct history *h)
{
    open_object(w, "history");
    write_int(w, "step_s", 1);
    write_series(w, h, "generated_per_s", S_GENERATED);
    write_series(w, h, "prompt_per_s", S_PROMPT);
    write_series(w, h, "running", S_RUNNING);
    write_series(w, h, "waiting", S_WAITING);
    write_series(w, h, "kv_used", S_KV);
    jsonw_end(w);
}

/* "gpus" is present only where NVML reports some. */
static void write_devices(struct jsonw *w, struct server *v)
{
    jsonw_key(w, "devices"), jsonw_arr(w);
    devices_write_json(v, w);
    jsonw_end(w);
    write_num(w, "device_utilization", round3(devices_utilization(v)));
    if (gpus_get(v->gpus, NULL, 0) == 0) return;
    jsonw_key(w, "gpus"), jsonw_arr(w);
    gpus_write_json(v->gpus, w);
    jsonw_end(w);
}

/* now_ms lets a client compute ages without a synchronised clock. */
static void write_head(struct jsonw *w, struct server *v)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    write_text(w, "version", TERN_VERSION);
    write_int(w, "pid", getpid());
    write_int(w, "now_ms", (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000);
    write_num(w, "uptime_s", round3(clock_ms_since(v->start_ns) / 1e3));
    write_text(w, "state", health_name(v->health.ready));
    write_text(w, "reason", v->health.reason);
}

/* Effective values are those of the first model that is ready. */
static void write_settings(struct server *v, struct buf *out)
{
    struct engine_info info;
    struct settings_facts *f = &v->facts;

    if (f->n_cores == 0) facts_read_machine(f, v->s); /* constant; the first time takes a while */
    f->port = http_port(v->http);
    f->max_conns = v->max_conns;
    f->has_keys = !auth_is_open(v->auth);
    f->model = NULL;
    for (int i = 0; i < pool_n(v->pool) && !f->model; i++)
        if (server_engine_info(v, i, &info)) f->model = &info;
    settings_json(v->s, f, out);
    f->model = NULL;
}

/* Calls and settings write themselves; they follow as raw JSON. */
void status_get(struct visit *t)
{
    struct server *v = t->v;
    struct buf b = { 0 };
    struct jsonw w = { .out = &b };
    struct sums now;

    history_sample(v, &now);
    jsonw_obj(&w);
    write_head(&w, v);
    jsonw_key(&w, "models"), jsonw_arr(&w);
    for (int i = server_next_model(v, 0); i < pool_n(v->pool); i = server_next_model(v, i + 1))
        write_model(&w, v, i);
    jsonw_end(&w);
    write_devices(&w, v);
    write_queue(&w, v, &now);
    write_scheduler(&w, v);
    write_latencies(&w, v);
    write_requests(&w, v);
    write_process(&w, v);
    write_limits(&w, v);
    write_history(&w, &v->history);
    jsonw_key(&w, "jobs");
    work_write_status(v, &w);
    buf_puts(&b, ",\"calls\":");
    api_status(v->api, &b);
    buf_puts(&b, ",\"settings\":");
    write_settings(v, &b);
    jsonw_end(&w);
    http_set_header(t->q, "Cache-Control", "no-store");
    visit_reply_buf(t, 200, "application/json", &b);
    buf_release(&b);
}
