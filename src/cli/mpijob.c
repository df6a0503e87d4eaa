#include "cli/mpijob.h"

#include "base/log.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define JOB_ENV "TERN_MPI_JOB"

enum { HIGH_FD = 10, END_MS = 500, RANKS = 128, LOOKS = 50, LOOK_MS = 100 };

/* ---- the command ---- */

char **mpijob_command(const struct mpijob *j, int argc, char **argv)
{
    enum { OWN = 16, TEXT = 4096 + 1024 };
    size_t pointers = ((size_t)argc + OWN) * sizeof(char *);
    char **v = mem_alloc(pointers + TEXT), *np, *hosts, *self;
    ssize_t len;
    int n = 0;

    if (!v) return NULL;
    np = (char *)v + pointers;
    hosts = np + 16;
    self = np + 1024;
    len = readlink("/proc/self/exe", self, 4095);
    self[len > 0 ? len : 0] = 0;
    snprintf(np, 16, "%d", j->n);
    snprintf(hosts, 1024 - 16, "%s", j->hosts ? j->hosts : "");
    v[n++] = (char *)"mpirun";
    if (geteuid() == 0) v[n++] = (char *)"--allow-run-as-root";
    v[n++] = (char *)"--oversubscribe";
    v[n++] = (char *)"--bind-to"; /* members have threads */
    v[n++] = (char *)"none";
    v[n++] = (char *)"-np";
    v[n++] = np;
    if (*hosts) v[n++] = (char *)"--host", v[n++] = hosts;
    if (getenv(JOB_ENV)) v[n++] = (char *)"-x", v[n++] = (char *)JOB_ENV;
    v[n++] = j->program ? (char *)j->program : self;
    for (int i = 0; i < argc; i++) v[n++] = argv[i];
    v[n] = NULL;
    return v;
}

/* ---- descriptors ---- */

/* An address that is no file: it goes with the socket. */
static socklen_t make_address(struct sockaddr_un *a, const char *name)
{
    int n;

    *a = (struct sockaddr_un){ .sun_family = AF_UNIX };
    n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "tern-mpi-%s", name);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

union fd_room {
    struct cmsghdr head;
    char room[CMSG_SPACE(MPIJOB_FDS * sizeof(int))];
};

/* The numbers as bytes, the descriptors beside them. */
static bool send_fds(int to, const int *fds, int n)
{
    unsigned char numbers[MPIJOB_FDS];
    union fd_room c = { 0 };
    struct iovec v = { numbers, (size_t)n };
    struct msghdr m = { .msg_iov = &v,
                        .msg_iovlen = 1,
                        .msg_control = &c,
                        .msg_controllen = CMSG_SPACE((size_t)n * sizeof(int)) };
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);

    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
    for (int i = 0; i < n; i++) numbers[i] = (unsigned char)fds[i];
    memcpy(CMSG_DATA(h), fds, (size_t)n * sizeof(int));
    return sendmsg(to, &m, MSG_NOSIGNAL) == n;
}

static int receive_fds(int from, struct err *e)
{
    unsigned char numbers[MPIJOB_FDS];
    union fd_room c = { 0 };
    struct iovec v = { numbers, sizeof numbers };
    struct msghdr m = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c
    };
    ssize_t n = recvmsg(from, &m, MSG_CMSG_CLOEXEC);
    struct cmsghdr *h = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    int got[MPIJOB_FDS];

    if (!h || h->cmsg_type != SCM_RIGHTS || h->cmsg_len != CMSG_LEN((size_t)n * sizeof(int)))
        return err_set(e, E_WORKER, "the process that started this MPI job has gone");
    memcpy(got, CMSG_DATA(h), (size_t)n * sizeof(int));
    for (ssize_t i = 0; i < n; i++) { /* first out of the way of those to come */
        int high = fcntl(got[i], F_DUPFD_CLOEXEC, HIGH_FD);
        close(got[i]);
        got[i] = high;
    }
    for (ssize_t i = 0; i < n; i++) {
        if (got[i] < 0 || dup2(got[i], numbers[i]) < 0)
            return err_set(e, E_IO, "descriptor %d: %s", numbers[i], strerror(errno));
        close(got[i]);
        fcntl(numbers[i], F_SETFD, FD_CLOEXEC);
    }
    return OK;
}

bool mpijob_is_ours(int *rank)
{
    static const char *const names[] = { "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK" };
    const char *text = NULL;

    for (size_t i = 0; !text && i < sizeof names / sizeof *names; i++) text = getenv(names[i]);
    if (!text || !getenv(JOB_ENV)) return false;
    *rank = atoi(text);
    return true;
}

/* The connection stays open: its end tells the first process that rank 0 has ended. */
int mpijob_take(struct err *e)
{
    struct sockaddr_un a;
    socklen_t n = make_address(&a, getenv(JOB_ENV));
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), high = -1;

    if (s >= 0) high = fcntl(s, F_DUPFD_CLOEXEC, HIGH_FD), close(s);
    if (high < 0 || connect(high, (struct sockaddr *)&a, n) != 0)
        return err_set(e, E_WORKER, "the process that started this MPI job has gone: %s",
                       strerror(errno));
    return receive_fds(high, e);
}

/* ---- the first process ---- */

struct job {
    pid_t pid, leader; /* mpirun; rank 0, 0: it has not asked yet */
    int pidfd, signals, listener, control;
    const int *fds;
    int n_fds;
    bool asked; /* to end */
    pid_t ranks[RANKS];
    int rank_fds[RANKS], n_ranks; /* pidfds: mpirun itself takes seconds to end the rest of a job */
};

/* Before mpirun starts: its environment has the name. */
static bool open_listener(struct job *j)
{
    unsigned char raw[16];
    struct sockaddr_un a;
    char name[33];
    socklen_t n;

    if (getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw) return false;
    for (size_t i = 0; i < sizeof raw; i++) snprintf(name + 2 * i, 3, "%02x", raw[i]);
    n = make_address(&a, name);
    j->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    return j->listener >= 0 && bind(j->listener, (struct sockaddr *)&a, n) == 0 &&
           listen(j->listener, 4) == 0 && setenv(JOB_ENV, name, 1) == 0;
}

static bool open_signals(struct job *j)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    return sigprocmask(SIG_BLOCK, &set, NULL) == 0 &&
           (j->signals = signalfd(-1, &set, SFD_CLOEXEC)) >= 0;
}

/* mpirun ends its processes when it is told to; it is told when this process ends. */
static bool start_mpirun(struct job *j, char **command)
{
    pid_t parent = getpid();
    sigset_t none;

    if ((j->pid = fork()) < 0) return false;
    if (j->pid > 0) {
        j->pidfd = (int)syscall(SYS_pidfd_open, j->pid, 0);
        return j->pidfd >= 0 && fcntl(j->pidfd, F_SETFD, FD_CLOEXEC) == 0;
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    for (int i = 0; i < j->n_fds; i++) close(j->fds[i]); /* they are rank 0's alone */
    execvp(command[0], command);
    _exit(127);
}

/* Only a process of the same user is rank 0. After this, its end is the end of the server's link. */
static void hand_over(struct job *j)
{
    struct ucred who = { 0 };
    socklen_t n = sizeof who;
    int fd = accept4(j->listener, NULL, NULL, SOCK_CLOEXEC), open[MPIJOB_FDS], n_open = 0;

    if (fd < 0) return;
    for (int i = 0; i < j->n_fds && n_open < MPIJOB_FDS; i++)
        if (fcntl(j->fds[i], F_GETFD) >= 0) open[n_open++] = j->fds[i];
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) != 0 || who.uid != geteuid() ||
        !send_fds(fd, open, n_open)) {
        close(fd);
        return;
    }
    j->control = fd;
    j->leader = who.pid;
    for (int i = 0; i < n_open; i++) close(open[i]);
}

static bool has_ended(struct job *j, int ms)
{
    struct pollfd p = { j->pidfd, POLLIN, 0 };

    return poll(&p, 1, ms) > 0;
}

/* Calls fn for every process that mpirun has started on this machine: ranks, and the agents that start and
 * end the ranks of other hosts. */
static void each_rank(struct job *j, void (*fn)(struct job *j, pid_t pid))
{
    char path[300], text[RANKS * 8], *end;
    struct dirent *d;
    DIR *tasks;

    snprintf(path, sizeof path, "/proc/%d/task", (int)j->pid);
    if (!(tasks = opendir(path))) return;
    while ((d = readdir(tasks))) {
        FILE *f;
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/children", (int)j->pid, d->d_name);
        if (d->d_name[0] == '.' || !(f = fopen(path, "re"))) continue;
        if (fgets(text, sizeof text, f))
            for (char *p = text; *p; p = end) {
                long pid = strtol(p, &end, 10);
                if (end == p || pid < 2) break;
                fn(j, (pid_t)pid);
            }
        fclose(f);
    }
    closedir(tasks);
}

static void kill_rank(struct job *j, pid_t pid)
{
    (void)j;
    kill(pid, SIGKILL);
}

static void add_rank(struct job *j, pid_t pid)
{
    int fd;

    for (int i = 0; i < j->n_ranks; i++)
        if (j->ranks[i] == pid) return;
    if (j->n_ranks == RANKS || (fd = (int)syscall(SYS_pidfd_open, pid, 0)) < 0) return;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    j->ranks[j->n_ranks] = pid;
    j->rank_fds[j->n_ranks++] = fd;
}

/* Rank 0 has ended: no rank goes on. */
static int end_job(struct job *j)
{
    int status = 0;

    if (!j->asked || !has_ended(j, END_MS)) {
        each_rank(j, kill_rank);
        if (!has_ended(j, END_MS)) kill(j->pid, SIGTERM); /* it cleans up, later than we can wait */
    }
    return waitpid(j->pid, &status, WNOHANG) == j->pid && WIFEXITED(status) ? WEXITSTATUS(status)
                                                                            : 1;
}

static void pass_signal(struct job *j)
{
    struct signalfd_siginfo i;

    if (read(j->signals, &i, sizeof i) != (ssize_t)sizeof i) return;
    j->asked = true;
    if (j->leader) kill(j->leader, MPIJOB_END);
    else kill(j->pid, SIGTERM); /* there is nothing to end in order yet */
}

/* Has a rank ended that nobody asked to? */
static bool has_lost_rank(const struct job *j, const struct pollfd *p)
{
    for (int i = 0; i < j->n_ranks; i++)
        if (p[i].revents && !j->asked) return true;
    return false;
}

/* Ranks are looked for while the job starts: rank 0 may be there before the others. */
static int watch_job(struct job *j)
{
    struct pollfd p[3 + RANKS];

    for (int looks = 0;;) {
        bool looking = j->leader && looks < LOOKS;
        p[0] = (struct pollfd){ j->pidfd, POLLIN, 0 };
        p[1] = (struct pollfd){ j->signals, POLLIN, 0 };
        p[2] = (struct pollfd){ j->control >= 0 ? j->control : j->listener, POLLIN, 0 };
        for (int i = 0; i < j->n_ranks; i++)
            p[3 + i] = (struct pollfd){ j->asked ? -1 : j->rank_fds[i], POLLIN, 0 };
        if (poll(p, 3 + (nfds_t)j->n_ranks, looking ? LOOK_MS : -1) < 0 && errno != EINTR) return 1;
        if (p[1].revents) pass_signal(j);
        if (p[0].revents || has_lost_rank(j, p + 3)) return end_job(j);
        if (p[2].revents && j->control >= 0) return end_job(j);
        if (p[2].revents) hand_over(j);
        if (j->leader && looks < LOOKS) looks++, each_rank(j, add_rank);
    }
}

int mpijob_run(const struct mpijob *conf, int argc, char **argv, const int *fds, int n_fds)
{
    struct job j = {
        .pidfd = -1, .signals = -1, .listener = -1, .control = -1, .fds = fds, .n_fds = n_fds
    };
    char **command = NULL;
    int code = 1;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!open_listener(&j) || !open_signals(&j) || !(command = mpijob_command(conf, argc, argv)) ||
        !start_mpirun(&j, command))
        log_error("an MPI job cannot be started: %s", strerror(errno));
    else if ((code = watch_job(&j)) == 127)
        log_error("mpirun is not here: install openmpi-bin, or use transport tcp");
    mem_free(command);
    return code;
}
