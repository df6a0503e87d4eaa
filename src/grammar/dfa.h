/* dfa.h - deterministic finite automata over bytes, with calls of rules.
 *
 * A syntax tree becomes an NFA (nfa.h) and, by the subset construction, a DFA: a state has at most
 * one edge for a byte, and for each rule that may begin there one call, with the state in which the
 * automaton continues when the rule is over. State 0 is the start, and no edge leads back to it. A
 * set of such automata, one for each rule, is a recursive transition network; pda.h puts them
 * together. A DFA without calls is a regular language, and two of those can be combined.
 *
 * A DFA remembers its first failed allocation (`failed`): additions do nothing from then on. All
 * work on it counts in the budget of the rules. */
#ifndef TERN_GRAMMAR_DFA_H
#define TERN_GRAMMAR_DFA_H

#include "base/err.h"
#include "grammar/rules.h"

/* A special token is read as this byte, which UTF-8 never uses, and three bytes of its id. */
#define DFA_TOKEN_BYTE 0xff

struct dfa_edge {
    uint8_t lo, hi;
    int32_t to;
};

struct dfa_call {
    int32_t rule, to;
};

struct dfa_state {
    int32_t edge, n_edges; /* sorted by byte, disjoint */
    int32_t call, n_calls;
    int32_t scratch; /* of dfa_trim and dfa_longest */
    bool final;
};

struct dfa {
    struct dfa_state *states;
    struct dfa_edge *edges;
    struct dfa_call *calls;
    int n_states, n_edges, n_calls;
    int cap_states, cap_edges, cap_calls;
    bool failed;
    struct budget *budget; /* that counts its memory, or NULL */
};

/* What a construction is given. */
struct dfa_env {
    const struct rules *g;
    const bool *nullable; /* [g->n] the rule matches the empty text */
    const bool *inlined;  /* [g->n] expanded in place; NULL: all are, and none may be recursive */
    /* The number of the rule that counts the rounds of this repetition, or -1: out of memory. NULL:
     * all repetitions are unrolled. */
    int (*add_counted)(void *arg, const struct rule_node *repeat);
    void *arg;
    int depth; /* of the node that nfa_build is at */
};

#define DFA_MAX_STATES 40000 /* of one automaton */

int dfa_build(struct dfa *out, const struct rule_node *n, struct dfa_env *env, struct err *e);
void dfa_release(struct dfa *f); /* a zeroed one is allowed */

/* The texts that both accept, or those that x accepts and y does not (product construction).
 * Neither has calls. */
enum dfa_op { DFA_INTERSECT, DFA_SUBTRACT };
int dfa_product(struct dfa *out, const struct dfa *x, const struct dfa *y, enum dfa_op op,
                struct dfa_env *env, struct err *e);
/* Removes the edges from which no final state is reached. false: no text is accepted. */
bool dfa_trim(struct dfa *f);
/* Bytes of the longest text that a trimmed DFA accepts; -1: there is no longest. */
int dfa_longest(struct dfa *f);
bool dfa_accepts(const struct dfa *f, struct str text);

/* A node for a DFA without calls, which is copied into the arena. */
struct rule_node *dfa_node(struct rules *g, const struct dfa *f);
/* A node for any text that neither contains the mark nor a NUL. */
int dfa_text_without(struct rule_node **out, struct rules *g, struct str mark, struct err *e);
#endif
