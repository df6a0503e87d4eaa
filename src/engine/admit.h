/* admit.h - can it ever fit, is there room: answered before the crossing, by the asking thread.
 *
 * Counts what waits and runs: requests, prompt tokens, KV blocks they are expected to need (the
 * prompt and an answer as long as answers were lately, or as max_tokens allows). That the worst
 * case of each alone fits is settled when the engine opens: the cache holds a whole context. What a
 * request was counted with is kept in it and given back exactly once, when it ends or was never
 * taken. */
#ifndef TERN_ENGINE_ADMIT_H
#define TERN_ENGINE_ADMIT_H

#include "engine/request.h"

struct admit_limits {
    int n_ctx;                /* tokens of a sequence */
    int block;                /* tokens of a block */
    int n_blocks;             /* of the KV cache */
    int max_requests;         /* waiting and running */
    int max_seqs;             /* running */
    int64_t max_queue_tokens; /* prompt tokens waiting */
    double kv_overcommit;     /* blocks all taken requests are expected to need, in caches */
};

struct admit {
    struct admit_limits lim;
    atomic_int n_requests;
    _Atomic int64_t n_tokens; /* prompts of those that did not begin yet */
    _Atomic int64_t n_blocks; /* expected of all */
    atomic_int closed;        /* drains: E_SHUTDOWN */
    /* measured by the engine, read here */
    _Atomic uint64_t prefill_ns; /* a prompt token */
    _Atomic uint64_t step_ns;    /* a decode step */
    _Atomic uint64_t end_ns;     /* between two ends of requests, lately */
    _Atomic int64_t out_tokens;  /* an answer's length, lately */
    atomic_int n_running;
};

void admit_init(struct admit *a, struct admit_limits lim);
/* OK: counted. Otherwise nothing is, and e has the numbers: E_CONTEXT, E_QUEUE_FULL, E_MEMORY,
 * E_DEADLINE, E_SHUTDOWN; retry_ms is set where waiting helps. now_ns: clock_ns. */
int admit_take(struct admit *a, struct request *r, uint64_t now_ns, struct err *e);
void admit_began(struct admit *a, struct request *r); /* it left the queue for good */
void admit_give(struct admit *a, struct request *r);  /* again is fine */
/* How long until there is room for one more, from what was measured; at least 1 s, at most 60 s. */
int admit_retry_ms(const struct admit *a);
/* What a request taken now waits for its first token, as far as can be told. */
uint64_t admit_wait_ns(const struct admit *a, int n_prompt);
#endif
