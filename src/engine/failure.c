/* failure.c - when an engine has failed for good.
 *
 * A step that fails ends its own requests, and the engine goes on: a GPU may have been out of memory
 * once. Three cases end the engine: a device that was lost, a model that was damaged after it was
 * opened, and steps that fail one after the other. Every request that waits or runs then ends with
 * the typed error, every later one is refused with it, and the owner is told, who closes the engine
 * and may open another one. The thread goes on until then, doing nothing. */
#include "base/log.h"
#include "engine/engine_impl.h"
#include "format/source.h"
#include "model/loadplan.h"

enum { FAILED_STEPS = 3 }; /* in a row */

int engine_error(struct engine *g, struct err *e)
{
    if (!atomic_load_explicit(&g->failed, memory_order_acquire)) return OK;
    if (e) *e = g->failure;
    return g->failure.code;
}

/* Also those that arrive after the failure, between the check and the queue. */
void engine_end_all(struct engine *g)
{
    while (g->n_live > 0) engine_finish_live(g, g->n_live - 1, FINISH_ERROR, &g->failure);
}

static void fail(struct engine *g, const struct err *e)
{
    if (atomic_load_explicit(&g->failed, memory_order_relaxed)) return;
    g->failure = *e;
    atomic_store_explicit(&g->failed, true, memory_order_release);
    engine_end_all(g);
    if (g->opt.failed) g->opt.failed(g->opt.failed_arg);
}

static bool is_device_lost(const struct engine *g)
{
    const struct place *p = &g->plan->place;

    for (int i = 0; i < p->n_shares; i++)
        if (p->shares[i].be->lost) return true;
    return false;
}

/* The codes that callers act on are kept; what else goes wrong in a step is the device's. */
static int code_of(int rc)
{
    return rc == E_DAMAGED || rc == E_DEVICE_MEMORY || rc == E_WORKER ? rc : E_DEVICE;
}

bool engine_fail_if_damaged(struct engine *g)
{
    struct err e = { 0 };

    if (!source_is_damaged(g->plan->source, &e)) return false;
    fail(g, &e);
    return true;
}

/* Also between steps: a model whose process has gone is opened again before the next request. */
void engine_fail_if_lost(struct engine *g)
{
    struct err e = { 0 };

    if (!g->runner->is_lost || atomic_load_explicit(&g->failed, memory_order_relaxed)) return;
    if (g->runner->is_lost(g->runner, &e)) fail(g, &e);
}

void engine_judge_failed_step(struct engine *g, const struct err *why)
{
    struct err e = *why;

    if (!g->opt.tells_callers)
        log_error("a step of %d sequences failed: %s", g->step.n_seqs, why->msg);
    if (engine_fail_if_damaged(g)) return;
    engine_fail_if_lost(g);
    g->n_failed_steps++;
    if (!is_device_lost(g) && g->n_failed_steps < FAILED_STEPS) return;
    e.code = code_of(why->code);
    if (!is_device_lost(g)) err_wrap(&e, "%d steps in a row failed", g->n_failed_steps);
    fail(g, &e);
}
