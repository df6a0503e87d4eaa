/* Parsing of model output into text, reasoning and tool calls, in the format of each model
 * family. Every case is parsed at once, byte by byte, and cut at every position; the result must
 * be the same.
 *
 * Expected results are written by hand. Real chat templates of ../shared select their families
 * (skipped without them). */
#include "support.h"

#include "toolcall/toolparse.h"
#include "base/file.h"

#include <stdio.h>
#include <string.h>

/* The parsed output as one text: "R:" reasoning, "T:" text, "C:" name, "#" id and arguments of a
 * call. Adjacent pieces of one kind are joined. */
struct seen {
    struct buf all;
    char last;
};

static void add_piece(struct seen *s, char kind, struct str text)
{
    if (s->last != kind) buf_printf(&s->all, "%s%c:", s->all.n ? " | " : "", kind);
    s->last = kind;
    buf_put_str(&s->all, text);
}

static void on_text(void *arg, struct str text)
{
    assert_true(text.n > 0);
    add_piece(arg, 'T', text);
}

static void on_think(void *arg, struct str text)
{
    assert_true(text.n > 0);
    add_piece(arg, 'R', text);
}

static void on_call(void *arg, struct str name, struct str id)
{
    struct seen *s = arg;

    s->last = 0;
    add_piece(s, 'C', name);
    if (id.n) buf_printf(&s->all, " #%.*s", STR_ARG(id));
    buf_putc(&s->all, ' ');
    s->last = 'A';
}

static void on_args(void *arg, struct str piece)
{
    struct seen *s = arg;

    assert_true(piece.n > 0);
    assert_int_equal(s->last, 'A'); /* arguments follow their call directly */
    buf_put_str(&s->all, piece);
}

static json_t *make_tools(void)
{
    static const char text[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{"
        "\"type\":\"object\",\"$defs\":{\"P\":{\"type\":\"object\",\"properties\":{\"x\":{"
        "\"type\":\"number\"},\"s\":{\"type\":\"string\"}}}},\"properties\":{"
        "\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},"
        "\"zip\":{\"type\":\"string\"},\"dry\":{\"type\":\"boolean\"},"
        "\"note\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},"
        "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},"
        "\"at\":{\"$ref\":\"#/$defs/P\"}}}}}]";

    return json_loads(text, 0, NULL);
}

/* Parses the answer in two pieces, cut at `cut` (-1: byte by byte), and compares the result. */
static void check_cut(const char *template, const char *prompt, const char *answer,
                      const char *want, long cut)
{
    const struct toolparse_out out = { on_text, on_think, on_call, on_args, NULL };
    struct toolparse_out mine = out;
    struct seen seen = { 0 };
    struct toolparse p;
    json_t *tools = make_tools();
    size_t n = strlen(answer);

    mine.arg = &seen;
    toolparse_init(&p, toolfamily_find(str_c(template)), toolfamily_find_reasoning(str_c(template)),
                   tools, str_c(prompt), &mine);
    if (cut < 0) {
        for (size_t i = 0; i < n; i++) toolparse_push(&p, str_of(answer + i, 1));
    } else {
        toolparse_push(&p, str_of(answer, (size_t)cut));
        toolparse_push(&p, str_of(answer + cut, n - (size_t)cut));
    }
    toolparse_end(&p);
    if (strcmp(buf_cstr(&seen.all), want))
        fail_msg("cut at %ld of '%s':\n expected %s\n got      %s", cut, answer, want,
                 buf_cstr(&seen.all));
    toolparse_release(&p);
    buf_release(&seen.all);
    json_decref(tools);
}

static void check_output(const char *template, const char *prompt, const char *answer,
                         const char *want)
{
    for (long cut = -1; cut <= (long)strlen(answer); cut++)
        check_cut(template, prompt, answer, want, cut);
}

#define QWEN "tools <tool_call> {\"name\"} <think>"
#define LLAMA "tools <|start_header_id|> {\"name\": function name, \"parameters\": x}"
#define MISTRAL "tools [TOOL_CALLS] [THINK]"
#define DEEPSEEK "tools <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>x<｜tool▁sep｜> </think>"
#define W "{\"city\": \"Z\xc3\xbcrich\", \"days\": 2}"

static void json_between_markers_is_a_call(void **state)
{
    (void)state;
    check_output(QWEN, "", "Hello.", "T:Hello.");
    check_output(QWEN, "", "a < b <tool and more \n", "T:a < b <tool and more \n");
    check_output(QWEN, "",
                 "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": " W "}\n</tool_call>",
                 "C:get_weather " W);
    check_output(QWEN, "",
                 "Let me see.\n\n<tool_call>\n{\"name\": \"a\", \"arguments\": "
                 "{}}\n</tool_call>\n<tool_call>\n"
                 "{\"name\": \"b\", \"arguments\": {\"x\": [1, {\"y\": \"}]\"}]}}\n</tool_call>\n",
                 "T:Let me see. | C:a {} | C:b {\"x\": [1, {\"y\": \"}]\"}]}");
    check_output(QWEN, "",
                 "<tool_call>{\"arguments\": \"{\\\"a\\\": 1}\", \"name\": \"f\", \"id\": "
                 "\"x1\"}</tool_call>",
                 "C:f #x1 {\"a\": 1}");
    check_output(QWEN, "",
                 "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"</tool_call> \\\" "
                 "{\"}}</tool_call> done",
                 "C:f {\"s\": \"</tool_call> \\\" {\"} | T:done");
    check_output("<|tool_call|> tools", "",
                 "<|tool_call|>[{\"name\": \"a\", \"arguments\": {\"x\": 1}}, {\"name\": \"b\", "
                 "\"arguments\": {}}]",
                 "C:a {\"x\": 1} | C:b {}");
    check_output(
        "<|START_ACTION|> <|START_THINKING|>", "",
        "<|START_THINKING|>I look.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", "
        "\"tool_name\": \"f\", "
        "\"parameters\": {\"q\": \"x\"}}\n]<|END_ACTION|>",
        "R:I look. | C:f #0 {\"q\": \"x\"}");
    check_output("<|START_ACTION|> <|START_THINKING|>", "",
                 "<|START_RESPONSE|>Hello!<|END_RESPONSE|>", "T:Hello!");
    check_output("<|tools_prefix|>", "", "<|tools_prefix|>[{\"f\": {\"a\": 1}}]<|tools_suffix|>",
                 "C:f {\"a\": 1}");
}

static void text_that_is_not_a_call_stays_text(void **state)
{
    (void)state;
    check_output(QWEN, "", "<tool_call>nothing</tool_call>!", "T:<tool_call>nothing!");
    check_output(QWEN, "", "x <tool_call>\n{\"name\": \"f\", \"argu",
                 "T:x <tool_call>\n{\"name\": \"f\", \"argu");
    check_output(QWEN, "", "<tool_call>\n{\"nam\": 1}\n</tool_call>",
                 "T:<tool_call>\n{\"nam\": 1}\n");
    check_output(QWEN, "", "<tool_call>", "T:<tool_call>");
    check_output(LLAMA, "", "[]", "T:[]");
    check_output(LLAMA, "", " [ ] is empty", "T: [ ] is empty");
    check_output(LLAMA, "", "{\"temperature\": 3}", "T:{\"temperature\": 3}");
    check_output(LLAMA, "", "{not json} at all", "T:{not json} at all");
    check_output(LLAMA, "", "Use {\"name\": \"f\", \"parameters\": {}}",
                 "T:Use {\"name\": \"f\", \"parameters\": {}}");
}

static void llama_calls_are_bare_json(void **state)
{
    (void)state;
    check_output(LLAMA, "", "{\"name\": \"get_weather\", \"parameters\": " W "}",
                 "C:get_weather " W);
    check_output(
        LLAMA, "",
        "<|python_tag|>{\"type\": \"function\", \"name\": \"a\", \"parameters\": {\"x\": \"1\"}}",
        "C:a {\"x\": \"1\"}");
    check_output(LLAMA, "",
                 " {\"name\": \"a\", \"parameters\": {}}; {\"name\": \"b\", \"parameters\": {}}",
                 "C:a {} | C:b {}");
    check_output(LLAMA, "", "Hi {there}", "T:Hi {there}");
}

static void both_formats_of_mistral_are_parsed(void **state)
{
    (void)state;
    check_output(
        MISTRAL, "",
        "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"abcdefghi\"}]",
        "C:f #abcdefghi {\"a\": 1}");
    check_output(
        MISTRAL, "",
        "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]",
        "C:f {} | C:g {}");
    check_output(MISTRAL, "", "[TOOL_CALLS]get_weather[ARGS]" W "[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}",
                 "C:get_weather " W " | C:g #abc {}");
    check_output(MISTRAL, "", "[TOOL_CALLS]f{\"x\": [1]}", "C:f {\"x\": [1]}");
    check_output(MISTRAL, "", "[THINK]well[/THINK]Yes [1].", "R:well | T:Yes [1].");
}

static void both_formats_of_deepseek_are_parsed(void **state)
{
    (void)state;
    check_output(
        DEEPSEEK, "<｜Assistant｜><think>\n",
        "Hm.\n</think>\n\nI "
        "ask.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```"
        "json\n" W "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "R:Hm. | T:I ask. | C:get_weather " W);
    check_output(DEEPSEEK, "<｜Assistant｜></think>",
                 "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{\"x\": "
                 "1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>b<｜tool▁sep｜>{}"
                 "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                 "C:a {\"x\": 1} | C:b {}");
    check_output(
        "<|tool_call_argument_begin|>", "",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_"
        "argument_begin|>"
        "{\"a\": 1}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        "C:get_weather #functions.get_weather:0 {\"a\": 1}");
}

static void tagged_arguments_become_json_with_the_types_of_the_schema(void **state)
{
    static const char coder[] = "<tool_call> <function= <parameter=",
                      glm[] = "<tool_call> <arg_key> <think>";

    (void)state;
    check_output(
        coder, "",
        "Sure.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nA "
        "\"b\"\nc\n</parameter>\n<parameter=days>\n2\n"
        "</parameter>\n<parameter=zip>\n0123\n</parameter>\n</function>\n</tool_call>",
        "T:Sure. | C:get_weather {\"city\":\"A \\\"b\\\"\\nc\",\"days\":2,\"zip\":\"0123\"}");
    check_output(
        coder, "",
        "<tool_call>\n<function=other>\n<parameter=code>\nprint(\"</function>\")\n</parameter>\n</"
        "function>\n</tool_call>",
        "C:other {\"code\":\"print(\\\"</function>\\\")\"}");
    check_output(coder, "", "<function=f>\n</function>", "C:f {}");
    check_output(
        glm, "",
        "<think>hm</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>12</"
        "arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>",
        "R:hm | C:get_weather {\"city\":\"12\",\"days\":3}");
    check_output(glm, "", "<tool_call>f</tool_call>", "C:f {}");
    check_output("<invoke name= minimax:tool_call", "",
                 "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">x</parameter>\n"
                 "<parameter name=\"b\">[1, 2]</parameter>\n</invoke>\n</minimax:tool_call>",
                 "C:f {\"a\":\"x\",\"b\":[1, 2]}");
    check_output("<function= </function>", "", "<function=f>{\"a\": 1}</function>",
                 "C:f {\"a\": 1}");
    check_output(
        "<|tool_call_start|>", "",
        "<|tool_call_start|>[get_weather(city=\"Z\xc3\xbcrich\", days=2), g(x=[1, 'a'], y=None, "
        "z={'k': "
        "True})]"
        "<|tool_call_end|>Asked.",
        "C:get_weather {\"city\":\"Z\xc3\xbcrich\",\"days\":2} | C:g "
        "{\"x\":[1,\"a\"],\"y\":null,\"z\":{\"k\":true}} | T:Asked.");
}

static void formats_of_other_families_are_parsed(void **state)
{
    (void)state;
    check_output(
        "Action: ```json", "",
        "Action:\n```json\n[\n    {\n        \"tool_name\": \"f\",\n        \"parameters\": "
        "{\"q\": 1}\n   "
        " }\n]\n```",
        "C:f {\"q\": 1}");
    check_output("List of tools: ", "", "<|tool_call_start|>[f(a='x')]<|tool_call_end|>",
                 "C:f {\"a\":\"x\"}");
    check_output("func_name1(", "", "[get_weather(city=\"Bern\", days=2)]",
                 "C:get_weather {\"city\":\"Bern\",\"days\":2}");
    check_output("func_name1(", "", "[1] is a number", "T:[1] is a number");
    check_output("tools \"name\"", "", "[{\"name\": \"f\", \"arguments\": {}}]", "C:f {}");
    check_output(
        "<|tool_call:begin|> <|tool_call:args|>", "",
        "<|tool_call:begin|>a1b2<|tool_call:name|>f<|tool_call:args|>{\"x\": 1}<|tool_call:end|>",
        "C:f #a1b2 {\"x\": 1}");
    check_output("<|tool_call>call: <|channel>", "",
                 "<|channel>thought\nHm.<channel|><|tool_call>call:f{a:<|\"|>x, "
                 "{y}<|\"|>,b:[1,<|\"|>q<|\"|>],c:{d:true}}<tool_call|>",
                 "R:Hm. | C:f {\"a\":\"x, {y}\",\"b\":[1,\"q\"],\"c\":{\"d\":true}}");
    check_output(
        "<start_function_call>", "",
        "<start_function_call>call:f{city:<escape>Z\xc3\xbcrich<escape>}<end_function_call>",
        "C:f {\"city\":\"Z\xc3\xbcrich\"}");
    check_output(
        "<|action_start|><|plugin|>", "",
        "I ask.<|action_start|><|plugin|>\n{\"name\": \"f\", \"parameters\": {}}<|action_end|>",
        "T:I ask. | C:f {}");
}

static void formats_of_newer_families_are_parsed(void **state)
{
    (void)state;
    check_output(
        "DSML invoke name= </think>", "<think></think>",
        "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter "
        "name=\"city\" string=\"true\">12"
        "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" "
        "string=\"false\">[\"</｜DSML｜parameter>\"]</｜DSML｜parameter>\n"
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "C:get_weather {\"city\":\"12\",\"days\":[\"</｜DSML｜parameter>\"]}");
    check_output(
        "tool_call hy_eos <think{}>", "",
        "<think:opensource>hm</"
        "think:opensource><tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:"
        "opensource>\n"
        "<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>2</"
        "arg_value:opensource>\n</tool_call:opensource>\n"
        "</tool_calls:opensource>",
        "R:hm | C:get_weather {\"days\":2}");
    check_output(
        "<|open|> <|close|>", "<|open|>think<|sep|>",
        "Hm.<|close|>think<|sep|><|open|>response<|sep|>I "
        "ask.<|close|>response<|sep|><|open|>tools<|sep|><|open|>call "
        "tool=\"get_weather\" index=\"1\"<|sep|><|open|>argument key=\"city\" "
        "type=\"string\"<|sep|>Bern<|close|>argument<|sep|>"
        "<|open|>argument key=\"days\" "
        "type=\"number\"<|sep|>2<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        "R:Hm. | T:I ask. | C:get_weather {\"city\":\"Bern\",\"days\":2}");
    check_output("]<]minimax[>[ <invoke name=", "",
                 "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke "
                 "name=\"get_weather\">]<]minimax[>[<city>Bern]<]minimax[>[</city>]<]minimax[>["
                 "<days>2]<]minimax[>[</days>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
                 "C:get_weather {\"city\":\"Bern\",\"days\":2}");
    check_output(
        "<function name= <param name=", "",
        "<function name=\"get_weather\"><param name=\"city\"><![CDATA[a < b]]></param><param "
        "name=\"days\">2</param></function>",
        "C:get_weather {\"city\":\"a < b\",\"days\":2}");
    check_output("<tool_calls>", "",
                 "<tool_calls>\n{\"name\": \"get_weather\", \"arguments\": {}}\n{\"name\": \"b\", "
                 "\"arguments\": {}}\n</tool_calls>",
                 "C:get_weather {} | C:b {}");
    check_output("function call <|role_sep|>", "",
                 "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"get_weather\", "
                 "\"arguments\": {\"a\": 1}}<|message_sep|>\n\n",
                 "C:get_weather {\"a\": 1}");
    check_output(
        "<|python_start|> tools", "",
        "<|python_start|><|python_end|>{\"name\": \"get_weather\", \"parameters\": {}}{\"name\": "
        "\"b\", \"parameters\": {}}",
        "C:get_weather {} | C:b {}");
}

static void values_without_quotes_get_the_types_of_the_schema(void **state)
{
    static const char coder[] = "<tool_call> <function= <parameter=";

    (void)state;
    check_output(coder, "",
                 "<tool_call>\n<function=get_weather>\n<parameter=dry>\nFalse\n</parameter>\n"
                 "<parameter=tags>\n['a', \"it's\", None]\n</parameter>\n<parameter=at>\n"
                 "{'x': 1.5, 'ok': True}\n</parameter>\n</function>\n</tool_call>",
                 "C:get_weather {\"dry\":false,\"tags\":[\"a\",\"it's\",null],"
                 "\"at\":{\"x\":1.5,\"ok\":true}}");
    /* strings stay strings, whatever they look like; of a nullable one null is none */
    check_output(
        coder, "",
        "<function=get_weather><parameter=city>True</parameter><parameter=note>12</parameter>"
        "<parameter=zip>null</parameter></function>",
        "C:get_weather {\"city\":\"True\",\"note\":\"12\",\"zip\":\"null\"}");
    check_output(coder, "",
                 "<function=get_weather><parameter=note>None</parameter><parameter=days>soon"
                 "</parameter><parameter=dry>\"no\"</parameter></function>",
                 "C:get_weather {\"note\":null,\"days\":\"soon\",\"dry\":\"no\"}");
    check_output(coder, "",
                 "<function=get_weather><parameter=note>\"so\"</parameter><parameter=more>True"
                 "</parameter></function>",
                 "C:get_weather {\"note\":\"so\",\"more\":\"True\"}");
    check_output(
        "<start_function_call>", "",
        "<start_function_call>call:get_weather{city:<escape>7<escape>,days:<escape>7<escape>,"
        "dry:<escape>True<escape>}<end_function_call>",
        "C:get_weather {\"city\":\"7\",\"days\":7,\"dry\":true}");
    check_output("<|tool_call>call:", "",
                 "<|tool_call>call:get_weather{at:{x:None,s:<|\"|>7<|\"|>},days:2}<tool_call|>",
                 "C:get_weather {\"at\":{\"x\":null,\"s\":\"7\"},\"days\":2}");
}

static void formats_of_2026_are_parsed(void **state)
{
    static const char solar[] =
        "<|begin|>assistant<|think|> <|tool_call:begin|> <|tool_call:args|> <|tool_calls|>";

    (void)state;
    check_output("<longcat_tool_call> <longcat_think>", "<longcat_think>\n",
                 "Hm.\n</longcat_think>\n<longcat_tool_call>\n{\"name\": \"get_weather\", "
                 "\"arguments\": " W "}\n</longcat_tool_call>",
                 "R:Hm. | C:get_weather " W);
    check_output(
        "<longcat_tool_call> <longcat_arg_key>", "",
        "Yes.<longcat_tool_call>get_weather\n<longcat_arg_key>city</longcat_arg_key>\n"
        "<longcat_arg_value>12</longcat_arg_value>\n<longcat_arg_key>days</longcat_arg_key>\n"
        "<longcat_arg_value>3</longcat_arg_value>\n</longcat_tool_call>",
        "T:Yes. | C:get_weather {\"city\":\"12\",\"days\":3}");
    check_output("<function= <parameter=example_parameter_1>value_1</parameter>", "",
                 "<tool_call>\n<function=get_weather>\n<parameter=city>\nBern\n</parameter>\n"
                 "</function>\n</tool_call>",
                 "C:get_weather {\"city\":\"\\nBern\\n\"}");
    check_output("<function_calls>", "",
                 "I ask.<function_calls>get_weather(city=\"Bern\", days=2, dry=true)\nother(x=null)"
                 "</function_calls>",
                 "T:I ask. | C:get_weather {\"city\":\"Bern\",\"days\":2,\"dry\":true} | C:other "
                 "{\"x\":null}");
    check_output("<invoke name= <dots_function_call>", "",
                 "<dots_function_call>\n<invoke name=\"get_weather\">\n<parameter name=\"days\">2"
                 "</parameter>\n</invoke>\n</dots_function_call>",
                 "C:get_weather {\"days\":2}");
    check_output(
        "<|tool_call_start|>", "",
        "<|tool_call_start|>\n```python\nget_weather(days=2)\nother()\n```\n<|tool_call_end|>",
        "C:get_weather {\"days\":2} | C:other {}");
    check_output("<tool_calls> <|extra_0|> <think>", "",
                 "<think>\nHm.\n</think>\n<answer>\nHello.\n</answer>", "R:Hm. | T:Hello.\n");
    check_output("<tool_call> <response>\\n <think>", "<think>\n",
                 "Hm.\n</think>\n\n<response>\nHello.\n</response>\n", "R:Hm. | T:Hello.\n\n");
    check_output("]<]minimax[>[ <invoke name= <mm:think>", "",
                 "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"get_weather\">"
                 "]<]minimax[>[<tags>]<]minimax[>[<item>a]<]minimax[>[</item>]<]minimax[>[<item>2"
                 "]<]minimax[>[</item>]<]minimax[>[</tags>]<]minimax[>[<at>]<]minimax[>[<x>1.5"
                 "]<]minimax[>[</x>]<]minimax[>[<in>]<]minimax[>[<in>true]<]minimax[>[</in>"
                 "]<]minimax[>[</in>]<]minimax[>[</at>]<]minimax[>[<city>7]<]minimax[>[</city>"
                 "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
                 "C:get_weather {\"tags\":[\"a\",\"2\"],\"at\":{\"x\":1.5,\"in\":{\"in\":true}},"
                 "\"city\":\"7\"}");
    check_output(solar, "<|end|><|begin|>assistant",
                 "<|think|>Hm.<|end|><|begin|>assistant<|content|>Hello.", "R:Hm. | T:Hello.");
    check_output(solar, "<|think|><|end|><|begin|>assistant",
                 "<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>f<|tool_call:args|>{}"
                 "<|tool_call:end|><|calls|>",
                 "C:f #a1 {}");
    check_output(
        "<|python_start|> tools", "",
        "<|python_start|>I ask.<|python_end|>{\"name\": \"get_weather\", \"parameters\": {}}",
        "T:I ask. | C:get_weather {}");
    check_output("<|python_start|> tools", "",
                 "<|python_start|>[get_weather(days=2)]<|python_end|>",
                 "C:get_weather {\"days\":2}");
    /* a mark that is a special token begins reasoning after text too */
    check_output("<|tool_call>call: <|channel>", "", "First.<|channel>thought\nHm.<channel|>Then.",
                 "T:First. | R:Hm. | T:Then.");
    check_output("[BEGIN FINAL RESPONSE]", "<|assistant|>\nHere are my reasoning steps:\n",
                 "Hm.\n[BEGIN FINAL RESPONSE]\nHello.", "R:Hm. | T:Hello.");
    check_output("Here is my thought process:", "",
                 "Here is my thought process: Hm. Here is my response: Hello.", "R:Hm. | T:Hello.");
}

static void arguments_are_streamed_before_they_are_complete(void **state)
{
    const struct toolparse_out out = { on_text, on_think, on_call, on_args, NULL };
    struct toolparse_out mine = out;
    struct seen seen = { 0 };
    struct toolparse p;
    json_t *tools = make_tools();

    (void)state;
    mine.arg = &seen;
    toolparse_init(&p, toolfamily_find(str_c(QWEN)), NULL, tools, STR(""), &mine);
    toolparse_push(&p,
                   STR("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zu"));
    assert_string_equal(buf_cstr(&seen.all), "C:get_weather {\"city\": \"Zu");
    toolparse_push(&p, STR("g\nx")); /* a raw newline, which JSON does not allow */
    assert_string_equal(buf_cstr(&seen.all), "C:get_weather {\"city\": \"Zug\\nx");
    toolparse_end(&p);
    assert_true(p.cut);
    toolparse_release(&p);
    buf_release(&seen.all);
    json_decref(tools);
}

static void channels_of_harmony_are_separated(void **state)
{
    static const char t[] = "<|start|> <|channel|>";

    (void)state;
    check_output(
        t, "<|start|>assistant",
        "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>final<|message|>"
        "Hi!",
        "R:Think. | T:Hi!");
    check_output(
        t, "<|start|>assistant",
        "<|channel|>analysis<|message|>Need it.<|end|><|start|>assistant<|channel|>commentary "
        "to=functions.get_weather "
        "<|constrain|>json<|message|>" W "<|call|>",
        "R:Need it. | C:get_weather " W);
    check_output(t, "<|start|>assistant",
                 "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\":1}",
                 "C:f {\"a\":1}");
    check_output(t, "<|start|>assistant",
                 " to=functions.f<|channel|>commentary json<|message|>{}<|call|>", "C:f {}");
    check_output(t, "<|start|>assistant", "<|channel|>commentary<|message|>I will look.<|end|>",
                 "T:I will look.");
    check_output(t, "<|start|>assistant",
                 "<|channel|>commentary to=functions.f<|message|>{\"a\": ", "T:{\"a\":");
    check_output(t, "<|start|>assistant", "plain words", "T:plain words");
}

static void reasoning_is_separated_from_text(void **state)
{
    (void)state;
    check_output(QWEN, "", "<think>\nOne.\n\nTwo.\n</think>\n\nAnswer\n",
                 "R:One.\n\nTwo. | T:Answer\n");
    check_output(QWEN, "<|im_start|>assistant\n<think>\n", "One.</think>Answer",
                 "R:One. | T:Answer");
    check_output(QWEN, "<think>\n\n</think>\n\n", "Answer", "T:Answer");
    check_output(QWEN, "", "<think>\n\n</think>\n\nAnswer", "T:Answer");
    check_output(QWEN, "", "<think>never ends", "R:never ends");
    check_output(QWEN, "", "The <think> tag", "T:The <think> tag");
    check_output(QWEN, "<think>",
                 "Hm</think>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
                 "R:Hm | C:f {}");
}

static void templates_of_real_models_select_their_family(void **state)
{
    static const struct {
        const char *file, *family, *think;
    } want[] = {
        { "Qwen-Qwen2.5-7B-Instruct", "hermes", NULL },
        { "Qwen-Qwen3-0.6B", "hermes", "<think>" },
        { "Qwen3-Coder", "qwen3-coder", NULL },
        { "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes", NULL },
        { "meta-llama-Llama-3.1-8B-Instruct", "llama3", NULL },
        { "meta-llama-Llama-3.2-3B-Instruct", "llama3", NULL },
        { "mistralai-Mistral-Nemo-Instruct-2407", "mistral", NULL },
        { "Mistral-Small-3.2-24B-Instruct-2506", "mistral", NULL },
        { "deepseek-ai-DeepSeek-V3.1", "deepseek", "<think>" },
        { "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek", "<think>" },
        { "ibm-granite-granite-3.3-2B-Instruct", "granite", "<think>" },
        { "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "command-r7b", "<|START_THINKING|>" },
        { "openai-gpt-oss-120b", "harmony", NULL },
        { "GLM-4.6", "glm", "<think>" },
        { "Kimi-K2-Instruct", "kimi", NULL },
        { "HuggingFaceTB-SmolLM3-3B", NULL, "<think>" },
        { "google-gemma-2-2b-it", NULL, NULL },
        { "microsoft-Phi-3.5-mini-instruct", NULL, NULL },
    };

    (void)state;
    need_shared("fixtures/chat/cases.json");
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const struct toolfamily *f;
        const struct reasoning_format *t;
        struct buf text = { 0 };
        struct err e = { 0 };
        char path[200];
        snprintf(path, sizeof path, "fixtures/chat/%s.jinja", want[i].file);
        if (file_read(&text, shared(path), 1 << 20, &e) != OK) fail_msg("%s", e.msg);
        f = toolfamily_find(buf_str(&text));
        t = toolfamily_find_reasoning(buf_str(&text));
        if (strcmp(f ? f->name : "", want[i].family ? want[i].family : "") ||
            strcmp(t ? t->open : "", want[i].think ? want[i].think : ""))
            fail_msg("%s: %s, %s", want[i].file, f ? f->name : "none", t ? t->open : "none");
        buf_release(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_between_markers_is_a_call),
        cmocka_unit_test(text_that_is_not_a_call_stays_text),
        cmocka_unit_test(llama_calls_are_bare_json),
        cmocka_unit_test(both_formats_of_mistral_are_parsed),
        cmocka_unit_test(both_formats_of_deepseek_are_parsed),
        cmocka_unit_test(tagged_arguments_become_json_with_the_types_of_the_schema),
        cmocka_unit_test(formats_of_other_families_are_parsed),
        cmocka_unit_test(formats_of_newer_families_are_parsed),
        cmocka_unit_test(values_without_quotes_get_the_types_of_the_schema),
        cmocka_unit_test(formats_of_2026_are_parsed),
        cmocka_unit_test(arguments_are_streamed_before_they_are_complete),
        cmocka_unit_test(channels_of_harmony_are_separated),
        cmocka_unit_test(reasoning_is_separated_from_text),
        cmocka_unit_test(templates_of_real_models_select_their_family),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
