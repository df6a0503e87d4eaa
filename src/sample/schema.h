/* schema.h - JSON schemas, turned into the rules of a grammar.
 *
 * Texts of the grammar are JSON that the schema accepts, compact or with one space behind { [ , : and before
 * ] }. They are not all of those: properties come in the order of the schema; an object that names properties
 * has no others unless additionalProperties says so; numbers have at most some 15 digits. Whatever constrains
 * and cannot be kept is E_INVALID, with the keyword and where it stands ("#/properties/a"). */
#ifndef TERN_SAMPLE_SCHEMA_H
#define TERN_SAMPLE_SCHEMA_H

#include "base/err.h"
#include "sample/gnode.h"

#include <jansson.h>

/* Adds the rules to g; *rule is the one for the whole value. */
int schema_add(struct grules *g, const json_t *schema, int *rule, struct err *e);
int schema_any_object(struct grules *g);                 /* the rule for any JSON object */
#endif
