/* gwask.h - one request of a client that waits for NATS: an operation of a ledger, answered when it is
 * done, on the loop's thread. A client that leaves does not end the operation. */
#ifndef TERN_CLUSTER_GWASK_H
#define TERN_CLUSTER_GWASK_H

#include "cluster/gateway_impl.h"
#include "ledger/ledger.h"

enum { GWASK_MAX = 4096 }; /* that may wait */

struct gwask {
    struct ledger_op op; /* first */
    struct gateway *g;
    int *n_asked;
    struct http_req *q; /* NULL: the client has left, or was answered */
    struct gw_who who;
    char name[64]; /* of the tenant */
    char correlation[72], peer[96], path[160], method[16];
    uint64_t start_ns;
    void (*release)(struct gwask *k); /* what lies behind it in a larger struct; NULL: nothing */
    bool idle;                        /* no operation is on its way: a client that leaves ends it */
    const char *param;                /* of an error; NULL: none */
};

/* k: zeroed, mem_alloc'ed, or NULL: q is answered with 503, and false is returned. */
bool gwask_init(struct gwask *k, struct gateway *g, struct http_req *q, const struct gw_who *who,
                int *n_asked);
/* Adds op; done is called with it. */
void gwask_start(struct gwask *k, struct ledger *l, void (*done)(struct ledger_op *op));
/* gwask_fail, gwask_fail_status and gwask_reply answer the client if it is still connected, and free k. */
void gwask_fail(struct gwask *k, const struct err *e);
void gwask_fail_status(struct gwask *k, int status, const char *code, const char *msg);
void gwask_reply(struct gwask *k, int status); /* with op.data, JSON */
/* For a streamed reply: begins it, ends it. */
bool gwask_begin_stream(struct gwask *k, const char *type);
void gwask_end_stream(struct gwask *k,
                      const char *broken); /* broken: why it is cut; NULL: it is not */
#endif
