/* The pool of models: names and aliases, loading, failed loads, the memory limit and its plan,
 * draining.
 *
 * Uses the model that ships with tern. */
#include "support.h"

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/hard.h"
#include "engine/info.h"
#include "engine/request.h"
#include "engine/stats.h"
#include "model/loadplan.h"
#include "pool/membudget.h"
#include "pool/pool.h"
#include "pool/prompter.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MODEL "models/tern-tales.gguf"

static atomic_int n_changes;

static void on_change(void *arg)
{
    (void)arg;
    atomic_fetch_add(&n_changes, 1);
}

static struct pool_opt pool_options(const char *const *paths, int n)
{
    return (struct pool_opt){ .paths = paths,
                              .n = n,
                              .changed = on_change,
                              .engine = { .kv_type = DT_NONE,
                                          .n_ctx = 256,
                                          .max_batch = 64,
                                          .max_seqs = 2,
                                          .n_threads = 1 } };
}

static bool wait_loaded(struct pool *p)
{
    uint64_t start = clock_ns();

    while (pool_n_loaded(p) < pool_n(p)) {
        if (clock_ms_since(start) > 60000) return false;
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    return true;
}

static void a_model_is_named_by_its_file_or_alias(void **state)
{
    const char *dir = temp_dir();
    char split[300], folder[300];
    const char *paths[4] = { repo(MODEL), repo(MODEL), split, folder },
               *aliases[4] = { NULL, "other", NULL, "" };
    struct pool_opt o = pool_options(paths, 4);
    struct pool *p = NULL;
    struct err e = { 0 };

    (void)state;
    snprintf(split, sizeof split, "%s", temp_file("big-00001-of-00003.gguf", "GGUF", 4));
    snprintf(folder, sizeof folder, "%s/Qwen2.5-0.5B/", dir);
    mkdir(folder, 0700);
    o.aliases = aliases;
    assert_int_equal(pool_open(&p, &o, &e), OK);
    assert_int_equal(pool_n(p), 4);
    assert_string_equal(pool_at(p, 0)->id, "tern-tales");
    assert_string_equal(pool_at(p, 1)->id, "other");
    assert_string_equal(pool_at(p, 2)->id, "big");
    assert_string_equal(pool_at(p, 3)->id, "Qwen2.5-0.5B");
    assert_true(pool_at(p, 0)->created > 1600000000);
    pool_close(p); /* closing is allowed during loading */
    rmdir(folder);
}

static void two_models_of_one_name_are_refused(void **state)
{
    const char *paths[2] = { repo(MODEL), repo(MODEL) };
    struct pool_opt o = pool_options(paths, 2);
    struct pool *p = NULL;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(pool_open(&p, &o, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "both named 'tern-tales'"));
    paths[1] = "/nowhere/x.gguf";
    assert_int_equal(pool_open(&p, &o, &e), E_NOTFOUND);
    assert_non_null(strstr(e.msg, "/nowhere/x.gguf"));
    o.n = 0;
    assert_int_equal(pool_open(&p, &o, &e), E_INVALID);
    assert_null(p);
}

static void a_model_can_be_found_when_it_is_loaded(void **state)
{
    const char *paths[1] = { repo(MODEL) };
    struct pool_opt o = pool_options(paths, 1);
    struct pool_instance *m = NULL;
    struct pool *p = NULL;
    struct err e = { 0 };
    int rc;

    (void)state;
    atomic_store(&n_changes, 0);
    o.warm = true;
    assert_int_equal(pool_open(&p, &o, &e), OK);
    rc = pool_find(p, STR("tern-tales"), &m, &e);
    pool_release(m);
    assert_true(rc == OK || (rc == E_LOADING && e.retry_ms > 0));
    assert_true(wait_loaded(p));
    assert_true(pool_is_ready(p));
    assert_int_equal(pool_find(p, STR("tern-tales"), &m, &e), OK);
    assert_ptr_equal(m->model, pool_at(p, 0));
    pool_release(m);
    assert_int_equal(pool_find(p, STR("nobody"), &m, &e), E_NOTFOUND);
    assert_non_null(strstr(e.msg, "'tern-tales'"));
    assert_int_equal(pool_find(p, STR(""), &m, &e), OK); /* no name: the first model */
    assert_non_null(m->engine);
    assert_true(m->load_ms > 0 && m->warm_ms > 0 && m->sample.top_p > 0);
    assert_true(prompter_knows_chat(m->prompter));
    /* The warm-up is not counted as a request. */
    assert_int_equal(counter_get(&engine_stats(m->engine)->submitted), 0);
    assert_int_equal(counter_get(&engine_stats(m->engine)->generated_tokens), 0);
    assert_true(pool_is_idle(p));
    pool_release(m);
    pool_close(p);
    assert_int_equal(atomic_load(&n_changes), 1);
}

static void a_failed_load_keeps_its_reason_and_other_models_work(void **state)
{
    const char *paths[2] = { temp_file("bad.gguf", "GGUFxxxx", 8), repo(MODEL) };
    struct pool_opt o = pool_options(paths, 2);
    struct pool_instance *m = NULL;
    struct pool *p = NULL;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(pool_open(&p, &o, &e), OK);
    assert_true(wait_loaded(p));
    assert_false(pool_is_ready(p));
    assert_int_equal(pool_at(p, 0)->state, POOL_FAILED);
    assert_int_not_equal(pool_find(p, STR("bad"), &m, &e), OK);
    assert_non_null(strstr(e.msg, "bad.gguf"));
    assert_int_equal(pool_find(p, STR("tern-tales"), &m, &e), OK);
    pool_release(m);
    pool_close(p);
}

static atomic_bool may_go_on;

/* The pool's thread stops here: models behind the first stay unloaded. */
static void stop_loading(void *arg)
{
    (void)arg;
    while (!atomic_load(&may_go_on)) nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

static void a_deadline_that_a_load_cannot_meet_is_refused(void **state)
{
    const char *paths[2] = { repo(MODEL), repo(MODEL) }, *aliases[2] = { "a", "b" };
    struct pool_opt o = pool_options(paths, 2);
    const uint64_t minute = UINT64_C(60000000000);
    struct pool_instance *m = NULL;
    struct pool *p = NULL;
    struct err e = { 0 };
    int rc = E_DEADLINE;

    (void)state;
    atomic_store(&may_go_on, false);
    o.aliases = aliases;
    o.changed = stop_loading;
    assert_int_equal(pool_open(&p, &o, &e), OK);
    assert_int_equal(pool_find_by(p, STR("b"), 0, &m, &e), E_LOADING);
    assert_int_equal(pool_find_by(p, STR("b"), clock_ns() + minute, &m, &e), E_LOADING);
    assert_int_equal(pool_find_by(p, STR("b"), clock_ns() + 99000000, &m, &e), E_DEADLINE);
    assert_non_null(strstr(e.msg, "100 ms"));
    while (pool_n_loaded(p) == 0) nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    for (int i = 0; i < 100 && rc != OK; i++) /* a busy machine may let the deadline pass */
        rc = pool_find_by(p, STR("a"), clock_ns() + 50000000, &m, &e);
    assert_int_equal(rc, OK);
    pool_release(m);
    atomic_store(&may_go_on, true);
    pool_close(p);
}

/* The planned memory of a model that is not loaded. */
static struct membudget plan_memory(const char *path, const struct engine_opt *o)
{
    struct loadplan *plan = NULL;
    struct err e = { 0 };
    struct membudget b;

    if (engine_plan(&plan, path, o, &e) != OK) fail_msg("%s", e.msg);
    b = membudget_of(plan);
    loadplan_close(plan);
    return b;
}

static void a_model_that_exceeds_the_memory_limit_is_not_loaded(void **state)
{
    const char *paths[2] = { repo(MODEL), repo(MODEL) }, *aliases[2] = { "a", "b" };
    struct pool_opt o = pool_options(paths, 2);
    struct membudget b;
    struct pool_instance *m;
    struct engine_info info;
    struct pool *p = NULL;
    struct err e = { 0 };

    (void)state;
    o.aliases = aliases;
    o.engine.kv_tokens = 1024;
    b = plan_memory(paths[0], &o.engine);
    o.memory_limit = membudget_total(&b) * 3 / 2; /* enough for one of the two models */
    assert_int_equal(pool_open(&p, &o, &e), OK);
    assert_true(wait_loaded(p));
    assert_int_equal(pool_at(p, 0)->state, POOL_READY);
    assert_int_equal(pool_at(p, 1)->state, POOL_FAILED);
    assert_int_equal(pool_state(p, 1, &e), POOL_FAILED);
    assert_int_equal(e.code, E_MEMORY);
    assert_non_null(strstr(e.msg, "memory-limit"));
    /* The memory in use equals the plan. */
    m = pool_acquire(p, 0);
    engine_info(m->engine, &info);
    pool_release(m);
    assert_int_equal(b.kv, info.kv_bytes);
    assert_int_equal(b.scratch, info.scratch_bytes);
    assert_int_equal(b.weights, info.weight_bytes);
    pool_close(p);
}

/* Files of a machine with so much memory, in a folder that stands for "/". */
static const char *make_machine(unsigned long long kb)
{
    static char root[300];
    char path[400], text[200];
    FILE *f;

    snprintf(root, sizeof root, "%s", temp_dir());
    snprintf(path, sizeof path, "%s/proc", root);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    snprintf(text, sizeof text, "MemTotal: %llu kB\nMemAvailable: %llu kB\n", kb, kb);
    assert_non_null(f = fopen(path, "w"));
    assert_true(fputs(text, f) >= 0);
    fclose(f);
    return root;
}

static void remove_machine(const char *root)
{
    char path[400];

    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    unlink(path);
    snprintf(path, sizeof path, "%s/proc", root);
    rmdir(path);
}

static uint64_t resident_bytes(void)
{
    unsigned long long all, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    assert_non_null(f);
    assert_int_equal(fscanf(f, "%llu %llu", &all, &resident), 2);
    fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void a_model_that_the_machine_has_no_memory_for_is_not_loaded(void **state)
{
    const char *paths[1] = { repo(MODEL) }, *root;
    struct pool_opt o = pool_options(paths, 1);
    struct membudget b;
    struct pool *p = NULL;
    struct err e = { 0 };

    (void)state;
    o.engine.kv_tokens = 1024;
    b = plan_memory(paths[0], &o.engine);
    root = make_machine((b.host_kv + b.host_scratch) / 1024 - 1);
    o.memory_limit = POOL_MEMORY_AUTO;
    o.sys_root = root;
    assert_int_equal(pool_open(&p, &o, &e), OK);
    assert_true(wait_loaded(p));
    assert_int_equal(pool_state(p, 0, &e), POOL_FAILED);
    assert_int_equal(e.code, E_MEMORY);
    assert_non_null(strstr(e.msg, "the whole memory is"));
    pool_close(p);
    remove_machine(root);
}

/* Memory that is only promised would be missing when the cache fills. */
static void a_large_kv_cache_is_there_when_the_model_is_ready(void **state)
{
    const char *paths[1] = { repo(MODEL) }, *root;
    struct pool_opt o = pool_options(paths, 1);
    struct membudget b;
    struct pool *p = NULL;
    struct err e = { 0 };
    uint64_t before = resident_bytes();

    (void)state;
    if (HARD) return; /* the cache holds one context */
    o.engine.kv_tokens = 65536;
    b = plan_memory(paths[0], &o.engine);
    assert_true(b.host_kv > 64 << 20);
    root = make_machine(b.host_kv / 1024 * 2 + (1 << 20));
    o.memory_limit = POOL_MEMORY_AUTO;
    o.sys_root = root;
    assert_int_equal(pool_open(&p, &o, &e), OK);
    assert_true(wait_loaded(p));
    if (pool_state(p, 0, &e) != POOL_READY) fail_msg("%s", e.msg);
    assert_true(resident_bytes() - before > b.host_kv / 10 * 9);
    pool_close(p);
    remove_machine(root);
}

/* Opens models without sizes on a machine with so much memory; their effective options. Returns the
 * memory that was taken for it. */
static int64_t open_defaults(struct engine_info *out, int n, unsigned long long mib, uint64_t limit)
{
    const char *paths[3] = { repo(MODEL), repo(MODEL), repo(MODEL) },
               *aliases[3] = { "a", "b", "c" }, *root = make_machine(mib << 10);
    struct pool_opt o = pool_options(paths, n);
    struct pool *p = NULL;
    struct err e = { 0 };
    int64_t taken = -(int64_t)resident_bytes();

    o.aliases = aliases;
    o.engine = (struct engine_opt){ .kv_type = DT_NONE, .n_threads = 1, .max_seqs = 64 };
    o.memory_limit = limit;
    o.sys_root = root;
    assert_int_equal(pool_open(&p, &o, &e), OK);
    assert_true(wait_loaded(p));
    for (int i = 0; i < n; i++) {
        struct pool_instance *m = pool_acquire(p, i);
        if (!m) fail_msg("%s", pool_state(p, i, &e) == POOL_FAILED ? e.msg : "not ready");
        engine_info(m->engine, &out[i]);
        assert_non_null(strstr(out[i].sizes, n == 3 ? "33 % of the memory" : "context as trained"));
        pool_release(m);
    }
    taken += (int64_t)resident_bytes();
    pool_close(p);
    remove_machine(root);
    return taken;
}

static void default_sizes_follow_the_machine(void **state)
{
    struct engine_info scarce, ample;
    int64_t taken;

    (void)state;
    if (HARD) return; /* the cache holds one context */
    open_defaults(&scarce, 1, 128, POOL_MEMORY_AUTO);
    taken = open_defaults(&ample, 1, 4096, POOL_MEMORY_AUTO);
    assert_int_equal(scarce.opt.n_ctx, 512); /* as trained */
    assert_int_equal(ample.opt.n_ctx, 512);
    assert_int_equal(ample.opt.kv_tokens, 64 * 512); /* more is of no use */
    assert_in_range(scarce.opt.kv_tokens, 512, 64 * 512 - 1);
    assert_true(scarce.kv_bytes <= 64 << 20);
    assert_in_range(ample.kv_bytes, 180 << 20, 220 << 20);
    assert_true(taken < (int64_t)ample.kv_bytes / 2); /* the cache was not filled */
}

static void a_default_kv_cache_fits_into_the_memory_limit(void **state)
{
    struct engine_info i;

    (void)state;
    if (HARD) return;
    open_defaults(&i, 1, 4096, 100 << 20);
    assert_true(i.weight_bytes + i.kv_bytes + i.scratch_bytes <= 100 << 20);
    assert_true(i.weight_bytes + i.kv_bytes + i.scratch_bytes > 99 << 20);
}

static void models_of_one_pool_get_equal_shares_of_the_memory(void **state)
{
    struct engine_info i[3];

    (void)state;
    if (HARD) return;
    open_defaults(i, 3, 256, POOL_MEMORY_AUTO);
    for (int k = 0; k < 3; k++) {
        assert_in_range(i[k].kv_bytes, 15 << 20, 40 << 20);
        assert_in_range(i[k].kv_bytes, i[0].kv_bytes * 7 / 10, i[0].kv_bytes * 13 / 10);
    }
}

static void an_eight_bit_kv_cache_takes_half_the_memory(void **state)
{
    const char *paths[1] = { repo(MODEL) };
    struct pool_opt o = pool_options(paths, 1);
    struct membudget b[2];
    struct engine_info info[2];
    struct err e = { 0 };

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct pool_instance *m;
        struct pool *p = NULL;
        o.engine.kv_type = dtype_by_name(str_c(i ? "fp8" : "f16"));
        b[i] = plan_memory(paths[0], &o.engine);
        assert_int_equal(pool_open(&p, &o, &e), OK);
        assert_true(wait_loaded(p));
        m = pool_acquire(p, 0);
        engine_info(m->engine, &info[i]);
        pool_release(m);
        pool_close(p);
    }
    assert_in_range(2 * b[1].kv, b[0].kv, b[0].kv * 101 / 100);
    assert_int_equal(info[1].n_blocks, info[0].n_blocks);
    assert_in_range(2 * info[1].kv_bytes, info[0].kv_bytes, info[0].kv_bytes * 101 / 100);
}

static void a_drained_pool_accepts_no_requests(void **state)
{
    const char *paths[1] = { repo(MODEL) };
    struct pool_opt o = pool_options(paths, 1);
    struct request *r = request_open();
    struct pool_instance *m;
    struct pool *p = NULL;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(pool_open(&p, &o, &e), OK);
    assert_true(wait_loaded(p));
    pool_drain(p);
    ids_push(&r->prompt, 1);
    m = pool_acquire(p, 0);
    assert_int_equal(engine_submit(m->engine, r, &e), E_SHUTDOWN);
    pool_stop(p); /* a reference stays valid */
    assert_int_equal(engine_submit(m->engine, r, &e), E_SHUTDOWN);
    pool_release(m);
    assert_true(pool_is_idle(p));
    request_unref(r);
    pool_abort(p);
    pool_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_is_named_by_its_file_or_alias),
        cmocka_unit_test(two_models_of_one_name_are_refused),
        cmocka_unit_test(a_model_can_be_found_when_it_is_loaded),
        cmocka_unit_test(a_failed_load_keeps_its_reason_and_other_models_work),
        cmocka_unit_test(a_deadline_that_a_load_cannot_meet_is_refused),
        cmocka_unit_test(a_model_that_exceeds_the_memory_limit_is_not_loaded),
        cmocka_unit_test(a_model_that_the_machine_has_no_memory_for_is_not_loaded),
        cmocka_unit_test(a_large_kv_cache_is_there_when_the_model_is_ready),
        cmocka_unit_test(default_sizes_follow_the_machine),
        cmocka_unit_test(a_default_kv_cache_fits_into_the_memory_limit),
        cmocka_unit_test(models_of_one_pool_get_equal_shares_of_the_memory),
        cmocka_unit_test(an_eight_bit_kv_cache_takes_half_the_memory),
        cmocka_unit_test(a_drained_pool_accepts_no_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
