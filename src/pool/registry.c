/* registry.c - the list of models, their names, and changes of the folder.
 *
 * Readers take no lock: entries and names are only appended, and published by storing the count (or
 * the slot of the hash table) after the entry is complete. `lock` serializes rescans.
 *
 * Names are a hash table that only grows; a name points to an entry. The id of an entry that is
 * gone keeps pointing to it, so the entry comes back with its file; another model may take the name
 * over meanwhile. A link inside the folder is another name of the file that it leads to: one model,
 * loaded once. */
#include "pool/registry.h"

#include "base/buf.h"
#include "base/confine.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "format/modelref.h"
#include "pool/modelname.h"
#include "pool/registry_impl.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum {
    NAMES_MAX = 2 * REGISTRY_MAX,
    SLOTS = 4 * NAMES_MAX, /* a power of two */
    NAME_BYTES = 512
};

struct entry {
    struct registry_model m;
    uint64_t print; /* of its files, when they were looked at last; the rescanning thread's */
};

struct name {
    char *text;
    atomic_int entry; /* index; -1: of none any more */
    /* the rescanning thread's */
    bool of_folder; /* a name that the folder gave */
    bool copied;    /* registry_copy gave it */
    unsigned scan;  /* in which it was found last */
};

struct registry {
    char *root; /* the folder of models, resolved; NULL: none */
    char *base; /* the same as a confined path */
    struct entry *entries[REGISTRY_MAX];
    atomic_int n;
    struct name *names[NAMES_MAX];
    atomic_int n_names;
    atomic_int slots[SLOTS]; /* by hash: 1 + index of a name; 0: free */
    pthread_mutex_t lock;
    bool has_lock;
    unsigned scan; /* number of the current one */
    struct scan_warned warned;
};

/* ---- reading, on any thread ---- */

int registry_n(const struct registry *r)
{
    return atomic_load_explicit(&r->n, memory_order_acquire);
}

const struct registry_model *registry_at(const struct registry *r, int i)
{
    return &r->entries[i]->m;
}

const char *registry_dir(const struct registry *r) { return r->root; }

/* The name with this text, and the slot where it is or belongs. */
static struct name *find_name(const struct registry *r, struct str text, size_t *slot)
{
    for (size_t i = map_hash(text) % SLOTS;; i = (i + 1) % SLOTS) {
        int at = atomic_load_explicit(&r->slots[i], memory_order_acquire);

        *slot = i;
        if (at == 0) return NULL;
        if (str_is(text, r->names[at - 1]->text)) return r->names[at - 1];
    }
}

static int entry_of(const struct name *m)
{
    return atomic_load_explicit(&m->entry, memory_order_acquire);
}

static bool is_gone(const struct registry_model *m)
{
    return atomic_load_explicit(&m->gone, memory_order_acquire);
}

int registry_find_any(const struct registry *r, struct str text)
{
    size_t slot;
    const struct name *m = find_name(r, text, &slot);

    return m ? entry_of(m) : -1;
}

int registry_find(const struct registry *r, struct str text)
{
    int i = registry_find_any(r, text);

    return i >= 0 && !is_gone(registry_at(r, i)) ? i : -1;
}

const char *registry_alias(const struct registry *r, int i, int k)
{
    int n = atomic_load_explicit(&r->n_names, memory_order_acquire);

    for (int j = 0; j < n; j++) {
        const struct name *m = r->names[j];

        if (entry_of(m) != i || strcmp(m->text, registry_at(r, i)->id) == 0) continue;
        if (k-- == 0) return m->text;
    }
    return NULL;
}

int registry_verify(const struct registry *r, int i, struct err *e)
{
    const struct registry_model *m = registry_at(r, i);

    if (m->origin != REGISTRY_FLAG && r->root && confine_is(m->to_open))
        return place_check(r->root, m->to_open, e);
    if (!file_exists(m->to_open))
        return err_set(e, E_NOTFOUND, "model '%s': there is no such file or folder", m->path);
    return OK;
}

/* ---- entries and names ---- */

static void free_entry(struct entry *x)
{
    if (!x) return;
    mem_free((char *)x->m.id);
    mem_free((char *)x->m.path);
    mem_free((char *)x->m.to_open);
    mem_free((char *)x->m.real);
    mem_free((char *)x->m.opt.device);
    mem_free((char *)x->m.opt.chat_template);
    mem_free((char *)x->m.opt.rerank);
    mem_free((char *)x->m.opt.verify_manifest);
    mem_free((char *)x->m.opt.key_file);
    mem_free((char *)x->m.opt.key_command);
    mem_free((char *)x->m.opt.tier);
    mem_free(x);
}

/* A name that leads nowhere yet, or the one there is. Its slot is where publish_name puts it. */
static int find_or_make_name(struct registry *r, const char *text, bool of_folder, size_t *slot,
                             struct name **out, struct err *e)
{
    struct name *m = find_name(r, str_c(text), slot);

    if (!(*out = m)) {
        if (atomic_load(&r->n_names) == NAMES_MAX)
            return err_set(e, E_INVALID, "more than %d names of models", NAMES_MAX);
        if (!(m = mem_new(struct name)) || !(m->text = mem_strdup(text))) {
            mem_free(m);
            return err_nomem(e, "the name of a model");
        }
        atomic_init(&m->entry, -1);
        *out = m;
    }
    if (entry_of(m) < 0) m->of_folder = of_folder, m->copied = false;
    return OK;
}

/* Lets the name lead to entry i, which is published. */
static void publish_name(struct registry *r, struct name *m, size_t slot, int i)
{
    int n = atomic_load(&r->n_names);

    m->scan = r->scan;
    atomic_store_explicit(&m->entry, i, memory_order_release);
    if (atomic_load(&r->slots[slot]) != 0) return;
    r->names[n] = m;
    atomic_store_explicit(&r->n_names, n + 1, memory_order_release);
    atomic_store_explicit(&r->slots[slot], n + 1, memory_order_release);
}

static int set_name(struct registry *r, const char *text, int i, bool of_folder, struct err *e)
{
    struct name *m;
    size_t slot;
    int rc = find_or_make_name(r, text, of_folder, &slot, &m, e);

    if (rc == OK) publish_name(r, m, slot, i);
    return rc;
}

/* Takes x over and adds its id as a name; on an error it is freed. */
static int publish_entry(struct registry *r, struct entry *x, struct err *e)
{
    int n = atomic_load(&r->n), rc;
    struct name *m;
    int64_t created;
    size_t slot;

    x->print = place_print(x->m.to_open, &created);
    atomic_init(&x->m.created, created);
    atomic_init(&x->m.version, 1);
    rc = n < REGISTRY_MAX
             ? find_or_make_name(r, x->m.id, x->m.origin == REGISTRY_FOLDER, &slot, &m, e)
             : err_set(e, E_INVALID, "more than %d models since the start", REGISTRY_MAX);
    if (rc != OK) {
        free_entry(x);
        return rc;
    }
    r->entries[n] = x;
    atomic_store_explicit(&r->n, n + 1, memory_order_release);
    publish_name(r, m, slot, n);
    return OK;
}

/* ---- models of flags and of the list ---- */

/* Names from the list are shown in JSON and in the log. */
static int check_alias(const char *alias, struct err *e)
{
    struct str s = str_c(alias);

    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] < 0x20 || s.p[i] == 0x7f)
            return err_set(e, E_INVALID, "a name of a model has control characters");
    if (s.n >= NAME_BYTES || utf8_bad(s) >= 0)
        return err_set(e, E_INVALID, "a name of a model must be UTF-8 of less than %d bytes",
                       NAME_BYTES);
    return OK;
}

/* Must this path of the item lie in the folder of models? A name of the hub is no path: it stays
 * inside the cache. */
static bool is_confined(const struct registry *r, const struct registry_item *item,
                        const char *path)
{
    return r->root && item->origin == REGISTRY_CONFIG && !modelref_is_hub(str_c(path));
}

/* A path of an item as it is opened, freed with mem_free. With a folder of models, paths of the list
 * are relative to it and stay inside. */
static int locate_path(const struct registry *r, const struct registry_item *item, const char *path,
                       char **out, struct err *e)
{
    const char *rest;
    int rc;

    *out = NULL;
    if (!is_confined(r, item, path))
        return (*out = mem_strdup(path)) ? OK : err_nomem(e, "the path of a model");
    if (path[0] == '/') {
        if (!(rest = confine_below(r->root, path)))
            return err_set(e, E_INVALID, "%s is outside the folder of models '%s'", path, r->root);
        return (*out = confine_path(r->base, rest)) ? OK : err_nomem(e, "the path of a model");
    }
    rc = path_under(out, r->base, str_c(path), e);
    if (rc == E_INVALID)
        err_set(e, rc, "'%s' must be a path below '%s', without '..'", path, r->root);
    return rc;
}

/* The path of an item's name: a path, file:PATH, or a name of the cache. */
static int locate_name(const struct registry *r, const struct registry_item *item, char **out,
                       struct err *e)
{
    char *path = NULL;
    int rc;

    if (!is_confined(r, item, item->path)) return modelref_find(out, str_c(item->path), e);
    if ((rc = modelref_resolve(&path, str_c(item->path), e)) == OK)
        rc = locate_path(r, item, path, out, e);
    mem_free(path);
    return rc;
}

static int locate_item(const struct registry *r, const struct registry_item *item, char **out,
                       struct err *e)
{
    char *path = NULL, *only = NULL;
    int rc = locate_name(r, item, &path, e);

    if (rc == OK && !file_exists(path))
        rc = err_set(e, E_NOTFOUND, "model '%s': there is no such file or folder", path);
    if (rc == OK) rc = place_pick(&only, path, e);
    if (rc == OK && is_confined(r, item, item->path))
        rc = place_check(r->root, only ? only : path, e);
    if (rc == OK) *out = only ? only : path;
    if (*out != path) mem_free(path);
    if (*out != only) mem_free(only);
    return rc;
}

/* Takes to_open over. false: no memory. */
static bool set_path(struct entry *x, char *to_open)
{
    char *path = to_open ? mem_strdup(to_open) : NULL;

    if (path) confine_clean(path);
    x->m.to_open = to_open;
    x->m.path = path;
    return path != NULL;
}

/* A model of the folder has the same id whether it is listed or not. */
static char *id_of_item(const struct registry *r, const struct registry_item *item,
                        const struct entry *x, const struct scan *s)
{
    size_t n = r->root ? strlen(r->root) : 0;

    if (item->n_aliases > 0 && item->aliases[0] && item->aliases[0][0])
        return mem_strdup(item->aliases[0]);
    if (!is_confined(r, item, item->path)) return model_id_of_name(item->path, x->m.path);
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->models[i].real, x->m.real) == 0) return mem_strdup(s->models[i].id);
    if (n > 1 && strncmp(x->m.path, r->root, n) == 0 && x->m.path[n] == '/')
        return model_id_below(x->m.path + n + 1);
    return model_id_of_name(item->path, x->m.path);
}

/* A copy of a text, or NULL for none; false: no memory. */
static bool copy_text(const char **to, const char *from)
{
    *to = from ? mem_strdup(from) : NULL;
    return *to || !from;
}

static int copy_opt(const struct registry *r, const struct registry_item *item,
                    struct model_opt *to, struct err *e)
{
    const struct model_opt *from = &item->opt;
    const char *template = from->chat_template;
    char *path = NULL;
    int rc = OK;

    *to = *from;
    to->chat_template = to->rerank = to->tier = NULL;
    to->verify_manifest = to->key_file = to->key_command = NULL;
    if (!copy_text(&to->device, from->device) || !copy_text(&to->rerank, from->rerank) ||
        !copy_text(&to->verify_manifest, from->verify_manifest) ||
        !copy_text(&to->key_file, from->key_file) ||
        !copy_text(&to->key_command, from->key_command) || !copy_text(&to->tier, from->tier))
        rc = err_nomem(e, "the settings of a model");
    if (rc == OK && template && *template) {
        rc = locate_path(r, item, template, &path, e);
        to->chat_template = path;
        if (rc == OK && is_confined(r, item, template)) rc = place_check(r->root, path, e);
        if (rc != OK && rc != E_NOMEM) err_wrap(e, "chat-template");
    }
    return rc;
}

static int make_item(const struct registry *r, const struct registry_item *item,
                     const struct scan *s, struct entry **out, struct err *e)
{
    struct entry *x = mem_new(struct entry);
    char *path = NULL, *real = NULL;
    int rc;

    if (!x) return err_nomem(e, "a model");
    rc = locate_item(r, item, &path, e);
    if (rc == OK) rc = place_resolve(&real, path, e);
    x->m.real = real;
    if (!set_path(x, path) && rc == OK) rc = err_nomem(e, "a model");
    x->m.origin = item->origin;
    x->m.named = item->origin == REGISTRY_FLAG || !r->root;
    x->m.preload = model_has(&item->opt, MODEL_PRELOAD) ? item->opt.preload : x->m.named;
    if (rc == OK) rc = copy_opt(r, item, &x->m.opt, e);
    if (rc == OK && !(x->m.id = id_of_item(r, item, x, s))) rc = err_nomem(e, "a model");
    if (rc == OK) *out = x;
    else free_entry(x);
    return rc;
}

/* Names must be unique: a request chooses its model by name. */
static int check_unique(const struct registry *r, const char *text, const char *path, struct err *e)
{
    int i = registry_find(r, str_c(text));

    if (i < 0) return OK;
    return err_set(e, E_INVALID,
                   "models '%s' and '%s' are both named '%s': give one of them an alias",
                   registry_at(r, i)->path, path, text);
}

static int add_item(struct registry *r, const struct registry_item *item, const struct scan *s,
                    struct err *e)
{
    struct entry *x = NULL;
    const char *path;
    int rc = OK;

    for (int k = 0; k < item->n_aliases && rc == OK; k++)
        if (item->origin == REGISTRY_CONFIG) rc = check_alias(item->aliases[k], e);
    if (rc == OK) rc = make_item(r, item, s, &x, e);
    if (rc == OK && (rc = check_unique(r, x->m.id, x->m.path, e)) != OK) free_entry(x);
    if (rc != OK || (rc = publish_entry(r, x, e)) != OK) return rc;
    path = x->m.path;
    for (int k = 1; k < item->n_aliases && rc == OK; k++) {
        if (strcmp(item->aliases[k], x->m.id) == 0) continue;
        rc = check_unique(r, item->aliases[k], path, e);
        if (rc == OK) rc = set_name(r, item->aliases[k], atomic_load(&r->n) - 1, false, e);
    }
    return rc;
}

/* ---- models of the folder ---- */

/* Files that have an entry: resolved path → its index. */
static int map_known(const struct registry *r, struct map *known, struct err *e)
{
    for (int i = 0; i < registry_n(r); i++) {
        const struct registry_model *m = registry_at(r, i);

        if (m->origin == REGISTRY_FOLDER) continue;
        if (map_put(known, str_c(m->real), (uint64_t)i) < 0)
            return err_nomem(e, "the list of models");
    }
    return OK;
}

/* Has the model been replaced, or come back? */
static void refresh_entry(struct registry *r, int i, struct registry_news *news)
{
    struct entry *x = r->entries[i];
    int64_t created;
    uint64_t print = place_print(x->m.to_open, &created);

    if (print && print != x->print) {
        x->print = print;
        atomic_store(&x->m.created, created);
        atomic_fetch_add(&x->m.version, 1);
        news->replaced++;
    }
    if (is_gone(&x->m)) {
        atomic_store_explicit(&x->m.gone, false, memory_order_release);
        news->back++;
    }
}

static int add_found(struct registry *r, const struct scan_model *m, struct map *known,
                     struct registry_news *news, struct err *e)
{
    struct entry *x = mem_new(struct entry);
    int i = registry_n(r), rc;

    if (!x) return err_nomem(e, "a model");
    x->m.origin = REGISTRY_FOLDER;
    x->m.id = mem_strdup(m->id);
    x->m.real = mem_strdup(m->real);
    if (!set_path(x, mem_strdup(m->path)) || !x->m.id || !x->m.real) {
        free_entry(x);
        return err_nomem(e, "a model");
    }
    if ((rc = publish_entry(r, x, e)) != OK) return rc;
    news->added++;
    return map_put(known, str_c(x->m.real), (uint64_t)i) < 0 ? err_nomem(e, "a model") : OK;
}

static bool is_entry_of(const struct registry_model *x, const struct scan_model *m)
{
    return x->origin == REGISTRY_FOLDER && strcmp(x->id, m->id) == 0 &&
           strcmp(x->to_open, m->path) == 0 && strcmp(x->real, m->real) == 0;
}

/* The folder's entry of this model: by its name, else among those that are gone. -1: none. */
static int find_entry(const struct registry *r, const struct name *n, const struct scan_model *m)
{
    int i = n ? entry_of(n) : -1;

    if (!n) return -1;
    if (i >= 0 && is_entry_of(registry_at(r, i), m)) return i;
    for (i = registry_n(r) - 1; i >= 0; i--)
        if (is_gone(registry_at(r, i)) && is_entry_of(registry_at(r, i), m)) return i;
    return -1;
}

/* Has a flag, the list or a request given the name to a model that is there? */
static bool is_taken(const struct registry *r, const struct name *n)
{
    int i = entry_of(n);

    return !n->of_folder && i >= 0 && !is_gone(registry_at(r, i));
}

/* One model that the scan has found: known, another name of a known one, or new. */
static int merge_found(struct registry *r, struct scan *s, const struct scan_model *m,
                       struct map *known, struct registry_news *news, struct err *e)
{
    size_t slot;
    struct name *n = find_name(r, str_c(m->id), &slot);
    uint64_t i = 0;
    bool has_entry = map_get(known, str_c(m->real), &i);
    int same = find_entry(r, n, m), rc = OK;

    if (has_entry && r->entries[i]->m.origin != REGISTRY_FOLDER) return OK; /* it is listed */
    if (n && (is_taken(r, n) || (n->of_folder && n->scan == r->scan))) {
        scan_warn(s, m->path, "another model has its name; it is left out");
    } else if (same >= 0) {
        publish_name(r, n, slot, same);
        refresh_entry(r, same, news);
        if (map_put(known, str_c(r->entries[same]->m.real), (uint64_t)same) < 0)
            rc = err_nomem(e, "the list of models");
    } else {
        rc = has_entry ? set_name(r, m->id, (int)i, true, e) : add_found(r, m, known, news, e);
    }
    if (rc == E_INVALID) { /* the list is full */
        scan_warn(s, r->root, "too many models since the start; some are left out");
        rc = OK;
    }
    return rc;
}

/* Names that this scan has not found. An entry whose name another model has taken over is gone,
 * too. */
static void mark_gone(struct registry *r, struct registry_news *news)
{
    for (int j = 0; j < atomic_load(&r->n_names); j++) {
        struct name *n = r->names[j];
        int i = entry_of(n);

        if (!n->of_folder || n->scan == r->scan || i < 0) continue;
        if (strcmp(registry_at(r, i)->id, n->text) != 0)
            atomic_store_explicit(&n->entry, -1, memory_order_release);
    }
    for (int i = 0; i < registry_n(r); i++) {
        struct registry_model *m = &r->entries[i]->m;
        size_t slot;
        const struct name *n = find_name(r, str_c(m->id), &slot);

        if (m->origin != REGISTRY_FOLDER || is_gone(m)) continue;
        if (n && entry_of(n) == i && n->scan == r->scan) continue;
        atomic_store_explicit(&m->gone, true, memory_order_release);
        news->gone++;
    }
}

static int merge_scan(struct registry *r, struct scan *s, struct registry_news *news, struct err *e)
{
    struct map known = { 0 };
    int rc = map_known(r, &known, e);

    for (int i = 0; i < s->n && rc == OK; i++)
        rc = merge_found(r, s, &s->models[i], &known, news, e);
    if (rc == OK) mark_gone(r, news);
    map_release(&known);
    news->refused = s->n_refused;
    return rc;
}

/* A model that was removed by request comes back with its files. */
static bool is_there(const struct registry_model *m)
{
    return !is_gone(m) || file_exists(m->to_open);
}

int registry_rescan(struct registry *r, struct registry_news *news, struct err *e)
{
    struct registry_news none = { 0 }, *w = news ? news : &none;
    struct scan s = { .root = r->root, .base = r->base, .warned = &r->warned };
    int rc = OK;

    *w = none;
    pthread_mutex_lock(&r->lock);
    r->scan++;
    for (int i = 0; i < registry_n(r); i++)
        if (registry_at(r, i)->origin != REGISTRY_FOLDER && is_there(registry_at(r, i)))
            refresh_entry(r, i, w);
    if (r->root) rc = scan_run(&s, e);
    if (r->root && rc == OK) rc = merge_scan(r, &s, w, e);
    scan_release(&s);
    pthread_mutex_unlock(&r->lock);
    return rc;
}

/* ---- changes by request: registry_live.c ---- */

void registry_lock(struct registry *r) { pthread_mutex_lock(&r->lock); }
void registry_unlock(struct registry *r) { pthread_mutex_unlock(&r->lock); }
int registry_check_name(const char *text, struct err *e) { return check_alias(text, e); }

int registry_put_hub(struct registry *r, const char *id, char *path, int *i, struct err *e)
{
    struct entry *x = mem_new(struct entry);
    char *real = NULL;
    int rc = x ? place_resolve(&real, path, e) : err_nomem(e, "a model");

    if (!x) mem_free(path);
    if (!x) return rc;
    x->m.origin = REGISTRY_HUB;
    x->m.real = real;
    x->m.id = mem_strdup(id);
    if ((!set_path(x, path) || !x->m.id) && rc == OK) rc = err_nomem(e, "a model");
    if (rc != OK) {
        free_entry(x);
        return rc;
    }
    *i = registry_n(r);
    return publish_entry(r, x, e);
}

void registry_put_back(struct registry *r, int i)
{
    struct registry_news news = { 0 };

    refresh_entry(r, i, &news);
}

void registry_put_away(struct registry *r, int i)
{
    atomic_store_explicit(&r->entries[i]->m.gone, true, memory_order_release);
}

int registry_put_name(struct registry *r, const char *text, int i, bool copied, struct err *e)
{
    size_t slot;
    int rc = set_name(r, text, i, false, e);

    if (rc == OK) find_name(r, str_c(text), &slot)->copied = copied;
    return rc;
}

bool registry_is_copy(const struct registry *r, struct str text)
{
    size_t slot;
    const struct name *m = find_name(r, text, &slot);

    return m && m->copied && entry_of(m) >= 0;
}

void registry_free_name(struct registry *r, struct str text)
{
    size_t slot;
    struct name *m = find_name(r, text, &slot);

    if (m) atomic_store_explicit(&m->entry, -1, memory_order_release);
}

int registry_n_copies(const struct registry *r)
{
    int n = 0;

    for (int j = 0; j < atomic_load(&r->n_names); j++)
        n += r->names[j]->copied && entry_of(r->names[j]) >= 0;
    return n;
}

/* ---- open and close ---- */

static int open_root(struct registry *r, const char *dir, struct err *e)
{
    int rc;

    if (!dir || !*dir) return OK;
    rc = place_resolve(&r->root, dir, e);
    if (rc == E_NOTFOUND) return err_set(e, rc, "models-dir '%s': there is no such folder", dir);
    if (rc == OK && !file_is_dir(r->root))
        rc = err_set(e, E_INVALID, "models-dir '%s': not a folder", dir);
    if (rc == OK && !(r->base = confine_path(r->root, ""))) rc = err_nomem(e, "a folder of models");
    return rc;
}

/* names: separated by commas. */
static int mark_preload(struct registry *r, struct str names, struct err *e)
{
    while (names.n) {
        ptrdiff_t comma = str_find(names, STR(","));
        struct str one = comma < 0 ? names : str_take(names, (size_t)comma);
        struct str name = str_trim(one);
        int i = registry_find(r, name);

        names = str_skip(names, one.n + 1);
        if (name.n == 0) continue;
        if (i < 0)
            return err_set(e, E_INVALID, "preload: there is no model '%.*s' among the %d models",
                           STR_ARG(str_take(name, 100)), registry_n(r));
        r->entries[i]->m.preload = true;
    }
    return OK;
}

static int fill_registry(struct registry *r, const struct registry_opt *opt, struct err *e)
{
    struct scan s = { .root = r->root, .base = r->base, .warned = &r->warned };
    struct registry_news news = { 0 };
    int rc = r->root ? scan_run(&s, e) : OK;

    for (int i = 0; i < opt->n && rc == OK; i++)
        if ((rc = add_item(r, &opt->items[i], &s, e)) != OK && opt->items[i].where)
            err_wrap(e, "%s", opt->items[i].where);
    if (rc == OK && r->root) {
        r->scan++; /* the names of items are not of this scan */
        rc = merge_scan(r, &s, &news, e);
    }
    scan_release(&s);
    return rc;
}

int registry_open(struct registry **out, const struct registry_opt *opt, struct err *e)
{
    struct registry *r = mem_new(struct registry);
    int rc;

    if (!r) return err_nomem(e, "the list of models");
    if (pthread_mutex_init(&r->lock, NULL) != 0) rc = err_nomem(e, "the list of models");
    else rc = (r->has_lock = true, open_root(r, opt->models_dir, e));
    if (rc == OK && opt->n == 0 && !r->root) rc = err_set(e, E_INVALID, "no model is named");
    if (rc == OK) rc = fill_registry(r, opt, e);
    if (rc == OK) rc = mark_preload(r, str_c(opt->preload), e);
    if (rc == OK && registry_n(r) == 0) log_warn("there are no models in '%s'", r->root);
    if (rc != OK && e) confine_clean(e->msg);
    if (rc == OK) *out = r;
    else registry_close(r);
    return rc;
}

void registry_close(struct registry *r)
{
    if (!r) return;
    for (int i = 0; i < registry_n(r); i++) free_entry(r->entries[i]);
    for (int i = 0; i < atomic_load(&r->n_names); i++) {
        mem_free(r->names[i]->text);
        mem_free(r->names[i]);
    }
    scan_warned_release(&r->warned);
    if (r->has_lock) pthread_mutex_destroy(&r->lock);
    mem_free(r->root);
    mem_free(r->base);
    mem_free(r);
}
