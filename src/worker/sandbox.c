/* sandbox.c - the order of the layers, and the signal that ends an intruder. */
#include "worker/sandbox_impl.h"

#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
    int number;
    const char *name;
} fatal_calls[] = {
    { SYS_execve, "execve" },
    { SYS_execveat, "execveat" },
    { SYS_ptrace, "ptrace" },
    { SYS_process_vm_readv, "process_vm_readv" },
    { SYS_process_vm_writev, "process_vm_writev" },
    { SYS_mount, "mount" },
    { SYS_bpf, "bpf" },
    { SYS_unshare, "unshare" },
    { SYS_setns, "setns" },
};

/* The signal comes from the system call itself, not from anywhere, and log_line neither allocates
 * nor locks. The handler was removed by SA_RESETHAND, so the raised signal ends the process when
 * the handler returns; a second thread that comes here meanwhile ends it at once. */
static void on_sigsys(int sig, siginfo_t *info, void *context)
{
    const char *name = "?";

    (void)context;
    for (size_t i = 0; i < sizeof fatal_calls / sizeof *fatal_calls; i++)
        if (fatal_calls[i].number == info->si_syscall) name = fatal_calls[i].name;
    log_error("sandbox: forbidden system call %d (%s); the worker ends", info->si_syscall, name);
    raise(sig);
}

static int catch_sigsys(struct err *e)
{
    struct sigaction sa = { .sa_sigaction = on_sigsys, .sa_flags = SA_SIGINFO | (int)SA_RESETHAND };

    sigemptyset(&sa.sa_mask);
    if (sigaction(SIGSYS, &sa, NULL) == 0) return OK;
    return err_set(e, E_IO, "sandbox: sigaction: %s", strerror(errno));
}

static int count_threads(void)
{
    DIR *d = opendir("/proc/self/task");
    int n = 0;

    if (!d) return 1;
    for (struct dirent *f; (f = readdir(d));) n += f->d_name[0] != '.';
    closedir(d);
    return n;
}

/* The signal is asked for first and the parent checked after it: one that died in between is
 * noticed by the check. */
static int follow_parent(pid_t parent, struct err *e)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        return err_set(e, E_IO, "sandbox: PR_SET_PDEATHSIG: %s", strerror(errno));
    if (getppid() != parent)
        return err_set(e, E_DENIED, "sandbox: the parent process %d is gone", (int)parent);
    return OK;
}

/* A limit of 1 byte, not 0: with 0 the kernel still runs a program that /proc/sys/kernel/core_pattern
 * names (core(5)). */
static int forbid_core_files(struct err *e)
{
    if (setrlimit(RLIMIT_CORE, &(struct rlimit){ 1, 1 }) == 0) return OK;
    if (setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 }) == 0) return OK; /* the limit was lower */
    return err_set(e, E_IO, "sandbox: RLIMIT_CORE: %s", strerror(errno));
}

static void describe(struct sandbox_info *info, const struct sandbox_opt *opt)
{
    size_t cap = sizeof info->text;
    int n = snprintf(info->text, cap, "%s", info->seccomp ? "seccomp" : "no seccomp");

    if (info->landlock)
        n += snprintf(info->text + n, cap - (size_t)n, ", landlock %d", info->landlock);
    else
        n += snprintf(info->text + n, cap - (size_t)n,
                      ", no landlock (the kernel has none): any file may be read%s",
                      opt->gpu ? ", existing ones written" : "");
    if (info->landlock && info->n_outside)
        snprintf(info->text + n, cap - (size_t)n, ", %d threads outside it", info->n_outside);
}

int sandbox_enter(const struct sandbox_opt *opt, struct sandbox_info *info, struct err *e)
{
    int rc, n_threads = count_threads();

    *info = (struct sandbox_info){ 0 };
    if (opt->parent && (rc = follow_parent(opt->parent, e)) != OK) return rc;
    if ((rc = forbid_core_files(e)) != OK) return rc;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return err_set(e, E_UNSUPPORTED, "sandbox: no_new_privs: %s", strerror(errno));
    if (!opt->no_landlock && (info->landlock = landlock_version()) > 0) {
        if ((rc = landlock_enter(opt, info->landlock, e)) != OK) return rc;
        info->n_outside = n_threads - 1;
    }
    if (!opt->no_seccomp) {
        if ((rc = catch_sigsys(e)) != OK) return rc;
        if ((rc = seccomp_enter(opt, info->landlock >= 3 && n_threads == 1, e)) != OK) return rc;
        info->seccomp = true;
    }
    describe(info, opt);
    return OK;
}

const char *sandbox_death(int sig)
{
    return sig == SIGSYS ? "it made a system call that its sandbox forbids" : NULL;
}
