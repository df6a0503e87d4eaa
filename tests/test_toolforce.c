/* Forced tool calls: grammars of calls in the format of each model family. Random texts of a
 * grammar are parsed back and must give calls whose arguments match the tools' schemas.
 *
 * Reads no files. */
#include "grammar_world.h"

#include "toolcall/toolforce.h"
#include "toolcall/toolparse.h"
#include "toolcall/toolrules.h"

/* A chat template fragment of each family, and the end of its prompts. */
static const struct {
    const char *template, *prompt;
} families[] = {
    { "tools <tool_call> {\"name\"} <think>", "assistant\n" },
    { "tools <tool_call> {\"name\"} <think>", "assistant\n<think>\n" },
    { "tools <tool_call> {\"name\"} <think>", "<think>\n\n</think>\n\n" },
    { "<｜tool▁call▁begin｜> <｜tool▁sep｜>", "<｜Assistant｜>" },
    { "<｜tool▁call▁begin｜> <｜tool▁sep｜> ```json <think>", "<｜Assistant｜><think>\n" },
    { "<|tool_call_argument_begin|>", "" },
    { "<tool_call> <arg_key> <think>", "<|assistant|>" },
    { "<invoke name= minimax:tool_call <think>", "<think>\n" },
    { "seed:tool_call <function= <seed:think>", "" },
    { "<tool_call> <function= <parameter=", "" },
    { "<function= </function>", "" },
    { "<|START_ACTION|> <|START_THINKING|>", "" },
    { "Action: ```json", "" },
    { "<|tool_call_start|>", "" },
    { "<|tool_call:begin|> <|tool_call:args|>", "" },
    { "<|tool_call>call: <|channel>", "" },
    { "<start_function_call>", "" },
    { "<|action_start|><|plugin|>", "" },
    { "<|tools_prefix|>", "" },
    { "<TOOLCALL>", "" },
    { "<tool_calls>", "" },
    { "<|tool_call|> <|/tool_call|>", "" },
    { "<|tool_call|>", "" },
    { "[TOOL_CALLS] [ARGS] [THINK]", "" },
    { "[TOOL_CALLS]", "" },
    { "<function_call>", "" },
    { "functools[", "" },
    { "<|start_header_id|> \"parameters\"", "" },
    { "func_name1(", "" },
    { "tools \"name\"", "" },
    { "<|start|> <|channel|>", "<|start|>assistant" },
    { "tool_call hy_eos", "" },
    { "DSML invoke name= function_calls </think>", "</think>" },
    { "DSML invoke name= </think>", "<think>" },
    { "<|open|> <|close|>", "<|open|>think<|sep|>" },
    { "]<]minimax[>[ <invoke name=", "" },
    { "<atem:invoke", "" },
    { "<function name= <param name=", "" },
    { "<|function_call|>", "" },
    { "function call <|role_sep|>", "" },
    { "<|python_start|> tools", "" },
    { "<longcat_tool_call> <longcat_arg_key> <longcat_think>", "<longcat_think>\n" },
    { "<longcat_tool_call>", "" },
    { "<function= <parameter=example_parameter_1>value_1</parameter> <think>", "" },
    { "<function_calls>", "" },
    { "<invoke name= <dots_function_call>", "" },
    { "<|begin|>assistant<|think|> <|tool_calls|> <|tool_call:begin|> <|tool_call:args|>",
      "<|end|><|begin|>assistant" },
    { "<|begin|>assistant<|think|> <|tool_calls|> <|tool_call:begin|> <|tool_call:args|>",
      "<|think|><|end|><|begin|>assistant" },
    { "<tool_calls> <|extra_0|> <think>", "" },
};

enum { N_FAMILIES = sizeof families / sizeof *families, N_TOOLS = 5, STRICT = 3 };

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":"
    "\"object\",\"properties\":{"
    "\"city\":{\"type\":\"string\",\"description\":\"Where.\"},\"days\":{\"type\":\"integer\","
    "\"minimum\":1,\"maximum\":14},"
    "\"unit\":{\"type\":\"string\",\"enum\":[\"c\",\"f\"]},\"zip\":{\"type\":\"string\","
    "\"pattern\":\"^[0-9]{4}$\"},"
    "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"maxItems\":3}},\"required\":["
    "\"city\",\"days\"]}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"anything\"}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"set-pair\",\"strict\":true,\"parameters\":{"
    "\"type\":\"object\","
    "\"properties\":{\"p\":{\"$ref\":\"#/$defs/"
    "P\"},\"q\":{\"anyOf\":[{\"type\":\"string\",\"maxLength\":5},{\"type\":\"null\"}]},"
    "\"flag\":{\"type\":\"boolean\"},\"name\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":6}"
    "},"
    "\"required\":[\"p\",\"flag\",\"name\"],\"additionalProperties\":false,"
    "\"$defs\":{\"P\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"number\"},\"y\":{"
    "\"const\":true},\"s\":{\"type\":\"string\"}},"
    "\"required\":[\"x\",\"y\"]}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"either\",\"parameters\":{\"anyOf\":[{\"type\":"
    "\"object\",\"properties\":{"
    "\"a\":{\"type\":\"string\"}},\"required\":[\"a\"]},{\"type\":\"object\",\"properties\":{\"b\":"
    "{\"type\":\"integer\"}},"
    "\"required\":[\"b\"]}]}}}]";

struct world {
    json_t *tools;
    struct grammar *schemas[N_TOOLS];
    struct vocabtrie *lex;
};

static int open_world(void **state)
{
    struct world *w = mem_new(struct world);

    w->tools = json_loads(tools_text, 0, NULL);
    assert_non_null(w->tools);
    w->lex = make_vocabtrie(1500, 5);
    for (size_t i = 0; i < N_TOOLS; i++) {
        const json_t *p =
            json_object_get(json_object_get(json_array_get(w->tools, i), "function"), "parameters");
        char *text = p ? json_dumps(p, 0) : strdup("{\"type\":\"object\"}");
        w->schemas[i] = compile(GRAMMAR_SCHEMA, text);
        free(text);
    }
    *state = w;
    return 0;
}

static int close_world(void **state)
{
    struct world *w = *state;

    for (size_t i = 0; i < N_TOOLS; i++) grammar_unref(w->schemas[i]);
    vocabtrie_close(w->lex);
    json_decref(w->tools);
    mem_free(w);
    return 0;
}

/* ---- calls parsed from a text ---- */

struct seen {
    struct buf text, think, names[64], args[64];
    int n;
};

static void on_text(void *arg, struct str s) { buf_put_str(&((struct seen *)arg)->text, s); }
static void on_think(void *arg, struct str s) { buf_put_str(&((struct seen *)arg)->think, s); }

static void on_call(void *arg, struct str name, struct str id)
{
    struct seen *s = arg;

    (void)id;
    assert_true(s->n < 64);
    buf_put_str(&s->names[s->n++], name);
}

static void on_args(void *arg, struct str piece)
{
    struct seen *s = arg;

    assert_true(s->n > 0);
    buf_put_str(&s->args[s->n - 1], piece);
}

static void read_back(struct world *w, int family, struct str text, size_t chunk, struct seen *out,
                      struct toolparse *p)
{
    const struct toolparse_out o = { on_text, on_think, on_call, on_args, out };
    struct str t = str_c(families[family].template);

    *out = (struct seen){ 0 };
    toolparse_init(p, toolfamily_find(t), toolfamily_find_reasoning(t), w->tools,
                   str_c(families[family].prompt), &o);
    while (text.n) {
        toolparse_push(p, str_take(text, chunk));
        text = str_skip(text, chunk);
    }
    toolparse_end(p);
}

static void seen_release(struct seen *s)
{
    buf_release(&s->text);
    buf_release(&s->think);
    for (int i = 0; i < s->n; i++) buf_release(&s->names[i]), buf_release(&s->args[i]);
}

static void check_calls(struct world *w, int family, struct str text, const struct seen *s,
                        bool strict_only)
{
    for (int k = 0; k < s->n; k++) {
        size_t i = 0;
        for (; i < N_TOOLS; i++) {
            const json_t *fn = json_object_get(json_array_get(w->tools, i), "function");
            if (!strcmp(json_string_value(json_object_get(fn, "name")),
                        buf_cstr((struct buf *)&s->names[k])))
                break;
        }
        if (i == N_TOOLS)
            fail_msg("%s: there is no tool '%s', called in %.*s", families[family].template,
                     s->names[k].p, STR_ARG(text));
        if (strict_only && i != STRICT) continue;
        if (!matches_grammar(w->schemas[i], w->lex, buf_str(&s->args[k])))
            fail_msg("%s: %.*s\ndoes not match the schema, in %.*s", families[family].template,
                     STR_ARG(buf_str(&s->args[k])), STR_ARG(text));
    }
}

static struct toolforce make_force(const struct world *w, int family)
{
    struct str t = str_c(families[family].template);

    assert_non_null(toolfamily_find(t));
    return (struct toolforce){ .calls = toolfamily_find(t),
                               .think = toolfamily_find_reasoning(t),
                               .template = t,
                               .prompt = str_c(families[family].prompt),
                               .tools = w->tools };
}

static bool is_thinking(int family)
{
    const struct reasoning_format *t = toolfamily_find_reasoning(str_c(families[family].template));

    return t && str_ends(str_trim(str_c(families[family].prompt)), str_c(t->open));
}

/* For lazy grammars: writes some text and the trigger that begins a call. */
static void write_trigger(const struct toolforce *f, const char *spec, struct buf *out)
{
    json_t *form = json_loads(spec, 0, NULL);

    if (f->calls->payload != PAYLOAD_HARMONY) buf_puts(out, "Let me see. ");
    else buf_puts(out, "<|channel|>commentary ");
    buf_puts(out, json_string_value(json_object_get(form, "trigger")));
    json_decref(form);
}

/* Makes random texts of the grammar; each is parsed back whole and in pieces. */
static void check_family(struct world *w, int family, struct toolforce f, int n_texts,
                         int min_calls)
{
    struct grammar_spec what;
    struct buf spec = { 0 };
    struct grammar *g;
    struct matcher_cache *m;
    struct rng rng;
    struct err e = { 0 };
    int rc = toolforce_make_spec(&f, &spec, &what, &e);

    if (rc != OK) {
        assert_true(f.lazy && rc == E_UNSUPPORTED);
        buf_release(&spec);
        return;
    }
    g = compile_spec(&what);
    m = open_cache(grammar_pda(g), w->lex);
    rng_seed(&rng, (uint64_t)family + 77);
    for (int i = 0; i < n_texts; i++) {
        struct buf text = { 0 };
        struct seen whole, parts;
        struct toolparse p, q;
        bool begun = f.lazy && i % 2 && !is_thinking(family);
        if (begun) write_trigger(&f, buf_cstr(&spec), &text);
        make_text(m, w->lex, &rng, 60 + (int)(rng_u64(&rng) % 300), &text);
        read_back(w, family, buf_str(&text), text.n + 1, &whole, &p);
        read_back(w, family, buf_str(&text), 1 + rng_u64(&rng) % 9, &parts, &q);
        if (whole.n < min_calls || (f.max && whole.n > f.max) || (min_calls && whole.text.n))
            fail_msg("%s: %d calls and the text '%s' in %s", families[family].template, whole.n,
                     buf_cstr(&whole.text), buf_cstr(&text));
        if (begun && !whole.n) fail_msg("no call in: %s", buf_cstr(&text));
        assert_false(p.cut);
        check_calls(w, family, buf_str(&text), &whole, f.lazy);
        assert_int_equal(whole.n, parts.n);
        for (int k = 0; k < whole.n; k++)
            assert_true(str_eq(buf_str(&whole.args[k]), buf_str(&parts.args[k])));
        assert_true(str_eq(buf_str(&whole.think), buf_str(&parts.think)));
        toolparse_release(&p);
        toolparse_release(&q);
        seen_release(&whole);
        seen_release(&parts);
        buf_release(&text);
    }
    matcher_cache_close(m);
    grammar_unref(g);
    buf_release(&spec);
}

static void forced_calls_of_every_family_are_read_back(void **state)
{
    for (int i = 0; i < N_FAMILIES; i++)
        check_family(*state, i, make_force(*state, i), 12 / THIN, 1);
}

static void a_limit_of_one_call_gives_exactly_one(void **state)
{
    for (int i = 0; i < N_FAMILIES; i++) {
        struct toolforce f = make_force(*state, i);
        f.max = 1;
        check_family(*state, i, f, 4, 1);
    }
}

static void calls_of_strict_tools_match_their_schemas_anywhere_in_a_text(void **state)
{
    for (int i = 0; i < N_FAMILIES; i++) {
        struct toolforce f = make_force(*state, i);
        f.lazy = true;
        check_family(*state, i, f, 4, 0);
    }
}

static void the_error_for_an_unsupported_schema_names_the_keyword(void **state)
{
    struct world *w = *state;
    json_t *tools = json_loads(
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
        "\"properties\":{\"a\":{\"type\":\"array\",\"contains\":{}}}}}}]",
        0, NULL);

    for (int i = 0; i < N_FAMILIES; i++) {
        struct toolforce f = make_force(w, i);
        struct grammar_spec what;
        struct buf spec = { 0 };
        f.tools = tools;
        assert_int_equal(toolforce_make_spec(&f, &spec, &what, NULL), OK);
        assert_spec_refused(&what, "tool 'f': #/properties/a: the keyword 'contains'");
        buf_release(&spec);
    }
    json_decref(tools);
}

static void forced_texts_have_the_format_of_the_family(void **state)
{
    static const struct {
        int family;
        const char *text;
    } want[] = {
        { 0, "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>" },
        { 0, "<think>\nHm.\n</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": "
             "{}}\n</tool_call>" },
        { 1, "Hm.</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>" },
        { 3, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><"
             "｜tool▁calls▁end｜>" },
        { 4, "x</"
             "think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```"
             "json\n{}\n```"
             "<｜tool▁call▁end｜><｜tool▁calls▁end｜>" },
        { 5, "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_"
             "begin|>{}<|tool_call_end|>"
             "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|"
             "tool_calls_section_end|>" },
        { 6, "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>A "
             "b</arg_value>\n<arg_key>days</arg_key>\n"
             "<arg_value>3</arg_value>\n</tool_call>" },
        { 9, "<tool_call>\n<function=get_weather>\n<parameter=city>\nA\nb\n</"
             "parameter>\n<parameter=days>\n3\n</parameter>\n"
             "</function>\n</tool_call>" },
        { 13, "<|tool_call_start|>[get_weather(city=\"A\", days=3), now()]<|tool_call_end|>" },
        { 15, "<|tool_call>call:get_weather{city:<|\"|>A<|\"|>,days:3}<tool_call|>" },
        { 23, "[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[ARGS]{}" },
        { 27, "{\"name\": \"now\", \"parameters\": {}}" },
        { 35, "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"get_weather\">"
              "]<]minimax[>[<city>A b]<]minimax[>[</city>]<]minimax[>[<days>3]<]minimax[>[</days>"
              "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>" },
        { 41, "Hm.</longcat_think>\n<longcat_tool_call>now\n</longcat_tool_call>" },
        { 42, "<longcat_tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</longcat_tool_call>" },
        { 43, "<tool_call>\n<function=get_weather>\n<parameter=city>\nA\n</parameter>\n"
              "<parameter=days>3</parameter>\n</function>\n</tool_call>" },
        { 44, "<function_calls>get_weather(city=\"A\", days=3)\nnow()</function_calls>" },
        { 45, "<dots_function_call>\n<invoke name=\"now\">\n</invoke>\n</dots_function_call>" },
        { 46, "<|think|>Hm.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>abcdefghij"
              "<|tool_call:name|>now<|tool_call:args|>{}<|tool_call:end|><|calls|>" },
        { 47, "<|tool_calls|><|tool_call:begin|>abcdefghij<|tool_call:name|>now<|tool_call:args|>{}"
              "<|tool_call:end|><|calls|>" },
        { 30, "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
              "to=functions.now "
              "<|constrain|>json<|message|>{}" },
    };
    struct world *w = *state;

    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct toolforce f = make_force(w, want[i].family);
        struct grammar_spec what;
        struct buf spec = { 0 };
        struct grammar *g;
        assert_int_equal(toolforce_make_spec(&f, &spec, &what, NULL), OK);
        g = compile_spec(&what);
        if (!matches_grammar(g, w->lex, str_c(want[i].text)))
            fail_msg("does not match: %s", want[i].text);
        grammar_unref(g);
        buf_release(&spec);
    }
}

static void calls_match_the_given_format_and_the_schemas_of_their_tools(void **state)
{
    const struct toolrules_tool tools[] = {
        { STR("get_weather"), STR("{\"type\":\"object\",\"properties\":{\"city\":{\"type\":"
                                  "\"string\"}},\"required\":[\"city\"]}") },
        { STR("now"), STR("") },
    };
    const struct toolformat format = { .before = "<tool_call>\n{\"name\": \"",
                                       .between = "\", \"arguments\": ",
                                       .after = "}\n</tool_call>",
                                       .sep = "\n",
                                       .max = 2 };
    static const char *const yes[] = {
        "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": "
        "{\"city\":\"Rome\"}}\n</tool_call>\n"
        "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\":1}}\n</tool_call>"
    };
    static const char *const no[] = {
        "", "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>"
    };
    struct world *w = *state;
    struct buf text = { 0 };
    struct grammar *g;

    toolrules_write(&text, tools, 2, &format);
    g = compile_spec(&(struct grammar_spec){
        .kind = GRAMMAR_RULES, .build = toolrules_build, .text = buf_str(&text) });
    for (size_t i = 0; i < 2; i++)
        if (!matches_grammar(g, w->lex, str_c(yes[i]))) fail_msg("does not match: %s", yes[i]);
    for (size_t i = 0; i < 3; i++)
        if (matches_grammar(g, w->lex, str_c(no[i]))) fail_msg("matches: %s", no[i]);
    grammar_unref(g);
    buf_release(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forced_calls_of_every_family_are_read_back),
        cmocka_unit_test(a_limit_of_one_call_gives_exactly_one),
        cmocka_unit_test(calls_of_strict_tools_match_their_schemas_anywhere_in_a_text),
        cmocka_unit_test(the_error_for_an_unsupported_schema_names_the_keyword),
        cmocka_unit_test(calls_match_the_given_format_and_the_schemas_of_their_tools),
        cmocka_unit_test(forced_texts_have_the_format_of_the_family),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
