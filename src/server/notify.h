/* notify.h - tells the service manager (systemd) how the server is: the protocol of sd_notify(3), without
 * its library.
 *
 * Messages are datagrams to the socket that NOTIFY_SOCKET names. Without that variable nothing is
 * sent. READY is sent once: when loading has ended, so that units which wait for this one find models
 * that answer. While models load, the manager is asked for more time. */
#ifndef TERN_SERVER_NOTIFY_H
#define TERN_SERVER_NOTIFY_H

#include <stdbool.h>

struct server;

struct notify {
    bool on;          /* there is a manager */
    int fd;           /* its socket */
    bool watchdog;    /* the manager wants a sign of life (WATCHDOG_USEC) */
    bool ready, said; /* READY was sent; the state below was sent */
    char state[200];  /* the last STATUS */
};

void notify_open(struct notify *n);
/* Once a second and after every change: sends what is new, and signs of life. */
void notify_update(struct server *v);
void notify_stopping(struct server *v);
void notify_close(struct notify *n);
#endif
