/* admit.c - counters of what was admitted, and the estimates that admission goes by.
 *
 * Any number of threads admit at once; the engine thread releases. The counters are independent
 * atomics: two threads may both pass a check whose limit has room for one only. That is harmless,
 * because the channel to the engine has a fixed size and refuses the rest (engine_submit). */
#include "engine/admit.h"

#define GET(x) atomic_load_explicit(&(x), memory_order_relaxed)
#define ADD(x, n) atomic_fetch_add_explicit(&(x), (n), memory_order_acq_rel)

/* The assumed length of completions before any has ended; bounds of admit_retry_ms. */
enum { OUT_FIRST = 128, RETRY_LEAST_MS = 1000, RETRY_MOST_MS = 60000 };

void admit_init(struct admit *a, struct admit_limits lim)
{
    *a = (struct admit){ .lim = lim };
    atomic_init(&a->out_tokens, OUT_FIRST);
}

/* A place becomes free when a request ends: the time between two ends is the best guess. */
int admit_retry_ms(const struct admit *a)
{
    uint64_t ms = GET(a->end_ns) / 1000000;
    return ms < RETRY_LEAST_MS ? RETRY_LEAST_MS : ms > RETRY_MOST_MS ? RETRY_MOST_MS : (int)ms;
}

/* Prompts ahead of it must be computed, and requests beyond max_seqs must end first. */
uint64_t admit_wait_ns(const struct admit *a, int n_prompt)
{
    uint64_t prompts = (uint64_t)(GET(a->n_tokens) + n_prompt) * GET(a->prefill_ns);
    int ahead = GET(a->n_requests) - a->lim.max_seqs + 1; /* requests that must end before */

    return prompts + (ahead > 0 ? (uint64_t)ahead * GET(a->end_ns) : 0);
}

/* Blocks for the prompt and a completion of twice the usual length, or as long as it may become. */
static int expected_blocks(const struct admit *a, const struct request *r)
{
    int64_t out = 2 * GET(a->out_tokens), room = a->lim.n_ctx - (int64_t)r->prompt.n, n;

    if (r->max_tokens > 0 && r->max_tokens < out) out = r->max_tokens;
    if (out > room) out = room;
    n = (int64_t)r->prompt.n + out;
    return (int)((n + a->lim.block - 1) / a->lim.block);
}

/* Adds the time after which to ask again. */
static int set_retry(struct admit *a, int rc, struct err *e)
{
    if (e) e->retry_ms = admit_retry_ms(a);
    return rc;
}

static int check_room(struct admit *a, struct request *r, int blocks, struct err *e)
{
    int64_t most = (int64_t)(a->lim.kv_overcommit * a->lim.n_blocks), tokens = GET(a->n_tokens);
    int64_t held = GET(a->n_blocks);
    int n = GET(a->n_requests), rc = OK;

    if (n >= a->lim.max_requests)
        rc = err_set(e, E_QUEUE_FULL, "%d requests wait or run; the limit is %d", n,
                     a->lim.max_requests);
    else if (tokens > 0 && tokens + (int64_t)r->prompt.n > a->lim.max_queue_tokens)
        rc = err_set(e, E_QUEUE_FULL,
                     "%lld prompt tokens wait; with %zu more they exceed the limit of %lld",
                     (long long)tokens, r->prompt.n, (long long)a->lim.max_queue_tokens);
    else if (held > 0 && held + blocks > most)
        rc = err_set(e, E_MEMORY,
                     "%lld KV blocks are expected to be needed; with %d more they exceed the limit "
                     "of %lld",
                     (long long)held, blocks, (long long)most);
    return rc == OK ? OK : set_retry(a, rc, e);
}

/* A request that cannot get its first token in time is refused now, and not when its deadline has
 * passed and others have waited for it. */
static int check_deadline(struct admit *a, const struct request *r, uint64_t now_ns, struct err *e)
{
    uint64_t wait = admit_wait_ns(a, (int)r->prompt.n);

    if (r->deadline_ns == 0) return OK;
    if (r->deadline_ns <= now_ns) return err_set(e, E_DEADLINE, "the deadline has already passed");
    if (now_ns + wait <= r->deadline_ns) return OK;
    return set_retry(a,
                     err_set(e, E_DEADLINE,
                             "the deadline is in %llu ms, but the first token is expected after "
                             "%llu ms",
                             (unsigned long long)((r->deadline_ns - now_ns) / 1000000),
                             (unsigned long long)(wait / 1000000)),
                     e);
}

/* The checks go from permanent to temporary: a prompt that can never fit is not told to retry. */
int admit_request(struct admit *a, struct request *r, uint64_t now_ns, struct err *e)
{
    int blocks, rc;

    if (e) e->retry_ms = 0;
    if (GET(a->closed))
        return set_retry(a, err_set(e, E_SHUTDOWN, "the server is shutting down"), e);
    if (r->prompt.n >= (size_t)a->lim.n_ctx)
        return err_set(e, E_CONTEXT,
                       "the prompt has %zu tokens, which leaves no room in a context of %d",
                       r->prompt.n, a->lim.n_ctx);
    blocks = expected_blocks(a, r);
    if (!r->quiet && (rc = check_room(a, r, blocks, e)) != OK) return rc;
    if ((rc = check_deadline(a, r, now_ns, e)) != OK) return rc;
    r->admitted = (struct admitted){ .tokens = (int)r->prompt.n, .blocks = blocks, .held = true };
    ADD(a->n_requests, 1);
    ADD(a->n_tokens, r->admitted.tokens);
    ADD(a->n_blocks, blocks);
    return OK;
}

void admit_begun(struct admit *a, struct request *r)
{
    ADD(a->n_tokens, -(int64_t)r->admitted.tokens);
    r->admitted.tokens = 0;
}

/* `held` makes it safe to call for requests that were refused, or twice. */
void admit_release(struct admit *a, struct request *r)
{
    if (!r->admitted.held) return;
    r->admitted.held = false;
    ADD(a->n_tokens, -(int64_t)r->admitted.tokens);
    ADD(a->n_blocks, -(int64_t)r->admitted.blocks);
    ADD(a->n_requests, -1);
}
