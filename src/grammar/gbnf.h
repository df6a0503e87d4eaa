/* gbnf.h - grammars in GBNF, the notation of llama.cpp, parsed into rules.
 *
 *     root  ::= "yes" | "no" [.!]{0,3}          # a comment
 *     text  ::= [^"\\\x00-\x1f]* ("a" | "b")+ .
 *
 * A grammar has rules, literals, character classes (ranges, ^, \n \t \r \xHH \uHHHH \UHHHHHHHH),
 * groups, |, * + ? {m,n}, a dot for any character, and <name> or <[id]> for a token of the
 * vocabulary. The text begins with the rule "root". Every error names line and column. */
#ifndef TERN_GRAMMAR_GBNF_H
#define TERN_GRAMMAR_GBNF_H

#include "base/err.h"
#include "grammar/rules.h"

#define GBNF_REPEAT_MAX 1000000

/* The id of the token with this name, angle brackets included; -1: none. */
typedef int32_t gbnf_token_fn(void *arg, struct str name);

/* Adds the rules of the text to g and sets its root. token may be NULL: no token has a name. */
int gbnf_parse(struct rules *g, struct str text, gbnf_token_fn *token, void *arg, struct err *e);
#endif
