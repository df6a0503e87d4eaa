/* mpijob.h - a process that stands for an MPI job: who supervises it supervises the job.
 *
 *     server ──starts──► tern worker ──mpirun──► rank 0: the leader, which has the server's socket
 *                                          └───► rank 1, ...: other members
 *
 * mpirun closes the descriptors of what it starts, so rank 0 gets them over a Unix socket whose name is
 * in its environment. After that the first process only watches: when a rank of this machine ends that
 * was not asked to, the rest of the job is killed and the process ends; when the process ends, so does
 * the job. SIGTERM asks rank 0 by MPIJOB_END to end in order; SIGTERM of mpirun, which has lost a rank,
 * ends rank 0 at once. */
#ifndef TERN_CLI_MPIJOB_H
#define TERN_CLI_MPIJOB_H

#include "base/err.h"

#include <signal.h>
#include <stdbool.h>

enum { MPIJOB_END = SIGUSR1, MPIJOB_FDS = 8 };

struct mpijob {
    int n;               /* processes */
    const char *hosts;   /* "a,b"; NULL: all here */
    const char *program; /* tern on all hosts; NULL: this program */
};

/* mpirun and its arguments, to start n processes of `tern argv...`; one block of memory. NULL: none. */
char **mpijob_command(const struct mpijob *j, int argc, char **argv);

/* Starts the job with the arguments, hands the descriptors that are open among fds to rank 0, where they
 * have the same numbers, and returns when the job has ended: the exit code of this process. */
int mpijob_run(const struct mpijob *j, int argc, char **argv, const int *fds, int n_fds);

/* Was this process started by mpijob_run? Its rank is in the environment, too. */
bool mpijob_is_ours(int *rank);
/* In rank 0, before anything else is opened: takes the descriptors. */
int mpijob_take(struct err *e);
#endif
