/* jobstore_jobs.c - rows of jobs: durable requests, and lines of batches while these have not ended. */
#include "jobs/jobstore_impl.h"

#include "base/jsonw.h"
#include "base/mem.h"
#include "jobs/batchline.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { UNREADABLE = -2 /* a descriptor: the input file is gone */ };

/* ---- durable requests ---- */

static int find_key(struct jobstore *s, struct jobstore_new_job *j, bool *found, struct err *e)
{
    struct query q;

    *found = false;
    if (!j->key.p) return OK;
    query_begin(&q, s->db, "SELECT id FROM jobs WHERE tenant=? AND key=?");
    query_text(&q, str_c(j->tenant));
    query_text(&q, j->key);
    if ((*found = query_row(&q))) jobstore_copy(j->id, sizeof j->id, query_get_text(&q, 0));
    return query_end(&q, e);
}

int jobstore_add_job(struct jobstore *s, struct jobstore_new_job *j, int64_t *seq, struct err *e)
{
    struct query q;
    bool found;
    int rc;

    *seq = 0;
    if ((rc = find_key(s, j, &found, e)) != OK || found) return rc;
    rc = jobstore_check_limit(s, "SELECT count(*) FROM jobs WHERE tenant=? AND state=0", j->tenant,
                              1, s->lim.tenant_jobs, "requests of this tenant wait for an answer",
                              e);
    if (rc != OK) return rc;
    query_begin(&q, s->db,
                "INSERT INTO jobs(id,batch,tenant,endpoint,key,body,created,deadline) "
                "VALUES(?,'',?,?,?,?,?,?)");
    query_text(&q, str_c(j->id));
    query_text(&q, str_c(j->tenant));
    query_text(&q, str_c(j->endpoint));
    query_text(&q, j->key);
    query_text(&q, j->body);
    query_int(&q, jobstore_now());
    query_int(&q, j->deadline);
    if ((rc = query_run(&q, NULL, e)) == OK) *seq = db_last_id(s->db);
    return rc;
}

#define JOB_COLUMNS "id,endpoint,created,ended,state,status,request_id,reply,error"

static void write_int_or_null(struct jsonw *w, const char *key, int64_t v)
{
    jsonw_key(w, key);
    if (v) jsonw_int(w, v);
    else jsonw_null(w);
}

/* whole: with the body of the answer. */
static void write_job(struct query *q, struct jsonw *w, bool whole)
{
    int64_t state = query_get_int(q, 4), status = query_get_int(q, 5);
    struct str error = query_get_text(q, 8);
    const char *name = state == JOB_QUEUED                     ? "queued"
                       : error.n && str_is(error, "cancelled") ? "cancelled"
                       : error.n || status != 200              ? "failed"
                                                               : "completed";

    jsonw_obj(w);
    jsonw_key(w, "id"), jsonw_str(w, query_get_text(q, 0));
    jsonw_key(w, "object"), jsonw_str(w, STR("job"));
    jsonw_key(w, "status"), jsonw_str(w, str_c(name));
    jsonw_key(w, "endpoint"), jsonw_str(w, query_get_text(q, 1));
    jsonw_key(w, "created_at"), jsonw_int(w, query_get_int(q, 2));
    write_int_or_null(w, "ended_at", query_get_int(q, 3));
    jsonw_key(w, "response");
    if (state == JOB_QUEUED || !status) {
        jsonw_null(w);
    } else {
        jsonw_obj(w);
        jsonw_key(w, "status_code"), jsonw_int(w, status);
        jsonw_key(w, "request_id"), jsonw_str(w, query_get_text(q, 6));
        if (whole) {
            struct str body = query_get_text(q, 7);
            jsonw_key(w, "body");
            if (body.n && body.p[0] == '{') jsonw_raw(w, body);
            else jsonw_str(w, body);
        }
        jsonw_end(w);
    }
    jsonw_key(w, "error");
    if (error.n) {
        jsonw_obj(w);
        jsonw_key(w, "code"), jsonw_str(w, error);
        jsonw_end(w);
    } else {
        jsonw_null(w);
    }
    jsonw_end(w);
}

int jobstore_write_job(struct jobstore *s, const char *tenant, const char *id, struct buf *out,
                       struct err *e)
{
    struct jsonw w = { .out = out };
    struct query q;
    bool found;
    int rc;

    query_begin(&q, s->db, "SELECT " JOB_COLUMNS " FROM jobs WHERE id=? AND tenant=? AND batch=''");
    query_text(&q, str_c(id));
    query_text(&q, str_c(tenant));
    if ((found = query_row(&q))) write_job(&q, &w, true);
    if ((rc = query_end(&q, e)) != OK || found) return rc;
    return err_set(e, E_NOTFOUND, "there is no job '%s'", id);
}

int jobstore_list_jobs(struct jobstore *s, const struct jobstore_page *p, struct buf *out,
                       struct err *e)
{
    struct jsonw w = { .out = out };
    char first[STORE_ID] = "", last[STORE_ID] = "";
    struct query q;
    int64_t seq = INT64_MAX;
    int n = 0, rc;

    if (*p->after) {
        bool found;
        query_begin(&q, s->db, "SELECT seq FROM jobs WHERE id=? AND tenant=? AND batch=''");
        query_text(&q, str_c(p->after));
        query_text(&q, str_c(p->tenant));
        if ((found = query_row(&q))) seq = query_get_int(&q, 0);
        if ((rc = query_end(&q, e)) != OK) return rc;
        if (!found) return err_set(e, E_INVALID, "after: there is no job '%s'", p->after);
    }
    query_begin(&q, s->db,
                "SELECT " JOB_COLUMNS
                " FROM jobs WHERE batch='' AND tenant=? AND seq<? ORDER BY seq DESC LIMIT ?");
    query_text(&q, str_c(p->tenant));
    query_int(&q, seq);
    query_int(&q, p->limit + 1);
    jobstore_begin_list(&w);
    while (query_row(&q) && n++ < p->limit) {
        jobstore_copy(last, sizeof last, query_get_text(&q, 0));
        if (n == 1) memcpy(first, last, sizeof first);
        write_job(&q, &w, false);
    }
    jobstore_end_list(&w, first, last, n > p->limit);
    return query_end(&q, e);
}

int jobstore_cancel_job(struct jobstore *s, const char *tenant, const char *id, int64_t *seq,
                        struct err *e)
{
    struct query q;
    bool found;
    int changed, rc;

    *seq = 0;
    query_begin(&q, s->db, "SELECT seq FROM jobs WHERE id=? AND tenant=? AND batch=''");
    query_text(&q, str_c(id));
    query_text(&q, str_c(tenant));
    if ((found = query_row(&q))) *seq = query_get_int(&q, 0);
    if ((rc = query_end(&q, e)) != OK) return rc;
    if (!found) return err_set(e, E_NOTFOUND, "there is no job '%s'", id);
    query_begin(&q, s->db,
                "UPDATE jobs SET state=1,ended=?,status=0,error='cancelled',body=NULL WHERE seq=? "
                "AND state=0");
    query_int(&q, jobstore_now());
    query_int(&q, *seq);
    if ((rc = query_run(&q, &changed, e)) != OK || changed) return rc;
    return err_set(e, E_CONCURRENCY, "the job '%s' has its answer already", id);
}

/* ---- what there is to run ---- */

void jobstore_free_jobs(struct jobstore_job *list)
{
    for (struct jobstore_job *next; list; list = next) {
        next = list->next;
        mem_free(list->body);
        mem_free(list);
    }
}

static int read_bytes(int fd, char *p, size_t n, int64_t at, struct err *e)
{
    for (size_t got = 0; got < n;) {
        ssize_t k = pread(fd, p + got, n - got, (off_t)(at + (int64_t)got));
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return err_set(e, E_IO, "an input file cannot be read: %s", strerror(errno));
        if (k == 0) return err_set(e, E_DAMAGED, "an input file is shorter than it was");
        got += (size_t)k;
    }
    return OK;
}

/* The body of a line: from the input file of its batch. */
static int read_line_body(struct jobstore_job *j, int fd, int64_t at, int64_t n, struct err *e)
{
    char *text = n > 0 && n <= STORE_LINE_MAX ? mem_alloc((size_t)n) : NULL;
    struct buf body = { 0 };
    struct batchline line;
    int rc;

    if (!text) return err_nomem(e, "a line of a batch");
    if ((rc = read_bytes(fd, text, (size_t)n, at, e)) == OK)
        rc = batchline_read(&line, str_of(text, (size_t)n), j->endpoint, &body, e);
    mem_free(text);
    if (rc == OK && !buf_cstr(&body)[0]) rc = err_nomem(e, "a line of a batch");
    if (rc != OK) {
        buf_release(&body);
        return rc;
    }
    j->body = body.p;
    j->n_body = body.n;
    return OK;
}

static int take_row(struct query *q, struct jobstore_job *j, int fd, struct err *e)
{
    struct str body;

    j->seq = query_get_int(q, 0);
    jobstore_copy(j->id, sizeof j->id, query_get_text(q, 1));
    jobstore_copy(j->tenant, sizeof j->tenant, query_get_text(q, 2));
    jobstore_copy(j->endpoint, sizeof j->endpoint, query_get_text(q, 3));
    j->deadline = query_get_int(q, 4);
    if (fd == UNREADABLE) return OK;
    if (fd >= 0) {
        int rc = read_line_body(j, fd, query_get_int(q, 5), query_get_int(q, 6), e);
        return rc == E_NOMEM ? rc : OK;
    }
    body = query_get_text(q, 7);
    if (!(j->body = mem_dup(body.p ? body.p : "", body.n + 1))) return err_nomem(e, "a request");
    j->n_body = body.n;
    return OK;
}

static int open_input(struct jobstore *s, const char *batch, int *fd, struct err *e)
{
    char path[3200] = "";
    struct query q;
    int rc;

    *fd = -1;
    if (!*batch) return OK;
    query_begin(&q, s->db, "SELECT input FROM batches WHERE id=?");
    query_text(&q, str_c(batch));
    if (query_row(&q)) jobstore_path(s, path, sizeof path, "files", query_get_text(&q, 0).p);
    if ((rc = query_end(&q, e)) != OK) return rc;
    if ((*fd = open(path, O_RDONLY | O_CLOEXEC)) < 0) *fd = UNREADABLE;
    return OK;
}

int jobstore_fetch_jobs(struct jobstore *s, const char *batch, const char *tenant, int64_t seq,
                        int max, struct jobstore_job **out, bool *last, struct err *e)
{
    struct jobstore_job *list = NULL, **end = &list;
    struct query q;
    int fd, n = 0, rc = open_input(s, batch, &fd, e), rc_end;

    if (rc != OK) return rc;
    query_begin(&q, s->db,
                "SELECT seq,id,tenant,endpoint,deadline,at,bytes,body FROM jobs WHERE batch=? AND "
                "state=0 AND seq>? AND (batch<>'' OR tenant=?) ORDER BY seq LIMIT ?");
    query_text(&q, str_c(batch));
    query_int(&q, seq);
    query_text(&q, str_c(tenant));
    query_int(&q, max);
    while (rc == OK && query_row(&q)) {
        struct jobstore_job *j = mem_new(struct jobstore_job);
        n++;
        if (!j) {
            rc = err_nomem(e, "a job");
            break;
        }
        *end = j;
        end = &j->next;
        rc = take_row(&q, j, fd, e);
    }
    rc_end = query_end(&q, rc == OK ? e : NULL);
    if (fd >= 0) close(fd);
    *last = n < max;
    if (rc == OK) rc = rc_end;
    if (rc == OK) *out = list;
    else jobstore_free_jobs(list);
    return rc;
}

/* ---- answers ---- */

/* The body of a durable request is not needed any more. */
static int set_answer(struct jobstore *s, int64_t seq, const struct jobstore_answer *a,
                      int *changed, struct err *e)
{
    struct query q;

    query_begin(&q, s->db,
                "UPDATE jobs SET state=1,ended=?,status=?,request_id=?,reply=?,error=?,body=NULL "
                "WHERE seq=? AND state=0");
    query_int(&q, jobstore_now());
    query_int(&q, a->status);
    query_text(&q, a->request_id);
    query_text(&q, a->body);
    query_text(&q, str_c(a->error));
    query_int(&q, seq);
    return query_run(&q, changed, e);
}

/* The last answer of a batch makes it finalizing. */
static int count_answer(struct jobstore *s, int64_t seq, bool good, bool *ended, struct err *e)
{
    struct query q;
    int changed, rc;

    query_begin(&q, s->db,
                "UPDATE batches SET completed=completed+?, failed=failed+? WHERE id=(SELECT batch "
                "FROM jobs WHERE seq=?)");
    query_int(&q, good);
    query_int(&q, !good);
    query_int(&q, seq);
    if ((rc = query_run(&q, &changed, e)) != OK || !changed) return rc;
    query_begin(&q, s->db,
                "UPDATE batches SET status=?, finalizing=? WHERE id=(SELECT batch FROM jobs WHERE "
                "seq=?) AND status=? AND completed+failed=total");
    query_int(&q, BATCH_FINALIZING);
    query_int(&q, jobstore_now());
    query_int(&q, seq);
    query_int(&q, BATCH_IN_PROGRESS);
    if ((rc = query_run(&q, &changed, e)) == OK) *ended = changed > 0;
    return rc;
}

int jobstore_answer_job(struct jobstore *s, int64_t seq, const struct jobstore_answer *a,
                        bool *first, bool *ended, struct err *e)
{
    int changed, rc = set_answer(s, seq, a, &changed, e);

    *first = rc == OK && changed > 0;
    *ended = false;
    if (!*first) return rc;
    return count_answer(s, seq, a->status == 200, ended, e);
}
