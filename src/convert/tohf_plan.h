/* tohf_plan.h - which tensors a Hugging Face folder gets from a GGUF file, and which GGUF rows each
 * of their rows is made of.
 *
 * GGUF splits or stacks what a folder has packed (q, k and v; gate and up; experts), so a folder's
 * tensor is made of up to three parts of GGUF tensors. A plan borrows the source and lives in the
 * caller's arena. */
#ifndef TERN_CONVERT_TOHF_PLAN_H
#define TERN_CONVERT_TOHF_PLAN_H

#include "base/map.h"
#include "convert/tohf.h"
#include "model/layout.h"
#include "model/tiling.h"

/* The rows of a GGUF tensor that are one part of a folder's tensor. */
struct tohf_part {
    const struct source_tensor *t;
    int64_t first; /* row of each matrix of t at which the part begins */
    int64_t each;  /* rows of a matrix of t */
    int n_rot;     /* rows of a head that `permute` is about */
    int permute;   /* heads whose rows are (2i, 2i + 1) in GGUF and (i, i + half) in a folder; 0:
                      rows are in the same order */
    const float *scales; /* [n_scales]: one factor of all values, or one per matrix; NULL: none */
    int n_scales;
};

struct tohf_item {
    const char *name;
    enum dtype type;
    int n_dims;
    int64_t dims[4];
    struct layout y; /* of the folder's tensor */
    int first_mat;   /* the first matrix of it among those that the GGUF tensor stacks */
    struct tohf_part part[3];
    int32_t *row_of; /* [y.rows]: row w of the folder is row row_of[w] / 4 of part row_of[w] % 4;
                           NULL for ORDER_KV_B */
    struct tiling tile_rows, tile_cols; /* value heads that GGUF has in another order */
    float add;                          /* is added to GGUF's value for the folder's */
    bool log;                           /* the folder has x where GGUF has -exp(x) */
    bool mx_scales;                     /* MXFP4: this tensor is the scales, not the values */
    const float *exact; /* [rows][cols] the folder's values, from HFKEY_EXACT; NULL: computed */
    uint64_t bytes;
    uint32_t crc; /* CRC-32 of what was written; 0: not written in this run */
};

struct tohf_plan {
    struct tohf_item *items;
    int n;
    enum dtype main_type; /* of most matrices */
    uint64_t bytes;
    const struct arch *arch; /* the folder's architecture: several share one GGUF name */
};

/* hp: of the GGUF file; its arch and name prefixes are changed to the folder's. want: DT_NONE, or
 * the type of matrices. E_UNSUPPORTED names a GGUF tensor that has no Hugging Face name. */
int tohf_plan(struct tohf_plan *p, struct hparams *hp, struct arena *a, const struct source *src,
              enum dtype want, struct err *e);

/* Floats of scratch memory for tohf_row. */
static inline size_t tohf_room(const struct tohf_item *it)
{
    return layout_room(&it->y) + (it->tile_cols.keys ? (size_t)it->y.cols : 0);
}
/* tohf_rows.c: stores row `at` (counted over all matrices) at dst; tmp has room for
 * tohf_room floats. Not for transposed tensors. Any thread may call. */
void tohf_row(const struct tohf_item *it, int64_t at, void *dst, float *tmp);
/* tohf_rows.c: stores a whole transposed tensor, it->bytes, at dst. */
int tohf_transposed(const struct tohf_item *it, void *dst, struct err *e);
#endif
