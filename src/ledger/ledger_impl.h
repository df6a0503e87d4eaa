/* ledger_impl.h - the state of a ledger. Private to src/ledger. */
#ifndef TERN_LEDGER_LEDGER_IMPL_H
#define TERN_LEDGER_LEDGER_IMPL_H

#include "ledger/ledger.h"

#include <pthread.h>

struct ledger {
    const struct ledger_api *api;
    char url[256];
    const char *what;
    bool takes_jobs;
    void (*wake)(void *arg);
    void *arg;
    pthread_t writer, puller;
    bool has_writer, has_puller;
    pthread_mutex_t lock, lock2; /* lock2 only comes with its condition */
    pthread_cond_t news, wanted; /* for the writer; for the puller */

    /* under lock: */
    bool stop_pull, stop, connected;    /* stop_pull: of the puller, which ends first */
    struct ledger_op *ops, **ops_end;   /* to run */
    struct ledger_op *done, **done_end; /* run */
    struct ledger_job *jobs;            /* delivered */
    int want;
    int64_t n_queued;
    size_t max_bytes; /* of one message; 0: not known */

    /* the writer's: */
    struct ledger_link *link;
    uint64_t retry_ns, counted_ns, close_ns;
    int n_stuck_counts; /* in a row */
    bool said;          /* that NATS is away */
    /* the puller's: */
    struct ledger_link *pull;
    struct ledger_job *taken;
};

/* ---- ledger_ops.c: on the writer's thread ---- */
int ledger_run(const struct ledger_api *api, struct ledger_link *link, struct ledger_op *op);
/* E_STORE: nothing was written. what: "durable requests" */
int ledger_away(struct err *e, const char *what, const char *why);
#endif
