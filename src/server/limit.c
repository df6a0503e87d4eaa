#include "server/limit.h"

#include "base/mem.h"

#include <assert.h>
#include <math.h>

/* The bucket holds a minute's worth: a tenant may use it at once, then as fast as it fills. */
struct bucket {
    double left;    /* requests it may make now */
    uint64_t at_ns; /* when that was so; 0: never asked */
    int rate;       /* it was filled by */
    int running;
};

struct limit {
    struct bucket *b; /* [n] by tenant */
    uint32_t n;
};

int limit_open(struct limit **out, struct err *e)
{
    (void)e;
    *out = mem_new(struct limit);
    return OK;
}

void limit_close(struct limit *l)
{
    if (!l) return;
    mem_free(l->b);
    mem_free(l);
}

static struct bucket *bucket_of(struct limit *l, uint32_t tenant)
{
    if (tenant >= l->n) {
        uint32_t n = tenant + 16;
        l->b = mem_grow(l->b, n * sizeof *l->b);
        for (uint32_t i = l->n; i < n; i++) l->b[i] = (struct bucket){ 0 };
        l->n = n;
    }
    return &l->b[tenant];
}

static void refill(struct bucket *b, int rate, uint64_t now_ns)
{
    if (b->at_ns == 0 || b->rate == 0) b->left = rate;
    else if (now_ns > b->at_ns) b->left += (double)(now_ns - b->at_ns) / 60e9 * rate;
    b->left = fmin(b->left, rate);
    b->at_ns = now_ns;
    b->rate = rate;
}

int limit_take(struct limit *l, uint32_t tenant, int rate_per_min, int concurrency, uint64_t now_ns,
               struct err *e)
{
    struct bucket *b = bucket_of(l, tenant);
    int rc;

    if (concurrency > 0 && b->running >= concurrency) {
        rc = err_set(e, E_CONCURRENCY, "%d requests of this key run already and %d may", b->running,
                     concurrency);
        if (e) e->retry_ms = 1000;
        return rc;
    }
    refill(b, rate_per_min, now_ns);
    if (rate_per_min > 0 && b->left < 1) {
        double wait_ms = (1 - b->left) / rate_per_min * 60e3;
        rc = err_set(e, E_RATE, "this key may ask %d times a minute; the next time is in %.1f s",
                     rate_per_min, wait_ms / 1e3);
        if (e) e->retry_ms = (int)ceil(wait_ms);
        return rc;
    }
    if (rate_per_min > 0) b->left -= 1;
    b->running++;
    return OK;
}

void limit_give(struct limit *l, uint32_t tenant)
{
    assert(tenant < l->n && l->b[tenant].running > 0);
    l->b[tenant].running--;
}

int limit_running(const struct limit *l, uint32_t tenant)
{
    return tenant < l->n ? l->b[tenant].running : 0;
}
