/* The parts of tern pull that need no network: what the hub answers, and files that arrive in ranges.
 * tests/pull has the whole against a hub. */
#include "base/file.h"
#include "base/mem.h"
#include "pull/hubreply.h"
#include "pull/part.h"
#include "support.h"

#include <stdio.h>
#include <string.h>

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define SUM "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

/* ---- the list ---- */

static void the_list_has_names_sizes_and_checksums(void **state)
{
    struct hub_files l = { 0 };
    char commit[41];
    const char *json = "{\"sha\": \"" COMMIT
                       "\", \"siblings\": [{\"rfilename\": \"m.gguf\", \"size\": 7, \"blobId\": "
                       "\"" COMMIT "\", \"lfs\": {\"sha256\": \"" SUM
                       "\", \"size\": 9}}, {\"rfilename\": \"a/b.json\", "
                       "\"size\": 3, \"blobId\": \"" COMMIT
                       "\"}, {\"rfilename\": \"c\"}, {\"rfilename\": \"../d\"}]}";

    (void)state;
    assert_int_equal(hubreply_files(&l, commit, str_c(json), NULL), OK);
    assert_string_equal(commit, COMMIT);
    assert_int_equal(l.n, 3);
    assert_string_equal(l.at[0].name, "a/b.json");
    assert_string_equal(l.at[0].sum, COMMIT);
    assert_string_equal(l.at[1].name, "c");
    assert_string_equal(l.at[1].sum, "");
    assert_int_equal(l.at[2].bytes, 9);
    assert_string_equal(l.at[2].sum, SUM);
    hub_files_release(&l);
}

static void a_list_that_is_none_is_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "{}",
        "null",
        "{\"sha\": \"" COMMIT "\"}",
        "{\"siblings\": []}",
        "{\"sha\": \"../x\", \"siblings\": []}",
        "{\"sha\": 5, \"siblings\": []}",
        "{\"sha\": \"" COMMIT "\", \"siblings\": {}}",
        "{\"sha\": \"" COMMIT "\", \"siblings\": [{\"rfilename\": \"a\"}, {\"rfilename\": \"a\"}]}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct hub_files l = { 0 };
        struct err e = { 0 };
        char commit[41];
        if (hubreply_files(&l, commit, str_c(bad[i]), &e) != E_FORMAT) fail_msg("%s", bad[i]);
        assert_true(e.msg[0]);
        hub_files_release(&l);
    }
}

/* ---- headers ---- */

static void headers_of_the_hub_stay_over_a_redirect(void **state)
{
    static const char *const lines[] = {
        "HTTP/1.1 302 Found\r\n",
        "x-linked-etag: \"" SUM "\"\r\n",
        "X-Linked-Size: 123\r\n",
        "X-Repo-Commit: " COMMIT "\r\n",
        "ETag: W/\"" COMMIT "\"\r\n",
        "Location: https://x/y\r\n",
        "\r\n",
        "HTTP/2 206 \r\n",
        "content-range: bytes 5-9/123\r\n",
        "Content-Length: 5\r\n",
        "ETag: \"no sum\"\r\n",
        "X-Error-Message: no\x01 \x7f way\r\n",
    };
    struct hub_head h;

    (void)state;
    hub_head_init(&h);
    for (int i = 0; i < 7; i++) hub_head_line(&h, str_c(lines[i]));
    assert_int_equal(h.status, 302);
    assert_string_equal(h.location, "https://x/y");
    assert_string_equal(h.etag, COMMIT);
    for (size_t i = 7; i < sizeof lines / sizeof *lines; i++) hub_head_line(&h, str_c(lines[i]));
    assert_int_equal(h.status, 206);
    assert_string_equal(h.location, "");
    assert_string_equal(h.etag, "");
    assert_string_equal(h.linked_etag, SUM);
    assert_int_equal(h.linked_size, 123);
    assert_int_equal(h.first, 5);
    assert_int_equal(h.last, 9);
    assert_int_equal(h.all, 123);
    assert_string_equal(h.commit, COMMIT);
    assert_string_equal(h.error, "no  way");
}

static void headers_that_are_wrong_are_none(void **state)
{
    static const char *const lines[] = {
        "HTTP/1.1",
        "HTTP/1.1 abc",
        "Content-Length: -1",
        "Content-Length: 99999999999999999999",
        "Content-Range: bytes 5",
        "Content-Range: bytes -/",
        "Content-Range: 1-2/3",
        "Location",
        "X-Linked-Etag: \"../../x\"",
        "X-Repo-Commit: main",
        ": x",
        "",
    };
    char location[9000];
    struct hub_head h;

    (void)state;
    hub_head_init(&h);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) hub_head_line(&h, str_c(lines[i]));
    memset(location, 'a', sizeof location);
    memcpy(location, "Location: ", 10);
    hub_head_line(&h, str_of(location, sizeof location));
    assert_int_equal(h.status, 0);
    assert_int_equal(h.length, -1);
    assert_int_equal(h.all, -1);
    assert_string_equal(h.location, "");
    assert_string_equal(h.linked_etag, "");
    assert_string_equal(h.commit, "");
}

/* ---- parts ---- */

static const char *part_path(const char *name)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", temp_dir(), name);
    return path;
}

static void a_part_goes_on_where_it_was(void **state)
{
    struct part p;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(part_open(&p, part_path("part"), 10000, 4096, &e), OK);
    assert_int_equal(p.n, 3);
    assert_false(p.resumed);
    assert_int_equal(part_write(&p, 1, "abc", 3, &e), OK);
    assert_int_equal(part_prefix(&p), 0);
    part_close(&p);
    assert_int_equal(part_open(&p, part_path("part"), 10000, 8192, &e), OK); /* keeps its ranges */
    assert_true(p.resumed);
    assert_int_equal(p.n, 3);
    assert_int_equal(part_have(&p), 3);
    assert_int_equal(part_offset(&p, 1), 4096 + 3);
    assert_int_equal(part_range_bytes(&p, 2), 10000 - 8192);
    assert_int_equal(part_write(&p, 2, p.done, 10000, &e), E_INVALID); /* more than it has */
    assert_int_equal(part_next(&p), 0);
    p.taken[0] = true;
    assert_int_equal(part_next(&p), 1);
    part_close(&p);
    assert_int_equal(part_open(&p, part_path("part"), 9999, 4096, &e), OK); /* of another size */
    assert_false(p.resumed);
    assert_int_equal(part_have(&p), 0);
    part_remove(&p);
    assert_false(file_exists(part_path("part")));
    assert_false(file_exists(part_path("part.ranges")));
}

static void a_record_that_does_not_fit_is_not_believed(void **state)
{
    unsigned char b[32 + 24] = "tern-ranges 1\n";
    uint64_t chunk, done[3];
    int n;

    (void)state;
    b[16] = 0x10, b[17] = 0x27; /* 10000 bytes */
    b[25] = 0x10;               /* ranges of 4096 */
    assert_true(part_read_record(b, sizeof b, 10000, &chunk, done, 3, &n));
    assert_int_equal(n, 3);
    assert_false(part_read_record(b, sizeof b, 9999, &chunk, done, 3, &n));
    assert_false(part_read_record(b, sizeof b - 1, 10000, &chunk, done, 3, &n));
    assert_false(part_read_record(b, sizeof b, 10000, &chunk, done, 2, &n));
    b[32 + 16 + 1] = 0x08; /* 2048 bytes of the last range, which has 1808 */
    assert_false(part_read_record(b, sizeof b, 10000, &chunk, done, 3, &n));
    b[32 + 16 + 1] = 0, b[25] = 0;
    assert_false(part_read_record(b, sizeof b, 10000, &chunk, done, 3, &n));
    assert_false(part_read_record(b, 0, 10000, &chunk, done, 3, &n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_list_has_names_sizes_and_checksums),
        cmocka_unit_test(a_list_that_is_none_is_refused),
        cmocka_unit_test(headers_of_the_hub_stay_over_a_redirect),
        cmocka_unit_test(headers_that_are_wrong_are_none),
        cmocka_unit_test(a_part_goes_on_where_it_was),
        cmocka_unit_test(a_record_that_does_not_fit_is_not_believed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
