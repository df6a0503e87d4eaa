#include "token/vocab.h"

#include "base/mem.h"

static uint64_t mix(uint64_t a, uint64_t b)
{
    __uint128_t r = (__uint128_t)(a ^ 0xa0761d6478bd642fu) * (b ^ 0xe7037ed1a0b428dbu);
    return (uint64_t)r ^ (uint64_t)(r >> 64);
}

/* Not seeded: the same file gives the same table. A file that piles its pieces up slows only itself. */
uint64_t vocab_hash(struct str s)
{
    uint64_t h = s.n, w = 0;
    const char *p = s.p;
    size_t n = s.n;

    for (; n > 8; n -= 8, p += 8) {
        memcpy(&w, p, 8);
        h = mix(h, w);
    }
    w = 0;
    if (n >= 4) {
        uint32_t a, b;
        memcpy(&a, p, 4);
        memcpy(&b, p + n - 4, 4);
        w = (uint64_t)a << 32 | b;
    } else if (n) {
        w = (uint64_t)(unsigned char)p[0] << 16 | (uint64_t)(unsigned char)p[n / 2] << 8 | (unsigned char)p[n - 1];
    }
    return mix(h, w);
}

int vocab_init(struct vocab *v, int n_ids, int n_pieces, struct err *e)
{
    size_t cap = 16;

    while (cap < (size_t)n_pieces * 2) cap *= 2;
    *v = (struct vocab){ .n = n_ids, .cap_entries = n_pieces, .mask = cap - 1 };
    v->pieces = mem_try_array((size_t)n_ids + 1, sizeof *v->pieces);
    v->entries = mem_try_array((size_t)n_pieces + 1, sizeof *v->entries);
    v->slots = mem_try_array(cap, sizeof *v->slots);
    if (v->pieces && v->entries && v->slots) return OK;
    vocab_release(v);
    return err_set(e, E_NOMEM, "no memory for a vocabulary of %d pieces", n_pieces);
}

void vocab_release(struct vocab *v)
{
    mem_free(v->pieces);
    mem_free(v->entries);
    mem_free(v->slots);
    *v = (struct vocab){ 0 };
}

/* The slot that holds the piece, or the free one where it belongs. */
static uint64_t *find_slot(const struct vocab *v, struct str piece, uint64_t hash)
{
    uint64_t tag = hash >> 32;

    for (size_t i = hash & v->mask;; i = (i + 1) & v->mask) {
        uint64_t s = v->slots[i];
        if (!s) return &v->slots[i];
        if (s >> 32 != tag) continue;
        const struct vocab_entry *x = &v->entries[(uint32_t)s - 1];
        if (x->n == piece.n && memcmp(x->p, piece.p, piece.n) == 0) return &v->slots[i];
    }
}

void vocab_put(struct vocab *v, struct str piece, int32_t id)
{
    uint64_t hash = vocab_hash(piece), *slot;

    if (!piece.p) piece.p = "";
    slot = find_slot(v, piece, hash);
    if (!*slot) {
        v->entries[v->n_entries] = (struct vocab_entry){ piece.p, (uint32_t)piece.n, id };
        *slot = hash >> 32 << 32 | (uint32_t)++v->n_entries;
    }
    v->entries[(uint32_t)*slot - 1].id = id;
    v->pieces[id] = piece;
    if (piece.n > v->max_bytes) v->max_bytes = piece.n;
}

int32_t vocab_find_hashed(const struct vocab *v, struct str piece, uint64_t hash)
{
    uint64_t s;

    if (!v->slots || piece.n > v->max_bytes) return -1;
    s = *find_slot(v, piece, hash);
    return s ? v->entries[(uint32_t)s - 1].id : -1;
}

int32_t vocab_find(const struct vocab *v, struct str piece)
{
    if (piece.n > v->max_bytes) return -1;
    if (!piece.p) piece.p = "";
    return vocab_find_hashed(v, piece, vocab_hash(piece));
}
