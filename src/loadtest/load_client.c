/* load_client.c - states of a client:
 *
 *   idle        bev NULL or connected, busy false
 *   connecting  bev set, connected false, busy true; on_event reports the result
 *   in flight   connected and busy; on_read feeds the parser
 *
 * A bufferevent must not be freed while the parser runs on its input, and a callback of the parser
 * may abort the request. load_client_abort therefore only marks the request while `feeding` is set;
 * on_read drops the connection when the parser has returned. */
#include "loadtest/load_client.h"

#include "base/mem.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>

struct load_client {
    struct load_target *target;
    struct load_calls calls;
    void *arg;
    struct bufferevent *bev; /* NULL: no connection */
    bool connected;
    bool busy;           /* a request is in progress */
    bool reused;         /* on a connection that carried a request before */
    bool feeding;        /* inside load_http_feed: bev must not be freed */
    bool aborted, reset; /* load_client_abort was called while feeding */
    struct buf out;      /* the request, kept for sending it again */
    struct load_http http;
};

static void on_read(struct bufferevent *bev, void *arg);
static void on_event(struct bufferevent *bev, short what, void *arg);

static void on_data(void *arg, struct str data)
{
    struct load_client *c = arg;
    c->calls.event(c->arg, data);
}

struct load_client *load_client_open(struct load_target *t, const struct load_calls *calls,
                                     void *arg)
{
    struct load_client *c = mem_new(struct load_client);

    if (!c) return NULL;
    c->target = t;
    c->calls = *calls;
    c->arg = arg;
    c->http.event = calls->event ? on_data : NULL;
    c->http.arg = c;
    return c;
}

/* reset: SO_LINGER 0 makes close() send RST and discard unread data. */
static void drop_connection(struct load_client *c, bool reset)
{
    struct linger now = { .l_onoff = 1, .l_linger = 0 };

    if (!c->bev) return;
    if (reset) setsockopt(bufferevent_getfd(c->bev), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    bufferevent_free(c->bev);
    c->bev = NULL;
    c->connected = false;
}

void load_client_close(struct load_client *c)
{
    if (!c) return;
    drop_connection(c, false);
    buf_release(&c->out);
    load_http_release(&c->http);
    mem_free(c);
}

void load_client_disconnect(struct load_client *c)
{
    if (!c->busy) drop_connection(c, false);
}

const struct load_http *load_client_reply(const struct load_client *c) { return &c->http; }

bool load_client_reused(const struct load_client *c) { return c->reused; }

/* `done` may send the next request: the caller must not touch c afterwards. */
static void finish_request(struct load_client *c, enum load_end end)
{
    if (end != LOAD_END_REPLY || !c->http.keep_alive) drop_connection(c, false);
    c->busy = false;
    c->calls.done(c->arg, end);
}

/* Without TCP_NODELAY the last segment of a large prompt would wait for an acknowledgement. */
static void write_request(struct load_client *c)
{
    int one = 1;

    setsockopt(bufferevent_getfd(c->bev), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (c->calls.sent) c->calls.sent(c->arg);
    if (bufferevent_write(c->bev, c->out.p, c->out.n) != 0) finish_request(c, LOAD_END_NOMEM);
}

/* The bufferevent owns the SSL once it exists. */
static struct bufferevent *new_tls_socket(struct load_target *t)
{
    SSL *ssl = SSL_new(t->tls);
    struct bufferevent *bev = NULL;

    if (ssl && SSL_set_tlsext_host_name(ssl, t->name) && SSL_set1_host(ssl, t->name))
        bev = bufferevent_openssl_socket_new(t->base, -1, ssl, BUFFEREVENT_SSL_CONNECTING,
                                             BEV_OPT_CLOSE_ON_FREE);
    if (!bev && ssl) SSL_free(ssl);
    return bev;
}

/* Starts to connect; false: not even that. */
static bool open_connection(struct load_client *c)
{
    struct load_target *t = c->target;

    c->bev =
        t->tls ? new_tls_socket(t) : bufferevent_socket_new(t->base, -1, BEV_OPT_CLOSE_ON_FREE);
    if (!c->bev) return false;
    bufferevent_setcb(c->bev, on_read, NULL, on_event, c);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    return bufferevent_socket_connect(c->bev, (struct sockaddr *)&t->addr, t->addr_len) == 0;
}

/* On the open connection if there is one, else on a new one. */
static void start_request(struct load_client *c)
{
    load_http_reset(&c->http);
    c->aborted = false;
    c->reused = c->bev && c->connected;
    if (c->reused) {
        write_request(c);
        return;
    }
    drop_connection(c, false);
    if (!open_connection(c)) finish_request(c, LOAD_END_CONNECT);
}

void load_client_send(struct load_client *c, const char *path, const char *headers, struct str body)
{
    struct load_target *t = c->target;

    buf_clear(&c->out);
    buf_printf(&c->out, "%s %s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: tern/%s\r\n%s%s",
               body.p ? "POST" : "GET", t->prefix, path, t->host, TERN_VERSION, t->auth, headers);
    if (body.p)
        buf_printf(&c->out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body.n);
    buf_puts(&c->out, "\r\n");
    if (body.p) buf_put_str(&c->out, body);
    c->busy = true;
    if (c->out.failed) finish_request(c, LOAD_END_NOMEM);
    else start_request(c);
}

void load_client_abort(struct load_client *c, bool reset)
{
    c->busy = false;
    if (c->feeding) c->aborted = true, c->reset = reset, c->http.stop = true;
    else drop_connection(c, reset);
}

static void on_read(struct bufferevent *bev, void *arg)
{
    struct load_client *c = arg;
    struct evbuffer *in = bufferevent_get_input(bev);
    struct evbuffer_iovec v;

    while (c->http.state < HTTP_DONE && evbuffer_peek(in, -1, NULL, &v, 1) > 0) {
        size_t n;
        c->feeding = true;
        n = load_http_feed(&c->http, v.iov_base, v.iov_len);
        c->feeding = false;
        if (c->aborted) {
            drop_connection(c, c->reset);
            return;
        }
        evbuffer_drain(in, n);
    }
    if (c->http.state < HTTP_DONE) return;
    /* Bytes behind the reply belong to no request: the connection cannot be reused. */
    if (!c->busy || evbuffer_get_length(in)) c->http.keep_alive = false;
    if (!c->busy) drop_connection(c, false);
    else finish_request(c, c->http.state == HTTP_DONE ? LOAD_END_REPLY : LOAD_END_BAD);
}

/* Connected, closed or failed. */
static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct load_client *c = arg;

    (void)bev;
    if (what & BEV_EVENT_CONNECTED) {
        c->connected = true;
        write_request(c);
    } else if (!c->busy) {
        drop_connection(c, false);
    } else if (!c->connected) {
        finish_request(c, LOAD_END_CONNECT);
    } else if (c->reused && !c->http.any) {
        /* The server closed the idle connection before it saw the request: not a failure. */
        drop_connection(c, false);
        start_request(c);
    } else {
        finish_request(c, load_http_eof(&c->http) ? LOAD_END_REPLY : LOAD_END_TRUNCATED);
    }
}
