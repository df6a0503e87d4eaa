/* pool_load.c - the path of a load, what becomes of models that fail, and closing. On the pool's
 * thread.
 *
 * Models are loaded by one thread, one after the other: two loads at once would compete for memory
 * bandwidth and make both slower. The same thread closes instances, which takes as long as a step,
 * and opens failed models again, after their last instance is closed: two of them might not fit.
 *
 * A model that is planned and has no room keeps its plan (slot.pending) until there is some. */
#include "pool/pool_impl.h"

#include "base/confine.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "pool/registry.h"

#include <malloc.h>

enum {
    RETRY_MOST_MS = 60000, /* back-off doubles up to this */
    WORKER_MOST_MS = 5000, /* and up to this for a process that died: its breaker limits starts */
    STEADY_MS = 120000,    /* READY for so long: the next failure is the first again */
    PLANNED = 5,           /* percent of a load */
    ROOMY = 10,
    OPENED = 90
};

/* ---- closing ---- */

/* What malloc keeps of a model's many small blocks (its vocabulary, its template) goes back to the
 * system: otherwise a server that changes models would look as if it leaked. */
void load_close(struct pool *p, struct pool_instance *m)
{
    m->host->close(m);
    pool_trim_park(p);
    if (m->counted) swap_uncount(p, m);
    mem_free(m);
    malloc_trim(0);
}

/* The last instance of a slot is closed: it can be loaded again. */
static void note_closed(struct pool *p, struct slot *s, uint32_t generation)
{
    int before;

    pthread_mutex_lock(&p->lock);
    before = state_of(s);
    s->n_open--;
    wait_note_closed(s, generation);
    wait_settle(s);
    before -= state_of(s);
    pthread_mutex_unlock(&p->lock);
    if (before) pool_report_change(p);
}

/* A model that was unloaded while it fell asleep is forgotten next. */
static void sleep_if_asked(struct pool *p, struct slot *s, struct pool_instance *m)
{
    bool sleeps;

    pthread_mutex_lock(&p->lock);
    sleeps = s->sleeps && !atomic_load(&p->stop);
    if (sleeps && m->host->sleep) s->kept = true;
    pthread_mutex_unlock(&p->lock);
    if (!sleeps || !m->host->sleep || m->host->error(m, NULL) != OK) return;
    m->host->sleep(m, pool_room_to_park(p, m));
}

void load_forget(struct pool *p)
{
    const struct pool_host *h = p->opt.host;

    for (int i = 0; i < pool_n(p); i++) {
        struct slot *s = p->slots[i];
        bool due;

        pthread_mutex_lock(&p->lock);
        due = s->forget && s->n_open == 0;
        pthread_mutex_unlock(&p->lock);
        if (!due) continue;
        if (h && h->forget) h->forget(h, s->m.id);
        pthread_mutex_lock(&p->lock);
        s->forget = s->kept = false;
        wait_note_forgotten(s);
        wait_settle(s);
        pthread_mutex_unlock(&p->lock);
        pool_report_change(p);
    }
}

void load_close_unused(struct pool *p)
{
    struct pool_instance *list, *next;

    pthread_mutex_lock(&p->lock);
    list = p->unused;
    p->unused = NULL;
    pthread_mutex_unlock(&p->lock);
    for (; list; list = next) {
        struct slot *s = slot_of(list);
        uint32_t generation = list->generation;
        next = list->next;
        sleep_if_asked(p, s, list);
        load_close(p, list);
        note_closed(p, s, generation);
    }
}

/* ---- failed models ---- */

struct file_id pool_file_id(const char *path)
{
    struct stat st;

    if (!file_stat(path, &st)) return (struct file_id){ 0 };
    return (struct file_id){ st.st_dev, st.st_ino, st.st_size, st.st_mtim };
}

bool pool_is_same_file(const struct file_id *a, const struct file_id *b)
{
    return a->dev == b->dev && a->ino == b->ino && a->size == b->size &&
           a->changed.tv_sec == b->changed.tv_sec && a->changed.tv_nsec == b->changed.tv_nsec;
}

/* Time until a model that failed n times in a row is opened again. */
static uint64_t retry_after_ms(const struct pool *p, int code, int n)
{
    uint64_t ms = p->opt.retry_ms > 0 ? (uint64_t)p->opt.retry_ms : RETRY_FIRST_MS;
    uint64_t most = code == E_WORKER ? WORKER_MOST_MS : RETRY_MOST_MS;

    while (--n > 0 && ms < most) ms *= 2;
    return ms < most ? ms : most;
}

/* Does the same file fail again for sure? */
static bool is_lasting(int code)
{
    return code == E_FORMAT || code == E_UNSUPPORTED || code == E_INVALID || code == E_NOTFOUND ||
           code == E_DENIED || code == E_DAMAGED;
}

static bool lacked_memory(int code)
{
    return code == E_MEMORY || code == E_NOMEM || code == E_DEVICE_MEMORY;
}

/* m: the instance that has failed; NULL: a load has. again_ns, retry_ns: as in struct slot. false:
 * somebody has unloaded it meanwhile. */
static bool put_failed(struct pool *p, struct slot *s, const struct pool_instance *m,
                       const struct err *e, uint64_t again_ns, uint64_t retry_ns)
{
    struct file_id file = pool_file_id(pool_path(&s->m));
    struct pool_wait *waits = NULL;
    bool is_now;

    pthread_mutex_lock(&p->lock);
    if (!(is_now = s->now == m)) goto out;
    s->err = *e;
    s->file = file;
    s->retry_ns = retry_ns;
    s->again_ns = again_ns;
    s->asked = s->loading = s->at_start = s->yields = s->by_operator = false;
    s->now = NULL;
    put_state(s, POOL_FAILED);
    waits = wait_take(p, s, NULL);
    if (!m) wait_note_end(s);
out:
    pthread_mutex_unlock(&p->lock);
    if (!is_now) return false;
    wait_finish(waits, e->code ? e->code : E_INTERNAL, e);
    pool_report_change(p);
    return true;
}

/* Does the pool open the model again without being asked? One that has served does, and one of the
 * start whose failure may pass. For want of memory that one stays FAILED: nothing goes for it. */
static bool is_opened_again(const struct slot *s, const struct pool_instance *m, int code)
{
    if (m || s->reopens) return true;
    return s->m.preload && !is_lasting(code) && !lacked_memory(code);
}

/* Time until the model may be loaded again. Memory may be free at any moment: for it, there is no
 * back-off between the loads that requests cause. A process that has served is started again at once
 * after its first death: its clients wait for that. */
static uint64_t back_off_ms(struct pool *p, struct slot *s, const struct pool_instance *m,
                            const struct err *e, bool by_itself)
{
    bool doubles = by_itself || !lacked_memory(e->code);
    int n = doubles ? ++s->n_fails : 1;
    uint64_t wait = retry_after_ms(p, e->code, n);

    if (m && e->code == E_WORKER && n == 1) wait = 0;
    return e->retry_ms > 0 && (uint64_t)e->retry_ms > wait ? (uint64_t)e->retry_ms : wait;
}

/* A mistake in the file or the settings lasts until the file is another one, or an operator asks. Any
 * other failure may pass: the model is loaded again after a back-off, by the pool itself, or by the
 * next request for it. */
static bool mark_failed(struct pool *p, struct slot *s, const struct pool_instance *m,
                        struct err *e)
{
    bool by_itself = is_opened_again(s, m, e->code);
    uint64_t now = clock_ns(), wait, at;

    s->switch_ns = 0;
    if (s->ready_ns && now - s->ready_ns > STEADY_MS * MS) s->n_fails = 0;
    s->ready_ns = 0;
    if (!by_itself && is_lasting(e->code)) return put_failed(p, s, m, e, 0, 0);
    wait = back_off_ms(p, s, m, e, by_itself);
    at = now + wait * MS;
    e->retry_ms = wait ? (int)wait : 1;
    if (by_itself)
        log_error("%s; the model is %s in %.1f s", e->msg,
                  e->code == E_DAMAGED ? "opened again when its file has changed, first looked at"
                                       : "opened again",
                  (double)wait / 1e3);
    return put_failed(p, s, m, e, at, by_itself ? at : 0);
}

/* Puts the name of the model before its error, unless its process has done so. */
static void name_model(const struct slot *s, const char *what, struct err *e)
{
    struct err name;

    err_set(&name, e->code, "model '%s'", s->m.id);
    if (strncmp(e->msg, name.msg, strlen(name.msg)) != 0) err_wrap(e, "%s%s", name.msg, what);
}

/* READY → FAILED: the instance is closed when its last user is done. */
static void drop_failed(struct pool *p, struct slot *s, struct pool_instance *m, struct err *e)
{
    confine_clean(e->msg);
    name_model(s, " failed", e);
    if (!mark_failed(p, s, m, e)) return;
    counter_add(&s->counts.unloads[POOL_UNLOAD_FAILED], 1);
    pool_release(m);
}

/* FAILED → LOADING, when its time has come and the old instance is closed. A damaged file is not
 * opened again before it has changed. */
static void open_again_if_due(struct pool *p, struct slot *s, uint64_t now)
{
    struct file_id id;
    bool due;

    pthread_mutex_lock(&p->lock);
    due = state_of(s) == POOL_FAILED && s->retry_ns && now >= s->retry_ns && s->n_open == 0;
    pthread_mutex_unlock(&p->lock);
    if (!due) return;
    id = pool_file_id(pool_path(&s->m));
    pthread_mutex_lock(&p->lock);
    if (state_of(s) == POOL_FAILED && s->err.code == E_DAMAGED &&
        pool_is_same_file(&s->file, &id)) {
        s->retry_ns = now + retry_after_ms(p, s->err.code, ++s->n_fails) * MS;
        due = false;
    } else if (state_of(s) == POOL_FAILED) {
        s->asked = true;
        s->reopens = true;
        s->asked_ns = now;
        s->retry_ns = 0;
        put_state(s, POOL_LOADING);
    }
    pthread_mutex_unlock(&p->lock);
    if (due) pool_report_change(p);
}

/* Only this thread closes instances: the one that is READY now needs no reference here. */
void load_watch(struct pool *p)
{
    for (int i = 0; i < pool_n(p) && !atomic_load(&p->stop); i++) {
        struct slot *s = p->slots[i];
        struct pool_instance *m;
        struct err e = { 0 };

        pthread_mutex_lock(&p->lock);
        m = s->now;
        pthread_mutex_unlock(&p->lock);
        if (m && m->host->error(m, &e) != OK) drop_failed(p, s, m, &e);
        open_again_if_due(p, s, clock_ns());
    }
}

/* When the next model is due; UINT64_MAX: none is. One whose instance is still in use is looked at
 * when that is released. */
uint64_t load_next_retry(struct pool *p)
{
    uint64_t at = UINT64_MAX, now = clock_ns();

    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < pool_n(p); i++) {
        const struct slot *s = p->slots[i];
        if (state_of(s) != POOL_FAILED || !s->retry_ns) continue;
        if (s->retry_ns < at && (s->retry_ns > now || s->n_open == 0)) at = s->retry_ns;
    }
    pthread_mutex_unlock(&p->lock);
    return at;
}

/* ---- the path of a load ---- */

/* Between two steps: has somebody unloaded the model meanwhile? */
static int check_cancelled(struct pool *p, struct slot *s, struct err *e)
{
    bool cancelled;

    pthread_mutex_lock(&p->lock);
    cancelled = is_cancelled(s);
    pthread_mutex_unlock(&p->lock);
    if (!cancelled) return OK;
    return err_set(e, E_CANCELLED, "it was unloaded while it was being loaded");
}

void pool_set_progress(struct pool_instance *m, int percent)
{
    if (percent < 0 || percent > 100) return;
    atomic_store_explicit(&slot_of(m)->m.progress, percent, memory_order_relaxed);
}

bool pool_is_cancelled(const struct pool_instance *m)
{
    return check_cancelled(m->pool, slot_of(m), NULL) != OK;
}

void pool_set_weights_progress(struct pool_instance *m, int percent)
{
    pool_set_progress(m, ROOMY + (OPENED - ROOMY) * percent / 100);
}

const struct pool_opt *pool_opt_of(const struct pool_instance *m) { return &m->pool->opt; }
struct engine_stats *pool_stats_of(struct pool_instance *m) { return &slot_of(m)->stats; }

void load_drop_pending(struct pool *p, struct slot *s)
{
    if (s->pending) load_close(p, s->pending);
    s->pending = NULL;
}

/* A plan that nobody waits for, or that was unloaded, ends. Who asked after the unload waits for
 * another one. */
static void end_plan(struct pool *p, struct slot *s)
{
    bool goes;

    pthread_mutex_lock(&p->lock);
    goes = !is_wanted(s) || is_plan_cancelled(s);
    pthread_mutex_unlock(&p->lock);
    if (!goes) return;
    load_drop_pending(p, s);
    s->switch_ns = 0;
    pthread_mutex_lock(&p->lock);
    s->planned = false;
    wait_note_end(s);
    wait_settle(s);
    pthread_mutex_unlock(&p->lock);
}

void load_end_plans(struct pool *p)
{
    for (int i = 0; i < pool_n(p); i++)
        if (p->slots[i]->pending) end_plan(p, p->slots[i]);
}

/* By the room that there is now. m keeps what its host made of it before. */
static int plan_instance(struct pool *p, struct pool_instance *m, struct err *e)
{
    uint64_t start = clock_ns();
    int rc;

    m->room = room_for(p, m->model);
    m->refused = (struct err){ 0 };
    m->planned_at = p->n_changes;
    if ((rc = m->host->plan(m, e)) == OK) m->load_ms += clock_ms_since(start);
    return rc;
}

/* s->pending: planned, by the room that there is now; NULL after a failure. */
static int plan_model(struct pool *p, int i, struct err *e)
{
    struct slot *s = p->slots[i];
    struct pool_instance *m = s->pending;
    int rc;

    if (m) {
        if (m->planned_at == p->n_changes) return OK;
        if ((rc = plan_instance(p, m, e)) != OK) load_drop_pending(p, s);
        return rc;
    }
    if (p->opt.registry && (rc = registry_verify(p->opt.registry, i, e)) != OK) return rc;
    if (!(m = mem_new(struct pool_instance))) return err_nomem(e, "a model");
    *m = (struct pool_instance){ .model = &s->m,
                                 .id = s->m.id,
                                 .pool = p,
                                 .host = p->opt.host ? p->opt.host : &pool_local,
                                 .keep_ms = s->m.keep_ms };
    atomic_init(&m->refs, 1);
    pthread_mutex_lock(&p->lock);
    if ((m->by_operator = s->by_operator)) s->n_fails = 0;
    pthread_mutex_unlock(&p->lock);
    s->pending = m;
    if ((rc = plan_instance(p, m, e)) != OK) load_drop_pending(p, s);
    return rc;
}

static int open_model(struct pool *p, struct slot *s, struct pool_instance *m, struct err *e)
{
    uint64_t start = clock_ns();
    int rc;

    if ((rc = check_cancelled(p, s, e)) != OK) return rc;
    if (room_is_kv_large(p, m)) m->fill_kv = true;
    if ((rc = m->host->open(m, e)) != OK) return rc;
    m->load_ms += clock_ms_since(start);
    pool_set_progress(m, OPENED);
    if ((rc = swap_count(p, m, e)) != OK || (rc = check_cancelled(p, s, e)) != OK) return rc;
    start = clock_ns();
    if (p->opt.warm && (rc = m->host->warm(m, e)) != OK) return rc;
    m->warm_ms = clock_ms_since(start);
    return check_cancelled(p, s, e);
}

static void note_loaded(struct slot *s, const struct pool_instance *m)
{
    double seconds = (m->load_ms + m->warm_ms) / 1e3;

    s->ready_ns = m->ready_ns;
    s->reload_ns = (uint64_t)(seconds * 1e9);
    counter_add(&s->counts.loads, 1);
    hist_add(&s->counts.load_s, seconds);
    if (s->switch_ns) hist_add(&s->counts.switch_s, (double)(m->ready_ns - s->switch_ns) / 1e9);
    s->switch_ns = 0;
}

/* From here on the instance can be found. pool_drain may have run before, and have missed this
 * engine, or after it: then it drains twice, which changes nothing. false: the model was unloaded
 * meanwhile, and the instance is the caller's. */
static bool publish(struct pool *p, struct slot *s, struct pool_instance *m)
{
    bool cancelled;

    m->ready_ns = clock_ns();
    pthread_mutex_lock(&p->lock);
    if (!(cancelled = is_cancelled(s))) {
        m->used_ns = m->ready_ns;
        m->generation = ++s->generation;
        m->next = p->open;
        p->open = s->now = m;
        s->n_open++;
        s->asked = s->loading = s->at_start = s->yields = s->reopens = s->by_operator = false;
        atomic_store_explicit(&s->m.progress, 100, memory_order_relaxed);
        atomic_store_explicit(&s->was_ready, true, memory_order_release);
        put_state(s, POOL_READY);
    }
    pthread_mutex_unlock(&p->lock);
    if (cancelled) return false;
    note_loaded(s, m);
    if (atomic_load(&p->draining)) m->host->drain(m);
    if (atomic_load(&p->aborting)) m->host->abort(m);
    if (s->n_fails > 0) log_info("model '%s' is ready again", s->m.id);
    pool_report_change(p);
    return true;
}

/* UNLOADED again, by somebody's wish: those who waited may ask again. What was asked for after the
 * wish stays. */
static void end_cancelled(struct pool *p, struct slot *s)
{
    struct pool_wait *waits;

    s->switch_ns = 0;
    pthread_mutex_lock(&p->lock);
    s->loading = false;
    waits = wait_take(p, s, NULL);
    wait_note_end(s);
    wait_settle(s);
    pthread_mutex_unlock(&p->lock);
    wait_refuse(waits, s);
    pool_report_change(p);
}

/* A failed load leaves nothing behind, also not in the memory account. */
static void end_failed(struct pool *p, struct slot *s, struct pool_instance *m, struct err *e)
{
    if (m) load_close(p, m);
    if (e->code == E_CANCELLED || check_cancelled(p, s, NULL) != OK) {
        end_cancelled(p, s);
        return;
    }
    counter_add(&s->counts.load_failures, 1);
    if (e->code == E_INVALID) e->code = E_FORMAT; /* not a mistake of who asked for the model */
    confine_clean(e->msg);
    name_model(s, "", e);
    mark_failed(p, s, NULL, e);
}

/* false: the slot is not wanted any more, or its old instance is still in use. */
static bool begin_load(struct pool *p, struct slot *s)
{
    bool begins;

    if (s->pending) end_plan(p, s); /* it was unloaded, and asked for again */
    pthread_mutex_lock(&p->lock);
    begins = is_wanted(s) && s->n_open == 0 && !s->forget && !is_plan_cancelled(s);
    if (begins) {
        s->loading = true;
        s->planned = false;
        s->attempt++;
        put_state(s, POOL_LOADING);
    }
    pthread_mutex_unlock(&p->lock);
    return begins;
}

/* There is no room yet: the model keeps its plan, unless it was unloaded meanwhile. */
static void pause_load(struct pool *p, struct slot *s)
{
    bool cancelled;

    pthread_mutex_lock(&p->lock);
    if (!(cancelled = is_cancelled(s))) {
        s->loading = false;
        s->planned = s->pending != NULL;
        wait_settle(s);
    }
    pthread_mutex_unlock(&p->lock);
    if (!cancelled) return;
    load_drop_pending(p, s);
    end_cancelled(p, s);
}

/* Plans the model, unless that was done, and makes room for it; then it is planned again: there is
 * another room for its sizes, and for its layers on a device. Each turn unloads another model. */
static enum room plan_and_make_room(struct pool *p, int i, bool first, struct err *e)
{
    struct slot *s = p->slots[i];
    enum room room;

    do {
        struct err why = { 0 };
        int rc = plan_model(p, i, &why);

        *e = why;
        if (rc != OK && rc != E_DEVICE_MEMORY) return ROOM_NEVER;
        if (rc == OK) pool_set_progress(s->pending, PLANNED);
        room = swap_make_room(p, i, s->pending, first, e);
    } while (room == ROOM_AGAIN);
    return room;
}

bool load_slot(struct pool *p, int i, bool first)
{
    struct slot *s = p->slots[i];
    struct pool_instance *m;
    struct err e = { 0 };
    enum room room;

    if (!begin_load(p, s)) return false;
    if ((room = plan_and_make_room(p, i, first, &e)) == ROOM_LATER) {
        pause_load(p, s);
        return false;
    }
    m = s->pending;
    s->pending = NULL;
    if (room == ROOM) {
        pool_set_progress(m, ROOMY);
        if (open_model(p, s, m, &e) == OK) {
            if (publish(p, s, m)) return true;
            e.code = E_CANCELLED;
        }
    }
    end_failed(p, s, m, &e);
    return true;
}
