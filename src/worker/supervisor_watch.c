/* supervisor_watch.c - one worker process, from its start to its death, on the loop.
 *
 * A worker is dead when its link has ended and its process has: the link is read to its end, since
 * its last frames may say why. A process that stays alive without its link is killed after CUT_MS. */
#include "worker/supervisor_impl.h"

#include "base/clock.h"
#include "base/jsonr.h"
#include "base/keyring.h"
#include "base/log.h"
#include "engine/stats.h"
#include "net/loop.h"
#include "worker/seats.h"

#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    CUT_MS = 1000,  /* a process may live for so long without its link */
    FLAGS_MAX = 240 /* of one worker */
};

/* ---- death ---- */

static int kind_of_death(struct worker *w)
{
    if (w->hung) return SUPERVISOR_HUNG;
    return w->has_proc ? (int)process_end(&w->proc) : PROCESS_FAILED;
}

/* Why the model is not there any more, for its clients and for the log. */
static void explain_death(struct worker *w, struct err *e)
{
    char how[100] = "could not be started";

    if (w->has_proc) process_describe(&w->proc, how, sizeof how);
    if (w->cause.code != OK) *e = w->cause;
    else if (w->hung)
        err_set(e, E_WORKER, "the process of model '%s' (pid %d) did not react and was killed",
                w->id, (int)w->proc.pid);
    else
        err_set(e, E_WORKER, "the process of model '%s' (pid %d) %s", w->id,
                w->has_proc ? (int)w->proc.pid : 0, how);
}

/* The pool hears of it, and whoever waits for a step. */
static void worker_die(struct worker *w)
{
    struct supervisor *v = w->sup;
    struct pool *pool = NULL;
    struct err why = { 0 };
    bool expected;

    explain_death(w, &why);
    pthread_mutex_lock(&v->lock);
    expected = w->expected;
    if (w->phase != WORKER_DEAD) {
        w->phase = WORKER_DEAD;
        w->err = why;
        if (w->record->shared) engine_stats_clear_gauges(w->record->shared);
        if (w->m) pool = w->m->pool;
        if (!expected) {
            w->record->last_death = kind_of_death(w);
            w->record->deaths[w->record->last_death]++;
            if (w->cause.code == OK || w->cause.code == E_WORKER || w->hung)
                breaker_note_death(&w->record->breaker, clock_ns());
        }
    }
    pthread_cond_broadcast(&v->changed);
    if (pool) pool_wake(pool); /* with the lock: close_isolated cannot free the pool meanwhile */
    pthread_mutex_unlock(&v->lock);
    if (expected) log_debug("%s", why.msg);
    else log_error("%s", why.msg);
}

static void die_if_over(struct worker *w)
{
    if (w->link_closed && w->seen_end) worker_die(w);
}

static void on_exited(evutil_socket_t fd, short what, void *arg)
{
    struct worker *w = arg;

    (void)fd, (void)what;
    if (w->seen_end || !process_reap(&w->proc)) return;
    w->seen_end = true;
    if (w->exited) event_del(w->exited);
    die_if_over(w);
}

static void kill_hung(struct worker *w, const char *why)
{
    log_error("the process of model '%s' (pid %d) is killed: %s", w->id, (int)w->proc.pid, why);
    w->hung = true;
    process_signal(&w->proc, SIGKILL);
}

/* ---- the link ---- */

/* The worker's PLAN follows. */
static void on_opened(void *arg, struct link *l)
{
    (void)l;
    worker_send_room(arg);
}

static void on_lost(void *arg, struct link_stream *s, enum link_why why)
{
    (void)why;
    relay_lost(arg, s);
}

static void on_closed(void *arg, struct link *l, enum link_why why, const struct err *e)
{
    struct worker *w = arg;

    (void)l;
    w->link_closed = true;
    w->cut_ns = clock_ns();
    if (why == LINK_SILENT || why == LINK_HANDSHAKE || why == LINK_OVERFLOW) {
        kill_hung(w, e->msg);
    } else if (why != LINK_CLOSED && why != LINK_RESET) {
        log_error("link to the process of model '%s': %s", w->id, e->msg);
        process_signal(&w->proc, SIGKILL);
    }
    on_exited(-1, 0, w);
    die_if_over(w);
}

void worker_set_phase(struct worker *w, enum worker_phase phase)
{
    pthread_mutex_lock(&w->sup->lock);
    if (w->phase < phase) w->phase = phase;
    pthread_cond_broadcast(&w->sup->changed);
    pthread_mutex_unlock(&w->sup->lock);
}

enum worker_phase worker_phase(struct worker *w)
{
    enum worker_phase phase;

    pthread_mutex_lock(&w->sup->lock);
    phase = w->phase;
    pthread_mutex_unlock(&w->sup->lock);
    return phase;
}

void worker_expect(struct worker *w)
{
    w->loads = true;
    w->moved_ns = clock_ns();
}

/* A frame that says nothing sensible, or comes at the wrong time: the worker is not trusted any more. */
void worker_refuse_frame(struct worker *w, const struct frame *f, const struct err *e)
{
    if (e->code != OK) w->cause = *e;
    else
        err_set(&w->cause, E_WORKER, "the process of model '%s' sent %s at the wrong time", w->id,
                frame_name(f->type));
    process_signal(&w->proc, SIGKILL);
}

/* A number of a process that may be hostile: sums of such do not overflow. */
static uint64_t sane(uint64_t bytes)
{
    const uint64_t most = UINT64_C(1) << 56;

    return bytes < most ? bytes : most;
}

/* The first device is the host, the second one a GPU. */
static struct membudget need_of(const struct msg_plan *m)
{
    struct membudget need = { .kv_given = m->kv_given };

    for (int i = 0; i < m->n_devices; i++) {
        need.weights += sane(m->devices[i].weight_bytes);
        need.kv += sane(m->devices[i].kv_bytes);
        need.scratch += sane(m->devices[i].scratch_bytes);
    }
    if (m->n_devices > 0) {
        uint64_t weights = sane(m->devices[0].weight_bytes);
        need.mapped = m->mapped_bytes < weights ? m->mapped_bytes : weights;
        need.copied = weights - need.mapped;
        need.host_kv = sane(m->devices[0].kv_bytes);
        need.host_scratch = sane(m->devices[0].scratch_bytes);
    }
    if (m->n_devices > 1) {
        snprintf(need.device, sizeof need.device, "%s", m->devices[1].name);
        need.device_lack = sane(m->lack_bytes);
    }
    return need;
}

static void on_plan(struct worker *w, const struct frame *f)
{
    struct msg_plan m = { 0 };
    struct arena a = { 0 };
    struct err e = { 0 };

    if (worker_phase(w) != WORKER_STARTED || msg_read_plan(&m, &a, frame_payload(f), &e) != OK) {
        arena_release(&a);
        worker_refuse_frame(w, f, &e);
        return;
    }
    pthread_mutex_lock(&w->sup->lock);
    w->woken = false;
    w->need = need_of(&m);
    w->sizes = (struct sizes){ .n_ctx = (int)m.n_ctx, .kv_tokens = (int)m.kv_tokens };
    w->refused = (struct err){ 0 };
    if (m.refused[0]) err_set(&w->refused, E_DEVICE_MEMORY, "%s", m.refused);
    pthread_mutex_unlock(&w->sup->lock);
    arena_release(&a);
    w->loads = false;
    worker_set_phase(w, WORKER_PLANNED);
}

static void on_progress(struct worker *w, const struct frame *f)
{
    struct msg_progress m = { 0 };
    struct arena a = { 0 };

    if (msg_read_progress(&m, &a, frame_payload(f), NULL) == OK && m.percent <= 100) {
        if (m.percent > w->percent) w->moved_ns = clock_ns();
        w->percent = (int)m.percent;
        pthread_mutex_lock(&w->sup->lock);
        if (w->m) pool_set_progress(w->m, w->percent);
        pthread_mutex_unlock(&w->sup->lock);
    }
    arena_release(&a);
}

/* A number of a worker, which may say anything. */
static int int_of(int64_t v) { return v < 0 ? 0 : v > INT32_MAX ? INT32_MAX : (int)v; }

/* The facts of the model as if its engine were here. The texts live in the worker's arena. */
static void fill_info(struct engine_info *i, const struct msg_ready *r)
{
    *i = (struct engine_info){ .name = r->name,
                               .arch = r->arch,
                               .task = r->task,
                               .dtype = r->dtype,
                               .devices = r->devices,
                               .kv_type = r->kv_type,
                               .n_vocab = int_of(r->n_vocab),
                               .n_vec = int_of(r->n_vec),
                               .n_params = r->n_params,
                               .n_blocks = int_of(r->n_blocks),
                               .block_tokens = int_of(r->block_tokens),
                               .weight_bytes = r->weight_bytes,
                               .kv_bytes = r->kv_bytes,
                               .scratch_bytes = r->scratch_bytes,
                               .open_ms = r->load_ms };
    i->opt.n_ctx = int_of(r->n_ctx);
    i->opt.max_seqs = int_of(r->max_seqs);
    i->opt.max_batch = int_of(r->max_batch);
    i->opt.max_requests = int_of(r->max_requests);
    i->opt.n_threads = int_of(r->n_threads);
    for (; i->n_devices < r->n_devices && i->n_devices < ENGINE_DEVICES; i->n_devices++) {
        const struct msg_device *d = &r->device[i->n_devices];
        i->device[i->n_devices] = (struct engine_device){ .name = d->name,
                                                          .detail = "",
                                                          .counts = true,
                                                          .weight_bytes = d->weight_bytes,
                                                          .kv_bytes = d->kv_bytes,
                                                          .scratch_bytes = d->scratch_bytes };
    }
}

static void add_more(struct worker *w, struct str more)
{
    json_t *root = more.n ? jsonr_load(more, 0, NULL) : NULL;
    const char *sizes = json_string_value(json_object_get(root, "sizes"));
    const char *template = json_string_value(json_object_get(root, "chat_template"));
    struct engine_opt *o = &w->info.opt;

    w->info.chat_template = template ? arena_cstr(&w->arena, str_c(template)) : NULL;
    w->info.sizes = sizes ? arena_cstr(&w->arena, str_c(sizes)) : NULL;
    if (!w->info.sizes) w->info.sizes = "";
    o->kv_tokens = int_of(json_integer_value(json_object_get(root, "kv_tokens")));
    w->info.n_restored = int_of(json_integer_value(json_object_get(root, "kv_restored")));
    o->max_queue_tokens = int_of(json_integer_value(json_object_get(root, "max_queue_tokens")));
    o->kv_overcommit = json_number_value(json_object_get(root, "kv_overcommit"));
    o->step_ms = int_of(json_integer_value(json_object_get(root, "step_ms")));
    o->stretch = json_number_value(json_object_get(root, "stretch"));
    o->age_ms = int_of(json_integer_value(json_object_get(root, "age_ms")));
    o->no_prefix = json_is_true(json_object_get(root, "no_prefix"));
    seats_read(json_object_get(root, "gang"), &w->arena, &w->info);
    json_decref(root);
}

static void on_ready(struct worker *w, const struct frame *f)
{
    struct msg_ready m = { 0 };
    struct err e = { 0 };

    if (worker_phase(w) != WORKER_LOADING ||
        msg_read_ready(&m, &w->arena, frame_payload(f), &e) != OK) {
        worker_refuse_frame(w, f, &e);
        return;
    }
    fill_info(&w->info, &m);
    add_more(w, m.more);
    pthread_mutex_lock(&w->sup->lock); /* a GPU's backend may have taken more than planned */
    if (sane(m.scratch_bytes) > w->need.scratch) w->need.scratch = sane(m.scratch_bytes);
    pthread_mutex_unlock(&w->sup->lock);
    w->load_ms = m.load_ms;
    w->warm_ms = m.warm_ms;
    w->loads = false;
    worker_set_phase(w, WORKER_READY);
}

/* The worker ends by itself afterwards. */
static void on_failed(struct worker *w, const struct frame *f)
{
    struct msg_failure m = { .message = "" };
    struct arena a = { 0 };
    struct err e = { 0 };

    if (msg_read_failure(&m, &a, frame_payload(f), &e) == OK) {
        w->cause = (struct err){ .retry_ms = (int)m.retry_ms };
        err_set(&w->cause, err_by_name(m.code), "%s", m.message);
    } else {
        w->cause = e;
    }
    arena_release(&a);
}

static void on_frame(void *arg, struct link *l, struct link_stream *s, const struct frame *f)
{
    struct worker *w = arg;

    (void)l;
    if (s) {
        relay_frame(s, f);
        return;
    }
    switch (f->type) {
    case FRAME_PLAN: on_plan(w, f); break;
    case FRAME_PROGRESS: on_progress(w, f); break;
    case FRAME_READY: on_ready(w, f); break;
    case FRAME_FAILED: on_failed(w, f); break;
    case FRAME_ASLEEP: worker_on_asleep(w, f); break;
    default: break;
    }
}

static void on_writable(void *arg, struct link_stream *s)
{
    (void)arg;
    relay_writable(s);
}

static void on_heard(void *arg, struct link *l, const struct msg_beat *beat)
{
    struct worker *w = arg;
    int hang_ms = w->sup->opt.hang_ms;

    (void)l;
    w->beat = *beat;
    w->beat_ns = clock_ns();
    w->n_ended = 0;
    if (hang_ms > 0 && beat->step_ms > hang_ms && !w->hung)
        kill_hung(w, "its engine does not finish a step");
}

/* ---- start ---- */

/* A start after a death is a restart; one after an unload is not. With the lock. */
static void note_start(struct record *r)
{
    r->starts++;
    if (r->last_death) r->restarts[r->last_death]++;
    r->last_death = 0;
    breaker_note_start(&r->breaker, clock_ns());
}

/* "tern: model" is what ps shows. */
static int start_process(struct worker *w, int *fd, unsigned char token[PROCESS_TOKEN],
                         struct err *e)
{
    const struct supervisor_opt *o = &w->sup->opt;
    const char *argv[FLAGS_MAX + 12] = { "tern", "worker", "--fd",    "3",
                                         "--id", w->id,    "--model", w->path };
    struct arena own = { 0 };
    int n = 8, rc, park;

    if (o->n_flags > FLAGS_MAX / 2) return err_set(e, E_INTERNAL, "too many flags of a worker");
    for (int i = 0; i < o->n_flags; i++) argv[n++] = o->flags[i];
    if (o->add_flags) n += o->add_flags(o->arg, w->id, &own, argv + n, FLAGS_MAX - n);
    argv[n] = NULL;
    park = o->open_park ? o->open_park(o->arg, w->id, w->path) : -1;
    rc = own.failed ? err_nomem(e, "the flags of a worker")
                    : process_start(&w->proc, (char *const *)argv, w->record->shared_fd, park, fd,
                                    token, w->keys, e);
    keyset_close(w->keys); /* they are in the socket, and only there */
    w->keys = NULL;
    if (park >= 0) close(park);
    arena_release(&own);
    if (rc != OK) return rc;
    pthread_mutex_lock(&w->sup->lock);
    w->has_proc = true;
    note_start(w->record);
    pthread_mutex_unlock(&w->sup->lock);
    log_info("model '%s' runs in process %d", w->id, (int)w->proc.pid);
    return OK;
}

static int open_link(struct worker *w, int fd, struct str token, struct err *e)
{
    const struct supervisor_opt *o = &w->sup->opt;
    struct link_opt lo = { .loop = o->loop,
                           .fd = fd,
                           .role = FRAME_SERVER,
                           .token = token,
                           .build = o->build,
                           .name = w->id,
                           .check_peer = true,
                           .ping_ms = o->ping_ms,
                           .silent_ms = o->silent_ms,
                           .opened = on_opened,
                           .frame = on_frame,
                           .writable = on_writable,
                           .lost = on_lost,
                           .closed = on_closed,
                           .heard = on_heard,
                           .arg = w };
    int rc = link_open(&w->link, &lo, e);

    if (rc != OK) return rc;
    w->exited = event_new(loop_base(o->loop), w->proc.pidfd, EV_READ | EV_PERSIST, on_exited, w);
    if (!w->exited || event_add(w->exited, NULL) != 0) return err_nomem(e, "an event");
    return OK;
}

/* false: the load was cancelled before. */
static bool begin_start(struct worker *w)
{
    pthread_mutex_lock(&w->sup->lock);
    if ((w->starting = w->m && w->phase == WORKER_ASKED)) w->phase = WORKER_STARTED;
    pthread_mutex_unlock(&w->sup->lock);
    return w->starting;
}

static void end_start(struct worker *w)
{
    pthread_mutex_lock(&w->sup->lock);
    w->starting = false;
    pthread_cond_broadcast(&w->sup->changed);
    pthread_mutex_unlock(&w->sup->lock);
}

static void start(struct worker *w)
{
    unsigned char token[PROCESS_TOKEN];
    struct err e = { 0 };
    int fd;

    if (start_process(w, &fd, token, &e) != OK) {
        w->cause = e;
        worker_die(w);
        return;
    }
    if (open_link(w, fd, str_of((char *)token, sizeof token), &e) != OK) {
        w->cause = e;
        w->link_closed = true;
        w->cut_ns = clock_ns();
        process_signal(&w->proc, SIGKILL); /* worker_look notices its end */
    }
    explicit_bzero(token, sizeof token);
}

void worker_start(struct worker *w)
{
    if (!begin_start(w)) return;
    worker_expect(w);
    start(w);
    end_start(w);
}

void worker_send_room(struct worker *w)
{
    struct buf b = { 0 };
    struct sizes_room r;
    bool due = w->link && link_is_open(w->link);

    pthread_mutex_lock(&w->sup->lock);
    if ((due = due && w->room_due)) w->room_due = false;
    r = w->room;
    pthread_mutex_unlock(&w->sup->lock);
    if (!due) return;
    worker_expect(w);
    msg_write_room(&b, &(struct msg_room){ r.host_bytes, r.limit_bytes, r.device_bytes,
                                           r.later_bytes, r.share, r.share_before });
    if (b.failed || !link_send(w->link, FRAME_ROOM, buf_str(&b))) process_signal(&w->proc, SIGKILL);
    buf_release(&b);
}

void worker_admit(struct worker *w)
{
    struct buf b = { 0 };
    bool fill_kv;

    worker_set_phase(w, WORKER_LOADING);
    worker_expect(w);
    pthread_mutex_lock(&w->sup->lock);
    fill_kv = w->fill_kv;
    pthread_mutex_unlock(&w->sup->lock);
    msg_write_admit(&b, &(struct msg_admit){ .fill_kv = fill_kv });
    if (b.failed || !w->link || !link_send(w->link, FRAME_ADMIT, buf_str(&b)))
        process_signal(&w->proc, SIGKILL);
    buf_release(&b);
}

/* It answers heartbeats, and does not do its work. */
static void look_for_hang(struct worker *w, uint64_t now)
{
    const struct supervisor_opt *o = &w->sup->opt;

    if (w->hung || w->link_closed) return;
    if (w->loads && o->load_ms > 0 && now > w->moved_ns + (uint64_t)o->load_ms * 1000000) {
        err_set(&w->cause, E_WORKER,
                "the process of model '%s' (pid %d) made no progress for %.1f s while it loaded, "
                "and was killed (load-timeout)",
                w->id, (int)w->proc.pid, o->load_ms / 1e3);
        kill_hung(w, "its load makes no progress");
    } else if (o->hang_ms > 0 && relay_is_stuck(w, now, o->hang_ms)) {
        kill_hung(w, "a cancelled request does not end");
    }
}

void worker_look(struct worker *w, uint64_t now)
{
    if (!w->has_proc || w->seen_end) return;
    if (process_reap(&w->proc)) {
        if (w->exited) on_exited(-1, 0, w);
        else w->seen_end = true, die_if_over(w);
    } else if (w->link_closed && now - w->cut_ns > (uint64_t)CUT_MS * 1000000) {
        process_signal(&w->proc, SIGKILL);
    } else {
        look_for_hang(w, now);
    }
}

/* The counts of the link go on in those of the model. */
static void keep_counts(struct worker *w)
{
    struct link_stats s;

    if (!w->link) return;
    link_stats(w->link, &s);
    pthread_mutex_lock(&w->sup->lock);
    w->record->requests += s.streams;
    w->record->connections += s.streams > 0;
    pthread_mutex_unlock(&w->sup->lock);
}

void worker_release(struct worker *w)
{
    keep_counts(w);
    if (w->exited) event_free(w->exited);
    relay_free_all(w);
    link_close(w->link);
    w->exited = NULL;
    w->link = NULL;
}
