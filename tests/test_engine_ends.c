/* How requests to an engine end: by themselves, by cancel, by deadline, by refusal and by
 * failure; KV blocks are always released.
 *
 * Uses a small random model, stepped by the test. */
#include "engine_world.h"

#include "base/clock.h"

static void the_error_for_a_too_long_prompt_has_both_lengths(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 32 });
    struct client a = make_client(1, 100, 0);
    struct err e = { 0 };
    (void)state;
    assert_int_equal(engine_submit(g, a.r, &e), E_CONTEXT);
    assert_non_null(strstr(e.msg, "100"));
    assert_non_null(strstr(e.msg, "32"));
    a.r->prompt.n = 0;
    assert_int_equal(engine_submit(g, a.r, &e), E_INVALID);
    ids_push(&a.r->prompt, 1 << 30);
    assert_int_equal(engine_submit(g, a.r, &e), E_INVALID);
    a.r->prompt.p[0] = 1;
    a.r->sample.top_p = 7;
    assert_int_equal(engine_submit(g, a.r, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "top_p"));
    assert_true(engine_is_idle(g)); /* the refused request is not counted */
    release_client(&a);
    engine_close(g);
}

static void generation_ends_at_the_end_of_the_context(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 48 });
    struct client a = make_client(2, 20, 0);
    (void)state;
    run_client(g, &a);
    assert_int_equal(a.finish, FINISH_LENGTH);
    assert_int_equal(a.out.n, 28);
    release_client(&a);
    a = make_client(2, 47, 0); /* space for one token */
    run_client(g, &a);
    assert_int_equal(a.out.n, 1);
    release_client(&a);
    engine_close(g);
}

static void an_end_token_stops_unless_it_is_ignored_or_before_min_tokens(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 64 });
    int32_t end = -1;
    (void)state;
    for (int32_t id = 0; id < 64 && end < 0; id++)
        if (engine_is_end(g, id)) end = id;
    assert_true(end >= 0);
    for (int how = 0; how < 3; how++) {
        struct client a = make_client(4, 8, 10);
        struct logit_bias *bias = mem_alloc(sizeof *bias);
        *bias = (struct logit_bias){ end, 1000 };
        a.r->ignore_eos = how == 1;
        a.r->min_tokens = how == 2 ? 4 : 0;
        a.r->sample.bias = bias, a.r->sample.n_bias = 1;
        run_client(g, &a);
        assert_int_equal(a.finish, how == 1 ? FINISH_LENGTH : FINISH_STOP);
        assert_int_equal(a.out.n, how == 1 ? 10 : how == 2 ? 5 : 1);
        release_client(&a);
    }
    engine_close(g);
}

static void a_cancel_takes_effect_at_the_next_step_and_spares_other_requests(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256, .max_seqs = 2 });
    struct client a = make_client(1, 12, 100), b = make_client(2, 12, 20),
                  c = make_client(3, 12, 20), truth;
    struct client *all[] = { &a, &b, &c };
    (void)state;
    submit_client(g, &a), submit_client(g, &b), submit_client(g, &c); /* c is queued */
    for (int i = 0; i < 5; i++) engine_step(g);
    assert_true(request_cancel(a.r, CANCEL_ASKED));
    assert_false(request_cancel(a.r, CANCEL_GONE)); /* the first reason is kept */
    request_cancel(c.r, CANCEL_GONE);
    engine_step(g);
    read_events(&a), read_events(&c);
    assert_int_equal(a.finish, FINISH_CANCELLED);
    assert_true(HARD ? a.out.n < 5 : a.out.n == 5);
    assert_int_equal(c.finish, FINISH_CANCELLED);
    assert_int_equal(c.out.n, 0);
    run_clients(g, all, 3);
    truth = run_alone(2, 12, 20);
    assert_same(&b, &truth);
    assert_int_equal(counter_get(&engine_stats(g)->after_cancel), 0);
    release_client(&a), release_client(&b), release_client(&c), release_client(&truth);
    engine_close(g);
}

static void a_cancel_in_any_state_releases_the_kv_blocks(void **state)
{
    struct engine *g = open_manual(
        (struct engine_opt){ .n_ctx = 96, .kv_tokens = 96, .max_batch = 16, .max_seqs = 2 });
    struct client truth = run_alone(9, 60, 30), a;
    (void)state;
    for (int steps = 0; steps < 12; steps++) {
        a = make_client(steps, 60, 30);
        submit_client(g, &a);
        for (int i = 0; i < steps; i++) engine_step(g);
        request_cancel(a.r, CANCEL_GONE);
        engine_step(g);
        read_events(&a);
        assert_int_equal(a.finish, FINISH_CANCELLED);
        assert_int_equal(kv_blocks_used(g), 0);
        assert_true(engine_is_idle(g));
        release_client(&a);
    }
    a = make_client(9, 60, 30);
    run_client(g, &a);
    assert_same(&a, &truth);
    release_client(&a), release_client(&truth);
    engine_close(g);
}

static void a_deadline_ends_running_and_waiting_requests(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256, .max_seqs = 1 });
    struct client a = make_client(1, 12, 200), b = make_client(2, 12, 20);
    struct client *all[] = { &a, &b };
    struct err e = { 0 };
    (void)state;
    a.r->deadline_ns = clock_ns() + UINT64_C(600000000000);
    b.r->deadline_ns = a.r->deadline_ns;
    submit_client(g, &a), submit_client(g, &b);
    engine_step(g);
    a.r->deadline_ns = b.r->deadline_ns = clock_ns(); /* the engine is idle between steps */
    run_clients(g, all, 2);
    assert_int_equal(a.finish, FINISH_DEADLINE);
    assert_int_equal(a.r->err.code, E_DEADLINE);
    assert_true(HARD ? a.out.n <= 1 : a.out.n == 1);
    assert_int_equal(b.finish, FINISH_DEADLINE);
    assert_int_equal(b.r->n_out, 0);
    release_client(&b);
    b = make_client(2, 12, 20);
    b.r->deadline_ns = 1; /* has passed: refused at once */
    assert_int_equal(engine_submit(g, b.r, &e), E_DEADLINE);
    release_client(&a), release_client(&b);
    engine_close(g);
}

static void a_full_queue_refuses_requests_with_a_retry_time(void **state)
{
    enum { N = 4 };
    struct engine *g =
        open_manual((struct engine_opt){ .n_ctx = 256, .max_seqs = 1, .max_requests = N });
    struct client a[N + 1], *all[N];
    struct err e = { 0 };
    (void)state;
    for (int i = 0; i < N; i++) {
        a[i] = make_client(i, 10, 5);
        all[i] = &a[i];
        submit_client(g, &a[i]);
    }
    a[N] = make_client(9, 10, 5);
    assert_int_equal(engine_submit(g, a[N].r, &e), E_QUEUE_FULL);
    assert_true(e.retry_ms >= 1000);
    run_clients(g, all, N);
    run_client(g, &a[N]); /* the queue has space again */
    assert_int_equal(a[N].finish, FINISH_LENGTH);
    engine_drain(g);
    assert_int_equal(engine_submit(g, a[N].r, &e), E_SHUTDOWN);
    for (int i = 0; i <= N; i++) release_client(&a[i]);
    engine_close(g);
}

static void a_client_that_does_not_read_stops_only_its_own_request(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 512, .max_seqs = 2 });
    struct client slow = make_client(1, 8, 500), quick = make_client(2, 8, 500);
    struct client *both[] = { &slow, &quick };
    (void)state;
    slow.r->n_top = 20; /* large events */
    submit_client(g, &slow), submit_client(g, &quick);
    for (int i = 0; i < (HARD ? 6000 : 600); i++) {
        engine_step(g);
        read_events(&quick);
    }
    assert_int_equal(quick.finish, FINISH_LENGTH);
    assert_int_equal(quick.out.n, 500);
    assert_true(slow.r->n_out < 200); /* paused until its events are read */
    read_events(&slow);
    run_clients(g, both, 2);
    assert_int_equal(slow.finish, FINISH_LENGTH);
    assert_int_equal(slow.out.n, 500);
    release_client(&slow), release_client(&quick);
    engine_close(g);
}

/* Other requests need its blocks while its events are not read: it is preempted, and continues
 * when they are read. */
static void a_reader_that_does_not_read_keeps_no_blocks_from_others(void **state)
{
    struct engine *g = open_manual(
        (struct engine_opt){ .n_ctx = 200, .kv_tokens = 200, .max_batch = 32, .max_seqs = 2 });
    struct client slow = make_client(1, 60, 130), quick = make_client(2, 60, 130),
                  truth[2] = { run_alone(1, 60, 130), run_alone(2, 60, 130) };
    struct client *both[] = { &slow, &quick };
    (void)state;
    slow.r->n_top = 20;
    submit_client(g, &slow);
    while (engine_step(g)) {} /* until its outbox is full */
    submit_client(g, &quick);
    for (int i = 0; i < 5000 && quick.finish == FINISH_NONE; i++) {
        engine_step(g);
        read_events(&quick);
    }
    assert_int_equal(quick.finish, FINISH_LENGTH);
    assert_same(&quick, &truth[1]);
    run_clients(g, both, 2);
    assert_int_equal(slow.finish, FINISH_LENGTH);
    assert_same(&slow, &truth[0]);
    release_client(&slow), release_client(&quick), release_client(&truth[0]),
        release_client(&truth[1]);
    engine_close(g);
}

static void a_failed_request_does_not_stop_the_engine(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256 });
    struct client bad = make_client(1, 10, 20), good = make_client(2, 12, 20), truth;
    struct client *all[] = { &bad, &good };
    struct logit_bias *ban = mem_array(320, sizeof *ban);
    (void)state;
    for (int i = 0; i < 320; i++) ban[i] = (struct logit_bias){ i, -INFINITY };
    bad.r->sample.bias = ban, bad.r->sample.n_bias = 320; /* every token is banned */
    submit_client(g, &bad), submit_client(g, &good);
    run_clients(g, all, 2);
    assert_int_equal(bad.finish, FINISH_ERROR);
    assert_int_equal(bad.r->err.code, E_INVALID);
    assert_int_equal(bad.out.n, 0);
    truth = run_alone(2, 12, 20);
    assert_same(&good, &truth);
    release_client(&bad), release_client(&good), release_client(&truth);
    engine_close(g);
}

static void impossible_options_are_refused(void **state)
{
    struct engine *g = NULL;
    struct err e = { 0 };
    const struct engine_opt bad[] = { { .n_ctx = -5 },     { .n_ctx = 1 },
                                      { .max_batch = -1 }, { .max_seqs = 1 << 20 },
                                      { .kv_tokens = -1 }, { .max_requests = -1 } };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(engine_open(&g, repo(MODEL), &bad[i], &e), E_INVALID);
    assert_true(engine_open(&g, "/no/such/model", NULL, &e) != OK);
    assert_null(g);
    engine_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_error_for_a_too_long_prompt_has_both_lengths),
        cmocka_unit_test(generation_ends_at_the_end_of_the_context),
        cmocka_unit_test(an_end_token_stops_unless_it_is_ignored_or_before_min_tokens),
        cmocka_unit_test(a_cancel_takes_effect_at_the_next_step_and_spares_other_requests),
        cmocka_unit_test(a_cancel_in_any_state_releases_the_kv_blocks),
        cmocka_unit_test(a_deadline_ends_running_and_waiting_requests),
        cmocka_unit_test(a_full_queue_refuses_requests_with_a_retry_time),
        cmocka_unit_test(a_client_that_does_not_read_stops_only_its_own_request),
        cmocka_unit_test(a_reader_that_does_not_read_keeps_no_blocks_from_others),
        cmocka_unit_test(a_failed_request_does_not_stop_the_engine),
        cmocka_unit_test(impossible_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
