/* graph.h - an ONNX file: nodes, the values between them, and the tensors it carries.
 *
 * Everything is read and checked by onnx_open: that names have one maker, that a node's inputs are
 * made before it, that tensors' bytes are there. Names and raw tensors are borrowed from the mapped
 * file; external data lies in mapped files of the same folder, and nowhere else. */
#ifndef TERN_ONNX_GRAPH_H
#define TERN_ONNX_GRAPH_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

enum { ONNX_DIMS = 8 };

/* What runs. Files have more types: halves and doubles become F32, whole numbers I64. */
enum onnx_type { ONNX_NONE, ONNX_F32, ONNX_I64, ONNX_BOOL, ONNX_U8, ONNX_I8 };

struct onnx_tensor {
    enum onnx_type type;
    int n_dims;
    int64_t dims[ONNX_DIMS];
    size_t n;   /* numbers */
    void *data; /* may be unaligned where it is the file's: then is_file */
    bool is_file;
    int block; /* of the heap it lies in; -1: none */
};

struct onnx_attr {
    struct str name;
    int kind; /* AttributeProto's: 1 float, 2 int, 3 text, 4 tensor, 5 graph, 6 floats, 7 ints */
    float f;
    int64_t i;
    struct str s;
    struct onnx_tensor t;
    struct onnx_graph *g;
    int n; /* of ints or floats */
    int64_t *ints;
    float *floats;
};

struct onnx_node {
    struct str op, domain, name;
    int n_in, n_out, n_attrs;
    int *in, *out; /* values; -1: not given */
    struct onnx_attr *attrs;
    const struct onnx_op *info; /* found when it is to run */
    const float *packed;        /* its matrix as the kernels read it; the run's */
    bool as_float;              /* its whole numbers are wanted as floats only */
};

struct onnx_value {
    struct str name;
    bool made; /* an input, a tensor of the file, or what a node makes */
    bool is_const;
    struct onnx_tensor t; /* where is_const */
};

struct onnx_io {
    int value;
    enum onnx_type type;
    int n_dims;              /* -1: not said */
    int64_t dims[ONNX_DIMS]; /* -1: open */
};

/* The main one, or a branch of If, which sees the values of those around it. */
struct onnx_graph {
    struct onnx_node *nodes;
    int n_nodes;
    struct onnx_io *inputs, *outputs; /* inputs: without those that are tensors of the file */
    int n_inputs, n_outputs;
};

struct onnx {
    char *path;
    struct onnx_graph graph;
    struct onnx_value *values;
    int n_values;
    int opset;                       /* of the default domain */
    uint64_t n_params, weight_bytes; /* of the tensors it carries, as they lie in the file */
    struct str producer;
    struct onnx_impl *impl;
};

/* E_FORMAT says where the file is wrong, E_UNSUPPORTED what of it tern does not read. */
int onnx_open(struct onnx **out, const char *path, struct err *e);
/* From memory that stays in place; external data is refused. name is for errors. */
int onnx_parse(struct onnx **out, struct str bytes, const char *name, struct err *e);
void onnx_close(struct onnx *m); /* NULL is fine */

const struct onnx_attr *onnx_attr(const struct onnx_node *n,
                                  const char *name); /* NULL: not given */
int64_t onnx_int(const struct onnx_node *n, const char *name, int64_t otherwise);
float onnx_float(const struct onnx_node *n, const char *name, float otherwise);

size_t onnx_size(enum onnx_type t); /* bytes of a number */
const char *onnx_type_name(enum onnx_type t);
#endif
