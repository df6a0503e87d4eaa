/* Block formats in plain C (kernel/quant): all 65536 halves, 8-bit floats, decoding and encoding
 * of every type against golden blocks (quant_golden.h), and bounds on the loss of encoding.
 *
 * Halves are compared with their definition. Reads no files. */
#include "kernel/quant.h"

#include "base/mem.h"
#include "base/rng.h"
#include "kernel/quantblocks.h"
#include "kernel/iq_grid.h"
#include "quant_golden.h"
#include "support.h"

#include <stdio.h>
#include <stdlib.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

static uint64_t fnv1a(const void *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ ((const uint8_t *)p)[i]) * 0x100000001b3u;
    return h;
}

static bool same_bits(float a, float b) { return memcmp(&a, &b, 4) == 0; }

static double decode_half(int h)
{
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}

static void every_f16_has_its_value(void **state)
{
    (void)state;
    for (int h = 0; h < 65536; h++) {
        float got = f16_to_f32((uint16_t)h);
        double want = decode_half(h);
        if (isnan(want)) assert_true(isnan(got));
        else if (!same_bits(got, (float)want)) fail_msg("%04x is %a, expected %a", h, got, want);
    }
}

static void every_f16_survives_decoding_and_encoding(void **state)
{
    (void)state;
    for (int h = 0; h < 65536; h++) {
        uint16_t back = f32_to_f16(f16_to_f32((uint16_t)h));
        if (isnan(decode_half(h))) assert_true((back & 0x7c00) == 0x7c00 && (back & 0x3ff));
        else assert_int_equal(back, h);
    }
}

/* Between any two neighbouring halves, the middle rounds to the even one and every other number
 * to the nearer one. */
static void floats_round_to_the_nearest_f16(void **state)
{
    (void)state;
    for (int h = 0; h < 0x7c00; h++) {
        double a = decode_half(h), b = h == 0x7bff ? 65536 : decode_half(h + 1);
        float middle = (float)((a + b) / 2);
        assert_int_equal(f32_to_f16(middle), h & 1 ? h + 1 : h);
        assert_int_equal(f32_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(f32_to_f16(-middle), 0x8000 | (h & 1 ? h + 1 : h));
    }
    assert_int_equal(f32_to_f16(3e38f), 0x7c00);
    assert_int_equal(f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(f32_to_f16(1e-45f), 0);
}

static void every_bf16_survives_and_floats_round_to_nearest(void **state)
{
    (void)state;
    for (int h = 0; h < 65536; h++) {
        float v = bf16_to_f32((uint16_t)h);
        if (isnan(v)) assert_true(isnan(bf16_to_f32(f32_to_bf16(v))));
        else assert_int_equal(f32_to_bf16(v), h);
    }
    for (int h = 0; h < 0x7f7f; h++) {
        uint32_t u = (uint32_t)h << 16 | 0x8000;
        float middle;
        memcpy(&middle, &u, 4);
        assert_int_equal(f32_to_bf16(middle), h & 1 ? h + 1 : h);
        assert_int_equal(f32_to_bf16(nextafterf(middle, 0)), h);
        assert_int_equal(f32_to_bf16(nextafterf(middle, INFINITY)), h + 1);
    }
}

static void arrays_of_halves_are_converted_like_single_halves(void **state)
{
    (void)state;
    enum { N = 65536 };
    uint16_t *h = mem_array(N + 1, 2), *back = mem_array(N, 2);
    float *y = mem_array(N, 4);
    for (int i = 0; i < N; i++) h[i] = (uint16_t)i;
    quant_decode(DT_F16, h, y, N);
    quant_encode(DT_F16, y, back, N);
    for (int i = 0; i < N; i++) {
        if (isnan(y[i])) continue;
        assert_true(same_bits(y[i], f16_to_f32(h[i])));
        assert_int_equal(back[i], i);
    }
    char *odd = (char *)h + 1; /* data in a file may be unaligned */
    uint16_t one = 0x3c00;
    memcpy(odd, &one, 2);
    quant_decode(DT_F16, odd, y, 1);
    assert_true(y[0] == 1.0f);
    mem_free(h);
    mem_free(back);
    mem_free(y);
}

static void eight_bit_floats_have_their_values(void **state)
{
    (void)state;
    uint8_t e4m3[] = { 0x00, 0x01, 0x08, 0x38, 0x40, 0x7e, 0xfe, 0xb8, 0x7f };
    uint8_t e5m2[] = { 0x00, 0x01, 0x3c, 0x7b, 0xbc, 0x7c, 0x7e };
    float y[9];
    quant_decode(DT_F8_E4M3, e4m3, y, 9);
    float want4[] = { 0, 0x1p-9f, 0x1p-6f, 1, 2, 448, -448, -1 };
    assert_memory_equal(y, want4, sizeof want4);
    assert_true(isnan(y[8]));
    quant_decode(DT_F8_E5M2, e5m2, y, 7);
    float want5[] = { 0, 0x1p-16f, 1, 57344, -1, INFINITY };
    assert_memory_equal(y, want5, sizeof want5);
    assert_true(isnan(y[6]));
}

/* Compared with the nearest of all 256 values, found by trying each. */
static void f8_rounds_to_nearest_and_saturates(void **state)
{
    (void)state;
    uint8_t all[256], b;
    float y[256], odd[] = { INFINITY, -INFINITY, 1e30f, -449, 448, 464, NAN }, back;
    struct rng r;

    for (int i = 0; i < 256; i++) all[i] = (uint8_t)i;
    quant_decode(DT_F8_E4M3, all, y, 256);
    for (int i = 0; i < 256; i++) { /* each value encodes to itself */
        quant_encode(DT_F8_E4M3, &y[i], &b, 1);
        assert_int_equal(b & 0x7f, i & 0x7f);
        if (!isnan(y[i])) assert_int_equal(b, i);
    }
    for (int i = 0; i < 126; i++) { /* halfway: the even one */
        float mid = (y[i] + y[i + 1]) / 2, up = nextafterf(mid, 1e9f),
              down = nextafterf(mid, -1e9f);
        assert_int_equal(f32_to_f8_e4m3(mid), i % 2 ? i + 1 : i);
        assert_int_equal(f32_to_f8_e4m3(up), i + 1);
        assert_int_equal(f32_to_f8_e4m3(down), i);
    }
    rng_seed(&r, 5);
    for (int i = 0; i < 20000; i++) {
        float x = rng_normal(&r) * ldexpf(1, i % 24 - 14), best = INFINITY;
        for (int k = 0; k < 256; k++)
            if (!isnan(y[k]) && fabsf(y[k] - x) < best) best = fabsf(y[k] - x);
        quant_encode(DT_F8_E4M3, &x, &b, 1);
        assert_true(fabsf(y[b] - x) == best);
    }
    for (size_t i = 0; i < COUNT(odd); i++) {
        quant_encode(DT_F8_E4M3, &odd[i], &b, 1);
        quant_decode(DT_F8_E4M3, &b, &back, 1);
        assert_true(isnan(odd[i]) ? isnan(back) : back == (odd[i] > 0 ? 448 : -448));
    }
}

static void float_types_decode_exactly(void **state)
{
    (void)state;
    double d[] = { 1.5, -2e10, 0.1 };
    int8_t i[] = { -128, 0, 127 };
    uint8_t u[] = { 0, 1, 255 };
    float y[3];
    quant_decode(DT_F64, d, y, 3);
    assert_true(y[0] == 1.5f && y[1] == -2e10f && y[2] == 0.1f);
    quant_decode(DT_I8, i, y, 3);
    assert_true(y[0] == -128 && y[1] == 0 && y[2] == 127);
    quant_decode(DT_U8, u, y, 3);
    assert_true(y[2] == 255);
    quant_decode(DT_BOOL, u, y, 3);
    assert_true(y[0] == 0 && y[1] == 1 && y[2] == 1);
}

static void blocks_decode_to_the_golden_values(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT(golden_blocks); k++) {
        const struct golden_block *g = &golden_blocks[k];
        const struct dtype_info *d = dtype_info(g->type);
        uint8_t block[512];
        float y[QK_K];
        int bytes = d->bytes + dtype_head(g->type);
        assert_int_equal(strlen(g->hex), 2 * bytes);
        for (int i = 0; i < bytes; i++) {
            unsigned byte;
            assert_int_equal(sscanf(g->hex + 2 * i, "%2x", &byte), 1);
            block[i] = (uint8_t)byte;
        }
        quant_decode(g->type, block, y, d->block);
        for (int i = 0; i < 6; i++)
            if (!same_bits(y[(i * 37 + 5) % d->block], g->at[i]))
                fail_msg("%s: element %d is %.9g, expected %.9g", d->name, (i * 37 + 5) % d->block,
                         y[(i * 37 + 5) % d->block], g->at[i]);
        if (fnv1a(y, (size_t)d->block * 4) != g->hash)
            fail_msg("%s: the hash of the decoded values differs from the golden one", d->name);
    }
}

static void every_block_type_has_a_golden_block(void **state)
{
    (void)state;
    for (int t = 0; t < DT_COUNT; t++) {
        const struct dtype_info *d = dtype_info(t);
        /* GROUPED has no blocks, I2_S no scale in them: test_group, test_hfquant */
        if (!d || !d->quantized || !d->bytes || t == DT_I2_S) continue;
        bool found = false;
        for (size_t k = 0; k < COUNT(golden_blocks); k++)
            found |= golden_blocks[k].type == (enum dtype)t;
        if (!found) fail_msg("%s has no golden block", d->name);
        assert_true(quant_can_decode((enum dtype)t));
    }
    assert_false(quant_can_decode(DT_I32));
    assert_false(quant_can_decode(DT_NONE));
    assert_false(quant_can_encode(DT_IQ2_XXS));
}

static void simple_types_encode_to_the_golden_bytes(void **state)
{
    (void)state;
    enum { N = 4096 };
    static float x[N];
    static uint8_t out[N * 2];
    struct rng r;
    rng_seed(&r, 11);
    for (int i = 0; i < N; i++) x[i] = (float)((int)(rng_u64(&r) % 20001) - 10000) / 4096.0f;
    for (size_t k = 0; k < COUNT(golden_encodings); k++) {
        const struct dtype_info *d = dtype_info(golden_encodings[k].type);
        quant_encode(golden_encodings[k].type, x, out, N);
        if (fnv1a(out, (size_t)(N / d->block * d->bytes)) != golden_encodings[k].hash)
            fail_msg("%s: the encoded bytes differ from the golden ones", d->name);
    }
}

/* Root mean square of the encoding error, relative to the values. */
static double encoding_loss(enum dtype t, const float *x, int n)
{
    uint64_t bytes = 0;
    assert_true(dtype_row_bytes(t, (uint64_t)n, &bytes));
    void *blocks = mem_alloc(bytes);
    float *y = mem_array((size_t)n, 4);
    double lost = 0, all = 0;
    quant_encode(t, x, blocks, n);
    quant_decode(t, blocks, y, n);
    for (int i = 0; i < n; i++) {
        assert_true(isfinite(y[i]));
        lost += ((double)y[i] - x[i]) * ((double)y[i] - x[i]);
        all += (double)x[i] * x[i];
    }
    mem_free(blocks);
    mem_free(y);
    return all > 0 ? sqrt(lost / all) : sqrt(lost);
}

static void the_loss_of_encoding_stays_within_bounds(void **state)
{
    (void)state;
    static const struct {
        enum dtype type;
        double most;
    } bounds[] = {
        { DT_F32, 0 },         { DT_F16, 0.0003 },  { DT_BF16, 0.002 },  { DT_Q8_0, 0.0055 },
        { DT_Q8_1, 0.0055 },   { DT_Q8_K, 0.0072 }, { DT_Q6_K, 0.0185 }, { DT_Q5_K, 0.0375 },
        { DT_Q4_K, 0.075 },    { DT_Q3_K, 0.155 },  { DT_Q2_K, 0.29 },   { DT_Q5_1, 0.040 },
        { DT_Q5_0, 0.045 },    { DT_Q4_1, 0.081 },  { DT_Q4_0, 0.089 },  { DT_IQ4_NL, 0.080 },
        { DT_IQ4_XS, 0.080 },  { DT_MXFP4, 0.120 }, { DT_TQ1_0, 0.85 },  { DT_TQ2_0, 0.85 },
        { DT_F8_E4M3, 0.034 },
    };
    enum { N = 32768 };
    static float x[N];
    struct rng r;
    rng_seed(&r, 3);
    for (int i = 0; i < N; i++) x[i] = 0.02f * rng_normal(&r);
    int n_encodable = 0;
    for (int t = 0; t < DT_COUNT; t++) n_encodable += quant_can_encode((enum dtype)t);
    assert_int_equal(n_encodable, COUNT(bounds));
    for (size_t k = 0; k < COUNT(bounds); k++) {
        double lost = encoding_loss(bounds[k].type, x, N);
        if (lost > bounds[k].most)
            fail_msg("%s: loss %.4f, allowed %.4f", dtype_name(bounds[k].type), lost,
                     bounds[k].most);
    }
}

static void ternary_weights_are_encoded_without_loss_by_ternary_types(void **state)
{
    (void)state;
    float x[QK_K];
    struct rng r;
    rng_seed(&r, 5);
    for (int i = 0; i < QK_K; i++) x[i] = 0.5f * (float)((int)(rng_u64(&r) % 3) - 1);
    assert_true(encoding_loss(DT_TQ1_0, x, QK_K) == 0);
    assert_true(encoding_loss(DT_TQ2_0, x, QK_K) == 0);
}

static void for_each_encodable(void (*check)(enum dtype t))
{
    for (int t = 0; t < DT_COUNT; t++)
        if (quant_can_encode((enum dtype)t) && dtype_info(t)->quantized) check((enum dtype)t);
}

static void check_zeros(enum dtype t)
{
    static const float zeros[QK_K];
    assert_true(encoding_loss(t, zeros, QK_K) == 0);
}

static void zeros_are_encoded_as_zeros(void **state)
{
    (void)state;
    for_each_encodable(check_zeros);
}

static void check_not_finite(enum dtype t)
{
    float x[QK_K], y[QK_K];
    uint8_t with[512 * 8], without[512 * 8];
    for (int i = 0; i < QK_K; i++) x[i] = (float)(i % 13 - 6) * 0.1f;
    x[17] = x[40] = x[200] = 0;
    quant_encode(t, x, without, QK_K);
    x[17] = NAN;
    x[40] = INFINITY;
    x[200] = -INFINITY;
    quant_encode(t, x, with, QK_K);
    quant_decode(t, with, x, QK_K);
    quant_decode(t, without, y, QK_K);
    assert_memory_equal(x, y, sizeof x);
}

static void nan_and_infinity_are_encoded_as_zero(void **state)
{
    (void)state;
    for_each_encodable(check_not_finite);
}

static void check_extremes(enum dtype t)
{
    static const float sizes[] = { 1e-45f, 1e-38f, 1e-30f, 1e-8f, 1e8f, 1e20f, 3.4e38f };
    for (size_t k = 0; k < COUNT(sizes); k++) {
        float x[QK_K];
        for (int i = 0; i < QK_K; i++) x[i] = sizes[k] * (float)(i % 7 - 3) / 3.0f;
        encoding_loss(t, x, QK_K); /* finite results without undefined behaviour */
        for (int i = 0; i < QK_K; i++) x[i] = i % 64 == 3 ? sizes[k] : 0;
        encoding_loss(t, x, QK_K);
    }
}

static void magnitudes_out_of_range_give_finite_values(void **state)
{
    (void)state;
    for_each_encodable(check_extremes);
}

static void check_constant(enum dtype t)
{
    float x[QK_K];
    for (int sign = -1; sign <= 1; sign += 2) {
        for (int i = 0; i < QK_K; i++) x[i] = (float)sign * 0.25f;
        double lost = encoding_loss(t, x, QK_K);
        if (lost > 0.13) fail_msg("%s: relative loss %g of a constant block", dtype_name(t), lost);
    }
}

static void constant_blocks_are_encoded_closely(void **state)
{
    (void)state;
    for_each_encodable(check_constant);
}

static void lattices_have_distinct_points_in_order(void **state)
{
    (void)state;
    const struct iq_grid *g = iq_grid();
    for (int i = 1; i < 2048; i++)
        for (int j = 7; j >= 0; j--) {
            if (g->iq1[i][j] == g->iq1[i - 1][j]) continue;
            assert_true(g->iq1[i][j] > g->iq1[i - 1][j]);
            break;
        }
    for (int i = 0; i < 256; i++)
        for (int j = 0; j < 4; j++) assert_true(g->iq3_xxs[i][j] >= 4 && g->iq3_xxs[i][j] <= 62);
    for (int i = 0; i < 128; i++) assert_int_equal(__builtin_popcount(g->signs[i]) % 2, 0);
    assert_ptr_equal(g, iq_grid());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_f16_has_its_value),
        cmocka_unit_test(every_f16_survives_decoding_and_encoding),
        cmocka_unit_test(floats_round_to_the_nearest_f16),
        cmocka_unit_test(every_bf16_survives_and_floats_round_to_nearest),
        cmocka_unit_test(arrays_of_halves_are_converted_like_single_halves),
        cmocka_unit_test(eight_bit_floats_have_their_values),
        cmocka_unit_test(f8_rounds_to_nearest_and_saturates),
        cmocka_unit_test(float_types_decode_exactly),
        cmocka_unit_test(blocks_decode_to_the_golden_values),
        cmocka_unit_test(every_block_type_has_a_golden_block),
        cmocka_unit_test(simple_types_encode_to_the_golden_bytes),
        cmocka_unit_test(the_loss_of_encoding_stays_within_bounds),
        cmocka_unit_test(ternary_weights_are_encoded_without_loss_by_ternary_types),
        cmocka_unit_test(zeros_are_encoded_as_zeros),
        cmocka_unit_test(nan_and_infinity_are_encoded_as_zero),
        cmocka_unit_test(magnitudes_out_of_range_give_finite_values),
        cmocka_unit_test(constant_blocks_are_encoded_closely),
        cmocka_unit_test(lattices_have_distinct_points_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
