/* chan.h - a bounded FIFO queue of pointers between threads: any thread pushes, one thread pops.
 *
 * All memory is allocated by chan_open, so pushing never fails except when the queue is full. A
 * mutex orders the calls: everything a thread wrote before chan_push is visible to the thread that
 * pops the item. The queue does not own its items. */
#ifndef TERN_BASE_CHAN_H
#define TERN_BASE_CHAN_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct chan;

int chan_open(struct chan **out, int cap, struct err *e); /* cap: the most items it can hold */
/* NULL is allowed. No thread may use c any more. Items still in the queue are not freed. */
void chan_close(struct chan *c);

bool chan_push(struct chan *c, void *item); /* false: full, the item was not added */
void *chan_pop(struct chan *c);             /* the oldest item, or NULL: empty */
/* Sleeps until the queue has an item, chan_poke is called, or timeout_ns have passed (UINT64_MAX:
 * a day). Returns at once if there is an item or if chan_poke was called since the last wait. May
 * return early: the caller checks its condition and waits again. */
void chan_wait(struct chan *c, uint64_t timeout_ns);
void chan_poke(struct chan *c); /* wakes the waiting thread without an item; any thread may call */
int chan_n(struct chan *c);     /* items in the queue now */
#endif
