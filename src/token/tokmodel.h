/* tokmodel.h - the models: from a word of text to token ids.
 *
 *   struct bpe        byte-pair encoding with a list of merges (GPT-2, Llama 3, Qwen, ...)
 *   struct spm        SentencePiece: unigram (T5, XLM-R), and BPE ordered by scores (Llama 2)
 *   struct wordpiece  longest match first (BERT)
 *
 * The word-level model is one lookup and has no struct. A model is immutable once it is built; any
 * number of threads may encode with it, each with a scratch of its own. All encode functions append
 * ids to `out`, which remembers a failed allocation (ids.h), and return false if their scratch
 * memory could not grow; the ids are then incomplete. */
#ifndef TERN_TOKEN_TOKMODEL_H
#define TERN_TOKEN_TOKMODEL_H

#include "base/buf.h"
#include "base/err.h"
#include "base/ids.h"
#include "base/mem.h"
#include "token/vocab.h"

/* ---- scratch memory (tokmodel_scratch.c) ---- */

/* Memory that one thread encodes words in, kept from word to word. Arrays have no fixed meaning
 * between calls. A zeroed one is valid. */
struct model_scratch {
    struct buf tmp; /* a piece that is put together to be looked up */
    bool failed;    /* tmp found no memory; cleared by the caller of the encode functions */
    /* symbols of the word, [cap_symbols] each */
    int32_t *ids, *next, *prev;
    uint32_t *ranks;
    size_t cap_symbols;
    uint64_t *heap; /* a min-heap of rank << 32 | symbol */
    size_t n_heap, cap_heap;
    double *scores; /* [cap_scores] */
    size_t cap_scores;
};
void model_scratch_release(struct model_scratch *w);

/* Room for n items; the contents are lost. false: no memory. */
MEM_CHECKED bool model_scratch_reserve_symbols(struct model_scratch *w, size_t n);
MEM_CHECKED bool model_scratch_reserve_heap(struct model_scratch *w, size_t n);
MEM_CHECKED bool model_scratch_reserve_scores(struct model_scratch *w, size_t n);

/* The heap holds what was reserved and never grows by itself. */
void heap_push(struct model_scratch *w, uint64_t v);
void heap_append(struct model_scratch *w, uint64_t v); /* unordered; heap_order must follow */
void heap_order(struct model_scratch *w);
uint64_t heap_pop(struct model_scratch *w); /* the smallest; n_heap > 0 */

/* ---- byte-pair encoding (tokmodel_bpe.c) ---- */

#define BPE_MAX_MERGES ((1 << 24) - 1)

/* A word starts as one symbol per character, or per byte of byte-level text. Of all adjacent pairs
 * in the list of merges the one of the lowest rank is merged, the leftmost first, until no pair is
 * left. */
struct bpe {
    const struct vocab *vocab;
    uint64_t *slots;    /* hash table of pairs: left << 44 | right << 24 | rank; all ones: free */
    size_t mask, bytes; /* slots - 1; size of slots and merged, which are one allocation */
    int32_t *merged;    /* [n_ranks] the id that the pair of this rank becomes; -1: unused rank */
    size_t n_ranks;
    int32_t byte_ids[256];  /* byte-level text: symbol of a byte; -1: none */
    int32_t ascii_ids[128]; /* symbol of a character inside a word; -1: none */
    int32_t fallback[256];  /* <0x00> to <0xFF>, for characters without a symbol; -1: none */
    bool has_fallback;
    bool fuse_unk;      /* adjacent unknown characters become one unknown token */
    bool ignore_merges; /* a word that is in the vocabulary is that token */
    int32_t unk;        /* token of a character without a symbol; -1: such characters are dropped */
    struct str prefix;  /* of symbols that do not start a word; borrowed */
    struct str suffix;  /* of the symbol that ends a word; borrowed */
    /* Where a text without spaces can be cut before merging, see bpe_find_cut. */
    bool cuts;        /* the mark U+2581 is a piece, and cutting before it is allowed ... */
    bool no_cut[256]; /* ... except after these bytes: some token has a mark after them */
};

/* b is zeroed but for prefix and suffix; n_merges <= BPE_MAX_MERGES. */
int bpe_init(struct bpe *b, const struct vocab *v, size_t n_merges, struct err *e);
void bpe_release(struct bpe *b);
/* Each rank < n_merges once. A pair that is there already gets the new rank. */
void bpe_add_merge(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id);
void bpe_prefetch(const struct bpe *b, int32_t left, int32_t right);
/* Looks up the symbols, after all merges and options are set. */
void bpe_finish(struct bpe *b, bool byte_fallback);

/* Notes for bpe_find_cut where a token has a mark U+2581 that is not at its start. */
void bpe_note_inner_marks(struct bpe *b, struct str token);
/* Bytes of the first part of text that can be encoded on its own: no merge crosses its end. Keeps
 * words short and cacheable for models without a pre-tokenizer. */
size_t bpe_find_cut(const struct bpe *b, struct str text);

/* raw: byte-level text that is not mapped to the byte-level alphabet yet. */
bool bpe_encode(const struct bpe *b, struct model_scratch *w, struct str word, bool raw,
                struct ids *out);

/* ---- loading merges (tokmodel_merges.c) ---- */

enum { MERGE_BATCH = 32 };

/* Adds merges that are given as text to a struct bpe, in batches: a model has up to a million of
 * them, and each needs three lookups that miss the cache. The caller sets the first two fields and
 * zeroes the rest. */
struct merge_loader {
    struct bpe *bpe;       /* initialized, its prefix set */
    bool note_inner_marks; /* for the token of every merge */
    struct merge_pair {
        struct str part[2];
        uint64_t hash[2];
        int32_t ids[2], whole;
    } pairs[MERGE_BATCH];
    size_t n;
    uint32_t rank;   /* of pairs[0] */
    int32_t last;    /* the id that the last pair became */
    struct buf text; /* a piece that is put together */
    char why[160];   /* the message of E_FORMAT */
};

/* The pair of the next rank; its text must stay until merge_loader_flush. OK, E_NOMEM, or E_FORMAT
 * where a pair has or becomes a piece that is not in the vocabulary. */
int merge_loader_add(struct merge_loader *m, struct str left, struct str right);
int merge_loader_flush(struct merge_loader *m);
void merge_loader_release(struct merge_loader *m);

/* ---- SentencePiece (tokmodel_spm.c) ---- */

struct spm {
    const struct vocab *vocab;
    const double *scores; /* [vocab->n] log probabilities; borrowed */
    double unk_score;
    int32_t unk;           /* token of a character without a piece; -1: none */
    bool byte_fallback;    /* such a character becomes its bytes, where all of them have a piece */
    int32_t fallback[256]; /* <0x00> to <0xFF>; -1: none */
    struct trie trie;      /* of the pieces; unigram only */
};

/* Builds the tables, after vocab, scores, unk and byte_fallback are set. E_NOMEM. */
int spm_finish(struct spm *s, bool unigram, struct err *e);
void spm_release(struct spm *s);

/* Unigram: the segmentation with the greatest sum of scores (Viterbi). *unknown: the text has a
 * character without a piece, and the model has no unknown token. */
bool spm_encode_unigram(const struct spm *s, struct model_scratch *w, struct str text,
                        struct ids *out, bool *unknown);
/* BPE: of all adjacent symbols that together are a piece, those with the best score merge first. */
bool spm_encode_bpe(const struct spm *s, struct model_scratch *w, struct str text, struct ids *out);

/* ---- WordPiece (tokmodel_wordpiece.c) ---- */

/* The longest piece a word starts with, then the longest piece of the rest. A word that is not
 * covered by pieces is unknown as a whole. */
struct wordpiece {
    const struct vocab *vocab;
    struct str first, inside; /* put before the start of a word, before its rest; borrowed */
    int max_chars;            /* a longer word is unknown; 0: no limit */
    int32_t unk;              /* -1: an unknown word is dropped */
};

bool wordpiece_encode(const struct wordpiece *p, struct model_scratch *w, struct str word,
                      struct ids *out);
#endif
