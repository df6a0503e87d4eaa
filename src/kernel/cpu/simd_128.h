/* simd_128.h - the operations of simd.h in NEON. Included by simd.h only. */
#include <arm_neon.h>

#define W 4
#define NV 4 /* vectors per row of a register tile: 6 x 4 sums fit 32 registers */
#define SIMD_NAME "neon"
typedef float32x4_t vf;

INLINE vf v_set(float x) { return vdupq_n_f32(x); }
INLINE vf v_load(const float *p) { return vld1q_f32(p); }
INLINE void v_store(float *p, vf v) { vst1q_f32(p, v); }
INLINE vf v_load_n(const float *p, int n)
{
    float t[W] = { 0 };
    memcpy(t, p, (size_t)n * sizeof *t);
    return v_load(t);
}
INLINE void v_store_n(float *p, vf v, int n)
{
    float t[W];
    v_store(t, v);
    memcpy(p, t, (size_t)n * sizeof *t);
}
INLINE vf v_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
INLINE vf v_max(vf a, vf b) { return vmaxnmq_f32(a, b); }
INLINE vf v_min(vf a, vf b) { return vminnmq_f32(a, b); }
INLINE float v_sum(vf a) { return vaddvq_f32(a); }
INLINE float v_hmax(vf a) { return vmaxvq_f32(a); }
INLINE vf v_round(vf a) { return vrndnq_f32(a); }
/* x 2^n for integers n in [-128, 127]; 0 for n below -126. */
INLINE vf v_pow2(vf x, vf n)
{
    int32x4_t e = vmaxq_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), vdupq_n_s32(0));
    return x * vreinterpretq_f32_s32(vshlq_n_s32(e, 23));
}
INLINE vf v_sel_gt(vf a, vf b, vf yes, vf no) { return vbslq_f32(vcgtq_f32(a, b), yes, no); }
INLINE vf v_copysign(vf mag, vf sign) { return vbslq_f32(vdupq_n_u32(0x80000000u), sign, mag); }
INLINE vf v_iota(void)
{
    static const float i[W] = { 0, 1, 2, 3 };
    return v_load(i);
}

INLINE float f16_scale(uint16_t h)
{
    __fp16 x;
    memcpy(&x, &h, sizeof x);
    return (float)x;
}
INLINE vf v_load_f16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
INLINE void v_store_f16(uint16_t *p, vf v) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v))); }
INLINE vf v_load_bf16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
INLINE void v_store_bf16(uint16_t *p, vf v) /* finite elements only */
{
    uint32x4_t u = vreinterpretq_u32_f32(v);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    vst1_u16(p, vshrn_n_u32(vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16));
}
/* F8_E4M3, shifted into the fields of an F16, is too small by 2^8; all ones are NaN in both. */
INLINE vf v_load_f8(const uint8_t *p)
{
    uint32_t raw;
    memcpy(&raw, p, sizeof raw);
    uint16x4_t b = vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(raw))));
    uint16x4_t m = vand_u16(b, vdup_n_u16(0x7f)),
               sign = vshl_n_u16(vbic_u16(b, vdup_n_u16(0x7f)), 8);
    uint16x4_t nan = vand_u16(vadd_u16(m, vdup_n_u16(1)), vdup_n_u16(0x80));
    uint16x4_t h = vorr_u16(sign, vshl_n_u16(vorr_u16(m, nan), 7));
    return vcvt_f32_f16(vreinterpret_f16_u16(h)) * v_set(256);
}
INLINE vf v_load_i8(const int8_t *p)
{
    int32_t raw;
    memcpy(&raw, p, sizeof raw);
    int16x8_t h = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(raw)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(h)));
}
INLINE void v_store_i8(int8_t *p, vf v) /* integers in [-128, 127] */
{
    int16x4_t h = vmovn_s32(vcvtnq_s32_f32(v));
    int32_t raw = vget_lane_s32(vreinterpret_s32_s8(vmovn_s16(vcombine_s16(h, h))), 0);
    memcpy(p, &raw, sizeof raw);
}

INLINE void v_load2(const float *p, vf *even, vf *odd)
{
    float32x4x2_t t = vld2q_f32(p);
    *even = t.val[0];
    *odd = t.val[1];
}
/* Rotates pairs (x0, x1) by pairs (c, s): (x0 c - x1 s, x1 c + x0 s, ...). */
INLINE vf v_rotate(vf x, vf cs)
{
    static const float sign[W] = { -1, 1, -1, 1 };
    vf c = vtrn1q_f32(cs, cs), s = vtrn2q_f32(cs, cs) * v_load(sign);
    return v_fma(vrev64q_f32(x), s, x * c);
}

/* Horizontal sums: lane i is the sum of the lanes of p[i]. */
INLINE vf v_sums(const vf *p) { return vpaddq_f32(vpaddq_f32(p[0], p[1]), vpaddq_f32(p[2], p[3])); }

INLINE vf v_quad_sums(vf a, vf b, vf c, vf d)
{
    return vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d));
}
INLINE void v_quads(vf r[1]) { (void)r; }
INLINE vf v_set_quad(const float *p) { return v_load(p); }

/* Transposes W x W floats. */
INLINE void v_transpose(vf *r)
{
    float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(r[0], r[1]));
    float64x2_t b = vreinterpretq_f64_f32(vtrn2q_f32(r[0], r[1]));
    float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(r[2], r[3]));
    float64x2_t d = vreinterpretq_f64_f32(vtrn2q_f32(r[2], r[3]));
    r[0] = vreinterpretq_f32_f64(vtrn1q_f64(a, c));
    r[1] = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
    r[2] = vreinterpretq_f32_f64(vtrn2q_f64(a, c));
    r[3] = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
}
