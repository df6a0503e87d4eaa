/* pattern.h - regular expressions as JSON schemas have them (ECMA 262), parsed into syntax trees.
 *
 * Classes, groups, alternatives, repetitions (lazy ones match the same texts), \d \w \s, escapes,
 * and anchors at both ends are supported. What no finite automaton can do (lookaround,
 * backreferences, word boundaries) is refused by name. Dialects differ in which characters the
 * negated classes (\W, \S, \D, [^...], the dot) contain: here they contain only those on which all
 * agree, so what is generated matches everywhere. */
#ifndef TERN_GRAMMAR_PATTERN_H
#define TERN_GRAMMAR_PATTERN_H

#include "base/err.h"
#include "grammar/rules.h"

enum pattern_as {
    PATTERN_TEXT, /* characters are written as they are */
    PATTERN_JSON  /* as inside of a JSON string: some characters are escaped */
};

/* whole: the pattern describes the whole text. Otherwise it may match anywhere in it, unless it is
 * anchored. *out lies in the arena of g. E_INVALID names the column. */
int pattern_parse(struct rule_node **out, struct rules *g, struct str pattern, enum pattern_as as,
                  bool whole, struct err *e);
/* One character of a set. */
struct rule_node *pattern_make_char(struct rules *g, struct charset set, enum pattern_as as);
/* The characters that a JSON string contains as they are. Normalized, in the arena of g. */
struct charset pattern_get_unescaped(struct rules *g);
#endif
