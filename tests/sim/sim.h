/* sim.h - a deterministic simulation of the engine's scheduling, without a model, threads or
 * real time.
 *
 * The simulation runs the real planner (engine/sched), block pool and prefix cache. Time
 * advances by the cost model. Each "token" is a hash of all tokens before it, read through the
 * KV blocks, so a block that was handed to the wrong sequence or freed too early changes the
 * text. Every step checks invariants of the plan: budgets, block counts, and which sequences may
 * take part. */
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
    struct sched_cost
        cost;   /* actual costs; 0: 10 ms per step, 0.5 ms per decode, 1 ms per token of prefill */
    bool blind; /* the planner does not know the costs */
    bool no_prefix;
};

struct sim_req {
    int n_prompt, n_decode;
    uint64_t seed; /* of the prompt's tokens; 0: a different seed for each request */
    int n_common;  /* number of first tokens that all requests with the same `common` share */
    uint64_t common;
    uint64_t salt;
    int priority;
    uint32_t tenant; /* below SIM_TENANTS */
    uint64_t deadline_ns;
    uint64_t arrival_ns; /* 0: now */
};

#define SIM_TENANTS 8

enum sim_state { SIM_WAITING, SIM_RUNNING, SIM_DONE, SIM_CANCELLED, SIM_STUCK };

struct sim_seq {
    struct sim_req req;
    enum sim_state state;
    bool held;
    int32_t *tokens; /* prompt and emitted tokens: [n_prompt + n_decode] */
    int n_tokens, n_kv;
    struct chain chain;
    int n_preempted, n_computed, n_cached;
    uint64_t arrival_ns, begin_ns, first_ns, last_ns, end_ns;
    uint64_t max_gap_ns; /* largest time between two emitted tokens */
};

struct sim {
    struct sim_opt opt;
    uint64_t *cells; /* [n_blocks][KV_BLOCK]: the simulated KV rows */
    struct block_pool *pool;
    struct prefix *prefix; /* NULL: opt.no_prefix */
    struct sim_seq *seqs;  /* all sequences ever added */
    int n_seqs, cap;
    int *alive, n_alive; /* indexes of waiting and running sequences */
    uint64_t now_ns, served[SIM_TENANTS];
    /* input and output of the planner */
    struct sched_seq *view;
    struct sched_plan plan;
    int *order;
    /* counts of the last step, then totals */
    int n_decodes, n_prefill;
    uint64_t step_ns;
    int64_t n_steps, n_computed, n_preempted;
    int n_short; /* planned sequences that found no free block: a wrong plan */
};

struct sim *sim_open(struct sim_opt opt);
void sim_close(struct sim *s); /* checks that only the prefix cache still uses blocks */

int sim_add(struct sim *s, struct sim_req req); /* returns the index of the sequence */
void sim_cancel(struct sim *s, int seq);
bool sim_step(struct sim *s); /* false: no sequence is alive */
void sim_run(struct sim *s, int n_steps);
void sim_finish(struct sim *s,
                int max_steps); /* until no sequence is alive; more steps fail the test */
int sim_n_emitted(const struct sim *s, int seq);
/* Fails unless the sequence has emitted the tokens that it would emit alone. */
void sim_expect_text(const struct sim *s, int seq);
#endif
