/* recent.c - rings of latencies, sorted when quantiles are asked for. */
#include "server/recent.h"

#include "api/api.h"

#include <stdlib.h>

static void add_value(struct recent *r, enum recent_time what, double ms)
{
    r->ms[what][r->n[what]++ % RECENT] = (float)(ms > 0 ? ms : 0);
}

void recent_add(struct recent *r, const struct api_end *end)
{
    int each = end->n_choices > 0 ? end->output_tokens / end->n_choices : 0; /* tokens a choice */

    if (each < 1) return;
    add_value(r, RECENT_TTFT, end->queue_ms + end->prefill_ms);
    add_value(r, RECENT_E2E, end->total_ms);
    add_value(r, RECENT_QUEUE, end->queue_ms);
    add_value(r, RECENT_PREFILL, end->prefill_ms);
    add_value(r, RECENT_DECODE, end->decode_ms);
    if (each > 1) add_value(r, RECENT_ITL, end->decode_ms / (each - 1));
}

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Sorts a copy of at most RECENT values: only for GET /status. */
void recent_quantiles(const struct recent *r, enum recent_time what, struct quantiles *out)
{
    unsigned n = r->n[what] < RECENT ? r->n[what] : RECENT;
    float sorted[RECENT];

    *out = (struct quantiles){ 0 };
    if (n == 0) return;
    for (unsigned i = 0; i < n; i++) out->mean += (double)(sorted[i] = r->ms[what][i]) / n;
    qsort(sorted, n, sizeof *sorted, compare_floats);
    out->p50 = (double)sorted[(n - 1) * 50 / 100];
    out->p95 = (double)sorted[(n - 1) * 95 / 100];
    out->p99 = (double)sorted[(n - 1) * 99 / 100];
}
