/* spawn.c - starts a member: this program again, here or by an agent on another host. */
#include "gang/launch_impl.h"

#include "base/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

enum { WORDS = 48, CONTROL_FD = 3 };

#define AGENT "ssh -o BatchMode=yes %h"

static int count_hosts(const struct gang_conf *c)
{
    int n = c->hosts && *c->hosts;

    for (const char *p = c->hosts; n && *p; p++) n += *p == ',';
    return n;
}

/* Hosts have equal numbers of members as far as they divide, and neighbours share a host: those of a
 * stage exchange most. */
static int find_host(const struct launch *g, const struct gang_conf *c, int r)
{
    return (int)((long)r * count_hosts(c) / g->n);
}

static const char *copy_host(const struct gang_conf *c, int i, char *out, size_t cap)
{
    const char *p = c->hosts;

    if (!p || !*p) return NULL;
    while (i-- > 0) p += strcspn(p, ",") + 1;
    snprintf(out, cap, "%.*s", (int)strcspn(p, ","), p);
    return out;
}

static bool is_here(const char *host)
{
    return !host || !*host || strcmp(host, "localhost") == 0 || strcmp(host, "127.0.0.1") == 0;
}

/* Splits the agent's command at spaces; %h is the host. */
static int split_agent(struct buf *text, const char *agent, const char *host, char **argv, int max)
{
    int n = 0;

    for (const char *p = agent; *p; p++) {
        if (p[0] == '%' && p[1] == 'h') buf_puts(text, host), p++;
        else buf_putc(text, *p == ' ' ? '\0' : *p);
    }
    buf_putc(text, '\0');
    for (size_t i = 0; i < text->n && n < max; i += strlen(text->p + i) + 1)
        if (text->p[i]) argv[n++] = text->p + i;
    return n;
}

/* The member inherits the control connection as descriptor 3, or gets the secret by standard input. */
static int set_actions(posix_spawn_file_actions_t *a, int control, int input)
{
    int rc = control >= 0 ? posix_spawn_file_actions_adddup2(a, control, CONTROL_FD) : 0;

    if (rc == 0)
        rc = input >= 0
                 ? posix_spawn_file_actions_adddup2(a, input, STDIN_FILENO)
                 : posix_spawn_file_actions_addopen(a, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (rc == 0) rc = posix_spawn_file_actions_adddup2(a, STDERR_FILENO, STDOUT_FILENO);
    return rc;
}

/* Signals as a new program has them: SIGINT of a terminal goes to the leader, which ends the gang. */
static int set_attributes(posix_spawnattr_t *a)
{
    sigset_t none, all;
    int rc;

    sigemptyset(&none);
    sigfillset(&all);
    sigdelset(&all, SIGKILL);
    sigdelset(&all, SIGSTOP);
    rc = posix_spawnattr_setsigmask(a, &none);
    if (rc == 0) rc = posix_spawnattr_setsigdefault(a, &all);
    if (rc == 0) rc = posix_spawnattr_setpgroup(a, 0);
    if (rc == 0)
        rc = posix_spawnattr_setflags(a, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                             POSIX_SPAWN_SETPGROUP);
    return rc;
}

static int spawn(pid_t *pid, char **argv, int control, int input, struct err *e)
{
    posix_spawn_file_actions_t acts;
    posix_spawnattr_t attr;
    int rc;

    if (posix_spawn_file_actions_init(&acts) != 0) return err_nomem(e, "a member's process");
    if (posix_spawnattr_init(&attr) != 0) {
        posix_spawn_file_actions_destroy(&acts);
        return err_nomem(e, "a member's process");
    }
    rc = set_actions(&acts, control, input);
    if (rc == 0) rc = set_attributes(&attr);
    if (rc == 0) rc = posix_spawnp(pid, argv[0], &acts, &attr, argv, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&acts);
    return rc == 0 ? OK : err_set(e, E_IO, "cannot start %s: %s", argv[0], strerror(rc));
}

/* A pipe that holds the secret. */
static int make_input(int *fd, const char *secret, struct err *e)
{
    char hex[2 * GANG_SECRET + 2];
    int p[2];
    ssize_t k;

    for (int i = 0; i < GANG_SECRET; i++)
        snprintf(hex + 2 * i, 3, "%02x", (unsigned char)secret[i]);
    hex[2 * GANG_SECRET] = '\n';
    if (pipe2(p, O_CLOEXEC) != 0) return err_set(e, E_IO, "no pipe: %s", strerror(errno));
    k = write(p[1], hex, 2 * GANG_SECRET + 1);
    close(p[1]);
    *fd = p[0];
    return k == 2 * GANG_SECRET + 1 ? OK : err_set(e, E_IO, "no pipe: %s", strerror(errno));
}

int gang_spawn(struct launch *g, int r, const struct gang_conf *c, int control, int port,
               const char *secret, struct err *e)
{
    char host[256], connect[300], rank[16], *argv[WORDS + 10];
    int at = find_host(g, c, r);
    const char *on = copy_host(c, at, host, sizeof host), *leader = c->listen;
    struct buf agent = { 0 };
    int n = 0, input = -1, rc = OK;

    if (at > 0 && !is_here(on)) { /* the first host is the leader's own */
        n = split_agent(&agent, c->agent ? c->agent : AGENT, on, argv, WORDS);
        argv[n++] = (char *)(c->program ? c->program : "tern");
    } else {
        argv[n++] = (char *)"/proc/self/exe";
    }
    argv[n++] = (char *)"member";
    if (g->transport == TRANSPORT_SHM) {
        argv[n++] = (char *)"--control";
        argv[n++] = (char *)"3";
    } else {
        char first[256];
        /* By the leader's name where there are others: they reach this member by the address from which
         * it connects. */
        if (!leader || strcmp(leader, "0.0.0.0") == 0)
            leader = count_hosts(c) > 1 ? copy_host(c, 0, first, sizeof first) : "127.0.0.1";
        snprintf(connect, sizeof connect, "%s:%d", leader, port);
        snprintf(rank, sizeof rank, "%d", r);
        argv[n++] = (char *)"--connect";
        argv[n++] = connect;
        argv[n++] = (char *)"--rank";
        argv[n++] = rank;
        rc = make_input(&input, secret, e);
    }
    argv[n] = NULL;
    if (rc == OK) rc = buf_check(&agent, e);
    if (rc == OK) rc = spawn(&g->members[r].pid, argv, control, input, e);
    if (input >= 0) close(input);
    buf_release(&agent);
    return rc;
}
