/* conn_send.c - replies: the head, bodies and chunks, sent at once or queued.
 *
 * A plain socket with nothing queued is written to directly with sendmsg, so most replies are never
 * copied and need no memory beyond their head. Bytes that the socket does not accept are queued in
 * the bufferevent, and TLS always goes through it. Streamed replies are limited to
 * opt.max_unread_bytes in that queue; a whole reply is not, since its caller has bounded its size.
 *
 * When memory runs out there are three cases. Nothing of the reply was sent: the client gets the
 * 503 of send_nomem, composed on the stack. Some of it was sent or queued: the connection is
 * closed, since the client could not find the end of the reply. Neither can be sent: the connection
 * is closed. */
#include "net/conn.h"

#include <event2/buffer.h>
#include <stdio.h>
#include <sys/socket.h>

/* Bytes the socket took; 0 on an error, which the bufferevent then meets and reports. */
static size_t send_now(struct conn *c, const struct iovec *v, int n)
{
    struct iovec piece = v[0];
    struct msghdr m = { .msg_iov = (struct iovec *)v, .msg_iovlen = (size_t)n };
    ssize_t k;

    if (CONN_WRITE_BYTES) {
        if (piece.iov_len > (size_t)CONN_WRITE_BYTES) piece.iov_len = (size_t)CONN_WRITE_BYTES;
        m.msg_iov = &piece;
        m.msg_iovlen = 1;
    }
    k = sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    return k > 0 ? (size_t)k : 0;
}

/* `some_out` decides between the cases above: bytes that left, or are in the queue, cannot be taken
 * back. */
bool conn_send(struct conn *c, const struct iovec *v, int n)
{
    struct evbuffer *out = bufferevent_get_output(c->bev);
    bool was_empty = evbuffer_get_length(out) == 0, some_out;
    size_t sent = was_empty && !c->tls ? send_now(c, v, n) : 0;

    some_out = sent > 0;
    for (int i = 0; i < n; i++) {
        size_t skip = sent < v[i].iov_len ? sent : v[i].iov_len;
        sent -= skip;
        if (v[i].iov_len == skip) continue;
        if (evbuffer_add(out, (char *)v[i].iov_base + skip, v[i].iov_len - skip) != 0) goto nomem;
        some_out = true;
    }
    /* libevent starts writing by itself, but does not report when it finds no memory for that. */
    if (was_empty && evbuffer_get_length(out) > 0 && bufferevent_enable(c->bev, EV_WRITE) != 0)
        goto nomem;
    return true;
nomem:
    if (some_out) conn_drop_nomem(c); /* the client would wait for the rest */
    return false;
}

/* Sends a part of a streamed reply. A client that reads too slowly is disconnected: its queue would
 * grow without end. */
static void send_piece(struct conn *c, const struct iovec *v, int n)
{
    if (!conn_send(c, v, n)) conn_drop_nomem(c);
    if (!c->bev || conn_unsent(c) <= c->h->opt.max_unread_bytes) return;
    c->h->stats.cut_off++;
    conn_drop(c, "slow reader");
}

/* ---- the head of a reply ---- */

/* For people who read the head of a reply. Clients use the number only. */
static const char *reason_phrase(int status)
{
    static const struct {
        int status;
        const char *text;
    } all[] = {
        { 200, "OK" },
        { 202, "Accepted" },
        { 204, "No Content" },
        { 304, "Not Modified" },
        { 400, "Bad Request" },
        { 401, "Unauthorized" },
        { 403, "Forbidden" },
        { 404, "Not Found" },
        { 405, "Method Not Allowed" },
        { 408, "Request Timeout" },
        { 409, "Conflict" },
        { 411, "Length Required" },
        { 413, "Content Too Large" },
        { 414, "URI Too Long" },
        { 415, "Unsupported Media Type" },
        { 417, "Expectation Failed" },
        { 429, "Too Many Requests" },
        { 431, "Request Header Fields Too Large" },
        { 499, "Client Closed Request" },
        { 500, "Internal Server Error" },
        { 501, "Not Implemented" },
        { 503, "Service Unavailable" },
        { 504, "Gateway Timeout" },
        { 507, "Insufficient Storage" },
        { 505, "HTTP Version Not Supported" },
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].status == status) return all[i].text;
    return "Status";
}

/* The value of the Date header, formatted once a second. */
static const char *current_date(struct http *h)
{
    time_t now = time(NULL);
    struct tm tm;

    if (now != h->date_at) {
        gmtime_r(&now, &tm);
        strftime(h->date, sizeof h->date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
        h->date_at = now;
    }
    return h->date;
}

/* RFC 9110: replies to HEAD, and with 204 or 304, have no body whatever their headers say. */
static bool has_no_body(const struct conn *c, int status)
{
    return c->msg.method == HTTP_HEAD || status == 204 || status == 304;
}

/* Writes status line and headers into c->out. length < 0: a streamed reply. false: no memory. */
static bool format_head(struct conn *c, int status, const char *type, ptrdiff_t length)
{
    struct buf *b = &c->out;

    c->close_after = !c->msg.keep_alive || c->h->draining;
    c->chunked = length < 0 && c->msg.minor == 1;
    if (length < 0 && !c->chunked) c->close_after = true;
    buf_clear(b);
    buf_printf(b, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, reason_phrase(status),
               current_date(c->h));
    buf_printf(b, "X-Correlation-Id: %s\r\nx-request-id: %s\r\n", conn_id(c), conn_id(c));
    if (type && status != 204 && status != 304) buf_printf(b, "Content-Type: %s\r\n", type);
    if (c->chunked) buf_puts(b, "Transfer-Encoding: chunked\r\n");
    else if (length >= 0 && status != 204 && status != 304)
        buf_printf(b, "Content-Length: %td\r\n", length);
    if (c->close_after) buf_puts(b, "Connection: close\r\n");
    else if (c->msg.minor == 0) buf_puts(b, "Connection: keep-alive\r\n");
    buf_put_str(b, buf_str(&c->headers));
    buf_puts(b, "\r\n");
    return !b->failed && !c->headers.failed;
}

/* ---- the reply ---- */

/* CR and LF would let a value add headers of its own (response splitting). */
void conn_set_header(struct conn *c, const char *name, const char *value)
{
    size_t at;

    buf_printf(&c->headers, "%s: ", name);
    at = c->headers.n;
    buf_puts(&c->headers, value);
    for (; at < c->headers.n; at++)
        if (c->headers.p[at] == '\r' || c->headers.p[at] == '\n') c->headers.p[at] = ' ';
    buf_puts(&c->headers, "\r\n");
}

/* Head and body go out in one system call where the socket accepts them. */
int conn_reply(struct conn *c, int status, const char *type, const void *body, size_t n)
{
    if (c->bev) {
        struct iovec v[2];
        if (!format_head(c, status, type, (ptrdiff_t)n)) return conn_reply_nomem(c);
        v[0] = (struct iovec){ c->out.p, c->out.n };
        v[1] = (struct iovec){ (void *)body, n };
        if (!conn_send(c, v, n && !has_no_body(c, status) ? 2 : 1) && c->bev)
            return conn_reply_nomem(c);
    }
    c->status = status;
    conn_end_request(c);
    return status;
}

/* Composes the 503 on the stack. Headers that were set before are sent along if they are complete. */
static bool send_nomem(struct conn *c)
{
    const char *body = c->h->opt.nomem_body ? c->h->opt.nomem_body : "{}";
    struct str set = c->headers.failed ? STR("") : buf_str(&c->headers);
    const char *retry = str_find(set, STR("Retry-After:")) < 0 ? "Retry-After: 1\r\n" : "";
    char head[512];
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 503 %s\r\nDate: %s\r\nX-Correlation-Id: %s\r\nx-request-id: %s\r\n"
                     "Content-Type: application/json\r\nContent-Length: %zu\r\n%s"
                     "Connection: close\r\n",
                     reason_phrase(503), current_date(c->h), conn_id(c), conn_id(c), strlen(body),
                     retry);
    struct iovec v[] = { { head, (size_t)n },
                         { (void *)set.p, set.n },
                         { "\r\n", 2 },
                         { (void *)body, c->msg.method == HTTP_HEAD ? 0 : strlen(body) } };

    return conn_send(c, v, 4);
}

/* A streamed reply has no other way to say that it is incomplete than to end without its last
 * chunk. */
int conn_reply_nomem(struct conn *c)
{
    c->status = 503;
    c->close_after = true;
    if (c->bev && !c->begun && send_nomem(c)) c->h->stats.no_memory++;
    else conn_drop_nomem(c);
    conn_end_request(c);
    return 503;
}

bool conn_begin(struct conn *c, int status, const char *type)
{
    if (c->bev && !format_head(c, status, type, -1)) {
        c->chunked = false;
        return false;
    }
    c->status = status;
    if (!c->bev) return true; /* http_write reports that the client is gone */
    c->no_body = has_no_body(c, status);
    c->begun = true;
    send_piece(c, &(struct iovec){ c->out.p, c->out.n }, 1);
    return true;
}

/* One chunk per call: size, data and CR LF leave in one system call. */
bool conn_write(struct conn *c, const void *p, size_t n)
{
    char size[24];

    if (!c->bev) return false;
    if (n == 0 || c->no_body) return true;
    if (c->chunked) {
        struct iovec v[3] = { { size, (size_t)snprintf(size, sizeof size, "%zx\r\n", n) },
                              { (void *)p, n },
                              { "\r\n", 2 } };
        send_piece(c, v, 3);
    } else {
        send_piece(c, &(struct iovec){ (void *)p, n }, 1);
    }
    return c->bev != NULL;
}

/* The empty chunk tells the client that the reply is complete. */
void conn_end(struct conn *c)
{
    if (c->bev && c->chunked && !c->no_body) send_piece(c, &(struct iovec){ "0\r\n\r\n", 5 }, 1);
    conn_end_request(c);
}
