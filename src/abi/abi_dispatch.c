/* abi_dispatch.c - the thread that calls the callbacks of a model's requests.
 *
 * The engine's thread must never run a caller's code: a slow callback would stop every request. It
 * puts the request into a list, and this thread reads the request's events and calls. A callback
 * that takes its time stops its own request, whose outbox fills up, and delays other callbacks.
 *
 * A callback may close its request, and with it the model and this dispatcher: then the thread is
 * detached and ends by itself. */
#include "abi/abi_impl.h"

#include "base/mem.h"
#include "base/thread.h"

enum { EVENTS_PER_TURN = 64 }; /* then other requests have their turn */

struct dispatcher {
    pthread_mutex_t lock;
    pthread_cond_t news; /* a request is ready, the running callback has ended, or stop */
    struct tern_request *first, **end;
    struct tern_request *running; /* NULL: none, or it was closed by its callback */
    bool stop;
    bool orphan; /* closed by its own thread, which frees it */
    pthread_t thread;
};

static void free_dispatcher(struct dispatcher *d)
{
    lock_destroy(&d->lock, &d->news);
    mem_free(d);
}

/* With the lock held. */
static void append_ready(struct dispatcher *d, struct tern_request *r)
{
    if (r->queued) return;
    r->queued = true;
    r->next_ready = NULL;
    *d->end = r;
    d->end = &r->next_ready;
    pthread_cond_broadcast(&d->news);
}

/* With the lock held. */
static void unlink_ready(struct dispatcher *d, struct tern_request *r)
{
    struct tern_request **at = &d->first;

    while (*at && *at != r) at = &(*at)->next_ready;
    if (!*at) return;
    *at = r->next_ready;
    if (d->end == &r->next_ready) d->end = at;
    r->queued = false;
}

static bool was_closed(struct dispatcher *d)
{
    bool closed;

    pthread_mutex_lock(&d->lock);
    closed = !d->running;
    pthread_mutex_unlock(&d->lock);
    return closed;
}

/* Calls for the events that there are. true: there may be more. r may be gone afterwards. */
static bool deliver(struct dispatcher *d, struct tern_request *r)
{
    for (int i = 0; i < EVENTS_PER_TURN; i++) {
        tern_event ev;
        int rc;

        if (abi_request_is_over(r) || (rc = abi_next(r, &ev, 0)) == TERN_AGAIN) return false;
        r->fn(r->arg, r, rc, &ev);
        if (was_closed(d)) return false;
    }
    return true;
}

/* With the lock held; waits for a request. false: the end. */
static bool take_ready(struct dispatcher *d)
{
    while (!d->first && !d->stop) pthread_cond_wait(&d->news, &d->lock);
    if (d->stop) return false;
    d->running = d->first;
    unlink_ready(d, d->running);
    return true;
}

static void *dispatch(void *arg)
{
    struct dispatcher *d = arg;
    bool more, orphan;

    pthread_mutex_lock(&d->lock);
    while (take_ready(d)) {
        struct tern_request *r = d->running;

        pthread_mutex_unlock(&d->lock);
        more = deliver(d, r);
        pthread_mutex_lock(&d->lock);
        if (more && d->running) append_ready(d, r);
        d->running = NULL;
        pthread_cond_broadcast(&d->news);
    }
    orphan = d->orphan;
    pthread_mutex_unlock(&d->lock);
    if (orphan) free_dispatcher(d);
    return NULL;
}

struct dispatcher *dispatcher_open(struct err *e)
{
    struct dispatcher *d = mem_new(struct dispatcher);

    if (!d) {
        err_nomem(e, "the thread of callbacks");
        return NULL;
    }
    d->end = &d->first;
    if (lock_init(&d->lock, &d->news, "the callbacks", e) != OK) {
        mem_free(d);
        return NULL;
    }
    if (thread_start(&d->thread, "tern-callback", dispatch, d, e) == OK) return d;
    free_dispatcher(d);
    return NULL;
}

void dispatcher_close(struct dispatcher *d)
{
    pthread_t thread;
    bool own;

    if (!d) return;
    thread = d->thread;
    own = pthread_equal(pthread_self(), thread);
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    d->orphan = own;
    pthread_cond_broadcast(&d->news);
    pthread_mutex_unlock(&d->lock);
    if (own) {
        pthread_detach(thread);
        return;
    }
    pthread_join(thread, NULL);
    free_dispatcher(d);
}

void dispatcher_push(struct dispatcher *d, struct tern_request *r)
{
    pthread_mutex_lock(&d->lock);
    append_ready(d, r);
    pthread_mutex_unlock(&d->lock);
}

void dispatcher_remove(struct dispatcher *d, struct tern_request *r)
{
    bool own = pthread_equal(pthread_self(), d->thread);

    pthread_mutex_lock(&d->lock);
    if (own && d->running == r) d->running = NULL;
    while (d->running == r) pthread_cond_wait(&d->news, &d->lock);
    unlink_ready(d, r);
    pthread_mutex_unlock(&d->lock);
}
