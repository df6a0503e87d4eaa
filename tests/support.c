/* support.c - paths and temporary files of tests. A failure here ends the test program. */
#include "support.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The joined path, in one of 8 buffers that are used in turn; NULL: it does not exist. */
static const char *join_existing(const char *root, const char *path)
{
    static char slots[8][1024];
    static int at;
    char *s = slots[at++ % 8];
    snprintf(s, sizeof slots[0], "%s/%s", root, path);
    return access(s, F_OK) == 0 ? s : NULL;
}

static const char *root_dir(void)
{
    const char *r = getenv("TERN_ROOT");
    return r ? r : ".";
}

const char *shared(const char *path)
{
    const char *s = getenv("TERN_SHARED");
    char buf[512];
    if (s) return join_existing(s, path);
    snprintf(buf, sizeof buf, "%s/../shared", root_dir());
    return join_existing(buf, path);
}

const char *repo(const char *path) { return join_existing(root_dir(), path); }

static char dir[64];

static void remove_dir(void)
{
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    if (system(cmd) != 0) fprintf(stderr, "could not remove %s\n", dir);
}

const char *temp_dir(void)
{
    if (!dir[0]) {
        strcpy(dir, "/tmp/tern-test-XXXXXX");
        if (!mkdtemp(dir)) abort();
        atexit(remove_dir);
    }
    return dir;
}

const char *temp_file(const char *name, const void *data, size_t n)
{
    static char paths[512][128];
    static int n_paths;
    char *path = paths[n_paths++ % 512];
    FILE *f;
    if (snprintf(path, sizeof paths[0], "%s/%s", temp_dir(), name) >= (int)sizeof paths[0]) abort();
    f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0) abort();
    return path;
}

int count_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}
