/* gang.h - the members of one model, as the runner of their leader knows them.
 *
 * A gang has a link, of which the leader is rank 0, and a shape: how the model is divided. Who started
 * the members, and how, is behind three calls: processes are in gang/launch.h; threads of tests and the
 * processes of an MPI job exist already (gang_over). */
#ifndef TERN_COMM_GANG_H
#define TERN_COMM_GANG_H

#include "comm/comm.h"

#include <stdatomic.h>

/* How sums of members on GPUs travel; members on CPUs use the link. AUTO: the fastest that all members
 * of a stage can use. */
enum gang_way { WAY_AUTO, WAY_HOST, WAY_IPC, WAY_NCCL, WAYS };

enum { GANG_DEVICE = 16 }; /* bytes of a device's name with its end: "cuda:1023" */

/* Who says how large the parts of the members are. DEFAULT: equal parts where the members are alike,
 * else AUTO: by their speed and memory (model/gangsplit.h). */
enum gang_split { SPLIT_DEFAULT, SPLIT_EVEN, SPLIT_AUTO, SPLIT_GIVEN, SPLITS };

/* How the model is divided; see model/shard.h. */
struct gang_shape {
    int tp, pp;
    bool ep;
    enum gang_split split;
    int shares[COMM_MAX]; /* by rank: of the members of each stage; with tp 1 of the stages. All 0:
                           * equal */
    int layers[COMM_MAX]; /* of each stage; all 0: by the shares of the stages, or equal */
    enum comm_wire wire;
    enum gang_way way;
    char devices[COMM_MAX][GANG_DEVICE]; /* of each member; empty: the CPU, of the leader its own */
    uint64_t step_ns; /* the longest wait of a member for another in a step; 0: none */
};

/* A member as it introduced itself after its load: for people. */
struct gang_seat {
    int rank;
    int64_t pid;
    char host[64], device[96]; /* "ada", "cpu (avx512, 2 threads)" */
    int first_layer, end_layer;
    uint64_t weight_bytes, kv_bytes, scratch_bytes;
};

/* Implementations embed it as their first member. */
struct gang {
    struct comm_link *link; /* owned */
    struct gang_shape shape;
    /* A member has gone: e says which. Any thread. NULL: nobody looks. */
    bool (*is_lost)(struct gang *g, struct err *e);
    /* fn is called once by another thread when a member has gone. NULL: never. */
    void (*on_lost)(struct gang *g, void (*fn)(void *arg), void *arg);
    void (*kill)(struct gang *g); /* the members, also those that hang. NULL: somebody else does */
    void (*close)(struct gang *g);
    atomic_bool
        ends; /* the members were told to end: close waits for them a while before it kills them */
    /* For a leader whose process ends with the gang: called by the thread that drives the runner when
     * the gang is lost, before any request hears of it. It does not return. NULL: the runner fails. */
    void (*over)(void *arg, const struct err *why);
    void *over_arg;
};

/* Starts a gang, for a loader that is told how but does not know how. */
struct gang_source {
    struct gang_shape shape; /* tp 0: no gang */
    int (*open)(void *arg, struct gang **out, struct err *e);
    void *arg;
    void (*over)(void *arg, const struct err *why); /* of the gangs it opens */
    void *over_arg;
};

/* A gang of members that exist already, each with its own end of the link. Owns the link, also after a
 * failure. */
int gang_over(struct gang **out, struct comm_link *link, const struct gang_shape *shape,
              struct err *e);

static inline bool gang_is_lost(struct gang *g, struct err *e)
{
    return g->is_lost && g->is_lost(g, e);
}

/* Ends the members that are left, and waits for them. NULL is allowed. */
static inline void gang_close(struct gang *g)
{
    if (g) g->close(g);
}
#endif
