/* normalizer_charsmap.c - SentencePiece's precompiled_charsmap.
 *
 * The map is: the size of a trie in bytes (u32), the trie, then the replacement texts, each ended
 * by a NUL. The trie is a double array as darts-clone writes it: an array of 32-bit units, where
 * the child of the node at `at` by byte c is at `at ^ offset(unit) ^ c`. A unit has its byte in
 * bits 0 to 7, "has a value" in bit 8, its offset in bits 10 to 30 (shifted by 8 more where bit 9
 * is set), and bit 31 marks a value. The value of a key is the position of its text.
 *
 * Bytes come from a model file: positions are checked at every step, and a bad one ends the key. */
#include "token/normalizer.h"

#include "base/utf8.h"

#include <utf8proc.h>

enum { MAX_GRAPHEME = 6 }; /* bytes; a longer grapheme is replaced character by character */

struct charsmap {
    const char *units; /* the trie; not aligned */
    size_t n_units;
    struct str texts; /* each ends with a NUL */
};

static uint32_t read_u32(const char *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static struct charsmap parse_map(struct str map)
{
    uint32_t n = read_u32(map.p);
    return (struct charsmap){ map.p + 4, n / 4, str_skip(map, 4 + (size_t)n) };
}

int charsmap_check(struct str map, struct err *e)
{
    if (map.n < 4 || read_u32(map.p) > map.n - 4 || read_u32(map.p) % 4)
        return err_set(e, E_FORMAT, "precompiled_charsmap: the trie does not fit into %zu bytes",
                       map.n);
    return OK;
}

static uint32_t unit_offset(uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); }

/* Length of the shortest (or longest) key that s starts with, 0: none. *text is its replacement. */
static size_t find_key(const struct charsmap *m, struct str s, bool longest, struct str *text)
{
    size_t best = 0;
    uint32_t at, unit, value = 0;

    if (m->n_units == 0) return 0;
    at = unit_offset(read_u32(m->units));
    for (size_t i = 0; i < s.n && s.p[i]; i++) {
        unsigned char c = (unsigned char)s.p[i];
        at ^= c;
        if (at >= m->n_units) break;
        unit = read_u32(m->units + 4 * (size_t)at);
        if ((unit & (1u << 31 | 0xff)) != c) break;
        at ^= unit_offset(unit);
        if (!(unit >> 8 & 1)) continue;
        if (at >= m->n_units) break;
        value = read_u32(m->units + 4 * (size_t)at) & 0x7fffffff;
        best = i + 1;
        if (!longest) break;
    }
    if (!best || value > m->texts.n) return 0;
    *text = str_skip(m->texts, value);
    text->n = strnlen(text->p, text->n);
    return best;
}

/* Bytes of the first grapheme cluster of s. */
static size_t count_grapheme_bytes(struct str s)
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

    if (g.n < MAX_GRAPHEME && find_key(m, g, false, &text)) {
        buf_put_str(out, text);
        return;
    }
    for (size_t i = 0, n; i < g.n; i += n) {
        n = (size_t)utf8_next(str_skip(g, i), &cp);
        if (find_key(m, str_of(g.p + i, n), false, &text)) buf_put_str(out, text);
        else buf_add(out, g.p + i, n);
    }
}

void charsmap_apply(struct str map, bool longest, struct str text, struct buf *out)
{
    struct charsmap m = parse_map(map);
    struct str found;
    int32_t cp;

    for (size_t i = 0, n; i < text.n; i += n) {
        struct str rest = str_skip(text, i);
        if (!longest) {
            n = count_grapheme_bytes(rest);
            put_grapheme(&m, str_take(rest, n), out);
        } else if ((n = find_key(&m, rest, true, &found))) {
            buf_put_str(out, found);
        } else {
            n = (size_t)utf8_next(rest, &cp);
            buf_add(out, rest.p, n);
        }
    }
}
