/* grammar.h - what a text must look like, compiled: from GBNF, a JSON schema, a pattern, or tools
 * to call.
 *
 * Compiling takes a bounded time and a bounded amount of memory, and never fails open: what cannot
 * be kept is E_INVALID with what and where. The result is immutable and counted: any number of
 * threads and texts may use it (grammar/guide.h). */
#ifndef TERN_GRAMMAR_GRAMMAR_H
#define TERN_GRAMMAR_GRAMMAR_H

#include "base/buf.h"
#include "grammar/gauto.h"
#include "token/tokenizer.h"

enum grammar_kind {
    GRAMMAR_GBNF,   /* text: the grammar (grammar/gbnf.h) */
    GRAMMAR_SCHEMA, /* text: a JSON schema (grammar/schema.h) */
    GRAMMAR_OBJECT, /* any JSON object; text: "" */
    GRAMMAR_REGEX,  /* text: a pattern for all of the answer (grammar/pattern.h) */
    GRAMMAR_CHOICE, /* text: a JSON list of strings, one of which is the answer */
    GRAMMAR_CALLS   /* text: as grammar_put_calls writes it */
};

struct grammar_spec {
    enum grammar_kind kind;
    struct str text;
    /* Before it may stand reasoning: think TEXT think_end think_after; and then `lead`. Literals;
     * names of special tokens in them stand for the tokens themselves. */
    enum { THINK_NOT, THINK_MAY, THINK_BEGUN } thinking; /* BEGUN: `think` is behind it */
    const char *think, *think_end, *think_after; /* think_after NULL: a little white space */
    const char *lead;                            /* NULL: "" */
    const int32_t *ends; /* [n_ends] tokens that end a text: they cannot stand in it */
    int n_ends;
};

struct grammar;
/* tok names tokens that have no text; NULL is fine. */
int grammar_compile(struct grammar **out, const struct grammar_spec *spec,
                    const struct tokenizer *tok, struct err *e);
struct grammar *grammar_ref(struct grammar *g); /* g itself */
void grammar_unref(struct grammar *g);          /* NULL is fine */
const struct gauto *grammar_auto(const struct grammar *g);

/* ---- calls of tools ---- */

struct grammar_tool {
    struct str name;
    struct str parameters; /* a JSON schema; empty: any object */
};

/* How a family of models writes calls: open CALL sep CALL … close, with CALL = before NAME between
 * ARGUMENTS after. In these texts names of special tokens stand for the tokens themselves, {i} for
 * the number of the call and {r} for ten letters. */
struct grammar_calls {
    const char *open, *before, *between, *after, *sep, *close; /* NULL: "" */
    int min, max;                                              /* calls; max 0: any number */
    /* Arguments as a list: KEY = key NAME is VALUE end, with `and` between; key NULL: one JSON
     * object. Texts stand in it as they are, between two `quote`, and have no `until` in them;
     * until NULL: as JSON. What cannot be a list is an object all the same. */
    const char *key, *is, *end, *and, *quote, *until;
    const char *is_json; /* in place of `is` before values that are no such text; NULL: the same */
    bool trim;   /* such a text neither begins nor ends with a newline: they are the marks' */
    bool python; /* True, False, None */
    /* Any text may come, and need not hold calls: only behind this mark one must follow. The mark
     * is what open and before begin with. NULL: calls there must be, and nothing else. */
    const char *mark;
};

/* Writes the text of a spec of kind GRAMMAR_CALLS: what to call, and how. */
void grammar_put_calls(struct buf *out, const struct grammar_tool *tools, int n,
                       const struct grammar_calls *form);
#endif
