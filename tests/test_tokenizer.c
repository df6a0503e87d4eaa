/* Whole tokenizers: golden ids of each family's own library, GGUF vocabularies, export, linear
 * time, and concurrent use.
 *
 * Reads the tokenizer of the shipped model with its golden cases, and tokenizers and
 * vocabularies of ../shared (skipped without them). */
#include "support.h"

#include "base/file.h"
#include "sha256.h"
#include "token/tokenizer.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

static struct tokenizer *must_open_json(const char *json)
{
    struct tokenizer *t = NULL;
    struct err e = { 0 };

    if (tokenizer_from_json(&t, str_c(json), STR(""), "test.json", &e) != OK) fail_msg("%s", e.msg);
    return t;
}

/* The ids of text, as "1 2 3". From a static buffer. */
static const char *ids_of(const struct tokenizer *t, struct str text, unsigned flags)
{
    static char out[4096];
    struct ids ids = { 0 };
    struct err e = { 0 };
    size_t n = 0;

    out[0] = 0;
    if (tokenizer_encode(t, text, flags, &ids, &e) != OK) fail_msg("%s", e.msg);
    for (size_t i = 0; i < ids.n; i++)
        n += (size_t)snprintf(out + n, sizeof out - n, "%s%d", i ? " " : "", ids.p[i]);
    ids_release(&ids);
    return out;
}

/* ---- golden ids ---- */

static void expect_golden(const struct tokenizer *t, json_t *cases, const char *name)
{
    struct ids ids = { 0 };
    struct err e = { 0 };

    assert_true(json_array_size(cases) > 10);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *text = json_object_get(json_array_get(cases, i), "text");
        json_t *want = json_object_get(json_array_get(cases, i), "ids");
        bool same;
        ids.n = 0;
        assert_int_equal(tokenizer_encode(t,
                                          str_of(json_string_value(text), json_string_length(text)),
                                          0, &ids, &e),
                         OK);
        same = ids.n == json_array_size(want);
        for (size_t k = 0; same && k < ids.n; k++)
            same = ids.p[k] == json_integer_value(json_array_get(want, k));
        if (!same) fail_msg("%s, case %zu: '%.60s'", name, i, json_string_value(text));
    }
    ids_release(&ids);
}

static json_t *must_load(const char *path)
{
    json_error_t bad;
    json_t *v = json_load_file(path, JSON_ALLOW_NUL, &bad);

    if (!v) fail_msg("%s: %s", path, bad.text);
    return v;
}

static void the_shipped_tokenizer_gives_its_golden_ids(void **state)
{
    struct tokenizer *t = NULL;
    struct err e = { 0 };
    json_t *golden = must_load(repo("tests/golden/tokenizers/tern-tales.golden.json"));

    (void)state;
    if (tokenizer_open(&t, repo("tests/golden/tokenizers/tern-tales.json.gz"), &e) != OK)
        fail_msg("%s", e.msg);
    expect_golden(t, json_object_get(golden, "cases"), "tern-tales");
    json_decref(golden);
    tokenizer_close(t);
}

/* The number of bytes of the first n code points of s. */
static size_t bytes_of_chars(struct str s, size_t n)
{
    size_t i = 0;

    for (; i < s.n; i++)
        if (((unsigned char)s.p[i] & 0xc0) != 0x80 && n-- == 0) break;
    return i;
}

/* Encodes a whole file in pieces of split_chars characters and compares all ids. */
static void expect_file(const struct tokenizer *t, json_t *want, const char *name)
{
    size_t chars = (size_t)json_integer_value(json_object_get(want, "split_chars"));
    struct buf text = { 0 };
    struct ids ids = { 0 };
    struct err e = { 0 };
    char sum[65];

    assert_int_equal(file_read(&text, shared("text/wiki.test.raw"), 1 << 24, &e), OK);
    for (struct str s = buf_str(&text); s.n;) {
        size_t n = bytes_of_chars(s, chars);
        assert_int_equal(tokenizer_encode(t, str_take(s, n), 0, &ids, &e), OK);
        s = str_skip(s, n);
    }
    sha256_hex(ids.p, ids.n * sizeof *ids.p, sum);
    if ((size_t)json_integer_value(json_object_get(want, "n")) != ids.n ||
        strcmp(sum, json_string_value(json_object_get(want, "sha256"))) != 0)
        fail_msg("%s: the %zu ids of wiki.test.raw differ from the expected ones", name, ids.n);
    ids_release(&ids);
    buf_release(&text);
}

static const char *const families[] = { "smollm2",
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

static void every_family_gives_the_ids_of_its_own_library(void **state)
{
    (void)state;
    need_shared("fixtures/tokenizers");
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        struct tokenizer *t = NULL;
        struct err e = { 0 };
        char path[256];
        snprintf(path, sizeof path, "fixtures/tokenizers/%s", families[i]);
        if (tokenizer_open(&t, shared(path), &e) != OK) fail_msg("%s", e.msg);
        snprintf(path, sizeof path, "fixtures/tokenizers/%s/golden.json", families[i]);
        json_t *golden = must_load(shared(path));
        expect_golden(t, json_object_get(golden, "cases"), families[i]);
        expect_file(t, json_object_get(golden, "file"), families[i]);
        json_decref(golden);
        tokenizer_close(t);
    }
}

/* The .inp file has texts that are separated by lines with a marker word; the .out file has one
 * line of ids per text. */
static void expect_vocab(const char *name)
{
    struct tokenizer *t = NULL;
    struct buf texts = { 0 }, ids = { 0 };
    struct err e = { 0 };
    char path[256];
    struct str mark = STR("\n__ggml_vocab_test__\n"), left, lines;

    snprintf(path, sizeof path, "fixtures/vocab/ggml-vocab-%s.gguf", name);
    if (tokenizer_open(&t, shared(path), &e) != OK) fail_msg("%s", e.msg);
    snprintf(path, sizeof path, "fixtures/vocab/ggml-vocab-%s.gguf.inp", name);
    assert_int_equal(file_read(&texts, shared(path), 1 << 20, &e), OK);
    snprintf(path, sizeof path, "fixtures/vocab/ggml-vocab-%s.gguf.out", name);
    assert_int_equal(file_read(&ids, shared(path), 1 << 20, &e), OK);
    left = buf_str(&texts), lines = buf_str(&ids);
    for (int i = 0; lines.n; i++) {
        ptrdiff_t at = str_find(left, mark), nl = str_find(lines, STR("\n"));
        struct str text = at < 0 ? left : str_take(left, (size_t)at);
        struct str want = str_trim(nl < 0 ? lines : str_take(lines, (size_t)nl));
        const char *got = ids_of(t, text, ENCODE_PLAIN);
        if (!str_is(want, got))
            fail_msg("%s, text %d: %s, expected %.*s", name, i, got, STR_ARG(want));
        left = at < 0 ? STR("") : str_skip(left, (size_t)at + mark.n);
        lines = nl < 0 ? STR("") : str_skip(lines, (size_t)nl + 1);
    }
    buf_release(&texts);
    buf_release(&ids);
    tokenizer_close(t);
}

static void every_gguf_vocabulary_gives_its_expected_ids(void **state)
{
    static const char *const names[] = { "llama-spm", "phi-3",        "gpt-2",   "falcon",
                                         "starcoder", "deepseek-llm", "bert-bge" };
    (void)state;
    need_shared("fixtures/vocab");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) expect_vocab(names[i]);
}

static void an_exported_tokenizer_equals_the_gguf_file(void **state)
{
    struct tokenizer *t = NULL;
    struct token_export x;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(tokenizer_open(&t, repo("tests/golden/tokenizers/tern-tales.json.gz"), &e),
                     OK);
    assert_int_equal(tokenizer_export(t, &x, &e), OK);
    assert_string_equal(x.model, "gpt2");
    assert_string_equal(x.pre, "gpt-2");
    assert_int_equal(x.n, tokenizer_n(t));
    assert_int_equal(x.n_merges, 3832);
    for (int i = 0; i < x.n_merges; i++)
        assert_true(x.merges[i].n >= 3 && memchr(x.merges[i].p, ' ', x.merges[i].n));
    assert_int_equal(x.types[0], 3);
    assert_int_equal(x.types[x.n - 1], 1);
    tokenizer_close(t);
}

/* ---- time and threads ---- */

static double time_encoding(const struct tokenizer *t, const char *unit, size_t bytes)
{
    struct buf text = { 0 };
    struct ids ids = { 0 };
    struct err e = { 0 };
    clock_t start;

    while (text.n < bytes) buf_puts(&text, unit);
    start = clock();
    assert_int_equal(tokenizer_encode(t, buf_str(&text), 0, &ids, &e), OK);
    start = clock() - start;
    buf_release(&text);
    ids_release(&ids);
    return (double)start / CLOCKS_PER_SEC;
}

/* Quadratic work on a megabyte would take minutes. */
static void encoding_takes_linear_time_for_any_text(void **state)
{
    static const char *const units[] = { "a",
                                         " ",
                                         "\n",
                                         " \n",
                                         "7",
                                         "'",
                                         "\xc3\xa9",
                                         "\xcc\x81\xcc\x96",
                                         "\xe4\xb8\xad",
                                         "\xff",
                                         "<",
                                         "<|",
                                         "\xe2\x96\x81",
                                         "\xc2\xa0",
                                         "\xe0\xbd\xb3" };
    struct tokenizer *t[2] = { NULL };
    struct err e = { 0 };

    (void)state;
    assert_int_equal(tokenizer_open(&t[0], repo("tests/golden/tokenizers/tern-tales.json.gz"), &e),
                     OK);
    t[1] =
        must_open_json("{\"normalizer\":{\"type\":\"NFC\"},\"model\":{\"type\":\"BPE\",\"unk_"
                       "token\":\"a\",\"vocab\":{"
                       "\"a\":0,\"aa\":1,\" \":2,\"  \":3},\"merges\":[\"a a\",[\" \",\" \"]]}}");
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            double s = time_encoding(t[k], units[i], 1 << 20);
            if (s > 8) fail_msg("a megabyte of unit %zu took %.1f s", i, s);
        }
    tokenizer_close(t[0]);
    tokenizer_close(t[1]);
}

struct worker {
    const struct tokenizer *t;
    pthread_t thread;
    size_t sum;
};

static void *encode_in_thread(void *arg)
{
    struct worker *w = arg;
    struct ids ids = { 0 };
    char text[64];

    for (int i = 0; i < 2000; i++) {
        ids.n = 0;
        int n = snprintf(text, sizeof text, "Once upon %d times, \xc3\xa9%d.", i, i * 7);
        tokenizer_encode(w->t, str_of(text, (size_t)n), 0, &ids, NULL);
        for (size_t k = 0; k < ids.n; k++) w->sum = w->sum * 31 + (size_t)ids.p[k];
    }
    ids_release(&ids);
    return NULL;
}

static void many_threads_can_encode_concurrently(void **state)
{
    struct tokenizer *t = NULL;
    struct worker w[12] = { 0 };
    struct err e = { 0 };

    (void)state;
    assert_int_equal(tokenizer_open(&t, repo("tests/golden/tokenizers/tern-tales.json.gz"), &e),
                     OK);
    for (int i = 0; i < 12; i++) {
        w[i].t = t;
        assert_int_equal(pthread_create(&w[i].thread, NULL, encode_in_thread, &w[i]), 0);
    }
    for (int i = 0; i < 12; i++) {
        pthread_join(w[i].thread, NULL);
        assert_int_equal(w[i].sum, w[0].sum);
    }
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_shipped_tokenizer_gives_its_golden_ids),
        cmocka_unit_test(every_family_gives_the_ids_of_its_own_library),
        cmocka_unit_test(every_gguf_vocabulary_gives_its_expected_ids),
        cmocka_unit_test(an_exported_tokenizer_equals_the_gguf_file),
        cmocka_unit_test(encoding_takes_linear_time_for_any_text),
        cmocka_unit_test(many_threads_can_encode_concurrently),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
