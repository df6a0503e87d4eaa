/* units.h - the stream of a worker, cut where its token ids are.
 *
 * A worker that knows the hop protocol ends each write with a comment and a blank line:
 *
 *     : ids 12 34 @5      the tokens behind the bytes since the last comment, and the number of the
 *                         next event (streams with numbered events)
 *     : ids -             the answer has not begun: the bytes are pings
 *
 * The bytes up to a comment are one unit. Units are passed on whole, without the comment, so that the
 * ids are exactly those whose text was passed on. */
#ifndef TERN_CLUSTER_UNITS_H
#define TERN_CLUSTER_UNITS_H

#include "base/buf.h"
#include "base/ids.h"

typedef void units_fn(void *arg, struct str bytes, bool ping);

/* Zeroed: nothing was read. */
struct units {
    struct buf rest; /* bytes behind the last comment */
    struct ids ids;  /* of all units */
    int n_events;    /* of all units, where they are numbered */
    bool begun;      /* a unit of the answer was passed on */
};

void units_push(struct units *u, struct str bytes, units_fn *pass, void *arg);
bool units_failed(const struct units *u); /* an addition found no memory */
void units_release(struct units *u);
#endif
