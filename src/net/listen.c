/* listen.c - listening sockets over libevent's evconnlistener.
 *
 * A host name may have several addresses (IPv4 and IPv6); the listener has one socket for each, all
 * with the same port. When accept fails (out of descriptors, out of kernel memory) a listening
 * socket stays readable, and the loop would spin on it. All sockets of the listener are then paused
 * for PAUSE_MS, and the owner is asked to give a descriptor back. */
#include "net/listen.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    MAX_ADDRS = 8, /* addresses of one host name that are listened on */
    BACKLOG = 1024,
    PAUSE_MS = 100,
    LOG_MS = 1000 /* least time between two messages about it */
};

struct listener {
    struct loop *loop;
    struct evconnlistener *on[MAX_ADDRS];
    int n;                    /* of `on` */
    struct loop_timer *pause; /* runs while accepting is paused */
    listen_fn *fn;
    void (*starved)(void *arg); /* NULL: none */
    void *arg;
    uint64_t logged_ns; /* when a failure was logged last */
    int port;
    char *path; /* of a Unix socket; only the inode created here is removed at the end */
    dev_t dev;
    ino_t ino;
};

static void on_accept(struct evconnlistener *on, evutil_socket_t fd, struct sockaddr *from, int n,
                      void *arg)
{
    struct listener *s = arg;

    (void)on, (void)n;
    s->fn(s->arg, fd, from);
}

void listener_pause(struct listener *s, int ms)
{
    if (!loop_timer_set(s->pause, (uint64_t)ms))
        return; /* no memory: better to spin than to stop */
    for (int i = 0; i < s->n; i++) evconnlistener_disable(s->on[i]);
}

static void on_accept_error(struct evconnlistener *on, void *arg)
{
    struct listener *s = arg;

    (void)on;
    if (!s->logged_ns || clock_ms_since(s->logged_ns) >= LOG_MS) {
        log_warn("accept: %s; accepting again in %d ms", strerror(errno), PAUSE_MS);
        s->logged_ns = clock_ns();
    }
    if (s->starved) s->starved(s->arg);
    listener_pause(s, PAUSE_MS);
}

static void on_pause_over(void *arg)
{
    struct listener *s = arg;
    bool all = true;

    for (int i = 0; i < s->n; i++) all &= evconnlistener_enable(s->on[i]) == 0;
    if (!all) loop_timer_set(s->pause, PAUSE_MS);
}

static int listener_new(struct listener **out, struct loop *l, listen_fn *fn, void *arg,
                        struct err *e)
{
    struct listener *s = mem_new(struct listener);

    if (!s) return err_nomem(e, "a listener");
    *s = (struct listener){ .loop = l, .fn = fn, .arg = arg };
    if (!(s->pause = loop_timer(l, on_pause_over, s))) {
        mem_free(s);
        return err_nomem(e, "a listener");
    }
    *out = s;
    return OK;
}

/* Owns the bound fd from now on; false (errno set) if it cannot listen. */
static bool add_socket(struct listener *s, int fd)
{
    struct evconnlistener *on = NULL;

    if (listen(fd, BACKLOG) == 0)
        on = evconnlistener_new(loop_base(s->loop), on_accept, s,
                                LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
    if (!on) {
        int saved = errno;
        close(fd);
        errno = saved;
        return false;
    }
    evconnlistener_set_error_cb(on, on_accept_error);
    s->on[s->n++] = on;
    return true;
}

/* The port that bind chose for port 0; the other addresses then use the same one. */
static int bound_port(int fd)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;

    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0) return 0;
    return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                         : ((struct sockaddr_in *)&a)->sin_port);
}

/* alone: the only address of the host name. "::" then accepts IPv4 as well; next to other addresses
 * it is IPv6 only, or the two would collide. */
static bool add_address(struct listener *s, const struct addrinfo *a, bool alone)
{
    int one = 1, only = !alone, fd;
    struct sockaddr_storage addr;

    memcpy(&addr, a->ai_addr, a->ai_addrlen);
    if (s->port && a->ai_family == AF_INET6)
        ((struct sockaddr_in6 *)&addr)->sin6_port = htons((uint16_t)s->port);
    if (s->port && a->ai_family == AF_INET)
        ((struct sockaddr_in *)&addr)->sin_port = htons((uint16_t)s->port);
    fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (a->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
    if (bind(fd, (struct sockaddr *)&addr, a->ai_addrlen) != 0) {
        int saved = errno;
        close(fd);
        errno = saved;
        return false;
    }
    if (!s->port) s->port = bound_port(fd);
    return add_socket(s, fd);
}

/* Addresses that cannot be bound are skipped as long as one can, except for a port in use. */
int listen_tcp(struct listener **out, struct loop *l, const char *host, int port, listen_fn *fn,
               void *arg, struct err *e)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV },
                    *list = NULL;
    struct listener *s = NULL;
    char service[16];
    int rc, why = 0;

    if ((rc = listener_new(&s, l, fn, arg, e)) != OK) return rc;
    if (port < 0 || port > 65535) {
        rc = err_set(e, E_INVALID, "cannot listen on %s port %d: a port is from 0 to 65535", host,
                     port);
        goto out;
    }
    snprintf(service, sizeof service, "%d", port);
    if ((rc = getaddrinfo(host, service, &hints, &list)) != 0) {
        const char *text = rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc);
        rc = err_set(e, E_IO, "cannot listen on %s port %d: %s", host, port, text);
        goto out;
    }
    for (struct addrinfo *a = list; a && s->n < MAX_ADDRS; a = a->ai_next)
        if (!add_address(s, a, !list->ai_next) && (why == 0 || errno == EADDRINUSE)) why = errno;
    /* Not every address of a name need be one of this machine. A port in use is an error. */
    if (s->n == 0 || why == EADDRINUSE) {
        rc = err_set(e, E_IO, "cannot listen on %s port %d: %s", host, port, strerror(why));
        goto out;
    }
    rc = OK;
    *out = s;
    s = NULL;
out:
    if (list) freeaddrinfo(list);
    listener_close(s);
    return rc;
}

/* Removes a stale socket from that path. Connecting tells whether a server listens on it. */
static int remove_stale(const struct sockaddr_un *a, struct err *e)
{
    struct stat st;
    int fd, rc, why;

    if (lstat(a->sun_path, &st) != 0)
        return errno == ENOENT ? OK
                               : err_set(e, E_IO, "socket %s: %s", a->sun_path, strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return err_set(e, E_INVALID, "socket %s: a file that is not a socket exists there",
                       a->sun_path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return err_set(e, E_IO, "socket %s: %s", a->sun_path, strerror(errno));
    rc = connect(fd, (const struct sockaddr *)a, sizeof *a);
    why = rc == 0 ? 0 : errno;
    close(fd);
    if (why == 0 || why == EAGAIN)
        return err_set(e, E_IO, "socket %s: another server is listening on it", a->sun_path);
    if (why != ECONNREFUSED) return err_set(e, E_IO, "socket %s: %s", a->sun_path, strerror(why));
    if (unlink(a->sun_path) != 0)
        return err_set(e, E_IO, "socket %s: %s", a->sun_path, strerror(errno));
    return OK;
}

int listen_unix(struct listener **out, struct loop *l, const char *path, listen_fn *fn, void *arg,
                struct err *e)
{
    struct listener *s = NULL;
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    struct stat st;
    int rc, fd = -1;

    if ((rc = listener_new(&s, l, fn, arg, e)) != OK) return rc;
    if (path[0] == 0 || strlen(path) >= sizeof a.sun_path) {
        rc = err_set(e, E_INVALID, "socket %s: the path must have 1 to %zu bytes", path,
                     sizeof a.sun_path - 1);
        goto out;
    }
    memcpy(a.sun_path, path, strlen(path) + 1);
    if ((rc = remove_stale(&a, e)) != OK) goto out;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    /* The mode is set before the path exists, so that no other user can connect in between. */
    if (fd < 0 || fchmod(fd, 0600) != 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0 ||
        stat(path, &st) != 0) {
        rc = err_set(e, E_IO, "socket %s: %s", path, strerror(errno));
        goto out;
    }
    if (!(s->path = mem_strdup(path))) {
        unlink(path);
        rc = err_nomem(e, "the path of a socket");
        goto out;
    }
    s->dev = st.st_dev;
    s->ino = st.st_ino;
    if (!add_socket(s, fd)) rc = err_set(e, E_IO, "socket %s: %s", path, strerror(errno));
    fd = -1;
    if (rc != OK) goto out;
    *out = s;
    s = NULL;
out:
    if (fd >= 0) close(fd);
    listener_close(s);
    return rc;
}

int listener_port(const struct listener *s) { return s->port; }
void listener_on_starved(struct listener *s, void (*fn)(void *arg)) { s->starved = fn; }

/* The path is removed only if it is still the socket created here: another server may have replaced
 * it. */
void listener_close(struct listener *s)
{
    struct stat st;

    if (!s) return;
    for (int i = 0; i < s->n; i++) evconnlistener_free(s->on[i]);
    loop_timer_close(s->pause);
    if (s->path && lstat(s->path, &st) == 0 && st.st_dev == s->dev && st.st_ino == s->ino)
        unlink(s->path);
    mem_free(s->path);
    mem_free(s);
}
