/* Every ONNX operator against results of numpy and results computed by hand. Each case runs
 * twice: with its inputs as inputs of a run, and as constants of the file, which are folded.
 *
 * Cases are text rows (onnx_world.h). Reads no files. */
#include "support.h"

#include "base/mem.h"
#include "onnx_world.h"

enum { N_IN = 8 };

struct row {
    const char *op;
    int opset;
    const char *attrs, *in[N_IN],
        *out; /* out: expected outputs "a | b", or "fails: words of the message" */
};

#define N6 "f 2x3: 1 2 3 4 5 6"

static const struct row rows[] = {
    /* broadcasting */
    { "Add", 13, "", { N6, "f 3: 10 20 30" }, "f 2x3: 11 22 33 14 25 36" },
    { "Add", 13, "", { "f 2x1: 1 2", "f 1x3: 10 20 30" }, "f 2x3: 11 21 31 12 22 32" },
    { "Add", 13, "", { "f : 5", N6 }, "f 2x3: 6 7 8 9 10 11" },
    { "Add", 13, "", { "f 0x3:", "f 3: 1 2 3" }, "f 0x3:" },
    { "Add", 13, "", { "i 2: 1 2", "i 2: 3 4" }, "i 2: 4 6" },
    { "Add", 13, "", { "h 2: 1 2.5", "h 2: 1 -1" }, "f 2: 2 1.5" },
    { "Add", 13, "", { "n 2: 1 -2", "n 2: 1 -1" }, "i 2: 2 -3" },
    { "Add", 13, "", { "f 2: 1 2", "f 3: 1 2 3" }, "fails: dimension 0" },
    { "Add", 13, "", { "f 2: 1 2", "i 2: 1 2" }, "fails: types float and int64" },
    { "Sub", 13, "", { "f : 1", "f 1x2x1: 0 1" }, "f 1x2x1: 1 0" },
    { "Mul", 13, "", { "f 2x1x2: 1 2 3 4", "f 2x1: 1 10" }, "f 2x2x2: 1 2 10 20 3 4 30 40" },
    { "Div", 13, "", { "f 2: 1 -1", "f : 4" }, "f 2: 0.25 -0.25" },
    { "Div", 13, "", { "i 4: 7 -7 7 -7", "i 4: 2 2 -2 -2" }, "i 4: 3 -3 -3 3" },
    { "Div", 13, "", { "i 1: 7", "i 1: 0" }, "fails: divided by 0" },
    { "Pow", 13, "", { "f 3: 2 3 -2", "f : 2" }, "f 3: 4 9 4" },
    { "Pow", 13, "", { "f 2: 4 9", "f : 0.5" }, "f 2: 2 3" },
    { "Pow", 13, "", { "f 2: 2 3", "i : 3" }, "f 2: 8 27" },
    { "Pow", 13, "", { "i 2: 2 3", "i : 5" }, "i 2: 32 243" },
    { "Mod", 13, "", { "i 4: 7 -7 7 -7", "i 4: 3 3 -3 -3" }, "i 4: 1 2 -2 -1" },
    { "Mod", 13, "fmod=1", { "f 2: 7.5 -7.5", "f 2: 2 2" }, "f 2: 1.5 -1.5" },
    { "Min", 13, "", { "f 2: 1 5", "f : 3", "f 2: 0 9" }, "f 2: 0 3" },
    { "Max", 13, "", { "i 2: 1 5", "i 2: 4 2" }, "i 2: 4 5" },
    { "Sum", 13, "", { "f 2: 1 2", "f 2: 3 4", "f : 10" }, "f 2: 14 16" },
    { "Equal", 13, "", { "i 3: 1 2 3", "i : 2" }, "b 3: 0 1 0" },
    { "Equal", 13, "", { "b 2: 1 0", "b 2: 1 1" }, "b 2: 1 0" },
    { "Less", 13, "", { "f 3: 1 2 3", "f : 2" }, "b 3: 1 0 0" },
    { "Greater", 13, "", { "f 3: 1 2 3", "f : 2" }, "b 3: 0 0 1" },
    { "LessOrEqual", 13, "", { "i 3: 1 2 3", "i : 2" }, "b 3: 1 1 0" },
    { "GreaterOrEqual", 13, "", { "f 3: 1 2 3", "f : 2" }, "b 3: 0 1 1" },
    { "And", 13, "", { "b 4: 1 1 0 0", "b 4: 1 0 1 0" }, "b 4: 1 0 0 0" },
    { "Or", 13, "", { "b 4: 1 1 0 0", "b 4: 1 0 1 0" }, "b 4: 1 1 1 0" },
    { "Xor", 13, "", { "b 4: 1 1 0 0", "b 4: 1 0 1 0" }, "b 4: 0 1 1 0" },
    { "Not", 13, "", { "b 2: 1 0" }, "b 2: 0 1" },
    { "PRelu", 16, "", { "f 2: -2 2", "f : 0.5" }, "f 2: -1 2" },
    { "BitwiseAnd", 18, "", { "i 2: 6 5", "i : 3" }, "i 2: 2 1" },
    { "Where", 16, "", { "b 2x1: 1 0", "f 1x2: 1 2", "f : 9" }, "f 2x2: 1 2 9 9" },
    { "Where", 16, "", { "b 2: 1 0", "i : 1", "i 2: 7 8" }, "i 2: 1 8" },
    /* elementwise */
    { "Sqrt", 13, "", { "f 2: 4 9" }, "f 2: 2 3" },
    { "Neg", 13, "", { "i 2: 4 -9" }, "i 2: -4 9" },
    { "Abs", 13, "", { "f 2: -4 9" }, "f 2: 4 9" },
    { "Exp", 13, "", { "f 2: 0 1" }, "f 2: 1 2.7182818" },
    { "Log", 13, "", { "f 2: 1 2.7182818" }, "f 2: 0 1" },
    { "Erf", 13, "", { "f 4: 0 0.5 -1 3" }, "f 4: 0 0.52049988 -0.84270079 0.99997791" },
    { "Tanh", 13, "", { "f 3: 0 0.5 -2" }, "f 3: 0 0.46211716 -0.96402758" },
    { "Sigmoid", 13, "", { "f 2: 0 2" }, "f 2: 0.5 0.88079708" },
    { "Relu", 13, "", { "f 2: -1 2" }, "f 2: 0 2" },
    { "Gelu", 20, "", { "f 2: 1 -1" }, "f 2: 0.84134475 -0.15865525" },
    { "Gelu", 20, "approximate='tanh'", { "f 2: 1 -1" }, "f 2: 0.84119199 -0.15880801" },
    { "Clip", 13, "", { "f 3: -5 0 5", "f : -1", "f : 2" }, "f 3: -1 0 2" },
    { "Clip", 6, "min=f0 max=f1", { "f 3: -5 0.5 5" }, "f 3: 0 0.5 1" },
    { "Clip", 13, "", { "i 3: -5 0 5", "-", "i : 2" }, "i 3: -5 0 2" },
    { "Cos", 13, "", { "f 2: 0 3.14159265" }, "f 2: 1 -1" },
    { "Sin", 13, "", { "f 2: 0 1.57079633" }, "f 2: 0 1" },
    { "Reciprocal", 13, "", { "f 2: 2 4" }, "f 2: 0.5 0.25" },
    { "Floor", 13, "", { "f 2: 1.5 -1.5" }, "f 2: 1 -2" },
    { "Ceil", 13, "", { "f 2: 1.5 -1.5" }, "f 2: 2 -1" },
    { "Round", 13, "", { "f 3: 0.5 1.5 -2.5" }, "f 3: 0 2 -2" },
    { "Softplus", 13, "", { "f 1: 0" }, "f 1: 0.69314718" },
    { "LeakyRelu", 13, "alpha=f0.1", { "f 2: -1 2" }, "f 2: -0.1 2" },
    { "Elu", 13, "", { "f 2: -1 2" }, "f 2: -0.63212056 2" },
    { "HardSigmoid", 13, "", { "f 3: -9 0 9" }, "f 3: 0 0.5 1" },
    { "Sign", 13, "", { "f 3: -9 0 9" }, "f 3: -1 0 1" },
    { "IsNaN", 13, "", { "f 2: nan 1" }, "b 2: 1 0" },
    { "IsInf", 13, "", { "f 2: -inf 1" }, "b 2: 1 0" },
    /* shapes */
    { "Identity", 13, "", { N6 }, N6 },
    { "Dropout", 13, "", { N6, "f : 0.5" }, N6 },
    { "Dropout", 13, "", { N6, "f : 0.5", "b : 1" }, "fails: training" },
    { "Reshape", 13, "", { N6, "i 2: 3 -1" }, "f 3x2: 1 2 3 4 5 6" },
    { "Reshape", 13, "", { N6, "i 3: 0 1 -1" }, "f 2x1x3: 1 2 3 4 5 6" },
    { "Reshape", 14, "allowzero=1", { "f 0x3:", "i 2: 3 0" }, "f 3x0:" },
    { "Reshape", 13, "", { N6, "i 2: 4 2" }, "fails: do not fit" },
    { "Flatten", 13, "axis=-1", { "f 1x2x2: 1 2 3 4" }, "f 2x2: 1 2 3 4" },
    { "Squeeze", 11, "axes=[0]", { "f 1x2x1: 1 2" }, "f 2x1: 1 2" },
    { "Squeeze", 13, "", { "f 1x2x1: 1 2", "i 1: -1" }, "f 1x2: 1 2" },
    { "Squeeze", 13, "", { "f 1x2x1: 1 2" }, "f 2: 1 2" },
    { "Squeeze", 13, "", { "f 1x2x1: 1 2", "i 1: 1" }, "fails: cannot be removed" },
    { "Unsqueeze", 11, "axes=[0,-1]", { "f 2: 1 2" }, "f 1x2x1: 1 2" },
    { "Unsqueeze", 13, "", { "f 2: 1 2", "i 1: 1" }, "f 2x1: 1 2" },
    { "Shape", 13, "", { N6 }, "i 2: 2 3" },
    { "Shape", 15, "start=-1", { N6 }, "i 1: 3" },
    { "Size", 13, "", { N6 }, "i : 6" },
    { "Transpose", 13, "perm=[1,0]", { N6 }, "f 3x2: 1 4 2 5 3 6" },
    { "Transpose", 13, "", { "i 1x2x2: 1 2 3 4" }, "i 2x2x1: 1 3 2 4" },
    { "Transpose", 13, "perm=[2,0,1]", { "u 1x2x3: 1 2 3 4 5 6" }, "u 3x1x2: 1 4 2 5 3 6" },
    { "Transpose", 13, "perm=[0,0]", { N6 }, "fails: not a permutation" },
    { "Slice", 13, "", { N6, "i 1: 1", "i 1: 3", "i 1: 1" }, "f 2x2: 2 3 5 6" },
    { "Slice",
      13,
      "",
      { "f 5: 0 1 2 3 4", "i 1: -1", "i 1: -9", "i 1: 0", "i 1: -2" },
      "f 3: 4 2 0" },
    { "Slice", 13, "", { "f 5: 0 1 2 3 4", "i 1: 1", "i 1: 9223372036854775807" }, "f 4: 1 2 3 4" },
    { "Slice", 13, "", { "f 5: 0 1 2 3 4", "i 1: 3", "i 1: 1" }, "f 0:" },
    { "Slice", 13, "", { "f 5: 0 1 2 3 4", "i 1: 0", "i 1: 5", "i 1: 0", "i 1: 2" }, "f 3: 0 2 4" },
    { "Slice",
      13,
      "",
      { "f 5: 0 1 2 3 4", "i 1: 0", "i 1: 5", "i 1: 0", "i 1: 0" },
      "fails: a step is 0" },
    { "Slice", 9, "starts=[1] ends=[2] axes=[0]", { N6 }, "f 1x3: 4 5 6" },
    { "Expand", 13, "", { "f 2x1: 1 2", "i 3: 2 1 2" }, "f 2x2x2: 1 1 2 2 1 1 2 2" },
    { "Tile", 13, "", { "f 1x2: 1 2", "i 2: 2 2" }, "f 2x4: 1 2 1 2 1 2 1 2" },
    { "Concat", 13, "axis=-1", { "i 2x1: 1 2", "i 2x2: 3 4 5 6" }, "i 2x3: 1 3 4 2 5 6" },
    { "Concat", 13, "axis=0", { "f 1x2: 1 2", "f 0x2:", "f 1x2: 3 4" }, "f 2x2: 1 2 3 4" },
    { "Concat",
      13,
      "axis=0",
      { "f 1x2: 1 2", "f 1x3: 1 2 3" },
      "fails: differs from input 0 in dimension 1" },
    { "Split", 13, "axis=1", { N6, "i 2: 1 2" }, "f 2x1: 1 4 | f 2x2: 2 3 5 6" },
    { "Split", 18, "axis=1 num_outputs=2", { N6 }, "f 2x2: 1 2 4 5 | f 2x1: 3 6" },
    { "Split", 11, "axis=0 split=[1,1]", { N6 }, "f 1x3: 1 2 3 | f 1x3: 4 5 6" },
    { "Split", 11, "axis=0 split=F[1,1]", { N6 }, "fails: must be a list of integers" },
    { "Cast", 13, "to=7", { "f 3: 1.9 -1.9 nan" }, "i 3: 1 -1 0" },
    { "Cast", 13, "to=9", { "f 2: 0 0.5" }, "b 2: 0 1" },
    { "Cast", 13, "to=1", { "b 2: 0 1" }, "f 2: 0 1" },
    { "Cast", 13, "to=3", { "i 2: -1 127" }, "c 2: -1 127" },
    { "Cast", 13, "to=10", { "i 1: 3" }, "f 1: 3" },
    { "Cast", 13, "to=8", { "i 1: 3" }, "fails: data type 8 is not supported" },
    { "CastLike", 15, "", { "i 1: 3", "f 1: 0" }, "f 1: 3" },
    /* gather and select */
    { "Gather", 13, "", { N6, "i 2: 1 -2" }, "f 2x3: 4 5 6 1 2 3" },
    { "Gather", 13, "axis=1", { N6, "n : 2" }, "f 2: 3 6" },
    { "Gather", 13, "axis=-1", { N6, "i 1x2: 0 2" }, "f 2x1x2: 1 3 4 6" },
    { "Gather", 13, "", { N6, "i 1: 2" }, "fails: index 2 is out of range for a dimension of 2" },
    { "GatherElements", 13, "axis=1", { N6, "i 2x2: 0 -1 2 1" }, "f 2x2: 1 3 6 5" },
    { "GatherND", 13, "", { N6, "i 2x2: 0 1 1 2" }, "f 2: 2 6" },
    { "GatherND", 13, "", { N6, "i 1x1: -1" }, "f 1x3: 4 5 6" },
    { "GatherND", 13, "batch_dims=1", { N6, "i 2x1: 2 0" }, "f 2: 3 4" },
    { "ScatterElements", 16, "axis=0", { "f 3: 1 2 3", "i 2: 2 0", "f 2: 9 8" }, "f 3: 8 2 9" },
    { "ScatterND", 16, "", { N6, "i 1x1: 1", "f 1x3: 7 8 9" }, "f 2x3: 1 2 3 7 8 9" },
    { "ConstantOfShape", 13, "value={i 1: 7}", { "i 2: 1 2" }, "i 1x2: 7 7" },
    { "ConstantOfShape", 13, "", { "i 1: 2" }, "f 2: 0 0" },
    { "Range", 13, "", { "i : 1", "i : 8", "i : 3" }, "i 3: 1 4 7" },
    { "Range", 13, "", { "f : 1", "f : 0", "f : -0.5" }, "f 2: 1 0.5" },
    { "Range", 13, "", { "i : 1", "i : 8", "i : 0" }, "fails: by 0" },
    { "Trilu", 14, "", { "f 2x2: 1 2 3 4" }, "f 2x2: 1 2 0 4" },
    { "Trilu", 14, "upper=0", { "i 2x2: 1 2 3 4", "i : -1" }, "i 2x2: 0 0 3 0" },
    { "NonZero", 13, "", { "i 2x2: 1 0 3 4" }, "i 2x3: 0 1 1 0 0 1" },
    { "NonZero", 13, "", { "f 4: -0 2 0 nan" }, "i 1x2: 1 3" },
    /* reductions */
    { "ReduceSum", 13, "keepdims=0", { N6, "i 1: 1" }, "f 2: 6 15" },
    { "ReduceSum", 11, "axes=[0]", { N6 }, "f 1x3: 5 7 9" },
    { "ReduceSum", 11, "axes=F[0]", { N6 }, "fails: must be a list of integers" },
    { "ReduceSum", 13, "noop_with_empty_axes=1", { N6, "i 0:" }, N6 },
    { "ReduceSum", 13, "", { "i 2: 3 4" }, "i 1: 7" },
    { "ReduceMean", 13, "axes=[-1]", { N6 }, "f 2x1: 2 5" },
    { "ReduceMean", 18, "keepdims=0", { N6, "i 1: 0" }, "f 3: 2.5 3.5 4.5" },
    { "ReduceMean", 13, "axes=[0,2] keepdims=0", { "f 2x1x2: 1 2 3 4" }, "f 1: 2.5" },
    { "ReduceMax", 13, "axes=[1]", { N6 }, "f 2x1: 3 6" },
    { "ReduceMin", 13, "keepdims=0", { N6 }, "f : 1" },
    { "ReduceProd", 13, "axes=[1] keepdims=0", { "i 2x2: 1 2 3 4" }, "i 2: 2 12" },
    { "ReduceL2", 13, "axes=[0] keepdims=0", { "f 2: 3 4" }, "f : 5" },
    { "ReduceL1", 13, "axes=[0] keepdims=0", { "f 2: 3 -4" }, "f : 7" },
    { "ReduceSumSquare", 13, "keepdims=0", { "f 2: 3 4" }, "f : 25" },
    { "Softmax", 13, "", { "f 1x3: 1 2 3" }, "f 1x3: 0.09003057 0.24472847 0.66524096" },
    { "Softmax", 13, "axis=0", { "f 2x2: 0 5 0 5" }, "f 2x2: 0.5 0.5 0.5 0.5" },
    { "Softmax", 11, "axis=1", { "f 1x2x2: 0 0 0 0" }, "f 1x2x2: 0.25 0.25 0.25 0.25" },
    { "Softmax", 13, "", { "f 2: -inf 0" }, "f 2: 0 1" },
    { "LogSoftmax", 13, "", { "f 2: 0 0" }, "f 2: -0.69314718 -0.69314718" },
    { "LayerNormalization",
      17,
      "epsilon=f0",
      { "f 1x2: 1 3", "f 2: 2 2", "f 2: 1 0" },
      "f 1x2: -1 2" },
    { "LayerNormalization", 17, "", { "f 1x2: 1 3", "f 3: 2 2 2" }, "fails: 3 weights" },
    { "ArgMax", 13, "axis=1", { "f 2x3: 1 3 2 9 3 9" }, "i 2x1: 1 0" },
    { "ArgMax", 13, "axis=1 keepdims=0 select_last_index=1", { "f 2x3: 1 3 2 9 3 9" }, "i 2: 1 2" },
    { "ArgMin", 13, "axis=0 keepdims=0", { "i 3: 4 1 2" }, "i : 1" },
    { "TopK", 11, "", { "f 4: 1 4 2 4", "i 1: 3" }, "f 3: 4 4 2 | i 3: 1 3 2" },
    { "TopK", 11, "largest=0 axis=0", { "i 2x2: 4 1 3 2", "i 1: 1" }, "i 1x2: 3 1 | i 1x2: 1 0" },
    { "CumSum", 14, "", { "f 3: 1 2 3", "i : 0" }, "f 3: 1 3 6" },
    { "CumSum", 14, "exclusive=1 reverse=1", { "i 3: 1 2 3", "i : -1" }, "i 3: 5 3 0" },
    /* matrix products */
    { "MatMul", 13, "", { N6, "f 3x2: 1 0 0 1 1 1" }, "f 2x2: 4 5 10 11" },
    { "MatMul", 13, "", { "f 3: 1 2 3", "f 3: 1 2 3" }, "f : 14" },
    { "MatMul", 13, "", { "f 2x1x2: 1 2 3 4", "f 2x2: 1 2 3 4" }, "f 2x1x2: 7 10 15 22" },
    { "MatMul", 13, "", { "f 2x1x2: 1 2 3 4", "f 2x2x1: 1 1 2 2" }, "f 2x1x1: 3 14" },
    { "MatMul", 13, "", { "f 1x1x2: 1 2", "f 2x2x1: 1 1 2 2" }, "f 2x1x1: 3 6" },
    { "MatMul", 13, "", { "f 2x0:", "f 0x2:" }, "f 2x2: 0 0 0 0" },
    { "MatMul", 13, "", { N6, N6 }, "fails: inner dimensions 3 and 2 differ" },
    { "Gemm", 13, "transB=1 alpha=f2 beta=f0.5", { N6, "f 1x3: 1 1 1", "f 1: 4" }, "f 2x1: 14 32" },
    { "Gemm", 13, "transA=1", { N6, "f 2x1: 1 1", "f 3x1: 1 2 3" }, "f 3x1: 6 9 12" },
    { "Gemm", 13, "", { N6, "f 3x1: 1 1 1" }, "f 2x1: 6 15" },
    { "Einsum", 13, "equation='ij, jk -> ik'", { N6, "f 3x1: 1 1 1" }, "f 2x1: 6 15" },
    { "Einsum",
      13,
      "equation='bid,bjd->bij'",
      { "f 1x1x2: 1 2", "f 1x2x2: 1 0 0 1" },
      "f 1x1x2: 1 2" },
    { "Einsum", 13, "equation='ii->i'", { "f 2x2: 1 2 3 4" }, "f 2: 1 4" },
    { "Einsum", 13, "equation='i...->i'", { "f 2x2: 1 2 3 4" }, "fails: letters" },
    /* 8-bit integers */
    { "MatMulInteger",
      13,
      "",
      { "u 1x2: 3 5", "c 2x2: 1 -2 3 4", "u : 1", "c : 1" },
      "i 1x2: 8 6" },
    { "MatMulInteger",
      13,
      "",
      { "u 1x2: 3 5", "c 2x2: 1 -2 3 4", "u : 1", "c 2: 1 0" },
      "i 1x2: 8 12" },
    { "MatMulInteger", 13, "", { "u 1x2: 255 255", "u 2x1: 255 255" }, "i 1x1: 130050" },
    { "QLinearMatMul",
      13,
      "",
      { "u 1x2: 3 5", "f : 0.5", "u : 1", "c 2x2: 1 -2 3 4", "f : 2", "c : 0", "f : 0.5", "c : 1" },
      "c 1x2: 29 25" },
    { "DequantizeLinear", 13, "", { "u 2: 0 255", "f : 0.5", "u : 128" }, "f 2: -64 63.5" },
    { "DequantizeLinear", 13, "axis=0", { "c 2x1: 4 4", "f 2: 1 2" }, "f 2x1: 4 8" },
    { "QuantizeLinear", 13, "", { "f 4: 0 1 300 -300", "f : 1", "c : 1" }, "c 4: 1 2 127 -128" },
    { "DynamicQuantizeLinear",
      13,
      "",
      { "f 3: -1 0 1.55" },
      "u 3: 0 100 255 | f : 0.01 | u : 100" },
};

static const char *names[N_IN] = { "a", "b", "c", "d", "e", "f", "g", "h" };

/* Writes a model of one node; as_const: its inputs are constants of the file. */
static void write_model(const struct row *r, bool as_const, struct buf *out)
{
    struct buf g = { 0 }, ins = { 0 };
    struct text_tensor x;
    int n_out = 1;

    for (const char *p = r->out; (p = strchr(p, '|')); p++) n_out++;
    for (int i = 0; i < N_IN && r->in[i]; i++) {
        bool given = strcmp(r->in[i], "-") != 0;
        buf_printf(&ins, "%s%s", i ? " " : "", given ? names[i] : "-");
        if (!given) continue;
        parse_tensor(&x, r->in[i]);
        if (as_const) add_const(&g, names[i], r->in[i]);
        else add_io(&g, 11, names[i], x.file_type, NULL);
    }
    add_node(&g, r->op, buf_cstr(&ins), n_out == 1 ? "x" : n_out == 2 ? "x y" : "x y z", r->attrs);
    const char *want = r->out;
    for (int i = 0; i < n_out; i++) {
        parse_tensor(&x, strncmp(want, "fails", 5) == 0 ? "f 1: 0" : want);
        add_io(&g, 12, i == 0 ? "x" : i == 1 ? "y" : "z", x.file_type, NULL);
        want = i + 1 < n_out ? strchr(want, '|') + 2 : want;
    }
    model_bytes(out, &g, r->opset);
    buf_release(&ins);
}

static void set_inputs(struct onnx_run *r, const struct row *row, struct text_tensor *room)
{
    for (int i = 0, at = 0; i < N_IN && row->in[i]; i++) {
        if (strcmp(row->in[i], "-") == 0) continue;
        parse_tensor(&room[i], row->in[i]);
        onnx_run_set(r, at++, room[i].t.n_dims, room[i].t.dims, &room[i].room);
    }
}

static int run_row(struct onnx *m, const struct row *row, const struct vec *vec, int output,
                   bool as_const, const struct onnx_tensor **out, struct onnx_run **r,
                   struct err *e)
{
    static struct text_tensor room[N_IN];
    struct onnx_run_opt opt = { .host = { .vec = vec }, .output = output, .max_bytes = 1 << 24 };
    struct onnx_tensor shape;
    int rc = onnx_run_open(r, m, &opt, e);

    if (rc == OK && !as_const) set_inputs(*r, row, room);
    if (rc == OK) rc = onnx_run_plan(*r, &shape, e);
    if (rc == OK && !as_const) set_inputs(*r, row, room);
    if (rc == OK) rc = onnx_run_execute(*r, NULL, NULL, out, e);
    return rc;
}

static void assert_tensor(const struct row *row, const struct onnx_tensor *got, const char *want)
{
    struct text_tensor x;
    bool good;

    parse_tensor(&x, want);
    good = got->type == x.t.type && got->n_dims == x.t.n_dims && got->n == x.t.n &&
           memcmp(got->dims, x.t.dims, (size_t)got->n_dims * sizeof *got->dims) == 0;
    for (size_t i = 0; good && i < got->n; i++) {
        double a = element_at(got, i), b = element_at(&x.t, i);
        good = fabs(a - b) <= 1e-5 * (1 + fabs(b));
        if (!good) print_message("%s: number %zu is %.9g\n", row->op, i, a);
    }
    if (!good) fail_msg("%s (%s): expected %s", row->op, row->attrs, want);
}

static void check_row(const struct row *row, const struct vec *vec, bool as_const)
{
    struct buf bytes = { 0 };
    struct onnx *m = NULL;
    struct err e = { 0 };
    const char *want = row->out;

    write_model(row, as_const, &bytes);
    if (onnx_parse(&m, buf_str(&bytes), "test", &e) != OK) fail_msg("%s: %s", row->op, e.msg);
    for (int i = 0; want; i++) {
        const struct onnx_tensor *out = NULL;
        struct onnx_run *r = NULL;
        int rc = run_row(m, row, vec, i, as_const, &out, &r, &e);
        if (strncmp(want, "fails: ", 7) == 0) {
            if (rc == OK || !strstr(e.msg, want + 7))
                fail_msg("%s: result %d, '%s', expected '%s'", row->op, rc, e.msg, want + 7);
            assert_non_null(strstr(e.msg, "the_node"));
        } else if (rc != OK) {
            fail_msg("%s (%s): %s", row->op, row->attrs, e.msg);
        } else {
            assert_tensor(row, out, want);
        }
        onnx_run_close(r);
        want = strchr(want, '|');
        if (want) want += 2;
    }
    onnx_close(m);
    buf_release(&bytes);
}

static void every_operator_computes_what_numpy_does(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_row(&rows[i], &vec_ref, false);
        check_row(&rows[i], vec_best(), false);
        if (vec_by_name("avx2")) check_row(&rows[i], vec_by_name("avx2"), false);
    }
}

static void constant_nodes_are_folded(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) check_row(&rows[i], vec_best(), true);
}

static double random_unit(unsigned *x)
{
    *x = *x * 1664525u + 1013904223u;
    return (double)(*x >> 8) / (1 << 24) - 0.5;
}

/* Sizes that are not multiples of panels, row blocks and k ranges. b is constant (packed at
 * load) or not. */
static void matrix_products_of_any_size_are_correct(void **state)
{
    static const int sizes[][3] = { { 1, 1, 1 },      { 13, 33, 257 }, { 97, 31, 256 },
                                    { 100, 70, 513 }, { 5, 64, 7 },    { 2, 32, 300 } };

    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int fixed = 0; fixed < 2; fixed++) {
            int m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
            float *a = mem_array((size_t)(m * k), sizeof *a),
                  *b = mem_array((size_t)(k * n), sizeof *b);
            int64_t da[2] = { m, k }, db[2] = { k, n };
            struct buf g = { 0 }, bytes = { 0 }, t = { 0 };
            struct onnx_run_opt opt = { .host = { .vec = vec_best() } };
            struct onnx_tensor shape;
            const struct onnx_tensor *out;
            struct onnx *x = NULL;
            struct onnx_run *r = NULL;
            struct err e = { 0 };
            unsigned seed = 1;

            for (int i = 0; i < m * k; i++) a[i] = (float)random_unit(&seed);
            for (int i = 0; i < k * n; i++) b[i] = (float)random_unit(&seed);
            add_io(&g, 11, "a", 1, NULL);
            if (fixed) {
                pbw_int(&t, 1, k);
                pbw_int(&t, 1, n);
                pbw_int(&t, 2, 1);
                pbw_bytes(&t, 8, STR("b"));
                pbw_bytes(&t, 9, str_of((const char *)b, (size_t)(k * n) * sizeof *b));
                pbw_buf(&g, 5, &t);
            } else {
                add_io(&g, 11, "b", 1, NULL);
            }
            add_node(&g, "MatMul", "a b", "x", "");
            add_io(&g, 12, "x", 1, NULL);
            model_bytes(&bytes, &g, 13);
            assert_int_equal(onnx_parse(&x, buf_str(&bytes), "test", &e), OK);
            assert_int_equal(onnx_run_open(&r, x, &opt, &e), OK);
            for (int pass = 0; pass < 2; pass++) {
                onnx_run_set(r, 0, 2, da, a);
                if (!fixed) onnx_run_set(r, 1, 2, db, b);
                if (pass == 0) assert_int_equal(onnx_run_plan(r, &shape, &e), OK);
                else assert_int_equal(onnx_run_execute(r, NULL, NULL, &out, &e), OK);
            }
            for (int i = 0; i < m; i++)
                for (int j = 0; j < n; j++) {
                    double sum = 0;
                    for (int q = 0; q < k; q++) sum += (double)a[i * k + q] * b[q * n + j];
                    assert_true(fabs(sum - (double)((const float *)out->data)[i * n + j]) < 2e-5);
                }
            onnx_run_close(r);
            onnx_close(x);
            buf_release(&bytes);
            mem_free(a);
            mem_free(b);
        }
}

/* The sums are too large for a float to represent exactly. */
static void products_of_8bit_integers_are_exact(void **state)
{
    enum { M = 100, N = 40, K = 700 };
    static uint8_t a[M * K];
    static int8_t b[K * N];
    int64_t da[2] = { M, K }, db[2] = { K, N };
    uint8_t zero = 3;
    struct buf g = { 0 }, bytes = { 0 };
    struct onnx_run_opt opt = { .host = { .vec = vec_best() } };
    struct onnx_tensor shape;
    const struct onnx_tensor *out = NULL;
    struct onnx *x = NULL;
    struct onnx_run *r = NULL;
    struct err e = { 0 };
    unsigned seed = 1;

    (void)state;
    for (int i = 0; i < M * K; i++) a[i] = (uint8_t)(random_unit(&seed) * 90 + 210);
    for (int i = 0; i < K * N; i++) b[i] = (int8_t)(random_unit(&seed) * 250);
    add_io(&g, 11, "a", 2, NULL);
    add_io(&g, 11, "b", 3, NULL);
    add_io(&g, 11, "z", 2, NULL);
    add_node(&g, "MatMulInteger", "a b z", "x", "");
    add_io(&g, 12, "x", 6, NULL);
    model_bytes(&bytes, &g, 13);
    assert_int_equal(onnx_parse(&x, buf_str(&bytes), "test", &e), OK);
    assert_int_equal(onnx_run_open(&r, x, &opt, &e), OK);
    for (int pass = 0; pass < 2; pass++) {
        onnx_run_set(r, 0, 2, da, a);
        onnx_run_set(r, 1, 2, db, b);
        onnx_run_set(r, 2, 0, NULL, &zero);
        if (pass == 0) assert_int_equal(onnx_run_plan(r, &shape, &e), OK);
        else assert_int_equal(onnx_run_execute(r, NULL, NULL, &out, &e), OK);
    }
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            int64_t sum = 0;
            for (int k = 0; k < K; k++) sum += (int64_t)(a[i * K + k] - zero) * b[k * N + j];
            assert_int_equal(((const int64_t *)out->data)[i * N + j], sum);
        }
    onnx_run_close(r);
    onnx_close(x);
    buf_release(&bytes);
}

static void add_branch(struct buf *node, const char *name, const char *op, const char *out)
{
    struct buf g = { 0 }, a = { 0 };

    add_node(&g, op, "a", out, "");
    add_io(&g, 12, out, 1, NULL);
    pbw_bytes(&a, 1, str_c(name));
    pbw_buf(&a, 6, &g);
    pbw_int(&a, 20, 5);
    pbw_buf(node, 5, &a);
}

/* Branches can use values of the outer graph, and both branches may use the same name. */
static void a_condition_chooses_its_branch(void **state)
{
    struct buf g = { 0 }, n = { 0 }, bytes = { 0 };
    struct onnx_run_opt opt = { .host = { .vec = &vec_ref } };
    struct onnx_tensor shape;
    const struct onnx_tensor *out = NULL;
    struct onnx *m = NULL;
    struct onnx_run *r = NULL;
    struct err e = { 0 };
    float x[2] = { 1, -2 };
    int64_t dims[1] = { 2 };

    (void)state;
    add_io(&g, 11, "c", 9, NULL);
    add_io(&g, 11, "a", 1, NULL);
    name_list(&n, 1, "c");
    name_list(&n, 2, "y");
    pbw_bytes(&n, 4, STR("If"));
    add_branch(&n, "then_branch", "Neg", "inner");
    add_branch(&n, "else_branch", "Abs", "inner");
    pbw_buf(&g, 1, &n);
    add_node(&g, "Add", "y a", "z", "");
    add_io(&g, 12, "z", 1, NULL);
    model_bytes(&bytes, &g, 16);
    if (onnx_parse(&m, buf_str(&bytes), "test", &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(onnx_run_open(&r, m, &opt, &e), OK);
    for (int pass = 0; pass < 3; pass++) {
        uint8_t cond = pass == 1;
        onnx_run_set(r, 0, 0, NULL, &cond);
        onnx_run_set(r, 1, 1, dims, x);
        if (pass == 0) assert_int_equal(onnx_run_plan(r, &shape, &e), OK);
        else assert_int_equal(onnx_run_execute(r, NULL, NULL, &out, &e), OK);
        if (pass) assert_true(((const float *)out->data)[0] == (pass == 1 ? 0 : 2));
        if (pass) assert_true(((const float *)out->data)[1] == 0);
    }
    onnx_run_close(r);
    onnx_close(m);
    buf_release(&bytes);
}

static void an_unknown_operator_or_attribute_is_refused_by_name(void **state)
{
    static const struct {
        const char *op, *attrs, *says;
    } bad[] = {
        { "Conv3000", "", "operator Conv3000 (opset 13)" },
        { "Softmax", "axes=1", "attribute 'axes' of operator Softmax (opset 13)" },
        { "LayerNormalization", "", "operator LayerNormalization (opset 13)" },
    };

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct buf g = { 0 }, bytes = { 0 };
        struct onnx_run_opt opt = { .host = { .vec = &vec_ref } };
        struct onnx *m = NULL;
        struct onnx_run *r = NULL;
        struct err e = { 0 };

        add_io(&g, 11, "a", 1, NULL);
        add_node(&g, bad[i].op, "a", "x", bad[i].attrs);
        add_io(&g, 12, "x", 1, NULL);
        model_bytes(&bytes, &g, 13);
        assert_int_equal(onnx_parse(&m, buf_str(&bytes), "test", &e), OK);
        assert_int_equal(onnx_run_open(&r, m, &opt, &e), E_UNSUPPORTED);
        if (!strstr(e.msg, bad[i].says) || !strstr(e.msg, "the_node")) fail_msg("%s", e.msg);
        onnx_close(m);
        buf_release(&bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operator_computes_what_numpy_does),
        cmocka_unit_test(constant_nodes_are_folded),
        cmocka_unit_test(matrix_products_of_any_size_are_correct),
        cmocka_unit_test(products_of_8bit_integers_are_exact),
        cmocka_unit_test(a_condition_chooses_its_branch),
        cmocka_unit_test(an_unknown_operator_or_attribute_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
