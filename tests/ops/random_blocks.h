/* random_blocks.h - random bytes that are valid weights in every dtype.
 *
 * Any bit pattern is a valid quant, but the F16 scales of a block must be small finite numbers,
 * or all results would be NaN or infinite. */
#ifndef TERN_TESTS_OPS_RANDOM_BLOCKS_H
#define TERN_TESTS_OPS_RANDOM_BLOCKS_H

#include "base/rng.h"
#include "kernel/quantblocks.h"
#include "kernel/quant.h"

#include <stddef.h>
#include <string.h>

#define OFF(name, field) (int)offsetof(struct block_##name, field)

/* Byte offsets of the F16 fields in a block of each type: d the scale, more the minimum; -1: no
 * such field. All other bytes of a block may have any value. */
static const struct {
    enum dtype type;
    int d, more;
} halves[] = {
    { DT_Q4_0, OFF(q4_0, d), -1 },
    { DT_Q4_1, OFF(q4_1, d), OFF(q4_1, m) },
    { DT_Q5_0, OFF(q5_0, d), -1 },
    { DT_Q5_1, OFF(q5_1, d), OFF(q5_1, m) },
    { DT_Q8_0, OFF(q8_0, d), -1 },
    { DT_Q2_K, OFF(q2_k, d), OFF(q2_k, dmin) },
    { DT_Q3_K, OFF(q3_k, d), -1 },
    { DT_Q4_K, OFF(q4_k, d), OFF(q4_k, dmin) },
    { DT_Q5_K, OFF(q5_k, d), OFF(q5_k, dmin) },
    { DT_Q6_K, OFF(q6_k, d), -1 },
    { DT_IQ2_XXS, OFF(iq2_xxs, d), -1 },
    { DT_IQ2_XS, OFF(iq2_xs, d), -1 },
    { DT_IQ2_S, OFF(iq2_s, d), -1 },
    { DT_IQ3_XXS, OFF(iq3_xxs, d), -1 },
    { DT_IQ3_S, OFF(iq3_s, d), -1 },
    { DT_IQ1_S, OFF(iq1_s, d), -1 },
    { DT_IQ4_NL, OFF(iq4_nl, d), -1 },
    { DT_IQ4_XS, OFF(iq4_xs, d), -1 },
    { DT_TQ1_0, OFF(tq1_0, d), -1 },
    { DT_TQ2_0, OFF(tq2_0, d), -1 },
    { DT_IQ1_M, -1, -1 },
    { DT_MXFP4, -1, -1 },
    { DT_F32, -1, -1 },
    { DT_F16, -1, -1 },
    { DT_BF16, -1, -1 },
};
enum { N_TYPES = sizeof halves / sizeof *halves };

static void write_f16(char *p, float f)
{
    uint16_t h = f32_to_f16(f);
    memcpy(p, &h, 2);
}

/* Fills n bytes at p, a whole number of blocks of the quantized type halves[which].type. */
static void fill_random_blocks(int which, char *p, size_t n, struct rng *r)
{
    enum dtype t = halves[which].type;
    size_t step = (size_t)dtype_info((int)t)->bytes;

    for (size_t i = 0; i < n; i++) p[i] = (char)rng_u64(r);
    for (char *b = p; b < p + n; b += step) {
        if (halves[which].d >= 0) write_f16(b + halves[which].d, 0.003f * (1 + (float)rng_unit(r)));
        if (halves[which].more >= 0) write_f16(b + halves[which].more, 0.002f * rng_normal(r));
        if (t == DT_MXFP4) *b = (char)(118 + rng_u64(r) % 8);
        if (t == DT_IQ1_M) b[55] = (char)((b[55] & 15) | 0x20); /* exponent of the scale */
    }
}
#endif
