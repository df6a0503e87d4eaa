/* link_in.c - input of a link: bytes to frames, and frames to the link itself or to its owner.
 *
 * Bytes of the peer are not trusted: the header is checked by frame_unpack, the order of frames
 * and the credit here, and the payload of the link's own messages by message.c. The first mistake
 * closes the link with LINK_PROTOCOL. */
#include "worker/link_impl.h"

#include "base/clock.h"
#include "worker/message.h"

#include <errno.h>
#include <sys/socket.h>

enum {
    READS_PER_TURN = 8,     /* then the other events of the loop have their turn */
    LEAST_SPACE = 16 << 10, /* of a read, else the buffer is replaced */
    CREDIT_MAX = INT32_MAX
};

void link_drop_input(struct link *l)
{
    if (l->in) link_buf_unref(l->in);
    l->in = NULL;
}

static void refuse_frame(struct link *l, const struct frame *f, const char *code, const char *why)
{
    struct err e;

    err_set(&e, E_FORMAT, "frame %s on stream %llu at byte %llu: %s", frame_name(f->type),
            (unsigned long long)f->stream, (unsigned long long)l->offset, why);
    link_fail(l, LINK_PROTOCOL, code, &e);
}

/* ---- frames of the connection ---- */

static void send_pong(struct link *l, uint64_t n)
{
    struct msg_beat m = { 0 };

    if (l->opt.beat) l->opt.beat(l->opt.arg, &m);
    m.n = n;
    buf_clear(&l->json);
    msg_write_beat(&l->json, &m);
    if (l->json.failed) link_fail_nomem(l, "a heartbeat");
    else link_send(l, FRAME_PONG, buf_str(&l->json));
}

static void receive_beat(struct link *l, const struct frame *f)
{
    struct msg_beat m;
    struct err e;
    int rc;

    arena_reset(&l->arena);
    rc = msg_read_beat(&m, &l->arena, frame_payload(f), &e);
    if (rc == E_NOMEM) {
        link_fail_nomem(l, "a heartbeat");
    } else if (rc != OK) {
        link_fail(l, LINK_PROTOCOL, "format", &e);
    } else {
        if (f->type == FRAME_PONG && m.n == l->ping_n)
            l->stats.rtt_us = (clock_ns() - l->ping_ns) / 1000;
        if (f->type == FRAME_PING) send_pong(l, m.n);
        if (l->opt.heard && l->phase == PHASE_OPEN) l->opt.heard(l->opt.arg, l, &m);
    }
}

/* The last frame of the peer: why it closes. */
static void receive_error(struct link *l, const struct frame *f)
{
    struct msg_error m;
    struct err e;

    arena_reset(&l->arena);
    if (msg_read_error(&m, &l->arena, frame_payload(f), &e) == OK)
        err_set(&e, strcmp(m.code, "token") == 0 ? E_DENIED : E_IO,
                "the peer closed the connection: %s: %s", m.code, m.message);
    link_fail(l, LINK_REFUSED, NULL, &e);
}

static void receive_for_link(struct link *l, const struct frame *f)
{
    switch (f->type) {
    case FRAME_PING:
    case FRAME_PONG: receive_beat(l, f); break;
    case FRAME_HELLO:
    case FRAME_WELCOME: refuse_frame(l, f, "state", "the handshake is over"); break;
    default: l->opt.frame(l->opt.arg, l, NULL, f);
    }
}

/* ---- frames of a stream ---- */

static void receive_credit(struct link_stream *s, const struct frame *f)
{
    struct link *l = s->link;
    uint32_t n;

    if (!frame_unpack_credit(frame_payload(f), &n)) {
        refuse_frame(l, f, "format", "it grants nothing");
    } else if (n > CREDIT_MAX || s->credit_out > CREDIT_MAX - n) {
        refuse_frame(l, f, "flow", "more credit than 2147483647 bytes");
    } else {
        s->credit_out += n;
        if (!s->blocked || out_room(l) == 0) return;
        stream_unblock(s);
        l->opt.writable(l->opt.arg, s);
    }
}

static void open_request(struct link *l, const struct frame *f)
{
    struct link_stream *s;

    if (f->stream <= l->last_id) {
        refuse_frame(l, f, "state", "the stream was opened before");
        return;
    }
    if (l->stats.open_streams >= l->opt.max_streams) {
        refuse_frame(l, f, "limit", "too many streams are open");
        return;
    }
    if (!(s = stream_open(l, f->stream, NULL))) {
        link_fail_nomem(l, "a stream");
        return;
    }
    s->body_ended = f->flags & FRAME_LAST;
    l->opt.frame(l->opt.arg, l, s, f);
}

/* NULL: the frame is allowed; else why not. */
static const char *check_order(struct link_stream *s, const struct frame *f, const char **code)
{
    *code = "state";
    if (f->type == FRAME_BODY && s->body_ended) return "the body has ended";
    if (f->type == FRAME_REPLY && s->reply_sent) return "the reply has begun";
    if (f->type == FRAME_DATA && !s->reply_sent) return "there was no REPLY";
    *code = "flow";
    if (frame_is_bulk(f->type) && f->n > s->credit_in) return "more bytes than were granted";
    return NULL;
}

/* On the server reply_sent means that the peer has sent it. */
static void receive_on_stream(struct link_stream *s, const struct frame *f)
{
    struct link *l = s->link;
    const char *code, *why = check_order(s, f, &code);

    if (why) {
        refuse_frame(l, f, code, why);
        return;
    }
    if (f->type == FRAME_CREDIT) {
        receive_credit(s, f);
        return;
    }
    if (frame_is_bulk(f->type)) s->credit_in -= f->n;
    if (f->type == FRAME_BODY && (f->flags & FRAME_LAST)) s->body_ended = true;
    if (f->type == FRAME_REPLY) s->reply_sent = true;
    l->opt.frame(l->opt.arg, l, s, f);
    if (f->type == FRAME_END && !l->closing) stream_close(s);
}

/* Frames that the server sent before it saw END arrive for a stream that is closed: that is no
 * mistake. The worker sends nothing after END. */
static void receive_for_stream(struct link *l, const struct frame *f)
{
    struct link_stream *s;

    if (f->type == FRAME_REQUEST) {
        open_request(l, f);
        return;
    }
    s = stream_find(l, f->stream);
    if (s) receive_on_stream(s, f);
    else if (f->stream > l->last_id) refuse_frame(l, f, "state", "the stream was never opened");
    else if (l->opt.role == FRAME_SERVER) refuse_frame(l, f, "state", "the stream has ended");
}

static void receive_frame(struct link *l, const struct frame *f)
{
    l->stats.frames_in++;
    if (f->type == FRAME_ERROR) receive_error(l, f);
    else if (l->phase != PHASE_OPEN) hello_receive(l, f);
    else if (f->stream == 0) receive_for_link(l, f);
    else receive_for_stream(l, f);
}

/* ---- bytes ---- */

/* Delivers complete frames of the buffer. Returns the bytes that the frame at in->start needs in
 * all; 0: the link is down. */
static size_t deliver_frames(struct link *l)
{
    struct link_buf *b = l->in;

    while (b->end - b->start >= FRAME_HEAD) {
        struct frame f;
        struct err e;
        bool known;

        if (frame_unpack(&f, &known, (unsigned char *)b->data + b->start, frame_peer(l->opt.role),
                         l->offset, &e) != OK) {
            link_fail(l, LINK_PROTOCOL, "format", &e);
            return 0;
        }
        if (b->end - b->start < FRAME_HEAD + (size_t)f.n) return FRAME_HEAD + (size_t)f.n;
        f.p = b->data + b->start + FRAME_HEAD;
        b->start += FRAME_HEAD + (size_t)f.n;
        if (known) receive_frame(l, &f);
        else l->stats.ignored++;
        if (l->phase == PHASE_DOWN) return 0;
        l->offset += FRAME_HEAD + (uint64_t)f.n;
    }
    return FRAME_HEAD;
}

/* Makes room behind the bytes of an incomplete frame of `need` bytes. false: no memory. */
static bool make_space(struct link *l, size_t need)
{
    struct link_buf *b = l->in, *fresh;
    size_t have = b ? b->end - b->start : 0, want = need > have ? need - have : 1;

    if (want < LEAST_SPACE) want = LEAST_SPACE;
    if (b && b->refs == 1 && have == 0 && b->cap == LINK_BUF_BYTES) b->start = b->end = 0;
    if (b && b->cap - b->end >= want && (have > 0 || b->cap == LINK_BUF_BYTES)) return true;
    if (b && b->refs == 1 && b->cap - have >= want && (have > 0 || b->cap == LINK_BUF_BYTES)) {
        memmove(b->data, b->data + b->start, have);
        b->start = 0, b->end = have;
        return true;
    }
    fresh = bufs_get(l->bufs, have + want);
    if (!fresh) return false;
    if (have) memcpy(fresh->data, b->data + b->start, have);
    fresh->end = have;
    link_drop_input(l);
    l->in = fresh;
    return true;
}

/* false: nothing more can be read now. */
static bool read_bytes(struct link *l)
{
    struct link_buf *b = l->in;
    ssize_t n;
    struct err e;

    do n = recv(l->opt.fd, b->data + b->end, b->cap - b->end, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    l->stats.reads++;
    if (n > 0) {
        b->end += (size_t)n;
        l->stats.bytes_in += (uint64_t)n;
        l->stats.heard_ns = clock_ns();
        l->quiet = 0;
        return true;
    }
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && !l->broken) return false;
    if (n == 0) {
        err_set(&e, E_IO, "the peer closed the connection%s",
                b->end > b->start ? " in the middle of a frame" : "");
        link_fail(l, LINK_CLOSED, NULL, &e);
    } else {
        err_set(&e, E_IO, "the connection failed: %s",
                l->broken ? "it cannot be written to" : strerror(errno));
        link_fail(l, LINK_RESET, NULL, &e);
    }
    return false;
}

void link_read(struct link *l)
{
    size_t need;

    link_enter(l);
    need = l->in ? deliver_frames(l) : FRAME_HEAD;
    for (int i = 0; i < READS_PER_TURN && l->phase != PHASE_DOWN; i++) {
        if (!make_space(l, need)) {
            link_fail_nomem(l, "the input of a worker connection");
            break;
        }
        if (!read_bytes(l)) break;
        need = deliver_frames(l);
    }
    link_leave(l);
}

struct link_buf *link_hold(struct link *l)
{
    l->in->refs++;
    return l->in;
}
