/* hubcache.c - paths and lists of the cache. A repository's folder may hold anything: names are
 * checked as they are read, and links are followed only to see whether they lead to a file. */
#include "format/hubcache.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

enum {
    DEPTH = 3 /* folders of a snapshot that are looked into */
};

char *hubcache_dir(void)
{
    const char *hub = getenv("HF_HUB_CACHE"), *home = getenv("HF_HOME"),
               *xdg = getenv("XDG_CACHE_HOME");
    const char *user = getenv("HOME");
    struct buf b = { 0 };

    if (hub && *hub) buf_puts(&b, hub);
    else if (home && *home) buf_printf(&b, "%s/hub", home);
    else if (xdg && *xdg) buf_printf(&b, "%s/huggingface/hub", xdg);
    else buf_printf(&b, "%s/.cache/huggingface/hub", user && *user ? user : ".");
    buf_cstr(&b);
    if (!b.failed) return b.p;
    buf_release(&b);
    return NULL;
}

char *hubcache_repo(const char *cache, const struct hf_ref *r)
{
    struct buf b = { 0 };

    buf_printf(&b, "%s/models--%.*s%s%.*s", cache, STR_ARG(r->org), r->org.n ? "--" : "",
               STR_ARG(r->name));
    buf_cstr(&b);
    if (!b.failed) return b.p;
    buf_release(&b);
    return NULL;
}

/* ---- revisions ---- */

/* A commit's hash, or the beginning of one. */
static bool is_hash(struct str s, size_t least)
{
    for (size_t i = 0; i < s.n; i++)
        if (!((s.p[i] >= '0' && s.p[i] <= '9') || (s.p[i] >= 'a' && s.p[i] <= 'f'))) return false;
    return s.n >= least && s.n <= 40;
}

/* The one snapshot that starts with `begin` into out; nothing if none or several do. */
static void find_commit(const char *snapshots, struct str begin, struct buf *out)
{
    DIR *d = file_opendir(snapshots);
    int n = 0;

    for (struct dirent *f; d && (f = readdir(d));)
        if (is_hash(str_c(f->d_name), 7) && str_starts(str_c(f->d_name), begin)) {
            out->n = 0;
            buf_puts(out, f->d_name);
            n++;
        }
    if (d) closedir(d);
    if (n != 1) out->n = 0;
}

/* The text of refs/REV, or the commit that begins with rev, into out; empty: neither. */
static int read_commit(struct buf *out, const char *repo, struct str rev, bool *is_ref,
                       struct err *e)
{
    struct buf path = { 0 };
    int rc;

    buf_printf(&path, "%s/refs/%.*s", repo, STR_ARG(rev));
    buf_cstr(&path);
    rc = buf_check(&path, e);
    *is_ref = rc == OK && file_exists(path.p) && !file_is_dir(path.p);
    if (*is_ref) rc = file_read(out, path.p, 256, e);
    if (rc == OK && !*is_ref && is_hash(rev, 7)) {
        path.n = 0;
        buf_printf(&path, "%s/snapshots", repo);
        find_commit(buf_cstr(&path), rev, out);
        rc = buf_check(&path, e);
    }
    buf_release(&path);
    return rc == OK ? buf_check(out, e) : rc;
}

int hubcache_commit(char **out, const char *repo, struct str rev, struct err *e)
{
    struct buf text = { 0 };
    bool is_ref = false;
    int rc = read_commit(&text, repo, rev, &is_ref, e);
    struct str hash = str_trim(buf_str(&text));

    if (rc == OK && !is_ref && hash.n == 0)
        rc = err_set(e, E_NOTFOUND, "revision '%.*s' is not in %s", STR_ARG(rev), repo);
    else if (rc == OK && !is_hash(hash, 7))
        rc = err_set(e, E_FORMAT, "%s/refs/%.*s: expected the hash of a commit in this file", repo,
                     STR_ARG(rev));
    if (rc == OK && !(*out = mem_alloc(hash.n + 1))) rc = err_nomem(e, "the hash of a commit");
    if (rc == OK) memcpy(*out, hash.p, hash.n);
    buf_release(&text);
    return rc;
}

/* ---- files ---- */

static int add_folder(struct hub_files *out, const char *dir, const char *below, int depth,
                      struct err *e);

/* A file or folder of a snapshot; what cannot be read is not there. */
static int add_entry(struct hub_files *out, const char *dir, const char *rel, int depth,
                     struct err *e)
{
    char *path = path_join(dir, rel);
    struct hub_file *f;
    struct stat st;
    int rc = OK;

    if (!path) return err_nomem(e, "the path of a file");
    if (!file_stat(path, &st)) st.st_mode = 0;
    mem_free(path);
    if (S_ISDIR(st.st_mode) && depth > 0) return add_folder(out, dir, rel, depth - 1, e);
    if (!S_ISREG(st.st_mode)) return OK;
    if (out->n == HUB_FILES_MAX)
        return err_set(e, E_INVALID, "%s: more than %d files", dir, HUB_FILES_MAX);
    if (!(f = hub_files_add(out, str_c(rel)))) rc = err_nomem(e, "the list of files");
    else f->bytes = st.st_size > 0 ? (uint64_t)st.st_size : 0;
    return rc;
}

static int add_folder(struct hub_files *out, const char *dir, const char *below, int depth,
                      struct err *e)
{
    char *path = *below ? path_join(dir, below) : mem_strdup(dir);
    DIR *d = path ? file_opendir(path) : NULL;
    int rc = path ? OK : err_nomem(e, "the path of a folder");

    if (rc == OK && !d && errno != ENOENT && !*below)
        rc = err_set(e, E_IO, "%s: %s", dir, strerror(errno));
    for (struct dirent *x; rc == OK && d && (x = readdir(d));) {
        char *rel;
        if (x->d_name[0] == '.' || !hub_name_is_safe(str_c(x->d_name))) continue;
        rel = *below ? path_join(below, x->d_name) : mem_strdup(x->d_name);
        rc = rel ? add_entry(out, dir, rel, depth, e) : err_nomem(e, "the path of a file");
        mem_free(rel);
    }
    if (d) closedir(d);
    mem_free(path);
    return rc;
}

int hubcache_files(struct hub_files *out, const char *snapshot, struct err *e)
{
    int rc = add_folder(out, snapshot, "", DEPTH, e);

    hub_files_sort(out);
    return rc;
}

/* ---- repositories ---- */

void hubcache_each_repo(const char *cache, bool (*fn)(void *arg, struct str org, struct str name),
                        void *arg)
{
    DIR *d = file_opendir(cache);
    bool more = true;

    for (struct dirent *x; d && more && (x = readdir(d));) {
        struct str name = str_c(x->d_name), org = STR("");
        struct hf_ref r;
        struct buf text = { 0 };
        ptrdiff_t at;

        if (!str_starts(name, STR("models--"))) continue;
        name = str_skip(name, 8);
        if ((at = str_find(name, STR("--"))) >= 0) {
            org = str_take(name, (size_t)at);
            name = str_skip(name, (size_t)at + 2);
        }
        buf_printf(&text, "%.*s%s%.*s", STR_ARG(org), org.n ? "/" : "", STR_ARG(name));
        if (!text.failed && modelref_parse(&r, buf_str(&text), NULL) == OK)
            more = fn(arg, org, name);
        buf_release(&text);
    }
    if (d) closedir(d);
}
