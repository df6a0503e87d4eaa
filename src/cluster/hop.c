/* hop.c - one bufferevent per connection. A connection is idle (in the lane's list) or carries one
 * hop. Callbacks of libevent may run while a hop is being started, so a failure to connect is
 * reported from a later turn of the loop. */
#include "cluster/hop.h"

#include "base/mem.h"
#include "loadtest/load_client.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <strings.h>

/* One connection. */
struct wire {
    struct lane *lane;
    struct wire *next; /* of the idle ones */
    struct bufferevent *bev;
    struct hop *hop; /* NULL: idle */
    bool connected;
};

struct lane {
    struct load_target target;
    struct event_base *base;
    struct wire *idle;
    int n_idle, n_busy;
    uint64_t opened, reused;
};

struct hop {
    struct lane *lane;
    struct wire *wire; /* NULL: the connection failed, and `late` reports it */
    struct load_http reply;
    const struct hop_ops *ops;
    void *arg;
    struct buf head;     /* request line, headers and first bytes */
    struct str body;     /* borrowed */
    bool reused;         /* the wire was a kept one */
    bool in_call, ended; /* inside a callback; cancelled from inside it */
    bool head_seen;
    struct event *timer; /* head_ms */
    struct event *late;  /* reports a failure from the next turn of the loop */
    enum hop_end late_end;
    int head_ms;
};

const char *hop_end_name(enum hop_end end)
{
    static const char *const names[] = { "done", "connect", "cut", "bad", "timeout", "nomem" };
    return names[end];
}

void hop_write_target(struct buf *out, struct str path, struct str query)
{
    for (size_t i = 0; i < path.n; i++) {
        unsigned char c = (unsigned char)path.p[i];
        if (c > ' ' && c < 127 && !strchr("%?#\"<>", c)) buf_putc(out, (char)c);
        else buf_printf(out, "%%%02X", c);
    }
    if (query.n) buf_printf(out, "?%.*s", STR_ARG(query));
}

/* ---- lanes ---- */

int lane_open(struct lane **out, struct event_base *base, const char *url, const char *ca_file,
              struct err *e)
{
    struct lane *l = mem_new(struct lane);
    int rc;

    if (!l) return err_nomem(e, "the connections of a worker");
    rc = load_target_open(
        &l->target,
        &(struct load_target_opt){ .url = url, .ca_file = ca_file && *ca_file ? ca_file : NULL },
        e);
    if (rc != OK) {
        load_target_release(&l->target);
        mem_free(l);
        return rc;
    }
    event_base_free(l->target.base); /* the gateway has one loop */
    l->target.base = NULL;
    l->base = base;
    *out = l;
    return OK;
}

static void wire_free(struct wire *w)
{
    if (w->bev) bufferevent_free(w->bev);
    mem_free(w);
}

void lane_drop_idle(struct lane *l)
{
    while (l->idle) {
        struct wire *w = l->idle;
        l->idle = w->next;
        l->n_idle--;
        wire_free(w);
    }
}

void lane_close(struct lane *l)
{
    if (!l) return;
    lane_drop_idle(l);
    load_target_release(&l->target);
    mem_free(l);
}

void lane_stats(const struct lane *l, struct lane_stats *out)
{
    *out = (struct lane_stats){ l->opened, l->reused, l->n_idle, l->n_busy };
}

static void unlist_idle(struct wire *w)
{
    struct wire **p = &w->lane->idle;

    while (*p && *p != w) p = &(*p)->next;
    if (!*p) return;
    *p = w->next;
    w->next = NULL;
    w->lane->n_idle--;
}

static struct timeval ms_of(int ms)
{
    return (struct timeval){ ms / 1000, (suseconds_t)(ms % 1000) * 1000 };
}

/* ---- the end of a hop ---- */

static void free_timer(struct event **ev)
{
    if (*ev) event_free(*ev);
    *ev = NULL;
}

static void hop_free(struct hop *h)
{
    free_timer(&h->timer);
    free_timer(&h->late);
    load_http_release(&h->reply);
    buf_release(&h->head);
    mem_free(h);
}

/* Gives the connection back to the lane, or closes it. */
static void leave_wire(struct hop *h, bool keep)
{
    struct wire *w = h->wire;
    struct lane *l = h->lane;
    struct timeval idle = ms_of(HOP_IDLE_MS);

    h->wire = NULL;
    if (!w) return;
    l->n_busy--;
    w->hop = NULL;
    if (!keep || l->n_idle >= HOP_KEPT || evbuffer_get_length(bufferevent_get_output(w->bev)) ||
        evbuffer_get_length(bufferevent_get_input(w->bev)) ||
        bufferevent_set_timeouts(w->bev, &idle, NULL) != 0 ||
        bufferevent_enable(w->bev, EV_READ) != 0) {
        wire_free(w);
        return;
    }
    w->next = l->idle;
    l->idle = w;
    l->n_idle++;
}

static void finish_hop(struct hop *h, enum hop_end end)
{
    const struct hop_ops *ops = h->ops;
    void *arg = h->arg;

    leave_wire(h, end == HOP_DONE && h->reply.keep_alive);
    hop_free(h);
    ops->end(arg, end);
}

void hop_cancel(struct hop *h)
{
    leave_wire(h, false);
    h->reply.stop = true;
    if (h->in_call) h->ended = true; /* freed by the caller of the callback */
    else hop_free(h);
}

void hop_pause(struct hop *h, bool paused)
{
    if (!h->wire) return;
    if (paused) bufferevent_disable(h->wire->bev, EV_READ);
    else bufferevent_enable(h->wire->bev, EV_READ);
}

static void on_late(evutil_socket_t fd, short what, void *arg)
{
    struct hop *h = arg;

    (void)fd, (void)what;
    finish_hop(h, h->late_end);
}

static void fail_later(struct hop *h, enum hop_end end)
{
    struct timeval now = { 0 };

    h->late_end = end;
    leave_wire(h, false);
    event_add(h->late, &now); /* allocated by hop_start: adding cannot fail for want of a heap place
                               * more often than the loop itself */
}

/* ---- connections ---- */

static bool send_request(struct hop *h)
{
    struct evbuffer *out = bufferevent_get_output(h->wire->bev);

    if (evbuffer_add(out, h->head.p, h->head.n) != 0) return false;
    return !h->body.n || evbuffer_add_reference(out, h->body.p, h->body.n, NULL, NULL) == 0;
}

static void on_readable(struct bufferevent *bev, void *arg);
static void on_wire_event(struct bufferevent *bev, short what, void *arg);

static struct bufferevent *make_bev(struct lane *l)
{
    SSL *ssl;
    struct bufferevent *b;

    if (!l->target.tls) return bufferevent_socket_new(l->base, -1, BEV_OPT_CLOSE_ON_FREE);
    if (!(ssl = SSL_new(l->target.tls))) return NULL;
    SSL_set_tlsext_host_name(ssl, l->target.name);
    SSL_set1_host(ssl, l->target.name);
    b = bufferevent_openssl_socket_new(l->base, -1, ssl, BUFFEREVENT_SSL_CONNECTING,
                                       BEV_OPT_CLOSE_ON_FREE);
    if (b) bufferevent_openssl_set_allow_dirty_shutdown(b, 1);
    return b;
}

/* Keep-alive: the other side of a machine that lost its power never closes a connection. */
static void set_options(int fd)
{
    static const struct {
        int level, name, value;
    } rows[] = { { IPPROTO_TCP, TCP_NODELAY, 1 },
                 { SOL_SOCKET, SO_KEEPALIVE, 1 },
                 { IPPROTO_TCP, TCP_KEEPIDLE, 10 },
                 { IPPROTO_TCP, TCP_KEEPINTVL, 5 },
                 { IPPROTO_TCP, TCP_KEEPCNT, 3 } };

    for (size_t i = 0; fd >= 0 && i < sizeof rows / sizeof *rows; i++)
        setsockopt(fd, rows[i].level, rows[i].name, &rows[i].value, sizeof rows[i].value);
}

/* A new connection for h, on its way. false: no memory, or refused at once. */
static bool connect_wire(struct hop *h)
{
    struct lane *l = h->lane;
    struct wire *w = mem_new(struct wire);

    if (!w) return false;
    w->lane = l;
    w->hop = h;
    if (!(w->bev = make_bev(l))) {
        mem_free(w);
        return false;
    }
    h->wire = w;
    h->reused = false;
    l->n_busy++;
    l->opened++;
    bufferevent_setcb(w->bev, on_readable, NULL, on_wire_event, w);
    if (bufferevent_enable(w->bev, EV_READ | EV_WRITE) != 0 ||
        bufferevent_socket_connect(w->bev, (struct sockaddr *)&l->target.addr,
                                   l->target.addr_len) != 0)
        return false;
    if (!h->wire) return false; /* on_wire_event came from inside */
    set_options(bufferevent_getfd(w->bev));
    return true;
}

static bool take_idle(struct hop *h)
{
    struct wire *w = h->lane->idle;

    if (!w) return false;
    unlist_idle(w);
    w->hop = h;
    h->wire = w;
    h->reused = true;
    h->lane->n_busy++;
    h->lane->reused++;
    bufferevent_set_timeouts(w->bev, NULL, NULL);
    return true;
}

/* The connection failed. A kept one may have been closed by the worker while it was idle: the
 * request, of which no reply has begun, is sent once more. */
static void wire_failed(struct hop *h, enum hop_end end)
{
    if (h->reused && !h->reply.any && end == HOP_CUT) {
        leave_wire(h, false);
        if (connect_wire(h) && send_request(h)) return;
        if (h->late_end != HOP_DONE) return; /* reported already */
        fail_later(h, HOP_CONNECT);
        return;
    }
    finish_hop(h, end);
}

static void on_wire_event(struct bufferevent *bev, short what, void *arg)
{
    struct wire *w = arg;
    struct hop *h = w->hop;

    if (what & BEV_EVENT_CONNECTED) {
        w->connected = true;
        return;
    }
    (void)bev;
    if (!h) { /* idle: the worker closed it, or its time is over */
        unlist_idle(w);
        wire_free(w);
        return;
    }
    if (!w->connected && !h->reused) {
        fail_later(h, HOP_CONNECT);
    } else if (h->reply.any && load_http_eof(&h->reply)) {
        h->reply.keep_alive = false;
        finish_hop(h, HOP_DONE);
    } else {
        wire_failed(h, HOP_CUT);
    }
}

/* true: the hop is still there after a callback. */
static bool after_call(struct hop *h)
{
    h->in_call = false;
    if (!h->ended) return true;
    hop_free(h);
    return false;
}

static void on_raw(void *arg, struct str bytes)
{
    struct hop *h = arg;

    if (!h->ended) h->ops->data(h->arg, bytes);
}

static void on_header(void *arg, struct str name, struct str value)
{
    struct hop *h = arg;

    if (!h->ended && h->ops->header) h->ops->header(h->arg, name, value);
}

/* The head is reported between the headers and the first byte of the body: the parser stops after
 * each piece of the input that completes it. */
static bool report_head(struct hop *h)
{
    if (h->head_seen || h->reply.state <= HTTP_HEADERS || h->reply.state == HTTP_BAD) return true;
    h->head_seen = true;
    free_timer(&h->timer);
    h->in_call = true;
    h->ops->head(h->arg, h->reply.status, h->reply.sse);
    return after_call(h);
}

/* Bytes up to and with the first empty line: until the head is complete it is fed line by line, so
 * that no byte of the body comes before ops->head. */
static size_t head_piece(const struct hop *h, const char *p, size_t n)
{
    const char *lf;

    if (h->head_seen || !(lf = memchr(p, '\n', n))) return n;
    return (size_t)(lf - p) + 1;
}

static void on_readable(struct bufferevent *bev, void *arg)
{
    struct wire *w = arg;
    struct hop *h = w->hop;
    struct evbuffer *in = bufferevent_get_input(bev);
    struct evbuffer_iovec v;

    if (!h) { /* bytes that nobody asked for */
        unlist_idle(w);
        wire_free(w);
        return;
    }
    while (evbuffer_peek(in, -1, NULL, &v, 1) >= 1 && v.iov_len && h->reply.state < HTTP_DONE) {
        size_t n = head_piece(h, v.iov_base, v.iov_len), used;

        h->in_call = true;
        used = load_http_feed(&h->reply, v.iov_base, n);
        if (!after_call(h)) return; /* w is gone, too */
        evbuffer_drain(in, used);
        if (!report_head(h)) return;
    }
    if (h->reply.state == HTTP_BAD) finish_hop(h, HOP_BAD);
    else if (h->reply.state == HTTP_DONE) finish_hop(h, HOP_DONE);
}

static void on_head_timeout(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    finish_hop(arg, HOP_TIMEOUT);
}

/* ---- the beginning ---- */

static void format_head(struct hop *h, const struct hop_request *rq)
{
    struct buf *b = &h->head;

    buf_printf(b, "%s %s%s HTTP/1.1\r\nHost: %s\r\n", rq->method, h->lane->target.prefix, rq->path,
               h->lane->target.host);
    buf_put_str(b, rq->headers);
    if (rq->has_body) buf_printf(b, "Content-Length: %zu\r\n", rq->first.n + rq->body.n);
    buf_puts(b, "\r\n");
    buf_put_str(b, rq->first);
}

struct hop *hop_start(struct lane *l, const struct hop_request *rq, const struct hop_ops *ops,
                      void *arg)
{
    struct hop *h = mem_new(struct hop);
    struct timeval limit = ms_of(rq->head_ms);

    if (!h) return NULL;
    *h = (struct hop){ .lane = l, .ops = ops, .arg = arg, .body = rq->body };
    h->reply = (struct load_http){ .raw = on_raw, .header = on_header, .arg = h };
    h->late = evtimer_new(l->base, on_late, h);
    h->timer = rq->head_ms ? evtimer_new(l->base, on_head_timeout, h) : NULL;
    format_head(h, rq);
    if (h->head.failed || !h->late ||
        (rq->head_ms && (!h->timer || evtimer_add(h->timer, &limit)))) {
        hop_free(h);
        return NULL;
    }
    if ((rq->fresh || !take_idle(h)) && !connect_wire(h)) {
        if (h->late_end == HOP_DONE) fail_later(h, HOP_CONNECT);
        return h;
    }
    if (!send_request(h)) fail_later(h, HOP_NOMEM);
    return h;
}
