/* Streamed request bodies: admit gives the request a sink, which gets every byte once and is closed
 * once, whatever becomes of the connection. */
#include "http_world.h"

struct sink {
    struct http_sink sink; /* first */
    struct buf got;
    int n_closed;
};

static struct sink the_sink;
static int n_admitted;

static void sink_add(struct http_sink *s, const char *p, size_t n)
{
    world_lock(the_world);
    buf_add(&((struct sink *)s)->got, p, n);
    world_unlock(the_world);
}

static void sink_close(struct http_sink *s)
{
    world_lock(the_world);
    ((struct sink *)s)->n_closed++;
    world_unlock(the_world);
}

static bool streams(void *arg, const struct http_req *q)
{
    (void)arg;
    return str_starts(http_path(q), STR("/up"));
}

/* /up/no is refused; other paths have bodies that are held. */
static enum http_admission admit(void *arg, struct http_req *q)
{
    (void)arg;
    if (!streams(NULL, q)) return HTTP_ADMIT;
    world_lock(the_world);
    n_admitted++;
    world_unlock(the_world);
    if (str_is(http_path(q), "/up/no")) {
        http_reply(q, 403, "text/plain", "no", 2);
        return HTTP_ANSWERED;
    }
    http_set_sink(q, &the_sink.sink);
    return HTTP_ADMIT;
}

static struct world *open_world(void)
{
    buf_release(&the_sink.got);
    the_sink = (struct sink){ .sink = { sink_add, sink_close } };
    n_admitted = 0;
    return world_open((struct http_opt){
        .admit = admit, .streams = streams, .max_body_bytes = 1000, .max_stream_bytes = 100000 });
}

#define POST(path, more) "POST " path " HTTP/1.1\r\nHost: a\r\n" more "\r\n"

static void a_body_goes_to_its_sink_however_it_is_split(void **state)
{
    struct world *w = open_world();
    struct peer p = connect_peer(w);
    const char *text = POST("/up", "Content-Length: 12\r\n") "hello, world";
    char big[5000];

    (void)state;
    for (const char *s = text; *s; s++) assert_true(send_bytes(&p, s, 1));
    expect_reply(&p, 200, "POST|/up||");
    WAIT_FOR(w, str_is(buf_str(&the_sink.got), "hello, world"));
    WAIT_FOR(w, the_sink.n_closed == 1);
    send_text(&p, text); /* the same connection goes on */
    expect_reply(&p, 200, "POST|/up||");
    send_text(&p, POST("/echo", "Content-Length: 2\r\n") "hi");
    expect_reply(&p, 200, "POST|/echo||hi");
    WAIT_FOR(w, the_sink.got.n == 24);
    /* more than a held body may have */
    memset(big, 'x', sizeof big);
    send_text(&p, POST("/up", "Content-Length: 5000\r\n"));
    assert_true(send_bytes(&p, big, sizeof big));
    expect_reply(&p, 200, "POST|/up||");
    WAIT_FOR(w, the_sink.got.n == 5024);
    WAIT_FOR(w, the_sink.n_closed == 3);
    WAIT_FOR(w, n_admitted == 3);
    close_peer(&p);
    world_close(w);
}

static void chunked_bodies_go_there_too(void **state)
{
    struct world *w = open_world();
    struct peer p = connect_peer(w);

    (void)state;
    send_text(&p, POST("/up",
                       "Transfer-Encoding: chunked\r\n") "5\r\nhello\r\n7\r\n, world\r\n0\r\n\r\n");
    expect_reply(&p, 200, "POST|/up||");
    WAIT_FOR(w, str_is(buf_str(&the_sink.got), "hello, world"));
    send_text(&p, POST("/up", "Expect: 100-continue\r\nContent-Length: 1\r\n"));
    expect_reply(&p, 100, "");
    send_text(&p, "!");
    expect_reply(&p, 200, "POST|/up||");
    WAIT_FOR(w, str_is(buf_str(&the_sink.got), "hello, world!"));
    close_peer(&p);
    world_close(w);
}

static void a_client_that_leaves_closes_the_sink(void **state)
{
    struct world *w = open_world();
    struct peer p = connect_peer(w);

    (void)state;
    send_text(&p, POST("/up", "Content-Length: 100\r\n") "half");
    WAIT_FOR(w, the_sink.got.n == 4);
    close_peer(&p);
    WAIT_FOR(w, the_sink.n_closed == 1);
    p = connect_peer(w);
    send_text(&p, POST("/up", "Content-Length: 100\r\n") "half");
    WAIT_FOR(w, the_sink.got.n == 8);
    reset_peer(&p);
    WAIT_FOR(w, the_sink.n_closed == 2);
    p = connect_peer(w);
    send_text(&p, POST("/up", "Content-Length: 100\r\n") "half");
    WAIT_FOR(w, the_sink.got.n == 12);
    world_close(w); /* with the connection open */
    assert_int_equal(the_sink.n_closed, 3);
    close_peer(&p);
}

static void a_refused_body_is_not_read(void **state)
{
    struct world *w = open_world();
    struct peer p = connect_peer(w);

    (void)state;
    send_text(&p, POST("/up/no", "Content-Length: 4\r\n") "half");
    expect_reply(&p, 403, "no");
    close_peer(&p);
    p = connect_peer(w);
    send_text(&p, POST("/up", "Content-Length: 100001\r\n"));
    expect_reply(&p, 413, NULL);
    close_peer(&p);
    p = connect_peer(w);
    send_text(&p, POST("/up", "Transfer-Encoding: chunked\r\n") "186a1\r\n");
    expect_reply(&p, 413, NULL);
    close_peer(&p);
    WAIT_FOR(w, the_sink.got.n == 0);
    world_close(w);
}

static void a_request_without_a_body_has_no_sink(void **state)
{
    struct world *w = open_world();
    struct peer p = connect_peer(w);

    (void)state;
    send_text(&p, POST("/up", "Content-Length: 0\r\n"));
    expect_reply(&p, 200, "POST|/up||");
    WAIT_FOR(w, n_admitted == 0);
    WAIT_FOR(w, the_sink.n_closed == 0);
    close_peer(&p);
    world_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_goes_to_its_sink_however_it_is_split),
        cmocka_unit_test(chunked_bodies_go_there_too),
        cmocka_unit_test(a_client_that_leaves_closes_the_sink),
        cmocka_unit_test(a_refused_body_is_not_read),
        cmocka_unit_test(a_request_without_a_body_has_no_sink),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
