/* Requests for models that are not loaded: they wait for one load, without a thread, until it is there,
 * fails, or they end for another reason; and the routes that load and unload. */
#include "api/api_impl.h"
#include "api_world.h"
#include "pool/modelcheck.h"

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
static void open_world_with(struct api_opt api)
{
    struct setup s = { .engine = { .n_ctx = 256, .max_seqs = 4 }, .api = api, .host = &test_host };
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

static void open_world(void) { open_world_with((struct api_opt){ 0 }); }

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
    wait_waits(3);
    late = send_cold("", ",\"deadline_ms\":400");
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

static void the_files_of_a_model_are_verified_by_request(void **state)
{
    struct answer a;
    atomic_int stop = 1;
    struct modelcheck m = { .stop = &stop };
    struct err e = { 0 };

    (void)state;
    open_world();
    a = send_and_read("/models/verify", "", "{\"model\":\"cold\"}");
    assert_int_equal(a.status, 200);
    assert_string_equal(text_at(a.json, "model"), "cold");
    assert_true(json_is_true(json_object_get(a.json, "sound")));
    assert_true(int_at(a.json, "tensors") > 100);
    assert_string_equal(text_at(a.json, "error"), "");
    answer_release(&a);
    assert_int_equal(pool_state(w->pool, 1, NULL), POOL_UNLOADED); /* it is not loaded for that */
    check_error(send_request(w, "/models/verify", "", "{\"model\":\"nobody\"}"), 404,
                "model_not_found");
    check_error(send_request(w, "/models/verify", "", "{}"), 400, "invalid_request");
    atomic_store(&w->api->verifies, 1); /* another one is being verified */
    check_error(send_request(w, "/models/verify", "", "{\"model\":\"cold\"}"), 429, "queue_full");
    atomic_store(&w->api->verifies, 0);
    assert_int_equal(modelcheck_pool(&m, w->pool, 1, &e), E_CANCELLED); /* its client went */
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
    read_until(fd, &b,
               "data: {\"model\":\"other\",\"event\":\"model_status\",\"data\":{\"status\":"
               "\"unloaded\",\"exit_code\":0}}\n\n");
    atomic_store(&host.hold, true);
    close(send_cold("", "")); /* gone: but the load has begun, or nobody waits any more */
    waits = send_cold("", "");
    read_until(fd, &b,
               "{\"model\":\"cold\",\"event\":\"model_status\",\"data\":{\"status\":\"loading\","
               "\"progress\":{\"stages\":[\"load\"],\"current\":\"load\",\"value\":");
    atomic_store(&host.hold, false);
    read_until(fd, &b,
               "{\"model\":\"cold\",\"event\":\"model_status\",\"data\":{\"status\":"
               "\"loaded\"}}");
    check_text(waits);
    close(fd);
    buf_release(&b);
    fd = send_request(w, "/models/sse", "", NULL); /* one that is there at the end */
    read_until(fd, &b, "other");
    world_close(w);
    close(fd);
    buf_release(&b);
}

static void the_number_of_those_who_watch_is_limited(void **state)
{
    static const char ask_head[] =
        "HEAD /models/sse HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    struct buf b = { 0 };
    struct answer a;
    int fd[2], head;

    (void)state;
    open_world_with((struct api_opt){ .max_watchers = 2 });
    head = connect_to(w); /* HEAD is answered, and is nobody who watches */
    send_all(head, ask_head, sizeof ask_head - 1);
    a = read_answer(head);
    assert_int_equal(a.status, 200);
    assert_non_null(strcasestr(a.head.p, "content-type: text/event-stream"));
    assert_int_equal(a.body.n, 0);
    answer_release(&a);
    for (int i = 0; i < 2; i++) {
        fd[i] = send_request(w, "/models/sse", "", NULL);
        read_until(fd[i], &b, "\"other\"");
        buf_clear(&b);
    }
    check_error(send_request(w, "/models/sse", "", NULL), 503, "too_many_watchers");
    close(fd[0]);
    for (int k = 0; k < 60000; k++) { /* until its end was noticed */
        a = send_and_read("/calls", "", NULL);
        size_t n = json_array_size(a.json);
        answer_release(&a);
        if (n == 1) break;
        usleep(1000);
    }
    fd[0] = send_request(w, "/models/sse", "", NULL);
    read_until(fd[0], &b, "\"other\"");
    buf_release(&b);
    close(fd[0]);
    close(fd[1]);
    world_close(w);
}

static void one_tenant_has_half_of_the_places_to_watch(void **state)
{
    struct buf b = { 0 };
    int fd[3];

    (void)state;
    open_world_with((struct api_opt){ .max_watchers = 3 });
    for (int i = 0; i < 3; i++) { /* two of the first tenant, and one of another */
        fd[i] = send_request(w, "/models/sse", i < 2 ? "x-tenant: 1\r\n" : "x-tenant: 2\r\n", NULL);
        read_until(fd[i], &b, "\"other\"");
        buf_clear(&b);
        if (i == 1)
            check_error(send_request(w, "/models/sse", "x-tenant: 1\r\n", NULL), 429,
                        "watchers_limit");
    }
    check_error(send_request(w, "/models/sse", "x-tenant: 2\r\n", NULL), 503, "too_many_watchers");
    for (int i = 0; i < 3; i++) close(fd[i]);
    buf_release(&b);
    world_close(w);
}

/* A model whose events have many bytes. */
static int add_long_name(char *id, size_t n)
{
    struct pool_model m = { .id = id, .path = repo("models/tern-tales.gguf"), .keep_ms = -1 };
    struct err e = { 0 };
    int i;

    memset(id, 'x', n - 1);
    id[n - 1] = 0;
    if (pool_add(w->pool, &m, &i, &e) != OK) fail_msg("%s", e.msg);
    return i;
}

static void ignore_end(struct pool_wait *wait) { atomic_store((atomic_bool *)wait->arg, true); }

static void who_does_not_read_is_disconnected(void **state)
{
    static char id[40000];
    struct buf b = { 0 };
    int slow, fast, i;

    (void)state;
    log_set_level(LOG_ERROR + 1);
    open_world();
    i = add_long_name(id, sizeof id);
    slow = send_request(w, "/models/sse", "X-Correlation-Id: slow\r\n", NULL);
    fast = send_request(w, "/models/sse", "", NULL);
    read_until(fast, &b, "xxxx\",\"event\"");
    atomic_store(&host.fail, true);
    for (int k = 0; k < 40; k++) { /* two events each: more than every buffer holds */
        atomic_bool done = false;
        struct pool_wait wait = { .done = ignore_end, .arg = &done, .by_operator = true };
        buf_clear(&b);
        atomic_store(&host.hold, true);
        assert_int_equal(pool_load(w->pool, i, &wait), POOL_WAIT);
        read_until(fast, &b, "\"loading\""); /* the other one hears of everything */
        atomic_store(&host.hold, false);
        while (!atomic_load(&done)) usleep(500);
        read_until(fast, &b, "\"failed\":true");
    }
    assert_string_equal(wait_ended(w, "slow").gone, "slow reader");
    buf_release(&b);
    close(slow);
    close(fast);
    world_close(w);
    log_set_level(LOG_WARN);
}

static void the_first_states_come_in_portions(void **state)
{
    static char id[4000];
    struct buf b = { 0 };
    int fd, n = 0;

    (void)state;
    open_world();
    for (int i = 0; i < 300; i++) {
        struct pool_model m = { .id = id, .path = repo("models/tern-tales.gguf"), .keep_ms = -1 };
        struct err e = { 0 };
        memset(id, 'y', sizeof id - 1);
        id[snprintf(id, sizeof id, "m%03d", i)] = 'y';
        if (pool_add(w->pool, &m, NULL, &e) != OK) fail_msg("%s", e.msg);
    }
    fd = send_request(w, "/models/sse", "", NULL);
    check_success(send_request(w, "/models/load", "", "{\"model\":\"cold\"}")); /* meanwhile */
    read_until(fd, &b, "m299");
    read_until(fd, &b, "\"status\":\"loaded\"}}\n\n");
    for (struct str s = buf_str(&b); str_find(s, STR("\"model\":\"m")) >= 0; n++)
        s = str_skip(s, (size_t)str_find(s, STR("\"model\":\"m")) + 10);
    assert_int_equal(n, 300); /* each once */
    buf_release(&b);
    close(fd);
    world_close(w);
}

static void a_list_has_what_the_router_of_llama_server_tells(void **state)
{
    struct answer a;

    (void)state;
    log_set_level(LOG_ERROR + 1);
    open_world();
    atomic_store(&host.fail, true);
    check_error(send_request(w, "/models/load", "", "{\"model\":\"cold\"}"), 500,
                "model_load_failed");
    a = send_and_read("/models", "", NULL);
    assert_string_equal(text_at(a.json, "object"), "list");
    assert_string_equal(text_at(a.json, "data.0.id"), "tern-tales");
    assert_string_equal(text_at(a.json, "data.0.object"), "model");
    assert_string_equal(text_at(a.json, "data.0.status.value"), "loaded");
    assert_true(json_is_array(json_at(a.json, "data.0.status.args")));
    assert_true(json_is_array(json_at(a.json, "data.0.aliases")));
    assert_string_equal(text_at(a.json, "data.0.architecture.input_modalities.0"), "text");
    assert_string_equal(text_at(a.json, "data.0.architecture.output_modalities.0"), "text");
    assert_true(json_is_false(json_at(a.json, "data.0.status.failed")));
    assert_string_equal(text_at(a.json, "data.1.status.value"), "failed");
    assert_true(json_is_true(json_at(a.json, "data.1.status.failed")));
    assert_int_equal(int_at(a.json, "data.1.status.exit_code"), 1);
    assert_string_equal(text_at(a.json, "data.1.status.code"), "unsupported");
    assert_non_null(strstr(text_at(a.json, "data.1.status.error"), "no such kernel"));
    assert_string_equal(text_at(a.json, "data.2.status.value"), "unloaded");
    answer_release(&a);
    world_close(w);
    log_set_level(LOG_WARN);
}

static void a_request_may_say_that_nothing_is_loaded_for_it(void **state)
{
    static const char body[] = "{\"model\":\"cold\",\"prompt\":\"Once\",\"max_tokens\":3}";

    (void)state;
    open_world();
    check_error(send_request(w, "/v1/completions?autoload=false", "", body), 400,
                "invalid_request");
    assert_int_equal(pool_state(w->pool, 1, NULL), POOL_UNLOADED);
    check_text(send_request(w, "/v1/completions?autoload=true", "", body));
    check_text(send_request(w, "/v1/completions?autoload=0", "", body)); /* it is loaded now */
    world_close(w);
}

static void instances_are_listed_loaded_and_unloaded_as_in_lm_studio(void **state)
{
    struct pool_view v;
    struct answer a;

    (void)state;
    open_world();
    a = send_and_read("/api/v1/models/load", "",
                      "{\"model\":\"cold\",\"ttl\":60,\"echo_load_config\":true}");
    assert_int_equal(a.status, 200);
    assert_string_equal(text_at(a.json, "type"), "llm");
    assert_string_equal(text_at(a.json, "instance_id"), "cold@1");
    assert_string_equal(text_at(a.json, "status"), "loaded");
    assert_true(json_is_number(json_at(a.json, "load_time_seconds")));
    assert_int_equal(int_at(a.json, "load_config.context_length"), 256);
    answer_release(&a);
    pool_view(w->pool, 1, &v);
    assert_in_range(v.expires_ms, 1, 60000);
    a = send_and_read("/api/v1/models", "", NULL);
    assert_string_equal(text_at(a.json, "models.1.key"), "cold");
    assert_string_equal(text_at(a.json, "models.1.loaded_instances.0.id"), "cold@1");
    assert_int_equal(int_at(a.json, "models.1.loaded_instances.0.config.context_length"), 256);
    assert_int_equal(json_array_size(json_at(a.json, "models.2.loaded_instances")), 0);
    answer_release(&a);
    a = send_and_read("/api/v1/models/unload", "", "{\"instance_id\":\"cold\"}");
    assert_int_equal(a.status, 200);
    assert_string_equal(text_at(a.json, "instance_id"), "cold");
    answer_release(&a);
    wait_model(1, POOL_UNLOADED);
    check_error(send_request(w, "/api/v1/models/load", "", "{\"model\":\"cold\",\"ttl\":[]}"), 400,
                "invalid_request");
    check_error(send_request(w, "/api/v1/models/load", "", "{\"model\":\"nobody\"}"), 404,
                "model_not_found");
    world_close(w);
}

static void levels_and_tags_are_those_of_vllm(void **state)
{
    static const char *const bad[] = { "/sleep?level=3", "/sleep?level=", "/sleep?level=one",
                                       "/wake_up?tags=weights&tags=soul", "/wake_up?tags=" };

    (void)state;
    open_world();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check_error(send_request(w, bad[i], "", ""), 400, "invalid_request");
    assert_int_equal(pool_state(w->pool, 0, NULL), POOL_READY);
    for (int level = 1; level <= 2; level++) {
        check_success(send_request(w, level == 1 ? "/sleep?level=1" : "/sleep?level=2", "", ""));
        assert_int_equal(pool_state(w->pool, 0, NULL), POOL_SLEEPING);
        check_success(send_request(w, "/wake_up?tags=weights&tags=kv_cache", "", ""));
        assert_int_equal(pool_state(w->pool, 0, NULL), POOL_READY);
    }
    world_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_for_a_cold_model_wait_for_one_load),
        cmocka_unit_test(waiting_ends_with_the_deadline_a_cancel_or_the_client),
        cmocka_unit_test(a_failed_load_is_the_answer_to_all_who_waited),
        cmocka_unit_test(the_end_of_the_server_ends_the_waiting),
        cmocka_unit_test(models_are_loaded_and_unloaded_by_request),
        cmocka_unit_test(the_files_of_a_model_are_verified_by_request),
        cmocka_unit_test(an_instance_of_the_past_is_refused),
        cmocka_unit_test(keep_alive_says_how_long_a_model_stays),
        cmocka_unit_test(models_sleep_and_wake),
        cmocka_unit_test(one_model_sleeps_where_the_query_names_it),
        cmocka_unit_test(those_who_watch_hear_of_every_state),
        cmocka_unit_test(the_number_of_those_who_watch_is_limited),
        cmocka_unit_test(one_tenant_has_half_of_the_places_to_watch),
        cmocka_unit_test(who_does_not_read_is_disconnected),
        cmocka_unit_test(the_first_states_come_in_portions),
        cmocka_unit_test(a_list_has_what_the_router_of_llama_server_tells),
        cmocka_unit_test(a_request_may_say_that_nothing_is_loaded_for_it),
        cmocka_unit_test(instances_are_listed_loaded_and_unloaded_as_in_lm_studio),
        cmocka_unit_test(levels_and_tags_are_those_of_vllm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
