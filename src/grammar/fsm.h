/* fsm.h - finite machines over bytes, with calls to other machines.
 *
 * A tree (gnode.h) becomes a machine by way of a nondeterministic one: each state has at most one
 * edge for a byte, and for each rule that may begin there one call, with the state to go on from
 * when the rule is over. State 0 is the start, and no edge leads back to it. A machine without
 * calls is a regular language, and two of those can be taken together. */
#ifndef TERN_GRAMMAR_FSM_H
#define TERN_GRAMMAR_FSM_H

#include "base/err.h"
#include "grammar/gnode.h"

#define FSM_TOKEN 0xff /* a token without text is spelled so, with three bytes of its id behind */

struct fsm_edge {
    uint8_t lo, hi;
    int32_t to;
};

struct fsm_call {
    int32_t rule, to;
};

struct fsm_state {
    int32_t edge, n_edges; /* sorted, apart */
    int32_t call, n_calls;
    bool final;
};

struct fsm {
    struct fsm_state *states;
    struct fsm_edge *edges;
    struct fsm_call *calls;
    int n_states, n_edges, n_calls;
    int cap_states, cap_edges, cap_calls;
};

/* How rules and large repetitions are to be taken; work is counted down and ends in E_INVALID. */
struct fsm_env {
    const struct grules *g;
    const bool *nullable; /* [g->n] may be empty */
    const bool *inlined;  /* [g->n] put in place; NULL: all are, none may call itself */
    /* The rule that does this repetition, counting; NULL: repetitions are written out. */
    int (*counted)(void *arg, const struct gnode *rep);
    void *arg;
    int64_t work;
    int depth;
};

#define FSM_WORK 6000000
#define FSM_STATES 40000 /* of one machine */

int fsm_make(struct fsm *out, const struct gnode *n, struct fsm_env *env, struct err *e);
void fsm_release(struct fsm *f); /* a zeroed one is fine */

/* What both accept, or what only x does. Neither has calls. */
enum fsm_op { FSM_AND, FSM_AND_NOT };
int fsm_product(struct fsm *out, const struct fsm *x, const struct fsm *y, enum fsm_op op,
                struct fsm_env *env, struct err *e);
/* Leaves out what leads nowhere; false: nothing is accepted. */
bool fsm_trim(struct fsm *f);
int fsm_longest(const struct fsm *f); /* bytes of what it accepts; -1: no end. Of a trimmed one. */
bool fsm_accepts(const struct fsm *f, struct str text);
int32_t fsm_step(const struct fsm *f, int32_t state, uint8_t byte); /* -1: no way */

/* A node for a machine without calls; it is copied into the arena. */
struct gnode *gnode_fsm(struct grules *g, const struct fsm *f);
/* Any text in which that mark does not stand, and no NUL. */
int gnode_without(struct gnode **out, struct grules *g, struct str mark, struct err *e);

/* How many states a tree takes, about; inlined as in fsm_env, sizes of rules' bodies given. */
int gnode_size(const struct gnode *n, const int *rule_size);
/* Would a repetition of that be written out? */
bool gnode_rep_is_small(const struct gnode *n, const int *rule_size);
#endif
