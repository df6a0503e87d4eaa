/* The parts of `tern load` that need no server: percentiles, the parser of HTTP replies,
 * distributions, goals, and the bodies of requests.
 *
 * Expected values are written by hand or follow from the definitions. Reads no files. */
#include "support.h"

#include "loadtest/load_http.h"
#include "loadtest/load_plan.h"

#include <jansson.h>
#include <math.h>

/* ---- percentiles ---- */

static void quantiles_are_interpolated_between_ranks(void **state)
{
    static const double unsorted[] = { 4, 1, 3, 2 };
    struct load_series s = { 0 };

    (void)state;
    assert_true(load_series_at(&s, 0.5) == 0 && load_series_mean(&s) == 0);
    for (int i = 0; i < 4; i++) load_series_add(&s, unsorted[i]);
    assert_true(fabs(load_series_at(&s, 0.5) - 2.5) < 1e-12);
    assert_true(fabs(load_series_at(&s, 0.95) - 3.85) < 1e-12);
    assert_true(fabs(load_series_at(&s, 0.25) - 1.75) < 1e-12);
    assert_true(load_series_at(&s, 0) == 1 && load_series_at(&s, 1) == 4);
    assert_true(load_series_mean(&s) == 2.5);
    load_series_add(&s, 0); /* added after it was sorted */
    assert_true(load_series_at(&s, 0) == 0 && load_series_at(&s, 0.5) == 2);
    load_series_release(&s);
    load_series_add(&s, 7);
    assert_true(load_series_at(&s, 0.99) == 7);
    load_series_release(&s);
}

static void quantiles_of_a_hundred_values_are_exact(void **state)
{
    struct load_series s = { 0 };

    (void)state;
    for (int i = 100; i >= 1; i--) load_series_add(&s, i);
    assert_true(fabs(load_series_at(&s, 0.5) - 50.5) < 1e-9);
    assert_true(fabs(load_series_at(&s, 0.95) - 95.05) < 1e-9);
    assert_true(fabs(load_series_at(&s, 0.99) - 99.01) < 1e-9);
    load_series_release(&s);
}

/* ---- replies ---- */

struct seen {
    struct buf text; /* events, each followed by '|' */
    int n;
};

static void record_event(void *arg, struct str data)
{
    struct seen *s = arg;
    buf_put_str(&s->text, data);
    buf_putc(&s->text, '|');
    s->n++;
}

static const char stream[] = "HTTP/1.1 100 Continue\r\n\r\n"
                             "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; "
                             "charset=utf-8\r\nTransfer-Encoding: chunked\r\n"
                             "X-Request-Id: r-17\r\n\r\n"
                             "d\r\ndata: {\"a\":1}\r\n"
                             "10\r\n\n\n: ping\n\ndata: \r\n"
                             "1;ext=1\r\nb\r\n"
                             "30\r\n\r\n\r\nevent: x\rid: 7\rdata: two\rdata:lines\r\rignored\r\n"
                             "e\r\n\ndata: [DONE]\n\r\n"
                             "2\r\n\n\n\r\n"
                             "0\r\nTrailer: x\r\n\r\n";
static const char stream_events[] = "{\"a\":1}|b|two\nlines|[DONE]|";

/* Feeds the bytes in three pieces, cut at a and b. */
static void feed_cut(struct load_http *h, const char *p, size_t n, size_t a, size_t b)
{
    size_t at[] = { 0, a, b, n };

    load_http_reset(h);
    for (int i = 0; i < 3; i++) {
        char *copy = malloc(at[i + 1] - at[i] + 1); /* so that reading past the end is found */
        memcpy(copy, p + at[i], at[i + 1] - at[i]);
        if (h->state < HTTP_DONE) {
            size_t took = load_http_feed(h, copy, at[i + 1] - at[i]);
            if (h->state < HTTP_DONE) assert_int_equal(took, at[i + 1] - at[i]);
        }
        free(copy);
    }
}

static void a_stream_is_parsed_the_same_wherever_it_is_cut(void **state)
{
    struct seen seen = { 0 };
    struct load_http h = { .event = record_event, .arg = &seen };
    size_t n = sizeof stream - 1;

    (void)state;
    for (size_t a = 0; a <= n; a++)
        for (size_t b = a; b <= n; b += b - a < 3 ? 1 : 17) {
            buf_clear(&seen.text);
            feed_cut(&h, stream, n, a, b);
            if (h.state != HTTP_DONE)
                fail_msg("cut at %zu and %zu: state %d, %s", a, b, h.state, h.why);
            if (!str_is(buf_str(&seen.text), stream_events))
                fail_msg("cut at %zu and %zu: %s", a, b, buf_cstr(&seen.text));
            assert_int_equal(h.status, 200);
            assert_string_equal(h.request_id, "r-17");
            assert_true(h.keep_alive && h.sse);
        }
    load_http_release(&h);
    buf_release(&seen.text);
}

static void a_stream_is_parsed_the_same_byte_by_byte(void **state)
{
    struct seen seen = { 0 };
    struct load_http h = { .event = record_event, .arg = &seen };

    (void)state;
    for (size_t i = 0; i < sizeof stream - 1; i++)
        assert_int_equal(load_http_feed(&h, stream + i, 1), 1);
    assert_int_equal(h.state, HTTP_DONE);
    assert_string_equal(buf_cstr(&seen.text), stream_events);
    load_http_release(&h);
    buf_release(&seen.text);
}

static void a_truncated_stream_is_not_taken_for_a_complete_one(void **state)
{
    struct load_http h = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof stream - 1; i++) {
        load_http_reset(&h);
        load_http_feed(&h, stream, i);
        assert_false(load_http_eof(&h));
    }
    load_http_release(&h);
}

static void bodies_end_by_length_by_chunks_or_with_the_connection(void **state)
{
    static const struct {
        const char *text;
        bool keep, at_close;
    } cases[] = {
        { "HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nRetry-After: 3\r\n\r\nhello", true,
          false },
        { "HTTP/1.1 404 Not Found\r\ntransfer-encoding: CHUNKED\r\nconnection: "
          "close\r\nretry-after: 3\r\n\r\n"
          "3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
          false, false },
        { "HTTP/1.0 404 Not Found\r\nRetry-After: 3\r\n\r\nhello", false, true },
        { "HTTP/1.1 404\nretry-after:3\nCONTENT-LENGTH:5\n\nhello", true, false },
    };
    struct load_http h = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = strlen(cases[i].text);
        for (size_t cut = 0; cut <= n; cut++) {
            feed_cut(&h, cases[i].text, n, cut, cut);
            assert_int_equal(h.state, cases[i].at_close ? HTTP_CLOSE : HTTP_DONE);
            assert_true(load_http_eof(&h));
            assert_int_equal(h.status, 404);
            assert_int_equal(h.retry_after_s, 3);
            assert_true(str_is(buf_str(&h.body), "hello"));
            assert_int_equal(h.keep_alive, cases[i].keep);
        }
    }
    load_http_release(&h);
}

static void bytes_of_the_next_reply_are_not_consumed(void **state)
{
    struct load_http h = { 0 };
    const char one[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    const char two[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 500 x\r\n";

    (void)state;
    assert_int_equal(load_http_feed(&h, two, sizeof two - 1), strlen(one));
    assert_int_equal(h.state, HTTP_DONE);
    load_http_release(&h);
}

static void bytes_that_are_not_http_are_rejected(void **state)
{
    static const char *const bad_ones[] = {
        "SSH-2.0-OpenSSH\r\n",
        "HTTP/2 200\r\n",
        "HTTP/1.1 abc\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1x\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    };
    struct load_http h = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof bad_ones / sizeof *bad_ones; i++) {
        load_http_reset(&h);
        load_http_feed(&h, bad_ones[i], strlen(bad_ones[i]));
        if (h.state != HTTP_BAD) fail_msg("accepted: %s", bad_ones[i]);
        assert_non_null(h.why);
    }
    load_http_release(&h);
}

static void random_bytes_do_not_crash_the_parser(void **state)
{
    struct seen seen = { 0 };
    struct load_http h = { .event = record_event, .arg = &seen };
    struct rng r;

    (void)state;
    rng_seed(&r, 5);
    for (int i = 0; i < 20000; i++) {
        char bytes[sizeof stream];
        memcpy(bytes, stream, sizeof stream);
        for (int k = (int)(rng_u64(&r) % 4); k >= 0; k--)
            bytes[rng_u64(&r) % (sizeof stream - 1)] = (char)rng_u64(&r);
        buf_clear(&seen.text);
        feed_cut(&h, bytes, sizeof stream - 1, rng_u64(&r) % 100, 100 + rng_u64(&r) % 100);
    }
    load_http_release(&h);
    buf_release(&seen.text);
}

static void record_event_and_stop(void *arg, struct str data)
{
    struct load_http *h = arg;
    (void)data;
    h->stop = true;
}

static void no_event_arrives_after_stop(void **state)
{
    struct load_http h = { .event = record_event_and_stop };
    size_t took;

    (void)state;
    h.arg = &h;
    took = load_http_feed(&h, stream, sizeof stream - 1);
    assert_true(took < sizeof stream - 1);
    assert_true(h.state < HTTP_DONE);
    load_http_release(&h);
}

/* ---- lengths and arrivals ---- */

static void lengths_have_the_requested_distribution(void **state)
{
    static const struct {
        const char *text;
        double mean, low, high;
    } cases[] = {
        { "64", 64, 64, 64 },
        { "16-512", 264, 16, 512 },
        { "exp:128", 128, 1, 1e6 },
        { "normal:128,20", 128, 1, 1e6 },
        { "lognormal:128,0.6", 128 * 1.1972, 1, 1e6 },
        { "1-2", 1.5, 1, 2 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct load_dist d;
        struct err e = { 0 };
        struct rng r;
        double sum = 0;
        int low = LOAD_DIST_MAX, high = 0;
        if (load_dist_parse(&d, cases[i].text, &e) != OK) fail_msg("%s", e.msg);
        rng_seed(&r, 1);
        for (int k = 0; k < 50000; k++) {
            int v = load_dist_sample(&d, &r);
            sum += v;
            low = v < low ? v : low;
            high = v > high ? v : high;
        }
        if (fabs(sum / 50000 / cases[i].mean - 1) > 0.03)
            fail_msg("%s: mean %g", cases[i].text, sum / 50000);
        assert_true(low >= cases[i].low && high <= cases[i].high);
        if (d.kind == DIST_UNIFORM)
            assert_true(low == (int)cases[i].low && high == (int)cases[i].high);
    }
}

static void invalid_lengths_are_rejected(void **state)
{
    static const char *const wrong[] = { "",
                                         "x",
                                         "0",
                                         "-3",
                                         "5-",
                                         "9-3",
                                         "exp:",
                                         "exp:0",
                                         "lognormal:128",
                                         "normal:5,-1",
                                         "1e9",
                                         "1-2000000",
                                         "nan",
                                         "64 " };
    struct load_dist d;
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (load_dist_parse(&d, wrong[i], &e) == OK) fail_msg("accepted: '%s'", wrong[i]);
        assert_non_null(strstr(e.msg, "lognormal"));
    }
}

static void gaps_have_mean_one_and_the_requested_burstiness(void **state)
{
    static const double shapes[] = { 0.25, 0.5, 1, 4 };

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct rng r;
        double sum = 0, square = 0;
        int n = 200000;
        rng_seed(&r, 3);
        for (int k = 0; k < n; k++) {
            double g = load_gap_sample(&r, shapes[i]);
            assert_true(g >= 0);
            sum += g;
            square += g * g;
        }
        sum /= n;
        square = square / n - sum * sum;
        if (fabs(sum - 1) > 0.03) fail_msg("shape %g: mean %g", shapes[i], sum);
        if (fabs(square * shapes[i] - 1) > 0.08)
            fail_msg("shape %g: variance %g", shapes[i], square);
    }
}

static void a_ramp_rises_to_the_rate_and_stays_there(void **state)
{
    (void)state;
    assert_true(fabs(load_arrival_time(10, 5, 0) - 2) < 1e-9);
    assert_true(fabs(load_arrival_time(25, 5, 10) - 10) < 1e-9); /* half the full rate on average */
    assert_true(fabs(load_arrival_time(6.25, 5, 10) - 5) < 1e-9);
    assert_true(fabs(load_arrival_time(30, 5, 10) - 11) < 1e-9);
    for (double x = 0; x < 60; x += 0.5)
        assert_true(load_arrival_time(x + 0.5, 5, 10) > load_arrival_time(x, 5, 10));
}

/* ---- counting ---- */

static void good_requests_meet_every_goal(void **state)
{
    struct load_stats s = { 0 };
    struct load_rec r = { .outcome = LOAD_OK,
                          .ttft_ms = 100,
                          .e2e_ms = 1000,
                          .n_in = 5,
                          .n_out = 10,
                          .n_events = 10,
                          .gap_sum_ms = 900,
                          .gap_max_ms = 300 };
    (void)state;
    assert_true(load_goals_parse(&s.goals, "ttft:100,itl:100,e2e:1000,gap:300,tpot:100"));
    load_stats_add(&s, &r);
    assert_int_equal(s.n_good, 1);
    r.gap_max_ms = 301;
    load_stats_add(&s, &r);
    r.gap_max_ms = 1;
    r.ttft_ms = 101;
    load_stats_add(&s, &r);
    r.ttft_ms = 1;
    r.outcome = LOAD_FAILED;
    load_stats_add(&s, &r);
    assert_int_equal(s.n_good, 1);
    assert_int_equal(s.n[LOAD_OK], 3);
    assert_true(fabs(load_stats_error_rate(&s) - 0.25) < 1e-12);
    assert_int_equal(s.tokens_in, 15);
    assert_true(fabs(load_series_at(&s.tpot, 0) - 899.0 / 9) < 1e-9);
    assert_false(load_goals_parse(&s.goals, "ttft"));
    assert_false(load_goals_parse(&s.goals, "ttft:x"));
    assert_false(load_goals_parse(&s.goals, "speed:3"));
    load_stats_release(&s);
}

static void kinds_of_errors_are_counted_up_to_a_limit(void **state)
{
    struct load_stats s = { 0 };
    char name[32];
    size_t all = 0;

    (void)state;
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "kind %d", i);
        load_stats_add_kind(&s, name);
        load_stats_add_kind(&s, "timeout");
    }
    for (int i = 0; i < s.n_kinds; i++) all += s.kinds[i].n;
    assert_int_equal(all, 200);
    assert_string_equal(s.kinds[1].name, "timeout");
    assert_int_equal(s.kinds[1].n, 100);
    assert_string_equal(s.kinds[s.n_kinds - 1].name, "other");
    load_stats_second(&s, 100.7)->tokens++;
    assert_int_equal(s.n_seconds, 101);
    assert_int_equal(load_stats_second(&s, 100)->tokens, 1);
    assert_int_equal(load_stats_second(&s, 3)->tokens, 0);
    load_stats_release(&s);
}

/* ---- the plan ---- */

static struct load_plan make_plan(void)
{
    struct load_plan p = { .seed = 9, .share = 1, .temperature = -1, .tokens_per_word = 1 };
    load_dist_parse(&p.prompt, "10-20", NULL);
    load_dist_parse(&p.output, "5-9", NULL);
    snprintf(p.model, sizeof p.model, "m\"x");
    return p;
}

static json_t *make_body(const struct load_plan *p, int64_t i)
{
    struct load_request a = { 0 };
    json_t *j;

    assert_int_equal(load_plan_make(p, i, &a, NULL), OK);
    j = json_loadb(a.body.p, a.body.n, 0, NULL);
    assert_non_null(j);
    assert_int_equal(json_integer_value(json_object_get(j, "max_tokens")), a.n_output);
    buf_release(&a.body);
    return j;
}

static void a_request_depends_on_seed_and_index_only(void **state)
{
    struct load_plan p = make_plan();
    json_t *a = make_body(&p, 3), *b = make_body(&p, 3), *c = make_body(&p, 4);

    (void)state;
    assert_true(json_equal(a, b));
    assert_false(json_equal(a, c));
    assert_string_equal(json_string_value(json_object_get(a, "model")), "m\"x");
    assert_true(json_is_true(json_object_get(a, "stream")) &&
                json_is_true(json_object_get(a, "ignore_eos")));
    assert_null(json_object_get(a, "temperature"));
    json_decref(a);
    json_decref(b);
    json_decref(c);
}

static void the_shared_prefix_is_equal_in_all_prompts(void **state)
{
    struct load_plan p = make_plan();
    json_t *first, *second, *a, *b;

    (void)state;
    p.n_shared = 100;
    p.id_low = 300, p.id_high = 400;
    p.completions = true;
    first = make_body(&p, 1);
    second = make_body(&p, 2);
    a = json_object_get(first, "prompt");
    b = json_object_get(second, "prompt");
    assert_true(json_array_size(a) >= 110 && json_array_size(a) <= 120);
    for (size_t i = 0; i < 100; i++) {
        json_int_t x = json_integer_value(json_array_get(a, i));
        assert_int_equal(x, json_integer_value(json_array_get(b, i)));
        assert_in_range(x, 300, 400);
    }
    json_decref(first);
    json_decref(second);
}

static void aborts_have_the_planned_rates_in_every_phase_of_a_request(void **state)
{
    struct load_plan p = make_plan();
    struct load_request a = { 0 };
    int n[4] = { 0 }, at_once = 0, by_time = 0, by_event = 0;

    (void)state;
    p.cancel = 0.2, p.disconnect = 0.3;
    for (int i = 0; i < 20000; i++) {
        assert_int_equal(load_plan_make(&p, i, &a, NULL), OK);
        n[a.abort]++;
        if (a.abort == ABORT_NONE) continue;
        assert_in_range(a.abort_events, 0, a.n_output - 1);
        if (a.abort_events) by_event++;
        else if (a.abort_ms > 0) by_time++;
        else at_once++;
    }
    buf_release(&a.body);
    assert_in_range(n[ABORT_CANCEL], 3700, 4300);
    assert_in_range(n[ABORT_CLOSE], 2700, 3300);
    assert_in_range(n[ABORT_RESET], 2700, 3300);
    assert_in_range(at_once, 3000, 3700);
    assert_in_range(by_time, 3000, 3700);
    assert_in_range(by_event, 3000, 3700);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles_are_interpolated_between_ranks),
        cmocka_unit_test(quantiles_of_a_hundred_values_are_exact),
        cmocka_unit_test(a_stream_is_parsed_the_same_wherever_it_is_cut),
        cmocka_unit_test(a_stream_is_parsed_the_same_byte_by_byte),
        cmocka_unit_test(a_truncated_stream_is_not_taken_for_a_complete_one),
        cmocka_unit_test(bodies_end_by_length_by_chunks_or_with_the_connection),
        cmocka_unit_test(bytes_of_the_next_reply_are_not_consumed),
        cmocka_unit_test(bytes_that_are_not_http_are_rejected),
        cmocka_unit_test(random_bytes_do_not_crash_the_parser),
        cmocka_unit_test(no_event_arrives_after_stop),
        cmocka_unit_test(lengths_have_the_requested_distribution),
        cmocka_unit_test(invalid_lengths_are_rejected),
        cmocka_unit_test(gaps_have_mean_one_and_the_requested_burstiness),
        cmocka_unit_test(a_ramp_rises_to_the_rate_and_stays_there),
        cmocka_unit_test(good_requests_meet_every_goal),
        cmocka_unit_test(kinds_of_errors_are_counted_up_to_a_limit),
        cmocka_unit_test(a_request_depends_on_seed_and_index_only),
        cmocka_unit_test(the_shared_prefix_is_equal_in_all_prompts),
        cmocka_unit_test(aborts_have_the_planned_rates_in_every_phase_of_a_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
