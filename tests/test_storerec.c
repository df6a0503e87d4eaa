/* Files, batches and answers of lines as messages of JetStream: what is written reads the same, and messages
 * of strangers are refused by member. */
#include "base/jsonr.h"
#include "base/jsonw.h"
#include "cluster/storelink.h"
#include "support.h"

#include <stdio.h>

#define FILE_ID "file-0123456789abcdefghijklmn"
#define BATCH_ID "batch_0123456789abcdefghijklmn"

static struct filerec sample_file(void)
{
    struct filerec r = { .state = FILEREC_READY, .piece = 100 };

    r.file = (struct jobstore_file){ .id = FILE_ID,
                                     .tenant = "alice",
                                     .name = "in.jsonl",
                                     .purpose = "batch",
                                     .bytes = 250,
                                     .created = 1794969058,
                                     .expires = 1794969059 };
    return r;
}

static struct batchrec sample_batch(void)
{
    struct batchrec r = { .id = BATCH_ID,
                          .tenant = "alice",
                          .endpoint = "/v1/completions",
                          .input = FILE_ID,
                          .window = "24h",
                          .output = FILE_ID,
                          .has_output = true,
                          .status = BATCH_FINALIZING,
                          .ends_as = BATCH_EXPIRED,
                          .created = 10,
                          .expires = 20,
                          .in_progress = 11,
                          .finalizing = 12,
                          .total = 7,
                          .completed = 3,
                          .failed = 2,
                          .holder = "gateway-1" };

    buf_puts(&r.metadata, "{\"a\":\"b\"}");
    buf_puts(&r.errors, "[{\"code\":\"c\",\"message\":\"m\",\"param\":null,\"line\":1}]");
    return r;
}

static void a_file_reads_as_it_was_written(void **state)
{
    struct filerec r = sample_file(), got;
    struct buf b = { 0 };
    struct err e = { 0 };

    (void)state;
    filerec_write(&r, &b);
    assert_int_equal(filerec_read(&got, buf_str(&b), &e), OK);
    assert_true(got.state == r.state && got.piece == 100 && got.file.bytes == 250);
    assert_string_equal(got.file.id, FILE_ID);
    assert_string_equal(got.file.tenant, "alice");
    assert_string_equal(got.file.name, "in.jsonl");
    assert_int_equal(got.file.expires, r.file.expires);
    assert_int_equal(filerec_n_pieces(&got), 3);
    for (size_t n = 0; n < b.n; n++) /* cut anywhere */
        assert_int_equal(filerec_read(&got, str_of(b.p, n), &e), E_FORMAT);
    buf_release(&b);
}

static void a_batch_reads_as_it_was_written(void **state)
{
    struct batchrec r = sample_batch(), got;
    struct buf b = { 0 }, json = { 0 };
    struct jsonw w = { .out = &json };
    struct err e = { 0 };
    json_t *root;

    (void)state;
    batchrec_write(&r, &b);
    assert_int_equal(batchrec_read(&got, buf_str(&b), &e), OK);
    assert_true(got.status == r.status && got.ends_as == r.ends_as && got.total == 7);
    assert_true(got.completed == 3 && got.failed == 2 && got.has_output && !got.has_error);
    assert_string_equal(got.holder, "gateway-1");
    assert_true(str_eq(buf_str(&got.metadata), buf_str(&r.metadata)));
    batchrec_show(&got, &w);
    root = jsonr_load(buf_str(&json), 0, NULL);
    assert_string_equal(json_string_value(json_object_get(root, "status")), "finalizing");
    assert_string_equal(json_string_value(json_object_get(root, "output_file_id")), FILE_ID);
    assert_true(json_is_null(json_object_get(root, "error_file_id")));
    json_decref(root);
    batchrec_release(&got);
    for (size_t n = 0; n < b.n; n++)
        assert_int_equal(batchrec_read(&got, str_of(b.p, n), &e), E_FORMAT);
    batchrec_release(&r);
    buf_release(&b);
    buf_release(&json);
}

static void an_answer_reads_as_it_was_written(void **state)
{
    struct linerec r = { .status = 200, .body = STR("{\"a\": 1}") }, got;
    struct buf b = { 0 };
    struct err e = { 0 };

    (void)state;
    linerec_write(&r, &b);
    assert_int_equal(linerec_read(&got, buf_str(&b), &e), OK);
    assert_true(got.status == 200 && str_eq(got.body, r.body) && !got.error[0]);
    for (size_t n = 0; n < b.n; n++)
        assert_int_equal(linerec_read(&got, str_of(b.p, n), &e), E_FORMAT);
    buf_clear(&b);
    r.status = 0;
    linerec_write(&r, &b);
    assert_int_equal(linerec_read(&got, buf_str(&b), &e), E_FORMAT);
    buf_release(&b);
}

/* One member of a good record is another one. */
static void messages_of_strangers_are_refused_by_member(void **state)
{
    static const struct {
        bool batch;
        const char *from, *to, *names;
        int rc;
    } rows[] = {
        { false, "\"v\":1", "\"v\":2", "version", E_UNSUPPORTED },
        { false, "\"v\":1", "\"v\":\"1\"", "'v'", E_FORMAT },
        { false, "\"kind\":\"file\"", "\"kind\":\"batch\"", "kind", E_FORMAT },
        { false, FILE_ID, "file-0123456789abcdefghij.>n", "'id'", E_FORMAT },
        { false, "\"ready\"", "\"new\"", "'state'", E_FORMAT },
        { false, "\"in.jsonl\"", "\"\"", "'name'", E_FORMAT },
        { false, "\"in.jsonl\"", "\"a\\nb\"", "control", E_FORMAT },
        { false, "\"bytes\":250", "\"bytes\":-1", "'bytes'", E_FORMAT },
        { false, "\"piece\":100", "\"piece\":0", "'piece'", E_FORMAT },
        { false, "\"created\":1794969058", "\"created\":1e3", "'created'", E_FORMAT },
        { true, "/v1/completions", "/v1/models", "'endpoint'", E_FORMAT },
        { true, "\"finalizing\",", "\"sleeping\",", "'status'", E_FORMAT },
        { true, "\"ends_as\":\"expired\"", "\"ends_as\":\"validating\"", "'ends_as'", E_FORMAT },
        { true, "\"total\":7", "\"total\":2", "'completed'", E_FORMAT },
        { true, "{\"a\":\"b\"}", "[1]", "'metadata'", E_FORMAT },
        { true, "{\"a\":\"b\"}", "{\"a\":1}", "'metadata'", E_FORMAT },
        { true, "\"code\":\"c\",", "", "'errors'", E_FORMAT },
        { true, "\"input\":\"file-", "\"input\":\"batch_", "'input'", E_FORMAT },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct filerec f = sample_file();
        struct batchrec b = sample_batch(), got;
        struct buf text = { 0 }, bad = { 0 };
        struct err e = { 0 };
        ptrdiff_t at;
        int rc;

        if (rows[i].batch) batchrec_write(&b, &text);
        else filerec_write(&f, &text);
        batchrec_release(&b);
        at = str_find(buf_str(&text), str_c(rows[i].from));
        assert_true(at >= 0);
        buf_add(&bad, text.p, (size_t)at);
        buf_puts(&bad, rows[i].to);
        buf_put_str(&bad, str_skip(buf_str(&text), (size_t)at + strlen(rows[i].from)));
        rc = rows[i].batch ? batchrec_read(&got, buf_str(&bad), &e)
                           : filerec_read(&f, buf_str(&bad), &e);
        if (rc != rows[i].rc || !strstr(e.msg, rows[i].names))
            fail_msg("row %zu: %d (%s)", i, rc, e.msg);
        buf_release(&text);
        buf_release(&bad);
    }
}

static void subjects_are_made_and_read(void **state)
{
    char s[LEDGER_SUBJECT];

    (void)state;
    storerec_subject(s, "file", "a.b *>", FILE_ID);
    assert_string_equal(storerec_id_of(s, STOREREC_FILE), FILE_ID);
    assert_string_equal(storerec_id_of(s, STOREREC_BATCH), "");
    assert_null(strstr(s, "*"));
    storerec_line_subject(s, BATCH_ID, 41);
    assert_int_equal(storerec_number_of(s, 42), 41);
    assert_int_equal(storerec_number_of(s, 41), -1);
    assert_int_equal(storerec_number_of("tern.lines.x.-1", 9), -1);
    assert_int_equal(storerec_number_of("tern.lines.x.a", 9), -1);
    storerec_piece_subject(s, FILE_ID, -1);
    assert_string_equal(s, "tern.files." FILE_ID ".*");
}

/* ---- files against a server in memory ---- */

struct ledger_link {
    char subject[8][LEDGER_SUBJECT];
    struct buf data[8];
    uint64_t seq[8], last;
    int n, n_puts;
    enum ledger_result next; /* of the next change; LEDGER_DONE: as it is */
    bool writes;             /* a change that answers LEDGER_UNSURE is made */
};

static int find_at(struct ledger_link *l, const char *subject)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->subject[i], subject) == 0) return i;
    return -1;
}

static enum ledger_result fake_put(struct ledger_link *l, enum ledger_stream st,
                                   const char *subject, const char *p, size_t n, uint64_t *seq,
                                   int wait_ms, char *why, size_t n_why)
{
    int i = find_at(l, subject);
    enum ledger_result r = l->next;

    (void)st, (void)wait_ms;
    snprintf(why, n_why, "fake");
    l->n_puts++;
    l->next = LEDGER_DONE;
    if (r != LEDGER_DONE && !(r == LEDGER_UNSURE && l->writes)) return r;
    if ((i < 0 ? 0 : l->seq[i]) != *seq) return LEDGER_EXISTS;
    if (i < 0) snprintf(l->subject[i = l->n++], LEDGER_SUBJECT, "%s", subject);
    buf_clear(&l->data[i]);
    buf_add(&l->data[i], p, n);
    l->seq[i] = ++l->last;
    if (r == LEDGER_DONE) *seq = l->last;
    return r;
}

static enum ledger_result fake_get(struct ledger_link *l, enum ledger_stream st,
                                   const char *subject,
                                   void (*each)(void *arg, const struct ledger_msg *m), void *arg,
                                   char *why, size_t n_why)
{
    int i = find_at(l, subject);
    struct ledger_msg m = { .subject = subject };

    (void)st;
    snprintf(why, n_why, "fake");
    if (i < 0) return LEDGER_MISSING;
    m.p = l->data[i].p;
    m.n = l->data[i].n;
    m.seq = l->seq[i];
    each(arg, &m);
    return LEDGER_DONE;
}

static size_t fake_max(struct ledger_link *l)
{
    (void)l;
    return 1 << 20;
}

static const struct ledger_api fake = { .put = fake_put, .get = fake_get, .max_bytes = fake_max };

static void free_link(struct ledger_link *l)
{
    for (int i = 0; i < l->n; i++) buf_release(&l->data[i]);
}

/* Of two changes of one record the second is refused; a change whose reply is lost is found made, or made
 * again. */
static void one_of_two_changes_wins(void **state)
{
    struct ledger_link l = { 0 };
    struct storelink k = { .api = &fake, .link = &l };
    struct batchrec r = sample_batch(), got;
    uint64_t mine = 0, other, seq;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(storelink_put_batch(&k, &r, &mine, &e), OK);
    other = mine;
    snprintf(r.holder, sizeof r.holder, "gateway-2");
    assert_int_equal(storelink_put_batch(&k, &r, &other, &e), OK);
    assert_int_equal(storelink_put_batch(&k, &r, &mine, &e), E_CONCURRENCY);
    for (int writes = 0; writes < 2; writes++) {
        l.next = LEDGER_UNSURE;
        l.writes = writes;
        r.completed++;
        assert_int_equal(storelink_put_batch(&k, &r, &other, &e), OK);
        assert_int_equal(storelink_get_batch(&k, "alice", BATCH_ID, &got, &seq, &e), OK);
        assert_true(seq == other && got.completed == r.completed);
        batchrec_release(&got);
    }
    l.next = LEDGER_AWAY;
    assert_int_equal(storelink_put_batch(&k, &r, &other, &e), E_STORE);
    assert_true(e.retry_ms > 0);
    assert_int_equal(storelink_get_batch(&k, "bob", BATCH_ID, &got, &seq, &e), E_NOTFOUND);
    batchrec_release(&r);
    free_link(&l);
}

static void put_piece(struct ledger_link *l, int i, const char *text)
{
    storerec_piece_subject(l->subject[l->n], FILE_ID, i);
    buf_puts(&l->data[l->n++], text);
}

/* Lines do not depend on where pieces end. */
static void lines_are_read_over_pieces(void **state)
{
    static const char text[] = "one\n\ntwo words\r\nthree";
    static const char *const want[] = { "one", "", "two words\r", "three" };

    (void)state;
    for (int piece = 4; piece < 30; piece++) {
        struct ledger_link l = { 0 };
        struct storelink k = { .api = &fake, .link = &l };
        struct filerec f = sample_file();
        struct linereader r = { 0 };
        struct err e = { 0 };
        struct str line;
        uint64_t seq = 0;
        bool got;
        int n = 0;

        f.piece = piece;
        f.file.bytes = (int64_t)strlen(text);
        assert_int_equal(storelink_put_file(&k, &f, &seq, &e), OK);
        for (int i = 0; i < filerec_n_pieces(&f); i++) {
            char part[40];
            snprintf(part, sizeof part, "%.*s", piece, text + i * piece);
            put_piece(&l, i, part);
        }
        assert_int_equal(linereader_open(&k, &r, "alice", FILE_ID, &e), OK);
        while (linereader_next(&k, &r, &line, &got, &e) == OK && got)
            assert_true(str_is(line, want[n++]));
        assert_int_equal(n, 4);
        assert_int_equal(r.line, 4);
        if (l.n > 2) { /* a piece that is missing, or cut */
            linereader_close(&r);
            l.data[l.n - 1].n--;
            assert_int_equal(linereader_open(&k, &r, "alice", FILE_ID, &e), OK);
            while ((n = linereader_next(&k, &r, &line, &got, &e)) == OK && got) continue;
            assert_int_equal(n, E_DAMAGED);
        }
        linereader_close(&r);
        free_link(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_reads_as_it_was_written),
        cmocka_unit_test(a_batch_reads_as_it_was_written),
        cmocka_unit_test(an_answer_reads_as_it_was_written),
        cmocka_unit_test(messages_of_strangers_are_refused_by_member),
        cmocka_unit_test(subjects_are_made_and_read),
        cmocka_unit_test(one_of_two_changes_wins),
        cmocka_unit_test(lines_are_read_over_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
