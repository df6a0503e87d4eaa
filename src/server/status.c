/* status.c - GET /status: everything in one JSON object. docs/serving.md shows it. */
#include "base/clock.h"
#include "base/jsonw.h"
#include "server/server_impl.h"

#include <sys/resource.h>
#include <unistd.h>

uint64_t process_rss(void)
{
    unsigned long long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    if (!f) return 0;
    if (fscanf(f, "%llu %llu", &size, &resident) != 2) resident = 0;
    fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t process_rss_peak(void)
{
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) == 0 ? (uint64_t)u.ru_maxrss * 1024 : 0;
}

static void put_int(struct jsonw *w, const char *key, int64_t v)
{
    jsonw_key(w, key), jsonw_int(w, v);
}
static void put_num(struct jsonw *w, const char *key, double v)
{
    jsonw_key(w, key), jsonw_num(w, v);
}
static void put_text(struct jsonw *w, const char *key, const char *v)
{
    jsonw_key(w, key), jsonw_str(w, str_c(v));
}
static void put_obj(struct jsonw *w, const char *key) { jsonw_key(w, key), jsonw_obj(w); }

static double ratio(double a, double b) { return b > 0 ? a / b : 0; }
/* Enough digits to read, few to send. */
static double rounded(double v) { return (double)(int64_t)(v * 1000 + 0.5) / 1000; }

/* ---- sums of all models ---- */

/* A counter of every model, by its place in the statistics. */
static uint64_t total(struct server *v, size_t at)
{
    uint64_t n = 0;

    for (int i = 0; i < pool_n(v->pool); i++) {
        const struct engine_stats *s = server_stats(v, i);
        if (s) n += counter_get((const struct counter *)((const char *)s + at));
    }
    return n;
}
#define TOTAL(v, field) ((int64_t)total(v, offsetof(struct engine_stats, field)))

/* How many values the histograms of all models have, and a quantile of them, in seconds. */
static uint64_t hist_total(struct server *v, size_t at, struct hist *out)
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

/* Gaps between tokens are known by request; a long one inside a request, the histogram tells. */
static void add_long_gaps(struct quantiles *q, const struct hist *h)
{
    double p95 = hist_quantile(h, 0.95) * 1e3, p99 = hist_quantile(h, 0.99) * 1e3;

    if (p95 > h->bounds[0] * 1e3 && p95 > q->p95) q->p95 = p95;
    if (p99 > h->bounds[0] * 1e3 && p99 > q->p99) q->p99 = p99;
}

static void put_quantiles(struct jsonw *w, const char *key, struct server *v, enum recent_time what,
                          size_t at)
{
    struct hist h = { 0 };
    struct quantiles q;

    recent_quantiles(&v->recent, what, &q);
    put_obj(w, key);
    put_int(w, "count", (int64_t)hist_total(v, at, &h));
    if (what == RECENT_ITL && h.count) add_long_gaps(&q, &h);
    put_num(w, "mean", rounded(q.mean));
    put_num(w, "p50", rounded(q.p50));
    put_num(w, "p95", rounded(q.p95));
    put_num(w, "p99", rounded(q.p99));
    jsonw_end(w);
}
#define QUANTILES(w, key, v, what, field) \
    put_quantiles(w, key, v, what, offsetof(struct engine_stats, field))

/* ---- parts ---- */

static void put_memory(struct jsonw *w, const struct engine_info *i)
{
    put_obj(w, "memory");
    put_int(w, "weights", (int64_t)i->weight_bytes);
    put_int(w, "kv", (int64_t)i->kv_bytes);
    put_int(w, "scratch", (int64_t)i->scratch_bytes);
    put_int(w, "total", (int64_t)(i->weight_bytes + i->kv_bytes + i->scratch_bytes));
    jsonw_end(w);
}

static void put_blocks(struct jsonw *w, const struct engine_stats *s)
{
    int64_t used = s ? gauge_get(&s->kv_used) : 0, idle = s ? gauge_get(&s->kv_idle) : 0;
    int64_t all = s ? gauge_get(&s->kv_total) : 0;

    put_obj(w, "kv");
    put_int(w, "block_tokens", KV_BLOCK);
    put_int(w, "used", used);
    put_int(w, "idle", idle);
    put_int(w, "free", all > used + idle ? all - used - idle : 0);
    put_int(w, "total", all);
    jsonw_end(w);
}

/* What the engine made of the settings: no zeros that mean a default. */
static void put_effective(struct jsonw *w, const struct engine_opt *o)
{
    put_obj(w, "effective");
    put_int(w, "ctx", o->n_ctx);
    put_int(w, "kv-tokens", o->kv_tokens);
    put_int(w, "max-batch", o->max_batch);
    put_int(w, "max-seqs", o->max_seqs);
    put_int(w, "max-requests", o->max_requests);
    put_int(w, "max-queue-tokens", o->max_queue_tokens);
    put_num(w, "kv-overcommit", o->kv_overcommit);
    put_int(w, "step-ms", o->step_ms);
    put_num(w, "stretch", o->stretch);
    put_int(w, "age-ms", o->age_ms);
    jsonw_key(w, "prefix-cache"), jsonw_bool(w, !o->no_prefix);
    jsonw_end(w);
}

static void put_model(struct jsonw *w, struct server *v, int index)
{
    static const char *const states[] = { "loading", "ready", "failed" };
    struct pool_model *m = pool_at(v->pool, index);
    int state = atomic_load_explicit(&m->state, memory_order_acquire);
    const struct engine_stats *s = server_stats(v, index);
    struct engine_info i = { 0 };

    if (s) engine_info(m->engine, &i);
    jsonw_obj(w);
    put_text(w, "id", m->id);
    put_text(w, "path", m->path);
    put_text(w, "state", states[state]);
    put_text(w, "error", state == POOL_FAILED ? m->err.msg : "");
    put_num(w, "load_ms", s ? rounded(m->load_ms) : 0);
    put_obj(w, "load_phases");
    put_num(w, "read_ms", rounded((double)i.device.read_ns / 1e6));
    put_num(w, "repack_ms", rounded((double)i.device.pack_ns / 1e6));
    put_num(w, "upload_ms", rounded((double)i.device.upload_ns / 1e6));
    jsonw_end(w);
    put_num(w, "warm_ms", s ? rounded(m->warm_ms) : 0);
    put_text(w, "arch", s ? i.model->hp.arch : "");
    put_text(w, "task", s ? i.task : "");
    put_int(w, "parameters", s ? (int64_t)i.model->n_params : 0);
    put_int(w, "vocab", s ? i.model->hp.n_vocab : 0);
    put_text(w, "chat_form", !s ? "" : m->chat ? "template" : chatform_name(m->form));
    put_text(w, "device", s ? place_last(i.place)->name : "");
    put_text(w, "device_detail", s ? place_last(i.place)->detail : "");
    jsonw_key(w, "devices"), jsonw_arr(w);
    for (int k = 0; s && k < i.place->n_shares; k++) {
        const struct backend_share *d = &i.place->shares[k];
        jsonw_obj(w);
        put_text(w, "name", d->be->name);
        put_text(w, "detail", d->be->detail);
        put_int(w, "layers", d->n_layers);
        jsonw_end(w);
    }
    jsonw_end(w);
    put_int(w, "context", i.opt.n_ctx);
    put_text(w, "kv_type", s ? dtype_name((int)i.opt.kv_type) : "");
    put_memory(w, &i);
    put_blocks(w, s);
    put_effective(w, &i.opt);
    put_int(w, "running", s ? gauge_get(&s->running) : 0);
    put_int(w, "waiting", s ? gauge_get(&s->waiting) : 0);
    jsonw_end(w);
}

static void put_queue(struct jsonw *w, struct server *v, const struct sums *now)
{
    int64_t peak = 0;

    for (int i = 0; i < pool_n(v->pool); i++) {
        const struct engine_stats *s = server_stats(v, i);
        if (s) peak += gauge_get(&s->queue_peak);
    }
    put_obj(w, "queue");
    put_int(w, "waiting", now->waiting);
    put_int(w, "running", now->running);
    put_int(w, "peak", peak);
    QUANTILES(w, "wait_ms", v, RECENT_QUEUE, queue);
    jsonw_end(w);
}

static void put_rates(struct jsonw *w, struct server *v)
{
    const struct sums *b = history_last(&v->history), *a = history_before(&v->history, RATE_S);
    double s = a && b ? (double)(b->at_ns - a->at_ns) / 1e9 : 0;

    put_obj(w, "rates");
    put_num(w, "window_s", rounded(s));
    put_num(w, "generated_per_s", s > 0 ? rounded((double)(b->generated - a->generated) / s) : 0);
    put_num(w, "prompt_per_s", s > 0 ? rounded((double)(b->prompt - a->prompt) / s) : 0);
    put_num(w, "requests_per_s", s > 0 ? rounded((double)(b->finished - a->finished) / s) : 0);
    put_num(w, "steps_per_s", s > 0 ? rounded((double)(b->steps - a->steps) / s) : 0);
    jsonw_end(w);
}

static void put_scheduler(struct jsonw *w, struct server *v)
{
    int64_t steps = TOTAL(v, steps), tokens = TOTAL(v, step_tokens);
    int64_t asked = TOTAL(v, prefix_queried), hit = TOTAL(v, prefix_hit);

    put_obj(w, "scheduler");
    put_int(w, "steps", steps);
    put_int(w, "step_tokens", tokens);
    put_num(w, "tokens_per_step", rounded(ratio((double)tokens, (double)steps)));
    put_int(w, "preemptions", TOTAL(v, preemptions));
    put_int(w, "prefix_queried", asked);
    put_int(w, "prefix_hit", hit);
    put_num(w, "prefix_hit_rate", rounded(ratio((double)hit, (double)asked)));
    put_int(w, "after_cancel", TOTAL(v, after_cancel));
    put_rates(w, v);
    jsonw_end(w);
}

static void put_requests(struct jsonw *w, struct server *v)
{
    static const char *const rejects[N_REJECT] = { "context_exceeded", "queue_full",
                                                   "memory_admission", "deadline_exceeded",
                                                   "shutting_down",    "invalid_request" };
    static const char *const turned[N_TURNED] = { "rate_limited", "concurrency_limit",
                                                  "unauthorized", "foreign_origin",
                                                  "model_loading" };

    put_obj(w, "requests");
    put_int(w, "submitted", TOTAL(v, submitted));
    put_obj(w, "finished");
    for (int f = FINISH_STOP; f <= FINISH_ERROR; f++)
        put_int(w, finish_name((enum finish)f),
                (int64_t)total(v, offsetof(struct engine_stats, finished) +
                                      (size_t)f * sizeof(struct counter)));
    jsonw_end(w);
    put_obj(w, "rejected");
    for (int r = 0; r < N_REJECT; r++)
        put_int(w, rejects[r],
                (int64_t)total(v, offsetof(struct engine_stats, rejected) +
                                      (size_t)r * sizeof(struct counter)));
    for (int r = 0; r < N_TURNED; r++) put_int(w, turned[r], (int64_t)counter_get(&v->turned[r]));
    jsonw_end(w);
    jsonw_end(w);
    put_obj(w, "tokens");
    put_int(w, "prompt", TOTAL(v, prompt_tokens));
    put_int(w, "cached", TOTAL(v, cached_tokens));
    put_int(w, "generated", TOTAL(v, generated_tokens));
    jsonw_end(w);
}

static void put_latencies(struct jsonw *w, struct server *v)
{
    put_obj(w, "latencies");
    QUANTILES(w, "ttft_ms", v, RECENT_TTFT, ttft);
    QUANTILES(w, "itl_ms", v, RECENT_ITL, itl);
    QUANTILES(w, "e2e_ms", v, RECENT_E2E, e2e);
    QUANTILES(w, "queue_ms", v, RECENT_QUEUE, queue);
    QUANTILES(w, "prefill_ms", v, RECENT_PREFILL, prefill);
    QUANTILES(w, "decode_ms", v, RECENT_DECODE, decode);
    jsonw_end(w);
}

static void put_process(struct jsonw *w, struct server *v)
{
    struct http_stats h;
    uint64_t weights = 0, kv = 0, scratch = 0;

    for (int i = 0; i < pool_n(v->pool); i++) {
        struct engine_info info;
        if (!server_stats(v, i)) continue;
        engine_info(pool_at(v->pool, i)->engine, &info);
        weights += info.weight_bytes, kv += info.kv_bytes, scratch += info.scratch_bytes;
    }
    put_obj(w, "memory");
    put_int(w, "rss", (int64_t)process_rss());
    put_int(w, "rss_peak", (int64_t)process_rss_peak());
    put_int(w, "weights", (int64_t)weights);
    put_int(w, "kv", (int64_t)kv);
    put_int(w, "scratch", (int64_t)scratch);
    put_int(w, "limit", v->s->memory_limit);
    jsonw_end(w);

    http_stats(v->http, &h);
    put_obj(w, "connections");
    put_int(w, "open", h.conns);
    put_int(w, "max", v->s->max_connections);
    put_int(w, "accepted", (int64_t)h.accepted);
    put_int(w, "refused", (int64_t)h.refused);
    put_int(w, "requests", (int64_t)h.requests);
    put_int(w, "reused", (int64_t)h.reused);
    put_int(w, "bad", (int64_t)h.bad);
    put_int(w, "cut_off", (int64_t)h.cut_off);
    jsonw_end(w);
}

/* Of the first model where each has its own. */
static void put_limits(struct jsonw *w, struct server *v)
{
    const struct settings *s = v->s;
    struct engine_info i = { 0 };

    if (server_stats(v, 0)) engine_info(pool_at(v->pool, 0)->engine, &i);
    put_obj(w, "limits");
    put_int(w, "max_seqs", i.opt.max_seqs);
    put_int(w, "max_requests", i.opt.max_requests);
    put_int(w, "max_batch", i.opt.max_batch);
    put_int(w, "max_queue_tokens", i.opt.max_queue_tokens);
    put_int(w, "context", i.opt.n_ctx);
    put_int(w, "kv_tokens", i.opt.kv_tokens);
    put_int(w, "max_tokens_default", s->max_tokens_default);
    put_int(w, "deadline_ms", s->deadline_ms);
    put_int(w, "rate_per_min", s->rate_per_min);
    put_int(w, "concurrency", s->concurrency);
    put_int(w, "max_body", s->max_body);
    put_int(w, "max_connections", s->max_connections);
    jsonw_end(w);
}

enum series { S_GENERATED, S_PROMPT, S_RUNNING, S_WAITING, S_KV };

static void put_series(struct jsonw *w, const struct history *h, const char *key, enum series what)
{
    int have = h->n < HISTORY + 1 ? h->n : HISTORY + 1;

    jsonw_key(w, key), jsonw_arr(w);
    for (int i = have - 1; i > 0; i--) {
        const struct sums *a = &h->at[(h->n - i - 1) % (HISTORY + 1)],
                          *b = &h->at[(h->n - i) % (HISTORY + 1)];
        double s = (double)(b->at_ns - a->at_ns) / 1e9;
        switch (what) {
        case S_GENERATED:
            jsonw_num(w, rounded(ratio((double)(b->generated - a->generated), s)));
            break;
        case S_PROMPT: jsonw_num(w, rounded(ratio((double)(b->prompt - a->prompt), s))); break;
        case S_RUNNING: jsonw_int(w, b->running); break;
        case S_WAITING: jsonw_int(w, b->waiting); break;
        case S_KV: jsonw_int(w, b->kv_used); break;
        }
    }
    jsonw_end(w);
}

static void put_history(struct jsonw *w, const struct history *h)
{
    put_obj(w, "history");
    put_int(w, "step_s", 1);
    put_series(w, h, "generated_per_s", S_GENERATED);
    put_series(w, h, "prompt_per_s", S_PROMPT);
    put_series(w, h, "running", S_RUNNING);
    put_series(w, h, "waiting", S_WAITING);
    put_series(w, h, "kv_used", S_KV);
    jsonw_end(w);
}

static void put_devices(struct jsonw *w, struct server *v)
{
    jsonw_key(w, "devices"), jsonw_arr(w);
    devices_json(v, w);
    jsonw_end(w);
    put_num(w, "device_utilization", rounded(devices_utilization(v)));
    if (gpus_get(v->gpus, NULL, 0) == 0) return;
    jsonw_key(w, "gpus"), jsonw_arr(w);
    gpus_json(v->gpus, w);
    jsonw_end(w);
}

static void put_head(struct jsonw *w, struct server *v)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    put_text(w, "version", TERN_VERSION);
    put_int(w, "pid", getpid());
    put_int(w, "now_ms", (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000);
    put_num(w, "uptime_s", rounded(clock_ms_since(v->start_ns) / 1e3));
    put_text(w, "state", ready_name(v->health.ready));
    put_text(w, "reason", v->health.reason);
}

void status_get(struct visit *t)
{
    struct server *v = t->v;
    struct buf b = { 0 };
    struct jsonw w = { .out = &b };
    struct sums now;

    server_sums(v, &now);
    jsonw_obj(&w);
    put_head(&w, v);
    jsonw_key(&w, "models"), jsonw_arr(&w);
    for (int i = 0; i < pool_n(v->pool); i++) put_model(&w, v, i);
    jsonw_end(&w);
    put_devices(&w, v);
    put_queue(&w, v, &now);
    put_scheduler(&w, v);
    put_latencies(&w, v);
    put_requests(&w, v);
    put_process(&w, v);
    put_limits(&w, v);
    put_history(&w, &v->history);
    buf_puts(&b, ",\"calls\":");
    api_status(v->api, &b);
    buf_puts(&b, ",\"settings\":");
    settings_json(v->s, &b);
    jsonw_end(&w);
    http_set_header(t->q, "Cache-Control", "no-store");
    visit_reply(t, 200, "application/json", buf_str(&b));
    buf_release(&b);
}
