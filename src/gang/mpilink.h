/* mpilink.h - a link of the processes of an MPI job, by tern-mpi.so, which alone stands on MPI. */
#ifndef TERN_GANG_MPILINK_H
#define TERN_GANG_MPILINK_H

#include "comm/comm.h"

#define MPILINK_SYMBOL "tern_mpi_open"
#define MPILINK_VERSION 1

/* version: MPILINK_VERSION with the size of struct comm_link. A library of another build refuses. */
typedef int mpilink_open_fn(struct comm_link **out, uint64_t version, struct err *e);
static inline uint64_t mpilink_version(void)
{
    return (uint64_t)MPILINK_VERSION << 32 | sizeof(struct comm_link) << 16 |
           sizeof(struct comm_move);
}

/* Was this process started by mpirun? */
bool mpilink_is_job(void);
/* The process's end of the job; the same one if it is open already. E_UNSUPPORTED: the library is not
 * here, or not MPI. */
int mpilink_open(struct comm_link **out, struct err *e);
#endif
