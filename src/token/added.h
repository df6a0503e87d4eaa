/* added.h - tokens that are found in the text itself, before any splitting: special ones and those
 * added to a vocabulary by hand.
 *
 * Those marked `normalized` are looked for in normalized text, the others in the text as it came.
 */
#ifndef TERN_TOKEN_ADDED_H
#define TERN_TOKEN_ADDED_H

#include "base/buf.h"
#include "token/trie.h"

struct added_token {
    struct str content; /* borrowed */
    int32_t id;
    bool special, lstrip, rstrip, normalized, single_word;
};

/* One of the two sets. The tokens belong to the tokenizer. */
struct added {
    struct trie trie; /* content → index into tokens */
    const struct added_token *tokens;
    bool first[256]; /* can a token begin with this byte? */
    int n_first;
    unsigned char only_first; /* where there is just one */
};

void added_put(struct added *a, struct str content,
               int index); /* the first of equal contents stays */
void added_release(struct added *a);

/* A walk over the tokens in a text, leftmost and longest first. */
struct added_walk {
    const struct added *a;
    struct str text;
    bool plain;        /* special ones are text */
    size_t from, done; /* where to look next; up to where text is spoken for */
};
/* The next token: text before it is [*before, *start), it ends at w->done. NULL: no more. */
const struct added_token *added_next(struct added_walk *w, size_t *before, size_t *start);
#endif
