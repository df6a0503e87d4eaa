/* ollama_manage.c - Ollama's routes that change the list of models: DELETE /api/delete, POST /api/copy.
 * POST /api/pull is the server's (server/pulls.c).
 *
 * A copy is another name of a model until the server ends. Deleting a copy takes the name away; deleting
 * a model removes its files from the Hugging Face cache, as `tern rm` does. Files that the operator has
 * put elsewhere are never removed. */
#include "api/ollama_impl.h"

#include "net/http.h"
#include "pool/pool.h"

#include <string.h>

/* Ollama answers both with an empty body. */
static int send_empty(struct call *c, struct err *e)
{
    (void)e;
    c->status = http_reply(c->q, 200, "application/json", "", 0);
    c->q = NULL;
    return OK;
}

/* ---- delete ---- */

/* On a request thread: the cache is read, and files may be large. The model is unloaded. */
static int remove_files(struct call *c, struct err *e)
{
    return pool_remove_hub(c->api->opt.pool, c->next_model, e);
}

static int check_files(struct call *c, struct err *e)
{
    return pool_check_hub(c->api->opt.pool, c->next_model, e);
}

/* Calls that run go on; what asks for the model meanwhile loads it again, and keeps its files open. */
static int unload_and_remove(struct call *c, struct err *e)
{
    static const struct call_job job = { remove_files, send_empty };

    (void)e;
    call_unload(c, c->next_model, false, &job);
    return OK;
}

void api_ollama_delete(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { check_files, unload_and_remove };
    struct call *c = call_open(a, q, who, "/api/delete");
    struct err e = { 0 };
    struct str name;
    int rc;

    if (!c) return;
    c->local = true;
    rc = ollama_read_model(c, &name, &c->next_model, &e);
    if (rc == OK && pool_drop_copy(a->opt.pool, name)) rc = send_empty(c, &e);
    else if (rc == OK) rc = call_hand_over(c, &job, SIZE_MAX, true, &e);
    if (rc != OK) call_fail(c, &e, c->p.param);
    call_end_handler(c);
}

/* ---- copy ---- */

static int copy_model(struct call *c, struct err *e)
{
    struct body_reader r = { .arena = &c->arena, .err = e, .param = c->p.param };
    const json_t *from, *to;
    int rc, i;

    if ((rc = body_parse(&c->p.root, http_body(c->q), NULL, e)) != OK) return rc;
    from = json_object_get(c->p.root, "source");
    to = json_object_get(c->p.root, "destination");
    if (!json_is_string(from) || !json_string_length(from))
        return body_refuse(&r, "source", "is required: the name of a model");
    if (!json_is_string(to) || !json_string_length(to))
        return body_refuse(&r, "destination", "is required: another name for the model");
    if ((i = pool_index(c->api->opt.pool, body_str(from))) < 0)
        return err_set(e, E_NOTFOUND, "model '%.*s' not found",
                       STR_ARG(str_take(body_str(from), 100)));
    call_blame(c, "%s", "destination");
    return pool_copy(c->api->opt.pool, i, body_str(to), e);
}

void api_ollama_copy(struct api *a, struct http_req *q, const struct api_who *who)
{
    struct call *c = call_open(a, q, who, "/api/copy");
    struct err e = { 0 };
    int rc;

    if (!c) return;
    if ((rc = copy_model(c, &e)) == OK) rc = send_empty(c, &e);
    if (rc != OK) call_fail(c, &e, c->p.param);
    call_end_handler(c);
}
