/* Measured kernel choices of a GPU (kernel/cuda/tuned): they are written to a cache file and
 * read back, and a file with any other content is ignored.
 *
 * Files are temporary. No device is needed. */
#include "support.h"

#include "kernel/cuda/tuned.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void measurements_read_back_unchanged(void **state)
{
    struct tuned a = { 0 }, b;
    struct buf path = { 0 };
    (void)state;
    a.max_tokens_packed[DT_Q4_K][0] = 768, a.max_tokens_packed[DT_Q4_K][1] = 512;
    a.max_tokens_packed[DT_F16][0] = 40, a.max_tokens_packed[DT_F16][1] = TUNED_MAX_TOKENS;
    setenv("XDG_CACHE_HOME", temp_dir(), 1);
    tuned_path(&path, "a card|a driver");
    assert_false(tuned_read(&b, buf_cstr(&path)));
    assert_true(tuned_write(&a, buf_cstr(&path))); /* creates the folders too */
    assert_true(tuned_read(&b, buf_cstr(&path)));
    assert_memory_equal(&a, &b, sizeof a);
    a.max_tokens_packed[DT_BF16][0] = a.max_tokens_packed[DT_BF16][1] = 256;
    assert_true(tuned_write(&a, buf_cstr(&path)));
    assert_true(tuned_read(&b, buf_cstr(&path)));
    assert_memory_equal(&a, &b, sizeof a);
    buf_release(&path);
}

static void each_card_has_its_own_file(void **state)
{
    struct buf a = { 0 }, b = { 0 };
    (void)state;
    setenv("XDG_CACHE_HOME", "/somewhere", 1);
    tuned_path(&a, "one"), tuned_path(&b, "two");
    assert_string_not_equal(buf_cstr(&a), buf_cstr(&b));
    assert_true(strncmp(buf_cstr(&a), "/somewhere/tern/products-", 25) == 0);
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", "/home", 1);
    tuned_path(&a, "one");
    assert_true(strncmp(buf_cstr(&a), "/home/.cache/tern/products-", 27) == 0);
    unsetenv("HOME");
    tuned_path(&a, "one");
    assert_int_equal(a.n, 0);
    buf_release(&a), buf_release(&b);
}

static void a_file_with_other_content_is_ignored(void **state)
{
    static const char *const bad[] = {
        "",
        "\n",
        "Q4_K 768 512",
        "Q4_K 768\n",
        "Q4_K 768 512 3\n",
        "Q9_K 768 512\n",
        "Q4_K 0 512\n",
        "Q4_K -1 512\n",
        "Q4_K 768 65537\n",
        "Q4_K 768 99999999999999999999\n",
        "Q4_K  768 512\n",
        "Q4_K 768 512\nF16 x 3\n",
        " Q4_K 1 2\n",
        "Q4_K 1 2 \n",
        "Q4_K 1 2\n\n",
    };
    static char large[5000];
    struct tuned t, none = { 0 };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memset(&t, 1, sizeof t);
        if (tuned_read(&t, temp_file("tuned", bad[i], strlen(bad[i]))))
            fail_msg("'%s' was accepted", bad[i]);
        assert_memory_equal(&t, &none, sizeof t);
    }
    for (size_t i = 0; i + 9 <= sizeof large; i += 9) memcpy(large + i, "F16 1 20\n", 9);
    assert_false(tuned_read(&t, temp_file("large", large, 5000 / 9 * 9)));
    assert_false(tuned_read(&t, temp_file("zeros", "F16 1 2\0\n", 9)));
    assert_false(tuned_read(&t, temp_dir()));
}

static void a_folder_that_cannot_be_created_is_not_an_error(void **state)
{
    struct tuned t = { .max_tokens_packed = { [DT_F16] = { 1, 1 } } };
    char path[256];
    (void)state;
    snprintf(path, sizeof path, "%s/tern/products", temp_file("file", "x", 1));
    assert_false(tuned_write(&t, path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measurements_read_back_unchanged),
        cmocka_unit_test(each_card_has_its_own_file),
        cmocka_unit_test(a_file_with_other_content_is_ignored),
        cmocka_unit_test(a_folder_that_cannot_be_created_is_not_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
