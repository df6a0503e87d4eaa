/* http.h - an HTTP/1.1 server on a loop: TCP, Unix socket, TLS. It knows nothing of models.
 *
 * A handler is called when the whole request is there; it may answer at once or keep the request
 * and answer later. Everything runs on the loop's thread. A request ends by http_reply or http_end,
 * exactly once, also after its client has left; its memory is then gone. */
#ifndef TERN_NET_HTTP_H
#define TERN_NET_HTTP_H

#include "base/buf.h"
#include "base/err.h"
#include "net/loop.h"

struct http;
struct http_req;

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
/* What http itself refuses (400, 408, 413, 414, 417, 431, 501, 503, 505): the body of the reply,
 * JSON, is the caller's to write into out. Then the connection closes. */
typedef void http_fail_fn(void *arg, int status, const char *msg, struct buf *out);

struct http_opt {
    const char *host;               /* "127.0.0.1"; NULL: no TCP */
    int port;                       /* 0: any free one, see http_port */
    const char *socket_path;        /* NULL: no Unix socket; mode 0600; a stale one is replaced */
    const char *tls_cert, *tls_key; /* PEM files, both or none; for TCP */
    size_t max_body_bytes;          /* 0: 16 MiB */
    size_t max_bodies_bytes;        /* of all requests together; beyond, 503; 0: 256 MiB */
    size_t max_header_bytes;        /* request line and headers; 0: 64 KiB */
    size_t max_unread_bytes;        /* of pieces: a reader this far behind is cut off; 0: 1 MiB */
    int max_conns; /* 0: 1024; one more gets 503 and is closed, many more are just closed */
    int header_ms; /* first byte to end of headers; 0: 10000 */
    int body_ms;   /* end of headers to end of body; 0: 60000 */
    int idle_ms;   /* kept connection without a request; 0: 60000 */
    int write_ms;  /* no byte taken by the reader; 0: 30000 */
    http_fn *handler;
    http_fail_fn *fail;
    void *arg; /* of both */
};

struct http_stats {
    int conns;
    uint64_t accepted, refused; /* refused: over max_conns */
    uint64_t bad;               /* requests that http itself answered */
    uint64_t reused;            /* requests on a connection that had carried one before */
    uint64_t requests;
    uint64_t cut_off; /* slow readers */
};

int http_open(struct http **out, struct loop *l, const struct http_opt *opt, struct err *e);
/* NULL is fine. Open connections are cut, gone callbacks called; a request in flight still has to
 * be ended, also when the loop is gone by then. Not from inside a handler. */
void http_close(struct http *h);
int http_port(const struct http *h); /* of the TCP listener; 0: none */
void http_stop_listening(
    struct http *h); /* idle connections close; replies say Connection: close */
void http_stats(const struct http *h, struct http_stats *out);

/* ---- of a request; what is returned lives as long as it ---- */
enum http_method http_method(const struct http_req *q);
struct str http_method_name(const struct http_req *q);
struct str http_path(const struct http_req *q);  /* percent-decoded, without the query */
struct str http_query(const struct http_req *q); /* behind '?', as sent */
/* The first header of that name (case does not matter), trimmed; .p NULL: not there. */
struct str http_header(const struct http_req *q, const char *name);
struct str http_body(const struct http_req *q);
const char *http_peer(const struct http_req *q);  /* "127.0.0.1:40312" or "unix" */
uint64_t http_start_ns(const struct http_req *q); /* when its first byte came */

/* Called once if the client leaves (closes, resets, or is cut off) before the reply has ended; the
 * request must still be ended. fn NULL: no more. */
void http_on_gone(struct http_req *q, void (*fn)(void *arg), void *arg);

/* ---- the reply ---- */
void http_set_header(struct http_req *q, const char *name,
                     const char *value); /* before the body; copied */
void http_reply(struct http_req *q, int status, const char *type, const void *body, size_t n);
/* A reply in pieces (chunked; plain until close for HTTP/1.0). */
void http_begin(struct http_req *q, int status, const char *type);
/* Goes to the socket at once if it takes it. false: the client is gone; nothing more will be sent.
 */
bool http_write(struct http_req *q, const void *p, size_t n);
void http_end(struct http_req *q);
bool http_is_gone(const struct http_req *q);
const char *http_gone_reason(const struct http_req *q); /* "closed", "reset", "slow reader"; "" */
int http_status(const struct http_req *q);              /* sent or to be sent; 0: none yet */
#endif
