/* safetensors.h - safetensors files, mapped: one file, or the shards of a folder.
 *
 * A file is the length of its header (u64), a JSON header (dtype, shape and data_offsets of each
 * tensor), then the data. Tensors stay in the mapped file, except those that are not aligned to
 * their element size: they are copied once. What is handed out is borrowed and lives until
 * safetensors_close. A tensor of more than SOURCE_MAX_DIMS dimensions has its leading ones
 * multiplied together. Every offset is checked while the file is opened. Read-only once open. */
#ifndef TERN_FORMAT_SAFETENSORS_H
#define TERN_FORMAT_SAFETENSORS_H

#include "base/file.h"
#include "format/source.h"

struct safetensors;

int safetensors_open(struct safetensors **out, const char *path, struct err *e);
/* model.safetensors of a folder, or the shards listed in model.safetensors.index.json. */
int safetensors_open_dir(struct safetensors **out, const char *dir, struct err *e);
/* The shards in dir, from the text of an index; name is used in messages. */
int safetensors_open_index(struct safetensors **out, const char *dir, struct str json,
                           const char *name, struct err *e);
/* One file that is in memory and outlives s. */
int safetensors_parse(struct safetensors **out, const void *p, size_t n, const char *name,
                      struct err *e);
void safetensors_close(struct safetensors *s); /* NULL is allowed */
/* Headers of encrypted files (base/sealed.h) are decrypted; as gguf_fill and gguf_unfilled. */
int safetensors_fill(struct safetensors *s, file_step_fn *step, void *arg, struct err *e);
uint64_t safetensors_unfilled(const struct safetensors *s);
bool safetensors_is_sealed(const struct safetensors *s);
/* filemap_check of all its files. */
int safetensors_check(const struct safetensors *s, bool look, struct err *e);

/* Do the first n bytes of a file look like safetensors? */
bool safetensors_looks(const void *p, size_t n, uint64_t file_bytes);

size_t safetensors_n_tensors(const struct safetensors *s);
const struct source_tensor *safetensors_tensor(const struct safetensors *s, size_t i);
const struct source_tensor *safetensors_find(const struct safetensors *s,
                                             struct str name); /* or NULL */

/* A string of "__metadata__" in the header, or of "metadata" in the index; borrowed. */
bool safetensors_meta(const struct safetensors *s, const char *key, struct str *out);
#endif
