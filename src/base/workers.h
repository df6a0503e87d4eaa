/* workers.h - threads that do jobs for another thread, in turns between groups.
 *
 * A job belongs to a group (a tenant). Groups that have jobs waiting take turns: one with a hundred
 * jobs delays the next job of another by the jobs that run at the moment, and no more. Within a
 * group the oldest goes first. The queue is bounded in jobs and bytes, in all and for a group.
 *
 * With slow threads every group has a credit of processor time (base/credit.h). Jobs of a group that
 * has spent it are run by the slow threads alone, which have a lower priority, and no other jobs are.
 *
 * A job is embedded in what it works on. From workers_add until its run is called, or workers_take
 * has taken it back, it belongs to the queue. run must give the job back to its owner by itself, as
 * its last act: the worker does not touch it after that, so the owner may free it at once.
 *
 * `stop` asks a job to end early. It is all that the owner may touch while a job is away; run looks
 * at it as often as it likes. */
#ifndef TERN_BASE_WORKERS_H
#define TERN_BASE_WORKERS_H

#include "base/err.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct workers;

struct work {
    void (*run)(struct work *w); /* on a worker's thread */
    uint32_t group;              /* a small number: there is an array of them */
    size_t bytes;                /* counted while it waits */
    atomic_int stop;             /* the owner's; not 0: run should end soon */
    struct work *next;           /* the queue's */
    bool waits;                  /* the queue's: under its lock */
};

struct workers_opt {
    const char *name; /* of the threads, up to 15 bytes */
    int n_threads;
    int nice;   /* lowers the priority of the threads; 0: as that of the opener */
    int n_slow; /* further threads, for groups that have spent their credit; 0: no credit */
    int max_jobs, max_group_jobs;
    size_t max_bytes, max_group_bytes;
};

int workers_open(struct workers **out, const struct workers_opt *opt, struct err *e);
/* Runs what still waits, then ends the threads. The owner sets `stop` before, so that it is quick.
 * NULL is allowed. */
void workers_close(struct workers *w);

/* E_QUEUE_FULL names the bound that is reached; E_NOMEM. Any thread. */
int workers_add(struct workers *w, struct work *job, struct err *e);
/* Like workers_add, but ignores the bounds: for work that follows from a job already accepted. */
int workers_add_always(struct workers *w, struct work *job, struct err *e);
/* true: the job waited and is the caller's again; its run will not be called. */
bool workers_take(struct workers *w, struct work *job);
int workers_n_waiting(struct workers *w);
#endif
