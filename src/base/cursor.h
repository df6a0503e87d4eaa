/* cursor.h - bounds-checked reading of little-endian binary data from untrusted files.
 *
 * A read past the end sets `bad`, and from then on every read returns 0 or NULL. A parser may
 * therefore read a whole record and check `bad` once, before it uses the values. The bytes are
 * borrowed. */
#ifndef TERN_BASE_CURSOR_H
#define TERN_BASE_CURSOR_H

#include "base/str.h"

struct cursor {
    const unsigned char *start, *p, *end; /* p: the next byte to read */
    bool bad;                             /* a read went past the end */
};

static inline struct cursor cursor_of(const void *p, size_t n)
{
    return (struct cursor){ p, p, (const unsigned char *)p + n, false };
}
/* Offset of the next byte: for messages. */
static inline size_t cursor_at(const struct cursor *c) { return (size_t)(c->p - c->start); }
static inline size_t cursor_left(const struct cursor *c) { return (size_t)(c->end - c->p); }

/* A pointer to the next n bytes, which it skips; NULL and bad if there are fewer. */
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

/* An unsigned integer of 1 to 8 bytes. */
static inline uint64_t cursor_uint(struct cursor *c, int bytes)
{
    const unsigned char *p = cursor_take(c, (uint64_t)bytes);
    uint64_t v = 0;
    if (p) memcpy(&v, p, (size_t)bytes); /* the host is little-endian, as the file is */
    return v;
}
static inline uint8_t cursor_u8(struct cursor *c) { return (uint8_t)cursor_uint(c, 1); }
static inline uint16_t cursor_u16(struct cursor *c) { return (uint16_t)cursor_uint(c, 2); }
static inline uint32_t cursor_u32(struct cursor *c) { return (uint32_t)cursor_uint(c, 4); }
static inline uint64_t cursor_u64(struct cursor *c) { return cursor_uint(c, 8); }
#endif
