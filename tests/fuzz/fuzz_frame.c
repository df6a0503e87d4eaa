/* Fuzz target: a hostile peer of a link. The first byte chooses the side under test and whether
 * the peer makes a correct handshake first; the rest are frames in a short form, or raw bytes. The
 * owner's callbacks answer, write, hold, end and close by what the input says.
 *
 * The link never reads past its buffers, keeps its promises about the order of callbacks, and
 * accepts no frame that frame_unpack or the rules refuse. */
#include "api/api.h"
#include "base/arena.h"
#include "base/buf.h"
#include "base/jsonr.h"
#include "net/loop.h"
#include "worker/handshake.h"
#include "worker/link.h"
#include "worker/message.h"
#include "worker/seats.h"

#include <event2/event.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char TOKEN[] = "0123456789abcdef";

struct side {
    struct link *l;
    bool opened, closed;
    int n_open; /* streams that the owner knows */
    unsigned seed;
    struct link_buf *held;
};

static unsigned choose(struct side *x) { return (x->seed = x->seed * 1103515245u + 12345u) >> 16; }

static void on_opened(void *arg, struct link *l)
{
    struct side *x = arg;

    if (x->opened || x->closed || !link_is_open(l)) abort();
    x->opened = true;
}

/* The members of a gang, among the further facts of a model; what was read can be written. */
static void read_gang(struct str more, struct arena *a)
{
    json_t *root = more.n ? jsonr_load(more, 0, NULL) : NULL;
    struct engine_info i = { 0 };
    struct buf b = { 0 };
    struct jsonw w = { .out = &b };

    seats_read(json_object_get(root, "gang"), a, &i);
    for (int k = 0; k < i.n_members; k++)
        if (!memchr(i.members[k].host, 0, sizeof i.members[k].host)) abort();
    seats_write(&w, &i, 0.5);
    buf_release(&b);
    json_decref(root);
}

/* Every JSON payload is read as what its type says. */
static void read_payload(const struct frame *f)
{
    struct arena a = { 0 };
    struct err e = { 0 };
    union {
        struct msg_stop stop;
        struct msg_room room;
        struct msg_plan plan;
        struct msg_admit admit;
        struct msg_sleep sleep;
        struct msg_asleep asleep;
        struct msg_failure failure;
        struct msg_progress progress;
        struct msg_ready ready;
        struct msg_request request;
        struct msg_reply reply;
        struct msg_cancel cancel;
        struct api_end end;
    } *m = calloc(1, sizeof *m);
    struct str p = frame_payload(f);

    switch (f->type) {
    case FRAME_STOP: msg_read_stop(&m->stop, &a, p, &e); break;
    case FRAME_ROOM: msg_read_room(&m->room, &a, p, &e); break;
    case FRAME_PLAN: msg_read_plan(&m->plan, &a, p, &e); break;
    case FRAME_ADMIT: msg_read_admit(&m->admit, &a, p, &e); break;
    case FRAME_SLEEP: msg_read_sleep(&m->sleep, &a, p, &e); break;
    case FRAME_ASLEEP: msg_read_asleep(&m->asleep, &a, p, &e); break;
    case FRAME_REFUSE:
    case FRAME_FAILED: msg_read_failure(&m->failure, &a, p, &e); break;
    case FRAME_PROGRESS: msg_read_progress(&m->progress, &a, p, &e); break;
    case FRAME_READY:
        if (msg_read_ready(&m->ready, &a, p, &e) == OK) { /* what was read can be written */
            struct buf b = { 0 };
            msg_write_ready(&b, &m->ready);
            if (msg_read_ready(&m->ready, &a, buf_str(&b), &e) != OK) abort();
            buf_release(&b);
            read_gang(m->ready.more, &a);
        }
        break;
    case FRAME_REQUEST:
        if (msg_read_request(&m->request, &a, p, &e) == OK) {
            struct buf b = { 0 };
            msg_write_request(&b, &m->request);
            if (msg_read_request(&m->request, &a, buf_str(&b), &e) != OK) abort();
            buf_release(&b);
        }
        break;
    case FRAME_REPLY: msg_read_reply(&m->reply, &a, p, &e); break;
    case FRAME_END: msg_read_end(&m->end, &a, p, &e); break;
    case FRAME_CANCEL: msg_read_cancel(&m->cancel, &a, p, &e); break;
    default: break;
    }
    free(m);
    arena_release(&a);
}

static void answer_some(struct side *x, struct link_stream *s)
{
    static char zeros[200000];
    unsigned c = choose(x) % 8;

    if (c < 3) link_stream_send(s, FRAME_REPLY, STR("{\"status\":200}"));
    if (c < 2) link_write(s, zeros, choose(x) * 4 % sizeof zeros, false);
    if (c == 1 || c == 5) {
        link_end_stream(s, STR("{\"status\":200}"));
        x->n_open--;
    }
}

static void on_frame(void *arg, struct link *l, struct link_stream *s, const struct frame *f)
{
    struct side *x = arg;
    unsigned c = choose(x) % 16;

    if (!x->opened || x->closed || l != x->l) abort();
    if ((s != NULL) != (f->stream != 0) || f->n > frame_max(f->type)) abort();
    if (s && s->id != f->stream) abort();
    if (f->type == FRAME_REQUEST) x->n_open++;
    if (f->type == FRAME_END) x->n_open--;
    if (f->n && f->p[0] + f->p[f->n - 1] == 1000) abort(); /* both can be read */
    read_payload(f);
    if (c == 0 && !x->held) x->held = link_hold(l);
    if (frame_is_bulk(f->type) && c < 12) link_consumed(s, f->n + (c == 3));
    if (s && f->type != FRAME_END && (f->type == FRAME_REQUEST || f->type == FRAME_BODY))
        answer_some(x, s);
    if (c == 15 && choose(x) % 8 == 0) {
        link_close(l);
        x->l = NULL, x->closed = true;
    }
}

static void on_writable(void *arg, struct link_stream *s)
{
    static const char zeros[70000];
    if (!((struct side *)arg)->opened) abort();
    link_write(s, zeros, sizeof zeros, choose(arg) % 2);
}

static void on_lost(void *arg, struct link_stream *s, enum link_why why)
{
    (void)s, (void)why;
    ((struct side *)arg)->n_open--;
}

static void on_closed(void *arg, struct link *l, enum link_why why, const struct err *e)
{
    struct side *x = arg;

    if (x->closed || link_is_open(l) || !*e->msg || why >= N_LINK_WHY) abort();
    if (x->n_open != 0) abort(); /* every stream has ended or was lost */
    x->closed = true;
}

static void send_frame(int fd, int type, int flags, uint64_t stream, struct str p)
{
    struct frame f = {
        .type = (uint8_t)type, .flags = (uint8_t)flags, .n = (uint32_t)p.n, .stream = stream
    };
    unsigned char head[FRAME_HEAD];
    ssize_t n;

    frame_pack(head, &f);
    n = send(fd, head, FRAME_HEAD, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (p.n && n == FRAME_HEAD) n = send(fd, p.p, p.n, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)n;
}

static void run_loop(struct loop *l)
{
    for (int i = 0; i < 4; i++) event_base_loop(loop_base(l), EVLOOP_NONBLOCK);
}

/* The peer's half of a correct handshake. */
static void shake_hands(struct loop *l, int fd, enum frame_role role)
{
    struct buf mine = { 0 }, b = { 0 };
    char theirs[8192], mac[HANDSHAKE_HEX + 1];
    struct msg_hello hello = { .role = frame_role_name(role),
                               .version_min = 1,
                               .version_max = 1,
                               .nonce = "00112233445566778899aabbccddeeff"
                                        "00112233445566778899aabbccddeeff",
                               .window = 5000,
                               .max_streams = 3 };
    struct msg_welcome welcome = { .version = 1, .mac = mac };
    bool server = role == FRAME_SERVER;
    struct str other;
    uint32_t len;
    ssize_t n;

    run_loop(l);
    n = recv(fd, theirs, sizeof theirs, MSG_DONTWAIT);
    if (n < FRAME_HEAD) abort();
    memcpy(&len, theirs, 4);
    if ((size_t)n != FRAME_HEAD + (size_t)len) abort();
    other = str_of(theirs + FRAME_HEAD, len);
    msg_write_hello(&mine, &hello);
    if (handshake_mac(mac, str_c(TOKEN), role, server ? buf_str(&mine) : other,
                      server ? other : buf_str(&mine), NULL) != OK)
        abort();
    msg_write_welcome(&b, &welcome);
    send_frame(fd, FRAME_HELLO, 0, 0, buf_str(&mine));
    send_frame(fd, FRAME_WELCOME, 0, 0, buf_str(&b));
    run_loop(l);
    buf_release(&mine);
    buf_release(&b);
}

/* Short form: type, flags and stream, length in two bytes, then the payload. */
static size_t send_short(int fd, const uint8_t *p, size_t n)
{
    size_t len = p[2] | (size_t)(p[3] & 3) << 8;

    if (len > n - 4) len = n - 4;
    send_frame(fd, p[0] % 40, (p[1] & 1) | (p[1] & 2 ? 0x80 : 0), p[1] >> 4,
               str_of((const char *)p + 4, len));
    return 4 + len;
}

static void drain_peer(int fd)
{
    char bytes[65536];
    while (recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0) continue;
}

static void feed(struct side *x, struct loop *l, int fd, const uint8_t *p, size_t n, int mode)
{
    while (n > 0 && !x->closed) {
        size_t k;
        if (mode & 4) {
            if (n < 4) break;
            k = send_short(fd, p, n);
        } else { /* raw bytes, in pieces */
            k = 1 + choose(x) % 200;
            if (k > n) k = n;
            if (send(fd, p, k, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) break;
        }
        p += k, n -= k;
        if (choose(x) % 3 == 0) run_loop(l);
        if (choose(x) % 4 == 0) drain_peer(fd);
        if (x->l && link_is_open(x->l) && choose(x) % 4 == 0 && (mode & 1) == FRAME_SERVER)
            if (link_request(x->l, STR("{}"), choose(x) % 2, NULL)) x->n_open++;
    }
    run_loop(l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct side x = { 0 };
    struct link_opt opt = { .opened = on_opened,
                            .frame = on_frame,
                            .writable = on_writable,
                            .lost = on_lost,
                            .closed = on_closed,
                            .token = str_c(TOKEN),
                            .build = "fuzz",
                            .window = 4000,
                            .max_streams = 5,
                            .max_out_bytes = 300000,
                            .arg = &x };
    struct loop *l = NULL;
    int fd[2];

    if (size < 2) return 0;
    x.seed = data[1];
    if (loop_open(&l, NULL) != OK || socketpair(AF_UNIX, SOCK_STREAM, 0, fd) != 0) abort();
    opt.loop = l, opt.fd = fd[0];
    opt.role = data[0] & 1 ? FRAME_WORKER : FRAME_SERVER;
    if (link_open(&x.l, &opt, NULL) != OK) abort();
    if (data[0] & 2) {
        shake_hands(l, fd[1], frame_peer(opt.role));
        if (!x.opened) abort();
    }
    feed(&x, l, fd[1], data + 2, size - 2, data[0]);
    close(fd[1]);
    for (int i = 0; i < 100 && !x.closed; i++) run_loop(l);
    if (!x.closed) abort(); /* the end of the peer is always noticed */
    link_close(x.l);
    if (x.held) link_buf_unref(x.held);
    loop_close(l);
    return 0;
}
