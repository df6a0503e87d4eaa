#include "net/conn.h"

#include "base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/listener.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static void set_defaults(struct http_opt *o)
{
    if (!o->max_body_bytes) o->max_body_bytes = 16 << 20;
    if (!o->max_header_bytes) o->max_header_bytes = 64 << 10;
    if (!o->max_unread_bytes) o->max_unread_bytes = 1 << 20;
    if (!o->max_conns) o->max_conns = 1024;
    if (!o->header_ms) o->header_ms = 10000;
    if (!o->body_ms) o->body_ms = 60000;
    if (!o->idle_ms) o->idle_ms = 60000;
    if (!o->write_ms) o->write_ms = 30000;
}

static void peer_name(const struct sockaddr *a, char *out, size_t n)
{
    char host[64] = "";

    if (a->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)a;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        snprintf(out, n, "%s:%d", host, ntohs(in->sin_port));
    } else if (a->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const void *)a;
        inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof host);
        snprintf(out, n, "[%s]:%d", host, ntohs(in->sin6_port));
    } else {
        snprintf(out, n, "unix");
    }
}

static void accept_tcp(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *a, int n, void *arg)
{
    struct http *h = arg;
    char peer[80];

    (void)l, (void)n;
    peer_name(a, peer, sizeof peer);
    conn_open(h, fd, peer, h->tls != NULL);
}

static void accept_local(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *a, int n, void *arg)
{
    (void)l, (void)a, (void)n;
    conn_open(arg, fd, "unix", false);
}

static struct evconnlistener *listen_at(struct http *h, evconnlistener_cb fn, const struct sockaddr *a, socklen_t n)
{
    return evconnlistener_new_bind(h->base, fn, h,
                                   LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE, 1024, a, (int)n);
}

static int port_of(struct evconnlistener *l)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;

    if (getsockname(evconnlistener_get_fd(l), (struct sockaddr *)&a, &n) != 0) return 0;
    return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port);
}

static int listen_tcp(struct http *h, struct err *e)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV }, *all = NULL;
    const int most = (int)(sizeof h->tcp / sizeof *h->tcp);
    char port[16];
    int rc;

    snprintf(port, sizeof port, "%d", h->opt.port);
    if ((rc = getaddrinfo(h->opt.host, port, &hints, &all)) != 0)
        return err_set(e, E_IO, "cannot listen on %s: %s", h->opt.host, gai_strerror(rc));
    for (struct addrinfo *a = all; a && h->n_tcp < most; a = a->ai_next) {
        struct evconnlistener *l;
        if (h->n_tcp > 0 && h->opt.port == 0) break;     /* any free port: of one address only */
        errno = 0;
        if ((l = listen_at(h, accept_tcp, a->ai_addr, a->ai_addrlen))) h->tcp[h->n_tcp++] = l;
    }
    freeaddrinfo(all);
    if (h->n_tcp == 0)
        return err_set(e, E_IO, "cannot listen on %s port %d: %s", h->opt.host, h->opt.port,
                       strerror(errno ? errno : EADDRNOTAVAIL));
    h->port = port_of(h->tcp[0]);
    return OK;
}

/* A socket file that nobody listens on is a leftover. */
static int clear_stale(const char *path, const struct sockaddr_un *a, struct err *e)
{
    struct stat st;
    int fd, rc;

    if (lstat(path, &st) != 0) return OK;
    if (!S_ISSOCK(st.st_mode)) return err_set(e, E_IO, "%s is there and is no socket", path);
    if ((fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) < 0) return err_set(e, E_IO, "%s: %s", path, strerror(errno));
    rc = connect(fd, (const struct sockaddr *)a, sizeof *a);
    close(fd);
    if (rc == 0) return err_set(e, E_IO, "%s: somebody listens there already", path);
    if (unlink(path) != 0) return err_set(e, E_IO, "%s: %s", path, strerror(errno));
    return OK;
}

static int listen_local(struct http *h, struct err *e)
{
    const char *path = h->opt.socket_path;
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    mode_t old;
    int rc;

    if (strlen(path) >= sizeof a.sun_path)
        return err_set(e, E_INVALID, "%s: a socket's path has at most %zu bytes", path, sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, strlen(path));
    if ((rc = clear_stale(path, &a, e)) != OK) return rc;
    old = umask(0177);
    h->local = listen_at(h, accept_local, (struct sockaddr *)&a, sizeof a);
    umask(old);
    if (!h->local) return err_set(e, E_IO, "cannot listen on %s: %s", path, strerror(errno));
    h->socket_path = mem_strdup(path);
    return OK;
}

int http_open(struct http **out, struct loop *l, const struct http_opt *opt, struct err *e)
{
    struct http *h = mem_new(struct http);
    int rc = OK;

    h->loop = l;
    h->base = loop_base(l);
    h->opt = *opt;
    set_defaults(&h->opt);
    if (!opt->host && !opt->socket_path) rc = err_set(e, E_INVALID, "neither a host nor a socket to listen on");
    else if (!opt->tls_cert != !opt->tls_key) rc = err_set(e, E_INVALID, "TLS needs a certificate and a key, both");
    if (rc != OK) goto out;
    if (opt->tls_cert && (rc = tls_open(&h->tls, opt->tls_cert, opt->tls_key, e)) != OK) goto out;
    if (opt->host && (rc = listen_tcp(h, e)) != OK) goto out;
    if (opt->socket_path && (rc = listen_local(h, e)) != OK) goto out;
    *out = h;
    h = NULL;
out:
    http_close(h);
    return rc;
}

void http_stop_listening(struct http *h)
{
    h->draining = true;
    for (int i = 0; i < h->n_tcp; i++) evconnlistener_free(h->tcp[i]);
    h->n_tcp = 0;
    if (h->local) evconnlistener_free(h->local);
    h->local = NULL;
    if (h->socket_path) unlink(h->socket_path);
    mem_free(h->socket_path);
    h->socket_path = NULL;
}

void http_close(struct http *h)
{
    if (!h) return;
    http_stop_listening(h);
    while (h->conns) {
        struct http_req *c = h->conns;
        bool held = c->state == CONN_HANDLING, told = held && !c->bev && !c->tell_gone;
        conn_cut(c, "closed");
        c->tell_gone = false;
        event_del(c->soon);
        h->conns = c->next;
        if (c->next) c->next->prev = NULL;
        c->prev = c->next = NULL;
        c->h = NULL;                                     /* held: it goes when its request ends */
        if (!held) conn_free(c);
        else if (!told && c->gone) c->gone(c->gone_arg);
    }
    if (h->tls) SSL_CTX_free(h->tls);
    mem_free(h);
}

int http_port(const struct http *h) { return h->port; }
void http_stats(const struct http *h, struct http_stats *out) { *out = h->stats; }
