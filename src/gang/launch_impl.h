/* launch_impl.h - what leader and members tell each other before there is a link. */
#ifndef TERN_GANG_LAUNCH_IMPL_H
#define TERN_GANG_LAUNCH_IMPL_H

#include "gang/launch.h"

#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/types.h>

#define GANG_MAGIC 0x47475254u /* "TRGG" */

enum {
    GANG_SECRET = 32,       /* bytes; hexadecimal digits twice as many */
    GANG_PULSE_MS = 250,    /* between heartbeats of a member */
    GANG_SILENT_MS = 10000, /* without any: it hangs, or its host is gone */
    GANG_JOIN_MS = 60000,   /* for a member to start and to join */
    GANG_LEAVE_MS = 50      /* for a member to end when its leader has gone */
};

enum gang_transport { TRANSPORT_SHM, TRANSPORT_TCP, TRANSPORT_MPI };

/* The leader's first message to a member, on the control connection. With shared memory its descriptor
 * comes along. */
struct gang_welcome {
    uint32_t magic, size_of; /* of this struct: members of other builds are refused */
    int32_t rank, size;
    int32_t transport;
    cpu_set_t cores;                      /* empty: any */
    struct sockaddr_in members[COMM_MAX]; /* tcp: where each listens */
};

/* The first message on every TCP connection. */
struct gang_hello {
    uint32_t magic, size_of; /* these and the version stay where they are in all versions */
    char version[28];
    int32_t rank;
    int32_t control; /* 1: to the leader, for control; 0: for data */
    int32_t port;    /* control: where the member listens */
    char secret[GANG_SECRET];
};

/* A hello of this process, without the secret. */
struct gang_hello gang_make_hello(int rank, bool control, int port);
/* E_FORMAT: not a hello; E_UNSUPPORTED: of another version or build, which it names; E_DENIED: without the
 * secret. size: members of the gang. */
int gang_check_hello(const struct gang_hello *h, int size, const char *secret, struct err *e);
int gang_check_welcome(const struct gang_welcome *w, struct err *e);

/* ---- sockets; tcpmesh.c ---- */

/* A listening socket; port 0: any. *port: the chosen one. */
int mesh_listen(int *fd, const char *address, int *port, struct err *e);
int mesh_connect(int *fd, const struct sockaddr_in *to, uint64_t deadline_ns, struct err *e);
int mesh_accept(int *fd, int listener, uint64_t deadline_ns, struct err *e);
/* All n bytes, before the deadline. */
int mesh_read(int fd, void *p, size_t n, uint64_t deadline_ns, struct err *e);
/* A hello, of which one of another build may be shorter: E_UNSUPPORTED names it. */
int mesh_read_hello(int fd, struct gang_hello *h, uint64_t deadline_ns, struct err *e);
int mesh_write(int fd, const void *p, size_t n, struct err *e);
/* "127.0.0.1:8000" or "name:8000". */
int mesh_address(struct sockaddr_in *out, const char *text, struct err *e);
/* Data connections of a member to those before it, and from those behind it. fds[own rank] is -1; [0] is
 * connected already. */
int mesh_join(int *fds, int listener, const struct gang_welcome *w, const char *secret,
              struct err *e);

/* ---- the leader ---- */

struct gang_member {
    pid_t pid;   /* 0: not started by this process */
    int control; /* -1: none */
    uint64_t heard_ns;
    bool gone;
};

struct launch {
    struct gang g; /* first */
    enum gang_transport transport;
    bool here; /* all members are on this machine */
    int n;
    struct gang_member members[COMM_MAX];
    int wake; /* eventfd that ends the watcher; -1: no watcher */
    pthread_t watcher;
    bool watches;
    uint64_t silent_ns; /* a member that sends nothing for so long hangs */
    atomic_bool lost;
    pthread_mutex_t lock; /* of the next */
    struct err why;
    void (*on_lost)(void *arg);
    void *arg;
};

/* Starts member r of the gang. fds: those that it inherits. spawn.c */
int gang_spawn(struct launch *g, int r, const struct gang_conf *c, int control, int port,
               const char *secret, struct err *e);
#endif
