/* nccllib.h - the calls of NCCL that tern makes, as tern-nccl.so hands them out (src/nccl).
 *
 * That library alone knows NCCL. It needs NVIDIA's libnccl.so.2 only when it is opened: tern-cuda.so
 * opens it if members are to sum by NCCL. */
#ifndef TERN_KERNEL_NCCLLIB_H
#define TERN_KERNEL_NCCLLIB_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

#define NCCLLIB_SYMBOL "tern_nccl_open"
#define NCCLLIB_VERSION 1

enum { NCCLLIB_ID_BYTES = 128 };

struct nccllib {
    int version; /* of NCCL, 22809 for 2.28.9 */
    /* id: which communicator; made by one member, and given to all. */
    int (*make_id)(unsigned char *id, struct err *e);
    /* Returns when all members have joined. The calling thread's device is the member's. */
    int (*join)(void **comm, int rank, int size, const unsigned char *id, struct err *e);
    /* x = sum over all members, on a stream. */
    int (*sum)(void *comm, float *x, size_t n, void *stream, struct err *e);
    void (*abort)(void *comm); /* ends what waits for members that are gone; instead of leave */
    void (*leave)(void *comm);
};

/* version: nccllib_version() of the caller. */
typedef int nccllib_open_fn(struct nccllib *out, uint64_t version, struct err *e);
static inline uint64_t nccllib_version(void)
{
    return (uint64_t)NCCLLIB_VERSION << 32 | sizeof(struct nccllib);
}
#endif
