/* relay_impl.h - one request on its way through the gateway. Private to relay.c and relay_send.c. */
#ifndef TERN_CLUSTER_RELAY_IMPL_H
#define TERN_CLUSTER_RELAY_IMPL_H

#include "cluster/gateway_impl.h"
#include "cluster/units.h"
#include "net/traceparent.h"

struct loop_timer;

#define MS UINT64_C(1000000)

struct relay {
    struct gateway *g;
    struct relay *prev, *next;
    struct http_req *q; /* NULL: answered */
    struct gw_who who;
    enum relay_kind kind;
    char correlation[72], peer[96], path[160], method[16], trace[TRACEPARENT_BYTES];
    char name[64];     /* of the tenant */
    struct buf target; /* path and query, as the client sent them */
    struct str body;
    char *own_body;         /* of RELAY_JOB: the same bytes, to be changed; else NULL */
    struct promptlook look; /* at the body */
    bool looks;             /* at the next piece of it, soon */
    struct promptkey key;
    char call[32]; /* end of the completion's id */
    int64_t created;
    uint64_t seed;
    uint64_t stored; /* key of the stored answer that it is about; 0: none */
    uint64_t start_ns, deadline_ns, wait_ns, cut_ns;
    struct loop_timer *timer; /* of the next attempt, or of a stall */

    struct worker *w; /* NULL: none now */
    struct hop *hop;
    bool by_worker[FLEET_MAX]; /* tried since the last byte */
    int attempts, n_replays;
    int *n_lost; /* of RELAY_JOB: workers that had it when they were lost; not repeated then */

    /* the reply of the worker */
    int status;
    bool streams;       /* it is an event stream, or JSON in lines */
    bool has_ids;       /* its stream has units */
    struct buf headers; /* "Name: value\n" lines to pass on */
    struct buf collected;
    char type[128];
    /* the reply to the client */
    bool begun, streaming;
    struct units units; /* what the client has, and what waits for the end of its unit */
    uint64_t first_ns;
    const char *code;
};

/* Sends the request to r->w. false: no memory. */
bool relay_send(struct relay *r, const struct hop_ops *ops);
int64_t relay_epoch_ms(void);

/* Must the request not be repeated once a worker may have it? */
static inline bool relay_is_once(const struct relay *r)
{
    return r->kind == RELAY_ONCE || r->kind == RELAY_STORE;
}
#endif
