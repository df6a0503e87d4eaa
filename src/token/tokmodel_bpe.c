/* tokmodel_bpe.c - byte-pair encoding.
 *
 * The pairs that merge are in a hash table with one 64-bit slot per pair: both ids and the rank
 * fit, so a lookup is one cache line. A short word is merged by scanning its ranks for the lowest,
 * which is quadratic but has no overhead; a long one with a heap, in n log n, so that no text makes
 * encoding slow. */
#include "token/tokmodel.h"

#include "base/utf8.h"
#include "token/chars.h"

#include <stdio.h>

enum { SHORT_WORD = 40 }; /* symbols; a longer word is merged with a heap */
#define NO_RANK UINT32_MAX
#define FREE_SLOT UINT64_MAX

/* Slots for 1.5 times the merges at least, so that probes stay short; all ones is a free slot, and
 * -1 in `merged`. */
int bpe_init(struct bpe *b, const struct vocab *v, size_t n_merges, struct err *e)
{
    size_t cap = 16;

    while (cap < n_merges + n_merges / 2) cap *= 2;
    b->vocab = v;
    b->unk = -1;
    b->cuts = true;
    b->mask = cap - 1;
    b->n_ranks = n_merges;
    b->bytes = cap * sizeof *b->slots + (n_merges + 1) * sizeof *b->merged;
    b->slots = mem_aligned(b->bytes);
    if (!b->slots) return err_nomem(e, "the merges of a vocabulary");
    memset(b->slots, 0xff, b->bytes);
    b->merged = (int32_t *)(b->slots + cap);
    return OK;
}

void bpe_release(struct bpe *b)
{
    mem_free_aligned(b->slots, b->bytes);
    *b = (struct bpe){ 0 };
}

/* The key of a pair. Ids have 20 bits (VOCAB_MAX_ID), ranks 24. */
static inline uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 20 | (uint32_t)right;
}

/* Fibonacci hashing, folded so that low bits depend on both ids. */
static inline size_t hash_pair(uint64_t pair)
{
    uint64_t k = pair * 0x9e3779b97f4a7c15u;
    return (size_t)(k >> 32 ^ k >> 20);
}

/* The rank of a pair; NO_RANK: it does not merge. */
static inline uint32_t find_rank(const struct bpe *b, int32_t left, int32_t right)
{
    uint64_t pair = pair_key(left, right);

    for (size_t i = hash_pair(pair) & b->mask;; i = (i + 1) & b->mask) {
        uint64_t s = b->slots[i];
        if (s >> 24 == pair) return (uint32_t)s & 0xffffff;
        if (s == FREE_SLOT) return NO_RANK;
    }
}

void bpe_prefetch(const struct bpe *b, int32_t left, int32_t right)
{
    __builtin_prefetch(&b->slots[hash_pair(pair_key(left, right)) & b->mask], 1);
}

void bpe_add_merge(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    uint64_t pair = pair_key(left, right);
    size_t i = hash_pair(pair) & b->mask;

    while (b->slots[i] != FREE_SLOT && b->slots[i] >> 24 != pair) i = (i + 1) & b->mask;
    b->slots[i] = pair << 24 | rank;
    b->merged[rank] = id;
}

void bpe_note_inner_marks(struct bpe *b, struct str token)
{
    for (size_t i = 0; b->cuts && i + 3 < token.n; i++) {
        const char *p = memchr(token.p + i + 1, SPACE_MARK[0], token.n - i - 1);
        if (!p) break;
        i = (size_t)(p - token.p) - 1;
        if (i + 3 >= token.n || memcmp(p, SPACE_MARK, 3) != 0) continue;
        if (i >= 2 && memcmp(p - 3, SPACE_MARK, 3) == 0) continue; /* a run of marks is never cut */
        b->no_cut[(unsigned char)p[-1]] = true;
    }
}

/* SPM models use the cuts, too: their bpe has no merges. Cutting must be off where a symbol depends
 * on its place in the word, or where whole words are looked up. */
void bpe_finish(struct bpe *b, bool byte_fallback)
{
    char text[8];

    for (int i = 0; i < 256; i++) {
        b->byte_ids[i] =
            vocab_find(b->vocab, str_of(text, (size_t)utf8_put(text, byte_char((unsigned char)i))));
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)i);
        b->fallback[i] = byte_fallback ? vocab_find(b->vocab, str_c(text)) : -1;
    }
    b->has_fallback = byte_fallback;
    for (int i = 0; i < 128; i++) {
        text[0] = (char)i;
        b->ascii_ids[i] = vocab_find(b->vocab, str_of(text, 1));
    }
    if (b->prefix.n || b->suffix.n || b->ignore_merges || vocab_find(b->vocab, STR(SPACE_MARK)) < 0)
        b->cuts = false;
}

/* Cuts before a mark that no token has in its middle after this byte. Never inside a run of marks:
 * tokens of several spaces exist. */
size_t bpe_find_cut(const struct bpe *b, struct str text)
{
    const char *p = text.p, *end = text.p + text.n;

    if (!b->cuts) return text.n;
    for (p++; p + 3 <= end; p++) {
        p = memchr(p, SPACE_MARK[0], (size_t)(end - p) - 2);
        if (!p) break;
        if (memcmp(p, SPACE_MARK, 3) != 0 || b->no_cut[(unsigned char)p[-1]]) continue;
        if (p - text.p < 3 || memcmp(p - 3, SPACE_MARK, 3) != 0) return (size_t)(p - text.p);
    }
    return text.n;
}

/* ---- merging ---- */

/* Merges the n symbols in ids[] in place; returns how many are left. ranks[i] is the rank of the
 * symbols i and i + 1. */
static size_t merge_short(const struct bpe *b, int32_t *ids, uint32_t *ranks, size_t n)
{
    for (size_t i = 0; i + 1 < n; i++) ranks[i] = find_rank(b, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (ranks[i] < ranks[best]) best = i;
        if (ranks[best] == NO_RANK) break;
        ids[best] = b->merged[ranks[best]];
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        memmove(ranks + best, ranks + best + 1, (n - best) * sizeof *ranks);
        if (best + 1 < n) ranks[best] = find_rank(b, ids[best], ids[best + 1]);
        if (best) ranks[best - 1] = find_rank(b, ids[best - 1], ids[best]);
    }
    return n;
}

/* Puts the pair that starts at symbol `at` on the heap, if it merges. */
static void push_pair(const struct bpe *b, struct model_scratch *w, int32_t at)
{
    uint32_t rank = w->next[at] < 0 ? NO_RANK : find_rank(b, w->ids[at], w->ids[w->next[at]]);
    if (rank != NO_RANK) heap_push(w, (uint64_t)rank << 32 | (uint32_t)at);
}

/* Like merge_short, for w->ids. Symbols are a linked list; one that was merged into its left
 * neighbour gets the id -1. A heap entry is stale when its symbol is gone or the rank of its pair
 * has changed. Each of the at most n - 1 merges pops an entry and pushes at most two, so the heap
 * never holds more than 2 n. */
static size_t merge_long(const struct bpe *b, struct model_scratch *w, size_t n)
{
    int32_t *ids = w->ids, *next = w->next, *prev = w->prev;
    size_t left = 0;

    w->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        next[i] = i + 1 < n ? (int32_t)i + 1 : -1;
        prev[i] = (int32_t)i - 1;
        uint32_t rank = i + 1 < n ? find_rank(b, ids[i], ids[i + 1]) : NO_RANK;
        if (rank != NO_RANK) heap_append(w, (uint64_t)rank << 32 | i);
    }
    heap_order(w);
    while (w->n_heap) {
        uint64_t top = heap_pop(w);
        int32_t at = (int32_t)(uint32_t)top, right = next[at];
        if (ids[at] < 0 || right < 0) continue;
        if (find_rank(b, ids[at], ids[right]) != top >> 32) continue;
        ids[at] = b->merged[top >> 32];
        ids[right] = -1;
        next[at] = next[right];
        if (next[at] >= 0) prev[next[at]] = at;
        push_pair(b, w, at);
        if (prev[at] >= 0) push_pair(b, w, prev[at]);
    }
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0) ids[left++] = ids[i];
    return left;
}

/* ---- symbols ---- */

/* The symbols of byte-level text, one per byte; at most word.n. */
static size_t fill_byte_symbols(const struct bpe *b, struct str word, int32_t *ids)
{
    size_t n = 0;

    for (size_t i = 0; i < word.n; i++) {
        int32_t id = b->byte_ids[(unsigned char)word.p[i]];
        if (id < 0) id = b->unk;
        if (id >= 0) ids[n++] = id;
    }
    return n;
}

/* The symbol of one character at the start, inside or at the end of a word; -1: none. */
static int32_t find_symbol(const struct bpe *b, struct model_scratch *w, struct str ch, bool first,
                           bool last)
{
    bool prefix = !first && b->prefix.n, suffix = last && b->suffix.n;

    if (!prefix && !suffix)
        return ch.n == 1 ? b->ascii_ids[(unsigned char)ch.p[0] & 0x7f] : vocab_find(b->vocab, ch);
    buf_clear(&w->tmp);
    if (prefix) buf_put_str(&w->tmp, b->prefix);
    buf_put_str(&w->tmp, ch);
    if (suffix) buf_put_str(&w->tmp, b->suffix);
    w->failed |= w->tmp.failed;
    return vocab_find(b->vocab, buf_str(&w->tmp));
}

/* Adds the tokens of the bytes of a character, if all of them have one. */
static bool put_fallback(const struct bpe *b, struct str ch, int32_t *ids, size_t *n)
{
    if (!b->has_fallback) return false;
    for (size_t i = 0; i < ch.n; i++)
        if (b->fallback[(unsigned char)ch.p[i]] < 0) return false;
    for (size_t i = 0; i < ch.n; i++) ids[(*n)++] = b->fallback[(unsigned char)ch.p[i]];
    return true;
}

/* The symbols of text by characters; at most word.n + 1. */
static size_t fill_char_symbols(const struct bpe *b, struct model_scratch *w, struct str word,
                                int32_t *ids)
{
    size_t n = 0;
    bool unk = false; /* an unknown token is due, unless the next one fuses with it */

    for (size_t i = 0, len; i < word.n; i += len) {
        int32_t cp, id;
        len = (size_t)utf8_next(str_skip(word, i), &cp);
        struct str ch = str_of(word.p + i, len);
        if ((id = find_symbol(b, w, ch, i == 0, i + len == word.n)) >= 0) {
            if (unk) ids[n++] = b->unk;
            unk = false;
            ids[n++] = id;
        } else if (!put_fallback(b, ch, ids, &n) && b->unk >= 0) {
            if (unk && !b->fuse_unk) ids[n++] = b->unk;
            unk = true;
        }
    }
    if (unk) ids[n++] = b->unk;
    return n;
}

/* The token of the whole word; -1: none. */
static int32_t find_whole_word(const struct bpe *b, struct model_scratch *w, struct str word,
                               bool raw)
{
    if (!raw) return vocab_find(b->vocab, word);
    if (word.n > b->vocab->max_bytes) return -1;
    buf_clear(&w->tmp);
    text_put_bytes(&w->tmp, word);
    w->failed |= w->tmp.failed;
    return vocab_find(b->vocab, buf_str(&w->tmp));
}

bool bpe_encode(const struct bpe *b, struct model_scratch *w, struct str word, bool raw,
                struct ids *out)
{
    int32_t whole = b->ignore_merges ? find_whole_word(b, w, word, raw) : -1;
    size_t n;

    if (whole >= 0) {
        ids_push(out, whole);
        return !w->failed;
    }
    if (!model_scratch_reserve_symbols(w, word.n + 1)) return false;
    n = raw ? fill_byte_symbols(b, word, w->ids) : fill_char_symbols(b, w, word, w->ids);
    if (n > SHORT_WORD && !model_scratch_reserve_heap(w, 2 * n)) return false;
    n = n <= SHORT_WORD ? merge_short(b, w->ids, w->ranks, n) : merge_long(b, w, n);
    ids_add(out, w->ids, n);
    return !w->failed;
}
