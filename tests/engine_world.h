/* engine_world.h - engines on a small model, stepped by the test or by their thread, and requests
 * to them. */
#ifndef TERN_TESTS_ENGINE_WORLD_H
#define TERN_TESTS_ENGINE_WORLD_H

#include "support.h"

#include "base/mem.h"
#include "base/rng.h"
#include "engine/engine_impl.h"
#include "tern.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* A tiny random model without a tokenizer. The reference kernels are used, so results do not depend
 * on the batch. */
#define MODEL "tests/golden/hf/qwen2"
static const char *model = MODEL;

/* A request and the events read from it so far. */
struct client {
    struct request *r;
    struct ids out;
    enum finish finish;
    int n_events;
};

static inline struct engine *open_engine(struct engine_opt o)
{
    struct engine *g = NULL;
    const char *path = repo(model) ? repo(model) : shared(model);
    struct err e = { 0 };
    o.reference = true;
    o.n_threads = 1;
    o.kv_type = DT_NONE;
    if (engine_open(&g, path, &o, &e) != OK) fail_msg("%s", e.msg);
    return g;
}

static inline struct engine *open_manual(struct engine_opt o)
{
    o.manual = true;
    return open_engine(o);
}

static inline struct client make_client_of(const int32_t *ids, int n, int max_tokens)
{
    struct client a = { .r = request_open() };
    for (int i = 0; i < n; i++) ids_push(&a.r->prompt, ids[i]);
    a.r->max_tokens = max_tokens;
    a.r->sample.temp = 0;
    a.r->ignore_eos = true;
    return a;
}

/* A prompt of n tokens that depend on the seed. */
static inline struct client make_client(int seed, int n, int max_tokens)
{
    int32_t ids[512];
    for (int i = 0; i < n; i++) ids[i] = (seed * 131 + i * 31 + i * i * 7) % 100 + 3;
    return make_client_of(ids, n, max_tokens);
}

static inline void release_client(struct client *a)
{
    request_unref(a->r);
    ids_release(&a->out);
}

static inline void submit_client(struct engine *g, struct client *a)
{
    struct err e = { 0 };
    if (engine_submit(g, a->r, &e) != OK) fail_msg("%s", e.msg);
}

static inline void read_events(struct client *a)
{
    struct event ev;
    while (request_next(a->r, &ev)) {
        assert_int_equal(a->finish, FINISH_NONE); /* no event follows the last one */
        a->n_events++;
        if (ev.id >= 0) ids_push(&a->out, ev.id);
        a->finish = (enum finish)ev.finish;
    }
}

static inline int run_clients(struct engine *g, struct client *const *all, int n)
{
    int steps = 0, seen, read = 1;
    while (engine_step(g) || read > 0) { /* a full outbox stops a request until it is read */
        struct err e = { 0 };
        assert_true(++steps < (HARD ? 100000 : 10000));
        if (engine_check(g, &e) != OK) fail_msg("%s", e.msg);
        read = 0;
        for (int i = 0; i < n; i++) {
            seen = all[i]->n_events;
            read_events(all[i]);
            read += all[i]->n_events - seen;
        }
    }
    for (int i = 0; i < n; i++) read_events(all[i]);
    return steps;
}

static inline int run_client(struct engine *g, struct client *a)
{
    submit_client(g, a);
    return run_clients(g, &a, 1);
}

static inline void assert_same(const struct client *a, const struct client *b)
{
    assert_int_equal(a->out.n, b->out.n);
    assert_memory_equal(a->out.p, b->out.p, a->out.n * sizeof *a->out.p);
}

/* The result of a fresh engine without other requests, which all other runs must reproduce. */
static inline struct client run_alone(int seed, int n, int max_tokens)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256 });
    struct client a = make_client(seed, n, max_tokens);
    run_client(g, &a);
    assert_int_equal(a.finish, FINISH_LENGTH);
    engine_close(g);
    return a;
}

static inline int64_t kv_blocks_used(struct engine *g)
{
    return gauge_get(&engine_stats(g)->kv_used);
}
#endif
