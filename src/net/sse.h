/* sse.h - server-sent events over a reply in pieces: each event is one write. */
#ifndef TERN_NET_SSE_H
#define TERN_NET_SSE_H

#include "net/http.h"

void sse_begin(struct http_req *q); /* 200, text/event-stream, no buffering by proxies */
bool sse_data(struct http_req *q, struct str json); /* "data: ...\n\n"; false: the client is gone */
bool sse_event(struct http_req *q, const char *name, struct str json); /* with an "event:" line */
bool sse_ping(struct http_req *q); /* a comment, to keep proxies awake */

/* The same without copying: the caller writes "data: {json}\n\n" into one buf that it keeps,
 * between these. sse_open_data appends the prefix, sse_send appends the end and sends all of b,
 * then clears it. */
void sse_open_data(struct buf *b);
bool sse_send(struct http_req *q, struct buf *b);
#endif
