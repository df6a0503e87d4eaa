/* toktrie.h - a prefix trie over the bytes of tokens, laid out for one sweep.
 *
 * Nodes lie in the order of a depth-first walk, which is also the order of the sorted words. Each
 * node says where the walk continues when nothing below it can match. So a walk is one loop over an
 * array with jumps forward. A zeroed trie is a valid empty one. */
#ifndef TERN_GRAMMAR_TOKTRIE_H
#define TERN_GRAMMAR_TOKTRIE_H

#include <stdbool.h>
#include <stdint.h>

#define TOKTRIE_MAX_DEPTH 255 /* bytes of a word */

struct toktrie_node {
    uint32_t skip;       /* the first node that is not below this one */
    uint32_t token;      /* the first of its tokens in `tokens` */
    uint16_t n_tokens;   /* tokens whose last byte this node is */
    uint8_t depth, byte; /* depth 1: the first byte of a word */
};

struct toktrie {
    struct toktrie_node *nodes;
    int32_t *tokens; /* ids, in the order of the words */
    int n_nodes, n_tokens;
};

/* The bytes of a token, or the last of them; borrowed. At most TOKTRIE_MAX_DEPTH, at least 1. */
struct toktrie_word {
    const uint8_t *p;
    uint16_t n;
    int32_t id;
};

int toktrie_compare(const struct toktrie_word *x, const struct toktrie_word *y);
/* false: out of memory, and *out is empty. */
bool toktrie_build(struct toktrie *out, struct toktrie_word *words, int n); /* sorts the words */
bool toktrie_build_sorted(struct toktrie *out, const struct toktrie_word *words, int n);
void toktrie_release(struct toktrie *t);
#endif
