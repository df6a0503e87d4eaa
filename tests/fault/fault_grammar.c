/* Grammars of every kind and tool calls of several families, with every allocation failing once:
 * compiling, matching and parsing end with E_NOMEM or with the same result as without a fault. */
#include "fault.h"

#include "base/mem.h"
#include "grammar/grammar.h"
#include "grammar/matcher.h"
#include "toolcall/toolforce.h"
#include "toolcall/toolparse.h"
#include "grammar/vocabtrie.h"
#include "token/tokenizer.h"

#include <stdio.h>
#include <string.h>

/* ---- matching ---- */

/* Every byte, and some words that cross the ends of rules. */
static int open_vocab(struct vocabtrie **out, struct err *e)
{
    static const char *const more[] = {
        "\":", "\",", "\"}", "aa", "aaa", "a\"", "12", "ab", "\"}\n"
    };
    enum { N = 256 + sizeof more / sizeof *more };
    char bytes[256];
    struct str words[N];

    for (int i = 0; i < 256; i++) bytes[i] = (char)i, words[i] = str_of(&bytes[i], 1);
    for (int i = 256; i < N; i++) words[i] = str_c(more[i - 256]);
    return vocabtrie_from_bytes(out, words, NULL, N, e);
}

static int32_t last_bit(const uint64_t *mask, int n)
{
    while (n-- > 0)
        if (mask[n / 64] >> (n % 64) & 1) return n;
    return -1;
}

/* One text: ten tokens with the largest ids that the mask allows, then the shortest way to the end. */
static int generate(struct matcher_cache *c, const struct vocabtrie *v, struct buf *out,
                    struct err *e)
{
    struct matcher x = { 0 };
    int rc = matcher_begin(&x, c, true, e);

    for (int i = 0; rc == OK && !matcher_is_complete(&x) && i < 4000; i++) {
        bool closing = i >= 10;
        const uint64_t *mask;
        int32_t id;
        if (closing && matcher_min_bytes(&x) == 0) break;
        mask = closing ? matcher_closing_mask(&x, matcher_min_bytes(&x) - 1) : matcher_mask(&x);
        if (!mask) {
            rc = err_nomem(e, "a mask");
            break;
        }
        if ((id = last_bit(mask, v->n_ids)) < 0) break; /* it may end, and nothing else */
        if ((rc = matcher_min_bytes_after(&x, id)) == MATCHER_FAR)
            rc = err_set(e, E_INTERNAL, "the mask allows a token that the grammar does not");
        else rc = rc == E_NOMEM ? err_nomem(e, "a look ahead") : OK;
        if (rc == OK && (rc = matcher_accept(&x, id)) == E_NOMEM) err_nomem(e, "a step");
        if (rc == OK) buf_put_str(out, vocabtrie_bytes(v, id));
    }
    if (rc == OK && !matcher_may_end(&x)) rc = err_set(e, E_INTERNAL, "the text has no end");
    matcher_end(&x);
    return rc;
}

struct grammar_case {
    const char *text; /* NULL: spec has it */
    struct grammar_spec spec;
    size_t limit; /* of the matcher's cache; 0: as it is */
    char want[8192];
};

/* A fault is E_NOMEM and nothing else: a grammar or an answer is not at fault for it. */
static int only_nomem(int rc, const struct err *e)
{
    if (rc != OK && rc != E_NOMEM) fail_msg("%s: %s", err_name(rc), e->msg);
    return rc;
}

/* Under a fault that is survived the texts are the same as without. */
static int check_same(struct grammar_case *t, struct buf *text, struct err *e)
{
    int rc = buf_check(text, e);

    if (rc != OK) return rc;
    if (!t->want[0]) snprintf(t->want, sizeof t->want, "%s|", buf_cstr(text));
    else if (strncmp(t->want, buf_cstr(text), strlen(t->want) - 1))
        return err_set(e, E_INTERNAL, "another text: %s", buf_cstr(text));
    return buf_check(text, e);
}

static int compile_and_generate(void *arg, struct err *e)
{
    struct grammar_case *t = arg;
    struct grammar *g = NULL;
    struct vocabtrie *v = NULL;
    struct matcher_cache *c = NULL;
    struct buf text = { 0 };
    int rc;

    if (t->text) t->spec.text = str_c(t->text);
    rc = grammar_compile(&g, &t->spec, NULL, e);

    if (rc == OK) rc = open_vocab(&v, e);
    if (rc == OK) rc = matcher_cache_open(&c, grammar_pda(g), v, e);
    if (rc == OK && t->limit) matcher_cache_limit(c, t->limit);
    for (int i = 0; i < 2 && rc == OK; i++) rc = generate(c, v, &text, e);
    if (rc == OK) rc = check_same(t, &text, e);
    matcher_cache_close(c);
    vocabtrie_close(v);
    grammar_unref(g);
    buf_release(&text);
    return only_nomem(rc, e);
}

/* A request of a matcher that ran out of memory ends, and the others go on with the same cache. */
static int continue_after_failure(void *arg, struct err *e)
{
    struct grammar_case *t = arg;
    struct grammar *g = NULL;
    struct vocabtrie *v = NULL;
    struct matcher_cache *c = NULL;
    struct buf text = { 0 };
    int rc, first;

    fault_pause();
    t->spec.text = str_c(t->text);
    rc = grammar_compile(&g, &t->spec, NULL, e);
    if (rc == OK) rc = open_vocab(&v, e);
    if (rc == OK) rc = matcher_cache_open(&c, grammar_pda(g), v, e);
    fault_resume();
    first = rc == OK ? generate(c, v, &text, e) : rc;
    fault_pause();
    buf_release(&text);
    if (rc == OK) rc = generate(c, v, &text, e);
    if (rc == OK) rc = check_same(t, &text, e);
    matcher_cache_close(c);
    vocabtrie_close(v);
    grammar_unref(g);
    buf_release(&text);
    fault_resume();
    return only_nomem(rc == OK ? first : rc, e);
}

static const char json_gbnf[] =
    "root ::= object\nvalue ::= object | array | string | \"true\"\n"
    "object ::= \"{\" (pair (\",\" pair)*)? \"}\"\npair ::= string \":\" value\n"
    "array ::= \"[\" (value (\",\" value)*)? \"]\"\nstring ::= \"\\\"\" [a-z\\u00e9]{2,300} "
    "\"\\\"\"";

static const char schema[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"minLength\":50,"
    "\"maxLength\":500},\"zip\":{\"type\":\"string\",\"pattern\":\"^[0-9]{4}\",\"maxLength\":6},"
    "\"when\":{\"type\":\"string\",\"format\":\"date-time\"},\"n\":{\"type\":\"integer\","
    "\"minimum\":-12,\"maximum\":345},\"m\":{\"type\":\"number\",\"multipleOf\":7,\"minimum\":5},"
    "\"f\":{\"type\":\"number\",\"exclusiveMinimum\":0.25,\"maximum\":17.5},"
    "\"p\":{\"$ref\":\"#/$defs/P\"},\"c\":{\"const\":{\"a\":[1,null,\"x\"]}},"
    "\"e\":{\"enum\":[\"a\",\"bc\",3],\"type\":\"string\"},"
    "\"u\":{\"type\":\"array\",\"items\":{\"enum\":[1,2,3]},\"uniqueItems\":true,\"minItems\":2},"
    "\"b\":{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":3},"
    "\"uniqueItems\":true},\"s\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},"
    "\"uniqueItems\":true,\"minItems\":2},\"t\":{\"type\":\"array\",\"prefixItems\":[{\"type\":"
    "\"boolean\"},{\"type\":\"null\"}],\"items\":{\"type\":\"integer\"},\"maxItems\":4},"
    "\"any\":true,\"o\":{\"oneOf\":[{\"type\":\"string\",\"pattern\":\"^a\"},{\"type\":\"string\","
    "\"pattern\":\"^b\"},{\"type\":\"integer\"}]},\"q\":{\"oneOf\":[{\"required\":[\"x\"]},"
    "{\"required\":[\"y\"]}],\"properties\":{\"x\":{},\"y\":{}}}},"
    "\"required\":[\"name\",\"n\",\"u\",\"b\",\"s\",\"c\",\"e\",\"o\",\"q\"],"
    "\"dependentRequired\":{\"zip\":[\"when\",\"f\"]},\"additionalProperties\":{\"type\":\"null\"},"
    "\"patternProperties\":{\"^x_\":{\"type\":\"integer\"},\"_y$\":{\"minimum\":3}},"
    "\"propertyNames\":{\"maxLength\":12},"
    "\"$defs\":{\"P\":{\"type\":\"object\",\"properties\":{\"p\":{\"$ref\":\"#/$defs/P\"}},"
    "\"minProperties\":2,\"additionalProperties\":true}}}";

static struct grammar_case cases[] = {
    { .text = json_gbnf, .spec = { .kind = GRAMMAR_GBNF } },
    { .text = schema, .spec = { .kind = GRAMMAR_SCHEMA } },
    { .text = "", .spec = { .kind = GRAMMAR_OBJECT } },
    { .text = "^([a-c]{2,90}|\\d+\\.\\w*?)[^x\\n](?:z|\\u00e9)$",
      .spec = { .kind = GRAMMAR_REGEX } },
    { .text = "[\"red\",\"redder\",\"\\u00e9\"]", .spec = { .kind = GRAMMAR_CHOICE } },
    { .text = "[ab]+",
      .spec = { .kind = GRAMMAR_REGEX,
                .reasoning = REASONING_OPTIONAL,
                .reasoning_open = "<think>",
                .reasoning_close = "</think>",
                .lead = "Answer: " } },
    { .text = json_gbnf, .spec = { .kind = GRAMMAR_GBNF }, .limit = 1 },
};

static void every_kind_of_grammar_ends_with_an_error(void **state)
{
    static const char *const names[] = { "gbnf",
                                         "schema",
                                         "object",
                                         "regex",
                                         "choice",
                                         "reasoning and lead",
                                         "evicting at each token" };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        fault_run(names[i], compile_and_generate, &cases[i]);
}

static void a_failed_matcher_leaves_its_cache_usable(void **state)
{
    struct grammar_case t[] = { { .text = json_gbnf, .spec = { .kind = GRAMMAR_GBNF } },
                                { .text = schema, .spec = { .kind = GRAMMAR_SCHEMA } } };
    (void)state;
    for (size_t i = 0; i < 2; i++)
        fault_run("the cache after a failure", continue_after_failure, &t[i]);
}

/* ---- tool calls ---- */

static const char *const templates[] = {
    "tools <tool_call> {\"name\"} <think>",
    "<tool_call> <arg_key>",
    "<|tool_call_argument_begin|>",
    "<tool_call> <function= <parameter=",
    "<|tool_call_start|>",
    "<|tool_call>call:",
    "[TOOL_CALLS] [ARGS]",
    "<｜tool▁call▁begin｜> <｜tool▁sep｜> ```json",
    "<|open|> <|close|>",
    "func_name1(",
    "<|start|> <|channel|>",
};

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"strict\":true,\"parameters\":"
    "{"
    "\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"maxLength\":9},\"days\":{"
    "\"type\":\"integer\",\"minimum\":1,\"maximum\":14},\"unit\":{\"enum\":[\"c\",\"f\"],\"type\":"
    "\"string\"},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}},\"required\":["
    "\"city\",\"days\",\"unit\"]}}},{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]";

struct tool_case {
    struct str template;
    const json_t *tools;
    bool lazy;
    struct grammar_case made;
};

static int force_calls(void *arg, struct err *e)
{
    struct tool_case *t = arg;
    struct toolforce f = { .calls = toolfamily_find(t->template),
                           .think = toolfamily_find_reasoning(t->template),
                           .template = t->template,
                           .prompt = STR(""),
                           .tools = t->tools,
                           .max = 2,
                           .lazy = t->lazy };
    struct buf text = { 0 };
    int rc = toolforce_make_spec(&f, &text, &t->made.spec, e);

    if (rc == E_UNSUPPORTED && t->lazy) rc = OK;
    else if (rc == OK) rc = compile_and_generate(&t->made, e);
    buf_release(&text);
    return only_nomem(rc, e);
}

static void forced_calls_end_with_an_error(void **state)
{
    json_t *tools = json_loads(tools_text, 0, NULL);
    (void)state;
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++)
        for (int lazy = 0; lazy < 2; lazy++) {
            struct tool_case t = { .template = str_c(templates[i]), .tools = tools, .lazy = lazy };
            if (lazy && i % 4) continue;
            fault_run(templates[i], force_calls, &t);
        }
    json_decref(tools);
}

/* ---- parsing ---- */

static void on_text(void *arg, struct str s)
{
    buf_puts(arg, "\nT");
    buf_put_str(arg, s);
}

static void on_think(void *arg, struct str s)
{
    buf_puts(arg, "\nR");
    buf_put_str(arg, s);
}

static void on_call(void *arg, struct str name, struct str id)
{
    buf_puts(arg, "\nC");
    buf_put_str(arg, name);
    buf_putc(arg, '#');
    buf_put_str(arg, id);
}

static void on_args(void *arg, struct str piece) { buf_put_str(arg, piece); }

struct parse_case {
    const char *template, *answer;
    const json_t *tools;
    struct grammar_case made;
};

static int parse_answer(void *arg, struct err *e)
{
    struct parse_case *t = arg;
    struct buf out = { 0 };
    const struct toolparse_out to = { on_text, on_think, on_call, on_args, &out };
    struct str text = str_c(t->answer), template = str_c(t->template);
    struct toolparse p;
    int rc;

    toolparse_init(&p, toolfamily_find(template), toolfamily_find_reasoning(template), t->tools,
                   STR(""), &to);
    for (; text.n; text = str_skip(text, 3)) toolparse_push(&p, str_take(text, 3));
    toolparse_end(&p);
    rc = toolparse_check(&p, e);
    if (rc == OK) rc = check_same(&t->made, &out, e);
    toolparse_release(&p);
    buf_release(&out);
    return only_nomem(rc, e);
}

static void parsing_ends_with_an_error_or_the_same_parts(void **state)
{
    json_t *tools = json_loads(tools_text, 0, NULL);
    struct parse_case t[] = {
        { .template = templates[0],
          .answer =
              "<think> hm </think>\n\nLet me see. \n<tool_call>\n{\"name\": \"now\", "
              "\"arguments\": {\"a\": \"x\ny\"}}\n</tool_call>\n<tool_call>{\"name\": \"other\", "
              "\"arguments\": \"{\\\"a\\\": 1}\", \"id\": "
              "\"i1\"}</tool_call><tool_call>no</tool_call>" },
        { .template = templates[1],
          .answer = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>A b</arg_value>\n"
                    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>" },
        { .template = templates[2],
          .answer = "<|tool_calls_section_begin|><|tool_call_begin|>functions.other:0"
                    "<|tool_call_argument_begin|>{\"a\":[1]}<|tool_call_end|>" },
        { .template = templates[4],
          .answer =
              "<|tool_call_start|>[get_weather(city=\"A\\n\", days=3, tags=['x', True, None]), "
              "now()]<|tool_call_end|> done" },
        { .template = templates[5],
          .answer =
              "<|tool_call>call:get_weather{city:<|\"|>A<|\"|>,days:3,tags:[<|\"|>x<|\"|>,{a:1}]}"
              "<tool_call|>" },
        { .template = templates[6], .answer = "[TOOL_CALLS]other[CALL_ID]abc[ARGS]{\"a\": 1}" },
        { .template = templates[7],
          .answer =
              "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>other\n```json\n"
              "{\"a\":1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>" },
        { .template = templates[9],
          .answer = "[{\"other\": {\"a\": 1}}, {\"name\": \"x\", \"args\": {}}] end" },
        { .template = templates[10],
          .answer =
              "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
              "to=functions.other <|constrain|>json<|message|>{\"a\": 1}<|call|>"
              "<|start|>assistant<|channel|>final<|message|>Done." },
    };
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        t[i].tools = tools;
        fault_run(t[i].template, parse_answer, &t[i]);
    }
    json_decref(tools);
}

/* ---- vocabularies ---- */

static int open_model_vocab(void *arg, struct err *e)
{
    struct vocabtrie *v = NULL;
    int rc = vocabtrie_open(&v, arg, 600, NULL, 0, e);

    vocabtrie_close(v);
    return rc;
}

static void the_vocabulary_of_a_model_ends_with_an_error(void **state)
{
    struct tokenizer *t = NULL;
    (void)state;
    assert_int_equal(tokenizer_open(&t, repo("models/tern-tales.gguf"), NULL), OK);
    fault_run("the vocabulary of a model", open_model_vocab, t);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_grammar_ends_with_an_error),
        cmocka_unit_test(a_failed_matcher_leaves_its_cache_usable),
        cmocka_unit_test(forced_calls_end_with_an_error),
        cmocka_unit_test(parsing_ends_with_an_error_or_the_same_parts),
        cmocka_unit_test(the_vocabulary_of_a_model_ends_with_an_error),
    };
    fault_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
