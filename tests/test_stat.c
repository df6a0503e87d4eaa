/* Counters, gauges, histograms, their Prometheus text form, and log lines in each format.
 *
 * Expected texts are written by hand. Reads no files. */
#include "support.h"

#include "base/log.h"
#include "base/stat.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static void a_histogram_counts_each_value_once(void **state)
{
    struct hist h;

    (void)state;
    hist_init(&h, hist_ttft, 22);
    hist_add(&h, 0.001); /* a bound belongs to its bucket */
    hist_add(&h, 0.0011);
    hist_add(&h, 1e9);
    hist_add(&h, -3);
    hist_add(&h, NAN);
    assert_int_equal(h.bucket[0], 3);
    assert_int_equal(h.bucket[1], 1);
    assert_int_equal(h.bucket[22], 1);
    assert_int_equal(h.count, 5);
}

static void quantiles_lie_within_their_bucket(void **state)
{
    static const double bounds[] = { 10, 20, 40 };
    struct hist h;

    (void)state;
    hist_init(&h, bounds, 3);
    assert_true(hist_quantile(&h, 0.5) == 0);
    for (int i = 0; i < 10; i++) hist_add(&h, 15);
    assert_true(hist_quantile(&h, 0.5) == 15);
    assert_true(hist_quantile(&h, 1) == 20);
    for (int i = 0; i < 10; i++) hist_add(&h, 30);
    assert_true(fabs(hist_quantile(&h, 0.75) - 30) < 1e-9);
    for (int i = 0; i < 1000; i++) hist_add(&h, 1e6);
    assert_true(hist_quantile(&h, 0.99) == 40); /* above all bounds: the last bound is returned */
}

static void histogram_bounds_are_ascending(void **state)
{
    static const struct {
        const double *b;
        int n;
    } all[] = {
        { hist_ttft, 22 },   { hist_itl, 20 },   { hist_e2e, 21 },
        { hist_tokens, 16 }, { hist_short, 15 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_true(all[i].n <= HIST_MAX && all[i].b[0] > 0);
        for (int j = 1; j < all[i].n; j++) assert_true(all[i].b[j] > all[i].b[j - 1]);
    }
}

static void metrics_are_written_in_prometheus_format(void **state)
{
    static const double bounds[] = { 0.001, 0.25, 2560 };
    struct buf out = { 0 }, labels = { 0 };
    struct hist h;

    (void)state;
    stat_label(&labels, "model", STR("a\"b\\c\nd\xff"));
    stat_label(&labels, "engine", STR("0"));
    assert_string_equal(buf_cstr(&labels), "model=\"a\\\"b\\\\c\\nd\xef\xbf\xbd\",engine=\"0\"");
    stat_counter(&out, "x_total", "", "counts\nthings", 18446744073709551615ull);
    stat_gauge(&out, "g", buf_cstr(&labels), NULL, 0.1);
    stat_gauge(&out, "g", "", NULL, INFINITY);
    hist_init(&h, bounds, 3);
    hist_add(&h, 0.0005);
    hist_add(&h, 100);
    hist_add(&h, 9999.5);
    stat_hist(&out, "h", "a=\"b\"", "help", &h);
    assert_string_equal(
        buf_cstr(&out),
        "# HELP x_total counts\\nthings\n# TYPE x_total counter\nx_total 18446744073709551615\n"
        "g{model=\"a\\\"b\\\\c\\nd\xef\xbf\xbd\",engine=\"0\"} 0.1\ng +Inf\n"
        "# HELP h help\n# TYPE h histogram\n"
        "h_bucket{a=\"b\",le=\"0.001\"} 1\nh_bucket{a=\"b\",le=\"0.25\"} 1\n"
        "h_bucket{a=\"b\",le=\"2560\"} 2\nh_bucket{a=\"b\",le=\"+Inf\"} 3\n"
        "h_sum{a=\"b\"} 10099.5005\nh_count{a=\"b\"} 3\n");
    buf_release(&out);
    buf_release(&labels);
}

static void *add_many(void *arg)
{
    struct hist *h = arg;
    for (int i = 0; i < 20000; i++) hist_add(h, i % 7);
    return NULL;
}

static void counts_from_many_threads_are_not_lost(void **state)
{
    struct hist h;
    pthread_t t[4];

    (void)state;
    hist_init(&h, hist_short, 15);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&t[i], NULL, add_many, &h), 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    assert_int_equal(h.count, 80000);
}

/* Runs fn with stderr redirected to a pipe and stores what it wrote. The pipe is read only after
 * fn has returned. */
static void capture_stderr(void (*fn)(void), struct buf *out)
{
    int keep = dup(2), p[2];
    char bytes[4096];
    ssize_t n;

    assert_int_equal(pipe(p), 0);
    dup2(p[1], 2);
    fn();
    fcntl(p[0], F_SETFL, O_NONBLOCK);
    while ((n = read(p[0], bytes, sizeof bytes)) > 0) buf_add(out, bytes, (size_t)n);
    dup2(keep, 2);
    close(keep), close(p[0]), close(p[1]);
}

static void log_in_every_format(void)
{
    struct log_event ev;

    log_set_format(LOG_TEXT);
    log_info("a \"line\"\nforged");
    log_begin(&ev, LOG_INFO, "access");
    log_str(&ev, "id", STR("x-1")), log_str(&ev, "path", STR("/a b\n")),
        log_int(&ev, "status", 200), log_ms(&ev, "ms", 1.5);
    log_end(&ev);
    log_set_format(LOG_JSON);
    log_info("a \"line\"\nforged");
    log_begin(&ev, LOG_INFO, "access");
    log_str(&ev, "id", STR("x-1")), log_int(&ev, "status", 200), log_ms(&ev, "ms", 1.5);
    log_end(&ev);
    log_debug("not shown");
    log_set_format(LOG_PLAIN);
    log_warn("plain");
}

static void a_log_event_is_one_line_in_each_format(void **state)
{
    struct buf out = { 0 };
    const char *text;
    int lines = 0;

    (void)state;
    log_set_level(LOG_INFO);
    capture_stderr(log_in_every_format, &out);
    text = buf_cstr(&out);
    for (const char *c = text; *c; c++) lines += *c == '\n';
    assert_int_equal(lines, 5);
    assert_non_null(strstr(text, "Z info    a \"line\" forged\n"));
    assert_non_null(strstr(text, " access id=x-1 path=\"/a b\\n\" status=200 ms=1.500\n"));
    assert_non_null(strstr(text, "\"level\":\"info\",\"msg\":\"a \\\"line\\\"\\nforged\"}\n"));
    assert_non_null(
        strstr(text, "\"msg\":\"access\",\"id\":\"x-1\",\"status\":200,\"ms\":1.500}\n"));
    assert_non_null(strstr(text, "\ntern: warning: plain\n"));
    log_set_level(LOG_WARN);
    buf_release(&out);
}

static void log_with_a_name(void)
{
    log_set_name("al\npha\"");
    for (int f = LOG_PLAIN; f <= LOG_JSON; f++) {
        log_set_format((enum log_format)f);
        log_warn("hello");
    }
    log_set_format(LOG_PLAIN);
    log_set_name("");
    log_warn("again");
}

static void the_name_of_a_process_stands_in_its_lines(void **state)
{
    struct buf out = { 0 };

    (void)state;
    capture_stderr(log_with_a_name, &out);
    assert_non_null(strstr(buf_cstr(&out), "tern: warning: [al?pha\"] hello\n"));
    assert_non_null(strstr(buf_cstr(&out), "Z warning [al?pha\"] hello\n"));
    assert_non_null(strstr(buf_cstr(&out), "\"worker\":\"al?pha\\\"\",\"msg\":\"hello\"}\n"));
    assert_non_null(strstr(buf_cstr(&out), "tern: warning: again\n"));
    buf_release(&out);
}

static void log_many_lines(void)
{
    log_set_format(LOG_TEXT);
    for (int i = 0; i < 5000; i++) log_warn("line %d of many that nobody reads in time", i);
    log_set_format(LOG_PLAIN);
}

static void logging_does_not_block_when_stderr_is_not_read(void **state)
{
    struct buf out = { 0 };

    (void)state;
    capture_stderr(log_many_lines, &out); /* must return although the pipe is full */
    assert_non_null(strstr(buf_cstr(&out), "line 0 of many"));
    assert_null(strstr(buf_cstr(&out), "line 4999 of many"));
    buf_clear(&out);
    log_set_level(LOG_INFO);
    capture_stderr(log_in_every_format, &out);
    log_set_level(LOG_WARN);
    assert_non_null(strstr(buf_cstr(&out), "log lines were dropped"));
    buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_histogram_counts_each_value_once),
        cmocka_unit_test(quantiles_lie_within_their_bucket),
        cmocka_unit_test(histogram_bounds_are_ascending),
        cmocka_unit_test(metrics_are_written_in_prometheus_format),
        cmocka_unit_test(counts_from_many_threads_are_not_lost),
        cmocka_unit_test(a_log_event_is_one_line_in_each_format),
        cmocka_unit_test(the_name_of_a_process_stands_in_its_lines),
        cmocka_unit_test(logging_does_not_block_when_stderr_is_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
