/* place.h - chooses the worker of a request. Pure: everything it depends on is passed in, so that
 * tests and the simulator (bench/cluster-sim) run the code of the gateway.
 *
 *   PLACE_PREFIX       the worker that has computed most of the prompt, if that costs no balance:
 *                      while it has got less than 1.05 times its share of the work, and has no longer a
 *                      queue than others. Else the least loaded worker.
 *   PLACE_LEAST        least tokens outstanding for its weight
 *   PLACE_WEIGHTED     in turns, as often as the weights say (smooth weighted round-robin)
 *   PLACE_ROUND_ROBIN  in turns
 *
 * Workers that have the model in memory come first. Where all of them have a queue, one that has to load it
 * is as good, unless a model in use would have to make room. Of those that have to load it, one with
 * room is chosen before one that unloads another model, and that before one that unloads a model in use. */
#ifndef TERN_CLUSTER_PLACE_H
#define TERN_CLUSTER_PLACE_H

#include "cluster/replicas.h"

#include <stdbool.h>
#include <stdint.h>

enum place_policy { PLACE_PREFIX, PLACE_LEAST, PLACE_WEIGHTED, PLACE_ROUND_ROBIN };

/* A worker as the choice sees it. */
struct place_worker {
    bool usable;              /* ready, has the model, not tried before */
    bool loaded;              /* the model is in its memory */
    enum place_evicts evicts; /* it is not: what a load of it costs others */
    double weight;            /* of its speed; 1: as the others */
    double outstanding; /* tokens of requests that it has and has not answered, in estimated cost */
    double assigned;    /* tokens that it got so far; older ones count less (place_decay) */
    double waiting;     /* requests in its queue, as it says itself */
    double kv_free;     /* share of its KV cache that is free, 0 to 1 */
    int match;          /* blocks of the prompt that it has computed */
};

struct place_state { /* of the policies that take turns; zeroed at first */
    double *turn;    /* [n]; not used by the others */
};

struct place_job {
    enum place_policy policy;
    double cost;  /* of this request in tokens, without the prefix */
    int n_blocks; /* of its prompt */
    double block_tokens;
};

/* The index of the worker; -1: none is usable. *by_prefix (NULL is allowed): it was chosen for what
 * it has computed. */
int place_choose(const struct place_job *job, const struct place_worker *w, int n,
                 struct place_state *st, bool *by_prefix);
bool place_policy_by_name(const char *name, enum place_policy *out);

/* Imbalance of the work that the usable workers got: the most loaded one above the mean of its weight,
 * as a share of it. 0.05: 5 %. */
double place_imbalance(const struct place_worker *w, int n);

/* assigned counts half after so many tokens have been assigned to all workers, per worker. */
#define PLACE_WINDOW 100000.0
#define PLACE_SLACK 0.03
#endif
