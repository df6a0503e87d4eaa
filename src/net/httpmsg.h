/* httpmsg.h - an incremental parser for one HTTP/1.x request. No I/O; the result does not depend on
 * how the bytes are split.
 *
 * The parser is strict wherever two readers of the same bytes could disagree (request smuggling):
 * every line ends with CR LF, exactly one header gives the length of the body, no folded headers,
 * no control bytes. The caller owns the struct; a released one may be initialised again. */
#ifndef TERN_NET_HTTPMSG_H
#define TERN_NET_HTTPMSG_H

#include "base/buf.h"
#include "net/http.h"

enum httpmsg_state { HTTPMSG_HEAD, HTTPMSG_BODY, HTTPMSG_DONE, HTTPMSG_BAD };

struct httpmsg_limits {
    size_t line_bytes; /* request line */
    size_t head_bytes; /* request line and headers; the same limit holds for trailers */
    size_t body_bytes;
    /* Is the body of this request, whose head is parsed, streamed? Then stream_bytes is its limit, and
     * it is passed to httpmsg.sink. NULL: none is. */
    bool (*streams)(void *arg);
    void *arg;
    uint64_t stream_bytes;
};

struct httpmsg_span {
    uint32_t at, n; /* in head */
};
struct httpmsg_field {
    struct httpmsg_span name, value;
};

struct httpmsg {
    struct httpmsg_limits lim;
    enum httpmsg_state state;
    int status;      /* HTTPMSG_BAD: the status to answer; 503: no memory */
    const char *why; /* HTTPMSG_BAD: the message, a literal */

    enum http_method method;
    int minor;       /* HTTP/1.minor */
    bool keep_alive; /* the client wants to send another request */
    bool expects_continue;
    bool chunked;
    uint64_t length; /* Content-Length; HTTPMSG_NO_LENGTH: absent */
    struct buf body;
    /* A streamed body: httpmsg_feed returns once after the head, and the caller sets `sink` before it
     * goes on. */
    bool streamed;
    void (*sink)(void *arg, const char *p, size_t n);
    void *sink_arg;

    /* private to the parser */
    struct buf head; /* request line and headers, without line ends */
    struct buf path; /* percent-decoded */
    struct httpmsg_span method_name, query;
    struct httpmsg_field *fields; /* [n_fields] */
    int n_fields, cap_fields;
    int n_hosts, n_codings; /* Host and Transfer-Encoding headers */
    int n_blank;            /* empty lines before the request line */
    size_t line_at;         /* where the current line begins in head */
    size_t taken;           /* bytes of the head, or of the trailers, including line ends */
    bool has_line;          /* the request line is parsed */
    bool after_cr;          /* the last byte was CR */
    bool closes, keeps;     /* Connection: close, keep-alive */
    int step, n_digits;     /* chunked: state, and hex digits of the size read so far */
    uint64_t left;          /* bytes left of the chunk, or of the body */
    uint64_t n_body;        /* bytes of the body so far */
    size_t ext_bytes;       /* of this chunk's extensions, or of this trailer line */
    size_t all_ext_bytes;   /* of all chunk extensions */
};

#define HTTPMSG_NO_LENGTH UINT64_MAX

void httpmsg_init(struct httpmsg *m, struct httpmsg_limits lim); /* m zeroed or released */
void httpmsg_reset(struct httpmsg *m); /* for the next request; keeps small buffers */
void httpmsg_release(struct httpmsg *m);

/* Consumes bytes until the request is complete or bad and returns how many; the rest belongs to the
 * next request. A failed allocation makes the request bad with status 503. */
size_t httpmsg_feed(struct httpmsg *m, const void *p, size_t n);
bool httpmsg_begun(const struct httpmsg *m); /* some byte other than empty lines was read */

/* Valid once the head is parsed (state is not HTTPMSG_HEAD), until reset. */
struct str httpmsg_method_name(const struct httpmsg *m);
struct str httpmsg_path(const struct httpmsg *m);
struct str httpmsg_query(const struct httpmsg *m);
struct str httpmsg_header(const struct httpmsg *m,
                          const char *name); /* the first; .p NULL: absent */

#endif
