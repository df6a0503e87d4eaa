/* tokbig.h - the two large members of a tokenizer.json, vocabulary and merges, read straight from
 * its text: building a tree of a million values takes longer than all the rest. */
#ifndef TERN_TOKEN_TOKBIG_H
#define TERN_TOKEN_TOKBIG_H

#include "token/tokjson.h"

struct tokbig {
    struct str vocab;  /* {"piece": id, ...}; empty: there is none, or it is something else */
    struct str merges; /* [...]; empty likewise */
};

/* Finds them, and appends json without them (null stands in their place) to rest. */
void tokbig_cut(struct str json, struct tokbig *out, struct buf *rest);

/* Into t->vocab, and with t->bpe's prefix set, into t->bpe. */
int tokbig_vocab(struct tokenizer *t, const struct tokbig *b, const struct place *p, struct err *e);
int tokbig_merges(struct tokenizer *t, const struct tokbig *b, const struct place *p,
                  struct err *e);
#endif
