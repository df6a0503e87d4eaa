/* sse.h - server-sent events over a streamed reply. Each event is one write. */
#ifndef TERN_NET_SSE_H
#define TERN_NET_SSE_H

#include "net/http.h"

/* Sends the head: 200, text/event-stream, no buffering by proxies. false: see http_begin. */
bool sse_begin(struct http_req *q);
bool sse_data(struct http_req *q, struct str json); /* "data: ...\n\n"; false: connection closed */
bool sse_event(struct http_req *q, const char *name, struct str json); /* with an "event:" line */
bool sse_ping(struct http_req *q); /* a comment, so that proxies do not time the stream out */

/* Are these bytes whole comments and "ping" events, and nothing else? Such a part of a stream tells the
 * client nothing. Any bytes may be asked about; a part of an event is not idle. */
bool sse_is_idle(struct str s);

/* The same without copying: the caller builds "data: {json}\n\n" in a buf it reuses. sse_open_data
 * appends the prefix; sse_send appends the end, sends all of b and clears it. A failed b closes the
 * connection, since the stream would have a gap. */
void sse_open_data(struct buf *b);
bool sse_send(struct http_req *q, struct buf *b);
#endif
