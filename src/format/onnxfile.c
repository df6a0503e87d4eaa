/* onnxfile.c - finding ONNX files by name; their contents are read by src/onnx. */
#include "format/onnxfile.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

bool onnxfile_looks(const unsigned char *p, size_t n)
{
    /* protobuf: field 1 (ir_version, a small varint), then the tag of another field of ModelProto */
    return n >= 3 && p[0] == 0x08 && p[1] >= 1 && p[1] <= 32 && p[2] &&
           strchr("\x12\x1a\x22\x28\x32\x3a\x42\x72", p[2]);
}

/* The .onnx files of a folder and its onnx/. */
struct onnx_files {
    struct buf names;  /* all of them, for messages */
    char *main, *last; /* the path of model.onnx, and of the last file; or NULL */
    int n, n_main;
    int n_others; /* files that are neither model.onnx nor variants of it */
    bool failed;  /* out of memory */
};

/* Notes one .onnx file of `folder`, which is the subfolder `sub` of the model or "". */
static void add_file(struct onnx_files *f, const char *folder, const char *sub, const char *name)
{
    bool is_main = strcmp(name, "model.onnx") == 0;

    buf_printf(&f->names, "%s%s%s%s", f->n++ ? ", " : "", sub, *sub ? "/" : "", name);
    f->n_main += is_main;
    f->n_others += !is_main && strncmp(name, "model_", 6) != 0;
    mem_free(f->last);
    f->last = path_join(folder, name);
    f->failed |= !f->last || f->names.failed;
    if (!is_main || !f->last) return;
    mem_free(f->main);
    f->main = mem_strdup(f->last);
    f->failed |= !f->main;
}

static void add_folder(struct onnx_files *f, const char *dir, const char *sub)
{
    char *path = path_join(dir, sub);
    DIR *d = path ? file_opendir(path) : NULL;

    f->failed |= !path;
    for (struct dirent *x; d && (x = readdir(d));)
        if (str_ends(str_c(x->d_name), STR(".onnx")) && x->d_name[0] != '.')
            add_file(f, path, sub, x->d_name);
    if (d) closedir(d);
    mem_free(path);
}

/* Without an allocation, so that it cannot fail: a path that is too long does not exist either. */
static bool has_file(const char *dir, const char *name)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);

    return n > 0 && n < (int)sizeof path && file_exists(path);
}

/* The file that tern.json names. */
static int find_named(char **out, const char *dir, struct str named, struct err *e)
{
    int rc = path_under(out, dir, named, e);

    if (rc != OK) {
        err_wrap(e, "%s: tern.json: file", dir);
        return rc;
    }
    if (file_exists(*out)) return OK;
    rc = err_set(e, E_NOTFOUND, "%s: tern.json names this file, but it does not exist", *out);
    mem_free(*out);
    *out = NULL;
    return rc;
}

/* Chooses from the files of the folder, and takes the path out of f. */
static int choose_file(char **out, const char *dir, struct onnx_files *f, struct err *e)
{
    char **path = f->n == 1                                        ? &f->last
                  : f->n > 1 && f->n_main == 1 && f->n_others == 0 ? &f->main
                                                                   : NULL;

    if (f->failed) return err_nomem(e, "the names of ONNX files");
    if (!path && f->n)
        return err_set(e, E_INVALID,
                       "%s: several ONNX files could be the model: %.200s. Name one: -m "
                       "%s/FILE.onnx, or write it into tern.json: {\"file\": \"FILE.onnx\"}",
                       dir, buf_cstr(&f->names), dir);
    if (!path) return OK;
    if (path == &f->main) log_info("%s: using %s, of %.200s", dir, f->main, buf_cstr(&f->names));
    *out = *path;
    *path = NULL;
    return OK;
}

int onnxfile_find(char **out, const char *dir, struct str named, struct err *e)
{
    struct onnx_files f = { 0 };
    int rc;

    *out = NULL;
    if (named.n) return find_named(out, dir, named, e);
    if (has_file(dir, "model.safetensors") || has_file(dir, "model.safetensors.index.json"))
        return OK;
    add_folder(&f, dir, "");
    add_folder(&f, dir, "onnx");
    rc = choose_file(out, dir, &f, e);
    buf_release(&f.names);
    mem_free(f.main);
    mem_free(f.last);
    return rc;
}

/* "a/b" → "a", "b" → "."; freed with mem_free, NULL: no memory. */
static char *find_parent(const char *path)
{
    size_t n = (size_t)(path_base(path) - path);
    char *dir;

    while (n > 1 && path[n - 1] == '/') n--;
    if (!n) return mem_strdup(".");
    dir = mem_dup(path, n + 1);
    if (dir) dir[n] = 0;
    return dir;
}

char *onnxfile_folder(const char *path)
{
    char *dir = find_parent(path), *above;

    if (!dir || has_file(dir, "config.json") || has_file(dir, "tern.json") ||
        strcmp(path_base(dir), "onnx") != 0)
        return dir;
    above = find_parent(dir);
    mem_free(dir);
    return above;
}

uint64_t onnxfile_bytes(const char *path)
{
    char data[PATH_MAX];
    struct stat st;
    uint64_t n = file_stat(path, &st) ? (uint64_t)st.st_size : 0;
    int len = snprintf(data, sizeof data, "%s_data", path);

    if (len > 0 && len < (int)sizeof data && file_stat(data, &st)) n += (uint64_t)st.st_size;
    return n;
}
