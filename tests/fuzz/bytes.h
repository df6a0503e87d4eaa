/* bytes.h - a vocabulary of every byte, made once, and matchers over it. */
#ifndef TERN_TESTS_FUZZ_BYTES_H
#define TERN_TESTS_FUZZ_BYTES_H

#include "grammar/matcher.h"
#include "grammar/vocabtrie.h"

static inline struct vocabtrie *byte_vocab(void)
{
    static struct vocabtrie *l;
    static char bytes[256];
    static struct str words[256];

    if (l) return l;
    for (int i = 0; i < 256; i++) bytes[i] = (char)i, words[i] = str_of(&bytes[i], 1);
    if (vocabtrie_from_bytes(&l, words, NULL, 256, NULL) != OK) __builtin_trap();
    return l;
}

static inline struct matcher_cache *open_cache(const struct pda *pda, const struct vocabtrie *vocab)
{
    struct matcher_cache *c = NULL;

    if (matcher_cache_open(&c, pda, vocab, NULL) != OK) __builtin_trap();
    return c;
}

static inline void begin_text(struct matcher *x, struct matcher_cache *c, bool at_start)
{
    if (matcher_begin(x, c, at_start, NULL) != OK) __builtin_trap();
}
#endif
