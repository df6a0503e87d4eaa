/* durable.c - requests with "durable": true: journalled, answered 202 with an id, and run like any
 * other. GET /v1/jobs/{id} has the answer.
 *
 * A client that did not get the 202 repeats the request with the same Idempotency-Key and gets the
 * same job. */
#include "server/work.h"

#include "base/jsonw.h"
#include "base/mem.h"
#include "jobs/jobs.h"
#include "net/http.h"
#include "server/limit.h"
#include "server/routes.h"
#include "server/server_impl.h"

#include <stdio.h>

enum { KEY_MAX = 255 };

struct post_op {
    struct work_op w; /* first */
    struct jobstore_new_job j;
    char *body;
    char key[KEY_MAX + 1];
};

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
        if (p->w.seq) jobs_job_added(v->jobs, p->j.tenant);
        snprintf(place, sizeof place, "/v1/jobs/%s", p->j.id);
        http_set_header(p->w.t.q, "Location", place);
        visit_reply_buf(&p->w.t, 202, "application/json", &p->w.out);
    }
    free_post(p);
}

static int fill_post(struct post_op *p, const struct visit *t, struct err *e)
{
    jobstore_make_id(p->j.id, "job_");
    snprintf(p->j.tenant, sizeof p->j.tenant, "%s", t->who.name);
    snprintf(p->j.endpoint, sizeof p->j.endpoint, "%s", routes_name(t->route));
    return read_key(p, http_header(t->q, "Idempotency-Key"), e);
}

/* A request thread has read the body: its size is a client's. */
void durable_post(void *arg, struct http_req *q, const struct api_who *who, char *body, size_t n)
{
    struct post_op *p = mem_new(struct post_op);
    struct err e = { 0 };
    struct visit t;

    visit_take_back(&t, arg, q, who);
    if (p) p->body = body, p->j.body = str_of(body, n);
    if (!p || fill_post(p, &t, &e) != OK) {
        if (!p) err_nomem(&e, "the request"), mem_free(body);
        else free_post(p);
        limit_give(t.v->limit, t.who.tenant);
        visit_fail(&t, &e);
        return;
    }
    p->w.t = t;
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
