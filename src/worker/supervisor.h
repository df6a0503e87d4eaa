/* supervisor.h - the server's worker processes: the pool's host of models that run isolated.
 *
 *     pool's thread        loop
 *     plan ──────────────► spawn, handshake ──PLAN──┐
 *       ◄───────────────────────────────────────────┘
 *     (the pool makes room)
 *     open ──────────────► ADMIT ──PROGRESS…, READY─┐
 *       ◄───────────────────────────────────────────┘
 *     close: SIGTERM, 5 s, SIGKILL
 *
 * One process per instance. Its death is noticed by its pidfd and by the end of its link; a process
 * that is silent, whose load makes no progress, whose engine works on one step for too long, or that
 * does not end a cancelled request, is killed. The calls it had
 * hear of that (forward_lost), the pool is told (pool_wake), and its back-off starts another one,
 * unless the breaker is open. Steps of the host run on the pool's thread and wait for the loop;
 * everything else belongs to the loop's thread. */
#ifndef TERN_WORKER_SUPERVISOR_H
#define TERN_WORKER_SUPERVISOR_H

#include "api/forward.h"
#include "pool/pool.h"
#include "worker/process.h"

struct arena;
struct engine_stats;
struct keyset;
struct supervisor;

struct supervisor_opt {
    struct loop *loop;
    const char *build;        /* version text */
    const char *const *flags; /* [n_flags] of `tern worker`, for every model; borrowed */
    int n_flags;
    /* Does this model run isolated? NULL: all do. Others are given to the local host. */
    bool (*isolates)(void *arg, const char *id);
    /* Writes up to max flags of this model's own, and returns how many. NULL: none. */
    int (*add_flags)(void *arg, const char *id, struct arena *a, const char **flags, int max);
    /* Opens the file in which this model may park its KV blocks; -1: none. NULL: none. */
    int (*open_park)(void *arg, const char *id, const char *path);
    /* Reads the keys of this model, if it is encrypted, on the pool's thread; *out is NULL where there
     * are none. They are sent to the process before it runs. NULL: none. */
    int (*read_keys)(void *arg, const char *id, struct keyset **out, struct err *e);
    void *arg;
    int ping_ms, silent_ms; /* of links; 0: 500 and 10000 */
    int hang_ms; /* a step of the engine, or the end of a cancelled request, that takes longer is a
                  * hang; 0: not looked at */
    int stop_ms; /* processes have so long to end with the server; 0: 3000 */
    int load_ms; /* a load without progress for so long is one, too; 0: not looked at */
};

/* Why processes ended, beside enum process_end. */
enum { SUPERVISOR_HUNG = N_PROCESS_END, N_SUPERVISOR_DEATHS };
const char *supervisor_death_name(int i);

int supervisor_open(struct supervisor **out, const struct supervisor_opt *opt, struct err *e);
const struct pool_host *supervisor_host(struct supervisor *v); /* pool_opt.host */
extern const struct forward_ops supervisor_forward;            /* api_opt.forward */
void supervisor_process(struct supervisor *v);                 /* after a wake-up of the loop */
/* The loop ends: steps that wait for it fail, and all processes are asked to end, side by side. Before
 * pool_stop, which waits for them. NULL is allowed. */
void supervisor_stop(struct supervisor *v);
void supervisor_close(
    struct supervisor *v); /* after pool_close, before loop_close; NULL is allowed */

enum supervisor_breaker { BREAKER_CLOSED, BREAKER_ON_TRIAL, BREAKER_OPEN };

struct supervisor_view { /* of one model, over all its processes */
    pid_t pid;           /* 0: no process */
    uint64_t starts;
    uint64_t restarts[N_SUPERVISOR_DEATHS]; /* starts after a death, by its kind */
    uint64_t deaths[N_SUPERVISOR_DEATHS];   /* that were not asked for */
    uint64_t retried;                       /* requests that another process had before */
    uint64_t requests, connections;         /* sent to it, and connections that carried them */
    uint64_t preflights, preflight_hits;    /* looks at its last heartbeat; a hit: it was fresh */
    enum supervisor_breaker breaker;
    int calls;
    int64_t steps, step_ms; /* of the last heartbeat */
    uint64_t rtt_us;        /* of it */
};
const char *supervisor_breaker_name(enum supervisor_breaker b); /* "closed", "trial", "open" */
/* Counters of the model's worker, also of the processes before a restart. Unchanged if it has none.
 * The loop's thread. */
void supervisor_read_stats(struct supervisor *v, const char *id, struct engine_stats *out);
/* false: the model has never run isolated. The loop's thread. */
bool supervisor_view(struct supervisor *v, const char *id, struct supervisor_view *out);
#endif
