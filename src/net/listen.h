/* listen.h - listening sockets on a loop: TCP by name or address, and a path. */
#ifndef TERN_NET_LISTEN_H
#define TERN_NET_LISTEN_H

#include "net/loop.h"

#include <sys/socket.h>

struct listener;

/* fd does not block and is the callee's now. */
typedef void listen_fn(void *arg, int fd, const struct sockaddr *from);

/* On every address the name has; port 0: any free one, the same for all. */
int listen_tcp(struct listener **out, struct loop *l, const char *host, int port, listen_fn *fn,
               void *arg, struct err *e);
/* Mode 0600. A socket that nobody listens on is replaced; one in use, or another file, is an error.
 */
int listen_unix(struct listener **out, struct loop *l, const char *path, listen_fn *fn, void *arg,
                struct err *e);
int listener_port(const struct listener *s);
void listener_close(struct listener *s); /* NULL is fine; removes its path */
#endif
