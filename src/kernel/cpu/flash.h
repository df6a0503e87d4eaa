/* flash.h - one piece of attention: some tokens of a sequence, the query heads of one KV head, and
 * a range of keys. One function per instruction set; attend.c cuts a call into such pieces.
 *
 * The algorithm is FlashAttention (Dao et al.): FLASH_KEYS keys at a time, with a running maximum
 * and sum per query row (online softmax), so that the scores stay in the cache. Scores are kept as
 * powers of two, because exp2 is cheaper than exp. Sums are F32, keys in ascending order. */
#ifndef TERN_KERNEL_CPU_FLASH_H
#define TERN_KERNEL_CPU_FLASH_H

#include "kernel/cpu/attend.h"

#define FLASH_KEYS 64
#define FLASH_ROWS 512 /* query rows (tokens x heads) of a piece; a single token may have more */
#define FLASH_PANEL 6  /* query rows that are multiplied with a tile of keys together */

struct flash_piece {
    int token, n_tokens; /* rows of the batch, all of one sequence */
    int head;            /* KV head */
    int key0, key1;      /* range of positions; key0 is a multiple of KV_BLOCK */
    bool first;          /* the first split of these rows: it accounts for the attention sinks */
    float *part;         /* partial result, flash_part_floats; NULL: write to the output */
};

typedef void flash_fn(const struct attend_job *j, const struct flash_piece *p, float *scratch);

struct flash {
    const char *name;
    flash_fn *run;
};

extern const struct flash flash_avx2, flash_avx512, flash_amx,
    flash_neon; /* those of this architecture */
/* The fastest one this machine has; NULL: none, attention then uses attend_ref. */
const struct flash *flash_best(void);
const struct flash *flash_by_name(const char *name);

/* Rounded up to a multiple of 32 elements: two AVX-512 vectors, or the width of an AMX tile. */
static inline size_t flash_pad(int n) { return ((size_t)n + 31) & ~(size_t)31; }

/* Scratch memory that only flash_amx uses: query rows and attention weights in bf16 tiles. */
static inline size_t flash_extra_floats(int rows, int dim)
{
    return flash_pad(rows) * flash_pad(dim) + (size_t)4 * 16 * FLASH_KEYS;
}

/* Scratch memory of a piece, 64-byte aligned; flash_rows.h divides it. */
static inline size_t flash_scratch_floats(int rows, int dim, int dim_v)
{
    size_t r = flash_pad(rows);
    return r * (flash_pad(dim) + flash_pad(dim_v) + 16 + 3) +
           FLASH_KEYS * (flash_pad(dim) + flash_pad(dim_v)) + (size_t)16 * FLASH_KEYS +
           flash_extra_floats(rows, dim);
}

/* A partial result: [rows] maxima of the base-2 scores, [rows] sums, [rows][dim_v] weighted values,
 * not yet divided by the sum. */
static inline size_t flash_part_floats(int rows, int dim_v)
{
    return (size_t)rows * ((size_t)dim_v + 2);
}
#endif
