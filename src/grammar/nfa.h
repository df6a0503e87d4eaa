/* nfa.h - the nondeterministic machine between a tree and its fsm. */
#ifndef TERN_GRAMMAR_NFA_H
#define TERN_GRAMMAR_NFA_H

#include "grammar/fsm.h"

enum nfa_kind { NFA_EPS, NFA_BYTE, NFA_CALL };

struct nfa_edge {
    uint8_t kind, lo, hi;
    int32_t rule, to, next; /* next: the same state's next edge, or -1 */
};

struct nfa {
    int32_t *first; /* [n_states] edge, or -1 */
    struct nfa_edge *edges;
    int n_states, cap_states, n_edges, cap_edges;
    struct fsm_env *env;
    bool endless; /* a rule that had to be put in place calls itself */
};

/* From state 0 to state 1. */
int nfa_make(struct nfa *a, const struct gnode *n, struct fsm_env *env, struct err *e);
void nfa_release(struct nfa *a);
#endif
