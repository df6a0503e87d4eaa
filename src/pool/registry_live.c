/* registry_live.c - models and names that come and go by request while the registry is open: models of
 * the Hugging Face cache, and copies, which are further names.
 *
 * A pulled model has the id "hf.co/ORG/NAME[@REV][:FILE]". It is looked up in the cache by that name, so
 * nothing outside the cache can be reached by it. Pulled again at another commit it is a new entry, and
 * the old one is gone. */
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/hubcache.h"
#include "pool/registry_impl.h"

#include <string.h>

#define HUB_HOST "hf.co/"

/* ---- names ---- */

bool registry_is_hub(struct str name) { return modelref_is_hub(name); }

int registry_hub_id(char **out, struct str name, struct err *e)
{
    static const char *const prefixes[] = { "hf:", HUB_HOST, "huggingface.co/" };
    struct str tag = STR(":latest"), rest = name;
    struct buf b = { 0 };
    struct hf_ref r;
    int rc;

    if (!modelref_is_hub(name))
        return err_set(e, E_INVALID,
                       "'%.*s' is no name of the hub: expected hf.co/ORG/NAME[:FILE] or "
                       "hf:ORG/NAME[:FILE]",
                       STR_ARG(str_take(name, 100)));
    if (str_ends(name, tag)) rest = name = str_take(name, name.n - tag.n);
    if ((rc = modelref_parse(&r, name, e)) != OK) return rc;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (str_starts(name, str_c(prefixes[i]))) rest = str_skip(name, strlen(prefixes[i]));
    buf_puts(&b, HUB_HOST);
    buf_put_str(&b, rest);
    buf_cstr(&b);
    if ((rc = buf_check(&b, e)) == OK) rc = registry_check_name(b.p, e);
    if (rc == OK) *out = b.p;
    else buf_release(&b);
    return rc;
}

int registry_copy(struct registry *r, int i, struct str name, struct err *e)
{
    struct str tag = STR(":latest");
    struct buf b = { 0 };
    int rc, at;

    if (str_ends(name, tag)) name = str_take(name, name.n - tag.n);
    if (name.n == 0 || memchr(name.p, 0, name.n))
        return err_set(e, E_INVALID, "the name of a model is empty or has a NUL byte");
    buf_put_str(&b, name);
    buf_cstr(&b);
    registry_lock(r);
    at = registry_find(r, name);
    if ((rc = buf_check(&b, e)) == OK) rc = registry_check_name(b.p, e);
    if (rc == OK && at >= 0 && !registry_is_copy(r, name))
        rc = err_set(e, E_INVALID, "there is a model '%.*s' already", STR_ARG(str_take(name, 100)));
    if (rc == OK && at < 0 && registry_n_copies(r) >= REGISTRY_COPIES)
        rc = err_set(e, E_INVALID, "there are %d copies of models already", REGISTRY_COPIES);
    if (rc == OK) rc = registry_put_name(r, b.p, i, true, e);
    registry_unlock(r);
    buf_release(&b);
    return rc;
}

bool registry_drop_copy(struct registry *r, struct str name)
{
    struct str tag = STR(":latest");
    bool found;

    registry_lock(r);
    if (!registry_is_copy(r, name) && str_ends(name, tag)) name = str_take(name, name.n - tag.n);
    if ((found = registry_is_copy(r, name))) registry_free_name(r, name);
    registry_unlock(r);
    return found;
}

/* ---- models of the cache ---- */

/* Where the cache has the model: a file or a folder. */
static int locate_hub(char **out, const char *id, struct err *e)
{
    char *path = NULL, *only = NULL;
    int rc = modelref_find(&path, str_c(id), e);

    if (rc == OK) rc = place_pick(&only, path, e);
    if (rc == OK && only) {
        mem_free(path);
        path = only;
    }
    if (rc == OK) *out = path;
    else mem_free(path);
    return rc;
}

/* The entry that is at this path, and not gone; else one of the hub that was; -1: none. */
static int find_path(const struct registry *r, const char *path)
{
    int gone = -1;

    for (int i = registry_n(r) - 1; i >= 0; i--) {
        const struct registry_model *m = registry_at(r, i);
        if (strcmp(m->path, path) != 0) continue;
        if (!atomic_load(&m->gone)) return i;
        if (m->origin == REGISTRY_HUB) gone = i;
    }
    return gone;
}

/* Takes path over. */
static int put_path(struct registry *r, const char *id, char *path, int *out, struct err *e)
{
    int named = registry_find_any(r, str_c(id)), at = find_path(r, path), rc;

    if (named >= 0 && registry_at(r, named)->origin != REGISTRY_HUB && named != at) {
        mem_free(path);
        return err_set(e, E_INVALID, "another model is named '%s'", id);
    }
    if (at >= 0) {
        mem_free(path);
        registry_put_back(r, at);
        rc = named == at ? OK : registry_put_name(r, id, at, false, e);
    } else {
        rc = registry_put_hub(r, id, path, &at, e);
    }
    if (rc != OK) return rc;
    if (named >= 0 && named != at && strcmp(registry_at(r, named)->id, id) == 0)
        registry_put_away(r, named); /* an earlier commit */
    *out = at;
    return OK;
}

int registry_add_hub(struct registry *r, const char *id, int *i, struct err *e)
{
    char *path = NULL;
    int rc = locate_hub(&path, id, e);

    if (rc != OK) return rc;
    registry_lock(r);
    rc = put_path(r, id, path, i, e);
    registry_unlock(r);
    return rc;
}

/* The name under which the cache lists the model. */
static int find_listed(struct buf *name, const char *cache, const struct registry_model *m,
                       struct err *e)
{
    struct hubcache_models all = { 0 };
    int rc = hubcache_list(&all, cache, e);

    for (int k = 0; rc == OK && k < all.n; k++)
        if (strcmp(all.at[k].path, m->path) == 0 && name->n == 0) buf_puts(name, all.at[k].name);
    hubcache_models_release(&all);
    buf_cstr(name);
    if (rc == OK) rc = buf_check(name, e);
    if (rc == OK && name->n == 0)
        rc = err_set(e, E_INVALID,
                     "model '%s' is not in the Hugging Face cache: only models that were pulled "
                     "into it are removed",
                     m->id);
    return rc;
}

static int remove_listed(const char *cache, struct str name, struct err *e)
{
    struct hubcache_removed removed;
    struct hf_ref ref;
    int rc = modelref_parse(&ref, name, e);

    return rc == OK ? hubcache_remove(cache, &ref, &removed, e) : rc;
}

int registry_check_hub(const struct registry *r, int i, struct err *e)
{
    char *cache = hubcache_dir();
    struct buf name = { 0 };
    int rc =
        cache ? find_listed(&name, cache, registry_at(r, i), e) : err_nomem(e, "the model cache");

    buf_release(&name);
    mem_free(cache);
    return rc;
}

int registry_remove_hub(struct registry *r, int i, struct err *e)
{
    char *cache = hubcache_dir();
    struct buf name = { 0 };
    int rc =
        cache ? find_listed(&name, cache, registry_at(r, i), e) : err_nomem(e, "the model cache");

    if (rc == OK) rc = remove_listed(cache, buf_str(&name), e);
    if (rc == OK) {
        registry_lock(r);
        registry_put_away(r, i);
        registry_unlock(r);
    }
    buf_release(&name);
    mem_free(cache);
    return rc;
}
