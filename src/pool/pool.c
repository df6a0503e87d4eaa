#include "pool/pool.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/recommend.h"
#include "pool/budget.h"
#include "pool/template.h"

#include <ctype.h>
#include <pthread.h>
#include <strings.h>
#include <sys/stat.h>

struct pool {
    struct pool_model *models; /* [n] */
    int n;
    struct pool_opt opt;
    pthread_t thread;
    bool has_thread;
    atomic_bool stop; /* load no more */
    atomic_bool draining, aborting;
    uint64_t taken_bytes; /* of models loaded; the loading thread's */
};

/* "m-00001-of-00003" → "m": a model in several files has one name. */
static size_t without_part(const char *s, size_t n)
{
    if (n < 16 || s[n - 15] != '-' || strncmp(s + n - 9, "-of-", 4) != 0) return n;
    for (size_t i = 0; i < 5; i++)
        if (!isdigit((unsigned char)s[n - 14 + i]) || !isdigit((unsigned char)s[n - 5 + i]))
            return n;
    return n - 15;
}

/* x/onnx/model.onnx is x, x/model_quantized.onnx is x_quantized. NULL: no such name. From
 * mem_alloc. */
static char *onnx_id(char *path)
{
    char *base = (char *)path_base(path), *id;
    size_t n = strlen(base);
    struct str rest;

    if (n < 10 || strncmp(base, "model", 5) != 0 || strcmp(base + n - 5, ".onnx") != 0 ||
        base - path < 2)
        return NULL;
    rest = str_of(base + 5, n - 10);
    base[-1] = 0;
    if (strcmp(path_base(path), "onnx") == 0 && path_base(path) - path >= 2)
        ((char *)path_base(path))[-1] = 0;
    n = strlen(path_base(path));
    id = mem_alloc(n + rest.n + 1);
    memcpy(id, path_base(path), n);
    memcpy(id + n, rest.p, rest.n);
    return id;
}

/* File or folder name; a folder's may have dots, so only what we know is taken off. From mem_alloc.
 */
static char *id_of(const char *path)
{
    static const char *const ends[] = { ".gguf", ".safetensors", ".onnx" };
    char *copy = mem_strdup(path), *id;
    size_t n = strlen(copy);
    const char *base;

    while (n > 1 && copy[n - 1] == '/') copy[--n] = 0;
    if ((id = onnx_id(copy))) goto out;
    base = path_base(copy);
    n = strlen(base);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t m = strlen(ends[i]);
        if (n > m && strcasecmp(base + n - m, ends[i]) == 0) {
            n = without_part(base, n - m);
            break;
        }
    }
    id = mem_alloc(n + 1);
    memcpy(id, base, n);
out:
    mem_free(copy);
    return id;
}

static int name_models(struct pool *p, struct err *e)
{
    for (int i = 0; i < p->n; i++) {
        struct pool_model *m = &p->models[i];
        const char *alias = p->opt.aliases ? p->opt.aliases[i] : NULL;
        struct stat st;

        m->path = mem_strdup(p->opt.paths[i]);
        m->id = alias && *alias ? mem_strdup(alias) : id_of(m->path);
        if (stat(m->path, &st) != 0)
            return err_set(e, E_NOTFOUND, "model '%s': there is no such file", m->path);
        m->created = (int64_t)st.st_mtime;
        for (int j = 0; j < i; j++)
            if (strcmp(p->models[j].id, m->id) == 0)
                return err_set(e, E_INVALID,
                               "models '%s' and '%s' are both called '%s': give one an alias",
                               p->models[j].path, m->path, m->id);
    }
    return OK;
}

/* Beforehand by estimate; once it is open, by what it took. */
static int check_budget(struct pool *p, struct pool_model *m, bool before, struct err *e)
{
    struct engine_info info;
    struct budget b;
    int rc;

    if (before) {
        if (p->opt.memory_limit == 0) return OK;
        if ((rc = budget_plan(&b, m->path, &p->opt.engine, e)) != OK) return rc;
        return budget_check(&b, p->taken_bytes, p->opt.memory_limit, e);
    }
    engine_info(m->engine, &info);
    b = (struct budget){ info.weight_bytes, info.kv_bytes, info.scratch_bytes };
    if ((rc = budget_check(&b, p->taken_bytes, p->opt.memory_limit, e)) != OK) return rc;
    p->taken_bytes += budget_total(&b);
    return OK;
}

static int read_defaults(struct pool *p, struct pool_model *m, struct err *e)
{
    const struct tokenizer *tok = engine_tokenizer(m->engine);
    struct engine_info info;

    engine_info(m->engine, &info);
    m->form = tok ? chatform_of(tok) : CHAT_NONE;
    m->sample = sample_defaults();
    sample_recommended(&m->sample, info.source);
    return tok ? template_open(&m->chat, tok, p->opt.chat_template, e) : OK;
}

static int load(struct pool *p, struct pool_model *m, struct err *e)
{
    uint64_t start = clock_ns();
    int rc;

    if ((rc = check_budget(p, m, true, e)) != OK) goto out;
    if ((rc = engine_open(&m->engine, m->path, &p->opt.engine, e)) != OK) goto out;
    if ((rc = check_budget(p, m, false, e)) != OK) goto out;
    if ((rc = read_defaults(p, m, e)) != OK) goto out;
    m->load_ms = clock_ms_since(start);
    start = clock_ns();
    if (p->opt.warm && (rc = engine_warm(m->engine, e)) != OK) goto out;
    m->warm_ms = clock_ms_since(start);
out:
    if (rc != OK) {
        chat_template_close(m->chat);
        m->chat = NULL;
        engine_close(m->engine);
        m->engine = NULL;
        err_wrap(e, "model '%s'", m->id);
    }
    return rc;
}

static void *pool_main(void *arg)
{
    struct pool *p = arg;

    for (int i = 0; i < p->n && !atomic_load(&p->stop); i++) {
        struct pool_model *m = &p->models[i];
        int rc = load(p, m, &m->err);

        atomic_store_explicit(&m->state, rc == OK ? POOL_READY : POOL_FAILED, memory_order_release);
        /* Whoever set these before saw no engine here, or sees it now: both is fine. */
        if (rc == OK && atomic_load(&p->draining)) engine_drain(m->engine);
        if (rc == OK && atomic_load(&p->aborting)) engine_abort(m->engine);
        if (p->opt.changed) p->opt.changed(p->opt.arg);
    }
    return NULL;
}

int pool_open(struct pool **out, const struct pool_opt *opt, struct err *e)
{
    struct pool *p = mem_new(struct pool);
    int rc;

    if (opt->n < 1) {
        rc = err_set(e, E_INVALID, "there is no model to serve");
        goto out;
    }
    p->opt = *opt;
    p->n = opt->n;
    p->models = mem_array((size_t)p->n, sizeof *p->models);
    if ((rc = name_models(p, e)) != OK) goto out;
    if ((rc = pthread_create(&p->thread, NULL, pool_main, p)) != 0) {
        rc = err_set(e, E_NOMEM, "cannot start the loading thread: %s", strerror(rc));
        goto out;
    }
    p->has_thread = true;
    *out = p;
    p = NULL;
out:
    pool_close(p);
    return rc;
}

void pool_close(struct pool *p)
{
    if (!p) return;
    atomic_store(&p->stop, true);
    if (p->has_thread) pthread_join(p->thread, NULL);
    for (int i = 0; i < p->n && p->models; i++) {
        chat_template_close(p->models[i].chat);
        engine_close(p->models[i].engine);
        mem_free((char *)p->models[i].id);
        mem_free((char *)p->models[i].path);
    }
    mem_free(p->models);
    mem_free(p);
}

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
    rc = err_set(e, E_NOTFOUND, "there is no model '%.*s' here; there is %s",
                 STR_ARG(str_take(id, 100)), buf_cstr(&b));
    buf_release(&b);
    return rc;
}

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
