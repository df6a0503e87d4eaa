/* conn_check.c - verifies the invariants of connections that conn.h lists.
 *
 * Nothing here changes a connection. Tests call http_check between events; builds with -DTERN_HARD
 * call it after every event. A function returns NULL, or the violated invariant as a literal. */
#include "net/conn.h"

#include "base/log.h"

#include <assert.h>
#include <event2/buffer.h>
#include <stdlib.h>

/* ev may be NULL. */
static bool is_pending(const struct event *ev)
{
    return ev && event_pending(ev, EV_TIMEOUT | EV_CLOSED, NULL) != 0;
}

/* The socket is closed. Only the handler, or `soon`, still refers to the connection. */
static const char *check_gone(const struct conn *c)
{
    if (c->closed) return "a connection without a socket watches it";
    if (is_pending(c->timer)) return "a connection without a socket has a timer running";
    if (c->gone_reason[0] == 0) return "a connection was closed without a reason";
    if (c->state != CONN_HANDLING && !c->gone_pending)
        return "a connection without a socket and a request is never freed";
    return NULL;
}

/* Between requests, or inside one that is incomplete. */
static const char *check_reading(const struct conn *c)
{
    if (!is_pending(c->timer)) return "reading without a time limit";
    if (c->closed || c->gone) return "a gone callback between requests";
    if (c->begun || c->chunked || c->no_body || c->status)
        return "a reply is in progress between requests";
    if (c->msg.state == HTTPMSG_DONE || c->msg.state == HTTPMSG_BAD)
        return "a parsed request is not handled";
    return NULL;
}

/* The handler owns the request; the connection only watches for the client's close. */
static const char *check_handling(const struct conn *c)
{
    if (c->msg.state != HTTPMSG_DONE) return "a request is handled before it is complete";
    if (!is_pending(c->closed) && !is_pending(c->timer))
        return "a close of the client would not be noticed";
    if (c->begun && !c->status) return "a streamed reply has no status";
    return NULL;
}

/* CLOSING and LINGERING: no request is left, and the end is bounded by a timeout. */
static const char *check_closing(const struct conn *c)
{
    if (c->closed || c->gone) return "a gone callback after the last reply";
    if (c->body_bytes || httpmsg_begun(&c->msg)) return "a request is kept after the last reply";
    if (c->state == CONN_CLOSING) return conn_unsent(c) ? NULL : "closing with nothing to send";
    if (conn_unsent(c)) return "lingering before everything was sent";
    if (c->n_lingered > LINGER_BYTES) return "lingering without end";
    return is_pending(c->timer) ? NULL : "lingering without a time limit";
}

const char *conn_check(const struct conn *c)
{
    if (!c->h) return NULL; /* detached: it only waits for its handler */
    if (!c->bev) return check_gone(c);
    if (c->gone_reason[0]) return "an open connection has a reason for being closed";
    if (c->gone_pending) return "an open connection is reported as closed";
    if (c->state != CONN_CLOSING && c->state != CONN_LINGERING && c->body_bytes != c->msg.body.n &&
        !(c->admitted && c->msg.state == HTTPMSG_BODY && c->body_bytes == c->msg.length))
        return "body_bytes is not the length of the body";
    switch (c->state) {
    case CONN_READING: return check_reading(c);
    case CONN_HANDLING: return check_handling(c);
    default: return check_closing(c);
    }
}

/* The list of connections, and the counters that are kept beside it. */
const char *http_check(const struct http *h)
{
    const struct conn *prev = NULL;
    size_t bodies = 0, grouped = 0;
    int open = 0;

    for (const struct conn *c = h->conns; c; prev = c, c = c->next) {
        const char *violated = conn_check(c);
        if (violated) return violated;
        if (c->h != h || c->prev != prev) return "the list of connections is broken";
        bodies += c->body_bytes;
        grouped += c->in_group ? c->body_bytes : 0;
        open += c->bev != NULL;
    }
    if (open != h->stats.conns) return "stats.conns is not the number of open connections";
    if (bodies != h->bodies_bytes) return "bodies_bytes is not the sum over connections";
    for (size_t i = 0; i < h->n_groups; i++) grouped -= h->groups[i];
    if (grouped != 0) return "the bytes of groups are not the sum over connections";
    return conn_limit_check(h);
}

#ifdef TERN_HARD
void conn_verify(const struct http *h)
{
    const char *violated = h ? http_check(h) : NULL;

    if (violated) log_error("net: %s", violated);
    assert(!violated);
}
#endif
