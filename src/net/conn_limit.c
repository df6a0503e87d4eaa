/* conn_limit.c - the limit of connections: who gets a slot, who is closed for it, who is refused.
 *
 * A new connection gets one of max_conns slots. If all are taken, the connection that has been idle
 * the longest is closed for it; nothing is lost, since its client waits for no reply and finds out
 * when it sends the next request. If none is idle, the new connection is "over" the limit: it is
 * accepted only to read the head of its request, which is then answered 503, or served if opt.vital
 * says so (a health check) or a slot is free by then. Over the limit there are as many further
 * places as over_places says; a client that stays on one of them without having sent a whole head, or
 * after its reply, is closed for the next. When all of these places are taken, accepting pauses for
 * a moment, in which the loop reads what has come on them. So neither idle connections, nor silent or
 * slow ones, nor refused ones that do not leave keep a health check out.
 *
 * Half of the slots may hold connections that linger: those that had their last reply while their
 * client still sends. One more closes the oldest of them. So refused uploads do not close idle
 * connections of others.
 *
 * http.idle_first to idle_last are the connections between two requests, those that have waited
 * longest first. Invariants (http_check): a connection is in that list if and only if its socket is
 * open, it is READING and no byte of a request has come; n_over counts those over the limit. */
#include "net/conn.h"

#include "net/listen.h"

#include <sys/ioctl.h>

enum {
    LOOKS_MAX = 64, /* idle connections that are looked at for one that may be closed */
    PAUSE_MS = 2
};

/* An eighth of the limit, but some, and not many: each costs a descriptor. */
static int over_places(int max_conns)
{
    int n = max_conns / 8;
    return n < OVER_MIN ? OVER_MIN : n > OVER_MAX ? OVER_MAX : n;
}

/* Half of the limit: clients that wait in a refused upload send less than those that begin again. */
static int lingering_places(int max_conns) { return max_conns / 2 + 1; }

int http_descriptors(int max_conns) { return max_conns + over_places(max_conns); }

void conn_idle_enter(struct http_req *c)
{
    struct http *h = c->h;

    if (c->in_idle) return;
    c->in_idle = true;
    c->idle_prev = h->idle_last;
    c->idle_next = NULL;
    if (h->idle_last) h->idle_last->idle_next = c;
    else h->idle_first = c;
    h->idle_last = c;
}

void conn_idle_leave(struct http_req *c)
{
    struct http *h = c->h;

    if (!c->in_idle) return;
    c->in_idle = false;
    if (c->idle_prev) c->idle_prev->idle_next = c->idle_next;
    else h->idle_first = c->idle_next;
    if (c->idle_next) c->idle_next->idle_prev = c->idle_prev;
    else h->idle_last = c->idle_prev;
    c->idle_prev = c->idle_next = NULL;
}

void conn_set_over(struct http_req *c, bool over)
{
    if (c->over == over) return;
    c->over = over;
    c->h->n_over += over ? 1 : -1;
}

/* The client has sent a request that the loop has not come to yet. */
static bool has_unread(const struct http_req *c)
{
    int n = 0;
    return ioctl(c->fd, FIONREAD, &n) != 0 || n > 0;
}

/* The one that has waited longest for a request; NULL: none waits. */
static struct http_req *find_idle(struct http *h)
{
    int looks = 0;

    for (struct http_req *c = h->idle_first; c && looks < LOOKS_MAX; c = c->idle_next) {
        if (c->over) continue;
        looks++;
        if (conn_is_idle(c) && !has_unread(c)) return c;
    }
    return NULL;
}

/* The oldest that has had its last reply; NULL: there is none. */
static struct http_req *find_answered(struct http *h)
{
    struct http_req *found = NULL;

    for (struct http_req *c = h->conns; c; c = c->next) /* the newest first */
        if (c->bev && !c->over && c->state == CONN_LINGERING) found = c;
    return found;
}

void conn_count_lingering(struct http_req *c)
{
    struct http_req *oldest = NULL;

    if (++c->h->n_lingering <= lingering_places(c->h->opt.max_conns)) return;
    for (struct http_req *o = c->h->conns; o; o = o->next)
        if (o != c && o->bev && o->state == CONN_LINGERING) oldest = o;
    conn_drop(oldest, "closed");
}

bool conn_close_idle(struct http *h)
{
    struct http_req *c = find_idle(h);

    if (!c) c = find_answered(h);
    if (!c) return false;
    h->stats.closed_idle++;
    conn_drop(c, "closed");
    return true;
}

/* Closes the oldest connection over the limit that has sent no whole head, or has had its reply. */
static bool close_over(struct http *h)
{
    struct http_req *found = NULL;

    for (struct http_req *c = h->conns; c; c = c->next)
        if (c->over && c->state != CONN_HANDLING && (c->state != CONN_READING || !has_unread(c)))
            found = c;
    if (found) conn_drop(found, "closed");
    return found != NULL;
}

/* A slot below max_conns, free or made free. */
static bool find_slot(struct http *h)
{
    return h->stats.conns - h->n_over < h->opt.max_conns || conn_close_idle(h);
}

bool conn_find_place(struct http *h, bool *over)
{
    int most = over_places(h->opt.max_conns);

    *over = !find_slot(h);
    if (!*over) return true;
    if (h->n_over >= most && !close_over(h)) return false;
    if (h->n_over + 1 < most) return true;
    if (h->tcp) listener_pause(h->tcp, PAUSE_MS);
    if (h->local) listener_pause(h->local, PAUSE_MS);
    return true;
}

bool conn_is_refused(struct http_req *c)
{
    struct http *h = c->h;

    if (!c->over) return false;
    if (find_slot(h)) {
        conn_set_over(c, false);
        return false;
    }
    c->msg.keep_alive = false;
    if (c->msg.state != HTTPMSG_DONE || c->msg.body.n || !h->opt.vital) return true;
    return !h->opt.vital(h->opt.arg, c);
}

const char *conn_limit_check(const struct http *h)
{
    const struct http_req *prev = NULL;
    int n_over = 0, n_idle = 0, n_lingering = 0;

    for (const struct http_req *c = h->conns; c; c = c->next) {
        bool waits = c->bev && c->state == CONN_READING && !httpmsg_begun(&c->msg);
        if (waits != c->in_idle) return "the list of idle connections is not those that wait";
        if (c->over && !c->bev) return "a connection without a socket counts as over the limit";
        n_over += c->over;
        n_idle += c->in_idle;
        n_lingering += c->bev && c->state == CONN_LINGERING;
    }
    for (const struct http_req *c = h->idle_first; c; prev = c, c = c->idle_next, n_idle--)
        if (!c->in_idle || c->idle_prev != prev) return "the list of idle connections is broken";
    if (n_idle != 0 || h->idle_last != prev) return "the list of idle connections is incomplete";
    if (n_lingering != h->n_lingering) return "n_lingering is not the number of those that linger";
    if (n_lingering > lingering_places(h->opt.max_conns)) return "too many connections linger";
    if (n_over != h->n_over) return "n_over is not the number of connections over the limit";
    if (n_over > over_places(h->opt.max_conns)) return "too many connections over the limit";
    if (h->stats.conns - n_over > h->opt.max_conns) return "more connections than the limit";
    return NULL;
}
