/* Streaming detokenization: ids decoded one at a time give the same text as all ids at once, and
 * never half a character.
 *
 * Reads the tokenizer of the shipped model, golden cases, and tokenizers and GGUF vocabularies
 * of ../shared (skipped without them). */
#include "support.h"

#include "base/utf8.h"
#include "token/tokenizer.h"

#include <jansson.h>
#include <stdio.h>

#define REPLACED "\xef\xbf\xbd"

static struct tokenizer *must_open(const char *path)
{
    struct tokenizer *t = NULL;
    struct err e = { 0 };

    if (tokenizer_open(&t, path, &e) != OK) fail_msg("%s", e.msg);
    return t;
}

static struct tokenizer *must_open_json(const char *json)
{
    struct tokenizer *t = NULL;
    struct err e = { 0 };

    if (tokenizer_from_json(&t, str_c(json), STR(""), "test.json", &e) != OK) fail_msg("%s", e.msg);
    return t;
}

/* Decodes the ids one at a time; the text so far must be whole characters after every id. */
static void stream_ids(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip,
                       struct buf *out)
{
    struct detok d;

    detok_init(&d, t, skip);
    for (size_t i = 0; i < n; i++) {
        detok_push(&d, ids[i], out);
        if (utf8_bad(buf_str(out)) >= 0) fail_msg("an incomplete character was emitted");
    }
    detok_flush(&d, out);
    assert_true(utf8_bad(buf_str(out)) < 0);
    detok_release(&d);
}

static void expect_same(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip,
                        const char *name)
{
    struct buf whole = { 0 }, parts = { 0 };

    tokenizer_decode(t, ids, n, skip, &whole);
    stream_ids(t, ids, n, skip, &parts);
    if (!str_eq(buf_str(&whole), buf_str(&parts)) && str_find(buf_str(&whole), STR(REPLACED)) < 0)
        fail_msg("%s: '%.80s' was streamed as '%.80s'", name, buf_cstr(&whole), buf_cstr(&parts));
    buf_release(&whole);
    buf_release(&parts);
}

static void expect_stream(const struct tokenizer *t, const int32_t *ids, size_t n, const char *text)
{
    struct buf out = { 0 };

    stream_ids(t, ids, n, true, &out);
    assert_string_equal(buf_cstr(&out), text);
    buf_release(&out);
}

#define BYTES(more)                                                                                \
    "{\"decoder\":{\"type\":\"ByteLevel\"},\"added_tokens\":[{\"id\":9,\"content\":\"<s>\","       \
    "\"special\":true}],\"model\":"                                                                \
    "{\"type\":\"BPE\",\"vocab\":{\"\xc3\xa2\":0,\"\xc4\xa4\":1,\"\xc2\xac\":2,\"a\":3,\"\xc4\xa0" \
    "b\":4,\"<s>\":9" more "},\"merges\":[]}}"

static void incomplete_characters_are_held_back(void **state)
{
    struct tokenizer *t = must_open_json(BYTES("")); /* 0 1 2 are the bytes e2 82 ac */
    struct buf out = { 0 };
    struct detok d;

    (void)state;
    detok_init(&d, t, true);
    detok_push(&d, 3, &out);
    assert_string_equal(buf_cstr(&out), "a");
    detok_push(&d, 0, &out);
    detok_push(&d, 1, &out);
    assert_string_equal(buf_cstr(&out), "a");
    detok_push(&d, 2, &out);
    assert_string_equal(buf_cstr(&out), "a\xe2\x82\xac");
    detok_push(&d, 0, &out);
    detok_flush(&d, &out);
    assert_string_equal(buf_cstr(&out), "a\xe2\x82\xac" REPLACED);
    detok_release(&d);
    buf_release(&out);
    tokenizer_close(t);
}

static void bytes_that_cannot_become_a_character_are_replaced_at_once(void **state)
{
    struct tokenizer *t = must_open_json(BYTES(""));
    const int32_t broken[] = { 0, 1, 3, 2, 3 }, special[] = { 9, 3, 9, 4 };

    (void)state;
    expect_stream(t, broken, 5, REPLACED "a" REPLACED "a");
    expect_stream(t, special, 4, "a b");
    tokenizer_close(t);
}

#define MARKS                                                                                      \
    "{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"        \
    "\"String\":\"_\"},\"content\":\" \"},"                                                        \
    "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "          \
    "\",\"start\":1,\"stop\":0}]},\"added_tokens\":"                                               \
    "[{\"id\":6,\"content\":\"<s>\",\"special\":true}],\"model\":{\"type\":\"BPE\",\"vocab\":{\"_" \
    "a\":0,\"_\":1,\"b\":2,\"<0xC3>\":3,"                                                          \
    "\"<0xA9>\":4,\"__c\":5,\"<s>\":6},\"merges\":[]}}"

static void only_the_first_space_of_a_text_is_removed(void **state)
{
    struct tokenizer *t = must_open_json(MARKS);
    const int32_t words[] = { 0, 0, 2, 5 }, spaces[] = { 1, 1, 0, 1, 2 },
                  specials[] = { 6, 0, 6, 0 }, bytes[] = { 0, 3, 4, 3, 4, 0 };

    (void)state;
    expect_stream(t, words, 4, "a ab  c");
    expect_stream(t, spaces, 5, "  a b");
    expect_stream(t, specials, 4, "a a");
    expect_stream(t, bytes, 6, "a\xc3\xa9\xc3\xa9 a");
    tokenizer_close(t);
}

static void after_a_prompt_the_first_space_is_kept(void **state)
{
    struct tokenizer *t = must_open_json(MARKS);
    const int32_t prompt[] = { 0, 2, 6, 6 };
    struct buf out = { 0 };
    struct detok d;

    (void)state;
    detok_init(&d, t, true);
    detok_prime(&d, prompt, 4);
    detok_push(&d, 0, &out);
    assert_string_equal(buf_cstr(&out), " a");
    detok_release(&d);
    buf_release(&out);
    tokenizer_close(t);
}

static void ids_outside_the_vocabulary_have_no_text(void **state)
{
    struct tokenizer *t = must_open_json(MARKS);
    const int32_t ids[] = { -1, 0, 1 << 30, 99, 2 };

    (void)state;
    expect_stream(t, ids, 5, "ab");
    tokenizer_close(t);
}

static void expect_all(const struct tokenizer *t, json_t *cases, const char *name)
{
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *list = json_object_get(json_array_get(cases, i), "ids");
        struct ids ids = { 0 };
        for (size_t k = 0; k < json_array_size(list); k++)
            ids_push(&ids, (int32_t)json_integer_value(json_array_get(list, k)));
        expect_same(t, ids.p, ids.n, false, name);
        expect_same(t, ids.p, ids.n, true, name);
        ids_release(&ids);
    }
}

/* Encoding and decoding gives the text back, if the tokenizer is lossless. */
static void expect_round_trip(const struct tokenizer *t, json_t *cases)
{
    struct ids ids = { 0 };
    struct buf out = { 0 };
    struct err e = { 0 };

    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *v = json_object_get(json_array_get(cases, i), "text");
        struct str text = str_of(json_string_value(v), json_string_length(v));
        ids.n = 0;
        buf_clear(&out);
        assert_int_equal(tokenizer_encode(t, text, 0, &ids, &e), OK);
        tokenizer_decode(t, ids.p, ids.n, false, &out);
        assert_true(str_eq(buf_str(&out), text));
    }
    ids_release(&ids);
    buf_release(&out);
}

static json_t *must_load(const char *path)
{
    json_error_t bad;
    json_t *v = json_load_file(path, JSON_ALLOW_NUL, &bad);

    if (!v) fail_msg("%s: %s", path, bad.text);
    return v;
}

static void the_shipped_tokenizer_streams_and_round_trips(void **state)
{
    struct tokenizer *t = must_open(repo("tests/golden/tokenizers/tern-tales.json.gz"));
    json_t *golden = must_load(repo("tests/golden/tokenizers/tern-tales.golden.json"));

    (void)state;
    expect_all(t, json_object_get(golden, "cases"), "tern-tales");
    expect_round_trip(t, json_object_get(golden, "cases"));
    json_decref(golden);
    tokenizer_close(t);
}

static void every_family_streams_what_it_decodes(void **state)
{
    static const char *const names[] = { "smollm2",
                                         "qwen2.5",
                                         "mistral-7b-v0.1",
                                         "mistral-nemo-tekken",
                                         "command-r-plus",
                                         "phi-3",
                                         "gpt2",
                                         "deepseek-v3",
                                         "gpt-oss",
                                         "llama3.1",
                                         "gemma2",
                                         "falcon" };
    static const char *const lossless[] = { "smollm2",  "gpt2",   "deepseek-v3",        "gpt-oss",
                                            "llama3.1", "falcon", "mistral-nemo-tekken" };
    (void)state;
    need_shared("fixtures/tokenizers");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256];
        snprintf(path, sizeof path, "fixtures/tokenizers/%s/golden.json", names[i]);
        json_t *golden = must_load(shared(path));
        snprintf(path, sizeof path, "fixtures/tokenizers/%s", names[i]);
        struct tokenizer *t = must_open(shared(path));
        expect_all(t, json_object_get(golden, "cases"), names[i]);
        for (size_t k = 0; k < sizeof lossless / sizeof *lossless; k++)
            if (strcmp(lossless[k], names[i]) == 0)
                expect_round_trip(t, json_object_get(golden, "cases"));
        tokenizer_close(t);
        json_decref(golden);
    }
}

static void gguf_vocabularies_stream_what_they_decode(void **state)
{
    static const char *const names[] = { "llama-spm", "phi-3", "gpt-2", "bert-bge" };

    (void)state;
    need_shared("fixtures/vocab");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256];
        snprintf(path, sizeof path, "fixtures/vocab/ggml-vocab-%s.gguf", names[i]);
        struct tokenizer *t = must_open(shared(path));
        struct ids ids = { 0 };
        struct err e = { 0 };
        assert_int_equal(
            tokenizer_encode(
                t, STR("Hello  world! \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80\n\tthe end"), 0,
                &ids, &e),
            OK);
        expect_same(t, ids.p, ids.n, true, names[i]);
        ids_release(&ids);
        tokenizer_close(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(incomplete_characters_are_held_back),
        cmocka_unit_test(bytes_that_cannot_become_a_character_are_replaced_at_once),
        cmocka_unit_test(only_the_first_space_of_a_text_is_removed),
        cmocka_unit_test(after_a_prompt_the_first_space_is_kept),
        cmocka_unit_test(ids_outside_the_vocabulary_have_no_text),
        cmocka_unit_test(the_shipped_tokenizer_streams_and_round_trips),
        cmocka_unit_test(every_family_streams_what_it_decodes),
        cmocka_unit_test(gguf_vocabularies_stream_what_they_decode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
