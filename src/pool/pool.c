/* pool.c - the list of models, who uses them, and the life of the pool and its thread.
 *
 * The thread's work is in pool_load.c (the path of a load), pool_swap.c (room for it) and pool_wait.c
 * (who waits for it). */
#include "pool/pool.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "pool/modelname.h"
#include "pool/pool_impl.h"
#include "pool/registry.h"

#include <string.h>

const char *pool_state_name(enum pool_state s)
{
    static const char *const names[] = { "unloaded", "loading",  "ready",
                                         "draining", "sleeping", "failed" };
    return names[s];
}

/* ---- the list ---- */

/* Names must be unique: a request chooses its model by name. */
static int check_name(struct pool *p, const struct pool_model *m, struct err *e)
{
    int i = pool_index(p, str_c(m->id));

    if (i < 0 || !*m->id) return OK;
    return err_set(e, E_INVALID,
                   "models '%s' and '%s' are both named '%s': give one of them an alias",
                   p->slots[i]->m.path, m->path, m->id);
}

static void free_slot(struct slot *s)
{
    if (!s) return;
    mem_free((char *)s->m.id);
    mem_free((char *)s->m.path);
    mem_free(s);
}

static struct slot *make_slot(const struct pool_model *m)
{
    struct slot *s = mem_new(struct slot);

    if (!s) return NULL;
    s->m.id = mem_strdup(m->id);
    s->m.path = mem_strdup(m->path);
    s->m.created = m->created;
    s->m.preload = m->preload;
    s->m.pinned = m->pinned;
    s->m.priority = m->priority;
    s->m.keep_ms = m->keep_ms;
    s->m.entry = m->entry;
    s->m.engine = m->engine;
    s->m.chat_template = m->chat_template;
    s->m.key_file = m->key_file;
    s->m.key_command = m->key_command;
    s->m.kv_share = m->kv_share;
    engine_stats_init(&s->stats);
    hist_init(&s->counts.load_s, hist_ttft, (int)(sizeof hist_ttft / sizeof *hist_ttft));
    hist_init(&s->counts.switch_s, hist_ttft, (int)(sizeof hist_ttft / sizeof *hist_ttft));
    hist_init(&s->counts.wait_s, hist_ttft, (int)(sizeof hist_ttft / sizeof *hist_ttft));
    s->asked = s->at_start = m->preload;
    s->asked_ns = clock_ns();
    atomic_init(&s->cached_1000, -1);
    put_state(s, m->preload ? POOL_LOADING : POOL_UNLOADED);
    if (s->m.id && s->m.path) return s;
    free_slot(s);
    return NULL;
}

/* Slots stay where they are, and the list only grows: readers need no lock. */
int pool_add(struct pool *p, const struct pool_model *m, int *index, struct err *e)
{
    struct slot *s = make_slot(m);
    int n, rc;

    if (!s) return err_nomem(e, "the name of a model");
    pthread_mutex_lock(&p->lock);
    n = pool_n(p);
    rc = n < POOL_MODELS_MAX
             ? check_name(p, m, e)
             : err_set(e, E_INVALID, "there are more than %d models", POOL_MODELS_MAX);
    if (rc == OK) {
        p->slots[n] = s;
        atomic_store_explicit(&p->n, n + 1, memory_order_release);
        if (index) *index = n;
        pool_tell(p);
    }
    pthread_mutex_unlock(&p->lock);
    if (rc != OK) free_slot(s);
    return rc;
}

/* A model of the command line: it is loaded at once, and stays. */
static int add_named(struct pool *p, int i, struct err *e)
{
    const char *alias = p->opt.aliases ? p->opt.aliases[i] : NULL;
    char *made = alias && *alias ? NULL : model_id_of(p->opt.paths[i]);
    struct pool_model m = { .id = made ? made : alias,
                            .path = p->opt.paths[i],
                            .preload = true,
                            .pinned = true,
                            .keep_ms = -1 };
    struct stat st;
    int rc;

    if (!m.id) return err_nomem(e, "the name of a model");
    if (stat(m.path, &st) != 0) {
        rc = err_set(e, E_NOTFOUND, "model '%s': there is no such file or folder", m.path);
    } else {
        m.created = (int64_t)st.st_mtime;
        rc = pool_add(p, &m, NULL, e);
    }
    mem_free(made);
    return rc;
}

/* An entry of the registry as a model. What the operator named stays loaded, if its settings do not
 * say otherwise. */
static struct pool_model model_of(const struct pool *p, const struct registry_model *r)
{
    const struct model_opt *o = &r->opt;
    bool stays = r->named && r->preload;

    return (struct pool_model){ .id = r->id,
                                .path = r->path,
                                .created = atomic_load(&r->created),
                                .preload = r->preload,
                                .pinned = model_has(o, MODEL_PINNED)
                                              ? o->pinned
                                              : stays && !model_has(o, MODEL_KEEP_ALIVE),
                                .keep_ms = model_has(o, MODEL_KEEP_ALIVE) ? o->keep_alive_ms
                                           : stays                        ? -1
                                                                          : p->opt.keep_ms,
                                .priority = model_has(o, MODEL_PRIORITY) ? (int)o->priority : 0,
                                .entry = r };
}

/* Slots have the index of their entries. */
int pool_take_entries(struct pool *p, struct err *e)
{
    int rc = OK;

    pthread_mutex_lock(&p->lock);
    while (rc == OK && pool_n(p) < registry_n(p->opt.registry) && pool_n(p) < POOL_MODELS_MAX) {
        struct pool_model m = model_of(p, registry_at(p->opt.registry, pool_n(p)));
        struct slot *s = make_slot(&m);
        if (!s) rc = err_nomem(e, "the name of a model");
        else p->slots[pool_n(p)] = s, atomic_fetch_add(&p->n, 1);
    }
    pool_tell(p);
    pthread_mutex_unlock(&p->lock);
    return rc;
}

static bool is_gone(const struct slot *s) { return s->m.entry && atomic_load(&s->m.entry->gone); }

bool pool_is_listed(struct pool *p, int i)
{
    const struct slot *s = p->slots[i];
    int state = state_of(s);

    if (!is_gone(s)) return true;
    return state == POOL_READY || state == POOL_LOADING || state == POOL_DRAINING;
}

bool pool_is_current(struct pool *p, int i)
{
    return !p->opt.registry || registry_find_any(p->opt.registry, str_c(p->slots[i]->m.id)) == i;
}

const char *pool_alias(struct pool *p, int i, int k)
{
    return p->opt.registry ? registry_alias(p->opt.registry, i, k) : NULL;
}

/* ---- references ---- */

void pool_tell(struct pool *p)
{
    p->is_news = true;
    pthread_cond_signal(&p->news);
}

void pool_wake(struct pool *p)
{
    pthread_mutex_lock(&p->lock);
    pool_tell(p);
    pthread_mutex_unlock(&p->lock);
}

void pool_report_change(struct pool *p)
{
    if (p->opt.changed) p->opt.changed(p->opt.arg);
}

static void unlink_instance(struct pool_instance **list, struct pool_instance *m)
{
    while (*list && *list != m) list = &(*list)->next;
    if (*list) *list = m->next;
}

/* The last reference may be dropped on any thread; the pool's thread closes. A model that only the
 * pool still refers to may make room for another, or begins to be unused. */
void pool_put(struct pool_instance *m)
{
    struct pool *p = m->pool;
    int left = atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) - 1;

    if (left == 0) {
        unlink_instance(&p->open, m);
        m->next = p->unused;
        p->unused = m;
        pool_tell(p);
    } else if (left == 1 && (p->wants_room || m->keep_ms >= 0)) {
        pool_tell(p);
    }
}

void pool_release(struct pool_instance *m)
{
    struct pool *p;

    if (!m) return;
    p = m->pool;
    pthread_mutex_lock(&p->lock);
    pool_put(m);
    pthread_mutex_unlock(&p->lock);
}

void pool_touch(struct pool_instance *m, int64_t keep_ms)
{
    pthread_mutex_lock(&m->pool->lock);
    m->used_ns = clock_ns();
    if (keep_ms != POOL_KEEP_SAME)
        m->keep_ms = keep_ms == POOL_KEEP_DEFAULT ? m->model->keep_ms : keep_ms;
    pthread_mutex_unlock(&m->pool->lock);
}

/* ---- the pool's thread ---- */

/* Everything that can be done now. */
static void work(struct pool *p)
{
    bool more = true;

    while (more && !atomic_load(&p->stop)) {
        pthread_mutex_lock(&p->lock);
        p->is_news = false;
        pthread_mutex_unlock(&p->lock);
        load_close_unused(p);
        load_watch(p);
        swap_expire(p);
        load_close_unused(p);
        load_forget(p);
        wait_serve(p);
        more = swap_load_next(p);
        wait_serve(p);
    }
}

static uint64_t next_look(struct pool *p)
{
    uint64_t at = load_next_retry(p), expiry = swap_next_expiry(p);

    if (expiry < at) at = expiry;
    return p->look_ns < at ? p->look_ns : at;
}

static void wait_for_news(struct pool *p)
{
    uint64_t at = next_look(p);
    struct timespec t = { .tv_sec = (time_t)(at / SECOND), .tv_nsec = (long)(at % SECOND) };
    int rc = 0;

    pthread_mutex_lock(&p->lock);
    while (!p->is_news && !atomic_load(&p->stop) && rc == 0)
        rc = at == UINT64_MAX ? pthread_cond_wait(&p->news, &p->lock)
                              : pthread_cond_timedwait(&p->news, &p->lock, &t);
    pthread_mutex_unlock(&p->lock);
}

static void *pool_main(void *arg)
{
    struct pool *p = arg;

    while (!atomic_load(&p->stop)) {
        work(p);
        if (!atomic_load(&p->stop)) wait_for_news(p);
    }
    wait_end_all(p);
    return NULL;
}

/* ---- opening and closing ---- */

static int start_pool(struct pool *p, struct err *e)
{
    int rc;

    if (p->opt.n < 1 && !p->opt.registry && !p->opt.empty)
        return err_set(e, E_INVALID, "no model is named");
    if ((rc = lock_init(&p->lock, &p->news, "the pool of models", e)) != OK) return rc;
    p->has_lock = true;
    if ((rc = pool_open_park(p, e)) != OK) return rc;
    if (p->opt.registry && (rc = pool_take_entries(p, e)) != OK) return rc;
    for (int i = 0; i < p->opt.n && !p->opt.registry; i++)
        if ((rc = add_named(p, i, e)) != OK) return rc;
    if ((rc = thread_start(&p->thread, "tern-pool", pool_main, p, e)) != OK) return rc;
    p->has_thread = true;
    return p->opt.tiers ? ahead_start(p, e) : OK;
}

int pool_open(struct pool **out, const struct pool_opt *opt, struct err *e)
{
    struct pool *p = mem_new(struct pool);
    int rc;

    if (!p) return err_nomem(e, "the pool of models");
    p->opt = *opt;
    p->look_ns = UINT64_MAX;
    atomic_init(&p->park_room, UINT64_MAX);
    if ((rc = start_pool(p, e)) == OK) *out = p;
    else pool_close(p);
    return rc;
}

static void ask_to_stop(struct pool *p)
{
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    pool_tell(p);
    pthread_mutex_unlock(&p->lock);
}

void pool_stop(struct pool *p)
{
    if (!p || p->stopped) return;
    p->stopped = true;
    ahead_stop(p);
    if (p->has_thread) {
        ask_to_stop(p);
        pthread_join(p->thread, NULL);
    }
    for (struct pool_instance *m = p->open; m; m = m->next) m->host->stop(m);
}

/* Instances that something still refers to, which is a mistake, are closed all the same. */
void pool_close(struct pool *p)
{
    struct pool_instance *next;

    if (!p) return;
    pool_stop(p);
    pool_end_park(p);
    p->opt.changed = NULL;
    if (p->has_lock) load_close_unused(p);
    for (struct pool_instance *m = p->open; m; m = next) {
        next = m->next;
        load_close(p, m);
    }
    for (int i = 0; i < pool_n(p); i++) {
        load_drop_pending(p, p->slots[i]);
        free_slot(p->slots[i]);
    }
    if (p->has_lock) lock_destroy(&p->lock, &p->news);
    pool_close_park(p);
    mem_free(p);
}

/* ---- asking ---- */

int pool_n(const struct pool *p) { return atomic_load_explicit(&p->n, memory_order_acquire); }
const struct pool_model *pool_at(struct pool *p, int i) { return &p->slots[i]->m; }
const char *pool_path(const struct pool_model *m) { return m->entry ? m->entry->to_open : m->path; }

static int find_index(struct pool *p, struct str id)
{
    int n = pool_n(p), i = 0;

    if (p->opt.registry && id.n) {
        i = registry_find_any(p->opt.registry, id);
        return i >= 0 && i < n && pool_is_listed(p, i) ? i : -1;
    }
    while (i < n && (id.n ? !str_is(id, p->slots[i]->m.id) : !pool_is_listed(p, i))) i++;
    return i < n ? i : -1;
}

/* "name:latest" is Ollama's form of a name, if there is no model of that name itself. Pulled models are
 * found by every form of their name in the hub. */
int pool_index(struct pool *p, struct str id)
{
    struct str tag = STR(":latest");
    char text[600];
    int i = find_index(p, id);

    if (i < 0 && str_starts(id, STR("tier:"))) return pool_find_tier(p, str_skip(id, 5));
    if (i < 0 && str_ends(id, tag) && id.n > tag.n)
        i = find_index(p, id = str_take(id, id.n - tag.n));
    if (i >= 0 || !p->opt.registry || !pool_hub_id(id, text, sizeof text)) return i;
    return find_index(p, str_c(text));
}

struct pool_instance *pool_acquire(struct pool *p, int i)
{
    struct pool_instance *m;

    pthread_mutex_lock(&p->lock);
    if ((m = p->slots[i]->now)) atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    pthread_mutex_unlock(&p->lock);
    return m;
}

int pool_acquire_generation(struct pool *p, int i, uint32_t generation, struct pool_instance **out,
                            struct err *e)
{
    struct pool_instance *m = pool_acquire(p, i);

    if (m && m->generation == generation) {
        *out = m;
        return OK;
    }
    pool_release(m);
    return err_set(e, E_NOTFOUND, "instance %u of model '%s' is not loaded any more", generation,
                   p->slots[i]->m.id);
}

enum pool_state pool_state(struct pool *p, int i, struct err *e)
{
    struct slot *s = p->slots[i];
    enum pool_state state;

    pthread_mutex_lock(&p->lock);
    state = (enum pool_state)state_of(s);
    if (e) *e = state == POOL_FAILED ? s->err : (struct err){ 0 };
    if (e && state == POOL_FAILED) e->retry_ms = retry_left_ms(s);
    pthread_mutex_unlock(&p->lock);
    return state;
}

struct engine_stats *pool_stats(struct pool *p, int i)
{
    struct slot *s = p->slots[i];

    return atomic_load_explicit(&s->was_ready, memory_order_acquire) ? &s->stats : NULL;
}

const struct pool_counts *pool_counts(struct pool *p, int i) { return &p->slots[i]->counts; }
uint64_t pool_bytes(struct pool *p) { return atomic_load(&p->taken_bytes); }

uint64_t pool_parked_bytes(struct pool *p)
{
    const struct pool_host *h = p->opt.host;

    return atomic_load(&p->parked_bytes) + (h && h->parked_bytes ? h->parked_bytes(h) : 0);
}

uint64_t pool_limit(struct pool *p)
{
    return p->opt.memory_limit == POOL_MEMORY_AUTO ? 0 : p->opt.memory_limit;
}

/* With the lock held: what a READY model adds to its view. */
static void view_instance(const struct slot *s, const struct pool_instance *m,
                          struct pool_view *out)
{
    uint64_t now = clock_ns(), idle;

    out->n_uses = atomic_load_explicit(&m->refs, memory_order_relaxed) - 1;
    idle = now > m->used_ns ? (now - m->used_ns) / MS : 0;
    out->idle_ms = out->n_uses > 0 ? 0 : (int64_t)idle;
    if (s->m.pinned || m->keep_ms < 0) return;
    out->expires_ms = m->keep_ms > out->idle_ms ? m->keep_ms - out->idle_ms : 0;
}

void pool_view(struct pool *p, int i, struct pool_view *out)
{
    struct slot *s = p->slots[i];

    pthread_mutex_lock(&p->lock);
    *out = (struct pool_view){ .state = (enum pool_state)state_of(s),
                               .progress = atomic_load(&s->m.progress),
                               .n_waits = s->n_waits,
                               .generation = s->generation,
                               .idle_ms = -1,
                               .expires_ms = -1,
                               .yields = s->yields,
                               .parked_blocks = atomic_load(&s->parked_blocks) };
    if (out->state == POOL_FAILED) out->err = s->err;
    for (struct pool_instance *m = p->open; m; m = m->next)
        if (m->model == &s->m) out->bytes += m->bytes;
    if (s->now) view_instance(s, s->now, out);
    ahead_view(s, out);
    pthread_mutex_unlock(&p->lock);
}

bool pool_is_expected(struct pool *p, int i)
{
    struct slot *s = p->slots[i];
    bool expected;

    pthread_mutex_lock(&p->lock);
    expected = s->m.preload && !s->on_purpose;
    pthread_mutex_unlock(&p->lock);
    return expected;
}

/* ---- finding ---- */

enum { NAMES_MAX = 16 }; /* of an error message */

static int no_model(struct pool *p, struct str id, struct err *e)
{
    struct buf b = { 0 };
    int n = pool_n(p), listed = 0, rc;

    for (int i = 0; i < n; i++) {
        if (!pool_is_listed(p, i)) continue;
        if (listed++ < NAMES_MAX) buf_printf(&b, "%s'%s'", b.n ? ", " : "", p->slots[i]->m.id);
    }
    if (listed > NAMES_MAX) buf_printf(&b, " and %d more", listed - NAMES_MAX);
    rc = err_set(e, E_NOTFOUND, "there is no model '%.*s'; the models are %s",
                 STR_ARG(str_take(id, 100)), listed ? buf_cstr(&b) : "none yet");
    buf_release(&b);
    return rc;
}

/* The error of a model that is not READY, or yields. */
static int refuse(struct pool *p, int i, struct err *e)
{
    struct err why = { 0 };
    enum pool_state state = pool_state(p, i, &why);
    int rc;

    if (state == POOL_FAILED) {
        if (e) *e = why;
        return why.code ? why.code : E_INTERNAL;
    }
    rc = err_set(e, E_LOADING,
                 state == POOL_LOADING ? "model '%s' is being loaded" : "model '%s' is not loaded",
                 p->slots[i]->m.id);
    if (e) e->retry_ms = 1000;
    return rc;
}

/* A reference for a call; NULL: there is none now. */
static struct pool_instance *use_model(struct pool *p, struct slot *s)
{
    struct pool_instance *m;

    pthread_mutex_lock(&p->lock);
    if ((m = s->yields ? NULL : s->now)) {
        atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
        m->used_ns = clock_ns();
        ahead_note_use(p, s);
    }
    pthread_mutex_unlock(&p->lock);
    return m;
}

/* Can a request wait for model i? Not for one that is loaded at the start, or is opened again only
 * after a back-off: that may take its time, and clients are told so at once. */
static bool may_wait(struct pool *p, int i)
{
    struct slot *s = p->slots[i];
    bool may;

    pthread_mutex_lock(&p->lock);
    may = !s->at_start;
    if (state_of(s) == POOL_FAILED) may = !(s->m.preload && s->m.pinned) && !s->retry_ns;
    pthread_mutex_unlock(&p->lock);
    return may;
}

static int refuse_deadline(uint64_t deadline_ns, struct err *e)
{
    if (!deadline_ns || deadline_ns >= clock_ns() + POOL_MARGIN_MS * MS) return OK;
    return err_set(e, E_DEADLINE,
                   "the model is being loaded, and the deadline is nearer than %d ms",
                   POOL_MARGIN_MS);
}

int pool_find_cold(struct pool *p, struct str id, uint64_t deadline_ns, struct pool_instance **out,
                   int *cold, struct err *e)
{
    int i = pool_index(p, id), rc;

    *cold = -1;
    if (i < 0) return no_model(p, id, e);
    if ((*out = use_model(p, p->slots[i]))) return OK;
    rc = refuse(p, i, e);
    if (rc != E_LOADING && !may_wait(p, i)) return rc;
    if (refuse_deadline(deadline_ns, e) != OK) return E_DEADLINE;
    if (!may_wait(p, i)) return rc;
    *cold = i;
    return E_LOADING;
}

int pool_find_by(struct pool *p, struct str id, uint64_t deadline_ns, struct pool_instance **out,
                 struct err *e)
{
    int rc = pool_find(p, id, out, e);

    if (rc != E_LOADING) return rc;
    return refuse_deadline(deadline_ns, e) == OK ? rc : E_DEADLINE;
}

int pool_find(struct pool *p, struct str id, struct pool_instance **out, struct err *e)
{
    int i = pool_index(p, id);

    if (i < 0) return no_model(p, id, e);
    *out = use_model(p, p->slots[i]);
    return *out ? OK : refuse(p, i, e);
}

/* ---- all models ---- */

int pool_n_loaded(struct pool *p)
{
    int n = 0;

    for (int i = 0; i < pool_n(p); i++) {
        int state = state_of(p->slots[i]);
        n += state == POOL_READY || state == POOL_FAILED;
    }
    return n;
}

bool pool_is_ready(struct pool *p)
{
    for (int i = 0; i < pool_n(p); i++)
        if (state_of(p->slots[i]) != POOL_READY) return false;
    return true;
}

/* Every instance, also those that only calls still use. Neither waits. */
static void drain_all(struct pool *p, bool abort)
{
    pthread_mutex_lock(&p->lock);
    for (struct pool_instance *m = p->open; m; m = m->next)
        if (abort) m->host->abort(m);
        else m->host->drain(m);
    pthread_mutex_unlock(&p->lock);
}

/* Models that are still waiting to be loaded are not loaded any more. */
void pool_drain(struct pool *p)
{
    ask_to_stop(p);
    atomic_store(&p->draining, true);
    drain_all(p, false);
}

void pool_abort(struct pool *p)
{
    ask_to_stop(p);
    atomic_store(&p->aborting, true);
    drain_all(p, true);
}

bool pool_is_ending(const struct pool *p) { return atomic_load(&p->stop); }

bool pool_is_idle(struct pool *p)
{
    bool idle = true;

    pthread_mutex_lock(&p->lock);
    for (struct pool_instance *m = p->open; m && idle; m = m->next) idle = m->host->is_idle(m);
    pthread_mutex_unlock(&p->lock);
    return idle;
}
