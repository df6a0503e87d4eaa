/* tell.c - what a step came to, told to those who asked: texts, ends, statistics. */
#include "base/clock.h"
#include "engine/engine_impl.h"

#define RELAXED memory_order_relaxed

static void tell(struct request *r)
{
    if (!r->notify || atomic_exchange_explicit(&r->told, 1, memory_order_acq_rel)) return;
    request_ref(r);
    r->notify(r);
}

/* What text there is, in events that hold it; the last one is ev itself. */
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

static double seconds(uint64_t from_ns, uint64_t to_ns)
{
    return from_ns && to_ns > from_ns ? (double)(to_ns - from_ns) / 1e9 : 0;
}

static void count_end(struct engine *g, const struct request *r)
{
    struct engine_stats *s = &g->stats;
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

/* What admission goes by: how long answers are, how often one ends. */
static void learn_end(struct engine *g, const struct request *r)
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

void engine_give_slot(struct engine *g, struct seq *s)
{
    state_put(g->states, s->slot);
    s->slot = -1;
}

/* r, which is out of `live`, is over: it is told so. */
void engine_end(struct engine *g, struct request *r, enum finish why, const struct err *e)
{
    struct seq *s = r->seq;
    struct event ev = { .id = -1 };
    struct str text = { 0 };

    if (s) {
        buf_clear(&s->text);
        if (stream_flush(&s->stream, &s->text) && why == FINISH_LENGTH) why = FINISH_STOP;
        if (why != FINISH_CANCELLED && why != FINISH_DEADLINE) text = buf_str(&s->text);
    }
    r->finish = why;
    if (e) r->err = *e;
    r->end_ns = ev.at_ns = clock_ns();
    ev.finish = (int)why;
    count_end(g, r);
    learn_end(g, r);
    atomic_store_explicit(&r->state, REQ_DONE, RELAXED);
    push_text(r, &ev, text);
    if (s) {
        guided_end(&g->guided, &s->matcher);
        engine_give_slot(g, s);
        seq_close(s, g->pool);
    }
    r->seq = NULL;
    admit_give(&g->admit, r);
    tell(r);
    request_unref(r);
}

static void count_token(struct engine *g, struct request *r, struct seq *s, uint64_t now)
{
    uint64_t cancel = atomic_load_explicit(&r->cancel_ns, memory_order_acquire);

    if (!r->first_ns) r->first_ns = now;
    if (!r->quiet) {
        counter_add(&g->stats.generated_tokens, 1);
        if (r->first_ns == now) hist_add(&g->stats.ttft, seconds(r->submit_ns, now));
        else hist_add(&g->stats.itl, seconds(s->last_ns, now));
    }
    if (cancel && cancel < g->round_ns) counter_add(&g->stats.after_cancel, 1);
    s->last_ns = now;
}

/* A token of one that was cancelled meanwhile is not shown. Who is still in `live` is ended there.
 */
void engine_tell_one(struct engine *g, struct untold *u)
{
    struct request *r = u->r;
    struct err gone = { 0 };

    u->r = NULL;
    if (request_is_cancelled(r)) {
        if (u->ev.id >= 0) r->n_out--;
        if (u->why == FINISH_NONE) return;
        err_set(&gone, E_CANCELLED, "the request was cancelled");
        engine_end(g, r, FINISH_CANCELLED, &gone);
        return;
    }
    if (u->ev.id >= 0) {
        seq_text(r->seq);
        count_token(g, r, r->seq, u->ev.at_ns);
        atomic_store_explicit(&r->state, REQ_DECODE, RELAXED);
        push_text(r, &u->ev, buf_str(&r->seq->text));
    }
    if (u->why != FINISH_NONE) engine_end(g, r, u->why, u->err.code ? &u->err : NULL);
    else tell(r);
}

void engine_tell(struct engine *g)
{
    uint64_t begin = clock_ns();
    int n = g->n_untold;

    for (int i = 0; i < n; i++)
        if (g->untold[i].r) engine_tell_one(g, &g->untold[i]);
    g->n_untold = 0;
    if (n) hist_add(&g->stats.emit_us, (double)(clock_ns() - begin) / 1e3 / n);
}
