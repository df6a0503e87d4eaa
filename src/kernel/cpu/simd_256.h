/* simd_256.h - the operations of simd.h in AVX2 with FMA and F16C. Included by simd.h only. */
#include <immintrin.h>

#define W 8
#define NV 2 /* vectors per row of a register tile: 6 x 2 sums fit 16 registers */
#define SIMD_NAME "avx2"
typedef __m256 vf;

INLINE vf v_set(float x) { return _mm256_set1_ps(x); }
INLINE vf v_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void v_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
INLINE __m256i first_n(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE vf v_load_n(const float *p, int n) { return _mm256_maskload_ps(p, first_n(n)); }
INLINE void v_store_n(float *p, vf v, int n) { _mm256_maskstore_ps(p, first_n(n), v); }
INLINE vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }
INLINE vf v_min(vf a, vf b) { return _mm256_min_ps(a, b); }
INLINE float v_sum(vf a)
{
    __m128 x = _mm256_castps256_ps128(a) + _mm256_extractf128_ps(a, 1);
    x += _mm_movehl_ps(x, x);
    return _mm_cvtss_f32(x + _mm_movehdup_ps(x));
}
INLINE float v_hmax(vf a)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ps(x, _mm_movehdup_ps(x)));
}
INLINE vf v_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* x 2^n for integers n in [-128, 127]; 0 for n below -126. */
INLINE vf v_pow2(vf x, vf n)
{
    __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    e = _mm256_max_epi32(e, _mm256_setzero_si256());
    return x * _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}
INLINE vf v_sel_gt(vf a, vf b, vf yes, vf no)
{
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
INLINE vf v_copysign(vf mag, vf sign)
{
    return _mm256_or_ps(mag, _mm256_and_ps(sign, _mm256_set1_ps(-0.0f)));
}
INLINE vf v_iota(void) { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }

INLINE float f16_scale(uint16_t h) { return _cvtsh_ss(h); }
INLINE vf v_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
}
INLINE void v_store_f16(uint16_t *p, vf v)
{
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INLINE vf v_load_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}
INLINE void store_low16(uint16_t *p, __m256i u)
{
    u = _mm256_permute4x64_epi64(_mm256_packus_epi32(u, u), 0x08);
    _mm_storeu_si128((void *)p, _mm256_castsi256_si128(u));
}
INLINE void v_store_bf16(uint16_t *p, vf v) /* finite elements only */
{
    __m256i u = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    u = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    store_low16(p, _mm256_srli_epi32(u, 16));
}
/* F8_E4M3, shifted into the fields of an F16, is too small by 2^8; all ones are NaN in both. */
INLINE vf v_load_f8(const uint8_t *p)
{
    __m128i b = _mm_cvtepu8_epi16(_mm_loadl_epi64((const void *)p)),
            m = _mm_and_si128(b, _mm_set1_epi16(0x7f));
    __m128i sign = _mm_slli_epi16(_mm_andnot_si128(_mm_set1_epi16(0x7f), b), 8);
    __m128i nan = _mm_and_si128(_mm_add_epi16(m, _mm_set1_epi16(1)), _mm_set1_epi16(0x80));
    __m128i h = _mm_or_si128(sign, _mm_slli_epi16(_mm_or_si128(m, nan), 7));
    return _mm256_cvtph_ps(h) * v_set(256);
}
INLINE vf v_load_i8(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
}
INLINE void v_store_i8(int8_t *p, vf v) /* integers in [-128, 127] */
{
    __m256i u = _mm256_cvtps_epi32(v);
    __m128i h = _mm_packs_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1));
    _mm_storel_epi64((void *)p, _mm_packs_epi16(h, h));
}

INLINE void v_load2(const float *p, vf *even, vf *odd)
{
    vf a = v_load(p), b = v_load(p + W);
    vf lo = _mm256_permute2f128_ps(a, b, 0x20), hi = _mm256_permute2f128_ps(a, b, 0x31);
    *even = _mm256_shuffle_ps(lo, hi, 0x88);
    *odd = _mm256_shuffle_ps(lo, hi, 0xdd);
}
/* Rotates pairs (x0, x1) by pairs (c, s): (x0 c - x1 s, x1 c + x0 s, ...). */
INLINE vf v_rotate(vf x, vf cs)
{
    vf c = _mm256_moveldup_ps(cs), s = _mm256_movehdup_ps(cs);
    return _mm256_fmaddsub_ps(x, c, _mm256_permute_ps(x, 0xb1) * s);
}

/* Integers of 32 bits, and pairs of 16 bits in them. */
#define HAS_DOT16 1
typedef __m256i vi;
INLINE vi vi_set(int32_t x) { return _mm256_set1_epi32(x); }
INLINE vi vi_load(const int32_t *p) { return _mm256_loadu_si256((const void *)p); }
INLINE vf v_from_int(vi a) { return _mm256_cvtepi32_ps(a); }
/* The empty assembly makes gcc keep the order of steps: it would first multiply all and spill. */
INLINE vi v_dot16(vi sum, vi a, vi b)
{
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
    __asm__("" : "+x"(sum));
    return sum;
}
INLINE vf v_sqrt(vf a) { return _mm256_sqrt_ps(a); }
INLINE void v_store_i16(int16_t *p, vf v)
{
    vi u = _mm256_cvtps_epi32(v);
    _mm_storeu_si128((void *)p,
                     _mm_packs_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1)));
}
INLINE void v_store_pairs(int32_t *p, vf even, vf odd)
{
    vi e = _mm256_cvtps_epi32(even), o = _mm256_slli_epi32(_mm256_cvtps_epi32(odd), 16);
    _mm256_storeu_si256((void *)p, _mm256_blend_epi16(e, o, 0xaa));
}

/* Horizontal sums: lane i is the sum of the lanes of p[i]. */
INLINE vf v_sums(const vf *p)
{
    vf a = _mm256_hadd_ps(_mm256_hadd_ps(p[0], p[1]), _mm256_hadd_ps(p[2], p[3]));
    vf b = _mm256_hadd_ps(_mm256_hadd_ps(p[4], p[5]), _mm256_hadd_ps(p[6], p[7]));
    return _mm256_permute2f128_ps(a, b, 0x20) + _mm256_permute2f128_ps(a, b, 0x31);
}

INLINE vf v_quad_sums(vf a, vf b, vf c, vf d)
{
    return _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
}
INLINE void v_quads(vf r[2])
{
    vf a = _mm256_permute2f128_ps(r[0], r[1], 0x20), b = _mm256_permute2f128_ps(r[0], r[1], 0x31);
    r[0] = a, r[1] = b;
}
INLINE vf v_set_quad(const float *p)
{
    return _mm256_broadcast_ps((const __m128 *)(const void *)p);
}

/* Transposes W x W floats. */
INLINE void v_transpose(vf *r)
{
    vf t[8];
    UNROLL
    for (int i = 0; i < 8; i += 4) {
        vf a = _mm256_unpacklo_ps(r[i], r[i + 1]), b = _mm256_unpackhi_ps(r[i], r[i + 1]);
        vf c = _mm256_unpacklo_ps(r[i + 2], r[i + 3]), d = _mm256_unpackhi_ps(r[i + 2], r[i + 3]);
        t[i] = _mm256_shuffle_ps(a, c, 0x44);
        t[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
        t[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
        t[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
}
