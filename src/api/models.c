/* models.c - GET /v1/models (also GET /models) and GET /v1/models/{id}: OpenAI's members, the state in
 * the words of llama-server in `status`, and facts of the model in `meta`. */
#include "api/call.h"

#include "base/jsonw.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "net/http.h"
#include "net/query.h"
#include "pool/pool.h"

void models_write_status(struct jsonw *w, struct pool *p, int i)
{
    static const char *const values[] = { "unloaded",  "loading",  "loaded",
                                          "unloading", "sleeping", "failed" };
    struct pool_view v;

    pool_view(p, i, &v);
    jsonw_obj(w);
    jsonw_key(w, "value"), jsonw_str(w, str_c(values[v.state]));
    jsonw_key(w, "failed"), jsonw_bool(w, v.state == POOL_FAILED);
    jsonw_key(w, "progress"), jsonw_int(w, v.progress);
    jsonw_key(w, "tier"), jsonw_str(w, str_c(tier_name(v.tier)));
    if (v.state == POOL_FAILED) jsonw_key(w, "error"), jsonw_str(w, str_c(v.err.msg));
    jsonw_end(w);
}

/* A model that is not loaded has only its state. */
static void write_model(struct jsonw *w, struct pool *pool, int i)
{
    const struct pool_model *m = pool_at(pool, i);
    struct pool_instance *now = pool_acquire(pool, i);
    enum pool_state state = now ? POOL_READY : pool_state(pool, i, NULL);
    struct engine_info info;

    jsonw_obj(w);
    jsonw_key(w, "id"), jsonw_str(w, str_c(m->id));
    jsonw_key(w, "object"), jsonw_str(w, STR("model"));
    jsonw_key(w, "created"), jsonw_int(w, m->created);
    jsonw_key(w, "owned_by"), jsonw_str(w, STR("tern"));
    jsonw_key(w, "status"), models_write_status(w, pool, i);
    jsonw_key(w, "meta"), jsonw_obj(w);
    jsonw_key(w, "state"), jsonw_str(w, str_c(pool_state_name(state)));
    if (now) {
        pool_info(now, &info);
        jsonw_key(w, "task"), jsonw_str(w, str_c(info.task));
        jsonw_key(w, "context"), jsonw_int(w, info.opt.n_ctx);
        jsonw_key(w, "vocab"), jsonw_int(w, info.n_vocab);
        jsonw_key(w, "parameters"), jsonw_int(w, (int64_t)info.n_params);
        jsonw_key(w, "bytes"), jsonw_int(w, (int64_t)info.weight_bytes);
    }
    jsonw_end(w);
    jsonw_end(w);
    pool_release(now);
}

static int send_list(struct call *c, struct err *e)
{
    struct pool *p = c->api->opt.pool;
    struct jsonw w = { .out = &c->out };

    (void)e;
    jsonw_obj(&w);
    jsonw_key(&w, "object"), jsonw_str(&w, STR("list"));
    jsonw_key(&w, "data"), jsonw_arr(&w);
    for (int i = 0; i < pool_n(p); i++)
        if (pool_is_listed(p, i)) write_model(&w, p, i);
    jsonw_end(&w);
    jsonw_end(&w);
    call_send_body(c, 200);
    return OK;
}

/* On a request thread: reading a folder may take a while. */
static int rescan(struct call *c, struct err *e) { return pool_rescan(c->api->opt.pool, NULL, e); }

/* ?reload=1, or any other value: the folder of models is read again before, beside large bodies, since
 * it may take as long as one. */
void api_models(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { rescan, send_list };
    struct call *c = call_open(a, q, who, "/v1/models");
    struct str value;
    struct err e = { 0 };
    int rc;

    if (!c) return;
    if (query_find(http_query(q), "reload", &value))
        rc = call_hand_over(c, &job, SIZE_MAX, true, &e);
    else rc = send_list(c, &e);
    if (rc != OK) call_fail(c, &e, NULL);
    call_end_handler(c);
}

void api_model(struct api *a, struct http_req *q, const struct api_who *who)
{
    struct str prefix = STR("/v1/models/"), id = http_path(q);
    struct call *c = call_open(a, q, who, "/v1/models/{id}");
    struct jsonw w = { 0 };
    struct err e = { 0 };
    int i;

    if (!c) return;
    w.out = &c->out;
    id = str_starts(id, prefix) ? str_skip(id, prefix.n) : STR("");
    if (id.n && (i = pool_index(a->opt.pool, id)) >= 0) {
        write_model(&w, a->opt.pool, i);
        call_send_body(c, 200);
        goto out;
    }
    err_set(&e, E_NOTFOUND,
            "model '%.*s' not found; GET /v1/models lists the models of this server",
            STR_ARG(str_take(id, 100)));
    call_fail(c, &e, "model");
out:
    call_end_handler(c);
}
