/* Names in GGUF files: for each model of ../shared/fixtures/hf the tensors, shapes and keys must
 * be those that llama.cpp's converter writes.
 *
 * Expected names are in tests/golden/gguf-names.jsonl.gz, one folder per line. Skipped without
 * ../shared. */
#include "model_gguf.h"

#include "jsonl.h"

/* Leading dimensions of 1 are ignored. */
static bool is_same_shape(const struct source_tensor *t, json_t *dims)
{
    size_t n = json_array_size(dims), skip = 0;
    int own = 0;

    while (skip + 1 < n && json_integer_value(json_array_get(dims, skip)) == 1) skip++;
    while (own + 1 < t->n_dims && t->dims[own] == 1) own++;
    if (n - skip != (size_t)(t->n_dims - own)) return false;
    for (size_t i = skip; i < n; i++)
        if (json_integer_value(json_array_get(dims, i)) != t->dims[own + (int)(i - skip)])
            return false;
    return true;
}

static int check_file(const struct source *src, const char *folder, json_t *v)
{
    const char *arch = json_string_value(json_object_get(v, "arch"));
    json_t *tensors = json_object_get(v, "tensors"), *x;
    struct str name;
    struct value value;
    int bad = 0;
    size_t i;

    bad += !source_str(src, "general.architecture", &name) || !str_is(name, arch);
    json_array_foreach (tensors, i, x) {
        const char *want = json_string_value(json_array_get(x, 0));
        const struct source_tensor *t = source_find(src, want);
        if (t && is_same_shape(t, json_array_get(x, 1))) continue;
        printf("%s: tensor %s %s\n", folder, want, t ? "has a different shape" : "is missing");
        bad++;
    }
    if (source_n_tensors(src) != json_array_size(tensors)) {
        printf("%s: %zu tensors, expected %zu\n", folder, source_n_tensors(src),
               json_array_size(tensors));
        bad++;
    }
    json_array_foreach (json_object_get(v, "keys"), i, x) {
        char key[160];
        snprintf(key, sizeof key, "%s.%s", arch, json_string_value(x));
        if (source_key(src, key, &value)) continue;
        printf("%s: the key %s is missing\n", folder, key);
        bad++;
    }
    return bad;
}

static void gguf_files_have_the_names_that_llama_cpp_writes(void **state)
{
    struct jsonl all;
    char path[300];
    int bad = 0;
    (void)state;
    need_shared("fixtures/hf");
    jsonl_open(&all, repo("tests/golden/gguf-names.jsonl.gz"));
    for (json_t *v; (v = jsonl_next(&all));) {
        const char *folder = json_string_value(json_object_get(v, "folder"));
        struct source *src = NULL;
        snprintf(path, sizeof path, "fixtures/hf/%s", folder);
        const char *dir = shared(path);
        snprintf(path, sizeof path, "%s/names.gguf", temp_dir());
        write_gguf_of(dir, path, false);
        assert_int_equal(source_open(&src, path, NULL), OK);
        bad += check_file(src, folder, v);
        source_close(src);
        json_decref(v);
    }
    jsonl_close(&all);
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf_files_have_the_names_that_llama_cpp_writes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
