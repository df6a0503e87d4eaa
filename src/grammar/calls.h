/* calls.h - calls of tools, in the form of a family of models, as the rules of a grammar. */
#ifndef TERN_GRAMMAR_CALLS_H
#define TERN_GRAMMAR_CALLS_H

#include "grammar/gnode.h"
#include "grammar/grammar.h"

#include <jansson.h>

/* Adds the rules of a form (what grammar_put_calls writes, parsed) to g, and sets its root. */
int calls_add(struct grules *g, const json_t *form, const struct grammar_spec *spec,
              const struct tokenizer *tok, struct err *e);
/* Puts what may or must stand before the text (reasoning, lead) before the root. */
int calls_lead(struct grules *g, const struct grammar_spec *spec, const struct tokenizer *tok,
               struct err *e);
#endif
