/* gemm_unpack.h - weights from their file formats into panels of rows in lanes, for gemm_rows.h, which
 * includes this file in its middle and has the types.
 *
 * Common formats have a function for 8 whole rows, which transposes the packed bytes. All formats have
 * one that unpacks row by row and transposes then, which also serves the last rows. */
/* Sub-block s of 8 rows, from lane `lane` on: bytes, or 16 bits wide. */
INLINE void store_sub(struct panel *p, int s, int lane, __m256i v[8], const struct form f)
{
    if (!is_wide(f)) {
        if (f.is_signed)
            for (int r = 0; r < 8; r++) v[r] = _mm256_xor_si256(v[r], _mm256_set1_epi8((char)0x80));
        transpose8(v);
        UNROLL
        for (int k = 0; k < 8; k++)
            _mm256_storeu_si256((__m256i *)(p->q + (8 * s + k) * STEP_BYTES + 4 * lane), v[k]);
        return;
    }
    for (int half = 0; half < 2; half++) {
        __m256i w[8];
        UNROLL
        for (int r = 0; r < 8; r++)
            w[r] = _mm256_cvtepi8_epi16(half ? _mm256_extracti128_si256(v[r], 1)
                                             : _mm256_castsi256_si128(v[r]));
        transpose8(w);
        UNROLL
        for (int k = 0; k < 8; k++)
            _mm256_storeu_si256((__m256i *)(p->q + (16 * s + 8 * half + k) * STEP_BYTES + 4 * lane),
                                w[k]);
    }
}

/* Scales of 8 rows (or minima), 16 numbers each, become lanes: to[s][lane + row]. Without `half`, every
 * second one. times: a factor. */
INLINE void store_scales(float (*to)[LANES], int lane, const struct w256 w[8], const bool minima,
                         const float times, const bool half)
{
    for (int part = 0; part < (half ? 2 : 1); part++) {
        __m256i v[8];
        UNROLL
        for (int r = 0; r < 8; r++) {
            const float *at = minima ? w[r].m : w[r].d;
            __m256 a = _mm256_loadu_ps(at + 8 * part);
            if (!half) { /* the even ones of a and b: pairs in the order 0, 2, 1, 3 */
                a = _mm256_shuffle_ps(a, _mm256_loadu_ps(at + 8), 0x88);
                a = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(a), 0xd8));
            }
            v[r] = _mm256_castps_si256(_mm256_mul_ps(a, _mm256_set1_ps(times)));
        }
        transpose8(v);
        UNROLL
        for (int k = 0; k < 8; k++) _mm256_storeu_si256((__m256i *)(to[8 * part + k] + lane), v[k]);
    }
}

/* 8 rows of a super-block. n_rows of them exist; the others are zeros. */
INLINE void unpack_256(struct panel *p, int lane, const char *src, size_t stride, int n_rows,
                       const int kind, const struct form f)
{
    const struct iq_grid *grid = kind > IQ4_XS ? iq_grid() : NULL;
    struct w256 w[8];

    for (int r = 0; r < 8; r++) {
        if (r < n_rows) {
            load_any256(&w[r], src + (size_t)r * stride, grid, kind);
            _mm_prefetch(src + (size_t)r * stride + LOAD_AHEAD, _MM_HINT_T0);
            _mm_prefetch(src + (size_t)r * stride + LOAD_AHEAD + 64, _MM_HINT_T0);
        } else {
            memset(&w[r], 0, sizeof w[r]);
        }
    }
    store_scales(p->d, lane, w, false, 1, f.half);
    if (f.has_min) store_scales(p->m, lane, w, true, 1, f.half);
    else if (f.is_signed) store_scales(p->m, lane, w, false, -128, f.half);
    for (int s = 0; s < SUBS; s++) {
        __m256i v[8];
        UNROLL
        for (int r = 0; r < 8; r++) v[r] = w[r].q[s];
        store_sub(p, s, lane, v, f);
    }
}

/* n blocks of 32 columns of 8 rows. */
INLINE void unpack_32(struct panel *p, int lane, const char *src, size_t stride, int n_rows, int n,
                      const int kind, const struct form f)
{
    __m256i levels = levels_of(kind);

    for (int s = 0; s < n; s++) {
        __m256i v[8];
        for (int r = 0; r < 8; r++) {
            struct b32 w = { .q = _mm256_setzero_si256() };
            const char *at = src + (size_t)r * stride + s * f.bytes;
            if (r < n_rows) w = load_b32(at, levels, kind);
            if (r < n_rows) _mm_prefetch(at + LOAD_AHEAD, _MM_HINT_T0);
            v[r] = w.q;
            p->d[s][lane + r] = w.d;
            p->m[s][lane + r] = f.is_signed ? -128 * w.d : w.m;
        }
        store_sub(p, s, lane, v, f);
    }
}

/* ---- weights, 8 whole rows of common formats ----
 *
 * The packed bytes of 8 rows are transposed before their bits are taken apart: half as many vectors. */

enum { PREFETCH_LINES = 2 };

INLINE void prefetch_rows(const char *src, size_t stride)
{
    for (int r = 0; r < 8; r++)
        for (int i = 0; i < PREFETCH_LINES; i++)
            _mm_prefetch(src + (size_t)r * stride + LOAD_AHEAD + 64 * i, _MM_HINT_T0);
}

/* Vector k (of 8) of sub-block s. */
INLINE void store_step(struct panel *p, int s, int k, int lane, __m256i v)
{
    _mm256_storeu_si256((__m256i *)(p->q + (8 * s + k) * STEP_BYTES + 4 * lane), v);
}

/* A number of each of 8 sub-blocks, by rows; afterwards by sub-blocks. */
INLINE void store_numbers(float (*to)[LANES], int lane, const __m256 from[8])
{
    __m256i v[8];

    UNROLL
    for (int r = 0; r < 8; r++) v[r] = _mm256_castps_si256(from[r]);
    transpose8(v);
    UNROLL
    for (int s = 0; s < 8; s++) _mm256_storeu_si256((__m256i *)(to[s] + lane), v[s]);
}

INLINE void unpack_scales_45(struct panel *p, int lane, const char *src, size_t stride)
{
    __m256 d[8], m[8];

    UNROLL
    for (int r = 0; r < 8; r++) { /* Q5_K begins in the same way */
        const struct block_q4_k *b = (const void *)(src + (size_t)r * stride);
        read_scales_45(&d[r], &m[r], b->d, b->dmin, b->scales);
    }
    store_numbers(p->d, lane, d);
    store_numbers(p->m, lane, m);
}

INLINE void unpack_q4_k(struct panel *p, int lane, const char *src, size_t stride)
{
    prefetch_rows(src, stride);
    for (int i = 0; i < 8; i++) { /* 16 bytes: 16 columns of two sub-blocks */
        __m256i v[4];
        transpose_16_bytes(v, src + offsetof(struct block_q4_k, qs) + 16 * i, stride);
        UNROLL
        for (int k = 0; k < 4; k++) {
            store_step(p, i / 2 * 2, i % 2 * 4 + k, lane, bits(v[k], 0, 4, 0));
            store_step(p, i / 2 * 2 + 1, i % 2 * 4 + k, lane, bits(v[k], 4, 4, 0));
        }
    }
    unpack_scales_45(p, lane, src, stride);
}

INLINE void unpack_q5_k(struct panel *p, int lane, const char *src, size_t stride)
{
    prefetch_rows(src, stride);
    UNROLL
    for (int half = 0; half < 2; half++) {
        __m256i h[4];
        transpose_16_bytes(h, src + offsetof(struct block_q5_k, qh) + 16 * half, stride);
        UNROLL
        for (int j = 0; j < 4; j++) {
            __m256i v[4];
            transpose_16_bytes(v, src + offsetof(struct block_q5_k, qs) + 32 * j + 16 * half,
                               stride);
            UNROLL
            for (int k = 0; k < 4; k++) {
                __m256i a = bits(h[k], 2 * j, 1, 4), b = bits(h[k], 2 * j + 1, 1, 4);
                a = _mm256_or_si256(a, bits(v[k], 0, 4, 0));
                b = _mm256_or_si256(b, bits(v[k], 4, 4, 0));
                store_step(p, 2 * j, half * 4 + k, lane, a);
                store_step(p, 2 * j + 1, half * 4 + k, lane, b);
            }
        }
    }
    unpack_scales_45(p, lane, src, stride);
}

/* Sub-block 4 i + n has the low (n < 2) or high nibbles of 32 bytes n % 2 of ql, and bits 2 n of qh. */
INLINE void unpack_q6_k_bits(struct panel *p, int lane, const char *src, size_t stride)
{
    for (int i = 0; i < 2; i++)
        for (int half = 0; half < 2; half++) {
            const char *ql = src + offsetof(struct block_q6_k, ql) + 64 * i + 16 * half;
            __m256i h[4], v[4];
            transpose_16_bytes(h, src + offsetof(struct block_q6_k, qh) + 32 * i + 16 * half,
                               stride);
            UNROLL
            for (int n = 0; n < 2; n++) {
                transpose_16_bytes(v, ql + 32 * n, stride);
                UNROLL
                for (int k = 0; k < 4; k++) {
                    __m256i a = bits(h[k], 2 * n, 2, 4), b = bits(h[k], 2 * n + 4, 2, 4);
                    a = _mm256_or_si256(a, bits(v[k], 0, 4, 0));
                    b = _mm256_or_si256(b, bits(v[k], 4, 4, 0));
                    store_step(p, 4 * i + n, half * 4 + k, lane, a);
                    store_step(p, 4 * i + n + 2, half * 4 + k, lane, b);
                }
            }
        }
}

INLINE void unpack_q6_k(struct panel *p, int lane, const char *src, size_t stride)
{
    prefetch_rows(src, stride);
    unpack_q6_k_bits(p, lane, src, stride);
    for (int half = 0; half < 2; half++) {
        __m256 d[8], m[8];
        UNROLL
        for (int r = 0; r < 8; r++) {
            const struct block_q6_k *b = (const void *)(src + (size_t)r * stride);
            __m128i sc = _mm_loadl_epi64((const __m128i *)(b->scales + 8 * half));
            d[r] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(sc)),
                                 _mm256_set1_ps(_cvtsh_ss(b->d)));
            m[r] = _mm256_mul_ps(d[r], _mm256_set1_ps(-32));
        }
        store_numbers(p->d + 8 * half, lane, d);
        store_numbers(p->m + 8 * half, lane, m);
    }
}

/* The F16 at src of each of 8 rows. */
INLINE __m256 load_halves(const char *src, size_t stride)
{
    uint16_t d[8];

    for (int r = 0; r < 8; r++) memcpy(&d[r], src + (size_t)r * stride, sizeof d[r]);
    return _mm256_cvtph_ps(_mm_setr_epi16((short)d[0], (short)d[1], (short)d[2], (short)d[3],
                                          (short)d[4], (short)d[5], (short)d[6], (short)d[7]));
}

/* n blocks of 32 columns: F16 scale, then low nibbles of 16 columns and high ones of 16. */
INLINE void unpack_q4_0(struct panel *p, int lane, const char *src, size_t stride, int n)
{
    for (int s = 0; s < n; s++, src += sizeof(struct block_q4_0)) {
        __m256 d = load_halves(src, stride);
        __m256i v[4];
        for (int r = 0; r < 8; r++)
            _mm_prefetch(src + (size_t)r * stride + LOAD_AHEAD, _MM_HINT_T0);
        transpose_16_bytes(v, src + offsetof(struct block_q4_0, qs), stride);
        UNROLL
        for (int k = 0; k < 4; k++) {
            store_step(p, s, k, lane, bits(v[k], 0, 4, 0));
            store_step(p, s, k + 4, lane, bits(v[k], 4, 4, 0));
        }
        _mm256_storeu_ps(p->d[s] + lane, d);
        _mm256_storeu_ps(p->m[s] + lane, _mm256_mul_ps(d, _mm256_set1_ps(-8)));
    }
}

#if HAS_DOT4
/* n blocks of 32 columns: F16 scale, then signed bytes, which are offset by 128. */
INLINE void unpack_q8_0(struct panel *p, int lane, const char *src, size_t stride, int n)
{
    for (int s = 0; s < n; s++, src += sizeof(struct block_q8_0)) {
        __m256 d = load_halves(src, stride);
        for (int r = 0; r < 8; r++)
            _mm_prefetch(src + (size_t)r * stride + LOAD_AHEAD, _MM_HINT_T0);
        for (int half = 0; half < 2; half++) {
            __m256i v[4];
            transpose_16_bytes(v, src + offsetof(struct block_q8_0, qs) + 16 * half, stride);
            UNROLL
            for (int k = 0; k < 4; k++)
                store_step(p, s, 4 * half + k, lane,
                           _mm256_xor_si256(v[k], _mm256_set1_epi8((char)0x80)));
        }
        _mm256_storeu_ps(p->d[s] + lane, d);
        _mm256_storeu_ps(p->m[s] + lane, _mm256_mul_ps(d, _mm256_set1_ps(-128)));
    }
}
#endif

/* 256 columns of 8 rows that all exist; n: sub-blocks of 32. false: the format has no such function. */
INLINE bool unpack_whole_rows(struct panel *p, int lane, const char *src, size_t stride, int n,
                              const enum dtype type)
{
    switch (type) {
    case DT_Q4_K: unpack_q4_k(p, lane, src, stride); return true;
    case DT_Q5_K: unpack_q5_k(p, lane, src, stride); return true;
    case DT_Q6_K: unpack_q6_k(p, lane, src, stride); return true;
    case DT_Q4_0: unpack_q4_0(p, lane, src, stride, n); return true;
#if HAS_DOT4
    case DT_Q8_0: unpack_q8_0(p, lane, src, stride, n); return true;
#endif
    default: return false;
    }
}

/* 256 columns of 8 rows from their file format; n: sub-blocks of 32 that exist. */
INLINE void unpack_rows(struct panel *p, int lane, const char *src, size_t stride, int n_rows,
                        int n, const struct form f)
{
    if (n_rows == 8 && unpack_whole_rows(p, lane, src, stride, n, f.type)) return;
#define UNPACK_256(t, kind) \
    if (f.type == t) unpack_256(p, lane, src, stride, n_rows, kind, f)
#define UNPACK_32(t, kind) \
    if (f.type == t) unpack_32(p, lane, src, stride, n_rows, n, kind, f)
    UNPACK_256(DT_Q2_K, Q2_K);
    UNPACK_256(DT_Q3_K, Q3_K);
    UNPACK_256(DT_Q4_K, Q4_K);
    UNPACK_256(DT_Q5_K, Q5_K);
    UNPACK_256(DT_Q6_K, Q6_K);
    UNPACK_256(DT_IQ4_XS, IQ4_XS);
    UNPACK_256(DT_IQ2_XXS, IQ2_XXS);
    UNPACK_256(DT_IQ2_XS, IQ2_XS);
    UNPACK_256(DT_IQ2_S, IQ2_S);
    UNPACK_256(DT_IQ3_XXS, IQ3_XXS);
    UNPACK_256(DT_IQ3_S, IQ3_S);
    UNPACK_256(DT_IQ1_S, IQ1_S);
    UNPACK_256(DT_IQ1_M, IQ1_M);
    UNPACK_256(DT_TQ1_0, TQ1_0);
    UNPACK_256(DT_TQ2_0, TQ2_0);
    UNPACK_32(DT_Q4_0, Q4_0);
    UNPACK_32(DT_Q4_1, Q4_1);
    UNPACK_32(DT_Q5_0, Q5_0);
    UNPACK_32(DT_Q5_1, Q5_1);
    UNPACK_32(DT_Q8_0, Q8_0);
    UNPACK_32(DT_IQ4_NL, IQ4_NL);
    UNPACK_32(DT_MXFP4, MXFP4);
#undef UNPACK_256
#undef UNPACK_32
}
