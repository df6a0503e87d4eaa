/* The limit of connections: idle ones are closed for new ones, others get 503, health checks are
 * served, and running out of descriptors ends nothing. */
#include "http_world.h"

#include <sys/resource.h>

#define HOST "Host: a\r\n"
#define ECHO "GET /echo HTTP/1.1\r\n" HOST "\r\n"
#define HOLD "GET /hold HTTP/1.1\r\n" HOST "\r\n"
#define VITAL "GET /vital HTTP/1.1\r\n" HOST "\r\n"

static bool is_vital(void *arg, const struct http_req *q)
{
    (void)arg;
    return str_is(http_path(q), "/vital");
}

static struct world *open_world(int max_conns)
{
    return world_open((struct http_opt){ .max_conns = max_conns, .vital = is_vital });
}

static void end_held(struct world *w, void *arg)
{
    struct held *h = &w->held[*(int *)arg];

    http_reply(h->q, 200, "text/plain", "late", 4);
    h->q = NULL;
}

/* A connection whose request is held by the handler. */
static struct peer hold(struct world *w)
{
    struct peer p = connect_peer(w);
    int before;

    world_lock(w);
    before = w->n_held;
    world_unlock(w);
    send_text(&p, HOLD);
    WAIT_FOR(w, w->n_held == before + 1);
    return p;
}

static struct peer ask_on_new(struct world *w, const char *text)
{
    struct peer p = connect_peer(w);

    send_text(&p, text);
    return p;
}

/* An idle keep-alive connection. */
static struct peer keep(struct world *w)
{
    struct peer p = ask_on_new(w, ECHO);

    expect_reply(&p, 200, NULL);
    return p;
}

/* The connection is refused and then closed. */
static void expect_full(struct peer *p, const char *id)
{
    struct reply r = read_reply(p);

    assert_int_equal(r.status, 503);
    assert_non_null(strstr(buf_cstr(&r.body), "\"code\":\"too_many_connections\""));
    assert_string_equal(header_of(&r, "Retry-After"), "1");
    assert_string_equal(header_of(&r, "Connection"), "close");
    assert_non_null(header_of(&r, "X-Correlation-Id"));
    if (id) assert_string_equal(header_of(&r, "X-Correlation-Id"), id);
    assert_true(is_closed_by_server(p));
    buf_release(&r.body);
    close_peer(p);
}

static void one_connection_too_many_gets_503(void **state)
{
    struct world *w = open_world(2);
    struct peer a = hold(w), b = hold(w), c;
    int first = 0;

    (void)state;
    c = ask_on_new(w, "GET /echo HTTP/1.1\r\n" HOST "X-Correlation-Id: third\r\n\r\n");
    expect_full(&c, "third");
    c = ask_on_new(w,
                   "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 9999999\r\n\r\n"); /* no body */
    expect_full(&c, NULL);
    c = connect_peer(w); /* sends nothing */
    expect_full(&c, NULL);
    c = ask_on_new(w, "GET /echo HT"); /* nor a whole request */
    expect_full(&c, NULL);
    assert_int_equal(read_stats(w).refused, 4);
    run_on_loop(w, end_held, &first);
    expect_reply(&a, 200, "late");
    c = ask_on_new(w, ECHO);
    expect_reply(&c, 200, NULL); /* a is idle now, and was closed for c */
    assert_true(is_closed_by_server(&a));
    close_peer(&a);
    close_peer(&b);
    close_peer(&c);
    world_close(w);
}

static void the_longest_idle_connection_is_closed_for_a_new_one(void **state)
{
    struct world *w = open_world(3);
    struct peer a = keep(w), b = keep(w), c = keep(w), d, e;

    (void)state;
    send_text(&a, ECHO);
    expect_reply(&a, 200, NULL); /* the order is b, c, a now */
    d = keep(w);
    assert_true(is_closed_by_server(&b));
    e = keep(w);
    assert_true(is_closed_by_server(&c));
    send_text(&a, ECHO);
    expect_reply(&a, 200, NULL);
    send_text(&d, ECHO);
    expect_reply(&d, 200, NULL);
    assert_int_equal(read_stats(w).closed_idle, 2);
    assert_int_equal(read_stats(w).refused, 0);
    close_peer(&a);
    close_peer(&b);
    close_peer(&c);
    close_peer(&d);
    close_peer(&e);
    world_close(w);
}

static void a_connection_that_sends_a_request_is_not_closed(void **state)
{
    struct world *w = open_world(1);
    struct peer a = connect_peer(w), b;

    (void)state;
    send_text(&a, "GET /ec");
    for (int i = 0; i < 30000 && read_stats(w).conns < 1; i++) usleep(2000);
    usleep(50000); /* its bytes are read by then; if not, they are seen in the socket */
    b = ask_on_new(w, ECHO);
    expect_full(&b, NULL);
    send_text(&a, "ho HTTP/1.1\r\n" HOST "\r\n");
    expect_reply(&a, 200, NULL);
    close_peer(&a);
    world_close(w);
}

static void health_checks_are_served_above_the_limit(void **state)
{
    struct world *w = open_world(1);
    struct peer a = hold(w), p;
    struct reply r;

    (void)state;
    for (int i = 0; i < 3; i++) {
        p = ask_on_new(w, VITAL);
        r = read_reply(&p);
        assert_int_equal(r.status, 200);
        assert_string_equal(header_of(&r, "Connection"), "close");
        assert_true(is_closed_by_server(&p));
        buf_release(&r.body);
        close_peer(&p);
    }
    p = ask_on_new(w, "POST /vital HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhello");
    expect_full(&p, NULL);
    close_peer(&a);
    world_close(w);
}

/* Many clients send the text and stay; a health check is answered. */
static void expect_vital_beside(const char *text, bool is_answered)
{
    enum { OTHERS = 40 };
    struct world *w = open_world(1);
    struct peer a = hold(w), others[OTHERS], p;

    for (int i = 0; i < OTHERS; i++) {
        others[i] = connect_peer(w);
        send_bytes(&others[i], text, strlen(text));
        if (is_answered) expect_reply(&others[i], 503, NULL);
    }
    p = ask_on_new(w, VITAL);
    expect_reply(&p, 200, NULL);
    close_peer(&p);
    assert_true(read_stats(w).conns <= http_descriptors(1));
    for (int i = 0; i < OTHERS; i++) close_peer(&others[i]);
    close_peer(&a);
    world_close(w);
}

static void silent_and_slow_connections_do_not_keep_a_health_check_out(void **state)
{
    (void)state;
    expect_vital_beside("", false);
    expect_vital_beside("GET /echo HT", false);
}

static void refused_connections_that_stay_do_not_keep_a_health_check_out(void **state)
{
    (void)state;
    expect_vital_beside(ECHO, true);
}

/* Whether b, which came when a had the only slot, is served after a is gone. */
static bool is_served_after(struct world *w, int held)
{
    struct peer a = hold(w), b = connect_peer(w);
    struct reply r;
    bool served;

    run_on_loop(w, end_held, &held);
    expect_reply(&a, 200, "late");
    send_bytes(&b, ECHO, strlen(ECHO));
    r = read_reply(&b);
    served = r.status == 200;
    buf_release(&r.body);
    close_peer(&a);
    close_peer(&b);
    for (int i = 0; i < 30000 && read_stats(w).conns > 0; i++) usleep(2000);
    return served;
}

static void a_connection_above_the_limit_is_served_if_a_slot_is_free_by_then(void **state)
{
    struct world *w = open_world(1);
    int n = 0;

    (void)state;
    while (n < MAX_HELD - 1 && !is_served_after(w, n))
        n++; /* it has a second, which may be short */
    assert_true(n < MAX_HELD - 1);
    world_close(w);
}

/* No descriptor is left: an idle connection is closed, and the next ones are accepted. */
static void running_out_of_descriptors_ends_nothing(void **state)
{
    struct world *w = open_world(100);
    struct sockaddr_in to = { .sin_family = AF_INET,
                              .sin_port = htons((uint16_t)http_port(w->http)) };
    struct peer idle = keep(w), busy = hold(w), late = { .fd = socket(AF_INET, SOCK_STREAM, 0) };
    struct rlimit old, low;
    int next = dup(0), first = 0;

    (void)state;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    low = (struct rlimit){ (rlim_t)next, old.rlim_max };
    close(next);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    assert_int_equal(connect(late.fd, (struct sockaddr *)&to, sizeof to), 0);
    set_timeouts(late.fd);
    send_text(&late, ECHO);
    expect_reply(&late, 200, NULL);
    assert_true(is_closed_by_server(&idle));
    run_on_loop(w, end_held, &first);
    expect_reply(&busy, 200, "late");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    close_peer(&idle);
    close_peer(&busy);
    close_peer(&late);
    world_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_connection_too_many_gets_503),
        cmocka_unit_test(the_longest_idle_connection_is_closed_for_a_new_one),
        cmocka_unit_test(a_connection_that_sends_a_request_is_not_closed),
        cmocka_unit_test(health_checks_are_served_above_the_limit),
        cmocka_unit_test(silent_and_slow_connections_do_not_keep_a_health_check_out),
        cmocka_unit_test(refused_connections_that_stay_do_not_keep_a_health_check_out),
        cmocka_unit_test(a_connection_above_the_limit_is_served_if_a_slot_is_free_by_then),
        cmocka_unit_test(running_out_of_descriptors_ends_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
