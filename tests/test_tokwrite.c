/* Writing a tokenizer as tokenizer.json: the file that is written encodes every text like the
 * original.
 *
 * Uses the tokenizer of the shipped model, and vocabularies and a text of ../shared (skipped
 * without them). */
#include "token/tokenizer.h"

#include "base/file.h"
#include "base/mem.h"
#include "support.h"

#include <dirent.h>
#include <stdio.h>

static struct ids encode_text(const struct tokenizer *t, struct str text)
{
    struct ids ids = { 0 };
    struct err e;
    if (tokenizer_encode(t, text, ENCODE_SPECIAL, &ids, &e) != OK) fail_msg("%s", e.msg);
    return ids;
}

static bool gives_same_ids(const struct tokenizer *a, const struct tokenizer *b, struct str text)
{
    struct ids x = encode_text(a, text), y = encode_text(b, text);
    bool same = x.n == y.n && (x.n == 0 || memcmp(x.p, y.p, x.n * sizeof *x.p) == 0);
    ids_release(&x);
    ids_release(&y);
    return same;
}

/* Writes the tokenizer as tokenizer.json, reads it again and counts lines that encode
 * differently. 0: this kind of tokenizer cannot be written. */
static int count_differences(const char *path, struct str text, int *n_bad)
{
    struct tokenizer *t = NULL, *back = NULL;
    struct buf json = { 0 };
    struct err e;
    int rc;

    if (tokenizer_open(&t, path, &e) != OK) fail_msg("%s", e.msg);
    rc = tokenizer_to_json(t, &json, &e);
    if (rc == OK) {
        if (tokenizer_from_json(&back, buf_str(&json), STR(""), path, &e) != OK)
            fail_msg("%s: %s", path, e.msg);
        assert_int_equal(tokenizer_n(back), tokenizer_n(t));
        assert_int_equal(tokenizer_bos(back) >= 0, tokenizer_adds_bos(t));
        for (size_t at = 0; at < text.n;) {
            struct str line = str_skip(text, at);
            const char *end = memchr(line.p, '\n', line.n);
            line = str_take(line, end ? (size_t)(end - line.p) + 1 : line.n);
            *n_bad += !gives_same_ids(t, back, line);
            at += line.n;
        }
    } else {
        assert_int_equal(rc, E_UNSUPPORTED);
    }
    buf_release(&json);
    tokenizer_close(t);
    tokenizer_close(back);
    return rc == OK;
}

static void the_shipped_tokenizer_survives_a_round_trip(void **state)
{
    (void)state;
    int bad = 0;
    assert_int_equal(
        count_differences(repo("models/tern-tales.gguf"),
                          STR("The frog sat.\nIt's 12345 o'clock, <|im_end|> isn't it?\n   \tno  "
                              "\xc3\xa9t\xc3\xa9 \xf0\x9f\x90\xb8\n"),
                          &bad),
        1);
    assert_int_equal(bad, 0);
}

static void vocabularies_of_real_models_survive_a_round_trip(void **state)
{
    (void)state;
    struct buf text = { 0 };
    const char *dir, *wiki;
    DIR *d;
    int n = 0;

    need_shared("fixtures/vocab");
    need_shared("text/wiki.test.raw");
    dir = shared("fixtures/vocab"), wiki = shared("text/wiki.test.raw");
    assert_int_equal(file_read(&text, wiki, 1u << 30, NULL), OK);
    d = opendir(dir);
    for (struct dirent *f; d && (f = readdir(d));) {
        if (!str_ends(str_c(f->d_name), STR(".gguf"))) continue;
        char *path = path_join(dir, f->d_name);
        int bad = 0;
        int said = count_differences(path, str_take(buf_str(&text), 60000), &bad);
        if (bad) fail_msg("%s: %d lines differ", f->d_name, bad);
        n += said;
        mem_free(path);
    }
    if (d) closedir(d);
    assert_true(n >= 7);
    buf_release(&text);
}

static void unigrams_survive_a_round_trip(void **state)
{
    static const char json[] =
        "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true},"
        "{\"id\":2,\"content\":\"</s>\",\"special\":true}],"
        "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"},"
        "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"}"
        ","
        "{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"always\"}]},"
        "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
        "\"<s>\",\"type_id\":0}},"
        "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"</"
        "s>\",\"type_id\":0}}],\"pair\":[],"
        "\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[0],\"tokens\":[\"<s>\"]},"
        "\"</s>\":{\"id\":\"</s>\",\"ids\":[2],\"tokens\":[\"</s>\"]}}},"
        "\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":"
        "\"always\"},"
        "\"model\":{\"type\":\"Unigram\",\"unk_id\":1,\"vocab\":[[\"<s>\",0],[\"<unk>\",0],[\"</"
        "s>\",0],"
        "[\"\xe2\x96\x81\",-2],[\"a\",-3],[\"b\",-3.5],[\"ab\",-4.25],[\"\xe2\x96\x81"
        "ab\",-4.5],[\"ba\",-6]]}}";
    static const char *const texts[] = { "ab", "ab  ab b", "  abba a ", "bab zab", "<s>ab" };
    struct tokenizer *t = NULL, *back = NULL;
    struct buf out = { 0 };
    struct err e;
    (void)state;
    if (tokenizer_from_json(&t, str_c(json), STR(""), "unigram", &e) != OK ||
        tokenizer_to_json(t, &out, &e) != OK ||
        tokenizer_from_json(&back, buf_str(&out), STR(""), "back", &e) != OK)
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!gives_same_ids(t, back, str_c(texts[i]))) fail_msg("'%s' differs", texts[i]);
    tokenizer_close(back);
    back = NULL; /* the model's library rebuilds the post-processor itself */
    assert_int_equal(
        tokenizer_from_json(&back, str_c(json), STR("{\"add_eos_token\":false}"), "no end", &e),
        OK);
    struct ids with = encode_text(t, STR("ab")), without = encode_text(back, STR("ab"));
    assert_true(with.n == without.n + 1 && with.p[with.n - 1] == 2);
    ids_release(&with), ids_release(&without);
    buf_release(&out);
    tokenizer_close(t);
    tokenizer_close(back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_shipped_tokenizer_survives_a_round_trip),
        cmocka_unit_test(vocabularies_of_real_models_survive_a_round_trip),
        cmocka_unit_test(unigrams_survive_a_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
