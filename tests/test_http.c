/* HTTP requests and replies: parsing, limits, errors that the HTTP layer answers itself,
 * streams. The life cycle of connections is in test_conn.c.
 *
 * A server on an event loop in a thread (http_world.h) and raw clients. */
#include "http_world.h"

#include "net/query.h"
#include "net/traceparent.h"

#define HOST "Host: a\r\n"

/* ---- refused requests ---- */

struct refusal {
    int status;
    const char *bytes;
    size_t n; /* 0: strlen */
};

static void expect_refusal(struct world *w, struct refusal t)
{
    struct peer p = connect_peer(w);
    struct reply r;
    char want[32];

    assert_true(send_bytes(&p, t.bytes, t.n ? t.n : strlen(t.bytes)));
    r = read_reply(&p);
    snprintf(want, sizeof want, "{\"status\":%d,", t.status);
    if (r.status != t.status || strncmp(buf_cstr(&r.body), want, strlen(want)) != 0)
        fail_msg("%.60s: status %d, body %s", t.bytes, r.status, buf_cstr(&r.body));
    assert_string_equal(header_of(&r, "Content-Type"), "application/json");
    assert_string_equal(header_of(&r, "Connection"), "close");
    assert_non_null(header_of(&r, "X-Correlation-Id"));
    assert_true(is_closed_by_server(&p));
    buf_release(&r.body);
    close_peer(&p);
}

static void malformed_requests_get_400(void **state)
{
    static const char *const bad[] = {
        "GET / HTTP/1.1\r\n\r\n", /* no Host */
        "GET / HTTP/1.1\r\n" HOST "Host: b\r\n\r\n",
        "GET / HTTP/1.1\nHost: a\n\n",
        "GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
        "GET / HTTP/1.1\r\n" HOST "X: a\r\n b\r\n\r\n", /* folded header line */
        "GET / HTTP/1.1\r\n X: a\r\n" HOST "\r\n",
        "GET / HTTP/1.1\r\n" HOST "X: a\rb\r\n\r\n",
        "GET / HTTP/1.1\r\n" HOST "X: a\x01\r\n\r\n",
        "GET / HTTP/1.1\r\n" HOST "no colon\r\n\r\n",
        "GET / HTTP/1.1\r\n" HOST "X : a\r\n\r\n",
        "GET / HTTP/1.1\r\n" HOST ": a\r\n\r\n",
        "GET  / HTTP/1.1\r\n" HOST "\r\n",
        "GET /a b HTTP/1.1\r\n" HOST "\r\n",
        "GET / HTTP/1.1 \r\n" HOST "\r\n",
        "GET / HTTP/11\r\n" HOST "\r\n",
        "GET /\r\n" HOST "\r\n",
        "GET\r\n\r\n",
        "G@T / HTTP/1.1\r\n" HOST "\r\n",
        "GET a HTTP/1.1\r\n" HOST "\r\n",
        "GET /%zz HTTP/1.1\r\n" HOST "\r\n",
        "GET /%0 HTTP/1.1\r\n" HOST "\r\n",
        "GET /%00 HTTP/1.1\r\n" HOST "\r\n",
        "\x16\x03\x01\x02\r\n\r\n", /* TLS on a plain port */
        "POST / HTTP/1.1\r\n" HOST "Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "POST / HTTP/1.1\r\n" HOST "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
        "POST / HTTP/1.1\r\n" HOST
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\n" HOST "Content-Length: 1, 1\r\n\r\n",
        "POST / HTTP/1.1\r\n" HOST "Content-Length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\n" HOST "Content-Length: +1\r\n\r\n",
        "POST / HTTP/1.1\r\n" HOST "Content-Length: 0x1\r\n\r\n",
        "POST / HTTP/1.1\r\n" HOST "Content-Length:\r\n\r\n",
    };
    static const char with_nul[] = "GET / HTTP/1.1\r\n" HOST "X: \0\r\n\r\n",
                      nul_in_path[] = "GET /\0 HTTP/1.1\r\n" HOST "\r\n";
    struct world *w = world_open((struct http_opt){ 0 });

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_refusal(w, (struct refusal){ 400, bad[i], 0 });
    expect_refusal(w, (struct refusal){ 400, with_nul, sizeof with_nul - 1 });
    expect_refusal(w, (struct refusal){ 400, nul_in_path, sizeof nul_in_path - 1 });
    assert_int_equal(read_stats(w).bad, sizeof bad / sizeof *bad + 2);
    assert_int_equal(read_stats(w).requests, 0);
    world_close(w);
}

static void malformed_chunks_get_400(void **state)
{
    static const char *const bad[] = {
        "zz\r\n",
        "\r\n",
        "-1\r\n",
        " 1\r\na\r\n",
        "1\na\r\n",
        "1\r\nab\r\n",
        "1\r\na\n0\r\n",
        "1;a\x01\r\n",
        "1;a\nb\r\n",
        "0x1\r\na\r\n",
        "0\r\nX: a\n\r\n",
        "0\r\n\x01\r\n",
        "00000000000000000000000000001\r\n",
    };
    struct world *w = world_open((struct http_opt){ 0 });
    struct buf b = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        buf_clear(&b);
        buf_printf(&b, "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n%s",
                   bad[i]);
        expect_refusal(w, (struct refusal){ 400, buf_cstr(&b), 0 });
    }
    buf_clear(&b);
    buf_puts(&b, "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n1;");
    for (int i = 0; i < 1000; i++) buf_putc(&b, 'e');
    expect_refusal(w, (struct refusal){ 400, buf_cstr(&b), 0 });
    buf_release(&b);
    world_close(w);
}

static void unsupported_features_get_their_status(void **state)
{
    static const struct refusal all[] = {
        { 417, "POST / HTTP/1.1\r\n" HOST "Expect: tea\r\nContent-Length: 1\r\n\r\n", 0 },
        { 501, "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip\r\n\r\n", 0 },
        { 501, "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip, chunked\r\n\r\n", 0 },
        { 505, "GET / HTTP/2.0\r\n" HOST "\r\n", 0 },
        { 505, "GET / HTTP/1.2\r\n" HOST "\r\n", 0 },
        { 505, "GET / HTTP/0.9\r\n" HOST "\r\n", 0 },
    };
    struct world *w = world_open((struct http_opt){ 0 });

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) expect_refusal(w, all[i]);
    world_close(w);
}

static void long_lines_and_headers_get_414_and_431(void **state)
{
    struct world *w = world_open((struct http_opt){ .max_header_bytes = 1024 });
    struct buf b = { 0 };

    (void)state;
    buf_puts(&b, "GET /");
    for (int i = 0; i < 2000; i++) buf_putc(&b, 'a');
    expect_refusal(w, (struct refusal){ 414, buf_cstr(&b), 0 });
    buf_clear(&b);
    buf_puts(&b, "GET / HTTP/1.1\r\nHost: a\r\nX: ");
    for (int i = 0; i < 2000; i++) buf_putc(&b, 'a');
    expect_refusal(w, (struct refusal){ 431, buf_cstr(&b), 0 });
    world_close(w);

    w = world_open((struct http_opt){ 0 });
    buf_clear(&b);
    buf_puts(&b, "GET / HTTP/1.1\r\nHost: a\r\n");
    for (int i = 0; i < 200; i++) buf_printf(&b, "X-%d: a\r\n", i);
    buf_puts(&b, "\r\n");
    expect_refusal(w, (struct refusal){ 431, buf_cstr(&b), 0 });
    buf_release(&b);
    world_close(w);
}

static void a_long_body_gets_413_before_it_is_sent(void **state)
{
    struct world *w = world_open((struct http_opt){ .max_body_bytes = 1000 });

    (void)state;
    expect_refusal(
        w, (struct refusal){ 413, "POST / HTTP/1.1\r\n" HOST "Content-Length: 1001\r\n\r\n", 0 });
    expect_refusal(w, (struct refusal){ 413,
                                        "POST / HTTP/1.1\r\n" HOST
                                        "Content-Length: 1001\r\nExpect: 100-continue\r\n\r\n",
                                        0 });
    expect_refusal(w, (struct refusal){ 413,
                                        "POST / HTTP/1.1\r\n" HOST
                                        "Content-Length: 99999999999999999999999999\r\n\r\n",
                                        0 });
    expect_refusal(
        w, (struct refusal){
               413, "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n3e9\r\n", 0 });
    expect_refusal(w, (struct refusal){ 413,
                                        "POST / HTTP/1.1\r\n" HOST
                                        "Transfer-Encoding: chunked\r\n\r\nfffffffffffffff0\r\n",
                                        0 });
    world_close(w);
}

#ifdef TERN_HARD
enum { UPLOAD_MIB = 1 }; /* read one byte at a time */
#else
enum { UPLOAD_MIB = 64 };
#endif

static void a_client_that_sends_64_mib_first_still_reads_its_413(void **state)
{
    struct world *w = world_open((struct http_opt){ 0 });
    struct peer p = connect_peer(w);
    char *piece = mem_alloc(1 << 20);

    (void)state;
    send_text(&p, "POST / HTTP/1.1\r\n" HOST "Content-Length: 67108864\r\n\r\n");
    for (int i = 0; i < UPLOAD_MIB; i++) assert_true(send_bytes(&p, piece, 1 << 20));
    expect_reply(&p, 413, NULL);
    assert_true(is_closed_by_server(&p));
    mem_free(piece);
    close_peer(&p);
    world_close(w);
}

static void chunks_are_summed_for_413(void **state)
{
    struct world *w = world_open((struct http_opt){ .max_body_bytes = 100 });
    struct peer p = connect_peer(w);

    (void)state;
    send_text(&p, "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 10; i++) send_text(&p, "a\r\n0123456789\r\n");
    send_text(&p, "1\r\n");
    expect_reply(&p, 413, NULL);
    assert_true(is_closed_by_server(&p));
    close_peer(&p);
    world_close(w);
}

static void slow_headers_and_slow_bodies_get_408(void **state)
{
    struct world *w = world_open((struct http_opt){ .header_ms = 150, .body_ms = 150 });
    struct peer p;
    bool cut = false;

    (void)state;
    expect_refusal(w, (struct refusal){ 408, "GET / HT", 0 });
    expect_refusal(w, (struct refusal){ 408, "GET / HTTP/1.1\r\nHost: a\r\n", 0 });
    expect_refusal(
        w, (struct refusal){ 408, "POST / HTTP/1.1\r\n" HOST "Content-Length: 9\r\n\r\nabc", 0 });
    expect_refusal(
        w, (struct refusal){
               408, "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n9\r\nabc", 0 });
    p = connect_peer(w); /* single bytes do not extend the time limit */
    for (int i = 0; i < 6000 && !cut; i++) {
        struct pollfd f = { .fd = p.fd, .events = POLLIN };
        cut = poll(&f, 1, 10) == 1;
        if (!cut) send_bytes(&p, "G", 1);
    }
    assert_true(cut);
    expect_reply(&p, 408, NULL);
    close_peer(&p);
    world_close(w);
}

static void an_idle_connection_is_closed_without_a_reply(void **state)
{
    struct world *w = world_open((struct http_opt){ .idle_ms = 2000 });
    struct peer p = connect_peer(w);

    (void)state;
    assert_true(is_closed_by_server(&p));
    close_peer(&p);
    p = connect_peer(w);
    send_text(&p, "GET /echo HTTP/1.1\r\n" HOST "\r\n");
    expect_reply(&p, 200, "GET|/echo||");
    assert_true(is_closed_by_server(&p));
    close_peer(&p);
    p = connect_peer(w);
    send_text(&p, "\r\n");
    assert_true(is_closed_by_server(&p));
    close_peer(&p);
    assert_int_equal(read_stats(w).bad, 0);
    world_close(w);
}

/* Sends the bytes, and checks the correlation id of the reply; a wanted one that ends with '*' is a
 * prefix. */
static void expect_id(struct world *w, const char *bytes, int status, const char *want)
{
    struct peer p = connect_peer(w);
    const char *star = strchr(want, '*'), *got;
    struct reply r;

    send_text(&p, bytes);
    r = read_reply(&p);
    assert_int_equal(r.status, status);
    got = header_of(&r, "X-Correlation-Id");
    assert_non_null(got);
    if (strncmp(got, want, star ? (size_t)(star - want) : strlen(want) + 1) != 0)
        fail_msg("%.60s: the id is %s, not %s", bytes, got, want);
    assert_string_equal(header_of(&r, "x-request-id"), header_of(&r, "X-Correlation-Id"));
    buf_release(&r.body);
    close_peer(&p);
}

static void every_reply_has_the_correlation_id_of_its_request(void **state)
{
    struct world *w =
        world_open((struct http_opt){ .max_body_bytes = 10, .max_header_bytes = 300 });
    char longest[65], text[400];

    (void)state;
    expect_id(w, "GET /echo HTTP/1.1\r\n" HOST "\r\n", 200, "req-*");
    expect_id(w, "GET /echo HTTP/1.1\r\n" HOST "X-Correlation-Id: a.b:C-1\r\n\r\n", 200, "a.b:C-1");
    expect_id(w, "GET /pieces HTTP/1.1\r\n" HOST "X-Request-Id: r\r\n\r\n", 200, "r");
    expect_id(w, "GET /echo HTTP/1.1\r\n" HOST "X-Correlation-Id: <b>\r\nx-request-id: r\r\n\r\n",
              200, "r");
    memset(longest, 'x', 64);
    longest[64] = 0;
    snprintf(text, sizeof text, "GET /echo HTTP/1.1\r\n" HOST "X-Correlation-Id: %s\r\n\r\n",
             longest);
    expect_id(w, text, 200, longest);
    snprintf(text, sizeof text, "GET /echo HTTP/1.1\r\n" HOST "X-Correlation-Id: %sx\r\n\r\n",
             longest);
    expect_id(w, text, 200, "req-*");
    /* Refused by the HTTP layer, before and after the header came. */
    expect_id(w, "GET /%zz HTTP/1.1\r\nX-Correlation-Id: early\r\n", 400, "req-*");
    expect_id(w, "GET / HTTP/1.1\r\nX-Correlation-Id: late\r\n\r\n", 400, "late"); /* no Host */
    expect_id(w, "POST / HTTP/1.1\r\n" HOST "X-Correlation-Id: big\r\nContent-Length: 11\r\n\r\n",
              413, "big");
    snprintf(text, sizeof text, "GET / HTTP/1.1\r\nX-Correlation-Id: wide\r\nX: %0300d\r\n", 0);
    expect_id(w, text, 431, "wide");
    world_close(w);
    w = world_open((struct http_opt){ .header_ms = 2000 });
    expect_id(w, "GET / HTTP/1.1\r\nX-Correlation-Id: slow\r\n", 408, "slow");
    world_close(w);
}

/* ---- accepted requests ---- */

static void a_request_has_method_path_query_and_body(void **state)
{
    struct world *w = world_open((struct http_opt){ 0 });
    struct peer p = connect_peer(w);
    struct reply r;

    (void)state;
    send_text(&p,
              "\r\nGET /echo/a%20b%2Fc?x=%20y&z HTTP/1.1\r\nhOST:\t a \t\r\nX: \x80\xff\r\n\r\n");
    expect_reply(&p, 200, "GET|/echo/a b/c|x=%20y&z|");
    send_text(&p, "GET http://some.where:80/echo?q HTTP/1.1\r\n" HOST "\r\n");
    expect_reply(&p, 200, "GET|/echo|q|");
    send_text(&p, "OPTIONS * HTTP/1.1\r\n" HOST "\r\n");
    expect_reply(&p, 200, "OPTIONS|*||");
    send_text(&p,
              "PATCH /echo HTTP/1.1\r\n" HOST "Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi");
    expect_reply(&p, 200, "PATCH|/echo||hi");
    send_text(&p, "POST /echo HTTP/1.1\r\n" HOST "\r\n"); /* without a length there is no body */
    r = read_reply(&p);
    assert_string_equal(buf_cstr(&r.body), "POST|/echo||");
    assert_memory_equal(header_of(&r, "X-Peer"), "127.0.0.1:", 10);
    assert_null(header_of(&r, "X-Injected"));
    assert_non_null(header_of(&r, "Date"));
    assert_null(header_of(&r, "Connection"));
    buf_release(&r.body);
    assert_int_equal(read_stats(w).reused, 4);
    close_peer(&p);
    world_close(w);
}

static void chunks_may_be_split_anywhere(void **state)
{
    static const char all[] =
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n"
        "5\r\nhello\r\n007;ext=\"a\"\r\n, world\r\n0\r\nTrailer: dropped\r\n\r\n";
    struct world *w = world_open((struct http_opt){ 0 });
    struct peer p = connect_peer(w);
    int one = 1;

    (void)state;
    setsockopt(p.fd, IPPROTO_TCP, 1 /* TCP_NODELAY */, &one, sizeof one);
    for (size_t cut = 0; cut < sizeof all; cut++) {
        assert_true(send_bytes(&p, all, cut));
        usleep(500);
        assert_true(send_bytes(&p, all + cut, sizeof all - 1 - cut));
        expect_reply(&p, 200, "POST|/echo||hello, world");
    }
    for (size_t i = 0; i < sizeof all - 1; i++) {
        send_bytes(&p, all + i, 1);
        usleep(200);
    }
    expect_reply(&p, 200, "POST|/echo||hello, world");
    close_peer(&p);
    world_close(w);
}

static void a_body_is_requested_with_100_continue(void **state)
{
    struct world *w = world_open((struct http_opt){ 0 });
    struct peer p = connect_peer(w);
    struct reply r;

    (void)state;
    send_text(&p,
              "POST /echo HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    r = read_reply(&p);
    assert_int_equal(r.status, 100);
    send_text(&p, "hi");
    expect_reply(&p, 200, "POST|/echo||hi");
    send_text(&p, "GET /echo HTTP/1.1\r\n" HOST
                  "Expect: 100-continue\r\n\r\n"); /* no body: nothing to wait for */
    expect_reply(&p, 200, "GET|/echo||");
    close_peer(&p);
    world_close(w);
}

static void keep_alive_follows_the_connection_header(void **state)
{
    struct world *w = world_open((struct http_opt){ 0 });
    struct peer p = connect_peer(w);
    struct reply r;

    (void)state;
    send_text(&p, "GET /echo HTTP/1.1\r\n" HOST "Connection: foo, Close\r\n\r\n");
    r = read_reply(&p);
    assert_string_equal(header_of(&r, "Connection"), "close");
    assert_true(is_closed_by_server(&p));
    buf_release(&r.body);
    close_peer(&p);
    p = connect_peer(w);
    send_text(&p, "GET /echo HTTP/1.0\r\n\r\n");
    expect_reply(&p, 200, "GET|/echo||");
    assert_true(is_closed_by_server(&p));
    close_peer(&p);
    p = connect_peer(w);
    for (int i = 0; i < 3; i++) {
        send_text(&p, "GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        r = read_reply(&p);
        assert_string_equal(header_of(&r, "Connection"), "keep-alive");
        buf_release(&r.body);
    }
    close_peer(&p);
    world_close(w);
}

static void three_requests_in_one_write_are_answered_in_order(void **state)
{
    struct world *w = world_open((struct http_opt){ 0 });
    struct peer p = connect_peer(w);

    (void)state;
    send_text(&p, "POST /echo?1 HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\none"
                  "GET /pieces HTTP/1.1\r\n" HOST "\r\n"
                  "POST /echo?3 HTTP/1.1\r\n" HOST
                  "Transfer-Encoding: chunked\r\n\r\n5\r\nthree\r\n0\r\n\r\n");
    expect_reply(&p, 200, "POST|/echo|1|one");
    expect_reply(&p, 200, "data: {\"a\":1}\n\nevent: note\ndata: {\"b\":2}\n\n: ping\n\n");
    expect_reply(&p, 200, "POST|/echo|3|three");
    send_text(&p, "GET /echo?4 HTTP/1.1\r\n" HOST
                  "Connection: close\r\n\r\nGET /echo?5 HTTP/1.1\r\n" HOST "\r\n");
    expect_reply(&p, 200, "GET|/echo|4|");
    assert_true(is_closed_by_server(&p)); /* requests after the last one are not answered */
    close_peer(&p);
    world_close(w);
}

static void a_client_that_shut_down_its_side_gets_its_replies(void **state)
{
    struct world *w = world_open((struct http_opt){ 0 });
    struct peer p = connect_peer(w);
    struct reply r;

    (void)state;
    send_text(&p, "GET /echo?1 HTTP/1.1\r\n" HOST "\r\nGET /big HTTP/1.1\r\n" HOST
                  "\r\nGET /echo?3 HTTP/1.1\r\n" HOST "\r\n");
    shutdown(p.fd, SHUT_WR);
    expect_reply(&p, 200, "GET|/echo|1|");
    r = read_reply(&p);
    assert_int_equal(r.body.n, BIG_BYTES);
    buf_release(&r.body);
    expect_reply(&p, 200, "GET|/echo|3|");
    assert_true(is_closed_by_server(&p));
    close_peer(&p);
    world_close(w);
}

static void a_reply_to_head_has_no_body(void **state)
{
    struct world *w = world_open((struct http_opt){ 0 });
    struct peer p = connect_peer(w);
    struct reply r;

    (void)state;
    send_text(&p, "HEAD /echo HTTP/1.1\r\n" HOST "\r\n");
    r = read_reply_to(&p, true);
    assert_int_equal(r.status, 200);
    assert_string_equal(header_of(&r, "Content-Length"), "12");
    send_text(&p, "HEAD /pieces HTTP/1.1\r\n" HOST "\r\n");
    r = read_reply_to(&p, true);
    assert_int_equal(r.status, 200);
    send_text(&p, "GET /echo HTTP/1.1\r\n" HOST "\r\n"); /* no byte of a body was sent before */
    expect_reply(&p, 200, "GET|/echo||");
    close_peer(&p);
    world_close(w);
}

static void a_stream_is_chunked_or_ends_with_the_connection(void **state)
{
    static const char text[] = "data: {\"a\":1}\n\nevent: note\ndata: {\"b\":2}\n\n: ping\n\n";
    struct world *w = world_open((struct http_opt){ 0 });
    struct peer p = connect_peer(w);
    struct reply r;

    (void)state;
    send_text(&p, "GET /pieces HTTP/1.1\r\n" HOST "\r\n");
    r = read_reply(&p);
    assert_string_equal(header_of(&r, "Transfer-Encoding"), "chunked");
    assert_memory_equal(header_of(&r, "Content-Type"), "text/event-stream", 17);
    assert_string_equal(header_of(&r, "Cache-Control"), "no-cache");
    assert_string_equal(buf_cstr(&r.body), text);
    buf_release(&r.body);
    close_peer(&p);
    p = connect_peer(w);
    send_text(&p, "GET /pieces HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    r = read_reply(&p);
    assert_null(header_of(&r, "Transfer-Encoding"));
    assert_string_equal(header_of(&r, "Connection"), "close");
    assert_string_equal(buf_cstr(&r.body), text);
    buf_release(&r.body);
    close_peer(&p);
    world_close(w);
}

static void a_query_is_a_list_of_values(void **state)
{
    struct str q = STR("a=1&ab=2&a=&=x&a=%41+b%2g&&a=%00&a"), v;
    char text[8];

    (void)state;
    assert_true(query_find(q, "ab", &v) && query_is(v, "2"));
    assert_false(query_find(q, "b", &v) || query_find(STR(""), "a", &v));
    assert_true(query_next(&q, "a", &v) && query_decode(v, text, sizeof text));
    assert_string_equal(text, "1");
    assert_true(query_next(&q, "a", &v) && query_decode(v, text, sizeof text));
    assert_string_equal(text, "");
    assert_true(query_next(&q, "a", &v) && query_decode(v, text, sizeof text));
    assert_string_equal(text, "A b%2g");
    assert_true(query_is(v, "A b%2g") && !query_is(v, "A b%2") && !query_is(v, "A b%2gg"));
    assert_false(query_decode(v, text, 6)); /* too long */
    assert_string_equal(text, "A b%2");
    assert_true(query_next(&q, "a", &v));
    assert_false(query_decode(v, text, sizeof text)); /* NUL */
    assert_false(query_next(&q, "a", &v));
}

/* ---- trace ids ---- */

static void trace_ids_are_kept_or_made(void **state)
{
    static const char *const wrong[] = {
        "",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",      /* no flags */
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",   /* upper case */
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",   /* no trace */
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",   /* no span */
        "00-0af7651916cd43dd8448eb211c80319-cb7ad6b7169203331-01",   /* a dash in another place */
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n", /* a line feed */
    };
    const char *right = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    char a[TRACEPARENT_BYTES], b[TRACEPARENT_BYTES];
    struct rng rng;
    (void)state;

    rng_seed(&rng, 7);
    traceparent_take(a, str_c(right), &rng);
    assert_string_equal(a, right);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(traceparent_is_valid(str_c(wrong[i])));
        traceparent_take(a, str_c(wrong[i]), &rng);
        traceparent_take(b, str_c(wrong[i]), &rng);
        assert_true(traceparent_is_valid(str_c(a)));
        assert_string_not_equal(a, b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trace_ids_are_kept_or_made),
        cmocka_unit_test(malformed_requests_get_400),
        cmocka_unit_test(malformed_chunks_get_400),
        cmocka_unit_test(unsupported_features_get_their_status),
        cmocka_unit_test(long_lines_and_headers_get_414_and_431),
        cmocka_unit_test(a_long_body_gets_413_before_it_is_sent),
        cmocka_unit_test(a_client_that_sends_64_mib_first_still_reads_its_413),
        cmocka_unit_test(chunks_are_summed_for_413),
        cmocka_unit_test(slow_headers_and_slow_bodies_get_408),
        cmocka_unit_test(an_idle_connection_is_closed_without_a_reply),
        cmocka_unit_test(every_reply_has_the_correlation_id_of_its_request),
        cmocka_unit_test(a_request_has_method_path_query_and_body),
        cmocka_unit_test(a_query_is_a_list_of_values),
        cmocka_unit_test(chunks_may_be_split_anywhere),
        cmocka_unit_test(a_body_is_requested_with_100_continue),
        cmocka_unit_test(keep_alive_follows_the_connection_header),
        cmocka_unit_test(three_requests_in_one_write_are_answered_in_order),
        cmocka_unit_test(a_client_that_shut_down_its_side_gets_its_replies),
        cmocka_unit_test(a_reply_to_head_has_no_body),
        cmocka_unit_test(a_stream_is_chunked_or_ends_with_the_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
