/* detok.h - ids → text as it streams: never half a character, never a space too many.
 *
 * Feeding ids one by one gives, put together, exactly what tokenizer_decode gives for all of
 * them, except that bytes which can not become a character any more come out as U+FFFD. */
#ifndef TERN_TOKEN_DETOK_H
#define TERN_TOKEN_DETOK_H

#include "token/tokenizer.h"

struct detok {
    const struct tokenizer *t;
    bool skip_special;
    struct ids ids; /* those whose text is not settled */
    size_t given;   /* bytes of their text that are out already */
    struct buf text;
};

void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special);
/* After these ids text was written already: context for the first piece. */
void detok_prime(struct detok *d, const int32_t *ids, size_t n);
void detok_push(struct detok *d, int32_t id, struct buf *out); /* appends whole characters */
void detok_flush(struct detok *d, struct buf *out);            /* what is held back, at the end */
void detok_release(struct detok *d);
#endif
