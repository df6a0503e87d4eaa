/* sandbox_seccomp.c - the system calls of a worker, as a seccomp filter made by libseccomp.
 *
 * The default is EPERM. clone3 and openat2 get ENOSYS, because a filter cannot look into the
 * structs they take and the C library then uses clone and openat, whose arguments it can check. */
#include "worker/sandbox_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#endif

static const char *const allowed[] = {
    /* memory */
    "brk", "mmap", "munmap", "mremap", "mprotect", "madvise", "mincore", "mlock", "mlock2",
    "munlock", "msync", "mbind", "get_mempolicy", "set_mempolicy", "move_pages", "membarrier",
    "memfd_create", "ftruncate",
    /* threads */
    "futex", "futex_waitv", "set_robust_list", "get_robust_list", "rseq", "set_tid_address", "exit",
    "exit_group", "gettid", "getpid", "getppid", "sched_yield", "sched_getaffinity",
    "sched_setaffinity", "sched_getparam", "sched_getscheduler", "sched_setscheduler",
    "sched_setattr", "sched_get_priority_max", "sched_get_priority_min", "getpriority",
    "setpriority", "getcpu", "arch_prctl", "restart_syscall",
    /* signals */
    "rt_sigprocmask", "rt_sigreturn", "rt_sigtimedwait", "rt_sigsuspend", "sigaltstack", "pause",
    "signalfd4",
    /* time */
    "nanosleep", "clock_nanosleep", "clock_gettime", "clock_getres", "gettimeofday", "time",
    "alarm", "setitimer", "timerfd_create", "timerfd_settime", "timerfd_gettime",
    /* facts */
    "getrusage", "times", "sysinfo", "uname", "getrlimit", "getrandom", "getuid", "geteuid",
    "getgid", "getegid", "getresuid", "getresgid", "getcwd", "capget",
    /* descriptors, as they are */
    "read", "readv", "pread64", "preadv", "preadv2", "write", "writev", "pwrite64", "close",
    "close_range", "lseek", "dup", "dup2", "dup3", "pipe2", "eventfd2", "poll", "ppoll", "select",
    "pselect6", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "epoll_pwait2",
    "sendmsg", "recvmsg", "recvfrom", "getsockopt", "setsockopt", "getsockname", "getpeername",
    "shutdown", "fadvise64", "readahead", "fstat", "fstatfs", "getdents64",
    /* files, read-only: Landlock decides which */
    "stat", "lstat", "newfstatat", "fstatat64", "statx", "statfs", "access", "faccessat",
    "faccessat2", "readlink", "readlinkat", NULL
};

/* Nobody but an intruder makes these. */
static const char *const fatal[] = {
    /* other programs and processes */
    "execve", "execveat", "ptrace", "process_vm_readv", "process_vm_writev",
    /* other views of the system */
    "mount", "umount2", "pivot_root", "chroot", "setns", "unshare", "open_by_handle_at",
    /* the kernel */
    "bpf", "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load",
    "reboot", "swapon", "swapoff", "iopl", "ioperm", "keyctl", "add_key", "request_key",
    /* other rights */
    "setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setgroups", "capset",
    NULL
};

static const int fcntl_commands[] = { F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD,     F_SETFD,
                                      F_GETFL, F_SETFL,         F_ADD_SEALS, F_GET_SEALS };
static const int prctl_options[] = { PR_SET_NAME, PR_GET_NAME, PR_SET_VMA, PR_GET_DUMPABLE,
                                     PR_SET_TIMERSLACK };

struct filter {
    scmp_filter_ctx ctx;
    int rc; /* of libseccomp: the first failure */
};

/* Calls that this architecture does not have are skipped. */
static void add_rule(struct filter *f, uint32_t action, const char *name, unsigned n,
                     const struct scmp_arg_cmp *args)
{
    int nr = seccomp_syscall_resolve_name(name), rc;

    if (f->rc != 0 || nr == __NR_SCMP_ERROR) return;
    rc = seccomp_rule_add_array(f->ctx, action, nr, n, args);
    if (rc != 0 && rc != -EDOM) f->rc = rc;
}

static void add_rule_if(struct filter *f, uint32_t action, const char *name, unsigned arg,
                        scmp_datum_t mask, scmp_datum_t value)
{
    struct scmp_arg_cmp cmp = { arg, SCMP_CMP_MASKED_EQ, mask, value };
    add_rule(f, action, name, 1, &cmp);
}

/* Argument `arg`, all 64 bits of it, has this value. */
static void allow_equal(struct filter *f, const char *name, unsigned arg, scmp_datum_t value)
{
    add_rule_if(f, SCMP_ACT_ALLOW, name, arg, UINT64_MAX, value);
}

/* Read-only. With a GPU its device files and thread names are opened for writing, too, in ways that
 * the driver chooses: where Landlock confines the whole process it decides alone, else nothing is
 * created or truncated. */
static void add_open_rules(struct filter *f, bool gpu, bool confined)
{
    scmp_datum_t forbidden = O_CREAT | O_TRUNC | (O_TMPFILE & ~O_DIRECTORY);

    if (!gpu) forbidden |= O_ACCMODE;
    else if (confined) forbidden = 0;
    add_rule_if(f, SCMP_ACT_ALLOW, "openat", 2, forbidden, 0);
    add_rule_if(f, SCMP_ACT_ALLOW, "open", 1, forbidden, 0);
    add_rule(f, SCMP_ACT_ERRNO(ENOSYS), "openat2", 0, NULL);
    for (scmp_datum_t bit = 1; bit && bit <= forbidden; bit <<= 1) {
        if (!(forbidden & bit)) continue;
        add_rule_if(f, SCMP_ACT_ERRNO(EACCES), "openat", 2, bit, bit);
        add_rule_if(f, SCMP_ACT_ERRNO(EACCES), "open", 1, bit, bit);
    }
}

static void add_process_rules(struct filter *f)
{
    scmp_datum_t self = (scmp_datum_t)getpid();

    add_rule_if(f, SCMP_ACT_ALLOW, "clone", 0, CLONE_THREAD, CLONE_THREAD);
    add_rule(f, SCMP_ACT_ERRNO(ENOSYS), "clone3", 0, NULL);
    allow_equal(f, "tgkill", 0, self);
    allow_equal(f, "kill", 0, self);
    for (scmp_datum_t sig = 1; sig < (scmp_datum_t)_NSIG; sig++) /* NE would compare 64 bits */
        if (sig != SIGSYS) allow_equal(f, "rt_sigaction", 0, sig);
    allow_equal(f, "prlimit64", 2, 0); /* asks, sets nothing */
    allow_equal(f, "sendto", 4, 0);    /* to the connected peer */
    for (size_t i = 0; i < sizeof fcntl_commands / sizeof *fcntl_commands; i++)
        allow_equal(f, "fcntl", 1, (scmp_datum_t)fcntl_commands[i]);
    for (size_t i = 0; i < sizeof prctl_options / sizeof *prctl_options; i++)
        allow_equal(f, "prctl", 0, (scmp_datum_t)prctl_options[i]);
}

/* CUDA's driver gives up (error 304) where it gets no Unix socket. It binds one to an abstract name,
 * through which other processes of the user can ask for its memory, and connects another one to a
 * server that shares a GPU (MPS), without which it goes on: connect says that there is none. Landlock
 * refuses names in the file system. */
static void add_gpu_rules(struct filter *f)
{
    static const char *const calls[] = { "ioctl", "bind", "listen", "accept", "accept4" };

    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        add_rule(f, SCMP_ACT_ALLOW, calls[i], 0, NULL);
    allow_equal(f, "socket", 0, AF_UNIX);
    add_rule(f, SCMP_ACT_ERRNO(ENOENT), "connect", 0, NULL);
}

static void set_attribute(struct filter *f, enum scmp_filter_attr attr, uint32_t value)
{
    if (f->rc == 0) f->rc = seccomp_attr_set(f->ctx, attr, value);
}

/* TSYNC: all threads get the filter, or none. OPTIMIZE 2: a binary search, not a list. */
static void fill_filter(struct filter *f, const struct sandbox_opt *opt, bool confined)
{
    set_attribute(f, SCMP_FLTATR_CTL_TSYNC, 1);
    set_attribute(f, SCMP_FLTATR_CTL_OPTIMIZE, 2);
    set_attribute(f, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    for (const char *const *p = allowed; *p; p++) add_rule(f, SCMP_ACT_ALLOW, *p, 0, NULL);
    for (const char *const *p = fatal; *p; p++) add_rule(f, SCMP_ACT_TRAP, *p, 0, NULL);
    add_open_rules(f, opt->gpu, confined);
    add_process_rules(f);
    if (opt->gpu) add_gpu_rules(f);
}

int seccomp_enter(const struct sandbox_opt *opt, bool confined, struct err *e)
{
    struct filter f = { .ctx = seccomp_init(SCMP_ACT_ERRNO(EPERM)) };
    int rc = OK;

    if (!f.ctx) return err_nomem(e, "the sandbox's filter");
    fill_filter(&f, opt, confined);
    if (f.rc == 0) f.rc = seccomp_load(f.ctx);
    if (f.rc == -ENOMEM) rc = err_nomem(e, "the sandbox's filter");
    else if (f.rc != 0)
        rc = err_set(e, E_UNSUPPORTED, "sandbox: seccomp: %s", strerror(f.rc < 0 ? -f.rc : f.rc));
    seccomp_release(f.ctx);
    return rc;
}
