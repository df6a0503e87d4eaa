/* The modules of src/base: errors, memory, arena, buf, str, utf8, map, jsonw, cursor, file, and
 * the dtype table and random numbers.
 *
 * Expected values are written by hand. Files are temporary. */
#include "support.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/cursor.h"
#include "base/dtype.h"
#include "base/err.h"
#include "base/file.h"
#include "base/jsonw.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

static void an_error_keeps_its_code_and_gains_context(void **state)
{
    struct err e = { 0 };
    (void)state;
    assert_int_equal(err_set(&e, E_FORMAT, "byte %d is odd", 7), E_FORMAT);
    assert_int_equal(err_wrap(&e, "file %s", "a.gguf"), E_FORMAT);
    assert_string_equal(e.msg, "file a.gguf: byte 7 is odd");
    assert_int_equal(err_set(NULL, E_IO, "nobody listens"), E_IO);
}

static void a_message_that_is_too_long_is_truncated(void **state)
{
    struct err e = { 0 };
    char big[2000];
    (void)state;
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    err_set(&e, E_IO, "%s", big);
    err_wrap(&e, "%s", big);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
}

static void sizes_that_overflow_give_null(void **state)
{
    size_t out;
    (void)state;
    assert_null(mem_array(SIZE_MAX / 2, 3));
    assert_null(mem_alloc((size_t)PTRDIFF_MAX + 1));
    assert_null(mem_aligned(SIZE_MAX - 10));
    assert_false(mem_mul(SIZE_MAX, 2, &out));
    assert_false(mem_add(SIZE_MAX, 1, &out));
}

static void aligned_blocks_are_aligned(void **state)
{
    (void)state;
    for (size_t n = 1; n < 10u << 20; n = n * 7 + 1) {
        void *p = mem_aligned(n);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        memset(p, 1, n);
        mem_free_aligned(p, n);
    }
}

static void an_arena_returns_zeroed_aligned_memory_and_is_released_at_once(void **state)
{
    struct arena a = { 0 };
    (void)state;
    for (int round = 0; round < 3; round++) {
        for (size_t n = 1; n < 100000; n = n * 3 + 1) {
            unsigned char *p = arena_alloc(&a, n);
            assert_int_equal((uintptr_t)p % 16, 0);
            for (size_t i = 0; i < n; i++) assert_int_equal(p[i], 0);
            memset(p, 0xff, n);
        }
        assert_string_equal(arena_printf(&a, "%d-%s", 4, "x"), "4-x");
        assert_string_equal(arena_cstr(&a, STR("text")), "text");
        arena_reset(&a);
    }
    arena_release(&a);
    arena_release(&a);
}

static void a_buf_grows_and_prints(void **state)
{
    struct buf b = { 0 };
    (void)state;
    for (int i = 0; i < 1000; i++) buf_printf(&b, "%d,", i);
    assert_int_equal(b.n, 10 * 2 + 90 * 3 + 900 * 4);
    assert_memory_equal(b.p, "0,1,2,3,", 8);
    assert_string_equal(buf_cstr(&b) + b.n - 4, "999,");
    buf_release(&b);
}

static void numbers_are_parsed_only_if_the_whole_string_is_a_number(void **state)
{
    int64_t i;
    double f;
    (void)state;
    assert_true(str_to_i64(STR("-42"), &i));
    assert_int_equal(i, -42);
    assert_false(str_to_i64(STR("42x"), &i));
    assert_false(str_to_i64(STR(""), &i));
    assert_false(str_to_i64(STR(" 1"), &i));
    assert_false(str_to_i64(str_of("1\0", 2), &i));
    assert_false(str_to_i64(STR("99999999999999999999"), &i));
    assert_true(str_to_f64(STR("1e-3"), &f));
    assert_false(str_to_f64(STR("nan"), &f));
    assert_false(str_to_f64(STR("1.5 "), &f));
    assert_int_equal(str_find(STR("abcabc"), STR("ca")), 2);
    assert_int_equal(str_find(STR("abc"), STR("x")), -1);
    assert_true(str_is(str_trim(STR(" \t a b\n")), "a b"));
}

static void every_code_point_survives_encoding_and_decoding(void **state)
{
    char b[4];
    (void)state;
    for (int32_t cp = 0; cp <= 0x10ffff; cp++) {
        int32_t back;
        int n = utf8_put(b, cp);
        int m = utf8_next(str_of(b, (size_t)n), &back);
        if (cp >= 0xd800 && cp < 0xe000) {
            assert_int_equal(back, -1);
            continue;
        }
        if (back != cp || m != n) fail_msg("U+%04X", (unsigned)cp);
        for (int cut = 1; cut < n; cut++)
            if (utf8_partial(str_of(b, (size_t)cut)) != cut)
                fail_msg("U+%04X truncated to %d bytes is not reported as incomplete", (unsigned)cp,
                         cut);
        if (utf8_partial(str_of(b, (size_t)n)) != 0)
            fail_msg("U+%04X is reported as incomplete", (unsigned)cp);
    }
}

static void invalid_utf8_is_found(void **state)
{
    int32_t cp;
    (void)state;
    assert_int_equal(utf8_next(STR("\xc0\x80"), &cp), 1);
    assert_int_equal(cp, -1);
    assert_int_equal(utf8_bad(STR("ab\xed\xa0\x80")), 2);
    assert_int_equal(utf8_bad(STR("\xf4\x90\x80\x80")), 0);
    assert_int_equal(utf8_bad(STR("gr\xc3\xbc\xc3\x9f")), -1);
    assert_int_equal(utf8_partial(STR("\xf5")), 0);
    assert_int_equal(utf8_partial(STR("\xe0\x80")), 0);
    assert_int_equal(utf8_partial(STR("\x80\x80\x80\x80")), 0);
}

static void a_map_finds_the_keys_that_were_added(void **state)
{
    struct map m = { 0 };
    static char keys[20000][8];
    uint64_t v;
    (void)state;
    assert_false(map_get(&m, STR("x"), &v));
    for (int i = 0; i < 20000; i++) {
        int n = snprintf(keys[i], sizeof keys[i], "k%d", i);
        assert_true(map_put(&m, str_of(keys[i], (size_t)n), (uint64_t)i));
    }
    assert_false(map_put(&m, STR("k7"), 77));
    for (int i = 0; i < 20000; i++) {
        assert_true(map_get(&m, str_c(keys[i]), &v));
        assert_int_equal(v, i == 7 ? 77 : i);
    }
    assert_false(map_get(&m, STR("k20000"), &v));
    assert_true(map_put(&m, STR(""), 5));
    assert_true(map_get(&m, str_of(NULL, 0), &v));
    map_release(&m);
}

static void json_strings_are_quoted_and_containers_nested(void **state)
{
    struct buf b = { 0 };
    struct jsonw w = { .out = &b };
    (void)state;
    jsonw_obj(&w);
    jsonw_key(&w, "a\"b"), jsonw_str(&w, STR("x\n\x01\\\xff\xc3\xbc"));
    jsonw_key(&w, "list"), jsonw_arr(&w);
    jsonw_int(&w, -3), jsonw_num(&w, 0.1), jsonw_num(&w, NAN), jsonw_bool(&w, true), jsonw_null(&w);
    jsonw_obj(&w), jsonw_end(&w);
    jsonw_end(&w);
    jsonw_end(&w);
    assert_string_equal(buf_cstr(&b), "{\"a\\\"b\":\"x\\n\\u0001\\\\\xef\xbf\xbd\xc3\xbc\","
                                      "\"list\":[-3,0.1,null,true,null,{}]}");
    buf_release(&b);
}

static void numbers_written_as_json_read_back_unchanged(void **state)
{
    struct rng r;
    (void)state;
    rng_seed(&r, 3);
    for (int i = 0; i < 2000; i++) {
        double v = (rng_unit(&r) - 0.5) * pow(10, (double)(rng_u64(&r) % 40) - 20);
        struct buf b = { 0 };
        struct jsonw w = { .out = &b };
        jsonw_num(&w, v);
        assert_true(strtod(buf_cstr(&b), NULL) == v);
        buf_release(&b);
    }
}

static void a_cursor_past_its_end_stays_bad_and_reads_zeros(void **state)
{
    unsigned char data[6] = { 1, 0, 0, 0, 9, 9 };
    struct cursor c = cursor_of(data, sizeof data);
    (void)state;
    assert_int_equal(cursor_u32(&c), 1);
    assert_false(c.bad);
    assert_int_equal(cursor_u32(&c), 0);
    assert_true(c.bad);
    assert_int_equal(cursor_u8(&c), 0);
    assert_null(cursor_take(&c, UINT64_MAX));
}

static void the_error_for_an_unreadable_file_names_it(void **state)
{
    struct err e = { 0 };
    struct filemap m = { 0 };
    struct buf b = { 0 };
    (void)state;
    assert_int_equal(filemap_open(&m, "/no/such/file", &e), E_NOTFOUND);
    assert_non_null(strstr(e.msg, "/no/such/file"));
    assert_int_equal(filemap_open(&m, "/tmp", &e), E_IO);
    assert_non_null(strstr(e.msg, "directory"));
    assert_int_equal(filemap_open(&m, "/dev/zero", &e), E_IO);
    const char *f = temp_file("ten", "0123456789", 10);
    assert_int_equal(file_read(&b, f, 9, &e), E_FORMAT);
    assert_int_equal(file_read(&b, f, 10, &e), OK);
    assert_int_equal(b.n, 10);
    buf_release(&b);
    assert_int_equal(filemap_open(&m, temp_file("empty", "", 0), &e), OK);
    assert_int_equal(m.n, 0);
    filemap_release(&m);
}

static void gzip_is_unpacked_up_to_a_limit(void **state)
{
    struct err e = { 0 };
    struct buf b = { 0 };
    char path[600];
    (void)state;
    snprintf(path, sizeof path, "%s/a.gz", temp_dir());
    gzFile z = gzopen(path, "wb");
    for (int i = 0; i < 100000; i++) gzputs(z, "0123456789");
    gzclose(z);
    assert_int_equal(file_read_gz(&b, path, 1000000, &e), OK);
    assert_int_equal(b.n, 1000000);
    assert_memory_equal(b.p + 999990, "0123456789", 10);
    buf_release(&b);
    assert_int_equal(file_read_gz(&b, path, 999999, &e), E_FORMAT);
    buf_release(&b);
    struct buf raw = { 0 };
    assert_int_equal(file_read(&raw, path, 1 << 20, &e), OK);
    assert_int_equal(file_read_gz(&b, temp_file("cut.gz", raw.p, raw.n / 2), 1000000, &e),
                     E_FORMAT);
    buf_release(&b);
    buf_release(&raw);
}

static void a_file_is_replaced_completely_or_not_at_all(void **state)
{
    struct err e = { 0 };
    struct buf b = { 0 };
    char path[600];
    (void)state;
    snprintf(path, sizeof path, "%s/replaced", temp_dir());
    assert_int_equal(file_replace(path, STR("one"), &e), OK);
    assert_int_equal(file_replace(path, STR("two"), &e), OK);
    assert_int_equal(file_read(&b, path, 100, &e), OK);
    assert_true(str_is(buf_str(&b), "two"));
    buf_release(&b);
    assert_int_equal(file_replace("/no/such/dir/x", STR("x"), &e), E_IO);
}

static void paths_that_leave_their_folder_are_refused(void **state)
{
    struct err e;
    char *p;
    (void)state;
    assert_int_equal(path_under(&p, "m", STR("a/b..c/..d"), &e), OK);
    assert_string_equal(p, "m/a/b..c/..d");
    mem_free(p);
    assert_int_equal(path_under(&p, "m", STR("/etc/passwd"), &e), E_INVALID);
    assert_int_equal(path_under(&p, "m", STR("../x"), &e), E_INVALID);
    assert_int_equal(path_under(&p, "m", STR("a/.."), &e), E_INVALID);
    assert_int_equal(path_under(&p, "m", STR("a/../../x"), &e), E_INVALID);
    assert_int_equal(path_under(&p, "m", STR("a\0b"), &e), E_INVALID);
    assert_int_equal(path_under(&p, "m", STR(""), &e), E_INVALID);
}

static void dtypes_have_their_row_sizes(void **state)
{
    uint64_t n;
    (void)state;
    assert_true(dtype_row_bytes(DT_Q4_K, 512, &n));
    assert_int_equal(n, 288);
    assert_false(dtype_row_bytes(DT_Q4_K, 500, &n));
    assert_false(dtype_row_bytes(DT_F64, UINT64_MAX / 2, &n));
    assert_false(dtype_row_bytes((enum dtype)4, 32, &n));
    assert_int_equal(dtype_by_name(STR("q4_k")), DT_Q4_K);
    assert_int_equal(dtype_by_name(STR("q4")), DT_NONE);
    assert_null(dtype_info(-1));
    assert_null(dtype_info(DT_COUNT));
}

static void random_numbers_are_the_same_on_every_machine(void **state)
{
    struct rng r;
    double sum = 0, sq = 0;
    (void)state;
    rng_seed(&r, 42);
    assert_true(rng_u64(&r) == 0x15780b2e0c2ec716u);
    for (int i = 0; i < 100000; i++) {
        double v = rng_normal(&r);
        sum += v, sq += v * v;
    }
    assert_true(fabs(sum / 1e5) < 0.02 && fabs(sq / 1e5 - 1) < 0.02);
}

static void words_have_a_distance_in_edits(void **state)
{
    int least = 4;

    (void)state;
    assert_int_equal(str_distance(STR("status"), STR("status")), 0);
    assert_int_equal(str_distance(STR("stauts"), STR("status")), 1); /* two neighbours swapped */
    assert_int_equal(str_distance(STR("sttus"), STR("status")), 1);
    assert_int_equal(str_distance(STR("statuss"), STR("status")), 1);
    assert_int_equal(str_distance(STR(""), STR("abc")), 3);
    assert_int_equal(str_distance(STR("kitten"), STR("sitting")), 3);
    assert_int_equal(str_distance(STR("ca"), STR("abc")), 3);
    assert_int_equal(str_distance(STR("a"), STR("12345678901234567890123456789012345678901")), 99);
    assert_true(str_is_nearer(STR("rnu"), STR("run"), &least));
    assert_int_equal(least, 1);
    assert_false(str_is_nearer(STR("rnu"), STR("serve"), &least));
    least = 4;
    assert_false(str_is_nearer(STR("ab"), STR("cd"), &least)); /* all of a word changed */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_keeps_its_code_and_gains_context),
        cmocka_unit_test(a_message_that_is_too_long_is_truncated),
        cmocka_unit_test(words_have_a_distance_in_edits),
        cmocka_unit_test(sizes_that_overflow_give_null),
        cmocka_unit_test(aligned_blocks_are_aligned),
        cmocka_unit_test(an_arena_returns_zeroed_aligned_memory_and_is_released_at_once),
        cmocka_unit_test(a_buf_grows_and_prints),
        cmocka_unit_test(numbers_are_parsed_only_if_the_whole_string_is_a_number),
        cmocka_unit_test(every_code_point_survives_encoding_and_decoding),
        cmocka_unit_test(invalid_utf8_is_found),
        cmocka_unit_test(a_map_finds_the_keys_that_were_added),
        cmocka_unit_test(json_strings_are_quoted_and_containers_nested),
        cmocka_unit_test(numbers_written_as_json_read_back_unchanged),
        cmocka_unit_test(a_cursor_past_its_end_stays_bad_and_reads_zeros),
        cmocka_unit_test(the_error_for_an_unreadable_file_names_it),
        cmocka_unit_test(gzip_is_unpacked_up_to_a_limit),
        cmocka_unit_test(a_file_is_replaced_completely_or_not_at_all),
        cmocka_unit_test(paths_that_leave_their_folder_are_refused),
        cmocka_unit_test(dtypes_have_their_row_sizes),
        cmocka_unit_test(random_numbers_are_the_same_on_every_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
