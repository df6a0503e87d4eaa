#include "token/normalizer.h"

#include "base/utf8.h"

#include <utf8proc.h>

enum { MAX_GRAPHEME = 6 }; /* longer ones are taken apart */

struct charsmap {
    const char *units;
    size_t n_units;
    struct str texts; /* each ends with a NUL */
};

static uint32_t u32_at(const char *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static struct charsmap open_map(struct str map)
{
    uint32_t n = u32_at(map.p);
    return (struct charsmap){ map.p + 4, n / 4, str_skip(map, 4 + (size_t)n) };
}

int charsmap_check(struct str map, struct err *e)
{
    if (map.n < 4 || u32_at(map.p) > map.n - 4 || u32_at(map.p) % 4)
        return err_set(e, E_FORMAT, "precompiled_charsmap: the trie does not fit into %zu bytes",
                       map.n);
    return OK;
}

static uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); }

/* Looks s up; the length of the shortest (or longest) key it begins with, 0: none; *text is its
 * text. */
static size_t find(const struct charsmap *m, struct str s, bool longest, struct str *text)
{
    size_t best = 0;
    uint32_t at, unit, value = 0;

    if (m->n_units == 0) return 0;
    at = offset_of(u32_at(m->units));
    for (size_t i = 0; i < s.n && s.p[i]; i++) {
        unsigned char c = (unsigned char)s.p[i];
        at ^= c;
        if (at >= m->n_units) break;
        unit = u32_at(m->units + 4 * (size_t)at);
        if ((unit & (1u << 31 | 0xff)) != c) break;
        at ^= offset_of(unit);
        if (!(unit >> 8 & 1)) continue;
        if (at >= m->n_units) break;
        value = u32_at(m->units + 4 * (size_t)at) & 0x7fffffff;
        best = i + 1;
        if (!longest) break;
    }
    if (!best || value > m->texts.n) return 0;
    *text = str_skip(m->texts, value);
    text->n = strnlen(text->p, text->n);
    return best;
}

static size_t grapheme_bytes(struct str s)
{
    utf8proc_int32_t state = 0, a, b;
    size_t n = (size_t)utf8_next(s, &a);

    while (n < s.n) {
        int m = utf8_next(str_skip(s, n), &b);
        if (utf8proc_grapheme_break_stateful(a, b, &state)) break;
        n += (size_t)m;
        a = b;
    }
    return n;
}

static void put_grapheme(const struct charsmap *m, struct str g, struct buf *out)
{
    struct str text;
    int32_t cp;

    if (g.n < MAX_GRAPHEME && find(m, g, false, &text)) {
        buf_put_str(out, text);
        return;
    }
    for (size_t i = 0, n; i < g.n; i += n) {
        n = (size_t)utf8_next(str_skip(g, i), &cp);
        if (find(m, str_of(g.p + i, n), false, &text)) buf_put_str(out, text);
        else buf_add(out, g.p + i, n);
    }
}

void charsmap_put(struct str map, bool longest, struct str text, struct buf *out)
{
    struct charsmap m = open_map(map);
    struct str found;
    int32_t cp;

    for (size_t i = 0, n; i < text.n; i += n) {
        struct str rest = str_skip(text, i);
        if (!longest) {
            n = grapheme_bytes(rest);
            put_grapheme(&m, str_take(rest, n), out);
        } else if ((n = find(&m, rest, true, &found))) {
            buf_put_str(out, found);
        } else {
            n = (size_t)utf8_next(rest, &cp);
            buf_add(out, rest.p, n);
        }
    }
}
