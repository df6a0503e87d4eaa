/* stat.h - counters and histograms that any thread may add to and any may read.
 *
 * Adding is one or two relaxed atomic operations. A reader sees each number whole; numbers read one
 * after the other may be a moment apart. */
#ifndef TERN_BASE_STAT_H
#define TERN_BASE_STAT_H

#include "base/buf.h"

#include <stdatomic.h>

#define HIST_MAX 24

struct counter {
    _Atomic uint64_t n;
};
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

/* Values in whatever unit the bounds have. */
struct hist {
    const double *bounds;                  /* [n_bounds] upper, ascending; borrowed */
    int n_bounds;                          /* at most HIST_MAX */
    _Atomic uint64_t bucket[HIST_MAX + 1]; /* the last: above all bounds */
    _Atomic uint64_t count;
    _Atomic uint64_t sum_micro; /* sum in millionths of the unit */
};

void hist_init(struct hist *h, const double *bounds, int n_bounds);
void hist_add(struct hist *h, double v);
double hist_quantile(const struct hist *h, double q); /* within a bucket by proportion; 0: empty */

/* Bounds that dashboards expect: time to first token, between tokens, whole requests (seconds). */
extern const double hist_ttft[22], hist_itl[19], hist_e2e[21];
/* 1, 2, 5, 10, ... : tokens of a request. */
extern const double hist_tokens[16];
/* 1, 2, 5, ... in microseconds or milliseconds: short durations. */
extern const double hist_short[15];

/* The Prometheus text form. `labels` is "" or `a="b",c="d"`. help may be NULL (no HELP and TYPE
 * lines: a second series of the same name). */
void stat_counter(struct buf *out, const char *name, const char *labels, const char *help,
                  uint64_t v);
void stat_gauge(struct buf *out, const char *name, const char *labels, const char *help, double v);
void stat_hist(struct buf *out, const char *name, const char *labels, const char *help,
               const struct hist *h);
/* Appends `name="value"` with the value quoted as the format asks. */
void stat_label(struct buf *out, const char *name, struct str value);
#endif
