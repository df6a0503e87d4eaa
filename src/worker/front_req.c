/* front_req.c - a relayed request as struct http_req: the table of its operations.
 *
 * Replies go out as REPLY and DATA. What the link does not take now is queued, up to
 * opt.max_unread_bytes for a streamed reply. */
#include "worker/front_impl.h"

#include "base/mem.h"

#include <strings.h>

static struct front_req *req_of(struct http_req *q) { return (struct front_req *)q; }
static const struct front_req *req_of_const(const struct http_req *q)
{
    return (const struct front_req *)q;
}

/* ---- the request ---- */

static enum http_method get_method(const struct http_req *q)
{
    const char *m = req_of_const(q)->head.method;

    return strcmp(m, "POST") == 0     ? HTTP_POST
           : strcmp(m, "GET") == 0    ? HTTP_GET
           : strcmp(m, "DELETE") == 0 ? HTTP_DELETE
                                      : HTTP_OTHER;
}
static struct str get_method_name(const struct http_req *q)
{
    return str_c(req_of_const(q)->head.method);
}
static struct str get_path(const struct http_req *q) { return str_c(req_of_const(q)->head.path); }
static struct str get_query(const struct http_req *q) { return str_c(req_of_const(q)->head.query); }

static struct str get_header(const struct http_req *q, const char *name)
{
    const struct msg_request *h = &req_of_const(q)->head;

    for (int i = 0; i < h->n_headers; i++)
        if (strcasecmp(h->headers[i].name, name) == 0) return str_c(h->headers[i].value);
    return (struct str){ 0 };
}

static struct str get_body(const struct http_req *q) { return buf_str(&req_of_const(q)->body); }
static void release_body(struct http_req *q) { buf_release(&req_of(q)->body); }

/* Limits of tenants are the server's. */
static int count_body(struct http_req *q, uint32_t group, size_t max, struct err *e)
{
    (void)q, (void)group, (void)max, (void)e;
    return OK;
}

static const char *get_peer(const struct http_req *q) { return req_of_const(q)->head.peer; }
static uint64_t get_start_ns(const struct http_req *q) { return req_of_const(q)->start_ns; }
static const char *get_id(struct http_req *q) { return req_of(q)->head.id; }
static bool was_held(const struct http_req *q)
{
    (void)q;
    return false;
}
static bool is_gone(const struct http_req *q) { return req_of_const(q)->gone_reason[0] != 0; }
static const char *get_gone_reason(const struct http_req *q)
{
    return req_of_const(q)->gone_reason;
}
static int get_status(const struct http_req *q) { return req_of_const(q)->status; }
static size_t get_unsent(const struct http_req *q)
{
    return req_of_const(q)->out.n - req_of_const(q)->out_at;
}

static void set_on_gone(struct http_req *q, void (*fn)(void *arg), void *arg)
{
    req_of(q)->gone = fn;
    req_of(q)->gone_arg = arg;
}

/* No handler of a worker asks for it. */
static void set_on_sent(struct http_req *q, void (*fn)(void *arg), void *arg)
{
    (void)q, (void)fn, (void)arg;
}

/* ---- the reply ---- */

static void set_header(struct http_req *q, const char *name, const char *value)
{
    struct front_req *r = req_of(q);
    char *n = arena_cstr(&r->arena, str_c(name)), *v = arena_cstr(&r->arena, str_c(value));

    if (!n || !v || r->reply.n_headers >= MSG_HEADERS) return;
    r->reply.headers[r->reply.n_headers++] = (struct msg_pair){ n, v };
}

/* Nothing more can be sent to the client. */
static void give_up(struct front_req *r, const char *why)
{
    if (!r->gone_reason[0]) r->gone_reason = why;
    buf_clear(&r->out);
    r->out_at = 0;
}

static void drop(struct http_req *q, const char *reason) { give_up(req_of(q), reason); }
static void drop_nomem(struct http_req *q) { give_up(req_of(q), "out of memory"); }

/* The head of the reply. false: no memory, or the link is closed. */
static bool send_head(struct front_req *r, int status, const char *type, bool streamed, size_t n)
{
    struct buf b = { 0 };
    bool sent;

    r->status = status;
    r->reply.status = status;
    r->reply.type = type ? type : "";
    r->reply.streamed = streamed;
    r->reply.body_bytes = (int64_t)n;
    msg_write_reply(&b, &r->reply);
    sent = !b.failed && r->s && link_stream_send(r->s, FRAME_REPLY, buf_str(&b));
    buf_release(&b);
    return sent;
}

/* Sends what the link takes now and queues the rest. false: no memory for the rest. */
static bool send_bytes(struct front_req *r, const char *p, size_t n)
{
    size_t taken;

    front_flush(r);
    taken = r->s && r->out.n == 0 ? link_write(r->s, p, n, false) : 0;
    if (taken == n) return true;
    if (r->out_at > 0 && r->out_at == r->out.n) buf_clear(&r->out), r->out_at = 0;
    buf_add(&r->out, p + taken, n - taken);
    return !r->out.failed;
}

static void end_req(struct front_req *r)
{
    r->gone = NULL;
    r->answered = true;
    buf_release(&r->body);
    front_end_if_done(r);
}

/* The server composes the reply of a call that ends without one. */
static int reply_nomem(struct http_req *q)
{
    struct front_req *r = req_of(q);

    if (r->begun) give_up(r, "out of memory");
    r->status = 503;
    end_req(r);
    return 503;
}

static int reply(struct http_req *q, int status, const char *type, const void *body, size_t n)
{
    struct front_req *r = req_of(q);

    if (r->gone_reason[0]) {
        r->status = status;
    } else if (!send_head(r, status, type, false, n)) {
        return reply_nomem(q);
    } else if (n && !send_bytes(r, body, n)) {
        give_up(r, "out of memory");
    }
    end_req(r);
    return status;
}

static bool begin_reply(struct http_req *q, int status, const char *type)
{
    struct front_req *r = req_of(q);

    if (r->gone_reason[0]) {
        r->status = status;
        return true;
    }
    if (!send_head(r, status, type, true, 0)) return false;
    r->begun = true;
    return true;
}

static bool write_reply(struct http_req *q, const void *p, size_t n)
{
    struct front_req *r = req_of(q);

    if (r->gone_reason[0]) return false;
    if (n == 0) return true;
    if (!send_bytes(r, p, n)) give_up(r, "out of memory");
    else if (r->out.n - r->out_at > r->front->opt.max_unread_bytes) give_up(r, "slow reader");
    return !r->gone_reason[0];
}

static void end_reply(struct http_req *q) { end_req(req_of(q)); }

const struct http_ops front_ops = { .method = get_method,
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
