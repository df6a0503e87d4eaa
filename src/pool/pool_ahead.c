/* pool_ahead.c - a thread that looks at how much of each model's files is in memory, and has the file of
 * the model that is probably needed next read into the page cache. See tiers.h.
 *
 * It loads nothing and makes nobody go: it only spends memory that nothing uses, not even the page cache,
 * and leaves a part of that. What the prediction needs is noted under the pool's lock with each use. */
#include "pool/pool_impl.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "base/memavail.h"
#include "pool/registry.h"

enum {
    LOOK_MS = 2000,   /* interval */
    LOOK_MODELS = 16, /* looked at each time, besides those that are loaded */
    AGAIN_S = 60,     /* a model is not read ahead again before that */
    FREE_SHARE = 16,  /* of the machine's memory stays unused */
    NICE = 19
};

struct ahead {
    struct pool *pool;
    pthread_t thread;
    pthread_cond_t news;
    atomic_bool stop;
    bool hinted; /* under the pool's lock */
    int next;    /* model to be looked at */
    struct tier_model view[POOL_MODELS_MAX];
};

/* ---- what is noted, with the lock held ---- */

void ahead_note_use(struct pool *p, struct slot *s)
{
    struct slot *last = p->last_used;
    uint64_t now = clock_ns();

    s->uses = tier_decay(s->uses, now - s->uses_ns) + 1;
    s->uses_ns = now;
    if (last == s) return;
    if (last) {
        last->n_after = last->after == s ? last->n_after + 1 : 1;
        last->after = s;
    }
    p->last_used = s;
}

void pool_hint(struct pool *p, int i)
{
    pthread_mutex_lock(&p->lock);
    p->slots[i]->hint_ns = clock_ns();
    if (p->ahead) {
        p->ahead->hinted = true;
        pthread_cond_signal(&p->ahead->news);
    }
    pthread_mutex_unlock(&p->lock);
}

/* ---- the page cache ---- */

static void look_at_model(struct slot *s)
{
    double share = tier_look(pool_path(&s->m));

    atomic_store_explicit(&s->cached_1000, share < 0 ? -1 : (int)(share * 1000 + 0.5),
                          memory_order_relaxed);
}

/* All that are loaded, and some of the others in turn. */
static void look_at_models(struct ahead *a)
{
    struct pool *p = a->pool;
    int n = pool_n(p);

    for (int i = 0; i < n && !atomic_load(&a->stop); i++)
        if (state_of(p->slots[i]) == POOL_READY) look_at_model(p->slots[i]);
    for (int i = 0; i < LOOK_MODELS && i < n && !atomic_load(&a->stop); i++) {
        if (a->next >= n) a->next = 0;
        look_at_model(p->slots[a->next++]);
    }
}

/* ---- reading ahead ---- */

static double cached_of(const struct slot *s)
{
    int share = atomic_load_explicit(&s->cached_1000, memory_order_relaxed);

    return share < 0 ? -1 : share / 1000.0;
}

static void view_slot(const struct pool *p, const struct slot *s, uint64_t now,
                      struct tier_model *out)
{
    bool is_loading = s->loading || s->now || s->n_open > 0;
    bool is_due = !s->ahead_ns || now - s->ahead_ns > AGAIN_S * SECOND;

    *out = (struct tier_model){ .absent = !is_loading && is_due && state_of(s) != POOL_FAILED,
                                .cached = cached_of(s),
                                .hint_ns = s->hint_ns,
                                .uses = tier_decay(s->uses, now - s->uses_ns) };
    if (s->m.entry && atomic_load(&s->m.entry->gone)) out->absent = false;
    for (const struct pool_wait *w = s->waits; w; w = w->next)
        if (!w->for_end && (!out->since_ns || w->since_ns < out->since_ns))
            out->since_ns = w->since_ns;
    if (p->last_used && p->last_used->after == s) out->after = p->last_used->n_after;
}

static int choose_next(struct ahead *a)
{
    struct pool *p = a->pool;
    uint64_t now = clock_ns();
    int n = pool_n(p), i;

    pthread_mutex_lock(&p->lock);
    for (i = 0; i < n; i++) view_slot(p, p->slots[i], now, &a->view[i]);
    pthread_mutex_unlock(&p->lock);
    return tier_predict(a->view, n, now);
}

/* Memory that nothing uses remains after it. */
static bool may_go_on(void *arg, uint64_t bytes)
{
    const struct ahead *a = arg;
    const char *root = a->pool->opt.sys_root ? a->pool->opt.sys_root : "";
    struct memavail m;

    if (atomic_load(&a->stop)) return false;
    memavail_read(&m, root);
    if (m.total == UINT64_MAX) return false;
    return memavail_unused(root) > bytes + m.total / FREE_SHARE;
}

static void read_ahead(struct ahead *a, int i)
{
    struct pool *p = a->pool;
    struct slot *s = p->slots[i];
    uint64_t bytes;

    s->ahead_ns = clock_ns();
    if (p->opt.registry && registry_verify(p->opt.registry, i, NULL) != OK) return;
    bytes = tier_read_ahead(pool_path(&s->m), may_go_on, a);
    if (bytes)
        log_debug("%.1f MiB of model '%s' are read ahead", (double)bytes / (1024.0 * 1024.0),
                  s->m.id);
    atomic_fetch_add_explicit(&s->ahead_bytes, bytes, memory_order_relaxed);
    look_at_model(s);
}

/* ---- life ---- */

static void wait_for_look(struct ahead *a)
{
    uint64_t at = clock_ns() + LOOK_MS * MS;
    struct timespec t = { .tv_sec = (time_t)(at / SECOND), .tv_nsec = (long)(at % SECOND) };
    int rc = 0;

    pthread_mutex_lock(&a->pool->lock);
    while (!atomic_load(&a->stop) && !a->hinted && rc == 0)
        rc = pthread_cond_timedwait(&a->news, &a->pool->lock, &t);
    a->hinted = false;
    pthread_mutex_unlock(&a->pool->lock);
}

static void *ahead_main(void *arg)
{
    struct ahead *a = arg;
    struct pool *p = a->pool;
    int i;

    thread_set_nice(NICE);
    while (!atomic_load(&a->stop)) {
        look_at_models(a);
        while (p->opt.read_ahead && !atomic_load(&a->stop) && (i = choose_next(a)) >= 0)
            read_ahead(a, i);
        wait_for_look(a);
    }
    return NULL;
}

int ahead_start(struct pool *p, struct err *e)
{
    struct ahead *a = mem_new(struct ahead);
    pthread_condattr_t how;
    int rc;

    if (!a) return err_nomem(e, "the tiers of models");
    a->pool = p;
    if (pthread_condattr_init(&how) != 0) {
        mem_free(a);
        return err_nomem(e, "a condition");
    }
    pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    rc = pthread_cond_init(&a->news, &how) == 0 ? OK : err_nomem(e, "a condition");
    pthread_condattr_destroy(&how);
    if (rc != OK) {
        mem_free(a);
        return rc;
    }
    pthread_mutex_lock(&p->lock);
    p->ahead = a;
    pthread_mutex_unlock(&p->lock);
    if ((rc = thread_start(&a->thread, "tern-ahead", ahead_main, a, e)) == OK) return OK;
    p->ahead = NULL;
    pthread_cond_destroy(&a->news);
    mem_free(a);
    return rc;
}

void ahead_stop(struct pool *p)
{
    struct ahead *a = p->ahead;

    if (!a) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&a->stop, true);
    p->ahead = NULL;
    pthread_cond_signal(&a->news);
    pthread_mutex_unlock(&p->lock);
    pthread_join(a->thread, NULL);
    pthread_cond_destroy(&a->news);
    mem_free(a);
}

void ahead_view(const struct slot *s, struct pool_view *out)
{
    const struct pool_instance *m = s->now;
    struct tier_facts f = { .loaded = m, .cached = cached_of(s), .idle_ms = out->idle_ms };

    f.copied = m && m->need.weights ? 1 - (double)m->need.mapped / (double)m->need.weights : 0;
    out->tier = tier_of(&f);
    out->cached = f.cached;
    out->ahead_bytes = atomic_load_explicit(&s->ahead_bytes, memory_order_relaxed);
}
