/* link_out.c - output of a link: frames are collected and leave with one writev per turn of the
 * loop; a large payload goes out at once, behind what is queued, and only what the socket does not
 * take is copied. */
#include "worker/link_impl.h"

#include <errno.h>
#include <sys/socket.h>

enum { DIRECT_BYTES = 8 << 10, IOV_MAX_OUT = 16 };

/* Control frames have the whole queue, bulk a quarter of it: credit and heartbeats of a link that
 * carries large bodies never wait behind more than that. */
size_t out_room(const struct link *l)
{
    size_t bulk = l->opt.max_out_bytes / 4;
    return l->queued < bulk ? bulk - l->queued : 0;
}

void out_drop(struct link *l)
{
    while (l->out) {
        struct link_buf *b = l->out;
        l->out = b->next;
        link_buf_unref(b);
    }
    l->out_tail = NULL;
    l->queued = 0;
}

static bool append(struct link *l, const char *p, size_t n)
{
    while (n > 0) {
        struct link_buf *t = l->out_tail;
        size_t k;

        if (!t || t->end == t->cap) {
            t = bufs_get(l->bufs, LINK_BUF_BYTES);
            if (!t) return false;
            if (l->out_tail) l->out_tail->next = t;
            else l->out = t;
            l->out_tail = t;
        }
        k = t->cap - t->end < n ? t->cap - t->end : n;
        memcpy(t->data + t->end, p, k);
        t->end += k, p += k, n -= k;
        l->queued += k;
    }
    return true;
}

/* Takes k sent bytes off the queue and returns how many of them were not queued. */
static size_t advance(struct link *l, size_t k)
{
    while (k > 0 && l->out) {
        struct link_buf *b = l->out;
        size_t m = b->end - b->start < k ? b->end - b->start : k;

        b->start += m, k -= m;
        l->queued -= m;
        if (b->start < b->end) break;
        l->out = b->next;
        if (!l->out) l->out_tail = NULL;
        link_buf_unref(b);
    }
    return k;
}

static int fill_iov(const struct link *l, struct iovec *v, int max)
{
    int n = 0;

    for (struct link_buf *b = l->out; b && n < max; b = b->next)
        v[n++] = (struct iovec){ b->data + b->start, b->end - b->start };
    return n;
}

/* A peer that has died may have sent its reasons before: they are read first (link_read closes). */
static void note_broken(struct link *l)
{
    l->broken = true;
    out_drop(l);
    event_active(l->readable, EV_READ, 0);
}

/* Bytes that the socket took; 0: none now. */
static size_t send_iov(struct link *l, struct iovec *v, int n)
{
    struct msghdr m = { .msg_iov = v, .msg_iovlen = (size_t)n };
    ssize_t k;

    do k = sendmsg(l->opt.fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (k < 0 && errno == EINTR);
    l->stats.writes++;
    if (k < 0 && errno != EAGAIN && errno != EWOULDBLOCK) note_broken(l);
    if (k > 0) l->stats.bytes_out += (uint64_t)k;
    return k > 0 ? (size_t)k : 0;
}

static void wait_writable(struct link *l)
{
    if (l->waiting || l->broken || l->queued == 0) return;
    if (event_add(l->writable_ev, NULL) != 0) {
        link_fail_nomem(l, "the output of a worker connection");
        return;
    }
    l->waiting = true;
}

void out_flush(struct link *l)
{
    struct iovec v[IOV_MAX_OUT];

    while (l->phase != PHASE_DOWN && !l->broken && l->queued > 0) {
        size_t k = send_iov(l, v, fill_iov(l, v, IOV_MAX_OUT));
        if (k == 0) break;
        advance(l, k);
    }
    if (l->phase != PHASE_DOWN) wait_writable(l);
}

/* Sends queue, head and payload together. false: no memory for the rest. */
static bool send_direct(struct link *l, const char *head, struct str payload)
{
    struct iovec v[IOV_MAX_OUT];
    int n = fill_iov(l, v, IOV_MAX_OUT - 2);
    size_t sent, queued = 0;

    for (int i = 0; i < n; i++) queued += v[i].iov_len;
    if (queued == l->queued) { /* all of the queue: the frame may follow */
        v[n++] = (struct iovec){ (void *)head, FRAME_HEAD };
        v[n++] = (struct iovec){ (void *)payload.p, payload.n };
    }
    sent = advance(l, send_iov(l, v, n));
    if (l->broken) return true;
    if (sent < FRAME_HEAD)
        return append(l, head + sent, FRAME_HEAD - sent) && append(l, payload.p, payload.n);
    sent -= FRAME_HEAD;
    return append(l, payload.p + sent, payload.n - sent);
}

bool out_frame(struct link *l, const struct frame *f)
{
    unsigned char head[FRAME_HEAD];
    bool ok;

    if (l->phase == PHASE_DOWN || l->broken) return false;
    if (l->queued + FRAME_HEAD + f->n > l->opt.max_out_bytes) {
        struct err e;
        err_set(&e, E_IO, "the peer does not read: %zu bytes wait", l->queued);
        link_fail(l, LINK_OVERFLOW, NULL, &e);
        return false;
    }
    frame_pack(head, f);
    if (f->n >= DIRECT_BYTES && !l->waiting)
        ok = send_direct(l, (const char *)head, frame_payload(f));
    else ok = append(l, (const char *)head, FRAME_HEAD) && append(l, f->p, f->n);
    if (!ok) {
        link_fail_nomem(l, "the output of a worker connection");
        return false;
    }
    l->stats.frames_out++;
    if (l->queued > 0 && !l->waiting) link_run_soon(l);
    return true;
}
