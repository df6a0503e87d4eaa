/* ast.h - the syntax tree of a template. Inside jinja/ only.
 *
 * One struct serves all node types; the comment at each type says which fields it uses. Lists are
 * linked by `next`. The tree lives in the template's arena. The parser builds it, the scope pass
 * fills in refs and frames, and from then on it is immutable. */
#ifndef TERN_JINJA_AST_H
#define TERN_JINJA_AST_H

#include "jinja/value.h"

enum node_type {
    /* expressions */
    NODE_CONST,    /* value */
    NODE_NAME,     /* name, ref */
    NODE_NSREF,    /* name . attr as a target of set; ref of the name */
    NODE_TUPLE,    /* list */
    NODE_LIST,     /* list */
    NODE_DICT,     /* list of NODE_PAIR */
    NODE_PAIR,     /* a: b */
    NODE_GETATTR,  /* a . name */
    NODE_GETITEM,  /* a [ b ] */
    NODE_SLICE,    /* a [ b : c : d ]; each bound may be NULL */
    NODE_CALL,     /* a ( list ) */
    NODE_FILTER,   /* a | name ( list ); a NULL: the input of a filter block; def */
    NODE_TEST,     /* a is name ( list ); def */
    NODE_KEYWORD,  /* name = a, among arguments */
    NODE_STAR,     /* *a, among arguments */
    NODE_STARSTAR, /* **a, among arguments */
    NODE_UNARY,    /* op a */
    NODE_BINARY,   /* a op b */
    NODE_AND,      /* a, b */
    NODE_OR,       /* a, b */
    NODE_NOT,      /* a */
    NODE_CONCAT,   /* list, joined by ~ */
    NODE_COMPARE,  /* a, list of NODE_OPERAND: a < b < c */
    NODE_OPERAND,  /* op a */
    NODE_COND,     /* a if b else c (c NULL: undefined) */
    /* statements */
    NODE_TEMPLATE,     /* list; frame */
    NODE_DATA,         /* value: text */
    NODE_OUTPUT,       /* {{ a }} */
    NODE_FOR,          /* for a in b if c: list, else other; frame, test_frame, else_frame; d: a
                        * copy of the target a, with the refs of the test's scope */
    NODE_IF,           /* if a: list; elif: list2 of NODE_IF; else: other */
    NODE_SET,          /* a = b */
    NODE_SET_BLOCK,    /* a = output of list, through the filters b; frame */
    NODE_WITH,         /* list2 of NODE_SET; list; frame */
    NODE_MACRO,        /* name ( list2 of NODE_PARAM ): list; frame, ref */
    NODE_PARAM,        /* name = a (NULL: no default); ref */
    NODE_CALL_BLOCK,   /* call a, with the rest as of a macro; a NULL: {% generation %} */
    NODE_FILTER_BLOCK, /* output of list through the filters b; frame */
    NODE_BLOCK,        /* name: list; frame */
    NODE_BREAK,
    NODE_CONTINUE
};

/* A resolved variable: how many functions outwards, and which slot of that one. */
struct ref {
    int up, slot;
};

/* How a variable of a scope gets its value when the scope is entered. */
enum load_kind {
    LOAD_PARAM,    /* the statement assigns it: loop target, macro parameter */
    LOAD_RESOLVE,  /* from the caller's variables or the globals */
    LOAD_ALIAS,    /* a copy of the variable of an enclosing scope */
    LOAD_UNDEFINED /* has none until it is set */
};

struct load {
    enum load_kind kind;
    int slot;
    struct ref alias; /* LOAD_ALIAS: the variable to copy */
    struct str name;
};

struct frame { /* a scope: what entering it loads */
    struct load *loads;
    size_t n_loads;
};

/* A function of the template: something that runs with an activation of its own. These are the
 * template itself, macros, recursive loops, tests of loops ("for x in y if ..."), and blocks. */
struct frame_fn {
    int n_slots; /* variables of all scopes in it */
};

struct node {
    enum node_type type;
    uint32_t at; /* byte offset in the source */
    char op[4];
    struct str name, attr;
    struct jval value;
    const void *def; /* const struct jfilter: the filter or test; NULL: the name is unknown */
    struct node *a, *b, *c, *d, *list, *list2, *other, *next;
    struct frame *frame, *test_frame, *else_frame;
    struct frame_fn *fn, *test_fn;
    struct ref ref;                     /* NODE_FOR: of the variable "loop" */
    struct ref caller, kwargs, varargs; /* slot -1: the macro does not use the variable */
    uint16_t depth;                     /* height of the tree below: limits recursion */
    bool recursive;                     /* NODE_FOR: {% for ... recursive %} */
    bool extended;                      /* NODE_FOR: the body uses the variable "loop" */
    bool store;                         /* NODE_NAME: assigned to, not read */
    bool scoped;                        /* NODE_BLOCK: sees the variables around it */
    bool exports;                       /* at the top level: blocks see what it sets */
};
#endif
