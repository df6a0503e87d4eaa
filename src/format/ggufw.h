/* ggufw.h - writes GGUF files, version 3.
 *
 * First the keys, then the directory of tensors (names, shapes, types), then their data in the same
 * order, in chunks of any size: only keys and directory are held in memory. The file is written
 * under a temporary name and renamed by ggufw_close, so that a reader never sees half of it. Calls
 * return nothing; the writer remembers the first failure, also of an allocation, ignores what comes
 * after it, and ggufw_close reports it. A writer belongs to one thread. */
#ifndef TERN_FORMAT_GGUFW_H
#define TERN_FORMAT_GGUFW_H

#include "base/dtype.h"
#include "base/err.h"
#include "base/str.h"

struct ggufw;
struct source;

int ggufw_open(struct ggufw **out, const char *path, struct err *e);
void ggufw_u16(struct ggufw *w, const char *key, uint16_t v);
void ggufw_u32(struct ggufw *w, const char *key, uint32_t v);
void ggufw_u64(struct ggufw *w, const char *key, uint64_t v);
void ggufw_i32(struct ggufw *w, const char *key, int32_t v);
void ggufw_f32(struct ggufw *w, const char *key, float v);
void ggufw_bool(struct ggufw *w, const char *key, bool v);
void ggufw_str(struct ggufw *w, const char *key, struct str v);
void ggufw_strs(struct ggufw *w, const char *key, const struct str *v, size_t n);
void ggufw_i32s(struct ggufw *w, const char *key, const int32_t *v, size_t n);
void ggufw_u32s(struct ggufw *w, const char *key, const uint32_t *v, size_t n);
void ggufw_f32s(struct ggufw *w, const char *key, const float *v, size_t n);
void ggufw_u8s(struct ggufw *w, const char *key, const uint8_t *v, size_t n);
void ggufw_bools(struct ggufw *w, const char *key, const bool *v, size_t n);
/* Copies a key of a GGUF source unchanged; false: the source has no such key. */
bool ggufw_copy(struct ggufw *w, const struct source *from, const char *key);

/* dims: slowest dimension first, as in source.h. */
void ggufw_tensor(struct ggufw *w, const char *name, enum dtype t, const int64_t *dims, int n_dims);
/* The next n bytes of the tensors, in the order they were declared. */
void ggufw_data(struct ggufw *w, const void *p, size_t n);

/* Completes the file, or removes the temporary one and reports the first failure. E_INTERNAL: data
 * is missing. w is freed either way. */
int ggufw_close(struct ggufw *w, struct err *e);
void ggufw_abort(struct ggufw *w); /* removes the temporary file; NULL is allowed */
#endif
