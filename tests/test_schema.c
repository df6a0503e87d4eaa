/* JSON schemas as grammars: texts that match and do not match, unsupported keywords, numeric
 * bounds, and random texts of two hundred schemas.
 *
 * Reads tests/schemas/schemas.json; texts are validated by Python's jsonschema
 * (tests/schemas/validate.py). */
#include "grammar_world.h"

#include "base/file.h"
#include "base/jsonw.h"

#include <jansson.h>
#include <sys/wait.h>

static struct vocabtrie *lex;

static int open_world(void **state)
{
    (void)state;
    lex = make_vocabtrie(4000, 11);
    return 0;
}

static int close_world(void **state)
{
    (void)state;
    vocabtrie_close(lex);
    return 0;
}

static void check_texts(const char *schema, const char *const *yes, const char *const *no)
{
    struct grammar *g = compile(GRAMMAR_SCHEMA, schema);

    for (; *yes; yes++)
        if (!matches_grammar(g, lex, str_c(*yes))) fail_msg("%s does not match '%s'", schema, *yes);
    for (; *no; no++)
        if (matches_grammar(g, lex, str_c(*no))) fail_msg("%s matches '%s'", schema, *no);
    grammar_unref(g);
}

#define LIST(...) \
    (const char *const[]) { __VA_ARGS__, NULL }
#define REFUSED(schema, what) assert_refused(GRAMMAR_SCHEMA, schema, what)

/* ---- all schemas, validated by jsonschema ---- */

static void make_texts(struct str schema, int index, struct rng *rng, struct buf *out)
{
    struct grammar_spec spec = { .kind = GRAMMAR_SCHEMA, .text = schema };
    struct grammar *g = NULL;
    struct matcher_cache *m;
    struct err e = { 0 };

    if (grammar_compile(&g, &spec, NULL, &e) != OK)
        fail_msg("schema %d: %.*s: %s", index, STR_ARG(schema), e.msg);
    m = open_cache(grammar_pda(g), lex);
    for (int k = 0; k < 12; k++) {
        struct buf text = { 0 };
        struct jsonw w = { .out = out };
        make_text(m, lex, rng, k < 2 ? 0 : k * 12, &text);
        jsonw_arr(&w);
        jsonw_int(&w, index);
        jsonw_str(&w, buf_str(&text));
        jsonw_end(&w);
        buf_putc(out, '\n');
        buf_release(&text);
    }
    matcher_cache_close(m);
    grammar_unref(g);
}

static void two_hundred_schemas_give_only_valid_json(void **state)
{
    struct buf file = { 0 }, out = { 0 };
    struct err e = { 0 };
    struct rng rng;
    json_t *all, *schema;
    char cmd[1024];
    size_t i;
    int rc;

    (void)state;
    rng_seed(&rng, 5);
    if (file_read(&file, repo("tests/schemas/schemas.json"), 1 << 20, &e) != OK)
        fail_msg("%s", e.msg);
    all = json_loadb(file.p, file.n, 0, NULL);
    assert_int_equal(json_array_size(all), 200);
    json_array_foreach (all, i, schema) {
        char *text = json_dumps(schema, JSON_ENCODE_ANY);
        make_texts(str_c(text), (int)i, &rng, &out);
        free(text);
    }
    json_decref(all);
    buf_release(&file);
    snprintf(cmd, sizeof cmd, "python3 %s %s %s", repo("tests/schemas/validate.py"),
             repo("tests/schemas/schemas.json"), temp_file("texts", out.p, out.n));
    buf_release(&out);
    rc = system(cmd);
    if (WEXITSTATUS(rc) == 77) skip();
    assert_int_equal(rc, 0);
}

/* ---- cases by hand ---- */

static void objects_keep_the_order_and_the_required_properties(void **state)
{
    (void)state;
    check_texts("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
                "\"null\"},\"c\":"
                "{\"const\":1}},\"required\":[\"b\"]}",
                LIST("{\"b\":null}", "{\"a\":1,\"b\":null}", "{ \"a\": 1, \"b\": null, \"c\": 1 }"),
                LIST("{}", "{\"a\":1}", "{\"b\":null,\"a\":1}", "{\"b\":null,}",
                     "{\"b\":null,\"d\":1}", "{  \"b\":null}"));
    check_texts("{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}},"
                "\"additionalProperties\":{\"type\":\"boolean\"}}",
                LIST("{}", "{\"a\":1}", "{\"a\":1,\"b\":true}", "{\"ab\":true,\"b\":false}"),
                LIST("{\"a\":true}", "{\"b\":1}", "{\"b\":true,\"a\":true}"));
    check_texts("{\"patternProperties\":{\"^i\":{\"const\":1},\"s$\":{\"type\":\"integer\"}},"
                "\"additionalProperties\":false}",
                LIST("{}", "{\"ix\":1}", "{\"ss\":7}", "{\"is\":1}"),
                LIST("{\"is\":7}", "{\"x\":1}", "{\"ix\":7}"));
}

static void limits_of_arrays_objects_and_strings_are_kept(void **state)
{
    (void)state;
    check_texts("{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":false,"
                "\"minItems\":1}",
                LIST("[1]", "[1,2]", "[1, 2]"), LIST("[]", "[2]", "[1,2,3]", "[1,2,2]"));
    check_texts(
        "{\"type\":\"array\",\"items\":{\"enum\":[1,2,3]},\"uniqueItems\":true,\"minItems\":2}",
        LIST("[1,2]", "[3,1,2]"), LIST("[1]", "[1,1]", "[1,2,1]", "[1,2,3,1]"));
    check_texts("{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":3},"
                "\"uniqueItems\":true,\"maxItems\":3}",
                LIST("[]", "[\"a\"]", "[\"7x\", \"Ab\",\"zoo\"]"),
                LIST("[\"a\",\"a\"]", "[\"abcd\"]", "[\"a\",\"b\",\"c\",\"d\"]"));
    check_texts("{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":6},"
                "\"uniqueItems\":true}",
                LIST("[]", "[6,1]", "[3,2,1,4,6,5]"), LIST("[1,1]", "[7]", "[1,2,1]"));
    check_texts("{\"allOf\":[{\"properties\":{\"a\":{\"const\":1}},\"additionalProperties\":false},"
                "{\"properties\":{\"b\":{\"const\":2}}}]}",
                LIST("{}", "{\"a\":1}"), LIST("{\"b\":2}", "{\"a\":1,\"b\":2}"));
    check_texts("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
                LIST("\"ab\"", "\"\xc3\xa9\\n\"", "\"\\u00e9x\\\\\""),
                LIST("\"a\"", "\"abcd\"", "\"\\ud800a\"", "\"a\nb\""));
}

/* Numbers that no integer type holds: found by the fuzz target as conversions out of range. */
static void counts_beyond_all_integers_are_large_counts(void **state)
{
    (void)state;
    check_texts("{\"type\":\"string\",\"maxLength\":1e94}", LIST("\"\"", "\"ab\""), LIST("1"));
    check_texts("{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":1e300},"
                "\"uniqueItems\":true}",
                LIST("[]"), LIST("[1]"));
    REFUSED("{\"type\":\"string\",\"minLength\":-1e94}", "'minLength' must be an integer");
    REFUSED("{\"type\":\"string\",\"minLength\":0.5}", "'minLength' must be an integer");
}

static void unsupported_keywords_are_refused_with_their_path(void **state)
{
    static const char *const keywords[] = { "not",
                                            "if",
                                            "then",
                                            "else",
                                            "contains",
                                            "minContains",
                                            "dependentSchemas",
                                            "unevaluatedProperties",
                                            "unevaluatedItems",
                                            "$dynamicRef",
                                            "dependencies",
                                            "propertyNamse" };
    char schema[256], what[128];
    (void)state;
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++) {
        snprintf(schema, sizeof schema,
                 "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"%s\":{}}}}",
                 keywords[i]);
        snprintf(what, sizeof what, "#/properties/a: the keyword '%s' is not supported",
                 keywords[i]);
        REFUSED(schema, what);
    }
    REFUSED("{\"type\":\"strng\"}", "#: 'type' must be");
    REFUSED("{\"type\":\"string\",\"format\":\"zip\"}", "the format 'zip'");
    REFUSED("{\"type\":\"string\",\"pattern\":\"(?=a)\"}", "lookahead");
    REFUSED("{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}", "backreference");
    REFUSED("{\"type\":\"string\",\"pattern\":\"a(\"}", "'pattern': column 2");
    REFUSED("{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"uniqueItems\":true}",
            "'uniqueItems'");
    REFUSED("{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}",
            "#/oneOf: the schemas 0 and 1");
    REFUSED("{\"$ref\":\"#/nowhere\"}", "there is nothing at '#/nowhere'");
    REFUSED("{\"$ref\":\"http://x/y\"}", "only references within the schema");
    REFUSED("{\"anyOf\":[]}", "'anyOf' must be a list");
    REFUSED("{\"type\":\"object\",\"properties\":[]}", "'properties' must be an object");
    REFUSED("{\"type\":\"integer\",\"minimum\":5,\"maximum\":3}", "nothing matches");
    REFUSED("{\"enum\":[1,2],\"type\":\"string\"}", "nothing matches");
    REFUSED("{\"type\":\"object\",\"properties\":{\"a\":false},\"required\":[\"a\"]}",
            "nothing matches");
    REFUSED("{\"$defs\":{\"a\":{\"type\":\"object\",\"properties\":{\"b\":{\"$ref\":\"#/$defs/"
            "a\"}},\"required\":[\"b\"]}},"
            "\"$ref\":\"#/$defs/a\"}",
            "nothing matches");
    REFUSED("[1]", "a schema must be an object");
    REFUSED("{\"type\":", "not JSON");
}

static void annotations_have_no_effect(void **state)
{
    (void)state;
    check_texts("{\"$schema\":\"x\",\"$id\":\"y\",\"title\":\"t\",\"description\":\"d\","
                "\"default\":1,\"examples\":[1],"
                "\"$comment\":\"c\",\"x-foo\":{},\"deprecated\":true,\"type\":\"boolean\"}",
                LIST("true", "false"), LIST("1"));
}

/* ---- numbers, exhaustively ---- */

static void check_range(int lo, int hi, bool has_lo, bool has_hi, int m)
{
    char schema[160], text[16];
    struct grammar *g;
    struct matcher_cache *d;
    int n = snprintf(schema, sizeof schema, "{\"type\":\"integer\"");

    if (has_lo) n += snprintf(schema + n, sizeof schema - (size_t)n, ",\"minimum\":%d", lo);
    if (has_hi) n += snprintf(schema + n, sizeof schema - (size_t)n, ",\"maximum\":%d", hi);
    if (m) n += snprintf(schema + n, sizeof schema - (size_t)n, ",\"multipleOf\":%d", m);
    snprintf(schema + n, sizeof schema - (size_t)n, "}");
    if (refusal(GRAMMAR_SCHEMA, schema)) {
        for (int v = lo; v <= hi; v++) assert_true(m && v % m);
        return;
    }
    g = compile(GRAMMAR_SCHEMA, schema);
    d = open_cache(grammar_pda(g), lex);
    for (int v = -1250; v <= 1250; v++) {
        bool want = (!has_lo || v >= lo) && (!has_hi || v <= hi) && (!m || v % m == 0), got;
        struct matcher x;
        snprintf(text, sizeof text, "%d", v);
        begin_text(&x, d, true);
        got = matcher_accept_bytes(&x, str_c(text)) == OK && matcher_may_end(&x);
        matcher_end(&x);
        if (got != want)
            fail_msg("%s: %d is %s, contrary to the bounds", schema, v,
                     got ? "taken" : "not taken");
    }
    matcher_cache_close(d);
    grammar_unref(g);
}

static void integers_keep_their_bounds(void **state)
{
    static const int edges[] = { -1234, -1000, -999, -101, -100, -99,  -17, -10, -9,
                                 -1,    0,     1,    7,    9,    10,   11,  42,  99,
                                 100,   101,   555,  999,  1000, 1001, 1234 };
    int n = sizeof edges / sizeof *edges;
    (void)state;
    for (int i = 0; i < n; i++) {
        check_range(edges[i], 0, true, false, 0);
        check_range(0, edges[i], false, true, 0);
        for (int k = i; k < n; k++)
            check_range(edges[i], edges[k], true, true, (i + k) % 5 ? 0 : 1 + (i * k) % 12);
    }
    for (int lo = -12; lo <= 12; lo++)
        for (int hi = lo; hi <= 12; hi++) check_range(lo, hi, true, true, 0);
}

static void numbers_keep_their_bounds(void **state)
{
    static const struct {
        const char *schema;
        double lo, hi;
        bool lo_open, hi_open;
    } cases[] = {
        { "\"minimum\":0,\"maximum\":1", 0, 1, false, false },
        { "\"exclusiveMinimum\":0,\"exclusiveMaximum\":1", 0, 1, true, true },
        { "\"minimum\":-1.5,\"maximum\":2.25", -1.5, 2.25, false, false },
        { "\"exclusiveMinimum\":-1.5,\"exclusiveMaximum\":2.25", -1.5, 2.25, true, true },
        { "\"minimum\":1.25,\"maximum\":1.75", 1.25, 1.75, false, false },
        { "\"minimum\":1.2,\"exclusiveMaximum\":1.21", 1.2, 1.21, false, true },
        { "\"minimum\":0.05,\"maximum\":0.3", 0.05, 0.3, false, false },
        { "\"exclusiveMinimum\":2,\"maximum\":3", 2, 3, true, false },
        { "\"minimum\":-0.07,\"exclusiveMaximum\":0", -0.07, 0, false, true },
        { "\"minimum\":2", 2, 1e9, false, false },
        { "\"maximum\":-0.5", -1e9, -0.5, false, false },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char schema[160], text[32];
        struct grammar *g;
        struct matcher_cache *d;
        snprintf(schema, sizeof schema, "{\"type\":\"number\",%s}", cases[i].schema);
        g = compile(GRAMMAR_SCHEMA, schema);
        d = open_cache(grammar_pda(g), lex);
        for (int v = -4000; v <= 4000; v++) {
            double x = strtod((snprintf(text, sizeof text, "%.3f", v / 1000.0), text), NULL);
            bool in = (x > cases[i].lo || (x >= cases[i].lo && !cases[i].lo_open)) &&
                      (x < cases[i].hi || (x <= cases[i].hi && !cases[i].hi_open)),
                 got;
            struct matcher at;
            size_t n = strlen(text);
            while (text[n - 1] == '0') text[--n] = 0; /* 1.500 is written 1.5, and 1.000 is 1 */
            if (text[n - 1] == '.') text[--n] = 0;
            if (!strcmp(text, "-0")) continue;
            begin_text(&at, d, true);
            got = matcher_accept_bytes(&at, str_c(text)) == OK && matcher_may_end(&at);
            matcher_end(&at);
            if (got != in)
                fail_msg("%s: %s is %s, contrary to the bounds", schema, text,
                         got ? "taken" : "not taken");
        }
        matcher_cache_close(d);
        grammar_unref(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_hundred_schemas_give_only_valid_json),
        cmocka_unit_test(objects_keep_the_order_and_the_required_properties),
        cmocka_unit_test(limits_of_arrays_objects_and_strings_are_kept),
        cmocka_unit_test(counts_beyond_all_integers_are_large_counts),
        cmocka_unit_test(unsupported_keywords_are_refused_with_their_path),
        cmocka_unit_test(annotations_have_no_effect),
        cmocka_unit_test(integers_keep_their_bounds),
        cmocka_unit_test(numbers_keep_their_bounds),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
