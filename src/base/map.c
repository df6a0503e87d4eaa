/* map.c - the hash table of map.h. Full hashes are stored, so that growing needs no second hashing
 * and most unequal keys are told apart without comparing bytes. */
#include "base/map.h"

#include "base/mem.h"

#include <sys/random.h>

struct map_slot {
    struct str key; /* p NULL: the slot is free */
    uint64_t hash, value;
};

/* Drawn at first use. Threads that race agree on the value the first one stores. */
static uint64_t hash_seed(void)
{
    static uint64_t s;
    uint64_t v = __atomic_load_n(&s, __ATOMIC_RELAXED);

    if (v) return v;
    if (getrandom(&v, sizeof v, 0) != sizeof v) v = 0x9e3779b97f4a7c15u;
    uint64_t none = 0;
    v |= 1; /* 0 stands for "not drawn yet" */
    return __atomic_compare_exchange_n(&s, &none, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)
               ? v
               : none;
}

/* The multiply-and-fold step of wyhash (Wang Yi), with two of its constants. */
static uint64_t mix_words(uint64_t a, uint64_t b)
{
    __uint128_t r = (__uint128_t)(a ^ 0xa0761d6478bd642fu) * (b ^ 0xe7037ed1a0b428dbu);
    return (uint64_t)r ^ (uint64_t)(r >> 64);
}

/* Eight bytes at a time; the tail is padded with zeros, and the length is part of the seed. */
uint64_t map_hash(struct str key)
{
    uint64_t h = hash_seed() ^ key.n, w;
    const char *p = key.p;
    size_t n = key.n;

    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&w, p, 8);
        h = mix_words(h, w);
    }
    w = 0;
    if (n) memcpy(&w, p, n);
    return mix_words(h, w);
}

/* The slot of key, or the free slot where it belongs. Ends because half the slots are free. */
static struct map_slot *find_slot(const struct map *m, struct str key, uint64_t hash)
{
    for (size_t i = hash & (m->cap - 1);; i = (i + 1) & (m->cap - 1)) {
        struct map_slot *s = &m->slots[i];
        if (!s->key.p || (s->hash == hash && str_eq(s->key, key))) return s;
    }
}

/* Rehashes into a table of at least 2 n slots. On failure the old table stays in place. */
bool map_reserve(struct map *m, size_t n)
{
    struct map old = *m;
    size_t cap = 16;

    if (n > SIZE_MAX / 8) return false;
    while (cap < n * 2) cap *= 2;
    if (cap <= m->cap) return true;
    if (!(m->slots = mem_array(cap, sizeof *m->slots))) {
        m->slots = old.slots;
        return false;
    }
    m->cap = cap;
    for (size_t i = 0; i < old.cap; i++)
        if (old.slots[i].key.p) *find_slot(m, old.slots[i].key, old.slots[i].hash) = old.slots[i];
    mem_free(old.slots);
    return true;
}

bool map_get(const struct map *m, struct str key, uint64_t *value)
{
    struct map_slot *s;

    if (m->n == 0) return false;
    if (!key.p) key.p = "";
    s = find_slot(m, key, map_hash(key));
    if (!s->key.p) return false;
    if (value) *value = s->value;
    return true;
}

int map_put(struct map *m, struct str key, uint64_t value)
{
    uint64_t hash = map_hash(key);
    struct map_slot *s;

    if (!key.p) key.p = "";
    if (!map_reserve(m, m->n + 1)) return E_NOMEM;
    s = find_slot(m, key, hash);
    bool fresh = !s->key.p;
    if (fresh) {
        s->key = key;
        s->hash = hash;
        m->n++;
    }
    s->value = value;
    return fresh ? MAP_ADDED : MAP_REPLACED;
}

void map_release(struct map *m)
{
    mem_free(m->slots);
    *m = (struct map){ 0 };
}

size_t map_bytes(const struct map *m) { return m->cap * sizeof *m->slots; }
