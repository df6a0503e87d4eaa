/* grammar_world.h - small vocabularies, and grammars at work over them, for tests of constrained
 * sampling. */
#ifndef TERN_TESTS_GRAMMAR_WORLD_H
#define TERN_TESTS_GRAMMAR_WORLD_H

#include "support.h"

#include "base/mem.h"
#include "base/rng.h"
#include "grammar/grammar.h"
#include "grammar/guide.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every byte, common pieces of JSON, and words made up of both. */
static struct lexicon *make_lexicon(int n, uint64_t seed)
{
    static const char *const parts[] = { "\"",
                                         "\":",
                                         "\": ",
                                         "\",",
                                         "\", \"",
                                         "\"}",
                                         "\"]",
                                         "{\"",
                                         "}",
                                         "},",
                                         "]}",
                                         "[",
                                         "[{",
                                         "]",
                                         ",",
                                         ", ",
                                         ": ",
                                         " ",
                                         "true",
                                         "false",
                                         "null",
                                         "\\",
                                         "\\n",
                                         "\\u",
                                         "name",
                                         "a",
                                         "b",
                                         "ab",
                                         "abc",
                                         "id",
                                         "0",
                                         "1",
                                         "12",
                                         "99",
                                         "-",
                                         ".",
                                         "e",
                                         "Z",
                                         "T",
                                         ":",
                                         "-0",
                                         "\xc3",
                                         "\xa9",
                                         "\xc3\xa9",
                                         "\xe2\x82",
                                         "\xac",
                                         "\xf0\x9f\x98\x80",
                                         "\n",
                                         "the",
                                         "(",
                                         ")",
                                         "+",
                                         "*",
                                         "=",
                                         "/",
                                         "x",
                                         "@",
                                         "_" };
    struct str *words = mem_array((size_t)n, sizeof *words);
    struct arena arena = { 0 };
    struct lexicon *l = NULL;
    struct rng rng;

    rng_seed(&rng, seed);
    for (int i = 0; i < n; i++) {
        struct buf b = { 0 };
        if (i < 256) buf_putc(&b, (char)i);
        for (int k = i < 256 ? 0 : 1 + (int)(rng_u64(&rng) % 4); k > 0; k--)
            buf_puts(&b, parts[rng_u64(&rng) % (sizeof parts / sizeof *parts)]);
        words[i] = arena_str(&arena, buf_str(&b));
        buf_release(&b);
    }
    assert_int_equal(lexicon_from(&l, words, NULL, n, NULL), OK);
    mem_free(words);
    arena_release(&arena);
    return l;
}

static struct grammar *compile_spec(const struct grammar_spec *spec)
{
    struct grammar *g = NULL;
    struct err e = { 0 };

    if (grammar_compile(&g, spec, NULL, &e) != OK) fail_msg("%.*s: %s", STR_ARG(spec->text), e.msg);
    return g;
}

static inline struct grammar *compile(enum grammar_kind kind, const char *text)
{
    return compile_spec(&(struct grammar_spec){ .kind = kind, .text = str_c(text) });
}

/* The sentence with which it is refused; NULL: it is not. */
static const char *refusal(enum grammar_kind kind, const char *text)
{
    static struct err e;
    struct grammar_spec spec = { .kind = kind, .text = str_c(text) };
    struct grammar *g = NULL;

    e = (struct err){ 0 };
    if (grammar_compile(&g, &spec, NULL, &e) != OK) {
        assert_int_equal(e.code, E_INVALID);
        return e.msg;
    }
    grammar_unref(g);
    return NULL;
}

static void assert_refused(enum grammar_kind kind, const char *text, const char *what)
{
    const char *msg = refusal(kind, text);

    if (!msg) fail_msg("%s was taken", text);
    if (!strstr(msg, what)) fail_msg("%s is refused with '%s', but not for '%s'", text, msg, what);
}

/* Is the text one of the grammar's? */
static bool takes(const struct grammar *g, const struct lexicon *lex, struct str text)
{
    struct guide *m = guide_open(grammar_auto(g), lex);
    struct match x;
    bool ok = true;

    match_begin(&x, m, true);
    for (size_t i = 0; i < text.n && ok; i++) ok = match_write(&x, str_of(text.p + i, 1));
    ok = ok && match_may_end(&x);
    match_end(&x);
    guide_close(m);
    return ok;
}

static bool has_bit(const uint64_t *mask, int32_t id) { return mask[id / 64] >> (id % 64) & 1; }

/* A random text of the grammar, token by token; it is closed after some tokens. It begins with what
 * is in out. */
static void make_text(struct guide *m, const struct lexicon *lex, struct rng *rng, int max_tokens,
                      struct buf *out)
{
    int32_t *ids = mem_array((size_t)lex->n_ids, sizeof *ids);
    struct match x;

    match_begin(&x, m, true);
    if (out->n && !match_write(&x, buf_str(out))) fail_msg("no text begins with %s", buf_cstr(out));
    for (int i = 0; !match_is_over(&x); i++) {
        int left = max_tokens - i, n = 0;
        const uint64_t *mask =
            left <= match_least(&x) ? match_closing(&x, match_least(&x) - 1) : match_mask(&x);
        if (match_may_end(&x) && (left <= 0 || rng_u64(rng) % 4 == 0)) break;
        for (int32_t id = 0; id < lex->n_ids; id++)
            if (has_bit(mask, id)) ids[n++] = id;
        if (n == 0) fail_msg("no token may come after %s", buf_cstr(out));
        n = (int)(rng_u64(rng) % (uint64_t)n);
        buf_put_str(out, lexicon_word(lex, ids[n]));
        if (!match_accept(&x, ids[n])) fail_msg("a token of the mask is not taken");
    }
    match_end(&x);
    mem_free(ids);
}
#endif
