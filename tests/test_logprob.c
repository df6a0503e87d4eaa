/* Log-probabilities and the top tokens of a row of logits, against the definition in double and
 * a rank computed by counting.
 *
 * Logits are random or written by hand. Reads no files. */
#include "support.h"

#include "base/mem.h"
#include "base/rng.h"
#include "sample/logprob.h"

#include <math.h>
#include <stdlib.h>

/* The definition: log softmax in double. */
static double log_softmax(const float *x, int n, int id)
{
    double max = -INFINITY, sum = 0;

    for (int i = 0; i < n; i++)
        if ((double)x[i] > max) max = (double)x[i];
    for (int i = 0; i < n; i++)
        if (!isnan(x[i])) sum += exp((double)x[i] - max);
    return (double)x[id] - max - log(sum);
}

/* Whether a ranks before b: a larger logit, or an equal one and a smaller id. */
static int is_before(const float *x, int a, int b)
{
    return x[a] > x[b] || (x[a] == x[b] && a < b);
}

/* The rank of a token: how many tokens come before it. */
static int rank_of(const float *x, int n, int id)
{
    int rank = 0;

    for (int i = 0; i < n; i++)
        if (!isnan(x[i]) && is_before(x, i, id)) rank++;
    return rank;
}

static void check_logprob(const float *x, int n, int id, int n_top)
{
    struct top top[TOP_MAX + 1];

    top[n_top] = (struct top){ 77, 77 };
    assert_float_equal(logprob_of(x, n, id, top, n_top), log_softmax(x, n, id), 1e-4);
    for (int i = 0; i < n_top; i++) {
        if (i >= n) {
            assert_int_equal(top[i].id, -1);
            continue;
        }
        assert_int_equal(rank_of(x, n, top[i].id), i);
        assert_float_equal(top[i].logprob, log_softmax(x, n, top[i].id), 1e-4);
    }
    assert_int_equal(top[n_top].id, 77); /* nothing is written past n_top */
}

static void random_logits_match_the_definition(void **state)
{
    static const int sizes[] = { 1, 2, 5, 63, 64, 65, 100, 4096, 4097, 128256 };
    struct rng rng;

    (void)state;
    rng_seed(&rng, 1);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int n = sizes[k];
        float *x = mem_array((size_t)n, sizeof *x);
        for (int i = 0; i < n; i++) x[i] = (float)(rng_unit(&rng) * 24 - 16);
        for (int n_top = 0; n_top <= TOP_MAX; n_top += 5)
            check_logprob(x, n, (int)(rng_u64(&rng) % (uint64_t)n), n_top);
        mem_free(x);
    }
}

static void equal_logits_are_ordered_by_id(void **state)
{
    enum { N = 300 };
    float x[N];
    struct top top[TOP_MAX];

    (void)state;
    for (int i = 0; i < N; i++) x[i] = i % 3 == 0 ? 2 : 1;
    logprob_of(x, N, 0, top, TOP_MAX);
    for (int i = 0; i < TOP_MAX; i++) assert_int_equal(top[i].id, 3 * i);
    for (int i = 0; i < N; i++) x[i] = 5;
    assert_float_equal(logprob_of(x, N, 299, top, TOP_MAX), -log(N), 1e-5);
    for (int i = 0; i < TOP_MAX; i++) assert_int_equal(top[i].id, i);
}

static void rising_and_falling_logits_are_in_order(void **state)
{
    enum { N = 1000 };
    float x[N];

    (void)state;
    for (int i = 0; i < N; i++) x[i] = (float)i * 0.01f;
    check_logprob(x, N, 7, TOP_MAX);
    for (int i = 0; i < N; i++) x[i] = (float)-i * 0.01f;
    check_logprob(x, N, 7, TOP_MAX);
}

static void nan_has_no_probability(void **state)
{
    float x[] = { NAN, 1, -INFINITY, 2, NAN };
    struct top top[4];

    (void)state;
    assert_true(logprob_of(x, 5, 0, top, 4) == -INFINITY);
    assert_int_equal(top[0].id, 3);
    assert_int_equal(top[1].id, 1);
    assert_int_equal(top[2].id, -1);
    assert_int_equal(top[3].id, -1);
    assert_float_equal(logprob_of(x, 5, 3, NULL, 0), -log(1 + exp(-1)), 1e-5);
    assert_true(logprob_of(x, 5, 2, NULL, 0) == -INFINITY);

    float none[] = { NAN, NAN };
    assert_true(logprob_of(none, 2, 1, top, 2) == -INFINITY);
    assert_int_equal(top[0].id, -1);
}

static void an_infinite_logit_has_all_probability(void **state)
{
    float x[] = { 3, INFINITY, 100 };
    struct top top[2];

    (void)state;
    assert_true(logprob_of(x, 3, 1, top, 2) == 0);
    assert_int_equal(top[0].id, 1);
    assert_int_equal(top[1].id, 2);
    assert_true(top[1].logprob == -INFINITY);
}

static void an_id_outside_the_vocabulary_has_no_probability(void **state)
{
    float x[] = { 1, 2 };

    (void)state;
    assert_true(logprob_of(x, 2, -1, NULL, 0) == -INFINITY);
    assert_true(logprob_of(x, 2, 2, NULL, 0) == -INFINITY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_logits_match_the_definition),
        cmocka_unit_test(equal_logits_are_ordered_by_id),
        cmocka_unit_test(rising_and_falling_logits_are_in_order),
        cmocka_unit_test(nan_has_no_probability),
        cmocka_unit_test(an_infinite_logit_has_all_probability),
        cmocka_unit_test(an_id_outside_the_vocabulary_has_no_probability),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
