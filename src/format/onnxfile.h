/* onnxfile.h - finds the ONNX model of a folder, and the folder of an ONNX model.
 *
 * Exports of one model often have several files (model.onnx, model_quantized.onnx), in the folder
 * itself or in its subfolder onnx/. */
#ifndef TERN_FORMAT_ONNXFILE_H
#define TERN_FORMAT_ONNXFILE_H

#include "base/err.h"
#include "base/str.h"

/* Does a file with these first bytes look like an ONNX model? */
bool onnxfile_looks(const unsigned char *head, size_t n);

/* named: the file that tern.json names, relative to dir; empty: none. Then *out is the only .onnx
 * file of dir and dir/onnx, or model.onnx where the others are variants of it (model_x.onnx). A
 * folder with model.safetensors has no ONNX model unless one is named. *out is freed with mem_free;
 * NULL: there is none. E_INVALID: several files could be meant, the message lists them. */
int onnxfile_find(char **out, const char *dir, struct str named, struct err *e);

/* The folder of config.json: that of the file, or the parent of onnx/. Freed with mem_free; NULL:
 * no memory. */
char *onnxfile_folder(const char *path);
uint64_t onnxfile_bytes(const char *path); /* of the file and its external data, FILE_data */
#endif
