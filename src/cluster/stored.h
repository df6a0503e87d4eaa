/* stored.h - answers that a worker keeps (/v1/responses): which worker has the one that a request is
 * about. The end of such an id is chosen by the gateway, and is a key of the index of prefixes. */
#ifndef TERN_CLUSTER_STORED_H
#define TERN_CLUSTER_STORED_H

#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

struct affinity;
struct fleet;
struct worker;

enum { CALL_BYTES = 24 }; /* of the end of an id */

/* Hash of the id in the path, or of previous, the body's previous_response_id (n 0: it has none); 0:
 * the request has neither. */
uint64_t stored_key(struct str path, struct str previous);
/* The answer of that id will be kept by the worker, if the path is that of such answers. */
void stored_note(struct affinity *a, const char *path, const char *call, int worker);
/* The worker that keeps it, if it is ready and not among those tried. NULL: any. */
struct worker *stored_keeper(struct fleet *f, struct affinity *a, uint64_t key, const bool *tried);

/* Is the path that of files, batches or durable jobs? One worker's store has all of them. */
bool stored_is_work(struct str path);
/* Can a request of this path be a durable job? */
bool stored_can_be_durable(struct str path);
/* The worker whose store that is: of those that have one (--data-dir), or did not say yet, the one
 * with the least URL, so that all gateways choose the same. It may not be ready: nobody else can stand
 * in for it. NULL: no worker has a store. */
struct worker *stored_work_keeper(struct fleet *f);
#endif
