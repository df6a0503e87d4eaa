/* batches.c - /v1/batches: OpenAI's batch API. The lines are run by jobs/runner.c. */
#include "server/work.h"

#include "base/mem.h"
#include "jobs/batchbody.h"
#include "jobs/jobs.h"
#include "net/http.h"
#include "server/server_impl.h"

#include <stdio.h>

struct post_op {
    struct work_op w; /* first */
    struct jobstore_batch b;
    struct buf metadata;
};

/* ---- creating ---- */

static int run_post(struct jobstore *s, struct journal_op *op, struct err *e)
{
    struct post_op *p = (struct post_op *)op;
    int rc = jobstore_add_batch(s, &p->b, e);

    return rc == OK ? jobstore_write_batch(s, p->b.tenant, p->b.id, &p->w.out, e) : rc;
}

static void free_post(struct post_op *p)
{
    buf_release(&p->metadata);
    work_free(&p->w);
}

static void on_post(struct journal_op *op)
{
    struct post_op *p = (struct post_op *)op;

    if (op->rc != OK) {
        work_fail(&p->w.t, &op->err);
    } else {
        jobs_batch_added(p->w.t.v->jobs, p->b.id, jobstore_now() + p->b.window_s);
        visit_reply_buf(&p->w.t, 200, "application/json", &p->w.out);
    }
    free_post(p);
}

void batches_post(struct visit *t)
{
    struct post_op *p = mem_new(struct post_op);
    struct err e = { 0 };

    if (!p) {
        err_nomem(&e, "the request");
        visit_fail(t, &e);
        return;
    }
    if (batchbody_read(&p->b, &p->metadata, http_body(t->q), &e) != OK) {
        visit_fail(t, &e);
        free_post(p);
        return;
    }
    jobstore_make_id(p->b.id, "batch_");
    snprintf(p->b.tenant, sizeof p->b.tenant, "%s", t->who.name);
    p->w.t = *t;
    work_add(&p->w, run_post, on_post);
}

/* ---- showing ---- */

static int run_get(struct jobstore *s, struct journal_op *op, struct err *e)
{
    struct work_op *w = (struct work_op *)op;
    return jobstore_write_batch(s, w->t.who.name, w->id, &w->out, e);
}

static int run_list(struct jobstore *s, struct journal_op *op, struct err *e)
{
    struct work_op *w = (struct work_op *)op;
    struct jobstore_page p = { .tenant = w->t.who.name, .after = w->after, .limit = w->limit };

    return jobstore_list_batches(s, &p, &w->out, e);
}

void batches_get(struct visit *t) { work_begin(t, run_get, NULL, "/v1/batches/", ""); }
void batches_list(struct visit *t) { work_begin(t, run_list, NULL, NULL, ""); }

/* ---- cancelling ---- */

static int run_cancel(struct jobstore *s, struct journal_op *op, struct err *e)
{
    struct work_op *w = (struct work_op *)op;
    int rc = jobstore_cancel_batch(s, w->t.who.name, w->id, e);

    return rc == OK ? jobstore_write_batch(s, w->t.who.name, w->id, &w->out, e) : rc;
}

static void on_cancel(struct journal_op *op)
{
    struct work_op *w = (struct work_op *)op;

    if (w->op.rc != OK) {
        work_fail(&w->t, &w->op.err);
    } else {
        jobs_batch_cancelled(w->t.v->jobs, w->id);
        visit_reply_buf(&w->t, 200, "application/json", &w->out);
    }
    work_free(w);
}

void batches_cancel(struct visit *t)
{
    work_begin(t, run_cancel, on_cancel, "/v1/batches/", "/cancel");
}
