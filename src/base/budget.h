/* budget.h - what a piece of work for somebody else may take: steps, bytes, time, and whether
 * anybody still wants it.
 *
 * Texts of strangers (schemas, grammars, patterns, templates, tool definitions) are compiled on
 * their behalf, and a text of a few hundred bytes can ask for work without end. Whoever starts the
 * work makes a budget and passes it on; the work counts what it does with budget_step, in its
 * innermost loops, and what it allocates with budget_take, or by giving the budget to its arenas
 * and growing its arrays with budget_ensure.
 *
 * The first limit that is exceeded is kept (`end`): from then on every call says no, loops end, and
 * what was built is thrown away. So code in the middle needs no error paths of its own; whoever
 * started the work asks budget_failed at the end, and budget_error says which limit it was and how
 * far the work got. Steps and bytes are the same on every machine; the limit of processor time is for
 * what they do not catch. Time in which the thread waits or other processes run does not count.
 *
 * A NULL budget has no limits. A budget is used by one thread; `cancelled` and `stop` are set by any. */
#ifndef TERN_BASE_BUDGET_H
#define TERN_BASE_BUDGET_H

#include "base/err.h"
#include "base/map.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Clock and flag are looked at once in so many steps: every few microseconds. */
#define BUDGET_LOOK 4096

enum budget_end {
    BUDGET_OPEN,
    BUDGET_STEPS,
    BUDGET_BYTES,
    BUDGET_TIME,
    BUDGET_CANCELLED,
    BUDGET_DEADLINE
};

/* Set the limits and what; the rest begins as zero. */
struct budget {
    const char *what;             /* for messages: "compiling the JSON schema" */
    uint64_t max_steps;           /* 0: no limit, here and below */
    size_t max_bytes;             /* held at the same time */
    uint64_t max_cpu_ns;          /* processor time of the thread, from the first look */
    const atomic_bool *cancelled; /* NULL: nobody cancels */
    const atomic_int *stop;       /* the same, of a job of base/workers.h: not 0 */
    uint64_t deadline_ns;         /* of clock_ns: nobody waits for it after that */

    uint64_t steps;    /* so far */
    uint64_t next;     /* steps at which limits, clock and flag are looked at again */
    size_t bytes;      /* held now */
    size_t peak_bytes; /* held at most */
    uint64_t begin_ns; /* clock_thread_ns at the first look */
    enum budget_end end;
};

bool budget_look(struct budget *b); /* limits, clock and flag at once; false: the work ends */

static inline bool budget_failed(const struct budget *b) { return b && b->end != BUDGET_OPEN; }

/* Counts n steps. false: the work ends. */
static inline bool budget_step(struct budget *b, uint64_t n)
{
    if (!b) return true;
    b->steps += n;
    return b->steps < b->next || budget_look(b);
}

/* Counts bytes that are about to be allocated. false: they must not be, and are not counted. */
bool budget_take(struct budget *b, size_t bytes);
void budget_give(struct budget *b, size_t bytes); /* they were freed */

/* E_INVALID: which limit was exceeded and how far the work got. E_CANCELLED, E_DEADLINE: nobody wants
 * it any more. Only after a failure. */
int budget_error(const struct budget *b, struct err *e);

/* ---- arrays and maps that count ---- */

bool budget_ensure_int(struct budget *b, void *pp, int *cap, int need, size_t size);
/* mem_ensure that counts: budget_ensure(b, v->items, v->cap, v->n + 1). cap is an int. false: no
 * memory, or the work ends. */
#define budget_ensure(b, p, cap, need) \
    ((need) <= (cap) || budget_ensure_int(b, &(p), &(cap), need, sizeof *(p)))
/* Frees an array of budget_ensure. */
#define budget_free(b, p, cap) (budget_give(b, (size_t)(cap) * sizeof *(p)), mem_free(p))

/* map_put that counts; E_NOMEM also where the work ends. */
int budget_map_put(struct budget *b, struct map *m, struct str key, uint64_t value);
void budget_map_release(struct budget *b, struct map *m);
#endif
