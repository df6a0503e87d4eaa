/* handoff.c - requests with "durable": true, which the server runs as jobs. A request thread finds the
 * word and copies the body; the loop then gives the HTTP request to opt.keep. */
#include "api/call.h"

#include "base/jsonpeek.h"
#include "base/mem.h"
#include "net/http.h"

static bool is_true(const struct jsonpeek_member *m)
{
    return m->found == JSONPEEK_FOUND && !m->is_text && str_is(m->value, "true");
}

/* Most bodies do not have the word, and are not looked at any further. The copy is the job's: the body
 * of the connection counts against the limits of the tenant. */
int call_find_durable(struct call *c, struct err *e)
{
    struct jsonpeek_member m[] = { { .key = "durable" }, { .key = "stream" } };

    if (!c->who.may_keep || c->body_read || str_find(c->body, STR("\"durable\"")) < 0) return OK;
    jsonpeek_members(c->body, m, 2);
    if (!is_true(&m[0])) return OK;
    if (is_true(&m[1])) {
        call_blame(c, "stream");
        return err_set(e, E_INVALID, "stream must be false in a request with \"durable\": true");
    }
    if (!(c->kept = mem_dup(c->body.p, c->body.n))) return err_nomem(e, "the request");
    c->n_kept = c->body.n;
    return OK;
}

/* The call has nothing more to do, and ends without a word to opt.ended. */
void call_hand_to_jobs(struct call *c)
{
    struct http_req *q = c->q;
    char *body = c->kept;

    http_on_gone(q, NULL, NULL);
    c->q = NULL;
    c->kept = NULL;
    c->is_job = true;
    c->api->opt.keep(c->api->opt.arg, q, &c->who, body, c->n_kept);
}
