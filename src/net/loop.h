/* loop.h - the event base: timers, signals, wake-ups from other threads.
 *
 * One thread runs a loop and everything that hangs on it. Only loop_wake and loop_stop may be
 * called from elsewhere. */
#ifndef TERN_NET_LOOP_H
#define TERN_NET_LOOP_H

#include "base/err.h"

#include <stdint.h>

struct loop;
struct loop_timer;
struct event_base;

typedef void loop_fn(void *arg);

int loop_open(struct loop **out, struct err *e);
void loop_close(struct loop *l); /* NULL is fine; timers must be closed before */
void loop_run(struct loop *l);   /* until loop_stop */
void loop_stop(struct loop *l);  /* any thread */

/* fn runs on the loop's thread soon after any number of loop_wake calls. One for each loop. */
void loop_on_wake(struct loop *l, loop_fn *fn, void *arg);
void loop_wake(struct loop *l); /* any thread; cheap when one is under way */

struct loop_timer *loop_timer(struct loop *l, loop_fn *fn, void *arg); /* not running yet */
void loop_timer_set(struct loop_timer *t,
                    uint64_t ms); /* once, from now; again from inside fn to repeat */
void loop_timer_stop(struct loop_timer *t);
void loop_timer_close(struct loop_timer *t); /* NULL is fine */

/* fn on the loop's thread for each such signal. */
int loop_on_signal(struct loop *l, int sig, loop_fn *fn, void *arg, struct err *e);

struct event_base *loop_base(struct loop *l); /* for the rest of net/ */
#endif
