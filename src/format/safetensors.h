/* safetensors.h - safetensors files: a JSON header and tensors, mapped; one file or shards.
 *
 * Tensors stay where they lie in the file, except those that do not begin on a multiple of
 * their element's size: these are copied once. What is handed out lives until
 * safetensors_close. A tensor of more than SOURCE_MAX_DIMS dimensions is seen with its
 * leading ones multiplied together. */
#ifndef TERN_FORMAT_SAFETENSORS_H
#define TERN_FORMAT_SAFETENSORS_H

#include "format/source.h"

struct safetensors;

int safetensors_open(struct safetensors **out, const char *path, struct err *e);
/* model.safetensors of a folder, or the shards that its model.safetensors.index.json names. */
int safetensors_open_dir(struct safetensors **out, const char *dir, struct err *e);
/* The shards in dir, by the text of an index; name is for errors. */
int safetensors_open_index(struct safetensors **out, const char *dir, struct str json,
                           const char *name, struct err *e);
/* One file that is in memory already and outlives s. */
int safetensors_parse(struct safetensors **out, const void *p, size_t n, const char *name,
                      struct err *e);
void safetensors_close(struct safetensors *s); /* NULL is fine */

/* Do the first n bytes look like a header? */
bool safetensors_looks(const void *p, size_t n, uint64_t file_bytes);

size_t safetensors_n_tensors(const struct safetensors *s);
const struct source_tensor *safetensors_tensor(const struct safetensors *s, size_t i);
const struct source_tensor *safetensors_find(const struct safetensors *s,
                                             struct str name); /* or NULL */

/* A text of the header's "__metadata__" (of an index: its "metadata"). */
bool safetensors_meta(const struct safetensors *s, const char *key, struct str *out);
#endif
