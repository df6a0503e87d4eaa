/* gbnf.h - grammars as llama.cpp's users write them.
 *
 *     root  ::= "yes" | "no" [.!]{0,3}          # comments
 *     text  ::= [^"\\\x00-\x1f]* ("a" | "b")+ .
 *
 * Rules, literals, classes of characters (ranges, ^, \n \t \r \xHH \uHHHH \UHHHHHHHH), groups, |, *
 * + ? {m,n}, a dot for any character, and <name> or <[id]> for a token of the vocabulary. Every
 * error names line and column. */
#ifndef TERN_GRAMMAR_GBNF_H
#define TERN_GRAMMAR_GBNF_H

#include "base/err.h"
#include "grammar/gnode.h"

#define GBNF_REPEAT_MAX 1000000

/* Which token has that name; -1: none. */
typedef int32_t gbnf_token_fn(void *arg, struct str name);

/* Adds the rules of text to g, and sets its root. token may be NULL: then tokens cannot be named.
 */
int gbnf_parse(struct grules *g, struct str text, gbnf_token_fn *token, void *arg, struct err *e);
#endif
