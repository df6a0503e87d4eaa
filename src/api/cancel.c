/* POST /v1/requests/{id}/cancel, or POST /cancel with {"id"}: the completion's or the correlation
 * id. Again is fine. */
#include "api/call.h"

#include "base/jsonw.h"

/* From the path, or from the body; "" and no error: nobody has such an id. */
static int find_id(struct call *c, struct str path, struct str *out, struct err *e)
{
    struct str prefix = STR("/v1/requests/"), end = STR("/cancel");
    struct reader r = { .arena = &c->arena, .err = e, .param = c->p.param };
    const json_t *id;
    int rc;

    *out = STR("");
    if (str_starts(path, prefix)) {
        if (str_ends(path, end) && path.n > prefix.n + end.n)
            *out = str_of(path.p + prefix.n, path.n - prefix.n - end.n);
        return OK;
    }
    if ((rc = body_parse(&c->p.root, http_body(c->q), e)) != OK) return rc;
    id = json_object_get(c->p.root, "id");
    if (!json_is_string(id))
        return reader_bad(&r, "id", "is required: the id of a completion or its correlation id");
    *out = body_str(id);
    return OK;
}

static bool is_asked(struct str id, const char *a, const char *b)
{
    return id.n > 0 && (str_is(id, a) || str_is(id, b));
}

/* What waits for its grammar is in no engine: it is told here. */
static bool cancel_parked(struct call *c)
{
    struct err e = { 0 };

    if (!c->job) return false;
    err_set(&e, E_CANCELLED, "the request was cancelled");
    call_fail(c, &e, NULL);
    return true;
}

/* Another tenant's calls are as if they were not there, but for an admin. */
static bool cancel_live(struct api *a, struct str id, const struct api_who *who,
                        const struct call *self)
{
    bool found = false;

    for (struct call *c = a->calls, *next; c; c = next) {
        next = c->next;
        if (c == self || (!c->n_live && !c->job) || (!who->admin && c->who.tenant != who->tenant) ||
            !is_asked(id, c->id, c->who.correlation))
            continue;
        found |= call_cancel(c, CANCEL_ASKED);
        found |= cancel_parked(c);
        call_settle(c);
    }
    return found;
}

static bool is_past(const struct api *a, struct str id, const struct api_who *who)
{
    for (int i = 0; i < PAST_CALLS; i++) {
        const struct past_call *p = &a->past[i];
        if (p->id[0] && (who->admin || p->tenant == who->tenant) &&
            is_asked(id, p->id, p->correlation))
            return true;
    }
    return false;
}

static void answer(struct call *c, struct str id, bool live)
{
    struct jsonw w = { .out = &c->out };

    jsonw_obj(&w);
    jsonw_key(&w, "id"), jsonw_str(&w, id);
    jsonw_key(&w, "object"), jsonw_str(&w, STR("request.cancel"));
    jsonw_key(&w, "cancelled"), jsonw_bool(&w, live);
    jsonw_end(&w);
    call_reply(c, 200, buf_str(&c->out));
}

void api_cancel(struct api *a, struct http_req *q, const struct api_who *who)
{
    bool by_path = str_starts(http_path(q), STR("/v1/requests/"));
    struct call *c = call_open(a, q, who, by_path ? "/v1/requests/{id}/cancel" : "/cancel");
    struct err e = { 0 };
    struct str id;
    bool live;

    if (find_id(c, http_path(q), &id, &e) != OK) {
        call_fail(c, &e, c->p.param);
    } else {
        live = cancel_live(a, id, who, c);
        if (live || is_past(a, id, who)) answer(c, id, live);
        else
            call_fail_as(c, 404, "not_found",
                         "no such request is known: it was never here, or ended long ago");
    }
    call_release(c);
}
