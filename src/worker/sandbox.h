/* sandbox.h - what a worker process may still do once it runs: compute, and read its model.
 *
 * The parsers of model files run behind this. Four layers, from the outside in:
 *
 *   no_new_privs  programs with the setuid bit gain nothing.
 *   limits        no core file: it would hold weights and prompts, and take minutes of a restart.
 *   Landlock      the file system is the model's path and a few system files, read-only; no TCP; no
 *                 signal and no abstract socket outside. Needs Linux 5.13 (TCP: 6.7, signals: 6.12).
 *   seccomp       an allow-list of system calls. Files open read-only; existing sockets work, new
 *                 ones are refused; threads start, processes do not; ioctl only with a GPU.
 *
 * A refused system call returns EPERM (files: EACCES), since libraries ask and have other ways. System
 * calls that only an intruder makes (execve, ptrace, mount, bpf, ...) end the process with SIGSYS
 * after a line in the log that names the call.
 *
 * Call sandbox_enter on the main thread before other threads start: seccomp covers every thread,
 * Landlock only the calling one and those it starts later (sandbox_info.n_outside counts others).
 * There is no way back. */
#ifndef TERN_WORKER_SANDBOX_H
#define TERN_WORKER_SANDBOX_H

#include "base/err.h"

#include <stdbool.h>
#include <sys/types.h>

struct sandbox_opt {
    const char
        *model; /* path of the model: a file, with what belongs to it, or a folder; NULL: none */
    const char *const
        *read; /* [n_read] further files and folders to read; missing ones are skipped */
    int n_read;
    bool gpu; /* device files and ioctl, and the libraries of the CUDA plugin */
    pid_t
        parent; /* dies with it (PR_SET_PDEATHSIG, SIGKILL); 0: does not. The signal comes when the
                   * THREAD that forked us ends, so a thread that lives on must start workers */
    bool no_landlock, no_seccomp; /* tests */
};

struct sandbox_info {
    bool seccomp;
    int landlock;   /* version of the kernel's Landlock; 0: it has none, files are not confined */
    int n_outside;  /* threads that were running and that Landlock does not cover */
    char text[160]; /* in words, for the log and /status */
};

/* E_UNSUPPORTED: the kernel has no seccomp filters. E_DENIED: the parent is gone already. E_IO,
 * E_NOMEM. After an error the process may be confined in part and should end. */
int sandbox_enter(const struct sandbox_opt *opt, struct sandbox_info *info, struct err *e);

/* Why a process that ended with this signal was ended: SIGSYS is the sandbox. NULL: not by it. */
const char *sandbox_death(int sig);
#endif
