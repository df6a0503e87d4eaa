/* Requests while a request thread has them, or while they wait for one (api/prepare.c): leaving,
 * cancelling, deadlines, closing; and small requests beside large ones.
 *
 * A large body keeps its thread busy for a good while, and large ones are read one after the other:
 * of several that were sent, the last ones wait. */
#include "api_world.h"

#include <time.h>

enum { VALUES = 400000, WAITING = 4 };

static char *large_body; /* objects, which take the longest per byte, and no prompt */

static int setup(void **state)
{
    struct buf b = { 0 };

    (void)state;
    log_set_level(LOG_ERROR);
    buf_puts(&b, "{\"x\":[{}");
    for (int i = 1; i < VALUES; i++) buf_puts(&b, ",{}");
    buf_puts(&b, "]}");
    buf_cstr(&b);
    large_body = b.p;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    mem_free(large_body);
    return 0;
}

static int open_server(void **state)
{
    (void)state;
    w = world_open((struct setup){ .engine = { .n_ctx = 512, .max_seqs = 2 } });
    return 0;
}

static int close_server(void **state)
{
    (void)state;
    world_close(w);
    return 0;
}

static int send_large(const char *headers)
{
    return send_request(w, "/v1/completions", headers, large_body);
}

/* Large requests "busy-0", "busy-1", ...: the first is read, and the others wait. */
static void keep_thread_busy(int fds[WAITING])
{
    char head[64], id[32];

    for (int i = 0; i < WAITING; i++) {
        snprintf(id, sizeof id, "busy-%d", i);
        snprintf(head, sizeof head, "X-Correlation-Id: %s\r\n", id);
        fds[i] = send_large(head);
    }
    wait_state(id, "preparing");
}

static void expect_answer(int fd, int status, const char *code)
{
    struct answer a = read_answer(fd);

    assert_int_equal(a.status, status);
    assert_string_equal(text_at(a.json, "error.code"), code);
    answer_release(&a);
}

static void expect_busy_answers(int fds[WAITING])
{
    for (int i = 0; i < WAITING; i++) expect_answer(fds[i], 400, "invalid_request");
}

static void a_client_that_leaves_ends_its_request(void **state)
{
    int fds[WAITING], fd;
    struct ended x;

    (void)state;
    keep_thread_busy(fds);
    fd = send_large("X-Correlation-Id: left\r\n");
    wait_state("left", "preparing");
    close(fd);
    x = wait_ended(w, "left");
    assert_int_equal(x.status, 499);
    assert_string_equal(x.gone, "closed");
    assert_string_equal(x.finish, "");
    expect_busy_answers(fds);
}

static void a_waiting_request_is_cancelled_by_its_id(void **state)
{
    int fds[WAITING], fd;
    struct answer a;

    (void)state;
    keep_thread_busy(fds);
    fd = send_large("X-Correlation-Id: unwanted\r\n");
    wait_state("unwanted", "preparing");
    a = send_and_read("/v1/requests/unwanted/cancel", "", "");
    assert_int_equal(a.status, 200);
    assert_true(json_is_true(json_at(a.json, "cancelled")));
    answer_release(&a);
    expect_answer(fd, 499, "cancelled");
    expect_busy_answers(fds);
}

static void a_deadline_passes_while_a_request_waits(void **state)
{
    struct timespec now;
    int fds[WAITING], fd;
    char head[64];

    (void)state;
    keep_thread_busy(fds);
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(head, sizeof head, "X-Deadline: %lld\r\n",
             (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000 + 5);
    fd = send_large(head);
    expect_answer(fd, 504, "deadline_exceeded");
    expect_busy_answers(fds);
}

static void small_requests_do_not_wait_for_large_ones(void **state)
{
    int fds[WAITING];
    struct ended x;

    (void)state;
    keep_thread_busy(fds);
    for (int i = 0; i < 5; i++) {
        struct answer a = send_and_read("/tokenize", "", "{\"content\":\"Once\"}");
        assert_int_equal(a.status, 200);
        answer_release(&a);
    }
    assert_false(find_ended(w, "busy-3", &x)); /* the last of those that were sent before */
    expect_busy_answers(fds);
}

static void closing_answers_the_requests_that_threads_have(void **state)
{
    int fds[WAITING];

    keep_thread_busy(fds);
    world_close(w);
    open_server(state);
    for (int i = 0; i < WAITING; i++) {
        struct answer a = read_answer(fds[i]);
        assert_true(a.status == 503 || a.status == 400);
        if (i == WAITING - 1) assert_string_equal(text_at(a.json, "error.code"), "shutting_down");
        answer_release(&a);
    }
}

static void a_full_queue_is_an_error_of_the_newest(void **state)
{
    int fds[WAITING + 4], n_full = 0;

    (void)state;
    world_close(w);
    w = world_open(
        (struct setup){ .engine = { .n_ctx = 512, .max_seqs = 2 }, .api = { .request_queue = 2 } });
    for (int i = 0; i < WAITING + 4; i++) fds[i] = send_large("");
    for (int i = 0; i < WAITING + 4; i++) {
        struct answer a = read_answer(fds[i]);
        if (i == 0) assert_int_equal(a.status, 400);
        if (a.status == 429) {
            assert_string_equal(text_at(a.json, "error.code"), "queue_full");
            assert_non_null(strstr(a.head.p, "Retry-After: 1"));
            n_full++;
        }
        answer_release(&a);
    }
    assert_true(n_full > 0);
}

/* Large vectors are written on a request thread, small ones on the loop. */
static void embeddings_are_the_same_in_large_and_small_answers(void **state)
{
    struct answer one, many;
    struct buf body = { 0 };

    (void)state;
    one = send_and_read("/v1/embeddings", "", "{\"input\":\"a bird\"}");
    buf_puts(&body, "{\"input\":[\"a bird\"");
    for (int i = 0; i < 63; i++) buf_printf(&body, ",\"bird %d\"", i);
    buf_puts(&body, "]}");
    many = send_and_read("/v1/embeddings", "", buf_cstr(&body));
    assert_int_equal(one.status, 200);
    assert_int_equal(many.status, 200);
    assert_int_equal(json_array_size(json_at(many.json, "data")), 64);
    assert_true(
        json_equal(json_at(one.json, "data.0.embedding"), json_at(many.json, "data.0.embedding")));
    buf_release(&body);
    answer_release(&one);
    answer_release(&many);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, open_server, close_server)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_client_that_leaves_ends_its_request),
        TEST(a_waiting_request_is_cancelled_by_its_id),
        TEST(a_deadline_passes_while_a_request_waits),
        TEST(small_requests_do_not_wait_for_large_ones),
        TEST(closing_answers_the_requests_that_threads_have),
        TEST(a_full_queue_is_an_error_of_the_newest),
        TEST(embeddings_are_the_same_in_large_and_small_answers),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
