/* charset.h - sets of characters (Unicode code points), and the UTF-8 byte sequences of a set.
 *
 * A set is an array of ranges in an arena, which owns it. Ranges may be added in any order;
 * charset_normalize sorts and merges them. A zeroed set is a valid empty one. Surrogates may be in
 * a set, but have no UTF-8 and are left out when its bytes are made. If the arena runs out of
 * memory a range is lost: the arena remembers the failure, and its owner checks. */
#ifndef TERN_GRAMMAR_CHARSET_H
#define TERN_GRAMMAR_CHARSET_H

#include "base/arena.h"

#include <stdint.h>

#define CHARSET_LAST 0x10ffff

struct char_range {
    int32_t lo, hi; /* both included */
};

struct charset {
    struct char_range *ranges;
    int n, cap;
};

void charset_add(struct charset *s, struct arena *a, int32_t lo, int32_t hi);
void charset_add_all(struct charset *s, struct arena *a, const struct charset *from);
void charset_normalize(struct charset *s); /* sorts the ranges and merges those that touch */
/* The arguments of these are normalized, and so are their results. */
struct charset charset_complement(const struct charset *s, struct arena *a);
struct charset charset_intersect(const struct charset *x, const struct charset *y, struct arena *a);
bool charset_has(const struct charset *s, int32_t cp);

/* 1 to 4 bytes, byte i between lo[i] and hi[i]. All combinations together are the UTF-8 of a range
 * of characters. */
struct charset_utf8 {
    uint8_t lo[4], hi[4];
    int n;
};
/* Calls fn for each such sequence of a normalized set. */
void charset_each_utf8(const struct charset *s,
                       void (*fn)(void *arg, const struct charset_utf8 *seq), void *arg);
#endif
