#include "engine/stats.h"

#include <stddef.h>

#define INIT(h, b) hist_init(&(h), b, (int)(sizeof(b) / sizeof *(b)))

void engine_stats_init(struct engine_stats *s)
{
    INIT(s->ttft, hist_ttft);
    INIT(s->itl, hist_itl);
    INIT(s->e2e, hist_e2e);
    INIT(s->queue, hist_e2e);
    INIT(s->prefill, hist_e2e);
    INIT(s->decode, hist_e2e);
    INIT(s->step_time, hist_itl);
    INIT(s->prompt_len, hist_tokens);
    INIT(s->output_len, hist_tokens);
    INIT(s->step_size, hist_tokens);
    INIT(s->cancel_ms, hist_short);
    INIT(s->gone_ms, hist_short);
    INIT(s->deadline_check_us, hist_short);
    INIT(s->emit_us, hist_short);
}

static void copy_hist(struct hist *to, const struct hist *from)
{
    for (int i = 0; i <= HIST_MAX; i++)
        atomic_store_explicit(&to->bucket[i],
                              atomic_load_explicit(&from->bucket[i], memory_order_relaxed),
                              memory_order_relaxed);
    atomic_store_explicit(&to->count, atomic_load_explicit(&from->count, memory_order_relaxed),
                          memory_order_relaxed);
    atomic_store_explicit(&to->sum_micro,
                          atomic_load_explicit(&from->sum_micro, memory_order_relaxed),
                          memory_order_relaxed);
}

/* Counters and gauges, which are 64 bits each and stand before the histograms. */
static void copy_words(struct engine_stats *to, const struct engine_stats *from, size_t begin,
                       size_t end)
{
    for (size_t at = begin; at < end; at += sizeof(struct counter)) {
        struct counter *x = (struct counter *)((char *)to + at);
        const struct counter *y = (const struct counter *)((const char *)from + at);
        atomic_store_explicit(&x->n, atomic_load_explicit(&y->n, memory_order_relaxed),
                              memory_order_relaxed);
    }
}

_Static_assert(sizeof(struct counter) == sizeof(struct gauge), "both are 64 bits");

void engine_stats_copy(struct engine_stats *to, const struct engine_stats *from)
{
    struct hist *x = &to->ttft;
    const struct hist *y = &from->ttft;
    size_t hists = offsetof(struct engine_stats, ttft), end = sizeof *to;

    copy_words(to, from, 0, hists);
    for (size_t i = 0; i < (end - hists) / sizeof *x; i++) copy_hist(x + i, y + i);
}

void engine_stats_clear_gauges(struct engine_stats *s)
{
    struct gauge *all[] = { &s->running,       &s->waiting,       &s->kv_used, &s->kv_idle,
                            &s->kv_total,      &s->step_begin_ns, &s->beat_ns, &s->grammar_jobs,
                            &s->grammar_bytes, &s->matcher_bytes, &s->comm_ppm };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gauge_set(all[i], 0);
}
