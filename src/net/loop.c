/* loop.c - struct loop over libevent: an event base, an eventfd for wake-ups, signal events.
 *
 * The base is opened without libevent's locks, since only its own thread uses it. Other threads
 * reach the loop through an atomic flag and one write to the eventfd; many wake-ups before the loop
 * runs cost one write. */
#include "net/loop.h"

#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <event2/event.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct loop_signal {
    struct loop_signal *next;
    struct event *ev;
    loop_fn *fn;
    void *arg;
};

struct loop {
    struct event_base *base;
    int fd;              /* eventfd: readable while a wake-up or a stop is pending */
    struct event *woken; /* watches fd */
    loop_fn *fn;         /* wake-up callback; NULL: none */
    void *arg;
    struct loop_signal *signals;
    atomic_bool wake_pending; /* loop_wake was called and fn has not run since */
    atomic_bool stop;
};

struct loop_timer {
    struct event *ev;
    loop_fn *fn;
    void *arg;
};

/* Makes the loop run on_eventfd. Async-signal-safe. */
static void signal_eventfd(struct loop *l)
{
    uint64_t one = 1;
    ssize_t n;

    do n = write(l->fd, &one, sizeof one);
    while (n < 0 && errno == EINTR); /* EAGAIN: the eventfd is readable already */
}

/* The flag is cleared before fn runs, so that a loop_wake during fn causes another run. Both sides
 * use an atomic exchange: a caller of loop_wake that finds the flag set knows that fn has yet to
 * run and will see everything the caller wrote before. */
static void on_eventfd(evutil_socket_t fd, short what, void *arg)
{
    struct loop *l = arg;
    uint64_t n;

    (void)what;
    while (read(fd, &n, sizeof n) < 0 && errno == EINTR) continue;
    if (atomic_load_explicit(&l->stop, memory_order_acquire)) event_base_loopbreak(l->base);
    if (atomic_exchange_explicit(&l->wake_pending, false, memory_order_acq_rel) && l->fn)
        l->fn(l->arg);
}

/* Edge-triggered events and EV_CLOSED (a peer's close that is seen without reading) need epoll. The
 * base needs no lock: only its thread uses it. */
static struct event_base *make_base(void)
{
    struct event_config *cfg = event_config_new();
    struct event_base *base = NULL;

    if (cfg && event_config_require_features(cfg, EV_FEATURE_ET | EV_FEATURE_EARLY_CLOSE) == 0 &&
        event_config_set_flag(cfg, EVENT_BASE_FLAG_NOLOCK) == 0)
        base = event_base_new_with_config(cfg);
    if (cfg) event_config_free(cfg);
    return base;
}

/* libevent's own messages, which would go to stderr past the log. */
static void on_libevent_log(int severity, const char *msg)
{
    if (severity >= EVENT_LOG_ERR) log_error("libevent: %s", msg);
    else if (severity == EVENT_LOG_WARN) log_warn("libevent: %s", msg);
}

int loop_open(struct loop **out, struct err *e)
{
    struct loop *l = mem_new(struct loop);
    int rc = OK;

    if (!l) return err_nomem(e, "the event loop");
    event_set_log_callback(on_libevent_log);
    l->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (l->fd < 0) {
        rc = err_set(e, E_IO, "event loop: eventfd: %s", strerror(errno));
        goto out;
    }
    l->base = make_base();
    if (!l->base) {
        rc = err_set(e, E_IO, "event loop: cannot create an epoll instance: %s", strerror(errno));
        goto out;
    }
    l->woken = event_new(l->base, l->fd, EV_READ | EV_PERSIST, on_eventfd, l);
    if (!l->woken || event_add(l->woken, NULL) != 0) {
        rc = err_set(e, E_IO, "event loop: cannot watch the eventfd: %s", strerror(errno));
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
    while (l->signals) {
        struct loop_signal *s = l->signals;
        l->signals = s->next;
        event_free(s->ev);
        mem_free(s);
    }
    if (l->woken) event_free(l->woken);
    if (l->base) event_base_free(l->base);
    if (l->fd >= 0) close(l->fd);
    mem_free(l);
}

/* EVLOOP_NO_EXIT_ON_EMPTY: a loop without events waits for a wake-up. */
void loop_run(struct loop *l)
{
    while (!atomic_load_explicit(&l->stop, memory_order_acquire))
        if (event_base_loop(l->base, EVLOOP_NO_EXIT_ON_EMPTY) < 0) {
            log_error("event loop: waiting for events failed: %s", strerror(errno));
            break;
        }
    atomic_store_explicit(&l->stop, false, memory_order_release);
}

void loop_stop(struct loop *l)
{
    atomic_store_explicit(&l->stop, true, memory_order_release);
    signal_eventfd(l);
}

void loop_on_wake(struct loop *l, loop_fn *fn, void *arg)
{
    l->fn = fn;
    l->arg = arg;
}

void loop_wake(struct loop *l)
{
    if (!atomic_exchange_explicit(&l->wake_pending, true, memory_order_acq_rel)) signal_eventfd(l);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct loop_timer *t = arg;

    (void)fd;
    (void)what;
    t->fn(t->arg);
}

struct loop_timer *loop_timer(struct loop *l, loop_fn *fn, void *arg)
{
    struct loop_timer *t = mem_new(struct loop_timer);

    if (!t) return NULL;
    *t = (struct loop_timer){ event_new(l->base, -1, 0, on_timer, t), fn, arg };
    if (t->ev) return t;
    mem_free(t);
    return NULL;
}

bool loop_timer_set(struct loop_timer *t, uint64_t ms)
{
    struct timeval tv = { (time_t)(ms / 1000), (suseconds_t)(ms % 1000 * 1000) };
    return event_add(t->ev, &tv) == 0;
}

void loop_timer_stop(struct loop_timer *t) { event_del(t->ev); }

void loop_timer_close(struct loop_timer *t)
{
    if (!t) return;
    event_free(t->ev);
    mem_free(t);
}

static void on_signal(evutil_socket_t sig, short what, void *arg)
{
    struct loop_signal *s = arg;

    (void)sig;
    (void)what;
    s->fn(s->arg);
}

int loop_on_signal(struct loop *l, int sig, loop_fn *fn, void *arg, struct err *e)
{
    struct loop_signal *s = mem_new(struct loop_signal);

    if (!s) return err_nomem(e, "a signal handler");
    *s = (struct loop_signal){ l->signals, evsignal_new(l->base, sig, on_signal, s), fn, arg };
    if (!s->ev || event_add(s->ev, NULL) != 0) {
        if (s->ev) event_free(s->ev);
        mem_free(s);
        return err_set(e, E_IO, "cannot handle signal %d (%s)", sig, strsignal(sig));
    }
    l->signals = s;
    return OK;
}

struct event_base *loop_base(struct loop *l) { return l->base; }
