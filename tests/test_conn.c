/* Life cycle of HTTP connections: disconnects, slow readers, limits, shutdown, Unix sockets,
 * TLS.
 *
 * A server on an event loop in a thread (http_world.h) and raw clients. The TLS certificate is
 * made by the test. */
#include "http_world.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#define HOST "Host: a\r\n"
#define HOLD "GET /hold HTTP/1.1\r\n" HOST "\r\n"

static void begin_held_reply(struct world *w, void *arg)
{
    (void)arg;
    sse_begin(w->held[0].q);
}

static void write_to_held(struct world *w, void *arg)
{
    *(bool *)arg = sse_data(w->held[0].q, STR("{}"));
}

static void end_held_request(struct world *w, void *arg)
{
    struct held *h = &w->held[arg ? *(int *)arg : 0];

    http_end(h->q);
    h->q = NULL;
}

static void reply_to_held(struct world *w, void *arg)
{
    struct held *h = &w->held[arg ? *(int *)arg : 0];

    http_reply(h->q, 200, "text/plain", "late", 4);
    h->q = NULL;
}

static bool is_reported(struct world *w, int i) { return w->held[i].n_gone > 0; }

static void wait_for_loop(struct world *w)
{
    usleep(30000);
    read_stats(w); /* returns after the loop has run once */
}

/* ---- clients that disconnect ---- */

static void a_close_before_the_reply_calls_back_once(void **state)
{
    struct world *w = world_open((struct http_opt){ 0 });
    struct peer p = connect_peer(w);

    (void)state;
    send_text(&p, HOLD);
    WAIT_FOR(w, w->n_held == 1);
    close_peer(&p);
    WAIT_FOR(w, is_reported(w, 0));
    assert_string_equal(w->held[0].reason, "closed");
    wait_for_loop(w);
    assert_int_equal(w->held[0].n_gone, 1);
    run_on_loop(w, reply_to_held, NULL); /* no effect: the request has ended */
    assert_int_equal(read_stats(w).conns, 0);
    world_close(w);
}

static void a_reset_during_a_stream_calls_back_and_fails_writes(void **state)
{
    struct world *w = world_open((struct http_opt){ 0 });
    struct peer p = connect_peer(w);
    char some[20];
    bool there = false;

    (void)state;
    send_text(&p, HOLD);
    WAIT_FOR(w, w->n_held == 1);
    run_on_loop(w, begin_held_reply, NULL);
    run_on_loop(w, write_to_held, &there);
    assert_true(there);
    assert_true(read_some(&p, some, sizeof some) > 0);
    reset_peer(&p);
    WAIT_FOR(w, is_reported(w, 0));
    assert_string_equal(w->held[0].reason, "reset");
    run_on_loop(w, write_to_held, &there);
    assert_false(there);
    run_on_loop(w, end_held_request, NULL);
    assert_int_equal(w->held[0].n_gone, 1);
    world_close(w);
}

static void a_close_is_noticed_behind_pipelined_bytes(void **state)
{
    struct world *w = world_open((struct http_opt){ 0 });
    struct peer p = connect_peer(w);

    (void)state;
    send_text(&p, HOLD "GET /echo HTTP/1.1\r\n" HOST "\r\nGET /ec");
    WAIT_FOR(w, w->n_held == 1);
    close_peer(&p);
    WAIT_FOR(w, is_reported(w, 0));
    run_on_loop(w, end_held_request, NULL);
    wait_for_loop(w);
    assert_int_equal(read_stats(w).requests, 1); /* the second was not handled */
    world_close(w);
}

/* The client sends more than the server reads ahead, so its close is behind unread bytes in the
 * socket. */
static void a_close_is_noticed_behind_more_bytes_than_are_read_ahead(void **state)
{
    struct world *w = world_open((struct http_opt){ 0 });
    char *junk = mem_alloc(120 << 10);

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct peer p = connect_peer(w);
        send_text(&p, HOLD "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 10000000\r\n\r\n");
        assert_true(send_bytes(&p, junk, 120 << 10));
        WAIT_FOR(w, w->n_held == i + 1);
        wait_for_loop(w);
        if (i) reset_peer(&p);
        else close_peer(&p);
        WAIT_FOR(w, is_reported(w, i));
        run_on_loop(w, end_held_request, &i);
    }
    mem_free(junk);
    world_close(w);
}

static void pipelined_requests_continue_when_the_first_ends(void **state)
{
    struct world *w = world_open((struct http_opt){ 0 });
    struct peer p = connect_peer(w);
    char *body = mem_alloc(300 << 10);

    (void)state;
    memset(body, 'b', 300 << 10);
    send_text(&p, HOLD "POST /echo?1 HTTP/1.1\r\n" HOST "Content-Length: 307200\r\n\r\n");
    assert_true(send_bytes(&p, body, 300 << 10));
    send_text(&p, "GET /echo?2 HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n");
    WAIT_FOR(w, w->n_held == 1);
    usleep(250000); /* two intervals of polling for a close */
    run_on_loop(w, reply_to_held, NULL);
    expect_reply(&p, 200, "late");
    struct reply r = read_reply(&p);
    assert_int_equal(r.body.n, strlen("POST|/echo|1|") + (300 << 10));
    buf_release(&r.body);
    expect_reply(&p, 200, "GET|/echo|2|");
    assert_true(is_closed_by_server(&p));
    assert_int_equal(w->held[0].n_gone, 0);
    mem_free(body);
    close_peer(&p);
    world_close(w);
}

static void a_request_may_end_in_its_gone_callback(void **state)
{
    struct world *w = world_open((struct http_opt){ 0 });

    (void)state;
    for (int i = 0; i < 8; i++) {
        struct peer p = connect_peer(w);
        send_text(&p, "GET /hold?end HTTP/1.1\r\n" HOST "\r\n");
        WAIT_FOR(w, w->n_held == i + 1);
        if (i & 1) reset_peer(&p);
        else close_peer(&p);
        WAIT_FOR(w, w->held[i].q == NULL);
    }
    assert_int_equal(read_stats(w).conns, 0);
    world_close(w);
}

static void clear_gone_callback(struct world *w, void *arg)
{
    (void)arg;
    http_on_gone(w->held[0].q, NULL, NULL);
}

static void set_gone_callback(struct world *w, void *arg)
{
    (void)arg;
    http_on_gone(w->held[0].q, held_gone, &w->held[0]);
}

static void a_gone_callback_set_late_is_called_too(void **state)
{
    struct world *w = world_open((struct http_opt){ 0 });
    struct peer p = connect_peer(w);

    (void)state;
    send_text(&p, HOLD);
    WAIT_FOR(w, w->n_held == 1);
    run_on_loop(w, clear_gone_callback, NULL);
    close_peer(&p);
    for (int i = 0; i < 30000 && read_stats(w).conns; i++) usleep(2000);
    wait_for_loop(w);
    assert_int_equal(w->held[0].n_gone, 0);
    run_on_loop(w, set_gone_callback, NULL);
    WAIT_FOR(w, is_reported(w, 0));
    run_on_loop(w, end_held_request, NULL);
    world_close(w);
}

/* ---- slow readers ---- */

static void a_slow_reader_is_disconnected_and_others_continue(void **state)
{
    struct world *w = world_open((struct http_opt){ .max_unread_bytes = 256 << 10 });
    struct peer good = connect_peer(w), slow = connect_peer_with(w, 4096);
    char head[512];
    bool there = false;

    (void)state;
    send_text(&good, HOLD);
    WAIT_FOR(w, w->n_held == 1);
    run_on_loop(w, begin_held_reply, NULL);
    run_on_loop(w, write_to_held, &there);
    send_text(&slow, "GET /flood HTTP/1.1\r\n" HOST "\r\n");
    WAIT_FOR(w, w->flood_over);
    assert_string_equal(w->flood_reason, "slow reader");
    wait_for_loop(w);
    assert_int_equal(w->n_flood_gone, 0); /* the request ended before the callback */
    assert_false(w->called_in_write);
    run_on_loop(w, write_to_held, &there);
    assert_true(there);
    run_on_loop(w, end_held_request, NULL);
    assert_int_equal(read_stats(w).cut_off, 1);
    assert_true(read_some(&good, head, sizeof head) > 0);
    close_peer(&good);
    close_peer(&slow);
    world_close(w);
}

/* What a held reply has queued for a client that does not read, and how often it was all sent. */
struct queued {
    size_t unsent;
    int n_sent;
};

static void count_sent(void *arg) { ((struct queued *)arg)->n_sent++; }

static void queue_for_held(struct world *w, void *arg)
{
    static char piece[64 << 10];
    struct queued *k = arg;
    struct http_req *q = w->held[0].q;

    http_on_sent(q, count_sent, k);
    while (http_unsent(q) == 0) http_write(q, piece, sizeof piece);
    k->unsent = http_unsent(q);
}

static void read_queued(struct world *w, void *arg)
{
    struct queued *k = arg;

    k->unsent = http_unsent(w->held[0].q);
}

static void the_handler_hears_when_its_bytes_were_sent(void **state)
{
    struct world *w = world_open((struct http_opt){ 0 });
    struct peer p = connect_peer_with(w, 4096);
    struct queued k = { 0 };
    char some[4096];

    (void)state;
    send_text(&p, HOLD);
    WAIT_FOR(w, w->n_held == 1);
    run_on_loop(w, begin_held_reply, NULL);
    run_on_loop(w, queue_for_held, &k);
    assert_true(k.unsent > 0);
    assert_int_equal(k.n_sent, 0);
    for (int looks = 0; k.unsent && looks < 10000; looks++) {
        assert_true(read_some(&p, some, sizeof some) > 0);
        run_on_loop(w, read_queued, &k);
    }
    assert_int_equal(k.unsent, 0);
    assert_int_equal(k.n_sent, 1);
    run_on_loop(w, end_held_request, NULL);
    close_peer(&p);
    world_close(w);
}

static void write_many_to_held(struct world *w, void *arg)
{
    static char piece[64 << 10];
    bool there = true;

    (void)arg;
    world_lock(w);
    w->in_write = true;
    world_unlock(w);
    for (int i = 0; i < 4096 && there; i++) there = http_write(w->held[0].q, piece, sizeof piece);
    world_lock(w);
    w->in_write = false;
    w->flood_over = !there;
    world_unlock(w);
}

static void a_disconnect_calls_back_once_and_not_inside_a_write(void **state)
{
    struct world *w = world_open((struct http_opt){ .max_unread_bytes = 256 << 10 });
    struct peer p = connect_peer_with(w, 4096);

    (void)state;
    send_text(&p, HOLD);
    WAIT_FOR(w, w->n_held == 1);
    run_on_loop(w, begin_held_reply, NULL);
    run_on_loop(w, write_many_to_held, NULL);
    assert_true(w->flood_over);
    WAIT_FOR(w, is_reported(w, 0));
    assert_string_equal(w->held[0].reason, "slow reader");
    assert_false(w->called_in_write);
    wait_for_loop(w);
    assert_int_equal(w->held[0].n_gone, 1);
    run_on_loop(w, end_held_request, NULL);
    close_peer(&p);
    world_close(w);
}

static void a_client_that_reads_nothing_is_disconnected(void **state)
{
    struct world *w = world_open((struct http_opt){ .write_ms = 150 });
    struct peer p = connect_peer_with(w, 4096);

    (void)state;
    send_text(&p, "GET /big HTTP/1.1\r\n" HOST "\r\n");
    for (int i = 0; i < 30000 && read_stats(w).conns; i++) usleep(2000);
    assert_int_equal(read_stats(w).conns, 0);
    assert_int_equal(read_stats(w).cut_off, 1);
    close_peer(&p);
    world_close(w);
}

static void a_whole_reply_is_not_limited_by_max_unread(void **state)
{
    struct world *w =
        world_open((struct http_opt){ .max_unread_bytes = 64 << 10, .idle_ms = 2000 });
    struct peer p = connect_peer_with(w, 64 << 10);
    struct reply r;

    (void)state;
    send_text(&p, "GET /big HTTP/1.1\r\n" HOST "\r\nGET /echo HTTP/1.1\r\n" HOST "\r\n");
    usleep(3000000); /* longer than idle_ms: it is not idle */
    r = read_reply(&p);
    assert_int_equal(r.body.n, BIG_BYTES);
    buf_release(&r.body);
    expect_reply(&p, 200, "GET|/echo||");
    close_peer(&p);
    world_close(w);
}

static void a_client_that_does_not_read_gets_no_more_replies(void **state)
{
    struct world *w = world_open((struct http_opt){ .max_unread_bytes = 64 << 10 });
    struct peer p = connect_peer_with(w, 4096);
    struct buf b = { 0 };

    (void)state;
    for (int i = 0; i < 100; i++) buf_puts(&b, "GET /big HTTP/1.1\r\n" HOST "\r\n");
    assert_true(send_bytes(&p, b.p, b.n));
    wait_for_loop(w);
    assert_true(read_stats(w).requests < 10);
    buf_release(&b);
    close_peer(&p);
    world_close(w);
}

static void all_bodies_together_have_a_limit(void **state)
{
    struct world *w = world_open((struct http_opt){ .max_bodies_bytes = 1000 });
    struct peer p = connect_peer(w), more;
    char body[600];

    (void)state;
    memset(body, 'b', sizeof body);
    send_text(&p, "POST /hold HTTP/1.1\r\n" HOST "Content-Length: 600\r\n\r\n");
    send_bytes(&p, body, sizeof body);
    WAIT_FOR(w, w->n_held == 1);
    more = connect_peer(w);
    send_text(&more, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 600\r\n\r\n");
    send_bytes(&more, body, sizeof body);
    expect_reply(&more, 503, NULL);
    close_peer(&more);
    run_on_loop(w, reply_to_held, NULL);
    expect_reply(&p, 200, "late");
    for (int i = 0; i < 10; i++) { /* the bytes are no longer counted */
        send_text(&p, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 600\r\n\r\n");
        send_bytes(&p, body, sizeof body);
        expect_reply(&p, 200, NULL);
    }
    close_peer(&p);
    world_close(w);
}

/* ---- ends ---- */

/* http_admit_fn: the first time it holds the body, unless the path is /echo. */
static enum http_admission hold_once(void *arg, struct http_req *q)
{
    (void)arg;
    if (str_is(http_path(q), "/echo")) return HTTP_ADMIT;
    if (!http_was_held(q)) return HTTP_HOLD;
    if (str_is(http_path(q), "/held")) return HTTP_ADMIT;
    http_reply(q, 429, "text/plain", "no", 2);
    return HTTP_ANSWERED;
}

/* A POST whose body of 100 KB is sent, in two pieces. */
static void send_large(struct peer *p, const char *path)
{
    static char body[100 << 10];
    char head[200];

    memset(body, 'b', sizeof body);
    snprintf(head, sizeof head, "POST %s HTTP/1.1\r\n" HOST "Content-Length: %d\r\n\r\n", path,
             (int)sizeof body);
    send_text(p, head);
    assert_true(send_bytes(p, body, 10));
    assert_true(send_bytes(p, body + 10, sizeof body - 10));
}

static void a_held_body_is_read_or_refused_after_a_while(void **state)
{
    struct world *w = world_open((struct http_opt){ .admit = hold_once });
    struct peer a = connect_peer(w), b = connect_peer(w), c = connect_peer(w);
    struct reply r;

    (void)state;
    send_large(&a, "/held"); /* any other path is echoed */
    send_large(&b, "/refused");
    for (int i = 0; i < 60000 && read_stats(w).held < 2; i++) usleep(1000);
    assert_int_equal(read_stats(w).held, 2);
    send_large(&c, "/echo"); /* the others keep nobody from being served */
    r = read_reply(&c);
    assert_int_equal(r.status, 200);
    assert_int_equal(r.body.n, strlen("POST|/echo||") + (100 << 10));
    buf_release(&r.body);
    expect_reply(&a, 200, NULL);
    send_large(&a, "/held"); /* and it may be held again */
    expect_reply(&a, 200, NULL);
    expect_reply(&b, 429, "no");
    assert_true(is_closed_by_server(&b));
    assert_int_equal(read_stats(w).held, 3);
    assert_int_equal(read_stats(w).requests, 3);
    send_large(&a, "/held"); /* a server may close with held ones */
    for (int i = 0; i < 60000 && read_stats(w).held < 4; i++) usleep(1000);
    close_peer(&a);
    close_peer(&b);
    close_peer(&c);
    world_close(w);
}

/* More than are read at a time: each gets its turn, and none loses its reply. */
static void refused_uploads_are_read_a_few_at_a_time(void **state)
{
#ifdef TERN_HARD
    enum { N = 20, BYTES = 2 << 20, SENT = 1000 }; /* they are read byte by byte */
#else
    enum { N = 20, BYTES = 24 << 20, SENT = BYTES }; /* more than the buffers of the kernel take */
#endif
    struct world *w = world_open((struct http_opt){ .max_body_bytes = 1 << 20 });
    struct peer p[N];
    char head[200], *body = mem_alloc(BYTES);

    (void)state;
    memset(body, 'b', BYTES);
    snprintf(head, sizeof head, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: %d\r\n\r\n", BYTES);
    for (int i = 0; i < N; i++) {
        p[i] = connect_peer(w);
        send_text(&p[i], head);
    }
    for (int i = 0; i < N; i++) expect_reply(&p[i], 413, NULL);
    assert_true(send_bytes(&p[0], body, SENT)); /* the first is read */
    for (int i = 0; i < N; i++) close_peer(&p[i]);
    for (int i = 0; i < 60000 && read_stats(w).conns; i++) usleep(2000);
    assert_int_equal(read_stats(w).conns, 0);
    mem_free(body);
    world_close(w);
}

#ifndef TERN_HARD
/* Each byte of libevent's reads of 4 KiB costs the loop several times as much. */
static void large_bodies_are_read_in_large_pieces(void **state)
{
    enum { BYTES = 8 << 20 };
    struct world *w = world_open((struct http_opt){ .max_body_bytes = BYTES });
    struct peer p = connect_peer(w);
    char head[200], *body = mem_alloc(BYTES);

    (void)state;
    for (size_t i = 0; i < BYTES; i++) body[i] = (char)('a' + i % 23);
    for (int i = 0; i < 2; i++) {
        snprintf(head, sizeof head, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: %d\r\n\r\n",
                 BYTES);
        send_text(&p, head);
        assert_true(send_bytes(&p, body, BYTES));
        struct reply r = read_reply(&p);
        assert_int_equal(r.body.n, strlen("POST|/echo||") + BYTES);
        assert_memory_equal(r.body.p + strlen("POST|/echo||"), body, BYTES);
        buf_release(&r.body);
    }
    assert_true(read_stats(w).direct_bytes > BYTES); /* of twice as many */
    mem_free(body);
    close_peer(&p);
    world_close(w);
}
#endif

static void http_close_calls_back_and_requests_end_afterwards(void **state)
{
    struct world *w = world_open((struct http_opt){ 0 });
    struct peer p[4];

    (void)state;
    for (int i = 0; i < 3; i++) {
        p[i] = connect_peer(w);
        send_text(&p[i], i == 2 ? "GET /hold?end HTTP/1.1\r\n" HOST "\r\n" : HOLD);
        WAIT_FOR(w, w->n_held == i + 1);
    }
    p[3] = connect_peer(w);
    send_text(&p[3], "GET /ec");
    run_on_loop(w, begin_held_reply, NULL);
    wait_for_loop(w);
    world_stop(w);
    http_close(w->http);
    for (int i = 0; i < 3; i++) assert_int_equal(w->held[i].n_gone, 1);
    loop_close(w->loop);
    assert_false(http_write(w->held[0].q, "a", 1));
    assert_string_equal(http_gone_reason(w->held[0].q), "closed");
    http_end(w->held[0].q);
    http_reply(w->held[1].q, 200, "text/plain", "a", 1);
    assert_null(w->held[2].q);
    for (int i = 0; i < 4; i++) close_peer(&p[i]);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    mem_free(w);
}

static void drain(struct world *w, void *arg)
{
    (void)arg;
    http_drain(w->http);
}

static void stop_listening(struct world *w, void *arg)
{
    (void)arg;
    http_stop_listening(w->http);
}

static void draining_closes_idle_connections_and_answers_new_ones(void **state)
{
    struct world *w = world_open((struct http_opt){ 0 });
    struct peer idle = connect_peer(w), fresh = connect_peer(w), p;
    struct reply r;

    (void)state;
    send_text(&idle, "GET /echo HTTP/1.1\r\n" HOST "\r\n");
    expect_reply(&idle, 200, NULL);
    wait_for_loop(w);
    run_on_loop(w, drain, NULL);
    assert_true(is_closed_by_server(&idle));
    send_text(&fresh, "GET /echo HTTP/1.1\r\n" HOST "\r\n"); /* its first request */
    expect_reply(&fresh, 200, NULL);
    close_peer(&fresh);
    p = connect_peer(w);
    send_text(&p, "GET /echo HTTP/1.1\r\n" HOST "\r\n");
    r = read_reply(&p);
    assert_int_equal(r.status, 200);
    assert_string_equal(header_of(&r, "Connection"), "close");
    assert_true(is_closed_by_server(&p));
    buf_release(&r.body);
    close_peer(&p);
    close_peer(&idle);
    world_close(w);
}

static void a_stopped_listener_answers_running_requests_and_accepts_none(void **state)
{
    struct world *w = world_open((struct http_opt){ 0 });
    struct peer p = connect_peer(w), idle = connect_peer(w);
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons((uint16_t)http_port(w->http)) };
    struct reply r;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    (void)state;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    send_text(&idle, "GET /echo HTTP/1.1\r\n" HOST "\r\n");
    expect_reply(&idle, 200, NULL);
    send_text(&p, HOLD);
    WAIT_FOR(w, w->n_held == 1);
    run_on_loop(w, stop_listening, NULL);
    assert_true(is_closed_by_server(&idle));
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), -1);
    run_on_loop(w, reply_to_held, NULL);
    r = read_reply(&p);
    assert_string_equal(buf_cstr(&r.body), "late");
    assert_string_equal(header_of(&r, "Connection"), "close");
    assert_true(is_closed_by_server(&p));
    buf_release(&r.body);
    close(fd);
    close_peer(&p);
    close_peer(&idle);
    world_close(w);
}

static void many_connections_leave_no_descriptor_open(void **state)
{
    int before = count_fds();
    struct world *w = world_open((struct http_opt){ 0 });
    int open_fds = count_fds();

    (void)state;
    for (int i = 0; i < 500; i++) {
        struct peer p = connect_peer(w);
        switch (i % 5) {
        case 0:
            send_text(&p, "GET /echo HTTP/1.1\r\n" HOST "\r\n"), expect_reply(&p, 200, NULL);
            break;
        case 1: send_text(&p, "GET /echo HTTP/1.0\r\n\r\n"), expect_reply(&p, 200, NULL); break;
        case 2: send_text(&p, "nonsense\r\n\r\n"), expect_reply(&p, 400, NULL); break;
        case 3: send_text(&p, "GET /ech"), reset_peer(&p); break;
        default: break;
        }
        close_peer(&p);
    }
    for (int i = 0; i < 30000 && read_stats(w).conns; i++) usleep(2000);
    wait_for_loop(w);
    assert_int_equal(read_stats(w).conns, 0);
    assert_int_equal(count_fds(), open_fds);
    assert_int_equal(read_stats(w).accepted, 500);
    world_close(w);
    assert_int_equal(count_fds(), before);
}

/* ---- Unix sockets ---- */

static struct peer connect_to_path(const char *path)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    struct peer p = { .fd = socket(AF_UNIX, SOCK_STREAM, 0) };

    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    assert_int_equal(connect(p.fd, (struct sockaddr *)&a, sizeof a), 0);
    set_timeouts(p.fd);
    return p;
}

static int open_second(struct world *w, const char *path, struct err *e)
{
    struct http *h = NULL;
    struct loop *l = NULL;
    int rc;

    assert_int_equal(loop_open(&l, NULL), OK);
    rc = http_open(&h, l,
                   &(struct http_opt){
                       .socket_path = path, .handler = world_handle, .fail = world_fail, .arg = w },
                   e);
    http_close(h);
    loop_close(l);
    return rc;
}

static void a_unix_socket_has_mode_0600_and_is_removed(void **state)
{
    char path[100];
    struct stat st;
    struct world *w;
    struct peer p;
    struct reply r;
    struct err e = { 0 };
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int stale = socket(AF_UNIX, SOCK_STREAM, 0);

    (void)state;
    snprintf(path, sizeof path, "%s/s", temp_dir());
    memcpy(a.sun_path, path, strlen(path) + 1);
    assert_int_equal(bind(stale, (struct sockaddr *)&a, sizeof a), 0);
    close(stale); /* the path remains: a stale socket */
    w = world_open((struct http_opt){ .socket_path = path });
    assert_int_equal(http_port(w->http), 0);
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISSOCK(st.st_mode));
    assert_int_equal(st.st_mode & 0777, 0600);
    p = connect_to_path(path);
    send_text(&p, "GET /echo HTTP/1.1\r\n" HOST "\r\n");
    r = read_reply(&p);
    assert_string_equal(header_of(&r, "X-Peer"), "unix");
    buf_release(&r.body);
    assert_int_equal(open_second(w, path, &e), E_IO); /* a server listens on it */
    assert_non_null(strstr(e.msg, path));
    assert_int_equal(lstat(path, &st), 0);
    close_peer(&p);
    world_close(w);
    assert_int_not_equal(lstat(path, &st), 0);
    assert_int_not_equal(open_second(NULL, temp_file("plain", "x", 1), &e),
                         OK); /* a file is not removed */
}

static void errors_of_http_open_name_the_cause(void **state)
{
    struct world *w = world_open((struct http_opt){ 0 });
    struct http *h = NULL;
    struct err e = { 0 };
    struct http_opt o = { .handler = world_handle, .fail = world_fail };

    (void)state;
    assert_int_equal(http_open(&h, w->loop, &o, &e), E_INVALID);
    o.host = "127.0.0.1";
    o.port = http_port(w->http);
    assert_int_equal(http_open(&h, w->loop, &o, &e), E_IO);
    assert_non_null(strstr(e.msg, "in use"));
    o.port = 0;
    o.tls_cert = temp_file("cert", "x", 1);
    assert_int_equal(http_open(&h, w->loop, &o, &e), E_INVALID);
    o.tls_key = o.tls_cert;
    assert_int_not_equal(http_open(&h, w->loop, &o, &e), OK);
    assert_non_null(strstr(e.msg, o.tls_cert));
    world_close(w);
}

/* ---- TLS ---- */

static void make_certificate(const char **cert, const char **key)
{
    EVP_PKEY *k = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    BIO *b = BIO_new(BIO_s_mem());
    char *p;
    long n;

    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -60);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600);
    X509_set_pubkey(x, k);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
                               (const unsigned char *)"localhost", -1, -1, 0);
    X509_set_issuer_name(x, X509_get_subject_name(x));
    assert_true(X509_sign(x, k, EVP_sha256()) > 0);
    PEM_write_bio_X509(b, x);
    n = BIO_get_mem_data(b, &p);
    *cert = temp_file("cert.pem", p, (size_t)n);
    BIO_reset(b);
    PEM_write_bio_PrivateKey(b, k, NULL, NULL, 0, NULL, NULL);
    n = BIO_get_mem_data(b, &p);
    *key = temp_file("key.pem", p, (size_t)n);
    BIO_free(b);
    X509_free(x);
    EVP_PKEY_free(k);
}

static struct peer connect_tls(struct world *w, SSL_CTX *ctx)
{
    struct peer p = connect_peer(w);

    p.ssl = SSL_new(ctx);
    SSL_set_fd(p.ssl, p.fd);
    assert_int_equal(SSL_connect(p.ssl), 1);
    return p;
}

static void tls_serves_the_same_requests(void **state)
{
    struct http_opt o = { .max_body_bytes = 100000, .max_conns = 3 };
    struct world *w;
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    struct peer p, plain, more[3];
    struct reply r;
    char some[64];
    bool there;

    (void)state;
    make_certificate(&o.tls_cert, &o.tls_key);
    w = world_open(o);
    p = connect_tls(w, ctx);
    send_text(&p, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\nhi");
    expect_reply(&p, 200, "POST|/echo||hi");
    send_text(&p, "GET /big HTTP/1.1\r\n" HOST "\r\nGET /pieces HTTP/1.1\r\n" HOST "\r\n");
    r = read_reply(&p);
    assert_int_equal(r.body.n, BIG_BYTES);
    buf_release(&r.body);
    expect_reply(&p, 200, "data: {\"a\":1}\n\nevent: note\ndata: {\"b\":2}\n\n: ping\n\n");
    send_text(
        &p, "GET /pieces HTTP/1.0\r\n\r\n"); /* ends with the connection: TLS must signal the end */
    expect_reply(&p, 200, "data: {\"a\":1}\n\nevent: note\ndata: {\"b\":2}\n\n: ping\n\n");
    assert_int_equal(SSL_get_shutdown(p.ssl) & SSL_RECEIVED_SHUTDOWN, SSL_RECEIVED_SHUTDOWN);
    close_peer(&p);

    p = connect_tls(w, ctx);
    send_text(&p, "POST / HTTP/1.1\r\n" HOST "Content-Length: 200000\r\n\r\n");
    expect_reply(&p, 413, NULL);
    close_peer(&p);

    p = connect_tls(w, ctx);
    send_text(&p, HOLD);
    WAIT_FOR(w, w->n_held == 1);
    run_on_loop(w, begin_held_reply, NULL);
    run_on_loop(w, write_to_held, &there);
    assert_true(read_some(&p, some, sizeof some) > 0);
    SSL_shutdown(p.ssl);
    close_peer(&p);
    WAIT_FOR(w, is_reported(w, 0));
    run_on_loop(w, end_held_request, NULL);

    plain = connect_peer(w); /* plain HTTP on a TLS port: closed, not answered in plain text */
    send_text(&plain, "GET /echo HTTP/1.1\r\n" HOST "\r\n");
    while (read_some(&plain, some, 1) == 1) assert_int_not_equal(some[0], 'H');
    close_peer(&plain);

    for (int i = 0; i < 30000 && read_stats(w).conns; i++) usleep(2000);
    for (int i = 0; i < 3; i++) {
        more[i] = connect_tls(w, ctx);
        send_text(&more[i], HOLD);
        WAIT_FOR(w, w->n_held == i + 2);
    }
    p = connect_tls(w, ctx);
    send_text(&p, "GET /echo HTTP/1.1\r\n" HOST "\r\n");
    expect_reply(&p, 503, NULL);
    close_peer(&p);
    for (int i = 0; i < 3; i++) close_peer(&more[i]);
    SSL_CTX_free(ctx);
    world_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_close_before_the_reply_calls_back_once),
        cmocka_unit_test(a_reset_during_a_stream_calls_back_and_fails_writes),
        cmocka_unit_test(a_close_is_noticed_behind_pipelined_bytes),
        cmocka_unit_test(a_close_is_noticed_behind_more_bytes_than_are_read_ahead),
        cmocka_unit_test(pipelined_requests_continue_when_the_first_ends),
        cmocka_unit_test(a_request_may_end_in_its_gone_callback),
        cmocka_unit_test(a_gone_callback_set_late_is_called_too),
        cmocka_unit_test(a_slow_reader_is_disconnected_and_others_continue),
        cmocka_unit_test(the_handler_hears_when_its_bytes_were_sent),
        cmocka_unit_test(a_disconnect_calls_back_once_and_not_inside_a_write),
        cmocka_unit_test(a_client_that_reads_nothing_is_disconnected),
        cmocka_unit_test(a_whole_reply_is_not_limited_by_max_unread),
        cmocka_unit_test(a_client_that_does_not_read_gets_no_more_replies),
        cmocka_unit_test(all_bodies_together_have_a_limit),
        cmocka_unit_test(a_held_body_is_read_or_refused_after_a_while),
        cmocka_unit_test(refused_uploads_are_read_a_few_at_a_time),
#ifndef TERN_HARD
        cmocka_unit_test(large_bodies_are_read_in_large_pieces),
#endif
        cmocka_unit_test(http_close_calls_back_and_requests_end_afterwards),
        cmocka_unit_test(draining_closes_idle_connections_and_answers_new_ones),
        cmocka_unit_test(a_stopped_listener_answers_running_requests_and_accepts_none),
        cmocka_unit_test(many_connections_leave_no_descriptor_open),
        cmocka_unit_test(a_unix_socket_has_mode_0600_and_is_removed),
        cmocka_unit_test(errors_of_http_open_name_the_cause),
        cmocka_unit_test(tls_serves_the_same_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
