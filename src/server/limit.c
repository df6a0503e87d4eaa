/* limit.c - token buckets, indexed by tenant.
 *
 * A bucket is refilled when it is used, from the time since the last use. A request that is refused
 * costs nothing: neither a token of the bucket nor a place. */
#include "server/limit.h"

#include "base/mem.h"

#include <assert.h>
#include <math.h>

/* A bucket holds the requests of one minute: a tenant may use them in a burst, then at the rate. */
struct bucket {
    double left;     /* requests allowed now */
    uint64_t at_ns;  /* when `left` was computed; 0: never */
    int rate;        /* requests a minute it was filled with */
    int running;     /* requests in flight */
    uint64_t second; /* in which the refusals were counted */
    int refusals;
};

struct limit {
    struct bucket *b; /* [cap] by tenant; zeroed ones are unused */
    size_t cap;
};

int limit_open(struct limit **out, struct err *e)
{
    *out = mem_new(struct limit);
    return *out ? OK : err_nomem(e, "the limits of tenants");
}

void limit_close(struct limit *l)
{
    if (!l) return;
    mem_free(l->b);
    mem_free(l);
}

/* NULL: no memory. */
static struct bucket *find_or_add_bucket(struct limit *l, uint32_t tenant)
{
    size_t before = l->cap;

    if (!mem_ensure(l->b, l->cap, (size_t)tenant + 1)) return NULL;
    for (size_t i = before; i < l->cap; i++) l->b[i] = (struct bucket){ 0 };
    return &l->b[tenant];
}

/* A changed rate takes effect at once; a bucket that had no rate is filled. */
static void refill_bucket(struct bucket *b, int rate, uint64_t now_ns)
{
    if (b->at_ns == 0 || b->rate == 0) b->left = rate;
    else if (now_ns > b->at_ns) b->left += (double)(now_ns - b->at_ns) / 60e9 * rate;
    b->left = fmin(b->left, rate);
    b->at_ns = now_ns;
    b->rate = rate;
}

/* Concurrency is checked first: a request that cannot run must not use up the rate. */
int limit_check(struct limit *l, uint32_t tenant, int rate_per_min, int concurrency,
                uint64_t now_ns, struct err *e)
{
    struct bucket *b = find_or_add_bucket(l, tenant);
    int rc;

    if (!b) return err_nomem(e, "the limits of a tenant");
    if (concurrency > 0 && b->running >= concurrency) {
        rc = err_set(e, E_CONCURRENCY, "%d requests of this key are running, and %d is its limit",
                     b->running, concurrency);
        if (e) e->retry_ms = 1000;
        return rc;
    }
    refill_bucket(b, rate_per_min, now_ns);
    if (rate_per_min > 0 && b->left < 1) {
        double wait_ms = (1 - b->left) / rate_per_min * 60e3;
        rc = err_set(e, E_RATE, "this key is limited to %d requests per minute; retry in %.1f s",
                     rate_per_min, wait_ms / 1e3);
        if (e) e->retry_ms = (int)ceil(wait_ms);
        return rc;
    }
    return OK;
}

int limit_take(struct limit *l, uint32_t tenant, int rate_per_min, int concurrency, uint64_t now_ns,
               struct err *e)
{
    int rc = limit_check(l, tenant, rate_per_min, concurrency, now_ns, e);

    if (rc != OK) return rc;
    if (rate_per_min > 0) l->b[tenant].left -= 1;
    l->b[tenant].running++;
    return OK;
}

bool limit_has_room(struct limit *l, uint32_t tenant, int rate_per_min, int concurrency, int spare,
                    uint64_t now_ns)
{
    struct bucket *b = find_or_add_bucket(l, tenant);
    int places = concurrency > spare ? concurrency - spare : 1;

    if (!b || (concurrency > 0 && b->running >= places)) return false;
    if (rate_per_min < 0) return true;
    refill_bucket(b, rate_per_min, now_ns);
    return rate_per_min == 0 || b->left >= fmin(1 + spare, rate_per_min);
}

void limit_take_room(struct limit *l, uint32_t tenant, int rate_per_min)
{
    assert(tenant < l->cap);
    if (rate_per_min > 0) l->b[tenant].left -= 1;
    l->b[tenant].running++;
}

/* Without memory it counts as the first. */
int limit_count_refusal(struct limit *l, uint32_t tenant, uint64_t now_ns)
{
    struct bucket *b = find_or_add_bucket(l, tenant);
    uint64_t second = now_ns / UINT64_C(1000000000);

    if (!b) return 1;
    if (b->second != second) b->refusals = 0;
    b->second = second;
    return ++b->refusals;
}

/* The request was counted by limit_take. */
void limit_give(struct limit *l, uint32_t tenant)
{
    assert(tenant < l->cap && l->b[tenant].running > 0);
    l->b[tenant].running--;
}

int limit_running(const struct limit *l, uint32_t tenant)
{
    return tenant < l->cap ? l->b[tenant].running : 0;
}
