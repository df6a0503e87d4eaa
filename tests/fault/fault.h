/* fault.h - fault injection: a scenario is run again and again, and each time another allocation,
 * read, mapping or thread creation fails.
 *
 * The programs under tests/fault are linked with --wrap, so that calls of tern's own code to
 * malloc, calloc, realloc, posix_memalign, read, open, mmap and pthread_create pass through
 * fault.c; jansson's allocations do through json_set_alloc_funcs. Everything that is allocated is
 * recorded with its call stack. */
#ifndef TERN_TESTS_FAULT_FAULT_H
#define TERN_TESTS_FAULT_FAULT_H

#include "base/err.h"
#include "support.h"

#include <stdbool.h>

/* A scenario opens, uses and closes what it tests, and returns OK or the first error. Without
 * faults it returns OK. */
typedef int fault_scenario(void *arg, struct err *e);

/* Runs the scenario without faults, then with the n-th event of each kind failing, for every n
 * (under sanitizers: for every n up to 40, then for a share of them). Fails the test when a run
 * returns an error without a code or a message, leaves an allocation behind, crashes or hangs, or
 * when the run after it, without a fault, fails. Prints the number of faults and what they led to. */
void fault_run(const char *name, fault_scenario *run, void *arg);

/* cmocka's group setup: installs the handlers. Call it first in main. */
void fault_init(void);

/* For a system call that a program wraps by itself: does this one fail? */
bool fault_fails(void);

/* Excludes code of the test itself from faults, between the two calls. */
void fault_pause(void);
void fault_resume(void);

/* The same for all threads of the process: for opening and closing what is not under test. */
void fault_hold(void);
void fault_release(void);
#endif
