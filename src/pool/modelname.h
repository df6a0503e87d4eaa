/* modelname.h - the id under which a model is served, from its path. */
#ifndef TERN_POOL_MODELNAME_H
#define TERN_POOL_MODELNAME_H

/* The file or folder name without what tern knows to be an extension or a part number:
 * "m-00001-of-00003.gguf" is "m", "x/onnx/model_int8.onnx" is "x_int8". From mem_alloc; NULL: no
 * memory. */
char *model_id_of(const char *path);
#endif
