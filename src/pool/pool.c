/* pool.c - models are loaded by one thread, one after the other: two loads at once would compete
 * for memory bandwidth and make both slower. */
#include "pool/pool.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/buf.h"
#include "engine/engine.h"
#include "model/loadplan.h"
#include "pool/membudget.h"
#include "pool/modelname.h"
#include "pool/prompter.h"

#include <pthread.h>
#include <string.h>
#include <sys/stat.h>

struct pool {
    struct pool_model *models; /* [n] */
    int n;
    struct pool_opt opt;
    pthread_t thread;
    bool has_thread;
    atomic_bool stop; /* load no more models */
    atomic_bool draining, aborting;
    uint64_t taken_bytes; /* of models that are loaded; the loading thread's */
};

/* ---- naming ---- */

/* Names must be unique: a request chooses its model by name. */
static int name_model(struct pool *p, int i, struct err *e)
{
    struct pool_model *m = &p->models[i];
    const char *alias = p->opt.aliases ? p->opt.aliases[i] : NULL;
    struct stat st;

    m->path = mem_strdup(p->opt.paths[i]);
    m->id = alias && *alias ? mem_strdup(alias) : model_id_of(p->opt.paths[i]);
    if (!m->path || !m->id) return err_nomem(e, "the name of a model");
    if (stat(m->path, &st) != 0)
        return err_set(e, E_NOTFOUND, "model '%s': there is no such file or folder", m->path);
    m->created = (int64_t)st.st_mtime;
    for (int j = 0; j < i; j++)
        if (strcmp(p->models[j].id, m->id) == 0)
            return err_set(e, E_INVALID,
                           "models '%s' and '%s' are both named '%s': give one of them an alias",
                           p->models[j].path, m->path, m->id);
    return OK;
}

/* ---- loading, on the pool's thread ---- */

/* The plan's memory is known before anything is loaded; on a GPU the backend may take more. */
static int open_engine(struct pool *p, struct pool_model *m, struct err *e)
{
    struct loadplan *plan = NULL;
    struct membudget b;
    int rc;

    if ((rc = engine_plan(&plan, m->path, &p->opt.engine, e)) != OK) return rc;
    b = membudget_of(plan);
    if ((rc = membudget_check(&b, p->taken_bytes, p->opt.memory_limit, e)) != OK) {
        loadplan_close(plan);
        return rc;
    }
    if ((rc = engine_open_plan(&m->engine, plan, &p->opt.engine, e)) != OK) return rc;
    b = membudget_of(plan); /* the engine has it, until it closes */
    if ((rc = membudget_check(&b, p->taken_bytes, p->opt.memory_limit, e)) != OK) return rc;
    p->taken_bytes += membudget_total(&b);
    return OK;
}

/* Templates are parsed once per model. */
static int open_prompter(struct pool *p, struct pool_model *m, struct err *e)
{
    const struct tokenizer *tok = engine_tokenizer(m->engine);

    engine_sample_defaults(m->engine, &m->sample);
    return tok ? prompter_open(&m->prompter, tok, p->opt.chat_template, e) : OK;
}

static void close_model(struct pool_model *m)
{
    prompter_close(m->prompter);
    m->prompter = NULL;
    engine_close(m->engine);
    m->engine = NULL;
}

/* A failed load leaves nothing behind, also not in the memory account. */
static int load_model(struct pool *p, struct pool_model *m, struct err *e)
{
    uint64_t start = clock_ns(), taken = p->taken_bytes;
    int rc;

    if ((rc = open_engine(p, m, e)) != OK) goto out;
    if ((rc = open_prompter(p, m, e)) != OK) goto out;
    m->load_ms = clock_ms_since(start);
    start = clock_ns();
    if (p->opt.warm && (rc = engine_warm(m->engine, e)) != OK) goto out;
    m->warm_ms = clock_ms_since(start);
out:
    if (rc != OK) {
        close_model(m);
        p->taken_bytes = taken;
        err_wrap(e, "model '%s'", m->id);
    }
    return rc;
}

static void *pool_main(void *arg)
{
    struct pool *p = arg;

    for (int i = 0; i < p->n && !atomic_load(&p->stop); i++) {
        struct pool_model *m = &p->models[i];
        int rc = load_model(p, m, &m->err);

        atomic_store_explicit(&m->state, rc == OK ? POOL_READY : POOL_FAILED, memory_order_release);
        /* pool_drain may have run before the state was stored, and have missed this engine, or
         * after it: then it drains twice, which changes nothing. */
        if (rc == OK && atomic_load(&p->draining)) engine_drain(m->engine);
        if (rc == OK && atomic_load(&p->aborting)) engine_abort(m->engine);
        if (p->opt.changed) p->opt.changed(p->opt.arg);
    }
    return NULL;
}

/* ---- opening and closing ---- */

static int start_pool(struct pool *p, struct err *e)
{
    int rc;

    if (p->opt.n < 1) return err_set(e, E_INVALID, "no model is named");
    if (!(p->models = mem_array((size_t)p->opt.n, sizeof *p->models)))
        return err_nomem(e, "the list of models");
    p->n = p->opt.n;
    for (int i = 0; i < p->n; i++)
        if ((rc = name_model(p, i, e)) != OK) return rc;
    if ((rc = pthread_create(&p->thread, NULL, pool_main, p)) != 0)
        return err_set(e, E_NOMEM, "cannot start the loading thread: %s", strerror(rc));
    p->has_thread = true;
    return OK;
}

int pool_open(struct pool **out, const struct pool_opt *opt, struct err *e)
{
    struct pool *p = mem_new(struct pool);
    int rc;

    if (!p) return err_nomem(e, "the pool of models");
    p->opt = *opt;
    if ((rc = start_pool(p, e)) == OK) *out = p;
    else pool_close(p);
    return rc;
}

void pool_close(struct pool *p)
{
    if (!p) return;
    atomic_store(&p->stop, true);
    if (p->has_thread) pthread_join(p->thread, NULL);
    for (int i = 0; i < p->n; i++) {
        close_model(&p->models[i]);
        mem_free((char *)p->models[i].id);
        mem_free((char *)p->models[i].path);
    }
    mem_free(p->models);
    mem_free(p);
}

/* ---- asking ---- */

int pool_n(const struct pool *p) { return p->n; }
struct pool_model *pool_at(struct pool *p, int i) { return &p->models[i]; }

static int state_of(const struct pool_model *m)
{
    return atomic_load_explicit(&m->state, memory_order_acquire);
}

static int no_model(struct pool *p, struct str id, struct err *e)
{
    struct buf b = { 0 };
    int rc;

    for (int i = 0; i < p->n; i++) buf_printf(&b, "%s'%s'", i ? ", " : "", p->models[i].id);
    rc = err_set(e, E_NOTFOUND, "there is no model '%.*s'; the models are %s",
                 STR_ARG(str_take(id, 100)), buf_cstr(&b));
    buf_release(&b);
    return rc;
}

/* The state is read once: what READY promises was written before it. */
int pool_find(struct pool *p, struct str id, struct pool_model **out, struct err *e)
{
    struct pool_model *m = id.n == 0 ? &p->models[0] : NULL;
    int rc;

    for (int i = 0; i < p->n && !m; i++)
        if (str_is(id, p->models[i].id)) m = &p->models[i];
    if (!m) return no_model(p, id, e);
    switch (state_of(m)) {
    case POOL_READY: *out = m; return OK;
    case POOL_FAILED:
        if (e) *e = m->err;
        return m->err.code ? m->err.code : E_INTERNAL;
    default:
        rc = err_set(e, E_LOADING, "model '%s' is being loaded", m->id);
        if (e) e->retry_ms = 1000;
        return rc;
    }
}

int pool_n_loaded(struct pool *p)
{
    int n = 0;

    for (int i = 0; i < p->n; i++) n += state_of(&p->models[i]) != POOL_LOADING;
    return n;
}

bool pool_is_ready(struct pool *p)
{
    for (int i = 0; i < p->n; i++)
        if (state_of(&p->models[i]) != POOL_READY) return false;
    return true;
}

/* Models that are still waiting to be loaded are not loaded any more. */
void pool_drain(struct pool *p)
{
    atomic_store(&p->stop, true);
    atomic_store(&p->draining, true);
    for (int i = 0; i < p->n; i++)
        if (state_of(&p->models[i]) == POOL_READY) engine_drain(p->models[i].engine);
}

void pool_abort(struct pool *p)
{
    atomic_store(&p->stop, true);
    atomic_store(&p->aborting, true);
    for (int i = 0; i < p->n; i++)
        if (state_of(&p->models[i]) == POOL_READY) engine_abort(p->models[i].engine);
}

bool pool_is_idle(struct pool *p)
{
    for (int i = 0; i < p->n; i++)
        if (state_of(&p->models[i]) == POOL_READY && !engine_is_idle(p->models[i].engine))
            return false;
    return true;
}
