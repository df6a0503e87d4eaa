/* onnxfile.h - which file of a folder is an ONNX model, and where its companions lie. */
#ifndef TERN_FORMAT_ONNXFILE_H
#define TERN_FORMAT_ONNXFILE_H

#include "base/err.h"
#include "base/str.h"

/* Does a file beginning so look like one? */
bool onnxfile_looks(const unsigned char *head, size_t n);

/* named: as tern.json has it, below dir; else the one .onnx file of dir or dir/onnx, or model.onnx
 * beside variants of its own (model_quantized.onnx). Safetensors come first where no file is named.
 * *out NULL: there is none; several that could be meant are E_INVALID, with their names. From
 * mem_alloc. */
int onnxfile_find(char **out, const char *dir, struct str named, struct err *e);

/* The folder of config.json: the file's, or the one around onnx/. From mem_alloc. */
char *onnxfile_folder(const char *path);
uint64_t onnxfile_bytes(const char *path); /* of the file and of what it keeps beside it */
#endif
