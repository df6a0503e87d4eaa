#include "loadtest/load_report.h"

#include "base/jsonw.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

static double per_second(const struct load_stats *s, double n)
{
    return s->duration_s > 0 ? n / s->duration_s : 0;
}

/* ---- text ---- */

#define WIDTH 50 /* columns of a heading */

static void add_heading(struct buf *out, const char *text, char fill)
{
    int n = (int)strlen(text), left = (WIDTH - n) / 2;

    for (int i = 0; i < left; i++) buf_putc(out, fill);
    buf_puts(out, text);
    for (int i = left + n; i < WIDTH; i++) buf_putc(out, fill);
    buf_putc(out, '\n');
}

static void add_count(struct buf *out, const char *what, long long n)
{
    buf_printf(out, "%-40s %-10lld\n", what, n);
}

static void add_value(struct buf *out, const char *what, double v)
{
    buf_printf(out, "%-40s %-10.2f\n", what, v);
}

/* One section of the block; left out where there is no value. */
static void add_latency(struct buf *out, const char *title, const char *name, struct load_series *s)
{
    static const struct {
        const char *word;
        double q;
    } at[] = {
        { "Median", 0.5 },
        { "P95", 0.95 },
        { "P99", 0.99 },
        { "Max", 1 },
    };
    char label[64];

    if (!s->n) return;
    add_heading(out, title, '-');
    snprintf(label, sizeof label, "Mean %s (ms):", name);
    add_value(out, label, load_series_mean(s));
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        snprintf(label, sizeof label, "%s %s (ms):", at[i].word, name);
        add_value(out, label, load_series_at(s, at[i].q));
    }
}

static void add_errors(struct buf *out, const struct load_stats *s)
{
    if (!s->n[LOAD_FAILED]) return;
    add_heading(out, "Errors by Kind", '-');
    for (int i = 0; i < s->n_kinds; i++) {
        char label[96];
        snprintf(label, sizeof label, "%s:", s->kinds[i].name);
        add_count(out, label, (long long)s->kinds[i].n);
    }
}

static bool has_goals(const struct load_goals *g)
{
    return g->ttft_ms > 0 || g->tpot_ms > 0 || g->itl_ms > 0 || g->gap_ms > 0 || g->e2e_ms > 0;
}

void load_report_text(struct buf *out, const struct load_plan *p, struct load_stats *s)
{
    add_heading(out, " Serving Benchmark Result ", '=');
    add_count(out, "Successful requests:", (long long)s->n[LOAD_OK]);
    add_count(out, "Failed requests:", (long long)s->n[LOAD_FAILED]);
    if (p->cancel > 0) add_count(out, "Cancelled requests:", (long long)s->n[LOAD_CANCELLED]);
    if (p->disconnect > 0)
        add_count(out, "Disconnected requests:", (long long)s->n[LOAD_DISCONNECTED]);
    if (p->rate > 0) add_value(out, "Request rate configured (RPS):", p->rate);
    if (p->n_clients) add_count(out, "Maximum request concurrency:", p->n_clients);
    add_value(out, "Benchmark duration (s):", s->duration_s);
    add_count(out, "Total input tokens:", s->tokens_in);
    add_count(out, "Total generated tokens:", s->tokens_out);
    add_value(out, "Request throughput (req/s):", per_second(s, (double)s->n[LOAD_OK]));
    if (has_goals(&p->goals))
        add_value(out, "Request goodput (req/s):", per_second(s, (double)s->n_good));
    add_value(out, "Output token throughput (tok/s):", per_second(s, (double)s->tokens_out));
    add_value(out, "Total token throughput (tok/s):",
              per_second(s, (double)(s->tokens_in + s->tokens_out)));
    add_count(out, "Peak concurrent requests:", s->running_max);
    add_latency(out, "Time to First Token", "TTFT", &s->ttft);
    add_latency(out, "Time per Output Token (excl. 1st token)", "TPOT", &s->tpot);
    add_latency(out, "Inter-token Latency", "ITL", &s->itl);
    add_latency(out, "Longest Gap of a Stream", "gap", &s->gap);
    add_latency(out, "End-to-end Latency", "E2EL", &s->e2e);
    add_latency(out, "Cancel Sent to Stream Ended", "cancel", &s->cancel);
    if (p->cancel > 0) {
        add_count(out, "Cancels that came too late:", (long long)s->n_missed);
        add_count(out, "Tokens after an answered cancel:", (long long)s->n_late);
    }
    add_errors(out, s);
    add_heading(out, "", '=');
}

/* ---- JSON ---- */

static void put_number(struct jsonw *w, const char *key, double v)
{
    jsonw_key(w, key), jsonw_num(w, v);
}
static void put_int(struct jsonw *w, const char *key, int64_t v)
{
    jsonw_key(w, key), jsonw_int(w, v);
}
static void put_string(struct jsonw *w, const char *key, const char *v)
{
    jsonw_key(w, key), jsonw_str(w, str_c(v));
}

/* Buckets with upper bounds 1, 2, 5 times powers of ten from 0.1 ms to 500 s; "n" counts the values
 * of that bucket alone, and empty buckets are left out. le null: above all bounds. */
static void put_histogram(struct jsonw *w, struct load_series *s)
{
    static const double steps[] = { 1, 2, 5 };
    size_t i = 0;

    jsonw_key(w, "histogram"), jsonw_arr(w);
    for (int k = 0; k < 21 && i < s->n; k++) {
        double le = steps[k % 3] * pow(10, k / 3 - 1);
        size_t from = i;
        while (i < s->n && s->v[i] <= le) i++;
        if (i == from) continue;
        jsonw_obj(w);
        put_number(w, "le", le);
        put_int(w, "n", (int64_t)(i - from));
        jsonw_end(w);
    }
    if (i < s->n) {
        jsonw_obj(w);
        jsonw_key(w, "le"), jsonw_null(w);
        put_int(w, "n", (int64_t)(s->n - i));
        jsonw_end(w);
    }
    jsonw_end(w);
}

/* Count, mean, percentiles and histogram of a latency in ms. */
static void put_series(struct jsonw *w, const char *key, struct load_series *s)
{
    static const struct {
        const char *name;
        double q;
    } at[] = {
        { "min", 0 },   { "p10", 0.1 },  { "p25", 0.25 }, { "median", 0.5 }, { "p75", 0.75 },
        { "p90", 0.9 }, { "p95", 0.95 }, { "p99", 0.99 }, { "p999", 0.999 }, { "max", 1 },
    };

    jsonw_key(w, key), jsonw_obj(w);
    put_int(w, "n", (int64_t)s->n);
    if (s->n) {
        put_number(w, "mean", load_series_mean(s));
        for (size_t i = 0; i < sizeof at / sizeof *at; i++)
            put_number(w, at[i].name, load_series_at(s, at[i].q));
        put_histogram(w, s);
    }
    jsonw_end(w);
}

/* kind and its one or two numbers, see load_dist.h. */
static void put_dist(struct jsonw *w, const char *key, const struct load_dist *d)
{
    static const char *const names[] = { "fixed", "uniform", "exp", "normal", "lognormal" };

    jsonw_key(w, key), jsonw_obj(w);
    put_string(w, "kind", names[d->kind]);
    put_number(w, "a", d->a);
    if (d->b != 0) put_number(w, "b", d->b);
    jsonw_end(w);
}

/* The parameters, so that a report says how to repeat it. */
static void put_config(struct jsonw *w, const struct load_plan *p)
{
    jsonw_key(w, "config"), jsonw_obj(w);
    put_string(w, "url", p->url);
    put_string(w, "model", p->model);
    put_string(w, "endpoint", p->completions ? "/v1/completions" : "/v1/chat/completions");
    put_int(w, "clients", p->n_clients);
    put_number(w, "rate", p->rate);
    put_number(w, "burstiness", p->burstiness);
    put_number(w, "ramp_s", p->ramp_s);
    put_number(w, "duration_s", p->duration_s);
    put_int(w, "requests", p->n_requests);
    put_int(w, "warmup", p->n_warmup);
    put_dist(w, "prompt_tokens", &p->prompt);
    put_dist(w, "output_tokens", &p->output);
    put_int(w, "shared_prefix", p->n_shared);
    put_number(w, "prefix_share", p->share);
    put_number(w, "tokens_per_word", p->tokens_per_word);
    jsonw_key(w, "ids"), jsonw_bool(w, p->id_high > 0);
    jsonw_key(w, "stream"), jsonw_bool(w, !p->no_stream);
    jsonw_key(w, "ignore_eos"), jsonw_bool(w, !p->stop_at_eos);
    put_number(w, "temperature", p->temperature >= 0 ? p->temperature : NAN);
    put_int(w, "seed", (int64_t)p->seed);
    put_number(w, "cancel_rate", p->cancel);
    put_number(w, "disconnect_rate", p->disconnect);
    put_int(w, "deadline_ms", p->deadline_ms);
    put_int(w, "timeout_ms", p->timeout_ms);
    jsonw_end(w);
}

static void put_seconds(struct jsonw *w, const struct load_stats *s)
{
    jsonw_key(w, "seconds"), jsonw_arr(w);
    for (size_t i = 0; i < s->n_seconds; i++) {
        jsonw_obj(w);
        put_int(w, "tokens", s->seconds[i].tokens);
        put_int(w, "done", s->seconds[i].done);
        put_int(w, "failed", s->seconds[i].failed);
        put_int(w, "running", s->seconds[i].running_max);
        jsonw_end(w);
    }
    jsonw_end(w);
}

static void put_goodput(struct jsonw *w, const struct load_plan *p, const struct load_stats *s)
{
    const struct load_goals *g = &p->goals;

    jsonw_key(w, "goodput"), jsonw_obj(w);
    if (g->ttft_ms > 0) put_number(w, "ttft_ms", g->ttft_ms);
    if (g->tpot_ms > 0) put_number(w, "tpot_ms", g->tpot_ms);
    if (g->itl_ms > 0) put_number(w, "itl_ms", g->itl_ms);
    if (g->gap_ms > 0) put_number(w, "gap_ms", g->gap_ms);
    if (g->e2e_ms > 0) put_number(w, "e2e_ms", g->e2e_ms);
    put_int(w, "good", (int64_t)s->n_good);
    put_number(w, "per_s", per_second(s, (double)s->n_good));
    jsonw_end(w);
}

void load_report_json(struct buf *out, const struct load_plan *p, struct load_stats *s)
{
    struct jsonw w = { .out = out };
    char date[40];
    time_t now = time(NULL);
    struct tm tm;

    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    jsonw_obj(&w);
    put_string(&w, "tern", TERN_VERSION);
    put_string(&w, "date", date);
    put_config(&w, p);
    put_int(&w, "completed", (int64_t)s->n[LOAD_OK]);
    put_int(&w, "failed", (int64_t)s->n[LOAD_FAILED]);
    put_int(&w, "cancelled", (int64_t)s->n[LOAD_CANCELLED]);
    put_int(&w, "disconnected", (int64_t)s->n[LOAD_DISCONNECTED]);
    put_int(&w, "cancels_too_late", (int64_t)s->n_missed);
    put_int(&w, "tokens_after_cancel", (int64_t)s->n_late);
    put_number(&w, "error_rate", load_stats_error_rate(s));
    put_number(&w, "duration_s", s->duration_s);
    put_int(&w, "input_tokens", s->tokens_in);
    put_int(&w, "output_tokens", s->tokens_out);
    put_number(&w, "request_throughput", per_second(s, (double)s->n[LOAD_OK]));
    put_number(&w, "output_throughput", per_second(s, (double)s->tokens_out));
    put_int(&w, "running_max", s->running_max);
    put_goodput(&w, p, s);
    put_series(&w, "connect_ms", &s->connect);
    put_series(&w, "ttft_ms", &s->ttft);
    put_series(&w, "tpot_ms", &s->tpot);
    put_series(&w, "itl_ms", &s->itl);
    put_series(&w, "gap_max_ms", &s->gap);
    put_series(&w, "e2e_ms", &s->e2e);
    put_series(&w, "cancel_ms", &s->cancel);
    jsonw_key(&w, "errors"), jsonw_obj(&w);
    for (int i = 0; i < s->n_kinds; i++) put_int(&w, s->kinds[i].name, (int64_t)s->kinds[i].n);
    jsonw_end(&w);
    put_seconds(&w, s);
    jsonw_end(&w);
    buf_putc(out, '\n');
}
