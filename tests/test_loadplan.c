/* The load plan: hyper-parameters are read once per model, and the planned bytes equal the bytes
 * that the backends count after opening.
 *
 * Reads the model that ships with tern, tests/golden/hf and models of ../shared (skipped without
 * them). Linked with --wrap=hparams_read, which counts the calls. */
#include "support.h"

#include "engine/engine.h"
#include "engine/info.h"
#include "model/loadplan.h"
#include "pool/pool.h"
#include "tern.h"

#include <dirent.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define MODEL "models/tern-tales.gguf"

/* ---- how often hyper-parameters are read ---- */

static atomic_int n_reads;

int __real_hparams_read(struct hparams *hp, struct arena *a, const struct source *src,
                        struct err *e);
int __wrap_hparams_read(struct hparams *hp, struct arena *a, const struct source *src,
                        struct err *e);
int __wrap_hparams_read(struct hparams *hp, struct arena *a, const struct source *src,
                        struct err *e)
{
    atomic_fetch_add(&n_reads, 1);
    return __real_hparams_read(hp, a, src, e);
}

static void an_engine_reads_hyper_parameters_once(void **state)
{
    struct engine_opt o = { .n_threads = 1, .kv_type = DT_NONE };
    struct engine *g = NULL;
    struct err e = { 0 };
    (void)state;

    atomic_store(&n_reads, 0);
    if (engine_open(&g, repo(MODEL), &o, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(atomic_load(&n_reads), 1);
    engine_close(g);
    assert_int_equal(atomic_load(&n_reads), 1);
}

static void the_abi_reads_hyper_parameters_once(void **state)
{
    tern_options o;
    tern_model *m = NULL;
    (void)state;

    tern_options_init(&o);
    o.threads = 1;
    atomic_store(&n_reads, 0);
    assert_int_equal(tern_open(&m, repo(MODEL), &o), TERN_OK);
    assert_int_equal(atomic_load(&n_reads), 1);
    tern_close(m);
}

static void a_pool_with_a_memory_limit_reads_hyper_parameters_once_per_model(void **state)
{
    const char *paths[2] = { repo(MODEL), repo(MODEL) }, *aliases[2] = { "a", "b" };
    struct pool_opt o = { .paths = paths,
                          .aliases = aliases,
                          .n = 2,
                          .memory_limit = (uint64_t)1 << 40,
                          .warm = true,
                          .engine = { .n_threads = 1, .kv_type = DT_NONE } };
    struct pool *p = NULL;
    struct err e = { 0 };
    (void)state;

    atomic_store(&n_reads, 0);
    assert_int_equal(pool_open(&p, &o, &e), OK);
    while (pool_n_loaded(p) < 2) nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    assert_true(pool_is_ready(p));
    pool_close(p);
    assert_int_equal(atomic_load(&n_reads), 2);
}

/* ---- bytes ---- */

/* Opens the model and compares planned and counted bytes; false: tern does not support the
 * model. */
static bool check_bytes(const char *path, struct load_opt o)
{
    struct loadplan *p = NULL;
    struct runner *r = NULL;
    struct load_memory planned;
    struct err e = { 0 };
    const size_t *used;

    if (loadplan_read(&p, path, &e) != OK) return false;
    if (loadplan_make(p, &o, &e) != OK) {
        loadplan_close(p);
        return false;
    }
    assert_int_equal(p->place.n_shares, 1);
    planned = p->memory[0];
    if (runner_open(&r, p, &e) != OK) fail_msg("%s: %s", path, e.msg);
    used = p->place.shares[0].be->used_bytes;
    if (planned.weights != used[MEM_WEIGHTS] || planned.kv != used[MEM_KV] ||
        planned.scratch != used[MEM_SCRATCH])
        fail_msg("%s: planned %llu, %llu, %llu; counted %zu, %zu, %zu", path,
                 (unsigned long long)planned.weights, (unsigned long long)planned.kv,
                 (unsigned long long)planned.scratch, used[MEM_WEIGHTS], used[MEM_KV],
                 used[MEM_SCRATCH]);
    assert_int_equal(p->memory[0].backend, 0); /* the CPU backend needs no memory of its own */
    assert_true(planned.mapped + planned.weights > 0);
    runner_close(r);
    for (int k = 0; k < MEM_KINDS; k++) assert_int_equal(used[k], 0);
    loadplan_close(p);
    return true;
}

static int check_model(const char *path)
{
    const struct load_opt all[] = {
        { .backend = { .n_threads = 1 }, .n_ctx = 64, .kv_type = DT_NONE },
        { .backend = { .n_threads = 1, .reference = true },
          .n_ctx = 100,
          .kv_tokens = 1000,
          .max_batch = 33,
          .max_seqs = 3,
          .max_out = 7,
          .kv_type = DT_NONE,
          .no_prefix = true },
    };
    int n = 0;

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) n += check_bytes(path, all[i]);
    return n > 0;
}

/* Checks every model in a folder and returns how many were supported. */
static int check_folder(const char *folder)
{
    DIR *d = folder ? opendir(folder) : NULL;
    struct dirent *x;
    char path[1024];
    int n = 0;

    while (d && (x = readdir(d))) {
        if (x->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, x->d_name);
        n += check_model(path);
    }
    if (d) closedir(d);
    return n;
}

static void planned_bytes_equal_counted_bytes(void **state)
{
    (void)state;
    assert_true(check_model(repo(MODEL)));
    assert_true(check_folder(repo("tests/golden/hf")) >= 10);
    assert_true(check_folder(repo("tests/golden/onnx")) >= 2);
}

static void planned_bytes_equal_counted_bytes_for_the_shared_models(void **state)
{
    static const char *const folders[] = { "fixtures/hf", "fixtures/hf-2026", "fixtures/quant",
                                           "models" };
    int n = 0;
    (void)state;

    need_shared("fixtures/hf");
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (shared(folders[i])) n += check_folder(shared(folders[i]));
    print_message("%d models compared\n", n);
    assert_true(n >= 50);
}

static void the_engine_reports_the_planned_memory(void **state)
{
    struct engine_opt o = { .n_threads = 1, .kv_type = DT_NONE };
    struct loadplan *p = NULL;
    struct engine *g = NULL;
    struct engine_info info;
    struct load_bytes b;
    struct err e = { 0 };
    (void)state;

    assert_int_equal(engine_plan(&p, repo(MODEL), &o, &e), OK);
    b = loadplan_bytes(p);
    assert_int_equal(engine_open_plan(&g, p, &o, &e), OK);
    engine_info(g, &info);
    assert_int_equal(info.weight_bytes, b.weights);
    assert_int_equal(info.kv_bytes, b.kv);
    assert_int_equal(info.scratch_bytes, b.scratch);
    engine_close(g);
}

/* ---- options ---- */

static void options_out_of_range_are_refused_by_name(void **state)
{
    static const struct {
        struct load_opt o;
        const char *says;
    } all[] = { { { .n_ctx = 1, .kv_type = DT_NONE }, "context" },
                { { .kv_tokens = -1, .kv_type = DT_NONE }, "KV cache" },
                { { .max_batch = 1 << 20, .kv_type = DT_NONE }, "batch" },
                { { .max_seqs = -3, .kv_type = DT_NONE }, "sequences" } };
    struct loadplan *p = NULL;
    struct err e = { 0 };
    (void)state;

    assert_int_equal(loadplan_read(&p, repo(MODEL), &e), OK);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_int_equal(loadplan_make(p, &all[i].o, &e), E_INVALID);
        assert_non_null(strstr(e.msg, all[i].says));
    }
    loadplan_close(p);
}

/* ---- progress ---- */

static void note_percent(void *arg, int percent)
{
    int *seen = arg; /* calls, the last number */

    assert_true(percent > seen[1] && percent <= 100);
    seen[0]++;
    seen[1] = percent;
}

static void loading_tells_how_far_the_weights_are(void **state)
{
    int seen[2] = { 0, 0 };
    struct engine_opt o = { .n_threads = 1,
                            .kv_type = DT_NONE,
                            .progress = { note_percent, seen } };
    struct engine *g = NULL;
    struct err e = { 0 };
    (void)state;

    if (engine_open(&g, repo(MODEL), &o, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(seen[1], 100);
    assert_true(seen[0] > 20);
    engine_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_engine_reads_hyper_parameters_once),
        cmocka_unit_test(the_abi_reads_hyper_parameters_once),
        cmocka_unit_test(a_pool_with_a_memory_limit_reads_hyper_parameters_once_per_model),
        cmocka_unit_test(planned_bytes_equal_counted_bytes),
        cmocka_unit_test(planned_bytes_equal_counted_bytes_for_the_shared_models),
        cmocka_unit_test(the_engine_reports_the_planned_memory),
        cmocka_unit_test(loading_tells_how_far_the_weights_are),
        cmocka_unit_test(options_out_of_range_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
