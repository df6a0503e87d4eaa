/* conn_req.c - a connection as struct http_req: the table of its operations.
 *
 * This file reads method, path, headers and body; conn_send.c writes replies, conn_id.c makes the
 * correlation id. */
#include "net/conn.h"

#include "base/mem.h"

static struct conn *conn_of(struct http_req *q) { return (struct conn *)q; }
static const struct conn *conn_of_const(const struct http_req *q) { return (const struct conn *)q; }

/* ---- the request ---- */

static enum http_method get_method(const struct http_req *q)
{
    return conn_of_const(q)->msg.method;
}
static struct str get_method_name(const struct http_req *q)
{
    return httpmsg_method_name(&conn_of_const(q)->msg);
}
static struct str get_path(const struct http_req *q)
{
    return httpmsg_path(&conn_of_const(q)->msg);
}
static struct str get_query(const struct http_req *q)
{
    return httpmsg_query(&conn_of_const(q)->msg);
}
static struct str get_header(const struct http_req *q, const char *name)
{
    return httpmsg_header(&conn_of_const(q)->msg, name);
}
static struct str get_body(const struct http_req *q)
{
    return buf_str(&conn_of_const(q)->msg.body);
}

static void release_body(struct http_req *q)
{
    struct conn *c = conn_of(q);

    conn_count_body(c, 0);
    buf_release(&c->msg.body);
}

static int count_in_group(struct http_req *q, uint32_t group, size_t max, struct err *e)
{
    struct conn *c = conn_of(q);
    struct http *h = c->h;
    size_t before = h->n_groups;

    if (c->in_group || c->body_bytes == 0) return OK;
    if (!mem_ensure(h->groups, h->n_groups, (size_t)group + 1))
        return err_nomem(e, "the bytes of a group");
    for (size_t i = before; i < h->n_groups; i++) h->groups[i] = 0;
    if (max && h->groups[group] + c->body_bytes > max)
        return err_set(e, E_BYTES,
                       "%zu bytes of bodies, and %zu more would exceed the limit of %zu",
                       h->groups[group], c->body_bytes, max);
    c->in_group = true;
    c->group = group;
    c->group_max = max;
    h->groups[group] += c->body_bytes;
    return OK;
}

/* httpmsg.sink */
static void pass_body(void *arg, const char *p, size_t n)
{
    struct conn *c = arg;

    c->sink->add(c->sink, p, n);
}

static void set_sink(struct http_req *q, struct http_sink *s)
{
    struct conn *c = conn_of(q);

    conn_drop_sink(c);
    c->sink = s;
    c->msg.sink = pass_body;
    c->msg.sink_arg = c;
}

static struct http_sink *take_sink(struct http_req *q)
{
    struct conn *c = conn_of(q);
    struct http_sink *s = c->sink;

    c->sink = NULL;
    return s;
}

static int64_t get_body_length(const struct http_req *q)
{
    const struct httpmsg *m = &conn_of_const(q)->msg;

    if (m->chunked) return -1;
    return m->length == HTTPMSG_NO_LENGTH ? 0 : (int64_t)m->length;
}

static const char *get_peer(const struct http_req *q) { return conn_of_const(q)->peer; }
static uint64_t get_start_ns(const struct http_req *q) { return conn_of_const(q)->start_ns; }
static const char *get_id(struct http_req *q) { return conn_id(conn_of(q)); }
static bool was_held(const struct http_req *q) { return conn_of_const(q)->was_held; }
static bool is_gone(const struct http_req *q) { return !conn_of_const(q)->bev; }
static const char *get_gone_reason(const struct http_req *q)
{
    return conn_of_const(q)->gone_reason;
}
static int get_status(const struct http_req *q) { return conn_of_const(q)->status; }

static void set_on_gone(struct http_req *q, void (*fn)(void *arg), void *arg)
{
    struct conn *c = conn_of(q);

    c->gone = fn;
    c->gone_arg = arg;
    if (!fn || c->bev || c->gone_pending || !c->soon) return;
    c->gone_pending = true; /* the connection closed before the callback was set */
    conn_schedule(c);
}

static void set_on_sent(struct http_req *q, void (*fn)(void *arg), void *arg)
{
    conn_of(q)->sent = fn;
    conn_of(q)->sent_arg = arg;
}

/* ---- the reply ---- */

static void set_header(struct http_req *q, const char *name, const char *value)
{
    conn_set_header(conn_of(q), name, value);
}
static int reply(struct http_req *q, int status, const char *type, const void *body, size_t n)
{
    return conn_reply(conn_of(q), status, type, body, n);
}
static int reply_nomem(struct http_req *q) { return conn_reply_nomem(conn_of(q)); }
static bool begin_reply(struct http_req *q, int status, const char *type)
{
    return conn_begin(conn_of(q), status, type);
}
static bool write_reply(struct http_req *q, const void *p, size_t n)
{
    return conn_write(conn_of(q), p, n);
}
static void end_reply(struct http_req *q) { conn_end(conn_of(q)); }
static void drop(struct http_req *q, const char *reason) { conn_drop(conn_of(q), reason); }
static void drop_nomem(struct http_req *q) { conn_drop_nomem(conn_of(q)); }
static size_t get_unsent(const struct http_req *q)
{
    return conn_of_const(q)->bev ? conn_unsent(conn_of_const(q)) : 0;
}

const struct http_ops conn_ops = { .method = get_method,
                                   .method_name = get_method_name,
                                   .path = get_path,
                                   .query = get_query,
                                   .header = get_header,
                                   .body = get_body,
                                   .release_body = release_body,
                                   .count_body = count_in_group,
                                   .set_sink = set_sink,
                                   .take_sink = take_sink,
                                   .body_length = get_body_length,
                                   .peer = get_peer,
                                   .start_ns = get_start_ns,
                                   .id = get_id,
                                   .was_held = was_held,
                                   .on_gone = set_on_gone,
                                   .on_sent = set_on_sent,
                                   .set_header = set_header,
                                   .reply = reply,
                                   .reply_nomem = reply_nomem,
                                   .begin = begin_reply,
                                   .write = write_reply,
                                   .end = end_reply,
                                   .drop = drop,
                                   .drop_nomem = drop_nomem,
                                   .unsent = get_unsent,
                                   .is_gone = is_gone,
                                   .gone_reason = get_gone_reason,
                                   .status = get_status };
