/* tohf_plan.h - which tensors a folder gets from a GGUF file, and where each of their rows comes
 * from. */
#ifndef TERN_CONVERT_TOHF_PLAN_H
#define TERN_CONVERT_TOHF_PLAN_H

#include "base/map.h"
#include "convert/tohf.h"
#include "model/layout.h"

/* Rows of a part of the folder's tensor, in a tensor of the GGUF file. */
struct tohf_part {
    const struct source_tensor *t;
    int64_t first, each; /* row of each matrix at which it begins; rows of a matrix there */
    int permute;         /* heads whose rows are (2i, 2i + 1) there, (i, i + half) in a folder */
};

struct tohf_item {
    const char *name;
    enum dtype type;
    int n_dims;
    int64_t dims[4];
    struct layout y; /* of the folder's tensor */
    int first_mat;   /* of those that the GGUF tensor stacks */
    struct tohf_part part[3];
    int32_t
        *row_of; /* [y.rows] part and row: stored row w is row_of[w] / 4 of part row_of[w] % 4 */
    float add, scale;
    bool log;           /* the folder has x where the file has -e^x */
    bool mx_scales;     /* MXFP4: the scales, not the numbers */
    const float *exact; /* [rows][cols] its very numbers, or NULL */
    uint64_t bytes;
    uint32_t crc;
};

struct tohf_plan {
    struct tohf_item *items;
    int n;
    enum dtype main_type; /* of most matrices */
    uint64_t bytes;
    const struct arch *arch; /* the folder's kind: several share a GGUF name */
};

/* hp: of the GGUF file; its prefixes and kind become the folder's. want: DT_NONE, or the type of
 * matrices. All in a's memory. */
int tohf_plan(struct tohf_plan *p, struct hparams *hp, struct arena *a, const struct source *src,
              enum dtype want, struct err *e);

/* Row `at` of the result (over all matrices) as it is stored, into dst; x has room for it as F32.
 * Not for turned tensors. */
void tohf_row(const struct tohf_item *it, int64_t at, void *dst, float *x);
/* All of a turned tensor. */
int tohf_turned(const struct tohf_item *it, void *dst, struct err *e);
#endif
