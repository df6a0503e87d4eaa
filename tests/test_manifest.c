/* Manifests: the text is read strictly, models are compared with it file by file, and every error
 * names the manifest, the line, the file, and what was expected and found. */
#include "format/manifest.h"

#include "base/file.h"
#include "base/mem.h"
#include "sha256.h"
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUM_A "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb" /* of "a" */
#define SUM_0 "0000000000000000000000000000000000000000000000000000000000000000"

static struct err e;

static void write_text(const char *dir, const char *name, const char *text)
{
    char *path = path_join(dir, name);

    assert_int_equal(file_replace(path, str_c(text), &e), OK);
    mem_free(path);
}

/* A new folder below the temporary one. */
static const char *new_folder(void)
{
    static char path[512];
    static int n;

    snprintf(path, sizeof path, "%s/model%d", temp_dir(), n++);
    assert_int_equal(mkdir(path, 0777), 0);
    return path;
}

static const char *in(const char *dir, const char *name)
{
    static char path[700];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* A folder of a model with three files, one of them in a folder. */
static const char *new_model(void)
{
    const char *dir = new_folder();

    write_text(dir, "config.json", "{}");
    write_text(dir, "model.safetensors", "a");
    write_text(dir, ".hidden", "not a part");
    write_text(dir, "x.part-12", "not a part");
    assert_int_equal(mkdir(in(dir, "onnx"), 0777), 0);
    write_text(dir, "onnx/model.onnx", "bytes");
    return dir;
}

static void check_refused(const char *text, const char *words)
{
    struct manifest m = { 0 };

    assert_int_equal(manifest_parse(&m, str_c(text), "M", &e), E_FORMAT);
    if (!strstr(e.msg, words)) fail_msg("'%s' is not in '%s'", words, e.msg);
    manifest_release(&m);
}

/* ---- the text ---- */

static void sums_of_other_programs_are_read(void **state)
{
    struct manifest m = { 0 };
    const struct manifest_file *f;

    (void)state;
    assert_int_equal(
        manifest_parse(&m, STR("# written by hand\n" SUM_0 " *b/c.json\r\n\n" SUM_A "  ./a b.gguf"),
                       "M", &e),
        OK);
    assert_int_equal(m.n, 2);
    assert_string_equal(m.files[0].name, "a b.gguf");
    assert_int_equal(m.files[0].line, 4);
    assert_non_null(f = manifest_get(&m, "b/c.json"));
    assert_false(f->has_bytes);
    manifest_release(&m);
}

static void sizes_stand_in_comments(void **state)
{
    struct manifest m = { 0 };

    (void)state;
    assert_int_equal(manifest_parse(&m, STR("# 17 bytes\n" SUM_A "  a\n" SUM_0 "  b\n"), "M", &e),
                     OK);
    assert_true(m.files[0].has_bytes && m.files[0].bytes == 17);
    assert_false(m.files[1].has_bytes);
    manifest_release(&m);
}

static void malformed_lines_are_refused_by_number(void **state)
{
    (void)state;
    check_refused("", "M: lists no file");
    check_refused("\n\n", "M: lists no file");
    check_refused(SUM_A "  a\nhello\n", "line 2: expected a SHA-256 of 64 hex digits");
    check_refused(SUM_A " a", "line 1: expected a SHA-256");
    check_refused(SUM_A "  ", "line 1: expected a SHA-256");
    check_refused("\\" SUM_A "  a\\nb", "line 1: expected a SHA-256");
    check_refused("g" SUM_A "  a", "line 1");
    check_refused("# 5 bytes\n# 6 bytes\n" SUM_A "  a",
                  "line 2: the size of a file is given twice");
    check_refused("# 99999999999999999999 bytes\n" SUM_A "  a", "line 1: expected a number");
    check_refused(SUM_A "  a\n# 5 bytes\n", "a size without a file");
    check_refused(SUM_A "  a\n" SUM_0 "  b\n" SUM_0 "  a\n", "lines 1 and 3: 'a' is listed twice");
}

static void names_stay_inside_the_folder(void **state)
{
    static const char *const bad[] = { "/etc/passwd", "../a",  "a/../b", "a/..",  "..",
                                       ".",           "a//b",  "a/./b",  "a/",    "a\\b",
                                       "a\tb",        "a\001", "./../a", "a\177", ".//a" };
    struct manifest m = { 0 };
    unsigned char sum[CRYPTO_SUM] = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char line[200];
        snprintf(line, sizeof line, SUM_A "  %s\n", bad[i]);
        check_refused(line, "line 1: expected the name of a file inside the folder");
    }
    assert_int_equal(manifest_add(&m, STR("../a"), 1, sum, &e), E_INVALID);
    assert_int_equal(manifest_add(&m, STR("a\nb"), 1, sum, &e), E_INVALID);
    manifest_release(&m);
}

static void the_same_files_give_the_same_text(void **state)
{
    struct manifest m = { 0 }, back = { 0 };
    struct buf text = { 0 };
    unsigned char sum[CRYPTO_SUM] = { 1 };
    const char *path = in(new_folder(), "M");

    (void)state;
    assert_int_equal(manifest_add(&m, STR("b"), 7, sum, &e), OK);
    assert_int_equal(manifest_add(&m, STR("a"), UINT64_MAX, sum, &e), OK);
    assert_int_equal(manifest_save(&m, path, &e), OK);
    assert_int_equal(file_read(&text, path, 1000, &e), OK);
    assert_string_equal(buf_cstr(&text),
                        "0100000000000000000000000000000000000000000000000000000000000000  a\n"
                        "# 7 bytes\n"
                        "0100000000000000000000000000000000000000000000000000000000000000  b\n");
    assert_int_equal(manifest_read(&back, path, &e), OK);
    assert_int_equal(back.n, 2);
    buf_release(&text);
    manifest_release(&m);
    manifest_release(&back);
}

/* ---- models ---- */

static void a_sum_is_that_of_sha256(void **state)
{
    char data[100000], want[65], found[CRYPTO_HEX];
    unsigned char sum[CRYPTO_SUM];
    uint64_t bytes = 0;

    (void)state;
    for (size_t i = 0; i < sizeof data; i++) data[i] = (char)(i * 31 + i / 7);
    sha256_hex(data, sizeof data, want);
    assert_int_equal(manifest_hash(temp_file("sum", data, sizeof data), sum, &bytes, &e), OK);
    crypto_hex(found, sum, sizeof sum);
    assert_string_equal(found, want);
    assert_int_equal(bytes, sizeof data);
}

static int progress_calls;
static uint64_t progress_done;

static void on_progress(void *arg, uint64_t done, uint64_t total, const char *name)
{
    assert_ptr_equal(arg, &progress_calls);
    assert_non_null(name);
    assert_true(done > progress_done && done <= total);
    progress_done = done;
    progress_calls++;
}

static void a_folder_is_listed_with_its_folders(void **state)
{
    const char *dir = new_model();
    struct manifest_opt opt = { .n_threads = 3, .progress = on_progress, .arg = &progress_calls };
    struct manifest_result r;
    struct manifest m = { 0 };

    (void)state;
    assert_int_equal(manifest_check(dir, NULL, &r, &e), E_NOTFOUND);
    assert_int_equal(manifest_write(dir, &opt, &r, &e), OK);
    assert_string_equal(r.path, in(dir, "SHA256SUMS"));
    assert_int_equal(r.n_files, 3);
    assert_int_equal(r.bytes, 8);
    assert_int_equal(progress_done, 8);
    assert_int_equal(manifest_read(&m, r.path, &e), OK);
    assert_string_equal(m.files[0].name, "config.json");
    assert_string_equal(m.files[1].name, "model.safetensors");
    assert_string_equal(m.files[2].name, "onnx/model.onnx");
    manifest_release(&m);
    assert_int_equal(manifest_check(dir, &(struct manifest_opt){ .n_threads = 2 }, &r, &e), OK);
    assert_int_equal(r.n_files, 3);
    /* By a file of the folder as well. */
    assert_int_equal(manifest_check(in(dir, "model.safetensors"), NULL, &r, &e), OK);
    assert_int_equal(r.n_files, 3);
}

static void expect_damage(const char *model, const char *words)
{
    assert_int_equal(manifest_check(model, NULL, NULL, &e), E_DAMAGED);
    if (!strstr(e.msg, words)) fail_msg("'%s' is not in '%s'", words, e.msg);
}

static void changes_are_named_with_line_and_values(void **state)
{
    const char *dir = new_model();

    (void)state;
    assert_int_equal(manifest_write(dir, NULL, NULL, &e), OK);
    write_text(dir, "model.safetensors", "b");
    expect_damage(dir, "SHA256SUMS: line 4: model.safetensors: expected SHA-256 " SUM_A
                       ", found 3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d");
    write_text(dir, "model.safetensors", "ab");
    expect_damage(dir, "line 4: model.safetensors: expected 1 bytes, found 2");
    write_text(dir, "model.safetensors", "a");
    unlink(in(dir, "onnx/model.onnx"));
    expect_damage(dir, "line 6: onnx/model.onnx: the file is missing");
    write_text(dir, "onnx/model.onnx", "bytes");
    assert_int_equal(manifest_check(dir, NULL, NULL, &e), OK);
    write_text(dir, "tokenizer.json", "{}");
    expect_damage(dir, "does not list tokenizer.json");
}

static void a_gguf_file_has_a_manifest_of_its_own(void **state)
{
    const char *dir = new_folder();
    char model[600];
    struct manifest_result r;

    (void)state;
    write_text(dir, "m.gguf", "a");
    write_text(dir, "other.gguf", "b");
    write_text(dir, "config.json", "{}");
    snprintf(model, sizeof model, "%s/m.gguf", dir);
    assert_int_equal(manifest_write(model, NULL, &r, &e), OK);
    assert_string_equal(r.path, in(dir, "m.gguf.sha256"));
    assert_string_equal(r.sum, SUM_A);
    assert_int_equal(manifest_check(model, NULL, &r, &e), OK);
    assert_int_equal(r.n_files, 1);
    write_text(dir, "m.gguf", "b");
    expect_damage(model, "m.gguf.sha256: line 2: m.gguf: expected SHA-256 " SUM_A);
    /* The folder's list is asked where the file has none of its own, and only about the file. */
    unlink(r.path);
    write_text(dir, "SHA256SUMS", SUM_A "  m.gguf\n" SUM_0 "  other.gguf\n");
    expect_damage(model, "SHA256SUMS: line 1: m.gguf");
    write_text(dir, "m.gguf", "a");
    assert_int_equal(manifest_check(model, NULL, &r, &e), OK);
    write_text(dir, "SHA256SUMS", SUM_0 "  other.gguf\n");
    assert_int_equal(manifest_check(model, NULL, &r, &e), E_NOTFOUND);
}

static void parts_of_a_split_set_are_one_model(void **state)
{
    const char *dir = new_folder();
    char second[600];
    struct manifest_result r;

    (void)state;
    write_text(dir, "m-00001-of-00002.gguf", "a");
    write_text(dir, "m-00002-of-00002.gguf", "b");
    snprintf(second, sizeof second, "%s/m-00002-of-00002.gguf", dir);
    assert_int_equal(manifest_write(second, NULL, &r, &e), OK);
    assert_string_equal(r.path, in(dir, "m-00001-of-00002.gguf.sha256"));
    assert_int_equal(r.n_files, 2);
    assert_int_equal(manifest_check(second, NULL, NULL, &e), OK);
    write_text(dir, "m-00001-of-00002.gguf", "c");
    expect_damage(second, "line 2: m-00001-of-00002.gguf");
}

static void a_confined_model_does_not_lead_out(void **state)
{
    const char *dir = new_model();
    char confined[600];

    (void)state;
    snprintf(confined, sizeof confined, "%s/././", dir);
    assert_int_equal(manifest_write(dir, NULL, NULL, &e), OK);
    assert_int_equal(manifest_check(confined, NULL, NULL, &e), OK);
    unlink(in(dir, "model.safetensors"));
    assert_int_equal(symlink("/etc/hostname", in(dir, "model.safetensors")), 0);
    assert_int_not_equal(manifest_check(confined, NULL, NULL, &e), OK);
}

static void a_load_warns_or_refuses(void **state)
{
    const char *dir = new_model();
    enum manifest_mode mode;

    (void)state;
    assert_int_equal(manifest_enforce(dir, MANIFEST_OFF, &e), OK);
    assert_int_equal(manifest_enforce(dir, MANIFEST_WARN, &e), OK);
    assert_int_equal(manifest_enforce(dir, MANIFEST_REQUIRE, &e), E_NOTFOUND);
    assert_int_equal(manifest_write(dir, NULL, NULL, &e), OK);
    assert_int_equal(manifest_enforce(dir, MANIFEST_REQUIRE, &e), OK);
    write_text(dir, "config.json", "[]");
    assert_int_equal(manifest_enforce(dir, MANIFEST_WARN, &e), OK);
    assert_int_equal(manifest_enforce(dir, MANIFEST_REQUIRE, &e), E_DAMAGED);
    assert_true(manifest_mode_by_name("require", &mode) && mode == MANIFEST_REQUIRE);
    assert_false(manifest_mode_by_name("on", &mode));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_other_programs_are_read),
        cmocka_unit_test(sizes_stand_in_comments),
        cmocka_unit_test(malformed_lines_are_refused_by_number),
        cmocka_unit_test(names_stay_inside_the_folder),
        cmocka_unit_test(the_same_files_give_the_same_text),
        cmocka_unit_test(a_sum_is_that_of_sha256),
        cmocka_unit_test(a_folder_is_listed_with_its_folders),
        cmocka_unit_test(changes_are_named_with_line_and_values),
        cmocka_unit_test(a_gguf_file_has_a_manifest_of_its_own),
        cmocka_unit_test(parts_of_a_split_set_are_one_model),
        cmocka_unit_test(a_confined_model_does_not_lead_out),
        cmocka_unit_test(a_load_warns_or_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
