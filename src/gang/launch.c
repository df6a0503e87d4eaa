/* launch.c - the leader of a gang: starts the members, watches them, ends them. */
#include "gang/launch_impl.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/shmlink.h"
#include "gang/mpilink.h"
#include "gang/tcplink.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { END_MS = 3000 }; /* for members to end by themselves */

static struct launch *launch_of(struct gang *g) { return (struct launch *)g; }

/* ---- configuration ---- */

static int read_transport(enum gang_transport *out, const struct gang_conf *c, struct err *e)
{
    const char *t = c->transport ? c->transport : c->hosts ? "tcp" : "shm";

    if (strcmp(t, "shm") == 0) *out = TRANSPORT_SHM;
    else if (strcmp(t, "tcp") == 0) *out = TRANSPORT_TCP;
    else if (strcmp(t, "mpi") == 0) *out = TRANSPORT_MPI;
    else return err_set(e, E_INVALID, "transport %s: must be shm, tcp or mpi", t);
    if (*out == TRANSPORT_SHM && c->hosts)
        return err_set(e, E_INVALID, "transport shm: members on several hosts need tcp or mpi");
    return OK;
}

int gang_check(const struct gang_conf *c, struct err *e)
{
    const struct gang_shape *s = &c->shape;
    enum gang_transport t;

    if (s->tp < 1 || s->pp < 1 || s->tp > COMM_MAX || s->pp > COMM_MAX || s->tp * s->pp > COMM_MAX)
        return err_set(e, E_INVALID,
                       "tp %d, pp %d: each must be 1 or more, and their product %d at "
                       "most",
                       s->tp, s->pp, COMM_MAX);
    if (s->ep && s->tp < 2)
        return err_set(e, E_INVALID, "ep: experts are divided among the members of tp, which is %d",
                       s->tp);
    return read_transport(&t, c, e);
}

/* ---- watching ---- */

static bool is_lost(struct gang *g, struct err *e)
{
    struct launch *w = launch_of(g);

    if (!atomic_load(&w->lost)) return false;
    pthread_mutex_lock(&w->lock);
    if (e) *e = w->why;
    pthread_mutex_unlock(&w->lock);
    return true;
}

static void on_lost(struct gang *gang, void (*fn)(void *arg), void *arg)
{
    struct launch *g = launch_of(gang);

    pthread_mutex_lock(&g->lock);
    g->on_lost = fn;
    g->arg = arg;
    pthread_mutex_unlock(&g->lock);
}

/* None was waited for yet, so the numbers are still theirs. */
static void kill_members(struct gang *gang)
{
    const struct launch *g = launch_of(gang);

    for (int r = 1; r < g->n; r++)
        if (g->members[r].pid > 0) kill(g->members[r].pid, SIGKILL);
}

/* One member less: nothing of the gang goes on. */
static void lose(struct launch *g, int r, const char *how)
{
    void (*fn)(void *arg) = NULL;
    void *arg = NULL;
    bool first;

    g->members[r].gone = true;
    if (atomic_load(&g->g.ends)) return; /* as it was told */
    pthread_mutex_lock(&g->lock);
    if ((first = !atomic_load(&g->lost))) {
        err_set(&g->why, E_WORKER, "the gang has ended: member %d (process %d) %s", r,
                (int)g->members[r].pid, how);
        fn = g->on_lost;
        arg = g->arg;
        atomic_store(&g->lost, true);
    }
    pthread_mutex_unlock(&g->lock);
    if (!first) return;
    log_error("%s", g->why.msg);
    g->g.link->abort(g->g.link, g->why.msg + strlen("the gang has ended: "));
    kill_members(&g->g);
    if (fn) fn(arg);
}

static void hear(struct launch *g, int r, short events)
{
    char pulses[64];
    ssize_t k =
        events & POLLIN ? recv(g->members[r].control, pulses, sizeof pulses, MSG_DONTWAIT) : 0;

    if (k > 0) g->members[r].heard_ns = clock_ns();
    else if (k == 0 || (errno != EAGAIN && errno != EINTR)) lose(g, r, "has gone");
}

static void *watch(void *arg)
{
    struct launch *g = arg;
    struct pollfd p[COMM_MAX];
    int rank[COMM_MAX], n;

    for (;;) {
        p[0] = (struct pollfd){ g->wake, POLLIN, 0 };
        n = 1;
        for (int r = 1; r < g->n; r++)
            if (!g->members[r].gone && g->members[r].control >= 0) {
                rank[n] = r;
                p[n++] = (struct pollfd){ g->members[r].control, POLLIN, 0 };
            }
        poll(p, (nfds_t)n, GANG_PULSE_MS);
        if (p[0].revents) return NULL;
        for (int i = 1; i < n; i++) {
            if (p[i].revents) hear(g, rank[i], p[i].revents);
            else if (clock_ns() - g->members[rank[i]].heard_ns > g->silent_ns)
                lose(g, rank[i], "sends no heartbeats");
        }
    }
}

static int start_watch(struct launch *g, struct err *e)
{
    for (int r = 1; r < g->n; r++) g->members[r].heard_ns = clock_ns();
    g->wake = eventfd(0, EFD_CLOEXEC);
    if (g->wake < 0 || pthread_create(&g->watcher, NULL, watch, g) != 0)
        return err_set(e, E_NOMEM, "no thread to watch the members");
    g->watches = true;
    return OK;
}

/* ---- starting ---- */

/* Cores of member r among those of this process, where everybody gets one. */
static void divide_cores(cpu_set_t *out, int r, int n)
{
    cpu_set_t all;
    int have, at = 0;

    CPU_ZERO(out);
    if (sched_getaffinity(0, sizeof all, &all) != 0 || (have = CPU_COUNT(&all)) < n) return;
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all)) {
            if (at >= have * r / n && at < have * (r + 1) / n) CPU_SET(i, out);
            at++;
        }
}

static struct gang_welcome make_welcome(const struct launch *g, int r)
{
    struct gang_welcome w = { .magic = GANG_MAGIC,
                              .size_of = sizeof w,
                              .rank = r,
                              .size = g->n,
                              .transport = (int32_t)g->transport };

    if (g->here) divide_cores(&w.cores, r, g->n);
    return w;
}

/* The welcome, with a descriptor. */
static int send_welcome(int fd, const struct gang_welcome *w, int shared, struct err *e)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } c = { 0 };
    struct iovec v = { (void *)w, sizeof *w };
    struct msghdr m = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c
    };
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);

    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(h), &shared, sizeof shared);
    return sendmsg(fd, &m, MSG_NOSIGNAL) == (ssize_t)sizeof *w
               ? OK
               : err_set(e, E_WORKER, "a member ended before it joined");
}

/* Members say that they have joined by their first heartbeat. */
static int wait_joined(struct launch *g, struct err *e)
{
    uint64_t deadline = clock_ns() + GANG_JOIN_MS * 1000000ull;
    char pulse;
    int rc = OK;

    for (int r = 1; r < g->n && rc == OK; r++) {
        rc = mesh_read(g->members[r].control, &pulse, 1, deadline, e);
        if (rc != OK) err_wrap(e, "member %d did not join", r);
    }
    return rc;
}

static int open_shm(struct launch *g, const struct gang_conf *c, struct err *e)
{
    int fd, rc = shmlink_file(&fd, g->n, e);

    for (int r = 1; r < g->n && rc == OK; r++) {
        struct gang_welcome w;
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
            rc = err_set(e, E_IO, "no socket for a member: %s", strerror(errno));
            break;
        }
        g->members[r].control = pair[0];
        rc = gang_spawn(g, r, c, pair[1], 0, NULL, e);
        close(pair[1]);
        w = make_welcome(g, r);
        if (rc == OK) rc = send_welcome(pair[0], &w, fd, e);
    }
    if (rc != OK) {
        if (fd >= 0) close(fd);
        return rc;
    }
    return shmlink_open_file(&g->g.link, fd, 0, g->n, e);
}

/* false: somebody else's connection. One of another version is said at once and kept in *other; it did not
 * show the secret, so that members may still come. */
static bool hear_hello(int fd, struct gang_hello *h, int size, const char *secret,
                       struct err *other)
{
    struct err why = { 0 };
    int rc = mesh_read_hello(fd, h, clock_ns() + 5000000000ull, &why);

    if (rc == OK) return gang_check_hello(h, size, secret, NULL) == OK;
    if (rc != E_UNSUPPORTED) return false;
    *other = why;
    log_warn("%s", why.msg);
    return false;
}

/* Every member makes two connections: one for control, with which it says where it listens, and after
 * the welcome one for data. */
static int accept_members(struct launch *g, int listener, const char *secret, bool control,
                          int *fds, struct gang_welcome *w, struct err *e)
{
    uint64_t deadline = clock_ns() + GANG_JOIN_MS * 1000000ull;
    struct gang_hello h;
    struct err other = { 0 };
    int rc = OK, fd = -1;

    for (int left = g->n - 1; left > 0 && rc == OK;) {
        if ((rc = mesh_accept(&fd, listener, deadline, e)) != OK) {
            if (other.code != OK) err_wrap(e, "%s", other.msg);
            break;
        }
        if (!hear_hello(fd, &h, g->n, secret, &other) || (h.control != 0) != control ||
            fds[h.rank] >= 0) {
            close(fd); /* somebody else's */
            continue;
        }
        fds[h.rank] = fd;
        left--;
        if (control) {
            socklen_t n = sizeof w->members[0];
            getpeername(fd, (struct sockaddr *)&w->members[h.rank], &n);
            w->members[h.rank].sin_port = htons((uint16_t)h.port);
        }
    }
    return rc;
}

static int link_tcp(struct launch *g, int listener, const char *secret, struct err *e)
{
    struct gang_welcome all = { 0 }, w;
    int fds[COMM_MAX], rc;

    for (int i = 0; i < COMM_MAX; i++) fds[i] = -1;
    rc = accept_members(g, listener, secret, true, fds, &all, e);
    for (int r = 1; r < g->n; r++) g->members[r].control = fds[r], fds[r] = -1;
    for (int r = 1; r < g->n && rc == OK; r++) {
        w = make_welcome(g, r);
        memcpy(w.members, all.members, sizeof w.members);
        rc = mesh_write(g->members[r].control, &w, sizeof w, e);
    }
    if (rc == OK) rc = accept_members(g, listener, secret, false, fds, NULL, e);
    if (rc == OK) return tcplink_open(&g->g.link, fds, 0, g->n, e);
    for (int r = 1; r < g->n; r++)
        if (fds[r] >= 0) close(fds[r]);
    return rc;
}

static int open_tcp(struct launch *g, const struct gang_conf *c, struct err *e)
{
    char secret[GANG_SECRET];
    const char *at = c->listen ? c->listen : c->hosts ? "0.0.0.0" : "127.0.0.1";
    int listener = -1, port = 0, rc;

    if (getrandom(secret, sizeof secret, 0) != (ssize_t)sizeof secret)
        return err_set(e, E_IO, "no random numbers: %s", strerror(errno));
    if ((rc = mesh_listen(&listener, at, &port, e)) != OK) return rc;
    for (int r = 1; r < g->n && rc == OK; r++) rc = gang_spawn(g, r, c, -1, port, secret, e);
    if (rc == OK) rc = link_tcp(g, listener, secret, e);
    close(listener);
    return rc;
}

static void close_launch(struct gang *gang);

static struct launch *make_launch(const struct gang_shape *shape)
{
    struct launch *g = mem_new(struct launch);

    if (!g) return NULL;
    g->g = (struct gang){ .shape = *shape,
                          .is_lost = is_lost,
                          .on_lost = on_lost,
                          .kill = kill_members,
                          .close = close_launch };
    g->n = shape->tp * shape->pp;
    g->silent_ns = GANG_SILENT_MS * 1000000ull; /* never longer than a step may take */
    if (shape->step_ns && shape->step_ns < g->silent_ns) g->silent_ns = shape->step_ns;
    g->wake = -1;
    for (int r = 0; r < COMM_MAX; r++) g->members[r].control = -1;
    pthread_mutex_init(&g->lock, NULL);
    return g;
}

/* Rank 0 of an MPI job: the others are there, and mpirun watches them. */
static int join_job(struct gang **out, const struct gang_conf *c, struct err *e)
{
    struct comm_link *link;
    int rc;

    if (!mpilink_is_job())
        return err_set(e, E_UNSUPPORTED, "transport mpi: start this command by mpirun");
    if ((rc = mpilink_open(&link, e)) != OK) return rc;
    return gang_over(out, link, &c->shape, e);
}

int gang_open(struct gang **out, const struct gang_conf *c, struct err *e)
{
    int rc = gang_check(c, e);
    struct launch *g;

    if (rc != OK) return rc;
    if (c->transport && strcmp(c->transport, "mpi") == 0) return join_job(out, c, e);
    if (!(g = make_launch(&c->shape))) return err_nomem(e, "a gang");
    g->here = !c->hosts;
    rc = read_transport(&g->transport, c, e);
    if (rc == OK) rc = g->transport == TRANSPORT_SHM ? open_shm(g, c, e) : open_tcp(g, c, e);
    if (rc == OK) rc = wait_joined(g, e);
    if (rc == OK) rc = start_watch(g, e);
    if (rc == OK) *out = &g->g;
    else close_launch(&g->g);
    return rc;
}

/* ---- ending ---- */

/* Members end when their order says so; those that do not, when the control connection is closed; or they
 * are killed. */
static void end_members(struct launch *g)
{
    uint64_t start = clock_ns(), half = END_MS * 500000ull;

    for (int r = 1; r < g->n; r++) {
        struct gang_member *m = &g->members[r];
        while (m->pid > 0 && waitpid(m->pid, NULL, WNOHANG) == 0) {
            uint64_t spent = clock_ns() - start;
            if (m->control >= 0 && spent >= half) shutdown(m->control, SHUT_WR);
            if (atomic_load(&g->lost) || spent >= 2 * half) {
                kill(m->pid, SIGKILL);
                waitpid(m->pid, NULL, 0);
                break;
            }
            poll(NULL, 0, 2);
        }
        if (m->control >= 0) close(m->control);
    }
}

static void close_launch(struct gang *gang)
{
    struct launch *g = launch_of(gang);
    uint64_t one = 1;

    if (g->watches) {
        if (write(g->wake, &one, sizeof one) < 0) log_warn("the watcher was not woken");
        pthread_join(g->watcher, NULL);
    }
    if (!g->g.ends) atomic_store(&g->lost, true); /* nobody told them: they are killed */
    if (g->g.link && !g->g.ends) g->g.link->abort(g->g.link, "the leader ends the gang");
    end_members(g);
    if (g->wake >= 0) close(g->wake);
    comm_link_close(g->g.link);
    pthread_mutex_destroy(&g->lock);
    mem_free(g);
}
