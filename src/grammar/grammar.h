/* grammar.h - the form that a text must have, compiled to an automaton.
 *
 * The way from a description to a token mask (docs/a-grammar.md has an example):
 *
 *   description  ── gbnf, pattern, schema, or a build function ──►  rules
 *   rules        ── nfa: Thompson's construction ──►                NFA of each rule
 *   NFA          ── dfa: subset construction ──►                    DFA of each rule
 *   DFAs         ── pda ──►                                         pushdown automaton
 *   vocabulary   ── vocabtrie ──►                                   prefix trie
 *   both         ── matcher ──►                                     token bitmask at a position
 *
 *   module             content
 *   grammar            this interface: compile, count references
 *   gbnf               grammars in the notation of llama.cpp → rules
 *   pattern            regular expressions (ECMA 262) → syntax trees
 *   schema, schema_*   JSON schemas → rules
 *   lead               reasoning and literal text before the answer → rules
 *   specials           texts that contain names of special tokens → syntax trees
 *   rules              rules and syntax trees, the common intermediate form
 *   charset            sets of characters and their UTF-8
 *   nfa, dfa           finite automata over bytes
 *   pda                the automata of all rules in one set of tables
 *   toktrie            prefix tries over tokens
 *   vocabtrie          the bytes of a vocabulary and their trie
 *   matcher, matcher_* positions of texts, token masks and their caches
 *
 * Compiling takes bounded time and memory. A description that cannot be enforced is E_INVALID, with
 * what and where; nothing is ignored. Out of memory is E_NOMEM. A compiled grammar is immutable and
 * counted: any number of threads and matchers may use it. */
#ifndef TERN_GRAMMAR_GRAMMAR_H
#define TERN_GRAMMAR_GRAMMAR_H

#include "base/err.h"
#include "base/str.h"
#include <stdbool.h>
#include <stdint.h>

struct rules;
struct pda;
struct tokenizer;
struct budget;

enum grammar_kind {
    GRAMMAR_GBNF,   /* text: the grammar (gbnf.h) */
    GRAMMAR_SCHEMA, /* text: a JSON schema (schema.h) */
    GRAMMAR_OBJECT, /* any JSON object; text: "" */
    GRAMMAR_REGEX,  /* text: a pattern for the whole answer (pattern.h) */
    GRAMMAR_CHOICE, /* text: a JSON array of strings, one of which is the answer */
    GRAMMAR_RULES   /* text: anything that `build` understands */
};

/* The surroundings of a compilation, the same for all descriptions of an engine. Every stage
 * reaches it through struct rules. */
struct grammar_env {
    const struct tokenizer *tok; /* finds special tokens; NULL: there are none */
    const int32_t *ends;         /* [n_ends] tokens that end a text: none of them can be inside */
    int n_ends;
    struct budget *budget; /* what one compilation may take; NULL: the limits below */
};

/* The limits of a compilation whose caller sets none. A step takes some ten
 * nanoseconds. The largest schema of tests/schemas takes a fiftieth of the steps. */
#define GRAMMAR_STEPS 60000000
#define GRAMMAR_BYTES ((size_t)64 << 20)

/* Adds the rules that the text describes to g and sets g->root. Depends on the text and on g->env
 * alone: compiled grammars are cached by function and text. */
typedef int grammar_build_fn(struct rules *g, struct str text, struct err *e);

enum grammar_reasoning {
    REASONING_NONE,
    REASONING_OPTIONAL, /* the text may begin with it */
    REASONING_OPEN      /* the prompt has opened it: the text goes on inside */
};

/* What a grammar is compiled from, and the key under which it is cached. All texts are borrowed. */
struct grammar_spec {
    enum grammar_kind kind;
    struct str text;
    grammar_build_fn *build; /* of GRAMMAR_RULES, else NULL */
    /* Before the answer: reasoning_open TEXT reasoning_close reasoning_after, then `lead`. In these
     * the name of a special token stands for the token. */
    enum grammar_reasoning reasoning;
    const char *reasoning_open, *reasoning_close;
    const char *reasoning_after; /* NULL: up to four spaces or newlines */
    const char *lead;            /* NULL: "" */
};

bool grammar_spec_equal(const struct grammar_spec *a, const struct grammar_spec *b);

struct grammar;
/* env may be NULL: no special tokens. The caller owns a reference to *out. E_INVALID: the text is
 * not a grammar, or takes more than the budget; E_CANCELLED: the budget was cancelled. */
int grammar_compile(struct grammar **out, const struct grammar_spec *spec,
                    const struct grammar_env *env, struct err *e);
struct grammar *grammar_ref(struct grammar *g); /* returns g; NULL is allowed */
void grammar_unref(struct grammar *g);          /* NULL is allowed */
const struct pda *grammar_pda(const struct grammar *g);
size_t grammar_bytes(const struct grammar *g);
size_t grammar_live_bytes(void); /* of all grammars that are referred to; any thread may ask */
#endif
