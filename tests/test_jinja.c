/* The Jinja interpreter against Python's jinja2: small cases (tests/golden/jinja) and chat
 * templates of real models (../shared/fixtures/chat, skipped without them). Also errors with
 * their position, limits on time and memory, and concurrent rendering. */
#include "support.h"

#include "base/file.h"
#include "base/mem.h"
#include "jinja/jinja.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static int render_source(const char *source, const json_t *vars, const struct jinja_limits *limits,
                         struct buf *out, struct err *e)
{
    struct jinja *t = NULL;
    int rc = jinja_open(&t, str_c(source), "t", e);

    if (rc == OK) rc = jinja_render(t, vars, limits, out, e);
    jinja_close(t);
    return rc;
}

static json_t *read_json(const char *path)
{
    struct buf text = { 0 };
    struct err e = { 0 };
    json_t *j;

    if (file_read(&text, path, 64u << 20, &e) != OK) fail_msg("%s", e.msg);
    j = json_loadb(text.p, text.n, JSON_ALLOW_NUL, NULL);
    assert_non_null(j);
    buf_release(&text);
    return j;
}

/* ---- texts rendered by jinja2 ---- */

/* Whether a case renders to the text of jinja2, or fails with a position where jinja2 fails. */
static bool matches_golden(const json_t *c, const json_t *vars)
{
    const json_t *text = json_object_get(c, "text");
    const char *source = json_string_value(json_object_get(c, "template"));
    struct buf out = { 0 };
    struct err e = { 0 };
    int rc = render_source(source, vars, NULL, &out, &e);
    bool same = text ? rc == OK && out.n == json_string_length(text) &&
                           (out.n == 0 || !memcmp(out.p, json_string_value(text), out.n))
                     : rc != OK && strstr(e.msg, "line ") && strstr(e.msg, "column ") && out.n == 0;

    if (!same)
        print_message("%s\n  expected %s\n  got      %s\n", source,
                      text ? json_string_value(text) : "an error",
                      rc == OK ? buf_cstr(&out) : e.msg);
    buf_release(&out);
    return same;
}

static void every_case_renders_as_jinja2_renders_it(void **state)
{
    json_t *golden = read_json(repo("tests/golden/jinja/golden.json")),
           *vars = json_object_get(golden, "vars"), *c;
    size_t i, bad = 0;

    (void)state;
    json_object_set_new(vars, "strftime_now", json_string("2026-01-02 03:04:05"));
    json_array_foreach (json_object_get(golden, "cases"), i, c) bad += !matches_golden(c, vars);
    assert_int_equal(bad, 0);
    assert_true(i > 900);
    json_decref(golden);
}

static size_t check_template(const char *name, const json_t *expected, const json_t *all)
{
    const char *key;
    json_t *want;
    char path[300];
    size_t bad = 0;

    snprintf(path, sizeof path, "fixtures/chat/%s.jinja", name);
    json_object_foreach ((json_t *)expected, key, want) {
        json_t *vars = json_deep_copy(json_object_get(all, "vars")),
               *text = json_object_get(want, "text");
        struct buf source = { 0 }, out = { 0 };
        struct err e = { 0 };
        int rc;
        json_object_update(vars, json_object_get(json_object_get(all, "cases"), key));
        if (file_read(&source, shared(path), JINJA_MAX_SOURCE, &e) != OK) fail_msg("%s", e.msg);
        rc = render_source(buf_cstr(&source), vars, NULL, &out, &e);
        if (text ? rc != OK || strcmp(buf_cstr(&out), json_string_value(text)) : rc == OK) {
            print_message("%s, %s: %s\n", name, key, e.msg);
            bad++;
        }
        buf_release(&source);
        buf_release(&out);
        json_decref(vars);
    }
    return bad;
}

static void templates_of_real_models_render_as_jinja2_renders_them(void **state)
{
    json_t *all, *expected;
    const char *name;
    size_t bad = 0;

    (void)state;
    need_shared("fixtures/chat/cases.json");
    all = read_json(shared("fixtures/chat/cases.json"));
    json_object_foreach (json_object_get(all, "expected"), name, expected)
        bad += check_template(name, expected, all);
    assert_int_equal(bad, 0);
    json_decref(all);
}

/* ---- errors ---- */

static void assert_fails(const char *source, int code, const char *place, const char *words)
{
    json_t *vars = json_pack("{s:s, s:[i,i], s:s}", "s", "text", "l", 1, 2, "strftime_now",
                             "2026-01-02 03:04:05");
    struct buf out = { 0 };
    struct err e = { 0 };
    int rc;

    buf_puts(&out, "kept");
    rc = render_source(source, vars, NULL, &out, &e);
    if (rc != code || !strstr(e.msg, place) || !strstr(e.msg, words))
        fail_msg("%s: %d '%s', expected %d, %s, '%s'", source, rc, e.msg, code, place, words);
    assert_string_equal(buf_cstr(&out), "kept");
    buf_release(&out);
    json_decref(vars);
}

static void errors_name_line_column_and_what_was_expected(void **state)
{
    (void)state;
    assert_fails("a\n  {{ s + 1 }}", E_FORMAT, "line 2, column 8", "concatenate str");
    assert_fails("\xc3\xa4{{ x.y }}", E_FORMAT, "line 1, column 6", "'x' is undefined");
    assert_fails("{% if s %}", E_FORMAT, "line 1", "expected '{% elif else endif %}'");
    assert_fails("{{ (1 }}", E_FORMAT, "line 1", "'}'");
    assert_fails("{{ 'abc }}", E_FORMAT, "line 1, column 4", "no end");
    assert_fails("{% for x l %}{% endfor %}", E_FORMAT, "line 1, column 10", "expected 'in'");
    assert_fails("{{ s | nope }}", E_FORMAT, "line 1, column 8", "no filter 'nope'");
    assert_fails("{% nope %}", E_FORMAT, "line 1, column 4", "unknown tag 'nope'");
    assert_fails("{% include 'x' %}", E_UNSUPPORTED, "line 1, column 4", "include");
    assert_fails("{# x", E_FORMAT, "line 1, column 1", "'#}'");
    assert_fails("{{ l.append(3) }}", E_FORMAT, "line 1", "'append' of 'list' object is unsafe");
    assert_fails("\n\n{{ raise_exception('Roles must alternate') }}", E_INVALID, "line 3",
                 "Roles must alternate");
    assert_fails("{{ 1 \xff }}", E_FORMAT, "line 1", "UTF-8");
}

static void assert_bounded(const char *source)
{
    json_t *vars = json_object();
    struct jinja_limits limits = { .max_steps = 1000000,
                                   .max_bytes = 8 << 20,
                                   .max_output = 1 << 20 };
    struct buf out = { 0 };
    struct err e = { 0 };

    if (render_source(source, vars, &limits, &out, &e) == OK)
        fail_msg("%s: rendered %zu bytes", source, out.n);
    assert_int_equal(out.n, 0);
    buf_release(&out);
    json_decref(vars);
}

static void endless_templates_are_stopped_by_limits(void **state)
{
    struct buf deep = { 0 };

    (void)state;
    assert_bounded(
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}");
    assert_bounded("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
    assert_bounded("{{ 'x' * 1000000000000 }}");
    assert_bounded("{{ [1] * 1000000000 }}");
    assert_bounded("{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s + "
                   "ns.s %}{% endfor %}");
    assert_bounded(
        "{% set ns = namespace(l=[]) %}{% for i in range(10000) %}{% set ns.l = [ns.l] %}{% "
        "endfor %}{{ ns.l }}");
    assert_bounded("{% set ns = namespace() %}{% set ns.n = ns %}{{ ns }}");
    assert_bounded("{{ '%1000000000s' % 1 }}");
    assert_bounded("{{ '{:1000000000}'.format(1) }}");
    assert_bounded("{{ 'a'.center(1000000000) }}");
    assert_bounded(
        "{% for i in range(100000) %}0123456789012345678901234567890123456789{% endfor %}");
    for (int i = 0; i < 100000; i++) buf_puts(&deep, i ? "(" : "{{ ");
    assert_bounded(buf_cstr(&deep));
    buf_clear(&deep);
    buf_puts(&deep, "{{ 1");
    for (int i = 0; i < 100000; i++) buf_puts(&deep, "+1");
    buf_puts(&deep, " }}");
    assert_bounded(buf_cstr(&deep));
    buf_clear(&deep);
    for (int i = 0; i < 20000; i++) buf_puts(&deep, "{% if 1 %}");
    assert_bounded(buf_cstr(&deep));
    buf_release(&deep);
}

static void the_error_names_the_limit(void **state)
{
    json_t *vars = json_object();
    atomic_bool cancelled = true;
    struct jinja_limits limits = { .max_steps = 1000000, .max_bytes = 8 << 20 };
    struct buf out = { 0 }, many = { 0 };
    struct err e = { 0 };

    (void)state;
    assert_int_equal(render_source("{% for a in range(100000) %}{% for b in range(100000) %}"
                                   "{% endfor %}{% endfor %}",
                                   vars, &limits, &out, &e),
                     E_INVALID);
    assert_non_null(strstr(e.msg, "rendering the template takes more than 1000000 steps"));
    assert_int_equal(render_source("{{ [1] * 100000000 }}", vars, &limits, &out, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "rendering the template takes more than"));
    limits.cancelled = &cancelled;
    assert_int_equal(render_source("{{ 1 }}", vars, &limits, &out, &e), E_CANCELLED);
    for (int i = 0; i < 900; i++) buf_printf(&many, "{%% set v%d = 1 %%}", i);
    for (int i = 0; i < 40000; i++) buf_puts(&many, "{% if 1 %}{% endif %}"); /* copies the names */
    assert_int_equal(render_source(buf_cstr(&many), vars, NULL, &out, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "reading the template takes more than 20000000 steps"));
    assert_int_equal(out.n, 0);
    buf_release(&out);
    buf_release(&many);
    json_decref(vars);
}

/* Renders with every memory limit up to the first that is enough: each allocation of the rendering
 * is refused once. Returns how many limits were too small. */
static size_t refuse_each_allocation(const struct jinja *t, const json_t *vars)
{
    size_t n = 0;

    for (;; n++) {
        struct jinja_limits limits = { .max_bytes = 16 * (n + 1) }; /* the arena's granularity */
        struct buf out = { 0 };
        struct err e = { 0 };
        int rc = jinja_render(t, vars, &limits, &out, &e);
        bool refused = rc == E_INVALID && strstr(e.msg, "memory, which is the limit");
        if (rc != OK) assert_int_equal(out.n, 0);
        buf_release(&out);
        if (!refused) return n;
    }
}

static void every_allocation_of_a_rendering_may_be_refused(void **state)
{
    json_t *golden = read_json(repo("tests/golden/jinja/golden.json")), *c,
           *vars = json_object_get(golden, "vars");
    size_t i, n = 0;

    (void)state;
    json_object_set_new(vars, "strftime_now", json_string("2026-01-02 03:04:05"));
    json_array_foreach (json_object_get(golden, "cases"), i, c) {
        struct jinja *t = NULL;
        struct err e = { 0 };
        if (i % THIN || !json_object_get(c, "text")) continue;
        assert_int_equal(
            jinja_open(&t, str_c(json_string_value(json_object_get(c, "template"))), NULL, &e), OK);
        n += refuse_each_allocation(t, vars);
        jinja_close(t);
    }
    assert_true(n > 1000);
    json_decref(golden);
}

/* ---- one template, many threads ---- */

struct shared_job {
    const struct jinja *t;
    const json_t *vars;
    int n_bad;
};

static void *render_repeatedly(void *arg)
{
    struct shared_job *j = arg;

    for (int i = 0; i < 200; i++) {
        struct buf out = { 0 };
        struct err e = { 0 };
        if (jinja_render(j->t, j->vars, NULL, &out, &e) != OK ||
            strcmp(buf_cstr(&out), "0:a;1:b;2:c;"))
            j->n_bad++;
        buf_release(&out);
    }
    return NULL;
}

static void one_template_can_be_rendered_by_many_threads(void **state)
{
    static const char source[] =
        "{% set ns = namespace(i=0) %}{% for x in l %}{{ ns.i }}:{{ x }};{% set "
        "ns.i = ns.i + 1 %}{% endfor %}";
    json_t *vars = json_pack("{s:[s,s,s]}", "l", "a", "b", "c");
    struct jinja *t = NULL;
    struct err e = { 0 };
    struct shared_job jobs[4];
    pthread_t threads[4];

    (void)state;
    assert_int_equal(jinja_open(&t, str_c(source), NULL, &e), OK);
    for (int i = 0; i < 4; i++) {
        jobs[i] = (struct shared_job){ t, vars, 0 };
        pthread_create(&threads[i], NULL, render_repeatedly, &jobs[i]);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(jobs[i].n_bad, 0);
    }
    jinja_close(t);
    json_decref(vars);
}

static void the_free_variables_of_a_template_are_known(void **state)
{
    static const char source[] =
        "{% set a = 1 %}{{ a }}{{ bos_token }}{% if tools %}{% for t in tools %}{{ "
        "deep }}{% endfor %}{% endif %}";
    struct jinja *t = NULL;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(jinja_open(&t, str_c(source), NULL, &e), OK);
    assert_true(jinja_mentions(t, "tools"));
    assert_true(jinja_mentions(t, "bos_token"));
    assert_true(jinja_mentions(t, "deep"));
    assert_false(jinja_mentions(t, "a"));
    assert_false(jinja_mentions(t, "t"));
    assert_false(jinja_mentions(t, "documents"));
    jinja_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_renders_as_jinja2_renders_it),
        cmocka_unit_test(templates_of_real_models_render_as_jinja2_renders_them),
        cmocka_unit_test(errors_name_line_column_and_what_was_expected),
        cmocka_unit_test(endless_templates_are_stopped_by_limits),
        cmocka_unit_test(the_error_names_the_limit),
        cmocka_unit_test(every_allocation_of_a_rendering_may_be_refused),
        cmocka_unit_test(one_template_can_be_rendered_by_many_threads),
        cmocka_unit_test(the_free_variables_of_a_template_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
