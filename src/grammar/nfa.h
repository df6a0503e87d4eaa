/* nfa.h - the nondeterministic automaton between a syntax tree and its DFA (Thompson's
 * construction). State 0 is the start, state 1 the only final state. */
#ifndef TERN_GRAMMAR_NFA_H
#define TERN_GRAMMAR_NFA_H

#include "grammar/dfa.h"

enum nfa_edge_kind { NFA_EPSILON, NFA_BYTE, NFA_CALL };

struct nfa_edge {
    uint8_t kind, lo, hi; /* BYTE: any byte from lo to hi */
    int32_t rule, to;     /* CALL: this rule, then state `to` */
    int32_t next;         /* the next edge of the same state, or -1 */
};

struct nfa {
    int32_t *first; /* [n_states] the first edge of each state, or -1 */
    struct nfa_edge *edges;
    int n_states, cap_states, n_edges, cap_edges;
    struct dfa_env *env;
    struct budget *budget; /* of env->g */
    bool endless;          /* a rule that had to be expanded in place refers to itself */
    bool failed;           /* out of memory */
    bool full;             /* more states than are allowed */
};

/* E_INVALID: the tree takes too many states, or more than the budget of env->g allows. *a is
 * released by the caller in any case. */
int nfa_build(struct nfa *a, const struct rule_node *n, struct dfa_env *env, struct err *e);
void nfa_release(struct nfa *a);

/* An estimate of the states that a tree takes. rule_size (or NULL) has the sizes of the rules that
 * are expanded in place, 0 for others. */
int nfa_node_size(const struct rule_node *n, const int *rule_size);
/* Is the repetition small enough to be unrolled? Large ones become counted rules (pda.h). */
bool nfa_repeat_is_small(const struct rule_node *n, const int *rule_size);
#endif
