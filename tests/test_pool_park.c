/* Parked KV blocks of a pool: they come back with their model after unloading, eviction and sleep, and
 * from a file to another pool; they are counted, and give way to models. */
#include "pool_world.h"

#include "base/file.h"
#include "engine/info.h"

#include <dirent.h>
#include <sys/stat.h>

enum { MIB = 1 << 20, PROMPT = 70 };

/* The ids of a greedy completion of the same prompt; returns how many prompt tokens were cached. */
static int complete(struct pool_instance *m, int32_t *ids, int n)
{
    struct request *r = request_open();
    struct err e = { 0 };
    enum finish f = FINISH_NONE;
    struct event ev;
    int got = 0, cached;

    for (int i = 0; i < PROMPT; i++) ids_push(&r->prompt, 5 + 7 * i % 900);
    r->max_tokens = n;
    r->ignore_eos = true;
    r->sample = m->sample;
    r->sample.temp = 0;
    if (engine_submit(m->engine, r, &e) != OK) fail_msg("%s", e.msg);
    while (f == FINISH_NONE) {
        while (f == FINISH_NONE && outbox_pop(&r->out, &ev)) {
            f = (enum finish)ev.finish;
            if (got < n && ev.id >= 0) ids[got++] = ev.id;
        }
        if (f == FINISH_NONE) usleep(200);
    }
    cached = (int)counter_get(&engine_stats(m->engine)->cached_tokens);
    request_unref(r);
    return cached;
}

static int restored_of(struct pool_instance *m)
{
    struct engine_info i;

    pool_info(m, &i);
    return i.n_restored;
}

static struct pool_park_opt in_memory(uint64_t bytes)
{
    return (struct pool_park_opt){ .where = POOL_PARK_MEMORY, .max_bytes = bytes };
}

static void put_to_sleep(struct pool *p, int i)
{
    struct waiter w = { .w = { .done = on_done } };

    w.now = pool_unload(p, i, true, &w.w) == POOL_NOW;
    wait_done(&w);
    assert_int_equal(pool_state(p, i, NULL), POOL_SLEEPING);
}

static void blocks_come_back_with_their_model(void **state)
{
    struct pool *p = open_pool_of((struct pool_opt){ .park = in_memory(64 * MIB) }, 1);
    int32_t first[8], again[8];
    struct pool_instance *m = load(p, 1);
    struct pool_view v;
    int before, cached = complete(m, first, 8);

    (void)state;
    assert_int_equal(cached, 0);
    assert_int_equal(restored_of(m), 0);
    assert_int_equal(pool_parked_bytes(p), 0);
    for (int round = 0; round < 4; round++) {
        pool_release(m);
        if (round % 2) put_to_sleep(p, 1);
        else unload(p, 1);
        assert_true(pool_parked_bytes(p) > 0);
        pool_view(p, 1, &v);
        assert_true(v.parked_blocks >= PROMPT / 16);
        before = cached;
        m = load(p, 1);
        assert_true(restored_of(m) >= PROMPT / 16);
        assert_int_equal(pool_parked_bytes(p), 0); /* the engine has them */
        cached = complete(m, again, 8);
        assert_true(cached - before >= PROMPT / 16 * 16 - 16);
        assert_memory_equal(first, again, sizeof first);
    }
    pool_release(m);
    pool_close(p);
}

static void an_evicted_model_is_parked_too(void **state)
{
    struct pool *p = open_pool_of(
        (struct pool_opt){ .park = in_memory(64 * MIB), .max_loaded = 2, .residence_ms = 1 }, 2);
    int32_t ids[4];
    struct pool_instance *m;
    struct pool_view v;

    (void)state;
    wait_state(p, 0, POOL_READY);
    m = load(p, 1);
    complete(m, ids, 4);
    pool_release(m);
    pool_release(load(p, 2)); /* for it the other one goes */
    assert_int_equal(counter_get(&pool_counts(p, 1)->unloads[POOL_UNLOAD_ROOM]), 1);
    pool_view(p, 1, &v);
    assert_true(v.parked_blocks > 0);
    m = load(p, 2); /* the same file under another name: it has taken them */
    assert_int_equal(restored_of(m), v.parked_blocks);
    pool_release(m);
    pool_close(p);
}

static void parked_blocks_count_and_give_way_to_models(void **state)
{
    struct pool_opt o = { .park = in_memory(64 * MIB), .residence_ms = 1 };
    struct pool *p;
    struct pool_instance *m;
    uint64_t one, two, parked;
    int32_t ids[4];

    (void)state;
    o.engine = engine_options;
    o.engine.kv_tokens = 256; /* a size that does not depend on the limit */
    p = open_pool_of(o, 2);
    wait_state(p, 0, POOL_READY);
    one = pool_bytes(p);
    m = load(p, 1);
    two = pool_bytes(p);
    complete(m, ids, 4);
    pool_release(m);
    unload(p, 1);
    parked = pool_parked_bytes(p);
    assert_true(parked > 0);
    pool_close(p);

    o.memory_limit = two + parked - 1; /* not both a second model and the blocks */
    p = open_pool_of(o, 2);
    wait_state(p, 0, POOL_READY);
    m = load(p, 1);
    complete(m, ids, 4);
    pool_release(m);
    unload(p, 1);
    assert_int_equal(pool_bytes(p), one);
    assert_int_equal(pool_parked_bytes(p), parked);
    pool_release(load(p, 2)); /* the blocks are dropped, no model is unloaded */
    assert_int_equal(pool_parked_bytes(p), 0);
    assert_int_equal(counter_get(&pool_counts(p, 0)->unloads[POOL_UNLOAD_ROOM]), 0);
    unload(p, 2);
    m = load(p, 1);
    assert_int_equal(restored_of(m), 0);
    pool_release(m);
    pool_close(p);

    o.memory_limit = 0;
    o.park.max_bytes = parked / 2; /* fewer blocks */
    p = open_pool_of(o, 2);
    m = load(p, 1);
    complete(m, ids, 4);
    pool_release(m);
    unload(p, 1);
    assert_true(pool_parked_bytes(p) > 0 && pool_parked_bytes(p) <= parked / 2);
    pool_close(p);
}

/* The first file in the folder; NULL: it is empty. */
static const char *only_file(const char *dir)
{
    static char path[1000];
    DIR *d = opendir(dir);
    struct dirent *x;

    assert_non_null(d);
    path[0] = 0;
    while ((x = readdir(d)))
        if (x->d_name[0] != '.') snprintf(path, sizeof path, "%s/%s", dir, x->d_name);
    closedir(d);
    return path[0] ? path : NULL;
}

static void damage(const char *path)
{
    FILE *f = fopen(path, "r+");

    assert_non_null(f);
    fputs("damaged!", f);
    fclose(f);
}

static void blocks_in_a_file_outlive_the_pool(void **state)
{
    static char dir[600];
    struct pool_opt o = { .park = { .where = POOL_PARK_FILE, .max_bytes = 64 * MIB, .dir = dir } };
    struct pool_instance *m;
    struct pool *p;
    int32_t first[8], again[8];
    struct stat st;

    (void)state;
    snprintf(dir, sizeof dir, "%s/parked", temp_dir());
    for (int round = 0; round < 4; round++) {
        p = open_pool_of(o, 1);
        m = load(p, 1);
        assert_int_equal(restored_of(m) > 0, round == 1 || round == 3);
        complete(m, round ? again : first, 8);
        if (round) assert_memory_equal(first, again, sizeof first);
        pool_release(m);
        pool_close(p); /* at the end of a server, without unloading */
        assert_int_equal(stat(dir, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0700);
        assert_non_null(only_file(dir));
        if (round == 1) damage(only_file(dir)); /* is ignored, and replaced later */
    }
}

static void a_folder_that_cannot_be_made_is_an_error(void **state)
{
    static const char *const bad[] = { "", "/proc/no/such/folder", NULL };
    const char *path = repo(MODEL);
    struct pool *p = NULL;
    struct err e = { 0 };

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct pool_opt o = { .paths = &path, .n = 1, .engine = engine_options };
        o.park = (struct pool_park_opt){ POOL_PARK_FILE, MIB, bad[i] ? bad[i] : path, false, 0 };
        assert_int_not_equal(pool_open(&p, &o, &e), OK);
        assert_non_null(strstr(e.msg, "park-dir"));
        assert_null(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_come_back_with_their_model),
        cmocka_unit_test(an_evicted_model_is_parked_too),
        cmocka_unit_test(parked_blocks_count_and_give_way_to_models),
        cmocka_unit_test(blocks_in_a_file_outlive_the_pool),
        cmocka_unit_test(a_folder_that_cannot_be_made_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
