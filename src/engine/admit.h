/* admit.h - admission control: can a request ever fit, and is there room for it now? Answered by
 * the submitting thread, before the request crosses to the engine.
 *
 * Counts what waits and runs: requests, prompt tokens, and the KV blocks they are expected to need
 * (the prompt and a completion as long as completions were lately, or as max_tokens allows). That
 * the worst case of a single request fits is known when the engine opens: the cache holds a whole
 * context. What was counted for a request is stored in it and given back exactly once, when it ends
 * or was not taken after all. */
#ifndef TERN_ENGINE_ADMIT_H
#define TERN_ENGINE_ADMIT_H

#include "engine/request.h"

#define ADMIT_MARGIN_MS 10 /* a deadline that is nearer is refused */

struct admit_limits {
    int n_ctx;                /* tokens of a sequence */
    int block;                /* tokens of a block */
    int n_blocks;             /* of the KV cache */
    int max_requests;         /* waiting and running */
    int max_seqs;             /* running */
    int64_t max_queue_tokens; /* prompt tokens waiting */
    double kv_overcommit;     /* expected blocks of all admitted requests, in KV caches */
    int max_further;          /* requests of tickets, beside one of each */
};

struct admit {
    struct admit_limits lim;
    atomic_int n_requests;    /* with each ticket as one */
    atomic_int n_further;     /* requests of tickets, beside one of each */
    _Atomic int64_t n_tokens; /* prompt tokens of requests that have not begun */
    _Atomic int64_t n_blocks; /* expected by all requests */
    atomic_int closed;        /* draining: every request is E_SHUTDOWN */
    /* measured by the engine thread, read here */
    _Atomic uint64_t prefill_ns; /* of a prompt token */
    _Atomic uint64_t step_ns;    /* of a decode step */
    _Atomic uint64_t end_ns;     /* between two ends of requests, lately */
    _Atomic int64_t out_tokens;  /* length of a completion, lately */
};

void admit_init(struct admit *a, struct admit_limits lim);
/* OK: the request is counted. Otherwise nothing changes and e has the numbers: E_CONTEXT,
 * E_QUEUE_FULL, E_MEMORY, E_DEADLINE, E_SHUTDOWN; retry_ms is set if waiting helps. now_ns:
 * clock_ns. */
int admit_request(struct admit *a, struct request *r, uint64_t now_ns, struct err *e);
/* Admits all prompts of a call together, as one request. A call with more tokens than half of
 * the queue is counted with that half. Each of its requests is then admitted by its ticket, also
 * while draining; E_QUEUE_FULL: not beside the call's others. */
int admit_ticket(struct admit *a, struct ticket *t, const struct ids *prompts, int n,
                 uint64_t deadline_ns, uint64_t now_ns, struct err *e);
void admit_give_back(struct admit *a, struct ticket *t); /* may be repeated */
void admit_begun(struct admit *a, struct request *r);    /* it left the queue for good */
void admit_release(struct admit *a, struct request *r);  /* may be repeated */
/* How long until there is room for one more request, by the measurements; 1 s to 60 s. */
int admit_retry_ms(const struct admit *a);
/* How long a request admitted now waits for its first token, by the measurements. */
uint64_t admit_wait_ns(const struct admit *a, int n_prompt);
#endif
