/* GPU values in /status and /metrics, read through a fake NVML library (fake_nvml.c) that is
 * built beside the tests. */
#include "support.h"

#include "base/buf.h"
#include "base/jsonw.h"
#include "server/gpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static const char *fake_library(void)
{
    static char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 32);

    assert_true(n > 0);
    path[n] = 0;
    strcpy(strrchr(path, '/'), "/fake_nvml.so");
    return path;
}

static void nap(void) { nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL); }

/* Opens the library and waits for the first poll. */
static struct gpus *open_with_behaviour(const char *kind)
{
    setenv("FAKE_NVML", kind, 1);
    struct gpus *g = gpus_open(fake_library());
    assert_non_null(g);
    for (int i = 0; i < 30000 && gpus_n_polls(g) == 0 && strcmp(kind, "dead") != 0; i++) nap();
    return g;
}

static void render_gpus(struct gpus *g, struct buf *json, struct buf *metrics)
{
    struct jsonw w = { .out = json };

    jsonw_arr(&w);
    gpus_write_json(g, &w);
    jsonw_end(&w);
    gpus_write_metrics(g, metrics);
}

static void every_gpu_is_shown_with_all_reported_values(void **state)
{
    struct buf json = { 0 }, metrics = { 0 };
    struct gpus *g = open_with_behaviour("2");
    struct gpu all[4];
    (void)state;

    assert_int_equal(gpus_get(g, all, 4), 2);
    assert_string_equal(all[1].name, "Fake \"GPU\" 1");
    assert_int_equal(all[1].used_bytes, 5001);
    render_gpus(g, &json, &metrics);
    assert_non_null(strstr(buf_cstr(&json),
                           "{\"index\":1,\"name\":\"Fake \\\"GPU\\\" 1\",\"memory_used\":5001,"
                           "\"memory_total\":8000,\"utilization_percent\":41,"
                           "\"memory_utilization_percent\":7,\"temperature_c\":52,"
                           "\"power_w\":250.501}]"));
    assert_non_null(strstr(buf_cstr(&metrics), "# TYPE tern_gpu_utilization gauge\n"));
    assert_non_null(strstr(buf_cstr(&metrics),
                           "tern_gpu_utilization{gpu=\"0\",name=\"Fake \\\"GPU\\\" 0\"} 0.4\n"));
    assert_non_null(
        strstr(buf_cstr(&metrics),
               "tern_gpu_power_watts{gpu=\"1\",name=\"Fake \\\"GPU\\\" 1\"} 250.501\n"));
    assert_non_null(strstr(buf_cstr(&metrics), "tern_gpu_temperature_celsius{gpu=\"0\","));
    gpus_close(g);
    buf_release(&json), buf_release(&metrics);
}

static void values_a_gpu_does_not_report_are_left_out(void **state)
{
    struct buf json = { 0 }, metrics = { 0 };
    struct gpus *g = open_with_behaviour("mute");
    (void)state;

    render_gpus(g, &json, &metrics);
    assert_string_equal(buf_cstr(&json),
                        "[{\"index\":0,\"name\":\"Fake \\\"GPU\\\" 0\",\"memory_used\":5000,"
                        "\"memory_total\":8000}]");
    assert_null(strstr(buf_cstr(&metrics), "power"));
    assert_null(strstr(buf_cstr(&metrics), "temperature"));
    assert_non_null(strstr(buf_cstr(&metrics), "tern_gpu_memory_used_bytes"));
    gpus_close(g);
    buf_release(&json), buf_release(&metrics);
}

static void a_missing_library_or_driver_is_not_an_error(void **state)
{
    struct buf json = { 0 }, metrics = { 0 };
    struct gpus *g;
    (void)state;

    assert_null(gpus_open("/nonexistent/libnvidia-ml.so.1"));
    assert_null(gpus_open("/proc/self/exe")); /* a library without NVML's symbols */
    assert_int_equal(gpus_get(NULL, NULL, 0), 0);
    gpus_close(NULL);
    g = open_with_behaviour("dead");
    nap();
    render_gpus(g, &json, &metrics);
    assert_string_equal(buf_cstr(&json), "[]");
    assert_int_equal(metrics.n, 0);
    gpus_close(g);
    buf_release(&json), buf_release(&metrics);
}

static void gpus_that_cannot_be_opened_are_left_out(void **state)
{
    struct gpus *g = open_with_behaviour("7");
    struct gpu all[8];
    (void)state;

    assert_int_equal(gpus_get(g, all, 8), 4);
    assert_int_equal(gpus_get(g, all, 1), 4);
    gpus_close(g);
}

static void reading_values_does_not_call_the_driver(void **state)
{
    struct gpus *g = open_with_behaviour("1");
    struct gpu one;
    int64_t before = gpus_n_polls(g);
    (void)state;

    for (int i = 0; i < 100000; i++) assert_int_equal(gpus_get(g, &one, 1), 1);
    assert_true(gpus_n_polls(g) <= before + 1); /* a poll of the timer */
    for (int i = 0; i < 30000 && gpus_n_polls(g) == before; i++) nap();
    assert_true(gpus_n_polls(g) > before);
    gpus_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_gpu_is_shown_with_all_reported_values),
        cmocka_unit_test(values_a_gpu_does_not_report_are_left_out),
        cmocka_unit_test(a_missing_library_or_driver_is_not_an_error),
        cmocka_unit_test(gpus_that_cannot_be_opened_are_left_out),
        cmocka_unit_test(reading_values_does_not_call_the_driver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
