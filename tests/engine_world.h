/* engine_world.h - engines on a small model, driven by hand or with their thread, and requests to
 * them. */
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

/* A tiny random model without a tokenizer, plain C kernels: results do not depend on the batch. */
#define MODEL "tests/golden/hf/qwen2"
static const char *model = MODEL;

/* A request and what was read of it. */
struct asked {
    struct request *r;
    struct ids out;
    enum finish finish;
    int n_events;
};

static inline struct engine *open_engine(struct engine_opt o)
{
    struct engine *g = NULL;
    struct err e = { 0 };
    o.reference = true;
    o.n_threads = 1;
    o.kv_type = DT_NONE;
    if (engine_open(&g, repo(model), &o, &e) != OK) fail_msg("%s", e.msg);
    return g;
}

static inline struct engine *open_manual(struct engine_opt o)
{
    o.manual = true;
    return open_engine(o);
}

static inline struct asked ask(const int32_t *ids, int n, int max_tokens)
{
    struct asked a = { .r = request_open() };
    for (int i = 0; i < n; i++) ids_push(&a.r->prompt, ids[i]);
    a.r->max_tokens = max_tokens;
    a.r->sample.temp = 0;
    a.r->ignore_eos = true;
    return a;
}

/* A prompt of n tokens that differ from seed to seed. */
static inline struct asked ask_any(int seed, int n, int max_tokens)
{
    int32_t ids[512];
    for (int i = 0; i < n; i++) ids[i] = (seed * 131 + i * 31 + i * i * 7) % 100 + 3;
    return ask(ids, n, max_tokens);
}

static inline void done(struct asked *a)
{
    request_unref(a->r);
    ids_release(&a->out);
}

static inline void submit(struct engine *g, struct asked *a)
{
    struct err e = { 0 };
    if (engine_submit(g, a->r, &e) != OK) fail_msg("%s", e.msg);
}

static inline void take(struct asked *a)
{
    struct event ev;
    while (request_next(a->r, &ev)) {
        assert_int_equal(a->finish, FINISH_NONE); /* nothing comes behind the end */
        a->n_events++;
        if (ev.id >= 0) ids_push(&a->out, ev.id);
        a->finish = (enum finish)ev.finish;
    }
}

static inline int run_all(struct engine *g, struct asked *const *all, int n)
{
    int steps = 0;
    while (engine_step(g)) {
        assert_true(++steps < 10000);
        for (int i = 0; i < n; i++) take(all[i]);
    }
    for (int i = 0; i < n; i++) take(all[i]);
    return steps;
}

static inline int run_one(struct engine *g, struct asked *a)
{
    submit(g, a);
    return run_all(g, &a, 1);
}

static inline void assert_same(const struct asked *a, const struct asked *b)
{
    assert_int_equal(a->out.n, b->out.n);
    assert_memory_equal(a->out.p, b->out.p, a->out.n * sizeof *a->out.p);
}

/* What a fresh engine gives: the truth the others are held to. */
static inline struct asked alone(int seed, int n, int max_tokens)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256 });
    struct asked a = ask_any(seed, n, max_tokens);
    run_one(g, &a);
    assert_int_equal(a.finish, FINISH_LENGTH);
    engine_close(g);
    return a;
}

static inline int64_t used(struct engine *g) { return gauge_get(&engine_stats(g)->kv_used); }
#endif
