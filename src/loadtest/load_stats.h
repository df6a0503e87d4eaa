/* load_stats.h - the results of a load run: totals, series for percentiles, one row per second.
 *
 * Additions remember the first failed allocation in `failed`; the run reports it at the end. */
#ifndef TERN_LOADTEST_LOAD_STATS_H
#define TERN_LOADTEST_LOAD_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Values of which percentiles are asked. A zeroed series is empty. */
struct load_series {
    double *v;
    size_t n, cap;
    bool sorted;
    bool failed; /* an addition found no memory; values are missing */
};

void load_series_add(struct load_series *s, double v);
double load_series_mean(const struct load_series *s); /* 0 for an empty series */
/* The q-quantile, q from 0 to 1, interpolated linearly between ranks; 0 for an empty series. Sorts
 * the series. */
double load_series_at(struct load_series *s, double q);
void load_series_release(struct load_series *s);

enum load_outcome {
    LOAD_OK,
    LOAD_FAILED,
    LOAD_CANCELLED,    /* by the cancel endpoint, as planned */
    LOAD_DISCONNECTED, /* the client closed the connection, as planned */
    N_LOAD_OUTCOME
};

/* One request. Times begin just before its bytes are written. */
struct load_rec {
    enum load_outcome outcome;
    double connect_ms;      /* 0: on a reused connection */
    double ttft_ms, e2e_ms; /* to the first content event (0: there was none), to the end */
    double gap_max_ms;      /* the longest gap between two content events */
    double gap_sum_ms;
    double cancel_ms; /* from sending the cancel to the end of the stream; 0: not cancelled */
    int n_in, n_out, n_events; /* prompt tokens, generated tokens, content events */
    int n_late;                /* content events after the cancel was answered */
};

/* One second of the run. */
struct load_second {
    int tokens, done, failed, running_max;
};

struct load_kind {
    char name[80]; /* "429 queue_full", "connect", "timeout", "truncated stream" */
    size_t n;
};

/* Limits that a good request keeps; 0: no limit. */
struct load_goals {
    double ttft_ms, tpot_ms, itl_ms, gap_ms, e2e_ms;
};

struct load_stats {
    struct load_goals goals;
    size_t n[N_LOAD_OUTCOME];
    size_t n_good;   /* of LOAD_OK: those that keep the goals */
    size_t n_late;   /* content events after an answered cancel */
    size_t n_missed; /* cancels that the server did not accept: the request had ended */
    int64_t tokens_in, tokens_out;
    double duration_s;
    int running_max;
    struct load_series ttft, tpot, itl, e2e, gap, cancel, connect; /* ms */
    struct load_second *seconds;
    size_t n_seconds, cap_seconds;
    struct load_kind kinds[32]; /* of failures; the last one collects all others */
    int n_kinds;
    bool failed; /* an addition found no memory */
};

void load_stats_add(struct load_stats *s, const struct load_rec *r);
void load_stats_add_kind(struct load_stats *s, const char *name);
/* The row of that second; never NULL (without memory a shared one that is not reported). */
struct load_second *load_stats_second(struct load_stats *s, double at_s);
double load_stats_error_rate(const struct load_stats *s); /* failed / (ok + failed) */
bool load_stats_complete(const struct load_stats *s);     /* false: values are missing */
/* "ttft:500,itl:50,e2e:3000", also tpot and gap; false: not of that form. */
bool load_goals_parse(struct load_goals *g, const char *text);
void load_stats_release(struct load_stats *s);
#endif
