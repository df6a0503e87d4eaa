/* rules.h - a grammar as rules whose bodies are syntax trees: what GBNF, JSON schemas, regular
 * expressions and tool calls are turned into before an automaton is built.
 *
 * The rule set owns everything in it: nodes and names lie in its arena and end with it.
 *
 * The functions that add to a rule set never return NULL. A set that has run out of memory
 * (`failed`), has taken more than its budget allows, or has more than RULES_MAX_NODES nodes (`full`)
 * remembers it. After a failure every new node is the same spare one that matches nothing, every new
 * rule is -1, and additions do nothing: code that builds rules continues without checks, and
 * rules_check reports at the end. */
#ifndef TERN_GRAMMAR_RULES_H
#define TERN_GRAMMAR_RULES_H

#include "base/budget.h"
#include "base/map.h"
#include "grammar/charset.h"

#define RULES_MAX_NODES 200000
#define RULES_UNBOUNDED (-1) /* the maximum of a repetition without one */

struct grammar_env; /* grammar.h */
struct dfa;

enum rule_node_kind {
    NODE_EMPTY,   /* the empty text */
    NODE_NEVER,   /* no text at all */
    NODE_LITERAL, /* these bytes */
    NODE_CLASS,   /* one character of a set, as UTF-8 */
    NODE_SEQ,
    NODE_ALT,
    NODE_REPEAT, /* children[0], min to max times */
    NODE_REF,    /* another rule, by its number */
    NODE_TOKEN,  /* a special token of the vocabulary, by its id */
    NODE_LIST,   /* members in their order, some of them optional: struct rule_list */
    NODE_DFA     /* an automaton that was built before, without calls */
};

struct rule_node;

/* The children of the node are the members. After them any number of `more` may come. `sep` stands
 * between any two. In all there are min to max. */
struct rule_list {
    struct rule_node *sep, *more; /* more NULL: none */
    const bool *needed;           /* [n_children] the member must be there */
    int min, max;                 /* max RULES_UNBOUNDED: any number */
};

struct rule_node {
    enum rule_node_kind kind;
    struct str lit;
    struct charset set;
    struct rule_node **children;
    int n_children, cap_children;
    int min, max; /* REPEAT; min is the id of a TOKEN */
    int rule;     /* REF */
    const struct rule_list *list;
    const struct dfa *dfa;
    int size; /* of a repetition's body: kept by nfa.c; 0: not known */
};

struct rule {
    struct str name;        /* "" if it has none; shown in errors */
    struct rule_node *body; /* NULL: only referred to so far */
    int line, column;       /* in the source, of its definition or its first use; 0: none */
    bool no_inline; /* never expanded in its callers: token masks inside it serve all of them */
};

struct rules {
    struct arena arena;
    struct rule *rules;
    int n, cap;
    struct map names; /* of the rules that were added by name → number */
    int n_nodes;
    bool full;                     /* more than RULES_MAX_NODES nodes */
    bool failed;                   /* out of memory */
    int root;                      /* -1: not set */
    const struct grammar_env *env; /* of the compilation, borrowed; may be NULL */
    struct budget *budget;         /* that of env: every stage counts its steps there */
    struct rule_node spare_node;
    struct rule spare_rule;
};

void rules_init(struct rules *g, const struct grammar_env *env);
void rules_release(struct rules *g); /* a zeroed set is allowed */
/* OK; E_NOMEM after a failure; E_INVALID if there are too many nodes, or the error of the budget. */
int rules_check(const struct rules *g, struct err *e);
bool rules_failed(const struct rules *g); /* out of memory, or over the budget */

/* The number of the rule with this name, which is added if it is new. The name is copied. */
int rules_find_or_add(struct rules *g, struct str name);
/* Adds a rule that no name finds. The name is for errors only and is not copied. The body may be
 * NULL and be set later. */
int rules_add(struct rules *g, struct str name, struct rule_node *body);
int rules_add_shared(struct rules *g, struct str name, struct rule_node *body); /* no_inline */
/* The rule with this number, to be changed; a spare one for -1. Valid until a rule is added. */
struct rule *rules_get(struct rules *g, int rule);

struct rule_node *rules_node(struct rules *g, enum rule_node_kind kind);
struct rule_node *rules_literal(struct rules *g, struct str bytes); /* copied */
struct rule_node *rules_text(struct rules *g, const char *bytes);   /* a literal too */
struct rule_node *rules_class(struct rules *g, struct charset set); /* normalizes the set */
struct rule_node *rules_range(struct rules *g, int32_t lo, int32_t hi);
struct rule_node *rules_ref(struct rules *g, int rule);
struct rule_node *rules_repeat(struct rules *g, struct rule_node *x, int min, int max);
struct rule_node *rules_token(struct rules *g, int32_t id);
/* Adds a child to a SEQ, ALT or LIST and returns that node. */
struct rule_node *rules_add_child(struct rules *g, struct rule_node *to, struct rule_node *child);
/* A SEQ of n children, NULL among them left out. */
struct rule_node *rules_seq(struct rules *g, int n, struct rule_node *const *children);
#define RULES_SEQ(g, ...)                                                                        \
    rules_seq(g,                                                                                 \
              (int)(sizeof((struct rule_node *[]){ __VA_ARGS__ }) / sizeof(struct rule_node *)), \
              (struct rule_node *[]){ __VA_ARGS__ })
#endif
