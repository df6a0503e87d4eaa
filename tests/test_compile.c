/* Grammars that are compiled by the engine's compile threads: callbacks when they are done, bounded
 * queues, turns, and no jobs left when the engine closes.
 *
 * Uses the model that ships with tern. */
#include "support.h"

#include "base/budget.h"
#include "base/clock.h"
#include "base/credit.h"
#include "engine/compile.h"
#include "engine/engine.h"
#include "engine/engine_impl.h"
#include "engine/info.h"
#include "engine/request.h"
#include "engine/stats.h"
#include "grammar/rules.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct engine *open_engine(void)
{
    struct engine_opt o = { .n_ctx = 64, .manual = true, .kv_type = DT_NONE, .n_threads = 1 };
    struct engine *g = NULL;
    struct err e = { 0 };

    if (engine_open(&g, repo("models/tern-tales.gguf"), &o, &e) != OK) fail_msg("%s", e.msg);
    return g;
}

struct finished {
    pthread_mutex_t lock;
    struct compile_job *list; /* latest first */
    int n;
};

static void on_done(struct compile_job *j)
{
    struct finished *t = j->arg;

    pthread_mutex_lock(&t->lock);
    j->next = t->list;
    t->list = j;
    t->n++;
    pthread_mutex_unlock(&t->lock);
}

static int count_finished(struct finished *t)
{
    int n;

    pthread_mutex_lock(&t->lock);
    n = t->n;
    pthread_mutex_unlock(&t->lock);
    return n;
}

static void release_jobs(struct finished *t)
{
    for (struct compile_job *j = t->list, *next; j; j = next) {
        next = j->next;
        job_unref(j);
    }
    t->list = NULL;
    t->n = 0;
}

static struct compile_job *compile_async(struct engine *g, struct finished *t, const char *text,
                                         int *rc)
{
    struct grammar_spec spec = { .kind = GRAMMAR_GBNF, .text = str_c(text) };
    struct compile_job *j = NULL;
    struct grammar *out = NULL;
    struct err e = { 0 };

    *rc = engine_grammar_async(g, &spec, 0, on_done, t, NULL, &out, &j, &e);
    assert_null(out);
    return j;
}

static void grammars_are_compiled_by_a_separate_thread(void **state)
{
    struct engine *g = open_engine();
    struct finished t = { .lock = PTHREAD_MUTEX_INITIALIZER };
    struct grammar_spec spec = { .kind = GRAMMAR_GBNF, .text = STR("root ::= \"a\"") };
    struct grammar *kept = NULL;
    struct compile_job *good, *bad, *none = NULL;
    struct err e = { 0 };
    int rc;

    (void)state;
    good = compile_async(g, &t, "root ::= \"a\"", &rc);
    bad = compile_async(g, &t, "root ::= nothing", &rc);
    for (int i = 0; i < 60000 && count_finished(&t) < 2; i++) usleep(1000);
    assert_int_equal(count_finished(&t), 2);
    assert_int_equal(good->rc, OK);
    assert_non_null(good->g);
    assert_int_equal(bad->rc, E_INVALID);
    assert_non_null(strstr(bad->err.msg, "nothing"));
    /* A grammar that was compiled before is returned at once. */
    assert_int_equal(engine_grammar_async(g, &spec, 0, on_done, &t, NULL, &kept, &none, &e), OK);
    assert_ptr_equal(kept, good->g);
    assert_null(none);
    grammar_unref(kept);
    job_unref(good);
    job_unref(bad);
    release_jobs(&t);
    engine_close(g);
}

/* ---- grammars that take as long as the test says ---- */

static atomic_bool released; /* the builds below end */
static atomic_int n_held;    /* of them that wait for it */

static int hold(struct rules *g, struct str text)
{
    atomic_fetch_add(&n_held, 1);
    while (!atomic_load(&released) && budget_look(g->budget)) usleep(1000);
    g->root = rules_add(g, STR("root"), rules_literal(g, text));
    return OK;
}

/* Takes few steps. */
static int build_held(struct rules *g, struct str text, struct err *e)
{
    (void)e;
    return hold(g, text);
}

/* Takes more steps than a first turn has. */
static int build_long(struct rules *g, struct str text, struct err *e)
{
    (void)e;
    for (int i = 0; i <= COMPILE_TURN / 1000; i++)
        if (!budget_step(g->budget, 1000))
            return OK; /* whatever it returns, the budget has ended */
    return hold(g, text);
}

static struct compile_job *compile_of(struct engine *g, uint32_t tenant, struct finished *t,
                                      grammar_build_fn *build, int number, int *rc)
{
    char text[32];
    struct grammar_spec spec = { .kind = GRAMMAR_RULES, .build = build };
    struct compile_job *j = NULL;
    struct grammar *out = NULL;
    struct err e = { 0 };

    spec.text = str_of(text, (size_t)snprintf(text, sizeof text, "number %d", number));
    *rc = engine_grammar_async(g, &spec, tenant, on_done, t, NULL, &out, &j, &e);
    return j;
}

static struct compile_job *compile_built(struct engine *g, struct finished *t,
                                         grammar_build_fn *build, int number, int *rc)
{
    return compile_of(g, 0, t, build, number, rc);
}

static void wait_until(int n, int (*count)(struct finished *t), struct finished *t)
{
    for (int i = 0; i < 60000 && count(t) < n; i++) usleep(1000);
    assert_int_equal(count(t), n);
}

static int count_held(struct finished *t)
{
    (void)t;
    return atomic_load(&n_held);
}

static void reset_holds(void)
{
    atomic_store(&released, false);
    atomic_store(&n_held, 0);
}

static void the_compile_queue_is_bounded_and_ends_with_the_engine(void **state)
{
    enum { N = COMPILE_JOBS + 10 };
    struct engine *g = open_engine();
    struct finished t = { .lock = PTHREAD_MUTEX_INITIALIZER };
    struct compile_job *jobs[N];
    int n = 0, rc;

    (void)state;
    reset_holds();
    for (int i = 0; i < N; i++) {
        if ((jobs[n] = compile_built(g, &t, build_held, i, &rc))) n++;
        else assert_int_equal(rc, E_QUEUE_FULL);
    }
    assert_int_equal(n, COMPILE_JOBS);
    wait_until(COMPILE_THREADS, count_held, &t);
    engine_close(g);                         /* also ends those that are being compiled */
    assert_int_equal(count_finished(&t), n); /* every job calls back */
    for (int i = 0; i < n; i++) {
        assert_int_equal(jobs[i]->rc, E_SHUTDOWN);
        job_unref(jobs[i]);
    }
    release_jobs(&t);
}

static void grammars_that_take_long_stop_nobody_else(void **state)
{
    struct engine *g = open_engine();
    struct finished longs = { .lock = PTHREAD_MUTEX_INITIALIZER }, t = longs;
    struct compile_job *jobs[COMPILE_LONG_JOBS], *j;
    int rc;

    (void)state;
    reset_holds();
    for (int i = 0; i < COMPILE_LONG_JOBS; i++)
        assert_non_null(jobs[i] = compile_built(g, &longs, build_long, i, &rc));
    wait_until(COMPILE_THREADS - 1, count_held, &longs); /* all threads but one are taken */
    for (int i = 0; i < 40; i++) {
        char text[64];
        snprintf(text, sizeof text, "root ::= [a-z]{%d}", i + 1);
        j = compile_async(g, &t, text, &rc);
        wait_until(i + 1, count_finished, &t);
        assert_int_equal(j->rc, OK);
        job_unref(j);
    }
    j = compile_built(g, &t, build_long, -1, &rc); /* one more than may wait for a second turn */
    wait_until(41, count_finished, &t);
    assert_int_equal(j->rc, E_QUEUE_FULL);
    assert_true(j->err.retry_ms > 0);
    job_unref(j);
    assert_int_equal(count_finished(&longs), 0);
    assert_int_equal(atomic_load(&n_held), COMPILE_THREADS - 1);
    atomic_store(&released, true);
    wait_until(COMPILE_LONG_JOBS, count_finished, &longs);
    for (int i = 0; i < COMPILE_LONG_JOBS; i++) {
        assert_int_equal(jobs[i]->rc, OK);
        job_unref(jobs[i]);
    }
    release_jobs(&t);
    release_jobs(&longs);
    engine_close(g);
}

/* ---- tenants ---- */

static atomic_bool gate;     /* one more build waits for it */
static atomic_int order[16]; /* numbers of builds, as they began */
static atomic_int n_order;

static int build_gated(struct rules *g, struct str text, struct err *e)
{
    (void)e;
    atomic_fetch_add(&n_held, 1);
    while (!atomic_load(&gate) && budget_look(g->budget)) usleep(1000);
    g->root = rules_add(g, STR("root"), rules_literal(g, text));
    return OK;
}

static int build_noted(struct rules *g, struct str text, struct err *e)
{
    int64_t number = 0;

    (void)e;
    str_to_i64(str_skip(text, strlen("number ")), &number);
    atomic_store(&order[atomic_fetch_add(&n_order, 1)], (int)number);
    g->root = rules_add(g, STR("root"), rules_literal(g, text));
    return OK;
}

/* All threads but one are held, so that jobs begin one after the other. */
static void tenants_take_turns(void **state)
{
    static const int sent[] = { 10, 11, 12, 13, 20, 21, 30 }; /* the tenant is the first digit */
    static const int begun[] = { 10, 20, 30, 11, 21, 12, 13 };
    enum { N = 7 };
    struct engine *g = open_engine();
    struct finished t = { .lock = PTHREAD_MUTEX_INITIALIZER };
    struct compile_job *jobs[COMPILE_THREADS + N];
    int n = 0, rc;

    (void)state;
    reset_holds();
    atomic_store(&gate, false);
    atomic_store(&n_order, 0);
    for (int i = 0; i < COMPILE_THREADS - 1; i++)
        assert_non_null(jobs[n++] = compile_of(g, 1, &t, build_held, i, &rc));
    assert_non_null(jobs[n++] = compile_of(g, 1, &t, build_gated, 9, &rc));
    wait_until(COMPILE_THREADS, count_held, &t);
    for (int i = 0; i < N; i++)
        assert_non_null(jobs[n++] =
                            compile_of(g, (uint32_t)sent[i] / 10, &t, build_noted, sent[i], &rc));
    atomic_store(&gate, true);
    wait_until(N + 1, count_finished, &t);
    for (int i = 0; i < N; i++) assert_int_equal(atomic_load(&order[i]), begun[i]);
    atomic_store(&released, true);
    wait_until(n, count_finished, &t);
    for (int i = 0; i < n; i++) job_unref(jobs[i]);
    release_jobs(&t);
    engine_close(g);
}

static void one_tenant_takes_no_room_from_others(void **state)
{
    struct engine *g = open_engine();
    struct finished t = { .lock = PTHREAD_MUTEX_INITIALIZER }, more = t, held = t;
    struct compile_job *longs[COMPILE_LONG_JOBS + 1], *waiting[COMPILE_JOBS], *j;
    int rc, n = 0;

    (void)state;
    reset_holds();
    for (int i = 0; i < COMPILE_LONG_JOBS; i++)
        assert_non_null(longs[i] = compile_of(g, 1, &t, build_long, i, &rc));
    wait_until(COMPILE_THREADS - 1, count_held, &t);
    j = compile_of(g, 1, &more, build_long, 100, &rc); /* its second turn is refused */
    wait_until(1, count_finished, &more);
    assert_int_equal(j->rc, E_QUEUE_FULL);
    job_unref(j);
    assert_non_null(longs[COMPILE_LONG_JOBS] = compile_of(g, 2, &t, build_long, 200, &rc));
    /* The thread for first turns is held as well, and the queue for them filled. */
    assert_non_null(waiting[n++] = compile_of(g, 1, &held, build_held, 300, &rc));
    wait_until(COMPILE_THREADS, count_held, &held);
    for (int i = 0; n < COMPILE_JOBS; i++)
        assert_non_null(waiting[n++] = compile_of(g, 1, &held, build_held, 301 + i, &rc));
    assert_null(compile_of(g, 1, &held, build_held, 400, &rc));
    assert_int_equal(rc, E_QUEUE_FULL);
    assert_non_null(j = compile_of(g, 2, &more, build_held, 500, &rc));
    assert_int_equal(count_finished(&t), 0);
    atomic_store(&released, true);
    wait_until(COMPILE_LONG_JOBS + 1, count_finished, &t);
    wait_until(COMPILE_JOBS, count_finished, &held);
    wait_until(2, count_finished, &more);
    for (int i = 0; i <= COMPILE_LONG_JOBS; i++) {
        assert_int_equal(longs[i]->rc, OK);
        job_unref(longs[i]);
    }
    for (int i = 0; i < n; i++) job_unref(waiting[i]);
    assert_int_equal(j->rc, OK);
    job_unref(j);
    release_jobs(&t);
    release_jobs(&more);
    release_jobs(&held);
    engine_close(g);
}

/* ---- credit ---- */

static int build_spending(struct rules *g, struct str text, struct err *e)
{
    uint64_t start_ns = clock_thread_ns();

    (void)e;
    /* 50 s pass until the tenant has some again, however busy the machine is */
    while (clock_thread_ns() - start_ns <= 2 * CREDIT_MAX_NS) continue;
    g->root = rules_add(g, STR("root"), rules_literal(g, text));
    return OK;
}

/* The fourth thread is held by the tenant that has spent its credit, and the other three compile for
 * the other tenant alone. */
static void a_tenant_that_spent_its_credit_has_one_slow_thread(void **state)
{
    struct engine *g = open_engine();
    struct finished t = { .lock = PTHREAD_MUTEX_INITIALIZER }, held = t;
    struct compile_job *jobs[4];
    int rc;

    (void)state;
    reset_holds();
    assert_non_null(jobs[0] = compile_of(g, 1, &t, build_spending, 0, &rc));
    wait_until(1, count_finished, &t);
    assert_non_null(jobs[1] = compile_of(g, 1, &held, build_held, 1, &rc));
    wait_until(1, count_held, &held);
    assert_non_null(jobs[2] = compile_of(g, 1, &held, build_held, 2, &rc));
    assert_non_null(jobs[3] = compile_of(g, 2, &t, build_noted, 3, &rc));
    wait_until(2, count_finished, &t);
    assert_int_equal(atomic_load(&n_held), 1); /* the next one of tenant 1 waits */
    atomic_store(&released, true);
    wait_until(2, count_finished, &held);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(jobs[i]->rc, OK);
        job_unref(jobs[i]);
    }
    release_jobs(&t);
    release_jobs(&held);
    engine_close(g);
}

static void a_requester_that_leaves_stops_its_compilation(void **state)
{
    struct engine *g = open_engine();
    struct finished t = { .lock = PTHREAD_MUTEX_INITIALIZER };
    struct compile_job *first, *second;
    int rc;

    (void)state;
    reset_holds();
    first = compile_built(g, &t, build_held, 1, &rc);
    second = compile_built(g, &t, build_long, 2, &rc);
    wait_until(2, count_held, &t);
    atomic_store(&second->dropped, true);
    wait_until(1, count_finished, &t);
    assert_int_equal(second->rc, E_CANCELLED);
    atomic_store(&first->dropped, true);
    wait_until(2, count_finished, &t);
    assert_int_equal(first->rc, E_CANCELLED);
    assert_int_equal(counter_get(&engine_stats(g)->grammars_cancelled), 2);
    assert_int_equal(gauge_get(&engine_stats(g)->grammar_jobs), 0);
    job_unref(first);
    job_unref(second);
    release_jobs(&t);
    engine_close(g);
}

static void cached_grammars_are_bounded_by_bytes(void **state)
{
    enum { MANY = 30 };
    struct engine *g = open_engine();
    struct engine_stats *stats = engine_stats(g);
    struct grammar *kept[MANY] = { NULL };
    size_t one = 0;

    (void)state;
    for (int i = 0; i < MANY; i++) {
        char text[64];
        struct grammar_spec spec = { .kind = GRAMMAR_GBNF };
        spec.text = str_of(text, (size_t)snprintf(text, sizeof text, "root ::= [a-z]{%d}", i + 10));
        assert_int_equal(engine_grammar(g, &spec, &kept[i], NULL), OK);
        if (!one) {
            one = (size_t)gauge_get(&stats->grammar_bytes);
            assert_true(one > grammar_bytes(kept[0]));
            g->guided.max_cached_bytes = 4 * one;
        }
    }
    assert_true(gauge_get(&stats->grammar_bytes) > 2 * (int64_t)one);
    assert_true(gauge_get(&stats->grammar_bytes) <= 4 * (int64_t)one);
    for (int i = 0; i < MANY; i++) grammar_unref(kept[i]); /* evicted ones are still valid */
    engine_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grammars_are_compiled_by_a_separate_thread),
        cmocka_unit_test(the_compile_queue_is_bounded_and_ends_with_the_engine),
        cmocka_unit_test(grammars_that_take_long_stop_nobody_else),
        cmocka_unit_test(tenants_take_turns),
        cmocka_unit_test(one_tenant_takes_no_room_from_others),
        cmocka_unit_test(a_tenant_that_spent_its_credit_has_one_slow_thread),
        cmocka_unit_test(a_requester_that_leaves_stops_its_compilation),
        cmocka_unit_test(cached_grammars_are_bounded_by_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
