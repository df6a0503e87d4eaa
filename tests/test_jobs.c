/* The store of jobs: what is committed is there after a restart, every job has one answer, and a
 * database that cannot be used is refused with the reason. */
#include "jobs_world.h"

#include "base/clock.h"
#include "base/mem.h"
#include "jobs/db.h"
#include "jobs/journal.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>

/* ---- opening ---- */

static void a_store_is_made_where_there_is_none_and_found_again(void **state)
{
    const char *dir = new_dir();
    struct jobstore *s;
    struct jobstore_file f;
    struct err e;

    (void)state;
    assert_false(jobstore_exists(dir));
    s = must_open(dir, NULL);
    add_file(s, "file-1", "a", "batch", "hello");
    jobstore_close(s);
    assert_true(jobstore_exists(dir));
    s = must_open(dir, NULL);
    assert_int_equal(jobstore_find_file(s, "a", "file-1", &f, &e), OK);
    assert_int_equal(f.bytes, 5);
    assert_int_equal(jobstore_find_file(s, "b", "file-1", &f, &e),
                     E_NOTFOUND); /* another tenant's */
    jobstore_close(s);
}

static void a_store_in_use_is_refused(void **state)
{
    const char *dir = new_dir();
    struct jobstore *s = must_open(dir, NULL), *other = NULL;
    struct err e;

    (void)state;
    assert_int_equal(jobstore_open(&other, dir, &no_limits, &e), E_STORE);
    assert_non_null(strstr(e.msg, "in use by another process"));
    jobstore_close(s);
    s = must_open(dir, NULL);
    jobstore_close(s);
}

/* The database of a store, for harm. */
static const char *db_path(const char *dir)
{
    static char path[600];

    snprintf(path, sizeof path, "%s/jobs.db", dir);
    return path;
}

static int open_code(const char *dir, struct err *e)
{
    struct jobstore *s = NULL;
    int rc = jobstore_open(&s, dir, &no_limits, e);

    jobstore_close(s);
    return rc;
}

static void write_over(const char *path, long at, const char *text)
{
    FILE *f = fopen(path, "r+");

    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    fputs(text, f);
    fclose(f);
}

static void a_file_that_is_no_database_is_refused(void **state)
{
    const char *dir = new_dir();
    struct err e;

    (void)state;
    jobstore_close(must_open(dir, NULL));
    write_over(db_path(dir), 0, "this is a text and no database, whatever its name may say");
    assert_int_equal(open_code(dir, &e), E_FORMAT);
    assert_non_null(strstr(e.msg, "jobs.db"));
}

static void the_database_of_another_program_is_refused(void **state)
{
    const char *dir = new_dir();
    struct err e = { 0 };
    struct db *d;

    (void)state;
    jobstore_close(must_open(dir, NULL));
    assert_int_equal(unlink(db_path(dir)), 0);
    assert_int_equal(db_open(&d, db_path(dir), &e), OK);
    assert_int_equal(db_exec(d, "CREATE TABLE theirs(x)", &e), OK);
    db_close(d);
    assert_int_equal(open_code(dir, &e), E_FORMAT);
    assert_non_null(strstr(e.msg, "another program"));
}

static void a_later_version_is_refused(void **state)
{
    const char *dir = new_dir();
    struct err e = { 0 };
    struct db *d;

    (void)state;
    jobstore_close(must_open(dir, NULL));
    assert_int_equal(db_open(&d, db_path(dir), &e), OK);
    assert_int_equal(db_exec(d, "PRAGMA user_version=2", &e), OK);
    db_close(d);
    assert_int_equal(open_code(dir, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "version 2"));
}

static void a_damaged_database_is_refused(void **state)
{
    const char *dir = new_dir();
    struct jobstore *s = must_open(dir, NULL);
    char zeros[3000];
    struct err e = { 0 };

    (void)state;
    add_file(s, "file-1", "a", "batch", make_lines(300));
    add_batch(s, "batch_1", "file-1", 1000);
    validate(s, "batch_1");
    jobstore_close(s);
    memset(zeros, 'z', sizeof zeros - 1);
    zeros[sizeof zeros - 1] = 0;
    for (int page = 3; page < 12; page++) write_over(db_path(dir), 4096 * page + 8, zeros);
    assert_int_equal(open_code(dir, &e), E_DAMAGED);
    assert_true(e.msg[0]);
}

static void a_folder_that_cannot_be_written_is_a_typed_error(void **state)
{
    const char *dir = new_dir();
    struct err e = { 0 };

    (void)state;
    if (geteuid() == 0) dir = "/proc/tern/jobs"; /* root may write everywhere else */
    else {
        char above[600];
        snprintf(above, sizeof above, "%s", dir);
        *strrchr(above, '/') = 0;
        mkdir(above, 0500);
    }
    assert_true(open_code(dir, &e) == E_READONLY || e.code == E_IO);
    assert_non_null(strstr(e.msg, "cannot make the folder"));
}

/* ---- files ---- */

static void files_have_an_owner_a_list_and_a_limit(void **state)
{
    struct jobstore_limits lim = { .tenant_bytes = 25 };
    struct jobstore *s = must_open(new_dir(), &lim);
    struct jobstore_file f = { .bytes = 10, .id = "file-9", .tenant = "a", .name = "x" };
    struct jobstore_page p = { .tenant = "a", .after = "", .purpose = "", .limit = 2 };
    struct buf b = { 0 };
    struct err e = { 0 };

    (void)state;
    add_file(s, "file-1", "a", "batch", "12345678");
    add_file(s, "file-2", "a", "batch", "12345678");
    add_file(s, "file-3", "b", "batch", "12345678");
    assert_int_equal(jobstore_begin(s, &e), OK);
    assert_int_equal(jobstore_add_file(s, &f, &e), E_QUEUE_FULL);
    assert_non_null(strstr(e.msg, "limit of 25"));
    assert_int_equal(jobstore_list_files(s, &p, &b, &e), OK);
    assert_non_null(strstr(buf_cstr(&b), "\"first_id\":\"file-2\",\"last_id\":\"file-1\""));
    assert_null(strstr(buf_cstr(&b), "file-3"));
    buf_clear(&b);
    p.limit = 1;
    assert_int_equal(jobstore_list_files(s, &p, &b, &e), OK);
    assert_non_null(strstr(buf_cstr(&b), "\"has_more\":true"));
    buf_clear(&b);
    p.after = "file-2";
    assert_int_equal(jobstore_list_files(s, &p, &b, &e), OK);
    assert_non_null(strstr(buf_cstr(&b), "file-1"));
    assert_null(strstr(buf_cstr(&b), "file-2"));
    p.after = "file-7";
    assert_int_equal(jobstore_list_files(s, &p, &b, &e), E_INVALID);
    assert_int_equal(jobstore_delete_file(s, "b", "file-1", &e), E_NOTFOUND);
    jobstore_rollback(s);
    buf_release(&b);
    jobstore_close(s);
}

static void bytes_go_with_the_commit_and_not_before(void **state)
{
    struct jobstore *s = must_open(new_dir(), NULL);
    char path[1000];
    struct err e;

    (void)state;
    add_file(s, "file-1", "a", "batch", "hello");
    jobstore_path(s, path, sizeof path, "files", "file-1");
    assert_int_equal(jobstore_begin(s, &e), OK);
    assert_int_equal(jobstore_delete_file(s, "a", "file-1", &e), OK);
    jobstore_rollback(s);
    assert_int_equal(access(path, R_OK), 0);
    IN_TRANSACTION(s, jobstore_delete_file(s, "a", "file-1", tx));
    assert_int_equal(access(path, R_OK), -1);
    jobstore_close(s);
}

static void uploads_that_were_cut_off_are_removed_at_the_next_start(void **state)
{
    const char *dir = new_dir();
    struct jobstore *s = must_open(dir, NULL);
    char tmp[1000], orphan[1000];

    (void)state;
    jobstore_path(s, tmp, sizeof tmp, "tmp", "file-1");
    jobstore_path(s, orphan, sizeof orphan, "files",
                  "file-2"); /* moved, but its row not committed */
    fclose(fopen(tmp, "w"));
    fclose(fopen(orphan, "w"));
    add_file(s, "file-3", "a", "batch", "x");
    jobstore_close(s);
    s = must_open(dir, NULL);
    assert_int_equal(access(tmp, F_OK), -1);
    assert_int_equal(access(orphan, F_OK), -1);
    jobstore_path(s, tmp, sizeof tmp, "files", "file-3");
    assert_int_equal(access(tmp, F_OK), 0);
    jobstore_close(s);
}

/* ---- batches ---- */

static const char *batch_json(struct jobstore *s, const char *id)
{
    static struct buf b;
    struct err e = { 0 };

    buf_clear(&b);
    if (jobstore_write_batch(s, "a", id, &b, &e) != OK) fail_msg("%s", e.msg);
    return buf_cstr(&b);
}

static const char *result_of(struct jobstore *s, const char *id, const char *which)
{
    char path[1000], file[STORE_ID];
    const char *at = strstr(batch_json(s, id), which);

    assert_non_null(at);
    at += strlen(which);
    snprintf(file, sizeof file, "%.*s", (int)strcspn(at, "\""), at);
    jobstore_path(s, path, sizeof path, "files", file);
    return read_all(path);
}
#define OUTPUT "\"output_file_id\":\""
#define ERRORS "\"error_file_id\":\""

/* Answers all lines but those whose number is a multiple of skip; those of a multiple of 3 badly. */
static int answer_lines(struct jobstore *s, const char *id, int skip)
{
    struct jobstore_job *list;
    struct err e = { 0 };
    int64_t after = 0;
    bool last = false;
    int n = 0;

    while (!last) {
        assert_int_equal(jobstore_fetch_jobs(s, id, "", after, 10, &list, &last, &e), OK);
        for (const struct jobstore_job *j = list; j; j = j->next) {
            after = j->seq;
            assert_non_null(strstr(j->body, "\"prompt\":\"p"));
            assert_non_null(strstr(j->body, "\"x\":1.5"));
            if (skip && ++n % skip == 0) continue;
            assert_true(answer(s, j->seq, j->seq % 3 ? 200 : 400, "{\"ok\":1}"));
            assert_false(answer(s, j->seq, 200, "{\"again\":1}")); /* the first one stays */
        }
        jobstore_free_jobs(list);
    }
    return n;
}

static void a_batch_runs_from_its_file_to_its_results(void **state)
{
    const char *dir = new_dir(), *out;
    struct jobstore *s = must_open(dir, NULL);
    struct jobstore_counts n = { 0 };
    struct err e;

    (void)state;
    add_file(s, "file-1", "a", "batch", make_lines(600));
    add_batch(s, "batch_1", "file-1", 1000);
    assert_non_null(strstr(batch_json(s, "batch_1"), "\"status\":\"validating\""));
    validate(s, "batch_1");
    assert_non_null(strstr(batch_json(s, "batch_1"), "\"status\":\"in_progress\""));
    assert_int_equal(jobstore_delete_file(s, "a", "file-1", &e), E_CONCURRENCY);
    answer_lines(s, "batch_1", 0);
    assert_non_null(strstr(batch_json(s, "batch_1"), "\"status\":\"finalizing\""));
    jobstore_close(s); /* and killed before the results were written */
    s = must_open(dir, NULL);
    finish(s, "batch_1");
    assert_non_null(strstr(batch_json(s, "batch_1"), "\"status\":\"completed\""));
    assert_non_null(strstr(batch_json(s, "batch_1"),
                           "\"request_counts\":{\"total\":600,\"completed\":400,\"failed\":200}"));
    out = result_of(s, "batch_1", OUTPUT);
    assert_int_equal(count(out, "\n"), 400);
    assert_int_equal(count(out, "\"status_code\":200"), 400);
    assert_int_equal(count(out, "again"), 0);
    assert_int_equal(count(result_of(s, "batch_1", ERRORS), "\"status_code\":400"), 200);
    assert_int_equal(jobstore_count(s, &n, &e), OK);
    assert_true(n.queued_lines == 0 && n.batches[BATCH_COMPLETED] == 1 && n.files == 3);
    jobstore_close(s);
}

/* A line is lost or doubled if a step of validation is repeated after a kill. */
static void validation_goes_on_after_a_restart(void **state)
{
    const char *dir = new_dir();
    struct jobstore *s = must_open(dir, NULL);
    bool more;

    (void)state;
    add_file(s, "file-1", "a", "batch", make_lines(700));
    add_batch(s, "batch_1", "file-1", 1000);
    IN_TRANSACTION(s, jobstore_validate_step(s, "batch_1", &more, tx));
    assert_true(more);
    jobstore_close(s);
    s = must_open(dir, NULL);
    validate(s, "batch_1");
    assert_non_null(strstr(batch_json(s, "batch_1"), "{\"total\":700,"));
    jobstore_close(s);
}

static void lines_that_are_wrong_fail_the_batch_and_are_named(void **state)
{
    static const char lines[] =
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{}}\n"
        "\n"
        "{nonsense\n"
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{}}\n"
        "{\"custom_id\":\"b\",\"method\":\"GET\",\"url\":\"/v1/completions\",\"body\":{}}\n"
        "{\"custom_id\":\"c\",\"method\":\"POST\",\"url\":\"/v1/embeddings\",\"body\":{}}\n"
        "{\"custom_id\":\"d\",\"method\":\"POST\",\"url\":\"/v1/completions\"}\n"
        "{\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{}}\n"
        "[]\n"
        "{\"custom_id\":\"e\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"stream\":"
        "true}}";
    static const char *const want[] = {
        "\"code\":\"invalid_json_line\"",
        "\"line\":3",
        "\"code\":\"duplicate_custom_id\"",
        "\"line\":4",
        "\"code\":\"invalid_method\"",
        "\"code\":\"invalid_url\"",
        "\"param\":\"body\",\"line\":7",
        "\"param\":\"custom_id\",\"line\":8",
        "\"line\":9",
        "\"param\":\"body.stream\",\"line\":10",
        "\"status\":\"failed\"",
    };
    struct jobstore *s = must_open(new_dir(), NULL);
    struct jobstore_counts n = { 0 };
    struct err e;

    (void)state;
    add_file(s, "file-1", "a", "batch", lines);
    add_batch(s, "batch_1", "file-1", 1000);
    validate(s, "batch_1");
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        if (!strstr(batch_json(s, "batch_1"), want[i]))
            fail_msg("%s is not in %s", want[i], batch_json(s, "batch_1"));
    assert_int_equal(jobstore_count(s, &n, &e), OK);
    assert_int_equal(n.queued_lines, 0);
    jobstore_close(s);
}

static void empty_and_too_long_files_fail(void **state)
{
    struct jobstore_limits lim = { .max_lines = 5 };
    struct jobstore *s = must_open(new_dir(), &lim);

    (void)state;
    add_file(s, "file-1", "a", "batch", "");
    add_file(s, "file-2", "a", "batch", "\n\n  \n");
    add_file(s, "file-3", "a", "batch", make_lines(6));
    add_file(s, "file-4", "a", "batch", make_lines(5));
    add_batch(s, "batch_1", "file-1", 1000);
    add_batch(s, "batch_2", "file-2", 1000);
    add_batch(s, "batch_3", "file-3", 1000);
    add_batch(s, "batch_4", "file-4", 1000);
    for (int i = 1; i <= 4; i++)
        validate(s, (char[]){ 'b', 'a', 't', 'c', 'h', '_', (char)('0' + i), 0 });
    assert_non_null(strstr(batch_json(s, "batch_1"), "empty_file"));
    assert_non_null(strstr(batch_json(s, "batch_2"), "empty_file"));
    assert_non_null(strstr(batch_json(s, "batch_3"), "too_many_lines"));
    assert_non_null(strstr(batch_json(s, "batch_4"), "in_progress"));
    jobstore_close(s);
}

static void a_cancelled_batch_keeps_the_answers_it_has(void **state)
{
    struct jobstore *s = must_open(new_dir(), NULL);
    struct err e = { 0 };

    (void)state;
    add_file(s, "file-1", "a", "batch", make_lines(20));
    add_batch(s, "batch_1", "file-1", 1000);
    validate(s, "batch_1");
    answer_lines(s, "batch_1", 2);
    assert_int_equal(jobstore_cancel_batch(s, "b", "batch_1", &e), E_NOTFOUND);
    IN_TRANSACTION(s, jobstore_cancel_batch(s, "a", "batch_1", tx));
    IN_TRANSACTION(s, jobstore_cancel_batch(s, "a", "batch_1", tx)); /* may be repeated */
    assert_non_null(strstr(batch_json(s, "batch_1"), "\"status\":\"cancelling\""));
    finish(s, "batch_1");
    assert_non_null(strstr(batch_json(s, "batch_1"), "\"status\":\"cancelled\""));
    assert_int_equal(count(result_of(s, "batch_1", ERRORS), "batch_cancelled"), 10);
    assert_int_equal(count(result_of(s, "batch_1", OUTPUT), "\n") +
                         count(result_of(s, "batch_1", ERRORS), "\n"),
                     20);
    jobstore_close(s);
}

static void a_batch_expires_with_the_answers_it_has(void **state)
{
    struct jobstore *s = must_open(new_dir(), NULL);
    struct err e = { 0 };

    (void)state;
    add_file(s, "file-1", "a", "batch", make_lines(20));
    add_batch(s, "batch_1", "file-1", 100);
    validate(s, "batch_1");
    answer_lines(s, "batch_1", 4);
    IN_TRANSACTION(s, jobstore_expire_batches(s, jobstore_now(), tx));
    assert_non_null(strstr(batch_json(s, "batch_1"), "\"status\":\"in_progress\""));
    IN_TRANSACTION(s, jobstore_expire_batches(s, jobstore_now() + 101, tx));
    finish(s, "batch_1");
    assert_non_null(strstr(batch_json(s, "batch_1"), "\"status\":\"expired\""));
    assert_int_equal(count(result_of(s, "batch_1", ERRORS), "batch_expired"), 5);
    assert_int_equal(jobstore_cancel_batch(s, "a", "batch_1", &e), E_CONCURRENCY);
    jobstore_close(s);
}

static void limits_of_a_tenant_hold(void **state)
{
    struct jobstore_limits lim = { .max_lines = 100, .tenant_batches = 1, .tenant_jobs = 2 };
    struct jobstore *s = must_open(new_dir(), &lim);
    struct jobstore_batch b = { .id = "batch_2", .tenant = "a", .input = "file-1", .window_s = 9 };
    struct jobstore_new_job j = { .tenant = "a", .endpoint = "/v1/completions", .body = STR("{}") };
    struct err e = { 0 };
    int64_t seq;

    (void)state;
    add_file(s, "file-1", "a", "batch", make_lines(2));
    add_file(s, "file-2", "a", "assistants", make_lines(2));
    add_batch(s, "batch_1", "file-1", 1000);
    assert_int_equal(jobstore_add_batch(s, &b, &e), E_QUEUE_FULL);
    finish(s, "batch_1"); /* not due: nothing happens */
    snprintf(b.input, sizeof b.input, "file-2");
    assert_int_equal(jobstore_add_batch(s, &b, &e), E_INVALID);
    for (int i = 0; i < 2; i++) {
        jobstore_make_id(j.id, "job_");
        IN_TRANSACTION(s, jobstore_add_job(s, &j, &seq, tx));
    }
    jobstore_make_id(j.id, "job_");
    assert_int_equal(jobstore_add_job(s, &j, &seq, &e), E_QUEUE_FULL);
    jobstore_close(s);
}

/* ---- durable requests ---- */

static void a_request_with_a_key_is_accepted_once(void **state)
{
    struct jobstore *s = must_open(new_dir(), NULL);
    struct jobstore_new_job j = { .id = "job_1",
                                  .tenant = "a",
                                  .endpoint = "/v1/completions",
                                  .body = STR("{\"prompt\":\"x\"}"),
                                  .key = STR("k") },
                            again = j, other = j;
    struct jobstore_job *list = NULL;
    struct buf b = { 0 };
    int64_t seq, no_seq, seq2;
    struct err err;
    bool last;

    (void)state;
    snprintf(again.id, sizeof again.id, "job_2");
    snprintf(other.id, sizeof other.id, "job_3");
    snprintf(other.tenant, sizeof other.tenant, "b");
    IN_TRANSACTION(s, jobstore_add_job(s, &j, &seq, tx));
    IN_TRANSACTION(s, jobstore_add_job(s, &again, &no_seq, tx));
    IN_TRANSACTION(s, jobstore_add_job(s, &other, &seq2, tx));
    assert_true(seq && !no_seq && seq2);
    assert_string_equal(again.id, "job_1");
    assert_int_equal(jobstore_fetch_jobs(s, "", "a", 0, 10, &list, &last, &err), OK);
    assert_true(last && list && !list->next); /* of this tenant only */
    assert_string_equal(list->body, "{\"prompt\":\"x\"}");
    jobstore_free_jobs(list);
    assert_true(answer(s, seq, 200, "{\"text\":\"y\"}"));
    assert_int_equal(jobstore_write_job(s, "a", "job_1", &b, &err), OK);
    assert_non_null(strstr(buf_cstr(&b), "\"status\":\"completed\""));
    assert_non_null(strstr(buf_cstr(&b), "\"body\":{\"text\":\"y\"}"));
    assert_int_equal(jobstore_cancel_job(s, "a", "job_1", &no_seq, &err), E_CONCURRENCY);
    assert_int_equal(jobstore_write_job(s, "b", "job_1", &b, &err), E_NOTFOUND);
    IN_TRANSACTION(s, jobstore_cancel_job(s, "b", "job_3", &seq2, tx));
    assert_false(answer(s, seq2, 200, "{}"));
    buf_release(&b);
    jobstore_close(s);
}

static void old_results_are_removed(void **state)
{
    struct jobstore_limits lim = { .max_lines = 100, .retention_s = 50 };
    struct jobstore *s = must_open(new_dir(), &lim);
    struct jobstore_new_job j = {
        .id = "job_1", .tenant = "a", .endpoint = "/v1/completions", .body = STR("{}")
    };
    struct jobstore_counts n = { 0 };
    char path[1000];
    int64_t seq;
    struct err err;

    (void)state;
    add_file(s, "file-1", "a", "batch", "x");
    IN_TRANSACTION(s, jobstore_add_job(s, &j, &seq, tx));
    answer(s, seq, 200, "{}");
    IN_TRANSACTION(s, jobstore_purge(s, jobstore_now() + 10, tx));
    assert_int_equal(jobstore_count(s, &n, &err), OK);
    assert_true(n.files == 1 && n.answered == 1);
    IN_TRANSACTION(s, jobstore_purge(s, jobstore_now() + 60, tx));
    memset(&n, 0, sizeof n);
    assert_int_equal(jobstore_count(s, &n, &err), OK);
    assert_true(n.files == 0 && n.answered == 0);
    jobstore_path(s, path, sizeof path, "files", "file-1");
    assert_int_equal(access(path, F_OK), -1);
    jobstore_close(s);
}

/* ---- the journal ---- */

struct op {
    struct journal_op op; /* first */
    struct jobstore_new_job job;
    int64_t seq;
    int fails;
    bool was_done;
};

static atomic_int n_wakes;

static void on_wake(void *arg)
{
    (void)arg;
    atomic_fetch_add(&n_wakes, 1);
}

static int run_add(struct jobstore *s, struct journal_op *op, struct err *e)
{
    struct op *o = (struct op *)op;
    int rc = jobstore_add_job(s, &o->job, &o->seq, e);

    if (rc == OK && o->fails) rc = err_set(e, o->fails, "asked to fail");
    return rc;
}

static void on_done(struct journal_op *op) { ((struct op *)op)->was_done = true; }

static void wait_for_all(struct journal *j)
{
    uint64_t start = clock_ns();

    while (journal_n_waiting(j) > 0 && clock_ms_since(start) < 120000) {
        journal_process(j);
        usleep(200);
    }
    assert_int_equal(journal_n_waiting(j), 0);
}

static void fill_op(struct op *o, int fails)
{
    *o = (struct op){ .op = { .run = run_add, .done = on_done },
                      .job = { .tenant = "a", .endpoint = "/v1/completions", .body = STR("{}") },
                      .fails = fails };
    jobstore_make_id(o->job.id, "job_");
}

static void operations_share_commits_and_fail_alone(void **state)
{
    enum { N = 2000 };
    const char *dir = new_dir();
    struct op *ops = calloc(N, sizeof *ops);
    struct jobstore_counts n = { 0 };
    struct journal *j;
    struct jobstore *s;
    struct err e;

    (void)state;
    assert_int_equal(journal_open(&j, dir, &no_limits, on_wake, NULL, &e), OK);
    assert_false(jobstore_exists(dir)); /* nothing is opened before the first operation */
    for (int i = 0; i < N; i++) {
        fill_op(&ops[i], i % 10 == 3 ? E_QUEUE_FULL : i % 10 == 7 ? E_DAMAGED : 0);
        journal_add(j, &ops[i].op);
    }
    wait_for_all(j);
    for (int i = 0; i < N; i++) {
        int want = i % 10 == 3 ? E_QUEUE_FULL : i % 10 == 7 ? E_STORE : OK;
        assert_true(ops[i].was_done);
        assert_int_equal(ops[i].op.rc, want);
    }
    assert_true(counter_get(&journal_stats(j)->commits) < N / 10);
    journal_close(j);
    s = must_open(dir, NULL);
    assert_int_equal(jobstore_count(s, &n, &e), OK);
    assert_int_equal(n.queued, N / 10 * 8);
    jobstore_close(s);
    free(ops);
}

static void closing_the_journal_carries_out_what_waits(void **state)
{
    const char *dir = new_dir();
    struct jobstore_counts n = { 0 };
    struct op ops[50];
    struct journal *j;
    struct jobstore *s;
    struct err e;

    (void)state;
    assert_int_equal(journal_open(&j, dir, &no_limits, on_wake, NULL, &e), OK);
    for (int i = 0; i < 50; i++) fill_op(&ops[i], 0), journal_add(j, &ops[i].op);
    journal_close(j);
    for (int i = 0; i < 50; i++) assert_true(ops[i].was_done);
    s = must_open(dir, NULL);
    assert_int_equal(jobstore_count(s, &n, &e), OK);
    assert_int_equal(n.queued, 50);
    jobstore_close(s);
}

static void a_store_that_could_not_be_opened_is_tried_again(void **state)
{
    const char *dir = new_dir();
    struct jobstore *holder = must_open(dir, NULL);
    struct journal *j;
    struct op o;
    struct err e;

    (void)state;
    assert_int_equal(journal_open(&j, dir, &no_limits, on_wake, NULL, &e), OK);
    fill_op(&o, 0);
    journal_add(j, &o.op);
    wait_for_all(j);
    assert_int_equal(o.op.rc, E_STORE);
    assert_non_null(strstr(o.op.err.msg, "in use"));
    jobstore_close(holder);
    fill_op(&o, 0);
    journal_add(j, &o.op);
    wait_for_all(j);
    assert_int_equal(o.op.rc, OK);
    journal_close(j);
}

/* A limit on the size of files stands for the disk. */
static void set_file_limit(rlim_t bytes)
{
    struct rlimit r;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &r), 0);
    r.rlim_cur = bytes < r.rlim_max ? bytes : r.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &r), 0);
}

static void a_full_disk_is_a_typed_error_and_passes(void **state)
{
    enum { BYTES = 3 << 20 };
    const char *dir = new_dir();
    char *body = calloc(1, BYTES);
    struct jobstore_counts n = { 0 };
    struct journal *j;
    struct jobstore *s;
    struct err e;
    struct op o;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    memset(body, 'x', BYTES);
    assert_int_equal(journal_open(&j, dir, &no_limits, on_wake, NULL, &e), OK);
    fill_op(&o, 0);
    journal_add(j, &o.op);
    wait_for_all(j);
    assert_int_equal(o.op.rc, OK);
    set_file_limit(1 << 20);
    fill_op(&o, 0);
    o.job.body = str_of(body, BYTES);
    journal_add(j, &o.op);
    wait_for_all(j);
    set_file_limit(RLIM_INFINITY);
    assert_int_equal(o.op.rc, E_FULL);
    assert_true(o.op.err.msg[0]);
    fill_op(&o, 0);
    journal_add(j, &o.op); /* there is room again */
    wait_for_all(j);
    assert_int_equal(o.op.rc, OK);
    journal_close(j);
    s = must_open(dir, NULL);
    assert_int_equal(jobstore_count(s, &n, &e), OK);
    assert_int_equal(n.queued, 2);
    jobstore_close(s);
    free(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_is_made_where_there_is_none_and_found_again),
        cmocka_unit_test(a_store_in_use_is_refused),
        cmocka_unit_test(a_file_that_is_no_database_is_refused),
        cmocka_unit_test(the_database_of_another_program_is_refused),
        cmocka_unit_test(a_later_version_is_refused),
        cmocka_unit_test(a_damaged_database_is_refused),
        cmocka_unit_test(a_folder_that_cannot_be_written_is_a_typed_error),
        cmocka_unit_test(files_have_an_owner_a_list_and_a_limit),
        cmocka_unit_test(bytes_go_with_the_commit_and_not_before),
        cmocka_unit_test(uploads_that_were_cut_off_are_removed_at_the_next_start),
        cmocka_unit_test(a_batch_runs_from_its_file_to_its_results),
        cmocka_unit_test(validation_goes_on_after_a_restart),
        cmocka_unit_test(lines_that_are_wrong_fail_the_batch_and_are_named),
        cmocka_unit_test(empty_and_too_long_files_fail),
        cmocka_unit_test(a_cancelled_batch_keeps_the_answers_it_has),
        cmocka_unit_test(a_batch_expires_with_the_answers_it_has),
        cmocka_unit_test(limits_of_a_tenant_hold),
        cmocka_unit_test(a_request_with_a_key_is_accepted_once),
        cmocka_unit_test(old_results_are_removed),
        cmocka_unit_test(operations_share_commits_and_fail_alone),
        cmocka_unit_test(closing_the_journal_carries_out_what_waits),
        cmocka_unit_test(a_store_that_could_not_be_opened_is_tried_again),
        cmocka_unit_test(a_full_disk_is_a_typed_error_and_passes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
