/* gauto.h - a grammar compiled: the machines of its rules in one set of tables, and what is known
 * of them.
 *
 * Immutable once made. A rule may be counted: its machine is one round of a repetition, edges to
 * its start end a round, and who runs it keeps the count. A rule is entered only to match
 * something: where it may match nothing, its callers also have the way around it. Every state can
 * reach the end of its rule. */
#ifndef TERN_GRAMMAR_GAUTO_H
#define TERN_GRAMMAR_GAUTO_H

#include "grammar/fsm.h"

#define GAUTO_FAR (1 << 28) /* bytes: never */

struct gauto_state {
    int32_t edge, call, rule;
    int32_t n_edges, n_calls;
    int32_t least; /* bytes at least until the rule (or the round, if it is counted) is over */
    bool final;    /* the rule may be over; of a counted rule's start the count says */
};

struct gauto_rule {
    struct str name; /* "" if it has none */
    int32_t start;
    bool counted, nullable;
    int32_t min, max;   /* of a counted one; max GNODE_MANY */
    int32_t least;      /* bytes */
    uint64_t follow[4]; /* bytes that may come when it is over */
};

struct gauto {
    struct arena arena; /* names */
    struct gauto_state *states;
    struct fsm_edge *edges;
    struct fsm_call *calls;
    struct gauto_rule *rules;
    int n_states, n_edges, n_calls, n_rules;
    int root;
    uint8_t class_of[256]; /* bytes that no edge tells apart are one class */
    int n_classes;
};

/* Every rule that is spoken of must have a body. E_INVALID names the rule at fault. */
int gauto_make(struct gauto *out, const struct grules *g, struct err *e);
void gauto_release(struct gauto *a); /* a zeroed one is fine */
#endif
