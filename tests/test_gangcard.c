/* Members that cannot work together are refused by name before anything is loaded: the matrix of
 * devices, types, versions and ways, and cards and questions as bytes. */
#include "support.h"

#include "base/mem.h"
#include "gang/launch.h"
#include "model/gangcard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TYPES = 1 << DT_F16 | 1 << DT_Q4_0 };

static struct gangcard cpu_card_of(const char *isa)
{
    struct gangcard c = { .magic = GANGCARD_MAGIC, .size = sizeof c };

    snprintf(c.version, sizeof c.version, "%s", TERN_VERSION);
    snprintf(c.host, sizeof c.host, "one");
    snprintf(c.dev.kind, sizeof c.dev.kind, "cpu");
    snprintf(c.dev.name, sizeof c.dev.name, "%s", isa);
    c.dev.types = ~(uint64_t)0;
    return c;
}

static struct gangcard gpu_card_of(int card, int cc, const char *host)
{
    struct gangcard c = cpu_card_of("");

    snprintf(c.host, sizeof c.host, "%s", host);
    snprintf(c.dev.kind, sizeof c.dev.kind, "cuda");
    snprintf(c.dev.name, sizeof c.dev.name, cc == 90 ? "H200" : "A100");
    c.dev.cc = cc;
    c.dev.card[0] = (unsigned char)card;
    c.dev.types = TYPES;
    return c;
}

struct matrix {
    struct gang_shape shape;
    struct gangneeds needs;
    struct gangcard cards[4];
};

static struct matrix pair(struct gangcard a, struct gangcard b)
{
    return (struct matrix){ .shape = { .tp = 2, .pp = 1 },
                            .needs = { .types = 1 << DT_F16 },
                            .cards = { a, b } };
}

static void allow(const struct matrix *m)
{
    struct err e = { 0 };

    for (int r = 0; r < m->shape.tp * m->shape.pp; r++)
        if (gangcard_check(&m->cards[r], r, &e) != OK) fail_msg("%s", e.msg);
    if (gangcards_match(m->cards, &m->shape, &m->needs, &e) != OK) fail_msg("%s", e.msg);
}

static void refuse(const struct matrix *m, int code, const char *a, const char *b)
{
    struct err e = { 0 };

    assert_int_equal(gangcards_match(m->cards, &m->shape, &m->needs, &e), code);
    if (!strstr(e.msg, a) || !strstr(e.msg, b)) fail_msg("no \"%s\", \"%s\" in: %s", a, b, e.msg);
}

static void equal_members_work_together(void **state)
{
    struct matrix m = pair(cpu_card_of("avx2"), cpu_card_of("avx2"));
    (void)state;

    m.needs.experts = true;
    allow(&m);
    m.shape.ep = true;
    m.needs.reference = true;
    allow(&m);
    m = pair(gpu_card_of(1, 90, "one"), gpu_card_of(1, 90, "one"));
    m.needs.experts = true;
    allow(&m);
    m.shape.way = WAY_IPC;
    allow(&m);
    m.cards[1] = gpu_card_of(2, 90, "two");
    m.shape.way = WAY_NCCL;
    allow(&m);
}

static void a_stage_with_experts_has_one_kind_of_device(void **state)
{
    struct matrix m = pair(gpu_card_of(1, 90, "one"), cpu_card_of("avx2"));
    (void)state;

    allow(&m);
    m.needs.experts = true;
    refuse(&m, E_UNSUPPORTED, "member 0 (cuda, H200) and member 1 (cpu, avx2)", "experts");
    m.cards[1] = gpu_card_of(2, 80, "one");
    refuse(&m, E_UNSUPPORTED, "member 0 (cuda, H200) and member 1 (cuda, A100)", "experts");
    m = pair(cpu_card_of("avx2"), cpu_card_of("avx512"));
    m.needs.experts = true;
    refuse(&m, E_UNSUPPORTED, "member 0 (cpu, avx2) and member 1 (cpu, avx512)", "experts");
    m.shape = (struct gang_shape){ .tp = 1, .pp = 2 }; /* stages may differ */
    allow(&m);
}

static void a_matrix_of_a_stage_is_of_one_type(void **state)
{
    struct matrix m = pair(cpu_card_of("avx2"), gpu_card_of(1, 90, "one"));
    (void)state;

    m.needs.types = 1 << DT_F16 | (uint64_t)1 << DT_IQ2_XXS;
    refuse(&m, E_UNSUPPORTED, "member 1 (cuda, H200) does not read weights of type", "IQ2_XXS");
    m.needs.types = TYPES;
    allow(&m);
    m = pair(gpu_card_of(1, 90, "one"), cpu_card_of("avx2"));
    m.needs.types = (uint64_t)1 << DT_IQ2_XXS;
    refuse(&m, E_UNSUPPORTED, "member 0 (cuda, H200) does not read", "member 1 (cpu, avx2) does");
    m.shape = (struct gang_shape){ .tp = 1, .pp = 2 };
    allow(&m);
}

static void ways_by_name_need_their_devices(void **state)
{
    struct matrix m = pair(gpu_card_of(1, 90, "one"), cpu_card_of("avx2"));
    (void)state;

    m.shape.way = WAY_IPC;
    refuse(&m, E_UNSUPPORTED, "comm ipc: member 1 (cpu, avx2)", "no GPU");
    m.shape.way = WAY_NCCL;
    refuse(&m, E_UNSUPPORTED, "comm nccl: member 1 (cpu, avx2)", "no GPU");
    m.cards[1] = gpu_card_of(1, 90, "one");
    refuse(&m, E_UNSUPPORTED, "comm nccl: member 0", "share one GPU");
    m.cards[1] = gpu_card_of(1, 90, "two");
    allow(&m);
    m.shape.way = WAY_IPC;
    refuse(&m, E_UNSUPPORTED, "comm ipc: member 0", "different machines");
    /* the second stage counts, too, and only within itself */
    m.shape = (struct gang_shape){ .tp = 2, .pp = 2, .way = WAY_IPC };
    m.cards[0] = m.cards[1] = gpu_card_of(1, 90, "one");
    m.cards[2] = m.cards[3] = gpu_card_of(1, 90, "two");
    allow(&m);
    m.cards[3] = cpu_card_of("avx2");
    refuse(&m, E_UNSUPPORTED, "member 3 (cpu, avx2)", "no GPU");
}

static void what_a_gpu_cannot_do_is_named(void **state)
{
    struct matrix m = pair(gpu_card_of(1, 90, "one"), gpu_card_of(2, 90, "one"));
    (void)state;

    m.shape.ep = true;
    refuse(&m, E_UNSUPPORTED, "ep: member 0 (cuda, H200)", "every expert");
    m.shape.ep = false;
    m.needs.reference = true;
    refuse(&m, E_INVALID, "member 0 (cuda, H200)", "reference kernels");
}

/* ---- bytes ---- */

static void cards_of_others_are_refused(void **state)
{
    struct gangcard good = cpu_card_of("avx2"), c = good;
    struct err e = { 0 };
    (void)state;

    assert_int_equal(gangcard_check(&good, 1, &e), OK);
    c.magic ^= 1;
    assert_int_equal(gangcard_check(&c, 1, &e), E_FORMAT);
    c = good, snprintf(c.version, sizeof c.version, "0.0.9");
    assert_int_equal(gangcard_check(&c, 1, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "member 1 is tern 0.0.9"));
    c = good, memset(c.version, 'x', sizeof c.version);
    assert_int_equal(gangcard_check(&c, 1, &e), E_FORMAT);
    c = good, c.size++;
    assert_int_equal(gangcard_check(&c, 1, &e), E_UNSUPPORTED);
    c = good, memset(c.text, 'x', sizeof c.text);
    assert_int_equal(gangcard_check(&c, 1, &e), E_FORMAT);
    c = good, memset(c.host, 'x', sizeof c.host);
    assert_int_equal(gangcard_check(&c, 1, &e), E_FORMAT);
    c = good, memset(c.dev.kind, 'x', sizeof c.dev.kind);
    assert_int_equal(gangcard_check(&c, 1, &e), E_FORMAT);
    c = good, memset(c.dev.name, 'x', sizeof c.dev.name);
    assert_int_equal(gangcard_check(&c, 1, &e), E_FORMAT);
    c = good, c.code = 7;
    assert_int_equal(gangcard_check(&c, 1, &e), E_FORMAT);
    c = good, c.code = E_NOTFOUND, snprintf(c.text, sizeof c.text, "device \"cuda:9\" is not here");
    assert_int_equal(gangcard_check(&c, 3, &e), E_NOTFOUND);
    assert_string_equal(e.msg, "member 3: device \"cuda:9\" is not here");
}

static void questions_survive_as_bytes_and_nothing_else_does(void **state)
{
    struct gang_shape shape = { .tp = 2, .pp = 1, .devices = { "cpu", "cuda:1" } };
    struct gangask *a = mem_new(struct gangask), *b = mem_new(struct gangask);
    struct gangcard c;
    struct err e = { 0 };
    (void)state;

    gangask_fill(a, &shape, &(struct backend_opt){ .isa = "ref" });
    assert_int_equal(gangask_read(b, a, sizeof *a, &e), OK);
    assert_string_equal(b->devices[1], "cuda:1");
    for (size_t n = 0; n < sizeof *a; n += n < 64 ? 1 : 97)
        assert_true(gangask_read(b, a, n, &e) != OK);
    gangcard_fill(&c, a, 0);
    assert_int_equal(gangcard_check(&c, 0, &e), OK);
    assert_string_equal(c.dev.kind, "cpu");
    assert_true(c.host[0] && c.dev.types >> DT_Q4_0 & 1);

    a->magic ^= 1;
    assert_int_equal(gangask_read(b, a, sizeof *a, &e), E_FORMAT);
    a->magic ^= 1, a->size--;
    assert_int_equal(gangask_read(b, a, sizeof *a, &e), E_UNSUPPORTED);
    a->size++, a->reference = 2;
    assert_int_equal(gangask_read(b, a, sizeof *a, &e), E_FORMAT);
    a->reference = 0, memset(a->devices[COMM_MAX - 1], 'x', GANG_DEVICE);
    assert_int_equal(gangask_read(b, a, sizeof *a, &e), E_FORMAT);
    memset(a->devices[COMM_MAX - 1], 0, GANG_DEVICE), memset(a->isa, 'x', sizeof a->isa);
    assert_int_equal(gangask_read(b, a, sizeof *a, &e), E_FORMAT);
    memset(a->isa, 0, sizeof a->isa), snprintf(a->version, sizeof a->version, "9.9.9");
    assert_int_equal(gangask_read(b, a, sizeof *a, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "the leader is tern 9.9.9"));
    mem_free(a);
    mem_free(b);
}

/* A device that is not there, and kernels that this CPU lacks, are cards that say so. */
static void a_member_without_its_device_says_so(void **state)
{
    struct gang_shape shape = { .tp = 2, .pp = 1, .devices = { "tpu", "cpu" } };
    struct gangask *a = mem_new(struct gangask);
    struct gangcard c;
    struct err e = { 0 };
    (void)state;

    gangask_fill(a, &shape, &(struct backend_opt){ 0 });
    gangcard_fill(&c, a, 0);
    assert_int_equal(gangcard_check(&c, 0, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "member 0: device \"tpu\""));
    snprintf(a->isa, sizeof a->isa, "sse9");
    gangcard_fill(&c, a, 1);
    assert_true(gangcard_check(&c, 1, &e) != OK);
    assert_non_null(strstr(e.msg, "sse9"));
    mem_free(a);
}

/* ---- who is alike ---- */

static void members_differ_by_device_kernels_and_threads(void **state)
{
    struct gangcard c[3] = { cpu_card_of("avx2"), cpu_card_of("avx2"), cpu_card_of("avx2") };
    (void)state;

    assert_true(gangcards_alike(c, 3));
    c[2].threads = 4;
    assert_true(gangcards_alike(c, 2));
    assert_false(gangcards_alike(c, 3));
    c[2] = cpu_card_of("avx512");
    assert_false(gangcards_alike(c, 3));
    c[2] = gpu_card_of(1, 90, "one");
    assert_false(gangcards_alike(c, 3));
    c[0] = c[1] = gpu_card_of(2, 90, "one");
    assert_true(gangcards_alike(c, 3));
    c[1] = gpu_card_of(2, 80, "one");
    assert_false(gangcards_alike(c, 3));
}

static void members_of_one_machine_or_gpu_have_one_memory(void **state)
{
    struct gangcard c[5] = { cpu_card_of("avx2"), gpu_card_of(1, 90, "one"), cpu_card_of("avx2"),
                             gpu_card_of(1, 90, "one"), gpu_card_of(1, 90, "two") };
    static const int want[5] = { 0, 1, 0, 1, 2 };
    int got[5];
    (void)state;

    gangcards_memories(c, 5, got);
    assert_memory_equal(got, want, sizeof got);
    c[2].own_memory = 1;
    gangcards_memories(c, 5, got);
    assert_int_equal(got[2], 2);
}

/* Numbers that are given replace the measurement; without them a device is measured once. */
static void cards_have_speed_and_memory(void **state)
{
    struct gang_shape shape = { .tp = 2, .pp = 1 };
    struct gangask *a = mem_new(struct gangask);
    struct gangcard c, d;
    struct err e = { 0 };
    double speeds[2];
    (void)state;

    gangask_fill(a, &shape, &(struct backend_opt){ .n_threads = 1 });
    gangcard_fill(&c, a, 1);
    assert_int_equal(c.threads, 1);
    assert_true(c.memory_bytes > 0 && c.speed.read_gb_s == 0);
    a->measure = 1;
    gangcard_fill(&c, a, 1);
    assert_int_equal(gangcard_check(&c, 1, &e), OK);
    assert_true(c.speed.read_gb_s > 0 && c.speed.product_gflops > 0);
    gangcard_fill(&d, a, 1);
    assert_memory_equal(&c.speed, &d.speed, sizeof c.speed); /* not measured again */
    setenv("TERN_GANG_SPEEDS", "3,1.5", 1);
    setenv("TERN_GANG_MEMORY", "100,200", 1);
    gangcard_fill(&c, a, 0);
    gangcard_fill(&d, a, 1);
    assert_true(c.speed.read_gb_s == 3 && d.speed.product_gflops == 1.5);
    assert_true(c.memory_bytes == 100u << 20 && d.memory_bytes == 200u << 20 && d.own_memory);
    gangspeed_compare(speeds, (struct gangspeed[2]){ c.speed, d.speed }, 2);
    assert_true(speeds[0] == 1 && speeds[1] == 0.5);
    gangspeed_compare(speeds, (struct gangspeed[2]){ { 100, 10, 0 }, { 50, 2.5, 0 } }, 2);
    assert_true(speeds[0] == 1 && speeds[1] > 0.3333 && speeds[1] < 0.3334);
    unsetenv("TERN_GANG_SPEEDS");
    unsetenv("TERN_GANG_MEMORY");
    c.speed.read_gb_s = -1;
    assert_int_equal(gangcard_check(&c, 0, &e), E_FORMAT);
    a->measure = 2;
    assert_int_equal(gangask_read(a, a, sizeof *a, &e), E_FORMAT);
    mem_free(a);
}

/* ---- words ---- */

static void splits_are_read_from_words(void **state)
{
    struct gang_words w = { .tp = 2, .pp = 2, .split = "auto", .step_ms = 60000 };
    struct gang_conf c;
    struct err e = { 0 };
    (void)state;

    assert_int_equal(gang_conf_of(&c, &w, &e), OK);
    assert_int_equal(c.shape.split, SPLIT_AUTO);
    w.split = "even";
    assert_int_equal(gang_conf_of(&c, &w, &e), OK);
    assert_int_equal(c.shape.split, SPLIT_EVEN);
    w.split = "";
    assert_int_equal(gang_conf_of(&c, &w, &e), OK);
    assert_int_equal(c.shape.split, SPLIT_DEFAULT);
    w.split = "3,1"; /* in both stages */
    assert_int_equal(gang_conf_of(&c, &w, &e), OK);
    assert_int_equal(c.shape.split, SPLIT_GIVEN);
    assert_int_equal(c.shape.shares[2], 3);
    assert_int_equal(c.shape.shares[3], 1);
    w.split = "3";
    assert_int_equal(gang_conf_of(&c, &w, &e), E_INVALID);
    w.split = "automatic";
    assert_int_equal(gang_conf_of(&c, &w, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "auto, even, or 2 numbers"));
}

static int read_words(struct gang_conf *c, int tp, int pp, const char *devices, const char *comm,
                      struct err *e)
{
    struct gang_words w = {
        .tp = tp, .pp = pp, .devices = devices, .comm = comm, .step_ms = 60000
    };

    return gang_conf_of(c, &w, e);
}

static void devices_and_ways_are_read_from_words(void **state)
{
    struct gang_conf c;
    struct err e = { 0 };
    (void)state;

    assert_int_equal(read_words(&c, 2, 1, "cuda,cuda:12", "ipc", &e), OK);
    assert_string_equal(c.shape.devices[0], "cuda");
    assert_string_equal(c.shape.devices[1], "cuda:12");
    assert_int_equal(c.shape.way, WAY_IPC);
    assert_int_equal(read_words(&c, 2, 2, "cuda", NULL, &e), OK);
    assert_string_equal(c.shape.devices[3], "cuda");
    assert_int_equal(c.shape.way, WAY_AUTO);
    assert_int_equal(read_words(&c, 1, 2, "", "auto", &e), OK);
    assert_string_equal(c.shape.devices[0], "");
    assert_int_equal(read_words(&c, 2, 1, NULL, "host", &e), OK);
    assert_int_equal(c.shape.way, WAY_HOST);
}

static void wrong_words_are_named(void **state)
{
    static const char *const wrong[] = { "cuda,cpu,cpu", "tpu,cpu",
                                         "cuda,",        ",cuda",
                                         "cuda:,cpu",    "cuda:1024,cpu",
                                         "cuda:-1,cpu",  "cuda,cuda:99999999999999999999" };
    struct gang_conf c;
    struct err e = { 0 };
    (void)state;

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (read_words(&c, 2, 1, wrong[i], NULL, &e) != E_INVALID) fail_msg("%s", wrong[i]);
        assert_non_null(strstr(e.msg, wrong[i]));
    }
    assert_int_equal(read_words(&c, 2, 2, "cuda,cpu", NULL, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "2 devices for 4 members"));
    assert_int_equal(read_words(&c, 1, 1, "cuda", NULL, &e), E_INVALID);
    assert_int_equal(read_words(&c, 2, 1, NULL, "pigeon", &e), E_INVALID);
    assert_non_null(strstr(e.msg, "comm pigeon"));
    assert_int_equal(read_words(&c, 1, 2, NULL, "nccl", &e), E_INVALID);
    assert_non_null(strstr(e.msg, "members of tp"));
    assert_int_equal(
        gang_conf_of(
            &c,
            &(struct gang_words){ .tp = 2, .pp = 1, .wire = "q8", .comm = "ipc", .step_ms = 60000 },
            &e),
        E_INVALID);
    assert_non_null(strstr(e.msg, "wire q8"));
}

static void the_leaders_device_goes_with_the_list(void **state)
{
    struct gang_conf c;
    struct err e = { 0 };
    (void)state;

    assert_int_equal(read_words(&c, 2, 1, "cuda,cuda", NULL, &e), OK);
    assert_int_equal(gang_check_device(&c, NULL, &e), OK);
    assert_int_equal(gang_check_device(&c, "cpu", &e), OK); /* the default of commands */
    assert_int_equal(gang_check_device(&c, "cuda", &e), OK);
    assert_int_equal(gang_check_device(&c, "cuda:1", &e), E_INVALID);
    assert_int_equal(read_words(&c, 2, 1, NULL, NULL, &e), OK);
    assert_int_equal(gang_check_device(&c, "cuda", &e), E_INVALID);
    assert_non_null(strstr(e.msg, "devices cuda,cuda"));
    assert_int_equal(read_words(&c, 1, 2, NULL, NULL, &e), OK);
    assert_int_equal(gang_check_device(&c, "cuda", &e), OK); /* a pipeline whose leader has a GPU */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_members_work_together),
        cmocka_unit_test(a_stage_with_experts_has_one_kind_of_device),
        cmocka_unit_test(a_matrix_of_a_stage_is_of_one_type),
        cmocka_unit_test(ways_by_name_need_their_devices),
        cmocka_unit_test(what_a_gpu_cannot_do_is_named),
        cmocka_unit_test(cards_of_others_are_refused),
        cmocka_unit_test(questions_survive_as_bytes_and_nothing_else_does),
        cmocka_unit_test(a_member_without_its_device_says_so),
        cmocka_unit_test(members_differ_by_device_kernels_and_threads),
        cmocka_unit_test(members_of_one_machine_or_gpu_have_one_memory),
        cmocka_unit_test(cards_have_speed_and_memory),
        cmocka_unit_test(splits_are_read_from_words),
        cmocka_unit_test(devices_and_ways_are_read_from_words),
        cmocka_unit_test(wrong_words_are_named),
        cmocka_unit_test(the_leaders_device_goes_with_the_list),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
