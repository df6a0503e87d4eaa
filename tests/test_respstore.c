/* The store of answers of /v1/responses: bounds, tenants, order of use. */
#include "support.h"

#include "base/str.h"

#include <stdio.h>

static int n_compared; /* ids that the store compared */

static bool count_is(struct str s, const char *with)
{
    n_compared++;
    return str_is(s, with);
}

#define str_is count_is
#include "api/respstore.c"
#undef str_is

static bool put(struct respstore *s, const char *id, uint32_t tenant, size_t bytes)
{
    char item[1][RESPSTORE_ITEM_ID];
    struct buf text = { 0 };
    bool stored;

    snprintf(item[0], sizeof item[0], "msg_%s", id);
    buf_printf(&text, "{\"output\":[{\"id\":\"msg_%s\"}]}", id);
    while (text.n < bytes) buf_putc(&text, ' ');
    stored = respstore_put(s, &(struct respstore_entry){ .id = id,
                                                         .tenant = tenant,
                                                         .response = buf_str(&text),
                                                         .items = STR("[1]"),
                                                         .history = STR("[2]"),
                                                         .item_ids = (const char(*)[96])item,
                                                         .n_items = 1 });
    buf_release(&text);
    return stored;
}

static bool has(struct respstore *s, const char *id, uint32_t tenant)
{
    struct buf out = { 0 };
    bool found = respstore_get(s, str_c(id), tenant, RESPSTORE_RESPONSE, &out);

    buf_release(&out);
    return found;
}

static void the_parts_of_an_entry_come_back(void **state)
{
    struct respstore *s = respstore_open(1 << 20);
    struct buf out = { 0 };

    (void)state;
    assert_true(put(s, "a", 1, 0));
    assert_true(respstore_get(s, STR("a"), 1, RESPSTORE_ITEMS, &out));
    assert_true(respstore_get(s, STR("a"), 1, RESPSTORE_HISTORY, &out));
    assert_string_equal(buf_cstr(&out), "[1][2]");
    buf_clear(&out);
    assert_true(respstore_get_by_item(s, STR("msg_a"), 1, &out));
    assert_false(respstore_get_by_item(s, STR("msg_b"), 1, &out));
    assert_false(respstore_get_by_item(s, STR("msg_a"), 2, &out));
    buf_release(&out);
    respstore_close(s);
}

static void another_tenant_sees_nothing(void **state)
{
    struct respstore *s = respstore_open(1 << 20);

    (void)state;
    assert_true(put(s, "a", 1, 0));
    assert_false(has(s, "a", 2));
    assert_false(respstore_delete(s, STR("a"), 2));
    assert_true(has(s, "a", 1));
    assert_true(respstore_delete(s, STR("a"), 1));
    assert_false(respstore_delete(s, STR("a"), 1));
    assert_int_equal(respstore_count(s), 0);
    respstore_close(s);
}

static void the_one_unused_for_longest_is_dropped_first(void **state)
{
    struct respstore *s = respstore_open(11 << 10);

    (void)state;
    assert_true(put(s, "a", 1, 4000));
    assert_true(put(s, "b", 1, 4000));
    assert_true(has(s, "a", 1)); /* b is the older one now */
    assert_true(put(s, "c", 1, 4000));
    assert_true(has(s, "a", 1));
    assert_true(has(s, "c", 1));
    assert_false(has(s, "b", 1));
    assert_false(put(s, "large", 1, 20000));
    assert_true(has(s, "a", 1));
    respstore_close(s);
}

static void nothing_is_stored_without_room(void **state)
{
    struct respstore *s = respstore_open(0);

    (void)state;
    assert_false(put(s, "a", 1, 0));
    assert_false(has(s, "a", 1));
    respstore_close(s);
    respstore_close(NULL);
}

static void the_number_of_entries_is_bounded(void **state)
{
    struct respstore *s = respstore_open(64 << 20);
    char id[16];

    (void)state;
    for (int i = 0; i < RESPSTORE_MAX + 10; i++) {
        snprintf(id, sizeof id, "r%d", i);
        assert_true(put(s, id, 1, 0));
    }
    assert_int_equal(respstore_count(s), RESPSTORE_MAX);
    assert_false(has(s, "r0", 1));
    assert_true(has(s, id, 1));
    respstore_close(s);
}

/* Also after entries were dropped and deleted, in any order. */
static void entries_and_items_are_found_without_a_search(void **state)
{
    struct respstore *s = respstore_open(64 << 20);
    struct buf out = { 0 };
    char id[24];

    (void)state;
    for (int i = 0; i < RESPSTORE_MAX + 1000; i++) {
        snprintf(id, sizeof id, "r%d", i);
        assert_true(put(s, id, 1, 0));
    }
    for (int i = 1000; i < RESPSTORE_MAX + 1000; i += 2) {
        snprintf(id, sizeof id, "r%d", i);
        assert_true(respstore_delete(s, str_c(id), 1));
    }
    n_compared = 0;
    for (int i = 0; i < RESPSTORE_MAX + 1000; i++) {
        bool there = i >= 1000 && i % 2;
        snprintf(id, sizeof id, "r%d", i);
        assert_int_equal(has(s, id, 1), there);
        snprintf(id, sizeof id, "msg_r%d", i);
        assert_int_equal(respstore_get_by_item(s, str_c(id), 1, &out), there);
        buf_clear(&out);
    }
    assert_true(n_compared < 4 * (RESPSTORE_MAX + 1000));
    buf_release(&out);
    respstore_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_parts_of_an_entry_come_back),
        cmocka_unit_test(another_tenant_sees_nothing),
        cmocka_unit_test(the_one_unused_for_longest_is_dropped_first),
        cmocka_unit_test(nothing_is_stored_without_room),
        cmocka_unit_test(the_number_of_entries_is_bounded),
        cmocka_unit_test(entries_and_items_are_found_without_a_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
