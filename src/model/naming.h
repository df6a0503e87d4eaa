/* naming.h - what becomes of a folder's model in GGUF: names of tensors, keys, extra tensors. */
#ifndef TERN_MODEL_NAMING_H
#define TERN_MODEL_NAMING_H

#include "format/ggufw.h"
#include "model/hparams.h"

struct gguf_name {
    char name[128];
    int permute; /* heads whose rows go from (i, i + half) to (2i, 2i + 1); 0: rows stay */
    float add;               /* added to every number */
    bool keep_f32;           /* small and sensitive: norms, biases */
    bool skip;               /* has no place in GGUF: a tied head, rotary buffers */
};

/* The GGUF name of an HF tensor; false: the architecture has no such tensor. */
bool naming_to_gguf(const struct hparams *hp, struct str hf_name, struct gguf_name *out);

/* Writes general.architecture and every key hparams_read needs to come to the same model. */
void naming_keys(const struct hparams *hp, struct ggufw *w);

/* Rotary factors that GGUF carries as tensors of F32. */
struct gguf_extra {
    const char *name;
    const float *data;
    int64_t n;
};
/* Fills at most 2, made in a's memory; returns how many. */
int naming_extras(const struct hparams *hp, struct arena *a, struct gguf_extra out[2]);
#endif
