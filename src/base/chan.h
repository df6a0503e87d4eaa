/* chan.h - a bounded queue of pointers between threads: any thread pushes, one pops.
 *
 * Memory is taken when it opens. What a thread wrote before chan_push is there for whoever pops
 * the item. */
#ifndef TERN_BASE_CHAN_H
#define TERN_BASE_CHAN_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct chan;

int chan_open(struct chan **out, int cap, struct err *e);
void chan_close(struct chan *c); /* NULL is fine; items left are the caller's */

bool chan_push(struct chan *c, void *item); /* false: full, nothing happened */
void *chan_pop(struct chan *c);             /* NULL: empty */
/* Sleeps until there is an item, a chan_poke, or the time is over (UINT64_MAX: no end). Returns at
 * once if any of them came since the last wait. */
void chan_wait(struct chan *c, uint64_t timeout_ns);
void chan_poke(struct chan *c);
int chan_n(struct chan *c);
#endif
