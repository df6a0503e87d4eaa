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
    bool up;                 /* connected */
    bool busy;               /* a request is under way */
    bool kept;               /* it went out on a connection that had carried one before */
    bool inside;             /* within load_http_feed */
    bool left, reset;        /* load_client_leave was called inside */
    struct buf out;          /* the request, for sending it again */
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

    c->target = t;
    c->calls = *calls;
    c->arg = arg;
    c->http.event = calls->event ? on_data : NULL;
    c->http.arg = c;
    return c;
}

static void hang_up(struct load_client *c, bool reset)
{
    struct linger now = { .l_onoff = 1, .l_linger = 0 };

    if (!c->bev) return;
    if (reset) setsockopt(bufferevent_getfd(c->bev), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    bufferevent_free(c->bev);
    c->bev = NULL;
    c->up = false;
}

void load_client_close(struct load_client *c)
{
    if (!c) return;
    hang_up(c, false);
    buf_release(&c->out);
    load_http_release(&c->http);
    mem_free(c);
}

void load_client_forget(struct load_client *c)
{
    if (!c->busy) hang_up(c, false);
}

const struct load_http *load_client_reply(const struct load_client *c) { return &c->http; }

bool load_client_kept(const struct load_client *c) { return c->kept; }

static void finish(struct load_client *c, enum load_end end)
{
    if (end != END_REPLY || !c->http.keep) hang_up(c, false);
    c->busy = false;
    c->calls.done(c->arg, end); /* may send the next one: c is not touched after */
}

static void put(struct load_client *c)
{
    int one = 1;

    setsockopt(bufferevent_getfd(c->bev), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (c->calls.sent) c->calls.sent(c->arg);
    bufferevent_write(c->bev, c->out.p, c->out.n);
}

static bool dial(struct load_client *c)
{
    struct load_target *t = c->target;
    int opt = BEV_OPT_CLOSE_ON_FREE;

    if (t->tls) {
        SSL *ssl = SSL_new(t->tls);
        SSL_set_tlsext_host_name(ssl, t->name);
        SSL_set1_host(ssl, t->name);
        c->bev = bufferevent_openssl_socket_new(t->base, -1, ssl, BUFFEREVENT_SSL_CONNECTING, opt);
    } else {
        c->bev = bufferevent_socket_new(t->base, -1, opt);
    }
    if (!c->bev) return false;
    bufferevent_setcb(c->bev, on_read, NULL, on_event, c);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    return bufferevent_socket_connect(c->bev, (struct sockaddr *)&t->addr, t->addr_len) == 0;
}

static void start(struct load_client *c)
{
    load_http_reset(&c->http);
    c->left = false;
    c->kept = c->bev && c->up;
    if (c->kept) put(c);
    else if (hang_up(c, false), !dial(c)) finish(c, END_CONNECT);
}

void load_client_send(struct load_client *c, const char *path, const char *headers, struct str body)
{
    struct load_target *t = c->target;

    buf_clear(&c->out);
    buf_printf(&c->out, "%s %s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: tern-load/%s\r\n%s%s",
               body.p ? "POST" : "GET", t->prefix, path, t->host, TERN_VERSION, t->auth, headers);
    if (body.p)
        buf_printf(&c->out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body.n);
    buf_puts(&c->out, "\r\n");
    if (body.p) buf_put_str(&c->out, body);
    c->busy = true;
    start(c);
}

void load_client_leave(struct load_client *c, bool reset)
{
    c->busy = false;
    if (c->inside) c->left = true, c->reset = reset, c->http.stop = true;
    else hang_up(c, reset);
}

static void on_read(struct bufferevent *bev, void *arg)
{
    struct load_client *c = arg;
    struct evbuffer *in = bufferevent_get_input(bev);
    struct evbuffer_iovec v;

    while (c->http.state < HTTP_DONE && evbuffer_peek(in, -1, NULL, &v, 1) > 0) {
        size_t n;
        c->inside = true;
        n = load_http_feed(&c->http, v.iov_base, v.iov_len);
        c->inside = false;
        if (c->left) {
            hang_up(c, c->reset);
            return;
        }
        evbuffer_drain(in, n);
    }
    if (c->http.state < HTTP_DONE) return;
    if (!c->busy || evbuffer_get_length(in)) c->http.keep = false; /* bytes that nobody asked for */
    if (!c->busy) hang_up(c, false);
    else finish(c, c->http.state == HTTP_DONE ? END_REPLY : END_BAD);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct load_client *c = arg;

    (void)bev;
    if (what & BEV_EVENT_CONNECTED) {
        c->up = true;
        put(c);
        return;
    }
    if (!c->busy) {
        hang_up(c, false);
    } else if (!c->up) {
        finish(c, END_CONNECT);
    } else if (c->kept && !c->http.any) { /* closed while idle: not this request's fault */
        hang_up(c, false);
        start(c);
    } else {
        finish(c, load_http_eof(&c->http) ? END_REPLY : END_CUT);
    }
}
