/* lead.h - the part of a text before the answer: reasoning, and a literal lead. */
#ifndef TERN_GRAMMAR_LEAD_H
#define TERN_GRAMMAR_LEAD_H

#include "grammar/grammar.h"
#include "grammar/rules.h"

/* Puts the reasoning and the lead of the spec, if it has any, before the root of g. */
int lead_add(struct rules *g, const struct grammar_spec *spec, struct err *e);
#endif
