/* batches.c - /v1/batches: OpenAI's batch API. The lines are run by jobs/runner.c. */
#include "server/work.h"

#include "base/jsonr.h"
#include "base/mem.h"
#include "jobs/jobs.h"
#include "jobs/batchline.h"
#include "net/http.h"
#include "server/server_impl.h"

#include <stdio.h>

enum {
    METADATA_PAIRS = 16,
    METADATA_KEY = 64, /* bytes, as OpenAI's */
    METADATA_VALUE = 512,
    WINDOW_MAX_S = 30 * 86400,
    PARTS_MAX = 1000
};

struct post_op {
    struct work_op w; /* first */
    struct jobstore_batch b;
    struct buf metadata;
};

/* ---- the body ---- */

static int read_text(const json_t *root, const char *key, char *out, size_t cap, struct err *e)
{
    const json_t *v = json_object_get(root, key);
    size_t n = v ? json_string_length(v) : 0;

    if (!json_is_string(v) || n == 0 || n >= cap || strlen(json_string_value(v)) != n)
        return err_set(e, E_INVALID, "%s must be a string of 1 to %zu bytes", key, cap - 1);
    memcpy(out, json_string_value(v), n + 1);
    return OK;
}

/* "24h": a number and s, m, h or d. */
static int read_window(struct jobstore_batch *b, struct err *e)
{
    size_t n = strlen(b->window);
    char unit = n ? b->window[n - 1] : 0;
    int64_t each = unit == 's'   ? 1
                   : unit == 'm' ? 60
                   : unit == 'h' ? 3600
                   : unit == 'd' ? 86400
                                 : 0;
    int64_t count;

    if (each && str_to_i64(str_of(b->window, n - 1), &count) && count > 0 &&
        count <= WINDOW_MAX_S / each) {
        b->window_s = count * each;
        return OK;
    }
    return err_set(e, E_INVALID,
                   "completion_window is \"%s\", but it must be a time up to 30d such as \"24h\"",
                   b->window);
}

static int read_metadata(struct post_op *p, const json_t *root, struct err *e)
{
    json_t *v = json_object_get(root, "metadata"), *value;
    const char *key;

    if (!v || json_is_null(v)) return OK;
    if (!json_is_object(v) || json_object_size(v) > METADATA_PAIRS)
        return err_set(e, E_INVALID, "metadata must be an object of at most %d texts",
                       METADATA_PAIRS);
    json_object_foreach (v, key, value) {
        if (strlen(key) <= METADATA_KEY && json_is_string(value) &&
            json_string_length(value) <= METADATA_VALUE)
            continue;
        return err_set(
            e, E_INVALID,
            "metadata.%.64s: keys have at most %d bytes, and values are texts of at most "
            "%d bytes",
            key, METADATA_KEY, METADATA_VALUE);
    }
    jsonr_dump(&p->metadata, v, JSON_COMPACT);
    p->b.metadata = buf_str(&p->metadata);
    return buf_check(&p->metadata, e);
}

static int read_members(struct post_op *p, const json_t *root, struct err *e)
{
    struct jobstore_batch *b = &p->b;
    int rc;

    if (!json_is_object(root)) return err_set(e, E_INVALID, "the body must be a JSON object");
    if ((rc = read_text(root, "input_file_id", b->input, sizeof b->input, e)) != OK) return rc;
    if ((rc = read_text(root, "endpoint", b->endpoint, sizeof b->endpoint, e)) != OK) return rc;
    if (!batchline_is_endpoint(str_c(b->endpoint)))
        return err_set(e, E_INVALID, "endpoint is \"%s\", but it must be " BATCHLINE_ENDPOINTS,
                       b->endpoint);
    rc = read_text(root, "completion_window", b->window, sizeof b->window, e);
    if (rc == OK) rc = read_window(b, e);
    return rc == OK ? read_metadata(p, root, e) : rc;
}

static int read_body(struct post_op *p, struct str body, struct err *e)
{
    json_error_t je;
    json_t *root;
    int rc;

    if (str_json_parts(body) > PARTS_MAX)
        return err_set(e, E_INVALID, "the body has too many values");
    if (!(root = jsonr_load(body, JSON_REJECT_DUPLICATES, &je))) {
        if (json_error_code(&je) == json_error_out_of_memory) return err_nomem(e, "the body");
        return err_set(e, E_INVALID, "the body is not valid JSON: %s (line %d, column %d)", je.text,
                       je.line, je.column);
    }
    rc = read_members(p, root, e);
    json_decref(root);
    return rc;
}

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
    if (read_body(p, http_body(t->q), &e) != OK) {
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
