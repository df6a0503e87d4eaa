/* Decode steps of a pipeline are cut into pieces where that is faster, and stay whole where it is not. */
#include "support.h"

#include "model/pieces.h"

/* A stage that takes `fixed` for a piece, and `each` for each of its tokens. */
static uint64_t step_ns(int stages, int n, int piece, double fixed, double each)
{
    int n_pieces = (n + piece - 1) / piece;

    return (uint64_t)((n_pieces + stages - 1) * (fixed + each * piece));
}

/* Tokens of a piece after so many steps. */
static int run_steps(struct pieces *p, int n, int steps, double fixed, double each)
{
    for (int i = 0; i < steps; i++) {
        int piece = pieces_tokens(p, n);
        assert_true(piece >= 1 && piece <= n);
        pieces_note(p, n, piece, step_ns(p->stages, n, piece, fixed, each));
    }
    return pieces_tokens(p, n);
}

static void steps_that_read_weights_stay_whole(void **state)
{
    struct pieces p = { .stages = 2 };
    (void)state;

    assert_int_equal(run_steps(&p, 8, 50, 1000, 10), 8);
    assert_int_equal(run_steps(&p, 16, 50, 1000, 10), 16);
}

static void steps_that_compute_are_cut(void **state)
{
    struct pieces p = { .stages = 2 };
    (void)state;

    assert_int_equal(run_steps(&p, 8, 50, 0, 1000), 2); /* in four: 5 * 2 against 3 * 4 and 2 * 8 */
    assert_int_equal(run_steps(&p, 16, 50, 2000, 1000), 8); /* 3 * 10 against 5 * 6 and 2 * 18 */
    assert_int_equal(run_steps(&p, 33, 50, 0, 1000), 9);
    p = (struct pieces){ .stages = 3 };
    assert_int_equal(run_steps(&p, 24, 50, 0, 1000), 4);
}

static void one_sequence_cannot_profit(void **state)
{
    struct pieces p = { .stages = 2 };
    (void)state;

    for (int n = 1; n < 2 * PIECES_LEAST; n++) assert_int_equal(run_steps(&p, n, 20, 0, 1000), n);
    p.stages = 1;
    assert_int_equal(run_steps(&p, 64, 20, 0, 1000), 64);
}

/* A machine that changes is noticed: the other ways are tried again. */
static void another_way_is_tried_again(void **state)
{
    struct pieces p = { .stages = 2 };
    (void)state;

    assert_int_equal(run_steps(&p, 16, 100, 5000, 10), 16);
    assert_int_equal(run_steps(&p, 16, 40 * PIECES_AGAIN, 0, 1000), 4);
}

/* Of all steps of a run few are tried in a slower way. */
static void trials_are_few(void **state)
{
    struct pieces p = { .stages = 2 };
    int slow = 0, steps = 4 * PIECES_AGAIN;
    (void)state;

    for (int i = 0; i < steps; i++) {
        int piece = pieces_tokens(&p, 8);
        slow += piece != 8;
        pieces_note(&p, 8, piece, step_ns(2, 8, piece, 1000, 10));
    }
    assert_true(slow >= 4 && slow <= 2 * PIECES_TRIALS + 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_that_read_weights_stay_whole),
        cmocka_unit_test(steps_that_compute_are_cut),
        cmocka_unit_test(one_sequence_cannot_profit),
        cmocka_unit_test(another_way_is_tried_again),
        cmocka_unit_test(trials_are_few),
    };

    return cmocka_run_group_tests_name("pieces", tests, NULL, NULL);
}
