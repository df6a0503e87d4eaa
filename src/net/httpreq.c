/* httpreq.c - the functions of http.h that take a request: each calls the operation of its name. */
#include "net/httpreq.h"

enum http_method http_method(const struct http_req *q) { return q->ops->method(q); }
struct str http_method_name(const struct http_req *q) { return q->ops->method_name(q); }
struct str http_path(const struct http_req *q) { return q->ops->path(q); }
struct str http_query(const struct http_req *q) { return q->ops->query(q); }
struct str http_header(const struct http_req *q, const char *name)
{
    return q->ops->header(q, name);
}
struct str http_body(const struct http_req *q) { return q->ops->body(q); }
void http_release_body(struct http_req *q) { q->ops->release_body(q); }
int http_count_body(struct http_req *q, uint32_t group, size_t max, struct err *e)
{
    return q->ops->count_body(q, group, max, e);
}
void http_set_sink(struct http_req *q, struct http_sink *s)
{
    if (q->ops->set_sink) q->ops->set_sink(q, s);
    else s->close(s);
}
struct http_sink *http_take_sink(struct http_req *q)
{
    return q->ops->take_sink ? q->ops->take_sink(q) : NULL;
}
int64_t http_body_length(const struct http_req *q)
{
    return q->ops->body_length ? q->ops->body_length(q) : (int64_t)q->ops->body(q).n;
}
const char *http_peer(const struct http_req *q) { return q->ops->peer(q); }
uint64_t http_start_ns(const struct http_req *q) { return q->ops->start_ns(q); }
const char *http_id(struct http_req *q) { return q->ops->id(q); }
bool http_was_held(const struct http_req *q) { return q->ops->was_held(q); }
void http_on_gone(struct http_req *q, void (*fn)(void *arg), void *arg)
{
    q->ops->on_gone(q, fn, arg);
}
void http_on_sent(struct http_req *q, void (*fn)(void *arg), void *arg)
{
    q->ops->on_sent(q, fn, arg);
}

void http_set_header(struct http_req *q, const char *name, const char *value)
{
    q->ops->set_header(q, name, value);
}
int http_reply(struct http_req *q, int status, const char *type, const void *body, size_t n)
{
    return q->ops->reply(q, status, type, body, n);
}
int http_reply_nomem(struct http_req *q) { return q->ops->reply_nomem(q); }
bool http_begin(struct http_req *q, int status, const char *type)
{
    return q->ops->begin(q, status, type);
}
bool http_write(struct http_req *q, const void *p, size_t n) { return q->ops->write(q, p, n); }
void http_end(struct http_req *q) { q->ops->end(q); }
void http_drop(struct http_req *q, const char *reason) { q->ops->drop(q, reason); }
void http_drop_nomem(struct http_req *q) { q->ops->drop_nomem(q); }
size_t http_unsent(const struct http_req *q) { return q->ops->unsent(q); }
bool http_is_gone(const struct http_req *q) { return q->ops->is_gone(q); }
const char *http_gone_reason(const struct http_req *q) { return q->ops->gone_reason(q); }
int http_status(const struct http_req *q) { return q->ops->status(q); }
