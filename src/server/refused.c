/* refused.c - the list of reasons. docs/serving.md describes each. */
#include "server/refused.h"

#include <string.h>

static const struct {
    const char *reason, *code; /* label of the metric; code of the reply */
    int status;                /* 0: any; a row with a status precedes one without */
} reasons[] = {
    { "host_not_allowed", "host_not_allowed", 0 },
    { "origin_not_allowed", "origin_not_allowed", 0 },
    { "unauthorized", "unauthorized", 0 },
    { "rate_limited", "rate_limited", 0 },
    { "concurrency_limit", "concurrency_limit", 0 },
    { "body_bytes_limit", "body_bytes_limit", 0 },
    { "too_many_connections", "too_many_connections", 0 },
    { "too_many_bodies", "too_many_bodies", 0 },
    { "too_many_watchers", "too_many_watchers", 0 },
    { "watchers_limit", "watchers_limit", 0 },
    { "request_too_large", "request_too_large", 0 },
    { "headers_too_large", "headers_too_large", 0 },
    { "request_timeout", "request_timeout", 0 },
    { "invalid_request", "invalid_request", 0 },
    { "not_found", "not_found", 0 },
    { "method_not_allowed", "method_not_allowed", 0 },
    { "model_not_found", "model_not_found", 0 },
    { "model_loading", "model_loading", 0 },
    { "model_failed", "model_load_failed", 0 },
    { "device_failed", "device_failed", 0 },
    { "device_oom", "device_oom", 0 },
    { "model_damaged", "model_damaged", 0 },
    { "worker_lost", "worker_lost", 0 },
    { "context_exceeded", "context_exceeded", 0 },
    { "queue_full", "queue_full", 0 },
    { "out_of_memory", "memory_admission", 503 },
    { "memory_admission", "memory_admission", 0 },
    { "deadline_exceeded", "deadline_exceeded", 0 },
    { "conflict", "conflict", 0 },
    { "store_unavailable", "store_unavailable", 0 },
    { "read_only", "read_only", 0 },
    { "disk_full", "disk_full", 0 },
    { "shutting_down", "shutting_down", 0 },
    { "other", NULL, 0 },
};
enum { N_REASONS = sizeof reasons / sizeof *reasons };
_Static_assert(N_REASONS <= REFUSED_MAX, "refused.n has a counter for each");

static int find_reason(int status, const char *code)
{
    int i = 0;

    while (reasons[i].code && (strcmp(reasons[i].code, code) != 0 ||
                               (reasons[i].status && reasons[i].status != status)))
        i++;
    return i;
}

void refused_count(struct refused *r, int status, const char *code)
{
    int i;

    if (status < 400 || status == 499 || !*code) return;
    i = find_reason(status, code);
    if (status == 500 && !reasons[i].code) return; /* "internal": it ran */
    counter_add(&r->n[i], 1);
}

const char *refused_name(int i) { return i < N_REASONS ? reasons[i].reason : NULL; }
