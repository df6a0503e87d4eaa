/* ggufw.h - writing GGUF v3.
 *
 * Keys first, then the directory of tensors (names, shapes, types), then their data in the
 * same order, each piece as it is ready: nothing but the directory is held in memory. The
 * file is written beside its name and renamed over it by ggufw_close; ggufw_abort leaves
 * nothing behind. The first failure is kept and told at close. */
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
/* A key of a GGUF source as it stands there, whatever its type; false if the source has no such. */
bool ggufw_copy(struct ggufw *w, const struct source *from, const char *key);

/* dims slowest first, as in source.h. */
void ggufw_tensor(struct ggufw *w, const char *name, enum dtype t, const int64_t *dims, int n_dims);
/* Bytes of the tensors in the order they were declared; pieces of any size. */
void ggufw_data(struct ggufw *w, const void *p, size_t n);

int ggufw_close(struct ggufw *w, struct err *e); /* E_INTERNAL if bytes are missing */
void ggufw_abort(struct ggufw *w);               /* NULL is fine */
#endif
