/* link_world.h - a server's and a worker's link over a pair of sockets, on one loop in one thread.
 *
 * The loop is run until a condition holds (PUMP). Each end records what its callbacks were told. */
#ifndef TERN_TESTS_LINK_WORLD_H
#define TERN_TESTS_LINK_WORLD_H

#include "support.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "net/loop.h"
#include "worker/link.h"
#include "worker/message.h"

#include <event2/event.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LINK_WAIT_S = 60 };

struct end {
    struct link *l;
    bool opened, closed, close_in_frame;
    enum link_why why;
    struct err err;
    int n_frames, n_lost, n_writable, n_heard, n_type[64];
    struct link_stream *s; /* of the last frame, while it is open */
    struct buf data;       /* payloads of BODY and DATA */
    struct buf last;       /* payload of the last other frame */
    bool last_flag, hoard; /* hoard: nothing is given back */
    struct link_buf *held;
    const char *held_p;
    size_t held_n;
    bool hold_next;
    struct msg_beat beat, heard;
    const char *to_send; /* written as far as `writable` allows */
    size_t n_to_send, n_sent;
    void (*on_frame)(struct end *x, struct link_stream *s, const struct frame *f);
    struct link_world *w;
};

struct link_world {
    struct loop *loop;
    struct end server, worker;
    int raw; /* the test's own end of a connection; -1: none */
};

static void end_opened(void *arg, struct link *l) { ((struct end *)arg)->opened = true, (void)l; }

static void end_frame(void *arg, struct link *l, struct link_stream *s, const struct frame *f)
{
    struct end *x = arg;

    x->n_frames++;
    if (f->type < 64) x->n_type[f->type]++;
    x->last_flag = f->flags & FRAME_LAST;
    x->s = f->type == FRAME_END ? NULL : s;
    if (x->hold_next && frame_is_bulk(f->type)) {
        x->held = link_hold(l), x->held_p = f->p, x->held_n = f->n;
        x->hold_next = false;
    }
    if (frame_is_bulk(f->type)) {
        buf_add(&x->data, f->p, f->n);
        if (!x->hoard) link_consumed(s, f->n);
    } else {
        buf_clear(&x->last);
        buf_add(&x->last, f->p, f->n);
    }
    if (x->on_frame) x->on_frame(x, s, f);
    if (x->close_in_frame) {
        link_close(l);
        x->l = NULL, x->s = NULL;
    }
}

static void end_pour(struct end *x, struct link_stream *s)
{
    x->n_sent += link_write(s, x->to_send + x->n_sent, x->n_to_send - x->n_sent, true);
}

static void end_writable(void *arg, struct link_stream *s)
{
    struct end *x = arg;

    x->n_writable++;
    if (x->to_send && x->n_sent < x->n_to_send) end_pour(x, s);
}

static void end_lost(void *arg, struct link_stream *s, enum link_why why)
{
    (void)why;
    ((struct end *)arg)->n_lost++;
    assert_false(link_end_stream(s, STR("{}"))); /* allowed, and does nothing */
}

static void end_closed(void *arg, struct link *l, enum link_why why, const struct err *e)
{
    struct end *x = arg;

    assert_false(x->closed);
    assert_false(link_is_open(l));
    x->closed = true, x->why = why, x->err = *e, x->s = NULL;
}

static void end_beat(void *arg, struct msg_beat *out) { *out = ((struct end *)arg)->beat; }

static void end_heard(void *arg, struct link *l, const struct msg_beat *b)
{
    (void)l;
    ((struct end *)arg)->n_heard++;
    ((struct end *)arg)->heard = *b;
}

static const char TOKEN[] = "0123456789abcdef0123456789abcdef";

static struct link_opt end_opt(struct link_world *w, struct end *x, int fd, enum frame_role role)
{
    x->w = w;
    return (struct link_opt){ .loop = w->loop,
                              .fd = fd,
                              .role = role,
                              .token = str_c(TOKEN),
                              .build = "tern test",
                              .name = role == FRAME_WORKER ? "tales" : NULL,
                              .check_peer = true,
                              .opened = end_opened,
                              .frame = end_frame,
                              .writable = end_writable,
                              .lost = end_lost,
                              .closed = end_closed,
                              .beat = end_beat,
                              .heard = end_heard,
                              .arg = x };
}

static void world_init(struct link_world *w)
{
    struct err e;

    *w = (struct link_world){ .raw = -1 };
    if (loop_open(&w->loop, &e) != OK) fail_msg("%s", e.msg);
}

static void world_release(struct link_world *w)
{
    link_close(w->server.l);
    link_close(w->worker.l);
    if (w->raw >= 0) close(w->raw);
    buf_release(&w->server.data), buf_release(&w->server.last);
    buf_release(&w->worker.data), buf_release(&w->worker.last);
    loop_close(w->loop);
}

/* Runs the loop until cond; fails after a minute. */
#define PUMP(w, cond)                                                      \
    do {                                                                   \
        uint64_t until_ = clock_ns() + (uint64_t)LINK_WAIT_S * 1000000000; \
        while (!(cond)) {                                                  \
            event_base_loop(loop_base((w)->loop), EVLOOP_NONBLOCK);        \
            if (!(cond)) usleep(200);                                      \
            if (clock_ns() > until_) fail_msg("waited in vain: " #cond);   \
        }                                                                  \
    } while (0)

/* Until nothing happens any more at once. */
static inline void settle(struct link_world *w)
{
    for (int i = 0; i < 50; i++) event_base_loop(loop_base(w->loop), EVLOOP_NONBLOCK);
}

static void socket_pair(int fd[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
}

static void end_open(struct end *x, struct link_opt opt)
{
    struct err e;

    if (link_open(&x->l, &opt, &e) != OK) fail_msg("%s", e.msg);
}

/* Both ends, after the handshake. */
static inline void world_connect(struct link_world *w)
{
    int fd[2];

    world_init(w);
    socket_pair(fd);
    end_open(&w->server, end_opt(w, &w->server, fd[0], FRAME_SERVER));
    end_open(&w->worker, end_opt(w, &w->worker, fd[1], FRAME_WORKER));
    PUMP(w, w->server.opened && w->worker.opened);
}

/* ---- a peer by hand ---- */

static inline void raw_send(int fd, int type, int flags, uint64_t stream, struct str payload)
{
    struct frame f = {
        .type = (uint8_t)type, .flags = (uint8_t)flags, .n = (uint32_t)payload.n, .stream = stream
    };
    unsigned char head[FRAME_HEAD];

    frame_pack(head, &f);
    assert_int_equal(send(fd, head, FRAME_HEAD, MSG_NOSIGNAL), FRAME_HEAD);
    if (payload.n) assert_int_equal(send(fd, payload.p, payload.n, MSG_NOSIGNAL), payload.n);
}

/* The next frame that the link sends; its payload is in out. false: the connection is closed. */
static inline bool raw_recv(struct link_world *w, struct frame *f, struct buf *out)
{
    unsigned char head[FRAME_HEAD];
    size_t have = 0, need = FRAME_HEAD;
    uint64_t until = clock_ns() + (uint64_t)LINK_WAIT_S * 1000000000;

    buf_clear(out);
    while (have < need) {
        char byte[4096];
        size_t want = need - have < sizeof byte ? need - have : sizeof byte;
        ssize_t n = recv(w->raw, byte, want, MSG_DONTWAIT);
        if (n == 0) return false;
        if (n < 0) {
            event_base_loop(loop_base(w->loop), EVLOOP_NONBLOCK);
            if (clock_ns() > until) fail_msg("the link sent nothing");
            continue;
        }
        if (have < FRAME_HEAD) memcpy(head + have, byte, (size_t)n);
        else buf_add(out, byte, (size_t)n);
        have += (size_t)n;
        if (have == FRAME_HEAD) {
            uint64_t stream;
            uint32_t k;
            memcpy(&k, head, 4), memcpy(&stream, head + 8, 8);
            *f = (struct frame){ .type = head[4], .flags = head[5], .n = k, .stream = stream };
            need += k;
        }
    }
    f->p = out->p;
    return true;
}
#endif
