/* loop.h - the event loop: timers, signals, and wake-ups from other threads, over libevent.
 *
 * One thread runs a loop, and every timer, connection and callback on it belongs to that thread.
 * Only loop_wake and loop_stop may be called from other threads. */
#ifndef TERN_NET_LOOP_H
#define TERN_NET_LOOP_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct loop;
struct loop_timer;
struct event_base;

typedef void loop_fn(void *arg);

int loop_open(struct loop **out, struct err *e);
void loop_close(struct loop *l); /* NULL is allowed; close its timers before */
void loop_run(struct loop *l);   /* returns after loop_stop */
void loop_stop(struct loop *l);  /* any thread */

/* Sets the one wake-up callback of the loop: fn runs on the loop's thread after loop_wake. Several
 * loop_wake calls before it runs are merged into one run. */
void loop_on_wake(struct loop *l, loop_fn *fn, void *arg);
void loop_wake(struct loop *l); /* any thread; one atomic exchange when a wake-up is pending */

/* A one-shot timer, not started. NULL: no memory. */
struct loop_timer *loop_timer(struct loop *l, loop_fn *fn, void *arg);
/* (Re)starts the timer: fn runs once, `ms` from now. false: no memory, the timer is not running.
 * Called first inside fn it cannot fail: the place of the expired timer in libevent's heap is still
 * free. Timers that repeat therefore restart before they do their work. */
bool loop_timer_set(struct loop_timer *t, uint64_t ms);
void loop_timer_stop(struct loop_timer *t);
void loop_timer_close(struct loop_timer *t); /* NULL is allowed */

/* Calls fn on the loop's thread for each signal `sig`. */
int loop_on_signal(struct loop *l, int sig, loop_fn *fn, void *arg, struct err *e);

struct event_base *loop_base(struct loop *l); /* for files that watch descriptors */
#endif
