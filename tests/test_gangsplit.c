/* Parts of a model by the speed and the memory of members: in proportion to speeds, within every memory,
 * and refused with the numbers where nothing fits. */
#include "support.h"

#include "model/gangsplit.h"

#include <string.h>

enum { MIB = 1 << 20, LAYERS = 12 };

static struct gangsplit_layer layers[LAYERS];

/* Equal layers of 10 MiB; every member has a memory of its own, without a limit. */
static struct gangsplit_in world(int tp, int pp, int n_layers)
{
    struct gangsplit_in in = { .tp = tp, .pp = pp, .layers = layers, .n_layers = n_layers };

    for (int l = 0; l < LAYERS; l++) layers[l] = (struct gangsplit_layer){ 10 * MIB, 10 * MIB };
    for (int r = 0; r < COMM_MAX; r++) {
        in.speeds[r] = 1;
        in.memories[r] = r < tp * pp ? r : 0;
        in.rooms[r] = UINT64_MAX;
    }
    return in;
}

static struct gangsplit choose(const struct gangsplit_in *in)
{
    struct gangsplit out;
    struct err e = { 0 };

    if (gangsplit_choose(&out, in, &e) != OK) fail_msg("%s", e.msg);
    return out;
}

static void assert_near(int got, int want)
{
    if (got < want - 2 || got > want + 2) fail_msg("a share of %d, not %d", got, want);
}

static void members_of_a_stage_share_by_speed(void **state)
{
    struct gangsplit_in in = world(3, 1, LAYERS);
    struct gangsplit s;
    (void)state;

    s = choose(&in);
    for (int r = 0; r < 3; r++) assert_near(s.shares[r], 333);
    in.speeds[0] = 6, in.speeds[1] = 3;
    s = choose(&in);
    assert_near(s.shares[0], 600);
    assert_near(s.shares[1], 300);
    assert_near(s.shares[2], 100);
    assert_int_equal(s.layers[0], LAYERS);
}

static void stages_have_layers_by_speed(void **state)
{
    struct gangsplit_in in = world(1, 2, LAYERS);
    struct gangsplit s;
    (void)state;

    s = choose(&in);
    assert_int_equal(s.layers[0], 6);
    in.speeds[0] = 3;
    s = choose(&in);
    assert_int_equal(s.layers[0], 9);
    assert_int_equal(s.layers[1], 3);
    in.speeds[0] = 1000; /* every stage has a layer */
    assert_int_equal(choose(&in).layers[1], 1);
    in.speeds[0] = 0.001;
    assert_int_equal(choose(&in).layers[0], 1);
}

/* A head as large as two layers makes the last stage's layers two fewer; the embedding costs nothing. */
static void the_head_counts_as_layers_of_the_last_stage(void **state)
{
    struct gangsplit_in in = world(1, 2, LAYERS);
    (void)state;

    in.head_cost = 20 * MIB, in.head_bytes = 20 * MIB, in.embd_bytes = 20 * MIB;
    assert_int_equal(choose(&in).layers[0], 7);
    for (int l = 0; l < 6; l++) layers[l].cost = 30 * MIB; /* layers differ */
    assert_int_equal(choose(&in).layers[0], 4);
}

static void both_divisions_go_together(void **state)
{
    struct gangsplit_in in = world(2, 2, LAYERS);
    struct gangsplit s;
    (void)state;

    in.speeds[0] = 3, in.speeds[1] = 3, in.speeds[2] = 2, in.speeds[3] = 1; /* 6 and 3 */
    s = choose(&in);
    assert_int_equal(s.layers[0], 8);
    assert_int_equal(s.layers[1], 4);
    assert_near(s.shares[0], 500);
    assert_near(s.shares[2], 667);
    assert_near(s.shares[3], 333);
}

static void memory_bounds_the_fast(void **state)
{
    struct gangsplit_in in = world(2, 1, LAYERS);
    struct gangsplit s;
    (void)state;

    in.speeds[0] = 3;
    in.each_bytes = 5 * MIB;
    in.rooms[0] = 65 * MIB; /* half of 120 MiB, and scratch */
    s = choose(&in);
    assert_near(s.shares[0], 500);
    assert_near(s.shares[1], 500);
    in = world(1, 2, LAYERS);
    in.speeds[0] = 3;
    in.embd_bytes = 20 * MIB;
    in.rooms[0] = 65 * MIB; /* the embedding, and four layers */
    s = choose(&in);
    assert_int_equal(s.layers[0], 4);
    assert_int_equal(s.layers[1], 8);
}

/* Stages 0 and 1 are on one machine: both together have its memory. */
static void members_of_one_machine_share_its_memory(void **state)
{
    struct gangsplit_in in = world(1, 3, LAYERS);
    struct gangsplit s;
    (void)state;

    in.memories[0] = in.memories[1] = 0, in.memories[2] = 1;
    in.rooms[0] = 61 * MIB;
    s = choose(&in);
    assert_int_equal(s.layers[0] + s.layers[1], 6);
    assert_int_equal(s.layers[2], 6);
    in = world(2, 1, LAYERS);
    in.memories[1] = 0;
    in.rooms[0] = 130 * MIB;
    assert_true(gangsplit_even_fits(&in));
    in.rooms[0] = 119 * MIB;
    assert_false(gangsplit_even_fits(&in));
}

static void what_fits_nowhere_is_refused_with_numbers(void **state)
{
    struct gangsplit_in in = world(2, 1, LAYERS);
    struct gangsplit out;
    struct err e = { 0 };
    (void)state;

    in.each_bytes = 5 * MIB;
    in.rooms[0] = 70 * MIB, in.rooms[1] = 50 * MIB;
    assert_int_equal(gangsplit_choose(&out, &in, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "120 MiB"));
    assert_non_null(strstr(e.msg, "scratch of 5 MiB for each of 2 members"));
    assert_non_null(strstr(e.msg, "member 0: 70 MiB, member 1: 50 MiB"));
    assert_false(gangsplit_even_fits(&in));
    in.rooms[1] = 62 * MIB;
    assert_int_equal(gangsplit_choose(&out, &in, &e), OK);
    in.rooms[1] = 4 * MIB; /* not even scratch */
    in.rooms[0] = 900 * MIB;
    assert_int_equal(gangsplit_choose(&out, &in, &e), E_UNSUPPORTED);
    in = world(1, 2, LAYERS);
    in.memories[1] = 0;
    in.rooms[0] = 100 * MIB;
    assert_int_equal(gangsplit_choose(&out, &in, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "members 0 and 1: 100 MiB"));
}

/* Whatever the numbers: all layers, one for each stage at least, shares of about the whole, and nothing
 * beyond a memory. */
static void every_division_is_complete_and_fits(void **state)
{
    (void)state;

    for (unsigned seed = 1; seed < 400; seed++) {
        unsigned x = seed * 2654435761u;
        int tp = 1 + (int)(x >> 8) % 4, pp = 1 + (int)(x >> 12) % 4, sum = 0;
        struct gangsplit_in in = world(tp, pp, LAYERS - (int)(x >> 16) % 6);
        struct gangsplit s;

        in.each_bytes = MIB;
        for (int r = 0; r < tp * pp; r++) {
            x = x * 1664525u + 1013904223u;
            in.speeds[r] = 0.1 + (double)(x >> 20);
            in.rooms[r] = (20 + (x >> 10) % 400) * (uint64_t)MIB;
        }
        if (gangsplit_choose(&s, &in, NULL) != OK) continue;
        for (int p = 0; p < pp; p++) {
            int all = 0;
            assert_true(s.layers[p] >= 1);
            sum += s.layers[p];
            for (int r = 0; r < tp; r++) {
                double part = (double)s.shares[p * tp + r] / GANGSPLIT_WHOLE;
                assert_true(s.shares[p * tp + r] >= 1);
                all += s.shares[p * tp + r];
                assert_true(1 + part * 10 * s.layers[p] <=
                            (double)in.rooms[p * tp + r] / MIB + 0.2);
            }
            assert_true(all >= GANGSPLIT_WHOLE - tp && all <= GANGSPLIT_WHOLE + tp);
        }
        assert_int_equal(sum, in.n_layers);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_of_a_stage_share_by_speed),
        cmocka_unit_test(stages_have_layers_by_speed),
        cmocka_unit_test(the_head_counts_as_layers_of_the_last_stage),
        cmocka_unit_test(both_divisions_go_together),
        cmocka_unit_test(memory_bounds_the_fast),
        cmocka_unit_test(members_of_one_machine_share_its_memory),
        cmocka_unit_test(what_fits_nowhere_is_refused_with_numbers),
        cmocka_unit_test(every_division_is_complete_and_fits),
    };

    return cmocka_run_group_tests_name("gangsplit", tests, NULL, NULL);
}
