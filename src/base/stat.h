/* stat.h - counters, gauges and histograms, and their Prometheus text form.
 *
 * Any thread may add and any may read, without locks. Adding is one to three relaxed atomic
 * operations. Each number that a reader sees is consistent by itself; two numbers read one after
 * the other may differ by additions in between. */
#ifndef TERN_BASE_STAT_H
#define TERN_BASE_STAT_H

#include "base/buf.h"

#include <stdatomic.h>

#define HIST_MAX 24 /* bounds of a histogram */

/* Only grows. */
struct counter {
    _Atomic uint64_t n;
};
/* Goes up and down. */
struct gauge {
    _Atomic int64_t n;
};

static inline void counter_add(struct counter *c, uint64_t n)
{
    atomic_fetch_add_explicit(&c->n, n, memory_order_relaxed);
}
static inline uint64_t counter_get(const struct counter *c)
{
    return atomic_load_explicit(&c->n, memory_order_relaxed);
}
static inline void gauge_set(struct gauge *g, int64_t n)
{
    atomic_store_explicit(&g->n, n, memory_order_relaxed);
}
static inline void gauge_add(struct gauge *g, int64_t n)
{
    atomic_fetch_add_explicit(&g->n, n, memory_order_relaxed);
}
static inline int64_t gauge_get(const struct gauge *g)
{
    return atomic_load_explicit(&g->n, memory_order_relaxed);
}

/* Counts values by bucket. Values have the unit of the bounds; negative ones count as 0. */
struct hist {
    const double *bounds; /* [n_bounds] upper bounds, inclusive, ascending; borrowed */
    int n_bounds;         /* at most HIST_MAX */
    _Atomic uint64_t bucket[HIST_MAX + 1]; /* [n_bounds] is above all bounds */
    _Atomic uint64_t count;
    _Atomic uint64_t sum_micro; /* sum in millionths of the unit */
};

void hist_init(struct hist *h, const double *bounds, int n_bounds);
void hist_add(struct hist *h, double v);
double hist_quantile(const struct hist *h, double q); /* interpolates linearly; 0: empty */

/* Bounds in seconds that dashboards for inference servers expect: time to first token, inter-token
 * latency, end-to-end latency. */
extern const double hist_ttft[22], hist_itl[20], hist_e2e[21];
/* 1, 2, 5, 10, ...: tokens per request. */
extern const double hist_tokens[16];
/* 1, 2, 5, ...: short durations in microseconds or milliseconds. */
extern const double hist_short[15];

/* Append one metric in the Prometheus text format. labels: "" or `a="b",c="d"` (stat_label builds
 * it). help NULL: without HELP and TYPE lines, for a further series of the same name. */
void stat_counter(struct buf *out, const char *name, const char *labels, const char *help,
                  uint64_t v);
void stat_gauge(struct buf *out, const char *name, const char *labels, const char *help, double v);
void stat_hist(struct buf *out, const char *name, const char *labels, const char *help,
               const struct hist *h);
/* Appends `name="value"` with the value escaped, and a comma before it after another label. */
void stat_label(struct buf *out, const char *name, struct str value);
#endif
