/* process.c - posix_spawn, pidfd and waitid. See process.h.
 *
 * posix_spawn does not copy the page tables of a large server, unlike fork. Signals that the server
 * handles or ignores have their defaults in the child. */
#include "worker/process.h"

#include "base/clock.h"
#include "base/keyring.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

extern char **environ;

enum { HIGH_FD = 10, ENV_MAX = 1024 };

/* ---- memory that ran out ---- */

/* The number behind "oom_kill " in a file of a cgroup; 0: unknown. */
static uint64_t read_count(const char *path)
{
    unsigned long long n = 0;
    char line[128];
    FILE *f = fopen(path, "re");

    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, "oom_kill ", 9) == 0) n = strtoull(line + 9, NULL, 10);
    fclose(f);
    return n;
}

/* Processes of our memory cgroup, of version 2 or 1, that the kernel has killed. */
static uint64_t read_oom_kills(void)
{
    char line[512], path[600];
    uint64_t n = 0;
    FILE *f = fopen("/proc/self/cgroup", "re");

    if (!f) return 0;
    while (fgets(line, sizeof line, f)) {
        char *name = strchr(line, ':'), *at = name ? strchr(name + 1, ':') : NULL;
        if (!at) continue;
        line[strcspn(line, "\n")] = 0;
        if (strncmp(name, "::", 2) == 0)
            snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.events", at + 1);
        else if (strncmp(name, ":memory:", 8) == 0)
            snprintf(path, sizeof path, "/sys/fs/cgroup/memory%s/memory.oom_control", at + 1);
        else continue;
        n += read_count(path);
    }
    fclose(f);
    return n;
}

/* ---- start ---- */

static int set_up(posix_spawn_file_actions_t *fa, posix_spawnattr_t *at, int fd, int shared,
                  int park)
{
    sigset_t none, dflt;
    int rc;

    sigemptyset(&none);
    sigfillset(&dflt);
    sigdelset(&dflt, SIGKILL);
    sigdelset(&dflt, SIGSTOP);
    /* All descriptors are HIGH_FD or more: none is overwritten before it is duplicated. */
    if ((rc = posix_spawn_file_actions_adddup2(fa, fd, PROCESS_FD)) != 0) return rc;
    if (shared >= 0 && (rc = posix_spawn_file_actions_adddup2(fa, shared, PROCESS_SHARED_FD)) != 0)
        return rc;
    if (park >= 0 && (rc = posix_spawn_file_actions_adddup2(fa, park, PROCESS_PARK_FD)) != 0)
        return rc;
    if ((rc = posix_spawn_file_actions_addopen(fa, 0, "/dev/null", O_RDONLY, 0)) != 0) return rc;
    if ((rc = posix_spawn_file_actions_adddup2(fa, 2, 1)) != 0) return rc;
    if ((rc = posix_spawnattr_setsigmask(at, &none)) != 0) return rc;
    if ((rc = posix_spawnattr_setsigdefault(at, &dflt)) != 0) return rc;
    /* A session of its own: without the server's terminal, whose signals are for the server. */
    return posix_spawnattr_setflags(at, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                            POSIX_SPAWN_SETSID);
}

/* The environment without the server's keys and sources of settings. */
static void filter_env(char *out[ENV_MAX + 1])
{
    static const char *const left_out[] = { "TERN_API_KEY", "TERN_TLS_KEY", "TERN_CONFIG",
                                            "TERN_MODEL",   "TERN_ALIAS",   "TERN_ISOLATE" };
    int n = 0;

    for (char **p = environ; *p && n < ENV_MAX; p++) {
        bool keep = true;
        for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
            keep &= strncmp(*p, left_out[i], strlen(left_out[i])) != 0;
        if (keep) out[n++] = *p;
    }
    out[n] = NULL;
}

static int spawn(pid_t *pid, char *const argv[], int fd, int shared, int park)
{
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t at;
    char *env[ENV_MAX + 1];
    int rc;

    filter_env(env);
    if ((rc = posix_spawn_file_actions_init(&fa)) != 0) return rc;
    if ((rc = posix_spawnattr_init(&at)) != 0) {
        posix_spawn_file_actions_destroy(&fa);
        return rc;
    }
    if ((rc = set_up(&fa, &at, fd, shared, park)) == 0)
        rc = posix_spawn(pid, "/proc/self/exe", &fa, &at, argv, env);
    posix_spawnattr_destroy(&at);
    posix_spawn_file_actions_destroy(&fa);
    return rc;
}

/* A socket pair whose second end is HIGH_FD or more. */
static int make_pair(int fds[2], struct err *e)
{
    int moved;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
        return err_set(e, E_IO, "worker: socketpair: %s", strerror(errno));
    moved = fcntl(fds[1], F_DUPFD_CLOEXEC, HIGH_FD);
    if (moved < 0) {
        err_set(e, E_IO, "worker: dup: %s", strerror(errno));
        close(fds[0]);
        close(fds[1]);
        return e ? e->code : E_IO;
    }
    close(fds[1]);
    fds[1] = moved;
    return OK;
}

/* The process has begun: the rest must not fail without ending it. */
static int watch_process(struct process *p, struct err *e)
{
    p->pidfd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    if (p->pidfd >= 0) {
        fcntl(p->pidfd, F_SETFD, FD_CLOEXEC);
        return OK;
    }
    err_set(e, E_IO, "worker: pidfd_open: %s", strerror(errno));
    kill(p->pid, SIGKILL);
    waitpid(p->pid, NULL, 0);
    return E_IO;
}

/* A descriptor of HIGH_FD or more for the same file; -1: there is none. */
static int move_high(int fd) { return fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD); }

bool process_has_park(void)
{
    struct stat st;

    return fstat(PROCESS_PARK_FD, &st) == 0 && S_ISREG(st.st_mode) &&
           fcntl(PROCESS_PARK_FD, F_SETFD, FD_CLOEXEC) == 0;
}

/* Token, number of keys, keys: into the buffer of a new socket, which does not block. */
static int send_secrets(int fd, const unsigned char *token, const struct keyset *keys,
                        struct err *e)
{
    enum { ALL = PROCESS_TOKEN + 1 + KEYSET_MAX * CRYPTO_KEY };
    unsigned char *text = crypto_secret(ALL);
    size_t n = PROCESS_TOKEN + 1;
    int rc = OK;

    if (!text) return err_nomem(e, "the token of a worker");
    memcpy(text, token, PROCESS_TOKEN);
    text[PROCESS_TOKEN] = (unsigned char)keyset_n(keys);
    for (int i = 0; i < keyset_n(keys); i++, n += CRYPTO_KEY)
        memcpy(text + n, keyset_key(keys, i), CRYPTO_KEY);
    if (send(fd, text, n, MSG_NOSIGNAL) != (ssize_t)n)
        rc = err_set(e, E_IO, "worker: send: %s", strerror(errno));
    crypto_secret_free(text, ALL);
    return rc;
}

/* fds: our end and the child's. */
static int start_child(struct process *p, char *const argv[], const int fds[2], int shared,
                       int park, struct err *e)
{
    int rc;

    p->oom = read_oom_kills();
    if (fcntl(fds[0], F_SETFL, O_NONBLOCK) != 0)
        return err_set(e, E_IO, "worker: fcntl: %s", strerror(errno));
    if ((rc = spawn(&p->pid, argv, fds[1], shared, park)) != 0)
        return err_set(e, E_IO, "cannot start a worker process: %s", strerror(rc));
    return watch_process(p, e);
}

int process_start(struct process *p, char *const argv[], int shared, int park, int *fd,
                  unsigned char token[PROCESS_TOKEN], const struct keyset *keys, struct err *e)
{
    int fds[2], rc, high;

    *p = (struct process){ .pidfd = -1 };
    if (pthread_mutex_init(&p->lock, NULL) != 0) return err_nomem(e, "a mutex");
    if (getrandom(token, PROCESS_TOKEN, 0) != PROCESS_TOKEN) {
        rc = err_set(e, E_IO, "worker: getrandom: %s", strerror(errno));
        goto out;
    }
    if ((rc = make_pair(fds, e)) != OK) goto out;
    high = move_high(park);
    rc = send_secrets(fds[0], token, keys, e);
    if (rc == OK) rc = start_child(p, argv, fds, shared, high, e);
    if (high >= 0) close(high);
    close(fds[1]);
    if (rc == OK) *fd = fds[0];
    else close(fds[0]);
out:
    if (rc != OK) pthread_mutex_destroy(&p->lock);
    return rc;
}

/* Its size is sealed: a child that shortened it would end whoever reads it with SIGBUS. */
int process_share(size_t n, void **mem)
{
    int fd = memfd_create("tern-worker", MFD_CLOEXEC | MFD_ALLOW_SEALING), high;

    if (fd < 0) return -1;
    high = fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD);
    close(fd);
    if (high < 0) return -1;
    *mem = ftruncate(high, (off_t)n) == 0 &&
                   fcntl(high, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0
               ? mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, high, 0)
               : MAP_FAILED;
    if (*mem != MAP_FAILED) return high;
    *mem = NULL;
    close(high);
    return -1;
}

void *process_map_shared(size_t n)
{
    struct stat st;
    void *p;

    if (fstat(PROCESS_SHARED_FD, &st) != 0 || st.st_size < (off_t)n) return NULL;
    p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, PROCESS_SHARED_FD, 0);
    close(PROCESS_SHARED_FD);
    return p == MAP_FAILED ? NULL : p;
}

static int read_exactly(int fd, unsigned char *to, size_t n, struct err *e)
{
    size_t done = 0;

    while (done < n) {
        ssize_t got = read(fd, to + done, n - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return err_set(e, E_IO, "descriptor %d: %s", fd,
                           got ? strerror(errno) : "it is closed");
        done += (size_t)got;
    }
    return OK;
}

int process_read_token(int fd, unsigned char token[PROCESS_TOKEN], struct err *e)
{
    return read_exactly(fd, token, PROCESS_TOKEN, e);
}

int process_read_keys(int fd, struct keyset **out, struct err *e)
{
    enum { ALL = KEYSET_MAX * CRYPTO_KEY };
    unsigned char n = 0, *text;
    int rc = read_exactly(fd, &n, 1, e);

    *out = NULL;
    if (rc != OK || n == 0) return rc;
    if (n > KEYSET_MAX) return err_set(e, E_FORMAT, "descriptor %d: %d keys", fd, n);
    if (!(text = crypto_secret(ALL))) return err_nomem(e, "keys");
    rc = read_exactly(fd, text, (size_t)n * CRYPTO_KEY, e);
    if (rc == OK) rc = keyset_copy(out, text, n, e);
    crypto_secret_free(text, ALL);
    return rc;
}

/* ---- end ---- */

bool process_signal(struct process *p, int sig)
{
    bool sent;

    pthread_mutex_lock(&p->lock);
    sent = !p->reaped && syscall(SYS_pidfd_send_signal, p->pidfd, sig, NULL, 0) == 0;
    if (sent && sig == SIGKILL) p->by_us = true;
    pthread_mutex_unlock(&p->lock);
    return sent;
}

bool process_reap(struct process *p)
{
    siginfo_t si = { 0 };
    bool ended;

    pthread_mutex_lock(&p->lock);
    if (!p->reaped && waitid((idtype_t)P_PIDFD, (id_t)p->pidfd, &si, WEXITED | WNOHANG) == 0 &&
        si.si_pid != 0) {
        p->reaped = true;
        p->status = si.si_status;
        p->si_code = si.si_code;
    }
    ended = p->reaped;
    pthread_mutex_unlock(&p->lock);
    return ended;
}

bool process_wait(struct process *p, int ms)
{
    uint64_t until = clock_ns() + (uint64_t)ms * 1000000;
    struct pollfd fd = { .fd = p->pidfd, .events = POLLIN };

    while (!process_reap(p)) {
        uint64_t now = clock_ns();
        if (now >= until) return false;
        poll(&fd, 1, (int)((until - now) / 1000000) + 1);
    }
    return true;
}

bool process_stop(struct process *p, int ms)
{
    bool by_itself;

    process_signal(p, SIGTERM);
    by_itself = process_wait(p, ms);
    if (by_itself) return true;
    process_signal(p, SIGKILL);
    while (!process_wait(p, 1000)) continue; /* SIGKILL cannot be refused */
    return false;
}

void process_release(struct process *p)
{
    if (p->pidfd >= 0) close(p->pidfd);
    pthread_mutex_destroy(&p->lock);
    p->pidfd = -1;
}

/* ---- how it ended ---- */

static enum process_end end_by_signal(const struct process *p)
{
    switch (p->status) {
    case SIGABRT: return PROCESS_ABORTED;
    case SIGSEGV:
    case SIGBUS:
    case SIGILL:
    case SIGFPE:
    case SIGSYS: return PROCESS_FAULT;
    case SIGKILL: return !p->by_us && read_oom_kills() > p->oom ? PROCESS_OOM : PROCESS_KILLED;
    default: return PROCESS_KILLED;
    }
}

enum process_end process_end(struct process *p)
{
    if (!process_reap(p)) return PROCESS_RUNS;
    if (p->si_code != CLD_EXITED) return end_by_signal(p);
    return p->status == 0 ? PROCESS_EXITED : PROCESS_FAILED;
}

void process_describe(struct process *p, char *out, size_t n)
{
    switch (process_end(p)) {
    case PROCESS_RUNS: snprintf(out, n, "runs"); break;
    case PROCESS_EXITED:
    case PROCESS_FAILED: snprintf(out, n, "exited with code %d", p->status); break;
    case PROCESS_ABORTED: snprintf(out, n, "aborted"); break;
    case PROCESS_OOM: snprintf(out, n, "was killed: out of memory"); break;
    default:
        snprintf(out, n, "was killed by signal %d (%s)", p->status, strsignal(p->status));
        break;
    }
}

const char *process_end_name(enum process_end end)
{
    static const char *const names[N_PROCESS_END] = { "runs",  "exited", "failed", "aborted",
                                                      "fault", "oom",    "killed" };

    return end < N_PROCESS_END ? names[end] : "?";
}
