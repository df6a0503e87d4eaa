/* Readiness of the server, the watchdog for stalled engines, the history of the status page, and
 * quantiles of recent requests.
 *
 * Uses the model that ships with tern. */
#include "support.h"

#include "api/api.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/stats.h"
#include "pool/pool.h"
#include "server/health.h"
#include "server/server_impl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct world {
    struct settings s;
    struct server v;
};

static void open_world(struct world *w, const char *path)
{
    char *argv[] = { "serve" };
    const char *paths[1] = { path };
    struct pool_opt o = { .paths = paths,
                          .n = 1,
                          .engine = { .kv_type = DT_NONE,
                                      .n_ctx = 128,
                                      .max_batch = 64,
                                      .max_seqs = 2,
                                      .n_threads = 1 } };
    struct err e = { 0 };
    bool helped;

    memset(w, 0, sizeof *w);
    assert_int_equal(settings_load(&w->s, 1, argv, &helped, &e), OK);
    w->v.s = &w->s;
    w->v.start_ns = clock_ns();
    assert_int_equal(pool_open(&w->v.pool, &o, &e), OK);
}

static void wait_loaded(struct world *w)
{
    for (int i = 0; i < 60000 && pool_n_loaded(w->v.pool) < 1; i++)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    assert_int_equal(pool_n_loaded(w->v.pool), 1);
}

static void close_world(struct world *w)
{
    pool_close(w->v.pool);
    buf_release(&w->v.health.body);
    mem_free(w->v.notes);
    settings_release(&w->s);
}

static const char *body(struct world *w) { return buf_cstr(&w->v.health.body); }

static void the_server_is_ready_when_its_models_are_loaded(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, repo("models/tern-tales.gguf"));
    wait_loaded(&w);
    health_update(&w.v);
    assert_int_equal(w.v.health.ready, READY_OK);
    assert_string_equal(
        body(&w), "{\"status\":\"ready\",\"models\":{\"loaded\":1,\"failed\":0,\"total\":1}}");
    w.v.life = LIFE_DRAIN;
    health_update(&w.v);
    assert_int_equal(w.v.health.ready, READY_DRAINING);
    assert_non_null(strstr(body(&w), "\"reason\":\"shutting_down\""));
    close_world(&w);
}

static void a_model_that_failed_to_load_is_reported_as_the_reason(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, temp_file("bad.gguf", "GGUFx", 5));
    wait_loaded(&w);
    health_update(&w.v);
    assert_int_equal(w.v.health.ready, READY_FAILED);
    assert_non_null(strstr(body(&w), "\"reason\":\"model_load_failed\""));
    assert_non_null(strstr(body(&w), "bad.gguf"));
    atomic_store((_Atomic int *)&pool_at(w.v.pool, 0)->state, POOL_LOADING);
    health_update(&w.v);
    assert_int_equal(w.v.health.ready, READY_LOADING);
    assert_non_null(strstr(body(&w), "\"reason\":\"model_loading\""));
    assert_non_null(strstr(body(&w), "\"loaded\":0,\"failed\":0,\"total\":1"));
    close_world(&w);
}

static void a_stalled_engine_and_its_recovery_are_noticed(void **state)
{
    struct engine_stats *s;
    struct world w;

    (void)state;
    log_set_level(LOG_ERROR + 1);
    open_world(&w, repo("models/tern-tales.gguf"));
    wait_loaded(&w);
    s = pool_stats(w.v.pool, 0);
    w.s.watchdog_ms = 1000;

    gauge_set(&s->step_begin_ns, (int64_t)(clock_ns() - 500000000u)); /* half of the limit */
    health_tick(&w.v);
    assert_int_equal(w.v.health.ready, READY_OK);
    gauge_set(&s->step_begin_ns, (int64_t)(clock_ns() - 2000000000u)); /* a step above the limit */
    health_tick(&w.v);
    assert_int_equal(w.v.health.ready, READY_STALLED);
    assert_non_null(strstr(body(&w), "\"reason\":\"engine_stalled\""));
    gauge_set(&s->step_begin_ns, 0);
    health_tick(&w.v);
    assert_int_equal(w.v.health.ready, READY_OK);

    gauge_set(&s->beat_ns,
              (int64_t)(clock_ns() - 5000000000u)); /* an idle engine has no heartbeat */
    health_tick(&w.v);
    assert_int_equal(w.v.health.ready, READY_OK);
    gauge_set(&s->waiting, 3); /* requests wait, and no heartbeat */
    health_tick(&w.v);
    assert_int_equal(w.v.health.ready, READY_STALLED);
    w.s.watchdog_ms = 0; /* the watchdog is off */
    health_tick(&w.v);
    assert_int_equal(w.v.health.ready, READY_OK);
    gauge_set(&s->waiting, 0);
    close_world(&w);
    log_set_level(LOG_WARN);
}

static void history_keeps_the_last_two_minutes(void **state)
{
    struct world w;

    (void)state;
    open_world(&w, repo("models/tern-tales.gguf"));
    wait_loaded(&w);
    assert_null(history_before(&w.v.history, 5));
    for (int i = 0; i < 3 * HISTORY; i++) health_tick(&w.v);
    assert_ptr_equal(history_last(&w.v.history),
                     &w.v.history.at[(3 * HISTORY - 1) % (HISTORY + 1)]);
    assert_true(history_before(&w.v.history, 5)->at_ns < history_last(&w.v.history)->at_ns);
    assert_true(history_before(&w.v.history, 100000)->at_ns <
                history_before(&w.v.history, 5)->at_ns);
    close_world(&w);
}

static void quantiles_of_recent_requests_are_exact(void **state)
{
    struct recent *r = calloc(1, sizeof *r);
    struct quantiles q;

    (void)state;
    recent_quantiles(r, RECENT_TTFT, &q);
    assert_true(q.p50 == 0 && q.mean == 0);
    for (int i = 1; i <= 5000; i++)
        recent_add(r, &(struct api_end){ .n_choices = 1,
                                         .output_tokens = 11,
                                         .queue_ms = 1,
                                         .prefill_ms = i,
                                         .decode_ms = 50,
                                         .total_ms = i + 51 });
    recent_add(r, &(struct api_end){ .n_choices = 1,
                                     .prefill_ms = 1e9 }); /* generated no token: ignored */
    recent_quantiles(r, RECENT_PREFILL, &q);
    assert_true(q.p50 > 4480 && q.p50 < 4496 && q.p99 > 4980 && q.p99 <= 5000);
    recent_quantiles(r, RECENT_ITL, &q);
    assert_true(q.p50 == 5 && q.p99 == 5);
    free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_server_is_ready_when_its_models_are_loaded),
        cmocka_unit_test(a_model_that_failed_to_load_is_reported_as_the_reason),
        cmocka_unit_test(a_stalled_engine_and_its_recovery_are_noticed),
        cmocka_unit_test(history_keeps_the_last_two_minutes),
        cmocka_unit_test(quantiles_of_recent_requests_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
