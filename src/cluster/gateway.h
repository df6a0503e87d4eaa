/* gateway.h - tern gateway: the HTTP API of tern serve in front of many workers.
 *
 *     client ─► gateway: key, limits, prompt hashes ─► a worker (tern serve) ─► the reply, as it comes
 *
 * The gateway has no model. It knows its workers from --peers or from NATS (fleet.h), places each
 * request (place.h), and passes the reply on. A request whose worker fails before the first byte is
 * sent to another one; a stream whose worker dies continues on another one with the tokens that the
 * client has (relay.c). docs/cluster.md is its manual, docs/protocol.md the protocol to workers. */
#ifndef TERN_CLUSTER_GATEWAY_H
#define TERN_CLUSTER_GATEWAY_H

#include "base/err.h"

struct settings;

/* Runs until a signal ends it. s is the caller's, and is reloaded by SIGHUP. */
int gateway_run(struct settings *s, struct err *e);
#endif
