/* sandbox_impl.h - the parts of sandbox_enter. Private to the sandbox*.c files. */
#ifndef TERN_WORKER_SANDBOX_IMPL_H
#define TERN_WORKER_SANDBOX_IMPL_H

#include "worker/sandbox.h"

/* Version of the kernel's Landlock; 0: it has none, or it is switched off. */
int landlock_version(void);
/* Confines the calling thread, which has no_new_privs. */
int landlock_enter(const struct sandbox_opt *opt, int version, struct err *e);
/* Loads the filter into all threads, or none. confined: Landlock decides about writing, truncating
 * and creating files, for every thread. */
int seccomp_enter(const struct sandbox_opt *opt, bool confined, struct err *e);
#endif
