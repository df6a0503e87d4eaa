/* child.c - the worker's process: wiring of loop, link, pool, API and front. See child.h.
 *
 *     pool's thread                     loop                              server
 *        (waits)     ◄────────────────── on_order ◄─────────────────────── ROOM
 *     plan the model ──────────────────► PLAN ───────────────────────────►
 *        (waits)     ◄────────────────── on_order ◄─────────────────────── ROOM, ADMIT or REFUSE
 *     load, warm up ───────────────────► PROGRESS, READY or FAILED ──────►
 *
 * The pool has a host of its own, which plans as for a model of this process, but by the memory that
 * the server's pool has for it, and then waits for the server's answer: another room, by which it plans
 * again, or the permission to load. A model that fails ends the worker: the server starts another one.
 * After SLEEP the model is unloaded, and with WAKE the same begins again. */
#include "worker/child.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/jsonw.h"
#include "base/keyring.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "engine/stats.h"
#include "net/loop.h"
#include "pool/prompter.h"
#include "worker/front.h"
#include "worker/link.h"
#include "worker/message.h"
#include "worker/process.h"
#include "worker/sandbox.h"
#include "worker/seats.h"

#include <fcntl.h>
#include <pthread.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <unistd.h>

enum {
    TICK_MS = 100,
    HARD_END_S = 5, /* SIGALRM ends the process if its threads do not */
    LEAVE_MS = 1000 /* for the loop to say why the process ends */
};

enum gate { GATE_SHUT, GATE_ROOM, GATE_ADMITTED, GATE_REFUSED, GATE_ENDED };

struct child {
    struct pool_host host; /* that of a local model, but for plan; first */
    const struct child_opt *opt;
    struct loop *loop;
    struct link *link;
    struct front *front;
    struct api *api;
    struct pool *pool;
    pthread_mutex_t lock;
    pthread_cond_t opened;
    enum gate gate;         /* under the lock, as are the next */
    struct sizes_room room; /* GATE_ROOM */
    bool fill_kv;           /* GATE_ADMITTED: see struct pool_instance */
    struct membudget need;  /* as planned */
    struct sizes sizes;
    struct err lacks;   /* the plan cannot be opened: why */
    bool plan_due;      /* PLAN is to be sent */
    struct err refused; /* why there is no room */
    atomic_bool changed;
    bool is_open;  /* the loop's: the handshake is over */
    bool reported; /* READY or FAILED */
    bool draining;
    struct pool_wait sleep, wake; /* of the pool, after SLEEP and WAKE */
    atomic_bool asleep;           /* SLEEP is done, ASLEEP is to be sent */
    struct engine_stats *shared;  /* our counters for the server; NULL: none */
    struct loop_timer *progress;
    unsigned char token[PROCESS_TOKEN];
    struct keyset *keys; /* of an encrypted model; kept, since the model may sleep and wake */
    struct sandbox_info sandbox;
    int percent;    /* last PROGRESS */
    bool gang_over; /* under the lock: the gang has ended, */
    struct err why; /* as this says */
    int rc;         /* of child_run */
    struct err err;
};

/* ---- the host: on the pool's thread ---- */

/* Waits for the server's word, and takes it. */
static enum gate wait_at_gate(struct child *c, struct pool_instance *m)
{
    enum gate gate;

    pthread_mutex_lock(&c->lock);
    while (c->gate == GATE_SHUT) pthread_cond_wait(&c->opened, &c->lock);
    if ((gate = c->gate) == GATE_ROOM) {
        m->room = c->room;
        c->gate = GATE_SHUT;
    }
    m->fill_kv = c->fill_kv;
    pthread_mutex_unlock(&c->lock);
    return gate;
}

/* Counts of earlier workers of this model. */
static void take_over_stats(struct child *c, struct pool_instance *m)
{
    if (!c->shared) return;
    engine_stats_copy(pool_stats_of(m), c->shared);
    engine_stats_clear_gauges(pool_stats_of(m));
}

static void report_plan(struct child *c, const struct pool_instance *m)
{
    pthread_mutex_lock(&c->lock);
    c->need = m->need;
    c->sizes = m->sizes;
    c->lacks = m->refused;
    c->plan_due = true;
    pthread_mutex_unlock(&c->lock);
    loop_wake(c->loop);
}

static int plan_and_ask(struct pool_instance *m, struct err *e)
{
    struct child *c = (struct child *)m->host;
    bool planned = false;
    enum gate gate;
    int rc;

    take_over_stats(c, m);
    while ((gate = wait_at_gate(c, m)) == GATE_ROOM) {
        m->refused = (struct err){ 0 };
        if ((rc = pool_local.plan(m, e)) != OK) return rc;
        planned = true;
        report_plan(c, m);
    }
    if (gate == GATE_ADMITTED && planned) return OK;
    if (gate == GATE_ADMITTED) return err_set(e, E_FORMAT, "ADMIT came before a plan");
    if (gate == GATE_ENDED) return err_set(e, E_SHUTDOWN, "the server is shutting down");
    if (e) *e = c->refused;
    return c->refused.code;
}

static void open_gate(struct child *c, enum gate gate, const struct err *why)
{
    pthread_mutex_lock(&c->lock);
    if (c->gate <= GATE_ROOM || gate == GATE_ENDED) c->gate = gate;
    if (why) c->refused = *why;
    pthread_cond_broadcast(&c->opened);
    pthread_mutex_unlock(&c->lock);
}

static void on_pool_change(void *arg)
{
    struct child *c = arg;

    atomic_store_explicit(&c->changed, true, memory_order_release);
    loop_wake(c->loop);
}

/* ---- reports: on the loop ---- */

static void send_json(struct child *c, enum frame_type type, struct buf *b)
{
    struct err e = { 0 };

    if (buf_check(b, &e) != OK) log_error("%s: %s", frame_name(type), e.msg);
    else link_send(c->link, type, buf_str(b));
    buf_release(b);
}

/* The host is the first device, a GPU the second: the pool counts no finer. */
static void fill_plan(struct msg_plan *m, const struct child *c)
{
    const struct membudget *b = &c->need;

    *m = (struct msg_plan){ .n_devices = 1,
                            .mapped_bytes = b->mapped,
                            .n_ctx = c->sizes.n_ctx,
                            .kv_tokens = c->sizes.kv_tokens,
                            .kv_given = b->kv_given,
                            .lack_bytes = b->device_lack };
    m->devices[0] =
        (struct msg_device){ "cpu", b->mapped + b->copied, b->host_kv, b->host_scratch };
    if (b->device[0])
        m->devices[m->n_devices++] =
            (struct msg_device){ b->device, b->weights - b->mapped - b->copied, b->kv - b->host_kv,
                                 b->scratch - b->host_scratch };
    if (c->lacks.code != OK) m->refused = c->lacks.msg;
}

static void send_plan(struct child *c)
{
    struct buf b = { 0 };
    struct msg_plan m;
    bool due;

    pthread_mutex_lock(&c->lock);
    if ((due = c->plan_due && c->is_open)) {
        fill_plan(&m, c);
        msg_write_plan(&b, &m);
        c->plan_due = false;
    }
    pthread_mutex_unlock(&c->lock);
    if (due) send_json(c, FRAME_PLAN, &b);
}

/* Facts that only people read. */
static void write_more(struct buf *out, const struct engine_info *i, struct str template)
{
    struct jsonw w = { .out = out };

    jsonw_obj(&w);
    jsonw_key(&w, "sizes"), jsonw_str(&w, str_c(i->sizes));
    jsonw_key(&w, "kv_tokens"), jsonw_int(&w, i->opt.kv_tokens);
    jsonw_key(&w, "kv_restored"), jsonw_int(&w, i->n_restored);
    jsonw_key(&w, "max_queue_tokens"), jsonw_int(&w, i->opt.max_queue_tokens);
    jsonw_key(&w, "kv_overcommit"), jsonw_num(&w, i->opt.kv_overcommit);
    jsonw_key(&w, "step_ms"), jsonw_int(&w, i->opt.step_ms);
    jsonw_key(&w, "stretch"), jsonw_num(&w, i->opt.stretch);
    jsonw_key(&w, "age_ms"), jsonw_int(&w, i->opt.age_ms);
    jsonw_key(&w, "no_prefix"), jsonw_bool(&w, i->opt.no_prefix);
    if (template.n) jsonw_key(&w, "chat_template"), jsonw_str(&w, template);
    if (i->n_members) jsonw_key(&w, "gang"), seats_write(&w, i, -1);
    jsonw_end(&w);
}

/* A template is left out where it makes the frame too large, or is no text of C. */
static void write_facts(struct buf *out, const struct engine_info *i, const struct prompter *p)
{
    enum { MOST = 192 << 10 }; /* of the 256 KiB of a READY frame */
    struct str template = p ? prompter_template(p, false) : STR("");

    if (template.n && memchr(template.p, 0, template.n)) template = STR("");
    write_more(out, i, template);
    if (out->n <= MOST) return;
    buf_clear(out);
    write_more(out, i, STR(""));
}

static void send_ready(struct child *c, struct pool_instance *m)
{
    struct engine_info i;
    struct buf b = { 0 }, more = { 0 };
    struct msg_ready r;

    engine_info(m->engine, &i);
    r = (struct msg_ready){ .name = i.name,
                            .arch = i.arch,
                            .task = i.task,
                            .dtype = i.dtype,
                            .devices = i.devices,
                            .kv_type = i.kv_type,
                            .n_ctx = i.opt.n_ctx,
                            .n_vocab = i.n_vocab,
                            .n_vec = i.n_vec,
                            .n_labels = i.n_labels,
                            .n_blocks = i.n_blocks,
                            .block_tokens = i.block_tokens,
                            .max_seqs = i.opt.max_seqs,
                            .max_batch = i.opt.max_batch,
                            .max_requests = i.opt.max_requests,
                            .n_threads = i.opt.n_threads,
                            .n_params = i.n_params,
                            .weight_bytes = i.weight_bytes,
                            .kv_bytes = i.kv_bytes,
                            .scratch_bytes = i.scratch_bytes,
                            .created = m->model->created,
                            .load_ms = m->load_ms,
                            .warm_ms = m->warm_ms,
                            .digest = "",
                            .sandbox = c->sandbox.text,
                            .chat = m->prompter != NULL };
    for (; r.n_devices < i.n_devices && r.n_devices < MSG_DEVICES; r.n_devices++)
        r.device[r.n_devices] =
            (struct msg_device){ i.device[r.n_devices].name, i.device[r.n_devices].weight_bytes,
                                 i.device[r.n_devices].kv_bytes,
                                 i.device[r.n_devices].scratch_bytes };
    write_facts(&more, &i, m->prompter);
    if (!more.failed) r.more = buf_str(&more);
    msg_write_ready(&b, &r);
    buf_release(&more);
    send_json(c, FRAME_READY, &b);
}

static void end_child(struct child *c, int rc, const struct err *e)
{
    if (c->rc == OK && rc != OK) {
        c->rc = rc;
        c->err = *e;
    }
    open_gate(c, GATE_ENDED, NULL);
    loop_stop(c->loop);
}

static void send_failed(struct child *c, const struct err *e)
{
    struct buf b = { 0 };

    msg_write_failure(&b, &(struct msg_failure){ err_name(e->code), e->msg, e->retry_ms });
    send_json(c, FRAME_FAILED, &b);
    link_flush(c->link);
    end_child(c, e->code, e);
}

static void report_state(struct child *c)
{
    struct pool_instance *m;
    struct err e = { 0 };

    if (!c->is_open) return;
    if (pool_state(c->pool, 0, &e) == POOL_FAILED) {
        send_failed(c, &e);
    } else if (!c->reported && (m = pool_acquire(c->pool, 0))) {
        c->reported = true;
        send_ready(c, m);
        pool_release(m);
    }
}

/* ---- sleeping ---- */

/* On the pool's thread, or on the loop if there was nothing to do. */
static void on_unloaded(struct pool_wait *w)
{
    struct child *c = w->arg;

    atomic_store_explicit(&c->asleep, true, memory_order_release);
    loop_wake(c->loop);
}

static void fall_asleep(struct child *c, const struct msg_sleep *m)
{
    pool_set_park_room(c->pool, m->park_bytes);
    c->sleep = (struct pool_wait){ .done = on_unloaded, .arg = c };
    if (pool_unload(c->pool, 0, true, &c->sleep) == POOL_NOW) on_unloaded(&c->sleep);
}

/* The next load is planned and admitted anew. */
static void report_asleep(struct child *c)
{
    struct pool_view v;
    struct buf b = { 0 };

    if (!atomic_exchange_explicit(&c->asleep, false, memory_order_acquire)) return;
    pool_view(c->pool, 0, &v);
    pthread_mutex_lock(&c->lock);
    c->plan_due = false;
    if (c->gate != GATE_ENDED) c->gate = GATE_SHUT;
    pthread_mutex_unlock(&c->lock);
    c->reported = false;
    if (c->shared) engine_stats_clear_gauges(c->shared);
    msg_write_asleep(&b, &(struct msg_asleep){ v.parked_blocks, pool_parked_bytes(c->pool) });
    send_json(c, FRAME_ASLEEP, &b);
}

/* READY or FAILED is reported as after the start. */
static void on_loaded(struct pool_wait *w) { pool_release(w->model); }

static void wake_up(struct child *c)
{
    c->wake = (struct pool_wait){ .done = on_loaded, .arg = c, .by_operator = true };
    if (pool_load(c->pool, 0, &c->wake) == POOL_NOW) on_loaded(&c->wake);
}

/* The server reads them when it is asked for them. */
static void share_stats(struct child *c)
{
    const struct engine_stats *s = pool_stats(c->pool, 0);

    if (s && c->shared) engine_stats_copy(c->shared, s);
}

/* A gang that has lost a member ends with its leader, at once: no request is told, so the server repeats
 * those that have sent nothing, on the next gang. */
static void leave_if_over(struct child *c)
{
    struct err why = { 0 };
    bool over;

    pthread_mutex_lock(&c->lock);
    if ((over = c->gang_over)) err_set(&why, E_WORKER, "%s", c->why.msg);
    pthread_mutex_unlock(&c->lock);
    if (!over) return;
    send_failed(c, &why);
    c->opt->leave();
}

/* The engine's thread ends here. */
static void on_gang_over(void *arg, const struct err *why)
{
    struct child *c = arg;

    pthread_mutex_lock(&c->lock);
    c->why = *why;
    c->gang_over = true;
    pthread_mutex_unlock(&c->lock);
    loop_wake(c->loop);
    poll(NULL, 0, LEAVE_MS);
    c->opt->leave();
}

static void on_wake(void *arg)
{
    struct child *c = arg;

    leave_if_over(c);
    api_process_events(c->api);
    share_stats(c);
    report_asleep(c);
    send_plan(c);
    if (atomic_exchange_explicit(&c->changed, false, memory_order_acquire)) report_state(c);
}

/* Also between requests: the gauges change until the last has ended. */
static void on_progress(void *arg)
{
    struct child *c = arg;
    int percent = atomic_load_explicit(&pool_at(c->pool, 0)->progress, memory_order_relaxed);
    struct buf b = { 0 };

    loop_timer_set(c->progress, TICK_MS);
    share_stats(c);
    if (c->reported || !c->is_open || percent == c->percent) return;
    c->percent = percent;
    msg_write_progress(&b, &(struct msg_progress){ "weights", percent });
    send_json(c, FRAME_PROGRESS, &b);
}

/* ---- the link ---- */

static void on_open(void *arg, struct link *l)
{
    struct child *c = arg;

    (void)l;
    c->is_open = true;
    send_plan(c);
    report_state(c);
}

static void take_room(struct child *c, const struct msg_room *m)
{
    pthread_mutex_lock(&c->lock);
    c->room = (struct sizes_room){ m->host_bytes,  m->limit_bytes, m->device_bytes,
                                   m->later_bytes, m->share,       m->share_before };
    pthread_mutex_unlock(&c->lock);
    open_gate(c, GATE_ROOM, NULL);
}

static void take_admit(struct child *c, const struct msg_admit *m)
{
    pthread_mutex_lock(&c->lock);
    c->fill_kv = m->fill_kv;
    pthread_mutex_unlock(&c->lock);
    open_gate(c, GATE_ADMITTED, NULL);
}

/* A frame that is not to be read ends the worker. */
static void on_order(struct child *c, const struct frame *f)
{
    union {
        struct msg_room room;
        struct msg_admit admit;
        struct msg_sleep sleep;
    } m;
    struct str text = frame_payload(f);
    struct arena a = { 0 };
    struct err e = { 0 };
    int rc;

    if (f->type == FRAME_ROOM) {
        if ((rc = msg_read_room(&m.room, &a, text, &e)) == OK) take_room(c, &m.room);
    } else if (f->type == FRAME_ADMIT) {
        if ((rc = msg_read_admit(&m.admit, &a, text, &e)) == OK) take_admit(c, &m.admit);
    } else {
        if ((rc = msg_read_sleep(&m.sleep, &a, text, &e)) == OK) fall_asleep(c, &m.sleep);
    }
    if (rc != OK) end_child(c, rc, &e);
    arena_release(&a);
}

static void on_refuse(struct child *c, const struct frame *f)
{
    struct msg_failure m = { .message = "" };
    struct arena a = { 0 };
    struct err e = { 0 }, why = { 0 };

    if (msg_read_failure(&m, &a, frame_payload(f), &e) != OK) m.message = e.msg;
    err_set(&why, E_MEMORY, "%s", m.message);
    open_gate(c, GATE_REFUSED, &why);
    arena_release(&a);
}

static void drain(struct child *c)
{
    c->draining = true;
    if (front_n(c->front) == 0) end_child(c, OK, NULL);
}

static void on_frame(void *arg, struct link *l, struct link_stream *s, const struct frame *f)
{
    struct child *c = arg;

    (void)l;
    if (s) {
        front_frame(c->front, s, f);
        return;
    }
    switch (f->type) {
    case FRAME_ROOM:
    case FRAME_ADMIT:
    case FRAME_SLEEP: on_order(c, f); break;
    case FRAME_REFUSE: on_refuse(c, f); break;
    case FRAME_STOP: end_child(c, OK, NULL); break;
    case FRAME_WAKE: wake_up(c); break;
    default: break;
    }
}

static void on_writable(void *arg, struct link_stream *s)
{
    (void)arg;
    front_writable(s);
}

/* The server has ended, or has given this worker up. */
static void on_closed(void *arg, struct link *l, enum link_why why, const struct err *e)
{
    struct child *c = arg;

    (void)l;
    if (why != LINK_CLOSED && why != LINK_RESET) log_error("link to the server: %s", e->msg);
    front_cut_off(c->front);
    end_child(c, OK, NULL);
}

static void fill_beat(void *arg, struct msg_beat *out)
{
    struct child *c = arg;
    const struct engine_stats *s = pool_stats(c->pool, 0);
    int64_t begin = s ? gauge_get(&s->step_begin_ns) : 0;
    struct pool_instance *m;

    out->calls = front_n(c->front);
    if (!s) return;
    out->steps = counter_get(&s->steps);
    out->running = gauge_get(&s->running);
    out->waiting = gauge_get(&s->waiting);
    out->step_ms = begin ? (int64_t)clock_ms_since((uint64_t)begin) : 0;
    if ((m = pool_acquire(c->pool, 0))) out->admitted = engine_n_admitted(m->engine);
    pool_release(m);
}

static void on_idle(void *arg)
{
    struct child *c = arg;

    if (c->draining) end_child(c, OK, NULL);
}

static void on_term(void *arg) { drain(arg); }

/* ---- life ---- */

static int open_link(struct child *c, struct err *e)
{
    struct link_opt o = { .loop = c->loop,
                          .fd = c->opt->fd,
                          .role = FRAME_WORKER,
                          .token = str_of((char *)c->token, sizeof c->token),
                          .build = c->opt->build,
                          .name = c->opt->pool.aliases ? c->opt->pool.aliases[0] : NULL,
                          .check_peer = true,
                          .ping_ms = c->opt->ping_ms,
                          .silent_ms = c->opt->silent_ms,
                          .opened = on_open,
                          .frame = on_frame,
                          .writable = on_writable,
                          .closed = on_closed,
                          .beat = fill_beat,
                          .arg = c };
    int rc;

    fcntl(c->opt->fd, F_SETFL, O_NONBLOCK);
    fcntl(c->opt->fd, F_SETFD, FD_CLOEXEC);
    rc = link_open(&c->link, &o, e);
    explicit_bzero(c->token, sizeof c->token);
    return rc;
}

static int open_pool(struct child *c, struct err *e)
{
    struct pool_opt o = c->opt->pool;

    c->host = pool_local;
    c->host.plan = plan_and_ask;
    o.engine.gang.over = c->opt->leave ? on_gang_over : NULL;
    o.engine.gang.over_arg = c;
    o.host = &c->host;
    o.memory_limit = 0; /* the server has decided */
    o.changed = on_pool_change;
    o.arg = c;
    return pool_open(&c->pool, &o, e);
}

static int open_api(struct child *c, struct err *e)
{
    struct api_opt o = c->opt->api;
    int rc;

    o.loop = c->loop;
    o.pool = c->pool;
    o.ended = front_ended;
    o.failed = NULL;
    o.forward = NULL;
    o.one_model = true; /* the server has looked the name up */
    o.arg = c;
    if ((rc = api_open(&c->api, &o, e)) == OK) front_set_api(c->front, c->api);
    return rc;
}

/* Before any other thread starts. The parser of the model's file runs inside. */
static int confine(struct child *c, struct err *e)
{
    const struct pool_opt *p = &c->opt->pool;
    const char *read[] = { p->chat_template };
    struct sandbox_opt o = { .model = p->paths[0],
                             .read = read,
                             .n_read = p->chat_template && *p->chat_template,
                             .gpu = p->engine.device && strcmp(p->engine.device, "cpu") != 0,
                             .parent = getppid() };

    if (c->opt->no_sandbox || p->engine.gang.open) { /* who starts processes cannot be confined */
        snprintf(c->sandbox.text, sizeof c->sandbox.text, "off");
        return OK;
    }
    return sandbox_enter(&o, &c->sandbox, e);
}

/* Before the sandbox: libcrypto reads its settings when it is first used. */
static int read_secrets(struct child *c, struct err *e)
{
    const char *manifest = c->opt->pool.engine.verify_manifest;
    bool sums = manifest && strcmp(manifest, "off") != 0;
    int rc = process_read_token(c->opt->fd, c->token, e);

    if (rc == OK) rc = process_read_keys(c->opt->fd, &c->keys, e);
    if (rc == OK && (c->keys || sums)) rc = crypto_open(e);
    keyset_join(c->keys);
    return rc;
}

static int child_open(struct child *c, struct err *e)
{
    struct front_opt f = { .max_body_bytes = c->opt->max_body_bytes,
                           .max_unread_bytes = c->opt->max_unread_bytes,
                           .idle = on_idle,
                           .arg = c };
    int rc;

    c->shared = process_map_shared(sizeof *c->shared);
    if ((rc = read_secrets(c, e)) != OK) return rc;
    if ((rc = confine(c, e)) != OK) return rc;
    if ((rc = loop_open(&c->loop, e)) != OK) return rc;
    rc = loop_on_signal(c->loop, c->opt->end_signal ? c->opt->end_signal : SIGTERM, on_term, c, e);
    if (rc != OK) return rc;
    if (!(c->front = front_open(&f)) || !(c->progress = loop_timer(c->loop, on_progress, c)))
        return err_nomem(e, "the worker");
    if ((rc = open_link(c, e)) != OK) return rc;
    if ((rc = open_pool(c, e)) != OK) return rc;
    if ((rc = open_api(c, e)) != OK) return rc;
    loop_on_wake(c->loop, on_wake, c);
    return loop_timer_set(c->progress, TICK_MS) ? OK : err_nomem(e, "a timer");
}

/* Every part may be NULL. */
static void child_close(struct child *c)
{
    open_gate(c, GATE_ENDED, NULL);
    alarm(HARD_END_S);
    if (c->pool) pool_abort(c->pool), pool_stop(c->pool);
    api_close(c->api);
    pool_close(c->pool);
    if (c->front) front_cut_off(c->front);
    link_close(c->link);
    front_close(c->front);
    loop_timer_close(c->progress);
    loop_close(c->loop);
    keyset_close(c->keys);
    pthread_cond_destroy(&c->opened);
    pthread_mutex_destroy(&c->lock);
    alarm(0);
}

/* A worker does not outlive its server, and leaves it to the server what Ctrl-C means. */
static void tie_to_parent(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
}

int child_run(const struct child_opt *opt, struct err *e)
{
    struct child c = { .opt = opt };
    int rc;

    tie_to_parent();
    if (pthread_mutex_init(&c.lock, NULL) != 0) return err_nomem(e, "a mutex");
    if (pthread_cond_init(&c.opened, NULL) != 0) {
        pthread_mutex_destroy(&c.lock);
        return err_nomem(e, "a condition");
    }
    if ((rc = child_open(&c, e)) == OK) {
        on_wake(&c);
        loop_run(c.loop);
        rc = c.rc;
        *e = c.err;
    }
    child_close(&c);
    return rc;
}
