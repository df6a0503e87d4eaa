/* Engines that fail: steps that fail, devices that are lost, models that are damaged, and the pool
 * that opens them again.
 *
 * The runner of an engine is made to fail by the test. */
#include "engine_world.h"

#include "base/log.h"
#include "format/source.h"
#include "model/loadplan.h"
#include "pool/pool.h"

#include <stdlib.h>
#include <unistd.h>

static atomic_int n_failures; /* how often an engine told its owner */
static int n_bad_steps;       /* steps that are to fail */
static int (*good_start)(struct runner *r, const struct batch *b, struct err *e);

static void on_failed(void *arg)
{
    (void)arg;
    atomic_fetch_add(&n_failures, 1);
}

static int start_or_fail(struct runner *r, const struct batch *b, struct err *e)
{
    if (n_bad_steps-- > 0) return err_set(e, E_DEVICE, "test: the device has failed");
    return good_start(r, b, e);
}

static void fail_steps(struct engine *g, int n)
{
    good_start = g->runner->start;
    g->runner->start = start_or_fail;
    n_bad_steps = n;
}

static struct engine *open_failing(int n)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 64, .failed = on_failed });

    atomic_store(&n_failures, 0);
    fail_steps(g, n);
    return g;
}

/* The error that a request ends with. */
static int run_one(struct engine *g)
{
    struct client a = make_client(1, 10, 4);
    int rc;

    run_client(g, &a);
    rc = a.finish == FINISH_ERROR ? a.r->err.code : OK;
    release_client(&a);
    return rc;
}

static void a_failed_step_ends_its_requests_and_the_engine_goes_on(void **state)
{
    struct engine *g = open_failing(2);

    (void)state;
    assert_int_equal(run_one(g), E_DEVICE);
    assert_int_equal(run_one(g), E_DEVICE);
    assert_int_equal(run_one(g), OK);
    n_bad_steps = 2; /* only failures in a row count */
    assert_int_equal(run_one(g), E_DEVICE);
    assert_int_equal(run_one(g), E_DEVICE);
    assert_int_equal(run_one(g), OK);
    assert_int_equal(engine_error(g, NULL), OK);
    assert_int_equal(atomic_load(&n_failures), 0);
    engine_close(g);
}

static void three_failed_steps_in_a_row_end_the_engine(void **state)
{
    struct engine *g = open_failing(3);
    struct client late = make_client(2, 10, 4);
    struct err e = { 0 };

    (void)state;
    for (int i = 0; i < 3; i++) assert_int_equal(run_one(g), E_DEVICE);
    assert_int_equal(engine_error(g, &e), E_DEVICE);
    assert_non_null(strstr(e.msg, "3 steps in a row failed: test: the device has failed"));
    assert_int_equal(engine_submit(g, late.r, &e), E_DEVICE);
    assert_int_equal(atomic_load(&n_failures), 1);
    assert_true(engine_is_idle(g));
    release_client(&late);
    engine_close(g);
}

/* Also requests that only wait end, each with the typed error, and nothing is left behind. */
static void a_lost_device_ends_all_requests_at_once(void **state)
{
    enum { N = 6 };
    struct engine *g =
        open_manual((struct engine_opt){ .n_ctx = 64, .max_seqs = 2, .failed = on_failed });
    struct client a[N], *all[N];

    (void)state;
    atomic_store(&n_failures, 0);
    fail_steps(g, 1);
    n_bad_steps = 0;
    for (int i = 0; i < N; i++) {
        all[i] = &a[i], a[i] = make_client(i, 10, 8);
        submit_client(g, &a[i]);
    }
    for (int i = 0; i < 3; i++) engine_step(g);
    n_bad_steps = 1;
    g->plan->place.shares[0].be->lost = true;
    run_clients(g, all, N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(a[i].finish, FINISH_ERROR);
        assert_int_equal(a[i].r->err.code, E_DEVICE);
        release_client(&a[i]);
    }
    assert_int_equal(atomic_load(&n_failures), 1);
    assert_true(engine_is_idle(g));
    assert_int_equal(kv_blocks_used(g), 0);
    engine_close(g);
}

/* A token that was computed from a damaged model is not sent. */
static void a_damaged_model_ends_the_engine(void **state)
{
    struct engine *g = open_failing(0);
    struct client a = make_client(1, 10, 20);
    struct err e = { 0 };
    int n;

    (void)state;
    submit_client(g, &a);
    for (int i = 0; i < 3; i++) engine_step(g);
    read_events(&a);
    n = (int)a.out.n;
    source_set_damaged(g->plan->source, "test: the file was truncated");
    while (engine_step(g)) {}
    read_events(&a);
    assert_int_equal(a.out.n, n);
    assert_int_equal(a.finish, FINISH_ERROR);
    assert_int_equal(a.r->err.code, E_DAMAGED);
    assert_int_equal(engine_error(g, &e), E_DAMAGED);
    assert_non_null(strstr(e.msg, "test: the file was truncated"));
    release_client(&a);
    engine_close(g);
}

/* ---- the pool ---- */

static struct pool *open_pool(const char *path)
{
    struct pool_opt o = {
        .paths = &path,
        .n = 1,
        .retry_ms = 20,
        .engine = { .kv_type = DT_NONE, .n_ctx = 64, .n_threads = 1, .reference = true }
    };
    struct pool *p = NULL;
    struct err e = { 0 };

    if (pool_open(&p, &o, &e) != OK) fail_msg("%s", e.msg);
    return p;
}

static void wait_for(struct pool *p, enum pool_state state)
{
    for (int i = 0; i < 60000 && pool_state(p, 0, NULL) != state; i++) usleep(1000);
    assert_int_equal(pool_state(p, 0, NULL), state);
}

static int run_threaded(struct engine *g)
{
    struct client a = make_client(1, 10, 4);
    struct err e = { 0 };
    int rc = engine_submit(g, a.r, &e);

    while (rc == OK && a.finish == FINISH_NONE) {
        read_events(&a);
        usleep(1000);
    }
    if (rc == OK && a.finish == FINISH_ERROR) rc = a.r->err.code;
    release_client(&a);
    return rc;
}

static void a_failed_model_is_opened_again_when_nobody_uses_it(void **state)
{
    struct pool *p = open_pool(repo(MODEL));
    struct pool_instance *m, *again;
    uint64_t finished;
    struct err e = { 0 };

    (void)state;
    log_set_level(LOG_ERROR + 1);
    wait_for(p, POOL_READY);
    m = pool_acquire(p, 0);
    assert_int_equal(run_threaded(m->engine), OK);
    fail_steps(m->engine, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(run_threaded(m->engine), E_DEVICE);
    wait_for(p, POOL_FAILED);
    assert_int_equal(pool_find(p, STR(""), &again, &e), E_DEVICE);
    assert_non_null(strstr(e.msg, "the device has failed"));
    assert_true(e.retry_ms > 0);
    /* The old instance is in use: it is not replaced yet, and still answers. */
    usleep(100000);
    assert_int_equal(pool_state(p, 0, NULL), POOL_FAILED);
    assert_int_equal(run_threaded(m->engine), E_DEVICE);
    pool_release(m);
    wait_for(p, POOL_READY);
    assert_int_equal(pool_find(p, STR(""), &again, &e), OK);
    assert_int_equal(run_threaded(again->engine), OK);
    finished = counter_get(&pool_stats(p, 0)->finished[FINISH_LENGTH]);
    assert_int_equal(finished, 2); /* one of each instance: counters do not go back */
    pool_release(again);
    pool_close(p);
    log_set_level(LOG_WARN);
}

static void a_damaged_file_is_opened_again_when_it_has_changed(void **state)
{
    char path[300], command[1600];
    struct pool_instance *m;
    struct pool *p;
    struct err e = { 0 };

    (void)state;
    log_set_level(LOG_ERROR + 1);
    snprintf(path, sizeof path, "%s/copy", temp_dir());
    snprintf(command, sizeof command, "rm -rf '%s' && cp -r '%s' '%s'", path, repo(MODEL), path);
    assert_int_equal(system(command), 0);
    p = open_pool(path);
    wait_for(p, POOL_READY);
    m = pool_acquire(p, 0);
    source_set_damaged(m->engine->plan->source, "test: the file was truncated");
    assert_int_equal(run_threaded(m->engine), E_DAMAGED);
    pool_release(m);
    wait_for(p, POOL_FAILED);
    usleep(200000); /* many times retry_ms */
    assert_int_equal(pool_state(p, 0, &e), POOL_FAILED);
    assert_int_equal(e.code, E_DAMAGED);
    snprintf(command, sizeof command, "touch '%s/changed'", path);
    assert_int_equal(system(command), 0);
    wait_for(p, POOL_READY);
    pool_close(p);
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
    log_set_level(LOG_WARN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_step_ends_its_requests_and_the_engine_goes_on),
        cmocka_unit_test(three_failed_steps_in_a_row_end_the_engine),
        cmocka_unit_test(a_lost_device_ends_all_requests_at_once),
        cmocka_unit_test(a_damaged_model_ends_the_engine),
        cmocka_unit_test(a_failed_model_is_opened_again_when_nobody_uses_it),
        cmocka_unit_test(a_damaged_file_is_opened_again_when_it_has_changed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
