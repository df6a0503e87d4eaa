/* lifecycle.c - loading and unloading by request, in the words of several servers:
 *
 *     llama-server  POST /models/load, /models/unload {"model"}   GET /models   GET /models/sse
 *     LM Studio     GET /api/v1/models, POST .../load {"model"}, .../unload {"instance_id"}
 *     vLLM          POST /sleep?level=1, /wake_up?tags=weights   GET /is_sleeping
 *     tern          POST /models/verify {"model"}: are its files sound
 *
 * Each is answered when it is done, or with the error of the load. The call waits in the pool, as one
 * whose model is not loaded does (prepare.c). */
#include "api/call.h"

#include "api/params_impl.h"
#include "base/jsonw.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "net/http.h"
#include "net/query.h"
#include "pool/modelcheck.h"
#include "pool/pool.h"

#include <stdio.h>
#include <string.h>

/* ---- which model ---- */

/* "name" or, as LM Studio has it for a loaded model, "name@generation". *generation 0: any. */
static int find_index(struct pool *p, struct str name, uint32_t *generation)
{
    int i = pool_index(p, name.n ? name : STR("\n"));
    int64_t n;

    *generation = 0;
    if (i >= 0) return i;
    for (size_t at = name.n; at-- > 0;) {
        if (name.p[at] != '@') continue;
        if (!str_to_i64(str_skip(name, at + 1), &n) || n < 1 || n > UINT32_MAX) return -1;
        *generation = (uint32_t)n;
        return pool_index(p, str_take(name, at));
    }
    return -1;
}

/* How long it stays after it was loaded: "ttl" of LM Studio, "keep_alive" of Ollama. */
static int read_keep(struct call *c, struct body_reader *r)
{
    static const char *const names[] = { "ttl", "keep_alive" };
    const json_t *v;
    int rc = OK;

    for (int k = 0; k < 2 && rc == OK; k++)
        if ((v = json_object_get(c->p.root, names[k])) && !json_is_null(v))
            rc = params_read_keep_alive(&c->p, r, names[k], v);
    return rc;
}

/* The model that the body names by "model", "instance_id" or "id". */
static int read_model(struct call *c, int *index, struct err *e)
{
    static const char *const names[] = { "model", "instance_id", "id" };
    struct body_reader r = { .arena = &c->arena, .err = e, .param = c->p.param };
    struct pool_instance *m = NULL;
    const json_t *v = NULL;
    uint32_t generation;
    int rc, k = 0;

    if ((rc = body_parse(&c->p.root, http_body(c->q), NULL, e)) != OK) return rc;
    while (k < 3 && !(v = json_object_get(c->p.root, names[k]))) k++;
    if (!json_is_string(v)) return body_refuse(&r, "model", "is required: the id of a model");
    *index = find_index(c->api->opt.pool, body_str(v), &generation);
    call_blame(c, "%s", names[k]);
    if (*index < 0)
        return err_set(e, E_NOTFOUND, "there is no model '%.*s'; GET /models lists the models",
                       STR_ARG(str_take(body_str(v), 100)));
    if ((rc = read_keep(c, &r)) != OK || !generation) return rc;
    rc = pool_acquire_generation(c->api->opt.pool, *index, generation, &m, e);
    pool_release(m);
    return rc;
}

/* Opens the call of a route with a body; NULL: it is answered. */
static struct call *begin(struct api *a, struct http_req *q, const struct api_who *who,
                          const char *route, int *index)
{
    struct call *c = call_open(a, q, who, route);
    struct err e = { 0 };

    if (!c) return NULL;
    call_borrow_request(c);
    if (read_model(c, index, &e) == OK) {
        call_blame(c, "%s", "");
        c->model_id = pool_at(a->opt.pool, *index)->id;
        return c;
    }
    call_fail(c, &e, c->p.param);
    call_end_handler(c);
    return NULL;
}

/* ---- load and unload ---- */

/* The model that the call has loaded stays as long as the body says. */
static void set_keep(struct call *c)
{
    if (c->model && c->p.has_keep) pool_touch(c->model, c->p.keep_ms);
}

static int send_success(struct call *c, struct err *e)
{
    struct jsonw w = { .out = &c->out };

    (void)e;
    set_keep(c);
    jsonw_obj(&w);
    jsonw_key(&w, "success"), jsonw_bool(&w, true);
    jsonw_end(&w);
    call_send_body(c, 200);
    return OK;
}

/* ---- LM Studio's forms ---- */

static struct str type_of(const struct engine_info *i)
{
    return strcmp(i->task, "generate") == 0 ? STR("llm") : STR("embedding");
}

static void write_instance_id(struct jsonw *w, const char *key, const struct pool_instance *m)
{
    char text[600];

    snprintf(text, sizeof text, "%s@%u", m->id, m->generation);
    jsonw_key(w, key), jsonw_str(w, str_c(text));
}

static void write_config(struct jsonw *w, const char *key, const struct engine_info *i)
{
    jsonw_key(w, key), jsonw_obj(w);
    jsonw_key(w, "context_length"), jsonw_int(w, i->opt.n_ctx);
    jsonw_key(w, "eval_batch_size"), jsonw_int(w, i->opt.max_batch);
    jsonw_key(w, "parallel"), jsonw_int(w, i->opt.max_seqs);
    jsonw_end(w);
}

static int send_loaded(struct call *c, struct err *e)
{
    struct jsonw w = { .out = &c->out };
    struct engine_info i;

    (void)e;
    set_keep(c);
    pool_info(c->model, &i);
    jsonw_obj(&w);
    jsonw_key(&w, "type"), jsonw_str(&w, type_of(&i));
    write_instance_id(&w, "instance_id", c->model);
    jsonw_key(&w, "load_time_seconds"),
        jsonw_num(&w, (c->model->load_ms + c->model->warm_ms) / 1e3);
    jsonw_key(&w, "status"), jsonw_str(&w, STR("loaded"));
    if (json_is_true(json_object_get(c->p.root, "echo_load_config")))
        write_config(&w, "load_config", &i);
    jsonw_end(&w);
    call_send_body(c, 200);
    return OK;
}

static void write_listed(struct jsonw *w, struct pool *p, int i)
{
    struct pool_instance *m = pool_acquire(p, i);
    struct engine_info info = { .task = "generate" };

    if (m) pool_info(m, &info);
    jsonw_obj(w);
    jsonw_key(w, "type"), jsonw_str(w, type_of(&info));
    jsonw_key(w, "key"), jsonw_str(w, str_c(pool_at(p, i)->id));
    jsonw_key(w, "display_name"), jsonw_str(w, str_c(pool_at(p, i)->id));
    if (m) {
        jsonw_key(w, "architecture"), jsonw_str(w, str_c(info.arch));
        jsonw_key(w, "size_bytes"), jsonw_int(w, (int64_t)info.weight_bytes);
        jsonw_key(w, "max_context_length"), jsonw_int(w, info.opt.n_ctx);
    }
    jsonw_key(w, "loaded_instances"), jsonw_arr(w);
    if (m) {
        jsonw_obj(w);
        write_instance_id(w, "id", m);
        write_config(w, "config", &info);
        jsonw_end(w);
    }
    jsonw_end(w);
    jsonw_end(w);
    pool_release(m);
}

void api_list_instances(struct api *a, struct http_req *q, const struct api_who *who)
{
    struct call *c = call_open(a, q, who, "/api/v1/models");
    struct jsonw w = { 0 };

    if (!c) return;
    w.out = &c->out;
    jsonw_obj(&w);
    jsonw_key(&w, "models"), jsonw_arr(&w);
    for (int i = 0; i < pool_n(a->opt.pool); i++)
        if (pool_is_listed(a->opt.pool, i)) write_listed(&w, a->opt.pool, i);
    jsonw_end(&w);
    jsonw_end(&w);
    call_send_body(c, 200);
    call_end_handler(c);
}

static int send_unloaded(struct call *c, struct err *e)
{
    struct jsonw w = { .out = &c->out };

    (void)e;
    jsonw_obj(&w);
    jsonw_key(&w, "instance_id"), jsonw_str(&w, str_c(c->model_id));
    jsonw_end(&w);
    call_send_body(c, 200);
    return OK;
}

static const struct call_job success = { NULL, send_success };

void api_load(struct api *a, struct http_req *q, const struct api_who *who)
{
    int i;
    struct call *c = begin(a, q, who, "/models/load", &i);

    if (!c) return;
    call_load(c, i, &success);
    call_end_handler(c);
}

void api_unload(struct api *a, struct http_req *q, const struct api_who *who)
{
    int i;
    struct call *c = begin(a, q, who, "/models/unload", &i);

    if (!c) return;
    call_unload(c, i, false, &success);
    call_end_handler(c);
}

/* ---- verify ---- */

enum { VERIFY_BYTES = 64 << 10 }; /* as a body of so many bytes: the second lane */

/* c->state */
struct verify {
    int index;
    struct buf found; /* an array of texts, being written */
    struct jsonw w;   /* into found */
};

static void add_found(void *arg, const char *text)
{
    struct verify *v = arg;

    jsonw_str(&v->w, str_c(text));
}

/* Damage of the files is the answer, and no error of the request. */
static int verify_files(struct call *c, struct err *e)
{
    struct verify *v = c->state;
    struct modelcheck m = { .stop = &c->work.stop, .found = add_found, .arg = v };
    struct jsonw w = { .out = &c->out };
    int rc;

    if (atomic_exchange(&c->api->verifies, 1))
        return err_set(e, E_QUEUE_FULL, "another model is being verified; one at a time");
    v->w.out = &v->found;
    jsonw_arr(&v->w);
    rc = modelcheck_pool(&m, c->api->opt.pool, v->index, e);
    jsonw_end(&v->w);
    atomic_store(&c->api->verifies, 0);
    if (rc != E_CANCELLED && rc != E_NOMEM) {
        jsonw_obj(&w);
        jsonw_key(&w, "model"), jsonw_str(&w, str_c(c->model_id));
        jsonw_key(&w, "path"), jsonw_str(&w, str_c(pool_at(c->api->opt.pool, v->index)->path));
        jsonw_key(&w, "sound"), jsonw_bool(&w, rc == OK);
        jsonw_key(&w, "tensors"), jsonw_int(&w, (int64_t)m.n_tensors);
        jsonw_key(&w, "bytes"), jsonw_int(&w, (int64_t)m.bytes);
        jsonw_key(&w, "not_finite"), jsonw_raw(&w, buf_str(&v->found));
        jsonw_key(&w, "error"), jsonw_str(&w, str_c(rc == OK ? "" : e->msg));
        jsonw_end(&w);
        rc = OK;
    }
    buf_release(&v->found);
    return rc;
}

static int send_verified(struct call *c, struct err *e)
{
    (void)e;
    call_send_body(c, 200);
    return OK;
}

void api_verify(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { verify_files, send_verified };
    struct err e = { 0 };
    struct verify *v;
    int i;
    struct call *c = begin(a, q, who, "/models/verify", &i);

    if (!c) return;
    c->local = true; /* an isolated model's files are here, too */
    v = c->state = arena_new(&c->arena, struct verify);
    if (!v) err_nomem(&e, "a model that is to be verified");
    else v->index = i;
    if (!v || call_hand_over(c, &job, VERIFY_BYTES, true, &e) != OK) call_fail(c, &e, NULL);
    call_end_handler(c);
}

void api_load_instance(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { NULL, send_loaded };
    int i;
    struct call *c = begin(a, q, who, "/api/v1/models/load", &i);

    if (!c) return;
    call_load(c, i, &job);
    call_end_handler(c);
}

void api_unload_instance(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { NULL, send_unloaded };
    int i;
    struct call *c = begin(a, q, who, "/api/v1/models/unload", &i);

    if (!c) return;
    call_unload(c, i, false, &job);
    call_end_handler(c);
}

/* ---- sleeping ---- */

/* The first model from `from` on in that state; -1: none. */
static int find_state(struct pool *p, enum pool_state state, int from)
{
    for (int i = from; i < pool_n(p); i++)
        if (pool_state(p, i, NULL) == state) return i;
    return -1;
}

static int sleep_next(struct call *c, struct err *e);
static int wake_next(struct call *c, struct err *e);
static const struct call_job sleeper = { NULL, sleep_next }, waker = { NULL, wake_next };

/* One after the other, each once: a model that requests have loaded again meanwhile stays. */
static int sleep_next(struct call *c, struct err *e)
{
    int i = find_state(c->api->opt.pool, POOL_READY, c->next_model);

    if (i < 0) return send_success(c, e);
    c->next_model = i + 1;
    call_unload(c, i, true, &sleeper);
    return OK;
}

static int wake_next(struct call *c, struct err *e)
{
    int i = find_state(c->api->opt.pool, POOL_SLEEPING, c->next_model);

    pool_release(c->model);
    c->model = NULL;
    if (i < 0) return send_success(c, e);
    c->next_model = i + 1;
    call_load(c, i, &waker);
    return OK;
}

/* The model that ?model= names; *index -1: the query names none. */
static int find_queried(struct pool *p, struct str query, int *index, struct err *e)
{
    struct str name;
    char text[600];

    *index = -1;
    if (!query_find(query, "model", &name)) return OK;
    if (query_decode(name, text, sizeof text) && text[0]) *index = pool_index(p, str_c(text));
    if (*index >= 0) return OK;
    return err_set(e, E_NOTFOUND, "there is no model '%.*s'; GET /models lists the models",
                   STR_ARG(str_take(name, 100)));
}

/* ?level=1 or 2: both give the weights and the KV cache back. ?tags=weights, kv_cache: both come back
 * together. Other values are refused. */
static int check_query(struct call *c, struct str query, struct err *e)
{
    struct str all = query, v;

    if (query_find(query, "level", &v) && !query_is(v, "1") && !query_is(v, "2")) {
        call_blame(c, "%s", "level");
        return err_set(e, E_INVALID, "level must be 1 or 2");
    }
    while (query_next(&all, "tags", &v)) {
        if (query_is(v, "weights") || query_is(v, "kv_cache")) continue;
        call_blame(c, "%s", "tags");
        return err_set(e, E_INVALID, "tags must be weights or kv_cache");
    }
    return OK;
}

/* Both begin and end without a body. One model if the query names it, else all. */
static void run_all(struct api *a, struct http_req *q, const struct api_who *who, const char *route,
                    bool sleep)
{
    static const struct call_job done = { NULL, send_success };
    struct call *c = call_open(a, q, who, route);
    struct err e = { 0 };
    int i, rc;

    if (!c) return;
    call_borrow_request(c);
    if (check_query(c, http_query(q), &e) != OK) call_fail(c, &e, c->p.param);
    else if ((rc = find_queried(a->opt.pool, http_query(q), &i, &e)) != OK)
        call_fail(c, &e, "model");
    else if (i >= 0 && sleep) call_unload(c, i, true, &done);
    else if (i >= 0) call_load(c, i, &done);
    else if ((rc = sleep ? sleep_next(c, &e) : wake_next(c, &e)) != OK) call_fail(c, &e, NULL);
    call_end_handler(c);
}

void api_sleep(struct api *a, struct http_req *q, const struct api_who *who)
{
    run_all(a, q, who, "/sleep", true);
}

void api_wake_up(struct api *a, struct http_req *q, const struct api_who *who)
{
    run_all(a, q, who, "/wake_up", false);
}

/* Does the model of the query sleep? Without one: is there a model that sleeps, and none is READY? */
void api_is_sleeping(struct api *a, struct http_req *q, const struct api_who *who)
{
    struct call *c = call_open(a, q, who, "/is_sleeping");
    struct jsonw w = { 0 };
    struct pool *p = a->opt.pool;
    struct err e = { 0 };
    bool sleeps;
    int i;

    if (!c) return;
    if (find_queried(p, http_query(q), &i, &e) != OK) {
        call_fail(c, &e, "model");
        call_end_handler(c);
        return;
    }
    sleeps = i >= 0 ? pool_state(p, i, NULL) == POOL_SLEEPING
                    : find_state(p, POOL_SLEEPING, 0) >= 0 && find_state(p, POOL_READY, 0) < 0;
    w.out = &c->out;
    jsonw_obj(&w);
    jsonw_key(&w, "is_sleeping"), jsonw_bool(&w, sleeps);
    jsonw_end(&w);
    call_send_body(c, 200);
    call_end_handler(c);
}
