/* vocab.h - pieces and their ids.
 *
 * Text of pieces is borrowed: from the model file, or from the arena of whoever built it. Several
 * pieces may share an id (the first of them is its text); a piece has one id, the last it was
 * given. */
#ifndef TERN_TOKEN_VOCAB_H
#define TERN_TOKEN_VOCAB_H

#include "base/buf.h"
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

/* trie.h - byte strings to numbers, walked a byte at a time. A zeroed trie is a valid empty one. */
struct trie {
    uint64_t *edges; /* (node << 8 | byte) + 1 << 32 | child; 0: free */
    size_t mask, n_edges;
    int32_t *values; /* [n_nodes], -1: no string ends here */
    size_t n_nodes, cap_nodes;
};

void trie_reserve(struct trie *t, size_t n_bytes);            /* of all strings together, at most */
bool trie_add(struct trie *t, struct str key, int32_t value); /* false: it was there, and stays */
void trie_release(struct trie *t);

enum { TRIE_ROOT = 0 };
/* The child of node by byte, or 0: there is none. */
uint32_t trie_step(const struct trie *t, uint32_t node, unsigned char byte);
/* The longest string of the trie that text begins with: its length, 0 if none. */
size_t trie_longest(const struct trie *t, struct str text, int32_t *value);

/* added.h - tokens that are found in the text itself, before any splitting: special ones and those
 * added to a vocabulary by hand.
 *
 * Those marked `normalized` are looked for in normalized text, the others in the text as it came.
 */
struct added_token {
    struct str content; /* borrowed */
    int32_t id;
    bool special, lstrip, rstrip, normalized, single_word;
};

/* One of the two sets. The tokens belong to the tokenizer. */
struct added {
    struct trie trie; /* content → index into tokens */
    const struct added_token *tokens;
    bool first[256]; /* can a token begin with this byte? */
    int n_first;
    unsigned char only_first; /* where there is just one */
};

void added_put(struct added *a, struct str content,
               int index); /* the first of equal contents stays */
void added_release(struct added *a);

/* A walk over the tokens in a text, leftmost and longest first. */
struct added_walk {
    const struct added *a;
    struct str text;
    bool plain;        /* special ones are text */
    size_t from, done; /* where to look next; up to where text is spoken for */
};
/* The next token: text before it is [*before, *start), it ends at w->done. NULL: no more. */
const struct added_token *added_next(struct added_walk *w, size_t *before, size_t *start);
#endif
