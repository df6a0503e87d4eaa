/* Parts of workers that need no worker: the breaker, processes, and the name of a model in a body. */
#include "support.h"

#include "base/clock.h"
#include "api/params.h"
#include "base/jsonpeek.h"
#include "base/jsonr.h"
#include "engine/stats.h"
#include "worker/breaker.h"
#include "worker/process.h"
#include "worker/seats.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#define MS 1000000ull

/* ---- breaker ---- */

/* Deaths `step` ms apart; the result of asking right after each. */
static int count_until_open(struct breaker *b, uint64_t *now, uint64_t step, int most)
{
    int retry;

    for (int i = 1; i <= most; i++) {
        breaker_note_start(b, *now);
        *now += step * MS;
        breaker_note_death(b, *now);
        if (!breaker_allows(b, *now, &retry)) return i;
    }
    return 0;
}

static void deaths_in_a_short_time_open_the_breaker(void **state)
{
    struct breaker b = { 0 };
    uint64_t now = 1000 * MS;
    int retry = 0;

    (void)state;
    assert_int_equal(count_until_open(&b, &now, 100, 100), BREAKER_DEATHS);
    assert_false(breaker_allows(&b, now, &retry));
    assert_in_range(retry, BREAKER_OPEN_MS - 1, BREAKER_OPEN_MS + 1);
    now += BREAKER_OPEN_MS * MS;
    assert_true(breaker_allows(&b, now, &retry));
    assert_int_equal(count_until_open(&b, &now, 100, 1), 1); /* on trial: one is enough */
}

static void rare_deaths_do_not(void **state)
{
    struct breaker b = { 0 };
    uint64_t now = 1000 * MS;

    (void)state;
    assert_int_equal(count_until_open(&b, &now, BREAKER_WINDOW_MS / 2, 100), 0);
}

static void a_trial_that_goes_well_is_over(void **state)
{
    struct breaker b = { 0 };
    uint64_t now = 1000 * MS;
    int retry;

    (void)state;
    assert_int_equal(count_until_open(&b, &now, 100, 100), BREAKER_DEATHS);
    now += BREAKER_OPEN_MS * MS;
    assert_true(breaker_allows(&b, now, &retry));
    assert_int_equal(count_until_open(&b, &now, BREAKER_GOOD_MS, 1), 0);
    assert_int_equal(count_until_open(&b, &now, 100, 100), BREAKER_DEATHS - 1);
    breaker_reset(&b);
    assert_true(breaker_allows(&b, now, &retry));
}

/* ---- the name in a body ---- */

static void the_member_of_the_outermost_object_is_found(void **state)
{
    static const struct {
        const char *json;
        enum jsonpeek want;
        const char *text;
    } table[] = {
        { "{\"model\":\"a\"}", JSONPEEK_FOUND, "a" },
        { " {\n\"model\" :\t\"a b\" , \"x\":1}", JSONPEEK_FOUND, "a b" },
        { "{\"x\":{\"model\":\"no\"},\"y\":[{\"model\":\"no\"}],\"model\":\"yes\"}", JSONPEEK_FOUND,
          "yes" },
        { "{\"x\":\"model\\\":\\\"\",\"model\":\"yes\"}", JSONPEEK_FOUND, "yes" },
        { "{\"model\":\"first\",\"model\":\"last\"}", JSONPEEK_FOUND, "last" },
        { "{\"model\":\"first\",\"model\":7}", JSONPEEK_ABSENT, "" },
        { "{\"model\":null}", JSONPEEK_ABSENT, "" },
        { "{}", JSONPEEK_ABSENT, "" },
        { "{\"a\":1}", JSONPEEK_ABSENT, "" },
        { "{\"model\":\"\\u0061\"}", JSONPEEK_UNKNOWN, NULL },
        { "{\"\\u006dodel\":\"a\"}", JSONPEEK_UNKNOWN, NULL },
        { "[\"model\"]", JSONPEEK_UNKNOWN, NULL },
        { "", JSONPEEK_UNKNOWN, NULL },
        { "{", JSONPEEK_UNKNOWN, NULL },
        { "{\"model\":\"a", JSONPEEK_UNKNOWN, NULL },
        { "{\"model\"", JSONPEEK_UNKNOWN, NULL },
        { "{\"model\":\"a\"", JSONPEEK_UNKNOWN, NULL },
        { "{\"a\":[1,2", JSONPEEK_UNKNOWN, NULL },
        { "{\"a\":\"\\", JSONPEEK_UNKNOWN, NULL },
        { "{\"a\":1]", JSONPEEK_UNKNOWN, NULL },
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct buf out = { 0 };
        assert_int_equal(jsonpeek_text(str_c(table[i].json), "model", &out), table[i].want);
        if (table[i].text) assert_string_equal(buf_cstr(&out), table[i].text);
        buf_release(&out);
        for (size_t most = 1; most < 20; most++) { /* where a piece ends does not matter */
            struct jsonpeek_member m = { .key = "model" };
            struct jsonpeek_scan s;
            bool is_text;
            jsonpeek_begin(&s, str_c(table[i].json), &m, 1);
            while (!jsonpeek_step(&s, most)) continue;
            is_text = m.found == JSONPEEK_FOUND && m.is_text;
            assert_int_equal(m.found == JSONPEEK_FOUND && !is_text ? JSONPEEK_ABSENT : m.found,
                             table[i].want);
            if (is_text) assert_true(str_is(m.value, table[i].text));
        }
    }
}

static void members_are_found_in_one_pass(void **state)
{
    static const char json[] =
        "{\"ttl\": -1.5e3, \"keep_alive\" : \"5m\", \"x\":{\"ttl\":7},\"b\":true}";
    struct jsonpeek_member m[] = {
        { .key = "keep_alive" }, { .key = "ttl" }, { .key = "none" }, { .key = "x" }, { .key = "b" }
    };
    int64_t ms = 0;

    (void)state;
    jsonpeek_members(str_c(json), m, 5);
    assert_true(m[0].found == JSONPEEK_FOUND && m[0].is_text && str_is(m[0].value, "5m"));
    assert_true(m[1].found == JSONPEEK_FOUND && !m[1].is_text && str_is(m[1].value, "-1.5e3"));
    for (int i = 2; i < 4; i++) assert_int_equal(m[i].found, JSONPEEK_ABSENT);
    assert_true(m[4].found == JSONPEEK_FOUND && !m[4].is_text && str_is(m[4].value, "true"));
    assert_true(params_parse_keep(m[0].value, true, &ms) && ms == 300000);
    assert_true(params_parse_keep(m[1].value, false, &ms) && ms == -1);
    assert_true(params_parse_keep(STR("0"), false, &ms) && ms == 0);
    assert_false(params_parse_keep(STR("soon"), true, &ms));
    assert_false(params_parse_keep(STR("1e"), false, &ms));
    assert_false(params_parse_keep(STR("true"), false, &ms));
    jsonpeek_members(STR("{\"ttl\":1"), m, 2);
    assert_int_equal(m[1].found, JSONPEEK_UNKNOWN);
}

/* ---- counters ---- */

static void counters_are_copied_without_their_bounds(void **state)
{
    static struct engine_stats a, b;

    (void)state;
    engine_stats_init(&b);
    counter_add(&a.submitted, 3);
    counter_add(&a.grammars_cancelled, 5);
    gauge_set(&a.running, -2);
    a.ttft.count = 7;
    a.emit_us.sum_micro = 9;
    a.emit_us.bucket[HIST_MAX] = 11;
    engine_stats_copy(&b, &a);
    assert_int_equal(counter_get(&b.submitted), 3);
    assert_int_equal(counter_get(&b.grammars_cancelled), 5);
    assert_int_equal(gauge_get(&b.running), -2);
    assert_int_equal(b.ttft.count, 7);
    assert_int_equal(b.emit_us.sum_micro, 9);
    assert_int_equal(b.emit_us.bucket[HIST_MAX], 11);
    assert_ptr_equal(b.emit_us.bounds, hist_short);
}

/* ---- processes: this program again, see main ---- */

static void start(struct process *p, const char *what, int *fd)
{
    char *argv[] = { "test_worker", "child", (char *)what, NULL };
    unsigned char token[PROCESS_TOKEN];
    struct err e = { 0 };

    if (process_start(p, argv, -1, -1, fd, token, NULL, &e) != OK) fail_msg("%s", e.msg);
}

static void the_end_of_a_process_is_told(void **state)
{
    static const struct {
        const char *what;
        enum process_end want;
        const char *text;
    } table[] = {
        { "exit 0", PROCESS_EXITED, "exited with code 0" },
        { "exit 3", PROCESS_FAILED, "exited with code 3" },
        { "signal 6", PROCESS_ABORTED, "aborted" },
        { "signal 7", PROCESS_FAULT, "was killed by signal 7 (Bus error)" },
        { "signal 9", PROCESS_KILLED, "was killed by signal 9 (Killed)" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct process p;
        char text[100];
        int fd;
        start(&p, table[i].what, &fd);
        assert_true(process_wait(&p, 60000));
        assert_int_equal(process_end(&p), table[i].want);
        process_describe(&p, text, sizeof text);
        assert_string_equal(text, table[i].text);
        assert_false(process_signal(&p, SIGTERM));
        close(fd);
        process_release(&p);
    }
}

static void a_process_that_ignores_sigterm_is_killed(void **state)
{
    struct process p;
    char byte;
    int fd;

    (void)state;
    start(&p, "wait", &fd);
    assert_true(process_stop(&p, 60000)); /* SIGTERM ends it */
    process_release(&p);
    close(fd);
    start(&p, "stay", &fd);
    while (read(fd, &byte, 1) != 1) usleep(1000); /* it ignores SIGTERM now */
    assert_false(process_stop(&p, 50));
    assert_int_equal(process_end(&p), PROCESS_KILLED);
    process_release(&p);
    close(fd);
}

static int run_child(const char *what)
{
    unsigned char token[PROCESS_TOKEN];

    if (process_read_token(PROCESS_FD, token, NULL) != OK) return 99;
    if (strncmp(what, "exit ", 5) == 0) return what[5] - '0';
    if (strncmp(what, "signal ", 7) == 0) {
        signal(what[7] - '0', SIG_DFL); /* a sanitizer may have a handler for it */
        raise(what[7] - '0');
    }
    if (strcmp(what, "stay") == 0) signal(SIGTERM, SIG_IGN);
    if (write(PROCESS_FD, "x", 1) != 1) return 98;
    for (;;) pause();
}

/* ---- members ---- */

static void members_are_read_as_they_were_written(void **state)
{
    struct gang_seat seats[2] = { { .rank = 0,
                                    .pid = 17,
                                    .host = "ada",
                                    .device = "cpu (\"x\")",
                                    .end_layer = 4,
                                    .weight_bytes = 300,
                                    .kv_bytes = 7 },
                                  { .rank = 1,
                                    .pid = 18,
                                    .host = "bob",
                                    .first_layer = 4,
                                    .end_layer = 8,
                                    .weight_bytes = 100,
                                    .scratch_bytes = 9 } };
    struct engine_info in = {
        .members = seats, .n_members = 2, .tp = 1, .pp = 2, .transport = "tcp"
    };
    struct engine_info out = { 0 };
    struct buf b = { 0 };
    struct jsonw w = { .out = &b };
    struct arena a = { 0 };
    json_t *root;

    (void)state;
    seats_write(&w, &in, -1);
    root = jsonr_load(buf_str(&b), 0, NULL);
    seats_read(root, &a, &out);
    assert_int_equal(out.n_members, 2);
    assert_int_equal(out.tp, 1);
    assert_int_equal(out.pp, 2);
    assert_string_equal(out.transport, "tcp");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(out.members[i].rank, i);
        assert_int_equal(out.members[i].pid, seats[i].pid);
        assert_string_equal(out.members[i].host, seats[i].host);
        assert_string_equal(out.members[i].device, seats[i].device);
        assert_int_equal(out.members[i].first_layer, seats[i].first_layer);
        assert_int_equal(out.members[i].end_layer, seats[i].end_layer);
        assert_int_equal(out.members[i].weight_bytes, seats[i].weight_bytes);
        assert_int_equal(out.members[i].kv_bytes, seats[i].kv_bytes);
        assert_int_equal(out.members[i].scratch_bytes, seats[i].scratch_bytes);
    }
    assert_true(seats_share(&out, 0) == 0.75);
    json_decref(root);
    arena_release(&a);
    buf_release(&b);
}

/* A worker may say anything of its members. */
static void members_that_make_no_sense_are_left_out(void **state)
{
    static const char *const none[] = {
        "null", "7", "{}", "{\"members\":[]}", "{\"members\":[{}]}", "{\"members\":7}"
    };
    struct engine_info i = { 0 };
    struct arena a = { 0 };
    struct buf b = { 0 };
    json_t *v;

    (void)state;
    for (size_t k = 0; k < sizeof none / sizeof *none; k++) {
        v = json_loads(none[k], JSON_DECODE_ANY, NULL);
        seats_read(v, &a, &i);
        assert_int_equal(i.n_members, 0);
        assert_string_equal(i.transport, "");
        json_decref(v);
    }
    buf_puts(&b, "{\"members\":[7");
    for (int k = 0; k < COMM_MAX; k++) buf_puts(&b, ",{}"); /* one too many */
    buf_puts(&b, "]}");
    v = json_loads(buf_cstr(&b), 0, NULL);
    seats_read(v, &a, &i);
    assert_int_equal(i.n_members, 0);
    json_decref(v);
    buf_clear(&b);
    buf_puts(&b, "{\"tp\":-4,\"pp\":9e9,\"members\":[7,{\"pid\":-1,\"host\":\"");
    for (int k = 0; k < 500; k++) buf_putc(&b, 'h');
    buf_puts(&b, "\",\"device\":[],\"layers\":[9,3],\"weight_bytes\":-5}]}");
    v = json_loads(buf_cstr(&b), 0, NULL);
    seats_read(v, &a, &i);
    assert_int_equal(i.n_members, 2);
    assert_int_equal(i.tp, 0);
    assert_int_equal(i.members[1].pid, 0);
    assert_int_equal(i.members[1].weight_bytes, 0);
    assert_int_equal(i.members[1].end_layer, 0);
    assert_int_equal(strlen(i.members[1].host), sizeof i.members[1].host - 1);
    json_decref(v);
    arena_release(&a);
    buf_release(&b);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deaths_in_a_short_time_open_the_breaker),
        cmocka_unit_test(rare_deaths_do_not),
        cmocka_unit_test(a_trial_that_goes_well_is_over),
        cmocka_unit_test(the_member_of_the_outermost_object_is_found),
        cmocka_unit_test(members_are_found_in_one_pass),
        cmocka_unit_test(counters_are_copied_without_their_bounds),
        cmocka_unit_test(the_end_of_a_process_is_told),
        cmocka_unit_test(a_process_that_ignores_sigterm_is_killed),
        cmocka_unit_test(members_are_read_as_they_were_written),
        cmocka_unit_test(members_that_make_no_sense_are_left_out),
    };

    if (argc == 3 && strcmp(argv[1], "child") == 0) return run_child(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
