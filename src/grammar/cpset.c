#include "grammar/cpset.h"

#include "base/utf8.h"

#include <stdlib.h>

void cpset_add(struct cpset *s, struct arena *a, int32_t lo, int32_t hi)
{
    if (lo > hi) return;
    if (s->n == s->cap) {
        struct cprange *old = s->r;
        s->cap = s->cap ? 2 * s->cap : 4;
        s->r = arena_array(a, (size_t)s->cap, sizeof *s->r);
        if (s->n) memcpy(s->r, old, (size_t)s->n * sizeof *s->r);
    }
    s->r[s->n++] = (struct cprange){ lo, hi };
}

void cpset_add_all(struct cpset *s, struct arena *a, const struct cpset *from)
{
    for (int i = 0; i < from->n; i++) cpset_add(s, a, from->r[i].lo, from->r[i].hi);
}

static int by_lo(const void *a, const void *b)
{
    const struct cprange *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

void cpset_tidy(struct cpset *s)
{
    int n = 0;

    if (s->n == 0) return;
    qsort(s->r, (size_t)s->n, sizeof *s->r, by_lo);
    for (int i = 1; i < s->n; i++) {
        if (s->r[i].lo > s->r[n].hi + 1) s->r[++n] = s->r[i];
        else if (s->r[i].hi > s->r[n].hi) s->r[n].hi = s->r[i].hi;
    }
    s->n = n + 1;
}

struct cpset cpset_not(const struct cpset *s, struct arena *a)
{
    struct cpset out = { 0 };
    int32_t from = 0;

    for (int i = 0; i < s->n; i++) {
        cpset_add(&out, a, from, s->r[i].lo - 1);
        from = s->r[i].hi + 1;
    }
    cpset_add(&out, a, from, CP_LAST);
    return out;
}

struct cpset cpset_and(const struct cpset *x, const struct cpset *y, struct arena *a)
{
    struct cpset out = { 0 };

    for (int i = 0, k = 0; i < x->n && k < y->n;) {
        int32_t lo = x->r[i].lo > y->r[k].lo ? x->r[i].lo : y->r[k].lo;
        int32_t hi = x->r[i].hi < y->r[k].hi ? x->r[i].hi : y->r[k].hi;
        cpset_add(&out, a, lo, hi);
        if (x->r[i].hi < y->r[k].hi) i++;
        else k++;
    }
    return out;
}

bool cpset_has(const struct cpset *s, int32_t cp)
{
    for (int i = 0; i < s->n; i++)
        if (cp >= s->r[i].lo && cp <= s->r[i].hi) return true;
    return false;
}

struct runs {
    void (*fn)(void *arg, const struct utf8_run *run);
    void *arg;
};

/* lo and hi are spelled with as many bytes. Cut until all but the last bytes of a run are free. */
static void put_runs(const struct runs *r, int32_t lo, int32_t hi)
{
    struct utf8_run run;
    char a[4], b[4];

    for (int i = 1; i < 4; i++) {
        int32_t m = (1 << (6 * i)) - 1;
        if ((lo & ~m) == (hi & ~m)) continue;
        if (lo & m) {
            put_runs(r, lo, lo | m);
            put_runs(r, (lo | m) + 1, hi);
            return;
        }
        if ((hi & m) != m) {
            put_runs(r, lo, (hi & ~m) - 1);
            put_runs(r, hi & ~m, hi);
            return;
        }
    }
    run.n = utf8_put(a, lo);
    utf8_put(b, hi);
    for (int i = 0; i < run.n; i++) {
        run.lo[i] = (uint8_t)a[i];
        run.hi[i] = (uint8_t)b[i];
    }
    r->fn(r->arg, &run);
}

void cpset_runs(const struct cpset *s, void (*fn)(void *arg, const struct utf8_run *run), void *arg)
{
    static const struct cprange lengths[] = {
        { 0, 0x7f }, { 0x80, 0x7ff }, { 0x800, 0xd7ff }, { 0xe000, 0xffff }, { 0x10000, CP_LAST }
    };
    struct runs r = { fn, arg };

    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < 5; k++) {
            int32_t lo = s->r[i].lo > lengths[k].lo ? s->r[i].lo : lengths[k].lo;
            int32_t hi = s->r[i].hi < lengths[k].hi ? s->r[i].hi : lengths[k].hi;
            if (lo <= hi) put_runs(&r, lo, hi);
        }
}
