#include "engine/stream.h"

#include "base/mem.h"

void stream_init(struct stream *s, const struct tokenizer *tok, const struct str *stops,
                 int n_stops)
{
    *s = (struct stream){ 0 };
    if (tok) detok_init(&s->detok, tok, true);
    if (n_stops > 0) s->stops = mem_array((size_t)n_stops, sizeof *s->stops);
    for (int i = 0; i < n_stops; i++)
        if (stops[i].n > 0)
            s->stops[s->n_stops++] = str_of(mem_dup(stops[i].p, stops[i].n), stops[i].n);
}

void stream_release(struct stream *s)
{
    for (int i = 0; i < s->n_stops; i++) mem_free((void *)s->stops[i].p);
    mem_free(s->stops);
    if (s->detok.t) detok_release(&s->detok);
    buf_release(&s->held);
    *s = (struct stream){ 0 };
}

void stream_prime(struct stream *s, const int32_t *ids, size_t n)
{
    if (s->detok.t) detok_prime(&s->detok, ids, n);
}

/* Where the first complete stop string begins, or -1: the one with the earliest end, of those the
 * longest. */
static ptrdiff_t find_stop(const struct stream *s)
{
    size_t best_end = (size_t)-1;
    ptrdiff_t best = -1;

    for (int i = 0; i < s->n_stops && !s->unarmed; i++) {
        ptrdiff_t at = str_find(buf_str(&s->held), s->stops[i]);
        size_t end = (size_t)at + s->stops[i].n;
        if (at < 0 || end > best_end || (end == best_end && at >= best)) continue;
        best = at;
        best_end = end;
    }
    return best;
}

/* How many bytes at the end of what is held may begin a stop string. */
static size_t open_tail(const struct stream *s)
{
    size_t most = 0;

    for (int i = 0; i < s->n_stops && !s->unarmed; i++) {
        size_t n = s->stops[i].n - 1 < s->held.n ? s->stops[i].n - 1 : s->held.n;
        for (; n > most; n--)
            if (memcmp(s->held.p + s->held.n - n, s->stops[i].p, n) == 0) most = n;
    }
    return most;
}

/* Gives out all but the last `keep` bytes of what is held. */
static void give(struct stream *s, size_t keep, struct buf *out)
{
    size_t n = s->held.n - keep;

    if (n == 0) return;
    buf_add(out, s->held.p, n);
    memmove(s->held.p, s->held.p + n, keep);
    s->held.n = keep;
}

static bool settle(struct stream *s, struct buf *out)
{
    ptrdiff_t stop = find_stop(s);

    if (stop < 0) {
        give(s, open_tail(s), out);
        return false;
    }
    give(s, s->held.n - (size_t)stop, out);
    buf_clear(&s->held);
    s->stopped = true;
    return true;
}

static bool is_shown(const struct stream *s, int32_t id)
{
    for (int i = 0; i < s->n_shown; i++)
        if (s->shown[i] == id) return true;
    return false;
}

bool stream_push(struct stream *s, int32_t id, struct buf *out)
{
    if (s->stopped || !s->detok.t) return s->stopped;
    if (is_shown(s, id)) {
        detok_flush(&s->detok, &s->held);
        buf_put_str(&s->held, tokenizer_piece(s->detok.t, id));
    } else {
        detok_push(&s->detok, id, &s->held);
    }
    return settle(s, out);
}

bool stream_push_text(struct stream *s, struct str text, struct buf *out)
{
    if (s->stopped) return true;
    buf_put_str(&s->held, text);
    return settle(s, out);
}

bool stream_flush(struct stream *s, struct buf *out)
{
    if (s->stopped) return true;
    if (s->detok.t) detok_flush(&s->detok, &s->held);
    if (settle(s, out)) return true;
    give(s, 0, out);
    return false;
}
