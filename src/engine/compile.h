/* compile.h - threads that compile grammars, so that no request waits for another one's schema.
 *
 * Compiling goes in turns. A job's first turn is short (COMPILE_TURN steps: more than any schema of
 * tests/schemas takes), and one thread does nothing but first turns. A job that is not done by then
 * waits for a second turn, with all steps of the budget (GRAMMAR_STEPS), which the other threads
 * give, at a lower priority than the engine's threads. So a small grammar waits for short turns only,
 * whatever the large ones take, and no token waits for either.
 *
 * Tenants that wait take turns, too: one with many jobs delays the next job of another by those that
 * run at the moment. Within a tenant the oldest goes first. Jobs are bounded in number and bytes, of
 * a tenant and of all; a tenant that has none there may always have one. One more thread, of
 * the lowest priority, compiles for tenants that have spent their credit of processor time
 * (base/credit.h), and for them alone.
 *
 * A job whose requester has left, and every job when the compiler closes, is stopped while it is
 * compiled. The threads start with the first grammar that is
 * not cached and end with the engine. Two parties hold a job, the requester and the compiler; the
 * last job_unref frees it. */
#ifndef TERN_ENGINE_COMPILE_H
#define TERN_ENGINE_COMPILE_H

#include "base/credit.h"
#include "base/err.h"
#include "grammar/grammar.h"

#include <pthread.h>
#include <stdatomic.h>

#define COMPILE_THREADS 3    /* and one for tenants that have spent their credit */
#define COMPILE_NICE 5       /* of the threads that give second turns */
#define COMPILE_LOOK_MS 10   /* until a thread that finds only jobs for others looks again */
#define COMPILE_TURN 2000000 /* steps of a first turn: some 20 ms */
#define COMPILE_SECONDS 60   /* of processor time for one turn */
/* Limits of one tenant: */
#define COMPILE_JOBS 64      /* at their first turn or waiting for it */
#define COMPILE_LONG_JOBS 16 /* at their second turn or waiting for it */
#define COMPILE_BYTES (8u << 20)
#define COMPILE_ALL 4 /* times as many of all tenants */

struct guided;
struct engine_stats;

/* A tenant that has jobs, or had some of late. */
struct compile_group {
    uint32_t tenant;
    int n[2];         /* jobs at their first and second turn, the running ones included */
    uint64_t turn[2]; /* of the compiler, when a job of it began last */
    size_t bytes;     /* of the texts of its jobs */
    struct credit credit;
    struct compile_group *next;
};

struct compile_job {
    struct grammar_spec spec; /* text: owned */
    /* Called on a thread of the compiler, or inside compiler_close, when the job is over. It passes
     * the compiler's reference. */
    void (*done)(struct compile_job *j);
    void *arg, *owner;   /* the requester's; not used here */
    atomic_bool dropped; /* set by the requester: it does not wait any more */
    atomic_int refs;
    struct compile_job *next; /* the compiler's; after done, the requester's */
    struct compile_group *group;
    bool is_long; /* its first turn was not enough */

    /* written before done */
    int rc;
    struct grammar *g; /* rc OK: owned by the job */
    struct err err;
};

/* Jobs in the order in which they came. */
struct compile_queue {
    struct compile_job *first, **last; /* last: where the next one is linked */
};

struct compiler {
    struct guided *guided;
    struct engine_stats *stats;
    pthread_mutex_t lock; /* protects everything below */
    pthread_cond_t news;
    pthread_t threads[COMPILE_THREADS + 1];
    struct compile_job *running[COMPILE_THREADS + 1];
    int n_threads;
    bool quit;
    struct compile_queue queues[2]; /* waiting for their first turn; for their second */
    struct compile_group *groups;   /* those that have jobs, or have used processor time */
    uint64_t turn;                  /* counts jobs that begin */
    int n[2];                       /* jobs at each, the running ones included */
    size_t bytes;                   /* of the texts of all jobs */
};

int compiler_init(struct compiler *c, struct guided *d, struct engine_stats *stats, struct err *e);
/* Jobs end with E_SHUTDOWN, also those that are being compiled. A zeroed one is allowed. */
void compiler_close(struct compiler *c);

/* *out is the caller's to unref. tenant: its number. E_QUEUE_FULL: too many jobs wait; also the result
 * of a job whose second turn would come after too many others. */
int compiler_submit(struct compiler *c, const struct grammar_spec *spec, uint32_t tenant,
                    void (*done)(struct compile_job *j), void *arg, void *owner,
                    struct compile_job **out, struct err *e);
void job_unref(struct compile_job *j); /* NULL is allowed */
#endif
