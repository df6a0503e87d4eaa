/* responses_get.c - stored answers by their ids: GET and DELETE /v1/responses/{id},
 * GET /v1/responses/{id}/input_items, POST /v1/responses/{id}/cancel.
 *
 * A model in a process of its own stores its answers there. The server remembers which model has
 * answered, and forwards calls about the answer to it; the store ends with the process. */
#include "api/call.h"

#include "api/convo.h"
#include "api/respstore.h"
#include "base/jsonr.h"
#include "base/jsonw.h"
#include "base/mem.h"
#include "net/http.h"
#include "net/query.h"

#include <stdio.h>

enum { LIST_DEFAULT = 20, LIST_MOST = 100 };

/* ---- answers of other processes ---- */

struct respowner {
    char id[ID_BYTES];
    uint32_t tenant;
    int model; /* index in the pool */
};

/* Without memory the answer cannot be asked for by its id. The oldest of many is forgotten. */
void responses_note_owner(const struct call *c)
{
    struct api *a = c->api;
    struct respowner *o;

    if (c->status != 200 || c->fw.target || strcmp(c->route, "/v1/responses") != 0) return;
    if (!a->owners && !(a->owners = mem_array(RESPSTORE_MAX, sizeof *a->owners))) return;
    o = &a->owners[a->owner_at++ % RESPSTORE_MAX];
    snprintf(o->id, sizeof o->id, "%s", c->id);
    o->tenant = c->who.tenant;
    o->model = pool_index(a->opt.pool, str_c(c->model_id));
}

void responses_forget_owners(struct api *a)
{
    mem_free(a->owners);
    a->owners = NULL;
}

static const struct respowner *find_owner(const struct call *c, struct str id)
{
    for (int i = 0; c->api->owners && i < RESPSTORE_MAX; i++) {
        const struct respowner *o = &c->api->owners[i];
        if (o->id[0] && o->tenant == c->who.tenant && str_is(id, o->id)) return o;
    }
    return NULL;
}

/* The query, unless it has bytes that no parameter of these routes has. */
static struct str plain_query(struct str query)
{
    for (size_t i = 0; i < query.n; i++)
        if (query.p[i] <= ' ' || query.p[i] > '~') return STR("");
    return query;
}

/* Forwards the call to the process that has stored the response. false: none has. */
static bool forward_to_owner(struct call *c, struct str id)
{
    const struct respowner *o = find_owner(c, id);
    struct pool_instance *m = o && o->model >= 0 ? pool_acquire(c->api->opt.pool, o->model) : NULL;
    struct err e = { 0 };

    if (!m || m->engine) {
        pool_release(m);
        return false;
    }
    c->model = m;
    c->fw.target = arena_cstr(&c->arena, http_path(c->q));
    c->fw.query = arena_cstr(&c->arena, plain_query(http_query(c->q)));
    if (arena_check(&c->arena, &e) != OK || forward_start(c, &e) != OK) call_fail(c, &e, NULL);
    return true;
}

/* ---- answers of this process ---- */

/* The part of the path between the prefix and `end`; the path may be without /v1. */
static struct str id_of(struct str path, struct str end)
{
    struct str prefix = str_starts(path, STR("/v1/")) ? STR("/v1/responses/") : STR("/responses/");

    if (path.n <= prefix.n + end.n || !str_ends(path, end)) return STR("");
    return str_of(path.p + prefix.n, path.n - prefix.n - end.n);
}

static void send_unknown(struct call *c, struct str id)
{
    char msg[200];

    snprintf(
        msg, sizeof msg,
        "there is no response '%.*s': it was not stored, was deleted, or dropped for newer ones",
        STR_ARG(str_take(id, 60)));
    call_fail_status(c, 404, "not_found", msg);
}

void api_get_response(struct api *a, struct http_req *q, const struct api_who *who)
{
    struct call *c = call_open(a, q, who, "/v1/responses/{id}");
    struct str id = id_of(http_path(q), STR(""));

    if (!c) return;
    if (respstore_get(a->responses, id, who->tenant, RESPSTORE_RESPONSE, &c->out))
        call_send_body(c, 200);
    else if (!forward_to_owner(c, id)) send_unknown(c, id);
    call_end_handler(c);
}

void api_delete_response(struct api *a, struct http_req *q, const struct api_who *who)
{
    struct call *c = call_open(a, q, who, "/v1/responses/{id}");
    struct str id = id_of(http_path(q), STR(""));
    struct jsonw w = { 0 };

    if (!c) return;
    w.out = &c->out;
    jsonw_obj(&w);
    jsonw_key(&w, "id"), jsonw_str(&w, id);
    jsonw_key(&w, "object"), jsonw_str(&w, STR("response.deleted"));
    jsonw_key(&w, "deleted"), jsonw_bool(&w, true);
    jsonw_end(&w);
    if (respstore_delete(a->responses, id, who->tenant)) call_send_body(c, 200);
    else if (!forward_to_owner(c, id)) send_unknown(c, id);
    call_end_handler(c);
}

/* A response that is on its way is cancelled. One that has ended is returned as it is. */
void api_cancel_response(struct api *a, struct http_req *q, const struct api_who *who)
{
    struct call *c = call_open(a, q, who, "/v1/responses/{id}/cancel");
    struct str id = id_of(http_path(q), STR("/cancel"));
    struct jsonw w = { 0 };

    if (!c) return;
    w.out = &c->out;
    if (api_cancel_running(a, id, who, c)) {
        jsonw_obj(&w);
        jsonw_key(&w, "id"), jsonw_str(&w, id);
        jsonw_key(&w, "object"), jsonw_str(&w, STR("response"));
        jsonw_key(&w, "status"), jsonw_str(&w, STR("cancelled"));
        jsonw_key(&w, "output"), jsonw_arr(&w), jsonw_end(&w);
        jsonw_end(&w);
        call_send_body(c, 200);
    } else if (respstore_get(a->responses, id, who->tenant, RESPSTORE_RESPONSE, &c->out)) {
        call_send_body(c, 200);
    } else if (!forward_to_owner(c, id)) {
        send_unknown(c, id);
    }
    call_end_handler(c);
}

/* ---- input items ---- */

struct listing { /* of the query; in the call's arena */
    struct str id, after;
    bool ascending;
    int limit;
};

/* Items that a client sent without an id get one by their place. */
static bool give_ids(json_t *items)
{
    json_t *item;
    size_t i;
    char id[32];
    bool ok = true;

    json_array_foreach (items, i, item) {
        snprintf(id, sizeof id, "item_%zu", i);
        if (!json_is_string(json_object_get(item, "id")))
            ok &= convo_set(item, "id", json_string(id));
    }
    return ok;
}

/* The items of the page, in the order that is asked for. */
static int write_page(struct call *c, const struct listing *l, const json_t *items)
{
    struct jsonw w = { .out = &c->out };
    size_t n = json_array_size(items), i = 0;
    struct str first = STR(""), last = STR("");
    bool passed = !l->after.n;
    int k = 0;

    jsonw_obj(&w);
    jsonw_key(&w, "object"), jsonw_str(&w, STR("list"));
    jsonw_key(&w, "data"), jsonw_arr(&w);
    for (; i < n && k < l->limit; i++) {
        const json_t *item = json_array_get(items, l->ascending ? i : n - 1 - i);
        struct str id = body_str(json_object_get(item, "id"));
        struct buf text = { 0 };
        if (!passed) {
            passed = str_eq(id, l->after);
            continue;
        }
        jsonr_dump(&text, item, JSON_COMPACT);
        c->out.failed |= text.failed;
        jsonw_raw(&w, buf_str(&text));
        buf_release(&text);
        if (k++ == 0) first = id;
        last = id;
    }
    jsonw_end(&w);
    jsonw_key(&w, "first_id"), jsonw_str(&w, first);
    jsonw_key(&w, "last_id"), jsonw_str(&w, last);
    jsonw_key(&w, "has_more"), jsonw_bool(&w, i < n);
    jsonw_end(&w);
    return OK;
}

/* On a request thread: the input may be large. */
static int list_items(struct call *c, struct err *e)
{
    const struct listing *l = c->state;
    struct buf text = { 0 };
    json_t *items = NULL;
    int rc = OK;

    if (!respstore_get(c->api->responses, l->id, c->who.tenant, RESPSTORE_ITEMS, &text)) {
        c->missing = true;
        return OK;
    }
    if ((rc = buf_check(&text, e)) == OK &&
        (!(items = jsonr_load(buf_str(&text), 0, NULL)) || !give_ids(items)))
        rc = err_nomem(e, "the items of a response");
    if (rc == OK) rc = write_page(c, l, items);
    json_decref(items);
    buf_release(&text);
    return rc;
}

static int send_items(struct call *c, struct err *e)
{
    const struct listing *l = c->state;

    (void)e;
    if (c->missing) send_unknown(c, l->id);
    else call_send_body(c, 200);
    return OK;
}

static int read_listing(struct call *c, struct http_req *q, struct err *e)
{
    struct listing *l = arena_new(&c->arena, struct listing);
    struct str v;
    int64_t n = LIST_DEFAULT;

    if (!l) return err_nomem(e, "the request");
    l->id = arena_str(&c->arena, id_of(http_path(q), STR("/input_items")));
    if (query_find(http_query(q), "limit", &v) && (!str_to_i64(v, &n) || n < 1 || n > LIST_MOST)) {
        call_blame(c, "limit");
        return err_set(e, E_INVALID, "limit must be from 1 to %d", LIST_MOST);
    }
    l->limit = (int)n;
    if (query_find(http_query(q), "order", &v)) l->ascending = query_is(v, "asc");
    if (query_find(http_query(q), "after", &v)) l->after = arena_str(&c->arena, v);
    c->state = l;
    return arena_check(&c->arena, e);
}

void api_response_items(struct api *a, struct http_req *q, const struct api_who *who)
{
    static const struct call_job job = { list_items, send_items };
    struct call *c = call_open(a, q, who, "/v1/responses/{id}/input_items");
    struct err e = { 0 };
    int rc;

    if (!c) return;
    rc = read_listing(c, q, &e);
    if (rc == OK && forward_to_owner(c, ((const struct listing *)c->state)->id)) {
        call_end_handler(c);
        return;
    }
    c->local = true;
    if (rc == OK) rc = call_hand_over(c, &job, 0, true, &e);
    if (rc != OK) call_fail(c, &e, c->p.param);
    call_end_handler(c);
}
