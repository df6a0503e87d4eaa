/* The conversation that every protocol is translated into, and the joining of messages for strict
 * templates: what is made, and that the work grows with the size of a body and not with its square. Work
 * is counted: values of JSON that are looked at, bytes of strings that are made, places of lists that are
 * moved. Then: the readers of bodies end when their request is stopped. */
#include "support.h"

#include "api/api_impl.h"
#include "api/call.h"
#include "api/messages_impl.h"
#include "api/ollama_impl.h"
#include "api/responses_impl.h"
#include "api/respstore.h"
#include "base/jsonr.h"
#include "pool/prompter.h"

#include <stdio.h>

static size_t work;

static json_t *count_string(const char *p, size_t n)
{
    work += n;
    return json_stringn(p, n);
}

static json_t *count_element(const json_t *list, size_t i)
{
    work++;
    return json_array_get(list, i);
}

static json_t *count_member(const json_t *obj, const char *key)
{
    work++;
    return json_object_get(obj, key);
}

static int count_remove(json_t *list, size_t i)
{
    work += json_array_size(list) - i;
    return json_array_remove(list, i);
}

#define json_stringn count_string
#define json_array_get count_element
#define json_object_get count_member
#define json_array_remove count_remove
#include "api/convo.c"
#include "pool/prompter.c"
#undef json_stringn
#undef json_array_get
#undef json_object_get
#undef json_array_remove

/* ---- what is made ---- */

static void assert_messages(struct convo *v, const char *want)
{
    struct buf text = { 0 };
    struct err e = { 0 };
    json_t *list = NULL;

    assert_int_equal(convo_take(v, &list, &e), OK);
    jsonr_dump(&text, list, JSON_COMPACT);
    assert_string_equal(buf_cstr(&text), want);
    buf_release(&text);
    json_decref(list);
}

static void the_parts_of_a_turn_are_one_message(void **state)
{
    struct convo v = { 0 };

    (void)state;
    convo_add_text(&v, STR("user"), STR("q"));
    convo_add_reasoning(&v, STR("r1"));
    convo_add_text(&v, STR("assistant"), STR("a"));
    convo_add_reasoning(&v, STR("r2"));
    convo_add_text(&v, STR("assistant"), STR("b"));
    convo_add_call(&v, STR("1"), STR("f"), STR("{}"));
    convo_add_call(&v, STR("2"), STR("g"), STR("{}"));
    convo_add_text(&v, STR("assistant"), STR("c"));
    convo_add_result(&v, STR("2"), STR(""), STR("two"));
    convo_add_result(&v, STR("3"), STR(""), STR("three"));
    assert_messages(
        &v,
        "[{\"role\":\"user\",\"content\":\"q\"},"
        "{\"role\":\"assistant\",\"content\":\"a\\n\\nb\",\"reasoning_content\":\"r1\\n\\nr2\","
        "\"tool_calls\":["
        "{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}},"
        "{\"id\":\"2\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]},"
        "{\"role\":\"assistant\",\"content\":\"c\"},"
        "{\"role\":\"tool\",\"tool_call_id\":\"2\",\"name\":\"g\",\"content\":\"two\"},"
        "{\"role\":\"tool\",\"tool_call_id\":\"3\",\"content\":\"three\"}]");
}

static void a_result_finds_the_latest_call_of_its_id(void **state)
{
    json_t *past =
        json_loads("[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"1\","
                   "\"function\":{\"name\":\"old\"}},{\"id\":\"2\",\"function\":{\"name\":"
                   "\"kept\"}},{\"id\":7},{\"id\":\"3\"}]}]",
                   0, NULL);
    struct convo v = { 0 };
    json_t *list = NULL;

    (void)state;
    convo_add_messages(&v, past);
    json_decref(past);
    convo_add_call(&v, STR("1"), STR("new"), STR("{}"));
    for (int i = 1; i <= 3; i++)
        convo_add_result(&v, str_c(i == 1 ? "1" : i == 2 ? "2" : "3"), STR(""), STR("x"));
    assert_int_equal(convo_take(&v, &list, NULL), OK);
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 2), "name")), "new");
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 3), "name")),
                        "kept");
    assert_null(json_object_get(json_array_get(list, 4), "name"));
    json_decref(list);
}

static void assert_changed(bool (*change)(json_t *all, bool *changed), const char *messages,
                           const char *want)
{
    json_t *all = json_loads(messages, 0, NULL);
    struct buf text = { 0 };
    bool changed = false;

    assert_non_null(all);
    assert_true(clean_messages(all));
    assert_true(change(all, &changed));
    jsonr_dump(&text, all, JSON_COMPACT);
    assert_string_equal(buf_cstr(&text), want);
    buf_release(&text);
    json_decref(all);
}

static void assert_joined(const char *messages, const char *want)
{
    assert_changed(join_messages, messages, want);
}

#define M(role, text) "{\"role\":\"" role "\",\"content\":\"" text "\"}"

static void neighbours_of_a_role_are_joined(void **state)
{
    (void)state;
    assert_joined("[]", "[]");
    assert_joined("[" M("user", "a") "]", "[" M("user", "a") "]");
    assert_joined(
        "[" M("user", "a") "," M("user", "") "," M("user", "b") "," M("assistant", "c") "]",
        "[" M("user", "a\\n\\nb") "," M("assistant", "c") "]");
    assert_joined(
        "[" M("system", "s") "," M("user", "a") "," M("system", "t") "," M("user", "b") "]",
        "[" M("system", "s\\n\\nt") "," M("user", "a\\n\\nb") "]");
    assert_joined(
        "[" M("user", "a") "," M("system", "s") "," M("system", "t") "," M("tool", "x") "," M(
            "tool", "y") "]",
        "[" M("user", "a") "," M("system", "s\\n\\nt") "," M("tool", "x") "," M("tool", "y") "]");
    assert_joined("[" M("system", "") "," M("user", "a") "," M("system", "") "]",
                  "[" M("user", "a") "]");
    assert_joined("[" M("system", "") "," M("system", "") "]", "[" M("system", "") "]");
}

static void system_messages_can_move_to_the_front(void **state)
{
    (void)state;
    assert_changed(lift_system, "[]", "[]");
    assert_changed(lift_system, "[" M("user", "a") "," M("user", "b") "]",
                   "[" M("user", "a") "," M("user", "b") "]");
    assert_changed(
        lift_system,
        "[" M("user", "a") "," M("system", "s") "," M("user", "b") "," M("system", "t") "]",
        "[" M("system", "s\\n\\nt") "," M("user", "a\\n\\nb") "]");
    assert_changed(lift_system,
                   "[" M("developer", "d") "," M("user", "a") "," M("developer", "e") "]",
                   "[" M("system", "d\\n\\ne") "," M("user", "a") "]");
}

/* ---- the work ---- */

static void add_texts(struct convo *v, int i)
{
    (void)i;
    convo_add_text(v, STR("assistant"), STR("some text"));
}

static void add_thoughts(struct convo *v, int i)
{
    (void)i;
    convo_add_reasoning(v, STR("some thought"));
}

static void add_results(struct convo *v, int i)
{
    char id[24];

    snprintf(id, sizeof id, "%d", i);
    if (i % 2) convo_add_call(v, str_c(id), STR("f"), STR("{}"));
    else convo_add_result(v, str_c(id), STR(""), STR("x"));
}

static size_t work_of(void (*add)(struct convo *v, int i), int n)
{
    struct convo v = { 0 };
    json_t *list = NULL;

    work = 0;
    for (int i = 0; i < n; i++) add(&v, i);
    assert_int_equal(convo_take(&v, &list, NULL), OK);
    json_decref(list);
    return work;
}

static void twice_the_parts_are_twice_the_work(void **state)
{
    void (*const adds[])(struct convo * v, int i) = { add_texts, add_thoughts, add_results };

    (void)state;
    for (size_t i = 0; i < sizeof adds / sizeof *adds; i++) {
        size_t one = work_of(adds[i], 2000), two = work_of(adds[i], 4000);
        if (two > one * 5 / 2) fail_msg("case %zu: %zu for 2000 parts, %zu for 4000", i, one, two);
    }
}

/* roles: taken in turn. */
static size_t work_of_join(const char *const roles[2], const char *text, int n)
{
    json_t *all = json_array();
    bool changed = false;

    for (int i = 0; i < n; i++)
        json_array_append_new(
            all, json_pack("{s:s, s:s}", "role", roles[i % 2], "content", i ? text : "first"));
    work = 0;
    assert_true(clean_messages(all));
    assert_true(join_messages(all, &changed));
    json_decref(all);
    return work;
}

static void twice_the_messages_are_twice_the_work(void **state)
{
    static const struct {
        const char *roles[2], *text;
    } cases[] = { { { "user", "user" }, "text" },
                  { { "system", "user" }, "text" },
                  { { "system", "system" }, "text" },
                  { { "system", "assistant" }, "" } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t one = work_of_join(cases[i].roles, cases[i].text, 2000),
               two = work_of_join(cases[i].roles, cases[i].text, 4000);
        if (two > one * 5 / 2)
            fail_msg("case %zu: %zu for 2000 messages, %zu for 4000", i, one, two);
    }
}

/* ---- readers of bodies ---- */

typedef int translate_fn(struct call *c, json_t **out, struct err *e);

/* A body of n times `item`, read by a protocol. */
static int read_body(struct call *c, translate_fn *translate, const char *before, const char *item,
                     const char *after, int n, struct err *e)
{
    struct buf text = { 0 };
    json_t *out = NULL;
    int rc;

    buf_puts(&text, before);
    for (int i = 0; i < n; i++) buf_printf(&text, "%s%s", i ? "," : "", item);
    buf_puts(&text, after);
    c->source = json_loads(buf_cstr(&text), 0, NULL);
    assert_non_null(c->source);
    rc = translate(c, &out, e);
    json_decref(out);
    json_decref(c->source);
    buf_release(&text);
    buf_release(&c->skipped);
    arena_release(&c->arena);
    return rc;
}

static const struct {
    translate_fn *translate;
    const char *before, *item, *after;
} bodies[] = {
    { responses_translate, "{\"input\":[", M("assistant", "x"), "]}" },
    { responses_translate, "{\"input\":[{\"role\":\"user\",\"content\":[",
      "{\"type\":\"input_text\",\"text\":\"x\"}", "]}]}" },
    { responses_translate, "{\"input\":[",
      "{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":\"x\"}", "]}" },
    { messages_translate, "{\"messages\":[", M("user", "x"), "]}" },
    { messages_translate, "{\"messages\":[{\"role\":\"assistant\",\"content\":[",
      "{\"type\":\"text\",\"text\":\"x\"}", "]}]}" },
    { messages_translate, "{\"system\":[", "{\"type\":\"text\",\"text\":\"x\"}",
      "],\"messages\":[" M("user", "x") "]}" },
    { ollama_translate_chat, "{\"messages\":[", M("tool", "x"), "]}" },
    { ollama_translate_chat, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[",
      "{\"function\":{\"name\":\"f\"}}", "]}]}" },
};

static void a_stopped_request_is_not_read_on(void **state)
{
    static struct api a;

    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        struct err e = { 0 };
        struct call whole = { .api = &a }, gone = { .api = &a }, late = { .api = &a };
        assert_int_equal(read_body(&whole, bodies[i].translate, bodies[i].before, bodies[i].item,
                                   bodies[i].after, 5000, &e),
                         OK);
        assert_true(whole.n_items >= 5000);
        atomic_store(&gone.work.stop, STOP_GONE);
        assert_int_equal(read_body(&gone, bodies[i].translate, bodies[i].before, bodies[i].item,
                                   bodies[i].after, 5000, &e),
                         E_CANCELLED);
        assert_int_equal(gone.n_items, CALL_ITEMS_PER_LOOK);
        late.deadline_ns = 1;
        assert_int_equal(read_body(&late, bodies[i].translate, bodies[i].before, bodies[i].item,
                                   bodies[i].after, 5000, &e),
                         E_DEADLINE);
        assert_int_equal(late.n_items, CALL_ITEMS_PER_LOOK);
    }
}

static void references_bring_in_no_more_than_a_body_may_have(void **state)
{
    static const char ids[1][RESPSTORE_ITEM_ID] = { "msg_1" };
    static struct api a = { .opt = { .max_body_bytes = 10000 } };
    struct buf text = { 0 };
    struct err e = { 0 };

    (void)state;
    buf_puts(&text, "{\"output\":[{\"type\":\"message\",\"id\":\"msg_1\",\"role\":\"assistant\","
                    "\"content\":\"");
    for (int i = 0; i < 900; i++) buf_putc(&text, 'x');
    buf_puts(&text, "\"}]}");
    a.responses = respstore_open(1 << 20);
    assert_true(respstore_put(a.responses, &(struct respstore_entry){ .id = "resp_1",
                                                                      .response = buf_str(&text),
                                                                      .items = STR("[]"),
                                                                      .history = STR("[]"),
                                                                      .item_ids = ids,
                                                                      .n_items = 1 }));
    for (int n = 10; n <= 11; n++) {
        struct call c = { .api = &a };
        int rc = read_body(&c, responses_translate, "{\"store\":false,\"input\":[",
                           "{\"type\":\"item_reference\",\"id\":\"msg_1\"}", "]}", n, &e);
        assert_int_equal(rc, n == 10 ? OK : E_INVALID);
        if (rc != OK) assert_string_equal(c.p.param, "input[10]");
    }
    buf_release(&text);
    respstore_close(a.responses);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_parts_of_a_turn_are_one_message),
        cmocka_unit_test(a_result_finds_the_latest_call_of_its_id),
        cmocka_unit_test(neighbours_of_a_role_are_joined),
        cmocka_unit_test(system_messages_can_move_to_the_front),
        cmocka_unit_test(twice_the_parts_are_twice_the_work),
        cmocka_unit_test(twice_the_messages_are_twice_the_work),
        cmocka_unit_test(a_stopped_request_is_not_read_on),
        cmocka_unit_test(references_bring_in_no_more_than_a_body_may_have),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
