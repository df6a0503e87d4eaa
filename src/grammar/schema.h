/* schema.h - JSON schemas, turned into the rules of a grammar.
 *
 * The texts of the grammar are JSON values that the schema accepts, compact or with one space after
 * { [ , : and before ] }. They are not all such values:
 * - properties come in the order of the schema;
 * - an object whose properties are named has no others, unless additionalProperties allows them;
 * - numbers have at most some 15 digits.
 * A keyword that constrains and cannot be enforced is E_INVALID, with the keyword and its place
 * ("#/properties/a"): a schema is never weakened silently. */
#ifndef TERN_GRAMMAR_SCHEMA_H
#define TERN_GRAMMAR_SCHEMA_H

#include "base/err.h"
#include "grammar/rules.h"

#include <jansson.h>

/* Parses JSON of limited size. what: "the schema", for errors. b may be NULL. */
int schema_load(json_t **out, struct str text, const char *what, struct budget *b, struct err *e);

/* Adds the rules of a schema to g. *rule is the rule of the whole value. */
int schema_add(struct rules *g, const json_t *schema, int *rule, struct err *e);
/* The same, for the objects that the schema accepts. */
int schema_add_object(struct rules *g, const json_t *schema, int *rule, struct err *e);
int schema_add_any_object(struct rules *g); /* the rule of any JSON object */

/* The members of an object in another notation than JSON: key NAME is VALUE end, with sep between
 * two of them. */
struct schema_list {
    struct rule_node *key, *is, *end, *sep;
    struct rule_node *end_tail; /* after `end` the name comes again, and then this; NULL: not */
    struct rule_node *is_json;  /* in place of `is`, before a value that is written as JSON */
    struct rule_node *quote;    /* before and after a raw string; NULL: none */
    /* Strings are written raw, without escapes, and cannot contain this text. p NULL: strings are
     * written as JSON. */
    struct str until;
    bool trim;   /* a raw string neither begins nor ends with a newline */
    bool python; /* True, False and None in place of true, false and null */
};
/* *out NULL: the schema asks for something that this notation cannot express. */
int schema_add_list(struct rules *g, const json_t *schema, const struct schema_list *form,
                    struct rule_node **out, struct err *e);
#endif
