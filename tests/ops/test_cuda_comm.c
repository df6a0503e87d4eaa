/* GPUs of several processes: sums through the host and over CUDA IPC between two processes on one card, as
 * single operations, in captured graphs and in many steps; members that die or do not come; norms over
 * divided columns; NCCL with one member. Skipped without a GPU.
 *
 * The second process is this program again: `test_cuda_comm member SCENARIO`, with the shared memory of
 * the link as descriptor LINK_FD. */
#include "cuda_world.h"

#include "base/clock.h"
#include "comm/shmlink.h"
#include "model/devgroup.h"

#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { LINK_FD = 9, MAX = 6 << 20 }; /* MAX numbers: more than one launch over IPC takes */

static float number_of(int rank, size_t i)
{
    return (float)((int)(i * 7 + 13) % 101 - 50) / (float)(rank + 3);
}

/* One member of two. */
struct world {
    struct backend *be;
    struct comm_link *link;
    struct comm c;
    struct devgroup g;
    struct err failed;
    float *x; /* device, MAX + 8 numbers */
};

static int open_world(struct world *w, int fd, int rank, enum gang_way way, uint64_t timeout_ns,
                      struct err *e)
{
    struct devgroup_opt opt = {
        .way = way, .whole = true, .max = MAX, .timeout_ns = timeout_ns, .failed = &w->failed
    };
    int rc = shmlink_open_file(&w->link, fd, rank, 2, e);

    if (rc == OK && !w->be) rc = cuda_try(&w->be, e);
    if (rc == OK) rc = comm_open(&w->c, w->link, 60000000000ull, e);
    if (rc == OK) rc = devgroup_open(&w->g, &w->c, w->be, &opt, e);
    if (rc == OK)
        rc = w->be->alloc(w->be, (void **)&w->x, (MAX + 8) * sizeof(float), MEM_SCRATCH, e);
    return rc;
}

static void close_world(struct world *w)
{
    if (w->be && w->x) w->be->free(w->be, w->x, (MAX + 8) * sizeof(float), MEM_SCRATCH);
    devgroup_release(&w->g);
    comm_release(&w->c);
    comm_link_close(w->link);
    backend_close(w->be);
    *w = (struct world){ 0 };
}

/* ---- what both members do ---- */

/* One sum of n numbers that begin at an offset. Returns the number of wrong ones, or -1. */
static long sum_once(struct world *w, size_t n, size_t at, struct err *e)
{
    float *x = mem_array(n, sizeof *x);
    struct tensor t = tensor_f32(w->x + at, 1, (int)n);
    long wrong = 0;

    for (size_t i = 0; i < n; i++) x[i] = number_of(w->c.rank, i);
    w->be->put(w->be, t.data, x, n * sizeof *x);
    w->be->all_reduce(w->be, &t, COMM_F32);
    w->be->get(w->be, x, t.data, n * sizeof *x);
    if (w->be->sync(w->be, e) != OK) wrong = -1;
    for (size_t i = 0; i < n && wrong >= 0; i++) wrong += x[i] != number_of(0, i) + number_of(1, i);
    mem_free(x);
    return wrong;
}

static int do_sizes(struct world *w, struct err *e)
{
    static const size_t sizes[] = {
        1, 2, 3, 4, 5, 127, 128, 1000, 4096, 4097, 1 << 20, MAX - 8, MAX
    };
    long wrong;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t at = 0; at < 2; at++)
            if ((wrong = sum_once(w, sizes[i], at, e)) != 0)
                return wrong < 0 ? e->code
                                 : err_set(e, E_DEVICE, "%ld of %zu numbers at %zu are wrong",
                                           wrong, sizes[i], at);
    return w->failed.code;
}

/* Steps of many sums that are equal, so that they are captured and replayed. The members' numbers grow
 * from sum to sum: one that reads a contribution of another sum gets a wrong result. */
static int do_graphs(struct world *w, struct err *e)
{
    enum { COLS = 1024, SUMS = 24, STEPS = 12 };
    struct backend_stats before, after;
    float x[COLS];

    w->be->stats(w->be, &before);
    for (int s = 0; s < STEPS; s++) {
        struct tensor t = tensor_f32(w->x, 1, COLS);
        for (int i = 0; i < COLS; i++) x[i] = (float)(w->c.rank + 1 + s + i % 3);
        w->be->put(w->be, t.data, x, sizeof x);
        for (int k = 0; k < SUMS; k++) { /* doubles, and stays exact */
            w->be->all_reduce(w->be, &t, COMM_F32);
            w->be->scale(w->be, &t, 0.5f);
        }
        w->be->get(w->be, x, t.data, sizeof x);
        w->be->flush(w->be, true);
        if (w->be->sync(w->be, e) != OK) return e->code;
        for (int i = 0; i < COLS; i++) {
            double want =
                (double)(3 + 2 * s + 2 * (i % 3)) / 2; /* the mean, from the first sum on */
            if ((double)x[i] != want)
                return err_set(e, E_DEVICE, "step %d: number %d is %g, expected %g", s, i,
                               (double)x[i], want);
        }
    }
    w->be->stats(w->be, &after);
    if (after.n_replays == before.n_replays) return err_set(e, E_DEVICE, "no step was replayed");
    return w->failed.code;
}

/* A member that ends after its first sum, without a word. */
static int do_leave(struct world *w, struct err *e)
{
    if (sum_once(w, 1000, 0, e) != 0) return e->code ? e->code : E_DEVICE;
    _exit(0);
}

static const struct scenario {
    const char *name;
    enum gang_way way;
    int (*run)(struct world *w, struct err *e);
} scenarios[] = {
    { "sizes-host", WAY_HOST, do_sizes }, { "sizes-ipc", WAY_IPC, do_sizes },
    { "sizes-auto", WAY_AUTO, do_sizes }, { "graphs-host", WAY_HOST, do_graphs },
    { "graphs-ipc", WAY_IPC, do_graphs }, { "leave-ipc", WAY_IPC, do_leave },
    { "leave-host", WAY_HOST, do_leave },
};

static const struct scenario *find_scenario(const char *name)
{
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        if (strcmp(scenarios[i].name, name) == 0) return &scenarios[i];
    return NULL;
}

/* ---- the second member ---- */

static int run_member(const char *name)
{
    const struct scenario *s = find_scenario(name);
    struct world w = { 0 };
    struct err e = { 0 };
    int rc = s ? open_world(&w, LINK_FD, 1, s->way, 60000000000ull, &e) : E_INVALID;

    if (rc == OK) rc = s->run(&w, &e);
    if (rc != OK) fprintf(stderr, "member 1: %s: %s\n", name, e.code ? e.msg : w.failed.msg);
    close_world(&w);
    return rc == OK ? 0 : 1;
}

static pid_t start_member(const char *name, int fd)
{
    char *argv[] = { (char *)"/proc/self/exe", (char *)"member", (char *)name, NULL };
    posix_spawn_file_actions_t a;
    pid_t pid = 0;

    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_adddup2(&a, fd, LINK_FD);
    assert_int_equal(posix_spawn(&pid, argv[0], &a, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&a);
    return pid;
}

static void wait_member(pid_t pid)
{
    int status = 0;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- the first ---- */

/* The two members of a scenario; the caller waits for the second. */
static pid_t start(struct world *w, const struct scenario *s, uint64_t timeout_ns)
{
    struct err e = { 0 };
    pid_t pid;
    int fd;

    *w = (struct world){ .be = cuda_open() };
    assert_int_equal(shmlink_file(&fd, 2, &e), OK);
    pid = start_member(s->name, fd);
    if (open_world(w, fd, 0, s->way, timeout_ns, &e) != OK) {
        waitpid(pid, NULL, 0);
        fail_msg("%s: %s", s->name, e.msg);
    }
    return pid;
}

static void run(const char *name, enum group_way way)
{
    const struct scenario *s = find_scenario(name);
    struct world w;
    struct err e = { 0 };
    pid_t pid = start(&w, s, 60000000000ull);

    assert_int_equal(w.g.way, way);
    if (s->run(&w, &e) != OK) fail_msg("%s: %s", name, e.code ? e.msg : w.failed.msg);
    close_world(&w); /* both let go of shared memory at the same time */
    wait_member(pid);
}

static void sums_through_the_host_are_right(void **state)
{
    (void)state;
    run("sizes-host", GROUP_HOST);
    run("graphs-host", GROUP_HOST);
}

static void sums_over_ipc_are_right(void **state)
{
    (void)state;
    run("sizes-ipc", GROUP_IPC);
    run("graphs-ipc", GROUP_IPC);
}

static void processes_of_one_card_sum_through_the_host_by_default(void **state)
{
    (void)state;
    run("sizes-auto", GROUP_HOST);
}

/* The supervision of a gang aborts the link when a member dies. */
static void *abort_later(void *arg)
{
    struct timespec t = { .tv_nsec = 300000000 };
    struct comm_link *k = arg;

    nanosleep(&t, NULL);
    k->abort(k, "a member has gone");
    return NULL;
}

static void a_member_that_dies_does_not_hang_the_device(void **state)
{
    static const char *const names[] = { "leave-ipc", "leave-host" };
    (void)state;

    for (int i = 0; i < 2; i++) {
        const struct scenario *s = find_scenario(names[i]);
        struct world w;
        struct err e = { 0 };
        pid_t pid = start(&w, s, 0); /* without a deadline: only the abort ends the wait */
        pthread_t t;

        assert_int_equal(sum_once(&w, 1000, 0, &e), 0);
        wait_member(pid);
        assert_int_equal(pthread_create(&t, NULL, abort_later, w.link), 0);
        assert_true(sum_once(&w, 1000, 0, &e) !=
                    0); /* wrong numbers, or an error; but it returns */
        pthread_join(t, NULL);
        close_world(&w);
    }
}

static void a_member_that_does_not_come_is_a_deadline(void **state)
{
    const struct scenario *s = find_scenario("leave-ipc");
    struct world w;
    struct err e = { 0 };
    pid_t pid;
    (void)state;

    pid = start(&w, s, 500000000);
    assert_int_equal(sum_once(&w, 1000, 0, &e), 0);
    wait_member(pid);
    assert_int_equal(sum_once(&w, 1000, 0, &e), -1);
    assert_int_equal(e.code, E_DEADLINE);
    assert_non_null(strstr(e.msg, "member 1"));
    assert_int_equal(sum_once(&w, 1000, 0, &e), -1); /* and it stays so */
    close_world(&w);
}

/* ---- one process ---- */

static void norms_over_divided_columns_agree_with_the_cpu(void **state)
{
    enum { ROWS = 7, COLS = 333, STRIDE = 400 };
    struct backend *be = cuda_open(), *ref = reference_open();
    float x[ROWS * STRIDE], w[COLS], sums[2][ROWS] = { { 0 } }, out[2][ROWS * STRIDE];
    float *dx, *dw, *ds, *dy;
    (void)state;

    for (int i = 0; i < ROWS * STRIDE; i++) x[i] = sinf((float)i);
    for (int i = 0; i < COLS; i++) w[i] = 1 + (float)(i % 5) / 10;
    memcpy(out[0], x, sizeof x);
    memcpy(out[1], x, sizeof x);
    dx = device_copy(be, x, sizeof x);
    dy = device_copy(be, x, sizeof x);
    dw = device_copy(be, w, sizeof w);
    ds = device_copy(be, sums[0], sizeof sums[0]);
    for (int k = 0; k < 2; k++) {
        struct backend *on = k ? ref : be;
        struct tensor tx = { DT_F32, ROWS, COLS, STRIDE, k ? x : dx },
                      ty = { DT_F32, ROWS, COLS, STRIDE, k ? out[1] : dy };
        on->square_sums(on, k ? sums[1] : ds, &tx, true);
        on->norm_by_sums(on, &ty, &tx, k ? sums[1] : ds, 2 * COLS, k ? w : dw, 1e-5f);
    }
    be->get(be, sums[0], ds, sizeof sums[0]);
    be->get(be, out[0], dy, sizeof out[0]);
    sync_backend(be);
    assert_true(error_of(sums[0], sums[1], ROWS, 1) < 1e-5);
    assert_true(error_of(out[0], out[1], ROWS * STRIDE, 1) < 1e-5);
    be->square_sums(be, ds, &(struct tensor){ DT_F32, ROWS, COLS, STRIDE, dx }, false);
    be->get(be, sums[0], ds, sizeof sums[0]);
    sync_backend(be);
    for (int i = 0; i < ROWS; i++) assert_true(sums[0][i] == 0);
    be->free(be, dx, sizeof x, MEM_SCRATCH);
    be->free(be, dy, sizeof x, MEM_SCRATCH);
    be->free(be, dw, sizeof w, MEM_SCRATCH);
    be->free(be, ds, sizeof sums[0], MEM_SCRATCH);
    backend_close(ref);
    backend_close(be);
}

/* NCCL refuses two members on one card: more than one rank needs another machine. */
static void nccl_sums_with_one_rank(void **state)
{
    struct backend *be = cuda_open();
    struct group_ask ask = { .ways = 1u << GROUP_NCCL, .max = 4096 };
    struct group_offer o;
    struct err e = { 0 };
    float x[1000], *dx;
    struct sum_group g;
    (void)state;

    group_offer_init(&o);
    assert_int_equal(be->group_offer(be, &o, &ask, &e), OK);
    if (!(o.ways >> GROUP_NCCL & 1)) {
        print_message("skipped: NCCL is not here\n");
        backend_close(be);
        skip();
    }
    g = (struct sum_group){ .size = 1, .way = GROUP_NCCL, .offers = &o, .max = 4096 };
    if (be->group_join(be, &g, &e) != OK) fail_msg("%s", e.msg);
    for (int i = 0; i < 1000; i++) x[i] = number_of(0, (size_t)i);
    dx = device_copy(be, x, sizeof x);
    for (int k = 0; k < 40; k++)
        be->all_reduce(be, &(struct tensor){ DT_F32, 1, 1000, 1000, dx }, 0);
    be->get(be, x, dx, sizeof x);
    sync_backend(be);
    for (int i = 0; i < 1000; i++) assert_true(x[i] == number_of(0, (size_t)i));
    be->free(be, dx, sizeof x, MEM_SCRATCH);
    be->group_leave(be);
    backend_close(be);
}

static void a_card_names_the_device(void **state)
{
    struct device_card c;
    struct err e = { 0 };
    (void)state;

    backend_close(cuda_open());
    assert_int_equal(backend_card(&c, &(struct backend_opt){ .device = "cuda" }, &e), OK);
    assert_string_equal(c.kind, "cuda");
    assert_true(c.cc >= 80 && c.total_bytes > 0 && c.types >> DT_F16 & 1 && c.name[0]);
    assert_int_equal(backend_card(&c, &(struct backend_opt){ .device = "cuda:999" }, &e),
                     E_NOTFOUND);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_card_names_the_device),
        cmocka_unit_test(norms_over_divided_columns_agree_with_the_cpu),
        cmocka_unit_test(sums_through_the_host_are_right),
        cmocka_unit_test(sums_over_ipc_are_right),
        cmocka_unit_test(processes_of_one_card_sum_through_the_host_by_default),
        cmocka_unit_test(a_member_that_dies_does_not_hang_the_device),
        cmocka_unit_test(a_member_that_does_not_come_is_a_deadline),
        cmocka_unit_test(nccl_sums_with_one_rank),
    };

    if (argc == 3 && strcmp(argv[1], "member") == 0) return run_member(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
