/* rtn_any.c - the encoders on four-lane vectors of the compiler (gcc vector extension), for every
 * machine. Defines the names of kernel/cpu/simd.h that the encoders use. */
#include "kernel/quant.h"

#define W 4
#define SIMD_NAME "any"
#define INLINE static inline __attribute__((always_inline, unused))
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

INLINE vf v_set(float x) { return (vf){ x, x, x, x }; }
INLINE vf v_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE void v_store(float *p, vf v) { memcpy(p, &v, sizeof v); }
INLINE vf v_fma(vf a, vf b, vf c) { return a * b + c; }
INLINE vf v_select(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }
INLINE vf v_sel_gt(vf a, vf b, vf yes, vf no) { return v_select(a > b, yes, no); }
INLINE vf v_max(vf a, vf b) { return v_select(a > b, a, b); }
INLINE vf v_min(vf a, vf b) { return v_select(a < b, a, b); }
INLINE vf v_abs(vf x) { return v_max(x, -x); }
INLINE float v_sum(vf v) { return (v[0] + v[1]) + (v[2] + v[3]); }
INLINE float v_hmax(vf v)
{
    float a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
    return a > b ? a : b;
}
INLINE void v_store_i8(int8_t *p, vf v) /* integers in [-128, 127] */
{
    for (int i = 0; i < W; i++) p[i] = (int8_t)v[i];
}
INLINE vf v_load_f16(const uint16_t *p)
{
    return (vf){ f16_to_f32(p[0]), f16_to_f32(p[1]), f16_to_f32(p[2]), f16_to_f32(p[3]) };
}
INLINE void v_store_f16(uint16_t *p, vf v)
{
    for (int i = 0; i < W; i++) p[i] = f32_to_f16(v[i]);
}
INLINE vf v_load_bf16(const uint16_t *p)
{
    return (vf){ bf16_to_f32(p[0]), bf16_to_f32(p[1]), bf16_to_f32(p[2]), bf16_to_f32(p[3]) };
}
INLINE void v_store_bf16(uint16_t *p, vf v)
{
    for (int i = 0; i < W; i++) p[i] = f32_to_bf16(v[i]);
}
INLINE void v_transpose(vf *r)
{
    vf t[4];
    for (int i = 0; i < 4; i++) t[i] = (vf){ r[0][i], r[1][i], r[2][i], r[3][i] };
    memcpy(r, t, sizeof t);
}

#define RTN rtn_any
#include "quant/rtn_impl.h"
