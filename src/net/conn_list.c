#include "net/conn.h"

void conn_list_add(struct conn_list *l, struct conn *c)
{
    c->list = l;
    c->list_prev = l->last;
    c->list_next = NULL;
    if (l->last) l->last->list_next = c;
    else l->first = c;
    l->last = c;
    l->n++;
}

void conn_list_remove(struct conn *c)
{
    struct conn_list *l = c->list;

    if (!l) return;
    if (c->list_prev) c->list_prev->list_next = c->list_next;
    else l->first = c->list_next;
    if (c->list_next) c->list_next->list_prev = c->list_prev;
    else l->last = c->list_prev;
    c->list_prev = c->list_next = NULL;
    c->list = NULL;
    l->n--;
}

const char *conn_list_check(const struct conn_list *l)
{
    const struct conn *prev = NULL;
    int n = 0;

    for (const struct conn *c = l->first; c; prev = c, c = c->list_next, n++)
        if (c->list != l || c->list_prev != prev) return "a list of connections is broken";
    return n == l->n && l->last == prev ? NULL : "a list of connections is incomplete";
}
