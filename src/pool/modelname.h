/* modelname.h - the id under which a model is served, from its path. */
#ifndef TERN_POOL_MODELNAME_H
#define TERN_POOL_MODELNAME_H

#include "base/str.h"

/* The file or folder name without what tern knows to be an extension or a part number:
 * "m-00001-of-00003.gguf" is "m", "x/onnx/model_int8.onnx" is "x_int8". From mem_alloc; NULL: no
 * memory. */
char *model_id_of(const char *path);

/* The id of a model that was found at path by a name (modelref.h): a folder of the cache has the
 * name of its repository, not that of its commit. */
char *model_id_of_name(const char *name, const char *path);

/* The same for a path relative to a folder of models, with the folders before it:
 * "org/m-00001-of-00003.gguf" is "org/m", "org/x/onnx/model.onnx" is "org/x". */
char *model_id_below(const char *rel);

#define MODEL_PART_TAIL 20 /* bytes of "-00001-of-00003.gguf" */
/* Is name that of a part of a split GGUF file? part is from 1. */
bool model_part_of(struct str name, int *part, int *count);
#endif
