/* stat.c - histograms, and the Prometheus text exposition format (version 0.0.4). */
#include "base/stat.h"

#include "base/utf8.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The bounds are those of vLLM's metrics, so that its dashboards work; 0.25 is a goal of ours. */
const double hist_ttft[22] = { 0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                               1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560 };
const double hist_itl[20] = { 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4,
                              0.5,  0.75,  1,    2.5,   5,   7.5,  10,  20,   40,  80 };
const double hist_e2e[21] = { 0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                              30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680 };
const double hist_tokens[16] = { 1,   2,    5,    10,   20,    50,    100,   200,
                                 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000 };
const double hist_short[15] = { 1,   2,    5,    10,   20,    50,    100,  200,
                                500, 1000, 2000, 5000, 10000, 20000, 50000 };

void hist_init(struct hist *h, const double *bounds, int n_bounds)
{
    assert(n_bounds > 0 && n_bounds <= HIST_MAX);
    memset(h, 0, sizeof *h);
    h->bounds = bounds;
    h->n_bounds = n_bounds;
}

/* Linear search: there are at most 24 bounds, and small values come first. */
void hist_add(struct hist *h, double v)
{
    int i = 0;

    if (!(v > 0)) v = 0; /* negative or NaN */
    while (i < h->n_bounds && v > h->bounds[i]) i++;
    atomic_fetch_add_explicit(&h->bucket[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->count, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->sum_micro, (uint64_t)(fmin(v, 1e12) * 1e6 + 0.5),
                              memory_order_relaxed);
}

static uint64_t bucket_get(const struct hist *h, int i)
{
    return atomic_load_explicit(&h->bucket[i], memory_order_relaxed);
}

/* Takes a snapshot of the buckets first, because others may add meanwhile. */
double hist_quantile(const struct hist *h, double q)
{
    uint64_t n[HIST_MAX + 1], total = 0;
    double want, below = 0; /* rank to find; values in the buckets before */

    for (int i = 0; i <= h->n_bounds; i++) total += n[i] = bucket_get(h, i);
    if (total == 0) return 0;
    want = fmin(fmax(q, 0), 1) * (double)total;
    for (int i = 0; i < h->n_bounds; i++) {
        double lo = i ? h->bounds[i - 1] : 0, hi = h->bounds[i];
        if (n[i] > 0 && below + (double)n[i] >= want)
            return lo + (hi - lo) * (want - below) / (double)n[i];
        below += (double)n[i];
    }
    return h->bounds[h->n_bounds - 1]; /* in the open last bucket: its lower bound */
}

/* Integers without exponent, other values with the fewest digits that parse to the same double. */
static void put_number(struct buf *out, double v)
{
    char text[40];

    if (isnan(v)) snprintf(text, sizeof text, "NaN");
    else if (isinf(v)) snprintf(text, sizeof text, v > 0 ? "+Inf" : "-Inf");
    else if (v == trunc(v) && fabs(v) < 1e15) snprintf(text, sizeof text, "%.0f", v);
    else
        for (int digits = 1; digits <= 17; digits++) {
            snprintf(text, sizeof text, "%.*g", digits, v);
            if (strtod(text, NULL) == v) break;
        }
    buf_puts(out, text);
}

/* Escaping of the Prometheus text format; quote: also double quotes, inside label values. */
static void put_escaped(struct buf *out, struct str s, bool quote)
{
    for (size_t i = 0; i < s.n;) {
        int32_t cp;
        int n = utf8_next(str_skip(s, i), &cp);
        char c = s.p[i];
        if (cp < 0) buf_puts(out, "\xef\xbf\xbd");
        else if (c == '\\') buf_puts(out, "\\\\");
        else if (c == '\n') buf_puts(out, "\\n");
        else if (c == '"' && quote) buf_puts(out, "\\\"");
        else buf_add(out, s.p + i, (size_t)n);
        i += (size_t)n;
    }
}

void stat_label(struct buf *out, const char *name, struct str value)
{
    if (out->n && out->p[out->n - 1] == '"') buf_putc(out, ','); /* after another label */
    buf_puts(out, name);
    buf_puts(out, "=\"");
    put_escaped(out, value, true);
    buf_putc(out, '"');
}

static void put_help(struct buf *out, const char *name, const char *help, const char *type)
{
    if (!help) return;
    buf_printf(out, "# HELP %s ", name);
    put_escaped(out, str_c(help), false);
    buf_printf(out, "\n# TYPE %s %s\n", name, type);
}

/* One sample line: name and suffix, labels, value. */
static void put_sample(struct buf *out, const char *name, const char *suffix, const char *labels,
                       double v)
{
    buf_printf(out, *labels ? "%s%s{%s} " : "%s%s%s ", name, suffix, labels);
    put_number(out, v);
    buf_putc(out, '\n');
}

/* put_sample of an integer: a double would lose digits above 2^53. */
static void put_count(struct buf *out, const char *name, const char *suffix, const char *labels,
                      uint64_t v)
{
    buf_printf(out, *labels ? "%s%s{%s} %llu\n" : "%s%s%s %llu\n", name, suffix, labels,
               (unsigned long long)v);
}

void stat_counter(struct buf *out, const char *name, const char *labels, const char *help,
                  uint64_t v)
{
    put_help(out, name, help, "counter");
    put_count(out, name, "", labels, v);
}

void stat_gauge(struct buf *out, const char *name, const char *labels, const char *help, double v)
{
    put_help(out, name, help, "gauge");
    put_sample(out, name, "", labels, v);
}

void stat_hist(struct buf *out, const char *name, const char *labels, const char *help,
               const struct hist *h)
{
    uint64_t n = 0;

    put_help(out, name, help, "histogram");
    for (int i = 0; i <= h->n_bounds; i++) {
        n += bucket_get(h, i);
        buf_printf(out, "%s_bucket{%s%sle=\"", name, labels, *labels ? "," : "");
        if (i < h->n_bounds) put_number(out, h->bounds[i]);
        else buf_puts(out, "+Inf");
        buf_printf(out, "\"} %llu\n", (unsigned long long)n);
    }
    put_sample(out, name, "_sum", labels,
               (double)atomic_load_explicit(&h->sum_micro, memory_order_relaxed) / 1e6);
    /* The sum of the buckets printed above, not h->count: another thread may have added since. */
    put_count(out, name, "_count", labels, n);
}
