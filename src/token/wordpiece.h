/* wordpiece.h - BERT's pieces: the longest piece a word begins with, then the longest of the rest.
 */
#ifndef TERN_TOKEN_WORDPIECE_H
#define TERN_TOKEN_WORDPIECE_H

#include "token/tokscratch.h"
#include "token/vocab.h"

struct wordpiece {
    const struct vocab *vocab;
    struct str first, inside; /* put before the beginning of a word, before the rest; borrowed */
    int max_chars;            /* a longer word is unknown; 0: no limit */
    int32_t unk;
};

void wordpiece_encode(const struct wordpiece *p, struct scratch *w, struct str word,
                      struct ids *out);
#endif
