/* metrics.c - GET /metrics: the table of metrics of each model, and the metrics of the server.
 *
 * Labels are models, routes and fixed words. Nothing a client sends becomes a label, so the number
 * of series is bounded. Values are read without locks, one after the other; each is consistent in
 * itself.
 *
 * Series of one name follow each other, since the text format requires it; HELP and TYPE are
 * written with the first, which is why the loops set `help` to NULL after it. */
#include "server/metrics.h"

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "engine/stats.h"
#include "net/http.h"
#include "pool/pool.h"
#include "server/devices.h"
#include "server/routes.h"
#include "server/server_impl.h"
#include "server/visit.h"
#include "server/work.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

/* Why an engine rejected a request. */
static const char *const reject_names[] = { "context_exceeded", "queue_full",
                                            "memory_admission", "deadline_exceeded",
                                            "shutting_down",    "invalid_request" };
_Static_assert(sizeof reject_names / sizeof *reject_names == N_REJECT, "a name each");

static const struct metric per_model[] = {
    METRIC("tern_requests_running", GAUGE, running, "Sequences that run"),
    METRIC("tern_requests_waiting", GAUGE, waiting, "Requests in the queue"),
    METRIC("tern_queue_depth", GAUGE, waiting, "Requests in the queue"),
    METRIC("tern_queue_depth_max", GAUGE, queue_peak, "Largest depth of the queue so far"),
    METRIC("tern_requests_submitted_total", COUNTER, submitted, "Requests accepted by the engine"),
    METRIC("tern_kv_blocks_used", GAUGE, kv_used, "KV blocks held by sequences"),
    METRIC("tern_kv_blocks_idle", GAUGE, kv_idle,
           "KV blocks of cached prefixes that no sequence uses"),
    METRIC("tern_kv_blocks_total", GAUGE, kv_total, "KV blocks"),
    METRIC("tern_prefix_cache_queried_tokens_total", COUNTER, prefix_queried,
           "Prompt tokens looked up in the prefix cache"),
    METRIC("tern_prefix_cache_hit_tokens_total", COUNTER, prefix_hit,
           "Prompt tokens found in the prefix cache"),
    METRIC("tern_preemptions_total", COUNTER, preemptions,
           "Sequences preempted to free their KV blocks"),
    METRIC("tern_prompt_tokens_total", COUNTER, prompt_tokens,
           "Prompt tokens of requests that started"),
    METRIC("tern_prompt_tokens_cached_total", COUNTER, cached_tokens,
           "Prompt tokens taken from the prefix cache"),
    METRIC("tern_generated_tokens_total", COUNTER, generated_tokens, "Tokens generated"),
    METRIC("tern_generated_after_cancel_tokens_total", COUNTER, after_cancel,
           "Tokens generated after a cancellation was seen"),
    METRIC("tern_grammar_jobs", GAUGE, grammar_jobs, "Grammars that wait or are being compiled"),
    METRIC("tern_grammar_bytes", GAUGE, grammar_bytes, "Memory of cached grammars"),
    METRIC("tern_grammar_matcher_bytes", GAUGE, matcher_bytes,
           "Memory of token masks and other state of grammars"),
    METRIC("tern_grammars_compiled_total", COUNTER, grammars_compiled, "Grammars compiled"),
    METRIC("tern_grammars_refused_total", COUNTER, grammars_refused,
           "Grammars that are wrong or take more than their limits"),
    METRIC("tern_grammars_cancelled_total", COUNTER, grammars_cancelled,
           "Grammars whose requester left before they were compiled"),
    METRIC("tern_steps_total", COUNTER, steps, "Steps of the engine"),
    METRIC("tern_step_tokens_total", COUNTER, step_tokens, "Tokens processed by all steps"),
    METRIC("tern_time_to_first_token_seconds", HIST, ttft, "From submission to the first token"),
    METRIC("tern_inter_token_latency_seconds", HIST, itl, "Time between two tokens of a request"),
    METRIC("tern_e2e_request_latency_seconds", HIST, e2e, "From submission to the last token"),
    METRIC("tern_queue_wait_seconds", HIST, queue, "From submission to the first step"),
    METRIC("tern_prefill_time_seconds", HIST, prefill, "From the first step to the first token"),
    METRIC("tern_decode_time_seconds", HIST, decode, "From the first token to the last"),
    METRIC("tern_request_prompt_tokens", HIST, prompt_len, "Prompt tokens of a request"),
    METRIC("tern_request_generated_tokens", HIST, output_len, "Tokens generated for a request"),
    METRIC("tern_step_time_seconds", HIST, step_time, "Time of a step"),
    METRIC("tern_step_size_tokens", HIST, step_size, "Tokens of a step"),
    METRIC("tern_cancellation_detection_latency_ms", HIST, cancel_ms,
           "From the cancellation to the end of the sequence"),
    METRIC("tern_client_disconnect_detection_ms", HIST, gone_ms,
           "From the client's disconnect to the end of the sequence"),
    METRIC("tern_deadline_check_duration_us", HIST, deadline_check_us,
           "Time to check one deadline"),
    METRIC("tern_per_token_emission_latency_us", HIST, emit_us,
           "From a token's sampling to its event"),
};

const char *metrics_labels(struct buf *b, struct buf *out)
{
    const char *text = buf_cstr(b);

    out->failed |= b->failed;
    return text;
}

static void write_metric(struct buf *out, const struct metric *m, const struct engine_stats *s,
                         const char *labels, const char *help)
{
    const void *p = (const char *)s + m->at;

    switch (m->kind) {
    case METRIC_COUNTER: stat_counter(out, m->name, labels, help, counter_get(p)); break;
    case METRIC_GAUGE: stat_gauge(out, m->name, labels, help, (double)gauge_get(p)); break;
    case METRIC_HIST: stat_hist(out, m->name, labels, help, p); break;
    }
}

void metrics_write_table(struct server *v, const struct metric *table, size_t n, label_fn *labels,
                         struct buf *out)
{
    struct buf b = { 0 };

    for (size_t i = 0; i < n; i++) {
        const char *help = table[i].help;
        for (int k = server_next_model(v, 0); k < pool_n(v->pool);
             k = server_next_model(v, k + 1)) {
            const struct engine_stats *s = server_stats(v, k);
            if (!s) continue;
            buf_clear(&b);
            labels(v, k, &b);
            write_metric(out, &table[i], s, metrics_labels(&b, out), help);
            help = NULL;
        }
    }
    buf_release(&b);
}

/* label_fn of the table below. */
static void write_model_label(struct server *v, int model, struct buf *out)
{
    stat_label(out, "model", str_c(pool_at(v->pool, model)->id));
}

/* Writes an array of counters at offset `at` as name{model="...",key="word"}. */
static void write_counters(struct server *v, struct buf *out, const char *name, const char *help,
                           const char *key, const char *const *words, int n, size_t at)
{
    struct buf b = { 0 };

    for (int k = server_next_model(v, 0); k < pool_n(v->pool); k = server_next_model(v, k + 1)) {
        const struct engine_stats *s = server_stats(v, k);
        for (int i = 0; s && i < n; i++) {
            const struct counter *c = (const struct counter *)((const char *)s + at) + i;
            if (!words[i]) continue;
            buf_clear(&b);
            write_model_label(v, k, &b);
            stat_label(&b, key, str_c(words[i]));
            stat_counter(out, name, metrics_labels(&b, out), help, counter_get(c));
            help = NULL;
        }
    }
    buf_release(&b);
}

/* How requests ended, and why others were refused. */
static void write_outcomes(struct server *v, struct buf *out)
{
    static const char *const finishes[] = {
        NULL, "stop", "length", "cancelled", "deadline", "error"
    };
    const char *help = "Requests answered with a refusal, by reason";
    struct buf b = { 0 };

    write_counters(v, out, "tern_requests_total", "Requests ended by the engine, by outcome",
                   "outcome", finishes, FINISH_ERROR + 1, offsetof(struct engine_stats, finished));
    write_counters(v, out, "tern_admission_rejections_total",
                   "Requests rejected by the engine's admission, by reason", "reason", reject_names,
                   N_REJECT, offsetof(struct engine_stats, rejected));
    for (int i = 0; refused_name(i); i++, help = NULL) {
        buf_clear(&b);
        stat_label(&b, "reason", str_c(refused_name(i)));
        stat_counter(out, "tern_refused_total", metrics_labels(&b, out), help,
                     counter_get(&v->refused.n[i]));
    }
    buf_release(&b);
}

void metrics_init(struct server *v)
{
    /* 10, 20, 50, 100 and 180 ms are the budgets of the phases. */
    static const double bounds[] = { 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
                                     0.18,   0.25,   0.5,   1,     2.5,   5,    10,   30,   60 };

    for (int i = 0; i < N_PHASES; i++)
        hist_init(&v->phases[i], bounds, (int)(sizeof bounds / sizeof *bounds));
}

/* The way to the first token, as struct api_end has it. */
static void write_phases(struct server *v, struct buf *out)
{
    static const char *const names[] = { "admission", "scheduling", "dispatch", "first_token",
                                         "total" };
    const char *help = "From a request that was read to its first token, by phase";
    struct buf b = { 0 };

    for (int i = 0; i < N_PHASES; i++, help = NULL) {
        buf_clear(&b);
        stat_label(&b, "phase", str_c(names[i]));
        stat_hist(out, "tern_phase_seconds", metrics_labels(&b, out), help, &v->phases[i]);
    }
    buf_release(&b);
}

/* Memory of each model by kind, and of the process. */
static void write_memory(struct server *v, struct buf *out)
{
    static const char *const kinds[] = { "weights", "kv", "scratch", "gpu" };
    const char *help = "Memory by kind";
    struct buf b = { 0 };

    for (int k = server_next_model(v, 0); k < pool_n(v->pool); k = server_next_model(v, k + 1)) {
        struct engine_info info;
        const struct engine_device *last;
        uint64_t bytes[4];
        if (!server_engine_info(v, k, &info)) continue;
        last = engine_info_last(&info);
        bytes[0] = info.weight_bytes, bytes[1] = info.kv_bytes, bytes[2] = info.scratch_bytes;
        bytes[3] = last->weight_bytes + last->kv_bytes + last->scratch_bytes;
        for (int i = 0; i < 4; i++, help = NULL) {
            buf_clear(&b);
            write_model_label(v, k, &b);
            stat_label(&b, "kind", str_c(kinds[i]));
            stat_gauge(out, "tern_memory_bytes", metrics_labels(&b, out), help, (double)bytes[i]);
        }
    }
    stat_gauge(out, "tern_memory_bytes", "kind=\"rss\"", help, (double)metrics_rss());
    stat_gauge(out, "tern_memory_bytes", "kind=\"rss_peak\"", NULL, (double)metrics_rss_peak());
    buf_release(&b);
}

/* Two metrics with a series for each model. */
static void write_load_times(struct server *v, struct buf *out)
{
    static const char *const times[] = { "tern_model_load_duration_ms",
                                         "tern_model_warm_duration_ms" };
    const char *help;
    struct buf b = { 0 };

    for (int i = 0; i < 2; i++) {
        help = i ? "Time of the warm-up before the model was ready" : "Time to load the model";
        for (int k = server_next_model(v, 0); k < pool_n(v->pool);
             k = server_next_model(v, k + 1)) {
            struct pool_instance *m = pool_acquire(v->pool, k);
            if (!m) continue;
            buf_clear(&b);
            write_model_label(v, k, &b);
            stat_gauge(out, times[i], metrics_labels(&b, out), help, i ? m->warm_ms : m->load_ms);
            pool_release(m);
            help = NULL;
        }
    }
    buf_release(&b);
}

/* Phases of loading, as far as the device reports them. */
static void write_load_phases(struct server *v, struct buf *out)
{
    static const char *const phases[] = { "read", "repack", "upload" };
    const char *help = "Loading of weights: read from the file, repacked, uploaded to the device";
    struct buf b = { 0 };

    for (int k = server_next_model(v, 0); k < pool_n(v->pool); k = server_next_model(v, k + 1)) {
        struct engine_info info;
        if (!server_engine_info(v, k, &info)) continue;
        const struct engine_device *last = engine_info_last(&info);
        uint64_t ns[] = { last->read_ns, last->pack_ns, last->upload_ns };
        for (int i = 0; i < 3; i++, help = NULL) {
            buf_clear(&b);
            write_model_label(v, k, &b);
            stat_label(&b, "phase", str_c(phases[i]));
            stat_gauge(out, "tern_model_load_phase_ms", metrics_labels(&b, out), help,
                       (double)ns[i] / 1e6);
        }
    }
    buf_release(&b);
}

/* Routes of one path with several methods are one series: is this the first of them? */
static bool is_first_route(int r)
{
    for (int i = 0; r < ROUTES_MAX && routes_name(r) && i < r; i++)
        if (!strcmp(routes_name(i), routes_name(r))) return false;
    return true;
}

static uint64_t count_replies(struct server *v, int r, int class)
{
    uint64_t n = 0;

    if (r == ROUTES_MAX || !routes_name(r)) return counter_get(&v->replies[r][class]);
    for (int i = r; i < ROUTES_MAX && routes_name(i); i++)
        if (!strcmp(routes_name(i), routes_name(r))) n += counter_get(&v->replies[i][class]);
    return n;
}

/* Series of classes that never occurred are left out, except 2xx. */
static void write_http(struct server *v, struct buf *out)
{
    static const char *const classes[STATUS_CLASSES] = { NULL, "1xx", "2xx", "3xx", "4xx", "5xx" };
    const char *help = "Replies by route and status class";
    struct http_stats h;
    struct buf b = { 0 };

    for (int r = 0; r <= ROUTES_MAX; r++)
        for (int c = 2; c < STATUS_CLASSES; c++) {
            const char *name = r == ROUTES_MAX ? "other" : routes_name(r);
            uint64_t n = count_replies(v, r, c);
            if (!name || !is_first_route(r) || (n == 0 && c != 2)) continue;
            buf_clear(&b);
            stat_label(&b, "route", str_c(name));
            stat_label(&b, "status", str_c(classes[c]));
            stat_counter(out, "tern_http_requests_total", metrics_labels(&b, out), help, n);
            help = NULL;
        }
    http_stats(v->http, &h);
    stat_gauge(out, "tern_connections", "", "Open connections", h.conns);
    stat_counter(out, "tern_connections_accepted_total", "", "Connections accepted", h.accepted);
    stat_counter(out, "tern_connections_refused_total", "", "Connections refused above the limit",
                 h.refused);
    stat_counter(out, "tern_connections_closed_idle_total", "",
                 "Idle connections closed to make room for others", h.closed_idle);
    stat_counter(out, "tern_bodies_held_total", "",
                 "Large bodies beyond the limits of their key that were held before the answer",
                 h.held);
    stat_gauge(out, "tern_connections_max", "", "Limit of connections", v->max_conns);
    stat_counter(out, "tern_bad_requests_total", "",
                 "Requests refused as malformed, too large or too slow", h.bad);
    stat_counter(out, "tern_slow_readers_total", "",
                 "Connections closed because the client read too slowly", h.cut_off);
    stat_counter(out, "tern_out_of_memory_total", "",
                 "Requests and connections given up because memory ran out", h.no_memory);
    stat_counter(out, "tern_connections_reused_total", "",
                 "Requests on a connection that had carried one before", h.reused);
    buf_release(&b);
}

/* Mean number of waiting requests over the last minute. */
static double mean_queue_depth(const struct history *h)
{
    int have = h->n < 60 ? h->n : 60;
    double sum = 0;

    for (int i = 1; i <= have; i++) sum += (double)h->at[(h->n - i) % (HISTORY + 1)].waiting;
    return have ? sum / have : 0;
}

uint64_t metrics_rss(void)
{
    unsigned long long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    if (!f) return 0;
    if (fscanf(f, "%llu %llu", &size, &resident) != 2) resident = 0;
    fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t metrics_rss_peak(void)
{
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) == 0 ? (uint64_t)u.ru_maxrss * 1024 : 0;
}

static int count_open_files(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = -3; /* not counted: ".", ".." and the directory being read */

    if (!d) return 0;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* The server as a whole, and the metrics that Prometheus expects of every process. */
static void write_process(struct server *v, struct buf *out)
{
    struct rusage u = { 0 };

    getrusage(RUSAGE_SELF, &u);
    stat_gauge(out, "tern_ready", "", "1: GET /ready answers 200", v->health.ready == READY_OK);
    stat_gauge(out, "tern_queue_depth_mean", "", "Mean depth of all queues in the last minute",
               mean_queue_depth(&v->history));
    stat_gauge(out, "tern_http_server_start_duration_ms", "", "Time from start to listening",
               v->listen_ms);
    stat_gauge(out, "tern_graceful_shutdown_duration_ms", "",
               "Time since the shutdown began; 0: it has not",
               v->life == LIFE_RUN ? 0 : clock_ms_since(v->drain_ns));
    devices_write_metrics(v, out);
    stat_gauge(out, "process_start_time_seconds", "", "Start time in seconds since 1970",
               (double)v->start_ms / 1e3);
    stat_gauge(out, "process_resident_memory_bytes", "", "Resident memory", (double)metrics_rss());
    stat_gauge(out, "process_open_fds", "", "Open file descriptors", count_open_files());
    stat_gauge(out, "process_cpu_seconds_total", "", "CPU time, user and system",
               (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec +
                   (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6);
    stat_gauge(out, "tern_build_info", "version=\"" TERN_VERSION "\"", "1", 1);
}

/* The whole text is built before anything is sent: a scrape is complete or an error. */
void metrics_get(struct visit *t)
{
    struct server *v = t->v;
    struct buf out = { 0 };

    metrics_write_table(v, per_model, sizeof per_model / sizeof *per_model, write_model_label,
                        &out);
    write_outcomes(v, &out);
    write_phases(v, &out);
    write_memory(v, &out);
    write_load_times(v, &out);
    write_load_phases(v, &out);
    metrics_write_pool(v, &out);
    metrics_write_workers(v, &out);
    metrics_write_gangs(v, &out);
    write_http(v, &out);
    work_write_metrics(v, &out);
    write_process(v, &out);
    if (*v->s->metrics_compat) metrics_write_compat(v, v->s->metrics_compat, &out);
    visit_reply_buf(t, 200, "text/plain; version=0.0.4; charset=utf-8", &out);
    buf_release(&out);
}
