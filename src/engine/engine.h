/* engine.h - many sequences, one forward pass, one thread.
 *
 * An engine owns a model's source, weights, KV blocks and decoder, and the thread that runs them:
 * take, plan, run, sample, emit. engine_submit is the only way in; whatever runs comes through its
 * queue. The KV cache and all scratch are taken when it opens. */
#ifndef TERN_ENGINE_ENGINE_H
#define TERN_ENGINE_ENGINE_H

#include "engine/request.h"
#include "engine/stats.h"
#include "kernel/backend.h"
#include "model/model.h"
#include "model/place.h"
#include "token/tokenizer.h"

struct engine;
struct compile_job;

struct engine_opt {
    struct backend_opt backend;
    int n_ctx;            /* tokens of a sequence; 0: the model's, at most 4096 */
    int kv_tokens;        /* of the whole KV cache; 0: 4 contexts, at least one */
    int max_batch;        /* tokens of a step; 0: engine_batch_default */
    int max_seqs;         /* running at once; 0: 16 */
    int max_requests;     /* waiting and running; 0: 16 times max_seqs */
    int max_queue_tokens; /* prompt tokens waiting; 0: 64 contexts */
    enum dtype kv_type;   /* DT_NONE: F16, or F32 with the reference kernels */
    double kv_overcommit; /* see admit_limits; 0: 8 */
    int step_ms;          /* a step with prefill takes at most so long, estimated; 0: 100 */
    double stretch;       /* see sched_opt; 0: 2.5 */
    int age_ms;           /* see sched_opt; 0: 1000 */
    bool no_prefix;       /* prefixes are not shared */
    bool manual;          /* no thread: the caller calls engine_step (tests, simulation) */
};

struct engine_info {
    const struct model *model;
    const struct source *source;
    const struct place *place;
    struct engine_opt opt; /* effective: no zeros that mean a default */
    int n_blocks;
    uint64_t weight_bytes, kv_bytes, scratch_bytes;
    const char *task;         /* "generate", "embed", "classify" */
    const struct str *labels; /* [n_labels] of a model that classifies; NULL: it does not */
    int n_labels;
    struct backend_stats device; /* of the one that makes logits */
    double open_ms;
};

int engine_open(struct engine **out, const char *path, const struct engine_opt *opt, struct err *e);
void engine_close(struct engine *g); /* NULL is fine; what still runs is cancelled and told so */
void engine_info(const struct engine *g, struct engine_info *out);
int engine_batch_default(const struct backend_opt *b); /* 512, on a GPU 2048 */
int engine_snaps(int max_seqs); /* snapshots of recurrent state that are kept */
const struct tokenizer *engine_tokenizer(const struct engine *g); /* NULL: the model carries none */
bool engine_is_end(const struct engine *g, int32_t id); /* one of the model's end tokens */
struct engine_stats *engine_stats(struct engine *g);    /* read only, any thread */

/* What a request's text must look like, compiled (see grammar/grammar.h), for request.grammar. Any
 * thread. */
int engine_grammar(struct engine *g, const struct grammar_spec *spec, struct grammar **out,
                   struct err *e);
/* The same without waiting: *out where it was compiled before, else *job (engine/compile.h), with
 * done(job) to come. */
int engine_grammar_soon(struct engine *g, const struct grammar_spec *spec,
                        void (*done)(struct compile_job *j), void *arg, void *owner,
                        struct grammar **out, struct compile_job **job, struct err *e);

/* Any thread. OK: the engine holds a reference and will put a last event into r->out, whatever
 * happens. Otherwise r was not taken: E_INVALID, or one of admission's (engine/admit.h). */
int engine_submit(struct engine *g, struct request *r, struct err *e);
/* Takes no more (E_SHUTDOWN); what is there goes on. Any thread. */
void engine_drain(struct engine *g);
/* Cancels all that waits and runs (CANCEL_SHUTDOWN). Any thread. */
void engine_abort(struct engine *g);
bool engine_is_idle(struct engine *g); /* nothing waits, nothing runs */
/* Runs a short request through the queue, uncounted, so that the first real one finds all pages
 * warm. */
int engine_warm(struct engine *g, struct err *e);

/* opt.manual only: one round. false: nothing to do. */
bool engine_step(struct engine *g);
#endif
