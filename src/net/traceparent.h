/* traceparent.h - W3C Trace Context: the header by which one request is found in the logs of every
 * hop.
 *
 * "00-<32 hex digits of the trace>-<16 of the span>-<2 of flags>", and what later versions append.
 * Plain functions on text; nothing is owned. */
#ifndef TERN_NET_TRACEPARENT_H
#define TERN_NET_TRACEPARENT_H

#include "base/rng.h"
#include "base/str.h"

#include <stdbool.h>

#define TRACEPARENT_BYTES 64 /* room for a header and its zero byte */

bool traceparent_is_valid(struct str s);
/* Copies the client's header, or makes one where the client sent none that is valid. */
void traceparent_take(char out[TRACEPARENT_BYTES], struct str sent, struct rng *rng);
#endif
