/* process.h - a worker's process: start it, ask it to end, make it end, and learn how it ended.
 *
 * The child is this program again (/proc/self/exe) with one end of a socket pair as descriptor
 * PROCESS_FD; all other descriptors close on exec, but for stderr, which the log shares. The first
 * bytes on the socket are the token of the link's handshake, and the keys of an encrypted model, so
 * that no other process sees them: they are in no argument, variable or file.
 *
 * A process is watched by its pidfd, which is readable once it has ended. process_reap may be called
 * by any thread; the first that finds it ended keeps the status. Nothing here needs a loop. */
#ifndef TERN_WORKER_PROCESS_H
#define TERN_WORKER_PROCESS_H

#include "base/err.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    PROCESS_FD = 3,
    PROCESS_SHARED_FD = 4,
    PROCESS_PARK_FD = 5,
    PROCESS_TOKEN = 32,
    PROCESS_TERM_MS = 5000
};

struct keyset;

/* How a process ended. */
enum process_end {
    PROCESS_RUNS,
    PROCESS_EXITED, /* with code 0 */
    PROCESS_FAILED, /* with another code */
    PROCESS_ABORTED,
    PROCESS_FAULT,  /* SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS */
    PROCESS_OOM,    /* the kernel killed it since memory ran out */
    PROCESS_KILLED, /* another signal */
    N_PROCESS_END
};

struct process {
    pid_t pid;
    int pidfd; /* -1: none */
    pthread_mutex_t lock;
    bool reaped;  /* under the lock, as is the rest */
    bool by_us;   /* process_stop sent SIGKILL */
    int status;   /* si_status */
    int si_code;  /* CLD_EXITED, CLD_KILLED, CLD_DUMPED */
    uint64_t oom; /* oom_kill of the cgroup when it began */
};

/* argv[0] is the name the process shows; ends with NULL. shared and park: become PROCESS_SHARED_FD and
 * PROCESS_PARK_FD; -1: there is none. *fd: our end of the socket, which does not block; token: to be
 * used in the handshake. keys: for the child's process_read_keys; may be NULL. */
int process_start(struct process *p, char *const argv[], int shared, int park, int *fd,
                  unsigned char token[PROCESS_TOKEN], const struct keyset *keys, struct err *e);
bool process_has_park(void); /* in the child: was it given a file for parked KV blocks? */
/* Memory of n bytes that a child can map, too: its descriptor, or -1. */
int process_share(size_t n, void **mem);
void *process_map_shared(size_t n); /* in the child: that memory; NULL: there is none */
/* In the child: reads the token from the socket. */
int process_read_token(int fd, unsigned char token[PROCESS_TOKEN], struct err *e);
/* After it: the keys; *out is NULL where there are none. */
int process_read_keys(int fd, struct keyset **out, struct err *e);
bool process_signal(struct process *p, int sig); /* false: it has ended */
bool process_reap(struct process *p);            /* true: it has ended; does not wait */
bool process_wait(struct process *p, int ms);    /* the same after at most ms */
/* SIGTERM, then SIGKILL after ms, and waits until it has ended. true: it ended by itself. */
bool process_stop(struct process *p, int ms);
enum process_end process_end(struct process *p);
/* "was killed by signal 9 (Killed)", "exited with code 1": for logs and errors. */
void process_describe(struct process *p, char *out, size_t n);
const char *process_end_name(enum process_end end); /* "aborted": label of the metric */
void process_release(struct process *p);            /* after it has ended */
#endif
