/* ends.h - the tokens with which a model ends its turn, from everything its files say. */
#ifndef TERN_ENGINE_ENDS_H
#define TERN_ENGINE_ENDS_H

#include "format/source.h"
#include "token/tokenizer.h"

#define ENDS_MAX 32

struct ends {
    int32_t ids[ENDS_MAX];
    int n;
};

/* tok may be NULL. Ids outside the vocabulary are left out. */
void ends_find(struct ends *out, const struct source *src, const struct tokenizer *tok,
               int n_vocab);
bool ends_has(const struct ends *e, int32_t id);
#endif
