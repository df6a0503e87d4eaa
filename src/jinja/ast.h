/* ast.h - what a template is once it is read. Inside jinja/ only. Lives in the template's arena.
 *
 * One struct for all nodes; which fields a type uses stands beside it. Lists are linked by next. */
#ifndef TERN_JINJA_AST_H
#define TERN_JINJA_AST_H

#include "jinja/value.h"

enum node_type {
    /* expressions */
    NODE_CONST,    /* value */
    NODE_NAME,     /* name, ref */
    NODE_NSREF,    /* name . attr, as a target; ref */
    NODE_TUPLE,    /* list */
    NODE_LIST,     /* list */
    NODE_DICT,     /* list of NODE_PAIR */
    NODE_PAIR,     /* a: b */
    NODE_GETATTR,  /* a . name */
    NODE_GETITEM,  /* a [ b ] */
    NODE_SLICE,    /* a [ b : c : d ] */
    NODE_CALL,     /* a ( list ), also filters and tests: */
    NODE_FILTER,   /* a | name ( list ); a NULL: of a filter block; def */
    NODE_TEST,     /* a is name ( list ); def */
    NODE_KEYWORD,  /* name = a, among arguments */
    NODE_STAR,     /* *a */
    NODE_STARSTAR, /* **a */
    NODE_UNARY,    /* op a */
    NODE_BINARY,   /* a op b */
    NODE_AND,      /* a, b */
    NODE_OR,
    NODE_NOT,     /* a */
    NODE_CONCAT,  /* list */
    NODE_COMPARE, /* a, list of NODE_OPERAND */
    NODE_OPERAND, /* op a */
    NODE_COND,    /* a if b else c (c NULL: undefined) */
    /* statements */
    NODE_TEMPLATE,     /* list; frame */
    NODE_DATA,         /* value: text */
    NODE_OUTPUT,       /* a */
    NODE_FOR,          /* for a in b if c: list, else other; frame, test_frame, else_frame */
    NODE_IF,           /* if a: list; elif (list2, of NODE_IF); else other */
    NODE_SET,          /* a = b */
    NODE_SET_BLOCK,    /* a = list, through the filter b; frame */
    NODE_WITH,         /* list2 of NODE_SET; list; frame */
    NODE_MACRO,        /* name ( list2 of NODE_PARAM ): list; frame, ref */
    NODE_PARAM,        /* name = a (NULL: none); ref */
    NODE_CALL_BLOCK,   /* a; as a macro; a NULL: {% generation %} */
    NODE_FILTER_BLOCK, /* b, a filter, over list; frame */
    NODE_BLOCK,        /* name: list; frame */
    NODE_BREAK,
    NODE_CONTINUE
};

/* A variable: which function's, counted outwards, and which of its slots. */
struct ref {
    int up, slot;
};

enum load_kind { LOAD_PARAM, LOAD_RESOLVE, LOAD_ALIAS, LOAD_UNDEFINED };

/* What is done to a variable on the way into a scope. */
struct load {
    enum load_kind kind;
    int slot;
    struct ref alias;
    struct str name;
};

struct frame {
    struct load *loads;
    size_t n_loads;
};

/* A function of the template: the template itself, macros, recursive loops, loop filters, blocks.
 */
struct frame_fn {
    int n_slots;
};

struct node {
    enum node_type type;
    uint32_t at; /* in the source */
    char op[4];
    struct str name, attr;
    struct jval value;
    const void *def; /* the filter or test; NULL: there is none of that name */
    struct node *a, *b, *c, *d, *list, *list2, *other, *next;
    struct frame *frame, *test_frame, *else_frame;
    struct frame_fn *fn, *test_fn;
    struct ref ref;                     /* of a for loop: of "loop" */
    struct ref caller, kwargs, varargs; /* slot -1: the macro does not use it */
    uint16_t depth;                     /* of what is inside it */
    bool recursive, extended, store, scoped;
    bool exports; /* at the top: blocks see what it sets */
};
#endif
