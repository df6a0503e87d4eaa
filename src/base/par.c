#include "base/par.h"

#include "base/clock.h"
#include "base/cores.h"
#include "base/mem.h"

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

/* How long a waiting thread looks before it sleeps. A step's calls follow each other within
 * microseconds; between steps the sampler runs. With more threads than cores, whoever spins
 * keeps away the one it waits for. */
#define SPIN_NS 100000u
#define SPIN_CROWDED_NS 1000u

/* The lower half of a ticket. */
#define IN ((1u << 30) - 1) /* threads that have begun and not ended */
#define ALL (1u << 30)      /* every worker counts as having begun: par_run */
#define CLOSED (1u << 31)   /* nobody begins any more */

/* A number that threads wait on until it changes. */
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
    int n, n_started; /* threads of the team with the caller; workers that run */
    uint64_t spin_ns;
    struct worker *workers; /* [n], 0 unused: the caller */
    atomic_bool quit;       /* written before the gate opens */
    par_fn *fn;             /* with arg: only for those who have begun */
    void *arg;

    struct gate start;         /* the number of the run: one more for each */
    struct gate done;          /* one more when the caller waits and the last worker ends */
    struct gate barrier;       /* one more by the last to arrive */
    LINE atomic_ullong ticket; /* number of the run << 32, and who takes part in it */
    LINE atomic_int n_arrived;
    LINE atomic_llong next;
    char pad[64];
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}

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
    /* Sequentially consistent with gate_wait: either it sees the new value or we see the sleeper.
     */
    atomic_fetch_add(&g->value, 1);
    if (atomic_load(&g->sleepers)) futex_wake_all(&g->value);
}

/* Returns what it has become. */
static unsigned gate_wait(struct gate *g, unsigned seen, uint64_t spin_ns)
{
    uint64_t end = 0;
    unsigned v;

    for (unsigned i = 1;; i++) {
        if ((v = atomic_load_explicit(&g->value, memory_order_acquire)) != seen) return v;
        relax();
        if (i % 32) continue;
        uint64_t now = clock_ns();
        if (!end) end = now + spin_ns;
        else if (now > end) break;
    }
    atomic_fetch_add(&g->sleepers, 1);
    while ((v = atomic_load(&g->value)) == seen) futex_wait(&g->value, seen);
    atomic_fetch_sub(&g->sleepers, 1);
    return v;
}

/* A worker that comes too late finds the run closed or another one begun, and leaves fn alone. */
static bool begin(struct par *p, unsigned run)
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

static void end(struct par *p)
{
    unsigned long long t = atomic_fetch_sub_explicit(&p->ticket, 1, memory_order_acq_rel);

    if ((t & (CLOSED | IN)) == (CLOSED | 1)) gate_open(&p->done);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct par *p = w->team;

    for (unsigned run = 0;;) {
        run = gate_wait(&p->start, run, p->spin_ns);
        if (atomic_load_explicit(&p->quit, memory_order_relaxed)) return NULL;
        if (!begin(p, run)) continue;
        p->fn(p->arg, w->index, p->n);
        end(p);
    }
}

static void run(struct par *p, par_fn *fn, void *arg, unsigned who)
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
    atomic_store_explicit(&p->ticket, (number & UINT32_MAX) << 32 | who, memory_order_release);
    gate_open(&p->start);
    fn(arg, 0, p->n);
    /* The gate opens if it was closed with someone inside, so that is when to wait for it. */
    if (who == 0 && !(atomic_fetch_or_explicit(&p->ticket, CLOSED, memory_order_acq_rel) & IN))
        return;
    gate_wait(&p->done, done, p->spin_ns);
}

void par_run(struct par *p, par_fn *fn, void *arg)
{
    run(p, fn, arg, CLOSED | ALL | (unsigned)(p->n - 1));
}

void par_run_any(struct par *p, par_fn *fn, void *arg) { run(p, fn, arg, 0); }

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

static int start_worker(struct par *p, int i, const cpu_set_t *home, struct err *e)
{
    struct worker *w = &p->workers[i];
    pthread_attr_t attr;
    char name[16];
    int rc;

    *w = (struct worker){ .team = p, .index = i };
    pthread_attr_init(&attr);
    if (home) pthread_attr_setaffinity_np(&attr, sizeof *home, home);
    rc = pthread_create(&w->thread, &attr, worker_main, w);
    pthread_attr_destroy(&attr);
    if (rc != 0)
        return err_set(e, E_NOMEM, "cannot start worker thread %d of %d: %s", i + 1, p->n,
                       strerror(rc));
    snprintf(name, sizeof name, "tern-%d", i % MAX_THREADS);
    pthread_setname_np(w->thread, name);
    p->n_started++;
    return OK;
}

void par_close(struct par *p)
{
    if (!p) return;
    atomic_store_explicit(&p->quit, true, memory_order_relaxed);
    gate_open(&p->start);
    for (int i = 1; i <= p->n_started; i++) pthread_join(p->workers[i].thread, NULL);
    mem_free(p->workers);
    mem_free_aligned(p, sizeof *p);
}

int par_open(struct par **out, struct par_opt opt, struct err *e)
{
    const struct cores *cores;
    struct par *p;
    int rc = OK;

    if (opt.n_threads < 0 || opt.n_threads > MAX_THREADS)
        return err_set(e, E_INVALID, "%d threads: between 1 and %d are possible", opt.n_threads,
                       MAX_THREADS);
    cores = cores_find();
    if (!(p = mem_aligned(sizeof *p)))
        return err_set(e, E_NOMEM, "no memory for a team of threads");
    memset(p, 0, sizeof *p);
    p->n = opt.n_threads ? opt.n_threads : cores->n;
    p->spin_ns = p->n > cores->n_cpus ? SPIN_CROWDED_NS : SPIN_NS;
    p->workers = mem_array((size_t)p->n, sizeof *p->workers);
    for (int i = 1; i < p->n && rc == OK; i++)
        rc = start_worker(p, i, opt.pin ? &cores->home[i % cores->n_home] : NULL, e);
    if (rc != OK) goto out;
    *out = p;
    p = NULL;
out:
    par_close(p);
    return rc;
}
