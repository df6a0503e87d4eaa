/* kernel/finite: the same answer as decoding every element, for every type and place. */
#include "support.h"

#include "base/mem.h"
#include "base/rng.h"
#include "kernel/finite.h"
#include "kernel/quant.h"

#include <math.h>
#include <string.h>

enum { MOST = 4 * 256 };

static bool decodes_finite(enum dtype t, const void *p, int64_t n)
{
    float x[MOST];

    quant_decode(t, p, x, n);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

/* F64 may be finite and too large for a float, and so may d q of Q8_K; MXFP4 scales count whole. */
static bool same_answer(enum dtype t, const void *p, int64_t n, bool got)
{
    double v;

    if (t == DT_F64) {
        bool all = true;
        for (int64_t i = 0; i < n; i++) {
            memcpy(&v, (const char *)p + i * 8, 8);
            all &= isfinite(v) != 0;
        }
        return got == all;
    }
    return got == decodes_finite(t, p, n) || (t == DT_MXFP4 && !got) || (t == DT_Q8_K && got) ||
           (dtype_head(t) == 4 && got); /* the scale of a row may be a large F32, too */
}

/* Any bits, at any alignment, with lengths that do not fill a word. */
static void random_bits_are_judged_as_decoding_does(void **state)
{
    struct rng r;
    int n_finite = 0, n_not = 0;

    (void)state;
    rng_seed(&r, 13);
    for (int t = 0; t < DT_COUNT; t++) {
        const struct dtype_info *d = dtype_info(t);
        if (!d || !quant_can_decode((enum dtype)t)) continue;
        for (int i = 0; i < 3000 / THIN; i++) {
            int64_t n = d->block * (1 + (int64_t)(rng_u64(&r) % (d->block > 1 ? 4 : 37)));
            size_t bytes = (size_t)(n / d->block) * (size_t)d->bytes +
                           (size_t)dtype_head((enum dtype)t),
                   skew = rng_u64(&r) % 8;
            if (d->block > 1) skew &= 4; /* of its fields, as in any file */
            char *room = mem_alloc(bytes + skew), *p = room + skew;
            bool got;
            for (size_t k = 0; k < bytes; k++)
                p[k] = (char)(i % 3 ? rng_u64(&r) & 0x3b : rng_u64(&r)); /* often finite */
            got = finite_all((enum dtype)t, p, n);
            if (!same_answer((enum dtype)t, p, n, got)) fail_msg("%s, case %d", d->name, i);
            if (got) n_finite++;
            else n_not++;
            mem_free(room);
        }
    }
    assert_true(n_finite > 100 && n_not > 100);
}

static void one_number_anywhere_is_found(void **state)
{
    static const float odd[] = { NAN, INFINITY, -INFINITY };
    float x[200];

    (void)state;
    for (int at = 0; at < 200; at++)
        for (size_t k = 0; k < sizeof odd / sizeof *odd; k++) {
            uint16_t h[200], b[200];
            for (int i = 0; i < 200; i++) x[i] = i % 2 ? 3.4e38f : -1e-40f;
            assert_true(finite_all(DT_F32, x, 200));
            x[at] = odd[k];
            assert_false(finite_all(DT_F32, x, 200));
            for (int i = 0; i < 200; i++) {
                h[i] = f32_to_f16(i == at ? odd[k] : 65504);
                b[i] = f32_to_bf16(i == at ? odd[k] : 3e38f);
            }
            assert_false(finite_all(DT_F16, h, 200));
            assert_false(finite_all(DT_BF16, b, 200));
            h[at] = b[at] = 0;
            assert_true(finite_all(DT_F16, h, 200));
            assert_true(finite_all(DT_BF16, b, 200));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_bits_are_judged_as_decoding_does),
        cmocka_unit_test(one_number_anywhere_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
