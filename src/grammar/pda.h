/* pda.h - a compiled grammar: the DFAs of its rules in one set of tables, which together are a
 * pushdown automaton, and properties of its states that the matcher needs.
 *
 * Rules that are small and not recursive are expanded in their callers. A repetition with large
 * bounds becomes a counted rule: its automaton is one round, an edge to its start ends a round, and
 * the stack frame of the rule holds the count. So a{50,500} takes the states of one a.
 *
 * Invariants: a rule is entered only to read at least one byte, because where it may match the
 * empty text its callers have a way around it. From every state the end of its rule is reachable.
 * Immutable once made, so any thread may read it. */
#ifndef TERN_GRAMMAR_PDA_H
#define TERN_GRAMMAR_PDA_H

#include "grammar/dfa.h"

#define PDA_FAR (1 << 28) /* a number of bytes: there is no way to the end */

struct pda_state {
    int32_t edge, call, rule; /* first edge and first call of the state; its rule */
    int32_t n_edges, n_calls;
    int32_t min_bytes; /* shortest way to the end of the rule, or of the round if it is counted */
    bool final;        /* the rule may be over; at the start of a counted rule the count decides */
};

struct pda_rule {
    struct str name; /* "" if it has none */
    int32_t start;
    bool counted, nullable;
    int32_t min, max;   /* rounds of a counted rule; max may be RULES_UNBOUNDED */
    int32_t min_bytes;  /* of its shortest text that is not empty */
    uint64_t follow[4]; /* a bit for each byte that may come after the rule (FOLLOW set) */
};

struct pda {
    struct arena arena; /* names */
    struct pda_state *states;
    struct dfa_edge *edges;
    struct dfa_call *calls;
    struct pda_rule *rules;
    int n_states, n_edges, n_calls, n_rules;
    int root;
    uint8_t class_of[256]; /* bytes that no edge distinguishes are one class */
    int n_classes;
};

/* Every rule that is referred to has a body. E_INVALID names the rule at fault. */
int pda_build(struct pda *out, const struct rules *g, struct err *e);
void pda_release(struct pda *a); /* a zeroed one is allowed */
size_t pda_bytes(const struct pda *a);
#endif
