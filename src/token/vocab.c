/* vocab.c - the hash table of pieces.
 *
 * Open addressing with linear probing, at most half full. A slot holds 32 bits of the hash and the
 * number of an entry, so a probe touches the text of a piece only when its hash agrees. Slots and
 * the array of pieces are one allocation of several megabytes, which the kernel can back by huge
 * pages: building the table is bound by cache and TLB misses. */
#include "token/vocab.h"

static uint64_t mix_words(uint64_t a, uint64_t b)
{
    __uint128_t r = (__uint128_t)(a ^ 0xa0761d6478bd642fu) * (b ^ 0xe7037ed1a0b428dbu);
    return (uint64_t)r ^ (uint64_t)(r >> 64);
}

/* Multiply-and-fold over 8-byte words, as wyhash does. Not seeded: the same file gives the same
 * table, and a file with colliding pieces slows down only its own model. */
uint64_t vocab_hash(struct str s)
{
    uint64_t h = s.n, w = 0;
    const char *p = s.p;
    size_t n = s.n;

    for (; n > 8; n -= 8, p += 8) {
        memcpy(&w, p, 8);
        h = mix_words(h, w);
    }
    w = 0;
    if (n >= 4) {
        uint32_t a, b;
        memcpy(&a, p, 4);
        memcpy(&b, p + n - 4, 4);
        w = (uint64_t)a << 32 | b;
    } else if (n) {
        w = (uint64_t)(unsigned char)p[0] << 16 | (uint64_t)(unsigned char)p[n / 2] << 8 |
            (unsigned char)p[n - 1];
    }
    return mix_words(h, w);
}

int vocab_init(struct vocab *v, int n_ids, int n_pieces, struct err *e)
{
    size_t cap = 16;

    while (cap < (size_t)n_pieces * 2) cap *= 2;
    *v = (struct vocab){ .n = n_ids, .mask = cap - 1 };
    v->bytes = cap * sizeof *v->slots + ((size_t)n_ids + 1) * sizeof *v->pieces;
    v->slots = mem_aligned(v->bytes);
    if (!v->slots) return err_nomem(e, "the vocabulary");
    memset(v->slots, 0, v->bytes);
    v->pieces = (struct str *)(v->slots + cap);
    return OK;
}

void vocab_release(struct vocab *v)
{
    mem_free_aligned(v->slots, v->bytes);
    mem_free(v->aliases);
    *v = (struct vocab){ 0 };
}

struct str vocab_at(const struct vocab *v, int i, int32_t *id)
{
    *id = i < v->n ? i : v->aliases[i - v->n].id;
    return i < v->n ? v->pieces[i] : v->aliases[i - v->n].piece;
}

/* The slot that holds the piece, or the free one it would be added to. */
static uint64_t *find_slot(const struct vocab *v, struct str piece, uint64_t hash)
{
    uint64_t tag = hash >> 32;
    int32_t id;

    for (size_t i = hash & v->mask;; i = (i + 1) & v->mask) {
        uint64_t s = v->slots[i];
        if (!s) return &v->slots[i];
        if (s >> 32 != tag) continue;
        if (str_eq(vocab_at(v, (int)(uint32_t)s - 1, &id), piece)) return &v->slots[i];
    }
}

/* A second piece for an id becomes an alias; a second id for a piece replaces the first in the
 * table, while pieces[] keeps both. */
bool vocab_add(struct vocab *v, struct str piece, int32_t id)
{
    uint64_t hash = vocab_hash(piece), *slot;
    int at = id;

    if (!piece.p) piece.p = "";
    slot = find_slot(v, piece, hash);
    if (!v->pieces[id].p) {
        v->pieces[id] = piece;
    } else {
        at = v->n + v->n_aliases;
        if (!mem_ensure(v->aliases, v->cap_aliases, v->n_aliases + 1)) return false;
        v->aliases[v->n_aliases++] = (struct vocab_alias){ piece, id };
    }
    v->n_pieces += *slot == 0;
    *slot = hash >> 32 << 32 | (uint32_t)(at + 1);
    if (piece.n > v->max_bytes) v->max_bytes = piece.n;
    return true;
}

/* The id of the entry in the slot of the piece; -1: the slot is free. */
static int32_t find_hashed(const struct vocab *v, struct str piece, uint64_t hash)
{
    uint64_t s = *find_slot(v, piece, hash);
    int32_t id = -1;

    if (s) vocab_at(v, (int)(uint32_t)s - 1, &id);
    return id;
}

int32_t vocab_find(const struct vocab *v, struct str piece)
{
    if (!v->slots || piece.n > v->max_bytes) return -1;
    if (!piece.p) piece.p = "";
    return find_hashed(v, piece, vocab_hash(piece));
}

/* The slot of the hash is the first that a lookup reads. */
void vocab_prefetch(const struct vocab *v, uint64_t hash)
{
    __builtin_prefetch(&v->slots[hash & v->mask]);
}

/* The first entry with the same 32 bits of hash is nearly always the piece. */
int32_t vocab_guess(const struct vocab *v, uint64_t hash)
{
    uint64_t tag = hash >> 32, s;

    for (size_t i = hash & v->mask; (s = v->slots[i]); i = (i + 1) & v->mask) {
        if (s >> 32 != tag) continue;
        if ((uint32_t)s <= (uint32_t)v->n) __builtin_prefetch(&v->pieces[(uint32_t)s - 1]);
        return (int32_t)(uint32_t)s - 1;
    }
    return -1;
}

int32_t vocab_find_guessed(const struct vocab *v, struct str piece, uint64_t hash, int32_t guess)
{
    if (guess < 0) return -1;
    if (guess < v->n && str_eq(v->pieces[guess], piece)) return guess;
    return find_hashed(v, piece, hash);
}
