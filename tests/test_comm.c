/* Communicators: sums, gathers, messages and failures between threads, over shared memory and TCP. */
#include "support.h"

#include "base/clock.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "gang/launch_impl.h"
#include "comm/shmlink.h"
#include "gang/tcplink.h"
#include "comm/wire.h"

#include <math.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 5 };

struct world {
    int size;
    void *region; /* NULL: TCP */
    struct comm_link *links[MOST];
    uint64_t timeout_ns;
    int (*run)(struct comm *c, struct world *w);
    int rc[MOST];
    size_t n;
    enum comm_wire wire;
    float *sums[MOST];
};

static void open_world(struct world *w, int size, bool tcp)
{
    int fds[MOST][MOST], pair[2];

    *w = (struct world){ .size = size, .timeout_ns = 60000000000ull };
    if (!tcp) w->region = mem_aligned(shmlink_bytes(size));
    if (!tcp) memset(w->region, 0, shmlink_bytes(size));
    for (int a = 0; a < size; a++) fds[a][a] = -1;
    for (int a = 0; a < size && tcp; a++)
        for (int b = a + 1; b < size; b++) {
            assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
            fds[a][b] = pair[0];
            fds[b][a] = pair[1];
        }
    for (int r = 0; r < size; r++)
        assert_int_equal(tcp ? tcplink_open(&w->links[r], fds[r], r, size, NULL)
                             : shmlink_open(&w->links[r], w->region, r, size, NULL),
                         OK);
}

static void close_world(struct world *w)
{
    for (int r = 0; r < w->size; r++) {
        comm_link_close(w->links[r]);
        mem_free(w->sums[r]);
    }
    if (w->region) mem_free_aligned(w->region, shmlink_bytes(w->size));
}

struct job {
    struct world *w;
    int rank;
};

static void *run_member(void *arg)
{
    struct job *j = arg;
    struct comm c = { 0 };

    j->w->rc[j->rank] = comm_open(&c, j->w->links[j->rank], j->w->timeout_ns, NULL);
    if (j->w->rc[j->rank] == OK) j->w->rc[j->rank] = j->w->run(&c, j->w);
    comm_release(&c);
    return NULL;
}

static void run_world(struct world *w)
{
    pthread_t t[MOST];
    struct job j[MOST];

    for (int r = 0; r < w->size; r++) {
        j[r] = (struct job){ w, r };
        assert_int_equal(pthread_create(&t[r], NULL, run_member, &j[r]), 0);
    }
    for (int r = 0; r < w->size; r++) pthread_join(t[r], NULL);
}

/* A number that has no exact sum, so that the order of additions shows. */
static float number_of(int rank, size_t i) { return sinf((float)(i * 7 + 1)) / (float)(rank + 3); }

static int sum(struct comm *c, struct world *w)
{
    float *x = mem_array(w->n, sizeof *x);

    for (size_t i = 0; i < w->n; i++) x[i] = number_of(c->rank, i);
    w->sums[c->rank] = x;
    return comm_all_reduce(c, x, w->n, w->wire, NULL);
}

static void check_sum(int size, size_t n, enum comm_wire wire, bool tcp)
{
    struct world w;

    open_world(&w, size, tcp);
    w.run = sum, w.n = n, w.wire = wire;
    run_world(&w);
    for (int r = 0; r < size; r++) assert_int_equal(w.rc[r], OK);
    for (int r = 1; r < size; r++) /* the same bits everywhere */
        assert_memory_equal(w.sums[0], w.sums[r], n * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        double want = 0;
        for (int r = 0; r < size; r++) want += (double)number_of(r, i);
        assert_true(fabs(w.sums[0][i] - want) < (wire == COMM_Q8 ? 0.03 : 1e-5));
    }
    close_world(&w);
}

static void sums_are_right_and_the_same_on_every_member(void **state)
{
    static const size_t sizes[] = { 1, 31, 4096, 20001, 700001 };
    (void)state;

    for (int size = 1; size <= MOST; size++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k += THIN)
            for (int wire = COMM_F32; wire <= COMM_Q8; wire++)
                check_sum(size, sizes[k], (enum comm_wire)wire, (size + (int)k) % 2);
}

/* Everybody gathers, broadcasts and passes a large message round a ring. */
static int talk(struct comm *c, struct world *w)
{
    size_t n = 3 << 20; /* more than a ring holds */
    char *out = mem_alloc(n), *in = mem_alloc(n);
    int32_t mine = 100 + c->rank, all[MOST] = { 0 }, word = c->rank == 1 ? 77 : 0;
    int next = (c->rank + 1) % c->size, before = (c->rank + c->size - 1) % c->size, rc;

    (void)w;
    memset(out, c->rank + 1, n);
    rc = comm_all_gather(c, &mine, sizeof mine, all, NULL);
    for (int r = 0; r < c->size; r++)
        if (all[r] != 100 + r) rc = E_INTERNAL;
    if (rc == OK) rc = comm_broadcast(c, 1, &word, sizeof word, NULL);
    if (word != 77) rc = E_INTERNAL;
    if (c->rank % 2) { /* a ring of blocking sends: somebody receives first */
        if (rc == OK) rc = comm_recv(c, before, in, n, NULL);
        if (rc == OK) rc = comm_send(c, next, out, n, NULL);
    } else {
        if (rc == OK) rc = comm_send(c, next, out, n, NULL);
        if (rc == OK) rc = comm_recv(c, before, in, n, NULL);
    }
    if (in[0] != before + 1 || in[n - 1] != before + 1) rc = E_INTERNAL;
    if (rc == OK) rc = comm_barrier(c, NULL);
    if (c->stats.bytes < n || c->stats.n_ops < 5) rc = E_INTERNAL;
    mem_free(in);
    mem_free(out);
    return rc;
}

static void gathers_broadcasts_and_messages_arrive(void **state)
{
    struct world w;
    (void)state;

    for (int tcp = 0; tcp < 2; tcp++)
        for (int size = 2; size <= 4; size += 2) {
            open_world(&w, size, tcp);
            w.run = talk;
            run_world(&w);
            for (int r = 0; r < size; r++) assert_int_equal(w.rc[r], OK);
            close_world(&w);
        }
}

static int stage_sums(struct comm *c, struct world *w)
{
    struct comm group = { 0 };
    float x = (float)(c->rank + 1);
    int rc = comm_open_group(&group, c->link, c->rank / 2 * 2, 1, 2, w->timeout_ns, NULL);

    if (rc == OK) rc = comm_all_reduce(&group, &x, 1, COMM_F32, NULL);
    comm_release(&group);
    if (rc == OK && x != (c->rank < 2 ? 3 : 7)) rc = E_INTERNAL;
    return rc;
}

static void a_group_sums_among_its_members_only(void **state)
{
    struct world w;
    (void)state;

    open_world(&w, 4, false);
    w.run = stage_sums;
    run_world(&w);
    for (int r = 0; r < 4; r++) assert_int_equal(w.rc[r], OK);
    close_world(&w);
}

/* Member 1 aborts while the others wait for it. */
static int abort_or_wait(struct comm *c, struct world *w)
{
    struct err e = { 0 };
    float x = 1;
    int rc;

    (void)w;
    if (c->rank == 1) {
        comm_abort(c, "a test ends it");
        return OK;
    }
    rc = comm_all_reduce(c, &x, 1, COMM_F32, &e);
    if (rc == E_WORKER && comm_barrier(c, &e) != E_WORKER) rc = E_INTERNAL; /* and it stays so */
    return rc;
}

static void an_abort_ends_the_waiting_of_all(void **state)
{
    struct world w;
    (void)state;

    for (int tcp = 0; tcp < 2; tcp++) {
        open_world(&w, 3, tcp);
        w.run = abort_or_wait;
        w.timeout_ns = 0;
        run_world(&w);
        assert_int_equal(w.rc[0], E_WORKER);
        assert_int_equal(w.rc[1], OK);
        assert_int_equal(w.rc[2], E_WORKER);
        close_world(&w);
    }
}

/* Member 1 never comes. */
static int come_or_not(struct comm *c, struct world *w)
{
    float x = 1;

    (void)w;
    return c->rank == 1 ? OK : comm_all_reduce(c, &x, 1, COMM_F32, NULL);
}

static void a_deadline_ends_the_waiting_for_a_member(void **state)
{
    struct world w;
    (void)state;

    for (int tcp = 0; tcp < 2; tcp++) {
        open_world(&w, 2, tcp);
        w.run = come_or_not;
        w.timeout_ns = 50000000;
        run_world(&w);
        assert_int_equal(w.rc[0], E_DEADLINE);
        close_world(&w);
    }
}

static void a_member_that_dies_ends_a_tcp_link(void **state)
{
    struct comm_link *k;
    struct comm c;
    int pair[2], fds[2];
    float x = 1;
    (void)state;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    fds[0] = -1, fds[1] = pair[0];
    assert_int_equal(tcplink_open(&k, fds, 0, 2, NULL), OK);
    assert_int_equal(comm_open(&c, k, 0, NULL), OK);
    close(pair[1]);
    assert_int_equal(comm_all_reduce(&c, &x, 1, COMM_F32, NULL), E_WORKER);
    comm_release(&c);
    comm_link_close(k);
}

static void the_8_bit_wire_keeps_numbers_and_shows_bad_ones(void **state)
{
    float x[70], y[70] = { 0 };
    char bytes[512];
    (void)state;

    for (int i = 0; i < 70; i++) x[i] = number_of(0, (size_t)i) * (i < 32 ? 1 : 1000);
    assert_true(wire_bytes(COMM_Q8, 70) <= sizeof bytes);
    assert_true(wire_bytes(COMM_Q8, 4096) < wire_bytes(COMM_F32, 4096) / 3);
    wire_put(COMM_Q8, bytes, x, 70);
    wire_get(COMM_Q8, y, bytes, 70);
    for (int i = 0; i < 70; i++) assert_true(fabsf(x[i] - y[i]) <= (i < 32 ? 0.002f : 1.4f));
    x[3] = INFINITY;
    wire_put(COMM_Q8, bytes, x, 70);
    wire_get(COMM_Q8, y, bytes, 70);
    assert_true(isnan(y[0]) && !isnan(y[40]));
}

static void strangers_are_no_members(void **state)
{
    char secret[GANG_SECRET] = "0123456789abcdef0123456789abcde";
    struct gang_hello h = gang_make_hello(1, false, 5000), b;
    struct gang_welcome w = { .magic = GANG_MAGIC, .size_of = sizeof w, .rank = 1, .size = 2 }, v;
    struct err e = { 0 };
    (void)state;

    memcpy(h.secret, secret, sizeof secret);
    assert_int_equal(gang_check_hello(&h, 2, secret, &e), OK);
    b = h, b.magic++;
    assert_int_equal(gang_check_hello(&b, 2, secret, &e), E_FORMAT);
    b = h, b.size_of--;
    assert_int_equal(gang_check_hello(&b, 2, secret, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "another build"));
    b = h, memcpy(b.version, "0.0.9", 6);
    assert_int_equal(gang_check_hello(&b, 2, secret, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "tern 0.0.9"));
    b = h, memset(b.version, 'x', sizeof b.version);
    assert_int_equal(gang_check_hello(&b, 2, secret, &e), E_FORMAT);
    b = h, b.secret[7] ^= 1;
    assert_int_equal(gang_check_hello(&b, 2, secret, &e), E_DENIED);
    b = h, b.rank = 2;
    assert_int_equal(gang_check_hello(&b, 2, secret, &e), E_FORMAT);
    b = h, b.rank = 0;
    assert_int_equal(gang_check_hello(&b, 2, secret, &e), E_FORMAT);
    b = h, b.port = 70000;
    assert_int_equal(gang_check_hello(&b, 2, secret, &e), E_FORMAT);

    assert_int_equal(gang_check_welcome(&w, &e), OK);
    v = w, v.size = COMM_MAX + 1;
    assert_int_equal(gang_check_welcome(&v, &e), E_FORMAT);
    v = w, v.rank = 2;
    assert_int_equal(gang_check_welcome(&v, &e), E_FORMAT);
    v = w, v.transport = 9;
    assert_int_equal(gang_check_welcome(&v, &e), E_FORMAT);
    v = w, v.size_of++;
    assert_int_equal(gang_check_welcome(&v, &e), E_FORMAT);
}

/* A hello of another version may be shorter: it is named after its head, and not waited for. */
static void a_member_of_another_version_is_named(void **state)
{
    struct gang_hello h = gang_make_hello(1, true, 5000), got;
    struct err e = { 0 };
    int pair[2];
    (void)state;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(mesh_write(pair[0], &h, sizeof h, &e), OK);
    assert_int_equal(mesh_read_hello(pair[1], &got, clock_ns() + 60000000000ull, &e), OK);
    assert_memory_equal(&got, &h, sizeof h);
    h.size_of = 52;
    assert_int_equal(mesh_write(pair[0], &h, 52, &e), OK);
    assert_int_equal(mesh_read_hello(pair[1], &got, clock_ns() + 60000000000ull, &e),
                     E_UNSUPPORTED);
    close(pair[0]);
    close(pair[1]);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(
        mesh_write(pair[0], "GET / HTTP/1.1\r\nHost: somebody.example\r\n\r\n", 43, &e), OK);
    assert_int_equal(mesh_read_hello(pair[1], &got, clock_ns() + 60000000000ull, &e), E_FORMAT);
    close(pair[0]);
    close(pair[1]);
}

static void a_gang_that_cannot_be_is_refused(void **state)
{
    struct gang_conf good = { .shape = { .tp = 2, .pp = 1 } }, c;
    struct err e = { 0 };
    (void)state;

    assert_int_equal(gang_check(&good, &e), OK);
    c = good, c.shape.tp = 0;
    assert_int_equal(gang_check(&c, &e), E_INVALID);
    c = good, c.shape.pp = COMM_MAX;
    assert_int_equal(gang_check(&c, &e), E_INVALID);
    c = good, c.shape.tp = 1, c.shape.ep = true;
    assert_int_equal(gang_check(&c, &e), E_INVALID);
    c = good, c.transport = "pigeon";
    assert_int_equal(gang_check(&c, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "pigeon"));
    c = good, c.transport = "shm", c.hosts = "a,b";
    assert_int_equal(gang_check(&c, &e), E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_right_and_the_same_on_every_member),
        cmocka_unit_test(gathers_broadcasts_and_messages_arrive),
        cmocka_unit_test(a_group_sums_among_its_members_only),
        cmocka_unit_test(an_abort_ends_the_waiting_of_all),
        cmocka_unit_test(a_deadline_ends_the_waiting_for_a_member),
        cmocka_unit_test(a_member_that_dies_ends_a_tcp_link),
        cmocka_unit_test(the_8_bit_wire_keeps_numbers_and_shows_bad_ones),
        cmocka_unit_test(strangers_are_no_members),
        cmocka_unit_test(a_member_of_another_version_is_named),
        cmocka_unit_test(a_gang_that_cannot_be_is_refused),
    };
    return cmocka_run_group_tests_name("comm", tests, NULL, NULL);
}
