#include "toolcall/tools.h"

static const struct tool_tags
    glm = { NULL, NULL, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", false },
    hunyuan = { "<tool_sep:opensource>", NULL, "<arg_key:opensource>", "</arg_key:opensource>",
                "<arg_value:opensource>", "</arg_value:opensource>", false },
    function = { ">", NULL, "<parameter=", ">", "", "</parameter>", true },
    invoke = { "\"", ">", "<parameter name=\"", "\"", ">", "</parameter>", true },
    dsml = { "\"", ">", "<｜DSML｜parameter name=\"", "\"", ">", "</｜DSML｜parameter>", false },
    atem = { "\"", ">", "<atem:parameter name=\"", "\"", ">", "</atem:parameter>", false },
    param = { "\"", ">", "<param name=\"", "\"", ">", "</param>", false },
    kimi3 = { "\"", "<|sep|>", "<|open|>argument key=\"", "\"", "<|sep|>", "<|close|>argument<|sep|>",
              false },
    minimax3 = { "\"", ">", "]<]minimax[>[<", ">", "", "]<]minimax[>[</", false };

/* The first that fits: what is more particular stands before what is common. */
static const struct tool_family families[] = {
    { "harmony", { "<|channel|>", "<|start|>" }, PAYLOAD_HARMONY, NULL, NULL, NULL, { NULL }, NULL },
    { "deepseek", { "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>" }, PAYLOAD_NAMED, "<｜tool▁call▁begin｜>",
      "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", { "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>" }, NULL },
    { "kimi", { "<|tool_call_argument_begin|>", NULL }, PAYLOAD_KIMI, "<|tool_call_begin|>",
      "<|tool_call_end|>",
      "<|tool_call_argument_begin|>", { "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>" },
      NULL },
    { "glm", { "<tool_call>", "<arg_key>" }, PAYLOAD_TAGS, "<tool_call>", "</tool_call>", NULL,
      { NULL }, &glm },
    { "hunyuan", { "tool_call:opensource", "arg_key:opensource" }, PAYLOAD_TAGS, "<tool_call:opensource>",
      "</tool_call:opensource>", NULL, { "<tool_calls:opensource>", "</tool_calls:opensource>" },
      &hunyuan },
    { "hunyuan", { "tool_call", "hy_eos" }, PAYLOAD_TAGS, "<tool_call:opensource>",
      "</tool_call:opensource>", NULL,
      { "<tool_calls:opensource>", "</tool_calls:opensource>" }, &hunyuan },
    { "deepseek-dsml", { "DSML", "invoke name=" }, PAYLOAD_TAGS, "<｜DSML｜invoke name=\"",
      "</｜DSML｜invoke>", NULL,
      { "<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "<｜DSML｜tool_calls>",
        "</｜DSML｜tool_calls>" }, &dsml },
    { "kimi-k3", { "<|open|>", "<|close|>" }, PAYLOAD_TAGS, "<|open|>call tool=\"",
      "<|close|>call<|sep|>", NULL,
      { "<|open|>tools<|sep|>", "<|close|>tools<|sep|>", "<|open|>response<|sep|>",
        "<|close|>response<|sep|>", "<|close|>message<|sep|>" }, &kimi3 },
    { "minimax-m3", { "]<]minimax[>[", "<invoke name=" }, PAYLOAD_TAGS, "]<]minimax[>[<invoke name=\"",
      "]<]minimax[>[</invoke>", NULL, { "]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>" },
      &minimax3 },
    { "muse", { "<atem:invoke", NULL }, PAYLOAD_TAGS, "<atem:invoke name=\"", "</atem:invoke>", NULL,
      { "<atem:function_calls>", "</atem:function_calls>" }, &atem },
    { "minicpm5", { "<function name=", "<param name=" }, PAYLOAD_TAGS, "<function name=\"",
      "</function>", NULL, { NULL }, &param },
    { "minimax", { "<invoke name=", "minimax:tool_call" }, PAYLOAD_TAGS, "<invoke name=\"", "</invoke>",
      NULL, { "<minimax:tool_call>", "</minimax:tool_call>" }, &invoke },
    { "seed", { "seed:tool_call", "<function=" }, PAYLOAD_TAGS, "<function=", "</function>", NULL,
      { "<seed:tool_call>", "</seed:tool_call>" }, &function },
    { "qwen3-coder", { "<function=", "<parameter=" }, PAYLOAD_TAGS, "<function=", "</function>", NULL,
      { "<tool_call>", "</tool_call>" }, &function },
    { "functionary", { "<function=", "</function>" }, PAYLOAD_TAGS, "<function=", "</function>", NULL,
      { NULL }, &function },
    { "command-r7b", { "<|START_ACTION|>", NULL }, PAYLOAD_JSON, "<|START_ACTION|>", "<|END_ACTION|>", NULL,
      { "<|START_RESPONSE|>", "<|END_RESPONSE|>" }, NULL },
    { "command-r", { "Action:", "```json" }, PAYLOAD_JSON, "Action:", "```", NULL, { NULL }, NULL },
    { "lfm2", { "<|tool_call_start|>", NULL }, PAYLOAD_PYTHON, "<|tool_call_start|>", "<|tool_call_end|>",
      NULL, { NULL }, NULL },
    { "lfm2", { "List of tools: ", NULL }, PAYLOAD_PYTHON, "<|tool_call_start|>", "<|tool_call_end|>",
      NULL, { NULL }, NULL },
    { "solar", { "<|tool_call:begin|>", "<|tool_call:args|>" }, PAYLOAD_SOLAR, "<|tool_call:begin|>",
      "<|tool_call:end|>",
      "<|tool_call:args|>", { NULL }, NULL },
    { "gemma4", { "<|tool_call>call:", NULL }, PAYLOAD_GEMMA, "<|tool_call>", "<tool_call|>", "<|\"|>",
      { NULL }, NULL },
    { "functiongemma", { "<start_function_call>", NULL }, PAYLOAD_GEMMA, "<start_function_call>",
      "<end_function_call>",
      "<escape>", { NULL }, NULL },
    { "internlm2", { "<|action_start|><|plugin|>", NULL }, PAYLOAD_JSON, "<|plugin|>", "<|action_end|>",
      NULL, { "<|action_start|>" }, NULL },
    { "apertus", { "<|tools_prefix|>", NULL }, PAYLOAD_JSON, "<|tools_prefix|>", "<|tools_suffix|>", NULL,
      { NULL }, NULL },
    { "nemotron", { "<TOOLCALL>", NULL }, PAYLOAD_JSON, "<TOOLCALL>", "</TOOLCALL>", NULL, { NULL }, NULL },
    { "apriel", { "<tool_calls>", NULL }, PAYLOAD_JSON, "<tool_calls>", "</tool_calls>", NULL,
      { NULL }, NULL },
    { "phi4-mini", { "<|tool_call|>", "<|/tool_call|>" }, PAYLOAD_JSON, "<|tool_call|>", "<|/tool_call|>",
      NULL, { NULL }, NULL },
    { "hermes", { "<tool_call>", NULL }, PAYLOAD_JSON, "<tool_call>", "</tool_call>", NULL, { NULL },
      NULL },
    { "granite", { "<|tool_call|>", NULL }, PAYLOAD_JSON, "<|tool_call|>", NULL, NULL, { NULL }, NULL },
    { "mistral", { "[TOOL_CALLS]", NULL }, PAYLOAD_MISTRAL, "[TOOL_CALLS]", NULL, NULL, { NULL }, NULL },
    { "gigachat", { "<|function_call|>", NULL }, PAYLOAD_JSON, "<|function_call|>", NULL, NULL,
      { NULL }, NULL },
    { "gigachat", { "function call", "<|role_sep|>" }, PAYLOAD_JSON, "function call<|role_sep|>", NULL,
      NULL,
      { "<|message_sep|>" }, NULL },
    { "granite-fc", { "<function_call>", NULL }, PAYLOAD_JSON, "<function_call>", NULL, NULL, { NULL },
      NULL },
    { "firefunction", { "functools[", NULL }, PAYLOAD_JSON, "functools", NULL, NULL, { NULL }, NULL },
    { "llama4", { "<|python_start|>", NULL }, PAYLOAD_BARE, "<|python_tag|>", NULL, NULL,
      { "<|python_start|>", "<|python_end|>" }, NULL },
    { "llama3", { "<|start_header_id|>", "\"parameters\"" }, PAYLOAD_BARE, "<|python_tag|>", NULL, NULL,
      { NULL }, NULL },
    { "pythonic", { "func_name1(", NULL }, PAYLOAD_BARE, "<|python_tag|>", NULL, NULL, { NULL }, NULL },
    { "json", { "tools", "\"name\"" }, PAYLOAD_BARE, "<|python_tag|>", NULL, NULL, { NULL }, NULL },
};

static const struct think_family thinks[] = {
    { "[THINK]", "[THINK]", "[/THINK]" },
    { "<|START_THINKING|>", "<|START_THINKING|>", "<|END_THINKING|>" },
    { "<|channel>", "<|channel>thought", "<channel|>" },
    { "<seed:think>", "<seed:think>", "</seed:think>" },
    { "<think{}>", "<think:opensource>", "</think:opensource>" },
    { "<mm:think>", "<mm:think>", "</mm:think>" },
    { "<|open|>", "<|open|>think<|sep|>", "<|close|>think<|sep|>" },
    { "<think>", "<think>", "</think>" },
    { "</think>", "<think>", "</think>" },
};

static bool has(struct str text, const char *sign) { return !sign || str_find(text, str_c(sign)) >= 0; }

const struct tool_family *tools_family(struct str template)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (has(template, families[i].signs[0]) && has(template, families[i].signs[1])) return &families[i];
    return NULL;
}

const struct think_family *tools_think(struct str template)
{
    for (size_t i = 0; i < sizeof thinks / sizeof *thinks; i++)
        if (has(template, thinks[i].sign)) return &thinks[i];
    return NULL;
}

void tools_marks(const struct tool_family *f, const struct think_family *t, const char *out[TOOLS_MARKS])
{
    static const char *const harmony[] = { "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|start|>",
                                           "<|constrain|>", "<|return|>" };
    int n = 0;

    if (f && f->payload == PAYLOAD_HARMONY) {
        for (size_t i = 0; i < sizeof harmony / sizeof *harmony; i++) out[n++] = harmony[i];
    } else if (f) {
        if (f->open) out[n++] = f->open;
        if (f->close) out[n++] = f->close;
        if (f->sep) out[n++] = f->sep;
        for (int i = 0; i < TOOLS_DROP && f->drop[i]; i++) out[n++] = f->drop[i];
        if (f->payload == PAYLOAD_MISTRAL) out[n++] = "[ARGS]", out[n++] = "[CALL_ID]";
        if (f->payload == PAYLOAD_SOLAR) out[n++] = "<|tool_call:name|>";
        if (f->tags == &glm) out[n++] = "<arg_key>", out[n++] = "</arg_key>", out[n++] = "<arg_value>",
      out[n++] = "</arg_value>";
        if (f->tags == &kimi3) out[n++] = "<|open|>", out[n++] = "<|close|>", out[n++] = "<|sep|>";
    }
    if (t) out[n++] = t->open, out[n++] = t->close;
    out[n] = NULL;
}
