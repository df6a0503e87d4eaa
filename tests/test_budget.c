/* Budgets (base/budget), and texts that would take all memory and time to compile: each ends soon,
 * with an error that names the limit.
 *
 * Reads tests/schemas/schemas.json. */
#include "support.h"

#include "base/arena.h"
#include "base/budget.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "grammar/grammar.h"
#include "toolcall/toolrules.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- counting ---- */

static void the_limit_of_steps_is_exact_and_stays_exceeded(void **state)
{
    struct budget b = { .what = "the work", .max_steps = 10000 };
    struct err e = { 0 };

    (void)state;
    for (int i = 0; i < 10000; i++) assert_true(budget_step(&b, 1));
    assert_false(budget_failed(&b));
    assert_false(budget_step(&b, 1));
    assert_false(budget_step(&b, 0));
    assert_false(budget_take(&b, 1));
    assert_true(budget_failed(&b));
    assert_int_equal(budget_error(&b, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "the work takes more than 10000 steps"));
    assert_true(budget_step(NULL, UINT64_MAX));
    assert_true(budget_take(NULL, SIZE_MAX));
    assert_false(budget_failed(NULL));
}

static void bytes_are_counted_while_they_are_held(void **state)
{
    struct budget b = { .what = "the work", .max_bytes = 4 << 20 };
    struct arena a = { .budget = &b };
    struct err e = { 0 };
    int *p = NULL, cap = 0;

    (void)state;
    assert_true(budget_take(&b, 3 << 20));
    budget_give(&b, 3 << 20);
    for (int i = 0; i < 1000; i++) assert_non_null(arena_alloc(&a, 1000));
    assert_true(b.bytes > 1000000 && b.bytes < 3000000);
    arena_release(&a);
    assert_int_equal(b.bytes, 0);
    assert_int_equal(b.peak_bytes, 3 << 20);
    for (int n = 1; budget_ensure(&b, p, cap, n); n++) p[n - 1] = n;
    assert_int_equal(cap, (4 << 20) / (int)sizeof *p); /* doubled up to the limit */
    assert_null(arena_alloc(&a, 1));
    assert_true(a.failed);
    assert_int_equal(budget_error(&b, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "more than 4.0 MiB of memory"));
    budget_free(&b, p, cap);
    arena_release(&a);
}

static void a_cancelled_or_late_work_ends_at_the_next_look(void **state)
{
    atomic_bool cancelled = false;
    struct budget b = { .what = "the work", .cancelled = &cancelled };
    struct budget late = { .what = "the work", .max_cpu_ns = 1 };
    struct err e = { 0 };
    int n = 0;

    (void)state;
    for (int i = 0; i < 100000; i++) assert_true(budget_step(&b, 1));
    atomic_store(&cancelled, true);
    while (budget_step(&b, 1)) n++;
    assert_true(n <= BUDGET_LOOK);
    assert_int_equal(budget_error(&b, &e), E_CANCELLED);
    assert_true(budget_step(&late, 1)); /* the first look */
    assert_false(budget_step(&late, BUDGET_LOOK));
    assert_int_equal(budget_error(&late, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "seconds of processor time"));
}

static void a_stopped_job_or_a_deadline_ends_its_work(void **state)
{
    atomic_int stop = 0;
    struct budget b = { .what = "the work", .stop = &stop, .deadline_ns = UINT64_MAX };
    struct budget late = { .what = "the work", .deadline_ns = 1 };
    struct err e = { 0 };
    int n = 0;

    (void)state;
    for (int i = 0; i < 100000; i++) assert_true(budget_step(&b, 1));
    atomic_store(&stop, 2);
    while (budget_step(&b, 1)) n++;
    assert_true(n <= BUDGET_LOOK);
    assert_int_equal(budget_error(&b, &e), E_CANCELLED);
    assert_false(budget_step(&late, 1));
    assert_int_equal(budget_error(&late, &e), E_DEADLINE);
}

/* Processor time counts, not the time in which other processes have the machine. */
static void time_in_which_the_thread_does_not_run_is_not_counted(void **state)
{
    struct budget b = { .what = "the work", .max_cpu_ns = 100000000 };
    struct err e = { 0 };
    uint64_t begin = clock_thread_ns();

    (void)state;
    assert_true(budget_look(&b));
    nanosleep(&(struct timespec){ .tv_nsec = 300000000 }, NULL);
    assert_true(budget_look(&b));
    while (budget_step(&b, BUDGET_LOOK)) {}
    assert_true(clock_thread_ns() - begin >= b.max_cpu_ns);
    assert_int_equal(b.end, BUDGET_TIME);
    assert_int_equal(budget_error(&b, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "more than 0.1 seconds of processor time"));
}

/* ---- texts that take long ---- */

static int compile(enum grammar_kind kind, struct str text, struct budget *b, struct err *e)
{
    struct grammar_env env = { .budget = b };
    struct grammar_spec spec = { .kind = kind, .text = text };
    struct grammar *g = NULL;
    int rc;

    if (kind == GRAMMAR_RULES) spec.build = toolrules_build;
    rc = grammar_compile(&g, &spec, &env, e);
    grammar_unref(g);
    return rc;
}

/* The text ends at one of the limits, and goes on beyond none of them. limit: a word of the error. */
static void assert_stopped(enum grammar_kind kind, struct buf *text, const char *limit)
{
    struct budget b = { .max_steps = 3000000, .max_bytes = 24 << 20 };
    struct err e = { 0 };

    assert_int_equal(compile(kind, str_of(text->p, text->n), &b, &e), E_INVALID);
    if (!strstr(e.msg, limit)) fail_msg("not about '%s': %s", limit, e.msg);
    assert_true(b.steps < b.max_steps + 500000);
    assert_true(b.peak_bytes <= b.max_bytes);
    assert_true(strlen(e.msg) < 400);
    buf_release(text);
}

/* Level n refers to level n - 1 twice under the keyword. */
static void put_levels(struct buf *b, const char *key, int n, const char *last)
{
    buf_printf(b, "{\"$ref\":\"#/$defs/l%d\",\"$defs\":{\"l0\":%s", n, last);
    for (int i = 1; i <= n; i++)
        buf_printf(b, ",\"l%d\":{\"%s\":[{\"$ref\":\"#/$defs/l%d\"},{\"$ref\":\"#/$defs/l%d\"}]}",
                   i, key, i - 1, i - 1);
    buf_puts(b, "}}");
}

static void schemas_that_grow_without_bound_are_refused(void **state)
{
    struct buf b = { 0 };

    (void)state;
    put_levels(&b, "allOf", 40, "{\"type\":\"object\"}");
    assert_stopped(GRAMMAR_SCHEMA, &b, "JSON schema takes more than 3000000 steps");
    buf_puts(&b, "{\"type\":\"object\",\"allOf\":[{\"$ref\":\"#\"}]}"); /* itself, for ever */
    assert_stopped(GRAMMAR_SCHEMA, &b, "steps");
    buf_puts(&b, "{\"type\":\"object\",\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"string\"}]}");
    assert_stopped(GRAMMAR_SCHEMA, &b, "nested more than");
    put_levels(&b, "oneOf", 40, "{\"type\":\"object\"}");
    assert_stopped(GRAMMAR_SCHEMA, &b, "oneOf");
    buf_puts(&b, "{\"allOf\":[");
    for (int i = 0; i < 20; i++) /* 2^20 combinations */
        buf_printf(&b, "%s{\"anyOf\":[{\"required\":[\"a%d\"]},{\"required\":[\"b%d\"]}]}",
                   i ? "," : "", i, i);
    buf_puts(&b, "]}");
    assert_stopped(GRAMMAR_SCHEMA, &b, "more than 400 combinations");
    buf_puts(&b, "{\"enum\":[0");
    for (int i = 1; i < 90000; i++) buf_printf(&b, ",\"v%d\"", i);
    buf_puts(&b, "]}");
    assert_stopped(GRAMMAR_SCHEMA, &b, "limit");
    buf_puts(&b, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[1");
    for (int i = 1; i < 90000; i++) buf_puts(&b, ",1"); /* all pairs are compared */
    buf_puts(&b, "]}}");
    assert_stopped(GRAMMAR_SCHEMA, &b, "steps");
    buf_puts(&b, "{\"oneOf\":[{\"required\":[\"a\"]}");
    for (int i = 1; i < 20000; i++) buf_printf(&b, ",{\"required\":[\"a%d\"]}", i);
    buf_puts(&b, "]}");
    assert_stopped(GRAMMAR_SCHEMA, &b, "steps");
    buf_puts(&b, "{\"type\":\"object\",\"properties\":{\"p\":{}");
    for (int i = 0; i < 3000; i++) /* six thousand multiples are tried for each */
        buf_printf(&b,
                   ",\"p%d\":{\"type\":\"number\",\"multipleOf\":0.1,\"minimum\":%d.01,"
                   "\"maximum\":%d.02}",
                   i, i, i);
    buf_puts(&b, "}}");
    assert_stopped(GRAMMAR_SCHEMA, &b, "steps");
}

static void automata_that_grow_without_bound_are_refused(void **state)
{
    struct buf b = { 0 };

    (void)state;
    buf_puts(&b, "{\"type\":\"object\",\"patternProperties\":{"); /* a product of automata */
    for (int i = 0; i < 5; i++)
        buf_printf(&b, "%s\"^(a|b)*%c(a|b){%d}$\":{}", i ? "," : "", 'a' + i % 2, 5 + i);
    buf_puts(&b, "}}");
    assert_stopped(GRAMMAR_SCHEMA, &b, "limit");
    buf_puts(&b, "{\"allOf\":[{\"type\":\"string\"}");
    for (int i = 0; i < 5; i++) buf_printf(&b, ",{\"pattern\":\"(a|b)*a(a|b){%d}\"}", 6 + i);
    buf_puts(&b, "]}");
    assert_stopped(GRAMMAR_SCHEMA, &b, "limit");
    buf_puts(&b, "root ::= (");
    for (int i = 0; i < 2000; i++) buf_printf(&b, "%s[a-z]* \"%d\" [a-z]*", i ? " | " : "", i);
    buf_puts(&b, ")*");
    assert_stopped(GRAMMAR_GBNF, &b, "limit");
    buf_puts(&b, "root ::= ");
    for (int i = 0; i < 30000; i++) buf_puts(&b, "\"a\"? ");
    assert_stopped(GRAMMAR_GBNF, &b, "limit");
    for (int i = 0; i < 500; i++) buf_puts(&b, "[^a]{0,100000}");
    assert_stopped(GRAMMAR_REGEX, &b, "limit");
    buf_puts(&b, "root ::= a7900\na0 ::= \"x\"?\n"); /* found nullable one round after the other */
    for (int i = 1; i <= 7900; i++) buf_printf(&b, "a%d ::= a%d a%d\n", i, i - 1, i - 1);
    assert_stopped(GRAMMAR_GBNF, &b, "limit");
}

/* Each of these took exponential time once. */
static void nested_repetitions_take_little(void **state)
{
    struct budget b = { .max_steps = 3000000, .max_bytes = 24 << 20 };
    struct buf text = { 0 };
    struct err e = { 0 };

    (void)state;
    buf_puts(&text, "root ::= ");
    for (int i = 0; i < 95; i++) buf_putc(&text, '(');
    buf_puts(&text, "\"x\"");
    for (int i = 0; i < 95; i++) buf_puts(&text, "{2}{2}{2}{2}{2}{2}{2}{2})");
    assert_int_equal(compile(GRAMMAR_GBNF, buf_str(&text), &b, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "nothing matches")); /* it is too long to ever end */
    b = (struct budget){ .max_steps = 3000000, .max_bytes = 24 << 20 };
    assert_int_equal(compile(GRAMMAR_REGEX, STR("((a{1000}){1000}){1,20} x{1,100000}"), &b, &e),
                     OK);
    buf_release(&text);
}

static void tools_are_compiled_within_the_budget(void **state)
{
    struct budget b = { .max_steps = 3000000, .max_bytes = 24 << 20 };
    const struct toolformat format = { .before = "{\"name\":\"", .between = "\",", .after = "}" };
    struct buf levels = { 0 }, text = { 0 };
    struct toolrules_tool tool = { STR("f"), { 0 } };
    struct err e = { 0 };

    (void)state;
    put_levels(&levels, "allOf", 40, "{\"type\":\"object\"}");
    tool.parameters = buf_str(&levels);
    toolrules_write(&text, &tool, 1, &format);
    assert_int_equal(compile(GRAMMAR_RULES, buf_str(&text), &b, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "compiling the tool definitions takes more than 3000000 steps"));
    buf_release(&levels);
    buf_release(&text);
}

/* ---- every stage ---- */

#define SCHEMA                                                                                     \
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"pattern\":\"^[a-z]+$\"," \
    "\"maxLength\":9},\"n\":{\"type\":\"integer\",\"multipleOf\":7},\"when\":{\"format\":"         \
    "\"date\"}"                                                                                    \
    ",\"l\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"maxItems\":500},\"k\":{\"oneOf\":[{"  \
    "\"const\":1},{\"enum\":[2,\"x\"]}]},\"m\":{\"patternProperties\":{\"^a\":{},\"b$\":{}}}},"    \
    "\"required\":[\"name\"],\"additionalProperties\":{\"type\":\"number\"}}"

static const struct {
    enum grammar_kind kind;
    const char *text;
} samples[] = {
    { GRAMMAR_SCHEMA, SCHEMA },
    { GRAMMAR_GBNF, "root ::= (item \",\"){3,400} [^x]+ a?\nitem ::= \"a\" [0-9]{2,3} | a\n"
                    "a ::= \"(\" item* \")\"" },
    { GRAMMAR_REGEX, "([a-z]+@[a-z]+\\.(com|org)){2,90}|x{1,2000}" },
    { GRAMMAR_CHOICE, "[\"one\",\"two\",\"three\"]" },
    { GRAMMAR_OBJECT, "" },
};

/* Whatever the limit is, the text is compiled within it or refused for it. */
static void a_limit_may_be_met_anywhere(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        struct budget all = { 0 };
        struct str text = str_c(samples[i].text);
        struct err e = { 0 };
        if (compile(samples[i].kind, text, &all, &e) != OK) fail_msg("%s", e.msg);
        for (uint64_t n = 1; n < all.steps; n += 1 + n / (16 / THIN)) {
            struct budget b = { .max_steps = n };
            assert_int_equal(compile(samples[i].kind, text, &b, &e), E_INVALID);
            assert_non_null(strstr(e.msg, "steps, which is the limit"));
            assert_true(b.steps < n + 20000);
        }
        for (size_t n = 1; n < all.peak_bytes; n += 1 + n / (16 / THIN)) {
            struct budget b = { .max_bytes = n };
            assert_int_equal(compile(samples[i].kind, text, &b, &e), E_INVALID);
            assert_non_null(strstr(e.msg, "memory, which is the limit"));
            assert_true(b.peak_bytes <= n);
        }
    }
}

static void a_compilation_that_nobody_waits_for_ends(void **state)
{
    atomic_bool cancelled = true;
    struct budget b = { .cancelled = &cancelled };
    struct buf text = { 0 };
    struct err e = { 0 };

    (void)state;
    put_levels(&text, "allOf", 60, "{\"type\":\"object\"}");
    assert_int_equal(compile(GRAMMAR_SCHEMA, buf_str(&text), &b, &e), E_CANCELLED);
    assert_true(b.steps <= BUDGET_LOOK);
    buf_release(&text);
}

static void real_schemas_take_a_fiftieth_of_the_limit(void **state)
{
    struct buf file = { 0 };
    struct err e = { 0 };
    json_t *all, *v;
    size_t i;

    (void)state;
    if (file_read(&file, repo("tests/schemas/schemas.json"), 1 << 20, &e) != OK)
        fail_msg("%s", e.msg);
    all = json_loadb(file.p, file.n, 0, NULL);
    json_array_foreach (all, i, v) {
        char *text = json_dumps(v, JSON_ENCODE_ANY);
        struct budget b = { 0 };
        if (compile(GRAMMAR_SCHEMA, str_c(text), &b, &e) != OK) fail_msg("%s", e.msg);
        assert_true(b.steps * 50 <= GRAMMAR_STEPS);
        assert_true(b.peak_bytes * 8 <= GRAMMAR_BYTES);
        free(text);
    }
    json_decref(all);
    buf_release(&file);
}

/* Steps per byte of a grammar of n rules whose last one has an error. */
static double find_error_after(int n)
{
    struct budget b = { .max_steps = GRAMMAR_STEPS, .max_bytes = GRAMMAR_BYTES };
    struct buf text = { 0 };
    struct err e = { 0 };
    char where[60];
    double steps;

    buf_puts(&text, "root ::= a0\n");
    for (int i = 0; i < n; i++) buf_printf(&text, "a%d ::= \"x\" | b%d a%d\n", i, i, i + 1);
    buf_puts(&text, "c ::= (");
    snprintf(where, sizeof where, "line %d, column 8: expected ')'", n + 2);
    assert_int_equal(compile(GRAMMAR_GBNF, buf_str(&text), &b, &e), E_INVALID);
    assert_non_null(strstr(e.msg, where));
    steps = (double)b.steps / (double)text.n;
    buf_release(&text);
    return steps;
}

/* Places are found in one pass over the text, however many there are: 16 times the rules take the same
 * number of steps for each byte. */
static void the_place_of_an_error_is_found_in_a_large_grammar(void **state)
{
    double few = find_error_after(1000), many = find_error_after(16000);

    (void)state;
    assert_true(few >= 1); /* every byte is counted */
    assert_true(many < 2 * few);
}

static void compiled_grammars_are_counted(void **state)
{
    struct grammar_spec spec = { .kind = GRAMMAR_SCHEMA, .text = str_c(SCHEMA) };
    struct grammar *g = NULL;
    size_t before = grammar_live_bytes();

    (void)state;
    assert_int_equal(grammar_compile(&g, &spec, NULL, NULL), OK);
    assert_true(grammar_bytes(g) > 1000);
    assert_int_equal(grammar_live_bytes(), before + grammar_bytes(g));
    grammar_unref(g);
    assert_int_equal(grammar_live_bytes(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_limit_of_steps_is_exact_and_stays_exceeded),
        cmocka_unit_test(bytes_are_counted_while_they_are_held),
        cmocka_unit_test(a_cancelled_or_late_work_ends_at_the_next_look),
        cmocka_unit_test(a_stopped_job_or_a_deadline_ends_its_work),
        cmocka_unit_test(time_in_which_the_thread_does_not_run_is_not_counted),
        cmocka_unit_test(schemas_that_grow_without_bound_are_refused),
        cmocka_unit_test(automata_that_grow_without_bound_are_refused),
        cmocka_unit_test(nested_repetitions_take_little),
        cmocka_unit_test(tools_are_compiled_within_the_budget),
        cmocka_unit_test(a_limit_may_be_met_anywhere),
        cmocka_unit_test(a_compilation_that_nobody_waits_for_ends),
        cmocka_unit_test(real_schemas_take_a_fiftieth_of_the_limit),
        cmocka_unit_test(the_place_of_an_error_is_found_in_a_large_grammar),
        cmocka_unit_test(compiled_grammars_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
