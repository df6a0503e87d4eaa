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
 * one. */
#include "worker/supervisor_impl.h"

#include "base/log.h"
#include "net/loop.h"

#include <signal.h>
#include <string.h>

enum { END_MS = 1000 }; /* it has no model to save */

/* ---- on the pool's thread ---- */

/* Waits until the worker has given its memory back; the instance can be closed then without it. */
bool supervisor_sleep(struct supervisor *v, struct pool_instance *m)
{
    struct worker *w = m->host_data;
    bool sleeps = false;

    if (!w) return false;
    pthread_mutex_lock(&v->lock);
    if (w->phase == WORKER_READY && !v->stopping) {
        w->phase = WORKER_TIRED;
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

/* ---- on the loop ---- */

static void send(struct worker *w, enum frame_type type)
{
    if (!w->link || !link_send(w->link, type, STR("{}"))) process_signal(&w->proc, SIGKILL);
}

void worker_send_sleep(struct worker *w)
{
    worker_set_phase(w, WORKER_DOZING);
    worker_expect(w);
    send(w, FRAME_SLEEP);
}

void worker_send_wake(struct worker *w)
{
    worker_set_phase(w, WORKER_STARTED);
    send(w, FRAME_WAKE);
    worker_send_room(w);
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
        w->n_parked = m.parked_blocks > 0 && m.parked_blocks < INT32_MAX ? (int)m.parked_blocks : 0;
        w->info = (struct engine_info){ 0 };
        w->loads = false;
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
    if (w->phase == WORKER_DEAD || !w->has_proc) return true;
    if (w->phase == WORKER_ASLEEP && is_needed(w) && !w->sup->stopping) return false;
    if (!w->expected) w->expected = process_signal(&w->proc, SIGTERM);
    return false; /* it dies, or is killed when its link has ended */
}

void worker_end_asleep(struct worker *w)
{
    if (w->has_proc && !w->m) process_stop(&w->proc, END_MS);
}
