/* replicas.h - how many workers should have a model in memory, and which one loads or unloads it next.
 * Pure: everything it depends on is passed in.
 *
 * A model has one replica for each REPLICA_REQUESTS requests that run or wait, between opt.min and opt.max. A
 * further one is loaded where there is room, or where a model that nobody uses makes room; never where a
 * model in use would have to go. Of replicas that are more than that for opt.idle_ns, one after the other
 * is unloaded, where no request runs; the last one is left to the worker (--keep-alive). */
#ifndef TERN_CLUSTER_REPLICAS_H
#define TERN_CLUSTER_REPLICAS_H

#include <stdbool.h>
#include <stdint.h>

enum { REPLICA_REQUESTS = 8 };

/* Which models a worker evicts to load another one: none, idle ones, or models in use. */
enum place_evicts { EVICTS_NONE, EVICTS_IDLE, EVICTS_USED };

struct replica_opt {
    int min, max; /* max 0: all workers */
};

struct replica_worker { /* as the choice sees it */
    bool usable;        /* ready, and lists the model */
    bool loaded, loading;
    int requests; /* of the model, that run or wait there */
    enum place_evicts evicts;
    double free_bytes; /* -1: not known */
};

enum replica_step { REPLICA_KEEP, REPLICA_LOAD, REPLICA_UNLOAD };
struct replica_choice {
    int wanted, loaded, loading; /* replicas */
    bool surplus;                /* there are more than wanted */
    enum replica_step step;
    int worker; /* of step */
};
/* demand: requests of the model that run or wait, here and at workers. is_late: there were too many replicas
 * for opt.idle_ns. */
struct replica_choice replicas_choose(const struct replica_opt *opt, int demand, bool is_late,
                                      const struct replica_worker *w, int n);
#endif
