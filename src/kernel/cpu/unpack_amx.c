#include "kernel/cpu/unpack.h"

#include "kernel/blocks.h"
#include "kernel/quant.h"

#include <immintrin.h>

/* Most formats have few values in a block: all of them are computed at once, rounded to bf16,
 * and each weight then is a table look-up (vpermw takes the low 5 bits of every index). */

#define INLINE static inline __attribute__((always_inline))

INLINE __m512i bf16x32(__m512 lo, __m512 hi) { return (__m512i)_mm512_cvtne2ps_pbh(hi, lo); }
INLINE __m512i lookup(__m512i index, __m512i table) { return _mm512_permutexvar_epi16(index, table); }
INLINE __m512i widen(const void *p) { return _mm512_cvtepu8_epi16(_mm256_loadu_si256(p)); }
INLINE __m512i load16x2(const void *p) { return _mm512_cvtepu8_epi16(_mm256_broadcastsi128_si256(_mm_loadu_si128(p))); }
INLINE __m512i blend(__m512i mask, __m512i a, __m512i b) { return _mm512_ternarylogic_epi32(mask, a, b, 0xca); }

INLINE __m512 iota(void)
{
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

INLINE float f16_at(const uint16_t *h) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(*h))); }

/* Two F16 side by side: the first eight times, the second eight times. */
INLINE __m512 f16_pair(const uint16_t *h)
{
    uint32_t both;
    memcpy(&both, h, 4);
    __m512i twice = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    return _mm512_permutexvar_ps(twice, _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi32_si128((int)both))));
}

/* The first four bytes of up to 16 blocks. */
INLINE __m512i heads(const char *p, int block_bytes, int n)
{
    __m512i at = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                    _mm512_set1_epi32(block_bytes));
    __mmask16 live = (__mmask16)(n < 16 ? (1u << n) - 1 : 0xffff);
    return _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), live, at, p, 1);
}
INLINE __m512 heads_f16(__m512i heads) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(heads)); }

INLINE void put(char *panel, int step, __m512i v) { _mm512_store_si512(panel + (size_t)step * 64, v); }

/* ---- blocks of 32 ---- */

/* Nibbles of a 32-block as words: 16 low ones, then 16 high ones; only the low 4 bits count. */
INLINE __m512i nibbles(const uint8_t *qs)
{
    __m512i shift = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
    return _mm512_srlv_epi16(load16x2(qs), shift);
}

/* values[q] * d + m in both halves of the table, so that bit 4 of an index is of no account. */
INLINE __m512i table16(__m512 values, float d) 
{
    __m512 t = _mm512_mul_ps(values, _mm512_set1_ps(d));
    return bf16x32(t, t);
}

INLINE void row_nibbles(const char *p, int n, char *dst, int block_bytes, int at, __m512 values, bool e8m0)
{
    float d[16] __attribute__((aligned(64)));
    for (int b = 0; b < n; b += 16, p += 16 * block_bytes) {
        int k = n - b < 16 ? n - b : 16;
        __m512i h = heads(p, block_bytes, k);
        __m512 scale = e8m0 ? _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_and_si512(h, _mm512_set1_epi32(255)), 23))
                            : heads_f16(h);
        _mm512_store_ps(d, scale);
        for (int i = 0; i < k; i++)
            put(dst, b + i, lookup(nibbles((const uint8_t *)p + i * block_bytes + at), table16(values, d[i])));
    }
}

INLINE void row_q4_0(const char *p, int n, char *dst)
{
    row_nibbles(p, n, dst, 18, 2, _mm512_sub_ps(iota(), _mm512_set1_ps(8)), false);
}
INLINE void row_iq4_nl(const char *p, int n, char *dst)
{
    __m512 v = _mm512_setr_ps(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    row_nibbles(p, n, dst, 18, 2, v, false);
}
INLINE void row_mxfp4(const char *p, int n, char *dst)
{
    __m512 v = _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6);
    row_nibbles(p, n, dst, 17, 1, v, true);
}

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
            put(dst, b + i, lookup(nibbles((const uint8_t *)p + i * 20 + 4), bf16x32(t, t)));
        }
    }
}

/* Nibbles and their fifth bits. */
INLINE __m512i fives(const uint8_t *qh, const uint8_t *qs)
{
    uint32_t bits;
    memcpy(&bits, qh, 4);
    __m512i q = _mm512_and_si512(nibbles(qs), _mm512_set1_epi16(15));
    return _mm512_mask_add_epi16(q, _cvtu32_mask32(bits), q, _mm512_set1_epi16(16));
}

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
            put(dst, b + i, lookup(fives(q + 2, q + 6), bf16x32(_mm512_mul_ps(low, s), _mm512_mul_ps(high, s))));
        }
    }
}

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
            put(dst, b + i, lookup(fives(q + 4, q + 8), bf16x32(_mm512_fmadd_ps(low, s, o), _mm512_fmadd_ps(high, s, o))));
        }
    }
}

/* 16 signed bytes times a scale. */
INLINE __m512 bytes16(const void *p, __m512 scale)
{
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p))), scale);
}

INLINE void row_q8_0(const char *p, int n, char *dst)
{
    float d[16] __attribute__((aligned(64)));
    for (int b = 0; b < n; b += 16, p += 16 * 34) {
        int k = n - b < 16 ? n - b : 16;
        _mm512_store_ps(d, heads_f16(heads(p, 34, k)));
        for (int i = 0; i < k; i++) {
            const char *q = p + i * 34 + 2;
            __m512 s = _mm512_set1_ps(d[i]);
            put(dst, b + i, bf16x32(bytes16(q, s), bytes16(q + 16, s)));
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
    __m128i six = _mm_setr_epi32((int)(a & 0x3f3f3f3f), (int)((c & 0x0f0f0f0f) | (a >> 2 & 0x30303030)),
                                 (int)(b & 0x3f3f3f3f), (int)((c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030)));
    _mm512_store_ps(out, _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(six)), f16_pair(d_dmin)));
}

INLINE void row_q4_k(const char *p, int n, char *dst)
{
    float s[16] __attribute__((aligned(64)));
    const __m512i upper = _mm512_set1_epi16(16);
    for (int b = 0; b < n; b += 8, p += 144) {
        const struct block_q4_k *q = (const void *)p;
        scales_k4(&q->d, q->scales, s);
        for (int g = 0; g < 4; g++) {
            __m512 lo = _mm512_fmsub_ps(iota(), _mm512_set1_ps(s[2 * g]), _mm512_set1_ps(s[8 + 2 * g]));
            __m512 hi = _mm512_fmsub_ps(iota(), _mm512_set1_ps(s[2 * g + 1]), _mm512_set1_ps(s[9 + 2 * g]));
            __m512i t = bf16x32(hi, lo), w = widen(q->qs + 32 * g);      /* index bit 4: the low nibble's table */
            put(dst, b + 2 * g, lookup(_mm512_or_si512(w, upper), t));
            put(dst, b + 2 * g + 1, lookup(_mm512_srli_epi16(w, 4), t));
        }
    }
}

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
        __m512i h = _mm512_slli_epi16(widen(q->qh), 4);                  /* bit 4 + i: of group i */
        for (int g = 0; g < 4; g++) {
            __m512i w = widen(q->qs + 32 * g), h0 = _mm512_srli_epi16(h, (unsigned)(2 * g));
            put(dst, b + 2 * g, lookup(blend(low, w, h0), table_k5(s + 2 * g)));
            w = _mm512_srli_epi16(w, 4);
            h0 = _mm512_srli_epi16(h0, 1);
            put(dst, b + 2 * g + 1, lookup(blend(low, w, h0), table_k5(s + 2 * g + 1)));
        }
    }
}

INLINE void row_q6_k(const char *p, int n, char *dst)
{
    float s[16] __attribute__((aligned(64)));
    int8_t v[64] __attribute__((aligned(64)));
    const __m512i low = _mm512_set1_epi8(15), pair = _mm512_set1_epi8(48), zero = _mm512_set1_epi8(32);
    const __m512i up = _mm512_inserti64x4(_mm512_set1_epi16(4), _mm256_set1_epi16(2), 1);
    for (int b = 0; b < n; b += 8, p += 210) {
        const struct block_q6_k *q = (const void *)p;
        __m512 d = _mm512_set1_ps(f16_at(&q->d));
        _mm512_store_ps(s, bytes16(q->scales, d));
        for (int g = 0; g < 4; g++) {                                    /* 64 elements */
            __m512i l = _mm512_loadu_si512(q->ql + 64 * (g / 2));
            __m512i h = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)(q->qh + 32 * (g / 2))));
            if (g & 1) {
                l = _mm512_srli_epi16(l, 4);
                h = _mm512_srli_epi16(h, 4);
            }
            h = _mm512_and_si512(_mm512_sllv_epi16(h, up), pair);
            _mm512_store_si512(v, _mm512_sub_epi8(_mm512_or_si512(_mm512_and_si512(l, low), h), zero));
            for (int i = 0; i < 2; i++)
                put(dst, b + 2 * g + i, bf16x32(bytes16(v + 32 * i, _mm512_set1_ps(s[4 * g + 2 * i])),
                                                bytes16(v + 32 * i + 16, _mm512_set1_ps(s[4 * g + 2 * i + 1]))));
        }
    }
}

/* i >> 2, plus first: which sub-block entry i of a table of four values each belongs to. */
INLINE __m512i each4(int first)
{
    return _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
                            _mm512_set1_epi32(first));
}

/* Index words of 32 elements: their sub-block (two of them, `bits` above the value) and value. */
INLINE __m512i with_sub(__m512i value, int sub, int bits)
{
    __m512i s = _mm512_inserti64x4(_mm512_set1_epi16((short)(sub << bits)),
                                   _mm256_set1_epi16((short)((sub + 1) << bits)), 1);
    return blend(_mm512_set1_epi16((short)((1 << bits) - 1)), value, s);
}

INLINE void row_q2_k(const char *p, int n, char *dst)
{
    const __m512 value = _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
    for (int b = 0; b < n; b += 8, p += 84) {
        const struct block_q2_k *q = (const void *)p;
        __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)q->scales));
        __m512 d = _mm512_mul_ps(_mm512_set1_ps(f16_at(&q->d)),
                                 _mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(15))));
        __m512 m = _mm512_mul_ps(_mm512_set1_ps(f16_at(&q->dmin)), _mm512_cvtepi32_ps(_mm512_srli_epi32(both, 4)));
        for (int g = 0; g < 2; g++) {                                    /* 128 elements, 8 sub-blocks */
            __m512i i0 = each4(8 * g), i1 = each4(8 * g + 4);
            __m512 lo = _mm512_fmsub_ps(value, _mm512_permutexvar_ps(i0, d), _mm512_permutexvar_ps(i0, m));
            __m512 hi = _mm512_fmsub_ps(value, _mm512_permutexvar_ps(i1, d), _mm512_permutexvar_ps(i1, m));
            __m512i t = bf16x32(lo, hi), w = widen(q->qs + 32 * g);
            for (int i = 0; i < 4; i++)
                put(dst, b + 4 * g + i, lookup(with_sub(_mm512_srli_epi16(w, (unsigned)(2 * i)), 2 * i, 2), t));
        }
    }
}

INLINE void row_q3_k(const char *p, int n, char *dst)
{
    const __m512 value = _mm512_setr_ps(-4, -3, -2, -1, 0, 1, 2, 3, -4, -3, -2, -1, 0, 1, 2, 3);
    const __m512i two = _mm512_set1_epi16(3);
    float s[16] __attribute__((aligned(64)));
    for (int b = 0; b < n; b += 8, p += 110) {
        const struct block_q3_k *q = (const void *)p;
        float d = f16_at(&q->d);
        for (int i = 0; i < 16; i++) s[i] = d * (float)quant_k3_scale(q->scales, i);
        __m512i high = widen(q->hmask);
        for (int g = 0; g < 8; g++) {                                    /* 32 elements, 2 sub-blocks */
            __m512 t = _mm512_mul_ps(value, _mm512_mask_broadcastss_ps(_mm512_set1_ps(s[2 * g]), 0xff00,
                                                                       _mm_set1_ps(s[2 * g + 1])));
            __m512i w = _mm512_srli_epi16(widen(q->qs + 32 * (g / 4)), (unsigned)(2 * (g % 4)));
            __m512i h = _mm512_srli_epi16(_mm512_slli_epi16(high, 2), (unsigned)g);
            put(dst, b + g, lookup(with_sub(blend(two, w, h), 0, 3), bf16x32(t, t)));
        }
    }
}

INLINE void row_iq4_xs(const char *p, int n, char *dst)
{
    const __m512 v = _mm512_setr_ps(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    for (int b = 0; b < n; b += 8, p += 136) {
        const struct block_iq4_xs *q = (const void *)p;
        float d = f16_at(&q->d);
        for (int i = 0; i < 8; i++) {
            int sc = (q->scales_l[i / 2] >> 4 * (i % 2) & 15) | (q->scales_h >> 2 * i & 3) << 4;
            put(dst, b + i, lookup(nibbles(q->qs + 16 * i), table16(v, d * (float)(sc - 32))));
        }
    }
}

INLINE void row_tq2_0(const char *p, int n, char *dst)
{
    const __m512 v = _mm512_setr_ps(-1, 0, 1, 2, -1, 0, 1, 2, -1, 0, 1, 2, -1, 0, 1, 2);
    for (int b = 0; b < n; b += 8, p += 66) {
        const struct block_tq2_0 *q = (const void *)p;
        __m512i t = table16(v, f16_at(&q->d));
        for (int g = 0; g < 2; g++) {
            __m512i w = widen(q->qs + 32 * g);
            for (int i = 0; i < 4; i++)
                put(dst, b + 4 * g + i, lookup(_mm512_srli_epi16(w, (unsigned)(2 * i)), t));
        }
    }
}

/* ---- plain numbers ---- */

INLINE void row_bf16(const char *p, int cols, char *dst)
{
    int s = 0;
    for (; 32 * s + 32 <= cols; s++) put(dst, s, _mm512_loadu_si512(p + 64 * s));
    if (cols % 32) put(dst, s, _mm512_maskz_loadu_epi16((1u << cols % 32) - 1, p + 64 * s));
}

INLINE __m512 widen_bf16(__m256i v) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16)); }

/* 32 floats as bf16, and what the rounding took away as bf16 again. */
INLINE void put_split(char *dst, int step, size_t rest, __m512 a, __m512 b)
{
    __m512i hi = bf16x32(a, b);
    put(dst, step, hi);
    a = _mm512_sub_ps(a, widen_bf16(_mm512_castsi512_si256(hi)));
    b = _mm512_sub_ps(b, widen_bf16(_mm512_extracti64x4_epi64(hi, 1)));
    put(dst + rest, step, bf16x32(a, b));
}

INLINE void row_f16(const char *p, int cols, char *dst, size_t rest)
{
    for (int s = 0; 32 * s < cols; s++) {
        __mmask32 live = cols - 32 * s >= 32 ? ~0u : (1u << (cols - 32 * s)) - 1;
        __m512i h = _mm512_maskz_loadu_epi16(live, p + 64 * s);
        put_split(dst, s, rest, _mm512_cvtph_ps(_mm512_castsi512_si256(h)),
                  _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1)));
    }
}

INLINE void row_f32(const char *p, int cols, char *dst, size_t rest)
{
    for (int s = 0; 32 * s < cols; s++) {
        __mmask32 live = cols - 32 * s >= 32 ? ~0u : (1u << (cols - 32 * s)) - 1;
        put_split(dst, s, rest, _mm512_maskz_loadu_ps((__mmask16)live, p + 128 * s),
                  _mm512_maskz_loadu_ps((__mmask16)(live >> 16), p + 128 * s + 64));
    }
}

/* Any other type: through floats. */
static void row_other(enum dtype t, const char *p, int cols, char *dst)
{
    const struct dtype_info *d = dtype_info((int)t);
    float f[256] __attribute__((aligned(64)));
    for (int c = 0; c < cols; c += 256) {
        int n = cols - c < 256 ? cols - c : 256;
        quant_decode(t, p + (size_t)(c / d->block) * (size_t)d->bytes, f, n);
        for (int i = n; i % 32; i++) f[i] = 0;
        for (int i = 0; i < n; i += 32) put(dst, (c + i) / 32, bf16x32(_mm512_load_ps(f + i), _mm512_load_ps(f + i + 16)));
    }
}

/* ---- panels ---- */

INLINE void fetch(const struct unpack *u, int row, size_t bytes)
{
    if (!u->next) return;
    const char *p = u->next + (size_t)row * u->row_bytes;
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch(p + i, _MM_HINT_T1);
}

/* A panel's loop over rows; seg is the bytes of a row that it reads. */
#define PANEL(name, call)                                                                                  \
    static void name(const struct unpack *u, char *panel, int row0, int row1)                              \
    {                                                                                                      \
        const struct dtype_info *info = dtype_info((int)u->type);                                          \
        size_t seg = (size_t)(u->cols / info->block) * (size_t)info->bytes;                                \
        int n = u->cols / 32;                                                                              \
        (void)n;                                                                                           \
        for (int r = row0; r < row1; r++) {                                                                \
            const char *src = u->src + (size_t)r * u->row_bytes;                                           \
            char *dst = panel + (size_t)r * u->stride;                                                                   \
            fetch(u, r, seg);                                                                              \
            call;                                                                                          \
        }                                                                                                  \
    }

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
PANEL(panel_f16, row_f16(src, u->cols, dst, u->rest))
PANEL(panel_f32, row_f32(src, u->cols, dst, u->rest))
PANEL(panel_other, row_other(u->type, src, u->cols, dst))

unpack_fn *unpack_find(enum dtype t)
{
    static unpack_fn *const table[DT_COUNT] = {
        [DT_Q4_0] = panel_q4_0,     [DT_Q4_1] = panel_q4_1,   [DT_Q5_0] = panel_q5_0, [DT_Q5_1] = panel_q5_1,
        [DT_Q8_0] = panel_q8_0,     [DT_Q2_K] = panel_q2_k,   [DT_Q3_K] = panel_q3_k, [DT_Q4_K] = panel_q4_k,
        [DT_Q5_K] = panel_q5_k,     [DT_Q6_K] = panel_q6_k,   [DT_BF16] = panel_bf16, [DT_F16] = panel_f16,
        [DT_IQ4_NL] = panel_iq4_nl, [DT_IQ4_XS] = panel_iq4_xs, [DT_MXFP4] = panel_mxfp4, [DT_TQ2_0] = panel_tq2_0,
        [DT_F32] = panel_f32,
    };
    return table[t] ? table[t] : panel_other;
}
