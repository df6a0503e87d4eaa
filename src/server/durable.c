/* durable.c - requests with "durable": true: journalled, answered 202 with an id, and run like any
 * other. GET /v1/jobs/{id} has the answer.
 *
 * A client that did not get the 202 repeats the request with the same Idempotency-Key and gets the
 * same job. */
#include "server/work.h"

#include "base/jsonpeek.h"
#include "base/jsonw.h"
#include "base/mem.h"
#include "jobs/jobs.h"
#include "net/http.h"
#include "server/limit.h"
#include "server/server_impl.h"

#include <stdio.h>

enum { KEY_MAX = 255 };

struct post_op {
    struct work_op w; /* first */
    struct jobstore_new_job j;
    char *body;
    char key[KEY_MAX + 1];
};

/* Most bodies do not have the word, and are not looked at any further. */
bool durable_is_asked(const struct http_req *q)
{
    struct jsonpeek_member m = { .key = "durable" };

    if (!http_body(q).n || str_find(http_body(q), STR("\"durable\"")) < 0) return false;
    jsonpeek_members(http_body(q), &m, 1);
    return m.found == JSONPEEK_FOUND && !m.is_text && str_is(m.value, "true");
}

static bool is_streamed(const struct http_req *q)
{
    struct jsonpeek_member m = { .key = "stream" };

    jsonpeek_members(http_body(q), &m, 1);
    return m.found == JSONPEEK_FOUND && str_is(m.value, "true");
}

static int read_key(struct post_op *p, struct str key, struct err *e)
{
    if (!key.p) return OK;
    if (key.n == 0 || key.n > KEY_MAX)
        return err_set(e, E_INVALID, "the header Idempotency-Key must have 1 to %d bytes", KEY_MAX);
    memcpy(p->key, key.p, key.n);
    p->j.key = str_c(p->key);
    return OK;
}

static int run_post(struct jobstore *s, struct journal_op *op, struct err *e)
{
    struct post_op *p = (struct post_op *)op;
    int rc = jobstore_add_job(s, &p->j, &p->w.seq, e);

    return rc == OK ? jobstore_write_job(s, p->j.tenant, p->j.id, &p->w.out, e) : rc;
}

static void free_post(struct post_op *p)
{
    mem_free(p->body);
    work_free(&p->w);
}

static void on_post(struct journal_op *op)
{
    struct post_op *p = (struct post_op *)op;
    struct server *v = p->w.t.v;
    char place[STORE_ID + 20];

    limit_give(v->limit, p->w.t.who.tenant);
    if (op->rc != OK) {
        work_fail(&p->w.t, &op->err);
    } else {
        if (p->w.seq) jobs_job_added(v->jobs);
        snprintf(place, sizeof place, "/v1/jobs/%s", p->j.id);
        http_set_header(p->w.t.q, "Location", place);
        visit_reply_buf(&p->w.t, 202, "application/json", &p->w.out);
    }
    free_post(p);
}

/* The body is copied: that of the connection counts against the limits of the tenant. */
static int fill_post(struct post_op *p, struct visit *t, struct err *e)
{
    struct str body = http_body(t->q);

    if (is_streamed(t->q))
        return err_set(e, E_INVALID, "stream must be false in a request with \"durable\": true");
    if (!(p->body = mem_dup(body.p, body.n))) return err_nomem(e, "the request");
    p->j.body = str_of(p->body, body.n);
    jobstore_make_id(p->j.id, "job_");
    snprintf(p->j.tenant, sizeof p->j.tenant, "%s", t->who.name);
    snprintf(p->j.endpoint, sizeof p->j.endpoint, "%.*s", STR_ARG(str_take(http_path(t->q), 63)));
    return read_key(p, http_header(t->q, "Idempotency-Key"), e);
}

void durable_post(struct visit *t)
{
    struct post_op *p = mem_new(struct post_op);
    struct err e = { 0 };

    if (!p || fill_post(p, t, &e) != OK) {
        if (!p) err_nomem(&e, "the request");
        else free_post(p);
        limit_give(t->v->limit, t->who.tenant);
        visit_fail(t, &e);
        return;
    }
    http_release_body(t->q);
    p->w.t = *t;
    work_add(&p->w, run_post, on_post);
}

/* ---- showing and cancelling ---- */

static int run_get(struct jobstore *s, struct journal_op *op, struct err *e)
{
    struct work_op *w = (struct work_op *)op;
    return jobstore_write_job(s, w->t.who.name, w->id, &w->out, e);
}

static int run_list(struct jobstore *s, struct journal_op *op, struct err *e)
{
    struct work_op *w = (struct work_op *)op;
    struct jobstore_page p = { .tenant = w->t.who.name, .after = w->after, .limit = w->limit };

    return jobstore_list_jobs(s, &p, &w->out, e);
}

static int run_cancel(struct jobstore *s, struct journal_op *op, struct err *e)
{
    struct work_op *w = (struct work_op *)op;
    int rc = jobstore_cancel_job(s, w->t.who.name, w->id, &w->seq, e);

    return rc == OK ? jobstore_write_job(s, w->t.who.name, w->id, &w->out, e) : rc;
}

static void on_cancel(struct journal_op *op)
{
    struct work_op *w = (struct work_op *)op;

    if (w->op.rc != OK) {
        work_fail(&w->t, &w->op.err);
    } else {
        jobs_job_cancelled(w->t.v->jobs, w->seq);
        visit_reply_buf(&w->t, 200, "application/json", &w->out);
    }
    work_free(w);
}

void durable_get(struct visit *t) { work_begin(t, run_get, NULL, "/v1/jobs/", ""); }
void durable_list(struct visit *t) { work_begin(t, run_list, NULL, NULL, ""); }
void durable_cancel(struct visit *t)
{
    work_begin(t, run_cancel, on_cancel, "/v1/jobs/", "/cancel");
}
