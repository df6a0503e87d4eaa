/* link.h - one connection between a server and a worker, on an event loop.
 *
 * Both ends use the same code with another role. The link makes the handshake (versions, nonces,
 * proof of the token), keeps the heartbeat, answers PING, counts credit and checks the order of
 * frames; everything else goes to the owner's callbacks. docs/protocol.md has the rules.
 *
 * A stream is one request. The server opens it (link_request); on the worker it opens with the
 * event of its REQUEST frame. It closes with END: after the worker's link_end_stream, and after the
 * server's frame callback for END returns. A struct link_stream is invalid from then on. When the
 * connection closes, `lost` is called for each open stream, then `closed`, once.
 *
 * Output is queued up to opt.max_out_bytes and sent at the end of the loop's turn, so that the
 * frames of one engine step leave with one system call; a large payload is sent at once, without a
 * copy. BODY and DATA are sent by link_write only as far as the peer's credit and the queue allow;
 * the owner keeps the rest until `writable`. Control frames are always queued; a link whose control
 * frames exceed the queue is closed (LINK_OVERFLOW), since its peer does not read.
 *
 * Payloads are delivered as pointers into the read buffer, valid during the callback; link_hold
 * keeps them longer. In the steady state neither direction allocates.
 *
 * All functions belong to the loop's thread. Every callback may call any function here, also
 * link_close. A failed allocation closes the link, never more. */
#ifndef TERN_WORKER_LINK_H
#define TERN_WORKER_LINK_H

#include "worker/frame.h"

#include <sys/types.h>

struct link;
struct link_buf;
struct loop;
struct msg_beat;

struct link_stream { /* read only but for user */
    struct link *link;
    uint64_t id;
    void *user; /* the owner's */
    /* the link's */
    struct link_stream *next, *next_blocked, *prev_blocked;
    uint32_t credit_out; /* bytes the peer takes */
    uint32_t credit_in;  /* bytes the peer may still send */
    uint32_t owed;       /* consumed, not yet granted again */
    bool blocked, reply_sent, body_ended, ending;
};

/* Why a link closed. */
enum link_why {
    LINK_CLOSED,    /* the peer closed its end, or died */
    LINK_RESET,     /* a system call on the socket failed */
    LINK_SILENT,    /* no byte for opt.silent_ms though PINGs were sent */
    LINK_HANDSHAKE, /* the handshake took longer than opt.hello_ms */
    LINK_DENIED,    /* wrong token, role, version or credentials */
    LINK_REFUSED,   /* the peer sent ERROR: it refused us */
    LINK_PROTOCOL,  /* the peer sent something that is not allowed */
    LINK_OVERFLOW,  /* the peer does not read */
    LINK_NOMEM,
    N_LINK_WHY
};

struct link_opt {
    struct loop *loop;
    int fd;               /* a connected stream socket; the link owns it, also if link_open fails */
    enum frame_role role; /* ours */
    struct str token;     /* shared secret of the handshake, at least 16 bytes; copied */
    const char *build, *name; /* for HELLO; name may be NULL */
    bool check_peer;          /* a Unix socket: the peer must have our user id (SO_PEERCRED) */
    pid_t peer_pid;           /* and this process id; 0: any */
    uint32_t window;          /* bytes of a stream we take without a CREDIT; 0: 256 KiB */
    int max_streams;          /* open at once; 0: 4096 */
    size_t max_out_bytes;     /* 0: 4 MiB. link_write stops at a quarter of it */
    int hello_ms;             /* 0: 10000 */
    int ping_ms;              /* 0: 1000 */
    int silent_ms;            /* 0: 15000 */

    /* The handshake is over: the peer is who it says. hello: its build and name. */
    void (*opened)(void *arg, struct link *l);
    /* A frame of the connection (s NULL) or of a stream. PING, PONG, CREDIT, HELLO, WELCOME and
     * ERROR do not come here. BODY and DATA are given back with link_consumed. */
    void (*frame)(void *arg, struct link *l, struct link_stream *s, const struct frame *f);
    /* link_write took less than it was given, and the stream can take more now. */
    void (*writable)(void *arg, struct link_stream *s);
    /* The connection is closing with the stream open; s is invalid afterwards. NULL: not called. */
    void (*lost)(void *arg, struct link_stream *s, enum link_why why);
    /* The link is closed; link_close is still to be called. */
    void (*closed)(void *arg, struct link *l, enum link_why why, const struct err *e);
    /* Our numbers for PING and PONG (n is the link's). NULL: zeros. */
    void (*beat)(void *arg, struct msg_beat *out);
    /* The peer's numbers, from PING or PONG. NULL: not called. */
    void (*heard)(void *arg, struct link *l, const struct msg_beat *beat);
    void *arg;
};

/* Sends HELLO; the callbacks run from the loop, never from inside link_open. */
int link_open(struct link **out, const struct link_opt *opt, struct err *e);
/* Closes the socket. No callback follows: streams end without `lost`. Queued bytes are sent as far
 * as the socket takes them at once. NULL is allowed. */
void link_close(struct link *l);
bool link_is_open(const struct link *l);           /* after `opened`, before `closed` */
const char *link_peer_build(const struct link *l); /* "" before the handshake */
const char *link_peer_name(const struct link *l);
pid_t link_peer_pid(const struct link *l);    /* SO_PEERCRED; 0: not a Unix socket */
const char *link_why_name(enum link_why why); /* "closed", "silent", ...: for logs and metrics */

/* ---- sending; false or NULL: the link is closed, or closes now ---- */
/* A control frame of the connection: STOP, PLAN, ... */
bool link_send(struct link *l, enum frame_type type, struct str json);
/* Server: opens a stream with the head of a request (msg_write_request). no_body: the request has
 * no BODY frames. NULL also if the peer's max_streams are open or half of the queue is taken
 * (link_is_full), or without memory; link_is_open tells whether the link is still there. */
struct link_stream *link_request(struct link *l, struct str head, bool no_body, void *user);
/* Would a request be refused for want of streams or queue? */
bool link_is_full(const struct link *l, size_t head_bytes);
/* A control frame of a stream: REPLY or CANCEL. */
bool link_stream_send(struct link_stream *s, enum frame_type type, struct str json);
/* BODY (server) or DATA (worker): takes up to n bytes and returns how many. Fewer than n: the rest
 * can be sent after `writable`. last: these are the last bytes of the body (server only). */
size_t link_write(struct link_stream *s, const void *p, size_t n, bool last);
size_t link_room(const struct link_stream *s); /* bytes that link_write would take now */
/* Worker: sends END (msg_write_end); s is invalid afterwards. All bytes of link_write go before. */
bool link_end_stream(struct link_stream *s, struct str end);
void link_flush(struct link *l); /* sends what is queued now, not at the end of the turn */

/* ---- receiving ---- */
/* So many bytes of BODY or DATA were used: the peer may send as many again. */
void link_consumed(struct link_stream *s, size_t n);
/* Inside the frame callback: keeps the payload valid until link_buf_unref. Buffers are 128 KiB, so
 * what is kept for long should be copied. */
struct link_buf *link_hold(struct link *l);
void link_buf_unref(struct link_buf *b); /* the loop's thread; also after link_close */

/* Counters since link_open. A link is one connection: with S streams carried by C connections, S-C
 * requests found a connection that was there already. */
struct link_stats {
    uint64_t streams;               /* opened */
    int open_streams, most_streams; /* now, and at once at most */
    uint64_t frames_in, frames_out, bytes_in, bytes_out;
    uint64_t reads, writes; /* system calls */
    uint64_t ignored;       /* frames of unknown types */
    uint64_t blocked;       /* times that link_write took less than it was given */
    uint64_t buffers;       /* allocated for input and output */
    size_t queued_bytes;    /* output that waits now */
    uint64_t rtt_us;        /* of the last PING that was answered */
    uint64_t heard_ns;      /* clock_ns of the last byte from the peer */
};
void link_stats(const struct link *l, struct link_stats *out);
#endif
