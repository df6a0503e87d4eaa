/* The server's side of worker processes: hostile and hanging ones, deaths at bad moments, the end.
 *
 * The workers are this program again (fake_worker.h). The model's file is never opened. */
#include "api_world.h"

#include "fake_worker.h"

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>

enum { WAIT_MS = 120000 };

/* ---- the server ---- */

static const char *term_log;

/* Further routes: the state of a worker, and the abort of all calls. */
static bool handle_more(struct world *me, struct http_req *q)
{
    struct str path = http_path(q);
    struct supervisor_view x = { 0 };
    struct buf b = { 0 };
    char id[64];

    if (str_is(path, "/abort")) {
        api_abort(me->api);
    } else if (str_starts(path, STR("/worker/"))) {
        snprintf(id, sizeof id, "%.*s", STR_ARG(str_skip(path, 8)));
        supervisor_view(me->workers, id, &x);
    } else {
        return false;
    }
    buf_printf(&b,
               "{\"pid\":%d,\"starts\":%d,\"hung\":%d,\"hung_restarts\":%d,\"requests\":%d,"
               "\"connections\":%d,\"breaker\":%d,\"calls\":%d,\"preflights\":%d,"
               "\"preflight_hits\":%d}",
               (int)x.pid, (int)x.starts, (int)x.deaths[SUPERVISOR_HUNG],
               (int)x.restarts[SUPERVISOR_HUNG], (int)x.requests, (int)x.connections,
               (int)x.breaker, x.calls, (int)x.preflights, (int)x.preflight_hits);
    http_reply(q, 200, "application/json", b.p, b.n);
    buf_release(&b);
    return true;
}

static int add_model(const char *id)
{
    struct pool_model m = { .id = id, .path = repo("models/tern-tales.gguf"), .keep_ms = -1 };
    struct err e = { 0 };
    int at = -1;

    if (pool_add(w->pool, &m, &at, &e) != OK) fail_msg("%s", e.msg);
    return at;
}

static void open_world_of(struct supervisor_opt o, uint64_t memory_limit)
{
    static const char *flags[1];

    flags[0] = term_log = temp_file("term.log", "", 0);
    o.build = "test";
    o.flags = flags;
    o.n_flags = 1;
    if (!o.ping_ms) o.ping_ms = 200;
    o.silent_ms = 60000;
    log_set_level(LOG_ERROR + 1);
    w = world_open((struct setup){
        .workers = &o, .retry_ms = 20, .memory_limit = memory_limit, .more = handle_more });
}

static void open_world(struct supervisor_opt o) { open_world_of(o, 0); }

static void close_world(void)
{
    world_close(w);
    log_set_level(LOG_WARN);
}

static int ask_worker(const char *id, const char *what)
{
    char path[80];
    struct answer a;
    int n;

    snprintf(path, sizeof path, "/worker/%s", id);
    a = send_and_read(path, "", NULL);
    n = int_at(a.json, what);
    answer_release(&a);
    return n;
}

static void wait_worker(const char *id, const char *what, int n)
{
    int got = -1;

    for (int i = 0; i < WAIT_MS / 10 && (got = ask_worker(id, what)) != n; i++) usleep(10000);
    if (got != n) fail_msg("%s of '%s' is %d, not %d", what, id, got, n);
}

static int send_to(const char *id, const char *headers)
{
    char body[200];

    snprintf(body, sizeof body, "{\"model\":\"%s\",\"prompt\":\"x\"}", id);
    return send_request(w, "/v1/completions", headers, body);
}

static void wait_model(int i, enum pool_state state)
{
    for (int k = 0; k < WAIT_MS && pool_state(w->pool, i, NULL) != state; k++) usleep(1000);
    assert_string_equal(pool_state_name(pool_state(w->pool, i, NULL)), pool_state_name(state));
}

/* An answer must begin within half a minute: a call that waits for a restart in vain takes a whole. */
static void check_error(int fd, int status, const char *code)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    struct answer a;
    int n;

    do n = poll(&p, 1, 30000);
    while (n < 0 && errno == EINTR);
    if (n != 1) fail_msg("no answer");
    a = read_answer(fd);
    if (a.status != status) fail_msg("status %d: %s", a.status, a.body.p);
    assert_string_equal(text_at(a.json, "error.code"), code);
    answer_release(&a);
}

/* ---- hostile replies ---- */

static void a_reply_is_passed_on_as_it_is(void **state)
{
    struct answer a;

    (void)state;
    open_world((struct supervisor_opt){ 0 });
    add_model("good-header");
    a = read_answer(send_to("tern-tales", ""));
    assert_int_equal(a.status, 200);
    assert_string_equal(a.body.p, "{\"ok\":true}");
    answer_release(&a);
    a = read_answer(send_to("good-header", ""));
    assert_int_equal(a.status, 200);
    assert_non_null(strcasestr(a.head.p, "\r\nretry-after: 7\r\n"));
    assert_null(strcasestr(a.head.p, "cookie")); /* not one of the headers that a worker sets */
    answer_release(&a);
    for (int i = 0; i < 3; i++) a = read_answer(send_to("good-header", "")), answer_release(&a);
    assert_int_equal(ask_worker("good-header", "requests"), 4);
    assert_int_equal(ask_worker("good-header", "connections"), 1);
    close_world();
}

static void a_reply_that_is_not_allowed_reaches_no_client(void **state)
{
    static const char *const names[] = { "bad-type",        "bad-split-type", "bad-status-low",
                                         "bad-status-high", "bad-split-name", "bad-split-value",
                                         "bad-huge",        "bad-long" };

    (void)state;
    open_world((struct supervisor_opt){ 0 });
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct answer a;
        add_model(names[i]);
        a = read_answer(send_to(names[i], ""));
        if (a.status != 503) fail_msg("%s: %s%s", names[i], a.head.p, a.body.p);
        assert_string_equal(text_at(a.json, "error.code"), "worker_lost");
        assert_null(strcasestr(a.head.p, "cookie"));
        assert_null(strcasestr(a.head.p, "retry-after: 7"));
        answer_release(&a);
    }
    assert_int_equal(ask_worker("tern-tales", "starts"), 1); /* another model's process */
    close_world();
}

/* Its model has failed or is unloaded; the server itself goes on, and must not say that it ends. */
static void a_process_that_ends_refuses_nobody_in_the_servers_name(void **state)
{
    (void)state;
    open_world((struct supervisor_opt){ 0 });
    add_model("ending");
    check_error(send_to("ending", ""), 503, "worker_lost");
    assert_int_equal(ask_worker("ending", "requests"), 2); /* it was tried again */
    close_world();
}

/* By its heartbeats: until the first the worker is asked, and takes the request. */
static void a_process_that_is_full_gets_no_more_requests(void **state)
{
    struct answer a;
    int n;

    (void)state;
    open_world((struct supervisor_opt){ .ping_ms = 50 });
    add_model("full");
    add_model("good");
    for (n = 0; n < WAIT_MS; n++) {
        a = read_answer(send_to("full", ""));
        if (a.status != 200) break;
        answer_release(&a);
    }
    assert_int_equal(a.status, 429);
    assert_string_equal(text_at(a.json, "error.code"), "queue_full");
    assert_non_null(strcasestr(a.head.p, "retry-after"));
    answer_release(&a);
    assert_int_equal(ask_worker("full", "requests"), n);
    assert_int_equal(ask_worker("full", "preflights"), n + 1);
    assert_true(ask_worker("full", "preflight_hits") >= 1);
    for (int i = 0; i < 4; i++) { /* a heartbeat that says otherwise refuses nothing */
        a = read_answer(send_to("good", ""));
        assert_int_equal(a.status, 200);
        answer_release(&a);
    }
    close_world();
}

/* ---- hangs ---- */

/* A good process must start and report within this time, also on a busy machine. */
enum { LOAD_MS = 5000 };

static void a_load_without_progress_ends_and_others_are_loaded(void **state)
{
    static const char *const names[] = { "no-plan", "no-ready" };
    struct answer a;

    (void)state;
    open_world((struct supervisor_opt){ .load_ms = LOAD_MS });
    for (int i = 0; i < 2; i++) {
        int at = add_model(names[i]);
        struct err e = { 0 };
        check_error(send_to(names[i], ""), 503, "worker_lost");
        wait_model(at, POOL_FAILED);
        pool_state(w->pool, at, &e);
        assert_int_equal(e.code, E_WORKER);
        assert_non_null(strstr(e.msg, "no progress"));
        assert_int_equal(ask_worker(names[i], "hung"), 1);
        assert_int_equal(ask_worker(names[i], "pid"), 0);
    }
    add_model("good");
    a = read_answer(send_to("good", ""));
    assert_int_equal(a.status, 200);
    answer_release(&a);
    close_world();
}

static void a_process_that_does_not_end_a_cancelled_request_is_killed(void **state)
{
    int fd;

    (void)state;
    open_world((struct supervisor_opt){ .hang_ms = 500 });
    add_model("no-end");
    fd = send_to("no-end", "X-Correlation-Id: left\r\n");
    wait_worker("no-end", "calls", 1);
    close(fd);
    wait_worker("no-end", "hung", 1);
    assert_string_equal(wait_ended(w, "left").gone, "closed");
    wait_worker("no-end", "hung_restarts", 1);
    wait_worker("no-end", "calls", 0);
    close_world();
}

/* The fake knows no SLEEP. */
static void a_process_that_does_not_fall_asleep_is_killed(void **state)
{
    struct answer a;
    int at;

    (void)state;
    open_world((struct supervisor_opt){ .load_ms = LOAD_MS });
    at = add_model("good");
    a = read_answer(send_to("good", ""));
    assert_int_equal(a.status, 200);
    answer_release(&a);
    pool_unload(w->pool, at, true, NULL);
    wait_worker("good", "hung", 1);
    wait_model(at, POOL_SLEEPING);
    a = read_answer(send_to("good", ""));
    assert_int_equal(a.status, 200);
    answer_release(&a);
    close_world();
}

/* ---- unloading ---- */

static bool is_gone(int pid) { return kill(pid, 0) != 0 && errno == ESRCH; }

/* POST /models/unload, which is answered when the process is gone. */
static void unload_model(const char *id, int pid)
{
    struct answer a;
    char body[100];

    snprintf(body, sizeof body, "{\"model\":\"%s\"}", id);
    a = send_and_read("/models/unload", "", body);
    assert_true(is_gone(pid));
    if (a.status != 200) fail_msg("status %d: %s", a.status, a.body.p);
    answer_release(&a);
}

static int wait_pid(const char *id)
{
    int pid = 0;

    for (int i = 0; i < WAIT_MS / 10 && !(pid = ask_worker(id, "pid")); i++) usleep(10000);
    assert_true(pid > 0);
    return pid;
}

static void wait_waiting(int at, int n)
{
    struct pool_view v = { 0 };

    for (int i = 0; i < WAIT_MS && v.n_waits != n; i++) pool_view(w->pool, at, &v), usleep(1000);
    assert_int_equal(v.n_waits, n);
}

/* None of these loads ever ends by itself; the last ignores SIGTERM, too. */
static void an_unload_ends_a_load_and_its_process(void **state)
{
    static const char *const names[] = { "no-plan", "no-ready", "stay-loading" };

    (void)state;
    open_world((struct supervisor_opt){ 0 });
    wait_model(0, POOL_READY);
    for (int i = 0; i < 3; i++) {
        int at = add_model(names[i]), one, other, pid;
        uint64_t before = pool_bytes(w->pool);
        char body[100];
        one = send_to(names[i], "");
        snprintf(body, sizeof body, "{\"model\":\"%s\"}", names[i]);
        other = send_request(w, "/models/load", "", body);
        wait_waiting(at, 2);
        pid = wait_pid(names[i]);
        unload_model(names[i], pid);
        check_error(one, 503, "model_loading");
        check_error(other, 503, "model_loading");
        wait_model(at, POOL_UNLOADED);
        assert_int_equal(pool_bytes(w->pool), before);
        assert_int_equal(ask_worker(names[i], "pid"), 0);
        assert_int_equal(ask_worker(names[i], "hung"), 0);
    }
    close_world();
}

static int make_asleep(const char *id, int at)
{
    struct answer a = read_answer(send_to(id, ""));

    assert_int_equal(a.status, 200);
    answer_release(&a);
    pool_unload(w->pool, at, true, NULL);
    wait_model(at, POOL_SLEEPING);
    return wait_pid(id);
}

static void an_unload_of_what_sleeps_ends_its_process(void **state)
{
    static const char *const names[] = { "sleeps", "stay-sleeps" };

    (void)state;
    open_world((struct supervisor_opt){ 0 });
    for (int i = 0; i < 2; i++) {
        int at = add_model(names[i]), pid = make_asleep(names[i], at);
        unload_model(names[i], pid);
        wait_model(at, POOL_UNLOADED);
        pid = make_asleep(names[i], at); /* in another process */
        unload_model(names[i], pid);
        assert_int_equal(ask_worker(names[i], "starts"), 2);
    }
    close_world();
}

/* Each model of the fake takes 3000 bytes, and parks what it may. */
static void parked_blocks_of_what_sleeps_count_and_go_for_a_model(void **state)
{
    struct answer a;
    int at, pid;

    (void)state;
    open_world_of((struct supervisor_opt){ 0 }, 6500);
    wait_model(0, POOL_READY);
    at = add_model("sleeps");
    pid = make_asleep("sleeps", at);
    assert_int_equal(pool_bytes(w->pool), 3000);
    assert_int_equal(pool_parked_bytes(w->pool), 3500); /* what the models leave of the limit */
    add_model("good");
    a = read_answer(send_to("good", ""));
    assert_int_equal(a.status, 200);
    answer_release(&a);
    assert_int_equal(pool_parked_bytes(w->pool), 0);
    assert_true(is_gone(pid));
    assert_int_equal(pool_state(w->pool, at, NULL), POOL_SLEEPING); /* and wakes all the same */
    unload_model("good", ask_worker("good", "pid"));
    a = read_answer(send_to("sleeps", ""));
    assert_int_equal(a.status, 200);
    answer_release(&a);
    assert_int_equal(ask_worker("sleeps", "starts"), 2);
    close_world();
}

/* ---- deaths at bad moments ---- */

static void a_stream_whose_process_dies_ends_with_an_error(void **state)
{
    struct answer a;

    (void)state;
    open_world((struct supervisor_opt){ 0 });
    add_model("stream-dies");
    a = read_answer(send_to("stream-dies", ""));
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body.p, "worker_lost"));
    answer_release(&a);
    close_world();
}

/* Its leader says why it ends: requests that have sent nothing are repeated, others end with that reason, and
 * the breaker counts it. */
static void a_gang_that_ends_is_a_process_that_dies(void **state)
{
    struct answer a;

    (void)state;
    open_world((struct supervisor_opt){ 0 });
    add_model("gang");
    a = read_answer(send_to("gang", ""));
    assert_int_equal(a.status, 200);
    answer_release(&a);
    assert_int_equal(ask_worker("gang", "starts"), 2);
    add_model("stream-gang");
    a = read_answer(send_to("stream-gang", ""));
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body.p, "worker_lost"));
    assert_non_null(strstr(a.body.p, "the gang has ended: member 1"));
    answer_release(&a);
    add_model("gang-dies");
    for (int i = 0; i < WAIT_MS / 10 && ask_worker("gang-dies", "breaker") != BREAKER_OPEN; i++) {
        a = read_answer(send_to("gang-dies", ""));
        assert_int_equal(a.status, 503);
        answer_release(&a);
        usleep(10000);
    }
    assert_int_equal(ask_worker("gang-dies", "breaker"), BREAKER_OPEN);
    close_world();
}

static int count_text(const char *in, const char *what)
{
    int n = 0;

    for (const char *at = in; (at = strstr(at, what)); at++) n++;
    return n;
}

/* The client sees one head and the answer of the next process, to which the body was sent again. */
static void a_stream_that_has_only_pings_is_repeated_once(void **state)
{
    struct answer a;
    char want[32];

    (void)state;
    open_world((struct supervisor_opt){ 0 });
    add_model("stream-pings");
    a = read_answer(send_to("stream-pings", ""));
    assert_int_equal(a.status, 200);
    snprintf(want, sizeof want, "\"body\":%zu",
             strlen("{\"model\":\"stream-pings\",\"prompt\":\"x\"}"));
    if (!strstr(a.body.p, want)) fail_msg("no %s in: %s", want, a.body.p);
    assert_int_equal(count_text(a.body.p, "event: ping"), 1);
    assert_int_equal(count_text(a.body.p, "HTTP/1.1"), 0);
    assert_null(strstr(a.body.p, "worker_lost"));
    answer_release(&a);
    assert_int_equal(ask_worker("stream-pings", "starts"), 2);
    close_world();
}

static void a_stream_that_cannot_be_repeated_ends_with_an_error(void **state)
{
    static const char *const ids[] = { "stream-pings-twice", "stream-pings-refused" };

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct answer a;
        open_world((struct supervisor_opt){ 0 });
        add_model(ids[i]);
        a = read_answer(send_to(ids[i], ""));
        assert_int_equal(a.status, 200);
        if (count_text(a.body.p, "worker_lost") != 1) fail_msg("%s: %s", ids[i], a.body.p);
        answer_release(&a);
        close_world();
    }
}

static void a_death_while_the_server_drains_ends_the_calls(void **state)
{
    int fd, pid;

    (void)state;
    open_world((struct supervisor_opt){ 0 });
    add_model("hold");
    fd = send_to("hold", "");
    wait_worker("hold", "calls", 1);
    pid = ask_worker("hold", "pid");
    pool_drain(w->pool);
    kill(pid, SIGKILL);
    check_error(fd, 503, "worker_lost");
    close_world();
}

static void a_death_while_the_model_is_unloaded_ends_the_calls(void **state)
{
    int fd, pid, at;

    (void)state;
    open_world((struct supervisor_opt){ 0 });
    at = add_model("hold");
    fd = send_to("hold", "");
    wait_worker("hold", "calls", 1);
    pid = ask_worker("hold", "pid");
    pool_unload(w->pool, at, false, NULL);
    kill(pid, SIGKILL);
    check_error(fd, 503, "worker_lost");
    wait_model(at, POOL_UNLOADED);
    close_world();
}

static void an_operator_closes_the_breaker(void **state)
{
    struct answer a;
    int starts;

    (void)state;
    open_world((struct supervisor_opt){ 0 });
    add_model("dies");
    for (int i = 0; i < WAIT_MS / 10 && ask_worker("dies", "breaker") != BREAKER_OPEN; i++) {
        a = read_answer(send_to("dies", "")); /* refused until its back-off is over */
        assert_int_equal(a.status, 503);
        answer_release(&a);
        usleep(10000);
    }
    starts = ask_worker("dies", "starts");
    assert_int_equal(starts, 5); /* BREAKER_DEATHS */
    check_error(send_to("dies", ""), 503, "worker_lost");
    assert_int_equal(ask_worker("dies", "starts"), starts);
    a = send_and_read("/models/load", "", "{\"model\":\"dies\"}");
    assert_int_not_equal(a.status, 200);
    answer_release(&a);
    assert_int_equal(ask_worker("dies", "starts"), starts + 1);
    assert_int_equal(ask_worker("dies", "breaker"), BREAKER_CLOSED);
    close_world();
}

/* ---- the end ---- */

/* The client reads nothing, and the worker has more to send than its credit. */
static void an_abort_does_not_wait_for_a_slow_client(void **state)
{
    struct answer a;
    int fd;

    (void)state;
    open_world((struct supervisor_opt){ 0 });
    add_model("flood");
    fd = send_to("flood", "X-Correlation-Id: slow\r\n");
    wait_worker("flood", "calls", 1);
    usleep(100000); /* all that the credit allows is sent; what comes later is as good */
    assert_int_equal(ask_worker("flood", "calls"), 1);
    a = send_and_read("/abort", "", NULL);
    answer_release(&a);
    wait_ended(w, "slow");
    wait_worker("flood", "calls", 0);
    close(fd);
    close_world();
}

static void *close_it(void *arg)
{
    (void)arg;
    close_world();
    return NULL;
}

static long size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (long)st.st_size : -1;
}

static void all_processes_are_asked_to_end_at_once(void **state)
{
    static const char *const names[] = { "stay-1", "stay-2", "stay-3" };
    pthread_t thread;
    int pid[3];

    (void)state;
    open_world((struct supervisor_opt){ .stop_ms = 10 * WAIT_MS });
    for (int i = 0; i < 3; i++) {
        struct answer a;
        add_model(names[i]);
        a = read_answer(send_to(names[i], ""));
        assert_int_equal(a.status, 200);
        answer_release(&a);
        pid[i] = ask_worker(names[i], "pid");
    }
    pthread_create(&thread, NULL, close_it, NULL);
    for (int i = 0; i < WAIT_MS && size_of(term_log) < 3; i++) usleep(1000);
    assert_true(size_of(term_log) >= 3); /* all three were asked, and none has ended */
    for (int i = 0; i < 3; i++) assert_int_equal(kill(pid[i], SIGKILL), 0);
    pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reply_is_passed_on_as_it_is),
        cmocka_unit_test(a_reply_that_is_not_allowed_reaches_no_client),
        cmocka_unit_test(a_process_that_ends_refuses_nobody_in_the_servers_name),
        cmocka_unit_test(a_process_that_is_full_gets_no_more_requests),
        cmocka_unit_test(a_load_without_progress_ends_and_others_are_loaded),
        cmocka_unit_test(a_process_that_does_not_end_a_cancelled_request_is_killed),
        cmocka_unit_test(a_process_that_does_not_fall_asleep_is_killed),
        cmocka_unit_test(an_unload_ends_a_load_and_its_process),
        cmocka_unit_test(an_unload_of_what_sleeps_ends_its_process),
        cmocka_unit_test(parked_blocks_of_what_sleeps_count_and_go_for_a_model),
        cmocka_unit_test(a_stream_whose_process_dies_ends_with_an_error),
        cmocka_unit_test(a_stream_that_has_only_pings_is_repeated_once),
        cmocka_unit_test(a_stream_that_cannot_be_repeated_ends_with_an_error),
        cmocka_unit_test(a_death_while_the_server_drains_ends_the_calls),
        cmocka_unit_test(a_death_while_the_model_is_unloaded_ends_the_calls),
        cmocka_unit_test(an_operator_closes_the_breaker),
        cmocka_unit_test(a_gang_that_ends_is_a_process_that_dies),
        cmocka_unit_test(an_abort_does_not_wait_for_a_slow_client),
        cmocka_unit_test(all_processes_are_asked_to_end_at_once),
    };

    if (argc > 1 && strcmp(argv[1], "worker") == 0) return run_fake(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
