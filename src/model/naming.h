/* naming.h - what becomes of a folder's model in GGUF: names of tensors, keys, extra tensors. */
#ifndef TERN_MODEL_NAMING_H
#define TERN_MODEL_NAMING_H

#include "format/ggufw.h"
#include "model/layout.h"

/* A tensor of the GGUF file, and where its rows are in the folder. */
struct gguf_item {
    char name[128];
    const struct tensor_row *row; /* of the folder's tensor */
    struct layout lay;
    int part;                          /* of it; -1: all parts, one behind the other */
    const struct source_tensor **from; /* [lay.tensors] */
    int n_dims;
    int64_t dims[3];    /* in the GGUF file, slowest first */
    int64_t rows, cols; /* the same as rows of numbers: a vector is rows of one */
    int permute;        /* heads whose rows go from (i, i + half) to (2i, 2i + 1); 0: rows stay */
    float add;          /* added to every number */
    bool neg_exp;       /* every number x becomes -e^x */
    bool keep_f32;      /* small and sensitive: norms, biases, routers */
};

/* Every tensor of the folder's model as one of GGUF, in a's memory: E_NOTFOUND, E_FORMAT name what
 * is missing or has another shape, E_UNSUPPORTED one that has no place. */
int naming_plan(const struct hparams *hp, const struct source *src, struct arena *a,
                struct gguf_item **items, int *n, struct err *e);
/* Row r of it as type `to`; tmp has room for layout_room(&it->lay) numbers. */
void naming_row(const struct gguf_item *it, int64_t r, enum dtype to, void *dst, float *tmp);

/* Writes general.architecture and every key hparams_read needs to come to the same model. */
void naming_keys(const struct hparams *hp, struct ggufw *w);

/* Keys of heads and mixers, of architectures with a mixer. */
void naming_mix_keys(const struct hparams *hp, struct ggufw *w);

/* Rotary factors that GGUF carries as tensors of F32. */
struct gguf_extra {
    const char *name;
    const float *data;
    int64_t n;
};
/* Fills at most 2, made in a's memory; returns how many. */
int naming_extras(const struct hparams *hp, struct arena *a, struct gguf_extra out[2]);
#endif
