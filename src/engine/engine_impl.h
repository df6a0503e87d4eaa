/* engine_impl.h - the inside of an engine, for the files of src/engine only.
 *
 * Which file does what:
 *   engine.c  opening and closing, submitting       round.c   one round: take, plan, run
 *   token.c   sampling the tokens of a step         emit.c    events, ends, statistics
 *   warm.c    the warm-up request                   check.c   all invariants, as code
 *   failure.c when the engine has failed for good   engine_park.c  saving the prefix cache
 *   engine_state.c  snapshots of recurrent state */
#ifndef TERN_ENGINE_ENGINE_IMPL_H
#define TERN_ENGINE_ENGINE_IMPL_H

#include "base/chan.h"
#include "base/rng.h"
#include "engine/admit.h"
#include "engine/compile.h"
#include "engine/cost.h"
#include "engine/ends.h"
#include "engine/engine.h"
#include "engine/guided.h"
#include "engine/info.h"
#include "engine/sched.h"
#include "engine/stats.h"
#include "engine/step.h"
#include "kv/prefix.h"
#include "kv/slots.h"
#include "kv/snap.h"

#include <pthread.h>

#define TENANTS 256 /* fairness counts tenants modulo this */

/* What a step gave a sequence. Results stay pending until the next step has started: events are
 * emitted while it computes. */
struct pending {
    struct request *r; /* NULL: emitted */
    struct event ev;   /* ev.id -1: no token was sampled */
    enum finish why;   /* not FINISH_NONE: r is out of `live` already, and without blocks */
    struct err err;
};

struct engine {
    struct loadplan *plan; /* owned; outlives the runner */
    struct runner *runner;
    struct tokenizer *tokenizer; /* NULL: the model has none */
    struct block_pool *pool;     /* ids of the runner's KV blocks */
    struct prefix *prefix;       /* NULL: prefixes are not shared */
    struct slots slots;          /* of the runner's recurrent state; none: the model has no state */
    struct snaps *snaps;         /* snapshots of state; NULL: no prefix cache, or no state */
    struct ends ends;
    struct guided guided;
    struct compiler compiler;
    struct engine_opt opt;    /* effective */
    struct engine_info info;  /* without the devices' counts */
    struct buf name, devices; /* strings of info */
    struct seq_limits lim;
    double open_ms;

    /* shared between threads */
    struct chan *in; /* submitted requests */
    struct admit admit;
    struct engine_stats *stats, own_stats;
    atomic_bool quit, abort;
    atomic_bool failed; /* for good; `failure` was written before */
    struct err failure;
    struct { /* engine_warm waits here; it is the engine's, whose thread may still be about to wake
              * a caller that has seen the end already */
        pthread_mutex_t lock;
        pthread_cond_t news;
        int n; /* notifications */
    } warm;
    bool stopped;
    pthread_t thread;
    bool has_thread;

    /* the engine thread's */
    struct request **live; /* [max_live] waiting and running, in order of arrival */
    int n_live, max_live;
    struct sched_seq *view; /* [max_live] each as the scheduler sees it */
    struct sched_plan plan_now;
    int *order;               /* [max_live] the scheduler's scratch */
    uint64_t served[TENANTS]; /* tokens computed for each tenant, aged */
    struct step step;
    struct pending *pending; /* [max_seqs] */
    int n_pending;
    struct cost cost;
    uint64_t round_ns;    /* when this round began */
    uint64_t last_end_ns; /* when a request ended last */
    uint64_t n_rounds;
    struct { /* of a gang: what was counted, and of recent steps */
        uint64_t step_ns, comm_ns;
        double recent_step, recent_comm;
    } gang;
    int n_failed_steps;  /* in a row */
    int n_empty;         /* rounds since a step had tokens, while readers are behind */
    struct rng rng;      /* hard mode: sizes of chunks */
    int32_t *block_uses; /* [n_blocks] hard mode: scratch of engine_check; else NULL */
};

enum round { ROUND_IDLE, ROUND_BLOCKED, ROUND_WORKED };

/* One round: take arrivals, plan, start the step, emit the last step's events, wait, sample.
 * ROUND_BLOCKED: there is work, but every request's outbox is full. */
enum round engine_round(struct engine *g);

/* Emits all pending results. */
void engine_emit(struct engine *g);
void engine_emit_one(struct engine *g, struct pending *p);
/* Ends r, which is out of `live`: pushes its last event and drops the engine's reference. */
void engine_end(struct engine *g, struct request *r, enum finish why, const struct err *e);
/* Gives a sequence's slot of recurrent state back. */
void engine_free_slot(struct engine *g, struct seq *s);
/* Ends the request at live[i], after its pending events. */
void engine_finish_live(struct engine *g, int i, enum finish why, const struct err *e);
/* Removes live[i]. */
void engine_unlist(struct engine *g, int i);
int engine_find_live(const struct engine *g, const struct request *r); /* index in live, or -1 */

/* Lets the runner sample where it can, before the step starts. */
void token_plan_samples(struct engine *g);
/* Samples a token for every sequence that has logits; results become pending. Sequences that ended
 * leave `live`, so that the next plan has their blocks. */
/* Ends the requests for single logits whose prompts are complete. */
void token_pick_all(struct engine *g, const float *logits);
void token_sample_all(struct engine *g, const float *logits);

/* Position behind n_kv at which a snapshot of r's recurrent state is due, so that a step must end
 * there; 0: there is none in the rest of the prompt. */
int engine_next_snapshot(const struct request *r, int n_kv);
/* Will another request, one of the first n_before, make a snapshot that r can begin with, and that is
 * longer than what r can begin with now? */
bool engine_is_state_coming(const struct engine *g, const struct request *r, int n_before);
/* After a step: takes a snapshot where one is due. */
void engine_save_state(struct engine *g, struct seq *s);
/* s begins with cached blocks: keeps those that there is a snapshot for, and takes its state. */
void engine_restore_state(struct engine *g, struct seq *s);

/* A step failed, and its requests have ended: does the engine fail for good? */
void engine_judge_failed_step(struct engine *g, const struct err *e);
/* Fails the engine if its model was damaged: what the last step computed is worth nothing. */
bool engine_fail_if_damaged(struct engine *g);
void engine_fail_if_lost(struct engine *g);
void engine_end_all(struct engine *g); /* with the failure's error */

/* Checks every invariant of the engine's state. E_INTERNAL says what is wrong. */
int engine_check(struct engine *g, struct err *e);
#endif
