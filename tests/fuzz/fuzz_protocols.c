/* Fuzz target: an arbitrary body, read as one of each protocol that is translated into a chat completion
 * (Responses, Messages, three of Ollama, two of llama-server), then by the table of params. What is
 * accepted has messages that the template of a model without tools can be given (anytools.c). The same
 * for the body of a pull.
 *
 * The fuzz library contains only readers of files, so the readers of bodies are included as sources; their
 * static functions have the same names, so each is renamed by its file. */
#include "api/body.c"
#include "api/convo.c"
#include "api/params.c"
#include "api/params_grammar.c"
#include "api/params_text.c"
#include "api/params_tools.c"
#include "api/respstore.c"

#define reading reading_responses
#define nomem nomem_responses
#define set_member set_member_responses
#define join_texts join_texts_responses
#define read_text read_text_responses
#define read_tools read_tools_responses
#define read_tool_choice read_tool_choice_responses
#define read_format read_format_responses
#define read_limit read_limit_responses
#define copy_members copy_members_responses
#define read_messages read_messages_responses
#define read_all read_all_responses
#define read_reasoning read_reasoning_responses
#include "api/responses_body.c"
#undef reading
#undef nomem
#undef set_member
#undef join_texts
#undef read_text
#undef read_tools
#undef read_tool_choice
#undef read_format
#undef read_limit
#undef copy_members
#undef read_messages
#undef read_all
#undef read_reasoning

#define reading reading_messages
#define nomem nomem_messages
#define set_member set_member_messages
#define join_texts join_texts_messages
#define read_text read_text_messages
#define read_tools read_tools_messages
#define read_tool_choice read_tool_choice_messages
#define read_format read_format_messages
#define read_limit read_limit_messages
#define copy_members copy_members_messages
#define read_messages read_messages_messages
#define read_message read_message_messages
#define read_all read_all_messages
#define read_thinking read_thinking_messages
#include "api/messages_body.c"
#undef reading
#undef nomem
#undef set_member
#undef join_texts
#undef read_text
#undef read_tools
#undef read_tool_choice
#undef read_format
#undef read_limit
#undef copy_members
#undef read_messages
#undef read_message
#undef read_all
#undef read_thinking

#define reading reading_ollama
#define nomem nomem_ollama
#define set_member set_member_ollama
#define read_format read_format_ollama
#define read_messages read_messages_ollama
#define read_message read_message_ollama
#include "api/ollama_body.c"
#undef reading
#undef nomem
#undef set_member
#undef read_format
#undef read_messages
#undef read_message

#define reading reading_native
#define nomem nomem_native
#define read_common read_common_native
#define copy_stops copy_stops_native
#define read_fields read_fields_native
#include "api/native_body.c"
#undef reading
#undef nomem
#undef read_common
#undef copy_stops
#undef read_fields

#define put_json put_json_any
#define add_message add_message_any
#include "api/anytools.c"
#undef put_json
#undef add_message

#include "base/mem.h"

/* Of call.c, without the API. */
void call_note_skipped(struct call *c, struct str type)
{
    if (c->skipped.n < 400) buf_put_str(&c->skipped, str_take(type, 40));
}

void call_blame(struct call *c, const char *fmt, ...) { (void)c, (void)fmt; }

int call_note_item(struct call *c, struct err *e)
{
    (void)e;
    c->n_items++;
    return OK;
}

typedef int translate_fn(struct call *c, json_t **out, struct err *e);

static const struct {
    translate_fn *translate;
    enum body_kind kind;
} protocols[] = {
    { responses_translate, BODY_CHAT },      { messages_translate, BODY_CHAT },
    { ollama_translate_chat, BODY_EXECUTE }, { ollama_translate_generate, BODY_EXECUTE },
    { ollama_translate_embed, BODY_EMBED },  { native_translate_completion, BODY_TEXT },
    { native_translate_infill, BODY_TEXT },
};

static void write_tools(const struct params *p)
{
    struct err e = { 0 };
    json_t *out = NULL;

    if (!p->messages) return;
    if (anytools_write(p->messages, p->tools, &out, &e) != OK) __builtin_trap();
    if (p->n_msgs && !json_array_size(out)) __builtin_trap();
    json_decref(out);
}

/* An error has a text, and is about the request. */
static void read_as(struct api *a, struct str body, size_t i)
{
    struct call c = { .api = a };
    struct err e = { 0 };
    json_t *convo = NULL;
    int rc = body_parse(&c.source, body, NULL, &e);

    if (rc == OK) rc = protocols[i].translate(&c, &convo, &e);
    if (rc == OK) rc = params_read_tree(&c.p, protocols[i].kind, convo, &e);
    if (rc == OK) write_tools(&c.p);
    else if (rc != E_INVALID || e.code != E_INVALID || !e.msg[0]) __builtin_trap();
    json_decref(c.source);
    params_release(&c.p);
    buf_release(&c.skipped);
    arena_release(&c.arena);
}

static void read_as_pull(struct str body)
{
    struct err e = { 0 };
    struct str name = { 0 };
    json_t *root = NULL;
    bool stream;
    int rc = body_parse(&root, body, NULL, &e);

    if (rc == OK) rc = api_read_pull(root, &name, &stream, &e);
    if (rc == OK ? name.n == 0 : !e.msg[0]) __builtin_trap();
    json_decref(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char ids[1][RESPSTORE_ITEM_ID] = { "msg_1" };
    static struct api a = { .opt = { .max_body_bytes = 1 << 10 } };
    char *copy = mem_dup(data, n);

    if (!a.responses) {
        a.responses = respstore_open(1 << 20);
        respstore_put(
            a.responses,
            &(struct respstore_entry){
                .id = "resp_1",
                .response = STR("{\"output\":[{\"type\":\"message\",\"id\":\"msg_1\",\"role\":"
                                "\"assistant\",\"content\":\"x\"}]}"),
                .items = STR("[]"),
                .history = STR("[{\"role\":\"user\",\"content\":\"y\"}]"),
                .item_ids = ids,
                .n_items = 1 });
    }
    for (size_t i = 0; i < sizeof protocols / sizeof *protocols; i++)
        read_as(&a, str_of(copy, n), i);
    read_as_pull(str_of(copy, n));
    mem_free(copy);
    return 0;
}
