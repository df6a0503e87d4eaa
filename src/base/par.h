/* par.h - worker threads that are always about to start: spin for a while, then sleep.
 *
 * par_run calls fn once on every thread of the team (the caller is thread 0) and returns
 * when all are done. par_run_any calls fn on the caller and on whoever else comes in time: for
 * work that is taken piece by piece, so that nobody waits for a thread that has not begun, because
 * something else runs on its processor. One thread drives a team at a time. */
#ifndef TERN_BASE_PAR_H
#define TERN_BASE_PAR_H

#include "base/err.h"

#include <stdbool.h>

struct par;

struct par_opt {
    int n_threads; /* 0: one for each physical core this process may use */
    bool pin;      /* threads stay on their cores */
};

int par_open(struct par **out, struct par_opt opt, struct err *e);
void par_close(struct par *p); /* NULL is fine */
int par_n(const struct par *p);

typedef void par_fn(void *arg, int thread, int n_threads);
void par_run(struct par *p, par_fn *fn, void *arg);
void par_barrier(struct par *p); /* only inside par_run, by every thread */

/* fn runs on thread 0 and on any others, each once at most, and returns when nothing is left to
 * take. When the caller's has returned no other thread begins, and those that have begun are waited
 * for. */
void par_run_any(struct par *p, par_fn *fn, void *arg);

/* The next piece of [0, n) for this thread: pieces of `chunk`, first come, first served.
 * The counter is set to 0 by par_run, par_run_any and par_barrier. false: nothing left. */
bool par_next(struct par *p, int n, int chunk, int *begin, int *end);

/* An even share of [0, n) in multiples of `unit` for thread t of n_threads. */
static inline void par_share(int n, int unit, int t, int n_threads, int *begin, int *end)
{
    int units = (n + unit - 1) / unit;
    int a = (int)((long long)units * t / n_threads) * unit;
    int b = (int)((long long)units * (t + 1) / n_threads) * unit;
    *begin = a < n ? a : n;
    *end = b < n ? b : n;
}

/* Physical cores this process may run on (affinity and cgroup respected), at least 1. */
int par_cores(void);
#endif
