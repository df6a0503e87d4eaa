/* vocab.h - pieces and their ids.
 *
 * Text of pieces is borrowed: from the model file, or from the arena of whoever built it. Several
 * pieces may share an id (one of them is its text); a piece has one id, the last it was given. */
#ifndef TERN_TOKEN_VOCAB_H
#define TERN_TOKEN_VOCAB_H

#include "base/err.h"
#include "base/str.h"

#define VOCAB_MAX_ID (1 << 22)

struct vocab_entry {
    const char *p;
    uint32_t n;
    int32_t id;
};

struct vocab {
    int n;                               /* one more than the largest id */
    int n_entries, cap_entries;
    struct str *pieces;                  /* [n]; p is NULL for an id without one */
    struct vocab_entry *entries;
    uint64_t *slots;                     /* hash tag << 32 | entry + 1 */
    size_t mask;
    size_t max_bytes;                    /* of a piece */
};

/* Room for ids below n_ids and that many pieces. E_NOMEM if there is none. */
int  vocab_init(struct vocab *v, int n_ids, int n_pieces, struct err *e);
void vocab_release(struct vocab *v);                     /* a zeroed vocab is fine */
/* 0 <= id < n_ids; more pieces than announced is the caller's mistake. */
void vocab_put(struct vocab *v, struct str piece, int32_t id);
int32_t vocab_find(const struct vocab *v, struct str piece);     /* -1: no such piece */

/* The same in two halves, so that many can be under way in memory at once. */
uint64_t vocab_hash(struct str piece);
int32_t vocab_find_hashed(const struct vocab *v, struct str piece, uint64_t hash);
static inline void vocab_prefetch(const struct vocab *v, uint64_t hash)
{
    __builtin_prefetch(&v->slots[hash & v->mask]);
}
#endif
