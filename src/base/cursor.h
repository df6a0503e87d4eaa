/* cursor.h - reading little-endian bytes that may be cut short.
 *
 * A cursor past its end stays bad and reads zeros, so a reader asks once. */
#ifndef TERN_BASE_CURSOR_H
#define TERN_BASE_CURSOR_H

#include "base/str.h"

struct cursor {
    const unsigned char *start, *p, *end;
    bool bad;
};

static inline struct cursor cursor_of(const void *p, size_t n)
{
    return (struct cursor){ p, p, (const unsigned char *)p + n, false };
}
static inline size_t cursor_at(const struct cursor *c) { return (size_t)(c->p - c->start); }
static inline size_t cursor_left(const struct cursor *c) { return (size_t)(c->end - c->p); }

/* n bytes in place, or NULL (and bad) if there are fewer. */
static inline const void *cursor_take(struct cursor *c, uint64_t n)
{
    const void *p = c->p;
    if (c->bad || n > cursor_left(c)) {
        c->bad = true;
        return NULL;
    }
    c->p += n;
    return p;
}

static inline uint64_t cursor_uint(struct cursor *c, int bytes)
{
    const unsigned char *p = cursor_take(c, (uint64_t)bytes);
    uint64_t v = 0;
    if (p) memcpy(&v, p, (size_t)bytes); /* tern runs on little-endian machines */
    return v;
}
static inline uint8_t cursor_u8(struct cursor *c) { return (uint8_t)cursor_uint(c, 1); }
static inline uint16_t cursor_u16(struct cursor *c) { return (uint16_t)cursor_uint(c, 2); }
static inline uint32_t cursor_u32(struct cursor *c) { return (uint32_t)cursor_uint(c, 4); }
static inline uint64_t cursor_u64(struct cursor *c) { return cursor_uint(c, 8); }
#endif
