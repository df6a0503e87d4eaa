/* stats.h - what an engine counts: written by its thread (rejections and submissions by the
 * submitting one), read by any. */
#ifndef TERN_ENGINE_STATS_H
#define TERN_ENGINE_STATS_H

#include "base/stat.h"
#include "engine/finish.h"

/* Why engine_submit refused a request. */
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
    struct counter submitted, rejected[N_REJECT], finished[N_FINISH];
    struct counter prompt_tokens, cached_tokens, generated_tokens, prefix_queried, prefix_hit;
    struct counter preemptions, steps, step_tokens;
    struct counter after_cancel; /* tokens sampled after a cancel was seen: 0, or a mistake */
    struct gauge running, waiting, kv_used, kv_idle, kv_total; /* requests; blocks */
    struct gauge queue_peak;                                   /* waiting requests at most */
    struct gauge step_begin_ns; /* start of the step under way, for the watchdog; 0: none */
    struct gauge beat_ns;       /* last time the engine thread was seen at work */
    struct gauge grammar_jobs;  /* grammars that wait or are being compiled */
    struct gauge grammar_bytes; /* of cached grammars */
    struct gauge matcher_bytes; /* of token masks and other state of grammars */
    struct counter gang_step_ns,
        gang_comm_ns;      /* a model of several members: steps of its leader, and
                                                * of that communication */
    struct gauge comm_ppm; /* communication of recent steps, millionths of their time */
    struct counter grammars_compiled, grammars_refused, grammars_cancelled;
    struct hist ttft, itl, e2e, queue, prefill, decode, step_time; /* seconds */
    struct hist prompt_len, output_len, step_size;                 /* tokens */
    struct hist cancel_ms, gone_ms; /* from a cancel to the end: asked for, client gone */
    struct hist deadline_check_us, emit_us;
};

void engine_stats_init(struct engine_stats *s);
/* Copies all numbers, one by one; the bounds of histograms stay those of `to`. For counters in memory
 * that is shared with another process. */
void engine_stats_copy(struct engine_stats *to, const struct engine_stats *from);
/* The engine has ended: its gauges are 0. What was counted stays. */
void engine_stats_clear_gauges(struct engine_stats *s);
#endif
