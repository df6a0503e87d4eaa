#include "engine/stats.h"

#define INIT(h, b) hist_init(&(h), b, (int)(sizeof(b) / sizeof *(b)))

void engine_stats_init(struct engine_stats *s)
{
    INIT(s->ttft, hist_ttft);
    INIT(s->itl, hist_itl);
    INIT(s->e2e, hist_e2e);
    INIT(s->queue, hist_e2e);
    INIT(s->prefill, hist_e2e);
    INIT(s->decode, hist_e2e);
    INIT(s->prompt_len, hist_tokens);
    INIT(s->output_len, hist_tokens);
    INIT(s->step_size, hist_tokens);
    INIT(s->cancel_ms, hist_short);
    INIT(s->gone_ms, hist_short);
    INIT(s->deadline_check_us, hist_short);
    INIT(s->emit_us, hist_short);
}
