/* Names of models: paths, names on the Hugging Face Hub that are looked up in its cache, and
 * names that are refused. Nothing is downloaded.
 *
 * The cache is a temporary folder. */
#include "format/modelref.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

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
    assert_refused(STR("hf:../etc"), E_INVALID, "expected");
    assert_refused(STR("hf:org/.."), E_INVALID, "expected");
    assert_refused(STR("hf:org/name@../../x"), E_INVALID, "expected");
    assert_refused(STR("hf:org/name:../../../x"), E_INVALID, "stay inside");
    assert_refused(STR("hf:org/name:/etc/passwd"), E_INVALID, "stay inside");
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
    assert_refused(STR("hf:org/other"), E_NOTFOUND, "hf download org/other");
    assert_refused(STR("hf:org/name@v9"), E_NOTFOUND, "v9");
    assert_refused(STR("hf:org/name@fffffff"), E_NOTFOUND, "fffffff");
    assert_refused(STR("hf:org/two"), E_INVALID, ".gguf");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_the_hub_are_found_in_the_cache),
        cmocka_unit_test(paths_are_returned_unchanged),
        cmocka_unit_test(names_that_leave_the_cache_are_refused),
        cmocka_unit_test(a_missing_model_says_how_to_download_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
