/* supervisor_sleep.c - models that sleep keep their process: its weights and KV cache are given back, the
 * process with its sandbox, its link and its device's context stays.
 *
 *     pool's thread        loop
 *     sleep ─────────────► SLEEP ──(the worker unloads its model)── ASLEEP ─┐
 *       ◄───────────────────────────────────────────────────────────────────┘
 *     plan ──────────────► WAKE, ROOM ──PLAN, and on as after a start
 *
 * A worker without an instance is kept while it sleeps and its model does: SLEEPING in the pool, or on
 * its way from or to it. A process that ends while it sleeps, or does not wake, is replaced by another
 * one; so a process that has parked KV blocks in its memory is ended where a model needs the room. */
#include "worker/supervisor_impl.h"

#include "base/clock.h"
#include "base/log.h"
#include "net/loop.h"

#include <signal.h>
#include <string.h>

enum { END_MS = 1000 }; /* it has no model to save */

/* ---- on the pool's thread ---- */

/* Waits until the worker has given its memory back; the instance can be closed then without it. */
bool supervisor_sleep(struct supervisor *v, struct pool_instance *m, uint64_t park_bytes)
{
    struct worker *w = m->host_data;
    bool sleeps = false;

    if (!w) return false;
    pthread_mutex_lock(&v->lock);
    if (w->phase == WORKER_READY && !v->stopping) {
        w->phase = WORKER_TIRED;
        w->park_bytes = park_bytes < INT64_MAX ? park_bytes : INT64_MAX;
        loop_wake(v->opt.loop);
        sleeps = worker_wait(w, WORKER_ASLEEP, NULL) == OK;
    }
    if (sleeps) {
        w->m = NULL;
        m->host_data = NULL;
        m->info = NULL;
        pool_note_parked(m, w->n_parked);
    }
    pthread_mutex_unlock(&v->lock);
    return sleeps;
}

static struct worker *find_asleep(struct supervisor *v, const char *id)
{
    struct worker *w = v->workers;

    while (w && (w->m || w->expected || w->phase != WORKER_ASLEEP || strcmp(w->id, id) != 0))
        w = w->next;
    return w;
}

/* With the lock. The worker is told to wake before it is asked for a plan. NULL: no process of the model
 * sleeps. */
struct worker *supervisor_wake(struct supervisor *v, struct pool_instance *m)
{
    struct worker *w = find_asleep(v, m->id);

    if (!w || v->stopping) return NULL;
    w->m = m;
    w->woken = true;
    w->phase = WORKER_ASKED;
    return w;
}

/* With the lock. The loop frees it when its process has ended. */
void supervisor_give_up(struct worker *w, const struct err *e)
{
    log_warn("model '%s' does not wake in its process, and gets another one: %s", w->id, e->msg);
    w->m = NULL;
    w->expected = true;
    if (w->phase != WORKER_DEAD) process_signal(&w->proc, SIGKILL);
    loop_wake(w->sup->opt.loop);
}

/* A process without an instance that has not ended. With the lock. */
static bool is_left(const struct worker *w)
{
    return !w->m && !w->ending && w->has_proc && w->phase != WORKER_DEAD;
}

/* With the lock, which is free meanwhile. */
static void end_left(struct supervisor *v, struct worker *w)
{
    w->ending = w->expected = true;
    pthread_mutex_unlock(&v->lock);
    process_stop(&w->proc, END_MS);
    pthread_mutex_lock(&v->lock);
    w->ending = false;
    w->parked_bytes = 0;
    loop_wake(v->opt.loop); /* which frees it */
}

/* The worker of model id that is left; NULL: none is. With the lock. */
static struct worker *find_left(struct supervisor *v, const char *id)
{
    struct worker *w = v->workers;

    while (w && (!is_left(w) || process_reap(&w->proc) || strcmp(w->id, id) != 0)) w = w->next;
    return w;
}

void supervisor_forget(struct supervisor *v, const char *id)
{
    struct worker *w;

    pthread_mutex_lock(&v->lock);
    while ((w = find_left(v, id)) && !v->stopping) end_left(v, w);
    pthread_mutex_unlock(&v->lock);
}

/* Bytes that a worker has parked in its memory, which no instance counts. With the lock. */
static uint64_t parked_in(const struct worker *w)
{
    return is_left(w) && w->phase == WORKER_ASLEEP ? w->parked_bytes : 0;
}

uint64_t supervisor_parked_bytes(struct supervisor *v)
{
    uint64_t sum = 0;

    pthread_mutex_lock(&v->lock);
    for (const struct worker *w = v->workers; w; w = w->next) sum += parked_in(w);
    pthread_mutex_unlock(&v->lock);
    return sum;
}

uint64_t supervisor_drop_parked(struct supervisor *v)
{
    struct worker *first = NULL;
    uint64_t given = 0;

    pthread_mutex_lock(&v->lock);
    for (struct worker *w = v->workers; w; w = w->next)
        if (parked_in(w) && (!first || w->asleep_ns < first->asleep_ns)) first = w;
    if (first && !v->stopping) {
        given = parked_in(first);
        log_info(
            "the process in which model '%s' sleeps is ended: its parked KV blocks take memory "
            "that another model needs",
            first->id);
        end_left(v, first);
    }
    pthread_mutex_unlock(&v->lock);
    return given;
}

/* ---- on the loop ---- */

static void send(struct worker *w, enum frame_type type, struct str payload)
{
    if (!w->link || !link_send(w->link, type, payload)) process_signal(&w->proc, SIGKILL);
}

void worker_send_sleep(struct worker *w)
{
    struct buf b = { 0 };
    uint64_t bytes;

    worker_set_phase(w, WORKER_DOZING);
    worker_expect(w);
    pthread_mutex_lock(&w->sup->lock);
    bytes = w->park_bytes;
    pthread_mutex_unlock(&w->sup->lock);
    msg_write_sleep(&b, &(struct msg_sleep){ bytes });
    send(w, FRAME_SLEEP, b.failed ? STR("{}") : buf_str(&b));
    buf_release(&b);
}

void worker_send_wake(struct worker *w)
{
    worker_set_phase(w, WORKER_STARTED);
    send(w, FRAME_WAKE, STR("{}"));
    worker_send_room(w);
}

static void note_parked(struct worker *w, const struct msg_asleep *m)
{
    const uint64_t most = UINT64_C(1) << 56; /* sums do not overflow, whatever it says */

    pthread_mutex_lock(&w->sup->lock);
    w->n_parked = m->parked_blocks > 0 && m->parked_blocks < INT32_MAX ? (int)m->parked_blocks : 0;
    w->parked_bytes = m->parked_bytes < most ? m->parked_bytes : most;
    w->asleep_ns = clock_ns();
    pthread_mutex_unlock(&w->sup->lock);
}

/* Nobody reads the facts of the instance any more: its last user is gone. */
void worker_on_asleep(struct worker *w, const struct frame *f)
{
    struct msg_asleep m = { 0 };
    struct arena a = { 0 };
    struct err e = { 0 };

    if (worker_phase(w) != WORKER_DOZING || msg_read_asleep(&m, &a, frame_payload(f), &e) != OK) {
        worker_refuse_frame(w, f, &e);
    } else {
        arena_release(&w->arena);
        w->info = (struct engine_info){ 0 };
        w->loads = false;
        note_parked(w, &m);
        worker_set_phase(w, WORKER_ASLEEP);
        log_info("model '%s' sleeps in process %d", w->id, (int)w->proc.pid);
    }
    arena_release(&a);
}

/* Is the model of a sleeping worker still to be woken, or was it unloaded? */
static bool is_needed(const struct worker *w)
{
    int state = atomic_load_explicit(&w->model->state, memory_order_acquire);

    return state == POOL_SLEEPING || state == POOL_DRAINING || state == POOL_LOADING;
}

/* With the lock: may a worker without an instance be freed? Its process is asked to end first. */
bool worker_may_go(struct worker *w)
{
    if (w->ending) return false;
    if (w->phase == WORKER_DEAD || !w->has_proc) return true;
    if (w->phase == WORKER_ASLEEP && is_needed(w) && !w->sup->stopping) return false;
    if (!w->expected) w->expected = process_signal(&w->proc, SIGTERM);
    return false; /* it dies, or is killed when its link has ended */
}

void worker_end_asleep(struct worker *w)
{
    if (w->has_proc && !w->m) process_stop(&w->proc, END_MS);
}
