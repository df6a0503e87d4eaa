/* child.h - a worker: the process in which one model runs.
 *
 * It has a loop, a pool with one model, the API, and instead of HTTP a link to the server that
 * started it. It plans the model's memory, asks the server for room (PLAN, ADMIT), loads, reports
 * READY, and answers relayed requests (front.h). It ends when the link closes, when the server says
 * STOP, or after SIGTERM when the last request has ended. */
#ifndef TERN_WORKER_CHILD_H
#define TERN_WORKER_CHILD_H

#include "api/api.h"
#include "pool/pool.h"

struct child_opt {
    int fd;               /* the socket; the token is on it */
    const char *build;    /* version text */
    struct pool_opt pool; /* one path; host, changed and arg are the child's */
    struct api_opt api;   /* loop, pool, ended and arg are the child's */
    size_t max_body_bytes, max_unread_bytes;
    int ping_ms, silent_ms; /* of the link; 0: its defaults */
    bool no_sandbox;
    void (*leave)(void); /* ends the process at once; NULL: a gang that ends fails its requests */
    int end_signal;      /* that asks it to end after its last request; 0: SIGTERM */
};

/* Returns when the worker has ended. */
int child_run(const struct child_opt *opt, struct err *e);
#endif
