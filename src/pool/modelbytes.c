/* modelbytes.c - no file is read: a model that waits to be loaded must cost nothing. */
#include "pool/modelbytes.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { FILES_MOST = 10000 }; /* of a folder that are looked at */

/* Files of weights: a part of a model in several files counts as well. */
static bool has_weights(struct str name)
{
    static const char *const ends[] = { ".safetensors", ".gguf", ".onnx", ".onnx_data",
                                        ".onnx.data" };

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (str_ends(name, str_c(ends[i]))) return true;
    return false;
}

/* 0: there is no such file; a path that is too long does not exist either. */
static uint64_t file_bytes(const char *dir, const char *name)
{
    char path[PATH_MAX];
    struct stat st;

    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path) return 0;
    return file_stat(path, &st) && S_ISREG(st.st_mode) && st.st_size > 0 ? (uint64_t)st.st_size : 0;
}

static uint64_t folder_bytes(const char *path)
{
    DIR *d = file_opendir(path);
    struct dirent *x;
    uint64_t sum = 0;

    for (int i = 0; d && i < FILES_MOST && (x = readdir(d)); i++)
        if (has_weights(str_c(x->d_name))) sum += file_bytes(path, x->d_name);
    if (d) closedir(d);
    return sum;
}

/* N of "m-00001-of-0000N.gguf"; 1: the name is no such one. All parts are about as large as the
 * first. */
static uint64_t n_parts(struct str path)
{
    struct str tail = STR("-00001-of-00000.gguf");
    int64_t n;

    if (path.n < tail.n) return 1;
    tail = str_skip(path, path.n - tail.n);
    if (!str_ends(tail, STR(".gguf")) || !str_starts(tail, STR("-00001-of-"))) return 1;
    if (!str_to_i64(str_of(tail.p + 10, 5), &n) || n < 1) return 1;
    return (uint64_t)n;
}

static void each_of_folder(const char *path, bool (*fn)(void *arg, const char *file), void *arg)
{
    DIR *d = file_opendir(path);
    struct dirent *x;
    bool goes_on = true;

    for (int i = 0; d && goes_on && i < FILES_MOST && (x = readdir(d)); i++) {
        char *file = has_weights(str_c(x->d_name)) ? path_join(path, x->d_name) : NULL;
        if (file) goes_on = fn(arg, file);
        mem_free(file);
    }
    if (d) closedir(d);
}

/* path is the first of n parts. */
static void each_part(const char *path, uint64_t n, bool (*fn)(void *arg, const char *file),
                      void *arg)
{
    char *file = mem_strdup(path), number[6];
    size_t at = strlen(path) - strlen("00001-of-00000.gguf");
    bool goes_on = file != NULL;

    for (uint64_t i = 1; goes_on && i <= n; i++) {
        snprintf(number, sizeof number, "%05d", (int)i);
        memcpy(file + at, number, 5);
        goes_on = fn(arg, file);
    }
    mem_free(file);
}

void model_each_file(const char *path, bool (*fn)(void *arg, const char *file), void *arg)
{
    uint64_t n = n_parts(str_c(path));

    if (file_is_dir(path)) each_of_folder(path, fn, arg);
    else if (n > 1) each_part(path, n, fn, arg);
    else fn(arg, path);
}

uint64_t model_file_bytes(const char *path)
{
    struct stat st;

    if (!file_stat(path, &st)) return 0;
    if (S_ISDIR(st.st_mode)) return folder_bytes(path);
    return st.st_size > 0 ? (uint64_t)st.st_size * n_parts(str_c(path)) : 0;
}
