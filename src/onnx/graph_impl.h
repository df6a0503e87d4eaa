/* graph_impl.h - the parts of struct onnx that only reading the file needs: graph.c, onnx_tensor.c. */
#ifndef TERN_ONNX_GRAPH_IMPL_H
#define TERN_ONNX_GRAPH_IMPL_H

#include "base/file.h"
#include "base/map.h"
#include "onnx/graph.h"
#include "onnx/heap.h"
#include "onnx/pb.h"

enum { ONNX_FILES = 64 };

struct onnx_impl {
    struct arena arena;
    struct filemap map; /* the file; empty: the bytes belong to the caller of onnx_parse */
    struct map names;   /* name to index of the value; HIDDEN: of a branch that has ended */
    struct onnx_external {
        char *path;
        struct filemap map;
    } files[ONNX_FILES]; /* mapped files of external data */
    int n_files;
    struct heap_owned *owned; /* memory of tensors that were converted or aligned */
    char *dir;                /* folder of external data; NULL: none is allowed */
};

/* Reads a TensorProto and counts it among the parameters of m. */
int onnx_tensor_read(struct onnx *m, struct str bytes, struct onnx_tensor *t, struct str *name,
                     struct err *e);
/* Copies the elements if they are not aligned in the file. */
int onnx_tensor_align(struct onnx *m, struct onnx_tensor *t, struct err *e);
void onnx_tensor_release(struct onnx_impl *p); /* files and owned memory */
#endif
