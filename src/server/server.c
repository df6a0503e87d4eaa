/* server.c - wiring: opens loop, HTTP, pool and API, runs the loop, and shuts them down.
 *
 *     LIFE_RUN ──SIGTERM, SIGINT──► LIFE_DRAIN ──requests ended────────► LIFE_FLUSH ──► end
 *                                        └──timeout, second signal──► LIFE_ABORT ──┘
 *
 * LIFE_DRAIN refuses new work, and goes on listening: monitors see why. LIFE_ABORT cancels requests
 * that still run. LIFE_FLUSH stops listening and lets the last replies be sent. A timer checks the
 * phase every ENDING_MS. An alarm ends the process if an engine hangs meanwhile, or a model is still
 * loading.
 *
 * Order of closing: the pool stops, whose engines then send their last events; the API, which
 * answers the calls that are left; the pool; HTTP, which closes the connections; the loop last. */
#include "server/server.h"

#include "api/api.h"
#include "api/fail.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "jobs/jobs.h"
#include "net/http.h"
#include "member/member.h"
#include "net/loop.h"
#include "pool/pool.h"
#include "pool/registry.h"
#include "server/auth.h"
#include "server/descriptors.h"
#include "server/gpus.h"
#include "server/limit.h"
#include "server/metrics.h"
#include "server/notify.h"
#include "server/origin.h"
#include "server/parkfile.h"
#include "server/pulls.h"
#include "server/registration.h"
#include "server/routes.h"
#include "server/server_impl.h"
#include "server/startlog.h"
#include "server/visit.h"
#include "server/work.h"
#include "server/workerflags.h"
#include "worker/supervisor.h"

#include <signal.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

enum {
    TICK_MS = 1000,
    ENDING_MS = 5,      /* interval of checks while shutting down */
    FLUSH_MS = 2000,    /* most time for sending the last replies */
    SETTLE_MS = 500,    /* time after the last reply in which clients read it */
    HARD_END_S = 5,     /* SIGALRM ends the process if the shutdown takes longer */
    CALLS_MIN = 4096,   /* least capacity of the API's channel */
    MODELS_AT_ONCE = 16 /* whose requests it has room for */
};

struct engine_stats *server_stats(struct server *v, int i)
{
    struct engine_stats *s = pool_stats(v->pool, i);

    if (s && v->workers) supervisor_read_stats(v->workers, pool_at(v->pool, i)->id, s);
    return s;
}

int server_next_model(const struct server *v, int i)
{
    while (i < pool_n(v->pool) && !pool_is_current(v->pool, i)) i++;
    return i;
}

bool server_engine_info(struct server *v, int i, struct engine_info *out)
{
    struct pool_instance *m = pool_acquire(v->pool, i);

    if (m) pool_info(m, out);
    pool_release(m);
    return m != NULL;
}

/* The list of models grows; notes do so with it. */
struct model_note *server_note(struct server *v, int i)
{
    while (v->n_notes <= (size_t)i && mem_ensure(v->notes, v->cap_notes, v->n_notes + 1))
        v->notes[v->n_notes++] = (struct model_note){ 0 };
    return (size_t)i < v->n_notes ? &v->notes[i] : NULL;
}

/* ---- models that finish loading ---- */

/* On the pool's thread: the loop is woken, and looks at the models in on_wake. */
static void on_pool_change(void *arg) /* on the pool's thread */
{
    struct server *v = arg;

    atomic_store_explicit(&v->pool_changed, true, memory_order_release);
    loop_wake(v->loop);
}

/* Without any model the server could only refuse requests: it ends with an exit code instead. One
 * that has served is opened again. */
static void stop_if_all_failed(struct server *v)
{
    if (pool_n(v->pool) == 0) return; /* an empty folder, which may get models later */
    for (int i = 0; i < pool_n(v->pool); i++)
        if (server_stats(v, i) || pool_state(v->pool, i, NULL) != POOL_FAILED ||
            !pool_at(v->pool, i)->preload)
            return;
    pool_state(v->pool, 0, &v->failed);
    loop_stop(v->loop);
}

/* Each instance is logged when it is ready; a failure once, what happens later is logged by the pool.
 * The error of an only model is returned by server_run instead. */
static void log_model(struct server *v, int i)
{
    struct pool_instance *m = pool_acquire(v->pool, i);
    struct model_note *n = server_note(v, i);
    struct err e;
    enum pool_state state = pool_state(v->pool, i, &e);

    if (n && m && n->logged != m->generation) startlog_model(m);
    else if (n && !m && !n->logged && state == POOL_FAILED && !n->failed && pool_n(v->pool) > 1)
        log_error("%s", e.msg);
    if (n && m) n->logged = m->generation;
    if (n) n->failed = state == POOL_FAILED;
    pool_release(m);
}

static void log_models(struct server *v)
{
    for (int i = 0; i < pool_n(v->pool); i++) log_model(v, i);
    stop_if_all_failed(v);
}

/* On the loop's thread: events of engines, and models that finished loading. */
static void on_wake(void *arg)
{
    struct server *v = arg;

    api_process_events(v->api);
    if (v->jobs) jobs_process(v->jobs);
    supervisor_process(v->workers);
    if (!atomic_exchange_explicit(&v->pool_changed, false, memory_order_acquire)) return;
    log_models(v);
    api_models_changed(v->api);
    health_update(v);
    notify_update(v);
    if (v->health.ready == READY_OK && !v->ready_logged) {
        v->ready_logged = true;
        log_info("ready after %.0f ms", clock_ms_since(v->start_ns));
    }
}

/* Once a second. */
static void on_tick(void *arg)
{
    struct server *v = arg;

    loop_timer_set(v->tick, TICK_MS); /* first: it cannot fail then */
    health_tick(v);
    notify_update(v);
    registration_update(v);
    startlog_progress(v);
}

/* ---- shutdown ---- */

/* No request waits, runs, or is without an answer. */
static bool is_idle(struct server *v)
{
    return pool_is_idle(v->pool) && api_n_calls(v->api) == 0 && (!v->jobs || jobs_is_idle(v->jobs));
}

static void enter_phase(struct server *v, enum life life)
{
    v->life = life;
    v->phase_ns = clock_ns();
}

/* An engine that ignores even this is ended with the process, by SIGALRM. */
static void cancel_all(struct server *v, const char *why)
{
    log_warn("%s: cancelling %d requests", why, api_n_calls(v->api));
    api_abort(v->api);
    pool_abort(v->pool);
    alarm(HARD_END_S);
    enter_phase(v, LIFE_ABORT);
}

/* An open connection may be idle, or wait for the rest of a reply. The kernel sends what it holds
 * after the process ends, so only clients that are far behind need this time. */
static bool is_flushed(const struct server *v)
{
    struct http_stats h;

    http_stats(v->http, &h);
    return h.conns == 0 || clock_ms_since(v->replied_ns) >= SETTLE_MS ||
           clock_ms_since(v->phase_ns) >= FLUSH_MS;
}

/* Advances the phases of the shutdown. */
static void on_ending(void *arg)
{
    struct server *v = arg;
    double ms = clock_ms_since(v->phase_ns);

    loop_timer_set(v->ending, ENDING_MS); /* first: it cannot fail then */
    if (v->life == LIFE_DRAIN && !is_idle(v) && ms >= (double)v->s->drain_timeout_ms)
        cancel_all(v, "the drain timeout has passed");
    if (v->life != LIFE_FLUSH && is_idle(v)) {
        enter_phase(v, LIFE_FLUSH);
        http_stop_listening(v->http);
    }
    if (v->life == LIFE_FLUSH && is_flushed(v)) {
        alarm(HARD_END_S); /* a model may still be loading, and pool_close waits for it */
        loop_timer_stop(v->ending);
        loop_stop(v->loop);
    }
}

/* The first signal drains, a second one cancels. */
static void on_stop_signal(void *arg)
{
    struct server *v = arg;

    if (v->life == LIFE_RUN) {
        log_info("shutting down: %d requests are in flight and have up to %.1f s to end",
                 api_n_calls(v->api), (double)v->s->drain_timeout_ms / 1e3);
        v->drain_ns = clock_ns();
        enter_phase(v, LIFE_DRAIN);
        health_update(v);
        notify_stopping(v);
        registration_update(v);
        if (v->jobs) jobs_drain(v->jobs);
        pool_drain(v->pool);
        api_end_watchers(v->api);
        pulls_drain(v);
        http_drain(v->http);
        if (!loop_timer_set(v->ending, 1)) cancel_all(v, "out of memory"), loop_stop(v->loop);
    } else if (v->life == LIFE_DRAIN) {
        cancel_all(v, "second signal");
    }
}

/* The setting was checked when it was read. */
static void set_log_level(const struct settings *s)
{
    enum log_level level;

    if (log_level_by_name(str_c(s->log_level), &level)) log_set_level(level);
}

/* SIGHUP. Settings and keys are independent: an error in one does not stop the other. */
static void on_reload_signal(void *arg)
{
    struct server *v = arg;
    struct registry_news news = { 0 };
    struct buf changed = { 0 };
    struct err e = { 0 };

    if (settings_reload(v->s, &changed, &e) != OK) log_error("settings are unchanged: %s", e.msg);
    else
        log_info("settings were reloaded; changed: %s", changed.n ? buf_cstr(&changed) : "nothing");
    set_log_level(v->s);
    if (auth_reload(v->auth, &e) != OK) log_error("API keys are unchanged: %s", e.msg);
    else log_info("API keys were reloaded: %d", auth_n_keys(v->auth));
    if (pool_rescan(v->pool, &news, &e) != OK) log_error("the folder of models: %s", e.msg);
    else if (news.added + news.gone + news.back + news.replaced)
        log_info("models: %d new, %d gone, %d back, %d replaced", news.added, news.gone, news.back,
                 news.replaced);
    health_update(v);
    buf_release(&changed);
}

/* ---- start ---- */

/* By the text of the setting, before any name is resolved. */
static bool is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 ||
           strcmp(host, "[::1]") == 0 || strcasecmp(host, "localhost") == 0;
}

/* A server that is reachable from other machines needs a key, unless the user insists. */
static int check_exposure(const struct server *v, struct err *e)
{
    const struct settings *s = v->s;

    if (origin_check_setting(s->allowed_hosts, e) != OK) return e->code;
    if (origin_check_list(s->cors_origins, e) != OK) return e->code;
    if (!*s->host || is_loopback(s->host) || !auth_is_open(v->auth)) return OK;
    if (!s->allow_open)
        return err_set(
            e, E_INVALID,
            "host is '%s' and there is no API key: everyone who reaches it could use this "
            "server. Give --api-key-file, listen on 127.0.0.1, or set --allow-open",
            s->host);
    log_warn("listening on %s without any API key: everyone who reaches it can use it", s->host);
    return OK;
}

/* A flag may name a model by an alias of the settings file, which then is its id. paths[i]: owned. */
static int replace_aliases(const struct settings *s, struct registry_item *items, int n,
                           char **paths, struct err *e)
{
    int rc = OK;

    for (int i = 0; i < n && rc == OK; i++) {
        if (items[i].origin != REGISTRY_FLAG) continue;
        rc = settings_alias_path(&paths[i], s->config, items[i].path, e);
        if (!paths[i]) continue;
        if (items[i].n_aliases == 0) items[i].aliases[items[i].n_aliases++] = items[i].path;
        items[i].path = paths[i];
    }
    return rc;
}

/* Which models there are: those of the flags and the settings file, and of the folder. */
static int open_registry(struct server *v, struct err *e)
{
    struct registry_item items[SETTINGS_MODELS];
    char *paths[SETTINGS_MODELS] = { 0 };
    struct registry_opt o = { .items = items,
                              .n = settings_items(v->s, items),
                              .models_dir = v->s->models_dir,
                              .preload = v->s->preload };
    int rc = replace_aliases(v->s, items, o.n, paths, e);

    if (rc == OK) rc = registry_open(&v->registry, &o, e);
    for (int i = 0; i < o.n; i++) mem_free(paths[i]);
    return rc;
}

/* Returns at once; a thread of the pool loads the models. --gpu-layers 0 means the CPU. */
static int open_pool(struct server *v, struct err *e)
{
    const struct settings *s = v->s;
    struct pool_opt o = { .registry = v->registry,
                          .keep_ms = s->keep_alive_ms,
                          .max_loaded = (int)s->models_max,
                          .residence_ms = (int)s->residence_ms,
                          .patience_ms = (int)s->patience_ms,
                          .max_waits = (int)s->request_queue,
                          .warm = s->warm,
                          .tiers = true,
                          .read_ahead = s->read_ahead,
                          .chat_template = s->chat_template,
                          .key_file = s->model_key_file,
                          .key_command = s->model_key_command,
                          .memory_limit =
                              s->memory_limit < 0 ? POOL_MEMORY_AUTO : (uint64_t)s->memory_limit,
                          .device_limits = v->device_limits,
                          .changed = on_pool_change,
                          .arg = v };
    int rc = settings_device_limits(s, v->device_limits, &o.n_device_limits, e);

    if (rc != OK) return rc;
    v->n_device_limits = o.n_device_limits;
    workerflags_engine(s, &o.engine);
    workerflags_park(s, &o.park);
    if (v->workers) o.host = supervisor_host(v->workers);
    return pool_open(&v->pool, &o, e);
}

static bool has_gang(const struct settings *s) { return s->tp * s->pp > 1; }

/* All models, or those whose settings say so. A gang is one process for the server: its leader's. */
static bool is_isolated(void *arg, const char *id)
{
    const struct server *v = arg;
    int i = registry_find(v->registry, str_c(id));
    const struct model_opt *o = i < 0 ? NULL : &registry_at(v->registry, i)->opt;

    if (has_gang(v->s)) return true;
    return o && model_has(o, MODEL_ISOLATE) ? o->isolate : v->s->isolate;
}

static int add_model_flags(void *arg, const char *id, struct arena *a, const char **flags, int max)
{
    const struct server *v = arg;
    int i = registry_find(v->registry, str_c(id));

    return i < 0 ? 0 : workerflags_of_model(&registry_at(v->registry, i)->opt, a, flags, max);
}

/* Only the server reads keys; a worker gets them over its socket. */
static int read_model_keys(void *arg, const char *id, struct keyset **out, struct err *e)
{
    const struct server *v = arg;
    int i = registry_find(v->registry, str_c(id));

    return pool_read_keys(i < 0 ? NULL : registry_at(v->registry, i), v->s->model_key_file,
                          v->s->model_key_command, out, e);
}

static int open_park(void *arg, const char *id, const char *path)
{
    const struct server *v = arg;

    return strcmp(v->s->park, "file") == 0 ? parkfile_open(v->s->park_dir, id, path) : -1;
}

/* Some model runs in a process of its own. Models that come later have the server's setting. */
static bool needs_workers(struct server *v)
{
    bool needs = v->s->isolate || has_gang(v->s);

    for (int i = 0; i < registry_n(v->registry); i++)
        needs |= is_isolated(v, registry_at(v->registry, i)->id);
    return needs;
}

/* The processes of isolated models; each gets the settings as flags. */
static int open_workers(struct server *v, struct err *e)
{
    struct supervisor_opt o = { .loop = v->loop,
                                .build = TERN_VERSION,
                                .isolates = is_isolated,
                                .add_flags = add_model_flags,
                                .open_park = open_park,
                                .read_keys = read_model_keys,
                                .arg = v,
                                .silent_ms = (int)v->s->worker_silence_ms,
                                .load_ms = (int)v->s->load_timeout_ms,
                                .hang_ms = (int)v->s->watchdog_ms };

    if (!needs_workers(v)) return OK;
    o.flags = workerflags_make(v->s, &v->worker_flags, &o.n_flags);
    if (!o.flags) return err_nomem(e, "the flags of workers");
    return supervisor_open(&v->workers, &o, e);
}

/* The channel of the API has room for all requests that the engines may accept. */
static int open_api(struct server *v, struct err *e)
{
    const struct settings *s = v->s;
    int64_t seqs = s->max_seqs ? s->max_seqs : SIZES_SEQS_GPU;
    int n = registry_n(v->registry), most = n < MODELS_AT_ONCE ? n : MODELS_AT_ONCE;
    int64_t all = (s->max_requests ? s->max_requests : 16 * seqs) * most;
    struct api_opt o;

    workerflags_api(s, &o);
    o.loop = v->loop;
    o.pool = v->pool;
    o.max_calls = all < CALLS_MIN ? CALLS_MIN : (int)all;
    o.forward = v->workers ? &supervisor_forward : NULL;
    o.failed = access_failed;
    o.ended = access_ended;
    o.keep = durable_post;
    o.arg = v;
    return api_open(&v->api, &o, e);
}

static const char *null_if_empty(const char *s) { return *s ? s : NULL; }

/* From here on clients can connect; they are served when the loop runs. */
static int open_http(struct server *v, struct err *e)
{
    const struct settings *s = v->s;
    struct http_opt o = { .host = null_if_empty(s->host),
                          .port = (int)s->port,
                          .socket_path = null_if_empty(s->socket),
                          .tls_cert = null_if_empty(s->tls_cert),
                          .tls_key = null_if_empty(s->tls_key),
                          .max_body_bytes = (size_t)s->max_body,
                          .max_bodies_bytes = (size_t)s->max_bodies,
                          .max_header_bytes = (size_t)s->max_header,
                          .max_unread_bytes = (size_t)s->max_unread,
                          .max_conns = v->max_conns,
                          .header_ms = (int)s->header_timeout_ms,
                          .body_ms = (int)s->body_timeout_ms,
                          .idle_ms = (int)s->idle_timeout_ms,
                          .write_ms = (int)s->write_timeout_ms,
                          .nomem_body = FAIL_NOMEM_BODY,
                          .handler = routes_handle,
                          .fail = routes_fail,
                          .admit = routes_admit,
                          .vital = routes_is_vital,
                          .streams = files_streams,
                          .max_stream_bytes = UINT64_MAX / 4, /* files_admit has the limit */
                          .arg = v };
    int rc = http_open(&v->http, v->loop, &o, e);

    v->listen_ms = clock_ms_since(v->start_ns);
    return rc;
}

static int open_signals(struct server *v, struct err *e)
{
    int rc;

    if ((rc = loop_on_signal(v->loop, SIGTERM, on_stop_signal, v, e)) != OK) return rc;
    if ((rc = loop_on_signal(v->loop, SIGINT, on_stop_signal, v, e)) != OK) return rc;
    return loop_on_signal(v->loop, SIGHUP, on_reload_signal, v, e);
}

/* GPUs are polled only if a model may use one, or if the environment names a library (for tests). */
static void open_gpus(struct server *v)
{
    const char *named = getenv("TERN_NVML_LIB");

    if (named || strncmp(v->s->device, "cuda", 4) == 0) v->gpus = gpus_open(named);
}

static int open_timers(struct server *v, struct err *e)
{
    v->tick = loop_timer(v->loop, on_tick, v);
    v->ending = loop_timer(v->loop, on_ending, v);
    if (v->tick && v->ending && loop_timer_set(v->tick, TICK_MS)) return OK;
    return err_nomem(e, "the timers of the server");
}

/* Listening comes before loading: requests that come meanwhile get 503 model_loading. On an error
 * the caller closes what was opened. */
static int server_open(struct server *v, struct err *e)
{
    struct timespec now;
    int rc, n_models;

    clock_gettime(CLOCK_REALTIME, &now);
    v->start_ns = clock_ns();
    v->start_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    metrics_init(v);
    set_log_level(v->s);
    log_set_format(strcmp(v->s->log_format, "json") == 0 ? LOG_JSON : LOG_TEXT);
    if ((rc = auth_open(&v->auth, v->s->api_key, v->s->api_key_file, e)) != OK) return rc;
    if ((rc = check_exposure(v, e)) != OK) return rc;
    if ((rc = open_registry(v, e)) != OK) return rc;
    n_models = registry_n(v->registry) < MODELS_AT_ONCE ? registry_n(v->registry) : MODELS_AT_ONCE;
    rc = descriptors_fit((int)v->s->max_connections, n_models, &v->max_conns, e);
    if (rc != OK) return rc;
    if ((rc = limit_open(&v->limit, e)) != OK) return rc;
    if ((rc = loop_open(&v->loop, e)) != OK) return rc;
    if ((rc = open_signals(v, e)) != OK) return rc;
    if ((rc = open_http(v, e)) != OK) return rc;
    if ((rc = open_workers(v, e)) != OK) return rc;
    if ((rc = open_pool(v, e)) != OK) return rc;
    open_gpus(v);
    if ((rc = open_api(v, e)) != OK) return rc;
    if ((rc = work_open(v, e)) != OK) return rc;
    loop_on_wake(v->loop, on_wake, v);
    if ((rc = open_timers(v, e)) != OK) return rc;
    health_tick(v);
    if ((rc = registration_open(v, e)) != OK) return rc;
    registration_update(v);
    notify_open(&v->notify);
    return OK;
}

/* Every part may be NULL. */
static void server_close(struct server *v)
{
    registrar_close(v->registrar);
    notify_close(&v->notify);
    gpus_close(v->gpus);
    pulls_close(v);
    supervisor_stop(v->workers); /* the loop has ended: nobody may wait for it */
    pool_stop(v->pool);          /* engines send no more events to the API */
    api_close(v->api);           /* calls hold models */
    jobs_close(v->jobs);         /* answers requests that wait for the journal */
    pool_close(v->pool);
    supervisor_close(v->workers);
    registry_close(v->registry);
    http_close(v->http);
    loop_timer_close(v->tick);
    loop_timer_close(v->ending);
    loop_close(v->loop);
    limit_close(v->limit);
    auth_close(v->auth);
    access_release(v);
    buf_release(&v->health.body);
    mem_free(v->notes);
    arena_release(&v->worker_flags);
}

/* After the end log lines are plain again, for messages of the command line. */
int server_run(struct settings *s, struct err *e)
{
    struct server v = { .s = s };
    int rc;

    if ((rc = server_open(&v, e)) != OK) goto out;
    startlog_server(&v);
    notify_update(&v);
    on_wake(&v); /* models that loaded meanwhile */
    loop_run(v.loop);
    if (v.failed.code != OK) {
        *e = v.failed;
        rc = e->code;
    } else {
        log_info("shut down in %.0f ms", clock_ms_since(v.drain_ns));
    }
out:
    server_close(&v);
    log_set_format(LOG_PLAIN);
    return rc;
}
