/* Engines without memory: loading, a request to its end, embeddings, a load beside a serving model.
 *
 * Engines are driven by hand (engine_opt.manual) where that is possible, so that the n-th event is
 * the same one in every run. */
#include "fault.h"

#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/engine_impl.h"
#include "engine/info.h"
#include "engine/request.h"
#include "engine/stats.h"
#include "grammar/grammar.h"
#include "kv/park.h"
#include "pool/pool.h"
#include "pool/prompter.h"
#include "tern.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- a request ---- */

static struct engine_opt options(void)
{
    return (struct engine_opt){
        .n_threads = 1, .n_ctx = 96, .max_seqs = 2, .kv_type = DT_NONE, .manual = true
    };
}

/* Steps the engine until the request has ended; copies its error. */
static int finish(struct engine *g, struct request *r, struct err *e)
{
    struct event ev = { 0 };
    int steps = 0;

    while (ev.finish == FINISH_NONE) {
        if (request_next(r, &ev)) continue;
        engine_step(g);
        if (++steps > 10000) fail_msg("the request does not end");
    }
    if (ev.finish != FINISH_ERROR) return OK;
    return err_set(e, r->err.code, "%s", r->err.msg);
}

static int run_request(struct engine *g, struct request *r, struct err *e)
{
    int rc = engine_submit(g, r, e);

    return rc == OK ? finish(g, r, e) : rc;
}

static int submit_ids(struct engine *g, bool embed, struct err *e)
{
    struct request *r = request_open();
    int rc;

    if (!r) return err_nomem(e, "the request");
    for (int i = 0; i < 20; i++) ids_push(&r->prompt, 3 + i);
    r->max_tokens = 4;
    r->ignore_eos = true;
    r->embed = embed;
    if ((rc = ids_check(&r->prompt, e)) == OK) rc = run_request(g, r, e);
    if (rc == OK && embed) {
        double sum = 0;
        for (int i = 0; i < 16; i++) sum += (double)r->vec[i] * r->vec[i];
        assert_true(sum > 0);
    }
    request_unref(r);
    return rc;
}

/* ---- engine open, one request, close ---- */

static int run_engine(void *arg, struct err *e)
{
    struct engine_opt o = options();
    struct engine *g = NULL;
    int rc = engine_open(&g, arg, &o, e);

    if (rc == OK) rc = submit_ids(g, false, e);
    engine_close(g);
    return rc;
}

static void an_engine_without_memory_reports_it(void **state)
{
    (void)state;
    fault_run("engine: attention", run_engine, (void *)repo("tests/golden/hf/qwen2"));
    fault_run("engine: recurrent state", run_engine, (void *)repo("tests/golden/hf/mamba2"));
}

/* A request, its KV blocks parked in a folder, and restored into the next engine. */
static int run_parked(void *arg, struct err *e)
{
    struct engine_opt o = options();
    struct engine *g = NULL;
    struct park *p = NULL;
    int n, rc = park_open(&p, &(struct park_opt){ .max_bytes = 1 << 20, .dir = temp_dir() }, e);

    o.park = p;
    for (int i = 0; i < 2 && rc == OK; i++) {
        if ((rc = engine_open(&g, arg, &o, e)) == OK) rc = submit_ids(g, false, e);
        if (rc == OK) engine_stop(g), rc = engine_park(g, p, &n, e);
        engine_close(g);
        g = NULL;
    }
    park_close(p);
    return rc;
}

static void parking_without_memory_reports_it(void **state)
{
    (void)state;
    fault_run("engine: parked KV blocks", run_parked, (void *)repo("tests/golden/hf/qwen2"));
}

/* With its thread, and the warm-up. */
static int run_threaded(void *arg, struct err *e)
{
    struct engine_opt o = options();
    struct engine *g = NULL;
    int rc;

    o.manual = false;
    if ((rc = engine_open(&g, arg, &o, e)) == OK) rc = engine_warm(g, e);
    engine_close(g);
    return rc;
}

static void an_engine_with_a_thread_without_memory_reports_it(void **state)
{
    (void)state;
    fault_run("engine: thread and warm-up", run_threaded, (void *)repo("tests/golden/hf/qwen2"));
}

/* ---- text: everything that a request can ask for, on an engine that stays open ---- */

static struct engine *text_engine;
static struct prompter *text_prompter;

static int make_text_prompt(struct request *r, struct err *e)
{
    struct chat_msg msgs[] = { { STR("system"), STR("Be brief.") }, { STR("user"), STR("Hi!") } };
    struct prompt_input in = { .msgs = msgs, .n_msgs = 2, .find_borders = true };
    struct prompt_output out = { 0 };
    int rc = prompter_make(text_prompter, &in, &out, e);

    if (rc == OK) {
        r->prompt = out.ids;
        out.ids = (struct ids){ 0 };
    }
    prompt_output_release(&out);
    return rc;
}

static int run_text(void *arg, struct err *e)
{
    static const struct str stops[] = { { "the end", 7 }, { "\n\n", 2 } };
    struct grammar_spec spec = { .kind = GRAMMAR_REGEX, .text = STR("[a-z ]{4,30}") };
    struct request *r = request_open();
    int rc;

    if (!r) return err_nomem(e, "the request");
    if ((rc = make_text_prompt(r, e)) != OK) goto out;
    if (!request_set_stops(r, stops, 2)) {
        rc = err_nomem(e, "the stop strings");
        goto out;
    }
    r->max_tokens = 8;
    r->n_top = 3;
    r->sample.temp = 0;
    if (arg && (rc = engine_grammar(text_engine, &spec, &r->grammar, e)) != OK) goto out;
    rc = run_request(text_engine, r, e);
out:
    request_unref(r);
    return rc;
}

static void a_request_without_memory_leaves_the_engine_as_it_was(void **state)
{
    struct engine_opt o = options();
    struct err e = { 0 };
    (void)state;

    if (engine_open(&text_engine, repo("models/tern-tales.gguf"), &o, &e) != OK ||
        prompter_open(&text_prompter, engine_tokenizer(text_engine), NULL, &e) != OK)
        fail_msg("%s", e.msg);
    fault_run("request: text", run_text, NULL);
    assert_int_equal(gauge_get(&engine_stats(text_engine)->kv_used), 0);
    assert_true(engine_is_idle(text_engine));
    fault_run("request: text and grammar", run_text, text_engine);
    assert_int_equal(gauge_get(&engine_stats(text_engine)->kv_used), 0);
    prompter_close(text_prompter);
    engine_close(text_engine);
}

/* ---- vectors ---- */

static int run_embedding(void *arg, struct err *e)
{
    struct engine_opt o = options();
    struct engine *g = NULL;
    int rc = engine_open(&g, arg, &o, e);

    if (rc == OK) rc = submit_ids(g, true, e);
    engine_close(g);
    return rc;
}

static void an_embedding_without_memory_is_an_error(void **state)
{
    (void)state;
    fault_run("embedding: decoder", run_embedding, (void *)repo("tests/golden/hf/qwen2"));
    fault_run("embedding: ONNX", run_embedding, (void *)repo("tests/golden/onnx/embed"));
}

/* ---- a load beside a serving model ---- */

static struct engine *serving;

static int run_load(void *arg, struct err *e)
{
    const char *paths[1] = { arg };
    struct pool_opt o = {
        .paths = paths, .n = 1, .memory_limit = (uint64_t)1 << 40, .engine = options()
    };
    struct pool_instance *m = NULL;
    struct pool *p = NULL;
    struct err other = { 0 };
    int rc = pool_open(&p, &o, e);

    if (rc == OK) {
        while (pool_n_loaded(p) == 0) usleep(100);
        rc = pool_find(p, STR(""), &m, e);
    }
    pool_release(m);
    pool_close(p);
    fault_pause();
    if (submit_ids(serving, false, &other) != OK) fail_msg("the serving model: %s", other.msg);
    fault_resume();
    return rc;
}

static void a_load_that_fails_leaves_the_serving_model_alone(void **state)
{
    struct engine_opt o = options();
    struct err e = { 0 };
    (void)state;

    if (engine_open(&serving, repo("tests/golden/hf/qwen2"), &o, &e) != OK) fail_msg("%s", e.msg);
    fault_run("pool: a load", run_load, (void *)repo("tests/golden/hf/phi3"));
    engine_close(serving);
}

/* ---- a load on demand, and an unload ---- */

static void on_done(struct pool_wait *w) { atomic_store((atomic_int *)w->arg, 1); }

static void await(enum pool_wait_now now, atomic_int *done)
{
    while (now == POOL_WAIT && !atomic_load(done)) usleep(100);
    atomic_store(done, 0);
}

/* Every step of the load may fail: the error is the one that is waited for, nothing is counted any
 * more, and the model can be unloaded and loaded again. */
static int run_on_demand(void *arg, struct err *e)
{
    const char *paths[1] = { repo("tests/golden/hf/qwen2") };
    struct pool_opt o = {
        .paths = paths, .n = 1, .memory_limit = (uint64_t)1 << 40, .engine = options()
    };
    struct pool_model cold = { .id = "cold", .path = arg, .keep_ms = -1 };
    atomic_int done = 0;
    struct pool_wait w = { .done = on_done, .arg = &done, .by_operator = true };
    struct pool *p = NULL;
    int rc = pool_open(&p, &o, e), i = -1;

    if (rc == OK) {
        while (pool_n_loaded(p) == 0) usleep(100);
        rc = pool_add(p, &cold, &i, e);
    }
    if (rc == OK) {
        uint64_t before = pool_bytes(p);
        await(pool_load(p, i, &w), &done);
        if ((rc = w.rc) != OK) *e = w.err;
        pool_release(w.model);
        await(pool_unload(p, i, false, &w), &done);
        if (pool_bytes(p) != before) fail_msg("bytes of a model are still counted");
    }
    pool_close(p);
    return rc;
}

static void a_load_on_demand_that_fails_leaves_nothing(void **state)
{
    (void)state;
    fault_run("pool: a load on demand", run_on_demand, (void *)repo("tests/golden/hf/phi3"));
}

/* ---- a load for which another model goes ---- */

static int load_cold(struct pool *p, int i, struct err *e)
{
    atomic_int done = 0;
    struct pool_wait w = { .done = on_done, .arg = &done, .by_operator = true };

    await(pool_load(p, i, &w), &done);
    pool_release(w.model);
    if (w.rc != OK && e) *e = w.err;
    return w.rc;
}

static void unload_cold(struct pool *p, int i)
{
    atomic_int done = 0;
    struct pool_wait w = { .done = on_done, .arg = &done };

    await(pool_unload(p, i, false, &w), &done);
}

/* Faults begin when a is loaded, and end when b is, or is not: plan, eviction of a, plan, open, warm.
 * Whatever fails: the first model is there, nothing else is counted, and a can be loaded again. */
static int run_swap(void *arg, struct err *e)
{
    const char *paths[1] = { repo("tests/golden/hf/qwen2") };
    struct pool_opt o = { .paths = paths,
                          .n = 1,
                          .memory_limit = POOL_MEMORY_AUTO,
                          .max_loaded = 2,
                          .residence_ms = 1,
                          .warm = true,
                          .engine = options() };
    struct pool_model cold[2] = { { .id = "a", .path = paths[0], .keep_ms = -1 },
                                  { .id = "b", .path = arg, .keep_ms = -1 } };
    struct pool *p = NULL;
    uint64_t one;
    int at[2], rc;

    o.engine.manual = false;
    fault_hold();
    if (pool_open(&p, &o, NULL) != OK) fail_msg("no pool");
    while (pool_n_loaded(p) == 0) usleep(100);
    one = pool_bytes(p);
    for (int i = 0; i < 2; i++) assert_int_equal(pool_add(p, &cold[i], &at[i], NULL), OK);
    assert_int_equal(load_cold(p, at[0], NULL), OK);
    fault_release();
    rc = load_cold(p, at[1], e);
    fault_hold();
    assert_int_equal(pool_state(p, 0, NULL), POOL_READY);
    assert_int_equal(pool_state(p, at[1], NULL), rc == OK ? POOL_READY : POOL_FAILED);
    unload_cold(p, at[1]);
    assert_int_equal(pool_bytes(p), pool_state(p, at[0], NULL) == POOL_READY ? 2 * one : one);
    assert_int_equal(load_cold(p, at[0], NULL), OK);
    assert_int_equal(pool_bytes(p), 2 * one);
    pool_close(p);
    fault_release();
    return rc;
}

static void a_load_that_fails_after_an_eviction_leaves_nothing(void **state)
{
    (void)state;
    fault_run("pool: a load that another model goes for", run_swap,
              (void *)repo("tests/golden/hf/phi3"));
}

/* ---- a model that fails and is opened again ---- */

static int fail_start(struct runner *r, const struct batch *b, struct err *e)
{
    (void)r, (void)b;
    return err_set(e, E_DEVICE, "test: the device has failed");
}

/* The model fails after it was READY. The next load may fail for want of memory; the one after that
 * succeeds. */
static int run_reopen(void *arg, struct err *e)
{
    const char *paths[1] = { arg };
    struct pool_opt o = { .paths = paths, .n = 1, .retry_ms = 1, .engine = options() };
    struct pool_instance *m = NULL;
    struct pool *p = NULL;
    struct err ignored;
    int rc = pool_open(&p, &o, e);

    if (rc != OK) return rc;
    while (pool_n_loaded(p) == 0) usleep(100);
    if ((rc = pool_find(p, STR(""), &m, e)) == OK) {
        m->engine->runner->start = fail_start;
        while (engine_error(m->engine, NULL) == OK) submit_ids(m->engine, false, &ignored);
        pool_release(m);
        while (!(m = pool_acquire(p, 0)) || engine_error(m->engine, NULL) != OK) {
            pool_release(m);
            usleep(100);
        }
        fault_pause();
        rc = submit_ids(m->engine, false, e);
        fault_resume();
        pool_release(m);
    }
    pool_close(p);
    return rc;
}

static void a_failed_model_is_opened_again_whatever_fails_meanwhile(void **state)
{
    (void)state;
    log_set_level(LOG_ERROR + 1);
    fault_run("pool: a model that fails", run_reopen, (void *)repo("tests/golden/hf/qwen2"));
    log_set_level(LOG_ERROR);
}

/* ---- the C ABI ---- */

/* Opens and closes the model: the engine thread must have dropped its references before the count. */
static int run_abi(void *arg, struct err *e)
{
    static const int32_t prompt[] = { 5, 6, 7, 8 };
    tern_options o;
    tern_params p;
    tern_model *m = NULL;
    tern_request *r = NULL;
    tern_event ev = { 0 };
    int rc;

    tern_options_init(&o);
    o.threads = 1;
    o.context = 64;
    if ((rc = tern_open(&m, arg, &o)) == TERN_OK) {
        tern_params_init(&p, m);
        p.max_tokens = 3;
        rc = tern_submit_ids(&r, m, prompt, 4, &p);
    }
    while (rc == TERN_OK && ev.finish == TERN_FINISH_NONE) rc = tern_next(r, &ev);
    if (rc != TERN_OK) err_set(e, rc, "%s", tern_error());
    tern_request_close(r);
    tern_close(m);
    return rc;
}

static int run_tokenize(void *arg, struct err *e)
{
    int32_t *ids = NULL;
    char *text = NULL;
    size_t n = 0, n_text;
    int rc = tern_tokenize(arg, "Once upon a time", 16, 0, &ids, &n);

    if (rc == TERN_OK) rc = tern_detokenize(arg, ids, n, &text, &n_text);
    if (rc != TERN_OK) err_set(e, rc, "%s", tern_error());
    else assert_string_equal(text, "Once upon a time");
    tern_free(ids);
    tern_free(text);
    return rc;
}

static void the_abi_without_memory_returns_an_error(void **state)
{
    tern_model *m = NULL;
    (void)state;

    fault_run("abi: open, submit, next", run_abi, (void *)repo("tests/golden/hf/qwen2"));
    assert_int_equal(tern_open(&m, repo("models/tern-tales.gguf"), NULL), TERN_OK);
    fault_run("abi: tokenize", run_tokenize, m);
    tern_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_engine_without_memory_reports_it),
        cmocka_unit_test(parking_without_memory_reports_it),
        cmocka_unit_test(an_engine_with_a_thread_without_memory_reports_it),
        cmocka_unit_test(a_request_without_memory_leaves_the_engine_as_it_was),
        cmocka_unit_test(an_embedding_without_memory_is_an_error),
        cmocka_unit_test(a_load_that_fails_leaves_the_serving_model_alone),
        cmocka_unit_test(a_load_on_demand_that_fails_leaves_nothing),
        cmocka_unit_test(a_load_that_fails_after_an_eviction_leaves_nothing),
        cmocka_unit_test(a_failed_model_is_opened_again_whatever_fails_meanwhile),
        cmocka_unit_test(the_abi_without_memory_returns_an_error),
    };

    fault_init();
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
