#include "pull/store.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { SPARE_BYTES = 64 << 20 }; /* that stay free on the disk */

static int fail_io(const char *path, struct err *e)
{
    return err_set(e, E_IO, "%s: %s", path, strerror(errno));
}

/* Makes a folder and those above it. */
static int make_folders(const char *path, struct err *e)
{
    char *copy = mem_strdup(path);
    int rc = OK;

    if (!copy) return err_nomem(e, "the path of a folder");
    for (char *p = copy + 1; rc == OK; p++) {
        char c = *p;
        if (c != '/' && c != 0) continue;
        *p = 0;
        if (mkdir(copy, 0777) != 0 && errno != EEXIST && !file_is_dir(copy)) rc = fail_io(copy, e);
        *p = c;
        if (c == 0) break;
    }
    mem_free(copy);
    return rc;
}

static int make_below(const char *dir, const char *name, struct err *e)
{
    char *path = path_join(dir, name);
    int rc = path ? make_folders(path, e) : err_nomem(e, "the path of a folder");

    mem_free(path);
    return rc;
}

int store_open(struct store *s, const char *cache, const struct hf_ref *ref, struct err *e)
{
    int rc;

    *s = (struct store){ .cache = cache, .ref = *ref, .lock = -1 };
    if (!(s->repo = hubcache_repo(cache, ref))) return err_nomem(e, "the path of a model");
    if ((rc = make_folders(cache, e)) != OK) return rc;
    if ((rc = hubcache_lock(&s->lock, cache, ref, false, e)) != OK) return rc;
    if ((rc = make_below(s->repo, "blobs", e)) != OK) return rc;
    if ((rc = make_below(s->repo, "refs", e)) != OK) return rc;
    return make_below(s->repo, "snapshots", e);
}

/* Folders without anything in them do not stay, unless another process may be about to use them. */
static void remove_empty(const struct store *s)
{
    static const char *const below[] = { "blobs", "refs", "snapshots" };

    if (flock(s->lock, LOCK_EX | LOCK_NB) != 0) return;
    for (size_t i = 0; i < sizeof below / sizeof *below; i++) {
        char *path = path_join(s->repo, below[i]);
        if (path) rmdir(path);
        mem_free(path);
    }
    rmdir(s->repo);
}

void store_release(struct store *s)
{
    if (s->repo && s->lock >= 0) remove_empty(s);
    if (s->repo && s->lock >= 0) close(s->lock);
    mem_free(s->repo);
    *s = (struct store){ .lock = -1 };
}

/* ---- blobs ---- */

char *store_blob(const struct store *s, const char *sum)
{
    struct buf b = { 0 };

    buf_printf(&b, "%s/blobs/%s", s->repo, sum);
    buf_cstr(&b);
    if (!b.failed) return b.p;
    buf_release(&b);
    return NULL;
}

char *store_part(const struct store *s, const char *sum)
{
    struct buf b = { 0 };

    buf_printf(&b, "%s/blobs/%s.tern-part", s->repo, sum);
    buf_cstr(&b);
    if (!b.failed) return b.p;
    buf_release(&b);
    return NULL;
}

uint64_t store_part_bytes(const struct store *s, const char *sum)
{
    char *path = store_part(s, sum);
    struct stat st;
    bool there = path && file_stat(path, &st) && S_ISREG(st.st_mode);

    mem_free(path);
    return there ? (uint64_t)st.st_blocks * 512 : 0;
}

bool store_has_blob(const struct store *s, const struct hub_file *f)
{
    char *path = store_blob(s, f->sum);
    struct stat st;
    bool there =
        path && file_stat(path, &st) && S_ISREG(st.st_mode) && (uint64_t)st.st_size == f->bytes;

    mem_free(path);
    return there;
}

int store_lock_blob(const struct store *s, const char *sum, int *fd, struct err *e)
{
    struct buf b = { 0 };
    int rc = OK;

    buf_printf(&b, "%s/.locks/%s/%s.lock", s->cache, path_base(s->repo), sum);
    *fd = open(buf_cstr(&b), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (b.failed) rc = err_nomem(e, "the path of a lock");
    else if (*fd < 0) rc = fail_io(buf_cstr(&b), e);
    else if (flock(*fd, LOCK_EX | LOCK_NB) != 0) {
        close(*fd);
        *fd = -1;
    }
    buf_release(&b);
    return rc;
}

int store_check_space(const struct store *s, uint64_t bytes, struct err *e)
{
    struct statvfs v;
    uint64_t left;

    if (statvfs(s->repo, &v) != 0) return fail_io(s->repo, e);
    left = (uint64_t)v.f_bavail * v.f_frsize;
    if (bytes == 0 || (left > SPARE_BYTES && bytes <= left - SPARE_BYTES)) return OK;
    return err_set(e, E_IO,
                   "%s: the download needs %.2f GB, and the disk has %.2f GB free; HF_HOME names "
                   "another place",
                   s->cache, (double)bytes / 1e9, (double)left / 1e9);
}

/* ---- snapshots ---- */

/* "../../blobs/SUM", with "../" once more for each folder in the name. */
static void write_target(struct buf *b, const struct hub_file *f)
{
    buf_puts(b, "../../");
    for (const char *p = f->name; *p; p++)
        if (*p == '/') buf_puts(b, "../");
    buf_printf(b, "blobs/%s", f->sum);
}

static int make_folder_of(const char *path, struct err *e)
{
    char *copy = mem_strdup(path);
    int rc;

    if (!copy) return err_nomem(e, "the path of a file");
    copy[path_base(copy) - copy] = 0;
    rc = make_folders(copy, e);
    mem_free(copy);
    return rc;
}

/* A new link takes the place of an old one at once. */
static int link_file(const char *dir, const struct hub_file *f, struct err *e)
{
    struct buf to = { 0 }, temp = { 0 };
    char *path = path_join(dir, f->name);
    int rc = path ? make_folder_of(path, e) : err_nomem(e, "the path of a file");

    write_target(&to, f);
    buf_printf(&temp, "%.*s.tern-%ld", path ? (int)(path_base(path) - path) : 0, path ? path : "",
               (long)getpid());
    buf_cstr(&to);
    buf_cstr(&temp);
    if (rc == OK && (to.failed || temp.failed)) rc = err_nomem(e, "the path of a file");
    if (rc == OK) {
        unlink(temp.p);
        if (symlink(to.p, temp.p) != 0 || rename(temp.p, path) != 0) {
            rc = fail_io(path, e);
            unlink(temp.p);
        }
    }
    buf_release(&to);
    buf_release(&temp);
    mem_free(path);
    return rc;
}

/* Files that make a model visible: the one that stands for it, else config.json. */
static bool is_last(const struct hub_files *files, int head, int i)
{
    return head >= 0 ? i == head : strcmp(files->at[i].name, "config.json") == 0;
}

static int link_files(const char *dir, const struct hub_files *files, int head, struct err *e)
{
    int rc = OK;

    for (int last = 0; last < 2; last++)
        for (int i = 0; i < files->n && rc == OK; i++)
            if (files->at[i].chosen && is_last(files, head, i) == last)
                rc = link_file(dir, &files->at[i], e);
    return rc;
}

static void remove_below(const char *dir, const char *name, const char *ending)
{
    struct buf path = { 0 };

    buf_printf(&path, "%s/%s%s", dir, name, ending);
    if (!path.failed) unlink(buf_cstr(&path));
    buf_release(&path);
}

/* Removes a folder of links that never got its name. */
static void remove_links(const char *dir, const struct hub_files *files)
{
    remove_below(dir, MANIFEST_FOLDER, "");
    for (int i = 0; i < files->n; i++)
        if (files->at[i].chosen) remove_below(dir, files->at[i].name, MANIFEST_SUFFIX);
    for (int i = 0; i < files->n; i++) {
        char *path = files->at[i].chosen ? path_join(dir, files->at[i].name) : NULL;
        if (path) unlink(path);
        for (char *p = path ? path + strlen(path) : NULL; p && p > path + strlen(dir); p--)
            if (*p == '/') *p = 0, rmdir(path);
        mem_free(path);
    }
    rmdir(dir);
}

/* ---- manifests ---- */

/* Adds a file under a name. What the hub says of large files is their SHA-256; others are read. */
static int add_sum(struct manifest *m, const char *dir, const struct hub_file *f, const char *name,
                   struct err *e)
{
    unsigned char sum[CRYPTO_SUM];
    char *path = path_join(dir, f->name);
    uint64_t bytes = f->bytes;
    int rc = OK;

    if (!path) return err_nomem(e, "the path of a file");
    if (!crypto_unhex(sum, sizeof sum, str_c(f->sum))) rc = manifest_hash(path, sum, &bytes, e);
    if (rc == OK) rc = manifest_add(m, str_c(name), bytes, sum, e);
    mem_free(path);
    return rc;
}

/* Beside a GGUF file: the file and its parts. */
static int write_file_manifest(const char *dir, const struct hub_files *files, int head,
                               struct err *e)
{
    struct manifest m = { 0 };
    struct buf path = { 0 };
    int rc = OK;

    for (int i = 0; i < files->n && rc == OK; i++)
        if (files->at[i].chosen)
            rc = add_sum(&m, dir, &files->at[i], path_base(files->at[i].name), e);
    buf_printf(&path, "%s/%s" MANIFEST_SUFFIX, dir, files->at[head].name);
    if (rc == OK) rc = buf_check(&path, e);
    if (rc == OK) rc = manifest_save(&m, buf_cstr(&path), e);
    manifest_release(&m);
    buf_release(&path);
    return rc;
}

/* The sum of a file of the snapshot, where it was downloaded now. */
static void copy_sum(struct hub_file *to, const struct hub_files *files)
{
    for (int i = 0; i < files->n; i++)
        if (files->at[i].chosen && strcmp(files->at[i].name, to->name) == 0)
            snprintf(to->sum, sizeof to->sum, "%s", files->at[i].sum);
}

static bool is_manifest(const char *name)
{
    return strcmp(path_base(name), MANIFEST_FOLDER) == 0 ||
           str_ends(str_c(name), STR(MANIFEST_SUFFIX));
}

/* The manifest of a folder: all files that are in the snapshot, also those that came before. */
static int write_folder_manifest(const char *dir, const struct hub_files *files, struct err *e)
{
    struct hub_files all = { 0 };
    struct manifest m = { 0 };
    char *path = path_join(dir, MANIFEST_FOLDER);
    int rc = path ? hubcache_files(&all, dir, e) : err_nomem(e, "the path of a manifest");

    for (int i = 0; i < all.n && rc == OK; i++) {
        if (is_manifest(all.at[i].name)) continue;
        copy_sum(&all.at[i], files);
        rc = add_sum(&m, dir, &all.at[i], all.at[i].name, e);
    }
    if (rc == OK) rc = manifest_save(&m, path, e);
    manifest_release(&m);
    hub_files_release(&all);
    mem_free(path);
    return rc;
}

static int write_manifests(const char *dir, const struct hub_files *files,
                           const struct hub_choice *choice, struct err *e)
{
    char *path = path_join(dir, MANIFEST_FOLDER);
    bool has_one = path && file_exists(path);
    int rc = path ? OK : err_nomem(e, "the path of a manifest");

    mem_free(path);
    if (rc == OK && choice->kind == HUB_GGUF) rc = write_file_manifest(dir, files, choice->head, e);
    if (rc == OK && (choice->kind != HUB_GGUF || has_one))
        rc = write_folder_manifest(dir, files, e);
    return rc;
}

/* ---- publishing ---- */

static int fill_snapshot(const char *dir, const struct hub_files *files,
                         const struct hub_choice *choice, struct err *e)
{
    int rc = link_files(dir, files, choice->head, e);

    return rc == OK ? write_manifests(dir, files, choice, e) : rc;
}

/* A snapshot that is new gets its name when it is complete. */
static int make_snapshot(const struct store *s, const struct hub_files *files,
                         const struct hub_choice *choice, const char *dir, const char *commit,
                         struct err *e)
{
    struct buf temp = { 0 };
    int rc;

    if (file_is_dir(dir)) return fill_snapshot(dir, files, choice, e);
    buf_printf(&temp, "%s/snapshots/.tern-%ld-%s", s->repo, (long)getpid(), commit);
    buf_cstr(&temp);
    if ((rc = buf_check(&temp, e)) == OK) rc = make_folders(temp.p, e);
    if (rc == OK) rc = fill_snapshot(temp.p, files, choice, e);
    if (rc == OK && rename(temp.p, dir) != 0) { /* another process was first */
        if (errno == EEXIST || errno == ENOTEMPTY) rc = fill_snapshot(dir, files, choice, e);
        else rc = fail_io(dir, e);
        remove_links(temp.p, files);
    } else if (rc != OK && temp.p) {
        remove_links(temp.p, files);
    }
    buf_release(&temp);
    return rc;
}

/* refs/REV, unless the revision is a commit already. */
static int write_ref(const struct store *s, const char *commit, struct err *e)
{
    struct buf path = { 0 };
    int rc;

    if (s->ref.rev.n >= 7 && str_starts(str_c(commit), s->ref.rev)) return OK;
    buf_printf(&path, "%s/refs/%.*s", s->repo, STR_ARG(s->ref.rev));
    buf_cstr(&path);
    if ((rc = buf_check(&path, e)) == OK) rc = make_folder_of(path.p, e);
    if (rc == OK) rc = file_replace(path.p, str_c(commit), e);
    buf_release(&path);
    return rc;
}

int store_publish(const struct store *s, const struct hub_files *files,
                  const struct hub_choice *choice, const char *commit, struct err *e)
{
    struct buf dir = { 0 };
    int rc;

    buf_printf(&dir, "%s/snapshots/%s", s->repo, commit);
    buf_cstr(&dir);
    if ((rc = buf_check(&dir, e)) == OK) rc = make_snapshot(s, files, choice, dir.p, commit, e);
    if (rc == OK) rc = write_ref(s, commit, e);
    buf_release(&dir);
    return rc;
}
