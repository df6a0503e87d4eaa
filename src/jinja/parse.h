/* parse.h - tokens to a tree. Inside jinja/ only.
 *
 * The parser keeps its first failure and goes to the end of the tokens, so that every loop ends. */
#ifndef TERN_JINJA_PARSE_H
#define TERN_JINJA_PARSE_H

#include "jinja/ast.h"
#include "jinja/lex.h"

struct parser {
    struct arena *arena;
    struct str source;
    const char *name;
    struct tokens tokens;
    size_t at;
    int depth, n_loops;
    struct node *blocks; /* the last of them, linked by other */
    struct err *e;
    int rc;
};

/* The whole of a template: a NODE_TEMPLATE. */
int parse_template(struct parser *p, struct node **out);

/* ---- for the two halves of the parser ---- */

const struct token *parse_cur(const struct parser *p);
const struct token *parse_look(const struct parser *p);
void parse_next(struct parser *p);
bool parse_is_op(const struct token *t, const char *op);
bool parse_is_name(const struct token *t, const char *name);
bool parse_skip_op(struct parser *p, const char *op);
bool parse_skip_name(struct parser *p, const char *name);
void parse_expect_op(struct parser *p, const char *op);
struct str parse_expect_name(struct parser *p);
void parse_fail(struct parser *p, uint32_t at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Keeps the recursion within bounds; false: too deep. Every true one is followed by p->depth--. */
bool parse_enter(struct parser *p);

struct node *parse_node(struct parser *p, enum node_type type, uint32_t at, struct node *a,
                        struct node *b);
/* Puts item at the end of a list that `tail` points into; returns the new tail. */
struct node **parse_append(struct node *owner, struct node **tail, struct node *item);

struct node *parse_expression(struct parser *p, bool with_cond);
/* A tuple without brackets, or one expression. `end` is a name that ends it, or NULL. */
struct node *parse_tuple(struct parser *p, bool with_cond, const char *end, bool brackets);
struct node *parse_target(struct parser *p, const char *end, bool with_namespace);
struct node *parse_filters(struct parser *p, struct node *over, bool begun);
#endif
