/* httpmsg.h - an HTTP/1.x request from bytes that come in any pieces. No I/O: it is fed.
 *
 * Strict where two readers could disagree: both lengths, several lengths, folded lines, bare line
 * feeds, control bytes are refused. */
#ifndef TERN_NET_HTTPMSG_H
#define TERN_NET_HTTPMSG_H

#include "base/buf.h"

#define HTTPMSG_HEADERS 100

enum httpmsg_state {
    MSG_HEAD,                    /* in the request line and headers */
    MSG_BODY,
    MSG_DONE,
    MSG_BAD                      /* status and why say how; nothing more is taken */
};

struct httpmsg {
    size_t max_head, max_body;   /* bytes; set by httpmsg_init */
    enum httpmsg_state state;
    int status;                  /* BAD: to be answered with */
    const char *why;
    struct buf head, body;
    /* of a whole head: */
    struct str method, target, query;    /* in head */
    struct buf path;             /* decoded */
    int minor;                   /* HTTP/1.minor */
    struct { struct str name, value; } headers[HTTPMSG_HEADERS];
    int n_headers;
    bool keep_alive, chunked, wants_continue;
    size_t left;                 /* of the body or of the chunk */
    int chunk;                   /* state of the chunk reader */
    size_t n_line;               /* bytes of the chunk's or trailer's line so far */
    size_t n_seen;               /* of all trailers, one more; 0: the body did not begin */
};

void   httpmsg_init(struct httpmsg *m, size_t max_head, size_t max_body);
void   httpmsg_reset(struct httpmsg *m);                 /* for the next request */
void   httpmsg_release(struct httpmsg *m);
/* Takes what belongs to this request and returns how much that was. */
size_t httpmsg_feed(struct httpmsg *m, const char *p, size_t n);
bool   httpmsg_is_empty(const struct httpmsg *m);        /* no byte of a request came yet */
struct str httpmsg_header(const struct httpmsg *m, const char *name);    /* .p NULL: not there */
#endif
