/* http.c - the server: its options, listeners and the list of its connections.
 *
 * Connections belong to the list until they are freed or detached. Everything runs on the loop's
 * thread. */
#include "net/conn.h"

#include "base/mem.h"
#include "net/listen.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>

static void set_defaults(struct http_opt *o)
{
    if (!o->max_body_bytes) o->max_body_bytes = 16 << 20;
    if (!o->max_bodies_bytes) o->max_bodies_bytes = 256 << 20;
    if (!o->max_header_bytes) o->max_header_bytes = 64 << 10;
    if (!o->max_unread_bytes) o->max_unread_bytes = 1 << 20;
    if (!o->max_conns) o->max_conns = 1024;
    if (!o->header_ms) o->header_ms = 10000;
    if (!o->body_ms) o->body_ms = 60000;
    if (!o->idle_ms) o->idle_ms = 60000;
    if (!o->write_ms) o->write_ms = 30000;
}

/* The peer is formatted once, for the log. IPv6 addresses have brackets, as in a URL. */
static void accept_tcp(void *arg, int fd, const struct sockaddr *from)
{
    struct http *h = arg;
    char host[64] = "", peer[80];

    if (from->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const void *)from;
        inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof host);
        snprintf(peer, sizeof peer, "[%s]:%d", host, ntohs(in->sin6_port));
    } else {
        const struct sockaddr_in *in = (const void *)from;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        snprintf(peer, sizeof peer, "%s:%d", host, ntohs(in->sin_port));
    }
    conn_open(h, fd, peer, h->tls != NULL);
}

/* Unix sockets: no address, and no TLS. */
static void accept_local(void *arg, int fd, const struct sockaddr *from)
{
    (void)from;
    conn_open(arg, fd, "unix", false);
}

/* The process has no descriptor left for a connection: one that is idle gives its own. */
static void on_starved(void *arg)
{
    struct http *h = arg;

    conn_close_idle(h);
    conn_verify(h);
}

/* libevent and OpenSSL write without MSG_NOSIGNAL: a write to a closed connection would end the
 * process by SIGPIPE. A handler that the program installed itself is left alone. */
static void ignore_sigpipe(void)
{
    struct sigaction sa;

    if (sigaction(SIGPIPE, NULL, &sa) == 0 && sa.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
}

/* Both listeners are open, or neither. */
int http_open(struct http **out, struct loop *l, const struct http_opt *opt, struct err *e)
{
    struct http *h = mem_new(struct http);
    int rc = OK;

    if (!h) return err_nomem(e, "the HTTP server");
    h->base = loop_base(l);
    h->opt = *opt;
    set_defaults(&h->opt);
    ignore_sigpipe();
    if (!opt->host && !opt->socket_path)
        rc = err_set(e, E_INVALID, "no address to listen on: neither a host nor a socket is given");
    else if (!opt->tls_cert != !opt->tls_key)
        rc = err_set(e, E_INVALID, "TLS needs both a certificate and a key");
    if (rc != OK || (rc = pace_open(h, e)) != OK) goto out;
    if (opt->tls_cert && (rc = tls_open(&h->tls, opt->tls_cert, opt->tls_key, e)) != OK) goto out;
    if (opt->host && (rc = listen_tcp(&h->tcp, l, opt->host, opt->port, accept_tcp, h, e)) != OK)
        goto out;
    if (opt->socket_path &&
        (rc = listen_unix(&h->local, l, opt->socket_path, accept_local, h, e)) != OK)
        goto out;
    h->port = h->tcp ? listener_port(h->tcp) : 0;
    if (h->tcp) listener_on_starved(h->tcp, on_starved);
    if (h->local) listener_on_starved(h->local, on_starved);
    *out = h;
    h = NULL;
out:
    http_close(h);
    return rc;
}

/* Their clients wait for no reply. A new connection is about to carry its first request. */
static void drop_idle(struct http *h, bool new_ones)
{
    for (struct conn *c = h->conns; c; c = c->next)
        if (conn_is_idle(c) && (new_ones || c->n_requests > 0)) conn_drop(c, "closed");
}

void http_drain(struct http *h)
{
    h->draining = true;
    drop_idle(h, false);
}

void http_stop_listening(struct http *h)
{
    listener_close(h->tcp);
    listener_close(h->local);
    h->tcp = h->local = NULL;
    h->draining = true;
    drop_idle(h, true);
}

void http_close(struct http *h)
{
    if (!h) return;
    http_stop_listening(h);
    while (h->conns) conn_detach(h->conns);
    pace_close(h);
    if (h->tls) SSL_CTX_free(h->tls);
    mem_free(h->groups);
    mem_free(h);
}

int http_port(const struct http *h) { return h->port; }
void http_stats(const struct http *h, struct http_stats *out) { *out = h->stats; }
