/* vocab.h - pieces and their ids.
 *
 * Text of pieces is borrowed: from the model file, or from the arena of whoever built it. Several
 * pieces may share an id (the first of them is its text); a piece has one id, the last it was
 * given. */
#ifndef TERN_TOKEN_VOCAB_H
#define TERN_TOKEN_VOCAB_H

#include "base/err.h"
#include "base/str.h"

#define VOCAB_MAX_ID (1 << 20)

/* A piece whose id belongs to another one too. */
struct vocab_alias {
    struct str piece;
    int32_t id;
};

struct vocab {
    int n;              /* one more than the largest id */
    int n_pieces;       /* different ones */
    struct str *pieces; /* [n]; p is NULL for an id without one */
    struct vocab_alias *aliases;
    int n_aliases;
    uint64_t *slots;    /* hash tag << 32 | id + 1, or n + alias + 1 */
    size_t mask, bytes; /* bytes: of slots and pieces together */
    size_t max_bytes;   /* of a piece */
};

/* Room for ids below n_ids and that many pieces. E_NOMEM if there is none. */
int vocab_init(struct vocab *v, int n_ids, int n_pieces, struct err *e);
void vocab_release(struct vocab *v); /* a zeroed vocab is fine */
/* 0 <= id < n_ids. More pieces than announced is the caller's mistake. */
void vocab_put(struct vocab *v, struct str piece, int32_t id);
int32_t vocab_find(const struct vocab *v, struct str piece); /* -1: no such piece */

/* The i-th of all pieces, ids without one among them: those are empty. i < n + n_aliases. */
struct str vocab_at(const struct vocab *v, int i, int32_t *id);

/* The same in steps, so that many can be under way in memory at once: the hash; the id that
 * probably has it (-1: certainly none), which only looks at the table; then vocab_find_guessed
 * compares the text. */
uint64_t vocab_hash(struct str piece);
void vocab_prefetch(const struct vocab *v, uint64_t hash);
int32_t vocab_guess(const struct vocab *v, uint64_t hash); /* fetches what to compare with, ahead */
int32_t vocab_find_guessed(const struct vocab *v, struct str piece, uint64_t hash, int32_t guess);
#endif
