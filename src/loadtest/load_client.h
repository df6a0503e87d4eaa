/* load_client.h - an HTTP/1.1 client on one connection, one request at a time.
 *
 * The connection is reused while the server allows it. If the server closed it while idle, the
 * request is sent once more on a new one. All calls and callbacks run on the thread of the target's
 * event base. A failed allocation ends the request with LOAD_END_NOMEM. */
#ifndef TERN_LOADTEST_LOAD_CLIENT_H
#define TERN_LOADTEST_LOAD_CLIENT_H

#include "base/err.h"
#include "loadtest/load_http.h"

#include <event2/event.h>
#include <sys/socket.h>

/* The server under test, its address resolved once. Shared by all clients. */
struct load_target {
    struct event_base *base;
    struct sockaddr_storage addr;
    int addr_len;
    char host[300];   /* the Host header */
    char name[256];   /* the host without the port, for TLS */
    char prefix[256]; /* of every path, without /v1: "" or "/llm" */
    char auth[600];   /* "Authorization: Bearer ...\r\n" or "" */
    void *tls;        /* SSL_CTX *, or NULL: no TLS */
};

struct load_target_opt {
    const char *url;     /* "http://host[:port][/prefix][/v1]", "https://...", "unix:/path" */
    const char *key;     /* API key; NULL or "": none */
    const char *ca_file; /* PEM file of trusted certificates; NULL: those of the system */
    bool insecure;       /* any certificate is accepted */
};

/* E_INVALID: a URL, key or file that cannot be used. E_IO: the name of the host is not known. */
int load_target_open(struct load_target *t, const struct load_target_opt *o, struct err *e);
void load_target_release(struct load_target *t);

enum load_end {
    LOAD_END_REPLY,     /* a complete reply: see its status */
    LOAD_END_CONNECT,   /* no connection */
    LOAD_END_TRUNCATED, /* the connection closed within the reply, or before it */
    LOAD_END_BAD,       /* not HTTP: see load_http.why */
    LOAD_END_NOMEM,     /* no memory for the request on this side */
    LOAD_END_TIMEOUT    /* load_ask only: no complete reply in time */
};

struct load_calls {
    void (*sent)(void *arg);                   /* just before the bytes are written */
    void (*event)(void *arg, struct str data); /* an event of a stream; may abort the request */
    /* Once per request, unless it was aborted; the client may send the next one. May be called from
     * inside load_client_send. */
    void (*done)(void *arg, enum load_end end);
};

struct load_client;

/* NULL: no memory. */
struct load_client *load_client_open(struct load_target *t, const struct load_calls *calls,
                                     void *arg);
void load_client_close(struct load_client *c); /* NULL is fine; not from inside its callbacks */

/* body.p NULL: a GET. headers: lines that end with CRLF, or "". All of it is copied. */
void load_client_send(struct load_client *c, const char *path, const char *headers,
                      struct str body);
/* Ends the request in progress by closing the connection; `done` is not called. reset: with RST in
 * place of FIN. */
void load_client_abort(struct load_client *c, bool reset);
void load_client_disconnect(struct load_client *c); /* closes the connection of an idle client */
const struct load_http *load_client_reply(const struct load_client *c);
bool load_client_reused(
    const struct load_client *c); /* was the last request on an old connection? */

/* One request, waited for. */
struct load_ask {
    const char *path, *headers;                /* headers: lines that end with CRLF; NULL: none */
    struct str body;                           /* p NULL: a GET */
    double timeout_ms;                         /* 0: none */
    void (*event)(void *arg, struct str data); /* an event of a stream; NULL: streams are ignored */
    void *arg;
};

struct load_reply {
    enum load_end end;
    bool connected;  /* the request was sent */
    int status;      /* 0: no complete reply */
    struct buf body; /* of a reply that is not a stream; released by the caller */
    const char *why; /* LOAD_END_BAD: the reason; static text */
};

/* Sends the request on a connection of its own and runs the target's event base until it has ended.
 * E_NOMEM, or OK with the end in *out. */
int load_ask(struct load_target *t, const struct load_ask *a, struct load_reply *out,
             struct err *e);

/* Starts a timer; false: no memory. */
static inline bool load_arm(struct event *timer, double ms)
{
    int64_t us = ms > 0 ? (int64_t)(ms * 1000) : 0;
    struct timeval tv = { .tv_sec = us / 1000000, .tv_usec = us % 1000000 };
    return event_add(timer, &tv) == 0;
}
#endif
