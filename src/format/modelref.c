#include "format/modelref.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

#include <dirent.h>
#include <stdlib.h>

#define MAX_REF 1024

struct hf_ref {
    struct str org, name, rev, file; /* file: empty unless one is named */
};

bool modelref_is(struct str ref)
{
    return str_starts(ref, STR("hf:")) || str_starts(ref, STR("file:"));
}

static bool is_word(struct str s, bool slashes)
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

static struct str cut(struct str *s, char at)
{
    const char *p = memchr(s->p, at, s->n);
    struct str rest = p ? str_skip(*s, (size_t)(p - s->p) + 1) : str_of(NULL, 0);

    if (p) s->n = (size_t)(p - s->p);
    return rest;
}

/* ORG/NAME[@REV][:FILE]; old models have no ORG. */
static int parse(struct hf_ref *r, struct str ref, struct err *e)
{
    struct str s = ref;

    *r = (struct hf_ref){ .rev = STR("main") };
    r->file = cut(&s, ':');
    struct str rev = cut(&s, '@');
    if (rev.p) r->rev = rev;
    r->name = cut(&s, '/');
    r->org = s;
    if (!r->name.p) r->name = s, r->org = STR("");
    if ((r->org.n && !is_word(r->org, false)) || !is_word(r->name, false) || !is_word(r->rev, true))
        return err_set(e, E_INVALID,
                       "'hf:%.*s': expected hf:ORG/NAME, hf:ORG/NAME@REV or hf:ORG/NAME:FILE",
                       STR_ARG(str_take(ref, 200)));
    return OK;
}

/* Where Hugging Face's tools keep what they fetched. From mem_alloc. */
static char *cache_dir(void)
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
    return b.p;
}

static bool is_hash(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (!((s.p[i] >= '0' && s.p[i] <= '9') || (s.p[i] >= 'a' && s.p[i] <= 'f'))) return false;
    return s.n >= 7 && s.n <= 40;
}

/* The one snapshot whose name begins so; empty: none, or several. */
static void find_commit(const char *snapshots, struct str begin, struct buf *out)
{
    DIR *d = opendir(snapshots);
    int n = 0;

    for (struct dirent *f; d && (f = readdir(d));)
        if (f->d_name[0] != '.' && str_starts(str_c(f->d_name), begin)) {
            buf_clear(out);
            buf_puts(out, f->d_name);
            n++;
        }
    if (d) closedir(d);
    if (n != 1) buf_clear(out);
}

/* refs/REV holds the commit that a branch or tag stood for when it was fetched. */
static int find_snapshot(char **out, const char *repo, const struct hf_ref *r, struct err *e)
{
    struct buf commit = { 0 }, ref = { 0 };
    char *snapshots = path_join(repo, "snapshots");
    int rc = OK;

    buf_printf(&ref, "%s/refs/%.*s", repo, STR_ARG(r->rev));
    if (file_exists(buf_cstr(&ref)) && !file_is_dir(ref.p)) rc = file_read(&commit, ref.p, 256, e);
    else if (is_hash(r->rev)) find_commit(snapshots, r->rev, &commit);
    if (rc == OK) {
        struct str hash = str_trim(buf_str(&commit));
        if (hash.n == 0)
            rc = err_set(e, E_NOTFOUND, "%s: revision '%.*s' is not in the cache", repo,
                         STR_ARG(r->rev));
        else if (!is_word(hash, false)) rc = err_set(e, E_FORMAT, "%s: names no commit", ref.p);
        else rc = path_under(out, snapshots, hash, e);
    }
    buf_release(&commit);
    buf_release(&ref);
    mem_free(snapshots);
    return rc;
}

/* A folder with a configuration is the model; otherwise its one GGUF file (or the first of one
 * split set). */
static int pick_file(char **path, const char *dir, struct err *e)
{
    char *config = path_join(dir, "config.json");
    struct buf names = { 0 }, found = { 0 };
    bool has_config = file_exists(config);
    int n = 0;
    DIR *d = has_config ? NULL : opendir(dir);

    mem_free(config);
    for (struct dirent *f; d && (f = readdir(d));) {
        struct str name = str_c(f->d_name);
        if (!str_ends(name, STR(".gguf"))) continue;
        if (str_find(name, STR("-of-")) >= 0 && str_find(name, STR("-00001-of-")) < 0) continue;
        buf_printf(&names, "%s%s", n++ ? ", " : "", f->d_name);
        buf_clear(&found);
        buf_put_str(&found, name);
    }
    if (d) closedir(d);
    int rc = has_config || n == 1 ? OK
             : n == 0 ? err_set(e, E_NOTFOUND, "%s: holds neither config.json nor a GGUF file", dir)
                      : err_set(e, E_INVALID,
                                "%s: holds several models: name one behind a colon (%.200s)", dir,
                                buf_cstr(&names));
    if (rc == OK) *path = has_config ? mem_strdup(dir) : path_join(dir, buf_cstr(&found));
    buf_release(&names);
    buf_release(&found);
    return rc;
}

static int resolve_hf(char **path, struct str ref, struct err *e)
{
    struct hf_ref r;
    struct buf repo = { 0 };
    char *cache = NULL, *dir = NULL;
    int rc;

    if ((rc = parse(&r, ref, e)) != OK) return rc;
    cache = cache_dir();
    buf_printf(&repo, "%s/models--%.*s%s%.*s", cache, STR_ARG(r.org), r.org.n ? "--" : "",
               STR_ARG(r.name));
    if (!file_is_dir(buf_cstr(&repo))) {
        rc = err_set(e, E_NOTFOUND, "hf:%.*s is not in %s (hf download %.*s%s%.*s fetches it)",
                     STR_ARG(ref), cache, STR_ARG(r.org), r.org.n ? "/" : "", STR_ARG(r.name));
        goto out;
    }
    if ((rc = find_snapshot(&dir, repo.p, &r, e)) != OK) goto out;
    rc = r.file.p ? path_under(path, dir, r.file, e) : pick_file(path, dir, e);
out:
    mem_free(cache);
    mem_free(dir);
    buf_release(&repo);
    return rc;
}

int modelref_resolve(char **path, struct str ref, struct err *e)
{
    struct buf b = { 0 };

    if (ref.n == 0 || (ref.p && memchr(ref.p, 0, ref.n)))
        return err_set(e, E_INVALID, "a model's name is empty or holds a NUL");
    if (str_starts(ref, STR("hf:")) && ref.n > MAX_REF)
        return err_set(e, E_INVALID, "a model's name of %zu characters", ref.n);
    if (str_starts(ref, STR("hf:"))) return resolve_hf(path, str_skip(ref, 3), e);
    if (str_starts(ref, STR("file:"))) {
        ref = str_skip(ref, 5);
        if (str_starts(ref, STR("///"))) ref = str_skip(ref, 2); /* file:///path */
        if (ref.n == 0) return err_set(e, E_INVALID, "file: takes a path");
    }
    buf_put_str(&b, ref);
    buf_cstr(&b);
    *path = b.p;
    return OK;
}
