/* emit.c - results of a step on their way to the requests: text, events, ends, statistics. */
#include "base/clock.h"
#include "engine/engine_impl.h"

#define RELAXED memory_order_relaxed

/* Wakes the reader, unless it was woken and has not read since. The call passes a reference, so
 * that the request outlives a reader that drops its own meanwhile. */
static void notify_reader(struct request *r)
{
    if (!r->notify || atomic_exchange_explicit(&r->notified, 1, memory_order_acq_rel)) return;
    request_ref(r);
    r->notify(r);
}

/* Pushes ev with the text, before it events of text only where it is longer than one event holds.
 * Characters are kept whole. */
static void push_text(struct request *r, struct event *ev, struct str text)
{
    while (text.n > OUTBOX_TEXT) {
        struct event part = { .id = -1, .at_ns = ev->at_ns, .text = str_take(text, OUTBOX_TEXT) };
        while (part.text.n > 1 && ((unsigned char)text.p[part.text.n] & 0xc0) == 0x80)
            part.text.n--;
        outbox_push(&r->out, &part);
        text = str_skip(text, part.text.n);
    }
    ev->text = text;
    outbox_push(&r->out, ev);
}

/* ---- statistics ---- */

static double seconds(uint64_t from_ns, uint64_t to_ns)
{
    return from_ns && to_ns > from_ns ? (double)(to_ns - from_ns) / 1e9 : 0;
}

/* Latencies count only for requests that ended normally. Cancel requests and disconnects have
 * histograms of their own: only after the former does a client wait for the end. */
static void count_end(struct engine *g, const struct request *r)
{
    struct engine_stats *s = g->stats;
    uint64_t cancel = atomic_load_explicit(&r->cancel_ns, memory_order_acquire);
    int why = atomic_load_explicit(&r->cancel, RELAXED);

    if (r->quiet) return;
    counter_add(&s->finished[r->finish], 1);
    if (r->finish == FINISH_CANCELLED && cancel)
        hist_add(why == CANCEL_ASKED ? &s->cancel_ms : &s->gone_ms,
                 1e3 * seconds(cancel, r->end_ns));
    if (r->finish != FINISH_STOP && r->finish != FINISH_LENGTH) return;
    hist_add(&s->e2e, seconds(r->submit_ns, r->end_ns));
    hist_add(&s->queue, seconds(r->submit_ns, r->start_ns));
    hist_add(&s->prefill, seconds(r->start_ns, r->first_ns));
    hist_add(&s->decode, seconds(r->first_ns, r->end_ns));
    hist_add(&s->prompt_len, (double)r->prompt.n);
    hist_add(&s->output_len, r->n_out);
}

/* Updates what admission goes by: the length of completions, and the time between two ends. */
static void measure_end(struct engine *g, const struct request *r)
{
    int64_t len = atomic_load_explicit(&g->admit.out_tokens, RELAXED);
    uint64_t gap = atomic_load_explicit(&g->admit.end_ns, RELAXED), now = r->end_ns;
    uint64_t since = g->last_end_ns > r->submit_ns ? g->last_end_ns : r->submit_ns;

    g->last_end_ns = now;
    if (r->quiet || (r->finish != FINISH_STOP && r->finish != FINISH_LENGTH)) return;
    atomic_store_explicit(&g->admit.out_tokens, (7 * len + r->n_out) / 8 + 1, RELAXED);
    since = now > since ? now - since : 0;
    atomic_store_explicit(&g->admit.end_ns, gap ? (7 * gap + since) / 8 : since, RELAXED);
}

/* The first token makes the time to first token, the others the gaps between tokens. after_cancel
 * must stay 0: it counts tokens sampled after a cancel that an earlier round had to see. */
static void count_token(struct engine *g, struct request *r, struct seq *s, uint64_t now)
{
    uint64_t cancel = atomic_load_explicit(&r->cancel_ns, memory_order_acquire);

    if (!r->first_ns) r->first_ns = now;
    if (!r->quiet) {
        counter_add(&g->stats->generated_tokens, 1);
        if (r->first_ns == now) hist_add(&g->stats->ttft, seconds(r->submit_ns, now));
        else hist_add(&g->stats->itl, seconds(s->last_ns, now));
    }
    if (cancel && cancel < g->round_ns) counter_add(&g->stats->after_cancel, 1);
    s->last_ns = now;
}

/* ---- ends ---- */

void engine_free_slot(struct engine *g, struct seq *s)
{
    slots_put(&g->slots, s->slot);
    s->slot = -1;
}

/* The text that was held back. A stop string may complete in it. Text of a sequence that found no
 * memory is incomplete: the request fails. */
static struct str take_last_text(struct seq *s, enum finish *why, struct err *e)
{
    buf_clear(&s->text);
    if (stream_flush(&s->stream, &s->text) && *why == FINISH_LENGTH) *why = FINISH_STOP;
    if (*why == FINISH_CANCELLED || *why == FINISH_DEADLINE) return STR("");
    if ((s->failed || s->text.failed || stream_is_failed(&s->stream)) && *why != FINISH_ERROR) {
        err_nomem(e, "the text of the completion");
        *why = FINISH_ERROR;
    }
    return buf_str(&s->text);
}

void engine_end(struct engine *g, struct request *r, enum finish why, const struct err *e)
{
    struct seq *s = r->seq;
    struct event ev = { .id = -1 };
    struct str text = { 0 };

    if (e) r->err = *e;
    if (s) text = take_last_text(s, &why, &r->err);
    r->finish = why;
    r->stop_hit = s && s->stream.stopped && why == FINISH_STOP ? s->stream.hit : -1;
    r->end_ns = ev.at_ns = clock_ns();
    ev.finish = (int)why;
    count_end(g, r);
    measure_end(g, r);
    atomic_store_explicit(&r->state, REQ_DONE, RELAXED);
    push_text(r, &ev, text);
    if (s) {
        guided_end(&g->guided, &s->matcher);
        engine_free_slot(g, s);
        seq_close(s, g->pool);
    }
    r->seq = NULL;
    admit_release(&g->admit, r);
    notify_reader(r);
    request_unref(r);
}

/* ---- pending results ---- */

/* A token of a request that was cancelled meanwhile is not shown. A request that is still in `live`
 * is ended there, in the next round. */
void engine_emit_one(struct engine *g, struct pending *p)
{
    struct request *r = p->r;
    struct err cancelled = { 0 };

    p->r = NULL;
    if (request_is_cancelled(r)) {
        if (p->ev.id >= 0) r->n_out--;
        if (p->why == FINISH_NONE) return;
        err_set(&cancelled, E_CANCELLED, "the request was cancelled");
        engine_end(g, r, FINISH_CANCELLED, &cancelled);
        return;
    }
    if (p->ev.id >= 0) {
        seq_make_text(r->seq);
        count_token(g, r, r->seq, p->ev.at_ns);
        atomic_store_explicit(&r->state, REQ_DECODE, RELAXED);
        push_text(r, &p->ev, buf_str(&r->seq->text));
    }
    if (p->why != FINISH_NONE) engine_end(g, r, p->why, p->err.code ? &p->err : NULL);
    else notify_reader(r);
}

/* Called once the next step has started, or when there is none. */
void engine_emit(struct engine *g)
{
    uint64_t begin = clock_ns();
    int n = g->n_pending;

    for (int i = 0; i < n; i++)
        if (g->pending[i].r) engine_emit_one(g, &g->pending[i]);
    g->n_pending = 0;
    if (n) hist_add(&g->stats->emit_us, (double)(clock_ns() - begin) / 1e3 / n);
}
