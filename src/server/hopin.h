/* hopin.h - requests of a gateway, as a worker sees them (docs/protocol.md, "Gateway and workers").
 *
 * A gateway says in headers who sends a request, under which id its answer is known, and where a stream
 * continues. They are believed if the gateway has the cluster key; without --cluster-key, if this
 * server has no API keys: then everyone may do everything anyway. */
#ifndef TERN_SERVER_HOPIN_H
#define TERN_SERVER_HOPIN_H

#include "base/err.h"

#include <stdbool.h>

struct tenant;
struct visit;

bool hopin_is_hop(const struct visit *t); /* the request says that it is a gateway's */
/* Fills t->who from the headers. E_DENIED: it is not believed; E_INVALID names a bad header. */
int hopin_read(struct visit *t, const struct tenant **out, struct err *e);
void clusterstate_get(struct visit *t); /* GET /cluster/state */
#endif
