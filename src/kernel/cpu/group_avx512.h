/* group_avx512.h - codes of DT_GROUPED as 16 floats by AVX-512, for dot_group.h. */
#ifndef TERN_KERNEL_CPU_GROUP_AVX512_H
#define TERN_KERNEL_CPU_GROUP_AVX512_H

#include "kernel/cpu/dot_avx512.h"

#define LANES 16
typedef __m512 vf;
#define v_zero() _mm512_setzero_ps()
#define v_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define v_sum(a) _mm512_reduce_add_ps(a)

INLINE __mmask16 first_lanes(int n) { return (__mmask16)((1u << n) - 1); }
INLINE vf v_load_n(const float *p, int n)
{
    return n == LANES ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(first_lanes(n), p);
}
INLINE void v_store_n(float *p, vf v, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }

/* Codes of up to 4 bits: all values of the group, by code. Others: scale and zero point. */
struct code_table {
    vf s, z;
};

/* E4M3 is read as F16 with the same mantissa, which is smaller by 2^8. */
INLINE float code_unit(const enum group_code code) { return code == CODE_E4M3 ? 256 : 1; }

INLINE struct code_table make_table(const enum group_code code, float s, float z)
{
    struct code_table t = { .s = _mm512_set1_ps(s), .z = _mm512_set1_ps(z) };
    __m512 v;

    if (code == CODE_U2) v = _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
    else if (code == CODE_U4)
        v = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    else if (code == CODE_E2M1)
        v = _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6);
    else return t;
    if (code != CODE_E2M1) v = _mm512_sub_ps(v, t.z);
    t.s = _mm512_mul_ps(v, t.s);
    return t;
}

INLINE __m128i load_bytes(const char *p, int n)
{
    return n == LANES ? _mm_loadu_si128((const __m128i *)p)
                      : _mm_maskz_loadu_epi8(first_lanes(n), p);
}

/* E4M3 / 2^8. */
INLINE vf e4m3_small(__m128i b)
{
    __m256i v = _mm256_cvtepu8_epi16(b);
    __m256i sign = _mm256_and_si256(_mm256_slli_epi16(v, 8), _mm256_set1_epi16((short)0x8000));
    __m256i rest = _mm256_and_si256(_mm256_slli_epi16(v, 7), _mm256_set1_epi16(0x3f80));
    return _mm512_cvtph_ps(_mm256_or_si256(sign, rest));
}

INLINE vf unpack_codes(const char *p, int shift, int n, const enum group_code code,
                       const struct code_table *t)
{
    if (code == CODE_U2 || code == CODE_U4 || code == CODE_E2M1) {
        __m512i q = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
        if (shift) q = _mm512_srlv_epi32(q, _mm512_set1_epi32(shift));
        return _mm512_permutexvar_ps(q, t->s); /* it uses 4 bits of q: a table of 2 repeats */
    }
    __m128i b = load_bytes(p, n);
    if (code == CODE_E4M3) return _mm512_mul_ps(e4m3_small(b), t->s);
    if (code == CODE_E5M2)
        return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(b), 8)), t->s);
    return _mm512_mul_ps(_mm512_sub_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(b)), t->z), t->s);
}

/* Groups are few where they are wide, so the type of the scales is tested for every 16. */
INLINE void expand_scales(const struct grouped *g, const char *row, int first, int n, float *out)
{
    const char *p = row + g->scales_at;
    __m512 factor = _mm512_set1_ps(g->factor * code_unit(g->code)), v = _mm512_set1_ps(1);

    for (int i = first; i < first + n; i += LANES, out += LANES) {
        int m = first + n - i < LANES ? first + n - i : LANES;
        __mmask16 k = first_lanes(m);
        switch (g->scale) {
        case SCALE_NONE: break;
        case SCALE_F32: v = _mm512_maskz_loadu_ps(k, p + (size_t)i * 4); break;
        case SCALE_F16: v = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(k, p + (size_t)i * 2)); break;
        case SCALE_BF16:
            v = _mm512_castsi512_ps(_mm512_slli_epi32(
                _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(k, p + (size_t)i * 2)), 16));
            break;
        case SCALE_E8M0:
            v = _mm512_castsi512_ps(
                _mm512_slli_epi32(_mm512_cvtepu8_epi32(load_bytes(p + i, m)), 23));
            break;
        case SCALE_E4M3: v = _mm512_mul_ps(e4m3_small(load_bytes(p + i, m)), _mm512_set1_ps(256));
        }
        _mm512_mask_storeu_ps(out, k, _mm512_mul_ps(v, factor));
    }
}

INLINE void expand_zeros(const struct grouped *g, const char *row, int first, int n, float *out)
{
    const char *p = row + g->zeros_at;
    __m512i zero = _mm512_set1_epi32(g->zero), v = zero;

    for (int i = first; i < first + n; i += LANES, out += LANES) {
        int m = first + n - i < LANES ? first + n - i : LANES;
        if (g->zeros) v = _mm512_add_epi32(_mm512_cvtepu8_epi32(load_bytes(p + i, m)), zero);
        _mm512_mask_storeu_ps(out, first_lanes(m), _mm512_cvtepi32_ps(v));
    }
}
#endif
