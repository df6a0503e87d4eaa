/* toktrie.c - the trie is built in one pass over the sorted words: each word shares the path of the
 * one before it up to their common prefix, and adds nodes for the rest. Leaving a node is when its
 * `skip` becomes known. */
#include "grammar/toktrie.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Bytewise, shorter words first; of equal words the smaller id. */
int toktrie_compare(const struct toktrie_word *x, const struct toktrie_word *y)
{
    int n = x->n < y->n ? x->n : y->n, c = n ? memcmp(x->p, y->p, (size_t)n) : 0;

    if (c) return c;
    return x->n != y->n ? (x->n > y->n) - (x->n < y->n) : (x->id > y->id) - (x->id < y->id);
}

static int by_bytes(const void *a, const void *b) { return toktrie_compare(a, b); }

/* In bytes. */
static int common_prefix(const struct toktrie_word *x, const struct toktrie_word *y)
{
    int n = 0;

    while (n < x->n && n < y->n && x->p[n] == y->p[n]) n++;
    return n;
}

bool toktrie_build(struct toktrie *out, struct toktrie_word *words, int n)
{
    if (n) qsort(words, (size_t)n, sizeof *words, by_bytes);
    return toktrie_build_sorted(out, words, n);
}

/* The exact number of nodes is known from the common prefixes. */
static bool alloc_nodes(struct toktrie *out, const struct toktrie_word *words, int n)
{
    size_t n_nodes = 1;

    for (int i = 0; i < n; i++)
        n_nodes += (size_t)(words[i].n - (i ? common_prefix(&words[i - 1], &words[i]) : 0));
    *out = (struct toktrie){ .nodes = mem_array(n_nodes, sizeof *out->nodes),
                             .tokens = mem_array((size_t)n + 1, sizeof *out->tokens),
                             .n_tokens = n };
    if (out->nodes && out->tokens) return true;
    toktrie_release(out);
    return false;
}

bool toktrie_build_sorted(struct toktrie *out, const struct toktrie_word *words, int n)
{
    uint32_t path[TOKTRIE_MAX_DEPTH + 1]; /* the nodes of the previous word, by depth */
    int depth = 0;

    if (!alloc_nodes(out, words, n)) return false;
    for (int i = 0; i < n; i++) {
        int same = i ? common_prefix(&words[i - 1], &words[i]) : 0;
        while (depth > same) out->nodes[path[depth--]].skip = (uint32_t)out->n_nodes;
        while (depth < words[i].n) {
            path[depth + 1] = (uint32_t)out->n_nodes;
            out->nodes[out->n_nodes++] =
                (struct toktrie_node){ .byte = words[i].p[depth], .depth = (uint8_t)(depth + 1) };
            depth++;
        }
        if (out->nodes[path[depth]].n_tokens++ == 0) out->nodes[path[depth]].token = (uint32_t)i;
        out->tokens[i] = words[i].id;
    }
    while (depth > 0) out->nodes[path[depth--]].skip = (uint32_t)out->n_nodes;
    return true;
}

void toktrie_release(struct toktrie *t)
{
    mem_free(t->nodes);
    mem_free(t->tokens);
    *t = (struct toktrie){ 0 };
}
