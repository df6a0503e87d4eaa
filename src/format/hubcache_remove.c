/* hubcache_remove.c - removes a model of the cache.
 *
 * The order keeps names honest at every moment: the names go first (refs and the snapshot, which is
 * renamed to a hidden one), the blobs after them, so that no name leads to a blob that is gone. The
 * lock is that of downloads: one that runs holds it shared, a removal needs it alone. */
#include "format/hubcache.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct removal {
    const char *cache;
    char *repo, *commit, *snapshot;
    struct hubcache_removed *out;
    struct err *e;
};

static int fail_io(struct removal *r, const char *path)
{
    return err_set(r->e, E_IO, "%s: %s", path, strerror(errno));
}

/* ---- the lock ---- */

int hubcache_lock(int *fd, const char *cache, const struct hf_ref *r, bool alone, struct err *e)
{
    struct buf path = { 0 };
    int rc;

    *fd = -1;
    buf_printf(&path, "%s/.locks", cache);
    mkdir(buf_cstr(&path), 0777);
    buf_printf(&path, "/models--%.*s%s%.*s", STR_ARG(r->org), r->org.n ? "--" : "",
               STR_ARG(r->name));
    mkdir(buf_cstr(&path), 0777);
    buf_puts(&path, "/tern.lock");
    if ((rc = buf_check(&path, e)) == OK) {
        *fd = open(buf_cstr(&path), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (*fd < 0) rc = err_set(e, E_IO, "%s: %s", buf_cstr(&path), strerror(errno));
    }
    if (rc == OK && flock(*fd, (alone ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0) {
        rc = err_set(e, E_CONCURRENCY, "hf:%.*s%s%.*s is being %s by another program",
                     STR_ARG(r->org), r->org.n ? "/" : "", STR_ARG(r->name),
                     alone ? "downloaded or removed" : "removed");
        close(*fd);
        *fd = -1;
    }
    buf_release(&path);
    return rc;
}

/* ---- trees ---- */

/* Removes a file, a link, or a folder with all in it. Links are not followed. */
static int remove_tree(struct removal *r, const char *path)
{
    DIR *d;
    int rc = OK;

    if (unlink(path) == 0) {
        r->out->n_files++;
        return OK;
    }
    if (errno == ENOENT) return OK;
    if (errno != EISDIR && errno != EPERM) return fail_io(r, path);
    if (!(d = file_opendir(path))) return fail_io(r, path);
    for (struct dirent *x; rc == OK && (x = readdir(d));) {
        char *sub;
        if (str_is(str_c(x->d_name), ".") || str_is(str_c(x->d_name), "..")) continue;
        sub = path_join(path, x->d_name);
        rc = sub ? remove_tree(r, sub) : err_nomem(r->e, "the path of a file");
        mem_free(sub);
    }
    closedir(d);
    if (rc == OK && rmdir(path) != 0 && errno != ENOENT) rc = fail_io(r, path);
    return rc;
}

/* Removes the refs that hold the commit. */
static int remove_refs(struct removal *r, const char *dir, int depth)
{
    DIR *d = file_opendir(dir);
    int rc = OK;

    for (struct dirent *x; rc == OK && d && (x = readdir(d));) {
        struct buf text = { 0 };
        char *path;
        if (x->d_name[0] == '.') continue;
        if (!(path = path_join(dir, x->d_name))) rc = err_nomem(r->e, "the path of a file");
        else if (file_is_dir(path) && depth > 0) rc = remove_refs(r, path, depth - 1);
        else if (file_read(&text, path, 256, NULL) == OK &&
                 str_is(str_trim(buf_str(&text)), r->commit) && unlink(path) != 0)
            rc = fail_io(r, path);
        buf_release(&text);
        mem_free(path);
    }
    if (d) closedir(d);
    return rc;
}

/* ---- blobs ---- */

struct names {
    char **at;
    int n, cap;
};

static void release_names(struct names *l)
{
    for (int i = 0; i < l->n; i++) mem_free(l->at[i]);
    mem_free(l->at);
}

static bool has_name(const struct names *l, const char *name)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->at[i], name) == 0) return true;
    return false;
}

/* The blob that a link of a snapshot leads to, if it is one: the last part of its text. */
static int add_blob_name(struct names *l, const char *path, struct err *e)
{
    char text[PATH_MAX];
    ssize_t n = readlink(path, text, sizeof text - 1);

    if (n <= 0) return OK;
    text[n] = 0;
    if (has_name(l, path_base(text))) return OK;
    if (!mem_ensure(l->at, l->cap, l->n + 1)) return err_nomem(e, "the names of blobs");
    if (!(l->at[l->n] = mem_strdup(path_base(text)))) return err_nomem(e, "the names of blobs");
    l->n++;
    return OK;
}

/* Names of all blobs that links below dir lead to. */
static int add_blob_names(struct names *l, const char *dir, int depth, struct err *e)
{
    DIR *d = file_opendir(dir);
    int rc = OK;

    for (struct dirent *x; rc == OK && d && (x = readdir(d));) {
        char *path;
        if (x->d_name[0] == '.') continue;
        if (!(path = path_join(dir, x->d_name))) return closedir(d), err_nomem(e, "a path");
        rc = add_blob_name(l, path, e);
        if (rc == OK && x->d_type != DT_LNK && depth > 0 && file_is_dir(path))
            rc = add_blob_names(l, path, depth - 1, e);
        mem_free(path);
    }
    if (d) closedir(d);
    return rc;
}

/* Removes the blobs of `gone` that no snapshot uses any more. */
static int remove_blobs(struct removal *r, const struct names *gone)
{
    struct names used = { 0 };
    char *all = path_join(r->repo, "snapshots"), *blobs = path_join(r->repo, "blobs");
    int rc =
        all && blobs ? add_blob_names(&used, all, 8, r->e) : err_nomem(r->e, "the path of a blob");

    for (int i = 0; i < gone->n && rc == OK; i++) {
        char *path;
        struct stat st;
        if (has_name(&used, gone->at[i])) continue;
        if (!(path = path_join(blobs, gone->at[i]))) rc = err_nomem(r->e, "the path of a blob");
        else if (file_stat(path, &st) && S_ISREG(st.st_mode)) {
            if (unlink(path) != 0) rc = fail_io(r, path);
            else r->out->n_files++, r->out->bytes += (uint64_t)st.st_size;
        }
        mem_free(path);
    }
    release_names(&used);
    mem_free(all);
    mem_free(blobs);
    return rc;
}

/* ---- removal ---- */

/* A hidden name first: half of a snapshot is never seen under its own. */
static int remove_snapshot(struct removal *r)
{
    struct names gone = { 0 };
    struct buf hidden = { 0 };
    char *refs = path_join(r->repo, "refs");
    int rc = refs ? add_blob_names(&gone, r->snapshot, 8, r->e) : err_nomem(r->e, "a path");

    buf_printf(&hidden, "%s/snapshots/.removed-%s", r->repo, r->commit);
    buf_cstr(&hidden);
    if (rc == OK) rc = buf_check(&hidden, r->e);
    if (rc == OK) rc = remove_tree(r, hidden.p); /* of a removal that was interrupted */
    if (rc == OK) rc = remove_refs(r, refs, 3);
    if (rc == OK && rename(r->snapshot, hidden.p) != 0) rc = fail_io(r, r->snapshot);
    if (rc == OK) rc = remove_tree(r, hidden.p);
    if (rc == OK) rc = remove_blobs(r, &gone);
    release_names(&gone);
    buf_release(&hidden);
    mem_free(refs);
    return rc;
}

/* Is there a snapshot left? */
static bool has_snapshots(const struct removal *r)
{
    char *all = path_join(r->repo, "snapshots");
    DIR *d = all ? file_opendir(all) : NULL;
    bool any = !all;

    for (struct dirent *x; d && !any && (x = readdir(d));) any = x->d_name[0] != '.';
    if (d) closedir(d);
    mem_free(all);
    return any;
}

/* Removes the manifest of a file, and its line in that of the folder. */
static int remove_sums(struct removal *r, const char *name)
{
    struct buf own = { 0 };
    struct manifest m = { 0 };
    char *path = path_join(r->snapshot, MANIFEST_FOLDER);
    int rc = path ? OK : err_nomem(r->e, "the path of a manifest");

    buf_printf(&own, "%s/%s" MANIFEST_SUFFIX, r->snapshot, name);
    if (rc == OK) rc = buf_check(&own, r->e);
    if (rc == OK) unlink(buf_cstr(&own));
    if (rc == OK && file_exists(path) && (rc = manifest_read(&m, path, r->e)) == OK) {
        size_t n = 0;
        for (size_t i = 0; i < m.n; i++) {
            if (strcmp(m.files[i].name, name) == 0) mem_free(m.files[i].name);
            else m.files[n++] = m.files[i];
        }
        m.n = n;
        rc = manifest_save(&m, path, r->e);
    }
    manifest_release(&m);
    buf_release(&own);
    mem_free(path);
    return rc;
}

/* The chosen files: their links, then their blobs. */
static int remove_files(struct removal *r, const struct hub_files *files)
{
    struct names gone = { 0 };
    int rc = OK;

    for (int i = 0; i < files->n && rc == OK; i++) {
        char *path;
        if (!files->at[i].chosen) continue;
        if (!(path = path_join(r->snapshot, files->at[i].name)))
            rc = err_nomem(r->e, "the path of a file");
        else if ((rc = add_blob_name(&gone, path, r->e)) == OK) rc = remove_tree(r, path);
        if (rc == OK) rc = remove_sums(r, files->at[i].name);
        mem_free(path);
    }
    if (rc == OK) rc = remove_blobs(r, &gone);
    release_names(&gone);
    return rc;
}

/* One model of a snapshot. The snapshot goes as well when no other model is in it. */
static int remove_model(struct removal *r, struct str file)
{
    struct hub_files files = { 0 };
    struct hub_choice c;
    bool others = false;
    int rc = hubcache_files(&files, r->snapshot, r->e);

    if (rc == OK) rc = hub_choose(&files, file, &c, r->e);
    for (int i = 0; rc == OK && i < files.n; i++)
        others |= !files.at[i].chosen && (hub_name_is_gguf(str_c(files.at[i].name)) ||
                                          str_ends(str_c(files.at[i].name), STR(".safetensors")));
    if (rc == OK) rc = others ? remove_files(r, &files) : remove_snapshot(r);
    hub_files_release(&files);
    return rc;
}

static int remove_locked(struct removal *r, const struct hf_ref *ref)
{
    char *all = path_join(r->repo, "snapshots");
    int rc = all ? hubcache_commit(&r->commit, r->repo, ref->rev, r->e)
                 : err_nomem(r->e, "the path of a model");

    if (rc == OK && !(r->snapshot = path_join(all, r->commit)))
        rc = err_nomem(r->e, "the path of a model");
    if (rc == OK && !file_is_dir(r->snapshot))
        rc = err_set(r->e, E_NOTFOUND, "%s is not in the cache", r->snapshot);
    if (rc == OK) rc = ref->file.p ? remove_model(r, ref->file) : remove_snapshot(r);
    if (rc == OK && !has_snapshots(r)) rc = remove_tree(r, r->repo); /* also unfinished downloads */
    mem_free(all);
    return rc;
}

int hubcache_remove(const char *cache, const struct hf_ref *ref, struct hubcache_removed *out,
                    struct err *e)
{
    struct removal r = { .cache = cache, .out = out, .e = e };
    int fd = -1, rc;

    *out = (struct hubcache_removed){ 0 };
    if (!(r.repo = hubcache_repo(cache, ref))) return err_nomem(e, "the path of a model");
    if (!file_is_dir(r.repo)) rc = err_set(e, E_NOTFOUND, "there is no %s", r.repo);
    else rc = hubcache_lock(&fd, cache, ref, true, e);
    if (rc == OK) rc = remove_locked(&r, ref);
    if (fd >= 0) close(fd);
    mem_free(r.repo);
    mem_free(r.commit);
    mem_free(r.snapshot);
    return rc;
}
