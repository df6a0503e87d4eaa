/* Threads that do jobs for others (base/workers): the order of groups and jobs, bounds, taking a
 * job back, closing.
 *
 * A gate holds the only thread inside a job while the queue is filled, so that the order does not
 * depend on time. Reads no files. */
#include "support.h"

#include "base/clock.h"
#include "base/credit.h"
#include "base/workers.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { JOBS = 128 };

static struct job {
    struct work work;
    int number;
    bool stopped; /* as it was when the job ran */
} jobs[JOBS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int order[JOBS], n_run; /* under the lock */
static sem_t entered, gate, ran;

static void note_job(struct work *w)
{
    struct job *j = (struct job *)w;

    pthread_mutex_lock(&lock);
    j->stopped = atomic_load(&w->stop) != 0;
    order[n_run++] = j->number;
    pthread_mutex_unlock(&lock);
    sem_post(&ran);
}

/* Waits inside the job until the test opens the gate, or until it is stopped. */
static void wait_at_gate(struct work *w)
{
    sem_post(&entered);
    sem_wait(&gate);
    note_job(w);
}

static int reset(void **state)
{
    (void)state;
    memset(jobs, 0, sizeof jobs);
    for (int i = 0; i < JOBS; i++) jobs[i].number = i, jobs[i].work.run = note_job;
    n_run = 0;
    sem_init(&entered, 0, 0);
    sem_init(&gate, 0, 0);
    sem_init(&ran, 0, 0);
    return 0;
}

static struct workers *open_workers(int n_threads)
{
    struct workers_opt o = { .name = "test",
                             .n_threads = n_threads,
                             .nice = 1,
                             .max_jobs = 110,
                             .max_group_jobs = 100,
                             .max_bytes = 1000,
                             .max_group_bytes = 500 };
    struct workers *w = NULL;
    struct err e = { 0 };

    if (workers_open(&w, &o, &e) != OK) fail_msg("%s", e.msg);
    return w;
}

static int add(struct workers *w, int i, uint32_t group, size_t bytes)
{
    jobs[i].work.group = group;
    jobs[i].work.bytes = bytes;
    return workers_add(w, &jobs[i].work, NULL);
}

/* Job 0 of group 9 holds the thread. */
static void hold_thread(struct workers *w)
{
    jobs[0].work.run = wait_at_gate;
    assert_int_equal(add(w, 0, 9, 0), OK);
    sem_wait(&entered);
}

static void wait_for_jobs(int n)
{
    for (int i = 0; i < n; i++) sem_wait(&ran);
}

static void a_group_with_a_hundred_jobs_delays_another_by_one(void **state)
{
    struct workers *w = open_workers(1);

    (void)state;
    hold_thread(w);
    for (int i = 1; i <= 100; i++) assert_int_equal(add(w, i, 1, 1), OK);
    for (int i = 101; i <= 103; i++) assert_int_equal(add(w, i, 2, 1), OK);
    assert_int_equal(add(w, 104, 3, 1), OK);
    assert_int_equal(workers_n_waiting(w), 104);
    sem_post(&gate);
    wait_for_jobs(105);
    for (int i = 0; i < 8; i++) { /* groups in turn; the oldest of a group first */
        static const int want[] = { 0, 1, 101, 104, 2, 102, 3, 103 };
        assert_int_equal(order[i], want[i]);
    }
    for (int i = 8; i < 105; i++) assert_int_equal(order[i], i - 4);
    workers_close(w);
}

static void the_queue_is_bounded_in_jobs_and_bytes_in_all_and_for_a_group(void **state)
{
    struct workers *w = open_workers(1);
    struct err e = { 0 };

    (void)state;
    hold_thread(w);
    for (int i = 1; i <= 100; i++) assert_int_equal(add(w, i, 1, 1), OK);
    assert_int_equal(add(w, 101, 1, 1), E_QUEUE_FULL); /* jobs of the group */
    assert_int_equal(add(w, 101, 2, 300), OK);
    assert_int_equal(add(w, 102, 2, 201), E_QUEUE_FULL); /* bytes of the group */
    assert_int_equal(add(w, 102, 2, 200), OK);
    assert_int_equal(add(w, 103, 3, 401), E_QUEUE_FULL); /* bytes of all */
    for (int i = 103; i <= 110; i++) assert_int_equal(add(w, i, 3, 1), OK);
    assert_int_equal(workers_add(w, &jobs[111].work, &e), E_QUEUE_FULL); /* jobs of all */
    assert_int_equal(e.code, E_QUEUE_FULL);
    assert_int_equal(e.retry_ms, 1000);
    assert_non_null(strstr(e.msg, "110 requests"));
    assert_int_equal(workers_add_always(w, &jobs[111].work, &e), OK);
    sem_post(&gate);
    wait_for_jobs(112);
    assert_int_equal(workers_n_waiting(w), 0);
    assert_int_equal(add(w, 1, 1, 5000), OK); /* an empty queue takes a job of any size */
    wait_for_jobs(1);
    workers_close(w);
}

static void a_waiting_job_can_be_taken_back_and_a_running_one_cannot(void **state)
{
    struct workers *w = open_workers(1);

    (void)state;
    hold_thread(w);
    for (int i = 1; i <= 6; i++) assert_int_equal(add(w, i, (uint32_t)(i - 1) / 2, 10), OK);
    assert_false(workers_take(w, &jobs[0].work));
    assert_true(workers_take(w, &jobs[2].work)); /* the last of its group */
    assert_true(workers_take(w, &jobs[3].work)); /* the first of its group, */
    assert_true(workers_take(w, &jobs[4].work)); /* and then the group, between two others */
    assert_false(workers_take(w, &jobs[4].work));
    assert_true(workers_take(w, &jobs[6].work));
    assert_int_equal(add(w, 4, 1, 10), OK);
    assert_int_equal(add(w, 6, 2, 10), OK);
    sem_post(&gate);
    wait_for_jobs(5);
    for (int i = 0; i < 5; i++) {
        static const int want[] = { 0, 1, 5, 4, 6 };
        assert_int_equal(order[i], want[i]);
    }
    assert_int_equal(add(w, 1, 0, 10), OK); /* the ring is as good as new */
    wait_for_jobs(1);
    workers_close(w);
}

static void taking_the_only_job_leaves_an_empty_queue(void **state)
{
    struct workers *w = open_workers(1);

    (void)state;
    hold_thread(w);
    assert_int_equal(add(w, 1, 4, 10), OK);
    assert_true(workers_take(w, &jobs[1].work));
    assert_int_equal(workers_n_waiting(w), 0);
    assert_int_equal(add(w, 2, 5, 10), OK);
    sem_post(&gate);
    wait_for_jobs(2);
    workers_close(w);
}

static void closing_runs_what_waits_and_jobs_see_that_they_should_stop(void **state)
{
    struct workers *w = open_workers(1);

    (void)state;
    hold_thread(w);
    for (int i = 1; i <= 20; i++) assert_int_equal(add(w, i, (uint32_t)i % 3, 1), OK);
    for (int i = 0; i <= 20; i++) atomic_store(&jobs[i].work.stop, 1);
    sem_post(&gate);
    workers_close(w);
    assert_int_equal(n_run, 21);
    for (int i = 0; i <= 20; i++) assert_true(jobs[i].stopped);
    workers_close(NULL);
}

static void several_threads_run_every_job_once(void **state)
{
    struct workers *w = open_workers(4);
    int seen[JOBS] = { 0 };

    (void)state;
    for (int i = 0; i < 100; i++) {
        jobs[i].work.group = (uint32_t)i % 7;
        assert_int_equal(workers_add_always(w, &jobs[i].work, NULL), OK);
    }
    wait_for_jobs(100);
    workers_close(w);
    for (int i = 0; i < 100; i++) seen[order[i]]++;
    for (int i = 0; i < 100; i++) assert_int_equal(seen[i], 1);
}

/* ---- credit ---- */

static int nice_of[JOBS]; /* of the thread that ran each job */

/* The niceness of a thread that was given this one: the test itself may have a higher one. */
static int at_least(int nice)
{
    int own = getpriority(PRIO_PROCESS, 0);

    return own > nice ? own : nice;
}

static void note_nice(struct work *w)
{
    nice_of[((struct job *)w)->number] = getpriority(PRIO_PROCESS, (id_t)gettid());
    note_job(w);
}

static void spend_credit(struct work *w)
{
    for (uint64_t start_ns = clock_thread_ns(); clock_thread_ns() - start_ns <= 2 * CREDIT_MAX_NS;)
        continue; /* 50 s pass until it has some again, however busy the machine is */
    note_nice(w);
}

static struct workers *open_with_credit(void)
{
    struct workers_opt o = { .name = "test",
                             .n_threads = 1,
                             .nice = 1,
                             .n_slow = 1,
                             .max_jobs = 100,
                             .max_group_jobs = 100,
                             .max_bytes = 1000,
                             .max_group_bytes = 500 };
    struct workers *w = NULL;
    struct err e = { 0 };

    if (workers_open(&w, &o, &e) != OK) fail_msg("%s", e.msg);
    return w;
}

/* The slow thread is held by a job of the group in debt; others do not wait for it. */
static void a_group_that_spent_its_credit_gets_the_slow_thread_and_nobody_else_does(void **state)
{
    struct workers *w = open_with_credit();

    (void)state;
    for (int i = 0; i < JOBS; i++) jobs[i].work.run = note_nice;
    jobs[0].work.run = spend_credit;
    assert_int_equal(add(w, 0, 1, 0), OK);
    wait_for_jobs(1);
    assert_int_equal(nice_of[0], at_least(1));
    jobs[2].work.run = wait_at_gate;
    assert_int_equal(add(w, 2, 1, 0), OK);
    sem_wait(&entered); /* the slow thread has it, */
    assert_int_equal(add(w, 3, 1, 0), OK);
    for (int i = 4; i < 10; i++) assert_int_equal(add(w, i, (uint32_t)i, 0), OK);
    wait_for_jobs(6); /* and other groups go on, */
    for (int i = 4; i < 10; i++) assert_int_equal(nice_of[i], at_least(1));
    assert_int_equal(workers_n_waiting(w), 1); /* but not the next job of this one */
    sem_post(&gate);
    wait_for_jobs(2);
    assert_int_equal(nice_of[3], at_least(CREDIT_NICE));
    workers_close(w);
}

static void used_credit_drains_with_time(void **state)
{
    struct credit c = { 0 };
    uint64_t s = UINT64_C(1000000000);

    (void)state;
    assert_false(credit_is_spent(&c, 5 * s));
    credit_charge(&c, CREDIT_MAX_NS, 5 * s);
    assert_false(credit_is_spent(&c, 5 * s));
    credit_charge(&c, 2 * s / CREDIT_REFILL, 5 * s);
    assert_true(credit_is_spent(&c, 6 * s));
    assert_false(credit_is_spent(&c, 7 * s));
    assert_int_equal(credit_used(&c, 7 * s), CREDIT_MAX_NS);
    assert_int_equal(credit_used(&c, 1000 * s), 0);
    assert_true(credit_is_spent(&c, 0)); /* a clock that another thread read earlier */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_group_with_a_hundred_jobs_delays_another_by_one, reset),
        cmocka_unit_test_setup(the_queue_is_bounded_in_jobs_and_bytes_in_all_and_for_a_group,
                               reset),
        cmocka_unit_test_setup(a_waiting_job_can_be_taken_back_and_a_running_one_cannot, reset),
        cmocka_unit_test_setup(taking_the_only_job_leaves_an_empty_queue, reset),
        cmocka_unit_test_setup(closing_runs_what_waits_and_jobs_see_that_they_should_stop, reset),
        cmocka_unit_test_setup(several_threads_run_every_job_once, reset),
        cmocka_unit_test_setup(
            a_group_that_spent_its_credit_gets_the_slow_thread_and_nobody_else_does, reset),
        cmocka_unit_test(used_credit_drains_with_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
