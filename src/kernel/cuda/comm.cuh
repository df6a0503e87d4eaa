/* comm.cuh - a GPU's part in sums over the members of a group (kernel/group.h). */
#ifndef TERN_KERNEL_CUDA_COMM_CUH
#define TERN_KERNEL_CUDA_COMM_CUH

#include "kernel/cuda/cu.cuh"

extern "C" {
#include "kernel/nccllib.h"
}

/* ---- over CUDA IPC (comm_ipc.cu) ---- */

#define IPC_BLOCKS 32 /* of every launch: flags are those of a block */
#define IPC_THREADS 512

/* State that the host and the kernels share, in page-locked memory. */
struct ipc_status {
    int stop;    /* the host: stop waiting, the gang has ended */
    int late;    /* the device: 1 + the member that did not come before the deadline */
    uint64_t ns; /* the device: time in sums */
};

/* The memory that a member shares: flags[rank of the writer][block], then two halves of `cap` numbers
 * that sums use in turn. */
struct ipc_args {
    float *data[GROUP_IPC_MAX]; /* by rank */
    unsigned *flags[GROUP_IPC_MAX];
    unsigned *epochs;          /* [IPC_BLOCKS] sums so far; this member's own */
    uint64_t *ns;              /* time so far; likewise */
    int *dead;                 /* a wait has failed: nobody waits any more; likewise */
    struct ipc_status *status; /* as the device sees it */
    size_t cap;                /* numbers of one half */
    uint64_t timeout_ns;
    int rank, size;
};

/* Bytes before the numbers in a member's shared memory. */
static inline size_t ipc_head_bytes(void)
{
    return (size_t)GROUP_IPC_MAX * IPC_BLOCKS * sizeof(unsigned) * 2;
}

/* x += those of all others, for at most a->cap numbers. */
void ipc_sum(struct cuda *c, const struct ipc_args *a, float *x, size_t n);

/* ---- the group ---- */

struct cu_comm {
    struct sum_group g; /* size 0: not joined */
    int slot;           /* of the table that host calls find their group by */
    /* GROUP_HOST: page-locked memory for the largest sum. */
    float *host;
    size_t host_n;
    /* GROUP_IPC: own memory, that of the others, and the words that kernels count in. */
    void *shared;
    size_t shared_bytes;
    void *peers[GROUP_IPC_MAX]; /* mapped; NULL: own, or not mapped */
    void *words;
    size_t words_bytes;
    struct ipc_status *status; /* page-locked */
    struct ipc_args ipc;
    /* GROUP_NCCL */
    struct nccllib nccl;
    bool has_nccl;
    void *nccl_comm;
};

/* Finds and opens tern-nccl.so. */
int cu_nccl_open(struct nccllib *out, struct err *e);
#endif
