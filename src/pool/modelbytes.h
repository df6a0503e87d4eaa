/* modelbytes.h - the files of a model's weights, and about how many bytes these have, from their sizes
 * alone. */
#ifndef TERN_POOL_MODELBYTES_H
#define TERN_POOL_MODELBYTES_H

#include <stdbool.h>
#include <stdint.h>

/* path: a file, the first of several parts, or a folder. 0: nothing can be read there. Any thread. */
uint64_t model_file_bytes(const char *path);
/* Calls fn with the path of every file of weights, until it returns false. Any thread. */
void model_each_file(const char *path, bool (*fn)(void *arg, const char *file), void *arg);
#endif
