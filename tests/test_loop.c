/* The event loop: wake-ups from other threads, timers, signals, stopping. Reads no files. */
#include "support.h"

#include "base/clock.h"
#include "net/loop.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

enum { THREADS = 4, WAKES = 20000 };

static struct loop *loop_new(void)
{
    struct loop *l = NULL;
    struct err e = { 0 };

    if (loop_open(&l, &e) != OK) fail_msg("%s", e.msg);
    return l;
}

/* ---- wake-ups ---- */

struct wakes {
    struct loop *l;
    atomic_int posted, seen, runs;
};

static void count_wake(void *arg)
{
    struct wakes *w = arg;
    int posted = atomic_load_explicit(&w->posted, memory_order_relaxed);

    atomic_fetch_add(&w->runs, 1);
    atomic_store(&w->seen, posted);
    if (posted == THREADS * WAKES) loop_stop(w->l);
}

static void *wake_repeatedly(void *arg)
{
    struct wakes *w = arg;

    for (int i = 0; i < WAKES; i++) {
        atomic_fetch_add_explicit(&w->posted, 1, memory_order_relaxed); /* loop_wake orders it */
        loop_wake(w->l);
    }
    return NULL;
}

static void no_wake_up_from_any_thread_is_lost(void **state)
{
    struct wakes w = { .l = loop_new() };
    pthread_t t[THREADS];

    (void)state;
    loop_on_wake(w.l, count_wake, &w);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&t[i], NULL, wake_repeatedly, &w), 0);
    loop_run(w.l); /* hangs if a wake-up is lost */
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    assert_int_equal(w.seen, THREADS * WAKES);
    assert_true(w.runs >= 1 && w.runs <= THREADS * WAKES);
    loop_close(w.l);
}

static void stop_it(void *arg) { loop_stop(arg); }

static void wake_ups_before_the_loop_runs_are_merged(void **state)
{
    struct wakes w = { .l = loop_new() };
    struct loop_timer *t = loop_timer(w.l, stop_it, w.l);

    (void)state;
    loop_on_wake(w.l, count_wake, &w);
    for (int i = 0; i < 1000; i++) loop_wake(w.l);
    loop_timer_set(t, 30);
    loop_run(w.l);
    assert_int_equal(w.runs, 1);
    loop_timer_close(t);
    loop_close(w.l);
}

struct again {
    struct loop *l;
    int runs;
};

static void wake_again(void *arg)
{
    struct again *a = arg;

    if (++a->runs < 100) loop_wake(a->l);
    else loop_stop(a->l);
}

static void a_wake_up_from_inside_the_callback_runs_it_again(void **state)
{
    struct again a = { .l = loop_new() };

    (void)state;
    loop_on_wake(a.l, wake_again, &a);
    loop_wake(a.l);
    loop_run(a.l);
    assert_int_equal(a.runs, 100);
    loop_close(a.l);
}

/* ---- stopping ---- */

static void *run_loop(void *arg)
{
    loop_run(arg);
    return NULL;
}

static void stop_from_another_thread_ends_the_run(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        struct loop *l = loop_new();
        pthread_t t;
        assert_int_equal(pthread_create(&t, NULL, run_loop, l), 0);
        if (i & 1) usleep(500);
        if (i & 2) loop_wake(l);
        loop_stop(l); /* possibly before loop_run */
        pthread_join(t, NULL);
        loop_close(l);
    }
}

/* ---- timers ---- */

struct ticks {
    struct loop *l;
    struct loop_timer *t, *other, *end;
    int n;
    bool other_ran;
    uint64_t first_ns;
};

static void count_tick(void *arg)
{
    struct ticks *k = arg;

    if (k->n++ == 0) k->first_ns = clock_ns();
    if (k->n == 2) loop_timer_stop(k->other);
    if (k->n < 5) loop_timer_set(k->t, 2);
    else loop_stop(k->l);
}

static void other_ran(void *arg) { ((struct ticks *)arg)->other_ran = true; }

static void timers_run_once_repeat_when_set_again_and_stop(void **state)
{
    struct ticks k = { .l = loop_new() };
    uint64_t start = clock_ns();

    (void)state;
    k.t = loop_timer(k.l, count_tick, &k);
    k.other = loop_timer(k.l, other_ran, &k);
    k.end = loop_timer(k.l, stop_it, k.l); /* never set */
    loop_timer_set(k.t, 1);
    loop_timer_set(k.t, 20); /* the later call counts */
    loop_timer_set(k.other, 60000);
    loop_run(k.l);
    assert_int_equal(k.n, 5);
    assert_true(k.first_ns - start >= 10000000u);
    assert_false(k.other_ran);
    loop_timer_close(k.t);
    loop_timer_close(k.other);
    loop_timer_close(k.end);
    loop_timer_close(NULL);
    loop_close(k.l);
}

static void close_itself(void *arg)
{
    struct ticks *k = arg;

    loop_timer_close(k->t);
    loop_stop(k->l);
}

static void a_timer_may_close_itself(void **state)
{
    struct ticks k = { .l = loop_new() };

    (void)state;
    k.t = loop_timer(k.l, close_itself, &k);
    loop_timer_set(k.t, 1);
    loop_run(k.l);
    loop_close(k.l);
}

/* ---- signals ---- */

struct heard {
    struct loop *l;
    int n;
};

static void count_signal(void *arg)
{
    struct heard *h = arg;

    if (++h->n == 2) loop_stop(h->l);
    else kill(getpid(), SIGHUP);
}

static void signals_run_callbacks_on_the_loop(void **state)
{
    struct heard h = { .l = loop_new() };
    struct err e = { 0 };

    (void)state;
    assert_int_equal(loop_on_signal(h.l, SIGUSR1, count_signal, &h, &e), OK);
    assert_int_equal(loop_on_signal(h.l, SIGHUP, count_signal, &h, &e), OK);
    kill(getpid(), SIGUSR1);
    loop_run(h.l);
    assert_int_equal(h.n, 2);
    assert_int_not_equal(loop_on_signal(h.l, 4711, count_signal, &h, &e), OK);
    loop_close(h.l);
    loop_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_wake_up_from_any_thread_is_lost),
        cmocka_unit_test(wake_ups_before_the_loop_runs_are_merged),
        cmocka_unit_test(a_wake_up_from_inside_the_callback_runs_it_again),
        cmocka_unit_test(stop_from_another_thread_ends_the_run),
        cmocka_unit_test(timers_run_once_repeat_when_set_again_and_stop),
        cmocka_unit_test(a_timer_may_close_itself),
        cmocka_unit_test(signals_run_callbacks_on_the_loop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
