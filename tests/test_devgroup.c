/* Members of a stage on devices: which way their sums take, that all of them take the same one, and that
 * nobody waits for a member that cannot. */
#include "support.h"

#include "comm/shmlink.h"
#include "foreign.h"
#include "model/devgroup.h"

enum { MOST = 4, N = 5000 };

/* ---- the choice ---- */

static struct group_offer offer(unsigned ways, int card, const char *host)
{
    struct group_offer o;

    group_offer_init(&o);
    o.ways = ways;
    o.card[0] = (unsigned char)card;
    snprintf(o.host, sizeof o.host, "%s", host);
    snprintf(o.device, sizeof o.device, ways ? "cuda:%d" : "cpu", card);
    return o;
}

#define HOST (1u << GROUP_HOST)
#define IPC (1u << GROUP_IPC)
#define NCCL (1u << GROUP_NCCL)

static void choose(struct group_offer a, struct group_offer b, int want, enum group_way way)
{
    struct group_offer o[2] = { a, b };
    enum group_way got = GROUP_WAYS;
    struct err e = { 0 };

    assert_int_equal(group_check_offers(o, 2, &e), OK);
    if (group_choose(&got, o, 2, want, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(got, way);
}

static void refuse(struct group_offer a, struct group_offer b, int want, const char *why)
{
    struct group_offer o[2] = { a, b };
    enum group_way got = GROUP_WAYS;
    struct err e = { 0 };

    assert_int_equal(group_choose(&got, o, 2, want, &e), E_UNSUPPORTED);
    if (!strstr(e.msg, why)) fail_msg("no \"%s\" in: %s", why, e.msg);
}

static void members_choose_the_best_way_that_all_of_them_have(void **state)
{
    struct group_offer all = offer(HOST | IPC | NCCL, 0, "a"),
                       next = offer(HOST | IPC | NCCL, 1, "a"),
                       far = offer(HOST | IPC | NCCL, 1, "b"), plain = offer(HOST, 1, "a"),
                       cpu = offer(0, 0, "a");
    (void)state;

    choose(all, next, GROUP_ANY, GROUP_IPC);
    choose(all, all, GROUP_ANY, GROUP_HOST); /* one card: they would take turns on it */
    choose(all, far, GROUP_ANY, GROUP_HOST);
    choose(all, plain, GROUP_ANY, GROUP_HOST);
    choose(all, cpu, GROUP_ANY, GROUP_HOST);
    choose(cpu, cpu, GROUP_ANY, GROUP_HOST);
    choose(all, next, GROUP_HOST, GROUP_HOST);
    choose(all, all, GROUP_IPC, GROUP_IPC); /* who asks for it gets it */
    choose(all, next, GROUP_NCCL, GROUP_NCCL);
    choose(all, far, GROUP_NCCL, GROUP_NCCL);
    refuse(all, cpu, GROUP_IPC, "member 1 of the stage computes on a CPU");
    refuse(all, plain, GROUP_IPC, "member 1 of the stage (cuda:1) cannot use it");
    refuse(all, far, GROUP_IPC, "members 0 and 1 of the stage are on different machines");
    refuse(all, all, GROUP_NCCL, "members 0 and 1 of the stage share one GPU");
    refuse(plain, all, GROUP_NCCL, "member 0 of the stage (cuda:1) cannot use it");
}

static void a_machine_without_a_name_is_nobodys_neighbour(void **state)
{
    struct group_offer a = offer(HOST | IPC, 0, ""), b = offer(HOST | IPC, 1, "");
    (void)state;

    choose(a, b, GROUP_ANY, GROUP_HOST);
    refuse(a, b, GROUP_IPC, "different machines");
}

static void offers_that_are_none_are_refused(void **state)
{
    struct group_offer o[2] = { offer(HOST, 0, "a"), offer(HOST, 1, "a") }, was = o[1];
    struct err e = { 0 };
    (void)state;

    assert_int_equal(group_check_offers(o, 2, &e), OK);
    o[1].magic ^= 1;
    assert_int_equal(group_check_offers(o, 2, &e), E_FORMAT);
    assert_non_null(strstr(e.msg, "member 1"));
    o[1] = was, o[1].size_of--;
    assert_int_equal(group_check_offers(o, 2, &e), E_FORMAT);
    o[1] = was, o[1].ways = 1u << GROUP_WAYS;
    assert_int_equal(group_check_offers(o, 2, &e), E_FORMAT);
    o[1] = was, memset(o[1].host, 'x', sizeof o[1].host);
    assert_int_equal(group_check_offers(o, 2, &e), E_FORMAT);
    o[1] = was, memset(o[1].device, 'x', sizeof o[1].device);
    assert_int_equal(group_check_offers(o, 2, &e), E_FORMAT);
}

/* ---- groups of threads ---- */

struct member {
    int rank;
    struct comm_link *link;
    bool cpu; /* computes in host memory */
    struct foreign f;
    struct backend *be;
    struct devgroup_opt opt;
    /* what came out */
    int rc;
    struct err e, failed;
    enum group_way way;
    float *x;
};

static float number_of(int rank, int i) { return sinf((float)(i * 7 + 1)) / (float)(rank + 3); }

static void *run_member(void *arg)
{
    struct member *m = arg;
    struct devgroup g = { 0 };
    struct comm c = { 0 };

    m->opt.failed = &m->failed;
    m->rc = comm_open(&c, m->link, 20000000000ull, &m->e);
    if (m->rc == OK) m->rc = devgroup_open(&g, &c, m->be, &m->opt, &m->e);
    if (m->rc == OK) {
        struct tensor t;
        size_t room = c.n_room;
        m->way = g.way;
        m->x = mem_array(N, sizeof *m->x);
        for (int i = 0; i < N; i++) m->x[i] = number_of(m->rank, i);
        t = tensor_f32(m->x, 5, N / 5);
        if (m->cpu) comm_all_reduce(&c, m->x, N, COMM_F32, &m->failed);
        else m->be->all_reduce(m->be, &t, COMM_F32);
        if (c.n_room != room) m->rc = E_INTERNAL; /* a sum must not allocate */
    }
    devgroup_release(&g);
    comm_release(&c);
    return NULL;
}

static void run_group(struct member *m, int n)
{
    void *region = mem_aligned(shmlink_bytes(n));
    pthread_t t[MOST];

    memset(region, 0, shmlink_bytes(n));
    for (int r = 0; r < n; r++) {
        m[r].rank = r;
        m[r].opt.max = N;
        m[r].opt.whole = true;
        assert_int_equal(shmlink_open(&m[r].link, region, r, n, NULL), OK);
        assert_int_equal(backend_open(&m[r].be, &(struct backend_opt){ .reference = true }, NULL),
                         OK);
        if (!m[r].cpu) foreign_make(&m[r].f, m[r].be);
    }
    for (int r = 0; r < n; r++) assert_int_equal(pthread_create(&t[r], NULL, run_member, &m[r]), 0);
    for (int r = 0; r < n; r++) pthread_join(t[r], NULL);
    for (int r = 0; r < n; r++) {
        foreign_drop(&m[r].f);
        backend_close(m[r].be);
        comm_link_close(m[r].link);
        if (!m[r].cpu) assert_true(m[r].f.left);
        assert_null(m[r].f.staging);
    }
    mem_free_aligned(region, shmlink_bytes(n));
}

/* All have the sum, to the bit that the communicator would make. */
static void check_sums(struct member *m, int n, enum group_way way)
{
    for (int r = 0; r < n; r++) {
        if (m[r].rc != OK) fail_msg("member %d: %s", r, m[r].e.msg);
        assert_int_equal(m[r].failed.code, OK);
        assert_int_equal(m[r].way, way);
        for (int i = 0; i < N; i++) {
            float want = number_of(0, i);
            for (int k = 1; k < n; k++) want += number_of(k, i);
            if (m[r].x[i] != want) fail_msg("member %d: number %d is %g", r, i, (double)m[r].x[i]);
        }
    }
}

static void release(struct member *m, int n)
{
    for (int r = 0; r < n; r++) mem_free(m[r].x);
}

static void make_cards(struct member *m, int n, unsigned ways, enum gang_way way)
{
    for (int r = 0; r < n; r++)
        m[r] = (struct member){ .f = { .ways = ways, .card = (unsigned char)(r + 1) },
                                .opt = { .way = way } };
}

static void foreign_memory_is_summed_through_the_host(void **state)
{
    struct member m[MOST];
    (void)state;

    for (int n = 1; n <= MOST; n++) {
        make_cards(m, n, HOST, WAY_AUTO);
        run_group(m, n);
        check_sums(m, n, GROUP_HOST);
        release(m, n);
    }
}

static void devices_and_cpus_sum_together(void **state)
{
    struct member m[3];
    (void)state;

    make_cards(m, 3, HOST | IPC, WAY_AUTO);
    m[1].cpu = true;
    run_group(m, 3);
    check_sums(m, 3, GROUP_HOST);
    assert_int_equal(m[0].f.n_sums, 1);
    release(m, 3);
}

static void the_best_way_is_tried_before_it_is_used(void **state)
{
    struct member m[2];
    (void)state;

    make_cards(m, 2, HOST | IPC, WAY_AUTO);
    run_group(m, 2);
    check_sums(m, 2, GROUP_IPC);
    assert_int_equal(m[0].f.n_sums, 3); /* two of the trial */
    release(m, 2);
}

static void a_way_that_fails_on_one_member_is_left_by_all(void **state)
{
    struct member m[3];
    (void)state;

    make_cards(m, 3, HOST | IPC, WAY_AUTO);
    m[2].f.join_fails = E_UNSUPPORTED;
    run_group(m, 3);
    check_sums(m, 3, GROUP_HOST);
    release(m, 3);
    make_cards(m, 3, HOST | IPC, WAY_AUTO);
    m[1].f.adds_wrongly = true; /* peer memory that is said to work, and does not */
    run_group(m, 3);
    check_sums(m, 3, GROUP_HOST);
    release(m, 3);
    make_cards(m, 3, HOST | IPC, WAY_AUTO);
    m[0].opt.whole = false; /* some of its layers are on the CPU */
    m[0].f.ways = HOST;
    run_group(m, 3);
    check_sums(m, 3, GROUP_HOST);
    release(m, 3);
}

static void a_way_by_name_works_or_is_refused_on_every_member(void **state)
{
    struct member m[2];
    (void)state;

    make_cards(m, 2, HOST | IPC, WAY_HOST);
    run_group(m, 2);
    check_sums(m, 2, GROUP_HOST);
    release(m, 2);
    make_cards(m, 2, HOST | NCCL, WAY_NCCL);
    run_group(m, 2);
    check_sums(m, 2, GROUP_NCCL);
    release(m, 2);

    make_cards(m, 2, HOST | IPC, WAY_IPC);
    m[1].f.join_fails = E_UNSUPPORTED;
    run_group(m, 2);
    for (int r = 0; r < 2; r++) assert_int_equal(m[r].rc, E_UNSUPPORTED);
    assert_non_null(strstr(m[0].e.msg, "comm ipc: another member"));
    assert_non_null(strstr(m[1].e.msg, "comm ipc: the memory of the others is out of reach"));

    make_cards(m, 2, HOST | IPC, WAY_IPC);
    m[0].f.adds_wrongly = true;
    run_group(m, 2);
    for (int r = 0; r < 2; r++) assert_int_equal(m[r].rc, E_UNSUPPORTED);
    assert_non_null(strstr(m[0].e.msg, "a sum over ipc is wrong"));
}

static void a_member_without_an_offer_ends_the_wait_of_all(void **state)
{
    struct member m[3];
    (void)state;

    make_cards(m, 3, HOST, WAY_AUTO);
    m[1].f.offer_fails = E_DEVICE;
    run_group(m, 3);
    assert_int_equal(m[1].rc, E_DEVICE);
    assert_int_equal(m[0].rc, E_FORMAT);
    assert_int_equal(m[2].rc, E_FORMAT);
    assert_non_null(strstr(m[0].e.msg, "member 1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_choose_the_best_way_that_all_of_them_have),
        cmocka_unit_test(a_machine_without_a_name_is_nobodys_neighbour),
        cmocka_unit_test(offers_that_are_none_are_refused),
        cmocka_unit_test(foreign_memory_is_summed_through_the_host),
        cmocka_unit_test(devices_and_cpus_sum_together),
        cmocka_unit_test(the_best_way_is_tried_before_it_is_used),
        cmocka_unit_test(a_way_that_fails_on_one_member_is_left_by_all),
        cmocka_unit_test(a_way_by_name_works_or_is_refused_on_every_member),
        cmocka_unit_test(a_member_without_an_offer_ends_the_wait_of_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
