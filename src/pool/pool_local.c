/* pool_local.c - the host of models that run in this process: an engine each. */
#include "pool/pool_impl.h"

#include "base/keyring.h"
#include "engine/engine.h"
#include "kernel/backend.h"
#include "model/loadplan.h"
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
    if (model_has(given, MODEL_RERANK))
        o->ranks_by_answer = strcmp(given->rerank, "generative") == 0;
    if (model_has(given, MODEL_VERIFY_MANIFEST)) o->verify_manifest = given->verify_manifest;
}

static void on_weights(void *arg, int percent) { pool_set_weights_progress(arg, percent); }

static struct engine_opt options_of(struct pool_instance *m)
{
    struct engine_opt o = m->model->engine ? *m->model->engine : pool_opt_of(m)->engine;

    if (m->model->entry) apply_settings(&o, &m->model->entry->opt);

    o.progress = (struct loadprogress){ on_weights, m };
    o.park = pool_park_of(m);
    o.stats = pool_stats_of(m);
    o.failed = on_engine_failed;
    o.failed_arg = m->pool;
    return o;
}

static void drop_plan(struct pool_instance *m)
{
    if (m->host_data) loadplan_close(m->host_data);
    m->host_data = NULL;
}

int pool_read_keys(const struct registry_model *r, const char *file, const char *command,
                   struct keyset **out, struct err *e)
{
    bool own_file = r && model_has(&r->opt, MODEL_KEY_FILE),
         own_command = r && model_has(&r->opt, MODEL_KEY_COMMAND);

    if (own_file || own_command) {
        file = own_file ? r->opt.key_file : NULL;
        command = own_command ? r->opt.key_command : NULL;
    }
    if (keyset_open(out, file, command, 0, e) == OK) return OK;
    if (e) e->code = E_IO; /* not lasting: the file or the command may work the next time */
    return E_IO;
}

/* Once per load: a key command may ask somebody. */
static int join_keys(struct pool_instance *m, struct err *e)
{
    const struct pool_opt *o = pool_opt_of(m);
    bool own = m->model->key_file || m->model->key_command;
    const char *file = own ? m->model->key_file : o->key_file,
               *command = own ? m->model->key_command : o->key_command;
    int rc = OK;

    if (!m->keys) rc = pool_read_keys(m->model->entry, file, command, &m->keys, e);
    keyset_join(m->keys);
    return rc;
}

static void drop_keys(struct pool_instance *m)
{
    keyset_close(m->keys);
    m->keys = NULL;
}

/* host_data: the plan, until the engine has it. */
static int plan_local(struct pool_instance *m, struct err *e)
{
    struct engine_opt o = options_of(m);
    struct loadplan *plan = NULL;
    int rc = join_keys(m, e);

    if (rc != OK) return rc;

    drop_plan(m); /* an earlier one: the devices it opened are free for this one */
    o.room = m->room;
    if ((rc = engine_plan(&plan, pool_path(m->model), &o, e)) != OK) return rc;
    m->host_data = plan;
    m->need = membudget_of(plan);
    m->sizes = plan->sizes.s;
    m->refused = plan->refused;
    return OK;
}

/* Templates are parsed once per instance. */
static int open_prompter(struct pool_instance *m, struct err *e)
{
    const struct tokenizer *tok = engine_tokenizer(m->engine);
    const struct registry_model *r = m->model->entry;
    const char *file =
        m->model->chat_template ? m->model->chat_template : pool_opt_of(m)->chat_template;

    if (r && model_has(&r->opt, MODEL_CHAT_TEMPLATE)) file = r->opt.chat_template;
    engine_sample_defaults(m->engine, &m->sample);
    return tok ? prompter_open(&m->prompter, tok, file, e) : OK;
}

/* On a GPU the backend may take more than planned; the engine has the plan, until it closes. */
static int open_local(struct pool_instance *m, struct err *e)
{
    struct engine_opt o = options_of(m);
    struct loadplan *plan = m->host_data;
    int rc;

    for (int i = 0; i < plan->place.n_shares; i++) plan->place.shares[i].be->fill_kv = m->fill_kv;
    m->host_data = NULL;
    rc = engine_open_plan(&m->engine, plan, &o, e);
    pool_note_restored(m->pool);
    if (rc == OK) {
        m->need = membudget_of(plan);
        rc = open_prompter(m, e);
    }
    drop_keys(m);
    return rc;
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
    pool_save_blocks(m);
    prompter_close(m->prompter);
    engine_close(m->engine);
    if (m->engine) engine_stats_clear_gauges(pool_stats_of(m)); /* no other instance has begun */
    drop_plan(m);
    drop_keys(m);
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
