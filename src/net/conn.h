/* conn.h - one connection: a request at a time, read, handled, answered. Seen by net/ only.
 *
 * A connection outlives its client while a handler still holds its request: it is then `gone`, its
 * socket closed, and goes when the request ends. */
#ifndef TERN_NET_CONN_H
#define TERN_NET_CONN_H

#include "net/http.h"
#include "net/httpmsg.h"
#include "net/listen.h"

#include <event2/bufferevent.h>
#include <event2/event.h>
#include <openssl/ssl.h>

enum conn_state {
    CONN_READING,  /* between requests, or in one that is not whole */
    CONN_HANDLING, /* a handler has it */
    CONN_CLOSING,  /* the last bytes go out */
    CONN_LINGERING /* what the client still sends is thrown away for a moment */
};

struct http_req { /* a connection is its request */
    struct http *h;
    struct http_req *prev, *next;
    enum conn_state state;
    struct bufferevent *bev; /* NULL: gone */
    int fd;
    bool tls;
    struct httpmsg msg;
    size_t body_bytes; /* of it, as counted in http.bodies_bytes */
    char peer[80];
    uint64_t start_ns;
    int n_requests;

    struct event *timer;     /* of the phase it is in; of the next look at a full connection */
    struct event *closed;    /* EV_CLOSED while a handler has it */
    struct event *soon;      /* work for the next turn of the loop */
    bool tell_gone, read_on; /* that work */
    bool ended;              /* the client sends no more; what came before is still answered */

    /* of the request: */
    void (*gone)(void *arg);
    void *gone_arg;
    const char *why_gone; /* "" while the client is there */
    struct buf headers;   /* set by the handler */
    struct buf out;       /* heads and chunk frames are written here */
    int status;
    bool chunked, no_body, close_after;
    size_t n_lingered;
};

struct http {
    struct event_base *base;
    struct http_opt opt;
    struct listener *tcp, *local;
    int port;
    SSL_CTX *tls;
    struct http_req *conns;
    size_t bodies_bytes;
    struct http_stats stats;
    bool draining;
    time_t date_at;
    char date[40];
};

void conn_open(struct http *h, int fd, const char *peer, bool tls);
void conn_cut(struct http_req *c, const char *why); /* the socket goes; a handler is told soon */
bool conn_is_idle(const struct http_req *c);        /* between requests, all replies taken */
void conn_detach(
    struct http_req *c); /* out of its http: cut, told at once, gone when its request ends */

/* tls.c */
int tls_open(SSL_CTX **out, const char *cert, const char *key, struct err *e);
#endif
