/* sched.h - plan one step: decode, prefill chunk, preempt. Pure: numbers in, numbers out.
 *
 * The engine describes every sequence that runs or waits; the plan says which take part in the step
 * with how many tokens, which of the waiting begin, and which of the running give their blocks back
 * to be computed again. Decode comes first: a late prompt costs one reader once, a stalled decode
 * every one.
 *
 * Blocks that running ones are still to get for what they know are left to them; a waiting one
 * begins when all of its own fit beside those, and one that does not fit stops those behind it.
 * Where a running one finds no block, the last in rank gives way, never one that ranks before it.
 */
#ifndef TERN_ENGINE_SCHED_H
#define TERN_ENGINE_SCHED_H

#include <stdbool.h>
#include <stdint.h>

struct sched_seq {
    int n_tokens;   /* known: prompt and what came */
    int n_kv;       /* the first ones, whose keys and values are there */
    int n_blocks;   /* it holds */
    int n_shared;   /* of those, others hold too: giving up frees the rest (prefix_n_gain) */
    int n_hit;      /* waiting: tokens that a lookup of its prefix would find now */
    int n_hit_used; /* of those, in blocks that are not part of n_free (see prefix_look) */
    bool waiting;   /* has not begun, or was preempted */
    bool held;      /* may not take part: reader behind, or its prefix is being computed */
    int priority;   /* higher first */
    uint32_t tenant;
    uint64_t arrival_ns;
    uint64_t deadline_ns; /* 0: none */
};

struct sched_opt {
    int max_tokens;  /* of a step */
    int max_seqs;    /* in a step */
    int block;       /* tokens of a block */
    int min_chunk;   /* prefill tokens that a step with decodes always may take; 0: one block */
    uint64_t age_ns; /* waiting so long is worth one priority; 0: 1 s */
    uint64_t max_step_ns; /* of any step, estimated: 0: no bound */
    uint64_t
        solo_step_ns; /* of a step with one chunk and nothing else; less than max_step_ns: that */
    double stretch;   /* a step with decodes may take so many times the decodes alone; 0: 2.5 */
};

struct sched_cost {    /* measured; 0: not known yet */
    double step_ns;    /* a step whatever is in it */
    double decode_ns;  /* each decoding sequence beside that */
    double prefill_ns; /* each token of a chunk */
};

struct sched_in {
    struct sched_opt opt;
    struct sched_cost cost;
    uint64_t now_ns;
    int n_free; /* blocks free or to be freed by evicting what nobody uses */
    const struct sched_seq *seqs;
    int n_seqs;
    const uint64_t
        *served; /* [n_tenants] work of each tenant so far, in tokens; NULL: all the same */
    int n_tenants;
};

struct sched_item {
    int seq; /* index in seqs */
    int n;   /* tokens in this step */
};

struct sched_plan { /* arrays are the caller's, each as long as seqs */
    struct sched_item *run;
    int n_run;
    int *begin; /* waiting ones that begin now, in order; all are in run too */
    int n_begin;
    int *preempt; /* running ones that give everything back */
    int n_preempt;
    int n_tokens;
    int stuck; /* no room for this one though all others gave way: end it. -1: none */
};

/* order: scratch, as long as seqs. */
void sched_plan(const struct sched_in *in, struct sched_plan *out, int *order);
/* Does a come before b? Priority with age, then the nearer deadline, the tenant served less,
 * arrival.
 *
 * Age lifts a sequence to the highest priority that is there, and no further, so that the backlog
 * of one tenant does not go before what another asks now; only where there are deadlines does one
 * that waited SCHED_OVERDUE ages go before them. Ages tick for all at once: two never change places
 * by it and back. Tenants decide who begins, not who is preempted: two of them would take turns in
 * preempting each other. */
#define SCHED_OVERDUE 64
bool sched_before(const struct sched_in *in, int a, int b);
#endif
