/* tiling.h - the order of the value heads of gated delta nets in GGUF files.
 *
 * Folders store the value heads that share a key head one after the other. llama.cpp's files of
 * Qwen 3.5 store the first value head of every key head, then the second of every key head, and so
 * on. With key heads a and b and two value heads each:
 *
 *     folder   a0 a1 b0 b1
 *     tiled    a0 b0 a1 b1 */
#ifndef TERN_MODEL_TILING_H
#define TERN_MODEL_TILING_H

#include "model/hparams.h"

/* Which rows, or columns, of a tensor are those of value heads. keys 0: none, or their order is the
 * same in both. */
struct tiling {
    int64_t first; /* the row at which they begin */
    int64_t dim;   /* rows of a head */
    int keys, per; /* key heads, value heads of each */
};

/* Does tern write the value heads of the folder's layer l tiled? */
bool tiling_written(const struct hparams *hp, int l);
/* The value heads among rows and columns of the tensor of row r in layer l. */
void tiling_of(struct tiling *rows, struct tiling *cols, const struct hparams *hp,
               const struct tensor_row *r, int l);

/* The folder's row that is row r of a tiled tensor. */
int64_t tiling_to_folder(const struct tiling *t, int64_t r);
/* The row of a tiled tensor that is the folder's row r. */
int64_t tiling_from_folder(const struct tiling *t, int64_t r);
#endif
