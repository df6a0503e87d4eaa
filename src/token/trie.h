/* trie.h - byte strings to numbers, walked a byte at a time. A zeroed trie is a valid empty one. */
#ifndef TERN_TOKEN_TRIE_H
#define TERN_TOKEN_TRIE_H

#include "base/str.h"

struct trie {
    uint64_t *edges; /* (node << 8 | byte) + 1 << 32 | child; 0: free */
    size_t mask, n_edges;
    int32_t *values; /* [n_nodes], -1: no string ends here */
    size_t n_nodes, cap_nodes;
};

void trie_reserve(struct trie *t, size_t n_bytes);            /* of all strings together, at most */
bool trie_add(struct trie *t, struct str key, int32_t value); /* false: it was there, and stays */
void trie_release(struct trie *t);

enum { TRIE_ROOT = 0 };
/* The child of node by byte, or 0: there is none. */
uint32_t trie_step(const struct trie *t, uint32_t node, unsigned char byte);
/* The longest string of the trie that text begins with: its length, 0 if none. */
size_t trie_longest(const struct trie *t, struct str text, int32_t *value);
#endif
