/* ops_quant.c - QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear: x = (q - zero) * scale.
 *
 * These are what the quantization tools of onnxruntime write. Rounding is to even and results are
 * saturated, as the ONNX specification has it. */
#include "onnx/op.h"

#include <math.h>

/* One scale (and zero point) for a whole tensor, or one for each index of an axis. */
struct scales {
    const float *scale;
    const struct onnx_tensor *zero; /* NULL: 0 */
    int64_t n;                      /* number of scales */
    int64_t inner;                  /* elements behind the axis */
};

static int read_scales(struct onnx_run *r, const struct onnx_node *n, const struct onnx_tensor *x,
                       const struct onnx_tensor *scale, const struct onnx_tensor *zero,
                       struct scales *s)
{
    int axis, rc = op_check_type(r, n, scale, ONNX_F32);

    if (rc != OK) return rc;
    *s = (struct scales){ scale->data, zero, 1, 1 };
    if (onnx_int(n, "block_size", 0))
        return op_fail(r, n, "a scale per block (block_size) is not supported");
    if (zero && zero->n != scale->n)
        return op_fail(r, n, "%zu zero points do not fit %zu scales", zero->n, scale->n);
    if (scale->n == 1) return OK;
    if ((rc = op_read_axis(r, n, onnx_int(n, "axis", 1), x->n_dims, &axis)) != OK) return rc;
    if ((int64_t)scale->n != x->dims[axis])
        return op_fail(r, n, "%zu scales do not fit a dimension of %lld", scale->n,
                       (long long)x->dims[axis]);
    s->n = (int64_t)scale->n;
    s->inner = op_count(x->dims, axis + 1, x->n_dims);
    return OK;
}

/* The index of the scale of element i. */
static int64_t scale_of(const struct scales *s, size_t i)
{
    return s->n == 1 ? 0 : (int64_t)i / s->inner % s->n;
}

static float int_at(const struct onnx_tensor *t, size_t i)
{
    return t->type == ONNX_I64  ? (float)op_i64(t)[i]
           : t->type == ONNX_I8 ? (float)((const int8_t *)t->data)[i]
                                : (float)op_u8(t)[i];
}

static int run_dequantize(struct onnx_run *r, const struct onnx_node *n,
                          const struct onnx_tensor **in, struct onnx_tensor **out)
{
    struct scales s;
    int rc;

    if (in[0]->type == ONNX_F32 || in[0]->type == ONNX_BOOL)
        return op_fail(r, n, "the input has type %s, but must be an integer",
                       onnx_type_name(in[0]->type));
    if (in[2] && in[2]->type != in[0]->type)
        return op_fail(r, n, "the zero point has another type than the input");
    if ((rc = read_scales(r, n, in[0], in[1], in[2], &s)) != OK) return rc;
    if ((rc = op_new(r, out[0], ONNX_F32, in[0]->n_dims, in[0]->dims)) != OK || op_skips(r, out[0]))
        return rc;
    for (size_t i = 0; i < in[0]->n; i++) {
        int64_t k = scale_of(&s, i);
        ((float *)out[0]->data)[i] =
            (int_at(in[0], i) - (s.zero ? int_at(s.zero, (size_t)k) : 0)) * s.scale[k];
    }
    return OK;
}

/* Stores v rounded to even and saturated to the 8-bit type of out. */
static void put_saturated(struct onnx_tensor *out, size_t i, float v)
{
    float low = out->type == ONNX_I8 ? -128 : 0, high = out->type == ONNX_I8 ? 127 : 255;

    v = rintf(v);
    v = isnan(v) || v < low ? low : v > high ? high : v;
    if (out->type == ONNX_I8) ((int8_t *)out->data)[i] = (int8_t)v;
    else ((uint8_t *)out->data)[i] = (uint8_t)v;
}

static int run_quantize(struct onnx_run *r, const struct onnx_node *n,
                        const struct onnx_tensor **in, struct onnx_tensor **out)
{
    enum onnx_type type = in[2] ? in[2]->type : ONNX_U8;
    struct scales s;
    int rc = op_check_type(r, n, in[0], ONNX_F32);

    if (rc != OK || (rc = read_scales(r, n, in[0], in[1], in[2], &s)) != OK) return rc;
    if (type != ONNX_U8 && type != ONNX_I8)
        return op_fail(r, n, "the result must be uint8 or int8");
    if ((rc = op_new(r, out[0], type, in[0]->n_dims, in[0]->dims)) != OK || op_skips(r, out[0]))
        return rc;
    for (size_t i = 0; i < in[0]->n; i++) {
        int64_t k = scale_of(&s, i);
        put_saturated(out[0], i,
                      rintf(op_f32(in[0])[i] / s.scale[k]) +
                          (s.zero ? int_at(s.zero, (size_t)k) : 0));
    }
    return OK;
}

struct quantize_job {
    const float *x;
    struct onnx_tensor *out;
    float scale, zero;
};

enum { PIECE = 4096 };

static void quantize_pieces(const void *arg, int begin, int end)
{
    const struct quantize_job *j = arg;
    size_t to = (size_t)end * PIECE < j->out->n ? (size_t)end * PIECE : j->out->n;

    for (size_t i = (size_t)begin * PIECE; i < to; i++)
        put_saturated(j->out, i, rintf(j->x[i] / j->scale) + j->zero);
}

/* Scale and zero point from the range of the tensor. The range includes 0, so that 0 is exact. */
static int run_dynamic_quantize(struct onnx_run *r, const struct onnx_node *n,
                                const struct onnx_tensor **in, struct onnx_tensor **out)
{
    const float *x = in[0]->data;
    float low = 0, high = 0, scale, zero;
    int rc = op_check_type(r, n, in[0], ONNX_F32);

    if (rc != OK || (rc = op_new(r, out[0], ONNX_U8, in[0]->n_dims, in[0]->dims)) != OK ||
        (rc = op_new(r, out[1], ONNX_F32, 0, NULL)) != OK ||
        (rc = op_new(r, out[2], ONNX_U8, 0, NULL)) != OK)
        return rc;
    /* Valid values also while planning: later nodes read them. */
    *(float *)out[1]->data = 1;
    *(uint8_t *)out[2]->data = 0;
    if (op_skips(r, out[0])) return OK;
    for (size_t i = 0; i < in[0]->n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    /* 256 levels span the range. */
    scale = (high - low) / 255;
    if (!(scale > 0) || !isfinite(scale)) scale = 1;
    zero = rintf(fmaxf(0, fminf(255, -low / scale)));
    *(float *)out[1]->data = scale;
    *(uint8_t *)out[2]->data = (uint8_t)zero;
    op_share_rows(r, ((int64_t)in[0]->n + PIECE - 1) / PIECE, (int64_t)in[0]->n * 4,
                  quantize_pieces, &(struct quantize_job){ x, out[0], scale, zero });
    return OK;
}

/* Name, opset since, inputs from and to, outputs, attributes, function. */
const struct onnx_op ops_quant[] = {
    { "DequantizeLinear", 10, 2, 3, 1, "axis block_size", run_dequantize },
    { "QuantizeLinear", 10, 2, 3, 1, "axis block_size saturate", run_quantize },
    { "DynamicQuantizeLinear", 11, 1, 1, 3, "", run_dynamic_quantize },
    { 0 },
};
