/* tcplink.c - messages over TCP: what can be sent or received at once is, then poll waits. */
#include "gang/tcplink.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    TRIES = 40,   /* looks without sleeping: an answer of another host takes about as long */
    POLL_MS = 100 /* how soon an abort of another thread is seen */
};

struct tcplink {
    struct comm_link link;
    int fds[COMM_MAX];
    atomic_int failed; /* as in shmlink.c */
    char why[256];
};

static int lost(int peer, const char *what, struct err *e)
{
    return err_set(e, E_WORKER, "the gang has ended: the connection to member %d %s", peer, what);
}

/* Bytes that moved; -1: an error is in e. */
static ssize_t move_some(struct tcplink *t, struct comm_move *m, struct err *e)
{
    char *p = (char *)m->p + m->done;
    size_t n = m->n - m->done;
    int fd = t->fds[m->peer];
    ssize_t k =
        m->send ? send(fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL) : recv(fd, p, n, MSG_DONTWAIT);

    if (k > 0) return k;
    if (k == 0) return lost(m->peer, "was closed", e), -1;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
    return lost(m->peer, strerror(errno), e), -1;
}

/* As progress in shmlink.c; -1: a connection failed. */
static int progress(struct tcplink *t, struct comm_move *m, int n, int *left, struct err *e)
{
    int moved = 0;

    *left = 0;
    for (int i = 0; i < n; i++) {
        bool before = false;
        ssize_t k;

        if (m[i].done == m[i].n) continue;
        ++*left;
        for (int j = 0; j < i && !before; j++)
            before = m[j].peer == m[i].peer && m[j].send == m[i].send && m[j].done < m[j].n;
        if (before) continue;
        if ((k = move_some(t, &m[i], e)) < 0) return -1;
        if (k == 0) continue;
        moved = 1;
        m[i].done += (size_t)k;
        if (m[i].done == m[i].n) --*left;
    }
    return moved;
}

static void wait_for_sockets(const struct tcplink *t, const struct comm_move *m, int n)
{
    struct pollfd p[2 * COMM_MAX];
    int k = 0;

    for (int i = 0; i < n && k < 2 * COMM_MAX; i++)
        if (m[i].done < m[i].n)
            p[k++] = (struct pollfd){ t->fds[m[i].peer], m[i].send ? POLLOUT : POLLIN, 0 };
    poll(p, (nfds_t)k, POLL_MS);
}

static int fail_late(struct tcplink *t, const struct comm_move *m, int n, struct err *e)
{
    char why[128];
    int i = 0;

    while (i < n - 1 && m[i].done == m[i].n) i++;
    snprintf(why, sizeof why, "member %d %s nothing before the deadline of member %d", m[i].peer,
             m[i].send ? "took" : "sent", t->link.rank);
    t->link.abort(&t->link, why);
    return err_set(e, E_DEADLINE, "%s", why);
}

static int move_tcp(struct comm_link *k, struct comm_move *m, int n, uint64_t deadline_ns,
                    struct err *e)
{
    struct tcplink *t = (struct tcplink *)k;
    int left = 0, idle = 0, moved;

    for (int i = 0; i < n; i++) m[i].done = 0;
    for (;;) {
        int failed = atomic_load_explicit(&t->failed, memory_order_acquire);
        if (failed)
            return err_set(e, E_WORKER, "the gang has ended: %.255s",
                           failed == 2 ? t->why : "a member failed");
        if ((moved = progress(t, m, n, &left, e)) < 0) {
            t->link.abort(&t->link, e ? e->msg : "a connection was lost");
            return E_WORKER;
        }
        if (left == 0) return OK;
        idle = moved ? 0 : idle + 1;
        if (idle < TRIES) continue;
        if (clock_ns() >= deadline_ns) return fail_late(t, m, n, e);
        wait_for_sockets(t, m, n);
    }
}

/* The other members see the connections end. */
static void abort_tcp(struct comm_link *k, const char *why)
{
    struct tcplink *t = (struct tcplink *)k;
    int zero = 0;

    if (!atomic_compare_exchange_strong(&t->failed, &zero, 1)) return;
    snprintf(t->why, sizeof t->why, "%s", why);
    atomic_store_explicit(&t->failed, 2, memory_order_release);
    for (int i = 0; i < t->link.size; i++)
        if (t->fds[i] >= 0) shutdown(t->fds[i], SHUT_RDWR);
}

static bool is_aborted(struct comm_link *k)
{
    return atomic_load_explicit(&((struct tcplink *)k)->failed, memory_order_relaxed) != 0;
}

static void close_tcp(struct comm_link *k)
{
    struct tcplink *t = (struct tcplink *)k;

    for (int i = 0; i < t->link.size; i++)
        if (t->fds[i] >= 0) close(t->fds[i]);
    mem_free(t);
}

int tcplink_open(struct comm_link **out, const int *fds, int rank, int size, struct err *e)
{
    struct tcplink *t = mem_new(struct tcplink);
    int one = 1;

    if (!t) {
        for (int i = 0; i < size; i++)
            if (fds[i] >= 0) close(fds[i]);
        return err_nomem(e, "a link");
    }
    *t = (struct tcplink){ .link = { .rank = rank,
                                     .size = size,
                                     .name = "tcp",
                                     .move = move_tcp,
                                     .abort = abort_tcp,
                                     .is_aborted = is_aborted,
                                     .close = close_tcp } };
    for (int i = 0; i < COMM_MAX; i++) t->fds[i] = i < size ? fds[i] : -1;
    for (int i = 0; i < size; i++)
        if (fds[i] >= 0) setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    *out = &t->link;
    return OK;
}
