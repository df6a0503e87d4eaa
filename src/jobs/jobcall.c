/* jobcall.c - the operations of a struct http_req that no connection is behind. */
#include "jobs/jobcall.h"

#include "base/clock.h"
#include "base/mem.h"

#include <stdio.h>

static struct jobcall *call_of(struct http_req *q) { return (struct jobcall *)q; }
static const struct jobcall *call_of_const(const struct http_req *q)
{
    return (const struct jobcall *)q;
}

/* ---- the request ---- */

static enum http_method get_method(const struct http_req *q)
{
    (void)q;
    return HTTP_POST;
}
static struct str get_method_name(const struct http_req *q)
{
    (void)q;
    return STR("POST");
}
static struct str get_path(const struct http_req *q) { return str_c(call_of_const(q)->path); }
static struct str get_query(const struct http_req *q)
{
    (void)q;
    return STR("");
}
static struct str get_header(const struct http_req *q, const char *name)
{
    (void)q, (void)name;
    return (struct str){ 0 };
}
static struct str get_body(const struct http_req *q)
{
    return str_of(call_of_const(q)->body, call_of_const(q)->n_body);
}
/* The body stays: the job may have to be run again. */
static void release_body(struct http_req *q) { (void)q; }
static int count_body(struct http_req *q, uint32_t group, size_t max, struct err *e)
{
    (void)q, (void)group, (void)max, (void)e;
    return OK;
}
static const char *get_peer(const struct http_req *q) { return call_of_const(q)->peer; }
static uint64_t get_start_ns(const struct http_req *q) { return call_of_const(q)->start_ns; }
static const char *get_id(struct http_req *q) { return call_of(q)->id; }
static bool is_false(const struct http_req *q)
{
    (void)q;
    return false;
}
static const char *get_gone_reason(const struct http_req *q)
{
    (void)q;
    return "";
}
static void set_on_gone(struct http_req *q, void (*fn)(void *arg), void *arg)
{
    call_of(q)->gone = fn;
    call_of(q)->gone_arg = arg;
}
static void set_on_sent(struct http_req *q, void (*fn)(void *arg), void *arg)
{
    (void)q, (void)fn, (void)arg;
}
static size_t get_unsent(const struct http_req *q)
{
    (void)q;
    return 0;
}
static int get_status(const struct http_req *q) { return call_of_const(q)->status; }

/* ---- the reply ---- */

static void set_header(struct http_req *q, const char *name, const char *value)
{
    (void)q, (void)name, (void)value;
}

static void end_call(struct jobcall *c)
{
    c->gone = NULL;
    c->ended = true;
    c->done(c);
}

static int reply_nomem(struct http_req *q)
{
    struct jobcall *c = call_of(q);

    c->status = 503;
    buf_clear(&c->reply);
    end_call(c);
    return 503;
}

static int reply(struct http_req *q, int status, const char *type, const void *body, size_t n)
{
    struct jobcall *c = call_of(q);

    (void)type;
    buf_clear(&c->reply);
    if (n) buf_add(&c->reply, body, n);
    if (c->reply.failed) return reply_nomem(q);
    c->status = status;
    end_call(c);
    return status;
}

static bool begin_reply(struct http_req *q, int status, const char *type)
{
    (void)type;
    call_of(q)->status = status;
    return true;
}
static bool write_reply(struct http_req *q, const void *p, size_t n)
{
    buf_add(&call_of(q)->reply, p, n);
    return true;
}
static void end_reply(struct http_req *q)
{
    struct jobcall *c = call_of(q);

    if (c->reply.failed) c->status = 503;
    end_call(c);
}
static void drop(struct http_req *q, const char *reason)
{
    (void)reason;
    call_of(q)->reply.failed = true;
}
static void drop_nomem(struct http_req *q) { call_of(q)->reply.failed = true; }

static const struct http_ops jobcall_ops = { .method = get_method,
                                             .method_name = get_method_name,
                                             .path = get_path,
                                             .query = get_query,
                                             .header = get_header,
                                             .body = get_body,
                                             .release_body = release_body,
                                             .count_body = count_body,
                                             .peer = get_peer,
                                             .start_ns = get_start_ns,
                                             .id = get_id,
                                             .was_held = is_false,
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
                                             .is_gone = is_false,
                                             .gone_reason = get_gone_reason,
                                             .status = get_status };

void jobcall_init(struct jobcall *c, const char *peer, const char *path, const char *id, char *body,
                  size_t n_body, void (*done)(struct jobcall *c))
{
    c->req.ops = &jobcall_ops;
    c->peer = peer;
    snprintf(c->path, sizeof c->path, "%s", path);
    snprintf(c->id, sizeof c->id, "%s", id);
    c->body = body;
    c->n_body = n_body;
    c->start_ns = clock_ns();
    c->done = done;
}

void jobcall_release(struct jobcall *c)
{
    mem_free(c->body);
    buf_release(&c->reply);
    c->body = NULL;
}

bool jobcall_is_temporary(const struct jobcall *c) { return c->status == 429 || c->status == 503; }
