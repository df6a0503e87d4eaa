/* load_stats.h - what a load run saw: a record for each request, percentiles, a line for each
 * second. */
#ifndef TERN_LOADTEST_LOAD_STATS_H
#define TERN_LOADTEST_LOAD_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Numbers to be asked for percentiles. Zeroed is empty. */
struct load_series {
    double *v;
    size_t n, cap;
    bool sorted;
};

void load_series_add(struct load_series *s, double v);
double load_series_mean(const struct load_series *s);   /* 0: empty; so the next */
double load_series_at(struct load_series *s, double q); /* between ranks by proportion; sorts */
void load_series_release(struct load_series *s);

enum load_outcome { LOAD_OK, LOAD_FAILED, LOAD_CANCELLED, LOAD_LEFT, N_LOAD_OUTCOME };

struct load_rec {
    enum load_outcome outcome;
    double start_s; /* since the run began */
    double connect_ms;
    double ttft_ms, e2e_ms; /* from just before the request was written; ttft 0: no content event */
    double gap_max_ms;      /* the longest between two content events */
    double gap_sum_ms;
    double cancel_ms;          /* cancel sent → stream ended; 0: none */
    int n_in, n_out, n_events; /* prompt and generated tokens, content events */
    int n_late;                /* content events after the cancel was answered */
};

struct load_second {
    int tokens, done, failed, running_max;
};

struct load_kind {
    char name[80]; /* "429 queue_full", "connect", "timeout", "truncated stream" */
    size_t n;
};

/* Limits a good request keeps; 0: not asked. */
struct load_goals {
    double ttft_ms, tpot_ms, itl_ms, gap_ms, e2e_ms;
};

struct load_stats {
    struct load_goals goals;
    size_t n[N_LOAD_OUTCOME], n_good, n_late;
    size_t n_missed; /* cancels of requests that the server did not know (any more) */
    int64_t tokens_in, tokens_out;
    double duration_s;
    int running_max;
    struct load_series ttft, tpot, itl, e2e, gap, cancel, connect;
    struct load_second *seconds;
    size_t n_seconds, cap_seconds;
    struct load_kind kinds[32];
    int n_kinds;
};

void load_stats_add(struct load_stats *s, const struct load_rec *r);
void load_stats_kind(struct load_stats *s, const char *name);
struct load_second *load_stats_second(struct load_stats *s, double at_s);
double load_stats_error_rate(const struct load_stats *s); /* of all that were not given up by us */
/* "ttft:500,itl:50,e2e:3000": false if it is not that. tpot and gap (the longest) are known too. */
bool load_goals_parse(struct load_goals *g, const char *text);
void load_stats_release(struct load_stats *s);
#endif
