/* simd_512.h - the operations of simd.h in AVX-512. Included by simd.h only. */
#include <immintrin.h>

#define W 16
#define NV 4 /* vectors per row of a register tile: 6 x 4 sums fit 32 registers */
#define SIMD_NAME "avx512"
typedef __m512 vf;

INLINE vf v_set(float x) { return _mm512_set1_ps(x); }
INLINE vf v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
INLINE __mmask16 first_n(int n) { return (__mmask16)((1u << n) - 1); }
INLINE vf v_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(first_n(n), p); }
INLINE void v_store_n(float *p, vf v, int n) { _mm512_mask_storeu_ps(p, first_n(n), v); }
INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE float v_sum(vf a) { return _mm512_reduce_add_ps(a); }
INLINE float v_hmax(vf a) { return _mm512_reduce_max_ps(a); }
INLINE vf v_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* x 2^n; 0 for n below -126, because a denormal result would cost a hundred cycles. */
INLINE vf v_pow2(vf x, vf n)
{
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(n, _mm512_set1_ps(-126), _CMP_GE_OQ), x, n);
}
INLINE vf v_sel_gt(vf a, vf b, vf yes, vf no)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), no, yes);
}
INLINE vf v_copysign(vf mag, vf sign)
{
    __m512i s = _mm512_and_si512(_mm512_castps_si512(sign), _mm512_set1_epi32(INT32_MIN));
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(mag), s));
}
INLINE vf v_iota(void)
{
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

INLINE float f16_scale(uint16_t h) { return _cvtsh_ss(h); }
INLINE vf v_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}
INLINE void v_store_f16(uint16_t *p, vf v)
{
    _mm256_storeu_si256((void *)p,
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INLINE vf v_load_bf16(const uint16_t *p)
{
    __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}
INLINE void v_store_bf16(uint16_t *p, vf v) /* finite elements only */
{
    __m512i u = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    u = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(u, 16)));
}
/* F8_E4M3, shifted into the fields of an F16, is too small by 2^8; all ones are NaN in both. */
INLINE vf v_load_f8(const uint8_t *p)
{
    __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)p)),
            m = _mm256_and_si256(b, _mm256_set1_epi16(0x7f));
    __m256i sign = _mm256_slli_epi16(_mm256_andnot_si256(_mm256_set1_epi16(0x7f), b), 8);
    __m256i nan =
        _mm256_and_si256(_mm256_add_epi16(m, _mm256_set1_epi16(1)), _mm256_set1_epi16(0x80));
    __m256i h = _mm256_or_si256(sign, _mm256_slli_epi16(_mm256_or_si256(m, nan), 7));
    return _mm512_cvtph_ps(h) * v_set(256);
}
INLINE vf v_load_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
}
INLINE void v_store_i8(int8_t *p, vf v) /* integers in [-128, 127] */
{
    _mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
}

INLINE void v_load2(const float *p, vf *even, vf *odd)
{
    const __m512i ie = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    vf a = v_load(p), b = v_load(p + W);
    *even = _mm512_permutex2var_ps(a, ie, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(ie, _mm512_set1_epi32(1)), b);
}
/* Rotates pairs (x0, x1) by pairs (c, s): (x0 c - x1 s, x1 c + x0 s, ...). */
INLINE vf v_rotate(vf x, vf cs)
{
    vf c = _mm512_moveldup_ps(cs), s = _mm512_movehdup_ps(cs);
    return _mm512_fmaddsub_ps(x, c, _mm512_permute_ps(x, 0xb1) * s);
}

/* Integers of 32 bits, and pairs of 16 bits in them. */
#define HAS_DOT16 1
typedef __m512i vi;
INLINE vi vi_set(int32_t x) { return _mm512_set1_epi32(x); }
INLINE vi vi_load(const int32_t *p) { return _mm512_loadu_si512(p); }
INLINE vf v_from_int(vi a) { return _mm512_cvtepi32_ps(a); }
/* In assembly, because gcc copies the sums of its intrinsic from register to register. */
INLINE vi v_dot16(vi sum, vi a, vi b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}
INLINE vf v_sqrt(vf a) { return _mm512_sqrt_ps(a); }
INLINE void v_store_i16(int16_t *p, vf v)
{
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(v)));
}
INLINE void v_store_pairs(int32_t *p, vf even, vf odd)
{
    vi e = _mm512_cvtps_epi32(even), o = _mm512_slli_epi32(_mm512_cvtps_epi32(odd), 16);
    _mm512_storeu_si512(p, _mm512_mask_blend_epi16(0xaaaaaaaa, e, o));
}

#define SHUF(a, b, imm) _mm512_shuffle_f32x4(a, b, imm)

/* Steps of v_sums: sums of neighbouring lanes of a and b, interleaved. */
INLINE vf sum_pairs(vf a, vf b) { return _mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b); }
INLINE vf sum_quads(vf a, vf b)
{
    __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return _mm512_castpd_ps(_mm512_unpacklo_pd(x, y)) + _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
}
/* Horizontal sums: lane i is the sum of the lanes of p[i]. */
INLINE vf v_sums(const vf *p)
{
    vf q[4];
    UNROLL
    for (int i = 0; i < 4; i++)
        q[i] = sum_quads(sum_pairs(p[4 * i], p[4 * i + 1]), sum_pairs(p[4 * i + 2], p[4 * i + 3]));
    vf a = SHUF(q[0], q[1], 0x44) + SHUF(q[0], q[1], 0xee);
    vf b = SHUF(q[2], q[3], 0x44) + SHUF(q[2], q[3], 0xee);
    return SHUF(a, b, 0x88) + SHUF(a, b, 0xdd);
}

INLINE vf v_quad_sums(vf a, vf b, vf c, vf d)
{
    return sum_quads(sum_pairs(a, b), sum_pairs(c, d));
}
INLINE void v_quads(vf r[4])
{
    vf a = SHUF(r[0], r[1], 0x44), b = SHUF(r[0], r[1], 0xee);
    vf c = SHUF(r[2], r[3], 0x44), d = SHUF(r[2], r[3], 0xee);
    r[0] = SHUF(a, c, 0x88), r[1] = SHUF(a, c, 0xdd);
    r[2] = SHUF(b, d, 0x88), r[3] = SHUF(b, d, 0xdd);
}
/* 16 elements of each of 4 rows, as v_quads leaves them: the halves as wide, before conversion. */
#define HAS_QUADS_F16 1
INLINE void v_load_quads_f16(vf r[4], const char *row, size_t stride)
{
    __m256i x[4];
    UNROLL
    for (int i = 0; i < 4; i++) x[i] = _mm256_loadu_si256((const void *)(row + (size_t)i * stride));
    __m256i a = _mm256_unpacklo_epi64(x[0], x[1]), b = _mm256_unpackhi_epi64(x[0], x[1]);
    __m256i c = _mm256_unpacklo_epi64(x[2], x[3]), d = _mm256_unpackhi_epi64(x[2], x[3]);
    r[0] = _mm512_cvtph_ps(_mm256_permute2x128_si256(a, c, 0x20));
    r[1] = _mm512_cvtph_ps(_mm256_permute2x128_si256(b, d, 0x20));
    r[2] = _mm512_cvtph_ps(_mm256_permute2x128_si256(a, c, 0x31));
    r[3] = _mm512_cvtph_ps(_mm256_permute2x128_si256(b, d, 0x31));
}
INLINE vf v_set_quad(const float *p) { return _mm512_broadcast_f32x4(_mm_loadu_ps(p)); }

/* Transposes W x W floats. */
INLINE void v_transpose(vf *r)
{
    vf t[16];
    UNROLL
    for (int i = 0; i < 16; i += 4) {
        __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(r[i], r[i + 1]));
        __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(r[i], r[i + 1]));
        __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(r[i + 2], r[i + 3]));
        __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(r[i + 2], r[i + 3]));
        t[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        t[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        t[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        t[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        vf a = SHUF(t[i], t[i + 4], 0x88), b = SHUF(t[i], t[i + 4], 0xdd);
        vf c = SHUF(t[i + 8], t[i + 12], 0x88), d = SHUF(t[i + 8], t[i + 12], 0xdd);
        r[i] = SHUF(a, c, 0x88);
        r[i + 8] = SHUF(a, c, 0xdd);
        r[i + 4] = SHUF(b, d, 0x88);
        r[i + 12] = SHUF(b, d, 0xdd);
    }
}
