/* graph.h - an ONNX file: nodes, the values between them, and the tensors it carries.
 *
 * The file is foreign input. onnx_open reads and checks all of it: every name is defined once, the
 * inputs of a node are produced by earlier nodes (so the graph has no cycle), and the bytes of
 * every tensor are there. Counts, sizes and nesting are limited, and products of dimensions cannot
 * overflow.
 *
 * Ownership: names and tensors that need no conversion point into the mapped file; everything else
 * belongs to the struct onnx. External data is mapped from files in the folder of the model; paths
 * that lead elsewhere are refused. */
#ifndef TERN_ONNX_GRAPH_H
#define TERN_ONNX_GRAPH_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

enum { ONNX_DIMS = 8 };

/* Types that operators compute with. Other types of files are converted when they are read: half,
 * bfloat16 and double to F32, all integers of more than 8 bits to I64. */
enum onnx_type { ONNX_NONE, ONNX_F32, ONNX_I64, ONNX_BOOL, ONNX_U8, ONNX_I8 };

struct onnx_tensor {
    enum onnx_type type;
    int n_dims;
    int64_t dims[ONNX_DIMS];
    size_t n;     /* number of elements: the product of dims */
    void *data;   /* row-major */
    bool is_file; /* data points into a file: read-only, and perhaps not aligned */
    int block;    /* the heap block that data lies in; -1: in none */
};

/* AttributeProto.AttributeType, as far as it is read. */
enum onnx_attr_kind {
    ONNX_ATTR_FLOAT = 1,
    ONNX_ATTR_INT = 2,
    ONNX_ATTR_STRING = 3,
    ONNX_ATTR_TENSOR = 4,
    ONNX_ATTR_GRAPH = 5,
    ONNX_ATTR_FLOATS = 6,
    ONNX_ATTR_INTS = 7
};

struct onnx_attr {
    struct str name;
    int kind; /* enum onnx_attr_kind, or another number of the file */
    float f;
    int64_t i;
    struct str s;
    struct onnx_tensor t;
    struct onnx_graph *g;
    int n; /* length of ints or floats */
    int64_t *ints;
    float *floats;
};

struct onnx_node {
    struct str op, domain, name;
    int n_in, n_out, n_attrs;
    int *in, *out; /* indexes of values; -1: the optional input or output is absent */
    struct onnx_attr *attrs;
    /* Set by the run that is open; so a graph has one open run at a time. */
    const struct onnx_op *info; /* the operator */
    const float *packed;        /* the constant matrix in the layout of the kernels; NULL: none */
    bool as_float;              /* MatMulInteger: only a cast to float reads the result */
};

struct onnx_value {
    struct str name;
    bool is_const;        /* a tensor of the file */
    struct onnx_tensor t; /* where is_const */
};

struct onnx_io { /* an input or output of a graph */
    int value;
    enum onnx_type type;     /* ONNX_NONE: the file does not say */
    int n_dims;              /* -1: the file does not say */
    int64_t dims[ONNX_DIMS]; /* -1: any size */
};

/* The main graph, or a branch of If. A branch sees the values of the graphs around it. */
struct onnx_graph {
    struct onnx_node *nodes; /* in an order in which they can run */
    int n_nodes;
    struct onnx_io *inputs, *outputs; /* inputs: without those that are tensors of the file */
    int n_inputs, n_outputs;
};

struct onnx {
    char *path;
    struct onnx_graph graph;
    struct onnx_value *values; /* of all graphs */
    int n_values;
    int opset;                       /* version of the default operator set */
    uint64_t n_params, weight_bytes; /* elements and file bytes of all tensors */
    struct str producer;             /* the program that wrote the file */
    struct onnx_impl *impl;
};

/* E_FORMAT: the file is not a valid model. E_UNSUPPORTED: it uses something that tern does not
 * read. E_NOMEM: out of memory. */
int onnx_open(struct onnx **out, const char *path, struct err *e);
/* From memory that outlives the model; external data is refused. `name` is for error messages. */
int onnx_parse(struct onnx **out, struct str bytes, const char *name, struct err *e);
void onnx_close(struct onnx *m); /* NULL is allowed */
/* filemap_check of the file and of its external data. */
int onnx_check(const struct onnx *m, bool look, struct err *e);

/* Attributes of a node; NULL or the fallback: it has none of that name. */
const struct onnx_attr *onnx_attr(const struct onnx_node *n, const char *name);
int64_t onnx_int(const struct onnx_node *n, const char *name, int64_t fallback);
float onnx_float(const struct onnx_node *n, const char *name, float fallback);

/* TensorProto.DataType to the type that computes it; ONNX_NONE: not supported. */
enum onnx_type onnx_type_of(int64_t file_type);
size_t onnx_size(enum onnx_type t); /* bytes of an element */
const char *onnx_type_name(enum onnx_type t);
#endif
