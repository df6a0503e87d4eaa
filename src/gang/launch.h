/* launch.h - processes of a gang: the leader starts, watches and ends them.
 *
 * The leader is rank 0: the process with the engine. It starts the other members (`tern member`), on
 * this machine or on others, and has a control connection to each. A member that dies closes it; one
 * that hangs sends no heartbeats. Either ends the whole gang: every operation of the communicator
 * fails, every member exits, and whoever owns the leader starts another gang. A member whose leader
 * is gone exits by itself.
 *
 *   transport   members on this machine          on other hosts
 *   shm         memory that all share            -
 *   tcp         connections on 127.0.0.1         connections; started by an agent (ssh)
 *   mpi         the processes of an MPI job, started by mpirun (mpilink.h) */
#ifndef TERN_GANG_LAUNCH_H
#define TERN_GANG_LAUNCH_H

#include "comm/gang.h"

struct gang_conf {
    struct gang_shape shape;
    const char *transport; /* NULL: "shm", or with hosts "tcp" */
    const char *hosts;     /* "a,b": the first is this machine, and members are
                            * divided evenly; NULL: all here */
    const char *agent;   /* command that runs another on host %h; NULL: "ssh -o BatchMode=yes %h" */
    const char *listen;  /* address at which members reach the leader; NULL: 127.0.0.1, with
                            * hosts all addresses */
    const char *program; /* tern on the other hosts; NULL: "tern" */
};

/* Is the configuration one that can be started? E_INVALID, E_UNSUPPORTED. Starts nothing. */
int gang_check(const struct gang_conf *c, struct err *e);
/* Starts the members and waits until all have joined. */
int gang_open(struct gang **out, const struct gang_conf *c, struct err *e);

/* The configuration in words, as flags and settings have it. Texts may be NULL or empty: the
 * default. */
struct gang_words {
    int tp, pp;
    bool ep;
    const char *transport, *hosts, *agent, *listen, *program;
    const char *split;   /* "auto", "even", "3,1" */
    const char *wire;    /* "f32", "q8" */
    const char *devices; /* "cuda,cpu": of each member, or one of all */
    const char *comm;    /* "auto", "host", "ipc", "nccl" */
    int64_t step_ms;
};
/* E_INVALID names the word. Borrows the texts. */
int gang_conf_of(struct gang_conf *c, const struct gang_words *w, struct err *e);
/* Does the leader's device, as another flag names it (NULL: none does), go with the configuration?
 * E_INVALID. */
int gang_check_device(const struct gang_conf *c, const char *device, struct err *e);
/* Threads of a member where none are given: its part of this machine. */
int gang_threads(const struct gang_conf *c, int given);
/* gang_open as a source; the configuration stays where it is. */
struct gang_source gang_source_of(const struct gang_conf *c);

/* ---- a member's side ---- */

/* Ends the process of a member whose leader has gone, whatever its other threads do. NULL: nothing. */
extern void (*gang_leave)(void);
/* Joins the gang of the leader that started this process (the arguments of `tern member`): fd is the
 * control connection. Heartbeats go on until the process ends, and so does the link. */
int gang_join(struct comm_link **out, int fd, struct err *e);
/* Joins over TCP; the secret comes by standard input. */
int gang_join_tcp(struct comm_link **out, const char *address, int rank, struct err *e);
#endif
