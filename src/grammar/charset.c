/* charset.c - sets as sorted arrays of ranges. A set has few ranges (a class in a pattern, one JSON
 * string character), so linear scans do. */
#include "grammar/charset.h"

#include "base/utf8.h"

#include <stdlib.h>

/* The array doubles in the arena; the old one stays there until the arena ends. */
void charset_add(struct charset *s, struct arena *a, int32_t lo, int32_t hi)
{
    if (lo > hi) return;
    if (s->n == s->cap) {
        int cap = s->cap ? 2 * s->cap : 4;
        struct char_range *ranges = arena_array(a, (size_t)cap, sizeof *ranges);
        if (!ranges) return;
        if (s->n) memcpy(ranges, s->ranges, (size_t)s->n * sizeof *ranges);
        s->ranges = ranges;
        s->cap = cap;
    }
    s->ranges[s->n++] = (struct char_range){ lo, hi };
}

void charset_add_all(struct charset *s, struct arena *a, const struct charset *from)
{
    for (int i = 0; i < from->n; i++) charset_add(s, a, from->ranges[i].lo, from->ranges[i].hi);
}

/* qsort order. */
static int by_lo(const void *a, const void *b)
{
    const struct char_range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

void charset_normalize(struct charset *s)
{
    int n = 0;

    if (s->n == 0) return;
    qsort(s->ranges, (size_t)s->n, sizeof *s->ranges, by_lo);
    for (int i = 1; i < s->n; i++) {
        if (s->ranges[i].lo > s->ranges[n].hi + 1) s->ranges[++n] = s->ranges[i];
        else if (s->ranges[i].hi > s->ranges[n].hi) s->ranges[n].hi = s->ranges[i].hi;
    }
    s->n = n + 1;
}

/* The gaps between the ranges. */
struct charset charset_complement(const struct charset *s, struct arena *a)
{
    struct charset out = { 0 };
    int32_t from = 0;

    for (int i = 0; i < s->n; i++) {
        charset_add(&out, a, from, s->ranges[i].lo - 1);
        from = s->ranges[i].hi + 1;
    }
    charset_add(&out, a, from, CHARSET_LAST);
    return out;
}

/* One pass over both: of two ranges, the one that ends first is done. */
struct charset charset_intersect(const struct charset *x, const struct charset *y, struct arena *a)
{
    struct charset out = { 0 };

    for (int i = 0, k = 0; i < x->n && k < y->n;) {
        const struct char_range *p = &x->ranges[i], *q = &y->ranges[k];
        charset_add(&out, a, p->lo > q->lo ? p->lo : q->lo, p->hi < q->hi ? p->hi : q->hi);
        if (p->hi < q->hi) i++;
        else k++;
    }
    return out;
}

bool charset_has(const struct charset *s, int32_t cp)
{
    for (int i = 0; i < s->n; i++)
        if (cp >= s->ranges[i].lo && cp <= s->ranges[i].hi) return true;
    return false;
}

/* ---- UTF-8 ---- */

struct utf8_sink {
    void (*fn)(void *arg, const struct charset_utf8 *seq);
    void *arg;
};

/* lo and hi have UTF-8 of the same length. The range is cut until, in each piece, every byte after
 * the first one that differs runs over all continuation bytes (0x80 to 0xbf): then the bytes are
 * independent of each other. */
static void emit_sequences(const struct utf8_sink *out, int32_t lo, int32_t hi)
{
    struct charset_utf8 seq;
    char a[4], b[4];

    for (int i = 1; i < 4; i++) {
        int32_t m = (1 << (6 * i)) - 1; /* the code point bits of the last i bytes */
        if ((lo & ~m) == (hi & ~m)) continue;
        if (lo & m) {
            emit_sequences(out, lo, lo | m);
            emit_sequences(out, (lo | m) + 1, hi);
            return;
        }
        if ((hi & m) != m) {
            emit_sequences(out, lo, (hi & ~m) - 1);
            emit_sequences(out, hi & ~m, hi);
            return;
        }
    }
    seq.n = utf8_put(a, lo);
    utf8_put(b, hi);
    for (int i = 0; i < seq.n; i++) {
        seq.lo[i] = (uint8_t)a[i];
        seq.hi[i] = (uint8_t)b[i];
    }
    out->fn(out->arg, &seq);
}

void charset_each_utf8(const struct charset *s,
                       void (*fn)(void *arg, const struct charset_utf8 *seq), void *arg)
{
    /* code points by the length of their UTF-8, without the surrogates */
    static const struct char_range lengths[] = { { 0, 0x7f },
                                                 { 0x80, 0x7ff },
                                                 { 0x800, 0xd7ff },
                                                 { 0xe000, 0xffff },
                                                 { 0x10000, CHARSET_LAST } };
    struct utf8_sink out = { fn, arg };

    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < 5; k++) {
            int32_t lo = s->ranges[i].lo > lengths[k].lo ? s->ranges[i].lo : lengths[k].lo;
            int32_t hi = s->ranges[i].hi < lengths[k].hi ? s->ranges[i].hi : lengths[k].hi;
            if (lo <= hi) emit_sequences(&out, lo, hi);
        }
}
