#include "token/vocab.h"

#include "base/mem.h"

static uint64_t spot(uint32_t key) { return key * 0x9e3779b97f4a7c15u >> 20; }

static void put_edge(uint64_t *edges, size_t mask, uint64_t edge)
{
    size_t i = spot((uint32_t)(edge >> 32)) & mask;
    while (edges[i]) i = (i + 1) & mask;
    edges[i] = edge;
}

static void grow_edges(struct trie *t, size_t cap)
{
    uint64_t *edges = mem_array(cap, sizeof *edges);

    for (size_t i = 0; t->edges && i <= t->mask; i++)
        if (t->edges[i]) put_edge(edges, cap - 1, t->edges[i]);
    mem_free(t->edges);
    t->edges = edges;
    t->mask = cap - 1;
}

static uint32_t new_node(struct trie *t)
{
    if (t->n_nodes == t->cap_nodes) {
        t->cap_nodes = t->cap_nodes ? t->cap_nodes * 2 : 64;
        t->values = mem_grow(t->values, t->cap_nodes * sizeof *t->values);
    }
    t->values[t->n_nodes] = -1;
    return (uint32_t)t->n_nodes++;
}

void trie_reserve(struct trie *t, size_t n_bytes)
{
    size_t cap = 64;

    while (cap < n_bytes) cap *= 2;
    if (!t->edges || cap > t->mask + 1) grow_edges(t, cap);
}

/* The key of an edge fits 32 bits while there are fewer than 2^24 nodes. */
uint32_t trie_step(const struct trie *t, uint32_t node, unsigned char byte)
{
    uint32_t key = (node << 8 | byte) + 1;

    if (!t->n_nodes) return 0;
    for (size_t i = spot(key) & t->mask; t->edges[i]; i = (i + 1) & t->mask)
        if (t->edges[i] >> 32 == key) return (uint32_t)t->edges[i];
    return 0;
}

bool trie_add(struct trie *t, struct str key, int32_t value)
{
    uint32_t node = TRIE_ROOT, child;

    if (!t->n_nodes) {
        new_node(t);
        if (!t->edges) grow_edges(t, 64);
    }
    for (size_t i = 0; i < key.n; i++, node = child) {
        unsigned char byte = (unsigned char)key.p[i];
        if ((child = trie_step(t, node, byte))) continue;
        if (t->n_nodes >= (1 << 24) - 1) return true; /* full: longer strings go unfound */
        child = new_node(t);
        if (++t->n_edges * 2 > t->mask) grow_edges(t, (t->mask + 1) * 2);
        put_edge(t->edges, t->mask, (uint64_t)((node << 8 | byte) + 1) << 32 | child);
    }
    if (t->values[node] >= 0) return false;
    t->values[node] = value;
    return true;
}

void trie_release(struct trie *t)
{
    mem_free(t->edges);
    mem_free(t->values);
    *t = (struct trie){ 0 };
}

size_t trie_longest(const struct trie *t, struct str text, int32_t *value)
{
    uint32_t node = TRIE_ROOT;
    size_t best = 0;

    for (size_t i = 0; i < text.n && (node = trie_step(t, node, (unsigned char)text.p[i])); i++)
        if (t->values[node] >= 0) best = i + 1, *value = t->values[node];
    return best;
}
