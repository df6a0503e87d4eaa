/* http.h - an HTTP/1.1 server on an event loop: TCP, Unix socket, TLS. It knows nothing of models.
 *
 * The handler is called once the whole request has been read. It answers at once, or keeps the
 * request and answers later. Every request is ended exactly once, by http_reply, http_reply_nomem
 * or http_end, also after its client has left; its memory is invalid from then on. All functions
 * run on the loop's thread.
 *
 * Every reply carries the correlation id of its request, X-Correlation-Id and x-request-id: also
 * the replies that http makes itself, and those for which there is no memory.
 *
 * No request ends the server. A failed allocation costs at most the one request or connection it
 * was made for: the client gets a 503 that is composed without memory, or its connection is closed.
 * http_stats.no_memory counts these. */
#ifndef TERN_NET_HTTP_H
#define TERN_NET_HTTP_H

#include "base/buf.h"
#include "base/err.h"

struct http;
struct http_req;
struct loop;

enum http_method {
    HTTP_GET,
    HTTP_HEAD,
    HTTP_POST,
    HTTP_PUT,
    HTTP_DELETE,
    HTTP_OPTIONS,
    HTTP_OTHER
};

typedef void http_fn(void *arg, struct http_req *q);
/* A request that http itself answers with an error (400, 408, 413, 414, 417, 431, 501, 503, 505):
 * writes the JSON body into out, counts and logs. Method, path and headers of q are there as far as
 * they were read. code: a word for programs, such as "request_timeout"; a literal. The connection is
 * closed after that reply. */
typedef void http_fail_fn(void *arg, struct http_req *q, int status, const char *code,
                          const char *msg, struct buf *out);

/* Is called for a request whose body has more than HTTP_SMALL_BODY bytes, before the rest of it
 * is read: after the headers if they give its length, else when so much of it was read. It may call
 * http_count_body. */
enum http_admission {
    HTTP_ADMIT,    /* the body is read */
    HTTP_ANSWERED, /* q was answered, and the rest of the body is not read */
    HTTP_HOLD      /* the body is not read for a second, then the function is called again; once */
};
typedef enum http_admission http_admit_fn(void *arg, struct http_req *q);
bool http_was_held(const struct http_req *q); /* the answer HTTP_HOLD is not allowed any more */
#define HTTP_SMALL_BODY (64 << 10)

/* Takes the bytes of a streamed body as they come: the request has no http_body. */
struct http_sink {
    void (*add)(struct http_sink *s, const char *p, size_t n);
    void (*close)(struct http_sink *s); /* the request ends, and nobody took the sink */
};

struct http_opt {
    const char *host;               /* "127.0.0.1"; NULL: no TCP */
    int port;                       /* 0: any free one, see http_port */
    const char *socket_path;        /* NULL: no Unix socket; mode 0600; replaces a stale socket */
    const char *tls_cert, *tls_key; /* PEM files for TCP, both or neither */
    size_t max_body_bytes;          /* of one request; 0: 16 MiB */
    size_t max_bodies_bytes;        /* of all requests together, then 503; 0: 256 MiB */
    size_t max_header_bytes;        /* request line and headers; 0: 64 KiB */
    size_t max_unread_bytes; /* a streaming client this far behind is disconnected; 0: 1 MiB */
    int max_conns;           /* 0: 1024. Idle ones are closed for new ones, then 503 */
    int header_ms;           /* first byte of a request to the end of its headers; 0: 10000 */
    int body_ms;             /* end of the headers to the end of the body; 0: 60000 */
    int idle_ms;             /* keep-alive connection without a request; 0: 60000 */
    int write_ms;            /* time without the client reading any byte; 0: 30000 */
    const char *nomem_body;  /* JSON body of the 503 when memory ran out; a literal; NULL: "{}" */
    http_fn *handler;
    http_fail_fn *fail;
    http_admit_fn *admit; /* NULL: all bodies are read */
    /* Is this request, which has no body, served even above the limit of connections? NULL: none. */
    bool (*vital)(void *arg, const struct http_req *q);
    /* Is the body of this request streamed, up to max_stream_bytes? Then admit is always asked, also
     * for a small one, and gives it a sink (http_set_sink). NULL: none is. */
    bool (*streams)(void *arg, const struct http_req *q);
    uint64_t max_stream_bytes;
    void *arg; /* first argument of handler, fail, admit, vital and streams */
};

struct http_stats {
    int conns;                  /* open connections */
    uint64_t accepted, refused; /* refused: connections above max_conns, answered 503 or closed */
    uint64_t closed_idle;       /* closed to make room for others */
    uint64_t held;              /* request bodies that admit held */
    uint64_t bad;               /* requests that http itself answered with an error */
    uint64_t reused;            /* requests on a connection that had carried one before */
    uint64_t requests;          /* requests handed to the handler */
    uint64_t cut_off;           /* connections closed because the client read too slowly */
    uint64_t no_memory;         /* requests and connections given up because memory ran out */
    uint64_t direct_bytes;      /* of large bodies, read without libevent in large pieces */
};

int http_open(struct http **out, struct loop *l, const struct http_opt *opt, struct err *e);
/* Closes all connections and calls their gone callbacks. A request in flight must still be ended,
 * and may be ended after the loop is closed. NULL is allowed. Not from inside a handler. */
void http_close(struct http *h);
int http_port(const struct http *h); /* of the TCP listener; 0: none */
int http_descriptors(int max_conns); /* that so many connections take at most */
/* Closes connections that are idle after a reply; replies from now on carry Connection: close. New
 * connections are still accepted, so that the handler can answer them. */
void http_drain(struct http *h);
void http_stop_listening(struct http *h); /* the same, and closes the listeners */
void http_stats(const struct http *h, struct http_stats *out);
/* Verifies the invariants of all connections (see conn.h). NULL: they hold; else the violated one. */
const char *http_check(const struct http *h);

/* ---- the request: results are valid until it ends ---- */
enum http_method http_method(const struct http_req *q);
struct str http_method_name(const struct http_req *q);
struct str http_path(const struct http_req *q);  /* percent-decoded, without the query */
struct str http_query(const struct http_req *q); /* the bytes after '?', not decoded */
/* The first header with that name (case-insensitive), trimmed; .p NULL: absent. */
struct str http_header(const struct http_req *q, const char *name);
struct str http_body(const struct http_req *q);
void http_release_body(struct http_req *q); /* frees it before the request ends; it is empty then */
/* Counts the body also as one of a group, until it is freed: all of a group may have max bytes (0:
 * no limit). group: a small number. E_BYTES: it would have more; E_NOMEM. It is not counted then. A
 * chunked body that grows above the limit later is refused with 429. */
int http_count_body(struct http_req *q, uint32_t group, size_t max, struct err *e);
/* The sink of a streamed body; admit sets it before it answers HTTP_ADMIT. */
void http_set_sink(struct http_req *q, struct http_sink *s);
struct http_sink *http_take_sink(struct http_req *q); /* is the caller's from now on; NULL: none */
/* The length that the headers give; -1: a chunked body. */
int64_t http_body_length(const struct http_req *q);
const char *http_peer(const struct http_req *q);  /* "127.0.0.1:40312" or "unix" */
uint64_t http_start_ns(const struct http_req *q); /* arrival of the first byte, clock_ns */
/* The correlation id: the client's X-Correlation-Id or X-Request-Id if it is 1 to 64 letters, digits
 * and "._:-", else "req-" and 24 random hexadecimal digits. */
const char *http_id(struct http_req *q);

/* fn is called once if the connection closes before the reply has ended: the client closed it,
 * reset it, or was disconnected. The request must still be ended. fn NULL removes the callback. */
void http_on_gone(struct http_req *q, void (*fn)(void *arg), void *arg);
/* fn is called each time when all bytes of a streamed reply that were queued have been sent. fn may
 * write more or end q. NULL removes the callback. */
void http_on_sent(struct http_req *q, void (*fn)(void *arg), void *arg);

/* ---- the reply ---- */
/* Adds a header to the reply; copies both texts. CR and LF in the value become spaces. */
void http_set_header(struct http_req *q, const char *name, const char *value);
/* A whole reply; ends q. Returns the status that was sent: `status`, or 503 if memory ran out. */
int http_reply(struct http_req *q, int status, const char *type, const void *body, size_t n);
/* Ends q with 503 and opt.nomem_body without allocating; returns 503. Where a streamed reply has
 * begun, or the bytes cannot be sent without memory, the connection is closed instead. */
int http_reply_nomem(struct http_req *q);

/* A streamed reply: chunked, or until close for HTTP/1.0. false: no memory and nothing was sent;
 * end q with another reply. */
bool http_begin(struct http_req *q, int status, const char *type);
/* Sends now what the socket takes and queues the rest. false: the connection is closed. */
bool http_write(struct http_req *q, const void *p, size_t n);
void http_end(struct http_req *q);
/* Closes the connection of a reply that cannot go on. reason: a literal, see http_gone_reason. q must
 * still be ended. */
void http_drop(struct http_req *q, const char *reason);
/* The same: memory ran out in the middle of a streamed reply. q must still be ended. */
void http_drop_nomem(struct http_req *q);

size_t http_unsent(const struct http_req *q); /* bytes of the reply that are queued */
bool http_is_gone(const struct http_req *q);  /* the connection is closed */
/* Why it closed: "closed", "reset", "slow reader", "out of memory"; "" while it is open. */
const char *http_gone_reason(const struct http_req *q);
int http_status(const struct http_req *q); /* sent or about to be sent; 0: none yet */
#endif
