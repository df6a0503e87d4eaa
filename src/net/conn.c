#include "net/conn.h"

#include "base/clock.h"
#include "base/mem.h"
#include "net/gone.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent_ssl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    READ_AHEAD = 64 << 10, /* of requests behind the one in hand */
    LOOK_MS = 100,         /* how often a full connection is asked whether its client left */
    LINGER_BYTES =
        128 << 20, /* a refused upload is taken so far, so that its sender gets to our answer */
    LINGER_MS = 5000,
    REFUSING = 64 /* connections over the limit that are told so at a time */
};

static void set_timer(struct http_req *c, int ms)
{
    struct timeval tv = { .tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000 };
    evtimer_add(c->timer, &tv);
}

static void later(struct http_req *c) { event_active(c->soon, EV_TIMEOUT, 0); }

static size_t pending(const struct http_req *c)
{
    return evbuffer_get_length(bufferevent_get_output(c->bev));
}

static void drop_event(struct event **ev)
{
    if (*ev) event_free(*ev);
    *ev = NULL;
}

static void unlink_conn(struct http_req *c)
{
    if (!c->h) return;
    if (c->prev) c->prev->next = c->next;
    else c->h->conns = c->next;
    if (c->next) c->next->prev = c->prev;
    c->prev = c->next = NULL;
    c->h = NULL;
}

static void drop_socket(struct http_req *c)
{
    if (!c->bev) return;
    drop_event(&c->closed); /* before its fd closes */
    bufferevent_free(c->bev);
    c->bev = NULL;
    c->h->stats.conns--;
}

/* What the body of the request in hand takes of max_bodies_bytes. */
static void count_body(struct http_req *c, size_t n)
{
    if (c->h) c->h->bodies_bytes += n - c->body_bytes;
    c->body_bytes = n;
}

static void conn_free(struct http_req *c)
{
    drop_socket(c);
    count_body(c, 0);
    unlink_conn(c);
    drop_event(&c->timer);
    drop_event(&c->soon);
    httpmsg_release(&c->msg);
    buf_release(&c->headers);
    buf_release(&c->out);
    mem_free(c);
}

void conn_cut(struct http_req *c, const char *why)
{
    if (!c->bev) return;
    c->why_gone = why;
    drop_socket(c);
    evtimer_del(c->timer);
    c->tell_gone = true;
    later(c); /* never from inside a call of the handler's */
}

void conn_detach(struct http_req *c)
{
    bool held = c->state == CONN_HANDLING, untold = c->bev || c->tell_gone;

    if (c->bev) c->why_gone = "closed";
    drop_socket(c);
    unlink_conn(c);
    c->tell_gone = false;
    drop_event(&c->timer); /* the loop may end before the request does */
    drop_event(&c->soon);
    if (!held) conn_free(c);
    else if (untold && c->gone) c->gone(c->gone_arg);
}

bool conn_is_idle(const struct http_req *c)
{
    return c->bev && c->state == CONN_READING && !httpmsg_begun(&c->msg) && pending(c) == 0 &&
           evbuffer_get_length(bufferevent_get_input(c->bev)) == 0;
}

/* ---- writing ---- */

/* To the socket if nothing waits before it, else behind what waits. */
static void put(struct http_req *c, const struct iovec *v, int n)
{
    struct evbuffer *out = bufferevent_get_output(c->bev);
    size_t sent = 0;

    if (!c->tls && evbuffer_get_length(out) == 0) {
        struct msghdr m = { .msg_iov = (struct iovec *)v, .msg_iovlen = (size_t)n };
        ssize_t k = sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k > 0) sent = (size_t)k;
    }
    for (int i = 0; i < n; i++) {
        size_t skip = sent < v[i].iov_len ? sent : v[i].iov_len;
        sent -= skip;
        if (v[i].iov_len > skip)
            bufferevent_write(c->bev, (char *)v[i].iov_base + skip, v[i].iov_len - skip);
    }
}

/* Of a reply in pieces: there is no end to what a slow reader would have us keep. */
static void put_piece(struct http_req *c, const struct iovec *v, int n)
{
    put(c, v, n);
    if (pending(c) <= c->h->opt.max_unread_bytes) return;
    c->h->stats.cut_off++;
    conn_cut(c, "slow reader");
}

static const char *reason_of(int status)
{
    static const struct {
        int status;
        const char *text;
    } all[] = {
        { 200, "OK" },
        { 202, "Accepted" },
        { 204, "No Content" },
        { 304, "Not Modified" },
        { 400, "Bad Request" },
        { 401, "Unauthorized" },
        { 403, "Forbidden" },
        { 404, "Not Found" },
        { 405, "Method Not Allowed" },
        { 408, "Request Timeout" },
        { 409, "Conflict" },
        { 411, "Length Required" },
        { 413, "Content Too Large" },
        { 414, "URI Too Long" },
        { 415, "Unsupported Media Type" },
        { 417, "Expectation Failed" },
        { 429, "Too Many Requests" },
        { 431, "Request Header Fields Too Large" },
        { 499, "Client Closed Request" },
        { 500, "Internal Server Error" },
        { 501, "Not Implemented" },
        { 503, "Service Unavailable" },
        { 504, "Gateway Timeout" },
        { 505, "HTTP Version Not Supported" },
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].status == status) return all[i].text;
    return "Status";
}

static const char *date_of(struct http *h)
{
    time_t now = time(NULL);
    struct tm tm;

    if (now != h->date_at) {
        gmtime_r(&now, &tm);
        strftime(h->date, sizeof h->date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
        h->date_at = now;
    }
    return h->date;
}

static bool has_no_body(const struct http_req *c, int status)
{
    return c->msg.method == HTTP_HEAD || status == 204 || status == 304;
}

/* Status line and headers into c->out. length < 0: as pieces come. */
static void write_head(struct http_req *c, int status, const char *type, ptrdiff_t length)
{
    struct buf *b = &c->out;

    c->status = status;
    c->close_after = !c->msg.keep_alive || c->h->draining;
    c->chunked = length < 0 && c->msg.minor == 1;
    if (length < 0 && !c->chunked) c->close_after = true;
    buf_clear(b);
    buf_printf(b, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, reason_of(status), date_of(c->h));
    if (type && status != 204 && status != 304) buf_printf(b, "Content-Type: %s\r\n", type);
    if (c->chunked) buf_puts(b, "Transfer-Encoding: chunked\r\n");
    else if (length >= 0 && status != 204 && status != 304)
        buf_printf(b, "Content-Length: %td\r\n", length);
    if (c->close_after) buf_puts(b, "Connection: close\r\n");
    else if (c->msg.minor == 0) buf_puts(b, "Connection: keep-alive\r\n");
    buf_put_str(b, buf_str(&c->headers));
    buf_puts(b, "\r\n");
}

static void linger(struct http_req *c)
{
    c->state = CONN_LINGERING;
    if (c->tls) { /* says that nothing was cut off behind it */
        SSL_shutdown(bufferevent_openssl_get_ssl(c->bev));
        ERR_clear_error();
    }
    shutdown(c->fd, SHUT_WR);
    bufferevent_enable(c->bev, EV_READ);
    set_timer(c, LINGER_MS);
}

/* All that was to be said is said and taken: close, or wait for what the client still sends. */
static void close_soon(struct http_req *c)
{
    c->state = CONN_CLOSING;
    evtimer_del(c->timer); /* write_ms watches over what is left */
    bufferevent_enable(c->bev, EV_READ);
    if (pending(c) == 0) linger(c);
}

static void wait_for_request(struct http_req *c)
{
    c->state = CONN_READING;
    set_timer(c, c->h->opt.idle_ms);
}

/* The reply is over. The connection takes the next request, or goes. */
static void request_over(struct http_req *c)
{
    if (!c->bev) {
        c->gone = NULL;
        c->state = CONN_CLOSING;
        if (!c->tell_gone) conn_free(c); /* else we may be inside its reading: it goes soon */
        return;
    }
    drop_event(&c->closed);
    c->gone = NULL;
    buf_clear(&c->headers);
    c->chunked = c->no_body = false;
    count_body(c, 0);
    httpmsg_reset(&c->msg);
    if (c->close_after) {
        close_soon(c);
        return;
    }
    c->status = 0;
    wait_for_request(c);
    c->read_on = true;
    later(c);
}

void http_set_header(struct http_req *q, const char *name, const char *value)
{
    size_t at;

    buf_printf(&q->headers, "%s: ", name);
    at = q->headers.n;
    buf_puts(&q->headers, value);
    for (; at < q->headers.n; at++)
        if (q->headers.p[at] == '\r' || q->headers.p[at] == '\n') q->headers.p[at] = ' ';
    buf_puts(&q->headers, "\r\n");
}

void http_reply(struct http_req *q, int status, const char *type, const void *body, size_t n)
{
    q->status = status;
    if (q->bev) {
        struct iovec v[2];
        write_head(q, status, type, (ptrdiff_t)n);
        v[0] = (struct iovec){ q->out.p, q->out.n };
        v[1] = (struct iovec){ (void *)body, n };
        put(q, v, n && !has_no_body(q, status) ? 2 : 1);
    }
    request_over(q);
}

void http_begin(struct http_req *q, int status, const char *type)
{
    q->status = status;
    if (!q->bev) return;
    write_head(q, status, type, -1);
    q->no_body = has_no_body(q, status);
    put_piece(q, &(struct iovec){ q->out.p, q->out.n }, 1);
}

bool http_write(struct http_req *q, const void *p, size_t n)
{
    char size[24];

    if (!q->bev) return false;
    if (n == 0 || q->no_body) return true;
    if (q->chunked) {
        struct iovec v[3] = { { size, (size_t)snprintf(size, sizeof size, "%zx\r\n", n) },
                              { (void *)p, n },
                              { "\r\n", 2 } };
        put_piece(q, v, 3);
    } else {
        put_piece(q, &(struct iovec){ (void *)p, n }, 1);
    }
    return q->bev != NULL;
}

void http_end(struct http_req *q)
{
    if (q->bev && q->chunked && !q->no_body) put_piece(q, &(struct iovec){ "0\r\n\r\n", 5 }, 1);
    request_over(q);
}

/* ---- reading ---- */

/* http itself refuses: the caller's words, then the end of the connection. */
static void refuse(struct http_req *c, int status, const char *why)
{
    struct buf body = { 0 };

    c->h->stats.bad++;
    c->msg.keep_alive = false;
    buf_clear(&c->headers);
    c->h->opt.fail(c->h->opt.arg, status, why, &body);
    http_reply(c, status, "application/json", body.p, body.n);
    buf_release(&body);
}

static void client_closed(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    conn_cut(arg, "closed");
}

static void handle(struct http_req *c)
{
    evtimer_del(c->timer);
    c->state = CONN_HANDLING;
    c->h->stats.requests++;
    if (c->n_requests++ > 0) c->h->stats.reused++;
    c->closed = event_new(c->h->base, c->fd, EV_CLOSED, client_closed, c);
    if (c->closed) event_add(c->closed, NULL);
    c->h->opt.handler(c->h->opt.arg, c);
}

static void feed(struct http_req *c, const char *p, size_t n, size_t *used)
{
    enum httpmsg_state before = c->msg.state;

    if (!httpmsg_begun(&c->msg)) {
        c->start_ns = clock_ns();
        set_timer(c, c->h->opt.header_ms);
    }
    *used = httpmsg_feed(&c->msg, p, n);
    if (!httpmsg_begun(&c->msg)) set_timer(c, c->h->opt.idle_ms); /* an empty line: nothing yet */
    if (before == HTTPMSG_HEAD && c->msg.state == HTTPMSG_BODY) {
        set_timer(c, c->h->opt.body_ms);
        if (c->msg.expects_continue)
            put(c, &(struct iovec){ "HTTP/1.1 100 Continue\r\n\r\n", 25 }, 1);
    }
}

/* Nothing more of a request is there. */
static void want_input(struct http_req *c)
{
    if (!c->ended) bufferevent_enable(c->bev, EV_READ);
    else if (pending(c) == 0) conn_cut(c, "closed");
    else close_soon(c);
}

static void read_input(struct http_req *c)
{
    while (c->bev && c->state == CONN_READING) {
        struct evbuffer *in = bufferevent_get_input(c->bev);
        struct evbuffer_iovec v;
        size_t used = 0;

        /* It asks, but does not read: on_written goes on. */
        if (pending(c) > c->h->opt.max_unread_bytes / 2) {
            bufferevent_disable(c->bev, EV_READ);
            return;
        }
        if (evbuffer_peek(in, -1, NULL, &v, 1) < 1 || v.iov_len == 0) {
            want_input(c);
            return;
        }
        feed(c, v.iov_base, v.iov_len, &used);
        if (!c->bev) return;
        evbuffer_drain(in, used);
        count_body(c, c->msg.body.n);
        if (c->msg.state == HTTPMSG_BAD) refuse(c, c->msg.status, c->msg.why);
        else if (c->h->bodies_bytes > c->h->opt.max_bodies_bytes)
            refuse(c, 503, "too many long requests at once");
        else if (c->msg.state == HTTPMSG_DONE) handle(c); /* c may be answered when this returns */
    }
}

static void do_soon(evutil_socket_t fd, short what, void *arg)
{
    struct http_req *c = arg;
    (void)fd, (void)what;

    if (c->tell_gone) {
        c->tell_gone = false;
        if (c->state != CONN_HANDLING) conn_free(c);
        else if (c->gone) c->gone(c->gone_arg);
        return;
    }
    if (!c->read_on) return;
    c->read_on = false;
    read_input(c);
}

/* A connection that is not read is not watched for errors either, or it would be ready all the
 * time. */
static void look_from_time_to_time(struct http_req *c)
{
    bufferevent_disable(c->bev, EV_READ);
    drop_event(&c->closed);
    set_timer(c, LOOK_MS);
}

static void on_read(struct bufferevent *bev, void *arg)
{
    struct http_req *c = arg;
    struct evbuffer *in = bufferevent_get_input(bev);

    if (c->state == CONN_READING) {
        read_input(c);
    } else if (c->state == CONN_HANDLING) {
        if (evbuffer_get_length(in) >= READ_AHEAD) look_from_time_to_time(c);
    } else {
        c->n_lingered += evbuffer_get_length(in);
        evbuffer_drain(in, evbuffer_get_length(in));
        if (c->n_lingered > LINGER_BYTES) conn_cut(c, "closed");
    }
}

static void on_written(struct bufferevent *bev, void *arg)
{
    struct http_req *c = arg;

    (void)bev;
    if (pending(c) > 0) return;
    if (c->state == CONN_CLOSING) linger(c);
    else if (c->state == CONN_READING) read_input(c);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct http_req *c = arg;

    (void)bev;
    if (what & BEV_EVENT_CONNECTED) return;
    if (what & BEV_EVENT_TIMEOUT) {
        if (what & BEV_EVENT_WRITING) c->h->stats.cut_off++;
        conn_cut(c, "slow reader");
    } else if (what & BEV_EVENT_ERROR) {
        conn_cut(c, "reset");
    } else if (c->state == CONN_READING) {
        c->ended = true;
        read_input(c);
    } else if (c->state != CONN_CLOSING) { /* closing: the last bytes go out, or fail to */
        conn_cut(c, "closed");
    }
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct http_req *c = arg;

    (void)fd, (void)what;
    if (!c->bev) return;
    if (c->state == CONN_HANDLING) {
        enum gone g = gone_poll(c->fd);
        if (g == GONE_NOT) set_timer(c, LOOK_MS);
        else conn_cut(c, gone_name(g));
    } else if (c->state == CONN_READING && httpmsg_begun(&c->msg)) {
        refuse(c, 408,
               c->msg.state == HTTPMSG_BODY ? "the body did not come in time"
                                            : "the headers did not come in time");
    } else if (c->state == CONN_READING && pending(c) > 0) {
        set_timer(c, c->h->opt.idle_ms); /* it still reads the reply */
    } else {
        conn_cut(c, "closed");
    }
}

/* ---- life ---- */

static struct bufferevent *wrap(struct http *h, int fd, bool tls)
{
    SSL *ssl;

    if (!tls) return bufferevent_socket_new(h->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!(ssl = SSL_new(h->tls))) return NULL;
    struct bufferevent *b = bufferevent_openssl_socket_new(
        h->base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING, BEV_OPT_CLOSE_ON_FREE);
    if (b) bufferevent_openssl_set_allow_dirty_shutdown(b, 1);
    return b;
}

void conn_open(struct http *h, int fd, const char *peer, bool tls)
{
    struct timeval write = { .tv_sec = h->opt.write_ms / 1000,
                             .tv_usec = h->opt.write_ms % 1000 * 1000 };
    struct bufferevent *bev = NULL;
    struct http_req *c;
    int one = 1;

    if (h->stats.conns < h->opt.max_conns + REFUSING) bev = wrap(h, fd, tls);
    else h->stats.refused++;
    if (!bev) {
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    c = mem_new(struct http_req);
    *c = (struct http_req){
        .h = h, .bev = bev, .fd = fd, .tls = tls, .next = h->conns, .why_gone = ""
    };
    if (h->conns) h->conns->prev = c;
    h->conns = c;
    h->stats.conns++;
    h->stats.accepted++;
    snprintf(c->peer, sizeof c->peer, "%s", peer);
    httpmsg_init(&c->msg, (struct httpmsg_limits){ h->opt.max_header_bytes, h->opt.max_header_bytes,
                                                   h->opt.max_body_bytes });
    c->timer = evtimer_new(h->base, on_timer, c);
    c->soon = event_new(h->base, -1, 0, do_soon, c);
    bufferevent_setcb(bev, on_read, on_written, on_event, c);
    bufferevent_set_timeouts(bev, NULL, &write);
    bufferevent_enable(bev, EV_READ | EV_WRITE);
    wait_for_request(c);
    if (h->stats.conns > h->opt.max_conns) {
        h->stats.refused++;
        refuse(c, 503, "the server has as many connections as it takes");
        if (c->bev && c->state == CONN_CLOSING) set_timer(c, LINGER_MS); /* TLS may never begin */
    }
}

/* ---- of a request ---- */

enum http_method http_method(const struct http_req *q) { return q->msg.method; }
struct str http_method_name(const struct http_req *q) { return httpmsg_method_name(&q->msg); }
struct str http_path(const struct http_req *q) { return httpmsg_path(&q->msg); }
struct str http_query(const struct http_req *q) { return httpmsg_query(&q->msg); }
struct str http_header(const struct http_req *q, const char *name)
{
    return httpmsg_header(&q->msg, name);
}
struct str http_body(const struct http_req *q) { return buf_str(&q->msg.body); }
const char *http_peer(const struct http_req *q) { return q->peer; }
uint64_t http_start_ns(const struct http_req *q) { return q->start_ns; }
bool http_is_gone(const struct http_req *q) { return !q->bev; }
const char *http_gone_reason(const struct http_req *q) { return q->why_gone; }
int http_status(const struct http_req *q) { return q->status; }

void http_on_gone(struct http_req *q, void (*fn)(void *arg), void *arg)
{
    q->gone = fn;
    q->gone_arg = arg;
    if (!fn || q->bev || q->tell_gone || !q->soon) return;
    q->tell_gone = true; /* it left before anybody wanted to know */
    later(q);
}
