/* sandbox_landlock.c - the file system as the worker sees it, by Landlock's system calls.
 *
 * glibc has no functions for them, and the kernel headers of Debian 12 may be older than the kernel
 * that runs: rights of later versions are named here.
 *
 * Contents can be read of: the model, the folders and files that the owner names, and system files
 * that the C library, hwloc and the engine look at. A symbolic link in the model's folder is followed
 * only into the places that a model may use (`roots`): whoever made the folder may not name files of
 * others. Nothing can be written but, with a GPU, its device files and the names of the worker's own
 * threads. Directory names can be listed everywhere, because hwloc begins at "/". The worker's own
 * /proc folder is among the files, those of other processes are not: they would show the server's
 * environment. */
#include "worker/sandbox_impl.h"

#include "base/buf.h"
#include "base/confine.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/landlock.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FS_REFER (1ull << 13)     /* version 2 */
#define FS_TRUNCATE (1ull << 14)  /* 3 */
#define FS_IOCTL_DEV (1ull << 15) /* 5 */
#define FS_VERSION_1 ((1ull << 13) - 1)
#define NET_TCP 3ull /* bind and connect: version 4 */
#define SCOPES 3ull  /* abstract Unix sockets, signals: version 6 */

#define READ LANDLOCK_ACCESS_FS_READ_FILE
#define LIST LANDLOCK_ACCESS_FS_READ_DIR
#define WRITE LANDLOCK_ACCESS_FS_WRITE_FILE

struct
    ruleset { /* the kernel's struct landlock_ruleset_attr; earlier versions know its beginning */
    uint64_t fs, net, scoped;
};

enum { ROOTS_MAX = 6 };

struct view {
    int fd;           /* of the rule set */
    uint64_t handled; /* rights that are denied where no rule grants them */
    struct err *e;
    char *
        roots[ROOTS_MAX]; /* [n_roots] where links of the model may lead; resolved, from realpath */
    int n_roots;
};

int landlock_version(void)
{
    long v = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    return v > 0 ? (int)v : 0;
}

/* Grants rights on an open file, or on a folder and all below it. Closes fd, except that of a file in
 * /proc: a rule belongs to an inode, and the kernel forgets inodes of /proc when memory is short and
 * makes new ones, for which the rule does not hold, unless somebody has the file open. */
static int grant_open(struct view *v, int fd, const char *path, uint64_t rights)
{
    struct landlock_path_beneath_attr rule = { .parent_fd = fd };
    struct stat st;
    int rc = OK;

    if (fstat(fd, &st) != 0) st.st_mode = 0;
    rule.allowed_access = rights & v->handled;
    if (!S_ISDIR(st.st_mode)) rule.allowed_access &= ~(uint64_t)LIST;
    if (rule.allowed_access &&
        syscall(SYS_landlock_add_rule, v->fd, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) != 0)
        rc = err_set(v->e, E_IO, "sandbox: Landlock: %s: %s", path, strerror(errno));
    if (rc != OK || strncmp(path, "/proc/", 6) != 0) close(fd);
    return rc;
}

/* A path that is not there is skipped, and so is a confined one that leads out of its folder. */
static int grant(struct view *v, const char *path, uint64_t rights)
{
    int fd = confine_open(path, O_PATH);

    return fd < 0 ? OK : grant_open(v, fd, path, rights);
}

/* ---- roots ---- */

static bool is_inside(const char *root, const char *real)
{
    size_t n = strlen(root);

    if (n > 0 && root[n - 1] == '/') n--; /* "/" */
    return strncmp(root, real, n) == 0 && (real[n] == '/' || real[n] == 0);
}

static void add_root(struct view *v, const char *path)
{
    char *real = v->n_roots < ROOTS_MAX ? realpath(path, NULL) : NULL;

    if (real) v->roots[v->n_roots++] = real;
}

/* Bytes of NAME in NAME/snapshots/REVISION of a cache of Hugging Face's tools, or in a folder below
 * that; 0: the path is no such one. Below a revision only what such a cache has counts. */
static size_t find_cache_name(const char *real)
{
    const char *at = strstr(real, "/snapshots/"), *next, *name;

    while (at && (next = strstr(at + 1, "/snapshots/"))) at = next;
    if (!at) return 0;
    if (!strchr(at + strlen("/snapshots/"), '/')) return (size_t)(at - real);
    for (name = at; name > real && name[-1] != '/';) name--;
    return strncmp(name, "models--", 8) == 0 ? (size_t)(at - real) : 0;
}

/* The folder of a model. In a cache it holds links to files in NAME/blobs. */
static void add_folder_root(struct view *v, const char *dir)
{
    char *real = realpath(dir, NULL);
    size_t n = real ? find_cache_name(real) : 0;
    struct buf blobs = { 0 };

    add_root(v, dir);
    if (n) {
        buf_put_str(&blobs, str_of(real, n));
        buf_puts(&blobs, "/blobs");
        if (!blobs.failed) add_root(v, buf_cstr(&blobs));
    }
    buf_release(&blobs);
    free(real);
}

static void release_roots(struct view *v)
{
    while (v->n_roots > 0) free(v->roots[--v->n_roots]);
}

/* Grants what lies in one of the roots; a confined path does not leave its own. The kernel names what
 * was opened, so that the path cannot be another one by the time of the check. */
static int grant_inside(struct view *v, const char *path, uint64_t rights)
{
    int fd = confine_open(path, O_PATH);
    char self[40], real[PATH_MAX];
    ssize_t n;

    if (fd < 0) return OK;
    if (confine_is(path)) return grant_open(v, fd, path, rights);
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    n = readlink(self, real, sizeof real - 1);
    real[n > 0 ? n : 0] = 0;
    for (int i = 0; i < v->n_roots; i++)
        if (is_inside(v->roots[i], real)) return grant_open(v, fd, path, rights);
    log_warn("sandbox: '%s' leads to '%s', outside the model's folder, and cannot be read", path,
             real);
    close(fd);
    return OK;
}

static int grant_all(struct view *v, const char *const *paths, uint64_t rights)
{
    int rc = OK;

    for (; *paths && rc == OK; paths++) rc = grant(v, *paths, rights);
    return rc;
}

/* Calls `give` for the entries of a folder that match. */
static int grant_entries(struct view *v, const char *dir, uint64_t rights,
                         int (*give)(struct view *v, const char *path, uint64_t rights),
                         bool (*match)(const struct dirent *f, const char *arg), const char *arg)
{
    DIR *d = file_opendir(dir);
    int rc = OK;

    if (!d) return OK;
    for (struct dirent *f; rc == OK && (f = readdir(d));) {
        struct buf path = { 0 };
        if (!match(f, arg)) continue;
        buf_printf(&path, "%s/%s", dir, f->d_name);
        rc = buf_check(&path, v->e);
        if (rc == OK) rc = give(v, buf_cstr(&path), rights);
        buf_release(&path);
    }
    closedir(d);
    return rc;
}

/* ---- the model ---- */

enum { PART_TAIL = 20 }; /* bytes of "-00001-of-00002.gguf" */

static bool is_part(const char *name)
{
    size_t n = strlen(name);
    unsigned a, b;
    int end = 0;

    return n > PART_TAIL && sscanf(name + n - PART_TAIL, "-%5u-of-%5u.gguf%n", &a, &b, &end) == 2 &&
           end == PART_TAIL;
}

/* Another part of the same model: the same name up to the number. */
static bool is_sibling(const struct dirent *f, const char *name)
{
    return is_part(f->d_name) && strlen(f->d_name) == strlen(name) &&
           strncmp(f->d_name, name, strlen(name) - PART_TAIL) == 0;
}

/* A manifest of the file or of its folder (format/manifest.h). */
static bool is_manifest(const struct dirent *f, const char *name)
{
    (void)name;
    return strcmp(f->d_name, "SHA256SUMS") == 0 || str_ends(str_c(f->d_name), STR(".gguf.sha256"));
}

/* Some file systems do not say what an entry is. */
static bool is_link(const struct dirent *f, const char *arg)
{
    (void)arg;
    return f->d_type == DT_LNK || (f->d_type == DT_UNKNOWN && f->d_name[0] != '.');
}

static bool is_onnx_folder(const struct dirent *f, const char *arg)
{
    (void)arg;
    return strcmp(f->d_name, "onnx") == 0;
}

/* The links of a subfolder, which may be a link itself. */
static int grant_subfolder(struct view *v, const char *dir, const char *name)
{
    struct buf sub = { 0 };
    int rc;

    buf_printf(&sub, "%s/%s", dir, name);
    if ((rc = buf_check(&sub, v->e)) == OK)
        rc = grant_entries(v, buf_cstr(&sub), READ, grant_inside, is_link, NULL);
    buf_release(&sub);
    return rc;
}

static int grant_folder(struct view *v, const char *dir)
{
    static const char *const below[] = { "onnx", "1_Pooling", "1_LogitScore",
                                         "additional_chat_templates" };
    int rc = grant(v, dir, READ | LIST);

    if (rc == OK) rc = grant_entries(v, dir, READ, grant_inside, is_link, NULL);
    for (size_t i = 0; i < sizeof below / sizeof *below && rc == OK; i++)
        rc = grant_subfolder(v, dir, below[i]);
    if (rc != OK) return rc;
    return grant_entries(v, dir, READ | LIST, grant_inside, is_onnx_folder, NULL);
}

/* The folder that the path names, and the one that the file is in. An ONNX model in onnx/ belongs to
 * the folder above. */
static void add_file_roots(struct view *v, const char *path)
{
    char *real = realpath(path, NULL);
    const char *both[] = { path, real };

    for (int i = 0; i < 2; i++) {
        const char *slash = both[i] ? strrchr(both[i], '/') : NULL;
        struct buf dir = { 0 };
        if (!both[i]) continue;
        buf_put_str(&dir, slash ? str_of(both[i], (size_t)(slash - both[i]) + 1) : STR("."));
        if (str_ends(buf_str(&dir), STR("/onnx/"))) buf_puts(&dir, "..");
        if (!dir.failed) add_folder_root(v, buf_cstr(&dir));
        buf_release(&dir);
    }
    free(real);
}

/* A GGUF file stands alone, or with its other parts. Any other file has its tokenizer and settings
 * beside it, and an ONNX model in onnx/ has them one folder up. */
static int grant_model(struct view *v, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    struct buf dir = { 0 };
    size_t n = strlen(name);
    int rc;

    if (file_is_dir(path)) {
        add_folder_root(v, path);
        return grant_folder(v, path);
    }
    add_file_roots(v, path);
    buf_put_str(&dir, slash ? str_of(path, (size_t)(slash - path)) : STR("."));
    if (slash == path) buf_putc(&dir, '/');
    if ((rc = buf_check(&dir, v->e)) == OK) rc = grant(v, path, READ);
    if (rc == OK && is_part(name))
        rc = grant_entries(v, buf_cstr(&dir), READ, grant_inside, is_sibling, name);
    if (rc == OK) rc = grant_entries(v, buf_cstr(&dir), READ, grant_inside, is_manifest, name);
    if (rc == OK && !(n > 5 && strcasecmp(name + n - 5, ".gguf") == 0)) {
        rc = grant_folder(v, buf_cstr(&dir));
        if (rc == OK && str_ends(buf_str(&dir), STR("/onnx"))) {
            dir.n -= 5;
            rc = grant_folder(v, buf_cstr(&dir));
        }
    }
    buf_release(&dir);
    return rc;
}

/* ---- the system ---- */

static const char *const system_files[] = {
    /* memory and processors: the engine, hwloc */
    "/proc/self", "/proc/meminfo", "/proc/cpuinfo", "/proc/stat", "/proc/sys/vm", "/sys/devices",
    "/sys/fs/cgroup", "/sys/kernel/mm", "/sys/bus", "/sys/class",
    /* the C library */
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/etc/localtime",
    "/usr/share/zoneinfo", "/dev/null", "/dev/zero", "/dev/urandom", NULL
};

static const char *const gpu_files[] = {
    /* the driver */
    "/proc/driver", "/proc/devices", "/proc/modules", "/proc/version", "/sys/module", "/etc/nvidia",
    "/usr/share/nvidia", "/run/nvidia-persistenced",
    /* CUDA's libraries */
    "/usr/local", "/opt", NULL
};

static bool is_gpu_device(const struct dirent *f, const char *arg)
{
    (void)arg;
    return strncmp(f->d_name, "nvidia", 6) == 0;
}

/* Folders of LD_LIBRARY_PATH, where CUDA's libraries may be. */
static int grant_library_path(struct view *v)
{
    const char *s = getenv("LD_LIBRARY_PATH");
    int rc = OK;

    while (s && *s && rc == OK) {
        size_t n = strcspn(s, ":");
        struct buf dir = { 0 };
        buf_put_str(&dir, str_of(s, n));
        if (n && (rc = buf_check(&dir, v->e)) == OK) rc = grant(v, buf_cstr(&dir), READ | LIST);
        buf_release(&dir);
        s += n + (s[n] == ':');
    }
    return rc;
}

/* tern-cuda.so lies beside the program, in ../lib/tern, or where TERN_CUDA_LIB says. */
static int grant_plugin(struct view *v)
{
    static const char *const places[] = { "tern-cuda.so", "../lib/tern" };
    const char *named = getenv("TERN_CUDA_LIB");
    char program[4096];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program);
    int rc = named && *named ? grant(v, named, READ) : OK;

    while (n > 0 && program[n - 1] != '/') n--;
    for (int i = 0; i < 2 && n > 0 && rc == OK; i++) {
        struct buf path = { 0 };
        buf_put_str(&path, str_of(program, (size_t)n));
        buf_puts(&path, places[i]);
        if ((rc = buf_check(&path, v->e)) == OK) rc = grant(v, buf_cstr(&path), READ | LIST);
        buf_release(&path);
    }
    return rc;
}

/* CUDA's driver names its threads by writing to /proc/self/task/TID/comm, and does not start where
 * it cannot (error 304). */
static int grant_gpu(struct view *v)
{
    int rc = grant_all(v, gpu_files, READ | LIST);

    if (rc == OK) rc = grant(v, "/proc/self/task", READ | WRITE | LIST | FS_TRUNCATE);
    if (rc == OK)
        rc = grant_entries(v, "/dev", READ | WRITE | LIST | FS_IOCTL_DEV, grant, is_gpu_device,
                           NULL);
    if (rc == OK) rc = grant_plugin(v);
    return rc == OK ? grant_library_path(v) : rc;
}

static int open_ruleset(struct view *v, int version)
{
    struct ruleset r = { .fs = FS_VERSION_1 };
    size_t size = version >= 6 ? 24 : version >= 4 ? 16 : 8;

    if (version >= 2) r.fs |= FS_REFER;
    if (version >= 3) r.fs |= FS_TRUNCATE;
    if (version >= 4) r.net = NET_TCP;
    if (version >= 5) r.fs |= FS_IOCTL_DEV;
    if (version >= 6) r.scoped = SCOPES;
    v->handled = r.fs;
    v->fd = (int)syscall(SYS_landlock_create_ruleset, &r, size, 0);
    if (v->fd >= 0) return OK;
    return err_set(v->e, E_IO, "sandbox: Landlock: %s", strerror(errno));
}

int landlock_enter(const struct sandbox_opt *opt, int version, struct err *e)
{
    struct view v = { .fd = -1, .e = e };
    int rc = open_ruleset(&v, version);

    if (rc != OK) return rc;
    rc = grant(&v, "/", LIST);
    if (rc == OK) rc = grant_all(&v, system_files, READ | LIST);
    if (rc == OK && opt->model) rc = grant_model(&v, opt->model);
    for (int i = 0; i < opt->n_read && rc == OK; i++) rc = grant(&v, opt->read[i], READ | LIST);
    if (rc == OK && opt->gpu) rc = grant_gpu(&v);
    if (rc == OK && syscall(SYS_landlock_restrict_self, v.fd, 0) != 0)
        rc = err_set(e, E_IO, "sandbox: Landlock: %s", strerror(errno));
    release_roots(&v);
    close(v.fd);
    return rc;
}
