/* How much memory there is (base/memavail, pool/membudget): the machine, control groups of both
 * versions, files that make no sense, and models that do not fit.
 *
 * Each test writes the files of a machine into a folder that stands for "/". */
#include "support.h"

#include "base/log.h"
#include "base/rng.h"
#include "base/memavail.h"
#include "pool/membudget.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

static char root[300];

static int open_root(void **state)
{
    char command[800];

    (void)state;
    snprintf(root, sizeof root, "%s/machine", temp_dir());
    snprintf(command, sizeof command, "rm -rf '%s' && mkdir '%s'", root, root);
    return system(command);
}

static int close_root(void **state)
{
    char command[800];

    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

static void put_bytes(const char *path, const void *p, size_t n)
{
    char full[700];
    FILE *f;

    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *at = full + strlen(root) + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        mkdir(full, 0700);
        *at = '/';
    }
    f = fopen(full, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
}

static void put(const char *path, const char *text) { put_bytes(path, text, strlen(text)); }

static struct memavail look(void)
{
    struct memavail m;

    memavail_read(&m, root);
    return m;
}

static void put_machine(void)
{
    put("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree:          1000000 kB\n"
                         "MemAvailable:    8388608 kB\nBuffers:           10000 kB\n");
}

static void nothing_is_known_without_files(void **state)
{
    struct memavail m = look();

    (void)state;
    assert_true(m.free == UINT64_MAX && m.total == UINT64_MAX);
}

static void the_machine_says_what_is_available(void **state)
{
    struct memavail m;

    (void)state;
    put_machine();
    m = look();
    assert_int_equal(m.free, 8 * GIB);
    assert_int_equal(m.total, 16 * GIB);
    assert_string_equal(m.limit_by, "MemAvailable");
}

/* The limit of a group above the process's own counts too. Page cache can be given up. */
static void the_least_of_all_groups_of_version_2_counts(void **state)
{
    struct memavail m;

    (void)state;
    put_machine();
    put("/proc/self/cgroup", "0::/a.slice/b.service\n");
    put("/sys/fs/cgroup/a.slice/b.service/memory.max", "max\n");
    put("/sys/fs/cgroup/a.slice/b.service/memory.current", "1048576\n");
    assert_int_equal(look().free, 8 * GIB);
    put("/sys/fs/cgroup/a.slice/memory.max", "1073741824\n");
    put("/sys/fs/cgroup/a.slice/memory.current", "805306368\n");
    m = look();
    assert_int_equal(m.free, 256 * MIB);
    assert_int_equal(m.total, GIB);
    assert_string_equal(m.limit_by, "the cgroup's memory.max");
    put("/sys/fs/cgroup/a.slice/memory.stat",
        "anon 5\nfile 536870912\nactive_file 134217728\ninactive_file 268435456\n");
    assert_int_equal(look().free, 640 * MIB);
    put("/sys/fs/cgroup/a.slice/memory.current", "2147483648\n"); /* above its limit */
    assert_int_equal(look().free, 0);
}

/* Inside a container the own group is the root of what can be seen. */
static void a_container_sees_the_limit_at_the_root(void **state)
{
    (void)state;
    put_machine();
    put("/proc/self/cgroup", "0::/../../not/visible\n");
    put("/sys/fs/cgroup/memory.max", "2147483648\n");
    put("/sys/fs/cgroup/memory.current", "0\n");
    assert_int_equal(look().free, 2 * GIB);
}

static void groups_of_version_1_are_read(void **state)
{
    struct memavail m;

    (void)state;
    put_machine();
    put("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:hugetlb,memory:/docker/1\n0::/\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n");
    put("/sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "536870912\n");
    put("/sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes", "268435456\n");
    put("/sys/fs/cgroup/memory/docker/1/memory.stat",
        "inactive_file 1\ntotal_inactive_file 134217728\ntotal_active_file 0\n");
    m = look();
    assert_int_equal(m.free, 384 * MIB);
    assert_int_equal(m.total, 512 * MIB);
}

static void files_that_make_no_sense_do_not_limit(void **state)
{
    static const char *const bad[] = {
        "",   "\n",  "MemTotal:\nMemAvailable:\n", "MemTotal: 10 kB\nMemAvailable: 20 kB\n",
        "-1", "abc", "99999999999999999999999",    "MemTotal: 99999999999999999 kB\nMemAvailable: 1"
    };
    struct rng r;
    unsigned char noise[600];

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put("/proc/meminfo", bad[i]);
        put("/proc/self/cgroup", bad[i]);
        put("/sys/fs/cgroup/memory.max", bad[i]);
        assert_true(look().free == UINT64_MAX);
    }
    rng_seed(&r, 7);
    for (int i = 0; i < 500; i++) {
        for (size_t k = 0; k < sizeof noise; k++)
            noise[k] = (unsigned char)"0:/ma\n.\0 9"[rng_u64(&r) % 11];
        put_bytes("/proc/self/cgroup", noise, sizeof noise);
        put_bytes("/sys/fs/cgroup/memory.max", noise, sizeof noise);
        look();
    }
}

/* ---- models ---- */

static void a_model_must_fit_into_what_is_free(void **state)
{
    const struct memavail m = { 2 * GIB, 8 * GIB, UINT64_MAX, 0, "MemAvailable" };
    struct membudget b = {
        .mapped = GIB, .host_kv = 1500 * MIB, .host_scratch = 100 * MIB, .kv_given = true
    };
    struct err e = { 0 };

    (void)state;
    assert_int_equal(membudget_check_machine(&b, &m, &e), OK); /* and 256 MiB stay free */
    assert_true(membudget_is_kv_large(&b, &m));
    b.host_kv = 1800 * MIB;
    assert_int_equal(membudget_check_machine(&b, &m, &e), E_MEMORY);
    assert_non_null(strstr(e.msg, "needs 1900.0 MiB"));
    assert_non_null(strstr(e.msg, "MemAvailable is 2048.0 MiB"));
    assert_non_null(strstr(e.msg, "kv-tokens"));
    b.kv_given = false; /* of default size: pages are taken when they are used */
    assert_false(membudget_is_kv_large(&b, &m));
    b.kv_given = true;
    b.host_kv = 100 * MIB;
    assert_false(membudget_is_kv_large(&b, &m));
}

static void promised_memory_is_not_free(void **state)
{
    struct memavail m = { 10 * GIB, 16 * GIB, UINT64_MAX, GIB, "MemAvailable" };
    const struct membudget a = {
        .weights = 3 * GIB, .kv = 4 * GIB, .mapped = 2 * GIB, .copied = GIB, .host_kv = 4 * GIB
    };
    struct membudget held = { 0 };
    struct sizes_room r;

    (void)state;
    membudget_add(&held, &a);
    membudget_hold(&m, &held, 0); /* 5 GiB promised, 1 GiB taken */
    assert_int_equal(m.free, 6 * GIB);
    r = membudget_room(&m, &held, 0);
    assert_int_equal(r.host_bytes, 4 * GIB); /* the weights in the file must stay in memory */
    assert_int_equal(r.limit_bytes, 0);
    r = membudget_room(&m, &held, 8 * GIB);
    assert_int_equal(r.limit_bytes, GIB);
    r = membudget_room(&m, &held, GIB);
    assert_int_equal(r.limit_bytes, 1); /* known, and used up */
    membudget_take(&held, &a);
    assert_int_equal(membudget_total(&held), 0);
    m.free = UINT64_MAX;
    membudget_hold(&m, &held, GIB);
    assert_int_equal(membudget_room(&m, &held, 0).host_bytes, 0); /* not known */
}

static void a_strict_kernel_limits_what_is_promised(void **state)
{
    struct memavail m;

    (void)state;
    put("/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n"
                         "CommitLimit: 4194304 kB\nCommitted_AS: 1048576 kB\n");
    put("/proc/sys/vm/overcommit_memory", "0\n");
    assert_int_equal(look().free, 8 * GIB);
    put("/proc/sys/vm/overcommit_memory", "2\n");
    m = look();
    assert_int_equal(m.free, 3 * GIB);
    assert_string_equal(m.limit_by, "CommitLimit");
}

static void anonymous_memory_of_the_process_is_read(void **state)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    (void)state;
    put("/proc/self/statm", "5000 3000 1000 10 0 700 0\n");
    assert_int_equal(look().own, 2000 * page);
    put("/proc/77/statm", "5000 1500 1000 10 0 700 0\n"); /* of another one */
    assert_int_equal(memavail_own(77, root), 500 * page);
    assert_int_equal(memavail_own(78, root), 0);
    assert_true(memavail_own(getpid(), "") > 0);
    put("/proc/self/statm", "5000 30");
    assert_int_equal(look().own, 0);
}

/* Pages of a file can be given up and read again, but all of them should fit. */
static void mapped_weights_must_fit_into_the_whole_memory(void **state)
{
    struct memavail m = { 2 * GIB, 8 * GIB, UINT64_MAX, 0, "MemAvailable" };
    struct membudget b = { .mapped = 6 * GIB, .host_kv = GIB };
    struct err e = { 0 };

    (void)state;
    log_set_level(LOG_ERROR);
    assert_int_equal(membudget_check_machine(&b, &m, &e), OK);
    log_set_level(LOG_WARN);
    b.mapped = 7 * GIB;
    assert_int_equal(membudget_check_machine(&b, &m, &e), E_MEMORY);
    assert_non_null(strstr(e.msg, "the whole memory is 8192.0 MiB"));
    b.mapped = 2 * GIB;
    m.address = 3 * GIB;
    assert_int_equal(membudget_check_machine(&b, &m, &e), E_MEMORY);
    assert_non_null(strstr(e.msg, "RLIMIT_AS"));
}

#define T(f) cmocka_unit_test_setup_teardown(f, open_root, close_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(nothing_is_known_without_files),
        T(the_machine_says_what_is_available),
        T(the_least_of_all_groups_of_version_2_counts),
        T(a_container_sees_the_limit_at_the_root),
        T(groups_of_version_1_are_read),
        T(files_that_make_no_sense_do_not_limit),
        T(a_model_must_fit_into_what_is_free),
        T(mapped_weights_must_fit_into_the_whole_memory),
        T(promised_memory_is_not_free),
        T(a_strict_kernel_limits_what_is_promised),
        T(anonymous_memory_of_the_process_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
