/* conn.h - one HTTP connection and the request it currently carries. Private to src/net.
 *
 * A connection carries one request at a time, so struct conn is both. Its states:
 *
 *     READING ──request complete──► HANDLING ──reply sent──► READING (keep-alive)
 *        │                              └──last reply──► CLOSING ──all sent──► LINGERING ──► freed
 *        └──bad request, refused with an error──────────────┘
 *
 * The socket can close in any state; bev is then NULL ("gone"). A gone connection in HANDLING stays
 * allocated until its handler ends the request; in every other state it is freed by the `soon`
 * event (not at once: the caller may be one of its own callbacks).
 *
 * Invariants, verified by conn_check:
 *   - bev NULL: no timer runs and `closed` is NULL; unless the state is HANDLING, `soon` is
 *     pending.
 *   - READING: the timer runs (header, body or idle limit); no gone callback, no reply in progress.
 *   - HANDLING: the message is complete; EV_CLOSED is watched, or the timer polls for the close.
 *   - CLOSING: bytes are unsent (the write timeout of the bufferevent limits it).
 *   - LINGERING: nothing is unsent, the timer runs, at most LINGER_BYTES were discarded.
 *   - a streamed body is not held, and not counted.
 *   - body_bytes is the length of the body held, or that which a large one will have, and
 *     http.bodies_bytes is the sum over connections, as are the bytes of each group;
 *     http.stats.conns is the number of connections with a socket.
 *
 * With -DTERN_HARD every socket is read one byte at a time and written in pieces of a few bytes,
 * and all invariants are verified after every event. */
#ifndef TERN_NET_CONN_H
#define TERN_NET_CONN_H

#include "net/conn_list.h"
#include "net/httpmsg.h"
#include "net/httpreq.h"

#include <event2/bufferevent.h>
#include <event2/event.h>
#include <openssl/ssl.h>
#include <sys/uio.h>
#include <time.h>

#ifdef TERN_HARD
enum { CONN_READ_BYTES = 1, CONN_WRITE_BYTES = 7 };
#else
enum { CONN_READ_BYTES = 0, CONN_WRITE_BYTES = 0 }; /* 0: no limit */
#endif

enum {
    ID_BYTES = 64,            /* longest correlation id */
    LINGER_BYTES = 128 << 20, /* of a refused upload, read and discarded before the close */
    LINGER_READERS = 8,       /* lingering connections that are read at a time, the oldest ones */
    HOLD_MS = 1000,           /* how long a body is held that admit would refuse */
    OVER_MIN = 4,             /* least and most connections over max_conns: see conn_limit.c */
    OVER_MAX = 64,
    OVER_MS = 1000 /* time in which one over the limit must have sent its request */
};

enum conn_state {
    CONN_READING,  /* between requests, or inside one that is incomplete */
    CONN_HANDLING, /* the handler owns the request */
    CONN_CLOSING,  /* the last reply is being sent */
    CONN_LINGERING /* sent all and shut down for writing; input is discarded until the client closes */
};

struct listener;

struct conn {
    struct http_req req;      /* what handlers see of it; first */
    struct http *h;           /* NULL after conn_detach */
    struct conn *prev, *next; /* in http.conns */
    struct conn_list *list;   /* http.idle, http.held or http.lingering; NULL: none of them */
    struct conn *list_prev, *list_next;
    bool over; /* over the limit of connections: accepted to be refused */
    enum conn_state state;
    struct bufferevent *bev; /* owns fd; NULL: the socket is closed */
    int fd;
    bool tls;
    struct httpmsg msg;
    size_t body_bytes;      /* of msg.body, as counted in http.bodies_bytes */
    bool admitted;          /* opt.admit was asked about the body */
    bool continued;         /* 100 Continue was sent */
    bool was_held;          /* admit has held the body once: the next answer is final */
    bool paced;             /* reads at the rate of large bodies: conn_pace.c */
    struct http_sink *sink; /* of a streamed body */
    bool in_group;          /* the body is counted for `group`, too */
    uint32_t group;
    size_t group_max;
    char peer[80];
    uint64_t start_ns; /* first byte of the request */
    int n_requests;    /* handled on this connection so far */

    struct event *timer;  /* time limit of the state, or of the next poll for a close */
    struct event *closed; /* EV_CLOSED while HANDLING; NULL: the timer polls instead */
    struct event *soon;   /* runs what is scheduled for the next turn of the loop: */
    bool gone_pending;    /*   call the gone callback, or free the connection */
    bool read_pending;    /*   read the next request from the input */
    bool peer_ended;      /* the client sends no more; requests read before are still answered */

    /* of the request: */
    char id[ID_BYTES + 1];   /* http_id; "": not chosen yet */
    void (*gone)(void *arg); /* http_on_gone */
    void *gone_arg;
    void (*sent)(void *arg); /* http_on_sent */
    void *sent_arg;
    const char *gone_reason; /* "" while the socket is open */
    struct buf headers;      /* lines set by the handler, each with CR LF */
    struct buf out;          /* scratch: the head of the reply */
    int status;
    bool begun; /* http_begin sent the head of a streamed reply */
    bool chunked, no_body, close_after;
    size_t n_lingered; /* bytes discarded while LINGERING */
};

struct http {
    struct event_base *base;
    struct http_opt opt; /* defaults filled in */
    struct listener *tcp, *local;
    int port;
    SSL_CTX *tls;
    struct conn *conns;
    struct conn_list idle; /* READING, and no byte of a request has come */
    struct conn_list held; /* READING, and admit holds the body: nothing is read until the timer */
    struct conn_list lingering; /* LINGERING */
    int n_over;
    size_t bodies_bytes; /* request bodies held by all connections */
    size_t *groups;      /* [n_groups] the same by group */
    size_t n_groups;
    struct http_stats stats;
    struct ev_token_bucket_cfg *pace_cfg;
    struct bufferevent_rate_limit_group *pace; /* conn_pace.c */
    bool draining;
    time_t date_at; /* second that `date` was formatted for */
    char date[40];
};

/* ---- conn.c: life and input ---- */
/* Takes over fd. Without memory fd is closed and counted. */
void conn_open(struct http *h, int fd, const char *peer, bool tls);
/* Closes the socket now. The gone callback runs, or the connection is freed, in the next turn of
 * the loop. reason: a literal. */
void conn_drop(struct conn *c, const char *reason);
void conn_drop_nomem(struct conn *c); /* the same for want of memory; counts it */
/* Removes c from its http: closes the socket and calls the gone callback at once. It is freed when
 * its request ends, or here if it has none. */
void conn_detach(struct conn *c);
bool conn_is_idle(const struct conn *c);  /* between requests, all replies taken */
void conn_end_request(struct conn *c);    /* the reply is complete: next request, or close */
size_t conn_unsent(const struct conn *c); /* bytes of replies that the socket has not accepted */
void conn_schedule(struct conn *c);       /* `soon` runs in the next turn of the loop */
void conn_drop_sink(struct conn *c);      /* closes the sink that nobody took; NULL is fine */
/* Counts n bytes as the body this connection holds, against max_bodies_bytes. */
void conn_count_body(struct conn *c, size_t n);
const char *conn_check(const struct conn *c); /* conn_check.c; NULL: the invariants hold */

#ifdef TERN_HARD
void conn_verify(const struct http *h); /* stops the program if an invariant is violated */
#else
static inline void conn_verify(const struct http *h) { (void)h; }
#endif

/* ---- conn_send.c: output ---- */
/* Sends now what the socket takes and queues the rest. false: no memory to queue it, and the
 * connection was dropped if part of it was sent. c->bev must be there. */
bool conn_send(struct conn *c, const struct iovec *v, int n);
/* The functions of http.h with these names. */
void conn_set_header(struct conn *c, const char *name, const char *value);
int conn_reply(struct conn *c, int status, const char *type, const void *body, size_t n);
int conn_reply_nomem(struct conn *c);
bool conn_begin(struct conn *c, int status, const char *type);
bool conn_write(struct conn *c, const void *p, size_t n);
void conn_end(struct conn *c);

/* ---- conn_pace.c: the rate of large bodies ---- */
int pace_open(struct http *h, struct err *e);
void pace_close(struct http *h);
void conn_pace(struct conn *c);   /* reads what follows at that rate, with the other paced ones */
void conn_unpace(struct conn *c); /* may be repeated */

/* ---- conn_limit.c: the limit of connections ---- */
void conn_idle_enter(struct conn *c); /* c waits for the first byte of a request */
void conn_idle_leave(struct conn *c); /* it does no more */
void conn_set_over(struct conn *c, bool over);
void conn_linger_enter(struct conn *c); /* c lingers now: closes the oldest of too many */
void conn_hold_enter(struct conn *c);   /* its body is held: closes the oldest of too many */
/* Closes the connection that has been idle the longest, or one that has had its last reply. false:
 * there is none. */
bool conn_close_idle(struct http *h);
/* A place for a new connection. over: there is one only over the limit. false: not even that. */
bool conn_find_place(struct http *h, bool *over);
/* The head of a request was read: it must be refused, since its connection is over the limit. */
bool conn_is_refused(struct conn *c);
const char *conn_limit_check(const struct http *h); /* part of http_check */

/* ---- conn_id.c ---- */
const char *conn_id(struct conn *c); /* http_id */

/* ---- conn_req.c: a connection as struct http_req ---- */
extern const struct http_ops conn_ops;

/* ---- tls.c ---- */
int tls_open(SSL_CTX **out, const char *cert, const char *key, struct err *e);
#endif
