/* Tiers of models: the rules, the prediction of the next model, and what the page cache holds of files. */
#include "pool_world.h"

#include "base/memavail.h"
#include "pool/modelbytes.h"
#include "pool/tiers.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#define SEC UINT64_C(1000000000)

static void the_tier_follows_from_a_few_facts(void **state)
{
    static const struct {
        struct tier_facts f;
        const char *name;
    } table[] = {
        { { false, -1, 0, -1 }, "disk" },    { { false, 0.5, 0, -1 }, "disk" },
        { { false, 0.9, 0, -1 }, "cached" }, { { true, 0.5, 0, 0 }, "mapped" },
        { { true, 0.5, 1, 0 }, "warm" },     { { true, 0.5, 1, 70000 }, "resident" },
        { { true, 1, 0, 60000 }, "warm" },   { { true, 1, 0, 60001 }, "resident" },
        { { true, 0.5, 0.9, 0 }, "warm" },   { { true, 0.5, 0.8, 0 }, "mapped" },
        { { true, -1, 0, 0 }, "warm" },      { { true, 0, 0, 100000 }, "mapped" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        assert_string_equal(tier_name(tier_of(&table[i].f)), table[i].name);
}

static struct tier_model absent(void) { return (struct tier_model){ .absent = true }; }

static void who_waits_then_hints_then_habits_then_uses(void **state)
{
    struct tier_model m[6];
    uint64_t now = 1000 * SEC;

    (void)state;
    for (int i = 0; i < 6; i++) m[i] = absent();
    assert_int_equal(tier_predict(m, 6, now), -1); /* nothing is known */
    m[5].uses = 1;
    assert_int_equal(tier_predict(m, 6, now), -1); /* once is no sign */
    m[5].uses = 2, m[4].uses = 3;
    assert_int_equal(tier_predict(m, 6, now), 4);
    m[3].after = 1;
    assert_int_equal(tier_predict(m, 6, now), 4);
    m[3].after = 2;
    assert_int_equal(tier_predict(m, 6, now), 3);
    m[2].hint_ns = now - 5 * SEC, m[1].hint_ns = now - 4 * SEC;
    assert_int_equal(tier_predict(m, 6, now), 1);            /* the later hint */
    assert_int_equal(tier_predict(m, 6, now + 56 * SEC), 3); /* old ones are forgotten */
    m[0].since_ns = now - SEC, m[5].since_ns = now - 2 * SEC;
    assert_int_equal(tier_predict(m, 6, now), 5);
    m[5].absent = false; /* it is being loaded */
    assert_int_equal(tier_predict(m, 6, now), 0);
    m[0].cached = 0.95; /* nothing is to be read */
    assert_int_equal(tier_predict(m, 6, now), 1);
    m[1].cached = -1; /* not known: it may be worth it */
    assert_int_equal(tier_predict(m, 6, now), 1);
}

static void uses_are_forgotten(void **state)
{
    double after = tier_decay(8, 300 * SEC);

    (void)state;
    assert_true(after > 3.99 && after < 4.01);
    assert_true(tier_decay(8, 0) > 7.99 && tier_decay(8, 3600 * SEC) < 0.01);
}

/* ---- files ---- */

static bool add_name(void *arg, const char *file)
{
    char *names = arg;

    strcat(names, strrchr(file, '/'));
    return true;
}

static bool stop_at_once(void *arg, const char *file)
{
    (void)file;
    ++*(int *)arg;
    return false;
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void all_files_of_a_model_are_found(void **state)
{
    char dir[700], path[800], names[300] = "";
    int n = 0;

    (void)state;
    snprintf(dir, sizeof dir, "%s/files", temp_dir());
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/m-00001-of-00003.gguf", dir);
    model_each_file(path, add_name, names); /* they need not be there */
    assert_string_equal(names,
                        "/m-00001-of-00003.gguf/m-00002-of-00003.gguf/m-00003-of-00003.gguf");
    names[0] = 0;
    snprintf(path, sizeof path, "%s/one.gguf", dir);
    model_each_file(path, add_name, names);
    assert_string_equal(names, "/one.gguf");
    names[0] = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    write_text(path, "weights");
    snprintf(path, sizeof path, "%s/config.json", dir);
    write_text(path, "{}");
    model_each_file(dir, add_name, names);
    assert_string_equal(names, "/model.safetensors");
    snprintf(path, sizeof path, "%s/m-00001-of-00003.gguf", dir);
    model_each_file(path, stop_at_once, &n);
    assert_int_equal(n, 1);
    assert_true(tier_look("/no/such/file") < 0);
    assert_true(tier_look("/dev/zero") < 0);
}

/* A copy of the model that is not in the page cache; false: this file system keeps it there. */
static bool copy_cold(char *path, size_t n)
{
    static int count;
    char command[2000];
    int fd;

    snprintf(path, n, "%s/cold%d.gguf", temp_dir(), count++);
    snprintf(command, sizeof command, "cp %s %s", repo(MODEL), path);
    assert_int_equal(system(command), 0);
    assert_true((fd = open(path, O_RDONLY)) >= 0);
    assert_int_equal(fsync(fd), 0);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    return tier_look(path) < 0.5;
}

static bool always(void *arg, uint64_t bytes)
{
    (void)arg, (void)bytes;
    return true;
}

static bool never(void *arg, uint64_t bytes)
{
    (void)arg, (void)bytes;
    return false;
}

static void wait_cached(const char *path)
{
    for (int k = 0; k < LONG_MS && tier_look(path) < 0.99; k++) usleep(1000);
    assert_true(tier_look(path) >= 0.99);
}

static void a_file_is_read_into_the_page_cache(void **state)
{
    char path[700];

    (void)state;
    if (!copy_cold(path, sizeof path)) skip();
    assert_int_equal(tier_read_ahead(path, never, NULL), 0);
    assert_true(tier_look(path) < 0.5);
    assert_true(tier_read_ahead(path, always, NULL) > 1 << 20);
    wait_cached(path);
}

/* ---- in a pool ---- */

static struct pool *open_with_file(const char *path, const char *root, bool read_ahead, int *index)
{
    struct pool_opt o = { .tiers = true, .read_ahead = read_ahead, .sys_root = root };
    struct pool *p = open_pool_of(o, 0);
    struct pool_model m = { .id = "cold", .path = path, .keep_ms = -1 };
    struct err e = { 0 };

    assert_int_equal(pool_add(p, &m, index, &e), OK);
    return p;
}

static void a_hint_reads_ahead_and_the_tier_shows_it(void **state)
{
    char path[700];
    struct pool_view v;
    struct pool *p;
    int i;

    (void)state;
    if (!copy_cold(path, sizeof path)) skip();
    p = open_with_file(path, NULL, true, &i);
    pool_hint(p, i);
    for (int k = 0; k < LONG_MS; k++) {
        pool_view(p, i, &v);
        if (v.tier == TIER_CACHED && v.cached > 0.99) break; /* read to its end */
        usleep(1000);
    }
    assert_string_equal(tier_name(v.tier), "cached");
    assert_int_equal(v.state, POOL_UNLOADED); /* nothing is loaded */
    assert_true(v.ahead_bytes > 1 << 20 && v.cached >= 0.9);
    pool_release(load(p, i));
    pool_view(p, i, &v);
    assert_string_equal(tier_name(v.tier), "warm");
    pool_close(p);
}

/* A machine whose memory is all in use, by the page cache among others. */
static const char *full_machine(void)
{
    static char root[700];
    char path[800];

    snprintf(root, sizeof root, "%s/full", temp_dir());
    assert_int_equal(mkdir(root, 0700), 0);
    snprintf(path, sizeof path, "%s/proc", root);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    write_text(path, "MemTotal: 16000000 kB\nMemFree: 900000 kB\nMemAvailable: 12000000 kB\n");
    return root;
}

static void memory_that_others_use_is_not_taken(void **state)
{
    const char *root = full_machine();
    char path[700];
    struct pool_view v;
    struct pool *p;
    int i;

    (void)state;
    assert_true(memavail_unused(root) == 900000 * UINT64_C(1024));
    if (!copy_cold(path, sizeof path)) skip();
    for (int ahead = 0; ahead < 2; ahead++) { /* 0: there is room, but it is switched off */
        p = open_with_file(path, ahead ? root : NULL, ahead, &i);
        pool_hint(p, i);
        wait_state(p, 0, POOL_READY);
        for (int k = 0; k < LONG_MS; k++) { /* until the thread has looked */
            pool_view(p, i, &v);
            if (v.cached >= 0) break;
            usleep(1000);
        }
        pool_hint(p, i);
        pool_close(p); /* waits for the thread */
        assert_true(v.ahead_bytes == 0);
        assert_true(tier_look(path) < 0.5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tier_follows_from_a_few_facts),
        cmocka_unit_test(who_waits_then_hints_then_habits_then_uses),
        cmocka_unit_test(uses_are_forgotten),
        cmocka_unit_test(all_files_of_a_model_are_found),
        cmocka_unit_test(a_file_is_read_into_the_page_cache),
        cmocka_unit_test(a_hint_reads_ahead_and_the_tier_shows_it),
        cmocka_unit_test(memory_that_others_use_is_not_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
