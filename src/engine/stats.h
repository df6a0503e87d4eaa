/* stats.h - what an engine counts: written by its thread, read by any. */
#ifndef TERN_ENGINE_STATS_H
#define TERN_ENGINE_STATS_H

#include "base/stat.h"
#include "engine/request.h"

enum {
    REJECT_CONTEXT,
    REJECT_QUEUE,
    REJECT_MEMORY,
    REJECT_DEADLINE,
    REJECT_SHUTDOWN,
    REJECT_INVALID,
    N_REJECT
};

struct engine_stats {
    struct counter submitted, rejected[N_REJECT], finished[FINISH_ERROR + 1];
    struct counter prompt_tokens, cached_tokens, generated_tokens, prefix_queried, prefix_hit;
    struct counter preemptions, steps, step_tokens;
    struct counter after_cancel; /* tokens made after a cancel was seen: 0, or a mistake */
    struct gauge running, waiting, kv_used, kv_idle, kv_total;
    struct gauge queue_peak;
    struct gauge step_begin_ns; /* a step is under way since; 0: none. For the watchdog */
    struct gauge beat_ns;       /* the thread's last sign of life */
    struct hist ttft, itl, e2e, queue, prefill, decode; /* seconds */
    struct hist prompt_len, output_len, step_size;      /* tokens */
    struct hist cancel_ms, gone_ms;                     /* asked → out of the engine */
    struct hist deadline_check_us, emit_us;
};

void engine_stats_init(struct engine_stats *s);
#endif
