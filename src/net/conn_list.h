/* conn_list.h - lists of connections in the order in which they were added. A connection is in at
 * most one of them. The lists own nothing. */
#ifndef TERN_NET_CONN_LIST_H
#define TERN_NET_CONN_LIST_H

struct conn;

struct conn_list {
    struct conn *first, *last; /* the oldest first */
    int n;
};

void conn_list_add(struct conn_list *l, struct conn *c);
void conn_list_remove(struct conn *c); /* from the list it is in, if any */
/* NULL: all links agree, and each member says that it is in l. */
const char *conn_list_check(const struct conn_list *l);
#endif
