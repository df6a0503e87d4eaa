/* par.h - a team of worker threads for data-parallel loops.
 *
 * par_run calls fn once on every thread of the team, the caller included (it is thread 0), and
 * returns when all calls have returned. par_run_any calls fn on the caller and on those workers
 * that wake up in time: the caller does not wait for a worker whose processor is busy with
 * something else. fn then takes its work piece by piece with par_next, so any number of threads
 * completes it.
 *
 * One thread drives a team at a time; different teams are independent. Running allocates nothing
 * and cannot fail. */
#ifndef TERN_BASE_PAR_H
#define TERN_BASE_PAR_H

#include "base/err.h"

#include <stdbool.h>

struct numa;
struct par;

struct par_opt {
    int n_threads; /* including the caller; 0: par_cores() */
    bool pin;      /* each worker stays on one physical core */
    const struct numa
        *numa; /* each thread stays on the processor that it has there; borrowed for the
                              * life of the team. NULL: see pin */
};

/* E_INVALID: a number of threads out of range. E_NOMEM: no memory, or the system refuses a thread;
 * a team with fewer threads than asked for is never returned, because the caller has sized its
 * memory for them. */
int par_open(struct par **out, struct par_opt opt, struct err *e);
void par_close(struct par *p);  /* ends and joins the threads; NULL is allowed */
int par_n(const struct par *p); /* threads of the team, including the caller */
/* The calling thread drives the team from now on, and for long: it is pinned as the workers are. */
void par_drive(struct par *p);

typedef void par_fn(void *arg, int thread, int n_threads);
void par_run(struct par *p, par_fn *fn, void *arg);
/* Waits until every thread of the team has called it. Only inside par_run, by all threads. What
 * each thread wrote before is visible to all after. */
void par_barrier(struct par *p);

/* fn runs on thread 0 and at most once on each other thread; it returns when par_next has nothing
 * left. Once thread 0 has returned from fn no further thread enters it, and par_run_any waits for
 * those inside. No par_barrier here. */
void par_run_any(struct par *p, par_fn *fn, void *arg);

/* Hands out [0, n) in pieces of at most `chunk`, to whichever thread asks next. false: nothing is
 * left. par_run, par_run_any and par_barrier start again from 0. */
bool par_next(struct par *p, int n, int chunk, int *begin, int *end);

/* The static share of thread t of n_threads in [0, n): equal parts, in multiples of `unit`. */
static inline void par_share(int n, int unit, int t, int n_threads, int *begin, int *end)
{
    int units = (n + unit - 1) / unit;
    int a = (int)((long long)units * t / n_threads) * unit;
    int b = (int)((long long)units * (t + 1) / n_threads) * unit;
    *begin = a < n ? a : n;
    *end = b < n ? b : n;
}

/* Physical cores this process may use, at least 1: see base/cores.h. */
int par_cores(void);
#endif
