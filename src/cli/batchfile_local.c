/* batchfile_local.c - lines of a batch through a model in this process: the loop, the pool, the API and
 * the engine of the server, without its sockets. */
#include "cli/batchfile.h"

#include "api/api.h"
#include "base/mem.h"
#include "cli/cmd.h"
#include "jobs/jobcall.h"
#include "net/loop.h"
#include "pool/pool.h"
#include "server/settings.h"
#include "server/workerflags.h"

#include <stdio.h>

enum { TICK_MS = 50, AT_ONCE_MAX = 4096 };

struct local;

struct flight {
    struct jobcall call; /* first */
    struct local *run;
    int line; /* -1: free */
};

struct local {
    struct batchfile *b;
    struct loop *loop;
    struct pool *pool;
    struct api *api;
    struct loop_timer *tick;
    struct flight *flights; /* [n_flights] */
    int n_flights;
    volatile sig_atomic_t *stop;
    bool stopped, ready;
    int rc;
    struct err err;
};

static void on_reply(struct jobcall *c) { loop_wake(((struct flight *)c)->run->loop); }

/* On the pool's thread. */
static void on_pool_change(void *arg) { loop_wake(((struct local *)arg)->loop); }

static void start_line(struct local *r, struct flight *f)
{
    struct api_who who = { .name = "batch", .route = -1, .priority_max = 0, .user = f };
    char path[64], id[48];
    struct str body;
    struct err e = { 0 };
    char *copy;

    if ((f->line = batchfile_next(r->b, path, &body, &e)) < 0) return;
    if (!(copy = mem_dup(body.p, body.n))) {
        batchfile_retry(r->b, f->line);
        f->line = -1;
        return;
    }
    snprintf(id, sizeof id, "batch_req_%d", f->line + 1);
    snprintf(who.correlation, sizeof who.correlation, "%s", id);
    jobcall_init(&f->call, "batch", path, id, copy, body.n, on_reply);
    if (strcmp(path, "/v1/chat/completions") == 0) api_chat(r->api, &f->call.req, &who);
    else if (strcmp(path, "/v1/responses") == 0) api_responses(r->api, &f->call.req, &who);
    else if (strcmp(path, "/v1/embeddings") == 0) api_embeddings(r->api, &f->call.req, &who);
    else api_completions(r->api, &f->call.req, &who);
}

static void end_line(struct local *r, struct flight *f)
{
    struct jobcall *c = &f->call;

    if (jobcall_is_temporary(c) || (r->stopped && c->status == 499)) batchfile_retry(r->b, f->line);
    else batchfile_answer(r->b, f->line, c->status, str_c(c->id), buf_str(&c->reply));
    jobcall_release(c);
    *f = (struct flight){ .run = r, .line = -1 };
}

/* Ctrl-C: lines that run are stopped, and have no result. */
static void stop_all(struct local *r)
{
    r->stopped = true;
    for (int i = 0; i < r->n_flights; i++)
        if (r->flights[i].line >= 0 && !r->flights[i].call.ended)
            api_stop_call(r->api, &r->flights[i], false);
}

/* true: the model can be asked. */
static bool check_model(struct local *r)
{
    enum pool_state s = r->ready ? POOL_READY : pool_state(r->pool, 0, &r->err);

    if (s == POOL_FAILED) {
        r->rc = r->err.code;
        loop_stop(r->loop);
    }
    return r->ready = s == POOL_READY;
}

static void take_turn(struct local *r)
{
    api_process_events(r->api);
    if (*r->stop && !r->stopped) stop_all(r);
    for (int i = 0; i < r->n_flights; i++)
        if (r->flights[i].line >= 0 && r->flights[i].call.ended) end_line(r, &r->flights[i]);
    if (r->stopped ? r->b->n_running == 0 : batchfile_is_over(r->b)) {
        loop_stop(r->loop);
        return;
    }
    if (r->stopped || !check_model(r)) return;
    for (int i = 0; i < r->n_flights; i++)
        if (r->flights[i].line < 0) start_line(r, &r->flights[i]);
}

static void on_wake(void *arg) { take_turn(arg); }

static void on_tick(void *arg)
{
    struct local *r = arg;

    loop_timer_set(r->tick, TICK_MS);
    batchfile_show(r->b);
    take_turn(r);
}

static void on_signal(void *arg)
{
    struct local *r = arg;

    *r->stop = 1;
    take_turn(r);
}

/* The settings of a server with these flags. */
static int load_settings(struct settings *s, const struct batchfile_local *o, struct err *e)
{
    int rc = settings_defaults(s, e);

    if (rc != OK) return rc;
    s->threads = o->n_threads;
    s->ctx = o->n_ctx;
    if (o->at_once > 0) s->max_seqs = o->at_once;
    if (o->device) {
        mem_free(s->device);
        if (!(s->device = mem_strdup(o->device))) return err_nomem(e, "the settings");
    }
    if (o->kv_type) {
        mem_free(s->kv_type);
        if (!(s->kv_type = mem_strdup(o->kv_type))) return err_nomem(e, "the settings");
    }
    return OK;
}

static int open_parts(struct local *r, const struct settings *s, const struct batchfile_local *o,
                      struct err *e)
{
    struct pool_opt po = { .paths = &o->model,
                           .n = 1,
                           .warm = false,
                           .changed = on_pool_change,
                           .arg = r,
                           .memory_limit = POOL_MEMORY_AUTO };
    struct api_opt ao;
    int rc;

    workerflags_engine(s, &po.engine);
    workerflags_api(s, &ao);
    if ((rc = loop_open(&r->loop, e)) != OK) return rc;
    if ((rc = loop_on_signal(r->loop, SIGINT, on_signal, r, e)) != OK) return rc;
    if ((rc = loop_on_signal(r->loop, SIGTERM, on_signal, r, e)) != OK) return rc;
    if ((rc = pool_open(&r->pool, &po, e)) != OK) return rc;
    ao.loop = r->loop;
    ao.pool = r->pool;
    ao.one_model = true;
    if ((rc = api_open(&r->api, &ao, e)) != OK) return rc;
    loop_on_wake(r->loop, on_wake, r);
    if (!(r->tick = loop_timer(r->loop, on_tick, r)) || !loop_timer_set(r->tick, 1))
        return err_nomem(e, "a timer");
    return OK;
}

int batchfile_run_local(struct batchfile *b, const struct batchfile_local *o,
                        volatile sig_atomic_t *stop, struct err *e)
{
    struct local r = { .b = b, .stop = stop };
    struct settings s = { 0 };
    int rc = load_settings(&s, o, e);

    r.n_flights = o->at_once > 0 ? o->at_once : 16;
    if (r.n_flights > AT_ONCE_MAX) r.n_flights = AT_ONCE_MAX;
    if (rc == OK && !(r.flights = mem_array((size_t)r.n_flights, sizeof *r.flights)))
        rc = err_nomem(e, "the lines of a batch");
    for (int i = 0; rc == OK && i < r.n_flights; i++) r.flights[i].run = &r, r.flights[i].line = -1;
    if (rc == OK) rc = open_parts(&r, &s, o, e);
    if (rc == OK) {
        loop_run(r.loop);
        rc = r.rc != OK ? r.rc : b->rc;
        if (rc != OK) *e = r.rc != OK ? r.err : b->err;
    }
    if (r.pool) pool_stop(r.pool);
    api_close(r.api);
    pool_close(r.pool);
    loop_timer_close(r.tick);
    loop_close(r.loop);
    for (int i = 0; r.flights && i < r.n_flights; i++) jobcall_release(&r.flights[i].call);
    mem_free(r.flights);
    settings_release(&s);
    return rc;
}
