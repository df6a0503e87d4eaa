#include "net/loop.h"

#include "base/mem.h"

#include <errno.h>
#include <event2/event.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { MAX_SIGNALS = 8 };

struct loop_sig {
    struct event *ev;
    loop_fn *fn;
    void *arg;
};

struct loop {
    struct event_base *base;
    int wake_fd;
    struct event *wake_ev;
    atomic_bool under_way;           /* the eventfd was written and not read since */
    atomic_bool stop;
    loop_fn *on_wake;
    void *wake_arg;
    struct loop_sig sigs[MAX_SIGNALS];
    int n_sigs;
};

struct loop_timer {
    struct event *ev;
    loop_fn *fn;
    void *arg;
};

static void woken(evutil_socket_t fd, short what, void *arg)
{
    struct loop *l = arg;
    uint64_t n;
    ssize_t got = read(fd, &n, sizeof n);

    (void)what, (void)got;
    /* Cleared before we look: what comes behind our look wakes us again. */
    atomic_exchange_explicit(&l->under_way, false, memory_order_acq_rel);
    if (atomic_load_explicit(&l->stop, memory_order_acquire)) event_base_loopbreak(l->base);
    else if (l->on_wake) l->on_wake(l->wake_arg);
}

int loop_open(struct loop **out, struct err *e)
{
    struct loop *l = mem_new(struct loop);
    int rc = OK;

    l->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    l->base = event_base_new();
    if (l->wake_fd < 0 || !l->base) {
        rc = err_set(e, E_IO, "no event loop: %s", strerror(errno));
        goto out;
    }
    l->wake_ev = event_new(l->base, l->wake_fd, EV_READ | EV_PERSIST, woken, l);
    if (!l->wake_ev || event_add(l->wake_ev, NULL) != 0) {
        rc = err_set(e, E_NOMEM, "no memory for an event loop");
        goto out;
    }
    *out = l;
    l = NULL;
out:
    loop_close(l);
    return rc;
}

void loop_close(struct loop *l)
{
    if (!l) return;
    for (int i = 0; i < l->n_sigs; i++) event_free(l->sigs[i].ev);
    if (l->wake_ev) event_free(l->wake_ev);
    if (l->base) event_base_free(l->base);
    if (l->wake_fd >= 0) close(l->wake_fd);
    mem_free(l);
}

void loop_run(struct loop *l)
{
    if (!atomic_load_explicit(&l->stop, memory_order_acquire)) event_base_dispatch(l->base);
}

void loop_wake(struct loop *l)
{
    uint64_t one = 1;
    ssize_t put;

    if (atomic_exchange_explicit(&l->under_way, true, memory_order_acq_rel)) return;
    put = write(l->wake_fd, &one, sizeof one);
    (void)put;
}

void loop_stop(struct loop *l)
{
    atomic_store_explicit(&l->stop, true, memory_order_release);
    loop_wake(l);
}

void loop_on_wake(struct loop *l, loop_fn *fn, void *arg)
{
    l->on_wake = fn;
    l->wake_arg = arg;
}

struct event_base *loop_base(struct loop *l) { return l->base; }

static void timer_over(evutil_socket_t fd, short what, void *arg)
{
    struct loop_timer *t = arg;
    (void)fd, (void)what;
    t->fn(t->arg);
}

struct loop_timer *loop_timer(struct loop *l, loop_fn *fn, void *arg)
{
    struct loop_timer *t = mem_new(struct loop_timer);

    *t = (struct loop_timer){ .fn = fn, .arg = arg };
    t->ev = evtimer_new(l->base, timer_over, t);
    return t;
}

void loop_timer_set(struct loop_timer *t, uint64_t ms)
{
    struct timeval tv = { .tv_sec = (time_t)(ms / 1000), .tv_usec = (suseconds_t)(ms % 1000 * 1000) };
    evtimer_add(t->ev, &tv);
}

void loop_timer_stop(struct loop_timer *t) { evtimer_del(t->ev); }

void loop_timer_close(struct loop_timer *t)
{
    if (!t) return;
    event_free(t->ev);
    mem_free(t);
}

static void signalled(evutil_socket_t fd, short what, void *arg)
{
    struct loop_sig *s = arg;
    (void)fd, (void)what;
    s->fn(s->arg);
}

int loop_on_signal(struct loop *l, int sig, loop_fn *fn, void *arg, struct err *e)
{
    struct loop_sig *s = &l->sigs[l->n_sigs];

    if (l->n_sigs == MAX_SIGNALS) return err_set(e, E_INVALID, "signal %d: no more than %d", sig, MAX_SIGNALS);
    *s = (struct loop_sig){ .fn = fn, .arg = arg };
    s->ev = evsignal_new(l->base, sig, signalled, s);
    if (!s->ev || event_add(s->ev, NULL) != 0) {
        if (s->ev) event_free(s->ev);
        return err_set(e, E_IO, "signal %d cannot be caught: %s", sig, strerror(errno));
    }
    l->n_sigs++;
    return OK;
}
