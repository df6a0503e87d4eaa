/* support.h - for all tests: cmocka, paths of fixtures, temporary files. */
#ifndef TERN_TESTS_SUPPORT_H
#define TERN_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Tests with many similar cases run every THIN-th of them. Sanitizers are slow, and they look for
 * invalid accesses, not for wrong results. */
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    __has_feature(address_sanitizer)
#define THIN 5
#else
#define THIN 1
#endif

/* "../shared/PATH" (or $TERN_SHARED/PATH); NULL: it does not exist. The result is valid for the
 * next 7 calls of shared and repo. */
const char *shared(const char *path);
/* A file or folder of the repository ($TERN_ROOT, else the working folder); NULL: it does not
 * exist. */
const char *repo(const char *path);

/* Skips the running test if the fixture is missing. */
#define need_shared(path)                                               \
    do {                                                                \
        if (!shared(path)) {                                            \
            print_message("skipped: ../shared/%s is not here\n", path); \
            skip();                                                     \
        }                                                               \
    } while (0)

/* Writes a file into a temporary folder that is removed at exit. The path stays valid for the next
 * 511 calls. */
const char *temp_file(const char *name, const void *data, size_t n);
const char *temp_dir(void);
int count_fds(void); /* open descriptors of this process, and a few that counting takes */
#endif
