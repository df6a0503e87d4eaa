/* bytes.h - a vocabulary of every byte, made once. */
#ifndef TERN_TESTS_FUZZ_BYTES_H
#define TERN_TESTS_FUZZ_BYTES_H

#include "grammar/guide.h"

static struct lexicon *lexicon(void)
{
    static struct lexicon *l;
    static char bytes[256];
    static struct str words[256];

    if (l) return l;
    for (int i = 0; i < 256; i++) bytes[i] = (char)i, words[i] = str_of(&bytes[i], 1);
    if (lexicon_from(&l, words, NULL, 256, NULL) != OK) __builtin_trap();
    return l;
}
#endif
