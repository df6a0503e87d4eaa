/* quant.h - conversion between float and every data type of base/dtype.h, in plain C.
 *
 * This is tern's definition of the formats: the kernels of kernel/cpu and kernel/cuda and the
 * faster encoders of src/quant are tested against it. Layouts are in kernel/quantblocks.h. The
 * results are the same bits on every machine: no fused multiply-add, no reordered sums. No function
 * allocates; all may be called from any thread. */
#ifndef TERN_KERNEL_QUANT_H
#define TERN_KERNEL_QUANT_H

#include "base/dtype.h"

/* Decodes n elements, a multiple of the block size; of types with a head (dtype_head) from the
 * start of a row. All types except integers wider than 8 bits; t must satisfy quant_can_decode.
 * src needs no alignment; blocks need that of their fields. */
void quant_decode(enum dtype t, const void *src, float *dst, int64_t n);
bool quant_can_decode(enum dtype t);

/* Encodes n floats, a multiple of the block size. NaN and Inf become 0 in quantized types; in
 * F8_E4M3 Inf becomes the largest value, 448. t must satisfy quant_can_encode. */
void quant_encode(enum dtype t, const float *src, void *dst, int64_t n);
bool quant_can_encode(enum dtype t);

struct grouped;
/* Columns [first, first + n) of a row of any type; both are multiples of the block size. g: the
 * layout of DT_GROUPED, NULL for all other types. */
void quant_decode_part(enum dtype t, const struct grouped *g, const void *row, int64_t first,
                       int64_t n, float *dst);
/* Decodes columns of DT_GROUPED; any column may be the first. */
void grouped_decode(const struct grouped *g, const void *row, int first, int n, float *dst);
/* The code of a column of a row; scale and zero point of a group. */
/* The layout of columns [first, first + n) of such rows; a group that is cut becomes several smaller ones
 * with the same scale. false: the cut goes through bytes of codes, or leaves groups that are too small,
 * or columns have another order. */
bool grouped_cut(const struct grouped *g, int64_t first, int64_t n, struct grouped *out);
/* Those columns of a row, in the layout that grouped_cut has made. */
void grouped_copy(const struct grouped *g, const void *row, int64_t first,
                  const struct grouped *part, void *out);
uint8_t grouped_code(const struct grouped *g, const void *row, int c);
float grouped_scale(const struct grouped *g, const void *row, int group);
int grouped_zero(const struct grouped *g, const void *row, int group);

float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f); /* round to nearest, ties to even */
static inline float bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint16_t f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 64); /* a NaN stays a NaN */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

/* F8_E8M0, a power of two: 2^(b - 127); 255 is NaN. */
static inline float f8_e8m0_to_f32(uint8_t b)
{
    uint32_t u = b == 255 ? 0x7fc00000u : b ? (uint32_t)b << 23 : 0x00400000u;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* F8_E4M3: round to nearest, ties to even; values beyond 448 become 448, a NaN stays a NaN. Without
 * branches, so that compilers vectorize loops over it. */
static inline uint8_t f32_to_f8_e4m3(float f)
{
    const uint32_t top = 0x43e00000u, least = 0x3c800000u, unit = 0x46800000u; /* 448, 2^-6, 2^14 */
    uint32_t u, mag, cut, normal, tiny;
    float small;

    memcpy(&u, &f, 4);
    mag = u & 0x7fffffffu;
    cut = mag < top ? mag : top;
    normal = (cut + 0x7ffffu + (cut >> 20 & 1)) >> 20;
    memcpy(&small, &cut, 4);
    small += 0x1p14f; /* its last mantissa bit is 2^-9, the smallest subnormal of E4M3 */
    memcpy(&tiny, &small, 4);
    normal = cut < least ? tiny - unit : normal - (120u << 3);
    return (uint8_t)((u >> 24 & 0x80) | (mag > 0x7f800000u ? 0x7f : normal));
}
#endif
