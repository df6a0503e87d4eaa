/* schema.h - JSON schemas, turned into the rules of a grammar.
 *
 * Texts of the grammar are JSON that the schema accepts, compact or with one space behind { [ , :
 * and before ] }. They are not all of those: properties come in the order of the schema; an object
 * that names properties has no others unless additionalProperties says so; numbers have at most
 * some 15 digits. Whatever constrains and cannot be kept is E_INVALID, with the keyword and where
 * it stands ("#/properties/a"). */
#ifndef TERN_GRAMMAR_SCHEMA_H
#define TERN_GRAMMAR_SCHEMA_H

#include "base/err.h"
#include "grammar/gnode.h"

#include <jansson.h>

/* Adds the rules to g; *rule is the one for the whole value. */
int schema_add(struct grules *g, const json_t *schema, int *rule, struct err *e);
/* Only its objects. */
int schema_add_object(struct grules *g, const json_t *schema, int *rule, struct err *e);
/* An object's members as a list of their own kind: key NAME is VALUE end, with sep between. */
struct schema_list {
    struct gnode *key, *is, *end, *sep;
    struct gnode *is_json; /* in place of `is`, where the value is not a text as it is */
    struct gnode *quote;   /* around texts */
    struct str until; /* texts are written as they are, without that in them; p NULL: as JSON */
    bool trim;        /* they neither begin nor end with a newline */
    bool python;      /* True, False, None */
};
/* *out NULL: what the schema asks for cannot be written so. */
int schema_add_list(struct grules *g, const json_t *schema, const struct schema_list *form,
                    struct gnode **out, struct err *e);
int schema_any_object(struct grules *g); /* the rule for any JSON object */
#endif
