/* api_impl.h - the API's own state: calls in flight, choices, events from engines. Private to
 * src/api. All of it belongs to the loop's thread, except `events`, `missed`, `compiled` and
 * `ready`. */
#ifndef TERN_API_API_IMPL_H
#define TERN_API_API_IMPL_H

#include "api/api.h"
#include "api/promptdiff.h"
#include "base/arena.h"
#include "base/map.h"

#include <pthread.h>
#include <stdatomic.h>

struct call;
struct choice;
struct compile_job;
struct request;
struct respowner;
struct respstore;
struct seen;
struct workers;

#define ID_BYTES 48
#define PAST_CALLS 256 /* ended calls that a cancel still recognises */

struct past_call {
    char id[ID_BYTES], correlation[72];
    uint32_t tenant;
};

struct api {
    struct api_opt opt;  /* defaults filled in */
    struct chan *events; /* requests with unread events, each with a reference; from any thread */
    atomic_int missed;   /* the channel was full: every choice must be looked at */
    pthread_mutex_t compiled_lock;
    struct compile_job *compiled; /* finished jobs that calls wait for; under the lock */
    struct workers *lanes[2];     /* request threads: small and large bodies; NULL: stopped */
    pthread_mutex_t ready_lock;
    struct call *ready, *ready_last; /* calls that are back from them; under the lock */
    struct loop_timer *sweep;        /* looks for deadlines while calls are away */
    int n_away;
    atomic_int verifies;      /* a request thread reads the files of a model: one at a time */
    struct loop_timer *retry; /* looks for calls that wait for a restarted process: forward.c */
    struct map unknown;       /* names of fields that were logged as unknown, */
    struct arena unknown_names;
    struct call *calls;
    int n_calls;                           /* in `calls` */
    int n_running;                         /* choices submitted to engines */
    struct choice *choices, *free_choices; /* all ever made; those not in use */
    struct loop_timer *ping;
    struct respstore *responses; /* any thread */
    struct respowner *owners;    /* a ring: processes that have stored responses; NULL: none has */
    unsigned owner_at;
    struct promptdiff prompts; /* at log level debug */
    /* watchers.c */
    struct seen *seen; /* [n_seen] states that were sent last, by model */
    size_t n_seen, cap_seen;
    int n_watchers;
    struct loop_timer *look;           /* at the progress of loads */
    struct past_call past[PAST_CALLS]; /* a ring */
    unsigned past_at;
};

/* A choice from the free list, or a new one. NULL: no memory. */
struct choice *choice_acquire(struct api *a);
void choice_recycle(struct choice *ch);
void api_notify(struct request *r); /* request.notify, on the engine's thread */
void api_remember_call(struct api *a, const struct call *c);
/* Continues the calls whose grammars were compiled (submit.c). */
void api_resume_compiled(struct api *a);

int api_open_watchers(struct api *a, struct err *e);
void api_close_watchers(struct api *a);

/* ---- prepare.c: request threads ---- */
int api_start_threads(struct api *a,
                      struct err *e); /* on failure api_stop is called all the same */
void api_take_back(struct api *a);    /* calls that request threads are done with */
#endif
