#include "base/chan.h"

#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

struct chan {
    pthread_mutex_t lock;
    pthread_cond_t news;
    void **items; /* [cap], a ring */
    int cap, first, n;
    bool poked;
};

int chan_open(struct chan **out, int cap, struct err *e)
{
    struct chan *c;
    pthread_condattr_t attr;
    void **items;

    if (cap < 1) return err_set(e, E_INVALID, "a channel of %d items makes no sense", cap);
    if (!(items = mem_array((size_t)cap, sizeof *items)))
        return err_set(e, E_NOMEM, "no memory for a channel of %d items", cap);
    c = mem_new(struct chan);
    *c = (struct chan){ .items = items, .cap = cap };
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->news, &attr);
    pthread_condattr_destroy(&attr);
    *out = c;
    return OK;
}

void chan_close(struct chan *c)
{
    if (!c) return;
    pthread_cond_destroy(&c->news);
    pthread_mutex_destroy(&c->lock);
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
        if (c->n == 1) pthread_cond_signal(&c->news);
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

void chan_wait(struct chan *c, uint64_t timeout_ns)
{
    struct timespec end;
    int rc = 0;

    clock_gettime(CLOCK_MONOTONIC, &end);
    if (timeout_ns > (uint64_t)1000000000 * 86400) timeout_ns = (uint64_t)1000000000 * 86400;
    end.tv_sec += (time_t)(timeout_ns / 1000000000);
    end.tv_nsec += (long)(timeout_ns % 1000000000);
    if (end.tv_nsec >= 1000000000) end.tv_sec++, end.tv_nsec -= 1000000000;

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
