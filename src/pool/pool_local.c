/* pool_local.c - the host of models that run in this process: an engine each. */
#include "pool/pool_impl.h"

#include "engine/engine.h"
#include "kernel/backend.h"
#include "model/loadplan.h"
#include "pool/memavail.h"
#include "pool/modelbytes.h"
#include "pool/prompter.h"
#include "pool/registry.h"

static void on_engine_failed(void *arg) { pool_wake(arg); }

/* Settings of the model itself override those of the server. */
static void apply_settings(struct engine_opt *o, const struct model_opt *given)
{
    if (model_has(given, MODEL_CTX)) o->n_ctx = (int)given->ctx;
    if (model_has(given, MODEL_KV_TOKENS)) o->kv_tokens = (int)given->kv_tokens;
    if (model_has(given, MODEL_MAX_SEQS)) o->max_seqs = (int)given->max_seqs;
    if (model_has(given, MODEL_THREADS)) o->n_threads = (int)given->threads;
    if (model_has(given, MODEL_DEVICE)) o->device = given->device;
}

static struct engine_opt options_of(struct pool_instance *m)
{
    struct engine_opt o = pool_opt_of(m)->engine;

    if (m->model->entry) apply_settings(&o, &m->model->entry->opt);

    o.stats = pool_stats_of(m);
    o.failed = on_engine_failed;
    o.failed_arg = m->pool;
    return o;
}

enum { SHARE_MODELS = 3 }; /* that are expected side by side, of those that are loaded on demand */

/* So many models are expected to be loaded at a time: all of the start, and some of the others. */
static int n_side_by_side(struct pool *p)
{
    int n = pool_n(p), at_start = 0, most = p->opt.max_loaded ? p->opt.max_loaded : SHARE_MODELS;

    for (int i = 0; i < n; i++) at_start += p->slots[i]->m.preload;
    if (most > n) most = n;
    return most > at_start ? most : at_start;
}

/* Memory for the default sizes of a model: every model has the same share of what the weights of all
 * leave for KV caches, also those that are loaded after it. */
static struct sizes_room plan_room(struct pool_instance *m)
{
    struct pool *p = m->pool;
    uint64_t limit = p->opt.memory_limit == POOL_MEMORY_AUTO ? 0 : p->opt.memory_limit;
    double share = 1.0 / n_side_by_side(p);
    struct sizes_room r;
    struct memavail a;

    swap_read_free(p, &a);
    r = membudget_room(&a, &p->held, limit);
    r.share = share;
    if (m->model->entry && model_has(&m->model->entry->opt, MODEL_KV_SHARE))
        r.share = m->model->entry->opt.kv_share;
    for (int i = 0; i < pool_n(p); i++) {
        const struct slot *o = p->slots[i];
        bool loaded = state_of(o) == POOL_READY, later;

        pthread_mutex_lock(&p->lock);
        later = &o->m != m->model && o->at_start && state_of(o) == POOL_LOADING;
        pthread_mutex_unlock(&p->lock);
        if (loaded) r.share_before += share;
        else if (later) r.later_bytes += model_file_bytes(o->m.path);
    }
    return r;
}

/* host_data: the plan, until the engine has it. */
static int plan_local(struct pool_instance *m, struct err *e)
{
    struct engine_opt o = options_of(m);
    struct loadplan *plan = NULL;
    int rc;

    o.room = plan_room(m);
    if ((rc = engine_plan(&plan, m->model->path, &o, e)) != OK) return rc;
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
    swap_read_free(m->pool, &a);
    for (int i = 0; i < plan->place.n_shares; i++)
        plan->place.shares[i].be->fill_kv = membudget_is_kv_large(&m->need, &a);
}

/* Templates are parsed once per instance. */
static int open_prompter(struct pool_instance *m, struct err *e)
{
    const struct tokenizer *tok = engine_tokenizer(m->engine);
    const struct registry_model *r = m->model->entry;
    const char *file = r && model_has(&r->opt, MODEL_CHAT_TEMPLATE) ? r->opt.chat_template
                                                                    : pool_opt_of(m)->chat_template;

    engine_sample_defaults(m->engine, &m->sample);
    return tok ? prompter_open(&m->prompter, tok, file, e) : OK;
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
