/* Grammars: GBNF and its errors, token masks, memory limits, special tokens, and grammars that
 * are built by functions.
 *
 * Masks are compared with trying every token. The vocabulary is small and random
 * (grammar_world.h); one test uses real tokenizers of ../shared. */
#include "grammar_world.h"

#include "grammar/dfa.h"
#include "grammar/gbnf.h"
#include "base/ids.h"
#include "grammar/pda.h"

static struct vocabtrie *lex;

static int open_world(void **state)
{
    (void)state;
    lex = make_vocabtrie(3000, 7);
    return 0;
}

static int close_world(void **state)
{
    (void)state;
    vocabtrie_close(lex);
    return 0;
}

static void check_texts(enum grammar_kind kind, const char *text, const char *const *yes,
                        const char *const *no)
{
    struct grammar *g = compile(kind, text);

    for (; *yes; yes++)
        if (!matches_grammar(g, lex, str_c(*yes))) fail_msg("%s does not match '%s'", text, *yes);
    for (; *no; no++)
        if (matches_grammar(g, lex, str_c(*no))) fail_msg("%s matches '%s'", text, *no);
    grammar_unref(g);
}

#define LIST(...) \
    (const char *const[]) { __VA_ARGS__, NULL }
#define GBNF(text, yes, no) check_texts(GRAMMAR_GBNF, text, yes, no)

static void gbnf_matches_what_its_rules_say(void **state)
{
    (void)state;
    GBNF("root ::= \"yes\" | \"no\"", LIST("yes", "no"), LIST("", "ye", "yesno", "Yes"));
    GBNF("root ::= [a-c]+ [^a-c] .", LIST("abd\xc3\xa9", "azz", "a\nb"), LIST("zz", "ab", "abaa"));
    GBNF("root ::= \"\\x41\\u00e9\\U0001F600\\n\\t\\\"\\\\\"",
         LIST("A\xc3\xa9\xf0\x9f\x98\x80\n\t\"\\"), LIST("A"));
    GBNF("root ::= [\\]\\-x-z\\\\]*", LIST("", "]", "-", "x", "y\\]"), LIST("a", "w"));
    GBNF("root ::= \"a\"{3}", LIST("aaa"), LIST("aa", "aaaa"));
    GBNF("root ::= \"a\"{2,}", LIST("aa", "aaaaaaa"), LIST("a", ""));
    GBNF("root ::= (\"a\" | \"bc\"){1,2} \"d\"?", LIST("a", "bc", "abc", "bcbcd", "ad"),
         LIST("", "d", "aaa", "bcbcbc"));
    GBNF("root ::= \"a\"{,2}", LIST("", "a", "aa"), LIST("aaa"));
    GBNF("root ::=\n  # a comment\n  item (\",\" item)* # more\nitem ::= [0-9] | \"(\" root \")\"",
         LIST("1,2", "(1,(3),4)", "(7)"), LIST("(1", "1,", "()"));
    GBNF("root ::= a\na ::= \"x\"\n  | \"y\"\n  | b\nb ::= \"z\" ", LIST("x", "y", "z"),
         LIST("xy"));
    GBNF("root ::= | \"x\" root", LIST("", "x", "xxxx"), LIST("y"));
    GBNF("root ::= [^\\x00-\\x7f]", LIST("\xc3\xa9", "\xe2\x82\xac"), LIST("a", "\xc3"));
    GBNF("root ::= \"ab\"* \"a\"", LIST("a", "aba", "ababa"), LIST("ab", "aa"));
}

static void grammars_that_ship_with_llama_cpp_compile(void **state)
{
    static const char json[] =
        "root   ::= object\n"
        "value  ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n\n"
        "object ::=\n  \"{\" ws (\n            string \":\" ws value\n    (\",\" ws string \":\" "
        "ws value)*\n  )? \"}\" ws\n\n"
        "array  ::=\n  \"[\" ws (\n            value\n    (\",\" ws value)*\n  )? \"]\" ws\n\n"
        "string ::=\n  \"\\\"\" (\n    [^\"\\\\\\x7F\\x00-\\x1F] |\n    \"\\\\\" ([\"\\\\bfnrt] | "
        "\"u\" [0-9a-fA-F]{4}) # escapes\n  )* \"\\\"\" ws\n\n"
        "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] "
        "[1-9]{0,15})? ws\n\n"
        "# Optional space: by convention, applied in this grammar after literal chars when "
        "allowed\n"
        "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";
    (void)state;
    GBNF(json,
         LIST("{}", "{\"a\": [1, -2.5e3, true, {\"b\":null}], \"\\u00e9\\n\":\"x\"}",
              "{ \"a\":\n    1}"),
         LIST("[]", "{\"a\":}", "{\"a\":1,}", "{\"a\"  :1}"));
    GBNF("root  ::= (expr \"=\" term \"\\n\")+\nexpr  ::= term ([-+*/] term)*\nterm  ::= num | "
         "\"(\" expr \")\"\nnum   ::= [0-9]+",
         LIST("1+2=3\n", "(1*(2-3))/4=5\n6=6\n"), LIST("1+=2\n", "1=2"));
}

static void errors_in_gbnf_name_their_position(void **state)
{
    (void)state;
    assert_refused(GRAMMAR_GBNF, "", "there is no rule 'root'");
    assert_refused(GRAMMAR_GBNF, "root = \"a\"", "line 1, column 6: expected ::=");
    assert_refused(GRAMMAR_GBNF, "root ::= \"a", "line 1, column 10");
    assert_refused(GRAMMAR_GBNF, "root ::= [a", "line 1, column 10");
    assert_refused(GRAMMAR_GBNF, "root ::= a\n", "line 1, column 10: there is no rule 'a'");
    assert_refused(GRAMMAR_GBNF, "root ::= \"a\"\nroot ::= \"b\"",
                   "line 2, column 1: the rule 'root' is defined twice");
    assert_refused(GRAMMAR_GBNF, "root ::= (\"a\"", "expected ')'");
    assert_refused(GRAMMAR_GBNF, "root ::= \"a\")", "line 1, column 13");
    assert_refused(GRAMMAR_GBNF, "root ::= \"\\q\"", "line 1, column 11: unknown escape");
    assert_refused(GRAMMAR_GBNF, "root ::= \"\\ud800\"", "not a character");
    assert_refused(GRAMMAR_GBNF, "root ::= \"a\"{3,1}", "the maximum is below the minimum");
    assert_refused(GRAMMAR_GBNF, "root ::= \"a\"{9999999}", "more than 1000000 repetitions");
    assert_refused(GRAMMAR_GBNF, "root ::= \"a\"{x}", "expected a number");
    assert_refused(GRAMMAR_GBNF, "root ::= [z-a]", "the range is reversed");
    assert_refused(GRAMMAR_GBNF, "root ::= <none>", "no token <none>");
    assert_refused(GRAMMAR_GBNF, "root ::= !<[1]>", "not supported");
    assert_refused(GRAMMAR_GBNF, "root ::= \"\xff\"", "not UTF-8");
    assert_refused(GRAMMAR_GBNF, "root ::= \"a\"**********", "repetition operators in a row");
    assert_refused(GRAMMAR_GBNF, "root ::= \"a\" root", "nothing matches");
    assert_refused(GRAMMAR_GBNF, "root ::= []", "nothing matches");
}

static void left_recursion_is_refused_by_name(void **state)
{
    (void)state;
    assert_refused(GRAMMAR_GBNF, "root ::= expr\nexpr ::= expr \"+\" \"1\" | \"1\"",
                   "'expr' begins with itself (left recursion)");
    assert_refused(GRAMMAR_GBNF, "root ::= a\na ::= b \"x\"\nb ::= a | \"y\"", "by way of");
    assert_refused(GRAMMAR_GBNF, "root ::= e a\ne ::= \"\" | \" \"\na ::= e a \"x\" | \"y\"",
                   "'a' begins with itself");
    GBNF("root ::= \"1\" | \"1\" \"+\" root", LIST("1", "1+1+1"), LIST("+1"));
}

/* ---- masks ---- */

static const char *const grammars[] = {
    "root ::= [a-z]+ \"=\" [0-9]{1,3}",
    "root ::= ident (\", \" ident)*\nident ::= [a-zA-Z_] [a-zA-Z0-9_]*",
    "root ::= \"\\\"\" [^\"\\\\]{3,40} \"\\\"\" \"}\"",
    "root ::= list\nlist ::= \"[\" (item (\",\" item)*)? \"]\"\nitem ::= list | [0-9]+ | \"\\\"\" "
    "ch{0,300} \"\\\"\"\nch ::= [^\"\\\\] | \"\\\\\" [nt]",
    "root ::= (\"a\" | \"ab\" | \"abc\"){2,200} \"the\"",
    "root ::= (x \",\"){0,90} \"]\"\nx ::= [0-9]{1,2} | \"true\" | \"null\"",
    "root ::= .{1,5} \"\xc3\xa9\"? \"x\"",
    "root ::= (\"(\" root \")\")*",
    "root ::= a | b\na ::= \"{\\\"\" [a-z]* \"\\\":\" [0-9]\nb ::= \"{\\\"\" [a-c]* \"\\\": \" "
    "[a-z]",
    /* ambiguous counts, below and above their minimum */
    "root ::= [a-z]{0,40} [a-x]{2,5} [a-z]{3,9} \"=\"",
    "root ::= (\"a\" [bc]? ){0,6} [a-c]{1,4} x{1,3}\nx ::= [a-e]{2,3}",
};

/* Samples a random text; at every step the mask must equal the result of trying each token. */
static void check_masks(struct matcher_cache *m, struct rng *rng, int steps)
{
    int32_t *ids = mem_array((size_t)lex->n_ids, sizeof *ids);
    struct matcher x;

    begin_text(&x, m, false);
    for (int i = 0; i < steps && !matcher_is_complete(&x); i++) {
        const uint64_t *mask = matcher_mask(&x);
        uint64_t *copy = mem_dup(mask, ((size_t)lex->n_ids + 63) / 64 * sizeof *copy);
        int n = 0;
        for (int32_t id = 0; id < lex->n_ids; id++) {
            bool can = matcher_min_bytes_after(&x, id) < MATCHER_FAR;
            if (can != has_bit(copy, id))
                fail_msg("token '%.*s' %s", STR_ARG(vocabtrie_bytes(lex, id)),
                         can ? "is missing from the mask"
                             : "is in the mask, but cannot be accepted");
            if (can) ids[n++] = id;
        }
        mem_free(copy);
        assert_true(n > 0);
        assert_int_equal(matcher_accept(&x, ids[rng_u64(rng) % (uint64_t)n]), OK);
    }
    matcher_end(&x);
    mem_free(ids);
}

static void masks_equal_the_result_of_trying_every_token(void **state)
{
    struct rng rng;
    (void)state;
    rng_seed(&rng, 1);
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
        struct grammar *g = compile(GRAMMAR_GBNF, grammars[i]);
        struct matcher_cache *m = open_cache(grammar_pda(g), lex);
        for (int k = 0; k < 12; k++) check_masks(m, &rng, 30);
        matcher_cache_close(m);
        grammar_unref(g);
    }
}

static void evicting_cached_states_does_not_change_masks(void **state)
{
    struct rng rng;
    (void)state;
    rng_seed(&rng, 2);
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
        struct grammar *g = compile(GRAMMAR_GBNF, grammars[i]);
        struct matcher_cache *m = open_cache(grammar_pda(g), lex);
        struct matcher other;
        int least;
        matcher_cache_limit(m, 1); /* evict at every step */
        begin_text(&other, m, true);
        least = matcher_min_bytes(&other);
        check_masks(m, &rng, 20);
        check_masks(m, &rng, 20);
        assert_int_equal(matcher_min_bytes(&other), least);
        matcher_end(&other);
        matcher_cache_close(m);
        grammar_unref(g);
    }
}

static void the_memory_of_the_cache_stays_within_its_limit(void **state)
{
    struct grammar *g = compile(GRAMMAR_GBNF, grammars[3]);
    struct matcher_cache *m = open_cache(grammar_pda(g), lex);
    struct matcher x;
    (void)state;
    matcher_cache_limit(m, 1 << 20);
    begin_text(&x, m, true);
    for (int i = 0; i < 20000; i++) { /* the stack only grows */
        assert_int_equal(matcher_accept_bytes(&x, STR("[")), OK);
        if (i % 100 == 0) matcher_mask(&x);
    }
    assert_true(matcher_cache_bytes(m) < 8 << 20);
    for (int i = 0; i < 20000; i++) assert_int_equal(matcher_accept_bytes(&x, STR("]")), OK);
    assert_true(matcher_is_complete(&x));
    matcher_end(&x);
    matcher_cache_close(m);
    grammar_unref(g);
}

static void large_repetitions_are_counted_and_not_expanded(void **state)
{
    struct grammar *g = compile(GRAMMAR_GBNF, "root ::= [a-z]{500,100000} \".\"");
    struct matcher_cache *m = open_cache(grammar_pda(g), lex);
    struct matcher x;
    (void)state;
    assert_true(grammar_pda(g)->n_states < 100);
    begin_text(&x, m, true);
    assert_int_equal(matcher_min_bytes(&x), 501);
    for (int i = 0; i < 499; i++) assert_int_equal(matcher_accept_bytes(&x, STR("a")), OK);
    assert_int_equal(matcher_accept_bytes(&x, STR(".")), E_INVALID);
    for (int i = 499; i < 100000; i++) assert_int_equal(matcher_accept_bytes(&x, STR("b")), OK);
    assert_int_equal(matcher_accept_bytes(&x, STR("a")), E_INVALID);
    assert_int_equal(matcher_accept_bytes(&x, STR(".")), OK);
    assert_true(matcher_is_complete(&x));
    matcher_end(&x);
    matcher_cache_close(m);
    grammar_unref(g);
}

/* A count that another one covers is left out, and so the stacks do not grow with the text. */
static void ambiguous_repetitions_have_few_stacks(void **state)
{
    struct grammar *g =
        compile(GRAMMAR_REGEX, "[^a]{0,100000}[^a]{0,100000}[^a]{4,100000}[^a]{0,100000}a");
    struct matcher_cache *m = open_cache(grammar_pda(g), lex);
    struct matcher x;
    (void)state;
    begin_text(&x, m, true);
    for (int i = 0; i < 3; i++) assert_int_equal(matcher_accept_bytes(&x, STR("b")), OK);
    assert_int_equal(matcher_accept_bytes(&x, STR("a")), E_INVALID);
    for (int i = 3; i < 10000; i++) assert_int_equal(matcher_accept_bytes(&x, STR("b")), OK);
    assert_int_equal(matcher_accept_bytes(&x, STR("a")), OK);
    assert_true(matcher_is_complete(&x));
    matcher_end(&x);
    matcher_cache_close(m);
    grammar_unref(g);
}

static void a_text_with_too_many_stacks_cannot_go_on(void **state)
{
    struct grammar *g = compile(
        GRAMMAR_GBNF, "root ::= a | b | \"x\"\na ::= \"x\" root \"y\"\nb ::= \"x\" root \"z\"");
    struct matcher_cache *m = open_cache(grammar_pda(g), lex);
    struct matcher x;
    int n = 0, rc;
    (void)state;
    begin_text(&x, m, true);
    while (n < 1000 && (rc = matcher_accept_bytes(&x, STR("x"))) == OK) n++;
    assert_int_equal(rc, E_UNSUPPORTED);
    assert_in_range(n, 5, 20); /* their number doubles with each x */
    assert_int_equal(matcher_min_bytes_after(&x, 'x'), E_UNSUPPORTED);
    assert_int_equal(matcher_accept_bytes(&x, STR("a")), E_INVALID);
    while (n-- > 1) assert_int_equal(matcher_accept_bytes(&x, STR("y")), OK); /* nothing was lost */
    assert_true(matcher_is_complete(&x));
    matcher_end(&x);
    matcher_cache_close(m);
    grammar_unref(g);
}

static void a_text_can_be_closed_within_its_minimum_of_bytes(void **state)
{
    struct rng rng;
    (void)state;
    rng_seed(&rng, 3);
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
        struct grammar *g = compile(GRAMMAR_GBNF, grammars[i]);
        struct matcher_cache *m = open_cache(grammar_pda(g), lex);
        for (int k = 0; k < 20; k++) {
            struct buf text = { 0 };
            make_text(m, lex, &rng, k, &text);
            if (!matches_grammar(g, lex, buf_str(&text)))
                fail_msg("%s was made from %s, but does not match it", buf_cstr(&text),
                         grammars[i]);
            buf_release(&text);
        }
        matcher_cache_close(m);
        grammar_unref(g);
    }
}

static void a_first_space_that_the_tokenizer_strips_is_not_matched(void **state)
{
    struct grammar *g = compile(GRAMMAR_GBNF, "root ::= \"name\" \" the\"");
    struct str words[] = { STR(" name"), STR("name"), STR(" the"), STR("the"), STR(" ") };
    struct vocabtrie *own = NULL;
    struct matcher_cache *m;
    struct matcher x;
    (void)state;
    assert_int_equal(vocabtrie_from_bytes(&own, words, NULL, 5, NULL), OK);
    own->strips_first = true;
    m = open_cache(grammar_pda(g), own);
    begin_text(&x, m, true);
    assert_int_equal(matcher_mask(&x)[0], 3);
    assert_int_equal(matcher_accept(&x, 0), OK);
    assert_int_equal(matcher_mask(&x)[0], 4 | 16); /* " the", or " " and then "the" */
    assert_int_equal(matcher_accept(&x, 2), OK);
    assert_true(matcher_is_complete(&x));
    matcher_end(&x);
    begin_text(&x, m, false); /* after a prompt the space is not stripped */
    assert_int_equal(matcher_mask(&x)[0], 2);
    matcher_end(&x);
    matcher_cache_close(m);
    vocabtrie_close(own);
    grammar_unref(g);
}

/* The bytes of the tokens of a text, joined, must be the text. */
static void check_token_bytes(const char *path)
{
    static const char text[] =
        "{\"name\": \"Caf\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\x98\x80\", \"n\": [1, 2.50, "
        "-3e4],\n\t\"t\": \"the end\"}  x";
    struct tokenizer *t = NULL;
    struct vocabtrie *own = NULL;
    struct ids ids = { 0 };
    struct buf words = { 0 };
    struct str got;
    struct err e = { 0 };

    if (tokenizer_open(&t, path, &e) != OK) fail_msg("%s", e.msg);
    if (vocabtrie_open(&own, t, tokenizer_n(t), NULL, 0, &e) != OK) fail_msg("%s", e.msg);
    if (tokenizer_encode(t, str_c(text), ENCODE_PLAIN, &ids, &e) != OK) fail_msg("%s", e.msg);
    for (size_t i = 0; i < ids.n; i++) buf_put_str(&words, vocabtrie_bytes(own, ids.p[i]));
    got = buf_str(&words);
    if (own->strips_first && got.n && got.p[0] == ' ') got = str_skip(got, 1);
    if (!str_is(got, text)) fail_msg("%s: the tokens give '%.*s'", path, STR_ARG(got));
    ids_release(&ids);
    buf_release(&words);
    vocabtrie_close(own);
    tokenizer_close(t);
}

static void the_bytes_of_tokens_are_those_of_the_text(void **state)
{
    static const char *const shared_ones[] = { "gemma2", "gpt2", "llama3.1", "mistral-7b-v0.1",
                                               "phi-3" };
    char path[128];
    (void)state;
    check_token_bytes(repo("models/tern-tales.gguf"));
    need_shared("fixtures/tokenizers/llama3.1");
    for (size_t i = 0; i < sizeof shared_ones / sizeof *shared_ones; i++) {
        snprintf(path, sizeof path, "fixtures/tokenizers/%s", shared_ones[i]);
        if (shared(path)) check_token_bytes(shared(path));
    }
}

static void special_tokens_are_allowed_only_where_the_grammar_names_them(void **state)
{
    struct grammar *g = compile(GRAMMAR_GBNF, "root ::= <[2]> [^x]* <[3]>");
    struct str words[] = { STR("a"), STR("x"), STR(""), STR("") };
    bool special[] = { false, false, true, true };
    struct vocabtrie *own = NULL;
    struct matcher_cache *m;
    struct matcher x;
    (void)state;
    assert_int_equal(vocabtrie_from_bytes(&own, words, special, 4, NULL), OK);
    m = open_cache(grammar_pda(g), own);
    begin_text(&x, m, true);
    assert_int_equal(matcher_mask(&x)[0], 4);
    assert_int_equal(matcher_accept(&x, 2), OK);
    assert_int_equal(matcher_mask(&x)[0], 1 | 8);
    assert_int_equal(matcher_accept(&x, 3), OK);
    assert_true(matcher_is_complete(&x));
    matcher_end(&x);
    matcher_cache_close(m);
    vocabtrie_close(own);
    grammar_unref(g);
}

static void a_grammar_that_is_too_large_is_refused(void **state)
{
    struct buf b = { 0 };
    (void)state;
    assert_refused(GRAMMAR_GBNF, "root ::= (\"a\" | \"b\")* \"a\" (\"a\" | \"b\"){20}",
                   "too complex");
    buf_puts(&b, "root ::= a1\n");
    for (int i = 1; i < 9000; i++) buf_printf(&b, "a%d ::= \"x\" a%d\n", i, i + 1);
    buf_puts(&b, "a9000 ::= \"y\"");
    assert_refused(GRAMMAR_GBNF, buf_cstr(&b), "too large");
    buf_release(&b);
}

/* A grammar_build_fn: the text, repeated one or more times. */
static int build_repeated(struct rules *g, struct str text, struct err *e)
{
    if (!text.n) return err_set(e, E_INVALID, "there is nothing to repeat");
    g->root =
        rules_add(g, STR("root"), rules_repeat(g, rules_literal(g, text), 1, RULES_UNBOUNDED));
    return OK;
}

static int build_once(struct rules *g, struct str text, struct err *e)
{
    (void)e;
    g->root = rules_add(g, STR("root"), rules_literal(g, text));
    return OK;
}

static void rules_can_be_built_by_a_function(void **state)
{
    struct grammar_spec spec = { .kind = GRAMMAR_RULES,
                                 .build = build_repeated,
                                 .text = STR("ab") };
    struct grammar *g = compile_spec(&spec);
    (void)state;
    assert_true(matches_grammar(g, lex, STR("ab")) && matches_grammar(g, lex, STR("abab")));
    assert_false(matches_grammar(g, lex, STR("")) || matches_grammar(g, lex, STR("aba")));
    grammar_unref(g);
    spec.text = STR("");
    assert_spec_refused(&spec, "there is nothing to repeat");
}

static void grammar_specs_are_equal_if_they_compile_to_the_same_grammar(void **state)
{
    struct grammar_spec a = { .kind = GRAMMAR_RULES, .build = build_repeated, .text = STR("ab") },
                        b = a;
    (void)state;
    assert_true(grammar_spec_equal(&a, &b));
    b.build = build_once;
    assert_false(grammar_spec_equal(&a, &b));
    b = a;
    b.text = STR("abc");
    assert_false(grammar_spec_equal(&a, &b));
    b = a;
    b.lead = "";
    assert_false(grammar_spec_equal(&a, &b));
    b = a;
    b.reasoning = REASONING_OPEN;
    assert_false(grammar_spec_equal(&a, &b));
}

static void optional_reasoning_and_the_lead_precede_the_answer(void **state)
{
    struct grammar_spec spec = { .kind = GRAMMAR_CHOICE,
                                 .text = STR("[\"yes\"]"),
                                 .reasoning = REASONING_OPTIONAL,
                                 .reasoning_open = "<think>",
                                 .reasoning_close = "</think>",
                                 .lead = "Answer: " };
    struct grammar *g = compile_spec(&spec);
    (void)state;
    assert_true(matches_grammar(g, lex, STR("Answer: yes")));
    assert_true(matches_grammar(g, lex, STR("<think>a < b</think>\n\nAnswer: yes")));
    assert_false(matches_grammar(g, lex, STR("yes")) ||
                 matches_grammar(g, lex, STR("<think>Answer: yes")));
    grammar_unref(g);
    spec.reasoning = REASONING_OPEN;
    g = compile_spec(&spec);
    assert_true(matches_grammar(g, lex, STR("x</think>Answer: yes")));
    assert_false(matches_grammar(g, lex, STR("Answer: yes")));
    grammar_unref(g);
}

/* docs/a-grammar.md shows these numbers. */
static void the_example_of_the_documentation(void **state)
{
    static const char *const tokens[] = { "[",  "]",  ",",  " ",   "[[",  "]]",
                                          "],", "[]", ",[", "],[", "]]]", "a" };
    static const struct {
        const char *text;
        uint64_t mask;
        bool ends;
    } want[] = {
        { "", 1 << 0 | 1 << 4 | 1 << 7, false },
        { "[", 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 7, false },
        { "[[", 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 9, false },
        { "[[]", 1 << 1 | 1 << 2 | 1 << 3 | 1 << 8, false },
        { "[[]]", 0, true },
    };
    static const int min_bytes[] = { 2, 1, 1, 0, 1, 1, 3, 3, 2, 0 };
    static const uint32_t skips[] = { 1, 3, 3, 6, 5, 6, 11, 9, 9, 11, 11, 12 };
    struct grammar *g =
        compile(GRAMMAR_SCHEMA, "{\"type\": \"array\", \"items\": {\"$ref\": \"#\"}}");
    const struct pda *a = grammar_pda(g);
    struct vocabtrie *v = NULL;
    struct matcher_cache *m;
    struct str words[12];
    struct matcher x;
    (void)state;
    for (int i = 0; i < 12; i++) words[i] = str_c(tokens[i]);
    assert_int_equal(vocabtrie_from_bytes(&v, words, NULL, 12, NULL), OK);
    assert_int_equal(a->n_rules, 2);
    assert_int_equal(a->n_states, 10);
    assert_int_equal(a->n_classes, 9);
    for (int i = 0; i < 10; i++) assert_int_equal(a->states[i].min_bytes, min_bytes[i]);
    assert_int_equal(v->trie.n_nodes, 12);
    for (int i = 0; i < 12; i++) assert_int_equal(v->trie.nodes[i].skip, skips[i]);
    m = open_cache(a, v);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        begin_text(&x, m, true);
        if (want[i].text[0]) assert_int_equal(matcher_accept_bytes(&x, str_c(want[i].text)), OK);
        assert_int_equal(matcher_mask(&x)[0], want[i].mask);
        assert_int_equal(matcher_may_end(&x), want[i].ends);
        matcher_end(&x);
    }
    matcher_cache_close(m);
    vocabtrie_close(v);
    grammar_unref(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gbnf_matches_what_its_rules_say),
        cmocka_unit_test(grammars_that_ship_with_llama_cpp_compile),
        cmocka_unit_test(errors_in_gbnf_name_their_position),
        cmocka_unit_test(left_recursion_is_refused_by_name),
        cmocka_unit_test(masks_equal_the_result_of_trying_every_token),
        cmocka_unit_test(evicting_cached_states_does_not_change_masks),
        cmocka_unit_test(the_memory_of_the_cache_stays_within_its_limit),
        cmocka_unit_test(large_repetitions_are_counted_and_not_expanded),
        cmocka_unit_test(ambiguous_repetitions_have_few_stacks),
        cmocka_unit_test(a_text_with_too_many_stacks_cannot_go_on),
        cmocka_unit_test(a_text_can_be_closed_within_its_minimum_of_bytes),
        cmocka_unit_test(a_first_space_that_the_tokenizer_strips_is_not_matched),
        cmocka_unit_test(the_bytes_of_tokens_are_those_of_the_text),
        cmocka_unit_test(special_tokens_are_allowed_only_where_the_grammar_names_them),
        cmocka_unit_test(a_grammar_that_is_too_large_is_refused),
        cmocka_unit_test(the_example_of_the_documentation),
        cmocka_unit_test(rules_can_be_built_by_a_function),
        cmocka_unit_test(grammar_specs_are_equal_if_they_compile_to_the_same_grammar),
        cmocka_unit_test(optional_reasoning_and_the_lead_precede_the_answer),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
