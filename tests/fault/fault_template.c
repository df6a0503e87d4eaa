/* Chat templates under faults: parsing, probing, rendering with tools, messages and a message to
 * continue.
 *
 * The tree of a template is in an arena, which asks for memory only every few kilobytes. So that
 * many places of parser and scope resolution meet a failure, each template is also opened behind
 * comments of growing length, which shift where a chunk of the arena ends. */
#include "fault.h"

#include "base/file.h"
#include "jinja/chattemplate.h"
#include "token/tokenizer.h"

#include <stdio.h>

/* Every kind of statement and many filters, in the manner of real templates. */
static const char statements[] =
    "{{- bos_token }}{%- set ns = namespace(first=true, n=0) %}"
    "{%- macro show(x, indent=2) %}{{ '  ' * indent }}{{ x | tojson }}{{ caller() if caller }}"
    "{{ varargs }}{{ kwargs }}{% endmacro %}"
    "{%- set head %}Tools: {{ tools | length if tools else 0 }}{% endset %}"
    "{%- if tools is defined and tools %}{{ head }}\n"
    "{%- for t in tools if t.function is defined recursive %}"
    "{{ loop.index }}/{{ loop.length }} {{ show(t.function, 1, 'a', b='c') }}"
    "{%- for k, v in t.function.parameters.properties | dictsort %}{{ k ~ ':' ~ v.type }},"
    "{% endfor %}{%- else %}none{% endfor %}{%- endif %}"
    "{%- with a = 1, b = [1, 2, 3] %}{{ a + b[1] }}{{ b[::-1] | join('-') }}{% endwith %}"
    "{%- filter upper %}shout {{ ns.n }}{% endfilter %}"
    "{%- call show('called') %}inner{% endcall %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'system' and loop.first %}<<{{ message.content | trim }}>>"
    "{%- elif message.role == 'user' %}{% set ns.n = ns.n + 1 %}[U{{ message.content }}]"
    "{%- elif message.role == 'assistant' %}{% generation %}[A{{ message.content }}"
    "{%- for call in message.tool_calls %}{{ call.function.name }}"
    "{{ call.function.arguments | tojson(indent=2) }}{% endfor %}]{% endgeneration %}"
    "{%- else %}{{ {'role': message['role'], 'x': (1, 2.5, none)} | pprint }}{% endif %}"
    "{%- if ns.n > 100 %}{% break %}{% endif %}{% endfor %}"
    "{%- block tail %}{{ 'héllo %s {}' | format('x') }}{{ '{:>8}|{0!r}'.format if false }}"
    "{{ messages | map(attribute='role') | unique | list }}"
    "{{ messages | groupby('role') | first }}{{ 'a b c'.split() | select('ne', 'b') | list }}"
    "{% endblock %}{% if add_generation_prompt %}[A{% endif %}";

static const char messages_text[] =
    "[{\"role\":\"system\",\"content\":\"Be kind.\"},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"What is\"},"
    "{\"type\":\"text\",\"text\":\" the weather?\"}]},"
    "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"call00001\",\"type\":"
    "\"function\",\"function\":{\"name\":\"weather\",\"arguments\":\"{\\\"city\\\": "
    "\\\"Bern\\\"}\"}"
    "}]},"
    "{\"role\":\"tool\",\"tool_call_id\":\"call00001\",\"name\":\"weather\",\"content\":\"fine\"},"
    "{\"role\":\"assistant\",\"content\":\"It is fine\"}]";
static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"description\":\"The weather\","
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\","
    "\"description\":\"where\"}},\"required\":[\"city\"]}}}]";

struct world { /* a template and a request, made without faults */
    struct str source;
    json_t *messages, *tools;
};

static int open_source(struct chat_template **out, struct str source, struct err *e)
{
    struct chat_template_source src = { .text = source,
                                        .tools = source,
                                        .bos = STR("<s>"),
                                        .eos = STR("</s>"),
                                        .unk = STR("<unk>"),
                                        .pad = STR("<pad>") };
    return chat_template_open(out, &src, e);
}

/* A template may refuse a conversation; that is no fault. */
static int render_one(const struct chat_template *c, struct chat_template_input in, struct err *e)
{
    struct buf out = { 0 };
    int rc = chat_template_render(c, &in, &out, e);

    buf_release(&out);
    return rc == E_INVALID ? OK : rc;
}

static int open_and_render(void *arg, struct err *e)
{
    const struct world *w = arg;
    struct chat_template *c = NULL;
    struct chat_template_input in = { .messages = w->messages };
    int rc = open_source(&c, w->source, e);

    if (rc == OK) rc = render_one(c, in, e);
    in.tools = w->tools;
    if (rc == OK) rc = render_one(c, in, e);
    in.continue_final = true;
    if (rc == OK) rc = render_one(c, in, e);
    chat_template_close(c);
    return rc;
}

static int open_shifted(void *arg, struct err *e)
{
    const struct world *w = arg;
    int rc = OK;

    for (size_t pad = 0; pad < 4096 && rc == OK; pad += 1008) {
        struct buf text = { 0 };
        struct jinja *t = NULL;
        fault_pause();
        buf_printf(&text, "{#%*s#}", (int)pad, "");
        buf_put_str(&text, w->source);
        fault_resume();
        rc = jinja_open(&t, buf_str(&text), NULL, e);
        jinja_close(t);
        fault_pause();
        buf_release(&text);
        fault_resume();
    }
    return rc;
}

static void run_template(const char *name, struct str source, bool shifted)
{
    struct world w = { .source = source,
                       .messages = json_loads(messages_text, 0, NULL),
                       .tools = json_loads(tools_text, 0, NULL) };
    char what[200];

    assert_non_null(w.messages);
    assert_non_null(w.tools);
    snprintf(what, sizeof what, "%s: open and render", name);
    fault_run(what, open_and_render, &w);
    snprintf(what, sizeof what, "%s: parse at shifted places", name);
    if (shifted) fault_run(what, open_shifted, &w);
    json_decref(w.messages);
    json_decref(w.tools);
}

static void a_template_with_all_statements(void **state)
{
    (void)state;
    run_template("all statements", str_c(statements), true);
}

static void the_template_of_the_model_that_ships(void **state)
{
    struct tokenizer *t = NULL;
    struct err e = { 0 };

    (void)state;
    if (tokenizer_open(&t, repo("models/tern-tales.gguf"), &e) != OK) fail_msg("%s", e.msg);
    run_template("tern-tales", tokenizer_chat_template(t), true);
    tokenizer_close(t);
}

static void templates_of_public_models(void **state)
{
    static const char *const names[] = { "Qwen-Qwen3-0.6B", "openai-gpt-oss-120b" };

    (void)state;
    need_shared("fixtures/chat/cases.json");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct buf text = { 0 };
        struct err e = { 0 };
        char path[200];
        snprintf(path, sizeof path, "fixtures/chat/%s.jinja", names[i]);
        if (file_read(&text, shared(path), JINJA_MAX_SOURCE, &e) != OK) fail_msg("%s", e.msg);
        run_template(names[i], buf_str(&text), false);
        buf_release(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_template_with_all_statements),
        cmocka_unit_test(the_template_of_the_model_that_ships),
        cmocka_unit_test(templates_of_public_models),
    };
    fault_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
