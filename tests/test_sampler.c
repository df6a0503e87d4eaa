/* The sampler on the host: filters, penalties, bias, seeds and sampling plans for devices.
 *
 * Sampled frequencies are compared with the exact distribution by a chi-square test; filters are
 * compared with sorting all tokens. Logits are random or written by hand. Reads no files. */
#include "support.h"

#include "base/mem.h"
#include "base/rng.h"
#include "sample/filter.h"
#include "sample/sampler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* No filters or penalties, temperature 1: sampling from the softmax. */
static struct sample_opt plain_options(void)
{
    return (
        struct sample_opt){ .temp = 1, .top_p = 1, .typical = 1, .repeat_penalty = 1, .seed = 42 };
}

static struct sampler *open_sampler(struct sample_opt o, int n_vocab)
{
    struct sampler *s = NULL;
    struct err e = { 0 };
    if (sampler_open(&s, &o, n_vocab, &e) != OK) fail_msg("%s", e.msg);
    return s;
}

static int32_t next_token(struct sampler *s, const float *x)
{
    struct err e = { 0 };
    int32_t id = -1;
    if (sampler_next(s, x, &id, &e) != OK) fail_msg("%s", e.msg);
    return id;
}

static void count_samples(struct sample_opt o, const float *x, int n_vocab, int n, int *counts)
{
    struct sampler *s = open_sampler(o, n_vocab);
    memset(counts, 0, (size_t)n_vocab * sizeof *counts);
    for (int i = 0; i < n; i++) {
        int32_t id = next_token(s, x);
        assert_in_range(id, 0, n_vocab - 1);
        counts[id]++;
    }
    sampler_close(s);
}

/* Sampled frequencies must match the weights (0: never sampled): a chi-square test with a wide
 * bound. */
static void assert_distribution(struct sample_opt o, const float *x, int n_vocab,
                                const double *weights)
{
    enum { N = 40000 };
    int *counts = mem_array((size_t)n_vocab, sizeof *counts), free_n = -1;
    double total = 0, chi = 0;

    for (int i = 0; i < n_vocab; i++) total += weights[i];
    count_samples(o, x, n_vocab, N, counts);
    for (int i = 0; i < n_vocab; i++) {
        double want = weights[i] / total * N;
        if (want == 0) {
            assert_int_equal(counts[i], 0);
            continue;
        }
        chi += (counts[i] - want) * (counts[i] - want) / want;
        free_n++;
    }
    if (chi > free_n + 4 * sqrt(2.0 * free_n) + 4)
        fail_msg("chi-square %g with %d degrees", chi, free_n);
    mem_free(counts);
}

static const float eight[8] = { 1.0f, 3.0f, -2.0f, 2.5f, 0.0f, 2.0f, -1.0f, 3.5f };

static void without_options_sampling_follows_the_softmax(void **state)
{
    double w[8];
    (void)state;
    for (int i = 0; i < 8; i++) w[i] = exp((double)eight[i]);
    assert_distribution(plain_options(), eight, 8, w);
}

static void temperature_flattens_and_sharpens(void **state)
{
    struct sample_opt o = plain_options();
    double w[8];
    (void)state;
    o.temp = 0.5f;
    for (int i = 0; i < 8; i++) w[i] = exp((double)eight[i] / 0.5);
    assert_distribution(o, eight, 8, w);
    o.temp = 2;
    for (int i = 0; i < 8; i++) w[i] = exp((double)eight[i] / 2);
    assert_distribution(o, eight, 8, w);
}

static void top_k_keeps_the_k_largest(void **state)
{
    struct sample_opt o = plain_options();
    double w[8] = { 0 };
    (void)state;
    o.top_k = 3;
    w[7] = exp(3.5), w[1] = exp(3.0), w[3] = exp(2.5);
    assert_distribution(o, eight, 8, w);
}

static void top_p_keeps_the_smallest_set_with_the_mass(void **state)
{
    static const float x[4] = { 0, 0, 0, 0 };
    float y[4];
    struct sample_opt o = plain_options();
    (void)state;
    /* probabilities 0.5, 0.3, 0.15 and 0.05, in another order */
    y[0] = logf(0.05f), y[1] = logf(0.5f), y[2] = logf(0.15f), y[3] = logf(0.3f);
    o.top_p = 0.7f;
    assert_distribution(o, y, 4, (double[]){ 0, 0.5, 0, 0.3 });
    o.top_p = 0.81f;
    assert_distribution(o, y, 4, (double[]){ 0, 0.5, 0.15, 0.3 });
    o.top_p = 1e-6f;
    assert_distribution(o, y, 4, (double[]){ 0, 1, 0, 0 });
    o.top_p = 0.5f; /* of equal logits the smaller ids are kept */
    assert_distribution(o, x, 4, (double[]){ 1, 1, 0, 0 });
}

static void min_p_is_relative_to_the_best(void **state)
{
    float y[4] = { logf(0.05f), logf(0.5f), logf(0.15f), logf(0.3f) };
    struct sample_opt o = plain_options();
    (void)state;
    o.min_p = 0.25f;
    assert_distribution(o, y, 4, (double[]){ 0, 0.5, 0.15, 0.3 });
    o.min_p = 0.5f;
    assert_distribution(o, y, 4, (double[]){ 0, 0.5, 0, 0.3 });
}

/* The entropy is 1.142 nats and the surprisals are 0.693, 1.204, 1.897 and 2.996: the nearest is
 * that of 0.3, then 0.5, then 0.15. */
static void typical_keeps_surprisals_near_the_entropy(void **state)
{
    float y[4] = { logf(0.05f), logf(0.5f), logf(0.15f), logf(0.3f) };
    struct sample_opt o = plain_options();
    (void)state;
    o.typical = 0.25f;
    assert_distribution(o, y, 4, (double[]){ 0, 0, 0, 1 });
    o.typical = 0.7f;
    assert_distribution(o, y, 4, (double[]){ 0, 0.5, 0, 0.3 });
    o.typical = 0.9f;
    assert_distribution(o, y, 4, (double[]){ 0, 0.5, 0.15, 0.3 });
}

/* The order is fixed: top-k first, so top-p sees renormalized probabilities; temperature is last. */
static void filters_apply_in_order(void **state)
{
    float y[4] = { logf(0.4f), logf(0.3f), logf(0.2f), logf(0.1f) };
    struct sample_opt o = plain_options();
    (void)state;
    o.top_k = 2;
    o.top_p = 0.5f; /* 0.4/0.7 is more than 0.5: one token is enough */
    assert_distribution(o, y, 4, (double[]){ 1, 0, 0, 0 });
    o.top_k = 0;
    assert_distribution(o, y, 4, (double[]){ 0.4, 0.3, 0, 0 });
    o.temp = 2; /* temperature is applied after the filters */
    assert_distribution(o, y, 4, (double[]){ sqrt(0.4), sqrt(0.3), 0, 0 });
}

static void the_filters_agree_with_sorting_everything(void **state)
{
    enum { N = 5000 };
    float *x = mem_array(N, sizeof *x), *bm = mem_array(N, sizeof *bm),
          *tmp = mem_array(N, sizeof *tmp);
    struct cand *c = mem_array(N, sizeof *c), *d = mem_array(N, sizeof *d);
    struct rng r;
    (void)state;
    rng_seed(&r, 7);
    for (int round = 0; round < 40; round++) {
        int n = 1 + (int)(rng_u64(&r) % N), k = 1 + (int)(rng_u64(&r) % (uint64_t)n), got, all;
        double sum = 0, want;
        float max;
        /* rounded, so that many are equal */
        for (int i = 0; i < n; i++) x[i] = roundf(rng_normal(&r) * 20) / 8;
        max = filter_max(x, n, bm);
        got = filter_gather(x, n, bm, tmp, k, max, c);
        assert_true(got >= k);
        assert_int_equal(filter_top_k(c, got, k), k);
        all = filter_above(x, n, bm, -FLT_MAX, max, d);
        assert_int_equal(all, n);
        for (int i = 0; i < k; i++) { /* fewer than k logits are better than any kept one */
            int before = 0;
            for (int j = 0; j < n; j++)
                before += x[j] > x[c[i].id] || (x[j] == x[c[i].id] && j < c[i].id);
            assert_true(before < k);
        }
        want = 0.6 * filter_sum(d, n);
        got = filter_top_mass(d, n, want);
        for (int i = 0; i < got; i++) sum += (double)d[i].p;
        assert_true(sum >= want * 0.999999);
        for (int i = got; i < n; i++) assert_true(d[i].key >= d[got - 1].key || got == n);
    }
    mem_free(x), mem_free(bm), mem_free(tmp), mem_free(c), mem_free(d);
}

static void the_exponential_is_good_to_float(void **state)
{
    (void)state;
    for (double x = -86.9; x <= 0; x += 0.0137) {
        double got = (double)filter_exp((float)x), want = exp((double)(float)x);
        assert_true(fabs(got - want) <= 3e-7 * want);
    }
    assert_true(filter_exp(0) == 1.0f);
    assert_true(filter_exp(-INFINITY) == 0 && filter_exp(-1000) == 0 && filter_exp(NAN) == 0);
}

static void exponentials_of_blocks_equal_single_ones(void **state)
{
    enum { N = 64 * 9 + 13 };
    static float x[N], w[N];
    struct rng rng;
    double sum = 0;

    (void)state;
    rng_seed(&rng, 3);
    for (int i = 0; i < N; i++) x[i] = -90 * (float)rng_unit(&rng);
    x[0] = 0, x[5] = NAN, x[64] = -INFINITY, x[70] = -87, x[N - 1] = -1e30f;
    assert_float_equal(filter_exp_all(x, N, 0, 0.5f, w), filter_exp_all(x, N, 0, 0.5f, NULL), 0);
    for (int i = 0; i < N; i++) {
        assert_true(w[i] == filter_exp(x[i] * 0.5f));
        sum += (double)w[i];
    }
    assert_float_equal(filter_exp_all(x, N, 0, 0.5f, NULL), sum, 1e-4);
}

static bool is_before(const struct cand *a, const struct cand *b)
{
    return a->key < b->key || (a->key == b->key && a->id < b->id);
}

/* The kept candidates are better than the others, have the mass, and do not have it without the
 * last. */
static void check_mass(struct cand *c, int n, double want)
{
    int kept = filter_top_mass(c, n, want);
    const struct cand *last = &c[0], *next = NULL;

    assert_in_range(kept, 1, n);
    for (int i = 1; i < kept; i++) last = is_before(last, &c[i]) ? &c[i] : last;
    for (int i = kept; i < n; i++) next = !next || is_before(&c[i], next) ? &c[i] : next;
    if (next) assert_true(is_before(last, next));
    assert_true(filter_sum(c, kept) >= want * (1 - 1e-12));
    assert_true(filter_sum(c, kept) - (double)last->p < want * (1 + 1e-12));
}

static void bucketed_selection_keeps_the_same_mass(void **state)
{
    enum { N = 30000 };
    struct cand *c = mem_array(N, sizeof *c);
    struct rng rng;

    (void)state;
    rng_seed(&rng, 11);
    for (int kind = 0; kind < 4; kind++)
        for (int k = 1; k < 20; k += 3) {
            for (int i = 0; i < N; i++) {
                float x = kind == 0 ? rng_normal(&rng) : kind == 1 ? 3 : (float)(rng_u64(&rng) % 5);
                if (kind == 3 && i == 77) x = -1e37f; /* one distant value makes the buckets wide */
                c[i] = (struct cand){
                    .key = -x, .d = x - 5, .p = filter_exp(x - 5), .id = (i * 7) % N
                };
            }
            check_mass(c, N, filter_sum(c, N) * k / 20);
        }
    mem_free(c);
}

static void a_lower_bound_on_logits_keeps_the_mass(void **state)
{
    enum { N = 20000 };
    float *x = mem_array(N, sizeof *x);
    struct rng rng;

    (void)state;
    rng_seed(&rng, 12);
    for (int kind = 0; kind < 3; kind++) {
        float max = -INFINITY;
        for (int i = 0; i < N; i++) {
            x[i] = (kind == 0 ? 0.01f : kind == 1 ? 1 : 6) * rng_normal(&rng);
            if (i % 100 == 3) x[i] = NAN;
            if (x[i] > max) max = x[i];
        }
        double total = filter_exp_all(x, N, max, 1, NULL);
        for (double share = 0.1; share < 1; share += 0.2) {
            float least = filter_bound(x, N, max, share * total);
            double mass = 0;
            for (int i = 0; i < N; i++)
                if (x[i] >= least) mass += (double)filter_exp(x[i] - max);
            assert_true(mass >= share * total);
        }
    }
    mem_free(x);
}

static void greedy_sampling_takes_the_largest_logit_and_the_first_of_equal_ones(void **state)
{
    float x[300];
    (void)state;
    for (int n = 1; n <= 300; n += 13)
        for (int at = 0; at < n; at += 7) {
            for (int i = 0; i < n; i++) x[i] = -1 - (float)(i % 5);
            x[at] = 2;
            if (at + 3 < n) x[at + 3] = 2;
            assert_int_equal(sample_greedy(x, n), at);
        }
    for (int i = 0; i < 300; i++) x[i] = 0;
    assert_int_equal(sample_greedy(x, 300), 0);
}

static void sampled_tokens_depend_only_on_the_seed_and_the_logits(void **state)
{
    enum { N = 1000 };
    float x[N];
    int32_t first[50];
    struct rng r;
    (void)state;
    rng_seed(&r, 3);
    for (int i = 0; i < N; i++) x[i] = rng_normal(&r) * 2;
    for (int round = 0; round < 3; round++) {
        struct sample_opt o = sample_defaults();
        struct sampler *s;
        int same = 0;
        o.seed = round < 2 ? 5 : 6;
        s = open_sampler(o, N);
        for (int i = 0; i < 50; i++) {
            int32_t id = next_token(s, x);
            if (round == 0) first[i] = id;
            same += id == first[i];
        }
        if (round < 2) assert_int_equal(same, 50);
        else assert_true(same < 45);
        sampler_close(s);
    }
}

static void nan_is_never_sampled_and_a_row_of_only_nan_is_an_error(void **state)
{
    float x[200];
    struct sample_opt opts[] = { plain_options(), sample_defaults(), plain_options(),
                                 plain_options() };
    (void)state;
    opts[2].temp = 0;
    opts[3].top_p = 0.9f;
    for (int k = 0; k < 4; k++) {
        struct sampler *s = open_sampler(opts[k], 200);
        struct err e = { 0 };
        int32_t id;
        for (int i = 0; i < 200; i++) x[i] = NAN;
        assert_int_equal(sampler_next(s, x, &id, &e), E_DAMAGED);
        assert_non_null(strstr(e.msg, "logit"));
        for (int i = 0; i < 200; i++) x[i] = -INFINITY;
        assert_int_equal(sampler_next(s, x, &id, &e), E_DAMAGED);
        x[0] = NAN, x[77] = -5, x[130] = NAN;
        for (int i = 0; i < 50; i++) assert_int_equal(next_token(s, x), 77);
        sampler_close(s);
    }
    for (int i = 0; i < 200; i++) x[i] = NAN;
    assert_int_equal(sample_greedy(x, 200), -1);
}

static void infinite_logits_are_equally_likely(void **state)
{
    float x[100];
    int counts[100];
    (void)state;
    for (int i = 0; i < 100; i++) x[i] = (float)i;
    x[3] = INFINITY, x[70] = INFINITY;
    for (int k = 0; k < 2; k++) {
        count_samples(k ? sample_defaults() : plain_options(), x, 100, 400, counts);
        assert_int_equal(counts[3] + counts[70], 400);
        assert_true(counts[3] > 120 && counts[70] > 120);
    }
}

static void extreme_options_still_sample(void **state)
{
    float equal[130] = { 0 }, one[1] = { -3 };
    int counts[130], used = 0;
    struct sample_opt o = plain_options();
    (void)state;
    o.top_k = 100000; /* larger than the vocabulary */
    count_samples(o, equal, 130, 5000, counts);
    for (int i = 0; i < 130; i++) used += counts[i] > 0;
    assert_int_equal(used, 130);
    o.top_k = 1; /* one token is left: the first of equal ones */
    count_samples(o, equal, 130, 20, counts);
    assert_int_equal(counts[0], 20);
    o.top_k = 0, o.top_p = 1e-30f, o.min_p = 0.999f, o.typical = 1e-30f;
    count_samples(o, equal, 130, 20, counts);
    assert_int_equal(counts[0], 20);
    count_samples(o, one, 1, 5, counts);
    o = plain_options();
    o.temp = 1e-40f; /* 1 / temp is infinite */
    equal[9] = 1;
    count_samples(o, equal, 130, 20, counts);
    assert_int_equal(counts[9], 20);
}

static void a_logit_bias_raises_and_bans_tokens(void **state)
{
    struct logit_bias bias[] = { { 2, 100 }, { 7, -INFINITY } };
    struct sample_opt o = plain_options();
    struct sampler *s;
    int counts[8];
    (void)state;
    o.bias = bias, o.n_bias = 2;
    o.temp = 0;
    s = open_sampler(o, 8);
    bias[0].bias = 0; /* the sampler has its own copy */
    for (int i = 0; i < 5; i++) assert_int_equal(next_token(s, eight), 2);
    sampler_close(s);
    o.temp = 1;
    count_samples(o, eight, 8, 2000, counts);
    assert_int_equal(counts[7], 0);
    assert_true(counts[1] > 0);
}

static void the_repetition_penalty_covers_only_its_window(void **state)
{
    static const float x[4] = { 1.0f, 0.9f, 0.8f, -0.5f };
    struct sample_opt o = plain_options();
    struct sampler *s;
    (void)state;
    o.temp = 0, o.repeat_penalty = 2, o.repeat_last = 2;
    s = open_sampler(o, 4);
    for (int i = 0; i < 9; i++)
        assert_int_equal(next_token(s, x), i % 3); /* 0, 1, 2, then 0 again */
    sampler_close(s);
    o.repeat_last = -1;
    s = open_sampler(o, 4);
    assert_int_equal(next_token(s, x), 0);
    assert_int_equal(next_token(s, x), 1);
    assert_int_equal(next_token(s, x), 2);
    assert_int_equal(next_token(s, x), 0); /* all are halved; repetitions do not count more */
    sampler_close(s);
    o.repeat_last = 0;
    s = open_sampler(o, 4);
    for (int i = 0; i < 5; i++) assert_int_equal(next_token(s, x), 0);
    sampler_close(s);
}

static void a_penalty_makes_negative_logits_smaller_too(void **state)
{
    static const float x[2] = { -1.0f, -1.5f };
    struct sample_opt o = plain_options();
    struct sampler *s;
    (void)state;
    o.temp = 0, o.repeat_penalty = 2, o.repeat_last = 8;
    s = open_sampler(o, 2);
    sampler_accept(s, 0);
    assert_int_equal(next_token(s, x), 1);
    sampler_close(s);
}

static void the_frequency_penalty_grows_with_repetitions_and_the_presence_penalty_does_not(
    void **state)
{
    static const float x[3] = { 1.0f, 0.45f, -5 };
    struct sample_opt o = plain_options();
    struct sampler *s;
    (void)state;
    o.temp = 0, o.repeat_last = 64, o.freq_penalty = 0.2f;
    s = open_sampler(o, 3);
    assert_int_equal(next_token(s, x), 0); /* 1.0 */
    assert_int_equal(next_token(s, x), 0); /* 0.8 */
    assert_int_equal(next_token(s, x), 0); /* 0.6 */
    assert_int_equal(next_token(s, x), 1); /* 0.4 < 0.45 */
    sampler_close(s);
    o.freq_penalty = 0, o.presence_penalty = 0.5f;
    s = open_sampler(o, 3);
    for (int i = 0; i < 4; i++) sampler_accept(s, 0);
    sampler_accept(s, 1);
    assert_int_equal(next_token(s, x), 0); /* 0.5 against -0.05 */
    sampler_close(s);
}

static void only_the_repetition_penalty_includes_the_prompt(void **state)
{
    static const float x[3] = { 1.0f, 0.9f, 0.85f };
    struct sample_opt o = plain_options();
    struct logit_adjust a[4];
    struct sampler *s;
    struct sample_row p;

    (void)state;
    o.temp = 0, o.repeat_last = 1, o.freq_penalty = 0.12f, o.presence_penalty = 0.01f;
    s = open_sampler(o, 3);
    for (int i = 0; i < 9; i++) sampler_accept_prompt(s, 0);
    assert_int_equal(sampler_plan(s, NULL, 0, &p, a, 4), 0);
    assert_int_equal(next_token(s, x), 0); /* the prompt has no effect */
    assert_int_equal(next_token(s, x), 1); /* 0.87 against 0.9 */
    assert_int_equal(next_token(s, x), 0); /* 0.87; these penalties have no window */
    assert_int_equal(next_token(s, x), 2); /* 0.75, 0.77, 0.85 */
    sampler_close(s);
    o.freq_penalty = o.presence_penalty = 0, o.repeat_penalty = 1.2f, o.repeat_last = -1;
    s = open_sampler(o, 3);
    sampler_accept_prompt(s, 0);
    assert_int_equal(sampler_plan(s, NULL, 0, &p, a, 4), 1);
    assert_int_equal(next_token(s, x), 1);
    sampler_close(s);
}

static void the_error_for_an_invalid_option_names_it(void **state)
{
    struct err e;
    struct sample_opt o;
    struct logit_bias bias = { 8, 1 };
    struct sampler *s = NULL;
    (void)state;
#define REFUSED(field, value)                                     \
    do {                                                          \
        o = sample_defaults();                                    \
        o.field = value;                                          \
        assert_int_equal(sample_check(&o, 8, &e), E_INVALID);     \
        assert_non_null(strstr(e.msg, #field));                   \
        assert_int_equal(sampler_open(&s, &o, 8, &e), E_INVALID); \
    } while (0)
    REFUSED(temp, -0.1f);
    REFUSED(temp, NAN);
    REFUSED(temp, 2.5f);
    REFUSED(top_k, -1);
    REFUSED(top_p, 0);
    REFUSED(top_p, 1.1f);
    REFUSED(min_p, 1);
    REFUSED(typical, 0);
    REFUSED(repeat_penalty, 0);
    REFUSED(repeat_last, -2);
    REFUSED(freq_penalty, 3);
    REFUSED(presence_penalty, NAN);
#undef REFUSED
    o = sample_defaults();
    o.bias = &bias, o.n_bias = 1;
    assert_int_equal(sample_check(&o, 8, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "token 8"));
    assert_int_equal(sample_check(&o, 9, &e), OK);
    assert_null(s);
    sampler_close(NULL);
}

static void equal_logits_are_sampled_evenly(void **state)
{
    enum { N = 40000 };
    float *x = mem_array(N, sizeof *x);
    struct sample_opt o = plain_options();
    struct sampler *s;
    double mean = 0;
    (void)state;
    o.top_p = 0.5f; /* the first half: of equal logits the smaller ids are kept */
    s = open_sampler(o, N);
    for (int i = 0; i < 200; i++) {
        int32_t id = next_token(s, x);
        assert_in_range(id, 0, N / 2);
        mean += id / 200.0;
    }
    assert_true(fabs(mean - N / 4.0) < N / 20.0);
    sampler_close(s);
    mem_free(x);
}

/* Executes a plan as a device does: adjusts the logits and samples with the random number p->u. */
static int32_t execute_plan(const struct sample_row *p, const struct logit_adjust *a,
                            const float *logits, int n)
{
    float *x = mem_dup(logits, (size_t)n * sizeof *x);
    struct sample_opt o = { .temp = p->temp,
                            .top_k = p->top_k,
                            .top_p = p->top_p,
                            .min_p = p->min_p,
                            .typical = 1,
                            .repeat_penalty = 1 };
    struct sampler *s;
    int32_t id = -1;
    struct err e;
    struct rng r;

    for (int i = 0; i < p->n_adjust; i++) {
        float *v = &x[a[i].id];
        for (int k = 0; k < i; k++) assert_int_not_equal(a[k].id, a[i].id);
        *v += a[i].add;
        *v = *v > 0 ? *v / a[i].repeat : *v * a[i].repeat;
        *v -= a[i].sub;
    }
    /* Search a seed whose first random number is close to p->u. */
    for (o.seed = 0;; o.seed++) {
        rng_seed(&r, o.seed);
        if (p->temp == 0 || fabs(rng_unit(&r) - p->u) < 2e-3) break;
    }
    s = open_sampler(o, n);
    if (sampler_next(s, x, &id, &e) != OK) id = -1;
    sampler_close(s);
    mem_free(x);
    return id;
}

static void a_device_plan_gives_the_same_token(void **state)
{
    enum { N = 300, STEPS = 200 };
    float x[N];
    struct logit_bias bias[] = { { 5, 2 }, { 7, -3 }, { 5, 1 }, { 200, 4 } };
    struct sample_opt o = sample_defaults();
    struct logit_adjust a[N];
    struct rng r;
    int same = 0;
    (void)state;
    rng_seed(&r, 3);
    o.repeat_penalty = 1.2f, o.freq_penalty = 0.3f, o.presence_penalty = 0.1f, o.repeat_last = 32;
    o.bias = bias, o.n_bias = 4, o.seed = 77;
    for (int greedy = 0; greedy < 2; greedy++) {
        if (greedy) o.temp = 0;
        struct sampler *host = open_sampler(o, N), *dev = open_sampler(o, N);
        for (int t = 0; t < 10; t++)
            sampler_accept_prompt(host, 11 * t), sampler_accept_prompt(dev, 11 * t);
        for (int t = 0; t < STEPS; t++) {
            struct sample_row p;
            struct err e;
            for (int i = 0; i < N; i++) x[i] = rng_normal(&r) * 2;
            int n = sampler_plan(dev, NULL, 0, &p, a, N);
            assert_true(n >= 3 && n <= 3 + 10 + t && n == p.n_adjust);
            int32_t id = next_token(host, x);
            same += execute_plan(&p, a, x, N) == id;
            assert_int_equal(sampler_accept_device(dev, id, &e), OK);
        }
        sampler_close(host), sampler_close(dev);
        if (greedy) assert_true(same >= STEPS + STEPS * 9 / 10);
    }
}

static void bans_override_adjustments_and_too_many_are_refused(void **state)
{
    static const float x[4] = { 4, 3, 2, 1 };
    struct sample_opt o = plain_options();
    struct logit_bias bias = { 0, 10 };
    const int32_t bans[] = { 0, 1, 99 }; /* 99 is outside the vocabulary */
    struct logit_adjust a[8];
    struct sampler *s;
    struct sample_row p;
    struct err e;
    (void)state;
    o.temp = 0, o.bias = &bias, o.n_bias = 1, o.presence_penalty = 1, o.repeat_last = 8;
    s = open_sampler(o, 4);
    sampler_accept(s, 1);
    assert_int_equal(sampler_plan(s, bans, 3, &p, a, 8), 2);
    assert_int_equal(execute_plan(&p, a, x, 4), 2);
    assert_int_equal(sampler_plan(s, bans, 3, &p, a, 1), -1);
    assert_int_equal(sampler_plan(s, bans, 0, &p, a, 0), -1);
    assert_int_equal(sampler_accept_device(s, -1, &e), E_DAMAGED);
    sampler_close(s);
    o.typical = 0.5f;
    s = open_sampler(o, 4);
    assert_int_equal(sampler_plan(s, NULL, 0, &p, a, 8), -1);
    sampler_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_options_sampling_follows_the_softmax),
        cmocka_unit_test(temperature_flattens_and_sharpens),
        cmocka_unit_test(top_k_keeps_the_k_largest),
        cmocka_unit_test(top_p_keeps_the_smallest_set_with_the_mass),
        cmocka_unit_test(min_p_is_relative_to_the_best),
        cmocka_unit_test(typical_keeps_surprisals_near_the_entropy),
        cmocka_unit_test(filters_apply_in_order),
        cmocka_unit_test(the_filters_agree_with_sorting_everything),
        cmocka_unit_test(the_exponential_is_good_to_float),
        cmocka_unit_test(exponentials_of_blocks_equal_single_ones),
        cmocka_unit_test(bucketed_selection_keeps_the_same_mass),
        cmocka_unit_test(a_lower_bound_on_logits_keeps_the_mass),
        cmocka_unit_test(greedy_sampling_takes_the_largest_logit_and_the_first_of_equal_ones),
        cmocka_unit_test(sampled_tokens_depend_only_on_the_seed_and_the_logits),
        cmocka_unit_test(nan_is_never_sampled_and_a_row_of_only_nan_is_an_error),
        cmocka_unit_test(infinite_logits_are_equally_likely),
        cmocka_unit_test(extreme_options_still_sample),
        cmocka_unit_test(a_logit_bias_raises_and_bans_tokens),
        cmocka_unit_test(the_repetition_penalty_covers_only_its_window),
        cmocka_unit_test(a_penalty_makes_negative_logits_smaller_too),
        cmocka_unit_test(only_the_repetition_penalty_includes_the_prompt),
        cmocka_unit_test(
            the_frequency_penalty_grows_with_repetitions_and_the_presence_penalty_does_not),
        cmocka_unit_test(the_error_for_an_invalid_option_names_it),
        cmocka_unit_test(equal_logits_are_sampled_evenly),
        cmocka_unit_test(a_device_plan_gives_the_same_token),
        cmocka_unit_test(bans_override_adjustments_and_too_many_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
