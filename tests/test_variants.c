/* Every model family with other settings than its golden folder: heads, biases, ties, rotary
 * scalings, windows, experts and other options, against logits of the family's own library
 * (transformers).
 *
 * tests/golden/variants.jsonl.gz has one model per line: config.json, the names, shapes and
 * value ranges of its tensors, and some logits. Weights are generated from a hash of the tensor
 * names, so that none are stored. */
#include "model_gguf.h"
#include "model_world.h"

#include "jsonl.h"

static uint64_t hash_name(const char *s)
{
    uint64_t h = 0xcbf29ce484222325;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 0x100000001b3;
    return h;
}

/* Value i of the tensor whose name has this hash: uniform in [base - spread, base + spread). */
static float weight_at(uint64_t seed, size_t i, double base, double spread)
{
    uint64_t x = seed + (i + 1) * 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    x ^= x >> 31;
    return (float)(base + spread * (2 * ((double)(x >> 40) * 0x1p-24) - 1));
}

static void add_tensor(struct folder *f, json_t *t)
{
    const char *name = json_string_value(json_array_get(t, 0));
    json_t *shape = json_array_get(t, 1);
    double base = json_number_value(json_array_get(t, 2)),
           spread = json_number_value(json_array_get(t, 3));
    int64_t dims[4] = { 0 };
    size_t n = 1, n_dims = json_array_size(shape);

    assert_true(n_dims <= 4);
    for (size_t i = 0; i < n_dims; i++) {
        dims[i] = json_integer_value(json_array_get(shape, i));
        n *= (size_t)dims[i];
    }
    float *x = mem_array(n, sizeof *x);
    uint64_t seed = hash_name(name);
    for (size_t i = 0; i < n; i++) x[i] = weight_at(seed, i, base, spread);
    folder_add(f, name, "F32", dims, (int)n_dims, x, n * sizeof *x);
    mem_free(x);
}

/* The largest relative error of every 20th logit after tokens 7 and 39. */
static double logits_error(const char *path, json_t *rows)
{
    struct world w = open_world(path, true);
    struct chain c;
    int32_t ids[40];
    double worst = 0;

    for (int i = 0; i < 40; i++) ids[i] = (i * 37 + 11) % 320;
    chain_init(&c, 64);
    assert_true(chain_reserve(&c, w.pool, 40));
    const float *logits = run_tokens(&w, &c, ids, 0, 40);
    assert_int_equal(w.m->hp.n_vocab, 320);
    for (size_t k = 0; k < 2; k++) {
        float got[16], want[16];
        for (size_t i = 0; i < 16; i++) {
            got[i] = logits[(k ? 39 : 7) * 320 + i * 20];
            want[i] = (float)json_number_value(json_array_get(json_array_get(rows, k), i));
        }
        double err = relative_error(got, want, 16);
        if (!(err <= worst)) worst = err;
    }
    chain_release(&c, w.pool);
    close_world(&w);
    return worst;
}

/* Compares one model, and prints its error and returns 1 if it is too large. file: also through
 * a GGUF file. */
static int check_variant(json_t *v, bool file)
{
    const char *name = json_string_value(json_object_get(v, "name"));
    json_t *rows = json_object_get(v, "rows"), *t;
    char *config = json_dumps(json_object_get(v, "config"), 0), path[300];
    struct folder f;
    size_t i;

    folder_begin(&f, "variant");
    json_array_foreach (json_object_get(v, "tensors"), i, t) add_tensor(&f, t);
    folder_end(&f, str_c(config));
    snprintf(path, sizeof path, "%s/variant.gguf", temp_dir());
    double direct = logits_error(f.dir, rows), through = 0;
    if (file) {
        write_gguf_of(f.dir, path, false);
        through = logits_error(path, rows);
    }
    bool bad = !(direct < 2e-4) || !(through < 2e-4);
    if (bad) printf("%s: relative error %g, through GGUF %g\n", name, direct, through);
    free(config);
    return bad;
}

static void settings_of_each_family_give_the_logits_of_its_own_library(void **state)
{
    struct jsonl all;
    int n = 0, bad = 0;
    (void)state;
    jsonl_open(&all, repo("tests/golden/variants.jsonl.gz"));
    for (json_t *v; (v = jsonl_next(&all)); json_decref(v)) {
        if (n++ % THIN) continue;
        bad += check_variant(v, n % 2 == 0);
    }
    jsonl_close(&all);
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_of_each_family_give_the_logits_of_its_own_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
