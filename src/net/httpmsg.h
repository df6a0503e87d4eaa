/* httpmsg.h - one HTTP/1.x request, parsed as its bytes come: no I/O, the same result however they
 * are cut.
 *
 * Strict where two readers of the same bytes could disagree: every line ends with CR LF, one way to
 * say how long the body is, no folded lines, no control bytes. The caller owns the struct; a
 * released one may be initialised again. */
#ifndef TERN_NET_HTTPMSG_H
#define TERN_NET_HTTPMSG_H

#include "base/buf.h"
#include "net/http.h"

enum httpmsg_state { HTTPMSG_HEAD, HTTPMSG_BODY, HTTPMSG_DONE, HTTPMSG_BAD };

struct httpmsg_limits {
    size_t line_bytes; /* request line */
    size_t head_bytes; /* request line and headers; trailers have the same */
    size_t body_bytes;
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
    int status; /* HTTPMSG_BAD: what to answer, and why */
    const char *why;

    enum http_method method;
    int minor;       /* HTTP/1.minor */
    bool keep_alive; /* as the client asked */
    bool expects_continue;
    bool chunked;
    uint64_t length; /* of the body as announced; HTTPMSG_NO_LENGTH */
    struct buf body;

    /* the rest is the parser's own */
    struct buf head; /* the lines, without their ends */
    struct buf path; /* decoded */
    struct httpmsg_span method_name, query;
    struct httpmsg_field *fields;
    int n_fields, cap_fields;
    int n_hosts, n_codings, n_blank;
    size_t line_at; /* of the line being read, in head */
    size_t taken;   /* bytes of the head, or of the trailers, with line ends */
    bool has_line, after_cr, closes, keeps;
    int step, n_digits; /* of a chunk */
    uint64_t left;      /* of the chunk, or of the body */
    size_t ext_bytes, all_ext_bytes;
};

#define HTTPMSG_NO_LENGTH UINT64_MAX

void httpmsg_init(struct httpmsg *m, struct httpmsg_limits lim); /* m zeroed or released */
void httpmsg_reset(struct httpmsg *m); /* for the next request; small buffers are kept */
void httpmsg_release(struct httpmsg *m);

/* Takes bytes until the request is whole or bad; returns how many. What is behind belongs to the
 * next one. */
size_t httpmsg_feed(struct httpmsg *m, const void *p, size_t n);
bool httpmsg_begun(const struct httpmsg *m); /* more than empty lines has come */

/* Valid once the head is there (not HTTPMSG_HEAD); live until reset. */
struct str httpmsg_method_name(const struct httpmsg *m);
struct str httpmsg_path(const struct httpmsg *m);
struct str httpmsg_query(const struct httpmsg *m);
struct str httpmsg_header(const struct httpmsg *m,
                          const char *name); /* the first; .p NULL: not there */

#endif
