/* Rate and concurrency limits per tenant (server/limit). Time is passed in by the test. Reads no
 * files. */
#include "support.h"

#include "server/limit.h"

#include <string.h>

#define SECOND 1000000000ull

static void a_burst_of_one_minute_is_allowed(void **state)
{
    struct limit *l;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(limit_open(&l, &e), OK);
    for (int i = 0; i < 60; i++) {
        assert_int_equal(limit_take(l, 3, 60, 0, SECOND, &e), OK);
        limit_give(l, 3);
    }
    assert_int_equal(limit_take(l, 3, 60, 0, SECOND, &e), E_RATE);
    assert_int_equal(e.retry_ms, 1000);
    assert_non_null(strstr(e.msg, "60 requests per minute"));
    assert_int_equal(limit_take(l, 3, 60, 0, 2 * SECOND, &e),
                     OK); /* one request per second is added */
    assert_int_equal(limit_take(l, 3, 60, 0, 2 * SECOND, &e), E_RATE);
    limit_close(l);
}

static void tenants_have_separate_limits(void **state)
{
    struct limit *l;
    struct err e = { 0 };

    (void)state;
    limit_open(&l, &e);
    assert_int_equal(limit_take(l, 0, 1, 1, SECOND, &e), OK);
    assert_int_equal(limit_take(l, 100, 1, 1, SECOND, &e), OK);
    assert_int_equal(limit_take(l, 0, 1, 0, SECOND, &e), E_RATE);
    assert_int_equal(limit_running(l, 0), 1);
    assert_int_equal(limit_running(l, 1), 0);
    assert_int_equal(limit_running(l, 5000), 0);
    limit_close(l);
}

static void running_requests_are_counted_until_they_end(void **state)
{
    struct limit *l;
    struct err e = { 0 };

    (void)state;
    limit_open(&l, &e);
    assert_int_equal(limit_take(l, 1, 0, 2, SECOND, &e), OK);
    assert_int_equal(limit_take(l, 1, 0, 2, SECOND, &e), OK);
    assert_int_equal(limit_take(l, 1, 0, 2, SECOND, &e), E_CONCURRENCY);
    assert_non_null(strstr(e.msg, "2 requests"));
    assert_true(e.retry_ms > 0);
    limit_give(l, 1);
    assert_int_equal(limit_take(l, 1, 0, 2, SECOND, &e), OK);
    limit_close(l);
}

static void a_refused_request_is_not_counted(void **state)
{
    struct limit *l;
    struct err e = { 0 };

    (void)state;
    limit_open(&l, &e);
    assert_int_equal(limit_take(l, 1, 2, 1, SECOND, &e), OK);
    for (int i = 0; i < 10; i++)
        assert_int_equal(limit_take(l, 1, 2, 1, SECOND, &e), E_CONCURRENCY);
    limit_give(l, 1);
    assert_int_equal(limit_take(l, 1, 2, 1, SECOND, &e),
                     OK); /* the second request of this minute */
    assert_int_equal(limit_running(l, 1), 1);
    limit_close(l);
}

static void limits_may_change_between_requests(void **state)
{
    struct limit *l;
    struct err e = { 0 };

    (void)state;
    limit_open(&l, &e);
    for (int i = 0; i < 100; i++) assert_int_equal(limit_take(l, 1, 0, 0, SECOND, &e), OK);
    assert_int_equal(limit_take(l, 1, 0, 50, SECOND, &e), E_CONCURRENCY);
    assert_int_equal(limit_take(l, 1, 1, 0, SECOND, &e), OK); /* a fresh bucket is full */
    assert_int_equal(limit_take(l, 1, 1, 0, SECOND, &e), E_RATE);
    assert_int_equal(limit_take(l, 1, 0, 0, SECOND, &e), OK);
    limit_close(l);
}

/* Jobs wait, and leave room to live requests where the limit is above one. */
static void jobs_leave_room_to_live_requests(void **state)
{
    struct limit *l;
    struct err e = { 0 };

    (void)state;
    limit_open(&l, &e);
    for (int n = 0; n < 2; n++) {
        assert_true(limit_has_room(l, 1, 0, 3, 1, SECOND));
        limit_take_room(l, 1, 0);
    }
    assert_false(limit_has_room(l, 1, 0, 3, 1, SECOND));
    assert_true(limit_has_room(l, 1, 0, 3, 0, SECOND));
    assert_int_equal(limit_take(l, 1, 0, 3, SECOND, &e), OK);
    assert_int_equal(limit_take(l, 1, 0, 3, SECOND, &e), E_CONCURRENCY);
    assert_true(limit_has_room(l, 2, 0, 1, 1, SECOND)); /* there is one place only */
    limit_take_room(l, 2, 0);
    assert_false(limit_has_room(l, 2, 0, 1, 1, SECOND));
    limit_give(l, 2);

    for (int n = 0; n < 2; n++) {
        assert_true(limit_has_room(l, 3, 3, 0, 1, SECOND));
        limit_take_room(l, 3, 3);
    }
    assert_false(limit_has_room(l, 3, 3, 0, 1, SECOND));
    assert_true(limit_has_room(l, 3, -1, 0, 1, SECOND)); /* it was counted before */
    limit_take_room(l, 3, -1);
    assert_int_equal(limit_running(l, 3), 3);
    assert_int_equal(limit_take(l, 3, 3, 0, SECOND, &e), OK);
    assert_int_equal(limit_take(l, 3, 3, 0, SECOND, &e), E_RATE);
    assert_true(limit_has_room(l, 4, 1, 0, 1, SECOND)); /* one request a minute */
    limit_close(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_burst_of_one_minute_is_allowed),
        cmocka_unit_test(tenants_have_separate_limits),
        cmocka_unit_test(running_requests_are_counted_until_they_end),
        cmocka_unit_test(a_refused_request_is_not_counted),
        cmocka_unit_test(jobs_leave_room_to_live_requests),
        cmocka_unit_test(limits_may_change_between_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
