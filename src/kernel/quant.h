/* quant.h - block formats, encoded and decoded in plain C. The definition of every format:
 * faster code is tested against this. */
#ifndef TERN_KERNEL_QUANT_H
#define TERN_KERNEL_QUANT_H

#include "base/dtype.h"

/* n elements (whole blocks) to floats. Every type of dtype.h but the integers above 8 bits. */
void quant_decode(enum dtype t, const void *src, float *dst, int64_t n);
bool quant_can_decode(enum dtype t);

/* n floats (whole blocks) to the format, rounding to nearest. NaN and Inf are taken as 0 in
 * quantized types. */
void quant_encode(enum dtype t, const float *src, void *dst, int64_t n);
bool quant_can_encode(enum dtype t);

float    f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);                            /* nearest, ties to even */
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
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 64);   /* a NaN stays one */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}
#endif
