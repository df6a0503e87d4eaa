/* gateway_impl.h - the gateway and its requests. Private to src/cluster. */
#ifndef TERN_CLUSTER_GATEWAY_IMPL_H
#define TERN_CLUSTER_GATEWAY_IMPL_H

#include "base/ids.h"
#include "cluster/affinity.h"
#include "cluster/fleet.h"
#include "cluster/gateway.h"
#include "cluster/promptkey.h"
#include "net/http.h"
#include "server/auth.h"

struct gwjobs;
struct gwmodels;
struct gwstore;
struct limit;
struct member;
struct roster;
struct script;
struct settings;

enum { GW_STATUS_CLASSES = 6 };

struct gateway {
    const struct settings *s;
    struct loop *loop;
    struct http *http;
    struct auth *auth;
    struct limit *limit;
    struct affinity *affinity;
    struct fleet *fleet;
    struct script *script;   /* NULL: the built-in policy */
    struct roster *roster;   /* NULL: no NATS */
    struct gwmodels *models; /* their replicas */
    struct gwjobs *jobs;     /* durable requests; NULL: no NATS */
    struct gwstore *store;   /* files and batches; NULL: no NATS */
    struct member *members;  /* [FLEET_MAX] of the last listing */
    struct promptkeys *keys; /* tokenizers, for exact hashes */
    struct relay *relays;
    int n_relays;
    struct loop_timer *ending;
    bool draining, aborted;
    uint64_t start_ns, drain_ns;
    int max_conns;
    struct rng rng;

    struct {
        struct counter replies[GW_STATUS_CLASSES]; /* by class of status */
        struct counter retries, replays, replay_failed, by_prefix, placed, no_worker, gone;
        struct counter hit_blocks, blocks;  /* of prompts: computed by the worker before; all */
        struct counter looks, looked_bytes; /* pieces of bodies; their bytes */
        uint64_t look_most;                 /* bytes of one turn of the loop */
        struct hist place_us;               /* from the whole request to a worker */
        struct hist first_ms;               /* to the first byte of the reply */
        struct hist pause_ms;               /* of streams that moved */
    } n;
};

/* The sender of a request, by its key. */
struct gw_who {
    const char *name;
    uint32_t tenant;
    int priority_max;
    bool admin, limited;
};

enum relay_kind {
    RELAY_GENERATE, /* chat and text completions: streams can move */
    RELAY_COMPUTE,  /* answered by any worker with the model; repeated without harm */
    RELAY_ONCE,     /* changes a worker: repeated only if it did not get the request */
    RELAY_JOB,      /* a durable request: as RELAY_COMPUTE, but not repeated once a worker had it */
    RELAY_STORE,    /* as RELAY_ONCE, to the worker that keeps files, batches and durable jobs */
    RELAY_CANCEL    /* goes to the worker that has the request, else to each in turn */
};

/* ---- relay.c ---- */
/* Answers q with the reply of a worker, now or later. */
void relay_begin(struct gateway *g, struct http_req *q, const struct gw_who *who,
                 enum relay_kind kind);
/* relay_begin for a durable job. body: that of q; "durable": true becomes null in it, so that the worker
 * computes the job and does not store it by itself. If a worker is lost while it has the job, *n_lost is
 * increased and q is answered. body and n_lost must be valid until q is answered. */
void relay_begin_job(struct gateway *g, struct http_req *q, const struct gw_who *who, char *body,
                     int *n_lost);
void relay_worker_lost(struct gateway *g, struct worker *w); /* its streams move */
void relay_workers_changed(struct gateway *g);               /* those that wait try again */
void relay_abort_all(struct gateway *g);                     /* the gateway shuts down */
/* Requests for the model that wait for a worker. */
int relay_count_waiting(struct gateway *g, const char *model);
/* The worker of the request with that completion or correlation id; NULL: none. */
struct worker *relay_find(struct gateway *g, struct str id);

/* ---- gateway.c ---- */
/* A reply was sent, or its client is gone: limits, metrics, access log. */
struct gw_end {
    const struct gw_who *who;
    const char *correlation, *peer, *method, *path, *model, *worker, *code, *gone;
    struct str trace;
    int status, attempts, replays, n_ids;
    uint64_t start_ns;
    double first_ms;
    bool quiet;
};
void gateway_note_end(struct gateway *g, const struct gw_end *end);

/* ---- gwstatus.c ---- */
void gateway_write_status(struct gateway *g, struct buf *out);
void gateway_write_metrics(struct gateway *g, struct buf *out);
void gateway_write_models(struct gateway *g, struct buf *out);
/* Appends the model's element; false: no worker has it. */
bool gateway_write_model(struct gateway *g, struct str id, struct buf *out);
#endif
