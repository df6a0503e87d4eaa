/* engine_impl.h - what an engine is made of; seen by engine.c, round.c and tell.c only. */
#ifndef TERN_ENGINE_ENGINE_IMPL_H
#define TERN_ENGINE_ENGINE_IMPL_H

#include "base/chan.h"
#include "engine/admit.h"
#include "engine/compile.h"
#include "engine/cost.h"
#include "engine/ends.h"
#include "engine/engine.h"
#include "engine/guided.h"
#include "engine/step.h"
#include "kv/prefix.h"
#include "kv/snap.h"
#include "model/place.h"

#include <pthread.h>

#define TENANTS 256 /* fairness counts by this many; more share */

/* What a step came to, from when it is known to when it is told: while the next one runs. */
struct untold {
    struct request *r; /* NULL: told, or not to be */
    struct event ev;   /* ev.id -1: no token came */
    enum finish why;   /* not FINISH_NONE: it is out of `live` already, and without blocks */
    struct err err;
};

struct engine {
    struct source *source;
    struct tokenizer *tokenizer;
    struct place place;
    struct model *model;
    struct block_pool *pool;
    struct prefix *prefix; /* NULL: prefixes are not shared */
    struct decoder *decoder;
    struct state_pool *states; /* the decoder's; NULL: the model has no recurrent state */
    struct snaps *snaps; /* of it behind prompts; NULL: prefixes are not shared, or need none */
    struct ends ends;
    struct guided guided;
    struct compiler compiler;
    struct engine_opt opt; /* effective */
    struct seq_limits lim;
    const struct card *card; /* the model's, of an ONNX graph; NULL: it is none */
    double open_ms;
    int min_chunk; /* see sched_opt */

    /* where threads meet */
    struct chan *in; /* requests that were taken */
    struct admit admit;
    struct engine_stats stats;
    atomic_bool quit, abort;
    pthread_t thread;
    bool has_thread;

    /* the engine's thread */
    struct request **live; /* [max_live], in order of arrival */
    int n_live, max_live;
    struct sched_seq *view; /* [max_live] of each as the scheduler sees it */
    struct sched_plan plan;
    int *order;
    uint64_t served[TENANTS]; /* tokens computed for each, aged */
    struct step step;
    struct untold *untold; /* [max_seqs] */
    int n_untold;
    struct cost cost;
    uint64_t round_ns;    /* when this round began */
    uint64_t last_end_ns; /* when a request ended last */
    uint64_t n_rounds;
};

enum round { ROUND_IDLE, ROUND_BLOCKED, ROUND_WORKED };

/* One round: take, plan, start, tell of the last step, wait, sample. BLOCKED: there is work, but
 * every reader is behind. */
enum round engine_round(struct engine *g);

/* What the last step came to, if that was not told yet. */
void engine_tell(struct engine *g);
void engine_tell_one(struct engine *g, struct untold *u);
/* r, which is out of `live`, is over: it is told so, and the engine's reference ends. */
void engine_end(struct engine *g, struct request *r, enum finish why, const struct err *e);
/* What the sequence carried on is nobody's any more. */
void engine_give_slot(struct engine *g, struct seq *s);
#endif
