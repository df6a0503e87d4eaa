/* rtn_formats.h - the encoder of each format, on top of rtn_impl.h, which includes this. */

typedef void encode_fn(const float *x, const float *w, void *dst, int64_t n);

/* Defines the encoder of a K format: `fit` computes a chunk, `put` packs each of its super-blocks. */
#define ENCODE_K(name, sub, fit, put)                                                   \
    static void encode_##name(const float *x, const float *w, void *dst, int64_t n)     \
    {                                                                                   \
        struct block_##name *b = dst;                                                   \
        struct chunk c;                                                                 \
        for (int64_t at = 0; at < n; at += CHUNK(sub)) {                                \
            fill_chunk(&c, x + at, w ? w + at : NULL, n - at, CHUNK(sub), sub, QK_K);   \
            fit;                                                                        \
            for (int k = 0; k < CHUNK(sub) / QK_K && at + k * QK_K < n; k++, b++) {     \
                const uint8_t *q = c.q + k * QK_K;                                      \
                const int *sc = c.sc + k * (QK_K / sub), *mc = c.mc + k * (QK_K / sub); \
                (void)mc;                                                               \
                b->d = c.d[k];                                                          \
                put;                                                                    \
            }                                                                           \
        }                                                                               \
    }

/* Packs one super-block from its integers. */
static void pack_q2_k(struct block_q2_k *b, const uint8_t *q, const int *sc, const int *mc)
{
    for (int j = 0; j < 16; j++) b->scales[j] = (uint8_t)(sc[j] | mc[j] << 4);
    pack_pairs(b->qs, q);
}

static void pack_q3_k(struct block_q3_k *b, const uint8_t *q, const int *sc)
{
    pack_k3_scales(b->scales, sc);
    pack_tops(b->hmask, q, 2);
    pack_pairs(b->qs, q);
}

static void pack_q4_k(struct block_q4_k *b, const uint8_t *q, const int *sc, const int *mc)
{
    pack_k4_scales(b->scales, sc, mc);
    pack_k_nibbles(b->qs, q);
}

static void pack_q5_k(struct block_q5_k *b, const uint8_t *q, const int *sc, const int *mc)
{
    pack_k4_scales(b->scales, sc, mc);
    pack_k_nibbles(b->qs, q);
    pack_tops(b->qh, q, 4);
}

static void pack_q6_k(struct block_q6_k *b, const uint8_t *q, const int *sc)
{
    for (int j = 0; j < 16; j++) b->scales[j] = (int8_t)sc[j];
    pack_sixes(b->ql, b->qh, q);
}

static void pack_iq4_xs(struct block_iq4_xs *b, const uint8_t *q, const int *sc)
{
    pack_xs_scales(b, sc);
    for (int i = 0; i < 8; i++) pack_nibbles(b->qs + i * 16, q + i * 32);
}

ENCODE_K(q2_k, 16, fit_affine_chunk(&c, 16, 3, 15), (b->dmin = c.dmin[k], pack_q2_k(b, q, sc, mc)))
ENCODE_K(q4_k, 32, fit_affine_chunk(&c, 32, 15, 63), (b->dmin = c.dmin[k], pack_q4_k(b, q, sc, mc)))
ENCODE_K(q5_k, 32, fit_affine_chunk(&c, 32, 31, 63), (b->dmin = c.dmin[k], pack_q5_k(b, q, sc, mc)))
ENCODE_K(q3_k, 16, fit_signed_chunk(&c, 16, 4, 32), pack_q3_k(b, q, sc))
ENCODE_K(q6_k, 16, fit_signed_chunk(&c, 16, 32, 128), pack_q6_k(b, q, sc))
ENCODE_K(iq4_xs, 32, fit_signed_chunk(&c, 32, 0, 32), pack_iq4_xs(b, q, sc))

/* ---- formats with one scale per 32 elements ---- */

/* W blocks of a row, and their scales and minima as F16. */
struct small {
    struct chunk c;
    uint16_t d[W], m[W];
};

/* Rounds scales to F16; returns them as floats again. */
INLINE vf round_to_f16(uint16_t *to, vf s)
{
    float f[W];
    v_store(f, s);
    for (int j = 0; j < W; j++) {
        to[j] = as_f16(f[j]);
        f[j] = f16_to_f32(to[j]);
    }
    return v_load(f);
}

/* Fits W blocks at once; q is stored with offset top. */
INLINE void fit_small_signed(struct small *s, float top)
{
    struct panel p;
    load_panel(&p, s->c.x, s->c.w, 32);
    round_signed_codes(s->c.q, &p, 32, top, round_to_f16(s->d, search_signed(&p, 32, top)));
}

/* As fit_small_signed, with a minimum. */
INLINE void fit_small_affine(struct small *s, float top)
{
    struct panel p;
    vf q[32];
    load_panel(&p, s->c.x, s->c.w, 32);
    struct affine a = search_affine(&p, 32, top, true);
    vf id = v_inverse(round_to_f16(s->d, a.s)), m = -round_to_f16(s->m, -a.m), off = m * id;
    for (int i = 0; i < 32; i++) q[i] = round_affine(p.x[i], id, off, top);
    store_panel(s->c.q, q, 32);
}

/* Defines the encoder of a 32-element format: W blocks per step. */
#define ENCODE_SMALL(name, fit, put)                                                \
    static void encode_##name(const float *x, const float *w, void *dst, int64_t n) \
    {                                                                               \
        struct block_##name *b = dst;                                               \
        struct small s;                                                             \
        for (int64_t at = 0; at < n; at += W * QK) {                                \
            fill_chunk(&s.c, x + at, w ? w + at : NULL, n - at, W * QK, QK, QK);    \
            fit;                                                                    \
            for (int k = 0; k < W && at + k * QK < n; k++, b++) {                   \
                const uint8_t *q = s.c.q + k * QK;                                  \
                b->d = s.d[k];                                                      \
                put;                                                                \
            }                                                                       \
        }                                                                           \
    }

ENCODE_SMALL(q4_0, fit_small_signed(&s, 8), pack_nibbles(b->qs, q))
ENCODE_SMALL(q5_0, fit_small_signed(&s, 16), pack_fives(b->qh, b->qs, q))
ENCODE_SMALL(iq4_nl, fit_small_signed(&s, 0), pack_nibbles(b->qs, q))
ENCODE_SMALL(q4_1, fit_small_affine(&s, 15), (b->m = s.m[k], pack_nibbles(b->qs, q)))
ENCODE_SMALL(q5_1, fit_small_affine(&s, 31), (b->m = s.m[k], pack_fives(b->qh, b->qs, q)))

/* No search: the scale of the largest element is best at 8 bits. */
static void encode_q8_0(const float *x, const float *w, void *dst, int64_t n)
{
    struct block_q8_0 *b = dst;
    (void)w;
    for (int64_t at = 0; at < n; at += QK, b++) {
        vf max = v_set(0);
        for (int i = 0; i < QK; i += W) max = v_max(max, v_abs(v_load(x + at + i)));
        float d = v_hmax(max) / 127, id = fabsf(d) > 1e-38f ? 1 / d : 0;
        b->d = as_f16(d);
        for (int i = 0; i < QK; i += W) {
            vf t = v_fma(v_load(x + at + i), v_set(id), v_set(MAGIC)) - v_set(MAGIC);
            v_store_i8(b->qs + i, t);
        }
    }
}

/* ---- ternary: x is -d, 0 or d ---- */

/* The d with the least error if elements above d/2 in magnitude become d and others 0. */
static float find_ternary_scale(const float *x, const float *w)
{
    float amax = 0, best = 0, best_gain = 0;
    for (int i = 0; i < QK_K; i++) amax = fmaxf(amax, fabsf(x[i]));
    for (int k = 0; k < 14; k++) {
        vf from = v_set(k < 12 ? amax * (0.04f + 0.08f * (float)k) : best / 2), sx = v_set(0),
           sw = v_set(0);
        for (int i = 0; i < QK_K; i += W) {
            vf a = v_abs(v_load(x + i)), u = w ? v_load(w + i) : v_set(1);
            u = v_sel_gt(a, from, u, v_set(0));
            sx = v_fma(u, a, sx);
            sw = sw + u;
        }
        float s = v_sum(sx), d = s * inverse(v_sum(sw));
        if (d * s > best_gain) best_gain = d * s, best = d;
    }
    return best_gain > 0 ? best : amax;
}

/* Elements up to d/2 become 0; quant_encode packs the rest. */
static void encode_ternary(enum dtype t, const float *x, const float *w, void *dst, int64_t n)
{
    char *to = dst;
    for (int64_t at = 0; at < n; at += QK_K, to += dtype_info((int)t)->bytes) {
        float y[QK_K], d = f16_to_f32(as_f16(find_ternary_scale(x + at, w ? w + at : NULL)));
        for (int i = 0; i < QK_K; i++)
            y[i] = fabsf(x[at + i]) <= d / 2 ? 0 : x[at + i] < 0 ? -d : d;
        quant_encode(t, y, to, QK_K);
    }
}

/* ---- MXFP4: a power-of-two scale per 32 elements of E2M1 ---- */

/* Rounds to q with block exponent e and returns the weighted error. */
static float round_mxfp4(const float *x, const float *w, int e, uint8_t *q)
{
    static const float between[7] = { 0.5f, 1.5f, 2.5f, 3.5f, 5, 7, 10 };
    vf d = v_set(ldexpf(1, e - 128)), id = v_set(ldexpf(1, 128 - e)), sum = v_set(0);
    for (int i = 0; i < QK; i += W) {
        vf v = v_load(x + i), mag = v_abs(v) * id, level = v_set(0), n = v_set(0);
        for (int l = 0; l < 7; l++) {
            level = v_sel_gt(mag, v_set(between[l]), v_set(mxfp4_levels[l + 1]), level);
            n = v_sel_gt(mag, v_set(between[l]), v_set((float)(l + 1)), n);
        }
        vf r = v_fma(level, d, -v_abs(v));
        vf u = w ? v_load(w + i) : v_set(1);
        sum = v_fma(u * r, r, sum);
        v_store_i8((int8_t *)q + i,
                   v_sel_gt(v_set(0), v, v_sel_gt(n, v_set(0), n + v_set(8), n), n));
    }
    return v_sum(sum);
}

/* Tries three exponents around that of the largest element. */
static void encode_mxfp4(const float *x, const float *w, void *dst, int64_t n)
{
    struct block_mxfp4 *b = dst;
    for (int64_t at = 0; at < n; at += QK, b++) {
        float amax = 0, best = WORST;
        int exp;
        for (int i = 0; i < QK; i++) amax = fmaxf(amax, fabsf(x[at + i]));
        if (!(amax > 1e-15f && amax < 1e15f)) {
            quant_encode(DT_MXFP4, x + at, b, QK);
            continue;
        }
        frexpf(amax, &exp);
        for (int e = exp - 4 + 127; e <= exp - 2 + 127; e++) {
            uint8_t q[QK];
            float error = round_mxfp4(x + at, w ? w + at : NULL, e, q);
            if (error >= best) continue;
            best = error;
            b->e = (uint8_t)e;
            pack_nibbles(b->qs, q);
        }
    }
}

/* ---- unquantized types, and the table ---- */

/* The last elements, less than a vector, go through quant_encode. */
static void encode_f16(const float *x, void *dst, int64_t n)
{
    uint16_t *h = dst;
    int64_t i = 0;
    for (; i + W <= n; i += W) v_store_f16(h + i, v_load(x + i));
    quant_encode(DT_F16, x + i, h + i, n - i);
}

static void encode_bf16(const float *x, void *dst, int64_t n)
{
    uint16_t *h = dst;
    int64_t i = 0;
    for (; i + W <= n; i += W) v_store_bf16(h + i, v_load(x + i));
    quant_encode(DT_BF16, x + i, h + i, n - i);
}

static void encode(enum dtype t, const float *x, const float *w, void *dst, int64_t n)
{
    static encode_fn *const of[DT_COUNT] = {
        [DT_Q4_0] = encode_q4_0,   [DT_Q4_1] = encode_q4_1,     [DT_Q5_0] = encode_q5_0,
        [DT_Q5_1] = encode_q5_1,   [DT_IQ4_NL] = encode_iq4_nl, [DT_Q8_0] = encode_q8_0,
        [DT_Q2_K] = encode_q2_k,   [DT_Q3_K] = encode_q3_k,     [DT_Q4_K] = encode_q4_k,
        [DT_Q5_K] = encode_q5_k,   [DT_Q6_K] = encode_q6_k,     [DT_IQ4_XS] = encode_iq4_xs,
        [DT_MXFP4] = encode_mxfp4,
    };

    if (of[t]) of[t](x, w, dst, n);
    else if (t == DT_TQ1_0 || t == DT_TQ2_0) encode_ternary(t, x, w, dst, n);
    else if (t == DT_F16) encode_f16(x, dst, n);
    else if (t == DT_BF16) encode_bf16(x, dst, n);
    else quant_encode(t, x, dst, n);
}

/* F16 and BF16, the usual sources, are vectorized; the rest is decoded in plain C. */
static void decode(enum dtype t, const void *src, float *dst, int64_t n)
{
    const uint16_t *h = src;
    int64_t i = 0;
    if (t == DT_F16)
        for (; i + W <= n; i += W) v_store(dst + i, v_load_f16(h + i));
    else if (t == DT_BF16)
        for (; i + W <= n; i += W) v_store(dst + i, v_load_bf16(h + i));
    if (i < n) quant_decode(t, i ? (const void *)(h + i) : src, dst + i, n - i);
}

/* x - x is 0 for finite x and NaN otherwise. */
static bool is_finite(const float *x, int64_t n)
{
    vf sum = v_set(0);
    float rest = 0;
    int64_t i = 0;
    for (; i + W <= n; i += W) sum = sum + (v_load(x + i) - v_load(x + i));
    for (; i < n; i++) rest += x[i] - x[i];
    return v_sum(sum) + rest == 0;
}

const struct rtn RTN = { SIMD_NAME, encode, decode, is_finite };
