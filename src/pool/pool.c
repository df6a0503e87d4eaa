/* pool.c - the list of models, who uses them, and the thread that loads and closes them.
 *
 * Models are loaded by one thread, one after the other: two loads at once would compete for memory
 * bandwidth and make both slower. The same thread closes instances, which takes as long as a step,
 * and opens failed models again, after their last instance is closed: two of them might not fit.
 *
 * `lock` protects which instance a slot has, its error, and the lists; it is held for a few
 * instructions only, never while a model is loaded or closed. */
#include "pool/pool.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "engine/engine.h"
#include "engine/stats.h"
#include "kernel/backend.h"
#include "model/loadplan.h"
#include "pool/memavail.h"
#include "pool/membudget.h"
#include "pool/modelbytes.h"
#include "pool/modelname.h"
#include "pool/prompter.h"

#include <pthread.h>
#include <string.h>
#include <sys/stat.h>

enum {
    RETRY_FIRST_MS = 1000, /* a failed model is opened again after this, */
    RETRY_MOST_MS = 60000, /* then after twice as long each time, up to this */
    STEADY_MS = 120000     /* READY for so long: the next failure is the first again */
};

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

/* Which file a path named: another one, or the same after a change, differs. */
struct file_id {
    dev_t dev;
    ino_t ino;
    off_t size;
    struct timespec changed;
};

struct slot {
    struct pool_model m;
    struct pool_instance *now; /* the pool's reference; NULL: not READY */
    struct err err;            /* FAILED: why */
    struct engine_stats stats; /* of all its instances */
    atomic_bool was_ready;
    /* the pool thread's */
    struct file_id file; /* what the path named when it failed */
    uint64_t ready_ns;   /* when it became READY */
    uint64_t retry_ns;   /* FAILED: when it is opened again; 0: never */
    int n_fails;         /* failures in a row */
};

struct pool {
    struct slot *slots; /* [n] */
    int n;
    struct pool_opt opt;
    pthread_mutex_t lock;
    pthread_cond_t news; /* for the thread: a failure, a last release, the end */
    bool has_lock, has_thread;
    pthread_t thread;
    struct pool_instance *open;   /* instances with references */
    struct pool_instance *unused; /* to be closed */
    atomic_bool stop;             /* load no more models */
    atomic_bool draining, aborting;
    bool stopped;
    struct membudget held; /* by instances that are not closed; the pool thread's */
};

static int state_of(const struct slot *s)
{
    return atomic_load_explicit(&s->m.state, memory_order_acquire);
}

/* ---- naming ---- */

/* Names must be unique: a request chooses its model by name. */
static int name_model(struct pool *p, int i, struct err *e)
{
    struct pool_model *m = &p->slots[i].m;
    const char *alias = p->opt.aliases ? p->opt.aliases[i] : NULL;
    struct stat st;

    m->path = mem_strdup(p->opt.paths[i]);
    m->id = alias && *alias ? mem_strdup(alias) : model_id_of(p->opt.paths[i]);
    if (!m->path || !m->id) return err_nomem(e, "the name of a model");
    if (stat(m->path, &st) != 0)
        return err_set(e, E_NOTFOUND, "model '%s': there is no such file or folder", m->path);
    m->created = (int64_t)st.st_mtime;
    for (int j = 0; j < i; j++)
        if (strcmp(p->slots[j].m.id, m->id) == 0)
            return err_set(e, E_INVALID,
                           "models '%s' and '%s' are both named '%s': give one of them an alias",
                           p->slots[j].m.path, m->path, m->id);
    return OK;
}

/* ---- references ---- */

/* With the lock held. */
static void unlink_instance(struct pool_instance **list, struct pool_instance *m)
{
    while (*list && *list != m) list = &(*list)->next;
    if (*list) *list = m->next;
}

static struct pool_instance *acquire(struct pool *p, struct slot *s)
{
    struct pool_instance *m;

    pthread_mutex_lock(&p->lock);
    if ((m = s->now)) atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    pthread_mutex_unlock(&p->lock);
    return m;
}

/* The last reference may be dropped on any thread; the pool's thread closes. */
void pool_release(struct pool_instance *m)
{
    struct pool *p;

    if (!m || atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1) return;
    p = m->pool;
    pthread_mutex_lock(&p->lock);
    unlink_instance(&p->open, m);
    m->next = p->unused;
    p->unused = m;
    pthread_cond_signal(&p->news);
    pthread_mutex_unlock(&p->lock);
}

static void close_instance(struct pool *p, struct pool_instance *m)
{
    prompter_close(m->prompter);
    engine_close(m->engine);
    membudget_take(&p->held, &m->memory);
    mem_free(m);
}

/* ---- loading, on the pool's thread ---- */

/* On the engine's thread: the pool's thread looks for the engine that failed. */
static void on_engine_failed(void *arg)
{
    struct pool *p = arg;

    pthread_mutex_lock(&p->lock);
    pthread_cond_signal(&p->news);
    pthread_mutex_unlock(&p->lock);
}

static void read_free(struct pool *p, struct memavail *m)
{
    memavail_read(m, p->opt.sys_root ? p->opt.sys_root : "");
    membudget_hold(m, &p->held);
}

/* Memory for the default sizes of a model: every model has the same share of what the weights of all
 * leave for KV caches, also those that are loaded after it. */
static struct sizes_room plan_room(struct pool *p, const struct slot *s)
{
    uint64_t limit = p->opt.memory_limit == POOL_MEMORY_AUTO ? 0 : p->opt.memory_limit;
    struct sizes_room r;
    struct memavail m;

    read_free(p, &m);
    r = membudget_room(&m, &p->held, limit);
    r.share = 1.0 / p->n;
    for (const struct slot *o = p->slots; o < p->slots + p->n; o++) {
        if (o->now) r.share_before += 1.0 / p->n;
        else if (o != s && state_of(o) == POOL_LOADING)
            r.later_bytes += model_file_bytes(o->m.path);
    }
    return r;
}

/* Before anything is loaded. A KV cache that is a large part of the free memory is taken when it is
 * allocated, so that a model is not READY without it. */
static int check_memory(struct pool *p, struct loadplan *plan, struct err *e)
{
    struct membudget b = membudget_of(plan);
    struct memavail m;

    if (p->opt.memory_limit == 0) return OK;
    read_free(p, &m);
    for (int i = 0; i < plan->place.n_shares; i++)
        plan->place.shares[i].be->fill_kv = membudget_is_kv_large(&b, &m);
    if (p->opt.memory_limit == POOL_MEMORY_AUTO) return membudget_check_machine(&b, &m, e);
    return membudget_check(&b, membudget_total(&p->held), p->opt.memory_limit, e);
}

/* On a GPU the backend may take more than planned; the engine has the plan, until it closes. */
static int count_memory(struct pool *p, struct pool_instance *m, const struct loadplan *plan,
                        struct err *e)
{
    struct membudget b = membudget_of(plan);
    int rc = OK;

    if (p->opt.memory_limit && p->opt.memory_limit != POOL_MEMORY_AUTO)
        rc = membudget_check(&b, membudget_total(&p->held), p->opt.memory_limit, e);
    if (rc == OK) membudget_add(&p->held, &b), m->memory = b;
    return rc;
}

static int open_engine(struct pool *p, struct slot *s, struct pool_instance *m, struct err *e)
{
    struct engine_opt o = p->opt.engine;
    struct loadplan *plan = NULL;
    int rc;

    o.stats = &s->stats;
    o.failed = on_engine_failed;
    o.failed_arg = p;
    o.room = plan_room(p, s);
    if ((rc = engine_plan(&plan, s->m.path, &o, e)) != OK) return rc;
    if ((rc = check_memory(p, plan, e)) != OK) {
        loadplan_close(plan);
        return rc;
    }
    if ((rc = engine_open_plan(&m->engine, plan, &o, e)) != OK) return rc;
    return count_memory(p, m, plan, e);
}

/* Templates are parsed once per instance. */
static int open_prompter(struct pool *p, struct pool_instance *m, struct err *e)
{
    const struct tokenizer *tok = engine_tokenizer(m->engine);

    engine_sample_defaults(m->engine, &m->sample);
    return tok ? prompter_open(&m->prompter, tok, p->opt.chat_template, e) : OK;
}

/* A failed load leaves nothing behind, also not in the memory account. */
static int load_model(struct pool *p, struct slot *s, struct pool_instance **out, struct err *e)
{
    struct pool_instance *m = mem_new(struct pool_instance);
    uint64_t start = clock_ns();
    int rc;

    if (!m) return err_nomem(e, "a model");
    *m = (struct pool_instance){ .model = &s->m, .id = s->m.id, .pool = p };
    atomic_init(&m->refs, 1);
    if ((rc = open_engine(p, s, m, e)) != OK) goto out;
    if ((rc = open_prompter(p, m, e)) != OK) goto out;
    m->load_ms = clock_ms_since(start);
    start = clock_ns();
    if (p->opt.warm && (rc = engine_warm(m->engine, e)) != OK) goto out;
    m->warm_ms = clock_ms_since(start);
    *out = m;
    m = NULL;
out:
    if (m) close_instance(p, m);
    if (rc != OK) err_wrap(e, "model '%s'", s->m.id);
    return rc;
}

static void set_state(struct pool *p, struct slot *s, enum pool_state state, const struct err *e)
{
    pthread_mutex_lock(&p->lock);
    if (e) s->err = *e;
    if (state != POOL_READY) s->now = NULL;
    atomic_store_explicit(&s->m.state, (int)state, memory_order_release);
    pthread_mutex_unlock(&p->lock);
    if (p->opt.changed) p->opt.changed(p->opt.arg);
}

/* From here on the instance can be found. pool_drain may have run before, and have missed this
 * engine, or after it: then it drains twice, which changes nothing. */
static void publish(struct pool *p, struct slot *s, struct pool_instance *m)
{
    pthread_mutex_lock(&p->lock);
    m->next = p->open;
    p->open = s->now = m;
    atomic_store_explicit(&s->was_ready, true, memory_order_release);
    atomic_store_explicit(&s->m.state, POOL_READY, memory_order_release);
    pthread_mutex_unlock(&p->lock);
    s->ready_ns = clock_ns();
    if (atomic_load(&p->draining)) engine_drain(m->engine);
    if (atomic_load(&p->aborting)) engine_abort(m->engine);
    if (s->n_fails > 0) log_info("model '%s' is ready again", s->m.id);
    if (p->opt.changed) p->opt.changed(p->opt.arg);
}

/* ---- failed models ---- */

static struct file_id file_id_of(const char *path)
{
    struct stat st;

    if (stat(path, &st) != 0) return (struct file_id){ 0 };
    return (struct file_id){ st.st_dev, st.st_ino, st.st_size, st.st_mtim };
}

static bool is_same_file(const struct file_id *a, const struct file_id *b)
{
    return a->dev == b->dev && a->ino == b->ino && a->size == b->size &&
           a->changed.tv_sec == b->changed.tv_sec && a->changed.tv_nsec == b->changed.tv_nsec;
}

/* Time until a model that failed n times in a row is opened again. */
static uint64_t retry_after_ms(const struct pool *p, int n)
{
    uint64_t ms = p->opt.retry_ms > 0 ? (uint64_t)p->opt.retry_ms : RETRY_FIRST_MS;

    while (--n > 0 && ms < RETRY_MOST_MS) ms *= 2;
    return ms < RETRY_MOST_MS ? ms : RETRY_MOST_MS;
}

/* A model that never was READY has a mistake in its file or its settings: it stays FAILED. One that
 * has served is opened again. */
static void mark_failed(struct pool *p, struct slot *s, struct err *e)
{
    uint64_t now = clock_ns(), wait;

    s->retry_ns = 0;
    s->file = file_id_of(s->m.path);
    if (atomic_load(&s->was_ready)) {
        if (s->ready_ns && now - s->ready_ns > STEADY_MS * MS) s->n_fails = 0;
        wait = retry_after_ms(p, ++s->n_fails);
        s->ready_ns = 0;
        s->retry_ns = now + wait * MS;
        log_error("%s; the model is %s in %.1f s", e->msg,
                  e->code == E_DAMAGED ? "opened again when its file has changed, first looked at"
                                       : "opened again",
                  (double)wait / 1e3);
    }
    set_state(p, s, POOL_FAILED, e);
}

/* READY → FAILED: the instance is closed when its last user is done. */
static void drop_failed(struct pool *p, struct slot *s, struct err *e)
{
    struct pool_instance *m = s->now;

    err_wrap(e, "model '%s' failed", s->m.id);
    mark_failed(p, s, e);
    pool_release(m);
}

static void load_slot(struct pool *p, struct slot *s)
{
    struct pool_instance *m = NULL;
    struct err e = { 0 };

    if (load_model(p, s, &m, &e) == OK) publish(p, s, m);
    else mark_failed(p, s, &e);
}

static bool has_instance(struct pool *p, const struct slot *s)
{
    bool has = false;

    pthread_mutex_lock(&p->lock);
    for (struct pool_instance *m = p->open; m; m = m->next) has |= m->model == &s->m;
    for (struct pool_instance *m = p->unused; m; m = m->next) has |= m->model == &s->m;
    pthread_mutex_unlock(&p->lock);
    return has;
}

/* FAILED → LOADING, when its time has come and the old instance is closed. A damaged file is not
 * opened again before it has changed. */
static bool is_due(struct pool *p, struct slot *s, uint64_t now)
{
    struct file_id id;

    if (state_of(s) != POOL_FAILED || !s->retry_ns || now < s->retry_ns) return false;
    id = file_id_of(s->m.path);
    if (s->err.code == E_DAMAGED && is_same_file(&s->file, &id)) {
        s->retry_ns = now + retry_after_ms(p, ++s->n_fails) * MS;
        return false;
    }
    return !has_instance(p, s);
}

/* ---- the pool's thread ---- */

static void close_unused(struct pool *p)
{
    struct pool_instance *list, *next;

    pthread_mutex_lock(&p->lock);
    list = p->unused;
    p->unused = NULL;
    pthread_mutex_unlock(&p->lock);
    for (; list; list = next) {
        next = list->next;
        close_instance(p, list);
    }
}

/* Everything that can be done now. Only this thread changes `now`. */
static void serve_slots(struct pool *p)
{
    for (int i = 0; i < p->n && !atomic_load(&p->stop); i++) {
        struct slot *s = &p->slots[i];
        struct err e = { 0 };

        close_unused(p);
        if (s->now && engine_error(s->now->engine, &e) != OK) drop_failed(p, s, &e);
        if (is_due(p, s, clock_ns())) set_state(p, s, POOL_LOADING, NULL);
        if (state_of(s) == POOL_LOADING) load_slot(p, s);
    }
    close_unused(p);
}

/* When the next model is due; UINT64_MAX: none is. One whose instance is still in use is looked at
 * when that is released. */
static uint64_t next_retry_ns(struct pool *p)
{
    uint64_t at = UINT64_MAX, now = clock_ns();

    for (int i = 0; i < p->n; i++) {
        const struct slot *s = &p->slots[i];
        if (state_of(s) != POOL_FAILED || !s->retry_ns) continue;
        if (s->retry_ns < at && (s->retry_ns > now || !has_instance(p, s))) at = s->retry_ns;
    }
    return at;
}

static bool has_news(const struct pool *p)
{
    if (atomic_load(&p->stop) || p->unused) return true;
    for (int i = 0; i < p->n; i++)
        if (p->slots[i].now && engine_error(p->slots[i].now->engine, NULL) != OK) return true;
    return false;
}

static void wait_for_news(struct pool *p)
{
    uint64_t at = next_retry_ns(p);
    struct timespec t = { .tv_sec = (time_t)(at / SECOND), .tv_nsec = (long)(at % SECOND) };
    int rc = 0;

    pthread_mutex_lock(&p->lock);
    while (!has_news(p) && rc == 0)
        rc = at == UINT64_MAX ? pthread_cond_wait(&p->news, &p->lock)
                              : pthread_cond_timedwait(&p->news, &p->lock, &t);
    pthread_mutex_unlock(&p->lock);
}

static void *pool_main(void *arg)
{
    struct pool *p = arg;

    for (;;) {
        serve_slots(p);
        if (atomic_load(&p->stop)) return NULL;
        wait_for_news(p);
    }
}

/* ---- opening and closing ---- */

static int start_pool(struct pool *p, struct err *e)
{
    int rc;

    if (p->opt.n < 1) return err_set(e, E_INVALID, "no model is named");
    if ((rc = lock_init(&p->lock, &p->news, "the pool of models", e)) != OK) return rc;
    p->has_lock = true;
    if (!(p->slots = mem_array((size_t)p->opt.n, sizeof *p->slots)))
        return err_nomem(e, "the list of models");
    p->n = p->opt.n;
    for (int i = 0; i < p->n; i++) {
        engine_stats_init(&p->slots[i].stats);
        if ((rc = name_model(p, i, e)) != OK) return rc;
    }
    if ((rc = thread_start(&p->thread, "tern-pool", pool_main, p, e)) != OK) return rc;
    p->has_thread = true;
    return OK;
}

int pool_open(struct pool **out, const struct pool_opt *opt, struct err *e)
{
    struct pool *p = mem_new(struct pool);
    int rc;

    if (!p) return err_nomem(e, "the pool of models");
    p->opt = *opt;
    if ((rc = start_pool(p, e)) == OK) *out = p;
    else pool_close(p);
    return rc;
}

static void ask_to_stop(struct pool *p)
{
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    pthread_cond_signal(&p->news);
    pthread_mutex_unlock(&p->lock);
}

void pool_stop(struct pool *p)
{
    if (!p || p->stopped) return;
    p->stopped = true;
    if (p->has_thread) {
        ask_to_stop(p);
        pthread_join(p->thread, NULL);
    }
    for (struct pool_instance *m = p->open; m; m = m->next) engine_stop(m->engine);
}

/* Instances that something still refers to, which is a mistake, are closed all the same. */
void pool_close(struct pool *p)
{
    struct pool_instance *next;

    if (!p) return;
    pool_stop(p);
    if (p->n) close_unused(p);
    for (struct pool_instance *m = p->open; m; m = next) {
        next = m->next;
        close_instance(p, m);
    }
    for (int i = 0; i < p->n; i++) {
        mem_free((char *)p->slots[i].m.id);
        mem_free((char *)p->slots[i].m.path);
    }
    mem_free(p->slots);
    if (p->has_lock) lock_destroy(&p->lock, &p->news);
    mem_free(p);
}

/* ---- asking ---- */

int pool_n(const struct pool *p) { return p->n; }
const struct pool_model *pool_at(struct pool *p, int i) { return &p->slots[i].m; }
struct pool_instance *pool_acquire(struct pool *p, int i) { return acquire(p, &p->slots[i]); }

enum pool_state pool_state(struct pool *p, int i, struct err *e)
{
    struct slot *s = &p->slots[i];
    enum pool_state state;

    pthread_mutex_lock(&p->lock);
    state = (enum pool_state)state_of(s);
    if (e) *e = state == POOL_FAILED ? s->err : (struct err){ 0 };
    pthread_mutex_unlock(&p->lock);
    return state;
}

struct engine_stats *pool_stats(struct pool *p, int i)
{
    struct slot *s = &p->slots[i];

    return atomic_load_explicit(&s->was_ready, memory_order_acquire) ? &s->stats : NULL;
}

static int no_model(struct pool *p, struct str id, struct err *e)
{
    struct buf b = { 0 };
    int rc;

    for (int i = 0; i < p->n; i++) buf_printf(&b, "%s'%s'", i ? ", " : "", p->slots[i].m.id);
    rc = err_set(e, E_NOTFOUND, "there is no model '%.*s'; the models are %s",
                 STR_ARG(str_take(id, 100)), buf_cstr(&b));
    buf_release(&b);
    return rc;
}

/* The error of a model that is not READY. */
static int refuse(struct pool *p, int i, struct err *e)
{
    struct err why = { 0 };
    int rc;

    if (pool_state(p, i, &why) == POOL_FAILED) {
        if (e) *e = why;
        if (e && pool_stats(p, i)) e->retry_ms = RETRY_FIRST_MS;
        return why.code ? why.code : E_INTERNAL;
    }
    rc = err_set(e, E_LOADING, "model '%s' is being loaded", p->slots[i].m.id);
    if (e) e->retry_ms = 1000;
    return rc;
}

int pool_find(struct pool *p, struct str id, struct pool_instance **out, struct err *e)
{
    int i = 0;

    while (i < p->n && id.n && !str_is(id, p->slots[i].m.id)) i++;
    if (i == p->n) return no_model(p, id, e);
    *out = acquire(p, &p->slots[i]);
    return *out ? OK : refuse(p, i, e);
}

int pool_find_by(struct pool *p, struct str id, uint64_t deadline_ns, struct pool_instance **out,
                 struct err *e)
{
    int rc = pool_find(p, id, out, e);

    if (rc != E_LOADING || !deadline_ns || deadline_ns >= clock_ns() + POOL_MARGIN_MS * MS)
        return rc;
    return err_set(e, E_DEADLINE,
                   "the model is being loaded, and the deadline is nearer than %d ms",
                   POOL_MARGIN_MS);
}

int pool_n_loaded(struct pool *p)
{
    int n = 0;

    for (int i = 0; i < p->n; i++) n += state_of(&p->slots[i]) != POOL_LOADING;
    return n;
}

bool pool_is_ready(struct pool *p)
{
    for (int i = 0; i < p->n; i++)
        if (state_of(&p->slots[i]) != POOL_READY) return false;
    return true;
}

/* Calls f for every instance, also those that only calls still use. f does not wait. */
static void for_all(struct pool *p, void (*f)(struct engine *g))
{
    pthread_mutex_lock(&p->lock);
    for (struct pool_instance *m = p->open; m; m = m->next) f(m->engine);
    pthread_mutex_unlock(&p->lock);
}

/* Models that are still waiting to be loaded are not loaded any more. */
void pool_drain(struct pool *p)
{
    ask_to_stop(p);
    atomic_store(&p->draining, true);
    for_all(p, engine_drain);
}

void pool_abort(struct pool *p)
{
    ask_to_stop(p);
    atomic_store(&p->aborting, true);
    for_all(p, engine_abort);
}

bool pool_is_idle(struct pool *p)
{
    bool idle = true;

    pthread_mutex_lock(&p->lock);
    for (struct pool_instance *m = p->open; m && idle; m = m->next)
        idle = engine_is_idle(m->engine);
    pthread_mutex_unlock(&p->lock);
    return idle;
}
