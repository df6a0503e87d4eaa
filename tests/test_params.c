/* Request bodies of the API: every field, its range and type, aliases, unsupported and unknown
 * fields, deadlines.
 *
 * Bodies are written by hand. Reads no files. */
#include "support.h"

#include "api/deadline.h"
#include "api/params.h"
#include "base/mem.h"
#include "engine/request.h"
#include "pool/chatform.h"
#include "sample/sampler.h"

#include <stdio.h>
#include <string.h>

static struct params p;
static struct err e;

/* Reads a body into p, which is valid until the next call. */
static int read_body(enum body_kind kind, const char *body)
{
    params_release(&p);
    memset(&e, 0, sizeof e);
    return params_read(&p, kind, str_c(body), &e);
}

/* A chat body with these fields in addition to its messages. */
static int read_chat(const char *fields)
{
    char body[4096];
    snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]%s%s}",
             *fields ? "," : "", fields);
    return read_body(BODY_CHAT, body);
}

static int read_completion(const char *fields)
{
    char body[4096];
    snprintf(body, sizeof body, "{\"prompt\":\"hi\"%s%s}", *fields ? "," : "", fields);
    return read_body(BODY_TEXT, body);
}

static void assert_bad(int rc, const char *param)
{
    assert_int_equal(rc, E_INVALID);
    assert_string_equal(p.param, param);
    if (*param) assert_non_null(strstr(e.msg, param));
}

static int teardown(void **state)
{
    (void)state;
    params_release(&p);
    return 0;
}

static void bodies_that_are_not_json_are_refused_with_line_and_column(void **state)
{
    (void)state;
    assert_bad(read_body(BODY_CHAT, "{\"messages\": [\n  {]}"), "");
    assert_non_null(strstr(e.msg, "line 2, column 4 (byte 19)"));
    assert_bad(read_body(BODY_CHAT, ""), "");
    assert_bad(read_body(BODY_CHAT, "[]"), "");
    assert_non_null(strstr(e.msg, "an empty list"));
    assert_bad(read_body(BODY_CHAT, "\"x\""), "");
    assert_bad(read_body(BODY_CHAT, "null"), "");
    assert_bad(read_body(BODY_CHAT, "{} {}"), "");
    assert_bad(read_body(BODY_CHAT, "{\"a\":\"\xff\"}"), "");
    assert_bad(read_body(BODY_CHAT, "{\"a\":\"\xc0\x80\"}"), "");
    assert_bad(read_body(BODY_CHAT, "{\"a\":\"\\u0000\"}"), "");
    assert_bad(read_body(BODY_CHAT, "{\"a\":\"\\ud800\"}"), "");
    static const char nuls[][16] = { "{\"a\":\0 1}", "{\"a\":1\0}", "{\"a\":1}\0" };
    for (int i = 0; i < 3; i++) {
        params_release(&p);
        assert_int_equal(params_read(&p, BODY_CHAT, str_of(nuls[i], i ? 8 : 9), &e), E_INVALID);
        assert_non_null(strstr(e.msg, "NUL"));
    }
}

static void deep_and_large_bodies_are_refused(void **state)
{
    size_t n = 2 << 20;
    char *body = mem_alloc(n + 1);

    (void)state;
    memset(body, '[', n);
    assert_int_equal(read_body(BODY_CHAT, body), E_INVALID);
    assert_non_null(strstr(e.msg, "parts"));
    body[100000] = 0;
    assert_int_equal(read_body(BODY_CHAT, body), E_INVALID);
    assert_non_null(strstr(e.msg, "depth"));
    mem_free(body);
}

static void seeds_are_any_64_bits(void **state)
{
    static const struct {
        const char *text;
        uint64_t seed;
    } good[] = { { "0", 0 },
                 { "-1", UINT64_MAX },
                 { "-9223372036854775808", (uint64_t)INT64_MIN },
                 { "9223372036854775807", INT64_MAX },
                 { "9223372036854775808", 9223372036854775808u },
                 { "9223372036854775809", 9223372036854775809u },
                 { "18446744073709551615", UINT64_MAX },
                 { " \n18446744073709551614 ", UINT64_MAX - 1 },
                 { "3.0", 3 } };
    static const char *const bad[] = { "18446744073709551616",
                                       "-9223372036854775809",
                                       "99999999999999999999999",
                                       "1e19",
                                       "1.5",
                                       "\"1\"" };
    char field[64];

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(field, sizeof field, "\"seed\":%s", good[i].text);
        if (read_chat(field) != OK) fail_msg("%s: %s", good[i].text, e.msg);
        assert_true(p.has_seed && p.seed == good[i].seed);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(field, sizeof field, "\"seed\":%s", bad[i]);
        assert_bad(read_chat(field), "seed");
    }
    assert_int_equal(read_chat("\"metadata\":{\"seed\":1},\"x\":\"\\\",\\\"seed\\\":2\","
                               "\"seed\":5,\"seed\" : 18446744073709551613"),
                     OK);
    assert_true(p.seed == UINT64_MAX - 2); /* of the object itself, and the last one */
}

static void integers_beyond_64_bits_are_numbers_out_of_range(void **state)
{
    (void)state;
    assert_bad(read_chat("\"max_tokens\":99999999999999999999"), "max_tokens");
    assert_non_null(strstr(e.msg, "must be from 1 to 2147483647, but it is 1e+20"));
    assert_bad(read_chat("\"temperature\":18446744073709551616"), "temperature");
    assert_bad(read_chat("\"n\":-99999999999999999999"), "n");
    assert_int_equal(read_chat("\"metadata\":[18446744073709551615,-99999999999999999999,"
                               "\"18446744073709551616\"],\"temperature\":1"),
                     OK);
    assert_true(json_real_value(json_array_get(json_object_get(p.root, "metadata"), 0)) > 1.8e19);
    assert_string_equal(json_string_value(json_array_get(json_object_get(p.root, "metadata"), 2)),
                        "18446744073709551616");
    assert_bad(read_body(BODY_CHAT, "{\"a\":18446744073709551616,}"), "");
}

static void reading_ends_early_when_it_is_asked_to(void **state)
{
    atomic_int stop = 1;

    (void)state;
    params_release(&p);
    p.stop = &stop;
    assert_int_equal(params_read(&p, BODY_TEXT, STR("{\"prompt\":\"a\"}"), &e), E_CANCELLED);
    assert_null(p.root);
    params_release(&p);
}

static void a_body_to_execute_is_a_chat_if_it_has_messages(void **state)
{
    (void)state;
    assert_int_equal(
        read_body(BODY_EXECUTE, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"), OK);
    assert_int_equal(p.kind, BODY_CHAT);
    assert_int_equal(p.n_msgs, 1);
    assert_int_equal(read_body(BODY_EXECUTE, "{\"prompt\":\"hi\"}"), OK);
    assert_int_equal(p.kind, BODY_TEXT);
    assert_bad(read_body(BODY_EXECUTE, "{}"), "prompt");
}

static void the_parsed_body_is_dropped_unless_it_is_still_read(void **state)
{
    (void)state;
    assert_int_equal(read_completion("\"grammar\":\"root ::= \\\"a\\\"\""), OK);
    params_drop_body(&p);
    assert_null(p.root);
    assert_true(str_eq(p.grammar.text, STR("root ::= \"a\""))); /* a copy */
    assert_int_equal(read_completion("\"echo\":true"), OK);
    params_drop_body(&p);
    assert_non_null(p.root);
    assert_true(str_eq(p.prompts[0].text, STR("hi")));
}

static void every_number_has_its_range(void **state)
{
    static const struct {
        const char *name, *least, *below, *most, *above;
    } rows[] = {
        { "temperature", "0", "-0.1", "2", "2.01" },
        { "top_p", "0", "-0.1", "1", "1.01" },
        { "top_k", "-1", "-2", "1000000", "99999999999" },
        { "min_p", "0", "-0.1", "0.99", "1" },
        { "typical_p", "0.01", "0", "1", "1.1" },
        { "repetition_penalty", "0.01", "0", "100", "101" },
        { "repeat_penalty", "0.01", "0", "100", "101" },
        { "repeat_last_n", "-1", "-2", "1048576", "1048577" },
        { "frequency_penalty", "-2", "-2.1", "2", "2.1" },
        { "presence_penalty", "-2", "-2.1", "2", "2.1" },
        { "max_tokens", "1", "0", "2147483647", "2147483648" },
        { "max_completion_tokens", "1", "0", "2147483647", "2147483648" },
        { "min_tokens", "0", "-1", "2147483647", "2147483648" },
        { "n", "1", "0", "1024", "1025" },
        { "timeout", "0.1", "0", "600", "1e10" },
        { "priority", "-1000", "-1001", "1000", "1001" },
        { "logprobs", "0", "-1", "20", "21" },
        { "seed", "-9223372036854775808", NULL, "9223372036854775807", NULL },
        { "deadline_ms", "-1", NULL, "9223372036854775807", NULL },
    };
    char f[128];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *tries[] = { rows[i].least, rows[i].most, rows[i].below, rows[i].above };
        for (int k = 0; k < 4; k++) {
            if (!tries[k]) continue;
            snprintf(f, sizeof f, "\"%s\":%s", rows[i].name, tries[k]);
            if (k < 2) assert_int_equal(read_completion(f), OK);
            else assert_bad(read_completion(f), rows[i].name);
        }
    }
}

static void wrong_types_are_named_by_field(void **state)
{
    static const char *const numbers[] = { "temperature",
                                           "top_p",
                                           "top_k",
                                           "min_p",
                                           "typical_p",
                                           "repetition_penalty",
                                           "repeat_penalty",
                                           "repeat_last_n",
                                           "frequency_penalty",
                                           "presence_penalty",
                                           "max_tokens",
                                           "max_completion_tokens",
                                           "min_tokens",
                                           "n",
                                           "seed",
                                           "timeout",
                                           "deadline_ms",
                                           "best_of" };
    static const char *const bools[] = { "stream", "ignore_eos" };
    static const char *const wrong[] = { "\"1\"", "[1]", "{}", "true", "[]" };
    char f[128];

    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
            snprintf(f, sizeof f, "\"%s\":%s", numbers[i], wrong[k]);
            assert_bad(read_chat(f), numbers[i]);
        }
        snprintf(f, sizeof f, "\"%s\":null", numbers[i]);
        assert_int_equal(read_chat(f), OK);
    }
    for (size_t i = 0; i < sizeof bools / sizeof *bools; i++) {
        for (size_t k = 0; k < 3; k++) {
            snprintf(f, sizeof f, "\"%s\":%s", bools[i], wrong[k]);
            assert_bad(read_chat(f), bools[i]);
        }
        snprintf(f, sizeof f, "\"%s\":1", bools[i]);
        assert_bad(read_chat(f), bools[i]);
        snprintf(f, sizeof f, "\"%s\":null", bools[i]);
        assert_int_equal(read_chat(f), OK);
    }
    assert_bad(read_chat("\"max_tokens\":1.5"), "max_tokens");
    assert_bad(read_chat("\"model\":5"), "model");
    assert_bad(read_chat("\"stream_options\":[]"), "stream_options");
    assert_bad(read_chat("\"stream_options\":{\"include_usage\":1}"),
               "stream_options.include_usage");
    assert_bad(read_chat("\"logprobs\":\"yes\""), "logprobs");
    assert_bad(read_chat("\"logprobs\":true,\"top_logprobs\":21"), "top_logprobs");
    assert_bad(read_chat("\"logprobs\":true,\"top_logprobs\":true"), "top_logprobs");
    assert_bad(read_chat("\"priority\":\"high\""), "priority");
    assert_bad(read_completion("\"echo\":\"yes\""), "echo");
    assert_bad(read_completion("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"),
               "tools");
}

static void integers_may_be_written_as_reals(void **state)
{
    (void)state;
    assert_int_equal(read_chat("\"max_tokens\":16.0,\"top_k\":4e1"), OK);
    assert_int_equal(p.max_tokens, 16);
    assert_int_equal(p.sample.top_k, 40);
}

static void messages_are_checked_to_their_parts(void **state)
{
    static const char *const bad[][2] = {
        { "{}", "messages" },
        { "{\"messages\":null}", "messages" },
        { "{\"messages\":\"hi\"}", "messages" },
        { "{\"messages\":[]}", "messages" },
        { "{\"messages\":[5]}", "messages[0]" },
        { "{\"messages\":[{\"content\":\"x\"}]}", "messages[0].role" },
        { "{\"messages\":[{\"role\":1,\"content\":\"x\"}]}", "messages[0].role" },
        { "{\"messages\":[{\"role\":\"king\",\"content\":\"x\"}]}", "messages[0].role" },
        { "{\"messages\":[{\"role\":\"robot\",\"content\":\"x\"}]}", "messages[0].role" },
        { "{\"messages\":[{\"role\":\"tool\"}]}", "messages[0].content" },
        { "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":{}}]}", "messages[0].tool_calls" },
        { "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
          "\"arguments\":3}}]}]}",
          "messages[0].tool_calls[0].function.arguments" },
        { "{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":null}]}", "messages[0].content" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":7}]"
          "}",
          "messages[1].content" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":[\"a\"]}]}", "messages[0].content[0]" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":[{\"text\":\"a\"}]}]}",
          "messages[0].content[0].type" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{"
          "\"type\":\"text\"}]}]}",
          "messages[0].content[1].text" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}"
          "]}]}",
          "messages[0].content[0]" },
        { "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{}]}]}",
          "messages[0].tool_calls[0].function.name" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_bad(read_body(BODY_CHAT, bad[i][0]), bad[i][1]);

    assert_int_equal(
        read_body(BODY_CHAT,
                  "{\"messages\":[{\"role\":\"developer\",\"content\":\"be kind\",\"name\":\"x\"},"
                  "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                  "{\"type\":\"text\",\"text\":\"\xc3\xa9\"}]},"
                  "{\"role\":\"assistant\",\"content\":null,\"refusal\":\"no\"}]}"),
        OK);
    assert_int_equal(p.n_msgs, 3);
    assert_true(str_is(p.msgs[0].role, "system"));
    assert_true(str_is(p.msgs[1].content, "a\xc3\xa9"));
    assert_int_equal(p.msgs[2].content.n, 0);
    assert_int_equal(p.n_ignored, 0);
}

static void prompts_come_in_four_forms(void **state)
{
    static const char *const bad[][2] = {
        { "{}", "prompt" },
        { "{\"prompt\":5}", "prompt" },
        { "{\"prompt\":[]}", "prompt" },
        { "{\"prompt\":[[]]}", "prompt[0]" },
        { "{\"prompt\":[null]}", "prompt[0]" },
        { "{\"prompt\":[\"a\",5]}", "prompt[1]" },
        { "{\"prompt\":[5,\"a\"]}", "prompt[1]" },
        { "{\"prompt\":[5,-1]}", "prompt[1]" },
        { "{\"prompt\":[5,1.5]}", "prompt[1]" },
        { "{\"prompt\":[5,2147483648]}", "prompt[1]" },
        { "{\"prompt\":[[5],[6,\"x\"]]}", "prompt[1][1]" },
        { "{\"prompt\":[[5],\"x\"]}", "prompt[1]" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_bad(read_body(BODY_TEXT, bad[i][0]), bad[i][1]);

    assert_int_equal(read_body(BODY_TEXT, "{\"prompt\":\"\"}"), OK);
    assert_int_equal(p.n_prompts, 1);
    assert_non_null(p.prompts[0].text.p);
    assert_int_equal(read_body(BODY_TEXT, "{\"prompt\":[\"a\",\"b\"]}"), OK);
    assert_int_equal(p.n_prompts, 2);
    assert_true(str_is(p.prompts[1].text, "b"));
    assert_int_equal(read_body(BODY_TEXT, "{\"prompt\":[1,2,3]}"), OK);
    assert_int_equal(p.n_prompts, 1);
    assert_int_equal(p.prompts[0].n_ids, 3);
    assert_int_equal(read_body(BODY_TEXT, "{\"prompt\":[[1],[2,3]]}"), OK);
    assert_int_equal(p.n_prompts, 2);
    assert_int_equal(p.prompts[1].ids[1], 3);
}

static void stop_strings_are_limited_and_not_empty(void **state)
{
    char f[400];

    (void)state;
    assert_int_equal(read_chat("\"stop\":\"x\""), OK);
    assert_int_equal(p.n_stops, 1);
    assert_int_equal(read_chat("\"stop\":[\"a\",\"bc\"]"), OK);
    assert_int_equal(p.n_stops, 2);
    assert_true(str_is(p.stops[1], "bc"));
    assert_int_equal(read_chat("\"stop\":[]"), OK);
    assert_int_equal(read_chat("\"stop\":null"), OK);
    assert_bad(read_chat("\"stop\":\"\""), "stop");
    assert_bad(read_chat("\"stop\":5"), "stop");
    assert_bad(read_chat("\"stop\":[\"a\",\"\"]"), "stop[1]");
    assert_bad(read_chat("\"stop\":[\"a\",null]"), "stop[1]");
    assert_bad(read_chat("\"stop\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"), "stop");
    snprintf(f, sizeof f, "\"stop\":\"%0257d\"", 0);
    assert_bad(read_chat(f), "stop");
    snprintf(f, sizeof f, "\"stop\":\"%0256d\"", 0);
    assert_int_equal(read_chat(f), OK);
}

static void logit_bias_takes_ids_and_numbers(void **state)
{
    (void)state;
    assert_int_equal(read_chat("\"logit_bias\":{\"5\":-100,\"7\":1.5}"), OK);
    assert_int_equal(p.sample.n_bias, 2);
    assert_bad(read_chat("\"logit_bias\":[]"), "logit_bias");
    assert_bad(read_chat("\"logit_bias\":{\"x\":1}"), "logit_bias.x");
    assert_bad(read_chat("\"logit_bias\":{\"-5\":1}"), "logit_bias.-5");
    assert_bad(read_chat("\"logit_bias\":{\"5\":101}"), "logit_bias.5");
    assert_bad(read_chat("\"logit_bias\":{\"5\":\"1\"}"), "logit_bias.5");
    assert_int_equal(read_chat("\"logit_bias\":{}"), OK);
}

static void output_constraints_are_read_under_every_alias(void **state)
{
    static const struct {
        const char *fields, *field, *text;
        enum grammar_kind kind;
    } cases[] = {
        { "\"response_format\":{\"type\":\"json_object\"}", "response_format", "", GRAMMAR_OBJECT },
        { "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\","
          "\"strict\":true,\"schema\":{\"type\":\"null\"}}}",
          "response_format.json_schema.schema", "{\"type\":\"null\"}", GRAMMAR_SCHEMA },
        { "\"response_format\":{\"type\":\"json_object\",\"schema\":{\"b\":1,\"a\":2}}",
          "response_format.schema", "{\"b\":1,\"a\":2}", GRAMMAR_SCHEMA },
        { "\"json_schema\":{}", "json_schema", "{}", GRAMMAR_SCHEMA },
        { "\"grammar\":\"root ::= x\"", "grammar", "root ::= x", GRAMMAR_GBNF },
        { "\"guided_json\":\"{}\"", "guided_json", "{}", GRAMMAR_SCHEMA },
        { "\"guided_regex\":\"a+\"", "guided_regex", "a+", GRAMMAR_REGEX },
        { "\"guided_choice\":[\"a\",\"b\"]", "guided_choice", "[\"a\",\"b\"]", GRAMMAR_CHOICE },
        { "\"guided_grammar\":\"g\"", "guided_grammar", "g", GRAMMAR_GBNF },
        { "\"structured_outputs\":{\"regex\":\"x\",\"json\":null}", "structured_outputs.regex", "x",
          GRAMMAR_REGEX },
        { "\"structured_outputs\":{\"json_object\":true}", "structured_outputs.json_object", "",
          GRAMMAR_OBJECT },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(read_chat(cases[i].fields), OK);
        assert_string_equal(p.grammar_field, cases[i].field);
        assert_true(str_is(p.grammar.text, cases[i].text));
        assert_int_equal(p.grammar.kind, cases[i].kind);
    }
    assert_int_equal(read_chat("\"response_format\":{\"type\":\"text\"}"), OK);
    assert_null(p.grammar_field);
}

static void unsupported_fields_are_refused(void **state)
{
    static const char *const bad[][2] = {
        { "\"tools\":[{\"type\":\"function\"}]", "tools[0].function" },
        { "\"tools\":[{\"type\":\"function\",\"function\":{}}]", "tools[0].function.name" },
        { "\"tools\":[{\"type\":\"file_search\"}]", "tools[0].type" },
        { "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":{"
          "\"type\":\"function\","
          "\"function\":{\"name\":\"g\"}}",
          "tool_choice" },
        { "\"tool_choice\":\"sometimes\"", "tool_choice" },
        { "\"tools\":{}", "tools" },
        { "\"tool_choice\":\"required\"", "tool_choice" },
        { "\"tool_choice\":{\"type\":\"function\"}", "tool_choice.function.name" },
        { "\"tool_choice\":3", "tool_choice" },
        { "\"response_format\":{\"type\":\"yaml\"}", "response_format.type" },
        { "\"response_format\":{\"type\":\"json_schema\"}", "response_format.json_schema.schema" },
        { "\"guided_json\":7", "guided_json" },
        { "\"guided_choice\":\"a\"", "guided_choice" },
        { "\"guided_regex\":\"a\",\"grammar\":\"b\"", "grammar" },
        { "\"structured_outputs\":{\"structural_tag\":\"x\"}",
          "structured_outputs.structural_tag" },
        { "\"response_format\":\"json\"", "response_format" },
        { "\"response_format\":{}", "response_format.type" },
        { "\"grammar\":{}", "grammar" },
        { "\"audio\":{\"voice\":\"x\"}", "audio" },
        { "\"modalities\":[\"text\",\"audio\"]", "modalities" },
        { "\"suffix\":\"x\"", "suffix" },
        { "\"best_of\":2", "best_of" },
        { "\"top_logprobs\":3", "top_logprobs" },
        { "\"min_tokens\":5,\"max_tokens\":4", "min_tokens" },
        { "\"stop_token_ids\":[1]", "stop_token_ids" },
        { "\"chat_template_kwargs\":1", "chat_template_kwargs" },
        { "\"chat_template_kwargs\":{\"messages\":[]}", "chat_template_kwargs.messages" },
        { "\"chat_template\":\"x\"", "chat_template" },
        { "\"continue_final_message\":true,\"add_generation_prompt\":true",
          "continue_final_message" },
    };
    static const char *const fine[] = {
        "\"tools\":[]",
        ("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
         "\"tool_choice\":\"none\""),
        "\"tool_choice\":\"auto\"",
        "\"response_format\":{\"type\":\"text\"}",
        "\"modalities\":[\"text\"]",
        "\"suffix\":\"\"",
        "\"best_of\":2,\"n\":2",
        "\"user\":\"u\",\"metadata\":{},\"store\":false,\"service_tier\":\"auto\"",
        "\"mirostat\":0",
        "\"grammar\":null",
        "\"grammar\":\"\"",
        "\"logprobs\":false,\"top_logprobs\":0",
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_bad(read_chat(bad[i][0]), bad[i][1]);
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        assert_int_equal(read_chat(fine[i]), OK);
        assert_int_equal(p.n_ignored, 0);
    }
    assert_bad(read_completion("\"echo\":true,\"logprobs\":1"), "logprobs");
}

static void unknown_fields_are_listed_safely(void **state)
{
    (void)state;
    assert_int_equal(read_chat("\"zap\":1,\"b\\r\\nX-Evil: 1\":2,\"echo\":true"), OK);
    assert_int_equal(p.n_ignored, 3);
    assert_string_equal(buf_cstr(&p.ignored), "zap, b??X-Evil??1, echo");
    assert_false(p.echo);
    params_release(&p);
    for (int i = 0; i < 2; i++) { /* many and long names are truncated */
        char body[8192] = "{\"prompt\":\"x\"", name[200];
        for (int k = 0; k < 30; k++) {
            snprintf(name, sizeof name, ",\"f%02d%0100d\":1", k, 0);
            strncat(body, name, sizeof body - strlen(body) - 2);
        }
        strncat(body, "}", 2);
        assert_int_equal(read_body(BODY_TEXT, body), OK);
        assert_int_equal(p.n_ignored, 30);
        assert_true(p.ignored.n < 800);
    }
}

static void request_parameters_override_those_of_the_model(void **state)
{
    struct sample_opt o = sample_defaults();

    (void)state;
    assert_int_equal(read_chat(""), OK);
    params_sample(&p, &o);
    assert_float_equal(o.temp, 0.8f, 0);
    assert_int_equal(o.repeat_last, 64);
    assert_int_equal(
        read_chat("\"temperature\":0,\"top_k\":-1,\"top_p\":0,\"frequency_penalty\":0.5"), OK);
    params_sample(&p, &o);
    assert_float_equal(o.temp, 0, 0);
    assert_int_equal(o.top_k, 0);
    assert_true(o.top_p > 0);
    assert_float_equal(o.min_p, 0.05f, 0);
    assert_float_equal(o.freq_penalty, 0.5f, 0);
    assert_int_equal(o.repeat_last, 64);
    assert_int_equal(sample_check(&o, 100, &e), OK);
    assert_int_equal(read_chat("\"repetition_penalty\":1.1"), OK);
    params_sample(&p, &o);
    assert_int_equal(o.repeat_last, -1);
    o = sample_defaults();
    assert_int_equal(read_chat("\"repetition_penalty\":1.1,\"repeat_last_n\":8"), OK);
    params_sample(&p, &o);
    assert_int_equal(o.repeat_last, 8);
    o = sample_defaults();
    assert_int_equal(read_chat("\"repeat_penalty\":1.1"), OK);
    params_sample(&p, &o);
    assert_int_equal(o.repeat_last, 64);
}

static void max_completion_tokens_overrides_max_tokens_in_chat(void **state)
{
    (void)state;
    assert_int_equal(read_chat("\"max_tokens\":5,\"max_completion_tokens\":7"), OK);
    assert_int_equal(p.max_tokens, 7);
    assert_int_equal(read_completion("\"max_tokens\":5,\"max_completion_tokens\":7"), OK);
    assert_int_equal(p.max_tokens, 5);
    assert_int_equal(read_completion("\"max_completion_tokens\":7"), OK);
    assert_int_equal(p.max_tokens, 7);
}

static void logprobs_have_a_form_in_chat_and_one_in_completions(void **state)
{
    (void)state;
    assert_int_equal(read_chat(""), OK);
    assert_int_equal(p.n_top, -1);
    assert_int_equal(read_chat("\"logprobs\":true"), OK);
    assert_int_equal(p.n_top, 0);
    assert_int_equal(read_chat("\"top_logprobs\":5,\"logprobs\":true"), OK);
    assert_int_equal(p.n_top, 5);
    assert_int_equal(read_completion("\"logprobs\":3"), OK);
    assert_int_equal(p.n_top, 3);
    assert_int_equal(read_completion("\"logprobs\":0"), OK);
    assert_int_equal(p.n_top, 0);
}

static void priorities_have_names(void **state)
{
    (void)state;
    assert_int_equal(read_chat("\"priority\":\"batch\""), OK);
    assert_int_equal(p.priority, PRIORITY_BATCH);
    assert_int_equal(read_chat("\"priority\":\"interactive\""), OK);
    assert_int_equal(p.priority, PRIORITY_INTERACTIVE);
    assert_int_equal(read_chat("\"priority\":-3"), OK);
    assert_int_equal(p.priority, -3);
}

static void tokenize_and_detokenize_bodies_are_read(void **state)
{
    (void)state;
    assert_int_equal(
        read_body(BODY_TOKENIZE, "{\"content\":\"a\",\"add_special\":true,\"with_pieces\":true}"),
        OK);
    assert_true(str_is(p.text, "a") && p.add_special && p.with_pieces && p.parse_special);
    assert_int_equal(read_body(BODY_TOKENIZE, "{\"text\":\"b\"}"), OK);
    assert_int_equal(read_body(BODY_TOKENIZE, "{\"prompt\":\"\",\"parse_special\":false}"), OK);
    assert_false(p.parse_special);
    assert_bad(read_body(BODY_TOKENIZE, "{}"), "content");
    assert_bad(read_body(BODY_TOKENIZE, "{\"content\":1}"), "content");
    assert_bad(read_body(BODY_TOKENIZE, "{\"content\":\"a\",\"with_pieces\":1}"), "with_pieces");
    assert_int_equal(read_body(BODY_DETOKENIZE, "{\"tokens\":[]}"), OK);
    assert_int_equal(read_body(BODY_DETOKENIZE, "{\"tokens\":[1,2]}"), OK);
    assert_int_equal(p.n_tokens, 2);
    assert_bad(read_body(BODY_DETOKENIZE, "{}"), "tokens");
    assert_bad(read_body(BODY_DETOKENIZE, "{\"tokens\":\"1\"}"), "tokens");
    assert_bad(read_body(BODY_DETOKENIZE, "{\"tokens\":[1,\"2\"]}"), "tokens[1]");
}

static void documents_are_paired_with_the_query_in_any_order_of_fields(void **state)
{
    (void)state;
    assert_int_equal(
        read_body(BODY_RERANK, "{\"documents\":[\"a\",{\"text\":\"b\"}],\"query\":\"q\"}"), OK);
    assert_int_equal(p.n_prompts, 2);
    assert_true(str_is(p.prompts[1].text, "q") && str_is(p.prompts[1].second, "b"));
    assert_true(p.raw_scores && !p.return_documents && p.top_n == 0);
    params_drop_body(&p);
    assert_null(p.prompts);
    assert_int_equal(read_body(BODY_RERANK,
                               "{\"query\":[1,2],\"documents\":[[3],[4,5]],\"top_n\":1,"
                               "\"return_documents\":true,\"raw_scores\":false}"),
                     OK);
    assert_true(p.prompts[1].second_at == 2 && p.prompts[1].n_ids == 2 && p.query.n_ids == 2);
    assert_true(!p.raw_scores && p.return_documents && p.top_n == 1);
    params_drop_body(&p);
    assert_non_null(p.prompts); /* their texts are still to be returned */
    assert_bad(read_body(BODY_RERANK, "{\"documents\":[\"a\"]}"), "query");
    assert_bad(read_body(BODY_RERANK, "{\"query\":\"q\"}"), "documents");
    assert_bad(read_body(BODY_RERANK, "{\"query\":\"q\",\"documents\":[\"a\",[1]]}"),
               "documents[1]");
    assert_bad(read_body(BODY_RERANK, "{\"query\":\"q\",\"documents\":[{\"text\":1}]}"),
               "documents[0]");
    assert_bad(read_body(BODY_RERANK, "{\"query\":[1],\"documents\":[[]]}"), "documents[0]");
}

static void deadlines_are_dates_or_milliseconds(void **state)
{
    static const struct {
        const char *s;
        int64_t ms;
    } good[] = {
        { "0", 0 },
        { "1700000000123", 1700000000123 },
        { "1970-01-01T00:00:00Z", 0 },
        { "2023-11-14T22:13:20.5Z", 1700000000500 },
        { "2023-11-15T00:13:20.1239+02:00", 1700000000123 },
        { "2023-11-14 17:13:20-05:00", 1700000000000 },
        { "2000-02-29t12:00:00z", 951825600000 },
        { " 2024-12-31T23:59:60Z ", 1735689600000 },
    };
    static const char *const bad[] = { "",
                                       "soon",
                                       "2023-11-14",
                                       "2023-11-14T22:13:20",
                                       "2023-02-29T00:00:00Z",
                                       "2023-13-01T00:00:00Z",
                                       "2023-11-14T24:00:00Z",
                                       "2023-11-14T22:13:20.Z",
                                       "2023-11-14T22:13:20+0200",
                                       "2023-11-14T22:13:20Zx",
                                       "1e3",
                                       "99999999999999999999" };
    int64_t ms;

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(deadline_parse(str_c(good[i].s), &ms));
        assert_int_equal(ms, good[i].ms);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(deadline_parse(str_c(bad[i]), &ms));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bodies_that_are_not_json_are_refused_with_line_and_column),
        cmocka_unit_test(deep_and_large_bodies_are_refused),
        cmocka_unit_test(documents_are_paired_with_the_query_in_any_order_of_fields),
        cmocka_unit_test(seeds_are_any_64_bits),
        cmocka_unit_test(integers_beyond_64_bits_are_numbers_out_of_range),
        cmocka_unit_test(reading_ends_early_when_it_is_asked_to),
        cmocka_unit_test(a_body_to_execute_is_a_chat_if_it_has_messages),
        cmocka_unit_test(the_parsed_body_is_dropped_unless_it_is_still_read),
        cmocka_unit_test(every_number_has_its_range),
        cmocka_unit_test(wrong_types_are_named_by_field),
        cmocka_unit_test(integers_may_be_written_as_reals),
        cmocka_unit_test(messages_are_checked_to_their_parts),
        cmocka_unit_test(prompts_come_in_four_forms),
        cmocka_unit_test(stop_strings_are_limited_and_not_empty),
        cmocka_unit_test(logit_bias_takes_ids_and_numbers),
        cmocka_unit_test(output_constraints_are_read_under_every_alias),
        cmocka_unit_test(unsupported_fields_are_refused),
        cmocka_unit_test(unknown_fields_are_listed_safely),
        cmocka_unit_test(request_parameters_override_those_of_the_model),
        cmocka_unit_test(max_completion_tokens_overrides_max_tokens_in_chat),
        cmocka_unit_test(logprobs_have_a_form_in_chat_and_one_in_completions),
        cmocka_unit_test(priorities_have_names),
        cmocka_unit_test(tokenize_and_detokenize_bodies_are_read),
        cmocka_unit_test(deadlines_are_dates_or_milliseconds),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
