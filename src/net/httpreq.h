/* httpreq.h - a request as handlers see it: a table of operations behind the functions of http.h.
 *
 * A request comes from a connection (conn_req.c), or from a parent process by frames. Whoever makes
 * requests puts struct http_req first into a struct of its own; handlers only use http.h. Each
 * operation does what the function of http.h with its name says. */
#ifndef TERN_NET_HTTPREQ_H
#define TERN_NET_HTTPREQ_H

#include "net/http.h"

struct http_ops {
    enum http_method (*method)(const struct http_req *q);
    struct str (*method_name)(const struct http_req *q);
    struct str (*path)(const struct http_req *q);
    struct str (*query)(const struct http_req *q);
    struct str (*header)(const struct http_req *q, const char *name);
    struct str (*body)(const struct http_req *q);
    void (*release_body)(struct http_req *q);
    int (*count_body)(struct http_req *q, uint32_t group, size_t max, struct err *e);
    /* NULL where no body is streamed: */
    void (*set_sink)(struct http_req *q, struct http_sink *s);
    struct http_sink *(*take_sink)(struct http_req *q);
    int64_t (*body_length)(const struct http_req *q);
    const char *(*peer)(const struct http_req *q);
    uint64_t (*start_ns)(const struct http_req *q);
    const char *(*id)(struct http_req *q);
    bool (*was_held)(const struct http_req *q);
    void (*on_gone)(struct http_req *q, void (*fn)(void *arg), void *arg);
    void (*on_sent)(struct http_req *q, void (*fn)(void *arg), void *arg);

    void (*set_header)(struct http_req *q, const char *name, const char *value);
    int (*reply)(struct http_req *q, int status, const char *type, const void *body, size_t n);
    int (*reply_nomem)(struct http_req *q);
    bool (*begin)(struct http_req *q, int status, const char *type);
    bool (*write)(struct http_req *q, const void *p, size_t n);
    void (*end)(struct http_req *q);
    void (*drop)(struct http_req *q, const char *reason);
    void (*drop_nomem)(struct http_req *q);
    size_t (*unsent)(const struct http_req *q);
    bool (*is_gone)(const struct http_req *q);
    const char *(*gone_reason)(const struct http_req *q);
    int (*status)(const struct http_req *q);
};

struct http_req {
    const struct http_ops *ops;
};
#endif
