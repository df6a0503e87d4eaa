/* pool_local.c - the host of models that run in this process: an engine each. */
#include "pool/pool_impl.h"

#include "engine/engine.h"
#include "kernel/backend.h"
#include "model/loadplan.h"
#include "pool/memavail.h"
#include "pool/prompter.h"

static void on_engine_failed(void *arg) { pool_wake(arg); }

static struct engine_opt options_of(struct pool_instance *m)
{
    struct engine_opt o = pool_opt_of(m)->engine;

    o.stats = pool_stats_of(m);
    o.failed = on_engine_failed;
    o.failed_arg = m->pool;
    return o;
}

/* host_data: the plan, until the engine has it. */
static int plan_local(struct pool_instance *m, struct err *e)
{
    struct engine_opt o = options_of(m);
    struct loadplan *plan = NULL;
    int rc = engine_plan(&plan, m->model->path, &o, e);

    if (rc != OK) return rc;
    m->host_data = plan;
    m->need = membudget_of(plan);
    return OK;
}

/* A KV cache that is a large part of the free memory is taken when it is allocated, so that a model is
 * not READY without it. */
static void fill_large_kv(struct pool_instance *m, struct loadplan *plan)
{
    const struct pool_opt *o = pool_opt_of(m);
    struct memavail a;

    if (o->memory_limit == 0) return;
    memavail_read(&a, o->sys_root ? o->sys_root : "");
    for (int i = 0; i < plan->place.n_shares; i++)
        plan->place.shares[i].be->fill_kv = membudget_is_kv_large(&m->need, &a);
}

/* Templates are parsed once per instance. */
static int open_prompter(struct pool_instance *m, struct err *e)
{
    const struct tokenizer *tok = engine_tokenizer(m->engine);

    engine_sample_defaults(m->engine, &m->sample);
    return tok ? prompter_open(&m->prompter, tok, pool_opt_of(m)->chat_template, e) : OK;
}

/* On a GPU the backend may take more than planned; the engine has the plan, until it closes. */
static int open_local(struct pool_instance *m, struct err *e)
{
    struct engine_opt o = options_of(m);
    struct loadplan *plan = m->host_data;
    int rc;

    fill_large_kv(m, plan);
    m->host_data = NULL;
    if ((rc = engine_open_plan(&m->engine, plan, &o, e)) != OK) return rc;
    m->need = membudget_of(plan);
    return open_prompter(m, e);
}

static int warm_local(struct pool_instance *m, struct err *e) { return engine_warm(m->engine, e); }

static int error_of_local(struct pool_instance *m, struct err *e)
{
    return engine_error(m->engine, e);
}

static void drain_local(struct pool_instance *m) { engine_drain(m->engine); }
static void abort_local(struct pool_instance *m) { engine_abort(m->engine); }
static void stop_local(struct pool_instance *m) { engine_stop(m->engine); }
static bool is_local_idle(struct pool_instance *m) { return engine_is_idle(m->engine); }

static void close_local(struct pool_instance *m)
{
    prompter_close(m->prompter);
    engine_close(m->engine);
    if (m->host_data) loadplan_close(m->host_data);
}

const struct pool_host pool_local = { .plan = plan_local,
                                      .open = open_local,
                                      .warm = warm_local,
                                      .error = error_of_local,
                                      .drain = drain_local,
                                      .abort = abort_local,
                                      .is_idle = is_local_idle,
                                      .stop = stop_local,
                                      .close = close_local };
