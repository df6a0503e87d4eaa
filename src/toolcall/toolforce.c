#include "toolcall/toolforce.h"

#include "base/mem.h"

#include <stdlib.h>

#define NAMED "{\"name\": \"", "\", \"arguments\": ", "}"

#define DSML                                                                                 \
    .before = "<｜DSML｜invoke name=\"", .between = "\">\n", .after = "</｜DSML｜invoke>\n", \
    .key = "<｜DSML｜parameter name=\"", .is = "\" string=\"true\">",                        \
    .is_json = "\" string=\"false\">", .end = "</｜DSML｜parameter>\n",                      \
    .until = "</｜DSML｜parameter>"

/* before, between and after of a call, and what stands around all of them. */
static const struct form {
    const char *family, *sign; /* sign: in the template too; NULL: any */
    struct grammar_calls how;
} forms[] = {
    { "deepseek",
      "```json",
      { .open = "<｜tool▁calls▁begin｜>",
        .before = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        .between = "\n```json\n",
        .after = "\n```<｜tool▁call▁end｜>",
        .sep = "\n",
        .close = "<｜tool▁calls▁end｜>",
        .mark = "<｜tool▁calls▁begin｜>" } },
    { "deepseek",
      NULL,
      { .open = "<｜tool▁calls▁begin｜>",
        .before = "<｜tool▁call▁begin｜>",
        .between = "<｜tool▁sep｜>",
        .after = "<｜tool▁call▁end｜>",
        .close = "<｜tool▁calls▁end｜>",
        .mark = "<｜tool▁calls▁begin｜>" } },
    { "kimi",
      NULL,
      { .open = "<|tool_calls_section_begin|>",
        .before = "<|tool_call_begin|>functions.",
        .between = ":{i}<|tool_call_argument_begin|>",
        .after = "<|tool_call_end|>",
        .close = "<|tool_calls_section_end|>",
        .mark = "<|tool_calls_section_begin|>" } },
    { "glm",
      NULL,
      { .before = "<tool_call>",
        .between = "\n",
        .after = "</tool_call>",
        .sep = "\n",
        .key = "<arg_key>",
        .is = "</arg_key>\n<arg_value>",
        .end = "</arg_value>\n",
        .until = "</arg_value>",
        .mark = "<tool_call>" } },
    { "minimax",
      NULL,
      { .open = "<minimax:tool_call>\n",
        .before = "<invoke name=\"",
        .between = "\">\n",
        .after = "</invoke>\n",
        .close = "</minimax:tool_call>",
        .key = "<parameter name=\"",
        .is = "\">",
        .end = "</parameter>\n",
        .until = "</parameter>",
        .trim = true,
        .mark = "<minimax:tool_call>" } },
    { "seed",
      NULL,
      { .before = "<seed:tool_call>\n<function=",
        .between = ">\n",
        .after = "</function>\n</seed:tool_call>",
        .sep = "\n",
        .key = "<parameter=",
        .is = ">",
        .end = "</parameter>\n",
        .until = "</parameter>",
        .trim = true,
        .mark = "<seed:tool_call>" } },
    { "qwen3-coder",
      NULL,
      { .before = "<tool_call>\n<function=",
        .between = ">\n",
        .after = "</function>\n</tool_call>",
        .sep = "\n",
        .key = "<parameter=",
        .is = ">\n",
        .end = "\n</parameter>\n",
        .until = "</parameter>",
        .mark = "<tool_call>" } },
    { "hunyuan",
      NULL,
      { .open = "<tool_calls:opensource>\n",
        .before = "<tool_call:opensource>",
        .between = "<tool_sep:opensource>\n",
        .after = "</tool_call:opensource>\n",
        .close = "</tool_calls:opensource>",
        .key = "<arg_key:opensource>",
        .is = "</arg_key:opensource>\n<arg_value:opensource>",
        .end = "</arg_value:opensource>\n",
        .until = "</arg_value:opensource>",
        .mark = "<tool_calls:opensource>" } },
    { "deepseek-dsml",
      "function_calls",
      { .open = "<｜DSML｜function_calls>\n",
        DSML,
        .close = "</｜DSML｜function_calls>",
        .mark = "<｜DSML｜function_calls>" } },
    { "deepseek-dsml",
      NULL,
      { .open = "<｜DSML｜tool_calls>\n",
        DSML,
        .close = "</｜DSML｜tool_calls>",
        .mark = "<｜DSML｜tool_calls>" } },
    { "kimi-k3",
      NULL,
      { .open = "<|open|>tools<|sep|>",
        .before = "<|open|>call tool=\"",
        .between = "\" index=\"{i}\"<|sep|>",
        .after = "<|close|>call<|sep|>",
        .close = "<|close|>tools<|sep|>",
        .key = "<|open|>argument key=\"",
        .is = "\" type=\"string\"<|sep|>",
        .is_json = "\" type=\"object\"<|sep|>",
        .end = "<|close|>argument<|sep|>",
        .until = "<|close|>",
        .mark = "<|open|>tools<|sep|>" } },
    { "minimax-m3",
      NULL,
      { .open = "]<]minimax[>[<tool_call>\n",
        .before = "]<]minimax[>[<invoke name=\"",
        .between = "\">",
        .after = "]<]minimax[>[</invoke>\n",
        .close = "]<]minimax[>[</tool_call>",
        .mark = "]<]minimax[>[<tool_call>" } },
    { "muse",
      NULL,
      { .open = "<atem:function_calls>\n",
        .before = "<atem:invoke name=\"",
        .between = "\">\n",
        .after = "</atem:invoke>\n",
        .close = "</atem:function_calls>",
        .key = "<atem:parameter name=\"",
        .is = "\">",
        .end = "</atem:parameter>\n",
        .until = "</atem:parameter>",
        .mark = "<atem:function_calls>" } },
    { "minicpm5",
      NULL,
      { .before = "<function name=\"",
        .between = "\">",
        .after = "</function>",
        .sep = "\n",
        .key = "<param name=\"",
        .is = "\">",
        .end = "</param>",
        .until = "<",
        .mark = "<function name=\"" } },
    { "gigachat",
      "<|function_call|>",
      { .before = "<|function_call|>{\"name\": \"",
        .between = "\", \"arguments\": ",
        .after = "}",
        .max = 1,
        .mark = "<|function_call|>" } },
    { "gigachat",
      NULL,
      { .before = "function call<|role_sep|>\n{\"name\": \"",
        .between = "\", \"arguments\": ",
        .after = "}",
        .max = 1 } },
    { "llama4",
      NULL,
      { .before = "{\"name\": \"", .between = "\", \"parameters\": ", .after = "}" } },
    { "functionary",
      NULL,
      { .before = "<function=", .between = ">", .after = "</function>", .mark = "<function=" } },
    { "command-r7b",
      NULL,
      { .open = "<|START_ACTION|>[\n",
        .before = "    {\"tool_call_id\": \"{i}\", \"tool_name\": \"",
        .between = "\", \"parameters\": ",
        .after = "}",
        .sep = ",\n",
        .close = "\n]<|END_ACTION|>",
        .mark = "<|START_ACTION|>" } },
    { "command-r",
      NULL,
      { .open = "Action:\n```json\n[\n",
        .before = "    {\n        \"tool_name\": \"",
        .between = "\",\n        \"parameters\": ",
        .after = "\n    }",
        .sep = ",\n",
        .close = "\n]\n```",
        .mark = "Action:" } },
    { "lfm2",
      NULL,
      { .open = "<|tool_call_start|>[",
        .between = "(",
        .after = ")",
        .sep = ", ",
        .close = "]<|tool_call_end|>",
        .key = "",
        .is = "=",
        .and = ", ",
        .python = true,
        .mark = "<|tool_call_start|>" } },
    { "solar",
      NULL,
      { .before = "<|tool_call:begin|>{r}<|tool_call:name|>",
        .between = "<|tool_call:args|>",
        .after = "<|tool_call:end|>",
        .mark = "<|tool_call:begin|>" } },
    { "gemma4",
      NULL,
      { .before = "<|tool_call>call:",
        .between = "{",
        .after = "}<tool_call|>",
        .key = "",
        .is = ":",
        .and = ",",
        .quote = "<|\"|>",
        .until = "<|\"|>",
        .mark = "<|tool_call>" } },
    { "functiongemma",
      NULL,
      { .before = "<start_function_call>call:",
        .between = "{",
        .after = "}<end_function_call>",
        .key = "",
        .is = ":",
        .and = ",",
        .quote = "<escape>",
        .until = "<escape>",
        .mark = "<start_function_call>" } },
    { "internlm2",
      NULL,
      { .before = "<|action_start|><|plugin|>\n{\"name\": \"",
        .between = "\", \"parameters\": ",
        .after = "}<|action_end|>",
        .sep = "\n",
        .mark = "<|action_start|>" } },
    { "apertus",
      NULL,
      { .open = "<|tools_prefix|>[",
        .before = "{\"",
        .between = "\": ",
        .after = "}",
        .sep = ", ",
        .close = "]<|tools_suffix|>",
        .mark = "<|tools_prefix|>" } },
    { "nemotron", NULL, { "<TOOLCALL>[", NAMED, ", ", "]</TOOLCALL>", .mark = "<TOOLCALL>" } },
    { "apriel", NULL, { "<tool_calls>[", NAMED, ", ", "]</tool_calls>", .mark = "<tool_calls>" } },
    { "phi4-mini",
      NULL,
      { "<|tool_call|>[", NAMED, ", ", "]<|/tool_call|>", .mark = "<|tool_call|>" } },
    { "hermes",
      NULL,
      { .before = "<tool_call>\n{\"name\": \"",
        .between = "\", \"arguments\": ",
        .after = "}\n</tool_call>",
        .sep = "\n",
        .mark = "<tool_call>" } },
    { "granite", NULL, { "<|tool_call|>[", NAMED, ", ", "]", .mark = "<|tool_call|>" } },
    { "mistral",
      "[ARGS]",
      { .before = "[TOOL_CALLS]", .between = "[ARGS]", .mark = "[TOOL_CALLS]" } },
    { "mistral", NULL, { "[TOOL_CALLS][", NAMED, ", ", "]", .mark = "[TOOL_CALLS]" } },
    { "granite-fc",
      NULL,
      { .before = "<function_call>{\"name\": \"",
        .between = "\", \"arguments\": ",
        .after = "}",
        .sep = "\n",
        .mark = "<function_call>" } },
    { "firefunction", NULL, { "functools[", NAMED, ", ", "]", .mark = "functools" } },
    { "llama3",
      NULL,
      { .before = "{\"name\": \"", .between = "\", \"parameters\": ", .after = "}", .max = 1 } },
    { "pythonic",
      NULL,
      { .open = "[",
        .between = "(",
        .after = ")",
        .sep = ", ",
        .close = "]",
        .key = "",
        .is = "=",
        .and = ", ",
        .python = true } },
    { "json", NULL, { NULL, NAMED, .max = 1 } },
};

/* Channels: one call ends a turn, and reasoning has a channel of its own. */
static const struct grammar_calls harmony = {
    .before = "<|channel|>commentary to=functions.",
    .between = " <|constrain|>json<|message|>",
    .max = 1,
};

/* The header may come in more than one order; from the name on there is one. */
static const struct grammar_calls harmony_lazy = {
    .before = "to=functions.",
    .between = " <|constrain|>json<|message|>",
    .max = 1,
    .mark = "to=functions.",
};

static const struct grammar_calls *form_of(const struct toolforce *f)
{
    if (f->calls->payload == PAYLOAD_HARMONY) return f->lazy ? &harmony_lazy : &harmony;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const struct form *x = &forms[i];
        if (strcmp(x->family, f->calls->name)) continue;
        if (!x->sign || str_find(f->template, str_c(x->sign)) >= 0) return &x->how;
    }
    return &forms[sizeof forms / sizeof *forms - 1].how;
}

static void set_channels(struct grammar_spec *io)
{
    io->thinking = THINK_MAY;
    io->think = "<|channel|>analysis<|message|>";
    io->think_end = "<|end|>";
    io->think_after = "<|start|>assistant";
}

static void set_thinking(const struct toolforce *f, struct grammar_spec *io)
{
    struct str prompt = str_trim(f->prompt);

    if (f->calls->payload == PAYLOAD_HARMONY) {
        if (!f->lazy) set_channels(io);
        return;
    }
    if (!f->think || str_ends(prompt, str_c(f->think->close))) return;
    io->think = f->think->open;
    io->think_end = f->think->close;
    io->thinking = str_ends(prompt, str_c(f->think->open)) ? THINK_BEGUN : THINK_MAY;
}

void toolforce_lead(const struct tool_family *calls, const struct think_family *think,
                    struct str prompt, struct grammar_spec *io)
{
    if (calls && calls->payload == PAYLOAD_HARMONY) {
        set_channels(io);
        io->lead = "<|channel|>final<|message|>";
    } else if (think && str_ends(str_trim(prompt), str_c(think->open))) {
        io->thinking = THINK_BEGUN;
        io->think = think->open;
        io->think_end = think->close;
    }
}

/* Only strict tools hold their schemas where nothing has to come. */
static struct str parameters_of(const json_t *fn, bool lazy)
{
    const json_t *schema = json_object_get(fn, "parameters");
    char *text;

    if (!json_is_object(schema) || (lazy && !json_is_true(json_object_get(fn, "strict"))))
        return STR("");
    text = json_dumps(schema, JSON_COMPACT);
    return text ? str_c(text) : STR("");
}

bool toolforce_put(const struct toolforce *f, struct buf *out, struct grammar_spec *spec)
{
    size_t n = json_array_size(f->tools);
    struct grammar_tool *tools;
    struct grammar_calls how = *form_of(f);

    if (f->lazy && !how.mark) return false;
    if (!f->lazy) how.mark = NULL;
    how.min = 1;
    if (f->max && (!how.max || how.max > f->max)) how.max = f->max;
    *spec = (struct grammar_spec){ .kind = GRAMMAR_CALLS };
    set_thinking(f, spec);
    tools = mem_array(n + 1, sizeof *tools);
    for (size_t i = 0; i < n; i++) {
        const json_t *fn = json_object_get(json_array_get(f->tools, i), "function"),
                     *name = json_object_get(fn, "name");
        tools[i] = (struct grammar_tool){ str_of(json_string_value(name), json_string_length(name)),
                                          parameters_of(fn, f->lazy) };
    }
    grammar_put_calls(out, tools, (int)n, &how);
    for (size_t i = 0; i < n; i++)
        if (tools[i].parameters.n) free((char *)tools[i].parameters.p);
    mem_free(tools);
    spec->text = buf_str(out);
    return true;
}

const struct tool_family *toolforce_plain(void)
{
    static const struct tool_family plain = { .name = "json",
                                              .payload = PAYLOAD_BARE,
                                              .open = "<|python_tag|>" };

    return &plain;
}
