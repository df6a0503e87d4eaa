/* safetensorsw.h - writing the tensors of a Hugging Face folder: one safetensors file, or shards of
 * a given size with their index.
 *
 * First all tensors are declared (names, shapes, types), then their data comes in the same order,
 * in pieces of any size. Each shard is written beside its name and renamed when it is whole, the
 * index last. A shard that is there already with the very header it would get is kept: its
 * tensors are passed over (safetensorsw_wants). The first failure is kept and told at close. */
#ifndef TERN_FORMAT_SAFETENSORSW_H
#define TERN_FORMAT_SAFETENSORSW_H

#include "base/dtype.h"
#include "base/err.h"
#include "base/str.h"

struct safetensorsw;

int safetensorsw_open(struct safetensorsw **out, const char *dir, uint64_t shard_bytes,
                      struct err *e);
void safetensorsw_tensor(struct safetensorsw *w, const char *name, enum dtype t,
                         const int64_t *dims, int n_dims);
/* Keep whole shards of an earlier run? Before the first data. */
void safetensorsw_resume(struct safetensorsw *w);

/* Does tensor i, the next one, want data? false: its shard is there; go on with the one behind it.
 */
bool safetensorsw_wants(struct safetensorsw *w, size_t i);
void safetensorsw_data(struct safetensorsw *w, const void *p, size_t n);

size_t safetensorsw_n_files(const struct safetensorsw *w);             /* after the first wants */
const char *safetensorsw_file(const struct safetensorsw *w, size_t i); /* its name in the folder */

int safetensorsw_close(struct safetensorsw *w, struct err *e);
void safetensorsw_abort(struct safetensorsw *w); /* whole shards stay; NULL is fine */
#endif
