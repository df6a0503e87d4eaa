/* Parked KV blocks (kv/park, engine_park): restored blocks give the tokens that computed ones give,
 * from memory and from files; bytes are bounded; files that are damaged are ignored.
 *
 * Uses a tiny model of tests/golden/hf with the reference kernels. */
#include "engine_world.h"

#include "base/file.h"
#include "base/log.h"
#include "kv/park.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

static char dir[300];

static int make_dir(void **state)
{
    char command[700];

    (void)state;
    snprintf(dir, sizeof dir, "%s/park", temp_dir());
    snprintf(command, sizeof command, "rm -rf '%s' && mkdir '%s'", dir, dir);
    return system(command);
}

static int drop_dir(void **state)
{
    char command[700];

    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

static struct park *open_park(uint64_t max_bytes, bool files)
{
    struct park *p = NULL;
    struct err e = { 0 };

    assert_int_equal(
        park_open(&p, &(struct park_opt){ .max_bytes = max_bytes, .dir = files ? dir : NULL }, &e),
        OK);
    return p;
}

/* Parks and closes the engine; the number of blocks. */
static int park_engine(struct engine *g, struct park *p)
{
    struct err e = { 0 };
    int n = 0;

    engine_stop(g);
    if (engine_park(g, p, &n, &e) != OK) fail_msg("%s", e.msg);
    engine_close(g);
    return n;
}

static struct engine *open_with(struct park *p)
{
    return open_manual((struct engine_opt){ .n_ctx = 256, .park = p });
}

/* The only file of the folder; NULL: there is none. */
static const char *park_file(void)
{
    static char path[700];
    DIR *d = opendir(dir);
    struct dirent *x;
    int n = 0;

    assert_non_null(d);
    while ((x = readdir(d)))
        if (x->d_name[0] != '.') snprintf(path, sizeof path, "%s/%s", dir, x->d_name), n++;
    closedir(d);
    assert_true(n <= 1);
    return n ? path : NULL;
}

/* ---- engines ---- */

static void check_same_tokens(bool files)
{
    struct park *p = open_park(64 * MIB, files);
    struct engine *g = open_with(p);
    struct client a = make_client(3, 60, 20), b = make_client(4, 70, 20), again, truth;
    struct err e = { 0 };
    int n;

    run_client(g, &a);
    run_client(g, &b);
    assert_int_equal(b.r->n_cached, 0);
    n = park_engine(g, p);
    assert_true(n >= 8);
    if (files) { /* over a restart */
        struct stat st;
        assert_int_equal(stat(park_file(), &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        park_close(p);
        p = open_park(64 * MIB, true);
    }
    for (int round = 0; round < 2; round++) { /* what was restored can be parked again */
        g = open_with(p);
        assert_int_equal(prefix_n(g->prefix), n);
        if (engine_check(g, &e) != OK) fail_msg("%s", e.msg);
        for (int seed = 3; seed <= 4; seed++) {
            again = make_client(seed, seed == 3 ? 60 : 70, 20);
            truth = run_alone(seed, seed == 3 ? 60 : 70, 20);
            run_client(g, &again);
            assert_int_equal(again.r->n_cached, seed == 3 ? 48 : 64);
            assert_same(&again, &truth);
            release_client(&again), release_client(&truth);
        }
        assert_int_equal(park_engine(g, p), n);
    }
    release_client(&a), release_client(&b);
    park_close(p);
}

static void restored_blocks_give_the_tokens_of_computed_ones(void **state)
{
    (void)state;
    check_same_tokens(false);
}

static void blocks_come_back_from_a_file_after_a_restart(void **state)
{
    (void)state;
    check_same_tokens(true);
}

static void an_engine_with_a_thread_restores_too(void **state)
{
    struct park *p = open_park(64 * MIB, false);
    struct engine *g = open_with(p);
    struct client a = make_client(3, 60, 20), again = make_client(3, 60, 20);
    (void)state;

    run_client(g, &a);
    assert_true(park_engine(g, p) > 0);
    g = open_engine((struct engine_opt){ .n_ctx = 256, .park = p });
    submit_client(g, &again);
    for (int i = 0; i < 60000 && again.finish == FINISH_NONE; i++) {
        read_events(&again);
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    assert_int_equal(again.r->n_cached, 48);
    assert_same(&a, &again);
    assert_true(park_engine(g, p) > 0);
    release_client(&a), release_client(&again);
    park_close(p);
}

/* Other numbers would be read as this engine's. */
static void blocks_of_another_kv_type_or_model_are_not_taken(void **state)
{
    struct park *p = open_park(64 * MIB, false);
    struct engine *g = open_with(p);
    struct client a = make_client(3, 60, 4);
    struct engine_opt o = { .n_ctx = 256, .manual = true, .n_threads = 1, .park = p };
    struct err e = { 0 };
    (void)state;

    run_client(g, &a);
    assert_true(park_engine(g, p) > 0);
    o.kv_type = DT_F32; /* the reference kernels' type, but others compute */
    assert_int_equal(engine_open(&g, repo(model), &o, &e), OK);
    assert_int_equal(prefix_n(g->prefix), 0);
    engine_close(g);
    o.kv_type = DT_F16, o.reference = true;
    assert_int_equal(engine_open(&g, repo(model), &o, &e), OK);
    assert_int_equal(prefix_n(g->prefix), 0);
    engine_close(g);
    o.kv_type = DT_NONE;
    assert_int_equal(engine_open(&g, repo("tests/golden/hf/llama-yarn-bias"), &o, &e), OK);
    assert_int_equal(prefix_n(g->prefix), 0);
    engine_close(g);
    g = open_with(p); /* they are still there for their own */
    assert_true(prefix_n(g->prefix) > 0);
    engine_close(g);
    release_client(&a);
    park_close(p);
}

static void the_blocks_used_last_are_kept(void **state)
{
    struct park *p = open_park(64 * MIB, false), *small;
    struct engine *g = open_with(p);
    struct client a[4], again;
    uint64_t block = g->runner->lim.block_bytes;
    int n;
    (void)state;

    for (int i = 0; i < 4; i++) {
        a[i] = make_client(10 + i, 60, 4);
        run_client(g, &a[i]);
    }
    if (HARD) { /* its cache has no room for all four */
        engine_close(g);
        goto out;
    }
    small = open_park((block + 100) * 4 + 100, false);
    engine_stop(g);
    n = park_engine(g, small);
    assert_int_equal(n, 4);
    g = open_with(small);
    again = make_client(13, 60, 4);
    run_client(g, &again);
    assert_int_equal(again.r->n_cached, 48);
    assert_same(&again, &a[3]);
    release_client(&again);
    again = make_client(10, 60, 4);
    run_client(g, &again);
    assert_int_equal(again.r->n_cached, 0);
    release_client(&again);
    engine_close(g);
    park_close(small);
out:
    for (int i = 0; i < 4; i++) release_client(&a[i]);
    park_close(p);
}

static void salted_blocks_are_parked_in_memory_only(void **state)
{
    (void)state;
    for (int files = 0; files < 2; files++) {
        struct park *p = open_park(64 * MIB, files);
        struct engine *g = open_with(p);
        struct client a = make_client(3, 60, 4), other = make_client(3, 60, 4);

        a.r->salt = 7;
        run_client(g, &a);
        assert_int_equal(park_engine(g, p) > 0, !files);
        g = open_with(p);
        run_client(g, &other);
        assert_int_equal(other.r->n_cached, 0); /* nobody else finds them */
        engine_close(g);
        release_client(&a), release_client(&other);
        park_close(p);
    }
}

static void an_engine_that_runs_is_not_parked(void **state)
{
    struct park *p = open_park(MIB, false);
    struct engine *g = open_with(p);
    struct err e = { 0 };
    int n;
    (void)state;

    assert_int_equal(engine_park(g, p, &n, &e), E_INVALID);
    engine_close(g);
    park_close(p);
}

/* ---- files ---- */

static void write_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

/* Damage anywhere: the answer is right, and computed where blocks are missing. */
static void a_damaged_file_is_ignored(void **state)
{
    struct park *p = open_park(64 * MIB, true);
    struct engine *g = open_with(p);
    struct client a = make_client(3, 60, 8);
    struct buf whole = { 0 };
    struct rng r;
    struct err e = { 0 };
    char path[700];
    int n_less = 0;
    (void)state;

    run_client(g, &a);
    assert_true(park_engine(g, p) > 0);
    snprintf(path, sizeof path, "%s", park_file());
    assert_int_equal(file_read(&whole, path, 64 << 20, &e), OK);
    rng_seed(&r, 1);
    log_set_level(LOG_ERROR);
    for (int i = 0; i < 60; i++) {
        size_t at = i < 20 ? (size_t)(rng_u64(&r) % 64) : (size_t)(rng_u64(&r) % whole.n),
               n = whole.n;
        char *copy = mem_dup(whole.p, whole.n);
        struct client again = make_client(3, 60, 8);

        if (i % 4 == 3) n = at; /* cut off */
        else copy[at] = (char)(copy[at] ^ (1 << rng_u64(&r) % 8));
        write_file(path, copy, n);
        g = open_with(p);
        n_less += prefix_n(g->prefix) < 3;
        run_client(g, &again);
        assert_same(&a, &again);
        engine_close(g);
        release_client(&again);
        mem_free(copy);
    }
    log_set_level(LOG_WARN);
    assert_true(n_less > 20);
    write_file(path, whole.p, whole.n); /* and the whole file is good */
    g = open_with(p);
    assert_true(prefix_n(g->prefix) >= 3);
    engine_close(g);
    buf_release(&whole);
    release_client(&a);
    park_close(p);
}

/* A process that may open no file is given one. */
static void blocks_are_parked_behind_a_descriptor(void **state)
{
    struct park_opt o = { .max_bytes = 64 * MIB, .has_fd = true };
    struct client a = make_client(3, 60, 8);
    struct park *p = NULL;
    struct engine *g;
    struct err e = { 0 };
    struct stat st;
    char byte;
    (void)state;

    o.fd = memfd_create("parked", MFD_CLOEXEC);
    assert_true(o.fd >= 0);
    assert_int_equal(park_open(&p, &o, &e), OK);
    assert_true(park_has_files(p));
    g = open_with(p); /* the file is empty */
    run_client(g, &a);
    assert_true(park_engine(g, p) > 0);
    park_close(p);
    for (int round = 0; round < 4; round++) { /* 2: a block is damaged, 3: the header is */
        struct client again = make_client(3, 60, 8);

        assert_int_equal(fstat(o.fd, &st), 0);
        if (round >= 2) {
            off_t at = round == 2 ? st.st_size / 3 : 20;
            assert_int_equal(pread(o.fd, &byte, 1, at), 1);
            byte ^= 1;
            assert_int_equal(pwrite(o.fd, &byte, 1, at), 1);
            log_set_level(LOG_ERROR);
        }
        assert_int_equal(park_open(&p, &o, &e), OK);
        g = open_with(p);
        assert_int_equal(prefix_n(g->prefix) >= 3, round < 2);
        run_client(g, &again);
        assert_same(&a, &again);
        if (round == 0) assert_true(park_engine(g, p) > 0); /* in place of the others */
        else engine_close(g);
        release_client(&again);
        park_close(p);
    }
    log_set_level(LOG_WARN);
    assert_int_equal(park_open(&p, &o, &e), OK);
    park_set_end(p, 1); /* too late: nothing is touched */
    assert_true(park_is_late(p));
    g = open_with(p);
    engine_stop(g);
    assert_int_equal(fstat(o.fd, &st), 0);
    assert_int_equal(park_engine(g, p), 0);
    assert_true(st.st_size > 0);
    park_close(p);
    release_client(&a);
    close(o.fd);
}

/* ---- the store alone ---- */

static struct park_key key_of(int i)
{
    struct park_key k = { .digest = { 0 }, .block_bytes = 1000 };

    k.digest[0] = (unsigned char)i;
    return k;
}

static void put_set(struct park *p, int key, int n)
{
    struct park_key k = key_of(key);
    struct park_set *s = NULL;
    struct err e = { 0 };
    char data[1000];

    assert_int_equal(park_begin(&s, p, &k, n, &e), OK);
    for (int i = 0; i < n; i++) {
        struct park_block b = { .parent = i - 1, .salt = 0 };
        memset(data, key + i, sizeof data);
        b.ids[0] = i;
        assert_int_equal(park_add(s, &b, data, &e), OK);
    }
    assert_int_equal(park_end(s, &e), OK);
}

static int taken(struct park *p, int key)
{
    struct park_key k = key_of(key);
    struct park_set *s = NULL;
    struct park_block b;
    int n;

    if (park_take(&s, p, &k, NULL) != OK) return -1;
    n = park_set_n(s);
    for (int i = 0; i < n; i++) {
        const char *data = park_set_data(s, i);
        park_set_at(s, i, &b);
        assert_true(b.parent == i - 1 && b.ids[0] == i);
        assert_true(data && data[0] == (char)(key + i) && data[999] == (char)(key + i));
    }
    park_set_close(s);
    return n;
}

/* 3 sets of 10 blocks fit. */
static void sets_that_were_used_longest_ago_are_dropped(void **state)
{
    (void)state;
    for (int files = 0; files < 2; files++) {
        struct park *p = open_park(34000, files);
        struct timespec pause = { .tv_nsec = 20000000 }; /* file times have this order */

        for (int i = 0; i < 3; i++) put_set(p, i, 10), nanosleep(&pause, NULL);
        if (files) assert_int_equal(taken(p, 0), 10); /* used: now 1 is the oldest */
        nanosleep(&pause, NULL);
        put_set(p, 3, 10);
        assert_int_equal(taken(p, files ? 1 : 0), -1);
        assert_int_equal(taken(p, 2), 10);
        assert_int_equal(taken(p, 3), 10);
        put_set(p, 3, 4); /* replaces */
        assert_int_equal(taken(p, 3), 4);
        assert_int_equal(taken(p, 3), files ? 4 : -1);
        assert_int_equal(taken(p, 9), -1);
        park_close(p);
    }
}

static void wrong_blocks_are_refused(void **state)
{
    struct park *p = open_park(5000, false);
    struct park_key k = key_of(1);
    struct park_set *s = NULL;
    struct park_block b = { .parent = 0 };
    struct err e = { 0 };
    char data[1000] = { 0 };
    (void)state;

    assert_int_equal(park_max_blocks(p, &k), 4);
    assert_int_equal(park_begin(&s, p, &k, 100, &e), OK);
    assert_int_equal(park_add(s, &b, data, &e), E_INVALID); /* a parent that is not there */
    b.parent = -1;
    for (int i = 0; i < 4; i++) assert_int_equal(park_add(s, &b, data, &e), OK);
    assert_int_equal(park_add(s, &b, data, &e), E_INVALID); /* more than fit */
    park_set_close(s);                                      /* never found */
    assert_int_equal(park_take(&s, p, &k, &e), E_NOTFOUND);
    park_close(p);
}

#define T(f) cmocka_unit_test_setup_teardown(f, make_dir, drop_dir)

static void sets_in_memory_are_counted_and_dropped(void **state)
{
    struct park *p = open_park(100000, false);
    struct park_key k = key_of(9);
    uint64_t all;

    (void)state;
    assert_int_equal(park_bytes(p), 0);
    for (int i = 0; i < 4; i++) put_set(p, i, 10);
    all = park_bytes(p);
    assert_true(all > 40000);
    assert_true(park_shrink(p, 1) == all / 4); /* one set: that used longest ago */
    assert_int_equal(taken(p, 0), -1);
    assert_true(park_bytes(p) == all / 4 * 3);
    assert_true(park_shrink(p, all) == all / 4 * 3);
    assert_true(park_bytes(p) == 0 && park_shrink(p, 1) == 0);
    park_set_room(p, 5000);
    assert_in_range(park_max_blocks(p, &k), 1, 5);
    park_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(restored_blocks_give_the_tokens_of_computed_ones),
        T(blocks_come_back_from_a_file_after_a_restart),
        T(an_engine_with_a_thread_restores_too),
        T(blocks_of_another_kv_type_or_model_are_not_taken),
        T(the_blocks_used_last_are_kept),
        T(salted_blocks_are_parked_in_memory_only),
        T(an_engine_that_runs_is_not_parked),
        T(a_damaged_file_is_ignored),
        T(blocks_are_parked_behind_a_descriptor),
        T(sets_in_memory_are_counted_and_dropped),
        T(sets_that_were_used_longest_ago_are_dropped),
        T(wrong_blocks_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
