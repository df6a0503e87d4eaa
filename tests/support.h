/* support.h - what the tests share: where the shared fixtures are, temporary files. */
#ifndef TERN_TESTS_SUPPORT_H
#define TERN_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Of many cases of one kind, a sanitizer sees every fifth: it looks for wild reads, not for wrong
 * numbers. */
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    __has_feature(address_sanitizer)
#define THIN 5
#else
#define THIN 1
#endif

/* "../shared/PATH" (or $TERN_SHARED/PATH) if it is there, else NULL. From a static ring of 8. */
const char *shared(const char *path);
/* A file of the repository, wherever the test runs from. */
const char *repo(const char *path);

/* Skips the running test, saying what is missing. */
#define need_shared(path)                                               \
    do {                                                                \
        if (!shared(path)) {                                            \
            print_message("skipped: ../shared/%s is not here\n", path); \
            skip();                                                     \
        }                                                               \
    } while (0)

/* Writes bytes to a fresh file in a folder that is removed at exit; the path lives till then. */
const char *temp_file(const char *name, const void *data, size_t n);
const char *temp_dir(void);
#endif
