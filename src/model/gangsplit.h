/* gangsplit.h - how much of a model each member of a gang gets, by its speed and its memory.
 *
 * A pure function of numbers. A step takes as long as its slowest member, so the longest time of all
 * members is made as short as it goes:
 *
 *   stages    consecutive layers; a stage's time is the cost of its layers, and of the output head on
 *             the last one, by the speeds of its members together
 *   members   of a stage have parts of every layer in proportion to their speeds
 *
 * Weights, KV cache and scratch of the members that share a memory must fit into it: a member that
 * has too little gets less than its speed allows, and the others more. */
#ifndef TERN_MODEL_GANGSPLIT_H
#define TERN_MODEL_GANGSPLIT_H

#include "base/err.h"
#include "comm/comm.h"

#include <stdbool.h>
#include <stdint.h>

enum { GANGSPLIT_WHOLE = 1000 }; /* shares of the members of a stage add up to about this */

struct gangsplit_layer {
    double cost;    /* bytes of weights that a token reads */
    uint64_t bytes; /* weights, KV cache and recurrent state */
};

struct gangsplit_in {
    int tp, pp;
    const struct gangsplit_layer *layers; /* [n_layers] */
    int n_layers;
    double head_cost;         /* of the last stage */
    uint64_t head_bytes;      /* likewise, divided among its members */
    uint64_t embd_bytes;      /* of the first stage, whole in every memory of its members */
    uint64_t each_bytes;      /* scratch of a member */
    double speeds[COMM_MAX];  /* [tp * pp] > 0; only their ratios count */
    int memories[COMM_MAX];   /* [tp * pp] which memory the member's part lies in */
    uint64_t rooms[COMM_MAX]; /* [memory] free bytes; UINT64_MAX: not known, no limit */
};

struct gangsplit {
    int layers[COMM_MAX]; /* [pp] of each stage, 1 or more */
    int shares[COMM_MAX]; /* [tp * pp] of each member in its stage, 1 or more */
};

/* E_UNSUPPORTED: it does not fit in any way; the message has the numbers. pp is at most n_layers. */
int gangsplit_choose(struct gangsplit *out, const struct gangsplit_in *in, struct err *e);
/* Do equal parts fit into every memory? */
bool gangsplit_even_fits(const struct gangsplit_in *in);
#endif
