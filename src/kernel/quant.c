/* quant.c - the table of block codecs, and the plain element types (F16, BF16, F8, integers). */
#include "kernel/quant.h"

#include "kernel/quant_impl.h"

#include <assert.h>

#if defined(__F16C__)
#include <immintrin.h>
#endif

static inline uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

#if defined(__F16C__)
static inline float half_to_float(uint16_t h) { return _cvtsh_ss(h); }
static inline uint16_t float_to_half(float f) { return _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT); }
#elif defined(__aarch64__)
static inline float half_to_float(uint16_t h)
{
    __fp16 v;
    memcpy(&v, &h, 2);
    return v;
}

static inline uint16_t float_to_half(float f)
{
    __fp16 v = (__fp16)f;
    uint16_t h;
    memcpy(&h, &v, 2);
    return h;
}
#else
static inline float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Multiplying by 2^112 moves the exponent from F16's bias to F32's and also normalizes subnormals.
 * A signalling NaN becomes a quiet one. */
static inline float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7fff;
    uint32_t finite = bits_of(float_of(mag << 13) * 0x1p112f);
    uint32_t special = 0x7f800000u | mag << 13 | (mag > 0x7c00 ? 0x400000u : 0);
    return float_of(sign | (mag >= 0x7c00 ? special : finite));
}

static inline uint16_t float_to_half(float f)
{
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000, mag = u & 0x7fffffffu;
    uint32_t normal = (mag - (112u << 23) + 0xfffu + (mag >> 13 & 1)) >> 13;
    uint32_t tiny = bits_of(float_of(mag < 0x38800000u ? mag : 0) + 0.5f) - bits_of(0.5f);
    uint32_t huge = mag > 0x7f800000u ? 0x7e00u | (mag >> 13 & 0x1ff) : 0x7c00u;
    return (uint16_t)(sign | (mag >= 0x47800000u ? huge : mag < 0x38800000u ? tiny : normal));
}
#endif

float f16_to_f32(uint16_t h) { return half_to_float(h); }
uint16_t f32_to_f16(float f) { return float_to_half(f); }

/* E4M3 (OCP FP8) has no infinity: 0x7f and 0xff are NaN, all other codes are finite. */
static float f8_e4m3_to_f32(uint8_t b)
{
    int e = b >> 3 & 15, m = b & 7;
    float v = e ? ldexpf((float)(8 + m), e - 10) : (float)m * 0x1p-9f;
    if ((b & 0x7f) == 0x7f) v = NAN;
    return b & 0x80 ? -v : v;
}

/* Functions on one block. */
struct codec {
    void (*decode)(const void *block, float *y);
    void (*encode)(const float *x, void *block); /* NULL: tern cannot encode this format */
};

#define BOTH(name)                                   \
    {                                                \
        quant_##name##_decode, quant_##name##_encode \
    }
#define READ(name)                  \
    {                               \
        quant_##name##_decode, NULL \
    }

/* Formats without an encoder can only be read. */
static const struct codec codecs[DT_COUNT] = {
    [DT_Q4_0] = BOTH(q4_0),     [DT_Q4_1] = BOTH(q4_1),     [DT_Q5_0] = BOTH(q5_0),
    [DT_Q5_1] = BOTH(q5_1),     [DT_Q8_0] = BOTH(q8_0),     [DT_Q8_1] = BOTH(q8_1),
    [DT_Q2_K] = BOTH(q2_k),     [DT_Q3_K] = BOTH(q3_k),     [DT_Q4_K] = BOTH(q4_k),
    [DT_Q5_K] = BOTH(q5_k),     [DT_Q6_K] = BOTH(q6_k),     [DT_Q8_K] = BOTH(q8_k),
    [DT_IQ1_S] = READ(iq1_s),   [DT_IQ1_M] = READ(iq1_m),   [DT_IQ2_XXS] = READ(iq2_xxs),
    [DT_IQ2_XS] = READ(iq2_xs), [DT_IQ2_S] = READ(iq2_s),   [DT_IQ3_XXS] = READ(iq3_xxs),
    [DT_IQ3_S] = READ(iq3_s),   [DT_IQ4_NL] = BOTH(iq4_nl), [DT_IQ4_XS] = BOTH(iq4_xs),
    [DT_Q1_0] = READ(q1_0),     [DT_Q2_0] = READ(q2_0),     [DT_NVFP4] = READ(nvfp4),
    [DT_IQ4_K] = READ(iq4_k),   [DT_TQ1_0] = BOTH(tq1_0),   [DT_TQ2_0] = BOTH(tq2_0),
    [DT_MXFP4] = BOTH(mxfp4),
};

static bool can_decode_plain(enum dtype t)
{
    return t == DT_F32 || t == DT_F16 || t == DT_BF16 || t == DT_F64 || t == DT_I8 || t == DT_U8 ||
           t == DT_BOOL || t == DT_F8_E4M3 || t == DT_F8_E5M2 || t == DT_F8_E8M0;
}

bool quant_can_decode(enum dtype t)
{
    return t >= 0 && t < DT_COUNT && (codecs[t].decode || can_decode_plain(t) || dtype_head(t));
}

bool quant_can_encode(enum dtype t)
{
    return t >= 0 && t < DT_COUNT &&
           (codecs[t].encode || t == DT_F32 || t == DT_F16 || t == DT_BF16 || t == DT_F8_E4M3);
}

/* Element i of an array at any alignment: tensors in a file may start at any byte. */
#define LOAD(type, src, i)                                                      \
    ({                                                                          \
        type v_;                                                                \
        memcpy(&v_, (const char *)(src) + (i) * (int64_t)sizeof v_, sizeof v_); \
        v_;                                                                     \
    })

/* Types with one element per block. */
static void decode_plain(enum dtype t, const void *src, float *y, int64_t n)
{
    const uint8_t *b = src;
    switch (t) {
    case DT_F32: memcpy(y, src, (size_t)n * 4); break;
    case DT_F16:
        for (int64_t i = 0; i < n; i++) y[i] = half_to_float(LOAD(uint16_t, src, i));
        break;
    case DT_BF16:
        for (int64_t i = 0; i < n; i++) y[i] = bf16_to_f32(LOAD(uint16_t, src, i));
        break;
    case DT_F64:
        for (int64_t i = 0; i < n; i++) y[i] = (float)LOAD(double, src, i);
        break;
    case DT_I8:
        for (int64_t i = 0; i < n; i++) y[i] = (float)(int8_t)b[i];
        break;
    case DT_U8:
        for (int64_t i = 0; i < n; i++) y[i] = (float)b[i];
        break;
    case DT_BOOL:
        for (int64_t i = 0; i < n; i++) y[i] = b[i] != 0;
        break;
    case DT_F8_E4M3:
        for (int64_t i = 0; i < n; i++) y[i] = f8_e4m3_to_f32(b[i]);
        break;
    case DT_F8_E5M2:
        for (int64_t i = 0; i < n; i++) y[i] = half_to_float((uint16_t)(b[i] << 8));
        break;
    case DT_F8_E8M0:
        for (int64_t i = 0; i < n; i++) y[i] = f8_e8m0_to_f32(b[i]);
        break;
    default: assert(!"a type that can be decoded");
    }
}

/* Block by block; the codec of a format never sees a partial block. */
void quant_decode(enum dtype t, const void *src, float *dst, int64_t n)
{
    assert(quant_can_decode(t));
    void (*decode)(const void *, float *) = codecs[t].decode;
    if (dtype_head(t)) {
        quant_decode_row(t, src, 0, n, dst);
        return;
    }
    if (!decode) {
        decode_plain(t, src, dst, n);
        return;
    }
    const struct dtype_info *d = dtype_info(t);
    const char *p = src;
    assert(n % d->block == 0);
    for (int64_t i = 0; i < n; i += d->block, p += d->bytes) decode(p, dst + i);
}

/* n is a multiple of 32. The inner loop has a constant count and no branch, so that compilers
 * vectorize it. */
static bool is_finite(const float *x, int n)
{
    uint32_t bad = 0;
    for (int i = 0; i < n; i += 32)
        for (int j = 0; j < 32; j++) {
            uint32_t mag = bits_of(x[i + j]) & 0x7fffffffu;
            bad |= 0x7f7fffffu - mag; /* wraps for Inf and NaN only */
        }
    return !(bad >> 31);
}

/* NaN and infinity would make the scale of the whole block unusable: they become 0. */
static void encode_blocks(enum dtype t, const float *x, char *dst, int64_t n)
{
    const struct dtype_info *d = dtype_info(t);
    assert(n % d->block == 0);
    for (int64_t i = 0; i < n; i += d->block, dst += d->bytes) {
        if (is_finite(x + i, d->block)) {
            codecs[t].encode(x + i, dst);
        } else {
            float clean[QK_K];
            for (int j = 0; j < d->block; j++) clean[j] = isfinite(x[i + j]) ? x[i + j] : 0;
            codecs[t].encode(clean, dst);
        }
    }
}

void quant_encode(enum dtype t, const float *src, void *dst, int64_t n)
{
    assert(quant_can_encode(t));
    uint16_t *h = dst;
    uint8_t *b = dst;
    switch (t) {
    case DT_F32: memcpy(dst, src, (size_t)n * 4); break;
    case DT_F8_E4M3:
        for (int64_t i = 0; i < n; i++) b[i] = f32_to_f8_e4m3(src[i]);
        break;
    case DT_F16:
        for (int64_t i = 0; i < n; i++) h[i] = float_to_half(src[i]);
        break;
    case DT_BF16:
        for (int64_t i = 0; i < n; i++) h[i] = f32_to_bf16(src[i]);
        break;
    default: encode_blocks(t, src, dst, n);
    }
}
