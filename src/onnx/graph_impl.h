/* graph_impl.h - what reading an ONNX file needs; seen by graph.c and tensor.c only. */
#ifndef TERN_ONNX_GRAPH_IMPL_H
#define TERN_ONNX_GRAPH_IMPL_H

#include "base/file.h"
#include "base/map.h"
#include "onnx/graph.h"
#include "onnx/pb.h"

enum { ONNX_FILES = 64 };

struct onnx_impl {
    struct arena arena;
    struct filemap map; /* of the file; empty: the bytes are someone else's */
    struct map names;   /* → value; HIDDEN: of a branch that was left */
    struct onnx_external {
        char *path;
        struct filemap map;
    } files[ONNX_FILES];
    int n_files;
    struct onnx_owned { /* tensors that could not stay as they lay */
        struct onnx_owned *next;
        void *p;
        size_t bytes;
    } * owned;
    char *dir; /* where external data may lie; NULL: nowhere */
};

/* A TensorProto. Counts towards m's parameters. */
int onnx_tensor_read(struct onnx *m, struct str bytes, struct onnx_tensor *t, struct str *name,
                     struct err *e);
/* Its numbers stand as the machine wants them, in a copy if need be. */
int onnx_tensor_align(struct onnx *m, struct onnx_tensor *t, struct err *e);
/* TensorProto.DataType → what runs; ONNX_NONE: not read. */
enum onnx_type onnx_type_of(int64_t file_type);
void onnx_tensor_release(struct onnx_impl *p);
#endif
