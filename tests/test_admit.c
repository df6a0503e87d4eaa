/* Admission control: the counts of requests, queued tokens and KV blocks, and the errors of
 * refused requests.
 *
 * Limits and requests are made by the test; there is no engine. Reads no files. */
#include "support.h"

#include "engine/admit.h"

#include <string.h>

static struct admit make_admit(int max_requests, int64_t max_tokens, double overcommit)
{
    struct admit a;
    admit_init(&a, (struct admit_limits){ .n_ctx = 1000,
                                          .block = 16,
                                          .n_blocks = 100,
                                          .max_seqs = 4,
                                          .max_requests = max_requests,
                                          .max_queue_tokens = max_tokens,
                                          .kv_overcommit = overcommit });
    return a;
}

static struct request *make_request(int n_prompt, int max_tokens)
{
    struct request *r = request_open();
    for (int i = 0; i < n_prompt; i++) ids_push(&r->prompt, 1);
    r->max_tokens = max_tokens;
    return r;
}

static void assert_empty(const struct admit *a)
{
    assert_int_equal(a->n_requests, 0);
    assert_int_equal(a->n_tokens, 0);
    assert_int_equal(a->n_blocks, 0);
}

static void counts_are_released_exactly_once_when_a_request_ends(void **state)
{
    struct admit a = make_admit(8, 10000, 4);
    struct err e = { 0 };
    (void)state;
    for (int way = 0; way < 4; way++) {
        struct request *r = make_request(100, 50);
        assert_int_equal(admit_request(&a, r, 1, &e), OK);
        assert_int_equal(a.n_requests, 1);
        assert_int_equal(a.n_tokens, 100);
        assert_int_equal(a.n_blocks, 10); /* 150 tokens */
        if (way & 1) admit_begun(&a, r);  /* ends while running, else while waiting */
        if (way & 1) assert_int_equal(a.n_tokens, 0);
        admit_release(&a, r);
        if (way & 2) admit_release(&a, r); /* a second release has no effect */
        assert_empty(&a);
        request_unref(r);
    }
}

static void a_refused_request_is_not_counted_and_the_error_has_the_numbers(void **state)
{
    struct admit a = make_admit(2, 250, 0.2);
    struct request *one = make_request(100, 10), *two = make_request(100, 10),
                   *long_one = make_request(1000, 1), *big = make_request(200, 200);
    struct err e = { 0 };
    (void)state;
    assert_int_equal(admit_request(&a, long_one, 1, &e), E_CONTEXT);
    assert_non_null(strstr(e.msg, "1000"));
    assert_int_equal(e.retry_ms, 0); /* waiting does not help */
    assert_int_equal(admit_request(&a, one, 1, &e), OK);
    assert_int_equal(admit_request(&a, big, 1, &e), E_QUEUE_FULL); /* 300 tokens would be queued */
    assert_non_null(strstr(e.msg, "250"));
    assert_true(e.retry_ms >= 1000);
    admit_begun(&a, one);
    assert_int_equal(admit_request(&a, big, 1, &e), E_MEMORY); /* 7 and 25 blocks of 20 */
    assert_non_null(strstr(e.msg, "20"));
    assert_int_equal(admit_request(&a, two, 1, &e), OK);
    assert_int_equal(admit_request(&a, two, 1, &e), E_QUEUE_FULL); /* two requests are admitted */
    assert_int_equal(a.n_requests, 2);
    admit_release(&a, one), admit_release(&a, two);
    admit_release(&a, big), admit_release(&a, long_one); /* were never admitted: no effect */
    assert_empty(&a);
    request_unref(one), request_unref(two), request_unref(long_one), request_unref(big);
}

static void a_single_request_is_never_refused_for_lack_of_space(void **state)
{
    struct admit a = make_admit(8, 10, 0.01);
    struct request *r = make_request(900, 90);
    struct err e = { 0 };
    (void)state;
    assert_int_equal(admit_request(&a, r, 1, &e), OK);
    admit_release(&a, r);
    request_unref(r);
}

static void a_request_that_cannot_meet_its_deadline_is_refused_at_once(void **state)
{
    struct admit a = make_admit(8, 10000, 4);
    struct request *r = make_request(100, 10);
    struct err e = { 0 };
    (void)state;
    atomic_store(&a.prefill_ns, 1000000); /* 100 ms for the prompt */
    r->deadline_ns = 50;
    assert_int_equal(admit_request(&a, r, 100, &e), E_DEADLINE); /* the deadline has passed */
    atomic_store(&a.prefill_ns, 1);
    r->deadline_ns = 1000 + 9999999; /* nearer than 10 ms */
    assert_int_equal(admit_request(&a, r, 1000, &e), E_DEADLINE);
    assert_non_null(strstr(e.msg, "10 ms"));
    r->deadline_ns = 1000 + 10000000;
    assert_int_equal(admit_request(&a, r, 1000, &e), OK);
    admit_release(&a, r);
    atomic_store(&a.prefill_ns, 1000000);
    r->deadline_ns = 1000 + 50000000;
    assert_int_equal(admit_request(&a, r, 1000, &e), E_DEADLINE);
    assert_non_null(strstr(e.msg, "50 ms"));
    assert_non_null(strstr(e.msg, "100 ms"));
    r->deadline_ns = 1000 + 500000000;
    assert_int_equal(admit_request(&a, r, 1000, &e), OK);
    admit_release(&a, r);
    assert_empty(&a);
    request_unref(r);
}

static void a_call_with_many_prompts_counts_as_one_request(void **state)
{
    struct admit a = make_admit(2, 10000, 4);
    struct request *parts[3], *other = make_request(10, 10);
    struct ticket t = { 0 }, second = { 0 }, third = { 0 };
    struct ids prompts[3] = { 0 };
    struct err e = { 0 };

    (void)state;
    a.lim.max_further = 1;
    for (int i = 0; i < 3; i++) {
        parts[i] = make_request(100, 1);
        prompts[i] = parts[i]->prompt;
        parts[i]->ticket = &t;
        parts[i]->is_further = i > 0;
    }
    assert_int_equal(admit_ticket(&a, &t, prompts, 3, 0, 5, &e), OK);
    assert_int_equal(a.n_requests, 1);
    assert_int_equal(a.n_tokens, 300);
    assert_int_equal(t.arrival_ns, 5);
    assert_int_equal(admit_ticket(&a, &second, prompts, 3, 0, 6, &e), OK);
    assert_int_equal(admit_ticket(&a, &third, prompts, 3, 0, 7, &e), E_QUEUE_FULL);
    assert_int_equal(admit_request(&a, other, 7, &e), E_QUEUE_FULL);
    /* What was admitted is not refused later, also not while draining. */
    atomic_store(&a.closed, 1);
    assert_int_equal(admit_request(&a, parts[0], 7, &e), OK);
    assert_int_equal(admit_request(&a, parts[1], 7, &e), OK);
    assert_int_equal(admit_request(&a, parts[2], 7, &e), E_QUEUE_FULL); /* not beside the others */
    assert_int_equal(a.n_requests, 2);
    assert_int_equal(a.n_tokens, 600);
    admit_begun(&a, parts[0]);
    admit_release(&a, parts[0]), admit_release(&a, parts[1]);
    assert_int_equal(a.n_tokens, 400);
    admit_give_back(&a, &second);
    admit_give_back(&a, &t), admit_give_back(&a, &t); /* the third was not submitted */
    admit_give_back(&a, &third);
    assert_empty(&a);
    for (int i = 0; i < 3; i++) request_unref(parts[i]);
    request_unref(other);
}

/* A list that is longer than the queue is not refused whenever something waits. */
static void a_long_list_takes_half_of_the_queue_at_most(void **state)
{
    struct admit a = make_admit(8, 400, 100);
    struct request *r = make_request(100, 1);
    struct ids prompts[50];
    struct ticket t = { 0 };
    struct err e = { 0 };

    (void)state;
    for (int i = 0; i < 50; i++) prompts[i] = r->prompt;
    assert_int_equal(admit_request(&a, r, 1, &e), OK);
    assert_int_equal(admit_ticket(&a, &t, prompts, 50, 0, 1, &e), OK);
    assert_int_equal(a.n_tokens, 300);
    admit_give_back(&a, &t);
    admit_release(&a, r);
    assert_empty(&a);
    request_unref(r);
}

static void no_request_is_admitted_while_draining(void **state)
{
    struct admit a = make_admit(8, 10000, 4);
    struct request *r = make_request(10, 10);
    struct err e = { 0 };
    (void)state;
    atomic_store(&a.closed, 1);
    assert_int_equal(admit_request(&a, r, 1, &e), E_SHUTDOWN);
    assert_empty(&a);
    request_unref(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_are_released_exactly_once_when_a_request_ends),
        cmocka_unit_test(a_refused_request_is_not_counted_and_the_error_has_the_numbers),
        cmocka_unit_test(a_single_request_is_never_refused_for_lack_of_space),
        cmocka_unit_test(a_request_that_cannot_meet_its_deadline_is_refused_at_once),
        cmocka_unit_test(a_call_with_many_prompts_counts_as_one_request),
        cmocka_unit_test(a_long_list_takes_half_of_the_queue_at_most),
        cmocka_unit_test(no_request_is_admitted_while_draining),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
