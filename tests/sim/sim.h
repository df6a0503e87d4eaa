/* sim.h - the scheduler on a model that only counts.
 *
 * An engine of planner, block pool and prefix index without threads and arithmetic: time goes by
 * the cost model, and a token is a function of all tokens before it, read through the blocks. A
 * block that was given to the wrong one, or taken back too early, changes the text. Every step
 * checks what no plan may break: budgets, blocks, who may take part. */
#ifndef TERN_TESTS_SIM_H
#define TERN_TESTS_SIM_H

#include "engine/sched.h"
#include "kv/prefix.h"

#include "support.h"

struct sim_opt {
    int n_blocks;    /* 0: 512 */
    int step_tokens; /* 0: 512 */
    int max_seqs;    /* 0: 16 */
    int min_chunk;
    uint64_t age_ns, max_step_ns;
    double stretch;
    struct sched_cost cost; /* real; 0: 10 ms a step, 0.5 ms a decode, 1 ms a token of prefill */
    bool blind;             /* the planner is not told what steps cost */
    bool no_prefix;
};

struct sim_req {
    int n_prompt, n_decode;
    uint64_t seed; /* of the prompt's tokens; 0: a new one each */
    int n_common;  /* its first tokens are those of all with the same `common` */
    uint64_t common;
    uint64_t salt;
    int priority;
    uint32_t tenant; /* below SIM_TENANTS */
    uint64_t deadline_ns;
};

#define SIM_TENANTS 8

enum sim_state { SIM_WAITING, SIM_RUNNING, SIM_DONE, SIM_CANCELLED, SIM_STUCK };

struct sim_seq {
    struct sim_req req;
    enum sim_state state;
    bool held;
    int32_t *tokens; /* prompt and what came: [n_prompt + n_decode] */
    int n_tokens, n_kv;
    struct chain chain;
    int n_preempted, n_computed, n_cached;
    uint64_t arrival_ns, begin_ns, first_ns, last_ns, end_ns;
    uint64_t max_gap_ns; /* between two of its tokens */
};

struct sim {
    struct sim_opt opt;
    uint64_t *cells; /* [n_blocks][KV_BLOCK] what a block holds of each token */
    struct block_pool *pool;
    struct prefix *prefix; /* NULL: opt.no_prefix */
    struct sim_seq *seqs;  /* all that ever came */
    int n_seqs, cap;
    int *alive, n_alive; /* waiting and running */
    uint64_t now_ns, served[SIM_TENANTS];
    /* the planner's */
    struct sched_seq *view;
    struct sched_plan plan;
    int *order;
    /* of the last step, and of all */
    int n_decodes, n_prefill;
    uint64_t step_ns;
    int64_t n_steps, n_computed, n_preempted;
    int n_short; /* a planned one found no blocks: the plan was wrong */
};

struct sim *sim_open(struct sim_opt opt);
void sim_close(struct sim *s); /* checks that no block but the index's is in use */

int sim_add(struct sim *s, struct sim_req req); /* returns its index */
void sim_cancel(struct sim *s, int seq);
bool sim_step(struct sim *s); /* false: nothing is alive */
void sim_run(struct sim *s, int n_steps);
void sim_finish(struct sim *s,
                int max_steps); /* until nothing is alive; more steps fail the test */
int sim_n_emitted(const struct sim *s, int seq);
/* Does its text so far equal what a model alone in the world would say? */
void sim_expect_text(const struct sim *s, int seq);
#endif
