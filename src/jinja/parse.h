/* parse.h - tokens to a syntax tree: recursive descent, as in jinja2's parser.py.
 *
 * parse.c has the statements, parse_expr.c the expressions. The parser keeps its first failure in
 * rc and moves to the last token, so that every loop ends without a check behind each call. A node
 * that cannot be allocated is such a failure: parse_node then returns the parser's spare node, and
 * the tree is never used. Inside jinja/ only. */
#ifndef TERN_JINJA_PARSE_H
#define TERN_JINJA_PARSE_H

#include "jinja/ast.h"
#include "jinja/lex.h"

struct parser {
    struct arena *arena; /* of the template: the tree lives there */
    struct str source;
    const char *name; /* of the template, in error messages */
    struct tokens tokens;
    size_t at;           /* index of the current token */
    int depth;           /* of nested statements and expressions */
    int n_loops;         /* loops around the current statement that break and continue may leave */
    struct node *blocks; /* every {% block %} so far, the last one first, linked by `other` */
    struct node spare;   /* stands for a node that found no memory */
    struct budget *budget; /* of reading the template */
    struct err *e;
    int rc;
};

/* A whole template: a NODE_TEMPLATE. */
int parse_template(struct parser *p, struct node **out);

/* ---- shared by parse.c and parse_expr.c ---- */

const struct token *parse_cur(const struct parser *p);
const struct token *parse_peek(const struct parser *p); /* the token after the current one */
void parse_next(struct parser *p);
bool parse_is_op(const struct token *t, const char *op);
bool parse_is_name(const struct token *t, const char *name);
bool parse_skip_op(struct parser *p, const char *op); /* consumes it; false: it is not there */
bool parse_skip_name(struct parser *p, const char *name);
void parse_expect_op(struct parser *p, const char *op);
struct str parse_expect_name(struct parser *p);
void parse_fail(struct parser *p, uint32_t at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void parse_fail_nomem(struct parser *p);
/* Limits the recursion; false: too deep. After true the caller decrements p->depth. */
bool parse_enter(struct parser *p);

/* A node with these operands; never NULL. */
struct node *parse_node(struct parser *p, enum node_type type, uint32_t at, struct node *a,
                        struct node *b);
/* Appends item to the list that `tail` ends and returns the new tail. owner's depth is raised above
 * that of the item. */
struct node **parse_append(struct node *owner, struct node **tail, struct node *item);

struct node *parse_expression(struct parser *p, bool with_cond); /* with_cond: "a if b" allowed */
/* A tuple without brackets, or one expression. The name `end` ends it; NULL: none does. */
struct node *parse_tuple(struct parser *p, bool with_cond, const char *end, bool brackets);
/* What a for or set assigns to. with_namespace: "ns.attr" is allowed. */
struct node *parse_target(struct parser *p, const char *end, bool with_namespace);
/* A chain "| f | g(...)" over a node; begun: the first "|" is absent ({% filter f %}). */
struct node *parse_filters(struct parser *p, struct node *over, bool begun);
#endif
