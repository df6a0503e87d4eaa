/* The store of jobs without memory, files or threads: every operation fails with a typed error, and
 * what was committed before is there. SQLite's own allocations are not under test. */
#include "fault.h"

#include "base/buf.h"
#include "base/mem.h"
#include "jobs/journal.h"
#include "jobs/batchline.h"
#include "jobs/jobstore.h"
#include "jobs/upload.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct jobstore_limits lim = { .max_lines = 100 };
static char dir[300];
static int n_runs;

static void new_folder(void)
{
    fault_pause();
    snprintf(dir, sizeof dir, "%s/jobs-%d", temp_dir(), n_runs++);
    fault_resume();
}

static const char form[] =
    "--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--x\r\n"
    "Content-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n"
    "{\"custom_id\":\"1\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"a\":1}}\n"
    "{\"custom_id\":\"2\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"a\":2}}\n"
    "\r\n--x--\r\n";

static int upload_file(struct jobstore *s, char id[STORE_ID], struct err *e)
{
    struct upload *u = upload_open(dir, STR("multipart/form-data; boundary=x"), 10000);
    char path[4000];
    int rc;

    if (!u) return err_nomem(e, "an upload");
    u->sink.add(&u->sink, form, sizeof form - 1);
    rc = upload_end(u, e);
    if (rc == OK) {
        snprintf(u->file.tenant, sizeof u->file.tenant, "a");
        jobstore_path(s, path, sizeof path, "tmp", u->file.id);
        rc = rename(u->path, path) == 0 ? OK : err_set(e, E_IO, "rename");
        if (rc == OK && (rc = jobstore_begin(s, e)) == OK) {
            rc = jobstore_add_file(s, &u->file, e);
            if (rc == OK) rc = jobstore_commit(s, e);
            else jobstore_rollback(s);
        }
        memcpy(id, u->file.id, STORE_ID);
        u->path[0] = 0;
    }
    upload_close(u);
    return rc;
}

/* One transaction of several operations; the first error ends it. */
static int use_store(struct jobstore *s, struct err *e)
{
    struct jobstore_batch b = { .id = "batch_1",
                                .tenant = "a",
                                .endpoint = "/v1/completions",
                                .window = "1h",
                                .window_s = 3600,
                                .metadata = STR("{\"k\":\"v\"}") };
    struct jobstore_page page = { .tenant = "a", .after = "", .purpose = "", .limit = 10 };
    struct jobstore_answer answer = { .status = 200, .request_id = STR("r"), .body = STR("{}") };
    struct jobstore_job *list = NULL;
    struct buf out = { 0 };
    bool more = true, last, first, ended;
    int64_t after = 0;
    int rc = upload_file(s, b.input, e);

    if (rc != OK || (rc = jobstore_begin(s, e)) != OK) return rc;
    if ((rc = jobstore_add_batch(s, &b, e)) != OK) goto out;
    while (rc == OK && more) rc = jobstore_validate_step(s, b.id, &more, e);
    if (rc == OK) rc = jobstore_fetch_jobs(s, b.id, "", 0, 10, &list, &last, e);
    for (struct jobstore_job *j = list; j && rc == OK; j = j->next)
        rc = jobstore_answer_job(s, j->seq, &answer, &first, &ended, e);
    for (more = true; rc == OK && more;) rc = jobstore_finish_step(s, b.id, &after, &more, e);
    if (rc == OK) rc = jobstore_write_batch(s, "a", b.id, &out, e);
    if (rc == OK) rc = jobstore_list_batches(s, &page, &out, e);
    if (rc == OK) rc = jobstore_list_files(s, &page, &out, e);
    if (rc == OK) rc = buf_check(&out, e);
    if (rc == OK && !strstr(buf_cstr(&out), "\"total\":2,\"completed\":2"))
        rc = err_set(e, E_INTERNAL, "the batch is not complete");
out:
    jobstore_free_jobs(list);
    buf_release(&out);
    if (rc != OK) {
        jobstore_rollback(s);
        return rc;
    }
    return jobstore_commit(s, e);
}

static int run_store(void *arg, struct err *e)
{
    struct jobstore *s = NULL;
    int rc;

    (void)arg;
    new_folder();
    rc = jobstore_open(&s, dir, &lim, e);
    if (rc == OK) rc = use_store(s, e);
    jobstore_close(s);
    return rc;
}

/* ---- the journal ---- */

static void no_wake(void *arg) { (void)arg; }

struct op {
    struct journal_op op; /* first */
    bool was_done;
};

static int run_add(struct jobstore *s, struct journal_op *op, struct err *e)
{
    struct jobstore_new_job j = {
        .id = "job_1", .tenant = "a", .endpoint = "/v1/completions", .body = STR("{}")
    };
    int64_t seq;

    (void)op;
    return jobstore_add_job(s, &j, &seq, e);
}

static void on_done(struct journal_op *op) { ((struct op *)op)->was_done = true; }

static int run_journal(void *arg, struct err *e)
{
    struct op o = { .op = { .run = run_add, .done = on_done } };
    struct journal *j = NULL;
    int rc;

    (void)arg;
    new_folder();
    if ((rc = journal_open(&j, dir, &lim, no_wake, NULL, e)) != OK) return rc;
    journal_add(j, &o.op);
    journal_close(j);
    if (!o.was_done) return err_set(e, E_INTERNAL, "an operation was not done");
    if (o.op.rc != OK && e) *e = o.op.err;
    return o.op.rc;
}

static void test_store(void **state)
{
    (void)state;
    fault_run("store", run_store, NULL);
}

static void test_journal(void **state)
{
    (void)state;
    fault_run("journal", run_journal, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_store),
                                        cmocka_unit_test(test_journal) };

    fault_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
