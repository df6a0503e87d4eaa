/* group_avx2.h - codes of DT_GROUPED as 8 floats by AVX2, for dot_group.h. */
#ifndef TERN_KERNEL_CPU_GROUP_AVX2_H
#define TERN_KERNEL_CPU_GROUP_AVX2_H

#include "kernel/cpu/dot_avx2.h"
#include "kernel/quant.h"

#define LANES 8
typedef __m256 vf;
#define v_zero() _mm256_setzero_ps()
#define v_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define v_sum(a) sum8(a)

INLINE __m256i first_lanes(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE vf v_load_n(const float *p, int n)
{
    return n == LANES ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, first_lanes(n));
}
INLINE void v_store_n(float *p, vf v, int n)
{
    if (n == LANES) _mm256_storeu_ps(p, v);
    else _mm256_maskstore_ps(p, first_lanes(n), v);
}

struct code_table {
    vf s, z; /* E2M1: s has the values of the codes 0 to 7 */
};

/* E4M3 is read as F16 with the same mantissa, which is smaller by 2^8. */
INLINE float code_unit(const enum group_code code) { return code == CODE_E4M3 ? 256 : 1; }

INLINE struct code_table make_table(const enum group_code code, float s, float z)
{
    struct code_table t = { .s = _mm256_set1_ps(s), .z = _mm256_set1_ps(z) };

    if (code == CODE_E2M1) t.s = _mm256_mul_ps(_mm256_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6), t.s);
    return t;
}

INLINE __m128i load_bytes(const char *p, int n)
{
    char end[8] = { 0 };

    if (n == LANES) return _mm_loadl_epi64((const __m128i *)p);
    memcpy(end, p, (size_t)n);
    return _mm_loadl_epi64((const __m128i *)end);
}

/* E4M3 / 2^8. */
INLINE vf e4m3_small(__m128i b)
{
    __m128i v = _mm_cvtepu8_epi16(b);
    __m128i sign = _mm_and_si128(_mm_slli_epi16(v, 8), _mm_set1_epi16((short)0x8000));
    __m128i rest = _mm_and_si128(_mm_slli_epi16(v, 7), _mm_set1_epi16(0x3f80));
    return _mm256_cvtph_ps(_mm_or_si128(sign, rest));
}

INLINE vf unpack_codes(const char *p, int shift, int n, const enum group_code code,
                       const struct code_table *t)
{
    bool small = code == CODE_U2 || code == CODE_U4 || code == CODE_E2M1;
    __m128i b = load_bytes(p, small ? LANES : n);
    __m256i q;

    if (code == CODE_E4M3) return _mm256_mul_ps(e4m3_small(b), t->s);
    if (code == CODE_E5M2)
        return _mm256_mul_ps(_mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(b), 8)), t->s);
    q = _mm256_cvtepu8_epi32(b);
    if (shift) q = _mm256_srlv_epi32(q, _mm256_set1_epi32(shift));
    if (code == CODE_E2M1) {
        vf v = _mm256_permutevar8x32_ps(t->s, q);
        __m256i sign = _mm256_and_si256(_mm256_slli_epi32(q, 28), _mm256_set1_epi32(INT32_MIN));
        return _mm256_xor_ps(v, _mm256_castsi256_ps(sign));
    }
    if (small) q = _mm256_and_si256(q, _mm256_set1_epi32(code == CODE_U2 ? 3 : 15));
    return _mm256_mul_ps(_mm256_sub_ps(_mm256_cvtepi32_ps(q), t->z), t->s);
}

/* 8 scales at a time; the last ones one by one. */
INLINE void expand_scales(const struct grouped *g, const char *row, int first, int n, float *out)
{
    const char *p = row + g->scales_at;
    float unit = code_unit(g->code);
    __m256 factor = _mm256_set1_ps(g->factor * unit), v = _mm256_set1_ps(1);
    int i = first;

    for (; i + LANES <= first + n; i += LANES, out += LANES) {
        switch (g->scale) {
        case SCALE_NONE: break;
        case SCALE_F32:
            v = _mm256_loadu_ps((const float *)(const void *)(p + (size_t)i * 4));
            break;
        case SCALE_F16:
            v = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + (size_t)i * 2)));
            break;
        case SCALE_BF16:
            v = _mm256_castsi256_ps(_mm256_slli_epi32(
                _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + (size_t)i * 2))), 16));
            break;
        case SCALE_E8M0:
            v = _mm256_castsi256_ps(
                _mm256_slli_epi32(_mm256_cvtepu8_epi32(load_bytes(p + i, LANES)), 23));
            break;
        case SCALE_E4M3:
            v = _mm256_mul_ps(e4m3_small(load_bytes(p + i, LANES)), _mm256_set1_ps(256));
        }
        _mm256_storeu_ps(out, _mm256_mul_ps(v, factor));
    }
    for (; i < first + n; i++) *out++ = grouped_scale(g, row, i) * unit;
}

INLINE void expand_zeros(const struct grouped *g, const char *row, int first, int n, float *out)
{
    for (int i = first; i < first + n; i++) *out++ = (float)grouped_zero(g, row, i);
}
#endif
