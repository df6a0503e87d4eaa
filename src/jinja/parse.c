/* parse.c - statements: tags, and the text between them.
 *
 * Covers the tags of jinja2 3.1 that work within one template, plus transformers' {% generation %},
 * which renders its body. Tags that load other templates, autoescape and those of extensions that
 * transformers does not enable are refused.
 *
 * A body is text, {{ expression }} and tags, up to the tag that ends it:
 *
 *     {% for TARGET in ITERABLE [if TEST] [recursive] %} BODY [{% else %} BODY] {% endfor %}
 *     {% if TEST %} BODY {% elif TEST %} BODY {% else %} BODY {% endif %}
 *     {% set TARGET = VALUE %}                  {% set TARGET [| FILTER] %} BODY {% endset %}
 *     {% macro NAME(PARAMS) %} BODY {% endmacro %}
 *     {% call[(PARAMS)] NAME(ARGS) %} BODY {% endcall %}
 *     {% with TARGET = VALUE, ... %} BODY {% endwith %}
 *     {% filter FILTER %} BODY {% endfilter %}  {% block NAME [scoped] %} BODY {% endblock %}
 *     {% generation %} BODY {% endgeneration %} {% print VALUE, ... %}
 *     {% break %}  {% continue %} */
#include "jinja/parse.h"

#include "base/budget.h"

#include <stdarg.h>
#include <stdio.h>

/* Nesting of brackets, operators and tags while parsing, and height of the tree of an expression:
 * "a + b + c ..." parses without recursion but is evaluated with it. */
enum { MAX_NESTING = 150, MAX_TREE = 500 };

/* ---- tokens ---- */

const struct token *parse_cur(const struct parser *p) { return &p->tokens.v[p->at]; }

const struct token *parse_peek(const struct parser *p)
{
    return &p->tokens.v[p->at + 1 < p->tokens.n ? p->at + 1 : p->tokens.n - 1];
}

/* The last token, TOK_EOF, is never passed. */
void parse_next(struct parser *p)
{
    if (p->at + 1 < p->tokens.n) p->at++;
}

bool parse_is_op(const struct token *t, const char *op)
{
    return t->type == TOK_OP && str_is(t->text, op);
}
bool parse_is_name(const struct token *t, const char *name)
{
    return t->type == TOK_NAME && str_is(t->text, name);
}

bool parse_skip_op(struct parser *p, const char *op)
{
    if (!parse_is_op(parse_cur(p), op)) return false;
    parse_next(p);
    return true;
}

bool parse_skip_name(struct parser *p, const char *name)
{
    if (!parse_is_name(parse_cur(p), name)) return false;
    parse_next(p);
    return true;
}

void parse_fail(struct parser *p, uint32_t at, const char *fmt, ...)
{
    char text[400];
    va_list ap;

    if (p->rc != OK) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    p->rc = lex_error(p->source, p->name, at, p->e, "%s", text);
    p->at = p->tokens.n - 1;
}

void parse_fail_nomem(struct parser *p)
{
    if (p->rc != OK) return;
    p->rc = err_nomem(p->e, "the syntax tree of a template");
    p->at = p->tokens.n - 1;
}

/* The token for an error message; `out` may hold it. */
static const char *describe_token(const struct token *t, char out[64])
{
    if (t->type == TOK_EOF) return "the end of the template";
    if (t->type == TOK_DATA) return "text";
    snprintf(out, 64, "'%.*s'", STR_ARG(str_take(t->text, 40)));
    return out;
}

void parse_expect_op(struct parser *p, const char *op)
{
    char got[64];

    if (!parse_skip_op(p, op))
        parse_fail(p, parse_cur(p)->at, "expected '%s', got %s", op,
                   describe_token(parse_cur(p), got));
}

struct str parse_expect_name(struct parser *p)
{
    const struct token *t = parse_cur(p);
    char got[64];

    if (t->type == TOK_NAME) {
        parse_next(p);
        return t->text;
    }
    parse_fail(p, t->at, "expected a name, got %s", describe_token(t, got));
    return STR("");
}

/* "%}" */
static void expect_block_end(struct parser *p)
{
    char got[64];

    if (parse_cur(p)->type == TOK_BLOCK_END) parse_next(p);
    else
        parse_fail(p, parse_cur(p)->at, "expected the end of the tag '%%}', got %s",
                   describe_token(parse_cur(p), got));
}

/* Statements and expressions share one limit. */
bool parse_enter(struct parser *p)
{
    if (++p->depth <= MAX_NESTING) return true;
    parse_fail(p, parse_cur(p)->at, "tags or expressions are nested more than %d deep",
               MAX_NESTING);
    p->depth--;
    return false;
}

/* ---- nodes ---- */

/* Raises the depth of n above that of its child. */
static void raise_depth(struct parser *p, struct node *n, const struct node *child)
{
    if (!child || child->depth < n->depth) return;
    n->depth = (uint16_t)(child->depth + 1);
    if (n->depth > MAX_TREE)
        parse_fail(p, n->at, "the expression has more than %d nested operations", MAX_TREE);
}

struct node *parse_node(struct parser *p, enum node_type type, uint32_t at, struct node *a,
                        struct node *b)
{
    struct node *n = budget_step(p->budget, 1) ? arena_new(p->arena, struct node) : NULL;

    if (!n) {
        parse_fail_nomem(p);
        n = &p->spare;
        *n = (struct node){ 0 };
    }
    n->type = type;
    n->at = at;
    n->a = a;
    n->b = b;
    n->ref.slot = n->caller.slot = n->kwargs.slot = n->varargs.slot = -1;
    raise_depth(p, n, a);
    raise_depth(p, n, b);
    return n;
}

/* Lists may be long, so their length does not count towards the depth. */
struct node **parse_append(struct node *owner, struct node **tail, struct node *item)
{
    *tail = item;
    if (owner && item->depth >= owner->depth && owner->depth < UINT16_MAX - 1)
        owner->depth = (uint16_t)(item->depth + 1);
    return &item->next;
}

/* ---- bodies ---- */

static struct node *parse_statement(struct parser *p);

/* Whether the current token is one of the words in `ends`. */
static bool is_end_name(const struct parser *p, const char *ends)
{
    struct str words = str_c(ends), name = parse_cur(p)->text;

    if (parse_cur(p)->type != TOK_NAME) return false;
    while (words.n) {
        ptrdiff_t space = str_find(words, STR(" "));
        size_t n = space < 0 ? words.n : (size_t)space;
        if (str_eq(str_take(words, n), name)) return true;
        words = str_skip(words, n + 1);
    }
    return false;
}

/* Text and tags up to a tag that begins with one of the words in `ends` (NULL: to the end of the
 * source). That word is left as the current token. */
static struct node *parse_body(struct parser *p, const char *ends)
{
    struct node *first = NULL, **tail = &first, *n;

    while (p->rc == OK && parse_cur(p)->type != TOK_EOF) {
        const struct token *t = parse_cur(p);
        parse_next(p);
        if (t->type == TOK_DATA) {
            n = parse_node(p, NODE_DATA, t->at, NULL, NULL);
            n->value = jv_str(t->text);
        } else if (t->type == TOK_VAR_BEGIN) {
            n = parse_node(p, NODE_OUTPUT, t->at, parse_tuple(p, true, NULL, false), NULL);
            if (parse_cur(p)->type != TOK_VAR_END) {
                char got[64];
                parse_fail(p, parse_cur(p)->at, "expected '}}', got %s",
                           describe_token(parse_cur(p), got));
            }
            parse_next(p);
        } else {
            /* The tag that ends the body belongs to the caller. */
            if (ends && is_end_name(p, ends)) return first;
            n = parse_statement(p);
            expect_block_end(p);
        }
        if (p->rc != OK) break;              /* the spare node may be in a list already */
        while (*tail) tail = &(*tail)->next; /* print makes several nodes */
        *tail = n;
    }
    return first;
}

/* The end of an opening tag and its body, up to a tag in `ends`. skip_end: consumes the closing
 * name. */
static struct node *parse_tag_body(struct parser *p, const char *ends, bool skip_end)
{
    uint32_t at = parse_cur(p)->at;
    struct node *body;

    parse_skip_op(p, ":");
    expect_block_end(p);
    if (!parse_enter(p)) return NULL;
    body = parse_body(p, ends);
    p->depth--;
    /* The place of the opening tag is more helpful than the end of the source. */
    if (parse_cur(p)->type == TOK_EOF) {
        parse_fail(p, at, "the tag has no end, expected '{%% %s %%}'", ends);
        return NULL;
    }
    if (skip_end) parse_next(p);
    return body;
}

/* ---- statements ---- */

/* {% set a, b = expression %} or {% set a | filter %}...{% endset %} */
static struct node *parse_set(struct parser *p, uint32_t at)
{
    struct node *n = parse_node(p, NODE_SET, at, NULL, NULL);

    n->a = parse_target(p, NULL, true);
    if (parse_skip_op(p, "=")) {
        n->b = parse_tuple(p, true, NULL, false);
        return n;
    }
    n->type = NODE_SET_BLOCK;
    n->b = parse_filters(p, NULL, false);
    n->list = parse_tag_body(p, "endset", true);
    return n;
}

/* {% for target in iterable [if test] [recursive] %}...[{% else %}...]{% endfor %} */
static struct node *parse_for(struct parser *p, uint32_t at)
{
    struct node *n = parse_node(p, NODE_FOR, at, NULL, NULL);

    n->a = parse_target(p, "in", false);
    if (!parse_skip_name(p, "in")) parse_fail(p, parse_cur(p)->at, "expected 'in'");
    n->b = parse_tuple(p, false, "recursive", false);
    if (parse_skip_name(p, "if")) n->c = parse_expression(p, true);
    n->recursive = parse_skip_name(p, "recursive");
    /* For break and continue the else branch is outside of the loop. */
    p->n_loops++;
    n->list = parse_tag_body(p, "endfor else", false);
    p->n_loops--;
    if (parse_skip_name(p, "else")) n->other = parse_tag_body(p, "endfor", true);
    else parse_next(p);
    return n;
}

/* {% if %}...{% elif %}...{% else %}...{% endif %}. The elif branches are a list of the first
 * node. */
static struct node *parse_if(struct parser *p, uint32_t at)
{
    struct node *first = parse_node(p, NODE_IF, at, NULL, NULL), *n = first, **tail = &first->list2;

    for (;;) {
        n->a = parse_tuple(p, false, NULL, false);
        n->list = parse_tag_body(p, "elif else endif", false);
        at = parse_cur(p)->at;
        if (p->rc != OK || !parse_skip_name(p, "elif")) break;
        n = parse_node(p, NODE_IF, at, NULL, NULL);
        *tail = n;
        tail = &n->next;
    }
    if (parse_skip_name(p, "else")) first->other = parse_tag_body(p, "endif", true);
    else parse_next(p);
    return first;
}

/* {% with a = 1, b = 2 %}...{% endwith %} */
static struct node *parse_with(struct parser *p, uint32_t at)
{
    struct node *n = parse_node(p, NODE_WITH, at, NULL, NULL), **tail = &n->list2;

    while (p->rc == OK && parse_cur(p)->type != TOK_BLOCK_END) {
        struct node *set;
        if (n->list2) parse_expect_op(p, ",");
        set = parse_node(p, NODE_SET, parse_cur(p)->at, NULL, NULL);
        set->a = parse_target(p, NULL, false);
        parse_expect_op(p, "=");
        set->b = parse_expression(p, true);
        *tail = set;
        tail = &set->next;
    }
    n->list = parse_tag_body(p, "endwith", true);
    return n;
}

/* Parameters "(a, b=1)" into n->list2. */
static void parse_signature(struct parser *p, struct node *n)
{
    struct node **tail = &n->list2;
    bool defaults = false;

    parse_expect_op(p, "(");
    while (p->rc == OK && !parse_is_op(parse_cur(p), ")")) {
        struct node *param;
        if (n->list2) parse_expect_op(p, ",");
        param = parse_node(p, NODE_PARAM, parse_cur(p)->at, NULL, NULL);
        param->name = parse_expect_name(p);
        for (struct node *i = n->list2; i; i = i->next)
            if (str_eq(i->name, param->name))
                parse_fail(p, param->at, "two parameters have the name '%.*s'", STR_ARG(i->name));
        if (parse_skip_op(p, "=")) {
            param->a = parse_expression(p, true);
            defaults = true;
        } else if (defaults) {
            parse_fail(p, param->at, "a parameter without a default follows one with a default");
        }
        *tail = param;
        tail = &param->next;
    }
    parse_expect_op(p, ")");
}

/* break and continue inside a macro cannot leave a loop around it. */
static struct node *parse_function_body(struct parser *p, const char *end)
{
    int loops = p->n_loops;
    struct node *body;

    p->n_loops = 0;
    body = parse_tag_body(p, end, true);
    p->n_loops = loops;
    return body;
}

/* {% macro name(params) %}...{% endmacro %} */
static struct node *parse_macro(struct parser *p, uint32_t at)
{
    struct node *n = parse_node(p, NODE_MACRO, at, NULL, NULL);

    n->name = parse_expect_name(p);
    parse_signature(p, n);
    n->list = parse_function_body(p, "endmacro");
    return n;
}

/* {% call[(params)] f(args) %}...{% endcall %} */
static struct node *parse_call_block(struct parser *p, uint32_t at)
{
    struct node *n = parse_node(p, NODE_CALL_BLOCK, at, NULL, NULL);

    if (parse_is_op(parse_cur(p), "(")) parse_signature(p, n);
    n->a = parse_expression(p, true);
    if (n->a->type != NODE_CALL) parse_fail(p, n->a->at, "expected a call");
    n->list = parse_function_body(p, "endcall");
    return n;
}

/* {% generation %}...{% endgeneration %} of transformers. */
static struct node *parse_generation(struct parser *p, uint32_t at)
{
    struct node *n = parse_node(p, NODE_CALL_BLOCK, at, NULL, NULL);

    n->list = parse_function_body(p, "endgeneration");
    return n;
}

/* {% filter f | g %}...{% endfilter %} */
static struct node *parse_filter_block(struct parser *p, uint32_t at)
{
    struct node *n = parse_node(p, NODE_FILTER_BLOCK, at, NULL, NULL);

    n->b = parse_filters(p, NULL, true);
    n->list = parse_tag_body(p, "endfilter", true);
    return n;
}

/* {% block name [scoped] %}...{% endblock [name] %}. Names are unique in a template. */
static struct node *parse_block(struct parser *p, uint32_t at)
{
    struct node *n = parse_node(p, NODE_BLOCK, at, NULL, NULL);

    n->name = parse_expect_name(p);
    n->scoped = parse_skip_name(p, "scoped");
    if (parse_skip_name(p, "required"))
        parse_fail(p, at, "the block is required, but no template extends this one");
    for (const struct node *i = p->blocks; i; i = i->other)
        if (str_eq(i->name, n->name))
            parse_fail(p, at, "the block '%.*s' is defined twice", STR_ARG(n->name));
    n->other = p->blocks;
    p->blocks = n;
    n->list = parse_function_body(p, "endblock");
    if (parse_cur(p)->type == TOK_NAME && str_eq(parse_cur(p)->text, n->name)) parse_next(p);
    return n;
}

/* {% print a, b %}: a NODE_OUTPUT for each expression. */
static struct node *parse_print(struct parser *p, uint32_t at)
{
    struct node *first = NULL, **tail = &first;

    while (p->rc == OK && parse_cur(p)->type != TOK_BLOCK_END) {
        if (first) parse_expect_op(p, ",");
        *tail = parse_node(p, NODE_OUTPUT, at, parse_expression(p, true), NULL);
        tail = &(*tail)->next;
    }
    return first ? first : parse_node(p, NODE_DATA, at, NULL, NULL);
}

/* {% break %} and {% continue %} */
static struct node *parse_jump(struct parser *p, uint32_t at, enum node_type type)
{
    if (p->n_loops == 0)
        parse_fail(p, at, "'%s' outside a loop", type == NODE_BREAK ? "break" : "continue");
    return parse_node(p, type, at, NULL, NULL);
}

/* Tags that jinja2 knows get an error of their own, so that users see that it is not a typo. */
static struct node *refuse_tag(struct parser *p, const struct token *t)
{
    static const char *const known[] = { "include",    "import", "from",  "extends",
                                         "autoescape", "do",     "trans", "debug" };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (str_is(t->text, known[i])) {
            parse_fail(p, t->at, "the tag '%s' is not supported in chat templates", known[i]);
            p->rc = E_UNSUPPORTED;
            if (p->e) p->e->code = E_UNSUPPORTED;
        }
    parse_fail(p, t->at, "unknown tag '%.*s'", STR_ARG(str_take(t->text, 40)));
    return parse_node(p, NODE_DATA, t->at, NULL, NULL);
}

/* A tag, from its name on. The end of the tag is left to the caller. */
static struct node *parse_statement(struct parser *p)
{
    static const struct {
        const char *name;
        struct node *(*parse)(struct parser *p, uint32_t at);
    } tags[] = {
        { "for", parse_for },
        { "if", parse_if },
        { "set", parse_set },
        { "macro", parse_macro },
        { "with", parse_with },
        { "call", parse_call_block },
        { "filter", parse_filter_block },
        { "generation", parse_generation },
        { "print", parse_print },
        { "block", parse_block },
    };
    const struct token *t = parse_cur(p);
    char got[64];

    if (t->type != TOK_NAME) {
        parse_fail(p, t->at, "expected the name of a tag, got %s", describe_token(t, got));
        return parse_node(p, NODE_DATA, t->at, NULL, NULL);
    }
    parse_next(p);
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        if (str_is(t->text, tags[i].name)) return tags[i].parse(p, t->at);
    if (str_is(t->text, "break")) return parse_jump(p, t->at, NODE_BREAK);
    if (str_is(t->text, "continue")) return parse_jump(p, t->at, NODE_CONTINUE);
    return refuse_tag(p, t);
}

/* The tree is only valid if the result is OK. */
int parse_template(struct parser *p, struct node **out)
{
    *out = parse_node(p, NODE_TEMPLATE, 0, NULL, NULL);
    (*out)->list = parse_body(p, NULL);
    while (p->blocks) { /* `other` means something else from here on */
        struct node *n = p->blocks;
        p->blocks = n->other;
        n->other = NULL;
    }
    return p->rc;
}
