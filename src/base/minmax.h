/* minmax.h - the smaller or the larger of two values, each argument evaluated once. */
#ifndef TERN_BASE_MINMAX_H
#define TERN_BASE_MINMAX_H

#include <stddef.h>
#include <stdint.h>

static inline int min_int(int a, int b) { return a < b ? a : b; }
static inline int max_int(int a, int b) { return a > b ? a : b; }
static inline size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }
#endif
