/* Regular expressions as grammars, against PCRE2: both must agree on random texts, and PCRE2
 * must match every text that the grammar makes.
 *
 * Reads no files. */
#include "grammar_world.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

static struct vocabtrie *lex;

static int open_world(void **state)
{
    (void)state;
    lex = make_vocabtrie(400, 3);
    return 0;
}

static int close_world(void **state)
{
    (void)state;
    vocabtrie_close(lex);
    return 0;
}

static bool pcre_matches(const pcre2_code *code, struct str text)
{
    pcre2_match_data *d = pcre2_match_data_create_from_pattern(code, NULL);
    int rc = pcre2_match(code, (PCRE2_SPTR)text.p, text.n, 0, PCRE2_ANCHORED | PCRE2_ENDANCHORED, d,
                         NULL);

    pcre2_match_data_free(d);
    return rc >= 0;
}

/* A random text of characters of the pattern and other letters, so that it often nearly matches. */
static void make_random_text(struct rng *rng, const char *pattern, struct buf *out)
{
    static const char letters[] = "aabbccxyzAZ019-_.:@/ #+()[]\"\\,!";

    buf_clear(out);
    for (int n = (int)(rng_u64(rng) % 9); n > 0; n--)
        if (rng_u64(rng) % 3) buf_putc(out, letters[rng_u64(rng) % (sizeof letters - 1)]);
        else buf_putc(out, pattern[rng_u64(rng) % strlen(pattern)]);
}

static void compare_with_pcre(const char *pattern)
{
    struct grammar *g = compile(GRAMMAR_REGEX, pattern);
    struct matcher_cache *d = open_cache(grammar_pda(g), lex);
    struct buf text = { 0 };
    struct rng rng;
    size_t at;
    int rc, n_taken = 0;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                     PCRE2_DOLLAR_ENDONLY | PCRE2_UTF, &rc, &at, NULL);

    if (!code) fail_msg("PCRE2 does not compile %s", pattern);
    rng_seed(&rng, 17);
    for (int i = 0; i < 3000; i++) {
        struct matcher x;
        bool got = true, want;
        make_random_text(&rng, pattern, &text);
        want = pcre_matches(code, str_of(text.n ? text.p : "", text.n));
        begin_text(&x, d, false);
        for (size_t k = 0; k < text.n && got; k++)
            got = matcher_accept_bytes(&x, str_of(text.p + k, 1)) == OK;
        got = got && matcher_may_end(&x);
        matcher_end(&x);
        if (got != want)
            fail_msg("%s: '%s' is %s", pattern, buf_cstr(&text),
                     got ? "matched, unlike PCRE2" : "not matched, unlike PCRE2");
    }
    for (int i = 0; i < 40; i++) { /* PCRE2 matches the texts of the grammar */
        buf_clear(&text);
        make_text(d, lex, &rng, 10, &text);
        if (!pcre_matches(code, str_of(text.n ? text.p : "", text.n)))
            fail_msg("%s: the grammar makes '%s', which PCRE2 does not match", pattern,
                     buf_cstr(&text));
        n_taken++;
    }
    assert_int_equal(n_taken, 40);
    pcre2_code_free(code);
    buf_release(&text);
    matcher_cache_close(d);
    grammar_unref(g);
}

static void patterns_match_what_pcre2_matches(void **state)
{
    static const char *const patterns[] = { "abc",
                                            "a*b+c?",
                                            "(a|b)*c",
                                            "[a-c]{2,4}",
                                            "[^a-c]x",
                                            "a{3}|b{2,}",
                                            "(ab){1,3}c{0}",
                                            "\\d+\\.\\d*",
                                            "\\w+@\\w+",
                                            "(?:a|bc)+?x",
                                            "a(b(c)?)?",
                                            "[-x]+",
                                            "[x-]+",
                                            "[\\]\\[]",
                                            "\\(a\\)",
                                            "a|b|",
                                            "(a|ab)(c|bc)",
                                            "(a*)*b",
                                            "[\\d-]+",
                                            "\\s\\S",
                                            "\\D\\W",
                                            "^a+$",
                                            "^(a|b)$",
                                            "(^a|^b)c$",
                                            "\\x41b?",
                                            "a{,2}",
                                            "a{x}",
                                            "[a\\-z]",
                                            "(?<n>a)b",
                                            "[.]",
                                            "a.c",
                                            "(a|b|c|x|y|z){3,5}",
                                            "[A-Z][a-z]*",
                                            "\\/\\.\\-",
                                            "((a|b)(c|x)){2}" };
    (void)state;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) compare_with_pcre(patterns[i]);
}

static void features_that_a_finite_automaton_lacks_are_refused_by_name(void **state)
{
    static const char *const bad[][2] = { { "(?=a)b", "lookahead" },
                                          { "(?!a)b", "lookahead" },
                                          { "(?<=a)b", "lookbehind" },
                                          { "(?<!a)b", "lookbehind" },
                                          { "(a)\\1", "backreference" },
                                          { "\\bword\\b", "word boundary" },
                                          { "\\p{L}", "Unicode properties" },
                                          { "a++", "possessive" },
                                          { "(?i)a", "kind of group" },
                                          { "a(b", "column 2" },
                                          { "a)b", "closes no group" },
                                          { "[b-a]", "reversed" },
                                          { "[a", "not closed" },
                                          { "*a", "nothing to repeat" },
                                          { "a{5,2}", "maximum is below" },
                                          { "x^y", "anchor" },
                                          { "(a$)b", "anchor" },
                                          { "a{200000}", "more than" },
                                          { "\\q", "escape" },
                                          { "\\xZ", "hexadecimal" },
                                          { "^*", "anchor cannot be repeated" } };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_refused(GRAMMAR_REGEX, bad[i][0], bad[i][1]);
}

static void a_choice_matches_exactly_its_strings(void **state)
{
    struct grammar *g = compile(GRAMMAR_CHOICE, "[\"red\",\"redder\",\"\\u00e9\"]");
    (void)state;
    assert_true(matches_grammar(g, lex, STR("red")) && matches_grammar(g, lex, STR("redder")) &&
                matches_grammar(g, lex, STR("\xc3\xa9")));
    assert_false(matches_grammar(g, lex, STR("redd")) || matches_grammar(g, lex, STR("")));
    grammar_unref(g);
    assert_refused(GRAMMAR_CHOICE, "[]", "1 to");
    assert_refused(GRAMMAR_CHOICE, "[1]", "not a string");
    assert_refused(GRAMMAR_CHOICE, "[\"a\"", "not JSON");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_match_what_pcre2_matches),
        cmocka_unit_test(features_that_a_finite_automaton_lacks_are_refused_by_name),
        cmocka_unit_test(a_choice_matches_exactly_its_strings),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
