/* bpe.h - byte-pair merges: of all neighbours that may merge, the pair of the lowest rank does, the
 * leftmost first, until none may.
 *
 * Words are merged symbol by symbol; a symbol is a character, or a byte of byte-level text. */
#ifndef TERN_TOKEN_BPE_H
#define TERN_TOKEN_BPE_H

#include "base/err.h"
#include "token/tokscratch.h"
#include "token/vocab.h"

#define BPE_MAX_MERGES ((1 << 24) - 1)

struct bpe {
    const struct vocab *vocab;
    uint64_t *slots;    /* a hash table: left << 44 | right << 24 | rank; all ones: free */
    size_t mask, bytes; /* bytes: of slots and merged together */
    int32_t *merged;    /* [n_ranks] what the pair of this rank becomes */
    size_t n_ranks;
    int32_t byte_ids[256];  /* byte-level text: the symbol of a byte, -1: none */
    int32_t ascii_ids[128]; /* a character inside a word */
    int32_t fallback[256];  /* <0x00> ... <0xFF>, -1: none */
    bool has_fallback, fuse_unk, ignore_merges;
    int32_t unk;               /* -1: characters without a symbol vanish */
    struct str prefix, suffix; /* of symbols inside, and at the end of, a word; borrowed */
    bool cuts;       /* no token has the mark for a space behind something else, but ... */
    bool uncut[256]; /* ... behind these bytes: so words can be merged one by one */
};

/* b is zeroed but for options; n_merges is at most BPE_MAX_MERGES. */
int bpe_init(struct bpe *b, const struct vocab *v, size_t n_merges, struct err *e);
void bpe_release(struct bpe *b);
/* rank < n_merges, each used once. A pair that is there already gets the new rank. */
void bpe_put(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id);
void bpe_prefetch(const struct bpe *b, int32_t left, int32_t right);
/* After all merges and options: looks the symbols up. */
void bpe_finish(struct bpe *b, bool byte_fallback);

/* Notes that some token holds the mark for a space behind something else. */
void bpe_note_cuts(struct bpe *b, struct str token);
/* Bytes of the first part of text that can be merged on its own. */
size_t bpe_cut(const struct bpe *b, struct str text);

/* The ids of a word are appended. raw: byte-level text, not mapped to its alphabet yet. */
void bpe_encode(const struct bpe *b, struct scratch *w, struct str word, bool raw, struct ids *out);
#endif
