/* fleet.h - the workers of a gateway: who they are, whether they live, what they have and do.
 *
 *     joining ──first reply──► ready ◄──answers again── failed
 *                               │ └──connection refused or lost, silent too long──┘
 *                               ├──says so, or an operator does──► draining
 *                               └──left the membership──► gone (its requests end, then it is removed)
 *
 * Every worker is asked for a sign of life (GET /health) each beat_ms on a kept connection, and for
 * its state (GET /cluster/state) each STATE_BEATS of them. Any byte of any reply is a sign of life,
 * too. A worker that stopped up to detect_ms ago, or longer where its replies usually take long, is
 * failed: it gets no new requests. Time during which the gateway itself did not run does not count.
 *
 * The breaker of a worker opens after BREAKER_FAILS failed requests in a row, for a time that doubles
 * up to BREAKER_MOST_MS; then one request is let through (half open), which closes it or opens it
 * again. Everything runs on the loop's thread. */
#ifndef TERN_CLUSTER_FLEET_H
#define TERN_CLUSTER_FLEET_H

#include "base/buf.h"
#include "base/rng.h"
#include "base/stat.h"
#include "cluster/hop.h"
#include "cluster/place.h"

#include <jansson.h>

struct fleet;
struct fleet_job;
struct loop;
struct loop_timer;
struct affinity;

enum {
    FLEET_MAX = 512,
    STATE_BEATS = 8,
    BREAKER_FAILS = 5,
    BREAKER_FIRST_MS = 200,
    BREAKER_MOST_MS = 10000
};

enum worker_state { WORKER_JOINING, WORKER_READY, WORKER_DRAINING, WORKER_FAILED, WORKER_GONE };
const char *worker_state_name(enum worker_state s);

struct worker_model {
    char *id;
    char **aliases; /* [n_aliases] */
    int n_aliases;
    bool loaded, loading, failed;
    int running, waiting;
    double kv_free; /* share */
    double bytes;   /* in memory, or of its files; 0: not known */
};

struct worker {
    struct fleet *fleet;
    int index; /* stays the same while the worker is in the fleet */
    char *url;
    struct lane *lane; /* NULL: the name is not resolved yet */
    enum worker_state state;
    const char *why;    /* of WORKER_FAILED: a literal */
    bool told_to_drain; /* by an operator */
    bool is_listed;     /* in the last listing of NATS */
    bool is_static;     /* of --peers: never gone */
    double weight;

    /* as it says itself */
    char instance[40]; /* changes when its process is a new one; "": not known */
    bool says_draining;
    enum { STORE_UNKNOWN, STORE_NONE, STORE_THERE } store; /* of files, batches and durable jobs */
    bool is_new, has_changed; /* by its last reply: another process; other models */
    struct worker_model *models;
    int n_models;
    int running, waiting;
    double kv_free; /* share of the KV cache, of the loaded model that has least; 1: none loaded */
    double free_bytes; /* of memory for models; -1: not known */
    int free_models;   /* that may be loaded besides; -1: no limit */
    char devices[160]; /* for people: "cpu (avx512, 2 threads), ..." */
    char gang[200];    /* for people: "tales: 2 members (tp 2, pp 1) on a, b, 8 % communication" */
    struct buf list;   /* the elements of GET /v1/models, separated by commas */

    /* signs of life */
    struct hop *beat; /* on its way */
    uint64_t beat_ns, seen_ns;
    uint64_t retry_ns; /* no beat before */
    int n_beats, n_missed;
    bool beat_is_state;
    struct buf reply;
    double rtt_ms, rtt_dev_ms;
    uint64_t failed_ns; /* when it was found failed */
    bool suspect;       /* failed by silence alone: an answer shows that it was wrong */

    /* what this gateway sent it */
    int in_flight;
    double outstanding, assigned;
    int fails;           /* in a row */
    uint64_t open_until; /* of the breaker; 0: closed */
    bool half_open;      /* a request that decides is on its way */
    int n_opened;        /* in a row */

    struct {
        uint64_t requests, failures, retried, replayed, beats, missed, suspects, wrong, opened;
        double detect_ms; /* of the last failure: last sign of life to its detection */
    } n;
};

struct fleet_opt {
    struct loop *loop;
    const char *cluster_key; /* "" : none */
    const char *ca_file;
    int beat_ms, detect_ms;
    enum place_policy policy;
    struct affinity *affinity; /* borrowed */
    /* A policy of the user's: an index of all [n], or -1: the built-in one chooses. NULL: none. */
    int (*choose)(void *arg, struct fleet *f, const struct fleet_job *job,
                  const struct place_worker *all, int n);
    void *choose_arg;
    void (*changed)(void *arg); /* a worker became ready, failed, or has other models */
    void (*lost)(void *arg, struct worker *w); /* it failed: its streams should move */
    void *arg;
};

int fleet_open(struct fleet **out, const struct fleet_opt *opt, struct err *e);
void fleet_close(struct fleet *f); /* no hop of a request may be left; NULL is allowed */
/* "URL [weight=W], URL": E_INVALID names the bad part. */
int fleet_add_peers(struct fleet *f, const char *peers, struct err *e);
/* The worker of that URL, a new one if there is none. NULL: an error. */
struct worker *fleet_add(struct fleet *f, struct str url, double weight, struct err *e);
void fleet_remove(struct fleet *f, struct worker *w); /* gone: it gets no new requests */
void fleet_drain(struct worker *w, bool on);          /* by an operator */
struct worker *fleet_find(struct fleet *f, struct str url);
int fleet_n(const struct fleet *f);
struct worker *fleet_at(struct fleet *f, int i); /* NULL: the place is free */

/* Reads a reply of GET /cluster/state. E_FORMAT names the member that is wrong; w is unchanged. */
void fleet_free_models(struct worker_model *m, int n);
int fleet_read_state(struct worker *w, struct str json, struct err *e);

/* The model of that name or alias; NULL: the worker does not have it. An empty name: its first one. */
const struct worker_model *worker_model(const struct worker *w, struct str name);

/* Which models worker w would evict to load its model m, which is not loaded. */
enum place_evicts worker_evicts(const struct worker *w, const struct worker_model *m);

struct fleet_job {
    struct str model;
    double cost;
    const uint64_t *hashes; /* [n_hashes] */
    int n_hashes;
    double block_tokens;
    const unsigned char *tried; /* [FLEET_MAX] or NULL */
    const char *tenant;         /* or NULL */
    bool any_model;             /* of routes that no model is named for */
};
/* The worker for a request, counted as on its way to it: worker_done must follow. NULL: none is
 * usable now; *known: some worker has the model. */
struct worker *fleet_place(struct fleet *f, const struct fleet_job *job, bool *by_prefix,
                           bool *known);
void fleet_take(struct fleet *f, struct worker *w,
                const struct fleet_job *job); /* the same for w */
enum worker_result { WORKER_OK, WORKER_BUSY, WORKER_BROKEN, WORKER_CANCELLED };
void worker_done(struct worker *w, double cost, enum worker_result r);
void worker_note_seen(struct worker *w);                   /* a byte came from it */
void worker_note_lost(struct worker *w, enum hop_end end); /* a request's connection failed */
double fleet_imbalance(struct fleet *f);
#endif
