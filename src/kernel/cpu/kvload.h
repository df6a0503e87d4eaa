/* kvload.h - loads W elements of a row of the KV cache as floats, for each type of cache.
 * The type is a constant at every call, so the compiler removes the switch. */
#ifndef TERN_KERNEL_CPU_KVLOAD_H
#define TERN_KERNEL_CPU_KVLOAD_H

#include "base/dtype.h"
#include "kernel/cpu/simd.h"
#include "kernel/quant.h"

#define Q8 32 /* elements of a Q8_0 block: an F16 scale, then 32 bytes */
#define Q8_BYTES (2 + Q8)

INLINE vf kv_q8(const char *row, int i)
{
    const char *block = row + i / Q8 * Q8_BYTES;
    uint16_t d;

    memcpy(&d, block, sizeof d);
    return v_set(f16_scale(d)) * v_load_i8((const int8_t *)block + 2 + i % Q8);
}

INLINE vf kv_load(enum dtype t, const void *row, int i)
{
    switch (t) {
    case DT_F32: return v_load((const float *)row + i);
    case DT_F16: return v_load_f16((const uint16_t *)row + i);
    case DT_BF16: return v_load_bf16((const uint16_t *)row + i);
    case DT_F8_E4M3: return v_load_f8((const uint8_t *)row + i);
    default: return kv_q8(row, i);
    }
}

/* The last n < W elements of a row, then zeros. Not for Q8_0, whose rows are whole blocks. */
INLINE vf kv_load_n(enum dtype t, const void *row, int i, int n)
{
    uint16_t h[W] = { 0 };
    uint8_t b[W] = { 0 };

    if (t == DT_F32) return v_load_n((const float *)row + i, n);
    if (t == DT_F8_E4M3) {
        memcpy(b, (const uint8_t *)row + i, (size_t)n);
        return v_load_f8(b);
    }
    memcpy(h, (const uint16_t *)row + i, (size_t)n * sizeof *h);
    return t == DT_F16 ? v_load_f16(h) : v_load_bf16(h);
}
#endif
