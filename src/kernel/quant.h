/* quant.h - block formats, encoded and decoded in plain C. The definition of every format:
 * faster code is tested against this. */
#ifndef TERN_KERNEL_QUANT_H
#define TERN_KERNEL_QUANT_H

#include "base/dtype.h"

/* n elements (whole blocks) to floats. Every type of dtype.h but the integers above 8 bits. */
void quant_decode(enum dtype t, const void *src, float *dst, int64_t n);
bool quant_can_decode(enum dtype t);

/* n floats (whole blocks) to the format, rounding to nearest. NaN and Inf are taken as 0 in
 * quantized types; F8 has no Inf and takes its largest number. */
void quant_encode(enum dtype t, const float *src, void *dst, int64_t n);
bool quant_can_encode(enum dtype t);

float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f); /* nearest, ties to even */
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
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 64); /* a NaN stays one */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

/* E4M3: nearest, ties to even; beyond 448 it is 448, a NaN stays one. Without branches, so that
 * compilers do many at once. */
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
    small += 0x1p14f; /* whose last bit is 2^-9, the least of F8 */
    memcpy(&tiny, &small, 4);
    normal = cut < least ? tiny - unit : normal - (120u << 3);
    return (uint8_t)((u >> 24 & 0x80) | (mag > 0x7f800000u ? 0x7f : normal));
}
#endif
