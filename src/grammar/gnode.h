/* gnode.h - a grammar as it was written: rules, and the trees that are their bodies.
 *
 * What GBNF, JSON schemas and regular expressions are turned into before an automaton is made of
 * them. All of it lies in the arena of the set of rules and ends with it. Running over GRULES_NODES
 * makes the set `full`: makers go on with an empty node and are asked once, at the end. */
#ifndef TERN_GRAMMAR_GNODE_H
#define TERN_GRAMMAR_GNODE_H

#include "base/map.h"
#include "grammar/cpset.h"

#define GRULES_NODES 200000
#define GNODE_MANY (-1) /* max of a repetition without one */

enum gnode_kind {
    GN_EMPTY,
    GN_NEVER,
    GN_LIT,   /* these bytes */
    GN_CLASS, /* one character of a set, as UTF-8 */
    GN_SEQ,
    GN_ALT,
    GN_REP,   /* kids[0], min to max times */
    GN_REF,   /* a rule by its number */
    GN_TOKEN, /* a token of the vocabulary by its id: one that has no text */
    GN_LIST,  /* members in their order, some of which may be left out: see struct glist */
    GN_FSM    /* a machine made before: struct fsm, without calls */
};

struct gnode;

/* Members and then any number of `more`, with a separator between; min to max of them in all. */
struct glist {
    struct gnode *sep, *more; /* more NULL: none */
    const bool *needed;       /* [n_kids] */
    int min, max;             /* max GNODE_MANY: any */
};

struct gnode {
    enum gnode_kind kind;
    struct str lit;
    struct cpset set;
    struct gnode **kids;
    int n_kids, cap_kids;
    int min, max; /* REP; min is the id of a TOKEN */
    int rule;     /* REF */
    const struct glist *list;
    const struct fsm *fsm;
};

struct grule {
    struct str name;
    struct gnode *body; /* NULL: only spoken of so far */
    int line, column;   /* where it was first met; 0: nowhere */
    bool keep;          /* never put into its callers: many share what is known of it */
};

struct grules {
    struct arena arena;
    struct grule *rules;
    int n, cap;
    struct map names;
    int n_nodes;
    bool full;
    int root;
};

void grules_init(struct grules *g);
void grules_release(struct grules *g); /* a zeroed one is fine */
/* The rule of that name, made if it is new. The name is copied. */
int grules_name(struct grules *g, struct str name);
int grules_new(struct grules *g); /* one without a name */
int grules_add(struct grules *g, const char *name,
               struct gnode *body); /* name: a literal, not looked up */

struct gnode *gnode_new(struct grules *g, enum gnode_kind kind);
struct gnode *gnode_lit(struct grules *g, struct str bytes); /* copied */
struct gnode *gnode_c(struct grules *g, const char *bytes);
struct gnode *gnode_class(struct grules *g, struct cpset set); /* tidied */
struct gnode *gnode_range(struct grules *g, int32_t lo, int32_t hi);
struct gnode *gnode_ref(struct grules *g, int rule);
struct gnode *gnode_rep(struct grules *g, struct gnode *x, int min, int max);
struct gnode *gnode_token(struct grules *g, int32_t id);
/* Adds a kid to a SEQ or ALT, and returns that. */
struct gnode *gnode_add(struct grules *g, struct gnode *to, struct gnode *kid);
/* n kids in one go, NULL among them left out. */
struct gnode *gnode_seq(struct grules *g, int n, struct gnode *const *kids);
#define GSEQ(g, ...)                                                                        \
    gnode_seq(g, (int)(sizeof((struct gnode *[]){ __VA_ARGS__ }) / sizeof(struct gnode *)), \
              (struct gnode *[]){ __VA_ARGS__ })
#endif
