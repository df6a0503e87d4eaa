/* pattern.h - regular expressions as JSON schemas have them (ECMA 262), turned into trees.
 *
 * Classes, groups, alternatives, repetitions (lazy ones match the same texts), \d \w \s, escapes,
 * and anchors at both ends. What a finite machine cannot do (looking around, references back, word
 * borders) is refused by name. Classes that leave something out (\W, \S, \D, the dot) keep to
 * characters on which all dialects agree. */
#ifndef TERN_GRAMMAR_PATTERN_H
#define TERN_GRAMMAR_PATTERN_H

#include "base/err.h"
#include "grammar/gnode.h"

enum pattern_as {
    PATTERN_TEXT, /* the text itself */
    PATTERN_JSON  /* the inside of a JSON string that stands for it */
};

/* whole: the pattern is for all of the text; otherwise it may match anywhere in it, unless
 * anchored. *out lies in g's arena. E_INVALID names the column. */
int pattern_parse(struct gnode **out, struct grules *g, struct str pattern, enum pattern_as as,
                  bool whole, struct err *e);
/* One character of a set, the same two ways. */
struct gnode *pattern_char(struct grules *g, struct cpset set, enum pattern_as as);
#endif
