/* safetensorsw.h - writes the tensors of a Hugging Face folder: one safetensors file, or shards of
 * a given size and their index.
 *
 * First all tensors are declared (names, shapes, types), then their data follows in the same order,
 * in chunks of any size. Each shard is written under a temporary name and renamed when it is
 * complete, the index last. With safetensorsw_resume a complete shard of an earlier run is kept:
 * its tensors are skipped (safetensorsw_wants). Calls return nothing; the writer remembers the
 * first failure, also of an allocation, ignores what comes after it, and safetensorsw_close reports
 * it. A writer belongs to one thread. */
#ifndef TERN_FORMAT_SAFETENSORSW_H
#define TERN_FORMAT_SAFETENSORSW_H

#include "base/dtype.h"
#include "base/err.h"
#include "base/str.h"

struct safetensorsw;

/* dir must exist. shard_bytes: most bytes of data in a shard, except for one large tensor; 0: one
 * file. */
int safetensorsw_open(struct safetensorsw **out, const char *dir, uint64_t shard_bytes,
                      struct err *e);
void safetensorsw_tensor(struct safetensorsw *w, const char *name, enum dtype t,
                         const int64_t *dims, int n_dims);
/* Keeps complete shards of an earlier run: those that have exactly the header and size this run
 * would write. Must come before the first data. */
void safetensorsw_resume(struct safetensorsw *w);

/* Must the data of tensor i, the next one, be written? false: its shard is complete already; the
 * caller goes on with tensor i + 1. */
bool safetensorsw_wants(struct safetensorsw *w, size_t i);
void safetensorsw_data(struct safetensorsw *w, const void *p, size_t n);

/* The files, after the first call of safetensorsw_wants or safetensorsw_data. */
size_t safetensorsw_n_files(const struct safetensorsw *w);
const char *safetensorsw_file(const struct safetensorsw *w, size_t i); /* its name in the folder */

/* Writes the index, or removes the incomplete shard and reports the first failure. E_INTERNAL: data
 * is missing. w is freed either way. */
int safetensorsw_close(struct safetensorsw *w, struct err *e);
void safetensorsw_abort(struct safetensorsw *w); /* complete shards stay; NULL is allowed */
#endif
