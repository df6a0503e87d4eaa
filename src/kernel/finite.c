/* finite.c - the test of exponents, several numbers at once, and of the scales of blocks.
 *
 * A float is NaN or infinite if all bits of its exponent are 1. With everything else masked out,
 * adding the lowest bit of the exponent then carries into the sign, and never into the neighbour:
 *
 *     F16   mask 0x7c00, add 0x0400:  0x7c00 + 0x0400 = 0x8000, anything less stays below it
 *
 * So a 64-bit word tests four F16 with two operations. Compilers make vectors of the loop. */
#include "kernel/finite.h"

#include "kernel/quantblocks.h"

#include <stddef.h>
#include <string.h>

/* The same bits in every number of a word. */
static uint64_t spread(uint64_t bits, int bytes)
{
    for (int n = bytes * 8; n < 64; n *= 2) bits |= bits << n;
    return bits;
}

/* `exponent` and its lowest bit, of numbers of `bytes` bytes; n bytes in all. */
static bool test_words(const char *p, size_t n, int bytes, uint64_t exponent, uint64_t lowest)
{
    uint64_t mask = spread(exponent, bytes), one = spread(lowest, bytes);
    uint64_t sign = spread(exponent + lowest, bytes), bad = 0, w;
    size_t i = 0;

    for (; i + 64 <= n; i += 64)
        for (size_t k = 0; k < 64; k += 8) {
            memcpy(&w, p + i + k, 8);
            bad |= (w & mask) + one;
        }
    for (; i < n; i += 8) {
        w = 0;
        memcpy(&w, p + i, n - i < 8 ? n - i : 8);
        bad |= (w & mask) + one;
    }
    return !(bad & sign);
}

/* Where a block has its F16 scales; -1: there is no second one. */
struct scales {
    int first, second;
};

#define AT(name, field) (int)offsetof(struct block_##name, field)
static const struct scales scales[DT_COUNT] = {
    [DT_Q4_0] = { AT(q4_0, d), -1 },
    [DT_Q4_1] = { AT(q4_1, d), AT(q4_1, m) },
    [DT_Q5_0] = { AT(q5_0, d), -1 },
    [DT_Q5_1] = { AT(q5_1, d), AT(q5_1, m) },
    [DT_Q8_0] = { AT(q8_0, d), -1 },
    [DT_Q8_1] = { AT(q8_1, d), -1 },
    [DT_Q2_K] = { AT(q2_k, d), AT(q2_k, dmin) },
    [DT_Q3_K] = { AT(q3_k, d), -1 },
    [DT_Q4_K] = { AT(q4_k, d), AT(q4_k, dmin) },
    [DT_Q5_K] = { AT(q5_k, d), AT(q5_k, dmin) },
    [DT_Q6_K] = { AT(q6_k, d), -1 },
    [DT_IQ2_XXS] = { AT(iq2_xxs, d), -1 },
    [DT_IQ2_XS] = { AT(iq2_xs, d), -1 },
    [DT_IQ2_S] = { AT(iq2_s, d), -1 },
    [DT_IQ3_XXS] = { AT(iq3_xxs, d), -1 },
    [DT_IQ3_S] = { AT(iq3_s, d), -1 },
    [DT_IQ1_S] = { AT(iq1_s, d), -1 },
    [DT_IQ4_NL] = { AT(iq4_nl, d), -1 },
    [DT_IQ4_XS] = { AT(iq4_xs, d), -1 },
    [DT_TQ1_0] = { AT(tq1_0, d), -1 },
    [DT_TQ2_0] = { AT(tq2_0, d), -1 },
    [DT_Q1_0] = { 0, -1 },
    [DT_Q2_0] = { 0, -1 },
    [DT_IQ4_K] = { 0, -1 },
};

static uint32_t half_at(const char *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return h;
}

static bool test_blocks(const char *p, int64_t n, int bytes, struct scales s)
{
    int second = s.second < 0 ? s.first : s.second;
    uint32_t bad = 0;

    for (int64_t i = 0; i < n; i++, p += bytes) {
        bad |= (half_at(p + s.first) & 0x7c00) + 0x0400;
        bad |= (half_at(p + second) & 0x7c00) + 0x0400;
    }
    return !(bad & 0x8000);
}

/* The formats whose scale is no F16 in one piece. */
static bool test_other(enum dtype t, const char *p, int64_t n, int bytes)
{
    bool good = true;

    for (int64_t i = 0; i < n; i++, p += bytes) {
        const uint8_t *b = (const uint8_t *)p;
        if (t == DT_MXFP4) {
            good &= finite_mx_scale(b[offsetof(struct block_mxfp4, e)]);
        } else if (t == DT_Q8_K) {
            good &= test_words(p + offsetof(struct block_q8_k, d), 4, 4, 0x7f800000u, 0x800000u);
        } else { /* IQ1_M: the exponent is spread over the top nibbles of four words */
            const uint8_t *w = b + offsetof(struct block_iq1_m, scales);
            uint32_t d = (uint32_t)(w[5] & 0xf0) << 4 | (uint32_t)(w[7] & 0xf0) << 8;
            good &= (d & 0x7c00) != 0x7c00;
        }
    }
    return good;
}

bool finite_all(enum dtype t, const void *p, int64_t n)
{
    const struct dtype_info *d = dtype_info((int)t);
    size_t bytes = d ? (size_t)(n / d->block) * (size_t)d->bytes : 0;

    switch (t) {
    case DT_F32: return test_words(p, bytes, 4, 0x7f800000u, 0x00800000u);
    case DT_F16: return test_words(p, bytes, 2, 0x7c00, 0x0400);
    case DT_BF16: return test_words(p, bytes, 2, 0x7f80, 0x0080);
    case DT_F64: return test_words(p, bytes, 8, 0x7ffull << 52, 1ull << 52);
    case DT_F8_E5M2: return test_words(p, bytes, 1, 0x7c, 0x04);
    case DT_F8_E4M3: return test_words(p, bytes, 1, 0x7f, 0x01); /* 0x7f is its only NaN */
    case DT_NVFP4: /* has no scale that is not finite */
    case DT_I2_S: return true;
    case DT_IQ4_KS:
    case DT_IQ5_KS: return test_words(p, 4, 4, 0x7f800000u, 0x00800000u);
    case DT_IQ3_KS:
    case DT_IQ2_KL: return test_words(p, 2, 2, 0x7c00, 0x0400);
    case DT_F8_E8M0: return n == 0 || !memchr(p, 0xff, (size_t)n);
    case DT_MXFP4:
    case DT_Q8_K:
    case DT_IQ1_M: return test_other(t, p, n / d->block, d->bytes);
    default: break;
    }
    return !d || !d->quantized || !d->bytes || test_blocks(p, n / d->block, d->bytes, scales[t]);
}
