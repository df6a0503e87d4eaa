/* modelref.c - resolves model names against the Hugging Face cache.
 *
 * Layout of the cache: models--ORG--NAME/refs/REV holds the commit of a branch or tag,
 * models--ORG--NAME/snapshots/COMMIT/ the files. Names come from users and from API clients, so
 * each part is checked before it becomes part of a path. */
#include "format/modelref.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>

#define MAX_REF 1024 /* bytes of an hf: name */

struct hf_ref {
    struct str org, name, rev; /* org: empty for old models without one */
    struct str file;           /* p is NULL unless one is named */
};

bool modelref_is(struct str ref)
{
    return str_starts(ref, STR("hf:")) || str_starts(ref, STR("file:"));
}

/* Is it safe as a part of a path, and a name that Hugging Face allows? */
static bool is_name(struct str s, bool slashes)
{
    if (s.n == 0 || s.n > 128 || s.p[0] == '.' || s.p[0] == '-' || str_find(s, STR("..")) >= 0)
        return false;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!plain && c != '.' && c != '_' && c != '-' && !(slashes && c == '/')) return false;
    }
    return true;
}

/* Cuts s before the first `at`; returns what follows it, p is NULL if there is no such byte. */
static struct str cut_at(struct str *s, char at)
{
    const char *p = memchr(s->p, at, s->n);
    struct str rest = p ? str_skip(*s, (size_t)(p - s->p) + 1) : str_of(NULL, 0);

    if (p) s->n = (size_t)(p - s->p);
    return rest;
}

/* ORG/NAME[@REV][:FILE], or NAME... */
static int parse_ref(struct hf_ref *r, struct str ref, struct err *e)
{
    struct str s = ref;

    *r = (struct hf_ref){ .rev = STR("main") };
    r->file = cut_at(&s, ':');
    struct str rev = cut_at(&s, '@');
    if (rev.p) r->rev = rev;
    r->name = cut_at(&s, '/');
    r->org = s;
    if (!r->name.p) r->name = s, r->org = STR("");
    if ((r->org.n && !is_name(r->org, false)) || !is_name(r->name, false) || !is_name(r->rev, true))
        return err_set(e, E_INVALID,
                       "'hf:%.*s': expected hf:ORG/NAME, hf:ORG/NAME@REV or hf:ORG/NAME:FILE",
                       STR_ARG(str_take(ref, 200)));
    return OK;
}

/* The folder of the cache, freed with mem_free; NULL: no memory. */
static char *find_cache_dir(void)
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

/* Is it a commit hash, or the first seven digits of one or more? */
static bool is_hash(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (!((s.p[i] >= '0' && s.p[i] <= '9') || (s.p[i] >= 'a' && s.p[i] <= 'f'))) return false;
    return s.n >= 7 && s.n <= 40;
}

/* Appends the name of the one snapshot that starts with `begin`; nothing if none or several do. */
static void find_commit(const char *snapshots, struct str begin, struct buf *out)
{
    DIR *d = opendir(snapshots);
    int n = 0;

    for (struct dirent *f; d && (f = readdir(d));)
        if (f->d_name[0] != '.' && str_starts(str_c(f->d_name), begin)) {
            out->n = 0;
            buf_puts(out, f->d_name);
            n++;
        }
    if (d) closedir(d);
    if (n != 1) out->n = 0;
}

/* The commit that the revision stands for, into `commit`; empty: not in the cache. */
static int read_commit(struct buf *commit, const char *snapshots, const char *ref,
                       const struct hf_ref *r, struct err *e)
{
    if (file_exists(ref) && !file_is_dir(ref)) return file_read(commit, ref, 256, e);
    if (is_hash(r->rev)) find_commit(snapshots, r->rev, commit);
    return buf_check(commit, e);
}

/* The folder with the files of the revision. */
static int find_snapshot(char **out, const char *repo, const struct hf_ref *r, struct err *e)
{
    struct buf commit = { 0 }, ref = { 0 };
    char *snapshots = path_join(repo, "snapshots");
    const char *ref_path;
    int rc;

    buf_printf(&ref, "%s/refs/%.*s", repo, STR_ARG(r->rev));
    ref_path = buf_cstr(&ref);
    rc = snapshots ? buf_check(&ref, e) : err_nomem(e, "the path of a model");
    if (rc == OK) rc = read_commit(&commit, snapshots, ref_path, r, e);
    if (rc == OK) {
        struct str hash = str_trim(buf_str(&commit));
        if (hash.n == 0)
            rc = err_set(e, E_NOTFOUND, "%s: revision '%.*s' is not in the cache", repo,
                         STR_ARG(r->rev));
        else if (!is_name(hash, false))
            rc = err_set(e, E_FORMAT, "%s: expected the hash of a commit in this file", ref_path);
        else rc = path_under(out, snapshots, hash, e);
    }
    buf_release(&commit);
    buf_release(&ref);
    mem_free(snapshots);
    return rc;
}

/* Collects the GGUF files of a folder; of a split set only the first part. names: all, for
 * messages; found: the last. */
static int list_gguf_files(const char *dir, struct buf *names, struct buf *found, int *n,
                           struct err *e)
{
    DIR *d = opendir(dir);

    *n = 0;
    if (!d && errno != ENOENT) return err_set(e, E_IO, "%s: %s", dir, strerror(errno));
    for (struct dirent *f; d && (f = readdir(d));) {
        struct str name = str_c(f->d_name);
        if (!str_ends(name, STR(".gguf"))) continue;
        if (str_find(name, STR("-of-")) >= 0 && str_find(name, STR("-00001-of-")) < 0) continue;
        buf_printf(names, "%s%s", *n ? ", " : "", f->d_name);
        found->n = 0;
        buf_put_str(found, name);
        ++*n;
    }
    if (d) closedir(d);
    buf_cstr(names);
    buf_cstr(found);
    return names->failed || found->failed ? err_nomem(e, "the names of model files") : OK;
}

/* The model in a snapshot: the folder itself if it has config.json, else its one GGUF file. */
static int choose_model(char **path, const char *dir, struct err *e)
{
    char *config = path_join(dir, "config.json");
    struct buf names = { 0 }, found = { 0 };
    bool is_folder;
    int n = 0, rc = OK;

    if (!config) return err_nomem(e, "the path of a model");
    is_folder = file_exists(config);
    mem_free(config);
    if (!is_folder) rc = list_gguf_files(dir, &names, &found, &n, e);
    if (rc == OK && !is_folder && n == 0)
        rc = err_set(e, E_NOTFOUND, "%s: the folder has neither config.json nor a GGUF file", dir);
    else if (rc == OK && n > 1)
        rc = err_set(e, E_INVALID,
                     "%s: the folder has several models; add one of them after a colon (%.200s)",
                     dir, names.p);
    if (rc == OK) *path = is_folder ? mem_strdup(dir) : path_join(dir, found.p);
    if (rc == OK && !*path) rc = err_nomem(e, "the path of a model");
    buf_release(&names);
    buf_release(&found);
    return rc;
}

/* Repository, then snapshot, then the file in it. */
static int resolve_hf(char **path, struct str ref, struct err *e)
{
    struct hf_ref r;
    struct buf repo = { 0 };
    char *cache = NULL, *dir = NULL;
    int rc;

    if ((rc = parse_ref(&r, ref, e)) != OK) return rc;
    if (!(cache = find_cache_dir())) return err_nomem(e, "the path of the model cache");
    buf_printf(&repo, "%s/models--%.*s%s%.*s", cache, STR_ARG(r.org), r.org.n ? "--" : "",
               STR_ARG(r.name));
    buf_cstr(&repo);
    if ((rc = buf_check(&repo, e)) != OK) goto out;
    if (!file_is_dir(repo.p)) {
        rc = err_set(e, E_NOTFOUND, "hf:%.*s is not in %s; 'hf download %.*s%s%.*s' downloads it",
                     STR_ARG(ref), cache, STR_ARG(r.org), r.org.n ? "/" : "", STR_ARG(r.name));
        goto out;
    }
    if ((rc = find_snapshot(&dir, repo.p, &r, e)) != OK) goto out;
    rc = r.file.p ? path_under(path, dir, r.file, e) : choose_model(path, dir, e);
out:
    mem_free(cache);
    mem_free(dir);
    buf_release(&repo);
    return rc;
}

/* A plain path is returned as it is, so that callers need not distinguish. */
int modelref_resolve(char **path, struct str ref, struct err *e)
{
    struct buf b = { 0 };

    if (ref.n == 0 || (ref.p && memchr(ref.p, 0, ref.n)))
        return err_set(e, E_INVALID, "the name of a model is empty or has a NUL byte");
    if (str_starts(ref, STR("hf:")) && ref.n > MAX_REF)
        return err_set(e, E_INVALID,
                       "the name of a model has %zu characters; at most %d are allowed", ref.n,
                       MAX_REF);
    if (str_starts(ref, STR("hf:"))) return resolve_hf(path, str_skip(ref, 3), e);
    if (str_starts(ref, STR("file:"))) {
        ref = str_skip(ref, 5);
        if (str_starts(ref, STR("///"))) ref = str_skip(ref, 2); /* file:///path */
        if (ref.n == 0) return err_set(e, E_INVALID, "file: needs a path after it");
    }
    buf_put_str(&b, ref);
    buf_cstr(&b);
    if (b.failed) {
        buf_release(&b);
        return err_nomem(e, "the path of a model");
    }
    *path = b.p;
    return OK;
}
