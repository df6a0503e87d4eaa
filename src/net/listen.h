/* listen.h - listening sockets on a loop: TCP by host name or address, and Unix sockets. */
#ifndef TERN_NET_LISTEN_H
#define TERN_NET_LISTEN_H

#include "net/loop.h"

#include <sys/socket.h>

struct listener;

/* Called for each accepted connection. fd is non-blocking and owned by the callee. */
typedef void listen_fn(void *arg, int fd, const struct sockaddr *from);

/* Listens on every address the host name resolves to. port 0: any free one, the same for all. */
int listen_tcp(struct listener **out, struct loop *l, const char *host, int port, listen_fn *fn,
               void *arg, struct err *e);
/* The socket has mode 0600. A stale socket at the path is replaced; one that a server listens on,
 * or a file of another kind, is an error. */
int listen_unix(struct listener **out, struct loop *l, const char *path, listen_fn *fn, void *arg,
                struct err *e);
int listener_port(const struct listener *s);
/* Accepts nothing for so long; connections wait in the kernel's queue. */
void listener_pause(struct listener *s, int ms);
/* fn(arg) is called when there is no descriptor for a connection; it may close one. */
void listener_on_starved(struct listener *s, void (*fn)(void *arg));
void listener_close(struct listener *s); /* NULL is allowed; removes the socket's path */
#endif
