/* Worker threads (base/par): every thread runs once per call, work is shared without gaps or
 * overlaps, barriers, and calls that do not wait for late threads.
 *
 * Reads no files. Random delays imitate threads that lose their processor. */
#include "support.h"

#include "base/mem.h"
#include "base/par.h"
#include "base/rng.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define MOST 8

struct count {
    struct par *p;
    atomic_int calls[MOST];
    int plain[MOST]; /* each written by one thread, read by all after a barrier */
    int sums[MOST];
    atomic_int seen[10000];
    int n, chunk;
};

static struct par *open_team(int n)
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

static void every_thread_runs_once_per_call(void **state)
{
    (void)state;
    for (int n = 1; n <= MOST; n++) {
        struct count c = { .p = open_team(n) };
        for (int i = 0; i < 2000; i++) par_run(c.p, count_call, &c);
        for (int t = 0; t < n; t++) assert_int_equal(atomic_load(&c.calls[t]), 2000);
        for (int t = 0; t < n; t++) assert_int_equal(c.plain[t], 2000);
        par_close(c.p);
    }
}

static void sum_after_barrier(void *arg, int thread, int n_threads)
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

static void writes_before_a_barrier_are_visible_after_it(void **state)
{
    (void)state;
    for (int n = 1; n <= MOST; n++) {
        struct count c = { .p = open_team(n) };
        int want = 0;
        for (int round = 0; round < 200; round++)
            for (int t = 0; t < n; t++) want += round + t;
        par_run(c.p, sum_after_barrier, &c);
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
    for (int round = 0; round < 3; round++) { /* the barrier resets the counter */
        while (par_next(c->p, c->n, c->chunk, &begin, &end)) {
            assert_true(begin < end && end <= c->n);
            for (int i = begin; i < end; i++) atomic_fetch_add(&c->seen[i], 1);
        }
        par_barrier(c->p);
    }
}

static void pieces_cover_the_range_exactly_once(void **state)
{
    static const int sizes[][2] = { { 10000, 1 }, { 9999, 7 }, { 3, 100 }, { 0, 5 }, { 1, 1 } };
    (void)state;

    for (int n = 1; n <= 3; n++)
        for (int s = 0; s < 5; s++) {
            static struct count c;
            memset(&c, 0, sizeof c);
            c.p = open_team(n), c.n = sizes[s][0], c.chunk = sizes[s][1];
            par_run(c.p, take_pieces, &c);
            for (int i = 0; i < c.n; i++) assert_int_equal(atomic_load(&c.seen[i]), 3);
            par_close(c.p);
        }
}

/* The work of one run. mark is cleared when the run has returned, so that a thread that arrives
 * late is found. */
struct job {
    struct par *p;
    unsigned mark; /* 0: the run has returned */
    int n, chunk;
    int done[64]; /* not atomic: two threads on one index are a data race */
    atomic_int inside;
};

/* Waits sometimes, like a thread whose processor runs something else. */
static void delay_at_random(struct rng *r)
{
    switch (rng_u64(r) % 8) {
    case 0: usleep((unsigned)(rng_u64(r) % 50)); break;
    case 1: sched_yield(); break;
    case 2:
        for (volatile int i = 0; i < 500; i++) continue;
        break;
    default: break;
    }
}

static void do_job(void *arg, int thread, int n_threads)
{
    static _Thread_local struct rng rng;
    struct job *j = arg;
    unsigned mark = j->mark;
    int begin, end;

    if (!rng.s[0]) rng_seed(&rng, (uint64_t)thread + 1);
    assert_true(mark != 0 && thread < n_threads);
    atomic_fetch_add(&j->inside, 1);
    delay_at_random(&rng);
    while (par_next(j->p, j->n, j->chunk, &begin, &end)) {
        delay_at_random(&rng);
        for (int i = begin; i < end; i++) j->done[i]++;
    }
    delay_at_random(&rng);
    assert_int_equal(j->mark, mark);
    atomic_fetch_sub(&j->inside, 1);
}

static void par_run_any_does_all_work_once_and_no_thread_remains_inside(void **state)
{
    struct job *jobs = mem_array(16, sizeof *jobs);
    struct rng rng;

    (void)state;
    rng_seed(&rng, 7);
    for (int n = 1; n <= MOST; n++) {
        struct par *p = open_team(n);
        for (unsigned run = 1; run <= 1500; run++) {
            struct job *j = &jobs[run % 16];
            memset(j, 0, sizeof *j);
            j->p = p, j->mark = run;
            j->n = (int)(rng_u64(&rng) % 64), j->chunk = 1 + (int)(rng_u64(&rng) % 5);
            if (run % 11 == 0) { /* both kinds of run alternate */
                par_run(p, do_job, j);
            } else {
                par_run_any(p, do_job, j);
            }
            assert_int_equal(atomic_load(&j->inside), 0);
            for (int i = 0; i < j->n; i++) assert_int_equal(j->done[i], 1);
            memset(j, 0, sizeof *j); /* a late thread would read a mark of 0 */
            if (run % 7 == 0) delay_at_random(&rng);
        }
        par_close(p);
    }
    mem_free(jobs);
}

static void take_any_pieces(void *arg, int thread, int n_threads)
{
    struct count *c = arg;
    int begin, end;

    (void)n_threads;
    while (par_next(c->p, c->n, c->chunk, &begin, &end))
        for (int i = begin; i < end; i++) atomic_fetch_add(&c->seen[i], 1);
    c->plain[thread]++; /* read by the caller after the run */
}

/* All threads share one processor: most workers find no work left. */
static void par_run_any_does_not_wait_for_threads_without_a_processor(void **state)
{
    static struct count c;
    cpu_set_t mine, one;
    int cpu = 0, calls = 0;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
    while (!CPU_ISSET((unsigned)cpu, &mine)) cpu++;
    CPU_ZERO(&one);
    CPU_SET((unsigned)cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    c.p = open_team(4), c.n = 100, c.chunk = 3;
    for (int i = 0; i < 2000; i++) par_run_any(c.p, take_any_pieces, &c);
    for (int i = 0; i < c.n; i++) assert_int_equal(atomic_load(&c.seen[i]), 2000);
    for (int t = 1; t < 4; t++) calls += c.plain[t];
    assert_int_equal(c.plain[0], 2000);
    assert_true(calls < 3 * 2000);
    par_close(c.p);
    sched_setaffinity(0, sizeof mine, &mine);
}

static void shares_cover_the_range_exactly_once(void **state)
{
    (void)state;
    for (int n = 0; n < 70; n++)
        for (int unit = 1; unit < 20; unit += 3)
            for (int t = 1; t < 9; t++) {
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
    struct count c = { .p = open_team(4) };
    double used = 0;
    (void)state;

    par_run(c.p, count_call, &c);
    for (int i = 0; i < 60; i++) { /* its threads fall asleep late on a busy machine */
        double before = cpu_ms();
        usleep(500000);
        if ((used = cpu_ms() - before) < 25) break;
    }
    assert_true(used < 25);
    par_run(c.p, count_call, &c); /* the team wakes up again */
    assert_int_equal(atomic_load(&c.calls[3]), 2);
    par_close(c.p);
}

static void the_core_count_respects_the_cpu_affinity(void **state)
{
    cpu_set_t mine;
    (void)state;

    assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
    assert_true(par_cores() >= 1 && par_cores() <= CPU_COUNT(&mine));
}

static void pinned_teams_work_also_with_more_threads_than_cores(void **state)
{
    struct par *p = NULL;
    struct err e = { 0 };
    (void)state;

    assert_int_equal(par_open(&p, (struct par_opt){ .n_threads = 5, .pin = true }, &e), OK);
    struct count c = { .p = p };
    par_run(p, sum_after_barrier, &c);
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
        cmocka_unit_test(every_thread_runs_once_per_call),
        cmocka_unit_test(writes_before_a_barrier_are_visible_after_it),
        cmocka_unit_test(pieces_cover_the_range_exactly_once),
        cmocka_unit_test(par_run_any_does_all_work_once_and_no_thread_remains_inside),
        cmocka_unit_test(par_run_any_does_not_wait_for_threads_without_a_processor),
        cmocka_unit_test(shares_cover_the_range_exactly_once),
        cmocka_unit_test(an_idle_team_uses_no_processor),
        cmocka_unit_test(the_core_count_respects_the_cpu_affinity),
        cmocka_unit_test(pinned_teams_work_also_with_more_threads_than_cores),
        cmocka_unit_test(too_many_threads_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
