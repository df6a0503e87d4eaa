/* metakeys.h - look-ups in the metadata of a GGUF file, for the readers of hyper-parameters.
 *
 * Names are without the architecture, which is put in front: "block_count" is the key
 * "llama.block_count". The counterpart for config.json is model/config.h. */
#ifndef TERN_MODEL_METAKEYS_H
#define TERN_MODEL_METAKEYS_H

#include "base/err.h"
#include "format/source.h"

struct metakeys {
    const struct source *src;
    const char *arch; /* general.architecture */
};

struct metakey {
    char s[160];
};
struct metakey metakeys_name(const struct metakeys *k, const char *name); /* "llama.NAME" */

bool metakeys_f64(const struct metakeys *k, const char *name, double *out);
double metakeys_f64_or(const struct metakeys *k, const char *name, double otherwise);
/* A non-negative integer: one for all layers, or a list with one for each. false: the key is
 * missing, or has no such value for layer l; *out is unchanged. */
bool metakeys_int(const struct metakeys *k, const char *name, int l, int *out);
/* A positive integer, as metakeys_int; E_FORMAT if there is none. */
int metakeys_need(const struct metakeys *k, const char *name, int l, int *out, struct err *e);
/* The tensor blk.L.NAME, or NULL. */
const struct source_tensor *metakeys_tensor(const struct metakeys *k, int l, const char *name);
#endif
