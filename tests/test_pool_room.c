/* The budget of the pool: who makes room for whom, keep-alive, and what is left after many loads, also
 * under many threads. */
#include "pool_world.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>

/* ---- the budget ---- */

/* Which of them: see test_swapplan.c. */
static void one_unused_model_makes_room(void **state)
{
    struct pool *p = open_pool_of((struct pool_opt){ .max_loaded = 3, .residence_ms = 1 }, 3);
    int n_ready = 0;

    (void)state;
    wait_state(p, 0, POOL_READY);
    pool_release(load(p, 1));
    pool_release(load(p, 2));
    pool_release(load(p, 3));
    assert_int_equal(pool_state(p, 0, NULL), POOL_READY); /* pinned */
    for (int i = 1; i <= 2; i++) {
        bool ready = pool_state(p, i, NULL) == POOL_READY;
        n_ready += ready;
        assert_int_equal(counter_get(&pool_counts(p, i)->unloads[POOL_UNLOAD_ROOM]), !ready);
    }
    assert_int_equal(n_ready, 1);
    assert_int_equal(atomic_load(&pool_counts(p, 3)->switch_s.count), 1);
    assert_int_equal(atomic_load(&pool_counts(p, 1)->switch_s.count), 0);
    pool_close(p);
}

static void a_model_in_use_is_not_evicted_and_yields_when_others_have_waited(void **state)
{
    struct pool *p =
        open_pool_of((struct pool_opt){ .max_loaded = 2, .residence_ms = 1, .patience_ms = 50 }, 2);
    struct pool_instance *m, *again = NULL;
    struct waiter w, back;
    struct pool_view v;
    struct err e = { 0 };
    int cold;

    (void)state;
    wait_state(p, 0, POOL_READY);
    m = load(p, 1);
    ask(p, 2, &w);
    assert_false(w.now);
    do {
        usleep(1000);
        pool_view(p, 1, &v);
    } while (!v.yields);
    /* The call goes on; new ones for it wait. */
    assert_int_equal(v.state, POOL_READY);
    assert_int_equal(infer(m), FINISH_LENGTH);
    assert_int_equal(pool_find_cold(p, STR("a"), 0, &again, &cold, &e), E_LOADING);
    assert_int_equal(cold, 1);
    ask(p, 1, &back);
    assert_false(back.now);
    assert_int_equal(atomic_load(&w.done), 0);
    pool_release(m);
    wait_done(&w);
    assert_int_equal(w.w.rc, OK);
    assert_string_equal(w.w.model->id, "b");
    pool_release(w.w.model);
    wait_done(&back); /* and a comes back, when b is not used any more */
    assert_int_equal(back.w.rc, OK);
    assert_int_equal(back.w.model->generation, 2);
    pool_release(back.w.model);
    pool_close(p);
}

static void a_model_that_can_never_fit_fails_and_evicts_nobody(void **state)
{
    struct pool *p, *probe = open_pool_of((struct pool_opt){ 0 }, 0);
    uint64_t bytes;
    struct waiter w;

    (void)state;
    wait_state(probe, 0, POOL_READY);
    bytes = pool_bytes(probe);
    pool_close(probe);
    p = open_pool_of((struct pool_opt){ .memory_limit = bytes * 3 / 2, .residence_ms = 1 }, 1);
    wait_state(p, 0, POOL_READY);
    ask(p, 1, &w);
    wait_done(&w);
    assert_int_equal(w.w.rc, E_MEMORY);
    assert_non_null(strstr(w.w.err.msg, "memory-limit"));
    assert_int_equal(pool_state(p, 0, NULL), POOL_READY);
    assert_int_equal(pool_bytes(p), bytes);
    pool_close(p);
}

static void bytes_of_models_stay_within_the_limit(void **state)
{
    struct pool *p, *probe = open_pool_of((struct pool_opt){ 0 }, 0);
    uint64_t bytes;

    (void)state;
    wait_state(probe, 0, POOL_READY);
    bytes = pool_bytes(probe);
    pool_close(probe);
    p = open_pool_of((struct pool_opt){ .memory_limit = bytes * 5 / 2, .residence_ms = 1 }, 3);
    wait_state(p, 0, POOL_READY);
    for (int i = 0; i < 12; i++) {
        struct pool_instance *m = load(p, 1 + i % 3);
        assert_in_range(pool_bytes(p), bytes, bytes * 2);
        pool_release(m);
    }
    assert_int_equal(pool_state(p, 0, NULL), POOL_READY);
    pool_close(p);
}

static void an_unused_model_goes_after_its_keep_alive(void **state)
{
    struct pool *p = open_pool_of((struct pool_opt){ 0 }, 2);
    struct pool_instance *m = load(p, 1);
    struct pool_view v;

    (void)state;
    pool_touch(m, 0);
    usleep(20000); /* in use: it stays */
    assert_int_equal(pool_state(p, 1, NULL), POOL_READY);
    pool_touch(m, POOL_KEEP_SAME);
    pool_release(m);
    wait_state(p, 1, POOL_UNLOADED);
    assert_int_equal(counter_get(&pool_counts(p, 1)->unloads[POOL_UNLOAD_IDLE]), 1);
    m = load(p, 2);
    pool_touch(m, 3600000);
    pool_release(m);
    pool_view(p, 2, &v);
    assert_in_range(v.expires_ms, 1, 3600000);
    m = pool_acquire(p, 0);
    pool_touch(m, 0); /* a pinned one stays */
    pool_release(m);
    usleep(20000);
    assert_int_equal(pool_state(p, 0, NULL), POOL_READY);
    pool_close(p);
}

/* ---- a device ---- */

/* A device of so many bytes, of which a model needs `need`. A model without room is planned with a part
 * of its layers on the host; whole: it is refused; blind: not even the plan can be made. */
static struct {
    uint64_t total, used, need;
    bool whole, blind;
} device;

static int lay_on_device(struct pool_instance *m, int number, struct err *e)
{
    uint64_t need = strcmp(m->id, "c") == 0 ? device.total + 1 : device.need;
    bool fits = device.used + need <= device.total;

    if (number == 1 && !fits && device.blind)
        return err_set(e, E_DEVICE_MEMORY, "test: no context");
    if (number == 1) {
        snprintf(m->need.device, sizeof m->need.device, "test:0");
        m->need.kv_given = true;
        m->need.weights += need;
        m->need.device_lack = fits ? 0 : device.used + need - device.total;
        if (!fits && device.whole)
            err_set(&m->refused, E_DEVICE_MEMORY, "test: %d bytes are free",
                    (int)(device.total - device.used));
    }
    if (number == 2) { /* the engine's plan knows nothing of the device */
        snprintf(m->need.device, sizeof m->need.device, "test:0");
        m->need.weights += need;
        device.used += need;
    }
    if (number == 4 && m->engine) device.used -= membudget_device(&m->need);
    return OK;
}

/* "first", which is pinned, and a are loaded. */
static struct pool *open_device_pool(uint64_t total, uint64_t need)
{
    struct pool *p;

    device.total = total, device.used = 0, device.need = need;
    host_hook = lay_on_device;
    p = open_pool_of((struct pool_opt){ .residence_ms = 1 }, 3);
    wait_state(p, 0, POOL_READY);
    pool_release(load(p, 1));
    return p;
}

static void close_device_pool(struct pool *p)
{
    pool_close(p);
    host_hook = NULL;
    assert_int_equal(device.used, 0);
    assert_int_equal(atomic_load(&host.plans), atomic_load(&host.closes));
    device.whole = device.blind = false;
}

/* Also where sizes were given: its layers lie elsewhere now. */
static void a_full_device_makes_others_go_and_the_plan_is_made_again(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct pool_instance *m;
        struct pool *p;

        device.whole = i == 1;
        p = open_device_pool(250, 100);
        device.blind = i == 2;
        m = load(p, 2);
        assert_int_equal(m->need.device_lack, 0);
        assert_int_equal(m->refused.code, OK);
        assert_int_equal(device.used, 200);
        assert_int_equal(pool_state(p, 0, NULL), POOL_READY);
        assert_int_equal(pool_state(p, 1, NULL), POOL_UNLOADED);
        assert_int_equal(counter_get(&pool_counts(p, 1)->unloads[POOL_UNLOAD_ROOM]), 1);
        assert_int_equal(atomic_load(&host.replans), i == 2 ? 0 : 1);
        pool_release(m);
        close_device_pool(p);
    }
}

static void a_device_that_nobody_can_free_divides_the_model_or_refuses_it(void **state)
{
    (void)state;
    for (int whole = 0; whole < 2; whole++) {
        struct waiter w;
        struct pool *p;

        device.whole = whole;
        p = open_device_pool(100, 50);
        ask(p, 3, &w); /* larger than the device */
        wait_done(&w);
        assert_int_equal(w.w.rc, whole ? E_DEVICE_MEMORY : OK);
        if (whole) assert_non_null(strstr(w.w.err.msg, "test: 0 bytes are free"));
        assert_int_equal(pool_state(p, 1, NULL), POOL_READY);
        assert_int_equal(counter_get(&pool_counts(p, 1)->unloads[POOL_UNLOAD_ROOM]), 0);
        assert_int_equal(atomic_load(&host.replans), 0);
        pool_release(w.w.model);
        close_device_pool(p);
    }
}

/* first (pinned) and a take 100 bytes of the device each; 1,000 are there. */
static struct pool *open_limited_pool(const struct membudget_limit *limits, int n)
{
    struct pool *p;

    device.total = 1000, device.used = 0, device.need = 100;
    host_hook = lay_on_device;
    p = open_pool_of((struct pool_opt){ .residence_ms = 1,
                                        .memory_limit = (uint64_t)1 << 40,
                                        .device_limits = limits,
                                        .n_device_limits = n },
                     3);
    wait_state(p, 0, POOL_READY);
    pool_release(load(p, 1));
    return p;
}

/* The host has room, and the device, too: only its limit is reached. */
static void the_limit_of_a_device_makes_others_go(void **state)
{
    static const struct membudget_limit by_name[] = { { "other", 1 }, { "test:0", 250 } },
                                        by_kind[] = { { "test", 250 }, { "test:1", 1 } };

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct pool *p = open_limited_pool(i ? by_kind : by_name, 2);
        struct pool_instance *m = load(p, 2);

        assert_int_equal(device.used, 200);
        assert_int_equal(pool_state(p, 0, NULL), POOL_READY);
        assert_int_equal(pool_state(p, 1, NULL), POOL_UNLOADED);
        assert_int_equal(counter_get(&pool_counts(p, 1)->unloads[POOL_UNLOAD_ROOM]), 1);
        pool_release(m);
        close_device_pool(p);
    }
}

static void a_model_over_the_limit_of_its_device_is_refused_with_the_numbers(void **state)
{
    static const struct membudget_limit limit[] = { { "test:0", 200 } };
    struct pool *p = open_limited_pool(limit, 1);
    struct waiter w;

    (void)state;
    ask(p, 3, &w); /* 1,001 bytes: more than the limit alone */
    wait_done(&w);
    assert_int_equal(w.w.rc, E_MEMORY);
    if (!strstr(w.w.err.msg, "memory-limit is test:0=")) fail_msg("%s", w.w.err.msg);
    assert_int_equal(pool_state(p, 1, NULL), POOL_READY);
    assert_int_equal(counter_get(&pool_counts(p, 1)->unloads[POOL_UNLOAD_ROOM]), 0);
    close_device_pool(p);
}

/* Three models of 100 bytes on the device do not count against a limit that has room for what they take
 * on the host. */
static void memory_of_a_device_does_not_count_as_host_memory(void **state)
{
    struct pool *p, *probe = open_pool_of((struct pool_opt){ 0 }, 0);
    uint64_t bytes;

    (void)state;
    wait_state(probe, 0, POOL_READY);
    bytes = pool_bytes(probe);
    pool_close(probe);
    device.total = bytes * 64, device.used = 0, device.need = bytes * 8;
    host_hook = lay_on_device;
    p = open_pool_of((struct pool_opt){ .residence_ms = 1, .memory_limit = bytes * 7 / 2 }, 3);
    wait_state(p, 0, POOL_READY);
    pool_release(load(p, 1));
    pool_release(load(p, 2));
    assert_int_equal(pool_state(p, 1, NULL), POOL_READY);
    assert_int_equal(device.used, 3 * device.need);
    close_device_pool(p);
}

/* ---- a machine ---- */

#define MIB (UINT64_C(1) << 20)

static struct {
    uint64_t kv[4], mapped[4]; /* added to the plans of first, a, b, c */
    uint64_t own;              /* what a process has touched */
    uint64_t room;             /* that the last plan was given */
} machine;

static int lay_on_machine(struct pool_instance *m, int number, struct err *e)
{
    int i = strcmp(m->id, "first") == 0 ? 0 : m->id[0] - 'a' + 1;

    (void)e;
    if (number > 2) return OK;
    m->need.host_kv += machine.kv[i], m->need.kv += machine.kv[i];
    m->need.mapped += machine.mapped[i], m->need.weights += machine.mapped[i];
    machine.room = m->room.host_bytes;
    return OK;
}

static void put_meminfo(const char *root, uint64_t total, uint64_t free)
{
    char path[400];
    FILE *f;

    snprintf(path, sizeof path, "%s/proc", root);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    assert_non_null(f = fopen(path, "w"));
    assert_true(fprintf(f, "MemTotal: %llu kB\nMemAvailable: %llu kB\n",
                        (unsigned long long)total / 1024, (unsigned long long)free / 1024) > 0);
    fclose(f);
}

static struct pool *open_machine_pool(const char *root)
{
    struct pool_opt o = { .residence_ms = 1, .memory_limit = POOL_MEMORY_AUTO, .sys_root = root };
    struct pool *p;

    host_hook = lay_on_machine;
    p = open_pool_of(o, 3);
    wait_state(p, 0, POOL_READY);
    pool_release(load(p, 1));
    return p;
}

static void close_machine_pool(struct pool *p)
{
    pool_close(p);
    host_hook = NULL;
    host_own_bytes = NULL;
    memset(&machine, 0, sizeof machine);
}

/* The memory that a would give back is more than what the whole machine has too little of, or less
 * than what other programs have taken: unloading it would not help. */
static void a_model_that_the_machine_is_too_small_for_evicts_nobody(void **state)
{
    char root[300];

    (void)state;
    snprintf(root, sizeof root, "%s", temp_dir());
    for (int i = 0; i < 2; i++) {
        struct waiter w;
        struct pool *p;

        put_meminfo(root, 1024 * MIB, 1000 * MIB);
        machine.kv[1] = 400 * MIB;
        if (i == 0) machine.mapped[2] = 1100 * MIB;
        else machine.kv[2] = 900 * MIB;
        p = open_machine_pool(root);
        if (i == 1) put_meminfo(root, 1024 * MIB, 500 * MIB); /* other programs */
        ask(p, 2, &w);
        wait_done(&w);
        assert_int_equal(w.w.rc, E_MEMORY);
        assert_non_null(
            strstr(w.w.err.msg, i == 0 ? "the whole memory is 1024.0 MiB" : "MemAvailable is"));
        assert_int_equal(pool_state(p, 1, NULL), POOL_READY);
        assert_int_equal(counter_get(&pool_counts(p, 1)->unloads[POOL_UNLOAD_ROOM]), 0);
        close_machine_pool(p);
    }
}

static uint64_t own_bytes(const struct pool_instance *m)
{
    return strcmp(m->id, "a") == 0 ? machine.own : UINT64_MAX;
}

/* Memory that a's process has touched is not available any more. */
static void memory_of_a_process_counts_once(void **state)
{
    uint64_t room[3];
    char root[300];

    (void)state;
    snprintf(root, sizeof root, "%s", temp_dir());
    for (int i = 0; i < 3; i++) {
        struct pool_instance *m;
        struct pool *p;
        uint64_t host_bytes;

        put_meminfo(root, 8192 * MIB, 4096 * MIB);
        machine.kv[1] = 1000 * MIB;
        host_own_bytes = own_bytes;
        p = open_machine_pool(root);
        m = pool_acquire(p, 1);
        host_bytes = membudget_host(&m->need);
        pool_release(m);
        machine.own = host_bytes * (uint64_t)i / 2;
        put_meminfo(root, 8192 * MIB, 4096 * MIB - machine.own);
        pool_release(load(p, 2));
        room[i] = machine.room;
        close_machine_pool(p);
    }
    assert_in_range(room[1], room[0] - 4096, room[0] + 4096);
    assert_in_range(room[2], room[0] - 4096, room[0] + 4096);
}

/* ---- loads that fail after others have gone ---- */

static void a_load_that_fails_after_an_eviction_leaves_nothing_behind(void **state)
{
    (void)state;
    for (int fails = 1; fails <= 3; fails++) {
        struct pool *p =
            open_pool_of((struct pool_opt){ .max_loaded = 2, .residence_ms = 1, .warm = true }, 2);
        uint64_t bytes;
        struct waiter w;

        wait_state(p, 0, POOL_READY);
        bytes = pool_bytes(p);
        pool_release(load(p, 1));
        atomic_store(&host.fail_id, "b");
        atomic_store(&host.fail_at, fails);
        ask(p, 2, &w);
        wait_done(&w);
        assert_int_equal(w.w.rc, E_FORMAT);
        assert_int_equal(pool_state(p, 2, NULL), POOL_FAILED);
        assert_int_equal(pool_state(p, 0, NULL), POOL_READY);
        /* A file that cannot be planned costs nobody his memory. */
        assert_int_equal(pool_state(p, 1, NULL), fails == 1 ? POOL_READY : POOL_UNLOADED);
        if (fails > 1) assert_int_equal(pool_bytes(p), bytes);
        pool_release(load(p, 1)); /* it comes back when it is asked for */
        assert_int_equal(pool_bytes(p), 2 * bytes);
        pool_close(p);
        assert_int_equal(atomic_load(&host.plans), atomic_load(&host.closes));
    }
}

/* ---- many cycles, many threads ---- */

static uint64_t resident_bytes(void)
{
    unsigned long long all, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    assert_non_null(f);
    assert_int_equal(fscanf(f, "%llu %llu", &all, &resident), 2);
    fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static int count_maps(void)
{
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512];
    int n = 0;

    assert_non_null(f);
    while (fgets(line, sizeof line, f)) n += strstr(line, ".gguf") != NULL;
    fclose(f);
    return n;
}

/* TERN_CYCLES: how many; sanitizers make a cycle slow. */
static int cycles(void)
{
    const char *given = getenv("TERN_CYCLES");

    if (given) return atoi(given) > 21 ? atoi(given) : 21;
    return THIN > 1 ? 25 : 200;
}

static void two_hundred_cycles_leave_nothing_behind(void **state)
{
    struct pool *p = open_pool_of((struct pool_opt){ .warm = true }, 1);
    uint64_t bytes, resident = 0;
    int files = 0, maps = 0, n = cycles();

    (void)state;
    wait_state(p, 0, POOL_READY);
    bytes = pool_bytes(p);
    for (int i = 0; i < n; i++) {
        struct pool_instance *m = load(p, 1);
        assert_int_equal(m->generation, i + 1);
        assert_int_equal(infer(m), FINISH_LENGTH);
        pool_release(m);
        unload(p, 1);
        assert_int_equal(pool_bytes(p), bytes);
        if (i == 20) files = count_fds(), maps = count_maps(), resident = resident_bytes();
    }
    assert_int_equal(count_fds(), files);
    assert_int_equal(count_maps(), maps);
    /* sanitizers keep freed memory */
    assert_true(THIN > 1 || resident_bytes() <= resident + resident / 50 + (1 << 20));
    assert_int_equal(counter_get(&pool_counts(p, 1)->loads), n);
    assert_int_equal(counter_get(&pool_stats(p, 1)->finished[FINISH_LENGTH]), n);
    pool_close(p);
}

static struct pool *busy_pool;
static atomic_int n_answers;

/* Uses all models in turn, as fast as it gets them. */
static void *client_main(void *arg)
{
    for (int i = 0; i < 12; i++) {
        int at = (int)((intptr_t)arg + i) % 3 + 1;
        struct waiter w;
        ask(busy_pool, at, &w);
        for (int k = 0; k < LONG_MS && !w.now && !atomic_load(&w.done); k++) usleep(1000);
        if (w.w.rc != OK || !w.w.model) continue;
        pool_touch(w.w.model, POOL_KEEP_SAME);
        if (infer(w.w.model) == FINISH_LENGTH) atomic_fetch_add(&n_answers, 1);
        pool_touch(w.w.model, POOL_KEEP_SAME);
        pool_release(w.w.model);
    }
    return NULL;
}

static atomic_bool quit;

/* Looks at everything and unloads at random. */
static void *operator_main(void *arg)
{
    (void)arg;
    for (unsigned i = 0; !atomic_load(&quit); i++) {
        struct pool_view v;
        for (int k = 0; k < pool_n(busy_pool); k++) pool_view(busy_pool, k, &v);
        int at = 1 + (int)(i / 8) % 3; /* not during its load: a slow one would never end */
        if (i % 8 == 0 && pool_state(busy_pool, at, NULL) == POOL_READY)
            pool_unload(busy_pool, at, false, NULL);
        pool_release(pool_acquire(busy_pool, 1 + (int)i % 3));
        usleep(3000);
    }
    return NULL;
}

/* Registry, loads, evictions, unloads and looks at once: every call that waits gets its model and is
 * answered, unless an operator unloads it during the load. */
static void models_come_and_go_under_many_threads(void **state)
{
    pthread_t client[6], operator;

    (void)state;
    busy_pool =
        open_pool_of((struct pool_opt){ .max_loaded = 3, .residence_ms = 1, .patience_ms = 20 }, 3);
    atomic_store(&n_answers, 0);
    atomic_store(&quit, false);
    wait_state(busy_pool, 0, POOL_READY);
    pthread_create(&operator, NULL, operator_main, NULL);
    for (intptr_t i = 0; i < 6; i++) pthread_create(&client[i], NULL, client_main, (void *)i);
    for (int i = 0; i < 6; i++) pthread_join(client[i], NULL);
    atomic_store(&quit, true);
    pthread_join(operator, NULL);
    assert_true(atomic_load(&n_answers) > 0);
    for (int i = 1; i <= 3; i++) unload(busy_pool, i);
    for (int i = 1; i <= 3; i++) assert_int_equal(pool_state(busy_pool, i, NULL), POOL_UNLOADED);
    assert_true(pool_bytes(busy_pool) > 0);
    pool_close(busy_pool);
    assert_int_equal(atomic_load(&host.plans), atomic_load(&host.closes));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_unused_model_makes_room),
        cmocka_unit_test(a_model_in_use_is_not_evicted_and_yields_when_others_have_waited),
        cmocka_unit_test(a_model_that_can_never_fit_fails_and_evicts_nobody),
        cmocka_unit_test(bytes_of_models_stay_within_the_limit),
        cmocka_unit_test(a_full_device_makes_others_go_and_the_plan_is_made_again),
        cmocka_unit_test(a_device_that_nobody_can_free_divides_the_model_or_refuses_it),
        cmocka_unit_test(the_limit_of_a_device_makes_others_go),
        cmocka_unit_test(a_model_over_the_limit_of_its_device_is_refused_with_the_numbers),
        cmocka_unit_test(memory_of_a_device_does_not_count_as_host_memory),
        cmocka_unit_test(a_model_that_the_machine_is_too_small_for_evicts_nobody),
        cmocka_unit_test(memory_of_a_process_counts_once),
        cmocka_unit_test(a_load_that_fails_after_an_eviction_leaves_nothing_behind),
        cmocka_unit_test(an_unused_model_goes_after_its_keep_alive),
        cmocka_unit_test(two_hundred_cycles_leave_nothing_behind),
        cmocka_unit_test(models_come_and_go_under_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
