/* Grammars that are compiled by the engine's compile thread: callbacks when they are done, a
 * bounded queue, and no jobs left when the engine closes.
 *
 * Uses the model that ships with tern. */
#include "support.h"

#include "engine/compile.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "engine/request.h"
#include "engine/stats.h"

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

    *rc = engine_grammar_async(g, &spec, on_done, t, NULL, &out, &j, &e);
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
    for (int i = 0; i < 5000 && count_finished(&t) < 2; i++) usleep(1000);
    assert_int_equal(count_finished(&t), 2);
    assert_int_equal(good->rc, OK);
    assert_non_null(good->g);
    assert_int_equal(bad->rc, E_INVALID);
    assert_non_null(strstr(bad->err.msg, "nothing"));
    /* A grammar that was compiled before is returned at once. */
    assert_int_equal(engine_grammar_async(g, &spec, on_done, &t, NULL, &kept, &none, &e), OK);
    assert_ptr_equal(kept, good->g);
    assert_null(none);
    grammar_unref(kept);
    job_unref(good);
    job_unref(bad);
    release_jobs(&t);
    engine_close(g);
}

static void the_compile_queue_is_bounded_and_ends_with_the_engine(void **state)
{
    enum { N = COMPILE_JOBS + 40 };
    struct engine *g = open_engine();
    struct finished t = { .lock = PTHREAD_MUTEX_INITIALIZER };
    struct compile_job *jobs[N];
    int n = 0, n_full = 0, n_ended = 0, rc;

    (void)state;
    for (int i = 0; i < N; i++) { /* each compiles for tens of milliseconds */
        char text[120];
        char x = (char)('a' + i % 10), y = (char)('l' + i / 10);
        snprintf(text, sizeof text, "root ::= (\"%c\" | \"%c\")* \"%c\" (\"%c\" | \"%c\"){20}", x,
                 y, x, x, y);
        if ((jobs[n] = compile_async(g, &t, text, &rc))) n++;
        else assert_int_equal(rc, E_QUEUE_FULL), n_full++;
    }
    assert_true(n >= COMPILE_JOBS && n_full > 0);
    atomic_store(&jobs[n - 1]->dropped, true);
    engine_close(g);
    assert_int_equal(count_finished(&t), n); /* every job calls back */
    for (int i = 0; i < n; i++) {
        n_ended += jobs[i]->rc == E_SHUTDOWN;
        assert_true(jobs[i]->rc == E_SHUTDOWN || jobs[i]->rc == E_INVALID);
        job_unref(jobs[i]);
    }
    assert_true(n_ended > 0);
    release_jobs(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grammars_are_compiled_by_a_separate_thread),
        cmocka_unit_test(the_compile_queue_is_bounded_and_ends_with_the_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
