/* abi_runtime.c - a runtime: a pool of models by name.
 *
 * Each model that was ever loaded with certain options is a record (struct tern_model) with a slot of
 * the pool; records live as long as the runtime, so that handles and the pool's indices stay valid.
 * tern_unload takes a record off the list; loading the same model again puts it back. The lock
 * protects the list of records and what is listed. It is never held while a model is loaded. */
#include "abi/abi_impl.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "engine/engine.h"
#include "format/modelref.h"
#include "pool/modelname.h"
#include "pool/pool.h"
#include "pool/prompter.h"

#include <string.h>

/* Models that are expected at a time, for the sizes of KV caches; a program has its own needs, so no
 * model takes more than half. */
enum { SIDE_BY_SIDE = 3, SIDE_BY_SIDE_LEAST = 2 };

struct tern_runtime {
    atomic_int n_refs; /* the handle's, and those of models and requests */
    struct pool *pool;
    pthread_mutex_t lock;
    pthread_cond_t news; /* a wait for a model has ended */
    bool has_lock;
    struct tern_model *records;
    int models_max;
    int64_t keep_ms;
};

struct pool *abi_pool(const struct tern_runtime *rt) { return rt->pool; }

/* ---- the life of a runtime ---- */

void tern_runtime_options_init_sized(tern_runtime_options *o, size_t size)
{
    tern_runtime_options full = { .size = size };

    if (o && size >= ABI_SIZE_LEAST) abi_write_sized(o, size, &full, sizeof full);
}

void abi_runtime_ref(struct tern_runtime *rt)
{
    atomic_fetch_add_explicit(&rt->n_refs, 1, memory_order_relaxed);
}

/* Engines end with the pool, so nobody is notified any more when the records go. */
void abi_runtime_unref(struct tern_runtime *rt)
{
    struct tern_model *next;

    if (!rt || atomic_fetch_sub_explicit(&rt->n_refs, 1, memory_order_acq_rel) != 1) return;
    pool_close(rt->pool);
    for (struct tern_model *m = rt->records; m; m = next) {
        next = m->next;
        abi_model_release(m);
    }
    if (rt->has_lock) lock_destroy(&rt->lock, &rt->news);
    mem_free(rt);
}

static int open_runtime(struct tern_runtime *rt, const tern_runtime_options *o, struct err *e)
{
    struct pool_opt po = { .empty = true,
                           .memory_limit = o->memory_limit ? o->memory_limit : POOL_MEMORY_AUTO,
                           .max_loaded = o->models_max };
    int rc = lock_init(&rt->lock, &rt->news, "the runtime", e);

    rt->has_lock = rc == OK;
    rt->models_max = o->models_max;
    rt->keep_ms = o->keep_alive_ms ? o->keep_alive_ms : -1;
    return rc == OK ? pool_open(&rt->pool, &po, e) : rc;
}

int tern_runtime_open(tern_runtime **out, const tern_runtime_options *o)
{
    static const char call[] = "tern_runtime_open";
    tern_runtime_options opt;
    struct tern_runtime *rt;
    struct err e = { 0 };
    int rc;

    if (!out) return abi_invalid(call, "out must not be NULL");
    *out = NULL;
    tern_runtime_options_init(&opt);
    if (o && (rc = abi_read_sized(call, &opt, sizeof opt, o, o->size)) != OK) return rc;
    if (opt.models_max < 0 || opt.keep_alive_ms < 0)
        return abi_invalid(call, "models_max and keep_alive_ms must be 0 or more");
    if (!(rt = mem_new(struct tern_runtime))) return err_nomem(&abi_last, "the runtime");
    atomic_init(&rt->n_refs, 1);
    if (open_runtime(rt, &opt, &e) != OK) {
        abi_runtime_unref(rt);
        return abi_fail(&e);
    }
    *out = rt;
    return TERN_OK;
}

void tern_runtime_close(tern_runtime *rt) { abi_runtime_unref(rt); }

int tern_runtime_usage_sized(tern_runtime *rt, tern_usage *out, size_t size)
{
    tern_usage full = { 0 };

    if (!rt || !out) return abi_invalid("tern_runtime_usage", "rt and out must not be NULL");
    pthread_mutex_lock(&rt->lock);
    for (const struct tern_model *m = rt->records; m; m = m->next) {
        full.n_models += m->listed;
        full.n_loaded += pool_state(rt->pool, m->index, NULL) == POOL_READY;
    }
    pthread_mutex_unlock(&rt->lock);
    full.bytes = pool_bytes(rt->pool);
    full.memory_limit = pool_limit(rt->pool);
    abi_write_sized(out, size, &full, sizeof full);
    return TERN_OK;
}

/* ---- waiting for the pool ---- */

struct wait {
    struct pool_wait w;
    struct tern_runtime *rt;
    bool done; /* under the runtime's lock */
};

/* On the pool's thread. */
static void end_wait(struct pool_wait *w)
{
    struct wait *own = w->arg;
    struct tern_runtime *rt = own->rt;

    pthread_mutex_lock(&rt->lock);
    own->done = true;
    pthread_cond_broadcast(&rt->news);
    pthread_mutex_unlock(&rt->lock);
}

static struct wait make_wait(struct tern_runtime *rt, bool by_operator)
{
    return (struct wait){ .w = { .done = end_wait, .by_operator = by_operator }, .rt = rt };
}

/* false: the time has passed, and nothing waits any more. */
static bool await(struct wait *w, uint64_t until_ns)
{
    struct tern_runtime *rt = w->rt;
    bool in_time = true;

    pthread_mutex_lock(&rt->lock);
    while (!w->done && in_time) in_time = abi_wait_until(&rt->news, &rt->lock, until_ns);
    pthread_mutex_unlock(&rt->lock);
    if (in_time || w->done) return true;
    if (pool_cancel_wait(rt->pool, &w->w)) return false;
    return await(w, UINT64_MAX); /* it is ending just now */
}

/* Asks for the model and waits. TERN_AGAIN: the time has passed. */
static int load_until(struct tern_model *m, uint64_t until_ns, bool by_operator,
                      struct pool_instance **out, struct err *e)
{
    struct wait w = make_wait(m->rt, by_operator);

    w.w.arg = &w;
    if (pool_load(m->rt->pool, m->index, &w.w) == POOL_WAIT && !await(&w, until_ns))
        return TERN_AGAIN;
    if (w.w.rc != OK) *e = w.w.err;
    *out = w.w.model;
    return w.w.rc;
}

/* ---- facts ---- */

/* Copies the facts of the first instance: they outlive it. */
static int copy_facts(struct tern_model *m, const struct pool_instance *from, struct err *e)
{
    struct engine_info i;
    int rc = OK;

    if (atomic_load(&m->has_facts)) return OK;
    pool_info(from, &i);
    pthread_mutex_lock(&m->lock);
    if (!atomic_load(&m->has_facts)) {
        i.name = arena_cstr(&m->strings, str_c(i.name));
        i.arch = arena_cstr(&m->strings, str_c(i.arch));
        i.dtype = arena_cstr(&m->strings, str_c(i.dtype));
        i.devices = arena_cstr(&m->strings, str_c(i.devices));
        m->facts =
            (struct abi_facts){ .info = i,
                                .sample = from->sample,
                                .has_chat = from->prompter && prompter_knows_chat(from->prompter) };
        if ((rc = arena_check(&m->strings, e)) == OK) atomic_store(&m->has_facts, true);
        m->strings.failed = false;
    }
    pthread_mutex_unlock(&m->lock);
    return rc;
}

static bool is_listed(const struct tern_model *m)
{
    bool listed;

    pthread_mutex_lock(&m->rt->lock);
    listed = m->listed;
    pthread_mutex_unlock(&m->rt->lock);
    return listed;
}

static int acquire_until(struct tern_model *m, uint64_t until_ns, bool by_operator,
                         struct pool_instance **out, struct err *e)
{
    int rc;

    *out = NULL;
    if (!is_listed(m))
        return err_set(e, E_NOTFOUND, "the model '%s' was unloaded by its name", m->id);
    if ((rc = load_until(m, until_ns, by_operator, out, e)) != OK) return rc;
    if ((rc = copy_facts(m, *out, e)) == OK) return OK;
    pool_release(*out);
    *out = NULL;
    return rc;
}

int abi_runtime_acquire(struct tern_model *m, uint64_t deadline_ns, struct pool_instance **out,
                        struct err *e)
{
    int rc = acquire_until(m, deadline_ns ? deadline_ns : UINT64_MAX, false, out, e);

    if (rc != TERN_AGAIN) return rc;
    return err_set(e, E_DEADLINE, "the deadline passed while the model '%s' was being loaded",
                   m->id);
}

int tern_wait(tern_model *m, int timeout_ms)
{
    struct pool_instance *now = NULL;
    struct err e = { 0 };
    int rc;

    if (!m) return abi_invalid("tern_wait", "the model must not be NULL");
    if (!m->rt) return TERN_OK;
    rc = acquire_until(m, abi_until(timeout_ms), false, &now, &e);
    pool_release(now);
    return rc < 0 ? abi_fail(&e) : rc;
}

/* ---- loading ---- */

static bool is_same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

/* background is how it is loaded, not what. */
static bool has_options(const struct tern_model *m, const tern_options *o)
{
    const tern_options *g = &m->given;

    return is_same_text(g->device, o->device) && g->threads == o->threads &&
           g->context == o->context && g->batch == o->batch && g->reference == o->reference &&
           g->sequences == o->sequences && g->gpu_layers == o->gpu_layers &&
           g->vram_only == o->vram_only && is_same_text(g->chat_template, o->chat_template) &&
           g->allow_nan == o->allow_nan && is_same_text(g->isa, o->isa) &&
           is_same_text(g->numa, o->numa) && g->kv_tokens == o->kv_tokens && g->queue == o->queue &&
           g->pinned == o->pinned && g->cpu_moe == o->cpu_moe && g->n_cpu_moe == o->n_cpu_moe &&
           is_same_text(g->place, o->place) &&
           is_same_text(g->verify_manifest, o->verify_manifest) &&
           is_same_text(g->model_key_file, o->model_key_file) &&
           is_same_text(g->model_key_command, o->model_key_command);
}

static const char *keep_text(struct tern_model *m, const char *s)
{
    return s ? arena_cstr(&m->strings, str_c(s)) : NULL;
}

static int keep_options(struct tern_model *m, const tern_options *o, struct err *e)
{
    m->given = *o;
    m->given.device = keep_text(m, o->device);
    m->given.chat_template = keep_text(m, o->chat_template);
    m->given.isa = keep_text(m, o->isa);
    m->given.numa = keep_text(m, o->numa);
    m->given.place = keep_text(m, o->place);
    m->given.verify_manifest = keep_text(m, o->verify_manifest);
    m->given.model_key_file = keep_text(m, o->model_key_file);
    m->given.model_key_command = keep_text(m, o->model_key_command);
    m->opt = abi_engine_options(&m->given);
    return arena_check(&m->strings, e);
}

/* The pool's names are unique for ever; a name that had another model before gets a number. */
static int add_slot(struct tern_runtime *rt, struct tern_model *m, int n_before, struct err *e)
{
    int n_most = rt->models_max == 1 ? SIDE_BY_SIDE_LEAST
                 : rt->models_max    ? rt->models_max
                                     : SIDE_BY_SIDE;
    char *id = n_before ? arena_printf(&m->strings, "%s#%d", m->id, n_before + 1) : m->id;
    struct pool_model pm = { .id = id,
                             .path = m->path,
                             .pinned = m->given.pinned != 0,
                             .keep_ms = rt->keep_ms,
                             .engine = &m->opt,
                             .chat_template = m->given.chat_template,
                             .key_file = m->given.model_key_file,
                             .key_command = m->given.model_key_command,
                             .kv_share = 1.0 / n_most };

    if (!id) return err_nomem(e, "the name of a model");
    return pool_add(rt->pool, &pm, &m->index, e);
}

/* With the lock held. */
static int add_record(struct tern_runtime *rt, const char *name, const char *path,
                      const tern_options *o, struct tern_model **out, struct err *e)
{
    struct tern_model *m = mem_new(struct tern_model);
    int n_before = 0, rc;

    if (!m) return err_nomem(e, "the model");
    for (const struct tern_model *a = rt->records; a; a = a->next)
        n_before += strcmp(a->id, name) == 0;
    m->rt = rt;
    rc = abi_model_init(m, name, path, e);
    if (rc == OK) rc = keep_options(m, o, e);
    if (rc == OK) rc = add_slot(rt, m, n_before, e);
    if (rc != OK) {
        abi_model_release(m);
        return rc;
    }
    m->next = rt->records;
    rt->records = *out = m;
    return OK;
}

/* With the lock held: the record of this name, path and options, which may be off the list; a new
 * one if there is none. */
static int find_or_add_record(struct tern_runtime *rt, const char *name, const char *path,
                              const tern_options *o, struct tern_model **out, struct err *e)
{
    struct tern_model *same = NULL;

    for (struct tern_model *m = rt->records; m; m = m->next) {
        bool is_same;

        if (strcmp(m->id, name) != 0) continue;
        is_same = strcmp(m->path, path) == 0 && has_options(m, o);
        if (m->listed && !is_same)
            return err_set(e, E_INVALID,
                           "tern_load: the name '%s' is taken by '%s' with other options: unload "
                           "it first, or give another name",
                           name, m->path);
        if (is_same) same = m;
    }
    *out = same;
    return same ? OK : add_record(rt, name, path, o, out, e);
}

/* A model that could not be loaded leaves nothing behind. */
static void forget_failed(struct tern_model *m)
{
    pthread_mutex_lock(&m->rt->lock);
    m->listed = false;
    pthread_mutex_unlock(&m->rt->lock);
    pool_unload(m->rt->pool, m->index, false, NULL);
}

/* In the background nothing is waited for, and tern_wait says what became of it, also if that was
 * quick. */
static int load_record(struct tern_model *m, bool was_listed, bool background, struct err *e)
{
    struct pool_instance *now = NULL;
    int rc = acquire_until(m, background ? 0 : UINT64_MAX, true, &now, e);

    pool_release(now);
    if (rc == OK || background) return OK;
    if (!was_listed) forget_failed(m);
    return rc;
}

static int load_named(struct tern_model **out, struct tern_runtime *rt, const char *name,
                      const char *path, const tern_options *o, struct err *e)
{
    struct tern_model *m = NULL;
    bool was_listed = false;
    int rc;

    pthread_mutex_lock(&rt->lock);
    if ((rc = find_or_add_record(rt, name, path, o, &m, e)) == OK) {
        was_listed = m->listed;
        m->listed = true;
    }
    pthread_mutex_unlock(&rt->lock);
    if (rc != OK || (rc = load_record(m, was_listed, o->background != 0, e)) != OK) return rc;
    abi_model_ref(m);
    *out = m;
    return OK;
}

/* The name of a model that is given none: hf:ORG/NAME[@REV] is NAME, others are named after the file. */
static char *make_name(const char *ref, const char *path)
{
    const char *from = strchr(ref, '/') ? strrchr(ref, '/') + 1 : ref + 3;
    char *name;

    if (!modelref_is_hub(str_c(ref)) || strchr(ref + 3, ':')) return model_id_of(path);
    if ((name = mem_strdup(from))) name[strcspn(name, "@")] = 0;
    return name;
}

int tern_load(tern_model **out, tern_runtime *rt, const char *name, const char *path,
              const tern_options *o)
{
    tern_options opt;
    struct err e = { 0 };
    char *made = NULL, *found = NULL;
    int rc;

    if (!out || !rt || !path)
        return abi_invalid("tern_load", "out, the runtime and path must not be NULL");
    *out = NULL;
    if (name && !*name) return abi_invalid("tern_load", "the name must not be empty");
    if ((rc = abi_read_options("tern_load", &opt, o)) != OK) return rc;
    if ((rc = abi_find_model(&found, path, &e)) != OK) return abi_fail(&e);
    if (!name && !(made = make_name(path, found))) rc = err_nomem(&e, "the name of a model");
    else rc = load_named(out, rt, name ? name : made, found, &opt, &e);
    mem_free(made);
    mem_free(found);
    return rc == OK ? TERN_OK : abi_fail(&e);
}

/* ---- names ---- */

/* With the lock held. */
static struct tern_model *find_listed(struct tern_runtime *rt, const char *name)
{
    struct tern_model *m = rt->records;

    while (m && !(m->listed && strcmp(m->id, name) == 0)) m = m->next;
    return m;
}

static int refuse_name(const char *call, const char *name)
{
    return err_set(&abi_last, E_NOTFOUND, "%s: the runtime has no model '%.200s'", call, name);
}

int tern_find(tern_model **out, tern_runtime *rt, const char *name)
{
    struct tern_model *m;

    if (!out || !rt || !name)
        return abi_invalid("tern_find", "out, the runtime and the name must not be NULL");
    pthread_mutex_lock(&rt->lock);
    if ((m = *out = find_listed(rt, name))) abi_model_ref(m);
    pthread_mutex_unlock(&rt->lock);
    return m ? TERN_OK : refuse_name("tern_find", name);
}

/* One block: the pointers, then the bytes. Newest first in the records, oldest first in the list. */
static char **copy_names(const struct tern_runtime *rt, size_t *n)
{
    size_t count = 0, bytes = 0, i;
    char **names, *at;

    for (const struct tern_model *m = rt->records; m; m = m->next)
        if (m->listed) count++, bytes += strlen(m->id) + 1;
    if (!(names = mem_alloc((count + 1) * sizeof *names + bytes))) return NULL;
    at = (char *)(names + count + 1);
    i = count;
    for (const struct tern_model *m = rt->records; m; m = m->next) {
        if (!m->listed) continue;
        names[--i] = at;
        memcpy(at, m->id, strlen(m->id) + 1);
        at += strlen(m->id) + 1;
    }
    *n = count;
    return names;
}

int tern_list(tern_runtime *rt, char ***names, size_t *n)
{
    if (!rt || !names || !n)
        return abi_invalid("tern_list", "the runtime, names and n must not be NULL");
    pthread_mutex_lock(&rt->lock);
    *names = copy_names(rt, n);
    pthread_mutex_unlock(&rt->lock);
    return *names ? TERN_OK : err_nomem(&abi_last, "the names of models");
}

int tern_unload(tern_runtime *rt, const char *name, int timeout_ms)
{
    uint64_t until = abi_until(timeout_ms);
    struct tern_model *m;
    struct wait w;

    if (!rt || !name) return abi_invalid("tern_unload", "runtime and name must not be NULL");
    pthread_mutex_lock(&rt->lock);
    if ((m = find_listed(rt, name))) m->listed = false;
    pthread_mutex_unlock(&rt->lock);
    if (!m) return refuse_name("tern_unload", name);
    w = make_wait(rt, false);
    w.w.arg = &w;
    if (pool_unload(rt->pool, m->index, false, &w.w) == POOL_WAIT && !await(&w, until))
        return TERN_AGAIN;
    return w.w.rc == OK ? TERN_OK : abi_fail(&w.w.err);
}
