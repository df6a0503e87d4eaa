/* Numbers to bytes and back, as onnxruntime's quantization writes it. */
#include "onnx/op.h"

#include <math.h>

/* One scale (and zero) for all numbers, or one for each index of an axis. */
struct scales {
    const float *scale;
    const struct onnx_tensor *zero;
    int64_t n, inner;
};

static int read_scales(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor *x,
                       const struct onnx_tensor *scale, const struct onnx_tensor *zero,
                       struct scales *s)
{
    int axis, rc = op_want(r, n, scale, ONNX_F32);

    if (rc != OK) return rc;
    *s = (struct scales){ scale->data, zero, 1, 1 };
    if (onnx_int(n, "block_size", 0)) return op_fail(r, n, "scales of blocks are not supported");
    if (zero && zero->n != scale->n)
        return op_fail(r, n, "%zu zero points for %zu scales", zero->n, scale->n);
    if (scale->n == 1) return OK;
    if ((rc = op_axis(r, n, onnx_int(n, "axis", 1), x->n_dims, &axis)) != OK) return rc;
    if ((int64_t)scale->n != x->dims[axis])
        return op_fail(r, n, "%zu scales for a dimension of %lld", scale->n,
                       (long long)x->dims[axis]);
    s->n = (int64_t)scale->n;
    s->inner = op_count(x->dims, axis + 1, x->n_dims);
    return OK;
}

static int64_t which(const struct scales *s, size_t i)
{
    return s->n == 1 ? 0 : (int64_t)i / s->inner % s->n;
}

static float whole_at(const struct onnx_tensor *t, size_t i)
{
    return t->type == ONNX_I64  ? (float)op_i64(t)[i]
           : t->type == ONNX_I8 ? (float)((const int8_t *)t->data)[i]
                                : (float)op_u8(t)[i];
}

static int dequantize(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                      struct onnx_tensor **out)
{
    struct scales s;
    int rc;

    if (in[0]->type == ONNX_F32 || in[0]->type == ONNX_BOOL)
        return op_fail(r, n, "x is of type %s", onnx_type_name(in[0]->type));
    if (in[2] && in[2]->type != in[0]->type)
        return op_fail(r, n, "the zero point is of another type");
    if ((rc = read_scales(r, n, in[0], in[1], in[2], &s)) != OK) return rc;
    if ((rc = op_new(r, out[0], ONNX_F32, in[0]->n_dims, in[0]->dims)) != OK || op_skips(r, out[0]))
        return rc;
    for (size_t i = 0; i < in[0]->n; i++) {
        int64_t k = which(&s, i);
        ((float *)out[0]->data)[i] =
            (whole_at(in[0], i) - (s.zero ? whole_at(s.zero, (size_t)k) : 0)) * s.scale[k];
    }
    return OK;
}

/* Rounded to even, and kept within the type. */
static void put_byte(struct onnx_tensor *out, size_t i, float v)
{
    float low = out->type == ONNX_I8 ? -128 : 0, high = out->type == ONNX_I8 ? 127 : 255;

    v = rintf(v);
    v = isnan(v) || v < low ? low : v > high ? high : v;
    if (out->type == ONNX_I8) ((int8_t *)out->data)[i] = (int8_t)v;
    else ((uint8_t *)out->data)[i] = (uint8_t)v;
}

static int quantize(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                    struct onnx_tensor **out)
{
    enum onnx_type type = in[2] ? in[2]->type : ONNX_U8;
    struct scales s;
    int rc = op_want(r, n, in[0], ONNX_F32);

    if (rc != OK || (rc = read_scales(r, n, in[0], in[1], in[2], &s)) != OK) return rc;
    if (type != ONNX_U8 && type != ONNX_I8) return op_fail(r, n, "to a type other than bytes");
    if ((rc = op_new(r, out[0], type, in[0]->n_dims, in[0]->dims)) != OK || op_skips(r, out[0]))
        return rc;
    for (size_t i = 0; i < in[0]->n; i++) {
        int64_t k = which(&s, i);
        put_byte(out[0], i,
                 rintf(op_f32(in[0])[i] / s.scale[k]) + (s.zero ? whole_at(s.zero, (size_t)k) : 0));
    }
    return OK;
}

struct byte_job {
    const float *x;
    struct onnx_tensor *out;
    float scale, zero;
};

enum { PIECE = 4096 };

static void byte_pieces(const void *arg, int begin, int end)
{
    const struct byte_job *j = arg;
    size_t to = (size_t)end * PIECE < j->out->n ? (size_t)end * PIECE : j->out->n;

    for (size_t i = (size_t)begin * PIECE; i < to; i++)
        put_byte(j->out, i, rintf(j->x[i] / j->scale) + j->zero);
}

/* 0 is always one of the 256 steps. */
static int dynamic(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor **in,
                   struct onnx_tensor **out)
{
    const float *x = in[0]->data;
    float low = 0, high = 0, scale, zero;
    int rc = op_want(r, n, in[0], ONNX_F32);

    if (rc != OK || (rc = op_new(r, out[0], ONNX_U8, in[0]->n_dims, in[0]->dims)) != OK ||
        (rc = op_new(r, out[1], ONNX_F32, 0, NULL)) != OK ||
        (rc = op_new(r, out[2], ONNX_U8, 0, NULL)) != OK)
        return rc;
    *(float *)out[1]->data = 1;
    *(uint8_t *)out[2]->data = 0;
    if (op_skips(r, out[0])) return OK;
    for (size_t i = 0; i < in[0]->n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    scale = (high - low) / 255;
    if (!(scale > 0) || !isfinite(scale)) scale = 1;
    zero = rintf(fmaxf(0, fminf(255, -low / scale)));
    *(float *)out[1]->data = scale;
    *(uint8_t *)out[2]->data = (uint8_t)zero;
    op_rows(r, ((int64_t)in[0]->n + PIECE - 1) / PIECE, (int64_t)in[0]->n * 4, byte_pieces,
            &(struct byte_job){ x, out[0], scale, zero });
    return OK;
}

const struct onnx_op ops_quant[] = {
    { "DequantizeLinear", 10, 2, 3, 1, "axis block_size", dequantize },
    { "QuantizeLinear", 10, 2, 3, 1, "axis block_size saturate", quantize },
    { "DynamicQuantizeLinear", 11, 1, 1, 3, "", dynamic },
    { 0 },
};
