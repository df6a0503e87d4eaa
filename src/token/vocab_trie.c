/* vocab_trie.c - a trie whose edges are in one hash table.
 *
 * Nodes are numbers. An edge is looked up by (node, byte), so a node costs 4 bytes and an edge 16
 * at most, where arrays of 256 children per node would take gigabytes. */
#include "token/vocab.h"

/* The key of an edge, (node << 8 | byte) + 1, has 32 bits. */
#define MAX_NODES ((1 << 24) - 1)

static uint64_t hash_edge(uint32_t key) { return key * 0x9e3779b97f4a7c15u >> 20; }

static void put_edge(uint64_t *edges, size_t mask, uint64_t edge)
{
    size_t i = hash_edge((uint32_t)(edge >> 32)) & mask;
    while (edges[i]) i = (i + 1) & mask;
    edges[i] = edge;
}

static bool grow_edges(struct trie *t, size_t cap)
{
    uint64_t *edges = mem_array(cap, sizeof *edges);

    if (!edges) return false;
    for (size_t i = 0; t->edges && i <= t->mask; i++)
        if (t->edges[i]) put_edge(edges, cap - 1, t->edges[i]);
    mem_free(t->edges);
    t->edges = edges;
    t->mask = cap - 1;
    return true;
}

/* Adds a node without edges. false: no memory. */
static bool add_node(struct trie *t)
{
    if (!mem_ensure(t->values, t->cap_nodes, t->n_nodes + 1)) return false;
    t->values[t->n_nodes++] = -1;
    return true;
}

bool trie_reserve(struct trie *t, size_t n_bytes)
{
    size_t cap = 64;

    while (cap < n_bytes) cap *= 2;
    return (t->edges && cap <= t->mask + 1) || grow_edges(t, cap);
}

/* The hot loop of unigram encoding: one probe, mostly. */
uint32_t trie_step(const struct trie *t, uint32_t node, unsigned char byte)
{
    uint32_t key = (node << 8 | byte) + 1;

    if (!t->n_nodes) return 0;
    for (size_t i = hash_edge(key) & t->mask; t->edges[i]; i = (i + 1) & t->mask)
        if (t->edges[i] >> 32 == key) return (uint32_t)t->edges[i];
    return 0;
}

/* Adds the child of node by byte; 0: no memory. The table stays at most half full. */
static uint32_t add_child(struct trie *t, uint32_t node, unsigned char byte)
{
    uint32_t child = (uint32_t)t->n_nodes;

    if ((t->n_edges + 1) * 2 > t->mask && !grow_edges(t, (t->mask + 1) * 2)) return 0;
    if (!add_node(t)) return 0;
    t->n_edges++;
    put_edge(t->edges, t->mask, (uint64_t)((node << 8 | byte) + 1) << 32 | child);
    return child;
}

int trie_add(struct trie *t, struct str key, int32_t value)
{
    uint32_t node = TRIE_ROOT, child;

    if (!t->edges && !grow_edges(t, 64)) return E_NOMEM;
    if (!t->n_nodes && !add_node(t)) return E_NOMEM;
    for (size_t i = 0; i < key.n; i++, node = child) {
        unsigned char byte = (unsigned char)key.p[i];
        if ((child = trie_step(t, node, byte))) continue;
        if (t->n_nodes >= MAX_NODES) return TRIE_ADDED; /* full: this string is not found */
        if (!(child = add_child(t, node, byte))) return E_NOMEM;
    }
    if (t->values[node] >= 0) return TRIE_PRESENT;
    t->values[node] = value;
    return TRIE_ADDED;
}

void trie_release(struct trie *t)
{
    mem_free(t->edges);
    mem_free(t->values);
    *t = (struct trie){ 0 };
}

/* Walks as long as there are edges and remembers the last node where a string ended. */
size_t trie_longest(const struct trie *t, struct str text, int32_t *value)
{
    uint32_t node = TRIE_ROOT;
    size_t best = 0;

    for (size_t i = 0; i < text.n && (node = trie_step(t, node, (unsigned char)text.p[i])); i++)
        if (t->values[node] >= 0) best = i + 1, *value = t->values[node];
    return best;
}
