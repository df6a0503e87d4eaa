/* Requests for models that are not loaded: they wait for one load, without a thread, until it is there,
 * fails, or they end for another reason; and the routes that load and unload. */
#include "api_world.h"

extern const struct pool_host pool_local;

/* A host that can be told to wait in `open`, or to fail. */
static struct {
    atomic_bool hold, held, fail;
    atomic_int opens;
} host;

static int open_it(struct pool_instance *m, struct err *e)
{
    atomic_fetch_add(&host.opens, 1);
    while (atomic_load(&host.hold)) {
        atomic_store(&host.held, true);
        usleep(500);
    }
    if (atomic_load(&host.fail)) return err_set(e, E_UNSUPPORTED, "test: no such kernel");
    return pool_local.open(m, e);
}

static struct pool_host test_host;

/* The model of the world is the first; "cold" and "other" are loaded on demand. */
static void open_world(void)
{
    struct setup s = { .engine = { .n_ctx = 256, .max_seqs = 4 }, .host = &test_host };
    const char *names[] = { "cold", "other" };
    struct err e = { 0 };

    memset(&host, 0, sizeof host);
    test_host = pool_local;
    test_host.open = open_it;
    w = world_open(s);
    for (int i = 0; i < 2; i++) {
        struct pool_model m = { .id = names[i],
                                .path = repo("models/tern-tales.gguf"),
                                .keep_ms = -1 };
        if (pool_add(w->pool, &m, NULL, &e) != OK) fail_msg("%s", e.msg);
    }
    atomic_store(&host.opens, 0);
}

/* A request for the model that is not loaded; more: further members, ",\"x\":1". */
static int send_cold(const char *headers, const char *more)
{
    char body[200];

    snprintf(body, sizeof body, "{\"model\":\"cold\",\"prompt\":\"Once\",\"max_tokens\":3%s}",
             more);
    return send_request(w, "/v1/completions", headers, body);
}

static void check_error(int fd, int status, const char *code)
{
    struct answer a = read_answer(fd);

    if (a.status != status) fail_msg("status %d: %s", a.status, a.body.p);
    assert_string_equal(text_at(a.json, "error.code"), code);
    answer_release(&a);
}

static void check_text(int fd)
{
    struct answer a = read_answer(fd);

    if (a.status != 200) fail_msg("status %d: %s", a.status, a.body.p);
    assert_int_equal(int_at(a.json, "usage.completion_tokens"), 3);
    assert_string_equal(text_at(a.json, "model"), "cold");
    answer_release(&a);
}

static void check_success(int fd)
{
    struct answer a = read_answer(fd);

    if (a.status != 200) fail_msg("status %d: %s", a.status, a.body.p);
    assert_true(json_is_true(json_at(a.json, "success")));
    answer_release(&a);
}

static void wait_model(int i, enum pool_state state)
{
    for (int k = 0; k < 60000 && pool_state(w->pool, i, NULL) != state; k++) usleep(1000);
    assert_string_equal(pool_state_name(pool_state(w->pool, i, NULL)), pool_state_name(state));
}

/* So many calls wait for the model "cold". */
static void wait_waits(int n)
{
    struct pool_view v;

    for (int k = 0; k < 60000; k++) {
        pool_view(w->pool, 1, &v);
        if (v.n_waits == n) return;
        usleep(1000);
    }
    fail_msg("%d calls wait, not %d", v.n_waits, n);
}

static void requests_for_a_cold_model_wait_for_one_load(void **state)
{
    int fd[12];
    struct answer a;

    (void)state;
    open_world();
    atomic_store(&host.hold, true);
    for (int i = 0; i < 12; i++) fd[i] = send_cold("", i % 2 ? ",\"stream\":false" : "");
    wait_waits(12);
    /* No request thread is held: others are prepared and answered meanwhile. */
    a = send_and_read("/v1/completions", "", "{\"prompt\":\"Once\",\"max_tokens\":2}");
    assert_int_equal(a.status, 200);
    answer_release(&a);
    a = send_and_read("/calls", "", NULL);
    assert_non_null(strstr(a.body.p, "\"state\":\"loading\""));
    answer_release(&a);
    atomic_store(&host.hold, false);
    for (int i = 0; i < 12; i++) check_text(fd[i]);
    assert_int_equal(atomic_load(&host.opens), 1);
    assert_int_equal(counter_get(&pool_counts(w->pool, 1)->loads), 1);
    world_close(w);
}

static void waiting_ends_with_the_deadline_a_cancel_or_the_client(void **state)
{
    int late, cancelled, gone, stays;
    struct answer a;

    (void)state;
    open_world();
    atomic_store(&host.hold, true);
    stays = send_cold("", "");
    cancelled = send_cold("X-Correlation-Id: wait-1\r\n", "");
    gone = send_cold("", "");
    late = send_cold("", ",\"deadline_ms\":400");
    wait_waits(4);
    check_error(late, 504, "deadline_exceeded");
    wait_waits(3);
    a = send_and_read("/v1/requests/wait-1/cancel", "", "");
    assert_true(json_is_true(json_at(a.json, "cancelled")));
    answer_release(&a);
    check_error(cancelled, 499, "cancelled");
    wait_waits(2);
    close(gone);
    wait_waits(1);
    /* A deadline that the load cannot meet is refused at once. */
    check_error(send_cold("", ",\"deadline_ms\":50"), 504, "deadline_exceeded");
    atomic_store(&host.hold, false);
    check_text(stays);
    world_close(w);
}

static void a_failed_load_is_the_answer_to_all_who_waited(void **state)
{
    int fd[5];

    (void)state;
    log_set_level(LOG_ERROR + 1);
    open_world();
    atomic_store(&host.hold, true);
    atomic_store(&host.fail, true);
    for (int i = 0; i < 5; i++) fd[i] = send_cold("", "");
    wait_waits(5);
    atomic_store(&host.hold, false);
    for (int i = 0; i < 5; i++) check_error(fd[i], 500, "model_load_failed");
    check_error(send_cold("", ""), 500, "model_load_failed"); /* and no second load */
    assert_int_equal(atomic_load(&host.opens), 1);
    check_error(send_request(w, "/models/load", "", "{\"model\":\"cold\"}"), 500,
                "model_load_failed");
    assert_int_equal(atomic_load(&host.opens), 2); /* an operator may try again */
    atomic_store(&host.fail, false);
    check_success(send_request(w, "/models/load", "", "{\"model\":\"cold\"}"));
    check_text(send_cold("", ""));
    world_close(w);
    log_set_level(LOG_WARN);
}

static void the_end_of_the_server_ends_the_waiting(void **state)
{
    int fd;

    (void)state;
    open_world();
    atomic_store(&host.hold, true);
    fd = send_cold("", "");
    wait_waits(1);
    pool_drain(w->pool);
    atomic_store(&host.hold, false);
    check_error(fd, 503, "shutting_down");
    check_error(send_cold("", ""), 503, "shutting_down");
    world_close(w);
}

static void models_are_loaded_and_unloaded_by_request(void **state)
{
    struct answer a;
    int running;

    (void)state;
    open_world();
    check_success(send_request(w, "/models/load", "", "{\"model\":\"cold\"}"));
    assert_int_equal(pool_state(w->pool, 1, NULL), POOL_READY);
    a = send_and_read("/models", "", NULL);
    assert_string_equal(text_at(a.json, "data.1.status.value"), "loaded");
    assert_string_equal(text_at(a.json, "data.2.status.value"), "unloaded");
    answer_release(&a);
    /* A request in flight is not cut off by the unload, which is answered when the model is gone. */
    running = send_request(w, "/v1/completions", "",
                           "{\"model\":\"cold\",\"prompt\":\"Once\",\"max_tokens\":100,"
                           "\"ignore_eos\":true}");
    check_success(send_request(w, "/models/unload", "", "{\"model\":\"cold\"}"));
    a = read_answer(running);
    assert_int_equal(a.status, 200);
    assert_int_equal(int_at(a.json, "usage.completion_tokens"), 100);
    answer_release(&a);
    check_error(send_request(w, "/models/load", "", "{\"model\":\"nobody\"}"), 404,
                "model_not_found");
    check_error(send_request(w, "/models/load", "", "{}"), 400, "invalid_request");
    check_error(send_request(w, "/models/unload", "", "[]"), 400, "invalid_request");
    world_close(w);
}

static void an_instance_of_the_past_is_refused(void **state)
{
    struct answer a;

    (void)state;
    open_world();
    a = send_and_read("/api/v1/models/load", "", "{\"model\":\"cold\"}");
    assert_string_equal(text_at(a.json, "instance_id"), "cold@1");
    answer_release(&a);
    check_success(send_request(w, "/models/unload", "", "{\"model\":\"cold\"}"));
    check_success(send_request(w, "/models/load", "", "{\"model\":\"cold\"}"));
    check_error(send_request(w, "/api/v1/models/unload", "", "{\"instance_id\":\"cold@1\"}"), 404,
                "model_not_found");
    assert_int_equal(pool_state(w->pool, 1, NULL), POOL_READY);
    a = send_and_read("/api/v1/models/unload", "", "{\"instance_id\":\"cold@2\"}");
    assert_int_equal(a.status, 200);
    answer_release(&a);
    wait_model(1, POOL_UNLOADED);
    world_close(w);
}

static void keep_alive_says_how_long_a_model_stays(void **state)
{
    static const char *const bad[] = { ",\"keep_alive\":\"5 parrots\"", ",\"keep_alive\":\"\"",
                                       ",\"ttl\":[1]" };
    struct pool_view v;

    (void)state;
    open_world();
    check_text(send_cold("", ",\"keep_alive\":\"1h30m\""));
    pool_view(w->pool, 1, &v);
    assert_in_range(v.expires_ms, 1, 5400000);
    check_text(send_cold("", ",\"ttl\":60"));
    pool_view(w->pool, 1, &v);
    assert_in_range(v.expires_ms, 1, 60000);
    check_text(send_cold("", ",\"keep_alive\":-1"));
    pool_view(w->pool, 1, &v);
    assert_int_equal(v.expires_ms, -1);
    check_text(send_cold("", ",\"keep_alive\":0"));
    wait_model(1, POOL_UNLOADED);
    for (int i = 0; i < 3; i++) check_error(send_cold("", bad[i]), 400, "invalid_request");
    world_close(w);
}

static void models_sleep_and_wake(void **state)
{
    struct answer a;

    (void)state;
    open_world();
    check_success(send_request(w, "/models/load", "", "{\"model\":\"cold\"}"));
    check_success(send_request(w, "/sleep", "", ""));
    assert_int_equal(pool_state(w->pool, 0, NULL), POOL_SLEEPING);
    assert_int_equal(pool_state(w->pool, 1, NULL), POOL_SLEEPING);
    assert_int_equal(pool_state(w->pool, 2, NULL), POOL_UNLOADED);
    a = send_and_read("/is_sleeping", "", NULL);
    assert_true(json_is_true(json_at(a.json, "is_sleeping")));
    answer_release(&a);
    check_success(send_request(w, "/wake_up", "", ""));
    assert_int_equal(pool_state(w->pool, 0, NULL), POOL_READY);
    assert_int_equal(pool_state(w->pool, 1, NULL), POOL_READY);
    a = send_and_read("/is_sleeping", "", NULL);
    assert_true(json_is_false(json_at(a.json, "is_sleeping")));
    answer_release(&a);
    world_close(w);
}

static void one_model_sleeps_where_the_query_names_it(void **state)
{
    struct answer a;

    (void)state;
    open_world();
    check_success(send_request(w, "/models/load", "", "{\"model\":\"cold\"}"));
    check_success(send_request(w, "/sleep?model=col%64", "", ""));
    assert_int_equal(pool_state(w->pool, 0, NULL), POOL_READY);
    assert_int_equal(pool_state(w->pool, 1, NULL), POOL_SLEEPING);
    a = send_and_read("/is_sleeping?x=1&model=cold", "", NULL);
    assert_true(json_is_true(json_at(a.json, "is_sleeping")));
    answer_release(&a);
    a = send_and_read("/is_sleeping", "", NULL);
    assert_true(json_is_false(json_at(a.json, "is_sleeping")));
    answer_release(&a);
    check_error(send_request(w, "/sleep?model=colder", "", ""), 404, "model_not_found");
    check_success(send_request(w, "/wake_up?model=cold", "", ""));
    assert_int_equal(pool_state(w->pool, 1, NULL), POOL_READY);
    world_close(w);
}

static void those_who_watch_hear_of_every_state(void **state)
{
    struct buf b = { 0 };
    int fd, waits;

    (void)state;
    open_world();
    fd = send_request(w, "/models/sse", "", NULL);
    read_until(fd, &b, "{\"model\":\"other\",\"status\":{\"value\":\"unloaded\"");
    atomic_store(&host.hold, true);
    close(send_cold("", "")); /* gone: but the load has begun, or nobody waits any more */
    waits = send_cold("", "");
    read_until(fd, &b, "{\"model\":\"cold\",\"status\":{\"value\":\"loading\"");
    atomic_store(&host.hold, false);
    read_until(fd, &b, "{\"model\":\"cold\",\"status\":{\"value\":\"loaded\"");
    assert_non_null(strstr(buf_cstr(&b), "event: model_status"));
    check_text(waits);
    close(fd);
    buf_release(&b);
    fd = send_request(w, "/models/sse", "", NULL); /* one that is there at the end */
    read_until(fd, &b, "other");
    world_close(w);
    close(fd);
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_for_a_cold_model_wait_for_one_load),
        cmocka_unit_test(waiting_ends_with_the_deadline_a_cancel_or_the_client),
        cmocka_unit_test(a_failed_load_is_the_answer_to_all_who_waited),
        cmocka_unit_test(the_end_of_the_server_ends_the_waiting),
        cmocka_unit_test(models_are_loaded_and_unloaded_by_request),
        cmocka_unit_test(an_instance_of_the_past_is_refused),
        cmocka_unit_test(keep_alive_says_how_long_a_model_stays),
        cmocka_unit_test(models_sleep_and_wake),
        cmocka_unit_test(one_model_sleeps_where_the_query_names_it),
        cmocka_unit_test(those_who_watch_hear_of_every_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
