/* naming.h - a model of a Hugging Face folder as GGUF: its tensors, their names and row order, and
 * the metadata keys. Used by tern convert and tern quantize; the way back is in src/convert. */
#ifndef TERN_MODEL_NAMING_H
#define TERN_MODEL_NAMING_H

#include "format/ggufw.h"
#include "model/layout.h"
#include "model/tiling.h"

struct vec_head;
/* Factors of rows: f[i] of the rows before end[i] that f[i - 1] is not for; n 0: none. */
struct row_scale {
    int n;
    float f[5];
    int64_t end[5];
};

/* A tensor of the GGUF file, and how its rows are made from the folder. */
struct gguf_item {
    char name[128];
    const struct tensor_row *row;      /* the folder's tensor in the table */
    struct layout lay;                 /* and its layout */
    int part;                          /* which part of it; -1: all parts, one after the other */
    const struct source_tensor **from; /* [lay.tensors] */
    const struct grouped **groups;     /* [lay.tensors] of quantized layers; NULL: none is */
    int n_dims;
    int64_t dims[3];    /* in the GGUF file, slowest first */
    int64_t rows, cols; /* the same as a matrix: a vector has rows of one element */
    int permute;        /* heads whose rows are reordered from ROPE_HALF to ROPE_PAIR; 0: none */
    int n_rot;          /* rows of a head that are: those that are rotated */
    struct tiling tile_rows, tile_cols; /* rows and columns of value heads that are reordered */
    float add;                          /* added to every element */
    struct row_scale scale;             /* multiplies rows */
    bool neg_exp;                       /* every element x becomes -e^x */
    bool keep_f32;                      /* stays F32: norms, biases, routers */
};

/* Lists the GGUF tensors of the folder's model, allocated from a. E_NOTFOUND, E_FORMAT: a tensor is
 * missing or has another shape; E_UNSUPPORTED: the folder has a tensor that GGUF has no name for. */
int naming_plan(const struct hparams *hp, const struct source *src, struct arena *a,
                struct gguf_item **items, int *n, struct err *e);
/* Factors of config.json that GGUF files have no keys for: they are multiplied into the weights of
 * row r in layer l (falcon-h1). The caller has cleared *out. */
void naming_scales(struct row_scale *out, const struct hparams *hp, const struct tensor_row *r,
                   int l);
/* Floats of scratch memory for naming_row. */
static inline size_t naming_room(const struct gguf_item *it)
{
    return layout_room(&it->lay) + (it->tile_cols.keys ? (size_t)it->cols : 0);
}
/* Writes row r as type `to`; tmp: scratch of naming_room floats. Any thread may call. DT_GROUPED:
 * columns stay in the folder's order. */
void naming_row(const struct gguf_item *it, int64_t r, enum dtype to, void *dst, float *tmp);

/* Writes general.architecture and every key that hparams_read needs to read the same model again.
 * E_NOMEM; errors of the file are the writer's, reported by ggufw_close. */
int naming_keys(const struct hparams *hp, struct ggufw *w, struct err *e);

/* Tensors that are written as F32, whatever the others are: rotary factors, dense layers behind the
 * pooling, and the head of a classifier. */
struct gguf_extra {
    const char *name;
    const float *data;
    int64_t n; /* elements */
    int n_dims;
    int64_t dims[2]; /* slowest first */
};
enum { GGUF_EXTRAS = 4 };
/* Fills in at most GGUF_EXTRAS, with data allocated from a, and returns their number. Without memory it
 * returns 0 and the arena has failed: check arena_check. */
int naming_extras(const struct hparams *hp, struct arena *a, struct gguf_extra out[GGUF_EXTRAS]);

/* The head of a classifier, with the tensors of naming_extras in front: what the file has beside the
 * items. A zeroed one has none. */
struct gguf_rest {
    struct gguf_extra list[GGUF_EXTRAS + 6];
    int n;
    const struct vec_head *head; /* NULL: the model does not classify */
};
/* naming_head.c. Everything is in a, or borrowed from it. E_UNSUPPORTED: a head that GGUF has no names
 * for. */
int naming_rest(struct gguf_rest *out, const struct hparams *hp, const struct source *src,
                struct arena *a, struct err *e);
/* The keys of the head: labels, and what differs from llama.cpp's rule. */
void naming_head_keys(const struct hparams *hp, const struct vec_head *head, struct ggufw *w);
#endif
