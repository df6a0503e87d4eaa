/* http_world.h - an HTTP server on an event loop in a thread, and a raw client, for the tests of
 * net/.
 *
 * The handler answers by path:
 *   /echo        replies at once with method, path, query and body
 *   /hold        keeps the request; the test ends it through run_on_loop
 *   /pieces      replies at once with three events
 *   /flood       writes until the client is found gone (or 256 MiB)
 *   /big         8 MiB in one reply */
#ifndef TERN_TESTS_HTTP_WORLD_H
#define TERN_TESTS_HTTP_WORLD_H

#include "support.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "net/http.h"
#include "net/loop.h"
#include "net/sse.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { MAX_HELD = 16, BIG_BYTES = 8 << 20, WAIT_MS = 60000 };

struct held {
    struct http_req *q;
    int n_gone; /* calls of the request's gone callback */
    bool end_when_gone;
    char reason[32];
};

struct world {
    struct loop *loop;
    struct http *http;
    pthread_t thread;
    pthread_mutex_t lock; /* protects the fields below */
    pthread_cond_t changed;
    void (*job)(struct world *w, void *arg);
    void *job_arg;
    struct held held[MAX_HELD];
    int n_held;
    int n_flood_gone;
    bool in_write, called_in_write, flood_over;
    char flood_reason[32], peer[80];
};

/* ---- server ---- */

static void world_lock(struct world *w) { pthread_mutex_lock(&w->lock); }

static void world_unlock(struct world *w)
{
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* Polls cond with the lock held until it is true; fails after WAIT_MS. */
#define WAIT_FOR(w, cond)                                           \
    do {                                                            \
        uint64_t until_ = clock_ns() + (uint64_t)WAIT_MS * 1000000; \
        bool holds_;                                                \
        for (;;) {                                                  \
            world_lock(w);                                          \
            holds_ = (cond);                                        \
            world_unlock(w);                                        \
            if (holds_ || clock_ns() > until_) break;               \
            usleep(2000);                                           \
        }                                                           \
        assert_true(holds_);                                        \
    } while (0)

/* Fails if an invariant of the connections is violated. Runs on the loop's thread, between two
 * events. */
static void check_conns(struct world *w)
{
    const char *violated = http_check(w->http);

    if (violated) fprintf(stderr, "violated invariant of connections: %s\n", violated);
    assert(!violated);
}

static void world_woken(void *arg)
{
    struct world *w = arg;
    void (*job)(struct world * w, void *arg);

    world_lock(w);
    job = w->job;
    world_unlock(w);
    if (!job) return;
    check_conns(w);
    job(w, w->job_arg);
    check_conns(w);
    world_lock(w);
    w->job = NULL;
    world_unlock(w);
}

/* Runs fn on the loop's thread and waits until it has returned. */
static inline void run_on_loop(struct world *w, void (*fn)(struct world *w, void *arg), void *arg)
{
    world_lock(w);
    w->job = fn;
    w->job_arg = arg;
    world_unlock(w);
    loop_wake(w->loop);
    WAIT_FOR(w, w->job == NULL);
}

static struct world *the_world;

static void held_gone(void *arg)
{
    struct held *h = arg;

    world_lock(the_world);
    h->n_gone++;
    snprintf(h->reason, sizeof h->reason, "%s", http_gone_reason(h->q));
    if (the_world->in_write) the_world->called_in_write = true;
    world_unlock(the_world);
    if (h->end_when_gone) {
        http_reply(h->q, 499, "text/plain", "gone", 4);
        world_lock(the_world);
        h->q = NULL;
        world_unlock(the_world);
    }
}

static void flood_gone(void *arg)
{
    struct world *w = arg;

    world_lock(w);
    w->n_flood_gone++;
    if (w->in_write) w->called_in_write = true;
    world_unlock(w);
}

static void handle_flood(struct world *w, struct http_req *q)
{
    static char piece[64 << 10];
    bool there = true;

    http_on_gone(q, flood_gone, w);
    sse_begin(q);
    for (int i = 0; i < 4096 && there; i++) {
        world_lock(w);
        w->in_write = true;
        world_unlock(w);
        there = http_write(q, piece, sizeof piece);
        world_lock(w);
        w->in_write = false;
        world_unlock(w);
    }
    world_lock(w);
    snprintf(w->flood_reason, sizeof w->flood_reason, "%s", http_gone_reason(q));
    w->flood_over = true;
    world_unlock(w);
    http_end(q);
}

static void handle_echo(struct http_req *q)
{
    struct buf b = { 0 };
    struct str s[4] = { http_method_name(q), http_path(q), http_query(q), http_body(q) };

    for (int i = 0; i < 4; i++) {
        if (i) buf_putc(&b, '|');
        buf_put_str(&b, s[i]);
    }
    http_set_header(q, "X-Peer", http_peer(q));
    http_set_header(q, "X-Split", "a\r\nX-Injected: b");
    http_reply(q, 200, "text/plain", b.p, b.n);
    buf_release(&b);
}

static void handle_pieces(struct http_req *q)
{
    sse_begin(q);
    sse_data(q, STR("{\"a\":1}"));
    http_write(q, "", 0);
    sse_event(q, "note", STR("{\"b\":2}"));
    sse_ping(q);
    http_end(q);
}

static void world_handle(void *arg, struct http_req *q)
{
    struct world *w = arg;
    struct str path = http_path(q);

    assert(http_status(q) == 0);
    assert(!http_is_gone(q));
    if (str_is(path, "/hold")) {
        world_lock(w);
        struct held *h = &w->held[w->n_held];
        *h = (struct held){ .q = q, .end_when_gone = str_is(http_query(q), "end") };
        http_on_gone(q, held_gone, h);
        w->n_held++;
        world_unlock(w);
    } else if (str_is(path, "/flood")) {
        handle_flood(w, q);
    } else if (str_is(path, "/pieces")) {
        handle_pieces(q);
    } else if (str_is(path, "/big")) {
        char *p = mem_alloc(BIG_BYTES);
        memset(p, 'b', BIG_BYTES);
        http_reply(q, 200, "text/plain", p, BIG_BYTES);
        mem_free(p);
    } else {
        handle_echo(q);
    }
}

static void world_fail(void *arg, struct http_req *q, int status, const char *code, const char *msg,
                       struct buf *out)
{
    (void)arg, (void)q;
    buf_printf(out, "{\"status\":%d,\"code\":\"%s\",\"message\":\"%s\"}", status, code, msg);
}

static void *world_thread(void *arg)
{
    loop_run(((struct world *)arg)->loop);
    return NULL;
}

/* Without host and path the server listens on a free TCP port of the loopback interface. */
static struct world *world_open(struct http_opt o)
{
    struct world *w = mem_new(struct world);
    struct err e = { 0 };

    signal(SIGPIPE, SIG_IGN);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    if (!o.host && !o.socket_path) o.host = "127.0.0.1";
    o.handler = world_handle;
    o.fail = world_fail;
    o.arg = w;
    the_world = w;
    if (loop_open(&w->loop, &e) != OK) fail_msg("%s", e.msg);
    loop_on_wake(w->loop, world_woken, w);
    if (http_open(&w->http, w->loop, &o, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(pthread_create(&w->thread, NULL, world_thread, w), 0);
    return w;
}

static inline void world_stop(struct world *w)
{
    loop_stop(w->loop);
    pthread_join(w->thread, NULL);
}

static void world_close(struct world *w)
{
    world_stop(w);
    check_conns(w);
    http_close(w->http);
    for (int i = 0; i < w->n_held; i++)
        if (w->held[i].q) http_end(w->held[i].q);
    loop_close(w->loop);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    mem_free(w);
}

static void get_stats(struct world *w, void *out) { http_stats(w->http, out); }

static inline struct http_stats read_stats(struct world *w)
{
    struct http_stats s;

    run_on_loop(w, get_stats, &s);
    return s;
}

/* ---- client ---- */

struct peer {
    int fd;
    SSL *ssl;
};

struct reply {
    int status;
    char head[4096];
    struct buf body;
};

static void set_timeouts(int fd)
{
    struct timeval tv = { .tv_sec = WAIT_MS / 1000 };

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
}

static inline struct peer connect_peer_with(struct world *w, int rcvbuf)
{
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons((uint16_t)http_port(w->http)) };
    struct peer p = { .fd = socket(AF_INET, SOCK_STREAM, 0) };

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (rcvbuf) setsockopt(p.fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf);
    assert_int_equal(connect(p.fd, (struct sockaddr *)&a, sizeof a), 0);
    set_timeouts(p.fd);
    return p;
}

static inline struct peer connect_peer(struct world *w) { return connect_peer_with(w, 0); }

static inline void close_peer(struct peer *p)
{
    if (p->ssl) SSL_free(p->ssl);
    if (p->fd >= 0) close(p->fd);
    *p = (struct peer){ .fd = -1 };
}

/* Closes the connection with a reset (RST). */
static inline void reset_peer(struct peer *p)
{
    struct linger l = { .l_onoff = 1 };

    setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    close_peer(p);
}

static ssize_t read_some(struct peer *p, void *out, size_t n)
{
    if (p->ssl) return SSL_read(p->ssl, out, (int)n);
    return recv(p->fd, out, n, 0);
}

/* false: the server has closed the connection. */
static inline bool send_bytes(struct peer *p, const void *from, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t k = p->ssl ? SSL_write(p->ssl, (const char *)from + at, (int)(n - at))
                           : send(p->fd, (const char *)from + at, n - at, MSG_NOSIGNAL);
        if (k <= 0) return false;
        at += (size_t)k;
    }
    return true;
}

static inline void send_text(struct peer *p, const char *text)
{
    assert_true(send_bytes(p, text, strlen(text)));
}

/* Waits for the end of the connection; true: the server has closed it. */
static inline bool is_closed_by_server(struct peer *p)
{
    char c;
    ssize_t n = read_some(p, &c, 1);

    return n == 0 || (n < 0 && errno == ECONNRESET);
}

static void read_line(struct peer *p, char *out, size_t cap)
{
    size_t n = 0;

    while (n < 2 || out[n - 2] != '\r' || out[n - 1] != '\n') {
        assert_true(n + 1 < cap);
        assert_int_equal(read_some(p, out + n, 1), 1);
        n++;
    }
    out[n - 2] = 0;
}

static void read_bytes(struct peer *p, struct buf *out, size_t n)
{
    while (n) {
        char piece[16384];
        ssize_t k = read_some(p, piece, n < sizeof piece ? n : sizeof piece);
        assert_true(k > 0);
        buf_add(out, piece, (size_t)k);
        n -= (size_t)k;
    }
}

/* The value of a header of the reply, or NULL. */
static inline const char *header_of(const struct reply *r, const char *name)
{
    static char value[512];
    size_t n = strlen(name);

    for (const char *p = r->head; p; p = strchr(p, '\n'), p = p ? p + 1 : NULL)
        if (strncasecmp(p, name, n) == 0 && p[n] == ':') {
            snprintf(value, sizeof value, "%.*s", (int)strcspn(p + n + 2, "\n"), p + n + 2);
            return value;
        }
    return NULL;
}

static void read_chunks(struct peer *p, struct buf *out)
{
    for (;;) {
        char line[64];
        size_t n;
        read_line(p, line, sizeof line);
        n = strtoul(line, NULL, 16);
        read_bytes(p, out, n);
        read_line(p, line, sizeof line);
        assert_string_equal(line, "");
        if (n == 0) return;
    }
}

/* Reads a reply; the caller releases its body. to_head: the request was HEAD, so there is no
 * body. */
static struct reply read_reply_to(struct peer *p, bool to_head)
{
    struct reply r = { 0 };
    size_t at = 0;
    const char *length;
    char c;

    read_line(p, r.head, sizeof r.head);
    assert_int_equal(sscanf(r.head, "HTTP/1.1 %d", &r.status), 1);
    do {
        at += strlen(r.head + at);
        r.head[at++] = '\n';
        read_line(p, r.head + at, sizeof r.head - at);
    } while (r.head[at]);
    if (to_head || r.status == 100 || r.status == 204) return r;
    if ((length = header_of(&r, "Content-Length")))
        read_bytes(p, &r.body, strtoul(length, NULL, 10));
    else if (header_of(&r, "Transfer-Encoding")) read_chunks(p, &r.body);
    else
        while (read_some(p, &c, 1) == 1) buf_putc(&r.body, c);
    return r;
}

static inline struct reply read_reply(struct peer *p) { return read_reply_to(p, false); }

static inline void expect_reply(struct peer *p, int status, const char *body)
{
    struct reply r = read_reply(p);

    assert_int_equal(r.status, status);
    if (body) assert_string_equal(buf_cstr(&r.body), body);
    buf_release(&r.body);
}

#endif
