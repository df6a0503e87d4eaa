/* join.c - a member's side of joining, and the thread that sends its heartbeats. */
#include "gang/launch_impl.h"

#include "base/clock.h"
#include "base/mem.h"
#include "comm/shmlink.h"
#include "gang/tcplink.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void (*gang_leave)(void);

struct pulse { /* lives as long as the process */
    int control;
    struct comm_link *link;
};

/* Also the leader's end is noticed here: the control connection ends, and the link is aborted. A member
 * that computes, or whose transport does not see the abort, ends all the same. */
static void *send_pulses(void *arg)
{
    struct pulse *p = arg;
    char byte = 0;

    for (;;) {
        struct pollfd f = { p->control, POLLIN, 0 };
        ssize_t k = send(p->control, "p", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (k < 0 && errno != EAGAIN && errno != EINTR) break;
        if (poll(&f, 1, GANG_PULSE_MS) > 0 && recv(p->control, &byte, 1, MSG_DONTWAIT) <= 0) break;
    }
    p->link->abort(p->link, "the leader has gone");
    poll(NULL, 0, GANG_LEAVE_MS);
    if (gang_leave) gang_leave();
    return NULL;
}

static int start_pulses(int control, struct comm_link *link, struct err *e)
{
    struct pulse *p = mem_new(struct pulse);
    pthread_t t;

    if (!p) return err_nomem(e, "the heartbeats");
    *p = (struct pulse){ control, link };
    if (pthread_create(&t, NULL, send_pulses, p) != 0) {
        mem_free(p);
        return err_set(e, E_NOMEM, "no thread for the heartbeats");
    }
    pthread_detach(t);
    return OK;
}

static void take_cores(const struct gang_welcome *w)
{
    if (CPU_COUNT(&w->cores) > 0) sched_setaffinity(0, sizeof w->cores, &w->cores);
}

/* The welcome and the descriptor of the shared memory. */
static int receive_welcome(int fd, struct gang_welcome *w, int *shared, struct err *e)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } c = { 0 };
    struct iovec v = { w, sizeof *w };
    struct msghdr m = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c
    };
    ssize_t n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_WAITALL);
    struct cmsghdr *h = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;

    if (n != (ssize_t)sizeof *w || !h || h->cmsg_type != SCM_RIGHTS ||
        h->cmsg_len != CMSG_LEN(sizeof(int)))
        return err_set(e, E_FORMAT, "descriptor %d is not the control connection of a gang", fd);
    memcpy(shared, CMSG_DATA(h), sizeof *shared);
    return gang_check_welcome(w, e);
}

int gang_join(struct comm_link **out, int fd, struct err *e)
{
    struct gang_welcome w;
    int shared = -1, rc = receive_welcome(fd, &w, &shared, e);

    if (rc != OK) return rc;
    take_cores(&w);
    if ((rc = shmlink_open_file(out, shared, w.rank, w.size, e)) != OK) return rc;
    return start_pulses(fd, *out, e);
}

/* 64 hexadecimal digits from standard input. */
static int read_secret(char *secret, struct err *e)
{
    for (int i = 0; i < GANG_SECRET; i++) {
        unsigned v;
        char two[3] = { 0 };
        if (read(STDIN_FILENO, two, 1) != 1 || read(STDIN_FILENO, two + 1, 1) != 1 ||
            sscanf(two, "%2x", &v) != 1)
            return err_set(e, E_INVALID,
                           "standard input does not have the gang's secret: 64 hexadecimal digits");
        secret[i] = (char)v;
    }
    return OK;
}

static int greet(int *control, const struct sockaddr_in *leader, int rank, int port,
                 const char *secret, struct gang_welcome *w, struct err *e)
{
    uint64_t deadline = clock_ns() + GANG_JOIN_MS * 1000000ull;
    struct gang_hello h = gang_make_hello(rank, true, port);
    int rc = mesh_connect(control, leader, deadline, e), silent = GANG_SILENT_MS;

    memcpy(h.secret, secret, sizeof h.secret);
    /* A leader whose host has gone says nothing: heartbeats that nobody takes end the connection. */
    if (rc == OK) setsockopt(*control, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent, sizeof silent);
    if (rc == OK) rc = mesh_write(*control, &h, sizeof h, e);
    if (rc == OK) rc = mesh_read(*control, w, sizeof *w, deadline, e);
    if (rc == OK) rc = gang_check_welcome(w, e);
    w->members[0] = *leader;
    return rc;
}

int gang_join_tcp(struct comm_link **out, const char *address, int rank, struct err *e)
{
    struct gang_welcome w;
    struct sockaddr_in leader;
    char secret[GANG_SECRET];
    int fds[COMM_MAX], listener = -1, control = -1, port = 0, rc;

    for (int i = 0; i < COMM_MAX; i++) fds[i] = -1;
    if ((rc = read_secret(secret, e)) != OK) return rc;
    if ((rc = mesh_address(&leader, address, e)) != OK) return rc;
    if ((rc = mesh_listen(&listener, "0.0.0.0", &port, e)) != OK) return rc;
    rc = greet(&control, &leader, rank, port, secret, &w, e);
    if (rc == OK) rc = mesh_join(fds, listener, &w, secret, e);
    close(listener);
    if (rc == OK) {
        take_cores(&w);
        rc = tcplink_open(out, fds, w.rank, w.size, e);
    } else {
        for (int i = 0; i < COMM_MAX; i++)
            if (fds[i] >= 0) close(fds[i]);
    }
    if (rc == OK) return start_pulses(control, *out, e);
    if (control >= 0) close(control);
    return rc;
}
