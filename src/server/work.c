/* work.c - the jobs of the server: their folder, how they reach the API, and how many lines of
 * batches may run beside live traffic. */
#include "server/work.h"

#include "api/api.h"
#include "api/fail.h"
#include "base/clock.h"
#include "base/jsonw.h"
#include "base/mem.h"
#include "engine/request.h"
#include "jobs/jobs.h"
#include "jobs/pagequery.h"
#include "net/http.h"
#include "pool/pool.h"
#include "server/auth.h"
#include "server/limit.h"
#include "server/routes.h"
#include "server/server_impl.h"

#include <stdlib.h>

enum {
    PRIORITY_LINES = -100, /* highest priority of lines of batches: behind all live traffic */
    SEQS_DEFAULT = 16,
    WAIT_MS = 150,   /* a live request that waits longer lacks a place */
    SHORT_MS = 1000, /* after that, no line begins for so long */
    GAP_MS = 200,
    LIVE_MS = 500,
    DURABLE_MAX = 64 /* durable requests in flight */
};

/* ---- wiring ---- */

/* $XDG_STATE_HOME/tern/HOST-PORT: a server that starts again on its address finds its jobs. "": there
 * is no home folder. */
static void name_folder(struct server *v, struct buf *out)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    size_t at;

    if (*v->s->data_dir) {
        buf_puts(out, v->s->data_dir);
        return;
    }
    if (state && *state == '/') buf_printf(out, "%s/tern/", state);
    else if (home && *home == '/') buf_printf(out, "%s/.local/state/tern/", home);
    else return;
    at = out->n;
    if (http_port(v->http)) buf_printf(out, "%s-%d", v->s->host, http_port(v->http));
    else buf_printf(out, "unix-%s", v->s->socket);
    for (; at < out->n; at++)
        if (out->p[at] == '/') out->p[at] = '_';
}

/* ---- limits of tenants ---- */

/* A tenant whose keys were removed has the limits of the server. Whoever sent a durable request was
 * counted against the rate with it. Jobs leave a place to live requests, if there is more than one. */
struct job_limits {
    uint32_t tenant;
    int rate, at_once;
};

static struct job_limits find_limits(const struct server *v, const char *tenant, bool batch)
{
    const struct tenant *t = auth_find(v->auth, tenant);
    struct job_limits m = { .tenant = t ? t->index : 0, .rate = -1 };

    m.at_once = t && t->concurrency >= 0 ? t->concurrency : (int)v->s->concurrency;
    if (batch) m.rate = t && t->rate_per_min >= 0 ? t->rate_per_min : (int)v->s->rate_per_min;
    return m;
}

/* jobs_opt.may_run */
static bool may_run_job(void *arg, const char *tenant, bool batch)
{
    struct server *v = arg;
    struct job_limits m = find_limits(v, tenant, batch);

    return limit_has_room(v->limit, m.tenant, m.rate, m.at_once, 1, clock_ns());
}

/* jobs_opt.submit, after may_run_job. access_ended gives the place back. */
static void submit_job(void *arg, struct http_req *q, const char *endpoint, const char *tenant,
                       void *user, bool batch)
{
    struct server *v = arg;
    const struct tenant *t = auth_find(v->auth, tenant);
    struct job_limits m = find_limits(v, tenant, batch);
    struct api_who who = { .name = tenant,
                           .tenant = m.tenant,
                           .keyed = !auth_is_open(v->auth),
                           .priority_max = t ? t->priority_max : PRIORITY_BATCH,
                           .route = -1,
                           .user = user };

    snprintf(who.correlation, sizeof who.correlation, "%s", http_id(q));
    if (batch && who.priority_max > PRIORITY_LINES) who.priority_max = PRIORITY_LINES;
    limit_take_room(v->limit, m.tenant, m.rate);
    if (!routes_submit(v, endpoint, q, &who)) limit_give(v->limit, m.tenant);
}

static void stop_job(void *arg, void *user)
{
    struct server *v = arg;
    api_stop_call(v->api, user, false);
}

/* 0 is long ago. */
static double ms_since(uint64_t ns) { return ns ? clock_ms_since(ns) : 1e12; }

/* Lines of batches run in the gaps of live traffic. While a live request waits for its place, and for a
 * moment after that, no line begins, and those that run are stopped. Beside live requests few lines
 * run; those that run when live traffic begins may go on for LIVE_MS, since it may be one short request.
 * A pause of less than GAP_MS between two requests is no gap. */
static struct jobs_room get_room(void *arg)
{
    struct server *v = arg;
    int64_t seqs = v->s->max_seqs ? v->s->max_seqs : SEQS_DEFAULT;
    int all = (int)(v->s->batch_inflight ? v->s->batch_inflight : seqs > 1 ? seqs / 2 : 1);
    int busy = (int)v->s->batch_inflight_busy, live, waiting;

    if (busy > all) busy = all;
    api_count_live(v->api, WAIT_MS, &live, &waiting);
    if (live > 0 && ms_since(v->live_ns) > GAP_MS) v->live_from_ns = clock_ns();
    if (live > 0) v->live_ns = clock_ns();
    if (waiting > 0) v->short_ns = clock_ns();
    if (waiting > 0) return (struct jobs_room){ 0, 0 };
    if (ms_since(v->short_ns) < SHORT_MS) return (struct jobs_room){ 0, busy };
    if (ms_since(v->live_ns) > GAP_MS) return (struct jobs_room){ all, all };
    return (struct jobs_room){ busy, ms_since(v->live_from_ns) > LIVE_MS ? busy : all };
}

int work_open(struct server *v, struct err *e)
{
    const struct settings *s = v->s;
    struct jobs_opt o = { .loop = v->loop,
                          .lim = { .max_lines = s->max_batch_lines,
                                   .tenant_bytes = s->tenant_files,
                                   .tenant_batches = s->tenant_batches,
                                   .tenant_jobs = s->tenant_jobs,
                                   .retention_s = s->retention_ms / 1000 },
                          .max_durable = DURABLE_MAX,
                          .submit = submit_job,
                          .stop = stop_job,
                          .room = get_room,
                          .may_run = may_run_job,
                          .arg = v };
    struct buf dir = { 0 };
    int rc;

    name_folder(v, &dir);
    if ((rc = buf_check(&dir, e)) == OK && dir.n) {
        o.dir = buf_cstr(&dir);
        rc = jobs_open(&v->jobs, &o, e);
    }
    buf_release(&dir);
    return rc;
}

/* ---- operations ---- */

void work_free(struct work_op *w)
{
    buf_release(&w->out);
    mem_free(w);
}

void work_fail(struct visit *t, const struct err *e)
{
    if (e->code == E_NOTFOUND) visit_fail_status(t, 404, "not_found", e->msg);
    else if (e->code == E_CONCURRENCY) visit_fail_status(t, 409, "conflict", e->msg);
    else visit_fail(t, e);
}

/* journal_op.done: the reply is in w->out. */
static void reply_op(struct journal_op *op)
{
    struct work_op *w = (struct work_op *)op;

    if (op->rc != OK) work_fail(&w->t, &op->err);
    else visit_reply_buf(&w->t, 200, "application/json", &w->out);
    work_free(w);
}

void work_add(struct work_op *w, int (*run)(struct jobstore *, struct journal_op *, struct err *),
              void (*done)(struct journal_op *op))
{
    struct server *v = w->t.v;
    struct err e = { 0 };

    w->op = (struct journal_op){ .run = run, .done = done ? done : reply_op };
    if (v->jobs) {
        journal_add(jobs_journal(v->jobs), &w->op);
        return;
    }
    w->op.rc = err_set(&e, E_STORE,
                       "this server has no folder for files and jobs: $HOME is not set; give "
                       "--data-dir");
    w->op.err = e;
    w->op.done(&w->op);
}

bool work_read_id(const struct visit *t, const char *before, const char *behind, char *out)
{
    return pagequery_id(http_path(t->q), before, behind, out);
}

int work_read_page(struct visit *t, struct work_op *w, struct err *e)
{
    struct pagequery p;
    int rc = pagequery_read(&p, http_query(t->q), e);

    w->limit = p.limit;
    w->oldest_first = p.oldest_first;
    memcpy(w->after, p.after, sizeof w->after);
    memcpy(w->purpose, p.purpose, sizeof w->purpose);
    return rc;
}

void work_begin(struct visit *t, int (*run)(struct jobstore *, struct journal_op *, struct err *),
                void (*done)(struct journal_op *op), const char *before, const char *behind)
{
    struct work_op *w = mem_new(struct work_op);
    struct err e = { 0 };

    if (!w) {
        err_nomem(&e, "the request");
        visit_fail(t, &e);
        return;
    }
    if (before && !work_read_id(t, before, behind, w->id)) {
        visit_fail_status(t, 404, "not_found", "there is nothing of this id");
        work_free(w);
        return;
    }
    if (!before && work_read_page(t, w, &e) != OK) {
        visit_fail(t, &e);
        work_free(w);
        return;
    }
    w->t = *t;
    work_add(w, run, done);
}

/* ---- /status and /metrics ---- */

static void write_int(struct jsonw *w, const char *key, int64_t v)
{
    jsonw_key(w, key), jsonw_int(w, v);
}

void work_write_status(struct server *v, struct jsonw *w)
{
    struct jobs_stats s = { 0 };

    if (v->jobs) jobs_stats(v->jobs, &s);
    jsonw_obj(w);
    jsonw_key(w, "folder");
    if (v->jobs) jsonw_str(w, str_c(jobs_dir(v->jobs)));
    else jsonw_null(w);
    jsonw_key(w, "open"), jsonw_bool(w, s.is_open);
    write_int(w, "files", s.counts.files);
    write_int(w, "file_bytes", s.counts.file_bytes);
    jsonw_key(w, "batches"), jsonw_obj(w);
    for (int i = 0; i < BATCH_STATUSES; i++)
        write_int(w, batch_status_name(i), s.counts.batches[i]);
    jsonw_end(w);
    write_int(w, "lines_queued", s.counts.queued_lines);
    write_int(w, "lines_running", s.lines_running);
    write_int(w, "lines_completed", (int64_t)s.lines_done);
    write_int(w, "lines_failed", (int64_t)s.lines_failed);
    write_int(w, "durable_queued", s.counts.queued);
    write_int(w, "durable_running", s.durable_running);
    write_int(w, "durable_answered", s.counts.answered);
    write_int(w, "oldest_s", s.counts.oldest ? jobstore_now() - s.counts.oldest : 0);
    jsonw_end(w);
}

void work_write_metrics(struct server *v, struct buf *out)
{
    struct jobs_stats s = { 0 };
    char label[64];

    if (!v->jobs) return;
    jobs_stats(v->jobs, &s);
    for (int i = 0; i < BATCH_STATUSES; i++) {
        snprintf(label, sizeof label, "status=\"%s\"", batch_status_name(i));
        stat_gauge(out, "tern_batches", label, i ? NULL : "Batches in the store",
                   (double)s.counts.batches[i]);
    }
    stat_gauge(out, "tern_jobs", "kind=\"line\",state=\"queued\"",
               "Lines of batches and durable requests without an answer, or running",
               (double)s.counts.queued_lines);
    stat_gauge(out, "tern_jobs", "kind=\"line\",state=\"running\"", NULL, s.lines_running);
    stat_gauge(out, "tern_jobs", "kind=\"durable\",state=\"queued\"", NULL,
               (double)s.counts.queued);
    stat_gauge(out, "tern_jobs", "kind=\"durable\",state=\"running\"", NULL, s.durable_running);
    stat_gauge(out, "tern_jobs_oldest_seconds", "", "Age of the oldest job without an answer",
               s.counts.oldest ? (double)(jobstore_now() - s.counts.oldest) : 0);
    stat_counter(out, "tern_jobs_answered_total", "kind=\"line\",outcome=\"completed\"",
                 "Answers that were stored", s.lines_done);
    stat_counter(out, "tern_jobs_answered_total", "kind=\"line\",outcome=\"failed\"", NULL,
                 s.lines_failed);
    stat_counter(out, "tern_jobs_answered_total", "kind=\"durable\",outcome=\"completed\"", NULL,
                 s.durable_done);
    stat_counter(out, "tern_jobs_answered_total", "kind=\"durable\",outcome=\"failed\"", NULL,
                 s.durable_failed);
    stat_counter(out, "tern_jobs_stopped_total", "",
                 "Jobs that were stopped for live traffic or a cancel", s.stopped);
    stat_gauge(out, "tern_files", "", "Files in the store", (double)s.counts.files);
    stat_gauge(out, "tern_files_bytes", "", "Bytes of these files", (double)s.counts.file_bytes);
    stat_counter(out, "tern_jobs_commits_total", "", "Transactions of the store",
                 counter_get(&s.journal->commits));
    stat_hist(out, "tern_jobs_commit_ms", "", "Time of a transaction with its fsync",
              &s.journal->commit_ms);
}
