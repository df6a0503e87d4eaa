/* Rotary frequencies and their scalings (linear, llama3, YaRN, LongRoPE, dynamic NTK) against
 * the formulas, computed by hand.
 *
 * Reads no files. */
#include "support.h"

#include "model/rotary.h"

#include <math.h>

static struct rope_hp make_rope(double theta, int n_rot)
{
    return (struct rope_hp){ .theta = theta,
                             .n_rot = n_rot,
                             .factor = 1,
                             .attn_factor = 1,
                             .max_ctx = 512,
                             .orig_ctx = 512,
                             .beta_fast = 32,
                             .beta_slow = 1,
                             .truncate = true };
}

static void close_to(float got, double want) { assert_true(fabs(got - want) <= 1e-6 * fabs(want)); }

static void frequencies_decrease_from_one_by_the_base(void **state)
{
    struct rope_hp r = make_rope(10000, 8);
    float f[4];
    (void)state;
    rotary_freq(&r, 1, f);
    close_to(f[0], 1);
    close_to(f[1], 0.1);
    close_to(f[2], 0.01);
    close_to(f[3], 0.001);
}

static void linear_scaling_divides_all_frequencies(void **state)
{
    struct rope_hp r = make_rope(10000, 8);
    float f[4];
    (void)state;
    r.scaling = ROPE_LINEAR;
    r.factor = 4;
    rotary_freq(&r, 1, f);
    close_to(f[0], 0.25);
    close_to(f[3], 0.00025);
}

static void llama3_scaling_keeps_high_frequencies_and_divides_low_ones(void **state)
{
    struct rope_hp r = make_rope(10000, 8);
    float f[4];
    (void)state;
    r.scaling = ROPE_LLAMA3;
    r.factor = 8;
    r.low_freq = 1;
    r.high_freq = 4;
    r.orig_ctx = 128;
    rotary_freq(&r, 1, f);
    close_to(f[0], 1);                           /* wavelength 6.3 is below 128 / 4 */
    double s = (128 / (2 * M_PI / 0.1) - 1) / 3; /* 62.8 lies between 32 and 128 */
    close_to(f[1], (1 - s) * 0.1 / 8 + s * 0.1);
    close_to(f[2], 0.01 / 8); /* 628 is above 128 */
}

static void yarn_ramps_between_integer_dimensions(void **state)
{
    struct rope_hp r = make_rope(10000, 16);
    float f[8];
    (void)state;
    r.scaling = ROPE_YARN;
    r.factor = 4;
    r.orig_ctx = 64;
    rotary_freq(&r, 1, f);
    /* dimensions: low = floor(16 ln(64 / 64π) / 2 ln 10000) -> 0, high = ceil(16 ln(64 / 2π) / 2 ln
     * 10000) = 3 */
    for (int i = 0; i < 8; i++) {
        double inv = pow(10000, -i / 8.0), t = i < 3 ? i / 3.0 : 1;
        close_to(f[i], inv / 4 * t + inv * (1 - t));
    }
    r.truncate = false;
    rotary_freq(&r, 1, f);
    double high = 16 * log(64 / (2 * M_PI)) / (2 * log(10000));
    double inv = pow(10000, -1 / 8.0), t = 1 / high;
    close_to(f[1], inv / 4 * t + inv * (1 - t));
}

static void yarn_uses_the_ratio_of_mscale_values_if_both_are_given(void **state)
{
    (void)state;
    close_to((float)rotary_yarn_factor(4, 0, 0), 0.1 * log(4) + 1);
    close_to((float)rotary_yarn_factor(4, 0.7, 0), 0.1 * log(4) + 1);
    close_to((float)rotary_yarn_factor(4, 2, 1), (0.2 * log(4) + 1) / (0.1 * log(4) + 1));
    close_to((float)rotary_yarn_factor(0.5, 0, 0), 1);
    close_to((float)rotary_long_factor(8, 64), sqrt(1 + log(8) / log(64)));
    close_to((float)rotary_long_factor(1, 64), 1);
}

static void longrope_uses_the_long_factors_beyond_the_original_context(void **state)
{
    static const float short_f[4] = { 1, 2, 4, 8 }, long_f[4] = { 2, 4, 8, 16 };
    struct rope_hp r = make_rope(10000, 8);
    float f[4];
    (void)state;
    r.scaling = ROPE_LONGROPE;
    r.orig_ctx = 64;
    r.short_factor = short_f;
    r.long_factor = long_f;
    assert_true(rotary_varies(&r));
    rotary_freq(&r, 64, f);
    close_to(f[1], 0.1 / 2);
    rotary_freq(&r, 65, f);
    close_to(f[1], 0.1 / 4);
    close_to(f[3], 0.001 / 16);
}

static void dynamic_scaling_increases_the_base_beyond_the_context(void **state)
{
    struct rope_hp r = make_rope(10000, 8);
    float f[4];
    (void)state;
    r.scaling = ROPE_DYNAMIC;
    r.factor = 2;
    r.max_ctx = 32;
    rotary_freq(&r, 32, f);
    close_to(f[1], 0.1);
    rotary_freq(&r, 48, f);
    double base = 10000 * pow(2 * 48 / 32.0 - 1, 8 / 6.0);
    close_to(f[1], pow(base, -0.25));
    close_to(f[0], 1);
}

static void divisors_from_a_file_are_applied(void **state)
{
    static const float d[4] = { 1, 1, 2, 8 };
    struct rope_hp r = make_rope(10000, 8);
    float f[4];
    (void)state;
    r.freq_factors = d;
    rotary_freq(&r, 1, f);
    close_to(f[2], 0.01 / 2);
    close_to(f[3], 0.001 / 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies_decrease_from_one_by_the_base),
        cmocka_unit_test(linear_scaling_divides_all_frequencies),
        cmocka_unit_test(llama3_scaling_keeps_high_frequencies_and_divides_low_ones),
        cmocka_unit_test(yarn_ramps_between_integer_dimensions),
        cmocka_unit_test(yarn_uses_the_ratio_of_mscale_values_if_both_are_given),
        cmocka_unit_test(longrope_uses_the_long_factors_beyond_the_original_context),
        cmocka_unit_test(dynamic_scaling_increases_the_base_beyond_the_context),
        cmocka_unit_test(divisors_from_a_file_are_applied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
