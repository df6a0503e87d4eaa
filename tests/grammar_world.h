/* grammar_world.h - small vocabularies, and helpers that compile grammars and match texts
 * against them, for tests of constrained sampling. */
#ifndef TERN_TESTS_GRAMMAR_WORLD_H
#define TERN_TESTS_GRAMMAR_WORLD_H

#include "support.h"

#include "base/mem.h"
#include "base/rng.h"
#include "grammar/grammar.h"
#include "grammar/matcher.h"
#include "base/arena.h"
#include "base/buf.h"
#include "grammar/vocabtrie.h"
#include "token/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A vocabulary of n tokens: every byte, common pieces of JSON, and random concatenations of
 * both. */
static struct vocabtrie *make_vocabtrie(int n, uint64_t seed)
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
    struct vocabtrie *l = NULL;
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
    assert_int_equal(vocabtrie_from_bytes(&l, words, NULL, n, NULL), OK);
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

/* The message with which a grammar is refused; NULL: it compiles. */
static const char *spec_refusal(const struct grammar_spec *spec)
{
    static struct err e;
    struct grammar *g = NULL;

    e = (struct err){ 0 };
    if (grammar_compile(&g, spec, NULL, &e) != OK) {
        assert_int_equal(e.code, E_INVALID);
        return e.msg;
    }
    grammar_unref(g);
    return NULL;
}

static inline const char *refusal(enum grammar_kind kind, const char *text)
{
    return spec_refusal(&(struct grammar_spec){ .kind = kind, .text = str_c(text) });
}

static void assert_spec_refused(const struct grammar_spec *spec, const char *what)
{
    const char *msg = spec_refusal(spec);

    if (!msg) fail_msg("%.*s was accepted", STR_ARG(spec->text));
    if (!strstr(msg, what))
        fail_msg("%.*s is refused with '%s', but not for '%s'", STR_ARG(spec->text), msg, what);
}

static inline void assert_refused(enum grammar_kind kind, const char *text, const char *what)
{
    assert_spec_refused(&(struct grammar_spec){ .kind = kind, .text = str_c(text) }, what);
}

static inline struct matcher_cache *open_cache(const struct pda *pda, const struct vocabtrie *vocab)
{
    struct matcher_cache *c = NULL;

    assert_int_equal(matcher_cache_open(&c, pda, vocab, NULL), OK);
    return c;
}

static inline void begin_text(struct matcher *x, struct matcher_cache *c, bool at_start)
{
    assert_int_equal(matcher_begin(x, c, at_start, NULL), OK);
}

/* Whether the whole text matches the grammar. */
static bool matches_grammar(const struct grammar *g, const struct vocabtrie *lex, struct str text)
{
    struct matcher_cache *m = open_cache(grammar_pda(g), lex);
    struct matcher x;
    bool ok = true;

    begin_text(&x, m, true);
    for (size_t i = 0; i < text.n && ok; i++)
        ok = matcher_accept_bytes(&x, str_of(text.p + i, 1)) == OK;
    ok = ok && matcher_may_end(&x);
    matcher_end(&x);
    matcher_cache_close(m);
    return ok;
}

static bool has_bit(const uint64_t *mask, int32_t id) { return mask[id / 64] >> (id % 64) & 1; }

/* Samples a random text of the grammar token by token; after max_tokens it is closed by the
 * shortest way. The text begins with the content of out. */
static void make_text(struct matcher_cache *m, const struct vocabtrie *lex, struct rng *rng,
                      int max_tokens, struct buf *out)
{
    int32_t *ids = mem_array((size_t)lex->n_ids, sizeof *ids);
    struct matcher x;

    begin_text(&x, m, true);
    if (out->n && matcher_accept_bytes(&x, buf_str(out)) != OK)
        fail_msg("the grammar has no text that begins with %s", buf_cstr(out));
    for (int i = 0; !matcher_is_complete(&x); i++) {
        int left = max_tokens - i, n = 0;
        const uint64_t *mask = left <= matcher_min_bytes(&x)
                                   ? matcher_closing_mask(&x, matcher_min_bytes(&x) - 1)
                                   : matcher_mask(&x);
        if (matcher_may_end(&x) && (left <= 0 || rng_u64(rng) % 4 == 0)) break;
        for (int32_t id = 0; id < lex->n_ids; id++)
            if (has_bit(mask, id)) ids[n++] = id;
        if (n == 0) fail_msg("the mask is empty after %s", buf_cstr(out));
        n = (int)(rng_u64(rng) % (uint64_t)n);
        buf_put_str(out, vocabtrie_bytes(lex, ids[n]));
        if (matcher_accept(&x, ids[n]) != OK) fail_msg("a token of the mask is not accepted");
    }
    matcher_end(&x);
    mem_free(ids);
}
#endif
