/* link.c - life of a link: opening, the heartbeat, and closing.
 *
 * A link that fails closes its socket at once but calls its owner from the loop (`soon`), so that
 * no send function calls back into the code that called it. */
#include "worker/link_impl.h"

#include "base/clock.h"
#include "base/mem.h"
#include "net/loop.h"
#include "worker/message.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- callbacks ---- */

static void free_link(struct link *l);

void link_enter(struct link *l) { l->depth++; }

void link_leave(struct link *l)
{
    if (--l->depth == 0 && l->closing) free_link(l);
}

void link_run_soon(struct link *l)
{
    if (l->soon_pending) return;
    l->soon_pending = true;
    event_active(l->soon, EV_TIMEOUT, 0);
}

static void close_streams(struct link *l, bool tell)
{
    for (int i = 0; i < LINK_SLOTS; i++)
        while (l->slots[i]) {
            struct link_stream *s = l->slots[i];
            s->ending = true;
            if (tell && l->opt.lost && !l->closing) l->opt.lost(l->opt.arg, s, l->why);
            stream_close(s);
        }
}

static void report_end(struct link *l)
{
    l->reported = true;
    close_streams(l, true);
    if (!l->closing) l->opt.closed(l->opt.arg, l, l->why, &l->err);
}

static void on_soon(evutil_socket_t fd, short what, void *arg)
{
    struct link *l = arg;

    (void)fd, (void)what;
    l->soon_pending = false;
    link_enter(l);
    if (l->phase != PHASE_DOWN) out_flush(l);
    if (l->phase == PHASE_DOWN && !l->reported) report_end(l);
    else if (l->phase == PHASE_OPEN && l->blocked) stream_wake_blocked(l);
    link_leave(l);
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    if (((struct link *)arg)->phase != PHASE_DOWN) link_read(arg);
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
    struct link *l = arg;

    (void)fd, (void)what;
    l->waiting = false;
    link_enter(l);
    out_flush(l);
    if (l->phase == PHASE_OPEN) stream_wake_blocked(l);
    link_leave(l);
}

/* ---- the end ---- */

static void close_socket(struct link *l)
{
    event_del(l->readable);
    event_del(l->writable_ev);
    loop_timer_stop(l->timer);
    close(l->opt.fd);
    l->opt.fd = -1;
    l->phase = PHASE_DOWN;
    out_drop(l);
}

/* The ERROR frame goes behind what is queued, as far as the socket takes it. */
static void tell_peer(struct link *l, const char *code, const struct err *e)
{
    struct msg_error m = { .code = code, .message = e->msg, .offset = l->offset };
    struct buf b = { 0 };
    struct frame f = { .type = FRAME_ERROR };

    msg_write_error(&b, &m);
    f.p = b.p, f.n = (uint32_t)b.n;
    if (!b.failed && l->queued + FRAME_HEAD + f.n <= l->opt.max_out_bytes) {
        out_frame(l, &f);
        out_flush(l);
    }
    buf_release(&b);
}

void link_fail(struct link *l, enum link_why why, const char *code, const struct err *e)
{
    if (l->phase == PHASE_DOWN || l->failing) return;
    l->failing = true;
    l->why = why;
    l->err = *e;
    if (code) tell_peer(l, code, e);
    close_socket(l);
    link_run_soon(l);
}

void link_fail_nomem(struct link *l, const char *what)
{
    struct err e;

    err_nomem(&e, what);
    link_fail(l, LINK_NOMEM, NULL, &e);
}

static void free_link(struct link *l)
{
    if (l->opt.fd >= 0) close(l->opt.fd);
    if (l->readable) event_free(l->readable);
    if (l->writable_ev) event_free(l->writable_ev);
    if (l->soon) event_free(l->soon);
    loop_timer_close(l->timer);
    close_streams(l, false);
    out_drop(l);
    link_drop_input(l);
    bufs_close(l->bufs);
    buf_release(&l->hello);
    buf_release(&l->peer_hello);
    buf_release(&l->json);
    arena_release(&l->arena);
    explicit_bzero(l->token, sizeof l->token);
    mem_free(l);
}

void link_close(struct link *l)
{
    if (!l || l->closing) return;
    l->closing = true;
    if (l->phase != PHASE_DOWN) {
        l->failing = true;
        out_flush(l);
        close_socket(l);
    }
    if (l->depth == 0) free_link(l);
}

/* ---- the heartbeat ---- */

static void send_ping(struct link *l)
{
    struct msg_beat m = { 0 };

    if (l->opt.beat) l->opt.beat(l->opt.arg, &m);
    m.n = ++l->ping_n;
    l->ping_ns = clock_ns();
    buf_clear(&l->json);
    msg_write_beat(&l->json, &m);
    if (l->json.failed) link_fail_nomem(l, "a heartbeat");
    else link_send(l, FRAME_PING, buf_str(&l->json));
}

/* Silence is counted in ticks and not by the clock: where this process itself was stopped or slow,
 * the peer's bytes wait in the socket, and it is read before the verdict. */
static void check_silence(struct link *l)
{
    struct err e;

    if (l->quiet++ * (int64_t)l->opt.ping_ms < l->opt.silent_ms) return;
    link_read(l);
    if (l->phase != PHASE_OPEN || l->quiet == 0) return;
    err_set(&e, E_DEADLINE, "the peer was silent for %d ms", l->opt.silent_ms);
    link_fail(l, LINK_SILENT, "silent", &e);
}

static void on_tick(void *arg)
{
    struct link *l = arg;
    struct err e;

    if (l->phase == PHASE_DOWN) return;
    loop_timer_set(l->timer, (uint64_t)l->opt.ping_ms);
    l->ticks++;
    link_enter(l);
    if (l->phase == PHASE_OPEN) {
        check_silence(l);
        if (l->phase == PHASE_OPEN) send_ping(l);
    } else if (l->ticks * (int64_t)l->opt.ping_ms >= l->opt.hello_ms) {
        err_set(&e, E_DEADLINE, "the handshake was not over after %d ms", l->opt.hello_ms);
        link_fail(l, LINK_HANDSHAKE, "state", &e);
    }
    link_leave(l);
}

/* ---- opening ---- */

static void fill_defaults(struct link_opt *o)
{
    if (o->window == 0) o->window = 256 << 10;
    if (o->window > INT32_MAX) o->window = INT32_MAX;
    if (o->max_streams <= 0) o->max_streams = 4096;
    if (o->max_out_bytes == 0) o->max_out_bytes = 4 << 20;
    if (o->hello_ms <= 0) o->hello_ms = 10000;
    if (o->ping_ms <= 0) o->ping_ms = 1000;
    if (o->silent_ms <= 0) o->silent_ms = 15000;
}

/* On a Unix socket the kernel tells who connected (or made the pair of sockets). */
static int check_peer(struct link *l, struct err *e)
{
    struct ucred who = { 0 };
    socklen_t n = sizeof who;
    bool local = getsockopt(l->opt.fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 && who.pid > 0;

    if (local) l->peer_pid = who.pid;
    if (!l->opt.check_peer) return OK;
    if (!local) return err_set(e, E_DENIED, "handshake: the kernel does not say who the peer is");
    if (who.uid != geteuid())
        return err_set(e, E_DENIED, "handshake: the peer has user id %u, not %u", who.uid,
                       geteuid());
    if (l->opt.peer_pid && who.pid != l->opt.peer_pid)
        return err_set(e, E_DENIED, "handshake: the peer is process %d, not %d", (int)who.pid,
                       (int)l->opt.peer_pid);
    return OK;
}

static int make_events(struct link *l, struct err *e)
{
    struct event_base *base = loop_base(l->opt.loop);
    int fd = l->opt.fd;

    l->bufs = bufs_open();
    l->readable = event_new(base, fd, EV_READ | EV_PERSIST, on_readable, l);
    l->writable_ev = event_new(base, fd, EV_WRITE, on_writable, l);
    l->soon = event_new(base, -1, 0, on_soon, l);
    l->timer = loop_timer(l->opt.loop, on_tick, l);
    if (!l->bufs || !l->readable || !l->writable_ev || !l->soon || !l->timer ||
        event_add(l->readable, NULL) != 0 || !loop_timer_set(l->timer, (uint64_t)l->opt.ping_ms))
        return err_nomem(e, "a worker connection");
    return OK;
}

static int set_token(struct link *l, struct str token, struct err *e)
{
    if (token.n < HANDSHAKE_TOKEN_MIN || token.n > sizeof l->token)
        return err_set(e, E_INVALID, "handshake: a token has %d to %zu bytes, this one %zu",
                       HANDSHAKE_TOKEN_MIN, sizeof l->token, token.n);
    memcpy(l->token, token.p, token.n);
    l->opt.token = str_of(l->token, token.n);
    return OK;
}

int link_open(struct link **out, const struct link_opt *opt, struct err *e)
{
    struct link *l = mem_new(struct link);
    int rc;

    if (!l) {
        close(opt->fd);
        return err_nomem(e, "a worker connection");
    }
    l->opt = *opt;
    fill_defaults(&l->opt);
    if (fcntl(opt->fd, F_SETFL, fcntl(opt->fd, F_GETFL) | O_NONBLOCK) != 0) {
        rc = err_set(e, E_IO, "worker connection: %s", strerror(errno));
        goto out;
    }
    if ((rc = set_token(l, opt->token, e)) != OK) goto out;
    if ((rc = check_peer(l, e)) != OK) goto out;
    if ((rc = make_events(l, e)) != OK) goto out;
    if ((rc = hello_send(l, e)) != OK) goto out;
    l->opt.build = l->opt.name = NULL; /* borrowed until here */
    *out = l;
    l = NULL;
out:
    if (l) free_link(l);
    return rc;
}

bool link_is_open(const struct link *l) { return l->phase == PHASE_OPEN; }
const char *link_peer_build(const struct link *l) { return l->peer_build; }
const char *link_peer_name(const struct link *l) { return l->peer_name; }
pid_t link_peer_pid(const struct link *l) { return l->peer_pid; }

const char *link_why_name(enum link_why why)
{
    static const char *const names[N_LINK_WHY] = { "closed",    "reset",    "silent",
                                                   "handshake", "denied",   "refused",
                                                   "protocol",  "overflow", "no_memory" };
    return why < N_LINK_WHY ? names[why] : "?";
}

void link_flush(struct link *l)
{
    if (l->phase != PHASE_DOWN && !l->waiting) out_flush(l);
}

void link_stats(const struct link *l, struct link_stats *out)
{
    *out = l->stats;
    out->queued_bytes = l->queued;
    out->buffers = l->bufs->made;
}
