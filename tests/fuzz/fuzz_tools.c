/* Fuzz target: an arbitrary model output, parsed for tool calls and reasoning in the format of
 * each family. The result does not depend on where the text is cut into pieces. */
#include "toolcall/toolparse.h"
#include "base/mem.h"

#include <stdint.h>

static const char *const templates[] = {
    "<tool_call> <think>",
    "<|start_header_id|> \"parameters\"",
    "[TOOL_CALLS] [THINK]",
    "<｜tool▁call▁begin｜> <｜tool▁sep｜> </think>",
    "<|tool_call_argument_begin|>",
    "<tool_call> <arg_key> <think>",
    "<function= <parameter=",
    "<invoke name= minimax:tool_call",
    "<|tool_call_start|>",
    "<|start|> <|channel|>",
    "<|START_ACTION|> <|START_THINKING|>",
    "<|tool_call|>",
    "<|tools_prefix|>",
    "<|tool_call>call: <|channel>",
    "<|tool_call:begin|> <|tool_call:args|>",
    "Action: ```json",
    "func_name1(",
    "DSML invoke name= </think>",
    "tool_call hy_eos",
    "<|open|> <|close|>",
    "]<]minimax[>[ <invoke name=",
    "<function name= <param name=",
    "function call <|role_sep|>",
    "<|python_start|>",
    "<tool_calls>",
    "<longcat_tool_call> <longcat_arg_key> <longcat_think>",
    "<longcat_tool_call>",
    "<function= <parameter=example_parameter_1>value_1</parameter>",
    "<function_calls>",
    "<invoke name= <dots_function_call>",
    "<|begin|>assistant<|think|> <|tool_call:begin|> <|tool_call:args|>",
    "<tool_call> <|extra_0|> <think>",
    "<start_function_call>",
};

/* Every type of argument, a reference, and one that never ends. */
static const char tools_text[] =
    "[{\"function\":{\"name\":\"f\",\"parameters\":{\"$defs\":{\"P\":{\"properties\":{\"x\":{"
    "\"type\":\"number\"},\"y\":{\"$ref\":\"#/$defs/P\"}}},\"Q\":{\"$ref\":\"#/$defs/Q\"}},"
    "\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":\"integer\"},\"c\":{\"type\":"
    "\"boolean\"},\"d\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},\"e\":{\"type\":"
    "\"array\",\"items\":{\"type\":\"string\"}},\"p\":{\"$ref\":\"#/$defs/P\"},\"q\":{\"$ref\":"
    "\"#/$defs/Q\"},\"g\":{\"enum\":[1,\"1\",null]}}}}}]";

static void add_piece(struct buf *b, char kind, struct str text)
{
    if (!b->n || b->p[0] != kind) { /* the first byte of b is the kind of the last piece */
        buf_putc(b, '\n');
        buf_putc(b, kind);
        b->p[0] = kind;
    }
    buf_put_str(b, text);
}

static void on_text(void *arg, struct str text) { add_piece(arg, 'T', text); }
static void on_think(void *arg, struct str text) { add_piece(arg, 'R', text); }

static void on_call(void *arg, struct str name, struct str id)
{
    struct buf *b = arg;

    if (!name.n) __builtin_trap();
    add_piece(b, 'C', name);
    buf_put_str(b, id);
    buf_putc(b, ' ');
    b->p[0] = 'c';
}

static void on_args(void *arg, struct str piece)
{
    if (((struct buf *)arg)->p[0] != 'c') __builtin_trap(); /* arguments without a call */
    buf_put_str(arg, piece);
}

static void parse_output(const char *template, struct str text, size_t chunk, const json_t *tools,
                         struct buf *out)
{
    const struct toolparse_out o = { on_text, on_think, on_call, on_args, out };
    struct toolparse p;

    buf_putc(out, ' ');
    toolparse_init(&p, toolfamily_find(str_c(template)), toolfamily_find_reasoning(str_c(template)),
                   tools, STR(""), &o);
    while (text.n) {
        toolparse_push(&p, str_take(text, chunk));
        text = str_skip(text, chunk);
    }
    toolparse_end(&p);
    toolparse_release(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *template =
        n ? templates[data[0] % (sizeof templates / sizeof *templates)] : templates[0];
    json_t *tools = json_loads(tools_text, 0, NULL);
    struct buf whole = { 0 }, parts = { 0 };
    char *copy;

    if (n > 3000) n = 3000;
    copy = mem_dup(n ? (const char *)data + 1 : "", n ? n - 1 : 0);
    parse_output(template, str_of(copy, n ? n - 1 : 0), n ? n : 1, tools, &whole);
    parse_output(template, str_of(copy, n ? n - 1 : 0), n ? 1 + data[0] / 29 % 7 : 1, tools,
                 &parts);
    if (!str_eq(buf_str(&whole), buf_str(&parts))) __builtin_trap();
    buf_release(&whole);
    buf_release(&parts);
    mem_free(copy);
    json_decref(tools);
    return 0;
}
