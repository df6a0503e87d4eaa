/* thread.h - starting threads, and locks with a condition variable. */
#ifndef TERN_BASE_THREAD_H
#define TERN_BASE_THREAD_H

#include "base/err.h"

#include <pthread.h>

/* Makes a mutex and the condition variable that is waited on with it, or neither. Timed waits are on
 * the monotonic clock: they do not jump when the date is set. what: whose lock, for the error. */
int lock_init(pthread_mutex_t *lock, pthread_cond_t *news, const char *what, struct err *e);
void lock_destroy(pthread_mutex_t *lock, pthread_cond_t *news);
/* Waits for news, at most so long. Like all such waits it may end early. */
void lock_wait_ms(pthread_mutex_t *lock, pthread_cond_t *news, int ms);

/* name: at most 15 characters. The error names it. */
int thread_start(pthread_t *out, const char *name, void *(*run)(void *arg), void *arg,
                 struct err *e);
/* Raises the niceness of the calling thread only, and shortens its time slice. That they cannot be
 * changed is no error. */
void thread_set_nice(int nice);
#endif
