/* registry_path.c - where the files of a model are: resolving, confinement, replacement.
 *
 * Confinement is checked by opening (confine.h), not on the text of a path, so that neither ".." nor
 * a symbolic link leaves the folder, and the check agrees with the readers. The path that is opened
 * later keeps its links: names carry meaning (parts of a split GGUF, .onnx, config.json beside a
 * file), and blobs that links point to have other names. */
#include "base/buf.h"
#include "base/confine.h"
#include "base/file.h"
#include "base/mem.h"
#include "pool/modelname.h"
#include "pool/registry_impl.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>

enum {
    FOLDER_DEPTH = 2,     /* subfolders of a model: onnx/, 1_Pooling/ */
    FOLDER_NAMES = 10000, /* names of a model's folder that are looked at */
    PARTS_MAX = 10000
};

bool place_is_inside(const char *root, const char *real)
{
    size_t n = strlen(root);

    if (n > 0 && root[n - 1] == '/') n--; /* "/" */
    return strncmp(root, real, n) == 0 && (real[n] == '/' || real[n] == 0);
}

int place_resolve(char **real, const char *path, struct err *e)
{
    char text[PATH_MAX];

    *real = NULL;
    if (!realpath(path, text)) {
        if (errno == ENOENT || errno == ENOTDIR)
            return err_set(e, E_NOTFOUND, "model '%s': there is no such file or folder", path);
        return err_set(e, E_IO, "model '%s': %s", path, strerror(errno));
    }
    return (*real = mem_strdup(text)) ? OK : err_nomem(e, "the path of a model");
}

bool place_is_shortage(int why) { return why == EMFILE || why == ENFILE || why == ENOMEM; }

const char *place_type_name(unsigned mode)
{
    return S_ISFIFO(mode)   ? "a FIFO"
           : S_ISSOCK(mode) ? "a socket"
           : S_ISCHR(mode)  ? "a character device"
           : S_ISBLK(mode)  ? "a block device"
                            : "neither a file nor a folder";
}

static bool has_ending(struct str name, const char *ending)
{
    size_t n = strlen(ending);
    return name.n > n && strncasecmp(name.p + name.n - n, ending, n) == 0;
}

static bool contains_mmproj(struct str name)
{
    for (size_t i = 0; i + 6 <= name.n; i++)
        if (strncasecmp(name.p + i, "mmproj", 6) == 0) return true;
    return false;
}

enum file_kind file_kind_of(struct str name)
{
    int part, count;

    if (str_is(name, "config.json")) return FILE_CONFIG;
    if (has_ending(name, ".onnx")) return FILE_ONNX;
    if (has_ending(name, ".safetensors")) return FILE_SAFETENSORS;
    if (!has_ending(name, ".gguf") || contains_mmproj(name)) return FILE_OTHER;
    return model_part_of(name, &part, &count) && part != 1 ? FILE_OTHER : FILE_GGUF;
}

/* ---- confinement ---- */

/* The error of a path that leads out of the folder. */
static int fail_outside(const char *root, const char *path, struct err *e)
{
    char real[PATH_MAX];

    if (!realpath(path, real))
        return err_set(e, E_INVALID, "%s is outside the folder of models '%s'", path, root);
    return err_set(e, E_INVALID,
                   "%s is outside the folder of models: it leads to '%s', which is not below '%s'",
                   path, real, root);
}

/* One file that a load may open. A link to nowhere cannot be opened and is left to the loader. */
static int check_one(const char *root, const char *path, struct stat *st, struct err *e)
{
    *st = (struct stat){ 0 };
    if (!file_stat(path, st)) {
        if (errno == EXDEV) return fail_outside(root, path, e);
        if (errno == ENOENT || errno == ELOOP || errno == ENOTDIR) return OK;
        return err_set(e, place_is_shortage(errno) ? E_NOMEM : E_IO, "%s: %s", path,
                       strerror(errno));
    }
    if (!S_ISREG(st->st_mode) && !S_ISDIR(st->st_mode))
        return err_set(e, E_INVALID, "%s is %s: a model has files and folders only", path,
                       place_type_name(st->st_mode));
    return OK;
}

static bool is_model_file(struct str name)
{
    return has_ending(name, ".gguf") || has_ending(name, ".onnx") ||
           has_ending(name, ".safetensors");
}

/* The entries of a folder. only_beside: it contains a model file, which is checked on its own;
 * other model files do not belong to it. */
static int check_entries(const char *root, const char *dir, bool only_beside, int depth,
                         struct err *e)
{
    DIR *d = file_opendir(dir);
    int rc = OK, n = 0;

    if (!d)
        return err_set(e, place_is_shortage(errno) ? E_NOMEM : E_IO, "%s: %s", dir,
                       strerror(errno));
    for (struct dirent *x; rc == OK && (x = readdir(d));) {
        struct stat st;
        char *path;

        if (x->d_name[0] == '.' || (only_beside && is_model_file(str_c(x->d_name)))) continue;
        if (++n > FOLDER_NAMES) {
            rc = err_set(e, E_INVALID, "%s: more than %d files in the folder of a model", dir,
                         FOLDER_NAMES);
        } else if (!(path = path_join(dir, x->d_name))) {
            rc = err_nomem(e, "the path of a model");
        } else {
            rc = check_one(root, path, &st, e);
            if (rc == OK && S_ISDIR(st.st_mode) && depth > 0 && !only_beside)
                rc = check_entries(root, path, false, depth - 1, e);
            mem_free(path);
        }
    }
    closedir(d);
    return rc;
}

/* A copy of path up to its last slash; "." without one. NULL: no memory. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    size_t n = slash ? (size_t)(slash - path) : 0;
    char *copy;

    if (n == 0) return mem_strdup(slash ? "/" : ".");
    if ((copy = mem_alloc(n + 1))) memcpy(copy, path, n);
    return copy;
}

/* Configuration and external data of an ONNX or safetensors file: in its folder, and beside onnx/. */
static int check_beside(const char *root, const char *path, struct err *e)
{
    char *dir = folder_of(path), *up = NULL;
    int rc = dir ? check_entries(root, dir, true, 0, e) : err_nomem(e, "the path of a model");

    if (rc == OK && strcmp(path_base(dir), "onnx") == 0) {
        up = folder_of(dir);
        rc = up ? check_entries(root, up, true, 0, e) : err_nomem(e, "the path of a model");
    }
    mem_free(dir);
    mem_free(up);
    return rc;
}

enum { PART_MISSING = 1 };

/* Calls fn for every part of a split GGUF up to the first that is missing, else once. */
static int for_each_part(const char *path, int (*fn)(void *arg, const char *part), void *arg)
{
    struct str name = str_c(path_base(path));
    struct buf b = { 0 };
    int no, count, rc = OK;

    if (!model_part_of(name, &no, &count)) count = 0;
    if (count == 0) rc = fn(arg, path);
    for (int i = 1; i <= count && i <= PARTS_MAX && rc == OK; i++) {
        buf_clear(&b);
        buf_put_str(&b, str_of(path, strlen(path) - MODEL_PART_TAIL));
        buf_printf(&b, "-%05d-of-%05d.gguf", i, count);
        rc = fn(arg, buf_cstr(&b));
        if (b.failed) rc = E_NOMEM; /* the name was cut */
    }
    buf_release(&b);
    return rc == PART_MISSING ? OK : rc;
}

struct part_check {
    const char *root;
    struct err *e;
};

static int check_part(void *arg, const char *part)
{
    struct part_check *c = arg;
    struct stat st;
    int rc = check_one(c->root, part, &st, c->e);

    return rc == OK && !st.st_mode ? PART_MISSING : rc;
}

static int check_files(const char *root, const char *path, struct err *e)
{
    struct part_check parts = { root, e };
    struct stat st;
    int rc = check_one(root, path, &st, e);

    if (rc != OK) return rc;
    if (!st.st_mode)
        return err_set(e, E_NOTFOUND, "model '%s': there is no such file or folder", path);
    if (S_ISDIR(st.st_mode)) return check_entries(root, path, false, FOLDER_DEPTH, e);
    if (!has_ending(str_c(path), ".gguf")) return check_beside(root, path, e);
    rc = for_each_part(path, check_part, &parts);
    return rc == E_NOMEM ? err_nomem(e, "the path of a model") : rc;
}

int place_check(const char *root, const char *path, struct err *e)
{
    int rc = check_files(root, path, e);

    if (rc != OK && e) confine_clean(e->msg);
    return rc;
}

/* ---- replacement ---- */

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

static uint64_t print_stat(const struct stat *st)
{
    uint64_t h = mix(1, (uint64_t)st->st_dev);

    h = mix(h, (uint64_t)st->st_ino);
    h = mix(h, S_ISDIR(st->st_mode) ? 0 : (uint64_t)st->st_size);
    h = mix(h, (uint64_t)st->st_mtim.tv_sec);
    return mix(h, (uint64_t)st->st_mtim.tv_nsec);
}

/* A sum, so that the order in which the folder is read does not matter. */
static uint64_t print_folder(const char *dir, int depth)
{
    DIR *d = file_opendir(dir);
    uint64_t sum = 0;
    int n = 0;

    for (struct dirent *x; d && n < FOLDER_NAMES && (x = readdir(d)); n++) {
        char path[PATH_MAX];
        struct stat st;

        if (x->d_name[0] == '.') continue;
        if (snprintf(path, sizeof path, "%s/%s", dir, x->d_name) >= (int)sizeof path) continue;
        if (!file_stat(path, &st)) continue;
        sum += print_stat(&st);
        if (S_ISDIR(st.st_mode) && depth > 0) sum += print_folder(path, depth - 1);
    }
    if (d) closedir(d);
    return sum;
}

static int add_part_print(void *arg, const char *part)
{
    uint64_t *sum = arg;
    struct stat st;

    if (!file_stat(part, &st)) return PART_MISSING;
    *sum = mix(*sum, print_stat(&st));
    return OK;
}

uint64_t place_print(const char *path, int64_t *created)
{
    struct stat st;
    uint64_t h;

    *created = 0;
    if (!file_stat(path, &st)) return 0;
    *created = (int64_t)st.st_mtime;
    h = 1;
    if (S_ISDIR(st.st_mode)) h = print_stat(&st) + print_folder(path, FOLDER_DEPTH - 1);
    else if (for_each_part(path, add_part_print, &h) != OK) return 0;
    return h ? h : 1;
}

/* ---- folders with one file ---- */

int place_pick(char **out, const char *path, struct err *e)
{
    char only[NAME_MAX + 1] = "";
    DIR *d = file_is_dir(path) ? file_opendir(path) : NULL;
    bool has_weights = false;
    int n = 0;

    *out = NULL;
    for (struct dirent *x; d && (x = readdir(d));) {
        enum file_kind kind = file_kind_of(str_c(x->d_name));

        if (x->d_name[0] == '.') continue;
        has_weights |= kind == FILE_SAFETENSORS || kind == FILE_ONNX;
        has_weights |= strcmp(x->d_name, "onnx") == 0;
        if (kind == FILE_GGUF && n++ == 0) snprintf(only, sizeof only, "%s", x->d_name);
    }
    if (d) closedir(d);
    if (has_weights || n != 1) return OK;
    return (*out = path_join(path, only)) ? OK : err_nomem(e, "the path of a model");
}
