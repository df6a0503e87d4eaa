/* pullchild.c - posix_spawn, a pipe and a pidfd on the loop. See pullchild.h. */
#include "server/pullchild.h"

#include "base/buf.h"
#include "base/mem.h"
#include "net/loop.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum {
    ENV_MAX = 1024,
    LINE_MOST = 64 << 10, /* of one event: the rest of a longer line is dropped */
    READS = 16,           /* of one turn: other connections are served in between */
    STOP_MS = 5000        /* from SIGTERM to SIGKILL */
};

struct pullchild {
    struct pullchild_opt opt; /* without the name */
    pid_t pid;
    int out, pidfd;              /* its stdout; -1: none */
    struct event *lines, *ended; /* on them */
    struct loop_timer *killer;
    struct buf line; /* the beginning of one that is not complete */
    bool too_long;   /* the rest of the line is dropped */
};

/* ---- start ---- */

/* The environment without the server's keys and sources of settings. */
static void filter_env(char *out[ENV_MAX + 1])
{
    int n = 0;

    for (char **p = environ; *p && n < ENV_MAX; p++) {
        bool ours = strncmp(*p, "TERN_", 5) == 0;
        if (!ours || strncmp(*p, "TERN_PULL_LIB=", 14) == 0) out[n++] = *p;
    }
    out[n] = NULL;
}

static int set_up(posix_spawn_file_actions_t *fa, posix_spawnattr_t *at, int fd)
{
    sigset_t none, dflt;
    int rc;

    sigemptyset(&none);
    sigfillset(&dflt);
    sigdelset(&dflt, SIGKILL);
    sigdelset(&dflt, SIGSTOP);
    if ((rc = posix_spawn_file_actions_adddup2(fa, fd, 1)) != 0) return rc;
    if ((rc = posix_spawn_file_actions_addopen(fa, 0, "/dev/null", O_RDONLY, 0)) != 0) return rc;
    /* The child's errors are among its events. */
    if ((rc = posix_spawn_file_actions_addopen(fa, 2, "/dev/null", O_WRONLY, 0)) != 0) return rc;
    if ((rc = posix_spawnattr_setsigmask(at, &none)) != 0) return rc;
    if ((rc = posix_spawnattr_setsigdefault(at, &dflt)) != 0) return rc;
    return posix_spawnattr_setflags(at, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                            POSIX_SPAWN_SETSID);
}

static int spawn(pid_t *pid, const char *name, int fd)
{
    char *argv[] = { "tern", "pull", (char *)name, "--json", "--quiet", NULL };
    char *env[ENV_MAX + 1];
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t at;
    int rc;

    filter_env(env);
    if ((rc = posix_spawn_file_actions_init(&fa)) != 0) return rc;
    if ((rc = posix_spawnattr_init(&at)) != 0) {
        posix_spawn_file_actions_destroy(&fa);
        return rc;
    }
    if ((rc = set_up(&fa, &at, fd)) == 0)
        rc = posix_spawn(pid, "/proc/self/exe", &fa, &at, argv, env);
    posix_spawnattr_destroy(&at);
    posix_spawn_file_actions_destroy(&fa);
    return rc;
}

static int start_process(struct pullchild *c, const char *name, struct err *e)
{
    int fds[2], rc;

    if (pipe2(fds, O_CLOEXEC) != 0) return err_set(e, E_IO, "pull: pipe: %s", strerror(errno));
    c->out = fds[0];
    rc = fcntl(fds[0], F_SETFL, O_NONBLOCK) == 0 ? spawn(&c->pid, name, fds[1]) : errno;
    close(fds[1]);
    if (rc != 0) {
        c->pid = 0;
        return err_set(e, E_IO, "cannot start tern pull: %s", strerror(rc));
    }
    if ((c->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0)) < 0)
        return err_set(e, E_IO, "pull: pidfd_open: %s", strerror(errno));
    fcntl(c->pidfd, F_SETFD, FD_CLOEXEC);
    return OK;
}

/* ---- lines ---- */

static void add_bytes(struct pullchild *c, const char *p, size_t n)
{
    for (const char *end; n > 0; n -= (size_t)(end - p), p = end) {
        const char *nl = memchr(p, '\n', n);
        end = nl ? nl + 1 : p + n;
        if (!c->too_long) buf_add(&c->line, p, (size_t)((nl ? nl : end) - p));
        c->too_long |= c->line.n > LINE_MOST || c->line.failed;
        if (!nl) continue;
        if (!c->too_long) c->opt.line(c->opt.arg, buf_str(&c->line));
        buf_clear(&c->line);
        c->too_long = false;
    }
}

/* false: there is nothing more to read now. */
static bool read_some(struct pullchild *c)
{
    char bytes[8192];
    ssize_t n = read(c->out, bytes, sizeof bytes);

    if (n > 0) add_bytes(c, bytes, (size_t)n);
    if (n == 0) event_del(c->lines); /* the pidfd tells the rest */
    return n > 0 || (n < 0 && errno == EINTR);
}

static void on_lines(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    for (int i = 0; i < READS && read_some(arg); i++) continue;
}

/* ---- the end ---- */

static void free_child(struct pullchild *c)
{
    if (c->lines) event_free(c->lines);
    if (c->ended) event_free(c->ended);
    loop_timer_close(c->killer);
    if (c->out >= 0) close(c->out);
    if (c->pidfd >= 0) close(c->pidfd);
    buf_release(&c->line);
    mem_free(c);
}

static void on_ended(evutil_socket_t fd, short what, void *arg)
{
    struct pullchild *c = arg;
    int status = 0;

    (void)fd, (void)what;
    if (waitpid(c->pid, &status, WNOHANG) == 0) return;
    event_del(c->ended);
    while (read_some(c)) continue; /* a pipe's worth at most: nobody writes any more */
    c->opt.ended(c->opt.arg, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    free_child(c);
}

static void on_killer(void *arg)
{
    struct pullchild *c = arg;
    kill(c->pid, SIGKILL);
}

/* The process was not waited for yet: its id is no other's. */
void pullchild_stop(struct pullchild *c)
{
    kill(c->pid, SIGTERM);
    if (!loop_timer_set(c->killer, STOP_MS)) kill(c->pid, SIGKILL);
}

void pullchild_close(struct pullchild *c)
{
    if (!c) return;
    if (c->pid > 0) {
        kill(c->pid, SIGKILL);
        while (waitpid(c->pid, NULL, 0) < 0 && errno == EINTR) continue;
    }
    free_child(c);
}

int pullchild_start(struct pullchild **out, const struct pullchild_opt *opt, struct err *e)
{
    struct pullchild *c = mem_new(struct pullchild);
    struct event_base *base = loop_base(opt->loop);
    int rc;

    if (!c) return err_nomem(e, "a pull");
    *c = (struct pullchild){ .opt = *opt, .out = -1, .pidfd = -1 };
    c->opt.name = NULL;
    if (!(c->killer = loop_timer(opt->loop, on_killer, c))) rc = err_nomem(e, "a pull");
    else rc = start_process(c, opt->name, e);
    if (rc == OK) {
        c->lines = event_new(base, c->out, EV_READ | EV_PERSIST, on_lines, c);
        c->ended = event_new(base, c->pidfd, EV_READ | EV_PERSIST, on_ended, c);
        if (!c->lines || !c->ended || event_add(c->lines, NULL) != 0 ||
            event_add(c->ended, NULL) != 0)
            rc = err_nomem(e, "a pull");
    }
    if (rc == OK) *out = c;
    else pullchild_close(c);
    return rc;
}
