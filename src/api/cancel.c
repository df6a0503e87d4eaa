/* cancel.c - POST /v1/requests/{id}/cancel, and POST /cancel with {"id": …}.
 *
 * The id is that of the completion or the correlation id. Cancelling is idempotent: a request that
 * has ended recently is answered with "cancelled": false. */
#include "api/call.h"

#include "base/jsonw.h"
#include "engine/request.h"
#include "net/http.h"

/* The id from the path or the body; "": a path without one, which matches no request. */
static int read_id(struct call *c, struct str path, struct str *out, struct err *e)
{
    struct str prefix = STR("/requests/"), end = STR("/cancel");
    struct body_reader r = { .arena = &c->arena, .err = e, .param = c->p.param };
    const json_t *id;
    int rc;

    *out = STR("");
    if (str_starts(path, STR("/v1/"))) path = str_skip(path, 3);
    if (str_starts(path, prefix)) {
        if (str_ends(path, end) && path.n > prefix.n + end.n)
            *out = str_of(path.p + prefix.n, path.n - prefix.n - end.n);
        return OK;
    }
    if ((rc = body_parse(&c->p.root, http_body(c->q), NULL, e)) != OK) return rc;
    id = json_object_get(c->p.root, "id");
    if (!json_is_string(id))
        return body_refuse(&r, "id", "is required: the id of a completion or a correlation id");
    *out = body_str(id);
    return OK;
}

static bool matches_id(struct str id, const char *a, const char *b)
{
    return id.n > 0 && (str_is(id, a) || str_is(id, b));
}

/* A call that waits for its grammar has no engine request: it ends here. */
static bool cancel_compiling(struct call *c)
{
    struct err e = { 0 };

    if (!c->compiling) return false;
    err_set(&e, E_CANCELLED, "the request was cancelled");
    call_fail(c, &e, NULL);
    return true;
}

/* Only an admin sees calls of other tenants. */
bool api_cancel_running(struct api *a, struct str id, const struct api_who *who,
                        const struct call *self)
{
    bool found = false;

    for (struct call *c = a->calls, *next; c; c = next) {
        next = c->next;
        if (c == self || (!c->n_running && !c->compiling && !c->away && !forward_is_under_way(c)) ||
            (!who->admin && c->who.tenant != who->tenant) ||
            !matches_id(id, c->id, c->who.correlation))
            continue;
        if (call_stop(c, STOP_ASKED)) { /* a request thread has it, or had; c may be gone */
            found = true;
            continue;
        }
        found |= call_cancel_choices(c, CANCEL_ASKED);
        found |= cancel_compiling(c);
        found |= forward_cancel(c, FORWARD_ASKED);
        call_end_if_done(c);
    }
    return found;
}

/* As api_cancel_running does, for one call. */
void api_stop_call(struct api *a, const void *user, bool shutdown)
{
    struct call *c = a->calls;
    enum cancel why = shutdown ? CANCEL_SHUTDOWN : CANCEL_ASKED;

    while (c && c->who.user != user) c = c->next;
    if (!c || call_stop(c, shutdown ? STOP_SHUTDOWN : STOP_ASKED)) return;
    call_cancel_choices(c, why);
    cancel_compiling(c);
    forward_cancel(c, shutdown ? FORWARD_SHUTDOWN : FORWARD_ASKED);
    call_end_if_done(c);
}

/* Cancelling a request that has just ended is not an error. */
static bool is_past(const struct api *a, struct str id, const struct api_who *who)
{
    for (int i = 0; i < PAST_CALLS; i++) {
        const struct past_call *p = &a->past[i];
        if (p->id[0] && (who->admin || p->tenant == who->tenant) &&
            matches_id(id, p->id, p->correlation))
            return true;
    }
    return false;
}

static void send_result(struct call *c, struct str id, bool cancelled)
{
    struct jsonw w = { .out = &c->out };

    jsonw_obj(&w);
    jsonw_key(&w, "id"), jsonw_str(&w, id);
    jsonw_key(&w, "object"), jsonw_str(&w, STR("request.cancel"));
    jsonw_key(&w, "cancelled"), jsonw_bool(&w, cancelled);
    jsonw_end(&w);
    call_send_body(c, 200);
}

/* The call of the cancel request itself is skipped in the search. */
void api_cancel(struct api *a, struct http_req *q, const struct api_who *who)
{
    bool by_path = str_find(http_path(q), STR("/requests/")) >= 0;
    struct call *c = call_open(a, q, who, by_path ? "/v1/requests/{id}/cancel" : "/cancel");
    struct err e = { 0 };
    struct str id;
    bool cancelled;

    if (!c) return;
    if (read_id(c, http_path(q), &id, &e) != OK) {
        call_fail(c, &e, c->p.param);
    } else {
        cancelled = api_cancel_running(a, id, who, c);
        if (cancelled || is_past(a, id, who)) send_result(c, id, cancelled);
        else
            call_fail_status(c, 404, "not_found",
                             "no request with this id: it is unknown, or ended a while ago");
    }
    call_end_handler(c);
}
