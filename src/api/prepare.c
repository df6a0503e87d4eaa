/* prepare.c - the request threads: everything whose cost depends on a client's bytes is done there,
 * so that the loop only moves bytes.
 *
 *     loop                                    request thread
 *     call_begin ─► call_hand_over ═════════► run_job: job.work
 *                                               parse, params, model, template, tokens
 *     take_back: job.then, or an error ◄═════ ready list, loop_wake
 *
 * Ownership: from call_hand_over until take_back the call is `away`. Only the request thread
 * touches its arena, params, prompts, requests and `out` then; the loop reads what was set before
 * (api, q, who, id, route, times) and may set `work.stop`. The loop neither answers nor frees a call
 * that is away: a call that must end (its client is gone, its deadline has passed, it is cancelled,
 * the server stops) is taken out of the queue, or asked to stop and answered when it is back. The
 * thread looks at `stop` between its phases and inside the long ones (call_check_stop). http_*
 * functions belong to the loop; the body and the headers are borrowed before, and stay valid since
 * the HTTP request is not ended meanwhile.
 *
 * A call whose model is not loaded comes back with c->cold, and waits in the pool (c->waits): it stays
 * away, but no thread has it. The pool's thread puts it into the ready list, with the model or an
 * error, and the loop gives it to a request thread again, which goes on with the parsed body.
 *
 * There are two lanes with threads of their own: one for small bodies, and one with a lower
 * priority for large ones. A small request thus never waits for a large one, and the compute threads
 * of the engines lose little to them. In each lane tenants take turns (base/workers.h). A tenant that
 * keeps sending large bodies has them read by a thread of still lower priority (base/credit.h). */
#include "api/call.h"

#include "api/dialect.h"
#include "api/fail.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "net/http.h"
#include "net/loop.h"

enum {
    SMALL_BODY = 32 << 10, /* bytes; up to here the first lane */
    LARGE_NICE = 5,        /* of the threads of the second lane */
    SWEEP_MS = 20,         /* interval of looking for deadlines that have passed */
    UNKNOWN_FIELDS = 256   /* names that are remembered as logged */
};

/* ---- on a request thread ---- */

static struct call *call_of(struct work *w)
{
    return (struct call *)((char *)w - offsetof(struct call, work));
}

bool call_is_stopped(const struct call *c)
{
    return atomic_load_explicit(&c->work.stop, memory_order_relaxed) != STOP_NO;
}

int call_check_stop(const struct call *c, struct err *e)
{
    if (call_is_stopped(c)) return err_set(e, E_CANCELLED, "the request ended early");
    if (c->deadline_ns && clock_ns() >= c->deadline_ns)
        return err_set(e, E_DEADLINE, "the deadline passed before the request could run");
    return OK;
}

int call_note_item(struct call *c, struct err *e)
{
    return ++c->n_items % CALL_ITEMS_PER_LOOK ? OK : call_check_stop(c, e);
}

/* Gives the call back to the loop; nothing of it may be touched after that. */
static void put_ready(struct call *c)
{
    struct api *a = c->api;
    struct loop *loop = a->opt.loop;

    pthread_mutex_lock(&a->ready_lock);
    if (a->ready_last) a->ready_last->next_ready = c;
    else a->ready = c;
    a->ready_last = c;
    pthread_mutex_unlock(&a->ready_lock);
    loop_wake(loop);
}

/* The parsed body is freed here: that of a large one takes as long as parsing it. */
static void run_job(struct work *w)
{
    struct call *c = call_of(w);

    c->job_rc = call_check_stop(c, &c->job_err);
    if (c->job_rc == OK) c->job_rc = call_find_durable(c, &c->job_err);
    if (c->kept) {
        put_ready(c);
        return;
    }
    if (c->job_rc == OK && !forward_claims(c)) c->job_rc = c->job->work(c, &c->job_err);
    if (c->fw.on) c->job_rc = OK;                 /* the rest is done by another process */
    if (c->job_rc == E_LOADING && c->cold >= 0) { /* the body is read on when the model is there */
        put_ready(c);
        return;
    }
    if (c->job_rc != OK) c->p.tools = NULL, c->p.echo = false;
    params_drop_body(&c->p);
    put_ready(c);
}

/* ---- handing over ---- */

int call_hand_over(struct call *c, const struct call_job *job, size_t bytes, bool bounded,
                   struct err *e)
{
    struct api *a = c->api;
    struct workers *lane = a->lanes[bytes > SMALL_BODY];
    int rc;

    if (!lane) return err_set(e, E_SHUTDOWN, "the server is shutting down");
    c->job = job;
    c->next_ready = NULL;
    c->job_err = (struct err){ 0 };
    c->work.run = run_job;
    c->work.group = c->who.tenant;
    c->work.bytes = bytes;
    c->lane = lane;
    c->away = true;
    rc = bounded ? workers_add(lane, &c->work, e) : workers_add_always(lane, &c->work, e);
    if (rc != OK) {
        c->away = false;
        return rc;
    }
    /* Without memory for the timer the thread alone looks at the deadline, before it begins. */
    if (a->n_away++ == 0) loop_timer_set(a->sweep, SWEEP_MS);
    return OK;
}

enum { HINTS_MAX = 4 }; /* of one request */

/* X-Tern-Hint: names of models that will be needed soon, separated by commas. Others are ignored. */
static void take_hints(struct call *c)
{
    struct str rest = http_header(c->q, "x-tern-hint");
    struct pool *p = c->api->opt.pool;

    for (int n = 0; rest.n && n < HINTS_MAX; n++) {
        ptrdiff_t comma = str_find(rest, STR(","));
        struct str name = str_trim(comma < 0 ? rest : str_take(rest, (size_t)comma));
        int i = name.n ? pool_index(p, name) : -1;
        if (i >= 0) pool_hint(p, i);
        rest = comma < 0 ? STR("") : str_skip(rest, (size_t)comma + 1);
    }
}

/* The deadline of the headers is known before the body is read; its errors are reported after. */
void call_begin_as(struct api *a, struct http_req *q, const struct api_who *who, const char *route,
                   const struct call_job *job, const struct dialect *d)
{
    struct call *c = call_open(a, q, who, route);
    struct err e = { 0 };

    if (!c) return;
    c->dialect = d;
    if (c->dialect->id_prefix && !who->id) call_make_id(c, c->dialect->id_prefix);
    call_borrow_request(c);
    c->p.stop = &c->work.stop;
    take_hints(c);
    if (call_hand_over(c, job, c->body.n, true, &e) != OK) call_fail(c, &e, NULL);
    call_end_handler(c);
}

void call_begin(struct api *a, struct http_req *q, const struct api_who *who, const char *route,
                const struct call_job *job)
{
    call_begin_as(a, q, who, route, job, &dialect_openai);
}

/* ---- taking back ---- */

static void log_field(struct str name)
{
    log_debug("the field '%.*s' of a request body is unknown and has no effect", STR_ARG(name));
}

static void log_skipped(struct str type)
{
    log_info("tools and items of type '%.*s' are skipped: this server does not run them",
             STR_ARG(type));
}

/* A name that was not seen before is logged; a client may send any number of them. */
static void log_names(struct api *a, struct str names, void (*log)(struct str name))
{
    while (names.n) {
        ptrdiff_t comma = str_find(names, STR(", "));
        struct str name = comma < 0 ? names : str_take(names, (size_t)comma);
        names = comma < 0 ? STR("") : str_skip(names, (size_t)comma + 2);
        if (a->unknown.n >= UNKNOWN_FIELDS || map_get(&a->unknown, name, NULL)) continue;
        name = arena_str(&a->unknown_names, name);
        if (!name.p || map_put(&a->unknown, name, 0) < 0) return;
        log(name);
    }
}

/* Fields that have no effect are named in a header of the answer, and once in the log. */
static void note_unknown_fields(struct call *c)
{
    if (c->skipped.n && !c->skipped.failed) log_names(c->api, buf_str(&c->skipped), log_skipped);
    if (!c->p.n_ignored || c->p.ignored.failed) return;
    http_set_header(c->q, "x-tern-ignored-fields", buf_cstr(&c->p.ignored));
    if (log_is_on(LOG_DEBUG)) log_names(c->api, buf_str(&c->p.ignored), log_field);
}

static int set_stop_error(enum stop why, struct err *e)
{
    switch (why) {
    case STOP_DEADLINE:
        return err_set(e, E_DEADLINE, "the deadline passed before the request could run");
    case STOP_SHUTDOWN: return err_set(e, E_SHUTDOWN, "the server is shutting down");
    default: return err_set(e, E_CANCELLED, "the request was cancelled");
    }
}

/* The loop owns the call again. The body is not needed any more: its memory counts against the
 * limits of the tenant. */
static void come_back(struct call *c)
{
    c->away = false;
    c->api->n_away--;
    c->body = (struct str){ 0 };
    if (c->q && !c->fw.on) http_release_body(c->q); /* a forwarded one may have to be repeated */
}

/* ---- calls that wait for their model ---- */

/* On the pool's thread. */
static void on_model(struct pool_wait *w) { put_ready(w->arg); }

static void begin_wait(struct call *c)
{
    c->wait = (struct pool_wait){ .done = on_model, .arg = c };
    c->next_ready = NULL;
}

/* The result of the wait as that of the job. Errors of the load itself are those of a failed model. */
static void take_result(struct call *c)
{
    int rc = c->wait.rc;

    c->waits = false;
    c->cold = -1;
    c->model = c->wait.model;
    c->job_rc = rc;
    c->job_err = c->wait.err;
    if (rc == E_NOTFOUND || rc == E_INVALID || rc == E_IO || rc == E_CANCELLED)
        c->job_rc = c->job_err.code = E_FORMAT;
}

/* To a request thread again, which goes on. false: the result is an error, or there is no work. */
static bool go_on(struct call *c)
{
    bool stopped = call_is_stopped(c) || !c->q || c->gone;

    take_result(c);
    if (c->job_rc != OK || stopped || !c->job->work) return false;
    c->away = false;
    c->api->n_away--;
    if (call_hand_over(c, c->job, c->work.bytes, false, &c->job_err) == OK) return true;
    c->away = true;
    c->api->n_away++;
    c->job_rc = c->job_err.code;
    return false;
}

/* true: the call waits, or has its model and goes on. */
static bool wait_for_model(struct call *c)
{
    if (c->job_rc != E_LOADING || c->cold < 0 || call_is_stopped(c) || !c->q || c->gone)
        return false;
    begin_wait(c);
    c->waits = true;
    if (pool_load(c->api->opt.pool, c->cold, &c->wait) == POOL_WAIT) return true;
    return go_on(c);
}

/* The call may end here. */
static void take_back(struct call *c)
{
    enum stop why = (enum stop)atomic_load(&c->work.stop);
    int rc;

    if (c->waits ? go_on(c) : wait_for_model(c)) return;
    rc = c->job_rc;
    come_back(c);
    c->holds++;
    if (c->q && !c->gone) {
        note_unknown_fields(c);
        if (why != STOP_NO) rc = set_stop_error(why, &c->job_err);
        if (rc == OK && c->kept) call_hand_to_jobs(c);
        else if (rc == OK)
            rc = c->fw.on ? forward_start(c, &c->job_err) : c->job->then(c, &c->job_err);
        if (rc != OK) call_fail(c, &c->job_err, c->p.param);
    }
    call_end_handler(c);
}

/* Away without a thread, for a job that only waits. */
static void leave(struct call *c, const struct call_job *job)
{
    begin_wait(c);
    c->job = job;
    c->job_err = (struct err){ 0 };
    c->away = c->waits = true;
    if (c->api->n_away++ == 0) loop_timer_set(c->api->sweep, SWEEP_MS);
}

void call_load(struct call *c, int i, const struct call_job *job)
{
    leave(c, job);
    c->wait.by_operator = true;
    if (pool_load(c->api->opt.pool, i, &c->wait) == POOL_NOW) take_back(c);
}

void call_unload(struct call *c, int i, bool sleep, const struct call_job *job)
{
    leave(c, job);
    if (pool_unload(c->api->opt.pool, i, sleep, &c->wait) == POOL_NOW) take_back(c);
}

void api_take_back(struct api *a)
{
    struct call *list, *next;

    pthread_mutex_lock(&a->ready_lock);
    list = a->ready;
    a->ready = a->ready_last = NULL;
    pthread_mutex_unlock(&a->ready_lock);
    for (; list; list = next) {
        next = list->next_ready;
        take_back(list);
    }
}

/* ---- stopping ---- */

/* true: it still waited, and is back. The first reason counts. */
static bool ask_to_stop(struct call *c, enum stop why)
{
    int none = STOP_NO;

    atomic_compare_exchange_strong(&c->work.stop, &none, (int)why);
    if (c->waits ? !pool_cancel_wait(c->api->opt.pool, &c->wait) : !workers_take(c->lane, &c->work))
        return false;
    c->waits = false;
    c->cold = -1;
    c->job_rc = E_CANCELLED;
    return true;
}

void call_note_gone_away(struct call *c)
{
    if (c->away && ask_to_stop(c, STOP_GONE)) come_back(c);
}

bool call_stop(struct call *c, enum stop why)
{
    if (!c->away) return false;
    if (ask_to_stop(c, why)) take_back(c);
    return true;
}

/* While calls are away: those whose deadline has passed are stopped. */
static void on_sweep(void *arg)
{
    struct api *a = arg;
    uint64_t now = clock_ns();

    if (a->n_away == 0) return;
    loop_timer_set(a->sweep, SWEEP_MS); /* first: it cannot fail then */
    for (struct call *c = a->calls, *next; c; c = next) {
        uint64_t at = c->waits ? c->deadline_ns : c->head_deadline_ns;
        next = c->next;
        if (at && now >= at) call_stop(c, STOP_DEADLINE);
    }
}

void api_abort(struct api *a)
{
    api_end_watchers(a);
    for (struct call *c = a->calls, *next; c; c = next) {
        next = c->next;
        if (!call_stop(c, STOP_SHUTDOWN) && forward_cancel(c, FORWARD_SHUTDOWN))
            call_end_if_done(c);
    }
}

/* ---- JSON of ended calls ---- */

struct old_json {
    struct work work;
    json_t *root;
};

static void free_json(struct work *w)
{
    struct old_json *o = (struct old_json *)w;

    json_decref(o->root);
    mem_free(o);
}

/* Without memory for the job the loop frees it. */
void prepare_free_json(struct api *a, uint32_t tenant, size_t bytes, json_t *root)
{
    struct old_json *o = bytes > SMALL_BODY && a->lanes[1] ? mem_new(struct old_json) : NULL;

    if (o) {
        *o = (struct old_json){ .work = { .run = free_json, .group = tenant }, .root = root };
        if (workers_add_always(a->lanes[1], &o->work, NULL) == OK) return;
        mem_free(o);
    }
    json_decref(root);
}

/* ---- life ---- */

/* Half of the threads, but at least one, for large bodies. */
int api_start_threads(struct api *a, struct err *e)
{
    int n = a->opt.request_threads, n_large = n / 2 > 0 ? n / 2 : 1;
    struct workers_opt o = { .name = "tern-request",
                             .n_threads = n > n_large ? n - n_large : 1,
                             .max_jobs = a->opt.request_queue,
                             .max_group_jobs = (a->opt.request_queue + 1) / 2,
                             .max_bytes = SIZE_MAX,
                             .max_group_bytes = SIZE_MAX };
    int rc = workers_open(&a->lanes[0], &o, e);

    if (rc != OK) return rc;
    o.name = "tern-large";
    o.n_threads = n_large;
    o.nice = LARGE_NICE;
    o.n_slow = 1;
    if ((rc = workers_open(&a->lanes[1], &o, e)) != OK) return rc;
    if (!(a->sweep = loop_timer(a->opt.loop, on_sweep, a))) return err_nomem(e, "a timer");
    return OK;
}

void api_stop(struct api *a)
{
    if (!a) return;
    for (struct call *c = a->calls, *next; c; c = next) {
        next = c->next;
        if (c->waits) call_stop(c, STOP_SHUTDOWN);
    }
    for (struct call *c = a->calls; c; c = c->next) {
        int none = STOP_NO;
        if (c->away) atomic_compare_exchange_strong(&c->work.stop, &none, STOP_SHUTDOWN);
    }
    for (int i = 0; i < 2; i++) {
        workers_close(a->lanes[i]);
        a->lanes[i] = NULL;
    }
    loop_timer_close(a->sweep);
    a->sweep = NULL;
    api_take_back(a);
}
