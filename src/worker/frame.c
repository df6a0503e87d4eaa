/* frame.c - the table of frame types: who sends each, where, and how large it may be. */
#include "worker/frame.h"

#include <endian.h>
#include <stdio.h>

enum { BY_SERVER = 1, BY_WORKER = 2, BY_BOTH = 3 };
enum where { CONNECTION, STREAM };
enum content { JSON, BULK, CREDIT };

struct kind {
    const char *name; /* NULL: there is no such type */
    uint32_t max;     /* bytes of the payload */
    uint8_t by;       /* who may send it */
    uint8_t where;
    uint8_t content;
    uint8_t flags; /* allowed besides FRAME_MAY_IGNORE */
};

static const struct kind kinds[] = {
    [FRAME_HELLO] = { "HELLO", 4 << 10, BY_BOTH, CONNECTION, JSON, 0 },
    [FRAME_WELCOME] = { "WELCOME", 4 << 10, BY_BOTH, CONNECTION, JSON, 0 },
    [FRAME_ERROR] = { "ERROR", 4 << 10, BY_BOTH, CONNECTION, JSON, 0 },
    [FRAME_PING] = { "PING", 1 << 10, BY_BOTH, CONNECTION, JSON, 0 },
    [FRAME_PONG] = { "PONG", 1 << 10, BY_BOTH, CONNECTION, JSON, 0 },
    [FRAME_STOP] = { "STOP", 1 << 10, BY_SERVER, CONNECTION, JSON, 0 },
    [FRAME_PLAN] = { "PLAN", 16 << 10, BY_WORKER, CONNECTION, JSON, 0 },
    [FRAME_ADMIT] = { "ADMIT", 4 << 10, BY_SERVER, CONNECTION, JSON, 0 },
    [FRAME_REFUSE] = { "REFUSE", 4 << 10, BY_SERVER, CONNECTION, JSON, 0 },
    [FRAME_PROGRESS] = { "PROGRESS", 1 << 10, BY_WORKER, CONNECTION, JSON, 0 },
    [FRAME_READY] = { "READY", 256 << 10, BY_WORKER, CONNECTION, JSON, 0 },
    [FRAME_FAILED] = { "FAILED", 4 << 10, BY_WORKER, CONNECTION, JSON, 0 },
    [FRAME_ROOM] = { "ROOM", 1 << 10, BY_SERVER, CONNECTION, JSON, 0 },
    [FRAME_SLEEP] = { "SLEEP", 1 << 10, BY_SERVER, CONNECTION, JSON, 0 },
    [FRAME_ASLEEP] = { "ASLEEP", 1 << 10, BY_WORKER, CONNECTION, JSON, 0 },
    [FRAME_WAKE] = { "WAKE", 1 << 10, BY_SERVER, CONNECTION, JSON, 0 },
    [FRAME_REQUEST] = { "REQUEST", 256 << 10, BY_SERVER, STREAM, JSON, FRAME_LAST },
    [FRAME_BODY] = { "BODY", FRAME_BULK, BY_SERVER, STREAM, BULK, FRAME_LAST },
    [FRAME_REPLY] = { "REPLY", 64 << 10, BY_WORKER, STREAM, JSON, 0 },
    [FRAME_DATA] = { "DATA", FRAME_BULK, BY_WORKER, STREAM, BULK, 0 },
    [FRAME_END] = { "END", 16 << 10, BY_WORKER, STREAM, JSON, 0 },
    [FRAME_CANCEL] = { "CANCEL", 1 << 10, BY_SERVER, STREAM, JSON, 0 },
    [FRAME_CREDIT] = { "CREDIT", FRAME_CREDIT_BYTES, BY_BOTH, STREAM, CREDIT, 0 },
};

static const struct kind *kind_of(int type)
{
    if (type < 0 || (size_t)type >= sizeof kinds / sizeof *kinds) return NULL;
    return kinds[type].name ? &kinds[type] : NULL;
}

const char *frame_name(int type) { return kind_of(type) ? kind_of(type)->name : "?"; }
bool frame_is_bulk(int type) { return kind_of(type) && kind_of(type)->content == BULK; }
bool frame_is_json(int type) { return kind_of(type) && kind_of(type)->content == JSON; }
uint32_t frame_max(int type) { return kind_of(type) ? kind_of(type)->max : 0; }
const char *frame_role_name(enum frame_role r) { return r == FRAME_SERVER ? "server" : "worker"; }

void frame_pack(unsigned char out[FRAME_HEAD], const struct frame *f)
{
    uint32_t n = htole32(f->n);
    uint64_t stream = htole64(f->stream);

    memcpy(out, &n, 4);
    out[4] = f->type, out[5] = f->flags, out[6] = out[7] = 0;
    memcpy(out + 8, &stream, 8);
}

static int refuse(struct err *e, const struct frame *f, uint64_t offset, const char *why)
{
    const struct kind *k = kind_of(f->type);
    char type[32];

    if (k) snprintf(type, sizeof type, "%s", k->name);
    else snprintf(type, sizeof type, "of type %d", f->type);
    return err_set(e, E_FORMAT, "frame %s on stream %llu at byte %llu: %s", type,
                   (unsigned long long)f->stream, (unsigned long long)offset, why);
}

/* A type that this version does not have. */
static int check_unknown(const struct frame *f, uint64_t offset, struct err *e)
{
    if (!(f->flags & FRAME_MAY_IGNORE)) return refuse(e, f, offset, "unknown type");
    if (f->n > FRAME_IGNORED_MAX) return refuse(e, f, offset, "unknown type, over 65536 bytes");
    return OK;
}

static int check_known(const struct frame *f, const struct kind *k, enum frame_role from,
                       uint64_t offset, struct err *e)
{
    char why[80];

    if (!(k->by & (from == FRAME_SERVER ? BY_SERVER : BY_WORKER))) {
        snprintf(why, sizeof why, "the %s must not send it", frame_role_name(from));
        return refuse(e, f, offset, why);
    }
    if (f->n > k->max) {
        snprintf(why, sizeof why, "%u bytes, at most %u are allowed", f->n, k->max);
        return refuse(e, f, offset, why);
    }
    if (k->content == CREDIT && f->n != FRAME_CREDIT_BYTES)
        return refuse(e, f, offset, "its payload must have 4 bytes");
    if ((k->where == CONNECTION) != (f->stream == 0))
        return refuse(e, f, offset,
                      k->where == CONNECTION ? "it must be on stream 0" : "it needs a stream");
    if (f->flags & ~(k->flags | FRAME_MAY_IGNORE)) {
        snprintf(why, sizeof why, "flags 0x%02x are not allowed", f->flags);
        return refuse(e, f, offset, why);
    }
    return OK;
}

int frame_unpack(struct frame *f, bool *known, const unsigned char in[FRAME_HEAD],
                 enum frame_role from, uint64_t offset, struct err *e)
{
    const struct kind *k;
    uint32_t n;
    uint64_t stream;

    memcpy(&n, in, 4);
    memcpy(&stream, in + 8, 8);
    *f =
        (struct frame){ .type = in[4], .flags = in[5], .n = le32toh(n), .stream = le64toh(stream) };
    k = kind_of(f->type);
    *known = k != NULL;
    if (in[6] || in[7]) return refuse(e, f, offset, "bytes 6 and 7 of the header must be 0");
    return k ? check_known(f, k, from, offset, e) : check_unknown(f, offset, e);
}

void frame_pack_credit(unsigned char out[FRAME_CREDIT_BYTES], uint32_t n)
{
    n = htole32(n);
    memcpy(out, &n, 4);
}

bool frame_unpack_credit(struct str payload, uint32_t *n)
{
    uint32_t v;

    if (payload.n != FRAME_CREDIT_BYTES) return false;
    memcpy(&v, payload.p, 4);
    *n = le32toh(v);
    return *n > 0;
}
