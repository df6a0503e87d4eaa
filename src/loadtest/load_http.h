/* load_http.h - an incremental parser of HTTP/1.1 replies: status, headers, body, server-sent
 * events.
 *
 * Bytes are fed in pieces of any size; the result does not depend on where they are cut. Bytes that
 * are not HTTP, and a failed allocation, leave the parser in HTTP_BAD with the reason in `why`. A
 * zeroed parser, with `event` and `arg` set where streams are to be read, is ready for a reply. The
 * load test, the commands against a server and the gateway use it. */
#ifndef TERN_LOADTEST_LOAD_HTTP_H
#define TERN_LOADTEST_LOAD_HTTP_H

#include "base/buf.h"

/* What the next bytes are. States from HTTP_DONE on take no more bytes. */
enum load_http_state {
    HTTP_STATUS,    /* the status line */
    HTTP_HEADERS,   /* header lines */
    HTTP_LENGTH,    /* a body with Content-Length */
    HTTP_CLOSE,     /* a body that ends with the connection */
    HTTP_SIZE,      /* a chunk's size line */
    HTTP_CHUNK,     /* a chunk's bytes */
    HTTP_CHUNK_END, /* the line end behind a chunk */
    HTTP_TRAILERS,  /* lines behind the last chunk */
    HTTP_DONE,      /* the reply is complete */
    HTTP_BAD        /* not HTTP, a limit exceeded, or no memory */
};

struct load_http {
    /* Receives the data of one event, its lines joined with LF. May set `stop`. */
    void (*event)(void *arg, struct str data);
    /* Where set, the bytes of the body go here as they come: nothing is collected, and an event
     * stream is not parsed. */
    void (*raw)(void *arg, struct str bytes);
    void (*header)(void *arg, struct str name, struct str value); /* every header; NULL: none */
    void *arg;

    enum load_http_state state;
    const char *why; /* HTTP_BAD: the reason */
    bool stop;       /* set from inside `event`: load_http_feed returns at once */
    bool any;        /* at least one byte has arrived */
    int status;
    bool chunked, sse, keep_alive;
    int64_t left;        /* bytes left of the body or chunk; -1: no Content-Length */
    char request_id[80]; /* x-request-id, or "" */
    int retry_after_s;   /* -1: no such header */
    struct buf body;     /* of a reply that is not an event stream */
    struct buf head;     /* the header or chunk size line being read */
    struct buf line;     /* the event stream line being read */
    struct buf data;     /* data lines of the event being read */
    bool has_data;       /* the event has a data line, which may be empty */
    bool cr;             /* the last byte was CR: an LF belongs to it */
};

/* Returns the bytes consumed: all of them, unless the reply ended or `stop` was set. */
size_t load_http_feed(struct load_http *h, const char *p, size_t n);
/* The connection was closed. true: that completes the reply; false: the reply is truncated. */
bool load_http_eof(struct load_http *h);
void load_http_reset(struct load_http *h); /* for the next reply; keeps buffers, event and arg */
void load_http_release(struct load_http *h);
#endif
