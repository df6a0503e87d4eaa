/* link_impl.h - struct link, private to the link*.c files.
 *
 * Input: bytes are read into one buffer and parsed in place. `in_start` is the first byte that was
 * not delivered, and the buffer is replaced, not overwritten, while somebody holds it (link_hold).
 * Output: a list of buffers, each full from start to end.
 *
 * Invariants: queued is the sum over the output buffers; a stream is on the blocked list exactly if
 * blocked; credit_in + owed + the bytes its owner has not given back = our window. After fail_link
 * the socket is closed (fd -1) and nothing is read or sent; `soon` then calls the owner. `depth`
 * counts callbacks under way: the link is freed when the last has returned. */
#ifndef TERN_WORKER_LINK_IMPL_H
#define TERN_WORKER_LINK_IMPL_H

#include "base/arena.h"
#include "base/buf.h"
#include "worker/handshake.h"
#include "worker/link.h"

#include <event2/event.h>
#include <sys/uio.h>

enum {
    LINK_BUF_BYTES = 128 << 10, /* of a recycled buffer */
    LINK_FREE_MAX = 4,          /* buffers kept for reuse */
    LINK_SLOTS = 256            /* of the table of streams; ids are consecutive */
};

/* Buffers outlive their link while somebody holds one. */
struct link_bufs {
    struct link_buf *free;
    int n_free, n_out; /* n_out: in use */
    bool closed;       /* the link is gone: nothing is kept for reuse */
    uint64_t made;
};

struct link_buf {
    struct link_bufs *home;
    struct link_buf *next; /* of the output, or of the free ones */
    int refs;
    size_t cap, start, end; /* bytes [start, end) are used */
    char data[];
};

enum link_phase { PHASE_HELLO, PHASE_WELCOME, PHASE_OPEN, PHASE_DOWN };

struct link {
    struct link_opt opt; /* defaults filled in */
    char token[256];
    enum link_phase phase; /* the frame that is expected next, until PHASE_OPEN */
    struct event *readable, *writable_ev, *soon;
    struct loop_timer *timer;
    bool soon_pending;
    int depth;
    bool closing; /* link_close was called: free when depth is 0 */
    /* why it went down */
    enum link_why why;
    struct err err;
    bool failing, reported; /* the end has begun; the owner knows */
    bool broken;            /* a write failed: what the peer sent before is still read */

    /* handshake */
    struct buf hello, peer_hello;
    char peer_build[257], peer_name[513];
    pid_t peer_pid;
    uint32_t peer_window;
    int peer_streams;

    /* input */
    struct link_bufs *bufs;
    struct link_buf *in; /* NULL: none yet */
    uint64_t offset;     /* of the next frame in the connection */

    /* output */
    struct link_buf *out, *out_tail;
    size_t queued;
    bool waiting; /* for the socket to become writable */

    /* streams */
    struct link_stream *slots[LINK_SLOTS];
    struct link_stream *blocked, *blocked_tail;
    uint64_t last_id;

    /* heartbeat */
    int ticks, quiet; /* since the start; since the last byte */
    uint64_t ping_n, ping_ns;
    struct arena arena; /* of a message that is read */
    struct buf json;    /* of one that is written */
    struct link_stats stats;
};

/* ---- link.c ---- */
/* Closes the socket; the owner is called from the loop. e: the reason in words. The peer is told
 * with an ERROR frame of this code; NULL: it is not. */
void link_fail(struct link *l, enum link_why why, const char *code, const struct err *e);
void link_fail_nomem(struct link *l, const char *what);
void link_run_soon(struct link *l);
void link_enter(struct link *l); /* a callback begins */
void link_leave(struct link *l); /* it has returned; may free l */

/* ---- link_stream.c ---- */
struct link_stream *stream_find(struct link *l, uint64_t id);
struct link_stream *stream_open(struct link *l, uint64_t id, void *user); /* NULL: no memory */
void stream_close(struct link_stream *s);
void stream_unblock(struct link_stream *s);
/* Calls `writable` for blocked streams while the queue has room. */
void stream_wake_blocked(struct link *l);

/* ---- link_in.c ---- */
void link_read(struct link *l);
void link_drop_input(struct link *l);

/* ---- link_hello.c ---- */
int hello_send(struct link *l, struct err *e);
void hello_receive(struct link *l, const struct frame *f);

/* ---- link_out.c ---- */
/* Queues or sends a frame. limit: bytes that may be queued then; more is LINK_OVERFLOW. */
bool out_frame(struct link *l, const struct frame *f);
void out_flush(struct link *l);
void out_drop(struct link *l);
size_t out_room(const struct link *l); /* bytes of bulk that the queue takes */

/* ---- link_buf.c ---- */
struct link_bufs *bufs_open(void);
void bufs_close(struct link_bufs *b); /* frees itself when the last buffer is back */
struct link_buf *bufs_get(struct link_bufs *b,
                          size_t cap); /* empty, one reference; NULL: no memory */
#endif
