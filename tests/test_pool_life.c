/* Models that come and go: states, loads on demand, unloading, generations, waiting and its ends. */
#include "pool_world.h"

/* ---- states ---- */

static void a_model_is_loaded_when_it_is_asked_for(void **state)
{
    struct pool *p = open_pool_of((struct pool_opt){ .warm = true }, 1);
    struct pool_instance *m = NULL;
    struct pool_view v;
    struct err e = { 0 };
    int cold;

    (void)state;
    wait_state(p, 0, POOL_READY);
    assert_int_equal(pool_state(p, 1, NULL), POOL_UNLOADED);
    assert_int_equal(pool_find(p, STR("a"), &m, &e), E_LOADING);
    assert_int_equal(pool_find_cold(p, STR("a"), 0, &m, &cold, &e), E_LOADING);
    assert_int_equal(cold, 1);
    assert_int_equal(pool_find_cold(p, STR("a"), clock_ns() + 50000000, &m, &cold, &e), E_DEADLINE);
    m = load(p, 1);
    assert_int_equal(m->generation, 1);
    pool_view(p, 1, &v);
    assert_int_equal(v.state, POOL_READY);
    assert_int_equal(v.progress, 100);
    assert_int_equal(v.n_uses, 1);
    assert_true(v.bytes > 0 && v.expires_ms == -1);
    assert_int_equal(infer(m), FINISH_LENGTH);
    pool_release(m);
    assert_false(pool_is_expected(p, 1));
    assert_true(pool_is_expected(p, 0));
    pool_close(p);
}

static void an_unloaded_model_gives_its_memory_back(void **state)
{
    struct pool *p = open_pool_of((struct pool_opt){ .warm = true }, 1);
    uint64_t before;

    (void)state;
    wait_state(p, 0, POOL_READY);
    before = pool_bytes(p);
    pool_release(load(p, 1));
    assert_true(pool_bytes(p) > before);
    unload(p, 1);
    assert_int_equal(pool_bytes(p), before);
    assert_int_equal(pool_state(p, 1, NULL), POOL_UNLOADED);
    assert_int_equal(counter_get(&pool_counts(p, 1)->unloads[POOL_UNLOAD_ASKED]), 1);
    unload(p, 1); /* what is not loaded is gone at once */
    unload(p, 0); /* also the model of the command line */
    assert_int_equal(pool_bytes(p), 0);
    assert_false(pool_is_expected(p, 0));
    pool_release(load(p, 0));
    assert_true(pool_is_expected(p, 0));
    pool_close(p);
    assert_int_equal(atomic_load(&host.closes), 3);
}

static void a_call_in_flight_finishes_with_the_model_it_began_with(void **state)
{
    struct pool *p = open_pool_of((struct pool_opt){ .warm = true }, 1);
    struct waiter gone = { .w = { .done = on_done } }, again;
    struct pool_instance *m, *other = NULL;
    struct err e = { 0 };

    (void)state;
    m = load(p, 1);
    assert_int_equal(pool_unload(p, 1, false, &gone.w), POOL_WAIT);
    assert_int_equal(pool_state(p, 1, NULL), POOL_DRAINING);
    assert_int_equal(pool_find(p, STR("a"), &other, &e), E_LOADING);
    ask(p, 1, &again); /* is loaded again when the old one is closed */
    assert_false(again.now);
    assert_int_equal(infer(m), FINISH_LENGTH); /* nothing stops the call */
    usleep(20000);
    assert_int_equal(atomic_load(&gone.done), 0);
    assert_int_equal(atomic_load(&again.done), 0);
    pool_release(m);
    wait_done(&gone);
    assert_int_equal(gone.w.rc, OK);
    wait_done(&again);
    assert_int_equal(again.w.rc, OK);
    assert_int_equal(again.w.model->generation, 2);
    /* A handle of the first instance is refused. */
    assert_int_equal(pool_acquire_generation(p, 1, 1, &other, &e), E_NOTFOUND);
    assert_int_equal(pool_acquire_generation(p, 1, 2, &other, &e), OK);
    assert_ptr_equal(other, again.w.model);
    pool_release(other);
    pool_release(again.w.model);
    pool_close(p);
}

static void a_sleeping_model_wakes_when_it_is_asked_for(void **state)
{
    struct pool *p = open_pool_of((struct pool_opt){ .warm = true }, 1);
    struct waiter w = { .w = { .done = on_done } };

    (void)state;
    pool_release(load(p, 1));
    w.now = pool_unload(p, 1, true, &w.w) == POOL_NOW;
    wait_done(&w);
    assert_int_equal(pool_state(p, 1, NULL), POOL_SLEEPING);
    pool_release(load(p, 1));
    assert_int_equal(pool_state(p, 1, NULL), POOL_READY);
    unload(p, 1);
    assert_int_equal(pool_state(p, 1, NULL), POOL_UNLOADED);
    pool_close(p);
}

/* ---- waiting ---- */

static void many_who_wait_are_served_by_one_load(void **state)
{
    struct pool *p = open_pool_of((struct pool_opt){ .warm = true }, 2);
    struct waiter w[20];

    (void)state;
    wait_state(p, 0, POOL_READY);
    atomic_store(&host.opens, 0);
    atomic_store(&host.hold, true);
    for (int i = 0; i < 20; i++) {
        ask(p, 1, &w[i]);
        assert_false(w[i].now);
    }
    assert_int_equal(pool_state(p, 1, NULL), POOL_LOADING);
    atomic_store(&host.hold, false);
    for (int i = 0; i < 20; i++) {
        wait_done(&w[i]);
        assert_int_equal(w[i].w.rc, OK);
        assert_ptr_equal(w[i].w.model, w[0].w.model);
    }
    assert_int_equal(atomic_load(&host.opens), 1);
    assert_int_equal(counter_get(&pool_counts(p, 1)->loads), 1);
    assert_int_equal(counter_get(&pool_counts(p, 1)->waits), 20);
    for (int i = 0; i < 20; i++) pool_release(w[i].w.model);
    pool_close(p);
}

static void a_load_that_fails_gives_its_error_to_all_and_leaves_nothing(void **state)
{
    struct pool *p = open_pool_of((struct pool_opt){ .warm = true }, 1);
    struct waiter w[3];
    uint64_t before;

    (void)state;
    wait_state(p, 0, POOL_READY);
    before = pool_bytes(p);
    for (int fail = 1; fail <= 3; fail++) {
        int closes = atomic_load(&host.closes);
        char want[40];
        atomic_store(&host.fail_at, fail);
        atomic_store(&host.hold, true);
        for (int i = 0; i < 3; i++) {
            w[i] = (struct waiter){ .w = { .done = on_done, .by_operator = true } };
            w[i].now = pool_load(p, 1, &w[i].w) == POOL_NOW;
        }
        atomic_store(&host.hold, false);
        snprintf(want, sizeof want, "test: step %d fails", fail);
        for (int i = 0; i < 3; i++) {
            wait_done(&w[i]);
            assert_int_equal(w[i].w.rc, E_FORMAT);
            assert_non_null(strstr(w[i].w.err.msg, want));
            assert_null(w[i].w.model);
        }
        wait_state(p, 1, POOL_FAILED);
        assert_int_equal(pool_bytes(p), before);
        assert_true(atomic_load(&host.closes) > closes);
    }
    /* A request gets the error at once, as long as the file is the same; an operator may retry. */
    atomic_store(&host.fail_at, 0);
    ask(p, 1, &w[0]);
    assert_true(w[0].now);
    assert_int_equal(w[0].w.rc, E_FORMAT);
    w[0] = (struct waiter){ .w = { .done = on_done, .by_operator = true } };
    w[0].now = pool_load(p, 1, &w[0].w) == POOL_NOW;
    wait_done(&w[0]);
    assert_int_equal(w[0].w.rc, OK);
    pool_release(w[0].w.model);
    pool_close(p);
    assert_int_equal(atomic_load(&host.plans), atomic_load(&host.closes));
}

/* Model i's error, whose back-off is over some time. */
static void check_refused(struct pool *p, int i, int code, bool comes_back)
{
    struct pool_instance *m = NULL;
    struct err e = { 0 };

    assert_int_equal(pool_find(p, str_c(pool_at(p, i)->id), &m, &e), code);
    if (comes_back) assert_in_range(e.retry_ms, 1, 60000);
    else assert_int_equal(e.retry_ms, 0);
}

static void a_failure_that_may_pass_is_tried_again_by_a_later_request(void **state)
{
    static const int codes[] = { E_WORKER, E_IO, E_DEVICE, E_MEMORY };
    struct waiter w;

    (void)state;
    for (size_t k = 0; k < sizeof codes / sizeof *codes; k++) {
        struct pool *p = open_pool_of((struct pool_opt){ .retry_ms = 20 }, 1);
        int opens;
        wait_state(p, 0, POOL_READY);
        atomic_store(&host.fail_code, codes[k]);
        atomic_store(&host.fail_at, 2);
        ask(p, 1, &w);
        wait_done(&w);
        assert_int_equal(w.w.rc, codes[k]);
        assert_int_equal(w.w.err.retry_ms, 20);
        check_refused(p, 1, codes[k], true);
        atomic_store(&host.fail_at, 0);
        opens = atomic_load(&host.opens);
        do ask(p, 1, &w), wait_done(&w); /* refused until the back-off is over */
        while (w.w.rc == codes[k] && w.now);
        assert_int_equal(w.w.rc, OK);
        assert_int_equal(atomic_load(&host.opens), opens + 1); /* nobody else opened it */
        pool_release(w.w.model);
        pool_close(p);
    }
}

static void a_failure_that_lasts_is_not_tried_again(void **state)
{
    static const int codes[] = { E_FORMAT, E_UNSUPPORTED, E_NOTFOUND };
    struct waiter w;

    (void)state;
    for (size_t k = 0; k < sizeof codes / sizeof *codes; k++) {
        struct pool *p = open_pool_of((struct pool_opt){ .retry_ms = 1 }, 1);
        wait_state(p, 0, POOL_READY);
        atomic_store(&host.fail_code, codes[k]);
        atomic_store(&host.fail_at, 1);
        ask(p, 1, &w);
        wait_done(&w);
        check_refused(p, 1, codes[k], false);
        atomic_store(&host.fail_at, 0);
        usleep(20000); /* many times retry_ms */
        ask(p, 1, &w);
        assert_true(w.now);
        assert_int_equal(w.w.rc, codes[k]);
        pool_close(p);
    }
}

static void a_model_that_died_comes_back_in_place_of_an_unused_one(void **state)
{
    struct pool *p = open_pool_of(
        (struct pool_opt){ .retry_ms = 5, .max_loaded = 2, .residence_ms = 1, .patience_ms = 1 },
        2);

    (void)state;
    wait_state(p, 0, POOL_READY);
    pool_release(load(p, 1));
    atomic_store(&host.fail_id, "a");
    atomic_store(&host.fail_code, E_WORKER);
    atomic_store(&host.fail_at, 2); /* until b has its place */
    atomic_store(&host.dead_id, "a");
    pool_wake(p);
    wait_state(p, 1, POOL_FAILED);
    atomic_store(&host.dead_id, NULL);
    pool_release(load(p, 2));
    atomic_store(&host.fail_at, 0);
    wait_state(p, 1, POOL_READY);
    assert_int_equal(pool_state(p, 2, NULL), POOL_UNLOADED);
    assert_int_equal(counter_get(&pool_counts(p, 2)->unloads[POOL_UNLOAD_ROOM]), 1);
    pool_close(p);
}

/* A back-off of a minute would not end within the test. */
static void the_first_death_of_a_process_has_no_back_off(void **state)
{
    struct pool *p = open_pool_of((struct pool_opt){ .retry_ms = 60000 }, 1);
    int opens;

    (void)state;
    wait_state(p, 0, POOL_READY);
    pool_release(load(p, 1));
    opens = atomic_load(&host.opens);
    atomic_store(&host.fail_code, E_WORKER);
    atomic_store(&host.dead_id, "a");
    atomic_store(&host.fail_id, "a");
    atomic_store(&host.fail_at, 2);
    pool_wake(p);
    while (atomic_load(&host.opens) == opens) usleep(500);
    wait_state(p, 1, POOL_FAILED);
    pool_close(p);
}

static void a_model_of_the_start_is_tried_again_without_being_asked_for(void **state)
{
    struct pool *p;

    (void)state;
    for (int code = E_WORKER; code; code = code == E_WORKER ? E_MEMORY : 0) {
        struct pool_model m = { .id = "more", .path = repo(MODEL), .keep_ms = -1, .preload = true };
        struct err e = { 0 };
        p = open_pool_of((struct pool_opt){ .retry_ms = 5 }, 0);
        wait_state(p, 0, POOL_READY);
        atomic_store(&host.fail_code, code);
        atomic_store(&host.fail_at, 2);
        assert_int_equal(pool_add(p, &m, NULL, &e), OK);
        wait_state(p, 1, POOL_FAILED);
        atomic_store(&host.fail_at, 0);
        if (code == E_WORKER) wait_state(p, 1, POOL_READY);
        else usleep(20000), assert_int_equal(pool_state(p, 1, NULL), POOL_FAILED);
        pool_close(p);
    }
}

static void an_unload_does_not_wait_for_what_was_asked_for_later(void **state)
{
    struct pool *p = open_pool_of((struct pool_opt){ .warm = true }, 1);
    struct waiter early, late, end = { .w = { .done = on_done } };
    struct waiter again = { .w = { .done = on_done, .by_operator = true } };

    (void)state;
    wait_state(p, 0, POOL_READY);
    atomic_store(&host.hold, true);
    ask(p, 1, &early);
    while (!atomic_load(&host.held)) usleep(500);
    end.now = pool_unload(p, 1, false, &end.w) == POOL_NOW; /* of the load under way */
    assert_false(end.now);
    ask(p, 1, &late); /* the next load */
    again.now = pool_load(p, 1, &again.w) == POOL_NOW;
    atomic_store(&host.hold, false);
    wait_done(&end);
    assert_int_equal(end.w.rc, OK);
    wait_done(&early);
    assert_int_equal(early.w.rc, E_LOADING);
    wait_done(&late);
    wait_done(&again);
    assert_int_equal(late.w.rc, OK);
    assert_int_equal(again.w.rc, OK);
    assert_int_equal(late.w.model->generation, 1); /* the first that was ever to be seen */
    assert_int_equal(atomic_load(&host.opens),
                     3); /* that of "first", the cancelled one, and this */
    pool_release(late.w.model);
    pool_release(again.w.model);
    pool_close(p);
}

static void an_unload_waits_for_the_instances_there_were(void **state)
{
    struct pool *p = open_pool_of((struct pool_opt){ 0 }, 1);
    struct waiter end[2] = { { .w = { .done = on_done } }, { .w = { .done = on_done } } }, next;
    struct pool_instance *m;

    (void)state;
    wait_state(p, 0, POOL_READY);
    m = load(p, 1);
    end[0].now = pool_unload(p, 1, false, &end[0].w) == POOL_NOW;
    ask(p, 1, &next); /* is loaded when the old one is closed */
    end[1].now = pool_unload(p, 1, false, &end[1].w) == POOL_NOW;
    assert_false(end[0].now || end[1].now || next.now);
    assert_int_equal(atomic_load(&end[0].done), 0);
    pool_release(m);
    wait_done(&end[0]);
    wait_done(&end[1]);
    wait_done(&next);
    assert_int_equal(end[0].w.rc, OK);
    assert_int_equal(end[1].w.rc, OK);
    assert_int_equal(next.w.rc, OK);
    assert_int_equal(next.w.model->generation, 2);
    pool_release(next.w.model);
    pool_close(p);
}

static void a_wait_that_is_cancelled_leaves_the_others(void **state)
{
    struct pool *p = open_pool_of((struct pool_opt){ .warm = true }, 2);
    struct waiter one, two, other;

    (void)state;
    wait_state(p, 0, POOL_READY);
    atomic_store(&host.hold, true);
    ask(p, 1, &one);
    while (!atomic_load(&host.held)) usleep(500);
    ask(p, 1, &two);
    ask(p, 2, &other);
    assert_int_equal(pool_state(p, 2, NULL), POOL_LOADING);
    assert_true(pool_cancel_wait(p, &one.w));
    assert_false(pool_cancel_wait(p, &one.w));
    assert_true(pool_cancel_wait(p, &other.w));
    assert_int_equal(pool_state(p, 2, NULL), POOL_UNLOADED); /* nobody waits for it any more */
    atomic_store(&host.hold, false);
    wait_done(&two);
    assert_int_equal(two.w.rc, OK);
    assert_int_equal(atomic_load(&one.done), 0);
    assert_int_equal(atomic_load(&other.done), 0);
    pool_release(two.w.model);
    pool_close(p);
    assert_int_equal(atomic_load(&host.opens), 2);
}

static void a_model_can_be_unloaded_while_it_is_loaded(void **state)
{
    struct pool *p = open_pool_of((struct pool_opt){ .warm = true }, 1);
    struct waiter w, gone = { .w = { .done = on_done } };
    uint64_t before;

    (void)state;
    wait_state(p, 0, POOL_READY);
    before = pool_bytes(p);
    atomic_store(&host.hold, true);
    ask(p, 1, &w);
    while (!atomic_load(&host.held)) usleep(500);
    assert_int_equal(pool_unload(p, 1, false, &gone.w), POOL_WAIT);
    atomic_store(&host.hold, false);
    wait_done(&w);
    assert_int_equal(w.w.rc, E_LOADING);
    wait_done(&gone);
    assert_int_equal(pool_state(p, 1, NULL), POOL_UNLOADED);
    assert_int_equal(pool_bytes(p), before);
    pool_release(load(p, 1));
    pool_close(p);
}

/* Room for one model beside "first", which is in use: the next one is planned, and waits. */
static void an_unload_ends_a_load_that_waits_for_room(void **state)
{
    struct pool *p = open_pool_of((struct pool_opt){ .max_loaded = 2 }, 2);
    struct waiter w, next, gone = { .w = { .done = on_done } };
    struct pool_instance *m;

    (void)state;
    wait_state(p, 0, POOL_READY);
    m = load(p, 1);
    ask(p, 2, &w);
    for (int k = 0; k < LONG_MS && atomic_load(&host.plans) < 3; k++) usleep(1000);
    assert_int_equal(atomic_load(&host.closes), 0);
    gone.now = pool_unload(p, 2, false, &gone.w) == POOL_NOW;
    ask(p, 2, &next); /* after the unload: it waits on, for another plan */
    wait_done(&w);
    assert_int_equal(w.w.rc, E_LOADING);
    wait_done(&gone);
    assert_int_equal(gone.w.rc, OK);
    assert_true(atomic_load(&host.closes) >= 1); /* the plan was closed before that */
    assert_int_equal(atomic_load(&next.done), 0);
    assert_true(pool_cancel_wait(p, &next.w));
    gone.now = pool_unload(p, 2, false, &gone.w) == POOL_NOW;
    pool_release(m);
    pool_close(p);
    assert_int_equal(atomic_load(&host.plans), atomic_load(&host.closes));
}

/* The pool's thread is busy with another model: nobody waits for that. */
static void an_unload_ends_the_waits_for_a_load_that_has_not_begun(void **state)
{
    struct pool *p = open_pool_of((struct pool_opt){ 0 }, 2);
    struct waiter one, other, gone = { .w = { .done = on_done } };

    (void)state;
    wait_state(p, 0, POOL_READY);
    atomic_store(&host.hold, true);
    ask(p, 1, &one);
    while (!atomic_load(&host.held)) usleep(500);
    ask(p, 2, &other);
    assert_int_equal(pool_unload(p, 2, false, &gone.w), POOL_NOW);
    assert_int_equal(atomic_load(&other.done), 1);
    assert_int_equal(other.w.rc, E_LOADING);
    assert_int_equal(pool_state(p, 2, NULL), POOL_UNLOADED);
    atomic_store(&host.hold, false);
    wait_done(&one);
    assert_int_equal(one.w.rc, OK);
    pool_release(one.w.model);
    pool_close(p);
}

static void the_end_of_the_pool_ends_every_wait(void **state)
{
    struct pool *p = open_pool_of((struct pool_opt){ 0 }, 2);
    struct waiter w[2], late;

    (void)state;
    wait_state(p, 0, POOL_READY);
    atomic_store(&host.hold, true);
    for (int i = 0; i < 2; i++) ask(p, i + 1, &w[i]);
    while (!atomic_load(&host.held)) usleep(500);
    pool_drain(p);
    ask(p, 2, &late);
    assert_true(late.now);
    assert_int_equal(late.w.rc, E_SHUTDOWN);
    atomic_store(&host.hold, false);
    pool_stop(p);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(atomic_load(&w[i].done), 1);
        assert_int_equal(w[i].w.rc, i == 0 && w[0].w.model ? OK : E_SHUTDOWN);
        pool_release(w[i].w.model);
    }
    pool_close(p);
}

static void the_number_of_waits_is_bounded(void **state)
{
    struct pool *p = open_pool_of((struct pool_opt){ .max_waits = 2 }, 1);
    struct waiter w[3];

    (void)state;
    wait_state(p, 0, POOL_READY);
    atomic_store(&host.hold, true);
    for (int i = 0; i < 3; i++) ask(p, 1, &w[i]);
    assert_true(w[2].now);
    assert_int_equal(w[2].w.rc, E_QUEUE_FULL);
    assert_true(w[2].w.err.retry_ms > 0);
    atomic_store(&host.hold, false);
    for (int i = 0; i < 2; i++) {
        wait_done(&w[i]);
        pool_release(w[i].w.model);
    }
    pool_close(p);
}

static void names_are_unique_and_the_list_grows(void **state)
{
    struct pool *p = open_pool_of((struct pool_opt){ 0 }, 2);
    struct pool_model m = { .id = "b", .path = "/x.gguf", .keep_ms = -1 };
    struct err e = { 0 };
    int at;

    (void)state;
    assert_int_equal(pool_add(p, &m, &at, &e), E_INVALID);
    m.id = "new";
    assert_int_equal(pool_add(p, &m, &at, &e), OK);
    assert_int_equal(at, 3);
    assert_int_equal(pool_index(p, STR("new")), 3);
    assert_int_equal(pool_index(p, STR("none")), -1);
    pool_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_is_loaded_when_it_is_asked_for),
        cmocka_unit_test(an_unloaded_model_gives_its_memory_back),
        cmocka_unit_test(a_call_in_flight_finishes_with_the_model_it_began_with),
        cmocka_unit_test(a_sleeping_model_wakes_when_it_is_asked_for),
        cmocka_unit_test(many_who_wait_are_served_by_one_load),
        cmocka_unit_test(a_load_that_fails_gives_its_error_to_all_and_leaves_nothing),
        cmocka_unit_test(a_failure_that_may_pass_is_tried_again_by_a_later_request),
        cmocka_unit_test(a_failure_that_lasts_is_not_tried_again),
        cmocka_unit_test(a_model_that_died_comes_back_in_place_of_an_unused_one),
        cmocka_unit_test(the_first_death_of_a_process_has_no_back_off),
        cmocka_unit_test(a_model_of_the_start_is_tried_again_without_being_asked_for),
        cmocka_unit_test(an_unload_does_not_wait_for_what_was_asked_for_later),
        cmocka_unit_test(an_unload_waits_for_the_instances_there_were),
        cmocka_unit_test(a_wait_that_is_cancelled_leaves_the_others),
        cmocka_unit_test(a_model_can_be_unloaded_while_it_is_loaded),
        cmocka_unit_test(an_unload_ends_a_load_that_waits_for_room),
        cmocka_unit_test(an_unload_ends_the_waits_for_a_load_that_has_not_begun),
        cmocka_unit_test(the_end_of_the_pool_ends_every_wait),
        cmocka_unit_test(the_number_of_waits_is_bounded),
        cmocka_unit_test(names_are_unique_and_the_list_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
