/* membudget.h - does a model fit into memory: beside the other models of a pool into a given limit,
 * or into what the machine has. */
#ifndef TERN_POOL_MEMBUDGET_H
#define TERN_POOL_MEMBUDGET_H

#include "base/err.h"
#include "model/sizes.h"

#include <stdbool.h>
#include <stdint.h>

struct loadplan;
struct memavail;

enum { MEMBUDGET_NAME = 24 };

/* Memory of one model, in bytes, from its load plan. */
struct membudget {
    uint64_t weights, kv, scratch; /* on all devices */
    /* The parts of weights, kv and scratch that lie in the memory of the host: */
    uint64_t mapped; /* weights that stay in the file: pages that can be given up and read again */
    uint64_t copied, host_kv, host_scratch; /* allocated */
    bool kv_given;                          /* the size of the KV cache was given */
    /* A GPU that a part of the model lies on; "": none. The rest of weights, kv and scratch. */
    char device[MEMBUDGET_NAME];
    uint64_t device_lack; /* bytes that it has not for all layers: some lie on the host instead */
};

/* Bytes that all models may take on one device. */
struct membudget_limit {
    char device[MEMBUDGET_NAME]; /* "cuda:1"; "cuda": each of them */
    uint64_t bytes;
};
enum { MEMBUDGET_LIMITS = 16 };
/* That of a device: by its name, or by its kind; 0: none. */
uint64_t membudget_limit_of(const struct membudget_limit *l, int n, const char *device);

struct membudget membudget_of(const struct loadplan *plan);
void membudget_add(struct membudget *sum, const struct membudget *b);
void membudget_take(struct membudget *sum, const struct membudget *b);

/* Memory that loaded models were promised, but have not touched yet, is no longer free: lowers m->free
 * by it. What they have touched is not free in m already. held: the sum of the models of this
 * process; others: bytes that those in processes of their own have not touched. */
void membudget_hold(struct memavail *m, const struct membudget *held, uint64_t others);
/* Memory for the default sizes of a model that is loaded now beside those of `held`, after
 * membudget_hold. Weights that stay in files count as taken: they must stay in memory for speed.
 * limit: bytes of all models on the host; 0: none. device_bytes, share and later_bytes are left to
 * the caller. */
struct sizes_room membudget_room(const struct memavail *m, const struct membudget *held,
                                 uint64_t limit);

/* E_MEMORY with the numbers if the model, beside `taken` bytes of others, exceeds the limit of its
 * device; limit 0: there is none. */
int membudget_check_device(const struct membudget *b, uint64_t taken, uint64_t limit,
                           struct err *e);
/* E_MEMORY if the memory of the host is not enough, weights that stay in files included. */
int membudget_check(const struct membudget *b, uint64_t taken, uint64_t limit, struct err *e);
/* E_MEMORY with the numbers and what to lower if the machine has not enough: what is allocated must
 * be free now, with some room left for others; mapped weights must fit beside it into the whole
 * memory. Where they do not fit into what is free now, a warning says that they will be slow. */
int membudget_check_machine(const struct membudget *b, const struct memavail *m, struct err *e);
/* Is the KV cache of a given size, and more than a small share of what is free? Then its pages are
 * taken before the model is ready: otherwise they would be missing when they are needed. A cache of
 * default size lies within what is surely free, and takes its pages when they are used. */
bool membudget_is_kv_large(const struct membudget *b, const struct memavail *m);

/* The memory that membudget_check_machine finds missing. All 0: the model fits. */
struct membudget_lack {
    bool never;    /* the model is larger than the machine: nothing that others give back helps */
    uint64_t free; /* bytes of memory: closing a model gives back membudget_host */
    uint64_t address; /* bytes of address space: and its mapped weights */
};
struct membudget_lack membudget_find_lack(const struct membudget *b, const struct memavail *m);

/* Bytes of host memory that closing the model gives back: pages of its file are not counted. */
static inline uint64_t membudget_host(const struct membudget *b)
{
    return b->copied + b->host_kv + b->host_scratch;
}

/* Bytes of host memory, pages of its file included: all of a model that has no GPU. */
static inline uint64_t membudget_on_host(const struct membudget *b)
{
    return b->mapped + membudget_host(b);
}

static inline uint64_t membudget_total(const struct membudget *b)
{
    return b->weights + b->kv + b->scratch;
}

/* Bytes on its device. */
static inline uint64_t membudget_device(const struct membudget *b)
{
    uint64_t host = b->mapped + membudget_host(b), all = membudget_total(b);

    return b->device[0] && all > host ? all - host : 0;
}
#endif
