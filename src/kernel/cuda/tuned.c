/* tuned.c - the cache file: found, read and written. */
#include "kernel/cuda/tuned.h"

#include "base/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FILE_BYTES = 4096 };

/* The key is a hash, because names of GPUs and drivers contain characters that paths should not. */
void tuned_path(struct buf *path, const char *of)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    uint64_t key = 14695981039346656037u;

    buf_clear(path);
    for (const char *p = of; *p; p++) key = (key ^ (unsigned char)*p) * 1099511628211u;
    if (xdg && xdg[0] == '/')
        buf_printf(path, "%s/tern/products-%016llx", xdg, (unsigned long long)key);
    else if (home && home[0] == '/')
        buf_printf(path, "%s/.cache/tern/products-%016llx", home, (unsigned long long)key);
}

/* A line such as "Q4_K 768 512". */
static bool read_line(struct tuned *t, struct str line)
{
    struct str word[3];
    int64_t n[2];

    for (int i = 0; i < 3; i++) {
        size_t end = 0;
        while (end < line.n && line.p[end] != ' ') end++;
        word[i] = (struct str){ line.p, end };
        if (end == 0 || (i == 2) != (end == line.n)) return false;
        if (i < 2) line = (struct str){ line.p + end + 1, line.n - end - 1 };
    }
    enum dtype type = dtype_by_name(word[0]);
    if (type == DT_NONE) return false;
    for (int i = 0; i < 2; i++) {
        if (!str_to_i64(word[i + 1], &n[i]) || n[i] < 1 || n[i] > TUNED_MAX_TOKENS) return false;
        t->max_tokens_packed[type][i] = (int)n[i];
    }
    return true;
}

/* All or nothing: one bad line makes the whole file count as missing. */
bool tuned_read(struct tuned *t, const char *path)
{
    char text[MAX_FILE_BYTES];
    FILE *f = fopen(path, "rbe");
    size_t n = f ? fread(text, 1, sizeof text, f) : 0;
    bool good = n > 0 && n < sizeof text && text[n - 1] == '\n';

    if (f) fclose(f);
    memset(t, 0, sizeof *t);
    for (size_t at = 0, end; good && at < n; at = end + 1) {
        end = (size_t)((char *)memchr(text + at, '\n', n - at) - text);
        good = read_line(t, (struct str){ text + at, end - at });
    }
    if (!good) memset(t, 0, sizeof *t);
    return good;
}

/* Creates the directories of a path that do not exist. */
static void make_directories(char *path)
{
    for (char *p = path + 1; *p; p++)
        if (*p == '/') {
            *p = 0;
            mkdir(path, 0755);
            *p = '/';
        }
}

/* Written beside the file and renamed, so that another process never reads half of it. The name has
 * the process id: two processes do not write one file. */
bool tuned_write(const struct tuned *t, const char *path)
{
    struct buf name = { 0 };
    bool good = false;
    FILE *f;

    buf_printf(&name, "%s.%d", path, (int)getpid());
    buf_cstr(&name);
    if (name.failed) {
        buf_release(&name);
        return false;
    }
    make_directories(name.p);
    if ((f = fopen(buf_cstr(&name), "wbe"))) {
        for (int i = 0; i < DT_COUNT; i++)
            if (t->max_tokens_packed[i][0])
                fprintf(f, "%s %d %d\n", dtype_name(i), t->max_tokens_packed[i][0],
                        t->max_tokens_packed[i][1]);
        good = !ferror(f);
        good = fclose(f) == 0 && good && rename(buf_cstr(&name), path) == 0;
        if (!good) unlink(buf_cstr(&name));
    }
    buf_release(&name);
    return good;
}
