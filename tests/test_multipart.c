/* multipart/form-data: the parts and their bytes, however the body is cut into pieces; malformed
 * bodies are refused with the reason. */
#include "jobs/multipart.h"
#include "support.h"

#include "base/buf.h"

#include <string.h>

static int on_begin(void *arg, const struct multipart_part *p, struct err *e)
{
    (void)e;
    buf_printf(arg, "[%s|%s|", p->name, p->has_filename ? p->filename : "-");
    return OK;
}
static int on_data(void *arg, const char *p, size_t n, struct err *e)
{
    (void)e;
    buf_add(arg, p, n);
    return OK;
}
static int on_end(void *arg, struct err *e)
{
    (void)e;
    buf_putc(arg, ']');
    return OK;
}

/* The parts in pieces of so many bytes, as "[name|filename|bytes]..."; the code of the result. */
static int parse(const char *type, const char *body, size_t n, size_t piece, struct buf *got,
                 struct err *e)
{
    const struct multipart_out out = { on_begin, on_data, on_end, got };
    struct multipart m;
    int rc = multipart_init(&m, str_c(type), &out, e);

    buf_clear(got);
    for (size_t at = 0; at < n && rc == OK; at += piece)
        rc = multipart_feed(&m, body + at, n - at < piece ? n - at : piece, e);
    return rc == OK ? multipart_end(&m, e) : rc;
}

#define TYPE "multipart/form-data; boundary=xyz"
#define PART(name) "Content-Disposition: form-data; name=\"" name "\"\r\n\r\n"

static void parts_come_out_whole_in_every_split(void **state)
{
    static const struct {
        const char *type, *body, *want;
    } cases[] = {
        { TYPE, "--xyz\r\n" PART("a") "1\r\n--xyz--\r\n", "[a|-|1]" },
        { TYPE, "\r\n--xyz\r\n" PART("a") "\r\n--xyz--", "[a|-|]" },
        { TYPE, "preamble\r\n--xyz  \r\n" PART("a") "1\r\n--xyz--  \r\n\r\n", "[a|-|1]" },
        { TYPE,
          "--xyz\r\nX-Other: 1\r\nCONTENT-disposition: Form-Data; name=file; filename=\"a "
          "\\\"b\\\".jsonl\"\r\nContent-Type: x/y\r\n\r\n\r\n--xy\r\n--x\r\r\n--xyz\r\n" PART(
              "purpose") "batch\r\n--xyz--",
          "[file|a \"b\".jsonl|\r\n--xy\r\n--x\r][purpose|-|batch]" },
        { "Multipart/Form-Data; charset=utf-8; boundary=\"a b\"",
          "--a b\r\n" PART("a") "--a b\r\n--a b--", "[a|-|--a b]" },
        { TYPE, "--xyz\r\n" PART("a") "\r\n\r\n\r\n--xyz--", "[a|-|\r\n\r\n]" },
    };
    struct buf got = { 0 };
    struct err e = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t piece = 1; piece < 40; piece++) {
            size_t n = strlen(cases[i].body);
            if (parse(cases[i].type, cases[i].body, n, piece, &got, &e) != OK)
                fail_msg("case %zu in pieces of %zu: %s", i, piece, e.msg);
            assert_string_equal(buf_cstr(&got), cases[i].want);
        }
    buf_release(&got);
}

static void bytes_of_every_value_pass_through(void **state)
{
    struct buf body = { 0 }, got = { 0 };
    struct err e = { 0 };

    (void)state;
    buf_puts(&body, "--xyz\r\n" PART("f"));
    for (int i = 0; i < 5000; i++) buf_putc(&body, (char)(i * 7 % 256));
    buf_puts(&body, "\r\n--xyz--\r\n");
    for (size_t piece = 1; piece < 3000; piece = piece * 3 + 1) {
        assert_int_equal(parse(TYPE, body.p, body.n, piece, &got, &e), OK);
        assert_int_equal(got.n, 5000 + 6);
        for (int i = 0; i < 5000; i++) assert_int_equal((unsigned char)got.p[5 + i], i * 7 % 256);
    }
    buf_release(&body);
    buf_release(&got);
}

static void malformed_bodies_are_refused(void **state)
{
    static const struct {
        const char *type, *body, *why;
    } cases[] = {
        { "application/json", "{}", "must be multipart/form-data" },
        { "", "", "must be multipart/form-data" },
        { "multipart/form-data", "", "needs a boundary" },
        { "multipart/form-data; boundary=", "", "needs a boundary" },
        { "multipart/form-data; boundary=\"open", "", "needs a boundary" },
        { "multipart/form-data; boundary="
          "0123456789012345678901234567890123456789012345678901234567890123456789x",
          "", "needs a boundary" },
        { TYPE, "", "no parts" },
        { TYPE, "nothing of it", "no parts" },
        { TYPE, "--xyz--\r\n", "no parts" },
        { TYPE, "--xyz\r\n" PART("a") "1", "ends before" },
        { TYPE, "--xyz\r\n" PART("a") "1\r\n--xyz", "ends before" },
        { TYPE, "--xyz\r\n" PART("a") "1\r\n--xyz-", "ends before" },
        { TYPE, "--xyz\r\n" PART("a") "1\r\n--xyz--more", "bytes follow" },
        { TYPE, "--xyzw\r\n", "not followed" },
        { TYPE, "--xyz\n" PART("a"), "not followed" },
        { TYPE, "--xyz\r\n\r\nno headers\r\n--xyz--", "no Content-Disposition" },
        { TYPE, "--xyz\r\nContent-Disposition: form-data\r\n\r\n", "no Content-Disposition" },
        { TYPE, "--xyz\r\nContent-Disposition: attachment; name=a\r\n\r\n", "not form-data" },
        { TYPE, "--xyz\r\nContent-Disposition: form-data; name=\"a\r\n\r\n", "cannot be read" },
        { TYPE, "--xyz\r\nContent-Disposition: form-data; name\r\n\r\n", "cannot be read" },
        { TYPE,
          "--xyz\r\n"
          "Content-Disposition: form-data; name=a\r\n" PART("a"),
          "two" },
        { TYPE, "--xyz\r\nno colon\r\n\r\n", "not 'Name: value'" },
        { TYPE, "--xyz\r\nA: 1\n\r\n", "line feed" },
    };
    struct buf got = { 0 };
    struct err e = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t piece = 1; piece < 60; piece += 7) {
            int rc = parse(cases[i].type, cases[i].body, strlen(cases[i].body), piece, &got, &e);
            if (rc != E_INVALID || !strstr(e.msg, cases[i].why))
                fail_msg("case %zu: code %d, '%s' instead of '%s'", i, rc, e.msg, cases[i].why);
        }
    buf_release(&got);
}

static void headers_and_parts_are_bounded(void **state)
{
    struct buf body = { 0 }, got = { 0 };
    struct err e = { 0 };

    (void)state;
    buf_puts(&body, "--xyz\r\nA: ");
    for (int i = 0; i < MULTIPART_HEADERS; i++) buf_putc(&body, 'x');
    assert_int_equal(parse(TYPE, body.p, body.n, 100, &got, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "too long"));
    buf_clear(&body);
    for (int i = 0; i <= MULTIPART_PARTS; i++) buf_puts(&body, "\r\n--xyz\r\n" PART("a") "1");
    assert_int_equal(parse(TYPE, body.p, body.n, 100, &got, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "too many parts"));
    buf_clear(&body);
    buf_puts(&body, "--xyz\r\nContent-Disposition: form-data; name=a; filename=\"");
    for (int i = 0; i < MULTIPART_NAME; i++) buf_putc(&body, 'x');
    buf_puts(&body, "\"\r\n\r\n");
    assert_int_equal(parse(TYPE, body.p, body.n, 100, &got, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "too long"));
    buf_release(&body);
    buf_release(&got);
}

static int refuse_data(void *arg, const char *p, size_t n, struct err *e)
{
    (void)arg, (void)p, (void)n;
    return err_set(e, E_FULL, "the disk is full");
}

static void an_error_of_the_reader_ends_the_parsing(void **state)
{
    struct buf got = { 0 };
    const struct multipart_out out = { on_begin, refuse_data, on_end, &got };
    const char body[] = "--xyz\r\n" PART("a") "1\r\n--xyz--";
    struct multipart m;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(multipart_init(&m, str_c(TYPE), &out, &e), OK);
    assert_int_equal(multipart_feed(&m, body, sizeof body - 1, &e), E_FULL);
    assert_int_equal(multipart_feed(&m, "x", 1, &e), E_FULL);
    assert_int_equal(multipart_end(&m, &e), E_FULL);
    buf_release(&got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_come_out_whole_in_every_split),
        cmocka_unit_test(bytes_of_every_value_pass_through),
        cmocka_unit_test(malformed_bodies_are_refused),
        cmocka_unit_test(headers_and_parts_are_bounded),
        cmocka_unit_test(an_error_of_the_reader_ends_the_parsing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
