/* frame.h - frames between a server and a worker process: the header, and what each type allows.
 *
 * A frame is a header of FRAME_HEAD bytes and a payload. The header, little-endian:
 *
 *     0  u32  n        bytes of the payload
 *     4  u8   type     enum frame_type
 *     5  u8   flags    FRAME_LAST, FRAME_MAY_IGNORE
 *     6  u16           0
 *     8  u64  stream   0: the connection; else the request it belongs to
 *
 * Control payloads are JSON objects (message.h), bulk payloads are raw bytes. docs/protocol.md is
 * the specification. frame_unpack refuses everything that the table of types does not allow, and
 * its error names the type, the stream and the offset in the connection. No state, no allocation;
 * any thread may call. */
#ifndef TERN_WORKER_FRAME_H
#define TERN_WORKER_FRAME_H

#include "base/err.h"
#include "base/str.h"

enum {
    FRAME_VERSION = 1, /* of the protocol */
    FRAME_HEAD = 16,
    FRAME_BULK = 64 << 10,       /* largest payload of BODY and DATA */
    FRAME_IGNORED_MAX = 64 << 10 /* largest payload of an unknown type that may be ignored */
};

/* Numbers are part of the protocol and never change. */
enum frame_type {
    FRAME_HELLO = 1, /* both: versions, role, nonce, limits; the first frame of each side */
    FRAME_WELCOME,   /* both: the proof that the sender has the token; the second */
    FRAME_ERROR,     /* both: why the sender closes the connection; the last */
    FRAME_PING,      /* both: heartbeat with a few numbers */
    FRAME_PONG,
    FRAME_STOP = 8, /* server: end now */

    FRAME_PLAN = 16, /* worker: bytes that the model needs, before it loads */
    FRAME_ADMIT,     /* server: there is room, load */
    FRAME_REFUSE,    /* server: there is no room; the worker ends */
    FRAME_PROGRESS,  /* worker: of the load */
    FRAME_READY,     /* worker: the model answers; its facts */
    FRAME_FAILED,    /* worker: the model does not load, or its engine has failed */
    FRAME_ROOM,      /* server: memory for the model's sizes; the worker plans by it */
    FRAME_SLEEP,     /* server: give the model's memory back, and stay */
    FRAME_ASLEEP,    /* worker: that is done */
    FRAME_WAKE,      /* server: load the model again; ROOM follows */

    FRAME_REQUEST = 32, /* server: opens a stream: the head of an HTTP request */
    FRAME_BODY,         /* server: bytes of the body; the last has FRAME_LAST */
    FRAME_REPLY,        /* worker: the head of the reply */
    FRAME_DATA,         /* worker: bytes of the reply's body */
    FRAME_END,          /* worker: the call has ended, the stream is closed */
    FRAME_CANCEL,       /* server: stop working on it; END still follows */
    FRAME_CREDIT        /* both: u32, so many more bytes of BODY or DATA may be sent */
};

enum {
    FRAME_LAST = 1,         /* REQUEST, BODY: the body ends here */
    FRAME_MAY_IGNORE = 0x80 /* a receiver that does not know the type skips the frame */
};

enum frame_role { FRAME_SERVER, FRAME_WORKER }; /* the two ends of a connection */

struct frame {
    uint8_t type, flags;
    uint32_t n;      /* bytes of the payload */
    uint64_t stream; /* 0: the connection */
    const char *p;   /* [n] the payload, borrowed; not set by frame_unpack */
};

void frame_pack(unsigned char out[FRAME_HEAD], const struct frame *f);
/* Reads a header that `from` has sent at this offset of the connection. *known false: a type from a
 * later version that may be ignored; its payload is skipped. E_FORMAT: the connection is useless. */
int frame_unpack(struct frame *f, bool *known, const unsigned char in[FRAME_HEAD],
                 enum frame_role from, uint64_t offset, struct err *e);

const char *frame_name(int type); /* "DATA"; "type 77" has no name: "?" */
bool frame_is_bulk(int type);     /* flow controlled: BODY and DATA */
bool frame_is_json(int type);
uint32_t frame_max(int type);                   /* largest payload; 0: an unknown type */
const char *frame_role_name(enum frame_role r); /* "server", "worker" */
/* The other direction of a connection. */
static inline enum frame_role frame_peer(enum frame_role r)
{
    return r == FRAME_SERVER ? FRAME_WORKER : FRAME_SERVER;
}

static inline struct str frame_payload(const struct frame *f) { return str_of(f->p, f->n); }

/* A CREDIT payload. false: it has not 4 bytes, or grants nothing. */
enum { FRAME_CREDIT_BYTES = 4 };
void frame_pack_credit(unsigned char out[FRAME_CREDIT_BYTES], uint32_t n);
bool frame_unpack_credit(struct str payload, uint32_t *n);
#endif
