/* parallel.h - one model over the members of a gang, as a runner of the leader.
 *
 * Every member has a decoder of its part (shard.h). The leader's runner sends each batch to all
 * members as an order (stepplan.h), computes its own part and collects the logits. Members decide
 * nothing: blocks, slots and the order of steps are the leader's.
 *
 * With several stages a batch is cut into pieces of consecutive tokens that follow each other through
 * the stages: while a stage works on one piece, the one before it works on the next. Decode steps are cut
 * where that is faster (pieces.h). */
#ifndef TERN_MODEL_PARALLEL_H
#define TERN_MODEL_PARALLEL_H

#include "comm/gang.h"
#include "model/loadplan.h"

/* ---- the leader: called by the loader ---- */

/* The shard of the leader. */
struct shard_opt parallel_shard(const struct gang_shape *g, int rank);
/* Compares the members and chooses their parts. *number is that of the next order. *uneven: the leader's
 * part is another than the plan's, which has to be made again. */
int parallel_meet(struct loadplan *p, uint64_t *number, bool *uneven, struct err *e);
/* Tells the members to load, with the sizes of the plan. */
int parallel_announce(struct loadplan *p, uint64_t *number, struct err *e);
/* Waits until all have loaded; *r is the leader's decoder, and becomes the runner of all. */
int parallel_open(struct runner **r, struct loadplan *p, uint64_t number, struct err *e);

/* ---- other members ---- */

/* Loads what the leader says and computes until it ends the gang: OK. Otherwise the leader has been
 * told the reason. */
int member_serve(struct comm_link *link, struct err *e);

/* ---- figures ---- */

/* The members, the leader first; n is their number, 0: the runner is not one of a gang. They live as
 * long as the runner. */
const struct gang_seat *parallel_seats(const struct runner *r, int *n);
/* "shared memory", "tcp", "mpi"; NULL: not a gang. */
const char *parallel_transport(const struct runner *r);

struct parallel_stats {
    int members, tp, pp;
    const char
        *sums; /* of the leader's stage: "shared memory", "tcp", "mpi" between CPUs, "host", "ipc",
                       * "nccl" between GPUs; "none": a stage is one member */
    uint64_t step_ns; /* of all steps of the leader */
    uint64_t comm_ns; /* of these, in communication and waiting for others */
    uint64_t bytes;   /* that the leader has sent */
    uint64_t n_steps;
};
/* false: the runner is not one of a gang. */
bool parallel_stats(const struct runner *r, struct parallel_stats *out);
/* For tests: every step in so many pieces, as far as it has tokens; 0: as many as are fastest. */
void parallel_force_pieces(struct runner *r, int n);
/* The leader's decoder; r itself if it is not one of a gang. */
struct runner *parallel_local(struct runner *r);
#endif
