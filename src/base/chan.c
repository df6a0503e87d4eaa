#include "base/chan.h"

#include "base/mem.h"
#include "base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#define NS_PER_S ((uint64_t)1000000000)

struct chan {
    pthread_mutex_t lock;
    pthread_cond_t news; /* an item arrived, or chan_poke was called */
    void **items;        /* [cap], a ring buffer */
    int cap, first, n;   /* the n items begin at `first` */
    bool poked;          /* chan_poke was called since the last chan_wait */
};

int chan_open(struct chan **out, int cap, struct err *e)
{
    struct chan *c;
    int rc;

    if (cap < 1) return err_set(e, E_INVALID, "a queue of %d items: must be at least 1", cap);
    if (!(c = mem_new(struct chan))) return err_nomem(e, "a queue between threads");
    c->cap = cap;
    if (!(c->items = mem_array((size_t)cap, sizeof *c->items)))
        rc = err_nomem(e, "a queue between threads");
    else rc = lock_init(&c->lock, &c->news, "a queue between threads", e);
    if (rc == OK) {
        *out = c;
        return OK;
    }
    mem_free(c->items);
    mem_free(c);
    return rc;
}

void chan_close(struct chan *c)
{
    if (!c) return;
    lock_destroy(&c->lock, &c->news);
    mem_free(c->items);
    mem_free(c);
}

bool chan_push(struct chan *c, void *item)
{
    bool room;

    pthread_mutex_lock(&c->lock);
    room = c->n < c->cap;
    if (room) {
        c->items[(c->first + c->n++) % c->cap] = item;
        if (c->n == 1) pthread_cond_signal(&c->news); /* one reader, and it only waits when empty */
    }
    pthread_mutex_unlock(&c->lock);
    return room;
}

void *chan_pop(struct chan *c)
{
    void *item = NULL;

    pthread_mutex_lock(&c->lock);
    if (c->n > 0) {
        item = c->items[c->first];
        c->first = (c->first + 1) % c->cap;
        c->n--;
    }
    pthread_mutex_unlock(&c->lock);
    return item;
}

/* poked is sticky: a chan_poke before the wait ends it at once, so that no wake-up is lost. */
void chan_wait(struct chan *c, uint64_t timeout_ns)
{
    struct timespec end;
    int rc = 0;

    clock_gettime(CLOCK_MONOTONIC, &end);
    if (timeout_ns > NS_PER_S * 86400) timeout_ns = NS_PER_S * 86400; /* tv_sec cannot overflow */
    end.tv_sec += (time_t)(timeout_ns / NS_PER_S);
    end.tv_nsec += (long)(timeout_ns % NS_PER_S);
    if (end.tv_nsec >= (long)NS_PER_S) end.tv_sec++, end.tv_nsec -= (long)NS_PER_S;

    pthread_mutex_lock(&c->lock);
    while (c->n == 0 && !c->poked && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&c->news, &c->lock, &end);
    c->poked = false;
    pthread_mutex_unlock(&c->lock);
}

void chan_poke(struct chan *c)
{
    pthread_mutex_lock(&c->lock);
    c->poked = true;
    pthread_cond_signal(&c->news);
    pthread_mutex_unlock(&c->lock);
}

int chan_n(struct chan *c)
{
    int n;

    pthread_mutex_lock(&c->lock);
    n = c->n;
    pthread_mutex_unlock(&c->lock);
    return n;
}
