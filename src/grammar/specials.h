/* specials.h - the special tokens of a vocabulary by name, and texts that contain such names.
 *
 * Model families write marks such as <tool_call>, which are one special token in one vocabulary and
 * plain text in another. A text is turned into a syntax tree in which every name of a special token
 * is that token and all else is literal. Tokens that end a text are not looked for: they cannot be
 * inside it, so their names are literal. */
#ifndef TERN_GRAMMAR_SPECIALS_H
#define TERN_GRAMMAR_SPECIALS_H

#include "grammar/grammar.h"
#include "grammar/rules.h"

struct special_token {
    struct str name; /* borrowed from the tokenizer */
    int32_t id;
};

struct specials {
    struct special_token *list;
    int n, cap;
};

int specials_init(struct specials *s, const struct grammar_env *env, struct err *e);
void specials_release(struct specials *s); /* a zeroed one is allowed */

/* The special token with the longest name that text begins with; NULL: none. */
const struct special_token *specials_at(const struct specials *s, struct str text);

/* A node for a placeholder with which the text begins, and its length; NULL: there is none. */
typedef struct rule_node *specials_placeholder_fn(void *arg, struct str text, size_t *n);
/* The text as a SEQ. placeholder may be NULL. */
struct rule_node *specials_text(const struct specials *s, struct rules *g, struct str text,
                                specials_placeholder_fn *placeholder, void *arg);
#endif
