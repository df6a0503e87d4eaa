/* Names of models: paths, names on the Hugging Face Hub that are looked up in its cache, and
 * names that are refused; which models the cache has, and how one is removed. Nothing is downloaded.
 *
 * The cache is a temporary folder. */
#include "format/modelref.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/hubcache.h"
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

static void make_file(const char *dir, const char *path, const char *text)
{
    char full[2000];
    snprintf(full, sizeof full, "%s/%s", dir, path);
    for (char *p = full + 1; *p; p++)
        if (*p == '/') {
            *p = 0;
            mkdir(full, 0777);
            *p = '/';
        }
    assert_int_equal(file_replace(full, str_c(text), NULL), OK);
}

/* Makes a cache folder with the layout of huggingface_hub. */
static void make_cache(void)
{
    char *hub = path_join(temp_dir(), "hub");
    make_file(hub, "models--org--name/refs/main", COMMIT "\n");
    make_file(hub, "models--org--name/refs/v1.0", COMMIT);
    make_file(hub, "models--org--name/snapshots/" COMMIT "/config.json", "{}");
    make_file(hub, "models--gpt2/refs/main", COMMIT);
    make_file(hub, "models--gpt2/snapshots/" COMMIT "/config.json", "{}");
    make_file(hub, "models--org--gguf/refs/main", COMMIT);
    make_file(hub, "models--org--gguf/snapshots/" COMMIT "/m-Q4_0.gguf", "x");
    make_file(hub, "models--org--two/refs/main", COMMIT);
    make_file(hub, "models--org--two/snapshots/" COMMIT "/a.gguf", "x");
    make_file(hub, "models--org--two/snapshots/" COMMIT "/b.gguf", "x");
    make_file(hub, "models--org--evil/refs/main", "../../../../etc");
    make_file(hub, "models--org--quants/refs/main", COMMIT);
    make_file(hub, "models--org--quants/snapshots/" COMMIT "/config.json", "{}");
    make_file(hub, "models--org--quants/snapshots/" COMMIT "/m-Q4_K_M.gguf", "x");
    make_file(hub, "models--org--quants/snapshots/" COMMIT "/m-Q4_K_S.gguf", "x");
    make_file(hub, "models--org--quants/snapshots/" COMMIT "/mmproj-f16.gguf", "x");
    make_file(hub, "models--org--quants/snapshots/" COMMIT "/Q8_0/m-00001-of-00002.gguf", "x");
    make_file(hub, "models--org--quants/snapshots/" COMMIT "/Q8_0/m-00002-of-00002.gguf", "x");
    make_file(hub, "models--one--twin/refs/main", COMMIT);
    make_file(hub, "models--two--twin/refs/main", COMMIT);
    setenv("HF_HUB_CACHE", hub, 1);
    mem_free(hub);
}

static void assert_resolves_to(const char *ref, const char *end)
{
    char *path = NULL;
    struct err e = { 0 };
    if (modelref_resolve(&path, str_c(ref), &e) != OK) fail_msg("%s: %s", ref, e.msg);
    if (!str_ends(str_c(path), str_c(end))) fail_msg("%s resolves to %s", ref, path);
    mem_free(path);
}

static void assert_refused(struct str ref, int code, const char *word)
{
    char *path = NULL;
    struct err e = { 0 };
    int rc = modelref_resolve(&path, ref, &e);
    if (rc != code) fail_msg("%.*s: result %d, %s", STR_ARG(ref), rc, rc == OK ? path : e.msg);
    if (!strstr(e.msg, word)) fail_msg("the error does not contain '%s': %s", word, e.msg);
}

static void names_of_the_hub_are_found_in_the_cache(void **state)
{
    (void)state;
    make_cache();
    assert_resolves_to("hf:org/name", "models--org--name/snapshots/" COMMIT);
    assert_resolves_to("hf:org/name@main", COMMIT);
    assert_resolves_to("hf:org/name@v1.0", COMMIT);
    assert_resolves_to("hf:org/name@" COMMIT, COMMIT);
    assert_resolves_to("hf:org/name@0123456", COMMIT);
    assert_resolves_to("hf.co/org/name@main", COMMIT);
    assert_resolves_to("huggingface.co/org/two:b.gguf", "/b.gguf");
    assert_resolves_to("hf:gpt2", "models--gpt2/snapshots/" COMMIT);
    assert_resolves_to("hf:org/gguf", "/m-Q4_0.gguf");
    assert_resolves_to("hf:org/two:b.gguf", "/b.gguf");
}

static void paths_are_returned_unchanged(void **state)
{
    (void)state;
    assert_resolves_to("models/x.gguf", "models/x.gguf");
    assert_resolves_to("file:models/x.gguf", "models/x.gguf");
    assert_resolves_to("file:///srv/x.gguf", "/srv/x.gguf");
    assert_false(modelref_is(STR("models/hf:x")));
}

static void names_that_leave_the_cache_are_refused(void **state)
{
    (void)state;
    make_cache();
    assert_refused(STR("hf.co/org/../etc"), E_INVALID, "expected");
    assert_refused(STR("hf:../etc"), E_INVALID, "expected");
    assert_refused(STR("hf:org/.."), E_INVALID, "expected");
    assert_refused(STR("hf:org/name@../../x"), E_INVALID, "expected");
    assert_refused(STR("hf:org/name:../../../x"), E_INVALID, "stays inside");
    assert_refused(STR("hf:org/name:/etc/passwd"), E_INVALID, "stays inside");
    assert_refused(STR("hf:org/a/b"), E_INVALID, "expected");
    assert_refused(STR("hf:"), E_INVALID, "expected");
    assert_refused(STR("hf:org/evil"), E_FORMAT, "commit");
    assert_refused(STR("hf:org/na\0me"), E_INVALID, "NUL");
    assert_refused(STR("file:"), E_INVALID, "path");
    assert_refused(STR(""), E_INVALID, "empty");
}

static void a_missing_model_says_how_to_download_it(void **state)
{
    (void)state;
    make_cache();
    assert_refused(STR("hf:org/other"), E_NOTFOUND, "tern pull hf:org/other");
    assert_refused(STR("hf.co/org/other"), E_NOTFOUND, "tern pull hf:org/other");
    assert_refused(STR("hf:org/name@v9"), E_NOTFOUND, "v9");
    assert_refused(STR("hf:org/name@fffffff"), E_NOTFOUND, "fffffff");
    assert_refused(STR("hf:org/two"), E_INVALID, ".gguf");
}

static void of_several_files_a_word_or_q4_k_m_chooses(void **state)
{
    (void)state;
    make_cache();
    assert_resolves_to("hf:org/quants", "/m-Q4_K_M.gguf");
    assert_resolves_to("hf:org/quants:q4_k_s", "/m-Q4_K_S.gguf");
    assert_resolves_to("hf:org/quants:Q8_0", "/Q8_0/m-00001-of-00002.gguf");
    assert_resolves_to("hf:org/quants:Q8_0/m-00002-of-00002.gguf", "/Q8_0/m-00001-of-00002.gguf");
    assert_refused(STR("hf:org/quants:Q4_K"), E_NOTFOUND, "'tern pull hf:org/quants:Q4_K'");
    assert_refused(STR("hf:org/quants:Q5_0"), E_NOTFOUND, "m-Q4_K_S.gguf");
}

static void assert_found(const char *ref, const char *end)
{
    char *path = NULL;
    struct err e = { 0 };
    if (modelref_find(&path, str_c(ref), &e) != OK) fail_msg("%s: %s", ref, e.msg);
    if (!str_ends(str_c(path), str_c(end))) fail_msg("%s is %s", ref, path);
    mem_free(path);
}

static void assert_not_found(const char *ref, int code, const char *word)
{
    char *path = NULL;
    struct err e = { 0 };
    int rc = modelref_find(&path, str_c(ref), &e);
    if (rc != code || !strstr(e.msg, word)) fail_msg("%s: %d, %s", ref, rc, e.msg);
}

static void a_name_of_the_cache_needs_no_prefix(void **state)
{
    (void)state;
    make_cache();
    assert_found("org/name", "models--org--name/snapshots/" COMMIT);
    assert_found("name", "models--org--name/snapshots/" COMMIT);
    assert_found("NAME@v1.0", "models--org--name/snapshots/" COMMIT);
    assert_found("quants:Q8_0", "/m-00001-of-00002.gguf");
    assert_found("gpt2", "models--gpt2/snapshots/" COMMIT);
    assert_found(temp_dir(), temp_dir());
    assert_not_found("twin", E_INVALID, "one/twin");
    assert_not_found("org/none", E_NOTFOUND, "'tern pull hf:org/none'");
    assert_not_found("none", E_NOTFOUND, getenv("HF_HUB_CACHE"));
    assert_not_found("none.gguf", E_NOTFOUND, "no such file");
    assert_not_found("file:/none", E_NOTFOUND, "no such file");
    assert_not_found("hf:none", E_NOTFOUND, "tern pull hf:none");
}

static void names_with_bad_parts_are_refused(void **state)
{
    static const char *const bad[] = {
        "hf:/name",           "hf:org/",          "hf:org//name",
        "hf:org/name@",       "hf:org/name:",     "hf:org/name@:f",
        "hf:-org/name",       "hf:.org/name",     "hf:org/--name",
        "hf:org/na--me",      "hf:a--b/c",        "hf:org/na me",
        "hf:org/name@a//b",   "hf:org/name@/a",   "hf:org/name@a/",
        "hf:org/name@a/../b", "hf:org/name@.a",   "hf:org/name:a/../b",
        "hf:org/name:a//b",   "hf:org/name:./a",  "hf:org/name:a/.",
        "hf:org/name:a\\b",   "hf:org/name:a\nb", "hf:org\\name",
        "hf:org/name\x80",
    };
    char *path = NULL, text[3000] = "hf:org/";
    struct err e;

    (void)state;
    make_cache();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (modelref_resolve(&path, str_c(bad[i]), &e) != E_INVALID)
            fail_msg("'%s' is not refused as invalid", bad[i]);
    memset(text + 7, 'a', 200);
    assert_refused(str_c(text), E_INVALID, "expected");
    memset(text + 7, 'a', 2000);
    assert_refused(str_c(text), E_INVALID, "at most 1024");
    memcpy(text, "hf:o/n:", 7);
    text[700] = 0;
    assert_refused(str_c(text), E_INVALID, "inside");
    assert_refused(str_of("hf:org/name:a\0b", 15), E_INVALID, "NUL");
    assert_refused(str_of("hf:org/name@a\0b", 15), E_INVALID, "NUL");
}

/* ---- lists and removal ---- */

static void link_blob(const char *repo, const char *name, const char *blob)
{
    char *dir = path_join(getenv("HF_HUB_CACHE"), repo), path[1500], to[200];

    snprintf(path, sizeof path, "blobs/%s", blob);
    make_file(dir, path, "0123456789");
    snprintf(path, sizeof path, "%s/%s", dir, name);
    snprintf(to, sizeof to, "../../blobs/%s", blob);
    make_file(dir, "snapshots/" COMMIT "/README.md", "x");
    assert_int_equal(symlink(to, path), 0);
    mem_free(dir);
}

static const char *list_names(void)
{
    static char text[2000];
    struct hubcache_models l;
    size_t n = 0;

    text[0] = 0;
    assert_int_equal(hubcache_list(&l, getenv("HF_HUB_CACHE"), NULL), OK);
    for (int i = 0; i < l.n; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", n ? " " : "", l.at[i].name);
    hubcache_models_release(&l);
    return text;
}

static void only_whole_models_are_listed(void **state)
{
    char hub[600];

    (void)state;
    snprintf(hub, sizeof hub, "%s/list", temp_dir());
    setenv("HF_HUB_CACHE", hub, 1);
    make_file(hub, "models--o--m/refs/main", COMMIT);
    link_blob("models--o--m", "snapshots/" COMMIT "/a-00001-of-00002.gguf", "b1");
    link_blob("models--o--m", "snapshots/" COMMIT "/b.gguf", "b2");
    assert_string_equal(list_names(), "o/m:b.gguf");
    link_blob("models--o--m", "snapshots/" COMMIT "/a-00002-of-00002.gguf", "b3");
    assert_string_equal(list_names(), "o/m:a-00001-of-00002.gguf o/m:b.gguf");
    snprintf(hub, sizeof hub, "%s/list/models--o--m/blobs/b2", temp_dir());
    assert_int_equal(unlink(hub), 0); /* a link to nowhere */
    assert_string_equal(list_names(), "o/m:a-00001-of-00002.gguf");
    snprintf(hub, sizeof hub, "%s/list", temp_dir());
    make_file(hub, "models--o--f/refs/v2", COMMIT);
    make_file(hub, "models--o--f/snapshots/" COMMIT "/config.json", "{}");
    make_file(hub, "models--o--f/snapshots/" COMMIT "/model-00001-of-00002.safetensors", "x");
    make_file(hub, "models--o--f/snapshots/.tern-1-" COMMIT "/m.gguf", "x");
    assert_string_equal(list_names(), "o/m:a-00001-of-00002.gguf");
    make_file(hub, "models--o--f/snapshots/" COMMIT "/model-00002-of-00002.safetensors", "x");
    assert_string_equal(list_names(), "o/f@v2 o/m:a-00001-of-00002.gguf");
}

static void a_removal_keeps_what_others_use_and_what_is_outside(void **state)
{
    struct hf_ref r;
    struct hubcache_removed gone;
    char hub[600], path[800];
    int fd;

    (void)state;
    snprintf(hub, sizeof hub, "%s/remove", temp_dir());
    setenv("HF_HUB_CACHE", hub, 1);
    make_file(hub, "keep.txt", "x");
    make_file(hub, "models--o--m/refs/main", COMMIT);
    link_blob("models--o--m", "snapshots/" COMMIT "/a.gguf", "b1");
    link_blob("models--o--m", "snapshots/" COMMIT "/b.gguf", "b2");
    snprintf(path, sizeof path, "%s/models--o--m/snapshots/" COMMIT "/outside.txt", hub);
    assert_int_equal(symlink("../../../keep.txt", path), 0);
    assert_int_equal(modelref_parse(&r, STR("hf:o/m:a.gguf"), NULL), OK);
    assert_int_equal(hubcache_lock(&fd, hub, &r, false, NULL), OK);
    assert_int_equal(hubcache_remove(hub, &r, &gone, NULL), E_CONCURRENCY);
    close(fd);
    assert_int_equal(hubcache_remove(hub, &r, &gone, NULL), OK);
    assert_int_equal(gone.bytes, 10);
    assert_string_equal(list_names(), "o/m:b.gguf");
    assert_int_equal(hubcache_remove(hub, &r, &gone, NULL), E_NOTFOUND);
    r.file.p = NULL;
    assert_int_equal(hubcache_remove(hub, &r, &gone, NULL), OK);
    assert_string_equal(list_names(), "");
    snprintf(path, sizeof path, "%s/models--o--m", hub);
    assert_false(file_exists(path));
    snprintf(path, sizeof path, "%s/keep.txt", hub);
    assert_true(file_exists(path)); /* where a link led */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_several_files_a_word_or_q4_k_m_chooses),
        cmocka_unit_test(a_name_of_the_cache_needs_no_prefix),
        cmocka_unit_test(names_with_bad_parts_are_refused),
        cmocka_unit_test(only_whole_models_are_listed),
        cmocka_unit_test(a_removal_keeps_what_others_use_and_what_is_outside),
        cmocka_unit_test(names_of_the_hub_are_found_in_the_cache),
        cmocka_unit_test(paths_are_returned_unchanged),
        cmocka_unit_test(names_that_leave_the_cache_are_refused),
        cmocka_unit_test(a_missing_model_says_how_to_download_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
