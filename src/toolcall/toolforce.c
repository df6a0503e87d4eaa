/* toolforce.c - chooses the format, writes the description of the tools, and decides what the model
 * may write before its calls. */
#include "toolcall/toolforce.h"

#include "base/jsonr.h"
#include "base/mem.h"
#include "toolcall/toolrules.h"

/* ---- reasoning ---- */

/* Harmony: reasoning is a message in the channel "analysis". */
static void set_analysis_channel(struct grammar_spec *io)
{
    io->reasoning = REASONING_OPTIONAL;
    io->reasoning_open = "<|channel|>analysis<|message|>";
    io->reasoning_close = "<|end|>";
    io->reasoning_after = "<|start|>assistant";
}

/* Reasoning that the prompt has closed does not come again. A lazy grammar of harmony needs
 * nothing: its channels are part of the free text. */
static void set_reasoning(const struct toolforce *f, struct grammar_spec *io)
{
    struct str prompt = str_trim(f->prompt);

    if (f->calls->payload == PAYLOAD_HARMONY) {
        if (!f->lazy) set_analysis_channel(io);
        return;
    }
    if (!f->think || toolfamily_is_closed(f->think, prompt)) return;
    io->reasoning_open = f->think->open;
    io->reasoning_close = f->think->close;
    io->reasoning_after = f->think->after;
    io->reasoning = str_ends(prompt, str_c(f->think->open)) ? REASONING_OPEN : REASONING_OPTIONAL;
}

void toolforce_add_lead(const struct toolfamily *calls, const struct reasoning_format *think,
                        struct str prompt, struct grammar_spec *io)
{
    if (calls && calls->payload == PAYLOAD_HARMONY) {
        set_analysis_channel(io);
        io->lead = "<|channel|>final<|message|>";
    } else if (think && str_ends(str_trim(prompt), str_c(think->open))) {
        io->reasoning = REASONING_OPEN;
        io->reasoning_open = think->open;
        io->reasoning_close = think->close;
        io->reasoning_after = think->after;
    }
}

/* ---- tools ---- */

/* The description of the tools is the key of the grammar cache: requests with the same tools share
 * a compiled grammar. */

/* The schema of a tool as text. A lazy grammar enforces those of strict tools only. */
static void dump_parameters(const json_t *function, bool lazy, struct buf *out)
{
    const json_t *schema = json_object_get(function, "parameters");

    if (json_is_object(schema) && (!lazy || json_is_true(json_object_get(function, "strict"))))
        jsonr_dump(out, schema, JSON_COMPACT);
}

/* Appends the description (toolrules.h) to out. */
static int write_tools(const struct toolforce *f, const struct toolformat *format, struct buf *out,
                       struct err *e)
{
    size_t n = json_array_size(f->tools);
    struct toolrules_tool *tools = mem_array(n + 1, sizeof *tools);
    struct buf *texts = mem_array(n + 1, sizeof *texts);
    int rc = tools && texts ? OK : err_nomem(e, "the tools of a request");

    for (size_t i = 0; i < n && rc == OK; i++) {
        const json_t *function = json_object_get(json_array_get(f->tools, i), "function"),
                     *name = json_object_get(function, "name");
        dump_parameters(function, f->lazy, &texts[i]);
        tools[i] =
            (struct toolrules_tool){ str_of(json_string_value(name), json_string_length(name)),
                                     buf_str(&texts[i]) };
        rc = buf_check(&texts[i], e);
    }
    if (rc == OK) {
        toolrules_write(out, tools, (int)n, format);
        rc = buf_check(out, e);
    }
    for (size_t i = 0; texts && i < n; i++) buf_release(&texts[i]);
    mem_free(texts);
    mem_free(tools);
    return rc;
}

int toolforce_make_spec(const struct toolforce *f, struct buf *out, struct grammar_spec *spec,
                        struct err *e)
{
    struct toolformat format = *toolformat_find(f->calls, f->template, f->lazy);
    int rc;

    if (f->lazy && !format.trigger)
        return err_set(e, E_UNSUPPORTED,
                       "tool calls of the family '%s' cannot be distinguished from text",
                       f->calls->name);
    if (!f->lazy) format.trigger = NULL;
    if (f->max && (!format.max || format.max > f->max)) format.max = f->max;
    if ((rc = write_tools(f, &format, out, e)) != OK) return rc;
    *spec = (struct grammar_spec){ .kind = GRAMMAR_RULES,
                                   .build = toolrules_build,
                                   .text = buf_str(out) };
    set_reasoning(f, spec);
    return OK;
}

const struct toolfamily *toolforce_plain(void)
{
    static const struct toolfamily plain = { .name = "json",
                                             .payload = PAYLOAD_BARE,
                                             .open = "<|python_tag|>" };

    return &plain;
}
