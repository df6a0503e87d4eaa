/* group.h - devices of several processes that add up their results: the members of a stage of a
 * gang (model/shard.h).
 *
 * A member whose device has memory of its own takes part in one of three ways:
 *
 *   GROUP_HOST   the numbers are copied to page-locked host memory, summed there by the members'
 *                communicator (comm/comm.h), and copied back. Works between any devices and hosts,
 *                also with members on CPUs.
 *   GROUP_IPC    every member maps the memory of all others (CUDA IPC), and each adds up all
 *                contributions by itself, in the order of ranks: one trip (a one-shot all-reduce).
 *                For processes of one machine whose devices reach each other.
 *   GROUP_NCCL   NVIDIA's library, by tern-nccl.so. One device for each member.
 *
 * Members agree on one way: each makes an offer of what its device can do, all of them get all
 * offers, and group_choose comes to the same result everywhere (model/devgroup.c). */
#ifndef TERN_KERNEL_GROUP_H
#define TERN_KERNEL_GROUP_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum group_way { GROUP_HOST, GROUP_IPC, GROUP_NCCL, GROUP_WAYS };

/* GROUP_ANY: the best that works; else that one, or an error that says why not. */
enum { GROUP_ANY = -1 };

enum {
    GROUP_IPC_MAX = 16, /* members that sum over IPC */
    GROUP_MAGIC = 0x50475254
};

/* What a member's device can do, as bytes between processes of one build. */
struct group_offer {
    uint32_t magic, size_of;
    uint32_t ways;            /* bit 1 << way; 0: a CPU, whose sums are those of the communicator */
    uint32_t reserved;        /* 0 */
    char host[40];            /* the machine: an id of its running kernel */
    unsigned char card[16];   /* the device */
    char device[16];          /* "cuda:0", for messages */
    unsigned char memory[64]; /* IPC: a handle of the memory that the others read */
    uint64_t memory_at, memory_bytes; /* where in it they find the member's part, and its size */
    unsigned char nccl_id[128];       /* of the first member: which communicator of NCCL to join */
};

/* An offer without a device: host and magic. */
void group_offer_init(struct group_offer *o);
/* E_FORMAT: not offers of this build. */
int group_check_offers(const struct group_offer *o, int n, struct err *e);
/* The way of all members. want: GROUP_ANY, or one of them: E_UNSUPPORTED names the member that cannot
 * use it, and why. */
int group_choose(enum group_way *out, const struct group_offer *o, int n, int want, struct err *e);
const char *group_way_name(enum group_way w); /* "host", "ipc", "nccl" */

/* What a device is asked to offer. */
struct group_ask {
    unsigned ways; /* bit 1 << way: only these are looked at, as they take memory and libraries */
    int rank;
    size_t max; /* numbers of the largest sum */
};

/* A group as a backend gets it. */
struct sum_group {
    int rank, size;
    enum group_way way;
    const struct group_offer *offers; /* [size]; read while joining only */
    size_t max;                       /* numbers of the largest sum */
    uint64_t timeout_ns;              /* a wait for another member; 0: none */
    /* GROUP_HOST: x = sum over all members, in host memory. Called by a thread of the device's driver
     * while the thread that drives the backend waits. Keeps failures itself. wire: as in all_reduce. */
    void (*sum)(void *arg, float *x, size_t n, int wire);
    /* Any thread: has the group ended? The device then stops waiting for others. */
    bool (*is_lost)(void *arg);
    /* GROUP_IPC: returns when all members have let go of each other's memory, or the group has ended. */
    void (*meet)(void *arg);
    void *arg;
};

/* What a device is, without opening it: for members that have to fit together (model/gangcard.h). */
struct device_card {
    char kind[8];           /* "cpu", "cuda" */
    char name[64];          /* "NVIDIA H200"; of a CPU the instruction set of its kernels */
    unsigned char card[16]; /* which one; zero for a CPU */
    int32_t cc;             /* compute capability, 90 for 9.0; 0: a CPU */
    int32_t reserved;
    uint64_t types;       /* data types of weights that it reads, bit 1 << type */
    uint64_t total_bytes; /* 0: not known */
};
#endif
