/* pool_wait.c - asking for a model to be loaded or unloaded, and waiting for it.
 *
 * A wait is a node in the list of its model. It leaves the list under the lock, by its end or by
 * pool_cancel_wait, whichever comes first; done is called without the lock. The thread hands READY
 * models over together with a reference, so that a model cannot be evicted between its load and the
 * calls that waited for it. */
#include "pool/pool_impl.h"

/* With the lock held. */
static void append_wait(struct pool *p, struct slot *s, struct pool_wait *w)
{
    struct pool_wait **at = &s->waits;

    while (*at) at = &(*at)->next;
    *at = w;
    w->next = NULL;
    w->waits = true;
    w->since_ns = clock_ns();
    w->attempt = s->attempt + ((s->loading && is_cancelled(s)) || is_plan_cancelled(s));
    p->n_waits++;
    if (w->for_end) return;
    s->n_waits++;
    counter_add(&s->counts.waits, 1);
}

/* With the lock held. */
static void remove_wait(struct pool *p, struct slot *s, struct pool_wait *w)
{
    struct pool_wait **at = &s->waits;

    while (*at && *at != w) at = &(*at)->next;
    if (!*at) return;
    *at = w->next;
    w->waits = false;
    p->n_waits--;
    if (w->for_end) return;
    s->n_waits--;
    hist_add(&s->counts.wait_s, (double)(clock_ns() - w->since_ns) / 1e9);
}

/* Moves the waits that match to a list of their own. */
static struct pool_wait *take_waits(struct pool *p, struct slot *s,
                                    bool (*match)(const struct slot *s, const struct pool_wait *w))
{
    struct pool_wait *list = NULL, **end = &list, *w, *next;

    for (w = s->waits; w; w = next) {
        next = w->next;
        if (!match(s, w)) continue;
        remove_wait(p, s, w);
        w->next = NULL;
        *end = w;
        end = &w->next;
    }
    return list;
}

void wait_settle(struct slot *s)
{
    int state = state_of(s);

    if (state == POOL_READY || state == POOL_FAILED || s->loading) return;
    if (s->n_open > 0 || s->forget || is_plan_cancelled(s)) put_state(s, POOL_DRAINING);
    else if (is_wanted(s)) put_state(s, POOL_LOADING);
    else put_state(s, s->sleeps ? POOL_SLEEPING : POOL_UNLOADED);
    if (state_of(s) != POOL_LOADING || state != POOL_LOADING)
        atomic_store_explicit(&s->m.progress, 0, memory_order_relaxed);
}

/* ---- loading ---- */

static enum pool_wait_now end_now(struct pool_wait *w, int rc)
{
    w->rc = rc;
    w->waits = false;
    return POOL_NOW;
}

/* May a request cause another load of a model that has failed? After its back-off, if the reason may
 * have passed, and at once with another file. What the command line names is left to the pool and to
 * operators. */
static bool may_try_again(const struct slot *s, const struct file_id *file)
{
    if (s->m.preload && s->m.pinned) return false;
    if (s->retry_ns) return false; /* it will, by itself */
    if (s->again_ns && clock_ns() >= s->again_ns) return true;
    return !pool_is_same_file(&s->file, file);
}

/* With the lock held. */
static enum pool_wait_now begin_load(struct pool *p, struct slot *s, struct pool_wait *w,
                                     const struct file_id *file)
{
    int max = p->opt.max_waits ? p->opt.max_waits : 4096;

    if (atomic_load(&p->stop))
        return end_now(w, err_set(&w->err, E_SHUTDOWN, "the server is shutting down"));
    if (s->now && !s->yields) {
        w->model = s->now;
        atomic_fetch_add_explicit(&s->now->refs, 1, memory_order_relaxed);
        s->now->used_ns = clock_ns();
        return end_now(w, OK);
    }
    if (state_of(s) == POOL_FAILED && !w->by_operator && !may_try_again(s, file)) {
        w->err = s->err;
        w->err.retry_ms = retry_left_ms(s);
        return end_now(w, s->err.code ? s->err.code : E_INTERNAL);
    }
    if (p->n_waits >= max) {
        err_set(&w->err, E_QUEUE_FULL, "%d requests wait for models to be loaded", max);
        w->err.retry_ms = 1000;
        return end_now(w, E_QUEUE_FULL);
    }
    append_wait(p, s, w);
    if (!w->by_operator) ahead_note_use(p, s);
    s->on_purpose = s->sleeps = false;
    if (w->by_operator) s->by_operator = true, s->reopens = false;
    if (w->by_operator && !s->asked && state_of(s) != POOL_READY) {
        s->asked = true;
        s->asked_ns = w->since_ns;
    }
    if (state_of(s) == POOL_FAILED) put_state(s, POOL_UNLOADED);
    wait_settle(s);
    pool_tell(p);
    return POOL_WAIT;
}

enum pool_wait_now pool_load(struct pool *p, int i, struct pool_wait *w)
{
    struct slot *s = p->slots[i];
    struct file_id file = { 0 };
    enum pool_wait_now now;
    int before;

    w->index = i;
    w->for_end = false;
    w->model = NULL;
    w->err = (struct err){ 0 };
    if (state_of(s) == POOL_FAILED) file = pool_file_id(pool_path(&s->m));
    pthread_mutex_lock(&p->lock);
    before = state_of(s);
    now = begin_load(p, s, w, &file);
    before -= state_of(s);
    pthread_mutex_unlock(&p->lock);
    if (before) pool_report_change(p);
    return now;
}

/* ---- unloading ---- */

static bool is_for_ready(const struct slot *s, const struct pool_wait *w)
{
    (void)s;
    return !w->for_end;
}

/* With the lock held: how many loads, plans and instances are left to wait for, and what has slept.
 * *refused: those who wait for a load that has not begun, or waits for room. */
static int begin_unload(struct pool *p, struct slot *s, bool sleep, struct pool_wait **refused)
{
    s->on_purpose = true;
    s->sleeps = sleep;
    s->asked = s->at_start = s->reopens = s->by_operator = false;
    if (s->loading || s->planned) s->cancelled = s->attempt;
    if (state_of(s) == POOL_LOADING && !s->loading) *refused = take_waits(p, s, is_for_ready);
    if (s->kept && !sleep) s->forget = true;
    if (s->now) swap_retire(s, POOL_UNLOAD_ASKED);
    else if (state_of(s) == POOL_FAILED) put_state(s, POOL_UNLOADED), s->retry_ns = 0;
    wait_settle(s);
    pool_tell(p);
    return s->n_open + (s->loading || s->planned) + s->forget;
}

void wait_refuse(struct pool_wait *list, const struct slot *s)
{
    struct err e = { 0 };

    err_set(&e, E_LOADING, "model '%s' was unloaded while it was being loaded", s->m.id);
    e.retry_ms = 1000;
    wait_finish(list, E_LOADING, &e);
}

enum pool_wait_now pool_unload(struct pool *p, int i, bool sleep, struct pool_wait *w)
{
    const struct pool_host *host = p->opt.host ? p->opt.host : &pool_local;
    struct slot *s = p->slots[i];
    enum pool_wait_now now = POOL_NOW;
    struct pool_wait *refused = NULL;
    int left = 0;

    pthread_mutex_lock(&p->lock);
    if (w) {
        *w = (struct pool_wait){ .done = w->done, .arg = w->arg, .index = i, .for_end = true };
        if (atomic_load(&p->stop))
            end_now(w, err_set(&w->err, E_SHUTDOWN, "the server is shutting down"));
    }
    if (!atomic_load(&p->stop)) left = begin_unload(p, s, sleep, &refused);
    if (left && w) {
        append_wait(p, s, w);
        w->attempt = s->attempt;
        w->generation = s->generation;
        w->left = left;
        w->forgets = s->forget;
        now = POOL_WAIT;
    }
    pthread_mutex_unlock(&p->lock);
    if (host->cancel) host->cancel(host);
    wait_refuse(refused, s);
    pool_report_change(p);
    return now;
}

bool pool_cancel_wait(struct pool *p, struct pool_wait *w)
{
    struct slot *s = p->slots[w->index];
    bool waited;

    pthread_mutex_lock(&p->lock);
    waited = w->waits;
    if (waited) {
        remove_wait(p, s, w);
        wait_settle(s);
        pool_tell(p);
    }
    pthread_mutex_unlock(&p->lock);
    return waited;
}

/* ---- ending, on the pool's thread ---- */

/* Numbers wrap around. */
static bool is_by(uint32_t number, uint32_t last) { return (int32_t)(number - last) <= 0; }

static bool is_of_this_load(const struct slot *s, const struct pool_wait *w)
{
    return !w->for_end && is_by(w->attempt, s->attempt);
}

static bool is_at_end(const struct slot *s, const struct pool_wait *w)
{
    (void)s;
    return w->for_end && w->left == 0;
}

static bool is_any(const struct slot *s, const struct pool_wait *w)
{
    (void)s;
    (void)w;
    return true;
}

struct pool_wait *wait_take(struct pool *p, struct slot *s, struct pool_instance *m)
{
    struct pool_wait *list = take_waits(p, s, is_of_this_load);

    for (struct pool_wait *w = list; w; w = w->next) {
        w->model = m;
        if (!m) continue;
        atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
        m->used_ns = clock_ns();
    }
    return list;
}

void wait_note_end(struct slot *s)
{
    for (struct pool_wait *w = s->waits; w; w = w->next)
        if (w->for_end && w->attempt == s->attempt && w->left > 0) w->left--;
}

void wait_note_closed(struct slot *s, uint32_t generation)
{
    for (struct pool_wait *w = s->waits; w; w = w->next)
        if (w->for_end && is_by(generation, w->generation) && w->left > 0) w->left--;
}

void wait_note_forgotten(struct slot *s)
{
    for (struct pool_wait *w = s->waits; w; w = w->next)
        if (w->forgets) w->forgets = false, w->left--;
}

void wait_finish(struct pool_wait *list, int rc, const struct err *e)
{
    struct pool_wait *next;

    for (; list; list = next) {
        next = list->next; /* done may free it */
        list->rc = rc;
        if (e) list->err = *e;
        list->done(list);
    }
}

void wait_serve(struct pool *p)
{
    for (int i = 0; i < pool_n(p); i++) {
        struct slot *s = p->slots[i];
        struct pool_wait *ready = NULL, *gone = NULL;

        pthread_mutex_lock(&p->lock);
        if (s->now && !s->yields) ready = wait_take(p, s, s->now);
        gone = take_waits(p, s, is_at_end);
        pthread_mutex_unlock(&p->lock);
        wait_finish(ready, OK, NULL);
        wait_finish(gone, OK, NULL);
    }
}

void wait_end_all(struct pool *p)
{
    struct err e = { 0 };

    err_set(&e, E_SHUTDOWN, "the server is shutting down");
    for (int i = 0; i < pool_n(p); i++) {
        struct pool_wait *all;

        pthread_mutex_lock(&p->lock);
        all = take_waits(p, p->slots[i], is_any);
        pthread_mutex_unlock(&p->lock);
        wait_finish(all, E_SHUTDOWN, &e);
    }
}
