/* tokscratch.h - memory one encoding works in, kept from text to text.
 *
 * A tokenizer keeps a few; each belongs to one thread at a time. All texts in it can be read 64
 * bytes past their end. */
#ifndef TERN_TOKEN_TOKMODEL_H
#define TERN_TOKEN_TOKMODEL_H

#include "base/buf.h"
#include "base/err.h"
#include "base/ids.h"
#include "token/regex.h"
#include "token/vocab.h"

/* A stretch of the current text. */
struct span {
    uint32_t at, n;
};
struct span_list {
    struct span *p;
    size_t n, cap;
};

/* Words met before, with their ids. */
enum { WORD_BYTES = 32, WORD_IDS = 7, WORD_SLOTS = 1 << 15 };
struct word {
    uint64_t key[WORD_BYTES / 8]; /* filled up with zeros */
    int32_t ids[WORD_IDS];
    uint8_t n, n_ids; /* n 0: free */
    uint16_t mode;
};

struct scratch {
    struct buf text;      /* the text as it came, made valid */
    struct buf normal[2]; /* while it is normalized */
    struct buf split[2];  /* while it is split */
    struct buf tmp;
    struct span_list pieces[2];
    struct matcher *matcher;
    struct word *words;
    /* of one word while it is merged or searched */
    int32_t *ids, *next, *prev;
    uint32_t *ranks;
    size_t cap_symbols;
    uint64_t *heap;
    size_t n_heap, cap_heap;
    double *scores;
    size_t cap_scores;
};

struct scratch *scratch_open(void);
void scratch_close(struct scratch *s); /* NULL is fine */

void spans_grow(struct span_list *v);
static inline void spans_push(struct span_list *v, size_t at, size_t n)
{
    if (v->n == v->cap) spans_grow(v);
    v->p[v->n++] = (struct span){ (uint32_t)at, (uint32_t)n };
}

/* Room for n symbols in ids, next, prev, ranks; what was there may be lost. */
void scratch_symbols(struct scratch *s, size_t n);
void scratch_scores(struct scratch *s, size_t n);

/* A heap of numbers, the smallest on top. */
void heap_push(struct scratch *s, uint64_t v);
void heap_append(struct scratch *s, uint64_t v); /* in no order: heap_make afterwards */
void heap_make(struct scratch *s);
uint64_t heap_pop(struct scratch *s); /* n_heap > 0 */

/* Room for n more ids. */

/* bpe.h - byte-pair merges: of all neighbours that may merge, the pair of the lowest rank does, the
 * leftmost first, until none may.
 *
 * Words are merged symbol by symbol; a symbol is a character, or a byte of byte-level text. */
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

/* merger.h - filling a bpe with merges that are given as text, many lookups under way at once. */
enum { MERGER_BATCH = 32 };

struct merger {
    struct bpe *bpe; /* initialized, its prefix set */
    bool note_cuts;
    /* its own: */
    struct merger_pair {
        struct str part[2];
        uint64_t hash[2];
        int32_t ids[2], whole;
    } pairs[MERGER_BATCH];
    size_t n;
    uint32_t rank; /* of pairs[0] */
    int32_t last;  /* what the last pair became */
    char why[160]; /* it failed */
};

/* The next pair, by rank. Its text must live until merger_flush. false: a pair names, or makes, a
 * piece that is not in the vocabulary; m->why says which. */
bool merger_add(struct merger *m, struct str left, struct str right);
bool merger_flush(struct merger *m);

/* spm.h - sentencepiece's two ways from text to pieces.
 *
 * Unigram: of all ways to cut a text into pieces, the one whose scores add up best. Merging: of all
 * neighbours whose text together is a piece, those merge first whose piece has the best score. Both
 * fall back on bytes, or the unknown piece, where there is no piece for a character. */
struct spm {
    const struct vocab *vocab;
    const double *scores; /* [vocab->n]; borrowed */
    double unk_score;
    int32_t unk; /* -1: none */
    bool byte_fallback;
    int32_t fallback[256]; /* <0x00> ... <0xFF>, -1: none */
    struct trie trie;      /* of the pieces; unigram only */
};

/* After vocab, scores, unk and byte_fallback are set. */
void spm_finish(struct spm *s, bool unigram);
void spm_release(struct spm *s);

/* Appends the ids of text, which has no piece longer than 2^31 bytes. */
int spm_unigram(const struct spm *s, struct scratch *w, struct str text, struct ids *out,
                struct err *e);
void spm_merge(const struct spm *s, struct scratch *w, struct str text, struct ids *out);

/* wordpiece.h - BERT's pieces: the longest piece a word begins with, then the longest of the rest.
 */
struct wordpiece {
    const struct vocab *vocab;
    struct str first, inside; /* put before the beginning of a word, before the rest; borrowed */
    int max_chars;            /* a longer word is unknown; 0: no limit */
    int32_t unk;
};

void wordpiece_encode(const struct wordpiece *p, struct scratch *w, struct str word,
                      struct ids *out);
#endif
