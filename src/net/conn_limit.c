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
 * A quarter of the slots may have connections that linger: those that had their last reply while
 * their client still sends. Another quarter may have those whose body is held. One more closes the
 * oldest of them. So refused uploads do not close idle connections of others.
 *
 * Invariants (http_check): a connection is in http.idle if and only if its socket is open, it is
 * READING and no byte of a request has come; in http.lingering if and only if its socket is open and
 * it is LINGERING; n_over counts those over the limit. */
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

/* Places of lingering connections, and of those whose body is held. */
static int waiting_places(int max_conns) { return max_conns / 4 + 1; }

int http_descriptors(int max_conns) { return max_conns + over_places(max_conns); }

void conn_idle_enter(struct conn *c)
{
    if (!c->list) conn_list_add(&c->h->idle, c);
}

void conn_idle_leave(struct conn *c)
{
    if (c->list == &c->h->idle) conn_list_remove(c);
}

void conn_set_over(struct conn *c, bool over)
{
    if (c->over == over) return;
    c->over = over;
    c->h->n_over += over ? 1 : -1;
}

/* The client has sent a request that the loop has not come to yet. */
static bool has_unread(const struct conn *c)
{
    int n = 0;
    return ioctl(c->fd, FIONREAD, &n) != 0 || n > 0;
}

/* The one that has waited longest for a request; NULL: none waits. */
static struct conn *find_idle(struct http *h)
{
    int looks = 0;

    for (struct conn *c = h->idle.first; c && looks < LOOKS_MAX; c = c->list_next) {
        if (c->over) continue;
        looks++;
        if (conn_is_idle(c) && !has_unread(c)) return c;
    }
    return NULL;
}

/* The oldest that is not over the limit; NULL: there is none. */
static struct conn *find_oldest(const struct conn_list *l)
{
    struct conn *c = l->first;

    while (c && c->over) c = c->list_next;
    return c;
}

static void enter_waiting(struct conn_list *l, struct conn *c)
{
    if (l->n >= waiting_places(c->h->opt.max_conns)) conn_drop(l->first, "closed");
    conn_list_add(l, c);
}

void conn_linger_enter(struct conn *c) { enter_waiting(&c->h->lingering, c); }
void conn_hold_enter(struct conn *c) { enter_waiting(&c->h->held, c); }

bool conn_close_idle(struct http *h)
{
    struct conn *c = find_idle(h);

    if (!c) c = find_oldest(&h->lingering);
    if (!c) c = find_oldest(&h->held);
    if (!c) return false;
    h->stats.closed_idle++;
    conn_drop(c, "closed");
    return true;
}

/* Closes the oldest connection over the limit that has sent no whole head, or has had its reply: if all
 * have bytes that the loop has not read yet, the oldest of these, which had the most time. */
static bool close_over(struct http *h)
{
    struct conn *found = NULL, *unread = NULL;

    for (struct conn *c = h->conns; c; c = c->next) {
        if (!c->over || c->state == CONN_HANDLING) continue;
        if (c->state == CONN_READING && has_unread(c)) unread = c;
        else found = c;
    }
    if (!found) found = unread;
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

bool conn_is_refused(struct conn *c)
{
    struct http *h = c->h;

    if (!c->over) return false;
    if (find_slot(h)) {
        conn_set_over(c, false);
        return false;
    }
    c->msg.keep_alive = false;
    if (c->msg.state != HTTPMSG_DONE || c->msg.body.n || !h->opt.vital) return true;
    return !h->opt.vital(h->opt.arg, &c->req);
}

/* The list that a connection is in agrees with its state. NULL: it does. */
static const char *check_lists(const struct http *h, const struct conn *c)
{
    bool reads = c->bev && c->state == CONN_READING, begun = httpmsg_begun(&c->msg);

    if ((reads && !begun) != (c->list == &h->idle))
        return "the list of idle connections is not those that wait";
    if ((c->bev && c->state == CONN_LINGERING) != (c->list == &h->lingering))
        return "the list of lingering connections is not those that linger";
    if (c->list == &h->held && !(reads && begun)) return "a held connection reads no body";
    if (c->over && !c->bev) return "a connection without a socket counts as over the limit";
    return NULL;
}

const char *conn_limit_check(const struct http *h)
{
    const struct conn_list *const lists[] = { &h->idle, &h->held, &h->lingering };
    const char *violated = NULL;
    int n_over = 0, n_listed = 0, max = h->opt.max_conns;

    for (const struct conn *c = h->conns; c && !violated; c = c->next) {
        violated = check_lists(h, c);
        n_over += c->over;
        n_listed += c->list != NULL;
    }
    for (int i = 0; i < 3 && !violated; i++) violated = conn_list_check(lists[i]);
    if (violated) return violated;
    if (n_listed != h->idle.n + h->held.n + h->lingering.n) return "a closed connection is listed";
    if (h->lingering.n > waiting_places(max)) return "too many connections linger";
    if (h->held.n > waiting_places(max)) return "too many connections are held";
    if (n_over != h->n_over) return "n_over is not the number of connections over the limit";
    if (n_over > over_places(max)) return "too many connections over the limit";
    if (h->stats.conns - n_over > max) return "more connections than the limit";
    return NULL;
}
