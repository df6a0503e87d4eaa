/* par.c - the worker threads behind par.h.
 *
 * A run is started by counting up the gate `start`. Its 64-bit ticket says which run may be joined
 * and how many threads are inside: a worker joins by compare-and-swap, so a worker that wakes up
 * late finds the run closed or a later one begun and does not touch fn and arg. This makes
 * par_run_any safe: the caller may return while workers have not even woken up.
 *
 * Threads wait in two stages, because the operations of a step follow each other within
 * microseconds and a futex wake-up takes longer than that: first spin on the value, then sleep in
 * a futex. */
#include "base/par.h"

#include "base/clock.h"
#include "base/cores.h"
#include "base/mem.h"
#include "base/numa.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_THREADS 1024
#define LINE _Alignas(64)

/* How long a waiting thread spins before it sleeps: long enough to bridge the sampling between two
 * steps. With more threads than processors a spinning thread keeps the processor from the thread
 * it waits for, so there the time is short. */
#define SPIN_NS 100000u
#define SPIN_CROWDED_NS 1000u

/* The lower 32 bits of a ticket. */
#define INSIDE ((1u << 30) - 1) /* number of workers that have joined the run and not left it */
#define ALL (1u << 30)          /* par_run: every worker counts as inside from the start */
#define CLOSED (1u << 31)       /* no further worker may join */

/* A number that threads wait on until it changes. On a cache line of its own, so that waiting
 * threads do not disturb those that work. */
struct gate {
    LINE atomic_uint value;
    LINE atomic_uint sleepers;
};

struct worker {
    struct par *team;
    int index;
    pthread_t thread;
};

struct par {
    int n;                   /* threads of the team, including the caller */
    int n_started;           /* worker threads that exist: n - 1 once par_open has succeeded */
    uint64_t spin_ns;        /* before sleeping */
    const struct numa *numa; /* where the threads stay; NULL: nowhere, or as par_opt.pin says */
    struct worker *workers;  /* [n]; element 0 stands for the caller and is unused */
    atomic_bool quit;        /* set by par_close before it opens the gate `start` */
    par_fn *fn;              /* of the current run; read only by threads inside it */
    void *arg;

    struct gate start;         /* number of the current run */
    struct gate done;          /* counted up when the last worker leaves a closed run */
    struct gate barrier;       /* counted up by the last thread to arrive at a barrier */
    LINE atomic_ullong ticket; /* number of the run << 32 | ALL, CLOSED and INSIDE */
    LINE atomic_int n_arrived; /* at the barrier */
    LINE atomic_llong next;    /* par_next: first index not handed out */
    char pad[64];              /* keeps foreign data off the line of `next` */
};

static inline void spin_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}

/* Sleeps while *word == seen; may return early. */
static void futex_wait(atomic_uint *word, unsigned seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static unsigned gate_seen(struct gate *g)
{
    return atomic_load_explicit(&g->value, memory_order_relaxed);
}

static void gate_open(struct gate *g)
{
    /* Sequentially consistent, as in gate_wait: either the waiting thread sees the new value, or
     * this thread sees that it sleeps and wakes it. */
    atomic_fetch_add(&g->value, 1);
    if (atomic_load(&g->sleepers)) futex_wake_all(&g->value);
}

/* Waits until the value is not `seen` any more and returns the new value. */
static unsigned gate_wait(struct gate *g, unsigned seen, uint64_t spin_ns)
{
    uint64_t end = 0;
    unsigned v;

    for (unsigned i = 1;; i++) {
        if ((v = atomic_load_explicit(&g->value, memory_order_acquire)) != seen) return v;
        spin_pause();
        if (i % 32) continue; /* reading the clock costs more than spinning */
        uint64_t now = clock_ns();
        if (!end) end = now + spin_ns;
        else if (now > end) break;
    }
    atomic_fetch_add(&g->sleepers, 1);
    while ((v = atomic_load(&g->value)) == seen) futex_wait(&g->value, seen);
    atomic_fetch_sub(&g->sleepers, 1);
    return v;
}

/* Joins the run as a worker. false: the run is closed or over, and fn and arg must not be read. */
static bool join_run(struct par *p, unsigned run)
{
    unsigned long long t = atomic_load_explicit(&p->ticket, memory_order_acquire);

    for (;;) {
        if ((unsigned)(t >> 32) != run) return false;
        if (t & ALL) return true;
        if (t & CLOSED) return false;
        if (atomic_compare_exchange_weak_explicit(&p->ticket, &t, t + 1, memory_order_acquire,
                                                  memory_order_acquire))
            return true;
    }
}

/* The last worker to leave a closed run wakes the caller. */
static void leave_run(struct par *p)
{
    unsigned long long t = atomic_fetch_sub_explicit(&p->ticket, 1, memory_order_acq_rel);

    if ((t & (CLOSED | INSIDE)) == (CLOSED | 1)) gate_open(&p->done);
}

/* Waits for a run, joins it if it still can, and calls fn once. */
static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct par *p = w->team;

    for (unsigned run = 0;;) {
        run = gate_wait(&p->start, run, p->spin_ns);
        if (atomic_load_explicit(&p->quit, memory_order_relaxed)) return NULL;
        if (!join_run(p, run)) continue;
        p->fn(p->arg, w->index, p->n);
        leave_run(p);
    }
}

/* inside: the lower half of the ticket: 0 (workers join as they come), or that of par_run. */
static void run_team(struct par *p, par_fn *fn, void *arg, unsigned inside)
{
    unsigned long long number = gate_seen(&p->start) + 1u;
    unsigned done = gate_seen(&p->done);

    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    if (p->n == 1) {
        fn(arg, 0, 1);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    atomic_store_explicit(&p->ticket, (number & UINT32_MAX) << 32 | inside, memory_order_release);
    gate_open(&p->start);
    fn(arg, 0, p->n);
    /* leave_run opens `done` only if the run was closed while a worker was inside. With nobody
     * inside at this moment there is nothing to wait for. */
    if (inside == 0 &&
        !(atomic_fetch_or_explicit(&p->ticket, CLOSED, memory_order_acq_rel) & INSIDE))
        return;
    gate_wait(&p->done, done, p->spin_ns);
}

void par_run(struct par *p, par_fn *fn, void *arg)
{
    run_team(p, fn, arg, CLOSED | ALL | (unsigned)(p->n - 1));
}

void par_run_any(struct par *p, par_fn *fn, void *arg) { run_team(p, fn, arg, 0); }

/* The last thread to arrive resets the counters and releases the others. */
void par_barrier(struct par *p)
{
    unsigned seen = gate_seen(&p->barrier);

    if (atomic_fetch_add_explicit(&p->n_arrived, 1, memory_order_acq_rel) != p->n - 1) {
        gate_wait(&p->barrier, seen, p->spin_ns);
        return;
    }
    atomic_store_explicit(&p->n_arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    gate_open(&p->barrier);
}

bool par_next(struct par *p, int n, int chunk, int *begin, int *end)
{
    long long a = atomic_fetch_add_explicit(&p->next, chunk, memory_order_relaxed);

    if (a >= n) return false;
    *begin = (int)a;
    *end = n - a < chunk ? n : (int)a + chunk;
    return true;
}

int par_n(const struct par *p) { return p->n; }

/* cpu: the processor the thread stays on, or -1. Returns an errno value. */
static int create_thread(struct worker *w, int cpu)
{
    pthread_attr_t attr;
    cpu_set_t set;
    int rc = pthread_attr_init(&attr);

    if (rc != 0) return rc;
    if (cpu >= 0) {
        CPU_ZERO(&set);
        CPU_SET((unsigned)cpu, &set);
        rc = pthread_attr_setaffinity_np(&attr, sizeof set, &set);
    }
    if (rc == 0) rc = pthread_create(&w->thread, &attr, worker_main, w);
    pthread_attr_destroy(&attr);
    return rc;
}

static int start_worker(struct par *p, int i, int cpu, struct err *e)
{
    struct worker *w = &p->workers[i];
    char name[16];
    int rc;

    *w = (struct worker){ .team = p, .index = i };
    if ((rc = create_thread(w, cpu)) != 0)
        return err_set(e, E_NOMEM,
                       "cannot start worker thread %d of %d: %s; ask for fewer threads or raise "
                       "the limit on processes (ulimit -u)",
                       i + 1, p->n, strerror(rc));
    snprintf(name, sizeof name, "tern-%d", i % MAX_THREADS);
    pthread_setname_np(w->thread, name);
    p->n_started++;
    return OK;
}

/* Also ends a team that was only partly started. */
void par_close(struct par *p)
{
    if (!p) return;
    atomic_store_explicit(&p->quit, true, memory_order_relaxed);
    gate_open(&p->start);
    for (int i = 1; i <= p->n_started; i++) pthread_join(p->workers[i].thread, NULL);
    mem_free(p->workers);
    mem_free_aligned(p, sizeof *p);
}

/* The processor thread i stays on, or -1. */
static int find_cpu(const struct par *p, int i, bool pin)
{
    const struct cores *cores = cores_find();

    if (p->numa) return numa_cpu_of(p->numa, i, p->n);
    return pin ? cores->home[i % cores->n_home] : -1;
}

/* Where the system refuses, the thread runs on any processor. */
void par_drive(struct par *p)
{
    int cpu = find_cpu(p, 0, false);
    cpu_set_t set;

    if (cpu < 0) return;
    CPU_ZERO(&set);
    CPU_SET((unsigned)cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

/* Threads of a team that is not told how many: one per core, of the nodes where it stays. */
static int count_default(const struct numa *numa, const struct cores *cores)
{
    int n = numa && numa->n ? numa->first[numa->n] : cores->n;

    return n < cores->n ? n : cores->n;
}

int par_open(struct par **out, struct par_opt opt, struct err *e)
{
    const struct cores *cores;
    struct par *p;
    int rc = OK;

    if (opt.n_threads < 0 || opt.n_threads > MAX_THREADS)
        return err_set(e, E_INVALID, "%d threads: must be between 1 and %d, or 0 for one per core",
                       opt.n_threads, MAX_THREADS);
    cores = cores_find();
    if (!(p = mem_aligned(sizeof *p))) return err_nomem(e, "a team of threads");
    memset(p, 0, sizeof *p);
    p->numa = opt.numa && opt.numa->n ? opt.numa : NULL;
    p->n = opt.n_threads ? opt.n_threads : count_default(opt.numa, cores);
    p->spin_ns = p->n > cores->n_cpus ? SPIN_CROWDED_NS : SPIN_NS;
    if (!(p->workers = mem_array((size_t)p->n, sizeof *p->workers)))
        rc = err_nomem(e, "a team of threads");
    for (int i = 1; i < p->n && rc == OK; i++) rc = start_worker(p, i, find_cpu(p, i, opt.pin), e);
    if (rc != OK) goto out;
    *out = p;
    p = NULL;
out:
    par_close(p);
    return rc;
}
