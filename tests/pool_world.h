/* pool_world.h - a pool of models that come and go, for tests: a host that counts its steps and can be
 * told to wait or to fail, waits, and a short inference.
 *
 * Uses the model that ships with tern under several names. Nothing depends on how long a load takes:
 * tests wait for states, and hold the pool's thread where an order matters. */
#ifndef TERN_TESTS_POOL_WORLD_H
#define TERN_TESTS_POOL_WORLD_H

#include "support.h"

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "engine/stats.h"
#include "pool/pool.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MODEL "models/tern-tales.gguf"
enum { LONG_MS = 120000 };

static const struct engine_opt engine_options = {
    .kv_type = DT_NONE, .n_ctx = 128, .max_batch = 32, .max_seqs = 2, .n_threads = 1
};

/* ---- a host that counts, and can be told to wait or to fail ---- */

extern const struct pool_host pool_local;

static struct {
    atomic_int plans, opens, warms, closes;
    atomic_int replans;          /* of instances that were planned before */
    atomic_int fail_at;          /* the step that fails: 1 plan, 2 open, 3 warm */
    atomic_int fail_code;        /* with this error; 0: E_FORMAT */
    const char *_Atomic fail_id; /* only of this model; NULL: of all */
    const char *_Atomic dead_id; /* this model has failed while it was READY */
    atomic_bool hold;            /* open waits */
    atomic_bool held;
} host;

/* A test's own: after plan (1) and open (2), and before close (4). NULL: none. */
static int (*host_hook)(struct pool_instance *m, int number, struct err *e);

static inline int step(struct pool_instance *m, atomic_int *count, int number, struct err *e)
{
    const char *id = atomic_load(&host.fail_id);
    int code = atomic_load(&host.fail_code);

    atomic_fetch_add(count, 1);
    if (atomic_load(&host.fail_at) != number || (id && strcmp(id, m->id) != 0)) return OK;
    return err_set(e, code ? code : E_FORMAT, "test: step %d fails", number);
}

static inline int error_of(struct pool_instance *m, struct err *e)
{
    const char *id = atomic_load(&host.dead_id);

    if (id && strcmp(id, m->id) == 0) return err_set(e, E_WORKER, "test: it died");
    return pool_local.error(m, e);
}

static inline int plan(struct pool_instance *m, struct err *e)
{
    bool again = m->host_data != NULL;
    int rc = step(m, again ? &host.replans : &host.plans, 1, e);

    if (rc == OK) rc = pool_local.plan(m, e);
    return rc == OK && host_hook ? host_hook(m, 1, e) : rc;
}

static inline int open_it(struct pool_instance *m, struct err *e)
{
    int rc = step(m, &host.opens, 2, e);

    while (atomic_load(&host.hold)) {
        atomic_store(&host.held, true);
        usleep(500);
    }
    if (rc == OK) rc = pool_local.open(m, e);
    return rc == OK && host_hook ? host_hook(m, 2, e) : rc;
}

static inline int warm(struct pool_instance *m, struct err *e)
{
    int rc = step(m, &host.warms, 3, e);
    return rc == OK ? pool_local.warm(m, e) : rc;
}

static inline void close_it(struct pool_instance *m)
{
    atomic_fetch_add(&host.closes, 1);
    if (host_hook) host_hook(m, 4, NULL);
    pool_local.close(m);
}

static struct pool_host test_host;
static uint64_t (*host_own_bytes)(
    const struct pool_instance *m); /* a test's, before open_pool_of */

/* ---- a pool of models a, b, c, ... ---- */

static atomic_int n_changes;

static inline void on_change(void *arg)
{
    (void)arg;
    atomic_fetch_add(&n_changes, 1);
}

/* "first" is the model of the command line; `n` others are loaded on demand. */
static inline struct pool *open_pool_of(struct pool_opt o, int n)
{
    static const char *path, *const names[] = { "a", "b", "c", "d" };
    const char *first = "first";
    struct pool *p = NULL;
    struct err e = { 0 };

    memset(&host, 0, sizeof host);
    test_host = pool_local;
    test_host.plan = plan, test_host.open = open_it, test_host.warm = warm;
    test_host.close = close_it, test_host.error = error_of;
    test_host.own_bytes = host_own_bytes;
    path = repo(MODEL);
    o.paths = &path, o.aliases = &first, o.n = 1;
    if (!o.engine.n_ctx) o.engine = engine_options;
    o.host = &test_host;
    o.changed = on_change;
    if (pool_open(&p, &o, &e) != OK) fail_msg("%s", e.msg);
    for (int i = 0; i < n; i++) {
        struct pool_model m = { .id = names[i], .path = path, .keep_ms = -1 };
        int at;
        if (pool_add(p, &m, &at, &e) != OK) fail_msg("%s", e.msg);
        assert_int_equal(at, i + 1);
    }
    return p;
}

static inline void wait_state(struct pool *p, int i, enum pool_state state)
{
    for (int k = 0; k < LONG_MS && pool_state(p, i, NULL) != state; k++) usleep(1000);
    assert_string_equal(pool_state_name(pool_state(p, i, NULL)), pool_state_name(state));
}

/* ---- waits ---- */

struct waiter {
    struct pool_wait w;
    atomic_int done;
    bool now;
};

static inline void on_done(struct pool_wait *w)
{
    atomic_fetch_add(&((struct waiter *)w)->done, 1);
}

static inline void ask(struct pool *p, int i, struct waiter *w)
{
    *w = (struct waiter){ .w = { .done = on_done } };
    w->now = pool_load(p, i, &w->w) == POOL_NOW;
}

static inline void wait_done(struct waiter *w)
{
    for (int k = 0; k < LONG_MS && !w->now && !atomic_load(&w->done); k++) usleep(1000);
    if (!w->now) assert_int_equal(atomic_load(&w->done), 1);
}

/* Loads model i, which must work, and returns a reference. */
static inline struct pool_instance *load(struct pool *p, int i)
{
    struct waiter w;

    ask(p, i, &w);
    wait_done(&w);
    if (w.w.rc != OK) fail_msg("%s", w.w.err.msg);
    return w.w.model;
}

static inline void unload(struct pool *p, int i)
{
    struct waiter w = { .w = { .done = on_done } };

    w.now = pool_unload(p, i, false, &w.w) == POOL_NOW;
    wait_done(&w);
    assert_int_equal(w.w.rc, OK);
}

/* A few tokens; returns the finish. */
static inline enum finish infer(struct pool_instance *m)
{
    struct request *r = request_open();
    struct err e = { 0 };
    enum finish f = FINISH_NONE;
    struct event ev;

    for (int i = 0; i < 4; i++) ids_push(&r->prompt, 1 + i);
    r->max_tokens = 3;
    r->sample = m->sample;
    if (engine_submit(m->engine, r, &e) != OK) fail_msg("%s", e.msg);
    while (f == FINISH_NONE) {
        while (f == FINISH_NONE && outbox_pop(&r->out, &ev)) f = (enum finish)ev.finish;
        if (f == FINISH_NONE) usleep(200);
    }
    request_unref(r);
    return f;
}
#endif
