/* Costs of steps: what the sizes of chunks beside decodes are chosen by. */
#include "engine/cost.h"
#include "support.h"

#define MS 1e6

static void pure_steps_are_averaged_by_size(void **state)
{
    struct cost c = { 0 };

    (void)state;
    cost_learn(&c, 1, 0, 4 * MS);
    cost_learn(&c, 64, 0, 10 * MS);
    assert_float_equal(cost_of(&c, 1).step_ns, 4 * MS, 1);
    assert_float_equal(cost_of(&c, 64).step_ns, 10 * MS, 1);
    assert_float_equal(cost_of(&c, 40).step_ns, 10 * MS, 1); /* 33 to 64 */
    cost_learn(&c, 64, 0, 20 * MS);
    assert_float_equal(cost_of(&c, 64).step_ns, 12 * MS, 1);
}

static void a_size_is_learned_while_prompts_wait(void **state)
{
    struct cost c = { 0 };

    (void)state;
    cost_learn(&c, 1, 0, 4 * MS);
    cost_learn(&c, 0, 1000, 29 * MS); /* 25 us a token */
    cost_learn(&c, 200, 400, 24 * MS);
    assert_float_equal(cost_of(&c, 200).step_ns, 14 * MS, 1);
    assert_float_equal(cost_of(&c, 200).prefill_ns, 0.025 * MS, 1);
    cost_learn(&c, 200, 0, 9 * MS); /* a pure step counts as ever */
    assert_float_equal(cost_of(&c, 200).step_ns, 13 * MS, 1);
}

static void more_decodes_take_no_less_time(void **state)
{
    struct cost c = { 0 };

    (void)state;
    cost_learn(&c, 8, 0, 6 * MS);
    cost_learn(&c, 0, 1000, 56 * MS);
    cost_learn(&c, 100, 1000, 40 * MS); /* faster than its prefill alone was: nothing to go by */
    assert_float_equal(cost_of(&c, 100).step_ns, 6 * MS, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pure_steps_are_averaged_by_size),
        cmocka_unit_test(a_size_is_learned_while_prompts_wait),
        cmocka_unit_test(more_decodes_take_no_less_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
