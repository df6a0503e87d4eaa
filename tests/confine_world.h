/* confine_world.h - a folder that paths are confined to, and one outside of it. */
#ifndef TERN_TESTS_CONFINE_WORLD_H
#define TERN_TESTS_CONFINE_WORLD_H

#include "support.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[300], outside[300];

static inline void make_folders(void)
{
    static int n;

    snprintf(root, sizeof root, "%s/root%d", temp_dir(), ++n);
    snprintf(outside, sizeof outside, "%s/outside%d", temp_dir(), n);
    assert_int_equal(mkdir(root, 0777), 0);
    assert_int_equal(mkdir(outside, 0777), 0);
}

__attribute__((format(printf, 2, 3))) static inline void set_path(char out[PATH_MAX],
                                                                  const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(out, PATH_MAX, fmt, ap);
    va_end(ap);
    assert_true(n >= 0 && n < PATH_MAX);
}

/* "dir/name"; valid for the next 15 calls of in and confined. */
static inline const char *in(const char *dir, const char *name)
{
    static char paths[16][PATH_MAX];
    static int n;
    char *p = paths[n++ % 16];

    set_path(p, "%s/%s", dir, name);
    return p;
}

/* The confined path of a name below the root. */
static inline const char *confined(const char *name)
{
    char text[PATH_MAX];

    set_path(text, "././%s", name);
    return in(root, text);
}

static inline void put_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static inline void put_link(const char *to, const char *path)
{
    unlink(path);
    assert_int_equal(symlink(to, path), 0);
}
#endif
