#include "support.h"

#include "base/clock.h"
#include "base/par.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define MOST 8

struct count {
    struct par *p;
    atomic_int calls[MOST];
    int plain[MOST];             /* each written by one thread, read by all behind a barrier */
    int sums[MOST];
    atomic_int seen[10000];
    int n, chunk;
};

static struct par *team(int n)
{
    struct par *p = NULL;
    struct err e = { 0 };

    if (par_open(&p, (struct par_opt){ .n_threads = n }, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(par_n(p), n);
    return p;
}

static void count_call(void *arg, int thread, int n_threads)
{
    struct count *c = arg;
    assert_true(thread < n_threads);
    atomic_fetch_add(&c->calls[thread], 1);
    c->plain[thread]++;
}

static void every_thread_runs_once_a_call(void **state)
{
    (void)state;
    for (int n = 1; n <= MOST; n++) {
        struct count c = { .p = team(n) };
        for (int i = 0; i < 2000; i++) par_run(c.p, count_call, &c);
        for (int t = 0; t < n; t++) assert_int_equal(atomic_load(&c.calls[t]), 2000);
        for (int t = 0; t < n; t++) assert_int_equal(c.plain[t], 2000);
        par_close(c.p);
    }
}

static void add_up(void *arg, int thread, int n_threads)
{
    struct count *c = arg;

    for (int round = 0; round < 200; round++) {
        c->plain[thread] = round + thread;
        par_barrier(c->p);
        int sum = 0;
        for (int t = 0; t < n_threads; t++) sum += c->plain[t];
        c->sums[thread] += sum;
        par_barrier(c->p);
    }
}

static void barriers_show_what_others_wrote(void **state)
{
    (void)state;
    for (int n = 1; n <= MOST; n++) {
        struct count c = { .p = team(n) };
        int want = 0;
        for (int round = 0; round < 200; round++)
            for (int t = 0; t < n; t++) want += round + t;
        par_run(c.p, add_up, &c);
        for (int t = 0; t < n; t++) assert_int_equal(c.sums[t], want);
        par_close(c.p);
    }
}

static void take_pieces(void *arg, int thread, int n_threads)
{
    struct count *c = arg;
    int begin, end;

    (void)thread;
    (void)n_threads;
    for (int round = 0; round < 3; round++) {            /* the barrier winds the counter back */
        while (par_next(c->p, c->n, c->chunk, &begin, &end)) {
            assert_true(begin < end && end <= c->n);
            for (int i = begin; i < end; i++) atomic_fetch_add(&c->seen[i], 1);
        }
        par_barrier(c->p);
    }
}

static void pieces_cover_the_range_once(void **state)
{
    static const int sizes[][2] = { { 10000, 1 }, { 9999, 7 }, { 3, 100 }, { 0, 5 }, { 1, 1 } };
    (void)state;

    for (int n = 1; n <= 3; n++) for (int s = 0; s < 5; s++) {
        static struct count c;
        memset(&c, 0, sizeof c);
        c.p = team(n), c.n = sizes[s][0], c.chunk = sizes[s][1];
        par_run(c.p, take_pieces, &c);
        for (int i = 0; i < c.n; i++) assert_int_equal(atomic_load(&c.seen[i]), 3);
        par_close(c.p);
    }
}

static void shares_cover_the_range_once(void **state)
{
    (void)state;
    for (int n = 0; n < 70; n++) for (int unit = 1; unit < 20; unit += 3) for (int t = 1; t < 9; t++) {
        int next = 0, begin, end;
        for (int i = 0; i < t; i++) {
            par_share(n, unit, i, t, &begin, &end);
            assert_int_equal(begin, next);
            assert_true(end >= begin && (end % unit == 0 || end == n));
            next = end;
        }
        assert_int_equal(next, n);
    }
}

static double cpu_ms(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e3;
}

static void an_idle_team_uses_no_processor(void **state)
{
    struct count c = { .p = team(4) };
    (void)state;

    par_run(c.p, count_call, &c);
    usleep(20000);
    double before = cpu_ms();
    usleep(500000);
    assert_true(cpu_ms() - before < 25);
    par_run(c.p, count_call, &c);                        /* and wakes up again */
    assert_int_equal(atomic_load(&c.calls[3]), 2);
    par_close(c.p);
}

static void cores_respect_affinity(void **state)
{
    cpu_set_t mine;
    (void)state;

    assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
    assert_true(par_cores() >= 1 && par_cores() <= CPU_COUNT(&mine));
}

static void pinned_teams_and_crowds_work(void **state)
{
    struct par *p = NULL;
    struct err e = { 0 };
    (void)state;

    assert_int_equal(par_open(&p, (struct par_opt){ .n_threads = 5, .pin = true }, &e), OK);
    struct count c = { .p = p };
    par_run(p, add_up, &c);
    assert_int_equal(c.sums[0], c.sums[4]);
    par_close(p);
    par_close(NULL);
}

static void too_many_threads_are_refused(void **state)
{
    struct par *p = NULL;
    struct err e = { 0 };
    (void)state;

    assert_int_equal(par_open(&p, (struct par_opt){ .n_threads = -1 }, &e), E_INVALID);
    assert_int_equal(par_open(&p, (struct par_opt){ .n_threads = 1 << 20 }, &e), E_INVALID);
    assert_null(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_runs_once_a_call),
        cmocka_unit_test(barriers_show_what_others_wrote),
        cmocka_unit_test(pieces_cover_the_range_once),
        cmocka_unit_test(shares_cover_the_range_once),
        cmocka_unit_test(an_idle_team_uses_no_processor),
        cmocka_unit_test(cores_respect_affinity),
        cmocka_unit_test(pinned_teams_and_crowds_work),
        cmocka_unit_test(too_many_threads_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
