/* promptborder.h - where two prompts part: from the texts to a number of tokens.
 *
 * A number that is wrong costs time and nothing else: whoever goes by it compares tokens. So texts whose
 * tokens depend on what stands around them are not treated exactly. Pure functions. */
#ifndef TERN_POOL_PROMPTBORDER_H
#define TERN_POOL_PROMPTBORDER_H

#include "token/tokenizer.h"

/* Bytes that both texts begin with, whole characters only. */
size_t promptborder_common(struct str a, struct str b);

/* Number of the ids, the tokens of text, that come before byte `at`. The shorter side of it is
 * encoded once more. 0: that failed. */
int promptborder_tokens(const struct tokenizer *t, struct str text, const struct ids *ids,
                        size_t at);

/* Tokens that both begin with. */
int promptborder_same(const struct ids *a, const struct ids *b);

/* Inserts `at` into the ascending list of *n positions, of at most `max`, if it is positive and new. */
void promptborder_add(int *list, int *n, int max, int at);
#endif
