#include "api/tools.h"

/* The first that fits: what is more particular stands before what is common. */
static const struct tool_family families[] = {
    { "harmony", { "<|channel|>", "<|start|>" }, PAYLOAD_HARMONY, NULL, NULL, NULL, { NULL } },
    { "deepseek", { "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>" }, PAYLOAD_NAMED, "<｜tool▁call▁begin｜>",
      "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", { "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>" } },
    { "kimi", { "<|tool_call_argument_begin|>", NULL }, PAYLOAD_KIMI, "<|tool_call_begin|>",
      "<|tool_call_end|>",
      "<|tool_call_argument_begin|>", { "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>" } },
    { "glm", { "<tool_call>", "<arg_key>" }, PAYLOAD_GLM, "<tool_call>", "</tool_call>", NULL, { NULL } },
    { "minimax", { "<invoke name=", "minimax:tool_call" }, PAYLOAD_INVOKE, "<invoke name=\"", "</invoke>",
      NULL,
      { "<minimax:tool_call>", "</minimax:tool_call>" } },
    { "seed", { "seed:tool_call", "<function=" }, PAYLOAD_FUNCTION, "<function=", "</function>", NULL,
      { "<seed:tool_call>", "</seed:tool_call>" } },
    { "qwen3-coder", { "<function=", "<parameter=" }, PAYLOAD_FUNCTION, "<function=", "</function>", NULL,
      { "<tool_call>", "</tool_call>" } },
    { "functionary", { "<function=", "</function>" }, PAYLOAD_FUNCTION, "<function=", "</function>", NULL,
      { NULL } },
    { "command-r7b", { "<|START_ACTION|>", NULL }, PAYLOAD_JSON, "<|START_ACTION|>", "<|END_ACTION|>", NULL,
      { "<|START_RESPONSE|>", "<|END_RESPONSE|>" } },
    { "command-r", { "Action:", "```json" }, PAYLOAD_JSON, "Action:", "```", NULL, { NULL } },
    { "lfm2", { "<|tool_call_start|>", NULL }, PAYLOAD_PYTHON, "<|tool_call_start|>", "<|tool_call_end|>",
      NULL, { NULL } },
    { "lfm2", { "List of tools: ", NULL }, PAYLOAD_PYTHON, "<|tool_call_start|>", "<|tool_call_end|>",
      NULL, { NULL } },
    { "solar", { "<|tool_call:begin|>", "<|tool_call:args|>" }, PAYLOAD_SOLAR, "<|tool_call:begin|>",
      "<|tool_call:end|>",
      "<|tool_call:args|>", { NULL } },
    { "gemma4", { "<|tool_call>call:", NULL }, PAYLOAD_GEMMA, "<|tool_call>", "<tool_call|>", "<|\"|>",
      { NULL } },
    { "functiongemma", { "<start_function_call>", NULL }, PAYLOAD_GEMMA, "<start_function_call>",
      "<end_function_call>",
      "<escape>", { NULL } },
    { "internlm2", { "<|action_start|><|plugin|>", NULL }, PAYLOAD_JSON, "<|plugin|>", "<|action_end|>",
      NULL, { "<|action_start|>" } },
    { "apertus", { "<|tools_prefix|>", NULL }, PAYLOAD_JSON, "<|tools_prefix|>", "<|tools_suffix|>", NULL,
      { NULL } },
    { "nemotron", { "<TOOLCALL>", NULL }, PAYLOAD_JSON, "<TOOLCALL>", "</TOOLCALL>", NULL, { NULL } },
    { "apriel", { "<tool_calls>", NULL }, PAYLOAD_JSON, "<tool_calls>", "</tool_calls>", NULL, { NULL } },
    { "phi4-mini", { "<|tool_call|>", "<|/tool_call|>" }, PAYLOAD_JSON, "<|tool_call|>", "<|/tool_call|>",
      NULL, { NULL } },
    { "hermes", { "<tool_call>", NULL }, PAYLOAD_JSON, "<tool_call>", "</tool_call>", NULL, { NULL } },
    { "granite", { "<|tool_call|>", NULL }, PAYLOAD_JSON, "<|tool_call|>", NULL, NULL, { NULL } },
    { "mistral", { "[TOOL_CALLS]", NULL }, PAYLOAD_MISTRAL, "[TOOL_CALLS]", NULL, NULL, { NULL } },
    { "granite-fc", { "<function_call>", NULL }, PAYLOAD_JSON, "<function_call>", NULL, NULL, { NULL } },
    { "firefunction", { "functools[", NULL }, PAYLOAD_JSON, "functools", NULL, NULL, { NULL } },
    { "llama3", { "<|start_header_id|>", "\"parameters\"" }, PAYLOAD_BARE, "<|python_tag|>", NULL, NULL,
      { NULL } },
    { "pythonic", { "func_name1(", NULL }, PAYLOAD_BARE, "<|python_tag|>", NULL, NULL, { NULL } },
    { "json", { "tools", "\"name\"" }, PAYLOAD_BARE, "<|python_tag|>", NULL, NULL, { NULL } },
};

static const struct think_family thinks[] = {
    { "[THINK]", "[THINK]", "[/THINK]" },
    { "<|START_THINKING|>", "<|START_THINKING|>", "<|END_THINKING|>" },
    { "<|channel>", "<|channel>thought", "<channel|>" },
    { "<seed:think>", "<seed:think>", "</seed:think>" },
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
    static const char *const glm[] = { "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>" };
    int n = 0;

    if (f && f->payload == PAYLOAD_HARMONY) {
        for (size_t i = 0; i < sizeof harmony / sizeof *harmony; i++) out[n++] = harmony[i];
    } else if (f) {
        if (f->open) out[n++] = f->open;
        if (f->close) out[n++] = f->close;
        if (f->sep) out[n++] = f->sep;
        for (int i = 0; i < 3 && f->drop[i]; i++) out[n++] = f->drop[i];
        if (f->payload == PAYLOAD_MISTRAL) out[n++] = "[ARGS]", out[n++] = "[CALL_ID]";
        if (f->payload == PAYLOAD_SOLAR) out[n++] = "<|tool_call:name|>";
        for (int i = 0; f->payload == PAYLOAD_GLM && i < 4; i++) out[n++] = glm[i];
    }
    if (t) out[n++] = t->open, out[n++] = t->close;
    out[n] = NULL;
}
