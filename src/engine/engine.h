/* engine.h - many sequences, one forward pass, one thread.
 *
 * An engine owns the load plan of a model, the runner that computes its batches, the ids of KV
 * blocks, and the thread that drives them: take requests, plan a step, run it, sample tokens, emit
 * events. engine_submit is the only way in; everything that runs came through its queue. All memory
 * of a step is allocated when the engine opens. */
#ifndef TERN_ENGINE_ENGINE_H
#define TERN_ENGINE_ENGINE_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct compile_job;
struct engine;
struct engine_info;
struct engine_opt;
struct engine_stats;
struct grammar;
struct grammar_spec;
struct ids;
struct loadplan;
struct park;
struct request;
struct sample_opt;
struct ticket;
struct tokenizer;

/* opt NULL: all defaults. */
int engine_open(struct engine **out, const char *path, const struct engine_opt *opt, struct err *e);
/* Ends the engine's threads; what still runs is cancelled and gets its last event. Facts can still
 * be read, and requests are refused. May be repeated. */
void engine_stop(struct engine *g);
void engine_close(struct engine *g); /* stops it, if that was not done; NULL is allowed */
/* OK, or why the engine has failed for good: it refuses every request with this error. Any thread;
 * e may be NULL. */
int engine_error(struct engine *g, struct err *e);

/* The same in two steps, for a caller that looks at the plan's memory in between (loadplan_bytes):
 * engine_plan decides everything, engine_open_plan loads. The engine takes the plan over, also when
 * it fails. */
int engine_plan(struct loadplan **out, const char *path, const struct engine_opt *opt,
                struct err *e);
int engine_open_plan(struct engine **out, struct loadplan *plan, const struct engine_opt *opt,
                     struct err *e);

/* Saves the prefix cache, so that the next engine of the same model need not compute it again; after
 * engine_stop, before engine_close. *n_blocks: how many blocks were saved; 0: there are none, the
 * engine has failed, or the model is of a kind that cannot be parked. Restoring is done by
 * engine_open_plan (opt.park), or for a manual engine by engine_unpark before its first request.
 * After a failure of engine_unpark the engine must be closed. */
int engine_park(struct engine *g, struct park *p, int *n_blocks, struct err *e);
int engine_unpark(struct engine *g, struct park *p, int *n_blocks, struct err *e);

/* The sizes of o as an engine will have them that is not open yet: with the defaults and the limits
 * that sizes have among each other. 0: it depends on the model or on free memory. gpu: all of the
 * model, or a part of it, will lie on one. */
void engine_expect(struct engine_opt *o, bool gpu);

void engine_info(const struct engine *g, struct engine_info *out); /* any thread */
struct engine_stats *engine_stats(struct engine *g);               /* read only, any thread */
const struct tokenizer *engine_tokenizer(const struct engine *g);  /* NULL: the model has none */
bool engine_is_end(const struct engine *g, int32_t id); /* is it one of the model's end tokens? */
/* Has the model recurrent state that is kept for later prompts? Then request.borders are of use. */
bool engine_keeps_state(const struct engine *g);
/* Sampling as the model's makers recommend it, over sample_defaults. */
void engine_sample_defaults(const struct engine *g, struct sample_opt *out);

/* Compiles the grammar that a request's text must follow (grammar/grammar.h), for request.grammar.
 * Any thread. */
int engine_grammar(struct engine *g, const struct grammar_spec *spec, struct grammar **out,
                   struct err *e);
/* The same without waiting: *out if it is cached, else *job (engine/compile.h), after which
 * done(job) is called. Tenants take turns. */
int engine_grammar_async(struct engine *g, const struct grammar_spec *spec, uint32_t tenant,
                         void (*done)(struct compile_job *j), void *arg, void *owner,
                         struct grammar **out, struct compile_job **job, struct err *e);

/* Any thread. OK: the engine holds a reference to r and will put a last event into r->out, whatever
 * happens. Otherwise r was not taken: E_INVALID, E_NOMEM or an error of admission
 * (engine/admit.h). */
int engine_submit(struct engine *g, struct request *r, struct err *e);
/* Admits a call whose prompts are submitted one after the other, as requests with this ticket: the
 * call waits in the queue once, and is refused now or not at all. While others wait, it has half of
 * the places (max_seqs) at most. The ticket is given back when the call ends. */
int engine_admit(struct engine *g, struct ticket *t, const struct ids *prompts, int n,
                 uint64_t deadline_ns, struct err *e);
void engine_give_back(struct engine *g, struct ticket *t); /* may be repeated */

/* Takes no more requests (E_SHUTDOWN); those that wait or run go on. Any thread. */
void engine_drain(struct engine *g);
/* Cancels all requests that wait or run (CANCEL_SHUTDOWN). Any thread. */
void engine_abort(struct engine *g);
bool engine_is_idle(struct engine *g);   /* nothing waits, nothing runs */
int engine_n_admitted(struct engine *g); /* requests that count for max_requests; any thread */
/* Runs a short, uncounted request through the queue, so that the first real one finds memory mapped
 * and code loaded. */
int engine_warm(struct engine *g, struct err *e);

/* opt.manual only: one round. false: there is nothing to do. */
bool engine_step(struct engine *g);
#endif
