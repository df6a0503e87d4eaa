/* The GGUF writer: keys and tensors read back unchanged, mistakes are reported at close and
 * leave no file.
 *
 * Files are temporary and are read back through format/source. */
#include "support.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/ggufw.h"
#include "format/source.h"
#include "gguf_bytes.h"

#include <dirent.h>
#include <stdio.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

static char *in_temp(const char *name) { return path_join(temp_dir(), name); }

static struct ggufw *begin_file(const char *path)
{
    struct ggufw *w = NULL;
    struct err e;

    assert_int_equal(ggufw_open(&w, path, &e), OK);
    return w;
}

static struct source *reopen(const char *path)
{
    struct source *s = NULL;
    struct err e = { 0 };

    if (source_open(&s, path, &e) != OK) print_message("result: %s\n", e.msg);
    assert_non_null(s);
    return s;
}

static int count_partial_files(void)
{
    DIR *d = opendir(temp_dir());
    struct dirent *entry;
    int n = 0;

    while ((entry = readdir(d))) n += strstr(entry->d_name, ".part-") != NULL;
    closedir(d);
    return n;
}

static struct value list_item(const struct source *s, const char *key, size_t i)
{
    struct value list, v;

    assert_true(source_key(s, key, &list));
    assert_true(value_at(&list, i, &v));
    return v;
}

static void write_keys(struct ggufw *w)
{
    static const int32_t i32s[] = { -1, INT32_MIN, 5 };
    static const uint32_t u32s[] = { 1, UINT32_MAX };
    static const float f32s[] = { 0.5f, -3e38f };
    static const bool bools[] = { true, false, true };
    const struct str strs[] = { STR("one"), STR(""), STR("\xe2\x96\x81three\0x") };

    ggufw_u32(w, "u32", UINT32_MAX);
    ggufw_u64(w, "u64", UINT64_MAX);
    ggufw_i32(w, "i32", INT32_MIN);
    ggufw_f32(w, "f32", 0.1f);
    ggufw_bool(w, "yes", true);
    ggufw_bool(w, "no", false);
    ggufw_str(w, "str", STR("text"));
    ggufw_str(w, "empty", STR(""));
    ggufw_strs(w, "strs", strs, 3);
    ggufw_strs(w, "none", NULL, 0);
    ggufw_i32s(w, "i32s", i32s, 3);
    ggufw_u32s(w, "u32s", u32s, 2);
    ggufw_f32s(w, "f32s", f32s, 2);
    ggufw_bools(w, "bools", bools, 3);
}

static void every_type_of_key_reads_back_unchanged(void **state)
{
    char *path = in_temp("keys.gguf");
    struct ggufw *w = begin_file(path);
    struct source *s;
    struct str t;
    uint64_t u;
    int64_t i;
    double f;
    bool b;
    struct err e;

    (void)state;
    write_keys(w);
    assert_int_equal(ggufw_close(w, &e), OK);
    s = reopen(path);
    assert_int_equal(source_n_keys(s), 14);
    assert_true(source_u64(s, "u32", &u) && u == UINT32_MAX);
    assert_true(source_u64(s, "u64", &u) && u == UINT64_MAX);
    assert_true(source_i64(s, "i32", &i) && i == INT32_MIN);
    assert_true(source_f64(s, "f32", &f) && f == (double)0.1f);
    assert_true(source_bool(s, "yes", &b) && b);
    assert_true(source_bool(s, "no", &b) && !b);
    assert_true(source_str(s, "str", &t) && str_is(t, "text"));
    assert_true(source_str(s, "empty", &t) && t.n == 0);
    assert_true(str_eq(list_item(s, "strs", 2).s, STR("\xe2\x96\x81three\0x")));
    assert_int_equal(list_item(s, "strs", 1).s.n, 0);
    assert_true(list_item(s, "i32s", 1).i == INT32_MIN && list_item(s, "i32s", 2).i == 5);
    assert_true(list_item(s, "u32s", 1).u == UINT32_MAX);
    assert_true(list_item(s, "f32s", 1).f == (double)-3e38f);
    assert_true(list_item(s, "bools", 0).b && !list_item(s, "bools", 1).b);
    source_close(s);
    mem_free(path);
}

static void keys_of_any_type_are_copied_unchanged(void **state)
{
    char *path = in_temp("copy.gguf");
    struct buf b = { 0 };
    struct source *from, *to;
    struct ggufw *w;
    struct err e;

    (void)state;
    put_sample(&b);
    from = reopen(temp_file("from.gguf", b.p, b.n));
    w = begin_file(path);
    for (size_t i = 0; i < source_n_keys(from); i++)
        assert_true(ggufw_copy(w, from, source_key_name(from, i)));
    assert_false(ggufw_copy(w, from, "none"));
    for (size_t i = 0; i < source_n_tensors(from); i++) {
        const struct source_tensor *t = source_tensor(from, i);
        char name[8] = { 0 };
        memcpy(name, t->name.p, t->name.n);
        ggufw_tensor(w, name, t->type, t->dims, t->n_dims);
    }
    for (size_t i = 0; i < source_n_tensors(from); i++)
        ggufw_data(w, source_tensor(from, i)->data, source_tensor(from, i)->bytes);
    assert_int_equal(ggufw_close(w, &e), OK);
    to = reopen(path);
    assert_int_equal(source_n_keys(to), 16);
    for (size_t i = 0; i < 16; i++) {
        struct str key = str_c(source_key_name(from, i));
        assert_true(
            str_eq(gguf_key_raw(source_gguf(from), key), gguf_key_raw(source_gguf(to), key)));
    }
    for (size_t i = 0; i < 3; i++) {
        const struct source_tensor *x = source_tensor(from, i), *y = source_tensor(to, i);
        assert_true(x->bytes == y->bytes && x->type == y->type && x->n_dims == y->n_dims);
        assert_memory_equal(x->dims, y->dims, sizeof x->dims);
        assert_memory_equal(x->data, y->data, x->bytes);
    }
    source_close(from);
    source_close(to);
    buf_release(&b);
    mem_free(path);
}

static void data_may_come_in_pieces_of_any_size(void **state)
{
    static const int64_t one[] = { 5 }, four[] = { 2, 1, 3, 32 };
    char *path = in_temp("pieces.gguf");
    uint8_t bytes[20 + 6 * 18];
    const struct source_tensor *t;
    struct source *s;
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i * 7);
    for (size_t piece = 1; piece <= sizeof bytes; piece += 9) {
        struct ggufw *w = begin_file(path);
        ggufw_tensor(w, "one", DT_F32, one, 1);
        ggufw_tensor(w, "four", DT_Q4_0, four, 4);
        for (size_t i = 0; i < sizeof bytes; i += piece)
            ggufw_data(w, bytes + i, i + piece < sizeof bytes ? piece : sizeof bytes - i);
        assert_int_equal(ggufw_close(w, &e), OK);
        s = reopen(path);
        assert_memory_equal(source_find(s, "one")->data, bytes, 20);
        t = source_find(s, "four");
        assert_true(t->n_dims == 4 && t->dims[0] == 2 && t->dims[1] == 1 && t->dims[2] == 3 &&
                    t->dims[3] == 32);
        assert_int_equal((uintptr_t)t->data % 32, 0);
        assert_memory_equal(t->data, bytes + 20, 6 * 18);
        source_close(s);
    }
    mem_free(path);
}

static void assert_close_fails(struct ggufw *w, const char *path, int code, const char *saying)
{
    struct err e = { 0 };
    int rc = ggufw_close(w, &e);

    if (rc != code || !strstr(e.msg, saying)) print_message("result: %d %s\n", rc, e.msg);
    assert_int_equal(rc, code);
    assert_non_null(strstr(e.msg, saying));
    assert_false(file_exists(path));
    assert_int_equal(count_partial_files(), 0);
}

static void mistakes_are_reported_at_close_and_leave_no_file(void **state)
{
    static const int64_t two[] = { 2 }, odd[] = { 33 }, zero[] = { 0 };
    char *path = in_temp("mistakes.gguf");
    struct ggufw *w;

    (void)state;
    w = begin_file(path), ggufw_tensor(w, "t", DT_F32, two, 1), ggufw_data(w, "1234567", 7);
    assert_close_fails(w, path, E_INTERNAL, "tensor 't' got 7 of its 8 bytes");
    w = begin_file(path), ggufw_tensor(w, "t", DT_F32, two, 1);
    assert_close_fails(w, path, E_INTERNAL, "tensor 't' got 0 of its 8 bytes");
    w = begin_file(path), ggufw_tensor(w, "t", DT_F32, two, 1), ggufw_data(w, "123456789", 9);
    assert_close_fails(w, path, E_INTERNAL, "1 bytes more than the tensors have");
    w = begin_file(path), ggufw_u32(w, "k", 1), ggufw_u32(w, "k", 1);
    assert_close_fails(w, path, E_INTERNAL, "key 'k' is written twice");
    w = begin_file(path), ggufw_tensor(w, "t", DT_F32, two, 1),
    ggufw_tensor(w, "t", DT_F32, two, 1);
    assert_close_fails(w, path, E_INTERNAL, "tensor 't' is written twice");
    w = begin_file(path), ggufw_tensor(w, "t", DT_F32, two, 1), ggufw_u32(w, "late", 1);
    assert_close_fails(w, path, E_INTERNAL, "key 'late' comes after the tensors");
    w = begin_file(path), ggufw_tensor(w, "t", DT_F32, two, 1), ggufw_data(w, "12345678", 8);
    ggufw_tensor(w, "late", DT_F32, two, 1);
    assert_close_fails(w, path, E_INTERNAL, "tensor 'late' comes after the first data");
    w = begin_file(path), ggufw_tensor(w, "t", DT_Q4_0, odd, 1);
    assert_close_fails(w, path, E_UNSUPPORTED, "tensor 't': GGUF cannot hold this shape as Q4_0");
    w = begin_file(path), ggufw_tensor(w, "t", DT_F32, zero, 1);
    assert_close_fails(w, path, E_UNSUPPORTED, "tensor 't'");
    w = begin_file(path), ggufw_tensor(w, "t", DT_F8_E4M3, two, 1);
    assert_close_fails(w, path, E_UNSUPPORTED, "as F8_E4M3");
    mem_free(path);
}

static void an_abort_leaves_the_old_file(void **state)
{
    const char *path = temp_file("old.gguf", "old", 3);
    struct ggufw *w = begin_file(path);
    struct buf b = { 0 };
    struct err e;

    (void)state;
    ggufw_u32(w, "k", 1);
    ggufw_abort(w);
    ggufw_abort(NULL);
    assert_int_equal(count_partial_files(), 0);
    assert_int_equal(file_read(&b, path, 100, &e), OK);
    assert_true(str_is(buf_str(&b), "old"));
    buf_release(&b);
}

static void the_error_for_an_unwritable_path_names_it(void **state)
{
    struct ggufw *w = NULL;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(ggufw_open(&w, "/nonexistent/x.gguf", &e), E_IO);
    assert_non_null(strstr(e.msg, "/nonexistent/x.gguf: "));
    assert_null(w);
}

/* Files of more than 1 MiB cannot be written, as on a disk that is full. */
static void a_full_disk_is_reported(void **state)
{
    static const int64_t dims[] = { 1 << 20 };
    struct rlimit before, small;
    struct ggufw *w = NULL;
    struct err e = { 0 };
    char *data = mem_alloc(4 << 20), *path = in_temp("full");

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before, small.rlim_cur = 1 << 20;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(ggufw_open(&w, path, &e), OK);
    ggufw_tensor(w, "t", DT_F32, dims, 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    ggufw_data(w, data, 4 << 20);
    assert_close_fails(w, path, E_IO, "File too large");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    mem_free(data);
    mem_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_of_key_reads_back_unchanged),
        cmocka_unit_test(keys_of_any_type_are_copied_unchanged),
        cmocka_unit_test(data_may_come_in_pieces_of_any_size),
        cmocka_unit_test(mistakes_are_reported_at_close_and_leave_no_file),
        cmocka_unit_test(an_abort_leaves_the_old_file),
        cmocka_unit_test(the_error_for_an_unwritable_path_names_it),
        cmocka_unit_test(a_full_disk_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
