/* stream.c - detokenized text is collected in `held`; everything that cannot be part of a stop
 * string any more is moved on. The held tail is shorter than the longest stop string. */
#include "engine/stream.h"

#include "base/mem.h"

#include <string.h>

bool stream_init(struct stream *s, const struct tokenizer *tok, const struct str *stops,
                 int n_stops)
{
    *s = (struct stream){ 0 };
    if (tok) detok_init(&s->detok, tok, true);
    if (n_stops > 0 && !(s->stops = mem_array((size_t)n_stops, sizeof *s->stops))) goto fail;
    for (int i = 0; i < n_stops; i++) {
        char *copy;
        if (stops[i].n == 0) continue;
        if (!(copy = mem_dup(stops[i].p, stops[i].n))) goto fail;
        s->stops[s->n_stops++] = str_of(copy, stops[i].n);
    }
    return true;
fail:
    stream_release(s);
    return false;
}

void stream_release(struct stream *s)
{
    for (int i = 0; i < s->n_stops; i++) mem_free((void *)s->stops[i].p);
    mem_free(s->stops);
    if (s->detok.t) detok_release(&s->detok);
    buf_release(&s->held);
    *s = (struct stream){ 0 };
}

bool stream_is_failed(const struct stream *s)
{
    return s->held.failed || s->detok.ids.failed || s->detok.text.failed;
}

void stream_prime(struct stream *s, const int32_t *ids, size_t n)
{
    if (s->detok.t) detok_prime(&s->detok, ids, n);
}

/* Where the stop string that is complete first begins in the held text, or -1: the one with the
 * earliest end, of those the longest. *hit: its index. */
static ptrdiff_t find_stop(const struct stream *s, int *hit)
{
    size_t best_end = (size_t)-1;
    ptrdiff_t best = -1;

    for (int i = 0; i < s->n_stops && !s->unarmed; i++) {
        ptrdiff_t at = str_find(buf_str(&s->held), s->stops[i]);
        size_t end = (size_t)at + s->stops[i].n;
        if (at < 0 || end > best_end || (end == best_end && at >= best)) continue;
        best = at;
        best_end = end;
        *hit = i;
    }
    return best;
}

/* Bytes at the end of the held text that may begin a stop string. */
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

/* Moves all but the last n_kept bytes of the held text to out. */
static void release_held(struct stream *s, size_t n_kept, struct buf *out)
{
    size_t n = s->held.n - n_kept;

    if (n == 0) return;
    buf_add(out, s->held.p, n);
    memmove(s->held.p, s->held.p + n, n_kept);
    s->held.n = n_kept;
}

/* Moves on what can be shown. true: a stop string is complete; it and all behind it are dropped. */
static bool release_text(struct stream *s, struct buf *out)
{
    ptrdiff_t stop = find_stop(s, &s->hit);

    if (stop < 0) {
        release_held(s, open_tail(s), out);
        return false;
    }
    release_held(s, s->held.n - (size_t)stop, out);
    s->held.n = 0;
    s->stopped = true;
    return true;
}

static bool is_shown(const struct stream *s, int32_t id)
{
    for (int i = 0; i < s->n_shown; i++)
        if (s->shown[i] == id) return true;
    return false;
}

/* A special token that appears as text is not decoded but written by its name. */
bool stream_push(struct stream *s, int32_t id, struct buf *out)
{
    if (s->stopped || !s->detok.t) return s->stopped;
    if (is_shown(s, id)) {
        detok_flush(&s->detok, &s->held);
        buf_put_str(&s->held, tokenizer_piece(s->detok.t, id));
    } else {
        detok_push(&s->detok, id, &s->held);
    }
    return release_text(s, out);
}

bool stream_push_text(struct stream *s, struct str text, struct buf *out)
{
    if (s->stopped) return true;
    buf_put_str(&s->held, text);
    return release_text(s, out);
}

bool stream_flush(struct stream *s, struct buf *out)
{
    if (s->stopped) return true;
    if (s->detok.t) detok_flush(&s->detok, &s->held);
    if (release_text(s, out)) return true;
    release_held(s, 0, out);
    return false;
}
