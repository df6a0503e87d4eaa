/* recent.h - times of the last requests, as they are: quantiles that histogram bounds would blur.
 */
#ifndef TERN_SERVER_RECENT_H
#define TERN_SERVER_RECENT_H

#include "api/api.h"

#define RECENT 1024

enum recent_time {
    RECENT_TTFT,
    RECENT_ITL,
    RECENT_E2E,
    RECENT_QUEUE,
    RECENT_PREFILL,
    RECENT_DECODE,
    N_RECENT
};

struct recent {
    float ms[N_RECENT][RECENT];
    unsigned n[N_RECENT]; /* ever added */
};

struct quantiles {
    double mean, p50, p95, p99; /* ms; 0: nothing there */
};

void recent_add(struct recent *r,
                const struct api_end *end); /* one that made no token is left out */
void recent_quantiles(const struct recent *r, enum recent_time what, struct quantiles *out);
#endif
