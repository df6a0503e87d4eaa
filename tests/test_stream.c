/* Stop strings and text events of a request (engine/stream): stop strings are found however the
 * text is cut, and text is emitted as soon as it cannot be part of a stop string.
 *
 * Uses the tokenizer of the shipped model, and of ../shared/models/tern-tales-main (skipped
 * without it). */
#include "support.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "engine/stream.h"

#include <string.h>

/* Feeds the text in pieces of n bytes. Returns the emitted text; *stopped: a stop string was
 * found. */
static const char *feed_text(struct buf *out, const char *text, size_t n, const struct str *stops,
                             int n_stops, bool *stopped)
{
    struct stream s;

    buf_clear(out);
    stream_init(&s, NULL, stops, n_stops);
    *stopped = false;
    for (size_t at = 0, len = strlen(text); at < len && !*stopped; at += n)
        *stopped = stream_push_text(&s, str_take(str_skip(str_c(text), at), n), out);
    if (stream_flush(&s, out)) *stopped = true;
    stream_release(&s);
    return buf_cstr(out);
}

static void stop_strings_are_found_wherever_the_text_is_cut(void **state)
{
    const struct str stops[] = { STR("\nUser:"), STR("END") };
    struct buf out = { 0 };
    bool stopped;
    (void)state;
    for (size_t n = 1; n < 30; n++) {
        assert_string_equal(feed_text(&out, "Hello.\nUser: hi", n, stops, 2, &stopped), "Hello.");
        assert_true(stopped);
        assert_string_equal(feed_text(&out, "The EN and the END of it", n, stops, 2, &stopped),
                            "The EN and the ");
        assert_true(stopped);
        assert_string_equal(feed_text(&out, "no stop here \nUse", n, stops, 2, &stopped),
                            "no stop here \nUse");
        assert_false(stopped);
        assert_string_equal(feed_text(&out, "ENEND", n, stops, 2, &stopped), "EN");
        assert_true(stopped);
    }
    buf_release(&out);
}

static void the_stop_string_that_is_complete_first_ends_the_text(void **state)
{
    const struct str stops[] = { STR("abcd"), STR("bc"), STR("zbc") };
    struct buf out = { 0 };
    bool stopped;
    (void)state;
    for (size_t n = 1; n < 8; n++) {
        assert_string_equal(feed_text(&out, "xabcd", n, stops, 2, &stopped), "xa");
        assert_string_equal(feed_text(&out, "xzbcd", n, stops, 3, &stopped),
                            "x"); /* both end here: the longer one counts */
        assert_true(stopped);
    }
    buf_release(&out);
}

static void stop_strings_with_repetitions_are_found(void **state)
{
    const struct str stops[] = { STR("aab") };
    struct buf out = { 0 };
    bool stopped;
    (void)state;
    for (size_t n = 1; n < 8; n++) {
        assert_string_equal(feed_text(&out, "aaaaab!", n, stops, 1, &stopped), "aaa");
        assert_true(stopped);
    }
    buf_release(&out);
}

static void text_is_emitted_as_soon_as_it_cannot_be_part_of_a_stop_string(void **state)
{
    const struct str stops[] = { STR("###") };
    struct stream s;
    struct buf out = { 0 };
    (void)state;
    stream_init(&s, NULL, stops, 1);
    assert_false(stream_push_text(&s, STR("one"), &out));
    assert_string_equal(buf_cstr(&out), "one");
    assert_false(stream_push_text(&s, STR("##"), &out));
    assert_string_equal(buf_cstr(&out), "one");
    assert_false(stream_push_text(&s, STR("x"), &out));
    assert_string_equal(buf_cstr(&out), "one##x");
    assert_true(stream_push_text(&s, STR("y###z"), &out));
    assert_string_equal(buf_cstr(&out), "one##xy");
    assert_true(stream_push_text(&s, STR("more"), &out)); /* the stream remains stopped */
    assert_true(stream_flush(&s, &out));
    assert_string_equal(buf_cstr(&out), "one##xy");
    stream_release(&s);
    buf_release(&out);
}

static void without_stop_strings_all_text_passes(void **state)
{
    const struct str stops[] = { STR("") };
    struct buf out = { 0 };
    bool stopped;
    (void)state;
    assert_string_equal(feed_text(&out, "all of it", 2, stops, 1, &stopped), "all of it");
    assert_false(stopped);
    assert_string_equal(feed_text(&out, "all of it", 2, NULL, 0, &stopped), "all of it");
    buf_release(&out);
}

static void tokens_give_whole_characters_and_the_same_text(void **state)
{
    const struct str text = STR("Lily saw a caf\xc3\xa9 \xf0\x9f\x90\xb8 and said: na\xc3\xafve!");
    struct tokenizer *t = NULL;
    struct ids ids = { 0 };
    struct buf out = { 0 }, piece = { 0 };
    struct stream s;
    struct err e = { 0 };
    (void)state;
    need_shared("models/tern-tales-main");
    if (tokenizer_open(&t, shared("models/tern-tales-main"), &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(tokenizer_encode(t, text, ENCODE_PLAIN, &ids, &e), OK);
    stream_init(&s, t, NULL, 0);
    for (size_t i = 0; i < ids.n; i++) {
        buf_clear(&piece);
        stream_push(&s, ids.p[i], &piece);
        assert_int_equal(utf8_bad(buf_str(&piece)), -1);
        buf_put_str(&out, buf_str(&piece));
    }
    stream_flush(&s, &out);
    assert_int_equal(out.n, text.n);
    assert_memory_equal(out.p, text.p, text.n);
    stream_release(&s);
    buf_release(&out), buf_release(&piece);
    ids_release(&ids);
    tokenizer_close(t);
}

static void special_tokens_are_emitted_as_text_if_requested(void **state)
{
    struct tokenizer *t = NULL;
    struct err e = { 0 };
    struct ids ids = { 0 };
    struct buf out = { 0 };
    int32_t shown;
    (void)state;
    assert_int_equal(tokenizer_open(&t, repo("models/tern-tales.gguf"), &e), OK);
    assert_int_equal(tokenizer_encode(t, STR("Once<|user|> upon<|end|> a time"), 0, &ids, &e), OK);
    shown = tokenizer_find(t, STR("<|user|>"));
    assert_true(shown >= 0);
    for (int asked = 0; asked < 2; asked++) {
        struct stream s;
        stream_init(&s, t, NULL, 0);
        s.shown = &shown;
        s.n_shown = asked;
        buf_clear(&out);
        for (size_t i = 0; i < ids.n; i++) stream_push(&s, ids.p[i], &out);
        stream_flush(&s, &out);
        assert_string_equal(buf_cstr(&out),
                            asked ? "Once<|user|> upon a time" : "Once upon a time");
        stream_release(&s);
    }
    buf_release(&out);
    ids_release(&ids);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(special_tokens_are_emitted_as_text_if_requested),
        cmocka_unit_test(stop_strings_are_found_wherever_the_text_is_cut),
        cmocka_unit_test(the_stop_string_that_is_complete_first_ends_the_text),
        cmocka_unit_test(stop_strings_with_repetitions_are_found),
        cmocka_unit_test(text_is_emitted_as_soon_as_it_cannot_be_part_of_a_stop_string),
        cmocka_unit_test(without_stop_strings_all_text_passes),
        cmocka_unit_test(tokens_give_whole_characters_and_the_same_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
