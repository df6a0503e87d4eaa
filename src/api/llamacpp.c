/* llamacpp.c - routes of llama-server that front-ends and editors call: GET /props and /slots, POST
 * /apply-template, and POST /v1/chat/completions/input_tokens. native.c has /completion and /infill. */
#include "api/call.h"

#include "api/fail.h"
#include "base/jsonw.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "net/http.h"
#include "net/query.h"
#include "pool/pool.h"
#include "pool/prompter.h"

static void write_str(struct jsonw *w, const char *key, struct str s)
{
    jsonw_key(w, key), jsonw_str(w, s);
}

/* ---- a chat's prompt, and its number of tokens ---- */

static int send_out(struct call *c, struct err *e)
{
    (void)e;
    call_send_body(c, 200);
    return OK;
}

static int count_chat(struct call *c, struct err *e)
{
    struct jsonw w = { .out = &c->out };
    int rc = call_read_body(c, BODY_CHAT, e);

    if (rc == OK) rc = call_prepare_chat(c, e);
    if (rc != OK) return rc;
    jsonw_obj(&w);
    write_str(&w, "object", STR("chat.completion.input_tokens"));
    jsonw_key(&w, "input_tokens"), jsonw_int(&w, c->prompt_tokens[0]);
    jsonw_end(&w);
    return OK;
}

void api_count_chat(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { count_chat, send_out };

    call_begin(a, q, who, "/v1/chat/completions/input_tokens", &job);
}

static int render_chat(struct call *c, struct err *e)
{
    struct jsonw w = { .out = &c->out };
    int rc = call_read_body(c, BODY_CHAT, e);

    c->keeps_prompt = true;
    if (rc == OK) rc = call_prepare_chat(c, e);
    if (rc != OK) return rc;
    jsonw_obj(&w);
    write_str(&w, "prompt", c->prompt_text);
    jsonw_end(&w);
    return OK;
}

void api_apply_template(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { render_chat, send_out };

    call_begin(a, q, who, "/apply-template", &job);
}

/* ---- what front-ends ask first ---- */

/* The model that ?model= names, or the first. -1: there is none of this name. */
static int find_queried(struct pool *p, struct str query)
{
    struct str name;
    char text[600] = "";

    if (query_find(query, "model", &name) && !query_decode(name, text, sizeof text)) return -1;
    return pool_index(p, str_c(text));
}

static struct call *open_about(struct api *a, struct http_req *q, const struct api_who *who,
                               const char *route, int *index)
{
    struct call *c = call_open(a, q, who, route);
    struct err e = { 0 };

    if (!c || (*index = find_queried(a->opt.pool, http_query(q))) >= 0) return c;
    err_set(&e, E_NOTFOUND, "there is no such model; GET /models lists the models");
    call_fail(c, &e, "model");
    call_end_handler(c);
    return NULL;
}

void api_props(struct api *a, struct http_req *q, const struct api_who *who)
{
    int i;
    struct call *c = open_about(a, q, who, "/props", &i);
    struct engine_info info = { .task = "" };
    struct pool_instance *m;
    struct jsonw w = { 0 };

    if (!c) return;
    m = pool_acquire(a->opt.pool, i);
    if (m) pool_info(m, &info);
    w.out = &c->out;
    jsonw_obj(&w);
    jsonw_key(&w, "default_generation_settings"), jsonw_obj(&w);
    jsonw_key(&w, "n_ctx"), jsonw_int(&w, info.opt.n_ctx);
    jsonw_end(&w);
    jsonw_key(&w, "total_slots"), jsonw_int(&w, info.opt.max_seqs);
    write_str(&w, "model_alias", str_c(pool_at(a->opt.pool, i)->id));
    write_str(&w, "model_path", str_c(pool_at(a->opt.pool, i)->id));
    write_str(&w, "chat_template", m ? pool_template(m) : STR(""));
    jsonw_key(&w, "modalities"), jsonw_obj(&w);
    jsonw_key(&w, "vision"), jsonw_bool(&w, false);
    jsonw_key(&w, "audio"), jsonw_bool(&w, false);
    jsonw_end(&w);
    write_str(&w, "build_info", STR("tern " TERN_VERSION));
    jsonw_key(&w, "is_sleeping"), jsonw_bool(&w, pool_state(a->opt.pool, i, NULL) == POOL_SLEEPING);
    jsonw_end(&w);
    pool_release(m);
    call_send_body(c, 200);
    call_end_handler(c);
}

/* tern has no slots: the sequences that a model can run at once stand for them, those of this tenant's
 * calls in flight first. */
void api_slots(struct api *a, struct http_req *q, const struct api_who *who)
{
    int i, n = 0;
    struct call *c = open_about(a, q, who, "/slots", &i);
    struct engine_info info = { .task = "" };
    struct pool_instance *m;
    struct jsonw w = { 0 };

    if (!c) return;
    m = pool_acquire(a->opt.pool, i);
    if (m) pool_info(m, &info);
    for (const struct call *x = a->calls; x; x = x->next)
        if (x != c && !x->away && x->model == m && (who->admin || x->who.tenant == who->tenant))
            n += x->n_running;
    w.out = &c->out;
    jsonw_arr(&w);
    for (int k = 0; m && k < info.opt.max_seqs; k++) {
        jsonw_obj(&w);
        jsonw_key(&w, "id"), jsonw_int(&w, k);
        jsonw_key(&w, "n_ctx"), jsonw_int(&w, info.opt.n_ctx);
        jsonw_key(&w, "is_processing"), jsonw_bool(&w, k < n);
        jsonw_end(&w);
    }
    jsonw_end(&w);
    pool_release(m);
    call_send_body(c, 200);
    call_end_handler(c);
}
