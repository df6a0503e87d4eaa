/* modelref.c - parses names of models and resolves them: in the cache, or as paths. */
#include "format/modelref.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/hubcache.h"

#include <ctype.h>
#include <strings.h>

enum { REF_MOST = 1024, PATH_MOST = 4096, NAME_MOST = 128 };

/* How a name of the hub begins; 0: it is none. The host's name is what web pages and other programs
 * show. */
static size_t hub_prefix(struct str ref)
{
    static const char *const prefixes[] = { "hf:", "hf.co/", "huggingface.co/" };

    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (str_starts(ref, str_c(prefixes[i]))) return strlen(prefixes[i]);
    return 0;
}

bool modelref_is_hub(struct str ref) { return hub_prefix(ref) > 0; }

bool modelref_is(struct str ref) { return modelref_is_hub(ref) || str_starts(ref, STR("file:")); }

bool modelref_is_word(struct str ref)
{
    for (size_t i = 0; i < ref.n; i++)
        if (!isalnum((unsigned char)ref.p[i]) && !(ref.p[i] && strchr("._/:@+~-", ref.p[i])))
            return false;
    return ref.n > 0;
}

/* ---- parts ---- */

/* Is it safe as a part of a path, and a name that the hub allows? */
static bool is_name(struct str s)
{
    if (s.n == 0 || s.n > NAME_MOST || s.p[0] == '.' || s.p[0] == '-' ||
        str_find(s, STR("..")) >= 0 || str_find(s, STR("--")) >= 0)
        return false;
    for (size_t i = 0; i < s.n; i++)
        if (!isalnum((unsigned char)s.p[i]) && !(s.p[i] && strchr("._-", s.p[i]))) return false;
    return true;
}

/* A branch, a tag or a commit. "refs/pr/1" is one. */
static bool is_revision(struct str s)
{
    if (s.n > NAME_MOST || !hub_name_is_safe(s) || s.p[0] == '.' || s.p[0] == '-' ||
        str_find(s, STR("..")) >= 0)
        return false;
    for (size_t i = 0; i < s.n; i++)
        if (!isalnum((unsigned char)s.p[i]) && !(s.p[i] && strchr("._-/", s.p[i]))) return false;
    return true;
}

/* Cuts s before the first `at`; returns what follows it, p is NULL if there is no such byte. */
static struct str cut_at(struct str *s, char at)
{
    const char *p = s->n ? memchr(s->p, at, s->n) : NULL;
    struct str rest = p ? str_skip(*s, (size_t)(p - s->p) + 1) : str_of(NULL, 0);

    if (p) s->n = (size_t)(p - s->p);
    return rest;
}

static int check_text(struct str ref, size_t most, struct err *e)
{
    if (ref.n == 0 || memchr(ref.p, 0, ref.n))
        return err_set(e, E_INVALID, "the name of a model is empty or has a NUL byte");
    if (ref.n > most)
        return err_set(e, E_INVALID,
                       "the name of a model has %zu characters; at most %zu are allowed", ref.n,
                       most);
    return OK;
}

int modelref_parse(struct hf_ref *r, struct str ref, struct err *e)
{
    struct str s = str_skip(ref, hub_prefix(ref)), rev;
    int rc = check_text(ref, REF_MOST, e);

    if (rc != OK) return rc;
    *r = (struct hf_ref){ .rev = STR("main") };
    r->file = cut_at(&s, ':');
    rev = cut_at(&s, '@');
    if (rev.p) r->rev = rev;
    r->name = cut_at(&s, '/');
    r->org = s;
    if (!r->name.p) r->name = s, r->org = STR("");
    else if (!is_name(s)) r->name.n = 0;
    if (!is_name(r->name) || !is_revision(r->rev))
        return err_set(e, E_INVALID,
                       "'%.*s': expected hf:ORG/NAME, hf:ORG/NAME@REV or hf:ORG/NAME:FILE",
                       STR_ARG(str_take(ref, 200)));
    if (r->file.p && !hub_name_is_safe(r->file))
        return err_set(e, E_INVALID,
                       "'%.*s': the file must be a path that stays inside the repository",
                       STR_ARG(str_take(ref, 200)));
    return OK;
}

/* ---- the cache ---- */

/* Sets e to the reason with the command that downloads the model. */
static int fail_missing(struct str ref, const struct err *why, struct err *e)
{
    struct str name = str_skip(ref, hub_prefix(ref));

    return err_set(e, E_NOTFOUND, "hf:%.*s: %.300s; 'tern pull hf:%.*s' downloads it",
                   STR_ARG(str_take(name, 60)), why->msg, STR_ARG(str_take(name, 100)));
}

/* The model in a snapshot. A folder with config.json and no weights is left to the loader. */
static int choose_model(char **path, const char *dir, struct str file, struct err *e)
{
    struct hub_files files = { 0 };
    struct hub_choice choice;
    struct err why = { 0 };
    int rc = hubcache_files(&files, dir, e);

    if (rc == OK && (rc = hub_choose(&files, file, &choice, &why)) == E_UNSUPPORTED) {
        rc = files.n ? OK : err_set(&why, E_NOTFOUND, "there is nothing in it");
        choice = (struct hub_choice){ HUB_NONE, -1 };
    }
    if (rc == OK)
        *path = choice.head >= 0 ? path_join(dir, files.at[choice.head].name) : mem_strdup(dir);
    if (rc == OK && !*path) rc = err_nomem(e, "the path of a model");
    else if (rc != OK && why.msg[0]) err_set(e, rc, "%.200s: %.300s", dir, why.msg);
    hub_files_release(&files);
    return rc;
}

/* The snapshot, then the model in it. */
static int find_in_repo(char **path, const char *repo, const struct hf_ref *r, struct err *e)
{
    char *commit = NULL, *snapshots = path_join(repo, "snapshots"), *dir = NULL;
    int rc =
        snapshots ? hubcache_commit(&commit, repo, r->rev, e) : err_nomem(e, "the path of a model");

    if (rc == OK && !(dir = path_join(snapshots, commit))) rc = err_nomem(e, "the path of a model");
    if (rc == OK) rc = choose_model(path, dir, r->file, e);
    mem_free(commit);
    mem_free(snapshots);
    mem_free(dir);
    return rc;
}

static int resolve_hub(char **path, struct str ref, struct err *e)
{
    struct hf_ref r;
    struct err why = { 0 };
    char *cache, *repo = NULL;
    int rc;

    if ((rc = modelref_parse(&r, ref, e)) != OK) return rc;
    if (!(cache = hubcache_dir()) || !(repo = hubcache_repo(cache, &r)))
        rc = err_nomem(e, "the path of the model cache");
    else if (!file_is_dir(repo)) rc = err_set(&why, E_NOTFOUND, "not in the cache %s", cache);
    else rc = find_in_repo(path, repo, &r, &why);
    if (rc == E_NOTFOUND) fail_missing(ref, &why, e);
    else if (rc != OK && why.msg[0]) err_set(e, rc, "%s", why.msg);
    mem_free(cache);
    mem_free(repo);
    return rc;
}

static int copy_path(char **path, struct str text, struct err *e)
{
    struct buf b = { 0 };

    buf_put_str(&b, text);
    buf_cstr(&b);
    if (b.failed) {
        buf_release(&b);
        return err_nomem(e, "the path of a model");
    }
    *path = b.p;
    return OK;
}

/* A plain path is returned as it is, so that callers need not distinguish. */
int modelref_resolve(char **path, struct str ref, struct err *e)
{
    int rc = check_text(ref, PATH_MOST, e);

    if (rc != OK) return rc;
    if (modelref_is_hub(ref)) return resolve_hub(path, ref, e);
    if (str_starts(ref, STR("file:"))) {
        ref = str_skip(ref, 5);
        if (str_starts(ref, STR("///"))) ref = str_skip(ref, 2); /* file:///path */
        if (ref.n == 0) return err_set(e, E_INVALID, "file: needs a path after it");
    }
    return copy_path(path, ref, e);
}

/* ---- what a person typed ---- */

/* Repositories of the cache with this name, whatever their organization. */
struct name_search {
    struct str name;
    struct buf found; /* "ORG/NAME", several with commas between them */
    int n;
};

static bool match_repo(void *arg, struct str org, struct str name)
{
    struct name_search *s = arg;

    if (name.n != s->name.n || strncasecmp(name.p, s->name.p, name.n) != 0) return true;
    buf_printf(&s->found, "%s%.*s%s%.*s", s->n++ ? ", " : "", STR_ARG(org), org.n ? "/" : "",
               STR_ARG(name));
    return s->found.n < 300;
}

/* Turns NAME[@REV][:FILE] into ORG/NAME[@REV][:FILE] of the cache; *full is empty if there is none. */
static int complete_name(struct buf *full, const char *cache, struct str ref,
                         const struct hf_ref *r, struct err *e)
{
    struct name_search s = { .name = r->name };
    int rc = OK;

    hubcache_each_repo(cache, match_repo, &s);
    if (s.n > 1)
        rc = err_set(e, E_INVALID, "'%.*s' is the name of several models of the cache: %s",
                     STR_ARG(str_take(ref, 100)), buf_cstr(&s.found));
    if (rc == OK && s.n == 1) {
        buf_put_str(full, buf_str(&s.found));
        buf_put_str(full, str_skip(ref, r->name.n));
    }
    if (rc == OK && (s.found.failed || full->failed)) rc = err_nomem(e, "the name of a model");
    buf_release(&s.found);
    return rc;
}

static bool has_file_ending(struct str name)
{
    return str_ends(name, STR(".gguf")) || str_ends(name, STR(".safetensors")) ||
           str_ends(name, STR(".onnx"));
}

/* No such path, and no such model in the cache. */
static int fail_nowhere(struct str ref, const char *cache, bool is_name_of_hub, struct err *e)
{
    if (!is_name_of_hub || has_file_ending(ref))
        return err_set(e, E_NOTFOUND, "model '%.*s': there is no such file or folder",
                       STR_ARG(str_take(ref, 400)));
    return err_set(e, E_NOTFOUND,
                   "model '%.*s': there is no such file or folder, and no model of this name in "
                   "the cache %.150s; 'tern pull hf:%s%.*s' downloads it",
                   STR_ARG(str_take(ref, 60)), cache, memchr(ref.p, '/', ref.n) ? "" : "ORG/",
                   STR_ARG(str_take(ref, 60)));
}

int modelref_complete(char **full, struct str ref, struct err *e)
{
    struct hf_ref r;
    struct buf b = { 0 };
    char *cache = hubcache_dir(), *repo = NULL;
    bool is_hub = modelref_parse(&r, ref, NULL) == OK;
    int rc = cache ? OK : err_nomem(e, "the path of the model cache");

    ref = str_skip(ref, hub_prefix(ref));
    if (rc == OK && is_hub && r.org.n) {
        if (!(repo = hubcache_repo(cache, &r))) rc = err_nomem(e, "the path of a model");
        else if (file_is_dir(repo)) buf_put_str(&b, ref);
    } else if (rc == OK && is_hub) {
        rc = complete_name(&b, cache, ref, &r, e);
    }
    if (rc == OK && b.n == 0 && !b.failed) rc = fail_nowhere(ref, cache, is_hub, e);
    buf_cstr(&b);
    if (rc == OK && (rc = buf_check(&b, e)) == OK) *full = b.p;
    else buf_release(&b);
    mem_free(cache);
    mem_free(repo);
    return rc;
}

/* ref is no path. */
static int find_by_name(char **path, struct str ref, struct err *e)
{
    char *full = NULL;
    int rc = modelref_complete(&full, ref, e);

    if (rc == OK) rc = resolve_hub(path, str_c(full), e);
    mem_free(full);
    return rc;
}

int modelref_find(char **path, struct str ref, struct err *e)
{
    char *text = NULL;
    int rc = modelref_resolve(&text, ref, e);

    if (rc != OK) return rc;
    if (file_exists(text)) {
        *path = text;
        return OK;
    }
    if (modelref_is(ref))
        rc = err_set(e, E_NOTFOUND, "model '%.*s': there is no such file or folder",
                     STR_ARG(str_take(ref, 400)));
    else rc = find_by_name(path, ref, e);
    mem_free(text);
    return rc;
}
