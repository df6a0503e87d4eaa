/* abi_request.c - a request's handle: its events by waiting, by a descriptor or by a callback; its
 * numbers; its end.
 *
 * The engine's thread notifies a request when it has put events into its outbox (wake_reader). A
 * late notification may come after the handle was closed: the memory of the handle is freed with the
 * engine's last reference to the request, and `closed` says that nobody listens any more.
 *
 * The model is in use until the last event was read: then it may be evicted, also while the handle
 * is still open. */
#include "abi/abi_impl.h"

#include "base/mem.h"
#include "base/thread.h"
#include "engine/request.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---- opening and waking ---- */

static void ring(int fd)
{
    const uint64_t one = 1;

    /* The write fails only when the descriptor is readable anyway. */
    if (write(fd, &one, sizeof one) < 0) return;
}

/* On the engine's thread, with a reference that is dropped here. */
static void wake_reader(struct request *q)
{
    struct tern_request *r = q->owner;

    pthread_mutex_lock(&r->lock);
    r->n_news++;
    pthread_cond_broadcast(&r->news);
    if (r->fd >= 0) ring(r->fd);
    if (r->fn && !r->closed) dispatcher_push(r->m->dispatcher, r);
    pthread_mutex_unlock(&r->lock);
    request_unref(q);
}

/* The last reference to the request is gone, whoever had it. */
static void free_handle(void *owner)
{
    struct tern_request *r = owner;

    if (r->has_lock) lock_destroy(&r->lock, &r->news);
    mem_free(r);
}

struct tern_request *abi_request_open(struct tern_model *m, const struct lease *l)
{
    struct tern_request *r = mem_new(struct tern_request);

    if (!r) return NULL;
    r->fd = -1;
    if (lock_init(&r->lock, &r->news, "the request", NULL) != OK) goto failed;
    r->has_lock = true;
    if (!(r->r = request_open())) goto failed;
    r->r->owner = r;
    r->r->notify = wake_reader;
    r->r->release = free_handle;
    r->m = m;
    r->lease = *l;
    abi_model_ref(m);
    return r;
failed:
    free_handle(r);
    return NULL;
}

/* ---- events ---- */

static tern_finish finish_of(enum finish f)
{
    switch (f) {
    case FINISH_STOP: return TERN_FINISH_STOP;
    case FINISH_LENGTH: return TERN_FINISH_LENGTH;
    case FINISH_CANCELLED: return TERN_FINISH_CANCELLED;
    default: return TERN_FINISH_NONE;
    }
}

bool abi_request_is_over(const struct tern_request *r)
{
    return r->failed || r->finish != TERN_FINISH_NONE;
}

/* The descriptor is cleared before the outbox is looked at, so that an event in between is not
 * missed, and set again when there was one: there may be more. */
static bool take_event(struct tern_request *r, struct event *got)
{
    uint64_t count;
    bool has;

    if (r->fd >= 0 && read(r->fd, &count, sizeof count) < 0 && errno != EAGAIN) ring(r->fd);
    do { /* events of a cancelled request are dropped, but for the last */
        has = request_next(r->r, got);
    } while (has && got->finish == FINISH_NONE && request_is_cancelled(r->r));
    if (has && r->fd >= 0) ring(r->fd);
    return has;
}

/* n_news is read before the outbox is looked at, for the same reason. false: the time has passed. */
static bool wait_event(struct tern_request *r, struct event *got, int timeout_ms)
{
    uint64_t until = timeout_ms ? abi_until(timeout_ms) : 0, seen;
    bool in_time = timeout_ms != 0;

    for (;;) {
        pthread_mutex_lock(&r->lock);
        seen = r->n_news;
        pthread_mutex_unlock(&r->lock);
        if (take_event(r, got)) return true;
        if (!in_time) return false;
        pthread_mutex_lock(&r->lock);
        while (r->n_news == seen && in_time) in_time = abi_wait_until(&r->news, &r->lock, until);
        pthread_mutex_unlock(&r->lock);
    }
}

static int fill_event(struct tern_request *r, tern_event *ev, const struct event *got)
{
    ev->text = buf_cstr(&r->text);
    ev->n = r->text.n;
    ev->finish = r->finish;
    if (got && r->finish == TERN_FINISH_NONE) {
        ev->id = got->id;
        ev->logprob = got->logprob;
        ev->n_top = got->n_top;
        ev->top = r->top;
        for (int i = 0; i < got->n_top; i++)
            r->top[i] = (tern_top){ got->top[i].id, got->top[i].logprob };
    }
    return buf_check(&r->text, &abi_last);
}

int abi_next(struct tern_request *r, tern_event *ev, int timeout_ms)
{
    struct event got;

    *ev = (tern_event){ .text = "", .id = -1 };
    buf_clear(&r->text);
    if (r->failed) return abi_fail(&r->r->err);
    if (r->finish != TERN_FINISH_NONE) return fill_event(r, ev, NULL);
    if (!wait_event(r, &got, timeout_ms)) return TERN_AGAIN;
    buf_put_str(&r->text, got.text);
    if (got.finish == FINISH_NONE) return fill_event(r, ev, &got);
    r->failed = got.finish == FINISH_ERROR || got.finish == FINISH_DEADLINE;
    r->finish = finish_of((enum finish)got.finish);
    lease_end(&r->lease);
    return r->failed ? abi_fail(&r->r->err) : fill_event(r, ev, &got);
}

int tern_next_wait_sized(tern_request *r, tern_event *ev, size_t size, int timeout_ms)
{
    tern_event full = { .text = "", .id = -1 };
    int rc;

    if (!r || !ev) return abi_invalid("tern_next", "the request and the event must not be NULL");
    rc = r->fn ? abi_invalid("tern_next", "the request has a callback, which gets its events")
               : abi_next(r, &full, timeout_ms);
    abi_write_sized(ev, size, &full, sizeof full);
    return rc;
}

int tern_next_sized(tern_request *r, tern_event *ev, size_t size)
{
    return tern_next_wait_sized(r, ev, size, -1);
}

/* Set when it is opened: there may be events already. */
int tern_fd(tern_request *r)
{
    int fd;

    if (!r) {
        abi_invalid("tern_fd", "the request must not be NULL");
        return -1;
    }
    if (r->fd >= 0) return r->fd;
    if ((fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) {
        err_set(&abi_last, E_IO, "tern_fd: no descriptor for the request: %s", strerror(errno));
        return -1;
    }
    pthread_mutex_lock(&r->lock);
    r->fd = fd;
    pthread_mutex_unlock(&r->lock);
    return fd;
}

/* ---- callbacks ---- */

/* The model's thread for callbacks, started when it is first needed. */
static struct dispatcher *need_dispatcher(struct tern_model *m, struct err *e)
{
    struct dispatcher *d;

    pthread_mutex_lock(&m->lock);
    if (!m->dispatcher) m->dispatcher = dispatcher_open(e);
    d = m->dispatcher;
    pthread_mutex_unlock(&m->lock);
    return d;
}

int tern_on_event(tern_request *r, tern_callback *fn, void *arg)
{
    struct dispatcher *d;
    struct err e = { 0 };

    if (!r || !fn) return abi_invalid("tern_on_event", "the request and fn must not be NULL");
    if (r->fn) return abi_invalid("tern_on_event", "the request has a callback already");
    if (!(d = need_dispatcher(r->m, &e))) return abi_fail(&e);
    pthread_mutex_lock(&r->lock);
    r->arg = arg;
    r->fn = fn;
    dispatcher_push(d, r); /* it may have events already */
    pthread_mutex_unlock(&r->lock);
    return TERN_OK;
}

/* ---- results and the end ---- */

void tern_cancel(tern_request *r)
{
    if (r) request_cancel(r->r, CANCEL_ASKED);
}

int tern_vector(const tern_request *r, const float **v, size_t *n)
{
    if (!r || !v || !n) return abi_invalid("tern_vector", "request, v and n must not be NULL");
    *v = NULL;
    *n = 0;
    if (!r->r->embed) return abi_invalid("tern_vector", "the request is not for an embedding");
    if (r->failed) return abi_fail(&r->r->err);
    if (r->finish == TERN_FINISH_CANCELLED)
        return err_set(&abi_last, E_CANCELLED, "tern_vector: the request was cancelled");
    if (r->finish == TERN_FINISH_NONE || !r->r->vec)
        return abi_invalid("tern_vector", "read the request's last event first");
    *v = r->r->vec;
    *n = (size_t)r->m->facts.info.n_vec;
    return TERN_OK;
}

int tern_request_stats_sized(const tern_request *r, tern_stats *out, size_t size)
{
    const struct request *q;
    tern_stats full;

    if (!r || !out)
        return abi_invalid("tern_request_stats", "the request and out must not be NULL");
    q = r->r;
    full = (tern_stats){ .prompt_tokens = (int)q->prompt.n };
    /* The other numbers belong to the engine's thread until the request has ended. */
    if (abi_request_is_over(r)) {
        full.cached_tokens = q->n_cached;
        full.tokens = q->n_out;
    }
    if (full.tokens > 0) {
        full.prompt_ms = (double)(q->first_ns - q->start_ns) / 1e6;
        full.decode_ms = (double)(q->end_ns - q->first_ns) / 1e6;
        full.first_token_ms = (double)(q->first_ns - q->submit_ns) / 1e6;
    }
    abi_write_sized(out, size, &full, sizeof full);
    return TERN_OK;
}

/* After this nobody is woken. The engine may still hold a reference: it drops it when it sees the
 * cancel, and the handle's memory goes with it. */
static void silence(struct tern_request *r)
{
    int fd;

    pthread_mutex_lock(&r->lock);
    r->closed = true;
    pthread_mutex_unlock(&r->lock);
    if (r->fn) dispatcher_remove(r->m->dispatcher, r);
    pthread_mutex_lock(&r->lock);
    fd = r->fd;
    r->fd = -1;
    pthread_mutex_unlock(&r->lock);
    if (fd >= 0) close(fd);
}

void tern_request_close(tern_request *r)
{
    struct tern_model *m;

    if (!r) return;
    m = r->m;
    request_cancel(r->r, CANCEL_GONE);
    silence(r);
    lease_end(&r->lease);
    buf_release(&r->text);
    request_unref(r->r); /* r may be gone now */
    abi_model_unref(m);
}
