/* recent.h - latencies of the last requests, kept as numbers: exact quantiles, which the buckets of
 * a histogram would blur. */
#ifndef TERN_SERVER_RECENT_H
#define TERN_SERVER_RECENT_H

struct api_end;

#define RECENT 1024 /* values kept of each kind */

enum recent_time {
    RECENT_TTFT, /* time to first token */
    RECENT_ITL,  /* inter-token latency: the mean of a request */
    RECENT_E2E,  /* arrival to last byte */
    RECENT_QUEUE,
    RECENT_PREFILL,
    RECENT_DECODE,
    N_RECENT
};

struct recent {
    float ms[N_RECENT][RECENT]; /* rings */
    unsigned n[N_RECENT];       /* ever added */
};

struct quantiles {
    double mean, p50, p95, p99; /* ms; 0: no values */
};

void recent_add(struct recent *r, const struct api_end *end); /* ignores requests without tokens */
void recent_quantiles(const struct recent *r, enum recent_time what, struct quantiles *out);
#endif
