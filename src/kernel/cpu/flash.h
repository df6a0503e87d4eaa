/* flash.h - one piece of attention: some tokens of a sequence, the query heads of one KV head,
 * a range of keys. One function per instruction set; attend.c cuts a call into such pieces.
 *
 * Keys are taken FLASH_KEYS at a time with a running maximum and sum (online softmax), so
 * that scores never leave the cache. */
#ifndef TERN_KERNEL_CPU_FLASH_H
#define TERN_KERNEL_CPU_FLASH_H

#include "kernel/cpu/attend.h"

#define FLASH_KEYS 64
#define FLASH_ROWS 256 /* query rows (tokens x heads) of a piece; one token's if those are more */
#define FLASH_PANEL 6  /* query rows that go through a tile of keys together */

struct flash_piece {
    int token, n_tokens; /* of the batch, all of one sequence */
    int head;            /* KV head */
    int key0, key1;      /* key0 is a multiple of KV_BLOCK */
    bool first;          /* of the pieces these rows are split into: it counts the sinks */
    float *part;         /* NULL: these are all keys, write to out; else flash_part_floats */
};

typedef void flash_fn(const struct attend_job *j, const struct flash_piece *p, float *scratch);

struct flash {
    const char *name;
    flash_fn *run;
};

extern const struct flash flash_avx2, flash_avx512, flash_amx,
    flash_neon; /* where they are built */
/* The best this machine runs; NULL: none, the reference it is. */
const struct flash *flash_best(void);
const struct flash *flash_by_name(const char *name);

static inline size_t flash_pad(int n) { return ((size_t)n + 31) & ~(size_t)31; }

/* Beyond what all need: query rows and weights in another type. */
static inline size_t flash_extra_floats(int rows, int dim)
{
    return flash_pad(rows) * flash_pad(dim) + (size_t)4 * 16 * FLASH_KEYS;
}

/* A piece's scratch, 64-byte aligned. */
static inline size_t flash_scratch_floats(int rows, int dim, int dim_v)
{
    size_t r = flash_pad(rows);
    return r * (flash_pad(dim) + flash_pad(dim_v) + 16 + 3) +
           FLASH_KEYS * (flash_pad(dim) + flash_pad(dim_v)) + (size_t)16 * FLASH_KEYS +
           flash_extra_floats(rows, dim);
}

/* A part: [rows] maxima (as powers of two), [rows] sums, [rows][dim_v] weighted values, not yet
 * divided. */
static inline size_t flash_part_floats(int rows, int dim_v)
{
    return (size_t)rows * ((size_t)dim_v + 2);
}
#endif
