/* compile.h - a thread that compiles grammars, so that no request waits for another one's schema.
 *
 * The thread starts with the first grammar that is not cached and ends with the engine. The queue
 * is bounded by jobs and bytes; the smallest job goes first. Two parties hold a job, the requester
 * and the compiler; the last job_unref frees it. */
#ifndef TERN_ENGINE_COMPILE_H
#define TERN_ENGINE_COMPILE_H

#include "base/err.h"
#include "grammar/grammar.h"

#include <pthread.h>
#include <stdatomic.h>

#define COMPILE_JOBS 64
#define COMPILE_BYTES (8u << 20)

struct guided;

struct compile_job {
    struct grammar_spec spec; /* text: owned */
    /* Called on the compiler's thread, or inside compiler_close, when the job is over. It passes
     * the compiler's reference. */
    void (*done)(struct compile_job *j);
    void *arg, *owner;   /* the requester's; not used here */
    atomic_bool dropped; /* set by the requester: it does not wait any more */
    atomic_int refs;
    struct compile_job *next; /* the compiler's; after done, the requester's */

    /* written before done */
    int rc;
    struct grammar *g; /* rc OK: owned by the job */
    struct err err;
};

struct compiler {
    struct guided *guided;
    pthread_mutex_t lock; /* protects everything below */
    pthread_cond_t news;
    pthread_t thread;
    bool has_thread, quit;
    struct compile_job *waiting;
    int n; /* jobs waiting or being compiled */
    size_t bytes;
};

int compiler_init(struct compiler *c, struct guided *d, struct err *e);
/* Waiting jobs end with E_SHUTDOWN. A zeroed one is allowed. */
void compiler_close(struct compiler *c);

/* *out is the caller's to unref. E_QUEUE_FULL: too many jobs wait. */
int compiler_submit(struct compiler *c, const struct grammar_spec *spec,
                    void (*done)(struct compile_job *j), void *arg, void *owner,
                    struct compile_job **out, struct err *e);
void job_unref(struct compile_job *j); /* NULL is allowed */
#endif
