/* Manifests and encrypted files under faults: written, checked, read and given other keys, with every
 * allocation, map, read and thread refused once. */
#include "fault.h"

#include "base/file.h"
#include "base/keyring.h"
#include "base/mem.h"
#include "base/sealed.h"
#include "format/manifest.h"
#include "format/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[512];

static void write_text(const char *name, const char *text)
{
    char *path = path_join(dir, name);

    assert_int_equal(file_replace(path, str_c(text), NULL), OK);
    mem_free(path);
}

static void make_folder(void)
{
    char sub[600];

    snprintf(dir, sizeof dir, "%s/model", temp_dir());
    mkdir(dir, 0755);
    snprintf(sub, sizeof sub, "%s/onnx", dir);
    mkdir(sub, 0755);
    write_text("config.json", "{}");
    write_text("onnx/model.onnx", "bytes");
}

static int write_and_check(void *arg, struct err *e)
{
    struct manifest_opt opt = { .n_threads = 2 };
    struct manifest_result r;
    int rc = manifest_write(arg, &opt, &r, e);

    if (rc == OK) rc = manifest_check(arg, &opt, &r, e);
    if (rc == OK) assert_int_equal(r.n_files, 2);
    return rc;
}

static void manifests_are_written_and_checked(void **state)
{
    (void)state;
    make_folder();
    fault_run("the manifest of a folder", write_and_check, dir);
}

/* ---- encrypted files ---- */

#define KEY_A "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define KEY_B "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

/* Encrypts a file, reads it back by both ways, gives it another key and opens it with that. */
static int encrypt_and_read(void *arg, struct err *e)
{
    struct keyset *a = NULL, *b = NULL;
    struct filemap m = { 0 };
    struct buf text = { 0 };
    char *path = path_join(dir, "sealed");
    int rc = path ? keyset_parse(&a, STR(KEY_A), "a", e) : err_nomem(e, "a path");

    if (rc == OK) rc = keyset_parse(&b, STR(KEY_B), "b", e);
    if (rc == OK)
        rc = sealed_encrypt(arg, path, &(struct sealed_opt){ .keys = a, .chunk_bytes = 4096 }, e);
    if (path && rc != OK && !a) assert_false(file_exists(path));
    keyset_join(a);
    if (rc == OK) rc = filemap_open(&m, path, e);
    if (rc == OK) rc = file_read(&text, path, 1 << 20, e);
    if (rc == OK) assert_memory_equal(m.p, text.p, m.n);
    filemap_release(&m);
    if (rc == OK) rc = sealed_rekey(path, b, false, e);
    keyset_join(b);
    if (rc == OK) rc = filemap_open_head(&m, path, 10, e);
    if (rc == OK) rc = filemap_fill(&m, SIZE_MAX, NULL, NULL, e);
    filemap_release(&m);
    keyset_close(a);
    keyset_close(b);
    buf_release(&text);
    if (path) unlink(path);
    mem_free(path);
    return rc;
}

static int open_sealed_model(void *arg, struct err *e)
{
    struct keyset *a = NULL;
    struct source *s = NULL;
    int rc = keyset_parse(&a, STR(KEY_A), "a", e);

    keyset_join(a);
    if (rc == OK) rc = source_open(&s, arg, e);
    source_close(s);
    keyset_close(a);
    return rc;
}

static void encrypted_files_are_written_and_read(void **state)
{
    struct keyset *a = NULL;
    char *path;

    (void)state;
    make_folder();
    fault_run("an encrypted file", encrypt_and_read,
              (void *)repo("tests/golden/hf/qwen2/config.json"));
    path = path_join(dir, "m.bin");
    assert_int_equal(keyset_parse(&a, STR(KEY_A), "a", NULL), OK);
    assert_int_equal(sealed_encrypt(repo("tests/golden/hf/qwen2/model.safetensors"), path,
                                    &(struct sealed_opt){ .keys = a, .chunk_bytes = 65536 }, NULL),
                     OK);
    keyset_close(a);
    fault_run("open an encrypted model", open_sealed_model, path);
    mem_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(manifests_are_written_and_checked),
        cmocka_unit_test(encrypted_files_are_written_and_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
