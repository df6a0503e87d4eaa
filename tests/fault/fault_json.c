/* JSON under faults: jansson must not see a failed allocation. Its lexer collects a token in a
 * buffer whose growth it does not check, so strings of many lengths make the buffer grow at each of
 * their bytes, the closing quote included. */
#include "fault.h"

#include "base/buf.h"
#include "base/jsonr.h"

enum { MAX_LENGTH = 70 };

/* One string of every length, as keys and as values, in nested objects and lists. */
static void make_text(struct buf *out)
{
    for (int n = 1; n <= MAX_LENGTH; n++) {
        buf_puts(out, "{\"");
        for (int i = 0; i < n; i++) buf_putc(out, (char)('a' + i % 26));
        buf_puts(out, "\":[1,-2.5e3,true,null,\"");
        for (int i = 0; i < n; i++) buf_puts(out, i % 7 ? "x" : "\\u00e9");
        buf_puts(out, "\",");
    }
    buf_puts(out, "0");
    for (int n = 0; n < MAX_LENGTH; n++) buf_puts(out, "]}");
}

static int load_text(void *arg, struct err *e)
{
    const struct buf *text = arg;
    json_error_t je;
    json_t *root = jsonr_load(buf_str(text), 0, &je), *v = root;

    if (!root && json_error_code(&je) == json_error_out_of_memory)
        return err_nomem(e, "a JSON tree");
    assert_non_null(root);
    for (size_t n = 1; n <= MAX_LENGTH; n++) {
        assert_int_equal(strlen(json_object_iter_key(json_object_iter(v))), n);
        v = json_object_iter_value(json_object_iter(v));
        assert_int_equal(json_string_length(json_array_get(v, 4)), n + (n + 6) / 7);
        v = json_array_get(v, 5);
    }
    json_decref(root);
    return OK;
}

static int load_bad_text(void *arg, struct err *e)
{
    json_error_t je;

    assert_null(jsonr_load(str_c(arg), JSON_REJECT_DUPLICATES, &je));
    return json_error_code(&je) == json_error_out_of_memory ? err_nomem(e, "a JSON tree") : OK;
}

static void texts_are_read_whole_or_not_at_all(void **state)
{
    struct buf text = { 0 };
    (void)state;
    make_text(&text);
    fault_run("JSON with strings of every length", load_text, &text);
    fault_run("JSON with a duplicate key", load_bad_text, "{\"a\":[1,2,3],\"a\":{\"b\":\"c\"}}");
    fault_run("JSON that is cut off", load_bad_text, "{\"abcdefghijklmnopqrstuvwxyz\":[1,\"xyz");
    buf_release(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(texts_are_read_whole_or_not_at_all) };
    fault_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
