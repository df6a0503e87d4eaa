/* supervisor.c - the steps of the pool's host, and the life of the supervisor. See supervisor.h. */
#include "worker/supervisor_impl.h"

#include "base/clock.h"
#include "base/keyring.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/stats.h"
#include "net/loop.h"
#include "base/memavail.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    TICK_MS = 100,
    STOP_MS = 3000,  /* at the end of the server */
    LOADING_MS = 500 /* of a process whose load is cancelled */
};

const char *supervisor_death_name(int i)
{
    return i == SUPERVISOR_HUNG ? "hung" : process_end_name((enum process_end)i);
}

const char *supervisor_breaker_name(enum supervisor_breaker b)
{
    return b == BREAKER_OPEN ? "open" : b == BREAKER_ON_TRIAL ? "trial" : "closed";
}

static struct supervisor *supervisor_of(const struct pool_instance *m)
{
    return (struct supervisor *)m->host;
}

/* ---- records ---- */

static struct record *find_record(struct supervisor *v, const char *id)
{
    struct record *r = v->records;

    while (r && strcmp(r->id, id) != 0) r = r->next;
    return r;
}

/* With the lock. */
struct record *supervisor_record(struct supervisor *v, const char *id)
{
    struct record *r = find_record(v, id);

    if (r || !(r = mem_new(struct record))) return r;
    if (!(r->id = mem_strdup(id))) {
        mem_free(r);
        return NULL;
    }
    r->shared_fd = process_share(sizeof *r->shared, (void **)&r->shared);
    r->next = v->records;
    return v->records = r;
}

static void view_record(const struct record *r, struct supervisor_view *out)
{
    out->starts = r->starts;
    out->retried = r->retried;
    out->requests = r->requests;
    out->connections = r->connections;
    out->preflights = r->preflights;
    out->preflight_hits = r->preflight_hits;
    out->breaker = breaker_is_open(&r->breaker, clock_ns()) ? BREAKER_OPEN
                   : r->breaker.on_trial                    ? BREAKER_ON_TRIAL
                                                            : BREAKER_CLOSED;
    memcpy(out->restarts, r->restarts, sizeof out->restarts);
    memcpy(out->deaths, r->deaths, sizeof out->deaths);
}

static void view_worker(const struct worker *w, struct supervisor_view *out)
{
    struct link_stats s = { 0 };

    if (w->link) {
        link_stats(w->link, &s);
        out->requests += s.streams;
        out->connections += s.streams > 0;
    }
    if (w->phase == WORKER_DEAD || !w->has_proc) return;
    out->pid = w->proc.pid;
    out->calls = atomic_load(&w->n_relays);
    out->steps = (int64_t)w->beat.steps;
    out->step_ms = w->beat.step_ms;
    out->rtt_us = s.rtt_us;
}

bool supervisor_view(struct supervisor *v, const char *id, struct supervisor_view *out)
{
    struct record *r;

    *out = (struct supervisor_view){ 0 };
    pthread_mutex_lock(&v->lock);
    if ((r = find_record(v, id))) {
        view_record(r, out);
        for (struct worker *w = v->workers; w; w = w->next)
            if (w->record == r) view_worker(w, out);
    }
    pthread_mutex_unlock(&v->lock);
    return r != NULL;
}

void supervisor_read_stats(struct supervisor *v, const char *id, struct engine_stats *out)
{
    struct record *r;

    pthread_mutex_lock(&v->lock);
    r = find_record(v, id);
    if (r && r->shared) engine_stats_copy(out, r->shared);
    pthread_mutex_unlock(&v->lock);
}

/* ---- steps: on the pool's thread ---- */

/* Was the model unloaded while it is being loaded? */
static bool is_unwanted(const struct worker *w, enum worker_phase wanted)
{
    return wanted <= WORKER_READY && w->m && pool_is_cancelled(w->m);
}

int worker_wait(struct worker *w, enum worker_phase wanted, struct err *e)
{
    struct supervisor *v = w->sup;
    int rc = OK;

    while (w->phase < wanted && !v->stopping && !is_unwanted(w, wanted))
        pthread_cond_wait(&v->changed, &v->lock);
    if (w->phase == WORKER_DEAD) {
        if (e) *e = w->err;
        rc = w->err.code;
    } else if (w->phase < wanted && !v->stopping) {
        rc = err_set(e, E_CANCELLED, "it was unloaded while it was being loaded");
    } else if (v->stopping) {
        rc = err_set(e, E_SHUTDOWN, "the server is shutting down");
    }
    return rc;
}

/* With the lock. */
static int check_breaker(struct supervisor *v, struct record *r, bool by_operator, struct err *e)
{
    int retry_ms = 0;

    if (v->stopping) return err_set(e, E_SHUTDOWN, "the server is shutting down");
    if (by_operator) breaker_reset(&r->breaker);
    if (breaker_allows(&r->breaker, clock_ns(), &retry_ms)) return OK;
    err_set(e, E_WORKER,
            "the process of model '%s' died %d times in a row; it is not started for %d s", r->id,
            BREAKER_DEATHS, retry_ms / 1000);
    if (e) e->retry_ms = retry_ms;
    return E_WORKER;
}

/* Without the lock: a key command may take a while. */
static int read_keys(struct supervisor *v, const struct pool_instance *m, struct keyset **keys,
                     struct err *e)
{
    int rc = OK;

    pthread_mutex_unlock(&v->lock);
    if (v->opt.read_keys) rc = v->opt.read_keys(v->opt.arg, m->id, keys, e);
    pthread_mutex_lock(&v->lock);
    return rc;
}

/* Takes keys over. */
static struct worker *add_worker(struct supervisor *v, struct pool_instance *m, struct keyset *keys,
                                 struct err *e)
{
    struct worker *w = mem_new(struct worker);
    struct record *r = w ? supervisor_record(v, m->id) : NULL;

    if (!r || check_breaker(v, r, m->by_operator, e) != OK) {
        mem_free(w);
        keyset_close(keys);
        if (!r) err_nomem(e, "a worker");
        return NULL;
    }
    *w = (struct worker){ .sup = v, .next = v->workers, .record = r, .m = m, .keys = keys };
    w->model = m->model;
    w->path = pool_path(m->model);
    w->id = m->id;
    v->workers = w;
    return w;
}

/* The first plan, or another one by the room that there is now. With the lock. */
static void ask_for_plan(struct worker *w, const struct pool_instance *m)
{
    if (w->phase == WORKER_PLANNED) w->phase = WORKER_STARTED;
    w->room = m->room;
    w->room_due = true;
    loop_wake(w->sup->opt.loop);
}

static int wait_for_plan(struct worker *w, struct pool_instance *m, struct err *e)
{
    int rc;

    m->host_data = w;
    ask_for_plan(w, m);
    if ((rc = worker_wait(w, WORKER_PLANNED, e)) == OK || !w->woken || w->sup->stopping) return rc;
    if (rc == E_CANCELLED) return rc;
    supervisor_give_up(w, e);
    m->host_data = NULL;
    *e = (struct err){ 0 };
    return OK;
}

static int plan_isolated(struct pool_instance *m, struct err *e)
{
    struct supervisor *v = supervisor_of(m);
    struct err why = { 0 };
    struct keyset *keys = NULL;
    struct worker *w;
    int rc = OK;

    if (v->opt.isolates && !v->opt.isolates(v->opt.arg, m->id)) {
        m->host = &pool_local;
        return pool_local.plan(m, e);
    }
    pthread_mutex_lock(&v->lock);
    w = m->host_data ? m->host_data : supervisor_wake(v, m);
    if (w) rc = wait_for_plan(w, m, &why);
    if (!m->host_data) { /* none has slept, or it has not woken */
        rc = read_keys(v, m, &keys, &why);
        w = rc == OK ? add_worker(v, m, keys, &why) : NULL;
        rc = w ? wait_for_plan(w, m, &why) : why.code;
    }
    if (w) {
        m->need = w->need;
        m->sizes = w->sizes;
        m->refused = w->refused;
    }
    pthread_mutex_unlock(&v->lock);
    if (e) *e = why;
    return rc;
}

static int open_isolated(struct pool_instance *m, struct err *e)
{
    struct supervisor *v = supervisor_of(m);
    struct worker *w = m->host_data;
    int rc;

    pthread_mutex_lock(&v->lock);
    if (w->phase == WORKER_PLANNED) w->phase = WORKER_ADMITTED;
    w->fill_kv = m->fill_kv;
    loop_wake(v->opt.loop);
    rc = worker_wait(w, WORKER_READY, e);
    if (rc == OK) m->info = &w->info, m->need = w->need;
    pthread_mutex_unlock(&v->lock);
    return rc;
}

/* The worker has done it before it was READY. */
static int warm_isolated(struct pool_instance *m, struct err *e)
{
    (void)m, (void)e;
    return OK;
}

static int error_of_isolated(struct pool_instance *m, struct err *e)
{
    struct supervisor *v = supervisor_of(m);
    struct worker *w = m->host_data;
    int rc = OK;

    pthread_mutex_lock(&v->lock);
    if (w && w->phase == WORKER_DEAD) {
        rc = w->err.code;
        if (e) *e = w->err;
    }
    pthread_mutex_unlock(&v->lock);
    return rc;
}

/* New calls are refused by the pool, and the API cancels those it has. */
static void drain_isolated(struct pool_instance *m) { (void)m; }

static bool is_isolated_idle(struct pool_instance *m)
{
    struct worker *w = m->host_data;

    return !w || atomic_load(&w->n_relays) == 0;
}

static uint64_t own_bytes_of_isolated(const struct pool_instance *m)
{
    struct supervisor *v = supervisor_of(m);
    const struct worker *w = m->host_data;
    pid_t pid = 0;

    pthread_mutex_lock(&v->lock);
    if (w && w->has_proc && w->phase != WORKER_DEAD) pid = w->proc.pid;
    pthread_mutex_unlock(&v->lock);
    return pid ? memavail_own(pid, "") : 0;
}

/* At the end of the server all processes have the same time. With the lock. */
static int time_to_end(const struct supervisor *v, int ms)
{
    int64_t left = v->opt.stop_ms;

    if (!v->stopping) return ms;
    left -= (int64_t)((clock_ns() - v->stop_ns) / 1000000);
    return left > 0 ? (int)left : 0;
}

/* The loop may run or not: only the process is touched. */
static void end_process(struct pool_instance *m, int ms)
{
    struct supervisor *v = supervisor_of(m);
    struct worker *w = m->host_data;
    bool has_proc;

    if (!w) return;
    pthread_mutex_lock(&v->lock);
    while (w->starting) pthread_cond_wait(&v->changed, &v->lock);
    w->expected = true;
    has_proc = w->has_proc;
    ms = time_to_end(v, ms);
    pthread_mutex_unlock(&v->lock);
    if (has_proc && !process_stop(&w->proc, ms))
        log_warn("the process of model '%s' did not end within %d ms and was killed", w->id, ms);
}

static void cancel_isolated(const struct pool_host *h)
{
    struct supervisor *v = (struct supervisor *)h;

    pthread_mutex_lock(&v->lock);
    pthread_cond_broadcast(&v->changed);
    pthread_mutex_unlock(&v->lock);
}

static void stop_isolated(struct pool_instance *m)
{
    end_process(m, supervisor_of(m)->opt.stop_ms);
}

static bool sleep_isolated(struct pool_instance *m, uint64_t park_bytes)
{
    return supervisor_sleep(supervisor_of(m), m, park_bytes);
}

static void forget_isolated(const struct pool_host *h, const char *id)
{
    supervisor_forget((struct supervisor *)h, id);
}

static uint64_t parked_bytes_isolated(const struct pool_host *h)
{
    return supervisor_parked_bytes((struct supervisor *)h);
}

static uint64_t drop_parked_isolated(const struct pool_host *h)
{
    return supervisor_drop_parked((struct supervisor *)h);
}

/* A process that has not finished its load has nothing to save. */
static int time_to_close(struct supervisor *v, const struct worker *w)
{
    bool loads;

    pthread_mutex_lock(&v->lock);
    loads = w->phase < WORKER_READY;
    pthread_mutex_unlock(&v->lock);
    return loads ? LOADING_MS : PROCESS_TERM_MS;
}

static void close_isolated(struct pool_instance *m)
{
    struct supervisor *v = supervisor_of(m);
    struct worker *w = m->host_data;

    if (!w) return;
    end_process(m, time_to_close(v, w));
    pthread_mutex_lock(&v->lock);
    w->phase = WORKER_DEAD;
    w->m = NULL;
    pthread_mutex_unlock(&v->lock);
    m->host_data = NULL;
    m->info = NULL;
    loop_wake(v->opt.loop);
}

/* ---- the loop's part ---- */

static void free_worker(struct supervisor *v, struct worker *w)
{
    struct worker **p = &v->workers;

    worker_release(w);
    pthread_mutex_lock(&v->lock);
    while (*p != w) p = &(*p)->next;
    *p = w->next;
    pthread_mutex_unlock(&v->lock);
    if (w->has_proc) process_release(&w->proc);
    keyset_close(w->keys);
    arena_release(&w->arena);
    mem_free(w);
}

static void process_worker(struct supervisor *v, struct worker *w)
{
    struct pool_instance *m;
    enum worker_phase phase;
    bool may_go;

    pthread_mutex_lock(&v->lock);
    phase = w->phase;
    m = w->m;
    may_go = !m && worker_may_go(w);
    pthread_mutex_unlock(&v->lock);
    if (!m && may_go) free_worker(v, w);
    else if (!m) return;
    else if (phase == WORKER_ASKED && w->has_proc) worker_send_wake(w);
    else if (phase == WORKER_ASKED) worker_start(w);
    else if (phase == WORKER_TIRED) worker_send_sleep(w);
    else if (phase == WORKER_STARTED) worker_send_room(w);
    else if (phase == WORKER_ADMITTED) worker_admit(w);
}

/* Others only add at the front, so the list can be followed without the lock. */
static struct worker *first_worker(struct supervisor *v)
{
    struct worker *w;

    pthread_mutex_lock(&v->lock);
    w = v->workers;
    pthread_mutex_unlock(&v->lock);
    return w;
}

void supervisor_process(struct supervisor *v)
{
    struct worker *next;

    if (!v) return;
    for (struct worker *w = first_worker(v); w; w = next) {
        next = w->next;
        process_worker(v, w);
    }
}

static void on_tick(void *arg)
{
    struct supervisor *v = arg;
    uint64_t now = clock_ns();

    loop_timer_set(v->tick, TICK_MS); /* first: it cannot fail then */
    supervisor_process(v);
    for (struct worker *w = first_worker(v); w; w = w->next) worker_look(w, now);
}

/* ---- life ---- */

static const struct pool_host steps = { .plan = plan_isolated,
                                        .open = open_isolated,
                                        .warm = warm_isolated,
                                        .error = error_of_isolated,
                                        .drain = drain_isolated,
                                        .abort = drain_isolated,
                                        .is_idle = is_isolated_idle,
                                        .stop = stop_isolated,
                                        .sleep = sleep_isolated,
                                        .close = close_isolated,
                                        .own_bytes = own_bytes_of_isolated,
                                        .cancel = cancel_isolated,
                                        .forget = forget_isolated,
                                        .parked_bytes = parked_bytes_isolated,
                                        .drop_parked = drop_parked_isolated };

int supervisor_open(struct supervisor **out, const struct supervisor_opt *opt, struct err *e)
{
    struct supervisor *v = mem_new(struct supervisor);

    if (!v) return err_nomem(e, "the supervisor of workers");
    v->host = steps;
    v->opt = *opt;
    if (!v->opt.ping_ms) v->opt.ping_ms = 500;
    if (!v->opt.silent_ms) v->opt.silent_ms = 10000;
    if (!v->opt.stop_ms) v->opt.stop_ms = STOP_MS;
    if (pthread_mutex_init(&v->lock, NULL) != 0 || pthread_cond_init(&v->changed, NULL) != 0) {
        mem_free(v);
        return err_nomem(e, "a mutex");
    }
    v->tick = loop_timer(opt->loop, on_tick, v);
    if (!v->tick || !loop_timer_set(v->tick, TICK_MS)) {
        supervisor_close(v);
        return err_nomem(e, "a timer");
    }
    *out = v;
    return OK;
}

const struct pool_host *supervisor_host(struct supervisor *v) { return &v->host; }

/* The loop does not run any more: the frame is sent at once, as far as the socket takes it. */
static void send_stop(struct worker *w)
{
    struct buf b = { 0 };

    if (!w->link || !link_is_open(w->link)) return;
    msg_write_stop(&b, &(struct msg_stop){ "shutdown" });
    if (!b.failed && link_send(w->link, FRAME_STOP, buf_str(&b))) link_flush(w->link);
    buf_release(&b);
}

void supervisor_stop(struct supervisor *v)
{
    if (!v) return;
    for (struct worker *w = first_worker(v); w; w = w->next) send_stop(w);
    pthread_mutex_lock(&v->lock);
    v->stopping = true;
    v->stop_ns = clock_ns();
    for (struct worker *w = v->workers; w; w = w->next) {
        w->expected = true;
        if (w->has_proc) process_signal(&w->proc, SIGTERM);
    }
    pthread_cond_broadcast(&v->changed);
    pthread_mutex_unlock(&v->lock);
}

void supervisor_close(struct supervisor *v)
{
    if (!v) return;
    while (v->workers) {
        worker_end_asleep(v->workers);
        free_worker(v, v->workers);
    }
    while (v->records) {
        struct record *next = v->records->next;
        if (v->records->shared) munmap(v->records->shared, sizeof *v->records->shared);
        if (v->records->shared_fd >= 0) close(v->records->shared_fd);
        mem_free(v->records->id);
        mem_free(v->records);
        v->records = next;
    }
    loop_timer_close(v->tick);
    pthread_cond_destroy(&v->changed);
    pthread_mutex_destroy(&v->lock);
    mem_free(v);
}
