/* Every step of a tokenizer (normalizer, pre-tokenizer, model, post-processor, decoder, added
 * tokens) on small tokenizers that are written in this file, against ids computed by hand. Also
 * regular expressions against PCRE2.
 *
 * Reads no files. */
#include "support.h"

#include "base/mem.h"
#include "base/rng.h"
#include "token/chars.h"
#include "token/normalizer.h"
#include "token/tokenizer.h"

#include <stdio.h>

/* ---- helpers ---- */

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

static void expect_ids(const struct tokenizer *t, const char *text, const char *ids)
{
    assert_string_equal(ids_of(t, str_c(text), 0), ids);
}

static void expect_text(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip,
                        const char *text)
{
    struct buf out = { 0 };

    tokenizer_decode(t, ids, n, skip, &out);
    assert_string_equal(buf_cstr(&out), text);
    buf_release(&out);
}

static void expect_error(const char *json, int code, const char *says)
{
    struct tokenizer *t = NULL;
    struct err e = { 0 };

    assert_int_equal(tokenizer_from_json(&t, str_c(json), STR(""), "test.json", &e), code);
    if (!strstr(e.msg, says)) fail_msg("the error '%s' does not contain '%s'", e.msg, says);
}

/* A word-level vocabulary shows how the steps before the model split a text. */
#define WORDS(normalizer, pre, vocab)                                                             \
    "{\"normalizer\":" normalizer ",\"pre_tokenizer\":" pre ",\"model\":{\"type\":\"WordLevel\"," \
    "\"unk_token\":\"?\",\"vocab\":{\"?\":0," vocab "}}}"
#define WHITE "{\"type\":\"WhitespaceSplit\"}"

static void expect_words(const char *json, const char *text, const char *ids)
{
    struct tokenizer *t = must_open_json(json);
    expect_ids(t, text, ids);
    tokenizer_close(t);
}

/* ---- models ---- */

static void bpe_merges_the_lowest_rank_first_and_the_leftmost_of_equals(void **state)
{
    struct tokenizer *t = must_open_json("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,"
                                         "\"c\":2,\"ab\":3,\"bc\":4,\"abc\":5,\"aa\":6},"
                                         "\"merges\":[\"b c\",[\"a\",\"b\"],\"a bc\",\"a a\"]}}");

    (void)state;
    expect_ids(t, "abc", "5");
    expect_ids(t, "ab", "3");
    expect_ids(t, "aab", "0 3");
    expect_ids(t, "aaa", "6 0");
    expect_ids(t, "", "");
    tokenizer_close(t);
}

static void bpe_falls_back_to_bytes_then_to_the_unknown_token(void **state)
{
    struct tokenizer *bytes =
        must_open_json("{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"<unk>"
                       "\",\"fuse_unk\":true,"
                       "\"vocab\":{\"<unk>\":0,\"a\":1,\"<0xC3>\":2,\"<0xA9>\":3},\"merges\":[]}}");
    struct tokenizer *apart = must_open_json("{\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\","
                                             "\"vocab\":{\"<unk>\":0,\"a\":1},\"merges\":[]}}");
    struct tokenizer *none =
        must_open_json("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1},\"merges\":[]}}");

    (void)state;
    expect_ids(bytes,
               "a\xc3\xa9z\xc3\xa8y"
               "a",
               "1 2 3 0 1");
    expect_ids(apart, "zza", "0 0 1");
    expect_ids(none, "zaz", "1");
    tokenizer_close(bytes);
    tokenizer_close(apart);
    tokenizer_close(none);
}

static void bpe_applies_prefixes_and_suffixes_of_words(void **state)
{
    expect_words(
        "{\"pre_tokenizer\":" WHITE
        ",\"model\":{\"type\":\"BPE\",\"continuing_subword_prefix\":\"##\","
        "\"end_of_word_suffix\":\"</w>\",\"vocab\":{\"a\":0,\"##b</w>\":1,\"ab</w>\":2,\"a</"
        "w>\":3},"
        "\"merges\":[\"a ##b</w>\"]}}",
        "ab a", "2 3");
    (void)state;
}

static void words_in_the_vocabulary_may_bypass_merges(void **state)
{
#define IGNORE(flag)                                                                   \
    "{\"pre_tokenizer\":" WHITE ",\"model\":{\"type\":\"BPE\",\"ignore_merges\":" flag \
    ",\"vocab\":{\"a\":0,\"b\":1,"                                                     \
    "\"ab\":2},\"merges\":[]}}"
    expect_words(IGNORE("true"), "ab ba", "2 1 0");
    expect_words(IGNORE("false"), "ab ba", "0 1 1 0");
    (void)state;
}

static void unigram_maximizes_the_sum_of_scores_and_fuses_unknown_pieces(void **state)
{
    struct tokenizer *t = must_open_json("{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":["
                                         "[\"<unk>\",0],[\"a\",-3],[\"b\",-3],[\"ab\",-4],"
                                         "[\"abc\",-9],[\"c\",-2],[\"bc\",-8]]}}");

    (void)state;
    expect_ids(t, "abc", "3 5");
    expect_ids(t, "abb", "3 2");
    expect_ids(t, "zzab", "0 3");
    tokenizer_close(t);
}

static void wordpiece_takes_the_longest_piece_or_nothing(void **state)
{
    expect_words(
        "{\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\"normalizer\":{\"type\":"
        "\"BertNormalizer\"},"
        "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\",\"max_input_chars_per_word\":8,"
        "\"vocab\":{\"[UNK]\":0,\"un\":1,\"##able\":2,\"##a\":3,\",\":4,\"\xe4\xb8\xad\":5}}}",
        "UN\xc3\xa4"
        "ble,unx \xe4\xb8\xad\xe4\xb8\xad unaaaaaaaaaa",
        "1 2 4 0 5 5 0");
    (void)state;
}

/* ---- steps before the model ---- */

#define SPLIT(pattern, behavior, invert)                                                           \
    "{\"type\":\"Split\",\"pattern\":" pattern ",\"behavior\":\"" behavior "\",\"invert\":" invert \
    "}"
#define DASH "{\"String\":\"-\"}"

static void split_behaviors_place_delimiters_as_named(void **state)
{
    const char *text = "-a--b-";
    (void)state;
    expect_words(WORDS("null", SPLIT(DASH, "Removed", "false"), "\"a\":1,\"b\":2,\"-\":3"), text,
                 "1 2");
    expect_words(WORDS("null", SPLIT(DASH, "Isolated", "false"), "\"a\":1,\"b\":2,\"-\":3"), text,
                 "3 1 3 3 2 3");
    expect_words(
        WORDS("null", SPLIT(DASH, "Contiguous", "false"), "\"a\":1,\"b\":2,\"-\":3,\"--\":4"), text,
        "3 1 4 2 3");
    expect_words(
        WORDS("null", SPLIT(DASH, "MergedWithPrevious", "false"), "\"-\":1,\"a-\":2,\"b-\":3"),
        text, "1 2 1 3");
    expect_words(WORDS("null", SPLIT(DASH, "MergedWithNext", "false"), "\"-\":1,\"-a\":2,\"-b\":3"),
                 text, "2 1 3 1");
    expect_words(
        WORDS("null", SPLIT("{\"Regex\":\"[a-z]+\"}", "Removed", "true"), "\"a\":1,\"b\":2"), text,
        "1 2");
}

static void pre_tokenizers_split_at_spaces_digits_punctuation_and_scripts(void **state)
{
    (void)state;
    expect_words(WORDS("null", "{\"type\":\"Whitespace\"}", "\"a_1\":1,\".,\":2,\"b\":3"),
                 "a_1.,\xc2\xa0 b", "1 2 3");
    expect_words(WORDS("null", "{\"type\":\"Digits\",\"individual_digits\":true}",
                       "\"a\":1,\"1\":2,\"2\":3"),
                 "a12a", "1 2 3 1");
    expect_words(WORDS("null", "{\"type\":\"Digits\"}", "\"a\":1,\"12\":2"), "a12a", "1 2 1");
    expect_words(WORDS("null", "{\"type\":\"Punctuation\"}", "\"a\":1,\"!\":2"), "a!!", "1 2 2");
    expect_words(
        WORDS("null", "{\"type\":\"CharDelimiterSplit\",\"delimiter\":\"|\"}", "\"a\":1,\"b\":2"),
        "a||b", "1 2");
    expect_words(WORDS("null", "{\"type\":\"UnicodeScripts\"}",
                       "\"ab \":1,\"\xd0\xb6\":2,\"\xe3\x81\x82\xe4\xb8\xad\":3"),
                 "ab \xd0\xb6\xe3\x81\x82\xe4\xb8\xad", "1 2 3");
    expect_words(WORDS("null", "{\"type\":\"FixedLength\",\"length\":2}", "\"ab\":1,\"c\":2"),
                 "ababc", "1 1 2");
}

#define META(scheme, split)                                                      \
    "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"" scheme \
    "\",\"split\":" split "}"

static void metaspace_puts_its_marker_before_words(void **state)
{
    (void)state;
    expect_words(WORDS("null", META("always", "true"), "\"_a\":1,\"_b\":2,\"_\":3"), "a b", "1 2");
    expect_words(WORDS("null", META("never", "true"), "\"_a\":1,\"_b\":2,\"a\":3"), "a b", "3 2");
    expect_words(WORDS("null", META("always", "false"), "\"_a_b\":1"), " a b", "1");
}

static void metaspace_first_applies_only_at_the_beginning_of_the_text(void **state)
{
    struct tokenizer *t = must_open_json(
        "{\"added_tokens\":[{\"id\":9,\"content\":\"<s>\",\"special\":true,\"normalized\":false}],"
        "\"pre_tokenizer\":" META("first",
                                  "true") ",\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"?\","
                                          "\"vocab\":{\"?\":0,\"_a\":1,\"a\":2}}}");

    (void)state;
    expect_ids(t, "a", "1");
    expect_ids(t, "a<s>a", "1 3 2"); /* not the id in the file: the next free one */
    expect_ids(t, "<s>a", "3 2");
    tokenizer_close(t);
}

static void normalizers_rewrite_text(void **state)
{
    (void)state;
    expect_words(WORDS("{\"type\":\"NFC\"}", WHITE, "\"\xc3\xa9\":1"), "e\xcc\x81", "1");
    expect_words(WORDS("{\"type\":\"NFKD\"}", WHITE, "\"fi\":1"), "\xef\xac\x81", "1");
    expect_words(WORDS("{\"type\":\"Lowercase\"}", WHITE, "\"\xc3\xa4i\xcc\x87\":1"),
                 "\xc3\x84\xc4\xb0", "1");
    expect_words(
        WORDS("{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}", "null", "\"a \":1"),
        "\t a ", "1");
    expect_words(WORDS("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"},{\"type\":"
                       "\"StripAccents\"}]}",
                       WHITE, "\"e\":1"),
                 "\xc3\xa9", "1");
    expect_words(WORDS("{\"type\":\"Prepend\",\"prepend\":\"x\"}", WHITE, "\"xa\":1"), "a", "1");
    expect_words(WORDS("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"b+\"},\"content\":\"$0\"}",
                       WHITE, "\"a$0\":1"),
                 "abb", "1");
    expect_words(WORDS("{\"type\":\"Nmt\"}", WHITE, "\"ab\":1,\"c\":2"),
                 "a\001b\xe2\x80\x8b"
                 "c",
                 "1 2");
    expect_words(WORDS("{\"type\":\"ByteLevel\"}", "null", "\"\xc3\x83\xc2\xa9\":1"), "\xc3\xa9",
                 "1");
}

/* A double-array trie with one key, "a", that is replaced by "xy": units 0 (root), 'a', and its
 * leaf. */
static void a_precompiled_map_replaces_characters(void **state)
{
    uint32_t units[256] = { 0 };
    char map[4 + sizeof units + 3], json[4096];
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char coded[2048];
    size_t n = 0;

    (void)state;
    units[0] = 1u << 10; /* children are at 1 ^ byte */
    units[1 ^ 'a'] = 'a' | 1u << 8 | (uint32_t)(1 ^ 'a' ^ 5) << 10;
    units[5] = 0x80000000u; /* the replacement is at offset 0 */
    memcpy(map, &(uint32_t){ sizeof units }, 4);
    memcpy(map + 4, units, sizeof units);
    memcpy(map + 4 + sizeof units, "xy", 3);
    for (size_t i = 0; i < sizeof map; i += 3) {
        uint32_t v = 0;
        for (size_t k = 0; k < 3; k++)
            v = v << 8 | (i + k < sizeof map ? (unsigned char)map[i + k] : 0);
        for (int k = 18; k >= 0; k -= 6) coded[n++] = digits[v >> k & 63];
    }
    coded[n] = 0;
    snprintf(
        json, sizeof json,
        WORDS("{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"%s\"}", WHITE, "\"bxy\":1"),
        coded);
    expect_words(json, "ba", "1");
}

/* ---- added tokens ---- */

#define ADDED(flags) "{\"id\":1,\"content\":\"[X]\"," flags "}"
#define WITH_ADDED(added, normalizer)                          \
    "{\"added_tokens\":[" added "],\"normalizer\":" normalizer \
    ",\"model\":{\"type\":\"BPE\",\"vocab\":"                  \
    "{\"a\":0,\"[X]\":1,\" \":2,\"[\":3,\"x\":4,\"X\":5,\"]\":6},\"merges\":[]}}"

static void added_tokens_are_matched_according_to_their_flags(void **state)
{
    (void)state;
    expect_words(WITH_ADDED(ADDED("\"normalized\":false"), "null"), "a [X] a", "0 2 1 2 0");
    expect_words(WITH_ADDED(ADDED("\"normalized\":false,\"lstrip\":true"), "null"), "a  [X] a",
                 "0 1 2 0");
    expect_words(WITH_ADDED(ADDED("\"normalized\":false,\"rstrip\":true"), "null"), "a [X]  a",
                 "0 2 1 0");
    expect_words(WITH_ADDED(ADDED("\"normalized\":false,\"single_word\":true"), "null"), "a[X] [X]",
                 "0 3 5 6 2 1");
    expect_words(WITH_ADDED(ADDED("\"normalized\":false"), "{\"type\":\"Lowercase\"}"), "[x][X]",
                 "3 4 6 1");
    expect_words(WITH_ADDED(ADDED("\"normalized\":true"), "{\"type\":\"Lowercase\"}"), "[x][X]",
                 "1 1");
}

static void the_longest_added_token_matches_and_plain_text_ignores_special_tokens(void **state)
{
    struct tokenizer *t = must_open_json(
        "{\"added_tokens\":[{\"id\":2,\"content\":\"<a>\",\"special\":true},{\"id\":3,\"content\":"
        "\"<a>b\","
        "\"normalized\":false},{\"id\":4,\"content\":\"<\",\"normalized\":false}],\"model\":{"
        "\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"<a>\":2,\"<a>b\":3,"
        "\"<\":4,\">\":5},\"merges\":[]}}");

    (void)state;
    expect_ids(t, "<a>b<a>", "3 2");
    assert_string_equal(ids_of(t, STR("<a>a<a>b"), ENCODE_PLAIN), "4 0 5 0 3");
    assert_true(tokenizer_is_special(t, 2));
    assert_false(tokenizer_is_special(t, 3));
    tokenizer_close(t);
}

/* ---- after the model ---- */

static void post_processors_add_tokens_at_both_ends(void **state)
{
#define POST(post)              \
    "{\"post_processor\":" post \
    ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"^\":1,\"$\":2},\"merges\":[]}}"
    struct tokenizer *t =
        must_open_json(POST("{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{"
                            "\"type\":\"TemplateProcessing\",\"single\":["
                            "{\"SpecialToken\":{\"id\":\"^\"}},{\"Sequence\":{\"id\":\"A\"}},{"
                            "\"SpecialToken\":{\"id\":\"$\"}}],"
                            "\"special_tokens\":{\"^\":{\"ids\":[1]},\"$\":{\"ids\":[2,2]}}}]}"));
    struct tokenizer *bert =
        must_open_json(POST("{\"type\":\"BertProcessing\",\"cls\":[\"^\",1],\"sep\":[\"$\",2]}"));

    (void)state;
    assert_string_equal(ids_of(t, STR("a"), ENCODE_SPECIAL), "1 0 2 2");
    assert_string_equal(ids_of(t, STR("a"), 0), "0");
    assert_string_equal(ids_of(bert, STR("a"), ENCODE_SPECIAL), "1 0 2");
    assert_true(tokenizer_adds_bos(t));
    tokenizer_close(t);
    tokenizer_close(bert);
}

#define DECODE(decoder)                                                              \
    "{\"decoder\":" decoder                                                          \
    ",\"added_tokens\":[{\"id\":7,\"content\":\"<s>\",\"special\":true}],\"model\":" \
    "{\"type\":\"BPE\",\"vocab\":{\"_a\":0,\"_b\":1,\"##c\":2,\"d</"                 \
    "w>\":3,\"<0xC3>\":4,\"<0xA9>\":5,\".\":6,\"<s>\":7},"                           \
    "\"merges\":[]}}"

static void expect_decoded(const char *json, const int32_t *ids, size_t n, const char *text)
{
    struct tokenizer *t = must_open_json(json);
    expect_text(t, ids, n, true, text);
    tokenizer_close(t);
}

static void decoders_join_pieces(void **state)
{
    const int32_t words[] = { 0, 7, 1 }, inside[] = { 0, 2, 6 }, ends[] = { 3, 3 },
                  bytes[] = { 4, 5 }, half[] = { 4, 6 };

    (void)state;
    expect_decoded(DECODE("{\"type\":\"Metaspace\",\"replacement\":\"_\"}"), words, 3, "a b");
    expect_decoded(
        DECODE("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"never\"}"),
        words, 3, " a b");
    expect_decoded(DECODE("{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}"), inside, 3,
                   "_ac.");
    expect_decoded(DECODE("{\"type\":\"BPEDecoder\",\"suffix\":\"</w>\"}"), ends, 2, "d d");
    expect_decoded(DECODE("{\"type\":\"ByteFallback\"}"), bytes, 2, "\xc3\xa9");
    expect_decoded(DECODE("{\"type\":\"ByteFallback\"}"), half, 2, "\xef\xbf\xbd.");
    expect_decoded(
        DECODE("{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
               "\"String\":\"_\"},"
               "\"content\":\" \"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "
               "\",\"start\":1,"
               "\"stop\":0}]}"),
        words, 3, "a b");
    expect_decoded(DECODE("null"), words, 3, "_a _b");
}

static void the_config_gives_end_tokens_and_the_chat_template(void **state)
{
    struct tokenizer *t = NULL;
    struct err e = { 0 };
    struct str json =
        STR("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"<s>\":0,\"</s>\":1},\"merges\":[]}}");
    struct str config =
        STR("{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"</s>\",\"add_bos_token\":true,"
            "\"model_max_length\":1000000000000000019884624838656,\"chat_template\":["
            "{\"name\":\"tools\",\"template\":\"T\"},{\"name\":\"default\",\"template\":\"D\"}]}");

    (void)state;
    assert_int_equal(tokenizer_from_json(&t, json, config, "test.json", &e), OK);
    assert_int_equal(tokenizer_bos(t), 0);
    assert_int_equal(tokenizer_eos(t), 1);
    assert_true(tokenizer_adds_bos(t));
    assert_true(str_is(tokenizer_chat_template(t), "D"));
    tokenizer_close(t);
}

/* ---- hostile files ---- */

static void invalid_files_are_refused_naming_the_position(void **state)
{
    (void)state;
    expect_error("", E_FORMAT, "test.json: line 1");
    expect_error("[]", E_FORMAT, "not an object");
    expect_error("{}", E_FORMAT, "model: missing");
    expect_error("{\"model\":{\"type\":\"BPE\"}}", E_FORMAT, "model.vocab: missing");
    expect_error("{\"model\":{\"type\":\"Magic\"}}", E_FORMAT, "'Magic'");
    expect_error("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", E_FORMAT,
                 "the id of 'a'");
    expect_error("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":4000000000},\"merges\":[]}}",
                 E_FORMAT, "the id of 'a'");
    expect_error("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}",
                 E_FORMAT, "'b' is not in the vocabulary");
    expect_error("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"aa\"]}}", E_FORMAT,
                 "model.merges: not a pair");
    expect_error("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[3]}}", E_FORMAT,
                 "model.merges");
    expect_error("{\"model\":{\"type\":\"Unigram\",\"unk_id\":7,\"vocab\":[[\"a\",0]]}}", E_FORMAT,
                 "unk_id");
    expect_error("{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}", E_FORMAT,
                 "model.vocab[0]");
    expect_error(
        WORDS("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Odd\"}]}", "null", "\"a\":1"),
        E_FORMAT, "normalizer.normalizers[0]: 'Odd'");
    expect_error(WORDS("null", SPLIT("{\"Regex\":\"(a\"}", "Removed", "false"), "\"a\":1"),
                 E_FORMAT, "pre_tokenizer.pattern");
    expect_error("{\"added_tokens\":[{\"content\":\"x\",\"id\":99999999}],\"model\":{\"type\":"
                 "\"BPE\",\"vocab\":{\"a\":0},"
                 "\"merges\":[]}}",
                 E_FORMAT, "added_tokens[0]: id 99999999");
    expect_error(WORDS("{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"/////w==\"}", "null",
                       "\"a\":1"),
                 E_FORMAT, "precompiled_charsmap");
    expect_error(
        POST("{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"no\"}}]}"),
        E_FORMAT, "special_tokens has no 'no'");
}

static void invalid_utf8_becomes_replacement_characters(void **state)
{
    struct tokenizer *t =
        must_open_json("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"\xef\xbf\xbd\":1,"
                       "\"\\u0000\xc3\xa9\":3,\"\xc3\xa9\":2},\"merges\":[]}}");

    (void)state;
    assert_string_equal(ids_of(t,
                               STR("a\xff"
                                   "a\xe2\x82"
                                   "a\xc3\xa9\xc3"),
                               0),
                        "0 1 0 1 0 2 1");
    assert_int_equal(tokenizer_find(t, STR("\0\xc3\xa9")), 3); /* a NUL does not end a piece */
    tokenizer_close(t);
}

/* ---- patterns ---- */

/* Appends all matches of a pattern to out, as "start-end" words. */
static void list_matches(const char *pattern, struct str text, struct buf *out)
{
    struct regex *r = NULL;
    struct matcher *m = matcher_open();
    struct err e = { 0 };
    size_t start, end;

    if (regex_open(&r, str_c(pattern), &e) != OK) fail_msg("%s", e.msg);
    struct regex_walk w = { .r = r, .m = m, .text = text };
    buf_clear(out);
    while (regex_next(&w, &start, &end)) buf_printf(out, "%zu-%zu ", start, end);
    matcher_close(m);
    regex_close(r);
}

static void expect_matches(const char *pattern, const char *text, const char *want)
{
    struct buf out = { 0 };

    list_matches(pattern, str_c(text), &out);
    assert_string_equal(buf_cstr(&out), want);
    buf_release(&out);
}

static void patterns_have_the_meaning_of_oniguruma(void **state)
{
    (void)state;
    expect_matches("\\s", "\xe1\xa0\x8e\xc2\x85\xc2\xa0", "3-5 5-7 "); /* U+180E is not a space */
    expect_matches("\\d{1,3}+", "12345",
                   "0-5 "); /* Oniguruma: a repeat of a repeat, not possessive */
    expect_matches("a{,2}b", "aab", "0-3 ");
    expect_matches("\\h+", "fFg", "0-2 ");
    expect_matches("[a-z&&[^aeiou]]+", "hello", "0-1 2-4 ");
    expect_matches("[^a-c[xy]]", "abxz", "3-4 ");
    expect_matches("(?i:'s)", "'S'\xc5\xbf", "0-2 2-5 "); /* the long s matches s */
    expect_matches("\\p{Han}", "\xe3\x80\x81\xe4\xb8\xad",
                   "3-6 ");               /* the ideographic comma has no script */
    expect_matches("^b", "a\nb", "2-3 "); /* Ruby: always at line starts */
    expect_matches("(?m:a.b)", "a\nb", "0-3 ");
    expect_matches("[[:alpha:]_]+", "a_\xc3\xa9-", "0-4 ");
    expect_matches("\\p{^L}", "a1", "1-2 ");
    expect_matches("\\u00e9", "\xc3\xa9", "0-2 ");
    expect_matches("x*", "axb", "0-0 1-2 3-3 ");
    expect_matches("[\\]\\-a]+", "]-ab", "0-3 ");
}

#define CL100K(d)                                                   \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" d \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CASED "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALL "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K(end, d)                                                                          \
    "[^\\r\\n\\p{L}\\p{N}]?" CASED "*" SMALL "+" end "|[^\\r\\n\\p{L}\\p{N}]?" CASED "+" SMALL \
    "*" end "|" d "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* The same pattern in parentheses is not recognized by the hand-written scanner, so PCRE2 alone
 * matches it. */
static void hand_written_scanners_agree_with_pcre2(void **state)
{
    static const char *const patterns[][2] = {
#define BOTH(p) { p, "(?:" p ")" }
        BOTH("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"),
        BOTH(CL100K("\\p{N}")),
        BOTH(CL100K("\\p{N}{1,3}")),
        BOTH(O200K("", "\\p{N}")),
        BOTH(O200K("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "\\p{N}{1,3}")),
    };
    static const char *const parts[] = { "a",
                                         "B",
                                         "re",
                                         "'",
                                         "'s",
                                         "'LL",
                                         "'v",
                                         " ",
                                         "  ",
                                         "\n",
                                         "\r",
                                         "\t",
                                         "1",
                                         "23",
                                         "/",
                                         ".",
                                         "!?",
                                         "\xc3\xa9",
                                         "\xcc\x81",
                                         "\xc2\xa0",
                                         "\xc5\xbf",
                                         "\xe4\xb8\xad",
                                         "\xf0\x9f\x98\x80",
                                         "\xd9\xa1",
                                         "\x1c",
                                         "\xe2\x80\xa8",
                                         "Z",
                                         "_" };
    struct rng rng;
    struct buf text = { 0 }, a = { 0 }, b = { 0 };

    (void)state;
    rng_seed(&rng, 7);
    for (int round = 0; round < 400; round++) {
        buf_clear(&text);
        for (int i = 0; i < 40; i++)
            buf_puts(&text, parts[rng_u64(&rng) % (sizeof parts / sizeof *parts)]);
        for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
            list_matches(patterns[i][0], buf_str(&text), &a);
            list_matches(patterns[i][1], buf_str(&text), &b);
            if (!str_eq(buf_str(&a), buf_str(&b)))
                fail_msg("pattern %zu on '%s'", i, buf_cstr(&text));
        }
    }
    buf_release(&text);
    buf_release(&a);
    buf_release(&b);
}

static void nfc_of_parts_equals_nfc_of_the_whole_text(void **state)
{
    static const int32_t marks[] = { 'a',    'e',    0x301,  0x316,  0x327, 0x344,  0xf73,  0x1100,
                                     0x1161, 0x11a8, 0xac00, 0x9be,  0x9c7, 0x212b, 0x2126, 0x3099,
                                     0x304b, 0x41,   0x30a,  0x1e9b, 0x323, 0xfb1d, 0x4e2d };
    struct normalizer chain = { 0 };
    struct matcher *m = matcher_open();
    struct buf text = { 0 }, whole = { 0 }, bufs[2] = { 0 };
    struct rng rng;
    struct str got;

    (void)state;
    rng_seed(&rng, 3);
    assert_int_equal(
        normalizer_add_step(&chain, (struct normalizer_step){ .kind = NORMAL_NFC }, NULL), OK);
    for (int round = 0; round < 2000; round++) {
        buf_clear(&text);
        buf_clear(&whole);
        for (int i = 0; i < 24; i++)
            char_put(&text, marks[rng_u64(&rng) % (sizeof marks / sizeof *marks)]);
        assert_int_equal(form_put(buf_str(&text), FORM_COMPOSE, &whole, NULL), OK);
        assert_int_equal(normalizer_apply(&chain, m, buf_str(&text), bufs, &got, NULL), OK);
        assert_true(str_eq(got, buf_str(&whole)));
    }
    normalizer_release(&chain);
    matcher_close(m);
    for (int i = 0; i < 2; i++) buf_release(&bufs[i]);
    buf_release(&text);
    buf_release(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bpe_merges_the_lowest_rank_first_and_the_leftmost_of_equals),
        cmocka_unit_test(bpe_falls_back_to_bytes_then_to_the_unknown_token),
        cmocka_unit_test(bpe_applies_prefixes_and_suffixes_of_words),
        cmocka_unit_test(words_in_the_vocabulary_may_bypass_merges),
        cmocka_unit_test(unigram_maximizes_the_sum_of_scores_and_fuses_unknown_pieces),
        cmocka_unit_test(wordpiece_takes_the_longest_piece_or_nothing),
        cmocka_unit_test(split_behaviors_place_delimiters_as_named),
        cmocka_unit_test(pre_tokenizers_split_at_spaces_digits_punctuation_and_scripts),
        cmocka_unit_test(metaspace_puts_its_marker_before_words),
        cmocka_unit_test(metaspace_first_applies_only_at_the_beginning_of_the_text),
        cmocka_unit_test(normalizers_rewrite_text),
        cmocka_unit_test(a_precompiled_map_replaces_characters),
        cmocka_unit_test(added_tokens_are_matched_according_to_their_flags),
        cmocka_unit_test(the_longest_added_token_matches_and_plain_text_ignores_special_tokens),
        cmocka_unit_test(post_processors_add_tokens_at_both_ends),
        cmocka_unit_test(decoders_join_pieces),
        cmocka_unit_test(the_config_gives_end_tokens_and_the_chat_template),
        cmocka_unit_test(invalid_files_are_refused_naming_the_position),
        cmocka_unit_test(invalid_utf8_becomes_replacement_characters),
        cmocka_unit_test(patterns_have_the_meaning_of_oniguruma),
        cmocka_unit_test(hand_written_scanners_agree_with_pcre2),
        cmocka_unit_test(nfc_of_parts_equals_nfc_of_the_whole_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
