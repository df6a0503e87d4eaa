#include "format/onnxfile.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <dirent.h>
#include <sys/stat.h>

bool onnxfile_looks(const unsigned char *p, size_t n)
{
    /* ir_version, small, then one of ModelProto's other fields */
    return n >= 3 && p[0] == 0x08 && p[1] >= 1 && p[1] <= 32 && p[2] &&
           strchr("\x12\x1a\x22\x28\x32\x3a\x42\x72", p[2]);
}

struct found {
    struct buf names;        /* all of them, for messages */
    char *main, *last;       /* model.onnx; the last seen */
    int n, n_main, n_others; /* others: no variants of model.onnx */
};

static void look(struct found *f, const char *dir, const char *sub)
{
    char *path = path_join(dir, sub);
    DIR *d = opendir(path);

    for (struct dirent *x; d && (x = readdir(d));) {
        struct str name = str_c(x->d_name);
        bool is_main = str_is(name, "model.onnx");
        if (!str_ends(name, STR(".onnx")) || name.p[0] == '.') continue;
        buf_printf(&f->names, "%s%s%s%s", f->n++ ? ", " : "", sub, *sub ? "/" : "", x->d_name);
        f->n_main += is_main;
        f->n_others += !is_main && !str_starts(name, STR("model_"));
        mem_free(f->last);
        f->last = path_join(path, x->d_name);
        if (!is_main) continue;
        mem_free(f->main);
        f->main = mem_strdup(f->last);
    }
    if (d) closedir(d);
    mem_free(path);
}

static bool has(const char *dir, const char *name)
{
    char *path = path_join(dir, name);
    bool there = file_exists(path);

    mem_free(path);
    return there;
}

int onnxfile_find(char **out, const char *dir, struct str named, struct err *e)
{
    struct found f = { 0 };
    int rc = OK;

    *out = NULL;
    if (named.n) {
        if ((rc = path_under(out, dir, named, e)) != OK)
            return err_wrap(e, "%s: tern.json: file", dir);
        if (file_exists(*out)) return OK;
        rc = err_set(e, E_NOTFOUND, "%s: tern.json names it, but it is not there", *out);
        mem_free(*out);
        *out = NULL;
        return rc;
    }
    if (has(dir, "model.safetensors") || has(dir, "model.safetensors.index.json")) return OK;
    look(&f, dir, "");
    look(&f, dir, "onnx");
    if (f.n == 1) {
        *out = f.last;
        f.last = NULL;
    } else if (f.n > 1 && f.n_main == 1 && f.n_others == 0) {
        log_info("%s: %s is taken, of %.200s", dir, f.main, buf_cstr(&f.names));
        *out = f.main;
        f.main = NULL;
    } else if (f.n > 1) {
        rc = err_set(e, E_INVALID,
                     "%s: several ONNX files could be the model: %.200s. Name one: -m "
                     "%s/FILE.onnx, or write it into "
                     "tern.json: {\"file\": \"FILE.onnx\"}",
                     dir, buf_cstr(&f.names), dir);
    }
    buf_release(&f.names);
    mem_free(f.main);
    mem_free(f.last);
    return rc;
}

/* "a/b" → "a", "b" → "."; from mem_alloc. */
static char *parent(const char *path)
{
    size_t n = (size_t)(path_base(path) - path);
    char *dir;

    while (n > 1 && path[n - 1] == '/') n--;
    if (!n) return mem_strdup(".");
    dir = mem_dup(path, n + 1);
    dir[n] = 0;
    return dir;
}

char *onnxfile_folder(const char *path)
{
    char *dir = parent(path), *above;

    if (has(dir, "config.json") || has(dir, "tern.json") || strcmp(path_base(dir), "onnx") != 0)
        return dir;
    above = parent(dir);
    mem_free(dir);
    return above;
}

uint64_t onnxfile_bytes(const char *path)
{
    struct buf data = { 0 };
    struct stat st;
    uint64_t n = stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;

    buf_printf(&data, "%s_data", path);
    if (stat(buf_cstr(&data), &st) == 0) n += (uint64_t)st.st_size;
    buf_release(&data);
    return n;
}
