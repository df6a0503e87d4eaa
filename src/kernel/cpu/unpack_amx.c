/* unpack_amx.c - unpackers to bf16 for all formats without a lattice. AVX-512 with BF16.
 *
 * Most formats have few distinct values per block: all of them are computed once, rounded to bf16,
 * and each weight is then a table look-up (vpermw takes the low 5 bits of every index). */
#include "kernel/cpu/unpack_impl.h"

#include "kernel/quantblocks.h"
#include "kernel/quant.h"

/* ---- blocks of 32 ---- */

/* The nibbles of a block as words: 16 low ones, then 16 high ones. Bits above the low 4 are
 * arbitrary. */
INLINE __m512i nibbles(const uint8_t *qs)
{
    __m512i shift = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
    return _mm512_srlv_epi16(load16x2(qs), shift);
}

/* values[q] * d in both halves of the table, so that bit 4 of an index does not matter. */
INLINE __m512i table16(__m512 values, float d)
{
    __m512 t = _mm512_mul_ps(values, _mm512_set1_ps(d));
    return bf16x32(t, t);
}

/* Formats with 4-bit elements and one scale: 16 scales at a time, then a table of 16 values per
 * block. */
INLINE void row_nibbles(const char *p, int n, char *dst, int block_bytes, int at, __m512 values,
                        bool e8m0)
{
    float d[16] __attribute__((aligned(64)));
    for (int b = 0; b < n; b += 16, p += 16 * block_bytes) {
        int k = n - b < 16 ? n - b : 16;
        __m512i h = heads(p, block_bytes, k);
        __m512 scale = e8m0 ? _mm512_castsi512_ps(_mm512_slli_epi32(
                                  _mm512_and_si512(h, _mm512_set1_epi32(255)), 23))
                            : heads_f16(h);
        _mm512_store_ps(d, scale);
        for (int i = 0; i < k; i++)
            store_step(
                dst, b + i,
                lookup(nibbles((const uint8_t *)p + i * block_bytes + at), table16(values, d[i])));
    }
}

/* Levels -8 to 7. */
INLINE void row_q4_0(const char *p, int n, char *dst)
{
    row_nibbles(p, n, dst, 18, 2, _mm512_sub_ps(iota(), _mm512_set1_ps(8)), false);
}
INLINE void row_iq4_nl(const char *p, int n, char *dst)
{
    __m512 v =
        _mm512_setr_ps(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    row_nibbles(p, n, dst, 18, 2, v, false);
}
INLINE void row_mxfp4(const char *p, int n, char *dst)
{
    __m512 v = _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6);
    row_nibbles(p, n, dst, 17, 1, v, true);
}

/* The table of a block is d * q + m. */
INLINE void row_q4_1(const char *p, int n, char *dst)
{
    float d[16] __attribute__((aligned(64))), m[16] __attribute__((aligned(64)));
    for (int b = 0; b < n; b += 16, p += 16 * 20) {
        int k = n - b < 16 ? n - b : 16;
        __m512i h = heads(p, 20, k);
        _mm512_store_ps(d, heads_f16(h));
        _mm512_store_ps(m, heads_f16(_mm512_srli_epi32(h, 16)));
        for (int i = 0; i < k; i++) {
            __m512 t = _mm512_fmadd_ps(iota(), _mm512_set1_ps(d[i]), _mm512_set1_ps(m[i]));
            store_step(dst, b + i, lookup(nibbles((const uint8_t *)p + i * 20 + 4), bf16x32(t, t)));
        }
    }
}

/* The nibbles of a block with their fifth bits. */
INLINE __m512i fives(const uint8_t *qh, const uint8_t *qs)
{
    uint32_t bits;
    memcpy(&bits, qh, 4);
    __m512i q = _mm512_and_si512(nibbles(qs), _mm512_set1_epi16(15));
    return _mm512_mask_add_epi16(q, _cvtu32_mask32(bits), q, _mm512_set1_epi16(16));
}

/* 32 levels: -16 to 15. */
INLINE void row_q5_0(const char *p, int n, char *dst)
{
    float d[16] __attribute__((aligned(64)));
    __m512 high = iota(), low = _mm512_sub_ps(high, _mm512_set1_ps(16));
    for (int b = 0; b < n; b += 16, p += 16 * 22) {
        int k = n - b < 16 ? n - b : 16;
        _mm512_store_ps(d, heads_f16(heads(p, 22, k)));
        for (int i = 0; i < k; i++) {
            const uint8_t *q = (const uint8_t *)p + i * 22;
            __m512 s = _mm512_set1_ps(d[i]);
            store_step(dst, b + i,
                       lookup(fives(q + 2, q + 6),
                              bf16x32(_mm512_mul_ps(low, s), _mm512_mul_ps(high, s))));
        }
    }
}

/* 32 levels d * q + m. */
INLINE void row_q5_1(const char *p, int n, char *dst)
{
    float d[16] __attribute__((aligned(64))), m[16] __attribute__((aligned(64)));
    __m512 low = iota(), high = _mm512_add_ps(low, _mm512_set1_ps(16));
    for (int b = 0; b < n; b += 16, p += 16 * 24) {
        int k = n - b < 16 ? n - b : 16;
        __m512i h = heads(p, 24, k);
        _mm512_store_ps(d, heads_f16(h));
        _mm512_store_ps(m, heads_f16(_mm512_srli_epi32(h, 16)));
        for (int i = 0; i < k; i++) {
            const uint8_t *q = (const uint8_t *)p + i * 24;
            __m512 s = _mm512_set1_ps(d[i]), o = _mm512_set1_ps(m[i]);
            store_step(dst, b + i,
                       lookup(fives(q + 4, q + 8),
                              bf16x32(_mm512_fmadd_ps(low, s, o), _mm512_fmadd_ps(high, s, o))));
        }
    }
}

/* Too many levels for a table: bytes are converted and scaled. */
INLINE void row_q8_0(const char *p, int n, char *dst)
{
    float d[16] __attribute__((aligned(64)));
    for (int b = 0; b < n; b += 16, p += 16 * 34) {
        int k = n - b < 16 ? n - b : 16;
        _mm512_store_ps(d, heads_f16(heads(p, 34, k)));
        for (int i = 0; i < k; i++) {
            const char *q = p + i * 34 + 2;
            __m512 s = _mm512_set1_ps(d[i]);
            store_step(dst, b + i, bf16x32(bytes16(q, s), bytes16(q + 16, s)));
        }
    }
}

/* ---- blocks of 256 ---- */

/* d * scale of the 8 sub-blocks of a Q4_K or Q5_K block, then dmin * minimum of them. */
INLINE void scales_k4(const uint16_t *d_dmin, const uint8_t *scales, float out[16])
{
    uint32_t a, b, c;
    memcpy(&a, scales, 4);
    memcpy(&b, scales + 4, 4);
    memcpy(&c, scales + 8, 4);
    __m128i six =
        _mm_setr_epi32((int)(a & 0x3f3f3f3f), (int)((c & 0x0f0f0f0f) | (a >> 2 & 0x30303030)),
                       (int)(b & 0x3f3f3f3f), (int)((c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030)));
    _mm512_store_ps(out,
                    _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(six)), f16_pair(d_dmin)));
}

/* Two sub-blocks share a table of 2 x 16 values. */
INLINE void row_q4_k(const char *p, int n, char *dst)
{
    float s[16] __attribute__((aligned(64)));
    const __m512i upper = _mm512_set1_epi16(16);
    for (int b = 0; b < n; b += 8, p += 144) {
        const struct block_q4_k *q = (const void *)p;
        scales_k4(&q->d, q->scales, s);
        for (int g = 0; g < 4; g++) {
            __m512 lo =
                _mm512_fmsub_ps(iota(), _mm512_set1_ps(s[2 * g]), _mm512_set1_ps(s[8 + 2 * g]));
            __m512 hi =
                _mm512_fmsub_ps(iota(), _mm512_set1_ps(s[2 * g + 1]), _mm512_set1_ps(s[9 + 2 * g]));
            __m512i t = bf16x32(hi, lo),
                    w = widen(q->qs + 32 * g); /* index bit 4 selects the low nibble's table */
            store_step(dst, b + 2 * g, lookup(_mm512_or_si512(w, upper), t));
            store_step(dst, b + 2 * g + 1, lookup(_mm512_srli_epi16(w, 4), t));
        }
    }
}

/* The 32 values of a sub-block of Q5_K. */
INLINE __m512i table_k5(const float *s)
{
    __m512 d = _mm512_set1_ps(s[0]), m = _mm512_set1_ps(s[8]);
    __m512 lo = _mm512_fmsub_ps(iota(), d, m);
    return bf16x32(lo, _mm512_fmsub_ps(_mm512_add_ps(iota(), _mm512_set1_ps(16)), d, m));
}

INLINE void row_q5_k(const char *p, int n, char *dst)
{
    float s[16] __attribute__((aligned(64)));
    const __m512i low = _mm512_set1_epi16(15);
    for (int b = 0; b < n; b += 8, p += 176) {
        const struct block_q5_k *q = (const void *)p;
        scales_k4(&q->d, q->scales, s);
        __m512i h = _mm512_slli_epi16(widen(q->qh), 4); /* bit 4 + i belongs to group i */
        for (int g = 0; g < 4; g++) {
            __m512i w = widen(q->qs + 32 * g), h0 = _mm512_srli_epi16(h, (unsigned)(2 * g));
            store_step(dst, b + 2 * g, lookup(blend(low, w, h0), table_k5(s + 2 * g)));
            w = _mm512_srli_epi16(w, 4);
            h0 = _mm512_srli_epi16(h0, 1);
            store_step(dst, b + 2 * g + 1, lookup(blend(low, w, h0), table_k5(s + 2 * g + 1)));
        }
    }
}

/* 64 levels do not fit a table: bytes are built, converted and scaled per 16. */
INLINE void row_q6_k(const char *p, int n, char *dst)
{
    float s[16] __attribute__((aligned(64)));
    int8_t v[64] __attribute__((aligned(64)));
    const __m512i low = _mm512_set1_epi8(15), pair = _mm512_set1_epi8(48),
                  zero = _mm512_set1_epi8(32);
    const __m512i up = _mm512_inserti64x4(_mm512_set1_epi16(4), _mm256_set1_epi16(2), 1);
    for (int b = 0; b < n; b += 8, p += 210) {
        const struct block_q6_k *q = (const void *)p;
        __m512 d = _mm512_set1_ps(f16_at(&q->d));
        _mm512_store_ps(s, bytes16(q->scales, d));
        for (int g = 0; g < 4; g++) { /* 64 elements */
            __m512i l = _mm512_loadu_si512(q->ql + 64 * (g / 2));
            __m512i h =
                _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)(q->qh + 32 * (g / 2))));
            if (g & 1) {
                l = _mm512_srli_epi16(l, 4);
                h = _mm512_srli_epi16(h, 4);
            }
            h = _mm512_and_si512(_mm512_sllv_epi16(h, up), pair);
            _mm512_store_si512(v,
                               _mm512_sub_epi8(_mm512_or_si512(_mm512_and_si512(l, low), h), zero));
            for (int i = 0; i < 2; i++)
                store_step(dst, b + 2 * g + i,
                           bf16x32(bytes16(v + 32 * i, _mm512_set1_ps(s[4 * g + 2 * i])),
                                   bytes16(v + 32 * i + 16, _mm512_set1_ps(s[4 * g + 2 * i + 1]))));
        }
    }
}

/* first + i / 4: the sub-block that entry i belongs to in a table of four values per sub-block. */
INLINE __m512i each4(int first)
{
    return _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
                            _mm512_set1_epi32(first));
}

/* Index words of 32 elements of two sub-blocks: the value, and the sub-block number above its
 * `bits` bits. */
INLINE __m512i with_sub(__m512i value, int sub, int bits)
{
    __m512i s = _mm512_inserti64x4(_mm512_set1_epi16((short)(sub << bits)),
                                   _mm256_set1_epi16((short)((sub + 1) << bits)), 1);
    return blend(_mm512_set1_epi16((short)((1 << bits) - 1)), value, s);
}

/* Eight sub-blocks of four values share a table. */
INLINE void row_q2_k(const char *p, int n, char *dst)
{
    const __m512 value = _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
    for (int b = 0; b < n; b += 8, p += 84) {
        const struct block_q2_k *q = (const void *)p;
        __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)q->scales));
        __m512 d = _mm512_mul_ps(_mm512_set1_ps(f16_at(&q->d)),
                                 _mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(15))));
        __m512 m = _mm512_mul_ps(_mm512_set1_ps(f16_at(&q->dmin)),
                                 _mm512_cvtepi32_ps(_mm512_srli_epi32(both, 4)));
        for (int g = 0; g < 2; g++) { /* 128 elements, 8 sub-blocks */
            __m512i i0 = each4(8 * g), i1 = each4(8 * g + 4);
            __m512 lo =
                _mm512_fmsub_ps(value, _mm512_permutexvar_ps(i0, d), _mm512_permutexvar_ps(i0, m));
            __m512 hi =
                _mm512_fmsub_ps(value, _mm512_permutexvar_ps(i1, d), _mm512_permutexvar_ps(i1, m));
            __m512i t = bf16x32(lo, hi), w = widen(q->qs + 32 * g);
            for (int i = 0; i < 4; i++)
                store_step(dst, b + 4 * g + i,
                           lookup(with_sub(_mm512_srli_epi16(w, (unsigned)(2 * i)), 2 * i, 2), t));
        }
    }
}

/* d * scale of the 16 sub-blocks of a Q3_K block. */
INLINE void scales_k3(const struct block_q3_k *q, float out[16])
{
    uint32_t pairs;
    memcpy(&pairs, q->scales + 8, 4);
    __m128i a = _mm_loadl_epi64((const void *)q->scales);
    __m128i low = _mm_and_si128(_mm_unpacklo_epi64(a, _mm_srli_epi16(a, 4)), _mm_set1_epi8(15));
    __m128i high = _mm_srlv_epi32(_mm_set1_epi32((int)pairs), _mm_setr_epi32(0, 2, 4, 6));
    high = _mm_slli_epi16(_mm_and_si128(high, _mm_set1_epi8(3)), 4);
    __m128i sc = _mm_sub_epi8(_mm_or_si128(low, high), _mm_set1_epi8(32));
    __m512 d = _mm512_set1_ps(f16_at(&q->d));
    _mm512_store_ps(out, _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sc)), d));
}

/* Four sub-blocks of eight values share a table. */
INLINE void row_q3_k(const char *p, int n, char *dst)
{
    const __m512 value = _mm512_setr_ps(-4, -3, -2, -1, 0, 1, 2, 3, -4, -3, -2, -1, 0, 1, 2, 3);
    const __m512i two = _mm512_set1_epi16(3);
    float s[16] __attribute__((aligned(64)));
    for (int b = 0; b < n; b += 8, p += 110) {
        const struct block_q3_k *q = (const void *)p;
        scales_k3(q, s);
        __m512i high = _mm512_slli_epi16(widen(q->hmask), 2); /* bit 2 + i belongs to group i */
        for (int g = 0; g < 8; g += 2) {                      /* 64 elements, 4 sub-blocks */
            __m512i w = _mm512_srli_epi16(widen(q->qs + 32 * (g / 4)), (unsigned)(2 * (g % 4)));
            __m512i h = _mm512_srli_epi16(high, (unsigned)g);
            __m512 lo =
                _mm512_mask_mov_ps(_mm512_set1_ps(s[2 * g]), 0xff00, _mm512_set1_ps(s[2 * g + 1]));
            __m512 hi = _mm512_mask_mov_ps(_mm512_set1_ps(s[2 * g + 2]), 0xff00,
                                           _mm512_set1_ps(s[2 * g + 3]));
            __m512i t = bf16x32(_mm512_mul_ps(value, lo), _mm512_mul_ps(value, hi));
            store_step(dst, b + g, lookup(with_sub(blend(two, w, h), 0, 3), t));
            w = _mm512_srli_epi16(w, 2);
            h = _mm512_srli_epi16(h, 1);
            store_step(dst, b + g + 1, lookup(with_sub(blend(two, w, h), 2, 3), t));
        }
    }
}

/* A table of levels per sub-block of 32. */
INLINE void row_iq4_xs(const char *p, int n, char *dst)
{
    const __m512 v =
        _mm512_setr_ps(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    for (int b = 0; b < n; b += 8, p += 136) {
        const struct block_iq4_xs *q = (const void *)p;
        float d = f16_at(&q->d);
        for (int i = 0; i < 8; i++) {
            int sc = (q->scales_l[i / 2] >> 4 * (i % 2) & 15) | (q->scales_h >> 2 * i & 3) << 4;
            store_step(dst, b + i,
                       lookup(nibbles(q->qs + 16 * i), table16(v, d * (float)(sc - 32))));
        }
    }
}

/* One table for the whole super-block. */
INLINE void row_tq2_0(const char *p, int n, char *dst)
{
    const __m512 v = _mm512_setr_ps(-1, 0, 1, 2, -1, 0, 1, 2, -1, 0, 1, 2, -1, 0, 1, 2);
    for (int b = 0; b < n; b += 8, p += 66) {
        const struct block_tq2_0 *q = (const void *)p;
        __m512i t = table16(v, f16_at(&q->d));
        for (int g = 0; g < 2; g++) {
            __m512i w = widen(q->qs + 32 * g);
            for (int i = 0; i < 4; i++)
                store_step(dst, b + 4 * g + i, lookup(_mm512_srli_epi16(w, (unsigned)(2 * i)), t));
        }
    }
}

/* ---- unquantized types ---- */

/* Copied; the last columns are padded with zeros. */
INLINE void row_bf16(const char *p, int cols, char *dst)
{
    int s = 0;
    for (; 32 * s + 32 <= cols; s++) store_step(dst, s, _mm512_loadu_si512(p + 64 * s));
    if (cols % 32) store_step(dst, s, _mm512_maskz_loadu_epi16((1u << cols % 32) - 1, p + 64 * s));
}

/* 32 floats as bf16, and the rounding remainders as bf16 to the second panel. */
INLINE void store_split(char *dst, int step, size_t rest, __m512 a, __m512 b)
{
    __m512i hi = bf16x32(a, b);
    store_step(dst, step, hi);
    a = _mm512_sub_ps(a, widen_bf16(_mm512_castsi512_si256(hi)));
    b = _mm512_sub_ps(b, widen_bf16(_mm512_extracti64x4_epi64(hi, 1)));
    store_step(dst + rest, step, bf16x32(a, b));
}

/* F16 has more precision than bf16: two panels. */
INLINE void row_f16(const char *p, int cols, char *dst, size_t rest)
{
    for (int s = 0; 32 * s < cols; s++) {
        __mmask32 live = cols - 32 * s >= 32 ? ~0u : (1u << (cols - 32 * s)) - 1;
        __m512i h = _mm512_maskz_loadu_epi16(live, p + 64 * s);
        store_split(dst, s, rest, _mm512_cvtph_ps(_mm512_castsi512_si256(h)),
                    _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1)));
    }
}

/* F8 as F16: E5M2 is the upper byte of an F16; E4M3 shifted into F16's fields is too small by 2^8. */
INLINE void row_f8(const char *p, int cols, char *dst, bool e4m3)
{
    __m512 unit = _mm512_set1_ps(e4m3 ? 256 : 1);
    for (int s = 0; 32 * s < cols; s++) {
        __mmask32 live = cols - 32 * s >= 32 ? ~0u : (1u << (cols - 32 * s)) - 1;
        __m512i h =
            _mm512_slli_epi16(_mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(live, p + 32 * s)), 8);
        if (e4m3)
            h = blend(_mm512_set1_epi16(0x3f80), _mm512_srli_epi16(h, 1),
                      _mm512_and_si512(h, _mm512_set1_epi16(-0x8000)));
        store_step(dst, s,
                   bf16x32(_mm512_mul_ps(unit, _mm512_cvtph_ps(_mm512_castsi512_si256(h))),
                           _mm512_mul_ps(unit, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1)))));
    }
}

/* As row_f16. */
INLINE void row_f32(const char *p, int cols, char *dst, size_t rest)
{
    for (int s = 0; 32 * s < cols; s++) {
        __mmask32 live = cols - 32 * s >= 32 ? ~0u : (1u << (cols - 32 * s)) - 1;
        store_split(dst, s, rest, _mm512_maskz_loadu_ps((__mmask16)live, p + 128 * s),
                    _mm512_maskz_loadu_ps((__mmask16)(live >> 16), p + 128 * s + 64));
    }
}

/* Any other type: decoded to floats by quant_decode. */
static void row_other(enum dtype t, const char *p, int cols, char *dst)
{
    const struct dtype_info *d = dtype_info((int)t);
    float f[256] __attribute__((aligned(64)));
    for (int c = 0; c < cols; c += 256) {
        int n = cols - c < 256 ? cols - c : 256;
        quant_decode(t, p + (size_t)(c / d->block) * (size_t)d->bytes, f, n);
        for (int i = n; i % 32; i++) f[i] = 0;
        for (int i = 0; i < n; i += 32)
            store_step(dst, (c + i) / 32,
                       bf16x32(_mm512_load_ps(f + i), _mm512_load_ps(f + i + 16)));
    }
}

/* ---- panels ---- */

PANEL(panel_q4_0, row_q4_0(src, n, dst))
PANEL(panel_q4_1, row_q4_1(src, n, dst))
PANEL(panel_q5_0, row_q5_0(src, n, dst))
PANEL(panel_q5_1, row_q5_1(src, n, dst))
PANEL(panel_q8_0, row_q8_0(src, n, dst))
PANEL(panel_iq4_nl, row_iq4_nl(src, n, dst))
PANEL(panel_mxfp4, row_mxfp4(src, n, dst))
PANEL(panel_q2_k, row_q2_k(src, n, dst))
PANEL(panel_q3_k, row_q3_k(src, n, dst))
PANEL(panel_q4_k, row_q4_k(src, n, dst))
PANEL(panel_q5_k, row_q5_k(src, n, dst))
PANEL(panel_q6_k, row_q6_k(src, n, dst))
PANEL(panel_iq4_xs, row_iq4_xs(src, n, dst))
PANEL(panel_tq2_0, row_tq2_0(src, n, dst))
PANEL(panel_bf16, row_bf16(src, u->cols, dst))
PANEL(panel_f8_e4m3, row_f8(src, u->cols, dst, true))
PANEL(panel_f8_e5m2, row_f8(src, u->cols, dst, false))
PANEL(panel_f16, row_f16(src, u->cols, dst, u->rest))
PANEL(panel_f32, row_f32(src, u->cols, dst, u->rest))
PANEL(panel_other, row_other(u->type, src, u->cols, dst))

unpack_fn *unpack_find(enum dtype t)
{
    static unpack_fn *const table[DT_COUNT] = {
        [DT_Q4_0] = panel_q4_0,     [DT_Q4_1] = panel_q4_1,       [DT_Q5_0] = panel_q5_0,
        [DT_Q5_1] = panel_q5_1,     [DT_Q8_0] = panel_q8_0,       [DT_Q2_K] = panel_q2_k,
        [DT_Q3_K] = panel_q3_k,     [DT_Q4_K] = panel_q4_k,       [DT_Q5_K] = panel_q5_k,
        [DT_Q6_K] = panel_q6_k,     [DT_BF16] = panel_bf16,       [DT_F16] = panel_f16,
        [DT_IQ4_NL] = panel_iq4_nl, [DT_IQ4_XS] = panel_iq4_xs,   [DT_MXFP4] = panel_mxfp4,
        [DT_TQ2_0] = panel_tq2_0,   [DT_F8_E4M3] = panel_f8_e4m3, [DT_F8_E5M2] = panel_f8_e5m2,
        [DT_F32] = panel_f32,
    };
    unpack_fn *lattice = unpack_find_iq(t);
    return table[t] ? table[t] : lattice ? lattice : panel_other;
}
