/* Chat templates: variables, shapes of message contents and tool arguments, continued messages,
 * and errors of templates.
 *
 * Expected prompts are written by hand. Those of ../shared/fixtures/chat were rendered by
 * Python's jinja2, set up as transformers does (skipped without them). */
#include "support.h"

#include "base/file.h"
#include "jinja/chattemplate.h"
#include "pool/prompter.h"

#include <stdio.h>
#include <string.h>

static struct chat_template *open_template(const char *text)
{
    struct chat_template_source src = { .text = str_c(text),
                                        .bos = STR("<s>"),
                                        .eos = STR("</s>") };
    struct chat_template *c = NULL;
    struct err e = { 0 };

    if (chat_template_open(&c, &src, &e) != OK) fail_msg("%s", e.msg);
    return c;
}

static void assert_prompt(const struct chat_template *c, const char *messages,
                          struct chat_template_input in, const char *want)
{
    json_t *list = json_loads(messages, 0, NULL);
    struct buf out = { 0 };
    struct err e = { 0 };

    assert_non_null(list);
    in.messages = list;
    if (chat_template_render(c, &in, &out, &e) != OK) fail_msg("%s: %s", messages, e.msg);
    assert_string_equal(buf_cstr(&out), want);
    buf_release(&out);
    json_decref(list);
}

#define LOOP(body)                                              \
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]" body \
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"

static void special_tokens_and_flags_are_variables(void **state)
{
    struct chat_template *c =
        open_template("{{ bos_token }}{{ eos_token }}{{ unk_token }}{{ tools is none }}{{ "
                      "add_generation_prompt }}{{ mood }}");
    json_t *kwargs = json_pack("{s:s, s:s}", "mood", "good", "bos_token", "B");

    (void)state;
    assert_prompt(c, "[]", (struct chat_template_input){ 0 }, "<s></s>TrueTrue");
    assert_prompt(c, "[]",
                  (struct chat_template_input){ .no_generation_prompt = true, .kwargs = kwargs },
                  "B</s>TrueFalsegood");
    json_decref(kwargs);
    chat_template_close(c);
}

static void contents_have_the_shape_the_template_understands(void **state)
{
    static const char text[] = "[{\"role\":\"user\",\"content\":\"a\"}]";
    static const char parts[] =
        "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{"
        "\"type\":\"text\",\"text\":\"b\"}]}]";
    struct chat_template *plain = open_template(LOOP("{{ m.content }}"));
    struct chat_template *listed =
        open_template(LOOP("{% for p in m.content %}({{ p.text }}){% endfor %}"));
    struct chat_template *either =
        open_template(LOOP("{% if m.content is string %}{{ m.content }}{% else %}{% "
                           "for p in m.content %}({{ p.text }})"
                           "{% endfor %}{% endif %}"));
    struct chat_template *dumped = open_template(LOOP("{{ m.content | tojson }}"));

    (void)state;
    assert_prompt(plain, text, (struct chat_template_input){ 0 }, "<s>[user]a[assistant]");
    assert_prompt(plain, parts, (struct chat_template_input){ 0 }, "<s>[user]ab[assistant]");
    assert_prompt(listed, text, (struct chat_template_input){ 0 }, "<s>[user](a)[assistant]");
    assert_prompt(listed, parts, (struct chat_template_input){ 0 }, "<s>[user](a)(b)[assistant]");
    assert_prompt(either, text, (struct chat_template_input){ 0 }, "<s>[user]a[assistant]");
    assert_prompt(either, parts, (struct chat_template_input){ 0 }, "<s>[user](a)(b)[assistant]");
    assert_prompt(dumped, parts, (struct chat_template_input){ 0 }, "<s>[user]\"ab\"[assistant]");
    chat_template_close(plain);
    chat_template_close(listed);
    chat_template_close(either);
    chat_template_close(dumped);
}

static void arguments_have_the_shape_the_template_understands(void **state)
{
    static const char chat[] =
        "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{"
        "\"name\":\"f\",\"arguments\":"
        "\"{\\\"a\\\": [1, 2.5]}\"}}]}]";
    struct chat_template *object = open_template(
        LOOP("{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}"));
    struct chat_template *text = open_template(
        LOOP("{% for c in m.tool_calls %}{{ '' + c.function.arguments }}{% endfor %}"));
    struct chat_template *printed =
        open_template(LOOP("{% for c in m.tool_calls %}{{ c.function.arguments }}{% endfor %}"));
    struct chat_template *items = open_template(LOOP(
        "{% for c in m.tool_calls %}{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}"
        "{% endfor %}{% endfor %}"));

    (void)state;
    assert_prompt(object, chat, (struct chat_template_input){ .no_generation_prompt = true },
                  "<s>[assistant]{\"a\": [1, 2.5]}");
    assert_prompt(text, chat, (struct chat_template_input){ .no_generation_prompt = true },
                  "<s>[assistant]{\"a\": [1, 2.5]}");
    assert_prompt(printed, chat, (struct chat_template_input){ .no_generation_prompt = true },
                  "<s>[assistant]{\"a\": [1, 2.5]}");
    assert_prompt(items, chat, (struct chat_template_input){ .no_generation_prompt = true },
                  "<s>[assistant]a=[1, 2.5]");
    chat_template_close(object);
    chat_template_close(text);
    chat_template_close(printed);
    chat_template_close(items);
}

/* Templates that write calls beside a null content only, as those of DeepSeek V3 and R1. */
static void an_empty_content_beside_calls_is_null_where_the_template_wants_it(void **state)
{
    static const char call[] =
        "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{"
        "\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}}]}]";
    struct chat_template *c = open_template(
        LOOP("{% if m.content is none %}{% for c in m.tool_calls %}{{ '<' + c.function.arguments "
             "+ '>' }}{% endfor %}{% else %}{{ m.content }}{% endif %}"));

    (void)state;
    assert_prompt(c, call, (struct chat_template_input){ .no_generation_prompt = true },
                  "<s>[assistant]<{\"a\": 1}>");
    assert_prompt(c, "[{\"role\":\"assistant\",\"content\":\"\"}]",
                  (struct chat_template_input){ .no_generation_prompt = true }, "<s>[assistant]");
    chat_template_close(c);
}

/* The sandbox of transformers refuses append() and pop(); templates of Kimi K2 call them all the same. */
static void a_template_may_change_its_lists(void **state)
{
    struct chat_template *c = open_template(
        "{% set all = [] %}{% for m in messages %}{% set _ = all.append(m.content) %}{% endfor %}"
        "{{ all.pop(0) }}-{{ all.pop() }}-{{ all | join('+') }}");
    struct chat_template *bad = open_template("{% set all = [] %}{% set _ = all.append(1, 2) %}");
    json_t *one = json_pack("[{s:s, s:s}]", "role", "user", "content", "a");
    struct buf out = { 0 };
    struct err e = { 0 };

    (void)state;
    assert_prompt(c,
                  "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"},{"
                  "\"role\":\"user\",\"content\":\"c\"}]",
                  (struct chat_template_input){ .no_generation_prompt = true }, "a-c-b");
    assert_int_equal(
        chat_template_render(bad, &(struct chat_template_input){ .messages = one }, &out, &e),
        E_INVALID);
    assert_non_null(strstr(e.msg, "append() takes exactly one argument (2 given)"));
    json_decref(one);
    buf_release(&out);
    chat_template_close(c);
    chat_template_close(bad);
}

static void a_last_message_can_be_continued(void **state)
{
    struct chat_template *c = open_template(LOOP("{{ m.content }}<end>")),
                         *trims = open_template(LOOP("{{ m.content | trim }}<end>"));
    struct chat_template *hides = open_template(LOOP("x<end>"));
    json_t *list = json_pack("[{s:s, s:s}]", "role", "assistant", "content", "Sure");
    struct buf out = { 0 };
    struct err e = { 0 };

    (void)state;
    assert_prompt(c,
                  "[{\"role\":\"user\",\"content\":\"Sure\"},{\"role\":\"assistant\",\"content\":"
                  "\"Sure, \"}]",
                  (struct chat_template_input){ .continue_final = true },
                  "<s>[user]Sure<end>[assistant]Sure, ");
    assert_prompt(trims, "[{\"role\":\"assistant\",\"content\":\" Sure, \"}]",
                  (struct chat_template_input){ .continue_final = true }, "<s>[assistant]Sure,");
    assert_int_equal(chat_template_render(
                         hides,
                         &(struct chat_template_input){ .messages = list, .continue_final = true },
                         &out, &e),
                     E_INVALID);
    assert_int_equal(out.n, 0);
    buf_release(&out);
    json_decref(list);
    chat_template_close(c);
    chat_template_close(trims);
    chat_template_close(hides);
}

static void requests_with_tools_may_have_another_template(void **state)
{
    struct chat_template_source src = {
        .text = STR("plain"), .tools = STR("{% for t in tools %}{{ t.function.name }};{% endfor %}")
    };
    json_t *tools = json_pack("[{s:s, s:{s:s}}]", "type", "function", "function", "name", "f");
    struct chat_template *c = NULL;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(chat_template_open(&c, &src, &e), OK);
    assert_prompt(c, "[]", (struct chat_template_input){ 0 }, "plain");
    assert_prompt(c, "[]", (struct chat_template_input){ .tools = tools }, "f;");
    assert_true(chat_template_takes_tools(c));
    assert_true(str_is(chat_template_text(c, false), "plain"));
    chat_template_close(c);
    c = open_template("plain");
    assert_false(chat_template_takes_tools(c));
    chat_template_close(c);
    json_decref(tools);
    src = (struct chat_template_source){ .text = STR("") };
    assert_int_equal(chat_template_open(&c, &src, &e), E_NOTFOUND);
    src.text = STR("{% if %}");
    assert_int_equal(chat_template_open(&c, &src, &e), E_FORMAT);
}

static void a_refusal_of_the_template_is_invalid_input(void **state)
{
    struct chat_template *c = open_template("{{ raise_exception('System role not supported') }}"),
                         *wrong = open_template("{{ messages[0].x.y }}");
    json_t *list = json_pack("[{s:s, s:s}]", "role", "system", "content", "S");
    struct buf out = { 0 };
    struct err e = { 0 };

    (void)state;
    assert_int_equal(
        chat_template_render(c, &(struct chat_template_input){ .messages = list }, &out, &e),
        E_INVALID);
    assert_non_null(strstr(e.msg, "System role not supported"));
    assert_int_equal(
        chat_template_render(wrong, &(struct chat_template_input){ .messages = list }, &out, &e),
        E_INVALID);
    assert_int_equal(e.code, E_INVALID);
    buf_release(&out);
    json_decref(list);
    chat_template_close(c);
    chat_template_close(wrong);
}

/* chat_template_render gives the text of the fixture for every fixture that renders without an
 * error. */
static void public_templates_render_exactly(void **state)
{
    struct buf text = { 0 }, source = { 0 };
    json_t *all, *expected, *want, *vars;
    const char *name, *key;
    struct err e = { 0 };
    int n = 0;

    (void)state;
    need_shared("fixtures/chat/cases.json");
    assert_int_equal(file_read(&text, shared("fixtures/chat/cases.json"), 16u << 20, &e), OK);
    all = json_loadb(text.p, text.n, 0, NULL);
    vars = json_pack("{s:s}", "strftime_now", "2026-01-02 03:04:05");
    json_object_foreach (json_object_get(all, "expected"), name, expected) {
        char path[300];
        struct chat_template *c = NULL;
        snprintf(path, sizeof path, "fixtures/chat/%s.jinja", name);
        buf_clear(&source);
        assert_int_equal(file_read(&source, shared(path), JINJA_MAX_SOURCE, &e), OK);
        struct chat_template_source src = { .text = buf_str(&source),
                                            .bos = STR("<s>"),
                                            .eos = STR("</s>"),
                                            .unk = STR("<unk>"),
                                            .pad = STR("<pad>") };
        assert_int_equal(chat_template_open(&c, &src, &e), OK);
        json_object_foreach (expected, key, want) {
            json_t *chat = json_object_get(json_object_get(all, "cases"), key),
                   *kwargs = json_copy(vars);
            const char *flags[] = { "enable_thinking" };
            struct chat_template_input in = { .messages = json_object_get(chat, "messages"),
                                              .tools = json_object_get(chat, "tools"),
                                              .kwargs = kwargs,
                                              .no_generation_prompt = !json_is_true(
                                                  json_object_get(chat, "add_generation_prompt")) };
            struct buf out = { 0 };
            if (json_object_get(chat, flags[0]))
                json_object_set(kwargs, flags[0], json_object_get(chat, flags[0]));
            if (chat_template_render(c, &in, &out, &e) == OK && json_object_get(want, "text")) {
                if (strcmp(buf_cstr(&out), json_string_value(json_object_get(want, "text"))))
                    fail_msg("%s, %s:\n%s", name, key, buf_cstr(&out));
                n++;
            } else {
                if (!json_object_get(want, "error")) fail_msg("%s, %s: %s", name, key, e.msg);
            }
            buf_release(&out);
            json_decref(kwargs);
        }
        chat_template_close(c);
    }
    assert_true(n > 110);
    json_decref(all);
    json_decref(vars);
    buf_release(&text);
    buf_release(&source);
}

static void templates_are_found_in_tokenizer_config(void **state)
{
    static const char list[] = "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"T\"},{"
                               "\"name\":\"default\",\"template\":"
                               "\"D\"},{\"name\":\"rag\",\"template\":\"R\"}]}";
    struct buf json = { 0 };
    struct tokenizer *t = NULL;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(
        file_read_gz(&json, repo("tests/golden/tokenizers/tern-tales.json.gz"), 64u << 20, &e), OK);
    assert_int_equal(tokenizer_from_json(&t, buf_str(&json), str_c(list), "list", &e), OK);
    assert_true(str_is(tokenizer_chat_template(t), "D"));
    assert_true(str_is(tokenizer_tool_template(t), "T"));
    tokenizer_close(t);
    assert_int_equal(
        tokenizer_from_json(&t, buf_str(&json), STR("{\"chat_template\":\"S\"}"), "text", &e), OK);
    assert_true(str_is(tokenizer_chat_template(t), "S"));
    assert_int_equal(tokenizer_tool_template(t).n, 0);
    tokenizer_close(t);
    buf_release(&json);
}

static void the_shipped_model_has_a_template(void **state)
{
    struct tokenizer *t = NULL;
    struct prompter *p = NULL;
    struct err e = { 0 };
    struct prompt_output out = { 0 }, again = { 0 };
    json_t *list = json_pack("[{s:s, s:s}]", "role", "user", "content", "Hi");
    struct chat_msg msg = { STR("user"), STR("Hi") };
    struct prompt_input in = { .msgs = &msg, .n_msgs = 1 };
    const char *file = temp_file("t.jinja", "{{ messages[0].content }}!", 26),
               *bad = temp_file("bad.jinja", "{{", 2);

    (void)state;
    assert_int_equal(tokenizer_open(&t, repo("models/tern-tales.gguf"), &e), OK);
    assert_int_equal(prompter_open(&p, t, NULL, &e), OK);
    assert_true(prompter_knows_chat(p));
    assert_string_equal(prompter_name(p), "template");
    assert_int_equal(prompter_make(p, &in, &out, &e), OK);
    assert_int_equal(out.ids.p[0], tokenizer_bos(t));
    assert_int_not_equal(out.ids.p[1], tokenizer_bos(t));
    in.messages = list; /* plain messages and messages of the API give the same prompt */
    assert_int_equal(prompter_make(p, &in, &again, &e), OK);
    assert_string_equal(buf_cstr(&again.text), buf_cstr(&out.text));
    prompter_close(p);
    assert_int_equal(prompter_open(&p, t, file, &e), OK);
    assert_true(str_is(prompter_template(p, false), "{{ messages[0].content }}!"));
    prompter_close(p);
    p = NULL;
    assert_int_equal(prompter_open(&p, t, bad, &e), E_FORMAT);
    assert_null(p);
    assert_int_equal(prompter_open(&p, t, "nowhere.jinja", &e), E_NOTFOUND);
    prompt_output_release(&out);
    prompt_output_release(&again);
    json_decref(list);
    tokenizer_close(t);
}

/* The template runs for long with the message "loop" only: not when it is opened. */
static void a_rendering_ends_with_its_request(void **state)
{
    static const char source[] = "{% if messages[0].content == 'loop' %}{% for i in range(90000) "
                                 "%}{% for j in range(90000) %}"
                                 "{% endfor %}{% endfor %}{% endif %}{{ messages[0].content }}";
    struct tokenizer *t = NULL;
    struct prompter *p = NULL;
    struct prompt_output out = { 0 };
    struct chat_msg msg = { STR("user"), STR("loop") };
    atomic_int stop = 1;
    json_t *tools = json_pack("[{s:s, s:{s:s}}]", "type", "function", "function", "name", "f"),
           *list = json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "user", "content", "loop", "role",
                             "user", "content", "loop");
    struct prompt_input in = { .msgs = &msg, .n_msgs = 1, .stop = &stop };
    struct err e = { 0 };

    (void)state;
    assert_int_equal(tokenizer_open(&t, repo("models/tern-tales.gguf"), &e), OK);
    assert_int_equal(prompter_open(&p, t, temp_file("l.jinja", source, sizeof source - 1), &e), OK);
    assert_int_equal(prompter_make(p, &in, &out, &e), E_CANCELLED);
    in.messages = list; /* no other form of the messages or tools is tried */
    in.tools = tools;
    assert_int_equal(prompter_make(p, &in, &out, &e), E_CANCELLED);
    in.stop = NULL;
    in.deadline_ns = 1;
    assert_int_equal(prompter_make(p, &in, &out, &e), E_DEADLINE);
    assert_true(!out.field[0] && !out.by_template && out.text.n == 0);
    in = (struct prompt_input){ .msgs = &msg, .n_msgs = 1 };
    assert_int_equal(prompter_make(p, &in, &out, &e), E_INVALID); /* too many steps */
    prompt_output_release(&out);
    prompter_close(p);
    tokenizer_close(t);
    json_decref(tools);
    json_decref(list);
}

/* ---- borders of prompts ---- */

/* Opens an answer with a tag that the history does not have, as templates of reasoning models do. */
#define THINKS                                                                          \
    "{% if messages[-1].role == 'system' %}{{ raise_exception('no user') }}{% endif %}" \
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"     \
    "{% if add_generation_prompt %}<|assistant|>\n<think>\n{% endif %}"

static const struct chat_msg turns[] = {
    { { "system", 6 }, { "You tell tales of a fox and a crow.", 35 } },
    { { "user", 4 }, { "Once upon a time?", 17 } },
    { { "assistant", 9 }, { "There was a fox.", 16 } },
    { { "user", 4 }, { "And then? What did the crow say to the fox?", 43 } },
    { { "assistant", 9 }, { "Nothing.", 8 } },
    { { "user", 4 }, { "Why?", 4 } },
};

static struct prompt_output make_bordered(const struct prompter *p, size_t n)
{
    struct prompt_input in = { .msgs = turns, .n_msgs = n, .find_borders = true };
    struct prompt_output out = { 0 };
    struct err e = { 0 };

    if (prompter_make(p, &in, &out, &e) != OK) fail_msg("%s", e.msg);
    return out;
}

static void assert_before(const struct tokenizer *t, const struct prompt_output *o, int i,
                          const char *want)
{
    struct buf text = { 0 };

    assert_true(i < o->n_borders && o->borders[i] <= (int)o->ids.n);
    tokenizer_decode(t, o->ids.p, (size_t)o->borders[i], false, &text);
    assert_string_equal(buf_cstr(&text), want);
    buf_release(&text);
}

static void borders_of_a_prompt_are_ends_of_messages(void **state)
{
    const char *file = temp_file("thinks.jinja", THINKS, sizeof THINKS - 1);
    struct prompt_input plain = { .msgs = turns, .n_msgs = 4 };
    struct prompt_output out, next, none = { 0 };
    struct tokenizer *t = NULL;
    struct prompter *p = NULL;
    struct err e = { 0 };
    int same;
    (void)state;

    assert_int_equal(tokenizer_open(&t, repo("models/tern-tales.gguf"), &e), OK);
    assert_int_equal(prompter_open(&p, t, file, &e), OK);
    out = make_bordered(p, 4);
    assert_int_equal(out.n_borders, 3);
#define SYSTEM "<|system|>\nYou tell tales of a fox and a crow.<|end|>\n"
#define TURN "<|user|>\nOnce upon a time?<|end|>\n<|assistant|>\nThere was a fox.<|end|>\n"
    assert_before(t, &out, 0, SYSTEM "<|user|>\n");
    assert_before(t, &out, 1, SYSTEM TURN);
    assert_before(t, &out, 2,
                  SYSTEM TURN "<|user|>\nAnd then? What did the crow say to the fox?<|end|>\n"
                              "<|assistant|>\n");
    /* The next turn begins with the last border and not with the whole prompt. */
    next = make_bordered(p, 6);
    for (same = 0; same < (int)out.ids.n && out.ids.p[same] == next.ids.p[same];) same++;
    assert_true(same >= out.borders[2] && same < (int)out.ids.n);
    prompt_output_release(&out), prompt_output_release(&next);
    out = make_bordered(p, 2); /* before the last message is behind the system's */
    assert_int_equal(out.n_borders, 2);
    assert_before(t, &out, 0, SYSTEM "<|user|>\n");
    prompt_output_release(&out);
    assert_int_equal(prompter_make(p, &plain, &none, &e), OK);
    assert_int_equal(none.n_borders, 0); /* nobody asked */
    prompt_output_release(&none);
    prompter_close(p);
    tokenizer_close(t);
}

static void forms_have_borders_too(void **state)
{
    struct buf json = { 0 };
    struct prompt_output out;
    struct tokenizer *t = NULL;
    struct prompter *p = NULL;
    struct err e = { 0 };
    (void)state;

    assert_int_equal(
        file_read_gz(&json, repo("tests/golden/tokenizers/tern-tales.json.gz"), 64u << 20, &e), OK);
    assert_int_equal(tokenizer_from_json(&t, buf_str(&json), STR("{}"), "none", &e), OK);
    assert_int_equal(prompter_open(&p, t, NULL, &e), OK);
    assert_string_not_equal(prompter_name(p), "template");
    out = make_bordered(p, 4);
    assert_int_equal(out.n_borders, 2);
    assert_int_equal(out.borders[1], out.ids.n);
    assert_true(out.borders[0] > 20 && out.borders[0] < (int)out.ids.n - 10);
    prompt_output_release(&out);
    prompter_close(p);
    tokenizer_close(t);
    buf_release(&json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(special_tokens_and_flags_are_variables),
        cmocka_unit_test(a_rendering_ends_with_its_request),
        cmocka_unit_test(contents_have_the_shape_the_template_understands),
        cmocka_unit_test(arguments_have_the_shape_the_template_understands),
        cmocka_unit_test(an_empty_content_beside_calls_is_null_where_the_template_wants_it),
        cmocka_unit_test(a_template_may_change_its_lists),
        cmocka_unit_test(a_last_message_can_be_continued),
        cmocka_unit_test(requests_with_tools_may_have_another_template),
        cmocka_unit_test(a_refusal_of_the_template_is_invalid_input),
        cmocka_unit_test(public_templates_render_exactly),
        cmocka_unit_test(borders_of_a_prompt_are_ends_of_messages),
        cmocka_unit_test(forms_have_borders_too),
        cmocka_unit_test(templates_are_found_in_tokenizer_config),
        cmocka_unit_test(the_shipped_model_has_a_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
