/* The safetensors writer: one file or shards with an index, resuming after an abort, and no file
 * when bytes are missing.
 *
 * Files are temporary and are read back with the reader. */
#include "format/safetensorsw.h"

#include "base/file.h"
#include "base/mem.h"
#include "format/safetensors.h"
#include "support.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *make_folder(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", temp_dir(), name);
    mkdir(path, 0777);
    return path;
}

static bool has_file(const char *dir, const char *name)
{
    char *path = path_join(dir, name);
    bool there = file_exists(path);
    mem_free(path);
    return there;
}

static struct safetensorsw *begin_write(const char *dir, uint64_t shard, bool resume)
{
    struct safetensorsw *w = NULL;
    char name[8];
    assert_int_equal(safetensorsw_open(&w, dir, shard, NULL), OK);
    if (resume) safetensorsw_resume(w);
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "t%d", i);
        safetensorsw_tensor(w, name, i == 4 ? DT_BF16 : DT_F32, (int64_t[]){ 3, i + 1 }, 2);
    }
    return w;
}

/* Writes tensors [0, until); every byte of tensor i is i. Returns how many tensors the writer
 * wanted. */
static int write_tensors(struct safetensorsw *w, int until)
{
    int n = 0;
    for (int i = 0; i < until; i++) {
        unsigned char data[64];
        size_t bytes = (size_t)(3 * (i + 1) * (i == 4 ? 2 : 4));
        if (!safetensorsw_wants(w, (size_t)i)) continue;
        memset(data, i, sizeof data);
        safetensorsw_data(w, data, bytes / 2); /* in two pieces */
        safetensorsw_data(w, data, bytes - bytes / 2);
        n++;
    }
    return n;
}

static void assert_complete(const char *dir)
{
    struct safetensors *s = NULL;
    struct err e = { 0 };
    if (safetensors_open_dir(&s, dir, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(safetensors_n_tensors(s), 5);
    for (int i = 0; i < 5; i++) {
        char name[8];
        snprintf(name, sizeof name, "t%d", i);
        const struct source_tensor *t = safetensors_find(s, str_c(name));
        assert_non_null(t);
        assert_int_equal(t->type, i == 4 ? DT_BF16 : DT_F32);
        assert_int_equal(t->dims[1], i + 1);
        for (size_t k = 0; k < t->bytes; k++)
            assert_int_equal(((const unsigned char *)t->data)[k], i);
    }
    safetensors_close(s);
}

static void a_single_file_reads_back_unchanged(void **state)
{
    (void)state;
    const char *dir = make_folder("one");
    struct safetensorsw *w = begin_write(dir, 0, false);
    assert_int_equal(write_tensors(w, 5), 5);
    assert_int_equal(safetensorsw_close(w, NULL), OK);
    assert_true(has_file(dir, "model.safetensors") &&
                !has_file(dir, "model.safetensors.index.json"));
    assert_complete(dir);
}

static void shards_have_an_index(void **state)
{
    (void)state;
    const char *dir = make_folder("shards");
    struct safetensorsw *w = begin_write(dir, 60, false);
    write_tensors(w, 5);
    assert_true(safetensorsw_n_files(w) >= 3);
    assert_int_equal(safetensorsw_close(w, NULL), OK);
    assert_true(has_file(dir, "model.safetensors.index.json"));
    assert_complete(dir);
}

static void shards_that_an_earlier_run_finished_are_kept(void **state)
{
    (void)state;
    const char *dir = make_folder("resume");
    struct safetensorsw *w = begin_write(dir, 60, false);
    write_tensors(w, 3);
    safetensorsw_abort(w); /* in the middle of a shard */
    assert_true(has_file(dir, "model-00001-of-00004.safetensors"));
    assert_false(has_file(dir, "model.safetensors.index.json"));
    w = begin_write(dir, 60, true);
    int n = write_tensors(w, 5);
    assert_true(n < 5 && n > 0);
    assert_int_equal(safetensorsw_close(w, NULL), OK);
    assert_complete(dir);
}

static void missing_bytes_leave_no_file(void **state)
{
    (void)state;
    struct err e = { 0 };
    const char *dir = make_folder("missing");
    struct safetensorsw *w = begin_write(dir, 0, false);
    write_tensors(w, 4);
    assert_int_equal(safetensorsw_close(w, &e), E_INTERNAL);
    assert_non_null(strstr(e.msg, "t4"));
    assert_false(has_file(dir, "model.safetensors"));
    w = begin_write(dir, 0, false);
    safetensorsw_tensor(w, "t0", DT_F32, (int64_t[]){ 1 }, 1);
    assert_int_equal(safetensorsw_close(w, &e), E_INTERNAL);
    w = begin_write(dir, 0, false);
    safetensorsw_tensor(w, "q", DT_Q4_0, (int64_t[]){ 32 }, 1);
    assert_int_equal(safetensorsw_close(w, &e), E_UNSUPPORTED);
    assert_int_equal(safetensorsw_open(&w, "/nowhere/at/all", 0, &e), E_NOTFOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_single_file_reads_back_unchanged),
        cmocka_unit_test(shards_have_an_index),
        cmocka_unit_test(shards_that_an_earlier_run_finished_are_kept),
        cmocka_unit_test(missing_bytes_leave_no_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
