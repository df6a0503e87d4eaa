/* conn.c - the life of a connection: accept, read requests, call the handler, close.
 *
 * Three rules keep the callbacks simple. A connection is never freed inside one of its own libevent
 * callbacks or inside a call of its handler, but by its `soon` event in the next turn of the loop.
 * Every function that can drop the connection leaves it valid with bev NULL, so callers test bev
 * and return. And the handler is never called back from inside one of its own calls: the gone
 * callback, too, runs from `soon`.
 *
 * Requests are handled one at a time, in order: while a handler owns a request, pipelined input is
 * read up to READ_AHEAD bytes and waits in the bufferevent.
 *
 * A libevent call that fails costs the connection it was made for (conn_drop_nomem). Only where
 * there is a substitute, as in watch_for_close, the connection goes on. */
#include "net/conn.h"

#include "base/clock.h"
#include "base/mem.h"
#include "net/gone.h"

#include <event2/buffer.h>
#include <event2/bufferevent_ssl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    READ_AHEAD = 64 << 10,   /* bytes of pipelined requests read while one is being handled */
    POLL_MS = 100,           /* interval of polling for a close where EV_CLOSED cannot be used */
    LINGER_MS = 5000,        /* how long a client gets to read the last reply and close */
    TLS_PROBE_BYTES = 16384, /* see make_bufferevent */
    DIRECT_BYTES = 64 << 10  /* of a large body, at a time */
};

static struct timeval timeval_of(int ms)
{
    return (struct timeval){ .tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000 };
}

/* Drops the connection if the timer cannot be set: without a limit it could stay for ever. */
static void set_timer(struct conn *c, int ms)
{
    struct timeval tv = timeval_of(ms);

    if (evtimer_add(c->timer, &tv) != 0) conn_drop_nomem(c);
}

/* event_active needs no memory. */
void conn_schedule(struct conn *c) { event_active(c->soon, EV_TIMEOUT, 0); }

/* Bytes of replies that the socket has not accepted yet. */
size_t conn_unsent(const struct conn *c)
{
    return evbuffer_get_length(bufferevent_get_output(c->bev));
}

static void free_event(struct event **ev)
{
    if (*ev) event_free(*ev);
    *ev = NULL;
}

/* Takes c out of the list of its http, which it no longer belongs to. */
static void unlink_conn(struct conn *c)
{
    if (!c->h) return;
    if (c->prev) c->prev->next = c->next;
    else c->h->conns = c->next;
    if (c->next) c->next->prev = c->prev;
    c->prev = c->next = NULL;
    c->h = NULL;
}

/* Some lingering connections are read at a time, so that the cost does not grow with their number.
 * The others wait; a client that still sends is stopped by the buffers of its kernel. */
static bool may_read_lingering(const struct conn *c)
{
    const struct conn *x = c->h->lingering.first;

    for (int i = 0; i < LINGER_READERS && x; i++, x = x->list_next)
        if (x == c) return true;
    return false;
}

/* A place among them is free. Without memory its timer ends the connection. */
static void read_next_lingering(struct http *h)
{
    struct conn *x = h->lingering.first;

    for (int i = 1; i < LINGER_READERS && x; i++) x = x->list_next;
    if (x) bufferevent_enable(x->bev, EV_READ);
}

/* Closes the socket. Unsent bytes are lost; the state and the request stay. */
static void close_socket(struct conn *c)
{
    if (!c->bev) return;
    conn_list_remove(c);
    conn_set_over(c, false);
    free_event(&c->closed); /* before its fd closes */
    conn_unpace(c);
    bufferevent_free(c->bev);
    c->bev = NULL;
    c->h->stats.conns--;
    if (c->state == CONN_LINGERING) read_next_lingering(c->h);
}

void conn_count_body(struct conn *c, size_t n)
{
    if (c->h) c->h->bodies_bytes += n - c->body_bytes;
    if (c->h && c->in_group) c->h->groups[c->group] += n - c->body_bytes;
    c->body_bytes = n;
    if (n == 0) c->in_group = false;
}

void conn_drop_sink(struct conn *c)
{
    struct http_sink *s = c->sink;

    c->sink = NULL;
    c->msg.sink = NULL;
    if (s) s->close(s);
}

/* The only place that frees a connection. Its request, if any, has ended. */
static void conn_free(struct conn *c)
{
    close_socket(c);
    conn_drop_sink(c);
    conn_count_body(c, 0);
    unlink_conn(c);
    free_event(&c->timer);
    free_event(&c->soon);
    httpmsg_release(&c->msg);
    buf_release(&c->headers);
    buf_release(&c->out);
    mem_free(c);
}

/* Idempotent: a connection that is gone already keeps its first reason. */
void conn_drop(struct conn *c, const char *reason)
{
    if (!c->bev) return;
    c->gone_reason = reason;
    close_socket(c);
    evtimer_del(c->timer);
    c->gone_pending = true;
    conn_schedule(c); /* never calls back into the handler from inside one of its own calls */
}

void conn_drop_nomem(struct conn *c)
{
    if (c->bev) c->h->stats.no_memory++;
    conn_drop(c, "out of memory");
}

/* http_close: the loop may be closed before the handlers end their requests, so no event of the
 * connection survives, and the callback runs now instead of in the next turn. */
void conn_detach(struct conn *c)
{
    bool handled = c->state == CONN_HANDLING, unreported = c->bev || c->gone_pending;

    if (c->bev) c->gone_reason = "closed";
    close_socket(c);
    unlink_conn(c);
    c->gone_pending = false;
    free_event(&c->timer); /* the loop may be closed before the request ends */
    free_event(&c->soon);
    if (!handled) conn_free(c);
    else if (unreported && c->gone) c->gone(c->gone_arg);
}

bool conn_is_idle(const struct conn *c)
{
    return c->bev && c->state == CONN_READING && !httpmsg_begun(&c->msg) && conn_unsent(c) == 0 &&
           evbuffer_get_length(bufferevent_get_input(c->bev)) == 0;
}

/* ---- the end of a reply ---- */

/* Input is needed again, or, while closing, must be drained. */
static void enable_reading(struct conn *c)
{
    if (bufferevent_enable(c->bev, EV_READ) != 0) conn_drop_nomem(c);
}

/* Everything is sent: shuts down for writing, and discards input until the client closes. Closing
 * at once would make the kernel answer unread input with a reset, which can destroy the reply
 * before the client has read it. */
static void begin_linger(struct conn *c)
{
    c->state = CONN_LINGERING;
    if (c->tls) { /* close_notify: tells the client that the reply was not truncated */
        SSL_shutdown(bufferevent_openssl_get_ssl(c->bev));
        ERR_clear_error();
    }
    shutdown(c->fd, SHUT_WR);
    conn_linger_enter(c);
    conn_pace(c);
    set_timer(c, LINGER_MS);
    if (!c->bev) return;
    if (may_read_lingering(c)) enable_reading(c);
    else bufferevent_disable(c->bev, EV_READ);
}

/* The last reply is queued. Input is read from here on only to be discarded. */
static void close_when_sent(struct conn *c)
{
    c->state = CONN_CLOSING;
    conn_idle_leave(c);
    evtimer_del(c->timer); /* the write timeout limits the time for the unsent bytes */
    enable_reading(c);
    if (c->bev && conn_unsent(c) == 0) begin_linger(c);
}

/* The idle limit runs until the first byte of a request. */
static void wait_for_request(struct conn *c)
{
    c->state = CONN_READING;
    conn_idle_enter(c);
    set_timer(c, c->over ? OVER_MS : c->h->opt.idle_ms);
}

/* The reply is complete, or was given up. Keep-alive connections continue with the next request,
 * which may be in the input already; it is read from `soon`, so that a client that pipelines many
 * small requests does not recurse through the handler. */
void conn_end_request(struct conn *c)
{
    c->gone = c->sent = NULL;
    if (!c->bev) {
        c->state = CONN_CLOSING;
        if (!c->gone_pending) conn_free(c); /* else `soon` frees it: its input may be in use now */
        return;
    }
    free_event(&c->closed);
    conn_drop_sink(c);
    buf_clear(&c->headers);
    c->begun = c->chunked = c->no_body = false;
    c->id[0] = 0;
    conn_count_body(c, 0);
    c->admitted = c->was_held = c->continued = false;
    conn_unpace(c);
    httpmsg_reset(&c->msg);
    if (c->close_after) {
        close_when_sent(c);
        return;
    }
    c->status = 0;
    wait_for_request(c);
    if (!c->bev) return;
    c->read_pending = true; /* a pipelined request may be in the input already */
    conn_schedule(c);
}

/* ---- input ---- */

/* For programs that read the body of an error reply. */
static const char *code_of(int status)
{
    switch (status) {
    case 408: return "request_timeout";
    case 413: return "request_too_large";
    case 414:
    case 431: return "headers_too_large";
    case 503: return "memory_admission";
    default: return "invalid_request";
    }
}

/* http itself answers with an error; then the connection closes. */
static void refuse_request(struct conn *c, int status, const char *code, const char *why)
{
    struct buf body = { 0 };

    c->h->stats.bad++;
    c->msg.keep_alive = false;
    buf_clear(&c->headers);
    if (status == 503 || status == 429) conn_set_header(c, "Retry-After", "1");
    c->h->opt.fail(c->h->opt.arg, &c->req, status, code, why, &body);
    if (body.failed || c->msg.status == 503) conn_reply_nomem(c); /* 503: without memory */
    else conn_reply(c, status, "application/json", body.p, body.n);
    buf_release(&body);
}

/* Above the limit of connections. A TLS handshake that never completes would keep the reply unsent. */
static void refuse_connection(struct conn *c)
{
    c->h->stats.refused++;
    refuse_request(c, 503, "too_many_connections",
                   "the server has reached its limit of connections");
    if (c->bev && c->state == CONN_CLOSING) set_timer(c, LINGER_MS);
}

static void on_client_closed(evutil_socket_t fd, short what, void *arg)
{
    struct conn *c = arg;
    struct http *h = c->h;

    (void)fd, (void)what;
    conn_drop(c, "closed");
    conn_verify(h);
}

/* Notices the client's close while the handler works: by EV_CLOSED, or by polling the socket where
 * there is no memory for the event. */
static void watch_for_close(struct conn *c)
{
    c->closed = event_new(c->h->base, c->fd, EV_CLOSED, on_client_closed, c);
    if (c->closed && event_add(c->closed, NULL) == 0) {
        evtimer_del(c->timer);
        return;
    }
    free_event(&c->closed);
    set_timer(c, POLL_MS);
}

/* The handler may reply before it returns; c may be in any state afterwards. */
static void call_handler(struct conn *c)
{
    watch_for_close(c);
    if (!c->bev) return;
    c->state = CONN_HANDLING;
    c->h->stats.requests++;
    if (c->n_requests++ > 0) c->h->stats.reused++;
    c->h->opt.handler(c->h->opt.arg, &c->req);
}

/* Gives input to the parser and moves the timer on to the phase the request is in. */
static void feed_parser(struct conn *c, const char *p, size_t n, size_t *used)
{
    enum httpmsg_state before = c->msg.state;

    if (!httpmsg_begun(&c->msg)) {
        c->start_ns = clock_ns();
        if (!c->over) set_timer(c, c->h->opt.header_ms); /* over the limit there is one for all */
    }
    *used = httpmsg_feed(&c->msg, p, n);
    if (!c->bev) return;
    if (httpmsg_begun(&c->msg)) conn_idle_leave(c);
    else if (!c->over) set_timer(c, c->h->opt.idle_ms); /* only an empty line came */
    /* A streamed body may be large: its time limit is that between two reads. */
    if ((before != HTTPMSG_HEAD && !c->msg.streamed) || c->msg.state != HTTPMSG_BODY) return;
    set_timer(c, c->h->opt.body_ms);
}

/* Nothing of the body is read for a while, and only what was read of it is counted. on_timer asks
 * again. */
static void hold_body(struct conn *c)
{
    c->h->stats.held++;
    c->admitted = false;
    c->was_held = true;
    conn_count_body(c, c->msg.body.n);
    bufferevent_disable(c->bev, EV_READ);
    conn_hold_enter(c);
    set_timer(c, HOLD_MS);
}

static bool is_held(const struct conn *c) { return c->list == &c->h->held; }

/* A streamed body of any size is asked about, and read only into the sink that admit gives it. */
static bool admit_stream(struct conn *c)
{
    bool keep = c->msg.keep_alive;

    if (c->admitted) return true;
    c->admitted = true;
    c->msg.keep_alive = false; /* for the reply of admit: the rest of the body is not read */
    if (c->h->opt.admit(c->h->opt.arg, &c->req) == HTTP_ANSWERED) return false;
    c->msg.keep_alive = keep;
    if (c->sink) conn_pace(c);
    else conn_drop_nomem(c);
    return c->sink != NULL;
}

/* A large body is counted with its full length as soon as that is known: a hundred uploads that
 * together exceed the limit are refused at their beginning. false: the request was answered, or
 * its body is held. */
static bool admit_body(struct conn *c)
{
    bool known = c->msg.length != HTTPMSG_NO_LENGTH, keep = c->msg.keep_alive;
    uint64_t n = known ? c->msg.length : c->msg.body.n;
    enum http_admission answer = HTTP_ADMIT;

    if (c->msg.streamed) return admit_stream(c);
    if (c->admitted || n <= HTTP_SMALL_BODY) return true;
    c->admitted = true;
    conn_count_body(c, (size_t)n);
    if (c->h->bodies_bytes > c->h->opt.max_bodies_bytes) return true; /* refuse_bodies does it */
    if (c->h->opt.admit) {
        c->msg.keep_alive = false; /* for the reply of admit: the rest of the body is not read */
        answer = c->h->opt.admit(c->h->opt.arg, &c->req);
        if (answer == HTTP_ANSWERED) return false;
        c->msg.keep_alive = keep;
    }
    if (answer == HTTP_HOLD) hold_body(c);
    else conn_pace(c);
    return answer == HTTP_ADMIT;
}

static void send_continue(struct conn *c)
{
    if (!c->msg.expects_continue || c->continued) return;
    c->continued = true;
    if (!conn_send(c, &(struct iovec){ "HTTP/1.1 100 Continue\r\n\r\n", 25 }, 1))
        conn_drop_nomem(c);
}

/* Refuses a body with which all, or those of its group, would be too large; true: it did. */
static bool refuse_bodies(struct conn *c)
{
    if (c->h->bodies_bytes > c->h->opt.max_bodies_bytes)
        refuse_request(c, 503, "too_many_bodies",
                       "the bodies of all current requests exceed the server's limit");
    else if (c->in_group && c->group_max && c->h->groups[c->group] > c->group_max)
        refuse_request(c, 429, "body_bytes_limit",
                       "the bodies of this key's requests exceed their limit");
    else return false;
    return true;
}

/* The headers are complete, and the body is not. */
static void read_body(struct conn *c)
{
    if (admit_body(c) && !refuse_bodies(c)) send_continue(c);
}

/* The input holds no more of a request. */
static void wait_for_input(struct conn *c)
{
    if (!c->peer_ended) enable_reading(c);
    else if (conn_unsent(c) == 0) conn_drop(c, "closed");
    else close_when_sent(c);
}

/* Decides what follows from the bytes just parsed: an error reply, the handler, or more input. */
static void use_parsed(struct conn *c)
{
    if (c->msg.body.n > c->body_bytes) conn_count_body(c, c->msg.body.n);
    if (c->msg.state == HTTPMSG_BAD) {
        refuse_request(c, c->msg.status, code_of(c->msg.status), c->msg.why);
    } else if (c->msg.state != HTTPMSG_HEAD && conn_is_refused(c)) {
        refuse_connection(c);
    } else if (c->msg.state == HTTPMSG_BODY) {
        read_body(c);
    } else if (c->msg.state == HTTPMSG_DONE && !refuse_bodies(c)) {
        call_handler(c); /* the request may have ended when this returns */
    }
}

/* Parses the input until a request is complete or nothing is left. */
static void read_input(struct conn *c)
{
    while (c->bev && c->state == CONN_READING && !is_held(c)) {
        struct evbuffer *in = bufferevent_get_input(c->bev);
        struct evbuffer_iovec v;
        size_t used = 0;

        /* The client sends requests but does not read replies: on_written resumes. */
        if (conn_unsent(c) > c->h->opt.max_unread_bytes / 2) {
            bufferevent_disable(c->bev, EV_READ);
            return;
        }
        if (evbuffer_peek(in, -1, NULL, &v, 1) < 1 || v.iov_len == 0) {
            wait_for_input(c);
            return;
        }
        feed_parser(c, v.iov_base, v.iov_len, &used);
        if (!c->bev) return;
        evbuffer_drain(in, used);
        use_parsed(c);
    }
}

/* ---- large bodies ---- */

/* libevent reads 4 KiB at a time, with two system calls for each: half a processor for 250 MB/s. What
 * follows of a large body is read here in larger pieces, as soon as libevent has nothing left, and counts
 * against the rate of large bodies. TLS has to be decrypted, and hard mode reads single bytes. */
static bool may_read_directly(const struct conn *c)
{
    return CONN_READ_BYTES == 0 && c->bev && c->paced && !c->tls && !c->peer_ended &&
           evbuffer_get_length(bufferevent_get_input(c->bev)) == 0;
}

/* Errors and the end of the input are left to libevent. */
static ssize_t receive(struct conn *c, char *to, size_t max, int flags)
{
    ssize_t n = recv(c->fd, to, max, MSG_DONTWAIT | flags);

    if (n <= 0) return n;
    bufferevent_rate_limit_group_decrement_read(c->h->pace, n);
    c->h->stats.direct_bytes += (uint64_t)n;
    return n;
}

/* A pipelined request that followed the body becomes input. A bufferevent freezes the end of it. */
static bool put_back(struct conn *c, const char *p, size_t n)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    bool added;

    evbuffer_unfreeze(in, 0);
    added = evbuffer_add(in, p, n) == 0;
    evbuffer_freeze(in, 0);
    return added;
}

/* One piece a turn, so that other connections have theirs. */
static void read_body_directly(struct conn *c)
{
    char piece[DIRECT_BYTES];
    size_t used = 0;
    ssize_t n;

    if (c->state != CONN_READING || c->msg.state != HTTPMSG_BODY || is_held(c) ||
        !may_read_directly(c) || (n = receive(c, piece, sizeof piece, 0)) <= 0)
        return;
    feed_parser(c, piece, (size_t)n, &used);
    if (!c->bev) return;
    if (used < (size_t)n && !put_back(c, piece + used, (size_t)n - used)) {
        conn_drop_nomem(c);
        return;
    }
    use_parsed(c);
    read_input(c);
}

/* MSG_TRUNC on a TCP socket: the bytes are dropped, not copied. */
static void discard_directly(struct conn *c)
{
    ssize_t n;

    if (c->state != CONN_LINGERING || !may_read_directly(c) ||
        (n = receive(c, NULL, DIRECT_BYTES, MSG_TRUNC)) <= 0)
        return;
    c->n_lingered += (size_t)n;
    if (c->n_lingered > LINGER_BYTES) conn_drop(c, "closed");
}

/* ---- callbacks of libevent ---- */

/* The gone callback has priority: no further request of a closed connection is read. */
static void run_soon(struct conn *c)
{
    if (c->gone_pending) {
        c->gone_pending = false;
        if (c->state != CONN_HANDLING) conn_free(c);
        else if (c->gone) c->gone(c->gone_arg);
        return;
    }
    if (!c->read_pending) return;
    c->read_pending = false;
    read_input(c);
}

static void on_soon(evutil_socket_t fd, short what, void *arg)
{
    struct conn *c = arg;
    struct http *h = c->h;

    (void)fd, (void)what;
    run_soon(c);
    conn_verify(h);
}

/* The client has sent READ_AHEAD bytes behind the request being handled. Reading stops, and so does
 * EV_CLOSED: with input left unread it would be ready all the time. The close is polled for. */
static void poll_for_close(struct conn *c)
{
    bufferevent_disable(c->bev, EV_READ);
    free_event(&c->closed);
    set_timer(c, POLL_MS);
}

/* After the last reply. LINGER_BYTES bounds the work for a client that sends without end. */
static void discard_input(struct conn *c, struct evbuffer *in)
{
    c->n_lingered += evbuffer_get_length(in);
    evbuffer_drain(in, evbuffer_get_length(in));
    if (c->n_lingered > LINGER_BYTES) conn_drop(c, "closed");
}

/* libevent has added bytes to the input. */
static void on_read(struct bufferevent *bev, void *arg)
{
    struct conn *c = arg;
    struct http *h = c->h;
    struct evbuffer *in = bufferevent_get_input(bev);

    if (c->state == CONN_READING) {
        read_input(c);
        read_body_directly(c);
    } else if (c->state != CONN_HANDLING) {
        discard_input(c, in);
        discard_directly(c);
    } else if (evbuffer_get_length(in) >= READ_AHEAD) {
        poll_for_close(c);
    }
    conn_verify(h);
}

/* libevent has written some of the output. Work resumes when all of it is sent. */
static void on_written(struct bufferevent *bev, void *arg)
{
    struct conn *c = arg;
    struct http *h = c->h;

    (void)bev;
    if (conn_unsent(c) > 0) return;
    if (c->state == CONN_CLOSING) begin_linger(c);
    else if (c->state == CONN_READING) read_input(c);
    else if (c->state == CONN_HANDLING && c->sent) c->sent(c->sent_arg);
    conn_verify(h);
}

/* Timeouts, errors and the end of the input. A client that only shut down its sending side still
 * gets the replies to requests it sent before. */
static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct conn *c = arg;
    struct http *h = c->h;

    (void)bev;
    if (what & BEV_EVENT_CONNECTED) return;
    if (what & BEV_EVENT_TIMEOUT) {
        if (what & BEV_EVENT_WRITING) h->stats.cut_off++;
        conn_drop(c, "slow reader");
    } else if (what & BEV_EVENT_ERROR) { /* also when libevent finds no memory to read into */
        conn_drop(c, "reset");
    } else if (c->state == CONN_READING) {
        c->peer_ended = true;
        read_input(c);
    } else if (c->state != CONN_CLOSING) { /* CLOSING: the last bytes are sent, or fail to be */
        conn_drop(c, "closed");
    }
    conn_verify(h);
}

/* The time limit of the state has passed, or the time for which a body is held. */
static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct conn *c = arg;
    struct http *h = c->h;

    (void)fd, (void)what;
    if (!c->bev) return;
    if (c->state == CONN_HANDLING) {
        enum gone g = gone_poll(c->fd);
        if (g == GONE_NOT) set_timer(c, POLL_MS);
        else conn_drop(c, gone_name(g));
    } else if (c->state == CONN_READING && c->over) {
        refuse_connection(c);
    } else if (is_held(c)) {
        conn_list_remove(c);
        set_timer(c, h->opt.body_ms);
        read_body(c);
        read_input(c);
    } else if (c->state == CONN_READING && httpmsg_begun(&c->msg)) {
        refuse_request(c, 408, code_of(408),
                       c->msg.state == HTTPMSG_BODY
                           ? "the request body was not received within the time limit"
                           : "the request headers were not received within the time limit");
    } else if (c->state == CONN_READING && conn_unsent(c) > 0) {
        set_timer(c, c->h->opt.idle_ms); /* the client still reads the last reply: not idle */
    } else {
        conn_drop(c, "closed");
    }
    conn_verify(h);
}

/* ---- opening ---- */

/* libevent 2.1 dereferences NULL if an allocation inside bufferevent_openssl_socket_new fails. Its
 * few kilobytes are allocated and freed before, so that they are at hand in this thread's heap. */
static bool has_memory_for_tls(void)
{
    void *probe = mem_alloc(TLS_PROBE_BYTES);

    mem_free(probe);
    return probe != NULL;
}

/* Owns fd if it succeeds; NULL: no memory, fd is still open. */
static struct bufferevent *make_bufferevent(struct http *h, int fd, bool tls)
{
    struct bufferevent *b;
    SSL *ssl;

    if (!tls) return bufferevent_socket_new(h->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!has_memory_for_tls() || !(ssl = SSL_new(h->tls))) {
        ERR_clear_error();
        return NULL;
    }
    b = bufferevent_openssl_socket_new(h->base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                       BEV_OPT_CLOSE_ON_FREE); /* frees ssl on failure */
    if (b) bufferevent_openssl_set_allow_dirty_shutdown(b, 1);
    return b;
}

/* httpmsg_limits.streams */
static bool is_streamed(void *arg)
{
    struct conn *c = arg;

    return c->h->opt.streams(c->h->opt.arg, &c->req);
}

/* Owns fd if it succeeds; NULL: no memory, fd is still open. */
static struct conn *make_conn(struct http *h, int fd, bool tls)
{
    struct conn *c = mem_new(struct conn);

    if (!c) return NULL;
    *c = (struct conn){ .req.ops = &conn_ops, .h = h, .fd = fd, .tls = tls, .gone_reason = "" };
    httpmsg_init(&c->msg, (struct httpmsg_limits){ .line_bytes = h->opt.max_header_bytes,
                                                   .head_bytes = h->opt.max_header_bytes,
                                                   .body_bytes = h->opt.max_body_bytes,
                                                   .streams = h->opt.streams ? is_streamed : NULL,
                                                   .arg = c,
                                                   .stream_bytes = h->opt.max_stream_bytes });
    c->timer = evtimer_new(h->base, on_timer, c);
    c->soon = event_new(h->base, -1, 0, on_soon, c);
    if (c->timer && c->soon) c->bev = make_bufferevent(h, fd, tls);
    if (c->bev) return c;
    free_event(&c->timer);
    free_event(&c->soon);
    mem_free(c);
    return NULL;
}

/* From here on the connection is counted and visible to http_check. */
static void link_conn(struct http *h, struct conn *c)
{
    c->next = h->conns;
    if (h->conns) h->conns->prev = c;
    h->conns = c;
    h->stats.conns++;
    h->stats.accepted++;
}

/* Callbacks, the write timeout and both directions. false: no memory. */
static bool start_io(struct conn *c)
{
    struct timeval write = timeval_of(c->h->opt.write_ms);

    bufferevent_setcb(c->bev, on_read, on_written, on_event, c);
    if (CONN_READ_BYTES && (bufferevent_set_max_single_read(c->bev, CONN_READ_BYTES) != 0 ||
                            bufferevent_set_max_single_write(c->bev, CONN_WRITE_BYTES) != 0))
        return false;
    return bufferevent_set_timeouts(c->bev, NULL, &write) == 0 &&
           bufferevent_enable(c->bev, EV_READ | EV_WRITE) == 0;
}

/* Without a place the socket is closed at once, so that a flood costs no memory. */
void conn_open(struct http *h, int fd, const char *peer, bool tls)
{
    bool over, has_place = conn_find_place(h, &over);
    struct conn *c = has_place ? make_conn(h, fd, tls) : NULL;
    int one = 1;

    if (!c) {
        if (!has_place) h->stats.refused++;
        else h->stats.no_memory++;
        close(fd);
        conn_verify(h);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* fails on Unix sockets: fine */
    snprintf(c->peer, sizeof c->peer, "%s", peer);
    link_conn(h, c);
    conn_set_over(c, over);
    wait_for_request(c);
    if (c->bev && !start_io(c)) conn_drop_nomem(c);
    conn_verify(h);
}
