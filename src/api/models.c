/* models.c - GET /v1/models (also GET /models) and GET /v1/models/{id}: OpenAI's members, those that
 * llama-server's router has besides (`status`, `aliases`, `tags`, `architecture`, `source`), and facts
 * of the model in `meta`. The list has the models in Codex's form as well, in `models`. */
#include "api/call.h"

#include "base/jsonw.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "net/http.h"
#include "net/query.h"
#include "pool/pool.h"
#include "pool/registry.h"

#include <stdio.h>
#include <string.h>

const char *models_status_name(enum pool_state s)
{
    static const char *const names[] = { "unloaded",  "loading",  "loaded",
                                         "unloading", "sleeping", "failed" };
    return names[s];
}

static void write_arg(struct jsonw *w, const char *flag, int64_t v)
{
    char text[32];

    snprintf(text, sizeof text, "%lld", (long long)v);
    jsonw_str(w, str_c(flag));
    jsonw_str(w, str_c(text));
}

/* The model's own settings as flags. Its path is not among them: not every key may see it. */
static void write_args(struct jsonw *w, const struct pool_model *m)
{
    const struct model_opt *o = m->entry ? &m->entry->opt : NULL;

    jsonw_key(w, "args"), jsonw_arr(w);
    jsonw_str(w, STR("--alias")), jsonw_str(w, str_c(m->id));
    if (o && model_has(o, MODEL_CTX)) write_arg(w, "--ctx", o->ctx);
    if (o && model_has(o, MODEL_KV_TOKENS)) write_arg(w, "--kv-tokens", o->kv_tokens);
    if (o && model_has(o, MODEL_MAX_SEQS)) write_arg(w, "--max-seqs", o->max_seqs);
    if (o && model_has(o, MODEL_THREADS)) write_arg(w, "--threads", o->threads);
    if (o && model_has(o, MODEL_DEVICE) && o->device)
        jsonw_str(w, STR("--device")), jsonw_str(w, str_c(o->device));
    jsonw_end(w);
}

/* exit_code: of llama-server's process; here 1 for every failure, which `error` and `code` tell. */
static void write_status(struct jsonw *w, struct pool *p, int i)
{
    struct pool_view v;

    pool_view(p, i, &v);
    jsonw_obj(w);
    jsonw_key(w, "value"), jsonw_str(w, str_c(models_status_name(v.state)));
    write_args(w, pool_at(p, i));
    jsonw_key(w, "failed"), jsonw_bool(w, v.state == POOL_FAILED);
    jsonw_key(w, "progress"), jsonw_int(w, v.progress);
    jsonw_key(w, "tier"), jsonw_str(w, str_c(tier_name(v.tier)));
    if (v.state == POOL_FAILED) {
        jsonw_key(w, "exit_code"), jsonw_int(w, 1);
        jsonw_key(w, "code"), jsonw_str(w, str_c(err_name(v.err.code)));
        jsonw_key(w, "error"), jsonw_str(w, str_c(v.err.msg));
    }
    jsonw_end(w);
}

static void write_texts(struct jsonw *w, const char *key, struct str one)
{
    jsonw_key(w, key), jsonw_arr(w), jsonw_str(w, one), jsonw_end(w);
}

/* The members of llama-server's GET /models for one model, loaded or not. */
static void write_router(struct jsonw *w, struct pool *p, int i, const char *task)
{
    static const char *const sources[] = { "flag", "preset", "models_dir", "hub" };
    const struct pool_model *m = pool_at(p, i);
    const char *alias;

    jsonw_key(w, "aliases"), jsonw_arr(w);
    for (int k = 0; (alias = pool_alias(p, i, k)); k++) jsonw_str(w, str_c(alias));
    jsonw_end(w);
    jsonw_key(w, "tags"), jsonw_arr(w), jsonw_end(w);
    jsonw_key(w, "status"), write_status(w, p, i);
    jsonw_key(w, "architecture"), jsonw_obj(w);
    write_texts(w, "input_modalities", STR("text"));
    write_texts(w, "output_modalities",
                strcmp(task, "embed") == 0      ? STR("embeddings")
                : strcmp(task, "classify") == 0 ? STR("scores")
                                                : STR("text"));
    jsonw_end(w);
    jsonw_key(w, "source"), jsonw_str(w, str_c(sources[m->entry ? m->entry->origin : 0]));
    jsonw_key(w, "can_remove"), jsonw_bool(w, false);
    if (m->entry && atomic_load(&m->entry->gone)) jsonw_key(w, "gone"), jsonw_bool(w, true);
}

/* A model that is not loaded has only its state. */
static void write_model(struct jsonw *w, struct pool *pool, int i)
{
    const struct pool_model *m = pool_at(pool, i);
    struct pool_instance *now = pool_acquire(pool, i);
    enum pool_state state = now ? POOL_READY : pool_state(pool, i, NULL);
    struct engine_info info = { .task = "" };

    if (now) pool_info(now, &info);
    jsonw_obj(w);
    jsonw_key(w, "id"), jsonw_str(w, str_c(m->id));
    jsonw_key(w, "object"), jsonw_str(w, STR("model"));
    jsonw_key(w, "created"), jsonw_int(w, m->created);
    jsonw_key(w, "owned_by"), jsonw_str(w, STR("tern"));
    write_router(w, pool, i, info.task);
    jsonw_key(w, "meta"), jsonw_obj(w);
    jsonw_key(w, "state"), jsonw_str(w, str_c(pool_state_name(state)));
    if (now) {
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

/* ---- Codex's form ---- */

/* The fields that Codex reads of a model: it has functions, a shell, and the context of this server. */
static void write_codex(struct jsonw *w, struct pool *pool, int i)
{
    struct pool_instance *now = pool_acquire(pool, i);
    struct engine_info info = { .task = "" };
    struct str id = str_c(pool_at(pool, i)->id);

    if (now) pool_info(now, &info);
    jsonw_obj(w);
    jsonw_key(w, "slug"), jsonw_str(w, id);
    jsonw_key(w, "display_name"), jsonw_str(w, id);
    jsonw_key(w, "description"), jsonw_null(w);
    jsonw_key(w, "default_reasoning_level"), jsonw_null(w);
    jsonw_key(w, "supported_reasoning_levels"), jsonw_arr(w), jsonw_end(w);
    jsonw_key(w, "shell_type"), jsonw_str(w, STR("shell_command"));
    jsonw_key(w, "visibility"), jsonw_str(w, STR("list"));
    jsonw_key(w, "supported_in_api"), jsonw_bool(w, true);
    jsonw_key(w, "priority"), jsonw_int(w, i);
    jsonw_key(w, "upgrade"), jsonw_null(w);
    jsonw_key(w, "base_instructions"), jsonw_str(w, STR(""));
    jsonw_key(w, "supports_reasoning_summaries"), jsonw_bool(w, false);
    jsonw_key(w, "support_verbosity"), jsonw_bool(w, false);
    jsonw_key(w, "default_verbosity"), jsonw_null(w);
    jsonw_key(w, "apply_patch_tool_type"), jsonw_null(w);
    jsonw_key(w, "truncation_policy"), jsonw_obj(w);
    jsonw_key(w, "mode"), jsonw_str(w, STR("bytes"));
    jsonw_key(w, "limit"), jsonw_int(w, 10000);
    jsonw_end(w);
    jsonw_key(w, "supports_parallel_tool_calls"), jsonw_bool(w, true);
    if (now) {
        jsonw_key(w, "context_window"), jsonw_int(w, info.opt.n_ctx);
        jsonw_key(w, "max_context_window"), jsonw_int(w, info.opt.n_ctx);
    }
    jsonw_key(w, "experimental_supported_tools"), jsonw_arr(w), jsonw_end(w);
    write_texts(w, "input_modalities", STR("text"));
    jsonw_end(w);
    pool_release(now);
}

void api_write_model(struct api *a, struct jsonw *w, int i) { write_model(w, a->opt.pool, i); }

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
    jsonw_key(&w, "models"), jsonw_arr(&w);
    for (int i = 0; i < pool_n(p); i++)
        if (pool_is_listed(p, i)) write_codex(&w, p, i);
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
    struct str prefix = STR("/models/"), id = http_path(q);
    struct call *c = call_open(a, q, who, "/v1/models/{id}");
    struct jsonw w = { 0 };
    struct err e = { 0 };
    int i;

    if (!c) return;
    w.out = &c->out;
    if (str_starts(id, STR("/v1/"))) id = str_skip(id, 3);
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
