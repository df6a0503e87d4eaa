/* modelbytes.h - about how many bytes of weights a model has, from the sizes of its files alone. */
#ifndef TERN_POOL_MODELBYTES_H
#define TERN_POOL_MODELBYTES_H

#include <stdint.h>

/* path: a file, the first of several parts, or a folder. 0: nothing can be read there. Any thread. */
uint64_t model_file_bytes(const char *path);
#endif
