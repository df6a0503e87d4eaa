/* cpset.h - sets of characters, and the byte sequences that spell them in UTF-8.
 *
 * Ranges lie in an arena, sorted and apart once cpset_tidy was called. Surrogates are no
 * characters: they drop out when bytes are made. A zeroed set is a valid empty one. */
#ifndef TERN_GRAMMAR_CPSET_H
#define TERN_GRAMMAR_CPSET_H

#include "base/arena.h"

#include <stdint.h>

#define CP_LAST 0x10ffff

struct cprange {
    int32_t lo, hi;
};

struct cpset {
    struct cprange *r;
    int n, cap;
};

void cpset_add(struct cpset *s, struct arena *a, int32_t lo, int32_t hi);
void cpset_add_all(struct cpset *s, struct arena *a, const struct cpset *from);
void cpset_tidy(struct cpset *s);
/* These give tidy sets and take tidy ones. */
struct cpset cpset_not(const struct cpset *s, struct arena *a);
struct cpset cpset_and(const struct cpset *x, const struct cpset *y, struct arena *a);
bool cpset_has(const struct cpset *s, int32_t cp);

/* A run of 1 to 4 bytes, each from lo[i] to hi[i]: together they spell a range of characters. */
struct utf8_run {
    uint8_t lo[4], hi[4];
    int n;
};
/* Calls fn with every run of a tidy set. */
void cpset_runs(const struct cpset *s, void (*fn)(void *arg, const struct utf8_run *run),
                void *arg);
#endif
