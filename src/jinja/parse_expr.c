/* parse_expr.c - expressions: one function per level of precedence, as in jinja2's parser.py.
 *
 * From weakest to strongest: inline if; or; and; not; comparisons and in; + -; ~; * / // %; **;
 * unary + -; then attribute, item, call, filter and test. Where this differs from Python it is
 * jinja2's: "~" binds stronger than "+", "**" is left-associative and weaker than unary minus.
 *
 *     expression = or [ "if" or [ "else" expression ] ]
 *     or         = and { "or" and }             and     = not { "and" not }
 *     not        = "not" not | compare
 *     compare    = math1 { ( "==" | "!=" | "<" | "<=" | ">" | ">=" | [ "not" ] "in" ) math1 }
 *     math1      = concat { ( "+" | "-" ) concat }
 *     concat     = math2 { "~" math2 }
 *     math2      = pow { ( "*" | "/" | "//" | "%" ) pow }
 *     pow        = unary { "**" unary }
 *     unary      = ( "+" | "-" ) unary | primary { postfix } { filter | test | call }
 *     primary    = name | number | string { string } | "(" tuple ")" | list | dict
 *     postfix    = "." ( name | integer ) | "[" index "]" | call
 *     filter     = "|" name [ call ]            test    = "is" [ "not" ] name [ call | primary ] */
#include "jinja/builtins.h"
#include "jinja/parse.h"

#include <stdio.h>

static struct node *parse_unary(struct parser *p, bool with_filter);

/* ---- arguments ---- */

/* name = value, among arguments. */
static bool starts_keyword(const struct parser *p)
{
    return parse_cur(p)->type == TOK_NAME && parse_is_op(parse_peek(p), "=");
}

/* One argument. *stars and *named: what kinds came before; Python fixes their order. */
static struct node *parse_argument(struct parser *p, bool *stars, bool *named)
{
    uint32_t at = parse_cur(p)->at;
    struct node *n;

    if (parse_skip_op(p, "*")) {
        if (*stars) parse_fail(p, at, "only one * is allowed among the arguments");
        *stars = true;
        return parse_node(p, NODE_STAR, at, parse_expression(p, true), NULL);
    }
    if (parse_skip_op(p, "**"))
        return parse_node(p, NODE_STARSTAR, at, parse_expression(p, true), NULL);
    if (!starts_keyword(p)) {
        if (*stars || *named) parse_fail(p, at, "a positional argument follows named ones");
        return parse_expression(p, true);
    }
    *named = true;
    n = parse_node(p, NODE_KEYWORD, at, NULL, NULL);
    n->name = parse_expect_name(p);
    parse_expect_op(p, "=");
    n->a = parse_expression(p, true);
    n->depth = n->a ? (uint16_t)(n->a->depth + 1) : 0;
    return n;
}

/* Arguments "(...)" into owner->list. */
static void parse_arguments(struct parser *p, struct node *owner)
{
    struct node **tail = &owner->list;
    bool stars = false, named = false, all = false, more = false;

    parse_expect_op(p, "(");
    while (p->rc == OK && !parse_is_op(parse_cur(p), ")")) {
        struct node *n;
        if (more) {
            parse_expect_op(p, ",");
            if (parse_is_op(parse_cur(p), ")")) break;
        }
        n = parse_argument(p, &stars, &named);
        if (all) parse_fail(p, n->at, "an argument follows **");
        if (n->type == NODE_STARSTAR) all = true;
        tail = parse_append(owner, tail, n);
        more = true;
    }
    parse_expect_op(p, ")");
}

/* ---- postfix operators ---- */

/* What stands between "[" and "]": an index or a slice. */
static struct node *parse_index(struct parser *p, struct node *of, uint32_t at)
{
    struct node *from = NULL, *n;

    if (!parse_is_op(parse_cur(p), ":")) {
        from = parse_expression(p, true);
        if (!parse_is_op(parse_cur(p), ":")) return parse_node(p, NODE_GETITEM, at, of, from);
    }
    parse_expect_op(p, ":");
    n = parse_node(p, NODE_SLICE, at, of, from);
    if (!parse_is_op(parse_cur(p), ":") && !parse_is_op(parse_cur(p), "]") &&
        !parse_is_op(parse_cur(p), ","))
        n->c = parse_expression(p, true);
    if (parse_skip_op(p, ":") && !parse_is_op(parse_cur(p), "]") && !parse_is_op(parse_cur(p), ","))
        n->d = parse_expression(p, true);
    return n;
}

/* a.name, a.0, a[index], a[from:to:step], a[i, j] */
static struct node *parse_subscript(struct parser *p, struct node *of)
{
    const struct token *t;
    struct node *n, *tuple, **tail;
    uint32_t at = parse_cur(p)->at;

    if (parse_skip_op(p, ".")) {
        t = parse_cur(p);
        parse_next(p);
        if (t->type == TOK_NAME) {
            n = parse_node(p, NODE_GETATTR, at, of, NULL);
            n->name = t->text;
            return n;
        }
        /* a.0 is a[0]. */
        if (t->type != TOK_INT) parse_fail(p, t->at, "expected a name or an integer after '.'");
        n = parse_node(p, NODE_CONST, t->at, NULL, NULL);
        n->value = t->value;
        return parse_node(p, NODE_GETITEM, at, of, n);
    }
    parse_expect_op(p, "[");
    n = parse_index(p, of, at);
    if (parse_is_op(parse_cur(p), ",")) { /* x[a, b]: the index is a tuple */
        if (n->type == NODE_SLICE)
            return parse_fail(p, at, "a slice cannot be one of several indexes"), n;
        tuple = parse_node(p, NODE_TUPLE, at, NULL, NULL);
        tail = parse_append(tuple, &tuple->list, n->b);
        while (p->rc == OK && parse_skip_op(p, ","))
            tail = parse_append(tuple, tail, parse_expression(p, true));
        n->b = tuple;
    }
    parse_expect_op(p, "]");
    return n;
}

/* Attributes, items and calls, which bind strongest. */
static struct node *parse_postfix(struct parser *p, struct node *n)
{
    while (p->rc == OK) {
        const struct token *t = parse_cur(p);
        if (parse_is_op(t, ".") || parse_is_op(t, "[")) {
            n = parse_subscript(p, n);
        } else if (parse_is_op(t, "(")) {
            n = parse_node(p, NODE_CALL, t->at, n, NULL);
            parse_arguments(p, n);
        } else {
            break;
        }
    }
    return n;
}

/* A name of a filter or test, which may have dots in it. */
static struct str parse_dotted_name(struct parser *p)
{
    struct str name = parse_expect_name(p);

    while (p->rc == OK && parse_skip_op(p, ".")) {
        struct str more = parse_expect_name(p);
        name = str_c(arena_printf(p->arena, "%.*s.%.*s", STR_ARG(name), STR_ARG(more)));
        if (!name.p) parse_fail_nomem(p);
    }
    return name;
}

/* Each filter is the operand of the next. The definition is looked up here; a missing one is
 * reported by the scope pass. */
struct node *parse_filters(struct parser *p, struct node *over, bool begun)
{
    while (p->rc == OK && (begun || parse_is_op(parse_cur(p), "|"))) {
        if (!begun) parse_next(p);
        over = parse_node(p, NODE_FILTER, parse_cur(p)->at, over, NULL);
        over->name = parse_dotted_name(p);
        over->def = filter_find(over->name);
        if (parse_is_op(parse_cur(p), "(")) parse_arguments(p, over);
        begun = false;
    }
    return over;
}

static struct node *parse_primary(struct parser *p, bool with_namespace);

/* A test may have one argument without brackets: "x is divisibleby 3". */
static bool begins_test_argument(const struct parser *p)
{
    const struct token *t = parse_cur(p);

    if (t->type == TOK_NAME)
        return !parse_is_name(t, "else") && !parse_is_name(t, "or") && !parse_is_name(t, "and");
    return t->type == TOK_STRING || t->type == TOK_INT || t->type == TOK_FLOAT ||
           parse_is_op(t, "[") || parse_is_op(t, "{");
}

/* value is [not] test[(args) | argument] */
static struct node *parse_test(struct parser *p, struct node *over)
{
    uint32_t at = parse_cur(p)->at;
    bool negated;
    struct node *n;

    parse_next(p); /* is */
    negated = parse_skip_name(p, "not");
    n = parse_node(p, NODE_TEST, at, over, NULL);
    n->name = parse_dotted_name(p);
    n->def = test_find(n->name);
    if (parse_is_op(parse_cur(p), "(")) {
        parse_arguments(p, n);
    } else if (begins_test_argument(p)) {
        if (parse_is_name(parse_cur(p), "is"))
            parse_fail(p, parse_cur(p)->at, "a test cannot be chained with another one");
        parse_append(n, &n->list, parse_postfix(p, parse_primary(p, false)));
    }
    return negated ? parse_node(p, NODE_NOT, at, n, NULL) : n;
}

/* Filters, tests and calls may follow each other in any order. */
static struct node *parse_filter_expr(struct parser *p, struct node *n)
{
    while (p->rc == OK) {
        const struct token *t = parse_cur(p);
        if (parse_is_op(t, "|")) {
            n = parse_filters(p, n, false);
        } else if (parse_is_name(t, "is")) {
            n = parse_test(p, n);
        } else if (parse_is_op(t, "(")) {
            n = parse_node(p, NODE_CALL, t->at, n, NULL);
            parse_arguments(p, n);
        } else {
            break;
        }
    }
    return n;
}

/* ---- values ---- */

/* [a, b, ] */
static struct node *parse_list(struct parser *p)
{
    struct node *n = parse_node(p, NODE_LIST, parse_cur(p)->at, NULL, NULL), **tail = &n->list;

    parse_expect_op(p, "[");
    while (p->rc == OK && !parse_is_op(parse_cur(p), "]")) {
        if (n->list) parse_expect_op(p, ",");
        if (parse_is_op(parse_cur(p), "]")) break;
        tail = parse_append(n, tail, parse_expression(p, true));
    }
    parse_expect_op(p, "]");
    return n;
}

/* {a: b, } */
static struct node *parse_dict(struct parser *p)
{
    struct node *n = parse_node(p, NODE_DICT, parse_cur(p)->at, NULL, NULL), **tail = &n->list;

    parse_expect_op(p, "{");
    while (p->rc == OK && !parse_is_op(parse_cur(p), "}")) {
        struct node *key;
        uint32_t at;
        if (n->list) parse_expect_op(p, ",");
        if (parse_is_op(parse_cur(p), "}")) break;
        at = parse_cur(p)->at;
        key = parse_expression(p, true);
        parse_expect_op(p, ":");
        tail = parse_append(n, tail, parse_node(p, NODE_PAIR, at, key, parse_expression(p, true)));
    }
    parse_expect_op(p, "}");
    return n;
}

/* A name, or one of the constants true, false, none. */
static struct node *parse_word(struct parser *p, bool with_namespace)
{
    const struct token *t = parse_cur(p);
    struct node *n = parse_node(p, NODE_CONST, t->at, NULL, NULL);

    parse_next(p);
    if (str_is(t->text, "true") || str_is(t->text, "True")) {
        n->value = jv_bool(true);
    } else if (str_is(t->text, "false") || str_is(t->text, "False")) {
        n->value = jv_bool(false);
    } else if (str_is(t->text, "none") || str_is(t->text, "None")) {
        n->value = jv_none();
    } else {
        n->type = NODE_NAME;
        n->name = t->text;
        if (with_namespace && parse_skip_op(p, ".")) {
            n->type = NODE_NSREF;
            n->attr = parse_expect_name(p);
        }
    }
    return n;
}

/* Adjacent string literals are one string, as in Python. */
static struct node *parse_string(struct parser *p)
{
    struct node *n = parse_node(p, NODE_CONST, parse_cur(p)->at, NULL, NULL);

    n->value = parse_cur(p)->value;
    parse_next(p);
    while (p->rc == OK && parse_cur(p)->type == TOK_STRING) {
        struct str a = n->value.s, b = parse_cur(p)->value.s;
        char *both = arena_alloc(p->arena, a.n + b.n + 1);
        if (!both) {
            parse_fail_nomem(p);
            break;
        }
        memcpy(both, a.p, a.n);
        memcpy(both + a.n, b.p, b.n);
        n->value.s = str_of(both, a.n + b.n);
        parse_next(p);
    }
    return n;
}

/* A literal, a name, or an expression in brackets. */
static struct node *parse_primary(struct parser *p, bool with_namespace)
{
    const struct token *t = parse_cur(p);
    struct node *n = NULL;

    if (t->type == TOK_NAME) return parse_word(p, with_namespace);
    if (t->type == TOK_STRING) return parse_string(p);
    if (t->type == TOK_INT || t->type == TOK_FLOAT) {
        n = parse_node(p, NODE_CONST, t->at, NULL, NULL);
        n->value = t->value;
        parse_next(p);
        return n;
    }
    if (parse_skip_op(p, "(")) {
        n = parse_tuple(p, true, NULL, true);
        parse_expect_op(p, ")");
        return n;
    }
    if (parse_is_op(t, "[")) return parse_list(p);
    if (parse_is_op(t, "{")) return parse_dict(p);
    parse_fail(p, t->at, "expected an expression, got %s%.*s%s",
               t->type == TOK_EOF ? "the end" : "'", STR_ARG(str_take(t->text, 40)),
               t->type == TOK_EOF ? "" : "'");
    return parse_node(p, NODE_CONST, t->at, NULL, NULL);
}

/* ---- operators ---- */

/* +a, -a. with_filter: filters and tests may follow, which bind weaker than the sign. */
static struct node *parse_unary(struct parser *p, bool with_filter)
{
    const struct token *t = parse_cur(p);
    struct node *n;

    if (!parse_enter(p)) return parse_node(p, NODE_CONST, t->at, NULL, NULL);
    if (parse_is_op(t, "-") || parse_is_op(t, "+")) {
        parse_next(p);
        n = parse_node(p, NODE_UNARY, t->at, parse_unary(p, false), NULL);
        n->op[0] = t->text.p[0];
    } else {
        n = parse_primary(p, false);
    }
    n = parse_postfix(p, n);
    if (with_filter) n = parse_filter_expr(p, n);
    p->depth--;
    return n;
}

/* A left-associative chain a op b op c; `part` parses an operand, ops ends with NULL. */
static struct node *parse_left(struct parser *p, const char *const *ops,
                               struct node *(*part)(struct parser *))
{
    struct node *n = part(p);

    /* Starts over with the first operator after each operand. */
    for (size_t i = 0; ops[i] && p->rc == OK;) {
        const struct token *t = parse_cur(p);
        if (!parse_is_op(t, ops[i])) {
            i++;
            continue;
        }
        parse_next(p);
        n = parse_node(p, NODE_BINARY, t->at, n, part(p));
        snprintf(n->op, sizeof n->op, "%s", ops[i]);
        i = 0;
    }
    return n;
}

static struct node *parse_power_part(struct parser *p) { return parse_unary(p, true); }

static struct node *parse_pow(struct parser *p)
{
    static const char *const ops[] = { "**", NULL };
    return parse_left(p, ops, parse_power_part);
}

static struct node *parse_math2(struct parser *p)
{
    static const char *const ops[] = { "*", "/", "//", "%", NULL };
    return parse_left(p, ops, parse_pow);
}

/* a ~ b ~ c is one node. */
static struct node *parse_concat(struct parser *p)
{
    struct node *first = parse_math2(p), *n, **tail;

    if (!parse_is_op(parse_cur(p), "~")) return first;
    n = parse_node(p, NODE_CONCAT, first->at, NULL, NULL);
    tail = parse_append(n, &n->list, first);
    while (p->rc == OK && parse_skip_op(p, "~")) tail = parse_append(n, tail, parse_math2(p));
    return n;
}

static struct node *parse_math1(struct parser *p)
{
    static const char *const ops[] = { "+", "-", NULL };
    return parse_left(p, ops, parse_concat);
}

/* Consumes a comparison operator and writes it to op ("not in" as "!in"); false: there is none. */
static bool skip_compare_op(struct parser *p, char op[4])
{
    static const char *const ops[] = { "==", "!=", "<", "<=", ">", ">=" };

    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        if (!parse_skip_op(p, ops[i])) continue;
        snprintf(op, 4, "%s", ops[i]);
        return true;
    }
    if (parse_skip_name(p, "in")) return snprintf(op, 4, "in") > 0;
    /* "not in" is one operator. */
    if (parse_is_name(parse_cur(p), "not") && parse_is_name(parse_peek(p), "in")) {
        parse_next(p);
        parse_next(p);
        return snprintf(op, 4, "!in") > 0;
    }
    return false;
}

/* a < b == c is one node: comparisons chain as in Python. */
static struct node *parse_compare(struct parser *p)
{
    struct node *first = parse_math1(p), *n = NULL, **tail = NULL;
    uint32_t at = parse_cur(p)->at;
    char op[4];

    while (p->rc == OK && skip_compare_op(p, op)) {
        struct node *operand = parse_node(p, NODE_OPERAND, at, parse_math1(p), NULL);
        memcpy(operand->op, op, sizeof op);
        if (!n) {
            n = parse_node(p, NODE_COMPARE, at, first, NULL);
            tail = &n->list;
        }
        tail = parse_append(n, tail, operand);
        at = parse_cur(p)->at;
    }
    return n ? n : first;
}

/* not a */
static struct node *parse_not(struct parser *p)
{
    uint32_t at = parse_cur(p)->at;
    struct node *n;

    if (!parse_skip_name(p, "not")) return parse_compare(p);
    if (!parse_enter(p)) return parse_node(p, NODE_CONST, at, NULL, NULL);
    n = parse_node(p, NODE_NOT, at, parse_not(p), NULL);
    p->depth--;
    return n;
}

static struct node *parse_and(struct parser *p)
{
    struct node *n = parse_not(p);

    for (uint32_t at = parse_cur(p)->at; p->rc == OK && parse_skip_name(p, "and");
         at = parse_cur(p)->at)
        n = parse_node(p, NODE_AND, at, n, parse_not(p));
    return n;
}

static struct node *parse_or(struct parser *p)
{
    struct node *n = parse_and(p);

    for (uint32_t at = parse_cur(p)->at; p->rc == OK && parse_skip_name(p, "or");
         at = parse_cur(p)->at)
        n = parse_node(p, NODE_OR, at, n, parse_and(p));
    return n;
}

/* a if b else c, right to left. */
static struct node *parse_cond(struct parser *p)
{
    struct node *n = parse_or(p), *test;

    for (uint32_t at = parse_cur(p)->at; p->rc == OK && parse_skip_name(p, "if");
         at = parse_cur(p)->at) {
        test = parse_or(p);
        n = parse_node(p, NODE_COND, at, n, test);
        if (parse_skip_name(p, "else")) {
            n->c = parse_expression(p, true);
            if (n->c->depth >= n->depth) n->depth = (uint16_t)(n->c->depth + 1);
        }
    }
    return n;
}

/* Without with_cond an "if" ends the expression: it belongs to a for tag. */
struct node *parse_expression(struct parser *p, bool with_cond)
{
    struct node *n;

    if (!parse_enter(p)) return parse_node(p, NODE_CONST, parse_cur(p)->at, NULL, NULL);
    n = with_cond ? parse_cond(p) : parse_or(p);
    p->depth--;
    return n;
}

/* ---- tuples and targets ---- */

/* What may follow a tuple without brackets. */
static bool tuple_ends(const struct parser *p, const char *end)
{
    const struct token *t = parse_cur(p);

    return t->type == TOK_VAR_END || t->type == TOK_BLOCK_END || parse_is_op(t, ")") ||
           (end && parse_is_name(t, end));
}

/* One expression without a comma is not a tuple; "()" is an empty one. */
struct node *parse_tuple(struct parser *p, bool with_cond, const char *end, bool brackets)
{
    struct node *tuple = parse_node(p, NODE_TUPLE, parse_cur(p)->at, NULL, NULL),
                **tail = &tuple->list;
    bool is_tuple = false;

    while (p->rc == OK && !tuple_ends(p, end)) {
        tail = parse_append(tuple, tail, parse_expression(p, with_cond));
        if (!parse_skip_op(p, ",")) break;
        is_tuple = true;
    }
    /* A single expression is unwrapped. */
    if (is_tuple || (brackets && !tuple->list)) return tuple;
    if (!tuple->list)
        parse_fail(p, parse_cur(p)->at, "expected an expression, got '%.*s'",
                   STR_ARG(str_take(parse_cur(p)->text, 40)));
    return tuple->list ? tuple->list : tuple;
}

/* Marks the names in a target as assigned to; anything else in it is an error. */
static void mark_target(struct parser *p, struct node *n)
{
    if (p->rc != OK) return;
    if (n->type == NODE_TUPLE) {
        for (struct node *i = n->list; i; i = i->next) mark_target(p, i);
    } else if (n->type == NODE_NAME) {
        n->store = true;
    } else if (n->type != NODE_NSREF) {
        parse_fail(p, n->at, "cannot assign to this expression, expected a name");
    }
}

/* A name, several names, or ns.attr. */
struct node *parse_target(struct parser *p, const char *end, bool with_namespace)
{
    struct node *tuple = parse_node(p, NODE_TUPLE, parse_cur(p)->at, NULL, NULL),
                **tail = &tuple->list, *n;
    bool is_tuple = false;

    while (p->rc == OK && !tuple_ends(p, end)) {
        tail = parse_append(tuple, tail, parse_primary(p, with_namespace));
        if (!parse_skip_op(p, ",")) break;
        is_tuple = true;
    }
    n = is_tuple || !tuple->list ? tuple : tuple->list;
    if (!tuple->list) parse_fail(p, parse_cur(p)->at, "expected a name to assign to");
    mark_target(p, n);
    return n;
}
