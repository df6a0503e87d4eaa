/* tcpmesh.c - sockets of a gang: connecting, greeting, and one data connection for every pair. */
#include "gang/launch_impl.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct gang_hello gang_make_hello(int rank, bool control, int port)
{
    struct gang_hello h = {
        .magic = GANG_MAGIC, .size_of = sizeof h, .rank = rank, .control = control, .port = port
    };

    snprintf(h.version, sizeof h.version, "%s", TERN_VERSION);
    return h;
}

/* The head alone: the rest may be of another build. */
static int check_head(const struct gang_hello *h, struct err *e)
{
    if (h->magic != GANG_MAGIC) return err_set(e, E_FORMAT, "a connection that is no member's");
    if (h->size_of != sizeof *h)
        return err_set(e, E_UNSUPPORTED,
                       "a member of another build wants to join: this is tern %s, and all members "
                       "must be",
                       TERN_VERSION);
    if (!memchr(h->version, 0, sizeof h->version))
        return err_set(e, E_FORMAT, "a hello has a text without an end");
    if (strcmp(h->version, TERN_VERSION) != 0)
        return err_set(e, E_UNSUPPORTED,
                       "a member that is tern %s wants to join: this is tern %s, and all members "
                       "must be",
                       h->version, TERN_VERSION);
    return OK;
}

int gang_check_hello(const struct gang_hello *h, int size, const char *secret, struct err *e)
{
    unsigned char differs = 0;
    int rc = check_head(h, e);

    if (rc != OK) return rc;
    for (int i = 0; i < GANG_SECRET; i++) differs |= (unsigned char)(h->secret[i] ^ secret[i]);
    if (differs) return err_set(e, E_DENIED, "a connection without the gang's secret");
    if (h->rank < 1 || h->rank >= size || h->port < 0 || h->port > 65535)
        return err_set(e, E_FORMAT, "a hello of member %d, port %d, of %d members", h->rank,
                       h->port, size);
    return OK;
}

int gang_check_welcome(const struct gang_welcome *w, struct err *e)
{
    if (w->magic != GANG_MAGIC || w->size_of != sizeof *w)
        return err_set(e, E_FORMAT, "the leader is not one of a gang, or of another build");
    if (w->size < 2 || w->size > COMM_MAX || w->rank < 1 || w->rank >= w->size ||
        (w->transport != TRANSPORT_SHM && w->transport != TRANSPORT_TCP))
        return err_set(e, E_FORMAT, "a welcome as member %d of %d by transport %d", w->rank,
                       w->size, w->transport);
    return OK;
}

/* ---- addresses ---- */

int mesh_address(struct sockaddr_in *out, const char *text, struct err *e)
{
    struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *found = NULL;
    const char *colon = strrchr(text, ':');
    char host[256];

    if (!colon || colon == text || (size_t)(colon - text) >= sizeof host)
        return err_set(e, E_INVALID, "%s: must be HOST:PORT", text);
    snprintf(host, sizeof host, "%.*s", (int)(colon - text), text);
    if (getaddrinfo(host, colon + 1, &hints, &found) != 0 || !found)
        return err_set(e, E_NOTFOUND, "%s: no such host, or no port", text);
    memcpy(out, found->ai_addr, sizeof *out);
    freeaddrinfo(found);
    return OK;
}

/* ---- connections ---- */

int mesh_listen(int *fd, const char *address, int *port, struct err *e)
{
    struct sockaddr_in a = { .sin_family = AF_INET };
    socklen_t n = sizeof a;

    if (inet_pton(AF_INET, address, &a.sin_addr) != 1)
        return err_set(e, E_INVALID, "%s: not an IPv4 address to listen at", address);
    a.sin_port = htons((uint16_t)*port);
    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd >= 0 && bind(*fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(*fd, COMM_MAX) == 0 &&
        getsockname(*fd, (struct sockaddr *)&a, &n) == 0) {
        *port = ntohs(a.sin_port);
        return OK;
    }
    err_set(e, E_IO, "cannot listen at %s: %s", address, strerror(errno));
    if (*fd >= 0) close(*fd);
    *fd = -1;
    return E_IO;
}

static int wait_for(int fd, short events, uint64_t deadline_ns, const char *what, struct err *e)
{
    for (;;) {
        struct pollfd p = { fd, events, 0 };
        uint64_t now = clock_ns();
        if (now >= deadline_ns) return err_set(e, E_DEADLINE, "%s did not come in time", what);
        if (poll(&p, 1, (int)((deadline_ns - now) / 1000000) + 1) > 0) return OK;
    }
}

int mesh_connect(int *fd, const struct sockaddr_in *to, uint64_t deadline_ns, struct err *e)
{
    char text[64];

    for (;;) { /* the other side may not listen yet */
        *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (*fd >= 0 && connect(*fd, (const struct sockaddr *)to, sizeof *to) == 0) return OK;
        if (*fd >= 0) close(*fd);
        *fd = -1;
        if (clock_ns() >= deadline_ns) break;
        poll(NULL, 0, 20);
    }
    return err_set(e, E_IO, "cannot connect to %s:%d: %s",
                   inet_ntop(AF_INET, &to->sin_addr, text, sizeof text), ntohs(to->sin_port),
                   strerror(errno));
}

int mesh_accept(int *fd, int listener, uint64_t deadline_ns, struct err *e)
{
    int rc = wait_for(listener, POLLIN, deadline_ns, "a member", e);

    if (rc != OK) return rc;
    *fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    return *fd >= 0 ? OK : err_set(e, E_IO, "cannot accept a member: %s", strerror(errno));
}

int mesh_read(int fd, void *p, size_t n, uint64_t deadline_ns, struct err *e)
{
    for (size_t done = 0; done < n;) {
        int rc = wait_for(fd, POLLIN, deadline_ns, "a greeting", e);
        ssize_t k;
        if (rc != OK) return rc;
        k = recv(fd, (char *)p + done, n - done, 0);
        if (k <= 0) return err_set(e, E_WORKER, "a connection ended during the greeting");
        done += (size_t)k;
    }
    return OK;
}

int mesh_read_hello(int fd, struct gang_hello *h, uint64_t deadline_ns, struct err *e)
{
    size_t head = offsetof(struct gang_hello, rank);
    int rc = mesh_read(fd, h, head, deadline_ns, e);

    if (rc == OK) rc = check_head(h, e);
    return rc == OK ? mesh_read(fd, (char *)h + head, sizeof *h - head, deadline_ns, e) : rc;
}

int mesh_write(int fd, const void *p, size_t n, struct err *e)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = send(fd, (const char *)p + done, n - done, MSG_NOSIGNAL);
        if (k <= 0) return err_set(e, E_WORKER, "a connection ended during the greeting");
        done += (size_t)k;
    }
    return OK;
}

/* ---- data connections ---- */

static int join_one(int *fd, const struct sockaddr_in *to, int rank, const char *secret,
                    uint64_t deadline_ns, struct err *e)
{
    struct gang_hello h = gang_make_hello(rank, false, 0);
    int rc = mesh_connect(fd, to, deadline_ns, e);

    memcpy(h.secret, secret, sizeof h.secret);
    return rc == OK ? mesh_write(*fd, &h, sizeof h, e) : rc;
}

int mesh_join(int *fds, int listener, const struct gang_welcome *w, const char *secret,
              struct err *e)
{
    uint64_t deadline = clock_ns() + GANG_JOIN_MS * 1000000ull;
    struct gang_hello h;
    int rc = OK, fd = -1;

    for (int i = 0; i < w->rank && rc == OK; i++)
        rc = join_one(&fds[i], &w->members[i], w->rank, secret, deadline, e);
    for (int left = w->size - 1 - w->rank; left > 0 && rc == OK;) {
        if ((rc = mesh_accept(&fd, listener, deadline, e)) != OK) break;
        if (mesh_read_hello(fd, &h, deadline, NULL) == OK &&
            gang_check_hello(&h, w->size, secret, NULL) == OK && h.rank > w->rank &&
            fds[h.rank] < 0) {
            fds[h.rank] = fd;
            left--;
        } else {
            close(fd); /* somebody else's */
        }
    }
    return rc;
}
