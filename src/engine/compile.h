/* compile.h - grammars compiled by a thread of their own, so that nobody waits for somebody else's
 * schema.
 *
 * The thread starts with the first grammar that is asked for, and ends with the engine. What waits
 * is bounded by number and bytes; the smallest goes first. Two hold a job, who asked and the
 * compiler: the last job_unref frees it. */
#ifndef TERN_ENGINE_COMPILE_H
#define TERN_ENGINE_COMPILE_H

#include "engine/guided.h"

#include <stdatomic.h>

#define COMPILE_JOBS 64
#define COMPILE_BYTES (8u << 20)

struct compile_job {
    struct grammar_spec spec; /* text: owned */
    /* On the compiler's thread, or inside compiler_close: it is over. It brings a reference of its
     * own. */
    void (*done)(struct compile_job *j);
    void *arg, *owner;   /* who asked: not looked at here */
    atomic_bool dropped; /* nobody waits for it any more */
    atomic_int refs;
    struct compile_job *next; /* the compiler's; after done, whoever was told */

    /* written before done */
    int rc;
    struct grammar *g; /* rc OK: the job's */
    struct err err;
};

struct compiler {
    struct guided *guided;
    pthread_mutex_t lock; /* over all below */
    pthread_cond_t news;
    pthread_t thread;
    bool has_thread, quit;
    struct compile_job *waiting;
    int n; /* waiting or under way */
    size_t bytes;
};

void compiler_init(struct compiler *c, struct guided *d);
void compiler_close(struct compiler *c); /* what waits ends with E_SHUTDOWN; a zeroed one is fine */

/* *out is the asker's to unref. E_QUEUE_FULL: too much waits. */
int compiler_ask(struct compiler *c, const struct grammar_spec *spec,
                 void (*done)(struct compile_job *j), void *arg, void *owner,
                 struct compile_job **out, struct err *e);
void job_unref(struct compile_job *j); /* NULL is fine */
#endif
