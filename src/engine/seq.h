/* seq.h - one sequence in the engine: its tokens, the blocks of their keys and values, its sampler.
 *
 * Everything a sequence needs while it runs is taken when it opens; a token costs no allocation.
 * The engine's thread owns it. struct past is what stays of the last finished one: a request that
 * begins alike goes on from there. */
#ifndef TERN_ENGINE_SEQ_H
#define TERN_ENGINE_SEQ_H

#include "engine/request.h"
#include "kv/chain.h"

struct seq {
    struct request *r;           /* borrowed: the caller's */
    struct ids tokens;           /* prompt, then what came */
    int n_kv;                    /* the first ones, whose keys and values lie in chain */
    int n_max;                   /* tokens at most, prompt included */
    struct chain chain;
    struct sampler *sampler;
    struct seq *next;            /* in the engine's list */
};

struct seq_limits {
    int n_ctx;
    int n_vocab;                 /* ids the model knows */
    int n_pick;                  /* of those, what may be sampled */
};

/* Checks the request against the limits; E_CONTEXT gives both numbers. */
int  seq_open(struct seq **out, struct request *r, struct seq_limits lim, struct err *e);
void seq_close(struct seq *s, struct block_pool *pool);  /* NULL is fine */
/* Its blocks go back; what they held is computed again later. */
void seq_forget(struct seq *s, struct block_pool *pool);
void seq_finish(struct seq *s, enum finish why, const struct err *e);
/* Appends a token that was picked; finishes the request where that is the end. */
void seq_take(struct seq *s, int32_t id, bool is_end);

struct past {
    struct chain chain;
    struct ids tokens;           /* [n]: those whose keys and values are there */
};

void past_keep(struct past *p, struct seq *s, struct block_pool *pool);      /* takes s's blocks over */
/* Moves blocks that s begins alike to it; what is kept of the past else is given back. */
void past_give(struct past *p, struct seq *s, struct block_pool *pool);
void past_drop(struct past *p, struct block_pool *pool);
#endif
