/* The load tester without memory: bodies of requests, parsed replies, statistics and reports. */
#include "fault.h"

#include "loadtest/load_http.h"
#include "loadtest/load_report.h"

static int make_requests(void *arg, struct err *e)
{
    struct load_plan p = {
        .seed = 9, .share = 1, .temperature = 0.5, .tokens_per_word = 1, .n_shared = 40
    };
    struct load_request q = { 0 };
    int rc = load_dist_parse(&p.prompt, "300", e);

    (void)arg;
    if (rc == OK) rc = load_dist_parse(&p.output, "5-9", e);
    for (int i = 0; i < 4 && rc == OK; i++) {
        p.completions = i % 2;
        p.id_high = i == 3 ? 500 : 0;
        rc = load_plan_make(&p, i, &q, e);
    }
    buf_release(&q.body);
    return rc;
}

static void count_event(void *arg, struct str data)
{
    (void)data;
    ++*(int *)arg;
}

static int parse_replies(void *arg, struct err *e)
{
    static const char stream[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                                 "Transfer-Encoding: chunked\r\n\r\n"
                                 "e\r\ndata: {\"a\":1}\n\r\n1\r\n\n\r\n0\r\n\r\n";
    static const char whole[] = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    int n_events = 0, rc = OK;
    struct load_http h = { .event = count_event, .arg = &n_events };

    (void)arg;
    load_http_feed(&h, stream, sizeof stream - 1);
    if (h.state == HTTP_BAD) rc = err_set(e, E_NOMEM, "%s", h.why);
    else assert_int_equal(n_events, 1);
    load_http_reset(&h);
    if (rc == OK) load_http_feed(&h, whole, sizeof whole - 1);
    if (rc == OK && h.state == HTTP_BAD) rc = err_set(e, E_NOMEM, "%s", h.why);
    load_http_release(&h);
    return rc;
}

static int report_statistics(void *arg, struct err *e)
{
    struct load_plan p = { .url = "http://localhost", .n_clients = 2 };
    struct load_stats s = { 0 };
    struct buf out = { 0 };
    int rc;

    (void)arg;
    for (int i = 0; i < 300; i++) {
        struct load_rec r = { .outcome = LOAD_OK,
                              .ttft_ms = 1 + i,
                              .e2e_ms = 100 + i,
                              .n_in = 5,
                              .n_out = 10,
                              .n_events = 10,
                              .gap_sum_ms = 50,
                              .gap_max_ms = 9,
                              .connect_ms = 1 };
        load_stats_add(&s, &r);
        load_series_add(&s.itl, i + 1);
        load_stats_second(&s, i / 10.0)->tokens++;
    }
    load_stats_add_kind(&s, "timeout");
    s.duration_s = 30;
    rc = load_stats_complete(&s) ? OK : err_nomem(e, "the statistics");
    load_report_text(&out, &p, &s);
    load_report_json(&out, &p, &s);
    load_report_html(&out, &p, &s);
    if (rc == OK) rc = buf_check(&out, e);
    buf_release(&out);
    load_stats_release(&s);
    return rc;
}

static void a_request_body_without_memory_is_an_error(void **state)
{
    (void)state;
    fault_run("requests of a load test", make_requests, NULL);
}

static void a_reply_without_memory_is_bad_and_says_so(void **state)
{
    (void)state;
    fault_run("replies of a server", parse_replies, NULL);
}

static void statistics_without_memory_are_incomplete_and_say_so(void **state)
{
    (void)state;
    fault_run("statistics and reports", report_statistics, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_body_without_memory_is_an_error),
        cmocka_unit_test(a_reply_without_memory_is_bad_and_says_so),
        cmocka_unit_test(statistics_without_memory_are_incomplete_and_say_so),
    };
    fault_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
