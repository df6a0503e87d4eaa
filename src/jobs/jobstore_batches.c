/* jobstore_batches.c - rows of batches: create, show, list, cancel, expire. */
#include "jobs/jobstore_impl.h"

#include "base/jsonw.h"
#include "jobs/batchobject.h"
#include "base/mem.h"

#include <stdio.h>

/* ---- creating ---- */

static int check_input(struct jobstore *s, const struct jobstore_batch *b, struct err *e)
{
    struct jobstore_file f;
    int rc = jobstore_find_file(s, b->tenant, b->input, &f, e);

    if (rc != OK) return rc;
    if (strcmp(f.purpose, "batch") == 0) return OK;
    return err_set(e, E_INVALID,
                   "the file '%s' has the purpose '%s': a batch needs one with the "
                   "purpose 'batch'",
                   b->input, f.purpose);
}

int jobstore_add_batch(struct jobstore *s, const struct jobstore_batch *b, struct err *e)
{
    char output[STORE_ID], error[STORE_ID];
    int64_t now = jobstore_now();
    struct query q;
    int rc = check_input(s, b, e);

    if (rc == OK)
        rc = jobstore_check_limit(s, "SELECT count(*) FROM batches WHERE tenant=? AND status<4",
                                  b->tenant, 1, s->lim.tenant_batches,
                                  "batches of this tenant have not ended", e);
    if (rc != OK) return rc;
    jobstore_make_id(output, "file-");
    jobstore_make_id(error, "file-");
    query_begin(&q, s->db,
                "INSERT INTO batches(id,tenant,endpoint,input,window,metadata,status,ends_as,"
                "output,error,created,expires) VALUES(?,?,?,?,?,?,0,?,?,?,?,?)");
    query_text(&q, str_c(b->id));
    query_text(&q, str_c(b->tenant));
    query_text(&q, str_c(b->endpoint));
    query_text(&q, str_c(b->input));
    query_text(&q, str_c(b->window));
    query_text(&q, b->metadata);
    query_int(&q, BATCH_COMPLETED);
    query_text(&q, str_c(output));
    query_text(&q, str_c(error));
    query_int(&q, now);
    query_int(&q, now + b->window_s);
    return query_run(&q, NULL, e);
}

/* ---- showing ---- */

#define COLUMNS                                                                           \
    "id,endpoint,input,window,metadata,status,output,error,has_output,has_error,created," \
    "expires,in_progress,finalizing,cancelling,ended,total,completed,failed,n_errors"
enum {
    C_ID,
    C_ENDPOINT,
    C_INPUT,
    C_WINDOW,
    C_METADATA,
    C_STATUS,
    C_OUTPUT,
    C_ERROR,
    C_HAS_OUTPUT,
    C_HAS_ERROR,
    C_CREATED,
    C_EXPIRES,
    C_IN_PROGRESS,
    C_FINALIZING,
    C_CANCELLING,
    C_ENDED,
    C_TOTAL,
    C_COMPLETED,
    C_FAILED,
    C_N_ERRORS
};

static int write_errors(struct jobstore *s, struct jsonw *w, const char *id, struct err *e)
{
    struct query q;

    jsonw_arr(w);
    query_begin(&q, s->db,
                "SELECT code,message,param,line FROM errors WHERE batch=? ORDER BY line");
    query_text(&q, str_c(id));
    while (query_row(&q)) {
        jsonw_obj(w);
        jsonw_key(w, "code"), jsonw_str(w, query_get_text(&q, 0));
        jsonw_key(w, "message"), jsonw_str(w, query_get_text(&q, 1));
        jsonw_key(w, "param");
        if (query_get_text(&q, 2).p) jsonw_str(w, query_get_text(&q, 2));
        else jsonw_null(w);
        jsonw_key(w, "line");
        if (query_get_int(&q, 3)) jsonw_int(w, query_get_int(&q, 3));
        else jsonw_null(w);
        jsonw_end(w);
    }
    jsonw_end(w);
    return query_end(&q, e);
}

/* One row of COLUMNS as OpenAI's batch object. */
static int write_row(struct jobstore *s, struct query *q, struct jsonw *w, struct err *e)
{
    struct str none = { 0 };
    struct buf errors = { 0 };
    struct jsonw list = { .out = &errors };
    struct batch_object o = {
        .endpoint = query_get_text(q, C_ENDPOINT),
        .input = query_get_text(q, C_INPUT),
        .window = query_get_text(q, C_WINDOW),
        .output = query_get_int(q, C_HAS_OUTPUT) ? query_get_text(q, C_OUTPUT) : none,
        .error = query_get_int(q, C_HAS_ERROR) ? query_get_text(q, C_ERROR) : none,
        .metadata = query_get_text(q, C_METADATA),
        .status = (int)query_get_int(q, C_STATUS),
        .created = query_get_int(q, C_CREATED),
        .in_progress = query_get_int(q, C_IN_PROGRESS),
        .expires = query_get_int(q, C_EXPIRES),
        .finalizing = query_get_int(q, C_FINALIZING),
        .cancelling = query_get_int(q, C_CANCELLING),
        .ended = query_get_int(q, C_ENDED),
        .total = query_get_int(q, C_TOTAL),
        .completed = query_get_int(q, C_COMPLETED),
        .failed = query_get_int(q, C_FAILED)
    };
    char id[STORE_ID];
    int rc = OK;

    jobstore_copy(id, sizeof id, query_get_text(q, C_ID));
    o.id = str_c(id);
    if (query_get_int(q, C_N_ERRORS)) {
        rc = write_errors(s, &list, id, e);
        if (rc == OK) rc = buf_check(&errors, e);
        o.errors = buf_str(&errors);
    }
    if (rc == OK) batch_object_write(&o, w);
    buf_release(&errors);
    return rc;
}

int jobstore_write_batch(struct jobstore *s, const char *tenant, const char *id, struct buf *out,
                         struct err *e)
{
    struct jsonw w = { .out = out };
    struct query q;
    bool found;
    int rc = OK, rc_end;

    query_begin(&q, s->db, "SELECT " COLUMNS " FROM batches WHERE id=? AND tenant=?");
    query_text(&q, str_c(id));
    query_text(&q, str_c(tenant));
    if ((found = query_row(&q))) rc = write_row(s, &q, &w, e);
    rc_end = query_end(&q, rc == OK ? e : NULL);
    if (rc != OK || rc_end != OK) return rc != OK ? rc : rc_end;
    return found ? OK : err_set(e, E_NOTFOUND, "there is no batch '%s'", id);
}

int jobstore_list_batches(struct jobstore *s, const struct jobstore_page *p, struct buf *out,
                          struct err *e)
{
    struct jsonw w = { .out = out };
    char first[STORE_ID] = "", last[STORE_ID] = "";
    struct query q;
    int64_t seq = INT64_MAX;
    int n = 0, rc = OK, rc_end;

    if (*p->after) {
        bool found;
        query_begin(&q, s->db, "SELECT seq FROM batches WHERE id=? AND tenant=?");
        query_text(&q, str_c(p->after));
        query_text(&q, str_c(p->tenant));
        if ((found = query_row(&q))) seq = query_get_int(&q, 0);
        if ((rc = query_end(&q, e)) != OK) return rc;
        if (!found) return err_set(e, E_INVALID, "after: there is no batch '%s'", p->after);
    }
    query_begin(&q, s->db,
                "SELECT " COLUMNS
                " FROM batches WHERE tenant=? AND seq<? ORDER BY seq DESC LIMIT ?");
    query_text(&q, str_c(p->tenant));
    query_int(&q, seq);
    query_int(&q, p->limit + 1);
    jobstore_begin_list(&w);
    while (rc == OK && query_row(&q) && n++ < p->limit) {
        jobstore_copy(last, sizeof last, query_get_text(&q, C_ID));
        if (n == 1) memcpy(first, last, sizeof first);
        rc = write_row(s, &q, &w, e);
    }
    jobstore_end_list(&w, first, last, n > p->limit);
    rc_end = query_end(&q, rc == OK ? e : NULL);
    return rc != OK ? rc : rc_end;
}

/* ---- ending early ---- */

int jobstore_batch_status(struct jobstore *s, const char *id, int *out, struct err *e)
{
    struct query q;

    *out = BATCH_FAILED;
    query_begin(&q, s->db, "SELECT status FROM batches WHERE id=?");
    query_text(&q, str_c(id));
    if (query_row(&q)) *out = (int)query_get_int(&q, 0);
    return query_end(&q, e);
}

int jobstore_cancel_batch(struct jobstore *s, const char *tenant, const char *id, struct err *e)
{
    struct query q;
    bool found;
    int status = 0, changed, rc;

    query_begin(&q, s->db, "SELECT status FROM batches WHERE id=? AND tenant=?");
    query_text(&q, str_c(id));
    query_text(&q, str_c(tenant));
    if ((found = query_row(&q))) status = (int)query_get_int(&q, 0);
    if ((rc = query_end(&q, e)) != OK) return rc;
    if (!found) return err_set(e, E_NOTFOUND, "there is no batch '%s'", id);
    if (status == BATCH_CANCELLING || status == BATCH_CANCELLED) return OK;
    if (status != BATCH_VALIDATING && status != BATCH_IN_PROGRESS)
        return err_set(e, E_CONCURRENCY, "the batch '%s' is %s and cannot be cancelled", id,
                       batch_status_name(status));
    query_begin(&q, s->db, "UPDATE batches SET status=?,ends_as=?,cancelling=? WHERE id=?");
    query_int(&q, BATCH_CANCELLING);
    query_int(&q, BATCH_CANCELLED);
    query_int(&q, jobstore_now());
    query_text(&q, str_c(id));
    return query_run(&q, &changed, e);
}

int jobstore_expire_batches(struct jobstore *s, int64_t now, struct err *e)
{
    struct query q;

    query_begin(&q, s->db,
                "UPDATE batches SET status=?,ends_as=?,finalizing=? WHERE status IN(0,1) AND "
                "expires<=?");
    query_int(&q, BATCH_FINALIZING);
    query_int(&q, BATCH_EXPIRED);
    query_int(&q, now);
    query_int(&q, now);
    return query_run(&q, NULL, e);
}

/* ---- for the runner ---- */

int jobstore_list_active(struct jobstore *s, struct jobstore_active **out, int *n, struct err *e)
{
    struct jobstore_active *list = NULL;
    struct query q;
    int cap = 0, rc = OK, rc_end;

    *n = 0;
    query_begin(
        &q, s->db,
        "SELECT id,tenant,status,expires,seq FROM batches WHERE status<4 UNION ALL "
        "SELECT '',tenant,1,0,min(seq) FROM jobs WHERE batch='' AND state=0 GROUP BY tenant "
        "ORDER BY 5");
    while (rc == OK && query_row(&q)) {
        struct jobstore_active *a;
        if (!mem_ensure(list, cap, *n + 1)) {
            rc = err_nomem(e, "the list of batches");
            break;
        }
        a = &list[(*n)++];
        jobstore_copy(a->id, sizeof a->id, query_get_text(&q, 0));
        jobstore_copy(a->tenant, sizeof a->tenant, query_get_text(&q, 1));
        a->status = (int)query_get_int(&q, 2);
        a->expires = query_get_int(&q, 3);
    }
    rc_end = query_end(&q, rc == OK ? e : NULL);
    if (rc == OK) rc = rc_end;
    if (rc == OK) *out = list;
    else mem_free(list), *n = 0;
    return rc;
}
