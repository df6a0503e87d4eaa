/* membudget.c - the plan's bytes against a limit, and against what the machine has. Devices other
 * than the host look at their own memory when the plan is made (model/place.c). */
#include "pool/membudget.h"

#include "base/log.h"
#include "format/source.h"
#include "model/loadplan.h"
#include "base/memavail.h"

#include <stdio.h>
#include <string.h>

#define MIB (1024.0 * 1024.0)

enum { KV_SHARE = 8 }; /* a KV cache of an eighth of the free memory is large */

/* Left free for the rest of the process and for others: a 32nd of the memory. */
#define ROOM_SHARE 32
#define ROOM_MOST ((uint64_t)1 << 30)

/* Decrypted tensors are in private memory of the host, also those that a GPU has a copy of. */
static void count_decrypted(struct membudget *b, const struct loadplan *plan)
{
    uint64_t bytes = source_bytes(plan->source);

    b->weights += bytes > b->mapped ? bytes - b->mapped : 0;
    b->copied += bytes > b->mapped ? bytes : b->mapped;
    b->mapped = 0;
}

struct membudget membudget_of(const struct loadplan *plan)
{
    struct load_bytes b = loadplan_bytes(plan);
    struct membudget out = { b.weights, b.kv, b.scratch,
                             .kv_given = plan->sizes.kv_why == SIZES_GIVEN };

    for (int i = 0; i < plan->place.n_shares; i++) {
        const struct load_memory *m = &plan->memory[i];
        out.mapped += m->mapped;
        if (plan->place.shares[i].be->available_bytes) { /* a device of its own */
            snprintf(out.device, sizeof out.device, "%s", plan->place.shares[i].be->name);
            out.device_lack = plan->place.lack;
            continue;
        }
        out.copied += m->weights;
        out.host_kv += m->kv;
        out.host_scratch += m->scratch + m->backend + m->tables;
    }
    if (source_is_sealed(plan->source)) count_decrypted(&out, plan);
    return out;
}

void membudget_add(struct membudget *sum, const struct membudget *b)
{
    sum->weights += b->weights, sum->kv += b->kv, sum->scratch += b->scratch;
    sum->mapped += b->mapped, sum->copied += b->copied;
    sum->host_kv += b->host_kv, sum->host_scratch += b->host_scratch;
}

void membudget_take(struct membudget *sum, const struct membudget *b)
{
    sum->weights -= b->weights, sum->kv -= b->kv, sum->scratch -= b->scratch;
    sum->mapped -= b->mapped, sum->copied -= b->copied;
    sum->host_kv -= b->host_kv, sum->host_scratch -= b->host_scratch;
}

int membudget_check(const struct membudget *b, uint64_t taken, uint64_t limit, struct err *e)
{
    if (taken + membudget_on_host(b) <= limit) return OK;
    return err_set(e, E_MEMORY,
                   "the model needs %.1f MiB%s (weights %.1f, KV %.1f, scratch %.1f), other models "
                   "take %.1f MiB, and memory-limit is %.1f MiB: a smaller ctx, kv-tokens or "
                   "max-batch needs less",
                   (double)membudget_on_host(b) / MIB, b->device[0] ? " of host memory" : "",
                   (double)(b->mapped + b->copied) / MIB, (double)b->host_kv / MIB,
                   (double)b->host_scratch / MIB, (double)taken / MIB, (double)limit / MIB);
}

int membudget_check_device(const struct membudget *b, uint64_t taken, uint64_t limit, struct err *e)
{
    uint64_t need = membudget_device(b);

    if (!limit || taken + need <= limit) return OK;
    return err_set(e, E_MEMORY,
                   "the model needs %.1f MiB of %s, other models take %.1f MiB there, and "
                   "memory-limit is %s=%.1f MiB: a smaller ctx, kv-tokens, max-batch or gpu-layers "
                   "needs less",
                   (double)need / MIB, b->device, (double)taken / MIB, b->device,
                   (double)limit / MIB);
}

uint64_t membudget_limit_of(const struct membudget_limit *l, int n, const char *device)
{
    uint64_t by_kind = 0;

    for (int i = 0; i < n; i++) {
        size_t len = strlen(l[i].device);
        if (strcmp(l[i].device, device) == 0) return l[i].bytes;
        if (strncmp(l[i].device, device, len) == 0 && device[len] == ':') by_kind = l[i].bytes;
    }
    return by_kind;
}

static uint64_t allocated(const struct membudget *b) { return membudget_host(b); }

static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

void membudget_hold(struct memavail *m, const struct membudget *held, uint64_t others)
{
    if (m->free == UINT64_MAX) return;
    m->free = less(m->free, less(allocated(held), m->own));
    m->free = less(m->free, others);
}

/* A room that is used up is known: 1, not 0. */
static uint64_t at_least_one(uint64_t n) { return n ? n : 1; }

struct sizes_room membudget_room(const struct memavail *m, const struct membudget *held,
                                 uint64_t limit)
{
    struct sizes_room r = { 0 };

    if (m->free != UINT64_MAX) r.host_bytes = at_least_one(less(m->free, held->mapped));
    if (limit) r.limit_bytes = at_least_one(less(limit, membudget_on_host(held)));
    return r;
}

static uint64_t room_of(const struct memavail *m)
{
    return m->total / ROOM_SHARE < ROOM_MOST ? m->total / ROOM_SHARE : ROOM_MOST;
}

static int refuse(const struct membudget *b, uint64_t has, const char *what, uint64_t room,
                  struct err *e)
{
    return err_set(e, E_MEMORY,
                   "the model needs %.1f MiB (KV %.1f, scratch %.1f, copied weights %.1f; beside "
                   "%.1f of weights in its file), but %s is %.1f MiB, of which %.1f stay free: a "
                   "smaller ctx, kv-tokens or max-batch needs less; memory-limit none does not "
                   "check this",
                   (double)allocated(b) / MIB, (double)b->host_kv / MIB,
                   (double)b->host_scratch / MIB, (double)b->copied / MIB, (double)b->mapped / MIB,
                   what, (double)has / MIB, (double)room / MIB);
}

int membudget_check_machine(const struct membudget *b, const struct memavail *m, struct err *e)
{
    uint64_t room = room_of(m), all = allocated(b) + b->mapped;

    if (m->total != UINT64_MAX && all + room > m->total)
        return refuse(b, m->total, "the whole memory", room, e);
    if (m->free != UINT64_MAX && allocated(b) + room > m->free)
        return refuse(b, m->free, m->limit_by, room, e);
    if (m->address != UINT64_MAX && all + room > m->address)
        return refuse(b, m->address, "RLIMIT_AS (ulimit -v)", room, e);
    if (m->free != UINT64_MAX && all > m->free)
        log_warn(
            "the model's %.1f MiB of weights do not stay in memory beside %.1f MiB of KV cache "
            "and scratch: %s is %.1f MiB, and they will be read from the file again and again",
            (double)b->mapped / MIB, (double)allocated(b) / MIB, m->limit_by,
            (double)m->free / MIB);
    return OK;
}

static uint64_t lack_of(uint64_t needs, uint64_t has)
{
    return has != UINT64_MAX && needs > has ? needs - has : 0;
}

struct membudget_lack membudget_find_lack(const struct membudget *b, const struct memavail *m)
{
    uint64_t room = room_of(m), all = allocated(b) + b->mapped + room;

    return (struct membudget_lack){ .never = lack_of(all, m->total) > 0,
                                    .free = lack_of(allocated(b) + room, m->free),
                                    .address = lack_of(all, m->address) };
}

bool membudget_is_kv_large(const struct membudget *b, const struct memavail *m)
{
    return b->kv_given && m->free != UINT64_MAX && b->host_kv > m->free / KV_SHARE;
}
