/* sched.h - plans one step: decodes, prefill chunks, preemptions. Pure: numbers in, numbers out.
 *
 * The engine describes every sequence that runs or waits. The plan says which take part in the step
 * with how many tokens, which waiting ones begin, and which running ones are preempted: they give
 * their blocks back and compute them again later. This is continuous batching with chunked prefill
 * (Orca, Sarathi-Serve).
 *
 * Decodes come first: a late prompt delays one reader once, a stalled decode delays every reader.
 * Blocks that running sequences still need for the tokens they have are reserved for them. A
 * waiting sequence begins when all of its own blocks fit beside those; one that does not fit blocks
 * those behind it, so that large prompts do not starve.
 *
 * If a running sequence finds no block, the one that ranks last is preempted, never one that ranks
 * before it.
 *
 * Prompts are computed one after the other, in order of rank, but a short one does not wait for a
 * long one: prompts with a quarter of its tokens or less share the prefill of each step with it.
 * Half of that stays the long prompt's own. */
#ifndef TERN_ENGINE_SCHED_H
#define TERN_ENGINE_SCHED_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct sched_seq {
    int n_tokens;   /* prompt and sampled tokens */
    int n_kv;       /* of those, the first so many are computed */
    int n_blocks;   /* KV blocks it has */
    int n_shared;   /* of those, shared with others: preempting it frees the rest (prefix_n_gain) */
    int n_hit;      /* waiting: tokens that the prefix cache has */
    int n_hit_used; /* of those, in blocks that are not part of n_free (see prefix_lookup) */
    bool waiting;   /* has not begun, or was preempted */
    bool held;      /* may not take part: its reader is behind, or its prefix is being computed */
    int priority;   /* higher first */
    uint32_t tenant;
    uint64_t arrival_ns;
    uint64_t deadline_ns; /* 0: none */
};

struct sched_opt {
    int max_tokens;  /* of a step */
    int max_seqs;    /* running at once, and in a step */
    int block;       /* tokens of a block */
    int min_chunk;   /* prefill tokens that a step with decodes may always take; 0: one block */
    uint64_t age_ns; /* waiting so long raises the priority by one; 0: 1 s */
    uint64_t max_step_ns;  /* of any step, estimated; 0: no limit */
    uint64_t solo_step_ns; /* of a step with one chunk and nothing else; below max_step_ns: that */
    double stretch; /* a step with decodes may take so many times as long as the decodes; 0: 2.5 */
};

struct sched_cost {    /* measured; 0: not known yet */
    double step_ns;    /* a step, whatever is in it */
    double decode_ns;  /* each decoding sequence, beside that */
    double prefill_ns; /* each token of a chunk */
};

struct sched_in {
    struct sched_opt opt;
    struct sched_cost cost;
    uint64_t now_ns;
    int n_free; /* blocks that are free, or can be evicted from the prefix cache */
    const struct sched_seq *seqs;
    int n_seqs;
    const uint64_t *served; /* [n_tenants] tokens computed for each tenant; NULL: all the same */
    int n_tenants;
};

struct sched_item {
    int seq; /* index in seqs */
    int n;   /* tokens in this step */
};

struct sched_plan { /* the arrays are the caller's, each as long as seqs */
    struct sched_item *run;
    int n_run;
    int *begin; /* waiting sequences that begin now, in order; all of them are in run too */
    int n_begin;
    int *preempt; /* running sequences that give all blocks back */
    int n_preempt;
    int n_tokens;
    int stuck; /* no room for this sequence though no other one runs: end it. -1: none */
};

/* order: scratch, as long as seqs. */
void sched_plan(const struct sched_in *in, struct sched_plan *out, int *order);

/* Does sequence a rank before b? By priority with age, then the nearer deadline, the tenant served
 * less, the earlier arrival.
 *
 * Age raises a sequence to the highest priority that is present, and no further, so that the
 * backlog of one tenant does not go before new requests of another. Only where there are deadlines
 * does a sequence that waited SCHED_OVERDUE ages go before them. Ages advance for all sequences at
 * the same moments, so two of them never change places and back. Tenants decide who begins, not who
 * is preempted: otherwise two tenants would preempt each other in turn. */
#define SCHED_OVERDUE 64
bool sched_before(const struct sched_in *in, int a, int b);

/* Checks a plan: within the limits of tokens, sequences and blocks; no sequence twice, none both
 * run and preempted, none held; every waiting one that runs begins; decodes before chunks.
 * E_INTERNAL says what is wrong. */
int sched_check(const struct sched_in *in, const struct sched_plan *p, struct err *e);
#endif
