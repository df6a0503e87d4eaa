/* load_http.h - replies of a server, read as they come: status, headers, body, server-sent events.
 *
 * Bytes are fed in pieces of any size; what they mean does not depend on where they were cut.
 * Foreign bytes that are not HTTP leave it in HTTP_BAD with a word why. A zeroed one, with `event`
 * and `arg` set if there are streams to read, is ready for a reply. */
#ifndef TERN_LOADTEST_LOAD_HTTP_H
#define TERN_LOADTEST_LOAD_HTTP_H

#include "base/buf.h"

enum load_http_state {
    HTTP_STATUS,
    HTTP_HEADERS,
    HTTP_LENGTH,
    HTTP_CLOSE,
    HTTP_SIZE,
    HTTP_CHUNK,
    HTTP_CHUNK_END,
    HTTP_TRAILERS,
    HTTP_DONE,
    HTTP_BAD
};

struct load_http {
    /* the data of one event, many lines joined; may set `stop` */
    void (*event)(void *arg, struct str data);
    void *arg;

    enum load_http_state state;
    const char *why; /* HTTP_BAD */
    bool stop;       /* set by who is called: load_http_feed returns at once */
    bool any;        /* some byte has come */
    int status;
    bool chunked, sse, keep;
    int64_t left;        /* of the body or chunk; -1: no length was told */
    char request_id[80]; /* x-request-id, or "" */
    int retry_after_s;   /* -1: not told */
    struct buf body;     /* of a reply that is no stream */
    struct buf head, line, data;
    bool data_any, cr; /* the event has a data line; the last byte was CR */
};

/* How many bytes were taken: all, unless the reply ended or `stop` was set. */
size_t load_http_feed(struct load_http *h, const char *p, size_t n);
/* The connection closed: the end of a body without a length, else a reply cut short (false). */
bool load_http_eof(struct load_http *h);
void load_http_reset(struct load_http *h); /* for the next reply; keeps memory, event, arg */
void load_http_release(struct load_http *h);
#endif
