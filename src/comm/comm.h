/* comm.h - members of one model that compute together: collective operations and messages.
 *
 * A communicator is a group of members, ranks 0 to size - 1, each a thread or a process. All of
 * them call the same collective operations in the same order; a message goes from one member to
 * another. Every operation has a deadline, and the first failure is the last operation: whoever
 * aborts, dies or is late fails the communicator of all members, and what is called afterwards
 * fails at once with the same reason.
 *
 * How bytes travel is the link's (struct comm_link): memory that members share (shmlink.h),
 * TCP connections (tcplink.h), or MPI (tern-mpi.so). A link has one operation, to move several
 * messages at once; the collectives are written once above it.
 *
 * Sums are the same bits on every member: each adds the contributions in the order of ranks, or
 * one member adds and all others copy its result. Members that route tokens to experts by such
 * sums thus choose the same ones.
 *
 * One thread of a member uses its communicators. comm_abort may be called by any thread. */
#ifndef TERN_COMM_COMM_H
#define TERN_COMM_COMM_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { COMM_MAX = 64 }; /* members */

/* One message of a move: n bytes to the peer, or from it. */
struct comm_move {
    int peer; /* rank in the link */
    bool send;
    void *p; /* of a send it is only read */
    size_t n;
    size_t done; /* the link's */
};

/* The transport between all members. Implementations embed it as their first member. */
struct comm_link {
    int rank, size;
    const char *name; /* "shared memory", "tcp", "mpi" */
    /* Moves all messages, in whatever order they progress; those of one pair of members arrive in
     * the order of their moves. Nobody else's failure is waited for longer than until deadline_ns
     * (clock_ns). */
    int (*move)(struct comm_link *k, struct comm_move *m, int n, uint64_t deadline_ns,
                struct err *e);
    void (*abort)(struct comm_link *k, const char *why); /* any thread */
    bool (*is_aborted)(struct comm_link *k);             /* any thread */
    void (*close)(struct comm_link *k);
};

/* The form in which sums travel. */
enum comm_wire {
    COMM_F32,
    COMM_Q8 /* 8 bits a number with a scale for every 32, for slow networks; the sums of all members
             * are still the same bits */
};

struct comm_stats {
    uint64_t ns;    /* spent in operations, waiting included */
    uint64_t bytes; /* sent by this member */
    uint64_t n_ops;
};

struct comm {
    int rank, size;
    struct comm_link *link; /* borrowed */
    int peers[COMM_MAX];    /* rank in the link of each member */
    uint64_t timeout_ns;    /* of one operation; 0: none */
    struct comm_stats stats;
    struct err failed; /* code OK: it has not failed */
    /* memory for contributions of the others, grown to the largest operation so far */
    char *room;
    size_t n_room;
};

/* All members of the link, in its order. */
int comm_open(struct comm *c, struct comm_link *link, uint64_t timeout_ns, struct err *e);
/* The members [first, first + n * step) of the link, in steps; the caller is one of them. */
int comm_open_group(struct comm *c, struct comm_link *link, int first, int step, int n,
                    uint64_t timeout_ns, struct err *e);
void comm_release(struct comm *c); /* a zeroed one is allowed; the link stays open */

/* Memory for sums of up to n numbers: none of them allocates any from then on. */
int comm_reserve(struct comm *c, size_t n, struct err *e);
/* x[i] = sum over all members of their x[i]. */
int comm_all_reduce(struct comm *c, float *x, size_t n, enum comm_wire wire, struct err *e);
/* all = the n bytes of every member, one after the other. mine may point to its place in all. */
int comm_all_gather(struct comm *c, const void *mine, size_t n, void *all, struct err *e);
int comm_broadcast(struct comm *c, int root, void *p, size_t n, struct err *e);
int comm_send(struct comm *c, int to, const void *p, size_t n, struct err *e);
int comm_recv(struct comm *c, int from, void *p, size_t n, struct err *e);
/* As comm_recv, but waits up to timeout_ns; 0: for ever. For members that wait for work. */
int comm_recv_within(struct comm *c, int from, void *p, size_t n, uint64_t timeout_ns,
                     struct err *e);
int comm_barrier(struct comm *c, struct err *e);

/* Fails the operations of all members, now and later. */
void comm_abort(struct comm *c, const char *why);

static inline void comm_link_close(struct comm_link *k) /* NULL is allowed */
{
    if (k) k->close(k);
}
#endif
