/* vocab.h - the pieces of a model and the tokens added to them.
 *
 * Three structures:
 *   struct vocab  piece ↔ id, a hash table; every lookup of the models goes through it
 *   struct trie   pieces walked byte by byte; for the unigram model and for added tokens
 *   struct added  tokens that are recognized in the text itself, before it is split
 *
 * All of them are built once, while the tokenizer is opened, and only read afterwards: then any
 * number of threads may use them. The text of pieces is borrowed from the model file or from the
 * arena of the tokenizer, which both outlive them. A zeroed struct is a valid empty one. */
#ifndef TERN_TOKEN_VOCAB_H
#define TERN_TOKEN_VOCAB_H

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

/* ---- vocabulary (vocab.c) ---- */

#define VOCAB_MAX_ID (1 << 20) /* ids are below it: a pair of them fits the keys of struct bpe */

/* A piece whose id is the id of another piece, too. */
struct vocab_alias {
    struct str piece;
    int32_t id;
};

/* Several pieces may share an id; the first of them is the text of the id. A piece has one id, the
 * last one it was added with. */
struct vocab {
    int n;              /* one more than the largest id */
    int n_pieces;       /* distinct pieces */
    struct str *pieces; /* [n]; p is NULL for an id without a piece */
    struct vocab_alias *aliases;
    int n_aliases, cap_aliases;
    uint64_t *slots;    /* the hash table: tag << 32 | entry + 1, see vocab_at; 0: free */
    size_t mask, bytes; /* slots - 1; size of slots and pieces, which are one allocation */
    size_t max_bytes;   /* of the longest piece */
};

/* Room for ids below n_ids and for n_pieces pieces. E_NOMEM. */
int vocab_init(struct vocab *v, int n_ids, int n_pieces, struct err *e);
void vocab_release(struct vocab *v);
/* Adds a piece, 0 <= id < n_ids, at most n_pieces of them in all. false: no memory. */
MEM_CHECKED bool vocab_add(struct vocab *v, struct str piece, int32_t id);
int32_t vocab_find(const struct vocab *v, struct str piece); /* its id, or -1 */

/* Entry i < n + n_aliases of the vocabulary: the pieces by id (empty for an id without one), then
 * the aliases. */
struct str vocab_at(const struct vocab *v, int i, int32_t *id);

/* vocab_find in three steps, so that a caller with many pieces can overlap their cache misses:
 * compute the hash and prefetch its slot; guess the entry by the hash alone and prefetch it; then
 * compare the text. */
uint64_t vocab_hash(struct str piece);
void vocab_prefetch(const struct vocab *v, uint64_t hash);
int32_t vocab_guess(const struct vocab *v, uint64_t hash); /* -1: certainly not in there */
int32_t vocab_find_guessed(const struct vocab *v, struct str piece, uint64_t hash, int32_t guess);

/* ---- trie (vocab_trie.c) ---- */

/* Byte strings to numbers. The edges of all nodes are in one hash table. */
struct trie {
    uint64_t *edges; /* ((node << 8 | byte) + 1) << 32 | child; 0: free */
    size_t mask, n_edges;
    int32_t *values; /* [n_nodes]; -1: no string ends at this node */
    size_t n_nodes, cap_nodes;
};

enum { TRIE_PRESENT = 0, TRIE_ADDED = 1 };
enum { TRIE_ROOT = 0 };

/* Room for strings of n_bytes in all, so that trie_add need not grow the table. false: no memory. */
MEM_CHECKED bool trie_reserve(struct trie *t, size_t n_bytes);
/* TRIE_ADDED, TRIE_PRESENT (the string and its old value stay), or E_NOMEM. value >= 0. */
MEM_CHECKED int trie_add(struct trie *t, struct str key, int32_t value);
void trie_release(struct trie *t);

uint32_t trie_step(const struct trie *t, uint32_t node, unsigned char byte); /* child; 0: none */
/* Length of the longest string in the trie that text starts with, and its value; 0: none. */
size_t trie_longest(const struct trie *t, struct str text, int32_t *value);

/* ---- added tokens (vocab_added.c) ---- */

/* A special token (<|im_end|>) or one that was added to a trained vocabulary. It is recognized in
 * the text before the text is split. */
struct added_token {
    struct str content; /* borrowed */
    int32_t id;
    bool special;        /* a control token: not part of decoded text, and plain text on request */
    bool lstrip, rstrip; /* includes the white space to its left, right */
    bool normalized;     /* is searched for in the normalized text, not in the text as it came */
    bool single_word;    /* matches only where no word character is beside it */
};

/* One set of added tokens: those in raw text, or those in normalized text. */
struct added {
    struct trie trie;                 /* content → index into tokens */
    const struct added_token *tokens; /* belongs to the tokenizer */
    bool first[256];                  /* bytes that a token begins with */
    int n_first;
    unsigned char only_first; /* the byte, where there is only one */
};

/* Of equal contents the first one stays. An empty content is left out. false: no memory. */
MEM_CHECKED bool added_add(struct added *a, struct str content, int index);
void added_release(struct added *a);

/* An iteration over the tokens in a text: the leftmost first, of those the longest. The caller sets
 * the first three fields and zeroes the rest. */
struct added_walk {
    const struct added *a;
    struct str text;
    bool plain;  /* special tokens are plain text */
    size_t from; /* where the search goes on */
    size_t done; /* end of the last token, with the white space it includes */
};
/* The next token; the text between the last one and this one is [*before, *start). NULL: no more
 * tokens, the text from w->done on has none. */
const struct added_token *added_next(struct added_walk *w, size_t *before, size_t *start);
#endif
