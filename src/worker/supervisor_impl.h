/* supervisor_impl.h - one worker process as the server sees it. Private to supervisor*.c and
 * relay.c. */
#ifndef TERN_WORKER_SUPERVISOR_IMPL_H
#define TERN_WORKER_SUPERVISOR_IMPL_H

#include "base/arena.h"
#include "engine/info.h"
#include "worker/breaker.h"
#include "worker/link.h"
#include "worker/message.h"
#include "worker/supervisor.h"

#include <stdatomic.h>

struct event;
struct loop_timer;
struct relay;

enum worker_phase {
    WORKER_ASKED,    /* the pool's thread waits for a plan; no process yet */
    WORKER_STARTED,  /* until PLAN */
    WORKER_PLANNED,  /* the pool makes room */
    WORKER_ADMITTED, /* the pool's thread waits for READY; ADMIT is to be sent */
    WORKER_LOADING,
    WORKER_READY,
    WORKER_TIRED,  /* the pool's thread waits for ASLEEP; SLEEP is to be sent */
    WORKER_DOZING, /* until ASLEEP */
    WORKER_ASLEEP, /* a process without a model */
    WORKER_DEAD
};

/* Counters, breaker and shared memory of a model, which outlive its processes. */
struct record {
    struct record *next;
    char *id;
    struct breaker breaker;
    int shared_fd; /* memory with the worker's counters; -1: none */
    struct engine_stats *shared;
    uint64_t starts, restarts[N_SUPERVISOR_DEATHS], deaths[N_SUPERVISOR_DEATHS], retried;
    uint64_t requests, connections;      /* of links that are closed */
    uint64_t preflights, preflight_hits; /* the loop's */
    int last_death;                      /* that no start has followed yet; 0: none */
};

struct worker {
    struct supervisor *sup;
    struct worker *next;
    struct record *record;
    const char *path, *id; /* the pool's */
    const struct pool_model *model;
    struct keyset *keys; /* of an encrypted model, until its process has them */
    struct process proc;
    bool has_proc;
    struct link *link; /* the loop's, as is the rest up to the lock */
    struct event *exited;
    bool link_closed, seen_end; /* the link ended; the process ended */
    bool hung;
    uint64_t cut_ns;      /* when the link ended */
    struct msg_beat beat; /* the last one, */
    uint64_t beat_ns;     /* when it came; 0: none since READY */
    int n_ended;          /* calls that ended after it */
    struct relay *relays; /* requests that it has */
    uint64_t held_bytes;  /* of their replies that are not complete */
    bool loads;           /* PLAN, READY or ASLEEP is awaited */
    uint64_t moved_ns;    /* when the load last made progress */
    int percent;          /* of it */
    struct err cause;     /* FAILED said so; code OK: nothing */
    atomic_int n_relays;

    enum worker_phase phase; /* supervisor.lock, as is the rest */
    struct pool_instance *m; /* NULL: the instance is closed, and the worker sleeps or is freed */
    bool starting;           /* the loop starts its process: it is not closed meanwhile */
    bool ending;             /* the pool's thread ends its process: it is not freed meanwhile */
    bool woken;              /* it has slept, and is to plan again */
    uint64_t park_bytes;     /* of SLEEP */
    int n_parked;            /* KV blocks that were parked when it fell asleep, */
    uint64_t parked_bytes;   /* and those of them in its memory */
    uint64_t asleep_ns;      /* when that was */
    struct sizes_room room;  /* for the next plan */
    bool room_due;           /* ROOM is to be sent */
    struct membudget need;   /* WORKER_PLANNED, as are the next two */
    struct sizes sizes;
    struct err refused;
    bool fill_kv;            /* of ADMIT */
    struct err err;          /* WORKER_DEAD: why */
    bool expected;           /* we end it: its death is no failure */
    struct engine_info info; /* WORKER_READY; its texts are in the arena */
    double load_ms, warm_ms;
    struct arena arena;
};

struct supervisor {
    struct pool_host host; /* first */
    struct supervisor_opt opt;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stopping;          /* under the lock, as is the next */
    uint64_t stop_ns;       /* when processes were asked to end */
    struct worker *workers; /* additions under the lock; removals by the loop, under the lock */
    struct record *records; /* under the lock */
    struct loop_timer *tick;
};

struct record *supervisor_record(struct supervisor *v, const char *id); /* NULL: no memory */
/* With the lock: waits until the phase is `wanted` or later. */
int worker_wait(struct worker *w, enum worker_phase wanted, struct err *e);

/* ---- supervisor_sleep.c ---- */
bool supervisor_sleep(struct supervisor *v, struct pool_instance *m, uint64_t park_bytes);
void supervisor_forget(struct supervisor *v, const char *id);
uint64_t supervisor_parked_bytes(struct supervisor *v);
uint64_t supervisor_drop_parked(struct supervisor *v);
struct worker *supervisor_wake(struct supervisor *v, struct pool_instance *m);
void supervisor_give_up(struct worker *w, const struct err *e); /* it did not wake */
void worker_send_sleep(struct worker *w);
void worker_send_wake(struct worker *w);
void worker_on_asleep(struct worker *w, const struct frame *f);
bool worker_may_go(struct worker *w);
void worker_end_asleep(struct worker *w); /* at the end of the supervisor */

/* ---- supervisor_watch.c: on the loop ---- */
void worker_start(struct worker *w);
void worker_send_room(struct worker *w); /* if it is due */
void worker_admit(struct worker *w);
void worker_look(struct worker *w, uint64_t now); /* ten times a second */
void worker_release(struct worker *w);            /* what belongs to the loop */
enum worker_phase worker_phase(struct worker *w);
void worker_expect(struct worker *w); /* PLAN, READY or ASLEEP: it must not take too long */
void worker_set_phase(struct worker *w, enum worker_phase phase); /* never back */
/* The worker is not trusted any more: it sent something that makes no sense. */
void worker_refuse_frame(struct worker *w, const struct frame *f, const struct err *e);

/* ---- relay.c ---- */
void relay_frame(struct link_stream *s, const struct frame *f);
void relay_writable(struct link_stream *s);
void relay_lost(struct worker *w, struct link_stream *s);
bool relay_is_stuck(struct worker *w, uint64_t now, int ms); /* a cancelled one does not end */
void relay_free_all(struct worker *w);                       /* those that the API has forgotten */
#endif
