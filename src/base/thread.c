/* thread.c - starting threads, and locks with a condition variable. */
#include "base/thread.h"

#include "base/clock.h"

#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLICE_NS 100000u /* the least that the kernel takes */

static int init_monotonic_cond(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    int rc = pthread_condattr_init(&attr);

    if (rc != 0) return rc;
    rc = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    if (rc == 0) rc = pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
    return rc;
}

int lock_init(pthread_mutex_t *lock, pthread_cond_t *news, const char *what, struct err *e)
{
    int rc = pthread_mutex_init(lock, NULL);

    if (rc == 0 && (rc = init_monotonic_cond(news)) != 0) pthread_mutex_destroy(lock);
    return rc == 0 ? OK : err_set(e, E_NOMEM, "cannot make the lock of %s: %s", what, strerror(rc));
}

void lock_destroy(pthread_mutex_t *lock, pthread_cond_t *news)
{
    pthread_cond_destroy(news);
    pthread_mutex_destroy(lock);
}

void lock_wait_ms(pthread_mutex_t *lock, pthread_cond_t *news, int ms)
{
    uint64_t until_ns = clock_ns() + (uint64_t)ms * 1000000u;
    struct timespec until = { .tv_sec = (time_t)(until_ns / 1000000000u),
                              .tv_nsec = (long)(until_ns % 1000000000u) };

    pthread_cond_timedwait(news, lock, &until);
}

int thread_start(pthread_t *out, const char *name, void *(*run)(void *arg), void *arg,
                 struct err *e)
{
    int rc = pthread_create(out, NULL, run, arg);

    if (rc != 0) return err_set(e, E_NOMEM, "cannot start the thread %s: %s", name, strerror(rc));
    pthread_setname_np(*out, name);
    return OK;
}

/* As the kernel has it; glibc 2.36 has neither the structure nor the call. */
struct thread_sched {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

/* Linux gives each thread its own niceness and, from 6.12 on, its own time slice: with the usual one
 * (3 ms) a thread of low priority that runs keeps a compute thread that wakes up waiting for so long,
 * and its team with it. Older kernels ignore the slice. */
void thread_set_nice(int nice)
{
    struct thread_sched s = { .size = sizeof s, .nice = nice, .runtime_ns = SLICE_NS };

    if (syscall(SYS_sched_setattr, 0, &s, 0) != 0)
        setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), nice);
}
