/* Durable jobs between gateways: the messages of JetStream, and the operations on it against a server that
 * loses replies, goes away and is asked by two gateways at once. */
#include "base/clock.h"
#include "base/jsonr.h"
#include "base/jsonw.h"
#include "ledger/ledger_impl.h"
#include "support.h"

#include <stdio.h>

#define ID "job_0123456789abcdefghijklmn"

/* ---- messages ---- */

static struct jobrecord sample(bool is_answer)
{
    struct jobrecord r = { .is_answer = is_answer,
                           .id = ID,
                           .tenant = "alice",
                           .endpoint = "/v1/completions",
                           .created = 1794969058,
                           .body = STR("{\"a\": 1}") };

    if (is_answer) r.ended = 1794969059, r.status = 200;
    return r;
}

static void a_record_reads_as_it_was_written(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct jobrecord r = sample(i), got;
        struct buf b = { 0 };
        struct err e = { 0 };

        jobrecord_write(&r, &b);
        assert_int_equal(jobrecord_read(&got, buf_str(&b), &e), OK);
        assert_string_equal(got.id, r.id);
        assert_string_equal(got.tenant, "alice");
        assert_string_equal(got.endpoint, r.endpoint);
        assert_int_equal(got.created, r.created);
        assert_int_equal(got.status, r.status);
        assert_true(got.is_answer == r.is_answer && str_eq(got.body, r.body));
        for (size_t n = 0; n < b.n; n++) /* cut anywhere */
            assert_int_equal(jobrecord_read(&got, str_of(b.p, n), &e), E_FORMAT);
        buf_putc(&b, ' '); /* too long */
        assert_int_equal(jobrecord_read(&got, buf_str(&b), &e), E_FORMAT);
        buf_release(&b);
    }
}

static void messages_of_strangers_are_refused_by_member(void **state)
{
#define HEAD "\"kind\":\"job\",\"id\":\"" ID "\",\"tenant\":\"a\",\"endpoint\":\"/v1/completions\","
    static const struct {
        const char *text;
        int rc;
        const char *names;
    } rows[] = {
        { "{\"v\":1," HEAD "\"created\":1,\"bytes\":2}\n{}", OK, "" },
        { "", E_FORMAT, "line of JSON" },
        { "\n", E_FORMAT, "line of JSON" },
        { "[]\n", E_FORMAT, "line of JSON" },
        { "{}", E_FORMAT, "line of JSON" },
        { "{}\n", E_FORMAT, "'v'" },
        { "{\"v\":\"1\"}\n", E_FORMAT, "'v'" },
        { "{\"v\":2}\n", E_UNSUPPORTED, "version" },
        { "{\"v\":1,\"v\":1," HEAD "\"created\":1,\"bytes\":2}\n{}", E_FORMAT, "line of JSON" },
        { "{\"v\":1}\n", E_FORMAT, "'kind'" },
        { "{\"v\":1,\"kind\":\"cat\"}\n", E_FORMAT, "cat" },
        { "{\"v\":1,\"kind\":\"job\",\"id\":\"job_1\"}\n", E_FORMAT, "not the id" },
        { "{\"v\":1,\"kind\":\"job\",\"id\":\"job_01234567.9abcdefghijk>mn\"}\n", E_FORMAT,
          "not the id" },
        { "{\"v\":1,\"kind\":\"job\",\"id\":\"" ID "\",\"tenant\":\"a\\nb\"}\n", E_FORMAT,
          "control" },
        { "{\"v\":1,\"kind\":\"job\",\"id\":\"" ID "\",\"tenant\":\"a\",\"endpoint\":\"v1\"}\n",
          E_FORMAT, "path" },
        { "{\"v\":1," HEAD "\"created\":-1,\"bytes\":2}\n{}", E_FORMAT, "'created'" },
        { "{\"v\":1," HEAD "\"created\":1e3,\"bytes\":2}\n{}", E_FORMAT, "'created'" },
        { "{\"v\":1," HEAD "\"created\":1}\n{}", E_FORMAT, "'bytes'" },
        { "{\"v\":1," HEAD "\"created\":1,\"bytes\":3}\n{}", E_FORMAT, "2 bytes" },
        { "{\"v\":1," HEAD "\"created\":1,\"bytes\":99999999999999999999}\n{}", E_FORMAT,
          "'bytes'" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct jobrecord r;
        struct err e = { 0 };
        int rc = jobrecord_read(&r, str_c(rows[i].text), &e);

        if (rc != rows[i].rc || !strstr(e.msg, rows[i].names))
            fail_msg("row %zu: %d (%s)", i, rc, e.msg);
    }
}

static void an_answer_has_a_status_or_an_error(void **state)
{
    struct jobrecord r = sample(true), got;
    struct buf b = { 0 };
    struct err e = { 0 };

    (void)state;
    r.status = 0;
    jobrecord_write(&r, &b);
    assert_int_equal(jobrecord_read(&got, buf_str(&b), &e), E_FORMAT);
    buf_clear(&b);
    snprintf(r.error, sizeof r.error, "job_failed");
    jobrecord_write(&r, &b);
    assert_int_equal(jobrecord_read(&got, buf_str(&b), &e), OK);
    assert_string_equal(got.error, "job_failed");
    buf_release(&b);
}

static void names_follow_from_tenant_and_key(void **state)
{
    char a[JOBRECORD_ID], b[JOBRECORD_ID], c[JOBRECORD_ID], s[LEDGER_SUBJECT], t[LEDGER_SUBJECT],
        u[LEDGER_SUBJECT];

    (void)state;
    jobrecord_make_id(a, "alice", STR("order-17"));
    jobrecord_make_id(b, "alice", STR("order-17"));
    jobrecord_make_id(c, "bob", STR("order-17"));
    assert_string_equal(a, b);
    assert_string_not_equal(a, c);
    assert_true(jobrecord_is_id(str_c(a)));
    jobrecord_make_id(b, "alice", (struct str){ 0 });
    jobrecord_make_id(c, "alice", (struct str){ 0 });
    assert_string_not_equal(b, c);
    assert_true(jobrecord_is_id(str_c(b)) && jobrecord_is_id(str_c(c)));
    assert_true(strncmp(b, c, 4 + 8) <= 0); /* the older one comes first */

    jobrecord_subject(s, LEDGER_JOBS, "alice", a);
    assert_true(jobrecord_id_of(s, b));
    assert_string_equal(a, b);
    jobrecord_subject(t, LEDGER_ANSWERS, "alice", a);
    assert_true(jobrecord_answer_of(s, u));
    assert_string_equal(u, t);
    assert_false(jobrecord_answer_of(t, u)); /* it is one */
    assert_false(jobrecord_id_of("tern.jobs.x.job_1", b));
    assert_false(jobrecord_id_of("", b));
    jobrecord_subject(t, LEDGER_JOBS, "a.*.> b",
                      ID); /* no character of a tenant gets into a subject */
    for (const char *p = t; *p; p++) assert_true(*p != '*' && *p != '>' && *p != ' ');
}

static void what_stands_in_the_store_is_shown_as_json(void **state)
{
    static const char *const bodies[] = { "{\"a\":1}",   "{\"a\":}", "{",   "",
                                          "{\"a\":1} x", "{}\n",     "\xff" };

    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        struct jobrecord r = sample(true);
        struct buf b = { 0 };
        struct jsonw w = { .out = &b };
        json_t *root;

        r.body = str_c(bodies[i]);
        jobrecord_write_json(&r, &w, true);
        root = jsonr_load(buf_str(&b), 0, NULL);
        assert_true(json_is_object(root));
        assert_string_equal(json_string_value(json_object_get(root, "status")), "completed");
        json_decref(root);
        buf_release(&b);
    }
}

/* ---- operations ---- */

/* A server in memory that can be told to misbehave. */
struct ledger_link {
    struct {
        char subject[LEDGER_SUBJECT];
        struct buf data;
    } at[2][8];
    int n[2];
    enum ledger_result next[4]; /* of the next additions; LEDGER_DONE: as it is */
    int n_next, n_acks;
    bool writes; /* an addition that answers LEDGER_UNSURE has written */
};

static int find_at(struct ledger_link *l, enum ledger_stream st, const char *subject)
{
    for (int i = 0; i < l->n[st]; i++)
        if (strcmp(l->at[st][i].subject, subject) == 0) return i;
    return -1;
}

static enum ledger_result fake_add(struct ledger_link *l, enum ledger_stream st,
                                   const char *subject, const char *p, size_t n, int wait_ms,
                                   char *why, size_t n_why)
{
    enum ledger_result r = l->n_next ? l->next[--l->n_next] : LEDGER_DONE;
    int i = l->n[st];

    (void)wait_ms;
    snprintf(why, n_why, "fake");
    if (r != LEDGER_DONE && !(r == LEDGER_UNSURE && l->writes)) return r;
    if (find_at(l, st, subject) >= 0) return LEDGER_EXISTS;
    snprintf(l->at[st][i].subject, LEDGER_SUBJECT, "%s", subject);
    buf_add(&l->at[st][i].data, p, n);
    l->n[st]++;
    return r;
}

static enum ledger_result fake_get(struct ledger_link *l, enum ledger_stream st,
                                   const char *subject,
                                   void (*each)(void *arg, const struct ledger_msg *m), void *arg,
                                   char *why, size_t n_why)
{
    int i = find_at(l, st, subject);
    struct ledger_msg m = { .subject = subject };

    snprintf(why, n_why, "fake");
    if (i < 0) return LEDGER_MISSING;
    m.p = l->at[st][i].data.p;
    m.n = l->at[st][i].data.n;
    each(arg, &m);
    return LEDGER_DONE;
}

static enum ledger_result fake_remove(struct ledger_link *l, const char *subject, char *why,
                                      size_t n)
{
    int i = find_at(l, LEDGER_JOBS, subject);

    snprintf(why, n, "fake");
    if (i < 0) return LEDGER_MISSING;
    l->at[LEDGER_JOBS][i].subject[0] = 0;
    return LEDGER_DONE;
}

static enum ledger_result fake_list(struct ledger_link *l, enum ledger_stream st,
                                    const char *pattern,
                                    void (*each)(void *arg, const char *subject), void *arg,
                                    char *why, size_t n_why)
{
    (void)why, (void)n_why;
    for (int i = 0; i < l->n[st]; i++)
        if (strncmp(l->at[st][i].subject, pattern, strlen(pattern) - 1) == 0)
            each(arg, l->at[st][i].subject);
    return LEDGER_DONE;
}

static enum ledger_result fake_ack(struct ledger_link *l, const char *reply)
{
    (void)reply;
    l->n_acks++;
    return LEDGER_DONE;
}

static size_t fake_max(struct ledger_link *l)
{
    (void)l;
    return 1000;
}

static const struct ledger_api fake = { .add = fake_add,
                                        .get = fake_get,
                                        .remove = fake_remove,
                                        .list = fake_list,
                                        .ack = fake_ack,
                                        .max_bytes = fake_max };

static void free_link(struct ledger_link *l)
{
    for (int st = 0; st < 2; st++)
        for (int i = 0; i < l->n[st]; i++) buf_release(&l->at[st][i].data);
}

/* Runs an operation; returns its code. The caller releases op->data. */
static int run(struct ledger_link *l, struct ledger_op *op, enum ledger_kind kind)
{
    op->kind = kind;
    op->added_ns = clock_ns();
    snprintf(op->tenant, sizeof op->tenant, "alice");
    if (!op->id[0] && kind != LEDGER_OP_LIST) snprintf(op->id, sizeof op->id, "%s", ID);
    if (kind == LEDGER_OP_FINISH) jobrecord_subject(op->answer, LEDGER_ANSWERS, op->tenant, op->id);
    return op->rc = ledger_run(&fake, l, op);
}

static int add(struct ledger_link *l, struct ledger_op *op)
{
    struct jobrecord r = sample(false);

    jobrecord_write(&r, &op->data);
    return run(l, op, LEDGER_OP_ADD);
}

static int finish(struct ledger_link *l, struct ledger_op *op)
{
    struct jobrecord r = sample(true);

    jobrecord_write(&r, &op->data);
    return run(l, op, LEDGER_OP_FINISH);
}

static bool says(const struct ledger_op *op, const char *text)
{
    struct buf b = { 0 };
    bool has;

    buf_put_str(&b, buf_str(&op->data));
    has = strstr(buf_cstr(&b), text) != NULL;
    buf_release(&b);
    return has;
}

static void a_job_is_accepted_only_when_it_was_written(void **state)
{
    static const enum ledger_result bad[] = { LEDGER_AWAY, LEDGER_FULL, LEDGER_TOO_LARGE,
                                              LEDGER_REFUSED };
    static const int codes[] = { E_STORE, E_QUEUE_FULL, E_INVALID, E_STORE };
    struct ledger_link l = { 0 };
    struct ledger_op op = { 0 };

    (void)state;
    assert_int_equal(add(&l, &op), OK);
    assert_true(op.is_new && says(&op, "\"queued\"") && l.n[LEDGER_JOBS] == 1);
    buf_release(&op.data);
    free_link(&l);
    for (int i = 0; i < 4; i++) {
        struct ledger_link away = { .next = { bad[i] }, .n_next = 1 };
        struct ledger_op o = { 0 };
        assert_int_equal(add(&away, &o), codes[i]);
        assert_true(!o.is_new && away.n[LEDGER_JOBS] == 0 && o.err.msg[0]);
        assert_true(o.too_large == (bad[i] == LEDGER_TOO_LARGE));
        if (codes[i] == E_STORE) assert_true(o.err.retry_ms > 0);
        buf_release(&o.data);
    }
}

/* The reply of the addition is lost. Whether it was written or not: one job, accepted. */
static void a_lost_reply_is_asked_for_again(void **state)
{
    (void)state;
    for (int writes = 0; writes < 2; writes++) {
        struct ledger_link l = { .next = { LEDGER_UNSURE }, .n_next = 1, .writes = writes };
        struct ledger_op op = { 0 };

        assert_int_equal(add(&l, &op), OK);
        assert_true(op.is_new && l.n[LEDGER_JOBS] == 1);
        buf_release(&op.data);
        free_link(&l);
    }
}

static void the_same_key_is_the_same_job(void **state)
{
    struct ledger_link l = { 0 };
    struct ledger_op a = { .may_exist = true }, b = { .may_exist = true },
                     c = { .may_exist = true }, f = { 0 };

    (void)state;
    assert_int_equal(add(&l, &a), OK);
    assert_int_equal(add(&l, &b), OK);
    assert_true(a.is_new && !b.is_new && says(&b, "\"queued\"") && l.n[LEDGER_JOBS] == 1);
    assert_int_equal(finish(&l, &f), OK);
    l.at[LEDGER_JOBS][0].subject[0] = 0; /* acknowledged */
    assert_int_equal(add(&l, &c), OK);
    assert_true(!c.is_new && says(&c, "\"completed\"") && l.n[LEDGER_JOBS] == 1);
    buf_release(&a.data), buf_release(&b.data), buf_release(&c.data), buf_release(&f.data);
    free_link(&l);
}

static void the_second_answer_is_refused_and_its_job_removed(void **state)
{
    struct ledger_link l = { 0 };
    struct ledger_op job = { 0 }, a = { 0 }, b = { 0 }, away = { 0 };

    (void)state;
    assert_int_equal(add(&l, &job), OK);
    l.next[0] = LEDGER_AWAY, l.n_next = 1;
    assert_int_equal(finish(&l, &away), E_STORE);
    assert_int_equal(l.n_acks, 0); /* it stays in the queue */
    assert_int_equal(finish(&l, &a), OK);
    assert_int_equal(finish(&l, &b), OK);
    assert_true(a.is_new && !b.is_new);
    assert_int_equal(l.n[LEDGER_ANSWERS], 1);
    assert_int_equal(l.n_acks, 2);
    buf_release(&job.data), buf_release(&a.data), buf_release(&b.data), buf_release(&away.data);
    free_link(&l);
}

static void a_cancelled_job_gets_no_other_answer(void **state)
{
    struct ledger_link l = { 0 };
    struct ledger_op job = { 0 }, c = { 0 }, again = { 0 }, late = { 0 }, found = { 0 },
                     none = { .id = "job_0123456789abcdefghijklmX" };

    (void)state;
    assert_int_equal(run(&l, &none, LEDGER_OP_CANCEL), E_NOTFOUND);
    assert_int_equal(add(&l, &job), OK);
    assert_int_equal(run(&l, &c, LEDGER_OP_CANCEL), OK);
    assert_true(says(&c, "\"cancelled\"") && says(&c, "/v1/completions"));
    assert_int_equal(run(&l, &again, LEDGER_OP_CANCEL), E_CONCURRENCY);
    assert_int_equal(finish(&l, &late), OK);
    assert_true(!late.is_new);
    assert_int_equal(run(&l, &found, LEDGER_OP_FIND), OK);
    assert_true(says(&found, "\"cancelled\""));
    buf_release(&job.data), buf_release(&c.data), buf_release(&again.data);
    buf_release(&late.data), buf_release(&found.data), buf_release(&none.data);
    free_link(&l);
}

/* Under the job's name stands another one, one of a later version, or nothing that can be read. */
static void a_stored_message_that_is_wrong_is_an_error(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct ledger_link l = { .n = { 0, 1 } };
        struct jobrecord r = sample(true);
        struct ledger_op op = { 0 };

        jobrecord_subject(l.at[LEDGER_ANSWERS][0].subject, LEDGER_ANSWERS, "alice", ID);
        if (i == 0) snprintf(r.id, sizeof r.id, "job_0123456789abcdefghijklmX");
        if (i == 1) snprintf(r.tenant, sizeof r.tenant, "bob");
        if (i < 2) jobrecord_write(&r, &l.at[LEDGER_ANSWERS][0].data);
        else buf_puts(&l.at[LEDGER_ANSWERS][0].data, i == 2 ? "{\"v\":2}\n" : "nonsense");
        assert_int_equal(run(&l, &op, LEDGER_OP_FIND), i == 2 ? E_UNSUPPORTED : E_FORMAT);
        buf_release(&op.data);
        free_link(&l);
    }
}

static void a_page_has_jobs_by_their_ids(void **state)
{
    struct ledger_link l = { 0 };
    struct ledger_op a = { .id = "job_00000000000000000000000a" },
                     b = { .id = "job_00000000000000000000000b" },
                     f = { .id = "job_00000000000000000000000b" }, p = { .limit = 1 };
    struct jobrecord r = sample(false);
    char first[JOBRECORD_ID];

    (void)state;
    memcpy(r.id, a.id, sizeof r.id);
    jobrecord_write(&r, &a.data);
    assert_int_equal(run(&l, &a, LEDGER_OP_ADD), OK);
    memcpy(r.id, b.id, sizeof r.id);
    jobrecord_write(&r, &b.data);
    assert_int_equal(run(&l, &b, LEDGER_OP_ADD), OK);
    r.is_answer = true, r.status = 200;
    jobrecord_write(&r, &f.data);
    assert_int_equal(run(&l, &f, LEDGER_OP_FINISH), OK); /* in both streams now */
    memcpy(first, b.id, sizeof first);
    assert_int_equal(run(&l, &p, LEDGER_OP_LIST), OK);
    assert_true(says(&p, "000b\",\"object\"") && says(&p, "\"completed\"") && !says(&p, "000a\""));
    assert_true(says(&p, "\"has_more\":true"));
    memcpy(p.id, first, sizeof first);
    p.limit = 10;
    buf_release(&p.data);
    assert_int_equal(run(&l, &p, LEDGER_OP_LIST), OK);
    assert_true(says(&p, "000a\",\"object\"") && says(&p, "\"has_more\":false"));
    buf_release(&a.data), buf_release(&b.data), buf_release(&f.data), buf_release(&p.data);
    free_link(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_reads_as_it_was_written),
        cmocka_unit_test(messages_of_strangers_are_refused_by_member),
        cmocka_unit_test(an_answer_has_a_status_or_an_error),
        cmocka_unit_test(names_follow_from_tenant_and_key),
        cmocka_unit_test(what_stands_in_the_store_is_shown_as_json),
        cmocka_unit_test(a_job_is_accepted_only_when_it_was_written),
        cmocka_unit_test(a_lost_reply_is_asked_for_again),
        cmocka_unit_test(the_same_key_is_the_same_job),
        cmocka_unit_test(the_second_answer_is_refused_and_its_job_removed),
        cmocka_unit_test(a_cancelled_job_gets_no_other_answer),
        cmocka_unit_test(a_stored_message_that_is_wrong_is_an_error),
        cmocka_unit_test(a_page_has_jobs_by_their_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
