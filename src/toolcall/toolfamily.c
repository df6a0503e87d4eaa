/* toolfamily.c - the families, from the chat templates of published models.
 *
 * To add a family: find texts that only its template has (signs), and describe how it writes a
 * call. Then add its format to toolformat.c, so that calls can be forced, and a template and an
 * answer to tests/test_toolforce.c and tests/test_tools.c. */
#include "toolcall/toolfamily.h"

/* NAME\n <arg_key>K</arg_key> <arg_value>V</arg_value> */
static const struct toolfamily_tags tags_glm = {
    .key = "<arg_key>", .key_end = "</arg_key>", .value = "<arg_value>", .end = "</arg_value>"
};
/* The same with names of its own. */
static const struct toolfamily_tags tags_longcat = { .key = "<longcat_arg_key>",
                                                     .key_end = "</longcat_arg_key>",
                                                     .value = "<longcat_arg_value>",
                                                     .end = "</longcat_arg_value>" };
static const struct toolfamily_tags tags_hunyuan = { .name_end = "<tool_sep:opensource>",
                                                     .key = "<arg_key:opensource>",
                                                     .key_end = "</arg_key:opensource>",
                                                     .value = "<arg_value:opensource>",
                                                     .end = "</arg_value:opensource>" };
/* <function=NAME> <parameter=K>\nV\n</parameter> */
static const struct toolfamily_tags tags_function = { .name_end = ">",
                                                      .key = "<parameter=",
                                                      .key_end = ">",
                                                      .value = "",
                                                      .end = "</parameter>",
                                                      .trim_lines = true };
/* <function=NAME> <parameter=K>V</parameter>: newlines belong to the value */
static const struct toolfamily_tags tags_exact = {
    .name_end = ">", .key = "<parameter=", .key_end = ">", .value = "", .end = "</parameter>"
};
/* <invoke name="NAME"> <parameter name="K">V</parameter>, and variants of it below */
static const struct toolfamily_tags tags_invoke = { .name_end = "\"",
                                                    .name_skip = ">",
                                                    .key = "<parameter name=\"",
                                                    .key_end = "\"",
                                                    .value = ">",
                                                    .end = "</parameter>",
                                                    .trim_lines = true };
static const struct toolfamily_tags tags_dsml = { .name_end = "\"",
                                                  .name_skip = ">",
                                                  .key = "<｜DSML｜parameter name=\"",
                                                  .key_end = "\"",
                                                  .value = ">",
                                                  .end = "</｜DSML｜parameter>" };
static const struct toolfamily_tags tags_atem = { .name_end = "\"",
                                                  .name_skip = ">",
                                                  .key = "<atem:parameter name=\"",
                                                  .key_end = "\"",
                                                  .value = ">",
                                                  .end = "</atem:parameter>" };
static const struct toolfamily_tags tags_param = { .name_end = "\"",
                                                   .name_skip = ">",
                                                   .key = "<param name=\"",
                                                   .key_end = "\"",
                                                   .value = ">",
                                                   .end = "</param>" };
/* <|open|>call tool="NAME" ...<|sep|> <|open|>argument key="K" type="T"<|sep|>V<|close|>... */
static const struct toolfamily_tags tags_kimi3 = { .name_end = "\"",
                                                   .name_skip = "<|sep|>",
                                                   .key = "<|open|>argument key=\"",
                                                   .key_end = "\"",
                                                   .value = "<|sep|>",
                                                   .end = "<|close|>argument<|sep|>" };
/* The tag is the key itself: ]<]minimax[>[<K>V]<]minimax[>[</K> */
static const struct toolfamily_tags tags_minimax3 = { .name_end = "\"",
                                                      .name_skip = ">",
                                                      .key = "]<]minimax[>[<",
                                                      .key_end = ">",
                                                      .value = "",
                                                      .end = "]<]minimax[>[</",
                                                      .nested = true };

/* The first row that fits is taken: special signs come before common ones. */
static const struct toolfamily families[] = {
    /* OpenAI gpt-oss */
    { .name = "harmony", .signs = { "<|channel|>", "<|start|>" }, .payload = PAYLOAD_HARMONY },
    /* DeepSeek V3, V3.1, R1 and the models distilled from it */
    { .name = "deepseek",
      .signs = { "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>" },
      .payload = PAYLOAD_NAMED,
      .open = "<｜tool▁call▁begin｜>",
      .close = "<｜tool▁call▁end｜>",
      .sep = "<｜tool▁sep｜>",
      .drop = { "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>" } },
    /* Kimi K2 */
    { .name = "kimi",
      .signs = { "<|tool_call_argument_begin|>" },
      .payload = PAYLOAD_KIMI,
      .open = "<|tool_call_begin|>",
      .close = "<|tool_call_end|>",
      .sep = "<|tool_call_argument_begin|>",
      .drop = { "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>" } },
    /* GLM-4.5 and 4.6 */
    { .name = "glm",
      .signs = { "<tool_call>", "<arg_key>" },
      .payload = PAYLOAD_TAGS,
      .open = "<tool_call>",
      .close = "</tool_call>",
      .tags = &tags_glm },
    /* LongCat Flash, two notations */
    { .name = "longcat-tags",
      .signs = { "<longcat_tool_call>", "<longcat_arg_key>" },
      .payload = PAYLOAD_TAGS,
      .open = "<longcat_tool_call>",
      .close = "</longcat_tool_call>",
      .tags = &tags_longcat },
    { .name = "longcat",
      .signs = { "<longcat_tool_call>" },
      .payload = PAYLOAD_JSON,
      .open = "<longcat_tool_call>",
      .close = "</longcat_tool_call>" },
    { .name = "hunyuan",
      .signs = { "tool_call:opensource", "arg_key:opensource" },
      .payload = PAYLOAD_TAGS,
      .open = "<tool_call:opensource>",
      .close = "</tool_call:opensource>",
      .drop = { "<tool_calls:opensource>", "</tool_calls:opensource>" },
      .tags = &tags_hunyuan },
    { .name = "hunyuan",
      .signs = { "tool_call", "hy_eos" },
      .payload = PAYLOAD_TAGS,
      .open = "<tool_call:opensource>",
      .close = "</tool_call:opensource>",
      .drop = { "<tool_calls:opensource>", "</tool_calls:opensource>" },
      .tags = &tags_hunyuan },
    { .name = "deepseek-dsml",
      .signs = { "DSML", "invoke name=" },
      .payload = PAYLOAD_TAGS,
      .open = "<｜DSML｜invoke name=\"",
      .close = "</｜DSML｜invoke>",
      .drop = { "<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "<｜DSML｜tool_calls>",
                "</｜DSML｜tool_calls>" },
      .tags = &tags_dsml },
    { .name = "kimi-k3",
      .signs = { "<|open|>", "<|close|>" },
      .payload = PAYLOAD_TAGS,
      .open = "<|open|>call tool=\"",
      .close = "<|close|>call<|sep|>",
      .drop = { "<|open|>tools<|sep|>", "<|close|>tools<|sep|>", "<|open|>response<|sep|>",
                "<|close|>response<|sep|>", "<|close|>message<|sep|>" },
      .tags = &tags_kimi3 },
    { .name = "minimax-m3",
      .signs = { "]<]minimax[>[", "<invoke name=" },
      .payload = PAYLOAD_TAGS,
      .open = "]<]minimax[>[<invoke name=\"",
      .close = "]<]minimax[>[</invoke>",
      .drop = { "]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>" },
      .tags = &tags_minimax3 },
    { .name = "muse",
      .signs = { "<atem:invoke" },
      .payload = PAYLOAD_TAGS,
      .open = "<atem:invoke name=\"",
      .close = "</atem:invoke>",
      .drop = { "<atem:function_calls>", "</atem:function_calls>" },
      .tags = &tags_atem },
    { .name = "minicpm5",
      .signs = { "<function name=", "<param name=" },
      .payload = PAYLOAD_TAGS,
      .open = "<function name=\"",
      .close = "</function>",
      .tags = &tags_param },
    { .name = "dots",
      .signs = { "<invoke name=", "<dots_function_call>" },
      .payload = PAYLOAD_TAGS,
      .open = "<invoke name=\"",
      .close = "</invoke>",
      .drop = { "<dots_function_call>", "</dots_function_call>" },
      .tags = &tags_invoke },
    { .name = "minimax",
      .signs = { "<invoke name=", "minimax:tool_call" },
      .payload = PAYLOAD_TAGS,
      .open = "<invoke name=\"",
      .close = "</invoke>",
      .drop = { "<minimax:tool_call>", "</minimax:tool_call>" },
      .tags = &tags_invoke },
    { .name = "seed",
      .signs = { "seed:tool_call", "<function=" },
      .payload = PAYLOAD_TAGS,
      .open = "<function=",
      .close = "</function>",
      .drop = { "<seed:tool_call>", "</seed:tool_call>" },
      .tags = &tags_function },
    /* MiMo V2: its template shows the parameters of a call in one line */
    { .name = "mimo",
      .signs = { "<function=", "<parameter=example_parameter_1>value_1</parameter>" },
      .payload = PAYLOAD_TAGS,
      .open = "<function=",
      .close = "</function>",
      .drop = { "<tool_call>", "</tool_call>" },
      .tags = &tags_exact },
    /* Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5 */
    { .name = "qwen3-coder",
      .signs = { "<function=", "<parameter=" },
      .payload = PAYLOAD_TAGS,
      .open = "<function=",
      .close = "</function>",
      .drop = { "<tool_call>", "</tool_call>" },
      .tags = &tags_function },
    { .name = "functionary",
      .signs = { "<function=", "</function>" },
      .payload = PAYLOAD_TAGS,
      .open = "<function=",
      .close = "</function>",
      .tags = &tags_function },
    /* Command R7B */
    { .name = "command-r7b",
      .signs = { "<|START_ACTION|>" },
      .payload = PAYLOAD_JSON,
      .open = "<|START_ACTION|>",
      .close = "<|END_ACTION|>",
      .drop = { "<|START_RESPONSE|>", "<|END_RESPONSE|>" } },
    { .name = "command-r",
      .signs = { "Action:", "```json" },
      .payload = PAYLOAD_JSON,
      .open = "Action:",
      .close = "```" },
    { .name = "lfm2",
      .signs = { "<|tool_call_start|>" },
      .payload = PAYLOAD_PYTHON,
      .open = "<|tool_call_start|>",
      .close = "<|tool_call_end|>" },
    { .name = "lfm2",
      .signs = { "List of tools: " },
      .payload = PAYLOAD_PYTHON,
      .open = "<|tool_call_start|>",
      .close = "<|tool_call_end|>" },
    { .name = "solar",
      .signs = { "<|tool_call:begin|>", "<|tool_call:args|>" },
      .payload = PAYLOAD_SOLAR,
      .open = "<|tool_call:begin|>",
      .close = "<|tool_call:end|>",
      .sep = "<|tool_call:args|>",
      .drop = { "<|tool_calls|>", "<|calls|>", "<|content|>" } },
    { .name = "gemma4",
      .signs = { "<|tool_call>call:" },
      .payload = PAYLOAD_GEMMA,
      .open = "<|tool_call>",
      .close = "<tool_call|>",
      .sep = "<|\"|>" },
    { .name = "functiongemma",
      .signs = { "<start_function_call>" },
      .payload = PAYLOAD_GEMMA,
      .open = "<start_function_call>",
      .close = "<end_function_call>",
      .sep = "<escape>" },
    { .name = "internlm2",
      .signs = { "<|action_start|><|plugin|>" },
      .payload = PAYLOAD_JSON,
      .open = "<|plugin|>",
      .close = "<|action_end|>",
      .drop = { "<|action_start|>" } },
    { .name = "apertus",
      .signs = { "<|tools_prefix|>" },
      .payload = PAYLOAD_JSON,
      .open = "<|tools_prefix|>",
      .close = "<|tools_suffix|>" },
    { .name = "nemotron",
      .signs = { "<TOOLCALL>" },
      .payload = PAYLOAD_JSON,
      .open = "<TOOLCALL>",
      .close = "</TOOLCALL>" },
    /* Apriel, Jamba, Hunyuan v1, MiniMax M1 */
    { .name = "apriel",
      .signs = { "<tool_calls>" },
      .payload = PAYLOAD_JSON,
      .open = "<tool_calls>",
      .close = "</tool_calls>" },
    { .name = "phi4-mini",
      .signs = { "<|tool_call|>", "<|/tool_call|>" },
      .payload = PAYLOAD_JSON,
      .open = "<|tool_call|>",
      .close = "<|/tool_call|>" },
    /* Hermes 2 and 3, Qwen 2.5 and 3, Granite 4, EXAONE 4, ERNIE 4.5, and many that follow them */
    { .name = "hermes",
      .signs = { "<tool_call>" },
      .payload = PAYLOAD_JSON,
      .open = "<tool_call>",
      .close = "</tool_call>" },
    /* Granite 3 */
    { .name = "granite",
      .signs = { "<|tool_call|>" },
      .payload = PAYLOAD_JSON,
      .open = "<|tool_call|>" },
    /* Mistral Nemo, Small, and others of Mistral AI; two notations */
    { .name = "mistral",
      .signs = { "[TOOL_CALLS]" },
      .payload = PAYLOAD_MISTRAL,
      .open = "[TOOL_CALLS]" },
    { .name = "gigachat",
      .signs = { "<|function_call|>" },
      .payload = PAYLOAD_JSON,
      .open = "<|function_call|>" },
    { .name = "gigachat",
      .signs = { "function call", "<|role_sep|>" },
      .payload = PAYLOAD_JSON,
      .open = "function call<|role_sep|>",
      .drop = { "<|message_sep|>" } },
    { .name = "granite-fc",
      .signs = { "<function_call>" },
      .payload = PAYLOAD_JSON,
      .open = "<function_call>" },
    { .name = "firefunction",
      .signs = { "functools[" },
      .payload = PAYLOAD_JSON,
      .open = "functools" },
    /* Olmo 3: a call in each line */
    { .name = "olmo3",
      .signs = { "<function_calls>" },
      .payload = PAYLOAD_PYTHON,
      .open = "<function_calls>",
      .close = "</function_calls>" },
    { .name = "llama4",
      .signs = { "<|python_start|>", "tools" },
      .payload = PAYLOAD_BARE,
      .open = "<|python_tag|>",
      .drop = { "<|python_start|>", "<|python_end|>" } },
    /* Llama 3.1 and 3.2: JSON without a mark, or after <|python_tag|> */
    { .name = "llama3",
      .signs = { "<|start_header_id|>", "\"parameters\"" },
      .payload = PAYLOAD_BARE,
      .open = "<|python_tag|>" },
    { .name = "pythonic",
      .signs = { "func_name1(" },
      .payload = PAYLOAD_BARE,
      .open = "<|python_tag|>" },
    /* Any other template that mentions tools and names: JSON without a mark */
    { .name = "json",
      .signs = { "tools", "\"name\"" },
      .payload = PAYLOAD_BARE,
      .open = "<|python_tag|>" },
};

/* The first row whose sign is in the template. Some templates only close the reasoning. */
static const struct reasoning_format reasoning[] = {
    { .sign = "[THINK]", .open = "[THINK]", .close = "[/THINK]" },
    { .sign = "<|START_THINKING|>", .open = "<|START_THINKING|>", .close = "<|END_THINKING|>" },
    { .sign = "<|channel>", .open = "<|channel>thought", .close = "<channel|>", .anywhere = true },
    { .sign = "<|begin|>assistant<|think|>",
      .open = "<|think|>",
      .close = "<|end|>",
      .after = "<|begin|>assistant" },
    { .sign = "<longcat_think>", .open = "<longcat_think>", .close = "</longcat_think>" },
    { .sign = "<seed:think>", .open = "<seed:think>", .close = "</seed:think>" },
    { .sign = "<think{}>", .open = "<think:opensource>", .close = "</think:opensource>" },
    { .sign = "<mm:think>", .open = "<mm:think>", .close = "</mm:think>" },
    { .sign = "<|open|>", .open = "<|open|>think<|sep|>", .close = "<|close|>think<|sep|>" },
    /* Hunyuan v1, Granite 3.3 and ERNIE 4.5 write tags around the answer too */
    { .sign = "<|extra_0|>",
      .open = "<think>",
      .close = "</think>",
      .drop = { "<answer>", "</answer>" } },
    { .sign = "<response></response>",
      .open = "<think>",
      .close = "</think>",
      .drop = { "<response>", "</response>" } },
    { .sign = "<response>\\n",
      .open = "<think>",
      .close = "</think>",
      .drop = { "<response>", "</response>" } },
    { .sign = "<think>", .open = "<think>", .close = "</think>" },
    { .sign = "</think>", .open = "<think>", .close = "</think>" },
    { .sign = "[BEGIN FINAL RESPONSE]",
      .open = "Here are my reasoning steps:",
      .close = "[BEGIN FINAL RESPONSE]" },
    { .sign = "Here is my thought process:",
      .open = "Here is my thought process:",
      .close = "Here is my response:" },
};

/* sign NULL: true. */
static bool has_sign(struct str text, const char *sign)
{
    return !sign || str_find(text, str_c(sign)) >= 0;
}

/* The table is short and a template is searched once for a request. */
const struct toolfamily *toolfamily_find(struct str template)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (has_sign(template, families[i].signs[0]) && has_sign(template, families[i].signs[1]))
            return &families[i];
    return NULL;
}

const struct reasoning_format *toolfamily_find_reasoning(struct str template)
{
    for (size_t i = 0; i < sizeof reasoning / sizeof *reasoning; i++)
        if (has_sign(template, reasoning[i].sign)) return &reasoning[i];
    return NULL;
}

/* Without the last bytes of s, if these are `end`. */
static bool cut_end(struct str *s, const char *end)
{
    *s = str_trim(*s);
    if (!str_ends(*s, str_c(end))) return false;
    s->n -= strlen(end);
    return true;
}

/* What comes after reasoning also begins an answer without it, so the reasoning itself must be
 * there. */
bool toolfamily_is_closed(const struct reasoning_format *t, struct str prompt)
{
    if (t->after && !cut_end(&prompt, t->after)) return false;
    return cut_end(&prompt, t->close) && (!t->after || cut_end(&prompt, t->open));
}

void toolfamily_list_marks(const struct toolfamily *f, const struct reasoning_format *t,
                           const char *out[TOOLFAMILY_MARKS])
{
    static const char *const harmony[] = { "<|channel|>", "<|message|>",   "<|end|>",   "<|call|>",
                                           "<|start|>",   "<|constrain|>", "<|return|>" };
    int n = 0;

    if (f && f->payload == PAYLOAD_HARMONY) {
        for (size_t i = 0; i < sizeof harmony / sizeof *harmony; i++) out[n++] = harmony[i];
    } else if (f) {
        if (f->open) out[n++] = f->open;
        if (f->close) out[n++] = f->close;
        if (f->sep) out[n++] = f->sep;
        for (int i = 0; i < TOOLFAMILY_DROP && f->drop[i]; i++) out[n++] = f->drop[i];
        if (f->payload == PAYLOAD_MISTRAL) out[n++] = "[ARGS]", out[n++] = "[CALL_ID]";
        if (f->payload == PAYLOAD_SOLAR) out[n++] = "<|tool_call:name|>";
        if (f->tags == &tags_glm)
            out[n++] = "<arg_key>", out[n++] = "</arg_key>", out[n++] = "<arg_value>",
            out[n++] = "</arg_value>";
        if (f->tags == &tags_kimi3)
            out[n++] = "<|open|>", out[n++] = "<|close|>", out[n++] = "<|sep|>";
    }
    if (t) out[n++] = t->open, out[n++] = t->close;
    if (t && t->after) out[n++] = t->after;
    for (int i = 0; t && i < 2 && t->drop[i]; i++) out[n++] = t->drop[i];
    out[n] = NULL;
}
