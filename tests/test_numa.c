/* Memory nodes: which threads and rows go where, on machines that are described, not there. */
#include "support.h"

#include "base/mem.h"
#include "base/numa.h"
#include "base/par.h"
#include "kernel/backend.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void read_topology(struct numa *m, const char *mode, const char *synthetic, int n_cpus)
{
    struct err e = { 0 };
    cpu_set_t mine;

    CPU_ZERO(&mine);
    for (int i = 0; i < n_cpus; i++) CPU_SET((unsigned)i, &mine);
    if (numa_read(m, mode, synthetic, &mine, &e) != OK) fail_msg("%s", e.msg);
}

static const char *refusal(const char *mode, const char *synthetic)
{
    static struct err e;
    struct numa m;
    cpu_set_t mine;

    CPU_ZERO(&mine);
    CPU_SET(0, &mine);
    e = (struct err){ 0 };
    assert_int_equal(numa_read(&m, mode, synthetic, &mine, &e), E_INVALID);
    return e.msg;
}

static void one_node_is_left_alone(void **state)
{
    struct numa m;
    (void)state;
    read_topology(&m, NULL, "numa:1 core:4 pu:2", 8);
    assert_int_equal(m.n, 0);
    read_topology(&m, "spread", "numa:1 core:4 pu:2", 8);
    assert_int_equal(m.n, 0);
    read_topology(&m, "off", "numa:2 core:4 pu:2", 16);
    assert_int_equal(m.n, 0);
    assert_int_equal(numa_cpu_of(&m, 0, 4), -1);
    read_topology(&m, "auto", "numa:20 core:1 pu:1", 20); /* more than are supported */
    assert_int_equal(m.n, 0);
}

static void threads_are_divided_among_the_nodes(void **state)
{
    static const int cpus[] = { 0, 2, 4, 6, 8, 10, 12, 14 };
    struct numa m;
    (void)state;
    read_topology(&m, "auto", "numa:2 core:4 pu:2", 16);
    assert_int_equal(m.n, 2);
    assert_int_equal(m.first[2], 8); /* one processor of each core */
    for (int t = 0; t < 8; t++) {
        assert_int_equal(numa_cpu_of(&m, t, 8), cpus[t]);
        assert_int_equal(numa_node_of(&m, t, 8), t / 4);
    }
    assert_int_equal(numa_node_of(&m, 0, 2), 0); /* fewer threads than cores: still both */
    assert_int_equal(numa_node_of(&m, 1, 2), 1);
    assert_int_equal(numa_cpu_of(&m, 1, 2), 8);
    for (int t = 0; t < 32; t++) assert_int_equal(numa_node_of(&m, t, 32), t / 16);
}

static void only_allowed_processors_are_used(void **state)
{
    struct numa m;
    (void)state;
    read_topology(&m, "auto", "numa:4 core:2 pu:1", 5); /* 0 and 1, 2 and 3, 4; none of node 3 */
    assert_int_equal(m.n, 3);
    assert_int_equal(m.first[3], 5);
    assert_int_equal(numa_node_of(&m, 4, 5), 2);
    read_topology(&m, "auto", "numa:2 core:2 pu:1", 2); /* one node is left: nothing to spread */
    assert_int_equal(m.n, 0);
}

static void a_model_can_stay_on_one_node(void **state)
{
    struct numa m;
    (void)state;
    read_topology(&m, "1", "numa:2 core:4 pu:2", 16);
    assert_int_equal(m.n, 1);
    assert_int_equal(m.node[0], 1);
    assert_int_equal(m.first[1], 4);
    for (int t = 0; t < 4; t++) assert_int_equal(numa_cpu_of(&m, t, 4), 8 + 2 * t);
    assert_non_null(strstr(refusal("2", "numa:2 core:1 pu:1"), "this machine has 0, 1"));
    assert_non_null(strstr(refusal("1", "numa:2 core:1 pu:1"), "numa 1: there is no such node"));
    assert_non_null(strstr(refusal("all", "numa:2 core:1 pu:1"), "numa \"all\": it must be auto"));
    assert_non_null(strstr(refusal("1x", "numa:2 core:1 pu:1"), "it must be auto"));
    assert_non_null(strstr(refusal("spread", "nonsense"), "cannot be read"));
}

/* ---- weights ---- */

enum { MAX_MOVES = 16 };
static struct {
    int node;
    uintptr_t begin, end;
} moves[MAX_MOVES];
static int n_moves;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool record_move(int node, const void *p, size_t bytes)
{
    pthread_mutex_lock(&lock);
    if (n_moves < MAX_MOVES) {
        moves[n_moves].node = node;
        moves[n_moves].begin = (uintptr_t)p;
        moves[n_moves++].end = (uintptr_t)p + bytes;
    }
    pthread_mutex_unlock(&lock);
    return true;
}

/* y = W x of a matrix of F32 ones in the columns of one row each, on a backend with these nodes. */
static void multiply(const char *numa, int rows, int cols, float *out)
{
    struct backend *be = NULL;
    struct err e = { 0 };
    float *w = mem_aligned((size_t)rows * (size_t)cols * sizeof *w),
          *x = mem_array((size_t)cols, sizeof *x);
    struct weight weight = { .type = DT_F32, .rows = rows, .cols = cols, .n = 1, .data = w };
    struct tensor in = { .data = x, .rows = 1, .cols = cols, .stride = (size_t)cols };
    struct linear job = { .w = &weight,
                          .out = { .data = out, .rows = 1, .cols = rows, .stride = (size_t)rows } };

    for (int r = 0; r < rows; r++)
        for (int i = 0; i < cols; i++) w[(size_t)r * (size_t)cols + (size_t)i] = (float)(r % 7);
    for (int i = 0; i < cols; i++) x[i] = 1;
    if (cpu_open(&be, &(struct backend_opt){ .n_threads = 2, .numa = numa }, &e) != OK)
        fail_msg("%s", e.msg);
    assert_int_equal(strstr(be->detail, "2 NUMA nodes") != NULL, numa == NULL);
    assert_int_equal(be->weight_put(be, &weight, &e), OK);
    be->linear(be, &in, &job, 1);
    assert_int_equal(be->sync(be, &e), OK);
    be->close(be);
    mem_free_aligned(w, (size_t)rows * (size_t)cols * sizeof *w);
    mem_free(x);
}

/* HWLOC_SYNTHETIC describes two nodes with a processor each; the system's moves are recorded. */
static void the_rows_of_a_weight_go_to_the_nodes_of_their_threads(void **state)
{
    enum { ROWS = 1000, COLS = 1024 };
    static float y[2][ROWS];
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    cpu_set_t mine;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
    if (!CPU_ISSET(0, &mine) || !CPU_ISSET(1, &mine)) skip();
    setenv("HWLOC_SYNTHETIC", "numa:2 core:1 pu:1", 1);
    numa_set_move(record_move);
    multiply(NULL, ROWS, COLS, y[0]);
    assert_int_equal(n_moves, 2);
    int a = moves[0].node == 1; /* the move of node 0 */
    assert_int_equal(moves[a].node, 0);
    assert_int_equal(moves[1 - a].node, 1);
    assert_int_equal(moves[a].end, moves[1 - a].begin); /* no page is left out or moved twice */
    assert_true(moves[1 - a].end - moves[a].begin >= ROWS * COLS * sizeof(float) - 2 * page);
    n_moves = 0;
    multiply("off", ROWS, COLS, y[1]);
    assert_int_equal(n_moves, 0);
    assert_memory_equal(y[0], y[1], sizeof y[0]);
    numa_set_move(NULL); /* the system refuses a node that is not there, and all goes on */
    multiply(NULL, ROWS, COLS, y[1]);
    assert_memory_equal(y[0], y[1], sizeof y[0]);
    unsetenv("HWLOC_SYNTHETIC");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_node_is_left_alone),
        cmocka_unit_test(threads_are_divided_among_the_nodes),
        cmocka_unit_test(only_allowed_processors_are_used),
        cmocka_unit_test(a_model_can_stay_on_one_node),
        cmocka_unit_test(the_rows_of_a_weight_go_to_the_nodes_of_their_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
