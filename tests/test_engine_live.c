/* An engine while a step is in flight, and an engine with its own thread: cancels in the middle
 * of a step, warm-up, closing, and clients that submit and leave at random.
 *
 * Uses a small random model; the C ABI test uses the model that ships with tern. */
#include "engine_world.h"

/* ---- while a step is in flight ---- */

#ifndef TERN_HARD /* these tests count rounds, and hard mode takes more of them */
static struct client *victim;

/* The notify callback: runs when a token of the last step is emitted. By then the next step has
 * begun. */
static void cancel_victim(struct request *r)
{
    if (victim) request_cancel(victim->r, CANCEL_ASKED);
    request_unref(r);
}

/* Runs rounds of the engine's thread one by one. The tokens of a step are emitted in the next
 * round. */
static void tokens_of_a_step_are_emitted_after_the_next_step_has_begun(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 64 });
    struct client a = make_client(1, 8, 3), truth = run_alone(1, 8, 3);
    (void)state;
    submit_client(g, &a);
    for (int round = 0; round < 4; round++) {
        assert_int_equal(engine_round(g), round < 3 ? ROUND_WORKED : ROUND_IDLE);
        read_events(&a);
        assert_int_equal(a.out.n, round);
    }
    assert_int_equal(a.finish, FINISH_LENGTH);
    assert_same(&a, &truth);
    assert_true(engine_is_idle(g));
    release_client(&a), release_client(&truth);
    engine_close(g);
}

static void a_cancel_takes_effect_in_the_middle_of_a_step(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256 });
    struct client a = make_client(1, 12, 20), b = make_client(2, 12, 20),
                  truth = run_alone(1, 12, 20);
    struct client *both[] = { &a, &b };
    (void)state;
    a.r->notify = cancel_victim;
    submit_client(g, &a), submit_client(g, &b);
    for (int i = 0; i < 4; i++) assert_int_equal(engine_round(g), ROUND_WORKED);
    read_events(&a), read_events(&b);
    assert_int_equal(b.out.n, 3);
    victim = &b; /* cancelled in the next round, while its step is in flight */
    assert_int_equal(engine_round(g), ROUND_WORKED);
    victim = NULL;
    read_events(&a), read_events(&b);
    assert_int_equal(b.finish, FINISH_CANCELLED); /* in that round, not in the one after */
    assert_int_equal(b.out.n, 3);                 /* no token after the cancel */
    assert_int_equal(b.r->n_out, 3);
    run_clients(g, both, 2);
    assert_same(&a, &truth);
    assert_int_equal(counter_get(&engine_stats(g)->after_cancel), 0);
    assert_int_equal(counter_get(&engine_stats(g)->generated_tokens), 23);
    assert_int_equal(kv_blocks_used(g), 0);
    release_client(&a), release_client(&b), release_client(&truth);
    engine_close(g);
}

/* No sequence is left in the step, so the step itself is aborted. */
static void a_step_whose_requests_are_all_cancelled_is_aborted(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256 });
    struct client a = make_client(1, 12, 20);
    uint64_t steps;
    (void)state;
    a.r->notify = cancel_victim;
    submit_client(g, &a);
    for (int i = 0; i < 3; i++) engine_round(g);
    read_events(&a);
    steps = counter_get(&engine_stats(g)->steps);
    victim = &a;
    engine_round(g);
    victim = NULL;
    read_events(&a);
    assert_int_equal(a.finish, FINISH_CANCELLED);
    assert_int_equal(a.out.n, 3); /* the cancel came while the third token was emitted */
    assert_int_equal(counter_get(&engine_stats(g)->steps), steps);
    assert_int_equal(engine_round(g), ROUND_IDLE);
    assert_int_equal(kv_blocks_used(g), 0);
    release_client(&a);
    engine_close(g);
}

#endif

/* ---- with the engine's thread ---- */

static void the_warm_up_is_not_counted_as_a_request(void **state)
{
    struct engine *g = open_engine((struct engine_opt){ .n_ctx = 64 });
    struct err e = { 0 };
    (void)state;
    assert_int_equal(engine_warm(g, &e), OK);
    assert_int_equal(counter_get(&engine_stats(g)->generated_tokens), 0);
    assert_int_equal(counter_get(&engine_stats(g)->submitted), 0);
    engine_close(g);
}

static void closing_the_engine_cancels_all_requests(void **state)
{
    enum { N = 6 };
    struct engine *g = open_engine((struct engine_opt){ .n_ctx = 512, .max_seqs = 2 });
    struct client a[N];
    (void)state;
    for (int i = 0; i < N; i++) {
        a[i] = make_client(i, 20, 400);
        submit_client(g, &a[i]);
    }
    engine_close(g);
    for (int i = 0; i < N; i++) {
        read_events(&a[i]);
        assert_int_equal(a[i].finish, FINISH_CANCELLED);
        release_client(&a[i]);
    }
}

/* A client thread: submits requests, reads some events, and leaves at random points. */
struct crowd {
    struct engine *g;
    int seed, n;
};

static void *submit_and_leave(void *arg)
{
    struct crowd *c = arg;
    struct rng rng;

    rng_seed(&rng, (uint64_t)c->seed);
    for (int i = 0; i < c->n; i++) {
        struct client a = make_client((int)(rng_u64(&rng) % 7), 1 + (int)(rng_u64(&rng) % 60), 24);
        uint64_t patience = rng_u64(&rng) % 30;
        struct event ev = { 0 };
        struct err e = { 0 };
        a.r->priority = (int)(rng_u64(&rng) % 3);
        if (engine_submit(c->g, a.r, &e) == OK) {
            for (uint64_t tries = 0; ev.finish == FINISH_NONE; tries++) {
                if (tries == patience) request_cancel(a.r, CANCEL_GONE);
                if (!request_next(a.r, &ev))
                    nanosleep(&(struct timespec){ .tv_nsec = 50000 }, NULL);
            }
        }
        release_client(&a);
    }
    return NULL;
}

static void clients_that_leave_at_random_leave_no_blocks_in_use(void **state)
{
    enum { N = 4 };
    struct engine *g = open_engine(
        (struct engine_opt){ .n_ctx = 96, .kv_tokens = 160, .max_seqs = 6, .max_batch = 48 });
    struct crowd c[N];
    pthread_t t[N];
    (void)state;
    for (int i = 0; i < N; i++) {
        c[i] = (struct crowd){ g, i, 250 };
        assert_int_equal(pthread_create(&t[i], NULL, submit_and_leave, &c[i]), 0);
    }
    for (int i = 0; i < N; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < 60000 && !engine_is_idle(g); i++)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    assert_true(engine_is_idle(g));
    assert_int_equal(kv_blocks_used(g), 0);
    assert_int_equal(counter_get(&engine_stats(g)->after_cancel), 0);
    engine_close(g);
}

static void *cancel_after_delay(void *arg)
{
    nanosleep(&(struct timespec){ .tv_nsec = 20 * 1000 * 1000 }, NULL);
    tern_cancel(arg);
    return NULL;
}

static void cancel_from_another_thread_ends_the_request(void **state)
{
    tern_model *m = NULL;
    tern_options o;
    tern_params p;
    const int32_t ids[4] = { 1, 5, 9, 3 };
    (void)state;
    tern_options_init(&o);
    o.context = 4096;
    o.threads = 2;
    if (tern_open(&m, repo(MODEL), &o) != TERN_OK) fail_msg("%s", tern_error());
    tern_params_init(&p, m);
    p.ignore_eos = 1;
    for (int round = 0; round < 3; round++) {
        tern_request *r = NULL;
        tern_event ev;
        pthread_t thread;
        int n = 0;
        if (tern_submit_ids(&r, m, ids, 4, &p) != TERN_OK) fail_msg("%s", tern_error());
        assert_int_equal(pthread_create(&thread, NULL, cancel_after_delay, r), 0);
        do {
            assert_int_equal(tern_next(r, &ev), TERN_OK);
            n++;
        } while (ev.finish == TERN_FINISH_NONE);
        pthread_join(thread, NULL);
        if (n < 4000) assert_int_equal(ev.finish, TERN_FINISH_CANCELLED);
        tern_request_close(r);
    }
    tern_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifndef TERN_HARD
        cmocka_unit_test(tokens_of_a_step_are_emitted_after_the_next_step_has_begun),
        cmocka_unit_test(a_cancel_takes_effect_in_the_middle_of_a_step),
        cmocka_unit_test(a_step_whose_requests_are_all_cancelled_is_aborted),
#endif
        cmocka_unit_test(the_warm_up_is_not_counted_as_a_request),
        cmocka_unit_test(closing_the_engine_cancels_all_requests),
        cmocka_unit_test(clients_that_leave_at_random_leave_no_blocks_in_use),
        cmocka_unit_test(cancel_from_another_thread_ends_the_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
