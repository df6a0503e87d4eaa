/* load_client.h - a client of the server under load: one HTTP/1.1 connection, a request at a time.
 *
 * The connection is kept between requests while the server agrees, and made anew when it went away
 * in between. All of it runs on one event base. */
#ifndef TERN_LOADTEST_LOAD_CLIENT_H
#define TERN_LOADTEST_LOAD_CLIENT_H

#include "base/err.h"
#include "loadtest/load_http.h"

#include <event2/event.h>
#include <sys/socket.h>

/* Where the server is. */
struct load_target {
    struct event_base *base;
    struct sockaddr_storage addr;
    int addr_len;
    char host[300];   /* as the Host header says it */
    char name[256];   /* without the port: for TLS */
    char prefix[256]; /* of every path, without the /v1: "" or "/llm" */
    char auth[600];   /* "Authorization: Bearer ...\r\n" or "" */
    void *tls;        /* SSL_CTX *, or NULL: plain */
};

/* "http://host[:port][/prefix][/v1]", "https://...", "unix:/path". insecure: any certificate will
 * do. */
int load_target_open(struct load_target *t, const char *url, const char *key, bool insecure,
                     struct err *e);
void load_target_release(struct load_target *t);

enum load_end {
    END_REPLY,   /* a whole reply: look at its status */
    END_CONNECT, /* no connection */
    END_CUT,     /* closed in the middle of the reply, or before it */
    END_BAD      /* not HTTP */
};

struct load_calls {
    void (*sent)(void *arg);                    /* called just before the bytes are written */
    void (*event)(void *arg, struct str data);  /* of a stream; may call load_client_leave */
    void (*done)(void *arg, enum load_end end); /* once; the client is free for the next one */
};

struct load_client;

struct load_client *load_client_open(struct load_target *t, const struct load_calls *calls,
                                     void *arg);
void load_client_close(struct load_client *c); /* NULL is fine; not inside a call of its own */

/* body NULL: a GET. headers: more lines, each with its CRLF, or "". What is handed over is copied.
 */
void load_client_send(struct load_client *c, const char *path, const char *headers,
                      struct str body);
/* Gives the request under way up and closes; `done` is not called. reset: RST in place of FIN. */
void load_client_leave(struct load_client *c, bool reset);
void load_client_forget(struct load_client *c); /* closes the kept connection of an idle client */
const struct load_http *load_client_reply(const struct load_client *c);
bool load_client_kept(const struct load_client *c); /* the request went out on a kept connection */

static inline void load_arm(struct event *timer, double ms)
{
    int64_t us = ms > 0 ? (int64_t)(ms * 1000) : 0;
    struct timeval tv = { .tv_sec = us / 1000000, .tv_usec = us % 1000000 };
    event_add(timer, &tv);
}
#endif
