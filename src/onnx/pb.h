/* pb.h - reading protobuf messages field by field, from bytes that may be truncated.
 *
 *     for (struct pb m = pb_of(bytes); pb_next(&m);)
 *         if (m.field == 7 && m.wire == PB_BYTES) ... m.bytes
 *
 * A message that ends inside a field or has an unknown wire type is bad from there on: pb_next
 * returns false and m.at.bad is set, which the reader checks once, at the end. Nothing allocates;
 * bytes point into the message. */
#ifndef TERN_ONNX_PB_H
#define TERN_ONNX_PB_H

#include "base/cursor.h"

enum pb_wire { PB_VARINT = 0, PB_I64 = 1, PB_BYTES = 2, PB_I32 = 5 };

struct pb {
    struct cursor at;
    uint32_t field;
    enum pb_wire wire;
    uint64_t v;       /* PB_VARINT, or the bits of PB_I64 and PB_I32 */
    struct str bytes; /* PB_BYTES */
};

static inline struct cursor pb_cursor(struct str s) { return cursor_of(s.p ? s.p : "", s.n); }
static inline struct pb pb_of(struct str bytes) { return (struct pb){ .at = pb_cursor(bytes) }; }

/* Base-128 varint, at most 10 bytes. */
static inline uint64_t pb_varint(struct cursor *c)
{
    uint64_t v = 0;

    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t b = cursor_u8(c);
        v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) return v;
    }
    c->bad = true;
    return 0;
}

/* The next field; false: there is none, or the message is bad. */
static inline bool pb_next(struct pb *m)
{
    uint64_t tag;

    if (m->at.bad || cursor_left(&m->at) == 0) return false;
    tag = pb_varint(&m->at);
    m->field = (uint32_t)(tag >> 3);
    m->wire = (enum pb_wire)(tag & 7);
    m->bytes = str_of(NULL, 0);
    switch (m->wire) {
    case PB_VARINT: m->v = pb_varint(&m->at); break;
    case PB_I64: m->v = cursor_u64(&m->at); break;
    case PB_I32: m->v = cursor_u32(&m->at); break;
    case PB_BYTES: {
        uint64_t n = pb_varint(&m->at);
        const char *p = cursor_take(&m->at, n);
        if (p) m->bytes = str_of(p, (size_t)n);
        break;
    }
    default: m->at.bad = true;
    }
    if (tag >> 3 == 0 || tag >> 35) m->at.bad = true;
    return !m->at.bad;
}

static inline float pb_f32(uint64_t bits)
{
    uint32_t u = (uint32_t)bits;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
#endif
