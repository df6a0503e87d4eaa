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

static int blocks_of(const struct admit *a, int64_t n_tokens)
{
    return (int)((n_tokens + a->lim.block - 1) / a->lim.block);
}

/* Blocks for the prompt and a completion of twice the usual length, or as long as it may become. */
static int expected_blocks(const struct admit *a, const struct request *r)
{
    int64_t out = 2 * GET(a->out_tokens), room = a->lim.n_ctx - (int64_t)r->prompt.n;

    if (r->max_tokens > 0 && r->max_tokens < out) out = r->max_tokens;
    if (out > room) out = room;
    return blocks_of(a, (int64_t)r->prompt.n + out);
}

/* Adds the time after which to ask again. */
static int set_retry(struct admit *a, int rc, struct err *e)
{
    if (e) e->retry_ms = admit_retry_ms(a);
    return rc;
}

static int check_room(struct admit *a, int64_t more, int blocks, struct err *e)
{
    int64_t most = (int64_t)(a->lim.kv_overcommit * a->lim.n_blocks), tokens = GET(a->n_tokens);
    int64_t held = GET(a->n_blocks);
    int n = GET(a->n_requests), rc = OK;

    if (n >= a->lim.max_requests)
        rc = err_set(e, E_QUEUE_FULL, "%d requests wait or run; the limit is %d", n,
                     a->lim.max_requests);
    else if (tokens > 0 && tokens + more > a->lim.max_queue_tokens)
        rc = err_set(e, E_QUEUE_FULL,
                     "%lld prompt tokens wait; with %lld more they exceed the limit of %lld",
                     (long long)tokens, (long long)more, (long long)a->lim.max_queue_tokens);
    else if (held > 0 && held + blocks > most)
        rc = err_set(e, E_MEMORY,
                     "%lld KV blocks are expected to be needed; with %d more they exceed the limit "
                     "of %lld",
                     (long long)held, blocks, (long long)most);
    return rc == OK ? OK : set_retry(a, rc, e);
}

/* A request that cannot get its first token in time is refused now, and not when its deadline has
 * passed and others have waited for it. */
static int check_deadline(struct admit *a, int64_t n_prompt, uint64_t deadline_ns, uint64_t now_ns,
                          struct err *e)
{
    uint64_t wait = admit_wait_ns(a, (int)n_prompt);

    if (deadline_ns == 0) return OK;
    if (deadline_ns <= now_ns) return err_set(e, E_DEADLINE, "the deadline has already passed");
    if (deadline_ns - now_ns < ADMIT_MARGIN_MS * UINT64_C(1000000))
        return err_set(e, E_DEADLINE,
                       "the deadline is in %.1f ms: one nearer than %d ms is not tried",
                       (double)(deadline_ns - now_ns) / 1e6, ADMIT_MARGIN_MS);
    if (now_ns + wait <= deadline_ns) return OK;
    return set_retry(a,
                     err_set(e, E_DEADLINE,
                             "the deadline is in %llu ms, but the first token is expected after "
                             "%llu ms",
                             (unsigned long long)((deadline_ns - now_ns) / 1000000),
                             (unsigned long long)(wait / 1000000)),
                     e);
}

static int check_open(struct admit *a, struct err *e)
{
    if (e) e->retry_ms = 0;
    if (!GET(a->closed)) return OK;
    return set_retry(a, err_set(e, E_SHUTDOWN, "the server is shutting down"), e);
}

static int check_length(const struct admit *a, size_t n, struct err *e)
{
    if (n < (size_t)a->lim.n_ctx) return OK;
    return err_set(e, E_CONTEXT,
                   "the prompt has %zu tokens, which leaves no room in a context of %d", n,
                   a->lim.n_ctx);
}

/* ---- one request ---- */

/* A request whose call was admitted. Its tokens are the ticket's until now. */
static int admit_part(struct admit *a, struct request *r, struct err *e)
{
    struct ticket *t = r->ticket;
    int64_t n = (int64_t)r->prompt.n;

    if (r->is_further && GET(a->n_further) >= a->lim.max_further)
        return set_retry(a,
                         err_set(e, E_QUEUE_FULL, "%d requests of calls with several wait or run",
                                 a->lim.max_further),
                         e);
    if (n > t->tokens) n = t->tokens;
    t->tokens -= n;
    r->admitted = (struct admitted){
        .tokens = (int)n, .held = true, .of_ticket = true, .is_further = r->is_further
    };
    if (r->is_further) ADD(a->n_further, 1);
    return OK;
}

/* The checks go from permanent to temporary: a prompt that can never fit is not told to retry. */
int admit_request(struct admit *a, struct request *r, uint64_t now_ns, struct err *e)
{
    int blocks, rc;

    if (r->ticket && r->ticket->held) return admit_part(a, r, e);
    if ((rc = check_open(a, e)) != OK) return rc;
    if ((rc = check_length(a, r->prompt.n, e)) != OK) return rc;
    blocks = expected_blocks(a, r);
    if (!r->quiet && (rc = check_room(a, (int64_t)r->prompt.n, blocks, e)) != OK) return rc;
    if ((rc = check_deadline(a, (int64_t)r->prompt.n, r->deadline_ns, now_ns, e)) != OK) return rc;
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
    if (!r->admitted.of_ticket) ADD(a->n_requests, -1);
    if (r->admitted.is_further) ADD(a->n_further, -1);
}

/* ---- all requests of a call ---- */

/* Blocks: of as many as run at once, each as long as the longest. */
int admit_ticket(struct admit *a, struct ticket *t, const struct ids *prompts, int n,
                 uint64_t deadline_ns, uint64_t now_ns, struct err *e)
{
    int at_once = n < a->lim.max_seqs ? n : a->lim.max_seqs, rc;
    int64_t tokens = 0, half = a->lim.max_queue_tokens / 2;
    size_t longest = 0;

    for (int i = 0; i < n; i++) {
        tokens += (int64_t)prompts[i].n;
        if (prompts[i].n > longest) longest = prompts[i].n;
    }
    if ((rc = check_open(a, e)) != OK) return rc;
    if ((rc = check_length(a, longest, e)) != OK) return rc;
    if (tokens > half) tokens = half > (int64_t)longest ? half : (int64_t)longest;
    *t = (struct ticket){ .tokens = tokens,
                          .blocks = at_once * blocks_of(a, (int64_t)longest),
                          .arrival_ns = now_ns };
    if ((rc = check_room(a, tokens, t->blocks, e)) != OK) return rc;
    if ((rc = check_deadline(a, (int64_t)longest, deadline_ns, now_ns, e)) != OK) return rc;
    t->held = true;
    ADD(a->n_requests, 1);
    ADD(a->n_tokens, tokens);
    ADD(a->n_blocks, t->blocks);
    return OK;
}

void admit_give_back(struct admit *a, struct ticket *t)
{
    if (!t->held) return;
    t->held = false;
    ADD(a->n_tokens, -t->tokens);
    ADD(a->n_blocks, -(int64_t)t->blocks);
    ADD(a->n_requests, -1);
}
